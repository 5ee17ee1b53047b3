//! Events that go the same way: found once, shared by all watchers of the same keys.

use std::sync::Arc;

use super::channel::Watcher;
use crate::etcd::apply::Refusal;
use crate::store::error::Error;
use crate::store::kv::{Commit, Event, Kv};
use crate::store::mvcc::History;

/// Bytes of an event's own fields in a response, beside its records; an estimate.
const EVENT_BYTES: usize = 12;

/// A commit, with the records before its events as far as they were asked for.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) commit: Arc<Commit>,
    previous: Vec<Option<Option<Kv>>>,
}

impl Known {
    pub(super) fn new(commit: Arc<Commit>) -> Self {
        Self { commit, previous: Vec::new() }
    }

    /// Finds the record before an event, once.
    fn previous(&mut self, at: usize, history: &dyn History) -> Result<Option<Kv>, Error> {
        let Some(event) = self.commit.events.get(at) else { return Ok(None) };
        if self.previous.is_empty() {
            self.previous.resize(self.commit.events.len(), None);
        }
        let Some(place) = self.previous.get_mut(at) else { return Ok(None) };
        if let Some(known) = place {
            return Ok(known.clone());
        }
        let found = if is_creation(event) {
            None
        } else {
            match history.previous(&event.key, event.revision.main) {
                Err(Error::Refused(Refusal::Compacted)) => None,
                found => found?,
            }
        };
        *place = Some(found.clone());
        Ok(found)
    }
}

fn is_creation(event: &Event) -> bool {
    let record = event.kv.record();
    !event.is_delete && record.create_revision == record.mod_revision
}

/// Events in order, all of each revision that some keys have.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) events: Vec<(Event, Option<Kv>)>,
    puts: Size,
    deletes: Size,
}

/// A number of events, and about how long they are in a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) events: usize,
    pub(super) bytes: usize,
}

impl Size {
    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            events: self.events.saturating_add(other.events),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self {
            events: self.events.saturating_sub(other.events),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

/// Returns about how long an event is in a response, in bytes.
pub(super) fn event_bytes(event: &Event, previous: Option<&Kv>) -> usize {
    let previous = previous.map_or(0, |kv| kv.0.len());
    event.kv.0.len().saturating_add(previous).saturating_add(EVENT_BYTES)
}

impl Batch {
    /// Collects events, by number of the commit and number of the event in it.
    ///
    /// # Errors
    /// A record before cannot be read.
    pub(super) fn collect(
        commits: &mut [Known],
        hits: &[(usize, usize)],
        history: Option<&dyn History>,
    ) -> Result<Self, Error> {
        let mut batch = Self { events: Vec::with_capacity(hits.len()), ..Self::default() };
        for &(commit, at) in hits {
            let Some(known) = commits.get_mut(commit) else { continue };
            let Some(event) = known.commit.events.get(at).cloned() else { continue };
            let previous = match history {
                Some(history) => known.previous(at, history)?,
                None => None,
            };
            batch.push(event, previous);
        }
        Ok(batch)
    }

    fn push(&mut self, event: Event, previous: Option<Kv>) {
        let size = Size { events: 1, bytes: event_bytes(&event, previous.as_ref()) };
        let sum = if event.is_delete { &mut self.deletes } else { &mut self.puts };
        *sum = sum.plus(size);
        self.events.push((event, previous));
    }

    pub(super) fn first_revision(&self) -> i64 {
        self.events.first().map_or(0, |(event, _)| event.revision.main)
    }

    /// The events that a watcher takes from a revision on.
    pub(super) fn of<'a>(
        &'a self,
        watcher: &'a Watcher,
        from: i64,
    ) -> impl Iterator<Item = &'a (Event, Option<Kv>)> {
        let start = self.events.partition_point(|(event, _)| event.revision.main < from);
        let events = self.events.iter().skip(start);
        events.filter(|(event, _)| watcher.accepts(event))
    }

    /// Their number and length.
    pub(super) fn size(&self, watcher: &Watcher, from: i64) -> Size {
        if from <= self.first_revision() {
            let puts = if watcher.no_put { Size::default() } else { self.puts };
            let deletes = if watcher.no_delete { Size::default() } else { self.deletes };
            return puts.plus(deletes);
        }
        let sizes = self.of(watcher, from);
        sizes.fold(Size::default(), |sum, (event, previous)| {
            sum.plus(Size { events: 1, bytes: event_bytes(event, previous.as_ref()) })
        })
    }
}
