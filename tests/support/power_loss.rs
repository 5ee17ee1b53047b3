//! What a loss of power may leave of an operation, and whether that is good enough.
//!
//! The operation runs once under [`disk::record`]. From what it did, in order, come the states in
//! which a disk may be after a loss of power at any moment: see [`crate::power_history`]. Each is
//! put into a folder and looked at: every target is as it was or as it was to become, whole; what
//! is left beside it can be told for a temporary; and the same operation runs again on it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use etcdkit::ops::disk::{self, Event};
use etcdkit::ops::{Error, ExitCode};

use crate::power_history::{History, Item, STATES_MAX, State, Tree, fresh, read_tree, write_tree};

type Before = Box<dyn Fn(&Path)>;
type Run = Box<dyn Fn(&Path) -> Result<(), Error>>;
type Whole = Box<dyn Fn(&Path) -> bool>;

/// An operation that must survive a loss of power.
pub(crate) struct Case {
    name: String,
    before: Before,
    run: Run,
    targets: Vec<PathBuf>,
    keeps_old: bool,
    whole: Option<Whole>,
    half_refused: Option<String>,
    states_max: usize,
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// What is wrong, one text for each state.
    pub(crate) problems: Vec<String>,
    /// States that were looked at.
    pub(crate) states: usize,
    /// Those with every target as it was, and those with every target new.
    pub(crate) old: usize,
    pub(crate) new: usize,
    /// Those with temporaries in them, and those where a second run left some.
    pub(crate) with_temporaries: usize,
    pub(crate) left_by_second_run: usize,
}

impl Case {
    /// An operation below a root, which is an empty folder.
    pub(crate) fn new(name: &str, run: impl Fn(&Path) -> Result<(), Error> + 'static) -> Self {
        Self {
            name: name.to_owned(),
            before: Box::new(|_| {}),
            run: Box::new(run),
            targets: Vec::new(),
            keeps_old: false,
            whole: None,
            half_refused: None,
            states_max: STATES_MAX,
        }
    }

    /// What stands below the root before.
    pub(crate) fn before(mut self, before: impl Fn(&Path) + 'static) -> Self {
        self.before = Box::new(before);
        self
    }

    /// A path below the root that the operation makes or changes. Of several, one is new only if
    /// those that were named before it are.
    pub(crate) fn target(mut self, path: &str) -> Self {
        self.targets.push(path.into());
        self
    }

    /// What stood at a target that is replaced must be somewhere below the root.
    pub(crate) fn keeps_old(mut self) -> Self {
        self.keeps_old = true;
        self
    }

    /// Where some targets are new and others are not, a second run may refuse in such words.
    pub(crate) fn half_refused(mut self, words: &str) -> Self {
        self.half_refused = Some(words.to_owned());
        self
    }

    /// Looks at so many states, of all moments: for an operation that takes long.
    pub(crate) fn at_most(mut self, states: usize) -> Self {
        self.states_max = states;
        self
    }

    /// Tells of a target whether it is a whole result: for operations whose second run makes other
    /// bytes than the first.
    pub(crate) fn whole(mut self, whole: impl Fn(&Path) -> bool + 'static) -> Self {
        self.whole = Some(Box::new(whole));
        self
    }

    /// Looks at every state.
    pub(crate) fn outcome(&self) -> Outcome {
        // Two recordings at once are not possible.
        static ONE: Mutex<()> = Mutex::new(());
        let (_folder, root) = fresh();
        (self.before)(&root);
        let before = read_tree(&root);
        let (done, events) = {
            let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            disk::record(&root, || (self.run)(&root))
        };
        if let Err(error) = done {
            panic!("{}: {error}", self.name);
        }
        let after = read_tree(&root);
        let history = History::new(&root, &before, &events);
        let mut outcome = Outcome::default();
        if history.last() != after {
            let names = |tree: &Tree| tree.keys().cloned().collect::<Vec<_>>();
            let (told, is) = (names(&history.last()), names(&after));
            let problem = format!("not all was done through ops::disk: {told:?} and {is:?}");
            outcome.problems.push(problem);
            return outcome;
        }
        let states = history.states();
        let apart = states.len().div_ceil(self.states_max);
        // The last ones are those of an operation that has ended; they stay.
        for state in states.into_iter().rev().step_by(apart) {
            outcome.states += 1;
            if let Err(what) = self.look(&state, &before, &after, &mut outcome) {
                outcome.problems.push(self.describe(&state, &events, &what));
            }
        }
        outcome
    }

    /// Looks at every state, and insists.
    #[track_caller]
    pub(crate) fn survives(&self) -> Outcome {
        let outcome = self.outcome();
        let first: Vec<_> = outcome.problems.iter().take(5).map(String::as_str).collect();
        let (bad, states) = (outcome.problems.len(), outcome.states);
        assert!(first.is_empty(), "{}: {bad} of {states}\n{}", self.name, first.join("\n"));
        // States of both kinds, or this looked at nothing.
        assert!(outcome.old > 0 && outcome.new > 0, "{}: {outcome:?}", self.name);
        outcome
    }

