//! A member's log: all segments of its WAL directory, read as one.
//!
//! [`Log::open`] reads every record once and learns whose log it is, what was voted and committed,
//! which snapshots count, which entries are there, where the next record would go, and how the log
//! ends. [`Log::entries`] reads again and hands out the entries that survived, in order of their
//! indexes. Nothing is written, and nothing is locked: the caller makes sure that no server runs.
//!
//! 1. Segments follow each other by their numbers, and the checksum runs through all of them.
//! 2. An entry whose index was there before cuts the list at that index: what stood there was not
//!    committed. A writer never does that at or below the commit index.
//! 3. A snapshot record counts when its index is not above the commit index of the last HardState.
//!    Entries after the newest one that counts must follow each other without a gap; those before
//!    may be gone, with the segments that held them or because a leader sent a snapshot instead.
//! 4. A write that was cut short may end the last segment and no other; a server cuts it off and
//!    goes on. Anything else is damage and never skipped: the log then ends at the last good entry
//!    before it, and a finding names file, offset and that entry.
//!
//! Memory: one record, and a bounded number of snapshots, membership changes and cuts.
//!
//! Source: etcd `wal.WAL.ReadAll`, `ValidSnapshotEntries`, `Repair`, `selectWALFiles`; 3.5.35,
//! 3.6.16 and 3.7.3.

mod entries;
mod scan;
mod segment;
mod tail;
#[cfg(test)]
mod tests;
mod voters;

use std::collections::VecDeque;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub use entries::{Entries, EntriesError};
pub use voters::{Configuration, Counted, Reach};

use crate::format::finding::{Code, Finding, Findings, Place};
use crate::format::wal::{HardState, Metadata, Snapshot, parse_segment_name};

/// One file of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Name in the WAL directory.
    pub name: String,
    /// Number, from 0; those before the first one here were purged.
    pub sequence: u64,
    /// Index that the first entry in it was to have, as the name says.
    pub index: u64,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// Records of kind entry before this segment.
    entries_before: u64,
    /// Highest index of an entry record in it.
    index_max: Option<u64>,
}

/// An entry's place in the log and its term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryId {
    /// Index, from 1.
    pub index: u64,
    /// Term in which it was proposed.
    pub term: u64,
}

/// A place between records, and the checksum up to there: what an appender needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Which of [`Log::segments`], from 0.
    pub segment: usize,
    /// Offset in that segment in bytes.
    pub offset: u64,
    /// Checksum of all records before.
    pub crc: u32,
}

/// How the log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// With a whole record.
    Whole,
    /// With a write that was cut short, after the last whole record.
    Torn {
        /// Bytes from there to the last one that is not zero.
        dropped_bytes: u64,
    },
    /// With damage: what follows the last good entry cannot be read or trusted.
    Damaged,
}

/// What a server does that opens the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Opening {
    /// It reads the log as it is.
    #[default]
    AsIs,
    /// It keeps a copy of the last segment as `.broken`, cuts the segment at [`Log::end`], and
    /// reads the log.
    AfterRepair,
    /// It does not start.
    Refused,
}

/// What a log holds; see the module.
#[derive(Clone, Debug)]
pub struct Log {
    /// The WAL directory.
    pub dir: PathBuf,
    /// Files in order of their numbers.
    pub segments: Vec<Segment>,
    /// Whose log it is.
    pub metadata: Option<Metadata>,
    /// The same as it stands in every segment; carried on byte for byte, never encoded anew.
    pub metadata_bytes: Vec<u8>,
    /// The last one.
    pub hard_state: Option<HardState>,
    /// Snapshot records in the order in which they were written, the newest [`SNAPSHOTS_MAX`];
    /// see [`Log::valid_snapshots`].
    pub snapshots: VecDeque<Snapshot>,
    /// First of the entries that [`Log::entries`] hands out.
    pub first: Option<EntryId>,
    /// Last of them: the last good entry.
    pub last: Option<EntryId>,
    /// Records of kind entry, also those that were cut off later.
    pub entry_records: u64,
    /// After the last good record.
    pub end: Position,
    /// How the log ends.
    pub tail: Tail,
    /// Bytes from there to the last one in the segment that is not zero.
    pub bytes_after: u64,
    /// What cannot be read at the end was synced once, and entries behind it too.
    pub lacks_synced: bool,
    /// What etcd 3.7 does with it, before it looks at anything else.
    pub opening: Opening,
    /// The same of earlier versions, which also cut the log before a record that ends inside one
    /// of its fields, and so lose what follows.
    pub opening_before_3_7: Opening,
    /// What is wrong or worth knowing. `place.file` is a segment's name.
    pub findings: Findings,
    cuts: Vec<scan::Cut>,
    changes: Vec<voters::Change>,
}

/// No frame of an entry that changes a key is shorter, in bytes.
const ENTRY_BYTES_MIN: u64 = 32;

