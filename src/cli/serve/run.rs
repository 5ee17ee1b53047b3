//! A server from its command line to its end.

use std::ffi::OsString;
use std::io::{self, Write};
use std::net::{ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::process;

use super::config::{Listen, LogSettings};
use super::options::{address_of, place_of};
use super::signals::{Signal, Signals, notify_ready};
use super::url::Url;
use super::{Asked, Config, Refusal, directory, help, parse};
use crate::store::guard::Caller;
use crate::store::lines::{Field, Log};
use crate::store::serve::{self, Address, RESERVED_FILES, Role, Server, StartError};
use crate::store::{Compat, Store};

/// Runs a command line, without the words that led here; returns what to exit with.
pub(crate) fn run(words: &[OsString]) -> u8 {
    if let Some(command) = words.first().filter(|word| *word == "gateway" || *word == "grpc-proxy")
    {
        return refuse_command(&command.to_string_lossy());
    }
    let variables: Vec<_> = std::env::vars_os().collect();
    let config = match parse(words, &variables, &read_file) {
        Ok(Asked::Serve(config)) => *config,
        Ok(Asked::Help) => {
            // The usage goes where etcd writes it, and a reader that is gone needs no help.
            let _ = io::stderr().lock().write_all(help::usage().as_bytes());
            let _ = io::stdout().lock().write_all(help::text().as_bytes());
            return 0;
        }
        Ok(Asked::Version(compat)) => {
            let _ = io::stdout().lock().write_all(version(compat).as_bytes());
            return 0;
        }
        Err(refusal) => return refuse(&refusal),
    };
    let log = match open_log(&config.log) {
        Ok(log) => log,
        Err(text) => return refuse(&Refusal::flags(text)),
    };
    let words = shown(words);
    log.info("Running: ", &[("args", &words)]);
    match serve_until_told(config, words, &log) {
        Ok(code) => code,
        Err(text) => {
            log.fatal("failed to start", &[("error", &text)]);
            1
        }
    }
}

/// Refuses what etcd has and this does not.
fn refuse_command(command: &str) -> u8 {
    let text = format!("etcdkit has no {command}: it is one server, without a proxy");
    let _ = writeln!(io::stderr(), "{text}");
    1
}

fn refuse(refusal: &Refusal) -> u8 {
    let log = open_log(&refusal.log)
        .or_else(|_| open_log(&LogSettings::default()))
        .unwrap_or_else(|_| Log::silent());
    if let Some(text) = refusal.tell(&log) {
        let _ = io::stderr().lock().write_all(text.as_bytes());
    }
    refusal.code
}

fn version(compat: Option<Compat>) -> String {
    let (version, ours) = (compat.unwrap_or(Compat::V3_7).version(), env!("CARGO_PKG_VERSION"));
    let rust = env!("CARGO_PKG_RUST_VERSION");
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    format!(
        "etcd Version: {version}\nGit SHA: none (etcdkit {ours})\nGo Version: none (rust {rust})\n\
         Go OS/Arch: {}/{arch}\n",
        std::env::consts::OS
    )
}

/// Reads a file; the error is in Go's words.
fn read_file(path: &str) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| match error.kind() {
        io::ErrorKind::IsADirectory => format!("read {path}: is a directory"),
        _ => format!("open {path}: {}", go_words(&error)),
    })
}

/// Says what went wrong as Go says it.
fn go_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".into(),
        io::ErrorKind::PermissionDenied => "permission denied".into(),
        io::ErrorKind::AddrInUse => "address already in use".into(),
        io::ErrorKind::AddrNotAvailable => "cannot assign requested address".into(),
        _ => error.to_string(),
    }
}

fn open_log(settings: &LogSettings) -> Result<Log, String> {
    Log::open(settings.level, settings.form, &settings.outputs).map_err(|(path, error)| {
        let path = path.display();
        format!("open sink \"{path}\": open {path}: {}", go_words(&error))
    })
}

