//! `hashkv`, `defrag --data-dir`, `snapshot compact`, `snapshot seal`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use etcdkit::etcd::revision::RevisionKey;
use serde_json::{Value, json};

use crate::support::{
    Rows, Sandbox, VERSIONS, json_fixture, kubernetes, picture, seal, sha256, snapshot, unpack,
};

/// A sandbox with a stopped member's data directory `d`.
fn stopped(version: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    unpack(&format!("etcd-{version}/killed-datadir.tar.gz"), &sandbox.path("d"));
    sandbox
}

fn hashkv(sandbox: &Sandbox, words: &str) -> Value {
    sandbox.run(&format!("hashkv {words} -w json")).expect(0, &[]).json()
}

#[test]
fn hashkv_prints_etcdutls_shapes_and_changes_nothing() {
    let bytes = snapshot("3.6");
    let sandbox = Sandbox::with(&bytes);
    let before = sandbox.picture();
    let want = json_fixture("etcd-3.6/hashkv.by-3.7.json");
    assert_eq!(hashkv(&sandbox, "s.db"), want);
    assert_eq!(sandbox.run("hashkv s.db").expect(0, &[]).stdout, "20359195, 91, 59\n");
    let fields = "\"Hash\" : 20359195\n\"Hash revision\" : 91\n\"Compact revision\" : 59\n";
    assert_eq!(sandbox.run("hashkv s.db -w fields").expect(0, &[]).stdout, fields);
    let words = ["HASH REVISION", "COMPACT REVISION", "20359195"];
    sandbox.run("hashkv s.db -w table").expect(0, &words);
    assert_eq!(hashkv(&sandbox, "s.db --rev 91"), want);
    assert_ne!(hashkv(&sandbox, "s.db --rev 90")["hash"], want["hash"]);
    assert!(hashkv(&sandbox, "s.db --rev 59")["hash"].is_u64());
    let gone = "mvcc: required revision has been compacted";
    sandbox.run("hashkv s.db --rev 58").expect(2, &[gone]);
    let future = "mvcc: required revision is a future revision";
    sandbox.run("hashkv s.db --rev 92").expect(2, &[future]);
    sandbox.run("hashkv s.db --rev -1").expect(2, &[]);
    sandbox.run("hashkv gone.db").expect(9, &[]);
    assert_eq!(sandbox.picture(), before);
    assert!(!sandbox.exists("audit.jsonl"));
}

/// What the killed member had answered last; its database stands 29 revisions before.
#[test]
fn hashkv_of_a_directory_counts_what_its_log_adds() {
    for version in VERSIONS {
        let sandbox = stopped(version);
        let before = picture(&sandbox.path("d"));
        let ours = hashkv(&sandbox, "d");
        let theirs = json_fixture(&format!("etcd-{version}/hashkv-at-kill.json"));
        assert_eq!(ours["hash"], theirs[0]["HashKV"]["hash"], "{version}");
        assert_eq!((&ours["hashRevision"], &ours["compactRevision"]), (&json!(120), &json!(59)));
        assert_eq!(hashkv(&sandbox, "d/member/snap/db")["hashRevision"], 91, "{version}");
        assert_eq!(picture(&sandbox.path("d")), before, "{version}");
    }
}

#[test]
fn hashkv_refuses_damage_and_what_is_in_use() {
    let mut torn = snapshot("3.6");
    torn[4096 * 3..4096 * 9].fill(0);
    let sandbox = Sandbox::with(&torn);
    sandbox.run("hashkv s.db").expect(6, &["snapshot verify s.db"]);
    let sandbox = stopped("3.6");
    let db = sandbox.path("d/member/snap/db");
    let held = fs::OpenOptions::new().read(true).write(true).open(&db).unwrap();
    held.try_lock().unwrap();
    let before = picture(&sandbox.path("d"));
    let pid = std::process::id().to_string();
    for line in ["hashkv d", "hashkv d/member/snap/db", "defrag --data-dir d"] {
        sandbox.run(line).expect(8, &["in use by", &pid]);
    }
    drop(held);
    assert_eq!(picture(&sandbox.path("d")), before);
}

