//! Several members restored host by host, and revisions that never come back.

use std::time::Duration;

use serde_json::Value;

use crate::boots::content;
use crate::equals::{accepted, database};
use crate::programs::{
    Etcd, Real, Refusal, Start, free_ports, real, shell_words, until, with_flag,
};
use crate::support::{Ran, Rows, Sandbox, member, snapshot, unzip};

const NAMES: [&str; 3] = ["m1", "m2", "m3"];

/// Runs the commands that a refusal printed, one a host; only the data directory is another for
/// each, since all hosts are this one. Returns the reports in the order of [`NAMES`].
fn run_printed_commands(real: &Real, sandbox: &Sandbox, refusal: &Ran) -> Vec<Value> {
    let error = refusal.error();
    assert_eq!(error["code"], 7, "{refusal}");
    let hints = error["hint"].as_str().expect("hints").lines();
    let printed: Vec<(&str, &str)> =
        hints.filter_map(|hint| hint.strip_prefix("on the host of ")?.split_once(": ")).collect();
    assert_eq!(printed.iter().map(|(name, _)| *name).collect::<Vec<_>>(), NAMES, "{refusal}");
    let run = |(name, line): &(&str, &str)| {
        let command = with_flag(&shell_words(line), "--data-dir", &sandbox.text(name));
        assert_eq!(command[0], "etcdkit", "{line}");
        let words: Vec<&str> = command[1..].iter().map(String::as_str).collect();
        let report = sandbox.kit_json(&words);
        accepted(real, &database(&sandbox.path(name)));
        report
    };
    printed.iter().map(run).collect()
}

/// Starts three restored members; `None` where somebody took one of the ports meanwhile.
fn start_three<'a>(
    real: &'a Real,
    sandbox: &Sandbox,
    version: &str,
    peers: &[String; 3],
) -> Option<Vec<Etcd<'a>>> {
    let mut all: Vec<Etcd<'_>> = NAMES
        .iter()
        .zip(peers)
        .map(|(name, peer)| {
            let data_dir = sandbox.path(name);
            let peer = Some(peer.clone());
            real.spawn(version, &Start { data_dir, name, peer, more: &[] })
        })
        .collect();
    for (name, etcd) in NAMES.iter().zip(&mut all) {
        match etcd.come_up() {
            Ok(()) => {}
            Err(Refusal::Busy) => return None,
            Err(refusal) => panic!("{name}: {refusal:?}"),
        }
    }
    Some(all)
}

/// Restores three members by the printed commands, starts them, and looks whether they are one
/// cluster.
fn three_members(
    real: &Real,
    version: &str,
    keys: usize,
    refuse: &dyn Fn(&Sandbox, &[String; 3]) -> Ran,
) {
    let (_sandbox, reports, all) = (0..3)
        .find_map(|_| {
            let peers = free_ports::<3>().map(|port| format!("http://127.0.0.1:{port}"));
            let sandbox = Sandbox::new();
            let reports = run_printed_commands(real, &sandbox, &refuse(&sandbox, &peers));
            let all = start_three(real, &sandbox, version, &peers)?;
            Some((sandbox, reports, all))
        })
        .expect("three free ports in one of three tries");
    for report in &reports[1..] {
        assert_eq!(report["cluster_id"], reports[0]["cluster_id"]);
        assert_eq!(report["members"], reports[0]["members"]);
        assert_eq!(report["revision"]["new"], reports[0]["revision"]["new"]);
    }
    until("all three are healthy", Duration::from_secs(30), || {
        let ran = all[0].ctl(&["endpoint", "health", "--cluster"]);
        (ran.code == 0).then_some(())
    });
    let health = all[0].ctl(&["endpoint", "health", "--cluster"]).expect(0, &[]);
    assert_eq!(health.stdout.matches("is healthy").count(), 3, "{health}");

    all[1].ctl(&["put", "/through-the-second", "seen"]).expect(0, &["OK"]);
    let truths: Vec<Value> = all.iter().map(Etcd::truth).collect();
    let mut ids: Vec<&str> =
        reports.iter().map(|report| report["member_id"].as_str().expect("an id")).collect();
    ids.sort_unstable();
    for (truth, report) in truths.iter().zip(&reports) {
        assert_eq!(truth["member_id"], report["member_id"]);
        assert_eq!(truth["cluster_id"], report["cluster_id"]);
        let mut members: Vec<&str> = truth["members"]
            .as_array()
            .expect("members")
            .iter()
            .map(|member| member["id"].as_str().expect("an id"))
            .collect();
        members.sort_unstable();
        assert_eq!(members, ids);
        assert_eq!(content(truth), content(&truths[0]));
        assert_eq!(truth["keys"].as_array().map(Vec::len), Some(keys + 1));
        let new = report["revision"]["new"].as_i64().expect("a revision");
        assert_eq!(truth["revision"], new + 1);
        assert_eq!(truth["status"]["leader"], truths[0]["status"]["leader"]);
    }
    for etcd in &all {
        let ran = etcd.ctl(&["get", "/through-the-second", "--print-value-only"]);
        ran.expect(0, &["seen"]);
    }
    // The hashes agree once the compaction that a bump schedules is through on all.
    until("the members' hashes agree", Duration::from_secs(20), || {
        let hashes: Vec<Value> = all.iter().map(|etcd| etcd.truth()["hashkv"].clone()).collect();
        hashes.iter().all(|hash| hash == &hashes[0]).then_some(())
    });
}

