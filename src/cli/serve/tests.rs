//! Command lines, variables and files against what real etcds answered.

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::Duration;

use super::config::Config;
use super::flags::Effect;
use super::{Asked, Refusal, Told, parse};
use crate::store::Compat;
use crate::store::auto_compact::Retention;
use crate::store::lines::{Form, Level, Log, Output};
use crate::store::serve::jwt;

fn words(line: &[&str]) -> Vec<OsString> {
    line.iter().map(OsString::from).collect()
}

fn ask(
    line: &[&str],
    variables: &[(&str, &str)],
    file: Option<&str>,
) -> Result<Asked, Box<Refusal>> {
    let variables: Vec<_> =
        variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
    let read = |path: &str| match file {
        Some(text) if path == "etcd.yaml" => Ok(text.as_bytes().to_vec()),
        _ => Err(format!("open {path}: no such file or directory")),
    };
    parse(&words(line), &variables, &read)
}

fn config(line: &[&str]) -> Config {
    match ask(line, &[], None).unwrap() {
        Asked::Serve(config) => *config,
        other => panic!("{other:?}"),
    }
}

fn of_file(file: &str) -> Config {
    match ask(&["--config-file=etcd.yaml"], &[], Some(file)).unwrap() {
        Asked::Serve(config) => *config,
        other => panic!("{other:?}"),
    }
}

fn refusal(line: &[&str]) -> (u8, String) {
    let refusal = ask(line, &[], None).unwrap_err();
    (refusal.code, refusal.text)
}

fn texts(urls: &[super::url::Url]) -> Vec<&str> {
    urls.iter().map(super::url::Url::as_str).collect()
}

#[test]
fn nothing_gives_etcds_defaults() {
    let config = config(&[]);
    assert_eq!(config.compat, None);
    assert_eq!(config.member.name, "default");
    assert_eq!(config.member.data_dir.to_str(), Some("default.etcd"));
    assert_eq!(texts(&config.listen.client), ["http://localhost:2379"]);
    assert_eq!(texts(&config.advertise_client), ["http://localhost:2379"]);
    assert_eq!(texts(&config.listen.peer), ["http://localhost:2380"]);
    assert!(config.listen.client_http.is_empty() && config.listen.metrics.is_empty());
    assert_eq!(config.founding.initial_cluster, "default=http://localhost:2380");
    assert_eq!(config.member.election, Duration::from_secs(1));
    assert_eq!((config.storage.snapshot_count, config.storage.wals_max), (10_000, 5));
    assert_eq!((config.limits.txn_ops_max, config.limits.request_bytes_max), (128, 1_572_864));
    assert_eq!(config.limits.streams_max, u32::MAX);
    assert_eq!(config.limits.ping_interval, Duration::from_secs(7200));
    assert_eq!(config.storage.auto_compaction, Retention::Off);
    assert_eq!(config.http.hosts, ["*"]);
    assert_eq!(config.warning_unary, Duration::from_millis(300));
    assert_eq!((config.log.level, config.log.form), (Level::Info, Form::Json));
    assert_eq!(config.log.outputs, [Output::Stderr]);
    assert!(config.gates.is_on("FastLeaseKeepAlive") && !config.gates.is_on("CompactHashCheck"));
}

