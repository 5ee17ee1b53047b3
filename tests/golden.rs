//! Holds what this project reads out of every fixture against what real programs said about it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]
#![allow(clippy::indexing_slicing, reason = "these are tests")]

#[path = "support/inspect_cases.rs"]
mod inspect_cases;
mod support;
#[path = "support/yaml_cases.rs"]
mod yaml_cases;
#[path = "support/yaml_model.rs"]
mod yaml_model;
#[path = "support/yaml_texts.rs"]
mod yaml_texts;

use std::collections::BTreeMap;
use std::fs;

use etcdkit::bolt::File;
use etcdkit::etcd::members::{ClusterId, MemberId};
use etcdkit::etcd::record::KeyValue;
use etcdkit::etcd::revision::RevisionKey;
use etcdkit::etcd::rows::{Lease, Role};
use etcdkit::etcd::survey::Report;
use etcdkit::ops::examine::{Examined, Level, Seal, examine};
use etcdkit::ops::hashkv::hashkv;
use etcdkit::ops::save::{self, Options, Report as Saved};
use etcdkit::ops::verify::{Verdict, judge};
use etcdkit::ops::{Silent, status};
use serde_json::{Value, json};
use support::dead::unpack;
use support::{
    Rows, Sandbox, VERSIONS, base64, fixture, from_tar, json_fixture, picture, snapshot, unzip,
};

/// Every snapshot and database among the fixtures, and what newest etcdutl printed of it.
fn all() -> Vec<(String, Vec<u8>, Option<Value>)> {
    let mut all = Vec::new();
    for version in VERSIONS {
        let status = json_fixture(&format!("etcd-{version}/snapshot-status.by-3.7.json"));
        all.push((format!("etcd-{version}"), snapshot(version), Some(status)));
    }
    for name in ["before-incident", "after-incident"] {
        let status = json_fixture(&format!("k8s-1.34/{name}.status.json"));
        all.push((name.into(), unzip(&format!("k8s-1.34/{name}.db.gz")), Some(status)));
    }
    for name in ["fx-before", "fx-after", "fx-before.restored-bumped-not-started"] {
        all.push((name.into(), unzip(&format!("kubernetes/snapshots/{name}.db.gz")), None));
    }
    all
}

fn look(bytes: &[u8]) -> (Sandbox, Examined) {
    let sandbox = Sandbox::with(bytes);
    let examined = examine(&sandbox.path("s.db"), Level::Full, &Silent).unwrap();
    (sandbox, examined)
}

fn rows(examined: &Examined) -> &Report {
    examined.rows.as_ref().unwrap()
}

/// A living key as a server answers a range with it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Living {
    create_revision: i64,
    mod_revision: i64,
    version: i64,
    value: Vec<u8>,
    lease: i64,
}

/// Reduces all records of a database to the living keys, with the library's cursor.
fn living(bytes: &[u8]) -> BTreeMap<Vec<u8>, Living> {
    let file = File::from_bytes(bytes.to_vec()).unwrap();
    let mut cursor = file.bucket(&[b"key"]).unwrap().unwrap().cursor();
    let mut living = BTreeMap::new();
    while let Some(row) = cursor.next_row().unwrap() {
        let record = KeyValue::decode(row.value).unwrap();
        if RevisionKey::decode(row.key).unwrap().is_tombstone {
            living.remove(record.key);
        } else if !record.key.is_empty() {
            let KeyValue { create_revision, mod_revision, version, lease, .. } = record;
            let value = record.value.to_vec();
            let found = Living { create_revision, mod_revision, version, value, lease };
            living.insert(record.key.to_vec(), found);
        }
    }
    living
}

