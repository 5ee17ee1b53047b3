//! What a server is told, in plain values.

use std::path::PathBuf;
use std::time::Duration;

use super::Note;
use super::gates::Gates;
use super::settings::Settings;
use super::url::Url;
use super::value::duration_of;
use crate::store::Compat;
use crate::store::auto_compact::Retention;
use crate::store::lines::{Form, Level, Output};
use crate::store::serve::jwt;
use crate::store::serve::tls::{self, Side};

/// Everything that a server is told.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Which etcd to be; `None`: as the directory is.
    pub(crate) compat: Option<Compat>,
    /// Snapshot or directory that is served and not written.
    pub(crate) read_only: Option<PathBuf>,
    pub(crate) member: Member,
    pub(crate) founding: Founding,
    pub(crate) listen: Listen,
    /// Client URLs that the member list shows.
    pub(crate) advertise_client: Vec<Url>,
    pub(crate) client_tls: tls::Settings,
    pub(crate) peer_tls: tls::Settings,
    pub(crate) limits: Limits,
    pub(crate) storage: Storage,
    pub(crate) auth: Auth,
    pub(crate) http: Http,
    pub(crate) log: LogSettings,
    pub(crate) gates: Gates,
    /// Interval at which quiet watchers that asked for it are told the revision; 0: the default.
    pub(crate) watch_progress_interval: Duration,
    /// Told in the log, and nothing else.
    pub(crate) snapshot_catchup_entries: u64,
    /// Applying for longer is logged.
    pub(crate) warning_apply: Duration,
    /// A request that takes longer is logged.
    pub(crate) warning_unary: Duration,
    /// What is to be logged before anything else.
    pub(crate) notes: Vec<Note>,
}

/// Who the member is, and where it lives.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) data_dir: PathBuf,
    /// `None`: in the data directory.
    pub(crate) wal_dir: Option<PathBuf>,
    pub(crate) heartbeat: Duration,
    pub(crate) election: Duration,
    pub(crate) force_new_cluster: bool,
    pub(crate) unsafe_no_fsync: bool,
}

/// What a new directory is founded with.
#[derive(Clone, Debug)]
pub(crate) struct Founding {
    /// `NAME=URL,...` as given.
    pub(crate) initial_cluster: String,
    /// The cluster is said to be there already.
    pub(crate) is_existing: bool,
    pub(crate) token: String,
    pub(crate) peer_urls: Vec<Url>,
    /// The cluster was not named, and follows name and peer URLs.
    pub(crate) is_default: bool,
}

/// Where to listen.
#[derive(Clone, Debug)]
pub(crate) struct Listen {
    pub(crate) peer: Vec<Url>,
    pub(crate) client: Vec<Url>,
    /// HTTP of clients; where there is one, the client URLs are for gRPC alone.
    pub(crate) client_http: Vec<Url>,
    pub(crate) metrics: Vec<Url>,
    pub(crate) reuse_port: bool,
}

/// Limits of requests and connections.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) txn_ops_max: u64,
    pub(crate) request_bytes_max: u64,
    pub(crate) streams_max: u32,
    /// Time between the server's pings; 0: the default of both.
    pub(crate) ping_interval: Duration,
    /// How long the answer may take; 0: the default of both.
    pub(crate) ping_timeout: Duration,
}

/// How data is kept.
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    /// 0: the default; below 0: no limit.
    pub(crate) quota_bytes: i64,
    pub(crate) snapshot_count: u64,
    /// Files that are kept; 0: all.
    pub(crate) snaps_max: u64,
    pub(crate) wals_max: u64,
    /// 0: the default.
    pub(crate) batch_interval: Duration,
    pub(crate) batch_limit: u64,
    pub(crate) compaction_batch_limit: u64,
    pub(crate) compaction_sleep: Duration,
    pub(crate) auto_compaction: Retention,
    /// Pack the database at the start if that frees so many megabytes; 0: never.
    pub(crate) bootstrap_defrag_megabytes: u64,
}

/// Passwords and tokens.
#[derive(Clone, Debug)]
pub(crate) struct Auth {
    pub(crate) token_ttl: Duration,
    /// `None`: tokens are simple ones.
    pub(crate) signed_tokens: Option<jwt::Settings>,
    /// 4 to 31.
    pub(crate) bcrypt_cost: u32,
}

