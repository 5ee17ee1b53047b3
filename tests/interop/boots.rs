//! Restored directories on real etcds: those start that were said to start, and hold what was
//! saved.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::equals::{accepted, database, same_log, same_rows};
use crate::programs::{Real, Refusal, Start, real, shell_words, with_flag};
use crate::support::{
    Rows, Sandbox, VERSIONS, base64, fixture, hex, json_fixture, sha256, snapshot, unzip,
};

/// The versions of etcd that are built.
pub(crate) const ETCDS: [&str; 3] = ["3.5", "3.6", "3.7"];

/// A snapshot that a real etcd wrote, and what was known about it then.
pub(crate) struct Fixture {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// A Kubernetes API server wrote it.
    pub(crate) kubernetes: bool,
    told: Told,
}

/// What others said about the snapshot's content when it was saved.
enum Told {
    /// The answers of the live server.
    Server(String),
    /// The names of all keys.
    Names(Vec<String>),
    /// All keys with their revisions.
    Keys(Value),
}

/// Every snapshot among the fixtures.
pub(crate) fn fixtures() -> Vec<Fixture> {
    let mut all = Vec::new();
    for version in VERSIONS {
        let name = format!("etcd-{version}");
        let told = Told::Server(name.clone());
        all.push(Fixture { name, bytes: snapshot(version), kubernetes: false, told });
    }
    for name in ["before-incident", "after-incident"] {
        let names = String::from_utf8(fixture(&format!("k8s-1.34/{name}.keys.txt"))).unwrap();
        let told = Told::Names(names.lines().map(str::to_owned).collect());
        let bytes = unzip(&format!("k8s-1.34/{name}.db.gz"));
        all.push(Fixture { name: name.into(), bytes, kubernetes: true, told });
    }
    for name in ["fx-before", "fx-after"] {
        let told = json_fixture(&format!("kubernetes/snapshots/{name}.expected.json"));
        let bytes = unzip(&format!("kubernetes/snapshots/{name}.db.gz"));
        let told = Told::Keys(told["keys"].clone());
        all.push(Fixture { name: name.into(), bytes, kubernetes: true, told });
    }
    all
}

/// Puts what the server said into the oracle's shape.
pub(crate) fn key(kv: &Value) -> Value {
    let bytes = |name: &str| base64(kv[name].as_str().unwrap_or_default());
    let number = |name: &str| kv[name].as_i64().unwrap_or(0);
    json!({
        "key_hex": hex(&bytes("key")),
        "create_revision": number("create_revision"),
        "mod_revision": number("mod_revision"),
        "version": number("version"),
        "lease": number("lease"),
        "value_sha256": sha256(&bytes("value")),
    })
}

