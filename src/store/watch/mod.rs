//! Watchers: each gets every event of its keys once, in order, and all of a revision together.
//!
//! 1. Per watcher revisions ascend strictly; within one, sub revisions do. Nothing is lost or
//!    repeated, also when a consumer is slow: its watcher falls back to reading history.
//! 2. The created response precedes every event of its watcher.
//! 3. A progress response with revision N comes after every event up to N on its stream.
//! 4. Memory is bounded per stream; a slow or stuck consumer costs others nothing.
//! 5. A watcher that a compaction overtakes is cancelled, with the revision.
//!
//! A commit goes to one thread of the hub, which finds the watchers that want it and queues its
//! events, shared, in their streams' channels (`fan_out`, `index`, `channel`). A second thread
//! reads history for watchers that are behind (`catch_up`). Neither waits for a consumer.
//!
//! Source: etcd `mvcc/watchable_store.go`, `watcher_group.go`, `v3rpc/watch.go`, 3.6.16, 3.7.3.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::error::Error;
use super::kv::{Commit, Event, Kv};
use super::mvcc::History;
use super::setters::setters;
use super::threads;

mod batch;
mod catch_up;
mod channel;
mod fan_out;
mod hub;
mod index;
mod stream;

#[doc(hidden)]
pub use stream::Stream;

use fan_out::Ask;
use hub::Shared;

/// The id in responses that are not about one watcher.
pub const NO_WATCHER: i64 = -1;

const DUPLICATE_ID: &str = "mvcc: duplicate watch ID provided on the WatchStream";
const EMPTY_RANGE: &str = "mvcc: watcher range is empty";
const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";

/// What to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Create {
    /// 0: the next id, from 0 on, that is free and was not given out before.
    pub watch_id: i64,
    /// First key; empty stands for a zero byte, the smallest key.
    pub key: Vec<u8>,
    /// End of the range; see [`crate::etcd::request::span`].
    pub range_end: Vec<u8>,
    /// First revision; 0 for what comes next.
    pub start_revision: i64,
    /// Whether events carry the record before.
    pub prev_kv: bool,
    /// Whether puts are left out.
    pub no_put: bool,
    /// Whether deletes are left out.
    pub no_delete: bool,
    /// Whether quiet watchers are told the revision now and then.
    pub progress_notify: bool,
    /// Whether large responses are cut.
    pub fragment: bool,
}

setters! { Create:
    watch_id: i64,
    key: Vec<u8>,
    range_end: Vec<u8>,
    start_revision: i64,
    prev_kv: bool,
    no_put: bool,
    no_delete: bool,
    progress_notify: bool,
    fragment: bool,
}

/// What a stream delivers; field for field etcd's WatchResponse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Response {
    /// The watcher; -1 for all of the stream (progress), or none (a create that failed).
    pub watch_id: i64,
    /// The store's revision when the response was made; 0 in a cancel by compaction.
    pub revision: i64,
    /// A watcher was created.
    pub created: bool,
    /// A watcher ended.
    pub canceled: bool,
    /// Why, where etcd says so.
    pub cancel_reason: String,
    /// Revision of the compaction that ended it, else 0.
    pub compact_revision: i64,
    /// More of the same revision follows.
    pub fragment: bool,
    /// Events, with the record before where it was asked for.
    pub events: Vec<(Event, Option<Kv>)>,
}

/// How watchers are served.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a response above which it is cut, where the watcher allows it.
    pub response_bytes: usize,
    /// Events that wait in a stream before its watchers fall back to history; one step of those
    /// that are given out or read at once can come on top. As many bytes as 16 of the largest
    /// responses are a limit too.
    pub waiting_max: usize,
}

/// Figures of a hub.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Streams that are open.
    pub streams: usize,
    /// Watchers.
    pub watchers: usize,
    /// Watchers that read history.
    pub slow_watchers: usize,
    /// Events that wait for consumers.
    pub pending_events: usize,
    /// Events that consumers took, since the start.
    pub sent_events: usize,
    /// Revision up to which every watcher that is not slow was given everything.
    pub revision: i64,
}

/// All watchers of a store. Dropped, it closes.
#[doc(hidden)]
#[derive(Debug)]
pub struct Hub {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Hub {
    /// Makes a hub over a store's history; it is to be told all that comes after the history's
    /// revision at this time.
    #[must_use]
    pub fn new(history: Arc<dyn History>, limits: Limits) -> Self {
        let shared = Arc::new(Shared::new(history, limits));
        let mut threads = Vec::new();
        let runs: [fn(&Shared); 2] = [fan_out::run, catch_up::run];
        for (name, run) in ["watch-fan-out", "watch-catch-up"].into_iter().zip(runs) {
            let watched = Watched(Arc::clone(&shared));
            match threads::spawn(name, move || run(&watched.0)) {
                Ok(handle) => threads.push(handle),
                Err(error) => {
                    let error = Error::Storage(format!("cannot start thread {name}: {error}"));
                    shared.end_all(&error);
                }
            }
        }
        Self { shared, threads: Mutex::new(threads) }
    }

    /// Takes what was applied, in order of revisions. Returns soon: no delivery is waited for.
    pub fn publish(&self, commits: Vec<Arc<Commit>>) {
        let Some(last) = commits.last().map(|commit| commit.revision) else { return };
        let mut inbox = self.shared.inbox();
        // Where nobody watches, the thread is not woken.
        if inbox.is_closed || (inbox.is_quiet() && self.shared.pass_unwatched(last)) {
            return;
        }
        inbox.put(commits);
        drop(inbox);
        self.shared.arrived.notify_one();
    }

    /// Opens a stream.
    #[must_use]
    pub fn stream(&self) -> Stream {
        Stream::new(Arc::clone(&self.shared))
    }

    /// Makes progress responses for quiet watchers that asked for them; called at an interval.
    pub fn notify_progress(&self) {
        let at = self.shared.history.revision();
        let channels = self.shared.all_channels();
        self.shared.ask(channels.into_iter().map(|channel| Ask { channel, at, is_quiet: true }));
    }

    /// Returns how much there is of what.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let tally = &self.shared.tally;
        Counts {
            streams: tally.streams.load(Ordering::Relaxed),
            watchers: tally.watchers.load(Ordering::Relaxed),
            slow_watchers: tally.behind.load(Ordering::Relaxed),
            pending_events: tally.waiting.load(Ordering::Relaxed),
            sent_events: tally.sent.load(Ordering::Relaxed),
            revision: self.shared.delivered.load(Ordering::SeqCst),
        }
    }

    /// Tells why watchers get nothing any more, where a thread of the hub failed.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.shared.end().filter(|error| *error != Error::Stopped)
    }

    /// Ends all streams: each delivers what it has and then [`Error::Stopped`]. What was published
    /// is given to synced watchers first. Waits for the hub's threads.
    pub fn close(&self) {
        self.shared.stop();
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let handles = std::mem::take(&mut *threads);
        drop(threads);
        for handle in handles {
            // A waker that drops the hub runs on one of them.
            if handle.thread().id() != thread::current().id() {
                drop(handle.join());
            }
        }
        self.shared.end_all(&Error::Stopped);
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.close();
    }
}

/// Sees to it that no stream waits for a thread that panicked.
struct Watched(Arc<Shared>);

impl Drop for Watched {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.end_all(&Error::Storage("a thread that serves watchers failed".to_owned()));
        }
    }
}

#[cfg(test)]
mod tests;
