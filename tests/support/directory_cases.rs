//! `snapshot verify DIR`: data directories that killed servers left, whole and damaged.

use std::fs;

use crate::support::{Sandbox, VERSIONS, skipped};

const SEGMENT: &str = "m/member/wal/0000000000000000-0000000000000000.wal";

/// A sandbox with the directory of the killed member of a version as `m`.
fn killed(version: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.unpack(&format!("etcd-{version}/killed-datadir.tar.gz"), "m");
    sandbox
}

/// Changes one byte of the log.
fn flip(sandbox: &Sandbox, at: usize) {
    let mut bytes = fs::read(sandbox.path(SEGMENT)).unwrap();
    bytes[at] ^= 1;
    sandbox.write(SEGMENT, &bytes);
}

#[test]
fn killed_members_are_good_and_name_what_starts_on_them() {
    // What starts on each, 3.4 first, as real servers did.
    let starts = [
        ("3.4", ["yes", "yes", "yes", "no"]),
        ("3.5", ["no", "yes", "yes", "no"]),
        ("3.6", ["no", "no", "yes", "yes"]),
        ("3.7", ["no", "no", "no", "yes"]),
    ];
    for (version, want) in starts {
        let sandbox = killed(version);
        let before = sandbox.picture();
        let ran = sandbox.run("snapshot verify m -w json").expect(0, &[]).json();
        let directory = &ran["directories"][0];
        assert_eq!(ran["files"].as_array().map(Vec::len), Some(0));
        assert_eq!(directory["verdict"], "good", "{version}: {directory}");
        let parts = ["database", "log", "agreement"].map(|part| directory[part].as_str());
        assert_eq!(parts, [Some("ok"); 3], "{version}");
        assert_eq!(directory["wal"]["counts_by"], "sole-voter");
        assert_eq!(directory["wal"]["counts_up_to"], directory["wal"]["last_entry"]);
        let codes: Vec<_> = directory["findings"].as_array().unwrap().iter().collect();
        assert!(codes.iter().any(|found| found["code"] == "DIR005"), "{version}: {codes:?}");
        let told = directory["starts_on"].as_array().unwrap().iter();
        assert!(told.map(|start| start["starts"].as_str().unwrap()).eq(want), "{directory}");
        assert_eq!(sandbox.picture(), before, "nothing is written");
    }
    assert_eq!(VERSIONS.len(), starts.len());
    let sandbox = killed("3.6");
    sandbox.run("snapshot verify m").expect(0, &["m: good", "etcd 3.6 starts", "DIR005"]);
    sandbox.run("snapshot verify m/member -w table").expect(0, &["STARTS ON", "3.6 3.7"]);
    sandbox.run("snapshot verify m -w fields").expect(0, &["\"wal.segments\" : 1"]);
    let words = ["m: unchecked", "database unchecked", "next: etcdkit snapshot verify m\n"];
    sandbox.run("snapshot verify m --level quick").expect(0, &words);
}

#[test]
fn the_figures_are_told_apart_and_the_next_step_is_named() {
    let save = "next: etcdkit snapshot save FILE --from-data-dir m\n";
    for version in VERSIONS {
        let sandbox = killed(version);
        let report = sandbox.run("snapshot verify m -w json").expect(0, &[]).json();
        let report = &report["directories"][0];
        let beyond = report["wal"]["beyond_database"].as_u64().unwrap();
        let last = report["wal"]["last_entry"].as_u64().unwrap();
        assert_eq!(beyond, last - report["consistent_index"].as_u64().unwrap());
        assert!(beyond > 0, "{version}");
        let figures = format!(
            "database at revision {}, {} keys, {beyond} log entries beyond it",
            report["revision"], report["keys"]
        );
        let ran = sandbox.run("snapshot verify m").expect(0, &[&figures, save]);
        let upgrade = ran.stdout.contains("--snapshot-count 1 and write once, or save and restore");
        assert_eq!(upgrade, ["3.4", "3.5"].contains(&version), "{ran}");
        assert_eq!(ran.stdout.contains("etcd 3.7 does not start on this log"), upgrade, "{ran}");
        // The folder `member` is the same directory, and the next step names the whole of it.
        sandbox.run("snapshot verify m/member").expect(0, &[save]);
        let words = ["LOG BEYOND IT", &format!(" {beyond} "), &format!("m: {save}")];
        sandbox.run("snapshot verify m -w table").expect(0, &words);
    }
}

