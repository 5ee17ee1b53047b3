//! The store's figures against those of etcd 3.7.3 that was asked the same.

use super::*;
use crate::etcd::request::{Compare, Operand};
use crate::store::figures::{Figures, Kind};

const VALUE: u64 = 3;
const CREATED: u64 = 1;
const NEVER: Compare<'_> = Compare {
    result: 0,
    target: CREATED,
    key: b"zz",
    operand: Some(Operand::CreateRevision(0)),
    range_end: b"",
};

fn a_put(key: &'static [u8]) -> Op<'static> {
    Op::Put(Put { key, value: key, ..Put::default() })
}

fn a_read(key: &'static [u8]) -> Op<'static> {
    Op::Range(Range { key, ..Range::default() })
}

fn get(store: &Store, key: &[u8], revision: i64) -> Result<(), Error> {
    store.range(&me(), &Range { key, revision, ..Range::default() }).map(drop)
}

fn count_of(figures: &[crate::store::figures::ByRequest], kind: Kind) -> [u64; 2] {
    [true, false].map(|success| {
        let one = figures.iter().find(|by| by.kind == kind && by.success == success);
        one.map_or(0, |by| by.durations.count())
    })
}

#[test]
fn what_is_asked_of_the_keys_is_counted_as_etcd_counts_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Options::default());
    let with_prev = |value| Put { key: b"k", value, prev_kv: true, ..Put::default() };
    put(&store, b"k", b"v").unwrap();
    get(&store, b"k", 0).unwrap();
    store.put(&me(), with_prev(b"v2")).unwrap();
    let delete = DeleteRange { key: b"k", prev_kv: true, ..DeleteRange::default() };
    store.delete_range(&me(), delete).unwrap();
    store.delete_range(&me(), DeleteRange { key: b"none", ..DeleteRange::default() }).unwrap();
    let is_x = Compare {
        target: VALUE,
        key: b"k",
        operand: Some(Operand::Value(b"x")),
        ..Compare::default()
    };
    let txn = |compare: &[Compare<'static>], success: Vec<Op<'static>>, failure| {
        let txn = Txn { compare: compare.to_vec(), success, failure };
        store.txn(&me(), txn).unwrap()
    };
    txn(&[is_x], vec![], vec![a_put(b"c"), a_read(b"c")]);
    txn(&[NEVER], vec![a_put(b"a")], vec![]);
    txn(&[NEVER], vec![a_read(b"a")], vec![]);
    let not_so = Compare { operand: Some(Operand::CreateRevision(1)), ..NEVER };
    txn(&[NEVER, not_so, NEVER], vec![a_read(b"a")], vec![a_put(b"w")]);
    let leaseless = Put { key: b"x", value: b"y", lease: 0x1234, ..Put::default() };
    store.put(&me(), leaseless).unwrap_err();
    let (lease, _) = store.lease_grant(&me(), 0, 100).unwrap().body;
    for key in [b"l1", b"l2"] {
        store.put(&me(), Put { key, value: b"v", lease, ..Put::default() }).unwrap();
    }
    store.lease_revoke(&me(), lease).unwrap();
    let kept = Put { key: b"c", ignore_value: true, ..Put::default() };
    store.put(&me(), kept).unwrap();
    get(&store, b"k", 1000).unwrap_err();
    store.compact(&me(), Compaction { revision: 4, physical: true }).unwrap();
    get(&store, b"k", 2).unwrap_err();

    let figures = store.figures();
    let Figures { puts, deletes, ranges, txns, put_bytes, keys, compaction_keys, .. } = figures;
    assert_eq!((puts, deletes, ranges, txns), (8, 4, 13, 7));
    assert_eq!((put_bytes, keys, compaction_keys), (19, 3, 2));
    assert_eq!((figures.revision, figures.compact_revision), (store.revision(), 4));
    assert_eq!(figures.compaction_ms.count(), 1);
    assert!(figures.compaction_pause_ms.count() >= 1 && figures.compacted_at_s > 1_700_000_000);
    assert_eq!(count_of(&figures.applies, Kind::Put), [5, 1]);
    assert_eq!(count_of(&figures.applies, Kind::Txn), [3, 0]);
    assert_eq!(count_of(&figures.applies, Kind::DeleteRange), [2, 0]);
    assert_eq!(count_of(&figures.requests, Kind::Put), [6, 0]);
    assert_eq!(count_of(&figures.requests, Kind::ReadonlyTxn), [1, 0]);
    assert_eq!(count_of(&figures.requests, Kind::Range), [1, 2]);
    assert_eq!((figures.ranges_done.count(), figures.ranges_refused.count()), (1, 2));
    assert_eq!((figures.leases_granted, figures.leases_revoked), (1, 1));
    assert_eq!((figures.lease_ttls.count(), figures.lease_ttls.sum), (1, 100.0));
    assert_eq!((figures.proposals_pending, figures.proposals_failed), (0, 0));
    assert_eq!(figures.committed, figures.applied);
    assert_eq!((figures.leader_changes, figures.is_leader), (1, true));
    assert_eq!((figures.server_version, figures.cluster_version.as_str()), ("3.7.3", "3.7"));
    let status = store.status(&me()).unwrap();
    assert_eq!(figures.quota_bytes, status.db_size_quota_bytes);
    store.close().unwrap();
    assert!(!store.figures().is_leader);
    assert_eq!(store.figures().puts, 0, "the state of a closed store is not looked at");
}

#[test]
fn disks_watchers_and_leases_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let hands = Arc::new(Hands::default());
    let clock: Arc<dyn Clock> = hands.clone();
    let store = open(&dir, Options::default().clock(clock));
    let watch = store.watch(&me());
    watch.create(Create::default().key(*b"k"));
    assert!(watch.next(Duration::from_secs(10)).unwrap().unwrap().created);
    put(&store, b"k", b"v").unwrap();
    until("the event to wait", || store.figures().pending_events == 1);
    assert_eq!(watch.next(Duration::from_secs(10)).unwrap().unwrap().events.len(), 1);
    let (lease, _) = store.lease_grant(&me(), 0, 5).unwrap().body;
    store.lease_keep_alive(&me(), lease).unwrap();
    hands.go(6);
    until("the lease to end", || store.figures().leases_expired == 1);
    store.defragment(&me()).unwrap();
    let mut snapshot = store.snapshot(&me()).unwrap();
    std::io::copy(&mut snapshot, &mut std::io::sink()).unwrap();
    assert_eq!(store.figures().snapshot.count(), 0);
    drop(snapshot);
    store.hash(&me()).unwrap();
    store.hash_kv(&me(), 0).unwrap();

    let figures = store.figures();
    let Figures { watchers, watch_streams, events, pending_events, slow_watchers, .. } = figures;
    assert_eq!((watchers, watch_streams, events, pending_events), (1, 1, 1, 0));
    assert_eq!(slow_watchers, 0);
    assert_eq!((figures.leases_renewed, figures.leases_revoked), (1, 1));
    assert!(figures.wal_fsync.count() >= 4 && figures.wal_write.count() >= 4);
    assert!(figures.wal_fsync.sum > 0.0);
    assert!(figures.wal_write_bytes > 200, "{} bytes", figures.wal_write_bytes);
    let commits = figures.backend_commit.count();
    assert!(commits > 0);
    assert_eq!(figures.backend_commit_write.count(), commits);
    let parts = figures.backend_commit_layout.sum + figures.backend_commit_write.sum;
    assert!(parts > 0.0 && parts <= figures.backend_commit.sum);
    assert_eq!((figures.defrag.count(), figures.is_defragmenting), (1, false));
    assert_eq!(
        (figures.snapshot.count(), figures.hash.count(), figures.hash_kv.count()),
        (1, 1, 1)
    );
    assert!(figures.open_read_transactions >= 1);
    assert!(figures.db_size_bytes >= figures.db_size_in_use_bytes);
    drop(watch);
    assert_eq!((store.figures().watchers, store.figures().watch_streams), (0, 0));
}

#[test]
fn what_takes_longer_than_the_limit_is_slow() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Options::default().warning_apply_duration(Duration::ZERO));
    let before = store.figures().slow_applies;
    put(&store, b"k", b"v").unwrap();
    get(&store, b"k", 0).unwrap();
    assert_eq!(store.figures().slow_applies, before + 2);
}

#[test]
fn a_start_counts_from_nothing_and_knows_the_keys() {
    let dir = tempfile::tempdir().unwrap();
    let options = || Options::default().compat(Compat::V3_6).snapshot_count(1_u64);
    let store = open(&dir, options());
    put(&store, b"a", b"1").unwrap();
    put(&store, b"b", b"1").unwrap();
    store.kill();
    let store = open(&dir, options());
    let figures = store.figures();
    assert_eq!((figures.puts, figures.keys, figures.proposals_pending), (0, 2, 0));
    put(&store, b"c", b"1").unwrap();
    until("a raft snapshot", || store.figures().snap_save.count() > 0);
}
