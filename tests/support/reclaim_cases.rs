//! A server at its quota: `alarm disarm` that is refused, `reclaim` that brings it back, and the
//! same in the directory of a server that is stopped.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use etcd_client::{Client, GetOptions};
use etcdkit::store::{self, Alarm, Caller, Clock, Compat, Put, Quota, Range, Store};
use serde_json::Value;

use crate::ctl_cases;
use crate::fake_etcd::{CORRUPT, FakeCluster, Member, NOSPACE};
use crate::serve_child::{Served, run, until};
use crate::support::{Ran, Sandbox};

const QUOTA: u64 = 16 << 20;
const VALUE_BYTES: usize = 4 << 10;

fn served() -> Served {
    Served::start(&[&format!("--quota-backend-bytes={QUOTA}")])
}

/// Puts until the server is out of space; returns what it has then.
fn fill(served: &Served, key: impl Fn(usize) -> String) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let before = run(async {
        let mut client = served.client().await;
        for number in 0_usize.. {
            let value = vec![b'a' + u8::try_from(number % 20).unwrap(); VALUE_BYTES];
            if let Err(error) = client.put(key(number), value, None).await {
                assert!(error.to_string().contains("database space exceeded"), "{error}");
                break;
            }
        }
        all(&mut client).await
    });
    // What it has taken is in its file by then, and in its size.
    until("the size", || {
        let size = run(async { served.client().await.status().await.unwrap().db_size() });
        size >= i64::try_from(QUOTA).unwrap()
    });
    before
}

async fn all(client: &mut Client) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut kept = BTreeMap::new();
    let mut from = vec![0];
    loop {
        let options = GetOptions::new().with_from_key().with_limit(200);
        let page = client.get(from.clone(), Some(options)).await.unwrap();
        for kv in page.kvs() {
            kept.insert(kv.key().to_vec(), kv.value().to_vec());
        }
        let Some(last) = page.kvs().last().filter(|_| page.more()) else { return kept };
        from = [last.key(), &[0]].concat();
    }
}

fn keys(served: &Served) -> BTreeMap<Vec<u8>, Vec<u8>> {
    run(async { all(&mut served.client().await).await })
}

fn revision(served: &Served) -> i64 {
    run(async {
        let answer = served.client().await.get("x", None).await.unwrap();
        answer.header().unwrap().revision()
    })
}

fn line(served: &Served, words: &str) -> String {
    format!("{words} --command-timeout 60s --endpoints {}", served.address)
}

fn ask(sandbox: &Sandbox, served: &Served, words: &str) -> Ran {
    sandbox.run(&line(served, words))
}

fn start(sandbox: &Sandbox, line: &str) -> Child {
    let mut command = sandbox.command();
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn step<'a>(report: &'a Value, step: &str) -> &'a Value {
    let steps = report["steps"].as_array().unwrap();
    let last = steps.iter().rev().find(|found| found["step"] == step);
    last.unwrap_or_else(|| panic!("no step {step}: {report}"))
}

