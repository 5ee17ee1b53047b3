//! Applying: synced entries change the state, in order; then watchers, leases and callers learn.
//!
//! Whoever applies holds the state's lock for a slice of about a millisecond, so that readers get
//! in between. Callers are answered after the lock was given back, and after watchers were told:
//! a progress response cannot overtake an event.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Shared;
use super::queue::{Done, Proposal, Reply};
use crate::etcd::apply::Outcome;
use crate::etcd::request::Content;
use crate::format::u64_of;
use crate::format::wal::Entry;
use crate::store::error::Error;
use crate::store::figures::Kind;
use crate::store::lease::Lessor;
use crate::store::mvcc::{Applied, LeaseChange};

/// How long the state's lock is held.
const SLICE: Duration = Duration::from_millis(1);
/// Entries between two looks at the clock.
const LOOK: usize = 8;

/// Entries that are synced and not applied yet.
#[derive(Debug)]
pub(super) struct Logged {
    pub(super) first_index: u64,
    pub(super) term: u64,
    pub(super) batch: Vec<Proposal>,
}

#[derive(Debug, Default)]
struct Inner {
    batches: VecDeque<Logged>,
    /// Somebody applies.
    is_busy: bool,
    is_closed: bool,
}

/// The way from the log to the state: one at a time applies, in order.
#[derive(Debug, Default)]
pub(super) struct Applying {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Applying {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the apply thread do it.
    ///
    /// # Errors
    /// That thread is no more.
    pub(super) fn push(&self, logged: Logged) -> Result<(), Logged> {
        let mut inner = self.lock();
        if inner.is_closed {
            return Err(logged);
        }
        inner.batches.push_back(logged);
        drop(inner);
        self.changed.notify_one();
        Ok(())
    }

    /// Lets the log thread do it, where nothing is before it; else the apply thread will.
    ///
    /// # Errors
    /// That thread is no more.
    pub(super) fn begin_here(&self, logged: Logged) -> Result<Option<Logged>, Logged> {
        let mut inner = self.lock();
        if inner.is_closed {
            return Err(logged);
        }
        if inner.is_busy || !inner.batches.is_empty() {
            inner.batches.push_back(logged);
            drop(inner);
            self.changed.notify_one();
            return Ok(None);
        }
        inner.is_busy = true;
        Ok(Some(logged))
    }

    /// The log thread is done. Only it adds batches, so none came in the meantime.
    pub(super) fn end_here(&self) {
        self.lock().is_busy = false;
    }

    /// No more will come.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Takes what waits, to be refused.
    pub(super) fn abandon(&self) -> Vec<Logged> {
        let mut inner = self.lock();
        inner.is_closed = true;
        let batches = inner.batches.drain(..).collect();
        drop(inner);
        self.changed.notify_all();
        batches
    }

