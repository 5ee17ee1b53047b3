//! Stores that are only read.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::*;
use crate::store::open::tests::killed;
use crate::store::{Answer, HashKv};

/// All files of a folder, with what is in them and when they were changed.
fn files(folder: &Path) -> BTreeMap<PathBuf, (SystemTime, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let (path, meta) = (entry.path(), entry.metadata().unwrap());
        found.insert(path.clone(), (meta.modified().unwrap(), Vec::new()));
        if meta.is_dir() {
            found.extend(files(&path));
        } else {
            found.get_mut(&path).unwrap().1 = fs::read(&path).unwrap();
        }
    }
    found
}

fn read_only(path: &Path) -> Store {
    Store::open_read_only(path, Options::default()).unwrap()
}

fn saved(store: &Store) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.snapshot(&me()).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

type Records = Vec<(Vec<u8>, Vec<u8>, i64)>;

/// Leaves a directory whose database lies behind its log.
fn left(dir: &tempfile::TempDir) -> (Records, Answer<HashKv>) {
    let store = open(dir, Options::default().batch_interval(Duration::from_secs(3600)));
    put(&store, b"old", b"1").unwrap();
    store.lease_grant(&me(), 7, 60).unwrap();
    store.put(&me(), Put { key: b"leased", lease: 7, ..Put::default() }).unwrap();
    drop(store.snapshot(&me()).unwrap());
    for n in 0..50 {
        put(&store, format!("new-{n}").as_bytes(), &[7; 300]).unwrap();
    }
    put(&store, b"old", b"2").unwrap();
    store.user_add(&me(), NewUser::with_password("root", "pw")).unwrap();
    store.role_add(&me(), "root").unwrap();
    store.user_grant_role(&me(), "root", "root").unwrap();
    store.auth_enable(&me()).unwrap();
    let root = store.caller_named("root");
    let kvs = store.range(&root, &ALL).unwrap().body.kvs;
    let records = kvs.iter().map(|kv| kv.record());
    let records = records.map(|kv| (kv.key.to_vec(), kv.value.to_vec(), kv.mod_revision));
    let left = (records.collect(), store.hash_kv(&root, 0).unwrap());
    store.kill();
    left
}

#[test]
fn a_directory_is_shown_with_its_log_and_left_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let (wanted, hash) = left(&dir);
    let data = dir.path().join("data");
    let before = files(&data);
    let store = read_only(&data);
    assert!(store.is_read_only() && store.failure().is_none());
    assert_eq!(store.notes(), [""; 0]);
    // Nobody in particular sees everything, although auth is on.
    assert_eq!(records(&store), wanted);
    assert_eq!(store.hash_kv(&me(), 0).unwrap(), hash);
    assert!(store.auth_status().unwrap().enabled);
    assert_eq!(store.user_list(&me()).unwrap(), ["root"]);
    assert_eq!(store.members(&me()).unwrap().len(), 1);
    let lease = store.lease_time_to_live(&me(), 7, true).unwrap().body;
    assert_eq!((lease.ttl_s, lease.granted_ttl_s), (60, 60));
    assert_eq!(lease.keys, [b"leased".to_vec()]);
    let status = store.status(&me()).unwrap();
    assert_eq!((status.revision, status.leader), (store.revision(), store.member_id()));
    assert_eq!(status.raft_index, status.raft_applied_index);
    let old = Range { key: b"old", revision: 2, ..Range::default() };
    assert_eq!(store.range(&me(), &old).unwrap().body.kvs[0].record().value, b"1");

    let watch = store.watch(&me());
    watch.create(Create::default().key("old").start_revision(1_i64));
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let response = watch.next(Duration::from_secs(30)).unwrap().expect("history");
        seen.extend(response.events.iter().map(|(event, _)| event.kv.record().value.to_vec()));
    }
    assert_eq!(seen, [b"1", b"2"]);

    // A snapshot has what the log has too, and is shown itself.
    let path = dir.path().join("saved");
    let snapshot = saved(&store);
    fs::write(&path, &snapshot).unwrap();
    let again = read_only(&path);
    assert_eq!(again.notes(), [""; 0]);
    assert_eq!((records(&again), again.hash_kv(&me(), 0).unwrap()), (wanted, hash));
    assert_eq!(again.hash(&me()).unwrap(), store.hash(&me()).unwrap());
    assert_eq!((again.member_id(), again.cluster_id().0), (store.member_id(), 0));
    assert_eq!(saved(&again), snapshot);

    store.close().unwrap();
    assert_eq!(store.range(&me(), &ALL), Err(Error::Stopped));
    drop(store);
    assert_eq!(files(&data), before);
    assert_eq!(fs::read(&path).unwrap(), snapshot);
    assert!(put(&open(&dir, Options::default()), b"k", b"v").is_err(), "auth is on");
}

