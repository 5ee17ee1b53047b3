//! A backup is looked into: `serve --read-only`.

use std::fs;
use std::io::Read;
use std::time::{Duration, SystemTime};

use etcd_client::{AlarmAction, AlarmType, Error, GetOptions, WatchOptions};

use crate::serve_child::{Served, run};

const NAMESPACE: &str = "/registry/namespaces/shop";

/// A server refuses, in etcd's words, what would change something.
fn refused<T>(what: &str, answer: Result<T, Error>) {
    match answer {
        Err(Error::GRpcStatus(status)) => {
            let told = (status.code() as i32, status.message());
            assert_eq!(told, (9, "etcdserver: not capable"), "{what}");
        }
        Err(error) => panic!("{what}: {error}"),
        Ok(_) => panic!("{what} was done"),
    }
}

#[test]
fn a_snapshot_is_shown_and_not_changed() {
    let packed = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/k8s-1.34/before-incident.db.gz");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(fs::File::open(packed).unwrap()).read_to_end(&mut bytes).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("before.db");
    fs::write(&path, &bytes).unwrap();
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let file = fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(long_ago).unwrap();
    drop(file);

    let served = Served::start(&["--read-only", path.to_str().unwrap()]);
    run(async {
        let mut client = served.client().await;
        let before = client.status().await.unwrap().header().unwrap().revision();
        let all = GetOptions::new().with_prefix().with_count_only();
        assert!(client.get("/registry/", Some(all)).await.unwrap().count() > 200);
        let found = client.get(NAMESPACE, None).await.unwrap();
        let created = found.kvs()[0].create_revision();
        assert!(!found.kvs()[0].value().is_empty());

        refused("put", client.put("a", "b", None).await);

        refused("delete", client.delete(NAMESPACE, None).await);
        refused("compact", client.compact(created, None).await);
        refused("lease grant", client.lease_grant(10, None).await);
        refused("lease revoke", client.lease_revoke(1).await);
        refused("defragment", client.defragment().await);
        refused("alarm", client.alarm(AlarmAction::Activate, AlarmType::Corrupt, None).await);
        refused("user add", client.user_add("a", "b", None).await);
        refused("role add", client.role_add("a").await);
        refused("auth enable", client.auth_enable().await);
        let member = client.member_list().await.unwrap().members()[0].id();
        refused("member update", client.member_update(member, vec!["http://a:1".to_owned()]).await);

        // What was written, in its order, as watchers see it.
        let options = WatchOptions::new().with_start_revision(created);
        let mut stream = client.watch(NAMESPACE, Some(options)).await.unwrap();
        let event = loop {
            let told = stream.message().await.unwrap().unwrap();
            if let Some(event) = told.events().first() {
                break event.kv().unwrap().mod_revision();
            }
        };
        assert_eq!(event, created);

        let mut saved = client.snapshot().await.unwrap();
        let mut length = 0;
        while let Some(part) = saved.message().await.unwrap() {
            length += part.blob().len();
        }
        assert!(length >= bytes.len() / 2, "{length} bytes");
        let after = client.status().await.unwrap().header().unwrap().revision();
        assert_eq!(after, before);
    });
    drop(served);
    assert!(fs::read(&path).unwrap() == bytes, "the file was changed");
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), long_ago);
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(names.len(), 1, "something lies beside it: {names:?}");
}
