//! Every change that an operation makes to a disk, in one place.
//!
//! An operation creates, writes, renames and syncs through here and nowhere else. So a test can
//! [`record`] what was done, in order, and replay a loss of power at any moment: what was not
//! synced may be there, half there, or not.

use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use rustix::fs::{CWD, RenameFlags, renameat_with};

pub use crate::bolt::disk::Event;

struct Journal {
    root: PathBuf,
    events: Vec<Event>,
}

static IS_RECORDING: AtomicBool = AtomicBool::new(false);
static JOURNAL: Mutex<Option<Journal>> = Mutex::new(None);
static NEXT_FILE: AtomicU64 = AtomicU64::new(1);

/// Runs `work` and returns with it every change below `root`, in order. For tests of what a loss
/// of power leaves; two recordings at once are not possible.
pub fn record<T>(root: &Path, work: impl FnOnce() -> T) -> (T, Vec<Event>) {
    let journal = || JOURNAL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    *journal() = Some(Journal { root: root.to_owned(), events: Vec::new() });
    IS_RECORDING.store(true, Ordering::SeqCst);
    let done = work();
    IS_RECORDING.store(false, Ordering::SeqCst);
    let events = journal().take().map(|journal| journal.events).unwrap_or_default();
    (done, events)
}

fn note(path: &Path, event: impl FnOnce() -> Event) {
    if !IS_RECORDING.load(Ordering::Relaxed) {
        return;
    }
    let mut journal = JOURNAL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(journal) = journal.as_mut().filter(|journal| path.starts_with(&journal.root)) {
        journal.events.push(event());
    }
}

/// A file that is being written.
///
/// A disk tells once that it lost what was written, to whoever syncs first (Linux, errseq); this
/// remembers it, so that no later sync can say that all is well.
#[derive(Debug)]
pub struct OutFile {
    file: File,
    path: PathBuf,
    number: u64,
    at: u64,
    lost: OnceLock<i32>,
}

impl OutFile {
    /// Makes a new file with mode 0600, to be written and read.
    ///
    /// # Errors
    /// There is one of that name, or it cannot be made.
    pub fn create(path: &Path) -> io::Result<Self> {
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        Ok(Self::of_new(file, path))
    }

    /// Takes a file that was just made, empty, under this name.
    #[must_use]
    pub fn of_new(file: File, path: &Path) -> Self {
        let number = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
        note(path, || Event::Create { file: number, path: path.to_owned() });
        Self { file, path: path.to_owned(), number, at: 0, lost: OnceLock::new() }
    }

    /// Returns the open file, for reading and for its metadata.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes at a position, which is not moved.
    ///
    /// # Errors
    /// The disk fails.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)?;
        note(&self.path, || Event::Write { file: self.number, offset, bytes: bytes.to_vec() });
        Ok(())
    }

    /// Cuts or grows the file.
    ///
    /// # Errors
    /// The disk fails.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        note(&self.path, || Event::SetLen { file: self.number, len });
        Ok(())
    }

    /// Makes what was written durable.
    ///
    /// # Errors
    /// The disk fails: what was written may be lost, and must not be relied on.
    pub fn sync(&self) -> io::Result<()> {
        self.remember(self.file.sync_all())?;
        note(&self.path, || Event::Sync { file: self.number });
        Ok(())
    }

    /// Lets the disk begin with what was written, so that less is left for [`OutFile::sync`], which
    /// tells when it fails. Nothing is durable after this.
    pub fn begin(&self) {
        let _ = self.remember(self.file.sync_data());
    }

    fn remember(&self, synced: io::Result<()>) -> io::Result<()> {
        if let Err(error) = &synced {
            let code = error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
            let _ = self.lost.set(code);
        }
        match self.lost.get() {
            Some(code) => Err(io::Error::from_raw_os_error(*code)),
            None => synced,
        }
    }

    /// Makes the file share the blocks of `source`, whole, where the file system can; `false`
    /// where it cannot. Nothing has been written yet.
    ///
    /// # Errors
    /// The disk fails.
    pub fn share_blocks(&self, source: &File) -> io::Result<bool> {
        if IS_RECORDING.load(Ordering::Relaxed) {
            return Ok(false);
        }
        Ok(rustix::fs::ioctl_ficlone(&self.file, source).is_ok())
    }
}

