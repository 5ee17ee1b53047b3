//! Directories that go back and forth between real etcds and our store, each of which is killed
//! under load: whoever opens them next finds every key, revision, lease and rule that was
//! acknowledged, and the other one would have found the same.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use etcdkit::bolt::disk::Disk;
use etcdkit::store::engine::{Options, Store};
use serde_json::{Value, json};

use crate::boots::copy_folder;
use crate::equals::{accepted, database};
use crate::power_history::Dice;
use crate::programs::{Etcd, Real, Start, bounded, real};
use crate::replays::{compacted, rows_of};
use crate::store_driver::{all_keys, ask, nobody, options};
use crate::store_requests::{Ask, Mix, random};
use crate::store_wire::Wire;
use crate::support::{Rows, Sandbox, hex, sha256};

const CHILD: &str = "store_takeover::serves_until_it_is_killed";
/// How long each of them works before it is killed.
const LIFE: Duration = Duration::from_millis(400);
/// So that a member says the same of itself whoever serves it.
const ADVERTISED: &str = "http://127.0.0.1:1";
const FLAGS: [&str; 2] = ["--advertise-client-urls=http://127.0.0.1:1", "--snapshot-count=300"];

/// How our store opens a member of the tests' real etcds.
pub(crate) fn as_member(disk: Disk) -> Options {
    let mut options = options(disk).snapshot_count(300_u64);
    options.identity.name = "m1".into();
    options.identity.client_urls = vec![ADVERTISED.into()];
    options
}

fn open(dir: &Path) -> Store {
    Store::open(dir, as_member(Disk::default()))
        .unwrap_or_else(|error| panic!("{} does not open: {error}", dir.display()))
}

/// What a store holds, in the oracle's shape.
pub(crate) fn told(store: &Store) -> Value {
    let revision = store.revision();
    let key = |record: &etcdkit::etcd::record::KeyValue<'_>| {
        json!({
            "key_hex": hex(record.key),
            "create_revision": record.create_revision,
            "mod_revision": record.mod_revision,
            "version": record.version,
            "lease": record.lease,
            "value_sha256": sha256(record.value),
        })
    };
    let keys: Vec<_> = all_keys(store).iter().map(|kv| key(&kv.record())).collect();
    let lease = |id: &i64| {
        let status = store.lease_time_to_live(&nobody(), *id, true).expect("a lease").body;
        let keys: Vec<_> = status.keys.iter().map(|key| hex(key)).collect();
        json!({"id": id, "granted_ttl": status.granted_ttl_s, "keys": keys})
    };
    let leases: Vec<_> = crate::store_driver::leases(store).iter().map(lease).collect();
    let hash = store.hash_kv(&nobody(), revision).expect("a hash").body;
    json!({
        "revision": revision,
        "keys": keys,
        "leases": leases,
        "member_id": store.member_id().to_string(),
        "cluster_id": store.cluster_id().to_string(),
        "hash": hash.hash,
        "compact_revision": hash.compact_revision,
    })
}

/// The same of a real server.
pub(crate) fn truth(etcd: &Etcd<'_>) -> Value {
    let truth = etcd.truth();
    let revision = truth["revision"].as_i64().expect("a revision");
    let (hash, compact_revision) = Wire::connect(&etcd.endpoint).hash_kv(revision);
    let part = |name: &str| truth[name].clone();
    json!({
        "revision": revision,
        "keys": part("keys"),
        "leases": part("leases"),
        "member_id": part("member_id"),
        "cluster_id": part("cluster_id"),
        "hash": hash,
        "compact_revision": compact_revision,
    })
}

#[track_caller]
pub(crate) fn same(what: &str, found: &Value, wanted: &Value) {
    for (name, wanted) in wanted.as_object().expect("an object") {
        let (Some(found), Some(wanted)) = (found[name].as_array(), wanted.as_array()) else {
            assert_eq!(found[name], *wanted, "{what}: {name}");
            continue;
        };
        let lost: Vec<_> = wanted.iter().filter(|item| !found.contains(item)).take(5).collect();
        let more: Vec<_> = found.iter().filter(|item| !wanted.contains(item)).take(5).collect();
        let none: [Vec<&Value>; 2] = [Vec::new(), Vec::new()];
        assert_eq!([lost, more], none, "{what}: {name}, lost and more");
    }
}

