//! For tests: records what is asked of a disk, makes one change fail, and makes the states that a
//! loss of power may leave.
//!
//! 1. Changes of names reach the disk in their order; those before a synced one are certain.
//! 2. What was written to a file is certain once the file is synced; until then each write is
//!    there, not there, or there in some of its 512-byte sectors.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::bolt::disk::{Disk, Event, Probe, Verdict};

const SECTOR: usize = 512;

/// Numbers that follow from a seed.
#[derive(Clone, Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % limit.max(1)
    }
}

/// What was asked of a disk.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    events: Mutex<Vec<Event>>,
}

impl Recorder {
    pub(crate) fn new() -> (Disk, Arc<Self>) {
        let recorder = Arc::new(Self::default());
        (Disk::with_probe(Arc::clone(&recorder) as Arc<dyn Probe>), recorder)
    }

    pub(crate) fn count(&self) -> usize {
        self.events.lock().unwrap().len()
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }
}

impl Probe for Recorder {
    fn before(&self, _: &Event) -> Verdict {
        Verdict::Go
    }

    fn after(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}

/// Makes one change fail: the `at`-th, in whole or after a part of it.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) at: usize,
    pub(crate) code: i32,
    pub(crate) after_bytes: Option<usize>,
    seen: Mutex<(usize, Option<Event>)>,
}

impl Fault {
    pub(crate) fn new(at: usize, code: i32, after_bytes: Option<usize>) -> (Disk, Arc<Self>) {
        let fault = Arc::new(Self { at, code, after_bytes, seen: Mutex::default() });
        (Disk::with_probe(Arc::clone(&fault) as Arc<dyn Probe>), fault)
    }

    /// What failed.
    pub(crate) fn failed(&self) -> Option<Event> {
        self.seen.lock().unwrap().1.clone()
    }
}

impl Probe for Fault {
    fn before(&self, event: &Event) -> Verdict {
        let mut seen = self.seen.lock().unwrap();
        let number = seen.0;
        seen.0 += 1;
        if number != self.at {
            return Verdict::Go;
        }
        seen.1 = Some(event.clone());
        let error = io::Error::from_raw_os_error(self.code);
        match self.after_bytes {
            Some(bytes) => Verdict::Part(bytes, error),
            None => Verdict::Fail(error),
        }
    }

    fn after(&self, _: Event) {}
}

/// Files (bytes) and folders (`None`) below a root.
pub(crate) type Tree = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// Reads everything below a folder.
pub(crate) fn read_tree(root: &Path) -> Tree {
    let (mut tree, mut left) = (Tree::new(), vec![root.to_owned()]);
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(root).unwrap().to_owned();
            if path.is_dir() {
                tree.insert(name, None);
                left.push(path);
            } else {
                tree.insert(name, Some(fs::read(&path).unwrap()));
            }
        }
    }
    tree
}

