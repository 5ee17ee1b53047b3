//! Makes a file appear whole or not at all.
//!
//! 1. Until [`NewFile::publish`] there is no file of that name; after a failure or a signal the
//!    temporary is gone. After `kill -9` it stays behind, dot-named so that nothing takes it for a
//!    backup; the next run for the same name sees that nobody holds its lock and removes it.
//! 2. Nothing is replaced: a file that is there is refused before and at the rename.
//! 3. It is synced before it is renamed, and its folder after.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::disk::{self, OutFile};
use super::{Error, ExitCode, shell_word, stage};

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
            return Err(no_folder(folder));
        }
        match fs::symlink_metadata(&target) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(target),
            Err(error) => Err(Error::io(&error, "look at", &target)),
            Ok(meta) if meta.is_dir() => {
                let message = format!("{} is a directory, and a file is made", target.display());
                Err(Error::refused(message).hint("name a file in it"))
            }
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
        let removed = remove_dead(folder, &name);
        let failed = |error| Error::io(&error, "make a file in", folder);
        let made = tempfile::Builder::new().prefix(&prefix).tempfile_in(folder).map_err(failed)?;
        let (file, temporary) = made.into_parts();
        // An odd umask may have taken its own owner's rights away.
        let _ = file.set_permissions(fs::Permissions::from_mode(0o600));
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
    /// The disk fails, or the name was taken meanwhile; there is no new file then. What fails after
    /// it has its name is returned as a warning.
    pub fn publish(self) -> Result<Vec<String>, Error> {
        self.publish_with(None)
    }

    /// Gives a file and its note their names, the note first: a file without its note is not seen.
    ///
    /// # Errors
    /// As [`NewFile::publish`]; neither has its name then.
    pub fn publish_with(self, note: Option<Self>) -> Result<Vec<String>, Error> {
        let all: Vec<Self> = note.into_iter().chain([self]).collect();
        for file in &all {
            file.out.sync().map_err(|error| Error::io(&error, "write", &file.target))?;
        }
        let mut named: Vec<PathBuf> = Vec::new();
        for file in all {
            // The one before has its name for good before this one gets its own.
            let before = named.last().and_then(|path| path.parent()).map_or(Ok(()), disk::sync_dir);
            let renamed = before.and_then(|()| disk::rename_new(&file.temporary, &file.target));
            if let Err(error) = renamed {
                for path in named {
                    // Ours, and of a moment ago; alone it would stand in the way of the next try.
                    let _ = disk::remove_file(&path);
                }
                return Err(match error.kind() {
                    ErrorKind::AlreadyExists => taken(&file.target),
                    _ => Error::io(&error, "write", &file.target),
                });
            }
            named.push(file.target.clone());
            // The name is given; the temporary's must not be removed any more.
            let _ = file.temporary.keep();
        }
        let mut folders: Vec<&Path> = named.iter().filter_map(|path| path.parent()).collect();
        folders.dedup();
        let synced = folders.iter().filter_map(|folder| {
            let error = disk::sync_dir(folder).err()?;
            let folder = folder.display();
            Some(format!("all is in place, but {folder} could not be synced: {error}; run sync"))
        });
        Ok(synced.collect())
    }

    /// Lists what killed runs left of files of some names in a folder: name and temporary.
    #[must_use]
    pub fn dead_of(folder: &Path, is_ours: &dyn Fn(&str) -> bool) -> Vec<(String, PathBuf)> {
        let all = dead(folder, is_ours).into_iter();
        all.filter_map(|path| {
            let name = path.file_name()?.to_str()?;
            Some((target_of(name)?.to_owned(), path.clone()))
        })
        .collect()
    }

    /// Removes a note that a killed run left: its file is not there, but what the run had of it is.
    ///
    /// Returns the note's path where it was removed.
    #[must_use]
    pub fn clear_dead_note(target: &Path, note: &Path) -> Option<PathBuf> {
        let target = stage::absolute(target).ok()?;
        let (folder, name) = (target.parent()?, target.file_name()?.to_string_lossy());
        let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
        let is_dead =
            !is_there(&target) && is_there(note) && !dead(folder, &|of| of == name).is_empty();
        (is_dead && disk::remove_file(note).is_ok()).then(|| note.to_owned())
    }
}

