//! `defrag` of running members: of clusters that are not there, and of our own store.

use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tonic::Code;

use crate::fake_etcd::upkeep::DefragEnd;
use crate::fake_etcd::{CORRUPT, FakeCluster, Fault, Member, NOSPACE};
use crate::support::{Ran, Sandbox};

const MIB: i64 = 1 << 20;
const LOCK: &str = "etcdkit/lock/maintenance";

/// A member of which half is free.
fn member(name: &str) -> Member {
    Member::new(name).revision(100).sizes(100 * MIB, 50 * MIB, 1 << 31)
}

fn three() -> FakeCluster {
    FakeCluster::start(["m1", "m2", "m3"].map(member))
}

/// Limits that only an endless wait passes, however busy the machine is.
const PATIENT: &str = "--command-timeout 60s --dial-timeout 60s";

fn line(cluster: &FakeCluster, line: &str) -> String {
    format!("defrag --endpoints {} {PATIENT} {line}", cluster.endpoints())
}

fn ask(cluster: &FakeCluster, flags: &str) -> Ran {
    Sandbox::new().run(&line(cluster, flags))
}

fn done(cluster: &FakeCluster) -> Vec<String> {
    cluster.upkeep().done.clone()
}

/// How often any method that changes something was called.
fn changes(cluster: &FakeCluster) -> usize {
    const CHANGING: [&str; 7] =
        ["Defragment", "MoveLeader", "Txn", "Put", "LeaseGrant", "Compact", "LeaseRevoke"];
    let calls = cluster.members.iter().flat_map(|fake| CHANGING.map(|method| fake.calls(method)));
    calls.sum()
}

fn of<'a>(report: &'a Value, name: &str) -> &'a Value {
    let members = report["members"].as_array().expect("members");
    members.iter().find(|member| member["name"] == name).unwrap_or_else(|| panic!("{report}"))
}

