//! Clusters of real etcds on loopback, for the live commands.
//!
//! ```ignore
//! let Some(real) = real() else { return };
//! let mut cluster = Plan::new("3.6").members(3).tls().auth().learner().proxied(1).start(&real);
//! cluster.endpoints();        // voters first, then the learner, as clients should use them
//! cluster.flags();            // --cacert .. --cert .. --key .. with TLS, else nothing
//! cluster.ctl(&["endpoint", "status", "--cluster", "-w", "json"]).expect(0, &[]); // as root
//! cluster.ctl_as(Some("app:app"), "3.7", &cluster.endpoints(), &["get", "/app/x"]);
//! cluster.kit(&sandbox, &["endpoint", "status"]); // etcdkit with endpoints, TLS flags and root
//! cluster.proxy().set(|harm| harm.black_hole = true);
//! cluster.kill(2); cluster.restart(2); cluster.stop(0); cluster.pause(1); cluster.resume(1);
//! let load = cluster.load("/app/load"); ...; let acknowledged = load.stop();
//! ```
//!
//! Voters are `m1`, `m2`, ...; the learner is the last member, after them. Peers talk plain http.
//! With TLS the members want clients' certificates (`cluster.certs()` makes bad ones). With auth
//! there are `root` (password `rootpw`, role root) and `app` (password `app`, role app: reads and
//! writes below `/app/`).
//!
//! Data and logs lie in a temporary folder; a test that panics prints the ends of the logs.
//! Everything is killed by its process id when the cluster is dropped.

#![allow(dead_code, reason = "tests use their own part")]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::certs::Certs;
use crate::programs::{Etcd, Real, Refusal, bounded, free_ports, until};
use crate::proxy::Proxy;
use crate::support::{Ran, Sandbox};

/// What root's `--user` says.
pub(crate) const ROOT: &str = "root:rootpw";
/// What the ordinary user's `--user` says.
pub(crate) const APP: &str = "app:app";

/// Longest wait for a cluster to be one.
const READY: Duration = Duration::from_secs(60);
const RUN: Duration = Duration::from_secs(60);
const PORTS: usize = 16;

/// What cluster to start.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    versions: Vec<String>,
    is_tls: bool,
    is_auth: bool,
    has_learner: bool,
    proxied: Option<usize>,
    more: Vec<String>,
}

impl Plan {
    /// One member of a version.
    pub(crate) fn new(version: &str) -> Self {
        Self {
            versions: vec![version.to_owned()],
            is_tls: false,
            is_auth: false,
            has_learner: false,
            proxied: None,
            more: Vec::new(),
        }
    }

    /// So many voters of that version.
    pub(crate) fn members(mut self, count: usize) -> Self {
        self.versions = vec![self.versions[0].clone(); count];
        self
    }

    /// One voter of each version.
    pub(crate) fn versions(mut self, versions: &[&str]) -> Self {
        self.versions = versions.iter().map(|version| (*version).to_owned()).collect();
        self
    }

    pub(crate) fn tls(mut self) -> Self {
        self.is_tls = true;
        self
    }

    pub(crate) fn auth(mut self) -> Self {
        self.is_auth = true;
        self
    }

    /// One learner more, of the first version.
    pub(crate) fn learner(mut self) -> Self {
        self.has_learner = true;
        self
    }

    /// Puts a proxy before a member; the URL that it tells clients is the proxy's.
    pub(crate) fn proxied(mut self, index: usize) -> Self {
        self.proxied = Some(index);
        self
    }

    pub(crate) fn quota(self, bytes: u64) -> Self {
        self.flag(&format!("--quota-backend-bytes={bytes}"))
    }

    /// One more flag for every member, as one word.
    pub(crate) fn flag(mut self, flag: &str) -> Self {
        self.more.push(flag.to_owned());
        self
    }

    /// Starts it and waits until every member answers.
    #[track_caller]
    pub(crate) fn start<'a>(&self, real: &'a Real) -> Cluster<'a> {
        // Somebody may take a port between its choice and its use.
        (0..3).find_map(|_| Cluster::start(real, self)).expect("free ports in one of three tries")
    }
}

struct Node<'a> {
    name: String,
    version: String,
    words: Vec<String>,
    /// Where it listens.
    direct: String,
    /// Where clients are told to go.
    advertised: String,
    peer: String,
    etcd: Option<Etcd<'a>>,
}

/// A running cluster.
pub(crate) struct Cluster<'a> {
    real: &'a Real,
    plan: Plan,
    nodes: Vec<Node<'a>>,
    certs: Option<Certs>,
    proxy: Option<Proxy>,
    dir: tempfile::TempDir,
}

