//! Runs the program as people and scripts do: what it says, what it exits with, what it leaves.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]
#![allow(clippy::indexing_slicing, reason = "these are tests")]

#[cfg(feature = "live")]
#[path = "support/certs.rs"]
mod certs;
#[cfg(feature = "live")]
#[path = "support/cluster_cases.rs"]
mod cluster_cases;
#[cfg(all(feature = "live", feature = "serve"))]
#[path = "support/compaction_cases.rs"]
mod compaction_cases;
#[cfg(feature = "live")]
#[path = "support/connection_cases.rs"]
mod connection_cases;
#[cfg(feature = "live")]
#[path = "support/ctl_cases.rs"]
mod ctl_cases;
#[cfg(feature = "live")]
#[path = "support/defrag_cases.rs"]
mod defrag_cases;
#[path = "support/directory_cases.rs"]
mod directory_cases;
#[cfg(feature = "live")]
#[path = "support/fake_cases.rs"]
mod fake_cases;
#[cfg(feature = "live")]
#[path = "support/fake_etcd.rs"]
mod fake_etcd;
#[cfg(all(feature = "live", feature = "serve"))]
#[path = "support/json_document.rs"]
mod json_document;
#[cfg(all(feature = "live", feature = "serve"))]
#[path = "support/kube_watchers.rs"]
mod kube_watchers;
#[cfg(feature = "live")]
#[path = "support/live_save_cases.rs"]
mod live_save_cases;
#[cfg(feature = "live")]
#[path = "support/packaging_cases.rs"]
mod packaging_cases;
#[cfg(feature = "live")]
#[path = "support/proxy.rs"]
mod proxy;
#[cfg(all(feature = "live", feature = "serve"))]
#[path = "support/reclaim_cases.rs"]
mod reclaim_cases;
#[path = "support/restore_cases.rs"]
mod restore_cases;
#[path = "support/rewrite_cases.rs"]
mod rewrite_cases;
#[path = "support/save_cases.rs"]
mod save_cases;
#[cfg(all(feature = "live", feature = "serve"))]
#[path = "support/serve_child.rs"]
#[allow(dead_code, reason = "each test binary uses its own part")]
mod serve_child;
mod support;
#[path = "support/target_cases.rs"]
mod target_cases;
#[cfg(feature = "live")]
#[path = "support/upkeep_cases.rs"]
mod upkeep_cases;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use serde_json::json;
use support::{Ran, Rows, Sandbox, from_tar, kubernetes, picture, skipped, snapshot};

/// Runs status, verify and restore on a file that each must refuse with the same code and words.
#[track_caller]
fn refused_by_all(sandbox: &Sandbox, file: &str, code: i32, words: &[&str]) {
    let before = sandbox.picture();
    for line in [
        format!("snapshot status {file}"),
        format!("snapshot verify {file}"),
        format!("snapshot restore {file} --data-dir out"),
        format!("snapshot restore {file} --data-dir out --skip-hash-check"),
    ] {
        sandbox.run(&line).expect(code, words);
    }
    assert_eq!(sandbox.picture(), before, "{file}: something was changed");
    assert!(!sandbox.exists("audit.jsonl"), "{file}: a refusal was recorded as a change");
}

/// Finds the subcommands in a help text.
fn subcommands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let lines = lines.take_while(|line| line.starts_with("  "));
    let names = lines.filter(|line| !line.starts_with("   ")).filter_map(|l| l.split(' ').nth(2));
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

#[test]
fn help_works_for_every_command() {
    let sandbox = Sandbox::new();
    let mut left = vec![String::new()];
    let mut seen = BTreeSet::new();
    while let Some(words) = left.pop() {
        let ran = sandbox.run(&format!("{words} --help")).expect(0, &["Usage:"]);
        // A server refuses what the other commands take.
        assert_eq!(ran.stdout.contains("--write-out"), words != " serve", "{ran}");
        assert_eq!(ran.stderr, "", "{ran}");
        sandbox.run(&format!("{words} -h")).expect(0, &["Usage:"]);
        left.extend(subcommands(&ran.stdout).iter().map(|name| format!("{words} {name}")));
        seen.insert(words.trim().to_owned());
    }
    let want = ["snapshot", "snapshot status", "snapshot verify", "snapshot restore", "demo"];
    let more = ["snapshot compact", "snapshot seal", "hashkv", "defrag"];
    for command in want.iter().chain(&more).chain(&["version", "completions", "man"]) {
        assert!(seen.contains(*command), "{command} is not in {seen:?}");
    }
    sandbox.run("help snapshot restore").expect(0, &["--accept-damaged"]);
    assert_eq!(sandbox.names("."), ["tmp"]);
}

