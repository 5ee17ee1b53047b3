//! Losses of power and disks that fail.
//!
//! A recorded run is played again up to every moment. What was synced is there; of what was not,
//! any part may be, each write whole, not at all, or up to some sector.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::bolt::disk::{Event, Probe, Verdict};
use crate::format::u64_of;

const SECTOR: usize = 512;
/// Most unsynced changes of which every subset is tried.
const SUBSET_MAX: usize = 6;

/// What a disk does at the change with a number.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Error(rustix::io::Errno),
    Part(usize, rustix::io::Errno),
}

#[derive(Debug, Default)]
struct Recorder {
    events: Mutex<Vec<Event>>,
    asked: AtomicUsize,
    fault: Mutex<Option<(usize, Fault)>>,
}

impl Recorder {
    fn count(&self) -> usize {
        self.events.lock().unwrap().len()
    }
}

impl Probe for Recorder {
    fn before(&self, event: &Event) -> Verdict {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        match *self.fault.lock().unwrap() {
            Some((at, Fault::Error(error))) if at == number => Verdict::Fail(error.into()),
            Some((at, Fault::Part(count, error))) if at == number => match event {
                Event::Write { .. } => Verdict::Part(count, error.into()),
                _ => Verdict::Fail(error.into()),
            },
            _ => Verdict::Go,
        }
    }

