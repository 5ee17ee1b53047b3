//! `endpoint`, `member list` and `alarm list` under our own name, and the program as etcdctl and
//! etcdutl.

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::fake_etcd::{CORRUPT, FakeCluster, FakeEtcd, Fault, Member, NOSPACE, refusals};
use crate::support::{Ran, Sandbox, skipped, snapshot};

fn three() -> FakeCluster {
    FakeCluster::start(["m1", "m2", "m3"].map(Member::new))
}

/// The program under another name.
fn linked(sandbox: &Sandbox, name: &str) -> PathBuf {
    let path = sandbox.path(name);
    if !sandbox.exists(name) {
        symlink(env!("CARGO_BIN_EXE_etcdkit"), &path).expect("a link");
    }
    path
}

pub(crate) fn run(sandbox: &Sandbox, name: &str, line: &str) -> Ran {
    run_with(sandbox, name, line, &[])
}

fn run_with(sandbox: &Sandbox, name: &str, line: &str, variables: &[(&str, &str)]) -> Ran {
    let mut command = Command::new(linked(sandbox, name));
    command.env_clear().current_dir(sandbox.path("."));
    command.env("ETCDKIT_AUDIT_LOG", sandbox.path("audit.jsonl"));
    command.envs(variables.iter().copied()).args(line.split_whitespace());
    Ran::of(&format!("{name} {line}"), &mut command)
}

#[test]
fn ids_keep_every_digit() {
    let three = three();
    let sandbox = Sandbox::new();
    let id = three.members[0].member().id;
    assert!(id > 1 << 63);
    for (line, path) in [
        ("endpoint status", "/0/Status/header/member_id"),
        ("endpoint hashkv", "/0/HashKV/header/member_id"),
        ("alarm list", "/header/member_id"),
        ("member list", "/header/member_id"),
    ] {
        let words = format!("{line} -w json --endpoints {}", three.endpoints());
        let ran = sandbox.run(&words).expect(0, &[]);
        assert_eq!(ran.json().pointer(path), Some(&json!(id)), "{ran}");
        assert_eq!(ran.stderr, "", "{ran}");
    }
    let list = sandbox.run(&format!("member list -w json --hex --endpoints {}", three.endpoints()));
    let ids = list.json();
    let ids = ids["members"].as_array().expect("members").iter();
    assert!(ids.clone().any(|member| member["ID"] == format!("{id:x}")), "{list}");
}

#[test]
fn some_that_fail_leave_the_others_on_the_screen() {
    let mut three = three();
    three.members[1].stop();
    let sandbox = Sandbox::new();
    let dead = three.members[1].endpoint();
    for command in ["status", "hashkv"] {
        let line = format!("endpoint {command} --endpoints {}", three.endpoints());
        let ran = sandbox.run(&line).expect(3, &["1 of 3 endpoints gave no answer", &dead]);
        assert_eq!(ran.stdout.lines().count(), 2, "{ran}");
        let ran = sandbox.run(&format!("{line} -w json")).expect(3, &[]);
        assert_eq!(ran.json().as_array().map(Vec::len), Some(2), "{ran}");
        let error: Value = serde_json::from_str(&ran.stderr).expect("JSON on stderr");
        assert_eq!(error["error"]["kind"], "partial", "{ran}");
        assert!(error["error"]["message"].as_str().expect("text").contains(&dead), "{ran}");
        // As etcdctl: a line of its own, the rest, exit 1.
        let ran = run(&sandbox, "etcdctl", &line).expect(1, &["connection refused"]);
        assert!(ran.stderr.starts_with("Failed to get the "), "{ran}");
        assert_eq!(ran.stdout.lines().count(), 2, "{ran}");
        let is_last_told = ran.stderr.lines().any(|line| line.starts_with("Error: "));
        assert_eq!(is_last_told, command == "hashkv", "{ran}");
    }
    let line = format!("endpoint health --endpoints {}", three.endpoints());
    let ran = sandbox.run(&line).expect(3, &["1 of 3 endpoints unhealthy", &dead]);
    assert_eq!(ran.stdout.matches(" is healthy: ").count(), 2, "{ran}");
    assert!(ran.stderr.contains(" is unhealthy: failed to commit proposal: "), "{ran}");
    let rows = sandbox.run(&format!("{line} -w json")).expect(3, &[]).json();
    assert_eq!(rows.as_array().map(Vec::len), Some(3));
    assert_eq!(rows[1]["health"], false);
    assert!(rows[1]["took"].as_str().is_some_and(|took| took.ends_with('s')), "{rows}");
    let ran = run(&sandbox, "etcdctl", &line).expect(1, &["Error: unhealthy cluster"]);
    assert_eq!(ran.stdout.matches(" is healthy: ").count(), 2, "{ran}");

    // The others list all three; only the dead one is missed.
    let line =
        format!("endpoint status --cluster --endpoints {},{dead}", three.members[0].endpoint());
    let ran = sandbox.run(&line).expect(3, &["1 of 3"]);
    assert_eq!(ran.stdout.lines().count(), 2, "{ran}");
}