#[test]
fn nothing_is_changed_by_request() {
    let dir = tempfile::tempdir().unwrap();
    drop(left(&dir));
    let store = read_only(&dir.path().join("data"));
    let refused = Some(Error::ReadOnly);
    assert_eq!(Error::ReadOnly.to_string(), "etcdserver: not capable");
    assert_eq!(Error::ReadOnly.code(), crate::store::Code::FailedPrecondition);
    let id = store.member_id();
    let urls = ["http://localhost:1".to_owned()];
    let permission = Permission { kind: 0, key: b"k".to_vec(), range_end: Vec::new() };
    let put = || Put { key: b"k", value: b"v", ..Put::default() };
    let txn = Txn { success: vec![Op::Put(put())], ..Txn::default() };
    let alarm = Alarm { action: 1, member_id: id.0, alarm: 1 };
    let compaction = Compaction { revision: 2, physical: true };
    assert_eq!(store.put(&me(), put()).err(), refused);
    assert_eq!(store.submit(&me(), put()).err(), refused);
    let delete = DeleteRange { key: b"old", ..DeleteRange::default() };
    assert_eq!(store.delete_range(&me(), delete).err(), refused);
    assert_eq!(store.txn(&me(), txn).err(), refused);
    assert_eq!(store.compact(&me(), compaction).err(), refused);
    assert_eq!(store.lease_grant(&me(), 0, 10).err(), refused);
    assert_eq!(store.lease_revoke(&me(), 7).err(), refused);
    assert_eq!(store.lease_keep_alive(&me(), 7).err(), refused);
    assert_eq!(store.alarm(&me(), alarm).err(), refused);
    assert_eq!(store.defragment(&me()).err(), refused);
    assert_eq!(store.auth_enable(&me()).err(), refused);
    assert_eq!(store.auth_disable(&me()).err(), refused);
    assert_eq!(store.user_add(&me(), NewUser::with_password("a", "b")).err(), refused);
    assert_eq!(store.user_change_password(&me(), "root", "b").err(), refused);
    assert_eq!(store.user_delete(&me(), "root").err(), refused);
    assert_eq!(store.user_grant_role(&me(), "root", "root").err(), refused);
    assert_eq!(store.user_revoke_role(&me(), "root", "root").err(), refused);
    assert_eq!(store.role_add(&me(), "r").err(), refused);
    assert_eq!(store.role_delete(&me(), "root").err(), refused);
    assert_eq!(store.role_grant_permission(&me(), "root", &permission).err(), refused);
    assert_eq!(store.role_revoke_permission(&me(), "root", b"k", b"").err(), refused);
    assert_eq!(store.member_add(&me(), &urls).err(), refused);
    assert_eq!(store.member_update(&me(), id, &urls).err(), refused);
    assert_eq!(store.member_remove(&me(), id).err(), refused);
    assert_eq!(store.member_promote(&me(), id).err(), refused);
    assert_eq!(store.move_leader(&me(), id).err(), refused);

    let off = Some(Error::Refused(Refusal::AuthNotEnabled));
    assert_eq!(store.authenticate("root", "pw").err(), off);
    assert_eq!(store.caller(Some("x")).unwrap(), Caller::default());
    assert_eq!(store.alarm(&me(), Alarm::default()).unwrap().body, []);
    let read = Txn { success: vec![Op::Range(ALL)], ..Txn::default() };
    assert!(store.txn(&me(), read).unwrap().body.succeeded);
}

#[test]
fn whoever_reads_keeps_writers_out_and_not_readers() {
    let dir = tempfile::tempdir().unwrap();
    drop(left(&dir));
    let data = dir.path().join("data");
    let (one, two) = (read_only(&data), read_only(&data));
    assert_eq!(records(&one), records(&two));
    let refused = |result: Result<Store, OpenError>| {
        assert!(matches!(result, Err(OpenError::InUse(_))), "{result:?}");
    };
    refused(Store::open(&data, Options::default()));
    one.close().unwrap();
    two.close().unwrap();
    let store = Store::open(&data, Options::default()).unwrap();
    refused(Store::open_read_only(&data, Options::default()));
    refused(Store::open_read_only(&data.join("member/snap/db"), Options::default()));
    store.close().unwrap();

    // The lock comes first: nothing is read, and found wanting, of what somebody else writes.
    let database = data.join("member/snap/db");
    let locked = std::fs::File::open(&database).unwrap();
    locked.lock().unwrap();
    std::fs::write(data.join("member/wal/0000000000000000-0000000000000000.wal"), b"torn").unwrap();
    refused(Store::open_read_only(&data, Options::default()));
}