/// The records that runs in a sandbox have left.
fn audit(sandbox: &Sandbox) -> Vec<Value> {
    let text = fs::read_to_string(sandbox.path("audit.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
}

/// Runs it linked as another program.
#[track_caller]
fn run_as(sandbox: &Sandbox, program: &str, line: &str) -> Ran {
    let link = sandbox.path(program);
    if !link.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_etcdkit"), &link).expect("a link");
    }
    let mut command = std::process::Command::new(&link);
    command.env_clear().current_dir(sandbox.path(""));
    command.env("ETCDKIT_AUDIT_LOG", sandbox.path("audit.jsonl"));
    command.args(line.split_whitespace());
    Ran::of(line, &mut command)
}

#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(120), "waited too long: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Runs a command, sends a signal when it is so, and waits for its end.
#[track_caller]
fn signalled(sandbox: &Sandbox, line: &str, signal: Signal, is_so: impl Fn() -> bool) -> Ran {
    let (out, err) = (sandbox.path("out"), sandbox.path("err"));
    let mut command = sandbox.command();
    command.args(line.split_whitespace());
    command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
    let mut child = command.spawn().expect("the program");
    until("the moment", is_so);
    kill_process(Pid::from_child(&child), signal).expect("a signal");
    let status = child.wait().expect("its end");
    let read = |path: &PathBuf| fs::read_to_string(path).expect("its output");
    let code = status.code().unwrap_or(-1);
    Ran { line: line.to_owned(), code, stdout: read(&out), stderr: read(&err) }
}

#[test]
fn members_are_done_one_after_the_other_and_the_leader_last() {
    let cluster = three();
    cluster.members[1].set(|m| m.defrag.is_held = true);
    let (sandbox, flags) = (Sandbox::new(), line(&cluster, "-w json"));
    let ran = thread::scope(|scope| {
        let run = scope.spawn(|| sandbox.run(&flags));
        until("it is at work", || cluster.members[1].member().is_busy);
        // It is read all the while, and nobody else begins.
        let reads = cluster.members[1].calls("Range");
        until("reads", || cluster.members[1].calls("Range") > reads);
        assert_eq!(cluster.members[2].calls("Defragment"), 0);
        cluster.members[1].set(|m| m.defrag.is_held = false);
        run.join().unwrap().expect(0, &[])
    });
    let ids: Vec<u64> = cluster.members.iter().map(|fake| fake.member().id).collect();
    let (done, led) = (done(&cluster), cluster.upkeep().led.clone());
    assert_eq!(done, ["m2", "m3", "m1"]);
    // It is done as a follower.
    assert_eq!(led, ["m1", "m1", "m2"]);
    assert_eq!(cluster.upkeep().at_once, 1);
    assert_eq!(cluster.upkeep().moves, [(ids[0], ids[1])]);
    let report = ran.json();
    assert_eq!(report["stopped"], Value::Null);
    assert_eq!(report["gained_bytes"], 150 * MIB);
    assert_eq!(report["leader_moves"][0]["to"], format!("{:x}", ids[1]));
    let m2 = of(&report, "m2");
    assert_eq!((&m2["result"], &m2["role"]), (&"done".into(), &"follower".into()));
    assert_eq!(m2["before"]["db_bytes"], 100 * MIB);
    assert_eq!(m2["after"]["db_bytes"], 50 * MIB);
    assert!(m2["stall_ms"].as_u64() > Some(0) && m2["duration_ms"].as_u64() > Some(0), "{m2}");
    assert_eq!(of(&report, "m1")["role"], "follower");

    // The lock was given back, and what was done is recorded with the commands that do the same.
    assert!(cluster.upkeep().records.is_empty() && cluster.upkeep().leases.is_empty());
    let record = audit(&sandbox).pop().expect("a record");
    assert_eq!((&record["operation"], &record["result"]), (&"defrag".into(), &"ok".into()));
    let commands = record["equivalent"].as_array().unwrap();
    assert_eq!(commands.len(), 4, "{record}");
    let words = |at: usize| commands[at].as_str().unwrap();
    assert!(words(0).contains(&cluster.members[1].endpoint()) && words(0).ends_with(" defrag"));
    assert!(words(2).ends_with(&format!("move-leader {:x}", ids[1])), "{record}");
    assert_eq!(record["after"]["members"].as_array().unwrap().len(), 3);
    for command in commands {
        assert!(ran.stderr.contains(command.as_str().unwrap()), "{command} {}", ran.stderr);
    }

    // Run again, nothing is worth it, and nothing changes.
    let before = done.len();
    let ran = sandbox.run(&line(&cluster, "--exit-on-noop")).expect(10, &["skipped"]);
    assert!(ran.stdout.contains("it would give back 0 bytes"), "{ran}");
    assert_eq!(cluster.upkeep().done.len(), before);
    assert_eq!(audit(&sandbox).len(), 1);
}

#[test]
fn only_the_members_that_were_given_are_done_and_all_are_looked_at() {
    let cluster = three();
    let (second, sandbox) = (cluster.members[1].endpoint(), Sandbox::new());
    sandbox.run(&format!("defrag --endpoints {second} {PATIENT}")).expect(0, &["1 of 1 members"]);
    assert_eq!(done(&cluster), ["m2"]);
    cluster.set(|m| m.db_size = 100 * MIB);
    sandbox.run(&format!("defrag --endpoints {second} {PATIENT} --cluster")).expect(0, &[]);
    assert_eq!(done(&cluster), ["m2", "m2", "m3", "m1"]);
    cluster.members[2].set(|m| m.leader = 0);
    cluster.set(|m| m.db_size = 100 * MIB);
    let ran = sandbox.run(&format!("defrag --endpoints {second} {PATIENT}"));
    ran.expect(7, &["m3", "no member was defragmented", "etcdkit"]);
}

#[test]
fn a_dry_run_changes_nothing() {
    let cluster = three();
    let sandbox = Sandbox::new();
    let ran = sandbox
        .run(&line(&cluster, "--dry-run"))
        .expect(0, &["a dry run", "would give back 50 MiB"]);
    assert!(ran.stderr.contains("move-leader"), "{ran}");
    assert_eq!(changes(&cluster), 0);
    assert!(audit(&sandbox).is_empty());
    let report = sandbox.run(&line(&cluster, "--dry-run -w json")).expect(0, &[]).json();
    assert_eq!(report["dry_run"], true);
    assert_eq!(report["equivalent"].as_array().unwrap().len(), 4, "{report}");
    assert_eq!(of(&report, "m2")["result"], "left");
    assert_eq!(of(&report, "m2")["predicted_stall_ms"], 50 * MIB / 50_000);
}

#[test]
fn what_is_not_worth_it_is_skipped() {
    let cluster = three();
    cluster.members[1].set(|m| m.db_size_in_use = 95 * MIB);
    let ran = ask(&cluster, "").expect(0, &["it would give back 5242880 bytes, 5 % of its file"]);
    assert!(ran.stdout.contains("2 of 3 members"), "{ran}");
    assert_eq!(done(&cluster), ["m3", "m1"]);
    ask(&cluster, "--min-gain 10MiB").expect(0, &["0 of 3 members"]);
    ask(&cluster, "--min-gain 5%").expect(0, &["1 of 3 members"]);
    assert_eq!(done(&cluster), ["m3", "m1", "m2"]);
    ask(&cluster, "--force").expect(0, &["3 of 3 members"]);
    ask(&cluster, "--force --min-gain 5%").expect(2, &[]);
    ask(&cluster, "--min-gain 5XB").expect(2, &["is no number of bytes"]);
}

#[test]
fn a_rule_decides() {
    let cluster = three();
    cluster.members[2].set(|m| m.quota = 101 * MIB);
    let run = |rule: &str| {
        let line = line(&cluster, "-w json");
        let mut words: Vec<&str> = line.split_whitespace().collect();
        words.extend(["--rule", rule]);
        Sandbox::new().run_words(&words)
    };
    let report = run("dbQuotaUsage > 0.8 && dbSizeFree >= 50MiB").expect(0, &[]).json();
    assert_eq!(done(&cluster), ["m3"]);
    let why = of(&report, "m1")["why"].as_str().unwrap().to_owned();
    assert!(why.contains("the rule does not hold: dbQuotaUsage > 0.8"), "{why}");
    run("dbSize >").expect(2, &["a number or a name is missing"]);
    assert_eq!(done(&cluster), ["m3"]);
}

#[test]
fn a_rule_that_holds_for_ever_stalls_a_member_once() {
    let cluster = three();
    cluster.set(|m| m.quota = 60 * MIB);
    let run = |flags: &[&str]| {
        let line = line(&cluster, "");
        let mut words: Vec<&str> = line.split_whitespace().collect();
        words.extend(["--rule", "dbQuotaUsage > 0.8"]);
        words.extend(flags);
        Sandbox::new().run_words(&words)
    };
    run(&[]).expect(0, &["3 of 3 members"]);
    // They are full of living data: the next run of a cron job has nothing to give back.
    let ran = run(&["--exit-on-noop"]).expect(10, &["0 of 3 members"]);
    assert!(ran.stdout.contains("the rule would hold afterwards as well"), "{ran}");
    assert!(ran.stdout.contains("--force"), "{ran}");
    assert_eq!(done(&cluster).len(), 3);
    run(&["--force"]).expect(0, &["3 of 3 members"]);
    run(&["--min-gain", "0"]).expect(0, &["3 of 3 members"]);
    assert_eq!(done(&cluster).len(), 9);
}

#[test]
fn nospace_stops_nothing_and_corrupt_everything() {
    let cluster = three();
    let id = cluster.members[1].member().id;
    cluster.set(|m| m.alarms = vec![(id, NOSPACE)]);
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&line(&cluster, "")).expect(0, &["3 of 3 members"]);
    assert!(ran.stderr.contains("no lock can be taken in etcd while it is at its quota"), "{ran}");
    assert_eq!(done(&cluster).len(), 3);
    cluster.set(|m| m.alarms = vec![(id, CORRUPT)]);
    cluster.set(|m| m.db_size = 100 * MIB);
    for flags in ["", "--force --accept-unhealthy --accept-stall", "--dry-run"] {
        let ran = sandbox.run(&line(&cluster, flags));
        ran.expect(6, &["CORRUPT is raised for m2"]);
    }
    assert_eq!(done(&cluster).len(), 3);
}

