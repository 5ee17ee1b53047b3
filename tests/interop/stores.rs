//! Directories that the store founded, opened or went on with, on real etcds, and back.

use std::path::Path;

use etcdkit::bolt::db;
use etcdkit::bolt::disk::Disk;
use etcdkit::etcd::request::{Body, Content, Header, Put, Request};
use etcdkit::format::wal::{Entry, HardState};
use etcdkit::store::open::{Compat, Identity, OpenError, OpenOptions, Opened, open};
use serde_json::Value;

use crate::boots::copy_folder;
use crate::programs::{Real, Start, real};
use crate::support::{Sandbox, hex};

fn options(name: &str) -> OpenOptions {
    OpenOptions {
        identity: Identity::default().name(name),
        compat: None,
        wal_dir: None,
        force_new_cluster: false,
        disk: Disk::default(),
        database: db::Options::default(),
        segment_bytes: etcdkit::format::wal::SEGMENT_BYTES,
    }
}

/// Begins a term and puts keys, as a member does; nothing of it reaches the database.
fn put(opened: &mut Opened, keys: &[&str]) {
    let term = opened.state.term + 1;
    let mut index = opened.last_index + 1;
    opened.wal.append(&[Entry { term, index, ..Entry::default() }], None).unwrap();
    for (id, key) in (1..).zip(keys) {
        index += 1;
        let body = Body::Put(Put { key: key.as_bytes(), value: b"ours", ..Put::default() });
        let header = Some(Header { id, ..Header::default() });
        let data = Request { id: 0, header, body }.encode();
        opened.wal.append(&[Entry { term, index, data: &data, ..Entry::default() }], None).unwrap();
    }
    let state = HardState { term, vote: opened.member.0, commit: index, ..HardState::default() };
    opened.wal.append(&[], Some(state)).unwrap();
    opened.wal.sync().unwrap();
}

/// Keys that entries to be replayed put.
fn to_be_put(opened: &Opened) -> Vec<String> {
    let mut keys = Vec::new();
    let read = opened.replay.each::<OpenError>(&mut |entry| {
        if let Ok(Content::Request(Request { body: Body::Put(put), .. })) =
            Content::decode(entry.data)
        {
            keys.push(String::from_utf8(put.key.to_vec()).unwrap());
        }
        Ok(())
    });
    read.unwrap();
    keys
}

fn has(truth: &Value, key: &str) -> bool {
    let keys = truth["keys"].as_array().unwrap();
    keys.iter().any(|held| held["key_hex"] == hex(key.as_bytes()))
}

/// Starts etcd on a copy, which must hold the keys; it is killed after a put of its own, and its
/// directory opened again.
fn goes_on(real: &Real, sandbox: &Sandbox, dir: &Path, version: &str, name: &str, keys: &[&str]) {
    let what = format!("{} on etcd {version}", dir.display());
    let copy = sandbox.path(&format!("{}-on-{version}", dir.file_name().unwrap().display()));
    copy_folder(dir, &copy);
    // What is put is in the log alone.
    let more: &[&str] = &["--backend-batch-interval=1h"];
    let etcd =
        real.etcd(version, &Start { data_dir: copy.clone(), name, more, ..Start::default() });
    let truth = etcd.truth();
    for key in keys {
        assert!(has(&truth, key), "{what}: {key}");
    }
    etcd.ctl(&["put", "/theirs", "x"]).expect(0, &["OK"]);
    let members = truth["members"].as_array().unwrap();
    assert_eq!(members.len(), 1, "{what}");
    // Dropped, it is killed.
    drop(etcd);
    let mut opened = open(&copy, &options(name)).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(to_be_put(&opened).iter().any(|key| key == "/theirs"), "{what}");
    put(&mut opened, &["/again"]);
    drop(opened);
    let etcd = real.etcd(version, &Start { data_dir: copy, name, ..Start::default() });
    let truth = etcd.truth();
    for key in keys.iter().chain(&["/theirs", "/again"]) {
        assert!(has(&truth, key), "{what}: {key}");
    }
    etcd.stop();
}

#[test]
fn founded_directories_are_at_home_on_real_servers() {
    let Some(real) = real() else { return };
    for (version, compat) in [("3.6", Compat::V3_6), ("3.7", Compat::V3_7)] {
        let sandbox = Sandbox::new();
        let bare = sandbox.path("bare");
        let options = OpenOptions { compat: Some(compat), ..options("m1") };
        drop(open(&bare, &options).unwrap());
        goes_on(&real, &sandbox, &bare, version, "m1", &[]);
        let used = sandbox.path("used");
        let mut opened = open(&used, &options).unwrap();
        put(&mut opened, &["/a", "/b"]);
        drop(opened);
        goes_on(&real, &sandbox, &used, version, "m1", &["/a", "/b"]);
    }
}

#[test]
fn directories_that_were_gone_on_with_start_again() {
    let Some(real) = real() else { return };
    for (made_by, version) in
        [("3.4", "3.5"), ("3.5", "3.5"), ("3.5", "3.6"), ("3.6", "3.6"), ("3.7", "3.7")]
    {
        let sandbox = Sandbox::new();
        let dir = sandbox.unpack(&format!("etcd-{made_by}/killed-datadir.tar.gz"), "m");
        let mut opened = open(&dir, &options("m1")).unwrap();
        put(&mut opened, &["/ours"]);
        drop(opened);
        goes_on(&real, &sandbox, &dir, version, "m1", &["/ours", "/a/key-001"]);
    }
}

#[test]
fn a_member_of_three_serves_alone_after_it_was_forced() {
    let Some(real) = real() else { return };
    let sandbox = Sandbox::new();
    let dir = sandbox.unpack("etcd-3.6-three-members/m2.tar.gz", "m");
    let force = OpenOptions { force_new_cluster: true, ..options("m2") };
    let mut opened = open(&dir, &force).unwrap();
    put(&mut opened, &["/ours"]);
    drop(opened);
    for version in ["3.6", "3.7"] {
        goes_on(&real, &sandbox, &dir, version, "m2", &["/ours"]);
    }
}
