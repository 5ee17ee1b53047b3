//! Connections that fail, each for its own reason, against real etcds.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use etcdkit::live::{
    Access, Cause, Cluster, Credentials, Error, Limits, Problem, Settings, Side, Tls,
};
use etcdkit::ops;

use crate::boots::ETCDS;
use crate::certs::{Certs, Issue, KeyForm, Pair, Purpose};
use crate::cluster_harness::Plan;
use crate::programs::{Start, free_ports, real};
use crate::support::Sandbox;

/// No failure takes longer, whatever listens there.
const LIMIT: Duration = Duration::from_secs(6);

fn settings(endpoint: &str) -> Settings {
    Settings { endpoints: vec![endpoint.to_owned()], ..Settings::default() }
}

fn over_tls(endpoint: &str, cacert: PathBuf, pair: Option<&Pair>) -> Settings {
    let tls = Tls {
        cacert: Some(cacert),
        cert: pair.map(|pair| pair.cert.clone()),
        key: pair.map(|pair| pair.key.clone()),
        ..Tls::default()
    };
    Settings { tls, ..settings(endpoint) }
}

fn as_user(endpoint: &str, name: &str, password: &str) -> Settings {
    let user = Credentials { name: name.to_owned(), password: password.to_owned() };
    Settings { user: Some(user), ..settings(endpoint) }
}

fn ask(settings: Settings) -> Result<(), Error> {
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
    assert!(!told.hints.is_empty(), "no hint: {}", told.message);
    let text = format!("{}\n{}", told.message, told.hints.join("\n"));
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
    println!("{text}\n");
    cause
}

#[track_caller]
fn fails_by_certificate(settings: Settings, side: Side, words: &[&str]) -> Problem {
    match fails(settings, 5, words) {
        Cause::Certificate(certificate) => {
            assert_eq!(certificate.side, side, "{certificate}");
            certificate.problem
        }
        cause => panic!("no certificate's: {cause:?}"),
    }
}

#[test]
fn plain_servers_are_told_from_each_other() {
    let Some(real) = real() else { return };
    for version in ETCDS {
        let [metrics, http] = free_ports();
        let metrics = format!("http://127.0.0.1:{metrics}");
        let http = format!("http://127.0.0.1:{http}");
        let plan = Plan::new(version).flag(&format!("--listen-metrics-urls={metrics}"));
        let plan = plan.flag(&format!("--listen-client-http-urls={http}"));
        let cluster = plan.start(&real);
        ask(settings(&cluster.endpoint(0))).expect("an answer");
        let client = cluster.endpoint(0);
        // The peer port of etcd 3.5 answers clients where it is plain.
        match version {
            "3.5" => ask(settings(&cluster.peer(0))).expect("an answer"),
            _ => {
                let cause = fails(settings(&cluster.peer(0)), 4, &["peer port", &client]);
                assert_eq!(cause, Cause::PeerPort { client_urls: vec![client.clone()] });
            }
        }
        let over_tls = cluster.peer(0).replace("http://", "https://");
        fails(settings(&over_tls), 4, &["peer port", &client]);
        fails(settings(&metrics), 4, &["metrics"]);
        fails(settings(&http), 4, &["HTTP and no gRPC"]);
        let over_tls = client.replace("http://", "https://");
        assert_eq!(fails(settings(&over_tls), 5, &["plain http", &client]), Cause::WantsPlain);
        // A user is no trouble where nobody is known.
        ask(as_user(&client, "root", "x")).expect("an answer");
        let access = Cluster::open(as_user(&client, "root", "x")).unwrap().access().unwrap();
        assert_eq!(access, Access::default());
        assert!(access.is_admin());
    }
}