fn records(sandbox: &Sandbox) -> Vec<Value> {
    let text = fs::read_to_string(sandbox.path("audit.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_quota_filled_by_history_is_brought_back() {
    let served = served();
    let before = fill(&served, |number| format!("/registry/pods/ns/p{:02}", number % 20));
    let sandbox = Sandbox::new();

    // Too early, an alarm stays, and the sizes are told.
    let words = ["quota is 16777216", "etcdkit --endpoints=", "reclaim", "--force"];
    let ran = ask(&sandbox, &served, "alarm disarm").expect(7, &words);
    assert_eq!(ran.stdout, "", "{ran}");
    ask(&sandbox, &served, "alarm disarm --dry-run").expect(7, &["16777216"]);
    let words = ["NOSPACE of default", "next: etcdkit reclaim", "alarm:NOSPACE"];
    ask(&sandbox, &served, "alarm list").expect(0, &words);
    assert!(!sandbox.exists("audit.jsonl"));

    let plan = ask(&sandbox, &served, "reclaim --dry-run -w json").expect(0, &[]).json();
    assert_eq!((&plan["outcome"], &plan["dry_run"]), (&"dry_run".into(), &true.into()));
    assert_eq!(step(&plan, "compact")["result"], "left");
    assert!(!sandbox.exists("audit.jsonl"));
    assert_eq!(plan["space"]["groups"][0]["name"], "pods");
    assert!(plan["history_bytes"].as_i64() > Some(10 << 20), "{plan}");

    let ran = ask(&sandbox, &served, "reclaim -w json").expect(0, &[]);
    let report = ran.json();
    assert_eq!(report["outcome"], "reclaimed", "{report}");
    assert_eq!(report["writes_accepted"], true);
    assert!(report["free_percent_min"].as_i64() >= Some(20), "{report}");
    assert_eq!(report["members"][0]["defrag"], "done");
    for word in ["measure", "space", "compact", "defrag", "disarm", "prove"] {
        assert_eq!(step(&report, word)["result"], "done", "{word}: {report}");
    }
    assert!(ran.stderr.contains("no lock can be taken in etcd"), "{ran}");
    for command in ["compaction", "defrag", "alarm disarm"] {
        let lines = report["equivalent"].as_array().unwrap();
        let has = lines.iter().any(|line| line.as_str().unwrap().contains(command));
        assert!(has && ran.stderr.contains(command), "{command}: {ran}");
    }
    let record = records(&sandbox).pop().unwrap();
    assert_eq!((&record["operation"], &record["result"]), (&"reclaim".into(), &"ok".into()));
    assert_eq!(keys(&served), before);
    ask(&sandbox, &served, "alarm list").expect(0, &["no alarm is raised"]);

    // Well again, it says so, and its proof takes no revision.
    let revision = |served: &Served| revision(served);
    let at = revision(&served);
    let report = ask(&sandbox, &served, "reclaim -w json").expect(0, &[]).json();
    assert_eq!(
        (&report["outcome"], &report["writes_accepted"]),
        (&"nothing_to_do".into(), &true.into())
    );
    assert_eq!(revision(&served), at);
    ask(&sandbox, &served, "reclaim --exit-on-noop").expect(10, &["nothing to do"]);
    served.serves();
}

#[test]
fn living_data_that_fills_a_quota_is_named_and_nothing_is_lost() {
    let served = served();
    let before = fill(&served, |number| format!("/app/cache/k{number:06}"));
    let sandbox = Sandbox::new();
    let words = [
        "NO WRITES ARE ACCEPTED",
        "/app/cache/",
        "--quota-backend-bytes=33554432",
        "--quota-backend-bytes=16777216",
        "etcd.yaml",
        "del --prefix PREFIX",
        "--keep-revisions=0",
        "raised     NOSPACE",
    ];
    ask(&sandbox, &served, "reclaim").expect(3, &words);
    let report = ask(&sandbox, &served, "reclaim -w json").expect(3, &[]).json();
    assert_eq!((&report["outcome"], &report["writes_accepted"]), (&"full".into(), &false.into()));
    assert_eq!(step(&report, "disarm")["result"], "skipped");
    assert_eq!(report["space"]["groups"][0]["prefix"], "/app/cache/");
    assert_eq!(report["space"]["groups"][0]["keys"], before.len());
    assert_eq!(keys(&served), before);
    let report = ask(&sandbox, &served, "reclaim -w json --no-scan").expect(3, &[]).json();
    assert_eq!((&report["space"], &report["history_bytes"]), (&Value::Null, &Value::Null));

    // Half of it deleted, which is taken at the quota, it is brought back.
    run(async {
        let mut client = served.client().await;
        for number in (0..before.len()).step_by(2) {
            client.delete(format!("/app/cache/k{number:06}"), None).await.unwrap();
        }
    });
    let left = keys(&served);
    ask(&sandbox, &served, "reclaim --keep-revisions 0").expect(0, &["writes are accepted"]);
    assert_eq!(keys(&served), left);
    served.serves();
}

#[test]
fn an_alarm_can_be_disarmed_by_force_and_is_said_to_come_back() {
    let served = served();
    fill(&served, |number| format!("/app/cache/k{number:06}"));
    let sandbox = Sandbox::new();
    let ctl = ctl_cases::run(&sandbox, "etcdctl", &line(&served, "alarm disarm"));
    assert!(ctl.code != 0 && ctl.stderr.contains("quota is 16777216"), "{ctl}");
    let words = [
        "alarm:NOSPACE",
        "disarmed NOSPACE of default",
        "no alarm is left",
        "raises NOSPACE again",
    ];
    ask(&sandbox, &served, "alarm disarm --force").expect(0, &words);
    let record = records(&sandbox).pop().unwrap();
    assert_eq!((&record["operation"], &record["result"]), (&"alarm disarm".into(), &"ok".into()));
    ask(&sandbox, &served, "alarm disarm").expect(0, &["nothing to disarm"]);
    ask(&sandbox, &served, "alarm disarm --exit-on-noop").expect(10, &[]);
    // Without the alarm, the size is over the line all the same.
    let report = ask(&sandbox, &served, "reclaim -w json --no-scan").expect(3, &[]).json();
    assert_ne!(report["outcome"], "reclaimed", "{report}");
}

#[test]
fn killed_at_any_moment_it_goes_on_when_it_is_run_again() {
    for wait_ms in [150, 900, 1700, 2700] {
        let served = served();
        let before = fill(&served, |number| format!("/registry/pods/ns/p{:02}", number % 20));
        let sandbox = Sandbox::new();
        let mut child = start(&sandbox, &line(&served, "reclaim --keep-revisions 100"));
        sleep(Duration::from_millis(wait_ms));
        let _ = child.kill();
        child.wait().unwrap();
        // Its lock may be there for as long as its lease.
        run(async { drop(served.client().await.delete("etcdkit/lock/maintenance", None).await) });
        let words = "reclaim --keep-revisions 100 -w json";
        let report = ask(&sandbox, &served, words).expect(0, &[]).json();
        let outcome = report["outcome"].as_str().unwrap();
        assert!(["reclaimed", "nothing_to_do"].contains(&outcome), "{wait_ms}: {report}");
        assert_eq!(keys(&served), before, "{wait_ms}");
        served.serves();
    }
}

#[test]
fn odd_alarms_are_shown_and_go_and_corrupt_stops_all() {
    let cluster = FakeCluster::start(["m1", "m2", "m3"].map(Member::new));
    let sandbox = Sandbox::new();
    let on = |words: &str| format!("{words} --endpoints {}", cluster.endpoints());
    let raise = |alarms: &[(u64, i32)]| {
        for member in &cluster.members {
            member.set(|member| member.alarms = alarms.to_vec());
        }
    };
    raise(&[(0, NOSPACE), (0, 0), (0xdead, NOSPACE)]);
    let words = [
        "NOSPACE of no member (0)",
        "an alarm without a type of no member (0)",
        "NOSPACE of a member that is gone (dead)",
    ];
    sandbox.run(&on("alarm list")).expect(0, &words);
    sandbox.run(&on("alarm disarm")).expect(0, &["no alarm is left", words[0], words[1], words[2]]);
    sandbox.run(&on("alarm list")).expect(0, &["no alarm is raised"]);

    let id = cluster.members[1].member().id;
    raise(&[(id, CORRUPT)]);
    sandbox.run(&on("alarm disarm")).expect(6, &["CORRUPT is raised for m2", "--accept-corrupt"]);
    sandbox.run(&on("alarm disarm --force")).expect(6, &["CORRUPT"]);
    sandbox.run(&on("reclaim")).expect(6, &["CORRUPT is raised for m2", "nothing was done"]);
    sandbox.run(&on("alarm disarm --accept-corrupt")).expect(0, &["disarmed CORRUPT of m2"]);

    // What is not known is not under the line.
    let id = cluster.members[2].member().id;
    raise(&[(id, NOSPACE)]);
    cluster.members[2].set(|member| {
        member.faults.insert("Status".into(), crate::fake_etcd::refusals::TOO_MANY.into());
    });
    sandbox.run(&on("alarm disarm")).expect(7, &["of m3 is was not told", "nothing was disarmed"]);
}

/// A member of etcd 3.5, which says its quota on /metrics alone, where a fake does not answer.
fn without_a_quota(name: &str) -> Member {
    let mut member = Member::new(name);
    member.version = "3.5.35".into();
    member.alarms = vec![(member.id, NOSPACE)];
    member
}

#[test]
fn a_quota_that_is_assumed_makes_nothing_well() {
    let cluster = FakeCluster::start([without_a_quota("m1")]);
    let sandbox = Sandbox::new();
    let on = |words: &str| format!("{words} --endpoints {}", cluster.endpoints());
    let ran =
        sandbox.run(&on("reclaim -w json --no-scan")).expect(3, &["2147483648 bytes, is assumed"]);
    let report = ran.json();
    assert_eq!((&report["outcome"], &report["writes_accepted"]), (&"full".into(), &false.into()));
    let member = &report["members"][0];
    assert_eq!(
        (&member["quota_source"], &member["free_percent"]),
        (&"assumed".into(), &Value::Null)
    );
    assert_eq!(step(&report, "disarm")["result"], "skipped", "{report}");
    assert!(report["warnings"].to_string().contains("--quota-backend-bytes"), "{report}");
    let next = report["next"].to_string();
    assert!(next.contains("quota of m1 was not told: etcdkit") && next.contains("BYTES"), "{next}");
    assert_eq!(cluster.members[0].member().alarms.len(), 1);
    sandbox.run(&on("alarm disarm")).expect(7, &["the quota of m1 was not told"]);

    let words = "reclaim -w json --no-scan --quota-backend-bytes 8388608";
    let report = sandbox.run(&on(words)).expect(0, &[]).json();
    assert_eq!(
        (&report["outcome"], &report["writes_accepted"]),
        (&"reclaimed".into(), &true.into())
    );
    let member = &report["members"][0];
    assert_eq!(
        (&member["quota_source"], &member["quota_bytes"]),
        (&"given".into(), &8_388_608.into())
    );
    assert_eq!(cluster.members[0].member().alarms.len(), 0);
}

#[test]
fn no_history_is_read_to_learn_that_none_was_compacted() {
    let cluster = FakeCluster::start([Member::new("m1")]);
    cluster.set(|member| {
        member.revision = 5000;
        member.alarms = vec![(member.id, NOSPACE)];
    });
    let line = format!("reclaim -w json --dry-run --endpoints {}", cluster.endpoints());
    let report = Sandbox::new().run(&line).expect(0, &[]).json();
    assert_eq!(report["compaction"]["compact_revision_before"], 0);
    assert_eq!(cluster.members[0].calls("Watch"), 0);
    // Where something was, only a watch tells up to where.
    cluster.set(|member| member.compact_revision = 77);
    Sandbox::new().run(&line);
    assert!(cluster.members[0].calls("Watch") > 0, "{:?}", cluster.members[0].log());
}

#[test]
fn what_a_dry_run_saw_is_told_though_something_stands_in_the_way() {
    let mut cluster = FakeCluster::start(["m1", "m2", "m3"].map(Member::new));
    cluster.set(|member| member.alarms = vec![(member.id, NOSPACE)]);
    cluster.members[2].stop();
    let sandbox = Sandbox::new();
    let line = format!("reclaim -w json --dry-run --endpoints {}", cluster.endpoints());
    let ran = sandbox.run(&line);
    let report = ran.json();
    assert!(ran.code != 0 && ran.stderr.contains("m3"), "{ran}");
    assert_eq!((&report["outcome"], &report["dry_run"]), (&"stopped".into(), &true.into()));
    assert!(
        report["stopped"]["message"].as_str().is_some_and(|why| why.contains("m3")),
        "{report}"
    );
    assert_eq!(step(&report, "defrag")["result"], "left", "{report}");
    assert_eq!(report["members"].as_array().map(Vec::len), Some(3));
}

#[test]
fn the_command_that_goes_on_has_all_flags_that_were_given() {
    let mut cluster = FakeCluster::start(["m1", "m2", "m3"].map(Member::new));
    cluster.set(|member| member.alarms = vec![(member.id, NOSPACE)]);
    cluster.members[2].stop();
    let sandbox = Sandbox::new();
    let given = "--command-timeout 3s --keep-revisions 7 --no-scan --accept-stall";
    let ran = sandbox.run(&format!("reclaim {given} --endpoints {}", cluster.endpoints()));
    let again = "reclaim --command-timeout=3s --keep-revisions=7 --no-scan --accept-stall";
    assert!(ran.code != 0 && ran.stderr.contains(again), "{ran}");
    // It is one as it stands there, and comes to the same.
    let line = ran.stderr.lines().find(|line| line.contains(again)).unwrap();
    let line = line.split_once("etcdkit ").unwrap().1;
    let line = line.split('#').next().unwrap().replace('\'', "");
    assert_eq!(sandbox.run(&line).code, ran.code, "{line}");
}

#[test]
fn one_that_cannot_be_asked_for_a_write_has_not_refused_it() {
    let cluster = FakeCluster::start(["m1", "m2", "m3"].map(Member::new));
    let sandbox = Sandbox::new();
    let line = format!("reclaim -w json --endpoints {}", cluster.endpoints());
    let silence = |is_there: bool| {
        cluster.members[1].set(|member| {
            member.faults.clear();
            if is_there {
                member.faults.insert("Txn".into(), crate::fake_etcd::refusals::NO_LEADER.into());
            }
        });
    };
    silence(true);
    let report = sandbox.run(&line).expect(3, &[]).json();
    assert_eq!(
        (&report["outcome"], &report["writes_accepted"]),
        (&"unproved".into(), &Value::Null)
    );
    assert_eq!(report["members"][0]["accepts_writes"], true);
    assert_eq!(report["members"][1]["accepts_writes"], Value::Null);
    let detail = step(&report, "prove")["detail"].to_string();
    assert!(detail.contains("m2 could not be asked"), "{detail}");
    let words = ["it is not known whether writes are accepted"];
    let ran = sandbox.run(&line.replace("-w json", "")).expect(3, &words);
    assert!(!ran.stdout.contains("NO WRITES"), "{ran}");

    // An election passes.
    let asked = cluster.members[1].calls("Txn");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            until("a question", || cluster.members[1].calls("Txn") > asked);
            silence(false);
        });
        sandbox.run(&line).expect(0, &[]);
    });
}