impl<'a> Cluster<'a> {
    fn start(real: &'a Real, plan: &Plan) -> Option<Self> {
        let ports = free_ports::<PORTS>();
        let dir = tempfile::tempdir().expect("a temporary folder");
        let certs = plan.is_tls.then(Certs::new);
        let (nodes, proxy) = (Vec::new(), None);
        let mut cluster = Self { real, plan: plan.clone(), nodes, certs, proxy, dir };
        let mut versions = plan.versions.clone();
        if plan.has_learner {
            versions.push(plan.versions[0].clone());
        }
        assert!(versions.len() * 2 <= PORTS, "too many members");
        for (index, version) in versions.iter().enumerate() {
            cluster.plan_node(index, version, [ports[index * 2], ports[index * 2 + 1]]);
        }
        let voters = plan.versions.len();
        for index in 0..voters {
            cluster.launch(index, "new", voters);
        }
        for index in 0..voters {
            cluster.come_up(index)?;
        }
        cluster.wait_for_answers();
        if plan.has_learner {
            let (name, peer) = (&cluster.nodes[voters].name, &cluster.nodes[voters].peer);
            let words = ["member", "add", name, "--learner", &format!("--peer-urls={peer}")];
            // etcd takes no member before its peers have been connected for five seconds.
            until("the learner is taken", READY, || {
                let ran = cluster.ctl_as(None, &versions[0], &cluster.direct(0), &words);
                assert!(ran.code == 0 || ran.stderr.contains("unhealthy cluster"), "{ran}");
                (ran.code == 0).then_some(())
            });
            cluster.launch(voters, "existing", voters + 1);
            cluster.come_up(voters)?;
            cluster.wait_for_answers();
        }
        if plan.is_auth {
            cluster.turn_auth_on();
        }
        Some(cluster)
    }

    fn plan_node(&mut self, index: usize, version: &str, [client, peer]: [u16; 2]) {
        let scheme = if self.plan.is_tls { "https" } else { "http" };
        let direct = format!("{scheme}://127.0.0.1:{client}");
        let mut advertised = direct.clone();
        if self.plan.proxied == Some(index) {
            let proxy = Proxy::to(client);
            advertised = format!("{scheme}://127.0.0.1:{}", proxy.port());
            self.proxy = Some(proxy);
        }
        let name = format!("m{}", index + 1);
        let peer = format!("http://127.0.0.1:{peer}");
        let (version, words) = (version.to_owned(), Vec::new());
        self.nodes.push(Node { name, version, words, direct, advertised, peer, etcd: None });
    }

    fn data_dir(&self, index: usize) -> String {
        self.dir.path().join(&self.nodes[index].name).to_str().expect("a plain path").to_owned()
    }

    fn launch(&mut self, index: usize, state: &str, members: usize) {
        let all = self.nodes[..members].iter().map(|node| format!("{}={}", node.name, node.peer));
        let all = all.collect::<Vec<_>>().join(",");
        let node = &self.nodes[index];
        let data_dir = self.data_dir(index);
        let mut words: Vec<String> = [
            ["--name", &node.name],
            ["--data-dir", &data_dir],
            ["--listen-client-urls", &node.direct],
            ["--advertise-client-urls", &node.advertised],
            ["--listen-peer-urls", &node.peer],
            ["--initial-advertise-peer-urls", &node.peer],
            ["--initial-cluster", &all],
            ["--initial-cluster-state", state],
        ]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect();
        // Tests kill processes, never machines.
        words.push("--unsafe-no-fsync".to_owned());
        if let Some(certs) = &self.certs {
            let (ca, server) = (certs.ca(), certs.server());
            let files = [
                ("--trusted-ca-file", ca),
                ("--cert-file", server.cert),
                ("--key-file", server.key),
            ];
            words.push("--client-cert-auth".to_owned());
            words.extend(files.map(|(flag, path)| format!("{flag}={}", path.display())));
        }
        words.extend(self.plan.more.iter().cloned());
        self.nodes[index].words = words;
        self.launch_again(index);
    }

    fn launch_again(&mut self, index: usize) {
        let node = &self.nodes[index];
        let mut command = self.real.program(&format!("etcd-{}", node.version));
        command.args(&node.words);
        let etcd = self.real.launch(command, &self.data_dir(index), node.direct.clone());
        self.nodes[index].etcd = Some(etcd);
    }

    /// `None` where somebody took the port.
    #[track_caller]
    fn come_up(&mut self, index: usize) -> Option<()> {
        let node = &mut self.nodes[index];
        match node.etcd.as_mut().expect("it was started").come_up() {
            Ok(()) => Some(()),
            Err(Refusal::Busy) => None,
            Err(refusal) => panic!("{} does not start: {refusal:?}", node.name),
        }
    }

