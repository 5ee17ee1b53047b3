//! `status`, `health`, `wait` and `consistency` against clusters that are not there.

use std::fs::{self, File};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::fake_etcd::{CORRUPT, FakeCluster, FakeEtcd, Fault, Member, NOSPACE, refusals};
use crate::support::{Ran, Sandbox};

fn three() -> FakeCluster {
    FakeCluster::start(["m1", "m2", "m3"].map(|name| Member::new(name).revision(100)))
}

/// Limits that only an endless wait passes, however busy the machine is.
const PATIENT: &str = "--command-timeout 60s --dial-timeout 60s";

/// Runs a command on a cluster that answers or refuses.
fn ask(cluster: &FakeCluster, line: &str) -> Ran {
    Sandbox::new().run(&format!("{line} --endpoints {} {PATIENT}", cluster.endpoints()))
}

/// Looks again until it is so; false after two minutes.
fn comes(is_so: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !is_so() {
        if began.elapsed() > Duration::from_secs(120) {
            return false;
        }
        thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Runs a command that does not end, and interrupts it when it is so.
#[track_caller]
fn interrupted(sandbox: &Sandbox, line: &str, is_so: impl Fn(&str, &str) -> bool) -> Ran {
    let (out, err) = (sandbox.path("watched.out"), sandbox.path("watched.err"));
    let mut command = sandbox.command();
    command.args(line.split_whitespace());
    command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
    let mut child = command.spawn().expect("the program");
    let read = |path: &PathBuf| fs::read_to_string(path).expect("its output");
    let came = comes(|| is_so(&read(&out), &read(&err)));
    kill_process(Pid::from_child(&child), Signal::INT).expect("a signal");
    let code = child.wait().expect("its end").code().expect("a code");
    let ran = Ran { line: line.to_owned(), code, stdout: read(&out), stderr: read(&err) };
    assert!(came, "waited too long: {ran}");
    ran
}

fn finding<'a>(value: &'a Value, id: &str) -> &'a Value {
    let findings = value["findings"].as_array().expect("findings");
    findings.iter().find(|finding| finding["id"] == id).unwrap_or_else(|| panic!("{id}: {value}"))
}

/// Changes one member while the program runs: when it asks for the second time, so that it has seen
/// the first answer.
fn later<T>(
    run: impl FnOnce() -> T,
    method: &str,
    fake: &FakeEtcd,
    change: impl FnOnce(&mut Member) + Send,
) -> T {
    let before = fake.calls(method);
    thread::scope(|scope| {
        scope.spawn(move || {
            assert!(comes(|| fake.calls(method) >= before + 2), "{method}");
            fake.set(change);
        });
        run()
    })
}

#[track_caller]
fn numbers_are_safe(value: &Value) {
    match value {
        Value::Number(number) => {
            let number = number.as_i64().expect("a whole number");
            assert!(number.abs() < 1 << 53, "{number}");
        }
        Value::Array(items) => items.iter().for_each(numbers_are_safe),
        Value::Object(map) => map.values().for_each(numbers_are_safe),
        _ => {}
    }
}

#[test]
fn a_healthy_cluster_is_shown_in_every_format() {
    let cluster = three();
    let status = ask(&cluster, "status -w json").expect(0, &[]).json();
    numbers_are_safe(&status);
    assert_eq!((&status["version"], &status["verdict"]), (&json!(1), &json!("ok")));
    assert_eq!(status["cluster_id"], "cdf8181e32674f2b");
    for (member, fake) in status["members"].as_array().unwrap().iter().zip(&cluster.members) {
        let truth = fake.member();
        assert_eq!(member["endpoint"], fake.url());
        assert_eq!(member["id"], format!("{:x}", truth.id));
        assert_eq!(member["name"], truth.name);
        assert_eq!(member["healthy"], true);
        assert_eq!(member["db_size"], truth.db_size);
        assert_eq!(member["reclaimable"], truth.db_size - truth.db_size_in_use);
        assert_eq!(
            (&member["quota"], &member["quota_source"]),
            (&json!(2_147_483_648_u64), &json!("status"))
        );
        assert_eq!(member["is_leader"], truth.name == "m1");
    }
    ask(&cluster, "status")
        .expect(0, &["m3", "follower", "20 KiB (50%)", "0% of 2 GiB", "verdict: ok"]);
    ask(&cluster, "status -w table").expect(0, &["STORAGE VERSION", "3.6.0", "RECLAIMABLE"]);
    ask(&cluster, "status -w fields").expect(0, &["\"members.0.name\" : \"m1\""]);
    // The question for alarms would add an entry to the log; every status tells them.
    assert_eq!(cluster.members[0].calls("Alarm"), 0);
    let health = ask(&cluster, "health -w json").expect(0, &[]).json();
    numbers_are_safe(&health);
    assert_eq!(
        (&health["quorum"]["healthy"], &health["quorum"]["may_fail"]),
        (&json!(3), &json!(1))
    );
    ask(&cluster, "health")
        .expect(0, &["quorum: yes; a read goes through 3 of 3 voters, 1 more may fail"]);
    ask(&cluster, "health -w table").expect(0, &["| m2", "yes"]);
}

