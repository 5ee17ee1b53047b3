//! Directories of etcd 3.4 to 3.7 that were killed hold what their servers told right before, also
//! after they were written to and opened again.

use etcdkit::bolt::disk::Disk;
use etcdkit::etcd::record::KeyValue;
use etcdkit::store::{Options, Store};
use serde_json::Value;

use crate::store_driver::{all_keys, ask, leases, nobody, options};
use crate::store_requests::Ask;
use crate::support::{Sandbox, VERSIONS, base64, json_fixture};

/// A key as the server's own JSON has it.
fn key(kv: &Value) -> (Vec<u8>, [i64; 4], Vec<u8>) {
    let bytes = |name: &str| base64(kv[name].as_str().unwrap_or_default());
    let number = |name: &str| kv[name].as_i64().unwrap_or(0);
    let numbers = ["create_revision", "mod_revision", "version", "lease"].map(number);
    (bytes("key"), numbers, bytes("value"))
}

fn ours(record: &KeyValue<'_>) -> (Vec<u8>, [i64; 4], Vec<u8>) {
    let numbers = [record.create_revision, record.mod_revision, record.version, record.lease];
    (record.key.to_vec(), numbers, record.value.to_vec())
}

#[test]
fn killed_directories_of_real_etcds_hold_what_was_told() {
    for version in VERSIONS {
        let sandbox = Sandbox::new();
        let dir = sandbox.unpack(&format!("etcd-{version}/killed-datadir.tar.gz"), "d");
        let file = |name: &str| json_fixture(&format!("etcd-{version}/{name}-at-kill.json"));
        let (keys, told, hash) = (file("keys"), file("leases"), file("hashkv"));
        let revision = keys["header"]["revision"].as_i64().unwrap();
        let store = Store::open(&dir, options(Disk::default()))
            .unwrap_or_else(|error| panic!("etcd {version}: {error}"));
        let header = &keys["header"];
        assert_eq!(store.member_id().0, header["member_id"].as_u64().unwrap(), "{version}");
        assert_eq!(store.cluster_id().0, header["cluster_id"].as_u64().unwrap(), "{version}");
        assert_eq!(store.revision(), revision, "{version}");
        let mut wanted: Vec<_> = keys["kvs"].as_array().unwrap().iter().map(key).collect();
        wanted.sort();
        let found: Vec<_> = all_keys(&store).iter().map(|kv| ours(&kv.record())).collect();
        assert_eq!(found, wanted, "etcd {version}");
        let mut wanted: Vec<_> = told["leases"]
            .as_array()
            .unwrap()
            .iter()
            .map(|lease| lease["id"].as_i64().unwrap())
            .collect();
        wanted.sort_unstable();
        assert_eq!(leases(&store), wanted, "etcd {version}");
        let sum = store.hash_kv(&nobody(), revision).unwrap().body;
        let hash = &hash[0]["HashKV"];
        assert_eq!(Value::from(sum.hash), hash["hash"], "etcd {version}");
        assert_eq!(Value::from(sum.compact_revision), hash["compact_revision"], "{version}");

        let (put, _) = ask(&store, &Ask::put("/ours", b"too")).unwrap();
        assert_eq!(put, revision + 1);
        store.close().unwrap();
        drop(store);
        let store = Store::open(&dir, options(Disk::default())).unwrap();
        assert_eq!(store.revision(), revision + 1, "{version}");
        assert_eq!(all_keys(&store).len(), found.len() + 1, "{version}");
        assert_eq!(leases(&store), wanted, "etcd {version}");
    }
}

#[test]
fn members_of_several_that_were_killed_show_what_is_known_to_be_committed() {
    let told = json_fixture("etcd-3.6-three-members/keys.json");
    let mut wanted: Vec<_> = told["kvs"].as_array().unwrap().iter().map(key).collect();
    wanted.sort();
    for name in ["m1", "m2", "m3"] {
        let sandbox = Sandbox::new();
        let dir = sandbox.unpack(&format!("etcd-3.6-three-members/{name}.tar.gz"), "d");
        let store = Store::open_read_only(&dir, Options::default()).unwrap();
        let found: Vec<_> = all_keys(&store).iter().map(|kv| ours(&kv.record())).collect();
        // Of the last one a follower may not have heard that it was committed.
        let missing = wanted.len() - found.len();
        assert!(missing <= 1 && wanted.starts_with(&found), "{name}: {missing} are missing");
        let is_told = store.notes().iter().any(|note| note.contains("not known to be committed"));
        assert_eq!(is_told, missing == 1, "{name}: {:?}", store.notes());
        assert_eq!(store.members(&nobody()).unwrap().len(), 3);
        let cluster = told["header"]["cluster_id"].as_u64().unwrap();
        assert_eq!(store.cluster_id().0, cluster, "{name}");
    }
}
