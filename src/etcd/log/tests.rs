//! Logs that real servers left, logs made by hand, and every way to damage a short one.

use std::fs;
use std::path::Path;

use super::*;
use crate::format::wal::{
    ConfChange, ConfState, Encoder, Entry, change_kind, entry_kind, kind, segment_name,
};

const ME: u64 = 0xa1;

/// Writes the files of a WAL directory.
fn directory(files: &[(String, Vec<u8>)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

fn metadata() -> Vec<u8> {
    Metadata { node_id: ME, cluster_id: 0xc1, ..Metadata::default() }.encode()
}

fn put_entry(log: &mut Encoder, index: u64, term: u64, data: &[u8]) {
    log.push(kind::ENTRY, &Entry { index, term, data, ..Entry::default() }.encode());
}

fn put_state(log: &mut Encoder, term: u64, commit: u64) {
    let state = HardState { term, vote: ME, commit, ..HardState::default() };
    log.push(kind::STATE, &state.encode());
}

fn put_snapshot(log: &mut Encoder, index: u64, voters: &[u64]) {
    let conf_state = Some(ConfState { voters: voters.to_vec(), ..ConfState::default() });
    let conf_state = conf_state.filter(|_| index > 0);
    let snapshot = Snapshot { index, term: 1, conf_state, unknown_field: None };
    log.push(kind::SNAPSHOT, &snapshot.encode());
}

fn put_change(log: &mut Encoder, index: u64, change: u64, node_id: u64) {
    let data = ConfChange { kind: change, node_id, ..ConfChange::default() }.encode();
    let kind = entry_kind::CONF_CHANGE;
    let entry = Entry { kind, index, term: 1, data: &data, ..Entry::default() };
    log.push(kind::ENTRY, &entry.encode());
}

fn begin(crc: u32) -> Encoder {
    let mut log = Encoder::begin(crc);
    log.push(kind::METADATA, &metadata());
    log
}

/// A new log of a sole voter with entry 1 adding it.
fn founded() -> Encoder {
    let mut log = begin(0);
    put_snapshot(&mut log, 0, &[]);
    put_change(&mut log, 1, change_kind::ADD_NODE, ME);
    put_state(&mut log, 1, 1);
    log
}

/// A log, and the directory that it is read from once more.
struct Opened(Log, #[expect(dead_code, reason = "held until the log is done")] tempfile::TempDir);

impl std::ops::Deref for Opened {
    type Target = Log;

    fn deref(&self) -> &Log {
        &self.0
    }
}

fn open(files: &[(String, Vec<u8>)]) -> Opened {
    let dir = directory(files);
    Opened(Log::open(dir.path()).unwrap(), dir)
}

fn open_one(log: Encoder) -> Opened {
    open(&[(segment_name(0, 0), log.into_bytes())])
}

fn codes(log: &Log) -> Vec<Code> {
    log.findings.codes().collect()
}

/// Every surviving entry above an index: index, term and data.
fn entries(log: &Log, after: u64) -> Vec<(u64, u64, Vec<u8>)> {
    let mut entries = log.entries(after).unwrap();
    let mut out = Vec::new();
    while let Some(entry) = entries.read_next().unwrap() {
        out.push((entry.index, entry.term, entry.data.to_vec()));
    }
    out
}

fn indexes(log: &Log, after: u64) -> Vec<u64> {
    entries(log, after).into_iter().map(|(index, ..)| index).collect()
}

/// Unpacks the WAL of a fixture, its long tail of zeros cut to `limit` bytes.
fn fixture(archive: &str, limit: u64) -> tempfile::TempDir {
    use std::io::Read as _;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(archive);
    let packed = flate2::read::GzDecoder::new(fs::File::open(path).unwrap());
    let dir = tempfile::tempdir().unwrap();
    for entry in tar::Archive::new(packed).entries().unwrap() {
        let entry = entry.unwrap();
        let path = entry.path().unwrap().into_owned();
        if path.extension().is_some_and(|extension| extension == "wal") {
            let mut bytes = Vec::new();
            entry.take(limit).read_to_end(&mut bytes).unwrap();
            fs::write(dir.path().join(path.file_name().unwrap()), bytes).unwrap();
        }
    }
    dir
}

#[test]
fn killed_members_logs_are_whole() {
    // As etcd's own library reads them: last entry, commit index.
    let versions = [("3.4", 134, 134), ("3.5", 135, 135), ("3.6", 135, 134), ("3.7", 135, 134)];
    for (version, index, commit) in versions {
        let dir = fixture(&format!("etcd-{version}/killed-datadir.tar.gz"), 1 << 20);
        let log = Log::open(dir.path()).unwrap();
        assert_eq!(log.findings.kept(), [], "{version}");
        assert_eq!((log.tail, log.opening), (Tail::Whole, Opening::AsIs));
        let last = log.last.unwrap();
        assert_eq!((last, log.commit()), (EntryId { index, term: 2 }, commit), "{version}");
        let read = indexes(&log, 0);
        assert!(read.iter().copied().eq(1..=last.index));
        let reach = Reach { index: last.index, counted: Counted::SoleVoter };
        assert_eq!(log.reach(None), reach);
    }
}

#[test]
fn segments_are_one_log() {
    let mut first = founded();
    put_entry(&mut first, 2, 1, b"two");
    put_state(&mut first, 1, 2);
    let mut second = begin(first.crc());
    put_state(&mut second, 1, 2);
    put_entry(&mut second, 3, 1, b"three");
    let crc = second.crc();
    let mut second = second.into_bytes();
    let end = second.len();
    second.resize(4096, 0);
    let files = [(segment_name(0, 0), first.into_bytes()), (segment_name(1, 3), second.clone())];
    let log = open(&files);
    assert_eq!(log.findings.kept(), []);
    assert_eq!(log.end, Position { segment: 1, offset: end as u64, crc });
    assert_eq!(indexes(&log, 0), [1, 2, 3]);
    assert_eq!(entries(&log, 2), [(3, 1, b"three".to_vec())]);
    assert!(indexes(&log, 3).is_empty() && indexes(&log, 9).is_empty());
    assert_eq!(log.reach(None), Reach { index: 3, counted: Counted::SoleVoter });

    // The first segment is gone, and no snapshot covers it: a server finds a gap.
    let log = open(&files[1..]);
    assert_eq!((codes(&log), log.tail), (vec![Code::WalGap], Tail::Damaged));
    assert_eq!((log.first, log.opening), (None, Opening::Refused));
    // With one it is what a server leaves when it purges.
    let mut purged = begin(0x77);
    put_state(&mut purged, 1, 2);
    put_snapshot(&mut purged, 2, &[ME]);
    put_entry(&mut purged, 3, 1, b"three");
    let log = open(&[(segment_name(1, 3), purged.into_bytes())]);
    assert_eq!((log.findings.kept(), indexes(&log, 2)), (&[][..], vec![3]));
    assert!(matches!(log.entries(1), Err(EntriesError::Purged { wanted: 2, first: 3 })));
    assert_eq!(log.reach(None), Reach { index: 3, counted: Counted::SoleVoter });

    // A number that is missing, and a segment that belongs to another log.
    let files = [files[0].clone(), (segment_name(2, 3), second)];
    let log = open(&files);
    assert_eq!((codes(&log), log.opening), (vec![Code::WalSequence], Opening::Refused));
    let log = open(&[files[0].clone(), (segment_name(1, 3), begin(7).into_bytes())]);
    assert_eq!((codes(&log), log.tail), (vec![Code::WalChecksum], Tail::Damaged));
    assert_eq!(indexes(&log, 0), [1, 2]);
}

#[test]
fn other_files_are_named() {
    let mut files = vec![(segment_name(0, 0), founded().into_bytes())];
    for name in ["0.tmp", "notes", "0000000000000000-0000000000000000.wal.broken"] {
        files.push((name.into(), b"x".to_vec()));
    }
    let log = open(&files);
    assert_eq!((codes(&log), log.findings.kept().len()), (vec![Code::WalName], 2));
    files.push(("1-2.wal".into(), Vec::new()));
    assert!(open(&files).findings.has(Code::WalSequence));
    assert!(open(&[]).is_empty());
    assert_eq!(open(&[]).findings.kept(), []);
    assert!(Log::open(Path::new("/nowhere/at/all")).is_err());
}

#[test]
fn rewritten_entries_replace_what_was_there() {
    let mut log = founded();
    for index in 2..=6 {
        put_entry(&mut log, index, 1, b"old");
    }
    put_change(&mut log, 7, change_kind::ADD_NODE, 0xb2);
    for index in 4..=5 {
        put_entry(&mut log, index, 2, b"new");
    }
    put_entry(&mut log, 5, 3, b"newest");
    put_state(&mut log, 3, 3);
    let log = open_one(log);
    assert_eq!(log.findings.kept(), []);
    let terms: Vec<_> = entries(&log, 0).iter().map(|entry| (entry.0, entry.1)).collect();
    assert_eq!(terms, [(1, 1), (2, 1), (3, 1), (4, 2), (5, 3)]);
    assert_eq!((log.entry_records, log.last_index()), (10, 5));
    // The change at 7 was cut off with the rest.
    assert_eq!(log.reach(None), Reach { index: 5, counted: Counted::SoleVoter });

    let mut log = founded();
    put_entry(&mut log, 2, 1, b"committed");
    put_state(&mut log, 1, 2);
    put_entry(&mut log, 2, 1, b"again");
    assert_eq!(codes(&open_one(log)), [Code::WalReplaced]);
}

#[test]
fn gaps_are_damage_unless_a_snapshot_covers_them() {
    let mut log = founded();
    put_entry(&mut log, 3, 1, b"");
    put_entry(&mut log, 4, 1, b"");
    put_state(&mut log, 1, 4);
    let log = open_one(log);
    assert_eq!((codes(&log), log.tail), (vec![Code::WalGap], Tail::Damaged));
    assert_eq!((indexes(&log, 0), log.opening), (vec![1], Opening::Refused));

    // A leader sent a snapshot at 50 instead of the entries before.
    let mut log = founded();
    put_snapshot(&mut log, 50, &[ME, 0xb2]);
    put_entry(&mut log, 51, 2, b"");
    put_state(&mut log, 2, 51);
    let log = open_one(log);
    assert_eq!((log.findings.kept(), log.tail), (&[][..], Tail::Whole));
    assert_eq!(indexes(&log, 50), [51]);
    assert!(matches!(log.entries(0), Err(EntriesError::Purged { wanted: 1, first: 51 })));
    assert_eq!(log.reach(None), Reach { index: 51, counted: Counted::Committed });

    // The same, but nothing says that it was committed.
    let mut log = founded();
    put_snapshot(&mut log, 50, &[ME]);
    put_entry(&mut log, 51, 2, b"");
    assert!(open_one(log).findings.has(Code::WalGap));
}

#[test]
fn a_second_voter_ends_what_counts_by_itself() {
    let changed = |change, node| {
        let mut log = founded();
        put_entry(&mut log, 2, 1, b"");
        put_change(&mut log, 3, change, node);
        put_entry(&mut log, 4, 1, b"");
        open_one(log).reach(None)
    };
    let sole = |index| Reach { index, counted: Counted::SoleVoter };
    assert_eq!(changed(change_kind::ADD_NODE, 0xb2), sole(3));
    assert_eq!(changed(change_kind::ADD_LEARNER_NODE, 0xb2), sole(4));
    assert_eq!(changed(change_kind::ADD_NODE, ME), sole(4));

    let mut log = founded();
    put_change(&mut log, 2, change_kind::ADD_NODE, 0xb2);
    put_state(&mut log, 1, 2);
    put_entry(&mut log, 3, 1, b"");
    let log = open_one(log);
    assert_eq!(log.reach(None), Reach { index: 2, counted: Counted::Committed });
    let configuration = log.configuration(2, None).unwrap();
    assert_eq!(configuration.voters.into_iter().collect::<Vec<_>>(), [ME, 0xb2]);

    // A snapshot record of etcd 3.4 names nobody.
    let mut log = founded();
    log.push(kind::SNAPSHOT, &Snapshot { index: 1, term: 1, ..Snapshot::default() }.encode());
    put_entry(&mut log, 2, 1, b"");
    let log = open_one(log);
    assert_eq!(log.reach(None), Reach { index: 1, counted: Counted::VotersUnknown });
    let members = ConfState { voters: vec![ME], ..ConfState::default() };
    assert_eq!(log.reach(Some(&members)), sole(2));
}

#[test]
fn what_a_log_lacks_is_said() {
    let mut bare = Encoder::begin(0);
    put_snapshot(&mut bare, 0, &[]);
    put_entry(&mut bare, 1, 1, b"");
    assert_eq!(codes(&open_one(bare)), [Code::WalMetadataMissing, Code::WalStateMissing]);

    let mut ahead = founded();
    put_state(&mut ahead, 1, 9);
    let ahead = open_one(ahead);
    assert_eq!((codes(&ahead), ahead.opening), (vec![Code::WalCommit], Opening::Refused));

    let mut two = founded();
    two.push(kind::METADATA, &Metadata { node_id: 2, ..Metadata::default() }.encode());
    assert_eq!(codes(&open_one(two)), [Code::WalMetadataConflict]);

    let mut unknown = founded();
    unknown.push(9, b"");
    unknown.push(kind::ENTRY, &[0x10, 1, 0x18, 2, 0x28, 1]);
    unknown.push(kind::ENTRY, &[0x08, 2, 0x10, 1, 0x18, 3]);
    let unknown = open_one(unknown);
    assert_eq!(codes(&unknown), [Code::WalKindUnknown, Code::WalFieldUnknown]);
    assert_eq!((unknown.findings.kept().len(), unknown.opening), (3, Opening::Refused));
    assert!(unknown.obstacle().is_some());

    let mut void = founded();
    put_snapshot(&mut void, 5, &[ME]);
    assert_eq!(codes(&open_one(void)), [Code::WalSnapshotVoid]);

    let mut no_message = founded();
    no_message.push(kind::ENTRY, &[0xff]);
    put_entry(&mut no_message, 2, 1, b"");
    let no_message = open_one(no_message);
    assert_eq!((codes(&no_message), indexes(&no_message, 0)), (vec![Code::WalProtobuf], vec![1]));
    let found = &no_message.findings.kept()[0];
    assert_eq!(found.place.file.as_deref(), Some(segment_name(0, 0).as_str()));
    assert!(found.detail.ends_with("entry 1 is the last good one"), "{}", found.detail);
}

/// The head of a log that etcd 3.6 wrote, up to and with its first states, then zeros.
fn real_head(limit: usize) -> (Vec<u8>, usize) {
    let dir = fixture("etcd-3.6/killed-datadir.tar.gz", 1 << 16);
    let mut bytes = fs::read(dir.path().join(segment_name(0, 0))).unwrap();
    let mut decoder = crate::format::wal::Decoder::new(&bytes, 0);
    let mut end = 0;
    while let Some(record) = decoder.next() {
        if decoder.offset() as usize > limit {
            break;
        }
        if record.unwrap().kind == kind::STATE {
            end = decoder.offset() as usize;
        }
    }
    assert!(end > limit / 2, "{end}");
    bytes.truncate(end);
    bytes.resize(end.next_multiple_of(512) + 1024, 0);
    (bytes, end)
}

/// What a reader of a log gets to see.
type Seen = (Vec<(u64, u64, Vec<u8>)>, Option<HardState>, Option<Metadata>, Vec<Snapshot>);

fn seen(log: &Log) -> Seen {
    (entries(log, 0), log.hard_state, log.metadata, Vec::from(log.snapshots.clone()))
}

/// Opens damaged bytes, and holds that nothing is missing in silence.
fn nothing_is_lost_in_silence(dir: &Path, bytes: &[u8], whole: &Seen, what: &str) -> Log {
    fs::write(dir.join(segment_name(0, 0)), bytes).unwrap();
    let log = Log::open(dir).unwrap();
    let now = seen(&log);
    if log.findings.kept().is_empty() {
        assert_eq!((log.tail, log.opening), (Tail::Whole, Opening::AsIs), "{what}");
        assert!(now == *whole, "{what}: something is missing and nothing is said");
    }
    for found in log.findings.kept() {
        assert_eq!(found.place.file, Some(segment_name(0, 0)), "{what}");
        assert!(found.place.offset.is_some_and(|at| at <= bytes.len() as u64), "{what}");
    }
    if log.tail != Tail::Whole {
        // What is still handed out is what was there.
        assert!(whole.0.starts_with(&now.0), "{what}: {:?}", log.findings.kept());
        assert!(
            log.findings.kept().iter().any(|found| found.detail.contains("good one")
                || found.detail.contains("no entry before"))
        );
    }
    log
}

#[test]
fn a_log_that_is_cut_anywhere_says_so() {
    let (bytes, end) = real_head(3000);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(segment_name(0, 0)), &bytes).unwrap();
    let log = Log::open(dir.path()).unwrap();
    assert_eq!(log.findings.kept(), []);
    let whole = seen(&log);
    let mut boundaries = crate::format::wal::Decoder::new(&bytes, 0);
    let mut ends = vec![0];
    while boundaries.next().is_some_and(|record| record.is_ok()) {
        ends.push(boundaries.offset() as usize);
    }
    let (mut torn, mut clean) = (0, 0);
    for cut in 0..end {
        let what = format!("cut at {cut}");
        fs::write(dir.path().join(segment_name(0, 0)), &bytes[..cut]).unwrap();
        let log = Log::open(dir.path()).unwrap();
        let kept = entries(&log, 0);
        assert!(whole.0.starts_with(&kept), "{what}");
        if ends.contains(&cut) {
            // Nothing tells a log that ends with a record from one that never went on.
            clean += 1;
            assert_eq!(log.tail, Tail::Whole, "{what}");
        } else {
            torn += 1;
            assert!(matches!(log.tail, Tail::Torn { .. }), "{what}: {:?}", log.findings.kept());
            // Without metadata a server has no id to start with.
            let want = if log.metadata.is_some() { Opening::AfterRepair } else { Opening::Refused };
            assert_eq!(log.opening, want, "{what}");
        }
    }
    assert!(torn > 1000 && clean > 10, "{torn} {clean}");
}

#[test]
fn a_flip_of_any_byte_is_never_a_silent_loss() {
    let (bytes, end) = real_head(3000);
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join(segment_name(0, 0)), &bytes).unwrap();
    let whole = seen(&Log::open(dir.path()).unwrap());
    let mut counts = std::collections::BTreeMap::new();
    for at in 0..end {
        // One bit, and the whole byte; which bit goes by the place.
        let bit = 1_u8 << (at % 8);
        // What a lost page leaves is zeros.
        for flip in [bit, if bytes[at] == 0 { 0xff } else { bytes[at] }] {
            let mut bad = bytes.clone();
            bad[at] ^= flip;
            let what = format!("byte {at} xor {flip:02x}");
            let log = nothing_is_lost_in_silence(dir.path(), &bad, &whole, &what);
            let code = log.findings.kept().first().map(|found| found.code);
            *counts.entry(code).or_insert(0) += 1;
        }
    }
    assert!(counts[&Some(Code::WalChecksum)] > 1000 && counts[&Some(Code::WalLength)] > 100);
    // Padding is under no checksum; nothing depends on it.
    assert!(counts.get(&None).is_some_and(|unseen| *unseen < 300), "{counts:?}");
}

/// Where frames begin, and of which kind their records are.
fn frames(bytes: &[u8]) -> Vec<(usize, u64)> {
    let mut decoder = crate::format::wal::Decoder::new(bytes, 0);
    let mut frames = Vec::new();
    let mut at = 0;
    while let Some(Ok(record)) = decoder.next() {
        frames.push((at, record.kind));
        at = decoder.offset() as usize;
    }
    frames
}

#[test]
fn a_hole_in_what_was_synced_is_told_from_a_write_that_was_not() {
    let (bytes, end) = real_head(30_000);
    let frames = frames(&bytes);
    let dir = tempfile::tempdir().unwrap();
    let (mut lost, mut kept) = (0, 0);
    for sector in 1..end.div_ceil(512) {
        let mut bytes = bytes.clone();
        bytes[sector * 512..][..512].fill(0);
        fs::write(dir.path().join(segment_name(0, 0)), bytes).unwrap();
        let log = Log::open(dir.path()).unwrap();
        // Entries of two requests, of which one was synced before the other was written.
        let behind: Vec<u64> = frames
            .iter()
            .filter(|(at, _)| *at >= (sector + 1) * 512)
            .map(|(_, kind)| *kind)
            .filter(|kind| [kind::ENTRY, kind::STATE].contains(kind))
            .collect();
        let first = behind.iter().position(|kind| *kind == kind::ENTRY).unwrap_or(behind.len());
        let state = behind[first..].iter().position(|kind| *kind == kind::STATE);
        let proves = state.is_some_and(|at| behind[first + at..].contains(&kind::ENTRY));
        assert!(log.lacks_synced || !proves, "sector {sector}: {:?}", log.findings.kept());
        assert!(!log.lacks_synced || behind.len() > 1, "sector {sector}: {behind:?}");
        assert_eq!(
            log.lacks_synced,
            log.lacks_synced && codes(&log).contains(&Code::WalTornInside)
        );
        *(if log.lacks_synced { &mut lost } else { &mut kept }) += 1;
    }
    assert!(lost > 20 && kept > 0, "{lost} {kept}");
}

#[test]
fn one_unsynced_write_with_a_hole_is_no_damage() {
    let hole = |log: Encoder, from: usize| {
        let mut bytes = log.into_bytes();
        let sector = from.div_ceil(512) * 512;
        bytes[sector..sector + 512].fill(0);
        bytes.resize(bytes.len() + 1024, 0);
        open(&[(segment_name(0, 0), bytes)])
    };
    let from = |log: &Encoder| log.bytes().len();
    // States that came alone, which etcd does not sync, and then the entries of one request.
    let unsynced = |with_more: bool| {
        let mut log = founded();
        let start = from(&log);
        (0..60).for_each(|_| put_state(&mut log, 1, 1));
        put_entry(&mut log, 2, 1, &[7; 100]);
        put_state(&mut log, 1, 1);
        if with_more {
            put_entry(&mut log, 3, 1, &[7; 100]);
        }
        hole(log, start).lacks_synced
    };
    assert_eq!((unsynced(false), unsynced(true)), (false, true));
    // Entries and the state that covers them: what is behind the hole may never have been synced.
    let written = |with_more: bool| {
        let mut log = founded();
        let start = from(&log);
        (2..40).for_each(|index| put_entry(&mut log, index, 1, &[7; 100]));
        put_state(&mut log, 1, 39);
        if with_more {
            put_entry(&mut log, 40, 1, &[7; 100]);
        }
        hole(log, start).lacks_synced
    };
    assert_eq!((written(false), written(true)), (false, true));
    // The only entry of a request is in the hole: the next request shows it.
    let swallowed = |with_more: bool| {
        let mut log = founded();
        let start = from(&log);
        put_entry(&mut log, 2, 1, &[7; 1000]);
        put_state(&mut log, 1, 2);
        if with_more {
            put_entry(&mut log, 3, 1, &[7; 100]);
            put_state(&mut log, 1, 3);
        }
        hole(log, start).lacks_synced
    };
    assert_eq!((swallowed(false), swallowed(true)), (false, true));
}