/// Fills a directory as a server with a quota would; returns its living keys.
fn fill_dir(dir: &Path, key: impl Fn(usize) -> String) -> usize {
    let quota = Quota::Bytes(QUOTA);
    let mut options = store::Options::default().quota(quota);
    options.identity.name = "m1".into();
    let store = Store::open(dir, options).unwrap();
    let me = Caller::default();
    // Lives for shorter than what follows.
    store.lease_grant(&me, 77, 2).unwrap();
    let (key_of_lease, value) = (b"/leased".as_slice(), b"x".as_slice());
    store.put(&me, Put { key: key_of_lease, value, lease: 77, ..Put::default() }).unwrap();
    for number in 0_usize.. {
        let (key, value) = (key(number), vec![7; VALUE_BYTES]);
        let put = Put { key: key.as_bytes(), value: &value, ..Put::default() };
        if store.put(&me, put).is_err() {
            break;
        }
        // A server keeps it alive meanwhile.
        let _ = store.lease_keep_alive(&me, 77);
    }
    let alarms = store.alarm(&me, Alarm { action: 0, member_id: 0, alarm: 0 }).unwrap().body;
    assert_eq!(alarms.len(), 1);
    let count = count(&store);
    store.close().unwrap();
    count
}

fn count(store: &Store) -> usize {
    let all = Range { key: &[0], range_end: &[0], count_only: true, ..Range::default() };
    usize::try_from(store.range(&Caller::default(), &all).unwrap().body.count).unwrap()
}

