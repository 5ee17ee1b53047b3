//! The compaction thread: what a compaction made superfluous goes in small steps.
//!
//! 1. Nothing goes before the file says which compaction it is (`scheduledCompactRev`), so that a
//!    store that is killed half way goes on with it.
//! 2. A step holds the state's lock for as long as it takes to work off a few hundred rows; rows
//!    leave the file with the backend's next batch. While somebody writes, they go as slowly as
//!    [`Pace`] says, by what they cost the backend; after each round the thread rests anyway.
//! 3. Whoever waits for the rows to be gone is answered when the last of them, and the mark that
//!    it is finished, are gone from the file.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::figures::Compacted;
use super::pace::Pace;
use super::queue::{Done, Outcome};
use super::{Shared, backend, hashing};
use crate::store::error::Error;
use crate::store::pending::Promise;

/// Rows that are worked off under one lock.
const STEP_ROWS: usize = 250;
/// How long is waited for somebody who reads what is to go, at first; twice as long each time, up
/// to the longest.
const WAIT: Duration = Duration::from_millis(5);
const WAIT_MAX: Duration = Duration::from_millis(320);

#[derive(Debug, Default)]
struct Inner {
    /// There is something to do: the newest revision to compact at, where it is known.
    is_due: bool,
    waiting: Vec<(i64, Promise<Outcome>, Done)>,
    /// None is worked off any more, and who waits is told this.
    end: Option<Error>,
}

/// Compactions that are to be worked off.
#[derive(Debug, Default)]
pub(super) struct Compaction {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Compaction {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins one, and remembers who waits for its end.
    pub(super) fn begin(&self, revision: i64, waiting: Option<(Promise<Outcome>, Done)>) {
        let mut inner = self.lock();
        if let Some(error) = inner.end.clone() {
            drop(inner);
            waiting.into_iter().for_each(|(promise, _)| promise.fulfil(Err(error.clone())));
            return;
        }
        inner.is_due = true;
        inner.waiting.extend(waiting.map(|(promise, done)| (revision, promise, done)));
        drop(inner);
        self.changed.notify_all();
    }

    pub(super) fn wake(&self) {
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Refuses whoever waits, now or later.
    pub(super) fn abandon(&self, error: &Error) {
        let mut inner = self.lock();
        inner.end.get_or_insert_with(|| error.clone());
        let waiting = std::mem::take(&mut inner.waiting);
        drop(inner);
        waiting.into_iter().for_each(|(_, promise, _)| promise.fulfil(Err(error.clone())));
    }
}

/// The compaction thread. What was not finished when the store was last open goes first.
pub(super) fn run(shared: &Arc<Shared>) {
    let compaction = &shared.compaction;
    let is_over = || shared.health.is_ending() || shared.health.has_failed();
    loop {
        {
            let mut inner = compaction.lock();
            while !inner.is_due && !is_over() {
                inner = compaction.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
            }
            inner.is_due = false;
        }
        if is_over() {
            break;
        }
        // A failure is noted where it happens; a compaction that is not ended goes on next time.
        let _ = work_off(shared, &is_over);
    }
    compaction.abandon(&shared.health.unknown_outcome());
}

fn work_off(shared: &Shared, is_over: &dyn Fn() -> bool) -> Result<(), Error> {
    backend::commit(shared)?;
    hashing::before_compaction(shared);
    let counted = Compacted::begin(shared)?;
    let pace = Pace::new(shared);
    let (mut since_rest, mut rested) = (0_usize, Duration::ZERO);
    let mut wait = WAIT;
    let mut has_dropped = false;
    while !is_over() {
        let step = shared.core.write(|mvcc| {
            let began = Instant::now();
            let step = mvcc.compact_some(STEP_ROWS.min(shared.options.compaction_batch_limit));
            shared.backend.note_unsaved(mvcc.unsaved());
            counted.step(step.dropped, began);
            step
        })?;
        has_dropped |= step.dropped > 0;
        if step.dropped > 0 {
            shared.backend.note_dirty();
            let began = Instant::now();
            pace.charge(shared.backend.cost_of(step.dropped));
            rested = rested.saturating_add(began.elapsed());
        }
        if step.is_finished {
            backend::commit(shared)?;
            if has_dropped {
                backend::give_back(shared)?;
            }
            counted.end();
            let saved = shared.core.read(|mvcc| mvcc.compaction_saved())?;
            let mut inner = shared.compaction.lock();
            let waiting = std::mem::take(&mut inner.waiting);
            let (done, rest) = waiting.into_iter().partition(|(revision, ..)| *revision <= saved);
            inner.waiting = rest;
            drop(inner);
            let done: Vec<_> = done;
            done.into_iter().for_each(|(_, promise, done)| promise.fulfil(Ok(done)));
            return Ok(());
        }
        if step.is_waiting {
            // For a reader that looks at what is to go, or for a compaction that came just now.
            backend::commit(shared)?;
            shared.rest(wait);
            wait = wait.saturating_mul(2).min(WAIT_MAX);
        }
        if step.dropped > 0 {
            wait = WAIT;
        }
        since_rest = since_rest.saturating_add(step.dropped);
        if since_rest >= shared.options.compaction_batch_limit {
            since_rest = 0;
            // Time in which writers went first is rest enough.
            shared.rest(shared.options.compaction_sleep.saturating_sub(rested));
            rested = Duration::ZERO;
        }
    }
    Ok(())
}
