//! What the program prints as etcdctl and etcdutl, held against the real ones.

use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::cluster_harness::{APP, Cluster, Plan, ROOT};
use crate::fake_etcd::{CORRUPT, FakeCluster, FakeEtcd, Member, NOSPACE};
use crate::programs::{Real, bounded, real};
use crate::support::{Ran, Sandbox, snapshot};

/// Longest run of one etcdctl.
const RUN: Duration = Duration::from_secs(30);
const FORMATS: [&str; 4] = ["simple", "table", "json", "fields"];

/// Runs the program under another name, with a clean environment.
fn ours(sandbox: &Sandbox, name: &str, words: &[&str]) -> Ran {
    let path = sandbox.path(name);
    if !sandbox.exists(name) {
        symlink(env!("CARGO_BIN_EXE_etcdkit"), &path).expect("a link");
    }
    let mut command = Command::new(path);
    command.env_clear().env("PATH", "/usr/bin:/bin").current_dir(sandbox.path("."));
    command.env("ETCDKIT_AUDIT_LOG", sandbox.path("audit.jsonl"));
    bounded(command.args(words), RUN)
}

/// Runs the real one.
fn theirs(real: &Real, sandbox: &Sandbox, program: &str, words: &[&str]) -> Ran {
    let mut command = real.program(program);
    bounded(command.current_dir(sandbox.path(".")).args(words), RUN)
}

/// What is printed without what moves: durations, the order of the healthy, the room in a table.
fn masked(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text
        .lines()
        .flat_map(|line| match serde_json::from_str::<Value>(line) {
            Ok(Value::Array(rows)) => rows.iter().map(Value::to_string).collect(),
            _ => vec![line.to_owned()],
        })
        .map(|line| {
            let words = line.split([' ', '\u{2500}']).filter(|word| !word.is_empty());
            words.map(masked_word).collect::<Vec<_>>().join(" ")
        })
        .collect();
    lines.sort();
    lines
}

fn masked_word(word: &str) -> String {
    let Some(at) = word.find("took\":\"") else {
        let number = ["ms", "\u{b5}s", "s"].iter().find_map(|unit| word.strip_suffix(unit));
        let is_time = number.is_some_and(|number| number.parse::<f64>().is_ok());
        return if is_time { "TIME".to_owned() } else { word.to_owned() };
    };
    let (before, rest) = word.split_at(at + 7);
    let (took, after) = rest.split_once('"').expect("the end of a text");
    // Without a login the real one has none.
    assert!(took.is_empty() || took.ends_with('s'), "{word}");
    format!("{before}TIME\"{after}")
}

/// The same without the raft indexes, which every login moves.
fn unindexed(lines: Vec<String>) -> Vec<String> {
    let index = |word: &str| {
        let bare = word.trim_end_matches(',');
        if bare.parse::<u16>().is_ok() { "INDEX".to_owned() } else { word.to_owned() }
    };
    let line = |line: String| match serde_json::from_str::<Value>(&line) {
        Ok(mut row) => {
            for key in ["raftIndex", "raftAppliedIndex"] {
                if let Some(number) = row.pointer_mut(&format!("/Status/{key}")) {
                    *number = Value::Null;
                }
            }
            row.to_string()
        }
        Err(_) => line.split(' ').map(index).collect::<Vec<_>>().join(" "),
    };
    lines.into_iter().map(line).collect()
}

/// Runs both until they say the same, for what a server counts moves between two questions.
#[track_caller]
fn agree(has_logins: bool, mut both: impl FnMut() -> (Ran, Ran)) -> Ran {
    let masked = |ran: &Ran| {
        let lines = masked(&ran.stdout);
        if has_logins { unindexed(lines) } else { lines }
    };
    let mut tries = 0;
    loop {
        let (theirs, ours) = both();
        let same = theirs.code == ours.code && masked(&theirs) == masked(&ours);
        if same {
            return ours;
        }
        tries += 1;
        assert!(tries < 5, "not the same: {theirs}{ours}");
    }
}

/// Each command in each format and with `--hex`.
fn every_line(cluster_wide: &str, one: &str) -> Vec<Vec<String>> {
    let mut lines = Vec::new();
    for format in FORMATS {
        for hex in ["--hex=false", "--hex"] {
            for (command, endpoints) in [
                ("endpoint status", cluster_wide),
                ("endpoint health", cluster_wide),
                ("endpoint hashkv", cluster_wide),
                ("endpoint status --cluster", one),
                ("member list", one),
                ("member list --consistency s", one),
                ("alarm list", one),
            ] {
                let line = format!("{command} --endpoints {endpoints} -w {format} {hex}");
                lines.push(line.split(' ').map(str::to_owned).collect());
            }
        }
    }
    lines
}