#[test]
fn a_manifest_of_kubeadm_is_taken_as_it_is() {
    let config = config(&[
        "--advertise-client-urls=https://10.0.0.1:2379",
        "--cert-file=/pki/server.crt",
        "--client-cert-auth=true",
        "--data-dir=/var/lib/etcd",
        "--experimental-initial-corrupt-check=true",
        "--experimental-watch-progress-notify-interval=5s",
        "--initial-advertise-peer-urls=https://10.0.0.1:2380",
        "--initial-cluster=cp=https://10.0.0.1:2380",
        "--key-file=/pki/server.key",
        "--listen-client-urls=https://127.0.0.1:2379,https://10.0.0.1:2379",
        "--listen-metrics-urls=http://127.0.0.1:2381",
        "--listen-peer-urls=https://10.0.0.1:2380",
        "--name=cp",
        "--peer-cert-file=/pki/peer.crt",
        "--peer-client-cert-auth=true",
        "--peer-key-file=/pki/peer.key",
        "--peer-trusted-ca-file=/pki/ca.crt",
        "--snapshot-count=10000",
        "--trusted-ca-file=/pki/ca.crt",
    ]);
    let urls = ["https://10.0.0.1:2379", "https://127.0.0.1:2379"];
    assert_eq!(texts(&config.listen.client), urls);
    let tls = [&config.client_tls, &config.peer_tls];
    assert!(tls.iter().all(|tls| tls.wants_client_certificates() && !tls.is_empty()));
    assert_eq!(config.client_tls.cert_file.unwrap().to_str(), Some("/pki/server.crt"));
    assert_eq!(config.client_tls.min_version, "TLS1.2");
    assert!(config.gates.is_on("InitialCorruptCheck"));
    assert_eq!(config.watch_progress_interval, Duration::from_secs(5));
    assert_eq!(config.founding.check("cp", &|_| None), Ok(()));
    let notes: Vec<_> = config.notes.iter().map(|note| note.message.as_str()).collect();
    assert_eq!(
        notes,
        [
            "--experimental-initial-corrupt-check is no flag of etcd 3.7: use \
             --feature-gates=InitialCorruptCheck=true",
            "--experimental-watch-progress-notify-interval is no flag of etcd 3.7: use \
             --watch-progress-notify-interval",
            "the feature gate InitialCorruptCheck has no effect: there are no other members",
        ]
    );
}

#[test]
fn flags_are_read_as_go_reads_them() {
    let line = ["-name", "a", "--name=b", "--max-wals", "0x10", "-vv", "--pre-vote", "--"];
    let config = config(&line);
    assert_eq!((config.member.name.as_str(), config.storage.wals_max), ("b", 16));
    for (line, text) in [
        (&["--nope"][..], "flag provided but not defined: -nope"),
        (&["--data-dir"], "flag needs an argument: -data-dir"),
        (&["---x"], "bad flag syntax: ---x"),
        (&["--=x"], "bad flag syntax: --=x"),
        (&["--version=maybe"], "invalid boolean value \"maybe\" for -version: parse error"),
        (&["--max-wals=-1"], "invalid value \"-1\" for flag -max-wals: parse error"),
        (
            &["--max-concurrent-streams=5000000000"],
            "invalid value \"5000000000\" for flag -max-concurrent-streams: strconv.ParseUint: \
             parsing \"5000000000\": value out of range",
        ),
        (
            &["--initial-cluster-state=foo"],
            "invalid value \"foo\" for flag -initial-cluster-state: invalid value",
        ),
        (
            &["--v2-deprecation=foo"],
            "invalid value \"foo\" for flag -v2-deprecation: invalid value \"foo\"",
        ),
        (
            &["--feature-gates=Foo=true"],
            "invalid value \"Foo=true\" for flag -feature-gates: unrecognized feature gate: Foo",
        ),
    ] {
        let refusal = ask(line, &[], None).unwrap_err();
        assert_eq!((refusal.told, refusal.code, refusal.text.as_str()), (Told::Usage, 2, text));
    }
    for (line, stray) in [
        (&["foo", "--nope"][..], "foo"),
        (&["--", "--name"], "--name"),
        (&["-"], "-"),
        (&["--pre-vote", "false"], "false"),
    ] {
        assert_eq!(refusal(line), (1, format!("\"{stray}\" is not a valid flag")));
    }
    assert!(matches!(ask(&["--help"], &[], None), Ok(Asked::Help)));
    assert!(matches!(ask(&["--name", "a", "-h", "--nope"], &[], None), Ok(Asked::Help)));
    assert!(matches!(
        ask(&["--version", "--heartbeat-interval=0"], &[], None),
        Ok(Asked::Version(None))
    ));
}

