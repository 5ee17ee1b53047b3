//! Restores that are killed, interrupted or starved at every step: the target is as it was, and
//! the next run succeeds and cleans up.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]
#![allow(clippy::indexing_slicing, reason = "these are tests")]

#[path = "support/power_cases.rs"]
mod power_cases;
#[path = "support/power_history.rs"]
mod power_history;
#[path = "support/power_loss.rs"]
mod power_loss;
#[path = "support/store_driver.rs"]
mod store_driver;
#[path = "interrupt/store_faults.rs"]
mod store_faults;
#[path = "interrupt/store_fixtures.rs"]
mod store_fixtures;
#[path = "interrupt/store_kills.rs"]
mod store_kills;
#[path = "support/store_model.rs"]
mod store_model;
#[path = "interrupt/store_parts.rs"]
mod store_parts;
#[path = "support/store_plan.rs"]
mod store_plan;
#[path = "interrupt/store_power.rs"]
mod store_power;
#[path = "support/store_probe.rs"]
mod store_probe;
#[path = "interrupt/store_random.rs"]
mod store_random;
#[path = "support/store_requests.rs"]
mod store_requests;
#[path = "support/store_states.rs"]
mod store_states;
#[path = "support/store_watch.rs"]
mod store_watch;
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::Cursor;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use etcdkit::bolt::builder::Builder;
use etcdkit::etcd::record::KeyValue;
use etcdkit::etcd::revision::Revision;
use etcdkit::ops::Progress;
use etcdkit::ops::restore::{Options, restore};
use rustix::process::{Pid, Signal, kill_process};
use support::{Picture, Ran, Rows, Sandbox, kubernetes, picture, seal, skipped, snapshot};

const RESTORE: &str = "snapshot restore s.db --data-dir out";

/// Counts the calls of each step; kills its own process at one of them, as `step:number`.
#[derive(Default)]
struct Calls {
    step: Mutex<String>,
    counts: Mutex<BTreeMap<String, u64>>,
    kill_at: Option<String>,
}

impl Calls {
    fn called(&self) {
        let step = self.step.lock().unwrap().clone();
        let mut counts = self.counts.lock().unwrap();
        let count = counts.entry(step.clone()).or_default();
        if self.kill_at.as_ref().is_some_and(|at| *at == format!("{step}:{count}")) {
            let _ = kill_process(rustix::process::getpid(), Signal::KILL);
        }
        *count += 1;
    }
}

impl Progress for Calls {
    fn step(&self, name: &str, _: u64) {
        *self.step.lock().unwrap() = name.to_owned();
        self.called();
    }
    fn advance(&self, _: u64) {
        self.called();
    }
    fn note(&self, _: &str) {
        self.called();
    }
    fn stopped(&self) -> bool {
        self.called();
        false
    }
}

fn options(folder: &Path, wal: bool, force: bool) -> Options {
    Options {
        snapshot: folder.join("s.db"),
        data_dir: folder.join("out"),
        wal_dir: wal.then(|| folder.join("wal")),
        audit_log: folder.join("audit.jsonl"),
        force,
        ..Options::default()
    }
}

/// The other half of the next test: a restore that kills its own process.
#[test]
#[ignore = "runs in a child of killed_at_any_step_the_target_is_as_it_was"]
fn restores_and_kills_itself() {
    let word = |name: &str| std::env::var(name).expect("set by the parent");
    let folder = PathBuf::from(word("KILL_FOLDER"));
    let calls = Calls { kill_at: Some(word("KILL_AT")), ..Calls::default() };
    let options = options(&folder, word("KILL_WAL") == "true", word("KILL_FORCE") == "true");
    restore(&options, &calls).unwrap();
}

/// Takes out of a picture what a killed run may leave: its temporaries, and times of folders that
/// held one.
fn without_temporaries(picture: Picture, folder: &Path) -> Picture {
    let is_temporary = |path: &Path| {
        let below = path.strip_prefix(folder).unwrap_or(path);
        below.iter().any(|name| name.to_string_lossy().contains(".etcdkit-"))
    };
    let timeless = |(path, text): (PathBuf, String)| {
        let folder = text.contains(" folder ");
        let text = if folder { text.rsplit_once(' ').unwrap().0.to_owned() } else { text };
        (path, text)
    };
    picture.into_iter().filter(|(path, _)| !is_temporary(path)).map(timeless).collect()
}

