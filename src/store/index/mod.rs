//! Where the records of each key are: the newest with what a condition needs, older ones as far
//! back as the last compaction.
//!
//! Keys are in order; counting a range at the current revision takes no longer than finding its
//! ends. What a compaction makes superfluous is known when it is superseded, so that a compaction
//! is a list to be worked off and never a search.
//!
//! Source: etcd `mvcc/index.go`, `key_index.go`, 3.6.16, for what is visible when and what a
//! compaction keeps.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

use crate::etcd::apply::Latest;
use crate::etcd::request::Span;
use crate::etcd::revision::Revision;

/// The index.
#[derive(Debug, Default)]
pub struct Index {
    keys: BTreeMap<Vec<u8>, Vec<Record>>,
    dead: BTreeMap<(i64, Revision), (Vec<u8>, bool)>,
    live: u64,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    modified: Revision,
    latest: Option<Latest>,
}

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
        self.note(key, Record { modified: latest.modified, latest: Some(latest) });
    }

    /// Notes a delete. A tombstone of a key that is not live (the survivor of a compaction) is
    /// noted too.
    pub fn delete(&mut self, key: &[u8], revision: Revision) {
        self.note(key, Record { modified: revision, latest: None });
    }

    fn note(&mut self, key: &[u8], record: Record) {
        let records = self.keys.entry(key.to_vec()).or_default();
        if let Some(last) = records.last() {
            if last.latest.is_some() {
                self.live = self.live.saturating_sub(1);
            }
            let dies = record.modified.main;
            let is_tombstone = last.latest.is_none();
            if !is_tombstone || last.modified.main == dies {
                self.dead.remove(&(last.modified.main.saturating_add(1), last.modified));
                self.dead.insert((dies, last.modified), (key.to_vec(), is_tombstone));
            }
        }
        if record.latest.is_some() {
            self.live = self.live.saturating_add(1);
        } else {
            let dies = record.modified.main.saturating_add(1);
            self.dead.insert((dies, record.modified), (key.to_vec(), true));
        }
        records.push(record);
    }

    /// Finds the newest record of a live key.
    #[must_use]
    pub fn latest(&self, key: &[u8]) -> Option<Latest> {
        self.keys.get(key)?.last()?.latest
    }

    /// Finds the record of a key that was the newest one before `bound`, unless that is a
    /// tombstone. With `bound` (R + 1, 0) that is the state at main revision R.
    #[must_use]
    pub fn before(&self, key: &[u8], bound: Revision) -> Option<At> {
        at_before(self.keys.get(key)?, bound)
    }

    /// Shows keys in order with their records before `bound`.
    pub fn each_before(
        &self,
        span: Span<'_>,
        bound: Revision,
        visit: &mut dyn FnMut(&[u8], &At) -> ControlFlow<()>,
    ) {
        for (key, records) in self.keys.range::<[u8], _>(bounds(span)) {
            if let Some(at) = at_before(records, bound)
                && visit(key, &at).is_break()
            {
                return;
            }
        }
    }

    /// Shows live keys in order with their newest records.
    pub fn each_latest(
        &self,
        span: Span<'_>,
        visit: &mut dyn FnMut(&[u8], &Latest) -> ControlFlow<()>,
    ) {
        for (key, records) in self.keys.range::<[u8], _>(bounds(span)) {
            if let Some(latest) = records.last().and_then(|record| record.latest)
                && visit(key, &latest).is_break()
            {
                return;
            }
        }
    }

    /// Counts the keys that are live now; takes no longer than finding the ends.
    #[must_use]
    pub fn count(&self, span: Span<'_>) -> u64 {
        let mut count = 0_u64;
        self.each_latest(span, &mut |_, _| {
            count = count.saturating_add(1);
            ControlFlow::Continue(())
        });
        count
    }

    /// Counts the keys that had a record before `bound` that was no tombstone.
    #[must_use]
    pub fn count_before(&self, span: Span<'_>, bound: Revision) -> u64 {
        let mut count = 0_u64;
        self.each_before(span, bound, &mut |_, _| {
            count = count.saturating_add(1);
            ControlFlow::Continue(())
        });
        count
    }

    /// Takes up to `max` rows that a compaction at `revision` removes, oldest superseder first,
    /// and forgets them: the newest record at or below `revision` of a live key stays, a tombstone
    /// exactly at it stays, earlier tombstones go. Fewer than `max`: there are no more.
    ///
    /// The caller keeps readers below `revision` out.
    pub fn take_dead(&mut self, revision: i64, max: usize) -> Vec<Dead> {
        let mut out = Vec::new();
        while out.len() < max {
            let Some(first) = self.dead.first_entry() else { break };
            let (dies, row) = *first.key();
            if dies > revision {
                break;
            }
            let (key, is_tombstone) = first.remove();
            out.push(Dead { revision: row, is_tombstone });
            if let Some(records) = self.keys.get_mut(&key) {
                records.retain(|record| record.modified > row);
                if records.is_empty() {
                    self.keys.remove(&key);
                }
            }
        }
        out
    }

    /// Tells whether a compaction at `revision` will remove the row at `row`, or keeps it: of rows
    /// at or below it that [`Index::take_dead`] has not given out yet.
    #[must_use]
    pub fn is_dead(&self, key: &[u8], row: Revision, revision: i64) -> bool {
        let Some(records) = self.keys.get(key) else { return false };
        let kept = records.iter().rev().find(|record| record.modified.main <= revision);
        match kept {
            Some(kept) if kept.modified == row => kept.latest.is_none() && row.main < revision,
            Some(kept) => row < kept.modified,
            None => false,
        }
    }

    /// Bytes of memory, about.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.keys.iter().fold(0, |sum, (key, records)| {
            let records = records.len().saturating_mul(size_of::<Record>());
            sum.saturating_add(key.len()).saturating_add(records).saturating_add(64)
        })
    }
}

fn bounds(span: Span<'_>) -> (Bound<&[u8]>, Bound<&[u8]>) {
    match span {
        Span::Key(key) => (Bound::Included(key), Bound::Included(key)),
        Span::Range(first, end) if end > first => (Bound::Included(first), Bound::Excluded(end)),
        Span::Range(first, _) => (Bound::Included(first), Bound::Excluded(first)),
        Span::From(first) => (Bound::Included(first), Bound::Unbounded),
    }
}

fn at_before(records: &[Record], bound: Revision) -> Option<At> {
    let at = records.partition_point(|record| record.modified < bound).checked_sub(1)?;
    let record = records.get(at)?;
    let is_newest = at.checked_add(1) == Some(records.len());
    let latest = record.latest?;
    Some(At { modified: record.modified, latest: is_newest.then_some(latest) })
}

#[cfg(test)]
mod tests;