#[test]
fn what_does_not_fit_is_refused_with_etcds_words() {
    let listen = "--listen-client-urls=http://127.0.0.1:2379";
    for (line, text) in [
        (&["--heartbeat-interval=0"][..], "--heartbeat-interval must be >0 (set to 0ms)"),
        (&["--election-timeout=0"], "--election-timeout must be >0 (set to 0ms)"),
        (
            &["--heartbeat-interval=500"],
            "--election-timeout[1000ms] should be at least as 5 times as \
             --heartbeat-interval[500ms]",
        ),
        (
            &["--election-timeout=60000"],
            "--election-timeout[60000ms] is too long, and should be set less than 50000ms",
        ),
        (
            &[listen],
            "--advertise-client-urls is required when --listen-client-urls is set explicitly",
        ),
        (
            &["--listen-peer-urls=http://foo:2380"],
            "expected IP in URL for binding (http://foo:2380)",
        ),
        (
            &["--advertise-client-urls=http://:2379"],
            "--advertise-client-urls \"http://:2379\" must be in the format \"host:port\", \
             \"unix:/path/to/socket\" or \"unixs:/path/to/socket\" (unexpected empty host \
             (http://:2379))",
        ),
        (
            &["--compat=3.6", "--advertise-client-urls=http://:2379"],
            "--advertise-client-urls \"http://:2379\" must be \"host:port\" (unexpected empty host \
             (http://:2379))",
        ),
        (
            &["--discovery-srv=a.invalid", "--initial-cluster=a=http://a:1"],
            "multiple discovery or bootstrap flags are set. Choose one of \"initial-cluster\", \
             \"discovery-endpoints\" or \"discovery-srv\"",
        ),
        (&["--discovery-token=x"], "both --discovery-token and --discovery-endpoints must be set"),
        (
            &["--discovery-endpoints=,", "--discovery-token=x"],
            "--discovery-endpoints must not contain empty endpoints",
        ),
        (&["--auto-compaction-mode=foo"], "unknown auto-compaction-mode \"foo\""),
        (&["--auto-compaction-mode="], "undefined auto-compaction-mode"),
        (
            &["--auto-compaction-retention=abc"],
            "error parsing CompactionRetention: time: invalid duration \"abc\"",
        ),
        (&["--compact-hash-check-time=-1m"], "--compact-hash-check-time must be >0 (set to -1m0s)"),
        (
            &["--experimental-compact-hash-check-time=0s"],
            "--experimental-compact-hash-check-time must be >0 (set to 0s)",
        ),
        (
            &["--tls-min-version=TLS1.0"],
            "unexpected TLS version \"TLS1.0\" (must be one of: TLS1.2, TLS1.3)",
        ),
        (
            &["--tls-min-version=TLS1.3", "--tls-max-version=TLS1.2"],
            "min version (TLS1.3) is greater than max version (TLS1.2)",
        ),
        (
            &["--tls-min-version=TLS1.3", "--cipher-suites=TLS_AES_128_GCM_SHA256"],
            "cipher suites cannot be configured when only TLS1.3 is enabled",
        ),
        (&["--cipher-suites=foo"], "unexpected TLS cipher suite \"foo\""),
        (
            &["--feature-gates=LeaseCheckpointPersist=true"],
            "enabling feature gate LeaseCheckpointPersist requires enabling feature gate \
             LeaseCheckpoint",
        ),
        (&["--logger=capnslog"], "--logger=capnslog is removed in v3.5"),
        (&["--log-format=foo"], "unknown log format: foo, supported values json, console"),
        (&["--log-outputs=default,stderr"], "multi logoutput for \"default\" is not supported yet"),
        (
            &["--enable-log-rotation"],
            "--log-outputs requires a single file path when --log-rotate-config-json is defined",
        ),
        (
            &["--corrupt-check-time=1m", "--experimental-corrupt-check-time=1m"],
            "cannot set --experimental-corrupt-check-time and --corrupt-check-time at the same \
             time, please use --corrupt-check-time only",
        ),
        (
            &["--experimental-initial-corrupt-check", "--feature-gates=InitialCorruptCheck=true"],
            "cannot specify both flags: --experimental-initial-corrupt-check=true and \
             --feature-gates=InitialCorruptCheck=true at the same time, please just use \
             --feature-gates=InitialCorruptCheck=true",
        ),
        (
            &["--listen-client-urls=https://127.0.0.1:1", "--advertise-client-urls=https://a:1"],
            "TLS key/cert (--cert-file, --key-file) must be provided for client url \
             https://127.0.0.1:1 with HTTPS scheme",
        ),
        (
            &["--listen-peer-urls=https://127.0.0.1:1"],
            "cannot listen on TLS for 127.0.0.1:1: KeyFile and CertFile are not presented",
        ),
        (
            &["--listen-metrics-urls=https://127.0.0.1:1"],
            "client TLS key/cert (--cert-file, --key-file) must be provided for metrics secure url",
        ),
        (&["--auth-token=foo"], "auth: invalid auth options"),
        (&["--auth-token=jwt,sign-method"], "auth: invalid auth options"),
        (&["--auth-token=simple,a=b=c"], "auth: invalid auth options"),
        (&["--auth-token=jwt,ttl=5s,ttl=5s"], "auth: invalid auth options"),
        (&["--auth-token=jwt,ttl=-5s"], "auth: invalid auth options"),
        (
            &["--discovery-fallback=proxy"],
            "v2 proxy is deprecated, and --discovery-fallback can't be configured as \"proxy\"",
        ),
        // What etcd could do, and this store cannot.
        (
            &["--discovery-srv=a.invalid"],
            "--discovery-srv is refused: this store is one member and looks for no other",
        ),
        (&["--enable-v2"], "--enable-v2 is refused: the v2 API is not there"),
    ] {
        assert_eq!(refusal(line), (1, text.to_owned()), "{line:?}");
    }
    assert_eq!(refusal(&["--log-level=foo"]), (2, "unrecognized level: \"foo\"".to_owned()));
    assert!(ask(&["--enable-v2=false", "--proxy=off", "--discovery="], &[], None).is_ok());
}

