//! A stream's own side: requests in, responses out.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::batch::event_bytes;
use super::channel::{Channel, Item, Taken, Watcher};
use super::fan_out::Ask;
use super::hub::Shared;
use super::index::Keys;
use super::{COMPACTED, Create, EMPTY_RANGE, NO_WATCHER, Response};
use crate::etcd::request::{Span, span};
use crate::store::error::Error;
use crate::store::pending;

/// Bytes of a response beside its events; an estimate.
const RESPONSE_BYTES: usize = 32;

/// What came of the first half of a create.
#[derive(Debug)]
pub struct Admitted(Answered);

#[derive(Debug)]
enum Answered {
    /// It is refused, and nobody was told yet.
    No(&'static str),
    /// It is answered, and who waits for the answer is to be woken.
    Yes {
        /// The watcher, and the revision of its created response; `None` where there is none.
        made: Option<(Arc<Watcher>, i64)>,
        /// Whom to wake.
        waker: Option<Waker>,
        /// Revision of the last compaction.
        compacted: i64,
    },
}

/// One stream of watchers: what a client's connection has. Dropped, its watchers end.
#[derive(Debug)]
pub struct Stream {
    shared: Arc<Shared>,
    channel: Arc<Channel>,
    /// What is left of a response that was cut.
    rest: Mutex<VecDeque<Response>>,
}

impl Stream {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let channel = shared.open_channel();
        Self { shared, channel, rest: Mutex::default() }
    }

    /// Adds a watcher; what comes of it is told by [`Stream::next`].
    ///
    /// It begins with the revision after that of its created response, or where it says. Refused
    /// are: a negative start, a range without keys, an id that is taken, and the id -1, which in
    /// responses means none.
    pub fn create(&self, create: Create) {
        let history = &self.shared.history;
        let (now, compacted) = (history.revision(), history.compact_revision());
        self.begin(self.admit(&create, now, compacted));
    }

    /// The first half of [`Stream::create`], at a revision and that of the last compaction: history
    /// is not looked at, and nobody is woken, so that it can be done under the lock of the state.
    /// [`Stream::begin`] is the rest, without the lock.
    #[must_use]
    pub fn admit(&self, create: &Create, now: i64, compacted: i64) -> Admitted {
        if create.start_revision < 0 {
            return Admitted(Answered::No(COMPACTED));
        }
        let Some(keys) = keys_of(create) else {
            return Admitted(Answered::No(EMPTY_RANGE));
        };
        let shared = &self.shared;
        let (made, waker) = self.channel.admit(create.watch_id, now, |id| Watcher {
            uid: shared.next_uid(),
            id,
            keys,
            start_revision: create.start_revision,
            prev_kv: create.prev_kv,
            no_put: create.no_put,
            no_delete: create.no_delete,
            progress_notify: create.progress_notify,
            fragment: create.fragment,
            channel: Arc::clone(&self.channel),
        });
        Admitted(Answered::Yes { made, waker, compacted })
    }

    /// Lets a watcher begin that was admitted.
    pub fn begin(&self, admitted: Admitted) {
        let (made, waker, compacted) = match admitted.0 {
            Answered::No(reason) => return self.refuse(reason.to_owned()),
            Answered::Yes { made, waker, compacted } => (made, waker, compacted),
        };
        if let Some(waker) = waker {
            pending::wake(waker);
        }
        let shared = &self.shared;
        let Some((watcher, revision)) = made else { return };
        let next = match watcher.start_revision {
            0 => revision.saturating_add(1),
            start if start < compacted => {
                self.channel.overtake(&watcher, compacted);
                return;
            }
            start => start,
        };
        // It is in the index before its place is decided, so that what is not matched for it any
        // more is seen to have begun.
        shared.index_write().insert(&watcher);
        if self.channel.settle(&watcher, next, &shared.fanned) {
            shared.catch_up([watcher]);
        }
    }

    /// Answers a create that is refused, with the reason that the client is told.
    pub fn refuse(&self, reason: String) {
        let response = Response {
            watch_id: NO_WATCHER,
            created: true,
            canceled: true,
            cancel_reason: reason,
            ..Response::default()
        };
        self.channel.tell(self.shared.history.revision(), response);
    }

    /// Ends a watcher: what waits of it is delivered, then that it is canceled. Of an unknown id
    /// nothing is said.
    pub fn cancel(&self, watch_id: i64) {
        let now = self.shared.history.revision();
        if let Some(watcher) = self.channel.cancel(watch_id, now) {
            self.shared.index_write().remove(&watcher);
        }
    }

