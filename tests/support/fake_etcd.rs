//! An etcd that is not there: a gRPC server in this process, on loopback, that answers what a test
//! tells it to, so that the live commands are tested on a machine with Rust alone.
//!
//! ```ignore
//! let fake = FakeEtcd::start(Member::new("m1").version("3.6.16").revision(100).file(&bytes));
//! sandbox.run(&format!("endpoint status --endpoints {}", fake.endpoint())).expect(0, &[]);
//! fake.set(|member| member.revision = 7); // while it runs
//! assert_eq!(fake.calls("Status"), 1);
//!
//! let mut three = FakeCluster::start(["m1", "m2", "m3"].map(Member::new));
//! three.members[0].stop(); // its port refuses from now on; `restart` opens it again
//! three.members[1].set(|m| m.alarms = vec![(m.id, NOSPACE)]);
//! sandbox.run(&format!("status --endpoints {}", three.endpoints())).expect(3, &["NOSPACE"]);
//! ```
//!
//! What it owns: the answers of Range, `MemberList`, Status, Alarm (get), `HashKV`, Snapshot,
//! Authenticate, `AuthStatus`, `UserGet` and `RoleGet`, with etcd's own codes and texts and its
//! differences between 3.5, 3.6 and 3.7; and of what changes a member, in `fake_upkeep.rs`.
//! Every other method is unknown, as it is to an older etcd.
//! It keeps no data: revisions, hashes and sizes are what the test sets.
//!
//! A server stops, and frees its port, when it is dropped.
//!
//! **Source**: etcd v3.5.35, v3.6.16, v3.7.3, `server/etcdserver/api/v3rpc/{maintenance,member,
//! interceptor,key,util}.go`, `server/auth/store.go`, `api/v3rpc/rpctypes/error.go`

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]
#![allow(clippy::indexing_slicing, reason = "these are tests")]

#[path = "fake_answers.rs"]
mod answers;
#[path = "fake_upkeep.rs"]
pub(crate) mod upkeep;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use etcd_client::proto::PbResponseHeader;
use sha2::{Digest, Sha256};
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tonic::Code;

/// The alarm of a database that has reached its quota.
pub(crate) const NOSPACE: i32 = 1;
/// The alarm of a member whose data differs from the others'.
pub(crate) const CORRUPT: i32 = 2;

/// An error as etcd answers it.
pub(crate) type Refusal = (Code, &'static str);

/// Errors of etcd that tests ask for by name.
pub(crate) mod refusals {
    use super::{Code, Refusal};

    pub(crate) const COMPACTED: Refusal =
        (Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted");
    pub(crate) const FUTURE: Refusal =
        (Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision");
    pub(crate) const NO_LEADER: Refusal = (Code::Unavailable, "etcdserver: no leader");
    pub(crate) const TIMED_OUT: Refusal = (Code::Unavailable, "etcdserver: request timed out");
    /// What goes through the raft log, questions for alarms and users among it, waits otherwise.
    pub(crate) const NOT_PROPOSED: Refusal = (Code::DeadlineExceeded, "context deadline exceeded");
    pub(crate) const STOPPED: Refusal = (Code::Unavailable, "etcdserver: server stopped");
    pub(crate) const LEARNER: Refusal =
        (Code::FailedPrecondition, "etcdserver: rpc not supported for learner");
    pub(crate) const TOO_MANY: Refusal = (Code::ResourceExhausted, "etcdserver: too many requests");
    pub(crate) const USER_EMPTY: Refusal =
        (Code::InvalidArgument, "etcdserver: user name is empty");
    pub(crate) const USER_NOT_FOUND: Refusal =
        (Code::FailedPrecondition, "etcdserver: user name not found");
    pub(crate) const ROLE_NOT_FOUND: Refusal =
        (Code::FailedPrecondition, "etcdserver: role name not found");
    pub(crate) const AUTH_FAILED: Refusal =
        (Code::InvalidArgument, "etcdserver: authentication failed, invalid user ID or password");
    pub(crate) const AUTH_OFF: Refusal =
        (Code::FailedPrecondition, "etcdserver: authentication is not enabled");
    pub(crate) const BAD_TOKEN: Refusal = (Code::Unauthenticated, "etcdserver: invalid auth token");
    pub(crate) const DENIED: Refusal = (Code::PermissionDenied, "etcdserver: permission denied");
}

/// What a method does instead of answering.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Answers with this error.
    Error(Code, String),
    /// Answers as always, so much later.
    Delay(Duration),
    /// Takes the call and never answers.
    Silent,
    /// Drops every connection of the member.
    Drop,
}

impl From<Refusal> for Fault {
    fn from((code, text): Refusal) -> Self {
        Self::Error(code, text.to_owned())
    }
}

/// What goes wrong while a snapshot is sent. Offsets count the file's bytes, from 0; as many as
/// that are sent before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotFault {
    /// Says nothing more from there on.
    Stall(usize),
    /// Ends the stream with an error.
    Error(usize, Code, String),
    /// Drops every connection of the member.
    Drop(usize),
    /// Ends the stream as if all were said.
    End(usize),
    /// Inverts the bits of one byte; the trailer is that of the true bytes.
    Flip(usize),
    /// Sends the sum of other bytes as trailer.
    WrongTrailer,
    /// Sends every byte and no trailer.
    NoTrailer,
}

/// A user of the fake: its password and its roles. The role `root` may everything.
#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) password: String,
    pub(crate) roles: Vec<String>,
}