#[test]
fn defrag_packs_and_keeps_everything_else() {
    for version in VERSIONS {
        let sandbox = stopped(version);
        let db = sandbox.path("d/member/snap/db");
        // Rows beyond are in the log, which is left as it is.
        let (old, wal) = (fs::read(&db).unwrap(), picture(&sandbox.path("d/member/wal")));
        fs::set_permissions(&db, fs::Permissions::from_mode(0o640)).unwrap();
        if fs::metadata(&db).unwrap().uid() == 0 {
            std::os::unix::fs::chown(&db, Some(1234), Some(4321)).unwrap();
        }
        let owner = |meta: fs::Metadata| (meta.uid(), meta.gid(), meta.mode());
        let kept = owner(fs::metadata(&db).unwrap());
        sandbox.write("d/member/snap/db.tmp.123456", b"half a copy");
        sandbox.write("d/member/snap/db.tmp.etcdkit-AbC123", b"half a copy");
        let before = picture(&sandbox.path("d"));
        let dry = sandbox.run("defrag --data-dir d --dry-run -w json").expect(0, &[]).json();
        assert_eq!(picture(&sandbox.path("d")), before, "{version}");
        let report = sandbox.run("defrag --data-dir d -w json").expect(0, &[]).json();
        for key in ["before", "after", "rows", "status_hash", "leftovers"] {
            assert_eq!(dry[key], report[key], "{version} {key}");
        }
        let new = fs::read(&db).unwrap();
        assert_eq!(report["before"]["file_bytes"], old.len(), "{version}");
        assert_eq!(report["after"]["file_bytes"], new.len(), "{version}");
        assert!(new.len() < old.len(), "{version}: {} is not less than {}", new.len(), old.len());
        assert_eq!(report["leftovers"].as_array().map(Vec::len), Some(2), "{version}");
        let names = sandbox.names("d/member/snap");
        assert!(!names.iter().any(|name| name.starts_with("db.tmp")), "{version}: {names:?}");
        assert_eq!(owner(fs::metadata(&db).unwrap()), kept, "{version}");
        assert_eq!(Rows::read(&new).buckets, Rows::read(&old).buckets, "{version}");
        assert_eq!(picture(&sandbox.path("d/member/wal")), wal, "{version}");
        let record = fs::read_to_string(sandbox.path("audit.jsonl")).unwrap();
        assert!(record.contains("\"operation\":\"defrag\""), "{record}");
        assert!(record.contains("etcdutl defrag --data-dir"), "{record}");
        // Done once more it is the same again.
        sandbox.run("defrag --data-dir d").expect(0, &["all as they were"]);
        assert_eq!(fs::read(&db).unwrap().len(), new.len(), "{version}");
    }
}

#[test]
fn defrag_changes_nothing_when_anything_is_wrong() {
    let sandbox = stopped("3.6");
    let db = sandbox.path("d/member/snap/db");
    let mut torn = fs::read(&db).unwrap();
    let root = u64::from_le_bytes(torn[4096 + 32..4096 + 40].try_into().unwrap()) as usize;
    let leaf = (2..14).find(|id| *id != root && torn[id * 4096 + 8] == 2).unwrap();
    torn[leaf * 4096..(leaf + 1) * 4096].fill(0);
    fs::write(&db, &torn).unwrap();
    let before = picture(&sandbox.path("d"));
    sandbox.run("defrag --data-dir d").expect(6, &["nothing was changed", "snapshot verify"]);
    sandbox.run("defrag --data-dir d --dry-run").expect(6, &["nothing was changed"]);
    assert_eq!(picture(&sandbox.path("d")), before);
    // A record that is no record.
    let rows = Rows::read(&snapshot("3.6"));
    let key = etcdkit::etcd::revision::Revision::new(95, 0).encode();
    fs::write(&db, rows.put("key", &key, b"\x08\x01").database(4096)).unwrap();
    let before = picture(&sandbox.path("d"));
    sandbox.run("defrag --data-dir d").expect(6, &["nothing was changed"]);
    assert_eq!(picture(&sandbox.path("d")), before);
    sandbox.run("defrag --data-dir gone").expect(9, &[]);
    sandbox.run("defrag --data-dir d --force").expect(2, &["--data-dir"]);
    sandbox.sh("ln -sf other d/member/snap/db").expect(0, &[]);
    sandbox.run("defrag --data-dir d").expect(7, &["not a regular file"]);
    assert!(!sandbox.exists("audit.jsonl"));
}