fn words(line: &[String]) -> Vec<&str> {
    line.iter().map(String::as_str).collect()
}

#[test]
fn fixed_answers_are_printed_as_etcdctl_prints_them() {
    let Some(real) = real() else { return };
    let odd = |member: Member, version: &str| member.version(version).revision(77);
    let three = FakeCluster::start([
        odd(Member::new("m1"), "3.5.35").sizes(1 << 30, 999_949_999, 0),
        odd(Member::new("m2"), "3.6.16").learner().sizes(20_480, 9, 5_000_000_000_000),
        odd(Member::new("m3"), "3.7.3").sizes(12_345_678, 12_345_678, 12_345_678_901),
    ]);
    three.members[2].set(|member| {
        member.downgrade = Some("3.6.0".to_owned());
        member.compact_revision = 70;
        member.raft_applied_index = 48;
        member.errors = vec!["one <&> two".to_owned(), "three".to_owned()];
    });
    let sandbox = Sandbox::new();
    let id = three.members[1].member().id;
    let alarms = [vec![], vec![(id, NOSPACE)], vec![(id, CORRUPT), (id, CORRUPT), (7, NOSPACE)]];
    for alarms in alarms {
        three.set(|member| member.alarms.clone_from(&alarms));
        for line in every_line(&three.endpoints(), &three.members[0].endpoint()) {
            let words = words(&line);
            agree(false, || {
                (theirs(&real, &sandbox, "etcdctl-3.7", &words), ours(&sandbox, "etcdctl", &words))
            });
        }
    }
}

/// Holds every line against the real etcdctl of 3.7, and the JSON of older ones against ours.
fn hold(real: &Real, cluster: &Cluster<'_>, user: Option<&str>) {
    let sandbox = Sandbox::new();
    let flags = cluster.flags();
    let user: Vec<String> = user.iter().map(|user| format!("--user={user}")).collect();
    for line in every_line(&cluster.endpoints(), &cluster.endpoint(0)) {
        let line = [&line[..], &flags[..], &user[..]].concat();
        let words = words(&line);
        let ran = agree(!user.is_empty(), || {
            (theirs(real, &sandbox, "etcdctl-3.7", &words), ours(&sandbox, "etcdctl", &words))
        });
        let is_json = words.contains(&"json") && words.contains(&"--hex=false");
        if !is_json || ran.code != 0 || words.contains(&"--consistency") {
            continue;
        }
        for version in ["3.5", "3.6"] {
            let old = theirs(real, &sandbox, &format!("etcdctl-{version}"), &words);
            contained(&old.json(), &ran.json(), &format!("etcdctl-{version} {words:?}"));
        }
    }
}

/// Every path that the older one has, ours has too, with the same value where it does not move.
#[track_caller]
fn contained(old: &Value, ours: &Value, at: &str) {
    match (old, ours) {
        (Value::Object(old), Value::Object(ours)) => {
            for (key, value) in old {
                let ours = ours.get(key).unwrap_or_else(|| panic!("{at}: no {key}"));
                contained(value, ours, &format!("{at}.{key}"));
            }
        }
        (Value::Array(old), Value::Array(ours)) => {
            assert_eq!(old.len(), ours.len(), "{at}");
            let by_endpoint = |rows: &[Value]| {
                let mut rows = rows.to_vec();
                rows.sort_by_key(|row| row["endpoint"].to_string());
                rows
            };
            for (old, ours) in by_endpoint(old).iter().zip(&by_endpoint(ours)) {
                contained(old, ours, at);
            }
        }
        _ => {
            let moves = [".took", ".raftIndex", ".raftAppliedIndex", ".dbSize", ".dbSizeInUse"];
            let is_same_kind = old.is_number() == ours.is_number();
            assert!(is_same_kind, "{at}: {old} and {ours}");
            if !moves.iter().any(|key| at.ends_with(key)) {
                assert_eq!(old, ours, "{at}");
            }
        }
    }
}