#[test]
fn what_is_left_is_shown_when_members_are_down() {
    let mut cluster = three();
    cluster.members[1].stop();
    for verb in ["status", "health"] {
        let ran = ask(&cluster, &format!("{verb} -w json")).expect(3, &[]);
        let value = ran.json();
        let member = &value["members"][1];
        assert_eq!((&member["name"], &member["healthy"]), (&json!("m2"), &json!(false)), "{ran}");
        assert_eq!(
            (&member["error"]["code"], &member["error"]["kind"]),
            (&json!(4), &json!("unreachable"))
        );
        assert_eq!(value["members"][2]["healthy"], true);
        assert_eq!(value["verdict"], "critical");
        ask(&cluster, verb).expect(3, &["connection refused", "no more may fail", "m3"]);
    }
    // Slow is as good as down, within the limit.
    cluster.members[2].set(|m| drop(m.faults.insert("Status".into(), Fault::Silent)));
    let line = format!("status --command-timeout 3s --endpoints {}", cluster.endpoints());
    let ran = Sandbox::new().run(&line).expect(3, &["no answer within 3 s", "m1"]);
    assert_eq!(ran.stdout.matches("DOWN").count(), 2, "{ran}");
    for fake in &mut cluster.members {
        fake.stop();
    }
    for verb in ["status", "health", "status --cluster", "health --cluster"] {
        let value = ask(&cluster, &format!("{verb} -w json")).expect(4, &[]).json();
        assert_eq!(
            (&value["verdict"], &value["cluster_id"]),
            (&json!("unreachable"), &json!(null))
        );
        let ran = ask(&cluster, verb).expect(4, &["verdict: unreachable", "connection refused"]);
        assert_eq!(ran.stdout.matches("crictl").count(), 2, "one line, with the word twice: {ran}");
    }
    let tls = cluster.endpoints().replace("http:", "ftp:");
    Sandbox::new().run(&format!("status --endpoints {tls}")).expect(2, &["scheme is not"]);
}

#[test]
fn a_cluster_without_a_leader_has_no_quorum() {
    let mut cluster = three();
    cluster.members[0].stop();
    cluster.set(|member| member.leader = 0);
    let ran = ask(&cluster, "health")
        .expect(4, &["quorum: NO; a read goes through 0 of 3", "it knows no leader"]);
    assert!(ran.stdout.contains("there is no quorum"), "{ran}");
    let dead = &cluster.members[0].member().name;
    let ran = ask(&cluster, "status").expect(3, &["leader -, term", dead]);
    assert_eq!(ran.stdout.matches("DOWN").count(), 1, "{ran}");
    let value = ask(&cluster, "status -w json").expect(3, &[]).json();
    assert_eq!(value["verdict"], "critical");
    finding(&value, "no-leader");
}

