mod reading;
mod strain;
mod wakers;

use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::*;
use crate::bolt::disk::{Disk, Event as Change, Probe, Verdict};
use crate::bolt::{File, walk};
use crate::etcd::apply::Refusal;
use crate::etcd::request::{Alarm, Compaction, DeleteRange, Op, Put, Range, Txn};
use crate::etcd::rows::Permission;
use crate::store::clock::Clock;
use crate::store::guard::Quota;
use crate::store::watch::Create;

mod face;
mod figures;

const ALL: Range<'static> = Range {
    key: &[0],
    range_end: &[0],
    limit: 0,
    revision: 0,
    sort_order: 0,
    sort_target: 0,
    serializable: false,
    keys_only: false,
    count_only: false,
    min_mod_revision: 0,
    max_mod_revision: 0,
    min_create_revision: 0,
    max_create_revision: 0,
};

/// A clock that a test moves.
#[derive(Debug, Default)]
struct Hands(AtomicU64);

impl Hands {
    fn go(&self, s: u64) {
        self.0.fetch_add(s * 1000, Ordering::SeqCst);
    }
}

impl Clock for Hands {
    fn now(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn unix_ms(&self) -> u64 {
        1_700_000_000_000 + self.0.load(Ordering::SeqCst)
    }
}

fn open(dir: &tempfile::TempDir, options: Options) -> Store {
    Store::open(&dir.path().join("data"), options).unwrap()
}

fn me() -> Caller {
    Caller::default()
}

fn put(store: &Store, key: &[u8], value: &[u8]) -> Result<i64, Error> {
    let request = Put { key, value, ..Put::default() };
    store.put(&me(), request).map(|answer| answer.revision)
}

/// All records, as (key, value, modification revision).
fn records(store: &Store) -> Vec<(Vec<u8>, Vec<u8>, i64)> {
    let answer = store.range(&me(), &ALL).unwrap();
    let kvs = answer.body.kvs.iter().map(|kv| kv.record());
    kvs.map(|kv| (kv.key.to_vec(), kv.value.to_vec(), kv.mod_revision)).collect()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Writes from eight threads at once.
fn write_from_many(store: &Store, count: usize) {
    let threads: Vec<_> = (0..8)
        .map(|thread| {
            let store = store.clone();
            std::thread::spawn(move || {
                let mut last = 0;
                for n in 0..count {
                    let key = format!("key-{thread}-{}", n % 10);
                    let revision = put(&store, key.as_bytes(), format!("{n}").as_bytes()).unwrap();
                    assert!(revision > last, "a revision does not ascend");
                    last = revision;
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn what_many_wrote_is_there_after_a_close_and_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Options::default());
    assert_eq!((store.revision(), store.raft_term()), (1, 2));
    write_from_many(&store, 50);
    assert_eq!(store.revision(), 401);
    let (before, sum) = (records(&store), store.hash_kv(&me(), 0).unwrap());
    assert_eq!(before.len(), 80);
    store.close().unwrap();
    assert_eq!(put(&store, b"a", b"b"), Err(Error::Stopped));
    assert_eq!(store.range(&me(), &ALL), Err(Error::Stopped));

    let store = open(&dir, Options::default());
    assert_eq!((records(&store), store.raft_term()), (before, 3));
    assert_eq!(store.hash_kv(&me(), 0).unwrap(), sum);
    write_from_many(&store, 20);
    let (before, sum) = (records(&store), store.hash_kv(&me(), 0).unwrap());
    store.kill();

    let store = open(&dir, Options::default());
    assert_eq!(store.revision(), 561);
    assert_eq!(records(&store), before);
    assert_eq!(store.hash_kv(&me(), 0).unwrap(), sum);
    let status = store.status(&me()).unwrap();
    assert_eq!(status.storage_version, "3.7.0");
    assert_eq!(store.cluster_version().unwrap().to_string(), "3.7.0");
    assert_eq!(status.raft_index, status.raft_applied_index);
}

#[test]
fn what_killed_etcds_left_is_gone_on_with_in_their_own_words() {
    let named = Options::default().identity(crate::store::Identity::default().name("here"));
    for version in ["3.4", "3.5", "3.6", "3.7"] {
        let dir = crate::store::open::tests::killed(version);
        let store = Store::open(dir.path(), named.clone()).unwrap();
        let (before, revision) = (records(&store), store.revision());
        assert!(!before.is_empty() && revision > 1);
        assert_eq!(store.cluster_version().unwrap().to_string(), format!("{version}.0"));
        let storage = store.status(&me()).unwrap().storage_version;
        let has_one = ["3.6", "3.7"].contains(&version);
        assert_eq!(storage, if has_one { format!("{version}.0") } else { String::new() });
        assert_eq!(put(&store, b"/new", b"value").unwrap(), revision + 1);
        let sum = store.hash_kv(&me(), 0).unwrap();
        store.kill();
        // Nothing that this version of etcd does not know was logged.
        let log = crate::etcd::log::Log::open(&dir.path().join("member/wal")).unwrap();
        let mut entries = log.entries(0).unwrap();
        let mut numbers = Vec::new();
        while let Some(entry) = entries.read_next().unwrap() {
            if let Ok(crate::etcd::request::Content::Request(request)) =
                crate::etcd::request::Content::decode(entry.data)
            {
                numbers.push(request.body.name());
            }
        }
        assert!(numbers.contains(&"put"), "{version}: {numbers:?}");
        if version == "3.4" {
            assert!(!numbers.contains(&"cluster_member_attr_set"), "{numbers:?}");
        }
        let store = Store::open(dir.path(), Options::default()).unwrap();
        assert_eq!(store.hash_kv(&me(), 0).unwrap(), sum);
        assert_eq!(records(&store).len(), before.len() + 1);
        let own = store.members(&me()).unwrap();
        assert_eq!((own.len(), own[0].name.as_str()), (1, "here"));
    }
}

#[test]
fn a_directory_in_use_is_not_opened_twice() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Options::default());
    let error = Store::open(&dir.path().join("data"), Options::default()).unwrap_err();
    assert!(matches!(error, OpenError::InUse(_)), "{error}");
    // Somebody still has a snapshot, and a handle; the locks are given up all the same.
    let _snapshot = store.snapshot(&me()).unwrap();
    store.close().unwrap();
    open(&dir, Options::default()).close().unwrap();
}

#[test]
fn transactions_and_deletes_answer() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Options::default());
    put(&store, b"a", b"1").unwrap();
    put(&store, b"b", b"2").unwrap();
    let index = store.status(&me()).unwrap().raft_index;
    let reads = Txn {
        success: vec![Op::Range(Range { key: b"a", ..Range::default() }), Op::Range(ALL)],
        ..Txn::default()
    };
    let answer = store.txn(&me(), reads).unwrap();
    assert!(answer.body.succeeded && answer.revision == 3);
    let crate::store::answer::Op::Range(all) = &answer.body.responses[1].op else { panic!() };
    assert_eq!(all.count, 2);
    assert_eq!(store.status(&me()).unwrap().raft_index, index, "a read was logged");

    let delete = DeleteRange { key: b"a", range_end: b"z", prev_kv: true };
    let answer = store.delete_range(&me(), delete.clone()).unwrap();
    assert_eq!((answer.revision, answer.body.deleted), (4, 2));
    assert_eq!(answer.body.prev_kvs[1].record().value, b"2");
    assert_eq!(store.delete_range(&me(), delete).unwrap().revision, 4);
    assert_eq!(put(&store, b"", b""), Err(Error::EmptyKey));
    assert_eq!(put(&store, b"k", &vec![0; 2 << 20]), Err(Error::TooLarge));
}

#[test]
fn leases_end_by_the_clock_and_get_their_time_back_at_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let hands = Arc::new(Hands::default());
    let options = || Options { clock: hands.clone(), ..Options::default() };
    let store = open(&dir, options());
    let (id, ttl_s) = store.lease_grant(&me(), 0, 1).unwrap().body;
    assert!(id > 0 && ttl_s == 2, "the shortest lease");
    store.lease_grant(&me(), 7, 100).unwrap();
    assert_eq!(store.lease_grant(&me(), 7, 100), Err(Refusal::LeaseExists.into()));
    for (key, lease) in [(&b"short"[..], id), (b"long", 7), (b"long2", 7)] {
        store.put(&me(), Put { key, lease, ..Put::default() }).unwrap();
    }
    hands.go(1);
    assert_eq!(store.lease_keep_alive(&me(), id).unwrap().body, 2);
    hands.go(2);
    until("the short lease to end", || records(&store).len() == 2);
    assert_eq!(store.lease_keep_alive(&me(), id).unwrap().body, 0);
    let status = store.lease_time_to_live(&me(), 7, true).unwrap().body;
    assert_eq!((status.ttl_s, status.granted_ttl_s), (97, 100));
    assert_eq!(status.keys, [b"long".to_vec(), b"long2".to_vec()]);
    assert_eq!(store.lease_time_to_live(&me(), id, false).unwrap().body.ttl_s, -1);
    store.kill();

    let store = open(&dir, options());
    let ttl_s = store.lease_time_to_live(&me(), 7, false).unwrap().body.ttl_s;
    assert!((100..=101).contains(&ttl_s), "{ttl_s}");
    assert_eq!(store.leases(&me()).unwrap().body, [7]);
    let revision = store.revision();
    store.lease_revoke(&me(), 7).unwrap();
    assert_eq!((store.revision(), records(&store).len()), (revision + 1, 0));
    assert_eq!(store.lease_revoke(&me(), 7), Err(Refusal::LeaseNotFound.into()));
}

#[test]
fn watchers_see_everything_and_compactions_keep_what_they_must() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Options::default());
    let watch = store.watch(&me());
    watch.create(Create { key: b"k".to_vec(), start_revision: 2, ..Create::default() });
    for n in 0..300 {
        put(&store, b"k", format!("{n}").as_bytes()).unwrap();
    }
    let mut seen = Vec::new();
    while seen.len() < 300 {
        let response = watch.next(Duration::from_secs(30)).unwrap().unwrap();
        seen.extend(response.events.iter().map(|(event, _)| event.revision.main));
    }
    assert_eq!(seen, (2..302).collect::<Vec<_>>());

    let sum = store.hash_kv(&me(), 200).unwrap().body;
    let answer = store.compact(&me(), Compaction { revision: 200, physical: true }).unwrap();
    assert_eq!(answer.revision, 301);
    // As etcd: what was there before the compaction, under the compaction before it.
    assert_eq!(store.hash_kv(&me(), 200).unwrap().body, sum);
    let at = |revision| store.range(&me(), &Range { key: b"k", revision, ..Range::default() });
    assert_eq!(at(199), Err(Refusal::Compacted.into()));
    assert_eq!(at(200).unwrap().body.kvs[0].record().value, b"198");
    let again = store.compact(&me(), Compaction { revision: 200, physical: false });
    assert_eq!(again, Err(Refusal::Compacted.into()));
    let mut snapshot = Vec::new();
    store.snapshot(&me()).unwrap().read_to_end(&mut snapshot).unwrap();
    assert_eq!(rows(&snapshot), 102, "rows of bucket key");

    watch.create(Create { key: b"k".to_vec(), start_revision: 100, ..Create::default() });
    until("the cancel", || {
        let response = watch.next(Duration::from_secs(30)).unwrap().unwrap();
        response.canceled && response.compact_revision == 200
    });
}

