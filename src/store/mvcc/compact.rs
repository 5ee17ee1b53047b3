//! A compaction is worked off from the index, a few rows at a time.
//!
//! Readers below its revision are refused from the moment when it is accepted. Rows go later, and
//! not before the backend holds a row that says so: a crash in between is then continued.
//!
//! Source: etcd `mvcc/kvstore.go` `Compact`, `mvcc/kvstore_compaction.go`, 3.6.16.

use super::Mvcc;
use crate::etcd::apply::Row;
use crate::etcd::revision::Revision;
use crate::etcd::schema;

/// How far a compaction got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactStep {
    /// Rows that were planned to be dropped in this step.
    pub dropped: usize,
    /// Whether it is finished: the next batch says so in `meta/finishedCompactRev`.
    pub is_finished: bool,
    /// Whether nothing can be done for now: a batch with `meta/scheduledCompactRev` is to be saved
    /// first, or a read in steps still needs a revision.
    pub is_waiting: bool,
}

/// Revisions of compactions, -1 for none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compacting {
    /// Accepted: reads below it are refused.
    pub(super) accepted: i64,
    /// In `meta/scheduledCompactRev` of the view.
    pub(super) scheduled_saved: i64,
    /// All its drops are planned.
    pub(super) finished: i64,
    /// In `meta/finishedCompactRev` of the view.
    pub(super) finished_saved: i64,
}

impl Mvcc {
    /// Takes note of a compaction that was applied.
    pub(super) fn accept_compaction(&mut self, revision: i64) {
        let before = self.compacting;
        self.compacting.accepted = revision;
        self.hashes.accept(&before, revision);
    }

    /// Works off a part of the compaction that is accepted, to go with the next batch. When nothing
    /// is left to do, it is finished.
    pub fn compact_some(&mut self, max: usize) -> CompactStep {
        let Compacting { accepted, scheduled_saved, finished, .. } = self.compacting;
        if finished >= accepted {
            return CompactStep { dropped: 0, is_finished: true, is_waiting: false };
        }
        let waiting = CompactStep { dropped: 0, is_finished: false, is_waiting: true };
        if scheduled_saved < accepted {
            return waiting;
        }
        let limit = self.pins.lowest().map_or(accepted, |pin| pin.min(accepted));
        let dead = self.index.take_dead(limit, max);
        let dropped = dead.len();
        if dropped > 0 {
            self.hashes.drop_begins();
        }
        self.saving.drops.extend(dead);
        if dropped >= max {
            return CompactStep { dropped, is_finished: false, is_waiting: false };
        }
        if limit < accepted {
            return CompactStep { dropped, ..waiting };
        }
        self.compacting.finished = accepted;
        self.rows.change(Row {
            bucket: schema::META,
            key: schema::META_FINISHED_COMPACT.to_vec(),
            value: Some(Revision::new(accepted, 0).encode().to_vec()),
        });
        CompactStep { dropped, is_finished: true, is_waiting: false }
    }

    /// Tells whether a compaction is accepted and not worked off.
    #[must_use]
    pub fn is_compacting(&self) -> bool {
        self.compacting.finished < self.compacting.accepted
    }

    /// Revision of the last compaction whose rows are gone from the backend, -1 for none: who waits
    /// for a compaction up to it need not wait any more.
    #[must_use]
    pub fn compaction_saved(&self) -> i64 {
        self.compacting.finished_saved
    }
}
