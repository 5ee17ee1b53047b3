//! `snapshot save` from running members: what it makes, whom it asks, and everything that can go
//! wrong on the way, after which there is never a success and never anything left behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::fake_etcd::{
    CORRUPT, FakeCluster, FakeEtcd, Fault, Member, NOSPACE, SnapshotFault, refusals,
};
use crate::support::{Ran, Rows, Sandbox, sha256, skipped, snapshot};

/// Revision, compaction revision and HashKV of the fixture, as `hashkv` prints them.
const REVISION: i64 = 91;
const COMPACTED: i64 = 59;
const HASH: u32 = 20_359_195;

/// A member that sends the fixture and says of it what is true.
fn member(name: &str) -> Member {
    let mut member = Member::new(name).file(&snapshot("3.6")).revision(REVISION);
    member.compact_revision = COMPACTED;
    member.hashes.insert(REVISION, HASH);
    member
}

fn three() -> FakeCluster {
    FakeCluster::start(["m1", "m2", "m3"].map(member))
}

/// A cluster in which one member sends wrong bytes, one hashes nothing, and one is not there.
pub(crate) fn one_of_each() -> FakeCluster {
    let mut cluster = FakeCluster::start(["m1", "m2", "m3", "m4"].map(member));
    cluster.members[1].set(|member| member.snapshot_fault = Some(SnapshotFault::WrongTrailer));
    cluster.members[2].set(|member| {
        member.faults.insert("HashKV".into(), refusals::TOO_MANY.into());
    });
    cluster.members[3].stop();
    cluster
}

/// Names in the sandbox that a save may have made.
fn made(sandbox: &Sandbox) -> Vec<String> {
    let mut names = sandbox.names(".");
    names.retain(|name| name != "tmp");
    names.extend(sandbox.names("tmp"));
    names
}

/// Runs a save that must fail and leave nothing.
#[track_caller]
fn fails(sandbox: &Sandbox, endpoints: &str, flags: &str, code: i32, words: &[&str]) -> Ran {
    let before = sandbox.picture();
    let line = format!("snapshot save out.db --endpoints {endpoints} {flags}");
    let ran = sandbox.run(&line).expect(code, words);
    assert_eq!(sandbox.picture(), before, "something is left {ran}");
    assert!(!sandbox.exists("audit.jsonl"), "{ran}");
    ran
}

fn note(sandbox: &Sandbox, file: &str) -> Value {
    serde_json::from_slice(&fs::read(sandbox.path(&format!("{file}.json"))).unwrap()).unwrap()
}

/// Waits until something is so.
#[track_caller]
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
        sleep(Duration::from_millis(10));
    }
}

