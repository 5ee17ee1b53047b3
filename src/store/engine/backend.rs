//! The backend thread: what was applied goes to the database file, a batch at a time.
//!
//! 1. A batch is taken under the state's lock and committed outside of it, one at a time, whoever
//!    asks. Everything in it is in the log, synced, with a HardState that covers it: only what is
//!    synced is applied.
//! 2. Every so many entries a raft snapshot: the commit is durable, then the `.snap` file where
//!    the version reads it, then the log's record, then what is older is removed. One at a time
//!    is on its way, so that the newest record has its file at any moment.
//! 3. Where the file cannot keep up, requests wait before they are logged, so that memory stays
//!    bounded.
//! 4. Nothing here holds the state's lock for more than some hundred commits: they are collected,
//!    forgotten and dropped a slice at a time.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Shared;
use super::options::Options;
use super::pace::thread_time;
use super::queue::Work;
use crate::bolt::db::{self, Batch, Db, Sizes, View};
use crate::etcd::apply::State as _;
use crate::etcd::members::{Member, MemberId};
use crate::etcd::schema;
use crate::format::u64_of;
use crate::format::wal::Snapshot;
use crate::store::error::Error;
use crate::store::guard::Quota;
use crate::store::log::Surplus;
use crate::store::open::{self, Compat};

/// `.snap` files that stay: the one that is on its way into the log, and the one that is in it.
const SNAPS_MIN: usize = 2;
/// How many times what may wait for the file may be recorded for a copy of it; with more the copy
/// is given up.
const RECORDED: usize = 4;
/// Commits that are handed over under one lock.
const SLICE: usize = 256;
/// The file has rest from batches so many times as long as one takes, so that it leaves the disk
/// to the log; but not longer than so many intervals.
const REST: u32 = 20;
const LONGEST: u32 = 10;

/// What a row is taken to cost before one was saved.
const ROW_COST_NS: u64 = 3000;
/// Rows of a batch from which on it tells what one costs.
const ROWS_TOLD: usize = 256;

/// The file, and who writes to it.
#[derive(Debug)]
pub(super) struct Backend {
    /// Held by whoever commits.
    writing: Mutex<Writing>,
    /// The same file, for whoever only asks.
    db: Mutex<Option<Db>>,
    quota: Quota,
    size_bytes: AtomicU64,
    in_use_bytes: AtomicU64,
    /// Index of the last entry that the file holds.
    saved_index: AtomicU64,
    /// Rows and bytes with which a batch is full.
    full: (usize, usize),
    is_full: AtomicBool,
    unsaved_bytes: AtomicUsize,
    /// Bytes that are on their way to the file.
    out_bytes: AtomicUsize,
    /// Something was applied since the last batch was taken.
    is_dirty: AtomicBool,
    /// Bytes that wait for a copy of the file.
    recorded_bytes: AtomicUsize,
    /// Nanoseconds on a processor that a row took in late batches.
    row_cost_ns: AtomicU64,
    /// Segments of the log to be removed, which takes longer than the log thread has time.
    surplus: Mutex<Option<Surplus>>,
    waiting: Mutex<()>,
    /// There is something to do for the backend thread.
    wake: Condvar,
    /// A batch was saved, or never will be.
    room: Condvar,
}

/// What a committer owns.
#[derive(Debug)]
pub(super) struct Writing {
    /// `None` when the store is closed.
    pub(super) db: Option<Db>,
    /// Batches since a defragmentation began to copy; they are committed to the copy as well.
    /// `None` when there is none, or it is given up.
    pub(super) recorded: Option<Recorded>,
    /// Index and term of the last entry in the file.
    pub(super) saved: (u64, u64),
}

/// Batches for a copy.
#[derive(Debug, Default)]
pub(super) struct Recorded {
    pub(super) batches: Vec<Batch>,
    pub(super) bytes: usize,
}

