//! Revisions that reads in steps still need: a compaction waits below the lowest of them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All pinned revisions.
#[derive(Clone, Debug, Default)]
pub(super) struct Pins(Arc<Mutex<BTreeMap<i64, usize>>>);

/// A pinned revision; free again when dropped.
#[derive(Debug)]
pub(super) struct Pin {
    revision: i64,
    pins: Pins,
}

impl Pins {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<i64, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pins a revision.
    pub(super) fn pin(&self, revision: i64) -> Pin {
        let mut pins = self.lock();
        let count = pins.entry(revision).or_default();
        *count = count.saturating_add(1);
        Pin { revision, pins: self.clone() }
    }

    /// Returns the lowest pinned revision.
    pub(super) fn lowest(&self) -> Option<i64> {
        self.lock().first_key_value().map(|(revision, _)| *revision)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut pins = self.pins.lock();
        if let Some(count) = pins.get_mut(&self.revision) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                pins.remove(&self.revision);
            }
        }
    }
}
