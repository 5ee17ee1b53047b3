//! What the hub, its streams and its threads share.
//!
//! Locks are taken in this order, and most alone: inbox, index, group, channel. History is read
//! with none of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use super::Limits;
use super::batch::Size;
use super::catch_up::Behind;
use super::channel::{Channel, Room, Tally};
use super::fan_out::Inbox;
use super::index::Index;
use crate::store::error::Error;
use crate::store::mvcc::History;

/// A stream's events may take as many bytes as this many of the largest responses.
const WAITING_RESPONSES: usize = 16;

pub(super) struct Shared {
    pub(super) history: Arc<dyn History>,
    pub(super) limits: Limits,
    pub(super) tally: Arc<Tally>,
    /// Revision that the fan-out has begun with.
    pub(super) fanned: AtomicI64,
    /// Revision up to which all synced watchers were given everything.
    pub(super) delivered: AtomicI64,
    pub(super) inbox: Mutex<Inbox>,
    pub(super) arrived: Condvar,
    pub(super) behind: Mutex<Behind>,
    pub(super) lagging: Condvar,
    index: RwLock<Index>,
    channels: Mutex<Channels>,
    uids: AtomicU64,
}

#[derive(Debug, Default)]
struct Channels {
    open: BTreeMap<u64, Arc<Channel>>,
    end: Option<Error>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("tally", &self.tally).finish_non_exhaustive()
    }
}

impl Shared {
    pub(super) fn new(history: Arc<dyn History>, limits: Limits) -> Self {
        let revision = history.revision();
        Self {
            history,
            limits,
            tally: Arc::default(),
            fanned: AtomicI64::new(revision),
            delivered: AtomicI64::new(revision),
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            behind: Mutex::default(),
            lagging: Condvar::new(),
            index: RwLock::default(),
            channels: Mutex::default(),
            uids: AtomicU64::new(0),
        }
    }

    pub(super) fn next_uid(&self) -> u64 {
        self.uids.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn index_read(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn index_write(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn channels(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all_channels(&self) -> Vec<Arc<Channel>> {
        self.channels().open.values().cloned().collect()
    }

    pub(super) fn open_channel(&self) -> Arc<Channel> {
        let max = Size {
            events: self.limits.waiting_max.max(1),
            bytes: self.limits.response_bytes.saturating_mul(WAITING_RESPONSES).max(1),
        };
        let channel = Channel::new(self.next_uid(), Room { max }, Arc::clone(&self.tally));
        let channel = Arc::new(channel);
        let mut channels = self.channels();
        match &channels.end {
            Some(error) => channel.end(error.clone()),
            None => {
                channels.open.insert(channel.uid, Arc::clone(&channel));
            }
        }
        drop(channels);
        channel
    }

    /// Why all streams were ended, if they were.
    pub(super) fn end(&self) -> Option<Error> {
        self.channels().end.clone()
    }

    pub(super) fn forget_channel(&self, channel: &Channel) {
        self.channels().open.remove(&channel.uid);
    }

    /// Tells both threads to end.
    pub(super) fn stop(&self) {
        self.inbox().is_closed = true;
        self.arrived.notify_all();
        self.behind().is_closed = true;
        self.lagging.notify_all();
    }

    /// Ends all streams, and those that are yet to be opened.
    pub(super) fn end_all(&self, error: &Error) {
        let mut channels = self.channels();
        channels.end.get_or_insert_with(|| error.clone());
        let open: Vec<_> = channels.open.values().cloned().collect();
        drop(channels);
        open.iter().for_each(|channel| channel.end(error.clone()));
    }
}
