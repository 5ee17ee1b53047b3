//! What happened, in order of revisions: from the view, then from the tail.

use std::ops::ControlFlow;
use std::sync::{Arc, PoisonError, RwLock};

use super::Mvcc;
use super::read::record;
use crate::bolt::db::View;
use crate::etcd::apply::Refusal;
use crate::etcd::revision::{Revision, RevisionKey};
use crate::etcd::schema;
use crate::store::error::Error;
use crate::store::kv::{Commit, Event, Kv};

/// What happened, in order of revisions: what a watcher that begins in the past reads.
pub trait History: Send + Sync {
    /// Current revision: every event up to it can be read.
    fn revision(&self) -> i64;

    /// Revision of the last compaction, -1 for none.
    fn compact_revision(&self) -> i64;

    /// Reads all events of main revisions `from..=to`, but stops after the revision with which
    /// `max` is reached; returns them and the last main revision read, which is not above the
    /// current one.
    ///
    /// # Errors
    /// `from` is below the compact revision ([`Refusal::Compacted`]), or the backend cannot be
    /// read.
    fn events(&self, from: i64, to: i64, max: Portion) -> Result<(Vec<Arc<Commit>>, i64), Error>;

    /// Finds the record that a change replaced: the key's before main revision `revision`; `None`
    /// where there was none or it is compacted.
    ///
    /// # Errors
    /// The backend cannot be read.
    fn previous(&self, key: &[u8], revision: i64) -> Result<Option<Kv>, Error>;
}

/// How much is read at once; either is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Portion {
    /// Number of events.
    pub events: usize,
    /// Bytes of their records.
    pub bytes: usize,
}

impl Portion {
    const NOTHING: Self = Self { events: 0, bytes: 0 };

    fn add(&mut self, events: &[Event]) {
        self.events = self.events.saturating_add(events.len());
        let bytes = events.iter().map(|event| event.kv.0.len());
        self.bytes = bytes.fold(self.bytes, usize::saturating_add);
    }

    fn reaches(self, max: Self) -> bool {
        self.events >= max.events || self.bytes >= max.bytes
    }
}

/// History that is known to be there and has yet to be read.
#[derive(Debug)]
pub struct HistoryPlan {
    view: View,
    from: i64,
    to: i64,
    max: Portion,
    /// The first main revision that is not read from the view.
    tail_start: i64,
    tail: Vec<Arc<Commit>>,
}

impl Mvcc {
    /// Plans to read events as [`History::events`] does.
    ///
    /// # Errors
    /// `from` is below the compact revision.
    pub fn plan_events(&self, from: i64, to: i64, max: Portion) -> Result<HistoryPlan, Error> {
        if from < self.compacting.accepted {
            return Err(Refusal::Compacted.into());
        }
        let (from, to) = (from.max(0), to.min(self.revision));
        let tail_start = self.tail.start();
        let (mut tail, mut count) = (Vec::new(), Portion::NOTHING);
        for commit in self.tail.since(from) {
            if commit.revision > to || count.reaches(max) {
                break;
            }
            count.add(&commit.events);
            tail.push(Arc::clone(commit));
        }
        Ok(HistoryPlan { view: self.view.clone(), from, to, max, tail_start, tail })
    }
}

impl HistoryPlan {
    /// Reads the events; no lock is needed.
    ///
    /// # Errors
    /// The backend cannot be read.
    pub fn fetch(self) -> Result<(Vec<Arc<Commit>>, i64), Error> {
        let Self { view, from, to, max, tail_start, tail } = self;
        let (mut commits, mut count) = (Vec::new(), Portion::NOTHING);
        let last_saved = to.min(tail_start.saturating_sub(1));
        if from <= last_saved {
            let mut open: Vec<Event> = Vec::new();
            let mut fault = None;
            let first = Revision::new(from, 0).encode();
            let read = view.each(schema::KEY, &first, &mut |key, value| {
                let row = match RevisionKey::decode(key) {
                    Ok(row) => row,
                    Err(error) => {
                        fault = Some(error);
                        return ControlFlow::Break(());
                    }
                };
                let main = row.revision.main;
                if open.last().is_some_and(|event| event.revision.main != main) {
                    count.add(&open);
                    commits.push(commit(&mut open));
                }
                if main > last_saved || count.reaches(max) {
                    return ControlFlow::Break(());
                }
                match Event::decode(row, value) {
                    // The mark that a restore leaves is no event.
                    Ok(event) if event.key.is_empty() => {}
                    Ok(event) => open.push(event),
                    Err(error) => fault = Some(error),
                }
                if fault.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            read.map_err(|error| Error::Storage(error.to_string()))?;
            if let Some(error) = fault {
                return Err(Error::Storage(format!("a record of the database: {error}")));
            }
            if !open.is_empty() {
                count.add(&open);
                commits.push(commit(&mut open));
            }
        }
        for commit in tail {
            if count.reaches(max) {
                break;
            }
            count.add(&commit.events);
            commits.push(commit);
        }
        let end = match commits.last() {
            Some(last) if count.reaches(max) => last.revision,
            _ => to,
        };
        Ok((commits, end))
    }
}

fn commit(open: &mut Vec<Event>) -> Arc<Commit> {
    let events: Vec<Event> = std::mem::take(open);
    let revision = events.first().map_or(0, |event| event.revision.main);
    Arc::new(Commit { revision, events: events.into() })
}

impl History for RwLock<Mvcc> {
    fn revision(&self) -> i64 {
        self.read().unwrap_or_else(PoisonError::into_inner).revision()
    }

    fn compact_revision(&self) -> i64 {
        self.read().unwrap_or_else(PoisonError::into_inner).compact_revision()
    }

    fn events(&self, from: i64, to: i64, max: Portion) -> Result<(Vec<Arc<Commit>>, i64), Error> {
        let state = self.read().unwrap_or_else(PoisonError::into_inner);
        let plan = state.plan_events(from, to, max)?;
        drop(state);
        plan.fetch()
    }

    fn previous(&self, key: &[u8], revision: i64) -> Result<Option<Kv>, Error> {
        let state = self.read().unwrap_or_else(PoisonError::into_inner);
        if revision <= state.compacting.accepted {
            return Ok(None);
        }
        let Some(at) = state.index.before(key, Revision::new(revision, 0)) else { return Ok(None) };
        if let Some(kv) = state.tail.get(at.modified) {
            return Ok(Some(kv.clone()));
        }
        let view = state.view.clone();
        drop(state);
        record(&view, at.modified).map(Some)
    }
}
