//! `snapshot save` from real clusters: while they are written to, while members die, over TLS and
//! as a user, through a proxy that does harm. What it saves is held against etcdctl, etcdutl, and
//! what the cluster itself holds at that revision.

use std::fs;
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::boots::{content, key};
use crate::cluster_harness::{APP, Cluster, Plan};
use crate::programs::{Real, Start, real};
use crate::support::{Ran, Sandbox};

/// Saves as a report.
#[track_caller]
fn saved(cluster: &Cluster<'_>, sandbox: &Sandbox, words: &[&str]) -> Value {
    let words = [&["snapshot", "save", "-w", "json"], words].concat();
    cluster.kit(sandbox, &words).expect(0, &[]).json()
}

/// Restores with a program of etcd's and with ours, and serves both; returns what each holds.
#[track_caller]
fn restored(real: &Real, sandbox: &Sandbox, version: &str, file: &str) -> [Value; 2] {
    let file = sandbox.text(file);
    let [theirs, ours] = ["theirs", "ours"].map(|name| format!("{name}-{version}"));
    let words = ["snapshot", "restore", &file, "--data-dir", &sandbox.text(&theirs)];
    real.ok(&format!("etcdutl-{version}"), &words);
    let words = ["snapshot", "restore", &file, "--data-dir", &ours, "--no-bump", "--name", "r"];
    let identity = ["--initial-cluster", "r=http://127.0.0.1:9", "--initial-advertise-peer-urls"];
    sandbox.kit(&[&words[..], &identity, &["http://127.0.0.1:9"]].concat()).expect(0, &[]);
    [(theirs, "default"), (ours, "r")].map(|(data_dir, name)| {
        let force = ["--force-new-cluster"];
        let data_dir = sandbox.path(&data_dir);
        let start = Start { data_dir, name, more: &force, ..Start::default() };
        real.etcd(version, &start).truth()
    })
}

/// Waits until a process has written to a file whose name is a temporary's.
fn until_streaming(sandbox: &Sandbox, bytes: u64) {
    let began = Instant::now();
    let is_there = || {
        fs::read_dir(sandbox.path(".")).unwrap().flatten().any(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name.contains(".db.etcdkit-") && entry.metadata().is_ok_and(|meta| meta.len() >= bytes)
        })
    };
    while !is_there() {
        assert!(began.elapsed() < Duration::from_secs(30), "no stream begins");
        sleep(Duration::from_millis(2));
    }
}

/// Puts large values, so that a snapshot is worth cutting.
fn fill(cluster: &Cluster<'_>) {
    let value = "v".repeat(100_000);
    for number in 0..40 {
        cluster.ctl(&["put", &format!("/app/large-{number}"), &value]).expect(0, &["OK"]);
    }
}

#[test]
fn what_is_saved_under_load_verifies_restores_and_equals_a_read_at_its_revision() {
    let Some(real) = real() else { return };
    for version in ["3.5", "3.6", "3.7"] {
        let cluster = Plan::new(version).start(&real);
        let sandbox = Sandbox::new();
        for number in 0..20 {
            let key = format!("/app/k{}", number % 7);
            cluster.ctl(&["put", &key, &format!("v{number}")]).expect(0, &["OK"]);
        }
        cluster.ctl(&["compaction", "12"]).expect(0, &[]);
        let load = cluster.load("/app/load");
        sleep(Duration::from_millis(500));
        let mut last = 0;
        for at in 0..3 {
            let file = format!("{at}.db");
            let report = saved(&cluster, &sandbox, &[&file]);
            let revision = report["revision"].as_i64().unwrap();
            assert!(revision > last && revision >= report["revision_needed"].as_i64().unwrap());
            last = revision;
            assert_eq!(report["verified"], "full");
            assert_eq!(report["hashkv"]["verdict"], "equal", "{version}: {report}");
            sandbox.kit(&["snapshot", "verify", &file]).expect(0, &["good"]);
        }
        let acknowledged = load.stop();
        let status = ["snapshot", "status", &sandbox.text("2.db"), "-w", "json"];
        let status = real.ok(&format!("etcdutl-{version}"), &status).json();
        assert_eq!(status["revision"], last);
        let note: Value =
            serde_json::from_slice(&fs::read(sandbox.path("2.db.json")).unwrap()).unwrap();
        assert_eq!(note["revision"], last);

        // Every key as the cluster itself has it at that revision.
        let rev = format!("--rev={last}");
        let read = ["get", "", "--prefix", &rev, "-w", "json"];
        let read = cluster.ctl(&read).expect(0, &[]).json();
        let [theirs, ours] = restored(&real, &sandbox, version, "2.db");
        assert_eq!(content(&theirs)["keys"], content(&ours)["keys"], "{version}");
        let mut want: Vec<Value> = read["kvs"].as_array().unwrap().iter().map(key).collect();
        want.sort_by_key(|key| key["key_hex"].to_string());
        assert_eq!(ours["keys"].as_array(), Some(&want), "{version}");
        assert!(acknowledged.len() > 3, "{version}: {}", acknowledged.len());
    }
}