#[test]
fn wrong_command_lines_are_2() {
    let sandbox = Sandbox::new();
    let lines = [
        "",
        "snapshot",
        "snapshot verify",
        "snapshot status",
        "snapshot restore s.db",
        "snapshot verify --level deep s.db",
        "snapshot status s.db --no-such-flag",
        "defragment",
        "version -w yaml",
    ];
    for line in lines {
        let ran = sandbox.run(line).expect(2, &[]);
        assert_eq!(ran.stdout, "", "{ran}");
        assert!(!ran.stderr.is_empty(), "{ran}");
    }
    for line in ["snapshot status -w json", "-w=json nonsense", "--write-out json -x", "-wjson"] {
        let error = sandbox.run(line).expect(2, &[]).error();
        assert_eq!((&error["code"], &error["kind"]), (&json!(2), &json!("usage")), "{line}");
    }
}

#[test]
fn an_empty_file_is_named() {
    let sandbox = Sandbox::with(b"");
    refused_by_all(&sandbox, "s.db", 6, &["FILE001", "empty"]);
}

fn base64_of(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for group in bytes.chunks(3) {
        let bits =
            group.iter().fold(0, |bits, b| bits << 8 | u32::from(*b)) << (8 * (3 - group.len()));
        for place in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * place) & 63) as usize];
            out.push(if place > group.len() { '=' } else { char::from(digit) });
        }
        if out.len() % 77 == 76 {
            out.push('\n');
        }
    }
    out
}

fn packed() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let whole = snapshot("3.6");
    let behind = |magic: &[u8]| [magic, &whole[..4000]].concat();
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_size(whole.len() as u64);
    header.set_mode(0o600);
    archive.append_data(&mut header, "snapshot.db", whole.as_slice()).unwrap();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&whole).unwrap();
    vec![
        ("gzip", gzip.finish().unwrap(), "gzip -dc"),
        ("zstd", behind(b"\x28\xb5\x2f\xfd\x04\x88"), "zstd -dc"),
        ("zip", behind(b"PK\x03\x04\x14\0\0\0\x08\0"), "unzip -p"),
        ("xz", behind(b"\xfd7zXZ\0\0\x04"), "xz -dc"),
        ("bzip2", behind(b"BZh91AY&SY"), "bzip2 -dc"),
        ("age", behind(b"age-encryption.org/v1\n-> X25519 abc\n"), "age -d -i"),
        ("tar", archive.into_inner().unwrap(), "tar -xf"),
        ("base64", base64_of(&whole).into_bytes(), "base64 -d"),
    ]
}

#[test]
fn wrapped_files_are_named_with_the_command_that_unwraps_them() {
    for (name, bytes, unwrap) in packed() {
        let sandbox = Sandbox::with(&bytes);
        refused_by_all(&sandbox, "s.db", 6, &["FILE002", &format!("{name} file"), unwrap, "s.db"]);
        let ran = sandbox.run("snapshot verify s.db").expect(6, &[&format!("next: {unwrap}")]);
        assert!(!ran.stdout.contains("another backup"), "{ran}");
    }
    // The printed command works as it stands, also for a name with a blank and a quote.
    let sandbox = Sandbox::new();
    let whole = snapshot("3.6");
    sandbox.write("a night's work", base64_of(&whole).as_bytes());
    let ran = sandbox.run_words(&["snapshot", "verify", "a night's work"]).expect(6, &[]);
    let command = ran.stdout.split("unwrap it: ").nth(1).unwrap().lines().next().unwrap();
    if sandbox.sh("command -v base64").code == 0 {
        sandbox.sh(command).expect(0, &[]);
        let unwrapped = sandbox.path("a night's work.unwrapped");
        assert_eq!(fs::read(unwrapped).unwrap(), whole, "{command}");
    } else {
        skipped("the printed unwrap command: there is no base64 program");
    }
}

#[test]
fn the_audit_log_is_kept_out_of_data_and_never_waited_for() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    let restore = "$ETCDKIT snapshot restore s.db --data-dir out --audit-log";
    let before = sandbox.picture();
    for log in ["s.db", "out/audit.jsonl", "out/member/snap/db"] {
        sandbox.sh(&format!("{restore} {log}")).expect(2, &["no place for the audit record"]);
        assert_eq!(sandbox.picture(), before, "{log}");
    }
    // A pipe that nobody reads: the restore is done, and says that the record is not.
    let script = format!("mkfifo p && {restore} p");
    sandbox.sh(&script).expect(0, &["the audit record could not be written"]);
    assert!(sandbox.exists("out/member"));
    // A last line that was cut off does not swallow the record.
    sandbox.write("cut", br#"{"time":"no end"#);
    sandbox.sh("$ETCDKIT snapshot restore s.db --data-dir two --audit-log cut").expect(0, &[]);
    let lines = String::from_utf8(fs::read(sandbox.path("cut")).unwrap()).unwrap();
    assert!(lines.starts_with("{\"time\":\"no end\n{"), "{lines}");
}