#[test]
fn alarms_decide_the_verdict() {
    let cluster = three();
    let id = cluster.members[1].member().id;
    cluster.set(|member| {
        member.alarms = vec![(id, NOSPACE)];
        (member.db_size, member.quota) = (99 << 20, 100 << 20);
        member.db_size_in_use = 20 << 20;
    });
    let value = ask(&cluster, "status -w json").expect(0, &[]).json();
    assert_eq!(
        value["alarms"],
        json!([{"id": format!("{id:x}"), "name": "m2", "alarm": "NOSPACE"}])
    );
    assert_eq!(value["findings"][0]["id"], "nospace");
    let next = value["findings"][0]["next"].as_array().unwrap();
    assert_eq!(next.len(), 6, "reclaim, or compact, three times defrag, disarm: {next:?}");
    assert!(next[4].as_str().unwrap().contains(&cluster.members[0].url()), "the leader last");
    assert_eq!(finding(&value, "quota")["severity"], "critical");
    ask(&cluster, "health")
        .expect(3, &["it has raised NOSPACE", "quorum: yes; a read goes through 3 of 3"]);
    // One member holds the alarms of all.
    cluster.set(|member| member.alarms = vec![(id, CORRUPT)]);
    for verb in ["status", "health", "consistency"] {
        ask(&cluster, verb).expect(6, &["CORRUPT alarm of m2"]);
    }
}

#[test]
fn learners_old_versions_and_odd_quotas() {
    let members = [
        Member::new("m1").version("3.5.35").revision(100),
        Member::new("m2").version("3.6.16").revision(90),
        Member::new("m3").learner().revision(100),
    ];
    let cluster = FakeCluster::start(members);
    let value = ask(&cluster, "status -w json").expect(0, &[]).json();
    // The fake has no /metrics.
    let first = &value["members"][0];
    assert_eq!(
        (&first["quota"], &first["quota_source"]),
        (&json!(2_147_483_648_u64), &json!("assumed"))
    );
    assert_eq!(value["members"][1]["revision_lag"], 10);
    assert_eq!(
        (&value["members"][2]["is_learner"], &value["members"][2]["healthy"]),
        (&json!(true), &json!(true))
    );
    for id in ["versions", "learner", "quota-assumed", "even"] {
        finding(&value, id);
    }
    assert_eq!(value["quorum"]["voters"], 2);
    ask(&cluster, "status").expect(0, &["0% of 2 GiB?", "learner"]);
    let learner = cluster.members[2].endpoint();
    let told = "only a learner was asked; it cannot tell whether there is a quorum";
    let ran = Sandbox::new().run(&format!("health --endpoints {learner}"));
    ran.expect(3, &["quorum: unknown", "verdict: warning", told]);
    let value = ask(&cluster, "consistency -w json").expect(3, &[]).json();
    assert_eq!((&value["revision"], &value["verdict"]), (&json!(90), &json!("equal")));
    assert_eq!(value["members"][0]["hash_revision"], json!(null));
    assert!(finding(&value, "not-compared")["message"].as_str().unwrap().contains("learner"));
}

#[test]
fn members_are_discovered_and_those_not_asked_are_named() {
    let mut cluster = three();
    let one = cluster.members[0].endpoint();
    let run = |line: &str| Sandbox::new().run(&format!("{line} --endpoints {one} {PATIENT}"));
    run("status").expect(0, &["not asked: m2, m3; --cluster"]);
    run("health").expect(0, &["through 1 of 3 voters, 1 were asked"]);
    run("consistency").expect(0, &["verdict: alone", "next: add --cluster"]);
    let ran = run("status --cluster").expect(0, &["m3"]);
    assert!(!ran.stdout.contains("not asked"), "{ran}");
    cluster.members[2].stop();
    run("status --cluster").expect(3, &["m3", "that address leads every machine to itself"]);
    run("consistency --cluster").expect(3, &["verdict: equal", "m3 gave no hash"]);
    // A member that was added and has not started tells nobody where it is.
    cluster.set(|member| {
        member.members[2].client_urls.clear();
        member.members[2].name.clear();
    });
    let id = format!("{:x}", cluster.members[2].member().id);
    let ran = run("status --cluster").expect(3, &["has not started yet"]);
    let row = ran.stdout.lines().find(|line| line.starts_with(&id)).expect("its row");
    assert!(row.contains("NOT STARTED"), "{ran}");
    run("health --cluster").expect(3, &["NOT STARTED", &id]);
    run("status --cluster -w table").expect(3, &["NOT STARTED"]);
}