#[test]
fn a_member_that_dies_or_stands_still_is_left_for_another() {
    let Some(real) = real() else { return };
    for version in ["3.5", "3.7"] {
        let mut cluster = Plan::new(version).members(3).proxied(1).start(&real);
        let sandbox = Sandbox::new();
        fill(&cluster);
        // The proxied one is a follower and comes first: the order is the endpoints'.
        if cluster.leader() == 1 {
            let heir = cluster.status(0).expect("a status")["header"]["member_id"].as_u64();
            let heir = format!("{:x}", heir.expect("an id"));
            cluster.ctl(&["move-leader", &heir]).expect(0, &[]);
            while cluster.leader() == 1 {
                sleep(Duration::from_millis(50));
            }
        }
        let others: Vec<usize> = (0..3).filter(|at| *at != 1).collect();
        let order = [1, others[0], others[1]].map(|at| cluster.endpoint(at)).join(",");
        let direct: Vec<String> = others.iter().map(|at| cluster.endpoint(*at)).collect();
        let save = |file: &str| {
            let words = ["snapshot", "save", file, "-w", "json", "--idle-timeout", "2s"];
            cluster.kit_as(&sandbox, None, &order, &words).expect(0, &[]).json()
        };
        assert_eq!(save("plain.db")["endpoint"], cluster.endpoint(1));
        cluster.proxy().set(|harm| harm.cut_after = Some(1_000_000));
        let report = save("cut.db");
        assert!(direct.contains(&report["endpoint"].as_str().unwrap().to_owned()), "{report}");
        assert_eq!(report["failed"].as_array().map(Vec::len), Some(1), "{report}");
        cluster.proxy().set(|harm| {
            harm.cut_after = None;
            harm.flip_at = Some(1_500_000);
        });
        let report = save("flipped.db");
        assert_ne!(report["endpoint"], cluster.endpoint(1), "{report}");
        cluster.proxy().set(|harm| {
            harm.flip_at = None;
            harm.half_close_after = Some(1_000_000);
        });
        assert_ne!(save("half.db")["endpoint"], cluster.endpoint(1));
        cluster.proxy().set(|harm| harm.half_close_after = None);
        // One that is down is passed over; a majority is left.
        let down = others[1];
        cluster.kill(down);
        let words = ["snapshot", "save", "down.db", "-w", "json"];
        let report = cluster.kit(&sandbox, &words).expect(0, &[]).json();
        assert_eq!(report["passed_over"].as_array().map(Vec::len), Some(1), "{report}");
        // Without a majority it is refused, and says which flag saves all the same.
        cluster.kill(1);
        let words = ["snapshot", "save", "alone.db"];
        cluster.kit(&sandbox, &words).expect(4, &["--without-quorum"]);
        assert!(!sandbox.exists("alone.db") && !sandbox.exists("alone.db.json"));
        let words = ["snapshot", "save", "alone.db", "--without-quorum"];
        cluster.kit(&sandbox, &words).expect(0, &["NO MAJORITY"]);
        sandbox.kit(&["snapshot", "verify", "alone.db"]).expect(0, &["good"]);
    }
}

#[test]
fn a_server_that_is_killed_while_it_sends_is_no_success() {
    let Some(real) = real() else { return };
    for version in ["3.5", "3.6", "3.7"] {
        let mut cluster = Plan::new(version).proxied(0).start(&real);
        let sandbox = Sandbox::new();
        fill(&cluster);
        cluster.proxy().set(|harm| harm.bytes_per_second = Some(1_000_000));
        let start = |words: &[&str]| {
            let mut command = sandbox.command();
            command.args(["snapshot", "save", "out.db", "--endpoints", &cluster.endpoint(0)]);
            command.args(words).stdin(Stdio::null());
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let running = start(&[]);
        until_streaming(&sandbox, 500_000);
        let stalled = start(&["--idle-timeout", "1s", "--no-hashkv"]);
        sleep(Duration::from_millis(500));
        cluster.pause(0);
        Ran::wait("a save of a member that stands still", stalled).expect(4, &["within 1 s"]);
        cluster.resume(0);
        cluster.kill(0);
        Ran::wait("a save of a member that dies", running).expect(4, &[]);
        assert_eq!(sandbox.names("."), ["tmp"], "etcd {version}");
        assert_eq!(sandbox.names("tmp"), [""; 0], "etcd {version}");
    }
}

#[test]
fn over_tls_and_as_a_user_as_cron_runs_it() {
    let Some(real) = real() else { return };
    for version in ["3.5", "3.6", "3.7"] {
        let cluster = Plan::new(version).members(3).tls().auth().start(&real);
        let sandbox = Sandbox::new();
        let endpoints = cluster.endpoints();
        let words = ["snapshot", "save", "out.db"];
        cluster.kit_as(&sandbox, Some(APP), &endpoints, &words).expect(5, &["root"]);
        assert_eq!(sandbox.names("."), ["tmp"]);
        let flags = cluster.flags().join(" ");
        let script = format!(
            "umask 0; env -i ETCDCTL_USER=root ETCDCTL_PASSWORD=rootpw \"$ETCDKIT\" snapshot save \
             'etcd-{{time}}.db' --audit-log tmp/audit --endpoints {endpoints} {flags} \
             --keep-last 2 --metrics-file tmp/etcd.prom <&- >&- 2>tmp/err"
        );
        for _ in 0..3 {
            sandbox.sh(&script).expect(0, &[]);
            sleep(Duration::from_millis(1100));
        }
        let names = sandbox.names(".");
        assert_eq!(names.len(), 5, "two, their notes, tmp: {names:?}");
        let said = fs::read_to_string(sandbox.path("tmp/err")).unwrap();
        assert!(!said.contains("rootpw"), "{said}");
        let figures = fs::read_to_string(sandbox.path("tmp/etcd.prom")).unwrap();
        assert!(figures.contains("etcdkit_backup_last_run_success 1\n"), "{figures}");
        let file = names.iter().find(|name| name.ends_with("Z.db")).unwrap();
        sandbox.kit(&["snapshot", "verify", file]).expect(0, &["good"]);
    }
}
