//! Directories that are refused, with the reason, and not changed.

use super::*;

/// Opens, which must be refused without a change; returns why.
fn refused(dir: &Path, options: &OpenOptions) -> String {
    let before = read_tree(dir);
    let why = refusal(dir, options);
    assert!(before == read_tree(dir), "changed, though refused: {why}");
    why
}

#[track_caller]
fn says(why: &str, words: &str) {
    assert!(why.contains(words), "{why:?} does not say {words:?}");
}

/// Changes rows of a directory's database.
fn edit(dir: &Path, bucket: &'static [u8], key: &[u8], value: Option<&[u8]>) {
    let path = dir.join("member/snap/db");
    let db = Db::open(&Disk::default(), &path, &db::Options::default()).unwrap();
    let mut batch = Batch::default();
    let value = value.map(bytes::Bytes::copy_from_slice);
    batch.plan(bucket, bytes::Bytes::copy_from_slice(key), value);
    db.commit(batch).unwrap();
}

/// Goes on with a directory's log.
fn extend(dir: &Path, records: &mut dyn FnMut(&mut Encoder, &Log)) {
    let wal = dir.join("member/wal");
    let log = Log::open(&wal).unwrap();
    let path = wal.join(&log.segments[log.end.segment].name);
    let mut encoder = Encoder::resume(log.end.crc);
    records(&mut encoder, &log);
    let mut bytes = fs::read(&path).unwrap();
    bytes.truncate(usize::try_from(log.end.offset).unwrap());
    bytes.extend_from_slice(encoder.bytes());
    fs::write(path, bytes).unwrap();
}

/// Appends a normal entry of the last term.
fn entry(dir: &Path, data: &[u8]) {
    extend(dir, &mut |encoder, log| {
        let last = log.last.unwrap();
        let (term, index) = (last.term, last.index + 1);
        encoder.push_entry(&Entry { term, index, data, ..Entry::default() });
    });
}

#[test]
fn a_database_without_its_log() {
    let dir = killed("3.6");
    fs::remove_dir_all(dir.path().join("member/wal")).unwrap();
    says(&refused(dir.path(), &options()), "there is no log in");
}

#[test]
fn a_log_without_its_database() {
    let dir = fixture("etcd-3.6/restored-m1-of-3.tar.gz");
    fs::remove_file(dir.path().join("member/snap/db")).unwrap();
    let force = OpenOptions { force_new_cluster: true, ..options() };
    says(&refused(dir.path(), &force), "does not go back to the first entry");
}

#[test]
fn parts_that_do_not_go_together() {
    let dir = killed("3.6");
    let index = 5000_u64.to_be_bytes();
    edit(dir.path(), schema::META, schema::META_CONSISTENT_INDEX, Some(&index));
    says(&refused(dir.path(), &options()), "but the log ends at");

    let dir = fixture("etcd-3.6/restored-m1-of-3.tar.gz");
    let index = 1_u64.to_be_bytes();
    edit(dir.path(), schema::META, schema::META_CONSISTENT_INDEX, Some(&index));
    says(&refused(dir.path(), &options()), "the newest snapshot in the log covers entry 3");

    // Another member's log.
    let (dir, other) = (killed("3.6"), killed("3.7"));
    let name = Path::new("member/wal").join(segment_name(0, 0));
    fs::copy(other.path().join(&name), dir.path().join(&name)).unwrap();
    says(&refused(dir.path(), &options()), "which the database");
}

#[test]
fn a_damaged_log() {
    let dir = killed("3.7");
    let path = dir.path().join("member/wal").join(segment_name(0, 0));
    let whole = fs::read(&path).unwrap();
    let mut bytes = whole.clone();
    bytes[3000] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let before = read_tree(dir.path());
    let error = open(dir.path(), &options()).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
    assert!(before == read_tree(dir.path()));

    // A gap.
    fs::write(&path, &whole).unwrap();
    extend(dir.path(), &mut |encoder, log| {
        let index = log.last_index() + 2;
        encoder.push_entry(&Entry { term: 2, index, ..Entry::default() });
    });
    says(&refused(dir.path(), &options()), "no snapshot that counts covers what is between");

    // No HardState, but more than the founding.
    let mut log = Encoder::begin(0);
    let metadata = Log::open(&dir.path().join("member/wal")).unwrap().metadata_bytes;
    log.push(kind::METADATA, &metadata);
    for index in 1..4 {
        log.push_entry(&Entry { term: 1, index, ..Entry::default() });
    }
    fs::remove_file(dir.path().join("member/snap/db")).unwrap();
    fs::write(&path, log.bytes()).unwrap();
    says(&refused(dir.path(), &options()), "has no HardState");
}

#[test]
fn a_damaged_database() {
    let dir = killed("3.6");
    let path = dir.path().join("member/snap/db");
    let mut bytes = fs::read(&path).unwrap();
    bytes[..8192].fill(7);
    fs::write(&path, bytes).unwrap();
    let before = read_tree(dir.path());
    let error = open(dir.path(), &options()).unwrap_err();
    assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
    assert!(before == read_tree(dir.path()));
}