/// Counts the rows of bucket `key` in a snapshot, and checks its pages and its sum.
fn rows(snapshot: &[u8]) -> usize {
    use sha2::{Digest, Sha256};
    struct Keys(usize);
    impl crate::bolt::Visit for Keys {
        fn bucket(&mut self, _: &crate::bolt::At<'_>, _: u64) {}
        fn entry(&mut self, at: &crate::bolt::At<'_>, _: &[u8], _: &[u8]) {
            self.0 += usize::from(at.bucket == [b"key".to_vec()]);
        }
    }
    let (image, sum) = snapshot.split_at(snapshot.len() - 32);
    assert_eq!(Sha256::digest(image).as_slice(), sum);
    assert_eq!(image.len() % 512, 0);
    let file = File::from_bytes(image.to_vec()).unwrap();
    assert!(file.check_metas().is_empty());
    let mut keys = Keys(0);
    let walked = walk::walk(&file, &mut keys);
    assert!(walked.tree_is_whole() && walked.findings.errors().next().is_none());
    keys.0
}

#[test]
fn a_full_database_refuses_puts_until_there_is_room() {
    let dir = tempfile::tempdir().unwrap();
    let quota = Quota::of_flag(13 * 4096);
    let store = open(&dir, Options { quota, ..Options::default() });
    put(&store, b"abc", b"1").unwrap();
    let large = vec![b'x'; 4096];
    let mut refused = None;
    for _ in 0..1000 {
        if let Err(error) = put(&store, b"2ndPut", &large) {
            refused = Some(error);
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(refused, Some(Refusal::NoSpace.into()));
    let member = store.member_id().0;
    let get = Alarm::default();
    assert_eq!(store.alarm(&me(), get.clone()).unwrap().body, [(member, 1)]);
    assert_eq!(put(&store, b"3rdPut", b"x"), Err(Refusal::NoSpace.into()));
    assert!(store.status(&me()).unwrap().errors[0].contains("NOSPACE"));
    let range = Range { key: b"2ndPut", ..Range::default() };
    let kv = store.range(&me(), &range).unwrap().body.kvs[0].clone();
    let revision = kv.record().mod_revision;
    store.compact(&me(), Compaction { revision, physical: true }).unwrap();
    let before = store.hash_kv(&me(), 0).unwrap();
    store.defragment(&me()).unwrap();
    assert_eq!(store.hash_kv(&me(), 0).unwrap(), before);
    let status = store.status(&me()).unwrap();
    assert!(status.db_size_bytes < 53_248 - 320, "{status:?}");
    let disarm = Alarm { action: 2, member_id: member, alarm: 1 };
    assert_eq!(store.alarm(&me(), disarm).unwrap().body, [(member, 1)]);
    assert_eq!(store.alarm(&me(), get).unwrap().body, []);
    put(&store, b"4thPut", b"x").unwrap();
}

#[test]
fn defragmentation_goes_on_under_writers() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Options::default());
    let value = vec![b'v'; 2000];
    for n in 0..1000 {
        put(&store, format!("{n}").as_bytes(), &value).unwrap();
    }
    store.delete_range(&me(), DeleteRange { key: b"1", range_end: b"9", prev_kv: false }).unwrap();
    let revision = store.revision();
    store.compact(&me(), Compaction { revision, physical: true }).unwrap();
    let large = store.status(&me()).unwrap().db_size_bytes;
    let is_over = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|thread| {
            let (store, is_over) = (store.clone(), Arc::clone(&is_over));
            std::thread::spawn(move || {
                let mut count = 0;
                while !is_over.load(Ordering::SeqCst) {
                    put(&store, format!("w{thread}-{count}").as_bytes(), b"x").unwrap();
                    count += 1;
                }
                count
            })
        })
        .collect();
    for _ in 0..3 {
        store.defragment(&me()).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    }
    is_over.store(true, Ordering::SeqCst);
    let written: usize = writers.into_iter().map(|writer| writer.join().unwrap()).sum();
    let small = store.status(&me()).unwrap().db_size_bytes;
    assert!(small < large / 2, "{small} of {large}");
    let before = records(&store);
    assert_eq!(before.iter().filter(|(key, ..)| key.starts_with(b"w")).count(), written);
    let sum = store.hash_kv(&me(), 0).unwrap();
    store.kill();
    let store = open(&dir, Options::default());
    assert_eq!((records(&store), store.hash_kv(&me(), 0).unwrap()), (before, sum));
    let names = std::fs::read_dir(dir.path().join("data/member/snap")).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert!(!names.iter().any(|name| name.to_string_lossy().starts_with("db.tmp")), "{names:?}");
}

