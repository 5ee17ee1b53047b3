//! HashKV and Hash: the sums by which members of a cluster are compared.
//!
//! **HashKV** at a revision is CRC-32C over the name of bucket `key` and then key and value of each
//! of its rows up to the revision, but for what a compaction would delete:
//!
//! 1. Of the rows at or before the compaction revision only those count that are the newest of
//!    their key at the revision asked for, and no tombstone. If there are no such rows anywhere,
//!    nothing lives then, and all count: etcd takes an empty list for no list.
//! 2. A tombstone at the compaction revision never counts: some versions keep it, others do not.
//! 3. A compaction that was begun and not ended is done when a server starts, so here as well.
//!
//! A server that has compacted since its start may answer with a sum that it made on the way, of
//! rows that are gone now and under the compaction revision before. What is computed here is what
//! it answers after a restart.
//!
//! Two walks are needed where there was a compaction, one where there was none. Memory: 16 bytes
//! a key at most on average, and a bit for each row at or before the compaction revision.
//!
//! **Hash** is CRC-32C over the names of all buckets and their rows, without rows of bucket `meta`
//! that differ from member to member; which those are differs between versions.
//!
//! Source: etcd `mvcc/hash.go` `unsafeHashByRev`, `mvcc/index.go` `Keep`, `mvcc/key_index.go`
//! `keep`, `mvcc/kvstore.go` `hashByRev`, `backend.Hash`, 3.4.45 to 3.7.3.

use super::key_table::KeyTable;
use super::record::KeyValue;
use super::revision::RevisionKey;
use super::{rows, schema};
use crate::bolt::overlay::Edits;
use crate::bolt::{self, At, File, Visit};
use crate::format::finding::{Code, Finding, Place, short_key, short_path};
use crate::format::usize_of;

/// The two compaction revisions of bucket `meta`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Up to where rows are gone.
    pub finished: Option<i64>,
    /// Up to where they were to be.
    pub scheduled: Option<i64>,
}

impl Compaction {
    /// Reads them out of a file with edits on top of it.
    ///
    /// # Errors
    /// The file cannot be searched. A row that cannot be read counts as none: a walk finds it.
    pub fn read(file: &File, edits: &Edits) -> Result<Self, bolt::Error> {
        let meta = file.bucket(&[schema::META])?;
        let row = |key: &[u8]| -> Result<Option<i64>, bolt::Error> {
            let value = match (edits.get(schema::META, key), &meta) {
                (Some(planned), _) => planned.map(<[u8]>::to_vec),
                (None, Some(bucket)) if !edits.clears(schema::META) => bucket.get(key)?,
                _ => None,
            };
            Ok(value.and_then(|value| rows::decode_compact_revision(&value).ok()))
        };
        Ok(Self {
            finished: row(schema::META_FINISHED_COMPACT)?,
            scheduled: row(schema::META_SCHEDULED_COMPACT)?,
        })
    }

    /// The compaction revision that a server has after its start, -1 for none.
    #[must_use]
    pub fn revision(self) -> i64 {
        let finished = self.finished.unwrap_or(-1);
        // A scheduled revision is looked at only when it is above the finished one and above 0.
        self.scheduled.filter(|revision| *revision > 0).unwrap_or(-1).max(finished)
    }

    /// Tells whether a compaction was begun and not ended.
    #[must_use]
    pub fn is_pending(self) -> bool {
        self.revision() > self.finished.unwrap_or(-1)
    }
}

/// What a server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashKv {
    /// CRC-32C.
    pub hash: u32,
    /// The revision up to which rows were summed.
    pub hash_revision: i64,
    /// The compaction revision, -1 for none.
    pub compact_revision: i64,
}

/// A bit for each row, counted from the bucket's first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RowSet {
    words: Vec<u64>,
}