fn temporaries(sandbox: &Sandbox) -> Vec<PathBuf> {
    let all = sandbox.picture().into_keys();
    let is_one = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().contains(".etcdkit-"))
    };
    all.filter(is_one).collect()
}

/// What stands at the target before: nothing, an empty directory, or old data.
fn prepare(sandbox: &Sandbox, target: &str) {
    match target {
        "empty" => drop(sandbox.mkdir("out")),
        "occupied" => {
            sandbox.write("out/member/snap/db", b"precious");
            sandbox.write("out/stray", b"too");
        }
        _ => {}
    }
}

#[test]
fn killed_at_any_step_the_target_is_as_it_was() {
    let mut left_behind = 0;
    for (target, wal) in
        [("absent", false), ("absent", true), ("empty", false), ("occupied", false)]
    {
        let sandbox = Sandbox::with(&snapshot("3.6"));
        prepare(&sandbox, target);
        let folder = sandbox.path(".");
        let force = target == "occupied";
        // One run to the end, elsewhere, says how many calls each step makes.
        let counted = Sandbox::with(&snapshot("3.6"));
        let calls = Calls::default();
        restore(&options(&counted.path("."), wal, false), &calls).unwrap();
        let counts = calls.counts.into_inner().unwrap();
        assert_eq!(counts.keys().collect::<Vec<_>>(), ["build", "check", "sync", "verify"]);
        let before = without_temporaries(sandbox.picture(), &folder);
        for (step, count) in counts {
            let mut places = vec![0, count / 2, count - 1];
            places.dedup();
            for place in places {
                let mut child = Command::new(std::env::current_exe().unwrap());
                child.args(["--exact", "restores_and_kills_itself", "--ignored", "--nocapture"]);
                child.env("KILL_FOLDER", &folder).env("KILL_AT", format!("{step}:{place}"));
                child.env("KILL_WAL", wal.to_string()).env("KILL_FORCE", force.to_string());
                let ran = Ran::of(&format!("{target} {step}:{place}"), &mut child);
                let ran = ran.expect(128 + 9, &[]);
                let after = without_temporaries(sandbox.picture(), &folder);
                assert_eq!(after, before, "{ran}");
                left_behind += temporaries(&sandbox).len();
                assert!(!sandbox.exists("audit.jsonl"), "{ran}");
            }
        }
        let force = if force { "--force" } else { "" };
        let more = if wal { "--wal-dir wal" } else { "" };
        sandbox.run(&format!("{RESTORE} {force} {more}")).expect(0, &[]);
        assert_eq!(temporaries(&sandbox), Vec::<PathBuf>::new(), "{target}");
        assert_eq!(sandbox.names("out"), ["member"], "{target}");
        Rows::read(&fs::read(sandbox.path("out/member/snap/db")).unwrap());
    }
    // Killed while it builds, a run does leave something: else this test looks at nothing.
    assert!(left_behind > 10, "{left_behind}");
}