#[test]
fn certificates_of_ours_are_refused_for_what_is_wrong_with_them() {
    let Some(real) = real() else { return };
    for version in ETCDS {
        let cluster = Plan::new(version).tls().start(&real);
        let certs = cluster.certs();
        let endpoint = cluster.endpoint(0);
        let with = |pair: Option<&Pair>| over_tls(&endpoint, certs.ca(), pair);
        ask(with(Some(&certs.client()))).expect("an answer");
        for (name, issue, form) in [
            ("rsa8", Issue::client("root").rsa(), KeyForm::Pkcs8),
            ("rsa1", Issue::client("root").rsa(), KeyForm::Pkcs1),
            ("ec1", Issue::client("root"), KeyForm::Sec1),
        ] {
            ask(with(Some(&certs.issue(name, &issue).key_as(form)))).expect(name);
        }
        let client = Side::Client;
        let problem = fails_by_certificate(with(None), client, &["wants a client", "--cert"]);
        assert_eq!(problem, Problem::Missing);
        let old = certs.issue("old", &Issue::client("root").expired());
        let words = ["old.crt", "2021-02-03", "clock says", "CN=root"];
        assert_eq!(fails_by_certificate(with(Some(&old)), client, &words), Problem::Expired);
        let early = certs.issue("early", &Issue::client("root").not_yet());
        let words = ["early.crt", "2091-02-03"];
        assert_eq!(fails_by_certificate(with(Some(&early)), client, &words), Problem::NotYetValid);
        let server = certs.issue("server-only", &Issue::client("m1").purpose(Purpose::Server));
        let words = ["not made for a client", "server authentication"];
        let problem = fails_by_certificate(with(Some(&server)), client, &words);
        assert_eq!(problem, Problem::WrongPurpose);
        let stranger = certs.issue("stranger", &Issue::client("root").stranger());
        let words = ["not signed by an authority that the server trusts", "stranger.crt"];
        let problem = fails_by_certificate(with(Some(&stranger)), client, &words);
        assert_eq!(problem, Problem::UnknownAuthority);

        // And what is said of the server's.
        let unknown = over_tls(&endpoint, certs.stranger_ca(), Some(&certs.client()));
        let problem = fails_by_certificate(unknown, Side::Server, &["that we trust", "--cacert"]);
        assert_eq!(problem, Problem::UnknownAuthority);
        let system = Settings { tls: Tls::default(), ..with(None) };
        fails_by_certificate(system, Side::Server, &["that we trust"]);
        let plain = endpoint.replace("https://", "http://");
        assert_eq!(fails(settings(&plain), 5, &["speaks TLS", &endpoint]), Cause::WantsTls);
        let flags = with(Some(&certs.client()));
        let bare = endpoint.replace("https://", "");
        ask(Settings { endpoints: vec![bare], ..flags.clone() }).expect("TLS by its flags");
        let mut any = with(Some(&certs.client())).tls;
        (any.cacert, any.insecure_skip_verify) = (None, true);
        ask(Settings { tls: any, ..flags }).expect("any certificate");
    }
}

/// In TLS 1.3 a server refuses a certificate when we take the handshake for done, and closes: what
/// is noticed first, its word or the end of the connection, is chance.
#[test]
fn a_refused_certificate_is_told_every_time() {
    const TRIES: usize = 12;
    let Some(real) = real() else { return };
    for version in ETCDS {
        let cluster = Plan::new(version).tls().start(&real);
        let certs = cluster.certs();
        let endpoint = cluster.endpoint(0);
        let old = certs.issue("old", &Issue::client("root").expired());
        let stranger = certs.issue("stranger", &Issue::client("root").stranger());
        let kinds = [
            (None, Problem::Missing),
            (Some(&old), Problem::Expired),
            (Some(&stranger), Problem::UnknownAuthority),
        ];
        // Some with the machine to themselves, and then all at once.
        for (pair, expected) in &kinds {
            for _ in 0..TRIES {
                let settings = over_tls(&endpoint, certs.ca(), *pair);
                assert_eq!(fails_by_certificate(settings, Side::Client, &[]), *expected);
            }
        }
        std::thread::scope(|scope| {
            for (pair, expected) in kinds.iter().cycle().take(kinds.len() * TRIES) {
                let settings = over_tls(&endpoint, certs.ca(), *pair);
                scope.spawn(move || {
                    assert_eq!(fails_by_certificate(settings, Side::Client, &[]), *expected);
                });
            }
        });
    }
}

/// A login goes through the log; without a majority it is never answered.
#[test]
fn a_login_without_a_majority_is_not_told_to_wait_longer() {
    let Some(real) = real() else { return };
    for version in ETCDS {
        let mut cluster = Plan::new(version).members(3).auth().start(&real);
        cluster.kill(1);
        cluster.kill(2);
        let words = ["majority", "snapshot save FILE --from-data-dir DIR"];
        for limit in [Duration::from_secs(2), Duration::from_secs(12)] {
            let settings = as_user(&cluster.endpoint(0), "root", "rootpw");
            let asked = Cluster::open(Settings { command_timeout: limit, ..settings });
            let error = asked.unwrap().members().unwrap_err();
            let told = ops::Error::from(error);
            assert_eq!(told.code.number(), 4, "{version}: {}", told.message);
            let hints = told.hints.join("\n");
            assert!(words.iter().all(|word| hints.contains(word)), "{}: {hints}", told.message);
            assert!(!hints.contains("waits longer"), "{hints}");
        }
    }
}

