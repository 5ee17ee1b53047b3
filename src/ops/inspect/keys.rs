//! What is remembered of each key while records go by, in the order of their revisions.
//!
//! A key is known by a 64-bit hash under a secret random key: two of ten million keys meet with a
//! chance of 3 in 10^6, and nobody can make them meet. An entry takes 24 bytes, and the room that
//! the table keeps besides.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

/// A surviving record, by its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Bytes of the row: revision and record.
    pub(super) bytes: u64,
    /// Those of them that are neither the user's key nor value.
    pub(super) overhead: u8,
    /// It deletes the key.
    pub(super) is_tombstone: bool,
}

/// What a record changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Stands for the key.
    pub(super) id: u64,
    /// The living record that it replaced.
    pub(super) replaced: Option<Row>,
    /// The key's records so far.
    pub(super) revisions: u64,
    /// Bytes of those that a compaction would free.
    pub(super) history_bytes: u64,
}

/// Sizes of the newest record, and sums over those before.
#[derive(Clone, Copy, Debug, Default)]
struct Life {
    /// Bytes of the living record's row, 0 for none: a row is never smaller than its revision.
    bytes: u32,
    revisions: u32,
    /// Bytes of history above, overhead of the living record in the lowest 8 bits.
    history_and_overhead: u64,
}

/// Takes a hash for a hash.
#[derive(Clone, Copy, Debug, Default)]
struct Taken(u64);

impl Hasher for Taken {
    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// All keys.
#[derive(Debug, Default)]
pub(super) struct Keys {
    secret: RandomState,
    lives: HashMap<u64, Life, BuildHasherDefault<Taken>>,
}

impl Keys {
    /// Takes the next record of a key.
    pub(super) fn follow(&mut self, key: &[u8], row: Row) -> Step {
        let mut hasher = self.secret.build_hasher();
        hasher.write(key);
        let id = hasher.finish();
        let life = self.lives.entry(id).or_default();
        let mut history = life.history_and_overhead >> 8;
        let overhead = life.history_and_overhead.to_le_bytes()[0];
        let bytes = u64::from(life.bytes);
        let replaced = (bytes > 0).then_some(Row { bytes, overhead, is_tombstone: false });
        history = history.saturating_add(bytes);
        life.revisions = life.revisions.saturating_add(1);
        life.bytes = u32::try_from(row.bytes).unwrap_or(u32::MAX);
        if row.is_tombstone {
            history = history.saturating_add(row.bytes);
            life.bytes = 0;
        }
        history = history.min(u64::MAX >> 8);
        life.history_and_overhead = (history << 8) | u64::from(row.overhead);
        let revisions = u64::from(life.revisions);
        Step { id, replaced, revisions, history_bytes: history }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_followed_through_its_life() {
        let mut keys = Keys::default();
        let put = |bytes| Row { bytes, overhead: 30, is_tombstone: false };
        let first = keys.follow(b"a", put(100));
        assert_eq!((first.replaced, first.revisions, first.history_bytes), (None, 1, 0));
        let second = keys.follow(b"a", Row { overhead: 31, ..put(200) });
        assert_eq!(second.id, first.id);
        assert_eq!(second.replaced, Some(put(100)));
        assert_eq!((second.revisions, second.history_bytes), (2, 100));
        let deleted = keys.follow(b"a", Row { bytes: 25, overhead: 23, is_tombstone: true });
        assert_eq!(deleted.replaced, Some(Row { bytes: 200, overhead: 31, is_tombstone: false }));
        assert_eq!((deleted.revisions, deleted.history_bytes), (3, 325));
        let again = keys.follow(b"a", put(50));
        assert_eq!((again.replaced, again.revisions, again.history_bytes), (None, 4, 325));
        assert_ne!(keys.follow(b"b", put(1)).id, first.id);
    }

    #[test]
    fn an_entry_is_24_bytes() {
        assert_eq!(std::mem::size_of::<(u64, Life)>(), 24);
    }
}