/// What HTTP offers.
#[derive(Clone, Debug)]
pub(crate) struct Http {
    pub(crate) has_gateway: bool,
    /// Histograms of gRPC are among the metrics.
    pub(crate) is_extensive: bool,
    /// Origins that may ask; `*`: all.
    pub(crate) cors: Vec<String>,
    /// Hosts that plain HTTP may be asked for; `*` or nothing: all.
    pub(crate) hosts: Vec<String>,
}

/// Where log lines go, and which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogSettings {
    pub(crate) level: Level,
    pub(crate) form: Form,
    pub(crate) outputs: Vec<Output>,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { level: Level::Info, form: Form::Json, outputs: vec![Output::Stderr] }
    }
}

/// Reads which etcd to be.
pub(super) fn compat_of(text: &str) -> Option<Compat> {
    match text {
        "3.6" => Some(Compat::V3_6),
        "3.7" => Some(Compat::V3_7),
        _ => None,
    }
}

impl Config {
    /// Puts settings that were checked into their places.
    pub(super) fn of(
        settings: &Settings,
        log: LogSettings,
        auto_compaction: Retention,
        signed_tokens: Option<jwt::Settings>,
    ) -> Self {
        let time = |name: &str| duration_of(settings.int(name));
        let millis = |name: &str| Duration::from_millis(settings.uint(name));
        let path = |name: &str| settings.some_text(name).map(PathBuf::from);
        // Below 0 is what 0 is to etcd: its own default.
        let count = |name: &str| u64::try_from(settings.int(name)).unwrap_or(0);
        let name = settings.text("name");
        let peer_urls = settings.urls("initial-advertise-peer-urls");
        let is_default = settings.text("initial-cluster") == "default=http://localhost:2380";
        let cost = settings.uint("bcrypt-cost");
        Self {
            compat: compat_of(&settings.text("compat")),
            read_only: path("read-only"),
            member: Member {
                data_dir: path("data-dir").unwrap_or_else(|| format!("{name}.etcd").into()),
                name,
                wal_dir: path("wal-dir"),
                heartbeat: millis("heartbeat-interval"),
                election: millis("election-timeout"),
                force_new_cluster: settings.is_on("force-new-cluster"),
                unsafe_no_fsync: settings.is_on("unsafe-no-fsync"),
            },
            founding: Founding {
                initial_cluster: settings.text("initial-cluster"),
                is_existing: settings.text("initial-cluster-state") == "existing",
                token: settings.text("initial-cluster-token"),
                peer_urls,
                is_default,
            },
            listen: Listen {
                peer: settings.urls("listen-peer-urls"),
                client: settings.urls("listen-client-urls"),
                client_http: settings.urls("listen-client-http-urls"),
                metrics: settings.urls("listen-metrics-urls"),
                reuse_port: settings.is_on("socket-reuse-port"),
            },
            advertise_client: settings.urls("advertise-client-urls"),
            client_tls: tls_of(settings, Side::Client),
            peer_tls: tls_of(settings, Side::Peer),
            limits: Limits {
                txn_ops_max: settings.uint("max-txn-ops"),
                request_bytes_max: settings.uint("max-request-bytes"),
                streams_max: u32::try_from(settings.uint("max-concurrent-streams"))
                    .unwrap_or(u32::MAX),
                ping_interval: time("grpc-keepalive-interval"),
                ping_timeout: time("grpc-keepalive-timeout"),
            },
            storage: Storage {
                quota_bytes: settings.int("quota-backend-bytes"),
                snapshot_count: settings.uint("snapshot-count"),
                snaps_max: settings.uint("max-snapshots"),
                wals_max: settings.uint("max-wals"),
                batch_interval: time("backend-batch-interval"),
                batch_limit: count("backend-batch-limit"),
                compaction_batch_limit: count("compaction-batch-limit"),
                compaction_sleep: time("compaction-sleep-interval"),
                auto_compaction,
                bootstrap_defrag_megabytes: settings.uint("bootstrap-defrag-threshold-megabytes"),
            },
            auth: Auth {
                token_ttl: Duration::from_secs(settings.uint("auth-token-ttl")),
                signed_tokens,
                bcrypt_cost: u32::try_from(cost)
                    .ok()
                    .filter(|cost| (4..=31).contains(cost))
                    .unwrap_or(10),
            },
            http: Http {
                has_gateway: settings.is_on("enable-grpc-gateway"),
                is_extensive: settings.text("metrics") == "extensive",
                cors: settings.words("cors"),
                hosts: settings.words("host-whitelist"),
            },
            log,
            gates: settings.gates(),
            watch_progress_interval: time("watch-progress-notify-interval"),
            snapshot_catchup_entries: settings.uint("snapshot-catchup-entries"),
            warning_apply: time("warning-apply-duration"),
            warning_unary: match time("warning-unary-request-duration") {
                Duration::ZERO => Duration::from_millis(300),
                duration => duration,
            },
            notes: Vec::new(),
        }
    }

