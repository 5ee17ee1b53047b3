//! Who holds a lock: bbolt's flock on a db file, and etcd's record locks on WAL segments.
//!
//! A lock that is held is named at once and never waited for. The holder's pid comes from
//! `/proc/locks`, and for locks of open files, which have none there, from who has the file open;
//! where that cannot be read the lock is still reported.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Error, ExitCode};
pub use crate::bolt::orphan::with_open;

/// Takes the shared lock that a reader of a bbolt file takes, without waiting.
///
/// A file system that knows no locks is not a reason to refuse a read.
///
/// # Errors
/// [`ExitCode::InUse`] when a writer has the file, naming its process.
pub fn share(file: &File, path: &Path) -> Result<(), Error> {
    match file.try_lock_shared() {
        Ok(()) | Err(TryLockError::Error(_)) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(in_use(file, path)),
    }
}

/// Takes the exclusive lock that a writer of a bbolt file takes, without waiting.
///
/// # Errors
/// [`ExitCode::InUse`] when somebody has the file, naming the process; the file system knows no
/// locks, so that nobody can tell.
pub fn own(file: &File, path: &Path) -> Result<(), Error> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(in_use(file, path)),
        Err(TryLockError::Error(error)) => Err(Error::io(&error, "lock", path)),
    }
}

/// Makes the error that names the holder of a file's lock.
#[must_use]
pub fn in_use(file: &File, path: &Path) -> Error {
    let who = file.metadata().ok().and_then(|meta| find(meta.dev(), meta.ino()));
    let who = who.unwrap_or_else(|| "another process".into());
    Error::new(ExitCode::InUse, format!("{} is in use by {who}", path.display()))
        .hint("etcdkit snapshot save FILE, which asks the running member for a snapshot")
        .hint("or stop that process first")
}

/// Finds who has a member directory open: its db or any of its WAL segments.
#[must_use]
pub fn of_member_dir(member: &Path) -> Option<String> {
    of_member(member, &member.join("wal"))
}

/// The same of a member whose WAL is in a directory of its own.
///
/// The locks themselves are tried, since `/proc/locks` hides what other pid namespaces hold (a
/// container on the same host path); it serves to name the holder.
#[must_use]
pub fn of_member(member: &Path, wal_dir: &Path) -> Option<String> {
    let db = member.join("snap").join("db");
    let who = |path: &Path| {
        let meta = fs::metadata(path).ok()?;
        find(meta.dev(), meta.ino())
    };
    let unnamed = || Some("another process".to_owned());
    if let Some(file) = open_regular(&db)
        && matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    {
        return who(&db).or_else(unnamed);
    }
    let mut files = vec![db];
    if let Ok(entries) = fs::read_dir(wal_dir) {
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    let locked = files.iter().find(|path| has_record_lock(path));
    locked
        .map_or_else(|| files.iter().find_map(|path| who(path)), |path| who(path).or_else(unnamed))
}

/// Finds who has any database or WAL segment below a directory open, down to a member's folder of
/// each of several data directories: what a server has open must not be moved away under it.
#[must_use]
pub fn of_tree(dir: &Path) -> Option<String> {
    let mut left = vec![(dir.to_owned(), 0)];
    let mut seen = 0_u32;
    while let Some((dir, depth)) = left.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            seen += 1;
            if seen > TREE_ENTRIES_MAX {
                return None;
            }
            // Links are followed: a WAL is often on another disk.
            let (path, name) = (entry.path(), entry.file_name());
            let Ok(meta) = fs::metadata(&path) else { continue };
            if meta.is_dir() && depth < TREE_DEPTH_MAX {
                left.push((path, depth + 1));
            } else if meta.is_file()
                && (name == "db" || name.as_encoded_bytes().ends_with(b".wal"))
                && let Some(who) = of_file(&path)
            {
                return Some(who);
            }
        }
    }
    None
}

/// NAME/member/wal is three levels down.
const TREE_DEPTH_MAX: u32 = 3;
const TREE_ENTRIES_MAX: u32 = 100_000;

/// Finds who holds a lock of either kind on a file.
fn of_file(path: &Path) -> Option<String> {
    let file = open_regular(path)?;
    let meta = file.metadata().ok()?;
    let named = find(meta.dev(), meta.ino());
    let is_held = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    if named.is_some() || !(is_held || has_record_lock(path)) {
        return named;
    }
    Some("another process".to_owned())
}

/// Opens a file, but not a pipe or a device, where opening may wait or act.
fn open_regular(path: &Path) -> Option<File> {
    fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    File::open(path).ok()
}

/// Tries a record lock, which those of open files, as etcd takes them, stand in the way of.
fn has_record_lock(path: &Path) -> bool {
    use rustix::fs::{FlockOperation, fcntl_lock};
    use rustix::io::Errno;
    let Some(file) = open_regular(path) else { return false };
    match fcntl_lock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            // Closing the file would do the same.
            let _ = fcntl_lock(&file, FlockOperation::NonBlockingUnlock);
            false
        }
        Err(errno) => [Errno::AGAIN, Errno::ACCESS].contains(&errno),
    }
}

/// Looks a lock up in `/proc/locks`: `1: FLOCK ADVISORY WRITE 123 08:01:456 0 EOF`.
fn find(dev: u64, inode: u64) -> Option<String> {
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let place = format!("{:02x}:{:02x}:{inode}", rustix::fs::major(dev), rustix::fs::minor(dev));
    let line = locks.lines().find(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.contains(&place.as_str()) && words.contains(&"WRITE")
    })?;
    // `->` marks a waiter; the pid is always right before the place.
    let words: Vec<_> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == place)?;
    let pid: i64 = words.get(at.checked_sub(1)?)?.parse().ok()?;
    // Locks that belong to an open file and not to a process have pid -1.
    if pid <= 0 {
        return Some(who_opened(dev, inode).unwrap_or_else(|| "another process".into()));
    }
    Some(process(pid))
}

/// Looks for another process that has a file open.
fn who_opened(dev: u64, inode: u64) -> Option<String> {
    let own = i64::from(std::process::id());
    let pids = fs::read_dir("/proc").ok()?.flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i64>().ok());
    let has_it = |pid: &i64| {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        // Looked at through the link, which leads to the file even when it was renamed.
        let mut metas = files.flatten().filter_map(|file| fs::metadata(file.path()).ok());
        metas.any(|meta| (meta.dev(), meta.ino()) == (dev, inode))
    };
    pids.filter(|pid| *pid != own).find(has_it).map(process)
}

fn process(pid: i64) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("process {pid} ({})", name.trim())
}