    /// Waits until every member that runs knows the same leader and has applied what it knows.
    #[track_caller]
    fn wait_for_answers(&self) {
        let running: Vec<usize> =
            (0..self.nodes.len()).filter(|&i| self.nodes[i].etcd.is_some()).collect();
        until("every member knows the leader and has caught up", READY, || {
            let leaders = running.iter().map(|&index| {
                let status = self.status(index)?;
                let of = |key: &str| status[key].as_u64().unwrap_or_default();
                let has_caught_up = of("raftAppliedIndex") == of("raftIndex");
                (has_caught_up && of("leader") != 0).then(|| of("leader"))
            });
            let leaders: Option<Vec<u64>> = leaders.collect();
            leaders?.windows(2).all(|pair| pair[0] == pair[1]).then_some(())
        });
    }

    #[track_caller]
    fn turn_auth_on(&self) {
        let steps: [&[&str]; 8] = [
            &["role", "add", "root"],
            &["user", "add", "root", "--new-user-password=rootpw"],
            &["user", "grant-role", "root", "root"],
            &["role", "add", "app"],
            &["role", "grant-permission", "app", "readwrite", "/app/", "--prefix=true"],
            &["user", "add", "app", "--new-user-password=app"],
            &["user", "grant-role", "app", "app"],
            &["auth", "enable"],
        ];
        let version = &self.plan.versions[0];
        for words in steps {
            self.ctl_as(None, version, &self.direct(0), words).expect(0, &[]);
        }
        // The others hear of it a moment later.
        self.wait_for_answers();
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The URL that clients are told, which is the proxy's for the member behind it.
    pub(crate) fn endpoint(&self, index: usize) -> String {
        self.nodes[index].advertised.clone()
    }

    /// The URL where the member itself listens.
    pub(crate) fn direct(&self, index: usize) -> String {
        self.nodes[index].direct.clone()
    }

    /// The URL where the member listens for its peers.
    pub(crate) fn peer(&self, index: usize) -> String {
        self.nodes[index].peer.clone()
    }

    /// Every member's URL for clients, with commas between.
    pub(crate) fn endpoints(&self) -> String {
        let all: Vec<String> = self.nodes.iter().map(|node| node.advertised.clone()).collect();
        all.join(",")
    }

    /// `--cacert CA --cert CERT --key KEY` with TLS, else nothing.
    pub(crate) fn flags(&self) -> Vec<String> {
        let flags = self.certs.as_ref().map(Certs::flags).unwrap_or_default();
        flags.split_whitespace().map(str::to_owned).collect()
    }

    /// The certificates of a cluster with TLS; more can be issued.
    pub(crate) fn certs(&self) -> &Certs {
        self.certs.as_ref().expect("a cluster with TLS")
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("a cluster with a proxy")
    }

    /// A member's data directory.
    pub(crate) fn data(&self, index: usize) -> std::path::PathBuf {
        self.data_dir(index).into()
    }

    /// The process of a member that runs.
    pub(crate) fn pid(&self, index: usize) -> u32 {
        self.nodes[index].etcd.as_ref().expect("it runs").pid()
    }

    fn user(&self) -> Option<&'static str> {
        // While it is being set up there is no user yet, and etcd ignores credentials then.
        self.plan.is_auth.then_some(ROOT)
    }

    /// Runs the first version's etcdctl against every member, as root where auth is on.
    #[track_caller]
    pub(crate) fn ctl(&self, words: &[&str]) -> Ran {
        self.ctl_as(self.user(), &self.plan.versions[0], &self.endpoints(), words)
    }

    /// Runs an etcdctl as a user (`NAME:PASSWORD`) against endpoints.
    #[track_caller]
    pub(crate) fn ctl_as(
        &self,
        user: Option<&str>,
        version: &str,
        endpoints: &str,
        words: &[&str],
    ) -> Ran {
        bounded(&mut self.ctl_command(user, version, endpoints, words), RUN)
    }

    fn ctl_command(
        &self,
        user: Option<&str>,
        version: &str,
        endpoints: &str,
        words: &[&str],
    ) -> Command {
        let mut command = self.real.program(&format!("etcdctl-{version}"));
        command.args(["--endpoints", endpoints, "--command-timeout=20s"]).args(self.flags());
        command.args(user.map(|user| format!("--user={user}"))).args(words);
        command
    }

    /// Runs etcdkit against every member, as root where auth is on.
    #[track_caller]
    pub(crate) fn kit(&self, sandbox: &Sandbox, words: &[&str]) -> Ran {
        self.kit_as(sandbox, self.user(), &self.endpoints(), words)
    }

