use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::store::serve::{Address, Listener, Options, Role, Server};
use crate::store::{self, Store};

/// Longest wait for anything.
const LIMIT: Duration = Duration::from_secs(20);

/// A store that is served under every role.
struct Served {
    store: Store,
    server: Server,
    _dir: tempfile::TempDir,
}

const ROLES: [Role; 5] = [Role::Client, Role::Http, Role::Metrics, Role::Peer, Role::Grpc];

fn serve(options: Options, store: store::Options) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("data"), store.bcrypt_cost(4_u32)).unwrap();
    let listener =
        |role| Listener { address: Address::Tcp("127.0.0.1:0".parse().unwrap()), role, tls: None };
    let listeners: Vec<Listener> = ROLES.into_iter().map(listener).collect();
    let server = Server::start(store.clone(), options.listeners(listeners)).unwrap();
    Served { store, server, _dir: dir }
}

struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{}: {error}", self.body))
    }
}

/// Reads the head of an answer.
fn head(stream: &mut impl BufRead) -> (u16, Vec<(String, String)>) {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    let status = line.split(' ').nth(1).unwrap_or_else(|| panic!("{line:?}")).parse().unwrap();
    let mut headers = Vec::new();
    loop {
        line.clear();
        stream.read_line(&mut line).unwrap();
        match line.trim_end().split_once(": ") {
            Some((key, value)) => headers.push((key.to_owned(), value.to_owned())),
            None => return (status, headers),
        }
    }
}

/// Reads a part of a body that comes in parts; `None` after the last one.
fn chunk(stream: &mut impl BufRead) -> Option<String> {
    let mut line = String::new();
    stream.read_line(&mut line).unwrap();
    let length = usize::from_str_radix(line.trim_end(), 16).unwrap();
    let mut bytes = vec![0; length + 2];
    stream.read_exact(&mut bytes).unwrap();
    (length > 0).then(|| String::from_utf8(bytes[..length].to_vec()).unwrap())
}

impl Served {
    fn address(&self, role: Role) -> SocketAddr {
        let at = ROLES.iter().position(|known| *known == role).unwrap();
        match &self.server.addresses()[at] {
            Address::Tcp(address) => *address,
            Address::Unix(path) => panic!("{}", path.display()),
        }
    }

