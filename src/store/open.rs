//! Makes a data directory fit to go on with: new, cleanly left or killed, of etcd 3.4 to 3.7.
//!
//! Decides everything before it changes anything: whose directory it is, whether a real etcd of
//! its version would start on it, and refuses with the reason. Then it takes both locks, repairs
//! the log's torn end as etcd does (a copy stays as `.broken`), removes leftovers, and hands over.

use std::path::{Path, PathBuf};

use super::error::Error;
use super::log::Wal;
use crate::bolt::db::Db;
use crate::bolt::disk::Disk;
use crate::etcd::members::{ClusterId, Member, MemberId};
use crate::etcd::schema::Version;
use crate::format::wal::{ConfState, HardState};

/// What the store says that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Compat {
    /// etcd 3.6: `.snap` files are written.
    V3_6,
    /// etcd 3.7.
    V3_7,
}

/// What a new directory is founded with, and what a member says of itself.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Name of the member.
    pub name: String,
    /// Peer URLs, of a new directory.
    pub peer_urls: Vec<String>,
    /// Client URLs, published at each start.
    pub client_urls: Vec<String>,
    /// Cluster token, of a new directory.
    pub token: String,
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
    /// Makes a member of several the only one, as etcd's flag does.
    pub force_new_cluster: bool,
    /// Where changes go.
    pub disk: Disk,
    /// How the database is opened.
    pub database: crate::bolt::db::Options,
}

/// A directory that is locked and fit to go on with.
#[derive(Debug)]
pub struct Opened {
    /// The database.
    pub db: Db,
    /// The log, behind its last entry.
    pub wal: Wal,
    /// Entries above the database's consistent index, in order: to be applied before anything
    /// else. Each is an encoded [`crate::format::wal::Entry`].
    pub replay: Vec<Vec<u8>>,
    /// The last HardState.
    pub state: HardState,
    /// Index of the last entry in the log.
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
    /// Cluster version of the directory; `None` when it was never set.
    pub version: Option<Version>,
    /// The directory was founded just now.
    pub is_new: bool,
    /// Folder of snapshot files and the database.
    pub snap_dir: PathBuf,
    /// What was repaired, removed or is odd, for the log of the program.
    pub notes: Vec<String>,
}

/// Opens a data directory, or founds one.
///
/// # Errors
/// It is unfit, locked, of several voters, or the disk fails; each says what to do.
pub fn open(dir: &Path, options: &OpenOptions) -> Result<Opened, Error> {
    let _ = (dir, options);
    todo!()
}

/// Writes a snapshot file (`.snap`), with the v2 store that etcd up to 3.6 reads, synced.
///
/// # Errors
/// The disk fails.
pub fn write_snap(
    disk: &Disk,
    snap_dir: &Path,
    (index, term): (u64, u64),
    voters: &ConfState,
    members: &[Member],
    removed: &[MemberId],
    version: Option<Version>,
) -> Result<(), Error> {
    let _ = (disk, snap_dir, index, term, voters, members, removed, version);
    todo!()
}
