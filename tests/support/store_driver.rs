//! How the tests talk to a store.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use etcdkit::bolt::disk::Disk;
use etcdkit::etcd::request::{Body, Range};
use etcdkit::store::engine::{Options, Store, Submission};
use etcdkit::store::guard::Caller;
use etcdkit::store::watch::{Create, Response};
use etcdkit::store::{Error, Kv, OpenError, answer};

use crate::store_model::{Model, Reply, Said};
use crate::store_requests::Ask;

/// Longest wait for something that must come.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Whoever asks, while auth is off.
pub(crate) fn nobody() -> Caller {
    Caller::default()
}

/// How stores of the tests are opened: as by default, with changes that go to this disk.
pub(crate) fn options(disk: Disk) -> Options {
    let mut options = Options::default().disk(disk);
    options.identity.peer_urls = vec!["http://127.0.0.1:12380".into()];
    options.identity.client_urls = vec!["http://127.0.0.1:12379".into()];
    // Little work a commit and many of them, so that much happens in a short run.
    options.batch_interval = Duration::from_millis(5);
    options.compaction_sleep = Duration::from_millis(1);
    options.request_timeout = SOON;
    // Many segments in a short run, and few zeros to make and to read.
    options.wal_segment_bytes = 64 << 10;
    options.wals_max = 3;
    options.snaps_max = 3;
    options
}

pub(crate) fn open(dir: &Path, disk: Disk) -> Result<Store, OpenError> {
    Store::open(dir, options(disk))
}

/// Asks for something and waits for the answer.
pub(crate) fn ask(store: &Store, ask: &Ask) -> Said {
    let caller = nobody();
    match ask.body() {
        Body::Range(range) => {
            let answer = store.range(&caller, &range)?;
            Ok((answer.revision, Reply::Range(answer.body)))
        }
        Body::Alarm(alarm) => {
            let answer = store.alarm(&caller, alarm)?;
            let mut alarms = answer.body;
            alarms.sort_unstable();
            Ok((answer.revision, Reply::Other(answer::Body::Alarms(alarms))))
        }
        Body::Compaction(compaction) => {
            let answer = store.compact(&caller, compaction)?;
            Ok((answer.revision, Reply::Other(answer::Body::Done)))
        }
        body => {
            let pending = store.submit(&caller, Submission::try_from(body)?)?;
            let answer = store.wait(pending)?.answer;
            Ok((answer.revision, Reply::Other(answer.body)))
        }
    }
}

pub(crate) fn defrag(store: &Store) -> Result<(), Error> {
    store.defragment(&nobody())
}

pub(crate) fn leases(store: &Store) -> Vec<i64> {
    let mut leases = store.leases(&nobody()).expect("leases").body;
    leases.sort_unstable();
    leases
}

/// All live keys.
pub(crate) fn all_keys(store: &Store) -> Vec<Kv> {
    let range = Range { key: b"\0", range_end: b"\0", ..Range::default() };
    store.range(&nobody(), &range).expect("all keys").body.kvs
}

/// All live keys with value and lease.
pub(crate) fn live_keys(store: &Store) -> BTreeMap<String, (Vec<u8>, i64)> {
    let kvs = all_keys(store);
    let one = |kv: &Kv| {
        let record = kv.record();
        let key = String::from_utf8(record.key.to_vec()).expect("text");
        (key, (record.value.to_vec(), record.lease))
    };
    kvs.iter().map(one).collect()
}

/// An event, as a watcher saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) revision: i64,
    pub(crate) key: String,
    /// `None` where the key was deleted.
    pub(crate) value: Option<Vec<u8>>,
}

/// Every event after the last compaction, and its revision; waits until all are there.
pub(crate) fn all_events(store: &Store) -> (i64, Vec<Seen>) {
    let compacted = store.hash_kv(&nobody(), 0).expect("a hash").body.compact_revision.max(0);
    let revision = store.revision();
    let mut all = Vec::new();
    if revision <= compacted || revision == 1 {
        return (compacted, all);
    }
    let stream = store.watch(&nobody());
    stream.create(Create::default().range_end(b"\0").start_revision(compacted + 1));
    while all.last().is_none_or(|last: &Seen| last.revision < revision) {
        let response: Response = stream.next(SOON).expect("a stream").expect("events in time");
        assert!(!response.canceled, "{response:?}");
        for (event, _) in response.events {
            let record = event.kv.record();
            all.push(Seen {
                revision: event.revision.main,
                key: String::from_utf8(event.key.to_vec()).expect("text"),
                value: (!event.is_delete).then(|| record.value.to_vec()),
            });
        }
    }
    (compacted, all)
}

/// Holds all that a store has against a model; what differs is told.
pub(crate) fn compare(store: &Store, model: &Model) -> Result<(), String> {
    let same = |what: &str, ours: String, wanted: String| {
        if ours == wanted { Ok(()) } else { Err(format!("{what}: {ours}, not {wanted}")) }
    };
    same("revision", store.revision().to_string(), model.revision.to_string())?;
    let wanted: Vec<i64> = model.leases.keys().copied().collect();
    same("leases", format!("{:?}", leases(store)), format!("{wanted:?}"))?;
    for lease in wanted {
        let status = store.lease_time_to_live(&nobody(), lease, true);
        let status = status.map_err(|error| error.to_string())?.body;
        let told = (status.granted_ttl_s, status.keys);
        let wanted = (model.leases[&lease], model.lease_keys(lease));
        same("a lease", format!("{told:?}"), format!("{wanted:?}"))?;
    }
    let hash = store.hash_kv(&nobody(), 0).map_err(|error| error.to_string())?.body;
    same("compacted", hash.compact_revision.to_string(), model.compacted.to_string())?;
    let everything =
        Ask::new(Body::Range(Range { key: b"\0", range_end: b"\0", ..Range::default() }));
    let wanted = model.clone().ask(&everything.body());
    same("keys", format!("{:?}", ask(store, &everything)), format!("{wanted:?}"))?;
    same("HashKV", hash.hash.to_string(), model.hash_kv(model.revision).to_string())?;
    let mut at = model.revision;
    // A few older ones.
    while at > model.compacted.max(1) && at > model.revision - 3 {
        let hash = store.hash_kv(&nobody(), at).map_err(|error| error.to_string())?.body;
        same(&format!("HashKV at {at}"), hash.hash.to_string(), model.hash_kv(at).to_string())?;
        at -= 1;
    }
    Ok(())
}
