//! Makes a directory appear whole or not at all.
//!
//! Invariants:
//!
//! 1. Until [`Stage::publish`] the target is untouched; after a failure or a signal it is as it
//!    was and the temporary is gone. After `kill -9` the temporary stays behind; the next run
//!    recognises it as dead (nobody holds its lock), removes it and says so.
//! 2. Everything is synced before it is renamed, and the parents after.
//! 3. Nothing that was there is deleted: with `force` it is moved aside, also when the run is
//!    killed or fails in the middle of that.
//!
//! Where it is built: beside the target, as `.NAME.etcdkit-RANDOM`. An existing empty directory
//! (it may be a mount point, which cannot be renamed over) is kept: there the temporary is a
//! dot-named folder inside and `member` is renamed last.

use std::ffi::OsString;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use super::disk::{self, OutFile, rename_new, sync_dir};
use super::{Error, ExitCode, clock, holder};

const MARK: &str = ".etcdkit-";
/// Start of the name of a file that stands in a temporary as long as it may be thrown away; the
/// temporary's own random letters follow. A run that is killed while it swaps a new directory with
/// an old one leaves the old one under a temporary's name: without this file it is never removed.
const STAGE_FILE: &str = ".etcdkit-stage-";

/// What stands at the target before anything is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Absent,
    /// A directory that holds nothing, but for `lost+found` and dead temporaries.
    Empty,
    /// A directory that holds something: these names.
    Occupied(Vec<String>),
}

/// A target that was looked at and may be built.
#[derive(Clone, Debug)]
pub struct Target {
    path: PathBuf,
    found: Found,
    /// Owner to keep, of a directory that is there.
    owner: Option<(u32, u32)>,
    is_mount: bool,
    /// The directory itself is replaced, also where it is empty.
    as_whole: bool,
    dead: Vec<PathBuf>,
    left_alone: Vec<PathBuf>,
}

impl Target {
    /// Looks at a data directory's place; changes nothing.
    ///
    /// # Errors
    /// It is a file or a broken link ([`ExitCode::Refused`]), is held by a running etcd
    /// ([`ExitCode::InUse`]), holds something and `force` is not given ([`ExitCode::Refused`]),
    /// or cannot be read.
    pub fn inspect(path: &Path, force: bool) -> Result<Self, Error> {
        let io = |error: io::Error| Error::io(&error, "look at", path);
        let path = absolute(path)?;
        if path.file_name().is_none() {
            return Err(Error::refused(format!("{} cannot be a data directory", path.display())));
        }
        let parent = path.parent().unwrap_or(Path::new("/")).to_owned();
        let mut target = Self {
            path,
            found: Found::Absent,
            owner: None,
            is_mount: false,
            as_whole: false,
            dead: Vec::new(),
            left_alone: Vec::new(),
        };
        (target.dead, target.left_alone) = dead_stages(&parent, &target.prefix());
        // A member's own folder, or its WAL: what is around it may be a server's.
        let is_inside = target.path.file_name().is_some_and(|name| name == "member");
        if is_inside && let Some(who) = holder::of_member_dir(&target.path) {
            let message = format!("{} is in use by {who}", target.path.display());
            return Err(Error::new(ExitCode::InUse, message).hint("stop that etcd first"));
        }
        match fs::symlink_metadata(&target.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(target),
            Err(error) => return Err(io(error)),
            Ok(_) => {}
        }
        let meta = fs::metadata(&target.path).map_err(|error| {
            Error::refused(format!("{} is a link to nothing: {error}", target.path.display()))
        })?;
        if !meta.is_dir() {
            let message = format!("{} is there and is not a directory", target.path.display());
            return Err(Error::refused(message).hint("choose another --data-dir"));
        }
        target.owner = Some((meta.uid(), meta.gid()));
        target.is_mount = fs::metadata(&parent).is_ok_and(|above| above.dev() != meta.dev());
        let (dead, left_alone) = dead_stages(&target.path, MARK);
        target.dead.extend(dead);
        target.left_alone.extend(left_alone);
        let mut names = Vec::new();
        for entry in fs::read_dir(&target.path).map_err(io)? {
            let entry = entry.map_err(io)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let is_mark = name.starts_with(STAGE_FILE);
            if name != "lost+found" && !is_mark && !target.dead.contains(&entry.path()) {
                names.push(name);
            }
        }
        names.sort();
        target.found = if names.is_empty() { Found::Empty } else { Found::Occupied(names) };
        target.may_replace(force)?;
        Ok(target)
    }