#[test]
fn a_variable_meant_for_another_program_stops_nothing() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    for value in ["bad", "protobuf", ""] {
        let line = format!("ETCDCTL_WRITE_OUT={value} $ETCDKIT snapshot verify s.db");
        sandbox.sh(&line).expect(0, &["s.db: good"]);
        let line = format!("ETCDKIT_AUDIT_LOG= ETCDCTL_WRITE_OUT={value} $ETCDKIT version -w json");
        sandbox.sh(&line).expect(0, &["{\"version\""]);
    }
    sandbox.sh("ETCDCTL_WRITE_OUT=json $ETCDKIT snapshot verify s.db").expect(0, &["{\"version\""]);
}

#[test]
fn empty_identity_flags_are_2() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    let restore = "$ETCDKIT snapshot restore s.db --data-dir out --audit-log a";
    for flags in ["--initial-cluster-token ''", "--name ''", "--name 'a=b,c'"] {
        sandbox.sh(&format!("{restore} {flags}")).expect(2, &["error"]);
    }
    let nested = "--data-dir w/data --wal-dir w";
    sandbox
        .sh(&format!("$ETCDKIT snapshot restore s.db {nested} --dry-run"))
        .expect(2, &["wal-dir"]);
}

#[test]
fn the_name_of_an_unfinished_download_is_said() {
    let sandbox = Sandbox::new();
    sandbox.write("s.db.part", &snapshot("3.6"));
    sandbox.run("snapshot verify s.db.part").expect(0, &["FILE006", "whole"]);
    sandbox.write("s.db.part", &snapshot("3.6")[..40_000]);
    sandbox.run("snapshot verify s.db.part").expect(6, &["FILE006", "FILE003"]);
    sandbox.run("snapshot restore s.db.part --data-dir out").expect(6, &["FILE003"]);
}

#[test]
fn a_truncated_file_says_how_much_is_missing() {
    let whole = snapshot("3.6");
    assert_eq!(whole.len(), 61_472);
    for cut in [61_439, 57_344, 40_001, 30_720, 8_192] {
        let sandbox = Sandbox::with(&whole[..cut]);
        let sizes = [format!("has {cut} bytes"), "61440".into(), format!("{} bytes", 61_440 - cut)];
        let words: Vec<&str> = sizes.iter().map(String::as_str).collect();
        refused_by_all(&sandbox, "s.db", 6, &words);
        sandbox.run("snapshot verify s.db").expect(6, &["FILE003", "end of the file is missing"]);
        sandbox.run("snapshot verify s.db --level quick").expect(6, &["FILE003"]);
    }
    for cut in [1, 16, 79, 80, 4_096, 8_191] {
        let sandbox = Sandbox::with(&whole[..cut]);
        refused_by_all(&sandbox, "s.db", 6, &[]);
    }
}

#[test]
fn a_lost_trailer_needs_the_full_check_in_its_place() {
    let whole = snapshot("3.6");
    let sandbox = Sandbox::with(&whole[..whole.len() - 32]);
    let before = picture(&sandbox.path("s.db"));
    let seal = "next: if it was never sealed: etcdkit snapshot seal s.db -o s.db.sealed,";
    sandbox.run("snapshot verify s.db").expect(7, &["SEAL001", seal]);
    sandbox.run("snapshot verify s.db --skip-hash-check").expect(0, &["good", "trailer missing"]);
    sandbox.run("snapshot verify s.db --level quick --skip-hash-check").expect(7, &["SEAL001"]);
    sandbox.run("snapshot status s.db").expect(0, &["SEAL001", ", 91, 60, 61 kB, 3.6.0"]);
    let ran = sandbox.run("snapshot restore s.db --data-dir out");
    ran.expect(7, &["--skip-hash-check", "missing hash"]);
    assert!(!sandbox.exists("out"));
    let ran = sandbox.run("snapshot restore s.db --data-dir out --skip-hash-check");
    ran.expect(0, &["a full check of pages and rows stood in"]);
    assert_eq!(sandbox.restored("out").get("meta", b"term").unwrap(), &1_u64.to_be_bytes());
    assert_eq!(picture(&sandbox.path("s.db")), before);
    // The switch waives a trailer that is missing, never one that is wrong.
    let mut wrong = whole;
    *wrong.last_mut().unwrap() ^= 1;
    let sandbox = Sandbox::with(&wrong);
    refused_by_all(&sandbox, "s.db", 6, &["SEAL002"]);
}

