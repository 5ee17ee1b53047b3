//! A killed etcd's directory: what we make of its log is what the same etcd makes of it when it
//! starts again.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use etcdkit::etcd::record::KeyValue;
use etcdkit::etcd::revision::RevisionKey;
use etcdkit::etcd::rows::decode_compact_revision;

use crate::equals::accepted;
use crate::programs::{Etcd, Real, Start, bounded, real};
use crate::support::{Bucket, Rows, Sandbox, hex, picture};

/// Commits are an hour apart, but for those that are forced: a row that is deleted forces one.
pub(crate) const NEVER_COMMIT: [&str; 3] = [
    "--backend-batch-interval=1h",
    "--backend-batch-limit=10000000",
    // The port is another one after the restart, and must not make a difference.
    "--advertise-client-urls=http://127.0.0.1:1",
];

pub(crate) fn rows_of(path: &Path) -> Rows {
    Rows::read(&fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

/// The rows of bucket `key` that a finished compaction leaves.
pub(crate) fn compacted(rows: &Rows) -> Bucket {
    let scheduled = rows.get("meta", b"scheduledCompactRev");
    let at = scheduled.map_or(-1, |row| decode_compact_revision(row).unwrap());
    let mut kept = Bucket::new();
    let mut older = std::collections::BTreeMap::new();
    for (key, value) in &rows.buckets[&vec![b"key".to_vec()]] {
        let revision = RevisionKey::decode(key).unwrap();
        if revision.revision.main > at {
            kept.insert(key.clone(), value.clone());
        } else {
            let user_key = KeyValue::decode(value).unwrap().key.to_vec();
            older.insert(user_key, (revision, key.clone(), value.clone()));
        }
    }
    for (revision, key, value) in older.into_values() {
        // A deletion at the very revision may be left or not.
        if !revision.is_tombstone {
            kept.insert(key, value);
        }
    }
    kept
}

/// Holds our snapshot of a directory against what etcd has after starting on a copy of it: with the
/// database as it was killed, and with one from before everything, so that all of it is replayed.
fn same_as_restarted(real: &Real, sandbox: &Sandbox, version: &str, start: &Start<'_>) {
    same_tail(real, sandbox, version, start, "killed");
    fs::copy(sandbox.path("young"), sandbox.path("source/member/snap/db")).unwrap();
    let entries = same_tail(real, sandbox, version, start, "young");
    assert!(entries > 100, "etcd {version}: hardly anything is replayed");
}

fn same_tail(real: &Real, sandbox: &Sandbox, version: &str, start: &Start<'_>, name: &str) -> u64 {
    let dir = sandbox.path("source");
    let copy = sandbox.path(&format!("{name}-copy"));
    let status = Command::new("cp").arg("-a").arg(&dir).arg(&copy).status();
    assert!(status.expect("cp runs").success());
    let before = picture(&dir);
    let file = format!("{name}.db");
    let report = sandbox.kit_json(&["snapshot", "save", &file, "--from-data-dir", "source"]);
    assert_eq!(picture(&dir), before, "etcd {version}: the directory was changed");
    assert_eq!(report["log"]["counted"], "sole_voter");
    println!("etcd {version} {name}: {}", report["log"]);
    sandbox.kit(&["snapshot", "verify", &file]).expect(0, &["good"]);
    accepted(real, &sandbox.path(&file));

    let start = Start { data_dir: copy.clone(), ..start.clone() };
    let etcd = real.etcd(version, &start);
    // Such a read waits until everything before it was applied.
    etcd.ctl(&["get", "nothing"]).expect(0, &[]);
    etcd.stop();
    let (ours, theirs) = (rows_of(&sandbox.path(&file)), rows_of(&copy.join("member/snap/db")));
    for bucket in [
        "alarm",
        "auth",
        "authRoles",
        "authUsers",
        "cluster",
        "lease",
        "members",
        "members_removed",
    ] {
        let path = vec![bucket.as_bytes().to_vec()];
        assert_eq!(ours.buckets[&path], theirs.buckets[&path], "etcd {version}: bucket {bucket}");
    }
    for row in ["scheduledCompactRev", "confState"] {
        let (ours, theirs) = (ours.get("meta", row.as_bytes()), theirs.get("meta", row.as_bytes()));
        assert_eq!(ours, theirs, "etcd {version}: {row}");
    }
    let (ours, theirs) = (compacted(&ours), compacted(&theirs));
    let differ = |a: &Bucket, b: &Bucket| {
        let differ = a.iter().filter(|(key, value)| b.get(*key) != Some(value));
        differ.map(|(key, _)| hex(key)).collect::<Vec<_>>()
    };
    let none: [Vec<String>; 2] = [Vec::new(), Vec::new()];
    let found = [differ(&ours, &theirs), differ(&theirs, &ours)];
    assert_eq!(found, none, "etcd {version} {name}: rows of ours, rows of theirs");
    assert!(ours.len() > 20, "etcd {version}: hardly anything in it");
    report["log"]["entries"].as_u64().unwrap()
}

pub(crate) fn fill(real: &Real, etcd: &Etcd<'_>, words: &[&str]) {
    let mut command = real.program("oracle");
    command.args(["fill", "--endpoint", &etcd.endpoint]).args(words);
    bounded(&mut command, Duration::from_secs(180)).expect(0, &[]);
}

/// Fills a new etcd at random, kills it, and compares.
fn random_tail(real: &Real, version: &str, words: &[&str]) {
    let sandbox = Sandbox::new();
    let data_dir = sandbox.path("source");
    let start = Start { data_dir, name: "m1", more: &NEVER_COMMIT, ..Start::default() };
    let etcd = begin(real, &sandbox, version, &start);
    fill(real, &etcd, words);
    drop(etcd);
    same_as_restarted(real, &sandbox, version, &start);
}

/// Starts a new etcd, keeps its database as it is right after, and starts it again.
pub(crate) fn begin<'a>(
    real: &'a Real,
    sandbox: &Sandbox,
    version: &str,
    start: &Start<'_>,
) -> Etcd<'a> {
    real.etcd(version, start).stop();
    fs::copy(start.data_dir.join("member/snap/db"), sandbox.path("young")).unwrap();
    real.etcd(version, start)
}