#[test]
fn status_equals_etcdutls() {
    for (name, bytes, want) in all() {
        let (_sandbox, examined) = look(&bytes);
        let report = status::report(&examined).unwrap();
        let keys = ["hash", "revision", "totalKey", "totalSize", "version"];
        let first: Vec<&String> = report.as_object().unwrap().keys().take(5).collect();
        assert_eq!(first, keys, "{name}");
        if let Some(want) = want {
            let ours: BTreeMap<&str, &Value> = keys.iter().map(|k| (*k, &report[*k])).collect();
            assert_eq!(json!(ours), want, "{name}");
        }
    }
    // The older tools print the same figures but for total keys, which 3.4 and 3.5 count as rows.
    for version in VERSIONS {
        let (_sandbox, examined) = look(&snapshot(version));
        let own = json_fixture(&format!("etcd-{version}/snapshot-status.json"));
        assert_eq!(own["hash"], rows(&examined).status_hash, "{version}");
        let keys = match version {
            "3.4" | "3.5" => rows(&examined).pair_count,
            _ => rows(&examined).total_keys,
        };
        assert_eq!(own["totalKey"], keys, "{version}");
        let by_3_6 = json_fixture(&format!("etcd-{version}/snapshot-status.by-3.6.json"));
        assert_eq!(by_3_6["totalKey"], rows(&examined).total_keys, "{version}");
    }
}

#[test]
fn every_snapshot_is_good_and_those_without_trailer_are_unsealed() {
    for (name, bytes, _) in all() {
        let (_sandbox, examined) = look(&bytes);
        let bare = name.ends_with("not-started");
        let want = if bare { Verdict::Unsealed } else { Verdict::Good };
        assert_eq!(judge(&examined, false).verdict, want, "{name}");
        assert_eq!(judge(&examined, true).verdict, Verdict::Good, "{name}");
        assert_eq!(examined.seal == Seal::Missing, bare, "{name}");
        assert_eq!(examined.sha256, support::sha256(&bytes), "{name}");
        let kubernetes = !name.starts_with("etcd-");
        assert_eq!(rows(&examined).is_kubernetes, kubernetes, "{name}");
    }
}

#[test]
fn hashes_and_revisions_equal_hashkv() {
    for version in VERSIONS {
        let (_sandbox, examined) = look(&snapshot(version));
        let offline = json_fixture(&format!("etcd-{version}/hashkv.by-3.7.json"));
        assert_eq!(offline["hashRevision"], rows(&examined).current_revision, "{version}");
        assert_eq!(offline["compactRevision"], rows(&examined).compact_revision(), "{version}");
        let live = json_fixture(&format!("etcd-{version}/hashkv.json"));
        let live = &live[0]["HashKV"];
        assert_eq!(live["compact_revision"], rows(&examined).compact_revision(), "{version}");
        assert_eq!(live["header"]["revision"], rows(&examined).current_revision, "{version}");
    }
    for name in ["before-incident", "after-incident"] {
        let (_sandbox, examined) = look(&unzip(&format!("k8s-1.34/{name}.db.gz")));
        let offline = json_fixture(&format!("k8s-1.34/{name}.hashkv.json"));
        // Before the first compaction a server hashes every row; later it leaves some out.
        assert_eq!(offline["hash"], rows(&examined).key_bucket_crc, "{name}");
        assert_eq!(offline["compactRevision"], rows(&examined).compact_revision(), "{name}");
    }
}

#[test]
fn living_keys_equal_the_servers_answer() {
    for version in VERSIONS {
        let answer = json_fixture(&format!("etcd-{version}/keys.json"));
        let mut want = BTreeMap::new();
        for kv in answer["kvs"].as_array().unwrap() {
            let number = |name: &str| kv[name].as_i64().unwrap_or(0);
            let found = Living {
                create_revision: number("create_revision"),
                mod_revision: number("mod_revision"),
                version: number("version"),
                value: base64(kv["value"].as_str().unwrap_or_default()),
                lease: number("lease"),
            };
            want.insert(base64(kv["key"].as_str().unwrap()), found);
        }
        assert!(want.values().any(|kv| kv.lease != 0), "{version}: the fixture lost its lease");
        assert!(want.values().any(|kv| kv.value.len() == 20_000), "{version}: no large value");
        let bytes = snapshot(version);
        assert_eq!(living(&bytes), want, "{version}");
        let (_sandbox, examined) = look(&bytes);
        assert_eq!(rows(&examined).live_keys, want.len() as u64, "{version}");
        assert_eq!(answer["count"], want.len(), "{version}");
    }
}