#[test]
fn text_mode_transfers_are_named() {
    let whole = snapshot("3.6");
    let unix_to_dos: Vec<u8> = whole
        .iter()
        .flat_map(|b| if *b == b'\n' { vec![b'\r', b'\n'] } else { vec![*b] })
        .collect();
    assert!(unix_to_dos.len() > whole.len() + 8);
    let replaced = String::from_utf8_lossy(&whole).into_owned().into_bytes();
    for (what, bytes) in [
        ("carriage return", unix_to_dos),
        ("UTF-8", replaced),
        ("line end was added", [whole.as_slice(), b"\n"].concat()),
        ("line end was added", [whole.as_slice(), b"\r\n"].concat()),
    ] {
        let sandbox = Sandbox::with(&bytes);
        refused_by_all(&sandbox, "s.db", 6, &[]);
        sandbox.run("snapshot verify s.db").expect(6, &["FILE005", what]);
    }
}

#[test]
fn a_copy_of_a_live_database_is_named() {
    for version in ["3.5", "3.6", "3.7"] {
        let bytes = from_tar(&format!("etcd-{version}/killed-datadir.tar.gz"), "member/snap/db");
        let sandbox = Sandbox::with(&bytes);
        sandbox.run("snapshot verify s.db").expect(7, &["FILE007", "member/snap/db", "WAL"]);
        sandbox.run("snapshot restore s.db --data-dir out").expect(7, &["--skip-hash-check"]);
        assert!(!sandbox.exists("out"));
        sandbox.run("snapshot restore s.db --data-dir out --skip-hash-check").expect(0, &[]);
        assert_eq!(sandbox.names("out/member"), ["snap", "wal"]);
    }
    // Beside its log it is not all that the member had.
    let sandbox = Sandbox::new();
    sandbox.unpack("etcd-3.6/killed-datadir.tar.gz", "m");
    let words =
        ["FILE007", "its log holds", "next: etcdkit snapshot save FILE --from-data-dir m\n"];
    sandbox.run("snapshot verify m/member/snap/db").expect(7, &words);
    sandbox.run("snapshot status m/member/snap/db").expect(0, &["FILE007", "--from-data-dir m\n"]);
    let restore = "snapshot restore m/member/snap/db --data-dir out --skip-hash-check";
    sandbox.run(restore).expect(0, &["warning: ", "its log holds", "--from-data-dir"]);
    let seal = "snapshot seal m/member/snap/db -o sealed";
    sandbox.run(seal).expect(7, &["--from-data-dir", "--without-log"]);
    fs::remove_dir_all(sandbox.path("m/member/wal")).unwrap();
    let alone = sandbox.run("snapshot verify m/member/snap/db").expect(7, &[]);
    assert!(!alone.stdout.contains("--from-data-dir"), "{alone}");
    // A page that changed while it was copied: page 5 of another kind.
    let mut torn = from_tar("etcd-3.6/killed-datadir.tar.gz", "member/snap/db");
    let root = u64::from_le_bytes(torn[4096 + 32..4096 + 40].try_into().unwrap()) as usize;
    let leaf = (2..14).find(|id| *id != root && torn[id * 4096 + 8] == 2).unwrap();
    let page = torn[leaf * 4096..(leaf + 1) * 4096].to_vec();
    torn[root * 4096..(root + 1) * 4096].copy_from_slice(&page);
    let sandbox = Sandbox::with(&torn);
    sandbox.run("snapshot verify s.db").expect(6, &["FILE007", "while a server wrote to it"]);
}

/// Flips one bit of a value; pages and records stay whole.
fn flipped() -> Vec<u8> {
    let mut bytes = snapshot("3.6");
    let at = bytes.windows(8).position(|w| w == b"value-30").unwrap();
    bytes[at + 6] ^= 1;
    bytes
}

