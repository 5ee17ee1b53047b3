//! Maintenance of clusters in trouble: members that are down or behind, alarms that nobody lists,
//! names that a terminal would obey.

use std::time::Duration;

use serde_json::Value;

use crate::fake_etcd::{FakeCluster, Fault, Member, NOSPACE, refusals};
use crate::support::{Ran, Sandbox};

const MIB: i64 = 1 << 20;
const QUOTA: i64 = 128 * MIB;
/// Limits that only an endless wait passes, however busy the machine is.
const PATIENT: &str = "--command-timeout 60s --dial-timeout 60s";

/// Three members of which half is free.
fn three() -> FakeCluster {
    let member = |name| Member::new(name).revision(100).sizes(100 * MIB, 20 * MIB, QUOTA);
    FakeCluster::start(["m1", "m2", "m3"].map(member))
}

fn ask(sandbox: &Sandbox, cluster: &FakeCluster, words: &str) -> Ran {
    sandbox.run(&format!("{words} --endpoints {} {PATIENT}", cluster.endpoints()))
}

fn done(cluster: &FakeCluster) -> Vec<String> {
    cluster.upkeep().done.clone()
}

fn of<'a>(report: &'a Value, name: &str) -> &'a Value {
    let members = report["members"].as_array().expect("members");
    members.iter().find(|member| member["name"] == name).unwrap_or_else(|| panic!("{report}"))
}

#[test]
fn who_is_down_is_passed_over_when_told_to_and_the_others_are_done() {
    // Its turn comes first, last, and as the leader was.
    for (down, others) in [(1, ["m3", "m1"]), (2, ["m2", "m1"])] {
        let mut cluster = three();
        cluster.members[down].stop();
        let (sandbox, name) = (Sandbox::new(), format!("m{}", down + 1));
        let why = format!("{name}: connection refused");
        // Refused for want of a majority, or at its own turn.
        let code = if down == 1 { 4 } else { 7 };
        ask(&sandbox, &cluster, "defrag --cluster").expect(code, &["no member was defragmented"]);
        let ran = ask(&sandbox, &cluster, "defrag --cluster --accept-unhealthy --dry-run");
        ran.expect(3, &["would be passed over", &why, "would give back"]);
        assert_eq!(done(&cluster), [""; 0]);

        let line = "defrag --cluster --accept-unhealthy -w json";
        let ran = ask(&sandbox, &cluster, line);
        let ran = ran.expect(3, &[&why, "2 of 3 members are defragmented", "run it again"]);
        assert_eq!(done(&cluster), others);
        let report = ran.json();
        let passed = of(&report, &name);
        assert_eq!(passed["result"], "down", "{report}");
        assert!(passed["why"].as_str().unwrap().starts_with("connection refused"), "{report}");
        assert_eq!(report["stopped"], Value::Null, "{report}");
        assert!(cluster.upkeep().records.is_empty(), "the lock was given back");
        let audit = std::fs::read_to_string(sandbox.path("audit.jsonl")).unwrap();
        let record: Value = serde_json::from_str(audit.lines().last().unwrap()).unwrap();
        assert!(record["result"].as_str().unwrap().contains(&why), "{record}");

        // Back again, it alone is worth it.
        cluster.members[down].restart();
        ask(&sandbox, &cluster, "defrag --cluster").expect(0, &["1 of 3 members defragmented"]);
    }
}

#[test]
fn who_answers_and_does_not_serve_is_passed_over_too() {
    let cluster = three();
    let sandbox = Sandbox::new();
    cluster.members[1].set(|m| m.leader = 0);
    let ran = ask(&sandbox, &cluster, "defrag --cluster --accept-unhealthy");
    ran.expect(3, &["m2: it knows no leader", "2 of 3 members are defragmented"]);
    assert_eq!(done(&cluster), ["m3", "m1"]);
    assert_eq!(cluster.members[1].calls("Defragment"), 0);
}