#[test]
fn killed_at_any_moment_old_or_new_data_is_there_whole() {
    let sandbox = Sandbox::with(&kubernetes());
    let precious = Rows::read(&snapshot("3.6")).database(4096);
    let mut ends = [0, 0];
    for round in 0..40_u64 {
        sandbox.sh("rm -rf out out.before-*").expect(0, &[]);
        sandbox.write("out/member/snap/db", &precious);
        let mut child = sandbox
            .command()
            .args(["snapshot", "restore", "s.db", "--force"])
            .args(["--data-dir", "out"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(round * round * 120));
        let _ = child.kill();
        child.wait().unwrap();
        let read = |path: PathBuf| fs::read(path.join("member/snap/db")).ok();
        let is_aside = |name: &String| name.starts_with("out.before-");
        let aside = sandbox.names(".").into_iter().find(is_aside);
        let old = aside.map_or_else(|| sandbox.path("out"), |name| sandbox.path(&name));
        let is_new = old != sandbox.path("out");
        assert_eq!(read(old).as_ref(), Some(&precious), "round {round}: old data is lost");
        if is_new && sandbox.exists("out") {
            assert!(sandbox.restored("out").get("meta", b"scheduledCompactRev").is_some());
        }
        ends[usize::from(is_new)] += 1;
        sandbox.run(&format!("{RESTORE} --force")).expect(0, &[]);
        assert_eq!(temporaries(&sandbox), Vec::<PathBuf>::new(), "round {round}");
    }
    assert!(ends[0] > 0, "every round came too late: {ends:?}");
}

/// A snapshot of some hundred megabytes.
fn large() -> Vec<u8> {
    let rows = Rows::read(&snapshot("3.6"));
    let mut builder = Builder::new(Cursor::new(Vec::new()), 4096).unwrap();
    for (path, small) in &rows.buckets {
        builder.begin_bucket(&path[0], 0).unwrap();
        small.iter().for_each(|(key, value)| builder.put(key, value).unwrap());
        if path[0] == b"key" {
            let value = vec![b'v'; 40_000];
            for main in 92..2_600 {
                let key = format!("/large/{main}");
                let record = KeyValue {
                    key: key.as_bytes(),
                    create_revision: main,
                    mod_revision: main,
                    version: 1,
                    value: &value,
                    ..KeyValue::default()
                };
                let mut bytes = Vec::new();
                record.encode(&mut bytes);
                builder.put(&Revision::new(main, 0).encode(), &bytes).unwrap();
            }
        }
        builder.end_bucket().unwrap();
    }
    seal(builder.finish(3).unwrap().1.into_inner())
}

fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    for _ in 0..60_000 {
        if ready() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("{what} did not happen");
}

fn opens(child: &Child, path: &Path) -> bool {
    let entries = fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten().flatten();
    entries.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|found| found == path)
}

