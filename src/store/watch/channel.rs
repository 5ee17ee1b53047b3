//! What waits for one stream's consumer, and where each of its watchers is.
//!
//! A watcher is in one place at a time: synced (the fan-out queues its events) or behind (only
//! catching up does). It becomes synced, under this lock, when the fan-out has not begun with a
//! revision that the watcher has not: what the fan-out queues afterwards, it queues under this
//! lock too, and finds it synced. So there is no gap, and the watcher's next revision excludes
//! repeats.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use super::batch::{Batch, Size};
use super::index::Keys;
use super::{NO_WATCHER, Response};
use crate::store::error::Error;
use crate::store::kv::Event;
use crate::store::pending;

/// A watcher: what it wants, and whose it is. Where it is, its channel knows.
#[derive(Debug)]
pub(super) struct Watcher {
    pub(super) uid: u64,
    pub(super) id: i64,
    pub(super) keys: Keys,
    pub(super) start_revision: i64,
    pub(super) prev_kv: bool,
    pub(super) no_put: bool,
    pub(super) no_delete: bool,
    pub(super) progress_notify: bool,
    pub(super) fragment: bool,
    pub(super) channel: Arc<Channel>,
}

impl Watcher {
    pub(super) fn accepts(&self, event: &Event) -> bool {
        if event.is_delete { !self.no_delete } else { !self.no_put }
    }
}

/// Where a watcher is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Not begun.
    Starting,
    /// The fan-out gives it what comes, from this revision on.
    Synced(i64),
    /// It has to read history from this revision on.
    Behind(i64),
    /// A compaction ended it; its id is taken until the client cancels it.
    Ended,
}

#[derive(Debug)]
struct Slot {
    watcher: Arc<Watcher>,
    place: Place,
    /// Whether something was queued since the last interval of progress.
    is_busy: bool,
    /// Items that wait.
    waiting: usize,
}

/// What waits for the consumer.
#[derive(Debug)]
pub(super) enum Item {
    /// A response as it is.
    Control(Response),
    /// Progress of one watcher, or of all.
    Progress { watcher: Option<Arc<Watcher>>, revision: i64 },
    /// Events of a watcher from a revision on.
    Events { watcher: Arc<Watcher>, batch: Arc<Batch>, from: i64, header: i64, size: Size },
}

/// Figures of all channels together.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) streams: AtomicUsize,
    pub(super) watchers: AtomicUsize,
    pub(super) behind: AtomicUsize,
    pub(super) waiting: AtomicUsize,
    pub(super) sent: AtomicUsize,
}

pub(super) fn add(figure: &AtomicUsize, by: usize) {
    figure.fetch_add(by, Ordering::Relaxed);
}

pub(super) fn subtract(figure: &AtomicUsize, by: usize) {
    figure.fetch_sub(by, Ordering::Relaxed);
}

/// When a channel is full.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) max: Size,
}

impl Room {
    fn is_full(self, waiting: Size) -> bool {
        waiting.events >= self.max.events || waiting.bytes >= self.max.bytes
    }

    fn is_airy(self, waiting: Size) -> bool {
        let half = Size { events: self.max.events / 2, bytes: self.max.bytes / 2 };
        waiting.events <= half.events && waiting.bytes <= half.bytes
    }
}

/// The part of a stream that the hub's threads see.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) uid: u64,
    room: Room,
    tally: Arc<Tally>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    slots: BTreeMap<i64, Slot>,
    next_id: i64,
    queue: VecDeque<Item>,
    waiting: Size,
    /// Largest revision in a header that is queued or gone.
    header: i64,
    /// Watchers behind that wait for room.
    parked: Vec<Arc<Watcher>>,
    waker: Option<Waker>,
    end: Option<Error>,
    is_dropped: bool,
}

/// What became of a try to tell progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// It was told, or there is nothing to tell.
    Done,
    /// To be told when this revision is delivered.
    At(i64),
}