fn pods(number: usize) -> String {
    format!("/registry/pods/ns/p{:02}", number % 20)
}

/// The directory takes writes again, under the quota, and has what it had.
fn serves_again(dir: &Path, keys: usize) {
    let options = store::Options::default().quota(Quota::Bytes(QUOTA));
    let store = Store::open(dir, options).unwrap();
    assert_eq!(count(&store), keys);
    store.put(&Caller::default(), Put { key: b"a", value: b"b", ..Put::default() }).unwrap();
    store.close().unwrap();
}

#[test]
fn a_stopped_server_at_its_quota_is_brought_back_in_its_directory() {
    let sandbox = Sandbox::new();
    let dir = sandbox.path("d");
    let keys = fill_dir(&dir, pods);
    let flags = "--data-dir d --quota-backend-bytes 16777216";
    let before = sandbox.picture();
    let plan = sandbox.run(&format!("reclaim {flags} --dry-run -w json")).expect(0, &[]).json();
    assert_eq!((&plan["outcome"], &plan["keys"]), (&"dry_run".into(), &keys.into()));
    assert_eq!(sandbox.picture(), before, "a dry run changed something");
    let report = sandbox.run(&format!("reclaim {flags} -w json")).expect(0, &[]).json();
    assert_eq!(report["outcome"], "reclaimed", "{report}");
    assert_eq!((&report["keys"], &report["revision"]), (&plan["keys"], &plan["revision"]));
    assert!(report["free_percent"].as_i64() >= Some(20), "{report}");
    assert_eq!(report["alarms_before"][0]["alarm"], "NOSPACE");
    assert_eq!(report["alarms"], serde_json::json!([]));
    let records = records(&sandbox);
    let results: Vec<_> = records.iter().map(|record| record["result"].as_str()).collect();
    assert_eq!(results, [Some("begun"), Some("ok")]);
    assert!(records.iter().all(|record| record["operation"] == "reclaim"));
    assert_eq!(records[0]["before"], records[1]["before"]);
    assert!(records[1]["before"]["status_hash"].is_number(), "{}", records[1]);
    assert!(records[1]["after"]["status_hash"].is_number(), "{}", records[1]);
    sandbox.run(&format!("reclaim {flags} --exit-on-noop")).expect(10, &["nothing to do"]);
    serves_again(&dir, keys);
}

