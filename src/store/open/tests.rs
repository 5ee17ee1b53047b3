//! Directories that are founded, killed half-way, left by real servers, or unfit.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use base64::Engine as _;

use super::*;
use crate::bolt::db::Batch;
use crate::etcd::apply::model::RowState;
use crate::etcd::apply::{self, Rules};
use crate::etcd::data_dir::DataDir;
use crate::etcd::log::Log;
use crate::etcd::members::Member;
use crate::etcd::request::{Body, Header, Put, Request, VersionName};
use crate::etcd::schema;
use crate::format::wal::{
    ConfChange, Encoder, Entry, Metadata, Snapshot, change_kind, entry_kind, kind, segment_name,
};
use crate::store::crash::{Dice, Fault, History, Recorder, Tree, read_tree, write_tree};
use crate::store::log::tests::small_segments;

mod founding;
mod unfit;

const VERSIONS: [&str; 4] = ["3.4", "3.5", "3.6", "3.7"];

pub(super) fn options() -> OpenOptions {
    OpenOptions {
        segment_bytes: crate::store::log::segment_bytes(),
        identity: Identity {
            name: "default".into(),
            peer_urls: vec!["http://localhost:2380".into()],
            client_urls: vec!["http://localhost:2379".into()],
            token: "etcd-cluster".into(),
        },
        compat: None,
        wal_dir: None,
        force_new_cluster: false,
        disk: Disk::default(),
        database: db::Options::default(),
    }
}

/// Unpacks an archive with a `member` folder; logs lose most of their zeros.
pub(super) fn fixture(path: &str) -> tempfile::TempDir {
    use std::io::Read as _;
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path);
    let packed = flate2::read::GzDecoder::new(fs::File::open(archive).unwrap());
    small_segments();
    let dir = tempfile::tempdir().unwrap();
    for entry in tar::Archive::new(packed).entries().unwrap() {
        let entry = entry.unwrap();
        let path = dir.path().join(entry.path().unwrap());
        if entry.header().entry_type().is_dir() {
            fs::create_dir_all(&path).unwrap();
        } else {
            let is_log = path.extension().is_some_and(|extension| extension == "wal");
            let mut bytes = Vec::new();
            entry.take(if is_log { 1 << 18 } else { u64::MAX }).read_to_end(&mut bytes).unwrap();
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
    dir
}

pub(in crate::store) fn killed(version: &str) -> tempfile::TempDir {
    fixture(&format!("etcd-{version}/killed-datadir.tar.gz"))
}

/// Opens a directory and forgets it again.
pub(super) fn refusal(dir: &Path, options: &OpenOptions) -> String {
    open(dir, options).map(|opened| format!("{:?}", opened.notes)).unwrap_err().to_string()
}

/// All rows of a database.
pub(super) fn rows(db: &Db) -> RowState {
    let mut state = RowState::default();
    for bucket in schema::BUCKETS {
        let seen = db.view().each(bucket, b"", &mut |key, value| {
            state.put(bucket, key, value);
            std::ops::ControlFlow::Continue(())
        });
        seen.unwrap();
    }
    state
}

/// The database after what is to be replayed.
pub(super) fn replayed(opened: &Opened) -> RowState {
    let mut state = rows(&opened.db);
    let mut next = opened.replay.after();
    let applied = opened.replay.each::<OpenError>(&mut |entry| {
        next += 1;
        assert_eq!(entry.index, next);
        let effect = apply::apply(&state, &Rules::default(), entry).unwrap();
        state.take(&effect);
        Ok(())
    });
    applied.unwrap();
    assert_eq!(next, opened.replay.through());
    state
}

pub(super) fn members(state: &RowState) -> Vec<Member> {
    let rows = state.buckets.get(schema::MEMBERS).into_iter().flatten();
    rows.map(|(_, value)| Member::decode(value).unwrap().member).collect()
}

fn json(path: &str) -> serde_json::Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path);
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Keys and values that a server answered.
fn told(path: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let bytes = |value: &serde_json::Value| {
        let text = value.as_str().unwrap_or_default();
        base64::engine::general_purpose::STANDARD.decode(text).unwrap()
    };
    let keys = json(path);
    let keys = keys["kvs"].as_array().unwrap();
    keys.iter().map(|kv| (bytes(&kv["key"]), bytes(&kv["value"]))).collect()
}