    /// Runs etcdkit as a user (`NAME:PASSWORD`) against endpoints.
    #[track_caller]
    pub(crate) fn kit_as(
        &self,
        sandbox: &Sandbox,
        user: Option<&str>,
        endpoints: &str,
        words: &[&str],
    ) -> Ran {
        let mut command = sandbox.command();
        command.args(words).args(["--endpoints", endpoints]).args(self.flags());
        command.args(user.map(|user| format!("--user={user}")));
        bounded(command.stdin(Stdio::null()), RUN)
    }

    /// What a member answers to Status, under etcdctl's keys; `None` when it does not.
    pub(crate) fn status(&self, index: usize) -> Option<Value> {
        let words = ["endpoint", "status", "-w", "json"];
        // The same command works for every version, and for every state of auth: etcd ignores
        // nobody's certificate, but takes its name for the user.
        let version = &self.plan.versions[0];
        let ask = |user| self.ctl_as(user, version, &self.nodes[index].direct, &words);
        let mut ran = ask(None);
        if ran.stdout.trim().len() < 5 && self.plan.is_auth {
            ran = ask(Some(ROOT));
        }
        let value: Value = serde_json::from_str(&ran.stdout).ok()?;
        value.get(0).map(|first| first["Status"].clone())
    }

    /// Which member leads.
    #[track_caller]
    pub(crate) fn leader(&self) -> usize {
        until("some member leads", READY, || {
            (0..self.nodes.len()).filter(|&index| self.nodes[index].etcd.is_some()).find(|&index| {
                let status = self.status(index).unwrap_or_default();
                let id = &status["header"]["member_id"];
                id.is_number() && *id == status["leader"]
            })
        })
    }

    /// A voter that does not lead.
    #[track_caller]
    pub(crate) fn follower(&self) -> usize {
        let leader = self.leader();
        (0..self.plan.versions.len()).find(|index| *index != leader).expect("a second voter")
    }

    /// Asks a member to end and waits until it has.
    #[track_caller]
    pub(crate) fn stop(&mut self, index: usize) {
        self.nodes[index].etcd.take().expect("it runs").stop();
    }

    /// Kills a member.
    #[track_caller]
    pub(crate) fn kill(&mut self, index: usize) {
        drop(self.nodes[index].etcd.take().expect("it runs"));
    }

    /// Starts a member that was stopped or killed, and waits until it serves and has caught up.
    #[track_caller]
    pub(crate) fn restart(&mut self, index: usize) {
        self.launch_again(index);
        self.come_up(index).expect("its port is still free");
        self.wait_for_answers();
    }

    /// Stops a member's process without ending it: its sockets stay open, and nothing answers.
    pub(crate) fn pause(&self, index: usize) {
        self.signal(index, Signal::STOP);
    }

    pub(crate) fn resume(&self, index: usize) {
        self.signal(index, Signal::CONT);
    }

    fn signal(&self, index: usize, signal: Signal) {
        let pid = i32::try_from(self.pid(index)).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, signal).expect("a signal");
    }

    /// Puts `KEY-0`, `KEY-1`, ... one after the other, until it is stopped.
    pub(crate) fn load(&self, key: &str) -> Load {
        let mut voters: Vec<String> = self.nodes.iter().map(|node| node.direct.clone()).collect();
        voters.truncate(self.plan.versions.len());
        let command = self.ctl_command(self.user(), &self.plan.versions[0], &voters.join(","), &[]);
        Load::start(&command, key)
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for node in &self.nodes {
                let log = node.etcd.as_ref().map(Etcd::log).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let end = lines[lines.len().saturating_sub(30)..].join("\n");
                eprintln!("--- the end of the log of {} ({}):\n{end}", node.name, node.direct);
            }
        }
    }
}

/// Writes that go on beside a test.
pub(crate) struct Load {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<BTreeMap<String, String>>>,
}

impl Load {
    fn start(command: &Command, key: &str) -> Self {
        let program = command.get_program().to_owned();
        let words: Vec<OsString> = command.get_args().map(ToOwned::to_owned).collect();
        let is_over = Arc::new(AtomicBool::new(false));
        let (over, key) = (Arc::clone(&is_over), key.to_owned());
        let thread = spawn(move || {
            let mut acknowledged = BTreeMap::new();
            for number in 0.. {
                if over.load(Ordering::SeqCst) {
                    break;
                }
                let (key, value) = (format!("{key}-{number}"), format!("value {number}"));
                let mut put = Command::new(&program);
                put.env_clear().args(&words).args(["put", &key, &value]).stdin(Stdio::null());
                if bounded(&mut put, RUN).code == 0 {
                    acknowledged.insert(key, value);
                }
            }
            acknowledged
        });
        Self { is_over, thread: Some(thread) }
    }

    /// Ends it; returns every key that was acknowledged, with its value.
    pub(crate) fn stop(mut self) -> BTreeMap<String, String> {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.take().expect("it runs").join().expect("a writer")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