#[test]
fn a_directory_full_of_living_data_is_left_with_its_alarm() {
    let sandbox = Sandbox::new();
    let dir = sandbox.path("d");
    let keys = fill_dir(&dir, |number| format!("/app/cache/k{number:06}"));
    let words =
        ["will take no writes", "/app/cache/", "--quota-backend-bytes=", "NOSPACE -> NOSPACE"];
    let flags = "--data-dir d --quota-backend-bytes 16777216";
    sandbox.run(&format!("reclaim {flags}")).expect(3, &words);
    // With a larger quota, there is room, and the alarm goes.
    let words = ["reclaimed", "NOSPACE -> none"];
    sandbox.run("reclaim --data-dir d --quota-backend-bytes 67108864").expect(0, &words);
    serves_again_with(&dir, keys);
}

fn serves_again_with(dir: &Path, keys: usize) {
    let store = Store::open(dir, store::Options::default()).unwrap();
    assert_eq!(count(&store), keys);
    store.put(&Caller::default(), Put { key: b"a", value: b"b", ..Put::default() }).unwrap();
    store.close().unwrap();
}

#[test]
fn a_directory_is_refused_that_is_in_use_or_of_several_voters_or_corrupt() {
    let sandbox = Sandbox::new();
    let dir = sandbox.path("d");
    let store = Store::open(&dir, store::Options::default()).unwrap();
    sandbox.run("reclaim --data-dir d").expect(8, &["in use"]);
    let me = Caller::default();
    store.alarm(&me, Alarm { action: 1, member_id: 5, alarm: 2 }).unwrap();
    store.close().unwrap();
    drop(store);
    let before = sandbox.picture();
    sandbox.run("reclaim --data-dir d").expect(6, &[]);
    sandbox.run("reclaim --data-dir nothing").expect(9, &[]);
    sandbox.run("reclaim --data-dir d --keep-duration 1h").expect(2, &[]);
    sandbox.run("reclaim --data-dir d --no-scan").expect(2, &[]);
    assert_eq!(sandbox.picture(), before);
}

