//! Entries that are in the log and not in the database.

use super::OpenError;
use crate::etcd::log::{EntriesError, Log};
use crate::format::wal::Entry;

/// Entries to be applied, in order; they are read from the disk when they are asked for.
///
/// They can be read until the log removes segments: see `store::log::Wal::release`.
#[derive(Debug)]
pub struct Replay {
    log: Log,
    after: u64,
    through: u64,
}

impl Replay {
    pub(super) fn new(log: Log, after: u64, through: u64) -> Self {
        Self { log, after, through }
    }

    /// Index of the last entry that the database has.
    #[must_use]
    pub fn after(&self) -> u64 {
        self.after
    }

    /// Index of the last entry to be applied.
    #[must_use]
    pub fn through(&self) -> u64 {
        self.through.max(self.after)
    }

    /// Tells whether there is nothing to apply.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.through <= self.after
    }

    /// Shows each entry once, in order; memory is that of one entry.
    ///
    /// # Errors
    /// The log cannot be read or lacks an entry, as [`OpenError`]; or what `visit` says.
    pub fn each<E: From<OpenError>>(
        &self,
        visit: &mut dyn FnMut(&Entry<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut last = self.after;
        if !self.is_empty() {
            let mut entries = self.log.entries(self.after).map_err(failed)?;
            while let Some(entry) = entries.read_next().map_err(failed)? {
                if entry.index > self.through {
                    break;
                }
                if Some(entry.index) != last.checked_add(1) {
                    break;
                }
                last = entry.index;
                visit(&entry)?;
            }
        }
        if last < self.through {
            let what = format!(
                "the log ends at entry {last}, and entry {} was to be replayed",
                self.through
            );
            return Err(OpenError::Disk(what).into());
        }
        Ok(())
    }
}

pub(super) fn failed(error: EntriesError) -> OpenError {
    OpenError::Disk(error.to_string())
}
