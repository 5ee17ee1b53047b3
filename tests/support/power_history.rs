//! The states in which a disk may be after a loss of power, at any moment of what was done to it.
//!
//! **The model.** At least as harsh as ext4 and xfs, whose journals keep the order of changes to
//! directories, and whose files may lose what was not synced:
//!
//! 1. What was written to a file is certain once the file is synced after it. Until then each
//!    write is there, not there, or there in some of its 512-byte sectors, whatever became of the
//!    others; the file's length may be that of any of them. Sectors within the length that are not
//!    there hold what was there before, else zeroes or, harsher, leftovers of something else.
//! 2. A change of names is certain once the directory that gets the name, or loses it for good, is
//!    synced after it. Until then it is there or not, whatever became of other changes, but that
//!    two changes of one name or of one file keep their order. Syncing a file does not make its
//!    name certain.
//! 3. A rename is there whole or not at all, and so is an exchange. Removing a directory with all
//!    in it is one change for each name.
//! 4. What stood there before the operation is certain until it is changed.
//!
//! All moments are tried but those between writes, of which some are; at each one: nothing of
//! what is uncertain, all of it, only names, only lengths, every change of a name alone and every
//! one missing, and random choices.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use etcdkit::bolt::disk::Event;

const SECTOR: usize = 512;
/// Names that are tried alone and left out, at one moment.
const NAMES_TRIED: usize = 12;
/// Random choices at one moment, each with three kinds of data.
const RANDOM: u64 = 16;
/// States beyond which random choices are left out.
pub(crate) const STATES_MAX: usize = 250;
/// Moments between writes that are tried, of one row of them.
const BETWEEN_WRITES: usize = 3;

/// A number for a file or directory, as long as it lives; 0 is the root.
type Inode = usize;
type Place = (Inode, OsString);

/// What stands under a path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Item {
    Dir,
    File(Content),
    Link(PathBuf),
}

/// What a file holds: some bytes, then zeros up to its length, so that a file that is grown ahead
/// costs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Content {
    held: Rc<Vec<u8>>,
    pub(crate) len: usize,
}

impl Content {
    fn new(mut bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        trim(&mut bytes);
        Self { held: Rc::new(bytes), len }
    }

    /// Puts it into a file that is not there.
    fn write(&self, path: &Path) {
        let mut file = fs::File::create_new(path).unwrap();
        file.write_all(&self.held).unwrap();
        file.set_len(self.len as u64).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn apply(&mut self, data: &Data, fate: Of, filler: u8, dice: &mut Dice) {
        if matches!(fate, Of::None) {
            return;
        }
        let held = Rc::make_mut(&mut self.held);
        let Data::Write { offset, bytes: new } = data else {
            let Data::SetLen(len) = data else { return };
            // What a file is grown by reads as zeroes whenever the length is there.
            held.truncate(*len);
            self.len = *len;
            return;
        };
        let end = offset + new.len();
        if self.len < end {
            if filler != 0 && !matches!(fate, Of::All) {
                held.resize(self.len, 0);
                held.resize(end, filler);
            }
            self.len = end;
        }
        for sector in offset / SECTOR..end.div_ceil(SECTOR) {
            let is_there = match fate {
                Of::Length => false,
                Of::Sectors => dice.flip(),
                _ => true,
            };
            let from = (sector * SECTOR).max(*offset);
            let to = ((sector + 1) * SECTOR).min(end);
            if is_there && from < to {
                held.resize(held.len().max(to), 0);
                held[from..to].copy_from_slice(&new[from - offset..to - offset]);
            }
        }
    }

    /// Gives equal contents one form.
    fn normal(mut self) -> Self {
        if self.held.last() == Some(&0) {
            trim(Rc::make_mut(&mut self.held));
        }
        self
    }
}

/// Cuts off zeros at the end.
fn trim(bytes: &mut Vec<u8>) {
    const BLOCK: usize = 4096;
    let zeros = [0; BLOCK];
    while bytes.ends_with(&zeros) {
        bytes.truncate(bytes.len() - BLOCK);
    }
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
}

/// Everything below a root, by path.
pub(crate) type Tree = BTreeMap<PathBuf, Item>;

/// Reads everything below a folder.
pub(crate) fn read_tree(root: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut left = vec![root.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let meta = fs::symlink_metadata(&path).unwrap();
            let item = if meta.is_dir() {
                left.push(path.clone());
                Item::Dir
            } else if meta.is_symlink() {
                Item::Link(fs::read_link(&path).unwrap())
            } else {
                Item::File(Content::new(fs::read(&path).unwrap()))
            };
            tree.insert(path.strip_prefix(root).unwrap().to_owned(), item);
        }
    }
    tree
}

