//! `compaction` against real members: who survives it, what it says, how it waits; and the
//! questions and changes that it and others are made of.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::Client;
use etcdkit::live::{self, Cause, Cluster, Credentials, Range, Settings};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::cluster_harness::{self, APP, Plan, ROOT};
use crate::kube_watchers::{told, watch};
use crate::programs::{bounded, real, until};
use crate::support::{Ran, Sandbox};

const LONG: Duration = Duration::from_secs(60);

/// Runs clients; nothing in them may wait for ever.
fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(LONG, test).await.expect("it hangs") })
}

fn settings(cluster: &cluster_harness::Cluster<'_>) -> Settings {
    let endpoints = cluster.endpoints().split(',').map(str::to_owned).collect();
    let (dial_timeout, command_timeout) = (Duration::from_secs(20), Duration::from_secs(20));
    Settings { endpoints, dial_timeout, command_timeout, ..Settings::default() }
}

async fn client(cluster: &cluster_harness::Cluster<'_>) -> Client {
    Client::connect([cluster.endpoint(0)], None).await.unwrap()
}

/// Puts so many revisions; returns the newest.
fn write(cluster: &cluster_harness::Cluster<'_>, count: usize) -> i64 {
    run(async {
        let mut client = client(cluster).await;
        let mut newest = 0;
        for number in 0..count {
            let key = format!("/registry/pods/{}", number % 10);
            let answer = client.put(key, vec![b'x'; 2000], None).await.unwrap();
            newest = answer.header().unwrap().revision();
        }
        newest
    })
}

fn slow_flags(version: &str) -> [&'static str; 2] {
    match version {
        "3.5" => [
            "--experimental-compaction-batch-limit=10",
            "--experimental-compaction-sleep-interval=40ms",
        ],
        _ => ["--compaction-batch-limit=10", "--compaction-sleep-interval=40ms"],
    }
}

#[test]
fn history_goes_and_who_watches_within_the_window_does_not_notice() {
    let Some(real) = real() else { return };
    for version in ["3.5", "3.6", "3.7"] {
        let mut plan = Plan::new(version).quota(16 << 20);
        for flag in slow_flags(version) {
            plan = plan.flag(flag);
        }
        let is_newest = version == "3.7";
        let plan = if is_newest { plan.learner() } else { plan };
        let cluster = plan.start(&real);
        let sandbox = Sandbox::new();
        let asker = Cluster::open(settings(&cluster)).unwrap();
        let endpoint = cluster.endpoint(0);
        let compacted = || asker.compact_revision(&endpoint).unwrap();
        assert_eq!(compacted(), 0, "{version}");
        primitives(&asker, &endpoint);
        if is_newest {
            let learner = cluster.endpoint(1);
            // It is read from, and lets nobody watch.
            until("the learner", LONG, || asker.compact_revision(&learner).ok());
            // Named first, it is passed over.
            let endpoints = format!("{learner},{endpoint}");
            for words in [&["compaction", "2"][..], &["compaction", "3", "--physical"]] {
                let ran = cluster.kit_as(&sandbox, None, &endpoints, words);
                ran.expect(0, &["compacted at revision"]);
            }
            assert_eq!(compacted(), 3);
            let refused = || asker.compact_revision(&learner).err();
            let error = until("the learner's compaction", LONG, refused);
            let is_told = matches!(&error.cause, Cause::Answer { what, .. }
                if what.contains("not supported for learner"));
            assert!(is_told, "{error}");
        }
        watchers(&cluster, &sandbox, &compacted);
        words(&cluster, &sandbox, version, compacted());
        waits(&cluster, &sandbox, &compacted);
        full(&cluster, &sandbox, &asker);
        auth(&cluster, &sandbox);
    }
}

fn primitives(asker: &Cluster, endpoint: &str) {
    let before = asker.prove_writes(endpoint).unwrap().revision;
    assert_eq!(asker.prove_writes(endpoint).unwrap().revision, before);
    assert!(asker.create(b"lock", b"mine", 0).unwrap().succeeded);
    let late = asker.create(b"lock", b"yours", 0).unwrap();
    assert_eq!((late.succeeded, late.found.unwrap().value.as_slice()), (false, &b"mine"[..]));
    let lease = asker.grant(Duration::from_secs(60)).unwrap();
    assert!(asker.create(b"leased", b"x", lease).unwrap().succeeded);
    assert_eq!(asker.keep_alive(lease), Ok(60));
    asker.revoke(lease).unwrap();
    assert_eq!(asker.keep_alive(lease), Ok(0));
    let range = Range { key: b"leased".to_vec(), ..Range::default() };
    assert_eq!(asker.range(&range).unwrap().count, 0);
}