#[test]
fn a_lock_file_stands_in_while_no_lock_can_be_taken() {
    let cluster = three();
    let id = cluster.members[0].member().id;
    cluster.set(|m| m.alarms = vec![(id, NOSPACE)]);
    cluster.members[1].set(|m| m.defrag.is_held = true);
    let sandbox = Sandbox::new();
    let (first, second) = (line(&cluster, ""), line(&cluster, ""));
    thread::scope(|scope| {
        let first = scope.spawn(|| sandbox.run(&first));
        until("the first is at work", || cluster.members[1].member().is_busy);
        let ran = sandbox.run(&second);
        ran.expect(8, &["another run on this host maintains this cluster: defrag by"]);
        // As soon as writes are accepted, it has the lock in etcd.
        cluster.set(|m| m.alarms.clear());
        until("the lock", || cluster.upkeep().records.contains_key(LOCK.as_bytes()));
        cluster.members[1].set(|m| m.defrag.is_held = false);
        first.join().unwrap().expect(0, &["3 of 3 members"]);
    });
    assert!(cluster.upkeep().records.is_empty());
}

#[test]
fn a_sick_member_stops_the_run() {
    let mut cluster = three();
    cluster.members[2].stop();
    ask(&cluster, "").expect(7, &["m3: connection refused", "no member was defragmented"]);
    let given = cluster.members[1].endpoint();
    let run = |flags: &str| {
        Sandbox::new().run(&format!("defrag --endpoints {given} --command-timeout 5s {flags}"))
    };
    run("").expect(7, &["no majority would answer without it", "--accept-unhealthy"]);
    assert_eq!(done(&cluster).len(), 0);
    run("--accept-unhealthy").expect(0, &["went on although members are unhealthy"]);
    assert_eq!(done(&cluster), ["m2"]);
}