/// Makes a fresh folder, in memory where that can be: hundreds of them are made and synced.
pub(crate) fn fresh() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::Builder::new();
    let folder = folder.tempdir_in("/dev/shm").or_else(|_| folder.tempdir()).unwrap();
    let root = fs::canonicalize(folder.path()).unwrap();
    (folder, root)
}

/// Makes everything of a tree below a folder.
pub(crate) fn write_tree(root: &Path, tree: &Tree) {
    for (path, item) in tree {
        let path = root.join(path);
        match item {
            Item::Dir => fs::DirBuilder::new().mode(0o700).create(&path).unwrap(),
            Item::Link(to) => symlink(to, &path).unwrap(),
            Item::File(content) => content.write(&path),
        }
    }
}

/// One change of what a file holds.
#[derive(Debug)]
enum Data {
    Write { offset: usize, bytes: Vec<u8> },
    SetLen(usize),
}

/// One change of names: where each inode stands after it.
#[derive(Debug)]
struct Names {
    moves: Vec<(Inode, Option<Place>)>,
    /// Names that it takes or frees.
    touched: Vec<Place>,
    /// Directories that must be synced to make it certain.
    dirs: Vec<Inode>,
}

impl Names {
    fn depends_on(&self, other: &Self) -> bool {
        self.touched.iter().any(|place| other.touched.contains(place))
            || self.moves.iter().any(|(inode, _)| other.moves.iter().any(|(i, _)| i == inode))
    }
}

#[derive(Debug)]
enum Step {
    Names(Names),
    Data(Inode, Data),
    Sync(Inode),
    SyncDir(Inode),
}

/// A disk, and what was done to it.
#[derive(Debug)]
pub(crate) struct History {
    /// What every inode was at the start; those made later hold nothing.
    items: Vec<Item>,
    start: BTreeMap<Inode, Place>,
    steps: Vec<Step>,
    /// The event that each step comes from.
    events: Vec<usize>,
}

impl History {
    /// Follows events over what stood below the root before them.
    pub(crate) fn new(root: &Path, before: &Tree, events: &[Event]) -> Self {
        let mut items = vec![Item::Dir];
        let mut start = BTreeMap::new();
        let mut by_path = HashMap::from([(PathBuf::new(), 0)]);
        for (path, item) in before {
            let parent = by_path[path.parent().unwrap()];
            start.insert(items.len(), (parent, path.file_name().unwrap().to_owned()));
            by_path.insert(path.clone(), items.len());
            items.push(item.clone());
        }
        let mut now = Now { root: root.to_owned(), places: start.clone(), files: HashMap::new() };
        let mut history = Self { items, start, steps: Vec::new(), events: Vec::new() };
        for (number, event) in events.iter().enumerate() {
            now.follow(&mut history, event);
            history.events.resize(history.steps.len(), number);
        }
        history
    }

    /// Everything that was asked for, done.
    pub(crate) fn last(&self) -> Tree {
        self.state(self.steps.len(), &Choice::new(Pick::All, Of::All))
    }

