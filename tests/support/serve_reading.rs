//! A backup is looked into: `serve --read-only`.

use std::fs;
use std::io::Read;
use std::time::{Duration, SystemTime};

use etcd_client::{AlarmAction, AlarmType, Error, GetOptions, WatchOptions};

use crate::serve_child::{Served, free, program, run, until};

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

fn snapshot() -> Vec<u8> {
    let packed = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/k8s-1.34/before-incident.db.gz");
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(fs::File::open(packed).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_snapshot_is_shown_and_not_changed() {
    let bytes = snapshot();
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
        let members = client.member_list().await.unwrap();
        let member = members.members()[0].id();
        // Who goes where the list leads stays here.
        assert_eq!(members.members()[0].client_urls(), [format!("http://{}", served.address)]);
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

#[test]
fn what_is_not_as_it_should_be_is_warned_of_and_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed.db");
    let mut bytes = snapshot();
    // A byte of the sum itself.
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    let (address, log) = (free(), folder.path().join("log"));
    let mut child = program("")
        .args(["serve", "--read-only", path.to_str().unwrap()])
        .args(["--listen-client-urls", &format!("http://{address}")])
        .args(["--log-outputs", log.to_str().unwrap()])
        .spawn()
        .unwrap();
    let text = || fs::read_to_string(&log).unwrap_or_default();
    until("the start", || text().contains("ready to serve client requests"));
    child.kill().unwrap();
    child.wait().unwrap();
    let line = |what: &str| {
        let text = text();
        let line = text.lines().find(|line| line.contains(what));
        line.unwrap_or_else(|| panic!("no {what} in {text}")).to_owned()
    };
    assert!(line("what is served is not as it should be").contains("\"level\":\"warn\""));
    assert!(line("that of other bytes").contains("changed.db"));
    assert!(line("now serving peer").contains("\"listen-peer-urls\":[]"));
    for wrong in ["default.etcd", "default name", "\"msg\":\"data directory\""] {
        assert!(!text().contains(wrong), "{wrong}: {}", text());
    }
}

#[test]
fn who_serves_no_clients_is_recognised() {
    let served = Served::start(&[]);
    let asked = |endpoint: String| {
        let output = program("").args(["status", "--endpoints", &endpoint]).output().unwrap();
        let text = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap()).concat();
        (output.status.code(), text)
    };
    let (code, text) = asked(format!("http://{}", served.peer));
    assert!(code == Some(4) && text.contains("peer port"), "{text}");
    assert!(text.contains(&format!("http://{}", served.address)), "{text}");
}

#[test]
fn who_cannot_be_served_is_told_why_and_what_to_do() {
    let served = Served::start(&[]);
    let refused = |dir: &std::path::Path| {
        let urls = [free(), free()].map(|address| format!("http://{address}"));
        let output = program("")
            .args(["serve", "--data-dir", dir.to_str().unwrap(), "--listen-client-urls", &urls[0]])
            .args(["--advertise-client-urls", &urls[0], "--listen-peer-urls", &urls[1]])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    let text = refused(&served.dir);
    assert!(text.contains("is in use by process ") && text.contains("(etcdkit)"), "{text}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    fs::write(&path, b"x").unwrap();
    let text = refused(&path);
    assert!(
        text.contains("is a file: look into a snapshot with etcdkit serve --read-only"),
        "{text}"
    );
    // Others may look into what a server opens.
    let open = folder.path().join("open");
    fs::create_dir_all(open.join("member/wal/x.wal")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&open, mode).unwrap();
    let text = refused(&open);
    assert!(text.contains("check file permission") && text.contains("drwxr-xr-x"), "{text}");
}
