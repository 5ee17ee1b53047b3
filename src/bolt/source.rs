//! Where a file's bytes come from: a handle that is read by position, or memory.
//!
//! The file is never mapped: a map of a file that is cut short under it kills the process, and a
//! database that a server holds open may be. Positioned reads cost one copy and cannot fault.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::db::View;
use super::disk::DiskFile;
use crate::format::{u64_of, usize_of};

/// Bytes of a bbolt file.
#[derive(Debug)]
pub struct Source {
    bytes: Bytes,
    len: u64,
}

#[derive(Debug)]
enum Bytes {
    Disk(fs::File),
    Memory(Vec<u8>),
    /// A file that is changed meanwhile, but for what a view sees while it lives.
    Shared {
        file: Arc<DiskFile>,
        _view: Option<View>,
    },
}

impl Source {
    /// Opens a regular file for reading only.
    ///
    /// # Errors
    /// The file cannot be opened, or is a folder, a pipe or a device.
    pub fn open(path: &Path) -> io::Result<Self> {
        // Looked at before it is opened: opening a pipe that nobody writes to waits for ever.
        let found = fs::metadata(path)?;
        if !found.is_file() {
            let kind = if found.is_dir() { "a directory" } else { "not a regular file" };
            return Err(io::Error::new(io::ErrorKind::InvalidInput, kind));
        }
        Self::from_file(fs::File::open(path)?)
    }

    /// Takes an open file; its length is read now and not again.
    ///
    /// # Errors
    /// The length cannot be read.
    pub fn from_file(file: fs::File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self { bytes: Bytes::Disk(file), len })
    }

    /// Takes bytes in memory.
    #[must_use]
    pub fn from_bytes(bytes: Vec<u8>) -> Self {
        let len = u64_of(bytes.len());
        Self { bytes: Bytes::Memory(bytes), len }
    }

    /// Takes a file that is changed in place, up to a length; keeps a view alive.
    pub(super) fn shared(file: Arc<DiskFile>, len: u64, view: Option<View>) -> Self {
        Self { bytes: Bytes::Shared { file, _view: view }, len }
    }

    /// Length in bytes when it was opened.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Tells whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the open file, where there is one that is not changed meanwhile.
    #[must_use]
    pub fn file(&self) -> Option<&fs::File> {
        match &self.bytes {
            Bytes::Disk(file) => Some(file),
            Bytes::Shared { .. } | Bytes::Memory(_) => None,
        }
    }

    /// Returns where bytes other than zeros may come next, from `offset` on. Holes, and room that
    /// was set aside and never written to, are passed over where the file system knows of them.
    #[must_use]
    pub fn next_data(&self, offset: u64) -> u64 {
        let Some(file) = self.file().filter(|_| offset < self.len) else { return offset };
        match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
            Ok(next) => next.clamp(offset, self.len),
            Err(rustix::io::Errno::NXIO) => self.len,
            Err(_) => offset,
        }
    }

    /// Fills `buffer` from byte `offset` on.
    ///
    /// # Errors
    /// Bytes at or past the end are asked for, or the disk fails.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(u64_of(buffer.len()));
        if end.is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match &self.bytes {
            Bytes::Disk(file) => file.read_exact_at(buffer, offset),
            Bytes::Shared { file, .. } => file.read_exact_at(buffer, offset),
            Bytes::Memory(bytes) => {
                let start = usize_of(offset);
                let from = bytes.get(start..start.saturating_add(buffer.len()));
                buffer.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
        }
    }

    /// Reads up to `limit` bytes from `offset` on; fewer where the file ends.
    ///
    /// # Errors
    /// The disk fails.
    pub fn read_up_to(&self, offset: u64, limit: usize) -> io::Result<Vec<u8>> {
        if offset >= self.len {
            return Ok(Vec::new());
        }
        let len = self.len.saturating_sub(offset).min(u64_of(limit));
        let mut buffer = vec![0; usize_of(len)];
        self.read_at(offset, &mut buffer)?;
        Ok(buffer)
    }
}