#[test]
fn a_signal_stops_a_restore_and_nothing_is_left() {
    let sandbox = Sandbox::with(&large());
    let snapshot = fs::canonicalize(sandbox.path("s.db")).unwrap();
    let before = picture(&snapshot);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        for moment in ["while it verifies", "while it builds"] {
            let mut command = sandbox.command();
            command.args(["snapshot", "restore", "s.db", "--data-dir", "deep/out", "-w", "json"]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
            let child = command.spawn().unwrap();
            wait_for(moment, || match moment {
                "while it verifies" => opens(&child, &snapshot),
                _ => sandbox.exists("deep") && sandbox.names("deep").len() == 1,
            });
            kill_process(Pid::from_child(&child), signal).unwrap();
            let ran = Ran::wait(&format!("restore, {signal:?} {moment}"), child).expect(130, &[]);
            assert_eq!(ran.error()["kind"], "interrupted", "{ran}");
            assert_eq!(sandbox.names("."), ["s.db", "tmp"], "{ran}");
        }
    }
    assert_eq!(picture(&snapshot), before);
    for command in ["status", "verify"] {
        let child = sandbox
            .command()
            .args(["snapshot", command, "s.db"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for(command, || opens(&child, &snapshot));
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        Ran::wait(command, child).expect(130, &["interrupted"]);
    }
}

#[test]
fn a_file_that_may_not_grow_is_an_error_and_nothing_is_left() {
    let sandbox = Sandbox::with(&kubernetes());
    sandbox.mkdir("empty");
    if sandbox.sh("trap '' XFSZ; ulimit -f 100").code != 0 {
        return skipped("a restore that may not write: no ulimit -f");
    }
    let before = without_temporaries(sandbox.picture(), &sandbox.path("."));
    for blocks in [0, 1, 8, 100, 300] {
        for target in ["out", "empty", "out --wal-dir wal", "a/b"] {
            let line = format!("snapshot restore s.db --data-dir {target} --audit-log a.jsonl");
            let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec $ETCDKIT {line}");
            let ran = sandbox.sh(&script).expect(1, &["File too large"]);
            let after = without_temporaries(sandbox.picture(), &sandbox.path("."));
            assert_eq!(after, before, "{ran}");
            assert_eq!(temporaries(&sandbox), Vec::<PathBuf>::new(), "{ran}");
        }
    }
    sandbox.run(RESTORE).expect(0, &[]);
}

/// Runs a script in a mount namespace of its own; `None` where that cannot be.
fn with_mounts(sandbox: &Sandbox, script: &str) -> Option<Ran> {
    sandbox.mkdir("m");
    let can = sandbox.sh("unshare -m sh -c 'mount -t tmpfs -o size=1m tmpfs m' 2>/dev/null");
    if can.code != 0 {
        skipped("a full disk and a read-only one: mount -t tmpfs does not work here");
        return None;
    }
    sandbox.write("script.sh", script.as_bytes());
    Some(sandbox.sh("unshare -m sh script.sh 2>&1"))
}

#[test]
fn a_full_disk_is_an_error_and_nothing_is_left() {
    let sandbox = Sandbox::with(&kubernetes());
    let restore = "$ETCDKIT snapshot restore s.db --audit-log a.jsonl --data-dir";
    // Too small to begin with; then without an inode for the n-th file or folder.
    let mut script = format!(
        "mount -t tmpfs -o size=800k tmpfs m; {restore} m/out; echo code $?; \
         echo left $(ls -A m); {restore} m; echo code $?; echo left $(ls -A m); umount m\n"
    );
    for inodes in 2..=8 {
        script.push_str(&format!(
            "mount -t tmpfs -o size=20m,nr_inodes={inodes} tmpfs m; {restore} m/out; \
             echo code $?; echo left $(ls -A m); umount m\n"
        ));
    }
    let Some(ran) = with_mounts(&sandbox, &script) else { return };
    let lines = |start: &str| -> Vec<String> {
        let all = ran.stdout.lines().filter_map(|line| line.strip_prefix(start));
        all.map(|rest| rest.trim().to_owned()).collect()
    };
    assert_eq!(lines("code"), ["1"; 9], "{ran}");
    assert_eq!(lines("left"), [""; 9], "{ran}");
    assert!(ran.stdout.contains("not enough space for"), "{ran}");
    assert!(ran.stdout.contains("the disk is full; the target is as it was"), "{ran}");
}

#[test]
fn a_mount_point_is_restored_into_and_stays() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    let restore = "$ETCDKIT snapshot restore s.db --audit-log a.jsonl --data-dir m";
    let script = format!(
        "mount -t tmpfs -o size=20m tmpfs m; mkdir m/lost+found; {restore}; echo code $?; \
         echo left $(ls -A m); {restore}; echo code $?; echo precious > m/stray; \
         {restore} --force; echo code $?; echo left $(ls -A m); mountpoint -q m && echo still\n"
    );
    let Some(ran) = with_mounts(&sandbox, &script) else { return };
    let codes: Vec<&str> = ran.stdout.lines().filter(|line| line.starts_with("code")).collect();
    assert_eq!(codes, ["code 0", "code 7", "code 0"], "{ran}");
    let left: Vec<&str> = ran.stdout.lines().filter(|line| line.starts_with("left")).collect();
    assert_eq!(left[0], "left lost+found member", "{ran}");
    assert!(left[1].contains("member member.before-") && left[1].contains("stray"), "{ran}");
    assert!(ran.stdout.contains("still"), "{ran}");
}

#[test]
fn a_read_only_place_is_an_error() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    let restore = "$ETCDKIT snapshot restore s.db --audit-log a.jsonl --data-dir";
    let script = format!(
        "mount -t tmpfs -o size=20m tmpfs m; mkdir m/empty; cp s.db m; mount -o remount,ro m; \
         {restore} m/out; echo code $?; {restore} m/empty; echo code $?; \
         $ETCDKIT snapshot verify m/s.db; echo code $?\n"
    );
    if let Some(ran) = with_mounts(&sandbox, &script) {
        let codes: Vec<&str> = ran.stdout.lines().filter(|line| line.starts_with("code")).collect();
        assert_eq!(codes, ["code 1", "code 1", "code 0"], "{ran}");
        assert!(ran.stdout.contains("Read-only file system"), "{ran}");
    }
    // A folder that may be read and not written, as somebody whom permissions bind.
    let parent = sandbox.mkdir("closed");
    fs::set_permissions(&parent, std::os::unix::fs::PermissionsExt::from_mode(0o555)).unwrap();
    let mut command = sandbox.command();
    command.args(["snapshot", "restore", "s.db", "--data-dir", "closed/out"]);
    if rustix::process::geteuid().is_root() {
        fs::set_permissions(sandbox.path("."), std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .unwrap();
        command.uid(65_534).gid(65_534).stderr(Stdio::null());
        if let Err(error) = command.spawn().and_then(|mut child| child.wait()) {
            return skipped(&format!("a folder that is closed: no other user: {error}"));
        }
    }
    Ran::of("restore into a closed folder", &mut command).expect(1, &["closed", "denied"]);
    assert_eq!(sandbox.names("closed"), Vec::<String>::new());
    fs::set_permissions(&parent, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
}
