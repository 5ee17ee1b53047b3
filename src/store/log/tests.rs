//! Logs that are written, cut, lost in part, and read again by [`Log`].

use std::cell::Cell;
use std::fs;
use std::path::Path;

use super::*;
use crate::etcd::log::{Opening, Tail};
use crate::format::wal::{ConfState, Metadata};
use crate::store::crash::{Dice, Fault, History, Recorder, Tree, read_tree, write_tree};

thread_local! {
    static SEGMENT_BYTES: Cell<u64> = const { Cell::new(crate::format::wal::SEGMENT_BYTES) };
}

/// Bytes that a segment is given: those of the program, unless a test of this thread says else.
pub(in crate::store) fn segment_bytes() -> u64 {
    SEGMENT_BYTES.get()
}

/// Makes segments small on this thread: reading tens of megabytes of zeros takes long.
pub(in crate::store) fn small_segments() {
    SEGMENT_BYTES.set(1 << 16);
}

const ENOSPC: i32 = 28;
const EIO: i32 = 5;
const SEGMENT: u64 = 4096;

fn metadata() -> Vec<u8> {
    Metadata { node_id: 7, cluster_id: 9, ..Metadata::default() }.encode()
}

fn state(commit: u64) -> HardState {
    HardState { term: 2, vote: 7, commit, ..HardState::default() }
}

fn entry(index: u64, data: &[u8]) -> Entry<'_> {
    Entry { term: 2, index, data, ..Entry::default() }
}

/// What entry `index` holds: of any length, with zeros in it.
fn data(index: u64) -> Vec<u8> {
    let mut dice = Dice(index.wrapping_mul(77));
    let length = [3, 40, 700, 1500, 0][dice.below(5)] + dice.below(9);
    (0..length)
        .map(|at| if at % 90 < 30 { 0 } else { u8::try_from(index % 250).unwrap() })
        .collect()
}

fn create(disk: &Disk, dir: &Path) -> Result<Wal, Error> {
    create::create(disk, dir, &metadata(), &[], None, SEGMENT)
}

/// Writes entries one batch after the other; tells `synced` the last index that is.
fn write(wal: &mut Wal, from: u64, batches: u64, synced: &mut dyn FnMut(u64)) -> Result<(), Error> {
    let mut next = from;
    for batch in 0..batches {
        let count = 1 + (batch * 7) % 3;
        let datas: Vec<_> = (next..next + count).map(|index| (index, data(index))).collect();
        let entries: Vec<_> = datas.iter().map(|(index, data)| entry(*index, data)).collect();
        next += count;
        wal.append(&entries, Some(state(next - 1)))?;
        wal.sync()?;
        synced(next - 1);
    }
    Ok(())
}

/// Holds a log to entries 1 to `last` at least; returns the last one in it.
fn holds(dir: &Path, last: u64) -> Log {
    let log = Log::open(dir).unwrap();
    let mut entries = log.entries(0).unwrap();
    let mut seen = 0;
    while let Some(entry) = entries.read_next().unwrap() {
        seen += 1;
        assert_eq!((entry.index, entry.term), (seen, 2));
        assert!(entry.data == data(seen), "entry {seen}");
    }
    assert!(seen >= last, "entries up to {last} were synced, {seen} are there");
    assert_eq!(log.last_index(), seen);
    assert_eq!(log.metadata_bytes, metadata());
    drop(entries);
    log
}

/// Goes on with a log as a server does.
fn reopen(disk: &Disk, dir: &Path) -> Result<Wal, LockError> {
    let mut locked = Locked::take(disk, dir)?;
    locked.segment_bytes = SEGMENT;
    let log = Log::open(dir).unwrap();
    assert_ne!(log.opening, Opening::Refused, "{:?}", log.findings);
    locked.repair(&log)?;
    Ok(locked.append_to(&log)?)
}

#[test]
fn what_is_written_is_read_over_many_segments() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("wal");
    let disk = Disk::default();
    let mut wal = create(&disk, &dir).unwrap();
    write(&mut wal, 1, 40, &mut |_| {}).unwrap();
    let last = wal.last_index();
    let log = holds(&dir, last);
    assert!(log.segments.len() > 5, "{}", log.segments.len());
    assert_eq!((log.opening, log.tail), (Opening::AsIs, Tail::Whole));
    assert_eq!(log.findings.kept(), []);
    assert_eq!(log.hard_state, Some(state(last)));
    for (number, segment) in log.segments.iter().enumerate() {
        assert_eq!(segment.sequence, number as u64);
        // All but the last are cut to their content.
        let is_last = number + 1 == log.segments.len();
        assert_eq!(segment.size_bytes == SEGMENT, is_last, "{segment:?}");
    }
    drop(wal);
    for _ in 0..3 {
        let mut wal = reopen(&disk, &dir).unwrap();
        let next = wal.last_index() + 1;
        write(&mut wal, next, 5, &mut |_| {}).unwrap();
        holds(&dir, wal.last_index());
    }
}