#[test]
fn a_run_on_a_directory_that_is_killed_loses_nothing() {
    let sandbox = Sandbox::new();
    let first = sandbox.path("first");
    let keys = fill_dir(&first, pods);
    let began = Instant::now();
    let mut rounds = 0;
    for wait_ms in [30, 120, 250, 400, 600, 900] {
        let dir = sandbox.path("d");
        let _ = fs::remove_dir_all(&dir);
        sandbox.sh("cp -r first d").expect(0, &[]);
        let line = "reclaim --data-dir d --quota-backend-bytes 16777216";
        let mut child = start(&sandbox, line);
        sleep(Duration::from_millis(wait_ms));
        let _ = child.kill();
        child.wait().unwrap();
        sandbox.run(line).expect(0, &[]);
        serves_again(&dir, keys);
        rounds += 1;
    }
    println!("{rounds} rounds in {:?}", began.elapsed());
}

const FLAGS: &str = "--data-dir d --quota-backend-bytes 16777216";

#[test]
fn a_database_that_a_server_waits_for_stays_in_its_place() {
    let sandbox = Sandbox::new();
    let dir = sandbox.path("d");
    let keys = fill_dir(&dir, pods);
    // As bbolt does it: opened, and then the lock is tried again and again.
    let path = dir.join("member/snap/db");
    let waiting = fs::File::open(&path).unwrap();
    let words = ["in use by process", "nothing was lost", "goes on where this one has stopped"];
    sandbox.run(&format!("reclaim {FLAGS}")).expect(8, &words);
    let ids = |meta: fs::Metadata| (meta.dev(), meta.ino(), meta.len());
    assert_eq!(ids(waiting.metadata().unwrap()), ids(fs::metadata(&path).unwrap()));
    drop(waiting);
    let report = sandbox.run(&format!("reclaim {FLAGS} -w json")).expect(0, &[]).json();
    assert_eq!(report["outcome"], "reclaimed", "{report}");
    serves_again(&dir, keys);
}