    /// The first so many steps were asked for when the power went.
    fn state(&self, moment: usize, choice: &Choice) -> Tree {
        let steps = &self.steps[..moment];
        let mut dice = Dice(choice.seed);
        let mut places = self.start.clone();
        for index in self.chosen_names(moment, choice.names, &mut dice) {
            let Step::Names(names) = &steps[index] else { continue };
            for (inode, place) in &names.moves {
                places.remove(inode);
                if let Some(place) = place {
                    places.insert(*inode, place.clone());
                }
            }
        }
        let mut children: BTreeMap<Inode, Vec<(&OsString, Inode)>> = BTreeMap::new();
        for (inode, (dir, name)) in &places {
            children.entry(*dir).or_default().push((name, *inode));
        }
        let mut tree = Tree::new();
        let mut left = vec![(0, PathBuf::new())];
        while let Some((dir, path)) = left.pop() {
            for (name, inode) in children.remove(&dir).into_iter().flatten() {
                let path = path.join(name);
                let item = match &self.items[inode] {
                    Item::File(start) => {
                        Item::File(self.content(inode, start, steps, choice, &mut dice))
                    }
                    other => other.clone(),
                };
                if item == Item::Dir {
                    left.push((inode, path.clone()));
                }
                tree.insert(path, item);
            }
        }
        tree
    }

    /// Changes of names that are not certain at a moment.
    fn loose_names(&self, moment: usize) -> Vec<usize> {
        let mut synced: HashSet<Inode> = HashSet::new();
        let mut certain: Vec<&Names> = Vec::new();
        let mut loose = Vec::new();
        for (index, step) in self.steps[..moment].iter().enumerate().rev() {
            match step {
                Step::SyncDir(dir) => drop(synced.insert(*dir)),
                Step::Names(names) => {
                    // What is certain stands on nothing that is not.
                    let is_certain = names.dirs.iter().all(|dir| synced.contains(dir))
                        || certain.iter().any(|later| later.depends_on(names));
                    match is_certain {
                        true => certain.push(names),
                        false => loose.push(index),
                    }
                }
                _ => {}
            }
        }
        loose.reverse();
        loose
    }

    /// Changes of names that are on the disk, in order.
    fn chosen_names(&self, moment: usize, pick: Pick, dice: &mut Dice) -> Vec<usize> {
        let names = |index: usize| match &self.steps[index] {
            Step::Names(names) => Some(names),
            _ => None,
        };
        let loose = self.loose_names(moment);
        // What a single change stands on comes with it.
        let mut wanted = BTreeSet::new();
        if let Pick::Only(only) = pick {
            wanted.insert(loose[only]);
            for index in loose[..only].iter().rev() {
                if wanted.iter().any(|w| names(*w).unwrap().depends_on(names(*index).unwrap())) {
                    wanted.insert(*index);
                }
            }
        }
        let mut lost: Vec<&Names> = Vec::new();
        let mut chosen = Vec::new();
        for index in 0..moment {
            let Some(change) = names(index) else { continue };
            let place = loose.iter().position(|l| *l == index);
            let is_there = match (place, pick) {
                (None, _) | (_, Pick::All) => true,
                (_, Pick::None) => false,
                (Some(place), Pick::Prefix(end)) => place < end,
                (_, Pick::Only(_)) => wanted.contains(&index),
                (Some(place), Pick::AllBut(one)) => place != one,
                (_, Pick::Random) => dice.flip(),
            };
            // What stands on a lost change is lost with it, unless it was made certain.
            let stands = place.is_none() || !lost.iter().any(|l| change.depends_on(l));
            if is_there && stands {
                chosen.push(index);
            } else {
                lost.push(change);
            }
        }
        chosen
    }

    /// What a file holds.
    fn content(
        &self,
        inode: Inode,
        start: &Content,
        steps: &[Step],
        choice: &Choice,
        dice: &mut Dice,
    ) -> Content {
        let is_sync = |step: &Step| matches!(step, Step::Sync(synced) if *synced == inode);
        let certain = steps.iter().rposition(is_sync).unwrap_or(0);
        let mut content = start.clone();
        for (index, step) in steps.iter().enumerate() {
            let Step::Data(_, data) = step else { continue };
            if !matches!(step, Step::Data(changed, _) if *changed == inode) {
                continue;
            }
            let fate = match choice.data {
                _ if index < certain => Of::All,
                Of::Random => [Of::All, Of::None, Of::Length, Of::Sectors][dice.below(4)],
                fate => fate,
            };
            content.apply(data, fate, choice.filler, dice);
        }
        content.normal()
    }