#[test]
fn auth_is_enforced() {
    let dir = tempfile::tempdir().unwrap();
    let options = || Options { bcrypt_cost: 4, ..Options::default() };
    let store = open(&dir, options());
    assert_eq!(store.auth_enable(&me()), Err(Refusal::RootUserMissing.into()));
    let user = |name, password| NewUser { name, password, ..NewUser::default() };
    store.user_add(&me(), user("root", "secret")).unwrap();
    store.user_add(&me(), user("ann", "word")).unwrap();
    store.role_add(&me(), "reader").unwrap();
    let read = Permission { kind: 0, key: b"a".to_vec(), range_end: b"b".to_vec() };
    store.role_grant_permission(&me(), "reader", &read).unwrap();
    store.user_grant_role(&me(), "ann", "reader").unwrap();
    store.user_grant_role(&me(), "root", "root").unwrap();
    store.auth_enable(&me()).unwrap();
    assert!(store.auth_status().unwrap().enabled);

    assert_eq!(put(&store, b"a", b"1"), Err(Refusal::UserEmpty.into()));
    assert_eq!(store.authenticate("ann", "wrong").unwrap_err(), Refusal::AuthFailed.into());
    let token = store.authenticate("root", "secret").unwrap().body;
    let root = store.caller(Some(&token)).unwrap();
    let request = Put { key: b"a", value: b"1", ..Put::default() };
    store.put(&root, request.clone()).unwrap();
    let token = store.authenticate("ann", "word").unwrap().body;
    let ann = store.caller(Some(&token)).unwrap();
    let range = Range { key: b"a", ..Range::default() };
    assert_eq!(store.range(&ann, &range).unwrap().body.count, 1);
    assert_eq!(store.range(&ann, &ALL), Err(Refusal::PermissionDenied.into()));
    assert_eq!(store.put(&ann, request), Err(Refusal::PermissionDenied.into()));
    assert!(store.defragment(&ann).is_err() && store.snapshot(&ann).is_err());
    let watch = store.watch(&ann);
    watch.create(Create { key: b"z".to_vec(), ..Create::default() });
    let response = watch.next(Duration::from_secs(30)).unwrap().unwrap();
    assert!(response.canceled && response.cancel_reason.contains("permission denied"));
    assert!(response.cancel_reason.starts_with("rpc error: code = PermissionDenied desc = "));

    // A lease of ann's ends by itself although nobody asks.
    store.user_change_password(&root, "ann", "new").unwrap();
    assert_eq!(store.caller(Some(&token)), Err(Error::InvalidToken));
    store.kill();
    let store = open(&dir, options());
    assert_eq!(put(&store, b"a", b"1"), Err(Refusal::UserEmpty.into()));
    assert!(store.authenticate("ann", "word").is_err());
    store.authenticate("ann", "new").unwrap();
}

