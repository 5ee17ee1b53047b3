//! Holds the clusters that live tests stand on, and the fake etcd, against the real one.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;

use crate::boots::ETCDS;
use crate::certs::Issue;
use crate::cluster_harness::{APP, Plan, ROOT};
use crate::fake_etcd::{FakeEtcd, Member};
use crate::programs::{bounded, real, until};
use crate::support::{Ran, Sandbox};

/// Longest run of one etcdctl.
const RUN: Duration = Duration::from_secs(30);

#[test]
fn a_cluster_with_tls_and_auth_answers_etcdctl() {
    let Some(real) = real() else { return };
    for version in ETCDS {
        let plan = Plan::new(version).members(3).tls().auth().learner().proxied(1);
        let mut cluster = plan.quota(100_000_000).start(&real);
        assert_eq!(cluster.len(), 4);
        let list = cluster.ctl(&["member", "list", "-w", "json"]).expect(0, &[]).json();
        let members = list["members"].as_array().unwrap();
        assert_eq!(members.iter().filter(|member| member["isLearner"] == true).count(), 1);
        let urls: Vec<&str> =
            members.iter().map(|member| member["clientURLs"][0].as_str().unwrap()).collect();
        assert!(urls.contains(&cluster.endpoint(1).as_str()), "{urls:?}");
        assert_ne!(cluster.endpoint(1), cluster.direct(1));
        cluster
            .ctl_as(Some(ROOT), "3.7", &cluster.endpoint(1), &["put", "/x", "y"])
            .expect(0, &["OK"]);
        assert!(cluster.proxy().accepted() > 0);
        let denied = cluster.ctl_as(Some(APP), version, &cluster.direct(0), &["get", "/x"]);
        denied.expect(1, &["permission denied"]);

        let load = cluster.load("/app/load");
        let follower = cluster.follower();
        cluster.kill(follower);
        let direct: Vec<usize> = (0..3).filter(|index| *index != follower).collect();
        cluster
            .ctl_as(Some(APP), version, &cluster.direct(direct[0]), &["put", "/app/y", "z"])
            .expect(0, &["OK"]);
        cluster.restart(follower);
        let get = ["get", "/app/y", "--print-value-only"];
        cluster.ctl_as(Some(APP), version, &cluster.direct(follower), &get).expect(0, &["z"]);
        let acknowledged = load.stop();
        assert!(!acknowledged.is_empty());
        for (key, value) in acknowledged {
            cluster.ctl(&["get", &key, "--print-value-only"]).expect(0, &[&value]);
        }

        // Without a token the certificate's common name is the user.
        let named = cluster.certs().issue("app", &Issue::client("app"));
        let flags = cluster.certs().flags_of(&named);
        let words: Vec<&str> = flags.split(' ').collect();
        let endpoint = ["--endpoints", &cluster.direct(0), "get", "/app/y"];
        let ctl = format!("etcdctl-{version}");
        let ask = |words: &[&str]| bounded(real.program(&ctl).args(words).args(endpoint), RUN);
        ask(&words).expect(0, &["z"]);
        let stranger = cluster.ctl_as(None, version, &cluster.direct(0), &["get", "/app/y"]);
        stranger.expect(1, &["permission denied"]);

        let old = cluster.certs().issue("old", &Issue::client("app").expired());
        let flags = cluster.certs().flags_of(&old);
        let words: Vec<&str> = flags.split(' ').collect();
        ask(&[&words[..], &["--command-timeout=3s"]].concat()).expect(1, &["deadline exceeded"]);
    }
}

/// What etcdctl says in the end: its code, and the server's words.
fn said(ran: &Ran) -> (i32, String) {
    let words = ran.stderr.lines().rev().find_map(|line| {
        let at = line.find("desc = ").map(|at| at + 7);
        at.or_else(|| line.find("etcdserver: ")).map(|at| &line[at..])
    });
    let words = words.unwrap_or_default().trim_end_matches(['"', '}', ')']);
    let words = words.split('"').next().unwrap_or_default();
    assert!(ran.code == 0 || !words.is_empty(), "nothing understood: {ran}");
    (ran.code, words.to_owned())
}

/// The names in a JSON value, as paths.
fn shape(value: &Value) -> BTreeSet<String> {
    let below = |(name, value): (String, &Value)| {
        let paths = shape(value).into_iter().map(|path| format!("{name}.{path}"));
        paths.chain([name.clone()]).collect::<Vec<_>>()
    };
    match value {
        Value::Object(map) => map.iter().flat_map(|(k, v)| below((k.clone(), v))).collect(),
        Value::Array(list) => list.iter().flat_map(|v| below(("[]".to_owned(), v))).collect(),
        _ => BTreeSet::new(),
    }
}