#[test]
fn what_is_no_snapshot_and_no_directory_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let open = |path: &Path| Store::open_read_only(path, Options::default()).map(drop);
    assert!(matches!(open(&path), Err(OpenError::Disk(_))));
    fs::write(&path, [7; 9000]).unwrap();
    assert!(matches!(open(&path), Err(OpenError::Damaged { .. })));
    assert!(matches!(open(dir.path()), Err(OpenError::Unfit { .. })));
    rustix::fs::mknodat(
        rustix::fs::CWD,
        dir.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    assert!(matches!(open(&dir.path().join("pipe")), Err(OpenError::Unfit { .. })));
}

#[test]
fn a_changed_byte_is_told_where_there_is_a_sum() {
    let dir = tempfile::tempdir().unwrap();
    drop(left(&dir));
    let mut bytes = saved(&read_only(&dir.path().join("data")));
    let at = bytes.windows(300).position(|part| part == [7; 300]).unwrap();
    bytes[at] = 8;
    let path = dir.path().join("changed");
    fs::write(&path, &bytes).unwrap();
    let store = read_only(&path);
    assert!(store.notes()[0].contains("SHA-256"), "{:?}", store.notes());
    let database = bytes.len() - 32;
    fs::write(&path, &bytes[..database]).unwrap();
    assert_eq!(read_only(&path).notes(), [""; 0]);
}

#[test]
fn a_log_that_is_of_no_use_is_told_and_the_database_shown() {
    let dir = tempfile::tempdir().unwrap();
    let (wanted, _) = left(&dir);
    let wal = dir.path().join("data/member/wal");
    let segment = fs::read_dir(&wal).unwrap().next().unwrap().unwrap().path();
    let mut bytes = fs::read(&segment).unwrap();
    // A changed byte in the middle of what was synced.
    let at = bytes.windows(3).rposition(|part| part == [7; 3]).unwrap();
    bytes[at - 2000] ^= 1;
    fs::OpenOptions::new().write(true).open(&segment).unwrap().write_all(&bytes).unwrap();
    let store = read_only(&dir.path().join("data"));
    assert!(store.notes()[0].contains("the log in"), "{:?}", store.notes());
    let shown = records(&store);
    assert!(shown.len() < wanted.len() && shown.len() >= 2, "{}", shown.len());
    drop(store);
    fs::rename(&wal, dir.path().join("wal")).unwrap();
    let store = read_only(&dir.path().join("data"));
    assert!(store.notes()[0].contains("no log"), "{:?}", store.notes());
    assert_eq!(records(&store), shown);
}

#[test]
fn killed_etcds_of_every_version_are_shown_as_they_would_be_served() {
    for version in ["3.4", "3.5", "3.6", "3.7"] {
        let dir = killed(version);
        let before = files(dir.path());
        let store = read_only(dir.path());
        let shown = (records(&store), store.hash_kv(&me(), 0).unwrap(), store.revision());
        let (member, cluster) = (store.member_id(), store.cluster_id());
        assert_eq!(store.compat(), if version == "3.7" { Compat::V3_7 } else { Compat::V3_6 });
        drop(store);
        assert_eq!(files(dir.path()), before, "{version}");
        let store = Store::open(dir.path(), Options::default()).unwrap();
        let served = (records(&store), store.hash_kv(&me(), 0).unwrap(), store.revision());
        assert_eq!(shown, served, "{version}");
        assert_eq!((member, cluster), (store.member_id(), store.cluster_id()), "{version}");
    }
}

#[test]
fn members_are_shown_where_they_are_told_to_be() {
    let dir = tempfile::tempdir().unwrap();
    drop(left(&dir));
    let data = dir.path().join("data");
    let urls = |options: Options| {
        let store = Store::open_read_only(&data, options).unwrap();
        store.members(&store.caller_named("root")).unwrap().remove(0).client_urls
    };
    assert_eq!(urls(Options::default()), ["http://localhost:2379"]);
    let here = vec!["http://127.0.0.1:1".to_owned()];
    assert_eq!(urls(Options::default().shown_at(Some(here.clone()))), here);
    // Who is written says itself where it is.
    let store = Store::open(&data, Options::default().shown_at(Some(here))).unwrap();
    let members = store.members(&store.caller_named("root")).unwrap();
    assert_eq!(members[0].client_urls, ["http://localhost:2379"]);
}