#[test]
fn old_and_new_members_side_by_side() {
    let Some(real) = real() else { return };
    let cluster = Plan::new("3.5").versions(&["3.5", "3.5", "3.6"]).start(&real);
    cluster.ctl(&["put", "/a", "b"]).expect(0, &["OK"]);
    hold(&real, &cluster, None);
}

#[test]
fn tls_auth_and_a_learner() {
    let Some(real) = real() else { return };
    // No etcd lets a user log in at a learner, so that is a cluster of its own.
    let cluster = Plan::new("3.7").learner().start(&real);
    hold(&real, &cluster, None);
    drop(cluster);
    let plan = Plan::new("3.6").versions(&["3.6", "3.6", "3.7"]).tls().auth();
    let mut cluster = plan.start(&real);
    hold(&real, &cluster, Some(ROOT));

    // A user who may little: the same exit codes, and what can be answered is.
    let sandbox = Sandbox::new();
    let flags = cluster.flags();
    let endpoints = cluster.endpoints();
    for user in [Some(APP), None] {
        for command in
            ["endpoint status", "endpoint health", "endpoint hashkv", "member list", "alarm list"]
        {
            let line = format!("{command} --endpoints {endpoints}");
            let mut words: Vec<&str> = line.split(' ').collect();
            words.extend(flags.iter().map(String::as_str));
            words.extend(user.iter().flat_map(|user| ["--user", user]));
            let theirs = theirs(&real, &sandbox, "etcdctl-3.7", &words);
            let ours = ours(&sandbox, "etcdctl", &words);
            assert_eq!(theirs.code, ours.code, "{theirs}{ours}");
            assert_eq!(masked(&theirs.stdout).len(), masked(&ours.stdout).len(), "{theirs}{ours}");
        }
    }

    // One down: the others are there, and the exit code is the same.
    let down = cluster.follower();
    cluster.kill(down);
    for command in ["endpoint status", "endpoint health", "endpoint hashkv"] {
        for format in FORMATS {
            let line = format!(
                "{command} -w {format} --command-timeout=2s --user={ROOT} --endpoints {endpoints}"
            );
            let mut words: Vec<&str> = line.split(' ').collect();
            words.extend(flags.iter().map(String::as_str));
            let theirs = theirs(&real, &sandbox, "etcdctl-3.7", &words);
            let ours = ours(&sandbox, "etcdctl", &words);
            if theirs.code == 2 {
                // It gives up at the first endpoint where it cannot log in; we go on.
                assert_eq!(ours.code, 1, "{theirs}{ours}");
                continue;
            }
            assert_eq!(theirs.code, ours.code, "{theirs}{ours}");
            let count = |ran: &Ran| masked(&ran.stdout).len();
            assert_eq!(count(&theirs), count(&ours), "{theirs}{ours}");
        }
    }
    let kit = cluster.kit(&sandbox, &["endpoint", "status", "-w", "json"]).expect(3, &[]);
    assert_eq!(kit.json().as_array().map(Vec::len), Some(2), "{kit}");
}

#[test]
fn one_member_down_is_shown_as_etcdctl_shows_it() {
    let Some(real) = real() else { return };
    let mut three = FakeCluster::start(["m1", "m2", "m3"].map(Member::new));
    three.members[1].stop();
    let sandbox = Sandbox::new();
    let endpoints = three.endpoints();
    for command in ["endpoint status", "endpoint hashkv", "endpoint health"] {
        for format in FORMATS {
            let line =
                format!("{command} -w {format} --command-timeout=1s --endpoints {endpoints}");
            let words: Vec<&str> = line.split(' ').collect();
            let theirs = theirs(&real, &sandbox, "etcdctl-3.7", &words);
            let ours = ours(&sandbox, "etcdctl", &words);
            assert_eq!((theirs.code, ours.code), (1, 1), "{theirs}{ours}");
            let lines = (masked(&theirs.stdout), masked(&ours.stdout));
            if command != "endpoint health" {
                assert_eq!(lines.0, lines.1, "{theirs}{ours}");
            }
            assert_eq!(lines.0.len(), lines.1.len(), "{theirs}{ours}");
            // The same lines on standard error; why, ours tells better than `deadline exceeded`.
            let own = |ran: &Ran| -> Vec<String> {
                let lines = ran.stderr.lines().filter(|line| !line.starts_with('{'));
                let until = |line: &str| line.split([':', '(']).next().unwrap_or("").to_owned();
                lines.map(until).collect()
            };
            assert_eq!(own(&theirs), own(&ours), "{theirs}{ours}");
        }
    }
}

