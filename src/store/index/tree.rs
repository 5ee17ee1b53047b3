//! The keys in order with their newest records: a B+tree that counts.
//!
//! 1. Leaves are [`Block`]s of keys and records, linked to the next. A key whose newest record is a
//!    tombstone stays until the tombstone goes.
//! 2. Inner nodes are blocks too: each child under a key that all of its keys reach and none of
//!    its left neighbour's does, with the number of live keys below it and the newest main revision
//!    there (which may be too high after keys went). The first child's key is never looked at.
//! 3. Nodes are called by number; a leaf keeps its number as long as it is there. What it is told
//!    about tombstones that went to another leaf, the caller takes from `moved`.
//! 4. Keys that come in order mostly go to the leaf of the one before: it is kept at hand with the
//!    keys that belong to it, until a node is split or merged.
//! 5. Nodes that become small are merged with a neighbour; one that cannot be stays small.

use std::ops::ControlFlow;

use super::block::{Block, Field};
use super::leaf::{Leaf, Newest, Wanted};
use crate::etcd::request::Span;
use crate::etcd::revision::Revision;

/// Children of an inner node at most.
const WIDE: usize = 64;
/// Below this a node is merged, if the two together do not get wider than `MERGED`.
const NARROW: usize = WIDE / 4;
const MERGED: usize = WIDE / 4 * 3;

const NO_LEAF: u32 = u32::MAX;

const CHILD: Field = Field::A;
const LIVE: Field = Field::B;
const NEWEST: Field = Field::C;

/// Nodes by number.
#[derive(Debug)]
struct Nodes<T> {
    nodes: Vec<T>,
    free: Vec<u32>,
}

impl<T> Nodes<T> {
    const fn new() -> Self {
        Self { nodes: Vec::new(), free: Vec::new() }
    }

    fn get(&self, number: u32) -> Option<&T> {
        self.nodes.get(number as usize)
    }

    fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.nodes.get_mut(number as usize)
    }

    fn add(&mut self, node: T) -> u32 {
        if let Some(number) = self.free.pop()
            && let Some(place) = self.nodes.get_mut(number as usize)
        {
            *place = node;
            return number;
        }
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }

    /// Takes a node out and leaves `empty` in its place.
    fn take(&mut self, number: u32, empty: T) -> Option<T> {
        let node = std::mem::replace(self.nodes.get_mut(number as usize)?, empty);
        self.free.push(number);
        Some(node)
    }
}

/// A key that was noted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Noted {
    /// What was its newest record before.
    pub(super) before: Option<Newest>,
    /// The leaf where it is.
    pub(super) leaf: u32,
}

/// The leaf to which the last keys went, at the end of [`Tree::path`].
#[derive(Debug)]
struct Near {
    leaf: u32,
    /// Whether what follows is known, and nothing has changed since.
    is_known: bool,
    /// Its keys are from here on,
    low: Vec<u8>,
    /// and end before this one; all where that is not there.
    high: Vec<u8>,
    has_high: bool,
}

impl Near {
    const NOWHERE: Self =
        Self { leaf: NO_LEAF, is_known: false, low: Vec::new(), high: Vec::new(), has_high: false };

    fn has(&self, key: &[u8]) -> bool {
        self.is_known
            && key >= self.low.as_slice()
            && (!self.has_high || key < self.high.as_slice())
    }

    fn forget(&mut self) {
        (self.leaf, self.is_known) = (NO_LEAF, false);
    }
}

/// The tree.
#[derive(Debug)]
pub(super) struct Tree {
    leaves: Nodes<Leaf>,
    inner: Nodes<Block>,
    /// A leaf where `height` is 0.
    root: u32,
    /// Number of inner nodes above each leaf.
    height: usize,
    live: u64,
    /// Tombstones that went to another leaf, which the caller takes.
    pub(super) moved: Vec<(Revision, u32)>,
    /// The way to a leaf: inner nodes and the child taken. Kept so as not to be made each time.
    path: Vec<(u32, usize)>,
    near: Near,
}

