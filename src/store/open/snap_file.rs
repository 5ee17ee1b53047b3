//! Writes snapshot files, which etcd up to 3.6 starts from.
//!
//! Source: etcd `snap.Snapshotter.save`, `GetMembershipInfoInV2Format`, `purgeFile`, 3.6.16.

use std::path::Path;
use std::time::{Duration, Instant};

use super::{OpenError, names};
use crate::bolt::disk::Disk;
use crate::etcd::members::{Member, MemberId};
use crate::etcd::schema::Version;
use crate::etcd::v2_store;
use crate::format::snap::{Snap, file_name, parse_file_name};
use crate::format::wal::ConfState;
use crate::store::error::Error;

/// Snapshot files that etcd keeps.
pub const SNAPS_KEPT: usize = 5;

/// Where the time of writing a snapshot file went.
#[derive(Clone, Copy, Debug)]
pub struct SnapSpent {
    /// Making its content.
    pub encode: Duration,
    /// Syncing the file.
    pub sync: Duration,
}

/// Writes a snapshot file (`.snap`), with the v2 store that etcd up to 3.6 reads, synced. It is
/// there whole or not at all; what has its name is replaced.
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
) -> Result<SnapSpent, Error> {
    let began = Instant::now();
    let store = v2_store::encode(members, removed, version, index);
    let snap =
        Snap { data: store.as_bytes(), conf_state: voters.clone(), index, term, ..Snap::default() };
    let bytes = snap.encode();
    let encode = began.elapsed();
    let mut sync = Duration::ZERO;
    let name = file_name(term, index);
    let path = snap_dir.join(&name);
    // A server deletes what begins so at its start.
    let making = snap_dir.join(format!("tmp.{name}"));
    let mut write = || {
        match disk.remove(&making) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = disk.create(&making)?;
        file.write_all_at(&bytes, 0)?;
        let began = Instant::now();
        file.sync()?;
        sync = began.elapsed();
        disk.rename(&making, &path)?;
        disk.sync_dir(snap_dir)
    };
    write().map_err(|error| Error::Storage(format!("cannot write {}: {error}", path.display())))?;
    Ok(SnapSpent { encode, sync })
}

/// Removes all but the newest snapshot files, counted as etcd does; but only such as are older than
/// `recorded`, the index of the newest one that has a record in the log.
///
/// # Errors
/// The disk fails. What was not removed stays, and does no harm.
pub fn purge_snaps(disk: &Disk, snap_dir: &Path, keep: usize, recorded: u64) -> Result<(), Error> {
    let found = names(snap_dir).map_err(|error: OpenError| Error::from(error))?;
    let at = |name: &String| parse_file_name(name).map(|(_, index)| index);
    let files: Vec<_> = found.iter().filter_map(|name| Some((name, at(name)?))).collect();
    let surplus = files.iter().take(files.len().saturating_sub(keep));
    for (name, _) in surplus.filter(|(_, index)| *index < recorded) {
        let path = snap_dir.join(name);
        let removed = disk.remove(&path);
        removed.map_err(|error| {
            Error::Storage(format!("cannot remove {}: {error}", path.display()))
        })?;
    }
    Ok(())
}
