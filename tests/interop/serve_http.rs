//! The same requests by HTTP to a real etcd and to the store's server: the same answers, but for
//! where free space in a file begins, and for tokens.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use etcdkit::store::serve::{Address, Listener, Options, Role, Server};
use etcdkit::store::{self, Compat, Identity, Store};
use serde_json::Value;

use crate::programs::{Start, free_ports, real};
use crate::support::Sandbox;

/// Longest wait for an answer.
const LIMIT: Duration = Duration::from_secs(20);

/// Where is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Client,
    Metrics,
    Peer,
}

/// One request. `MEMBER` in a body stands for the member's id, `TOKEN` in a header for the token
/// that the server gave last.
#[derive(Clone, Copy, Debug)]
struct Ask {
    at: At,
    line: &'static str,
    header: &'static str,
    body: &'static str,
    /// Lines of the answer that are waited for; 0 for its end.
    lines: usize,
    /// Whether bodies are the same.
    is_same: bool,
}

const fn get(line: &'static str) -> Ask {
    Ask { at: At::Client, line, header: "", body: "", lines: 0, is_same: true }
}

const fn post(line: &'static str, body: &'static str) -> Ask {
    Ask { body, ..get(line) }
}

const fn with(header: &'static str, ask: Ask) -> Ask {
    Ask { header, ..ask }
}

const fn at(at: At, ask: Ask) -> Ask {
    Ask { at, ..ask }
}

const fn lines(lines: usize, ask: Ask) -> Ask {
    Ask { lines, ..ask }
}

const fn head_only(ask: Ask) -> Ask {
    Ask { is_same: false, ..ask }
}

const fn alarm(body: &'static str) -> Ask {
    post("POST /v3/maintenance/alarm", body)
}

const PLAIN: &[Ask] = &[
    get("GET /health"),
    get("GET /health?serializable=true"),
    get("POST /health"),
    get("HEAD /health"),
    get("GET /health/"),
    get("GET /livez"),
    get("GET /livez?verbose"),
    get("GET /livez/serializable_read"),
    get("GET /livez/linearizable_read"),
    get("PUT /livez"),
    get("GET /readyz"),
    get("GET /readyz?verbose"),
    get("GET /readyz?verbose&exclude=non_learner&exclude=serializable%5Fread&exclude=x"),
    get("GET /readyz/data_corruption?verbose"),
    get("GET /version"),
    get("HEAD /version"),
    get("DELETE /version"),
    get("OPTIONS /version"),
    head_only(get("GET /debug/vars")),
    get("POST /debug/vars"),
    head_only(get("GET /metrics")),
    get("GET /"),
    get("GET /nope"),
    get("GET //health?a=b"),
    get("POST /v3/../version"),
    get("GET /v3"),
    get("GET /v3/"),
    get("GET /v3/kv"),
    get("GET /v3/kv/range"),
    get("OPTIONS /v3/kv/range"),
    get("POST /v3/kv/range/"),
    get("POST /v3/kv/rangestream"),
    at(At::Metrics, get("GET /health")),
    at(At::Metrics, get("GET /readyz?verbose")),
    at(At::Metrics, get("OPTIONS /health")),
    at(At::Metrics, get("GET /version")),
    at(At::Metrics, get("GET /v3/kv/range")),
    at(At::Metrics, head_only(get("GET /metrics"))),
    at(At::Peer, get("GET /version")),
    at(At::Peer, get("GET /members")),
    at(At::Peer, get("POST /members")),
    at(At::Peer, get("GET /health")),
    at(At::Peer, get("GET /nope")),
];

