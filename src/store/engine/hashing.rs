//! Hash and HashKV of what a running store holds, with the sums that etcd keeps at compactions.
//!
//! etcd remembers, for the last ten compactions, the sum over what was there just before, under
//! the compaction revision before it, and answers HashKV at such a revision with it; members that
//! compare themselves with others count on that.
//!
//! Source: etcd `mvcc/hash.go` (`hashStorage`), `kvstore_compaction.go`, 3.6.16.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use super::{Shared, backend};
use crate::bolt::db::View;
use crate::bolt::overlay::Edits;
use crate::bolt::walk::walk;
use crate::etcd::apply::Refusal;
use crate::etcd::hash::{self, BackendHash, Compaction, HashKv, HashKvError};
use crate::store::answer::Answer;
use crate::store::error::Error;
use crate::store::guard::{Caller, Wish};
use crate::store::open::Compat;

/// Sums that are remembered.
const KEPT: usize = 10;

/// What is known of compactions.
#[derive(Debug, Default)]
pub(super) struct Sums {
    kept: Mutex<VecDeque<HashKv>>,
    /// The sum of what a compaction that is not finished yet drops.
    next: Mutex<Option<HashKv>>,
}

/// Sums up what is there before a compaction drops some of it.
pub(super) fn before_compaction(shared: &Shared, view: &View) {
    if !shared.options.hash_at_compaction {
        return;
    }
    let sum = (|| {
        let file = view.file().ok()?;
        let compaction = Compaction::read(&file, &Edits::default()).ok()?;
        let revision = compaction.scheduled.filter(|_| compaction.is_pending())?;
        let before = Compaction { finished: compaction.finished, scheduled: None };
        sum(view, before, revision).ok()
    })();
    *shared.sums.next.lock().unwrap_or_else(PoisonError::into_inner) = sum;
}

/// Keeps the sum.
pub(super) fn after_compaction(shared: &Shared) {
    let next = shared.sums.next.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(next) = next {
        let mut kept = shared.sums.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(next);
        while kept.len() > KEPT {
            kept.pop_front();
        }
    }
}

fn sum(view: &View, compaction: Compaction, revision: i64) -> Result<HashKv, Error> {
    let file = view.file().map_err(|error| backend::storage(&error))?;
    let sum = hash::hash_kv(compaction, revision, &mut |visitor| {
        let walked = walk(&file, visitor);
        if walked.tree_is_whole() { Ok(()) } else { Err("the tree is damaged") }
    });
    sum.map_err(|error| match error {
        HashKvError::Compacted(_) => Error::Refused(Refusal::Compacted),
        HashKvError::Future(_) => Error::Refused(Refusal::FutureRevision),
        HashKvError::Row(finding) => Error::Storage(finding.to_string()),
        HashKvError::Walk(what) => Error::Storage(what.into()),
    })
}

impl super::Store {
    /// Sums the history up to a revision; 0 means the current one.
    ///
    /// # Errors
    /// A revision that is compacted or not there yet, no permission, or the disk.
    pub fn hash_kv(&self, caller: &Caller, revision: i64) -> Result<Answer<HashKv>, Error> {
        let shared = self.shared();
        shared.check(caller, Wish::Admin)?;
        let (current, compacted) =
            shared.core.read(|mvcc| (mvcc.revision(), mvcc.compact_revision()))?;
        if revision < 0 || (revision != 0 && revision < compacted) {
            return Err(Error::Refused(Refusal::Compacted));
        }
        if revision > current {
            return Err(Error::Refused(Refusal::FutureRevision));
        }
        let kept = shared.sums.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = kept.iter().find(|sum| revision != 0 && sum.hash_revision == revision).copied();
        if let Some(body) = kept {
            return Ok(Answer { revision: current, body });
        }
        let view = backend::commit(shared)?;
        let file = view.file().map_err(|error| backend::storage(&error))?;
        let compaction = Compaction::read(&file, &Edits::default())
            .map_err(|error| Error::Storage(error.to_string()))?;
        drop(file);
        let body = sum(&view, compaction, revision)?;
        Ok(Answer { revision: current, body })
    }

    /// Sums all buckets of the backend: for tests.
    ///
    /// # Errors
    /// No permission, or the disk.
    pub fn hash(&self, caller: &Caller) -> Result<Answer<u32>, Error> {
        let shared = self.shared();
        shared.check(caller, Wish::Admin)?;
        let view = backend::commit(shared)?;
        let file = view.file().map_err(|error| backend::storage(&error))?;
        let minor = if shared.compat == Compat::V3_6 { 6 } else { 7 };
        let mut sum = BackendHash::new(hash::skipped_by_hash(minor));
        if !walk(&file, &mut sum).tree_is_whole() {
            return Err(Error::Storage("the tree of the database is damaged".into()));
        }
        let revision = shared.core.read(crate::store::mvcc::Mvcc::revision)?;
        Ok(Answer { revision, body: sum.hash() })
    }
}