#[test]
fn a_narrow_terminal_has_room_for_three_members() {
    let cluster = three();
    let id = cluster.members[1].member().id;
    cluster.set(|member| {
        member.revision = 12_345_678;
        member.alarms = vec![(id, NOSPACE)];
    });
    let widest = |line: &str, columns: &str| {
        let sandbox = Sandbox::new();
        let mut command = sandbox.command();
        command.args(line.split(' ')).args(["--endpoints", &cluster.endpoints()]);
        let ran = Ran::of(line, command.env("COLUMNS", columns)).expect(0, &["NOSPACE"]);
        let rows = ran.stdout.lines().take_while(|line| !line.starts_with("verdict"));
        (rows.map(|row| row.chars().count()).max().unwrap_or(0), ran)
    };
    let (width, ran) = widest("status", "80");
    assert!(width <= 80 && ran.stdout.contains("QUOTA "), "{width} {ran}");
    let (width, ran) = widest("status", "200");
    assert!(width > 80 && ran.stdout.contains("RAFT INDEX"), "{width} {ran}");
    assert_eq!(widest("status", "").1.stdout, ran.stdout, "piped: the full form");
    let (width, ran) = widest("status -w table", "80");
    assert!(width <= 80 && !ran.stdout.contains("ERRORS"), "{width} {ran}");
    cluster.members[0].set(|member| member.errors = vec!["disk is odd".into()]);
    let (_, ran) = widest("status -w table", "200");
    assert!(ran.stdout.contains("ERRORS") && !ran.stdout.contains("memberID"), "{ran}");
}

#[test]
fn another_clusters_member_is_told_apart() {
    let cluster = three();
    cluster.members[2].set(|member| member.cluster_id = 0xfeed);
    ask(&cluster, "status").expect(3, &["2 clusters", "feed"]);
    ask(&cluster, "consistency").expect(1, &["different clusters"]);
}

#[test]
fn users_are_told_what_they_may_not() {
    let cluster = FakeCluster::start(["m1", "m2"].map(|name| Member::new(name).auth("rootpw")));
    for verb in ["status", "health", "consistency"] {
        ask(&cluster, verb).expect(5, &["--user NAME"]);
    }
    let app = "--user app --password app";
    ask(&cluster, &format!("status {app}")).expect(0, &["leader"]);
    ask(&cluster, &format!("health {app}")).expect(0, &["through 2 of 2 voters"]);
    // Said before the members are asked; the first one tells what a user may.
    ask(&cluster, &format!("consistency {app}")).expect(5, &["app", "role root"]);
    assert_eq!(cluster.members[1].calls("HashKV"), 0);
    ask(&cluster, "consistency --user root --password rootpw").expect(0, &["equal"]);
    for verb in ["status", "status --cluster"] {
        let ran = ask(&cluster, &format!("{verb} --user app --password wrong"));
        let ran = ran.expect(5, &["authentication failed", "verdict: no-access"]);
        assert_eq!(ran.stdout.matches("REFUSED").count(), 2, "{ran}");
        assert_eq!(ran.stdout.matches("next: ").count(), 1, "{ran}");
    }
    let tls = cluster.endpoints().replace("http:", "https:");
    let ran = Sandbox::new().run(&format!("health --endpoints {tls} {PATIENT}"));
    let ran = ran.expect(5, &["verdict: no-access", "plain http", "unknown"]);
    assert!(!ran.stdout.contains("NO "), "{ran}");
}

#[test]
fn a_member_that_forgot_who_asks_is_told_again() {
    let fake = FakeEtcd::start(Member::new("m1").auth("rootpw"));
    // With a token that it gave out and knows no more, every call is refused from some time on.
    let forget = |member: &mut Member| {
        let (code, text) = refusals::BAD_TOKEN;
        member.faults.insert("Status".into(), Fault::Error(code, text.into()));
    };
    let sandbox = Sandbox::new();
    let line = format!(
        "status --watch=200ms -w json --endpoints {} --user root --password rootpw {PATIENT}",
        fake.endpoint()
    );
    let run = || interrupted(&sandbox, &line, |_, _| fake.calls("Authenticate") > 1);
    later(run, "Status", &fake, forget).expect(130, &[]);
}