#[test]
fn members_are_answered_for() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Options::default());
    let own = store.members(&me()).unwrap();
    assert_eq!((own.len(), own[0].name.as_str()), (1, "default"));
    assert_eq!(own[0].client_urls, ["http://localhost:2379"]);
    let urls = |url: &str| vec![url.to_owned()];
    assert_eq!(store.member_add(&me(), &urls("http://h:1")), Err(Error::UnhealthyCluster));
    assert_eq!(store.member_add(&me(), &urls("nonsense")), Err(Error::InvalidUrls));
    let same = store.member_add(&me(), &urls("http://localhost:2380"));
    assert_eq!(same, Err(Refusal::PeerUrlExists.into()));
    assert_eq!(store.member_remove(&me(), own[0].id), Err(Error::LastMember));
    let other = crate::etcd::members::MemberId(7);
    assert_eq!(store.member_remove(&me(), other), Err(Refusal::MemberNotFound.into()));
    let updated = store.member_update(&me(), own[0].id, &urls("http://h:2380")).unwrap();
    assert_eq!(updated[0].peer_urls, ["http://h:2380"]);
    assert_eq!(updated[0].name, "default");
    store.kill();
    let store = open(&dir, Options::default());
    assert_eq!(store.members(&me()).unwrap(), updated);
}

