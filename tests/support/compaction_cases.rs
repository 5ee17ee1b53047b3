//! `compaction` against our own server: what it says, what it exits with, who survives it; and the
//! questions and changes that it and others are made of.

use std::fs;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use etcd_client::{Client, ConnectOptions};
use etcdkit::live::{self, Cause, Cluster, Credentials, Range, Settings};
use etcdkit::ops::Silent;
use etcdkit::ops::compaction;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::ctl_cases;
use crate::kube_watchers::{compacted_of, told, watch};
use crate::proxy::Proxy;
use crate::serve_child::{LONG, Served, run, until};
use crate::support::{Ran, Sandbox};

/// Starts a server and writes so many revisions; the newest is one more.
fn written(count: usize, flags: &[&str]) -> Served {
    let served = Served::start(flags);
    run(async {
        let mut client = served.client().await;
        for number in 0..count {
            let key = format!("/registry/pods/{}", number % 10);
            client.put(key, number.to_string(), None).await.unwrap();
        }
    });
    served
}

fn settings(endpoints: &[String]) -> Settings {
    Settings {
        endpoints: endpoints.to_vec(),
        dial_timeout: LONG,
        command_timeout: LONG,
        ..Settings::default()
    }
}

fn open(served: &Served) -> Cluster {
    Cluster::open(settings(&[served.address.to_string()])).unwrap()
}

fn compacted(served: &Served) -> i64 {
    open(served).compact_revision(&served.address.to_string()).unwrap()
}

fn ask(sandbox: &Sandbox, served: &Served, line: &str) -> Ran {
    sandbox.run(&format!("{line} --command-timeout 60s --endpoints {}", served.address))
}

