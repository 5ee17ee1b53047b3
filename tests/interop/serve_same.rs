//! One stream of random calls to the store's server and to a real etcd: the same answers, then the
//! same history, and each goes on with the other's snapshot.
//!
//! `ETCDKIT_SAME_CALLS` says how many calls are made to each pair, `ETCDKIT_SAME_SEED` which.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use etcdkit::store::wire::etcdserverpb as pb;
use etcdkit::store::wire::etcdserverpb::watch_request::RequestUnion;
use prost::Message;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::Stream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};

use crate::power_history::Dice;
use crate::programs::{Etcd, Real, Start, free_ports, real, until};
use crate::serve_asks::{
    Act, Call, Form, Known, Maker, WatchPlan, Who, compact, everything, hash_kv, last, members,
    status_call, watch_request,
};
use crate::store_wire::Raw;
use crate::support::Sandbox;

/// Calls to each pair of servers where nobody asks for more.
const CALLS: usize = 400;
/// Longest wait for an answer, and for what comes in a stream.
const WAIT: Duration = Duration::from_secs(20);
/// A stream in which nothing came for so long has told all, if both have told the same.
const QUIET: Duration = Duration::from_millis(250);

/// Where the store's server answers differently from etcd, or is not asked at all, and why.
const DEVIATIONS: &[(&str, &str)] = &[
    ("alarm action out of range", "not sent: etcd stops; the store refuses it"),
    ("watch id -1", "not sent: etcd takes it and mixes it up with no watcher; the store refuses"),
    ("the first compaction at 0", "not sent: etcd then answers HashKV(0) with its sum forever"),
    ("HashKV below 0", "not sent: etcd's sum means nothing; the store says compacted"),
    ("a member is added", "not sent: etcd waits for a member that is not there; the store refuses"),
    ("a member's address is none", "not sent: etcd writes it down; the store refuses"),
    ("text that is no UTF-8", "not sent: etcd 3.6 takes it, 3.7 and the store do not"),
    (NOT_A_MESSAGE, "each library tells in its own words what is wrong with it"),
    (NO_PROGRESS, "etcd counts a watcher that has ended as one that has yet to catch up"),
    (WHO_FIRST, "who asks is told of before room, size and addresses, where etcd tells of those"),
    (SUMMED, "at a compaction HashKV tells the sum from before it as soon as there is one"),
    ("a user asks for a range of no keys", "not sent: etcd lets some who may read something ask"),
];
const NOT_A_MESSAGE: &str = "bytes that are no message";
const NO_PROGRESS: &str = "progress where a compaction has ended a watcher";
const WHO_FIRST: &str = "another of two reasons";
const SUMMED: &str = "HashKV at or below a compaction";

/// Which deviation explains that two answers differ.
fn deviation(call: &Call, known: &Known, theirs: &Heard, ours: &Heard) -> Option<&'static str> {
    let (Err((their_code, _)), Err((our_code, our_text))) = (&theirs.end, &ours.end) else {
        let asked = pb::HashKvRequest::decode(&call.messages[0][..]);
        let is_old = asked.is_ok_and(|it| (1..=known.compacted).contains(&it.revision));
        return (call.path.ends_with("/HashKV") && is_old).then_some(SUMMED);
    };
    if call.shown.ends_with("that are no message") && their_code == our_code {
        return Some(NOT_A_MESSAGE);
    }
    let is_of_who = matches!(our_code, Code::PermissionDenied | Code::Unauthenticated)
        || our_text == "etcdserver: user name is empty";
    // What is wrong with a request of keys in itself is told first by both.
    let is_of_form = ["space exceeded", "too large", "URLs are invalid"];
    let is_of_form = is_of_form.iter().any(|it| theirs.end.as_ref().unwrap_err().1.contains(it));
    (is_of_who && is_of_form).then_some(WHO_FIRST)
}

/// What came of a call: what was answered, and how it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Heard {
    answers: Vec<String>,
    end: Result<(), (Code, String)>,
}

/// A server, and what is known of it.
struct Server<'a> {
    etcd: Etcd<'a>,
    channel: Channel,
    known: Known,
}

/// Messages that are sent one by one.
struct Sent(mpsc::UnboundedReceiver<Vec<u8>>);