#[test]
fn who_stays_behind_is_told_beside_who_is_down() {
    let mut cluster = three();
    let sandbox = Sandbox::new();
    cluster.set(|m| (m.raft_index, m.raft_applied_index) = (5000, 5000));
    cluster.members[1].set(|m| m.raft_applied_index = 0);
    cluster.members[2].stop();
    let line = "defrag --cluster --accept-unhealthy --catch-up 1s";
    let ran = ask(&sandbox, &cluster, line);
    let ran = ran.expect(3, &["m2 is 5000 entries behind", "m3: connection refused"]);
    assert!(ran.stderr.contains("m2: it is 5000 entries behind"), "{ran}");
    assert!(ran.stderr.contains("1 of 3 members are defragmented"), "{ran}");
    // It is waited for, and nothing is done to it while it catches up.
    assert!(ran.stderr.contains("waiting: m2 is 5000 entries behind"), "{ran}");
    assert_eq!(done(&cluster), ["m1"]);
}

#[test]
fn reclaim_goes_on_past_a_member_that_is_down() {
    let mut cluster = three();
    let sandbox = Sandbox::new();
    let id = cluster.members[0].member().id;
    cluster.set(|m| m.alarms = vec![(id, NOSPACE)]);
    cluster.members[2].stop();
    let ran = ask(&sandbox, &cluster, "reclaim --no-scan --keep-revisions 10 -w json");
    ran.expect(7, &["other members are unhealthy", "--accept-unhealthy"]);
    assert_eq!(done(&cluster), [""; 0]);

    let line = "reclaim --no-scan --keep-revisions 10 --accept-unhealthy -w json";
    let ran = ask(&sandbox, &cluster, line).expect(3, &[]);
    let report = ran.json();
    assert_eq!(done(&cluster), ["m2", "m1"], "{ran}");
    assert_eq!(report["outcome"], "tight", "{report}");
    assert_eq!(report["writes_accepted"], true, "{report}");
    assert_eq!(report["alarms"].as_array().unwrap().len(), 0, "{report}");
    assert_eq!(of(&report, "m3")["defrag"], "down", "{report}");
    let next = report["next"].as_array().unwrap();
    assert!(
        next.iter().any(|line| line.as_str().unwrap().contains("m3 did not answer")),
        "{next:?}"
    );
    assert!(cluster.upkeep().records.is_empty(), "the lock was given back");
}

#[test]
fn reclaim_that_stops_says_why_in_the_shape_of_defrag() {
    let cluster = three();
    let id = cluster.members[0].member().id;
    cluster.set(|m| m.alarms = vec![(id, NOSPACE)]);
    let broken =
        crate::fake_etcd::upkeep::DefragEnd::Refuses(tonic::Code::Internal, "broken".into());
    cluster.members[1].set(|m| m.defrag.end = broken);
    let sandbox = Sandbox::new();
    for line in ["reclaim --no-scan --keep-revisions 10 -w json", "defrag -w json"] {
        let report = ask(&sandbox, &cluster, line).expect(1, &["m2 was not defragmented"]).json();
        let stopped = &report["stopped"];
        assert_eq!((&stopped["code"], &stopped["kind"]), (&1.into(), &"failed".into()), "{report}");
        assert!(stopped["message"].as_str().unwrap().contains("broken"), "{report}");
        assert!(!stopped["hints"].as_array().unwrap().is_empty(), "{report}");
    }
}

