//! Which watchers want a key: a hash map for single keys, a tree of intervals for ranges.
//!
//! Watchers of the same keys are one group, found once for all of them. Finding costs one look-up
//! and the logarithm of the number of different ranges, and then only what is found.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicUsize, Ordering as Memory};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use foldhash::fast::RandomState;

use super::channel::Watcher;
use crate::store::kv::Event;

/// Keys that are watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Keys {
    /// One key.
    One(Bytes),
    /// From the first up to, not including, the end; `None` for no end.
    Range(Bytes, Option<Bytes>),
}

impl Keys {
    pub(super) fn contains(&self, key: &[u8]) -> bool {
        match self {
            Self::One(one) => one == key,
            Self::Range(first, end) => first.as_ref() <= key && is_before(key, end.as_ref()),
        }
    }
}

fn is_before(key: &[u8], end: Option<&Bytes>) -> bool {
    end.is_none_or(|end| key < end.as_ref())
}

/// All watchers of the same keys.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) uid: u64,
    watchers: Mutex<BTreeMap<u64, Arc<Watcher>>>,
    with_previous: AtomicUsize,
}

impl Group {
    fn new(uid: u64) -> Arc<Self> {
        let watchers = Mutex::new(BTreeMap::new());
        Arc::new(Self { uid, watchers, with_previous: AtomicUsize::new(0) })
    }

    /// The watchers, in order of their creation.
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Watcher>>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one of them wants the records before.
    pub(super) fn wants_previous(&self) -> bool {
        self.with_previous.load(Memory::SeqCst) > 0
    }

    fn add(&self, watcher: &Arc<Watcher>) {
        if self.lock().insert(watcher.uid, Arc::clone(watcher)).is_none() && watcher.prev_kv {
            self.with_previous.fetch_add(1, Memory::SeqCst);
        }
    }

    /// Returns whether none is left.
    fn remove(&self, watcher: &Watcher) -> bool {
        let mut watchers = self.lock();
        if watchers.remove(&watcher.uid).is_some() && watcher.prev_kv {
            self.with_previous.fetch_sub(1, Memory::SeqCst);
        }
        watchers.is_empty()
    }
}

/// A group, and the events that it wants: number of the commit, number of the event in it.
pub(super) type Wanted = (Arc<Group>, Vec<(usize, usize)>);

/// All watchers, by what they watch.
#[derive(Debug, Default)]
pub(super) struct Index {
    keys: HashMap<Bytes, Arc<Group>, RandomState>,
    ranges: Link,
    ranks: RandomState,
    groups_made: u64,
}