    fn after(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}

fn apply(bytes: &mut Vec<u8>, event: &Event, upto: usize) {
    match event {
        Event::Write { offset, bytes: part, .. } => {
            let (start, part) = (usize_of(*offset), &part[..upto.min(part.len())]);
            let end = start + part.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[start..end].copy_from_slice(part);
        }
        Event::SetLen { len, .. } => bytes.resize(usize_of(*len), 0),
        _ => {}
    }
}

/// Every content that a file may have when the power goes.
fn states(durable: &[u8], unsynced: &[Event]) -> BTreeSet<Vec<u8>> {
    let mut states = BTreeSet::new();
    let with = |chosen: &dyn Fn(usize) -> usize| {
        let mut bytes = durable.to_vec();
        for (index, event) in unsynced.iter().enumerate() {
            match chosen(index) {
                0 => {}
                upto => apply(&mut bytes, event, upto),
            }
        }
        bytes
    };
    for count in 0..=unsynced.len() {
        states.insert(with(&|index| if index < count { usize::MAX } else { 0 }));
    }
    let recent = unsynced.len().saturating_sub(SUBSET_MAX);
    for subset in 0..1_usize << unsynced.len().min(SUBSET_MAX) {
        let is_in = |index: usize| index < recent || subset >> (index - recent) & 1 == 1;
        states.insert(with(&|index| if is_in(index) { usize::MAX } else { 0 }));
    }
    for (torn, event) in unsynced.iter().enumerate() {
        let Event::Write { bytes, .. } = event else { continue };
        let sectors = bytes.len().div_ceil(SECTOR);
        for sector in (1..sectors).step_by((sectors / 5).max(1)) {
            for others in [0, usize::MAX] {
                let upto = |index| if index == torn { sector * SECTOR } else { others };
                states.insert(with(&upto));
            }
        }
    }
    states
}

/// Opens a state; `None` if it cannot be.
fn opened(path: &Path, bytes: &[u8], options: &Options) -> Option<(Db, Rows)> {
    std::fs::write(path, bytes).unwrap();
    let db = Db::open(&Disk::default(), path, options).ok()?;
    let rows = rows_of(&db.view().file().unwrap());
    Some((db, rows))
}

/// Commits that grow the file, free pages, use them again and make large values.
fn commits() -> Vec<Batch> {
    let mut commits = Vec::new();
    let key = |n: usize| Bytes::from(format!("{n:05}"));
    for round in 0..9_usize {
        let mut batch = Batch::default();
        for n in 0..30 {
            let bytes = vec![u8::try_from(round).unwrap(); 40 + round];
            batch.plan(b"key", key(round * 20 + n), Some(Bytes::from(bytes)));
        }
        if round % 3 == 1 {
            (0..round * 18).for_each(|n| batch.plan(b"key", key(n), None));
            batch.plan(b"large", key(round), Some(Bytes::from(vec![9; 3000])));
        }
        batch.plan(b"meta", key(0), Some(Bytes::from(vec![u8::try_from(round).unwrap(); 8])));
        commits.push(batch);
    }
    commits
}

#[test]
fn a_loss_of_power_leaves_the_state_before_or_after() {
    let folder = folder();
    let recorder = Arc::new(Recorder::default());
    let disk = Disk::with_probe(recorder.clone());
    let options = Options { page_size: 1024, growth_bytes: 3 << 10, cache_bytes: 1 << 20 };
    let db = Db::create(&disk, &folder.path().join("db"), &options).unwrap();
    // Each state that was acknowledged, and how many events it took.
    let mut acknowledged = vec![(recorder.count(), Rows::new())];
    for batch in commits() {
        db.commit(batch).unwrap();
        acknowledged.push((recorder.count(), rows_of(&db.view().file().unwrap())));
    }
    drop(db);
    let events = recorder.events.lock().unwrap().clone();
    assert!(events.iter().filter(|event| matches!(event, Event::SetLen { .. })).count() > 2);

    let path = folder.path().join("replayed");
    let (mut durable, mut unsynced) = (Vec::new(), Vec::new());
    let (mut looked, mut old, mut new) = (0, 0, 0);
    for (done, event) in (1..).zip(&events) {
        unsynced.push(event.clone());
        if matches!(event, Event::Sync { .. }) {
            unsynced.iter().for_each(|event| apply(&mut durable, event, usize::MAX));
            unsynced.clear();
        }
        let at = acknowledged.partition_point(|(count, _)| *count <= done);
        let Some(last) = at.checked_sub(1) else { continue };
        for bytes in states(&durable, &unsynced) {
            looked += 1;
            let Some((db, rows)) = opened(&path, &bytes, &options) else {
                panic!("after event {done}, {looked}: cannot be opened");
            };
            let next = acknowledged.get(at).map(|(_, rows)| rows);
            old += usize::from(rows == acknowledged[last].1);
            new += usize::from(Some(&rows) == next);
            assert!(rows == acknowledged[last].1 || Some(&rows) == next, "after event {done}");
            check_pages(&db);
            if looked % 5 == 0 {
                db.commit(batch(b"more", &[("k", Some(&[1; 2000]))])).unwrap();
                check_pages(&db);
            }
        }
    }
    assert!(looked > 300 && old > 100 && new > 8, "{looked} {old} {new}");
}

#[test]
fn power_lost_after_a_process_that_died_before_its_sync() {
    // The meta of a commit is in memory only when the next process opens the file.
    let folder = folder();
    let recorder = Arc::new(Recorder::default());
    let disk = Disk::with_probe(recorder.clone());
    let options = Options { page_size: 1024, growth_bytes: 64 << 10, cache_bytes: 1 << 20 };
    let path = folder.path().join("db");
    let db = Db::create(&disk, &path, &options).unwrap();
    let mut batches = commits().into_iter();
    db.commit(batches.next().unwrap()).unwrap();
    db.commit(batches.next().unwrap()).unwrap();
    let before = rows_of(&db.view().file().unwrap());
    let synced = recorder.count();
    db.commit(batches.next().unwrap()).unwrap();
    let middle = rows_of(&db.view().file().unwrap());
    drop(db);
    // The last sync of the first process never was.
    assert!(matches!(recorder.events.lock().unwrap().pop(), Some(Event::Sync { .. })));
    let again = Db::open(&disk, &path, &options).unwrap();
    again.commit(batches.next().unwrap()).unwrap();
    let after = rows_of(&again.view().file().unwrap());
    drop(again);

    let events = recorder.events.lock().unwrap().clone();
    let (mut durable, mut unsynced) = (Vec::new(), Vec::new());
    for (done, event) in (1..).zip(&events) {
        unsynced.push(event.clone());
        if matches!(event, Event::Sync { .. }) {
            unsynced.iter().for_each(|event| apply(&mut durable, event, usize::MAX));
            unsynced.clear();
        }
        if done <= synced {
            continue;
        }
        for bytes in states(&durable, &unsynced) {
            let (_, rows) = opened(&folder.path().join("replayed"), &bytes, &options).unwrap();
            assert!([&before, &middle, &after].contains(&&rows), "after event {done}");
        }
    }
}

#[test]
fn a_disk_that_fails_poisons_and_the_file_is_one_of_two_states() {
    use rustix::io::Errno;

    let options = Options { page_size: 1024, growth_bytes: 3 << 10, cache_bytes: 1 << 20 };
    let faults = [
        Fault::Error(Errno::IO),
        Fault::Error(Errno::NOSPC),
        Fault::Part(0, Errno::NOSPC),
        Fault::Part(700, Errno::IO),
        Fault::Part(1500, Errno::NOSPC),
    ];
    let (mut failed, mut survived) = (0, 0);
    for fault in faults {
        for at in 1.. {
            let folder = folder();
            let recorder = Arc::new(Recorder::default());
            let disk = Disk::with_probe(recorder.clone());
            let path = folder.path().join("db");
            let db = Db::create(&disk, &path, &options).unwrap();
            let start = recorder.asked.load(Ordering::Relaxed);
            *recorder.fault.lock().unwrap() = Some((start + at - 1, fault));
            let (mut before, mut after, mut was_hit) = (Rows::new(), Rows::new(), false);
            for batch in commits().into_iter().take(5) {
                before = rows_of(&db.view().file().unwrap());
                let events = recorder.count();
                if let Err(error) = db.commit(batch.clone()) {
                    was_hit = true;
                    assert!(matches!(error, Error::Io(_)), "{error}");
                    // Nothing is changed for whoever reads on.
                    assert_eq!(rows_of(&db.view().file().unwrap()), before);
                    if db.poison().is_none() {
                        assert!(recorder.count() == events && is_full(&error));
                    }
                    let again = db.commit(batch.clone());
                    match db.poison() {
                        Some(_) => assert!(matches!(again, Err(Error::Poisoned(_)))),
                        None => drop(again.unwrap()),
                    }
                    after = expected(&before, &batch);
                    break;
                }
            }
            let gone = db.poison().is_some();
            drop(db);
            if !was_hit {
                if recorder.asked.load(Ordering::Relaxed) < start + at {
                    break;
                }
                // Growing was done in a smaller step.
                survived += 1;
                continue;
            }
            failed += 1;
            let db = Db::open(&Disk::default(), &path, &options).unwrap();
            let rows = rows_of(&db.view().file().unwrap());
            assert!(rows == after || (gone && rows == before), "{fault:?} at {at}");
            check_pages(&db);
            db.commit(batch(b"more", &[("k", Some(&[1; 2000]))])).unwrap();
            check_pages(&db);
        }
    }
    assert!(failed > 60 && survived > 2, "{failed} {survived}");
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::Io(error) if error.kind() == io::ErrorKind::StorageFull)
}

