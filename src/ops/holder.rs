//! Who holds a lock: bbolt's flock on a db file, and etcd's record locks on WAL segments.
//!
//! A lock that is held is named at once and never waited for. The holder's pid comes from
//! `/proc/locks`; where that cannot be read the lock is still reported.

use std::fs::{self, File, TryLockError};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Error, ExitCode};

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

/// Makes the error that names the holder of a file's lock.
#[must_use]
pub fn in_use(file: &File, path: &Path) -> Error {
    let who = file.metadata().ok().and_then(|meta| find(meta.dev(), meta.ino()));
    let who = who.unwrap_or_else(|| "another process".into());
    Error::new(ExitCode::InUse, format!("{} is in use by {who}", path.display()))
        .hint("etcdctl snapshot save FILE, which asks the running member for a snapshot")
        .hint("or stop that process first")
}

/// Finds who has a member directory open: its db or any of its WAL segments.
///
/// The db's lock is tried, since `/proc/locks` hides what other pid namespaces hold (a container
/// on the same host path); it serves to name the holder, and to find locks on WAL segments.
#[must_use]
pub fn of_member_dir(member: &Path) -> Option<String> {
    of_files(&member.join("snap").join("db"), &member.join("wal"))
}

/// The same for a db and a WAL directory that may be in another place.
#[must_use]
pub fn of_files(db: &Path, wal: &Path) -> Option<String> {
    if let Ok(file) = File::open(db)
        && matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
    {
        let who = file.metadata().ok().and_then(|meta| find(meta.dev(), meta.ino()));
        return Some(who.unwrap_or_else(|| "another process".into()));
    }
    let mut files = vec![db.to_owned()];
    if let Ok(entries) = fs::read_dir(wal) {
        files.extend(entries.flatten().map(|entry| entry.path()));
    }
    files.iter().find_map(|path| {
        let meta = fs::metadata(path).ok()?;
        find(meta.dev(), meta.ino())
    })
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
        return Some("another process".into());
    }
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some(format!("process {pid} ({})", name.trim()))
}