impl Index {
    pub(super) fn insert(&mut self, watcher: &Arc<Watcher>) {
        self.groups_made = self.groups_made.saturating_add(1);
        let uid = self.groups_made;
        match &watcher.keys {
            Keys::One(key) => {
                let group = self.keys.entry(key.clone()).or_insert_with(|| Group::new(uid));
                group.add(watcher);
            }
            Keys::Range(first, end) => {
                if let Some(group) = find(&self.ranges, (first, end.as_ref())) {
                    group.add(watcher);
                    return;
                }
                let group = Group::new(uid);
                group.add(watcher);
                let node = Node {
                    first: first.clone(),
                    end: end.clone(),
                    farthest: end.clone(),
                    rank: mix(uid ^ self.ranks.hash_one(0_u64)),
                    group,
                    left: None,
                    right: None,
                };
                let (below, above) = split(self.ranges.take(), (first, end.as_ref()));
                self.ranges = merge(merge(below, Some(Box::new(node))), above);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.ranges.is_none()
    }

    pub(super) fn remove(&mut self, watcher: &Watcher) {
        match &watcher.keys {
            Keys::One(key) => {
                if self.keys.get(key).is_some_and(|group| group.remove(watcher)) {
                    self.keys.remove(key);
                }
            }
            Keys::Range(first, end) => {
                let place = (first, end.as_ref());
                if find(&self.ranges, place).is_some_and(|group| group.remove(watcher)) {
                    self.ranges = without(self.ranges.take(), place);
                }
            }
        }
    }

    /// Shows the groups that want a key.
    pub(super) fn find(&self, key: &[u8], found: &mut impl FnMut(&Arc<Group>)) {
        if let Some(group) = self.keys.get(key) {
            found(group);
        }
        stab(&self.ranges, key, found);
    }

    /// Finds who wants which of some events; they come in the order of their numbers.
    pub(super) fn find_all<'a>(
        &self,
        events: impl Iterator<Item = ((usize, usize), &'a Event)>,
    ) -> Vec<Wanted> {
        let mut hits: Vec<Wanted> = Vec::new();
        let mut places: HashMap<u64, usize, RandomState> = HashMap::default();
        for (at, event) in events {
            self.find(&event.key, &mut |group| {
                let place = *places.entry(group.uid).or_insert(hits.len());
                match hits.get_mut(place) {
                    Some((_, events)) => events.push(at),
                    None => hits.push((Arc::clone(group), vec![at])),
                }
            });
        }
        hits
    }
}

/// A node of a treap: in order of its interval, a heap of its rank, which chance gives, so that
/// no choice of ranges makes the tree deep.
#[derive(Debug)]
struct Node {
    first: Bytes,
    end: Option<Bytes>,
    /// Largest end in this subtree; `None` for no end.
    farthest: Option<Bytes>,
    rank: u64,
    group: Arc<Group>,
    left: Link,
    right: Link,
}

/// Spreads numbers in a row over all numbers, which a hash for tables need not do (splitmix64).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

type Link = Option<Box<Node>>;
type Place<'a> = (&'a Bytes, Option<&'a Bytes>);

fn compare_ends(a: Option<&Bytes>, b: Option<&Bytes>) -> Ordering {
    match (a, b) {
        (Some(a), Some(b)) => a.cmp(b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    }
}

impl Node {
    fn compare(&self, place: Place<'_>) -> Ordering {
        self.first.cmp(place.0).then_with(|| compare_ends(self.end.as_ref(), place.1))
    }

    fn renew(&mut self) {
        let mut farthest = self.end.as_ref();
        for child in [&self.left, &self.right].into_iter().flatten() {
            if compare_ends(child.farthest.as_ref(), farthest) == Ordering::Greater {
                farthest = child.farthest.as_ref();
            }
        }
        self.farthest = farthest.cloned();
    }
}

fn find<'a>(mut link: &'a Link, place: Place<'_>) -> Option<&'a Arc<Group>> {
    while let Some(node) = link {
        link = match node.compare(place) {
            Ordering::Equal => return Some(&node.group),
            Ordering::Greater => &node.left,
            Ordering::Less => &node.right,
        };
    }
    None
}

fn stab(link: &Link, key: &[u8], found: &mut impl FnMut(&Arc<Group>)) {
    let Some(node) = link else { return };
    if !is_before(key, node.farthest.as_ref()) {
        return;
    }
    stab(&node.left, key, found);
    if node.first.as_ref() <= key {
        if is_before(key, node.end.as_ref()) {
            found(&node.group);
        }
        stab(&node.right, key, found);
    }
}

/// Parts what lies below a place from the rest.
fn split(link: Link, place: Place<'_>) -> (Link, Link) {
    let Some(mut node) = link else { return (None, None) };
    if node.compare(place) == Ordering::Less {
        let (below, above) = split(node.right.take(), place);
        node.right = below;
        node.renew();
        (Some(node), above)
    } else {
        let (below, above) = split(node.left.take(), place);
        node.left = above;
        node.renew();
        (below, Some(node))
    }
}

/// Joins two trees, all of the first below all of the second.
fn merge(below: Link, above: Link) -> Link {
    match (below, above) {
        (Some(mut low), Some(mut high)) => {
            if low.rank >= high.rank {
                low.right = merge(low.right.take(), Some(high));
                low.renew();
                Some(low)
            } else {
                high.left = merge(Some(low), high.left.take());
                high.renew();
                Some(high)
            }
        }
        (one, None) | (None, one) => one,
    }
}

fn without(link: Link, place: Place<'_>) -> Link {
    let mut node = link?;
    match node.compare(place) {
        Ordering::Equal => return merge(node.left.take(), node.right.take()),
        Ordering::Greater => node.left = without(node.left.take(), place),
        Ordering::Less => node.right = without(node.right.take(), place),
    }
    node.renew();
    Some(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::watch::channel::{Channel, Room, Tally};

    fn depth(link: &Link) -> usize {
        link.as_ref().map_or(0, |node| 1 + depth(&node.left).max(depth(&node.right)))
    }

    fn watcher(channel: &Arc<Channel>, uid: u64, keys: Keys) -> Arc<Watcher> {
        let (prev_kv, no_put, no_delete) = (uid.is_multiple_of(2), false, false);
        let (progress_notify, fragment, channel) = (false, false, Arc::clone(channel));
        let (id, start_revision) = (0, 0);
        Arc::new(Watcher {
            uid,
            id,
            keys,
            start_revision,
            prev_kv,
            no_put,
            no_delete,
            progress_notify,
            fragment,
            channel,
        })
    }

    fn channel() -> Arc<Channel> {
        Arc::new(Channel::new(0, Room { max: Default::default() }, Arc::<Tally>::default()))
    }

    fn found(index: &Index, key: &[u8]) -> Vec<u64> {
        let mut uids = Vec::new();
        index.find(key, &mut |group| {
            let watchers = group.lock();
            assert_eq!(group.wants_previous(), watchers.values().any(|one| one.prev_kv));
            uids.extend(watchers.keys());
        });
        uids.sort_unstable();
        uids
    }

    #[test]
    fn it_finds_what_looking_at_all_finds() {
        let (channel, mut index) = (channel(), Index::default());
        let mut all: Vec<Arc<Watcher>> = Vec::new();
        let mut chance = 7_u64;
        let mut random = |end: u64| {
            chance = chance.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (chance >> 33) % end
        };
        for uid in 0..3000 {
            if all.len() > 150 || random(3) == 0 && !all.is_empty() {
                let gone = all.swap_remove(random(all.len() as u64) as usize);
                index.remove(&gone);
                index.remove(&gone);
            }
            let [a, b] = [random(40) as u8, random(40) as u8].map(|byte| Bytes::from(vec![byte]));
            let keys = match random(4) {
                0 => Keys::One(a),
                1 => Keys::Range(a, None),
                _ if a < b => Keys::Range(a, Some(b)),
                _ => Keys::Range(b, Some(a)),
            };
            all.push(watcher(&channel, uid, keys));
            index.insert(all.last().unwrap());
            let key = [random(41) as u8];
            let mut wanted: Vec<u64> =
                all.iter().filter(|one| one.keys.contains(&key)).map(|one| one.uid).collect();
            wanted.sort_unstable();
            assert_eq!(found(&index, &key), wanted);
        }
        all.iter().for_each(|one| index.remove(one));
        assert!(index.keys.is_empty() && index.ranges.is_none());
    }

    #[test]
    fn ranges_in_order_or_within_each_other_do_not_make_it_deep() {
        (0..6).for_each(|_| check_depth(Index::default()));
    }

    fn check_depth(mut index: Index) {
        let channel = channel();
        let number = |number: u64| Bytes::copy_from_slice(&number.to_be_bytes());
        for uid in 0..10_000 {
            let keys = match uid % 2 {
                0 => Keys::Range(number(uid), Some(number(uid + 1))),
                _ => Keys::Range(number(uid), Some(number(1_000_000 - uid))),
            };
            index.insert(&watcher(&channel, uid, keys));
        }
        assert!(depth(&index.ranges) < 60, "{}", depth(&index.ranges));
        assert_eq!(found(&index, &6_u64.to_be_bytes()), [1, 3, 5, 6]);
        assert_eq!(found(&index, &999_998_u64.to_be_bytes()), [1]);
    }
}