#[test]
fn a_member_that_falls_ill_half_way_stops_the_rest() {
    let cluster = three();
    cluster.members[1].set(|m| m.defrag.is_held = true);
    let sandbox = Sandbox::new();
    let flags = line(&cluster, "-w json");
    let ran = thread::scope(|scope| {
        let run = scope.spawn(|| sandbox.run(&flags));
        until("it is at work", || cluster.members[1].member().is_busy);
        cluster.members[2].set(|m| m.leader = 0);
        cluster.members[1].set(|m| m.defrag.is_held = false);
        run.join().unwrap()
    });
    let ran = ran.expect(3, &["m3: it knows no leader", "1 of 3 members are defragmented"]);
    assert_eq!(done(&cluster), ["m2"]);
    let report = ran.json();
    assert_eq!(report["stopped"]["code"], 3);
    assert_eq!(of(&report, "m1")["result"], "left");
    // What is left is said, with the leadership's move.
    assert!(ran.stderr.contains("left: ") && ran.stderr.contains("move-leader"), "{ran}");
    let record = audit(&sandbox).pop().unwrap();
    assert!(record["result"].as_str().unwrap().contains("1 of 3 members"), "{record}");
}

#[test]
fn who_is_behind_is_waited_for_and_not_for_ever() {
    let cluster = three();
    cluster.members[2].set(|m| m.raft_applied_index = 0);
    cluster.set(|m| m.raft_index = 5000);
    for at in [0, 1] {
        cluster.members[at].set(|m| m.raft_applied_index = 5000);
    }
    let ran = ask(&cluster, "--catch-up 1s");
    ran.expect(4, &["m3 is 5000 entries behind, after 1 s still", "--catch-up"]);
    assert_eq!(done(&cluster).len(), 0);
    let flags = line(&cluster, "");
    thread::scope(|scope| {
        let run = scope.spawn(|| Sandbox::new().run(&flags));
        let looked = cluster.members[2].calls("Status");
        until("it looks again", || cluster.members[2].calls("Status") > looked + 2);
        assert_eq!(done(&cluster).len(), 0);
        cluster.members[2].set(|m| m.raft_applied_index = m.raft_index);
        let ran = run.join().unwrap().expect(0, &["3 of 3 members"]);
        assert!(ran.stderr.contains("waiting: m3 is 5000 entries behind"), "{ran}");
    });
}