#[test]
fn all_that_fail_say_why_by_the_exit_code() {
    let mut three = three();
    for member in &mut three.members {
        member.stop();
    }
    let sandbox = Sandbox::new();
    for line in ["endpoint status", "endpoint hashkv", "member list", "alarm list"] {
        let line = format!("{line} -w json --endpoints {}", three.endpoints());
        let error = sandbox.run(&line).expect(4, &[]).error();
        assert_eq!(error["kind"], "unreachable", "{line}");
        run(&sandbox, "etcdctl", &line).expect(1, &["connection refused"]);
    }
    let line = format!("endpoint health --endpoints {}", three.endpoints());
    sandbox.run(&line).expect(4, &["3 of 3 endpoints unhealthy"]);
    let line = format!("endpoint status --cluster --endpoints {}", three.endpoints());
    let words = "failed to fetch endpoints from etcd cluster member list: ";
    sandbox.run(&line).expect(4, &[words]);
    let ran = run(&sandbox, "etcdctl", &line).expect(1, &[]);
    assert!(ran.stderr.starts_with(&format!("Error: {words}")), "{ran}");
    let ran = run(&sandbox, "etcdctl", &line.replace(" --cluster", " -w json")).expect(1, &[]);
    assert_eq!(ran.stdout, "null\n", "{ran}");
}

#[test]
fn alarms_make_every_endpoint_unhealthy() {
    let three = three();
    let id = three.members[2].member().id;
    let sandbox = Sandbox::new();
    let line = format!("endpoint health --endpoints {}", three.endpoints());
    for (alarms, words, code) in [
        (vec![(id, NOSPACE)], "Active Alarm(s): NOSPACE", 1),
        (vec![(id, CORRUPT)], "Active Alarm(s): CORRUPT", 6),
        (vec![(id, NOSPACE), (0, 0)], "Active Alarm(s): NOSPACE UNKNOWN", 1),
    ] {
        three.set(|member| member.alarms.clone_from(&alarms));
        let ran = sandbox.run(&line).expect(code, &[words, "3 of 3 endpoints unhealthy"]);
        assert_eq!(ran.stdout, "", "{ran}");
        if code == 1 {
            let hint = format!("hint: etcdkit --endpoints={} alarm list\n", three.endpoints());
            assert!(ran.stderr.ends_with(&hint), "{ran}");
        }
        run(&sandbox, "etcdctl", &line).expect(1, &[words, "Error: unhealthy cluster"]);
        let list =
            run(&sandbox, "etcdctl", &format!("alarm list --endpoints {}", three.endpoints()));
        assert_eq!(list.stdout.lines().count(), alarms.len(), "{list}");
        let first = format!("memberID:{id} alarm:");
        assert!(list.code == 0 && list.stdout.starts_with(&first), "{list}");
    }
    // etcdctl has no table of alarms; we do.
    let line = format!("alarm list -w table --endpoints {}", three.endpoints());
    sandbox.run(&line).expect(0, &["NOSPACE", "NONE"]);
    run(&sandbox, "etcdctl", &line).expect(4, &["Error: table not supported as output format"]);
}