    fn describe(&self, state: &State, events: &[Event], what: &str) -> String {
        let mut text = format!("{what}; after {} events, {:?}\n", state.event, state.choice);
        for event in events[..state.event].iter().rev().take(12).rev() {
            let event = match event {
                Event::Write { file, offset, bytes } => {
                    format!("Write {file} {offset}+{}", bytes.len())
                }
                other => format!("{other:?}"),
            };
            let _ = writeln!(text, "    {event}");
        }
        for (path, item) in &state.tree {
            let item = match item {
                Item::File(content) => format!("{} bytes", content.len),
                other => format!("{other:?}"),
            };
            let _ = writeln!(text, "  = {} {item}", path.display());
        }
        text
    }

    fn look(
        &self,
        state: &State,
        before: &Tree,
        after: &Tree,
        outcome: &mut Outcome,
    ) -> Result<(), String> {
        let (_folder, root) = fresh();
        write_tree(&root, &state.tree);
        let (mut old, mut new) = (0, 0);
        for target in &self.targets {
            let stands = below(&state.tree, target);
            if stands == below(before, target) {
                old += 1;
                continue;
            }
            if old > 0 {
                let target = target.display();
                return Err(format!("{target} is there, and what it stands on is not"));
            }
            let is_whole = || self.whole.as_ref().is_some_and(|whole| whole(&root.join(target)));
            if stands != below(after, target) && !is_whole() {
                return Err(format!("{} is neither old nor new", target.display()));
            }
            new += 1;
            let lost = self.keeps_old && !is_kept(&state.tree, &below(before, target));
            if lost {
                return Err(format!("what was at {} is nowhere", target.display()));
            }
        }
        if state.is_end && new < self.targets.len() {
            return Err("the operation said that it is done, and it may be lost".into());
        }
        outcome.old += usize::from(old == self.targets.len());
        outcome.new += usize::from(new == self.targets.len());
        outcome.with_temporaries += usize::from(state.tree.keys().any(|path| is_temporary(path)));
        self.check_leftovers(&state.tree, before, after)?;

        let run = std::panic::AssertUnwindSafe(|| (self.run)(&root));
        match std::panic::catch_unwind(run).map_err(|_| "the second run panics")? {
            Ok(()) => {}
            // It was there already, which is what the second run was to bring about.
            Err(error) if error.code == ExitCode::Refused && new == self.targets.len() => {}
            Err(error)
                if (new > 0 && old > 0)
                    && self.half_refused.as_ref().is_some_and(|w| error.message.contains(w)) =>
            {
                return Ok(());
            }
            Err(error) => return Err(format!("the second run says: {error}")),
        }
        let again = read_tree(&root);
        for target in &self.targets {
            let is_whole = || self.whole.as_ref().is_some_and(|whole| whole(&root.join(target)));
            if below(&again, target) != below(after, target) && !is_whole() {
                return Err(format!("a second run leaves {} wrong", target.display()));
            }
        }
        outcome.left_by_second_run += usize::from(again.keys().any(|path| is_temporary(path)));
        self.check_leftovers(&again, before, after).map_err(|what| format!("second run: {what}"))
    }

    /// Whatever is neither a target nor what was there before must be a temporary by its name.
    fn check_leftovers(&self, tree: &Tree, before: &Tree, after: &Tree) -> Result<(), String> {
        let is_target =
            |path: &Path| self.targets.iter().any(|t| path.starts_with(t) || t.starts_with(path));
        let moved_aside = |path: &Path| {
            let first = path.iter().next().unwrap_or_default().to_string_lossy().into_owned();
            self.keeps_old && first.contains(".before-")
        };
        for path in tree.keys() {
            let known = before.contains_key(path) || after.contains_key(path);
            if !known && !is_target(path) && !is_temporary(path) && !moved_aside(path) {
                return Err(format!("{} is left behind", path.display()));
            }
        }
        for (path, item) in before {
            let may_go = is_target(path) || is_temporary(path);
            if !may_go && tree.get(path) != Some(item) {
                return Err(format!("{} was not to be touched", path.display()));
            }
        }
        Ok(())
    }
}

/// Tells a path that is, or is in, a temporary of ours.
fn is_temporary(path: &Path) -> bool {
    path.iter().any(|name| {
        let name = name.to_string_lossy();
        (name.starts_with('.') && name.contains(".etcdkit-")) || name.starts_with("db.tmp.etcdkit-")
    })
}

/// What stands at a path, temporaries inside left out.
fn below(tree: &Tree, path: &Path) -> Tree {
    let inside = tree.range(path.to_owned()..).take_while(|(own, _)| own.starts_with(path));
    let relative = inside.map(|(own, item)| (own.strip_prefix(path).unwrap().to_owned(), item));
    relative.filter(|(own, _)| !is_temporary(own)).map(|(own, item)| (own, item.clone())).collect()
}

/// Tells whether something stands anywhere, under whatever name; nothing always does.
fn is_kept(tree: &Tree, old: &Tree) -> bool {
    old.len() <= 1 || tree.keys().any(|path| below(tree, path) == *old)
}