    /// The moments that are tried: all but most of those between two changes of data.
    fn moments(&self, dice: &mut Dice) -> Vec<usize> {
        let is_data = |at: usize| matches!(self.steps.get(at), Some(Step::Data(..)));
        let mut moments = Vec::new();
        let mut between = Vec::new();
        for moment in 0..=self.steps.len() {
            if moment > 0 && is_data(moment - 1) && is_data(moment) {
                between.push(moment);
                continue;
            }
            for _ in 0..BETWEEN_WRITES.min(between.len()) {
                moments.push(between.swap_remove(dice.below(between.len())));
            }
            between.clear();
            moments.push(moment);
        }
        moments.sort_unstable();
        moments
    }

    /// Every distinct state that is tried, and how it comes about.
    pub(crate) fn states(&self) -> Vec<State> {
        let mut seen = HashSet::new();
        let mut states = Vec::new();
        for plan in self.plans() {
            if plan.is_random && states.len() >= STATES_MAX {
                break;
            }
            let state = self.at(plan);
            if seen.insert((state.fingerprint(), state.is_end)) {
                states.push(state);
            }
        }
        states
    }

    /// The disk of a plan.
    pub(crate) fn at(&self, plan: Plan) -> State {
        let Plan { moment, choice, .. } = plan;
        let event = moment.checked_sub(1).map_or(0, |step| self.events[step] + 1);
        let is_end = moment == self.steps.len();
        State { event, is_end, choice, tree: self.state(moment, &choice) }
    }

    /// What is tried: at every moment some choices, then random ones, of every moment in turn.
    pub(crate) fn plans(&self) -> Vec<Plan> {
        let mut dice = Dice(self.steps.len() as u64);
        let moments = self.moments(&mut dice);
        let mut plans = Vec::new();
        for moment in &moments {
            let loose = self.loose_names(*moment).len();
            let mut picks = vec![Pick::None, Pick::All];
            let tried: Vec<usize> = if loose <= NAMES_TRIED {
                (0..loose).collect()
            } else {
                (0..NAMES_TRIED).map(|_| dice.below(loose)).collect()
            };
            for one in tried {
                picks.extend([Pick::Prefix(one), Pick::Only(one), Pick::AllBut(one)]);
            }
            for pick in picks {
                for of in [Of::All, Of::None, Of::Length] {
                    let choice = Choice::new(pick, of);
                    plans.push(Plan { moment: *moment, choice, is_random: false });
                }
            }
        }
        for _ in 0..RANDOM {
            for moment in &moments {
                for data in [Of::All, Of::Random, Of::Sectors] {
                    let (seed, filler) = (dice.roll(), [0, 0xa5][dice.below(2)]);
                    let choice = Choice { names: Pick::Random, data, seed, filler };
                    plans.push(Plan { moment: *moment, choice, is_random: true });
                }
            }
        }
        plans
    }
}

/// Where everything stands while events are followed.
struct Now {
    root: PathBuf,
    places: BTreeMap<Inode, Place>,
    files: HashMap<u64, Inode>,
}

impl Now {
    fn child(&self, dir: Inode, name: &OsString) -> Option<Inode> {
        let mut all = self.places.iter();
        all.find(|(_, (parent, own))| *parent == dir && own == name).map(|(inode, _)| *inode)
    }

    fn place(&self, path: &Path) -> Place {
        let inside = path.strip_prefix(&self.root).expect("a change below the root");
        let name = inside.file_name().expect("a change below the root").to_owned();
        (self.inode(&self.root.join(inside.parent().unwrap())), name)
    }

    fn inode(&self, path: &Path) -> Inode {
        let inside = path.strip_prefix(&self.root).expect("a path below the root");
        inside.iter().fold(0, |dir, name| {
            let found = self.child(dir, &name.to_owned());
            found.unwrap_or_else(|| panic!("{} was not made here", path.display()))
        })
    }

    /// Moves inodes, and says so.
    fn names(&mut self, history: &mut History, moves: Vec<(Inode, Option<Place>)>) {
        let mut touched = Vec::new();
        let mut dirs = Vec::new();
        for (inode, place) in &moves {
            let from = self.places.remove(inode);
            // A name that is lost for good is certain when its directory is synced.
            dirs.push(place.as_ref().or(from.as_ref()).expect("a name").0);
            touched.extend(from);
            touched.extend(place.clone());
        }
        for (inode, place) in &moves {
            if let Some(place) = place {
                self.places.insert(*inode, place.clone());
            }
        }
        history.steps.push(Step::Names(Names { moves, touched, dirs }));
    }

