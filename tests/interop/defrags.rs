//! `defrag` of running members against real clusters: under load, killed half-way, with members
//! that are down or paused, with a learner, with authentication.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use etcd_client::{Client, CompactionOptions, ConnectOptions, DeleteOptions};
use serde_json::Value;

use crate::boots::ETCDS;
use crate::cluster_harness::{APP, Cluster, Plan, ROOT};
use crate::programs::{real, until};
use crate::support::{Ran, Sandbox};

const LONG: Duration = Duration::from_secs(60);
/// One try of a write, as an API server has it before it goes to another member.
const TRY: Duration = Duration::from_millis(500);
/// Tries that a write may take at most: each member four times, with elections between.
const TRIES_MAX: usize = 12;
const VALUE_BYTES: usize = 100_000;
const LOCK: &str = "etcdkit/lock/maintenance";

fn block_on<T>(work: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build().expect("a runtime").block_on(work)
}

async fn client(endpoint: &str, is_auth: bool) -> Client {
    let (name, password) = ROOT.split_once(':').unwrap();
    let options = is_auth.then(|| ConnectOptions::new().with_user(name, password));
    Client::connect([endpoint], options).await.expect("a client")
}

/// Fills the members with 60 MB, two thirds of which are free then.
fn fill(endpoint: &str, is_auth: bool) {
    block_on(async {
        let mut client = client(endpoint, is_auth).await;
        for number in 0..600 {
            let name = if number % 3 == 0 { "kept" } else { "gone" };
            client.put(format!("{name}/{number}"), vec![b'v'; VALUE_BYTES], None).await.unwrap();
        }
        let gone = DeleteOptions::new().with_prefix();
        let answer = client.delete("gone/", Some(gone)).await.unwrap();
        let revision = answer.header().unwrap().revision();
        let physical = CompactionOptions::new().with_physical();
        client.compact(revision, Some(physical)).await.unwrap();
    });
}

/// Writes one after the other, each through another member, tried at the next one when it is late.
struct Writer {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<(usize, usize)>,
}

impl Writer {
    fn start(endpoints: Vec<String>, is_auth: bool) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = spawn(move || {
            block_on(async {
                let mut clients = Vec::new();
                for endpoint in &endpoints {
                    clients.push(client(endpoint, is_auth).await);
                }
                let (mut number, mut most) = (0, 0);
                while !over.load(Ordering::SeqCst) {
                    for tried in 1.. {
                        let client = &mut clients[(number + tried) % endpoints.len()];
                        let put = client.put(format!("load/{number}"), number.to_string(), None);
                        most = most.max(tried);
                        if matches!(tokio::time::timeout(TRY, put).await, Ok(Ok(_))) {
                            break;
                        }
                        assert!(tried < 10 * TRIES_MAX, "no member takes a write");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    number += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                (number, most)
            })
        });
        Self { is_over, thread }
    }

    /// Returns how many were acknowledged, and the most tries that one took.
    fn stop(self) -> (usize, usize) {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.join().expect("the writer")
    }
}

/// Every write is there, through every member.
fn are_there(endpoints: &[String], count: usize, is_auth: bool) {
    block_on(async {
        for endpoint in endpoints {
            let mut client = client(endpoint, is_auth).await;
            for number in [0, count / 2, count - 1] {
                let answer = client.get(format!("load/{number}"), None).await.unwrap();
                assert_eq!(answer.kvs()[0].value(), number.to_string().as_bytes());
            }
            let all = etcd_client::GetOptions::new().with_prefix().with_count_only();
            let answer = client.get("load/", Some(all)).await.unwrap();
            assert_eq!(answer.count(), i64::try_from(count).unwrap(), "{endpoint}");
        }
    });
}

fn members(report: &Value) -> &Vec<Value> {
    report["members"].as_array().expect("members")
}

/// Starts a forced run and kills it when it has begun with so many members, and with no more, nor
/// come to its end.
fn killed(cluster: &Cluster<'_>, sandbox: &Sandbox, user: Option<&str>, begun: usize) {
    for _ in 0..20 {
        if killed_midway(cluster, sandbox, user, begun) {
            return;
        }
        // One that was at its end has given its lock back.
        if !cluster.ctl(&["get", LOCK]).expect(0, &[]).stdout.is_empty() {
            end_lease(cluster);
        }
        is_healthy(cluster, sandbox);
    }
    panic!("no run of twenty was killed at member {begun}");
}

fn killed_midway(
    cluster: &Cluster<'_>,
    sandbox: &Sandbox,
    user: Option<&str>,
    begun: usize,
) -> bool {
    let path = sandbox.path("err");
    let mut command = sandbox.command();
    command.args(["defrag", "--cluster", "--force", "--endpoints", &cluster.endpoints()]);
    command.args(user.map(|user| format!("--user={user}")));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&path).unwrap());
    let mut child = command.spawn().expect("the program");
    let turns = || {
        let said = fs::read_to_string(&path).unwrap();
        assert!(!said.contains("error"), "{said}");
        said.lines().filter(|line| line.starts_with("defragmenting ")).count()
    };
    until("its turn", LONG, || (turns() >= begun).then_some(()));
    child.kill().expect("a signal");
    let was_killed = child.wait().expect("its end").signal() == Some(9);
    was_killed && turns() == begun
}