    /// Wants the directory to appear in one step with all that is in it, and not `member` alone.
    ///
    /// # Errors
    /// It is a mount point, which cannot be renamed over.
    pub fn as_whole(mut self) -> Result<Self, Error> {
        if self.is_mount {
            let message = format!("{} is a mount point", self.path.display());
            let below = self.path.join("restored");
            return Err(Error::refused(message)
                .hint(format!("give a folder in it, such as {}", below.display())));
        }
        self.as_whole = true;
        Ok(self)
    }

    fn not_in_use(&self) -> Result<(), Error> {
        let Some(who) = holder::of_tree(&self.path) else { return Ok(()) };
        let message = format!("{} is in use by {who}", self.path.display());
        Err(Error::new(ExitCode::InUse, message)
            .hint("stop that etcd first, or restore into another directory"))
    }

    fn may_replace(&self, force: bool) -> Result<(), Error> {
        let Found::Occupied(names) = &self.found else { return Ok(()) };
        self.not_in_use()?;
        if force {
            return Ok(());
        }
        let mut shown = names.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        if names.len() > 5 {
            shown.push_str(", ...");
        }
        let message = format!(
            "data-dir {} is not empty (it holds {shown}); nothing was changed",
            self.path.display()
        );
        Err(Error::refused(message)
            .hint("choose a --data-dir that does not exist yet")
            .hint("or --force, which moves what is there aside and deletes nothing"))
    }

    /// Names that [`Stage::publish`] moves aside.
    #[must_use]
    pub fn in_the_way(&self) -> Vec<String> {
        match &self.found {
            Found::Occupied(names) if self.is_mount => {
                names.iter().filter(|name| *name == "member").cloned().collect()
            }
            Found::Occupied(names) => names.clone(),
            Found::Absent | Found::Empty => Vec::new(),
        }
    }

    /// What stands there now.
    #[must_use]
    pub fn found(&self) -> &Found {
        &self.found
    }

    /// The absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Owner and group of the directory that is there.
    #[must_use]
    pub fn owner(&self) -> Option<(u32, u32)> {
        self.owner
    }

    /// Temporaries of earlier runs that were killed.
    #[must_use]
    pub fn dead(&self) -> &[PathBuf] {
        &self.dead
    }

    /// Folders with a temporary's name that may hold data which a killed swap moved there.
    #[must_use]
    pub fn left_alone(&self) -> &[PathBuf] {
        &self.left_alone
    }

    /// Free bytes for an ordinary user where the target will be; `None` where that is not known.
    #[must_use]
    pub fn free_bytes(&self) -> Option<u64> {
        disk::free_bytes(&self.path)
    }

    /// True when what is there must be replaced: the directory is kept and its contents moved.
    fn keeps_directory(&self) -> bool {
        (self.found == Found::Empty || self.is_mount) && !self.as_whole
    }

    fn prefix(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        format!(".{name}{MARK}")
    }