impl Stream for Sent {
    type Item = Vec<u8>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        self.0.poll_recv(context)
    }
}

/// Puts a word in the place of a number that stands behind a name.
fn without_number(text: &str, name: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(name) {
        out.extend([before, name]);
        let digits = after.bytes().take_while(u8::is_ascii_digit).count();
        // None is told as none.
        out.push_str(if &after[..digits] == "0" { "0" } else { "SOME" });
        rest = &after[digits..];
    }
    out.push_str(rest);
    out
}

impl<'a> Server<'a> {
    fn start(real: &'a Real, runtime: &Runtime, sandbox: &Sandbox, words: &[&str]) -> Self {
        let [client, peer] = free_ports();
        let (client_url, peer_url) =
            (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        let is_ours = words.contains(&"serve");
        let data_dir = sandbox.text(if is_ours { "ours" } else { "theirs" });
        let mut command = if is_ours {
            let mut command = Command::new(env!("CARGO_BIN_EXE_etcdkit"));
            command.env_clear().stdin(Stdio::null()).args(words);
            command
        } else {
            let mut command = real.program(words[0]);
            command.args(&words[1..]);
            command
        };
        command.args(["--name", "m", "--data-dir", &data_dir, "--bcrypt-cost", "4"]);
        command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
        command
            .args(["--listen-peer-urls", &peer_url, "--initial-advertise-peer-urls", &peer_url])
            .args(["--initial-cluster", &format!("m={peer_url}")]);
        let mut etcd = real.launch(command, &data_dir, client_url.clone());
        etcd.come_up().unwrap_or_else(|why| panic!("{words:?} does not start: {why:?}"));
        let endpoint = Endpoint::from_shared(client_url.clone()).expect("an endpoint");
        let channel = runtime.block_on(endpoint.timeout(WAIT).connect()).expect("a connection");
        let known = Known { client_url, peer_url, revision: 1, ..Known::default() };
        let mut server = Self { etcd, channel, known };
        let call = members();
        let raw = runtime.block_on(server.raw(&call)).expect("members");
        let header = pb::MemberListResponse::decode(raw[0].clone()).expect("members").header;
        let header = header.expect("a header");
        server.known.member_id = header.member_id;
        server.known.cluster_id = header.cluster_id;
        // Both have decided their version, and have written it down.
        until("a version", WAIT, || {
            let raw = runtime.block_on(server.raw(&status_call())).expect("a status");
            let status = pb::StatusResponse::decode(raw[0].clone()).expect("a status");
            let ready = server.etcd.ctl(&["downgrade", "validate", "3.5"]).stderr;
            let has_version = !ready.contains("cluster version not found");
            (!status.storage_version.is_empty() && has_version).then_some(())
        });
        server
    }

    fn client(&self) -> tonic::client::Grpc<Channel> {
        tonic::client::Grpc::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    fn request<T>(&self, who: Who, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let token = match who {
            Who::Nobody => return request,
            Who::Stranger => "nobodys.7",
            Who::User(name) => self.known.tokens.get(name).map_or("none", String::as_str),
        };
        request.metadata_mut().insert("token", token.parse().expect("a plain token"));
        request
    }

    /// Makes a call; an error comes after answers that there are.
    async fn whole(&self, call: &Call) -> (Vec<Bytes>, Result<(), Status>) {
        let mut client = self.client();
        client.ready().await.expect("a server that is there");
        let path = PathAndQuery::from_static(call.path);
        let first = call.messages[0].clone();
        let parts = match call.form {
            Form::Unary => {
                let request = self.request(call.who, first);
                return match client.unary(request, path, Raw).await {
                    Ok(answer) => (vec![answer.into_inner()], Ok(())),
                    Err(status) => (Vec::new(), Err(status)),
                };
            }
            Form::Parts => client.server_streaming(self.request(call.who, first), path, Raw).await,
            Form::Stream => {
                let (sender, receiver) = mpsc::unbounded_channel();
                for message in &call.messages {
                    sender.send(message.clone()).expect("a stream");
                }
                client.streaming(self.request(call.who, Sent(receiver)), path, Raw).await
            }
        };
        let mut answers = Vec::new();
        let mut parts = match parts {
            Ok(parts) => parts.into_inner(),
            Err(status) => return (answers, Err(status)),
        };
        loop {
            match parts.message().await {
                Ok(Some(message)) => answers.push(message),
                Ok(None) => return (answers, Ok(())),
                Err(status) => return (answers, Err(status)),
            }
        }
    }

    async fn raw(&self, call: &Call) -> Result<Vec<Bytes>, Status> {
        let (answers, end) = self.whole(call).await;
        end.map(|()| answers)
    }

    /// Makes a call, and remembers what later calls are made of.
    async fn ask(&mut self, call: &Call) -> Heard {
        let (answers, end) =
            tokio::time::timeout(WAIT, self.whole(call)).await.unwrap_or_else(|_| {
                (Vec::new(), Err(Status::deadline_exceeded("not within the time of the test")))
            });
        for answer in &answers {
            self.learn(call, answer);
        }
        let answers = answers.iter().map(|answer| self.plain(&(call.read)(answer))).collect();
        let end = end.map_err(|status| (status.code(), self.plain(status.message())));
        Heard { answers, end }
    }

    fn learn(&mut self, call: &Call, answer: &Bytes) {
        // Of every answer the first field is the header.
        let header = pb::PutResponse::decode(answer.clone()).ok().and_then(|it| it.header);
        let is_part = matches!(call.form, Form::Parts) || call.path.contains("Health");
        if let Some(header) = header.filter(|_| !is_part) {
            self.known.revision = self.known.revision.max(header.revision);
        }
        let message = call.messages[0].as_slice();
        match call.path.rsplit('/').next() {
            Some("LeaseGrant") => {
                let asked = pb::LeaseGrantRequest::decode(message).expect("a grant");
                let answer = pb::LeaseGrantResponse::decode(answer.clone()).expect("a grant");
                if asked.id == 0 {
                    self.known.leases.push(answer.id);
                }
            }
            Some("Authenticate") => {
                let asked = pb::AuthenticateRequest::decode(message).expect("a user");
                let answer = pb::AuthenticateResponse::decode(answer.clone()).expect("a token");
                let names = ["root", "u1", "u2"];
                if let Some(name) = names.into_iter().find(|name| *name == asked.name) {
                    self.known.tokens.insert(name, answer.token);
                }
            }
            Some("Compact") => {
                let asked = pb::CompactionRequest::decode(message).expect("a compaction");
                self.known.compacted = asked.revision;
            }
            _ => {}
        }
    }

    /// Puts words in the places of ids, addresses and sizes.
    fn plain(&self, text: &str) -> String {
        let known = &self.known;
        let mut text = text.replace(&known.client_url, "CLIENT").replace(&known.peer_url, "PEER");
        text = text.replace(&known.member_id.to_string(), "MEMBER");
        text = text.replace(&format!("{:x}", known.member_id), "MEMBER");
        text = text.replace(&known.cluster_id.to_string(), "CLUSTER");
        for (n, lease) in known.leases.iter().enumerate() {
            if text.contains(&lease.to_string()) {
                text = text.replace(&lease.to_string(), &format!("LEASE {n}"));
            }
        }
        for token in known.tokens.values() {
            text = text.replace(token, "TOKEN");
        }
        if text.contains("Response") {
            for name in ["raft_term: ", "raft_index: ", "raft_applied_index: "] {
                text = without_number(&text, name);
            }
            for name in ["db_size: ", "db_size_in_use: "] {
                text = without_number(&text, name);
            }
        }
        text
    }
}

/// A watch that goes on.
struct Watching {
    sender: mpsc::UnboundedSender<Vec<u8>>,
    responses: Streaming<Bytes>,
    seen: Vec<pb::WatchResponse>,
    end: Option<(Code, String)>,
}

/// The watcher behind all others of a stream.
const MARKER: i64 = 9_999_999;

fn marker() -> pb::WatchRequest {
    watch_request(RequestUnion::CreateRequest(pb::WatchCreateRequest {
        key: Bytes::from_static(b"nothing happens to this key"),
        watch_id: MARKER,
        ..Default::default()
    }))
}

impl Watching {
    async fn open(server: &Server<'_>, first: &[pb::WatchRequest]) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        for request in first.iter().chain([&marker()]) {
            sender.send(request.encode_to_vec()).expect("a stream");
        }
        let mut client = server.client();
        client.ready().await.expect("a server that is there");
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let opened = client.streaming(Request::new(Sent(receiver)), path, Raw).await;
        let responses = opened.expect("a watch").into_inner();
        let mut watching = Self { sender, responses, seen: Vec::new(), end: None };
        let is_open =
            |watching: &Self| watching.seen.iter().any(|it| it.watch_id == MARKER && it.created);
        while !is_open(&watching) && watching.hear(WAIT).await {}
        assert!(is_open(&watching), "{:?}", watching.seen);
        watching
    }

    /// Hears one more response, if there is one in time.
    async fn hear(&mut self, limit: Duration) -> bool {
        if self.end.is_some() {
            return false;
        }
        match tokio::time::timeout(limit, self.responses.message()).await {
            Err(_) => return false,
            Ok(Ok(Some(bytes))) => {
                self.seen.push(pb::WatchResponse::decode(bytes).expect("a response"));
            }
            Ok(Ok(None)) => self.end = Some((Code::Ok, String::new())),
            Ok(Err(status)) => self.end = Some((status.code(), status.message().to_owned())),
        }
        self.end.is_none()
    }

    /// What each watcher was told, in order; how events are put together is the server's affair.
    fn told(&self, server: &Server<'_>) -> BTreeMap<i64, Vec<String>> {
        let mut told: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for response in &self.seen {
            let lines = told.entry(response.watch_id).or_default();
            let is_control = response.created || response.canceled || response.events.is_empty();
            if is_control {
                let rest = pb::WatchResponse { events: Vec::new(), ..response.clone() };
                lines.push(server.plain(&format!("{rest:?}")));
            }
            lines.extend(response.events.iter().map(|event| server.plain(&format!("{event:?}"))));
        }
        if let Some(end) = &self.end {
            told.entry(i64::MIN).or_default().push(format!("{end:?}"));
        }
        // Asked for more than once it may be told more than once.
        if let Some(progress) = told.get_mut(&-1) {
            progress.dedup();
        }
        told
    }
}

/// Two servers, their calls, and what was found to differ.
struct Pair<'a> {
    theirs: Server<'a>,
    ours: Server<'a>,
    version: &'static str,
    seed: u64,
    dice: Dice,
    made: usize,
    methods: BTreeMap<&'static str, [usize; 2]>,
    excused: BTreeMap<&'static str, usize>,
    differences: Vec<String>,
}

