//! The thread that gives commits to the watchers that are synced.
//!
//! `fanned` is raised, with the index locked, before a revision is matched; `delivered` after its
//! events are queued everywhere. Progress is told of `delivered` only.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::task::Waker;

use super::batch::{Batch, Known};
use super::channel::{Channel, Told, Watcher};
use super::hub::Shared;
use super::index::Group;
use crate::store::kv::{Commit, Event};
use crate::store::pending;

/// Commits that are given out at once; events and bytes after which no further one is taken.
const BATCH_COMMITS: usize = 128;
const BATCH_EVENTS: usize = 512;
const BATCH_BYTES: usize = 4 << 20;

/// What may wait for the thread. Beyond it watchers read history instead.
pub(super) const INBOX_EVENTS_MAX: usize = 1 << 16;
const INBOX_BYTES_MAX: usize = 64 << 20;

/// What the thread has to do.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    commits: VecDeque<Arc<Commit>>,
    events: usize,
    bytes: usize,
    /// Revisions that were dropped from here; all others come after them.
    passed_over: Option<(i64, i64)>,
    asks: Vec<Ask>,
    /// The thread gives out what it took, or knows of progress that is yet to be told.
    is_busy: bool,
    pub(super) is_closed: bool,
}

/// Progress to be told when a revision is delivered.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) channel: Arc<Channel>,
    pub(super) at: i64,
    /// Each quiet watcher's own progress, not the stream's.
    pub(super) is_quiet: bool,
}

impl Ask {
    /// Tells it; gives back what is to be told later.
    pub(super) fn tell(mut self, delivered: i64) -> Option<Self> {
        if self.at > delivered {
            return Some(self);
        }
        let told = if self.is_quiet {
            self.channel.tell_quiet(delivered)
        } else {
            self.channel.tell_progress(delivered)
        };
        match told {
            Told::Done => None,
            Told::At(revision) => {
                self.at = revision;
                Some(self)
            }
        }
    }
}

fn measure(commit: &Commit) -> usize {
    commit.events.iter().fold(0, |sum, event: &Event| sum.saturating_add(event.kv.0.len()))
}

impl Inbox {
    pub(super) fn put(&mut self, commits: Vec<Arc<Commit>>) {
        for commit in commits {
            self.events = self.events.saturating_add(commit.events.len());
            self.bytes = self.bytes.saturating_add(measure(&commit));
            self.commits.push_back(commit);
        }
        if self.events > INBOX_EVENTS_MAX || self.bytes > INBOX_BYTES_MAX {
            let first = self.commits.front().map_or(0, |commit| commit.revision);
            let last = self.commits.back().map_or(0, |commit| commit.revision);
            let first = self.passed_over.map_or(first, |(earlier, _)| earlier);
            self.passed_over = Some((first, last));
            self.commits.clear();
            (self.events, self.bytes) = (0, 0);
        }
    }

    pub(super) fn ask(&mut self, ask: Ask) {
        self.asks.push(ask);
    }

    fn take(&mut self) -> Vec<Arc<Commit>> {
        let mut taken = Vec::new();
        let (mut events, mut bytes) = (0_usize, 0_usize);
        while taken.len() < BATCH_COMMITS && events < BATCH_EVENTS && bytes < BATCH_BYTES {
            let Some(commit) = self.commits.pop_front() else { break };
            events = events.saturating_add(commit.events.len());
            bytes = bytes.saturating_add(measure(&commit));
            taken.push(commit);
        }
        self.events = self.events.saturating_sub(events);
        self.bytes = self.bytes.saturating_sub(bytes);
        taken
    }

    fn is_idle(&self) -> bool {
        self.commits.is_empty() && self.passed_over.is_none() && self.asks.is_empty()
    }

    /// Tells whether the thread has nothing to do, now and when a revision is delivered.
    pub(super) fn is_quiet(&self) -> bool {
        self.is_idle() && !self.is_busy
    }
}

impl Shared {
    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a revision, before which all are delivered, as delivered where there is no watcher;
    /// called with the inbox locked.
    pub(super) fn pass_unwatched(&self, revision: i64) -> bool {
        let index = self.index_read();
        if !index.is_empty() {
            return false;
        }
        self.fanned.fetch_max(revision, Ordering::SeqCst);
        self.delivered.fetch_max(revision, Ordering::SeqCst);
        true
    }
}

/// Runs until the hub is closed and nothing is left to give out.
pub(super) fn run(shared: &Shared) {
    let mut asks: Vec<Ask> = Vec::new();
    loop {
        let mut inbox = shared.inbox();
        inbox.is_busy = !asks.is_empty();
        while inbox.is_idle() && !inbox.is_closed {
            inbox = shared.arrived.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
        if inbox.is_idle() {
            return;
        }
        inbox.is_busy = true;
        asks.append(&mut inbox.asks);
        let passed_over = inbox.passed_over.take();
        let commits = inbox.take();
        drop(inbox);
        if let Some((first, last)) = passed_over {
            pass_over(shared, first, last);
        }
        give_out(shared, commits);
        let delivered = shared.delivered.load(Ordering::SeqCst);
        asks = asks.into_iter().filter_map(|ask| ask.tell(delivered)).collect();
    }
}

fn pass_over(shared: &Shared, first: i64, last: i64) {
    {
        let _index = shared.index_read();
        shared.fanned.fetch_max(last, Ordering::SeqCst);
    }
    for channel in shared.all_channels() {
        shared.catch_up(channel.pass_over(first, last));
    }
    shared.delivered.fetch_max(last, Ordering::SeqCst);
}

fn give_out(shared: &Shared, mut commits: Vec<Arc<Commit>>) {
    let fanned = shared.fanned.load(Ordering::SeqCst);
    commits.retain(|commit| commit.revision > fanned);
    let Some(last) = commits.last().map(|commit| commit.revision) else { return };
    let hits = {
        let index = shared.index_read();
        shared.fanned.store(last, Ordering::SeqCst);
        let events = commits.iter().enumerate().flat_map(|(number, commit)| {
            commit.events.iter().enumerate().map(move |(at, event)| ((number, at), event))
        });
        index.find_all(events)
    };
    let mut known: Vec<Known> = commits.into_iter().map(Known::new).collect();
    let mut wakers = Vec::new();
    for (group, events) in hits {
        give_group(shared, &group, &mut known, &events, last, &mut wakers);
        // A waker may run what it wakes, and that may come back here: no lock is held.
        wakers.drain(..).for_each(pending::wake);
    }
    shared.delivered.store(last, Ordering::SeqCst);
}

fn give_group(
    shared: &Shared,
    group: &Group,
    known: &mut [Known],
    events: &[(usize, usize)],
    last: i64,
    wakers: &mut Vec<Waker>,
) {
    let history = group.wants_previous().then_some(shared.history.as_ref());
    let mut failure = None;
    let batch = Batch::collect(known, events, history).or_else(|error| {
        failure = Some(error);
        Batch::collect(known, events, None)
    });
    let Ok(batch) = batch else { return };
    let batch = Arc::new(batch);
    let mut failed: Vec<Arc<Watcher>> = Vec::new();
    for watcher in group.lock().values() {
        if failure.is_some() && watcher.prev_kv {
            failed.push(Arc::clone(watcher));
        } else {
            wakers.extend(watcher.channel.offer(watcher, &batch, last));
        }
    }
    if let Some(error) = failure {
        failed.iter().for_each(|watcher| watcher.channel.end(error.clone()));
    }
}
