//! Writes a member's WAL: etcd's own format, one writer.
//!
//! 1. [`Wal::append`] gives bytes to the operating system, [`Wal::sync`] makes them durable.
//! 2. A segment that reached `format::wal::SEGMENT_BYTES` is cut after a save: the old one is
//!    truncated to its content and synced; the next one is complete under a temporary name, synced,
//!    renamed, and its directory synced, before anything goes into it.
//! 3. Each segment from the one that holds the newest snapshot's index on is locked as etcd locks
//!    it (an open file description's write lock).
//! 4. After an error nothing more is written: what reached the disk is found out when the log is
//!    opened again.
//! 5. A segment for which 64 MB cannot be set aside is used as it is, and grows: the disk may still
//!    have room for what is to be written. etcd stops there.
//! 6. Blocks that are only set aside become part of the file when they are first written, and a
//!    sync then waits for the file system's journal as well, with all that others have in it. So
//!    zeros are written some way ahead, and most syncs have data alone to wait for. What is read
//!    behind the last record is the same either way.
//!
//! Memory: the records of one batch, at most [`BUFFER_BYTES_MAX`] and one record.
//!
//! Source: etcd `wal.WAL`, `fileutil.LockFile`, 3.5.35, 3.6.16, 3.7.3.

mod create;
mod lock;
#[cfg(test)]
pub(super) mod tests;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use super::error::Error;
use super::figures::live;
use crate::bolt::disk::{Disk, DiskFile};
use crate::etcd::log::Log;
#[cfg(not(test))]
use crate::format::wal::SEGMENT_BYTES;
use crate::format::wal::{Encoder, Entry, HardState, Snapshot, kind, segment_name};
use crate::format::{u64_of, usize_of};
pub(super) use create::parent;
pub use lock::{LockError, Locked};

/// Records are written before more of them than this wait.
pub const BUFFER_BYTES_MAX: usize = 8 << 20;
/// Bytes of zeros that are written ahead at once.
const AHEAD_BYTES: u64 = 1 << 20;
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// Memory of the buffer that is kept between batches.
const BUFFER_KEPT_BYTES: usize = 1 << 20;

/// Bytes that a segment is given.
#[cfg(not(test))]
pub(super) fn segment_bytes() -> u64 {
    SEGMENT_BYTES
}

#[cfg(test)]
pub(super) use tests::segment_bytes;

/// Name of the next segment until it is complete, as etcd's.
const NEXT_NAME: &str = "0.tmp";

/// A segment that is locked.
#[derive(Debug)]
struct Held {
    sequence: u64,
    /// Index in its name: of the first entry that it may hold.
    index: u64,
    path: PathBuf,
    file: DiskFile,
}

/// A segment that nobody needs locked any more.
#[derive(Debug)]
struct Released {
    path: PathBuf,
}

/// Segments that nobody needs, oldest first.
#[derive(Debug)]
pub struct Surplus {
    disk: Disk,
    dir: PathBuf,
    paths: VecDeque<PathBuf>,
}

