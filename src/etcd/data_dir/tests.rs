//! The boot matrix, and directories that real servers left.

use std::path::Path;

use super::*;
use crate::etcd::log::{Log, Opening};
use crate::etcd::schema::Version;
use crate::etcd::survey::Survey;

const ME: u64 = 0xa1;

/// A single member with a snapshot at 50 and nothing after it, as every version takes it.
fn recipe() -> Facts {
    Facts {
        has_database: true,
        database_is_whole: true,
        has_log: true,
        member: ME,
        has_state: true,
        commit: 50,
        reach: 50,
        newest_record: 50,
        newest_snap: Some(agree::SnapFacts {
            index: 50,
            is_readable: true,
            names_member: true,
            ..agree::SnapFacts::default()
        }),
        consistent_index: 50,
        voters: [ME].into(),
        members: [ME].into(),
        ..Facts::default()
    }
}

/// One letter a version, 3.4 first: `y`es, `b`adly, `n`o.
fn letters(facts: &Facts) -> String {
    let letter = |start: &Start| match start.starts {
        Starts::Yes => 'y',
        Starts::Badly => 'b',
        Starts::No => 'n',
    };
    starts_on(facts).iter().map(letter).collect()
}

fn version(minor: u32) -> Version {
    Version { major: 3, minor, patch: 0 }
}

#[test]
fn the_boot_matrix_is_what_real_servers_did() {
    let full_log = Facts {
        newest_record: 0,
        newest_snap: None,
        first_entry: Some(1),
        last_entry: Some(50),
        added_at: Some(1),
        ..recipe()
    };
    let snap = |change: &dyn Fn(&mut agree::SnapFacts)| {
        let mut snap = recipe().newest_snap.unwrap();
        change(&mut snap);
        Facts { newest_snap: Some(snap), ..recipe() }
    };
    let rows = [
        ("full recipe", recipe(), "yyyy"),
        ("no .snap file", Facts { newest_snap: None, ..recipe() }, "nnny"),
        (
            "no snapshot, no entries",
            Facts { newest_snap: None, newest_record: 0, ..recipe() },
            "nnnn",
        ),
        ("entries 1..50 instead", full_log.clone(), "yyyy"),
        ("no HardState", Facts { has_state: false, ..recipe() }, "bbbb"),
        ("members bucket empty", Facts { members: [].into(), ..recipe() }, "yynb"),
        ("v2 store without members", snap(&|snap| snap.names_member = false), "nnyy"),
        (
            "v2 store missing",
            snap(&|snap| (snap.is_readable, snap.names_member) = (false, false)),
            "nnny",
        ),
        ("database behind the snapshot", Facts { consistent_index: 49, ..recipe() }, "nnnn"),
        (
            "the same with a .snap.db",
            Facts { consistent_index: 49, snap_databases: vec![50], ..recipe() },
            "yyyy",
        ),
        ("database ahead of the log", Facts { consistent_index: 500, ..recipe() }, "bbbb"),
        (
            "an entry after it",
            Facts { first_entry: Some(51), last_entry: Some(51), ..recipe() },
            "yyyy",
        ),
        (
            "a gap after it",
            Facts { first_entry: Some(53), last_entry: Some(60), ..recipe() },
            "nnnn",
        ),
        ("proxy", Facts { has_proxy: true, ..recipe() }, "nnnn"),
        (
            "damaged log",
            Facts {
                log_damage: Some("crc".into()),
                log_opening: [Opening::Refused; 2],
                ..recipe()
            },
            "nnnn",
        ),
        (
            "a record that ends early",
            Facts {
                log_damage: Some("protobuf".into()),
                log_opening: [Opening::Refused, Opening::AfterRepair],
                ..recipe()
            },
            "bbbn",
        ),
        ("torn log", Facts { log_opening: [Opening::AfterRepair; 2], ..recipe() }, "yyyy"),
        ("no log", Facts { has_log: false, ..recipe() }, "bbbb"),
        (
            "no database, snapshot",
            Facts { has_database: false, consistent_index: 0, members: [].into(), ..recipe() },
            "nnnn",
        ),
        (
            "no database, whole log",
            Facts {
                has_database: false,
                consistent_index: 0,
                members: [].into(),
                ..full_log.clone()
            },
            "yyyy",
        ),
        ("removed", Facts { is_removed: true, ..recipe() }, "yynn"),
        ("storage 3.6", Facts { storage: Some(version(6)), ..recipe() }, "nyyy"),
        ("storage 3.7", Facts { storage: Some(version(7)), ..recipe() }, "nyny"),
        ("cluster 3.7", Facts { cluster: Some(version(7)), ..recipe() }, "yyny"),
        ("cluster 3.6 in the .snap", snap(&|snap| snap.version = Some(version(6))), "nnyy"),
        ("v2 data", snap(&|snap| snap.has_v2_data = true), "yyny"),
    ];
    for (what, facts, want) in rows {
        assert_eq!(letters(&facts), want, "{what}: {:?}", starts_on(&facts));
    }
    let v2 = |record, foreign| Facts {
        newest_record: record,
        requests: Requests { last_v2: Some(30), last_v2_foreign: foreign, ..Requests::default() },
        ..full_log.clone()
    };
    assert_eq!(
        (letters(&v2(0, None)).as_str(), letters(&v2(0, Some(30))).as_str()),
        ("yyyn", "yynn")
    );
    // A snapshot record past them is all that 3.7 needs.
    assert_eq!(letters(&v2(40, None)), "yyyy");
    let set = Requests { versions: vec![(60, version(7))], ..Requests::default() };
    let set = Facts { requests: set, last_entry: Some(60), first_entry: Some(51), ..recipe() };
    assert_eq!(letters(&set), "nnny");
}

