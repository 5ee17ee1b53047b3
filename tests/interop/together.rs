//! All members of a cluster restored by one command: they form one healthy cluster, members that
//! still run on old data are kept out of it, and a second restore starts above the first.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::boots::content;
use crate::equals::{accepted, database};
use crate::programs::{Etcd, Real, Refusal, Start, free_ports, real, shell_words, until};
use crate::support::{Sandbox, kubernetes};

const NAMES: [&str; 3] = ["m1", "m2", "m3"];
const SLOW: Duration = Duration::from_secs(30);

/// Waits until all of these serve; `None` where somebody else took a port meanwhile.
fn all_up<'a>(mut etcds: Vec<Etcd<'a>>) -> Option<Vec<Etcd<'a>>> {
    for etcd in &mut etcds {
        match etcd.come_up() {
            Ok(()) => {}
            Err(Refusal::Busy) => return None,
            Err(refusal) => panic!("{refusal:?}"),
        }
    }
    Some(etcds)
}

/// Repeats what needs free ports while others take them.
fn with_ports<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    (0..3).find_map(|_| attempt()).expect("free ports in one of three tries")
}

/// Founds a cluster of three with an ordinary etcd.
fn found<'a>(real: &'a Real, sandbox: &Sandbox, version: &str) -> Option<Vec<Etcd<'a>>> {
    let peers = free_ports::<3>().map(|port| format!("http://127.0.0.1:{port}"));
    let named: Vec<_> = NAMES.iter().zip(&peers).map(|(n, url)| format!("{n}={url}")).collect();
    let more = ["--initial-cluster", &named.join(","), "--initial-cluster-token", "old"];
    let spawn = |(name, peer): (&&'static str, &String)| {
        let data_dir = sandbox.path(&format!("old-{name}"));
        real.spawn(version, &Start { data_dir, name, peer: Some(peer.clone()), more: &more })
    };
    all_up(NAMES.iter().zip(&peers).map(spawn).collect())
}

/// The printed command that starts a member.
fn start_words(report: &Value, name: &str) -> Vec<String> {
    let members = report["members"].as_array().expect("members");
    let member = members.iter().find(|member| member["name"] == name).expect("the member");
    shell_words(member["start"].as_str().expect("a command"))
}