#[test]
fn variables_count_where_no_flag_is_given() {
    let variables = [
        ("ETCD_NAME", "a"),
        ("ETCD_MAX_WALS", ""),
        ("ETCD_VERIFY", "all"),
        ("ETCD_FOO", "secret"),
        ("ETCDCTL_API", "3"),
        ("ETCD_COMPAT", "3.6"),
    ];
    let Asked::Serve(config) = ask(&["--max-wals=3"], &variables[..1], None).unwrap() else {
        panic!("not served");
    };
    assert_eq!((config.member.name.as_str(), config.storage.wals_max), ("a", 3));
    let Asked::Serve(config) = ask(&[], &variables, None).unwrap() else { panic!("not served") };
    assert_eq!(config.compat, Some(Compat::V3_6));
    let (log, kept) = Log::kept();
    config.notes.iter().for_each(|note| note.write(&log));
    let lines: Vec<String> = kept.take().iter().map(ToString::to_string).collect();
    let unknown = "\"unrecognized environment variable\",\"environment-variable\":\"ETCD_FOO\"";
    assert!(lines.iter().any(|line| line.contains(unknown)), "{lines:?}");
    assert!(!lines.concat().contains("secret") && !lines.concat().contains("VERIFY"));

    let bad = |line: &[&str], variables: &[(&str, &str)]| {
        let refusal = ask(line, variables, None).unwrap_err();
        assert_eq!(refusal.code, 1);
        let (log, kept) = Log::kept();
        assert_eq!(refusal.tell(&log), None);
        kept.take().last().unwrap().clone()
    };
    let line = bad(&["--name=a"], &[("ETCD_NAME", "b")]);
    assert_eq!(line["level"], "fatal");
    assert_eq!(line["environment-variable"], "ETCD_NAME");
    let line = bad(&[], &[("ETCD_SNAPSHOT_COUNT", "abc")]);
    assert_eq!(line["error"], "invalid value \"abc\" for ETCD_SNAPSHOT_COUNT: parse error");
    assert_eq!((&line["level"], &line["msg"]), (&"warn".into(), &"failed to verify flags".into()));
}

