//! Databases that are filled at random: their figures are etcdutl's, and they survive a restore.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::boots::content;
use crate::equals::{accepted, database};
use crate::programs::{Etcd, Real, Start, bounded, real};
use crate::support::{Ran, Sandbox, picture};

/// The cells of the first row of a table that holds a word.
fn cells(ran: &Ran, word: &str) -> Vec<String> {
    let row = ran.stdout.lines().find(|line| line.contains(word));
    let row = row.unwrap_or_else(|| panic!("no row with {word}: {ran}"));
    let cells = row.split(['|', '\u{2502}']).map(|cell| cell.trim().to_owned());
    cells.filter(|cell| !cell.is_empty()).collect()
}

/// Holds the figures of a file in all four formats against etcdutl's; the file stays as it is.
fn same_figures(real: &Real, sandbox: &Sandbox, file: &Path) {
    let path = file.to_str().expect("a plain path");
    let before = picture(file);
    let kit = |format: &str| sandbox.kit(&["snapshot", "status", path, "-w", format]);
    let kit = |format: &str| kit(format).expect(0, &[]);
    let etcdutl =
        |format: &str| real.ok("etcdutl-3.7", &["snapshot", "status", path, "-w", format]);

    let (ours, theirs) = (kit("json").json(), etcdutl("json").json());
    for (key, value) in theirs.as_object().expect("an object") {
        assert_eq!(&ours[key], value, "{path}: {key}");
    }
    assert_eq!(theirs.as_object().map(serde_json::Map::len), Some(5));
    let older = real.ok("etcdutl-3.6", &["snapshot", "status", path, "-w", "json"]).json();
    assert_eq!(older, theirs, "{path}");
    assert_eq!(kit("simple").stdout, etcdutl("simple").stdout, "{path}");
    let fields = etcdutl("fields").stdout;
    assert_eq!(fields.lines().count(), 5, "{fields}");
    let ours = kit("fields").stdout;
    assert!(ours.starts_with(&fields), "{path}: {ours} does not begin as {fields}");
    let hash = format!("{:x}", theirs["hash"].as_u64().expect("a hash"));
    let (ours, theirs) = (kit("table"), etcdutl("table"));
    for word in ["HASH", &hash] {
        assert_eq!(cells(&ours, word), cells(&theirs, word), "{path}");
    }

    sandbox.kit(&["snapshot", "verify", "--skip-hash-check", path]).expect(0, &["good"]);
    sandbox.kit(&["snapshot", "verify", "--level", "quick", path]);
    assert_eq!(picture(file), before, "{path} was changed by a reader");
}

/// Puts many keys, thousands in a transaction, which is faster than one by one.
fn put_many(real: &Real, sandbox: &Sandbox, etcd: &Etcd<'_>, keys: usize) {
    const AT_ONCE: usize = 5000;
    for first in (0..keys).step_by(AT_ONCE) {
        let puts = (first..first + AT_ONCE).map(|i| {
            let value = "x".repeat(i * 7919 % 97);
            format!("put /many/{:06} {i}{value}\n", i * 7919 % keys)
        });
        let script = format!("\n{}\n\n", puts.collect::<String>());
        let script = sandbox.write("txn", script.as_bytes());
        let mut command = real.program("etcdctl-3.7");
        command.args(["--endpoints", &etcd.endpoint, "--command-timeout=60s", "txn"]);
        command.stdin(std::fs::File::open(script).expect("a script"));
        let ran = bounded(&mut command, Duration::from_secs(90)).expect(0, &["SUCCESS"]);
        assert_eq!(ran.stdout.matches("OK").count(), AT_ONCE, "{}", ran.stderr);
    }
}

/// Fills a new etcd, saves it, restores the snapshot on the same version: nothing is different.
fn round_trip(real: &Real, version: &str, many: usize, fill: &[&str]) {
    let sandbox = Sandbox::new();
    let more = ["--unsafe-no-fsync", "--max-txn-ops=10000"];
    let data_dir = sandbox.path("source");
    let start = Start { data_dir, name: "m1", more: &more, ..Start::default() };
    let etcd = real.etcd(version, &start);
    put_many(real, &sandbox, &etcd, many);
    let mut command = real.program("oracle");
    command.args(["fill", "--endpoint", &etcd.endpoint]).args(fill);
    bounded(&mut command, Duration::from_secs(180)).expect(0, &[]);
    let snapshot = sandbox.path("s.db");
    etcd.save(&snapshot);
    let before = etcd.truth();
    etcd.stop();

    same_figures(real, &sandbox, &snapshot);
    same_figures(real, &sandbox, &sandbox.path("source/member/snap/db"));
    let words = ["snapshot", "restore", "s.db", "--data-dir", "ours", "--no-bump"];
    sandbox.kit_json(&words);
    let restored = sandbox.path("ours");
    accepted(real, &database(&restored));
    same_figures(real, &sandbox, &database(&restored));

    let start = Start { data_dir: restored, name: "m1", ..Start::default() };
    let after = real.etcd(version, &start).truth();
    let (before, after) = (content(&before), content(&after));
    let count = |truth: &Value| truth["keys"].as_array().map_or(0, Vec::len);
    assert_eq!(count(&before), count(&after), "etcd {version} {fill:?}");
    assert!(before == after, "etcd {version} {fill:?}: the restored content differs");
    assert!(count(&before) > many + 20, "etcd {version} {fill:?}: hardly anything in it");
}

#[test]
fn random_databases_of_etcd_3_5() {
    let Some(real) = real() else { return };
    round_trip(&real, "3.5", 0, &["--seed=11", "--keys=300", "--auth"]);
    round_trip(&real, "3.5", 0, &["--seed=12", "--keys=50", "--big=6", "--no-compact"]);
}

#[test]
fn random_databases_of_etcd_3_6() {
    let Some(real) = real() else { return };
    round_trip(&real, "3.6", 0, &["--seed=21", "--keys=300", "--auth"]);
    round_trip(&real, "3.6", 0, &["--seed=22", "--keys=1000", "--big=6"]);
}

#[test]
fn random_databases_of_etcd_3_7() {
    let Some(real) = real() else { return };
    round_trip(&real, "3.7", 0, &["--seed=31", "--keys=300", "--auth", "--big=3"]);
    round_trip(&real, "3.7", 0, &["--seed=32", "--keys=40", "--ops=2000"]);
}

#[test]
fn a_random_database_of_100_000_keys() {
    let Some(real) = real() else { return };
    round_trip(&real, "3.7", 100_000, &["--seed=41", "--keys=1000", "--ops=1000"]);
}
