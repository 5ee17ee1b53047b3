//! A small fixed value for every user key, for a hundred million keys and more.
//!
//! 1. A key is remembered as 72 bits of two hashes under secret random seeds, so that nobody can
//!    make two keys meet, and with a hundred million keys the odds that any two do are one to a
//!    million.
//! 2. Memory is (8 + value) bytes for an entry, at most 1.4 times that for a key. A value of 10
//!    bytes costs 23 bytes on average over any number of keys, while the table grows too.
//!
//! Shape: 256 shards, by 8 bits of the second hash. A shard is an array of entries, ascending by
//! the first hash, with empty ones between: an entry stands at or behind the place that its hash
//! points to, as near as the order allows. So a search ends at the first greater hash, and a shard
//! grows by a single sweep. Shards grow each at its own time and by a quarter, so growing has no
//! peak.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;

use crate::format::{u64_of, usize_of};

const SHARDS: usize = 256;
/// Places of the smallest shard; the largest starts with a quarter more.
const PLACES_MIN: usize = 64;

/// The first hash of a key; zero in an empty entry. Bytes, so that an entry has no gaps.
type Tag = [u8; 8];

#[derive(Clone, Copy)]
struct Entry<V> {
    tag: Tag,
    value: V,
}

#[derive(Clone)]
struct Shard<V> {
    entries: Vec<Entry<V>>,
    /// Hashes point to this many places; entries may stand behind them.
    places: usize,
    used: usize,
}

#[derive(Clone)]
struct Secret {
    seed: u64,
    shared: SharedSeed,
}

/// A map from user keys to values, made for values of two or four bytes, or arrays of such.
#[derive(Clone)]
pub struct KeyTable<V> {
    secrets: [Secret; 2],
    shards: Vec<Shard<V>>,
    len: u64,
}

impl<V: Copy + Default> Default for KeyTable<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> fmt::Debug for KeyTable<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secrets stay secret.
        f.debug_struct("KeyTable").field("len", &self.len).finish_non_exhaustive()
    }
}

impl<V: Copy + Default> KeyTable<V> {
    /// Makes an empty table with secrets of its own.
    #[must_use]
    pub fn new() -> Self {
        // The standard library's state is seeded by the operating system.
        let random = RandomState::new();
        let secret = |n: u64| Secret {
            seed: random.hash_one(n),
            shared: SharedSeed::from_u64(random.hash_one(n.wrapping_add(2))),
        };
        let shard = |index: usize| Shard {
            entries: Vec::new(),
            // Not all the same, so that they do not all grow at the same time.
            places: PLACES_MIN.saturating_add(index.wrapping_mul(97) % SHARDS / 16),
            used: 0,
        };
        Self { secrets: [0, 1].map(secret), shards: (0..SHARDS).map(shard).collect(), len: 0 }
    }

    /// Returns how many keys there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Tells whether there are no keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns a key's value.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<V> {
        let (shard, hash) = self.place(key);
        let shard = self.shards.get(shard)?;
        let (at, found) = shard.find(hash);
        if found { shard.entries.get(at).map(|entry| entry.value) } else { None }
    }

    /// Gives a key a value; returns the one that it had.
    pub fn insert(&mut self, key: &[u8], value: V) -> Option<V> {
        let (shard, hash) = self.place(key);
        let before = self.shards.get_mut(shard)?.insert(hash, value);
        self.len = self.len.saturating_add(u64::from(before.is_none()));
        before
    }

    /// Returns every value, in an order that says nothing.
    pub fn values(&self) -> impl Iterator<Item = V> {
        let entries = self.shards.iter().flat_map(|shard| shard.entries.iter());
        entries.filter(|entry| !entry.is_empty()).map(|entry| entry.value)
    }

    /// Returns the number of the shard, below 256, and the first hash, which is never 0.
    fn place(&self, key: &[u8]) -> (usize, u64) {
        let [first, second] = self.secrets.each_ref().map(|secret| {
            let mut hasher = FoldHasher::with_seed(secret.seed, &secret.shared);
            hasher.write(key);
            hasher.finish()
        });
        (usize::from(second.to_le_bytes()[0]), first.max(1))
    }
}

impl<V> Entry<V> {
    fn is_empty(&self) -> bool {
        self.tag == Tag::default()
    }

    fn hash(&self) -> u64 {
        u64::from_le_bytes(self.tag)
    }
}

impl<V: Copy + Default> Shard<V> {
    const EMPTY: Tag = [0; 8];

    /// Where a hash points to: greater hashes never point before it.
    fn home(places: usize, hash: u64) -> usize {
        let product = u128::from(hash).saturating_mul(u128::from(u64_of(places)));
        usize_of(u64::try_from(product.wrapping_shr(64)).unwrap_or(0))
    }

    /// Returns where a hash stands, or the place before which it would be put.
    fn find(&self, hash: u64) -> (usize, bool) {
        let home = Self::home(self.places, hash);
        for (steps, entry) in self.entries.iter().skip(home).enumerate() {
            let here = entry.hash();
            // An empty entry has hash 0, which ends no search by being greater.
            if here >= hash || here == 0 {
                return (home.saturating_add(steps), here == hash);
            }
        }
        (self.entries.len().max(home), false)
    }