#[test]
fn a_new_log_has_etcds_size_and_modes() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("wal");
    let wal = Wal::create(
        &Disk::default(),
        &dir,
        &metadata(),
        &[entry(1, b"x")],
        Some(state(1)),
        crate::format::wal::SEGMENT_BYTES,
    );
    let wal = wal.unwrap();
    let file = dir.join("0000000000000000-0000000000000000.wal");
    let meta = fs::metadata(&file).unwrap();
    assert_eq!((meta.len(), meta.permissions().mode() & 0o777), (64_000_000, 0o600));
    assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700);
    assert!(!create::temporary(&dir).exists());
    assert_eq!((wal.last_index(), wal.state()), (1, state(1)));
    assert!(matches!(
        Wal::create(&Disk::default(), &dir, b"", &[], None, SEGMENT),
        Err(Error::Storage(_))
    ));
}

#[test]
fn segments_are_locked_until_they_are_not_needed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("wal");
    let disk = Disk::default();
    let mut wal = create(&disk, &dir).unwrap();
    write(&mut wal, 1, 40, &mut |_| {}).unwrap();
    let in_use = |number: usize| {
        let log = Log::open(&dir).unwrap();
        let path = dir.join(&log.segments[number].name);
        let file = fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
        lock::lock(&file).is_err()
    };
    let count = Log::open(&dir).unwrap().segments.len();
    assert!((0..count).all(&in_use));
    assert!(matches!(reopen(&disk, &dir), Err(LockError::InUse(_))));
    // A snapshot at the first entry of segment 3: etcd keeps the one before too.
    let index = Log::open(&dir).unwrap().segments[3].index;
    let conf_state = Some(ConfState { voters: vec![7], ..ConfState::default() });
    let snapshot = Snapshot { index, term: 2, conf_state, ..Snapshot::default() };
    wal.save_snapshot(&snapshot).unwrap();
    wal.release(index, 100).remove().unwrap();
    assert_eq!((0..4).map(&in_use).collect::<Vec<_>>(), [false, false, true, true]);
    wal.release(index, 3).remove().unwrap();
    let log = Log::open(&dir).unwrap();
    assert_eq!(log.segments[0].sequence, 2);
    assert_eq!(log.newest_snapshot().unwrap().index, index);
    drop(wal);
    let wal = reopen(&disk, &dir).unwrap();
    assert_eq!((wal.released.len(), wal.older.front().map(|held| held.sequence)), (1, Some(3)));
}

#[test]
fn snapshots_that_would_not_count_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut wal = create(&Disk::default(), &folder.path().join("wal")).unwrap();
    write(&mut wal, 1, 2, &mut |_| {}).unwrap();
    let conf_state = Some(ConfState { voters: vec![7], ..ConfState::default() });
    let ahead = Snapshot { index: 99, term: 2, conf_state, ..Snapshot::default() };
    assert!(wal.save_snapshot(&ahead).is_err());
    let nobody = Snapshot { index: 1, term: 2, ..Snapshot::default() };
    assert!(wal.save_snapshot(&nobody).is_err());
    assert_eq!(wal.poison(), None);
}

#[test]
fn a_batch_above_the_buffer_is_written_whole() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("wal");
    let (disk, recorder) = Recorder::new();
    let mut wal = create(&disk, &dir).unwrap();
    let large = vec![5; BUFFER_BYTES_MAX / 3];
    let entries: Vec<_> = (1..=7).map(|index| entry(index, &large)).collect();
    let before = recorder.count();
    wal.append(&entries, Some(state(7))).unwrap();
    assert_eq!(recorder.count() - before, 3);
    wal.sync().unwrap();
    let log = Log::open(&dir).unwrap();
    assert_eq!((log.last_index(), log.segments.len()), (7, 2));
    assert!(wal.encoder.bytes().is_empty());
}

fn segment_of(tree: &Tree) -> bool {
    tree.keys().any(|path| path.extension().is_some_and(|e| e == "wal") && path.starts_with("wal"))
}