#[test]
fn a_database_that_is_missing_is_made_anew_from_a_whole_log() {
    let sandbox = killed("3.6");
    fs::remove_file(sandbox.path("m/member/snap/db")).unwrap();
    let words = ["next: cp -a m m.copy", "next: etcd --data-dir m.copy\n", "etcd 3.6 makes the"];
    sandbox.run("snapshot verify m").expect(6, &words);
    let data_dir = sandbox.path("m").display().to_string();
    let copy = format!("hint: cp -a {data_dir} {data_dir}.copy");
    let start = format!("hint: etcd --data-dir {data_dir}.copy\n");
    sandbox.run("snapshot save out.db --from-data-dir m").expect(9, &[&copy, &start]);
    assert!(!sandbox.exists("out.db"));
    // One whose log lies elsewhere is copied with it.
    fs::rename(sandbox.path("m/member/wal"), sandbox.path("wal")).unwrap();
    let words = ["cp -a wal wal.copy", "etcd --data-dir m.copy --wal-dir wal.copy"];
    sandbox.run("snapshot verify m --wal-dir wal").expect(6, &words);
    // A log that begins later makes nothing.
    let sandbox = Sandbox::new();
    sandbox.unpack("etcd-3.6-three-members/m1.tar.gz", "m");
    fs::remove_file(sandbox.path("m/member/snap/db")).unwrap();
    let ran = sandbox.run("snapshot save out.db --from-data-dir m").expect(9, &["add the member"]);
    assert!(!ran.stderr.contains("cp -a"), "{ran}");
}

#[test]
fn the_way_out_of_a_log_that_cannot_be_used_works_as_it_stands() {
    type Break = fn(&Sandbox);
    let breaks: [(Break, i32); 3] = [
        (|sandbox| flip(sandbox, 9000), 6),
        (|sandbox| fs::remove_dir_all(sandbox.path("m/member/wal")).unwrap(), 9),
        (|sandbox| fs::remove_file(sandbox.path(SEGMENT)).unwrap(), 6),
    ];
    for (break_log, code) in breaks {
        let sandbox = killed("3.6");
        break_log(&sandbox);
        let words = ["loses what the database had not taken in", "--skip-hash-check"];
        let save = sandbox.run("snapshot save out.db --from-data-dir m").expect(code, &words);
        let line = |text: &str| {
            let lines =
                text.lines().filter_map(|line| line.split_once("etcdkit snapshot restore "));
            lines.map(|(_, rest)| rest.to_owned()).next().unwrap()
        };
        let way_out = line(&save.stderr);
        let verify = sandbox.run("snapshot verify m").expect(6, &words);
        let root = format!("{}/", sandbox.path("m").parent().unwrap().display());
        assert_eq!(way_out.replace(&root, ""), line(&verify.stdout));
        let restore = format!("$ETCDKIT snapshot restore {way_out} --audit-log a");
        sandbox.sh(&restore).expect(0, &[]);
        assert!(sandbox.exists("m.restored/member/snap/db"));
    }
}

#[test]
fn other_places_of_a_data_directory_lead_to_it() {
    let sandbox = killed("3.6");
    let commands = [
        "snapshot save out.db --dry-run --from-data-dir",
        "hashkv",
        "snapshot inspect",
        "snapshot verify",
    ];
    for command in commands {
        let of = |place: &str| sandbox.run(&format!("{command} {place}"));
        let whole = of("m").expect(0, &[]).stdout;
        let member = of("m/member").expect(0, &[]).stdout;
        if command == "hashkv" {
            assert_eq!(member, whole);
        }
        for place in ["m/member/snap", "m/member/wal"] {
            of(place).expect(2, &["lies inside a data directory", "the data directory is m\n"]);
        }
    }
    let save = "snapshot save out.db --from-data-dir";
    for place in ["m/member/snap/db", SEGMENT] {
        sandbox.run(&format!("{save} {place}")).expect(2, &["the data directory is m\n"]);
    }
    sandbox.write("file", b"x");
    sandbox.run(&format!("{save} file")).expect(2, &["a data directory is wanted", "--data-dir"]);
    let here = format!("cd {} && $ETCDKIT hashkv .", sandbox.path("m/member").display());
    sandbox.sh(&here).expect(0, &[]);
}

