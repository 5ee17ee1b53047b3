//! The newest commits, in memory: all that the backend's view lacks, and some before that for
//! watchers.
//!
//! Main revisions in it are without a gap, so that a commit is found by counting.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::etcd::revision::Revision;
use crate::store::kv::{Commit, Event, Kv};

/// Bytes that an event takes besides its record, about.
const EVENT_BYTES: usize = 200;

/// The commits.
#[derive(Debug)]
pub(super) struct Tail {
    commits: VecDeque<Arc<Commit>>,
    /// Main revision of the first commit, or of the next one where there is none.
    start: i64,
    last: Revision,
    bytes: usize,
}

impl Tail {
    /// Makes an empty one that begins after a revision.
    pub(super) fn new(revision: i64) -> Self {
        let (start, last) = (revision.saturating_add(1), Revision::new(revision, i64::MAX));
        Self { commits: VecDeque::new(), start, last, bytes: 0 }
    }

    /// Returns the first main revision that is here; all later ones are.
    pub(super) fn start(&self) -> i64 {
        self.start
    }

    /// Adds the next commit.
    pub(super) fn push(&mut self, commit: Arc<Commit>) {
        self.bytes = self.bytes.saturating_add(bytes_of(&commit));
        self.last = commit.events.last().map_or(self.last, |event| event.revision);
        self.commits.push_back(commit);
    }

    /// Returns the revision of the last change of all, or one that is not below it.
    pub(super) fn last(&self) -> Revision {
        self.last
    }

    /// Finds a record or tombstone.
    pub(super) fn get(&self, revision: Revision) -> Option<&Kv> {
        let at = usize::try_from(revision.main.checked_sub(self.start)?).ok()?;
        let sub = usize::try_from(revision.sub).ok()?;
        self.commits.get(at)?.events.get(sub).map(|event: &Event| &event.kv)
    }

    /// Returns the commits from a main revision on.
    pub(super) fn since(&self, main: i64) -> impl Iterator<Item = &Arc<Commit>> {
        let skipped = usize::try_from(main.saturating_sub(self.start)).unwrap_or(0);
        self.commits.range(skipped.min(self.commits.len())..)
    }

    /// Forgets commits up to a main revision, the oldest first, until not more than `keep` bytes
    /// are left, or `max` are gone; gives them back, as dropping them takes longer than this.
    pub(super) fn trim(&mut self, main: i64, keep: usize, max: usize) -> Vec<Arc<Commit>> {
        let mut gone = Vec::new();
        while self.bytes > keep && self.start <= main && gone.len() < max {
            let Some(commit) = self.commits.pop_front() else { break };
            self.bytes = self.bytes.saturating_sub(bytes_of(&commit));
            self.start = commit.revision.saturating_add(1);
            gone.push(commit);
        }
        gone
    }

    /// Bytes of memory, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Bytes of memory of a commit, about.
pub(super) fn bytes_of(commit: &Commit) -> usize {
    let events = commit.events.iter();
    events.map(|event| event.kv.0.len().saturating_add(EVENT_BYTES)).sum()
}