impl RowSet {
    fn insert(&mut self, row: u32) {
        let word = usize_of(u64::from(row / 64));
        if self.words.len() <= word {
            self.words.resize(word.saturating_add(1), 0);
        }
        if let Some(word) = self.words.get_mut(word) {
            *word |= bit(row);
        }
    }

    /// Tells whether a row is in the set.
    #[must_use]
    pub fn contains(&self, row: u32) -> bool {
        let word = self.words.get(usize_of(u64::from(row / 64)));
        word.is_some_and(|word| word & bit(row) != 0)
    }
}

fn bit(row: u32) -> u64 {
    1_u64.wrapping_shl(row % 64)
}

/// What is remembered of a key: whether it lives, and the row that it lives by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Newest([u16; 2]);

impl Newest {
    /// Deleted before the revision, or at it.
    const DEAD: Self = Self([0; 2]);
    /// Deleted at the revision: what follows in the same transaction does not count.
    const CLOSED: Self = Self([1, 0]);
    /// Alive by a row above the limit.
    const ABOVE: Self = Self([2, 0]);

    fn row(row: u32) -> Self {
        let [a, b, c, d] = row.saturating_add(3).to_le_bytes();
        Self([u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])])
    }

    fn into_row(self) -> Option<u32> {
        let ([a, b], [c, d]) = (self.0[0].to_le_bytes(), self.0[1].to_le_bytes());
        u32::from_le_bytes([a, b, c, d]).checked_sub(3)
    }
}

/// Most rows at or before a limit that are told apart.
const ROWS_MAX: u32 = u32::MAX - 4;

/// A visitor that learns which row is the newest of each living key at a revision.
#[derive(Debug)]
pub struct NewestRows {
    revision: i64,
    /// Rows at or before this are listed.
    limit: i64,
    keys: KeyTable<Newest>,
    /// Tombstones at the revision, where that is the limit.
    tombstones: RowSet,
    row: u32,
    fault: Option<Box<Finding>>,
}

/// What [`NewestRows`] learned.
#[derive(Clone, Debug)]
pub struct Newests {
    /// Rows at or before the limit that are the newest of a living key.
    pub rows: RowSet,
    /// Rows of tombstones at the revision, where that is the limit.
    pub tombstones: RowSet,
    /// Whether any key lives at the revision.
    pub any_live: bool,
}

impl NewestRows {
    /// Looks at rows up to `revision`, and lists those up to `limit`, which is not above it.
    #[must_use]
    pub fn new(revision: i64, limit: i64) -> Self {
        let keys = KeyTable::new();
        let tombstones = RowSet::default();
        Self { revision, limit, keys, tombstones, row: 0, fault: None }
    }

    /// Returns what was learned.
    ///
    /// # Errors
    /// The first row that could not be read.
    pub fn finish(self) -> Result<Newests, Box<Finding>> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        let mut newests =
            Newests { rows: RowSet::default(), tombstones: self.tombstones, any_live: false };
        for newest in self.keys.values() {
            if let Some(row) = newest.into_row() {
                newests.rows.insert(row);
            }
            newests.any_live |= newest != Newest::DEAD && newest != Newest::CLOSED;
        }
        Ok(newests)
    }

    fn take(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) -> Result<(), Box<Finding>> {
        let revision = decode_key(at, key)?;
        let main = revision.revision.main;
        if main > self.revision {
            return Ok(());
        }
        let record = KeyValue::decode(value)
            .map_err(|error| finding(Code::RecordBytes, at, key, error.to_string()))?;
        let newest = match revision.is_tombstone {
            true if main == self.revision => Newest::CLOSED,
            true => Newest::DEAD,
            false if main > self.limit => Newest::ABOVE,
            false => Newest::row(self.row),
        };
        let before = self.keys.insert(record.key, newest);
        match before {
            // What follows a tombstone in its transaction does not count at its revision.
            Some(Newest::CLOSED) => self.keys.insert(record.key, Newest::CLOSED),
            // A tombstone of a key that is dead already is not in etcd's index.
            Some(Newest::DEAD) if revision.is_tombstone => {
                self.keys.insert(record.key, Newest::DEAD)
            }
            _ => None,
        };
        if main <= self.limit {
            let counts = !matches!(before, Some(Newest::DEAD | Newest::CLOSED));
            if newest == Newest::CLOSED && main == self.limit && counts {
                self.tombstones.insert(self.row);
            }
            self.row = self.row.saturating_add(1);
            if self.row > ROWS_MAX {
                let detail = format!("there are more than {ROWS_MAX} rows to be told apart");
                return Err(finding(Code::RecordRevision, at, key, detail));
            }
        }
        Ok(())
    }
}