#[test]
fn a_flipped_bit_in_a_value_is_seen_and_refused() {
    let bytes = flipped();
    let (body, trailer) = bytes.split_at(bytes.len() - 32);
    let sandbox = Sandbox::with(&bytes);
    let words = ["trailer damaged, pages ok, records ok", "SEAL002"];
    let ran = sandbox.run("snapshot verify s.db").expect(6, &words);
    let (stored, computed) = (support::hex(trailer), support::sha256(body));
    assert!(ran.stdout.contains(&stored) && ran.stdout.contains(&computed), "{ran}");
    refused_by_all(&sandbox, "s.db", 6, &["SEAL002"]);
    sandbox.run("snapshot verify --level quick s.db").expect(6, &["SEAL002"]);
    let status = sandbox.run("snapshot status s.db -w json").expect(6, &[]).json();
    assert_eq!(status["trailer"], "broken");

    let sha256 = support::sha256(&bytes);
    let accept = format!("--accept-damaged={sha256}");
    let restore = "snapshot restore s.db --data-dir out";
    sandbox.run(restore).expect(6, &[&accept, "another backup"]);
    for wrong in [support::sha256(body), "0".repeat(64), "yes".into()] {
        sandbox.run(&format!("{restore} --accept-damaged={wrong}")).expect(7, &[&sha256]);
    }
    assert_eq!(sandbox.names("."), ["s.db", "tmp"]);
    sandbox.run(&format!("{restore} {accept}")).expect(0, &["THE TRAILER IS WRONG"]);
    let record = fs::read_to_string(sandbox.path("audit.jsonl")).unwrap();
    assert!(record.contains("THE TRAILER IS WRONG") && record.contains(&sha256), "{record}");
    // Accepting is for a wrong trailer only: damage below it still stops.
    let mut worse = bytes.clone();
    worse[4096 * 4..4096 * 5].fill(0);
    let sandbox = Sandbox::with(&worse);
    let ran = sandbox.run(&format!("{restore} --accept-damaged={}", support::sha256(&worse)));
    ran.expect(6, &["all zeroes"]);
    assert!(!sandbox.exists("out"));
}

#[test]
fn what_is_no_file_is_named() {
    let sandbox = Sandbox::new();
    sandbox.mkdir("folder");
    sandbox.sh("mkfifo pipe").expect(0, &[]);
    // Verify reads data directories, and says what this one is not; the others want a file.
    sandbox.run("snapshot verify folder").expect(9, &["folder", "no database and no log"]);
    for command in ["snapshot status folder", "snapshot restore folder --data-dir out"] {
        let ran = sandbox.run(command).expect(2, &["folder is a directory", "snapshot file"]);
        assert!(!ran.stderr.contains("--from-data-dir"), "{ran}");
    }
    // What a data directory holds is not in its database alone, so that is not what is named.
    sandbox.unpack("etcd-3.6/killed-datadir.tar.gz", "dir name");
    for place in ["dir name", "dir name/member", "dir name/member/snap", "dir name/member/wal"] {
        let wanting = [
            &["snapshot", "status", place][..],
            &["snapshot", "restore", place, "--data-dir", "out"],
            &["snapshot", "compact", place, "--rev", "5", "-o", "out"],
            &["snapshot", "seal", place, "-o", "out"],
        ];
        for words in wanting {
            let hint = "hint: etcdkit snapshot save FILE --from-data-dir 'dir name'\n";
            sandbox.run_words(words).expect(2, &["is a directory", hint]);
            assert!(!sandbox.exists("out"));
        }
    }
    refused_by_all(&sandbox, "pipe", 1, &["pipe", "not a regular file"]);
    refused_by_all(&sandbox, "/dev/zero", 1, &["not a regular file"]);
    refused_by_all(&sandbox, "missing.db", 9, &["missing.db"]);
    sandbox.sh("ln -s missing.db link.db").expect(0, &[]);
    refused_by_all(&sandbox, "link.db", 9, &["link.db"]);
    let error = sandbox.run("snapshot status missing.db -w json").expect(9, &[]).error();
    assert_eq!((&error["code"], &error["kind"]), (&json!(9), &json!("not-found")));
}

#[test]
fn a_file_that_may_not_be_read_is_1() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    fs::set_permissions(sandbox.path("s.db"), PermissionsExt::from_mode(0o000)).unwrap();
    let mut command = sandbox.command();
    command.args(["snapshot", "verify", "s.db"]);
    if rustix::process::geteuid().is_root() {
        // Root reads everything, so somebody else is asked.
        fs::set_permissions(sandbox.path("."), PermissionsExt::from_mode(0o755)).unwrap();
        command.uid(65_534).gid(65_534).stderr(Stdio::null());
        if let Err(error) = command.spawn().and_then(|mut child| child.wait()) {
            return skipped(&format!("a file that may not be read: no other user: {error}"));
        }
    }
    let owner = "hint: run this as root, or as the owner of the directory";
    Ran::of("verify as another user", &mut command).expect(1, &["s.db", "denied", owner]);
    // The same of a data directory, whichever part of it is closed.
    for closed in ["m", "m/member", "m/member/wal", "m/member/snap"] {
        let sandbox = Sandbox::new();
        sandbox.unpack("etcd-3.6/killed-datadir.tar.gz", "m");
        let open = "chmod 755 . && chmod -R go+rX m";
        sandbox.sh(open).expect(0, &[]);
        fs::set_permissions(sandbox.path(closed), PermissionsExt::from_mode(0o000)).unwrap();
        let commands = [
            &["snapshot", "verify", "m"][..],
            &["hashkv", "m"],
            &["snapshot", "inspect", "m"],
            &["snapshot", "save", "o", "--dry-run", "--from-data-dir", "m"],
        ];
        for words in commands {
            let mut command = sandbox.command();
            command.args(words);
            if rustix::process::geteuid().is_root() {
                command.uid(65_534).gid(65_534);
            }
            let what = format!("{words:?} with {closed} closed");
            Ran::of(&what, &mut command).expect(1, &["denied", owner]);
        }
    }
}