fn no_folder(folder: &Path) -> Error {
    let name = folder.display();
    match fs::metadata(folder) {
        Ok(_) => Error::refused(format!("{name} is no directory, so that no file goes into it"))
            .hint("choose another name"),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Error::new(ExitCode::NotFound, format!("there is no directory {name}"))
                .hint(format!("mkdir -p {}", shell_word(&name.to_string())))
        }
        Err(error) => Error::io(&error, "write into", folder),
    }
}

fn taken(target: &Path) -> Error {
    Error::refused(format!("{} exists; nothing was changed", target.display()))
        .hint("choose another name; nothing is ever overwritten")
}

/// Removes temporaries of a file that no living run holds.
fn remove_dead(folder: &Path, name: &str) -> Vec<PathBuf> {
    let all = dead(folder, &|of| of == name).into_iter();
    all.filter(|path| disk::remove_file(path).is_ok()).collect()
}

/// Reads the name that a temporary would have got.
fn target_of(temporary: &str) -> Option<&str> {
    let (name, tail) = temporary.strip_prefix('.')?.rsplit_once(MARK)?;
    (tail.len() == 6 && tail.chars().all(|c| c.is_ascii_alphanumeric())).then_some(name)
}

/// Finds temporaries that no living run holds, of files of some names; where locks do not work,
/// none is told for dead.
fn dead(folder: &Path, is_ours: &dyn Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| {
        let name = entry.file_name();
        // A name that is no text stands lossily in a temporary's name.
        target_of(&name.to_string_lossy()).is_some_and(is_ours)
            && entry.file_type().is_ok_and(|kind| kind.is_file())
    });
    let paths = ours.map(|entry| entry.path());
    let open = |path: &Path| fs::OpenOptions::new().read(true).write(true).open(path);
    paths.filter(|path| open(path).is_ok_and(|file| file.try_lock().is_ok())).collect()
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
    fn a_note_and_its_file_appear_together() {
        let folder = tempfile::tempdir().unwrap();
        let (target, note) = (folder.path().join("new"), folder.path().join("new.json"));
        let pair = || (NewFile::create(&target).unwrap(), NewFile::create(&note).unwrap());
        let (file, beside) = pair();
        fs::write(&target, b"theirs").unwrap();
        assert_eq!(file.publish_with(Some(beside)).unwrap_err().code, ExitCode::Refused);
        assert_eq!(names(folder.path()), ["new"]);
        fs::remove_file(&target).unwrap();
        let (file, beside) = pair();
        assert_eq!(file.publish_with(Some(beside)).unwrap(), [""; 0]);
        assert_eq!(names(folder.path()), ["new", "new.json"]);
    }

    #[test]
    fn a_note_without_its_file_is_removed_only_where_a_run_was_killed() {
        let folder = tempfile::tempdir().unwrap();
        let (target, note) = (folder.path().join("new"), folder.path().join("new.json"));
        fs::write(&note, b"{}").unwrap();
        assert_eq!(NewFile::clear_dead_note(&target, &note), None);
        let living = NewFile::create(&target).unwrap();
        assert_eq!(NewFile::clear_dead_note(&target, &note), None);
        drop(living);
        fs::write(folder.path().join(".new.etcdkit-AbC123"), b"half").unwrap();
        fs::write(&target, b"theirs").unwrap();
        assert_eq!(NewFile::clear_dead_note(&target, &note), None);
        fs::remove_file(&target).unwrap();
        assert_eq!(NewFile::clear_dead_note(&target, &note), Some(note.clone()));
        assert!(!note.exists());
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