#[test]
fn snapshots_are_recorded_and_the_log_is_purged() {
    let dir = tempfile::tempdir().unwrap();
    let options = || Options {
        compat: Some(Compat::V3_6),
        snapshot_count: 50,
        batch_interval: Duration::from_millis(5),
        ..Options::default()
    };
    let store = open(&dir, options());
    for n in 0..300 {
        put(&store, b"k", format!("{n}").as_bytes()).unwrap();
    }
    let snap_dir = dir.path().join("data/member/snap");
    let snaps = || {
        let names = std::fs::read_dir(&snap_dir).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(".snap")).count()
    };
    until("a snapshot", || store.shared().snapshot_index.load(Ordering::SeqCst) >= 250);
    assert!((1..=6).contains(&snaps()), "{}", snaps());
    let before = records(&store);
    store.kill();
    let store = open(&dir, options());
    assert_eq!(records(&store), before);
    assert!(store.shared().snapshot_index.load(Ordering::SeqCst) >= 250);
    assert_eq!(store.status(&me()).unwrap().storage_version, "3.6.0");
}

/// Fails changes of a disk from the moment when it is told to.
#[derive(Debug, Default)]
struct Breaker(Mutex<Option<&'static str>>, AtomicU64);

impl Probe for Breaker {
    fn before(&self, event: &Change) -> Verdict {
        let what = *self.0.lock().unwrap();
        match (event, what) {
            (Change::Sync { .. }, Some("sync")) | (Change::Write { .. }, Some("write")) => {
                Verdict::Fail(std::io::Error::from_raw_os_error(5))
            }
            (Change::Write { .. }, Some("panic")) => panic!("as told by the test"),
            (Change::Write { file, .. }, Some("panic in the backend"))
                if self.is_database(*file) =>
            {
                panic!("as told by the test")
            }
            _ => Verdict::Go,
        }
    }

    fn after(&self, event: Change) {
        if let Change::Create { file, path } | Change::Open { file, path } = event
            && path.parent().is_some_and(|folder| folder.ends_with("snap"))
        {
            self.1.store(file, Ordering::SeqCst);
        }
    }
}

impl Breaker {
    fn is_database(&self, file: u64) -> bool {
        self.1.load(Ordering::SeqCst) == file
    }
}

#[test]
fn a_thread_that_panics_leaves_nobody_waiting() {
    for what in ["panic", "panic in the backend"] {
        let dir = tempfile::tempdir().unwrap();
        let breaker = Arc::new(Breaker::default());
        let disk = Disk::with_probe(breaker.clone());
        let store = open(&dir, Options { disk, ..Options::default() });
        put(&store, b"a", b"1").unwrap();
        *breaker.0.lock().unwrap() = Some(what);
        until("the end of writing", || put(&store, b"b", b"2").is_err());
        until("its reason", || store.failure().is_some());
        let error = store.failure().unwrap();
        assert!(error.to_string().contains("came to a sudden end"), "{error}");
        assert_eq!(records(&store)[0].0, b"a");
        assert!(store.close().is_err());
        drop(store);
        let store = open(&dir, Options::default());
        assert_eq!(records(&store)[0], (b"a".to_vec(), b"1".to_vec(), 2));
    }
}

#[test]
fn a_store_that_is_closed_under_writers_keeps_what_it_answered() {
    let dir = tempfile::tempdir().unwrap();
    // Little may wait for the file, so that writers wait for it.
    let options = || Options { unsaved_bytes_max: 20_000, ..Options::default() };
    let store = open(&dir, options());
    let writers: Vec<_> = (0..8)
        .map(|thread| {
            let store = store.clone();
            std::thread::spawn(move || {
                let value = vec![b'v'; 4000];
                let key = |n| format!("{thread}-{n}").into_bytes();
                let mut count = 0;
                while put(&store, &key(count), &value).is_ok() {
                    count += 1;
                }
                (thread, count)
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    store.close().unwrap();
    let counts: Vec<_> = writers.into_iter().map(|writer| writer.join().unwrap()).collect();
    let store = open(&dir, options());
    let keys: std::collections::BTreeSet<_> =
        records(&store).into_iter().map(|(key, ..)| key).collect();
    for (thread, count) in counts {
        assert!((0..count).all(|n| keys.contains(format!("{thread}-{n}").as_bytes())));
    }
}

#[test]
fn old_revisions_go_by_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let hands = Arc::new(Hands::default());
    let auto_compaction = crate::store::auto_compact::Retention::Revisions(10);
    let options = Options { clock: hands.clone(), auto_compaction, ..Options::default() };
    let store = open(&dir, options);
    for _ in 0..30 {
        put(&store, b"k", b"v").unwrap();
    }
    hands.go(301);
    let compacted = || store.shared().core.read(|mvcc| mvcc.compaction_saved()).unwrap();
    until("a compaction", || compacted() == 21);
    assert_eq!(store.revision(), 31);
}

#[test]
fn a_disk_that_fails_ends_writing_and_nothing_else() {
    for what in ["sync", "write"] {
        let dir = tempfile::tempdir().unwrap();
        let breaker = Arc::new(Breaker::default());
        let disk = Disk::with_probe(breaker.clone());
        let store = open(&dir, Options { disk, ..Options::default() });
        put(&store, b"a", b"1").unwrap();
        let waiting = store.clone();
        *breaker.0.lock().unwrap() = Some(what);
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let store = waiting.clone();
                std::thread::spawn(move || put(&store, b"b", b"2"))
            })
            .collect();
        for thread in threads {
            let error = thread.join().unwrap().unwrap_err();
            assert!(matches!(error, Error::Storage(_)), "{error}");
        }
        let error = put(&store, b"c", b"3").unwrap_err();
        assert!(error.to_string().contains("takes no more writes"), "{error}");
        assert_eq!(records(&store), [(b"a".to_vec(), b"1".to_vec(), 2)]);
        assert!(store.failure().is_some());
        assert!(store.close().is_err());
        *breaker.0.lock().unwrap() = None;
        drop((store, waiting));
        let store = open(&dir, Options::default());
        let found = records(&store);
        assert_eq!(found[0], (b"a".to_vec(), b"1".to_vec(), 2));
    }
}