/// What a role may do with keys from one up to another (as in `RangeRequest`).
#[derive(Clone, Debug)]
pub(crate) struct Grant {
    pub(crate) key: Vec<u8>,
    pub(crate) range_end: Vec<u8>,
    /// 0 read, 1 write, 2 both.
    pub(crate) kind: i32,
}

/// A member as `MemberList` shows it.
#[derive(Clone, Debug)]
pub(crate) struct Listed {
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) peer_urls: Vec<String>,
    pub(crate) client_urls: Vec<String>,
    pub(crate) is_learner: bool,
}

/// Everything that a member answers. Tests set what they need, also while it runs.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) id: u64,
    pub(crate) cluster_id: u64,
    /// As Status reports it. Its minor decides which fields and checks are there.
    pub(crate) version: String,
    pub(crate) db_size: i64,
    pub(crate) db_size_in_use: i64,
    /// Reported by 3.6 and later only.
    pub(crate) quota: i64,
    /// 0 for no leader: reads that need one time out.
    pub(crate) leader: u64,
    pub(crate) raft_index: u64,
    pub(crate) raft_applied_index: u64,
    pub(crate) raft_term: u64,
    pub(crate) is_learner: bool,
    /// Target of a downgrade that is under way.
    pub(crate) downgrade: Option<String>,
    /// More lines for Status's errors; those of alarms and of no leader come by themselves.
    pub(crate) errors: Vec<String>,
    /// Member id and kind ([`NOSPACE`], [`CORRUPT`]).
    pub(crate) alarms: Vec<(u64, i32)>,
    pub(crate) revision: i64,
    /// -1 for never compacted.
    pub(crate) compact_revision: i64,
    /// `HashKV` by revision. A revision that is not in here has a hash made up from its number,
    /// the same on every member.
    pub(crate) hashes: BTreeMap<i64, u32>,
    /// Keys that a Range finds, with their values, all created and last changed at `revision`.
    pub(crate) keys: BTreeMap<Vec<u8>, Vec<u8>>,
    /// What `MemberList` shows; empty for this member alone.
    pub(crate) members: Vec<Listed>,
    /// The URL that this member tells clients; empty for its own port.
    pub(crate) advertised: String,

    /// Whether auth is on.
    pub(crate) auth: bool,
    pub(crate) users: BTreeMap<String, User>,
    pub(crate) roles: BTreeMap<String, Vec<Grant>>,

    /// The database that Snapshot sends, without trailer.
    pub(crate) file: Arc<Vec<u8>>,
    pub(crate) snapshot_fault: Option<SnapshotFault>,
    /// Bytes a second that Snapshot sends at most.
    pub(crate) snapshot_rate: Option<u64>,

    /// How it defragments.
    pub(crate) defrag: upkeep::Defrag,
    /// A defragmentation is under way.
    pub(crate) is_busy: bool,
    /// What it shares with the members of its cluster.
    pub(crate) common: upkeep::SharedUpkeep,

    /// By the method's name without its service: `Status`, `HashKV`, `MemberList`.
    pub(crate) faults: BTreeMap<String, Fault>,
    /// How long a read waits for a leader that is not there; etcd has 7 s.
    pub(crate) no_leader_wait: Duration,
}

