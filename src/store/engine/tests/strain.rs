//! What a store does under strain: a slow log, a slow copy, panics, closes from everywhere.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Wake, Waker};

use super::*;
use crate::etcd::data_dir::{DataDir, Facts, agree};
use crate::etcd::log::Log;

/// Makes changes of some files slow.
#[derive(Debug, Default)]
struct Slow {
    /// Whether syncs of the log take long.
    log: AtomicBool,
    /// Whether copies of the database stand still.
    copy: AtomicBool,
    /// A copy was begun.
    is_copying: AtomicBool,
    database_syncs: AtomicU64,
    logs: Mutex<BTreeSet<u64>>,
    databases: Mutex<BTreeSet<u64>>,
    copies: Mutex<BTreeSet<u64>>,
}

impl Probe for Slow {
    fn before(&self, event: &Change) -> Verdict {
        match event {
            Change::Sync { file, .. }
                if self.log.load(Ordering::SeqCst) && self.logs.lock().unwrap().contains(file) =>
            {
                std::thread::sleep(Duration::from_millis(200));
            }
            Change::Sync { file, .. } if self.databases.lock().unwrap().contains(file) => {
                self.database_syncs.fetch_add(1, Ordering::SeqCst);
            }
            Change::Write { file, .. } if self.copies.lock().unwrap().contains(file) => {
                self.is_copying.store(true, Ordering::SeqCst);
                until("the copy to go on", || !self.copy.load(Ordering::SeqCst));
            }
            _ => {}
        }
        Verdict::Go
    }

    fn after(&self, event: Change) {
        if let Change::Create { file, path } | Change::Open { file, path } = event {
            let is_in = |name: &str| path.parent().is_some_and(|folder| folder.ends_with(name));
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if is_in("wal") {
                self.logs.lock().unwrap().insert(file);
            }
            if name == "db" {
                self.databases.lock().unwrap().insert(file);
            }
            if name.starts_with("db.tmp") {
                self.copies.lock().unwrap().insert(file);
            }
        }
    }
}

fn facts(dir: &Path) -> Facts {
    let seen = DataDir::inspect(dir, None).unwrap();
    let log = Log::open(&dir.join("member/wal")).unwrap();
    agree(&seen, Some(&log), None, true).unwrap().0
}

#[test]
fn the_newest_record_has_its_file_however_long_the_queue_is() {
    let dir = tempfile::tempdir().unwrap();
    let slow = Arc::new(Slow::default());
    let options = Options {
        compat: Some(Compat::V3_6),
        snapshot_count: 5,
        batch_interval: Duration::from_millis(1),
        disk: Disk::with_probe(slow.clone()),
        ..Options::default()
    };
    let store = open(&dir, options);
    for _ in 0..12 {
        put(&store, b"k", b"v").unwrap();
    }
    until("a snapshot", || store.shared().snapshot_index.load(Ordering::SeqCst) > 0);
    slow.log.store(true, Ordering::SeqCst);
    let value = vec![b'v'; 1 << 20];
    let mut waiting = Vec::new();
    for _ in 0..60 {
        let request = Put { key: b"k", value: &value, ..Put::default() };
        waiting.push(store.submit(&me(), request).unwrap());
    }
    // Six batches of the log are done, and records of snapshots wait behind the rest.
    store.wait(waiting.swap_remove(50)).unwrap();
    store.kill();
    let facts = facts(&dir.path().join("data"));
    assert!(facts.newest_record > 0);
    let snap = facts.newest_snap.unwrap();
    assert_eq!((snap.index, snap.is_readable), (facts.newest_record, true));
    let store = open(&dir, Options::default());
    assert_eq!(records(&store)[0].0, b"k");
}

#[test]
fn a_record_without_its_file_gets_one() {
    let dir = tempfile::tempdir().unwrap();
    let options = || Options {
        compat: Some(Compat::V3_6),
        snapshot_count: 5,
        batch_interval: Duration::from_millis(1),
        ..Options::default()
    };
    let store = open(&dir, options());
    for _ in 0..12 {
        put(&store, b"k", b"v").unwrap();
    }
    until("the first snapshot", || store.shared().snapshot_index.load(Ordering::SeqCst) > 0);
    store.close().unwrap();
    let data = dir.path().join("data");
    for entry in std::fs::read_dir(data.join("member/snap")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "snap") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let before = facts(&data).newest_record;
    assert!(before > 0 && facts(&data).newest_snap.is_none());
    let store = open(&dir, Options { snapshot_count: 1000, ..options() });
    let recorded = || store.shared().snapshot_index.load(Ordering::SeqCst);
    until("a snapshot", || recorded() > before);
    store.kill();
    let facts = facts(&data);
    assert_eq!(facts.newest_snap.unwrap().index, facts.newest_record);
}