#[test]
fn a_file_wins_over_flags_and_variables() {
    let file = "# a comment\nname: 'a'\nheartbeat-interval: 50\ngrpc-keepalive-min-time: 1000000\n\
                log-outputs: [stdout]\nlog-format: console\nstrict-reconfig-check: no\n\
                wal-dir:\nsnapshot-count: 1e3\nfoo: bar\nlisten-client-urls: http://127.0.0.1:1\n\
                client-transport-security:\n  cert-file: c\n  key-file: k\n  allowed-cn: [x]\n\
                socket-options: {reuse-port: true}\nfeature-gates: CompactHashCheck=true\n";
    let line = ["--config-file=etcd.yaml", "--compat=3.6", "--heartbeat-interval=0"];
    let asked = ask(&line, &[("ETCD_NAME", "b")], Some(file)).unwrap();
    let Asked::Serve(config) = asked else { panic!("not served") };
    assert_eq!((config.member.name.as_str(), config.compat), ("a", Some(Compat::V3_6)));
    assert_eq!(config.member.heartbeat, Duration::from_millis(50));
    assert_eq!(
        (config.log.outputs.as_slice(), config.log.form),
        (&[Output::Stdout][..], Form::Console)
    );
    assert!(config.listen.reuse_port);
    assert_eq!(config.storage.snapshot_count, 1000);
    assert_eq!(config.client_tls.allowed_names, ["x"]);
    // A file takes no default back.
    assert_eq!(texts(&config.advertise_client), ["http://localhost:2379"]);
    assert!(config.gates.is_on("CompactHashCheck"));
    let notes: HashMap<_, _> =
        config.notes.iter().map(|note| (note.message.as_str(), &note.fields)).collect();
    let unread = notes["the configuration file has a key that nobody reads"];
    assert_eq!(*unread, [("key", "foo".to_owned())]);
    assert_eq!(of_file("").member.name, "default");
    assert_eq!(of_file("{\"name\": \"x\"}").member.name, "x");
    assert_eq!(of_file("NAME: x\ninitial-cluster-state: \"\"").member.name, "x");
}

#[test]
fn a_file_that_does_not_fit_is_refused_with_etcds_words() {
    let json = "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal";
    let place = "into Go struct field configYAML";
    for (file, text) in [
        ("heartbeat-interval: 0", "--heartbeat-interval must be >0 (set to 0ms)".to_owned()),
        (
            "heartbeat-interval: abc",
            format!("{json} string {place}.Config.heartbeat-interval of type uint"),
        ),
        (
            "heartbeat-interval: 5.5",
            format!("{json} number 5.5 {place}.Config.heartbeat-interval of type uint"),
        ),
        ("name: 5", format!("{json} number {place}.Config.name of type string")),
        (
            "grpc-keepalive-min-time: 10m",
            format!("{json} string {place}.Config.grpc-keepalive-min-time of type time.Duration"),
        ),
        (
            "strict-reconfig-check: \"true\"",
            format!("{json} string {place}.Config.strict-reconfig-check of type bool"),
        ),
        (
            "snapshot-count: -1",
            format!("{json} number -1 {place}.Config.snapshot-count of type uint64"),
        ),
        (
            "log-outputs: stderr",
            format!("{json} string {place}.Config.log-outputs of type []string"),
        ),
        ("name: [a]", format!("{json} array {place}.Config.name of type string")),
        ("- a", format!("{json} array into Go value of type embed.configYAML")),
        (
            "client-transport-security: foo",
            format!(
                "{json} string {place}.configJSON.client-transport-security of type \
                 embed.securityConfig"
            ),
        ),
        (
            "listen-client-urls: foo",
            "unexpected error setting up listen-client-urls: URL scheme must be http, https, unix, \
             or unixs: foo"
                .to_owned(),
        ),
        ("feature-gates: Foo=true", "unrecognized feature gate: Foo".to_owned()),
        ("initial-cluster-state: foo", "unexpected clusterState \"foo\"".to_owned()),
        (
            "discovery-config: {client: {endpoints: [a]}}",
            "both --discovery-token and --discovery-endpoints must be set".to_owned(),
        ),
    ] {
        let refusal = ask(&["--config-file=etcd.yaml"], &[], Some(file)).unwrap_err();
        assert_eq!((refusal.code, refusal.text), (1, text), "{file}");
    }
    let refusal = ask(&["--config-file=x"], &[], None).unwrap_err();
    assert_eq!(refusal.text, "open x: no such file or directory");
    for file in ["a: b: c", "a: *x", "a: 1\n\tb: 2", "a: [", "\u{0}"] {
        let refusal = ask(&[], &[("ETCD_CONFIG_FILE", "etcd.yaml")], Some(file)).unwrap_err();
        let words = "error converting YAML to JSON: yaml: ";
        assert!(refusal.text.starts_with(words), "{file}: {}", refusal.text);
    }
}

