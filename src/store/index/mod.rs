//! Where the records of each key are: the newest with what a condition needs, older ones as far
//! back as the last compaction.
//!
//! Keys are in order; counting a range at the current revision takes no longer than finding its
//! ends. What a compaction makes superfluous is known when it is superseded, so that a compaction
//! is a list to be worked off and never a search.
//!
//! Source: etcd `mvcc/index.go`, `key_index.go`, 3.6.16, for what is visible when and what a
//! compaction keeps.

mod block;
mod leaf;
mod past;
mod queue;
mod tree;

use std::ops::ControlFlow;

use leaf::Newest;
use past::{Next, Past};
use tree::Tree;

use crate::etcd::apply::Latest;
use crate::etcd::request::Span;
use crate::etcd::revision::Revision;

/// The index.
#[derive(Debug, Default)]
pub struct Index {
    tree: Tree,
    past: Past,
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
    /// Notes a put; revisions must ascend, and sub revisions be below 2^32 - 1 (each is a change of
    /// one transaction in memory).
    pub fn put(&mut self, key: &[u8], latest: Latest) {
        self.note(key, Newest { latest, is_dead: false });
    }

    /// Notes a delete. A tombstone of a key that is not live (the survivor of a compaction) is
    /// noted too.
    pub fn delete(&mut self, key: &[u8], revision: Revision) {
        let latest = Latest { modified: revision, ..Latest::default() };
        self.note(key, Newest { latest, is_dead: true });
    }

    fn note(&mut self, key: &[u8], newest: Newest) {
        let noted = self.tree.note(key, newest);
        let modified = newest.latest.modified;
        if let Some(before) = noted.before {
            self.past.supersede(modified, before.latest.modified, before.is_dead);
        }
        self.note_moved();
        if newest.is_dead {
            self.past.bury(modified, noted.leaf);
        }
    }

    fn note_moved(&mut self) {
        for (revision, leaf) in self.tree.moved.drain(..) {
            self.past.moved(revision, leaf);
        }
    }

    /// Finds the newest record of a live key.
    #[must_use]
    pub fn latest(&self, key: &[u8]) -> Option<Latest> {
        self.tree.get(key).filter(|newest| !newest.is_dead).map(|newest| newest.latest)
    }

    /// Finds the record of a key that was the newest one before `bound`, unless that is a
    /// tombstone. With `bound` (R + 1, 0) that is the state at main revision R.
    #[must_use]
    pub fn before(&self, key: &[u8], bound: Revision) -> Option<At> {
        self.at_before(self.tree.get(key)?, bound)
    }

    fn at_before(&self, newest: Newest, bound: Revision) -> Option<At> {
        let latest = newest.latest;
        if latest.modified < bound {
            let at = At { modified: latest.modified, latest: Some(latest) };
            return (!newest.is_dead).then_some(at);
        }
        let (modified, is_tombstone) = self.past.before(latest.modified, bound)?;
        (!is_tombstone).then_some(At { modified, latest: None })
    }

    /// Shows keys in order with their records before `bound`.
    pub fn each_before(
        &self,
        span: Span<'_>,
        bound: Revision,
        visit: &mut dyn FnMut(&[u8], &At) -> ControlFlow<()>,
    ) {
        let _ = self.tree.scan(span, &mut |key, newest| match self.at_before(newest, bound) {
            Some(at) => visit(key, &at),
            None => ControlFlow::Continue(()),
        });
    }

    /// Shows live keys in order with their newest records.
    pub fn each_latest(
        &self,
        span: Span<'_>,
        visit: &mut dyn FnMut(&[u8], &Latest) -> ControlFlow<()>,
    ) {
        let _ = self.tree.scan(span, &mut |key, newest| {
            if newest.is_dead { ControlFlow::Continue(()) } else { visit(key, &newest.latest) }
        });
    }

    /// Counts the keys that are live now; takes no longer than finding the ends.
    #[must_use]
    pub fn count(&self, span: Span<'_>) -> u64 {
        self.tree.count(span)
    }

    /// Counts the keys that [`Index::each_before`] would show; looks only where something was
    /// changed since.
    #[must_use]
    pub fn count_before(&self, span: Span<'_>, bound: Revision) -> u64 {
        self.tree.count_before(span, bound, &mut |newest| {
            self.past.before(newest, bound).is_some_and(|(_, is_tombstone)| !is_tombstone)
        })
    }

    /// Takes up to `max` rows that a compaction at `revision` removes, oldest superseder first,
    /// and forgets them: the newest record at or below `revision` of a live key stays, a tombstone
    /// exactly at it stays, earlier tombstones go. Fewer than `max`: there are no more.
    ///
    /// The caller keeps readers below `revision` out.
    pub fn take_dead(&mut self, revision: i64, max: usize) -> Vec<Dead> {
        let mut taken = Vec::new();
        while taken.len() < max {
            match self.past.take(revision) {
                None => break,
                Some(Next::Nothing) => {}
                Some(Next::Row(dead)) => taken.push(dead),
                Some(Next::Tombstone(dead, leaf)) => {
                    taken.push(dead);
                    if let Some(leaf) = leaf {
                        self.tree.drop_dead(leaf, dead.revision);
                        self.note_moved();
                    }
                }
            }
        }
        taken
    }

    /// Tells whether a compaction at `revision` will remove the row at `row`, or keeps it: of rows
    /// at or below it that [`Index::take_dead`] has not given out yet.
    #[must_use]
    pub fn is_dead(&self, key: &[u8], row: Revision, revision: i64) -> bool {
        let Some(newest) = self.tree.get(key) else { return false };
        let newest_row = newest.latest.modified;
        let reached = if newest_row.main <= revision {
            Some((newest_row, newest.is_dead))
        } else {
            self.past.before(newest_row, Revision::new(revision.saturating_add(1), 0))
        };
        reached.is_some_and(|(reached, is_tombstone)| {
            row < reached || row == reached && is_tombstone && row.main < revision
        })
    }

    /// Bytes of memory, about.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.tree.memory_bytes() + self.past.memory_bytes()
    }
}

#[cfg(test)]
mod tests;