/// Ends the lease of a lock that a killed run has left.
fn end_lease(cluster: &Cluster<'_>) {
    let ran = cluster.ctl(&["get", LOCK, "-w", "json"]).expect(0, &[]);
    let lease = ran.json()["kvs"][0]["lease"].as_i64().expect("a lease");
    cluster.ctl(&["lease", "revoke", &format!("{lease:x}")]).expect(0, &["revoked"]);
}

fn is_healthy(cluster: &Cluster<'_>, sandbox: &Sandbox) {
    until("a healthy cluster", LONG, || {
        (cluster.kit(sandbox, &["health", "--cluster"]).code == 0).then_some(())
    });
}

#[test]
fn members_are_defragmented_while_the_cluster_is_written_to() {
    let Some(real) = real() else { return };
    for version in ETCDS {
        let is_auth = version == "3.6";
        let plan = Plan::new(version).members(3);
        // A learner of a cluster with users and without certificates lets nobody log in.
        let plan = if is_auth { plan.auth() } else { plan.learner() };
        let mut cluster = plan.start(&real);
        let (sandbox, user) = (Sandbox::new(), is_auth.then_some(ROOT));
        let voters: Vec<String> = (0..3).map(|index| cluster.direct(index)).collect();
        fill(&voters[0], is_auth);
        let leader = cluster.leader();
        if is_auth {
            let endpoints = cluster.endpoints();
            let words = ["defrag", "--cluster"];
            let ran = cluster.kit_as(&sandbox, Some(APP), &endpoints, &words);
            ran.expect(5, &["the user app may not defragment members", "role root"]);
        }

        let writer = Writer::start(voters.clone(), is_auth);
        let ran = cluster.kit(&sandbox, &["defrag", "--cluster", "-w", "json"]).expect(0, &[]);
        let (count, tries) = writer.stop();
        let report = ran.json();
        are_there(&voters, count, is_auth);
        println!("{version}: {count} writes, {tries} tries at most");
        assert!(tries <= TRIES_MAX, "a write was tried {tries} times: {report}");
        let done: Vec<&Value> =
            members(&report).iter().filter(|member| member["result"] == "done").collect();
        assert_eq!(done.len(), 3, "{report}");
        for member in &done {
            assert_eq!(member["role"], "follower", "{report}");
            assert!(member["gained_bytes"].as_i64().unwrap() > 20_000_000, "{report}");
            assert!(member["free_bytes"].is_u64(), "its disk is here: {report}");
            assert!(member["stall_ms"].is_u64(), "{report}");
        }
        assert_eq!(done[2]["endpoint"], voters[leader], "{report}");
        assert_eq!(report["leader_moves"].as_array().unwrap().len(), 1, "{report}");
        assert_ne!(cluster.leader(), leader);
        let learner = members(&report).iter().find(|member| member["role"] == "learner");
        assert_eq!(
            learner.map(|learner| learner["result"] == "skipped"),
            (!is_auth).then_some(true)
        );

        // Killed at each member, it leaves a cluster that serves, and a lock that ends.
        let turns = if is_auth { 1..=3 } else { 2..=2 };
        for begun in turns {
            killed(&cluster, &sandbox, user, begun);
            let ran = cluster.kit(&sandbox, &["defrag", "--cluster", "--force"]);
            ran.expect(8, &["another run maintains this cluster: defrag by", "s left"]);
            is_healthy(&cluster, &sandbox);
            end_lease(&cluster);
        }
        let ran: Ran = cluster.kit(&sandbox, &["defrag", "--cluster", "--force"]);
        ran.expect(0, &["3 of", "members defragmented"]);
        let ran = cluster.kit(&sandbox, &["defrag", "--cluster", "--exit-on-noop"]);
        ran.expect(10, &["0 of"]);

        // One that is paused or down stops it before anything is changed.
        let follower = cluster.follower();
        let words = ["defrag", "--force", "--command-timeout", "2s"];
        let of_others = || {
            let up: Vec<String> =
                (0..3).filter(|at| *at != follower).map(|at| cluster.direct(at)).collect();
            cluster.kit_as(&sandbox, user, &up.join(","), &words)
        };
        cluster.pause(follower);
        let ran = of_others();
        cluster.resume(follower);
        ran.expect(7, &["other members are unhealthy", "no member was defragmented"]);
        is_healthy(&cluster, &sandbox);
        if version == "3.7" {
            cluster.kill(follower);
            let up: Vec<String> =
                (0..3).filter(|at| *at != follower).map(|at| cluster.direct(at)).collect();
            let ran = cluster.kit_as(&sandbox, user, &up.join(","), &words);
            ran.expect(7, &["connection refused"]);
            // Told to, it passes that one over and does the others.
            let words = ["defrag", "--cluster", "--force", "--accept-unhealthy", "-w", "json"];
            let ran = cluster.kit_as(&sandbox, user, &up.join(","), &words);
            let report = ran.expect(3, &["2 of 4 members are defragmented"]).json();
            let results = members(&report).iter().map(|member| member["result"].as_str().unwrap());
            let mut results: Vec<&str> = results.collect();
            results.sort_unstable();
            assert_eq!(results, ["done", "done", "down", "skipped"], "{report}");
            assert_eq!(report["stopped"], Value::Null, "{report}");
            cluster.restart(follower);
            is_healthy(&cluster, &sandbox);
        }
        let get = cluster.ctl(&["get", LOCK]).expect(0, &[]);
        assert_eq!(get.stdout, "", "every lock was given back");
    }
}