#[test]
fn a_refusal_after_consensus_is_health() {
    let fake = FakeEtcd::start(Member::new("m1").auth("rootpw"));
    let sandbox = Sandbox::new();
    let line = format!("endpoint health --endpoints {}", fake.endpoint());
    // The user may read nothing but its own keys, and yet the member serves.
    sandbox.run(&format!("{line} --user app:app")).expect(0, &[" is healthy: "]);
    sandbox.run(&format!("{line} --user app:wrong")).expect(5, &["authentication failed"]);
    run(
        &sandbox,
        "etcdctl",
        &format!("member list --user app:wrong --endpoints {}", fake.endpoint()),
    )
    .expect(2, &["Error: ", "authentication failed"]);

    let fake = FakeEtcd::start(Member::new("m1").fault("Alarm", refusals::TOO_MANY));
    let line = format!("endpoint health --endpoints {}", fake.endpoint());
    sandbox.run(&line).expect(1, &["Unable to fetch the alarm list", "too many requests"]);
    let fake = FakeEtcd::start(Member::new("m1").fault("Range", Fault::Silent));
    let line =
        format!("endpoint health -w json --command-timeout 400ms --endpoints {}", fake.endpoint());
    let row = &sandbox.run(&line).expect(4, &[]).json()[0];
    assert_eq!(row["health"], false);
    let took = row["took"].as_str().expect("a duration");
    let took = took.strip_suffix("ms").map(|ms| ms.parse::<f64>().expect("a number"));
    // A busy machine may take seconds.
    assert!(took.is_none_or(|ms| ms >= 400.0), "{row}");
}

#[test]
fn members_are_asked_for_what_a_majority_knows() {
    let fake = FakeEtcd::start(Member::new("m1"));
    fake.set(|member| member.leader = 0);
    let sandbox = Sandbox::new();
    let line = format!("member list --endpoints {}", fake.endpoint());
    sandbox.run(&line).expect(4, &[]);
    sandbox.run(&format!("{line} --consistency s")).expect(0, &["started, m1"]);
    run(&sandbox, "etcdctl", &line).expect(1, &["Error: "]);
    run(&sandbox, "etcdctl", &format!("{line} --consistency=s")).expect(0, &["started, m1"]);
    run(&sandbox, "etcdctl", &format!("{line} --consistency=x"))
        .expect(4, &["unknown consistency"]);
}

#[test]
fn hashes_are_asked_for_at_a_revision() {
    let fake = FakeEtcd::start(Member::new("m1").revision(9));
    fake.set(|member| {
        member.hashes.insert(7, 123);
    });
    let sandbox = Sandbox::new();
    let line = format!("endpoint hashkv --rev 7 --endpoints {}", fake.endpoint());
    sandbox.run(&line).expect(0, &["123, 7"]);
    let line = format!("endpoint hashkv --rev 10 --endpoints {}", fake.endpoint());
    sandbox.run(&line).expect(1, &["required revision is a future revision"]);
    let words = "Error: ";
    let ran = run(&sandbox, "etcdctl", &line).expect(1, &[words, "is a future revision"]);
    assert_eq!(ran.stdout, "", "{ran}");
}

#[test]
fn variables_are_etcdctls() {
    let fake = FakeEtcd::start(Member::new("m1"));
    let sandbox = Sandbox::new();
    let endpoint = fake.endpoint();
    let variables = [
        ("ETCDCTL_ENDPOINTS", endpoint.as_str()),
        ("ETCDCTL_WRITE_OUT", "json"),
        ("ETCDCTL_API", "3"),
        ("ETCDCTL_FOO", "secret"),
    ];
    let ran = run_with(&sandbox, "etcdctl", "endpoint status", &variables).expect(0, &[]);
    assert_eq!(ran.json()[0]["Endpoint"], endpoint);
    assert_eq!(ran.stderr, "warning: ETCDCTL_FOO is no variable of etcdctl's\n", "{ran}");
    let variables = [("ETCDCTL_WRITE_OUT", "yaml")];
    run_with(&sandbox, "etcdctl", "endpoint status", &variables)
        .expect(4, &["Error: unsupported output format"]);
    run_with(&sandbox, "etcdctl", "endpoint status --dial-timeout x", &[]).expect(1, &["Error: "]);
    run_with(&sandbox, "etcdctl", "endpoint status --cacert /nope", &[]).expect(128, &["/nope"]);
}