/// Most snapshot records that are kept.
pub const SNAPSHOTS_MAX: usize = 4096;

/// A file or directory that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", path.display())]
pub struct ReadError {
    /// Which one.
    pub path: PathBuf,
    /// What the operating system said.
    pub source: io::Error,
}

impl ReadError {
    fn new(path: &Path, source: io::Error) -> Self {
        Self { path: path.to_owned(), source }
    }
}

impl Log {
    /// Reads a WAL directory. One without segments gives an empty log.
    ///
    /// # Errors
    ///
    /// The directory or a segment cannot be read from the disk. Damage is no error: see
    /// [`Log::tail`] and [`Log::findings`].
    pub fn open(dir: &Path) -> Result<Self, ReadError> {
        Self::open_watched(dir, &mut |_| true)
    }

    /// The same, telling `watch` how many bytes were read since it was last called.
    ///
    /// # Errors
    ///
    /// As [`Log::open`]; of kind [`io::ErrorKind::Interrupted`] once `watch` answers false.
    pub fn open_watched(dir: &Path, watch: &mut dyn FnMut(u64) -> bool) -> Result<Self, ReadError> {
        let mut findings = Findings::default();
        let segments = list(dir, &mut findings)?;
        scan::scan(dir, segments, findings, watch)
    }

    /// Tells whether there is no segment.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// Returns the commit index of the last HardState, 0 without one.
    #[must_use]
    pub fn commit(&self) -> u64 {
        self.hard_state.map_or(0, |state| state.commit)
    }

    /// Returns the index of the last entry, or of the newest snapshot that counts when no entry
    /// follows it; 0 for neither.
    #[must_use]
    pub fn last_index(&self) -> u64 {
        let last = self.last.map_or(0, |last| last.index);
        last.max(self.newest_snapshot().map_or(0, |snapshot| snapshot.index))
    }

    /// Bounds from above how many entries may stand behind the last good record: what follows a cut
    /// may be whole, and may have been acknowledged before something else damaged the disk.
    #[must_use]
    pub fn entries_after_max(&self) -> u64 {
        self.bytes_after.div_ceil(ENTRY_BYTES_MIN)
    }

    /// Returns the snapshot records that count, in the order in which they were written.
    pub fn valid_snapshots(&self) -> impl DoubleEndedIterator<Item = &Snapshot> {
        let commit = self.commit();
        self.snapshots.iter().filter(move |snapshot| snapshot.index <= commit)
    }

    /// Returns the last snapshot record that counts.
    #[must_use]
    pub fn newest_snapshot(&self) -> Option<&Snapshot> {
        self.valid_snapshots().next_back()
    }

    /// Returns the name of the segment of a position.
    #[must_use]
    pub fn segment_name(&self, position: &Position) -> &str {
        self.segments.get(position.segment).map_or("", |segment| segment.name.as_str())
    }

    /// Returns the first finding that forbids to rely on the log: damage, or something unknown.
    #[must_use]
    pub fn obstacle(&self) -> Option<&Finding> {
        use crate::format::finding::Severity;
        self.findings
            .kept()
            .iter()
            .find(|found| found.severity == Severity::Error || found.code.is_unknown())
    }
}

/// Lists the segments by number, and reports every other file but prepared ones.
fn list(dir: &Path, findings: &mut Findings) -> Result<Vec<Segment>, ReadError> {
    let failed = |error| ReadError::new(dir, error);
    let (mut segments, mut others) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        match parse_segment_name(&name) {
            Some((sequence, index)) => {
                let path = dir.join(&name);
                let size_bytes =
                    fs::metadata(&path).map_err(|error| ReadError::new(&path, error))?.len();
                let (entries_before, index_max) = (0, None);
                segments.push(Segment {
                    name,
                    sequence,
                    index,
                    size_bytes,
                    entries_before,
                    index_max,
                });
            }
            // A server prepares its next segment under such a name.
            None if name.ends_with(".tmp") => {}
            None => others.push(name),
        }
    }
    segments.sort_by(|a, b| a.name.cmp(&b.name));
    others.sort_unstable();
    for name in others {
        let (code, what) = if name.ends_with(".wal") {
            (Code::WalSequence, "its name has no number and index that a server would write")
        } else if name.ends_with(".broken") {
            (Code::WalName, "a server set this copy aside when it repaired the log")
        } else {
            (Code::WalName, "a server ignores it")
        };
        findings.push(Finding::new(code, place(&name, None), format!("{name}: {what}")));
    }
    for (before, segment) in segments.iter().zip(segments.iter().skip(1)) {
        if before.sequence.checked_add(1) != Some(segment.sequence) {
            let detail = format!("segment {} is followed by {}", before.name, segment.name);
            findings.push(Finding::new(Code::WalSequence, place(&segment.name, None), detail));
        }
    }
    Ok(segments)
}

fn place(file: &str, offset: Option<u64>) -> Place {
    Place { file: Some(file.to_owned()), offset, ..Place::default() }
}
