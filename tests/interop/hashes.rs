//! HashKV, defragmented directories, and compacted and sealed snapshots, against real servers.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::boots::copy_folder;
use crate::equals::{accepted, database};
use crate::programs::{Etcd, Real, Start, bounded, real};
use crate::support::Sandbox;

/// Revisions by what a server answers for them.
type Answers = BTreeMap<i64, Value>;

fn member(sandbox: &Sandbox, data_dir: &str) -> Start<'static> {
    Start { data_dir: sandbox.path(data_dir), name: "m1", ..Start::default() }
}

/// Fills a server at random; returns the revision then.
fn fill(real: &Real, etcd: &Etcd<'_>, seed: u32) -> i64 {
    let mut command = real.program("oracle");
    command.args(["fill", "--endpoint", &etcd.endpoint, "--no-compact"]);
    command.args([format!("--seed={seed}"), "--keys=40".into(), "--ops=300".into()]);
    let ran = bounded(&mut command, Duration::from_secs(120)).expect(0, &[]);
    ran.json()["revision"].as_i64().expect("a revision")
}

fn compact(etcd: &Etcd<'_>, revision: i64) {
    etcd.ctl(&["compaction", &revision.to_string(), "--physical"]).expect(0, &["compacted"]);
}

fn answers(etcd: &Etcd<'_>, revisions: impl Iterator<Item = i64>) -> Answers {
    let ask = |revision: i64| {
        let rev = format!("--rev={revision}");
        let ran = etcd.ctl(&["endpoint", "hashkv", &rev, "-w", "json"]).expect(0, &[]);
        (revision, ran.json()[0]["HashKV"].clone())
    };
    revisions.map(ask).collect()
}

#[track_caller]
fn same_answers(sandbox: &Sandbox, what: &str, path: &str, answers: &Answers) {
    for (revision, theirs) in answers {
        let rev = format!("--rev={revision}");
        let ours = sandbox.kit_json(&["hashkv", path, &rev]);
        assert_eq!(ours["hash"], theirs["hash"], "{what} at {revision}");
        let compact = &theirs["compact_revision"];
        assert_eq!(ours["compactRevision"], *compact, "{what} at {revision}");
    }
}

/// Revisions from a compaction on: the first ones, every few, and the last one.
fn sample(from: i64, to: i64) -> impl Iterator<Item = i64> {
    (from..=to).filter(move |at| *at < from + 8 || *at > to - 3 || at % 23 == 0)
}

fn hashes_of(version: &str, seed: u32) {
    let Some(real) = real() else { return };
    let sandbox = Sandbox::new();
    let start = member(&sandbox, "d");
    let etcd = real.etcd(version, &start);
    let first = fill(&real, &etcd, seed);
    let uncompacted = answers(&etcd, sample(2, first));
    etcd.stop();
    same_answers(&sandbox, &format!("etcd {version} before a compaction"), "d", &uncompacted);

    let etcd = real.etcd(version, &start);
    let at = first - 100;
    compact(&etcd, at);
    let last = fill(&real, &etcd, seed + 1);
    // A tombstone at the compaction revision, which not all versions keep.
    etcd.ctl(&["put", "/gone", "x"]).expect(0, &["OK"]);
    etcd.ctl(&["del", "/gone"]).expect(0, &["1"]);
    etcd.stop();
    // Started again, it has no sums of its compactions left.
    let etcd = real.etcd(version, &start);
    let once = answers(&etcd, sample(at, last + 2));
    etcd.stop();
    let what = format!("etcd {version} after a compaction at {at}");
    same_answers(&sandbox, &what, "d", &once);
    for (tool, must_work) in [("etcdutl-3.6", false), ("etcdutl-3.7", true)] {
        let copy = sandbox.path("copy.db");
        let mut compared = 0;
        for revision in [at, at + 1, last] {
            fs::copy(database(&start.data_dir), &copy).expect("a copy");
            let (path, rev) = (copy.to_str().expect("plain"), format!("--rev={revision}"));
            // 3.6 panics where a living key has a lease.
            let ran = real.run(tool, &["hashkv", path, &rev, "-w", "json"]);
            if ran.code == 0 {
                let ours = sandbox.kit_json(&["hashkv", "d", &rev]);
                assert_eq!(ours, ran.json(), "{what}: {tool} at {revision}");
                compared += 1;
            }
        }
        assert!(compared == 3 || !must_work, "{what}: {tool} answered {compared} times");
    }

    let etcd = real.etcd(version, &start);
    compact(&etcd, last + 2);
    etcd.stop();
    let etcd = real.etcd(version, &start);
    let newest = answers(&etcd, std::iter::once(last + 2));
    etcd.stop();
    let what = format!("etcd {version} compacted at its last tombstone");
    same_answers(&sandbox, &what, "d", &newest);
    defragmented(&real, &sandbox, version, &start, &newest);
}

