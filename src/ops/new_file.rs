//! Makes a file appear whole or not at all.
//!
//! 1. Until [`NewFile::publish`] there is no file of that name; after a failure or a signal the
//!    temporary is gone. After `kill -9` it stays behind, dot-named so that nothing takes it for a
//!    backup; the next run for the same name sees that nobody holds its lock and removes it.
//! 2. Nothing is replaced: a file that is there is refused before and at the rename.
//! 3. It is synced before it is renamed, and its folder after.

use std::fs::{self, File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::disk::{self, OutFile};
use super::{Error, stage};

const MARK: &str = ".etcdkit-";

/// A file that is being made. Dropped unpublished, it is removed.
#[derive(Debug)]
pub struct NewFile {
    target: PathBuf,
    temporary: tempfile::TempPath,
    out: OutFile,
    removed: Vec<PathBuf>,
}

impl NewFile {
    /// Refuses a name that is taken or cannot be a file's; changes nothing.
    ///
    /// # Errors
    /// Something is there ([`super::ExitCode::Refused`]), or its folder is not.
    pub fn check(target: &Path) -> Result<PathBuf, Error> {
        let target = stage::absolute(target)?;
        if target.file_name().is_none() {
            return Err(Error::usage(format!("{} is no name of a file", target.display())));
        }
        let folder = target.parent().unwrap_or(Path::new("/"));
        if !folder.is_dir() {
            let error = ErrorKind::NotFound.into();
            return Err(Error::io(&error, "write into", folder));
        }
        match fs::symlink_metadata(&target) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(target),
            Err(error) => Err(Error::io(&error, "look at", &target)),
            Ok(_) => Err(taken(&target)),
        }
    }

    /// Starts a file; removes what killed runs left of it.
    ///
    /// # Errors
    /// See [`NewFile::check`], and the disk.
    pub fn create(target: &Path) -> Result<Self, Error> {
        let target = Self::check(target)?;
        let folder = target.parent().unwrap_or(Path::new("/"));
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let prefix = format!(".{name}{MARK}");
        let removed = remove_dead(folder, &prefix);
        let failed = |error| Error::io(&error, "make a file in", folder);
        let made = tempfile::Builder::new().prefix(&prefix).tempfile_in(folder).map_err(failed)?;
        let (file, temporary) = made.into_parts();
        // The lock says that we live. A file system without locks has no dead ones told apart.
        let _ = file.try_lock();
        let out = OutFile::of_new(file, &temporary);
        Ok(Self { target, temporary, out, removed })
    }

    /// The file to write.
    pub fn out(&mut self) -> &mut OutFile {
        &mut self.out
    }

    /// Where it stands until it is published.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// The name that it gets.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// What killed runs had left and is gone now.
    #[must_use]
    pub fn removed(&self) -> &[PathBuf] {
        &self.removed
    }

    /// Syncs the file and gives it its name.
    ///
    /// # Errors
    /// The disk fails, or the name was taken meanwhile; there is no new file then.
    pub fn publish(self) -> Result<(), Error> {
        let failed = |error: std::io::Error| match error.kind() {
            ErrorKind::AlreadyExists => taken(&self.target),
            _ => Error::io(&error, "write", &self.target),
        };
        self.out.sync().map_err(failed)?;
        disk::rename_new(&self.temporary, &self.target).map_err(failed)?;
        let folder = self.target.parent().unwrap_or(Path::new("/"));
        let synced = disk::sync_dir(folder);
        // The name is given; the temporary's must not be removed any more.
        let kept = self.temporary.keep();
        drop(kept);
        synced.map_err(|error| Error::io(&error, "sync", folder))
    }
}

fn taken(target: &Path) -> Error {
    Error::refused(format!("{} exists; nothing was changed", target.display()))
        .hint("choose another name; nothing is ever overwritten")
}

/// Removes temporaries that no living run holds.
fn remove_dead(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| {
        let name = entry.file_name();
        let tail = name.to_str().and_then(|name| name.strip_prefix(prefix)).unwrap_or_default();
        tail.len() == 6
            && tail.chars().all(|c| c.is_ascii_alphanumeric())
            && entry.file_type().is_ok_and(|kind| kind.is_file())
    });
    ours.map(|entry| entry.path())
        .filter(|path| {
            File::open(path)
                .is_ok_and(|file| !matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
        })
        .filter(|path| disk::remove_file(path).is_ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::ops::ExitCode;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("new");
        let mut file = NewFile::create(&target).unwrap();
        file.out().write_all(b"abc").unwrap();
        assert!(!target.exists());
        drop(file);
        assert_eq!(names(folder.path()), [""; 0]);
        let mut file = NewFile::create(&target).unwrap();
        file.out().write_all(b"abc").unwrap();
        file.publish().unwrap();
        assert_eq!(names(folder.path()), ["new"]);
        assert_eq!(fs::read(&target).unwrap(), b"abc");
    }

    #[test]
    fn nothing_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("new");
        let file = NewFile::create(&target).unwrap();
        fs::write(&target, b"theirs").unwrap();
        assert_eq!(file.publish().unwrap_err().code, ExitCode::Refused);
        assert_eq!(NewFile::create(&target).unwrap_err().code, ExitCode::Refused);
        assert_eq!(names(folder.path()), ["new"]);
        assert_eq!(fs::read(&target).unwrap(), b"theirs");
    }

    #[test]
    fn dead_temporaries_are_removed_and_living_ones_kept() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("new");
        fs::write(folder.path().join(".new.etcdkit-AbC123"), b"half").unwrap();
        fs::write(folder.path().join(".new.etcdkit-other-name"), b"theirs").unwrap();
        let living = NewFile::create(&target).unwrap();
        assert_eq!(living.removed().len(), 1);
        let second = NewFile::create(&target).unwrap();
        assert_eq!(second.removed(), &[] as &[PathBuf]);
        drop((living, second));
        assert_eq!(names(folder.path()), [".new.etcdkit-other-name"]);
    }
}