/// Returns the words of a command line, as far as everybody may read them.
fn shown(words: &[OsString]) -> Vec<String> {
    let mut shown: Vec<String> = std::env::args_os()
        .next()
        .map(|name| name.to_string_lossy().into_owned())
        .into_iter()
        .collect();
    let mut hides = false;
    for word in words {
        let word = word.to_string_lossy();
        let secret = ["discovery-password", "discovery-user"];
        let name = word.trim_start_matches('-').split('=').next().unwrap_or_default();
        let is_secret = word.starts_with('-') && secret.contains(&name);
        shown.push(match (hides, is_secret && word.contains('=')) {
            (true, _) => "(not shown)".into(),
            (_, true) => format!("--{name}=(not shown)"),
            _ => word.clone().into_owned(),
        });
        hides = is_secret && !word.contains('=');
    }
    shown
}

/// Serves until a signal, or until nothing can be written any more: whoever looks after the program
/// starts it again then. The error is why it could not begin; `words` are told to whoever asks.
fn serve_until_told(mut config: Config, words: Vec<String>, log: &Log) -> Result<u8, String> {
    for note in &config.notes {
        note.write(log);
    }
    if let Some(host) = own_address().filter(|host| config.adopt_host(Some(host))) {
        log.info("detected default host for advertise", &[("host", &host)]);
    } else {
        config.adopt_host(None);
    }
    let dir = config.member.data_dir.clone();
    let is_founded = config.read_only.is_some() || has_log(&config);
    if let Some(path) = &config.read_only {
        log.info("serving read-only: every change is refused", &[("path", path)]);
    } else if is_founded {
        directory::warn_of_mode(&dir, log);
        log.info("server has already been initialized", &[("data-dir", &dir)]);
    } else {
        directory::check_no_file(&dir)?;
        directory::warn_of_mode(&dir, log);
        log.info("Initialize and start etcd server", &[("data-dir", &dir)]);
        config.founding.check(&config.member.name, &resolve)?;
    }
    if config.client_tls.auto.is_none() && config.peer_tls.auto.is_none() {
        // Files that are not fit are told before a directory is founded.
        config.listeners(&Log::silent())?;
    }
    let connections_max = raise_open_files()?;
    let mut signals = Signals::register().map_err(|error| format!("register signals: {error}"))?;
    check_free(&config.listen)?;
    tell_start(&config, is_founded, log);
    let options = config.store_options()?;
    let store = match &config.read_only {
        Some(path) => Store::open_read_only(path, options),
        None => Store::open(&dir, options),
    };
    let store = store.map_err(|error| {
        directory::cannot_open(&error, config.read_only.as_deref().unwrap_or(&dir))
    })?;
    for note in store.notes() {
        match &config.read_only {
            Some(path) => {
                log.warn("what is served is not as it should be", &[("path", path), ("note", note)])
            }
            None => log.info("data directory", &[("note", note)]),
        }
    }
    if config.read_only.is_some() && store.auth_status().is_ok_and(|status| status.enabled) {
        log.warn(
            "authentication is on in what is served, and is not enforced: whoever reaches the \
             client URLs can read all of it",
            &[("listen-client-urls", &texts(&config.listen.client))],
        );
    }
    // Whoever stops it while it opens what is large does not wait for more than that.
    if signals.came().is_none() {
        bootstrap_defrag(&config, &store, log);
    }
    if let Some(signal) = signals.came() {
        return Ok(close(&config, &store, None, Some(signal), log));
    }
    let options = config.server_options(store.compat(), log)?;
    let options = options.command_line(words).connections_max(connections_max);
    let server = match Server::start(store.clone(), options) {
        Ok(server) => server,
        Err(error) => {
            // Nothing was asked of the store; the log has whatever the database lacks.
            let _ = store.close();
            return Err(match &error {
                StartError::Listen { address, source } => {
                    let network = if matches!(address, Address::Unix(_)) { "unix" } else { "tcp" };
                    format!("listen {network} {address}: bind: {}", go_words(source))
                }
                _ => error.to_string(),
            });
        }
    };
    tell_ready(&config, &store, &server, log);
    let signal = signals.wait(|| store.failure().is_some());
    let signal = signal.map_err(|error| format!("wait for a signal: {error}"))?;
    Ok(close(&config, &store, Some(server), signal, log))
}

