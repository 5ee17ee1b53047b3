//! Which keys each lease holds.

use std::collections::{BTreeSet, HashMap};

use foldhash::fast::RandomState;

/// Keys by lease; only of leases that exist.
#[derive(Debug, Default)]
pub(super) struct Attached {
    leases: HashMap<i64, BTreeSet<Box<[u8]>>, RandomState>,
}

impl Attached {
    /// Attaches a key.
    pub(super) fn attach(&mut self, lease: i64, key: &[u8]) {
        self.leases.entry(lease).or_default().insert(key.into());
    }

    /// Detaches a key.
    pub(super) fn detach(&mut self, lease: i64, key: &[u8]) {
        if let Some(keys) = self.leases.get_mut(&lease) {
            keys.remove(key);
            if keys.is_empty() {
                self.leases.remove(&lease);
            }
        }
    }

    /// Returns the keys of a lease, ascending.
    pub(super) fn keys(&self, lease: i64) -> impl Iterator<Item = &[u8]> {
        self.leases.get(&lease).into_iter().flatten().map(AsRef::as_ref)
    }
}
