//! Connections that fail: every cause, told apart, within its time, whatever listens there.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use etcdkit::live::{Cause, Cluster, Credentials, Problem, Settings, Side, Tls};
use etcdkit::ops;

use tokio_rustls::rustls::{ServerConnection, Stream};

use crate::certs::{Certs, Issue, KeyForm, Pair, Purpose};
use crate::fake_etcd::{FakeEtcd, Fault, Member};
use crate::support::Sandbox;

/// Limits of these connections; a failure takes at most both, and the look at who is there.
const DIAL: Duration = Duration::from_millis(600);
const LIMIT: Duration = Duration::from_secs(4);

fn settings(endpoint: &str) -> Settings {
    let endpoints = vec![endpoint.to_owned()];
    Settings { endpoints, dial_timeout: DIAL, ..Settings::default() }
}

fn over_tls(endpoint: &str, certs: &Certs, pair: Option<&Pair>) -> Settings {
    let tls = Tls {
        cacert: Some(certs.ca()),
        cert: pair.map(|pair| pair.cert.clone()),
        key: pair.map(|pair| pair.key.clone()),
        ..Tls::default()
    };
    Settings { tls, ..settings(endpoint) }
}

fn ask(settings: Settings) -> Result<(), etcdkit::live::Error> {
    let began = Instant::now();
    let answer = Cluster::open(settings).and_then(|cluster| cluster.members().map(|_| ()));
    assert!(began.elapsed() < LIMIT, "{:?}: {answer:?}", began.elapsed());
    answer
}

#[track_caller]
fn fails(settings: Settings, code: u8, words: &[&str]) -> Cause {
    let error = ask(settings).expect_err("a failure");
    let cause = error.cause.clone();
    let told = ops::Error::from(error);
    assert_eq!(told.code.number(), code, "{}", told.message);
    for word in words {
        assert!(told.message.contains(word), "{word:?} is not in {}", told.message);
    }
    assert!(told.message.len() < 2000 && !told.message.contains(char::is_control));
    cause
}

/// Serves every connection with a function, on a port of its own, until the test ends.
fn serve(answer: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answer = Arc::new(answer);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            thread::spawn(move || answer(stream));
        }
    });
    format!("http://{address}")
}

/// Hears something, says this, and closes.
fn says(bytes: &[u8]) -> String {
    let bytes = bytes.to_vec();
    serve(move |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(&bytes);
    })
}

#[test]
fn names_and_addresses() {
    fails(settings("http://no-such-host.invalid:2379"), 4, &["no-such-host.invalid", "resolved"]);
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let cause = fails(settings(&format!("http://{gone}")), 4, &["connection refused", &gone]);
    assert_eq!(cause, Cause::Refused { address: gone });
    fails(settings("http://[::1]:1"), 4, &[]);
    fails(settings("unix:///no/such.sock"), 4, &["No such file"]);
    fails(settings("ftp://cp-1:1"), 2, &["scheme"]);
    fails(Settings { endpoints: Vec::new(), ..Settings::default() }, 2, &["no endpoints"]);
}

#[test]
fn servers_that_are_no_etcd() {
    for (bytes, words) in [
        (&b"SSH-2.0-OpenSSH_9.6\r\n"[..], "not etcd"),
        (b"HTTP/1.1 200 OK\r\nServer: nginx\r\nConnection: close\r\n\r\nhi", "nginx"),
        (b"HTTP/1.0 500 \x1b[2J\r\nServer: a\x1b[2Jb\x07\r\n\r\n", "status 500"),
        (
            b"HTTP/1.0 403 Forbidden\r\n\r\n{\"kind\":\"Status\",\"apiVersion\":\"v1\"}",
            "Kubernetes API server",
        ),
        (b"HTTP/1.0 200 OK\r\n\r\n{\"health\":\"true\"}", "metrics"),
        (b"HTTP/1.0 200 OK\r\n\r\n{\"etcdserver\":\"3.6.0\"}", "HTTP and no gRPC"),
        (b"\0\0\0\x04\0\0\0\0\0garbage after a frame that is one", ""),
        (b"\xff", "not etcd"),
        (b"", "closed it without a word"),
    ] {
        let endpoint = says(bytes);
        let cause = fails(settings(&endpoint), 4, &[words]);
        assert!(!matches!(cause, Cause::Timeout { .. }), "{cause:?}");
        let over_tls = endpoint.replace("http://", "https://");
        let error = ask(settings(&over_tls)).unwrap_err();
        assert!(matches!(ops::Error::from(error).code.number(), 4 | 5));
    }
    let alert = says(b"\x15\x03\x01\0\x02\x02\x28");
    assert_eq!(fails(settings(&alert), 5, &[]), Cause::WantsTls);
}

