//! `status`, `health`, `wait` and `consistency` of real clusters.

use std::fs;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster_harness::{APP, Cluster, Plan};
use crate::programs::{real, shell_words, until};
use crate::support::{Rows, Sandbox};

/// Limits where members do not answer.
const SHORT: [&str; 2] = ["--command-timeout=3s", "--dial-timeout=3s"];
/// Limits that a busy machine does not pass.
const LONG: [&str; 2] = ["--command-timeout=60s", "--dial-timeout=60s"];

#[track_caller]
fn view(cluster: &Cluster<'_>, verb: &str, code: i32) -> Value {
    view_within(cluster, verb, LONG, code)
}

#[track_caller]
fn view_within(cluster: &Cluster<'_>, verb: &str, limits: [&str; 2], code: i32) -> Value {
    let words = [verb, "-w", "json", limits[0], limits[1]];
    cluster.kit(&Sandbox::new(), &words).expect(code, &[]).json()
}

fn findings(value: &Value) -> Vec<&str> {
    let all = value["findings"].as_array().expect("findings");
    all.iter().map(|finding| finding["id"].as_str().expect("an id")).collect()
}

#[test]
fn a_cluster_is_seen_as_etcdctl_sees_it_and_while_it_falls_apart() {
    let Some(real) = real() else { return };
    for version in ["3.5", "3.6", "3.7"] {
        let mut cluster = Plan::new(version).members(3).tls().quota(100_000_000).start(&real);
        for number in 0..20 {
            cluster.ctl(&["put", &format!("/a/{number}"), "value"]).expect(0, &["OK"]);
        }
        cluster.ctl(&["compaction", "10"]).expect(0, &[]);
        let before: Vec<_> = (0..3).map(|index| cluster.status(index).unwrap()).collect();
        let value = view(&cluster, "status", 0);
        assert_eq!((&value["verdict"], &value["findings"]), (&json!("ok"), &json!([])), "{value}");
        for (index, member) in value["members"].as_array().unwrap().iter().enumerate() {
            let truth = cluster.status(index).expect("its status");
            let id = truth["header"]["member_id"].as_u64().unwrap();
            assert_eq!(member["id"], format!("{id:x}"));
            assert_eq!(member["endpoint"], cluster.endpoint(index));
            assert_eq!(member["name"], format!("m{}", index + 1));
            assert_eq!(member["healthy"], true, "{value}");
            assert_eq!(member["version"], truth["version"]);
            // What was compacted goes meanwhile.
            let sizes = [&before[index]["dbSize"], &truth["dbSize"]];
            assert!(sizes.contains(&&member["db_size"]), "{sizes:?} {value}");
            assert_eq!(member["revision"], truth["header"]["revision"]);
            assert_eq!(member["raft_term"], truth["raftTerm"]);
            assert_eq!(member["is_leader"], index == cluster.leader());
            // etcd 3.5 says it on /metrics only, and that over TLS with our certificate.
            let source = if version == "3.5" { "metrics" } else { "status" };
            assert_eq!(member["quota"], 100_000_000, "{version}");
            assert_eq!(member["quota_source"], source, "{version}");
        }
        let hashes = view(&cluster, "consistency", 0);
        assert_eq!(hashes["verdict"], "equal", "{hashes}");
        let truth = cluster.ctl(&["endpoint", "hashkv", "-w", "json"]).expect(0, &[]).json();
        for (member, truth) in
            hashes["members"].as_array().unwrap().iter().zip(truth.as_array().expect("a list"))
        {
            assert_eq!(member["hash"], truth["HashKV"]["hash"]);
            assert_eq!(member["compact_revision"], truth["HashKV"]["compact_revision"]);
        }

        let follower = cluster.follower();
        cluster.stop(follower);
        let name = json!(format!("m{}", follower + 1));
        for verb in ["status", "health"] {
            let value = view(&cluster, verb, 3);
            assert_eq!(value["members"][follower]["name"], name);
            assert_eq!(value["members"][follower]["healthy"], false);
            assert_eq!(value["quorum"]["may_fail"], 0, "{value}");
            assert!(findings(&value).contains(&"member-down"), "{value}");
        }
        assert_eq!(view(&cluster, "consistency", 3)["verdict"], "equal");
        let waits = ["wait", "--until", "healthy", "--timeout", "5s"];
        let words = ["waiting: 2 of 3 members are healthy", "not met"];
        cluster.kit(&Sandbox::new(), &waits).expect(4, &words);
        // Paused is worse than stopped: the port takes connections.
        let leader = cluster.leader();
        cluster.pause(leader);
        let value = view_within(&cluster, "health", SHORT, 4);
        assert_eq!(value["quorum"]["has_quorum"], false, "{value}");
        let ids = findings(&value);
        assert!(ids.contains(&"no-quorum"), "{value}");
        cluster.resume(leader);
        let line = format!(
            "wait --until healthy --timeout 180s --cluster --endpoints {} {}",
            cluster.endpoint(leader),
            cluster.flags().join(" ")
        );
        let waiting = thread::spawn(move || Sandbox::new().run(&line));
        thread::sleep(Duration::from_millis(500));
        cluster.restart(follower);
        waiting.join().expect("the wait").expect(0, &["healthy: met"]);
    }
}