fn live(state: &RowState) -> BTreeMap<Vec<u8>, Vec<u8>> {
    state.live().into_iter().map(|(key, (_, value))| (key, value)).collect()
}

/// A put, as an entry holds it.
pub(super) fn put(key: &[u8], id: u64) -> Vec<u8> {
    let body = Body::Put(Put { key, value: b"v", ..Put::default() });
    Request { id: 0, header: Some(Header { id, ..Header::default() }), body }.encode()
}

/// Writes an entry behind the last one, as the engine does.
pub(super) fn append(opened: &mut Opened, data: &[u8]) {
    let index = opened.wal.last_index() + 1;
    let state = HardState { commit: index, ..opened.state };
    let entry = Entry { term: state.term, index, data, ..Entry::default() };
    opened.wal.append(&[entry], Some(state)).unwrap();
    opened.wal.sync().unwrap();
}

#[test]
fn killed_members_go_on_with_every_acknowledged_key() {
    for version in VERSIONS {
        let dir = killed(version);
        let mut opened = open(dir.path(), &options()).unwrap();
        let want = told(&format!("etcd-{version}/keys-at-kill.json"));
        let state = replayed(&opened);
        assert_eq!(live(&state), want, "{version}");
        let compat = if version == "3.7" { Compat::V3_7 } else { Compat::V3_6 };
        assert_eq!((opened.compat, opened.is_new), (compat, false), "{version}");
        assert_eq!(opened.wants_snapshot, version < "3.6", "{version}");
        assert_eq!(opened.voters.voters, [opened.member.0], "{version}");
        assert_eq!(members(&state).len(), 1, "{version}");
        assert!(!opened.replay.is_empty(), "{version}");
        assert!(opened.version.is_some(), "{version}");
        let last = opened.last_index;
        append(&mut opened, &put(b"/after", 9));
        assert!(matches!(open(dir.path(), &options()), Err(OpenError::InUse(_))), "{version}");
        drop(opened);

        let log = Log::open(&dir.path().join("member/wal")).unwrap();
        assert_eq!((log.last_index(), log.commit()), (last + 1, last + 1), "{version}");
        assert!(!log.findings.has_errors(), "{version}: {:?}", log.findings);
        let opened = open(dir.path(), &options()).unwrap();
        let again = live(&replayed(&opened));
        assert_eq!(again.len(), want.len() + 1, "{version}");
        assert!(again.contains_key(&b"/after"[..]), "{version}");
    }
}

#[test]
fn a_member_of_several_is_refused_or_made_the_only_one() {
    for name in ["m1", "m2", "m3"] {
        let dir = fixture(&format!("etcd-3.6-three-members/{name}.tar.gz"));
        let before = read_tree(dir.path());
        let why = refusal(dir.path(), &options());
        assert!(why.contains("is one of 3 with a vote") && why.contains("--force-new"), "{why}");
        assert!(before == read_tree(dir.path()), "{name}");
        let log = Log::open(&dir.path().join("member/wal")).unwrap();
        let commit = log.commit();

        let force = OpenOptions { force_new_cluster: true, ..options() };
        let opened = open(dir.path(), &force).unwrap();
        assert_eq!(opened.voters.voters, [opened.member.0], "{name}");
        assert!(opened.last_index == commit + 2, "{name}: {} {commit}", opened.last_index);
        assert_eq!(opened.state.commit, opened.last_index);
        let state = replayed(&opened);
        let left = members(&state);
        assert_eq!(left.len(), 1, "{name}");
        assert_eq!((left[0].id, left[0].name.as_str()), (opened.member, name));
        assert_eq!(state.buckets[schema::MEMBERS_REMOVED].len(), 2, "{name}");
        let keys = told("etcd-3.6-three-members/keys.json");
        let ours = live(&state);
        assert!(ours.iter().all(|(key, value)| keys.get(key) == Some(value)), "{name}");
        drop(opened);
        // From now on it is a member like any other; nothing of it is done twice.
        let opened = open(dir.path(), &force).unwrap();
        assert_eq!(opened.last_index, commit + 2, "{name}");
    }
}

