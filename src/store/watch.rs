//! Watchers: each gets every event of its keys once, in order, and all of a revision together.
//!
//! 1. Per watcher revisions ascend strictly; within one, sub revisions do. Nothing is lost or
//!    repeated, also when a consumer is slow: its watcher falls back to reading history.
//! 2. The created response precedes every event of its watcher.
//! 3. A progress response with revision N comes after every event up to N on its stream.
//! 4. Memory is bounded per stream; a slow or stuck consumer costs others nothing.
//! 5. A watcher that a compaction overtakes is cancelled, with the revision.
//!
//! Source: etcd `mvcc/watchable_store.go`, `watcher_group.go`, `v3rpc/watch.go`, 3.6.16, 3.7.3.

use std::sync::Arc;

use super::error::Error;
use super::kv::{Commit, Event, Kv};
use super::mvcc::History;

/// What to watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Create {
    /// 0: the lowest free id is taken.
    pub watch_id: i64,
    /// First key; empty means from the first key on.
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

/// What a stream delivers; field for field etcd's WatchResponse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

/// All watchers of a store.
#[derive(Debug)]
pub struct Hub {}

/// One stream of watchers: what a client's connection has. Dropped, its watchers end.
#[derive(Debug)]
pub struct Stream {}

/// How watchers are served.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a response above which it is cut, where the watcher allows it.
    pub response_bytes: usize,
    /// Events that wait in a stream before its watchers fall back to history.
    pub waiting_max: usize,
}

impl Hub {
    /// Makes a hub over a store's history.
    #[must_use]
    pub fn new(history: Arc<dyn History>, limits: Limits) -> Self {
        let _ = (history, limits);
        todo!()
    }

    /// Takes what was applied, in order of revisions. Returns soon: no delivery is waited for.
    pub fn publish(&self, commits: Vec<Arc<Commit>>) {
        let _ = commits;
        todo!()
    }

    /// Opens a stream.
    #[must_use]
    pub fn stream(&self) -> Stream {
        todo!()
    }

    /// Makes progress responses for quiet watchers that asked for them; called at an interval.
    pub fn notify_progress(&self) {
        todo!()
    }

    /// Ends all streams: each delivers what it has and then [`Error::Stopped`].
    pub fn close(&self) {
        todo!()
    }
}

impl Stream {
    /// Adds a watcher; what comes of it is told by [`Stream::next`].
    pub fn create(&self, create: Create) {
        let _ = create;
        todo!()
    }

    /// Adds a watcher that is refused before it begins, with the reason that the client is told.
    pub fn refuse(&self, watch_id: i64, reason: String) {
        let _ = (watch_id, reason);
        todo!()
    }

    /// Ends a watcher.
    pub fn cancel(&self, watch_id: i64) {
        let _ = watch_id;
        todo!()
    }

    /// Asks for one response with the revision up to which everything was delivered; none comes
    /// while a watcher is behind or there is none.
    pub fn request_progress(&self) {
        todo!()
    }

    /// Waits for the next response, but not longer than `limit`; `None` when the time is over.
    ///
    /// # Errors
    /// The store is closed.
    pub fn next(&self, limit: std::time::Duration) -> Result<Option<Response>, Error> {
        let _ = limit;
        todo!()
    }

    /// Polls for the next response, for async callers.
    pub fn poll_next(
        &self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<Response, Error>> {
        let _ = context;
        todo!()
    }
}