#[test]
fn a_new_cluster_is_this_member_alone() {
    let check = |line: &[&str]| {
        let mut config = config(line);
        config.adopt_host(None);
        let resolve =
            |address: &str| address.strip_prefix("own.").map(|port| format!("127.0.0.1:{port}"));
        config.founding.check(&config.member.name, &resolve)
    };
    assert_eq!(check(&[]), Ok(()));
    assert_eq!(check(&["--name=a"]), Ok(()));
    for (line, text) in [
        (
            &["--initial-cluster=a=http://b:1"][..],
            "couldn't find local name \"default\" in the initial cluster configuration",
        ),
        (
            &["--initial-cluster=default=foo"],
            "error setting up initial cluster: URL scheme must be http, https, unix, or unixs: foo",
        ),
        (
            &["--name=infra1", "--initial-cluster=infra1=http://127.0.0.1:2390"],
            "--initial-cluster has infra1=http://127.0.0.1:2390 but missing from \
             --initial-advertise-peer-urls=http://localhost:2380 (resolved urls: \
             \"http://localhost:2380\" != \"http://127.0.0.1:2390\")",
        ),
        (
            &["--initial-cluster=default=http://localhost:2380,b=http://b:1"],
            "--initial-cluster names other members (b), and this store is one member: name it \
             alone, or start etcd",
        ),
    ] {
        assert_eq!(check(line).unwrap_err(), text);
    }
    assert!(check(&["--initial-cluster-state=existing"]).is_err());
}

#[test]
fn the_machines_address_is_told_where_all_of_them_are_listened_on() {
    let line = [
        "--name=a",
        "--listen-client-urls=http://0.0.0.0:7",
        "--listen-peer-urls=http://0.0.0.0:8",
    ];
    let told = |line: &[&str], host| {
        let mut config = config(line);
        let used = config.adopt_host(host);
        let urls = [&config.advertise_client, &config.founding.peer_urls];
        let urls = urls.iter().flat_map(|urls| texts(urls)).collect::<Vec<_>>().join(" ");
        (used, urls, config.founding.initial_cluster)
    };
    let default = "--advertise-client-urls=http://localhost:2379";
    let line: Vec<&str> = line.into_iter().chain([default]).collect();
    let (used, urls, cluster) = told(&line, Some("10.0.0.1"));
    assert_eq!((used, urls.as_str()), (true, "http://10.0.0.1:7 http://10.0.0.1:8"));
    assert_eq!(cluster, "a=http://10.0.0.1:8");
    let (used, urls, cluster) = told(&line, None);
    assert_eq!((used, urls.as_str()), (false, "http://localhost:2379 http://localhost:2380"));
    assert_eq!(cluster, "a=http://localhost:2380");
}

#[test]
fn the_help_names_every_flag() {
    let help = super::help::text();
    for flag in super::flags::GROUPS.iter().flat_map(|group| group.flags) {
        assert!(help.contains(&format!("  --{} '", flag.name)), "{}", flag.name);
    }
}

#[test]
fn the_document_says_what_comes_of_every_flag() {
    let document = include_str!("../../../docs/SERVE.md");
    for flag in super::flags::GROUPS.iter().flat_map(|group| group.flags) {
        let (heading, why) = match flag.effect {
            Effect::Acts => ("### Acted on", flag.about.to_owned()),
            Effect::None => ("### Taken, without effect", flag.about.to_owned()),
            Effect::Warns(why) => ("### Taken, without effect", why.to_owned()),
            Effect::Refused(why) => ("### Refused, but for their default", why.to_owned()),
            Effect::Was(now) => ("### Old names", format!("`--{now}`")),
            Effect::WasGate(gate) => ("### Old names", format!("`--feature-gates={gate}`")),
        };
        let (_, section) = document.split_once(heading).expect(heading);
        let section = section.split("\n##").next().unwrap_or(section);
        let row = format!("| `--{}` |", flag.name);
        let row = section.lines().find(|line| line.starts_with(&row));
        let row = row.unwrap_or_else(|| panic!("no row of --{} in {heading}", flag.name));
        assert!(row.replace("\\|", "|").contains(&why), "{row}: {why}");
    }
}