    /// Puts the machine's address into URLs that are told to others, where they are the default
    /// and everything is listened on; then names the cluster after the member, where nobody did.
    ///
    /// Returns whether the address was used. Source: `embed.Config.UpdateDefaultClusterFromName`.
    pub(crate) fn adopt_host(&mut self, host: Option<&str>) -> bool {
        let mut is_used = false;
        let mut adopt = |told: &mut Vec<Url>, default: &str, listen: &[Url]| {
            let listen = listen.first().and_then(Url::host_port);
            if let (Some(host), Some(("0.0.0.0", port)), [url]) = (host, listen, &mut told[..])
                && url.as_str() == default
            {
                *url = url.at(host, port);
                is_used = true;
            }
        };
        adopt(&mut self.founding.peer_urls, "http://localhost:2380", &self.listen.peer);
        adopt(&mut self.advertise_client, "http://localhost:2379", &self.listen.client);
        if let (Some(host), Some(_)) = (host, &self.read_only) {
            // Those that are listened on are told where none was named.
            for url in &mut self.advertise_client {
                if let Some(("0.0.0.0" | "::", port)) = url.host_port() {
                    *url = url.at(host, port);
                    is_used = true;
                }
            }
        }
        if self.founding.is_default && self.member.name != "default" {
            let name = match self.member.name.as_str() {
                "" => "default",
                name => name,
            };
            let pairs: Vec<_> =
                self.founding.peer_urls.iter().map(|url| format!("{name}={url}")).collect();
            self.founding.initial_cluster = pairs.join(",");
        }
        is_used
    }
}

/// Collects what the flags of one side say about TLS.
pub(super) fn tls_of(settings: &Settings, side: Side) -> tls::Settings {
    let (prefix, of_clients) = match side {
        Side::Client => ("", "client-"),
        Side::Peer => ("peer-", "peer-"),
    };
    let path = |flag: &str| settings.some_text(&format!("{prefix}{flag}")).map(PathBuf::from);
    let listen = match side {
        Side::Client => {
            [settings.urls("listen-client-urls"), settings.urls("listen-client-http-urls")].concat()
        }
        Side::Peer => settings.urls("listen-peer-urls"),
    };
    let data_dir = settings.some_text("data-dir");
    let data_dir = data_dir.unwrap_or_else(|| format!("{}.etcd", settings.text("name")));
    let auto = || tls::Auto {
        dir: PathBuf::from(data_dir).join("fixtures").join(match side {
            Side::Client => "client",
            Side::Peer => "peer",
        }),
        hosts: listen.iter().map(Url::address).collect(),
        years: u32::try_from(settings.uint("self-signed-cert-validity")).unwrap_or(u32::MAX),
    };
    tls::Settings {
        side,
        cert_file: path("cert-file"),
        key_file: path("key-file"),
        client_cert_file: path("client-cert-file"),
        client_key_file: path("client-key-file"),
        trusted_ca_file: path("trusted-ca-file"),
        client_cert_auth: settings.is_on(&format!("{prefix}client-cert-auth")),
        crl_file: settings.some_text(&format!("{of_clients}crl-file")).map(PathBuf::from),
        allowed_names: match side {
            Side::Client => settings.client_names.clone(),
            Side::Peer => settings.words("peer-cert-allowed-cn"),
        },
        allowed_hostnames: settings.words(&format!("{of_clients}cert-allowed-hostname")),
        cipher_suites: settings.words("cipher-suites"),
        min_version: settings.text("tls-min-version"),
        max_version: settings.text("tls-max-version"),
        auto: settings.is_on(&format!("{prefix}auto-tls")).then(auto),
        ..tls::Settings::default()
    }
}
