//! Every change to a disk that a running database or log makes, in one place.
//!
//! A [`Disk`] is the operating system's, or the same with a [`Probe`] that sees each change before
//! it is made and after: a test records them to replay a loss of power at any moment, or makes one
//! fail. Without a probe nothing is copied.
//!
//! 1. A file remembers that the disk lost what was written: Linux tells it once, to whoever syncs
//!    first, so no later sync may say that all is well.
//! 2. Files are made with mode 0600 and directories with 0700, unless they are to be somebody's
//!    ([`Disk::giving`]): then they are from the moment they are made.
//! 3. A disk can be one that nothing changes ([`Disk::kept_in_memory`]): what is written to its
//!    files stays in memory, above what they hold.
//!
//! Source: Linux `errseq_t`; bbolt `db.go` and etcd `wal.go` for what is synced when.

mod above;

use std::fmt::Debug;
use std::fs;
use std::io;
use std::os::unix::fs::{
    DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::format::u64_of;
use above::Above;

/// One change, as it is asked of the operating system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A new empty file, which later events call by this number.
    Create {
        /// The file's number.
        file: u64,
        /// Its path.
        path: PathBuf,
    },
    /// A file that was there is opened to be changed.
    Open {
        /// The file's number.
        file: u64,
        /// Its path.
        path: PathBuf,
    },
    /// Bytes are written.
    Write {
        /// The file's number.
        file: u64,
        /// Where, in bytes.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// A file is cut or grown.
    SetLen {
        /// The file's number.
        file: u64,
        /// Its new length in bytes.
        len: u64,
    },
    /// Everything written to a file before is durable after this, and its length.
    Sync {
        /// The file's number.
        file: u64,
    },
    /// A new directory.
    MakeDir(PathBuf),
    /// The entries of a directory are durable after this.
    SyncDir(PathBuf),
    /// A new name; what had it is gone.
    Rename {
        /// The old name.
        from: PathBuf,
        /// The new one.
        to: PathBuf,
    },
    /// Two names change places.
    Exchange(PathBuf, PathBuf),
    /// A file's name is gone.
    Remove(PathBuf),
    /// A directory and all in it is gone.
    RemoveDir(PathBuf),
}

/// What a probe lets happen.
#[derive(Debug)]
pub enum Verdict {
    /// The change is made.
    Go,
    /// The change is not made, and this is the answer.
    Fail(io::Error),
    /// Of a write only so many bytes are made, and then this is the answer.
    Part(usize, io::Error),
}

/// Sees every change.
pub trait Probe: Debug + Send + Sync {
    /// Is told what is about to be done, and decides.
    fn before(&self, event: &Event) -> Verdict;
    /// Is told what was done.
    fn after(&self, event: Event);
}

static NEXT_FILE: AtomicU64 = AtomicU64::new(1);

/// Whose a file is, and what everybody may do with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Its permissions, without the type.
    pub mode: u32,
}

impl Ownership {
    /// Reads that of a file.
    #[must_use]
    pub fn of(meta: &fs::Metadata) -> Self {
        Self { uid: meta.uid(), gid: meta.gid(), mode: meta.mode() & 0o7777 }
    }

    /// Gives a file to the same owner, with the same permissions.
    ///
    /// # Errors
    /// Who runs this may not, or the disk fails.
    pub fn give(self, file: &fs::File) -> io::Result<()> {
        let now = Self::of(&file.metadata()?);
        if (now.uid, now.gid) != (self.uid, self.gid) {
            fchown(file, Some(self.uid), Some(self.gid)).map_err(|error| {
                let (uid, gid) = (self.uid, self.gid);
                io::Error::new(error.kind(), format!("it cannot be given to {uid}:{gid}: {error}"))
            })?;
        }
        // A change of the owner may have taken bits away.
        file.set_permissions(fs::Permissions::from_mode(self.mode))
    }
}

/// Where files are changed.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    probe: Option<Arc<dyn Probe>>,
    /// Nothing is made durable.
    skips_sync: bool,
    /// Nothing is changed.
    is_read_only: bool,
    /// Whose new files of a folder are to be.
    owners: Arc<Vec<(PathBuf, Ownership)>>,
}

impl Disk {
    /// Makes a disk whose changes a probe sees.
    #[must_use]
    pub fn with_probe(probe: Arc<dyn Probe>) -> Self {
        Self { probe: Some(probe), ..Self::default() }
    }

    /// Makes a disk that is only read: files that are opened can be written to, but what is written
    /// stays in memory, up to 512 MiB a file, and nobody else sees it. Nothing can be made, renamed
    /// or removed.
    #[must_use]
    pub fn kept_in_memory() -> Self {
        Self { is_read_only: true, ..Self::default() }
    }

    /// Returns the same disk, but that nothing is made durable: a loss of power may leave anything.
    #[must_use]
    pub fn unsynced(self) -> Self {
        Self { skips_sync: true, ..self }
    }