impl Default for Tree {
    fn default() -> Self {
        let mut leaves = Nodes::new();
        let root = leaves.add(Leaf::new(NO_LEAF));
        Self {
            leaves,
            inner: Nodes::new(),
            root,
            height: 0,
            live: 0,
            moved: Vec::new(),
            path: Vec::new(),
            near: Near::NOWHERE,
        }
    }
}

/// Finds the child of an inner node in which a key is.
fn child_of(node: &Block, key: &[u8]) -> usize {
    match node.search(1, key) {
        Ok(at) => at,
        Err(at) => at.saturating_sub(1),
    }
}

fn child(node: &Block, at: usize) -> u32 {
    node.value(at, CHILD) as u32
}

/// The shortest key that is above `left` and not above `right`.
fn separator(left: &[u8], right: &[u8]) -> Vec<u8> {
    let shared = left.iter().zip(right).take_while(|(a, b)| a == b).count();
    right.get(..=shared).unwrap_or(right).to_vec()
}

impl Tree {
    fn leaf_of(&self, key: &[u8]) -> u32 {
        let mut number = self.root;
        for _ in 0..self.height {
            let Some(node) = self.inner.get(number) else { break };
            number = child(node, child_of(node, key));
        }
        number
    }

    /// Finds the newest record of a key, tombstone or not.
    pub(super) fn get(&self, key: &[u8]) -> Option<Newest> {
        let leaf = self.leaves.get(self.leaf_of(key))?;
        Some(leaf.newest(leaf.find(Wanted::new(key))?))
    }

    /// Notes the newest record of a key.
    pub(super) fn note(&mut self, key: &[u8], newest: Newest) -> Noted {
        let mut path = std::mem::take(&mut self.path);
        let is_near = self.near.has(key);
        let number = if is_near { self.near.leaf } else { self.seek(key, &mut path) };
        let mut noted = Noted { before: None, leaf: number };
        let Some(leaf) = self.leaves.get_mut(number) else { return noted };
        let wanted = Wanted::new(key);
        let is_behind = is_near && leaf.ends_before(key);
        let found = if is_behind { None } else { leaf.find(wanted) };
        match found {
            Some(at) => {
                noted.before = Some(leaf.newest(at));
                leaf.set(at, newest);
            }
            None => {
                let at = if is_behind { leaf.len() } else { leaf.place(0, key) };
                leaf.insert(at, wanted, newest);
            }
        }
        let is_wide = leaf.is_wide();
        let was_live = noted.before.is_some_and(|before| !before.is_dead);
        let more = u64::from(!newest.is_dead).wrapping_sub(u64::from(was_live));
        self.live = self.live.wrapping_add(more);
        let main = newest.latest.modified.main.cast_unsigned();
        for (number, at) in &path {
            let Some(node) = self.inner.get_mut(*number) else { continue };
            if more != 0 {
                node.set(*at, LIVE, node.value(*at, LIVE).wrapping_add(more));
            }
            if node.value(*at, NEWEST) < main {
                node.set(*at, NEWEST, main);
            }
        }
        if is_wide {
            self.near.forget();
            self.split(number, key, &mut path, &mut noted);
        }
        self.path = path;
        noted
    }

    /// Finds the leaf of a key; where it is that of the key before, what belongs to it.
    fn seek(&mut self, key: &[u8], path: &mut Vec<(u32, usize)>) -> u32 {
        let number = self.descend(key, path);
        let near = &mut self.near;
        near.is_known = near.leaf == number;
        near.leaf = number;
        if near.is_known {
            near.low.clear();
            near.has_high = false;
            let mut has_low = false;
            for (number, at) in path.iter().rev() {
                let Some(node) = self.inner.get(*number) else { continue };
                if !has_low && *at > 0 {
                    node.read_key(*at, &mut near.low);
                    has_low = true;
                }
                if !near.has_high && at + 1 < node.len() {
                    node.read_key(at + 1, &mut near.high);
                    near.has_high = true;
                }
            }
        }
        number
    }