#[test]
fn a_locked_file_names_its_holder_at_once() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    let file = fs::File::open(sandbox.path("s.db")).unwrap();
    file.lock().unwrap();
    let own = format!("process {}", std::process::id());
    refused_by_all(&sandbox, "s.db", 8, &["in use by"]);
    if fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.contains("FLOCK")) {
        sandbox.run("snapshot verify s.db").expect(8, &[&own]);
    } else {
        skipped("the pid of a lock's holder: /proc/locks does not show flock locks");
    }
    let ran = sandbox.run("hashkv s.db").expect(8, &["in use by", "etcdctl endpoint hashkv"]);
    assert!(!ran.stderr.contains("snapshot save"), "{ran}");
    drop(file);
    sandbox.run("snapshot verify s.db").expect(0, &[]);
}

#[test]
fn many_files_are_verified_and_the_worst_decides() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    sandbox.write("bad.db", &flipped());
    sandbox.write("bare.db", &snapshot("3.6")[..61_440]);
    sandbox.run("snapshot verify s.db s.db").expect(0, &[]);
    sandbox.run("snapshot verify s.db bare.db").expect(7, &["s.db: good", "bare.db: unsealed"]);
    sandbox.run("snapshot verify s.db missing.db").expect(9, &["s.db: good", "missing.db"]);
    let all = "snapshot verify s.db missing.db bad.db bare.db";
    sandbox.run(all).expect(6, &["s.db: good", "bad.db: damaged", "bare.db: unsealed"]);
    sandbox.run(&format!("{all} -w table")).expect(6, &["VERDICT", "damaged", "unsealed"]);
    let report = sandbox.run(&format!("{all} -w json")).expect(6, &[]).json();
    let verdicts: Vec<&str> = report["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|f| f["verdict"].as_str().unwrap())
        .collect();
    assert_eq!(verdicts, ["good", "unread", "damaged", "unsealed"]);
}

#[test]
fn outputs_have_etcdutls_forms() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    let simple = sandbox.run("snapshot status s.db").expect(0, &[]);
    assert_eq!(simple.stdout, "b37bf6f5, 91, 60, 61 kB, 3.6.0\n");
    let table = sandbox.run("snapshot status s.db -w table").expect(0, &[]);
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    let lines: Vec<&str> = table.stdout.lines().collect();
    let header = ["HASH", "REVISION", "TOTAL KEYS", "TOTAL SIZE", "VERSION"];
    assert_eq!(cells(lines[1]), header, "{table}");
    assert_eq!(cells(lines[3]), ["b37bf6f5", "91", "60", "61 kB", "3.6.0"], "{table}");
    let fields = sandbox.run("snapshot status s.db -w fields").expect(0, &[]).stdout;
    let want = "\"Hash\" : 3011245813\n\"Revision\" : 91\n\"Keys\" : 60\n\"Size\" : 61440\n\
                \"Version\" : 3.6.0\n";
    assert!(fields.starts_with(want), "{fields}");
    let env =
        sandbox.command().env("ETCDCTL_WRITE_OUT", "json").args(["version"]).output().unwrap();
    assert!(env.stdout.starts_with(b"{\"version\":"), "{env:?}");
    // What cannot be in these shapes is said beside them, and stdout stays as it is.
    let sandbox = Sandbox::with(&Rows::read(&snapshot("3.6")).alarm(7, 1).snapshot());
    let ran = sandbox.run("snapshot status s.db").expect(0, &["ETCD015", "NOSPACE"]);
    assert_eq!(ran.stdout.lines().count(), 1, "{ran}");
}