#[test]
fn kubernetes_keys_equal_the_lists() {
    for name in ["before-incident", "after-incident"] {
        let list = String::from_utf8(fixture(&format!("k8s-1.34/{name}.keys.txt"))).unwrap();
        let mut want: Vec<&str> = list.lines().filter(|line| !line.is_empty()).collect();
        want.sort_unstable();
        let living = living(&unzip(&format!("k8s-1.34/{name}.db.gz")));
        let keys: Vec<String> =
            living.into_keys().map(|key| String::from_utf8(key).unwrap()).collect();
        assert_eq!(keys, want, "{name}");
    }
    for name in ["fx-before", "fx-after"] {
        let expected = json_fixture(&format!("kubernetes/snapshots/{name}.expected.json"));
        let bytes = unzip(&format!("kubernetes/snapshots/{name}.db.gz"));
        let living = living(&bytes);
        let ours: Vec<Value> = living
            .iter()
            .map(|(key, kv)| {
                json!({
                    "key": String::from_utf8_lossy(key),
                    "value_bytes": kv.value.len(),
                    "version": kv.version,
                    "create_revision": kv.create_revision,
                    "mod_revision": kv.mod_revision,
                    "lease": format!("{:x}", kv.lease),
                })
            })
            .collect();
        let mut want = expected["keys"].clone();
        for key in want.as_array_mut().unwrap() {
            key.as_object_mut().unwrap().remove("encoding");
        }
        assert_eq!(json!(ours), want, "{name}");
        let (_sandbox, examined) = look(&bytes);
        assert_eq!(expected["revision"], rows(&examined).current_revision, "{name}");
        assert_eq!(expected["live_keys"], rows(&examined).live_keys, "{name}");
    }
    let (before, after) = ("fx-before", "fx-after");
    let has_shop = |name: &str| {
        let keys = living(&unzip(&format!("kubernetes/snapshots/{name}.db.gz")));
        keys.contains_key(b"/registry/namespaces/shop".as_slice())
    };
    assert!(has_shop(before) && !has_shop(after));
}

#[test]
fn an_open_bump_is_read_as_a_server_reads_it() {
    let (_sandbox, examined) =
        look(&unzip("kubernetes/snapshots/fx-before.restored-bumped-not-started.db.gz"));
    let (_original, before) = look(&unzip("kubernetes/snapshots/fx-before.db.gz"));
    let bumped = rows(&before).revision + 1_000_000_000;
    assert_eq!(rows(&examined).current_revision, bumped);
    assert_eq!(rows(&examined).compact_revision(), bumped);
    assert_eq!(rows(&examined).scheduled_compact_revision, Some(bumped));
    assert_eq!(rows(&examined).live_keys, rows(&before).live_keys);
    assert_eq!(rows(&examined).total_keys, rows(&before).total_keys + 1, "etcdutl's count");
    assert_eq!(rows(&examined).marker_count, 1);
}