#[test]
fn an_alarm_at_a_quota_that_is_not_told_is_not_judged() {
    let sandbox = Sandbox::new();
    let dir = sandbox.path("d");
    let keys = fill_dir(&dir, pods);
    let before = sandbox.picture();
    let words = ["--quota-backend-bytes", "2147483648", "nothing was changed"];
    sandbox.run("reclaim --data-dir d").expect(7, &words);
    sandbox.run("reclaim --data-dir d --dry-run").expect(7, &words);
    assert_eq!(sandbox.picture(), before);
    sandbox.run(&format!("reclaim {FLAGS}")).expect(0, &["NOSPACE -> none"]);
    // Without the alarm nothing is to be judged.
    sandbox.run("reclaim --data-dir d").expect(0, &["nothing to do"]);
    serves_again(&dir, keys);
}

#[test]
fn failures_say_that_nothing_was_changed() {
    let sandbox = Sandbox::new();
    let store = Store::open(&sandbox.path("d"), store::Options::default()).unwrap();
    sandbox.run("reclaim --data-dir d").expect(8, &["in use", "nothing was changed"]);
    store.close().unwrap();
    drop(store);
    sandbox.run("reclaim --data-dir nothing").expect(9, &["nothing was changed"]);
    let db = sandbox.path("d/member/snap/db");
    let mut bytes = fs::read(&db).unwrap();
    for byte in bytes.iter_mut().skip(8192) {
        *byte ^= 0x55;
    }
    fs::write(&db, bytes).unwrap();
    sandbox.run("reclaim --data-dir d").expect(6, &["nothing was changed"]);
}

#[test]
fn new_files_are_the_owners_and_others_stay_whose_they_are() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can give files away");
        return;
    }
    let sandbox = Sandbox::new();
    let dir = sandbox.path("d");
    let keys = fill_dir(&dir, pods);
    let (snap, wal) = (dir.join("member/snap"), dir.join("member/wal"));
    let segment = fs::read_dir(&wal).unwrap().next().unwrap().unwrap().path();
    // A torn end, of which a copy is kept.
    let mut torn = fs::read(&segment).unwrap();
    let end = torn.iter().rposition(|byte| *byte != 0).unwrap();
    torn.truncate((end + 1).next_multiple_of(8));
    torn.extend([0x40, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]);
    fs::write(&segment, torn).unwrap();
    fs::set_permissions(&segment, fs::Permissions::from_mode(0o640)).unwrap();
    for path in [&snap, &wal, &snap.join("db"), &segment] {
        lchown(path, Some(1234), Some(4321)).unwrap();
    }
    let (note, mine) = (snap.join("note"), wal.join("note"));
    fs::write(&note, b"x").unwrap();
    fs::write(&mine, b"x").unwrap();
    let ids = |path: &Path| {
        let meta = fs::metadata(path).unwrap();
        (meta.uid(), meta.gid(), meta.mode() & 0o777)
    };
    sandbox.run(&format!("reclaim {FLAGS}")).expect(0, &["reclaimed"]);
    let broken = segment.with_extension("wal.broken");
    assert_eq!((ids(&broken), ids(&segment)), ((1234, 4321, 0o640), (1234, 4321, 0o640)));
    assert_eq!(ids(&snap.join("db")), (1234, 4321, 0o600));
    for path in [&note, &mine] {
        assert_eq!(ids(path).0, 0, "{}", path.display());
    }
    // What a killed run had not yet given goes to the owner where nothing else is to be done.
    let left = wal.join("1.tmp");
    fs::write(&left, b"x").unwrap();
    sandbox.run(&format!("reclaim {FLAGS} --dry-run")).expect(0, &["nothing to do"]);
    assert_eq!(ids(&left).0, 0);
    sandbox.run(&format!("reclaim {FLAGS}")).expect(0, &["nothing to do"]);
    assert_eq!((ids(&left).0, ids(&mine).0), (1234, 0));
    serves_again(&dir, keys);
}