    fn descend(&self, key: &[u8], path: &mut Vec<(u32, usize)>) -> u32 {
        path.clear();
        let mut number = self.root;
        for _ in 0..self.height {
            let Some(node) = self.inner.get(number) else { break };
            let at = child_of(node, key);
            path.push((number, at));
            number = child(node, at);
        }
        number
    }

    /// Splits a leaf, into which `key` came last, and what becomes too wide above it.
    fn split(&mut self, number: u32, key: &[u8], path: &mut Vec<(u32, usize)>, noted: &mut Noted) {
        let Some(leaf) = self.leaves.get_mut(number) else { return };
        let len = leaf.len();
        // Keys that come in ascending order leave full leaves behind.
        let is_last = leaf.place(0, key) == len - 1;
        let cut = if is_last { len - 1 } else { len / 2 };
        let right = leaf.split(cut);
        let [mut last, mut first] = [Vec::new(), Vec::new()];
        leaf.read_key(cut - 1, &mut last);
        right.read_key(0, &mut first);
        let live = right.live(usize::MAX);
        let new = self.leaves.add(right);
        if let Some(leaf) = self.leaves.get_mut(number) {
            leaf.next = new;
        }
        let between = separator(&last, &first);
        if key >= between.as_slice() {
            noted.leaf = new;
        }
        self.tell_moved(new, 0);
        self.add_child(path, number, new, &between, live);
    }

    /// Tells where the tombstones of a leaf are, from a place on.
    fn tell_moved(&mut self, number: u32, from: usize) {
        let Some(leaf) = self.leaves.get(number) else { return };
        if leaf.has_dead() {
            let dead = (from..leaf.len()).filter(|at| leaf.is_dead(*at));
            self.moved.extend(dead.map(|at| (leaf.modified(at), number)));
        }
    }

    /// Puts a new node right of `left`, at the end of whose path it is.
    fn add_child(
        &mut self,
        path: &mut Vec<(u32, usize)>,
        left: u32,
        right: u32,
        between: &[u8],
        live: u64,
    ) {
        let Some((number, at)) = path.pop() else {
            self.grow(left, right, between, live);
            return;
        };
        let Some(node) = self.inner.get_mut(number) else { return };
        let newest = node.value(at, NEWEST);
        node.set(at, LIVE, node.value(at, LIVE).wrapping_sub(live));
        node.insert(at + 1, between, [right.into(), live, newest, 0, 0, 0]);
        let len = node.len();
        if len <= WIDE {
            return;
        }
        let cut = if at + 2 == len { len - 1 } else { len / 2 };
        let new = Block::gather(&[(node, cut..len)], usize::MAX);
        let mut between = Vec::new();
        node.read_key(cut, &mut between);
        *node = Block::gather(&[(node, 0..cut)], usize::MAX);
        let live = (0..new.len()).map(|at| new.value(at, LIVE)).sum();
        let new = self.inner.add(new);
        self.add_child(path, number, new, &between, live);
    }

    /// Puts a new root above two nodes.
    fn grow(&mut self, left: u32, right: u32, between: &[u8], live: u64) {
        let newest = match self.height {
            0 => [left, right]
                .into_iter()
                .filter_map(|leaf| self.leaves.get(leaf))
                .fold(0, |newest, leaf| {
                    (0..leaf.len()).map(|at| leaf.main(at)).fold(newest, u64::max)
                }),
            _ => [left, right].into_iter().filter_map(|node| self.inner.get(node)).fold(
                0,
                |newest, node| {
                    (0..node.len()).map(|at| node.value(at, NEWEST)).fold(newest, u64::max)
                },
            ),
        };
        let mut root = Block::default();
        let left_live = self.live.wrapping_sub(live);
        root.insert(0, between, [left.into(), left_live, newest, 0, 0, 0]);
        root.insert(1, between, [right.into(), live, newest, 0, 0, 0]);
        self.root = self.inner.add(root);
        self.height += 1;
    }

