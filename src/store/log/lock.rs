//! Locks of segments, and how a log that is there becomes one that is written.
//!
//! etcd takes a write lock of the open file description on each segment, where the system has such
//! locks, else flock. Neither is waited for.
//!
//! Source: etcd `fileutil.TryLockFile`, `wal.Repair`, `fileutil.ZeroToEnd`, 3.6.16.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Held, Released, Wal, create};
use crate::bolt::disk::Disk;
use crate::etcd::log::{Log, Opening};
use crate::format::wal::{Encoder, parse_segment_name};
use crate::format::{u64_of, usize_of};
use crate::store::error::Error;

/// Bytes that are copied at once.
const PIECE_BYTES: u64 = 1 << 20;

/// Why a log could not be taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another process has this segment, or made one meanwhile.
    #[error("{} is in use: its lock is held", .0.display())]
    InUse(PathBuf),
    /// The disk fails.
    #[error(transparent)]
    Failed(#[from] Error),
}

/// Takes the lock of a segment.
pub(super) fn lock(file: &File) -> io::Result<()> {
    match lock_description(file) {
        Err(error) if is_unsupported(&error) => match file.try_lock() {
            Ok(()) => Ok(()),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        },
        locked => locked,
    }
}

fn is_unsupported(error: &io::Error) -> bool {
    use nix::errno::Errno;
    let unsupported = [Errno::EINVAL, Errno::ENOSYS, Errno::EOPNOTSUPP];
    error.kind() == io::ErrorKind::Unsupported
        || error.raw_os_error().is_some_and(|code| unsupported.contains(&Errno::from_raw(code)))
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn lock_description(file: &File) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc;
    let narrow = |number: i32| i16::try_from(number).map_err(io::Error::other);
    let whole_file = libc::flock {
        l_type: narrow(libc::F_WRLCK)?,
        l_whence: narrow(libc::SEEK_SET)?,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    match fcntl(file, FcntlArg::F_OFD_SETLK(&whole_file)) {
        Ok(_) => Ok(()),
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => {
            Err(io::ErrorKind::WouldBlock.into())
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn lock_description(_: &File) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// All segments of a log, locked; nothing is changed yet.
#[derive(Debug)]
pub struct Locked {
    disk: Disk,
    dir: PathBuf,
    held: Vec<Held>,
    /// Bytes that a segment is given.
    pub(super) segment_bytes: u64,
}

impl Locked {
    /// Locks every segment in a directory; one without segments has nothing to lock.
    ///
    /// # Errors
    /// Another process has one, or the disk fails.
    pub fn take(disk: &Disk, dir: &Path) -> Result<Self, LockError> {
        let mut held = Vec::new();
        for (sequence, index, path) in segments(dir)? {
            let file = disk.open(&path).map_err(|error| failed("open", &path, &error))?;
            match lock(file.file()) {
                Ok(()) => held.push(Held { sequence, index, path, file }),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(LockError::InUse(path));
                }
                Err(error) => return Err(failed("lock", &path, &error).into()),
            }
        }
        // A writer that cut its segment and went away meanwhile is one too.
        let now = segments(dir)?;
        if let Some((.., path)) = now.into_iter().nth(held.len()) {
            return Err(LockError::InUse(path));
        }
        Ok(Self {
            disk: disk.clone(),
            dir: dir.to_owned(),
            held,
            segment_bytes: super::segment_bytes(),
        })
    }

    /// Repairs the end of a log as etcd does: keeps a copy of the last segment as `.broken` and
    /// cuts the segment after its last good record. Returns what was done; nothing for a log that
    /// needs no repair.
    ///
    /// # Errors
    /// The disk fails.
    pub fn repair(&self, log: &Log) -> Result<Option<String>, Error> {
        if log.opening != Opening::AfterRepair {
            return Ok(None);
        }
        let held = self.tail(log)?;
        let mut name = held.path.clone().into_os_string();
        name.push(".broken");
        let copy_path = PathBuf::from(name);
        let copied = self.copy(held, log, &copy_path);
        copied.map_err(|error| failed("copy", &copy_path, &error))?;
        let cut = held.file.set_len(log.end.offset).and_then(|()| held.file.sync());
        cut.map_err(|error| failed("repair", &held.path, &error))?;
        Ok(Some(format!(
            "{} ended with a write that was cut short: {} bytes after offset {} were cut off; {} \
             is the file as it was",
            held.path.display(),
            log.bytes_after,
            log.end.offset,
            copy_path.display()
        )))
    }

    /// Lets segments be cut at so many bytes.
    #[must_use]
    pub fn with_segment_bytes(self, segment_bytes: u64) -> Self {
        Self { segment_bytes, ..self }
    }

    fn tail(&self, log: &Log) -> Result<&Held, Error> {
        let is_same = self.held.len() == log.segments.len()
            && log.end.segment.saturating_add(1) == log.segments.len();
        let last = log.segments.last().zip(self.held.last()).filter(|(segment, held)| {
            is_same && (segment.sequence, segment.index) == (held.sequence, held.index)
        });
        last.map(|(_, held)| held).ok_or_else(|| {
            Error::Storage(format!("the log in {} is not the one read", self.dir.display()))
        })
    }

    fn copy(&self, held: &Held, log: &Log, path: &Path) -> io::Result<()> {
        match self.disk.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let copy = self.disk.create(path)?;
        // What follows is zeros.
        let end = log.end.offset.saturating_add(log.bytes_after);
        let mut piece = Vec::new();
        let mut at = 0_u64;
        while at < end {
            piece.resize(usize_of(end.saturating_sub(at).min(PIECE_BYTES)), 0);
            held.file.read_exact_at(&mut piece, at)?;
            copy.write_all_at(&piece, at)?;
            at = at.saturating_add(u64_of(piece.len()));
        }
        copy.set_len(held.file.len()?)?;
        copy.sync()?;
        self.disk.sync_dir(&self.dir)
    }

    /// Goes on behind the last good record of a log that was read under these locks: zeroes what
    /// follows, for good, and gives up the locks of segments that are not needed.
    ///
    /// # Errors
    /// The log is not the one that is locked, or has no end to go on from; the disk fails.
    pub fn append_to(mut self, log: &Log) -> Result<Wal, Error> {
        self.tail(log)?;
        let Some(tail) = self.held.pop() else {
            let what = format!("there is no log in {}", self.dir.display());
            return Err(Error::Storage(what));
        };
        let end = log.end.offset;
        let go_on = || {
            let length = tail.file.len()?;
            if log.bytes_after > 0 && length > end {
                // What stands there must not come back and mix with what is written.
                tail.file.set_len(end)?;
            }
            let note = create::set_aside(&tail.file, length.max(self.segment_bytes))?;
            // What was read may be in memory only, left by a process that died before it synced;
            // from now on it counts.
            tail.file.sync()?;
            self.disk.sync_dir(&self.dir)?;
            self.disk.sync_dir(create::parent(&self.dir))?;
            Ok(note)
        };
        let note = go_on().map_err(|error: io::Error| failed("prepare", &tail.path, &error))?;
        let snapshot = log.newest_snapshot().map_or(0, |snapshot| snapshot.index);
        // A reader that starts at the snapshot starts in the last segment at or below it.
        let needed = match self.held.iter().rposition(|held| held.index <= snapshot) {
            _ if tail.index <= snapshot => self.held.len(),
            found => found.unwrap_or(0),
        };
        let released = self.held.drain(..needed.min(self.held.len()));
        let released = released.map(|held| Released { path: held.path }).collect();
        let mut wal = Wal {
            disk: self.disk,
            dir: self.dir,
            metadata: log.metadata_bytes.clone(),
            state: log.hard_state.unwrap_or_default(),
            released,
            older: self.held.into(),
            tail,
            offset: end,
            zeroed: note.is_none().then_some(end),
            encoder: Encoder::resume(log.end.crc),
            last_index: log.last_index(),
            segment_bytes: self.segment_bytes,
            is_dirty: false,
            poison: None,
            notes: note.into_iter().collect(),
            figures: Arc::default(),
        };
        if end == 0 {
            // A segment whose head never arrived: without it no reader begins there.
            wal.push_head();
            wal.flush()?;
        }
        Ok(wal)
    }
}

/// Lists segments by number.
fn segments(dir: &Path) -> Result<Vec<(u64, u64, PathBuf)>, Error> {
    let read = || {
        let mut found = Vec::new();
        for entry in fs::read_dir(dir)? {
            let name = entry?.file_name();
            if let Some((sequence, index)) = name.to_str().and_then(parse_segment_name) {
                found.push((sequence, index, dir.join(&name)));
            }
        }
        found.sort_unstable();
        Ok(found)
    };
    read().map_err(|error| failed("read", dir, &error))
}

fn failed(doing: &str, path: &Path, error: &io::Error) -> Error {
    Error::Storage(format!("cannot {doing} {}: {error}", path.display()))
}