impl Member {
    /// A healthy single member of 3.6 that leads itself.
    pub(crate) fn new(name: &str) -> Self {
        let sum = Sha256::digest(name.as_bytes());
        // Above 2^53, so that a tool that takes ids for floating point numbers is found out.
        let id = u64::from_be_bytes(sum[..8].try_into().expect("8 bytes")) | 1 << 63;
        Self {
            name: name.to_owned(),
            id,
            cluster_id: 0xcdf8_181e_3267_4f2b,
            version: "3.6.16".to_owned(),
            db_size: 40_960,
            db_size_in_use: 20_480,
            quota: 2_147_483_648,
            leader: id,
            raft_index: 50,
            raft_applied_index: 50,
            raft_term: 2,
            is_learner: false,
            downgrade: None,
            errors: Vec::new(),
            alarms: Vec::new(),
            revision: 1,
            compact_revision: -1,
            hashes: BTreeMap::new(),
            keys: BTreeMap::new(),
            members: Vec::new(),
            advertised: String::new(),
            auth: false,
            users: BTreeMap::new(),
            roles: BTreeMap::new(),
            file: Arc::new(Vec::new()),
            snapshot_fault: None,
            snapshot_rate: None,
            defrag: upkeep::Defrag::default(),
            is_busy: false,
            common: upkeep::SharedUpkeep::default(),
            faults: BTreeMap::new(),
            no_leader_wait: Duration::from_millis(100),
        }
    }

    pub(crate) fn id(mut self, id: u64) -> Self {
        if self.leader == self.id {
            self.leader = id;
        }
        self.id = id;
        self
    }

    pub(crate) fn version(mut self, version: &str) -> Self {
        version.clone_into(&mut self.version);
        self
    }

    pub(crate) fn revision(mut self, revision: i64) -> Self {
        self.revision = revision;
        self
    }

    pub(crate) fn sizes(mut self, db_size: i64, in_use: i64, quota: i64) -> Self {
        (self.db_size, self.db_size_in_use, self.quota) = (db_size, in_use, quota);
        self
    }

    pub(crate) fn learner(mut self) -> Self {
        self.is_learner = true;
        self
    }

    /// Sends this database as snapshot; a trailer that it has is left out. The revisions and
    /// hashes that a server reports are set with `revision`, `compact_revision` and `hashes`.
    pub(crate) fn file(mut self, bytes: &[u8]) -> Self {
        let trailer = if bytes.len() % 512 == 32 { 32 } else { 0 };
        self.file = Arc::new(bytes[..bytes.len() - trailer].to_vec());
        self.db_size = i64::try_from(self.file.len()).expect("a small file");
        self.db_size_in_use = self.db_size;
        self
    }

    /// Turns auth on with `root` and its password, and a user `app` (password `app`) whose role
    /// `app` may read and write below `/app/`.
    pub(crate) fn auth(mut self, root_password: &str) -> Self {
        let user = |password: &str, role: &str| User {
            password: password.to_owned(),
            roles: vec![role.to_owned()],
        };
        self.users.insert("root".to_owned(), user(root_password, "root"));
        self.users.insert("app".to_owned(), user("app", "app"));
        let grant = Grant { key: b"/app/".to_vec(), range_end: b"/app0".to_vec(), kind: 2 };
        self.roles.insert("app".to_owned(), vec![grant]);
        self.roles.insert("root".to_owned(), Vec::new());
        self.auth = true;
        self
    }

    pub(crate) fn fault(mut self, method: &str, fault: impl Into<Fault>) -> Self {
        self.faults.insert(method.to_owned(), fault.into());
        self
    }

    pub(crate) fn snapshot_fault(mut self, fault: SnapshotFault) -> Self {
        self.snapshot_fault = Some(fault);
        self
    }