#[test]
fn leases_users_roles_and_members_equal_the_servers_answers() {
    for version in VERSIONS {
        let (_sandbox, examined) = look(&snapshot(version));
        let report = rows(&examined);

        let answer = json_fixture(&format!("etcd-{version}/leases.json"));
        let want: Vec<i64> = answer["leases"]
            .as_array()
            .unwrap()
            .iter()
            .map(|l| l["id"].as_i64().unwrap())
            .collect();
        let ours: Vec<i64> = report.leases.iter().map(|lease| lease.lease.id).collect();
        assert_eq!(ours, want, "{version}");
        let [lease] = report.leases.as_slice() else { panic!("{version}: one lease is granted") };
        assert_eq!((lease.lease.ttl_s, lease.live_keys, lease.is_there), (86_400, 2, true));

        let answer = json_fixture(&format!("etcd-{version}/users.json"));
        assert_eq!(json!(report.auth.users), answer["users"], "{version}");
        assert_eq!(report.auth.roles, ["reader"], "{version}");
        assert!(!report.auth.enabled, "{version}");
        let role = Rows::read(&snapshot(version)).get("authRoles", b"reader").unwrap().clone();
        let role = Role::decode(b"reader", &role).unwrap();
        let answer = json_fixture(&format!("etcd-{version}/role-reader.json"));
        let want: Vec<_> = answer["perm"].as_array().unwrap().iter().collect();
        assert_eq!(role.permissions.len(), want.len(), "{version}");
        for (ours, want) in role.permissions.iter().zip(want) {
            assert_eq!(ours.kind, want["permType"].as_u64().unwrap_or(0), "{version}");
            assert_eq!(ours.key, base64(want["key"].as_str().unwrap()), "{version}");
            assert_eq!(ours.range_end, base64(want["range_end"].as_str().unwrap()), "{version}");
        }

        let answer = json_fixture(&format!("etcd-{version}/members.json"));
        let want: Vec<Value> = answer["members"]
            .as_array()
            .unwrap()
            .iter()
            .map(|member| {
                json!({
                    "id": format!("{:x}", member["ID"].as_u64().unwrap()),
                    "name": member["name"],
                    "peerURLs": member["peerURLs"],
                    "clientURLs": member["clientURLs"],
                    "isLearner": false,
                })
            })
            .collect();
        assert_eq!(status::members(report), json!(want), "{version}");
        let cluster = answer["header"]["cluster_id"].as_u64().unwrap();
        let ids: Vec<MemberId> = report.members.iter().map(|member| member.id).collect();
        assert_eq!(ClusterId::of_members(&ids), ClusterId(cluster), "{version}");
        let own = MemberId::of_new_cluster(&report.members[0].peer_urls, "fixture");
        assert_eq!(own, report.members[0].id, "{version}");

        let answer = json_fixture(&format!("etcd-{version}/endpoint-status.json"));
        let storage = answer[0]["Status"]["storageVersion"].as_str().map(str::to_owned);
        assert_eq!(report.storage_version.map(|v| v.to_string()), storage, "{version}");
    }
}

#[test]
fn buckets_and_pages_equal_bbolts() {
    for version in VERSIONS {
        let names = String::from_utf8(fixture(&format!("etcd-{version}/buckets.txt"))).unwrap();
        let ours = Rows::read(&snapshot(version));
        let ours: Vec<String> =
            ours.buckets.keys().map(|b| String::from_utf8_lossy(&b.concat()).into()).collect();
        assert_eq!(ours, names.lines().collect::<Vec<_>>(), "{version}");

        let stats = String::from_utf8(fixture(&format!("etcd-{version}/bbolt-stats.txt"))).unwrap();
        let number = |label: &str| -> u64 {
            let line = stats.lines().find(|line| line.trim().starts_with(label)).expect(label);
            line.rsplit(' ').next().unwrap().parse().expect(label)
        };
        let (_sandbox, examined) = look(&snapshot(version));
        let walk = examined.walk.as_ref().unwrap();
        assert_eq!(walk.branch_pages, number("Number of logical branch pages:"), "{version}");
        // bbolt counts the pages of buckets; the page of the root bucket is ours besides.
        assert_eq!(walk.leaf_pages - 1, number("Number of logical leaf pages:"), "{version}");
        let overflow = number("Number of physical leaf overflow pages:");
        assert_eq!(walk.overflow_pages, overflow, "{version}");
        assert_eq!(walk.entries, number("Number of keys/value pairs:"), "{version}");
        assert_eq!(walk.depth as u64 - 1, number("Number of levels in B+tree:"), "{version}");
        assert_eq!(walk.buckets, 10, "{version}");
    }
}

