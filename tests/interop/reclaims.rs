//! Real clusters at their quota, by history and by living data, brought back by `reclaim`; and a
//! real member that is stopped, in its directory.

use std::collections::BTreeMap;

use etcd_client::{Client, GetOptions};
use serde_json::Value;

use crate::cluster_harness::{APP, Cluster, Plan, ROOT};
use crate::programs::real;
use crate::support::Sandbox;

const QUOTA: u64 = 16 << 20;
const VALUE_BYTES: usize = 100 << 10;

type Keys = BTreeMap<Vec<u8>, Vec<u8>>;

fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(test)
}

async fn connect(endpoint: &str, user: Option<&str>) -> Client {
    let options = user
        .and_then(|user| user.split_once(':'))
        .map(|(name, password)| etcd_client::ConnectOptions::new().with_user(name, password));
    Client::connect([endpoint], options).await.unwrap()
}

/// Puts until a cluster is out of space.
fn fill(cluster: &Cluster<'_>, user: Option<&str>, key: impl Fn(usize) -> String) {
    let endpoints = cluster.endpoints();
    let first = endpoints.split(',').next().unwrap();
    run(async {
        let mut client = connect(first, user).await;
        for number in 0.. {
            let value = vec![b'a' + u8::try_from(number % 20).unwrap(); VALUE_BYTES];
            if let Err(error) = client.put(key(number), value, None).await {
                assert!(error.to_string().contains("database space exceeded"), "{error}");
                break;
            }
        }
    });
    cluster.ctl(&["alarm", "list"]).expect(0, &["NOSPACE"]);
}

/// Everything that one member has.
fn keys(endpoint: &str, user: Option<&str>) -> Keys {
    run(async {
        let mut client = connect(endpoint, user).await.kv_client();
        client = client.max_decoding_message_size(64 << 20);
        let options = GetOptions::new().with_prefix();
        let answer = client.get("/", Some(options)).await.unwrap();
        answer.kvs().iter().map(|kv| (kv.key().to_vec(), kv.value().to_vec())).collect()
    })
}

/// Every member takes a write, and the old etcdctl agrees.
fn is_back(cluster: &Cluster<'_>, user: Option<&str>, before: &Keys) {
    let endpoints = cluster.endpoints();
    for endpoint in endpoints.split(',') {
        assert_eq!(keys(endpoint, user), *before, "{endpoint}");
    }
    for (number, endpoint) in endpoints.split(',').enumerate() {
        let key = format!("written-{number}");
        run(async { connect(endpoint, user).await.put(key, "x", None).await.unwrap() });
    }
    let ran = cluster.ctl(&["alarm", "list"]).expect(0, &[]);
    assert_eq!(ran.stdout.trim(), "", "{ran}");
    cluster.ctl(&["endpoint", "health"]).expect(0, &["is healthy"]);
}

fn pods(number: usize) -> String {
    format!("/registry/pods/ns/p{:02}", number % 10)
}

#[test]
fn three_members_filled_by_history_take_writes_again() {
    let Some(real) = real() else { return };
    for version in ["3.5", "3.6", "3.7"] {
        let cluster = Plan::new(version).members(3).quota(QUOTA).start(&real);
        let sandbox = Sandbox::new();
        fill(&cluster, None, pods);
        let before = keys(cluster.endpoints().split(',').next().unwrap(), None);
        assert_eq!(before.len(), 10);
        cluster.kit(&sandbox, &["alarm", "disarm"]).expect(7, &["quota is 16777216"]);
        // Only one is named: all are done.
        let endpoints = cluster.endpoints();
        let one = endpoints.split(',').next().unwrap();
        let words = ["reclaim", "--keep-revisions", "20", "-w", "json"];
        let report = cluster.kit_as(&sandbox, None, one, &words).expect(0, &[]).json();
        assert_eq!(report["outcome"], "reclaimed", "{version}: {report}");
        let members = report["members"].as_array().unwrap();
        assert_eq!(members.len(), 3);
        for member in members {
            assert_eq!(
                (&member["defrag"], &member["accepts_writes"]),
                (&"done".into(), &true.into())
            );
            assert!(member["free_percent"].as_i64() >= Some(20), "{version}: {member}");
        }
        assert_eq!(report["space"]["groups"][0]["name"], "pods");
        is_back(&cluster, None, &before);
        let took: u64 =
            report["steps"].as_array().unwrap().iter().filter_map(|s| s["ms"].as_u64()).sum();
        println!("etcd {version}: back after {took} ms, {} % free", report["free_percent_min"]);
    }
}

