//! The first pass: every record once, in the order in which they were written.
//!
//! The list of entries is kept as runs of indexes without a gap. An entry cuts off what is at or
//! above its index; one that does not follow the last begins a new run. Whether a gap is damage is
//! known only at the end, when it is known which snapshot counts.

use std::collections::VecDeque;
use std::path::Path;

use super::segment::{Reader, Step};
use super::voters::Change;
use super::{
    EntryId, Log, Opening, Position, ReadError, SNAPSHOTS_MAX, Segment, Tail, place, tail,
};
use crate::format::Error;
use crate::format::finding::{Code, Finding, Findings};
use crate::format::wal::{
    ConfChange, Entry, HardState, Metadata, Reason, Record, Snapshot, Stop, entry_kind, kind,
};

/// Most cuts, runs and membership changes that are kept: a real log has few.
const KEPT_MAX: usize = 100_000;

/// Most members that a snapshot record may name.
const MEMBERS_MAX: usize = 1000;

const METADATA_BYTES_MAX: usize = 1024;

/// An entry record that replaced what was at its index and after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Number of the record among the entry records, from 0.
    pub(super) ordinal: u64,
    /// Its index.
    pub(super) index: u64,
}

/// Entries that follow each other.
#[derive(Clone, Copy, Debug)]
struct Run {
    first: EntryId,
    last: EntryId,
}

/// An entry that did not follow the last one.
#[derive(Clone, Debug)]
struct Jump {
    /// The entries before it.
    before: Option<Run>,
    to: u64,
    ordinal: u64,
    segment: usize,
    offset: u64,
}

struct Scan {
    log: Log,
    runs: Vec<Run>,
    jumps: Vec<Jump>,
    segment: usize,
    /// A message that cannot be decoded, or a limit: nothing after it is trusted.
    is_stopped: bool,
    /// No server reads the log, whatever it does where the walk stopped.
    is_refused: bool,
    /// What etcd 3.7, and what earlier ones do where the walk stopped.
    at_stop: (Opening, Opening),
}

/// What ended the walk over a segment.
enum Ended {
    Clean,
    Stop(Stop),
}

pub(super) fn scan(
    dir: &Path,
    segments: Vec<Segment>,
    findings: Findings,
    watch: &mut dyn FnMut(u64) -> bool,
) -> Result<Log, ReadError> {
    let is_refused = findings.has(Code::WalSequence);
    let log = Log {
        dir: dir.to_owned(),
        segments,
        metadata: None,
        metadata_bytes: Vec::new(),
        hard_state: None,
        snapshots: VecDeque::new(),
        first: None,
        last: None,
        entry_records: 0,
        end: Position::default(),
        tail: Tail::Whole,
        bytes_after: 0,
        lacks_synced: false,
        opening: Opening::AsIs,
        opening_before_3_7: Opening::AsIs,
        findings,
        cuts: Vec::new(),
        changes: Vec::new(),
    };
    let (runs, jumps) = (Vec::new(), Vec::new());
    let at_stop = (Opening::AsIs, Opening::AsIs);
    let mut scan = Scan { log, runs, jumps, segment: 0, is_stopped: false, is_refused, at_stop };
    let count = scan.log.segments.len();
    for number in 0..count {
        scan.segment = number;
        let is_last = number.checked_add(1) == Some(count);
        if !scan.read_segment(dir, is_last, watch)? {
            break;
        }
    }
    Ok(scan.finish())
}

