//! A leaf: keys with their newest records, and a byte of each key's hash, so that a key that is
//! there is mostly found with one comparison.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;

use super::block::{Block, Field, Values};
use crate::etcd::apply::Latest;
use crate::etcd::revision::Revision;

/// Keys of a leaf at most; one more until it is split.
pub(super) const WIDE: usize = 64;
/// Bytes of key text from which a leaf is split earlier, so that no insertion moves much.
const TEXT_BYTES: usize = 16 << 10;
/// Of two leaves that are merged.
const MERGED: usize = WIDE / 4 * 3;
/// Bytes for hashes; a multiple of 8.
const HASHES: usize = WIDE + 8;

const MAIN: Field = Field::A;
const SUB: Field = Field::B;
const CREATED: Field = Field::C;
const VERSION: Field = Field::D;
const LEASE: Field = Field::E;
const IS_DEAD: Field = Field::F;

/// The newest record of a key; of a tombstone only the revision is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Newest {
    pub(super) latest: Latest,
    pub(super) is_dead: bool,
}

impl Newest {
    fn values(self) -> Values {
        let latest = self.latest;
        [
            latest.modified.main.cast_unsigned(),
            latest.modified.sub.cast_unsigned(),
            latest.create_revision.cast_unsigned(),
            latest.version.cast_unsigned(),
            latest.lease.cast_unsigned(),
            self.is_dead.into(),
        ]
    }
}

/// A key to be found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    pub(super) key: &'a [u8],
    hash: u8,
}

impl<'a> Wanted<'a> {
    pub(super) fn new(key: &'a [u8]) -> Self {
        let [hash, ..] = FixedState::default().hash_one(key).to_be_bytes();
        Self { key, hash }
    }
}

/// The leaf.
#[derive(Debug)]
pub(super) struct Leaf {
    /// In the order of the keys; zeros behind.
    hashes: [u8; HASHES],
    block: Block,
    /// The leaf to the right.
    pub(super) next: u32,
}

const ONES: u64 = 0x0101_0101_0101_0101;
const HIGHS: u64 = 0x8080_8080_8080_8080;

impl Leaf {
    /// Makes a leaf without keys.
    pub(super) fn new(next: u32) -> Self {
        Self { hashes: [0; HASHES], block: Block::default(), next }
    }

    pub(super) fn len(&self) -> usize {
        self.block.len()
    }

    /// Finds a key that is here.
    pub(super) fn find(&self, wanted: Wanted<'_>) -> Option<usize> {
        let (words, _) = self.hashes.as_chunks::<8>();
        let pattern = u64::from(wanted.hash) * ONES;
        for (start, word) in (0..).step_by(8).zip(words) {
            let differs = u64::from_le_bytes(*word) ^ pattern;
            // A high bit for each byte that is zero, and for some above one that is.
            let mut same = differs.wrapping_sub(ONES) & !differs & HIGHS;
            while same != 0 {
                let at = start + same.trailing_zeros() as usize / 8;
                if at >= self.len() {
                    return None;
                }
                if self.block.is(at, wanted.key) {
                    return Some(at);
                }
                same &= same - 1;
            }
        }
        None
    }

    /// Finds the first key that is not below one.
    pub(super) fn place(&self, from: usize, key: &[u8]) -> usize {
        let (Ok(at) | Err(at)) = self.block.search(from, key);
        at
    }

    /// Tells whether all keys are below one.
    pub(super) fn ends_before(&self, key: &[u8]) -> bool {
        self.block.ends_before(key)
    }

    /// Puts a key in its place.
    pub(super) fn insert(&mut self, at: usize, wanted: Wanted<'_>, newest: Newest) {
        self.block.insert(at, wanted.key, newest.values());
        if at < HASHES {
            self.hashes.copy_within(at..HASHES - 1, at + 1);
        }
        if let Some(hash) = self.hashes.get_mut(at) {
            *hash = wanted.hash;
        }
    }

    pub(super) fn set(&mut self, at: usize, newest: Newest) {
        self.block.set_values(at, newest.values());
    }

    pub(super) fn remove(&mut self, at: usize) {
        self.block.remove(at);
        if at < HASHES {
            self.hashes.copy_within(at + 1.., at);
        }
    }

    pub(super) fn read_key(&self, at: usize, key: &mut Vec<u8>) {
        self.block.read_key(at, key);
    }

    pub(super) fn main(&self, at: usize) -> u64 {
        self.block.value(at, MAIN)
    }

    pub(super) fn modified(&self, at: usize) -> Revision {
        let number = |field| self.block.value(at, field).cast_signed();
        Revision::new(number(MAIN), number(SUB))
    }

    pub(super) fn is_dead(&self, at: usize) -> bool {
        self.block.value(at, IS_DEAD) != 0
    }

    pub(super) fn newest(&self, at: usize) -> Newest {
        let number = |field| self.block.value(at, field).cast_signed();
        let latest = Latest {
            create_revision: number(CREATED),
            modified: self.modified(at),
            version: number(VERSION),
            lease: number(LEASE),
        };
        Newest { latest, is_dead: self.is_dead(at) }
    }

    /// Tells whether there may be tombstones.
    pub(super) fn has_dead(&self) -> bool {
        self.block.has(IS_DEAD)
    }

    /// Counts the live keys in front of a place.
    pub(super) fn live(&self, end: usize) -> u64 {
        let end = end.min(self.len());
        if !self.has_dead() {
            return end as u64;
        }
        (0..end).map(|at| u64::from(!self.is_dead(at))).sum()
    }

    pub(super) fn is_wide(&self) -> bool {
        self.len() > WIDE || self.len() > 3 && self.block.text_bytes() > TEXT_BYTES
    }

    /// Splits off the keys from a place on, into a leaf to the right.
    pub(super) fn split(&mut self, cut: usize) -> Self {
        let len = self.len();
        let mut right = Self::new(self.next);
        right.block = Block::gather(&[(&self.block, cut..len)], usize::MAX);
        if cut + 1 == len {
            // Keys came in ascending order, so that it is packed but for its spare room.
            self.block.remove(cut);
            self.block.shrink();
        } else {
            self.block = Block::gather(&[(&self.block, 0..cut)], usize::MAX);
        }
        for (to, from) in right.hashes.iter_mut().zip(self.hashes.iter_mut().skip(cut)) {
            *to = std::mem::take(from);
        }
        right
    }

    /// Makes one leaf of two neighbours, unless that would soon be split again.
    pub(super) fn join(&self, right: &Self) -> Option<Self> {
        let [a, b] = [&self.block, &right.block];
        let fits = a.text_bytes() + b.text_bytes() <= TEXT_BYTES && a.len() + b.len() <= MERGED;
        if !fits && a.len() > 0 && b.len() > 0 {
            return None;
        }
        let mut joined = Self::new(right.next);
        joined.block = Block::gather(&[(a, 0..a.len()), (b, 0..b.len())], usize::MAX);
        let hashes = self.hashes.iter().take(a.len()).chain(right.hashes.iter().take(b.len()));
        for (to, from) in joined.hashes.iter_mut().zip(hashes) {
            *to = *from;
        }
        Some(joined)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.block.memory_bytes()
    }
}