#[test]
fn users_and_learners() {
    let Some(real) = real() else { return };
    for version in ["3.5", "3.6", "3.7"] {
        let cluster = Plan::new(version).members(2).learner().start(&real);
        let value = view(&cluster, "status", 0);
        assert_eq!(value["members"][2]["is_learner"], true, "{value}");
        assert_eq!(value["members"][2]["healthy"], true, "{value}");
        assert_eq!(value["quorum"]["voters"], 2);
        assert_eq!(view(&cluster, "health", 0)["verdict"], "ok");
        // A learner alone cannot tell, even as long as all is well.
        let words = ["health", "-w", "json", LONG[0], LONG[1]];
        let ran = cluster.kit_as(&Sandbox::new(), None, &cluster.endpoint(2), &words);
        let value = ran.expect(3, &[]).json();
        assert_eq!(value["verdict"], "warning", "{value}");
        assert!(findings(&value).contains(&"only-learners"), "{value}");
        let hashes = view(&cluster, "consistency", 3);
        assert_eq!(hashes["verdict"], "equal");
        assert!(findings(&hashes).contains(&"not-compared"), "{hashes}");

        // Nobody can log in at a learner, which knows who has logged in elsewhere.
        for words in
            ["role add root", "user add root:pw", "user grant-role root root", "auth enable"]
        {
            let endpoint = cluster.endpoint(0);
            let words: Vec<&str> =
                ["--endpoints", &endpoint].into_iter().chain(words.split(' ')).collect();
            real.ok(&format!("etcdctl-{version}"), &words);
        }
        let asked = ["status", "-w", "json"];
        let ran = cluster.kit_as(&Sandbox::new(), Some("root:pw"), &cluster.endpoints(), &asked);
        let value = ran.expect(0, &[]).json();
        assert_eq!(value["members"][2]["is_learner"], true, "{value}");
        assert_eq!(value["members"][2]["healthy"], true, "{value}");
        drop(cluster);

        let cluster = Plan::new(version).members(2).auth().start(&real);
        let run = |user, words: &[&str]| {
            cluster.kit_as(&Sandbox::new(), user, &cluster.endpoints(), words)
        };
        run(Some(APP), &["status"]).expect(0, &["verdict: ok", "leader"]);
        run(Some(APP), &["health"]).expect(0, &["a read goes through 2 of 2"]);
        run(Some(APP), &["consistency"]).expect(5, &["app", "role root"]);
        run(None, &["health"]).expect(5, &["--user NAME"]);
        run(None, &["consistency"]).expect(5, &["--user NAME"]);
        run(Some("app:wrong"), &["status"]).expect(5, &["REFUSED", "verdict: no-access"]);
        assert_eq!(view(&cluster, "consistency", 0)["verdict"], "equal");
    }
}

