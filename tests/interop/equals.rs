//! A restore writes what etcdutl's restore writes: ids, rows, raft log, members.

use std::path::Path;

use serde_json::Value;

use crate::boots::fixtures;
use crate::programs::{Real, real};
use crate::support::Sandbox;

/// Every program that looks at a database finds nothing wrong with one that we wrote.
#[track_caller]
pub(crate) fn accepted(real: &Real, database: &Path) {
    let path = database.to_str().expect("a plain path");
    real.ok("bbolt", &["check", path]).expect(0, &["OK"]);
    for tool in ["etcdutl-3.6", "etcdutl-3.7"] {
        real.ok(tool, &["snapshot", "status", path, "-w", "json"]);
    }
}

/// Two databases have the same buckets with the same rows.
#[track_caller]
pub(crate) fn same_rows(real: &Real, what: &str, ours: &Path, theirs: &Path) {
    let dump = |path: &Path| real.oracle_lines(&["boltdump", path.to_str().expect("plain")]);
    let (ours, theirs) = (dump(ours), dump(theirs));
    assert!(theirs.len() >= 10, "{what}: etcd has ten buckets, not {}", theirs.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(ours, theirs, "{what}");
    }
    assert_eq!(ours.len(), theirs.len(), "{what}");
}

/// Two data directories have the same raft log and the same `.snap`, but for what no etcd reads.
#[track_caller]
pub(crate) fn same_log(real: &Real, what: &str, ours: &Path, theirs: &Path) {
    let dump = |path: &Path| {
        let mut dump = real.oracle(&["waldump", path.to_str().expect("plain")]);
        assert!(dump["error"].is_null(), "{what}: {dump}");
        assert!(dump["entries"].as_array().is_some_and(|all| !all.is_empty()), "{what}: {dump}");
        strip(&mut dump);
        dump
    };
    assert_eq!(dump(ours), dump(theirs), "{what}");
}

/// Takes out what versions of etcdutl write differently: explicit zeros in protobuf, and of the old
/// store its counters and its history.
fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for name in ["data_len", "data_sha256"] {
                map.remove(name);
            }
            for name in ["WatcherHub", "Stats", "CreatedIndex", "ModifiedIndex"] {
                map.remove(name);
            }
            map.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

/// The database of a data directory.
pub(crate) fn database(data_dir: &Path) -> std::path::PathBuf {
    data_dir.join("member/snap/db")
}

const ONE: &[&str] = &[
    "--name=solo",
    "--initial-cluster=solo=https://10.1.2.3:2380,solo=http://10.1.2.4:2380",
    "--initial-advertise-peer-urls=http://10.1.2.4:2380,https://10.1.2.3:2380",
    "--initial-cluster-token=a token",
];
const THREE: &[&str] = &[
    "--name=b",
    "--initial-cluster=c=http://10.0.0.3:2380,a=http://10.0.0.1:2380,\
     b=http://10.0.0.2:2380,b=https://10.0.1.2:2380",
    "--initial-advertise-peer-urls=https://10.0.1.2:2380,http://10.0.0.2:2380",
    "--initial-cluster-token=tok",
];
const BUMP: &[&str] = &["--bump-revision=1000000000", "--mark-compacted"];

#[test]
fn explicit_flags_give_what_etcdutl_gives() {
    let Some(real) = real() else { return };
    let mut compared = 0;
    for fixture in fixtures() {
        let sandbox = Sandbox::with(&fixture.bytes);
        let snapshot = sandbox.text("s.db");
        for (cluster, members) in [(ONE, 1), (THREE, 3)] {
            for (bump, ours_bump) in [(&[][..], &["--no-bump"][..]), (BUMP, BUMP)] {
                let base = format!("{} of {members} {}", fixture.name, bump.join(" "));
                let ours = format!("ours-{compared}");
                let words = [&["snapshot", "restore", &snapshot, "--data-dir", &ours], cluster];
                let report = sandbox.kit_json(&[&words.concat(), ours_bump].concat());
                let ours = sandbox.path(&ours);
                accepted(&real, &database(&ours));
                for tool in ["etcdutl-3.6", "etcdutl-3.7"] {
                    let what = format!("{base} against {tool}");
                    let theirs = sandbox.path(&format!("theirs-{compared}"));
                    let target = theirs.to_str().expect("plain");
                    let words =
                        [&["snapshot", "restore", &snapshot, "--data-dir", target], cluster];
                    real.ok(tool, &[&words.concat(), bump].concat());
                    same_rows(&real, &what, &database(&ours), &database(&theirs));
                    same_log(&real, &what, &ours, &theirs);
                    let dump = real.oracle(&["waldump", target]);
                    assert_eq!(report["member_id"], dump["node_id"], "{what}");
                    assert_eq!(report["cluster_id"], dump["cluster_id"], "{what}");
                    assert_eq!(report["members"].as_array().map(Vec::len), Some(members), "{what}");
                    compared += 1;
                }
            }
        }
    }
    assert!(compared >= 7 * 8, "{compared} restores were compared");
}
