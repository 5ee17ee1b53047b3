//! What is remembered of each key while records go by, in the order of their revisions.
//!
//! Ten bytes a key in a [`KeyTable`], 23 with what the table costs. The few keys whose history or
//! number of records does not fit into them have an entry of their own besides.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::etcd::key_table::KeyTable;

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Life {
    /// Bytes of the living record's row, 0 for none: a row is never smaller than its revision.
    bytes: u32,
    /// What is neither key nor value in it.
    overhead: u8,
    /// Records, and bytes of history in the lower 24 bits: what is above counts as [`Surplus`].
    revisions: u16,
    history: u32,
}

/// Largest history that fits, and what it is counted in beyond.
const HISTORY_UNIT: u32 = 1 << 24;

impl Life {
    /// Packs ten bytes: bytes u32, history u24, overhead u8, revisions u16.
    fn pack(self) -> [u16; 5] {
        let [a, b, c, d] = self.bytes.to_le_bytes();
        let [e, f, g, _] = self.history.to_le_bytes();
        let pair = |low, high| u16::from_le_bytes([low, high]);
        [pair(a, b), pair(c, d), pair(e, f), pair(g, self.overhead), self.revisions]
    }

    fn unpack(packed: [u16; 5]) -> Self {
        let [ab, cd, ef, gh, revisions] = packed;
        let ([a, b], [c, d]) = (ab.to_le_bytes(), cd.to_le_bytes());
        let ([e, f], [g, overhead]) = (ef.to_le_bytes(), gh.to_le_bytes());
        let bytes = u32::from_le_bytes([a, b, c, d]);
        Self { bytes, overhead, revisions, history: u32::from_le_bytes([e, f, g, 0]) }
    }
}

/// What of a key does not fit, in units of what does.
#[derive(Clone, Copy, Debug, Default)]
struct Surplus {
    history: u64,
    revisions: u64,
}

/// All keys.
#[derive(Debug, Default)]
pub(super) struct Keys {
    secret: RandomState,
    lives: KeyTable<[u16; 5]>,
    large: HashMap<u64, Surplus>,
}

impl Keys {
    /// Takes the next record of a key.
    pub(super) fn follow(&mut self, key: &[u8], row: Row) -> Step {
        let id = self.secret.hash_one(key);
        let mut life = self.lives.get(key).map(Life::unpack).unwrap_or_default();
        let bytes = u64::from(life.bytes);
        let replaced =
            (bytes > 0).then_some(Row { bytes, overhead: life.overhead, is_tombstone: false });
        let dropped = if row.is_tombstone { row.bytes } else { 0 };
        let history = u64::from(life.history).saturating_add(bytes).saturating_add(dropped);
        let unit = u64::from(HISTORY_UNIT);
        let more =
            Surplus { history: history / unit, revisions: u64::from(life.revisions == u16::MAX) };
        life.history = u32::try_from(history % unit).unwrap_or(0);
        life.revisions = life.revisions.wrapping_add(1);
        life.overhead = row.overhead;
        let living = if row.is_tombstone { 0 } else { row.bytes };
        life.bytes = u32::try_from(living).unwrap_or(u32::MAX);
        self.lives.insert(key, life.pack());
        let above = self.add(id, more);
        Step {
            id,
            replaced,
            revisions: (above.revisions << 16).saturating_add(u64::from(life.revisions)),
            history_bytes: (above.history << 24).saturating_add(u64::from(life.history)),
        }
    }

    /// Adds to what does not fit; returns all of it.
    fn add(&mut self, id: u64, more: Surplus) -> Surplus {
        if more.history == 0 && more.revisions == 0 {
            return self.large.get(&id).copied().unwrap_or_default();
        }
        let large = self.large.entry(id).or_default();
        large.history = large.history.saturating_add(more.history);
        large.revisions = large.revisions.saturating_add(more.revisions);
        *large
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
    fn large_figures_stay_exact() {
        let mut keys = Keys::default();
        let row = Row { bytes: 40_000, overhead: 30, is_tombstone: false };
        for round in 1..=200_000_u64 {
            let step = keys.follow(b"hot", row);
            assert_eq!((step.revisions, step.history_bytes), (round, 40_000 * (round - 1)));
        }
        let huge = Row { bytes: (1 << 31) - 2, overhead: 255, is_tombstone: false };
        keys.follow(b"huge", huge);
        let step = keys.follow(b"huge", huge);
        assert_eq!((step.replaced, step.history_bytes), (Some(huge), huge.bytes));
    }

    #[test]
    fn a_life_is_packed_without_loss() {
        let life =
            Life { bytes: 0x8123_4567, overhead: 200, revisions: 65_535, history: 0xff_fffe };
        assert_eq!(Life::unpack(life.pack()), life);
        assert_eq!(std::mem::size_of_val(&life.pack()), 10);
    }
}
