//! What the backend has not got yet, and how it gets it.

use std::sync::Arc;

use bytes::Bytes;

use super::Mvcc;
use super::rows::Changed;
use crate::bolt::db::{Batch, View};
use crate::etcd::apply;
use crate::etcd::revision::RevisionKey;
use crate::etcd::schema;
use crate::store::index::Dead;
use crate::store::kv::Commit;

/// Bytes of commits that stay in memory although the backend has them, for watchers.
const KEEP_BYTES: usize = 8 << 20;

/// How far the backend has got.
#[derive(Debug, Default)]
pub(super) struct Saving {
    /// Revision up to which key rows were given out.
    taken_revision: i64,
    /// Revision up to which the view has key rows.
    saved_revision: i64,
    /// Index of the last entry that was given out.
    taken_index: u64,
    /// Rows that a compaction drops with the next batch.
    pub(super) drops: Vec<Dead>,
    /// The first batch makes all buckets.
    made_buckets: bool,
    rows: usize,
    bytes: usize,
    out: Option<Out>,
    keep_bytes: usize,
}

/// What will be true when the batch that is out is saved.
#[derive(Clone, Copy, Debug)]
struct Out {
    revision: i64,
    scheduled: i64,
    finished: i64,
}

/// Everything that the backend has not got, as of one entry; a batch is made of it without the
/// lock.
#[derive(Debug, Default)]
pub struct Taken {
    commits: Vec<Arc<Commit>>,
    rows: Vec<Changed>,
    drops: Vec<Dead>,
    buckets: bool,
    /// Index and term of the last entry in it; 0 where nothing was taken.
    applied: (u64, Option<u64>),
}

impl Saving {
    /// Begins with a view that has everything up to a revision and an index.
    pub(super) fn new(revision: i64, index: u64) -> Self {
        let (taken_revision, saved_revision) = (revision, revision);
        Self {
            taken_revision,
            saved_revision,
            taken_index: index,
            keep_bytes: KEEP_BYTES,
            ..Self::default()
        }
    }

    /// Notes rows that were applied.
    pub(super) fn note(&mut self, rows: usize, bytes: usize) {
        self.rows = self.rows.saturating_add(rows);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

impl Mvcc {
    /// Number of row changes, and their bytes of memory, that were not given out yet. The rows of
    /// an entry that changed nothing but the applied index are not counted.
    #[must_use]
    pub fn unsaved(&self) -> (usize, usize) {
        let saving = &self.saving;
        let others = self.rows.dirty().saturating_add(saving.drops.len());
        let drops = saving.drops.len().saturating_mul(size_of::<Dead>());
        let bytes = saving.bytes.saturating_add(self.rows.dirty_bytes()).saturating_add(drops);
        (saving.rows.saturating_add(others), bytes)
    }

    /// Gives out everything that the backend has not got, the applied index with it. It stays
    /// readable here until [`Mvcc::saved`]. Only one batch is out at a time: until then the next
    /// one is empty.
    pub fn take_batch(&mut self) -> Taken {
        let (index, term) = self.applied;
        let saving = &mut self.saving;
        let is_new = index > saving.taken_index
            || self.rows.dirty() > 0
            || !saving.drops.is_empty()
            || !saving.made_buckets;
        if saving.out.is_some() || !is_new {
            return Taken::default();
        }
        saving.out = Some(Out {
            revision: self.revision,
            scheduled: self.compacting.accepted,
            finished: self.compacting.finished,
        });
        (saving.rows, saving.bytes) = (0, 0);
        let from = saving.taken_revision.saturating_add(1);
        saving.taken_revision = self.revision;
        saving.taken_index = index;
        Taken {
            commits: self.tail.since(from).map(Arc::clone).collect(),
            rows: self.rows.take_dirty(),
            drops: std::mem::take(&mut saving.drops),
            buckets: !std::mem::replace(&mut saving.made_buckets, true),
            applied: (index, self.rules.writes_conf_state.then_some(term)),
        }
    }

    /// Revision up to which the view has key rows.
    pub(super) fn view_revision(&self) -> i64 {
        self.saving.saved_revision
    }

    /// Returns the view: what was saved last.
    #[must_use]
    pub fn view(&self) -> View {
        self.view.clone()
    }

    /// Changes how many bytes of commits stay in memory although the backend has them; 8 MiB at
    /// first.
    pub fn keep_commits(&mut self, bytes: usize) {
        self.saving.keep_bytes = bytes;
    }

    /// The batch that is out is in `view`: forgets it here, but for recent events that watchers
    /// may want.
    pub fn saved(&mut self, view: View) {
        self.view = view;
        let Some(out) = self.saving.out.take() else { return };
        self.saving.saved_revision = out.revision;
        self.compacting.scheduled_saved = out.scheduled;
        self.compacting.finished_saved = out.finished;
        self.tail.trim(out.revision, self.saving.keep_bytes);
    }
}

impl Taken {
    /// Tells whether there is nothing to save.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.buckets && self.rows.is_empty() && self.drops.is_empty() && self.applied.0 == 0
    }

    /// Index of the last entry in it: the log must hold a synced HardState with this commit index
    /// before the batch is committed.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.applied.0
    }

    /// Makes the batch.
    #[must_use]
    pub fn into_batch(self) -> Batch {
        let mut batch = Batch::default();
        if self.is_empty() {
            return batch;
        }
        if self.buckets {
            schema::BUCKETS.into_iter().for_each(|name| batch.bucket(name));
        }
        for event in self.commits.iter().flat_map(|commit| commit.events.iter()) {
            let (key, value) = event.row();
            batch.plan(schema::KEY, key, Some(value));
        }
        for dead in self.drops {
            let row = RevisionKey { revision: dead.revision, is_tombstone: dead.is_tombstone };
            let key = if row.is_tombstone {
                Bytes::copy_from_slice(&row.revision.encode_tombstone())
            } else {
                Bytes::copy_from_slice(&row.revision.encode())
            };
            batch.plan(schema::KEY, key, None);
        }
        for (bucket, key, value) in self.rows {
            batch.plan(bucket, key, value);
        }
        let (index, term) = self.applied;
        // A database to which nothing was ever applied has no index.
        if index > 0 {
            for row in apply::applied_rows(index, term) {
                batch.plan(row.bucket, row.key.into(), row.value.map(Bytes::from));
            }
        }
        batch
    }
}
