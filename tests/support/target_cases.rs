//! What `snapshot restore` does to the place it restores into, and what it leaves behind.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use serde_json::{Value, json};

use crate::support::{Rows, Sandbox, kubernetes, picture, sha256, skipped, snapshot};

const RESTORE: &str = "snapshot restore s.db --data-dir out";

#[test]
fn a_new_directory_is_whole_private_and_alone() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    fs::set_permissions(sandbox.path("s.db"), PermissionsExt::from_mode(0o400)).unwrap();
    let before = picture(&sandbox.path("s.db"));
    sandbox.run(RESTORE).expect(0, &["restored s.db"]);
    assert_eq!(picture(&sandbox.path("s.db")), before);
    assert_eq!(sandbox.names("."), ["audit.jsonl", "out", "s.db", "tmp"]);
    assert_eq!(sandbox.names("out"), ["member"]);
    assert_eq!(sandbox.names("out/member"), ["snap", "wal"]);
    assert_eq!(sandbox.names("out/member/snap"), ["0000000000000001-0000000000000001.snap", "db"]);
    assert_eq!(sandbox.names("out/member/wal"), ["0000000000000000-0000000000000000.wal"]);
    for (path, _) in picture(&sandbox.path("out")) {
        let meta = fs::symlink_metadata(&path).unwrap();
        let mode = if meta.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(meta.permissions().mode() & 0o777, mode, "{}", path.display());
    }
    // A parent that is not there is made; a name with blanks and a trailing slash is fine.
    sandbox.run_words(&["snapshot", "restore", "s.db", "--data-dir", "a/b c/data/"]).expect(0, &[]);
    assert_eq!(sandbox.names("a/b c/data"), ["member"]);
    // So is a way up, where what it climbs from is there.
    let report = sandbox.run("snapshot restore s.db --data-dir a/../up -w json").expect(0, &[]);
    let folder = fs::canonicalize(sandbox.path(".")).unwrap();
    assert_eq!(report.json()["data_dir"], folder.join("up").display().to_string());
    assert_eq!(sandbox.names("up"), ["member"]);
    for words in ["--data-dir none/../down", "--data-dir down --wal-dir none/../wal"] {
        sandbox.run(&format!("snapshot restore s.db {words}")).expect(7, &["without .."]);
    }
    sandbox.mkdir("down");
    let words = "--data-dir down --wal-dir down/../down/wal";
    sandbox
        .run(&format!("snapshot restore s.db {words}"))
        .expect(2, &["inside the data directory"]);
    assert_eq!(sandbox.names("down"), Vec::<String>::new());
}

#[test]
fn a_refused_restore_can_be_tried_again() {
    let mut bytes = snapshot("3.6");
    let whole = bytes.clone();
    let at = bytes.len() - 1;
    bytes[at] ^= 1;
    for place in ["out", "deep/er/out", "empty"] {
        let sandbox = Sandbox::with(&bytes);
        sandbox.mkdir("empty");
        let line = format!("snapshot restore s.db --data-dir {place}");
        let before = sandbox.picture();
        sandbox.run(&line).expect(6, &[]);
        assert_eq!(sandbox.picture(), before, "{place}");
        sandbox.write("s.db", &whole);
        sandbox.run(&line).expect(0, &[]);
        assert_eq!(sandbox.names(place), ["member"]);
    }
}

#[test]
fn what_is_there_is_listed_and_moved_aside_only_by_force() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    sandbox.write("out/member/snap/db", b"precious");
    sandbox.write("out/revision.json", b"stray");
    sandbox.write("out/.hidden", b"stray too");
    let before = sandbox.picture();
    let names = ["is not empty", ".hidden, member, revision.json", "--force"];
    sandbox.run(RESTORE).expect(7, &names);
    assert_eq!(sandbox.picture(), before);
    let old: Vec<String> = picture(&sandbox.path("out")).into_values().collect();
    let report = sandbox.run(&format!("{RESTORE} --force -w json")).expect(0, &[]).json();
    let aside = report["moved_aside"].as_str().unwrap();
    assert!(aside.contains("/out.before-"), "{aside}");
    let kept = picture(aside.as_ref());
    assert_eq!(kept.into_values().collect::<Vec<_>>(), old, "something of the old data is lost");
    assert_eq!(sandbox.names("out"), ["member"]);
    assert!(report["warnings"].to_string().contains(".hidden, member, revision.json"));
    assert!(report["equivalent"].to_string().contains("mv "), "{report}");
    // Again, at once: the second old directory does not fall on the first.
    sandbox.run(&format!("{RESTORE} --force")).expect(0, &[]);
    let aside = sandbox.names(".").into_iter().filter(|name| name.contains(".before-")).count();
    assert_eq!(aside, 2);
}