#[test]
fn restored_members_of_three_are_made_the_only_one_too() {
    for version in VERSIONS {
        let dir = fixture(&format!("etcd-{version}/restored-m1-of-3.tar.gz"));
        let why = refusal(dir.path(), &options());
        assert!(why.contains("is one of 3 with a vote"), "{version}: {why}");
        let force = OpenOptions { force_new_cluster: true, ..options() };
        let opened = open(dir.path(), &force).unwrap();
        assert_eq!((opened.snapshot_index, opened.last_index), (3, 5), "{version}");
        let left = members(&replayed(&opened));
        assert_eq!(left.len(), 1, "{version}: {left:?}");
        assert_eq!((left[0].id, left[0].peer_urls.len()), (opened.member, 1), "{version}");
        assert_eq!(live(&rows(&opened.db)).len(), told(&format!("etcd-{version}/keys.json")).len());
    }
}

#[test]
fn a_database_that_is_gone_is_made_anew_from_a_whole_log() {
    for version in ["3.6", "3.7"] {
        let dir = killed(version);
        let database = dir.path().join("member/snap/db");
        fs::remove_file(&database).unwrap();
        let opened = open(dir.path(), &options()).unwrap();
        assert_eq!(opened.replay.after(), 0, "{version}");
        let want = told(&format!("etcd-{version}/keys-at-kill.json"));
        assert_eq!(live(&replayed(&opened)), want, "{version}");
        drop(opened);
        // bbolt makes a new one of an empty file.
        fs::write(&database, b"").unwrap();
        let opened = open(dir.path(), &options()).unwrap();
        assert_eq!(live(&replayed(&opened)), want, "{version}");
    }
}

#[test]
fn members_of_the_v2_store_take_the_place_of_lost_rows() {
    for version in ["3.4", "3.5"] {
        let dir = killed(version);
        let want = members(&replayed(&open(dir.path(), &options()).unwrap()));
        let database = dir.path().join("member/snap/db");
        let db = Db::open(&Disk::default(), &database, &db::Options::default()).unwrap();
        let mut batch = Batch::default();
        batch.plan(schema::MEMBERS, want[0].row_key().into(), None);
        let stranger = Member { id: MemberId(77), ..Member::default() };
        batch.plan(schema::MEMBERS, stranger.row_key().into(), Some(stranger.encode().into()));
        // What 3.4 does not write.
        batch.plan(schema::META, bytes::Bytes::from_static(schema::META_TERM), None);
        db.commit(batch).unwrap();
        drop(db);
        let opened = open(dir.path(), &options()).unwrap();
        assert!(opened.notes.iter().any(|note| note.contains("up to 3.5")), "{:?}", opened.notes);
        assert_eq!(members(&rows(&opened.db)), want, "{version}");
    }
}

#[test]
fn snapshot_files_are_read_by_those_who_need_them() {
    let dir = killed("3.6");
    let mut opened = open(dir.path(), &options()).unwrap();
    let state = replayed(&opened);
    let (index, term) = (opened.last_index, opened.state.term);
    let members = members(&state);
    let removed = [MemberId(0xabc)];
    let version = Some(Version { major: 3, minor: 6, patch: 0 });
    let disk = Disk::default();
    for index in index - 6..=index {
        let at = (index, term);
        write_snap(&disk, &opened.snap_dir, at, &opened.voters, &members, &removed, version)
            .unwrap();
    }
    purge_snaps(&disk, &opened.snap_dir, SNAPS_KEPT, index).unwrap();
    opened.wal.append(&[], Some(HardState { commit: index, ..opened.state })).unwrap();
    let conf_state = Some(opened.voters.clone());
    let record = Snapshot { index, term, conf_state, ..Snapshot::default() };
    opened.wal.save_snapshot(&record).unwrap();
    let seen = DataDir::inspect(dir.path(), None).unwrap();
    assert_eq!(seen.snaps.len(), SNAPS_KEPT);
    let newest = &seen.snaps[0];
    assert_eq!((newest.index, newest.term), (index, term));
    let (voters, store) = newest.content.as_ref().unwrap();
    let store = store.as_ref().unwrap();
    assert_eq!((voters, store.version.as_deref()), (&opened.voters, Some("3.6.0")));
    assert_eq!(store.members.len(), 1);
    assert!(store.members[0].attributes.as_ref().unwrap().contains("clientURLs"));
    assert_eq!(store.removed, ["abc"]);
}