    /// Makes the temporary directory; removes dead ones first.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn stage(self) -> Result<Stage, Error> {
        for dead in &self.dead {
            disk::remove_dir_all(dead).map_err(|error| Error::io(&error, "remove", dead))?;
        }
        let inside = self.keeps_directory();
        let parent = self.path.parent().unwrap_or(Path::new("/")).to_owned();
        let mut made = Vec::new();
        if !inside {
            let missing: Vec<_> = parent.ancestors().take_while(|path| !path.exists()).collect();
            for path in missing.into_iter().rev() {
                // Whoever etcd runs as must be able to pass through.
                if let Err(error) = disk::make_dir(path, 0o755) {
                    remove_empty(&made);
                    return Err(Error::io(&error, "make", path));
                }
                made.push(path.to_owned());
            }
        }
        let (folder, prefix) =
            if inside { (&self.path, MARK.to_owned()) } else { (&parent, self.prefix()) };
        let modified = fs::metadata(folder).and_then(|meta| meta.modified()).ok();
        let was = modified.filter(|_| inside).map(|modified| (folder.clone(), modified));
        let temporary = tempfile::Builder::new()
            .prefix(&prefix)
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .tempdir_in(folder)
            .map_err(|error| {
                remove_empty(&made);
                Error::io(&error, "make a folder in", folder)
            })?;
        disk::made_dir(temporary.path());
        let mut stage =
            Stage { target: self, inside, temporary: Some(temporary), made, was, lock: None };
        // The lock says that we live; it goes with us, however we end. Another run that looks for
        // dead temporaries holds it for a moment.
        let path = stage.path().to_owned();
        let lock = File::open(&path).map_err(|error| Error::io(&error, "open", &path))?;
        let mut tries = 50;
        while matches!(lock.try_lock(), Err(TryLockError::WouldBlock)) {
            tries -= 1;
            if tries == 0 {
                return Err(Error::new(ExitCode::InUse, format!("{} is locked", path.display())));
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        stage.lock = Some(lock);
        let mark = path.join(mark_of(&path));
        // Durable before anything else is in there, so that what is left is known to be ours.
        OutFile::create(&mark)
            .and_then(|_| sync_dir(&path))
            .map_err(|error| Error::io(&error, "make", &mark))?;
        Ok(stage)
    }
}

/// Makes a path absolute; `..` in it is resolved as the file system has it.
///
/// # Errors
/// Refused, where `..` follows something that is not there: it may come to mean another place.
pub fn absolute(path: &Path) -> Result<PathBuf, Error> {
    let full = std::path::absolute(path).map_err(|error| Error::io(&error, "look at", path))?;
    if !full.components().any(|part| part == Component::ParentDir) {
        return Ok(full);
    }
    let parent = full.parent().and_then(|parent| fs::canonicalize(parent).ok());
    match (parent, full.file_name()) {
        (Some(parent), Some(name)) => Ok(parent.join(name)),
        _ => {
            let message = format!("{} has .. behind what is not there", path.display());
            Err(Error::refused(message).hint("give the path without .."))
        }
    }
}

/// Finds temporaries in `folder` that no living run holds: those that may be thrown away, and
/// those that may hold somebody's data.
fn dead_stages(folder: &Path, prefix: &str) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let tail = name.strip_prefix(prefix).unwrap_or_default();
        tail.len() == 6 && tail.chars().all(|c| c.is_ascii_alphanumeric())
    });
    let is_stage = |path: &PathBuf| {
        path.join(mark_of(path)).exists()
            || fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
    };
    ours.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .filter(|path| File::open(path).is_ok_and(|file| file.try_lock().is_ok()))
        .partition(is_stage)
}

fn remove_empty(made: &[PathBuf]) {
    for path in made.iter().rev() {
        // Somebody else may have put something there in the meantime; then it stays.
        let _ = disk::remove_empty_dir(path);
    }
}

/// A directory that is being built. Dropped unpublished, it is removed.
#[derive(Debug)]
pub struct Stage {
    target: Target,
    inside: bool,
    temporary: Option<tempfile::TempDir>,
    made: Vec<PathBuf>,
    /// The target, where the temporary is inside it, and when it was last changed.
    was: Option<(PathBuf, SystemTime)>,
    /// Held while the directory is being built.
    lock: Option<File>,
}

/// What publishing did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Where what was there stands now.
    pub moved_aside: Option<PathBuf>,
    /// What failed after the directory was in place.
    pub warnings: Vec<String>,
}