#[test]
fn an_empty_directory_keeps_its_inode_mode_and_owner() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    let out = sandbox.mkdir("out");
    fs::set_permissions(&out, PermissionsExt::from_mode(0o750)).unwrap();
    let root = rustix::process::geteuid().is_root();
    if root {
        std::os::unix::fs::chown(&out, Some(4321), Some(4322)).unwrap();
    } else {
        skipped("the owner of an existing directory: this needs root");
    }
    let before = fs::metadata(&out).unwrap();
    sandbox.run(RESTORE).expect(0, &[]);
    let after = fs::metadata(&out).unwrap();
    let facts = |meta: &fs::Metadata| (meta.ino(), meta.mode(), meta.uid(), meta.gid());
    assert_eq!(facts(&after), facts(&before));
    assert_eq!(sandbox.names("out"), ["member"]);
    for (path, _) in picture(&out) {
        let meta = fs::symlink_metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (before.uid(), before.gid()), "{}", path.display());
    }
}

#[test]
fn targets_that_cannot_be_are_refused() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    sandbox.write("file", b"precious");
    sandbox.sh("ln -s nowhere broken; mkfifo pipe; mkdir real; ln -s real link").expect(0, &[]);
    let before = sandbox.picture();
    for (place, code) in
        [("file", 7), ("broken", 7), ("pipe", 7), ("file/below", 1), ("/", 7), ("/proc/x", 1)]
    {
        let ran = sandbox.run(&format!("snapshot restore s.db --data-dir {place} --force"));
        let ran = ran.expect(code, &[place]);
        assert!(!ran.stderr.contains("bug"), "{ran}");
        assert_eq!(sandbox.picture(), before, "{place}");
    }
    assert_eq!(sandbox.run_words(&["snapshot", "restore", "s.db", "--data-dir", ""]).code, 2);
    sandbox.run("snapshot restore s.db").expect(2, &["--data-dir"]);
    sandbox.run("snapshot restore s.db --data-dir link").expect(0, &[]);
    assert_eq!(sandbox.names("real"), ["member"]);
}

#[test]
fn a_directory_in_use_is_never_touched() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    for held in ["out/member/snap/db", "out/member/wal/0000000000000000-0000000000000000.wal"] {
        let path = sandbox.write(held, b"x");
        let file = fs::File::open(&path).unwrap();
        file.lock().unwrap();
        if !fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.contains("FLOCK")) {
            return skipped("a directory in use: /proc/locks does not show flock locks");
        }
        let before = sandbox.picture();
        let own = format!("process {}", std::process::id());
        sandbox.run(RESTORE).expect(8, &[&own, "in use"]);
        sandbox.run(&format!("{RESTORE} --force")).expect(8, &[&own]);
        assert_eq!(sandbox.picture(), before);
        drop(file);
        fs::remove_dir_all(sandbox.path("out")).unwrap();
    }
}

#[test]
fn the_wal_can_stand_elsewhere() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    let report = sandbox.run(&format!("{RESTORE} --wal-dir w/wal -w json")).expect(0, &[]).json();
    assert_eq!(sandbox.names("out/member"), ["snap"]);
    assert_eq!(sandbox.names("w"), ["wal"]);
    assert_eq!(sandbox.names("w/wal"), ["0000000000000000-0000000000000000.wal"]);
    let wal = sandbox.path("w/wal").display().to_string();
    assert_eq!(report["wal_dir"], wal);
    assert!(report["next"].to_string().contains(&format!("--wal-dir {wal}")), "{report}");
    // The same files as inside of the data directory, for the same identity.
    let token = report["token"].as_str().unwrap();
    let line = format!("snapshot restore s.db --data-dir in --initial-cluster-token {token}");
    sandbox.run(&line).expect(0, &[]);
    let segment = |folder: &str| {
        fs::read(sandbox.path(folder).join("0000000000000000-0000000000000000.wal")).unwrap()
    };
    assert_eq!(segment("w/wal"), segment("in/member/wal"));
    let before = sandbox.picture();
    let line = "snapshot restore s.db --data-dir two --wal-dir w/wal";
    sandbox.run(line).expect(7, &["wal-dir", "exists"]);
    sandbox.run(&format!("{line} --force")).expect(7, &["exists"]);
    let line = "snapshot restore s.db --data-dir two --wal-dir two/wal";
    sandbox.run(line).expect(2, &["inside the data directory"]);
    assert_eq!(sandbox.picture(), before);
    let line = "snapshot restore s.db --data-dir two --wal-dir two/member/wal";
    sandbox.run(line).expect(0, &[]);
    assert_eq!(sandbox.names("two/member"), ["snap", "wal"]);
    // A WAL place that cannot be made leaves no data directory either.
    sandbox.write("file", b"");
    let before = sandbox.picture();
    let ran = sandbox.run("snapshot restore s.db --data-dir three --wal-dir file/wal");
    assert!(ran.code == 1 || ran.code == 7, "{ran}");
    assert_eq!(sandbox.picture(), before);
}