const KEYS: &[Ask] = &[
    post("POST /v3/kv/put", r#"{"key":"Zm9v","value":"YmFy"}"#),
    post("POST /v3/kv/put", r#"{"key":"Zm9v","value":"YmF6","prevKv":true}"#),
    post("POST /v3/kv/put", r#"{"key":"-_8","value":"PD4m"} trailing"#),
    post("POST /v3beta/kv/range", r#"{"key":"AA==","range_end":"AA==","unknown":[{}]}"#),
    post("POST /v3/kv/range", r#"{"key":"Zm9v","keys_only":true,"limit":"1"}"#),
    post(
        "POST /v3/kv/range",
        r#"{"key":"AA==","rangeEnd":"AA==","sortOrder":"DESCEND",
        "sort_target":3,"limit":1.0e0}"#,
    ),
    post(
        "POST /v3/kv/range",
        r#"{"key":"AA==","rangeEnd":"AA==","count_only":true,
        "sort_order":"NOT_KNOWN"}"#,
    ),
    post("POST /v3/kv/range", r#"{"key":"Zm9v","sort_order":99}"#),
    post("POST /v3/kv/range", r#"{"key":"Zm9v","revision":"1000"}"#),
    post(
        "POST /v3/kv/txn",
        r#"{
        "compare":[{"key":"Zm9v","target":"MOD","result":"GREATER","mod_revision":"1"}],
        "success":[{"request_put":{"key":"Zm9v","value":"MQ=="}},{"requestRange":{"key":"Zm9v"}},
            {"request_txn":{"success":[{"request_delete_range":{"key":"-_8=","prev_kv":true}}]}}],
        "failure":[{"request_range":{"key":"Zm9v"}}]}"#,
    ),
    post(
        "POST /v3/kv/txn",
        r#"{"compare":[{"key":"Zm9v","target":"VERSION","version":0}],
        "failure":[{"request_range":{"key":"bm8="}}]}"#,
    ),
    post("POST /v3/kv/txn", r#"{"compare":[{"key":"Zm9v","version":"0","value":""}]}"#),
    post(
        "POST /v3/kv/txn",
        r#"{"success":[{"request_put":{"key":"YQ=="}},{"request_put":{"key":"YQ=="}}]}"#,
    ),
    post("POST /v3/kv/deleterange", r#"{"key":"AA==","range_end":"AA==","prev_kv":true}"#),
    post("POST /v3/kv/deleterange", ""),
    post("POST /v3/kv/compaction", r#"{"revision":"3","physical":true}"#),
    post("POST /v3/kv/compaction", r#"{"revision":"2"}"#),
    post("POST /v3/kv/compaction", r#"{"revision":"1000"}"#),
    post("POST /v3/kv/range", r#"{"key":"Zm9v","revision":"1"}"#),
    lines(
        2,
        post(
            "POST /v3/watch",
            r#"{"create_request":{"key":"Zm9v",
        "start_revision":"4","prev_kv":true}}"#,
        ),
    ),
    lines(
        2,
        post(
            "POST /v3/watch",
            r#"{"create_request":{"key":"Zm9v",
        "start_revision":"1"}}"#,
        ),
    ),
    lines(
        3,
        post(
            "POST /v3/watch",
            r#"{"create_request":{"key":"YQ==","watch_id":"5"}}
        {"cancel_request":{"watch_id":5}}
        {"create_request":{"key":"YQ==","watch_id":"6","filters":["NOPUT",1]}}"#,
        ),
    ),
    lines(1, post("POST /v3/watch", r#"{"create_request":{}} x"#)),
];

const BAD: &[Ask] = &[
    post("POST /v3/kv/put", ""),
    post("POST /v3/kv/put", "   "),
    post("POST /v3/kv/put", "x"),
    post("POST /v3/kv/put", "'"),
    post("POST /v3/kv/put", "\u{e4}"),
    post("POST /v3/kv/put", "[1]"),
    post("POST /v3/kv/put", "null"),
    post("POST /v3/kv/put", "12"),
    post("POST /v3/kv/put", "\"a\""),
    post("POST /v3/kv/put", r#"{"key""#),
    post("POST /v3/kv/put", r#"{"key" "#),
    post("POST /v3/kv/put", r#"{"key":"a","#),
    post("POST /v3/kv/put", r#"{"key":"a",}"#),
    post("POST /v3/kv/put", r#"{"key":tru3}"#),
    post("POST /v3/kv/put", r#"{"key":-}"#),
    post("POST /v3/kv/put", r#"{"key":"@@"}"#),
    post("POST /v3/kv/put", r#"{"key":"YQ="}"#),
    post("POST /v3/kv/put", r#"{"key":"+_8="}"#),
    post("POST /v3/kv/put", r#"{"key":5}"#),
    post("POST /v3/kv/put", r#"{"key":["YQ=="]}"#),
    post("POST /v3/kv/put", r#"{"key":"YQ==","key":"YQ=="}"#),
    post("POST /v3/kv/put", r#"{"prev_kv":null,"prevKv":true}"#),
    post("POST /v3/kv/put", "{\"value\":\"\",\n\n  \"prev_kv\": \"yes\"}"),
    post("POST /v3/kv/put", r#"{"lease":1.5}"#),
    post("POST /v3/kv/put", r#"{"lease":"1e2","key":"YQ=="}"#),
    post("POST /v3/kv/put", r#"{"lease":" 1"}"#),
    post("POST /v3/kv/put", r#"{"lease":9223372036854775808}"#),
    post("POST /v3/kv/put", r#"{"lease":1e999999999999}"#),
    post("POST /v3/kv/put", r#"{"x":"\ud800","key":"YQ=="}"#),
    post("POST /v3/kv/put", r#"{"x":"\ud800\u0041","key":"YQ=="}"#),
    post("POST /v3/kv/put", r#"{"x":"\ud83d\ude00\t\/","\u006bey":"YQ=="}"#),
    post("POST /v3/kv/txn", r#"{"success":{}}"#),
    post("POST /v3/kv/txn", r#"{"success":[null]}"#),
    post("POST /v3/kv/txn", r#"{"success":[{"request_put":1}]}"#),
    post(
        "POST /v3/kv/txn",
        r#"{"success":[{"request_put":{"key":"YQ=="},
        "request_range":{}}]}"#,
    ),
    post("POST /v3/kv/txn", r#"{"compare":[{"result":"EQUAL","target":1.5}]}"#),
    post("POST /v3/kv/put", r#"{"key":"YQ==","value":"<&>"}"#),
    with("Grpc-Timeout: x", post("POST /v3/kv/put", r#"{"key":"YQ=="}"#)),
    with("Grpc-Timeout: 1n", post("POST /v3/kv/range", r#"{"key":"YQ=="}"#)),
];

const OTHERS: &[Ask] = &[
    post("POST /v3/lease/grant", r#"{"ID":"77","TTL":"1000"}"#),
    post("POST /v3/lease/grant", r#"{"ID":77,"TTL":5}"#),
    post("POST /v3/kv/put", r#"{"key":"bGVhc2Vk","lease":"77"}"#),
    post("POST /v3/lease/timetolive", r#"{"ID":"77","keys":true}"#),
    post("POST /v3/kv/lease/timetolive", r#"{"ID":"78"}"#),
    post("POST /v3/lease/leases", ""),
    post("POST /v3/kv/lease/leases", "{}"),
    post("POST /v3/lease/keepalive", r#"{"ID":"77"}{"ID":"1"}"#),
    post("POST /v3/lease/keepalive", r#"{"ID":"x"}"#),
    post("POST /v3/kv/lease/revoke", r#"{"ID":"77"}"#),
    post("POST /v3/lease/revoke", r#"{"ID":"77"}"#),
    post("POST /v3/cluster/member/list", ""),
    post("POST /v3/maintenance/status", ""),
    post("POST /v3/maintenance/hashkv", r#"{"revision":"4"}"#),
    post("POST /v3/maintenance/hashkv", r#"{"revision":"1"}"#),
    post("POST /v3/maintenance/transfer-leadership", r#"{"targetID":"5"}"#),
    post("POST /v3/maintenance/downgrade", r#"{"action":"VALIDATE","version":"x"}"#),
    post("POST /v3/maintenance/defragment", ""),
    post("POST /v3/auth/status", ""),
    post("POST /v3/auth/authenticate", r#"{"name":"root","password":"x"}"#),
    post("POST /v3/auth/user/get", r#"{"name":"none"}"#),
];

const ALARMS: &[Ask] = &[
    post(
        "POST /v3/maintenance/alarm",
        r#"{"action":"ACTIVATE","memberID":"MEMBER","alarm":"NOSPACE"}"#,
    ),
    get("GET /health"),
    get("GET /health?exclude=NOSPACE"),
    get("GET /health?exclude=CORRUPT"),
    get("GET /readyz?verbose"),
    at(At::Metrics, get("GET /health")),
    post("POST /v3/kv/put", r#"{"key":"YQ=="}"#),
    post("POST /v3/maintenance/status", ""),
    post("POST /v3/maintenance/alarm", ""),
    alarm(r#"{"action":2,"memberID":MEMBER,"alarm":1}"#),
    post(
        "POST /v3/maintenance/alarm",
        r#"{"action":"ACTIVATE","memberID":"MEMBER","alarm":"CORRUPT"}"#,
    ),
    get("GET /health"),
    get("GET /health?exclude=CORRUPT&serializable=true"),
    get("GET /livez?verbose"),
    get("GET /readyz"),
    get("GET /readyz?exclude=data_corruption"),
    get("GET /readyz/data_corruption"),
    post("POST /v3/kv/put", r#"{"key":"YQ=="}"#),
    post(
        "POST /v3/maintenance/alarm",
        r#"{"action":"DEACTIVATE","memberID":"MEMBER","alarm":"CORRUPT"}"#,
    ),
    get("GET /health"),
];

const AUTH: &[Ask] = &[
    post("POST /v3/auth/user/add", r#"{"name":"root","password":"<pw>"}"#),
    post("POST /v3/auth/user/add", r#"{"name":"root","password":"pw"}"#),
    post("POST /v3/auth/role/add", r#"{"name":"root"}"#),
    post("POST /v3/auth/user/grant", r#"{"user":"root","role":"root"}"#),
    post("POST /v3/auth/role/add", r#"{"name":"app"}"#),
    post(
        "POST /v3/auth/role/grant",
        r#"{"name":"app",
        "perm":{"permType":"READWRITE","key":"YQ==","range_end":"Yg=="}}"#,
    ),
    post("POST /v3/auth/role/get", r#"{"role":"app"}"#),
    post(
        "POST /v3/auth/user/add",
        r#"{"name":"app",
        "options":{"no_password":true}}"#,
    ),
    post("POST /v3/auth/user/list", ""),
    post("POST /v3/auth/enable", ""),
    post("POST /v3/kv/range", r#"{"key":"YQ=="}"#),
    with("Authorization: none.1", post("POST /v3/kv/range", r#"{"key":"YQ=="}"#)),
    post("POST /v3/maintenance/snapshot", ""),
    lines(1, post("POST /v3/watch", r#"{"create_request":{"key":"YQ=="}}"#)),
    get("GET /health"),
    get("GET /readyz?verbose"),
    post("POST /v3/auth/authenticate", r#"{"name":"root","password":"wrong"}"#),
    post("POST /v3/auth/authenticate", r#"{"name":"root","password":"<pw>"}"#),
    with("Authorization: TOKEN", post("POST /v3/kv/range", r#"{"key":"YQ=="}"#)),
    with("Grpc-Metadata-Token: TOKEN", post("POST /v3/kv/put", r#"{"key":"YQ=="}"#)),
    with("Authorization: Bearer TOKEN", post("POST /v3/auth/disable", "")),
];

/// One of the two servers.
struct Side {
    client: String,
    metrics: String,
    peer: String,
    member: String,
    token: String,
}

/// What was answered, in a form that can be compared.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: String,
    headers: Vec<String>,
    body: String,
}

/// Members of JSON that are not the same on both sides.
const OWN: &[&str] = &["dbSize", "dbSizeInUse", "raftIndex", "raftAppliedIndex", "token"];

fn without_own(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match OWN.contains(&name.as_str()) {
                    true => *field = Value::Null,
                    false => without_own(field),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(without_own),
        _ => {}
    }
}

impl Side {
    fn ask(&mut self, ask: &Ask) -> Answer {
        let address = match ask.at {
            At::Client => &self.client,
            At::Metrics => &self.metrics,
            At::Peer => &self.peer,
        };
        let mut stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(LIMIT)).expect("a limit");
        let body = ask.body.replace("MEMBER", &self.member);
        let header = ask.header.replace("TOKEN", &self.token);
        let header = if header.is_empty() { header } else { header + "\r\n" };
        let request = format!(
            "{} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\
             Content-Length: {}\r\n\r\n{body}",
            ask.line,
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("a request");
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).unwrap_or_else(|error| panic!("{ask:?}: {error}"));
        let status = line.trim_end().to_owned();
        let (mut headers, mut is_in_parts) = (Vec::new(), false);
        loop {
            line.clear();
            stream.read_line(&mut line).expect("a header");
            let Some((name, _)) = line.trim_end().split_once(':') else { break };
            is_in_parts |= name == "Transfer-Encoding";
            // A server is free to send a body with its length or in parts.
            if !["Transfer-Encoding", "Content-Length", "Date", "Connection"].contains(&name) {
                headers.push(line.trim_end().to_owned());
            }
        }
        headers.sort();
        let mut body = String::new();
        if is_in_parts {
            while ask.lines == 0 || body.lines().count() < ask.lines {
                line.clear();
                stream.read_line(&mut line).expect("a length");
                let length = usize::from_str_radix(line.trim_end(), 16).expect("a length");
                let mut part = vec![0; length + 2];
                stream.read_exact(&mut part).expect("a part");
                if length == 0 {
                    break;
                }
                part.truncate(length);
                body.push_str(std::str::from_utf8(&part).expect("text"));
            }
        } else {
            stream.read_to_string(&mut body).expect("a body");
        }
        Answer {
            status,
            headers,
            body: if ask.is_same { self.normal(&body) } else { String::new() },
        }
    }

    /// Makes bodies that mean the same equal: Go's protobuf puts spaces where it wants, also into
    /// its words, and its checks come in any order.
    fn normal(&mut self, body: &str) -> String {
        let mut lines: Vec<String> = Vec::new();
        for line in body.lines() {
            let line = line.replace('\u{a0}', " ");
            lines.push(match serde_json::from_str::<Value>(&line) {
                Ok(mut value @ Value::Object(_)) => {
                    if let Some(token) = value["token"].as_str() {
                        token.clone_into(&mut self.token);
                    }
                    without_own(&mut value);
                    value.to_string()
                }
                _ => line,
            });
        }
        lines.sort_by_key(|line| !line.starts_with('['));
        let checks = lines.iter().take_while(|line| line.starts_with('[')).count();
        lines[..checks].sort();
        let end = if body.ends_with('\n') { "\n" } else { "" };
        lines.join("\n") + end
    }
}

fn same_answers(version: &str, compat: Compat) {
    let Some(real) = real() else { return };
    let sandbox = Sandbox::new();
    let [peer, metrics] = free_ports();
    let (peer, metrics) = (format!("127.0.0.1:{peer}"), format!("127.0.0.1:{metrics}"));
    let peer_url = format!("http://{peer}");
    let flag = format!("--listen-metrics-urls=http://{metrics}");
    let more = [flag.as_str(), "--bcrypt-cost=4"];
    let start = Start {
        data_dir: sandbox.path("theirs"),
        name: "m1",
        peer: Some(peer_url.clone()),
        more: &more,
    };
    let etcd = real.etcd(version, &start);
    let client = etcd.endpoint.trim_start_matches("http://").to_owned();

    let mut identity = Identity::default();
    identity.name = "m1".into();
    identity.peer_urls = vec![peer_url];
    identity.client_urls = vec![etcd.endpoint.clone()];
    let options = store::Options::default().identity(identity).compat(compat).bcrypt_cost(4_u32);
    let store = Store::open(&sandbox.path("ours"), options).expect("a store");
    let listener = |role| Listener {
        address: Address::Tcp("127.0.0.1:0".parse().expect("an address")),
        role,
        tls: None,
    };
    let listeners: Vec<Listener> =
        [Role::Client, Role::Metrics, Role::Peer].into_iter().map(listener).collect();
    let server = Server::start(store.clone(), Options::default().listeners(listeners));
    let server = server.expect("a server");
    let [ours, our_metrics, our_peer] = server.addresses() else { panic!("three addresses") };

    let member = store.member_id().0.to_string();
    let mut theirs = Side { client, metrics, peer, member: member.clone(), token: String::new() };
    let mut ours = Side {
        client: ours.to_string(),
        metrics: our_metrics.to_string(),
        peer: our_peer.to_string(),
        member,
        token: String::new(),
    };
    let mut differ = Vec::new();
    for ask in [PLAIN, KEYS, BAD, OTHERS, ALARMS, AUTH].concat() {
        let (theirs, ours) = (theirs.ask(&ask), ours.ask(&ask));
        if theirs != ours {
            differ.push(format!(
                "{:?} {} {} {}\n  etcd {theirs:?}\n  ours {ours:?}",
                ask.at, ask.line, ask.header, ask.body
            ));
        }
    }
    assert!(differ.is_empty(), "etcd {version}: {}\n{}", differ.len(), differ.join("\n"));
    server.stop(LIMIT);
    store.close().expect("closed");
}

#[test]
fn http_is_answered_as_etcd_3_6_does() {
    same_answers("3.6", Compat::V3_6);
}

#[test]
fn http_is_answered_as_etcd_3_7_does() {
    same_answers("3.7", Compat::V3_7);
}