#[test]
fn json_errors_are_one_object_on_stderr() {
    let sandbox = Sandbox::with(&flipped());
    let error = sandbox.run("snapshot restore s.db --data-dir out -w json").expect(6, &[]).error();
    assert_eq!((&error["code"], &error["kind"]), (&json!(6), &json!("damage")));
    assert_eq!(error["findings"][0]["code"], "SEAL002");
    assert!(error["message"].as_str().unwrap().contains("s.db"), "{error}");
    assert!(error["hint"].as_str().unwrap().contains("--accept-damaged="), "{error}");
    // Everything on stderr is JSON, notes before the error too.
    sandbox.mkdir(".out.etcdkit-AbCdEf");
    let sha256 = support::sha256(&flipped());
    let line = format!(
        "snapshot restore s.db --data-dir out --accept-damaged={sha256} -w json --audit-log /"
    );
    let ran = sandbox.run(&line.replace("--audit-log /", "")).expect(0, &[]);
    ran.json();
    for line in ran.stderr.lines() {
        let note: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} {ran}"));
        assert!(note["note"].is_string(), "{ran}");
    }
    assert!(ran.stderr.contains("THE TRAILER"), "{ran}");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let sandbox = Sandbox::with(&kubernetes());
    for command in
        ["snapshot status s.db -w table", "snapshot verify s.db", "completions bash", "man"]
    {
        let ran = sandbox.sh(&format!("{{ $ETCDKIT {command}; echo code $? >&2; }} | head -0"));
        let ran = ran.expect(0, &["code 0"]);
        assert!(!ran.stderr.contains("error") && !ran.stderr.contains("panic"), "{ran}");
    }
    if sandbox.sh("test -c /dev/full").code != 0 {
        return skipped("output that cannot be written: there is no /dev/full");
    }
    let ran = sandbox.sh("$ETCDKIT snapshot status s.db > /dev/full; echo code $? >&2");
    ran.expect(0, &["code 1", "cannot write the result"]);
    // What goes to stderr only says more: when it cannot be written the result stands.
    sandbox.write("bare.db", &kubernetes()[..kubernetes().len() - 32]);
    let ran = sandbox.sh("$ETCDKIT snapshot status bare.db 2> /dev/full; echo code $?");
    ran.expect(0, &["code 0", ", 296, 249, "]);
    let line = "snapshot restore bare.db --data-dir out --skip-hash-check --audit-log a";
    sandbox.sh(&format!("$ETCDKIT {line} 2> /dev/full; echo code $?")).expect(0, &["code 0"]);
    let ran = sandbox.sh("$ETCDKIT snapshot status none.db 2> /dev/full; echo code $?");
    ran.expect(0, &["code 9"]);
}

#[test]
fn completions_manual_and_version_are_there() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        sandbox.run(&format!("completions {shell}")).expect(0, &["etcdkit", "accept-damaged"]);
    }
    sandbox.run("completions tcsh").expect(2, &[]);
    sandbox.run("man").expect(0, &[".TH etcdkit"]);
    sandbox.run("man snapshot restore").expect(0, &["accept", "damaged"]);
    sandbox.run("man snapshot nonsense").expect(2, &["nonsense"]);
    sandbox.run("man --all pages").expect(0, &[]);
    let pages = sandbox.names("pages");
    assert!(pages.contains(&"etcdkit-snapshot-restore.1".to_owned()), "{pages:?}");
    let version = env!("CARGO_PKG_VERSION");
    sandbox.run("version").expect(0, &[version, "3.7.0"]);
    sandbox.run("--version").expect(0, &[version]);
}

#[test]
fn the_demo_proves_and_leaves_nothing() {
    let sandbox = Sandbox::new();
    let words = ["/registry/namespaces/shop is back, UID ", "temporary directory is gone"];
    let ran = sandbox.run("demo").expect(0, &words);
    for words in
        ["mvcc: database space exceeded", "namespace UID", "a real etcd 3.7 would start on it"]
    {
        assert!(ran.stdout.contains(words), "no {words}: {ran}");
    }
    assert_eq!(sandbox.picture().len(), 1, "only the folder tmp: {:?}", sandbox.names("tmp"));
    assert!(!sandbox.exists("audit.jsonl"), "the demo changes nothing that is worth a record");
    let proof = sandbox.run("demo -w json").expect(0, &[]).json();
    let sights = proof["sights"].as_array().unwrap();
    let sight = |when: &str| sights.iter().find(|sight| sight["when"] == when).unwrap();
    assert_eq!(sights.len(), 5);
    assert_eq!(proof["uid"].as_str().unwrap().len(), 36);
    assert_eq!(sight("before")["uid"], proof["uid"]);
    assert!(sight("deleted")["uid"].is_null() && sight("full")["uid"].is_null());
    assert_eq!(sight("restored")["uid"], proof["uid"]);
    assert_eq!(sight("restored")["keys"], sight("before")["keys"]);
    assert_eq!(sight("reclaimed")["later_write"], true);
    assert_eq!(sight("restored")["later_write"], false);
    assert!(sight("restored")["revision"].as_i64() > sight("reclaimed")["revision"].as_i64());
    let quota = proof["quota_bytes"].as_i64().unwrap();
    assert!(sight("full")["db_size_bytes"].as_i64().unwrap() > quota / 2);
    assert!(sight("reclaimed")["db_size_bytes"].as_i64() < sight("full")["db_size_bytes"].as_i64());
    assert_eq!(sight("full")["refusal"], "etcdserver: mvcc: database space exceeded");
    assert!(sight("restored")["refusal"].is_null());
    // A place that cannot be written gives an error, not a panic.
    let ran = sandbox.sh("TMPDIR=/nowhere/at/all $ETCDKIT demo").expect(9, &["/nowhere/at/all"]);
    assert_eq!(ran.stdout, "");
}

