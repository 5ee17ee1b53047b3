//! The program under the name of etcd: what it refuses, and how it begins and ends, held against
//! real etcds.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::programs::{Real, Start, bounded, free_ports, real};
use crate::support::{Ran, Sandbox};

const LIMIT: Duration = Duration::from_secs(20);

/// Command lines that every etcd refuses, and the exit code.
const REFUSED: &[(&[&str], i32)] = &[
    (&["--nope"], 2),
    (&["foo"], 1),
    (&["--", "foo"], 1),
    (&["-"], 1),
    (&["--data-dir"], 2),
    (&["---x"], 2),
    (&["--=x"], 2),
    (&["--version=maybe"], 2),
    (&["--pre-vote", "false"], 1),
    (&["--pre-vote=maybe"], 2),
    (&["--snapshot-count=-1"], 2),
    (&["--snapshot-count=99999999999999999999999"], 2),
    (&["--max-wals=0x"], 2),
    (&["--quota-backend-bytes=1GB"], 2),
    (&["--grpc-keepalive-min-time=5"], 2),
    (&["--grpc-keepalive-min-time="], 2),
    (&["--backend-batch-limit=abc"], 2),
    (&["--max-concurrent-streams=5000000000"], 2),
    (&["--max-concurrent-streams=x"], 2),
    (&["--listen-client-urls=localhost:2379"], 2),
    (&["--listen-client-urls=http://localhost"], 2),
    (&["--listen-client-urls=http://127.0.0.1:2379/path"], 2),
    (&["--listen-client-urls=ftp://127.0.0.1:2379"], 2),
    (&["--listen-client-urls=http://127.0.0.1:2379,"], 2),
    (&["--listen-client-urls=http://[::1:2379"], 2),
    (&["--listen-client-urls=http://127.0.0.1:abc"], 2),
    (&["--listen-client-urls=:2379"], 2),
    (&["--listen-client-urls=%zz"], 2),
    (&["--listen-client-urls="], 1),
    (&["--listen-client-urls=http://127.0.0.1:2379"], 1),
    (&["--listen-client-urls=http://foo.bar:2379", "--advertise-client-urls=http://a:1"], 1),
    (&["--listen-peer-urls=http://foo:2380"], 1),
    (&["--listen-metrics-urls=http://foo:2380"], 1),
    (&["--listen-client-http-urls=http://foo:2380"], 1),
    (&["--initial-advertise-peer-urls=http://:2380"], 1),
    (&["--advertise-client-urls=http://:2379"], 1),
    (&["--cors=foo"], 2),
    (&["--initial-cluster-state=foo"], 2),
    (&["--discovery-fallback=proxy"], 1),
    (&["--discovery-fallback=foo"], 2),
    (&["--v2-deprecation=foo"], 2),
    (&["--heartbeat-interval=0"], 1),
    (&["--heartbeat-interval=100", "-heartbeat-interval", "0"], 1),
    (&["--election-timeout=0"], 1),
    (&["--heartbeat-interval=500"], 1),
    (&["--election-timeout=60000"], 1),
    (&["--auto-compaction-mode=foo"], 1),
    (&["--auto-compaction-mode="], 1),
    (&["--compact-hash-check-time=0s"], 1),
    (&["--compact-hash-check-time=-90s"], 1),
    (&["--tls-min-version=TLS1.0"], 1),
    (&["--tls-min-version=TLS1.3", "--tls-max-version=TLS1.2"], 1),
    (&["--tls-min-version=TLS1.3", "--cipher-suites=TLS_AES_128_GCM_SHA256"], 1),
    (&["--cipher-suites=foo"], 1),
    (&["--feature-gates=Foo=true"], 2),
    (&["--feature-gates=CompactHashCheck"], 2),
    (&["--feature-gates=CompactHashCheck=maybe"], 2),
    (&["--feature-gates=LeaseCheckpointPersist=true"], 1),
    (&["--logger=capnslog"], 1),
    (&["--logger=foo"], 1),
    (&["--log-format=foo"], 1),
    (&["--log-outputs=default,stderr"], 1),
    (&["--log-outputs=/nonexistent/x"], 1),
    (&["--enable-log-rotation"], 1),
    (&["--discovery-srv=a.invalid", "--initial-cluster=a=http://a:1"], 1),
    (&["--discovery-token=x"], 1),
    (&["--discovery-endpoints=x"], 1),
    (&["--discovery-endpoints=,", "--discovery-token=y"], 1),
    (&["--enable-distributed-tracing", "--distributed-tracing-sampling-rate=-1"], 1),
    (&["--config-file=/nonexistent", "--heartbeat-interval=0"], 1),
];