/// Closes what a signal stops, or what cannot write any more; returns what to exit with.
fn close(
    config: &Config,
    store: &Store,
    server: Option<Server>,
    signal: Option<Signal>,
    log: &Log,
) -> u8 {
    if let Some(signal) = &signal {
        log.info("received signal; shutting down", &[("signal", &signal.name())]);
    } else {
        let why = store.failure().map(|why| why.to_string()).unwrap_or_default();
        log.fatal("the store cannot write any more", &[("error", &why)]);
    }
    let place: (&str, &dyn Field) = match &config.read_only {
        Some(path) => ("path", path),
        None => ("data-dir", &config.member.data_dir),
    };
    let closing: [(&str, &dyn Field); 2] = [("name", &config.member.name), place];
    log.info("closing etcd server", &closing);
    if let Some(server) = server {
        server.stop(config.request_timeout());
    }
    let code = match store.close() {
        Ok(()) => 0,
        Err(error) => {
            log.error("the database lacks what the log has", &[("error", &error.to_string())]);
            1
        }
    };
    log.info("closed etcd server", &closing);
    match (code, signal) {
        (0, Some(signal)) => signal.end(),
        (0, None) => 1,
        (code, _) => code,
    }
}

/// Finds the address that this machine has to others; nothing is sent for it.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // An address for documentation: whatever leads there is the way out.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip().to_string())
}

fn resolve(address: &str) -> Option<String> {
    address.to_socket_addrs().ok()?.next().map(|address| address.to_string())
}

/// Tells whether there is a log, as etcd does: any file that is named like a segment.
fn has_log(config: &Config) -> bool {
    let default = || config.member.data_dir.join("member").join("wal");
    let wal: PathBuf = config.member.wal_dir.clone().unwrap_or_else(default);
    let names = std::fs::read_dir(wal).into_iter().flatten().flatten();
    names
        .map(|entry| entry.file_name())
        .any(|name| Path::new(&name).extension().is_some_and(|it| it == "wal"))
}

/// Lets the program have as many files open as it may, as Go does, and returns how many of them are
/// for connections.
fn raise_open_files() -> Result<usize, String> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Where it may not, connections beyond the limit wait.
    let _ = setrlimit(Resource::Nofile, limit);
    let Some(limit) = getrlimit(Resource::Nofile).current else { return Ok(usize::MAX) };
    match limit.checked_sub(RESERVED_FILES) {
        // etcd's words.
        None | Some(0) => Err(format!(
            "file descriptor limit of etcd process is too low; please set higher: {limit} files \
             may be open, and {RESERVED_FILES} of them are not for connections"
        )),
        Some(room) => Ok(usize::try_from(room).unwrap_or(usize::MAX)),
    }
}

/// Finds out that an address is taken before a directory is founded for nothing.
fn check_free(listen: &Listen) -> Result<(), String> {
    let mut ours: Vec<(Address, Role)> = Vec::new();
    for (url, role) in listen.urls() {
        let failed = |error: io::Error| cannot_listen(url, &error);
        let address = place_of(url).map_err(failed)?;
        let is_any = matches!(&address, Address::Tcp(address) if address.port() == 0);
        let other = ours.iter().find(|(other, _)| *other == address && !is_any);
        match other {
            // They share a socket.
            Some((_, other)) if *other == role => continue,
            Some(_) => {
                let taken = failed(io::ErrorKind::AddrInUse.into());
                return Err(format!("{taken} (by another --listen flag)"));
            }
            None => {}
        }
        serve::check_free(&address, listen.reuse_port).map_err(failed)?;
        ours.push((address, role));
    }
    Ok(())
}

fn cannot_listen(url: &Url, error: &io::Error) -> String {
    let address = address_of(url).map_or_else(|_| url.address(), |address| address.to_string());
    format!("listen tcp {address}: bind: {}", go_words(error))
}

fn texts(urls: &[Url]) -> Vec<String> {
    urls.iter().map(Url::to_string).collect()
}