fn records(sandbox: &Sandbox) -> Vec<Value> {
    let text = fs::read_to_string(sandbox.path("audit.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The file of what was seen when.
fn samples(sandbox: &Sandbox) -> String {
    let names = sandbox.names(".");
    let mut found = names.into_iter().filter(|name| name.starts_with("revisions-"));
    let name = found.next().expect("a file of samples");
    assert_eq!(found.next(), None);
    name
}

#[test]
fn a_revision_is_compacted_at_and_what_cannot_be_is_told_apart() {
    let served = written(100, &[]);
    let sandbox = Sandbox::new();
    let words = [
        "would compact at revision 50 (as given)",
        "never compacted; the newest was 101",
        "history    of 50 revisions would go",
        "same as    etcdctl --endpoints=",
        " compaction 50",
    ];
    ask(&sandbox, &served, "compaction 50 --dry-run").expect(0, &words);
    assert_eq!(compacted(&served), 0);
    assert!(!sandbox.exists("audit.jsonl"));

    let ran = ask(&sandbox, &served, "compaction 50").expect(0, &["compacted at revision 50"]);
    assert!(ran.stderr.contains(" compaction 50"), "what is done is told before: {ran}");
    assert_eq!(compacted(&served), 50);
    let record = records(&sandbox).pop().unwrap();
    assert_eq!((&record["operation"], &record["result"]), (&json!("compaction"), &json!("ok")));
    assert_eq!(record["before"]["compact_revision"], 0);
    assert_eq!(record["after"]["compact_revision"], 50);

    for line in ["compact 50", "compaction 49", "compaction 0", "compaction --keep-revisions 1000"]
    {
        let ran = ask(&sandbox, &served, line);
        ran.expect(0, &["nothing to do", "up to revision 50 already; the newest is 101"]);
        ask(&sandbox, &served, &format!("{line} --exit-on-noop")).expect(10, &["nothing to do"]);
    }
    let error = ask(&sandbox, &served, "compaction 102 -w json").expect(9, &[]).error();
    assert_eq!(error["kind"], "not-found");
    let message = error["message"].as_str().unwrap();
    assert_eq!(message, "revision 102 is still to come: the newest is 101");
    assert_eq!(records(&sandbox).len(), 1, "nothing else was changed");

    let line = "compaction --keep-revisions 10 --physical -w json";
    let report = ask(&sandbox, &served, line).expect(0, &[]).json();
    assert_eq!(report["outcome"], "compacted");
    assert_eq!((&report["revision"], &report["revisions"]), (&json!(91), &json!(41)));
    assert!(report["in_use_bytes"]["before"].as_i64() > Some(0), "{report}");
    assert_eq!(compacted(&served), 91);

    for line in [
        "compaction",
        "compaction x",
        "compaction -- -5",
        "compaction 95 --keep-revisions 3",
        "compaction --keep-duration 1h --keep-revisions 3",
        "compaction 95 --wait",
        "compaction --keep-duration 5",
    ] {
        ask(&sandbox, &served, line).expect(2, &[]);
    }
    assert_eq!(compacted(&served), 91);
}

#[test]
fn linked_as_etcdctl_it_says_what_that_says() {
    let served = written(30, &[]);
    let sandbox = Sandbox::new();
    let ctl = |line: &str| {
        ctl_cases::run(&sandbox, "etcdctl", &format!("{line} --endpoints {}", served.address))
    };
    for (line, revision) in [
        ("compaction 5", 5),
        ("compact 6 -w json", 6),
        ("compaction --physical 7 -w table", 7),
        ("compaction --physical=false 8", 8),
    ] {
        let ran = ctl(line).expect(0, &[]);
        assert_eq!(ran.stdout, format!("compacted revision {revision}\n"), "{ran}");
        assert_eq!(compacted(&served), revision);
    }
    for (line, code, words) in [
        ("compaction 8", 1, "Error: etcdserver: mvcc: required revision has been compacted\n"),
        ("compaction 99", 1, "Error: etcdserver: mvcc: required revision is a future revision\n"),
        ("compaction x", 1, "Error: strconv.ParseInt: parsing \"x\": invalid syntax\n"),
        ("compaction", 128, "Error: compaction command needs 1 argument\n"),
        ("compaction 9 10", 128, "Error: compaction command needs 1 argument\n"),
        ("compaction 9 --rev 3", 1, "Error: unknown flag: --rev\n"),
    ] {
        let ran = ctl(line).expect(code, &[]);
        assert!(ran.stderr.starts_with(words), "{ran}");
        assert_eq!(ran.stdout, "", "{ran}");
    }
    assert_eq!(compacted(&served), 8);
}

#[test]
fn time_is_taken_from_what_was_seen_and_from_nothing_else() {
    let served = written(20, &[]);
    let sandbox = Sandbox::new();
    let hour = "compaction --keep-duration 1h";
    // The key of API servers says nothing about time.
    run(async { served.client().await.put("compact_rev_key", "10", None).await.unwrap() });
    let words = ["nothing to do: of no revision", "revision 22, the newest, was noted", "--wait"];
    ask(&sandbox, &served, hour).expect(0, &words);
    let report = ask(&sandbox, &served, &format!("{hour} --exit-on-noop -w json"));
    let report = report.expect(10, &[]).json();
    assert_eq!((&report["outcome"], &report["revision"]), (&json!("too_young"), &Value::Null));
    let again = report["again_after_s"].as_u64().unwrap();
    assert!((3_500..=3_601).contains(&again), "{again}");
    assert_eq!(compacted(&served), 0);

    // Two hours later.
    let file = samples(&sandbox);
    let text = fs::read_to_string(sandbox.path(&file)).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    let mut sample: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(sample["revision"], 22);
    sample["time_ms"] = (sample["time_ms"].as_u64().unwrap() - 7_200_000).into();
    // The machine has not been up for so long: since it started it was never so late.
    sandbox.write(&file, format!("{sample}\n").as_bytes());
    ask(&sandbox, &served, hour).expect(0, &["nothing to do"]);
    sample["boot"] = "an earlier one".into();
    sandbox.write(&file, format!("no sample\n{sample}\n").as_bytes());
    run(async { served.client().await.put("later", "1", None).await.unwrap() });
    let ran = ask(&sandbox, &served, hour);
    let ran = ran.expect(0, &["compacted at revision 22", "it was there 2h", "is no sample"]);
    // That is what the API server compacts to next.
    assert!(!ran.stderr.contains("Kubernetes"), "{ran}");
    assert_eq!(compacted(&served), 22);
    ask(&sandbox, &served, hour).expect(0, &["up to revision 22 already"]);

    let line = "compaction --keep-duration 5s --wait --endpoints";
    run(async { served.client().await.put("later", "2", None).await.unwrap() });
    // What was seen just now is not yet old enough.
    fs::remove_file(sandbox.path(&file)).unwrap();
    let line = format!("{line} {}", served.address);
    let err = sandbox.path("waits.err");
    let mut command = sandbox.command();
    command.args(line.split_whitespace()).stdout(Stdio::piped());
    let child = command.stderr(fs::File::create(&err).unwrap()).spawn().unwrap();
    until("it waits", || fs::read_to_string(&err).unwrap().contains("waits that long"));
    // What is written while it waits is not what it waits for.
    assert_eq!(compacted(&served), 22);
    run(async { served.client().await.put("later", "3", None).await.unwrap() });
    let ran = Ran::wait(&line, child);
    ran.expect(0, &["compacted at revision 24", "the newest was 25"]);
    assert_eq!(compacted(&served), 24);
}

/// Runs a command, and interrupts it once it has said something on stderr.
pub(crate) fn interrupted(sandbox: &Sandbox, line: &str, words: &str) -> Ran {
    let err = sandbox.path("interrupted.err");
    let mut command = sandbox.command();
    command.args(line.split_whitespace());
    command.stdout(Stdio::null()).stderr(fs::File::create(&err).unwrap());
    let mut child: Child = command.spawn().unwrap();
    until(words, || fs::read_to_string(&err).unwrap().contains(words));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let code = child.wait().unwrap().code().expect("a code");
    let stderr = fs::read_to_string(&err).unwrap();
    Ran { line: line.to_owned(), code, stdout: String::new(), stderr }
}

#[test]
fn who_waits_can_be_interrupted_and_what_was_seen_stays() {
    let served = written(20, &[]);
    let sandbox = Sandbox::new();
    let line = format!("compaction --keep-duration 1h --wait --endpoints {}", served.address);
    let ran = interrupted(&sandbox, &line, "waits that long");
    ran.expect(130, &["nothing was changed", "run it again in 59m", "revision 21 was seen"]);
    assert_eq!(compacted(&served), 0);
    assert!(fs::read_to_string(sandbox.path(&samples(&sandbox))).unwrap().contains(":21,"));
}

#[test]
fn watchers_within_the_window_survive_it() {
    let served = written(200, &[]);
    let sandbox = Sandbox::new();
    // What runs every ten minutes saw revision 201 an hour ago.
    ask(&sandbox, &served, "compaction --keep-duration 30m --dry-run").expect(0, &[]);
    let file = samples(&sandbox);
    let text = fs::read_to_string(sandbox.path(&file)).unwrap();
    let mut sample: Value = serde_json::from_str(&text).unwrap();
    sample["time_ms"] = (sample["time_ms"].as_u64().unwrap() - 3_600_000).into();
    sample["boot"] = "".into();
    sandbox.write(&file, format!("{sample}\n").as_bytes());
    run(async {
        let mut client = served.client().await;
        for number in 0..100 {
            client.put(format!("/registry/pods/{}", number % 10), "", None).await.unwrap();
        }
    });
    for (line, at, last) in [
        ("compaction --keep-revisions 150", 151, 302),
        ("compaction --keep-duration 30m", 201, 303),
    ] {
        run(async {
            let mut client = served.client().await;
            // Some are there and have seen everything, or began long ago.
            let mut streams = Vec::new();
            for from in [compacted_of(&mut client).await.max(1), at, last - 1, 0] {
                streams.push(watch(&mut client, from).await);
            }
            let words = format!("{line} -w json --endpoints {}", served.address);
            let report = sandbox.run(&words).expect(0, &[]).json();
            assert_eq!(
                (&report["outcome"], &report["revision"]),
                (&json!("compacted"), &json!(at))
            );
            // Others come back with what they saw last.
            for from in [at, at + 1, at + 20, last - 3] {
                streams.push(watch(&mut client, from).await);
            }
            client.put("/registry/pods/new", "", None).await.unwrap();
            for stream in streams {
                let revisions = told(stream, last).await.expect("none is cancelled");
                let from = revisions[0];
                assert_eq!(revisions, (from..=last).collect::<Vec<_>>(), "every revision, once");
            }
            for from in [1, at - 1] {
                assert_eq!(told(watch(&mut client, from).await, last).await, Err(at));
            }
        });
    }
}

#[test]
fn a_small_window_of_a_kubernetes_keyspace_is_warned_of() {
    let served = written(20, &[]);
    let sandbox = Sandbox::new();
    ask(&sandbox, &served, "compaction 3").expect(0, &[]);
    run(async { served.client().await.put("compact_rev_key", "3", None).await.unwrap() });
    let ran = ask(&sandbox, &served, "compaction 10 -w json").expect(0, &[]);
    let warning = &ran.json()["warnings"][0];
    let words = "Kubernetes: 12 revisions are left below the newest, fewer than 1000; what watches \
                 from below it must list everything again";
    assert_eq!(warning, words);
    assert!(ran.stderr.contains(words), "it is said before: {ran}");
    assert_eq!(records(&sandbox)[1]["warnings"][0], words);
    // Somebody else's key of that name.
    run(async { served.client().await.put("compact_rev_key", "soon", None).await.unwrap() });
    let ran = ask(&sandbox, &served, "compaction 11").expect(0, &["it is not heeded"]);
    assert!(!ran.stderr.contains("must list"), "{ran}");
    // What reclaim takes where nothing else is said.
    let cluster = Arc::new(open(&served));
    let log = sandbox.path("audit.jsonl");
    let window = |keep| compaction::window(&cluster, keep, &log, &Silent).unwrap();
    assert_eq!(window(compaction::Keep::Default).revision, Some(0));
    run(async { served.client().await.put("compact_rev_key", "12", None).await.unwrap() });
    let default = window(compaction::Keep::Default);
    assert_eq!((default.revision, default.to_do(), default.newest), (Some(24), Some(24), 24));
    assert_eq!(default.warnings, [""; 0]);
}

/// Turns authentication on, with `root` and an ordinary user `app`.
async fn with_auth(served: &Served) {
    let mut client = served.client().await;
    client.role_add("root").await.unwrap();
    client.role_add("app").await.unwrap();
    for name in ["root", "app"] {
        client.user_add(name, format!("{name}pw"), None).await.unwrap();
        client.user_grant_role(name, name).await.unwrap();
    }
    client.auth_enable().await.unwrap();
}

#[test]
fn an_ordinary_user_is_told_before_anything_starts() {
    let served = written(20, &[]);
    run(with_auth(&served));
    let sandbox = Sandbox::new();
    for line in ["compaction 5", "compaction 5 --dry-run", "compaction --keep-duration 1h --wait"] {
        let user = "--user app --password apppw";
        let words = ["the user app may not compact", "the role root", "it has app"];
        ask(&sandbox, &served, &format!("{line} {user}")).expect(5, &words);
        ask(&sandbox, &served, line).expect(5, &["not authenticated"]);
    }
    assert_eq!(sandbox.names("."), ["tmp"], "nothing was noted");
    let as_user = |name: &str| {
        let user = Credentials { name: name.into(), password: format!("{name}pw") };
        let settings = Settings { user: Some(user), ..settings(&[served.address.to_string()]) };
        Cluster::open(settings).unwrap()
    };
    let endpoint = served.address.to_string();
    let error = as_user("app").compact_revision(&endpoint).unwrap_err();
    assert!(matches!(error.cause, Cause::NotPermitted { .. }), "{error}");
    let error = open(&served).compact_revision(&endpoint).unwrap_err();
    assert!(matches!(error.cause, Cause::NotAuthenticated { .. }), "{error}");
    assert_eq!(as_user("root").compact_revision(&endpoint), Ok(0));
    let line = "compaction 5 --user root --password rootpw";
    let ran = ask(&sandbox, &served, line).expect(0, &["--user=root compaction 5"]);
    assert!(!format!("{ran}").replace(line, "").contains("rootpw"), "{ran}");
    assert_eq!(as_user("root").compact_revision(&endpoint), Ok(5));
}

#[test]
fn what_an_endpoint_did_before_it_broke_counts_as_done() {
    let served = written(20, &[]);
    let proxy = Proxy::to(served.address.port());
    let endpoints = [proxy.endpoint(), served.address.to_string()];
    let cluster = Arc::new(Cluster::open(settings(&endpoints)).unwrap());
    cluster.status(&endpoints[0]).unwrap();
    for (revision, physical) in [(5, false), (6, true)] {
        let done = thread::scope(|scope| {
            scope.spawn(|| {
                // Time between the compaction and the arrival of its answer.
                proxy.set(|harm| harm.delay = Duration::from_millis(1500));
                until("the compaction", || compacted(&served) == revision);
                proxy.set(|harm| harm.delay = Duration::ZERO);
                proxy.cut();
            });
            compaction::compact(&cluster, revision, physical, &Silent)
        });
        let done = done.unwrap();
        assert!(!done.is_already, "{done:?}");
        assert_eq!(done.warnings.len(), usize::from(physical), "{done:?}");
    }
    // Who comes later did not do it.
    assert!(compaction::compact(&cluster, 6, false, &Silent).unwrap().is_already);
    let error = cluster.compact(6, false, LONG).unwrap_err();
    assert!(live::is_compacted(&error) && !live::is_uncertain(&error), "{error}");
    assert!(!live::is_future(&error) && error.also.is_empty(), "{error}");
    let error = cluster.compact(99, false, LONG).unwrap_err();
    assert!(live::is_future(&error) && !live::is_compacted(&error), "{error}");
    let error = compaction::compact(&cluster, 99, false, &Silent).unwrap_err();
    assert_eq!((error.error.code.number(), error.may_be_done), (9, false));
}

#[test]
fn keys_are_made_once_and_leases_end() {
    let served = written(3, &[]);
    let cluster = open(&served);
    let made = cluster.create(b"lock", b"mine", 0).unwrap();
    assert!(made.succeeded && made.found.is_none(), "{made:?}");
    let late = cluster.create(b"lock", b"yours", 0).unwrap();
    assert!(!late.succeeded, "{late:?}");
    assert_eq!(late.found.unwrap().value, b"mine");

    let lease = cluster.grant(Duration::from_secs(60)).unwrap();
    assert!(cluster.create(b"leased", b"x", lease).unwrap().succeeded);
    assert_eq!(cluster.keep_alive(lease), Ok(60));
    let range = Range { key: b"leased".to_vec(), ..Range::default() };
    assert_eq!(cluster.range(&range).unwrap().records[0].lease, lease);
    cluster.revoke(lease).unwrap();
    assert_eq!(cluster.range(&range).unwrap().count, 0);
    assert_eq!(cluster.keep_alive(lease), Ok(0));
    let error = cluster.revoke(lease).unwrap_err();
    assert!(matches!(error.cause, Cause::Answer { code: 5, .. }), "{error}");

    let all = Range { key: b"/registry/".to_vec(), end: b"/registry0".to_vec(), ..range };
    let page = cluster.range(&Range { limit: 2, keys_only: true, ..all.clone() }).unwrap();
    assert_eq!((page.records.len(), page.more, page.count), (2, true, 3));
    assert!(page.records.iter().all(|record| record.value.is_empty() && record.version == 1));
    assert_eq!(cluster.range(&Range { revision: 3, ..all.clone() }).unwrap().count, 2);
    assert!(cluster.range(&Range { count_only: true, ..all.clone() }).unwrap().records.is_empty());
    cluster.compact(3, true, LONG).unwrap();
    assert!(live::is_compacted(&cluster.range(&Range { revision: 2, ..all }).unwrap_err()));
}

#[test]
fn writes_are_proved_without_one() {
    let served = Served::start(&["--quota-backend-bytes=2097152"]);
    let (cluster, endpoint) = (open(&served), served.address.to_string());
    let before = cluster.prove_writes(&endpoint).unwrap().revision;
    assert_eq!(cluster.prove_writes(&endpoint).unwrap().revision, before);
    run(async {
        let options = ConnectOptions::new();
        let mut client = Client::connect([&endpoint], Some(options)).await.unwrap();
        while client.put("full", vec![b'x'; 100_000], None).await.is_ok() {}
    });
    let error = cluster.prove_writes(&endpoint).unwrap_err();
    assert!(live::is_out_of_space(&error), "{error}");
    let error = cluster.grant(Duration::from_secs(60)).unwrap_err();
    assert!(live::is_out_of_space(&error), "{error}");
    // At its quota a member compacts all the same.
    let newest = cluster.status(&endpoint).unwrap().header.revision;
    cluster.compact(newest, true, LONG).unwrap();
    assert_eq!(cluster.compact_revision(&endpoint), Ok(newest));
    cluster.defragment(&endpoint, LONG).unwrap();
    for alarm in cluster.alarms().unwrap().alarms {
        assert_eq!(cluster.disarm(alarm).unwrap().alarms, [alarm]);
    }
    assert_eq!(cluster.prove_writes(&endpoint).unwrap().revision, newest);
}

#[test]
fn two_runs_do_not_wait_for_rows_at_once() {
    let served = written(20, &[]);
    let sandbox = Sandbox::new();
    let lock = "etcdkit/lock/maintenance";
    let value = r#"{"host":"n1","pid":7,"user":"eve","operation":"defrag","since":"earlier"}"#;
    run(async { served.client().await.put(lock, value, None).await.unwrap() });
    let words = ["defrag by eve on n1, process 7, since earlier"];
    ask(&sandbox, &served, "compaction 5 --physical").expect(8, &words);
    assert_eq!(compacted(&served), 0);
    // Who does not wait is in nobody's way.
    ask(&sandbox, &served, "compaction 5").expect(0, &[]);
    run(async { served.client().await.delete(lock, None).await.unwrap() });
    ask(&sandbox, &served, "compaction 6 --physical").expect(0, &["in use"]);
    assert_eq!(compacted(&served), 6);
    let answer = run(async { served.client().await.get(lock, None).await.unwrap() });
    assert_eq!(answer.count(), 0, "it was given back");
}

#[test]
fn who_waits_longer_than_his_login_lasts_logs_in_again() {
    let served = written(20, &["--auth-token-ttl=1"]);
    run(with_auth(&served));
    let sandbox = Sandbox::new();
    let line = "compaction --keep-duration 4s --wait --user root --password rootpw";
    ask(&sandbox, &served, line).expect(0, &["compacted at revision 21"]);
}