    /// Drops the key whose newest record is this tombstone from a leaf.
    pub(super) fn drop_dead(&mut self, number: u32, revision: Revision) {
        let Some(leaf) = self.leaves.get_mut(number) else { return };
        let mut places = 0..leaf.len();
        let found = places.find(|at| leaf.modified(*at) == revision && leaf.is_dead(*at));
        let Some(at) = found else { return };
        if leaf.len() > NARROW || self.height == 0 {
            leaf.remove(at);
            return;
        }
        let mut key = Vec::new();
        leaf.read_key(at, &mut key);
        leaf.remove(at);
        let mut path = std::mem::take(&mut self.path);
        self.near.forget();
        self.descend(&key, &mut path);
        self.merge_leaf(&mut path);
        self.path = path;
    }

    /// Merges the leaf at the end of a path with a neighbour, if it can be, and what becomes
    /// narrow above it.
    fn merge_leaf(&mut self, path: &mut Vec<(u32, usize)>) {
        let Some((number, at)) = path.pop() else { return };
        let Some((left_at, left, right)) = self.pair(number, at) else { return };
        let (Some(left_leaf), Some(right_leaf)) = (self.leaves.get(left), self.leaves.get(right))
        else {
            return;
        };
        let Some(joined) = left_leaf.join(right_leaf) else { return };
        let kept = left_leaf.len();
        if let Some(leaf) = self.leaves.get_mut(left) {
            *leaf = joined;
        }
        self.leaves.take(right, Leaf::new(NO_LEAF));
        self.tell_moved(left, kept);
        self.drop_child(number, left_at, path);
    }

    /// The child at `at` and a neighbour: the place of the left one, and both.
    fn pair(&self, number: u32, at: usize) -> Option<(usize, u32, u32)> {
        let node = self.inner.get(number)?;
        let left_at = if at + 1 < node.len() { at } else { at.checked_sub(1)? };
        Some((left_at, child(node, left_at), child(node, left_at + 1)))
    }

    /// Drops the child right of `left_at`, which went into that one.
    fn drop_child(&mut self, number: u32, left_at: usize, path: &mut Vec<(u32, usize)>) {
        let Some(node) = self.inner.get_mut(number) else { return };
        let live = node.value(left_at, LIVE).wrapping_add(node.value(left_at + 1, LIVE));
        let newest = node.value(left_at, NEWEST).max(node.value(left_at + 1, NEWEST));
        node.set(left_at, LIVE, live);
        node.set(left_at, NEWEST, newest);
        node.remove(left_at + 1);
        if node.len() <= NARROW {
            self.merge_inner(number, path);
        }
    }

    fn merge_inner(&mut self, number: u32, path: &mut Vec<(u32, usize)>) {
        let Some((parent, at)) = path.pop() else {
            self.shrink(number);
            return;
        };
        let Some((left_at, left, right)) = self.pair(parent, at) else { return };
        let mut between = Vec::new();
        if let Some(node) = self.inner.get(parent) {
            node.read_key(left_at + 1, &mut between);
        }
        let (Some(left_node), Some(right_node)) = (self.inner.get(left), self.inner.get(right))
        else {
            return;
        };
        if left_node.len() + right_node.len() > MERGED {
            return;
        }
        // The right one's first child gets the key that it has in the parent.
        let mut first = Block::default();
        first.insert(0, &between, right_node.values(0));
        let parts =
            [(left_node, 0..left_node.len()), (&first, 0..1), (right_node, 1..right_node.len())];
        let merged = Block::gather(&parts, usize::MAX);
        if let Some(node) = self.inner.get_mut(left) {
            *node = merged;
        }
        self.inner.take(right, Block::default());
        self.drop_child(parent, left_at, path);
    }

