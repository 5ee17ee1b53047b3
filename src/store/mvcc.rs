//! The state of the store: what the backend's view holds, and on top what was applied since.
//!
//! Pure memory but for reads from the view. One thread changes it; readers share a lock for as
//! long as they look at the index, and read values from the view after they gave it back.

use std::sync::Arc;

use super::answer;
use super::error::Error;
use super::kv::Commit;
use crate::bolt::db::{Batch, View};
use crate::etcd::apply::{self, Outcome, Rules, Warning};
use crate::etcd::request::Range;
use crate::format::wal::Entry;

/// The state.
#[derive(Debug)]
pub struct Mvcc {}

/// What applying an entry came to, beside the change of the state.
#[derive(Clone, Debug)]
pub struct Applied {
    /// Index of the entry.
    pub index: u64,
    /// Term of the entry.
    pub term: u64,
    /// Id of the request, 0 for none: whoever waits for it is told the answer.
    pub request_id: u64,
    /// etcd's name of what was asked.
    pub kind: &'static str,
    /// Whether it was done.
    pub outcome: Outcome,
    /// What the client is told.
    pub answer: Result<answer::Answer, Error>,
    /// What watchers see.
    pub commit: Option<Commit>,
    /// What leases are to count down.
    pub leases: Vec<LeaseChange>,
    /// A compaction to be worked off, and whether the client waits until it is.
    pub compaction: Option<(i64, bool)>,
    /// Whether rules of auth changed: tokens are looked at again.
    pub auth_changed: bool,
    /// Whether members changed, so that the log's ConfState did.
    pub members_changed: bool,
    /// What a person should know.
    pub warnings: Vec<Warning>,
}

/// What became of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// It was granted, with seconds to live.
    Granted {
        /// The lease.
        id: i64,
        /// Seconds.
        ttl_s: i64,
    },
    /// It ended.
    Revoked(i64),
    /// Its remaining time was recorded, in seconds.
    Checkpointed {
        /// The lease.
        id: i64,
        /// Seconds.
        remaining_ttl_s: i64,
    },
}

/// A read that knows its records and has yet to fetch their values.
#[derive(Debug)]
pub struct RangePlan {}

/// How far a compaction got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactStep {
    /// Rows that were planned to be dropped in this step.
    pub dropped: usize,
    /// Whether it is finished: the next batch says so in `meta/finishedCompactRev`.
    pub is_finished: bool,
}

impl Mvcc {
    /// Reads the state that a backend holds.
    ///
    /// # Errors
    /// It cannot be read, or holds what no etcd writes.
    pub fn load(view: View, rules: Rules) -> Result<Self, Error> {
        let _ = (view, rules);
        todo!()
    }

    /// Applies an entry. One at or below the applied index is passed over: `None`.
    ///
    /// # Errors
    /// As [`apply::apply`]; the state is unchanged.
    pub fn apply(&mut self, entry: &Entry<'_>) -> Result<Option<Applied>, apply::Error> {
        let _ = entry;
        todo!()
    }

    /// Current revision.
    #[must_use]
    pub fn revision(&self) -> i64 {
        todo!()
    }

    /// Revision of the last compaction, -1 for none.
    #[must_use]
    pub fn compact_revision(&self) -> i64 {
        todo!()
    }

    /// Index and term of the last entry applied.
    #[must_use]
    pub fn applied(&self) -> (u64, u64) {
        todo!()
    }

    /// Plans a read at the current or an older revision.
    ///
    /// # Errors
    /// A revision that is compacted or not there yet.
    pub fn plan_range(&self, request: &Range<'_>) -> Result<RangePlan, Error> {
        let _ = request;
        todo!()
    }

    /// Number of row changes, and their bytes, that the backend has not got yet.
    #[must_use]
    pub fn unsaved(&self) -> (usize, usize) {
        todo!()
    }

    /// Gives out everything that the backend has not got, the applied index with it. It stays
    /// readable here until [`Mvcc::saved`]. Only one batch is out at a time.
    pub fn take_batch(&mut self) -> Batch {
        todo!()
    }

    /// The batch is in `view`: forgets it here, but for recent events that watchers may want.
    pub fn saved(&mut self, view: View) {
        let _ = view;
        todo!()
    }

    /// Works off a part of the compaction that is scheduled.
    pub fn compact_some(&mut self, max: usize) -> CompactStep {
        let _ = max;
        todo!()
    }
}

impl RangePlan {
    /// Fetches the values; no lock is needed.
    ///
    /// # Errors
    /// The backend cannot be read.
    pub fn fetch(self) -> Result<answer::Answer<answer::Range>, Error> {
        todo!()
    }
}

/// What happened, in order of revisions: what a watcher that begins in the past reads.
pub trait History: Send + Sync {
    /// Current revision: every event up to it can be read.
    fn revision(&self) -> i64;

    /// Revision of the last compaction, -1 for none.
    fn compact_revision(&self) -> i64;

    /// Reads all events of main revisions `from..=to`, but stops after the revision with which
    /// `max` events are reached; returns them and the last main revision read.
    ///
    /// # Errors
    /// `from` is below the compact revision ([`apply::Refusal::Compacted`]), or the backend cannot be read.
    fn events(&self, from: i64, to: i64, max: usize) -> Result<(Vec<Arc<Commit>>, i64), Error>;

    /// Finds the record that a change replaced: the key's before main revision `revision`; `None`
    /// where there was none or it is compacted.
    ///
    /// # Errors
    /// The backend cannot be read.
    fn previous(&self, key: &[u8], revision: i64) -> Result<Option<super::Kv>, Error>;
}