    fn minor(&self) -> u32 {
        self.version.split('.').nth(1).and_then(|minor| minor.parse().ok()).expect("a version")
    }

    fn storage_version(&self) -> String {
        if self.minor() < 6 { String::new() } else { format!("3.{}.0", self.minor()) }
    }

    pub(crate) fn header(&self, revision: i64) -> Option<PbResponseHeader> {
        Some(PbResponseHeader {
            cluster_id: self.cluster_id,
            member_id: self.id,
            revision,
            raft_term: self.raft_term,
        })
    }

    fn hash(&self, revision: i64) -> u32 {
        let made_up = || {
            let sum = Sha256::digest(revision.to_be_bytes());
            u32::from_be_bytes(sum[..4].try_into().expect("4 bytes"))
        };
        self.hashes.get(&revision).copied().unwrap_or_else(made_up)
    }
}

/// A running fake; it stops when it is dropped.
pub(crate) struct FakeEtcd {
    shared: Arc<Shared>,
    address: SocketAddr,
    tls: Option<Arc<ServerConfig>>,
    running: Option<Running>,
}

struct Running {
    thread: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    member: Mutex<Member>,
    calls: Mutex<Vec<String>>,
    spans: Mutex<Vec<(String, usize, usize)>>,
    snapshots: AtomicUsize,
    /// A new number drops every connection.
    cut: watch::Sender<u64>,
}

impl Shared {
    fn member(&self) -> MutexGuard<'_, Member> {
        self.member.lock().expect("the member")
    }
}

impl FakeEtcd {
    /// Serves on a free loopback port, over plain http.
    pub(crate) fn start(member: Member) -> Self {
        Self::serve(member, listen(0), None)
    }

    /// Serves over TLS; `certs::server` makes the configuration.
    pub(crate) fn start_tls(member: Member, tls: Arc<ServerConfig>) -> Self {
        Self::serve(member, listen(0), Some(tls))
    }

    fn serve(member: Member, listener: TcpListener, tls: Option<Arc<ServerConfig>>) -> Self {
        let shared = Arc::new(Shared {
            member: Mutex::new(member),
            calls: Mutex::new(Vec::new()),
            spans: Mutex::new(Vec::new()),
            snapshots: AtomicUsize::new(0),
            cut: watch::channel(0).0,
        });
        let common = shared.member().common.clone();
        common.join(&shared);
        let address = listener.local_addr().expect("an address");
        let mut fake = Self { shared, address, tls, running: None };
        if fake.member().advertised.is_empty() {
            let url = fake.url();
            fake.set(|member| member.advertised = url);
        }
        fake.run(listener);
        fake
    }

    fn run(&mut self, listener: TcpListener) {
        let (stop, stopped) = oneshot::channel();
        let (shared, tls) = (Arc::clone(&self.shared), self.tls.clone());
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().expect("a runtime");
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, shared, tls) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_background();
        });
        self.running = Some(Running { thread, stop });
    }

    /// Its client URL: `http://127.0.0.1:PORT`, or https with TLS.
    pub(crate) fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// The same, for `--endpoints`.
    pub(crate) fn endpoint(&self) -> String {
        self.url()
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// What it answers now.
    pub(crate) fn member(&self) -> Member {
        self.shared.member().clone()
    }

    /// Changes what it answers from now on. A snapshot that is being sent stays as it is.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Member)) {
        change(&mut self.shared.member());
    }

    /// How often a method was called, by its name without the service.
    pub(crate) fn calls(&self, method: &str) -> usize {
        self.log().iter().filter(|name| *name == method).count()
    }

    /// Every call in order, by the method's name.
    pub(crate) fn log(&self) -> Vec<String> {
        self.shared.calls.lock().expect("the calls").clone()
    }

    /// When the last call of a method began and was answered, on a clock that all fakes share.
    pub(crate) fn last_span(&self, method: &str) -> (usize, usize) {
        let spans = self.shared.spans.lock().expect("the spans");
        let last = spans.iter().rev().find(|(name, ..)| name == method);
        last.map(|(_, began, ended)| (*began, *ended)).expect("a call")
    }

    /// How many snapshots are being sent now: read transactions that a real server would hold.
    pub(crate) fn open_snapshots(&self) -> usize {
        self.shared.snapshots.load(Ordering::SeqCst)
    }

    /// Drops every connection; new ones are taken.
    pub(crate) fn cut(&self) {
        self.shared.cut.send_modify(|number| *number += 1);
    }

    /// Ends it: connections break, the port refuses.
    pub(crate) fn stop(&mut self) {
        if let Some(Running { thread, stop }) = self.running.take() {
            let _ = stop.send(());
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the fake etcd panicked");
        }
    }

    /// Starts it again on the port that it had.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.run(listen(self.address.port()));
    }
}