/// A directory that was defragmented offline is sound, smaller, and serves the same.
fn defragmented(real: &Real, sandbox: &Sandbox, version: &str, start: &Start<'_>, want: &Answers) {
    let what = format!("etcd {version} defragmented");
    let etcd = real.etcd(version, start);
    let before = crate::boots::content(&etcd.truth());
    sandbox.kit(&["defrag", "--data-dir", "d"]).expect(8, &["in use by process"]);
    etcd.stop();
    let report = sandbox.kit_json(&["defrag", "--data-dir", "d"]);
    let size = |when: &str| report[when]["file_bytes"].as_u64().expect("a size");
    assert!(size("after") < size("before"), "{what}: {report}");
    accepted(real, &database(&start.data_dir));
    let etcd = real.etcd(version, start);
    assert_eq!(crate::boots::content(&etcd.truth()), before, "{what}");
    for (revision, answer) in answers(&etcd, want.keys().copied()) {
        for key in ["hash", "compact_revision"] {
            assert_eq!(answer[key], want[&revision][key], "{what} at {revision}");
        }
    }
    etcd.ctl(&["put", "/written-after", "x"]).expect(0, &["OK"]);
    etcd.stop();
}

#[test]
fn hashes_of_etcd_3_5() {
    hashes_of("3.5", 510);
}

#[test]
fn hashes_of_etcd_3_6() {
    hashes_of("3.6", 610);
}

#[test]
fn hashes_of_etcd_3_7() {
    hashes_of("3.7", 710);
}

/// What the library's own reader says of bucket `key`.
fn key_bucket(real: &Real, database: &Path) -> Value {
    let dump = real.oracle_lines(&["boltdump", database.to_str().expect("plain")]);
    let key = dump.into_iter().find(|line| line["path"][0] == "6b6579");
    key.expect("bucket key")
}

#[test]
fn a_compacted_snapshot_is_what_a_server_leaves_of_it() {
    let Some(real) = real() else { return };
    for (version, tool) in [("3.5", "etcdutl-3.5"), ("3.6", "etcdutl-3.6"), ("3.7", "etcdutl-3.7")]
    {
        let sandbox = Sandbox::new();
        let start = member(&sandbox, "d");
        let etcd = real.etcd(version, &start);
        let last = fill(&real, &etcd, 77);
        etcd.ctl(&["put", "/gone", "x"]).expect(0, &["OK"]);
        etcd.ctl(&["del", "/gone"]).expect(0, &["1"]);
        etcd.save(&sandbox.path("s.db"));
        etcd.stop();
        for at in [2, last / 2, last + 2] {
            let what = format!("etcd {version} at {at}");
            let theirs = format!("theirs-{at}");
            copy_folder(&start.data_dir, &sandbox.path(&theirs));
            let etcd = real.etcd(version, &member(&sandbox, &theirs));
            compact(&etcd, at);
            etcd.stop();
            let theirs = database(&sandbox.path(&theirs));

            let out = format!("out-{at}.db");
            let rev = at.to_string();
            sandbox.kit_json(&["snapshot", "compact", "s.db", "--rev", &rev, "-o", &out]);
            let (file, target) = (sandbox.text(&out), sandbox.text(&format!("r-{at}")));
            let words = ["snapshot", "restore", &file, "--data-dir", &target, "--name=m1"];
            real.ok(
                tool,
                &[
                    &words[..],
                    &[
                        "--initial-cluster=m1=http://127.0.0.1:2380",
                        "--initial-advertise-peer-urls=http://127.0.0.1:2380",
                    ],
                ]
                .concat(),
            );
            let ours = database(Path::new(&target));
            let (ours, theirs) = (key_bucket(&real, &ours), key_bucket(&real, &theirs));
            assert_eq!(ours["sha256"], theirs["sha256"], "{what}: {ours} {theirs}");
            assert_eq!(ours["keys"], theirs["keys"], "{what}");
        }
    }
}

#[test]
fn a_sealed_database_restores_with_etcdutl() {
    let Some(real) = real() else { return };
    for tool in ["etcdutl-3.5", "etcdutl-3.6", "etcdutl-3.7"] {
        let sandbox = Sandbox::new();
        let version = tool.trim_start_matches("etcdutl-");
        let etcd = real.etcd(version, &member(&sandbox, "d"));
        etcd.ctl(&["put", "/a", "1"]).expect(0, &["OK"]);
        etcd.stop();
        let bare = sandbox.text("d/member/snap/db");
        let target = sandbox.text("r");
        let refused = real.run(tool, &["snapshot", "restore", &bare, "--data-dir", &target]);
        assert_ne!(refused.code, 0, "{refused}");
        let _ = fs::remove_dir_all(&target);
        sandbox.kit_json(&["snapshot", "seal", &bare, "-o", "sealed.db"]);
        let sealed = sandbox.text("sealed.db");
        real.ok(tool, &["snapshot", "restore", &sealed, "--data-dir", &target]);
        accepted(&real, &database(Path::new(&target)));
    }
}
