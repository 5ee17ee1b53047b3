//! The store's server: etcd's v3 API, its HTTP endpoints and its gateway, over one [`Store`].
//!
//! ```text
//! listen     sockets, TLS, limits; one task a connection
//! dispatch   a request to its service; deadlines, counts, texts of gRPC's own errors
//! metrics    what all of this counts, and how it is shown
//! jwt        signed tokens
//! kv watch lease maintenance cluster auth health lock election     one service a file
//! parts recipe     long answers; what locks and elections have in common
//! convert    the store's answers to messages, and back
//! http       /health /readyz /metrics ..., and the JSON gateway
//! ```
//!
//! 1. A handler never blocks a thread of the runtime for long: what takes long, or waits for a
//!    disk other than by a future, runs on a thread of its own.
//! 2. What a client sends or does not take costs bounded memory: messages have a limit, streams are
//!    polled only while their client takes what they give, and handshakes have a time.
//! 3. Codes and texts are etcd's, byte for byte; clients match on them.
//! 4. When the server stops, streams end with `Unavailable`, calls are finished, then connections
//!    are closed. The store stays open: whoever opened it closes it.
//!
//! Source: etcd `embed/{etcd,serve}.go`, `etcdserver/api/v3rpc`, 3.6.16 and 3.7.3.

mod auth;
mod call;
mod cluster;
mod convert;
mod dispatch;
mod election;
mod health;
mod http;
pub mod jwt;
mod kv;
mod lease;
mod list;
mod listen;
mod lock;
mod maintenance;
mod metrics;
mod parts;
mod recipe;
mod status;
pub mod tls;
mod watch;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch as signal};

pub use self::listen::check_free;
pub use self::metrics::Feature;
use self::metrics::Metrics;
use self::tls::Tls;
use super::Store;
use super::lines::Log;
use super::setters::setters;

/// Calls that go through the whole database at once; more wait for their turn.
const WHOLE_READS_MAX: usize = 8;

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A TCP address; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// A Unix socket; one that a killed server left is replaced, and it is removed at the stop.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

/// What is served at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// gRPC, HTTP endpoints and gateway.
    Client,
    /// gRPC alone: HTTP has an address of its own.
    Grpc,
    /// HTTP endpoints and gateway alone.
    Http,
    /// `/metrics`, `/health`, `/livez` and `/readyz` alone.
    Metrics,
    /// What peers ask by HTTP: `/version` and `/members`.
    Peer,
}

/// A socket to listen on. Listeners of one address and role share one: a connection that begins
/// with TLS is told from one that does not.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Where.
    pub address: Address,
    /// What is served there.
    pub role: Role,
    /// TLS; `None`: what travels can be read on the way.
    pub tls: Option<Tls>,
}

/// Files of those that the program may have open which connections leave to the store. Source: etcd
/// `reservedInternalFDNum`, `embed/etcd.go`, 3.6.16.
pub const RESERVED_FILES: u64 = 150;

/// How to serve; the defaults are etcd's.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Sockets.
    pub listeners: Vec<Listener>,
    /// Largest request of a client in bytes, without gRPC's own; as the store's.
    pub request_bytes_max: usize,
    /// Most calls at once on one connection.
    pub streams_max: u32,
    /// Most connections at once, but for those that ask for metrics alone and those of peers; more
    /// wait in the system's queue. Never more than the files that the program may have open without
    /// [`RESERVED_FILES`].
    pub connections_max: usize,
    /// Whether others may listen on the same TCP addresses (SO_REUSEPORT).
    pub reuse_port: bool,
    /// Time from which on a call is told to the log as slow.
    pub warning_unary: Duration,
    /// Time after which a quiet client is asked whether it is there.
    pub keepalive_interval: Duration,
    /// Time within which it has to answer.
    pub keepalive_timeout: Duration,
    /// Time in which a client has to say what it speaks, and an HTTP/1 client what it asks.
    pub patience: Duration,
    /// Whether the JSON gateway is served.
    pub gateway: bool,
    /// Origins whose pages may ask by HTTP; none or `*` stands for all.
    pub cors: Vec<String>,
    /// Names of this host by which it may be asked by HTTP without TLS; none or `*` stands for
    /// all.
    pub host_whitelist: Vec<String>,
    /// Whether metrics have histograms of the times of calls: `--metrics extensive`.
    pub extensive_metrics: bool,
    /// Feature gates as the metrics tell them.
    pub features: Vec<Feature>,
    /// What `/debug/vars` tells of the command line; whoever can connect reads it.
    pub command_line: Vec<String>,
    /// Whether gRPC's health service says that nothing is served while the database is
    /// defragmented: the feature gate `StopGRPCServiceOnDefrag`.
    pub stops_on_defrag: bool,
    /// Where what a person should know is told.
    pub log: Log,
}