impl Backend {
    pub(super) fn new(db: Db, options: &Options, saved: (u64, u64)) -> Self {
        let Sizes { size_bytes, in_use_bytes } = db.sizes();
        let writing = Writing { db: Some(db.clone()), recorded: None, saved };
        Self {
            writing: Mutex::new(writing),
            db: Mutex::new(Some(db)),
            quota: options.quota,
            size_bytes: AtomicU64::new(size_bytes),
            in_use_bytes: AtomicU64::new(in_use_bytes),
            saved_index: AtomicU64::new(saved.0),
            full: (options.batch_limit, options.unsaved_bytes_max / 2),
            is_full: AtomicBool::new(false),
            unsaved_bytes: AtomicUsize::new(0),
            out_bytes: AtomicUsize::new(0),
            is_dirty: AtomicBool::new(false),
            recorded_bytes: AtomicUsize::new(0),
            row_cost_ns: AtomicU64::new(ROW_COST_NS),
            surplus: Mutex::default(),
            waiting: Mutex::new(()),
            wake: Condvar::new(),
            room: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn writing(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn db(&self) -> Result<Db, Error> {
        let db = self.db.lock().unwrap_or_else(PoisonError::into_inner);
        db.clone().ok_or(Error::Stopped)
    }

    pub(super) fn quota(&self) -> Quota {
        self.quota
    }

    /// Tells whether there is room, by the size at the last commit, as etcd does. Commits may be
    /// further apart than etcd's, so that what waits for the next one counts too, as far as it will
    /// not go into free pages.
    pub(super) fn admits(&self, cost: u64) -> bool {
        let waiting = self.unsaved_bytes.load(Ordering::Acquire);
        let unsaved = u64_of(waiting.saturating_add(self.out_bytes.load(Ordering::Acquire)));
        let full = self.in_use_bytes.load(Ordering::Acquire).saturating_add(unsaved);
        self.quota.admits(self.size_bytes.load(Ordering::Acquire).max(full), cost)
    }

    pub(super) fn sizes(&self) -> Result<Sizes, Error> {
        Ok(self.db()?.sizes())
    }

    /// Notes what the file has not got yet; called under the state's lock, so that notes come in
    /// the order of the changes.
    pub(super) fn note_unsaved(&self, (rows, bytes): (usize, usize)) {
        self.unsaved_bytes.store(bytes, Ordering::Release);
        let is_full = rows >= self.full.0 || bytes > self.full.1;
        if self.is_full.swap(is_full, Ordering::AcqRel) != is_full && is_full {
            drop(self.lock());
            self.wake.notify_all();
        }
    }

    /// Lets the backend thread know that something was applied.
    pub(super) fn note_dirty(&self) {
        if !self.is_dirty.swap(true, Ordering::AcqRel) {
            drop(self.lock());
            self.wake.notify_all();
        }
    }

    /// Wakes whoever waits for the backend, or is it.
    pub(super) fn wake_all(&self) {
        drop(self.lock());
        self.wake.notify_all();
        self.room.notify_all();
    }

    /// Waits while more waits for the file than may.
    pub(super) fn wait_for_room(&self, shared: &Shared) {
        let max = shared.options.unsaved_bytes_max;
        let is_full = || {
            self.unsaved_bytes.load(Ordering::Acquire) > max
                && !shared.health.has_failed()
                && !shared.health.is_abandoned()
        };
        if !is_full() {
            return;
        }
        let mut guard = self.lock();
        while is_full() {
            self.wake.notify_all();
            guard = self.room.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Lets go of the file.
    pub(super) fn close(&self) {
        let writing = self.writing().db.take();
        let db = self.db.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Views that somebody still has would hold the lock.
        writing.into_iter().chain(db).for_each(|db| db.close());
    }

    /// Puts another file in the place of this one, which is given back: to let go of it takes long
    /// where it has no name any more.
    #[must_use]
    pub(super) fn replace(&self, writing: &mut Writing, db: Db) -> Option<Db> {
        self.note_sizes(db.sizes());
        let before = self.db.lock().unwrap_or_else(PoisonError::into_inner).replace(db.clone());
        writing.db = Some(db);
        before
    }

    /// Begins to record batches for a copy of the file as it is.
    pub(super) fn record(&self, writing: &mut Writing) {
        writing.recorded = Some(Recorded::default());
        self.recorded_bytes.store(0, Ordering::Relaxed);
    }

    /// Takes what was recorded for a copy of the file; `None` where it was too much.
    pub(super) fn take_recorded(&self) -> Option<Recorded> {
        let mut writing = self.writing();
        let recorded = std::mem::take(writing.recorded.as_mut()?);
        self.recorded_bytes.store(0, Ordering::Relaxed);
        Some(recorded)
    }

    /// Tells whether so much waits for a copy of the file that it is soon given up.
    pub(super) fn is_copy_late(&self, shared: &Shared) -> bool {
        let waiting = self.recorded_bytes.load(Ordering::Relaxed);
        waiting / RECORDED > shared.options.unsaved_bytes_max / 4
    }

    /// Leaves segments of the log to the backend thread.
    pub(super) fn note_surplus(&self, later: Surplus) {
        match &mut *self.surplus() {
            Some(surplus) => surplus.append(later),
            none => *none = Some(later),
        }
    }

    fn surplus(&self) -> MutexGuard<'_, Option<Surplus>> {
        self.surplus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes what was left to it.
    fn remove_surplus(&self) {
        let Some(mut surplus) = self.surplus().take() else { return };
        // A segment that cannot be removed is in nobody's way, and goes next time: the oldest
        // first, or the log would have a hole.
        if surplus.remove().is_err() {
            let mut left = self.surplus();
            if let Some(later) = left.take() {
                surplus.append(later);
            }
            *left = Some(surplus);
        }
    }

    /// Notes what a batch of so many rows took on a processor.
    fn note_cost(&self, rows: usize, spent: Duration) {
        let spent = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        if let Some(now) = spent.checked_div(u64_of(rows))
            && rows >= ROWS_TOLD
        {
            // Of a row that is written the value is copied, which is nothing to one that goes.
            let now = now.min(ROW_COST_NS.saturating_mul(2));
            let before = self.row_cost_ns.load(Ordering::Relaxed);
            let mean = before.saturating_mul(3).saturating_add(now) / 4;
            self.row_cost_ns.store(mean, Ordering::Relaxed);
        }
    }

    /// What so many rows more in a batch are expected to take on a processor.
    pub(super) fn cost_of(&self, rows: usize) -> Duration {
        let each = self.row_cost_ns.load(Ordering::Relaxed);
        Duration::from_nanos(each.saturating_mul(u64_of(rows)))
    }

    fn note_sizes(&self, sizes: Sizes) {
        self.size_bytes.store(sizes.size_bytes, Ordering::Release);
        self.in_use_bytes.store(sizes.in_use_bytes, Ordering::Release);
    }

    /// Notes what a commit left.
    pub(super) fn note_saved(&self, sizes: Sizes) {
        self.note_sizes(sizes);
        self.out_bytes.store(0, Ordering::Release);
        drop(self.lock());
        self.room.notify_all();
    }
}

/// Makes an error of the database one of the store.
pub(super) fn storage(error: &db::Error) -> Error {
    Error::Storage(format!("the database: {error}"))
}

/// Brings everything that was applied to the file; returns a view of it.
pub(super) fn commit(shared: &Shared) -> Result<View, Error> {
    let mut writing = shared.backend.writing();
    commit_locked(shared, &mut writing)
}

/// The same by whoever is the committer already.
pub(super) fn commit_locked(shared: &Shared, writing: &mut Writing) -> Result<View, Error> {
    if shared.health.has_failed() {
        return Err(shared.health.refusal().unwrap_or(Error::Stopped));
    }
    let db = writing.db.clone().ok_or(Error::Stopped)?;
    if shared.is_read_only {
        return Ok(db.view());
    }
    shared.backend.is_dirty.store(false, Ordering::Release);
    // Only one batch is out at a time, and its committer has the lock: one that is out was lost
    // by a caller's thread that panicked.
    if shared.core.read(|mvcc| mvcc.is_out())? {
        let error = Error::Storage("a batch for the database was lost in a panic".into());
        shared.fail(&error);
        return Err(error);
    }
    let cpu = thread_time();
    let (applied, (rows, bytes), mut taken) = shared.core.write(|mvcc| {
        let unsaved = mvcc.unsaved();
        let taken = mvcc.begin_batch();
        shared.backend.out_bytes.store(unsaved.1, Ordering::Release);
        shared.backend.note_unsaved(mvcc.unsaved());
        (mvcc.applied(), unsaved, taken)
    })?;
    if taken.is_empty() {
        shared.backend.out_bytes.store(0, Ordering::Release);
        return Ok(db.view());
    }
    while !shared.core.read(|mvcc| mvcc.collect(&mut taken, SLICE))? {}
    let batch = taken.into_batch();
    if let Some(recorded) = &mut writing.recorded {
        recorded.bytes = recorded.bytes.saturating_add(bytes);
        recorded.batches.push(batch.clone());
        shared.backend.recorded_bytes.store(recorded.bytes, Ordering::Relaxed);
        if recorded.bytes / RECORDED > shared.options.unsaved_bytes_max {
            writing.recorded = None;
        }
    }
    let began = Instant::now();
    let committed = db.commit_timed(batch);
    shared.figures.commit.since(began);
    let (sizes, spent) = committed.map_err(|error| {
        let error = storage(&error);
        shared.fail(&error);
        error
    })?;
    shared.figures.commit_layout.time(spent.layout);
    shared.figures.commit_write.time(spent.write);
    let view = db.view();
    note_view(shared, view.clone())?;
    shared.backend.note_cost(rows, thread_time().saturating_sub(cpu));
    writing.saved = applied;
    shared.backend.note_saved(sizes);
    shared.backend.saved_index.store(applied.0, Ordering::Release);
    if is_snapshot_due(shared) {
        // Whoever saved what makes it due, the backend thread takes it.
        shared.backend.wake_all();
    }
    Ok(view)
}

/// Commits nothing: only with it is free what the commit before it freed.
/// etcd's next one comes by itself; a member at its quota may have none for long.
pub(super) fn give_back(shared: &Shared) -> Result<(), Error> {
    let writing = shared.backend.writing();
    if shared.health.has_failed() {
        return Err(shared.health.refusal().unwrap_or(Error::Stopped));
    }
    let db = writing.db.clone().ok_or(Error::Stopped)?;
    let sizes = db.commit(Batch::default()).map_err(|error| {
        let error = storage(&error);
        shared.fail(&error);
        error
    })?;
    shared.backend.note_saved(sizes);
    Ok(())
}

/// Lets the state know what is saved, and forgets it there. Memory is given back without the lock.
pub(super) fn note_view(shared: &Shared, view: View) -> Result<(), Error> {
    let before = shared.core.write(|mvcc| mvcc.take_view(view))?;
    drop(before);
    while shared.core.write(|mvcc| mvcc.forget(SLICE))?.len() == SLICE {}
    Ok(())
}

/// The backend thread: runs until the store ends or fails.
pub(super) fn run(shared: &Arc<Shared>) {
    let backend = &shared.backend;
    let shortest = shared.options.batch_interval;
    let mut interval = shortest;
    let is_over = || shared.health.is_drained() || shared.health.has_failed();
    let is_due = || {
        // A snapshot that a start wants is taken at once, whoever saved what there was to save; so
        // is one that is due. A commit of nothing by somebody else says that nothing is dirty.
        let is_wanted = shared.wants_snapshot.load(Ordering::Acquire);
        backend.is_dirty.load(Ordering::Acquire) || is_wanted || is_snapshot_due(shared)
    };
    loop {
        let mut guard = backend.lock();
        while !is_due() && !is_over() {
            guard = backend.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        let due = Instant::now().checked_add(interval);
        loop {
            let left =
                due.map_or(Duration::ZERO, |due| due.saturating_duration_since(Instant::now()));
            if backend.is_full.load(Ordering::Acquire) || left.is_zero() || is_over() {
                break;
            }
            let waited = backend.wake.wait_timeout(guard, left);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(guard);
        if is_over() {
            return;
        }
        let began = Instant::now();
        // A failure is noted where it happens.
        if commit(shared).is_err() {
            continue;
        }
        let longest = shortest.saturating_mul(LONGEST);
        interval = began.elapsed().saturating_mul(REST).clamp(shortest, longest.max(shortest));
        backend.remove_surplus();
        if let Err(error) = take_snapshot_when_due(shared) {
            shared.fail(&error);
        }
    }
}

/// Whether enough entries were saved since the last raft snapshot. Its record waits behind
/// requests: one at a time is on its way.
fn is_snapshot_due(shared: &Shared) -> bool {
    let planned = shared.planned_snapshot.load(Ordering::Acquire);
    let saved = shared.backend.saved_index.load(Ordering::Acquire);
    planned <= shared.snapshot_index.load(Ordering::Acquire)
        && saved.saturating_sub(planned) >= shared.options.snapshot_count.max(1)
}

/// Records a raft snapshot of what the file holds, every so many entries.
fn take_snapshot_when_due(shared: &Arc<Shared>) -> Result<(), Error> {
    let saved = shared.backend.writing().saved;
    let planned = shared.planned_snapshot.load(Ordering::Acquire);
    let recorded = shared.snapshot_index.load(Ordering::Acquire);
    if planned > recorded {
        // Its record waits behind requests: one at a time is on its way.
        return Ok(());
    }
    let since = saved.0.saturating_sub(planned);
    let is_wanted = since > 0 && shared.wants_snapshot.swap(false, Ordering::AcqRel);
    if since < shared.options.snapshot_count.max(1) && !is_wanted {
        return Ok(());
    }
    record_snapshot(shared, saved)?;
    let keep = shared.options.snaps_max.max(SNAPS_MIN);
    // What cannot be removed is in nobody's way.
    let _ = open::purge_snaps(&shared.options.disk, &shared.snap_dir, keep, recorded);
    Ok(())
}

/// Writes what a raft snapshot at an index, which the file holds, needs.
pub(super) fn record_snapshot(shared: &Shared, (index, term): (u64, u64)) -> Result<(), Error> {
    if shared.compat == Compat::V3_6 {
        let (members, removed) = shared.core.read(|mvcc| {
            let (mut members, mut removed) = (Vec::new(), Vec::new());
            let read = mvcc.each_row(schema::MEMBERS, &mut |_, value| {
                members.extend(Member::decode(value).ok().map(|row| row.member));
            });
            let read = read.and_then(|()| {
                mvcc.each_row(schema::MEMBERS_REMOVED, &mut |key, _| {
                    removed.extend(MemberId::parse(key));
                })
            });
            read.map(|()| (members, removed)).map_err(|error| Error::Storage(error.to_string()))
        })??;
        let disk = &shared.options.disk;
        let version = shared.cluster_version();
        let at = (index, term);
        let voters = &shared.voters;
        let began = Instant::now();
        let spent =
            open::write_snap(disk, &shared.snap_dir, at, voters, &members, &removed, version)?;
        shared.figures.snap_save.since(began);
        shared.figures.snap_encode.time(spent.encode);
        shared.figures.snap_fsync.time(spent.sync);
    }
    shared.planned_snapshot.store(index, Ordering::Release);
    let conf_state = Some(shared.voters.clone());
    let snapshot = Snapshot { index, term, conf_state, unknown_field: None };
    // A queue that is closed: the store ends, and goes on without this record next time.
    let _ = shared.queue.push(Work::Snapshot(snapshot));
    Ok(())
}