/// The buckets of which both must have the same rows.
#[track_caller]
pub(crate) fn same_rows(what: &str, ours: &Rows, theirs: &Rows) {
    for bucket in ["alarm", "auth", "authRoles", "authUsers", "lease", "members", "members_removed"]
    {
        let path = vec![bucket.as_bytes().to_vec()];
        assert_eq!(ours.buckets[&path], theirs.buckets[&path], "{what}: bucket {bucket}");
    }
    let (ours, theirs) = (compacted(ours), compacted(theirs));
    let lost: Vec<_> = theirs.iter().filter(|(key, row)| ours.get(*key) != Some(row)).collect();
    let more: Vec<_> = ours.iter().filter(|(key, row)| theirs.get(*key) != Some(row)).collect();
    let keys = |rows: &[(&Vec<u8>, &Vec<u8>)]| -> Vec<String> {
        rows.iter().take(8).map(|(key, _)| hex(key)).collect()
    };
    let none: [Vec<String>; 2] = [Vec::new(), Vec::new()];
    assert_eq!([keys(&lost), keys(&more)], none, "{what}: rows lost and more");
}

/// The other half of the next tests: our store under load.
#[test]
#[ignore = "runs in a child of the tests of this file"]
fn serves_until_it_is_killed() {
    let word = |name: &str| std::env::var(name).expect("set by the parent");
    let store = open(&PathBuf::from(word("STORE_DIR")));
    let seed: u64 = word("STORE_SEED").parse().expect("a number");
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let store = &store;
            scope.spawn(move || {
                for n in 0_u64.. {
                    let key = format!("mark/{seed}/{thread}/{n}");
                    let (revision, _) = ask(store, &Ask::put(&key, b"ours")).expect("a put");
                    say(&format!("{key} {revision}"));
                }
            });
        }
        let mut dice = Dice(seed);
        loop {
            let mix = Mix {
                revision: store.revision(),
                bad_forms: 50,
                alarms: None,
                traps: false,
                leaves_others: true,
                value_bytes: 2000,
            };
            let _ = ask(&store, &random(&mut dice, mix));
        }
    });
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("store: {line}\n").as_bytes()).expect("a pipe");
    out.flush().expect("a pipe");
}

/// Keys that were acknowledged, with their revisions.
type Marks = BTreeMap<String, i64>;

/// Lets our store work on a directory, and kills it.
fn ours_until_killed(dir: &Path, seed: u64) -> Marks {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", CHILD, "--ignored", "--nocapture", "--test-threads=1"])
        .env("STORE_DIR", dir)
        .env("STORE_SEED", seed.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut marks = Marks::new();
    let mut first = None;
    let kill = |child: &mut std::process::Child| {
        let ended = child.try_wait().expect("a child to look at");
        assert_eq!(ended, None, "the child ended by itself");
        child.kill().expect("a child to kill");
    };
    let mut is_killed = false;
    while let Some(Ok(line)) = lines.next() {
        let Some((_, said)) = line.split_once("store: ") else { continue };
        // What was cut short was not said.
        let Some((key, revision)) = said.split_once(' ') else { continue };
        let began = *first.get_or_insert_with(Instant::now);
        marks.insert(key.to_owned(), revision.parse().expect("a revision"));
        if !is_killed && began.elapsed() > LIFE {
            kill(&mut child);
            is_killed = true;
        }
    }
    child.wait().expect("a dead child");
    assert!(is_killed, "the child ended by itself");
    marks
}

/// Lets a real etcd work, and kills it.
fn theirs_until_killed(real: &Real, etcd: Etcd<'_>, seed: u64) -> Marks {
    let mut fill = real.program("oracle");
    fill.args(["fill", "--endpoint", &etcd.endpoint, "--keys=30", "--ops=200"]);
    let seed_flag = format!("--seed={seed}");
    fill.arg(&seed_flag);
    let (stop, endpoint) = (AtomicBool::new(false), etcd.endpoint.clone());
    std::thread::scope(|scope| {
        let marking = scope.spawn(|| {
            let wire = Wire::connect(&endpoint);
            let mut marks = Marks::new();
            for n in 0_u64.. {
                let key = format!("mark/{seed}/{n}");
                match wire.ask(&Ask::put(&key, b"theirs")) {
                    Ok((revision, _)) => drop(marks.insert(key, revision)),
                    Err(_) if stop.load(Ordering::SeqCst) => break,
                    Err(error) => panic!("{error:?}"),
                }
            }
            marks
        });
        bounded(&mut fill, Duration::from_secs(60)).expect(0, &[]);
        stop.store(true, Ordering::SeqCst);
        drop(etcd);
        marking.join().expect("marks")
    })
}

/// Every acknowledged key is there with its revision.
fn holds(what: &str, told: &Value, marks: &Marks) {
    let keys = told["keys"].as_array().expect("keys");
    let by_key: BTreeMap<&str, i64> = keys
        .iter()
        .map(|key| (key["key_hex"].as_str().unwrap(), key["mod_revision"].as_i64().unwrap()))
        .collect();
    for (key, revision) in marks {
        let found = by_key.get(hex(key.as_bytes()).as_str());
        assert_eq!(found, Some(revision), "{what}: {key} was acknowledged");
    }
    assert!(marks.len() > 5, "{what}: hardly anything was acknowledged");
}

pub(crate) fn start(data_dir: PathBuf) -> Start<'static> {
    Start { data_dir, name: "m1", more: &FLAGS, ..Start::default() }
}