    /// Does without a root that has one child.
    fn shrink(&mut self, number: u32) {
        let Some(node) = self.inner.get(number) else { return };
        if node.len() == 1 && self.height > 0 {
            self.root = child(node, 0);
            self.height -= 1;
            self.inner.take(number, Block::default());
            if self.height > 0 {
                self.shrink(self.root);
            }
        }
    }

    /// Counts the live keys before a key.
    fn rank(&self, key: &[u8]) -> u64 {
        let mut rank = 0_u64;
        let mut number = self.root;
        for _ in 0..self.height {
            let Some(node) = self.inner.get(number) else { break };
            let at = child_of(node, key);
            rank += (0..at).map(|at| node.value(at, LIVE)).sum::<u64>();
            number = child(node, at);
        }
        let Some(leaf) = self.leaves.get(number) else { return rank };
        rank + leaf.live(leaf.place(0, key))
    }

    /// Counts the live keys of a span.
    pub(super) fn count(&self, span: Span<'_>) -> u64 {
        match span {
            Span::Key(key) => u64::from(self.get(key).is_some_and(|newest| !newest.is_dead)),
            Span::Range(first, end) if end > first => {
                self.rank(end).saturating_sub(self.rank(first))
            }
            Span::Range(..) => 0,
            Span::From(first) => self.live.saturating_sub(self.rank(first)),
        }
    }

    /// Shows the keys of a span in order with their newest records, tombstones too.
    pub(super) fn scan(
        &self,
        span: Span<'_>,
        visit: &mut impl FnMut(&[u8], Newest) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let (first, end) = match span {
            Span::Key(key) => {
                return self.get(key).map_or(ControlFlow::Continue(()), |one| visit(key, one));
            }
            Span::Range(first, end) if end > first => (first, Some(end)),
            Span::Range(..) => return ControlFlow::Continue(()),
            Span::From(first) => (first, None),
        };
        let mut key = Vec::new();
        let mut number = self.leaf_of(first);
        let mut from = None;
        while let Some(leaf) = self.leaves.get(number) {
            let start = from.unwrap_or_else(|| leaf.place(0, first));
            from = Some(0);
            let len = leaf.len();
            let stop = end.map_or(len, |end| leaf.place(start.min(len), end));
            for at in start..stop {
                leaf.read_key(at, &mut key);
                visit(&key, leaf.newest(at))?;
            }
            if stop < len {
                break;
            }
            number = leaf.next;
        }
        ControlFlow::Continue(())
    }

    /// Counts the keys of a span that were visible before `bound`: those with a newest record
    /// before it that is no tombstone, and those others of which `was_visible` says so.
    pub(super) fn count_before(
        &self,
        span: Span<'_>,
        bound: Revision,
        was_visible: &mut impl FnMut(Revision) -> bool,
    ) -> u64 {
        match span {
            Span::Key(key) => self.get(key).map_or(0, |newest| {
                let modified = newest.latest.modified;
                if modified < bound {
                    u64::from(!newest.is_dead)
                } else {
                    u64::from(was_visible(modified))
                }
            }),
            Span::Range(first, end) if end > first => self.count_below(
                self.root,
                self.height,
                [Some(first), Some(end)],
                bound,
                was_visible,
            ),
            Span::Range(..) => 0,
            Span::From(first) => {
                self.count_below(self.root, self.height, [Some(first), None], bound, was_visible)
            }
        }
    }

