//! What the backend has not got yet, and how it gets it.

use std::sync::Arc;

use bytes::Bytes;

use super::Mvcc;
use super::rows::Changed;
use crate::bolt::db::{Batch, View};
use crate::etcd::apply;
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
    /// Main revisions of the commits that are yet to be collected.
    missing: (i64, i64),
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
        let mut taken = self.begin_batch();
        self.collect(&mut taken, usize::MAX);
        taken
    }

    /// Tells whether a batch is out that [`Mvcc::take_view`] has not heard of.
    #[must_use]
    pub fn is_out(&self) -> bool {
        self.saving.out.is_some()
    }

    /// The same without the commits, for which [`Mvcc::collect`] is called until it has them all:
    /// no call needs the lock for long.
    pub fn begin_batch(&mut self) -> Taken {
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
            commits: Vec::new(),
            missing: (from, self.revision),
            rows: self.rows.take_dirty(),
            drops: std::mem::take(&mut saving.drops),
            buckets: !std::mem::replace(&mut saving.made_buckets, true),
            applied: (index, self.rules.writes_conf_state.then_some(term)),
        }
    }

    /// Collects not more than `max` commits of a batch that was begun; `true`: it has all.
    pub fn collect(&self, taken: &mut Taken, max: usize) -> bool {
        let (from, to) = taken.missing;
        let before = taken.commits.len();
        let commits = self.tail.since(from).take_while(|commit| commit.revision <= to);
        taken.commits.extend(commits.take(max).map(Arc::clone));
        let next = taken.commits.last().map_or(from, |commit| commit.revision.saturating_add(1));
        taken.missing = (next, to);
        next > to || taken.commits.len() == before
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
        drop(self.take_view(view));
        drop(self.forget(usize::MAX));
    }

    /// The same, but nothing is forgotten yet, and the view before is given back: it and what
    /// [`Mvcc::forget`] gives are dropped without the lock.
    #[must_use]
    pub fn take_view(&mut self, view: View) -> View {
        if let Some(out) = self.saving.out.take() {
            self.saving.saved_revision = out.revision;
            self.compacting.scheduled_saved = out.scheduled;
            self.compacting.finished_saved = out.finished;
        }
        std::mem::replace(&mut self.view, view)
    }

    /// Forgets not more than `max` of the commits that are saved and surplus; returns them.
    #[must_use]
    pub fn forget(&mut self, max: usize) -> Vec<Arc<Commit>> {
        self.tail.trim(self.saving.saved_revision, self.saving.keep_bytes, max)
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
        let puts = self.commits.iter().flat_map(|commit| commit.events.iter()).map(|event| {
            let (key, value) = event.row();
            (key, Some(value))
        });
        let drops = self.drops.iter().map(|dead| {
            let key = match dead.is_tombstone {
                true => Bytes::copy_from_slice(&dead.revision.encode_tombstone()),
                false => Bytes::copy_from_slice(&dead.revision.encode()),
            };
            (key, None)
        });
        let mut rows = puts.chain(drops).peekable();
        if rows.peek().is_some() {
            batch.plan_all(schema::KEY, rows);
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