impl Surplus {
    /// Removes them.
    ///
    /// # Errors
    /// The disk fails. What was not removed does no harm; it goes when this is called again, or
    /// after the next start.
    pub fn remove(&mut self) -> Result<(), Error> {
        while let Some(oldest) = self.paths.front() {
            // One after the other: a log with a hole cannot be read.
            let removed = match self.disk.remove(oldest) {
                // Removed before, but perhaps not for good: the sync after it failed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            };
            let removed = removed.and_then(|()| self.disk.sync_dir(&self.dir));
            if let Err(error) = removed {
                let what = format!("cannot remove {}: {error}", oldest.display());
                return Err(Error::Storage(what));
            }
            self.paths.pop_front();
        }
        Ok(())
    }

    /// Adds those that were found to be surplus later.
    pub fn append(&mut self, mut later: Self) {
        self.paths.append(&mut later.paths);
    }
}

/// An open log.
#[derive(Debug)]
pub struct Wal {
    disk: Disk,
    dir: PathBuf,
    /// As it stands in every segment.
    metadata: Vec<u8>,
    /// The last one that was written.
    state: HardState,
    /// Oldest first.
    released: VecDeque<Released>,
    /// Oldest first, without the tail.
    older: VecDeque<Held>,
    tail: Held,
    /// Where the next record goes.
    offset: u64,
    /// Up to where zeros were written; `None` where the segment has no blocks set aside.
    zeroed: Option<u64>,
    encoder: Encoder,
    /// Index of the entry that was written last.
    last_index: u64,
    segment_bytes: u64,
    is_dirty: bool,
    poison: Option<String>,
    notes: Vec<String>,
    figures: Arc<live::Wal>,
}

impl Wal {
    /// Makes a new log in a directory that is not there: made beside it with these records, synced,
    /// renamed, its parent synced. It is there with all of them or not at all. Segments are cut at
    /// so many bytes; etcd's are of [`crate::format::wal::SEGMENT_BYTES`].
    ///
    /// # Errors
    /// The disk fails, or the directory is there and not empty.
    pub fn create(
        disk: &Disk,
        dir: &Path,
        metadata: &[u8],
        entries: &[Entry<'_>],
        state: Option<HardState>,
        segment_bytes: u64,
    ) -> Result<Self, Error> {
        create::create(disk, dir, metadata, entries, state, segment_bytes)
    }

    /// Goes on behind the last good record of a log that was read, and repaired where it had to be;
    /// takes the locks, zeroes what follows. Whoever must be sure that nobody writes between the
    /// reading and the lock takes the lock first: [`Locked::take`].
    ///
    /// # Errors
    /// Somebody has a lock, or the disk fails.
    pub fn open(disk: &Disk, log: &Log) -> Result<Self, LockError> {
        Ok(Locked::take(disk, &log.dir)?.append_to(log)?)
    }

    /// Writes entries, and the state where it is given, in this order. A state of nothing is not
    /// written, as etcd does.
    ///
    /// # Errors
    /// The disk fails; nothing more can be written then.
    pub fn append(&mut self, entries: &[Entry<'_>], state: Option<HardState>) -> Result<(), Error> {
        self.check()?;
        for entry in entries {
            self.encoder.push_entry(entry);
            self.last_index = entry.index;
            if self.encoder.bytes().len() >= BUFFER_BYTES_MAX {
                self.flush()?;
            }
        }
        if let Some(state) = state.filter(|state| *state != HardState::default()) {
            self.encoder.push(kind::STATE, &state.encode());
            self.state = state;
        }
        self.flush()
    }

    /// Makes everything durable, and cuts the segment when it is full.
    ///
    /// # Errors
    /// The disk fails; nothing more can be written then.
    pub fn sync(&mut self) -> Result<(), Error> {
        self.check()?;
        if self.offset >= self.segment_bytes {
            return self.cut();
        }
        if self.is_dirty {
            let began = Instant::now();
            let synced = self.tail.file.sync();
            self.figures.fsync.since(began);
            self.done("sync", synced)?;
            self.is_dirty = false;
        }
        Ok(())
    }

    /// Writes a snapshot record and makes it durable. The backend's commit that it speaks of must
    /// be durable before, and a HardState whose commit index is not below it written.
    ///
    /// # Errors
    /// The disk fails; nothing more can be written then. A snapshot that does not say who votes, or
    /// that would not count, is refused.
    pub fn save_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        self.check()?;
        if snapshot.index > 0 && snapshot.conf_state.is_none() {
            let what = format!("snapshot {} does not say who votes", snapshot.index);
            return Err(Error::Storage(what));
        }
        if snapshot.index > self.state.commit {
            let commit = self.state.commit;
            let what = format!("snapshot {} is above commit index {commit}", snapshot.index);
            return Err(Error::Storage(what));
        }
        self.encoder.push(kind::SNAPSHOT, &snapshot.encode());
        self.last_index = self.last_index.max(snapshot.index);
        self.flush()?;
        self.sync()
    }

    /// Gives up the locks of segments that a reader from a snapshot of `index` does not need, as
    /// etcd counts them; gives back all but the newest `keep` segments of those that are not
    /// locked, to be removed at any time.
    pub fn release(&mut self, index: u64, keep: usize) -> Surplus {
        let indexes = self.older.iter().map(|held| held.index).chain([self.tail.index]);
        let below = indexes.take_while(|first| *first < index).count();
        // The newest of those stays locked.
        for held in self.older.drain(..below.saturating_sub(1).min(self.older.len())) {
            self.released.push_back(Released { path: held.path });
        }
        let all = self.released.len().saturating_add(self.older.len()).saturating_add(1);
        let surplus = all.saturating_sub(keep).min(self.released.len());
        let paths = self.released.drain(..surplus).map(|released| released.path).collect();
        Surplus { disk: self.disk.clone(), dir: self.dir.clone(), paths }
    }

    /// Returns the index of the entry that was written last, or of the snapshot that covers it.
    #[must_use]
    pub fn last_index(&self) -> u64 {
        self.last_index
    }

    /// Returns the HardState that was written last.
    #[must_use]
    pub fn state(&self) -> HardState {
        self.state
    }

    /// Returns the directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Says why nothing can be written any more.
    #[must_use]
    pub fn poison(&self) -> Option<&str> {
        self.poison.as_deref()
    }

    /// Where the log counts what it does.
    pub fn figures(&self) -> Arc<live::Wal> {
        Arc::clone(&self.figures)
    }

    /// Takes what a person should know, for the log of the program.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    fn check(&self) -> Result<(), Error> {
        match &self.poison {
            None => Ok(()),
            Some(why) => {
                let what = format!("the log was closed for writing after an error: {why}");
                Err(Error::Storage(what))
            }
        }
    }

