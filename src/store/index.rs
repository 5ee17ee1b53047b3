//! Where the records of each key are: the newest with what a condition needs, older ones as far
//! back as the last compaction.
//!
//! Keys are in order; counting a range at the current revision takes no longer than finding its
//! ends. What a compaction makes superfluous is known when it is superseded, so that a compaction
//! is a list to be worked off and never a search.
//!
//! Source: etcd `mvcc/index.go`, `key_index.go`, 3.6.16, for what is visible when and what a
//! compaction keeps.

use std::ops::ControlFlow;

use crate::etcd::apply::Latest;
use crate::etcd::request::Span;
use crate::etcd::revision::Revision;

/// The index.
#[derive(Debug, Default)]
pub struct Index {}

/// What is known of a record that is not the newest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Under which revision the record stands.
    pub modified: Revision,
    /// Everything else, where the record is the newest one of a live key.
    pub latest: Option<Latest>,
}

/// A row of bucket `key` that a compaction removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dead {
    /// Its revision.
    pub revision: Revision,
    /// Whether it is a tombstone, whose row key has one byte more.
    pub is_tombstone: bool,
}

impl Index {
    /// Notes a put; revisions must ascend.
    pub fn put(&mut self, key: &[u8], latest: Latest) {
        let _ = (key, latest);
        todo!()
    }

    /// Notes a delete. A tombstone of a key that is not live (the survivor of a compaction) is
    /// noted too.
    pub fn delete(&mut self, key: &[u8], revision: Revision) {
        let _ = (key, revision);
        todo!()
    }

    /// Finds the newest record of a live key.
    #[must_use]
    pub fn latest(&self, key: &[u8]) -> Option<Latest> {
        let _ = key;
        todo!()
    }

    /// Finds the record of a key that was the newest one before `bound`, unless that is a
    /// tombstone. With `bound` (R + 1, 0) that is the state at main revision R.
    #[must_use]
    pub fn before(&self, key: &[u8], bound: Revision) -> Option<At> {
        let _ = (key, bound);
        todo!()
    }

    /// Shows keys in order with their records before `bound`.
    pub fn each_before(
        &self,
        span: Span<'_>,
        bound: Revision,
        visit: &mut dyn FnMut(&[u8], &At) -> ControlFlow<()>,
    ) {
        let _ = (span, bound, visit);
        todo!()
    }

    /// Shows live keys in order with their newest records.
    pub fn each_latest(
        &self,
        span: Span<'_>,
        visit: &mut dyn FnMut(&[u8], &Latest) -> ControlFlow<()>,
    ) {
        let _ = (span, visit);
        todo!()
    }

    /// Counts the keys that are live now; takes no longer than finding the ends.
    #[must_use]
    pub fn count(&self, span: Span<'_>) -> u64 {
        let _ = span;
        todo!()
    }

    /// Takes up to `max` rows that a compaction at `revision` removes, oldest superseder first,
    /// and forgets them: the newest record at or below `revision` of a live key stays, a tombstone
    /// exactly at it stays, earlier tombstones go. Fewer than `max`: there are no more.
    ///
    /// The caller keeps readers below `revision` out.
    pub fn take_dead(&mut self, revision: i64, max: usize) -> Vec<Dead> {
        let _ = (revision, max);
        todo!()
    }

    /// Tells whether a compaction at `revision` will remove the row at `row`, or keeps it: of rows
    /// at or below it that [`Index::take_dead`] has not given out yet.
    #[must_use]
    pub fn is_dead(&self, key: &[u8], row: Revision, revision: i64) -> bool {
        let _ = (key, row, revision);
        todo!()
    }

    /// Bytes of memory, about.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        todo!()
    }
}