/// Closes a store when it is woken.
struct Closer(Store);

impl Wake for Closer {
    fn wake(self: Arc<Self>) {
        std::thread::sleep(Duration::from_millis(200));
        let _ = self.0.close();
    }
}

#[test]
fn closes_from_everywhere_return() {
    for is_answered in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir, Options::default());
        let (done, all_done) = std::sync::mpsc::channel();
        let request = Put { key: b"a", value: b"b", ..Put::default() };
        let waker = Waker::from(Arc::new(Closer(store.clone())));
        let mut context = Context::from_waker(&waker);
        let mut answer = Box::pin(store.submit(&me(), request).unwrap());
        // Nobody answers this one: it is dropped by whoever closes.
        let mut end = Box::pin(store.shared().ends.of(7));
        let _ = match is_answered {
            true => std::future::Future::poll(answer.as_mut(), &mut context).is_pending(),
            false => std::future::Future::poll(end.as_mut(), &mut context).is_pending(),
        };
        for _ in 0..2 {
            let (store, done) = (store.clone(), done.clone());
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(50));
                let _ = done.send(store.close());
            });
        }
        for _ in 0..2 {
            let closed = all_done.recv_timeout(Duration::from_secs(20));
            closed.expect("a close does not return").unwrap();
        }
        drop((waker, answer, end, store));
        open(&dir, Options::default()).close().unwrap();
    }
}

#[test]
fn a_state_that_was_changed_by_half_is_neither_read_nor_saved() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Options::default());
    put(&store, b"a", b"1").unwrap();
    let shared = Arc::clone(store.shared());
    let thread = std::thread::spawn(move || {
        let _ = shared.core.write(|_| panic!("as told by the test"));
    });
    assert!(thread.join().is_err());
    assert!(matches!(store.range(&me(), &ALL), Err(Error::Storage(_))));
    assert!(matches!(put(&store, b"a", b"2"), Err(Error::Storage(_))));
    assert!(store.failure().is_some());
    assert!(matches!(store.snapshot(&me()), Err(Error::Storage(_))));
    assert!(store.close().is_err());
    drop(store);
    let store = open(&dir, Options::default());
    assert_eq!(records(&store)[0].0, b"a");
}

#[test]
fn a_copy_that_takes_too_long_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let slow = Arc::new(Slow::default());
    let options = Options {
        unsaved_bytes_max: 20_000,
        disk: Disk::with_probe(slow.clone()),
        ..Options::default()
    };
    let store = open(&dir, options);
    put(&store, b"a", b"1").unwrap();
    slow.copy.store(true, Ordering::SeqCst);
    let copying = {
        let store = store.clone();
        std::thread::spawn(move || store.defragment(&me()))
    };
    until("a copy", || slow.is_copying.load(Ordering::SeqCst));
    for n in 0..100_u32 {
        put(&store, &n.to_be_bytes(), &[b'v'; 4000]).unwrap();
    }
    slow.copy.store(false, Ordering::SeqCst);
    let error = copying.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("faster than"), "{error}");
    let before = records(&store);
    store.defragment(&me()).unwrap();
    assert_eq!((store.failure(), records(&store).len()), (None, 101));
    store.kill();
    assert_eq!(records(&open(&dir, Options::default())), before);
}