/// Holds a server's truth against what was known when the snapshot was saved.
fn holds_what_was_saved(fixture: &Fixture, truth: &Value) {
    let name = &fixture.name;
    let keys = truth["keys"].as_array().expect("keys");
    match &fixture.told {
        Told::Server(folder) => {
            let file = |name: &str| json_fixture(&format!("{folder}/{name}.json"));
            let told = file("keys");
            let mut want: Vec<_> = told["kvs"].as_array().expect("kvs").iter().map(key).collect();
            want.sort_by_key(|key| key["key_hex"].to_string());
            assert_eq!(keys, &want, "{name}");
            // The restore took name and peer URL from the snapshot.
            let (member, told) = (&truth["members"][0], &file("members")["members"][0]);
            assert_eq!(member["name"], told["name"], "{name}");
            assert_eq!(member["peer_urls"], told["peerURLs"], "{name}");
            let ids = |leases: &Value, id: &str| -> Vec<i64> {
                let leases = leases.as_array().into_iter().flatten();
                leases.map(|lease| lease[id].as_i64().expect("an id")).collect()
            };
            assert_eq!(ids(&truth["leases"], "id"), ids(&file("leases")["leases"], "id"), "{name}");
            for lease in truth["leases"].as_array().expect("leases") {
                let on_it = keys.iter().filter(|key| key["lease"] == lease["id"]);
                let on_it: Vec<_> = on_it.map(|key| key["key_hex"].clone()).collect();
                assert_eq!(lease["keys"], json!(on_it), "{name}");
                assert_eq!(lease["granted_ttl"], 86_400, "{name}");
            }
            let users = truth["users"].as_array().into_iter().flatten();
            let users: Vec<_> = users.map(|user| user["name"].clone()).collect();
            assert_eq!(json!(users), file("users")["users"], "{name}");
            let wanted = &file("role-reader")["perm"][0];
            let role = &truth["roles"][0];
            assert_eq!(role["name"], "reader", "{name}");
            let given = &role["permissions"][0];
            let want = |name: &str| hex(&base64(wanted[name].as_str().unwrap_or_default()));
            assert_eq!(given["key_hex"], want("key"), "{name}");
            assert_eq!(given["range_end_hex"], want("range_end"), "{name}");
        }
        Told::Names(names) => {
            let names: Vec<_> = names.iter().map(|name| hex(name.as_bytes())).collect();
            let held: Vec<_> = keys.iter().map(|key| key["key_hex"].as_str().unwrap()).collect();
            assert_eq!(held, names, "{name}");
        }
        Told::Keys(told) => {
            let told = told.as_array().expect("keys");
            assert_eq!(keys.len(), told.len(), "{name}");
            for (held, told) in keys.iter().zip(told) {
                assert_eq!(
                    held["key_hex"],
                    hex(told["key"].as_str().unwrap().as_bytes()),
                    "{name}"
                );
                for field in ["version", "create_revision", "mod_revision"] {
                    assert_eq!(held[field], told[field], "{name}: {held}");
                }
                let lease = format!("{:x}", held["lease"].as_u64().expect("an id"));
                assert_eq!(told["lease"], lease, "{name}");
            }
        }
    }
}

/// Everything of a truth that a restore must carry over.
pub(crate) fn content(truth: &Value) -> Value {
    let part = |name: &str| truth[name].clone();
    json!({
        "revision": part("revision"),
        "keys": part("keys"),
        "leases": part("leases"),
        "users": part("users"),
        "roles": part("roles"),
    })
}

/// Copies a folder with all that is in it.
pub(crate) fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).expect("a folder");
    for entry in fs::read_dir(from).expect("a folder") {
        let entry = entry.expect("an entry").path();
        let target = to.join(entry.file_name().expect("a name"));
        if entry.is_dir() {
            copy_folder(&entry, &target);
        } else {
            fs::copy(&entry, &target).expect("a copy");
        }
    }
}

/// Starts a restored directory on each etcd and holds what happens against the report.
/// Returns on how many it started.
fn boot_on_all(
    real: &Real,
    sandbox: &Sandbox,
    what: &str,
    report: &Value,
    mut check: impl FnMut(&str, &Value),
) -> usize {
    let restored = Path::new(report["data_dir"].as_str().expect("a folder"));
    let name = report["name"].as_str().expect("a name");
    let mut started = 0;
    for (version, boot) in ETCDS.iter().zip(report["boots_on"].as_array().expect("boots_on")) {
        let what = format!("{what} on etcd {version}");
        assert_eq!(boot["etcd"], **version, "{what}");
        let data_dir = sandbox.path(&format!("on-{version}"));
        let _ = fs::remove_dir_all(&data_dir);
        copy_folder(restored, &data_dir);
        let start = Start { data_dir, name, ..Start::default() };
        match (real.try_etcd(version, &start), boot["boots"].as_bool()) {
            (Ok(etcd), Some(true)) => {
                let truth = etcd.truth();
                assert_eq!(truth["revision"], report["revision"]["new"], "{what}");
                assert_eq!(truth["member_id"], report["member_id"], "{what}");
                assert_eq!(truth["cluster_id"], report["cluster_id"], "{what}");
                let members = truth["members"].as_array().expect("members");
                assert_eq!(members.len(), 1, "{what}");
                assert_eq!(members[0]["id"], report["member_id"], "{what}");
                assert_eq!(members[0]["name"], report["name"], "{what}");
                assert_eq!(members[0]["peer_urls"], report["members"][0]["peerURLs"], "{what}");
                check(version, &truth);
                etcd.ctl(&["put", "/written-after", "x"]).expect(0, &["OK"]);
                started += 1;
            }
            (Err(Refusal::Ended { code, log }), Some(false)) => {
                assert_ne!(code, 0, "{what}");
                let why = boot["why"].as_str().expect("a reason");
                let logged = if why.contains("storage version") {
                    "is not supported"
                } else {
                    "invalid downgrade"
                };
                assert!(log.contains(logged), "{what}: {why}, but the log says\n{log}");
            }
            (Ok(_), _) => panic!("{what}: starts, and the report says it does not: {boot}"),
            (Err(refusal), _) => panic!("{what}: the report says it starts: {refusal:?}"),
        }
    }
    started
}