#[test]
fn a_metrics_port_over_tls_is_known_as_one() {
    let certs = Certs::new();
    let mut config = (*certs.server_config(&certs.server(), false)).clone();
    // As etcd's, which speaks HTTP/1 there.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let config = Arc::new(config);
    let port = serve(move |mut stream| {
        let Ok(mut tls) = ServerConnection::new(Arc::clone(&config)) else { return };
        let mut tls = Stream::new(&mut tls, &mut stream);
        let mut heard = [0; 4096];
        let count = tls.read(&mut heard).unwrap_or(0);
        let answer = match heard[..count].starts_with(b"GET /health ") {
            true => "HTTP/1.0 200 OK\r\n\r\n{\"health\":\"true\",\"reason\":\"\"}",
            false => "HTTP/1.0 404 Not Found\r\n\r\n404 page not found\n",
        };
        let _ = tls.write_all(answer.as_bytes());
        tls.conn.send_close_notify();
        let _ = tls.flush();
    });
    let endpoint = port.replace("http://", "https://");
    let cause = fails(over_tls(&endpoint, &certs, None), 4, &["etcd's port for metrics"]);
    assert!(matches!(cause, Cause::NotEtcd { .. }), "{cause:?}");
}

#[test]
fn a_peer_port_tells_where_clients_go() {
    let peer = serve(|mut stream| {
        let mut heard = [0; 4096];
        let count = stream.read(&mut heard).unwrap_or(0);
        let port = stream.local_addr().unwrap().port();
        let body = format!(
            "[{{\"id\":1,\"peerURLs\":[\"http://127.0.0.1:{port}\"],\"name\":\"a\",\
             \"clientURLs\":[\"http://10.0.0.1:2379\"]}},{{\"id\":2,\
             \"peerURLs\":[\"http://10.0.0.2:2380\"],\"clientURLs\":[\"http://10.0.0.2:2379\"]}}]"
        );
        let answer = match heard[..count].starts_with(b"GET /members ") {
            true => format!("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{body}"),
            false => "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n".to_owned(),
        };
        let _ = stream.write_all(answer.as_bytes());
    });
    let words = ["peer port", "http://10.0.0.1:2379"];
    let cause = fails(settings(&peer), 4, &words);
    assert_eq!(cause, Cause::PeerPort { client_urls: vec!["http://10.0.0.1:2379".to_owned()] });
    fails(settings(&peer.replace("http://", "https://")), 4, &words);
}

