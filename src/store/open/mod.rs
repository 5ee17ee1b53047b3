//! Makes a data directory fit to go on with: new, cleanly left or killed, of etcd 3.4 to 3.7.
//!
//! 1. Both locks first, never waited for: etcd's on every segment of the log, bbolt's on the
//!    database.
//! 2. Everything is decided before a byte is changed: whose directory it is, whether the newest
//!    etcd that may serve it would start on it; what is unfit is refused with the reason and the
//!    next step.
//! 3. Then what a server does at its start: the log's torn end is cut off and a copy stays as
//!    `.broken`, leftovers go, a database that is not there is made anew where the log is whole.
//! 4. A new directory gets its database first and its log last, which appears whole, with the entry
//!    that founds the cluster: killed in between, there is no log, and the next start founds it.
//!    A directory that holds anything else without a log is refused.
//! 5. Of a sole voter every entry counts that is in the log, also beyond the commit index; of
//!    several only what is committed, and only where the directory is made a cluster of its own.
//!
//! A new directory holds after this: ten empty buckets, and a log of metadata, snapshot 0, one
//! membership change of term 1 and a HardState. What etcd writes next, at each start, the engine
//! writes: a term, an empty entry, the member's attributes, the versions.
//!
//! Source: etcd `bootstrap.go`, `storage/util.go` (`CreateConfigChangeEnts`), `wal.Repair`,
//! `snap.Snapshotter`, 3.5.35, 3.6.16, 3.7.3.

mod existing;
mod fitness;
mod force;
mod found;
mod members;
mod reading;
mod replay;
mod snap_file;
#[cfg(test)]
pub(super) mod tests;

use std::io;
use std::path::{Path, PathBuf};

use super::error::Error;
use super::log::{LockError, Wal};
use super::mvcc::Keys;
use super::setters::setters;
use crate::bolt::db::{self, Db};
use crate::bolt::disk::Disk;
use crate::etcd::members::{ClusterId, MemberId};
use crate::etcd::schema::Version;
use crate::format::wal::{ConfState, HardState};
pub use reading::{OpenedToRead, open_to_read};
pub use replay::Replay;
pub use snap_file::{SNAPS_KEPT, SnapSpent, purge_snaps, write_snap};

/// What the store says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Compat {
    /// etcd 3.6: `.snap` files are written.
    V3_6,
    /// etcd 3.7.
    V3_7,
}

/// What a new directory is founded with, and what a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Identity {
    /// Name of the member. An identity that is [`Identity::default`] as a whole leaves name and
    /// client URLs of an existing directory as they are.
    pub name: String,
    /// Peer URLs, of a new directory.
    pub peer_urls: Vec<String>,
    /// Client URLs, published at each start.
    pub client_urls: Vec<String>,
    /// Cluster token, of a new directory.
    pub token: String,
}

impl Default for Identity {
    fn default() -> Self {
        Self {
            name: "default".into(),
            peer_urls: vec!["http://localhost:2380".into()],
            client_urls: vec!["http://localhost:2379".into()],
            token: "etcd-cluster".into(),
        }
    }
}

setters! { Identity:
    name: String,
    peer_urls: Vec<String>,
    client_urls: Vec<String>,
    token: String,
}

/// How to open.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// See [`Identity`].
    pub identity: Identity,
    /// `None`: a new directory is 3.7's, an existing one keeps its version.
    pub compat: Option<Compat>,
    /// WAL directory, where it is not `member/wal`.
    pub wal_dir: Option<PathBuf>,
    /// Bytes at which a segment of the log is cut; etcd's is
    /// [`crate::format::wal::SEGMENT_BYTES`].
    pub segment_bytes: u64,
    /// Makes a member of several the only one, as etcd's flag does.
    pub force_new_cluster: bool,
    /// Where changes go.
    pub disk: Disk,
    /// How the database is opened.
    pub database: db::Options,
}

/// A directory that is locked and fit to go on with.
#[derive(Debug)]
pub struct Opened {
    /// The database.
    pub db: Db,
    /// What it has in bucket `key`, read while it was checked.
    pub keys: Keys,
    /// The log, behind its last entry.
    pub wal: Wal,
    /// Entries above the database's consistent index: to be applied before anything else.
    pub replay: Replay,
    /// The last HardState.
    pub state: HardState,
    /// Index of the last entry in the log that counts.
    pub last_index: u64,
    /// Index of the newest snapshot record that counts.
    pub snapshot_index: u64,
    /// Who votes, after all entries.
    pub voters: ConfState,
    /// This member's id.
    pub member: MemberId,
    /// The cluster's id.
    pub cluster: ClusterId,
    /// What the store says that it is.
    pub compat: Compat,
    /// Cluster version of the directory, before the entries to be replayed; `None` when it was
    /// never set.
    pub version: Option<Version>,
    /// The directory was founded just now.
    pub is_new: bool,
    /// The log holds requests of the v2 API after its newest snapshot record, which etcd 3.7 does
    /// not read, or that record lacks the `.snap` file that 3.6 reads: a snapshot is to be taken
    /// soon.
    pub wants_snapshot: bool,
    /// Folder of snapshot files and the database.
    pub snap_dir: PathBuf,
    /// What was repaired, removed or is odd, for the log of the program.
    pub notes: Vec<String>,
}