fn healthy(etcds: &[Etcd<'_>]) {
    for etcd in etcds {
        until("a member is healthy", SLOW, || {
            (etcd.ctl(&["endpoint", "health"]).code == 0).then_some(())
        });
    }
}

/// All hold the same at the same revision and name the same leader and members; returns what one
/// holds.
fn agree(etcds: &[Etcd<'_>]) -> Value {
    healthy(etcds);
    // The hashes agree once the compaction that a bump schedules is through on all.
    let hash = until("the members' hashes agree", SLOW, || {
        let triples: Vec<Value> = etcds.iter().map(|etcd| etcd.truth()["hashkv"].clone()).collect();
        triples.iter().all(|triple| triple == &triples[0]).then(|| triples[0].clone())
    });
    assert!(hash["hash"].as_u64().is_some_and(|hash| hash != 0), "{hash}");
    let truths: Vec<Value> = etcds.iter().map(Etcd::truth).collect();
    for truth in &truths {
        assert_eq!(content(truth), content(&truths[0]));
        for part in ["cluster_id", "members", "hashkv"] {
            assert_eq!(truth[part], truths[0][part], "{part}");
        }
        assert_eq!(truth["status"]["leader"], truths[0]["status"]["leader"]);
        assert_eq!(truth["alarms"].as_array().map_or(0, Vec::len), 0, "{truth}");
    }
    truths[0].clone()
}

/// Every restored directory holds the same database, which all tools accept.
fn same_databases(real: &Real, out: &Path) {
    let bytes = NAMES.map(|name| std::fs::read(database(&out.join(name))).expect("a database"));
    assert!(bytes.iter().all(|other| *other == bytes[0]));
    accepted(real, &database(&out.join(NAMES[0])));
}

#[test]
fn three_restored_at_once_are_one_cluster_and_keep_an_old_member_out() {
    let Some(real) = real() else { return };
    for version in ["3.5", "3.6", "3.7"] {
        with_ports(|| around(&real, version));
    }
}

/// The whole disaster on one version of etcd; `None` where a port was taken meanwhile.
fn around(real: &Real, version: &str) -> Option<()> {
    let sandbox = Sandbox::new();
    let mut old = found(real, &sandbox, version)?;
    let fill = ["fill", "--endpoint", &old[0].endpoint, "--seed", "9", "--keys", "150"];
    real.oracle(&[&fill[..], &["--ops", "150", "--big", "1"]].concat());
    let saved = agree(&old);
    old[1].save(&sandbox.path("s.db"));
    // What comes after the snapshot is lost, but the old members remember it.
    old[0].ctl(&["put", "/lost", "x"]).expect(0, &["OK"]);
    let before = agree(&old);
    let forgotten = old.remove(2);
    old.into_iter().for_each(Etcd::stop);

    let restore = ["snapshot", "restore", "s.db", "--mark-compacted", "--all-members"];
    let report = sandbox.kit_json(&[&restore[..], &["new"]].concat());
    assert_eq!(report["identity_source"], "the snapshot's own members");
    assert_ne!(report["cluster_id"], before["cluster_id"], "the token is fresh");
    let boots = report["boots_on"].as_array().expect("boots_on");
    assert!(boots.iter().any(|boot| boot["etcd"] == version && boot["boots"] == true), "{report}");
    same_databases(real, &sandbox.path("new"));

    // Two hosts are restored; the third was forgotten and has run on all the time.
    let start = |name: &str| real.spawn_printed(version, &start_words(&report, name));
    let mut new = all_up(vec![start("m1"), start("m2")])?;
    healthy(&new);
    new[0].ctl(&["put", "/after", "new"]).expect(0, &["OK"]);
    let mismatch = |etcd: &Etcd<'_>| etcd.log().to_lowercase().contains("cluster id mismatch");
    until("the forgotten member is refused", SLOW, || {
        (mismatch(&forgotten) || new.iter().any(mismatch)).then_some(())
    });
    // Alone it has no quorum: it takes no write and answers no read that asks its peers. What it
    // answers from its own file is old.
    for words in [&["put", "/split", "x"][..], &["get", "/after"]] {
        let ran = forgotten.ctl(&[words, &["--command-timeout=2s"]].concat());
        assert_ne!(ran.code, 0, "{ran}");
    }
    let local = |key: &str| {
        forgotten.ctl(&["get", key, "--consistency=s", "-w", "json"]).expect(0, &[]).json()
    };
    assert!(local("/after")["kvs"].is_null());
    assert_eq!(local("/lost")["kvs"].as_array().map(Vec::len), Some(1));
    assert_eq!(local("/lost")["header"]["revision"], before["revision"]);
    let two = agree(&new);
    assert_eq!(two["cluster_id"], report["cluster_id"]);
    assert_eq!(two["keys"].as_array().map(Vec::len), saved["keys"].as_array().map(|k| k.len() + 1));
    forgotten.stop();

    // Restored like the others, the third joins them.
    new.push(all_up(vec![start("m3")])?.remove(0));
    new[2].ctl(&["put", "/after", "all"]).expect(0, &["OK"]);
    let now = agree(&new);
    let revision = report["revision"]["new"].as_i64().expect("a revision");
    assert_eq!(now["revision"], revision + 2);
    assert!(revision >= before["revision"].as_i64().unwrap() + 1_000_000_000, "{report}");
    let ids = |members: &Value| -> Vec<Value> {
        let mut all: Vec<Value> = members.as_array().into_iter().flatten().cloned().collect();
        all.sort_by_key(|member| member["name"].to_string());
        all.iter().map(|member| json!([member["name"], member["id"]])).collect()
    };
    assert_eq!(ids(&now["members"]), ids(&report["members"]));
    // All that was saved is there as it was saved.
    let kept = |truth: &Value| -> Vec<Value> {
        let all = truth["keys"].as_array().into_iter().flatten();
        all.filter(|key| key["key_hex"] != "2f6166746572").cloned().collect()
    };
    assert_eq!(kept(&now), kept(&saved));
    assert_eq!(now["leases"], saved["leases"]);

    // The same snapshot once more starts above everything that was served meanwhile.
    let again = sandbox.kit_json(&[&restore[..], &["again"]].concat());
    assert!(again["revision"]["new"].as_i64() > now["revision"].as_i64(), "{again}");
    new.into_iter().for_each(Etcd::stop);
    let (here, ahead) = (sandbox.text("new/m2"), 1_000_000_000_000);
    let reached = now["revision"].as_i64().expect("a revision");
    let newest = (reached + ahead).to_string();
    let more = ["known", "--old-data-dir", &here, "--newest-revision", &newest];
    let known = sandbox.kit_json(&[&restore[..], &more].concat());
    assert!(known["revision"]["new"].as_i64() >= Some(reached + ahead + 1_000_000_000), "{known}");
    let evidence = known["revision"]["evidence"].as_array().expect("evidence");
    assert!(evidence.iter().any(|one| one["revision"] == reached), "m2's own files: {known}");
    let start = |name: &&str| real.spawn_printed(version, &start_words(&known, name));
    let third = all_up(NAMES.iter().map(start).collect())?;
    let truth = agree(&third);
    assert_eq!(truth["revision"], known["revision"]["new"]);
    assert_eq!(content(&truth)["keys"], saved["keys"]);
    Some(())
}

#[test]
fn a_learner_is_left_out_and_other_addresses_are_taken() {
    let Some(real) = real() else { return };
    with_ports(|| {
        let sandbox = Sandbox::new();
        let data_dir = sandbox.path("old");
        let old = real.etcd("3.6", &Start { data_dir, name: "m1", ..Start::default() });
        let fill = ["fill", "--endpoint", &old.endpoint, "--seed", "4", "--keys", "50"];
        real.oracle(&fill);
        let [learner] = free_ports();
        let url = format!("--peer-urls=http://127.0.0.1:{learner}");
        old.ctl(&["member", "add", "m2", "--learner", &url]).expect(0, &[]);
        old.save(&sandbox.path("s.db"));
        let saved = old.truth();
        assert_eq!(saved["members"].as_array().map(Vec::len), Some(2));
        old.stop();
        one_on_each_host(&real, &sandbox, "3.6", &saved, &["--mark-compacted"])
    });
}

#[test]
fn a_kubernetes_of_one_becomes_three_at_other_addresses() {
    let Some(real) = real() else { return };
    with_ports(|| {
        let sandbox = Sandbox::with(&kubernetes());
        let words = ["snapshot", "restore", "s.db", "--data-dir", "one", "--no-bump"];
        let report = sandbox.kit_json(&words);
        let (name, data_dir) = (report["name"].as_str().unwrap(), sandbox.path("one"));
        let old = real.etcd("3.7", &Start { data_dir, name, ..Start::default() });
        let saved = old.truth();
        drop(old);
        one_on_each_host(&real, &sandbox, "3.7", &saved, &[])
    });
}

/// Restores `s.db` for three hosts that are not in it, each with an address of its own, and starts
/// them; `None` where a port was taken meanwhile.
fn one_on_each_host(
    real: &Real,
    sandbox: &Sandbox,
    version: &str,
    saved: &Value,
    flags: &[&str],
) -> Option<()> {
    let ports = free_ports::<3>();
    let urls: Vec<String> =
        (0..3).map(|host| format!("http://127.0.0.{}:{}", host + 2, ports[host])).collect();
    let named: Vec<_> = NAMES.iter().zip(&urls).map(|(n, url)| format!("{n}={url}")).collect();
    let cluster = named.join(",");
    let words = ["snapshot", "restore", "s.db", "--all-members", "new"];
    let flags = [flags, &["--initial-cluster", &cluster]].concat();
    let report = sandbox.kit_json(&[&words[..], &flags].concat());
    assert_eq!(report["identity_source"], "the flags");
    let learners = saved["members"].as_array().into_iter().flatten();
    let learners = learners.filter(|member| member["is_learner"] == true).count();
    let warned = report["warnings"].to_string().contains("is left out");
    assert_eq!(warned, learners > 0, "{report}");
    same_databases(real, &sandbox.path("new"));

    let clients = free_ports::<3>();
    let start = |at: usize| {
        let mut words = start_words(&report, NAMES[at]);
        // No command sends a member to an address that its host no longer has.
        for old in saved["members"].as_array().into_iter().flatten() {
            for url in old["peer_urls"].as_array().into_iter().chain(old["client_urls"].as_array())
            {
                for url in url.iter().filter_map(Value::as_str) {
                    assert!(!words.iter().any(|word| word.contains(url)), "{url}: {words:?}");
                }
            }
        }
        let client = format!("http://127.0.0.{}:{}", at + 2, clients[at]);
        for flag in ["--listen-client-urls", "--advertise-client-urls"] {
            match words.iter().position(|word| word == flag) {
                Some(at) => words[at + 1].clone_from(&client),
                None => words.extend([flag.to_owned(), client.clone()]),
            }
        }
        real.spawn_printed(version, &words)
    };
    let new = all_up((0..3).map(start).collect())?;
    new[2].ctl(&["put", "/after", "x"]).expect(0, &["OK"]);
    let now = agree(&new);
    let revision = report["revision"]["new"].as_i64().expect("a revision");
    assert_eq!(now["revision"], revision + 1);
    let members = now["members"].as_array().expect("members");
    assert_eq!(members.len(), 3);
    for member in members {
        let at = NAMES.iter().position(|name| member["name"] == *name).expect("a known name");
        assert_eq!(member["peer_urls"], json!([urls[at]]));
        assert_ne!(member["is_learner"], true);
        let old = saved["members"].as_array().into_iter().flatten();
        assert!(old.into_iter().all(|old| old["id"] != member["id"]), "{member}");
    }
    let count = saved["keys"].as_array().expect("keys").len();
    assert_eq!(now["keys"].as_array().map(Vec::len), Some(count + 1));
    let kept: Vec<_> = now["keys"].as_array().into_iter().flatten().collect();
    let kept: Vec<_> = kept.into_iter().filter(|key| key["key_hex"] != "2f6166746572").collect();
    let all: Vec<_> = saved["keys"].as_array().into_iter().flatten().collect();
    assert_eq!(kept, all);
    Some(())
}