fn tell_start(config: &Config, is_founded: bool, log: &Log) {
    let (member, storage) = (&config.member, &config.storage);
    let millis = |duration: std::time::Duration| format!("{}ms", duration.as_millis());
    let retention = format!("{:?}", storage.auto_compaction);
    let place: (&str, &dyn Field) = match &config.read_only {
        Some(path) => ("read-only", path),
        None => ("data-dir", &member.data_dir),
    };
    log.info(
        "starting an etcd server",
        &[
            ("etcd-version", &config.compat.unwrap_or(Compat::V3_7).version()),
            ("etcdkit-version", &env!("CARGO_PKG_VERSION")),
            ("member-initialized", &is_founded),
            ("name", &member.name),
            place,
            ("wal-dir", &member.wal_dir),
            ("force-new-cluster", &member.force_new_cluster),
            ("heartbeat-interval", &millis(member.heartbeat)),
            ("election-timeout", &millis(member.election)),
            ("snapshot-count", &storage.snapshot_count),
            ("max-wals", &storage.wals_max),
            ("max-snapshots", &storage.snaps_max),
            ("snapshot-catchup-entries", &config.snapshot_catchup_entries),
            ("initial-advertise-peer-urls", &texts(&config.founding.peer_urls)),
            ("listen-peer-urls", &texts(&config.listen.peer)),
            ("advertise-client-urls", &texts(&config.advertise_client)),
            ("listen-client-urls", &texts(&config.listen.client)),
            ("listen-metrics-urls", &texts(&config.listen.metrics)),
            ("cors", &config.http.cors),
            ("host-whitelist", &config.http.hosts),
            ("initial-cluster", &config.founding.initial_cluster),
            ("initial-cluster-token", &config.founding.token),
            ("quota-backend-bytes", &storage.quota_bytes),
            ("max-request-bytes", &config.limits.request_bytes_max),
            ("max-concurrent-streams", &config.limits.streams_max),
            ("auto-compaction", &retention),
            // Nothing else is ever enforced.
            ("v2-deprecation", &"write-only"),
        ],
    );
}

/// Packs the database where that frees as much as was asked for.
fn bootstrap_defrag(config: &Config, store: &Store, log: &Log) {
    let threshold = config.storage.bootstrap_defrag_megabytes;
    if threshold == 0 || config.read_only.is_some() {
        return;
    }
    let admin = store.caller_named("root");
    let caller = if store.auth_status().is_ok_and(|status| status.enabled) {
        admin
    } else {
        Caller::default()
    };
    let Ok(status) = store.status(&caller) else { return };
    let free = status.db_size_bytes.saturating_sub(status.db_size_in_use_bytes);
    let sizes: [(&str, &dyn Field); 4] = [
        ("current-db-size-bytes", &status.db_size_bytes),
        ("current-db-size-in-use-bytes", &status.db_size_in_use_bytes),
        ("bootstrap-defrag-threshold-bytes", &threshold.saturating_mul(1 << 20)),
        ("free-bytes", &free),
    ];
    if free < threshold.saturating_mul(1 << 20) {
        log.info("Skipping defragmentation", &sizes);
        return;
    }
    match store.defragment(&caller) {
        Ok(()) => log.info("finished defragmenting at the start", &sizes),
        Err(error) => log.warn("cannot defragment at the start", &[("error", &error.to_string())]),
    }
}

fn tell_ready(config: &Config, store: &Store, server: &Server, log: &Log) {
    log.info(
        "now serving peer/client/metrics",
        &[
            ("local-member-id", &store.member_id().to_string()),
            ("cluster-id", &store.cluster_id().to_string()),
            ("revision", &store.revision()),
            ("listen-peer-urls", &texts(&config.listen.peer)),
            ("listen-client-urls", &texts(&config.listen.client)),
            ("listen-metrics-urls", &texts(&config.listen.metrics)),
        ],
    );
    for ((url, role), address) in config.listen.urls().into_iter().zip(server.addresses()) {
        let traffic = match role {
            Role::Client => "grpc+http",
            Role::Grpc => "grpc",
            Role::Http => "http",
            Role::Metrics | Role::Peer => continue,
        };
        let is_tls = url.scheme.is_tls();
        log.info("ready to serve client requests", &[("address", &address.to_string())]);
        let message = match is_tls {
            true => "serving client traffic securely",
            false => "serving client traffic insecurely; this is strongly discouraged!",
        };
        log.info(message, &[("traffic", &traffic), ("address", &address.to_string())]);
    }
    log.info("process", &[("pid", &process::id())]);
    match notify_ready() {
        None => {}
        Some(Ok(())) => log.info("successfully notified init daemon", &[]),
        Some(Err(error)) => {
            let text = error.to_string();
            log.error("failed to notify systemd for readiness", &[("error", &text)]);
        }
    }
}