    /// Ends all writing where the disk failed.
    fn done<T>(&mut self, doing: &str, result: io::Result<T>) -> Result<T, Error> {
        result.map_err(|error| {
            let what = format!("cannot {doing} {}: {error}", self.tail.path.display());
            self.poison = Some(what.clone());
            Error::Storage(what)
        })
    }

    fn flush(&mut self) -> Result<(), Error> {
        let bytes = self.encoder.bytes();
        if bytes.is_empty() {
            return Ok(());
        }
        let length = u64_of(bytes.len());
        let began = Instant::now();
        let written = self.tail.file.write_all_at(bytes, self.offset);
        self.figures.write.since(began);
        self.figures.bytes.add(length);
        self.is_dirty = true;
        if written.is_err() {
            // Half a record in the middle of a sector would look like damage, and no server would
            // start: what was not acknowledged goes, where the disk lets it.
            let _ = self.tail.file.set_len(self.offset).and_then(|()| self.tail.file.sync());
        }
        self.done("write", written)?;
        self.encoder.clear(BUFFER_KEPT_BYTES);
        self.offset = self.offset.saturating_add(length);
        let zeroed = self.zero_ahead();
        self.done("write", zeroed)
    }

    /// Writes zeros behind what was written, where there are none left.
    fn zero_ahead(&mut self) -> io::Result<()> {
        let Some(zeroed) = self.zeroed.filter(|zeroed| *zeroed < self.offset) else {
            return Ok(());
        };
        let end = self.offset.saturating_add(AHEAD_BYTES).min(self.segment_bytes);
        let mut at = self.offset.max(zeroed);
        while at < end {
            let count = ZEROS.len().min(usize_of(end.saturating_sub(at)));
            match self.tail.file.write_all_at(ZEROS.get(..count).unwrap_or_default(), at) {
                // A file system that writes nothing in place.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
                    ) =>
                {
                    self.zeroed = None;
                    return Ok(());
                }
                written => written?,
            }
            at = at.saturating_add(u64_of(count));
        }
        self.zeroed = Some(at);
        Ok(())
    }

    fn push_head(&mut self) {
        self.encoder.push_crc();
        self.encoder.push(kind::METADATA, &self.metadata);
        if self.state != HardState::default() {
            self.encoder.push(kind::STATE, &self.state.encode());
        }
    }

    /// Ends the segment and begins the next one.
    fn cut(&mut self) -> Result<(), Error> {
        let began = Instant::now();
        let ended = self.tail.file.set_len(self.offset).and_then(|()| self.tail.file.sync());
        self.figures.fsync.since(began);
        self.done("end", ended)?;
        self.is_dirty = false;

        self.push_head();
        let sequence = self.tail.sequence.saturating_add(1);
        let index = self.last_index.saturating_add(1);
        let path = self.dir.join(segment_name(sequence, index));
        let made = self.make_next(&path);
        let (file, is_set_aside) = self.done("cut", made)?;
        self.offset = u64_of(self.encoder.bytes().len());
        self.encoder.clear(BUFFER_KEPT_BYTES);
        self.zeroed = is_set_aside.then_some(self.offset);
        let old = std::mem::replace(&mut self.tail, Held { sequence, index, path, file });
        self.older.push_back(old);
        Ok(())
    }

    /// Makes the next segment with what is in the encoder.
    fn make_next(&mut self, path: &Path) -> io::Result<(DiskFile, bool)> {
        let next = self.dir.join(NEXT_NAME);
        match self.disk.remove(&next) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = self.disk.create(&next)?;
        lock::lock(file.file())?;
        let note = create::set_aside(&file, self.segment_bytes)?;
        let is_set_aside = note.is_none();
        self.notes.extend(note);
        let began = Instant::now();
        file.write_all_at(self.encoder.bytes(), 0)?;
        self.figures.bytes.add(u64_of(self.encoder.bytes().len()));
        file.sync()?;
        self.figures.fsync.since(began);
        self.disk.rename(&next, path)?;
        self.disk.sync_dir(&self.dir)?;
        Ok((file, is_set_aside))
    }
}
