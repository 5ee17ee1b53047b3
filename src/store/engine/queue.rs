//! Requests on their way to the log, in the order in which they will be numbered.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::format::u64_of;
use crate::format::wal::{Snapshot, entry_kind};
use crate::store::answer::Answer;
use crate::store::error::Error;
use crate::store::figures::Kind;
use crate::store::pending::Promise;

/// What came of a request that was logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    /// Index of its entry in the log.
    pub index: u64,
    /// The answer.
    pub answer: Answer,
}

/// What a caller of [`super::Store::submit`] waits for.
pub type Outcome = Result<Done, Error>;

/// Who is told what came of an entry.
#[derive(Debug)]
pub(super) enum Reply {
    Nobody,
    Caller(Promise<Outcome>),
    /// The caller of a request before, which was done although it was over the quota: told when
    /// the alarm, which this entry raises, is there.
    Refused(Promise<Outcome>, Error),
}

/// A request to be logged.
#[derive(Debug)]
pub(super) struct Proposal {
    /// One of [`entry_kind`].
    pub(super) kind: u64,
    /// The entry's data.
    pub(super) data: Vec<u8>,
    /// Bytes that it may add to the database, as etcd estimates them.
    pub(super) cost: u64,
    /// Whether it may change who may do what.
    pub(super) touches_auth: bool,
    /// What it is, and since when its caller waits; `None` for what nobody asked for.
    pub(super) asked: Option<(Kind, Instant)>,
    pub(super) reply: Reply,
}

impl Proposal {
    pub(super) fn normal(data: Vec<u8>, reply: Reply) -> Self {
        Self { kind: entry_kind::NORMAL, data, cost: 0, touches_auth: false, asked: None, reply }
    }
}

/// What the log thread does.
#[derive(Debug)]
pub(super) enum Work {
    Propose(Proposal),
    /// Records a raft snapshot, whose backend commit is durable.
    Snapshot(Snapshot),
}

#[derive(Debug, Default)]
struct Inner {
    works: Vec<Work>,
    /// Of what waits, and of what was taken and is not written yet.
    bytes: usize,
    /// Requests that were taken, since the start.
    proposed: u64,
    is_awaited: bool,
    is_closed: bool,
}

/// The queue before the log thread.
#[derive(Debug, Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    arrived: Condvar,
}

impl Queue {
    /// Bytes of requests that may wait to be written.
    const BYTES_MAX: usize = 64 << 20;

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds work; drops it where the queue is closed or full, so that who waits learns that.
    pub(super) fn push(&self, work: Work) -> Result<(), Rejected> {
        let (size, proposed) = match &work {
            Work::Propose(proposal) => (proposal.data.len(), 1),
            Work::Snapshot(_) => (0, 0),
        };
        let mut inner = self.lock();
        let rejected = match inner.is_closed {
            true => Some(Rejected::Closed),
            false => (size > 0 && inner.bytes > Self::BYTES_MAX).then_some(Rejected::Full),
        };
        if let Some(rejected) = rejected {
            drop(inner);
            // Who waits for an alarm is told what it is about.
            if let Work::Propose(Proposal { reply: Reply::Refused(promise, error), .. }) = work {
                promise.fulfil(Err(error));
            }
            return Err(rejected);
        }
        inner.bytes = inner.bytes.saturating_add(size);
        inner.proposed = inner.proposed.saturating_add(proposed);
        inner.works.push(work);
        let wakes = std::mem::take(&mut inner.is_awaited);
        drop(inner);
        if wakes {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Swaps all that waits into `works`, which is empty; waits for something. `false`: the queue
    /// is closed, and nothing is left.
    pub(super) fn take(&self, works: &mut Vec<Work>) -> bool {
        let mut inner = self.lock();
        while inner.works.is_empty() {
            if inner.is_closed {
                return false;
            }
            inner.is_awaited = true;
            inner = self.arrived.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        inner.is_awaited = false;
        std::mem::swap(&mut inner.works, works);
        true
    }

    /// Bytes of what was taken are written, or refused.
    pub(super) fn note_written(&self, bytes: usize) {
        let mut inner = self.lock();
        inner.bytes = inner.bytes.saturating_sub(bytes);
    }

    /// Requests went to the log without the queue.
    pub(super) fn note_proposed(&self, count: usize) {
        let mut inner = self.lock();
        inner.proposed = inner.proposed.saturating_add(u64_of(count));
    }

    /// Number of requests that were taken since the start.
    pub(super) fn proposed(&self) -> u64 {
        self.lock().proposed
    }

    /// Number of requests that wait.
    pub(super) fn len(&self) -> usize {
        self.lock().works.len()
    }

    /// Takes nothing any more; what waits is still given out.
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.arrived.notify_all();
    }

    /// Closes, and hands out what waits, to be refused.
    pub(super) fn abandon(&self) -> Vec<Work> {
        let mut inner = self.lock();
        inner.is_closed = true;
        let works = std::mem::take(&mut inner.works);
        drop(inner);
        self.arrived.notify_all();
        works
    }
}

/// Why work was not taken.
#[derive(Debug)]
pub(super) enum Rejected {
    Closed,
    Full,
}