#[test]
fn torn_ends_and_leftovers_are_seen_to() {
    let dir = killed("3.7");
    let wal = dir.path().join("member/wal");
    let snap = dir.path().join("member/snap");
    let segment = wal.join(segment_name(0, 0));
    let log = Log::open(&wal).unwrap();
    let mut bytes = fs::read(&segment).unwrap();
    let at = usize::try_from(log.end.offset).unwrap();
    let mut encoder = Encoder::resume(log.end.crc);
    encoder.push(kind::ENTRY, &[9; 2000]);
    bytes.truncate(at);
    bytes.extend_from_slice(&encoder.bytes()[..1000]);
    fs::write(&segment, &bytes).unwrap();
    for left in [wal.join("0.tmp"), snap.join("db.tmp.12"), snap.join("tmp.x")] {
        fs::write(left, b"x").unwrap();
    }
    fs::write(wal.join("keep"), b"x").unwrap();
    let opened = open(dir.path(), &options()).unwrap();
    assert_eq!(live(&replayed(&opened)), told("etcd-3.7/keys-at-kill.json"));
    let names = |folder: &Path| names(folder).unwrap();
    let broken = format!("{}.broken", segment_name(0, 0));
    assert_eq!(names(&wal), [segment_name(0, 0), broken.clone(), "keep".into()]);
    assert_eq!(names(&snap), ["db"]);
    assert!(fs::read(wal.join(broken)).unwrap() == bytes);
    assert_eq!(opened.notes.iter().filter(|note| note.contains("removed")).count(), 3);
}

#[test]
fn a_hole_in_what_was_acknowledged_is_no_torn_end() {
    for version in VERSIONS {
        let dir = killed(version);
        let segment = dir.path().join("member/wal").join(segment_name(0, 0));
        let end = usize::try_from(Log::open(&dir.path().join("member/wal")).unwrap().end.offset);
        let mut bytes = fs::read(&segment).unwrap();
        let sector = end.unwrap() / 1024 * 512;
        bytes[sector..sector + 512].fill(0);
        fs::write(&segment, &bytes).unwrap();
        let why = refusal(dir.path(), &options());
        let offset = Log::open(&dir.path().join("member/wal")).unwrap().end.offset;
        for words in ["was synced", "last good one", "snapshot verify", "snapshot restore"] {
            assert!(why.contains(words), "{version}: {why}");
        }
        assert!(why.contains(&format!("{}, byte {offset}:", segment_name(0, 0))), "{why}");
        assert!(fs::read(&segment).unwrap() == bytes);
    }
}

#[test]
fn both_locks_are_taken_and_not_waited_for() {
    let dir = killed("3.6");
    let database = dir.path().join("member/snap/db");
    let file = fs::File::open(&database).unwrap();
    file.lock().unwrap();
    assert_eq!(open(dir.path(), &options()).unwrap_err(), OpenError::InUse(database.clone()));
    drop(file);
    let wal = dir.path().join("member/wal");
    let log = crate::store::log::Locked::take(&Disk::default(), &wal).unwrap();
    let segment = wal.join(segment_name(0, 0));
    assert_eq!(open(dir.path(), &options()).unwrap_err(), OpenError::InUse(segment));
    drop(log);
    open(dir.path(), &options()).unwrap();
}