    fn make(&mut self, history: &mut History, path: &Path, item: Item) -> Inode {
        let place = self.place(path);
        let inode = history.items.len();
        history.items.push(item);
        self.names(history, vec![(inode, Some(place))]);
        inode
    }

    fn remove(&mut self, history: &mut History, inode: Inode) {
        let inside = self.places.iter().filter(|(_, (parent, _))| *parent == inode);
        for child in inside.map(|(child, _)| *child).collect::<Vec<_>>() {
            self.remove(history, child);
        }
        self.names(history, vec![(inode, None)]);
    }

    fn follow(&mut self, history: &mut History, event: &Event) {
        let size = |n: &u64| usize::try_from(*n).unwrap();
        match event {
            Event::Create { file, path } => {
                let inode = self.make(history, path, Item::File(Content::default()));
                self.files.insert(*file, inode);
            }
            Event::Open { file, path } => {
                let inode = self.inode(path);
                self.files.insert(*file, inode);
            }
            Event::MakeDir(path) => drop(self.make(history, path, Item::Dir)),
            Event::Write { file, offset, bytes } => {
                let data = Data::Write { offset: size(offset), bytes: bytes.clone() };
                history.steps.push(Step::Data(self.files[file], data));
            }
            Event::SetLen { file, len } => {
                history.steps.push(Step::Data(self.files[file], Data::SetLen(size(len))));
            }
            Event::Sync { file } => history.steps.push(Step::Sync(self.files[file])),
            Event::SyncDir(path) => history.steps.push(Step::SyncDir(self.inode(path))),
            Event::Rename { from, to } => {
                let (inode, place) = (self.inode(from), self.place(to));
                let replaced = self.child(place.0, &place.1).map(|there| (there, None));
                let moves = replaced.into_iter().chain([(inode, Some(place))]);
                self.names(history, moves.collect());
            }
            Event::Exchange(one, other) => {
                let moves = [(one, other), (other, one)];
                let moves = moves.map(|(from, to)| (self.inode(from), Some(self.place(to))));
                self.names(history, moves.to_vec());
            }
            Event::Remove(path) | Event::RemoveDir(path) => {
                let inode = self.inode(path);
                self.remove(history, inode);
            }
        }
    }
}

/// Which changes of names are on the disk, of those that are not certain.
#[derive(Clone, Copy, Debug)]
enum Pick {
    None,
    All,
    /// The first so many.
    Prefix(usize),
    /// One, and what it stands on.
    Only(usize),
    /// All but one, and what stands on it.
    AllBut(usize),
    Random,
}

/// What of a change of data is on the disk.
#[derive(Clone, Copy, Debug)]
enum Of {
    None,
    All,
    /// The file's length, and no byte.
    Length,
    /// The length, and some sectors.
    Sectors,
    /// For each change something else.
    Random,
}

/// How a state came about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Choice {
    names: Pick,
    data: Of,
    seed: u64,
    /// What stands in sectors that were never written.
    filler: u8,
}

impl Choice {
    fn new(names: Pick, data: Of) -> Self {
        Self { names, data, seed: 1, filler: 0 }
    }
}

/// A moment, and what is on the disk then of what is not certain.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    moment: usize,
    choice: Choice,
    is_random: bool,
}

/// A state in which the disk may be.
#[derive(Debug)]
pub(crate) struct State {
    /// So many events were asked for.
    pub(crate) event: usize,
    /// The operation had ended.
    pub(crate) is_end: bool,
    pub(crate) choice: Choice,
    pub(crate) tree: Tree,
}

impl State {
    /// A number that is the same for equal trees.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.tree.hash(&mut hasher);
        hasher.finish()
    }
}

/// The same numbers in every run.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.roll() % limit.max(1) as u64) as usize
    }

    pub(crate) fn flip(&mut self) -> bool {
        self.roll() & 1 == 0
    }
}
