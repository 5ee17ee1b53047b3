//! The thread that reads history for watchers that are behind: those that begin in the past, and
//! those whose consumer was slow.
//!
//! Each has its turn for one bounded step; no lock is held while history is read. Watchers that
//! are near each other share what was read.

use std::collections::VecDeque;
use std::sync::{Arc, MutexGuard, PoisonError};

use super::batch::{Batch, Known};
use super::channel::Watcher;
use super::hub::Shared;
use crate::etcd::apply::Refusal;
use crate::store::error::Error;
use crate::store::mvcc::Portion;

/// What is read in a step; the revision that reaches it is read whole.
const STEP: Portion = Portion { events: 256, bytes: 1 << 20 };

/// Watchers that are behind and have room.
#[derive(Debug, Default)]
pub(super) struct Behind {
    queue: VecDeque<Arc<Watcher>>,
    pub(super) is_closed: bool,
}

impl Shared {
    pub(super) fn behind(&self) -> MutexGuard<'_, Behind> {
        self.behind.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives watchers that are behind their turn.
    pub(super) fn catch_up(&self, watchers: impl IntoIterator<Item = Arc<Watcher>>) {
        let mut behind = self.behind();
        behind.queue.extend(watchers);
        let is_empty = behind.queue.is_empty();
        drop(behind);
        if !is_empty {
            self.lagging.notify_one();
        }
    }
}

/// What was read last.
#[derive(Debug)]
struct Chunk {
    from: i64,
    last: i64,
    commits: Vec<Known>,
}

impl Chunk {
    fn new() -> Self {
        Self { from: 0, last: -1, commits: Vec::new() }
    }

    fn clear(&mut self) {
        *self = Self::new();
    }

    /// Reads from a revision on, if it was not read just now.
    fn read(&mut self, shared: &Shared, from: i64, to: i64) -> Result<(), Error> {
        if (self.from..=self.last).contains(&from) {
            return Ok(());
        }
        self.clear();
        let (commits, last) = shared.history.events(from, to, STEP)?;
        if last < from {
            return Err(Error::Storage(format!("history has nothing at revision {from}")));
        }
        (self.from, self.last) = (from, last);
        self.commits = commits.into_iter().map(Known::new).collect();
        Ok(())
    }

    /// What a watcher wants of it.
    fn collect(&mut self, shared: &Shared, watcher: &Watcher, from: i64) -> Result<Batch, Error> {
        let mut hits = Vec::new();
        let start = self.commits.partition_point(|known| known.commit.revision < from);
        for (number, known) in self.commits.iter().enumerate().skip(start) {
            for (at, event) in known.commit.events.iter().enumerate() {
                if watcher.keys.contains(&event.key) && watcher.accepts(event) {
                    hits.push((number, at));
                }
            }
        }
        let history = watcher.prev_kv.then_some(shared.history.as_ref());
        Batch::collect(&mut self.commits, &hits, history)
    }
}

/// Runs until the hub is closed.
pub(super) fn run(shared: &Shared) {
    let mut chunk = Chunk::new();
    loop {
        let mut behind = shared.behind();
        if behind.queue.is_empty() {
            chunk.clear();
        }
        while behind.queue.is_empty() && !behind.is_closed {
            behind = shared.lagging.wait(behind).unwrap_or_else(PoisonError::into_inner);
        }
        if behind.is_closed {
            return;
        }
        let Some(watcher) = behind.queue.pop_front() else { continue };
        drop(behind);
        if step(shared, &mut chunk, &watcher) {
            shared.behind().queue.push_back(watcher);
        }
    }
}

/// Returns whether the watcher is still behind.
fn step(shared: &Shared, chunk: &mut Chunk, watcher: &Arc<Watcher>) -> bool {
    let Some(from) = watcher.channel.cursor(watcher) else { return false };
    let now = shared.history.revision();
    let batch = if from < shared.history.compact_revision() {
        Err(Error::Refused(Refusal::Compacted))
    } else {
        chunk.read(shared, from, now).and_then(|()| chunk.collect(shared, watcher, from))
    };
    match batch {
        Ok(batch) => {
            let read = (&Arc::new(batch), chunk.last);
            watcher.channel.advance(watcher, read, now, &shared.fanned)
        }
        Err(Error::Refused(Refusal::Compacted)) => {
            if watcher.channel.overtake(watcher, shared.history.compact_revision()) {
                shared.index_write().remove(watcher);
            }
            false
        }
        Err(error) => {
            watcher.channel.end(error);
            false
        }
    }
}