impl Scan {
    /// Reads a segment to its end; false when nothing after it may be read.
    fn read_segment(
        &mut self,
        dir: &Path,
        is_last: bool,
        watch: &mut dyn FnMut(u64) -> bool,
    ) -> Result<bool, ReadError> {
        let Some(segment) = self.log.segments.get_mut(self.segment) else { return Ok(false) };
        segment.entries_before = self.log.entry_records;
        let path = dir.join(&segment.name);
        let failed = |error| ReadError::new(&path, error);
        let crc_before = self.log.end.crc;
        let mut reader = Reader::open(&path, crc_before).map_err(failed)?;
        segment.size_bytes = reader.source().len();
        let mut first_kind = None;
        let ended = loop {
            let before = reader.offset();
            let crc = reader.crc();
            self.log.end = Position { segment: self.segment, offset: before, crc };
            match reader.step().map_err(failed)? {
                Step::End => break Ended::Clean,
                Step::Stop(stop) => break Ended::Stop(stop),
                Step::Record(record) => {
                    first_kind = first_kind.or(Some(record.kind));
                    self.record(&record);
                }
            }
            if self.is_stopped {
                return Ok(false);
            }
            if !watch(reader.offset().saturating_sub(before)) {
                return Err(failed(std::io::ErrorKind::Interrupted.into()));
            }
        };
        let name = self.name();
        // Only a reader that comes from the segment before knows the sum without that record.
        let has_head = first_kind.is_none_or(|first| first == kind::CRC);
        if !has_head {
            let detail = format!("{name} begins with a record of another kind");
            self.find(Code::WalHead, 0, detail);
        }
        let can_repair = has_head || crc_before == 0;
        match ended {
            Ended::Clean if is_last => {
                let end = tail::inspect(&reader, None, self.reached()).map_err(failed)?;
                self.log.bytes_after = end.bytes;
                self.end_clean(&end);
            }
            Ended::Clean => {}
            Ended::Stop(stop) => {
                let end = tail::inspect(&reader, Some(stop), self.reached()).map_err(failed)?;
                self.log.bytes_after = end.bytes;
                self.end_stopped(stop, is_last, can_repair, &end);
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn name(&self) -> String {
        self.log.segments.get(self.segment).map_or_else(String::new, |s| s.name.clone())
    }

    fn find(&mut self, code: Code, offset: u64, detail: String) {
        let found = Finding::new(code, place(&self.name(), Some(offset)), detail);
        self.log.findings.push(found);
    }

    fn last(&self) -> Option<EntryId> {
        self.runs.last().map(|run| run.last)
    }

    /// Index of the last entry, or of a snapshot beyond it.
    fn reached(&self) -> u64 {
        let snapshot = self.log.snapshots.back().map_or(0, |snapshot| snapshot.index);
        self.last().map_or(0, |last| last.index).max(snapshot)
    }

    /// Says which entry is the last good one, for people.
    fn good(&self) -> String {
        match self.last() {
            Some(last) => format!("entry {} is the last good one", last.index),
            None => "there is no entry before it".into(),
        }
    }

    /// Ends the log before a record that no server reads.
    fn damage(&mut self, code: Code, offset: u64, what: &str) {
        self.note_damage(code, offset, what);
        self.is_refused = true;
    }

    fn note_damage(&mut self, code: Code, offset: u64, what: &str) {
        let detail = format!("{what}; {}", self.good());
        self.find(code, offset, detail);
        self.log.tail = Tail::Damaged;
        self.is_stopped = true;
    }

    /// The segment ends with zeros or with the file; say so when something follows.
    fn end_clean(&mut self, end: &tail::Seen) {
        let offset = self.log.end.offset;
        if end.is_length_wrong {
            let what = "whole records follow, but the length before them is wrong; a server would \
                        end the log here and clear the rest";
            self.note_damage(Code::WalLength, offset, what);
        } else if end.bytes > 0 {
            let detail = format!(
                "within the {} bytes after the end of the log are some that are not zero, as \
                 after a power loss; {}",
                end.bytes,
                self.good()
            );
            self.find(Code::WalAfterEnd, offset, detail);
            self.note_synced(offset, end);
        }
    }

    /// Notes a hole in what was synced.
    fn note_synced(&mut self, offset: u64, end: &tail::Seen) {
        if !end.was_synced {
            return;
        }
        let detail = format!(
            "records of a later write follow what cannot be read, so that was synced, and entries \
             behind it were acknowledged: it is damaged, and a server would end the log here and \
             lose them without a word; {}",
            self.good()
        );
        self.find(Code::WalTornInside, offset, detail);
        self.log.lacks_synced = true;
    }

    fn end_stopped(&mut self, stop: Stop, is_last: bool, can_repair: bool, end: &tail::Seen) {
        let offset = stop.error.offset;
        let what = stop.error.what;
        let is_torn = stop.is_torn && is_last && can_repair;
        if end.is_length_wrong {
            let what = "a whole record follows, but the length before it is wrong";
            self.note_damage(Code::WalLength, offset, what);
        } else if is_torn {
            let detail = format!(
                "{what}: {} bytes of a write that was cut short; {}",
                end.bytes,
                self.good()
            );
            self.find(Code::WalTorn, offset, detail);
            if end.was_synced {
                self.note_synced(offset, end);
            } else if end.has_records_after {
                let detail = format!(
                    "whole records follow the one that cannot be read, so if it was not a power \
                     loss but the disk, writes that were acknowledged are among them; {}",
                    self.good()
                );
                self.find(Code::WalTornInside, offset, detail);
            }
            self.log.tail = Tail::Torn { dropped_bytes: end.bytes };
        } else {
            let code = match stop.reason {
                Reason::HeadCut | Reason::Long => Code::WalCut,
                Reason::Huge => Code::WalLimit,
                Reason::Protobuf | Reason::Short => Code::WalProtobuf,
                Reason::Checksum | Reason::Chain => Code::WalChecksum,
            };
            self.note_damage(code, offset, what);
        }
        let opening = |is_repaired| {
            if is_repaired { Opening::AfterRepair } else { Opening::Refused }
        };
        let is_short = stop.reason == Reason::Short && is_last && can_repair;
        self.at_stop = (opening(is_torn), opening(is_torn || is_short));
    }

    fn record(&mut self, record: &Record<'_>) {
        let offset = record.offset;
        self.note_unknown(offset, "a record", record.unknown_field);
        let taken = match record.kind {
            kind::METADATA => self.metadata(offset, record.data),
            kind::ENTRY => self.entry(offset, record.data),
            kind::STATE => self.state(offset, record.data),
            kind::SNAPSHOT => self.snapshot(offset, record.data),
            kind::CRC => Ok(()),
            unknown => {
                self.is_refused = true;
                let detail =
                    format!("a record of kind {}, which is none of etcd's", unknown.cast_signed());
                self.find(Code::WalKindUnknown, offset, detail);
                Ok(())
            }
        };
        if let Err(error) = taken {
            let what = format!("a record of kind {} is no such message: {error}", record.kind);
            self.damage(Code::WalProtobuf, offset, &what);
        }
    }

    fn note_unknown(&mut self, offset: u64, what: &str, field: Option<u32>) {
        if let Some(field) = field {
            self.find(Code::WalFieldUnknown, offset, format!("{what} has a field {field}"));
        }
    }

    fn metadata(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let metadata = Metadata::decode(data)?;
        if data.len() > METADATA_BYTES_MAX {
            self.damage(Code::WalLimit, offset, "metadata of more than 1 KiB");
            return Ok(());
        }
        if self.log.metadata_bytes.is_empty() {
            self.note_unknown(offset, "metadata", metadata.unknown_field);
            if !data.is_empty() {
                self.log.metadata = Some(metadata);
                self.log.metadata_bytes = data.to_vec();
            }
        } else if self.log.metadata_bytes != data {
            let what = format!(
                "metadata says member {:x} of cluster {:x}, unlike the metadata before it",
                metadata.node_id, metadata.cluster_id
            );
            self.damage(Code::WalMetadataConflict, offset, &what);
        }
        Ok(())
    }

    fn state(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let state = HardState::decode(data)?;
        self.note_unknown(offset, "a HardState", state.unknown_field);
        if let Some(before) = self.log.hard_state
            && (state.term < before.term || state.commit < before.commit)
        {
            let detail = format!(
                "a HardState of term {} and commit index {} follows one of {} and {}",
                state.term, state.commit, before.term, before.commit
            );
            self.find(Code::WalTerm, offset, detail);
        }
        if let Some(last) = self.last()
            && last.term > state.term
        {
            self.term_ahead(offset, last, state.term);
        }
        self.log.hard_state = Some(state);
        Ok(())
    }

    fn term_ahead(&mut self, offset: u64, last: EntryId, term: u64) {
        let detail =
            format!("entry {} is of term {}, the HardState of {term}", last.index, last.term);
        self.find(Code::WalTermAhead, offset, detail);
    }

    fn snapshot(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let mut snapshot = Snapshot::decode(data)?;
        self.note_unknown(offset, "a snapshot record", snapshot.unknown_field);
        if let Some(state) = &mut snapshot.conf_state {
            let unknown = state.unknown_field;
            let lists =
                [&state.voters, &state.learners, &state.voters_outgoing, &state.learners_next];
            let count = lists.iter().fold(0_usize, |sum, ids| sum.saturating_add(ids.len()));
            if count > MEMBERS_MAX {
                let what = format!("a snapshot record names {count} members");
                self.damage(Code::WalLimit, offset, &what);
                return Ok(());
            }
            self.note_unknown(offset, "a ConfState", unknown);
        }
        if self.log.snapshots.len() >= SNAPSHOTS_MAX {
            self.log.snapshots.pop_front();
        }
        self.log.snapshots.push_back(snapshot);
        Ok(())
    }

    fn entry(&mut self, offset: u64, data: &[u8]) -> Result<(), Error> {
        let entry = Entry::decode(data)?;
        self.note_unknown(offset, "an entry", entry.unknown_field);
        let change = match entry.kind {
            entry_kind::NORMAL => None,
            entry_kind::CONF_CHANGE => {
                let change = ConfChange::decode(entry.data)?;
                self.note_unknown(offset, "a membership change", change.unknown_field);
                Some(change)
            }
            unknown => {
                self.is_refused = true;
                let detail = format!("entry {} is of kind {unknown}", entry.index);
                self.find(Code::WalKindUnknown, offset, detail);
                None
            }
        };
        self.place_entry(offset, EntryId { index: entry.index, term: entry.term });
        if let Some(change) = change {
            self.log.changes.push(Change::new(&entry, &change));
        }
        let kept = [self.log.cuts.len(), self.runs.len(), self.jumps.len(), self.log.changes.len()];
        if kept.iter().any(|count| *count > KEPT_MAX) {
            self.damage(
                Code::WalLimit,
                offset,
                "more rewritten entries or membership changes than are kept",
            );
        }
        Ok(())
    }

    /// Puts an entry into the list.
    fn place_entry(&mut self, offset: u64, id: EntryId) {
        let ordinal = self.log.entry_records;
        self.log.entry_records = ordinal.saturating_add(1);
        if let Some(segment) = self.log.segments.get_mut(self.segment) {
            segment.index_max = segment.index_max.max(Some(id.index));
        }
        if id.index == 0 {
            let what = format!("an entry of index 0, which no log has; {}", self.good());
            self.find(Code::WalGap, offset, what);
            return;
        }
        match self.last() {
            Some(last) if id.index <= last.index => self.cut(offset, ordinal, id.index),
            Some(last) if id.index.saturating_sub(1) == last.index && id.term < last.term => {
                let detail = format!(
                    "entry {} of term {} follows one of term {}",
                    id.index, id.term, last.term
                );
                self.find(Code::WalTerm, offset, detail);
            }
            _ => {}
        }
        let before = self.runs.last().copied();
        match self.runs.last_mut() {
            Some(run) if id.index <= run.last.index.saturating_add(1) => run.last = id,
            None if id.index == 1 => self.runs.push(Run { first: id, last: id }),
            _ => {
                let (to, segment) = (id.index, self.segment);
                self.jumps.push(Jump { before, to, ordinal, segment, offset });
                self.runs.push(Run { first: id, last: id });
            }
        }
    }

    /// Takes what is at or above an index out of the list.
    fn cut(&mut self, offset: u64, ordinal: u64, index: u64) {
        let commit = self.log.commit();
        if index <= commit {
            let detail = format!(
                "entry {index} stands here again, though entries up to {commit} were committed"
            );
            self.find(Code::WalReplaced, offset, detail);
        }
        while self.log.cuts.last().is_some_and(|cut| cut.index >= index) {
            self.log.cuts.pop();
        }
        self.log.cuts.push(Cut { ordinal, index });
        while self.log.changes.last().is_some_and(|change| change.index >= index) {
            self.log.changes.pop();
        }
        while self.runs.last().is_some_and(|run| run.first.index >= index) {
            self.runs.pop();
        }
    }

    /// Draws the conclusions that need the whole log.
    fn finish(mut self) -> Log {
        let newest = self.log.newest_snapshot().map_or(0, |snapshot| snapshot.index);
        let run = self.runs.last().copied();
        (self.log.first, self.log.last) = (run.map(|run| run.first), run.map(|run| run.last));
        // What a reader that starts at the newest snapshot stumbles over.
        let stumbles = |jump: &&Jump| jump.to.saturating_sub(1) > newest;
        if let Some(jump) = self.jumps.iter().find(stumbles).cloned() {
            // Entries before it that were rewritten after it are nobody's.
            let is_good = |run: &Run| {
                let later = |cut: &&Cut| cut.ordinal > jump.ordinal;
                let cut = self.log.cuts.iter().find(later);
                cut.is_none_or(|cut| cut.index > run.last.index)
            };
            let run = jump.before.filter(is_good);
            (self.log.first, self.log.last) = (run.map(|run| run.first), run.map(|run| run.last));
            let name = self.log.segments.get(jump.segment).map_or("", |s| s.name.as_str());
            let after = self.log.last.map_or(newest, |last| last.index.max(newest));
            let detail = format!(
                "entry {} follows {after}, and no snapshot that counts covers what is between; \
                 {after} is the last good one",
                jump.to
            );
            let found = Finding::new(Code::WalGap, place(name, Some(jump.offset)), detail);
            self.log.findings.push(found);
            self.log.tail = Tail::Damaged;
            self.is_refused = true;
        }
        if !self.log.segments.is_empty() {
            self.check_whole(newest);
        }
        let floor = if self.is_refused { Opening::Refused } else { Opening::AsIs };
        self.log.opening = self.at_stop.0.max(floor);
        self.log.opening_before_3_7 = self.at_stop.1.max(floor);
        self.log
    }

    fn check_whole(&mut self, newest: u64) {
        let (end, last) = (self.log.end.offset, self.log.last_index());
        self.is_refused |= self.log.metadata.is_none() || self.log.commit() > last;
        // After damage these would only be its consequences.
        if self.log.tail == Tail::Damaged {
            return;
        }
        if self.log.metadata.is_none() {
            let detail = "no record of kind metadata names the member and its cluster";
            self.find(Code::WalMetadataMissing, end, detail.into());
        }
        match self.log.hard_state {
            None => {
                let detail = "no HardState: a server never elects itself with such a log";
                self.find(Code::WalStateMissing, end, detail.into());
            }
            Some(state) if state.commit > last => {
                let detail =
                    format!("commit index {} is above the last entry {last}", state.commit);
                self.find(Code::WalCommit, end, detail);
            }
            Some(state) => {
                if let Some(entry) = self.log.last
                    && entry.term > state.term
                    && !self.log.findings.has(Code::WalTermAhead)
                {
                    self.term_ahead(end, entry, state.term);
                }
            }
        }
        let commit = self.log.commit();
        let mut void = self.log.snapshots.iter().filter(|snapshot| snapshot.index > commit);
        if let Some(snapshot) = void.next_back() {
            let detail = format!(
                "snapshot {} is above commit index {commit}; {newest} is the newest that counts",
                snapshot.index
            );
            self.find(Code::WalSnapshotVoid, end, detail);
        }
    }
}