/// Whoever opened the old file before its name went to the new one would write into nothing.
#[test]
fn defrag_leaves_a_file_alone_that_somebody_has_open() {
    let sandbox = stopped("3.7");
    let waiting = fs::File::open(sandbox.path("d/member/snap/db")).unwrap();
    let before = picture(&sandbox.path("d"));
    let pid = std::process::id().to_string();
    sandbox.run("defrag --data-dir d").expect(8, &["in use by process", &pid]);
    assert_eq!(picture(&sandbox.path("d")), before);
    drop(waiting);
    sandbox.run("defrag --data-dir d").expect(0, &[]);
}

#[test]
fn compact_leaves_what_a_compaction_leaves() {
    for version in VERSIONS {
        let bytes = snapshot(version);
        let sandbox = Sandbox::with(&bytes);
        let before = Rows::read(&bytes);
        let newest: Vec<_> =
            (60..=91).map(|rev| hashkv(&sandbox, &format!("s.db --rev {rev}"))).collect();
        for at in [60, 75, 91] {
            let line = format!("snapshot compact s.db --rev {at} -o out-{at}.db -w json");
            let report = sandbox.run(&line).expect(0, &[]).json();
            let out = format!("out-{at}.db");
            sandbox.run(&format!("snapshot verify {out}")).expect(0, &["good", "trailer ok"]);
            let made = fs::read(sandbox.path(&out)).unwrap();
            assert_eq!(report["sha256"], sha256(&made), "{version} {at}");
            assert_eq!(report["compact_revision_before"], 59, "{version} {at}");
            let after = Rows::read(&made);
            let names = |rows: &Rows| rows.buckets.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&after), names(&before), "{version} {at}");
            let count = |rows: &Rows| rows.buckets[&vec![b"key".to_vec()]].len();
            let dropped = report["records_dropped"].as_u64().unwrap() as usize;
            assert_eq!(count(&before) - count(&after), dropped, "{version} {at}");
            assert!(dropped > 0 || at < 91, "{version} {at}");
            for row in [b"finishedCompactRev".as_slice(), b"scheduledCompactRev"] {
                let row = RevisionKey::decode(after.get("meta", row).unwrap()).unwrap();
                assert_eq!((row.revision.main, row.revision.sub), (at, 0), "{version}");
            }
            // A revision that is not compacted answers with another hash, and the same keys.
            let status = sandbox.run(&format!("snapshot status {out} -w json")).expect(0, &[]);
            let (status, old) = (
                status.json(),
                json_fixture(&format!("etcd-{version}/snapshot-status.by-3.7.json")),
            );
            assert_eq!(status["totalKey"], old["totalKey"], "{version} {at}");
            assert_eq!(status["currentRevision"], 91, "{version} {at}");
            assert_eq!(status["compactRevision"], at, "{version} {at}");
            let hash = hashkv(&sandbox, &out);
            assert_eq!(hash["compactRevision"], at);
            assert_eq!(hash["hashRevision"], newest.last().unwrap()["hashRevision"]);
        }
        assert_eq!(fs::read(sandbox.path("s.db")).unwrap(), bytes);
    }
}

#[test]
fn compact_refuses_what_it_cannot_do() {
    let bytes = snapshot("3.6");
    let sandbox = Sandbox::with(&bytes);
    let compact = |rest: &str| sandbox.run(&format!("snapshot compact {rest}"));
    sandbox.write("there", b"mine");
    sandbox.write("noted.json", b"mine");
    let before = sandbox.picture();
    compact("s.db --rev 59 -o o").expect(2, &["mvcc: required revision has been compacted"]);
    compact("s.db --rev 92 -o o").expect(2, &["mvcc: required revision is a future revision"]);
    compact("s.db --rev 70 -o there").expect(7, &["exists; nothing was changed"]);
    compact("s.db --rev 70 -o noted").expect(7, &["noted.json exists"]);
    for verb in ["compact s.db --rev 70", "seal s.db"] {
        let there = ["there is no folder", "hint: mkdir -p"];
        sandbox.run(&format!("snapshot {verb} -o no/where")).expect(9, &there);
        sandbox.run(&format!("snapshot {verb} -o -")).expect(2, &["goes into a file, not to -"]);
    }
    for below in ["0", "-1", "-9223372036854775808"] {
        let ran = compact(&format!("s.db -o o --rev={below}")).expect(2, &["--rev"]);
        assert!(!ran.stderr.contains("mvcc"), "{ran}");
    }
    compact("s.db --rev 70").expect(2, &["--output"]);
    compact("gone.db --rev 70 -o o").expect(9, &[]);
    assert_eq!(sandbox.picture(), before);
    let mut wrong = bytes;
    *wrong.last_mut().unwrap() ^= 1;
    sandbox.write("s.db", &wrong);
    compact("s.db --rev 70 -o o").expect(6, &["SEAL002", "another backup"]);
    compact("s.db --rev 70 -o o --accept-damaged=no").expect(7, &["not the sha256"]);
    assert!(!sandbox.exists("o"));
    let accept = sha256(&wrong);
    compact(&format!("s.db --rev 70 -o o --accept-damaged={accept}"))
        .expect(0, &["THE TRAILER IS WRONG"]);
}