#[test]
fn living_data_is_named_and_an_ordinary_user_is_told_before_anything() {
    let Some(real) = real() else { return };
    let cluster = Plan::new("3.6").members(3).quota(QUOTA).auth().start(&real);
    let sandbox = Sandbox::new();
    fill(&cluster, Some(ROOT), |number| format!("/app/cache/k{number:06}"));
    let endpoints = cluster.endpoints();
    let before = keys(endpoints.split(',').next().unwrap(), Some(ROOT));
    for words in [&["reclaim"][..], &["alarm", "disarm"]] {
        let ran = cluster.kit_as(&sandbox, Some(APP), &endpoints, words);
        ran.expect(5, &["the user app may not", "the role root", "nothing was done"]);
    }
    assert!(!sandbox.exists("audit.jsonl"));
    // What the defragmentation gives back may be enough for a write, and never for a fifth.
    let words = ["next       look at /app/cache/", "--quota-backend-bytes=33554432", "--user=root"];
    cluster.kit(&sandbox, &["reclaim"]).expect(3, &words);
    let report = cluster.kit(&sandbox, &["reclaim", "-w", "json"]).expect(3, &[]).json();
    let accepted = report["outcome"] == "tight";
    assert!(accepted || report["outcome"] == "full", "{report}");
    assert_eq!(report["writes_accepted"], accepted);
    assert_eq!(report["alarms"].as_array().unwrap().is_empty(), accepted, "{report}");
    assert_eq!(keys(endpoints.split(',').next().unwrap(), Some(ROOT)), before);
    // Room is made, which is taken at the quota too.
    // The first hundred, of those that were taken before all members knew of the alarm.
    cluster.ctl(&["del", "--prefix", "/app/cache/k0000"]).expect(0, &[]);
    let before = keys(endpoints.split(',').next().unwrap(), Some(ROOT));
    let words = ["reclaim", "--keep-revisions", "0"];
    cluster.kit(&sandbox, &words).expect(0, &["writes are accepted"]);
    is_back(&cluster, Some(ROOT), &before);
}

#[test]
fn a_member_that_was_killed_at_its_quota_is_brought_back_in_its_directory() {
    let Some(real) = real() else { return };
    for version in ["3.5", "3.6", "3.7"] {
        let mut cluster = Plan::new(version).quota(QUOTA).start(&real);
        let sandbox = Sandbox::new();
        fill(&cluster, None, pods);
        let endpoint = cluster.endpoints();
        let before = keys(&endpoint, None);
        let dir = cluster.data(0);
        let dir = dir.to_str().unwrap().to_owned();
        let quota = QUOTA.to_string();
        let flags = ["--data-dir", &dir, "--quota-backend-bytes", &quota];
        let reclaim = |more: &[&str]| {
            sandbox.run_words(&[&["reclaim", "-w", "json"][..], &flags, more].concat())
        };
        reclaim(&[]).expect(8, &["in use"]);
        // In a crash loop: it comes up, says that it is not well, and is killed.
        for _ in 0..2 {
            cluster.kill(0);
            cluster.restart(0);
        }
        cluster.kill(0);
        let report = reclaim(&["--keep-revisions", "20"]).expect(0, &[]).json();
        assert_eq!(report["outcome"], "reclaimed", "{version}: {report}");
        let starts = report["starts_on"].as_array().unwrap();
        assert!(starts.contains(&Value::from(version)), "{version}: {report}");
        cluster.restart(0);
        is_back(&cluster, None, &before);
        let status = cluster.status(0).unwrap();
        let now = status["dbSize"].as_u64().unwrap();
        assert!(now < QUOTA * 8 / 10, "{version}: {now}");
        println!("etcd {version}: {} -> {now} bytes", report["before"]["db_bytes"]);
    }
}

#[test]
fn a_member_of_several_is_left_alone() {
    let Some(real) = real() else { return };
    let mut cluster = Plan::new("3.6").members(3).start(&real);
    let sandbox = Sandbox::new();
    cluster.stop(2);
    let dir = cluster.data(2);
    let words = ["3 voters", "m1, m2, m3", "nothing was changed"];
    sandbox.run_words(&["reclaim", "--data-dir", dir.to_str().unwrap()]).expect(7, &words);
    cluster.restart(2);
    cluster.ctl(&["endpoint", "health"]).expect(0, &["is healthy"]);
}
