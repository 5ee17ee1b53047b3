//! Opens a snapshot file or a data directory to be read only: nothing of it is changed.
//!
//! 1. Of a directory's database the shared lock is taken (flock) before anything is read, also
//!    where another one is shown, and not waited for: one that a server has is refused, since it
//!    would change under the reader; a server that is started meanwhile waits. No lock of the log
//!    is taken.
//! 2. Of a directory what counts in the log is shown too, above the database: all of it where the
//!    member is the sole voter, else what is known to be committed. Where the log cannot be used,
//!    the database alone is shown, and a note says so.
//! 3. The SHA-256 at the end of a snapshot is compared where there is one; what does not match is
//!    noted and shown all the same.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::thread;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::found::open_database;
use super::{Compat, OpenError, OpenOptions, Places, Replay, existing};
use crate::bolt;
use crate::bolt::db::Db;
use crate::etcd::data_dir::{Owner, is_foreign, voters_elsewhere, voters_in_snap_file};
use crate::etcd::log::Log;
use crate::etcd::members::{ClusterId, MemberId};
use crate::etcd::replay::consistent_index;
use crate::etcd::schema::{STORAGE_VERSION_MAX, Version};
use crate::etcd::survey::Report;
use crate::format::usize_of;
use crate::store::mvcc::Keys;

/// Bytes of the sum behind a snapshot, and of the blocks of which a file without one has whole
/// ones.
const SUM_BYTES: u64 = 32;
const BLOCK_BYTES: u64 = 512;

/// What was opened.
#[derive(Debug)]
pub struct OpenedToRead {
    /// The database; what is committed to it stays in memory.
    pub db: Db,
    /// What it has in bucket `key`.
    pub keys: Keys,
    /// Entries above the database, that count.
    pub replay: Option<Replay>,
    /// The newest term that is known.
    pub term: u64,
    /// This member's id: that of the log, else the lowest one in the database, else 0.
    pub member: MemberId,
    /// The cluster's id; 0 where no log tells it.
    pub cluster: ClusterId,
    /// What the store says that it is.
    pub compat: Compat,
    /// Version that is stored, the cluster's or the storage's.
    pub version: Option<Version>,
    /// What a person should know.
    pub notes: Vec<String>,
}

/// Opens a snapshot or a directory to be read only.
///
/// # Errors
/// It is in use, damaged, of a version that is not known, or the disk fails.
pub fn open_to_read(path: &Path, options: &OpenOptions) -> Result<OpenedToRead, OpenError> {
    let found = fs::metadata(path).map_err(|error| OpenError::io("read", path, &error))?;
    let mut places = Places::new(path, options.wal_dir.as_deref());
    let mut notes = Vec::new();
    // Until the end of this, or a server could write between the reading of one and the other.
    let mut held = None;
    let log = if found.is_dir() {
        held = hold(&places.database)?;
        let log = read_log(&places, &mut notes)?;
        if places.database_bytes()? == 0 {
            return Err(OpenError::unfit(
                format!("there is no database {}", places.database.display()),
                "give a data directory, or the file of a snapshot",
            ));
        }
        log
    } else if found.is_file() {
        path.clone_into(&mut places.database);
        None
    } else {
        return Err(OpenError::unfit(
            format!("{} is neither a file nor a directory", path.display()),
            "give the file of a snapshot, or a data directory",
        ));
    };
    let log = log.and_then(|log| pick(&mut places, log, &mut notes));
    let (opened, is_sound) = thread::scope(|scope| {
        let sum = || has_sound_sum(&places.database);
        let summing = thread::Builder::new().name("store-sum".into()).spawn_scoped(scope, sum);
        let opened = open_database(&places, options);
        let is_sound = match summing {
            Ok(thread) => thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())),
            Err(_) => sum(),
        };
        (opened, is_sound)
    });
    let (db, keys) = opened?;
    let is_sound = is_sound.map_err(|error| OpenError::io("read", &places.database, &error))?;
    if !is_sound {
        notes.push(format!(
            "the SHA-256 at the end of {} is that of other bytes: something in it was changed",
            places.database.display()
        ));
    }
    let rows = existing::read_rows(&places, &db)?;
    let (version, compat) = versions(options, &rows)?;
    let replay = log.as_ref().and_then(|log| counted(&places, log, &rows, &mut notes));
    drop(held);
    let metadata = log.as_ref().and_then(|log| log.metadata);
    let lowest = rows.members.iter().map(|member| member.id).min();
    let in_log = log.and_then(|log| log.hard_state).map_or(0, |state| state.term);
    Ok(OpenedToRead {
        db,
        keys,
        replay,
        term: rows.term.unwrap_or(0).max(in_log),
        member: metadata.map(|own| MemberId(own.node_id)).or(lowest).unwrap_or(MemberId(0)),
        cluster: ClusterId(metadata.map_or(0, |own| own.cluster_id)),
        compat,
        version,
        notes,
    })
}