/// Those that an etcd refuses once it listens, which it is to do where nobody else does.
const NOT_STARTED: &[&[&str]] = &[
    &["--auto-compaction-retention=abc"],
    &["--auth-token=foo"],
    &["--cipher-suites=foo"],
    &["--initial-cluster=a=http://b:1"],
    &["--initial-cluster=default=foo"],
    &["--name=infra1", "--initial-cluster=infra1=http://127.0.0.1:2390"],
    &["--name="],
    &["--listen-client-urls=https://127.0.0.1:0"],
    &["--listen-client-http-urls=https://127.0.0.1:0"],
    &["--listen-client-urls=http://192.0.2.1:0"],
];

/// Those that only 3.6 knows.
const REFUSED_BY_36: &[(&[&str], i32)] = &[
    (&["--experimental-corrupt-check-time=1m", "--corrupt-check-time=1m"], 1),
    (&["--experimental-initial-corrupt-check=true", "--feature-gates=InitialCorruptCheck=true"], 1),
    (
        &[
            "--experimental-warning-unary-request-duration=1s",
            "--warning-unary-request-duration=1s",
        ],
        1,
    ),
    (&["--experimental-compact-hash-check-time=0s"], 1),
];

/// Variables, and the exit code.
const VARIABLES: &[(&[&str], &str, &str)] = &[
    (&["--name=a"], "ETCD_NAME", "b"),
    (&[], "ETCD_SNAPSHOT_COUNT", "abc"),
    (&[], "ETCD_LISTEN_CLIENT_URLS", "foo"),
    (&[], "ETCD_HEARTBEAT_INTERVAL", "0"),
    (&[], "ETCD_CONFIG_FILE", "/nonexistent"),
];

/// Configuration files that every etcd refuses.
const FILES: &[&str] = &[
    "heartbeat-interval: 0\n",
    "foo: bar\nheartbeat-interval: 0\n",
    "heartbeat-interval: abc\n",
    "heartbeat-interval: \"5\"\n",
    "heartbeat-interval: 5.5\n",
    "HEARTBEAT-INTERVAL: 0\n",
    "name: 5\n",
    "name: [a]\n",
    "name: null\nheartbeat-interval: 0\n",
    "grpc-keepalive-min-time: 10m\n",
    "strict-reconfig-check: \"true\"\n",
    "strict-reconfig-check: yes\nheartbeat-interval: 0\n",
    "snapshot-count: 1e3\nheartbeat-interval: 0\n",
    "snapshot-count: -1\n",
    "quota-backend-bytes: 9999999999999999999\n",
    "max-concurrent-streams: 5000000000\n",
    "log-outputs: stderr\n",
    "log-outputs: [default, stderr]\n",
    "cipher-suites: foo\n",
    "client-transport-security: foo\n",
    "client-transport-security:\n  allowed-cn: foo\n",
    "listen-client-urls: foo\n",
    "listen-client-urls: http://foo:1\n",
    "feature-gates: Foo=true\n",
    "initial-cluster-state: foo\n",
    "discovery-config: {client: {endpoints: [a]}}\n",
    "- a\n",
    "foo\n",
    "{\"name\": \"x\", \"heartbeat-interval\": 0}\n",
];