    fn next(&self, is_done: bool) -> Option<Logged> {
        let mut inner = self.lock();
        if is_done {
            inner.is_busy = false;
        }
        loop {
            if !inner.is_busy
                && let Some(logged) = inner.batches.pop_front()
            {
                inner.is_busy = true;
                return Some(logged);
            }
            if inner.is_closed && inner.batches.is_empty() {
                return None;
            }
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The apply thread.
pub(super) fn run(shared: &Arc<Shared>) {
    let mut is_done = false;
    while let Some(logged) = shared.applying.next(is_done) {
        if shared.health.has_failed() || shared.health.is_abandoned() {
            super::logging::refuse(shared, logged.batch);
        } else {
            apply(shared, logged);
        }
        is_done = true;
    }
}

/// An entry that was applied, with whoever waits for it.
struct Effect {
    applied: Applied,
    reply: Reply,
    asked: Option<(Kind, Instant)>,
    /// It was over the quota, and done all the same.
    is_over: bool,
    /// The request, where it may end what tokens are valid.
    data: Option<Vec<u8>>,
}

/// Applies a batch, and lets everybody know.
pub(super) fn apply(shared: &Arc<Shared>, logged: Logged) {
    let Logged { mut first_index, term, batch } = logged;
    let _writing = shared.writers.begin();
    let mut rest = batch.into_iter().peekable();
    while rest.peek().is_some() {
        let mut effects: Vec<Effect> = Vec::with_capacity(rest.len());
        let mut failure = None;
        // Out here, so that it is dropped without the lock should there be a panic.
        let mut in_hand = None;
        let slice = shared.core.write(|mvcc| {
            let began = Instant::now();
            let mut last = began;
            for proposal in rest.by_ref() {
                let Proposal { kind, data, cost, touches_auth, asked, reply } = proposal;
                let is_over = cost > 0 && !shared.backend.admits(cost);
                in_hand = Some(reply);
                let index = first_index;
                let entry = Entry { kind, term, index, data: &data, unknown_field: None };
                match mvcc.apply(&entry) {
                    Ok(Some(applied)) => {
                        let now = Instant::now();
                        note_applied(shared, &applied, now.saturating_duration_since(last));
                        last = now;
                        if applied.auth_changed {
                            shared.core.note_auth(mvcc);
                        }
                        let data = touches_auth.then_some(data);
                        let reply = in_hand.take().unwrap_or(Reply::Nobody);
                        effects.push(Effect { applied, reply, asked, is_over, data });
                    }
                    Ok(None) => {
                        let what = format!("entry {index} of the log was applied before");
                        failure = Some(Error::Storage(what));
                        break;
                    }
                    Err(error) => {
                        failure = Some(Error::Storage(error.to_string()));
                        break;
                    }
                }
                first_index = first_index.saturating_add(1);
                if effects.len().is_multiple_of(LOOK)
                    && last.saturating_duration_since(began) >= SLICE
                {
                    break;
                }
            }
            shared.backend.note_unsaved(mvcc.unsaved());
            shared.core.revision.store(mvcc.revision(), Ordering::Release);
            shared.core.applied.store(first_index.saturating_sub(1), Ordering::Release);
        });
        if slice.is_ok() {
            shared.backend.note_dirty();
        }
        tell(shared, effects);
        if let Some(error) = failure {
            shared.fail(&error);
            let reply = in_hand.take().unwrap_or(Reply::Nobody);
            let left = Proposal { reply, ..Proposal::normal(Vec::new(), Reply::Nobody) };
            super::logging::refuse(shared, std::iter::once(left).chain(rest).collect());
            return;
        }
        if slice.is_err() {
            super::logging::refuse(shared, rest.collect());
            return;
        }
    }
}

fn tell(shared: &Arc<Shared>, mut effects: Vec<Effect>) {
    let commits: Vec<_> =
        effects.iter_mut().filter_map(|effect| effect.applied.commit.take()).collect();
    if !commits.is_empty() {
        shared.hub.publish(commits);
    }
    if effects.iter().any(|effect| !effect.applied.leases.is_empty()) {
        let mut lessor = shared.lessor();
        effects.iter().for_each(|effect| follow(&mut lessor, &effect.applied.leases));
        drop(lessor);
        let changes = effects.iter().flat_map(|effect| &effect.applied.leases);
        let ended = changes.filter_map(|change| match change {
            LeaseChange::Revoked(id) => Some(*id),
            _ => None,
        });
        shared.ends.note(ended);
    }
    if effects.is_empty() {
        return;
    }
    shared.figures.ended.add(u64_of(effects.len()));
    let now = Instant::now();
    for Effect { mut applied, reply, asked, is_over, data } in effects {
        shared.figures.note_request(asked, true, now);
        applied.fetch();
        if let Some(data) = data
            && applied.outcome == Outcome::Done
            && let Ok(Content::Request(request)) = Content::decode(&data)
        {
            shared.tokens.follow(&request.body);
        }
        let reply = match (applied.compaction, reply, &applied.answer) {
            (Some((revision, true)), Reply::Caller(promise), Ok(answer)) => {
                let done = Done { index: applied.index, answer: answer.clone() };
                shared.compaction.begin(revision, Some((promise, done)));
                Reply::Nobody
            }
            (Some((revision, _)), reply, _) => {
                shared.compaction.begin(revision, None);
                reply
            }
            (None, reply, _) => reply,
        };
        answer(shared, applied, reply, is_over);
    }
}

/// Counts an entry that was applied; what only says that revisions are gone already counts as
/// done, as with etcd.
fn note_applied(shared: &Shared, applied: &Applied, took: Duration) {
    use crate::etcd::apply::Refusal;
    let is_done = matches!(applied.outcome, Outcome::Done | Outcome::Refused(Refusal::Compacted));
    if let Some(kind) = applied.counted_as {
        shared.figures.note_applied(kind, is_done, took);
    }
    if applied.compaction.is_some() {
        shared.figures.index_pause.time(took);
    }
}

fn answer(shared: &Arc<Shared>, applied: Applied, reply: Reply, is_over: bool) {
    let (promise, refusal) = match reply {
        Reply::Nobody => return,
        Reply::Refused(promise, error) => return promise.fulfil(Err(error)),
        Reply::Caller(promise) => (promise, is_over && applied.outcome == Outcome::Done),
    };
    if refusal {
        let error = Error::Refused(crate::etcd::apply::Refusal::NoSpace);
        return shared.raise_nospace(Reply::Refused(promise, error));
    }
    let index = applied.index;
    promise.fulfil(applied.answer.map(|answer| Done { index, answer }));
}

/// Follows what happened to leases.
pub(super) fn follow(lessor: &mut Lessor, changes: &[LeaseChange]) {
    changes.iter().for_each(|change| lessor.follow(*change));
}