    fn send(&self, role: Role, line: &str, headers: &[&str], body: &[u8]) -> BufReader<TcpStream> {
        let mut stream = TcpStream::connect(self.address(role)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let host = if headers.iter().any(|it| it.starts_with("Host")) { "" } else { "Host: a\r\n" };
        let more: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let length = body.len();
        let head = format!("{line} HTTP/1.1\r\n{host}{more}Content-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        // A server that refuses at once does not take the rest.
        let _ = stream.write_all(body);
        BufReader::new(stream)
    }

    fn ask_with(&self, role: Role, line: &str, headers: &[&str], body: &[u8]) -> Answer {
        let headers = [headers, &["Connection: close"]].concat();
        let mut stream = self.send(role, line, &headers, body);
        let (status, headers) = head(&mut stream);
        let mut body = String::new();
        if headers.iter().any(|(key, _)| key == "Transfer-Encoding") {
            while let Some(part) = chunk(&mut stream) {
                body.push_str(&part);
            }
        } else {
            stream.read_to_string(&mut body).unwrap();
        }
        Answer { status, headers, body }
    }

    fn get(&self, role: Role, path: &str) -> Answer {
        self.ask_with(role, &format!("GET {path}"), &[], b"")
    }

    fn post(&self, path: &str, body: &str) -> Answer {
        self.ask_with(Role::Client, &format!("POST {path}"), &[], body.as_bytes())
    }
}

fn plain() -> Served {
    serve(Options::default(), store::Options::default())
}

#[test]
fn probes_are_answered_where_they_are_asked() {
    let served = plain();
    for role in [Role::Client, Role::Http, Role::Metrics] {
        let health = served.get(role, "/health");
        assert_eq!(health.status, 200, "{role:?}");
        assert_eq!(health.body, r#"{"health":"true","reason":""}"#);
        assert_eq!(health.header("Content-Type"), Some("text/plain; charset=utf-8"));
        assert_eq!(served.get(role, "/livez").body, "ok\n");
        assert_eq!(served.get(role, "/readyz/non_learner").body, "ok\n");
        let verbose = "[+]data_corruption ok\n[+]linearizable_read ok\n[+]non_learner ok\nok\n";
        let path = "/readyz?verbose&exclude=serializable_read&exclude=no%2Dne";
        assert_eq!(served.get(role, path).body, verbose);
        assert_eq!(served.get(role, "/readyz/none").status, 404);
        assert_eq!(served.get(role, "/health/").status, 404);
        let refused = served.ask_with(role, "POST /livez", &[], b"");
        assert_eq!((refused.status, refused.header("Allow")), (405, Some("GET")));
        assert_eq!(refused.body, "Method Not Allowed\n");
        assert!(served.get(role, "/metrics").body.contains("\netcd_server_has_leader 1\n"));
    }
    for path in ["/health", "/livez", "/metrics", "/v3/kv/range"] {
        assert_eq!(served.get(Role::Peer, path).status, 404, "{path}");
    }
    let metrics = served.get(Role::Metrics, "/metrics").body;
    assert!(metrics.contains("\netcd_server_health_success 3\n"), "{metrics}");
    let check = "\netcd_server_healthcheck{name=\"data_corruption\",type=\"readyz\"} 1\n";
    assert!(metrics.contains(check), "{metrics}");
    assert_eq!(served.get(Role::Metrics, "/version").status, 404);
}

#[test]
fn alarms_and_failures_show_in_health() {
    let served = plain();
    let caller = served.store.caller_named("root");
    let member_id = served.store.member_id().0;
    let alarm = |action, alarm| {
        let request = crate::etcd::request::Alarm { action, member_id, alarm };
        served.store.alarm(&caller, request).unwrap();
    };
    alarm(1, 1);
    let health = served.get(Role::Client, "/health");
    assert_eq!(health.status, 503);
    assert_eq!(health.body, "{\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n");
    assert_eq!(served.get(Role::Client, "/health?exclude=NOSPACE").status, 200);
    assert_eq!(served.get(Role::Client, "/readyz").status, 200);
    alarm(2, 1);
    alarm(1, 2);
    let reason = |path| served.get(Role::Client, path).body;
    assert_eq!(reason("/health"), "{\"health\":\"false\",\"reason\":\"ALARM CORRUPT\"}\n");
    let ready = served.get(Role::Client, "/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.body.starts_with("[-]data_corruption failed: alarm activated: CORRUPT\n[+]"));
    assert_eq!(ready.header("X-Content-Type-Options"), Some("nosniff"));
    assert_eq!(served.get(Role::Client, "/livez").status, 200);
    served.store.close().unwrap();
    assert_eq!(served.get(Role::Client, "/livez").status, 503);
    let health = served.get(Role::Client, "/health").body;
    assert_eq!(health, "{\"health\":\"false\",\"reason\":\"etcdserver: server stopped\"}\n");
}

/// However many threads wait for a disk: probes need none of them.
#[test]
fn probes_are_answered_while_all_threads_wait() {
    let served = plain();
    let (hold, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Arc::new(std::sync::Mutex::new(held));
    let runtime = served.server.runtime.as_ref().unwrap();
    for _ in 0..520 {
        let held = std::sync::Arc::clone(&held);
        // Ends when the other side is gone.
        runtime.spawn_blocking(move || held.lock().unwrap().recv().is_err());
    }
    for path in ["/health", "/livez", "/readyz", "/readyz/linearizable_read"] {
        assert_eq!(served.get(Role::Metrics, path).status, 200, "{path}");
    }
    drop(hold);
}

#[test]
fn versions_members_and_variables_are_told() {
    let served = plain();
    let versions = served.get(Role::Client, "/version");
    let wanted = r#"{"etcdserver":"3.7.3","etcdcluster":"3.7.0","storage":"3.7.0"}"#;
    assert_eq!((versions.status, versions.body.as_str()), (200, wanted));
    assert_eq!(versions.header("Content-Type"), Some("application/json"));
    assert_eq!(served.get(Role::Peer, "/version").body, wanted);
    let members = served.get(Role::Peer, "/members");
    let id = served.store.member_id().0;
    let member = &members.json()[0];
    assert_eq!(member["id"], json!(id));
    assert_eq!(member["peerURLs"], json!(["http://localhost:2380"]));
    let cluster = served.store.cluster_id().to_string();
    assert_eq!(members.header("X-Etcd-Cluster-Id"), Some(cluster.as_str()));
    let vars = served.get(Role::Client, "/debug/vars").json();
    assert_eq!(vars["cmdline"], json!([]), "nobody said what may be told");
    assert_eq!(vars["raft.status"]["raftState"], json!("StateLeader"));
    assert!(vars["file_descriptor_limit"].as_u64() > Some(0));
}

#[test]
fn paths_are_cleaned_and_what_is_not_there_is_not_found() {
    let served = plain();
    for (path, place) in [("/v3", "/v3/"), ("//health?a=1&b", "/health?a=1&b"), ("/v3/../x", "/x")]
    {
        let moved = served.get(Role::Client, path);
        assert_eq!((moved.status, moved.header("Location")), (307, Some(place)), "{path}");
    }
    let absent = served.get(Role::Client, "/nope");
    assert_eq!((absent.status, absent.body.as_str()), (404, "404 page not found\n"));
    let absent = served.get(Role::Client, "/v3/kv/nope");
    assert_eq!((absent.status, absent.body.as_str()), (404, r#"{"code":5,"message":"Not Found"}"#));
    let read = served.get(Role::Client, "/v3/kv/put");
    let told = r#"{"code":12,"message":"Method Not Allowed"}"#;
    assert_eq!((read.status, read.body.as_str()), (501, told));
    let without = serve(Options::default().gateway(false), store::Options::default());
    assert_eq!(without.post("/v3/kv/put", "{}").body, "404 page not found\n");
}

#[test]
fn hosts_and_origins_are_checked() {
    let served = plain();
    let allowed = served.get(Role::Client, "/version");
    assert_eq!(allowed.header("Access-Control-Allow-Origin"), Some("*"));
    let options = served.ask_with(Role::Client, "OPTIONS /v3/kv/put", &[], b"");
    assert_eq!((options.status, options.body.as_str()), (200, ""));
    let methods = "POST, GET, OPTIONS, PUT, DELETE";
    assert_eq!(options.header("Access-Control-Allow-Methods"), Some(methods));
    assert_eq!(served.get(Role::Metrics, "/health").header("Access-Control-Allow-Origin"), None);

    let options = Options::default()
        .cors(vec!["http://good".into()])
        .host_whitelist(vec!["me".into(), "::1".into()]);
    let served = serve(options, store::Options::default());
    for (host, status) in [("me", 200), ("me:1", 200), ("[::1]:1", 200), ("evil:2379", 421)] {
        let answer = served.ask_with(Role::Client, "GET /health", &[&format!("Host: {host}")], b"");
        assert_eq!(answer.status, status, "{host}");
        assert_eq!(answer.body.contains("etcd --host-whitelist \"evil\"\n"), status == 421);
        assert_eq!(answer.header("Access-Control-Allow-Origin"), None);
    }
    for (origin, allowed) in [("http://good", Some("http://good")), ("http://bad", None)] {
        let headers = ["Host: me", &format!("Origin: {origin}")];
        let answer = served.ask_with(Role::Client, "GET /health", &headers, b"");
        assert_eq!(answer.header("Access-Control-Allow-Origin"), allowed);
    }
    let headers = ["Host: evil"];
    assert_eq!(served.ask_with(Role::Metrics, "GET /health", &headers, b"").status, 200);
}

#[test]
fn calls_are_made_as_json() {
    let served = plain();
    let put = served.post("/v3/kv/put", r#"{"key":"Zm9v","value":"YmFy"}"#);
    assert_eq!(put.status, 200, "{}", put.body);
    assert_eq!(put.header("Content-Type"), Some("application/json"));
    assert_eq!(put.header("Grpc-Metadata-Content-Type"), Some("application/grpc"));
    let header = put.json()["header"].clone();
    assert_eq!(header["member_id"], json!(served.store.member_id().0.to_string()));
    let range = served.post("/v3beta/kv/range", r#"{"key":"Zm9v"} and more"#).json();
    let kv = json!({ "key": "Zm9v", "create_revision": "2", "mod_revision": "2", "version": "1",
        "value": "YmFy" });
    assert_eq!(range, json!({ "header": header, "kvs": [kv], "count": "1" }));
    let txn = r#"{"compare":[{"key":"Zm9v","target":"VERSION","result":0,"version":"1"}],
        "success":[{"requestRange":{"key":"Zm9v","keysOnly":true}},
                   {"request_delete_range":{"key":"Zm9v"}}]}"#;
    let txn = served.post("/v3/kv/txn", txn).json();
    assert_eq!(txn["succeeded"], json!(true));
    assert_eq!(txn["responses"][1]["response_delete_range"]["deleted"], json!("1"));
    let compacted = served.post("/v3/kv/compaction", r#"{"revision":"3","physical":true}"#);
    assert_eq!(compacted.status, 200, "{}", compacted.body);

    for (path, body, status, told) in [
        ("put", "", 400, r#"{"code":3,"message":"etcdserver: key is not provided"}"#),
        ("put", "{", 400, r#"{"code":3,"message":"unexpected EOF"}"#),
        (
            "range",
            r#"{"key":"Zm9v","revision":1}"#,
            400,
            r#"{"code":11,"message":"etcdserver: mvcc: required revision has been compacted"}"#,
        ),
        (
            "put",
            r#"{"key":"Zm9v","lease":5}"#,
            404,
            r#"{"code":5,"message":"etcdserver: requested lease not found"}"#,
        ),
    ] {
        let answer = served.post(&format!("/v3/kv/{path}"), body);
        assert_eq!((answer.status, answer.body.as_str()), (status, told), "{body}");
        assert_eq!(answer.header("Grpc-Metadata-Content-Type"), None);
    }
}

#[test]
fn what_is_too_large_or_late_is_refused() {
    let served =
        serve(Options::default().request_bytes_max(1_usize << 10), store::Options::default());
    let max = (512 << 10) + (1 << 10);
    let value =
        |bytes: usize| format!(r#"{{"key":"YQ==","value":"{}"}}"#, "AAAA".repeat(bytes / 3));
    let large = served.post("/v3/kv/put", &value(max));
    let told = format!("grpc: received message larger than max ({} vs. {max})", max + 7);
    assert_eq!((large.status, large.json()), (429, json!({ "code": 8, "message": told })));
    let huge = served.post("/v3/kv/put", &value(3 << 20));
    assert_eq!((huge.status, &huge.json()["code"]), (429, &json!(8)));
    let bad = served.ask_with(Role::Client, "POST /v3/kv/range", &["Grpc-Timeout: x"], b"{}");
    assert_eq!(bad.body, r#"{"code":3,"message":"invalid grpc-timeout: x"}"#);
    let body = br#"{"key":"YQ=="}"#;
    let late = served.ask_with(Role::Client, "POST /v3/kv/put", &["Grpc-Timeout: 1n"], body);
    let told = r#"{"code":4,"message":"context deadline exceeded"}"#;
    assert_eq!((late.status, late.body.as_str()), (504, told));
}

#[test]
fn tokens_are_taken_from_the_header() {
    use crate::store::engine::NewUser;
    let served = plain();
    let caller = served.store.caller_named("root");
    served.store.user_add(&caller, NewUser::with_password("root", "pw")).unwrap();
    served.store.role_add(&caller, "root").unwrap();
    served.store.user_grant_role(&caller, "root", "root").unwrap();
    served.store.auth_enable(&caller).unwrap();
    let token = served.store.authenticate("root", "pw").unwrap().body;
    let ask = |header: &str| {
        let body = br#"{"key":"YQ=="}"#;
        served.ask_with(Role::Client, "POST /v3/kv/range", &[header], body)
    };
    for header in [
        format!("Authorization: {token}"),
        format!("Authorization: Bearer {token}"),
        format!("Grpc-Metadata-Token: {token}"),
    ] {
        assert_eq!(ask(&header).status, 200, "{header}");
    }
    let anonymous = ask("X: y");
    assert_eq!(anonymous.status, 400);
    assert_eq!(anonymous.json()["message"], json!("etcdserver: user name is empty"));
    let wrong = ask("Authorization: x.1");
    let told = "etcdserver: invalid auth token";
    assert_eq!((wrong.status, wrong.header("Www-Authenticate")), (401, Some(told)));
    // Probes need no token.
    assert_eq!(served.get(Role::Client, "/health").status, 200);
    assert_eq!(served.get(Role::Client, "/readyz").status, 200);
    assert_eq!(served.get(Role::Client, "/version").status, 200);
}

#[test]
fn a_watch_goes_on_after_its_request_ended() {
    let served = plain();
    let body = r#"{"create_request":{"key":"YQ==","start_revision":"1"}}
        {"createRequest":{"key":"Yg==","watchId":"7"}}"#;
    let mut stream = served.send(Role::Client, "POST /v3/watch", &[], body.as_bytes());
    let (status, headers) = head(&mut stream);
    assert_eq!(status, 200);
    assert!(headers.contains(&("Transfer-Encoding".into(), "chunked".into())), "{headers:?}");
    let mut line = || -> Value {
        let part = chunk(&mut stream).unwrap();
        assert!(part.starts_with("{\"result\":{\"header\":{") && part.ends_with("}}\n"), "{part}");
        serde_json::from_str(&part).unwrap()
    };
    assert_eq!(line()["result"]["created"], json!(true));
    assert_eq!(line()["result"]["watch_id"], json!("7"));
    served.post("/v3/kv/put", r#"{"key":"Yg==","value":"MQ=="}"#);
    let event = line();
    assert_eq!(event["result"]["watch_id"], json!("7"));
    // A put is the default, which is left out.
    assert_eq!(event["result"]["events"][0]["type"], json!(null));
    assert_eq!(event["result"]["events"][0]["kv"]["value"], json!("MQ=="));
    served.post("/v3/kv/deleterange", r#"{"key":"Yg=="}"#);
    assert_eq!(line()["result"]["events"][0]["type"], json!("DELETE"));

    // And the server forgets it when its client goes.
    let watchers = || {
        let metrics = served.get(Role::Metrics, "/metrics").body;
        let line =
            metrics.lines().find(|line| line.starts_with("etcd_debugging_mvcc_watcher_total"));
        line.unwrap().rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(watchers(), 2.0);
    stream.get_ref().shutdown(Shutdown::Both).unwrap();
    let start = Instant::now();
    while watchers() > 0.0 {
        assert!(start.elapsed() < LIMIT, "the watchers are still there");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_watch_takes_requests_as_they_come() {
    let served = plain();
    let mut stream = TcpStream::connect(served.address(Role::Client)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut send = {
        let mut stream = stream.try_clone().unwrap();
        move |part: &str| {
            let part = format!("{:x}\r\n{part}\r\n", part.len());
            stream.write_all(part.as_bytes()).unwrap();
        }
    };
    let start = "POST /v3/watch HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(start.as_bytes()).unwrap();
    send(r#"{"create_request":{"ke"#);
    send(r#"y":"YQ=="}}{"cancel"#);
    let mut stream = BufReader::new(stream);
    assert_eq!(head(&mut stream).0, 200);
    assert!(chunk(&mut stream).unwrap().contains("\"created\":true"));
    send(r#"_request":{}}"#);
    assert!(chunk(&mut stream).unwrap().contains("\"canceled\":true"));
    // What is no request ends the requests, not the answer.
    send("x");
    served.server.stop(LIMIT);
    let last = chunk(&mut stream).unwrap();
    assert_eq!(last, "{\"error\":{\"code\":14,\"message\":\"etcdserver: server stopped\"}}\n");
}

#[test]
fn large_messages_of_streams_travel_as_json() {
    let served = plain();
    let large = "AAAA".repeat(10_000);
    let put = format!(r#"{{"key":"{large}","value":"YQ=="}}"#);
    assert_eq!(served.post("/v3/kv/put", &put).status, 200);
    let range = served.post("/v3/kv/range", &format!(r#"{{"key":"{large}"}}"#)).json();
    assert_eq!(range["kvs"][0]["key"], large.as_str());
    // The second request waits until the first is read.
    let watch = r#"{"create_request":{"start_revision":1,"key":"#;
    let asked = format!(r#"{watch}"{large}"}}}}{{"cancel_request":{{"watch_id":7}}}}"#);
    let mut stream = served.send(Role::Client, "POST /v3/watch", &[], asked.as_bytes());
    assert_eq!(head(&mut stream).0, 200);
    let created: Value = serde_json::from_str(&chunk(&mut stream).unwrap()).unwrap();
    assert_eq!(created["result"]["created"], true);
    let mut lines = std::iter::from_fn(|| chunk(&mut stream));
    let told = lines.find(|line| line.contains("\"events\":[{")).unwrap();
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["result"]["events"][0]["kv"]["key"], large.as_str());
}

#[test]
fn deep_and_broken_json_is_refused_in_time() {
    let served = plain();
    let deep = |start: &str, depth: usize| served.post("/v3/kv/txn", &start.repeat(depth)).json();
    let told = "invalid character '[' exceeded max depth";
    assert_eq!(deep("[", 20_000), json!({ "code": 3, "message": told }));
    let start = r#"{"success":[{"request_txn":"#;
    let nested = format!("{}{{}}{}", start.repeat(3000), "}]}".repeat(3000));
    let told = json!({ "code": 3, "message": "proto: exceeded max recursion depth" });
    assert_eq!(served.post("/v3/kv/txn", &nested).json(), told);
    let number = format!(r#"{{"lease":1{}}}"#, "0".repeat(100_000));
    let answer = served.post("/v3/kv/put", &number);
    assert_eq!(answer.status, 400);
    assert!(answer.body.contains("invalid value for int64 field lease: 1000"));
}

#[test]
fn the_command_line_is_told_as_it_is_handed_in() {
    let words = ["etcd", "--discovery-password=(not shown)"].map(str::to_owned);
    let served = serve(Options::default().command_line(words.clone()), store::Options::default());
    let vars = served.get(Role::Client, "/debug/vars").json();
    assert_eq!(vars["cmdline"], json!(words));
}

#[test]
fn metrics_and_peers_are_answered_while_clients_take_all_connections() {
    let served = serve(Options::default().connections_max(1_usize), store::Options::default());
    let mut held = TcpStream::connect(served.address(Role::Client)).unwrap();
    held.write_all(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let mut held = BufReader::new(held);
    assert_eq!(head(&mut held).0, 200);
    assert_eq!(served.get(Role::Metrics, "/health").status, 200);
    assert_eq!(served.get(Role::Peer, "/version").status, 200);
    // Whoever comes now waits until there is room.
    let mut next = served.send(Role::Client, "GET /health", &[], b"");
    next.get_ref().set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(next.fill_buf().is_err(), "it is answered beyond the limit");
    next.get_ref().set_read_timeout(Some(LIMIT)).unwrap();
    drop(held);
    assert_eq!(head(&mut next).0, 200);
}