    /// Returns the same disk, but that files which are made in a folder, by this path, are this
    /// owner's before anything is in them.
    #[must_use]
    pub fn giving(mut self, folder: &Path, owner: Ownership) -> Self {
        Arc::make_mut(&mut self.owners).push((folder.to_owned(), owner));
        self
    }

    /// Makes a new file, for whom it is to be.
    fn make(&self, path: &Path) -> io::Result<fs::File> {
        let mut options = fs::OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(path)?;
        let owner = self.owners.iter().find(|(folder, _)| Some(folder.as_path()) == path.parent());
        if let Some((_, owner)) = owner
            && let Err(error) = owner.give(&file)
        {
            let _ = fs::remove_file(path);
            return Err(error);
        }
        Ok(file)
    }

    fn change<T>(
        &self,
        event: impl FnOnce() -> Event,
        work: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        if self.is_read_only {
            return Err(io::ErrorKind::ReadOnlyFilesystem.into());
        }
        let Some(probe) = &self.probe else { return work() };
        let event = event();
        match probe.before(&event) {
            Verdict::Go => {}
            Verdict::Fail(error) | Verdict::Part(_, error) => return Err(error),
        }
        let done = work()?;
        probe.after(event);
        Ok(done)
    }

    /// Makes a new file, to be written and read.
    ///
    /// # Errors
    /// There is one of that name, or it cannot be made.
    pub fn create(&self, path: &Path) -> io::Result<DiskFile> {
        let number = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
        let file = self
            .change(|| Event::Create { file: number, path: path.to_owned() }, || self.make(path))?;
        Ok(DiskFile::new(file, number, self.clone(), None))
    }

    /// Opens a file that is there, to be written and read.
    ///
    /// # Errors
    /// There is none, or it cannot be opened.
    pub fn open(&self, path: &Path) -> io::Result<DiskFile> {
        let number = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
        if self.is_read_only {
            let file = fs::File::open(path)?;
            let above = Above::new(file.metadata()?.len());
            return Ok(DiskFile::new(file, number, self.clone(), Some(above)));
        }
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true);
        let file = self.change(
            || Event::Open { file: number, path: path.to_owned() },
            || options.open(path),
        )?;
        Ok(DiskFile::new(file, number, self.clone(), None))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// It is there, or cannot be made.
    pub fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.change(
            || Event::MakeDir(path.to_owned()),
            || fs::DirBuilder::new().mode(0o700).create(path),
        )
    }

    /// Makes a directory's entries durable.
    ///
    /// # Errors
    /// The directory cannot be opened or synced.
    pub fn sync_dir(&self, path: &Path) -> io::Result<()> {
        if self.skips_sync {
            return Ok(());
        }
        self.change(|| Event::SyncDir(path.to_owned()), || fs::File::open(path)?.sync_all())
    }

    /// Renames; what has the new name is replaced.
    ///
    /// # Errors
    /// The disk fails.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.change(
            || Event::Rename { from: from.to_owned(), to: to.to_owned() },
            || fs::rename(from, to),
        )
    }

    /// Removes a file.
    ///
    /// # Errors
    /// There is none, or the disk fails.
    pub fn remove(&self, path: &Path) -> io::Result<()> {
        self.change(|| Event::Remove(path.to_owned()), || fs::remove_file(path))
    }
}

/// A file that is written by position.
#[derive(Debug)]
pub struct DiskFile {
    file: fs::File,
    number: u64,
    disk: Disk,
    lost: OnceLock<i32>,
    /// Somebody else may change it.
    is_given_up: AtomicBool,
    /// What was written, where the file itself is not to be changed.
    above: Option<Above>,
}

impl DiskFile {
    fn new(file: fs::File, number: u64, disk: Disk, above: Option<Above>) -> Self {
        let (lost, is_given_up) = (OnceLock::new(), AtomicBool::new(false));
        Self { file, number, disk, lost, is_given_up, above }
    }