fn brief(text: &str) -> String {
    text.chars().take(1800).collect()
}

impl Pair<'_> {
    async fn both(&mut self, theirs: &Call, ours: &Call) -> Heard {
        let (wanted, found) = (self.theirs.ask(theirs).await, self.ours.ask(ours).await);
        self.made += 1;
        let count = self.methods.entry(theirs.path).or_default();
        count[usize::from(wanted.end.is_err())] += 1;
        if wanted != found {
            match deviation(theirs, &self.theirs.known, &wanted, &found) {
                Some(row) => *self.excused.entry(row).or_default() += 1,
                None => self.differs(
                    &format!("{} {:?} {}", theirs.path, theirs.who, theirs.shown),
                    &format!("{found:?}"),
                    &format!("{wanted:?}"),
                ),
            }
        }
        wanted
    }

    fn differs(&mut self, what: &str, found: &str, wanted: &str) {
        let (version, seed, made) = (self.version, self.seed, self.made);
        let (what, found, wanted) = (brief(what), brief(found), brief(wanted));
        self.differences.push(format!(
            "etcd {version}, seed {seed}, call {made}: {what}\n\
             ours:   {found}\n  theirs: {wanted}"
        ));
        assert!(self.differences.len() < 12, "{}", self.differences.join("\n"));
    }

    async fn act(&mut self) {
        let seed = self.dice.roll();
        let is_newest = self.version == "3.7";
        let make = |known: &Known| Maker { dice: Dice(seed), known, is_newest }.act();
        match (make(&self.theirs.known), make(&self.ours.known)) {
            (Act::Calls(theirs), Act::Calls(ours)) => {
                assert_eq!(theirs.len(), ours.len());
                for (theirs, ours) in theirs.iter().zip(&ours) {
                    self.both(theirs, ours).await;
                }
            }
            (Act::Watch(theirs), Act::Watch(ours)) => self.watch(&theirs, &ours).await,
            _ => panic!("the dice made two kinds of calls"),
        }
    }

    async fn watch(&mut self, theirs: &WatchPlan, ours: &WatchPlan) {
        let mut their_watch = Watching::open(&self.theirs, &theirs.first).await;
        let mut our_watch = Watching::open(&self.ours, &ours.first).await;
        self.methods.entry("/etcdserverpb.Watch/Watch").or_default()[0] += 1;
        let progress = watch_request(RequestUnion::ProgressRequest(pb::WatchProgressRequest {}));
        let requests = theirs.then.iter().chain([&progress]).map(Some);
        // What is there already is told before more is asked, and all before progress is.
        for (round, request) in [None, None].into_iter().chain(requests).enumerate() {
            if round == 1 {
                for (theirs, ours) in theirs.writes.iter().zip(&ours.writes) {
                    self.both(theirs, ours).await;
                }
            }
            if let Some(request) = request {
                let _ = their_watch.sender.send(request.encode_to_vec());
                let _ = our_watch.sender.send(request.encode_to_vec());
            }
            let began = Instant::now();
            let mut has_heard = true;
            while has_heard {
                let (one, other) = tokio::join!(their_watch.hear(QUIET), our_watch.hear(QUIET));
                let is_same = their_watch.told(&self.theirs) == our_watch.told(&self.ours);
                has_heard = one || other || (!is_same && began.elapsed() < WAIT / 4);
            }
        }
        self.made += theirs.first.len() + theirs.then.len() + 1;
        let (mut found, wanted) = (our_watch.told(&self.ours), their_watch.told(&self.theirs));
        if found != wanted && their_watch.seen.iter().any(|it| it.compact_revision > 0) {
            our_watch.seen.retain(|it| it.watch_id != -1 || it.created);
            found = our_watch.told(&self.ours);
            *self.excused.entry(NO_PROGRESS).or_default() += 1;
        }
        if found != wanted {
            let ids: BTreeSet<i64> = found.keys().chain(wanted.keys()).copied().collect();
            let other = |id: &i64| found.get(id) != wanted.get(id);
            let only = |told: &BTreeMap<i64, Vec<String>>| {
                let of = |id: &i64| format!("{id}: {:?}", told.get(id));
                ids.iter().filter(|id| other(id)).map(of).collect::<Vec<_>>().join("\n    ")
            };
            let (found, wanted) = (only(&found), only(&wanted));
            self.differs(&format!("{theirs:?}"), &found, &wanted);
        }
    }

    /// The same history in the end.
    async fn compare_whole(&mut self) {
        let (theirs, ours) = (last(&self.theirs.known), last(&self.ours.known));
        for (theirs, ours) in theirs.iter().zip(&ours) {
            let heard = self.both(theirs, ours).await;
            assert_eq!(heard.end, Ok(()), "the end of {} calls: {}", self.made, theirs.shown);
        }
        for serializable in [true, false] {
            let call = everything(serializable);
            self.both(&call, &call).await;
        }
        let revision = self.theirs.known.revision;
        let first = compact(revision - 20);
        self.both(&first, &first).await;
        for revision in revision - 22..=revision + 1 {
            let call = hash_kv(revision);
            self.both(&call, &call).await;
        }
        let call = hash_kv(0);
        self.both(&call, &call).await;
    }
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn same_as(version: &'static str) {
    let Some(real) = real() else { return };
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let sandbox = Sandbox::new();
    let seed = number("ETCDKIT_SAME_SEED", 3) as u64;
    let mut pair = Pair {
        theirs: Server::start(&real, &runtime, &sandbox, &[&format!("etcd-{version}")]),
        ours: Server::start(&real, &runtime, &sandbox, &["serve", "--compat", version]),
        version,
        seed,
        dice: Dice(seed),
        made: 0,
        methods: BTreeMap::new(),
        excused: BTreeMap::new(),
        differences: Vec::new(),
    };
    let calls = number("ETCDKIT_SAME_CALLS", CALLS);
    runtime.block_on(async {
        while pair.made < calls {
            pair.act().await;
        }
        pair.compare_whole().await;
    });
    println!("etcd {version}, seed {seed}: {} calls to each", pair.made);
    for (method, [done, refused]) in &pair.methods {
        println!("  {method}: {done} done, {refused} refused");
    }
    for (row, reason) in DEVIATIONS {
        println!("  {row} ({reason}): {}", pair.excused.get(row).unwrap_or(&0));
    }
    assert!(pair.differences.is_empty(), "{}", pair.differences.join("\n"));
    let revision = pair.theirs.known.revision;
    snapshots(&real, &runtime, &sandbox, pair, revision);
}