#[test]
fn what_is_not_understood() {
    let dir = killed("3.6");
    entry(dir.path(), b"\xf2\xff\x03\x02\x08\x01");
    says(&refused(dir.path(), &options()), "is not understood");

    let dir = killed("3.6");
    extend(dir.path(), &mut |encoder, _| encoder.push(9, b"x"));
    says(&refused(dir.path(), &options()), "a record of kind 9");

    let dir = killed("3.7");
    let set = Body::ClusterVersionSet(VersionName { version: b"3.8.0" });
    let header = Some(Header { id: 1, ..Header::default() });
    entry(dir.path(), &Request { id: 0, header, body: set }.encode());
    says(&refused(dir.path(), &options()), "of version 3.8.0, and 3.7.0 is known");

    let dir = killed("3.7");
    edit(dir.path(), schema::META, schema::META_STORAGE_VERSION, Some(b"3.9.0"));
    says(&refused(dir.path(), &options()), "of version 3.9.0");
}

#[test]
fn versions_that_were_not_meant() {
    let dir = killed("3.7");
    let old = OpenOptions { compat: Some(Compat::V3_6), ..options() };
    says(&refused(dir.path(), &old), "was to be served as 3.6");
    let new = OpenOptions { compat: Some(Compat::V3_7), ..options() };
    for version in ["3.4", "3.5"] {
        let dir = killed(version);
        says(&refused(dir.path(), &new), "one minor version at a time");
        assert_eq!(open(dir.path(), &old).unwrap().compat, Compat::V3_6);
    }
    let dir = killed("3.6");
    assert_eq!(open(dir.path(), &new).unwrap().compat, Compat::V3_7);
}

#[test]
fn members_that_may_not_serve() {
    let dir = killed("3.6");
    let log = Log::open(&dir.path().join("member/wal")).unwrap();
    let id = MemberId(log.metadata.unwrap().node_id).to_string();
    edit(dir.path(), schema::MEMBERS_REMOVED, id.as_bytes(), Some(schema::REMOVED));
    says(&refused(dir.path(), &options()), "was removed from its cluster");

    // A second voter that the log adds has a say in what follows.
    let dir = killed("3.6");
    let second =
        Member { id: MemberId(0xb2), peer_urls: vec!["http://b:2380".into()], ..Member::default() };
    extend(dir.path(), &mut |encoder, log| {
        let context = second.encode();
        let change = ConfChange { node_id: 0xb2, context: &context, ..ConfChange::default() };
        let last = log.last.unwrap();
        let (index, term) = (last.index + 1, last.term);
        let data = change.encode();
        let kind = entry_kind::CONF_CHANGE;
        encoder.push_entry(&Entry { kind, term, index, data: &data, ..Entry::default() });
        let state = HardState { commit: index, ..log.hard_state.unwrap() };
        encoder.push(kind::STATE, &state.encode());
    });
    says(&refused(dir.path(), &options()), "is one of 2 with a vote");

    // A learner: the newest snapshot says so.
    let dir = fixture("etcd-3.6/restored-m1-of-3.tar.gz");
    extend(dir.path(), &mut |encoder, log| {
        let own = log.metadata.unwrap().node_id;
        let state = ConfState { voters: vec![9], learners: vec![own], ..ConfState::default() };
        let conf_state = Some(state);
        let snapshot = Snapshot { index: 3, term: 1, conf_state, ..Snapshot::default() };
        encoder.push(kind::SNAPSHOT, &snapshot.encode());
    });
    let force = OpenOptions { force_new_cluster: true, ..options() };
    says(&refused(dir.path(), &force), "is a learner");
}

#[test]
fn the_wrong_folder() {
    let dir = killed("3.6");
    says(&refused(&dir.path().join("member"), &options()), "give the directory that holds it");
    fs::create_dir(dir.path().join("proxy")).unwrap();
    says(&refused(dir.path(), &options()), "both `member` and `proxy`");
}

#[test]
fn alarms_are_no_reason() {
    let dir = killed("3.6");
    let log = Log::open(&dir.path().join("member/wal")).unwrap();
    let mut alarm = vec![0x08];
    crate::format::pb::put_varint(&mut alarm, log.metadata.unwrap().node_id);
    alarm.extend_from_slice(&[0x10, 2]);
    edit(dir.path(), schema::ALARM, &alarm, Some(b""));
    open(dir.path(), &options()).unwrap();
}

#[test]
fn a_pipe_in_place_of_the_database_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_owned();
    drop(open(&dir, &options()).unwrap());
    let database = dir.join("member/snap/db");
    fs::remove_file(&database).unwrap();
    nix::unistd::mkfifo(&database, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (done, waits) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(open_to_read(&dir, &options()).map(drop)));
    // It would wait for ever.
    let read = waits.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    says(&read.unwrap_err().to_string(), "not a regular file");
}