/// Writes a tree below a folder.
pub(crate) fn write_tree(root: &Path, tree: &Tree) {
    for (path, bytes) in tree {
        let path = root.join(path);
        let mode = match bytes {
            None => {
                fs::create_dir(&path).unwrap();
                0o700
            }
            Some(bytes) => {
                fs::write(&path, bytes).unwrap();
                0o600
            }
        };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

type Inode = usize;

#[derive(Debug)]
enum Step {
    /// A name leads to something else, or to nothing.
    Link(Vec<((Inode, String), Option<Inode>)>),
    Write(Inode, usize, Vec<u8>),
    SetLen(Inode, usize),
    Sync(Inode),
    SyncDir(Inode),
}

/// A disk before and what was done to it.
#[derive(Debug)]
pub(crate) struct History {
    start: HashMap<(Inode, String), Inode>,
    bytes: HashMap<Inode, Vec<u8>>,
    dirs: HashSet<Inode>,
    steps: Vec<Step>,
}

fn split(path: &Path) -> (PathBuf, String) {
    let name = path.file_name().unwrap().to_str().unwrap().to_owned();
    (path.parent().unwrap().to_owned(), name)
}

impl History {
    /// Follows events over what stood below the root before them.
    pub(crate) fn new(root: &Path, before: &Tree, events: &[Event]) -> Self {
        let mut history = Self {
            start: HashMap::new(),
            bytes: HashMap::new(),
            dirs: HashSet::from([0]),
            steps: Vec::new(),
        };
        let mut live: HashMap<(Inode, String), Inode> = HashMap::new();
        let mut next = 1;
        for (path, bytes) in before {
            let (parent, name) = split(path);
            let parent = find(&live, &parent);
            live.insert((parent, name), next);
            match bytes {
                Some(bytes) => drop(history.bytes.insert(next, bytes.clone())),
                None => drop(history.dirs.insert(next)),
            }
            next += 1;
        }
        history.start = live.clone();
        let mut files: HashMap<u64, Inode> = HashMap::new();
        for event in events {
            let place = |live: &HashMap<_, _>, path: &Path| {
                let (parent, name) = split(path.strip_prefix(root).unwrap());
                (find(live, &parent), name)
            };
            let step = match event {
                Event::Create { path, .. } | Event::MakeDir(path) => {
                    let place = place(&live, path);
                    live.insert(place.clone(), next);
                    match event {
                        Event::Create { file, .. } => {
                            files.insert(*file, next);
                            history.bytes.insert(next, Vec::new());
                        }
                        _ => drop(history.dirs.insert(next)),
                    }
                    next += 1;
                    Step::Link(vec![(place, Some(next - 1))])
                }
                Event::Open { file, path } => {
                    files.insert(*file, find(&live, path.strip_prefix(root).unwrap()));
                    continue;
                }
                Event::Write { file, offset, bytes } => {
                    Step::Write(files[file], usize::try_from(*offset).unwrap(), bytes.clone())
                }
                Event::SetLen { file, len } => {
                    Step::SetLen(files[file], usize::try_from(*len).unwrap())
                }
                Event::Sync { file } => Step::Sync(files[file]),
                Event::SyncDir(path) => {
                    Step::SyncDir(find(&live, path.strip_prefix(root).unwrap()))
                }
                Event::Rename { from, to } => {
                    let (from, to) = (place(&live, from), place(&live, to));
                    let inode = live.remove(&from).unwrap();
                    live.insert(to.clone(), inode);
                    Step::Link(vec![(from, None), (to, Some(inode))])
                }
                Event::Remove(path) => {
                    let place = place(&live, path);
                    live.remove(&place);
                    Step::Link(vec![(place, None)])
                }
                Event::Exchange(..) | Event::RemoveDir(_) => {
                    panic!("no store does that: {event:?}")
                }
            };
            history.steps.push(step);
        }
        history
    }

    /// Shows the distinct states that are tried, each with how many of the events were asked for;
    /// opening a file is none of the steps.
    pub(crate) fn each_state(&self, dice: &mut Dice, visit: &mut dyn FnMut(usize, &Tree)) {
        let mut seen = HashSet::new();
        for moment in 0..=self.steps.len() {
            for choice in 0..8 {
                let tree = self.state(moment, choice, dice);
                let mut hasher = DefaultHasher::new();
                (moment, &tree).hash(&mut hasher);
                if seen.insert(hasher.finish()) {
                    visit(moment, &tree);
                }
            }
        }
    }

    /// 0: only what is certain; 1: all; 2: names only; 3: data only; else random.
    fn state(&self, moment: usize, choice: usize, dice: &mut Dice) -> Tree {
        let steps = &self.steps[..moment];
        let certain_names = steps.iter().enumerate().rev().find_map(|(at, step)| {
            let Step::Link(links) = step else { return None };
            let parents: Vec<_> = links.iter().map(|((parent, _), _)| *parent).collect();
            let synced = |parent: &Inode| {
                steps[at..].iter().any(|s| matches!(s, Step::SyncDir(dir) if dir == parent))
            };
            parents.iter().all(synced).then_some(at + 1)
        });
        let certain_names = certain_names.unwrap_or(0);
        let names_end = match choice {
            0 | 3 => certain_names,
            1 | 2 => moment,
            _ => certain_names + dice.below(moment - certain_names + 1),
        };
        let mut names = self.start.clone();
        for step in &steps[..names_end] {
            let Step::Link(links) = step else { continue };
            for (place, inode) in links {
                match inode {
                    Some(inode) => drop(names.insert(place.clone(), *inode)),
                    None => drop(names.remove(place)),
                }
            }
        }
        let mut tree = Tree::new();
        let mut left = vec![(0, PathBuf::new())];
        while let Some((dir, path)) = left.pop() {
            let mut inside: Vec<_> = names.iter().filter(|((p, _), _)| *p == dir).collect();
            inside.sort();
            for ((_, name), inode) in inside {
                let path = path.join(name);
                if self.dirs.contains(inode) {
                    tree.insert(path.clone(), None);
                    left.push((*inode, path));
                } else {
                    tree.insert(path, Some(self.content(*inode, steps, choice, dice)));
                }
            }
        }
        tree
    }

    fn content(&self, inode: Inode, steps: &[Step], choice: usize, dice: &mut Dice) -> Vec<u8> {
        let is_sync = |step: &Step| matches!(step, Step::Sync(synced) if *synced == inode);
        let certain = steps.iter().rposition(is_sync).unwrap_or(0);
        // Files that were there hold what they held; others begin empty.
        let mut bytes = self.bytes[&inode].clone();
        for (at, step) in steps.iter().enumerate() {
            let fate = match choice {
                _ if at < certain => 1,
                0 | 2 => 0,
                1 | 3 => 1,
                _ => dice.below(3),
            };
            match step {
                Step::SetLen(file, len) if *file == inode && fate != 0 => bytes.resize(*len, 0),
                Step::Write(file, offset, new) if *file == inode && fate != 0 => {
                    let end = offset + new.len();
                    bytes.resize(bytes.len().max(end), 0);
                    let mut from = *offset;
                    while from < end {
                        let to = ((from / SECTOR + 1) * SECTOR).min(end);
                        if fate == 1 || dice.below(2) == 0 {
                            bytes[from..to].copy_from_slice(&new[from - offset..to - offset]);
                        }
                        from = to;
                    }
                }
                _ => {}
            }
        }
        bytes
    }
}

fn find(live: &HashMap<(Inode, String), Inode>, path: &Path) -> Inode {
    let mut inode = 0;
    for name in path {
        inode = live[&(inode, name.to_str().unwrap().to_owned())];
    }
    inode
}