/// The same restore by this program gives what each version's own restore gave.
#[test]
fn a_restore_equals_the_versions_own() {
    for version in VERSIONS {
        let archive = format!("etcd-{version}/restored-m1-of-3.tar.gz");
        let theirs = from_tar(&archive, "member/snap/db");
        let list =
            String::from_utf8(fixture(&format!("etcd-{version}/restored-members.txt"))).unwrap();
        let mut want: Vec<&str> = list.lines().filter(|line| !line.is_empty()).collect();
        want.sort_unstable();
        let (_theirs, examined) = look(&theirs);
        let mut ids: Vec<String> =
            rows(&examined).members.iter().map(|m| m.id.to_string()).collect();
        ids.sort();
        assert_eq!(ids, want, "{version}");

        let sandbox = Sandbox::with(&snapshot(version));
        let port = |last: u8| format!("http://127.0.0.1:273{}{last}", &version[2..]);
        let (one, two, three) = (port(1), port(3), port(5));
        let ran = sandbox.run(&format!(
            "snapshot restore s.db --data-dir out --name m1 --no-bump -w json \
             --initial-cluster m1={one},m2={two},m3={three} \
             --initial-advertise-peer-urls {one} --initial-cluster-token restored"
        ));
        let report = ran.expect(0, &[]).json();
        for url in [&one, &two, &three] {
            let id = MemberId::of_new_cluster(std::slice::from_ref(url), "restored").to_string();
            let members = report["members"].as_array().unwrap();
            let member = members.iter().find(|m| m["peerURLs"] == json!([url])).unwrap();
            assert_eq!(member["id"], json!(id), "{version}");
            // etcd 3.4 kept its members in its v2 store, and its restore left the rows alone.
            assert!(version == "3.4" || want.contains(&id.as_str()), "{version}: {id}");
        }
        if version == "3.4" {
            continue;
        }
        assert_eq!(sandbox.restored("out"), Rows::read(&theirs), "{version}");
        assert_eq!(report["status_hash"], rows(&examined).status_hash, "{version}");
        if version != "3.7" {
            let segment = "member/wal/0000000000000000-0000000000000000.wal";
            let ours = fs::read(sandbox.path("out").join(segment)).unwrap();
            let theirs = from_tar(&archive, segment);
            assert_eq!(ours, theirs[..ours.len()], "{version}");
            assert!(theirs[ours.len()..].iter().all(|byte| *byte == 0), "{version}");
        }
    }
}

/// Directories of servers that were killed: the db alone is whole, and is named for what it is.
#[test]
fn databases_of_killed_servers_are_read() {
    for version in VERSIONS {
        let archive = format!("etcd-{version}/killed-datadir.tar.gz");
        let bytes = from_tar(&archive, "member/snap/db");
        let (_sandbox, examined) = look(&bytes);
        assert_eq!(judge(&examined, false).verdict, Verdict::Unsealed, "{version}");
        assert_eq!(judge(&examined, true).verdict, Verdict::Good, "{version}");
        // The last commit was before the kill: the db stands where the snapshot does.
        assert_eq!(rows(&examined).current_revision, 91, "{version}");
        let (_snapshot, saved) = look(&snapshot(version));
        assert_eq!(rows(&examined).key_bucket_crc, rows(&saved).key_bucket_crc, "{version}");
        assert_eq!(living(&bytes), living(&snapshot(version)), "{version}");
    }
}

#[test]
fn leases_decode_with_their_keys() {
    let rows = Rows::read(&unzip("kubernetes/snapshots/fx-before.db.gz"));
    let leases = &rows.buckets[&vec![b"lease".to_vec()]];
    assert!(!leases.is_empty());
    for (key, value) in leases {
        let lease = Lease::decode(key, value).unwrap();
        assert_eq!((lease.unknown_field, lease.ttl_s > 0), (None, true));
    }
}