#[test]
fn servers_that_are_slow_or_never_end() {
    let silent = serve(|stream| {
        thread::sleep(Duration::from_secs(10));
        drop(stream);
    });
    let cause = fails(settings(&silent), 4, &["600 ms", "first word"]);
    assert!(matches!(cause, Cause::Timeout { .. }), "{cause:?}");
    let over_tls = silent.replace("http://", "https://");
    fails(settings(&over_tls), 4, &["600 ms", "hands over TLS"]);
    for piece in [&b"x"[..], b"HTTP/1.1 200 OK\r\nA: ", b"HTTP/1.1 200 OK\r\n\r\n[{", b"\x16\x03"] {
        // One piece at a time, for ever.
        let piece = piece.to_vec();
        let drip = serve(move |mut stream| {
            while stream.write_all(&piece).is_ok() {
                thread::sleep(Duration::from_millis(20));
            }
        });
        fails(settings(&drip), 4, &[]);
        assert!(ask(settings(&drip.replace("http://", "https://"))).is_err());
    }
    for head in [&b"HTTP/1.1 200 OK\r\nX: "[..], b"", b"HTTP/1.1 200 OK\r\n\r\n"] {
        let head = head.to_vec();
        let flood = serve(move |mut stream| {
            let _ = stream.write_all(&head);
            while stream.write_all(&[b'['; 65536]).is_ok() {}
        });
        fails(settings(&flood), 4, &["not etcd"]);
    }
    let fake = FakeEtcd::start(Member::new("m1").fault("MemberList", Fault::Silent));
    let slow = Settings { command_timeout: DIAL, ..settings(&fake.endpoint()) };
    fails(slow, 4, &["600 ms", "waiting for its answer"]);
    let fake = FakeEtcd::start(Member::new("m1").fault("MemberList", Fault::Drop));
    let cause = fails(settings(&fake.endpoint()), 4, &["broke"]);
    assert!(matches!(cause, Cause::Broken { .. }), "{cause:?}");
}

#[test]
fn certificates_of_either_side() {
    let certs = Certs::new();
    let server = |pair: &Pair, wants_client| {
        FakeEtcd::start_tls(Member::new("m1"), certs.server_config(pair, wants_client))
    };
    let good = server(&certs.server(), true);
    let endpoint = good.endpoint();
    ask(over_tls(&endpoint, &certs, Some(&certs.client()))).unwrap();
    let forms = [
        certs.issue("r8", &Issue::client("root").rsa()),
        certs.issue("r1", &Issue::client("root").rsa()).key_as(KeyForm::Pkcs1),
        certs.client().key_as(KeyForm::Sec1),
    ];
    for pair in &forms {
        ask(over_tls(&endpoint, &certs, Some(pair))).unwrap();
    }
    let problem = |settings: Settings, side: Side| match fails(settings, 5, &[]) {
        Cause::Certificate(certificate) => {
            assert_eq!(certificate.side, side, "{certificate}");
            certificate.problem
        }
        cause => panic!("no certificate's: {cause:?}"),
    };
    assert_eq!(problem(over_tls(&endpoint, &certs, None), Side::Client), Problem::Missing);
    let client = Issue::client("root");
    for (name, issue, expected) in [
        ("old", client.clone().expired(), Problem::Expired),
        ("early", client.clone().not_yet(), Problem::NotYetValid),
        ("server", client.clone().purpose(Purpose::Server), Problem::WrongPurpose),
        ("stranger", client.stranger(), Problem::UnknownAuthority),
    ] {
        let settings = over_tls(&endpoint, &certs, Some(&certs.issue(name, &issue)));
        assert_eq!(problem(settings, Side::Client), expected, "{name}");
    }
    let wanted = "127.0.0.1".to_owned();
    for (name, issue, expected) in [
        ("s-old", Issue::server().expired(), Problem::Expired),
        ("s-early", Issue::server().not_yet(), Problem::NotYetValid),
        ("s-client", Issue::server().purpose(Purpose::Client), Problem::WrongPurpose),
        ("s-stranger", Issue::server().stranger(), Problem::UnknownAuthority),
        ("s-self", Issue::server().self_signed(), Problem::UnknownAuthority),
        ("s-other", Issue::server().names(&["a.example"]), Problem::WrongName { wanted }),
    ] {
        let fake = server(&certs.issue(name, &issue), false);
        let settings = over_tls(&fake.endpoint(), &certs, None);
        assert_eq!(problem(settings, Side::Server), expected, "{name}");
    }
    // One that is trusted by itself, and no authority at all.
    let own = certs.issue("own", &Issue::server().self_signed());
    let fake = server(&own, false);
    let mut alone = over_tls(&fake.endpoint(), &certs, None);
    alone.tls.cacert = Some(own.cert);
    ask(alone).unwrap();
    // An authority whose time is over is none; beside one that is in time it does no harm.
    let over = certs.issue("over", &Issue::server().self_signed().expired());
    let mut late =
        over_tls(&endpoint, &certs, Some(&certs.issue("in-time", &Issue::client("root"))));
    late.tls.cacert = Some(over.cert.clone());
    match Cluster::open(late.clone()).err().map(|error| error.cause) {
        Some(Cause::Material { what, .. }) => assert!(what.contains("valid today"), "{what}"),
        other => panic!("{other:?}"),
    }
    let both = [std::fs::read(&over.cert).unwrap(), std::fs::read(certs.ca()).unwrap()].concat();
    std::fs::write(&over.cert, both).unwrap();
    ask(late).unwrap();
    let plain = endpoint.replace("https://", "http://");
    assert_eq!(fails(settings(&plain), 5, &["speaks TLS"]), Cause::WantsTls);
    let fake = FakeEtcd::start(Member::new("m1"));
    let tls = fake.endpoint().replace("http://", "https://");
    fails(over_tls(&tls, &certs, None), 5, &["plain http"]);
    // Many at once do not take each other's certificate.
    let elsewhere =
        server(&certs.issue("elsewhere", &Issue::server().names(&["b.example"])), false);
    let old = server(&certs.issue("very-old", &Issue::server().expired()), false);
    for _ in 0..10 {
        let mut both = over_tls(&elsewhere.endpoint(), &certs, None);
        both.endpoints.push(old.endpoint());
        let answers = Cluster::open(both).unwrap().statuses();
        let texts: Vec<String> =
            answers.into_iter().map(|(_, answer)| answer.unwrap_err().to_string()).collect();
        assert!(texts[0].contains("but for b.example"), "{texts:?}");
        assert!(texts[1].contains("expired at 2021"), "{texts:?}");
    }
}