#[test]
fn alarms_that_cannot_be_listed_again_are_no_success() {
    let cluster = three();
    let id = cluster.members[1].member().id;
    cluster.set(|m| m.alarms = vec![(id, NOSPACE)]);
    cluster.upkeep().refuses_lists = Some(refusals::TIMED_OUT);
    let sandbox = Sandbox::new();
    let words = [
        "which alarms are raised now is not known",
        "request timed out",
        "1 of 1 were disarmed",
        "alarm list",
    ];
    let ran = ask(&sandbox, &cluster, "alarm disarm").expect(4, &words);
    assert!(!format!("{ran}").contains("no alarm is left"), "{ran}");
    let audit = std::fs::read_to_string(sandbox.path("audit.jsonl")).unwrap();
    let record: Value = serde_json::from_str(audit.lines().last().unwrap()).unwrap();
    assert!(record["result"].as_str().unwrap().contains("is not known"), "{record}");
    cluster.upkeep().refuses_lists = None;
    ask(&sandbox, &cluster, "alarm disarm").expect(0, &["nothing to disarm"]);
}

#[test]
fn a_lock_that_has_just_ended_is_not_to_be_deleted() {
    let cluster = three();
    let value = r#"{"host":"n1","pid":7,"user":"eve","operation":"defrag","since":"earlier"}"#;
    cluster.upkeep().put("etcdkit/lock/maintenance", value, 60);
    // Found, and its lease is over when it is asked for.
    cluster.upkeep().leases.clear();
    let ran = ask(&Sandbox::new(), &cluster, "defrag");
    let ran = ran.expect(8, &["defrag by eve on n1", "is gone", "run it again"]);
    assert!(!ran.stderr.contains("no lease") && !ran.stderr.contains("etcdctl"), "{ran}");
    assert_eq!(done(&cluster), [""; 0]);
}

#[test]
fn a_lock_is_given_back_however_slow_the_members_are() {
    let cluster = three();
    let sandbox = Sandbox::new();
    cluster.set(|m| {
        m.faults.insert("LeaseRevoke".into(), Fault::Delay(Duration::from_secs(4)));
    });
    ask(&sandbox, &cluster, "defrag").expect(0, &["3 of 3 members"]);
    assert!(cluster.upkeep().records.is_empty() && cluster.upkeep().leases.is_empty());
    ask(&sandbox, &cluster, "defrag --exit-on-noop").expect(10, &["0 of 3 members"]);
}

#[test]
fn no_name_reaches_the_terminal_as_it_is() {
    let odd = "m\x1b[31m\nerror: \u{202e}\u{9b}2J";
    let spelt = "m\\x1b[31m\\x0aerror: \\u202e\\u009b2J";
    let cluster = three();
    cluster.members[1].set(|m| m.defrag.takes = Duration::from_millis(1));
    cluster.set(|m| {
        for listed in &mut m.members {
            listed.name = odd.into();
        }
    });
    let id = cluster.members[1].member().id;
    let sandbox = Sandbox::new();
    let raise = |kind| cluster.set(|m| m.alarms = vec![(id, kind)]);
    for line in [
        "status",
        "health -w table",
        "member list",
        "member list -w table",
        "defrag --dry-run",
        "defrag --force -w table",
        "alarm list",
        "alarm disarm --dry-run",
        "reclaim --no-scan --dry-run",
        "reclaim --no-scan --keep-revisions 10 -w table",
        "snapshot save out.db",
    ] {
        raise(if line.starts_with("defrag") { NOSPACE } else { 1 });
        let ran = ask(&sandbox, &cluster, line);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        let is_obeyed = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!said.contains(is_obeyed), "{line}: {said:?}");
        assert!(!said.lines().any(|line| line.starts_with("error: \\u202e")), "{line}: {said}");
        assert!(said.contains(spelt) || line.starts_with("snapshot"), "{line}: {said}");
    }
    // As an error, and its hints.
    raise(crate::fake_etcd::CORRUPT);
    for line in ["defrag", "reclaim", "alarm disarm"] {
        let ran = ask(&sandbox, &cluster, line).expect(6, &["m\\x1b[31m"]);
        assert!(!ran.stderr.contains('\x1b'), "{ran}");
        // A line break in it begins no line of ours.
        let errors = ran.stderr.lines().filter(|line| line.starts_with("error: ")).count();
        assert_eq!(errors, 1, "{ran}");
    }
}