impl Channel {
    pub(super) fn new(uid: u64, room: Room, tally: Arc<Tally>) -> Self {
        add(&tally.streams, 1);
        Self { uid, room, tally, state: Mutex::default(), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the consumer, after the lock is given back.
    /// Lets a thread that waits go on; returns the task that is to be woken.
    fn rouse(&self, mut state: MutexGuard<'_, State>) -> Option<Waker> {
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_one();
        waker
    }

    fn wake(&self, state: MutexGuard<'_, State>) {
        if let Some(waker) = self.rouse(state) {
            pending::wake(waker);
        }
    }

    /// Queues a response with the store's revision as its header.
    pub(super) fn tell(&self, revision: i64, mut response: Response) {
        let mut state = self.lock();
        if state.is_over() {
            return;
        }
        response.revision = state.raise_header(revision);
        state.queue.push_back(Item::Control(response));
        self.wake(state);
    }

    /// Gives a watcher an id and queues the created response; the watcher begins with
    /// [`Channel::settle`]. Returns it and the revision of the response, and whom to wake.
    pub(super) fn admit(
        &self,
        wanted_id: i64,
        revision: i64,
        make: impl FnOnce(i64) -> Watcher,
    ) -> (Option<(Arc<Watcher>, i64)>, Option<Waker>) {
        let mut state = self.lock();
        if state.is_over() {
            return (None, None);
        }
        let revision = state.raise_header(revision);
        let mut response = Response { revision, created: true, ..Response::default() };
        let Some(id) = state.free_id(wanted_id) else {
            response.watch_id = NO_WATCHER;
            response.canceled = true;
            super::DUPLICATE_ID.clone_into(&mut response.cancel_reason);
            state.queue.push_back(Item::Control(response));
            return (None, self.rouse(state));
        };
        response.watch_id = id;
        let watcher = Arc::new(make(id));
        let place = Place::Starting;
        let slot = Slot { watcher: Arc::clone(&watcher), place, is_busy: false, waiting: 0 };
        state.slots.insert(id, slot);
        state.queue.push_back(Item::Control(response));
        add(&self.tally.watchers, 1);
        (Some((watcher, revision)), self.rouse(state))
    }

    /// Places a watcher whose next revision is known. Returns whether it is behind.
    pub(super) fn settle(&self, watcher: &Watcher, next: i64, fanned: &AtomicI64) -> bool {
        let mut state = self.lock();
        let Some(slot) = state.slot(watcher) else { return false };
        let is_behind = next <= fanned.load(Ordering::SeqCst);
        slot.move_to(
            if is_behind { Place::Behind(next) } else { Place::Synced(next) },
            &self.tally,
        );
        is_behind
    }

    /// Queues what the fan-out found for a synced watcher; full, the watcher falls behind.
    /// Returns whom to wake.
    pub(super) fn offer(
        &self,
        watcher: &Arc<Watcher>,
        batch: &Arc<Batch>,
        header: i64,
    ) -> Option<Waker> {
        let mut state = self.lock();
        let is_full = self.room.is_full(state.waiting);
        let slot = state.slot(watcher)?;
        let Place::Synced(next) = slot.place else { return None };
        let size = batch.size(watcher, next);
        if size.events == 0 {
            return None;
        }
        if is_full {
            let from = next.max(batch.first_revision());
            slot.move_to(Place::Behind(from), &self.tally);
            state.parked.push(Arc::clone(watcher));
            return None;
        }
        state.queue_events(watcher, batch, next, header, size);
        add(&self.tally.waiting, size.events);
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_one();
        waker
    }

    /// Puts all synced watchers behind that want more than the fan-out will give: it passes over
    /// these revisions. Returns the watchers.
    pub(super) fn pass_over(&self, first: i64, last: i64) -> Vec<Arc<Watcher>> {
        let mut behind = Vec::new();
        for slot in self.lock().slots.values_mut() {
            if let Place::Synced(next) = slot.place
                && next <= last
            {
                slot.move_to(Place::Behind(next.max(first)), &self.tally);
                behind.push(Arc::clone(&slot.watcher));
            }
        }
        behind
    }

    /// Returns the revision that a watcher behind reads next; without room it is parked.
    pub(super) fn cursor(&self, watcher: &Arc<Watcher>) -> Option<i64> {
        let mut state = self.lock();
        if state.is_over() {
            return None;
        }
        let is_full = self.room.is_full(state.waiting);
        let Place::Behind(next) = state.slot(watcher)?.place else { return None };
        if is_full {
            state.parked.push(Arc::clone(watcher));
            return None;
        }
        Some(next)
    }

    /// Queues what a watcher behind read from history, up to a revision. Returns whether it is
    /// still behind.
    pub(super) fn advance(
        &self,
        watcher: &Arc<Watcher>,
        (batch, last): (&Arc<Batch>, i64),
        header: i64,
        fanned: &AtomicI64,
    ) -> bool {
        let mut state = self.lock();
        if state.is_over() {
            return false;
        }
        let Some(slot) = state.slot(watcher) else { return false };
        let Place::Behind(from) = slot.place else { return false };
        let next = last.saturating_add(1);
        let is_behind = next <= fanned.load(Ordering::SeqCst);
        slot.move_to(
            if is_behind { Place::Behind(next) } else { Place::Synced(next) },
            &self.tally,
        );
        let size = batch.size(watcher, from);
        if size.events > 0 {
            state.queue_events(watcher, batch, from, header, size);
            add(&self.tally.waiting, size.events);
            self.wake(state);
        }
        is_behind
    }

    /// Ends a watcher that a compaction overtook. Returns whether it was there.
    pub(super) fn overtake(&self, watcher: &Watcher, compact_revision: i64) -> bool {
        let mut state = self.lock();
        let Some(slot) = state.slot(watcher) else { return false };
        slot.move_to(Place::Ended, &self.tally);
        let watch_id = watcher.id;
        let response =
            Response { watch_id, canceled: true, compact_revision, ..Response::default() };
        state.queue.push_back(Item::Control(response));
        self.wake(state);
        true
    }

    /// Ends a watcher for the client. Returns it where it was not over.
    pub(super) fn cancel(&self, watch_id: i64, revision: i64) -> Option<Arc<Watcher>> {
        let mut state = self.lock();
        let mut slot = state.slots.remove(&watch_id)?;
        let was_live = slot.place != Place::Ended;
        slot.move_to(Place::Ended, &self.tally);
        subtract(&self.tally.watchers, 1);
        state.parked.retain(|parked| parked.uid != slot.watcher.uid);
        if !state.is_over() {
            let revision = state.raise_header(revision);
            let response = Response { watch_id, revision, canceled: true, ..Response::default() };
            state.queue.push_back(Item::Control(response));
        }
        self.wake(state);
        was_live.then_some(slot.watcher)
    }

    /// Tells the progress of all watchers, if all are synced and everything up to `delivered` is
    /// queued.
    pub(super) fn tell_progress(&self, delivered: i64) -> Told {
        let mut state = self.lock();
        let mut any = false;
        for slot in state.slots.values() {
            match slot.place {
                Place::Ended => {}
                Place::Synced(_) if slot.watcher.start_revision <= delivered => any = true,
                _ => return Told::Done,
            }
        }
        if !any || state.is_over() {
            return Told::Done;
        }
        if delivered < state.header {
            return Told::At(state.header);
        }
        let revision = state.raise_header(delivered);
        if let Some(Item::Progress { watcher: None, revision: told }) = state.queue.back_mut() {
            *told = revision;
        } else {
            state.queue.push_back(Item::Progress { watcher: None, revision });
        }
        self.wake(state);
        Told::Done
    }

    /// Tells the progress of each watcher that asked for it and was told nothing in the interval
    /// that ends now.
    pub(super) fn tell_quiet(&self, delivered: i64) -> Told {
        let mut guard = self.lock();
        let state = &mut *guard;
        if state.is_over() {
            return Told::Done;
        }
        let wants = |slot: &Slot| {
            slot.watcher.progress_notify
                && !slot.is_busy
                && slot.waiting == 0
                && slot.watcher.start_revision <= delivered
                && matches!(slot.place, Place::Synced(_))
        };
        let quiet = state.slots.values().filter(|slot| wants(slot)).count();
        if quiet > 0 && delivered < state.header {
            return Told::At(state.header);
        }
        for slot in state.slots.values_mut() {
            if wants(slot) {
                slot.waiting = 1;
                let watcher = Some(Arc::clone(&slot.watcher));
                state.queue.push_back(Item::Progress { watcher, revision: delivered });
            }
            slot.is_busy = false;
        }
        if quiet > 0 {
            state.raise_header(delivered);
            self.wake(guard);
        }
        Told::Done
    }

    /// Ends the stream after what waits.
    pub(super) fn end(&self, error: Error) {
        let mut state = self.lock();
        state.end.get_or_insert(error);
        self.wake(state);
    }

    /// Drops everything. Returns the watchers that were not over.
    pub(super) fn abandon(&self) -> Vec<Arc<Watcher>> {
        let mut state = self.lock();
        state.is_dropped = true;
        let slots = std::mem::take(&mut state.slots);
        let queue = std::mem::take(&mut state.queue);
        subtract(&self.tally.waiting, state.waiting.events);
        state.waiting = Size::default();
        state.parked.clear();
        let waker = state.waker.take();
        drop(state);
        drop((queue, waker));
        subtract(&self.tally.streams, 1);
        subtract(&self.tally.watchers, slots.len());
        let mut live = Vec::new();
        for mut slot in slots.into_values() {
            if slot.place != Place::Ended {
                slot.move_to(Place::Ended, &self.tally);
                live.push(slot.watcher);
            }
        }
        live
    }

    /// Returns the number of items that wait.
    pub(super) fn backlog(&self) -> usize {
        self.lock().queue.len()
    }

    /// Takes the next item, and those after it that can go with it; `None` when nothing waits.
    /// Returns also the watchers for which there is room again. Where nothing waits, the waker is
    /// exchanged for the one before.
    ///
    /// # Errors
    /// The stream is over.
    pub(super) fn take(
        &self,
        bytes_max: usize,
        waker: &mut Option<Waker>,
    ) -> Result<Option<Taken>, Error> {
        let mut state = self.lock();
        let Some(first) = state.queue.pop_front() else {
            if let Some(error) = &state.end {
                return Err(error.clone());
            }
            std::mem::swap(&mut state.waker, waker);
            return Ok(None);
        };
        let mut items = vec![first];
        if let Some(Item::Events { watcher, size, .. }) = items.first() {
            let uid = watcher.uid;
            let mut bytes = size.bytes;
            while let Some(Item::Events { watcher, size, .. }) = state.queue.front() {
                bytes = bytes.saturating_add(size.bytes);
                if watcher.uid != uid || bytes > bytes_max {
                    break;
                }
                items.extend(state.queue.pop_front());
            }
        }
        for item in &items {
            state.forget(item, &self.tally);
        }
        let mut ready = Vec::new();
        if !state.parked.is_empty() && self.room.is_airy(state.waiting) {
            ready = std::mem::take(&mut state.parked);
        }
        Ok(Some(Taken { items, ready }))
    }

    /// Waits until something may have come, or a time is over.
    pub(super) fn wait(&self, limit: std::time::Duration) {
        let state = self.lock();
        let is_empty = |state: &mut State| state.queue.is_empty() && state.end.is_none();
        drop(self.changed.wait_timeout_while(state, limit, is_empty));
    }
}

/// What the consumer takes at once.
#[derive(Debug)]
pub(super) struct Taken {
    /// One item, or events of one watcher.
    pub(super) items: Vec<Item>,
    /// Watchers for which there is room again.
    pub(super) ready: Vec<Arc<Watcher>>,
}

impl State {
    fn is_over(&self) -> bool {
        self.is_dropped || self.end.is_some()
    }

    fn slot(&mut self, watcher: &Watcher) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(&watcher.id)?;
        (slot.watcher.uid == watcher.uid && slot.place != Place::Ended).then_some(slot)
    }

    /// A header of a response is not below those before it.
    fn raise_header(&mut self, revision: i64) -> i64 {
        self.header = self.header.max(revision);
        self.header
    }

    fn free_id(&mut self, wanted: i64) -> Option<i64> {
        if wanted == NO_WATCHER || self.slots.contains_key(&wanted) && wanted != 0 {
            return None;
        }
        if wanted != 0 {
            return Some(wanted);
        }
        while self.slots.contains_key(&self.next_id) {
            self.next_id = self.next_id.checked_add(1)?;
        }
        let id = self.next_id;
        self.next_id = id.saturating_add(1);
        Some(id)
    }

    fn queue_events(
        &mut self,
        watcher: &Arc<Watcher>,
        batch: &Arc<Batch>,
        from: i64,
        header: i64,
        size: Size,
    ) {
        let header = self.raise_header(header);
        self.waiting = self.waiting.plus(size);
        if let Some(slot) = self.slot(watcher) {
            slot.is_busy = true;
            slot.waiting = slot.waiting.saturating_add(1);
        }
        let (watcher, batch) = (Arc::clone(watcher), Arc::clone(batch));
        self.queue.push_back(Item::Events { watcher, batch, from, header, size });
    }

    fn forget(&mut self, item: &Item, tally: &Tally) {
        let watcher = match item {
            Item::Events { watcher, size, .. } => {
                self.waiting = self.waiting.minus(*size);
                subtract(&tally.waiting, size.events);
                add(&tally.sent, size.events);
                watcher
            }
            Item::Progress { watcher: Some(watcher), .. } => watcher,
            Item::Progress { watcher: None, .. } | Item::Control(_) => return,
        };
        let watcher = Arc::clone(watcher);
        if let Some(slot) = self.slot(&watcher) {
            slot.waiting = slot.waiting.saturating_sub(1);
        }
    }
}

impl Slot {
    fn move_to(&mut self, place: Place, tally: &Tally) {
        let was_behind = matches!(self.place, Place::Behind(_));
        let is_behind = matches!(place, Place::Behind(_));
        match (was_behind, is_behind) {
            (false, true) => add(&tally.behind, 1),
            (true, false) => subtract(&tally.behind, 1),
            _ => {}
        }
        self.place = place;
    }
}