#[test]
fn certificates_of_servers_are_refused_for_what_is_wrong_with_them() {
    let Some(real) = real() else { return };
    for version in ETCDS {
        let certs = Certs::new();
        let sandbox = Sandbox::new();
        let cases: [(&str, Issue, &[&str]); 4] = [
            ("old", Issue::server().expired(), &["expired at 2021-02-03", "timedatectl"]),
            ("early", Issue::server().not_yet(), &["valid only from 2091-02-03"]),
            (
                "elsewhere",
                Issue::server().names(&["other.example", "10.9.8.7"]),
                &["not for 127.0.0.1, but for other.example, 10.9.8.7", "https://10.9.8.7:"],
            ),
            ("client-only", Issue::server().purpose(Purpose::Client), &["client authentication"]),
        ];
        for (name, issue, words) in cases {
            let pair = certs.issue(name, &issue);
            let endpoint = serve(&real, version, &sandbox, name, &certs, &pair);
            let settings = over_tls(&endpoint.url, certs.ca(), Some(&certs.client()));
            fails_by_certificate(settings, Side::Server, words);
        }
        // The authorities of several clusters in one file; names; and IPv6 where there is any.
        let both = [certs.stranger_ca(), certs.ca()].map(|file| std::fs::read(file).unwrap());
        let bundle = sandbox.write("bundle.crt", &both.concat());
        let good = serve(&real, version, &sandbox, "good", &certs, &certs.server());
        ask(over_tls(&good.url, bundle.clone(), Some(&certs.client()))).expect("an answer");
        let by_name = good.url.replace("127.0.0.1", "localhost");
        ask(over_tls(&by_name, bundle, Some(&certs.client()))).expect("an answer by name");
        // Its peer port over TLS, which wants a certificate as well.
        let words = ["peer port", good.url.as_str()];
        fails(over_tls(&good.peer, certs.ca(), Some(&certs.client())), 4, &words);
        let plain = good.peer.replace("https://", "http://");
        assert_eq!(fails(settings(&plain), 5, &["TLS"]), Cause::WantsTls);
    }
}

struct Served<'a> {
    url: String,
    peer: String,
    _etcd: crate::programs::Etcd<'a>,
}

fn serve<'a>(
    real: &'a crate::programs::Real,
    version: &str,
    sandbox: &Sandbox,
    name: &str,
    certs: &Certs,
    pair: &Pair,
) -> Served<'a> {
    let [client, peer] = free_ports();
    let url = format!("https://127.0.0.1:{client}");
    let peer = format!("https://127.0.0.1:{peer}");
    let mut more: Vec<String> = [
        ("listen-client-urls", url.clone()),
        ("advertise-client-urls", url.clone()),
        ("listen-peer-urls", peer.clone()),
        ("initial-advertise-peer-urls", peer.clone()),
        ("initial-cluster", format!("{name}={peer}")),
        ("trusted-ca-file", certs.ca().display().to_string()),
        ("cert-file", pair.cert.display().to_string()),
        ("key-file", pair.key.display().to_string()),
        ("peer-trusted-ca-file", certs.ca().display().to_string()),
        ("peer-cert-file", certs.server().cert.display().to_string()),
        ("peer-key-file", certs.server().key.display().to_string()),
    ]
    .map(|(flag, value)| format!("--{flag}={value}"))
    .to_vec();
    more.extend(["--client-cert-auth".to_owned(), "--peer-client-cert-auth".to_owned()]);
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let data_dir = sandbox.path(&format!("{version}-{name}"));
    let start = Start { data_dir, name, more: &more, ..Start::default() };
    let etcd = real.etcd(version, &start);
    Served { url, peer, _etcd: etcd }
}