#[test]
fn linked_as_etcdutl_it_prints_etcdutls_figures_and_no_more() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    let line = "snapshot status s.db";
    let ours = sandbox.run(&format!("{line} -w json")).json();
    let status = run(&sandbox, "etcdutl", &format!("{line} -w json")).expect(0, &[]).json();
    let keys: Vec<&String> = status.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["hash", "revision", "totalKey", "totalSize", "version"]);
    for key in keys {
        assert_eq!(status[key], ours[key], "{key}");
    }
    let fields = run(&sandbox, "etcdutl", &format!("{line} -w fields")).expect(0, &[]);
    assert_eq!(fields.stdout.lines().count(), 5, "{fields}");
    let table = run(&sandbox, "etcdutl", &format!("{line} -w table")).expect(0, &[]);
    assert_eq!(table.stdout.lines().count(), 5, "{table}");
    run(&sandbox, "etcdctl", line).expect(0, &[]);
    // A wrong trailer is told, though not among the figures.
    let mut wrong = snapshot("3.6");
    *wrong.last_mut().expect("a trailer") ^= 1;
    sandbox.write("wrong.db", &wrong);
    for (name, format) in [("etcdutl", "json"), ("etcdctl", "json"), ("etcdutl", "simple")] {
        let line = format!("snapshot status wrong.db -w {format}");
        let ran = run(&sandbox, name, &line).expect(1, &["the trailer says sha256"]);
        assert!(ran.stderr.contains("the trailer says") && !ran.stdout.is_empty(), "{ran}");
    }
    run(&sandbox, "etcdutl", "snapshot status nope.db").expect(1, &["Error: "]);
    run(&sandbox, "etcdutl", "snapshot status").expect(128, &["requires exactly one argument"]);

    // Its default directory, our checks.
    let words = "snapshot restore s.db --name m1 --initial-cluster m1=http://127.0.0.1:2380";
    let ran = run(&sandbox, "etcdutl", words).expect(0, &["restored s.db into ", "/m1.etcd"]);
    assert_eq!(ran.stdout, "", "{ran}");
    assert!(sandbox.exists("m1.etcd/member/snap/db"));
    run(&sandbox, "etcdutl", words).expect(1, &["Error: "]);
    run(&sandbox, "etcdutl", "defrag --data-dir m1.etcd").expect(0, &[]);
    run(&sandbox, "etcdutl", "defrag").expect(1, &["required flag(s) \"data-dir\" not set"]);
    let mut bytes = snapshot("3.6");
    bytes[9000] ^= 1;
    sandbox.write("bad.db", &bytes);
    run(&sandbox, "etcdutl", "snapshot restore bad.db --data-dir bad").expect(1, &["Error: "]);
    assert!(!sandbox.exists("bad"));
}

#[test]
fn a_name_that_is_nearly_theirs_is_ours() {
    let sandbox = Sandbox::new();
    run(&sandbox, "etcdctl-3.6", "version").expect(0, &["etcdkit version: "]);
    let ran = run(&sandbox, "etcdctl", "version").expect(0, &["etcdctl version: 3.7.3\n"]);
    assert!(ran.stderr.starts_with("this is etcdkit "), "{ran}");
    run(&sandbox, "etcdctl", "put a b").expect(1, &["Error: ", "has no put", "the real etcdctl"]);
}