#[test]
fn hashes_are_compared_at_one_revision() {
    let cluster = three();
    // Sizes are nobody's business here.
    cluster.members[2].set(|member| (member.db_size, member.revision) = (9_000_000, 95));
    let value = ask(&cluster, "consistency -w json").expect(0, &[]).json();
    assert_eq!((&value["verdict"], &value["revision"]), (&json!("equal"), &json!(95)));
    ask(&cluster, "consistency --rev 40").expect(0, &["compared at revision 40", "equal"]);

    cluster.members[1].set(|member| {
        member.hashes.insert(95, 1);
    });
    let value = ask(&cluster, "consistency -w json").expect(6, &[]).json();
    assert_eq!((&value["verdict"], &value["members"][1]["odd"]), (&json!("differs"), &json!(true)));
    assert_eq!(value["members"][0]["odd"], false);
    ask(&cluster, "consistency").expect(6, &["m2 holds other data at revision 95", "DIFFERS"]);
    cluster.members[2].set(|member| {
        member.hashes.insert(95, 2);
    });
    let ran = ask(&cluster, "consistency").expect(6, &["cannot be told which is right"]);
    assert!(!ran.stdout.contains("DIFFERS"), "{ran}");
    let two = FakeCluster::start(["m1", "m2"].map(Member::new));
    two.members[0].set(|member| {
        member.hashes.insert(1, 1);
    });
    ask(&two, "consistency").expect(6, &["cannot be told which is right"]);
}

#[test]
fn a_comparison_is_tried_again_while_members_compact_or_catch_up() {
    let cluster = three();
    cluster.set(|member| member.compact_revision = 80);
    let late = &cluster.members[2];
    late.set(|member| (member.revision, member.compact_revision) = (50, 20));
    let caught_up = |member: &mut Member| (member.revision, member.compact_revision) = (100, 80);
    let line = "consistency --patience 120s";
    let ran = later(|| ask(&cluster, line), "HashKV", late, caught_up);
    ran.expect(
        0,
        &["trying again", "has compacted meanwhile", "compared at revision 100", "equal"],
    );

    late.set(|member| member.compact_revision = 90);
    let ran = ask(&cluster, "consistency --patience 500ms");
    ran.expect(3, &["verdict: not comparable", "different compactions cannot be compared"]);
    let ran = later(|| ask(&cluster, line), "HashKV", late, caught_up);
    ran.expect(0, &["members have compacted at different revisions", "verdict: equal"]);

    let all = &cluster.members[0];
    let grow = |member: &mut Member| member.revision = 120;
    cluster.members[1].set(grow);
    late.set(grow);
    let ran = later(|| ask(&cluster, &format!("{line} --rev 120")), "HashKV", all, grow);
    ran.expect(0, &["has not reached that revision yet", "verdict: equal"]);
    let line = "consistency --patience 300ms --rev";
    ask(&cluster, &format!("{line} 130")).expect(9, &["no member has reached revision 130"]);
    ask(&cluster, &format!("{line} 10")).expect(9, &["revision 10 has been compacted"]);
    ask(&cluster, &format!("{line} 0")).expect(2, &[]);
    cluster.members[1].set(|m| drop(m.faults.insert("HashKV".into(), refusals::STOPPED.into())));
    ask(&cluster, "consistency").expect(3, &["m2 gave no hash: etcdserver: server stopped"]);
    cluster.set(|m| drop(m.faults.insert("HashKV".into(), refusals::STOPPED.into())));
    ask(&cluster, "consistency").expect(4, &["verdict: unknown"]);
    cluster.members[0].set(|member| member.faults.clear());
    let ran = ask(&cluster, "consistency").expect(3, &["verdict: alone", " status"]);
    assert!(!ran.stdout.contains("--cluster"), "{ran}");
}