impl Visit for NewestRows {
    fn bucket(&mut self, _: &At<'_>, _: u64) {}

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        if self.fault.is_none() && is_in_key(at) {
            self.fault = self.take(at, key, value).err();
        }
    }

    fn page(&mut self, _: u64) -> bool {
        self.fault.is_none()
    }
}

/// Which rows at or before the compaction revision count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Below {
    /// All.
    All,
    /// These.
    Only(RowSet),
}

/// A visitor that sums bucket `key`.
#[derive(Debug)]
pub struct HashKvSum {
    revision: i64,
    compact_revision: i64,
    below: Below,
    crc: u32,
    row: u32,
    last_main: i64,
    fault: Option<Box<Finding>>,
}

impl HashKvSum {
    /// Sums rows up to `revision`.
    #[must_use]
    pub fn new(revision: i64, compact_revision: i64, below: Below) -> Self {
        let crc = crc32c::crc32c(schema::KEY);
        Self { revision, compact_revision, below, crc, row: 0, last_main: 0, fault: None }
    }

    /// Returns the sum and the main revision of the bucket's last row, 0 for none.
    ///
    /// # Errors
    /// The first row that could not be read.
    pub fn finish(self) -> Result<(u32, i64), Box<Finding>> {
        self.fault.map_or(Ok((self.crc, self.last_main)), Err)
    }

    fn take(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) -> Result<(), Box<Finding>> {
        let revision = decode_key(at, key)?;
        let main = revision.revision.main;
        self.last_main = main;
        if main > self.revision {
            return Ok(());
        }
        if main <= self.compact_revision {
            let row = self.row;
            self.row = row.saturating_add(1);
            let at_compaction = main == self.compact_revision && revision.is_tombstone;
            let counts = match &self.below {
                Below::All => true,
                Below::Only(rows) => rows.contains(row),
            };
            if at_compaction || !counts {
                return Ok(());
            }
        }
        self.crc = crc32c::crc32c_append(crc32c::crc32c_append(self.crc, key), value);
        Ok(())
    }
}

impl Visit for HashKvSum {
    fn bucket(&mut self, _: &At<'_>, _: u64) {}

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        if self.fault.is_none() && is_in_key(at) {
            self.fault = self.take(at, key, value).err();
        }
    }

    fn page(&mut self, _: u64) -> bool {
        self.fault.is_none()
    }
}

/// Why there is no HashKV.
#[derive(Debug)]
pub enum HashKvError<E> {
    /// The revision is below the compaction revision, which is named.
    Compacted(i64),
    /// The revision is above the current one, which is named.
    Future(i64),
    /// A row cannot be read.
    Row(Box<Finding>),
    /// A walk failed.
    Walk(E),
}