#[test]
fn hashkv_equals_the_servers() {
    let mut compared = 0;
    for (name, bytes, _) in all() {
        let folder = if name.starts_with("etcd-") { name.clone() } else { "k8s-1.34".into() };
        let files = match name.as_str() {
            "before-incident" | "after-incident" => vec![format!("{folder}/{name}.hashkv.json")],
            _ if name.starts_with("etcd-") => {
                vec![format!("{folder}/hashkv.json"), format!("{folder}/hashkv.by-3.7.json")]
            }
            _ => continue,
        };
        let sandbox = Sandbox::with(&bytes);
        let ours = hashkv(&sandbox.path("s.db"), None, 0, &Silent).unwrap();
        for file in files {
            let said = json_fixture(&file);
            // etcdctl prints a list of answers, etcdutl one figure.
            let said = if said.is_array() { &said[0]["HashKV"] } else { &said };
            let either = |one: &str, other: &str| said.get(one).or(said.get(other)).cloned();
            assert_eq!(Some(json!(ours.hash)), either("hash", "hash"), "{file}");
            let compact = either("compact_revision", "compactRevision").unwrap_or(json!(0));
            assert_eq!(json!(ours.compact_revision), compact, "{file}");
            let at = either("hash_revision", "hashRevision");
            let at = at.unwrap_or_else(|| said["header"]["revision"].clone());
            assert_eq!(json!(ours.hash_revision), at, "{file}");
            compared += 1;
        }
    }
    assert_eq!(compared, 10);
}

#[test]
fn hashkv_of_a_killed_member_equals_what_it_said_last() {
    for version in VERSIONS {
        let sandbox = Sandbox::new();
        let data_dir = unpack(&sandbox, &format!("etcd-{version}/killed-datadir.tar.gz"), "killed");
        let before = picture(&data_dir);
        let ours = hashkv(&data_dir, None, 0, &Silent).unwrap();
        assert_eq!(picture(&data_dir), before, "{version}");
        let said = &json_fixture(&format!("etcd-{version}/hashkv-at-kill.json"))[0]["HashKV"];
        let want = (&said["hash"], &said["compact_revision"], &said["header"]["revision"]);
        let got = (json!(ours.hash), json!(ours.compact_revision), json!(ours.hash_revision));
        assert_eq!((&got.0, &got.1, &got.2), want, "{version}");
        // The database alone is another matter.
        let alone = hashkv(&data_dir.join("member/snap/db"), None, 0, &Silent).unwrap();
        assert_eq!(alone.hash_revision, 91, "{version}");
    }
}

/// Saves a fixture's data directory; returns the report and the snapshot.
fn save_dead(sandbox: &Sandbox, archive: &str, name: &str) -> (Saved, Vec<u8>) {
    save_dead_with(sandbox, archive, name, false)
}

fn save_dead_with(
    sandbox: &Sandbox,
    archive: &str,
    name: &str,
    include_uncommitted: bool,
) -> (Saved, Vec<u8>) {
    let data_dir = unpack(sandbox, archive, name);
    let before = picture(&data_dir);
    let options = Options {
        output: sandbox.path(&format!("{name}.db")),
        data_dir: data_dir.clone(),
        wal_dir: None,
        include_uncommitted,
        dry_run: false,
        audit_log: sandbox.path("audit.jsonl"),
    };
    let report = save::save(&options, &Silent).expect(archive);
    assert_eq!(picture(&data_dir), before, "{archive}");
    let bytes = fs::read(&options.output).unwrap();
    let examined = examine(&options.output, Level::Full, &Silent).unwrap();
    let verified = judge(&examined, false);
    assert_eq!(verified.verdict, Verdict::Good, "{:?}", examined.all_findings().kept());
    let note = fs::read(sandbox.path(&format!("{name}.db.json"))).unwrap();
    let note = etcdkit::format::sidecar::Sidecar::decode(&note).unwrap();
    assert_eq!(note.sha256, examined.sha256);
    assert_eq!(i64::try_from(note.revision).unwrap(), report.revision);
    (report, bytes)
}