#[test]
fn a_save_says_what_etcdctl_says() {
    let fake = FakeEtcd::start(Member::new("m1").revision(91).file(&snapshot("3.6")));
    let sandbox = Sandbox::new();
    let line = format!("--endpoints={} snapshot save new.db -w json", fake.endpoint());
    let ran = run(&sandbox, "etcdctl", &line).expect(0, &["Server version 3.6.0"]);
    assert_eq!(ran.stdout.lines().next(), Some("Snapshot saved at new.db"), "{ran}");
    sandbox.run("snapshot verify new.db").expect(0, &[]);
    // Our refusal to write over a file stays, with the code of a save that fails.
    run(&sandbox, "etcdctl", &line).expect(5, &["Error: "]);
    fake.set(|member| member.leader = 0);
    let line = line.replace("new.db", "other.db");
    run(&sandbox, "etcdctl", &line).expect(5, &["Error: "]);
    assert!(!sandbox.exists("other.db"));
}

/// Lines of runbooks as they stand in the documents of etcd and Kubernetes.
const RUNBOOK: &[&str] = &[
    "set -eu",
    "etcdctl endpoint health --cluster",
    "etcdctl endpoint status --cluster -w table",
    "etcdctl endpoint status --cluster -w json \
     | jq -r '.[].Status.header.member_id' | sort -u | wc -l",
    "etcdctl endpoint status --cluster -w json \
     | jq -r '.[] | select(.Status.leader == .Status.header.member_id) | .Endpoint'",
    "etcdctl endpoint status -w json | jq '.[0].Status.header.revision'",
    "etcdctl --write-out=json endpoint status --cluster | jq '[.[].Status.dbSize] | max'",
    "etcdctl endpoint status --write-out=\"json\" \
     | egrep -o '\"revision\":[0-9]*' | egrep -o '[0-9].*' | head -1",
    "etcdctl member list -w json | jq -r '.members[].clientURLs[]'",
    r#"etcdctl member list -w json | jq -r '.members[] | select(.name == "m2") | .peerURLs[0]'"#,
    "etcdctl member list | awk -F', ' '/started/ {print $3}'",
    "etcdctl endpoint hashkv --cluster -w json | jq -r '[.[].HashKV.hash] | unique | length'",
    "etcdctl endpoint health --cluster -w json | jq -e 'all(.[]; .health)'",
    "etcdctl alarm list -w json | jq '.alarms // [] | length'",
    r#"test -z "$(etcdctl alarm list)""#,
];

#[test]
fn a_runbook_runs_unchanged() {
    let three = three();
    three.set(|member| {
        member.revision = 42;
        member.hashes.insert(42, 7);
    });
    let sandbox = Sandbox::new();
    linked(&sandbox, "etcdctl");
    let has_jq = Command::new("jq").arg("--version").output().is_ok();
    if !has_jq {
        skipped("SKIPPED: the lines of the runbook that need jq, which is not here");
    }
    let lines = RUNBOOK.iter().filter(|line| has_jq || !line.contains("jq"));
    let script: Vec<&str> = lines.copied().collect();
    let endpoint = three.members[0].endpoint();
    let script = format!(
        "PATH=.:$PATH; export ETCDCTL_API=3 ETCDCTL_ENDPOINTS={endpoint}\n{}\n",
        script.join("\n")
    );
    let ran = sandbox.sh(&script).expect(0, &[]);
    // Newer greps complain of the old name.
    assert!(ran.stderr.lines().all(|line| line.contains("egrep")), "{ran}");
    if !has_jq {
        return;
    }
    let last = ran.stdout.lines().skip_while(|line| !line.starts_with('\u{2514}')).skip(1);
    let urls = three.members.iter().map(FakeEtcd::endpoint).collect::<Vec<_>>().join("\n");
    let expected = format!(
        "3\n{endpoint}\n42\n40960\n42\n{urls}\nhttp://m2.invalid:2380\nm1\nm2\nm3\n1\ntrue\n0"
    );
    assert_eq!(last.collect::<Vec<_>>().join("\n"), expected, "{ran}");
}