/// What a program that refused said: its first line, or the error of its last line of a log.
#[track_caller]
fn said(ran: &Ran) -> String {
    let text = format!("{}{}", ran.stderr, ran.stdout);
    let error = |line: &str| {
        let line: Value = serde_json::from_str(line).ok()?;
        let error = ["error", "environment-variable"].iter().find_map(|key| line.get(*key));
        let is_bad = matches!(line["level"].as_str(), Some("warn" | "error" | "fatal"));
        is_bad.then_some(error)??.as_str().map(str::to_owned)
    };
    let logged = text.lines().filter_map(error).next_back();
    logged.or_else(|| text.lines().next().map(str::to_owned)).unwrap_or_default()
}

/// Our program in a sandbox, by the name of etcd.
fn linked(sandbox: &Sandbox) -> Command {
    let etcd = sandbox.path("etcd");
    if !etcd.exists() {
        symlink(env!("CARGO_BIN_EXE_etcdkit"), &etcd).expect("a link");
    }
    let mut command = Command::new(etcd);
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command
}

/// Runs both; they must say the same.
#[track_caller]
fn same(
    real: &Real,
    sandbox: &Sandbox,
    version: &str,
    words: &[&str],
    more: &[(&str, &str)],
) -> i32 {
    let theirs = real.program(&format!("etcd-{version}"));
    let mut ours = linked(sandbox);
    if version == "3.6" {
        ours.env("ETCD_COMPAT", "3.6");
    }
    let [theirs, ours] = [theirs, ours].map(|mut command| {
        let fresh = Sandbox::new();
        command.args(words).envs(more.iter().copied()).current_dir(fresh.path("."));
        bounded(&mut command, LIMIT)
    });
    assert_eq!(ours.code, theirs.code, "{version} {words:?} {more:?}: {ours}\n{theirs}");
    assert_eq!(said(&ours), said(&theirs), "{version} {words:?} {more:?}");
    ours.code
}

#[test]
fn what_etcd_refuses_is_refused_with_its_words_and_codes() {
    let Some(real) = real() else { return };
    let sandbox = Sandbox::new();
    for version in ["3.6", "3.7"] {
        let more = if version == "3.6" { REFUSED_BY_36 } else { &[] };
        for (words, code) in REFUSED.iter().chain(more) {
            assert_eq!(same(&real, &sandbox, version, words, &[]), *code, "{words:?}");
        }
        let elsewhere = [
            "--listen-peer-urls=http://127.0.0.1:0",
            "--listen-client-urls=http://127.0.0.1:0",
            "--advertise-client-urls=http://127.0.0.1:1",
        ];
        for words in NOT_STARTED {
            let words = [&elsewhere[..], words].concat();
            assert_eq!(same(&real, &sandbox, version, &words, &[]), 1, "{words:?}");
        }
        for (words, name, value) in VARIABLES {
            assert_eq!(same(&real, &sandbox, version, words, &[(name, value)]), 1, "{name}");
        }
        for (at, file) in FILES.iter().enumerate() {
            let path = sandbox.path(&format!("{at}.yaml"));
            fs::write(&path, file).expect("a file");
            let flag = format!("--config-file={}", path.display());
            assert_eq!(same(&real, &sandbox, version, &[&flag], &[]), 1, "{file}");
        }
    }
}