fn living_of(answer: &Value) -> BTreeMap<Vec<u8>, Living> {
    let text = |value: &Value| base64(value.as_str().unwrap_or_default());
    let number = |value: &Value| value.as_i64().unwrap_or_default();
    let living = answer["kvs"].as_array().unwrap().iter().map(|kv| {
        let living = Living {
            create_revision: number(&kv["create_revision"]),
            mod_revision: number(&kv["mod_revision"]),
            version: number(&kv["version"]),
            value: text(&kv["value"]),
            lease: number(&kv["lease"]),
        };
        (text(&kv["key"]), living)
    });
    living.collect()
}

#[test]
fn a_killed_members_snapshot_holds_what_was_acknowledged() {
    for version in VERSIONS {
        let sandbox = Sandbox::new();
        let archive = format!("etcd-{version}/killed-datadir.tar.gz");
        let (report, bytes) = save_dead(&sandbox, &archive, "killed");
        let answer = json_fixture(&format!("etcd-{version}/keys-at-kill.json"));
        assert_eq!(report.revision, answer["header"]["revision"], "{version}");
        assert_eq!(living(&bytes), living_of(&answer), "{version}");
        let answer = json_fixture(&format!("etcd-{version}/leases-at-kill.json"));
        let leases = answer["leases"].as_array().unwrap();
        let mut want: Vec<i64> = leases.iter().map(|lease| lease["id"].as_i64().unwrap()).collect();
        want.sort_unstable();
        let rows = Rows::read(&bytes);
        let leases = &rows.buckets[&vec![b"lease".to_vec()]];
        let of = |(key, value): (&Vec<u8>, &Vec<u8>)| Lease::decode(key, value).unwrap().id;
        assert_eq!(leases.iter().map(of).collect::<Vec<_>>(), want, "{version}");
        assert_eq!(report.log.counted, "sole_voter");
        assert_eq!((report.log.index, report.log.left_out), (report.log.last_index, 0));
        assert!(report.log.entries > 0 && report.log.refused.is_empty());
        assert_eq!(rows.get("meta", b"term").is_some(), version != "3.4");
        assert_eq!(report.warnings, [""; 0], "{version}");
    }
}

#[test]
fn members_that_died_together_agree_as_far_as_each_goes() {
    let sandbox = Sandbox::new();
    let answer = json_fixture("etcd-3.6-three-members/keys.json");
    let mut all: Vec<(i64, support::Bucket)> = Vec::new();
    for name in ["m1", "m2", "m3"] {
        let archive = format!("etcd-3.6-three-members/{name}.tar.gz");
        let (report, bytes) = save_dead(&sandbox, &archive, name);
        assert_eq!((report.member_name.as_str(), report.log.counted), (name, "committed"));
        assert!(report.revision > report.log.from_revision, "{name}");
        // The last put is in every log, and no member was told any more that it is committed.
        let left_out = i64::try_from(report.log.left_out).unwrap();
        assert_eq!(report.revision + left_out, answer["header"]["revision"], "{name}");
        assert_eq!(report.warnings.len(), 1, "{:?}", report.warnings);
        let rows = Rows::read(&bytes);
        all.push((report.revision, rows.buckets[&vec![b"key".to_vec()]].clone()));
    }
    all.sort_by_key(|(revision, _)| *revision);
    let (_, longest) = all.last().unwrap();
    for (revision, rows) in &all {
        let shared: support::Bucket =
            longest.iter().take(rows.len()).map(|(k, v)| (k.clone(), v.clone())).collect();
        assert_eq!(*rows, shared, "at revision {revision}");
    }
    // Each log holds all that was acknowledged, the last put too that no member was told of.
    for name in ["m1", "m2", "m3"] {
        let archive = format!("etcd-3.6-three-members/{name}.tar.gz");
        let (report, bytes) = save_dead_with(&sandbox, &archive, &format!("{name}-all"), true);
        assert_eq!(report.revision, answer["header"]["revision"], "{name}");
        assert_eq!(living(&bytes), living_of(&answer), "{name}");
        assert_eq!(report.log.left_out, 0, "{name}");
        assert!(report.log.uncommitted > 0 && report.warnings.len() == 1, "{name}");
    }
}
