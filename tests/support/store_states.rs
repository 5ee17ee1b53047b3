//! A loss of power while a store, or a part of it, is at work: what was done to the disk and what
//! was said meanwhile is recorded once, and states of the disk are made of it and looked at.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::HashSet;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use etcdkit::bolt::disk::Disk;

use crate::power_history::{Dice, History, Tree, fresh, read_tree, write_tree};
use crate::store_probe::{Recorder, Step, describe};

/// What one looks at is told of the run up to there.
pub(crate) struct Seen<'r, M> {
    /// What was said before the power went.
    pub(crate) marks: &'r [M],
    /// The run had ended.
    pub(crate) is_end: bool,
}

/// A run that was recorded.
pub(crate) struct Run<M> {
    history: History,
    marks: Vec<M>,
    /// Number of changes of the disk before each mark.
    mark_at: Vec<usize>,
    steps: Vec<Step<M>>,
}

/// What was looked at.
#[derive(Debug, Default)]
pub(crate) struct Looked {
    pub(crate) states: usize,
    pub(crate) moments: usize,
    pub(crate) problems: Vec<String>,
}

impl<M: Clone + Debug + Send + 'static> Run<M> {
    /// Records what `work` does below a root on which `before` stands.
    pub(crate) fn record(before: &Tree, work: impl FnOnce(&Path, Disk, &Arc<Recorder<M>>)) -> Self {
        let (_folder, root) = fresh();
        write_tree(&root, before);
        let before = read_tree(&root);
        let recorder = Arc::new(Recorder::default());
        work(&root, Disk::with_probe(recorder.clone()), &recorder);
        let steps = recorder.take();
        let (mut changes, mut marks, mut mark_at) = (Vec::new(), Vec::new(), Vec::new());
        for step in &steps {
            match step {
                Step::Disk(event) => changes.push(event.clone()),
                Step::Mark(mark) => {
                    marks.push(mark.clone());
                    mark_at.push(changes.len());
                }
            }
        }
        let history = History::new(&root, &before, &changes);
        let (told, is) = (history.last(), read_tree(&root));
        if told != is {
            let differs = |(path, item)| (is.get(path) != Some(item)).then_some(path);
            let paths: Vec<_> = told.iter().filter_map(differs).collect();
            let more: Vec<_> = is.keys().filter(|path| !told.contains_key(*path)).collect();
            panic!("not all was done through the disk: {paths:?} differ, {more:?} are more");
        }
        Self { history, marks, mark_at, steps }
    }

    /// Number of changes of the disk.
    pub(crate) fn changes(&self) -> usize {
        self.steps.len() - self.marks.len()
    }

    /// Looks at up to so many distinct states, of all moments alike.
    pub(crate) fn look(
        &self,
        states_max: usize,
        mut check: impl FnMut(&Path, &Tree, &Seen<'_, M>) -> Result<(), String>,
    ) -> Looked {
        let mut plans = self.history.plans();
        // The same choice in every run, but not the first moments only.
        let mut dice = Dice(plans.len() as u64);
        for at in (1..plans.len()).rev() {
            plans.swap(at, dice.below(at + 1));
        }
        let (mut seen, mut moments) = (HashSet::new(), HashSet::new());
        let mut looked = Looked::default();
        for plan in plans {
            if looked.states == states_max {
                break;
            }
            let state = self.history.at(plan);
            let marks = self.mark_at.partition_point(|at| *at <= state.event);
            if !seen.insert((state.fingerprint(), marks)) {
                continue;
            }
            moments.insert(state.event);
            looked.states += 1;
            let (_folder, root) = fresh();
            write_tree(&root, &state.tree);
            let told = Seen { marks: &self.marks[..marks], is_end: state.is_end };
            if let Err(what) = check(&root, &state.tree, &told) {
                let choice = &state.choice;
                let mut text = format!("{what}; after {} changes, {choice:?}\n", state.event);
                text.push_str(&self.tail(state.event));
                looked.problems.push(text);
            }
        }
        looked.moments = moments.len();
        looked
    }

    /// What was done last before a change.
    fn tail(&self, event: usize) -> String {
        let mut count = 0;
        let end = self.steps.iter().position(|step| {
            count += usize::from(matches!(step, Step::Disk(_)));
            count > event
        });
        let steps = &self.steps[..end.unwrap_or(self.steps.len())];
        let lines = steps[steps.len().saturating_sub(16)..].iter().map(|step| match step {
            Step::Disk(event) => format!("    {}\n", describe(event)),
            Step::Mark(mark) => format!("    - {mark:?}\n").chars().take(200).collect(),
        });
        lines.collect()
    }
}

impl Looked {
    /// Insists that nothing was found.
    #[track_caller]
    pub(crate) fn sound(self, what: &str) -> Self {
        let (bad, states, moments) = (self.problems.len(), self.states, self.moments);
        println!("{what}: {states} states at {moments} moments");
        let first: Vec<_> = self.problems.iter().take(3).map(String::as_str).collect();
        assert!(first.is_empty(), "{what}: {bad} of {states} states\n{}", first.join("\n"));
        assert!(states > 20, "{what}: hardly any states");
        self
    }
}

/// A number from the environment, such as how many states to look at.
pub(crate) fn asked(variable: &str, default: usize) -> usize {
    std::env::var(variable).map_or(default, |text| text.parse().expect(variable))
}