#[test]
fn the_fake_refuses_what_a_real_etcd_refuses() {
    let Some(real) = real() else { return };
    for version in ETCDS {
        let sandbox = Sandbox::new();
        let cluster = Plan::new(version).auth().start(&real);
        let revision = cluster.status(0).expect("a status")["header"]["revision"].as_i64().unwrap();
        let told = match version {
            "3.5" => "3.5.35",
            "3.6" => "3.6.16",
            _ => "3.7.3",
        };
        let member = Member::new("m1").version(told).revision(revision).auth("rootpw");
        let fake = FakeEtcd::start(member.file(&[0; 40_960]));
        let file = sandbox.text("s.db");
        let future = format!("--rev={}", revision + 1000);
        let commands: [&[&str]; 11] = [
            &["member", "list"],
            &["endpoint", "status"],
            &["alarm", "list"],
            &["endpoint", "hashkv"],
            &["endpoint", "hashkv", &future],
            &["get", "health"],
            &["get", "/app/", "--prefix"],
            &["get", "/app/x", &future],
            &["auth", "status"],
            &["user", "get", "root"],
            &["snapshot", "save", &file],
        ];
        let mut differ = Vec::new();
        for user in [None, Some(APP), Some(ROOT), Some("root:wrong"), Some("ghost:x")] {
            for words in commands {
                let run = |endpoint: &str| {
                    let _ = std::fs::remove_file(&file);
                    said(&cluster.ctl_as(user, version, endpoint, words))
                };
                let (theirs, ours) = (run(&cluster.direct(0)), run(&fake.endpoint()));
                if ours != theirs {
                    differ.push(format!("{user:?} {words:?}: {ours:?} instead of {theirs:?}"));
                }
            }
        }
        assert!(differ.is_empty(), "{version}:\n{}", differ.join("\n"));
        assert!(fake.calls("Snapshot") > 0);

        let hashkv = ["endpoint", "hashkv"];
        for words in [&["member", "list"][..], &["endpoint", "status"], &hashkv, &["get", "x"]] {
            let words = [words, &["-w", "json"]].concat();
            let run = |endpoint: &str| {
                shape(&cluster.ctl_as(Some(ROOT), version, endpoint, &words).expect(0, &[]).json())
            };
            assert_eq!(run(&fake.endpoint()), run(&cluster.direct(0)), "{version} {words:?}");
        }
    }
}

#[test]
fn the_fake_learner_refuses_what_a_real_learner_refuses() {
    let Some(real) = real() else { return };
    for version in ETCDS {
        let cluster = Plan::new(version).learner().start(&real);
        let fake = FakeEtcd::start(Member::new("m2").learner());
        let commands: [&[&str]; 6] = [
            &["member", "list"],
            &["endpoint", "status"],
            &["alarm", "list"],
            &["endpoint", "hashkv"],
            &["get", "health"],
            &["get", "health", "--consistency=s"],
        ];
        for words in commands {
            let run = |endpoint: &str| said(&cluster.ctl_as(None, version, endpoint, words));
            let (theirs, ours) = (run(&cluster.direct(1)), run(&fake.endpoint()));
            assert_eq!(ours, theirs, "{version} {words:?}");
        }
        cluster.pause(1);
        let status = ["--dial-timeout=1s", "--command-timeout=1s", "endpoint", "status"];
        cluster.ctl_as(None, version, &cluster.direct(1), &status).expect(1, &["deadline"]);
        cluster.resume(1);
        until("it answers again", Duration::from_secs(20), || cluster.status(1));
    }
}

#[test]
fn the_fake_without_a_leader_refuses_what_a_real_etcd_refuses() {
    let Some(real) = real() else { return };
    let version = "3.7";
    let mut cluster = Plan::new(version).members(2).start(&real);
    cluster.kill(1);
    until("the leader is lost", Duration::from_secs(20), || {
        cluster.status(0)?["leader"].as_u64().is_none_or(|leader| leader == 0).then_some(())
    });
    let fake = FakeEtcd::start(Member::new("m1").version("3.7.3"));
    fake.set(|member| member.leader = 0);
    // Not through etcdctl, which asks again and again until its own time is over.
    let theirs = without_leader(&cluster.direct(0));
    assert_eq!(without_leader(&fake.endpoint()), theirs);
    assert!(theirs[0].starts_with("Unavailable"), "{theirs:?}");
    let errors = |endpoint: &str| {
        let words = ["endpoint", "status", "-w", "json"];
        let status = cluster.ctl_as(None, version, endpoint, &words).expect(0, &[]).json();
        status[0]["Status"]["errors"].clone()
    };
    assert_eq!(errors(&fake.endpoint()), errors(&cluster.direct(0)));
    cluster.restart(1);
}

/// What a member without a leader answers to questions that need one, and to some that do not.
fn without_leader(endpoint: &str) -> [String; 7] {
    use etcd_client::{AlarmAction, AlarmType, Client, ConnectOptions, Error, GetOptions};
    fn said<T>(answer: Result<T, Error>) -> String {
        match answer {
            Ok(_) => "answered".to_owned(),
            Err(Error::GRpcStatus(status)) => format!("{:?} {}", status.code(), status.message()),
            Err(error) => panic!("{error}"),
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::connect([endpoint], None).await.unwrap();
        let picky = Some(ConnectOptions::new().with_require_leader(true));
        let mut picky = Client::connect([endpoint], picky).await.unwrap();
        let clients: [Client; 6] = std::array::from_fn(|_| client.clone());
        let [mut a, mut b, mut c, mut d, mut e, mut f] = clients;
        let local = Some(GetOptions::new().with_serializable());
        let answers = tokio::join!(
            a.get("x", None),
            b.alarm(AlarmAction::Get, AlarmType::None, None),
            c.member_list(),
            d.hash_kv(0),
            e.status(),
            f.get("x", local),
            picky.status(),
        );
        let (a, b, c, d, e, f, g) = answers;
        [said(a), said(b), said(c), said(d), said(e), said(f), said(g)]
    })
}