    /// Asks for one response with the revision up to which everything was delivered; none comes
    /// while a watcher is behind or begins in the future, or there is none. Requests that wait
    /// for their answer together are answered once.
    pub fn request_progress(&self) {
        let at = self.shared.history.revision();
        let ask = Ask { channel: Arc::clone(&self.channel), at, is_quiet: false };
        if let Some(ask) = ask.tell(self.shared.delivered.load(Ordering::SeqCst)) {
            self.shared.ask([ask]);
        }
    }

    /// Returns the number of answers and pieces of events that wait. Events are bounded by the
    /// hub, answers are not: a server takes no requests from a client that does not read.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.channel.backlog().saturating_add(self.rest().len())
    }

    /// Waits for the next response, but not longer than `limit`; `None` when the time is over.
    ///
    /// # Errors
    /// The store is closed, or cannot be read.
    pub fn next(&self, limit: Duration) -> Result<Option<Response>, Error> {
        let end = Instant::now().checked_add(limit);
        loop {
            if let Some(response) = self.take(&mut None)? {
                return Ok(Some(response));
            }
            let left = match end {
                Some(end) => end.saturating_duration_since(Instant::now()),
                None => limit,
            };
            if left.is_zero() {
                return Ok(None);
            }
            self.channel.wait(left);
        }
    }

    /// Polls for the next response, for async callers. It reads no disk.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Result<Response, Error>> {
        // Cloned, and the one before dropped, outside of all locks: both are the caller's code.
        match self.take(&mut Some(context.waker().clone())) {
            Ok(Some(response)) => Poll::Ready(Ok(response)),
            Ok(None) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn rest(&self) -> MutexGuard<'_, VecDeque<Response>> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, waker: &mut Option<Waker>) -> Result<Option<Response>, Error> {
        let mut rest = self.rest();
        if let Some(response) = rest.pop_front() {
            return Ok(Some(response));
        }
        let limit = self.shared.limits.response_bytes;
        let Some(Taken { items, ready }) = self.channel.take(limit, waker)? else {
            return Ok(None);
        };
        if !ready.is_empty() {
            self.shared.catch_up(ready);
        }
        rest.extend(respond(items, limit));
        Ok(rest.pop_front())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.shared.forget_channel(&self.channel);
        for watcher in self.channel.abandon() {
            self.shared.index_write().remove(&watcher);
        }
    }
}

impl Shared {
    pub(super) fn ask(&self, asks: impl IntoIterator<Item = Ask>) {
        let mut inbox = self.inbox();
        asks.into_iter().for_each(|ask| inbox.ask(ask));
        drop(inbox);
        self.arrived.notify_one();
    }
}

fn keys_of(create: &Create) -> Option<Keys> {
    let key = match create.key.as_slice() {
        [] => Bytes::from_static(&[0]),
        key => Bytes::copy_from_slice(key),
    };
    match span(&key, &create.range_end) {
        Span::Key(_) => Some(Keys::One(key)),
        Span::From(_) => Some(Keys::Range(key, None)),
        Span::Range(first, end) if first < end => {
            let end = Bytes::copy_from_slice(end);
            Some(Keys::Range(key, Some(end)))
        }
        Span::Range(..) => None,
    }
}

/// Makes responses of what was taken at once: one, or the pieces of one.
fn respond(items: Vec<Item>, bytes_max: usize) -> VecDeque<Response> {
    let mut responses = VecDeque::new();
    let mut bytes = RESPONSE_BYTES;
    for item in items {
        match item {
            Item::Control(response) => responses.push_back(response),
            Item::Progress { watcher, revision } => {
                let watch_id = watcher.map_or(NO_WATCHER, |watcher| watcher.id);
                responses.push_back(Response { watch_id, revision, ..Response::default() });
            }
            Item::Events { watcher, batch, from, header, .. } => {
                if responses.is_empty() {
                    let watch_id = watcher.id;
                    responses.push_back(Response { watch_id, ..Response::default() });
                }
                for (event, previous) in batch.of(&watcher, from) {
                    let previous = previous.as_ref().filter(|_| watcher.prev_kv);
                    let size = event_bytes(event, previous);
                    bytes = bytes.saturating_add(size);
                    let last = responses.back().and_then(|response| response.events.last());
                    let is_within = last.map(|(last, _)| last.revision.main == event.revision.main);
                    // Between revisions it is cut for all, within one where the client can join.
                    if bytes > bytes_max && is_within.is_some_and(|is| !is || watcher.fragment) {
                        if let Some(last) = responses.back_mut() {
                            last.fragment = is_within == Some(true);
                        }
                        let watch_id = watcher.id;
                        responses.push_back(Response { watch_id, ..Response::default() });
                        bytes = RESPONSE_BYTES.saturating_add(size);
                    }
                    if let Some(last) = responses.back_mut() {
                        last.events.push((event.clone(), previous.cloned()));
                    }
                }
                // Pieces of one response have one header, the last one's.
                responses.iter_mut().for_each(|response| response.revision = header);
            }
        }
    }
    responses
}