setters! { Options:
    listeners: Vec<Listener>,
    request_bytes_max: usize,
    streams_max: u32,
    connections_max: usize,
    reuse_port: bool,
    warning_unary: Duration,
    keepalive_interval: Duration,
    keepalive_timeout: Duration,
    patience: Duration,
    gateway: bool,
    cors: Vec<String>,
    host_whitelist: Vec<String>,
    extensive_metrics: bool,
    features: Vec<Feature>,
    command_line: Vec<String>,
    stops_on_defrag: bool,
    log: Log,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            listeners: Vec::new(),
            request_bytes_max: 3 << 19,
            streams_max: u32::MAX,
            connections_max: 65_536,
            reuse_port: false,
            warning_unary: Duration::from_millis(300),
            keepalive_interval: Duration::from_secs(7200),
            keepalive_timeout: Duration::from_secs(20),
            patience: Duration::from_secs(45),
            gateway: true,
            cors: vec!["*".into()],
            host_whitelist: vec!["*".into()],
            extensive_metrics: false,
            features: Vec::new(),
            command_line: Vec::new(),
            stops_on_defrag: false,
            log: Log::silent(),
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A socket cannot be listened on.
    #[error("listen on {address}: {source}")]
    Listen {
        /// Which.
        address: Address,
        /// Why.
        source: std::io::Error,
    },
    /// The program may not have enough files open.
    #[error(
        "{limit} files may be open (ulimit -n), and {RESERVED_FILES} of them are for the store \
         alone: please set it higher"
    )]
    Files {
        /// How many it may have open.
        limit: u64,
    },
    /// The system gives no threads.
    #[error("start the server's threads: {0}")]
    Threads(#[source] std::io::Error),
}

/// What all connections and calls of a server share.
#[derive(Debug)]
struct Shared {
    store: Store,
    options: Options,
    metrics: Arc<Metrics>,
    /// Becomes true when the server is to stop.
    closing: signal::Receiver<bool>,
    /// Turns of those that hash or compare a password, which keeps a processor busy for long.
    hashing: Arc<Semaphore>,
    /// Turns of those that go through the whole database.
    reading: Arc<Semaphore>,
}

/// Is ready when the server is to stop.
type Closed = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Shared {
    /// Is ready when the server is to stop.
    fn closed(&self) -> Closed {
        let mut closing = self.closing.clone();
        Box::pin(async move {
            // Where the signal is gone, so is the server.
            let _ = closing.wait_for(|closing| *closing).await;
        })
    }
}

/// A server that runs. Dropped, it stops at once.
#[derive(Debug)]
pub struct Server {
    runtime: Option<Runtime>,
    closing: signal::Sender<bool>,
    /// Where it listens, in the order of the options.
    addresses: Vec<Address>,
    files: Vec<listen::SocketFile>,
    connections: listen::Connections,
    shared: Arc<Shared>,
}

impl Server {
    /// Listens on every socket of the options, and serves a store from then on, on threads of its
    /// own.
    ///
    /// # Errors
    /// A socket cannot be had, or too few files; none is listened on then.
    pub fn start(store: Store, options: Options) -> Result<Self, StartError> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .thread_name("serve")
            .enable_all()
            .build()
            .map_err(StartError::Threads)?;
        let (closing, is_closing) = signal::channel(false);
        let metrics = Metrics::new(options.extensive_metrics, options.features.clone());
        let metrics = Arc::new(metrics);
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let hashing = Arc::new(Semaphore::new(processors));
        let reading = Arc::new(Semaphore::new(WHOLE_READS_MAX));
        let shared =
            Arc::new(Shared { store, options, metrics, closing: is_closing, hashing, reading });
        let connections = listen::Connections::default();
        let (addresses, files) = {
            let _entered = runtime.enter();
            listen::start(&shared, &connections)?
        };
        Ok(Self { runtime: Some(runtime), closing, addresses, files, connections, shared })
    }

    /// Returns what `/metrics` tells, in Prometheus' text format.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.shared.metrics.render(&self.shared.store)
    }

    /// Returns where it listens, in the order of the options' listeners; ports that the system
    /// chose are told.
    #[must_use]
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Stops: takes no more connections, ends streams, lets calls finish for as long as `limit`,
    /// and closes what is left. Must not be called on a thread of an asynchronous runtime.
    pub fn stop(mut self, limit: Duration) {
        self.closing.send_replace(true);
        // While they are listened on nobody takes their places.
        self.files.clear();
        if let Some(runtime) = self.runtime.take() {
            runtime.block_on(self.connections.ended(limit));
            runtime.shutdown_background();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.closing.send_replace(true);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[cfg(test)]
mod tests;