impl Stage {
    /// The directory to build in; it becomes the target.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.temporary.as_ref().map_or(Path::new(""), tempfile::TempDir::path)
    }

    /// Renames the built directory to its target. All of it must be synced already.
    ///
    /// `wal`: a WAL directory that was built elsewhere, and where it goes.
    ///
    /// # Errors
    /// A rename failed; everything is as it was.
    pub fn publish(mut self, wal: Option<(&Path, &Path)>) -> Result<Published, Error> {
        let target = self.target.path.clone();
        let mark = mark_of(self.path());
        // Opened before anything is renamed: what cannot be synced is found out while it is early.
        let mut sync = Vec::new();
        let made = self.made.iter().filter_map(|path| path.parent());
        let wal_parent = wal.and_then(|(_, to)| to.parent());
        for folder in made.chain(target.parent()).chain(wal_parent) {
            let open = File::open(folder).map_err(|error| Error::io(&error, "open", folder))?;
            sync.push((open, folder.to_owned()));
        }
        if matches!(self.target.found, Found::Occupied(_)) {
            self.target.not_in_use()?;
        }
        if let Some((from, to)) = wal {
            // For good before the data directory is there: one without its WAL is worse than none.
            let synced = || to.parent().map_or(Ok(()), sync_dir);
            rename_new(from, to)
                .and_then(|()| synced().inspect_err(|_| drop(rename_new(to, from))))
                .map_err(|error| Error::io(&error, "rename the WAL directory to", to))?;
        }
        let moved_aside = match self.swap_in() {
            Ok(moved_aside) => moved_aside,
            Err(error) => {
                if let Some((from, to)) = wal {
                    let _ = rename_new(to, from);
                }
                return Err(Error::io(&error, "rename the restored directory to", &target));
            }
        };
        // From here on the target is there, whatever else happens: what fails is a warning.
        self.made.clear();
        let built = self.temporary.take().map(tempfile::TempDir::keep);
        let mut published = Published { moved_aside, warnings: Vec::new() };
        let mut outcomes: Vec<io::Result<()>> = Vec::new();
        // Only now: a run that is killed before leaves something that is known to be its own.
        outcomes.extend(wal.map(|(from, to)| unmark(to, &mark_of(from))));
        outcomes.push(if self.inside { sync_dir(&target) } else { unmark(&target, &mark) });
        outcomes.extend(sync.iter().map(|(folder, path)| disk::sync_open_dir(folder, path)));
        if let Some(built) = built.filter(|_| self.inside) {
            // What was in it has its new name for good: it need not be told for ours any more.
            // What else is in there would be somebody's work, and stays.
            let _ = disk::remove_file(&built.join(&mark));
            let _ = disk::remove_empty_dir(&built);
        }
        for outcome in outcomes {
            if let Err(error) = outcome {
                published.warnings.push(format!(
                    "{} is in place, but a folder could not be synced: {error}; run sync",
                    target.display()
                ));
            }
        }
        Ok(published)
    }

    /// Gives the built directory its name; returns where what was there stands now.
    fn swap_in(&mut self) -> io::Result<Option<PathBuf>> {
        let target = &self.target.path;
        if self.inside {
            // A mount point stays; only what a new member collides with is moved.
            let member = target.join("member");
            let aside = match self.target.in_the_way().is_empty() {
                true => None,
                false => Some(aside_name(&member)),
            };
            if let Some(aside) = &aside {
                rename_new(&member, aside)?;
            }
            return match (rename_new(&self.path().join("member"), &member), aside) {
                (Ok(()), aside) => Ok(aside),
                (Err(error), Some(aside)) => {
                    let _ = rename_new(&aside, &member);
                    Err(error)
                }
                (Err(error), None) => Err(error),
            };
        }
        match self.target.found {
            Found::Absent => {
                rename_new(self.path(), target)?;
                return Ok(None);
            }
            // Refused by the system when it is not empty any more.
            Found::Empty => {
                disk::rename_over(self.path(), target)?;
                return Ok(None);
            }
            Found::Occupied(_) => {}
        }
        self.swap().map(Some)
    }

    /// Puts the built directory in the place of another one, which gets a name that says what it
    /// is. One step, so that there is a directory at every moment.
    ///
    /// For a moment the old directory has the temporary's name. So the temporary is given up
    /// first: what stands under that name is removed only where it is known to be ours.
    fn swap(&mut self) -> io::Result<PathBuf> {
        let built = match self.temporary.take() {
            Some(temporary) => temporary.keep(),
            None => return Err(ErrorKind::NotFound.into()),
        };
        let target = &self.target.path;
        let aside = aside_name(target);
        let exchange = || disk::exchange(&built, target);
        let (error, built_is_ours) = match exchange() {
            Ok(()) => match rename_new(&built, &aside) {
                Ok(()) => return Ok(aside),
                Err(error) => (error, exchange().is_ok()),
            },
            Err(error)
                if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) =>
            {
                match rename_new(target, &aside).and_then(|()| rename_new(&built, target)) {
                    Ok(()) => return Ok(aside),
                    Err(error) => {
                        // Refused where the first rename failed: the target is still there.
                        let _ = rename_new(&aside, target);
                        (error, true)
                    }
                }
            }
            Err(error) => (error, true),
        };
        if built_is_ours {
            let _ = disk::remove_dir_all(&built);
        }
        Err(error)
    }
}