/// Unpacks an archive with a `member` folder; logs lose most of their zeros.
fn unpack(archive: &Path) -> tempfile::TempDir {
    use std::io::Read as _;
    let packed = flate2::read::GzDecoder::new(fs::File::open(archive).unwrap());
    let dir = tempfile::tempdir().unwrap();
    for entry in tar::Archive::new(packed).entries().unwrap() {
        let entry = entry.unwrap();
        let path = dir.path().join(entry.path().unwrap());
        if entry.header().entry_type().is_dir() {
            fs::create_dir_all(&path).unwrap();
        } else {
            let is_log = path.extension().is_some_and(|extension| extension == "wal");
            let mut bytes = Vec::new();
            let limit = if is_log { 1 << 20 } else { u64::MAX };
            entry.take(limit).read_to_end(&mut bytes).unwrap();
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
    for folder in ["", "member", "member/snap", "member/wal"] {
        let mode = fs::Permissions::from_mode(0o700);
        fs::set_permissions(dir.path().join(folder), mode).unwrap();
    }
    dir
}

fn fixture(path: &str) -> tempfile::TempDir {
    unpack(&Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path))
}

/// What a directory comes out as.
fn look(path: &Path) -> (Facts, Vec<Code>) {
    let dir = DataDir::inspect(path, None).unwrap();
    let log = dir.has_log.then(|| Log::open(&dir.wal_dir).unwrap());
    let rows = dir.database.as_ref().map(|database| {
        let file = crate::bolt::File::open(database).unwrap();
        let mut survey = Survey::new();
        assert!(!crate::bolt::walk::walk(&file, &mut survey).findings.has_errors());
        survey.finish()
    });
    let (facts, findings) = agree(&dir, log.as_ref(), rows.as_ref(), true).unwrap();
    (facts, dir.findings.codes().chain(findings.codes()).collect())
}

#[test]
fn killed_members_have_entries_to_replay() {
    // Who starts, as real servers did: 3.5's requests of the v2 API stop 3.7.
    let versions = [("3.4", "yyyn"), ("3.5", "nyyn"), ("3.6", "nnyy"), ("3.7", "nnny")];
    for (version, want) in versions {
        let dir = fixture(&format!("etcd-{version}/killed-datadir.tar.gz"));
        let (facts, codes) = look(dir.path());
        assert!(codes.contains(&Code::DirReplay), "{version}: {codes:?}");
        assert!(facts.reach > facts.consistent_index, "{version}: {facts:?}");
        assert_eq!(facts.voters.len(), 1);
        assert_eq!(letters(&facts), want, "{version}: {:#?} {codes:?}", starts_on(&facts));
    }
}

#[test]
fn members_that_were_killed_together_agree() {
    let mut seen = Vec::new();
    for name in ["m1", "m2", "m3"] {
        let dir = fixture(&format!("etcd-3.6-three-members/{name}.tar.gz"));
        let (facts, codes) = look(dir.path());
        assert_eq!(codes, [Code::DirReplay], "{name}");
        assert_eq!((facts.newest_record, facts.voters.len()), (153, 3), "{name}: {facts:?}");
        assert_eq!(facts.newest_snap.as_ref().map(|snap| snap.index), Some(153));
        assert_eq!(letters(&facts), "nnyy", "{name}: {:#?}", starts_on(&facts));
        let log = Log::open(&dir.path().join("member/wal")).unwrap();
        // Three voters: only what is known to be committed counts.
        assert_eq!((facts.reach, log.findings.kept()), (log.commit(), &[][..]));
        let mut entries = log.entries(0).unwrap();
        let mut read = Vec::new();
        while let Some(entry) = entries.read_next().unwrap() {
            if entry.index <= facts.reach {
                read.push((entry.index, entry.term, entry.data.to_vec()));
            }
        }
        assert_eq!(read.len() as u64, facts.reach, "{name}");
        seen.push((facts.member, facts.voters, read));
    }
    let shared = seen.iter().map(|member| member.2.len()).min().unwrap();
    for member in &seen {
        assert_eq!(member.1, seen[0].1);
        assert!(member.1.contains(&member.0));
        assert!(member.2[..shared] == seen[0].2[..shared]);
    }
}