#[test]
fn a_dry_run_changes_nothing_and_tells_the_truth() {
    let sandbox = Sandbox::with(&kubernetes());
    sandbox.write("out/member/snap/db", b"precious");
    sandbox.mkdir(".new.etcdkit-AbCdEf/member");
    sandbox.write(".new.etcdkit-AbCdEf/.etcdkit-stage-AbCdEf", b"");
    // What a killed swap left of the user's own data has no such mark.
    sandbox.write(".new.etcdkit-OlDoLd/member/snap/db", b"precious");
    sandbox.mkdir("empty");
    let before = sandbox.picture();
    for more in ["--data-dir out --force", "--data-dir new", "--data-dir empty --wal-dir wal"] {
        let report = sandbox.run(&format!("snapshot restore s.db --dry-run -w json {more}"));
        let report = report.expect(0, &[]).json();
        assert_eq!(report["dry_run"], true);
        assert!(report["revision"]["new"].as_i64().unwrap() > 296);
        sandbox
            .run(&format!("snapshot restore s.db --dry-run {more}"))
            .expect(0, &["would restore"]);
    }
    sandbox.run("snapshot restore s.db --dry-run --data-dir out").expect(7, &["not empty"]);
    assert_eq!(sandbox.picture(), before);
    assert!(!sandbox.exists("audit.jsonl"));
    // The dead temporary is named before, and gone after the real run.
    let line = "snapshot restore s.db --data-dir new";
    sandbox
        .run(&format!("{line} --dry-run"))
        .expect(0, &[".new.etcdkit-AbCdEf", "would be removed"]);
    sandbox.run(line).expect(0, &[".new.etcdkit-AbCdEf", "is removed", ".new.etcdkit-OlDoLd"]);
    assert!(!sandbox.exists(".new.etcdkit-AbCdEf"));
    assert!(sandbox.exists(".new.etcdkit-OlDoLd/member/snap/db"));
}

#[test]
fn every_restore_leaves_a_private_record() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    let report = sandbox.run(&format!("{RESTORE} -w json")).expect(0, &[]).json();
    sandbox.run("snapshot restore s.db --data-dir two").expect(0, &[]);
    let log = sandbox.path("audit.jsonl");
    assert_eq!(fs::metadata(&log).unwrap().permissions().mode() & 0o777, 0o600);
    let text = fs::read_to_string(&log).unwrap();
    let records: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 2);
    let record = &records[0];
    assert_eq!(
        (&record["operation"], &record["result"]),
        (&json!("snapshot restore"), &json!("ok"))
    );
    assert_eq!(record["uid"], rustix::process::getuid().as_raw());
    assert_eq!(record["before"]["snapshot"]["sha256"], sha256(&snapshot("3.6")));
    assert_eq!(record["after"]["member_id"], report["member_id"]);
    assert_eq!(record["after"]["changes"], report["changes"]);
    assert_eq!(record["equivalent"], report["equivalent"]);
    assert!(record["equivalent"][0].as_str().unwrap().starts_with("etcdutl snapshot restore s.db"));
    assert!(record["time"].as_str().unwrap().ends_with('Z'));
    for (name, value) in Rows::read(&snapshot("3.6")).buckets[&vec![b"authUsers".to_vec()]].iter() {
        let secret = String::from_utf8_lossy(value).into_owned();
        let hash = secret.find("$2a$").map(|at| secret[at..at + 20].to_owned());
        let hash = hash.unwrap_or_else(|| panic!("no password hash in {name:?}"));
        assert!(!text.contains(&hash), "a password hash is in the record");
    }
    // A log in a folder that is not there yet; one that cannot be written is a warning only.
    let line = "snapshot restore s.db --audit-log new/folder/a.jsonl --data-dir";
    sandbox.run(&format!("{line} three")).expect(0, &[]);
    let mode = |path: &str| fs::metadata(sandbox.path(path)).unwrap().mode() & 0o777;
    assert_eq!((mode("new/folder"), mode("new/folder/a.jsonl")), (0o755, 0o600));
    sandbox.write("file", b"");
    let line = "snapshot restore s.db --audit-log file/a.jsonl -w json --data-dir";
    let ran =
        sandbox.run(&format!("{line} four")).expect(0, &["audit record could not be written"]);
    assert!(ran.json()["warnings"][0].as_str().unwrap().contains("file/a.jsonl"), "{ran}");
    assert_eq!(sandbox.names("four"), ["member"]);
}

#[test]
fn little_memory_is_enough() {
    let sandbox = Sandbox::with(&kubernetes());
    if sandbox.sh("ulimit -v 400000").code != 0 {
        return skipped("a restore with little address space: no ulimit -v");
    }
    let line = "snapshot restore s.db --data-dir out --audit-log audit.jsonl";
    sandbox.sh(&format!("ulimit -v 400000; exec $ETCDKIT {line}")).expect(0, &["restored"]);
    assert_eq!(sandbox.names("out"), ["member"]);
    sandbox.sh("ulimit -v 400000; exec $ETCDKIT snapshot verify s.db").expect(0, &["good"]);
}