#[test]
fn the_printed_commands_get_writes_back() {
    let Some(real) = real() else { return };
    for version in ["3.5", "3.6", "3.7"] {
        let cluster = Plan::new(version).members(3).tls().quota(2_000_000).start(&real);
        let value = "x".repeat(100_000);
        until("the database is full", Duration::from_secs(600), || {
            let ran = cluster.ctl(&["put", "/a", &value]);
            (ran.code != 0).then(|| assert!(ran.stderr.contains("space exceeded"), "{ran}"))
        });
        let value = view(&cluster, "status", 0);
        assert_eq!(value["verdict"], "critical");
        assert_eq!(findings(&value)[0], "nospace", "{value}");
        assert!(findings(&value).contains(&"quota"), "{value}");
        view(&cluster, "health", 3);
        // The one command, or the same by hand.
        let next = value["findings"][0]["next"].as_array().unwrap();
        assert!(next.len() > 4, "{value}");
        for (place, next) in next.iter().enumerate() {
            let words = shell_words(next.as_str().unwrap());
            assert_eq!(words[0], if place == 0 { "etcdkit" } else { "etcdctl" });
            if (place == 0) != (version == "3.6") {
                continue;
            }
            if place == 0 {
                let ran = Sandbox::new().command().args(&words[1..]).output().unwrap();
                assert!(ran.status.success(), "{ran:?}");
                continue;
            }
            let words: Vec<&str> = words[1..].iter().map(String::as_str).collect();
            real.ok(&format!("etcdctl-{version}"), &words);
        }
        let waits = ["wait", "--until", "no-alarm", "--timeout", "120s"];
        cluster.kit(&Sandbox::new(), &waits).expect(0, &["no-alarm: met"]);
        cluster.ctl(&["put", "/a", "small"]).expect(0, &["OK"]);
        assert_eq!(view(&cluster, "status", 0)["verdict"], "ok");
    }
}

#[test]
fn the_member_whose_data_differs_is_named() {
    let Some(real) = real() else { return };
    for version in ["3.5", "3.6", "3.7"] {
        let mut cluster = Plan::new(version).members(3).start(&real);
        for number in 0..10 {
            cluster.ctl(&["put", &format!("/a/{number}"), "value"]).expect(0, &["OK"]);
        }
        assert_eq!(view(&cluster, "consistency", 0)["verdict"], "equal");
        let odd = cluster.follower();
        cluster.stop(odd);
        let file = cluster.data(odd).join("member/snap/db");
        let mut rows = Rows::read(&fs::read(&file).expect("the database"));
        let records = rows.buckets.get_mut(&vec![b"key".to_vec()]).expect("the records");
        let record = records.values_mut().next().expect("a record");
        let at = record.windows(5).position(|w| w == b"value").expect("its value");
        record[at] ^= 1;
        fs::write(&file, rows.database(4096)).expect("the database");
        cluster.restart(odd);
        let value = view(&cluster, "consistency", 6);
        assert_eq!(value["verdict"], "differs");
        for (index, member) in value["members"].as_array().unwrap().iter().enumerate() {
            assert_eq!(member["odd"], index == odd, "{value}");
        }
        let name = format!("m{} holds other data", odd + 1);
        cluster.kit(&Sandbox::new(), &["consistency"]).expect(6, &[&name]);
    }
}

#[test]
fn versions_that_differ_and_answers_that_are_late() {
    let Some(real) = real() else { return };
    let cluster = Plan::new("3.5").versions(&["3.5", "3.6", "3.6"]).proxied(2).start(&real);
    let value = view(&cluster, "status", 0);
    assert_eq!(value["verdict"], "warning", "{value}");
    assert!(findings(&value).contains(&"versions"), "{value}");
    assert_eq!(view(&cluster, "consistency", 0)["verdict"], "equal");
    cluster.proxy().set(|harm| harm.black_hole = true);
    let value = view_within(&cluster, "status", SHORT, 3);
    let error = value["members"][2]["error"]["message"].as_str().expect("an error");
    assert!(error.contains("no answer within 3 s"), "{error}");
    assert_eq!(value["members"][2]["error"]["code"], 4);
    assert_eq!(value["members"][1]["healthy"], true);
    // Both members that are left are a majority.
    assert_eq!(value["quorum"]["has_quorum"], true);
}