/// Names the file that says of a temporary that it may be thrown away.
fn mark_of(temporary: &Path) -> String {
    let name = temporary.file_name().unwrap_or_default().to_string_lossy();
    let letters = name.rsplit('-').next().unwrap_or_default();
    format!("{STAGE_FILE}{letters}")
}

/// Takes the mark off a directory that has its name now.
fn unmark(path: &Path, mark: &str) -> io::Result<()> {
    disk::remove_file(&path.join(mark))?;
    sync_dir(path)
}

/// Makes the name under which something is kept that was in the way.
fn aside_name(path: &Path) -> PathBuf {
    let stamp = clock::compact();
    let named = |end: &str| {
        let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
        name.push(format!(".before-{stamp}{end}"));
        path.with_file_name(name)
    };
    // Two runs in one second must not want the same name.
    let mut names = std::iter::once(named("")).chain((2..100).map(|n| named(&format!("-{n}"))));
    names.find(|path| fs::symlink_metadata(path).is_err()).unwrap_or_else(|| named(""))
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            // What cannot be removed is dead to the next run.
            let _ = disk::remove_dir_all(&temporary.keep());
            if let Some((folder, modified)) = &self.was {
                // Nothing was done in there, so it says so.
                let _ = File::open(folder).and_then(|folder| folder.set_modified(*modified));
            }
        }
        remove_empty(&self.made);
    }
}