/// Takes the shared lock of a directory's database before anything else of it is read. What keeps
/// it from being opened at all is told by who opens it.
fn hold(database: &Path) -> Result<Option<fs::File>, OpenError> {
    // Looked at before it is opened: opening a pipe that nobody writes to waits for ever.
    match fs::metadata(database) {
        Ok(meta) if !meta.is_file() => {
            return Err(OpenError::unfit(
                format!("{} is not a regular file", database.display()),
                "give a data directory, or the file of a snapshot",
            ));
        }
        _ => {}
    }
    let Ok(file) = fs::File::open(database) else { return Ok(None) };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Err(OpenError::InUse(database.to_owned())),
        // A file system without locks.
        Err(_) => Ok(None),
    }
}

/// Reads the log, where there is one.
fn read_log(places: &Places, notes: &mut Vec<String>) -> Result<Option<Log>, OpenError> {
    super::refuse_other_folders(places)?;
    if !places.has_log()? {
        let wal = places.wal.display();
        notes.push(format!("there is no log in {wal}: what the database has not got is not shown"));
        return Ok(None);
    }
    existing::read_log(&places.wal).map(Some)
}

/// Takes the database that goes with a log: one that a leader sent, where the log begins behind the
/// old one. Gives the log back where it is of use.
fn pick(places: &mut Places, log: Log, notes: &mut Vec<String>) -> Option<Log> {
    let index = bolt::File::open(&places.database).ok().map(|file| consistent_index(&file));
    let Some(Ok(index)) = index else { return Some(log) };
    let Some(newest) = log.newest_snapshot().map(|newest| newest.index) else { return Some(log) };
    if newest <= index {
        return Some(log);
    }
    let received = places.snap.join(format!("{newest:016x}.snap.db"));
    if received.is_file() {
        notes.push(format!("{} is shown, which a leader sent", received.display()));
        places.database = received;
        return Some(log);
    }
    notes.push(format!(
        "the database ends at entry {index}, and the log goes on from {newest}: it is not shown"
    ));
    None
}

/// Finds what of the log counts and is not in the database.
fn counted(places: &Places, log: &Log, rows: &Report, notes: &mut Vec<String>) -> Option<Replay> {
    let applied = rows.consistent_index.unwrap_or(0);
    let owner = Owner {
        members: &rows.members,
        is_removed: log
            .metadata
            .is_some_and(|own| rows.removed_members.contains(&MemberId(own.node_id))),
        has_term: rows.term.is_some(),
        consistent_index: applied,
    };
    let obstacle = match log.obstacle() {
        Some(finding) => Some(finding.detail.clone()),
        None if is_foreign(log, &owner) => Some("it is another member's".to_owned()),
        None => None,
    };
    if let Some(what) = obstacle {
        let wal = places.wal.display();
        notes.push(format!("the log in {wal} cannot be used and is not shown: {what}"));
        return None;
    }
    let in_file = |record: &_| voters_in_snap_file(&places.snap, record);
    let fallback = voters_elsewhere(log, &in_file, &rows.members);
    let through = log.reach(fallback.as_ref()).index;
    if through < log.last_index() {
        let last = log.last_index();
        notes.push(format!(
            "what the log has after entry {through}, up to {last}, is not known to be committed \
             and not shown"
        ));
    }
    (through > applied).then(|| Replay::new(log.clone(), applied, through))
}

/// Says which version the rows are of, and what the store is to be.
fn versions(options: &OpenOptions, rows: &Report) -> Result<(Option<Version>, Compat), OpenError> {
    let version = rows.cluster_version.max(rows.storage_version);
    if let Some(newer) = version.filter(|version| !version.is_known_storage()) {
        return Err(OpenError::unfit(
            format!("the database is of version {newer}, and {STORAGE_VERSION_MAX} is known"),
            "use a newer etcdkit",
        ));
    }
    let own = match version {
        Some(version) if version.minor < 7 => Compat::V3_6,
        _ => Compat::V3_7,
    };
    Ok((version, options.compat.unwrap_or(own)))
}

/// Tells whether a file has the sum at its end that it should have, if any.
fn has_sound_sum(path: &Path) -> io::Result<bool> {
    let mut file = fs::File::open(path)?;
    let size = file.metadata()?.len();
    if size.checked_rem(BLOCK_BYTES) != Some(SUM_BYTES) {
        return Ok(true);
    }
    let mut left = size.saturating_sub(SUM_BYTES);
    let mut sum = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    while left > 0 {
        let count = usize_of(left).min(buffer.len());
        let part = buffer.get_mut(..count).unwrap_or_default();
        file.read_exact(part)?;
        sum.update(&*part);
        left = left.saturating_sub(crate::format::u64_of(count));
    }
    let mut wanted = Vec::new();
    file.take(SUM_BYTES).read_to_end(&mut wanted)?;
    Ok(sum.finalize().as_slice() == wanted)
}
