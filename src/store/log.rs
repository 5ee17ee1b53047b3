//! Writes a member's WAL: etcd's own format, one writer.
//!
//! 1. [`Wal::append`] gives bytes to the operating system, [`Wal::sync`] makes them durable.
//! 2. A segment that reached `format::wal::SEGMENT_BYTES` is cut after a save: the old one is
//!    truncated to its content and synced; the next one is complete under a temporary name, synced,
//!    renamed, and its directory synced, before anything goes into it.
//! 3. Each segment from the one that holds the newest snapshot's index on is locked as etcd locks
//!    it (an open file description's write lock).
//! 4. After an error nothing more is written.
//!
//! Source: etcd `wal.WAL`, `fileutil.LockFile`, 3.5.35, 3.6.16, 3.7.3.

use std::path::Path;

use super::error::Error;
use crate::bolt::disk::Disk;
use crate::etcd::log::Log;
use crate::format::wal::{Entry, HardState, Snapshot};

/// An open log.
#[derive(Debug)]
pub struct Wal {}

impl Wal {
    /// Makes a new log in a directory that is not there: made beside it, renamed, synced.
    ///
    /// # Errors
    /// The disk fails, or the directory is there.
    pub fn create(disk: &Disk, dir: &Path, metadata: &[u8]) -> Result<Self, Error> {
        let _ = (disk, dir, metadata);
        todo!()
    }

    /// Goes on behind the last good record of a log that was read, and repaired where it had to be;
    /// takes the locks, zeroes what follows.
    ///
    /// # Errors
    /// Somebody has a lock, or the disk fails.
    pub fn open(disk: &Disk, log: &Log) -> Result<Self, Error> {
        let _ = (disk, log);
        todo!()
    }

    /// Writes entries, and the state where it is given, in this order.
    ///
    /// # Errors
    /// The disk fails; nothing more can be written then.
    pub fn append(&mut self, entries: &[Entry<'_>], state: Option<HardState>) -> Result<(), Error> {
        let _ = (entries, state);
        todo!()
    }

    /// Makes everything durable, and cuts the segment when it is full.
    ///
    /// # Errors
    /// The disk fails; nothing more can be written then.
    pub fn sync(&mut self) -> Result<(), Error> {
        todo!()
    }

    /// Writes a snapshot record and makes it durable. The backend's commit that it speaks of must
    /// be durable before.
    ///
    /// # Errors
    /// The disk fails; nothing more can be written then.
    pub fn save_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let _ = snapshot;
        todo!()
    }

    /// Gives up the locks of segments that hold nothing above `index`, and removes all but the
    /// newest `keep` segments of those.
    ///
    /// # Errors
    /// The disk fails.
    pub fn release(&mut self, index: u64, keep: usize) -> Result<(), Error> {
        let _ = (index, keep);
        todo!()
    }
}