fn note(bytes: &[u8]) -> Vec<u8> {
    let note = json!({
        "kind": "etcdkit.snapshot", "version": 1, "sha256": sha256(bytes),
        "size_bytes": bytes.len(), "revision": 91, "highest_revision_seen": 95,
        "cluster_id": "abcd", "saved_at": "2026-01-01T00:00:00Z",
        "hashkv": [{"endpoint": "e", "member_id": "1", "hash": 1, "hash_revision": 91,
            "compact_revision": 59}],
    });
    note.to_string().into_bytes()
}

#[test]
fn notes_go_with_what_they_are_of() {
    let bytes = snapshot("3.7");
    let sandbox = Sandbox::with(&bytes);
    sandbox.write("s.db.json", &note(&bytes));
    let report = sandbox.run("snapshot compact s.db --rev 80 -o c -w json").expect(0, &[]).json();
    let made: Value = serde_json::from_slice(&fs::read(sandbox.path("c.json")).unwrap()).unwrap();
    assert_eq!(made["sha256"], report["sha256"]);
    assert_eq!(made["size_bytes"], report["size_bytes"]);
    assert_eq!(made["highest_revision_seen"], 95);
    assert!(made["hashkv"].is_null(), "{made}");
    assert_eq!(fs::metadata(sandbox.path("c.json")).unwrap().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(sandbox.path("c")).unwrap().mode() & 0o777, 0o600);
    // The note of another file says nothing about this one.
    sandbox.write("s.db.json", &note(b"another"));
    sandbox.run("snapshot seal s.db -o d").expect(0, &["no note was written", "another file"]);
    assert!(!sandbox.exists("d.json"));
}

#[test]
fn seal_gives_a_fresh_trailer_after_a_full_check() {
    let bytes = snapshot("3.6");
    let body = bytes[..bytes.len() - 32].to_vec();
    let sandbox = Sandbox::with(&bytes);
    sandbox.write("bare.db", &body);
    sandbox.run("snapshot verify bare.db").expect(7, &["trailer missing"]);
    // With the note of the file as it was saved, which the sealed one is again.
    sandbox.write("bare.db.json", &note(&bytes));
    let line = "snapshot seal bare.db -o sealed.db -w json";
    let report = sandbox.run(line).expect(0, &[]).json();
    assert_eq!((&report["trailer"], &report["revision"]), (&json!("missing"), &json!(91)));
    assert_eq!(fs::read(sandbox.path("sealed.db")).unwrap(), seal(body));
    assert_eq!(fs::read(sandbox.path("sealed.db")).unwrap(), bytes);
    assert!(sandbox.exists("sealed.db.json"));
    sandbox.run(line).expect(7, &["exists"]);
    // Of a db file that an etcd grew, only the database.
    unpack("etcd-3.6/killed-datadir.tar.gz", &sandbox.path("d"));
    fs::copy(sandbox.path("d/member/snap/db"), sandbox.path("copy.db")).unwrap();
    let ran = sandbox.run("snapshot seal copy.db -o live.db").expect(0, &[]);
    assert!(ran.stderr.contains("warning: this is a member's db file"), "{ran}");
    sandbox.run("snapshot verify live.db").expect(0, &["good"]);
    // By hand it is the same.
    let report = sandbox.run("snapshot seal bare.db -o two.db -w json").expect(0, &[]).json();
    let lines: Vec<_> =
        report["equivalent"].as_array().unwrap().iter().map(|l| l.as_str().unwrap()).collect();
    if sandbox.sh("command -v xxd").code == 0 {
        let script = lines.join("\n").replace("two.db", "hand.db");
        sandbox.sh(&script).expect(0, &[]);
        assert_eq!(fs::read(sandbox.path("hand.db")).unwrap(), bytes);
    }
    let mut wrong = bytes;
    *wrong.last_mut().unwrap() ^= 1;
    sandbox.write("s.db", &wrong);
    sandbox.run("snapshot seal s.db -o x.db").expect(6, &["SEAL002"]);
    let accept = format!("snapshot seal s.db -o x.db --accept-damaged={}", sha256(&wrong));
    sandbox.run(&accept).expect(0, &["THE TRAILER IS WRONG"]);
    let mut torn = kubernetes();
    torn[4096 * 30..4096 * 40].fill(0);
    sandbox.write("s.db", &torn);
    let accept = format!("snapshot seal s.db -o y.db --accept-damaged={}", sha256(&torn));
    sandbox.run(&accept).expect(6, &[]);
    assert!(!sandbox.exists("y.db"));
    let left: Vec<_> =
        sandbox.names(".").into_iter().filter(|name| name.contains(".etcdkit-")).collect();
    assert_eq!(left, [""; 0]);
}

