//! New directories, and those that were founded half.

use super::*;
use crate::etcd::log::Opening;
use crate::store::log::tests::small_segments;

const MEMBER: u64 = 0x8e9e_05c5_2164_694d;
const CLUSTER: u64 = 0xcdf8_1819_4e3a_8c32;

/// Holds what was opened to a cluster of one, founded once.
fn is_founded(opened: &Opened, what: &str) {
    assert_eq!((opened.member.0, opened.cluster.0), (MEMBER, CLUSTER), "{what}");
    assert_eq!(opened.voters.voters, [MEMBER], "{what}");
    let state = replayed(opened);
    let members = members(&state);
    assert_eq!((members.len(), members[0].name.as_str()), (1, "default"), "{what}");
    assert_eq!(members[0].peer_urls, ["http://localhost:2380"], "{what}");
    let conf_state = &state.buckets[schema::META][schema::META_CONF_STATE];
    let want = format!("{{\"voters\":[{MEMBER}],\"auto_leave\":false}}");
    assert_eq!(conf_state, want.as_bytes(), "{what}");
}

#[test]
fn a_new_directory_is_as_etcd_makes_it() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("a/b/data");
    let mut opened = open(&dir, &options()).unwrap();
    assert_eq!((opened.is_new, opened.compat, opened.version), (true, Compat::V3_7, None));
    assert_eq!((opened.last_index, opened.snapshot_index), (1, 0));
    is_founded(&opened, "new");
    let tree = read_tree(&dir);
    let segment = format!("member/wal/{}", segment_name(0, 0));
    let want = ["member", "member/snap", "member/snap/db", "member/wal", segment.as_str()];
    assert_eq!(tree.keys().map(|path| path.to_str().unwrap()).collect::<Vec<_>>(), want);
    for (path, bytes) in &tree {
        let mode = fs::metadata(dir.join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, if bytes.is_some() { 0o600 } else { 0o700 }, "{}", path.display());
    }
    // Five pages: the quota tests of etcd's own suite count them.
    assert!(opened.db.sizes().size_bytes <= 5 * 4096, "{:?}", opened.db.sizes());
    let log = Log::open(&dir.join("member/wal")).unwrap();
    assert_eq!(log.findings.kept(), []);
    assert_eq!(log.segments[0].size_bytes, 64_000_000);
    append(&mut opened, b"");
    assert!(matches!(open(&dir, &options()), Err(OpenError::InUse(_))));
    drop(opened);
    // Who it is stands in the directory.
    let other = Identity { name: "other".into(), token: "t".into(), ..options().identity };
    let opened = open(&dir, &OpenOptions { identity: other, ..options() }).unwrap();
    assert_eq!((opened.is_new, opened.last_index), (false, 2));
    is_founded(&opened, "again");
}

/// What real servers write first, byte for byte but for the zeros that 3.7 leaves out.
#[test]
fn the_first_records_are_etcds() {
    small_segments();
    for version in ["3.5", "3.6"] {
        let theirs = killed(version);
        let wal = theirs.path().join("member/wal").join(segment_name(0, 0));
        let theirs = fs::read(wal).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let told = json(&format!("etcd-{version}/members.json"));
        let urls = told["members"][0]["peerURLs"].as_array().unwrap();
        let identity = Identity {
            name: "m1".into(),
            peer_urls: urls.iter().map(|url| url.as_str().unwrap().into()).collect(),
            token: "fixture".into(),
            ..options().identity
        };
        let opened = open(folder.path(), &OpenOptions { identity, ..options() }).unwrap();
        let ours = fs::read(opened.wal.dir().join(segment_name(0, 0))).unwrap();
        let log = Log::open(opened.wal.dir()).unwrap();
        let end = usize::try_from(log.end.offset).unwrap();
        assert!(end > 200 && ours[..end] == theirs[..end], "{version}");
    }
}

#[test]
fn a_log_may_be_elsewhere() {
    small_segments();
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let wal_dir = folder.path().join("x/log");
    // An empty folder, as a mount point or a package makes it.
    fs::create_dir_all(&wal_dir).unwrap();
    let options = OpenOptions { wal_dir: Some(wal_dir.clone()), ..options() };
    let opened = open(&dir, &options).unwrap();
    is_founded(&opened, "elsewhere");
    assert!(wal_dir.join(segment_name(0, 0)).exists() && !dir.join("member/wal").exists());
    drop(opened);
    fs::remove_dir_all(&dir).unwrap();
    // The whole log makes the rest anew.
    let opened = open(&dir, &options).unwrap();
    assert!(!opened.is_new);
    is_founded(&opened, "anew");
}

