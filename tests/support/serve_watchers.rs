//! Watchers: a thousand of them, slow ones, and ones whose client is gone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use etcd_client::{Client, CompactionOptions, EventType, GetOptions, WatchOptions, WatchStream};
use etcdkit::store::wire::etcdserverpb as pb;
use etcdkit::store::wire::v3lockpb::LockRequest;
use pb::watch_request::RequestUnion;
use prost::bytes::Bytes;
use tokio::task::{LocalSet, spawn_local};

use crate::serve_child::{LONG, Served, run, until};
use crate::serve_wire::Wire;

/// Kinds of keys; each stream has a watcher of each.
const KINDS: usize = 5;

/// Opens a stream with a watcher of each kind, from a revision on.
async fn watch(client: &mut Client, from: i64) -> WatchStream {
    let options = || Some(WatchOptions::new().with_prefix().with_start_revision(from));
    let mut stream = client.watch("0/", options()).await.unwrap();
    for kind in 1..KINDS {
        stream.watch(format!("{kind}/"), options()).await.unwrap();
    }
    stream
}

/// What each watcher of a stream was told: kind of its keys and revision.
type Told = BTreeMap<i64, Vec<(usize, i64)>>;

/// Reads a stream until every watcher has told the end of its kind, or was cancelled; returns what
/// they told, and the revisions with which they were cancelled.
async fn told(stream: &mut WatchStream) -> (Told, BTreeMap<i64, i64>) {
    let (mut told, mut cancelled, mut over) = (Told::new(), BTreeMap::new(), 0);
    while over < KINDS {
        let response = stream.message().await.unwrap().expect("the stream goes on");
        let seen = told.entry(response.watch_id()).or_default();
        if response.canceled() {
            cancelled.insert(response.watch_id(), response.compact_revision());
            over += 1;
        }
        for event in response.events() {
            assert_eq!(event.event_type(), EventType::Put);
            let kv = event.kv().unwrap();
            let key = kv.key_str().unwrap();
            seen.push((key[..1].parse().unwrap(), kv.mod_revision()));
            over += usize::from(key.ends_with("/end"));
        }
    }
    (told, cancelled)
}

/// Reads streams of one connection at once: they share its window.
async fn all_told(streams: Vec<WatchStream>) -> Vec<(Told, BTreeMap<i64, i64>)> {
    let reader = |mut stream| spawn_local(async move { told(&mut stream).await });
    let readers: Vec<_> = streams.into_iter().map(reader).collect();
    let mut all = Vec::new();
    for reader in readers {
        all.push(reader.await.unwrap());
    }
    all
}

/// Puts keys of all kinds in turn, then the end of each; returns the revisions of each kind.
async fn write(client: &mut Client, count: usize, value: &[u8]) -> Vec<Vec<i64>> {
    let mut revisions = vec![Vec::new(); KINDS];
    for number in 0..count + KINDS {
        let kind = number % KINDS;
        let key = match number < count {
            true => format!("{kind}/{}", number % 40),
            false => format!("{kind}/end"),
        };
        let answer = client.put(key, value, None).await.unwrap();
        revisions[kind].push(answer.header().unwrap().revision());
    }
    revisions
}

/// Every watcher was told every revision of its kind, once and in order.
fn check(told: &Told, revisions: &[Vec<i64>]) {
    assert_eq!(told.len(), KINDS);
    let mut kinds: Vec<usize> = Vec::new();
    for seen in told.values() {
        let kind = seen[0].0;
        let wanted: Vec<_> = revisions[kind].iter().map(|revision| (kind, *revision)).collect();
        assert_eq!(*seen, wanted);
        kinds.push(kind);
    }
    kinds.sort_unstable();
    assert_eq!(kinds, (0..KINDS).collect::<Vec<_>>());
}

#[test]
fn a_thousand_watchers_are_told_everything_once_and_in_order() {
    let served = Served::start(&[]);
    let wires = 10;
    run(async {
        let local = LocalSet::new();
        let mut readers = Vec::new();
        for _ in 0..wires {
            let mut client = served.client().await;
            for _ in 0..1000 / wires / KINDS {
                let mut stream = watch(&mut client, 0).await;
                readers.push(local.spawn_local(async move { told(&mut stream).await }));
            }
        }
        assert_eq!(readers.len() * KINDS, 1000);
        local.run_until(watchers(&served, 1000)).await;
        assert_eq!(served.metric("etcd_debugging_mvcc_watch_stream_total"), 200);
        let mut client = served.client().await;
        let revisions = local.run_until(write(&mut client, 200, b"value")).await;
        local
            .run_until(async {
                for reader in readers {
                    let (told, cancelled) = reader.await.unwrap();
                    assert!(cancelled.is_empty());
                    check(&told, &revisions);
                }
            })
            .await;
    });
    let gone = || served.metric("etcd_debugging_mvcc_watcher_total") == 0;
    until("the end of all watchers", gone);
}