#[test]
fn a_member_that_does_not_come_back_stops_the_rest() {
    let cluster = three();
    cluster.members[1].set(|m| m.defrag.is_held = true);
    let flags = line(&cluster, "--catch-up 1s");
    thread::scope(|scope| {
        let run = scope.spawn(|| Sandbox::new().run(&flags));
        until("it is at work", || cluster.members[1].member().is_busy);
        cluster.members[1].set(|m| (m.raft_applied_index, m.defrag.is_held) = (0, false));
        let ran = run.join().unwrap();
        ran.expect(3, &["m2 was defragmented and is not back after 1 s"]);
    });
    assert_eq!(done(&cluster), ["m2"]);
}

#[test]
fn a_broken_connection_is_looked_into() {
    let cluster = three();
    let breaks = |is_done| DefragEnd::Breaks { is_done };
    cluster.members[1].set(|m| m.defrag.end = breaks(true));
    cluster.members[1].set(|m| m.defrag.takes = Duration::from_millis(600));
    let ran = ask(&cluster, "").expect(0, &["3 of 3 members", "it is done all the same"]);
    assert!(ran.stderr.contains("looking at what became of it"), "{ran}");
    assert_eq!(done(&cluster), ["m2", "m3", "m1"]);

    cluster.set(|m| m.db_size = 100 * MIB);
    let leader = cluster.members[0].member().leader;
    let led = cluster.members.iter().position(|fake| fake.member().id == leader).unwrap();
    assert_eq!(led, 1);
    cluster.members[2].set(|m| m.defrag.end = breaks(false));
    let ran = ask(&cluster, "");
    ran.expect(3, &["m3 was not defragmented", "its database still has 104857600 bytes"]);
    assert_eq!(done(&cluster).len(), 4, "m1 was done before it, m2 not begun");
}

#[test]
fn what_a_member_says_is_its_last_word() {
    let cluster = three();
    let text = "no space left on device".to_owned();
    cluster.members[1].set(|m| m.defrag.end = DefragEnd::Refuses(Code::Internal, text.clone()));
    let ran = ask(&cluster, "").expect(1, &["m2 was not defragmented", "no space left on device"]);
    assert!(ran.stderr.contains("left: "), "{ran}");
    assert_eq!(done(&cluster).len(), 0);
}

#[test]
fn a_leader_that_stays_is_stalled_only_as_long_as_allowed() {
    let cluster = three();
    cluster.upkeep().refuses_moves =
        Some((Code::Unavailable, "etcdserver: request timed out, leader transfer took too long"));
    let ran = ask(&cluster, "").expect(0, &["m1 leads and stays the leader"]);
    assert!(ran.stdout.contains("leader transfer took too long"), "{ran}");
    assert_eq!(cluster.upkeep().led, ["m1", "m1", "m1"]);

    let huge = |m: &mut Member| (m.db_size, m.db_size_in_use) = (1 << 30, 1 << 29);
    cluster.members[0].set(huge);
    let ran = ask(&cluster, "").expect(7, &["m1 leads and stays the leader", "--accept-stall"]);
    assert!(ran.stderr.contains("10.7 s"), "{ran}");
    assert_eq!(done(&cluster).len(), 3);
    ask(&cluster, "--accept-stall").expect(0, &[]);
    assert_eq!(done(&cluster).len(), 4);
    cluster.upkeep().refuses_moves = None;
    cluster.members[0].set(huge);
    ask(&cluster, "--move-leader=false").expect(7, &["it was told to stay the leader"]);
    assert!(cluster.upkeep().moves.is_empty());
    ask(&cluster, "").expect(0, &[]);
    assert_eq!(cluster.upkeep().moves.len(), 1);
}