#[test]
fn no_loss_of_power_founds_twice_or_blocks() {
    small_segments();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    fs::create_dir(&root).unwrap();
    let (disk, recorder) = Recorder::new();
    let mut founding = OpenOptions { disk, ..options() };
    founding.database.growth_bytes = 0;
    let opened = open(&root.join("data"), &founding).unwrap();
    let whole = recorder.count();
    drop(opened);
    let mut states = 0;
    let (mut anew, mut found) = (0, 0);
    let history = History::new(&root, &Tree::new(), &recorder.events());
    history.each_state(&mut Dice(3), &mut |moment, tree| {
        states += 1;
        let folder = tempfile::tempdir().unwrap();
        write_tree(folder.path(), tree);
        let what = format!("moment {moment} of {whole}");
        let mut opened = open(&folder.path().join("data"), &options()).expect(&what);
        is_founded(&opened, &what);
        *(if opened.is_new { &mut anew } else { &mut found }) += 1;
        append(&mut opened, &put(b"k", 5));
        drop(opened);
        let opened = open(&folder.path().join("data"), &options()).expect(&what);
        assert!(!opened.is_new, "{what}");
        assert_eq!(live(&replayed(&opened)).len(), 1, "{what}");
    });
    assert!(states > 50 && anew > 40 && found > 1, "{states} {anew} {found}");
}

#[test]
fn no_failing_disk_founds_half() {
    small_segments();
    let folder = tempfile::tempdir().unwrap();
    let (disk, recorder) = Recorder::new();
    open(&folder.path().join("data"), &OpenOptions { disk, ..options() }).unwrap();
    for at in 0..recorder.count() {
        for (code, part) in [(28, None), (5, Some(100))] {
            let folder = tempfile::tempdir().unwrap();
            let dir = folder.path().join("data");
            let (disk, fault) = Fault::new(at, code, part);
            let done = open(&dir, &OpenOptions { disk, ..options() });
            let failed = fault.failed().unwrap();
            if let Err(error) = &done {
                assert!(matches!(error, OpenError::Disk(_)), "{failed:?}: {error:?}");
            }
            drop(done);
            let opened = open(&dir, &options()).unwrap_or_else(|e| panic!("{failed:?}: {e}"));
            is_founded(&opened, &format!("{failed:?}"));
        }
    }
}

/// A log as a server leaves it that is killed between making it and its first save.
fn half(dir: &Path, metadata: Metadata, entries: usize) {
    fs::create_dir_all(dir.join("member/wal")).unwrap();
    let mut log = Encoder::begin(0);
    log.push(kind::METADATA, &metadata.encode());
    log.push(kind::SNAPSHOT, &Snapshot::default().encode());
    let change =
        ConfChange { kind: change_kind::ADD_NODE, node_id: MEMBER, ..ConfChange::default() };
    let member = Member {
        id: MemberId(MEMBER),
        peer_urls: vec!["http://localhost:2380".into()],
        name: "default".into(),
        ..Member::default()
    };
    let context = member.encode();
    let data = ConfChange { context: &context, ..change }.encode();
    for index in 1..=entries as u64 {
        let kind = entry_kind::CONF_CHANGE;
        log.push_entry(&Entry { kind, term: 1, index, data: &data, ..Entry::default() });
    }
    fs::write(dir.join("member/wal").join(segment_name(0, 0)), log.bytes()).unwrap();
}

#[test]
fn what_a_server_founded_half_is_finished_or_refused() {
    small_segments();
    let own = Metadata { node_id: MEMBER, cluster_id: CLUSTER, ..Metadata::default() };
    for entries in 0..2 {
        let folder = tempfile::tempdir().unwrap();
        half(folder.path(), own, entries);
        let opened = open(folder.path(), &options()).unwrap();
        assert!(opened.is_new);
        is_founded(&opened, "half");
        drop(opened);
        let log = Log::open(&folder.path().join("member/wal")).unwrap();
        assert_eq!((log.last_index(), log.commit(), log.opening), (1, 1, Opening::AsIs));
        is_founded(&open(folder.path(), &options()).unwrap(), "whole");
    }
    let folder = tempfile::tempdir().unwrap();
    half(folder.path(), Metadata { node_id: 5, ..own }, 0);
    let before = read_tree(folder.path());
    let why = refusal(folder.path(), &options());
    assert!(why.contains("founded half, for member 5"), "{why}");
    assert!(before == read_tree(folder.path()));
}

#[test]
fn two_that_found_at_once_found_one_cluster() {
    small_segments();
    for _ in 0..8 {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("data");
        let results: Vec<_> = std::thread::scope(|scope| {
            let start = || {
                scope.spawn(|| {
                    small_segments();
                    open(&dir, &options())
                })
            };
            [start(), start(), start()].map(|thread| thread.join().unwrap()).into()
        });
        let winners = results.iter().flatten().count();
        assert!(winners <= 1, "{results:?}");
        drop(results);
        is_founded(&open(&dir, &options()).unwrap(), "raced");
    }
}

#[test]
fn peer_urls_that_are_none_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for urls in [vec![], vec!["localhost"], vec!["http://a:1", "http://a:1"]] {
        let peer_urls = urls.into_iter().map(str::to_owned).collect();
        let identity = Identity { peer_urls, ..options().identity };
        let why = refusal(folder.path(), &OpenOptions { identity, ..options() });
        assert!(why.contains("peer URLs"), "{why}");
    }
    assert!(read_tree(folder.path()).is_empty());
}