#[test]
fn a_damaged_log_is_damage_and_a_torn_one_is_not() {
    let sandbox = killed("3.6");
    flip(&sandbox, 9000);
    let words =
        ["m: damaged", "log damaged", "WAL003", "offset 0x", "is the last good one", "next:"];
    sandbox.run("snapshot verify m").expect(6, &words);

    let sandbox = killed("3.6");
    let mut bytes = fs::read(sandbox.path(SEGMENT)).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap();
    bytes.truncate(end - 9);
    sandbox.write(SEGMENT, &bytes);
    sandbox.run("snapshot verify m").expect(0, &["m: good", "log torn", "WAL005", "cuts off"]);

    // A length that was changed: a server would cut the log there.
    let sandbox = killed("3.6");
    flip(&sandbox, 6);
    sandbox.run("snapshot verify m").expect(6, &["WAL007"]);
}

#[test]
fn what_is_missing_or_left_over_is_named() {
    let sandbox = killed("3.6");
    fs::rename(sandbox.path("m/member/wal"), sandbox.path("elsewhere")).unwrap();
    let words = ["DIR002", "log missing", "starts, but does not work"];
    sandbox.run("snapshot verify m").expect(6, &words);
    sandbox.run("snapshot verify m --wal-dir elsewhere").expect(0, &["m: good"]);
    sandbox.run("snapshot verify m m --wal-dir elsewhere").expect(2, &["--wal-dir"]);
    sandbox.run("snapshot verify m --wal-dir nowhere").expect(9, &["nowhere"]);

    let sandbox = killed("3.6");
    fs::remove_file(sandbox.path("m/member/snap/db")).unwrap();
    let words = ["DIR001", "database missing", "makes the database anew"];
    sandbox.run("snapshot verify m").expect(6, &words);

    let sandbox = killed("3.6");
    sandbox.write("m/member/snap/db.tmp.123", b"x");
    sandbox.write("m/notes.txt", b"x");
    sandbox.run("snapshot verify m").expect(0, &["DIR010", "not a backup", "DIR011", "notes.txt"]);
    sandbox.mkdir("m/proxy");
    sandbox.run("snapshot verify m").expect(6, &["DIR012", "etcd 3.7 does not start"]);

    let sandbox = Sandbox::new();
    sandbox.mkdir("nothing");
    sandbox.run("snapshot verify nothing").expect(9, &["no database and no log", "--wal-dir"]);
}

#[test]
fn a_snapshot_ahead_of_the_database_is_explained() {
    let sandbox = Sandbox::new();
    sandbox.unpack("etcd-3.6-three-members/m1.tar.gz", "m");
    sandbox.run("snapshot verify m").expect(0, &["m: good"]);
    // The database of an earlier day: what a killed defrag or a hand-made copy leaves.
    sandbox.unpack("etcd-3.6/killed-datadir.tar.gz", "old");
    let rows = crate::support::Rows::read(&fs::read(sandbox.path("old/member/snap/db")).unwrap());
    let old = rows.put("meta", b"consistent_index", &7_u64.to_be_bytes());
    sandbox.write("m/member/snap/db", &old.database(4096));
    sandbox.run("snapshot verify m").expect(6, &["DIR003", "snap.db", "agreement damaged"]);
}