#[test]
fn a_sole_member_is_stalled_only_as_long_as_allowed() {
    let cluster = FakeCluster::start([member("m1").sizes(1 << 30, 1 << 29, 0)]);
    let ran = ask(&cluster, "").expect(7, &["no other voter can lead", "--accept-stall"]);
    assert!(ran.stderr.contains("no member was defragmented"), "{ran}");
    assert_eq!(cluster.members[0].calls("MoveLeader"), 0);
    ask(&cluster, "--accept-stall").expect(0, &["1 of 1 members"]);
}

#[test]
fn a_follower_without_which_there_is_no_majority_stalls_all() {
    let huge = |name| member(name).sizes(1 << 30, 1 << 29, 0);
    let cluster = FakeCluster::start(["m1", "m2"].map(huge));
    let ran = ask(&cluster, "").expect(7, &["m2 is one without which there is no majority"]);
    assert!(ran.stderr.contains("--accept-stall"), "{ran}");
    assert_eq!(changes(&cluster), 3, "the lock alone");
    ask(&cluster, "--accept-stall").expect(0, &["2 of 2 members"]);
}

#[test]
fn a_learner_is_left_out_and_said_so() {
    let members = [member("m1"), member("m2"), member("m3"), member("m4").learner()];
    let cluster = FakeCluster::start(members);
    let ran = ask(&cluster, "-w json").expect(0, &[]);
    let learner = of(&ran.json(), "m4").clone();
    assert_eq!((&learner["result"], &learner["role"]), (&"skipped".into(), &"learner".into()));
    assert_eq!(cluster.members[3].calls("Defragment"), 0);
    assert_eq!(done(&cluster), ["m2", "m3", "m1"]);
}

#[test]
fn two_runs_do_not_meet() {
    let cluster = three();
    cluster.upkeep().put(
        LOCK,
        r#"{"host":"n1","pid":7,"user":"root","operation":"reclaim","since":"2026-11-30T12:00Z"}"#,
        2,
    );
    let ran = ask(&cluster, "");
    ran.expect(
        8,
        &["another run maintains this cluster: reclaim by root on n1, process 7", "s left"],
    );
    assert_eq!(done(&cluster).len(), 0);
    let is_over = || {
        let ran = ask(&cluster, "");
        assert!([0, 8].contains(&ran.code), "{ran}");
        ran.code == 0
    };
    until("the lease is over", is_over);
    assert_eq!(done(&cluster).len(), 3);
    cluster.upkeep().put(LOCK, "\u{1b}[2J", 0);
    ask(&cluster, "").expect(8, &["a run that does not say who it is", "etcdctl", "del"]);
}

#[test]
fn a_lost_lock_stops_the_run_before_the_next_member() {
    let cluster = three();
    cluster.members[1].set(|m| m.defrag.is_held = true);
    let flags = line(&cluster, "");
    thread::scope(|scope| {
        let run = scope.spawn(|| Sandbox::new().run(&flags));
        until("it is at work", || cluster.members[1].member().is_busy);
        let lease = cluster.upkeep().leases.keys().next().copied().expect("a lease");
        cluster.upkeep().end_lease(lease);
        // A sign of life that comes after that finds it out; the next one would come later.
        let signs = || cluster.members.iter().map(|fake| fake.calls("LeaseKeepAlive")).sum();
        let before: usize = signs();
        until("a sign of life", || signs() > before);
        cluster.members[1].set(|m| m.defrag.is_held = false);
        let ran = run.join().unwrap();
        ran.expect(8, &["was lost: its lease has ended; another run may have begun"]);
    });
    assert_eq!(done(&cluster), ["m2"]);
}