impl Drop for FakeEtcd {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Several fakes that name each other in `MemberList`; the first that is no learner leads.
pub(crate) struct FakeCluster {
    pub(crate) members: Vec<FakeEtcd>,
    common: upkeep::SharedUpkeep,
}

impl FakeCluster {
    pub(crate) fn start(members: impl IntoIterator<Item = Member>) -> Self {
        Self::serve(members, None)
    }

    pub(crate) fn start_tls(
        members: impl IntoIterator<Item = Member>,
        tls: &Arc<ServerConfig>,
    ) -> Self {
        Self::serve(members, Some(tls))
    }

    fn serve(members: impl IntoIterator<Item = Member>, tls: Option<&Arc<ServerConfig>>) -> Self {
        let common = upkeep::SharedUpkeep::default();
        let serve = |member| {
            let member = Member { common: common.clone(), ..member };
            FakeEtcd::serve(member, listen(0), tls.cloned())
        };
        let members: Vec<FakeEtcd> = members.into_iter().map(serve).collect();
        let cluster = Self { members, common };
        let all: Vec<Member> = cluster.members.iter().map(FakeEtcd::member).collect();
        let leader = all.iter().find(|member| !member.is_learner).map_or(0, |member| member.id);
        let listed: Vec<Listed> = all.iter().map(|member| listed(member, true)).collect();
        for fake in &cluster.members {
            fake.set(|member| {
                member.members.clone_from(&listed);
                member.leader = leader;
            });
        }
        cluster
    }

    /// What the members share; let it go before anything is asked.
    pub(crate) fn upkeep(&self) -> std::sync::MutexGuard<'_, upkeep::Upkeep> {
        self.common.lock()
    }

    /// Every member's endpoint, with commas between.
    pub(crate) fn endpoints(&self) -> String {
        let all: Vec<String> = self.members.iter().map(FakeEtcd::endpoint).collect();
        all.join(",")
    }

    /// Changes every member.
    pub(crate) fn set(&self, change: impl Fn(&mut Member)) {
        for fake in &self.members {
            fake.set(&change);
        }
    }
}

fn listed(member: &Member, has_name: bool) -> Listed {
    Listed {
        id: member.id,
        name: if has_name { member.name.clone() } else { String::new() },
        peer_urls: vec![format!("http://{}.invalid:2380", member.name)],
        client_urls: vec![member.advertised.clone()],
        is_learner: member.is_learner,
    }
}

fn listen(port: u16) -> TcpListener {
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("a port");
    listener.set_nonblocking(true).expect("a socket");
    listener
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, tls: Option<Arc<ServerConfig>>) {
    let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
    loop {
        let Ok((socket, _)) = listener.accept().await else { continue };
        let (shared, tls) = (Arc::clone(&shared), tls.clone());
        let mut cut = shared.cut.subscribe();
        tokio::spawn(async move {
            let serve = async {
                match tls {
                    None => connection(socket, shared).await,
                    // A handshake that fails has told the other side why.
                    Some(tls) => {
                        if let Ok(socket) = TlsAcceptor::from(tls).accept(socket).await {
                            connection(socket, shared).await;
                        }
                    }
                }
            };
            tokio::select! {
                () = serve => {}
                _ = cut.changed() => {}
            }
        });
    }
}

async fn connection<S>(socket: S, shared: Arc<Shared>)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let serve = hyper::service::service_fn(move |request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(answers::answer(shared, request).await) }
    });
    let http2 = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
    let socket = hyper_util::rt::TokioIo::new(socket);
    // An end that is no clean one is the client's business.
    let _ = http2.serve_connection(socket, serve).await;
}