#[test]
fn restored_snapshots_start_as_predicted_and_hold_what_was_saved() {
    let Some(real) = real() else { return };
    for fixture in fixtures() {
        let other = if fixture.kubernetes { "--no-bump" } else { "--mark-compacted" };
        for flags in [&[][..], &[other][..]] {
            let what = format!("{} {}", fixture.name, flags.join(" "));
            let sandbox = Sandbox::with(&fixture.bytes);
            let snapshot = sandbox.text("s.db");
            let words = ["snapshot", "restore", &snapshot, "--data-dir", "ours"];
            let report = sandbox.kit_json(&[&words[..], flags].concat());
            let ours = sandbox.path("ours");
            assert_eq!(report["data_dir"], sandbox.text("ours"));
            let bumped = fixture.kubernetes == flags.is_empty();
            assert_eq!(report["revision"]["bump"] != 0, bumped, "{what}");
            accepted(&real, &database(&ours));

            // The command that the report calls equivalent is, on real etcdutl.
            let line = report["equivalent"][0].as_str().expect("a command");
            let command = with_flag(&shell_words(line), "--data-dir", &sandbox.text("theirs"));
            assert_eq!(command[0], "etcdutl");
            let words: Vec<&str> = command[1..].iter().map(String::as_str).collect();
            real.ok("etcdutl-3.7", &words);
            let theirs = sandbox.path("theirs");
            same_rows(&real, &what, &database(&ours), &database(&theirs));
            same_log(&real, &what, &ours, &theirs);

            let name = report["name"].as_str().expect("a name");
            let start = Start { data_dir: theirs, name, ..Start::default() };
            let baseline = real.etcd("3.7", &start).truth();
            holds_what_was_saved(&fixture, &baseline);
            let started = boot_on_all(&real, &sandbox, &what, &report, |version, truth| {
                let what = format!("{what} on etcd {version}");
                assert_eq!(content(truth), content(&baseline), "{what}");
                if !bumped {
                    // A scheduled compaction runs meanwhile where it is bumped.
                    assert_eq!(truth["hashkv"], baseline["hashkv"], "{what}");
                }
            });
            assert_eq!(started, if fixture.name == "etcd-3.7" { 2 } else { 3 }, "{what}");
        }
    }
}

#[test]
fn versions_inside_decide_who_starts() {
    let Some(real) = real() else { return };
    let rows = Rows::read(&snapshot("3.6"));
    let pairs = [
        ("", ""),
        ("", "3.5.0"),
        ("", "3.7.0"),
        ("3.6.0", "3.5.0"),
        ("3.6.0", "3.7.0"),
        ("3.7.0", "3.6.0"),
    ];
    for (storage, cluster) in pairs {
        let mut rows = rows.clone();
        let rows_of = |rows: &mut Rows, bucket: &str, key: &str, value: &str| {
            let bucket = rows.buckets.get_mut(&vec![bucket.into()]).expect("a bucket");
            match value {
                "" => bucket.remove(key.as_bytes()),
                value => bucket.insert(key.into(), value.into()),
            };
        };
        rows_of(&mut rows, "meta", "storageVersion", storage);
        rows_of(&mut rows, "cluster", "clusterVersion", cluster);
        let sandbox = Sandbox::with(&rows.snapshot());
        let snapshot = sandbox.text("s.db");
        let report = sandbox.kit_json(&["snapshot", "restore", &snapshot, "--data-dir", "ours"]);
        let what = format!("storage version {storage:?}, cluster version {cluster:?}");
        boot_on_all(&real, &sandbox, &what, &report, |_, truth| {
            assert_eq!(truth["keys"].as_array().map(Vec::len), Some(60), "{what}");
        });
    }
}