#[test]
fn files_that_cannot_be_used() {
    let certs = Certs::new();
    let sandbox = Sandbox::new();
    let client = certs.client();
    let other = certs.issue("other", &Issue::client("other"));
    let garbage = sandbox.write("garbage", b"what is this");
    let empty = sandbox.write("empty", b"");
    let broken = "-----BEGIN CERTIFICATE-----\n****\n-----END CERTIFICATE-----\n";
    let broken = sandbox.write("broken", broken.as_bytes());
    let locked =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIC\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let locked = sandbox.write("locked", locked.as_bytes());
    let none = sandbox.path("none");
    let good = || (certs.ca(), client.cert.clone(), client.key.clone());
    let files = |change: &dyn Fn(&mut (std::path::PathBuf, _, _))| {
        let mut files = good();
        change(&mut files);
        files
    };
    for ((cacert, cert, key), words) in [
        (files(&|f| f.0 = none.clone()), ["none", "No such file"]),
        (files(&|f| f.0 = garbage.clone()), ["garbage", "no certificate in PEM"]),
        (files(&|f| f.0 = empty.clone()), ["empty", "it is empty"]),
        (files(&|f| f.0 = broken.clone()), ["broken", "damaged"]),
        (files(&|f| f.0 = client.key.clone()), [".key", "but a private key"]),
        (files(&|f| f.0 = sandbox.path(".")), ["cannot use", "directory"]),
        (files(&|f| f.1 = none.clone()), ["none", "No such file"]),
        (files(&|f| f.2 = client.cert.clone()), [".crt", "but a certificate"]),
        (files(&|f| f.2 = garbage.clone()), ["garbage", "no private key in PEM"]),
        (files(&|f| f.2 = locked.clone()), ["locked", "encrypted"]),
        (files(&|f| f.2 = other.key.clone()), ["other.key", "not the key of the certificate"]),
    ] {
        let (cacert, cert, key) = (Some(cacert), Some(cert), Some(key));
        let tls = Tls { cacert, cert, key, ..Tls::default() };
        fails(Settings { tls, ..settings("https://127.0.0.1:1") }, 5, &words);
    }
    let tls = Tls { cert: Some(client.cert.clone()), ..Tls::default() };
    fails(Settings { tls, ..settings("https://127.0.0.1:1") }, 5, &["--key"]);
    let tls = Tls { key: Some(client.key.clone()), ..Tls::default() };
    fails(Settings { tls, ..settings("https://127.0.0.1:1") }, 5, &["--cert"]);
}

