//! Every flag of etcd 3.5, 3.6 and 3.7, and ours: what it takes, and what comes of it.
//!
//! **Source**: etcd server/embed/config.go and server/etcdmain/config.go, 3.5.35, 3.6.16, 3.7.3.

use super::value::Kind;

/// One flag.
#[derive(Debug)]
pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// What it is where nobody gives it; an empty text is nothing, false or 0.
    pub(super) default: &'static str,
    pub(super) effect: Effect,
    pub(super) about: &'static str,
}

/// What comes of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// It is acted on.
    Acts,
    /// It is taken, and changes nothing here.
    None,
    /// It is taken, changes nothing, and whoever sets it is told so, with this reason.
    Warns(&'static str),
    /// Anything but the default is refused, for this reason.
    Refused(&'static str),
    /// It was another flag before.
    Was(&'static str),
    /// It was a feature gate before.
    WasGate(&'static str),
}

/// A heading of the help, and the flags under it.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) heading: &'static str,
    pub(super) flags: &'static [Flag],
}

use Effect::{Acts, None as Idle, Refused, Warns, Was, WasGate};
use Kind::{
    AnyOf, Bool, Gates, Ignored, Int, List, Names, OneOf, Origins, Text, Time, Uint, Uint32, Urls,
};

const ONE_MEMBER: &str = "this store is one member and looks for no other";
const NO_V2: &str = "the v2 API is not there";
const NO_TRACES: &str = "no traces are sent";
const NO_ROTATION: &str = "log files are not rotated: leave that to logrotate with copytruncate";

const V2_STAGES: &[&str] = &["write-only", "write-only-skip-check", "write-only-drop-data", "gone"];

const fn flag(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    effect: Effect,
    about: &'static str,
) -> Flag {
    Flag { name, kind, default, effect, about }
}

/// Writes headings and the flags under them, which would be a thousand lines otherwise.
macro_rules! groups {
    ($(# $heading:literal => $(
        $name:literal, $kind:expr, $default:literal, $effect:expr, $about:literal;
    )+)+) => {
        [$(Group {
            heading: $heading,
            flags: &[$(flag($name, $kind, $default, $effect, $about)),+],
        }),+]
    };
}

/// All flags, in the order of the help.
pub(super) const GROUPS: &[Group] = &groups! {
    # "Of etcdkit, not of etcd" =>
    "compat", OneOf(&["", "3.6", "3.7"]), "", Acts,
        "3.6 or 3.7: which etcd to be. A new directory is 3.7's; an existing one keeps its \
         version.";
    "read-only", Text, "", Acts,
        "Serve this snapshot or data directory, write nothing to it, and refuse every change.";
    # "Member" =>
    "name", Text, "default", Acts, "Name of this member.";
    "data-dir", Text, "", Acts, "Data directory; NAME.etcd where none is given.";
    "wal-dir", Text, "", Acts, "Directory of the log, where it is not in the data directory.";
    "snapshot-count", Uint, "10000", Acts, "Entries after which a raft snapshot is recorded.";
    "snapshot-catchup-entries", Uint, "5000", Idle,
        "Entries kept for followers that lag: there are none.";
    "heartbeat-interval", Uint, "100", Acts,
        "Milliseconds of a heartbeat; with the election timeout it decides the shortest \
         lease.";
    "election-timeout", Uint, "1000", Acts,
        "Milliseconds of an election; leases get so much longer at a start.";
    "initial-election-tick-advance", Bool, "true", Idle, "A sole member elects itself at once.";
    "listen-peer-urls", Urls, "http://localhost:2380", Acts,
        "Where to listen for peers: answers /version and /members.";
    "listen-client-urls", Urls, "http://localhost:2379", Acts, "Where to listen for clients.";
    "listen-client-http-urls", Urls, "", Acts,
        "Where to listen for HTTP of clients, which is then not on the client URLs.";
    "max-snapshots", Uint, "5", Acts, ".snap files kept; 0 keeps all.";
    "max-wals", Uint, "5", Acts, "Log segments kept; 0 keeps all.";
    "quota-backend-bytes", Int, "0", Acts,
        "Limit of the database's size in bytes; 0 is 2 GiB, below 0 is none.";
    "backend-bbolt-freelist-type", Text, "map", Idle,
        "Both kinds are read; no freelist is written, as etcd writes none.";
    "backend-batch-interval", Time, "", Acts,
        "Time after which changes go to the database; 0 is 100ms.";
    "backend-batch-limit", Int, "0", Acts, "Changes after which they go there at once; 0 is 10000.";
    "max-txn-ops", Uint, "128", Acts, "Most operations in a transaction.";
    "max-request-bytes", Uint, "1572864", Acts, "Largest request in bytes.";
    "max-concurrent-streams", Uint32, "4294967295", Acts, "Most streams of one connection.";
    "grpc-keepalive-min-time", Time, "5s", Idle, "A client may ping as often as it likes.";
    "grpc-keepalive-interval", Time, "2h", Acts,
        "Time between the server's pings; 0 is the default, of the timeout too.";
    "grpc-keepalive-timeout", Time, "20s", Acts,
        "How long the answer to a ping may take; 0 is the default, of the interval too.";
    "socket-reuse-port", Bool, "false", Acts, "Listen with SO_REUSEPORT.";
    "socket-reuse-address", Bool, "false", Idle, "It is always listened with SO_REUSEADDR.";
    "enable-grpc-gateway", Bool, "true", Acts, "Offer JSON over HTTP under /v3.";
    "raft-read-timeout", Time, "5s", Idle, "Of connections to peers: there are none.";
    "raft-write-timeout", Time, "5s", Idle, "Of connections to peers: there are none.";
    "memory-mlock", Bool, "false", Warns("memory is not locked"), "Keep pages in memory.";
    "feature-gates", Gates, "", Acts,
        "Name=true|false with commas: AllAlpha, AllBeta, CompactHashCheck, FastLeaseKeepAlive \
         (on), InitialCorruptCheck, LeaseCheckpoint, LeaseCheckpointPersist, PriorityRequest, \
         SetMemberLocalAddr, StopGRPCServiceOnDefrag, TxnModeWriteWithSharedBuffer (on).";
    "config-file", Text, "", Acts,
        "YAML file with the settings; other flags and variables are then ignored. Times in it \
         are nanoseconds.";
    # "Clustering" =>
    "initial-advertise-peer-urls", Urls, "http://localhost:2380", Acts,
        "Peer URLs of a new member; its ids come from them.";
    "initial-cluster", Text, "default=http://localhost:2380", Acts,
        "NAME=URL of a new cluster, which is this member alone.";
    "initial-cluster-state", OneOf(&["new", "existing"]), "new", Acts,
        "new, or existing; of a directory with data in it nothing depends on it.";
    "initial-cluster-token", Text, "etcd-cluster", Acts,
        "Token of a new cluster; its ids come from it.";
    "advertise-client-urls", Urls, "http://localhost:2379", Acts,
        "Client URLs that the member list shows.";
    "discovery", Text, "", Refused(ONE_MEMBER), "v2 discovery (etcd 3.6).";
    "discovery-endpoints", Names, "", Refused(ONE_MEMBER), "v3 discovery.";
    "discovery-token", Text, "", Refused(ONE_MEMBER), "v3 discovery.";
    "discovery-dial-timeout", Time, "2s", Idle, "v3 discovery.";
    "discovery-request-timeout", Time, "5s", Idle, "v3 discovery.";
    "discovery-keepalive-time", Time, "2s", Idle, "v3 discovery.";
    "discovery-keepalive-timeout", Time, "6s", Idle, "v3 discovery.";
    "discovery-insecure-transport", Bool, "true", Idle, "v3 discovery.";
    "discovery-insecure-skip-tls-verify", Bool, "false", Idle, "v3 discovery.";
    "discovery-cert", Text, "", Idle, "v3 discovery.";
    "discovery-key", Text, "", Idle, "v3 discovery.";
    "discovery-cacert", Text, "", Idle, "v3 discovery.";
    "discovery-user", Text, "", Idle, "v3 discovery.";
    "discovery-password", Text, "", Idle, "v3 discovery.";
    "discovery-fallback", OneOf(&["exit", "proxy"]), "exit", Idle,
        "v2 discovery; proxy is refused as etcd refuses it.";
    "discovery-proxy", Text, "", Refused(ONE_MEMBER), "v2 discovery (etcd 3.6).";
    "discovery-srv", Text, "", Refused(ONE_MEMBER), "Discovery by DNS.";
    "discovery-srv-name", Text, "", Idle, "Discovery by DNS.";
    "strict-reconfig-check", Bool, "true", Idle, "The sole member cannot be removed.";
    "pre-vote", Bool, "true", Idle, "A sole member has nobody to ask.";
    "max-learners", Int, "1", Idle, "No learner is added.";
    "auto-compaction-retention", Text, "0", Acts,
        "How much history auto compaction keeps; 0 turns it off.";
    "auto-compaction-mode", Text, "periodic", Acts,
        "periodic: the retention is a duration, in hours without a unit. revision: it is a \
         number.";
    "v2-deprecation", AnyOf(V2_STAGES), "", Idle, "As in etcd, the default is enforced.";
    # "Security" =>
    "cert-file", Text, "", Acts, "Certificate of the client URLs; read again when it changes.";
    "key-file", Text, "", Acts, "Key of the client URLs.";
    "client-cert-auth", Bool, "false", Acts, "Ask clients for a certificate.";
    "client-cert-file", Text, "", Idle, "Certificate of etcd's own client, which is not there.";
    "client-key-file", Text, "", Idle, "Key of etcd's own client, which is not there.";
    "client-crl-file", Text, "", Acts, "Revoked certificates of clients.";
    "client-cert-allowed-hostname", List, "", Acts,
        "Names of which a client's certificate must have one.";
    "trusted-ca-file", Text, "", Acts, "Who signs the certificates of clients.";
    "auto-tls", Bool, "false", Acts, "Make a certificate for the client URLs.";
    "self-signed-cert-validity", Uint, "1", Acts, "Years that made certificates hold.";
    "cipher-suites", List, "", Acts, "Cipher suites of TLS 1.2, as Go names them.";
    "tls-min-version", Text, "TLS1.2", Acts, "Oldest TLS: TLS1.2 or TLS1.3.";
    "tls-max-version", Text, "", Acts, "Newest TLS: TLS1.2, TLS1.3, or nothing.";
    "cors", Origins, "*", Acts, "Origins of other sites that may ask over HTTP.";
    "host-whitelist", Names, "*", Acts, "Hosts that plain HTTP may be asked for.";
    "peer-cert-file", Text, "", Acts, "Certificate of the peer URLs.";
    "peer-key-file", Text, "", Acts, "Key of the peer URLs.";
    "peer-client-cert-auth", Bool, "false", Acts, "Ask peers for a certificate.";
    "peer-trusted-ca-file", Text, "", Acts, "Who signs the certificates of peers.";
    "peer-auto-tls", Bool, "false", Acts, "Make a certificate for the peer URLs.";
    "peer-crl-file", Text, "", Acts, "Revoked certificates of peers.";
    "peer-cert-allowed-cn", List, "", Acts,
        "Common names of which a peer's certificate must have one.";
    "peer-cert-allowed-hostname", List, "", Acts,
        "Names of which a peer's certificate must have one.";
    "peer-client-cert-file", Text, "", Idle, "Shown to other peers: there are none.";
    "peer-client-key-file", Text, "", Idle, "Shown to other peers: there are none.";
    "peer-skip-client-san-verification", Bool, "false", Idle,
        "Addresses of peers are not held against their certificates.";
    # "Auth" =>
    "auth-token", Text, "simple", Acts,
        "Kind of token: simple, or jwt,sign-method=RS256,pub-key=FILE,priv-key=FILE,ttl=5m.";
    "auth-token-ttl", Uint, "300", Acts, "Seconds that a token lives after its last use.";
    "bcrypt-cost", Uint, "10", Acts, "Cost of hashing a new password, 4 to 31.";
    # "Profiling and monitoring" =>
    "enable-pprof", Bool, "false", Warns("there are no profiles of Go's"),
        "Profiles under /debug/pprof.";
    "metrics", Text, "basic", Acts, "extensive adds histograms of gRPC.";
    "listen-metrics-urls", Urls, "", Acts, "Where to listen for metrics and health alone.";
    "warning-apply-duration", Time, "100ms", Acts, "Applying a request for longer is logged.";
    "warning-unary-request-duration", Time, "300ms", Acts, "A request that takes longer is logged.";
    # "Logging" =>
    "logger", Text, "zap", Acts, "zap, for lines as etcd writes them.";
    "log-outputs", Names, "default", Acts, "default, stderr, stdout, or files.";
    "log-level", Text, "info", Acts, "debug, info, warn, error, panic or fatal.";
    "log-format", Text, "json", Acts, "json or console.";
    "enable-log-rotation", Bool, "false", Warns(NO_ROTATION), "Rotate the log file.";
    "log-rotation-config-json", Text, "{}", Idle, "How to rotate it.";
    # "Distributed tracing" =>
    "enable-distributed-tracing", Bool, "false", Warns(NO_TRACES), "Send traces.";
    "distributed-tracing-address", Text, "localhost:4317", Idle, "Where to.";
    "distributed-tracing-service-name", Text, "etcd", Idle, "As whom.";
    "distributed-tracing-instance-id", Text, "", Idle, "As which.";
    "distributed-tracing-sampling-rate", Int, "0", Idle, "How many of a million.";
    # "Features" =>
    "corrupt-check-time", Time, "", Idle, "Comparing with other members: there are none.";
    "compact-hash-check-time", Time, "1m", Idle, "Comparing with other members: there are none.";
    "compaction-batch-limit", Int, "0", Acts,
        "Rows that a compaction drops before it rests; 0 is 1000.";
    "compaction-sleep-interval", Time, "", Acts, "How long it rests; 0 is 10ms.";
    "watch-progress-notify-interval", Time, "", Acts,
        "How often quiet watchers that asked for it are told the revision; 0 is 10m.";
    "bootstrap-defrag-threshold-megabytes", Uint, "0", Acts,
        "Pack the database at the start if that frees so much; 0 is never.";
    "downgrade-check-time", Time, "5s", Idle, "Time between looks at a downgrade.";
    # "Unsafe: may lose data" =>
    "force-new-cluster", Bool, "false", Acts, "Make a member of several the only one.";
    "unsafe-no-fsync", Bool, "false", Acts, "Sync nothing.";
    # "Of etcd 3.6 and older" =>
    "experimental-bootstrap-defrag-threshold-megabytes", Uint, "0",
        Was("bootstrap-defrag-threshold-megabytes"), "";
    "experimental-compact-hash-check-enabled", Bool, "false", WasGate("CompactHashCheck"), "";
    "experimental-compact-hash-check-time", Time, "1m", Was("compact-hash-check-time"), "";
    "experimental-compaction-batch-limit", Int, "0", Was("compaction-batch-limit"), "";
    "experimental-compaction-sleep-interval", Time, "", Was("compaction-sleep-interval"), "";
    "experimental-corrupt-check-time", Time, "", Was("corrupt-check-time"), "";
    "experimental-distributed-tracing-address", Text, "localhost:4317",
        Was("distributed-tracing-address"), "";
    "experimental-distributed-tracing-instance-id", Text, "",
        Was("distributed-tracing-instance-id"), "";
    "experimental-distributed-tracing-sampling-rate", Int, "0",
        Was("distributed-tracing-sampling-rate"), "";
    "experimental-distributed-tracing-service-name", Text, "etcd",
        Was("distributed-tracing-service-name"), "";
    "experimental-downgrade-check-time", Time, "5s", Was("downgrade-check-time"), "";
    "experimental-enable-distributed-tracing", Bool, "false", Was("enable-distributed-tracing"), "";
    "experimental-enable-lease-checkpoint", Bool, "false", WasGate("LeaseCheckpoint"), "";
    "experimental-enable-lease-checkpoint-persist", Bool, "false",
        WasGate("LeaseCheckpointPersist"), "";
    "experimental-initial-corrupt-check", Bool, "false", WasGate("InitialCorruptCheck"), "";
    "experimental-memory-mlock", Bool, "false", Was("memory-mlock"), "";
    "experimental-peer-skip-client-san-verification", Bool, "false",
        Was("peer-skip-client-san-verification"), "";
    "experimental-snapshot-catchup-entries", Uint, "5000", Was("snapshot-catchup-entries"), "";
    "experimental-stop-grpc-service-on-defrag", Bool, "false",
        WasGate("StopGRPCServiceOnDefrag"), "";
    "experimental-txn-mode-write-with-shared-buffer", Bool, "true",
        WasGate("TxnModeWriteWithSharedBuffer"), "";
    "experimental-warning-apply-duration", Time, "100ms", Was("warning-apply-duration"), "";
    "experimental-warning-unary-request-duration", Time, "",
        Was("warning-unary-request-duration"), "";
    "experimental-watch-progress-notify-interval", Time, "",
        Was("watch-progress-notify-interval"), "";
    "enable-v2", Bool, "false", Refused(NO_V2), "etcd 3.5.";
    "experimental-enable-v2v3", Text, "", Refused(NO_V2), "etcd 3.5.";
    "proxy", OneOf(&["off", "readonly", "on"]), "off", Refused(NO_V2), "etcd 3.5.";
    "proxy-dial-timeout", Uint, "1000", Idle, "etcd 3.5.";
    "proxy-failure-wait", Uint, "5000", Idle, "etcd 3.5.";
    "proxy-read-timeout", Uint, "0", Idle, "etcd 3.5.";
    "proxy-refresh-interval", Uint, "30000", Idle, "etcd 3.5.";
    "proxy-write-timeout", Uint, "5000", Idle, "etcd 3.5.";
};

/// Flags that no help shows: one that says who this is, and those that etcd ignores.
pub(super) const HIDDEN: &[Flag] = &[
    flag("version", Bool, "false", Acts, ""),
    flag("cluster-active-size", Ignored, "", Idle, ""),
    flag("cluster-remove-delay", Ignored, "", Idle, ""),
    flag("cluster-sync-interval", Ignored, "", Idle, ""),
    flag("config", Ignored, "", Idle, ""),
    flag("force", Ignored, "", Idle, ""),
    flag("max-result-buffer", Ignored, "", Idle, ""),
    flag("max-retry-attempts", Ignored, "", Idle, ""),
    flag("peer-heartbeat-interval", Ignored, "", Idle, ""),
    flag("peer-election-timeout", Ignored, "", Idle, ""),
    flag("retry-interval", Ignored, "", Idle, ""),
    flag("snapshot", Ignored, "", Idle, ""),
    flag("v", Ignored, "", Idle, ""),
    flag("vv", Ignored, "", Idle, ""),
    flag("test.coverprofile", Ignored, "", Idle, ""),
    flag("test.outputdir", Ignored, "", Idle, ""),
];

/// Returns every flag.
pub(super) fn all() -> impl Iterator<Item = &'static Flag> {
    GROUPS.iter().flat_map(|group| group.flags).chain(HIDDEN)
}

/// Finds a flag.
pub(super) fn find(name: &str) -> Option<&'static Flag> {
    all().find(|flag| flag.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound() {
        let mut names: Vec<&str> = all().map(|flag| flag.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for flag in all() {
            let nothing = flag.kind.default("");
            let is_read = flag.default.is_empty() || flag.kind.read(&nothing, flag.default).is_ok();
            assert!(is_read, "{}", flag.name);
            if let Was(other) = flag.effect {
                assert_eq!(find(other).map(|flag| flag.kind), Some(flag.kind), "{}", flag.name);
            }
        }
    }
}