/// An etcd that is started meanwhile opens the database and waits for its lock.
#[test]
fn who_waits_for_a_database_that_was_replaced_does_not_go_on_with_it() {
    for is_read in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir, Options::default());
        for n in 0..3000_u32 {
            put(&store, &n.to_be_bytes(), &[7; 4000]).unwrap();
        }
        let path = dir.path().join("data/member/snap/db");
        let mut waiting = std::fs::File::open(&path).unwrap();
        let reader = is_read.then(|| store.snapshot(&me()).unwrap());
        store.defragment(&me()).unwrap();
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut waiting, &mut bytes).unwrap();
        // bbolt makes a new database of an empty file.
        assert!(!bytes.is_empty() && is_read == (bytes.len() > 1 << 20), "{}", bytes.len());
        let found = crate::bolt::File::from_bytes(bytes);
        assert!(matches!(found, Err(crate::bolt::Error::NoMeta(..))), "{found:?}");
        if let Some(mut reader) = reader {
            let mut image = Vec::new();
            std::io::Read::read_to_end(&mut reader, &mut image).unwrap();
            let image = crate::bolt::File::from_bytes(image).unwrap();
            assert!(image.check_metas().is_empty());
        }
        assert_eq!(records(&store).len(), 3000);
    }
}

#[test]
fn what_is_replayed_is_saved_on_the_way() {
    let lazy = || Options { batch_interval: Duration::from_secs(3600), ..Options::default() };
    // A start's look for compactions saves once, and may come late.
    let (dir, store, before) = (0..50)
        .find_map(|_| {
            let dir = tempfile::tempdir().unwrap();
            let store = open(&dir, lazy());
            for n in 0..60_u32 {
                put(&store, &n.to_be_bytes(), &[b'v'; 1000]).unwrap();
            }
            let before = records(&store);
            let (_, unsaved) = store.shared().core.read(|mvcc| mvcc.unsaved()).unwrap();
            (unsaved > 60_000).then_some((dir, store, before))
        })
        .unwrap();
    store.kill();
    let slow = Arc::new(Slow::default());
    let disk = Disk::with_probe(slow.clone());
    let store = open(&dir, Options { unsaved_bytes_max: 10_000, disk, ..lazy() });
    // A start alone saves once or twice, with two syncs each.
    let syncs = slow.database_syncs.load(Ordering::SeqCst);
    assert!(syncs >= 10, "{syncs}");
    assert_eq!(records(&store), before);
    let sum = store.hash_kv(&me(), 0).unwrap();
    store.kill();
    let store = open(&dir, lazy());
    assert_eq!((records(&store), store.hash_kv(&me(), 0).unwrap()), (before, sum));
}

#[test]
fn small_rows_count_as_unsaved() {
    let dir = tempfile::tempdir().unwrap();
    let lazy = Options { batch_interval: Duration::from_secs(3600), ..Options::default() };
    let store = open(&dir, lazy);
    backend::commit(store.shared()).unwrap();
    let unsaved = || store.shared().core.read(|mvcc| mvcc.unsaved().1).unwrap();
    let before = unsaved();
    for id in 1..=100 {
        store.lease_grant(&me(), id, 100).unwrap();
    }
    assert!(unsaved() >= before + 100 * 16, "{}", unsaved());
    backend::commit(store.shared()).unwrap();
    assert_eq!(unsaved(), 0);
}

#[test]
fn options_of_0_mean_what_they_mean_to_etcd() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        compaction_batch_limit: 0,
        watch_progress_interval: Duration::ZERO,
        snapshot_count: 0,
        wals_max: 0,
        snaps_max: 0,
        lease_checkpoints: Some(Duration::ZERO),
        ..Options::default()
    };
    let store = open(&dir, options);
    let settled = &store.shared().options;
    assert_eq!(settled.compaction_batch_limit, 1000);
    assert_eq!(settled.watch_progress_interval, Duration::from_secs(600));
    assert_eq!(settled.snapshot_count, 10_000);
    assert_eq!((settled.wals_max, settled.snaps_max), (usize::MAX, usize::MAX));
    assert_eq!(settled.lease_checkpoints, Some(Duration::from_secs(300)));
    for _ in 0..5 {
        put(&store, b"a", b"1").unwrap();
    }
    let compacted = store.compact(&me(), Compaction { revision: 4, physical: true });
    assert_eq!(compacted.unwrap().revision, 6);
}