#[test]
fn odd_snapshots_of_real_life() {
    // One meta page damaged: works, and says so.
    for page in [0, 1] {
        let mut bytes = snapshot("3.6");
        bytes.truncate(61_440);
        bytes[page * 4096 + 40..page * 4096 + 60].fill(0xff);
        let sandbox = Sandbox::with(&support::seal(bytes));
        sandbox.run("snapshot verify s.db").expect(0, &["BOLT002", &format!("meta page {page}")]);
        sandbox.run("snapshot restore s.db --data-dir out").expect(0, &[]);
    }
    let mut bytes = snapshot("3.6");
    bytes[16..80].fill(0);
    bytes[4096 + 16..4096 + 80].fill(0);
    let sandbox = Sandbox::with(&bytes);
    refused_by_all(&sandbox, "s.db", 6, &["not a bbolt database"]);
    // Page sizes of other hosts, the first meta whole or not.
    let rows = Rows::read(&snapshot("3.7"));
    for page_size in [1024, 8192, 16_384, 65_536] {
        let database = rows.database(page_size);
        let sandbox = Sandbox::with(&support::seal(database.clone()));
        sandbox.run("snapshot verify s.db").expect(0, &["good"]);
        sandbox.run("snapshot restore s.db --data-dir out").expect(0, &[]);
        let mut broken = database;
        broken[20..60].fill(0);
        let sandbox = Sandbox::with(&support::seal(broken));
        sandbox.run("snapshot verify s.db").expect(0, &["good", "BOLT002"]);
        let report = sandbox.run("snapshot status s.db -w json").expect(0, &[]).json();
        assert_eq!(report["pageSize"], page_size);
    }
    // One page of zeroes in the middle: named with its parent, and the rest is read.
    let mut bytes = kubernetes();
    let leaf = (10..60).find(|id| bytes[id * 4096 + 8] == 2).unwrap();
    bytes[leaf * 4096..(leaf + 1) * 4096].fill(0);
    bytes.truncate(bytes.len() - 32);
    let sandbox = Sandbox::with(&support::seal(bytes));
    let words =
        ["BOLT006", &format!("page {leaf} is all zeroes"), "reached by pages", "lost: keys"];
    sandbox.run("snapshot verify s.db").expect(6, &words);
    refused_by_all(&sandbox, "s.db", 6, &["all zeroes"]);
}

#[cfg(feature = "live")]
#[test]
fn running_members_that_were_named_must_answer() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    let restore = "$ETCDKIT snapshot restore s.db --data-dir out --audit-log a --endpoints";
    // Port 1 of loopback refuses at once.
    sandbox.sh(&format!("{restore} http://127.0.0.1:1")).expect(4, &["--newest-revision"]);
    let plain = proxy::Says::to_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let https = format!("{restore} https://127.0.0.1:{}", plain.port());
    sandbox.sh(&https).expect(5, &["plain http", "--newest-revision"]);
    assert!(!sandbox.exists("out"));
}

#[cfg(feature = "live")]
#[test]
fn the_command_line_wins_over_the_environment() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    let fixture = "fixtures/kubernetes/manifests/kube-apiserver-external.yaml";
    let fixture = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(fixture);
    fs::create_dir(sandbox.path("node")).unwrap();
    fs::copy(fixture, sandbox.path("node/kube-apiserver.yaml")).unwrap();
    // Nobody listens there, and nobody is asked for as long as a file is missing.
    let health = "$ETCDKIT health --dial-timeout 100ms";
    sandbox
        .sh(&format!(
            "ETCDCTL_PASSWORD=x {health} --endpoints 127.0.0.1:1 --user u --password-file no"
        ))
        .expect(9, &["cannot read no"]);
    sandbox
        .sh(&format!("ETCDCTL_ENDPOINTS=127.0.0.1:1 {health} --from-kubeadm=node"))
        .expect(5, &["/etc/etcd/pki"]);
    let line = "snapshot save x.db --user u:SECRET --endpoints 127.0.0.1:1";
    let ran = sandbox.sh(&format!("ETCDCTL_PASSWORD=x $ETCDKIT {line}")).expect(4, &["refused"]);
    assert!(!format!("{}{}", ran.stdout, ran.stderr).contains("SECRET"), "{ran}");
}
