//! The small buckets, all of their rows in memory, and which of them the backend has not got.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::etcd::apply::Row;
use crate::etcd::{rows, schema};

/// Their names.
pub(super) const BUCKETS: [&[u8]; 9] = [
    schema::ALARM,
    schema::AUTH,
    schema::AUTH_ROLES,
    schema::AUTH_USERS,
    schema::CLUSTER,
    schema::LEASE,
    schema::MEMBERS,
    schema::MEMBERS_REMOVED,
    schema::META,
];

type Bucket = BTreeMap<Bytes, Bytes>;

/// A row that changed: its bucket, its key, and its value unless it is gone.
pub(super) type Changed = (&'static [u8], Bytes, Option<Bytes>);

/// The rows.
#[derive(Debug, Default)]
pub(super) struct Rows {
    buckets: [Bucket; BUCKETS.len()],
    dirty: Vec<Changed>,
    dirty_bytes: usize,
    is_auth_enabled: bool,
}

impl Rows {
    fn bucket(&self, name: &[u8]) -> Option<&Bucket> {
        let at = BUCKETS.iter().position(|known| *known == name)?;
        self.buckets.get(at)
    }

    /// Takes a row that the backend has.
    pub(super) fn load(&mut self, name: &[u8], key: Bytes, value: Option<Bytes>) {
        let at = BUCKETS.iter().position(|known| *known == name);
        if let Some(bucket) = at.and_then(|at| self.buckets.get_mut(at)) {
            match value {
                Some(value) => bucket.insert(key, value),
                None => bucket.remove(&key),
            };
        }
        if name == schema::AUTH {
            let enabled = self.get(schema::AUTH, schema::AUTH_ENABLED);
            self.is_auth_enabled =
                enabled.is_some_and(|row| rows::decode_auth_enabled(row) == Ok(true));
        }
    }

    /// Changes a row.
    pub(super) fn change(&mut self, row: Row) {
        let (key, value) = (Bytes::from(row.key), row.value.map(Bytes::from));
        self.load(row.bucket, key.clone(), value.clone());
        let bytes = key.len().saturating_add(value.as_ref().map_or(0, Bytes::len));
        self.dirty_bytes =
            self.dirty_bytes.saturating_add(bytes).saturating_add(size_of::<Changed>());
        self.dirty.push((row.bucket, key, value));
    }

    /// Finds a row.
    pub(super) fn get(&self, name: &[u8], key: &[u8]) -> Option<&Bytes> {
        self.bucket(name)?.get(key)
    }

    /// Returns the rows of a bucket, in key order.
    pub(super) fn each(&self, name: &[u8]) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.bucket(name).into_iter().flatten()
    }

    /// Tells whether auth is on.
    pub(super) fn is_auth_enabled(&self) -> bool {
        self.is_auth_enabled
    }

    /// Number of changes that [`Rows::take_dirty`] has not given out.
    pub(super) fn dirty(&self) -> usize {
        self.dirty.len()
    }

    /// Their bytes of memory.
    pub(super) fn dirty_bytes(&self) -> usize {
        self.dirty_bytes
    }

    /// Gives out the changes, in order.
    pub(super) fn take_dirty(&mut self) -> Vec<Changed> {
        self.dirty_bytes = 0;
        std::mem::take(&mut self.dirty)
    }
}
