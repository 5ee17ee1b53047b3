//! Makes a new log: whole under a temporary name, then renamed.
//!
//! Source: etcd `wal.Create`, `fileutil.Preallocate`, 3.6.16.

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{BUFFER_KEPT_BYTES, Held, Wal, lock};
use crate::bolt::disk::{Disk, DiskFile};
use crate::format::u64_of;
use crate::format::wal::{Encoder, Entry, HardState, Snapshot, kind, segment_name};
use crate::store::error::Error;

pub(super) fn create(
    disk: &Disk,
    dir: &Path,
    metadata: &[u8],
    entries: &[Entry<'_>],
    state: Option<HardState>,
    segment_bytes: u64,
) -> Result<Wal, Error> {
    let mut encoder = Encoder::begin(0);
    encoder.push(kind::METADATA, metadata);
    encoder.push(kind::SNAPSHOT, &Snapshot::default().encode());
    for entry in entries {
        encoder.push_entry(entry);
    }
    if let Some(state) = state {
        encoder.push(kind::STATE, &state.encode());
    }
    let mut notes = Vec::new();
    let made = make(disk, dir, encoder.bytes(), segment_bytes, &mut notes);
    let file = made.map_err(|error| {
        Error::Storage(format!("cannot make the log {}: {error}", dir.display()))
    })?;
    let offset = u64_of(encoder.bytes().len());
    encoder.clear(BUFFER_KEPT_BYTES);
    let path = dir.join(segment_name(0, 0));
    Ok(Wal {
        disk: disk.clone(),
        dir: dir.to_owned(),
        metadata: metadata.to_vec(),
        state: state.unwrap_or_default(),
        released: VecDeque::new(),
        older: VecDeque::new(),
        tail: Held { sequence: 0, index: 0, path, file },
        offset,
        zeroed: notes.is_empty().then_some(offset),
        encoder,
        last_index: entries.last().map_or(0, |entry| entry.index),
        segment_bytes,
        is_dirty: false,
        poison: None,
        notes,
        figures: Arc::default(),
    })
}

/// Returns the name under which a log is made.
pub(in crate::store) fn temporary(dir: &Path) -> PathBuf {
    let mut name = dir.file_name().unwrap_or_default().to_os_string();
    name.push(".tmp");
    dir.with_file_name(name)
}

fn make(
    disk: &Disk,
    dir: &Path,
    bytes: &[u8],
    segment_bytes: u64,
    notes: &mut Vec<String>,
) -> io::Result<DiskFile> {
    // Over an empty directory a rename goes; over a full one, or a file, it must not.
    if fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some()) || dir.is_file() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let making = temporary(dir);
    match disk.make_dir(&making) {
        // What a killed process left.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            for entry in fs::read_dir(&making)? {
                disk.remove(&entry?.path())?;
            }
        }
        made => made?,
    }
    let file = disk.create(&making.join(segment_name(0, 0)))?;
    lock::lock(file.file())?;
    notes.extend(set_aside(&file, segment_bytes)?);
    file.write_all_at(bytes, 0)?;
    file.sync()?;
    disk.sync_dir(&making)?;
    disk.rename(&making, dir)?;
    disk.sync_dir(parent(dir))?;
    Ok(file)
}

/// Returns the folder that holds a path.
pub(in crate::store) fn parent(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or_else(|| Path::new("."))
}

/// Gives a segment its blocks; where there is no room for all of them, it has none and a note says
/// so.
pub(super) fn set_aside(file: &DiskFile, bytes: u64) -> io::Result<Option<String>> {
    use io::ErrorKind::{QuotaExceeded, StorageFull};
    let before = file.len()?;
    match file.allocate(bytes) {
        Err(error) if [StorageFull, QuotaExceeded].contains(&error.kind()) => {
            // Some of the blocks may have been given.
            file.set_len(before)?;
            Ok(Some(format!("no room to set aside {bytes} bytes for the log: {error}")))
        }
        allocated => allocated.map(|()| None),
    }
}
