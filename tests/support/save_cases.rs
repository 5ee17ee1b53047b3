//! What `snapshot save --from-data-dir` makes of dead members, and what it refuses.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicU64, Ordering};

use etcdkit::bolt::File;
use etcdkit::etcd::request::{Body, LeaseRevoke, Put};

use etcdkit::ops::save::{Options, save};
use etcdkit::ops::{ExitCode, Progress};

use crate::support::dead::{Dead, data, grant, put, unpack};
use crate::support::{Sandbox, picture, snapshot};

const SAVE: &str = "snapshot save out.db --from-data-dir dead";

fn sandbox() -> Sandbox {
    let sandbox = Sandbox::new();
    sandbox.write("plain.db", &snapshot("3.6"));
    sandbox
}

#[test]
fn what_only_the_log_holds_is_saved() {
    let sandbox = sandbox();
    let attached = Put { key: b"gone", lease: 77, ..Put::default() };
    let entries = [
        put("fresh", "1"),
        grant(77, 60),
        grant(77, 60),
        data(Body::Put(attached)),
        data(Body::LeaseRevoke(LeaseRevoke { id: 77 })),
    ];
    let dead = Dead::restored(&sandbox, "dead").append(&entries);
    let before = picture(&dead.dir);
    let planned = sandbox.run(&format!("{SAVE} --dry-run -w json")).expect(0, &[]).json();
    assert!(!sandbox.exists("out.db") && !sandbox.exists("out.db.json"));
    sandbox.run(SAVE).expect(0, &["saved ", "sole voter", "1 etcdserver: lease already exists"]);
    assert_eq!(picture(&dead.dir), before);
    for name in ["out.db", "out.db.json"] {
        let mode = fs::metadata(sandbox.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let status = sandbox.run("snapshot status out.db -w json").expect(0, &[]).json();
    assert_eq!(status["trailer"], "ok");
    let old = sandbox.run("snapshot status plain.db -w json").expect(0, &[]).json();
    let revision = old["revision"].as_i64().unwrap() + 3;
    assert_eq!(status["revision"], revision);
    assert_eq!(
        (&planned["revision"], &planned["log"]["entries"]),
        (&status["revision"], &5.into())
    );
    assert_eq!(planned["keys"], status["totalKey"]);
    assert_eq!(status["totalKey"].as_i64(), old["totalKey"].as_i64().map(|keys| keys + 1));
    let record = fs::read_to_string(sandbox.path("audit.jsonl")).unwrap();
    assert!(record.lines().last().unwrap().contains("\"operation\":\"snapshot save\""));
    // It restores, and what was saved is there.
    sandbox.run("snapshot restore out.db --data-dir again --no-bump").expect(0, &[]);
    let bytes = fs::read(sandbox.path("again/member/snap/db")).unwrap();
    assert!(File::from_bytes(bytes).is_ok());
    // Nothing is overwritten, the note neither.
    sandbox.run(SAVE).expect(7, &["out.db exists"]);
    fs::remove_file(sandbox.path("out.db")).unwrap();
    sandbox.run(SAVE).expect(7, &["out.db.json exists"]);
}

#[test]
fn what_cannot_be_relied_on_is_refused() {
    let sandbox = sandbox();
    let none = |words: &[&str], code: i32| {
        let entries: Vec<_> = words.iter().filter(|word| word.starts_with("entry ")).collect();
        if !entries.is_empty() {
            let finding = if code == 6 { "WAL024" } else { "WAL023" };
            let start = if code == 6 { "stops at entry" } else { "is not known: entry" };
            let line = "snapshot verify dead -w json";
            sandbox.run(line).expect(code, &[finding, entries[0], start]);
        }
        sandbox.run(SAVE).expect(code, words);
        assert!(!sandbox.exists("out.db") && !sandbox.exists("out.db.json"));
        assert!(sandbox.names(".").iter().all(|name| !name.contains("etcdkit-")));
        fs::remove_dir_all(sandbox.path("dead")).unwrap();
    };
    Dead::restored(&sandbox, "dead").append(&[put("a", "1"), vec![0x08, 1, 0x7a, 0]]);
    none(&["entry 3 of the log", "field 15 of InternalRaftRequest", "cp -a"], 7);
    Dead::restored(&sandbox, "dead").append(&[vec![0x22]]);
    none(&["entry 2 of the log", "cannot be read"], 6);
    Dead::restored(&sandbox, "dead").append(&[put("a", "1")]).append_after(1, &[put("b", "1")]);
    none(&["dead"], 6);
    Dead::restored(&sandbox, "dead");
    fs::remove_dir_all(sandbox.path("dead/member/wal")).unwrap();
    none(&["--wal-dir"], 9);
    Dead::restored(&sandbox, "dead");
    let db = sandbox.path("dead/member/snap/db");
    let mut bytes = fs::read(&db).unwrap();
    bytes[4096 * 3..4096 * 4].fill(0xff);
    fs::write(&db, bytes).unwrap();
    none(&["dead"], 6);
    sandbox.run("snapshot save out.db --from-data-dir nothing").expect(9, &["--data-dir"]);
    // Without that flag it is a running member's that is saved.
    sandbox.run("snapshot save out.db --endpoints http://127.0.0.1:1").expect(4, &["refused"]);
    sandbox.run("snapshot save out.db --from-data-dir dead --no-spool").expect(2, &["--no-spool"]);
    sandbox.run("snapshot save - --from-data-dir dead").expect(2, &["into a file"]);
    sandbox.run("snapshot save out.db --wal-dir x").expect(2, &["--from-data-dir"]);
}

#[test]
fn a_log_of_another_member_is_refused() {
    let sandbox = sandbox();
    Dead::restored(&sandbox, "dead").append(&[put("a", "1")]);
    let other = "snapshot restore plain.db --data-dir other --no-bump --name x \
                 --initial-cluster x=http://127.0.0.9:2380 \
                 --initial-advertise-peer-urls http://127.0.0.9:2380";
    sandbox.run(other).expect(0, &[]);
    Dead::at(&sandbox.path("other")).append(&[put("b", "1")]);
    let line = format!("{SAVE} --wal-dir other/member/wal");
    sandbox.run(&line).expect(7, &["is that of member"]);
    let verify = "snapshot verify dead --wal-dir other/member/wal";
    sandbox.run(verify).expect(6, &["DIR014", "is that of member"]);
    // One that was moved away is found.
    fs::rename(sandbox.path("dead/member/wal"), sandbox.path("wal")).unwrap();
    let report = sandbox.run(&format!("{SAVE} --wal-dir wal -w json")).expect(0, &[]).json();
    assert_eq!(report["log"]["entries"], 1);
}

#[test]
fn a_directory_in_use_is_refused_at_once() {
    let sandbox = sandbox();
    Dead::restored(&sandbox, "dead");
    let db = fs::File::options().write(true).open(sandbox.path("dead/member/snap/db")).unwrap();
    db.lock().unwrap();
    let pid = format!("process {}", std::process::id());
    sandbox.run(SAVE).expect(8, &["in use by", &pid]);
    drop(db);
    sandbox.run(SAVE).expect(0, &[]);
}

#[test]
fn nothing_is_written_into_the_directory() {
    let sandbox = sandbox();
    Dead::restored(&sandbox, "dead");
    sandbox.run("snapshot save dead/out.db --from-data-dir dead").expect(2, &["lies inside"]);
    let line = format!("{SAVE} --audit-log dead/audit.jsonl");
    sandbox.run(&line).expect(2, &[]);
    // Nor through a link, of the directory, of a part of it, or of the place of the output.
    let link = |to: &str, from: &str| std::os::unix::fs::symlink(to, sandbox.path(from)).unwrap();
    fs::rename(sandbox.path("dead/member/wal"), sandbox.path("log")).unwrap();
    link("../../log", "dead/member/wal");
    link("dead", "alias");
    link("dead/member", "out");
    let before = sandbox.picture();
    for (output, dir) in
        [("dead/o.db", "alias"), ("out/o.db", "dead"), ("log/o.db", "dead"), ("out/o.db", "alias")]
    {
        let line = format!("snapshot save {output} --from-data-dir {dir}");
        sandbox.run(&line).expect(2, &["lies inside"]);
    }
    assert_eq!(sandbox.picture(), before);
}

#[test]
fn entries_that_are_not_known_to_be_committed_are_left_out() {
    let sandbox = sandbox();
    let dead = unpack(&sandbox, "etcd-3.6-three-members/m1.tar.gz", "dead");
    let report = sandbox.run(&format!("{SAVE} -w json")).expect(0, &[]).json();
    assert_eq!(report["log"]["counted"], "committed");
    let index = report["log"]["index"].as_u64().unwrap();
    let segments = fs::read_dir(dead.join("member/wal")).unwrap();
    assert!(segments.count() > 0 && index > 0);
}

/// Three voters, of whom one died with four entries that it was not told to be committed.
fn one_of_three(sandbox: &Sandbox) -> Dead {
    let urls = "a=http://127.0.0.1:2380,b=http://127.0.0.2:2380,c=http://127.0.0.3:2380";
    let line = format!(
        "snapshot restore plain.db --data-dir dead --no-bump --name a --initial-cluster {urls} \
         --initial-advertise-peer-urls http://127.0.0.1:2380 --initial-cluster-token t"
    );
    sandbox.run(&line).expect(0, &[]);
    let entries: Vec<Vec<u8>> = (0..4).map(|n| put(&format!("k{n}"), "v")).collect();
    Dead::at(&sandbox.path("dead")).append(&entries)
}

#[test]
fn entries_that_are_left_out_count_as_served() {
    let sandbox = sandbox();
    one_of_three(&sandbox);
    let words = ["clients may have been told", "--include-uncommitted", "a majority"];
    let ran = sandbox.run(SAVE).expect(0, &words);
    let all_members = "etcdkit snapshot restore ";
    let next = ran.stdout.lines().find(|line| line.contains(all_members)).unwrap();
    assert!(next.contains("--all-members DIR"), "{ran}");
    let note = ran.stdout.lines().find(|line| line.starts_with("  note ")).unwrap();
    assert!(note.contains("out.db.json") && note.contains("up to 95"), "{ran}");
    let note: serde_json::Value =
        serde_json::from_slice(&fs::read(sandbox.path("out.db.json")).unwrap()).unwrap();
    assert_eq!((&note["revision"], &note["highest_revision_seen"]), (&91.into(), &95.into()));
    // A restore goes beyond what may have been served.
    let line = "snapshot restore out.db --all-members again -w json";
    let report = sandbox.run(line).expect(0, &[]).json();
    let evidence = &report["revision"]["evidence"][0]["revision"];
    assert_eq!(evidence, 95, "{report}");
    sandbox.run("snapshot save --help").expect(0, &["FILE.json"]);
    // With all of them in it, nothing more may have been served.
    let line = "snapshot save all.db --from-data-dir dead --include-uncommitted -w json";
    let report = sandbox.run(line).expect(0, &[]).json();
    assert_eq!(report["revision"], report["highest_revision_seen"]);
}

/// Stops at its so-manieth question.
struct StopAt(AtomicU64);

impl Progress for StopAt {
    fn step(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn stopped(&self) -> bool {
        let left = self.0.load(Ordering::Relaxed);
        self.0.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }
}

#[test]
fn a_save_that_is_stopped_leaves_nothing() {
    let sandbox = sandbox();
    let entries: Vec<Vec<u8>> = (0..40).map(|n| put(&format!("k{n}"), "v")).collect();
    let dead = Dead::restored(&sandbox, "dead").append(&entries);
    let options = Options {
        output: sandbox.path("out.db"),
        data_dir: dead.dir.clone(),
        wal_dir: None,
        include_uncommitted: false,
        dry_run: false,
        audit_log: sandbox.path("audit.jsonl"),
    };
    let before = sandbox.picture();
    let mut stops = 0;
    loop {
        let stopping = StopAt(AtomicU64::new(stops));
        match save(&options, &stopping) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.code, ExitCode::Interrupted, "{error} at {stops}"),
        }
        assert_eq!(sandbox.picture(), before, "stopped at {stops}");
        stops += 1;
    }
    assert!(stops > 60, "only {stops} questions");
    assert!(sandbox.exists("out.db") && sandbox.exists("out.db.json"));
}

/// Damages the database's pages once the rows are to be copied, as a disk that fails does; no date
/// of the file tells.
struct FailAtBuild(std::path::PathBuf);

impl Progress for FailAtBuild {
    fn step(&self, name: &str, _: u64) {
        if name == "build" {
            let file = fs::File::options().read(true).write(true).open(&self.0).unwrap();
            let (modified, bytes) =
                (file.metadata().unwrap().modified().unwrap(), fs::read(&self.0).unwrap());
            let page = bytes.chunks(4096).rposition(|page| !page.ends_with(b"\0"));
            let zeros = [0; 4096];
            let at = page.unwrap() as u64 * 4096;
            std::os::unix::fs::FileExt::write_all_at(&file, &zeros, at).unwrap();
            file.set_modified(modified).unwrap();
        }
    }
    fn advance(&self, _: u64) {}
    fn note(&self, _: &str) {}
    fn stopped(&self) -> bool {
        false
    }
}

#[test]
fn rows_that_cannot_be_read_again_are_damage() {
    for dry_run in [false, true] {
        let sandbox = sandbox();
        let dead = Dead::restored(&sandbox, "dead").append(&[put("a", "1")]);
        let options = Options {
            output: sandbox.path("out.db"),
            data_dir: dead.dir.clone(),
            wal_dir: None,
            include_uncommitted: false,
            dry_run,
            audit_log: sandbox.path("audit.jsonl"),
        };
        let failing = FailAtBuild(dead.dir.join("member/snap/db"));
        let error = save(&options, &failing).unwrap_err();
        assert_eq!(error.code, ExitCode::Damage, "{error}");
        assert!(!sandbox.exists("out.db") && !sandbox.exists("out.db.json"));
    }
}

/// A log of many entries with one sector zeroed, `from_end` sectors before its end.
fn with_a_hole(sandbox: &Sandbox, from_end: usize) -> Dead {
    let value = "v".repeat(if from_end.is_multiple_of(2) { 100 } else { 1500 });
    let entries: Vec<Vec<u8>> = (0..60).map(|n| put(&format!("k{n}"), &value)).collect();
    let dead = Dead::restored(sandbox, "dead").append(&entries);
    let segment = "dead/member/wal/0000000000000000-0000000000000000.wal";
    let mut log = fs::read(sandbox.path(segment)).unwrap();
    let sector = (log.len() / 512 - from_end) * 512;
    log[sector..sector + 512].fill(0);
    sandbox.write(segment, &log);
    dead
}

#[test]
fn a_hole_in_a_log_is_damage_for_whoever_reads_it() {
    let commands = [SAVE, "hashkv dead", "snapshot inspect dead", "snapshot verify dead"];
    let hint = "etcdkit snapshot restore ";
    let mut inside = 0;
    for at in [4, 6, 13, 15, 17] {
        // Whole records follow, so that this was no write which was cut short; or the database had
        // what the log lost, so that it was told to somebody.
        for applied in [None, Some(60_u64)] {
            let sandbox = sandbox();
            with_a_hole(&sandbox, at);
            if let Some(applied) = applied {
                let db = sandbox.path("dead/member/snap/db");
                let rows = crate::support::Rows::read(&fs::read(&db).unwrap());
                let rows = rows.put("meta", b"consistent_index", &applied.to_be_bytes());
                fs::write(&db, rows.database(4096)).unwrap();
            }
            let verified = sandbox.run("snapshot verify dead");
            inside += u32::from(verified.stdout.contains("WAL022"));
            for command in commands {
                let ran = sandbox.run(command);
                assert!(ran.code == 6 || !verified.stdout.contains("WAL022"), "{ran}");
                if applied.is_some() || ran.code != 0 {
                    ran.expect(6, &[hint, "dead/member/snap/db"]);
                }
            }
            assert!(applied.is_none() || !sandbox.exists("out.db"));
        }
    }
    assert!(inside > 1, "{inside}");
}

#[test]
fn a_torn_tail_is_told_by_every_reader() {
    let sandbox = sandbox();
    Dead::restored(&sandbox, "dead").append(&[put("a", "1"), put("b", "2")]);
    let segment = "dead/member/wal/0000000000000000-0000000000000000.wal";
    let mut log = fs::read(sandbox.path(segment)).unwrap();
    log.truncate(log.len() - 9);
    sandbox.write(segment, &log);
    for command in [SAVE, "hashkv dead", "snapshot inspect dead"] {
        let ran = sandbox.run(command).expect(0, &["cut short"]);
        assert_eq!(ran.stderr.matches("cut short").count(), 1, "{ran}");
    }
}

#[test]
fn a_log_that_cannot_be_read_is_not_passed_over() {
    for command in ["hashkv dead", "snapshot inspect dead"] {
        let sandbox = sandbox();
        Dead::restored(&sandbox, "dead").append(&[put("a", "1")]);
        let wal = sandbox.path("dead/member/wal");
        fs::rename(&wal, sandbox.path("wal")).unwrap();
        sandbox.run(command).expect(9, &["--wal-dir", "give dead/member/snap/db"]);
        std::os::unix::fs::symlink("nowhere", &wal).unwrap();
        sandbox.run(command).expect(9, &["--wal-dir"]);
        fs::remove_file(&wal).unwrap();
        fs::write(&wal, b"").unwrap();
        assert_ne!(sandbox.run(command).code, 0);
        fs::remove_file(&wal).unwrap();
        fs::create_dir(&wal).unwrap();
        sandbox.run(command).expect(6, &["there is no log"]);
    }
}