#[test]
fn a_certificate_that_etcd_made_for_itself_can_be_trusted() {
    let Some(real) = real() else { return };
    for version in ETCDS {
        let sandbox = Sandbox::new();
        let [client] = free_ports();
        let url = format!("https://127.0.0.1:{client}");
        let urls = ["listen", "advertise"].map(|kind| format!("--{kind}-client-urls={url}"));
        let more = [&urls[0], &urls[1], "--auto-tls"];
        let data_dir = sandbox.path("auto");
        let _etcd = real.etcd(version, &Start { data_dir, name: "auto", more: &more, peer: None });
        let cert = sandbox.path("auto/fixtures/client/cert.pem");
        fails_by_certificate(settings(&url), Side::Server, &["that we trust"]);
        ask(over_tls(&url, cert, None)).expect("an answer");
    }
}

#[test]
fn who_may_not_is_told_before_anything_starts() {
    let Some(real) = real() else { return };
    for version in ETCDS {
        let cluster = Plan::new(version).tls().auth().start(&real);
        let certs = cluster.certs();
        // Its name is in the certificate, so nobody asks with one that names a user.
        let nobody = certs.issue("nobody", &Issue::client("nobody"));
        let with = |pair: &Pair, user: Option<(&str, &str)>| {
            let user = user.map(|(name, password)| Credentials {
                name: name.to_owned(),
                password: password.to_owned(),
            });
            Settings { user, ..over_tls(&cluster.endpoint(0), certs.ca(), Some(pair)) }
        };
        let access = |settings: Settings| Cluster::open(settings).unwrap().access();
        let root = access(with(&nobody, Some(("root", "rootpw")))).unwrap();
        assert!(root.is_admin() && root.auth_enabled, "{root:?}");
        assert_eq!((root.user.as_str(), root.roles), ("root", vec!["root".to_owned()]));
        let app = access(with(&nobody, Some(("app", "app")))).unwrap();
        assert!(!app.is_admin() && app.auth_enabled, "{app:?}");
        assert_eq!((app.user.as_str(), app.roles), ("app", vec!["app".to_owned()]));
        let wrong = access(with(&nobody, Some(("app", "wrong")))).unwrap_err();
        assert!(matches!(wrong.cause, Cause::NotAuthenticated { .. }), "{wrong}");
        let words = ["user or the password is wrong"];
        fails(with(&nobody, Some(("app", "wrong"))), 5, &words);
        fails(with(&nobody, Some(("who", "x"))), 5, &words);
        let unknown = access(with(&nobody, None)).unwrap_err();
        assert!(unknown.to_string().contains("no user nobody"), "{version}: {unknown}");
        // By the certificate alone.
        for (name, admin) in [("root", true), ("app", false)] {
            let pair = certs.issue(name, &Issue::client(name));
            let access = access(with(&pair, None)).unwrap();
            assert_eq!((access.user.as_str(), access.is_admin()), (name, admin), "{access:?}");
            assert!(access.auth_enabled);
        }
        // What an ordinary user asks is answered, what it may not is said as such.
        ask(with(&nobody, Some(("app", "app")))).expect("an answer");
        let app = Cluster::open(with(&nobody, Some(("app", "app")))).unwrap();
        let (_, hash) = app.hash_kvs(0).remove(0);
        let hash = hash.unwrap_err();
        assert!(matches!(hash.cause, Cause::NotPermitted { .. }), "{version}: {hash:?}");
        let stream = app.snapshot(&cluster.endpoint(0), Limits { idle: LIMIT, total: LIMIT });
        let refused = match stream {
            Err(error) => error,
            Ok(mut stream) => match stream.next(&|| false) {
                Err(error) => error,
                Ok(_) => panic!("a snapshot for everybody"),
            },
        };
        assert!(matches!(refused.cause, Cause::NotPermitted { .. }), "{version}: {refused:?}");
    }
}

#[test]
fn nobody_is_not_let_in_where_users_are_known() {
    let Some(real) = real() else { return };
    for version in ETCDS {
        let cluster = Plan::new(version).auth().start(&real);
        let endpoint = cluster.endpoint(0);
        let cause = fails(settings(&endpoint), 5, &["user name is empty", "--user"]);
        assert!(matches!(cause, Cause::NotAuthenticated { .. }), "{version}: {cause:?}");
        let access = Cluster::open(settings(&endpoint)).unwrap().access().unwrap_err();
        assert!(matches!(access.cause, Cause::NotAuthenticated { .. }), "{version}: {access:?}");
        fails(as_user(&endpoint, "root", "wrong"), 5, &["authentication failed", "password"]);
        ask(as_user(&endpoint, "root", "rootpw")).expect("an answer");
    }
}