#[test]
fn a_lease_is_ended_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Options::default());
    let leases = || store.shared().lessor().count();
    store.lease_grant(&me(), 5, 100).unwrap();
    let mut ending = timer::Ending::new();
    let (promise, still) = crate::store::pending::pending();
    ending.insert(5, still);
    timer::revoke(store.shared(), &mut ending, vec![5]);
    put(&store, b"behind", b"it").unwrap();
    assert_eq!((ending.len(), leases()), (1, 1));
    // The rules of auth changed while it was on its way.
    promise.fulfil(Err(Error::Refused(Refusal::AuthOldRevision)));
    timer::revoke(store.shared(), &mut ending, Vec::new());
    put(&store, b"behind", b"it").unwrap();
    assert_eq!((ending.len(), leases()), (1, 0));
    timer::revoke(store.shared(), &mut ending, Vec::new());
    assert!(ending.is_empty());
}

#[test]
fn the_end_of_a_lease_is_waited_for_without_a_thread() {
    let dir = tempfile::tempdir().unwrap();
    let hands = Arc::new(Hands::default());
    let store = open(&dir, Options { clock: hands.clone(), ..Options::default() });
    for (lease, waits) in [(5, true), (6, false)] {
        store.lease_grant(&me(), lease, 2).unwrap();
        hands.go(3);
        let end = match store.lease_keep_alive_now(&me(), lease).unwrap() {
            KeepAlive::Ending(end) => end,
            // Its end was quicker.
            KeepAlive::Done(answer) => {
                assert_eq!(answer.body, 0);
                continue;
            }
            KeepAlive::Recording => panic!("nothing was recorded"),
        };
        if !waits {
            drop(end);
            assert_eq!(store.shared().ends.len(), 0);
            continue;
        }
        let (mut end, mut told) = (Box::pin(end), None);
        until("the end of the lease", || {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(answer) = Future::poll(end.as_mut(), &mut context) {
                told = Some(answer.unwrap().body);
            }
            told.is_some()
        });
        assert_eq!(told, Some(0));
        assert_eq!(store.shared().ends.len(), 0);
    }
}

#[test]
fn who_waits_no_more_for_a_lease_is_forgotten() {
    let ends = timer::Ends::default();
    let (first, second) = (ends.of(5), ends.of(5));
    drop(first);
    ends.prune(5);
    assert_eq!(ends.len(), 1);
    ends.note([5].into_iter());
    assert_eq!((second.wait(), ends.len()), (Some(()), 0));
    drop(ends.of(6));
    ends.prune(6);
    assert_eq!(ends.len(), 0);
}

#[test]
fn a_full_queue_says_what_is_the_matter() {
    let queue = crate::store::engine::queue::Queue::default();
    let (first, second) = (vec![0; 64 << 20], vec![0; 1]);
    queue.push(Work::Propose(Proposal::normal(first, Reply::Nobody))).unwrap();
    queue.push(Work::Propose(Proposal::normal(second.clone(), Reply::Nobody))).unwrap();
    let (promise, waiting) = crate::store::pending::pending();
    let reply = Reply::Refused(promise, Error::Refused(Refusal::NoSpace));
    queue.push(Work::Propose(Proposal::normal(second, reply))).unwrap_err();
    assert_eq!(waiting.wait(), Some(Err(Error::Refused(Refusal::NoSpace))));
}

/// Panics once, when the next copy of the database is to be written.
#[derive(Debug, Default)]
struct Faint {
    is_due: AtomicBool,
    copy: AtomicU64,
}

impl Probe for Faint {
    fn before(&self, event: &Change) -> Verdict {
        match event {
            Change::Create { file, path } if path.to_string_lossy().contains("db.tmp.") => {
                self.copy.store(*file, Ordering::SeqCst);
            }
            Change::Write { file, .. } if self.copy.load(Ordering::SeqCst) == *file => {
                assert!(!self.is_due.swap(false, Ordering::SeqCst), "as asked");
            }
            _ => {}
        }
        Verdict::Go
    }

    fn after(&self, _: Change) {}
}

#[test]
fn a_copy_that_panics_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let faint = Arc::new(Faint::default());
    let store = open(&dir, Options::default().disk(Disk::with_probe(faint.clone())));
    put(&store, b"a", b"1").unwrap();
    faint.is_due.store(true, Ordering::SeqCst);
    let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| store.defragment(&me())));
    assert!(tried.is_err());
    let left = std::fs::read_dir(dir.path().join("data/member/snap")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["db"]);
    put(&store, b"b", b"2").unwrap();
    store.defragment(&me()).unwrap();
    store.close().unwrap();
    assert_eq!(records(&open(&dir, Options::default())).len(), 2);
}