fn start(sandbox: &Sandbox, line: &str) -> Child {
    let mut command = sandbox.command();
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn a_follower_is_saved_whole_and_its_note_says_from_where() {
    let cluster = three();
    let sandbox = Sandbox::new();
    let flags = format!("--endpoints {} -w json", cluster.endpoints());
    let plan =
        sandbox.run(&format!("snapshot save out.db --dry-run {flags}")).expect(0, &[]).json();
    assert_eq!(made(&sandbox), [""; 0]);
    assert_eq!((&plan["role"], &plan["revision"]), (&"follower".into(), &Value::Null));
    let report = sandbox.run(&format!("snapshot save out.db {flags}")).expect(0, &[]).json();
    for (key, want) in [
        ("role", Value::from("follower")),
        ("verified", "full".into()),
        ("revision", REVISION.into()),
        ("quorum", true.into()),
        ("endpoint", cluster.members[1].endpoint().into()),
    ] {
        assert_eq!(report[key], want, "{key}: {report}");
    }
    assert_eq!(report["hashkv"]["verdict"], "equal");
    assert_eq!(report["hashkv"]["members"].as_array().map(Vec::len), Some(3));
    assert_eq!(cluster.members[0].calls("Snapshot"), 0);
    let bytes = fs::read(sandbox.path("out.db")).unwrap();
    assert_eq!(sha256(&bytes), sha256(&snapshot("3.6")));
    for name in ["out.db", "out.db.json"] {
        let mode = fs::metadata(sandbox.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let note = note(&sandbox, "out.db");
    let from = cluster.members[1].member();
    for (key, want) in [
        ("kind", Value::from("etcdkit.snapshot")),
        ("sha256", sha256(&bytes).into()),
        ("size_bytes", bytes.len().into()),
        ("revision", REVISION.into()),
        ("highest_revision_seen", REVISION.into()),
        ("cluster_id", format!("{:x}", from.cluster_id).into()),
        ("member_id", format!("{:x}", from.id).into()),
        ("member_name", "m2".into()),
        ("etcd_version", "3.6.16".into()),
        ("storage_version", "3.6.0".into()),
        ("endpoint", from.advertised.into()),
    ] {
        assert_eq!(note[key], want, "{key}: {note}");
    }
    assert_eq!(note["hashkv"][2]["hash"], HASH);
    assert_eq!(note.get("quorum"), None);
    let record = fs::read_to_string(sandbox.path("audit.jsonl")).unwrap();
    assert!(record.contains("\"operation\":\"snapshot save\""), "{record}");
    sandbox.run("snapshot restore out.db --all-members all").expect(0, &["out.db.json"]);

    // What is there is refused before anybody is asked.
    let asked = cluster.members[0].log().len();
    sandbox.run(&format!("snapshot save out.db {flags}")).expect(7, &["out.db exists"]);
    fs::remove_file(sandbox.path("out.db")).unwrap();
    sandbox.run(&format!("snapshot save out.db {flags}")).expect(7, &["out.db.json exists"]);
    sandbox.run(&format!("snapshot save no/out.db {flags}")).expect(9, &[]);
    assert_eq!(cluster.members[0].log().len(), asked);
    // One endpoint is the one that is used, whatever it is.
    let leader = cluster.members[0].endpoint();
    let line = format!("snapshot save leader.db --endpoints {leader}");
    sandbox.run(&line).expect(0, &["leader m1", "only member"]);
}

#[test]
fn whatever_goes_wrong_is_no_success_and_leaves_nothing() {
    let text = || "etcdserver: request timed out".to_owned();
    let cases = [
        (SnapshotFault::Stall(40_000), 4, "waiting for the next piece"),
        (SnapshotFault::Stall(0), 4, "waiting for the next piece"),
        (SnapshotFault::Error(40_000, tonic::Code::Unavailable, text()), 4, "timed out"),
        (SnapshotFault::Drop(40_000), 4, ""),
        (SnapshotFault::End(40_000), 6, "the stream ended after"),
        (SnapshotFault::End(0), 6, "the stream ended after"),
        (SnapshotFault::Flip(30_000), 6, "the trailer says"),
        (SnapshotFault::WrongTrailer, 6, "the trailer says"),
        (SnapshotFault::NoTrailer, 6, "without its sha256 trailer"),
    ];
    for (fault, code, words) in cases {
        let fake = FakeEtcd::start(member("m1").snapshot_fault(fault.clone()));
        let sandbox = Sandbox::new();
        let began = Instant::now();
        let flags = "--idle-timeout 300ms --metrics-file tmp/etcd.prom -w json";
        let old = b"# HELP etcdkit_backup_last_revision x\netcdkit_backup_last_revision 7\n";
        sandbox.write("tmp/etcd.prom", old);
        let line = format!("snapshot save out.db --endpoints {} {flags}", fake.endpoint());
        let ran = sandbox.run(&line).expect(code, &[words]);
        assert_eq!(ran.error()["code"], code, "{fault:?}");
        assert!(began.elapsed() < Duration::from_secs(20), "{fault:?} took {:?}", began.elapsed());
        assert_eq!(made(&sandbox), ["etcd.prom"], "{fault:?}");
        let figures = fs::read_to_string(sandbox.path("tmp/etcd.prom")).unwrap();
        let reason = if code == 4 { "unreachable" } else { "damage" };
        for line in [
            "etcdkit_backup_last_run_success 0".to_owned(),
            "etcdkit_backup_last_revision 7".to_owned(),
            format!("etcdkit_backup_failures_total{{reason=\"{reason}\"}} 1"),
            format!("etcdkit_backup_cluster_max_revision_seen {REVISION}"),
        ] {
            assert!(figures.lines().any(|have| have == line), "{line}\n{figures}");
        }
        until("the member's read transaction ends", || fake.open_snapshots() == 0);
    }
}

#[test]
fn bytes_that_fit_their_trailer_are_still_checked() {
    let sandbox = Sandbox::new();
    let mut torn = snapshot("3.6");
    torn[4096 * 5..4096 * 7].fill(0xff);
    let mut cases = vec![
        (member("m1").file(&torn), "sent a wrong snapshot"),
        (member("m1").file(&[7; 8192]), "sent a wrong snapshot"),
        (member("m1").revision(REVISION + 9), "the cluster has acknowledged 100"),
    ];
    let mut other = member("m1");
    other.hashes.insert(REVISION, 1);
    cases.push((other, "does not hold the cluster's keys"));
    for (member, words) in cases {
        let fake = FakeEtcd::start(member);
        fails(&sandbox, &fake.endpoint(), "", 6, &[words]);
    }
    let mut other = member("m1");
    other.hashes.insert(REVISION, 1);
    let fake = FakeEtcd::start(other);
    let line = format!("snapshot save out.db --no-hashkv --endpoints {}", fake.endpoint());
    sandbox.run(&line).expect(0, &["keys not compared"]);
}

#[test]
fn another_member_is_asked_when_one_fails() {
    let mut cluster = three();
    let sandbox = Sandbox::new();
    let faults = [
        SnapshotFault::Flip(30_000),
        SnapshotFault::Stall(40_000),
        SnapshotFault::Drop(1),
        SnapshotFault::NoTrailer,
    ];
    for (at, fault) in faults.into_iter().enumerate() {
        cluster.members[1].set(|member| member.snapshot_fault = Some(fault));
        let endpoints = cluster.endpoints();
        let line = format!("snapshot save {at}.db --idle-timeout 2s --endpoints {endpoints}");
        let ran = sandbox.run(&format!("{line} -w json")).expect(0, &["is tried next"]);
        let report = ran.json();
        assert_eq!(report["endpoint"], cluster.members[2].endpoint(), "{report}");
        assert_eq!(report["failed"][0]["endpoint"], cluster.members[1].endpoint(), "{report}");
        assert!(report["warnings"][0].as_str().unwrap().contains("a member failed"), "{report}");
    }
    // Wrong bytes from one and silence from the others are wrong bytes.
    for (at, fault) in
        [SnapshotFault::WrongTrailer, SnapshotFault::Stall(1), SnapshotFault::Drop(1)]
            .into_iter()
            .enumerate()
    {
        cluster.members[at].set(|member| member.snapshot_fault = Some(fault));
    }
    let endpoints = cluster.endpoints();
    fs::remove_file(sandbox.path("audit.jsonl")).unwrap();
    let words = ["the trailer says", "tried before"];
    fails(&sandbox, &endpoints, "--idle-timeout 300ms", 6, &words);

    // A member that is down is passed over.
    cluster.members[1].stop();
    cluster.set(|member| member.snapshot_fault = None);
    let line = format!("snapshot save down.db --endpoints {endpoints} -w json");
    let report = sandbox.run(&line).expect(0, &[]).json();
    assert_eq!(report["passed_over"][0]["endpoint"], cluster.members[1].endpoint(), "{report}");
    assert_eq!(report["hashkv"]["members"].as_array().map(Vec::len), Some(2), "{report}");
}

#[test]
fn members_that_differ_are_named() {
    let cluster = three();
    let sandbox = Sandbox::new();
    cluster.members[2].set(|member| {
        member.hashes.insert(REVISION, 7);
    });
    let odd = format!("{} (member", cluster.members[2].endpoint());
    fails(&sandbox, &cluster.endpoints(), "", 6, &["hold different keys", &odd]);
    // One that has compacted since says nothing about it.
    cluster.members[2].set(|member| member.compact_revision = 70);
    let line = format!("snapshot save out.db --endpoints {} -w json", cluster.endpoints());
    let report = sandbox.run(&line).expect(0, &[]).json();
    assert_eq!(report["hashkv"]["verdict"], "equal");
    cluster.set(|member| {
        member.compact_revision = 70;
        member.hashes.insert(REVISION, 7);
    });
    let line = format!("snapshot save other.db --endpoints {} -w json", cluster.endpoints());
    let report = sandbox.run(&line).expect(0, &[]).json();
    assert_eq!(report["hashkv"]["verdict"], "not_comparable");
}

#[test]
fn without_a_majority_it_is_refused_unless_that_is_accepted() {
    let cluster = three();
    let sandbox = Sandbox::new();
    cluster.set(|member| member.leader = 0);
    // Its revision is what it has told; the snapshot that it sends is the same.
    cluster.members[0].set(|member| member.revision = REVISION - 1);
    let endpoints = cluster.endpoints();
    let words = ["a linearizable read does not go through", "--without-quorum"];
    fails(&sandbox, &endpoints, "", 4, &words);
    let line = format!("snapshot save out.db --without-quorum --endpoints {endpoints}");
    sandbox.run(&line).expect(0, &["NO MAJORITY", "the member that is furthest"]);
    let told = note(&sandbox, "out.db");
    assert_eq!((&told["quorum"], &told["member_name"]), (&false.into(), &"m2".into()));
    // Whoever relies on the file later hears of it.
    let short = "out.db.json: NO MAJORITY OF THE CLUSTER ANSWERED";
    for line in [
        "snapshot verify out.db",
        "snapshot verify out.db --level quick",
        "snapshot restore out.db --all-members all --dry-run",
    ] {
        let ran = sandbox.run(line).expect(0, &[]);
        assert_eq!(ran.stderr.matches(short).count(), 1, "{ran}");
        let report = sandbox.run(&format!("{line} -w json")).expect(0, &[]).json();
        let warnings = report.get("warnings").unwrap_or(&report["files"][0]["warnings"]);
        assert!(warnings.to_string().contains(short), "{report}");
    }
    // It takes the place of no snapshot that a majority stood behind.
    sandbox.write("e-20200101T000000Z.db", &snapshot("3.6"));
    let line = "snapshot save e-{time}.db --keep-last 1 --without-quorum --endpoints";
    sandbox.run(&format!("{line} {endpoints}")).expect(0, &["no older snapshot was removed"]);
    assert!(sandbox.exists("e-20200101T000000Z.db"));
    // A note about another file says nothing of this one.
    fs::copy(sandbox.path("out.db.json"), sandbox.path("other.db.json")).unwrap();
    sandbox.write("other.db", &snapshot("3.5"));
    let ran = sandbox.run("snapshot verify other.db").expect(0, &[]);
    assert!(!ran.stderr.contains("MAJORITY"), "{ran}");
    assert_eq!(cluster.members[0].calls("Snapshot"), 0);
    let dead = FakeEtcd::start(member("m1")).endpoint();
    fs::remove_file(sandbox.path("audit.jsonl")).unwrap();
    fs::remove_file(sandbox.path("out.db")).unwrap();
    fs::remove_file(sandbox.path("out.db.json")).unwrap();
    fails(&sandbox, &dead, "--without-quorum", 4, &["refused"]);
    let two = format!("{dead},{}", FakeEtcd::start(member("m1")).endpoint());
    fails(&sandbox, &two, "", 4, &["no member answers"]);
}

#[test]
fn a_leader_that_is_being_chosen_is_waited_for() {
    let text = "etcdserver: leader changed".to_owned();
    let changed = Fault::Error(tonic::Code::Unavailable, text);
    let fake = FakeEtcd::start(member("m1").fault("Range", changed));
    let sandbox = Sandbox::new();
    let line = format!("snapshot save out.db --endpoints {}", fake.endpoint());
    let child = start(&sandbox, &line);
    until("it asks again", || fake.calls("Range") > 1);
    fake.set(|member| member.faults.clear());
    Ran::wait(&line, child).expect(0, &["saved"]);
    fake.set(|member| {
        member.faults.insert("Range".into(), refusals::NO_LEADER.into());
    });
    let other = Sandbox::new();
    fails(&other, &fake.endpoint(), "", 4, &["no leader", "--without-quorum"]);
}

#[test]
fn the_revision_that_is_told_is_waited_for() {
    let fake = FakeEtcd::start(member("m1").revision(REVISION - 11));
    let sandbox = Sandbox::new();
    let line = format!("snapshot save out.db --min-revision {REVISION} --endpoints");
    let child = start(&sandbox, &format!("{line} {}", fake.endpoint()));
    until("it waits", || fake.calls("Status") > 2);
    assert_eq!(fake.calls("Snapshot"), 0);
    fake.set(|member| member.revision = REVISION);
    Ran::wait("a save that waits", child).expect(0, &["saved"]);
    let other = Sandbox::new();
    let flags = format!("--min-revision {} --timeout 500ms", REVISION + 1);
    fails(&other, &fake.endpoint(), &flags, 4, &["until it has the revision"]);
}

#[test]
fn a_corrupt_member_is_used_only_when_that_is_accepted() {
    let cluster = three();
    let sandbox = Sandbox::new();
    let bad = cluster.members[1].member().id;
    cluster.set(|member| member.alarms = vec![(bad, CORRUPT), (bad, NOSPACE)]);
    let only = cluster.members[1].endpoint();
    fails(&sandbox, &only, "", 6, &["CORRUPT", "--accept-corrupt"]);
    let line = |file: &str| format!("snapshot save {file} --endpoints {}", cluster.endpoints());
    // What it says of its keys is of no interest either.
    cluster.members[1].set(|member| {
        member.hashes.insert(REVISION, 7);
    });
    let report = sandbox.run(&format!("{} -w json", line("good.db"))).expect(0, &[]).json();
    assert_eq!(report["endpoint"], cluster.members[2].endpoint());
    cluster.members[1].set(|member| {
        member.hashes.insert(REVISION, HASH);
    });
    let line = format!("snapshot save bad.db --accept-corrupt --endpoints {only}");
    sandbox.run(&line).expect(0, &["WAS ACCEPTED"]);
    // A snapshot that carries the alarm says so.
    let rows = Rows::read(&snapshot("3.6")).alarm(9, 2).snapshot();
    let fake = FakeEtcd::start(member("m1").file(&rows));
    let line = format!("snapshot save carries.db --endpoints {}", fake.endpoint());
    sandbox.run(&line).expect(0, &["a CORRUPT alarm of member 9 stands in the snapshot"]);
}

#[test]
fn who_may_not_is_told_before_anything_is_sent() {
    let fake = FakeEtcd::start(member("m1").auth("secret-of-root"));
    let sandbox = Sandbox::new();
    let user = |words: &str| format!("{words} --command-timeout 5s");
    fails(&sandbox, &fake.endpoint(), "", 5, &["--user"]);
    fails(&sandbox, &fake.endpoint(), &user("--user app:app"), 5, &["role root", "app"]);
    fails(&sandbox, &fake.endpoint(), &user("--user root:wrong"), 5, &[]);
    assert_eq!(fake.calls("Snapshot"), 0);
    assert_eq!(fake.calls("Status"), 0);
    let line = format!("snapshot save out.db --user root --endpoints {}", fake.endpoint());
    sandbox.write("password", b"secret-of-root\n");
    let ran = sandbox.run(&format!("{line} --password-file password")).expect(0, &["saved"]);
    let record = fs::read_to_string(sandbox.path("audit.jsonl")).unwrap();
    assert!(!format!("{ran}{record}").contains("secret-of-root"));
}

#[test]
fn learners_and_other_clusters_are_told_apart() {
    let cluster = FakeCluster::start([member("m1"), member("l").learner()]);
    let sandbox = Sandbox::new();
    let line = format!("snapshot save out.db --endpoints {} -w json", cluster.endpoints());
    let report = sandbox.run(&line).expect(0, &[]).json();
    assert_eq!(report["role"], "leader", "{report}");
    let other = Sandbox::new();
    let learner = cluster.members[1].endpoint();
    fails(&other, &learner, "", 4, &["only learners answer"]);
    let line = format!("snapshot save out.db --without-quorum --endpoints {learner}");
    other.run(&line).expect(0, &["learner"]);
    let mut stranger = member("x");
    stranger.cluster_id = 5;
    let stranger = FakeEtcd::start(stranger);
    let both = format!("{},{}", cluster.members[0].endpoint(), stranger.endpoint());
    fails(&Sandbox::new(), &both, "", 2, &["not of one cluster"]);
}

#[test]
fn a_target_that_appears_meanwhile_is_kept() {
    for name in ["out.db", "out.db.json"] {
        let mut slow = member("m1");
        slow.snapshot_rate = Some(60_000);
        let fake = FakeEtcd::start(slow);
        let sandbox = Sandbox::new();
        let line = format!("snapshot save out.db --endpoints {}", fake.endpoint());
        let child = start(&sandbox, &line);
        until("a stream", || fake.open_snapshots() == 1);
        sandbox.write(name, b"theirs");
        Ran::wait(&line, child).expect(7, &["exists"]);
        assert_eq!(made(&sandbox), [name]);
        assert_eq!(fs::read(sandbox.path(name)).unwrap(), b"theirs");
    }
}

#[test]
fn a_signal_ends_it_and_a_killed_run_is_cleaned_up_by_the_next() {
    let mut slow = member("m1");
    slow.snapshot_rate = Some(20_000);
    let fake = FakeEtcd::start(slow);
    let sandbox = Sandbox::new();
    let line = format!("snapshot save out.db --endpoints {}", fake.endpoint());
    for signal in [Signal::INT, Signal::TERM] {
        let child = start(&sandbox, &line);
        until("a stream", || fake.open_snapshots() == 1);
        kill_process(Pid::from_child(&child), signal).unwrap();
        Ran::wait(&line, child).expect(130, &["interrupted"]);
        assert_eq!(made(&sandbox), [""; 0]);
        until("the member's read transaction ends", || fake.open_snapshots() == 0);
    }
    let child = start(&sandbox, &line);
    until("a stream", || fake.open_snapshots() == 1);
    kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
    Ran::wait(&line, child);
    assert_eq!(made(&sandbox).len(), 2);
    fake.set(|member| member.snapshot_rate = None);
    let report = sandbox.run(&format!("{line} -w json")).expect(0, &[]).json();
    assert_eq!(report["removed"].as_array().map(Vec::len), Some(2), "{report}");
    assert_eq!(made(&sandbox).len(), 3, "{:?}", made(&sandbox));
}

#[test]
fn a_signal_does_not_wait_for_members_that_stay_silent() {
    for call in ["HashKV", "Range", "Status"] {
        let fake = FakeEtcd::start(member("m1").fault(call, Fault::Silent));
        let sandbox = Sandbox::new();
        let endpoint = fake.endpoint();
        let line = format!("snapshot save out.db --command-timeout 60s --endpoints {endpoint}");
        let child = start(&sandbox, &line);
        until("it asks", || fake.calls(call) > 0);
        // The file is checked in the meantime.
        sleep(Duration::from_millis(500));
        let began = Instant::now();
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        Ran::wait(&line, child).expect(130, &["interrupted"]);
        assert!(began.elapsed() < Duration::from_secs(3), "{call}: {:?}", began.elapsed());
        assert_eq!(made(&sandbox), [""; 0], "{call}");
    }
}

#[test]
fn a_place_that_no_file_can_have_is_said_with_what_to_do() {
    let fake = FakeEtcd::start(member("m1"));
    let sandbox = Sandbox::new();
    sandbox.mkdir("folder");
    sandbox.write("file", b"x");
    for (name, code, words) in [
        ("no/such/out.db", 9, ["there is no directory", "mkdir -p "]),
        ("folder", 7, ["folder is a directory", "name a file in it"]),
        ("file/out.db", 7, ["file is no directory", "another name"]),
    ] {
        let line = format!("snapshot save {name} --endpoints {}", fake.endpoint());
        sandbox.run(&line).expect(code, &words);
    }
    assert_eq!(fake.log().len(), 0);
}

#[test]
fn a_save_that_fails_is_counted_under_its_reason() {
    let none = Member::new("m1").fault("Range", refusals::NO_LEADER);
    let mut cases = vec![(none, "unreachable")];
    cases.push((member("m1").fault("Range", refusals::DENIED), "auth"));
    cases.push((member("m1").snapshot_fault(SnapshotFault::WrongTrailer), "damage"));
    let mut large = member("m1");
    large.db_size = i64::MAX / 2;
    cases.push((large, "disk_full"));
    for (member, reason) in cases {
        let fake = FakeEtcd::start(member);
        let sandbox = Sandbox::new();
        let flags = "--metrics-file tmp/etcd.prom --command-timeout 500ms";
        let line = format!("snapshot save out.db {flags} --endpoints {}", fake.endpoint());
        let ran = sandbox.run(&line);
        assert_ne!(ran.code, 0, "{ran}");
        let figures = fs::read_to_string(sandbox.path("tmp/etcd.prom")).unwrap();
        for line in [
            format!("etcdkit_backup_failures_total{{reason=\"{reason}\"}} 1"),
            "etcdkit_backup_last_success_timestamp_seconds 0".to_owned(),
        ] {
            assert!(figures.lines().any(|have| have == line), "{line}\n{figures}{ran}");
        }
    }
}

#[test]
fn a_member_that_dies_or_is_too_slow_is_no_success() {
    let mut slow = member("m1");
    slow.snapshot_rate = Some(4_000);
    let mut fake = FakeEtcd::start(slow);
    let sandbox = Sandbox::new();
    fails(&sandbox, &fake.endpoint(), "--timeout 4s", 4, &["the whole snapshot"]);
    fails(&sandbox, &fake.endpoint(), "--command-timeout 4s", 4, &["the whole snapshot"]);
    until("the member's read transaction ends", || fake.open_snapshots() == 0);
    let line = format!("snapshot save out.db --endpoints {}", fake.endpoint());
    let child = start(&sandbox, &line);
    until("a stream", || fake.open_snapshots() == 1);
    fake.stop();
    Ran::wait(&line, child).expect(4, &["broke"]);
    assert_eq!(made(&sandbox), [""; 0]);
}

#[test]
fn a_disk_without_room_is_told_with_numbers() {
    let fake = FakeEtcd::start(member("m1"));
    let sandbox = Sandbox::new();
    let line = format!("snapshot save out.db --endpoints {}", fake.endpoint());
    for blocks in [0, 8, 100] {
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec $ETCDKIT {line}");
        sandbox.sh(&script).expect(1, &["File too large"]);
        assert_eq!(made(&sandbox), [""; 0]);
    }
    fake.set(|member| member.db_size = 1 << 60);
    let asked = fake.calls("Snapshot");
    fails(&sandbox, &fake.endpoint(), "", 1, &["bytes free, and the snapshot needs 11"]);
    let pipe = sandbox
        .sh(&format!("$ETCDKIT snapshot save - --endpoints {} | wc -c; true", fake.endpoint()));
    pipe.expect(0, &["TMPDIR", "--no-spool"]);
    assert_eq!(fake.calls("Snapshot"), asked);
    // The status may be old: what the stream announces counts too, and what the disk says at last.
    fake.set(|member| member.db_size = 4096);
    sandbox.mkdir("m");
    let script = format!(
        "unshare -m sh -c 'mount -t tmpfs -o size=40k tmpfs m && \
         {{ $ETCDKIT snapshot save m/out.db --audit-log a --endpoints {} 2>&1; \
         echo code $?; echo left $(ls -A m); }}'",
        fake.endpoint()
    );
    let ran = sandbox.sh(&script);
    if !ran.stdout.contains("code") {
        return skipped("a save to a full disk: mount -t tmpfs does not work here");
    }
    ran.expect(0, &["code 1\nleft\n", "40960 bytes free, and the snapshot needs 61472"]);
}

#[test]
fn nothing_goes_into_a_pipe_that_was_not_checked() {
    let fake = FakeEtcd::start(member("m1"));
    let sandbox = Sandbox::new();
    let save = format!("$ETCDKIT snapshot save - --endpoints {}", fake.endpoint());
    let piped = |flags: &str| {
        let script = format!("( {save} {flags}; echo code $? >&2 ) | cat > piped.db");
        sandbox.sh(&script).expect(0, &[]).stderr
    };
    let whole = snapshot("3.6");
    for (flags, words) in [("", "trailer, pages, records"), ("--no-spool", "were not checked")] {
        let stderr = piped(flags);
        assert!(stderr.contains("code 0") && stderr.contains(words), "{stderr}");
        assert_eq!(sha256(&fs::read(sandbox.path("piped.db")).unwrap()), sha256(&whole));
    }
    let stderr = piped("-w json");
    let report: Value = serde_json::from_str(stderr.lines().next().unwrap()).unwrap();
    assert_eq!((&report["file"], &report["note"]), (&"-".into(), &Value::Null));
    let ran = sandbox.sh(&format!("{save} > plain.db")).expect(0, &["saved -"]);
    assert_eq!(ran.stdout, "");
    assert_eq!(made(&sandbox), ["piped.db", "plain.db"]);

    for (fault, reaches) in [
        (SnapshotFault::Flip(30_000), whole.len() - 32),
        (SnapshotFault::WrongTrailer, whole.len() - 32),
        (SnapshotFault::NoTrailer, whole.len() - 32),
        (SnapshotFault::Drop(40_000), whole.len() - 33),
    ] {
        fake.set(|member| member.snapshot_fault = Some(fault.clone()));
        assert!(!piped("").contains("code 0"));
        assert_eq!(fs::read(sandbox.path("piped.db")).unwrap(), b"", "{fault:?}");
        let stderr = piped("--no-spool");
        assert!(!stderr.contains("code 0"), "{stderr}");
        let size = fs::read(sandbox.path("piped.db")).unwrap().len();
        assert!(size <= reaches, "{fault:?}: {size} of {} bytes", whole.len());
    }
    fake.set(|member| member.snapshot_fault = None);

    // A reader that ends early, one that takes nothing, and none at all.
    let early = |flags: &str| {
        let script = format!("( {save} {flags}; echo code $? >&2 ) | head -c 100 >/dev/null");
        sandbox.sh(&script).stderr
    };
    fake.set(|member| {
        member.file = std::sync::Arc::new(Rows::read(&snapshot("3.6")).database(65_536));
        member.hashes.clear();
    });
    for flags in ["--no-hashkv", "--no-spool"] {
        let stderr = early(flags);
        assert!(stderr.contains("code 1") && stderr.contains("ended before"), "{stderr}");
        let script = format!(
            "( {save} {flags} --idle-timeout 300ms; echo code $? >&2 ) | sleep 5 >/dev/null"
        );
        let stderr = sandbox.sh(&script).stderr;
        assert!(stderr.contains("code 4") && stderr.contains("took nothing"), "{stderr}");
    }
    sandbox.sh(&format!("{save} > /dev/null")).expect(2, &["would be lost"]);
    sandbox.sh(&format!("{save} >&-")).expect(2, &["would be lost"]);
    sandbox.sh(&format!("{save} --keep-last 2 | cat")).expect(0, &["--keep-last goes with a file"]);
}

#[test]
fn older_ones_go_when_a_new_one_is_good() {
    let fake = FakeEtcd::start(member("m1"));
    let sandbox = Sandbox::new();
    let save = |flags: &str| {
        let line =
            format!("snapshot save etcd-{{time}}.db --endpoints {} {flags}", fake.endpoint());
        sandbox.run(&line)
    };
    save("").expect(0, &[]);
    let first = sandbox.names(".").into_iter().find(|name| name.ends_with("Z.db")).unwrap();
    for day in 1..=4 {
        let name = format!("etcd-2026010{day}T000000Z.db");
        fs::copy(sandbox.path(&first), sandbox.path(&name)).unwrap();
        fs::copy(sandbox.path(&format!("{first}.json")), sandbox.path(&format!("{name}.json")))
            .unwrap();
    }
    sandbox.write("etcd-20250101T000000Z.db", b"theirs");
    sandbox.write("etcd-old.db", b"theirs");
    sleep(Duration::from_millis(1100));
    let before = sandbox.picture();
    save("--keep-last 2 --dry-run").expect(0, &["would remove", "20260104T000000Z"]);
    assert_eq!(sandbox.picture(), before);
    // A save that fails removes nothing.
    fake.set(|member| member.snapshot_fault = Some(SnapshotFault::WrongTrailer));
    save("--keep-last 2").expect(6, &[]);
    assert_eq!(sandbox.picture(), before);
    fake.set(|member| member.snapshot_fault = None);
    let report = save("--keep-last 2 -w json").expect(0, &["left alone"]).json();
    assert_eq!(report["retention"]["removed"].as_array().map(Vec::len), Some(4), "{report}");
    let names = sandbox.names(".");
    let count = |end: &str| names.iter().filter(|name| name.ends_with(end)).count();
    // Two, and what is not ours.
    assert_eq!((count("Z.db"), count("Z.db.json")), (3, 2), "{names:?}");
    assert!(names.contains(&first) && sandbox.exists("etcd-old.db"), "{names:?}");
    save("--keep-last 0").expect(2, &["--keep-last 0"]);
    let line = format!("snapshot save out.db --keep-last 2 --endpoints {}", fake.endpoint());
    sandbox.run(&line).expect(2, &["{time}"]);
}

#[test]
fn it_works_as_cron_runs_it() {
    let fake = FakeEtcd::start(member("m1"));
    let sandbox = Sandbox::new();
    let script = format!(
        "umask 0777; env -i \"$ETCDKIT\" --audit-log tmp/audit snapshot save out-{{time}}.db \
         --endpoints {} --keep-last 3 --metrics-file tmp/etcd.prom <&- >&- 2>tmp/err; \
         chmod 600 tmp/err; exit $?",
        fake.endpoint()
    );
    let script =
        script.replace("; chmod 600 tmp/err; exit $?", "; code=$?; chmod 600 tmp/err; exit $code");
    sandbox.sh(&script).expect(0, &[]);
    let mode = |name: &str| fs::metadata(sandbox.path(name)).unwrap().permissions().mode() & 0o777;
    let names = sandbox.names(".");
    assert_eq!(names.len(), 3, "{names:?}");
    for name in names.iter().filter(|name| name.starts_with("out-")) {
        assert_eq!(mode(name), 0o600, "{name}");
    }
    assert_eq!(mode("tmp/etcd.prom"), 0o644);
    let figures = fs::read_to_string(sandbox.path("tmp/etcd.prom")).unwrap();
    assert!(figures.contains("etcdkit_backup_last_run_success 1\n"), "{figures}");
    assert!(figures.contains(&format!("etcdkit_backup_last_revision {REVISION}\n")), "{figures}");
    assert!(!fs::read_to_string(sandbox.path("tmp/err")).unwrap().contains("error"));
    // What a killed run left under another time is gone with the next one.
    for name in
        [".out-20260101T000000Z.db.etcdkit-AbC123", ".out-20260101T000000Z.db.json.etcdkit-AbC123"]
    {
        sandbox.write(name, b"half");
    }
    sandbox.write("out-20260101T000000Z.db.json", b"{}");
    sandbox.write(".out-old.db.etcdkit-AbC123", b"not ours");
    sleep(Duration::from_millis(1100));
    let line = format!("snapshot save out-{{time}}.db --endpoints {} -w json", fake.endpoint());
    let report = sandbox.run(&line).expect(0, &[]).json();
    assert_eq!(report["removed"].as_array().map(Vec::len), Some(3), "{report}");
    assert!(sandbox.exists(".out-old.db.etcdkit-AbC123"));
    // A run that cannot begin is counted too.
    let line = format!(
        "snapshot save x.db --user root --password-file no --metrics-file tmp/etcd.prom \
         --endpoints {}",
        fake.endpoint()
    );
    sandbox.run(&line).expect(9, &[]);
    let figures = fs::read_to_string(sandbox.path("tmp/etcd.prom")).unwrap();
    assert!(figures.contains("failures_total{reason=\"not-found\"} 1\n"), "{figures}");
    // The figures are not worth a backup.
    let line = format!("snapshot save b.db --metrics-file no/f --endpoints {}", fake.endpoint());
    sandbox.run(&line).expect(0, &["no/f could not be written"]);
    let slow = Fault::Delay(Duration::from_millis(200));
    fake.set(|member| {
        member.faults.insert("HashKV".into(), slow);
    });
    let line = format!("snapshot save c.db --endpoints {} -q", fake.endpoint());
    sandbox.run(&line).expect(0, &["compared with this member alone"]);
    fake.set(|member| {
        member.faults.insert("HashKV".into(), refusals::TOO_MANY.into());
    });
    let line = format!("snapshot save d.db --endpoints {}", fake.endpoint());
    sandbox.run(&line).expect(0, &["no member told"]);
}

#[test]
fn members_hash_one_at_a_time_and_the_leader_last() {
    let cluster = three();
    let sandbox = Sandbox::new();
    cluster.set(|member| {
        member.faults.insert("HashKV".into(), Fault::Delay(Duration::from_millis(200)));
    });
    for command in ["snapshot save out.db", "consistency"] {
        sandbox.run(&format!("{command} --endpoints {}", cluster.endpoints())).expect(0, &[]);
        let mut spans: Vec<_> =
            cluster.members.iter().map(|fake| fake.last_span("HashKV")).collect();
        assert_eq!(spans.iter().max(), spans.first(), "{command}: the leader is not the last");
        spans.sort_unstable();
        let apart = spans.windows(2).all(|two| two[0].1 < two[1].0);
        assert!(apart, "{command}: two hash at once: {spans:?}");
    }
    // Only the one that is behind is asked again.
    cluster.set(|member| member.faults.clear());
    cluster.members[1].set(|member| {
        member.faults.insert("HashKV".into(), refusals::FUTURE.into());
    });
    for command in
        ["snapshot save again.db".to_owned(), format!("consistency --rev {REVISION} --patience 1s")]
    {
        let calls = || [0, 1, 2].map(|at| cluster.members[at].calls("HashKV"));
        let before = calls();
        let ran = sandbox.run(&format!("{command} --endpoints {}", cluster.endpoints()));
        assert!([0, 3].contains(&ran.code), "{ran}");
        let after = calls();
        // The first is also asked who may.
        assert_eq!((after[0] - before[0], after[2] - before[2]), (2, 1), "{command}");
        assert!(after[1] - before[1] > 1, "{command}");
    }
}

#[test]
fn choosing_ends_when_told_to_and_in_time() {
    let fake = FakeEtcd::start(member("m1").fault("Status", Fault::Silent));
    let sandbox = Sandbox::new();
    let flags = "--command-timeout 60s";
    let line = format!("snapshot save out.db {flags} --endpoints {}", fake.endpoint());
    for signal in [Signal::INT, Signal::TERM] {
        let asked = fake.calls("Status");
        let child = start(&sandbox, &line);
        until("it is asked", || fake.calls("Status") > asked);
        let began = Instant::now();
        kill_process(Pid::from_child(&child), signal).unwrap();
        Ran::wait(&line, child).expect(130, &["interrupted"]);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
    let began = Instant::now();
    fails(&sandbox, &fake.endpoint(), &format!("{flags} --timeout 1s"), 4, &["within 1000 ms"]);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());

    // A member that hashes for long keeps nobody waiting: not after a signal, nor for bad bytes.
    let fake = FakeEtcd::start(member("m1"));
    let hashing = |fake: &FakeEtcd| {
        fake.set(|member| {
            member.faults.clear();
            member.snapshot_rate = Some(60_000);
        });
        let asked = fake.calls("Snapshot");
        let line = format!("snapshot save out.db {flags} --endpoints {}", fake.endpoint());
        let child = start(&sandbox, &line);
        until("a stream", || fake.calls("Snapshot") > asked);
        fake.set(|member| {
            member.faults.insert("HashKV".into(), Fault::Silent);
        });
        child
    };
    let asked = fake.calls("HashKV");
    let child = hashing(&fake);
    until("it hashes", || fake.calls("HashKV") > asked + 1);
    let began = Instant::now();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    Ran::wait(&line, child).expect(130, &["interrupted"]);
    let mut torn = snapshot("3.6");
    torn[4096 * 5..4096 * 7].fill(0xff);
    let fake = FakeEtcd::start(member("m1").file(&torn));
    Ran::wait(&line, hashing(&fake)).expect(6, &["sent a wrong snapshot"]);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert_eq!(made(&sandbox), [""; 0]);
}

#[test]
fn a_member_counts_once_however_it_is_spelled() {
    let fake = FakeEtcd::start(member("m1"));
    let sandbox = Sandbox::new();
    let (url, port) = (fake.endpoint(), fake.port());
    let line = format!("snapshot save out.db -w json --endpoints {url},127.0.0.1:{port},{url}/");
    let report = sandbox.run(&line).expect(0, &[]).json();
    assert_eq!(report["hashkv"]["members"].as_array().map(Vec::len), Some(1), "{report}");
    assert_eq!(note(&sandbox, "out.db")["hashkv"].as_array().map(Vec::len), Some(1));
    let line = format!("snapshot save one.db --endpoints {url},127.0.0.1:{port}");
    sandbox.run(&line).expect(0, &["compared with this member alone"]);
}

#[test]
fn one_member_that_sends_other_keys_is_left_for_the_next() {
    let cluster = three();
    let sandbox = Sandbox::new();
    let rows = Rows::read(&snapshot("3.6"));
    let more = [&REVISION.to_be_bytes()[..], b"_", &7_i64.to_be_bytes()].concat();
    let value = b"\x0a\x01z\x10\x5b\x18\x5b\x20\x01";
    let other = rows.put("key", &more, value).database(4096);
    cluster.members[1].set(|member| member.file = std::sync::Arc::new(other));
    let line = format!("snapshot save out.db -w json --endpoints {}", cluster.endpoints());
    let report = sandbox.run(&line).expect(0, &["is tried next"]).json();
    assert_eq!(report["endpoint"], cluster.members[2].endpoint(), "{report}");
    let why = report["failed"][0]["why"].as_str().unwrap();
    assert!(why.contains("does not hold the cluster's keys"), "{why}");
    fails(&Sandbox::new(), &cluster.members[1].endpoint(), "", 6, &["does not hold"]);
}

#[test]
fn without_a_majority_each_member_is_held_to_what_it_told() {
    let cluster = three();
    cluster.set(|member| member.leader = 0);
    cluster.members[0].set(|member| member.snapshot_fault = Some(SnapshotFault::WrongTrailer));
    cluster.members[0].set(|member| member.revision = REVISION + 9);
    cluster.members[1].set(|member| member.revision = REVISION + 5);
    let sandbox = Sandbox::new();
    let line = "snapshot save out.db --without-quorum -w json --endpoints";
    let ran = sandbox.run(&format!("{line} {}", cluster.endpoints())).expect(0, &["is tried next"]);
    let report = ran.json();
    assert_eq!(report["endpoint"], cluster.members[2].endpoint(), "{report}");
    assert_eq!(report["revision_needed"], REVISION, "{report}");
    let words = report["failed"][1]["why"].as_str().unwrap();
    assert!(words.contains("that member has told 96"), "{report}");
    let warning = report["warnings"][0].as_str().unwrap();
    assert!(warning.contains("9 revisions behind another member"), "{report}");
    assert!(!warning.contains("furthest"), "{report}");
    // A revision that was asked for is said to be that.
    let fake = FakeEtcd::start(member("m1").revision(REVISION + 9));
    let flags = format!("--min-revision {}", REVISION + 2);
    fails(&Sandbox::new(), &fake.endpoint(), &flags, 6, &["you asked for at least 93"]);
}