#[test]
fn users_and_what_they_may() {
    let fake = FakeEtcd::start(Member::new("m1").auth("rootpw"));
    let as_user = |name: &str, password: &str| {
        let user = Credentials { name: name.into(), password: password.into() };
        Settings { user: Some(user), ..settings(&fake.endpoint()) }
    };
    let access = |settings: Settings| Cluster::open(settings).unwrap().access();
    fails(settings(&fake.endpoint()), 5, &["user name is empty"]);
    fails(as_user("root", "wrong"), 5, &["authentication failed"]);
    assert!(access(settings(&fake.endpoint())).is_err());
    let root = access(as_user("root", "rootpw")).unwrap();
    assert!(root.is_admin() && root.auth_enabled, "{root:?}");
    let app = access(as_user("app", "app")).unwrap();
    assert!(!app.is_admin() && app.auth_enabled, "{app:?}");
    assert_eq!(app.roles, ["app"]);
    let open = FakeEtcd::start(Member::new("m1"));
    let access = access(settings(&open.endpoint())).unwrap();
    assert!(access.is_admin() && !access.auth_enabled, "{access:?}");
}

#[test]
fn a_socket_in_the_file_system() {
    let sandbox = Sandbox::new();
    let fake = FakeEtcd::start(Member::new("m1"));
    let path = sandbox.path("etcd.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let port = fake.port();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let to = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let ways = (stream.try_clone().unwrap(), to.try_clone().unwrap());
            thread::spawn(move || std::io::copy(&mut &stream, &mut &to));
            thread::spawn(move || std::io::copy(&mut &ways.1, &mut &ways.0));
        }
    });
    ask(settings(&format!("unix://{}", path.display()))).unwrap();
    ask(settings(&format!("unix:{}", path.display()))).unwrap();
}

#[test]
fn every_endpoint_is_named_when_none_answers() {
    let certs = Certs::new();
    let pair = certs.issue("other", &Issue::server().names(&["a.example"]));
    let fake = FakeEtcd::start_tls(Member::new("m1"), certs.server_config(&pair, false));
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gone = format!("https://{gone}");
    for order in [[fake.endpoint(), gone.clone()], [gone.clone(), fake.endpoint()]] {
        let settings = || Settings { endpoints: order.to_vec(), ..over_tls(&gone, &certs, None) };
        let words = ["a.example", "connection refused", &order[0], &order[1]];
        let cause = fails(settings(), 5, &words);
        assert!(matches!(cause, Cause::Certificate(_)), "{cause:?}");
        let mut cluster = Cluster::open(settings()).unwrap();
        let discovered = cluster.discover().unwrap_err().to_string();
        assert!(words.iter().all(|word| discovered.contains(word)), "{discovered}");
        let alarms = ops::Error::from(cluster.alarms().unwrap_err());
        assert!(words.iter().all(|word| alarms.message.contains(word)), "{}", alarms.message);
        let next = format!("--cacert={}", certs.ca().display());
        assert!(alarms.hints.join("\n").contains(&next), "{:?}", alarms.hints);
    }
    // Who answers is not asked for reasons.
    let open = FakeEtcd::start(Member::new("m2"));
    let both = vec![gone, open.endpoint()];
    ask(Settings { endpoints: both, ..settings("http://h:1") }).unwrap();
}