#[test]
fn an_interruption_between_or_during_members_is_told() {
    let cluster = three();
    let sandbox = Sandbox::new();
    cluster.members[2].set(|m| m.defrag.is_held = true);
    let ran = signalled(&sandbox, &line(&cluster, ""), Signal::INT, || {
        cluster.members[2].member().is_busy
    });
    ran.expect(
        130,
        &["interrupted while m3 defragments, which goes on by itself; 1 of 3 members", "left: "],
    );
    assert_eq!(done(&cluster), ["m2"]);
    assert!(cluster.upkeep().records.is_empty(), "the lock was given back");
    let record = audit(&sandbox).pop().unwrap();
    assert!(record["result"].as_str().unwrap().starts_with("interrupted"), "{record}");
    cluster.members[2].set(|m| m.defrag.is_held = false);
    until("m3 is done by itself", || {
        done(&cluster).len() == 2 && !cluster.members[2].member().is_busy
    });
    ask(&cluster, "").expect(0, &["1 of 3 members"]);
    assert_eq!(done(&cluster), ["m2", "m3", "m1"]);
}

#[test]
fn a_killed_run_leaves_its_lock_until_the_lease_ends() {
    let cluster = three();
    let sandbox = Sandbox::new();
    cluster.members[1].set(|m| m.defrag.is_held = true);
    let ran = signalled(&sandbox, &line(&cluster, ""), Signal::KILL, || {
        cluster.members[1].member().is_busy
    });
    assert_eq!(ran.code, -1);
    assert!(cluster.members[1].member().is_busy && done(&cluster).is_empty(), "midway: {ran}");
    let ran = ask(&cluster, "").expect(8, &["defrag by ", "s left"]);
    assert!(ran.stderr.contains("until its lease ends"), "{ran}");
    let lease = *cluster.upkeep().leases.keys().next().unwrap();
    cluster.upkeep().end_lease(lease);
    cluster.members[1].set(|m| m.defrag.is_held = false);
    until("m2 is done by itself", || done(&cluster).len() == 1);
    ask(&cluster, "").expect(0, &["2 of 3 members"]);
    assert_eq!(done(&cluster), ["m2", "m3", "m1"]);
}

#[test]
fn who_may_not_is_told_before_anything_starts() {
    let cluster = FakeCluster::start(["m1", "m2", "m3"].map(|name| member(name).auth("r")));
    let ran = ask(&cluster, "--user app:app");
    ran.expect(5, &["the user app may not defragment members", "role root", "it has app"]);
    ask(&cluster, "").expect(5, &[]);
    assert_eq!(changes(&cluster), 0);
    ask(&cluster, "--user root:r").expect(0, &["3 of 3 members"]);
}

#[test]
fn known_faults_and_room_are_told() {
    let cluster = FakeCluster::start(["m1", "m2", "m3"].map(|name| member(name).version("3.5.5")));
    let ran = ask(&cluster, "").expect(0, &["etcd 3.5.5 may come to another revision"]);
    assert!(ran.stdout.contains("mended in 3.5.23"), "{ran}");
    assert!(ran.stdout.contains("the room on the disk was not seen of: m1, m2, m3"), "{ran}");
    let sandbox = Sandbox::new();
    sandbox.write("d/member/snap/db", b"x");
    sandbox.write("d/member/snap/db.tmp.123", b"x");
    cluster.set(|m| (m.db_size, m.db_size_in_use) = (i64::MAX, i64::MAX / 2));
    let only = cluster.members[2].endpoint();
    let run = |flags: &str| {
        sandbox.run(&format!(
            "defrag --endpoints {only} {PATIENT} --local-data-dir d --accept-stall {flags}"
        ))
    };
    let ran = run("").expect(7, &["bytes free, and a defragmentation of m3 may need"]);
    assert!(ran.stderr.contains("db.tmp.123"), "{ran}");
    run("--accept-full-disk").expect(0, &[]);
}

#[test]
fn as_etcdctl_it_says_what_etcdctl_says() {
    let cluster = three();
    let sandbox = Sandbox::new();
    let flags = format!("defrag --cluster --endpoints {}", cluster.members[0].endpoint());
    let ran = run_as(&sandbox, "etcdctl", &flags).expect(0, &[]);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{ran}");
    let second = cluster.members[1].endpoint();
    let begin = format!("Finished defragmenting etcd member[{second}]. took ");
    assert!(lines[0].starts_with(&begin), "{ran}");
    // etcdctl does not ask whether it is worth it.
    run_as(&sandbox, "etcdctl", &flags).expect(0, &[]);
    assert_eq!(done(&cluster).len(), 6);
    let refused = DefragEnd::Refuses(Code::Internal, "broken".into());
    cluster.members[2].set(|m| m.defrag.end = refused);
    let ran = run_as(&sandbox, "etcdctl", &flags).expect(1, &[]);
    let third = cluster.members[2].endpoint();
    assert!(ran.stderr.contains(&format!("Failed to defragment etcd member[{third}]. took ")));
}