impl Write for OutFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all_at(bytes, self.at)?;
        self.at += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for OutFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.file.metadata()?.len().checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// Writes a new file whole, with mode 0600, and syncs it.
///
/// # Errors
/// There is one of that name, or the disk fails.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OutFile::create(path)?;
    file.write_all(bytes)?;
    file.sync()
}

/// Makes a directory.
///
/// # Errors
/// It is there, or cannot be made.
pub fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    fs::DirBuilder::new().mode(mode).create(path)?;
    made_dir(path);
    Ok(())
}

/// Tells the record of a directory that something else just made.
pub fn made_dir(path: &Path) {
    note(path, || Event::MakeDir(path.to_owned()));
}

/// Makes a directory's entries durable.
///
/// # Errors
/// The directory cannot be opened or synced.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    let dir = File::open(path)?;
    sync_open_dir(&dir, path)
}

/// Makes the entries of a directory that is open durable.
///
/// # Errors
/// The directory cannot be synced.
pub fn sync_open_dir(dir: &File, path: &Path) -> io::Result<()> {
    dir.sync_all()?;
    note(path, || Event::SyncDir(path.to_owned()));
    Ok(())
}

/// Renames without replacing anything.
///
/// # Errors
/// Something has the name, or the disk fails.
pub fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        // A file system that cannot promise it (some network ones): look first.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP) => {
            if fs::symlink_metadata(to).is_ok() {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            fs::rename(from, to)?;
        }
        Err(error) => return Err(error.into()),
    }
    note(to, || Event::Rename { from: from.to_owned(), to: to.to_owned() });
    Ok(())
}

/// Renames over a file that may be there.
///
/// # Errors
/// The disk fails.
pub fn rename_over(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    note(to, || Event::Rename { from: from.to_owned(), to: to.to_owned() });
    Ok(())
}

/// Makes two names change places in one step.
///
/// # Errors
/// One is not there, or the file system cannot do it: `InvalidInput` or `Unsupported` then.
pub fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?;
    note(one, || Event::Exchange(one.to_owned(), other.to_owned()));
    Ok(())
}

/// Removes a file.
///
/// # Errors
/// It is not there, or cannot be removed.
pub fn remove_file(path: &Path) -> io::Result<()> {
    fs::remove_file(path)?;
    note(path, || Event::Remove(path.to_owned()));
    Ok(())
}

/// Removes a directory and all in it.
///
/// # Errors
/// It is not there, or cannot be removed.
pub fn remove_dir_all(path: &Path) -> io::Result<()> {
    fs::remove_dir_all(path)?;
    note(path, || Event::RemoveDir(path.to_owned()));
    Ok(())
}

/// Removes a directory that holds nothing.
///
/// # Errors
/// It holds something, is not there, or cannot be removed.
pub fn remove_empty_dir(path: &Path) -> io::Result<()> {
    fs::remove_dir(path)?;
    note(path, || Event::RemoveDir(path.to_owned()));
    Ok(())
}

/// Free bytes for an ordinary user where `path` is or will be; `None` where that is not known.
#[must_use]
pub fn free_bytes(path: &Path) -> Option<u64> {
    let existing = path.ancestors().find(|path| path.is_dir())?;
    let stat = rustix::fs::statvfs(existing).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_disk_lost_is_not_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let file = OutFile::create(&folder.path().join("f")).unwrap();
        file.write_all_at(b"abc", 0).unwrap();
        file.begin();
        file.sync().unwrap();
        let lost = file.remember(Err(io::Error::from_raw_os_error(5)));
        assert_eq!(lost.unwrap_err().raw_os_error(), Some(5));
        file.begin();
        assert_eq!(file.sync().unwrap_err().raw_os_error(), Some(5));
    }
}
