//! The state of the store: what the backend's view holds, and on top what was applied since.
//!
//! Pure memory but for reads from the view. One thread changes it; readers share a lock for as
//! long as they look at the index, and read values from the view after they gave it back.
//!
//! 1. A record is in the tail, or in the view under its revision, or gone for good. The tail holds
//!    every commit that the view lacks.
//! 2. A read plans under the lock which records it wants, keeps the view, and fetches without the
//!    lock. One that plans in steps pins its revision; a compaction goes no further than the lowest
//!    pin, so that nothing it has yet to look at disappears.
//! 3. What [`Mvcc::take_batch`] gives out is a state as of one entry: rows and the index that
//!    covers them. [`Mvcc::saved`] moves the view there.
//! 4. A compaction drops no row before a batch with its `meta/scheduledCompactRev` was saved, and
//!    `meta/finishedCompactRev` goes with the last drops.
//!
//! `tail`, `rows`, `attached` hold, `apply` changes, `read`, `respond`, `history` and `hash`
//! answer, `keys`, `load`, `save` and `compact` deal with the backend.

mod apply;
mod attached;
mod compact;
mod hash;
mod history;
mod keys;
mod load;
mod pins;
mod read;
mod respond;
mod rows;
mod save;
mod tail;
mod tally;

pub use apply::{Applied, LeaseChange};
pub use hash::hash_all;
pub use history::{History, Portion};
pub use keys::Keys;
pub use tally::Tally;

use std::borrow::Cow;
use std::ops::ControlFlow;

use super::index::Index;
use super::open::Compat;
use crate::bolt::db::View;
use crate::etcd::apply::{Latest, Rules, State, Unreadable};
use crate::etcd::record::KeyValue;
use crate::etcd::request::Span;
use crate::etcd::revision::Revision;
use crate::etcd::rows::{Alarm, Lease};
use crate::etcd::schema;
use attached::Attached;
use compact::Compacting;
use hash::Hashes;
use pins::Pins;
use rows::Rows;
use save::Saving;
use tail::Tail;

/// The state.
#[derive(Debug)]
pub struct Mvcc {
    rules: Rules,
    compat: Compat,
    index: Index,
    tail: Tail,
    view: View,
    rows: Rows,
    attached: Attached,
    /// Current revision.
    revision: i64,
    /// Index and term of the last entry applied.
    applied: (u64, u64),
    compacting: Compacting,
    saving: Saving,
    pins: Pins,
    hashes: Hashes,
    tally: Tally,
}

impl Mvcc {
    /// Current revision.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Revision of the last compaction, -1 for none.
    #[must_use]
    pub fn compact_revision(&self) -> i64 {
        self.compacting.accepted
    }

    /// Index and term of the last entry applied.
    #[must_use]
    pub fn applied(&self) -> (u64, u64) {
        self.applied
    }

    /// Lists the leases as (id, granted seconds, remaining seconds or 0).
    #[must_use]
    pub fn leases(&self) -> Vec<(i64, i64, i64)> {
        let rows = self.rows.each(schema::LEASE);
        let leases = rows.filter_map(|(key, value)| Lease::decode(key, value).ok());
        leases.map(|lease| (lease.id, lease.ttl_s, lease.remaining_ttl_s)).collect()
    }

    /// Lists the alarms that stand.
    #[must_use]
    pub fn alarms(&self) -> Vec<Alarm> {
        let rows = self.rows.each(schema::ALARM);
        rows.filter_map(|(key, value)| Alarm::decode(key, value).ok()).collect()
    }

    /// What was asked of the keys since [`Mvcc::begin_tally`], without the reads that were not
    /// logged.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Begins to count requests on the keys anew.
    pub fn begin_tally(&mut self) {
        self.tally = Tally::default();
    }

    /// Number of keys that are live.
    #[must_use]
    pub fn key_count(&self) -> u64 {
        self.index.count(Span::From(&[]))
    }

    /// Bytes of memory of index and tail, about.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.index.memory_bytes().saturating_add(self.tail.bytes())
    }
}

impl State for Mvcc {
    fn current_revision(&self) -> i64 {
        self.revision
    }

    fn compact_revision(&self) -> i64 {
        self.compacting.accepted
    }

    fn latest(&self, key: &[u8]) -> Result<Option<Latest>, Unreadable> {
        Ok(self.index.latest(key))
    }

    fn each_live(
        &self,
        span: Span<'_>,
        visit: &mut dyn FnMut(&[u8], &Latest) -> ControlFlow<()>,
    ) -> Result<(), Unreadable> {
        self.index.each_latest(span, visit);
        Ok(())
    }

    fn value(&self, revision: Revision) -> Result<Vec<u8>, Unreadable> {
        if let Some(kv) = self.tail.get(revision) {
            return Ok(kv.record().value.to_vec());
        }
        let row = self.view.get(schema::KEY, &revision.encode());
        let row = row.map_err(|error| Unreadable(error.to_string()))?;
        let row = row.ok_or_else(|| Unreadable(format!("there is no record at {revision}")))?;
        let record = KeyValue::decode(&row)
            .map_err(|error| Unreadable(format!("the record at revision {revision}: {error}")))?;
        Ok(record.value.to_vec())
    }

    fn lease_keys(&self, id: i64) -> Result<Vec<Vec<u8>>, Unreadable> {
        Ok(self.attached.keys(id).map(<[u8]>::to_vec).collect())
    }

    fn row(&self, bucket: &[u8], key: &[u8]) -> Result<Option<Cow<'_, [u8]>>, Unreadable> {
        Ok(self.rows.get(bucket, key).map(|value| Cow::Borrowed(value.as_ref())))
    }

    fn each_row(
        &self,
        bucket: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), Unreadable> {
        self.rows.each(bucket).for_each(|(key, value)| visit(key, value));
        Ok(())
    }

    fn has_alarms(&self) -> Result<bool, Unreadable> {
        Ok(self.rows.each(schema::ALARM).next().is_some())
    }

    fn is_auth_enabled(&self) -> Result<bool, Unreadable> {
        Ok(self.rows.is_auth_enabled())
    }
}

#[cfg(test)]
mod tests;