    fn insert(&mut self, hash: u64, value: V) -> Option<V> {
        if self.entries.is_empty() {
            self.entries = vec![Entry { tag: Self::EMPTY, value: V::default() }; self.places];
        }
        let (at, found) = self.find(hash);
        if found {
            let slot = self.entries.get_mut(at)?;
            return Some(std::mem::replace(&mut slot.value, value));
        }
        // Seven eighths full: searches are still short, and the room is used.
        if self.used.saturating_mul(8) >= self.places.saturating_mul(7) {
            self.grow();
            let (at, _) = self.find(hash);
            self.put(at, hash, value);
        } else {
            self.put(at, hash, value);
        }
        None
    }

    /// Puts an entry at a place, moving those that stand there on by one.
    fn put(&mut self, at: usize, hash: u64, value: V) {
        let entry = Entry { tag: hash.to_le_bytes(), value };
        self.used = self.used.saturating_add(1);
        let Some(rest) = self.entries.get_mut(at..) else {
            // Behind the last place, where the array ends.
            make_room(&mut self.entries);
            return self.entries.push(entry);
        };
        match rest.iter().position(Entry::is_empty) {
            Some(gap) => {
                let Some(run) = rest.get_mut(..=gap) else { return };
                run.rotate_right(1);
                if let Some(first) = run.first_mut() {
                    *first = entry;
                }
            }
            None => {
                make_room(&mut self.entries);
                self.entries.insert(at, entry);
            }
        }
    }

    fn grow(&mut self) {
        let places = self.places.saturating_add(self.places / 4);
        let mut entries = Vec::with_capacity(places);
        for entry in self.entries.iter().filter(|entry| !entry.is_empty()) {
            let home = Self::home(places, entry.hash());
            while entries.len() < home {
                entries.push(Entry { tag: Self::EMPTY, value: V::default() });
            }
            make_room(&mut entries);
            entries.push(*entry);
        }
        if entries.len() < places {
            entries.resize(places, Entry { tag: Self::EMPTY, value: V::default() });
        }
        self.entries = entries;
        self.places = places;
    }
}

/// Makes a little room at the end, not as much again as a vector would by itself.
fn make_room<V>(entries: &mut Vec<Entry<V>>) {
    if entries.len() == entries.capacity() {
        entries.reserve_exact(4);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn bytes(table: &KeyTable<[u16; 5]>) -> usize {
        let room = table.shards.iter().map(|shard| shard.entries.capacity());
        room.sum::<usize>() * std::mem::size_of::<Entry<[u16; 5]>>()
    }

    #[test]
    fn a_key_costs_24_bytes_at_most() {
        assert_eq!(std::mem::size_of::<Entry<[u16; 5]>>(), 18);
        let mut table = KeyTable::<[u16; 5]>::new();
        for n in 0..300_000_u32 {
            assert_eq!(table.insert(format!("/key/{n}").as_bytes(), [1; 5]), None);
            let keys = usize::try_from(table.len()).unwrap();
            // Below, the first places of 256 shards are all there is.
            if keys > 50_000 && keys.is_multiple_of(500) {
                assert!(bytes(&table) <= keys * 24, "{} for {keys}", bytes(&table));
            }
        }
        for n in 0..300_000_u32 {
            assert_eq!(table.get(format!("/key/{n}").as_bytes()), Some([1; 5]));
        }
        assert_eq!(table.get(b"/key/300000"), None);
        assert_eq!(table.values().count(), 300_000);
    }

    #[test]
    fn entries_behind_the_last_place_are_found() {
        let mut shard = Shard { entries: Vec::new(), places: 4, used: 0 };
        for n in (0..200_u64).rev() {
            assert_eq!(shard.insert(u64::MAX - n, n), None);
        }
        assert_eq!(shard.insert(1, 7), None);
        for n in 0..200 {
            let (at, found) = shard.find(u64::MAX - n);
            assert!(found);
            assert_eq!(shard.entries[at].value, n);
        }
        assert_eq!(shard.insert(1, 8), Some(7));
        assert!(!shard.find(2).1);
    }

    #[test]
    fn two_tables_have_two_secrets() {
        let places = [KeyTable::<u32>::new(), KeyTable::new()].map(|table| table.place(b"a").1);
        assert_ne!(places[0], places[1]);
    }

    proptest! {
        #[test]
        fn a_table_is_a_map(
            steps in proptest::collection::vec((0..400_u32, any::<u32>()), 0..2000),
        ) {
            let (mut table, mut map) = (KeyTable::new(), HashMap::new());
            for (key, value) in steps {
                let key = key.to_be_bytes();
                prop_assert_eq!(table.insert(&key, value), map.insert(key, value));
                prop_assert_eq!(table.len(), map.len() as u64);
            }
            for key in 0..400_u32 {
                let key = key.to_be_bytes();
                prop_assert_eq!(table.get(&key), map.get(&key).copied());
            }
        }

        #[test]
        fn a_shard_is_a_map(hashes in proptest::collection::vec(1..60_u64, 0..300)) {
            let mut shard = Shard { entries: Vec::new(), places: 3, used: 0 };
            let mut map = HashMap::new();
            // Near each other, so that runs are long, at both ends of the range.
            for (n, small) in (0_u64..).zip(hashes) {
                let hash = if small < 30 { small } else { u64::MAX - small };
                prop_assert_eq!(shard.insert(hash, n), map.insert(hash, n));
            }
            for (hash, value) in &map {
                let (at, found) = shard.find(*hash);
                prop_assert!(found);
                prop_assert_eq!(shard.entries[at].value, *value);
            }
        }
    }
}