#[test]
fn linked_as_etcd_it_serves_ends_by_its_signal_and_a_real_etcd_goes_on() {
    let Some(real) = real() else { return };
    for version in ["3.6", "3.7"] {
        let sandbox = Sandbox::new();
        let [client, peer] = free_ports();
        let (client, peer) =
            (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let data_dir = sandbox.text("data");
        let command = |more: &[&str]| {
            let mut command = linked(&sandbox);
            command.args(["--name=m1", "--data-dir", &data_dir, "--initial-cluster-token=x"]);
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.arg(format!("--initial-cluster=m1={peer}")).arg(format!("--compat={version}"));
            command.args(more);
            command
        };
        let mut etcd = real.launch(command(&[]), &data_dir, client.clone());
        etcd.come_up().expect("a server");
        etcd.ctl(&["put", "/a", "b"]).expect(0, &["OK"]);
        for line in etcd.log().lines() {
            let line: Value = serde_json::from_str(line).expect("a line of JSON");
            for key in ["level", "ts", "caller", "msg"] {
                assert!(line[key].as_str().is_some_and(|text| !text.is_empty()), "{line}");
            }
            let level = line["level"].as_str();
            assert!(!matches!(level, Some("error" | "panic" | "fatal")), "{line}");
        }

        // A second one is refused at once, over the directory and over the port.
        let [other] = free_ports();
        let other = format!("http://127.0.0.1:{other}");
        let began = Instant::now();
        let elsewhere: [&str; 3] = ["--listen-peer-urls", &other, "--listen-client-urls"];
        let [free] = free_ports();
        let free = format!("http://127.0.0.1:{free}");
        let second = bounded(
            command([&elsewhere[..], &[&free]].concat().as_slice()).current_dir(sandbox.path(".")),
            LIMIT,
        );
        assert_eq!(second.code, 1, "{second}");
        assert!(said(&second).contains("is in use"), "{second}");
        let third = bounded(&mut command(&["--data-dir", &sandbox.text("new")]), LIMIT);
        assert_eq!(third.code, 1, "{third}");
        assert!(said(&third).ends_with("bind: address already in use"), "{third}");
        assert!(!sandbox.exists("new"), "a directory was founded for nothing");
        assert!(began.elapsed() < Duration::from_secs(10));

        // 128 and the signal's number is what a shell says of a program that a signal ended.
        let log = etcd.log_path().to_owned();
        assert_eq!(etcd.stop_with_code(), 143);
        let log = fs::read_to_string(log).expect("a log");
        assert!(
            log.lines().last().is_some_and(|line| line.contains("closed etcd server")),
            "{log}"
        );

        let start = Start { data_dir: sandbox.path("data"), name: "m1", ..Start::default() };
        let etcd = real.etcd(version, &start);
        etcd.ctl(&["get", "/a", "--print-value-only"]).expect(0, &["b"]);
        etcd.stop();
    }
}

#[test]
fn it_says_who_it_is_as_etcd_does() {
    let Some(real) = real() else { return };
    let sandbox = Sandbox::new();
    for version in ["3.6", "3.7"] {
        let theirs = real.ok(&format!("etcd-{version}"), &["--version"]);
        let words = ["--version".to_owned(), format!("--compat={version}")];
        let ours = bounded(linked(&sandbox).args(words), LIMIT).expect(0, &[]);
        assert_eq!(ours.stdout.lines().next(), theirs.stdout.lines().next());
        let keys = |text: &str| {
            let keys = text.lines().filter_map(|line| line.split_once(": "));
            keys.map(|(key, _)| key.to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(keys(&ours.stdout), keys(&theirs.stdout));

        // Every flag that its help names is known.
        let help = real.ok(&format!("etcd-{version}"), &["--help"]).stdout;
        let flags = help.lines().filter_map(|line| line.trim().strip_prefix("--"));
        let own = bounded(linked(&sandbox).arg("--help"), LIMIT).expect(0, &[]).stdout;
        let mut count = 0;
        for flag in flags {
            let name = flag.split([' ', '=']).next().unwrap_or_default();
            assert!(own.contains(&format!("  --{name} '")), "{version}: --{name}");
            count += 1;
        }
        assert!(count > 100, "{count} flags");
    }
    for command in ["gateway", "grpc-proxy"] {
        let ran = bounded(linked(&sandbox).arg(command), LIMIT);
        assert_eq!(ran.code, 1, "{ran}");
        assert!(ran.stderr.contains(command), "{ran}");
    }
}