/// Computes HashKV; 0 means the current revision. `walk` shows all rows to a visitor.
///
/// # Errors
/// See [`HashKvError`].
pub fn hash_kv<E>(
    compaction: Compaction,
    revision: i64,
    walk: &mut dyn FnMut(&mut dyn Visit) -> Result<(), E>,
) -> Result<HashKv, HashKvError<E>> {
    let row = HashKvError::Row;
    let compact_revision = compaction.revision();
    if revision != 0 && revision < compact_revision {
        return Err(HashKvError::Compacted(compact_revision));
    }
    let limit = if revision == 0 { i64::MAX } else { revision };
    let mut newest = |revision| {
        let mut newest = NewestRows::new(revision, compact_revision);
        walk(&mut newest).map_err(HashKvError::Walk)?;
        newest.finish().map_err(row)
    };
    let below = if compact_revision < 0 {
        Below::All
    } else {
        let newests = newest(limit)?;
        match (newests.any_live, compaction.is_pending()) {
            (true, _) => Below::Only(newests.rows),
            (false, false) => Below::All,
            // All that will be left, which is less than all that is there.
            (false, true) => Below::Only(newest(compact_revision)?.rows),
        }
    };
    let mut sum = HashKvSum::new(limit, compact_revision, below);
    walk(&mut sum).map_err(HashKvError::Walk)?;
    let (hash, last_main) = sum.finish().map_err(row)?;
    let current = last_main.max(compact_revision).max(1);
    if revision > current {
        return Err(HashKvError::Future(current));
    }
    let hash_revision = if revision == 0 { current } else { revision };
    Ok(HashKv { hash, hash_revision, compact_revision })
}

/// Rows of bucket `meta` that Hash leaves out, by minor version of etcd 3.
#[must_use]
pub fn skipped_by_hash(minor: u32) -> &'static [&'static [u8]] {
    const SKIPPED: &[&[u8]] =
        &[schema::META_CONSISTENT_INDEX, schema::META_TERM, schema::META_STORAGE_VERSION];
    let count = match minor {
        0..=4 => 1,
        5 => 2,
        _ => 3,
    };
    SKIPPED.get(..count).unwrap_or(SKIPPED)
}

/// A visitor that sums all buckets. With nothing skipped it is the hash of `snapshot status`.
#[derive(Clone, Debug, Default)]
pub struct BackendHash {
    skipped: &'static [&'static [u8]],
    crc: u32,
    rows: u64,
}

impl BackendHash {
    /// Sums all but these rows of bucket `meta`.
    #[must_use]
    pub fn new(skipped: &'static [&'static [u8]]) -> Self {
        Self { skipped, crc: 0, rows: 0 }
    }

    /// Makes one that has seen what somebody else summed.
    #[must_use]
    pub fn known(crc: u32, rows: u64) -> Self {
        Self { crc, rows, ..Self::default() }
    }

    /// Returns the sum.
    #[must_use]
    pub fn hash(&self) -> u32 {
        self.crc
    }

    /// Returns how many rows were summed; a nested bucket is one.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }
}

impl Visit for BackendHash {
    fn bucket(&mut self, at: &At<'_>, _: u64) {
        if let [name] | [_, name] = at.bucket {
            self.crc = crc32c::crc32c_append(self.crc, name);
            self.rows = self.rows.saturating_add(u64::from(at.bucket.len() == 2));
        }
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        let [name] = at.bucket else { return };
        if name == schema::META && self.skipped.contains(&key) {
            return;
        }
        self.crc = crc32c::crc32c_append(crc32c::crc32c_append(self.crc, key), value);
        self.rows = self.rows.saturating_add(1);
    }
}

fn is_in_key(at: &At<'_>) -> bool {
    matches!(at.bucket, [name] if name == schema::KEY)
}

fn decode_key(at: &At<'_>, key: &[u8]) -> Result<RevisionKey, Box<Finding>> {
    RevisionKey::decode(key).map_err(|error| finding(Code::RevisionKey, at, key, error.to_string()))
}

fn finding(code: Code, at: &At<'_>, key: &[u8], detail: String) -> Box<Finding> {
    let place = Place {
        file: None,
        page: Some(at.page),
        offset: Some(at.offset),
        path: Vec::new(),
        bucket: short_path(at.bucket),
        key: Some(short_key(key)),
    };
    Box::new(Finding::new(code, place, detail))
}

#[cfg(test)]
mod tests;