#[test]
fn segments_and_snapshots_of_the_member_stay() {
    let sandbox = Sandbox::new();
    let dir = sandbox.path("d");
    let options = |snapshot_count: u64| {
        let options = store::Options::default().compat(Compat::V3_6).unsafe_no_fsync(true);
        let options = options.snaps_max(0_usize).wals_max(0_usize);
        let options = options.batch_interval(Duration::from_millis(1));
        options.snapshot_count(snapshot_count).wal_segment_bytes(64_u64 << 10)
    };
    let fill = |options: store::Options, count: u32| {
        let store = Store::open(&dir, options).unwrap();
        for number in 0..count {
            let (key, value) = ((number % 50).to_be_bytes(), [7; 100]);
            let put = Put { key: &key, value: &value, ..Put::default() };
            store.put(&Caller::default(), put).unwrap();
        }
        store
    };
    fill(options(100), 5000).close().unwrap();
    // So many that it is time for a snapshot, by etcd's count.
    let store = fill(options(1 << 40), 10_500);
    let raise = Alarm { action: 1, member_id: store.member_id().0, alarm: 1 };
    store.alarm(&Caller::default(), raise).unwrap();
    store.close().unwrap();
    drop(store);
    let names = |folder: &str, end: &str| {
        let mut names = sandbox.names(folder);
        names.retain(|name| name.ends_with(end));
        names
    };
    let snaps = names("d/member/snap", ".snap");
    let segments = names("d/member/wal", ".wal");
    assert!(snaps.len() > 6 && segments.len() > 6, "{snaps:?} {segments:?}");
    sandbox.run(&format!("reclaim {FLAGS}")).expect(0, &["reclaimed"]);
    assert_eq!(names("d/member/snap", ".snap"), snaps);
    let now = names("d/member/wal", ".wal");
    assert!(now.starts_with(&segments), "{now:?} {segments:?}");
}

/// Time that a test moves.
#[derive(Debug, Default)]
struct Moved(AtomicU64);

impl Clock for Moved {
    fn now(&self) -> Duration {
        Duration::from_secs(self.0.load(Ordering::SeqCst))
    }

    fn unix_ms(&self) -> u64 {
        1_700_000_000_000
    }
}

#[test]
fn remaining_times_in_the_log_are_taken_over() {
    let sandbox = Sandbox::new();
    let archive = "etcd-3.5/killed-datadir.tar.gz";
    let (running, dir) = (sandbox.unpack(archive, "running"), sandbox.path("d"));
    let clock = Arc::new(Moved::default());
    let options = || {
        let options = store::Options::default().lease_checkpoints(Some(Duration::ZERO));
        options.clock(Arc::clone(&clock) as Arc<dyn Clock>)
    };
    let me = Caller::default();
    // Changes go to the log, and to its database too late for the copy.
    let store = Store::open(&running, options().batch_interval(Duration::from_secs(3600)));
    let store = store.unwrap();
    sandbox.sh("cp -r running d").expect(0, &[]);
    store.lease_grant(&store.caller_named("root"), 0x77, 5000).unwrap();
    // Segments have their length from the beginning.
    let log = || {
        let entries = fs::read_dir(running.join("member/wal")).unwrap();
        let bytes = entries.map(|entry| fs::read(entry.unwrap().path()).unwrap());
        bytes.flatten().filter(|byte| *byte != 0).count()
    };
    let before = log();
    clock.0.store(1000, Ordering::SeqCst);
    until("a checkpoint", || log() > before);
    sandbox.sh("rm -r d/member/wal; cp -r running/member/wal d/member/wal").expect(0, &[]);
    drop(store);
    sandbox.run("reclaim --data-dir d --quota-backend-bytes 1").expect(3, &[]);
    let store = Store::open(&dir, options()).unwrap();
    let left = store.lease_time_to_live(&me, 0x77, false);
    let left = left.or_else(|_| store.lease_time_to_live(&store.caller_named("root"), 0x77, false));
    let left = left.unwrap().body;
    assert_eq!(left.granted_ttl_s, 5000);
    assert!(left.ttl_s < 4500, "{left:?}");
    store.close().unwrap();
}