fn expected(before: &Rows, batch: &Batch) -> Rows {
    let mut rows = before.clone();
    for (name, changes) in &batch.buckets {
        let bucket = rows.entry(name.clone()).or_default();
        for (key, value) in changes {
            match value {
                Some(value) => drop(bucket.insert(key.to_vec(), value.to_vec())),
                None => drop(bucket.remove(&key[..])),
            }
        }
    }
    rows
}

/// A disk without any room for growth.
#[derive(Debug)]
struct Full(Mutex<bool>);

impl Probe for Full {
    fn before(&self, event: &Event) -> Verdict {
        match event {
            Event::SetLen { .. } if *self.0.lock().unwrap() => {
                Verdict::Fail(rustix::io::Errno::NOSPC.into())
            }
            _ => Verdict::Go,
        }
    }
    fn after(&self, _: Event) {}
}

#[test]
fn a_full_disk_is_no_end() {
    let folder = folder();
    let full = Arc::new(Full(Mutex::new(false)));
    let disk = Disk::with_probe(full.clone());
    let options = Options { page_size: 1024, growth_bytes: 8 << 10, cache_bytes: 1 << 20 };
    let db = Db::create(&disk, &folder.path().join("db"), &options).unwrap();
    db.commit(batch(b"x", &[("a", Some(&[1; 2000])), ("b", Some(&[1; 2000]))])).unwrap();
    *full.0.lock().unwrap() = true;
    let before = rows_of(&db.view().file().unwrap());
    for n in 0..20 {
        let large = batch(b"x", &[("c", Some(&vec![n; 50_000]))]);
        assert!(is_full(&db.commit(large).unwrap_err()));
        check_pages(&db);
        assert_eq!(rows_of(&db.view().file().unwrap()), before);
    }
    // What fits goes on.
    db.commit(batch(b"x", &[("a", None)])).unwrap();
    db.commit(batch(b"x", &[("b", Some(&[2; 100]))])).unwrap();
    *full.0.lock().unwrap() = false;
    db.commit(batch(b"x", &[("c", Some(&vec![1; 50_000]))])).unwrap();
    check_pages(&db);
    assert_eq!(u64_of(rows_of(&db.view().file().unwrap())[&b"x"[..]].len()), 2);
}