#[test]
fn a_member_that_cannot_be_reached_stops_it_before_it_starts() {
    let mut cluster = three();
    let endpoints = cluster.endpoints();
    cluster.members.iter_mut().for_each(|fake| fake.stop());
    let ran = Sandbox::new().run(&format!("defrag --endpoints {endpoints}"));
    ran.expect(4, &["connection refused"]);
    let cluster = three();
    cluster.members[0].set(|m| {
        m.faults.insert("Defragment".into(), Fault::from(crate::fake_etcd::refusals::STOPPED));
    });
    let line = format!("defrag --endpoints {} {PATIENT}", cluster.members[0].endpoint());
    let ran = Sandbox::new().run(&line).expect(4, &["m1 was not defragmented"]);
    assert!(ran.stderr.contains("its database still has"), "{ran}");
}

#[cfg(feature = "serve")]
mod store {
    //! Our own store, as a real server.

    use super::{LOCK, Sandbox, audit, until};
    use crate::serve_child::{Served, run};

    #[test]
    fn a_database_becomes_smaller_for_good() {
        let served = Served::start(&[]);
        run(async {
            let mut client = served.client().await;
            for key in 0..200 {
                client.put(format!("k{key}"), vec![b'x'; 40_000], None).await.unwrap();
            }
            let options = etcd_client::DeleteOptions::new().with_prefix();
            client.delete("k", Some(options)).await.unwrap();
            client.put("kept", "value", None).await.unwrap();
            let answer = client.get("kept", None).await.unwrap();
            let revision = answer.header().unwrap().revision();
            let physical = etcd_client::CompactionOptions::new().with_physical();
            client.compact(revision, Some(physical)).await.unwrap();
        });
        let (sandbox, endpoint) = (Sandbox::new(), served.address);
        let line =
            |flags: &str| format!("defrag --endpoints {endpoint} --command-timeout 60s {flags}");
        // Pages that were given up count as used until the next commit, which a write brings.
        until("free pages", || {
            run(async { served.client().await.put("written", "", None).await.unwrap() });
            let dry = sandbox.run(&line("--dry-run -w json")).expect(0, &[]).json();
            dry["members"][0]["predicted_gain_bytes"].as_i64().unwrap() > 4 << 20
        });
        assert!(audit(&sandbox).is_empty());
        let report = sandbox.run(&line("-w json")).expect(0, &[]).json();
        let member = &report["members"][0];
        let bytes = |at: &str| member[at]["db_bytes"].as_i64().unwrap();
        assert_eq!(member["result"], "done");
        assert!(bytes("before") - bytes("after") > 4 << 20, "{report}");
        assert_eq!(report["gained_bytes"], bytes("before") - bytes("after"));
        // It runs on this host, so that its disk was looked at.
        assert!(member["free_bytes"].as_u64().unwrap() > 0, "{report}");
        assert!(member["stall_ms"].is_u64(), "{report}");
        let record = audit(&sandbox).pop().unwrap();
        assert_eq!(record["operation"], "defrag");
        assert_eq!(record["after"]["members"][0]["size"]["db_bytes"], bytes("after"));
        let ran = sandbox.run(&line("--exit-on-noop")).expect(10, &["0 of 1 members"]);
        assert!(ran.stderr.contains("is skipped"), "{ran}");
        run(async {
            let mut client = served.client().await;
            assert_eq!(client.get("kept", None).await.unwrap().kvs()[0].value(), b"value");
            // The lock was given back.
            assert!(client.get(LOCK, None).await.unwrap().kvs().is_empty());
            assert!(client.leases().await.unwrap().leases().is_empty());
        });
    }
}