#[test]
fn the_printed_commands_make_one_healthy_cluster() {
    let Some(real) = real() else { return };
    three_members(&real, "3.6", 60, &|sandbox, peers| {
        sandbox.write("s.db", &snapshot("3.6"));
        let named: Vec<_> = NAMES.iter().zip(peers).map(|(n, url)| format!("{n}={url}")).collect();
        let cluster = named.join(",");
        let words = ["-w", "json", "snapshot", "restore", "s.db", "--data-dir", "here"];
        let flags = ["--name", "m2", "--initial-cluster", &cluster];
        refused(sandbox, &[&words[..], &flags].concat())
    });
}

#[test]
fn a_snapshot_of_three_members_names_the_commands_by_itself() {
    let Some(real) = real() else { return };
    let kubernetes = unzip("k8s-1.34/before-incident.db.gz");
    three_members(&real, "3.7", 249, &|sandbox, peers| {
        let members = [0, 1, 2].map(|i| member(0x1000 + i as u64, NAMES[i], &peers[i]));
        sandbox.write("s.db", &Rows::read(&kubernetes).members(&members).snapshot());
        let words = ["-w", "json", "snapshot", "restore", "s.db", "--data-dir", "here"];
        refused(sandbox, &words)
    });
}

/// Runs a restore that must be refused and leave nothing.
fn refused(sandbox: &Sandbox, words: &[&str]) -> Ran {
    let ran = sandbox.kit(words);
    assert_eq!(ran.code, 7, "{ran}");
    assert!(!sandbox.exists("here"), "{ran}");
    ran
}

#[test]
fn a_bump_cancels_old_watches_and_revisions_never_come_back() {
    let Some(real) = real() else { return };
    for (version, bytes, flags) in [
        ("3.5", snapshot("3.5"), &["--mark-compacted"][..]),
        ("3.6", unzip("k8s-1.34/before-incident.db.gz"), &[][..]),
        ("3.7", snapshot("3.7"), &["--newest-revision", "5000"][..]),
    ] {
        let sandbox = Sandbox::with(&bytes);
        let mut reached = 0;
        for data_dir in ["first", "second"] {
            let words = ["snapshot", "restore", "s.db", "--data-dir", data_dir];
            let report = sandbox.kit_json(&[&words[..], flags].concat());
            let revision = &report["revision"];
            let (old, new) = (revision["old"].as_i64().unwrap(), revision["new"].as_i64().unwrap());
            assert!(new > reached, "{version}: {new} after {reached}");
            assert!(new >= old + 1_000_000_000, "{version}: {revision}");
            let name = report["name"].as_str().expect("a name");
            let data_dir = sandbox.path(data_dir);
            let etcd = real.etcd(version, &Start { data_dir, name, ..Start::default() });
            assert_eq!(etcd.truth()["revision"], new, "{version}");
            for seen in [old, old - 1, new - 1] {
                let seen = seen.to_string();
                let watch = ["watchprobe", "--endpoint", &etcd.endpoint, "--key=/", "--prefix"];
                let probe = real.oracle(&[&watch[..], &["--rev", &seen]].concat());
                assert_eq!(probe["canceled"], true, "{version}: {probe}");
                assert_eq!(probe["compact_revision"], new, "{version}: {probe}");
                let get = etcd.ctl(&["get", "/", "--prefix", "--rev", &seen]);
                assert!(get.code != 0 && get.stderr.contains("compacted"), "{version}: {get}");
            }
            for i in 0..30 {
                etcd.ctl(&["put", "/new", &i.to_string()]).expect(0, &["OK"]);
            }
            until("the scheduled compaction is through", Duration::from_secs(20), || {
                let hashkv = etcd.truth()["hashkv"].clone();
                (hashkv["compact_revision"] == new).then_some(())
            });
            reached = etcd.truth()["revision"].as_i64().unwrap();
            assert_eq!(reached, new + 30, "{version}");
        }
    }
}