#[test]
fn a_client_that_reads_nothing_stalls_nobody_and_loses_nothing() {
    let served = Served::start(&[]);
    let value = vec![b'v'; 100 << 10];
    // More than waits for a stream: the rest of it is read again from history.
    let (count, mib) = (450, 1 << 20);
    run(LocalSet::new().run_until(async {
        // What the same writes cost with nobody who is slow.
        let mut writer = served.client().await;
        write(&mut writer, count, &value).await;
        let before = served.memory();
        write(&mut writer, count, &value).await;
        let plain = served.memory().saturating_sub(before);

        let mut quick = served.client().await;
        let (mut slow, mut slower) = (served.client().await, served.client().await);
        let (mut stuck, mut overtaken) = (Vec::new(), Vec::new());
        for _ in 0..10 {
            stuck.push(watch(&mut slow, 0).await);
            overtaken.push(watch(&mut slower, 0).await);
        }
        let mut seeing = watch(&mut quick, 0).await;
        watchers(&served, 105).await;
        let before = served.memory();
        let (revisions, (seen, _)) =
            tokio::join!(write(&mut writer, count, &value), told(&mut seeing));
        check(&seen, &revisions);
        let grown = served.memory().saturating_sub(before);
        // 44 MiB were written, and 20 streams are owed 880 MiB.
        println!("memory grew by {} MiB, without slow clients {}", grown / mib, plain / mib);
        assert!(grown < plain + 100 * mib, "{} MiB more", grown / mib);
        assert!(served.metric("etcd_debugging_mvcc_slow_watcher_total") > 0, "nobody is slow");
        for (told, cancelled) in all_told(stuck).await {
            assert!(cancelled.is_empty());
            check(&told, &revisions);
        }

        // The others are overtaken by a compaction: each watcher has told everything up to some
        // revision, and says where it can go on.
        let last = *revisions.iter().flatten().max().unwrap();
        writer.compact(last, Some(CompactionOptions::new())).await.unwrap();
        let mut count = 0;
        for (told, cancelled) in all_told(overtaken).await {
            for (id, seen) in &told {
                let Some((kind, _)) = seen.first() else {
                    assert_eq!(cancelled[id], last);
                    continue;
                };
                let seen: Vec<i64> = seen.iter().map(|(_, revision)| *revision).collect();
                match cancelled.get(id) {
                    None => assert_eq!(seen, revisions[*kind]),
                    Some(compacted) => {
                        count += 1;
                        assert_eq!(*compacted, last);
                        assert!(revisions[*kind].starts_with(&seen), "a gap, or one twice");
                    }
                }
            }
        }
        assert!(count > 0, "nobody was slow");
    }));
}

/// Waits for so many watchers, while their clients go on.
async fn watchers(served: &Served, count: u64) {
    let end = Instant::now() + LONG;
    while served.metric("etcd_debugging_mvcc_watcher_total") != count {
        assert!(Instant::now() < end, "waited in vain for {count} watchers");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn create(key: &str) -> pb::WatchRequest {
    let create = pb::WatchCreateRequest {
        key: Bytes::copy_from_slice(key.as_bytes()),
        ..Default::default()
    };
    pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }
}

#[test]
fn what_a_client_had_goes_with_it_when_it_vanishes() {
    let served = Served::start(&[]);
    let lease = run(async {
        let mut client = served.client().await;
        for number in 0..100 {
            client.put(format!("k{number}"), vec![7; 100 << 10], None).await.unwrap();
        }
        client.lock("l", None).await.unwrap();
        client.lease_grant(600, None).await.unwrap().id()
    });
    let descriptors = served.descriptors();
    let mut memory = Vec::new();
    for _ in 0..4 {
        let mut wires = Vec::new();
        for _ in 0..25 {
            let mut wire = Wire::connect(served.address);
            for stream in 0..20 {
                assert!(wire.begin(stream * 2 + 1, "/etcdserverpb.Watch/Watch", &create("k")));
            }
            let snapshot = pb::SnapshotRequest::default();
            assert!(wire.begin(101, "/etcdserverpb.Maintenance/Snapshot", &snapshot));
            let keep = pb::LeaseKeepAliveRequest { id: lease };
            assert!(wire.begin(103, "/etcdserverpb.Lease/LeaseKeepAlive", &keep));
            let lock = LockRequest { name: Bytes::from_static(b"l"), lease };
            assert!(wire.begin(105, "/v3lockpb.Lock/Lock", &lock));
            let range = pb::RangeRequest {
                key: Bytes::from_static(b"k"),
                range_end: Bytes::from_static(b"l"),
                ..Default::default()
            };
            assert!(wire.begin(107, "/etcdserverpb.KV/Range", &range));
            wires.push(wire);
        }
        let all = || served.metric("etcd_debugging_mvcc_watcher_total") == 500;
        until("the watchers", all);
        assert_eq!(served.metric("etcd_debugging_mvcc_watch_stream_total"), 500);
        served.serves();
        for wire in wires {
            wire.vanish();
        }
        let none = || {
            served.metric("etcd_debugging_mvcc_watcher_total") == 0
                && served.metric("etcd_debugging_mvcc_watch_stream_total") == 0
        };
        until("the end of the watchers", none);
        until("the end of the connections", || served.descriptors() <= descriptors + 2);
        memory.push(served.memory() >> 20);
    }
    println!("memory after each round: {memory:?} MiB");
    assert!(memory[3] < memory[0] + 48, "{memory:?} MiB");
    run(async {
        let mut client = served.client().await;
        // Snapshots that nobody reads any more hold nothing.
        client.defragment().await.unwrap();
        let locks = GetOptions::new().with_prefix();
        // One holds the lock; all others waited with the same lease, in one key.
        let answer = client.get("l/", Some(locks)).await.unwrap();
        assert!(answer.kvs().len() <= 2, "{} wait", answer.kvs().len());
        tokio::time::timeout(Duration::from_secs(30), client.put("a", "b", None))
            .await
            .unwrap()
            .unwrap();
    });
}