    /// The same of a node; `ends` where the span begins or ends in it.
    fn count_below(
        &self,
        number: u32,
        height: usize,
        ends: [Option<&[u8]>; 2],
        bound: Revision,
        was_visible: &mut impl FnMut(Revision) -> bool,
    ) -> u64 {
        let [first, end] = ends;
        let Some(below) = height.checked_sub(1) else {
            let Some(leaf) = self.leaves.get(number) else { return 0 };
            let place = |key| leaf.place(0, key);
            let places = first.map_or(0, place)..end.map_or(leaf.len(), place);
            return places
                .map(|at| {
                    let modified = leaf.modified(at);
                    let is_visible =
                        if modified < bound { !leaf.is_dead(at) } else { was_visible(modified) };
                    u64::from(is_visible)
                })
                .sum();
        };
        let Some(node) = self.inner.get(number) else { return 0 };
        let from = first.map_or(0, |key| child_of(node, key));
        let last = end.map_or(node.len().saturating_sub(1), |key| child_of(node, key));
        let mut count = 0;
        for at in from..=last {
            let first = first.filter(|_| at == from);
            let end = end.filter(|_| at == last);
            let is_old = node.value(at, NEWEST).cast_signed() < bound.main;
            count += if is_old && first.is_none() && end.is_none() {
                node.value(at, LIVE)
            } else {
                self.count_below(child(node, at), below, [first, end], bound, was_visible)
            };
        }
        count
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let leaves = self.leaves.nodes.iter().map(Leaf::memory_bytes);
        let inner = self.inner.nodes.iter().map(Block::memory_bytes);
        leaves.sum::<usize>()
            + inner.sum::<usize>()
            + self.leaves.nodes.capacity() * size_of::<Leaf>()
            + self.inner.nodes.capacity() * size_of::<Block>()
    }
}

#[cfg(test)]
impl Tree {
    /// Fails where the tree is not as the module says.
    pub(super) fn check(&self) {
        let mut leaves = Vec::new();
        let live = self.check_below(self.root, self.height, [None, None], &mut leaves);
        assert_eq!(live, self.live);
        let numbers: Vec<u32> = leaves.iter().copied().skip(1).chain([NO_LEAF]).collect();
        let next: Vec<u32> =
            leaves.iter().map(|leaf| self.leaves.get(*leaf).unwrap().next).collect();
        assert_eq!(next, numbers);
        assert_eq!(leaves.len() + self.leaves.free.len(), self.leaves.nodes.len());
        assert!(self.moved.is_empty());
    }

    fn check_below(
        &self,
        number: u32,
        height: usize,
        [from, to]: [Option<Vec<u8>>; 2],
        leaves: &mut Vec<u32>,
    ) -> u64 {
        let mut key = Vec::new();
        let mut last: Option<Vec<u8>> = None;
        if height == 0 {
            let leaf = self.leaves.get(number).unwrap();
            assert!(leaf.len() <= super::leaf::WIDE);
            assert!(leaf.len() > 0 || self.height == 0, "an empty leaf");
            for at in 0..leaf.len() {
                leaf.read_key(at, &mut key);
                assert!(from.as_ref().is_none_or(|from| key >= *from), "below its node");
                assert!(to.as_ref().is_none_or(|to| key < *to), "above its node");
                assert!(last.as_ref().is_none_or(|last| key > *last), "out of order");
                assert_eq!(leaf.find(Wanted::new(&key)), Some(at));
                last = Some(key.clone());
            }
            leaves.push(number);
            return leaf.live(usize::MAX);
        }
        let node = self.inner.get(number).unwrap();
        assert!((1..=WIDE).contains(&node.len()));
        let mut sum = 0;
        for at in 0..node.len() {
            let edge = |at: usize| {
                let mut key = Vec::new();
                node.read_key(at, &mut key);
                key
            };
            let from = if at == 0 { from.clone() } else { Some(edge(at)) };
            let to = if at + 1 == node.len() { to.clone() } else { Some(edge(at + 1)) };
            let live = self.check_below(child(node, at), height - 1, [from, to], leaves);
            assert_eq!(live, node.value(at, LIVE));
            sum += live;
        }
        sum
    }
}