#[test]
fn no_loss_of_power_takes_a_synced_entry() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    fs::create_dir(&root).unwrap();
    let dir = root.join("wal");
    let (disk, recorder) = Recorder::new();
    let mut wal = create(&disk, &dir).unwrap();
    let mut acks = vec![(0, recorder.count())];
    write(&mut wal, 1, 24, &mut |last| acks.push((last, recorder.count()))).unwrap();
    drop(wal);
    assert!(Log::open(&dir).unwrap().segments.len() >= 3);
    let history = History::new(&root, &Tree::new(), &recorder.events());
    let (mut states, mut repaired, mut deeper) = (0, 0, 0);
    let mut dice = Dice(1);
    history.each_state(&mut dice.clone(), &mut |moment, tree| {
        states += 1;
        let acked = acks.iter().rfind(|(_, count)| *count <= moment).map(|(last, _)| *last);
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        write_tree(root, tree);
        let dir = root.join("wal");
        if !segment_of(tree) {
            assert_eq!(acked, None, "moment {moment}");
            // Whoever comes next makes it anew.
            create(&Disk::default(), &dir).unwrap();
            return;
        }
        let log = holds(&dir, acked.unwrap_or(0));
        repaired += usize::from(log.opening == Opening::AfterRepair);
        let (disk, recorder) = Recorder::new();
        let mut wal = reopen(&disk, &dir).unwrap();
        let last = wal.last_index();
        write(&mut wal, last + 1, 1, &mut |_| {}).unwrap();
        let after = wal.last_index();
        drop(wal);
        let log = holds(&dir, after);
        assert_eq!((log.opening, log.bytes_after), (Opening::AsIs, 0));
        // Power is lost again while the log is repaired and gone on with.
        if dice.below(12) == 0 {
            let history = History::new(root, tree, &recorder.events());
            history.each_state(&mut dice, &mut |_, tree| {
                deeper += 1;
                let folder = tempfile::tempdir().unwrap();
                write_tree(folder.path(), tree);
                let log = holds(&folder.path().join("wal"), last);
                assert_ne!(log.opening, Opening::Refused, "{:?}", log.findings);
            });
        }
    });
    assert!(states > 150 && repaired > 3 && deeper > 50, "{states} {repaired} {deeper}");
}

/// Creates and fills a log until the disk fails; returns the last index that was synced.
fn until_failure(disk: &Disk, dir: &Path) -> (u64, Result<(), Error>) {
    let mut last = 0;
    let mut run = || -> Result<(), Error> {
        let mut wal = create(disk, dir)?;
        let done = write(&mut wal, 1, 24, &mut |index| last = index);
        if done.is_err() {
            let next = wal.last_index() + 1;
            assert!(wal.poison().is_some());
            assert!(wal.append(&[entry(next, b"")], None).is_err());
            assert!(wal.sync().is_err());
        }
        done
    };
    let done = run();
    (last, done)
}

#[test]
fn no_failing_disk_takes_a_synced_entry() {
    let (disk, recorder) = Recorder::new();
    let folder = tempfile::tempdir().unwrap();
    until_failure(&disk, &folder.path().join("wal")).1.unwrap();
    let count = recorder.count();
    assert!(count > 40);
    let mut went_on = 0;
    for at in 0..count {
        let others = [(EIO, None), (ENOSPC, Some(5)), (EIO, Some(600))];
        for (code, part) in [(ENOSPC, None), others[at % 3]] {
            let folder = tempfile::tempdir().unwrap();
            let dir = folder.path().join("wal");
            let (disk, fault) = Fault::new(at, code, part);
            let (last, done) = until_failure(&disk, &dir);
            let failed = fault.failed().unwrap();
            // Blocks, or zeros in them, that are wanted before there is anything to write there.
            let is_ahead = match &failed {
                Event::SetLen { len, .. } => *len == SEGMENT,
                Event::Write { bytes, .. } => bytes.iter().all(|byte| *byte == 0),
                _ => false,
            };
            let is_room = code == ENOSPC && is_ahead;
            let is_gone = matches!(&failed, Event::Remove(path) if path.ends_with("0.tmp"));
            match &done {
                Ok(()) => {
                    assert!(is_room, "{failed:?}");
                    went_on += 1;
                }
                Err(error) => assert!(!is_room || is_gone, "{error} {failed:?}"),
            }
            if dir.exists() {
                holds(&dir, last);
                let mut wal = reopen(&Disk::default(), &dir).unwrap();
                let next = wal.last_index() + 1;
                write(&mut wal, next, 2, &mut |_| {}).unwrap();
                holds(&dir, wal.last_index());
            } else {
                assert_eq!(last, 0);
                create(&Disk::default(), &dir).unwrap();
            }
        }
    }
    assert!(went_on > 3, "{went_on}");
}

use crate::bolt::disk::Event;

#[test]
fn a_torn_end_is_cut_off_and_kept_aside() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("wal");
    let mut wal = create(&Disk::default(), &dir).unwrap();
    write(&mut wal, 1, 1, &mut |_| {}).unwrap();
    let end = wal.offset;
    drop(wal);
    let path = dir.join("0000000000000000-0000000000000000.wal");
    let mut bytes = fs::read(&path).unwrap();
    let from = usize::try_from(end).unwrap();
    let mut encoder = Encoder::resume(Log::open(&dir).unwrap().end.crc);
    encoder.push(kind::ENTRY, &[7; 1200]);
    bytes[from..from + 700].copy_from_slice(&encoder.bytes()[..700]);
    fs::write(&path, &bytes).unwrap();
    let log = Log::open(&dir).unwrap();
    let locked = Locked::take(&Disk::default(), &dir).unwrap();
    assert!(locked.repair(&log).unwrap().unwrap().contains(".broken"));
    assert!(fs::read(path.with_extension("wal.broken")).unwrap() == bytes);
    assert_eq!(fs::metadata(&path).unwrap().len(), end);
    drop(locked);
    assert!(read_tree(&dir).len() == 2);
    holds(&dir, 1);
}