/// What a server holds: its keys and the sum of its history.
fn holds(runtime: &Runtime, etcd: &Etcd<'_>, revision: i64) -> (Vec<Bytes>, u32, i64) {
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(etcd.endpoint.clone()).expect("an endpoint");
        let channel = endpoint.connect().await.expect("a connection");
        let ask = async |call: Call| {
            let mut client =
                tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(usize::MAX);
            client.ready().await.expect("a server that is there");
            let path = PathAndQuery::from_static(call.path);
            let request = Request::new(call.messages[0].clone());
            client.unary(request, path, Raw).await.expect("an answer").into_inner()
        };
        let range = pb::RangeResponse::decode(ask(everything(false)).await).expect("a range");
        let hash = pb::HashKvResponse::decode(ask(hash_kv(revision)).await).expect("a hash");
        let kvs = range.kvs.iter().map(|kv| kv.encode_to_vec().into()).collect();
        (kvs, hash.hash, hash.compact_revision)
    })
}

/// Each one's snapshot is restored by etcdutl and by us, and served by both in turn.
fn snapshots(real: &Real, runtime: &Runtime, sandbox: &Sandbox, pair: Pair<'_>, revision: i64) {
    let version = pair.version;
    for (owner, server) in [("theirs", &pair.theirs), ("ours", &pair.ours)] {
        let held = holds(runtime, &server.etcd, revision);
        let file = sandbox.text(&format!("{owner}.db"));
        let words = ["--endpoints", &server.etcd.endpoint, "snapshot", "save", &file];
        real.ok(&format!("etcdctl-{version}"), &words);
        for restorer in ["etcdutl", "etcdkit"] {
            let dir = format!("{owner}-by-{restorer}");
            let words = ["snapshot", "restore", &file, "--data-dir", &sandbox.text(&dir)];
            if restorer == "etcdutl" {
                real.ok(&format!("etcdutl-{version}"), &words);
            } else {
                sandbox.kit(&words).expect(0, &[]);
            }
            // The other one first, then its owner.
            let order = if owner == "ours" { ["theirs", "ours"] } else { ["ours", "theirs"] };
            for next in order {
                let etcd = boot(real, sandbox, &dir, next, version);
                let what = format!("{owner}' snapshot, restored by {restorer}, served by {next}");
                assert!(holds(runtime, &etcd, revision) == held, "{what} (etcd {version})");
                etcd.stop();
            }
        }
    }
    pair.ours.etcd.stop();
    pair.theirs.etcd.stop();
}

fn boot<'a>(real: &'a Real, sandbox: &Sandbox, dir: &str, who: &str, version: &str) -> Etcd<'a> {
    if who == "theirs" {
        let start = Start { data_dir: sandbox.path(dir), name: "default", ..Start::default() };
        return real.etcd(version, &start);
    }
    let [client, peer] = free_ports();
    let url = format!("http://127.0.0.1:{client}");
    let data_dir = sandbox.text(dir);
    let mut command = Command::new(env!("CARGO_BIN_EXE_etcdkit"));
    command.env_clear().stdin(Stdio::null());
    command.args(["serve", "--compat", version, "--data-dir", &data_dir]);
    command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
    command.args(["--listen-peer-urls", &format!("http://127.0.0.1:{peer}")]);
    let mut served = real.launch(command, &data_dir, url);
    served.come_up().unwrap_or_else(|why| panic!("{dir} is not served: {why:?}"));
    served
}

#[test]
fn the_store_answers_as_etcd_3_6_does() {
    same_as("3.6");
}

#[test]
fn the_store_answers_as_etcd_3_7_does() {
    same_as("3.7");
}