#[test]
fn an_old_database_before_its_log_bounds_what_was_served() {
    let sandbox = Sandbox::with(&crate::support::snapshot("3.6"));
    sandbox.unpack("etcd-3.6-three-members/m1.tar.gz", "m");
    let evidence = || {
        let line = "snapshot restore s.db --data-dir n --old-data-dir m --dry-run -w json";
        let report = sandbox.run(line).expect(0, &[]).json();
        let known = report["revision"]["evidence"].as_array().unwrap().iter();
        let mut known = known.filter(|known| known["source"].to_string().contains("old-data-dir"));
        let known = known.next().unwrap();
        (known["revision"].as_u64().unwrap(), known["note"].to_string(), report.to_string())
    };
    let (whole, ..) = evidence();
    let database = sandbox.path("m/member/snap/db");
    let newest = fs::read(&database).unwrap();
    // The database of an earlier day: nothing of the gap is left out.
    let rows = crate::support::Rows::read(&newest);
    let old = rows.put("meta", b"consistent_index", &7_u64.to_be_bytes());
    fs::write(&database, old.database(4096)).unwrap();
    let wal = sandbox.run("snapshot verify m -w json").json()["directories"][0]["wal"].clone();
    let (gap, note, report) = evidence();
    let last = wal["last_entry"].as_u64().unwrap();
    let revision =
        sandbox.run("snapshot status m/member/snap/db -w json").json()["revision"].clone();
    assert_eq!(gap, revision.as_u64().unwrap() + last - 7, "{note}");
    assert!(note.contains("older than its log") && report.contains("older than its log: "));
    // With the one that the leader sent it is as it was.
    sandbox.write(&format!("m/member/snap/{:016x}.snap.db", 153), &newest);
    assert_eq!(evidence().0, whole);
}

#[test]
fn a_directory_in_use_names_its_holder_at_once() {
    let sandbox = killed("3.6");
    let own = format!("process {}", std::process::id());
    let knows_locks = fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.contains("WRITE"));
    let words = if knows_locks { vec!["m is in use by", own.as_str()] } else { vec!["in use by"] };
    let database = fs::File::open(sandbox.path("m/member/snap/db")).unwrap();
    database.lock().unwrap();
    sandbox.run("snapshot verify m").expect(8, &words);
    drop(database);

    let log = fs::OpenOptions::new().write(true).open(sandbox.path(SEGMENT)).unwrap();
    let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
    if let Err(error) = rustix::fs::fcntl_lock(&log, lock) {
        return skipped(&format!("a lock on a segment: {error}"));
    }
    sandbox.run("snapshot verify m").expect(8, &words);
    fs::rename(sandbox.path("m/member/wal"), sandbox.path("elsewhere")).unwrap();
    sandbox.run("snapshot verify m --wal-dir elsewhere").expect(8, &words);
    drop(log);
    sandbox.run("snapshot verify m --wal-dir elsewhere").expect(0, &[]);
}

#[test]
fn restored_directories_are_good_and_start_as_restore_says() {
    for version in VERSIONS {
        let sandbox = Sandbox::with(&crate::support::snapshot(version));
        let restored = sandbox.run("snapshot restore s.db --data-dir m -w json").expect(0, &[]);
        let boots = restored.json()["boots_on"].as_array().unwrap().clone();
        let verified = sandbox.run("snapshot verify m -w json").expect(0, &[]).json();
        let directory = &verified["directories"][0];
        assert_eq!(directory["verdict"], "good", "{version}: {directory}");
        assert_eq!(directory["findings"].as_array().map(Vec::len), Some(0), "{directory}");
        let starts = directory["starts_on"].as_array().unwrap();
        assert_eq!(boots.len(), 3);
        for boot in boots {
            let start = starts.iter().find(|start| start["etcd"] == boot["etcd"]).unwrap();
            let same = (start["starts"] == "yes") == boot["boots"].as_bool().unwrap();
            assert!(same, "{version}: {boot} but {start}");
        }

        // What the version's own tool made of it, as one of three members.
        let sandbox = Sandbox::new();
        sandbox.unpack(&format!("etcd-{version}/restored-m1-of-3.tar.gz"), "m");
        let verified = sandbox.run("snapshot verify m -w json").expect(0, &[]).json();
        let wal = &verified["directories"][0]["wal"];
        assert_eq!(wal["counts_by"], "committed", "{version}: {wal}");
        assert_eq!(wal["voters"].as_array().map(Vec::len), Some(3), "{version}: {wal}");
    }
}