/// The db file stands 29 revisions before what the killed member had answered.
#[test]
fn what_only_the_log_beside_a_db_file_holds_is_not_lost_in_silence() {
    for version in VERSIONS {
        let sandbox = stopped(version);
        let before = sandbox.picture();
        let lines =
            ["seal d/member/snap/db", "compact d/member/snap/db --rev 80 --skip-hash-check"];
        for line in lines {
            let ran = sandbox.run(&format!("snapshot {line} -o o")).expect(7, &["--without-log"]);
            let save = format!(
                "hint: etcdkit snapshot save {} --from-data-dir {}",
                sandbox.path("o").display(),
                sandbox.path("d").canonicalize().unwrap().display()
            );
            assert!(ran.stderr.contains(&save), "{ran}");
            assert!(ran.stderr.contains("would lack acknowledged writes"), "{ran}");
            assert_eq!(sandbox.picture(), before, "{version} {line}");
        }
        for (index, line) in lines.iter().enumerate() {
            let line = format!("snapshot {line} -o o{index} --without-log -w json");
            let ran = sandbox.run(&line).expect(0, &["THE LOG WAS LEFT OUT"]);
            assert!(ran.stderr.contains("THE LOG WAS LEFT OUT"), "{ran}");
            let report = ran.json();
            assert!(report["log_left_out"].as_u64().unwrap() >= 20, "{report}");
            let warnings = report["warnings"].to_string();
            assert!(warnings.contains("THE LOG WAS LEFT OUT"), "{report}");
            sandbox.run(&format!("snapshot verify o{index}")).expect(0, &["good"]);
        }
        let records = fs::read_to_string(sandbox.path("audit.jsonl")).unwrap();
        assert_eq!(records.matches("THE LOG WAS LEFT OUT").count(), 2, "{records}");
        // A log that cannot be read may hold anything.
        let wal = sandbox.path("d/member/wal");
        let name = sandbox.names("d/member/wal").into_iter().find(|name| name.ends_with(".wal"));
        let segment = wal.join(name.unwrap());
        let mut bytes = fs::read(&segment).unwrap();
        bytes[200] ^= 1;
        fs::write(&segment, &bytes).unwrap();
        let line = "snapshot seal d/member/snap/db -o p";
        sandbox.run(line).expect(6, &["cannot be relied on", "--without-log"]);
        sandbox.run(&format!("{line} --without-log")).expect(0, &["cannot be read"]);
    }
}

/// A member that was restored and never started has a log, and nothing in it but members.
#[test]
fn a_db_file_that_has_all_of_its_log_is_sealed() {
    for version in VERSIONS {
        let sandbox = Sandbox::new();
        unpack(&format!("etcd-{version}/restored-m1-of-3.tar.gz"), &sandbox.path("d"));
        let line = "snapshot seal d/member/snap/db -o o -w json";
        let report = sandbox.run(line).expect(0, &[]).json();
        assert_eq!(report["log_left_out"], 0, "{version}");
        assert!(!report["warnings"].to_string().contains("its log holds"), "{report}");
        // What was saved lacks nothing, wherever it lies.
        sandbox.write("d/member/snap/s.db", &snapshot(version));
        let line = "snapshot seal d/member/snap/s.db -o s -w json";
        assert!(sandbox.run(line).expect(0, &[]).json()["log_left_out"].is_null(), "{version}");
    }
}