/// Why a directory is not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process, or another store of this one, has the directory: this file of it.
    #[error("{} is in use: its lock is held", .0.display())]
    InUse(PathBuf),
    /// Bytes are damaged.
    #[error("{reason}; {next}")]
    Damaged {
        /// What is wrong.
        reason: String,
        /// What to do.
        next: String,
    },
    /// The directory is not one that this store may go on with.
    #[error("{reason}; {next}")]
    Unfit {
        /// Why.
        reason: String,
        /// What to do.
        next: String,
    },
    /// The disk failed; the text says where.
    #[error("{0}")]
    Disk(String),
}

impl OpenError {
    fn unfit(reason: impl Into<String>, next: impl Into<String>) -> Self {
        Self::Unfit { reason: reason.into(), next: next.into() }
    }

    fn damaged(reason: impl Into<String>, next: impl Into<String>) -> Self {
        Self::Damaged { reason: reason.into(), next: next.into() }
    }

    fn io(doing: &str, path: &Path, error: &io::Error) -> Self {
        Self::Disk(format!("cannot {doing} {}: {error}", path.display()))
    }

    fn database(path: &Path, error: &db::Error) -> Self {
        match error {
            db::Error::Locked => Self::InUse(path.to_owned()),
            db::Error::Damaged(what) => Self::damaged(
                format!("the database {} is damaged: {what}", path.display()),
                "look at it with etcdkit snapshot verify, and restore a snapshot",
            ),
            error => Self::Disk(format!("{}: {error}", path.display())),
        }
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        Self::Storage(error.to_string())
    }
}

impl From<Error> for OpenError {
    fn from(error: Error) -> Self {
        Self::Disk(error.to_string())
    }
}

impl From<LockError> for OpenError {
    fn from(error: LockError) -> Self {
        match error {
            LockError::InUse(path) => Self::InUse(path),
            LockError::Failed(error) => error.into(),
        }
    }
}

/// Where everything is.
#[derive(Clone, Debug)]
struct Places {
    /// The data directory.
    dir: PathBuf,
    member: PathBuf,
    snap: PathBuf,
    database: PathBuf,
    wal: PathBuf,
}

impl Places {
    fn new(dir: &Path, wal_dir: Option<&Path>) -> Self {
        let member = dir.join("member");
        let snap = member.join("snap");
        let wal = wal_dir.map_or_else(|| member.join("wal"), Path::to_owned);
        let database = snap.join("db");
        Self { dir: dir.to_owned(), member, snap, database, wal }
    }

    /// Tells whether there is a log, as a server does: any file named like a segment.
    fn has_log(&self) -> Result<bool, OpenError> {
        let names = names(&self.wal)?;
        Ok(names.iter().any(|name| name.ends_with(".wal")))
    }

    /// Length of the database file in bytes; bbolt makes a new one of an empty file.
    fn database_bytes(&self) -> Result<u64, OpenError> {
        match std::fs::metadata(&self.database) {
            Ok(meta) => Ok(meta.len()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
            Err(error) => Err(OpenError::io("read", &self.database, &error)),
        }
    }
}

/// Lists a folder's names in order; a folder that is not there has none.
fn names(folder: &Path) -> Result<Vec<String>, OpenError> {
    let failed = |error| OpenError::io("read", folder, &error);
    let entries = match std::fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.push(entry.map_err(failed)?.file_name().to_string_lossy().into_owned());
    }
    names.sort_unstable();
    Ok(names)
}

/// Opens a data directory, or founds one.
///
/// # Errors
/// It is unfit, locked, of several voters, or the disk fails; each says what to do.
pub fn open(dir: &Path, options: &OpenOptions) -> Result<Opened, OpenError> {
    let places = Places::new(dir, options.wal_dir.as_deref());
    refuse_other_folders(&places)?;
    if places.has_log()? {
        return existing::open(&places, options);
    }
    match found::found(&places, options)? {
        Some(opened) => Ok(opened),
        // Another process founded it and went away.
        None => existing::open(&places, options),
    }
}

/// Refuses a member's folder in place of the one that holds it, and what no server starts on.
fn refuse_other_folders(places: &Places) -> Result<(), OpenError> {
    let found = names(&places.dir)?;
    let has = |name: &str| found.iter().any(|found| found == name);
    if has("proxy") && has("member") {
        return Err(OpenError::unfit(
            format!("{} holds both `member` and `proxy`", places.dir.display()),
            "move `proxy` away",
        ));
    }
    if !has("member") && (has("snap") || has("wal")) {
        return Err(OpenError::unfit(
            format!("{} looks like the folder `member` of a data directory", places.dir.display()),
            "give the directory that holds it",
        ));
    }
    Ok(())
}