    /// Tells whether the file itself is only read; see [`Disk::kept_in_memory`].
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.above.is_some()
    }

    /// Lets every read fail from now on, also one that is under way: called before a lock is given
    /// up, after which somebody else may change the file.
    pub fn give_up(&self) {
        self.is_given_up.store(true, Ordering::SeqCst);
    }

    /// Returns the open file, for reading, locks and metadata.
    #[must_use]
    pub fn file(&self) -> &fs::File {
        &self.file
    }

    /// Fills `buffer` from byte `offset` on.
    ///
    /// # Errors
    /// The file ends before, it was given up, or the disk fails.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let read = match &self.above {
            None => self.file.read_exact_at(buffer, offset),
            Some(above) => above.read(&self.file, buffer, offset),
        };
        // Looked at after the read: what was read before the lock was given up is right.
        if self.is_given_up.load(Ordering::SeqCst) {
            return Err(io::Error::other("the file was closed while it was read"));
        }
        read
    }

    /// Returns the file's length in bytes.
    ///
    /// # Errors
    /// The disk fails.
    pub fn len(&self) -> io::Result<u64> {
        match &self.above {
            None => Ok(self.file.metadata()?.len()),
            Some(above) => Ok(above.len()),
        }
    }

    /// Tells whether there are no bytes.
    ///
    /// # Errors
    /// The disk fails.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Writes all of `bytes` at a position.
    ///
    /// # Errors
    /// The disk fails; a part may be written.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if let Some(above) = &self.above {
            return above.write(&self.file, bytes, offset);
        }
        let Some(probe) = &self.disk.probe else { return self.file.write_all_at(bytes, offset) };
        let event =
            |bytes: &[u8]| Event::Write { file: self.number, offset, bytes: bytes.to_vec() };
        let whole = event(bytes);
        match probe.before(&whole) {
            Verdict::Go => {}
            Verdict::Fail(error) => return Err(error),
            Verdict::Part(count, error) => {
                let part = bytes.get(..count).unwrap_or(bytes);
                self.file.write_all_at(part, offset)?;
                probe.after(event(part));
                return Err(error);
            }
        }
        self.file.write_all_at(bytes, offset)?;
        probe.after(whole);
        Ok(())
    }

    /// Cuts or grows the file; what is grown reads as zeros.
    ///
    /// # Errors
    /// The disk fails.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        if let Some(above) = &self.above {
            above.set_len(len);
            return Ok(());
        }
        self.disk.change(|| Event::SetLen { file: self.number, len }, || self.file.set_len(len))
    }

    /// Gives the file blocks up to `len` bytes, so that writes there change no metadata; where the
    /// file system cannot, the file is only grown. It is not made shorter.
    ///
    /// # Errors
    /// There is no room, or the disk fails.
    pub fn allocate(&self, len: u64) -> io::Result<()> {
        let before = self.len()?;
        if before >= len {
            return Ok(());
        }
        if let Some(above) = &self.above {
            above.set_len(len);
            return Ok(());
        }
        self.disk.change(
            || Event::SetLen { file: self.number, len },
            || match rustix::fs::fallocate(&self.file, rustix::fs::FallocateFlags::empty(), 0, len)
            {
                Ok(()) => Ok(()),
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                    self.file.set_len(len)
                }
                Err(error) => Err(error.into()),
            },
        )
    }

    /// Makes what was written durable, and what is needed to read it back (fdatasync).
    ///
    /// # Errors
    /// The disk fails, or failed before: what was written may be lost.
    pub fn sync(&self) -> io::Result<()> {
        let synced = match self.lost.get() {
            Some(code) => Err(io::Error::from_raw_os_error(*code)),
            None if self.disk.skips_sync || self.above.is_some() => Ok(()),
            None => {
                self.disk.change(|| Event::Sync { file: self.number }, || self.file.sync_data())
            }
        };
        if let Err(error) = &synced {
            let code = error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error());
            let _ = self.lost.set(code);
        }
        synced
    }

    /// Writes zeros from `offset` up to `end`, so that they are really there.
    ///
    /// # Errors
    /// The disk fails.
    pub fn write_zeros(&self, offset: u64, end: u64) -> io::Result<()> {
        const CHUNK: [u8; 4096] = [0; 4096];
        let mut at = offset;
        while at < end {
            let left = end.saturating_sub(at).min(u64_of(CHUNK.len()));
            let part = CHUNK.get(..crate::format::usize_of(left)).unwrap_or(&CHUNK);
            self.write_all_at(part, at)?;
            at = at.saturating_add(left);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_files_of_a_folder_are_whose_they_are_to_be() {
        let top = tempfile::tempdir().unwrap();
        let (theirs, ours) = (top.path().join("theirs"), top.path().join("ours"));
        fs::create_dir(&theirs).unwrap();
        fs::create_dir(&ours).unwrap();
        let own = Ownership::of(&fs::metadata(&theirs).unwrap());
        let is_root = rustix::process::geteuid().is_root();
        let (uid, gid) = if is_root { (1234, 4321) } else { (own.uid, own.gid) };
        let owner = Ownership { uid, gid, mode: 0o640 };
        let disk = Disk::default().giving(&theirs, owner);
        let made = disk.create(&theirs.join("new")).unwrap();
        assert_eq!(Ownership::of(&made.file().metadata().unwrap()), owner);
        let made = disk.create(&ours.join("new")).unwrap();
        assert_eq!(Ownership::of(&made.file().metadata().unwrap()).mode, 0o600);
        if !is_root {
            // What cannot be given is not left either.
            let root = Ownership { uid: 0, ..owner };
            let disk = Disk::default().giving(&theirs, root);
            assert!(disk.create(&theirs.join("other")).is_err());
            assert!(!theirs.join("other").exists());
        }
    }
}