#[test]
fn compact_wants_a_trailer_or_a_word() {
    let bytes = snapshot("3.6");
    let sandbox = Sandbox::with(&bytes[..bytes.len() - 32]);
    let line = "snapshot compact s.db --rev 80 -o o";
    sandbox.run(line).expect(7, &["no sha256 trailer", "hint: or --skip-hash-check"]);
    assert!(!sandbox.exists("o"));
    let ran = sandbox.run(&format!("{line} --skip-hash-check")).expect(0, &[]);
    assert!(ran.stderr.contains("warning: no sha256 trailer"), "{ran}");
    assert!(ran.stdout.contains("restore") && !ran.stdout.contains("warning"), "{ran}");
    sandbox.run("snapshot verify o").expect(0, &["good"]);
}

#[test]
fn a_dry_run_says_what_becomes_of_it_and_writes_nothing() {
    let bytes = snapshot("3.6");
    let sandbox = Sandbox::with(&bytes);
    sandbox.write("s.db.json", &note(&bytes));
    sandbox.write(".o.etcdkit-AbC123", b"half of a killed run");
    let lines = ["snapshot compact s.db --rev 80 -o o", "snapshot seal s.db -o o"];
    for line in lines {
        let before = sandbox.picture();
        sandbox.run(&format!("{line} --dry-run")).expect(0, &["would", "o.json would be written"]);
        let dry = sandbox.run(&format!("{line} --dry-run -w json")).expect(0, &[]).json();
        assert_eq!(sandbox.picture(), before, "{line}");
        let wet = sandbox.run(&format!("{line} -w json")).expect(0, &[]).json();
        assert!(dry["sha256"].is_null() && dry["dry_run"] == true, "{dry}");
        assert_eq!(wet["dry_run"], false, "{wet}");
        for (key, value) in wet.as_object().unwrap() {
            if !["sha256", "dry_run", "next", "removed"].contains(&key.as_str()) {
                assert_eq!(dry[key], *value, "{line} {key}");
            }
        }
        let next = wet["next"].to_string();
        let path = sandbox.path("o").display().to_string();
        assert!(next.contains(&format!("etcdkit snapshot verify {path}")), "{next}");
        assert!(next.contains(&format!("etcdkit snapshot restore {path}")), "{next}");
        for file in ["o", "o.json", "audit.jsonl"] {
            fs::remove_file(sandbox.path(file)).unwrap();
        }
        sandbox.write(".o.etcdkit-AbC123", b"half of a killed run");
    }
    sandbox.run("snapshot compact s.db --rev 92 -o o --dry-run").expect(2, &["future revision"]);
    sandbox.write("o", b"mine");
    sandbox.run("snapshot seal s.db -o o --dry-run").expect(7, &["exists"]);
}

#[test]
fn records_of_rewrites_hold_absolute_paths() {
    let sandbox = stopped("3.6");
    sandbox.write("s.db", &snapshot("3.6"));
    let compacted =
        sandbox.run("snapshot compact s.db --rev 80 -o c -w json").expect(0, &[]).json();
    sandbox.run("snapshot seal s.db -o t").expect(0, &[]);
    sandbox.run("defrag --data-dir d").expect(0, &[]);
    let text = fs::read_to_string(sandbox.path("audit.jsonl")).unwrap();
    let records: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let root = sandbox.path("").display().to_string();
    for record in &records {
        for side in ["before", "after"] {
            let path = &record[side]["file"].as_str().or(record[side]["data_dir"].as_str());
            assert!(path.unwrap().starts_with(&root), "{record}");
        }
        assert!(record["equivalent"].to_string().contains(&root), "{record}");
    }
    assert_eq!(records.len(), 3);
    // What a server does on the way is said.
    let line = "snapshot compact s.db --rev 80 -o text";
    sandbox.run(line).expect(0, &["  same as    etcdutl", "  that is    the same keys and rev"]);
    let by_hand = compacted["equivalent"].to_string();
    assert!(by_hand.contains("# the same keys") && by_hand.contains("cluster id"), "{by_hand}");
}

#[test]
fn a_note_that_is_a_pipe_is_not_waited_for() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    sandbox.sh("mkfifo s.db.json").expect(0, &[]);
    sandbox.run("snapshot compact s.db --rev 70 -o small.db").expect(0, &["no note was written"]);
    sandbox.run("snapshot seal s.db -o sealed.db").expect(0, &["no note was written"]);
}