/// What the server refuses when it applies it, and what is not about keys.
fn refused_tail(real: &Real, version: &str) {
    let sandbox = Sandbox::new();
    let data_dir = sandbox.path("source");
    let start = Start { data_dir, name: "m1", more: &NEVER_COMMIT, ..Start::default() };
    let etcd = begin(real, &sandbox, version, &start);
    fill(real, &etcd, &["--seed=5", "--keys=40", "--auth", "--no-compact"]);
    let ctl = |words: &str, code: i32, says: &[&str]| {
        let words: Vec<&str> = words.split(' ').collect();
        etcd.ctl(&words).expect(code, says);
    };
    ctl("put --lease=1234 unleased v", 1, &["requested lease not found"]);
    ctl("compaction 999999", 1, &["future revision"]);
    ctl("lease revoke 4321", 1, &["lease not found"]);
    ctl("member add learner --learner --peer-urls=http://127.0.0.1:2", 0, &[]);
    let members = etcd.ctl(&["member", "list"]);
    let learner = members.stdout.lines().find(|line| line.contains("127.0.0.1:2,")).unwrap();
    let learner = learner.split(',').next().unwrap().to_owned();
    ctl(&format!("member update {learner} --peer-urls=http://127.0.0.1:3"), 0, &[]);
    ctl("user grant-role nobody reader", 0, &[]);
    ctl("role revoke-permission dropbox /in", 0, &[]);
    ctl("role grant-permission dropbox write /in /io", 0, &[]);
    ctl("role delete writer", 0, &[]);
    ctl("user delete certificate", 0, &[]);
    ctl("auth enable", 0, &[]);
    ctl("--user bob:bob-password put /other v", 1, &["permission denied"]);
    ctl("--user bob:bob-password put /inn v", 0, &[]);
    ctl("--user bob:bob-password del /in /ip --range=true", 1, &[]);
    ctl("--user root:root-password put --prev-kv /inn w", 0, &[]);
    ctl("--user root:root-password user passwd bob --interactive=false", 0, &[]);
    ctl(&format!("--user root:root-password member remove {learner}"), 0, &[]);
    ctl("--user root:root-password auth disable", 0, &[]);
    fill(real, &etcd, &["--seed=6", "--keys=20"]);
    drop(etcd);
    same_as_restarted(real, &sandbox, version, &start);
}

/// The space is used up: puts are refused until the alarm is cleared.
fn alarmed_tail(real: &Real, version: &str) {
    let sandbox = Sandbox::new();
    let data_dir = sandbox.path("source");
    let mut more = NEVER_COMMIT.to_vec();
    more[0] = "--backend-batch-interval=50ms";
    more.push("--quota-backend-bytes=2000000");
    let start = Start { data_dir, name: "m1", more: &more, ..Start::default() };
    let etcd = begin(real, &sandbox, version, &start);
    fill(real, &etcd, &["--seed=7", "--keys=30", "--no-compact"]);
    let value = "x".repeat(100_000);
    let full = (0..60).any(|n| {
        let key = format!("/full/{n}");
        etcd.ctl(&["put", &key, &value]).stderr.contains("database space exceeded")
    });
    assert!(full, "etcd {version}: the quota is never reached");
    etcd.ctl(&["put", "/refused", "v"]).expect(1, &["database space exceeded"]);
    etcd.ctl(&["del", "/app", "--prefix"]).expect(0, &[]);
    drop(etcd);
    same_as_restarted(real, &sandbox, version, &start);
}

fn all_tails(version: &str) {
    let Some(real) = real() else { return };
    refused_tail(&real, version);
    alarmed_tail(&real, version);
    random_tail(&real, version, &["--seed=51", "--keys=200", "--auth", "--no-compact"]);
    random_tail(&real, version, &["--seed=52", "--keys=60", "--ops=600", "--big=2"]);
}

#[test]
fn tails_of_etcd_3_5() {
    all_tails("3.5");
}

#[test]
fn tails_of_etcd_3_6() {
    all_tails("3.6");
}

#[test]
fn tails_of_etcd_3_7() {
    all_tails("3.7");
}