/// Holds what we make of a killed directory against what a real etcd makes of a copy.
fn both_say(real: &Real, sandbox: &Sandbox, version: &str, name: &str) -> Value {
    let what = format!("{name}, killed, opened by etcd {version} and by us");
    let copies = ["by-etcd", "by-us"].map(|by| sandbox.path(&format!("{name}-{by}")));
    for copy in &copies {
        copy_folder(&sandbox.path("d"), copy);
    }
    let [by_etcd, by_us] = copies;
    let etcd = real.etcd(version, &start(by_etcd.clone()));
    let wanted = truth(&etcd);
    etcd.stop();
    let store = open(&by_us);
    let found = told(&store);
    store.close().expect("a close");
    drop(store);
    same(&what, &found, &wanted);
    same_rows(&what, &rows_of(&database(&by_us)), &rows_of(&database(&by_etcd)));
    accepted(real, &database(&by_us));
    let _ = fs::remove_dir_all(by_etcd).and_then(|()| fs::remove_dir_all(by_us));
    found
}

fn ping_pong(first: &str, then: &[&str]) {
    let Some(real) = real() else { return };
    let sandbox = Sandbox::new();
    let dir = sandbox.path("d");
    let etcd = real.etcd(first, &start(dir.clone()));
    let mut fill = real.program("oracle");
    fill.args(["fill", "--endpoint", &etcd.endpoint, "--seed=1", "--keys=30", "--auth"]);
    bounded(&mut fill, Duration::from_secs(60)).expect(0, &[]);
    let mut marks = theirs_until_killed(&real, etcd, 2);
    accepted(&real, &database(&dir));
    let mut version = first;
    for (turn, next) in then.iter().enumerate() {
        let seed = 10 * (turn as u64 + 1);
        let what = format!("etcd {first}, turn {turn}");
        let told = both_say(&real, &sandbox, version, &format!("{turn}-theirs"));
        holds(&what, &told, &marks);
        marks.extend(ours_until_killed(&dir, seed));
        // The database as it was killed is sound.
        let copy = sandbox.path("killed.db");
        fs::copy(database(&dir), &copy).expect("a copy");
        accepted(&real, &copy);
        let told = both_say(&real, &sandbox, next, &format!("{turn}-ours"));
        holds(&what, &told, &marks);
        let etcd = real.etcd(next, &start(dir.clone()));
        same(&what, &truth(&etcd), &told);
        marks.extend(theirs_until_killed(&real, etcd, seed + 1));
        accepted(&real, &database(&dir));
        version = next;
    }
    let told = both_say(&real, &sandbox, version, "last");
    holds("in the end", &told, &marks);
    println!("etcd {first}, {then:?}: revision {}, {} marks", told["revision"], marks.len());
}

#[test]
fn a_directory_of_etcd_3_5_goes_back_and_forth() {
    ping_pong("3.5", &["3.5", "3.6"]);
}

#[test]
fn a_directory_of_etcd_3_6_goes_back_and_forth() {
    ping_pong("3.6", &["3.6", "3.7"]);
}

#[test]
fn a_directory_of_etcd_3_7_goes_back_and_forth() {
    ping_pong("3.7", &["3.7", "3.7"]);
}

#[test]
fn a_directory_that_we_founded_is_taken_over() {
    let Some(real) = real() else { return };
    for (compat, version) in
        [(etcdkit::store::open::Compat::V3_6, "3.6"), (etcdkit::store::open::Compat::V3_7, "3.7")]
    {
        let sandbox = Sandbox::new();
        let dir = sandbox.path("d");
        let options = as_member(Disk::default()).compat(compat);
        let store = Store::open(&dir, options).expect("a new directory");
        ask(&store, &Ask::put("first", b"put")).expect("a put");
        store.close().expect("a close");
        drop(store);
        let marks = ours_until_killed(&dir, 3);
        let told = both_say(&real, &sandbox, version, "founded");
        holds(version, &told, &marks);
        let etcd = real.etcd(version, &start(dir.clone()));
        same(version, &truth(&etcd), &told);
        etcd.stop();
        accepted(&real, &database(&dir));
    }
}