#[test]
fn waiting_ends_when_it_is_so_or_says_what_was_missing() {
    let mut cluster = three();
    let run = |cluster: &FakeCluster, until: &str, timeout: &str| {
        ask(cluster, &format!("wait --until {until} --timeout {timeout} --interval 100ms -w json"))
    };
    for until in ["healthy", "leader", "no-alarm"] {
        let value = run(&cluster, until, "60s").expect(0, &[]).json();
        assert_eq!(
            (&value["met"], &value["missing"], &value["looks"]),
            (&json!(true), &json!(null), &json!(1))
        );
    }
    let id = cluster.members[0].member().id;
    let second = &cluster.members[1];
    second.set(|member| member.leader = 0);
    let back = |member: &mut Member| member.leader = id;
    let ran = later(|| run(&cluster, "healthy", "120s"), "Status", second, back);
    let ran = ran.expect(0, &["waiting: 2 of 3 members are healthy (m2: it knows no leader"]);
    assert!(ran.json()["looks"].as_u64().unwrap() > 1, "{ran}");

    cluster.set(|member| member.alarms = vec![(id, NOSPACE)]);
    let value = run(&cluster, "no-alarm", "400ms").expect(4, &[]).json();
    assert_eq!(
        (&value["met"], &value["missing"]),
        (&json!(false), &json!("raised: NOSPACE of m1"))
    );
    run(&cluster, "leader", "60s").expect(0, &[]);
    cluster.members[2].stop();
    let line = "wait --until healthy --timeout 3s --interval 100ms";
    let ran = ask(&cluster, line).expect(4, &["healthy: not met within", "m3: connection refused"]);
    // The last look has little time, the first one enough.
    assert!(ran.stderr.contains("waiting: 1 of 3 members are healthy"), "{ran}");
    let ran = ask(&cluster, "wait --until leader --timeout 60s --cluster");
    ran.expect(0, &["leader: met"]);
    for fake in &mut cluster.members {
        fake.stop();
    }
    let line = format!("{line} --cluster");
    ask(&cluster, &line).expect(4, &["not met within", "connection refused"]);
    ask(&cluster, "wait --until leader --timeout 1s --interval 1ms").expect(2, &["shortest"]);
    let auth = FakeCluster::start([Member::new("m1").auth("rootpw")]);
    ask(&auth, "wait --until leader --timeout 60s").expect(5, &["no member answers"]);
}

#[test]
fn watching_ends_with_the_interrupt_or_the_reader() {
    let mut cluster = three();
    let endpoints = cluster.endpoints();
    let sandbox = Sandbox::new();
    let watch = |flags: &str, is_so: &dyn Fn(&str, &str) -> bool| {
        let line = format!("{flags} --endpoints {endpoints} {PATIENT}");
        interrupted(&sandbox, &line, is_so)
    };
    let two = |out: &str, _: &str| out.lines().count() > 1;
    let ran = watch("status --watch=200ms -w json", &two).expect(130, &[]);
    let lines: Vec<Value> =
        ran.stdout.lines().map(|line| serde_json::from_str(line).expect("a line")).collect();
    assert!(lines.len() > 1 && lines.iter().all(|line| line["verdict"] == "ok"), "{ran}");
    let two = |out: &str, _: &str| out.matches("quorum: yes").count() > 1;
    let ran = watch("health --watch=200ms", &two).expect(130, &[]);
    assert!(!ran.stdout.contains('\x1b'), "no terminal, no escapes: {ran}");
    // The reader goes away: silence, and an end.
    let program = format!("$ETCDKIT status --watch=100ms -w json --endpoints {endpoints}");
    let ran = sandbox.sh(&format!("{{ {program}; echo $? >&2; }} | head -n 1")).expect(0, &[]);
    assert_eq!((ran.stdout.lines().count(), ran.stderr.as_str()), (1, "0\n"), "{ran}");
    // An answer that does not come holds no interrupt up.
    cluster.set(|m| drop(m.faults.insert("Status".into(), Fault::Silent)));
    let before = cluster.members[0].calls("Status");
    let line = format!("status --watch --endpoints {endpoints} --command-timeout 170s");
    let asked = |_: &str, _: &str| cluster.members[0].calls("Status") > before;
    interrupted(&sandbox, &line, asked).expect(130, &[]);
    for fake in &mut cluster.members {
        fake.stop();
    }
    let two = |out: &str, _: &str| out.matches("verdict: unreachable").count() > 1;
    watch("status --watch=200ms --cluster", &two).expect(130, &["connection refused"]);
    sandbox.run("status --watch=1ms").expect(2, &["the shortest interval is 100ms"]);
}

#[test]
fn a_servers_words_do_not_reach_the_terminal() {
    let cluster = three();
    cluster.set(|member| {
        member.errors = vec!["\x1b[2Jgone".into()];
        member.members[1].name = "m\x1b[31m2".into();
    });
    for line in ["status", "status -w table", "health", "health -w table", "consistency"] {
        let ran = ask(&cluster, line).expect(0, &["m\\x1b[31m2"]);
        assert!(!ran.stdout.contains('\x1b'), "{ran}");
    }
}