#[test]
fn the_document_says_what_comes_of_every_gate() {
    let document = include_str!("../../../docs/SERVE.md");
    let (_, section) = document.split_once("### Feature gates").unwrap();
    let section = section.split("\n##").next().unwrap_or(section);
    let all = "AllAlpha=true,AllBeta=false,FastLeaseKeepAlive=false";
    let config = config(&[&format!("--feature-gates={all}")]);
    let idle: HashMap<_, _> = config.gates.idle().collect();
    assert_eq!(idle.len(), 6);
    for gate in config.gates.features(Compat::V3_7) {
        let row = section.lines().find(|line| line.contains(&format!("`{}`", gate.name)));
        let row = row.unwrap_or_else(|| panic!("no row of {}", gate.name));
        let why = idle.get(gate.name.as_str());
        assert_eq!(row.contains("No effect"), why.is_some(), "{row}");
        assert!(why.is_none_or(|why| row.contains(why)), "{row}");
        let warning = format!("the feature gate {} has no effect", gate.name);
        let is_told = config.notes.iter().any(|note| note.message.starts_with(&warning));
        assert_eq!(is_told, why.is_some(), "{row}");
    }
}

#[test]
fn signed_tokens_have_options() {
    assert_eq!(config(&["--auth-token=simple,ttl=5s"]).auth.signed_tokens, None);
    let signed =
        config(&["--auth-token", "jwt,pub-key=a.pem,priv-key=/b/c.pem,sign-method=RS256,ttl=5s"]);
    assert_eq!(
        signed.auth.signed_tokens,
        Some(jwt::Settings {
            method: "RS256".into(),
            public_key: Some("a.pem".into()),
            private_key: Some("/b/c.pem".into()),
            ttl: Duration::from_secs(5),
        })
    );
    let refused = |options: &str| {
        let config = config(&[&format!("--auth-token=jwt{options}")]);
        config.store_options().unwrap_err()
    };
    assert_eq!(config(&["--auth-token=jwt"]).auth.signed_tokens.unwrap().ttl.as_secs(), 300);
    assert!(refused("").starts_with("--auth-token: auth: invalid auth options: sign-method=\"\""));
    let why = refused(",sign-method=RS256,pub-key=/nowhere/a.pem");
    assert_eq!(why, "--auth-token: /nowhere/a.pem: No such file or directory (os error 2)");
    let missing = "--auth-token: auth: missing key data: priv-key or pub-key is wanted";
    assert_eq!(refused(",sign-method=EdDSA,ttl=1h"), missing);
}

#[test]
fn a_time_of_0_gives_both_times_of_pings_their_defaults() {
    let times = |interval: &str, timeout: &str| {
        let (interval, timeout) = (
            format!("--grpc-keepalive-interval={interval}"),
            format!("--grpc-keepalive-timeout={timeout}"),
        );
        let config = config(&[&interval, &timeout]);
        let options = config.server_options(Compat::V3_7, &Log::silent()).unwrap();
        (options.keepalive_interval.as_secs(), options.keepalive_timeout.as_secs())
    };
    assert_eq!(times("10s", "5s"), (10, 5));
    assert_eq!(times("0", "5s"), (7200, 20));
    assert_eq!(times("10s", "0s"), (7200, 20));
    assert_eq!(times("-1s", "5s"), (7200, 20));
}

#[test]
fn what_is_read_only_needs_no_peers_and_tells_where_it_is_served() {
    let line = ["--read-only=s.db", "--listen-client-urls=http://127.0.0.1:1,http://0.0.0.0:2"];
    let mut config = config(&line);
    assert!(config.listen.peer.is_empty());
    assert!(config.adopt_host(Some("10.0.0.1")));
    assert_eq!(texts(&config.advertise_client), ["http://10.0.0.1:2", "http://127.0.0.1:1"]);
    let shown = config.store_options().unwrap().shown_at.unwrap();
    assert_eq!(shown, ["http://10.0.0.1:2", "http://127.0.0.1:1"]);
    assert!(config.notes.is_empty(), "{:?}", config.notes);
    let line = [
        "--read-only=s.db",
        "--listen-peer-urls=http://127.0.0.1:3",
        "--advertise-client-urls=http://a:4",
        "--data-dir=d",
    ];
    let config = self::config(&line);
    assert_eq!(texts(&config.listen.peer), ["http://127.0.0.1:3"]);
    assert_eq!(texts(&config.advertise_client), ["http://a:4"]);
    assert!(config.notes[0].message.starts_with("--data-dir has no effect"), "{:?}", config.notes);
    // As many as ever where it is written.
    let (code, text) = refusal(&["--listen-client-urls=http://127.0.0.1:1"]);
    assert!(code == 1 && text.contains("--advertise-client-urls is required"), "{text}");
    assert_eq!(self::config(&["--data-dir=d"]).store_options().unwrap().shown_at, None);
}