/// Gives everything below a directory, itself included, to an owner.
///
/// # Errors
/// The owner cannot be set, which takes root.
pub fn give_to(path: &Path, uid: u32, gid: u32) -> io::Result<()> {
    std::os::unix::fs::lchown(path, Some(uid), Some(gid))?;
    if fs::symlink_metadata(path)?.is_dir() {
        for entry in fs::read_dir(path)? {
            give_to(&entry?.path(), uid, gid)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(stage: &Stage) {
        fs::create_dir(stage.path().join("member")).unwrap();
        File::create(stage.path().join("member").join("new")).unwrap();
    }

    fn names(path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a").join("b").join("data");
        let stage = Target::inspect(&path, false).unwrap().stage().unwrap();
        build(&stage);
        assert!(!path.exists());
        drop(stage);
        assert_eq!(names(folder.path()), Vec::<String>::new());
        let stage = Target::inspect(&path, false).unwrap().stage().unwrap();
        build(&stage);
        stage.publish(None).unwrap();
        assert_eq!(names(&path), ["member"]);
        assert_eq!(names(path.parent().unwrap()), ["data"]);
    }

    #[test]
    fn an_empty_directory_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("lost+found")).unwrap();
        let inode = fs::metadata(folder.path()).unwrap().ino();
        let stage = Target::inspect(folder.path(), false).unwrap().stage().unwrap();
        build(&stage);
        assert!(!folder.path().join("member").exists());
        stage.publish(None).unwrap();
        assert_eq!(names(folder.path()), ["lost+found", "member"]);
        assert_eq!(fs::metadata(folder.path()).unwrap().ino(), inode);
    }

    #[test]
    fn what_is_there_is_refused_or_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        fs::create_dir_all(path.join("member")).unwrap();
        File::create(path.join("stray")).unwrap();
        let refused = Target::inspect(&path, false).unwrap_err();
        assert_eq!(refused.code, ExitCode::Refused);
        assert!(refused.message.contains("member, stray"), "{}", refused.message);
        let stage = Target::inspect(&path, true).unwrap().stage().unwrap();
        build(&stage);
        let aside = stage.publish(None).unwrap().moved_aside.unwrap();
        assert_eq!(names(&aside), ["member", "stray"]);
        assert_eq!(names(&path), ["member"]);
        assert_eq!(names(&path.join("member")), ["new"]);
    }

    #[test]
    fn dead_temporaries_are_removed_and_living_ones_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let dead = folder.path().join(".data.etcdkit-AbC123");
        fs::create_dir(&dead).unwrap();
        File::create(dead.join(".etcdkit-stage-AbC123")).unwrap();
        File::create(dead.join("half")).unwrap();
        // An old data directory that a killed swap left under a temporary's name.
        let old = folder.path().join(".data.etcdkit-OlDoLd");
        fs::create_dir_all(old.join("member")).unwrap();
        // It was new once itself, in a run that was killed right after it got its name.
        File::create(old.join(".etcdkit-stage-AbC123")).unwrap();
        fs::create_dir(folder.path().join(".data.etcdkit-other-name")).unwrap();
        let living = Target::inspect(&path, false).unwrap().stage().unwrap();
        assert!(!folder.path().join(".data.etcdkit-AbC123").exists());
        let second = Target::inspect(&path, false).unwrap();
        assert_eq!(second.dead(), &[] as &[PathBuf]);
        let second = second.stage().unwrap();
        assert!(living.path().exists());
        drop(second);
        drop(living);
        assert_eq!(names(folder.path()), [".data.etcdkit-OlDoLd", ".data.etcdkit-other-name"]);
    }

    #[test]
    fn a_directory_as_a_whole_keeps_all_that_was_built() {
        let folder = tempfile::tempdir().unwrap();
        for there in [false, true] {
            let path = folder.path().join(format!("data-{there}"));
            if there {
                fs::create_dir(&path).unwrap();
            }
            let target = Target::inspect(&path, false).unwrap().as_whole().unwrap();
            let stage = target.stage().unwrap();
            fs::create_dir(stage.path().join("m1")).unwrap();
            fs::create_dir(stage.path().join("member")).unwrap();
            stage.publish(None).unwrap();
            assert_eq!(names(&path), ["m1", "member"]);
        }
        assert_eq!(names(folder.path()), ["data-false", "data-true"]);
    }

    #[test]
    fn files_and_broken_links_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        File::create(&file).unwrap();
        assert_eq!(Target::inspect(&file, true).unwrap_err().code, ExitCode::Refused);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert_eq!(Target::inspect(&link, true).unwrap_err().code, ExitCode::Refused);
    }

    #[test]
    fn a_target_that_appears_meanwhile_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let stage = Target::inspect(&path, false).unwrap().stage().unwrap();
        build(&stage);
        fs::create_dir(&path).unwrap();
        assert!(stage.publish(None).is_err());
        assert_eq!(names(folder.path()), ["data"]);
        assert_eq!(names(&path), Vec::<String>::new());
    }
}
