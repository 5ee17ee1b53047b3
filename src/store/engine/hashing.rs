//! Hash and HashKV of what a running store holds.

use std::time::Instant;

use super::aside::aside;
use super::pace::Pace;
use super::{Shared, Store, backend};
use crate::etcd::hash::HashKv;
use crate::store::answer::Answer;
use crate::store::error::Error;
use crate::store::guard::{Caller, Wish};
use crate::store::mvcc::{Mvcc, hash_all};
use crate::store::open::Compat;

/// Bytes of a database above which a compaction is not summed: it takes three passes over all rows,
/// and memory for each key.
const HASHED_MAX: u64 = 1 << 30;

/// Sums what is there before a compaction drops some of it, where the store keeps such sums: etcd
/// answers HashKV at the compaction's revision with them.
pub(super) fn before_compaction(shared: &Shared) {
    let size = shared.backend.sizes().map_or(0, |sizes| sizes.in_use_bytes);
    if !shared.options.hash_at_compaction || size > HASHED_MAX {
        return;
    }
    let plan = shared.core.write(Mvcc::take_compaction_hash);
    if let Ok(Some(plan)) = plan
        && let Ok(Ok(hash)) = aside("hash", || {
            let pace = Pace::new(shared);
            plan.fetch(&mut || {
                pace.yield_to_writers();
                shared.health.refusal().is_none()
            })
        })
    {
        let _ = shared.core.write(|mvcc| mvcc.keep_hash(hash));
    }
}

impl Store {
    /// Sums the history up to a revision; 0 means the current one.
    ///
    /// # Errors
    /// A revision that is compacted or not there yet, no permission, or the disk.
    pub fn hash_kv(&self, caller: &Caller, revision: i64) -> Result<Answer<HashKv>, Error> {
        let shared = self.shared();
        let look = |mvcc: &Mvcc| (mvcc.plan_hash_kv(revision), mvcc.revision());
        let began = Instant::now();
        let (plan, revision) = shared.look(caller, Wish::Admin, look)?;
        let body = plan?.fetch()?;
        shared.figures.hash_kv.since(began);
        Ok(Answer { revision, body })
    }

    /// Sums all buckets of the backend: for tests.
    ///
    /// # Errors
    /// No permission, or the disk.
    pub fn hash(&self, caller: &Caller) -> Result<Answer<u32>, Error> {
        let shared = self.shared();
        shared.check(caller, Wish::Admin)?;
        let began = Instant::now();
        let view = backend::commit(shared)?;
        let minor = if shared.compat == Compat::V3_6 { 6 } else { 7 };
        let body = hash_all(&view, minor)?;
        shared.figures.hash.since(began);
        Ok(Answer { revision: self.revision(), body })
    }
}