#[test]
fn command_lines_end_as_etcdctls_and_etcdutls_do() {
    let Some(real) = real() else { return };
    let fake = FakeEtcd::start(Member::new("m1"));
    let endpoint = fake.endpoint();
    let sandbox = Sandbox::with(&snapshot("3.6"));
    for line in [
        "endpoint status --endpoints E",
        "--endpoints=E endpoint status",
        "endpoint --endpoints E status -w=json",
        "endp stat --endpoints E -wfields",
        "endpoint status extra --endpoints E",
        "endpoint status --cluster true --endpoints E",
        "endpoint status --cluster=maybe --endpoints E",
        "endpoint status --endpoints",
        "endpoint status --endpoints E -w foo",
        "endpoint status --endpoints E -w protobuf",
        "endpoint status --endpoints E --dial-timeout=x",
        "endpoint status --endpoints E --rev 3",
        "endpoint status --endpoints E --nope",
        "endpoint status --endpoints E -x",
        "endpoint status --endpoints E --debug=false --keepalive-time=3s --max-recv-bytes=9000000",
        "endpoint hashkv --rev 99 --endpoints E",
        "alarm list extra --endpoints E",
        "alarm list --endpoints E -w table",
        "member list --consistency x --endpoints E",
        "member list --endpoints E --cacert /nope",
        "member list --endpoints E --cert=",
        "member list --endpoints E --user=root:x",
        "snapshot save --endpoints E",
        "snapshot save a b --endpoints E",
        "snapshot save x --endpoints http://127.0.0.1:1 --command-timeout=1s",
        "nope",
        "version",
        "endpoint",
        "help",
        "--help",
        "endpoint status --help",
        "",
    ] {
        let line =
            line.replace(" E", &format!(" {endpoint}")).replace("=E", &format!("={endpoint}"));
        let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        let theirs = theirs(&real, &sandbox, "etcdctl-3.7", &words);
        let ours = ours(&sandbox, "etcdctl", &words);
        assert_eq!(theirs.code, ours.code, "{theirs}{ours}");
        let own = |ran: &Ran| ran.stderr.lines().find(|line| line.starts_with("Error: ")).is_some();
        assert_eq!(own(&theirs), own(&ours), "{theirs}{ours}");
    }
    for line in [
        "snapshot status s.db",
        "snap stat s.db -w json",
        "snapshot status s.db -w foo",
        "snapshot status s.db -w protobuf",
        "snapshot status",
        "snapshot status a b",
        "snapshot status nope.db",
        "snapshot status s.db --endpoints x",
        "hashkv",
        "hashkv nope.db",
        "defrag",
        "defrag --data-dir nope",
        "snapshot restore",
        "snapshot restore s.db --mark-compacted",
        "snapshot restore s.db --bump-revision 9",
        "snapshot restore s.db --name x --initial-cluster y=http://127.0.0.1:2380",
        "nope",
        "verify",
        "version",
        "snapshot",
        "",
    ] {
        let words: Vec<&str> = line.split(' ').filter(|word| !word.is_empty()).collect();
        let theirs = theirs(&real, &sandbox, "etcdutl-3.7", &words);
        let ours = ours(&sandbox, "etcdutl", &words);
        assert_eq!(theirs.code, ours.code, "{theirs}{ours}");
    }
}

#[test]
fn figures_of_files_are_etcdutls_in_every_format() {
    let Some(real) = real() else { return };
    for version in ["3.5", "3.6", "3.7"] {
        for command in ["snapshot status", "hashkv"] {
            for format in FORMATS {
                // The real one writes to the file that it looks at.
                let sandbox = Sandbox::with(&snapshot(version));
                sandbox.write("t.db", &snapshot(version));
                let of = |file: &str| format!("{command} {file} -w {format}");
                let (line, copy) = (of("s.db"), of("t.db"));
                let ours = ours(&sandbox, "etcdutl", &line.split(' ').collect::<Vec<_>>());
                let words: Vec<&str> = copy.split(' ').collect();
                let theirs = theirs(&real, &sandbox, "etcdutl-3.7", &words);
                assert_eq!((theirs.code, ours.code), (0, 0), "{theirs}{ours}");
                assert_eq!(theirs.stdout, ours.stdout, "{theirs}{ours}");
            }
        }
    }
}