fn watchers(
    cluster: &cluster_harness::Cluster<'_>,
    sandbox: &Sandbox,
    compacted: &dyn Fn() -> i64,
) {
    let newest = write(cluster, 400);
    // An hour ago, as far as this one knows.
    cluster.kit(sandbox, &["compaction", "--keep-duration", "30m"]).expect(0, &["nothing to do"]);
    let names = sandbox.names(".");
    let file = names.iter().find(|name| name.starts_with("revisions-")).expect("a file");
    let text = std::fs::read_to_string(sandbox.path(file)).unwrap();
    let mut sample: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!(sample["revision"], newest);
    sample["time_ms"] = (sample["time_ms"].as_u64().unwrap() - 3_600_000).into();
    sample["boot"] = "".into();
    sandbox.write(file, format!("{sample}\n").as_bytes());
    let newest_later = write(cluster, 100);
    for (words, at, last) in [
        (["--keep-revisions", "200"], newest_later - 200, newest_later + 1),
        (["--keep-duration", "30m"], newest, newest_later + 2),
    ] {
        run(async {
            let mut client = client(cluster).await;
            let mut streams = Vec::new();
            for from in [at, last - 1, 0] {
                streams.push(watch(&mut client, from).await);
            }
            let line = [&["compaction", "-w", "json"][..], &words].concat();
            let report = cluster.kit(sandbox, &line).expect(0, &[]).json();
            let is = (&report["outcome"], &report["revision"]);
            assert_eq!(is, (&json!("compacted"), &json!(at)));
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
        assert_eq!(compacted(), at);
    }
}

/// What it says, beside what etcdctl says.
fn words(cluster: &cluster_harness::Cluster<'_>, sandbox: &Sandbox, version: &str, at: i64) {
    if !sandbox.exists("etcdctl") {
        symlink(env!("CARGO_BIN_EXE_etcdkit"), sandbox.path("etcdctl")).unwrap();
    }
    let endpoint = cluster.endpoint(0);
    let linked = |words: &[&str]| {
        let mut command = Command::new(sandbox.path("etcdctl"));
        command.env_clear().env("ETCDKIT_AUDIT_LOG", sandbox.path("audit.jsonl"));
        bounded(command.args(words).args(["--endpoints", &endpoint]), LONG)
    };
    let last = |ran: &Ran| ran.stderr.lines().find(|l| l.starts_with("Error: ")).map(str::to_owned);
    let (at_text, future) = (at.to_string(), (at + 100_000).to_string());
    for words in [
        &["compaction", &at_text][..],
        &["compaction", &future],
        &["compact", &future, "-w", "json"],
        &["compaction", "x"],
        &["compaction", "99999999999999999999"],
        &["compaction"],
        &["compaction", "1", "2"],
    ] {
        let theirs = cluster.ctl_as(None, version, &endpoint, words);
        let ours = linked(words);
        assert_eq!((ours.code, last(&ours)), (theirs.code, last(&theirs)), "{ours}{theirs}");
        assert_eq!(ours.stdout, theirs.stdout, "{ours}{theirs}");
    }
    // The same words for two revisions, in every format.
    for (step, format) in ["simple", "json", "table", "fields"].iter().enumerate() {
        let next = |more: usize| (at + 1 + i64::try_from(step * 2 + more).unwrap()).to_string();
        let ours = linked(&["compaction", &next(0), "-w", format]).expect(0, &[]);
        let theirs =
            cluster.ctl_as(None, version, &endpoint, &["compaction", &next(1), "-w", format]);
        assert_eq!(theirs.code, 0, "{theirs}");
        assert_eq!(ours.stdout.replace(&next(0), "N"), theirs.stdout.replace(&next(1), "N"));
    }
    cluster.kit(sandbox, &["compaction", &at_text, "--exit-on-noop"]).expect(10, &["already"]);
    cluster.kit(sandbox, &["compaction", &future]).expect(9, &["is still to come"]);
}

/// `--physical` of members that take their time.
fn waits(cluster: &cluster_harness::Cluster<'_>, sandbox: &Sandbox, compacted: &dyn Fn() -> i64) {
    let newest = write(cluster, 600);
    let at = newest - 500;
    let err = sandbox.path("interrupted.err");
    let mut command = sandbox.command();
    command.args([
        "compaction",
        &at.to_string(),
        "--physical",
        "--endpoints",
        &cluster.endpoints(),
    ]);
    let mut child = command.stderr(File::create(&err).unwrap()).spawn().unwrap();
    until("the compaction", LONG, || (compacted() == at).then_some(()));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let code = child.wait().unwrap().code();
    let said = std::fs::read_to_string(&err).unwrap();
    assert!(code == Some(130) && said.contains("the members go on"), "{code:?} {said}");
    let audit = std::fs::read_to_string(sandbox.path("audit.jsonl")).unwrap();
    let record: Value = serde_json::from_str(audit.lines().last().unwrap()).unwrap();
    assert!(record["result"].as_str().unwrap().starts_with("interrupted"), "{record}");
    assert_eq!(record["after"]["compact_revision"], at);

    let words = ["compaction", "--keep-revisions", "0", "--physical", "-w", "json"];
    let ran = cluster.kit(sandbox, &words).expect(0, &[]);
    let report = ran.json();
    let in_use = |when: &str| report["in_use_bytes"][when].as_i64().unwrap();
    assert!(in_use("after") < in_use("before"), "{ran}");
    // Fifty batches, and a pause after each: it has looked meanwhile.
    assert!(
        ran.stderr.contains(" in use, "),
        "it did not wait, or does not say how far it is: {ran}"
    );
}

/// At the quota.
fn full(cluster: &cluster_harness::Cluster<'_>, sandbox: &Sandbox, asker: &Cluster) {
    run(async {
        let mut client = client(cluster).await;
        while client.put("/full", vec![b'x'; 1_000_000], None).await.is_ok() {}
    });
    let endpoint = cluster.endpoint(0);
    let error = asker.prove_writes(&endpoint).unwrap_err();
    assert!(live::is_out_of_space(&error), "{error}");
    let error = asker.grant(Duration::from_secs(60)).unwrap_err();
    assert!(live::is_out_of_space(&error), "{error}");
    let words = ["compaction", "--keep-revisions", "0", "--physical"];
    cluster.kit(sandbox, &words).expect(0, &["no lock can be taken in etcd"]);
    // A member that is left out raises the alarm again at the next write, and a learner must vote
    // before it can be defragmented.
    let members = asker.members().unwrap().members;
    if let Some(learner) = members.iter().find(|member| member.is_learner) {
        let error = asker.defragment(&cluster.endpoint(1), LONG).unwrap_err();
        let is_told = matches!(&error.cause, Cause::Answer { what, .. }
            if what.contains("not supported for learner"));
        assert!(is_told, "{error}");
        run(async { client(cluster).await.member_promote(learner.id).await.unwrap() });
    }
    for endpoint in asker.endpoints() {
        asker.defragment(endpoint, LONG).unwrap();
    }
    for alarm in asker.alarms().unwrap().alarms {
        assert_eq!(asker.disarm(alarm).unwrap().alarms, [alarm]);
    }
    let before = asker.prove_writes(&endpoint).unwrap().revision;
    assert_eq!(asker.prove_writes(&endpoint).unwrap().revision, before);
}

/// Who may, and who may not.
fn auth(cluster: &cluster_harness::Cluster<'_>, sandbox: &Sandbox) {
    let endpoint = cluster.endpoint(0);
    run(async {
        let mut client = client(cluster).await;
        for (name, password) in [ROOT, APP].map(|user| user.split_once(':').unwrap()) {
            client.role_add(name).await.unwrap();
            client.user_add(name, password, None).await.unwrap();
            client.user_grant_role(name, name).await.unwrap();
        }
        client.auth_enable().await.unwrap();
    });
    for words in [&["compaction", "1"][..], &["compaction", "--keep-revisions", "0", "--dry-run"]] {
        let ran = cluster.kit_as(sandbox, Some(APP), &endpoint, words);
        ran.expect(5, &["the user app may not compact", "the role root"]);
        cluster.kit_as(sandbox, None, &endpoint, words).expect(5, &["not authenticated"]);
        cluster.kit_as(sandbox, Some(ROOT), &endpoint, words).expect(0, &["nothing to do"]);
    }
    let as_user = |user: &str| {
        let (name, password) = user.split_once(':').unwrap();
        let user = Some(Credentials { name: name.into(), password: password.into() });
        Arc::new(Cluster::open(Settings { user, ..settings(cluster) }).unwrap())
    };
    let error = as_user(APP).compact_revision(&endpoint).unwrap_err();
    assert!(matches!(error.cause, Cause::NotPermitted { .. }), "{error}");
    let error = Cluster::open(settings(cluster)).unwrap().compact_revision(&endpoint).unwrap_err();
    assert!(matches!(error.cause, Cause::NotAuthenticated { .. }), "{error}");
    assert!(as_user(ROOT).compact_revision(&endpoint).unwrap() > 0);
}
