//! Handshakes over loopback, of certificates made on the spot.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CipherSuite, ClientConfig, DigitallySignedStruct, ProtocolVersion, RootCertStore,
    SignatureScheme, SupportedProtocolVersion, version,
};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use super::*;
use crate::store::lines::Kept;
use certs::{Certs, Issue, KeyForm, Pair, Purpose};

#[path = "../../../../tests/support/certs.rs"]
mod certs;

const BOTH: &[&SupportedProtocolVersion] = &[&version::TLS12, &version::TLS13];
const SUITE: &str = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384";

/// What a client saw.
#[derive(Debug, PartialEq, Eq)]
struct Saw {
    certificate: Vec<u8>,
    protocol: Option<Vec<u8>>,
    version: ProtocolVersion,
    suite: CipherSuite,
}

/// News that was told.
struct News(Log, Kept);

impl News {
    fn new() -> Self {
        let (log, kept) = Log::kept();
        Self(log, kept)
    }

    fn log(&self) -> Log {
        self.0.clone()
    }

    fn taken(&self) -> Vec<(Level, String)> {
        let text = |line: &Value, name| line[name].as_str().unwrap().to_owned();
        let lines = self.1.take().into_iter();
        lines
            .map(|line| (Level::of_name(&text(&line, "level")).unwrap(), text(&line, "msg")))
            .collect()
    }
}

fn settings(certs: &Certs) -> Settings {
    let Pair { cert, key } = certs.server();
    Settings { cert_file: Some(cert), key_file: Some(key), ..Settings::default() }
}

/// Wants clients' certificates.
fn mutual(certs: &Certs) -> Settings {
    let trusted_ca_file = Some(certs.ca());
    Settings { trusted_ca_file, client_cert_auth: true, ..settings(certs) }
}

fn opened(settings: &Settings) -> Tls {
    Tls::open(settings).unwrap()
}

fn refused(settings: &Settings) -> String {
    Tls::open(settings).unwrap_err().to_string()
}

/// A client that trusts an authority, shows a certificate, and speaks what is named.
fn client(
    ca: &Path,
    shows: Option<&Pair>,
    versions: &[&'static SupportedProtocolVersion],
    speaks: &[&[u8]],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(signature::provider())
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match shows {
        Some(pair) => {
            let chain = CertificateDer::pem_file_iter(&pair.cert).unwrap();
            let key = PrivateKeyDer::from_pem_file(&pair.key).unwrap();
            builder.with_client_auth_cert(chain.map(Result::unwrap).collect(), key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::disabled();
    config.alpn_protocols = speaks.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}

fn usual(certs: &Certs, shows: Option<&Pair>) -> Arc<ClientConfig> {
    client(&certs.ca(), shows, BOTH, &[b"h2"])
}

/// Two ends of a connection over loopback.
async fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (listener.accept().await.unwrap().0, near)
}

/// One connection: what the server made of it, and what the client.
async fn meet(tls: &Tls, client: Arc<ClientConfig>) -> (io::Result<Peer>, io::Result<Saw>) {
    let (far, near) = sockets().await;
    let server = async {
        let (mut stream, peer) = tls.accept(far).await?;
        stream.write_all(b"hello").await?;
        stream.shutdown().await?;
        Ok(peer)
    };
    let client = async {
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = TlsConnector::from(client).connect(name, near).await?;
        let mut text = Vec::new();
        // In TLS 1.3, a refusal comes when the client is done.
        stream.read_to_end(&mut text).await?;
        assert_eq!(text, b"hello");
        let (_, session) = stream.get_ref();
        Ok(Saw {
            certificate: session.peer_certificates().unwrap()[0].to_vec(),
            protocol: session.alpn_protocol().map(<[u8]>::to_vec),
            version: session.protocol_version().unwrap(),
            suite: session.negotiated_cipher_suite().unwrap().suite(),
        })
    };
    tokio::join!(server, client)
}

/// Meets, and returns why the server refused; the client must have been told so too.
async fn turned_away(tls: &Tls, client: Arc<ClientConfig>) -> (String, String) {
    let (server, client) = meet(tls, client).await;
    (server.unwrap_err().to_string(), client.unwrap_err().to_string())
}

fn named(name: &str) -> Option<String> {
    Some(name.to_owned())
}

fn der(pair: &Pair) -> Vec<u8> {
    CertificateDer::from_pem_file(&pair.cert).unwrap().to_vec()
}

#[tokio::test]
async fn everybody_is_let_in_where_no_certificate_is_asked_for() {
    let certs = Certs::new();
    let tls = opened(&settings(&certs));
    type Case<'a> = (&'a [&'a [u8]], Option<Protocol>, Option<&'a [u8]>);
    let cases: [Case<'_>; 4] = [
        (&[b"h2"], Some(Protocol::H2), Some(b"h2")),
        (&[b"http/1.1", b"h2"], Some(Protocol::H2), Some(b"h2")),
        (&[b"http/1.1"], Some(Protocol::Http1), Some(b"http/1.1")),
        (&[], None, None),
    ];
    for (speaks, expected, agreed) in cases {
        for versions in [BOTH, &[&version::TLS12]] {
            let (server, saw) = meet(&tls, client(&certs.ca(), None, versions, speaks)).await;
            let peer = Peer { is_tls: true, common_name: None, protocol: expected };
            assert_eq!(server.unwrap(), peer, "{speaks:?}");
            assert_eq!(saw.unwrap().protocol.as_deref(), agreed);
        }
    }
    let (server, client) = turned_away(&tls, client(&certs.ca(), None, BOTH, &[b"smtp"])).await;
    assert!(client.contains("NoApplicationProtocol"), "{client}");
    assert_eq!(server, "tls: client requested unsupported application protocols");
}

#[tokio::test]
async fn who_shows_a_certificate_of_the_authority_is_known_by_its_common_name() {
    let certs = Certs::new();
    for needs in [false, true] {
        let tls = opened(&Settings { client_cert_auth: needs, ..mutual(&certs) });
        // Where the flag does not ask for it, a certificate opens the door and says no name.
        let named = |name| named(name).filter(|_| needs);
        for versions in [&[&version::TLS12], &[&version::TLS13]] {
            let root = certs.issue("root", &Issue::client("root"));
            let (server, saw) = meet(&tls, client(&certs.ca(), Some(&root), versions, &[])).await;
            assert_eq!(server.unwrap().common_name, named("root"));
            assert_eq!(saw.unwrap().certificate, der(&certs.server()));
            let nobody = client(&certs.ca(), None, versions, &[]);
            let (server, _) = turned_away(&tls, nobody).await;
            assert_eq!(server, "tls: client didn't provide a certificate");
        }
        let both = certs.issue("both", &Issue::server());
        let (server, _) = meet(&tls, usual(&certs, Some(&both))).await;
        assert_eq!(server.unwrap().common_name, named("m1"));
        let rsa = certs.issue("rsa", &Issue::client("rsa").rsa()).key_as(KeyForm::Pkcs1);
        let (server, _) = meet(&tls, usual(&certs, Some(&rsa))).await;
        assert_eq!(server.unwrap().common_name, named("rsa"));
    }
}

#[tokio::test]
async fn a_certificate_that_is_not_believed_is_refused_with_the_reason() {
    let certs = Certs::new();
    let tls = opened(&mutual(&certs));
    let over = "certificate has expired or is not yet valid";
    let cases = [
        (Issue::client("a").expired(), over, "CertificateExpired"),
        (Issue::client("b").not_yet(), over, "CertificateExpired"),
        (Issue::client("c").stranger(), "certificate signed by unknown authority", "UnknownCA"),
        (Issue::client("d").self_signed(), "certificate signed by unknown authority", "UnknownCA"),
        (
            Issue::server().purpose(Purpose::Server),
            "certificate specifies an incompatible key usage",
            "UnsupportedCertificate",
        ),
    ];
    for (issue, why, alert) in cases {
        let pair = certs.issue("odd", &issue);
        let (server, client) = turned_away(&tls, usual(&certs, Some(&pair))).await;
        assert_eq!(server, format!("tls: failed to verify certificate: x509: {why}"));
        assert!(client.contains(alert), "{client}");
    }
}

#[tokio::test]
async fn a_client_that_is_itself_in_the_file_of_authorities_is_believed() {
    let certs = Certs::new();
    let pinned = certs.issue("pinned", &Issue::client("pinned").self_signed());
    let server = certs.issue("only", &Issue::server().purpose(Purpose::Server).self_signed());
    let over = certs.issue("over", &Issue::client("over").self_signed().expired());
    let all = certs.pki().join("all.crt");
    let files = [&pinned.cert, &server.cert, &over.cert];
    fs::write(&all, files.map(|file| fs::read(file).unwrap()).concat()).unwrap();
    let tls = opened(&Settings { trusted_ca_file: Some(all), ..mutual(&certs) });
    let (peer, _) = meet(&tls, usual(&certs, Some(&pinned))).await;
    assert_eq!(peer.unwrap().common_name, named("pinned"));
    for (pair, why) in [(&server, "incompatible key usage"), (&over, "has expired")] {
        let (server, _) = turned_away(&tls, usual(&certs, Some(pair))).await;
        assert!(server.contains(why), "{server}");
    }
    // One that may not sign vouches for nobody else.
    let (server, _) = turned_away(&tls, usual(&certs, Some(&certs.client()))).await;
    assert!(server.contains("unknown authority"), "{server}");
}

#[tokio::test]
async fn a_revoked_certificate_is_refused_from_the_moment_the_list_says_so() {
    let certs = Certs::new();
    let [one, two] = ["one", "two"].map(|name| certs.issue(name, &Issue::client(name)));
    let list = certs.revoke("revoked", &[&one]);
    let news = News::new();
    let tls = opened(&Settings { crl_file: Some(list.clone()), log: news.log(), ..mutual(&certs) });
    let revoked = "tls: failed to verify certificate: x509: certificate is revoked";
    let (server, told) = turned_away(&tls, usual(&certs, Some(&one))).await;
    assert_eq!(server, revoked);
    assert!(told.contains("CertificateRevoked"), "{told}");
    // A client that would go on with what it had before.
    for versions in [&[&version::TLS12], &[&version::TLS13]] {
        let mut again = (*client(&certs.ca(), Some(&two), versions, &[])).clone();
        again.resumption = Resumption::in_memory_sessions(8);
        let again = Arc::new(again);
        certs.revoke("revoked", &[&one]);
        assert_eq!(meet(&tls, again.clone()).await.0.unwrap().common_name, named("two"));
        certs.revoke("revoked", &[&one, &two]);
        assert_eq!(turned_away(&tls, again).await.0, revoked);
    }
    news.taken();
    for text in [Some("no list"), None] {
        match text {
            Some(text) => fs::write(&list, text).unwrap(),
            None => fs::remove_file(&list).unwrap(),
        }
        for _ in 0..2 {
            assert_eq!(turned_away(&tls, usual(&certs, Some(&two))).await.0, revoked);
        }
        let told = news.taken();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].1.ends_with("what was read before stays in use"), "{told:?}");
    }
    // In PEM, two lists in one file.
    use base64::Engine as _;
    let pem = |pairs: &[&Pair]| {
        let der = fs::read(certs.revoke("part", pairs)).unwrap();
        let text = base64::engine::general_purpose::STANDARD.encode(der);
        format!("-----BEGIN X509 CRL-----\n{text}\n-----END X509 CRL-----\n")
    };
    fs::write(&list, pem(&[]) + &pem(&[&one])).unwrap();
    assert_eq!(turned_away(&tls, usual(&certs, Some(&one))).await.0, revoked);
    assert_eq!(meet(&tls, usual(&certs, Some(&two))).await.0.unwrap().common_name, named("two"));
}

#[tokio::test]
async fn a_new_certificate_is_shown_at_the_next_handshake() {
    let certs = Certs::new();
    let news = News::new();
    let tls = opened(&Settings { log: news.log(), ..settings(&certs) });
    let shown = async || meet(&tls, usual(&certs, None)).await.1.unwrap().certificate;
    let first = der(&certs.server());
    assert_eq!(shown().await, first);
    assert_eq!(news.taken(), []);
    // In place, as kubeadm writes.
    let second = der(&certs.issue("server", &Issue::server()));
    assert_ne!(first, second);
    assert_eq!(shown().await, second);
    let told = news.taken();
    assert!(matches!(&told[..], [(Level::Info, text)] if text.contains("again")), "{told:?}");
    // By a rename, as cert-manager's volumes do it, one file after the other.
    let third = certs.issue("next", &Issue::server());
    let now = certs.server();
    let before = shown().await;
    fs::rename(&third.cert, &now.cert).unwrap();
    for _ in 0..3 {
        assert_eq!(shown().await, before, "half of a pair is no pair");
    }
    let told = news.taken();
    assert!(
        matches!(&told[..], [(Level::Warn, text)] if text.contains("is not the key of")),
        "{told:?}"
    );
    fs::rename(&third.key, &now.key).unwrap();
    assert_eq!(shown().await, der(&now));
    assert_ne!(shown().await, before);
    assert_eq!(news.taken().len(), 1);
}

#[tokio::test]
async fn a_broken_pair_leaves_the_one_before_in_use() {
    let certs = Certs::new();
    let news = News::new();
    let tls = opened(&Settings { log: news.log(), ..settings(&certs) });
    let now = certs.server();
    let first = der(&now);
    let text = fs::read(&now.cert).unwrap();
    let broken: [(&Path, &[u8], &str); 5] = [
        (&now.cert, &text[..text.len() / 2], "PEM is damaged"),
        (&now.cert, b"", "it is empty"),
        (&now.cert, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "damaged"),
        (&now.key, b"", "it is empty"),
        (&now.key, &text, "but a certificate"),
    ];
    for (path, new, what) in broken {
        let old = fs::read(path).unwrap();
        fs::write(path, new).unwrap();
        for _ in 0..2 {
            let saw = meet(&tls, usual(&certs, None)).await.1.unwrap();
            assert_eq!(saw.certificate, first, "{what}");
        }
        let told = news.taken();
        assert!(matches!(&told[..], [(Level::Warn, text)] if text.contains(what)), "{told:?}");
        fs::write(path, old).unwrap();
        meet(&tls, usual(&certs, None)).await.1.unwrap();
        news.taken();
    }
    fs::remove_file(&now.key).unwrap();
    for _ in 0..2 {
        assert_eq!(meet(&tls, usual(&certs, None)).await.1.unwrap().certificate, first);
    }
    let told = news.taken();
    assert!(matches!(&told[..], [(_, text)] if text.contains("no such file")), "{told:?}");
}

#[tokio::test]
async fn another_authority_counts_at_the_next_handshake() {
    let certs = Certs::new();
    let ca = certs.pki().join("trusted.crt");
    fs::copy(certs.ca(), &ca).unwrap();
    let tls = opened(&Settings { trusted_ca_file: Some(ca.clone()), ..mutual(&certs) });
    let ours = certs.client();
    let theirs = certs.issue("theirs", &Issue::client("theirs").stranger());
    assert!(meet(&tls, usual(&certs, Some(&ours))).await.0.is_ok());
    assert!(meet(&tls, usual(&certs, Some(&theirs))).await.0.is_err());
    fs::copy(certs.stranger_ca(), &ca).unwrap();
    assert!(meet(&tls, usual(&certs, Some(&ours))).await.0.is_err());
    assert_eq!(
        meet(&tls, usual(&certs, Some(&theirs))).await.0.unwrap().common_name,
        named("theirs")
    );
    fs::write(&ca, "half").unwrap();
    assert!(meet(&tls, usual(&certs, Some(&theirs))).await.0.is_ok());
    // Both, while the change is under way.
    let both = [certs.ca(), certs.stranger_ca()].map(|file| fs::read(file).unwrap()).concat();
    fs::write(&ca, both).unwrap();
    for pair in [&ours, &theirs] {
        assert!(meet(&tls, usual(&certs, Some(pair))).await.0.is_ok());
    }
}

#[tokio::test]
async fn an_authority_counts_for_as_long_as_it_is_valid() {
    let certs = Certs::new();
    let short =
        certs.issue("short", &Issue::client("short").self_signed().ends_in(Duration::from_secs(2)));
    let tls = opened(&Settings { trusted_ca_file: Some(short.cert.clone()), ..mutual(&certs) });
    let started = Instant::now();
    assert!(meet(&tls, usual(&certs, Some(&short))).await.0.is_ok());
    while meet(&tls, usual(&certs, Some(&short))).await.0.is_ok() {
        assert!(started.elapsed() < Duration::from_secs(20), "it is still valid");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn only_names_that_are_allowed_are_let_in() {
    let certs = Certs::new();
    let hosts = |hosts: &[&str]| Settings {
        allowed_hostnames: hosts.iter().map(|host| (*host).to_owned()).collect(),
        ..mutual(&certs)
    };
    let wild = Issue::client("w").names(&["*.example.com", "10.0.0.7"]);
    let pair = certs.issue("wild", &wild);
    let not = "client certificate authentication failed";
    let cases: [(&[&str], bool); 9] = [
        (&["a.example.com"], true),
        (&["A.EXAMPLE.com"], true),
        (&["other.example", "b.example.com"], true),
        (&["10.0.0.7"], true),
        (&["example.com"], false),
        (&["a.b.example.com"], false),
        (&["10.0.0.8"], false),
        // The common name is no host.
        (&["w"], false),
        (&["[::1]"], false),
    ];
    for (allowed, expected) in cases {
        let tls = opened(&hosts(allowed));
        let (server, _) = meet(&tls, usual(&certs, Some(&pair))).await;
        match expected {
            true => assert_eq!(server.unwrap().common_name, named("w"), "{allowed:?}"),
            false => assert_eq!(server.unwrap_err().to_string(), not, "{allowed:?}"),
        }
    }
    let v6 = certs.issue("v6", &Issue::client("v6").names(&["::1"]));
    assert!(meet(&opened(&hosts(&["[::1]"])), usual(&certs, Some(&v6))).await.0.is_ok());
    let text = refused(&hosts(&["no host"]));
    assert!(text.starts_with("--client-cert-allowed-hostname: \"no host\" is neither"), "{text}");

    let allowed_names = vec!["a".to_owned(), "w".to_owned()];
    let tls = opened(&Settings { allowed_names, ..mutual(&certs) });
    assert!(meet(&tls, usual(&certs, Some(&pair))).await.0.is_ok());
    assert_eq!(turned_away(&tls, usual(&certs, Some(&v6))).await.0, not);
}

#[tokio::test]
async fn versions_and_cipher_suites_are_those_of_the_flags() {
    let certs = Certs::new();
    let tls = opened(&Settings { min_version: "TLS1.3".to_owned(), ..settings(&certs) });
    let saw = meet(&tls, usual(&certs, None)).await.1.unwrap();
    assert_eq!(saw.version, ProtocolVersion::TLSv1_3);
    let old = client(&certs.ca(), None, &[&version::TLS12], &[]);
    let (server, told) = turned_away(&tls, old.clone()).await;
    assert_eq!(server, "tls: client offered only unsupported versions");
    assert!(told.contains("ProtocolVersion"), "{told}");

    let one = Settings { cipher_suites: vec![SUITE.to_owned()], ..settings(&certs) };
    let saw = meet(&opened(&one), old.clone()).await.1.unwrap();
    assert_eq!(saw.suite, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384);
    let saw = meet(&opened(&one), usual(&certs, None)).await.1.unwrap();
    assert_eq!(saw.version, ProtocolVersion::TLSv1_3);
    let tls = opened(&Settings { max_version: "TLS1.2".to_owned(), ..one });
    let saw = meet(&tls, usual(&certs, None)).await.1.unwrap();
    assert_eq!(saw.suite, CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384);
    // For keys of RSA, which this server has not.
    let tls = opened(&Settings {
        cipher_suites: vec![SUITE.replace("ECDSA", "RSA")],
        ..settings(&certs)
    });
    let (server, _) = turned_away(&tls, old).await;
    assert_eq!(server, "tls: no cipher suite supported by both client and server");
}

/// Sends bytes to a server and returns why it ended, and what it answered.
async fn shout(tls: &Tls, bytes: &[u8]) -> (io::Error, Vec<u8>) {
    let (far, mut near) = sockets().await;
    let client = async {
        near.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        // It may close with bytes unread, which resets the connection.
        let _ = near.read_to_end(&mut answer).await;
        answer
    };
    let (server, answer) = tokio::join!(tls.accept(far), client);
    (server.map(|_| ()).unwrap_err(), answer)
}

#[tokio::test]
async fn a_client_of_tls_1_1_is_told_that_its_version_is_not_spoken() {
    let certs = Certs::new();
    let tls = opened(&settings(&certs));
    // A hello of TLS 1.1 with one suite, and no extensions or what signatures are known.
    for (extensions, alert) in [(&[][..], 40), (&[0, 8, 0, 13, 0, 4, 0, 2, 4, 3], 70)] {
        let mut hello = vec![3, 2];
        hello.extend([7; 32]);
        hello.extend([0, 0, 2, 0xc0, 0x09, 1, 0]);
        hello.extend(extensions);
        let size = u8::try_from(hello.len()).unwrap();
        let record = [&[22, 3, 1, 0, size + 4, 1, 0, 0, size], &hello[..]].concat();
        let (error, answer) = shout(&tls, &record).await;
        assert_eq!(error.to_string(), "tls: client offered only unsupported versions");
        // Alert, fatal: handshake_failure or protocol_version.
        assert_eq!((answer[0], &answer[5..]), (21, &[2, alert][..]));
    }
}

#[tokio::test]
async fn what_is_no_tls_ends_at_once() {
    let certs = Certs::new();
    let tls = opened(&settings(&certs));
    let requests =
        [&b"GET /health HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &[0; 64]];
    for bytes in requests {
        let started = Instant::now();
        let (error, _) = shout(&tls, bytes).await;
        assert_eq!(error.to_string(), "tls: first record does not look like a TLS handshake");
        assert!(started.elapsed() < Duration::from_secs(5));
    }
    let (far, near) = sockets().await;
    drop(near);
    let error = tls.accept(far).await.map(|_| ()).unwrap_err();
    assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::UnexpectedEof, "EOF"));
}

#[tokio::test]
async fn a_handshake_ends_within_its_time_however_slow_the_client_is() {
    let certs = Certs::new();
    let limit = Duration::from_millis(300);
    let tls = opened(&Settings { handshake: limit, ..settings(&certs) });
    for drips in [false, true] {
        let (far, mut near) = sockets().await;
        let dripping = tokio::spawn(async move {
            // A record that is announced and comes byte by byte.
            near.write_all(&[22, 3, 1, 0x3f, 0xff]).await.unwrap();
            while drips && near.write_all(&[1]).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let mut rest = Vec::new();
            let _ = near.read_to_end(&mut rest).await;
        });
        let started = Instant::now();
        let error = tls.accept(far).await.map(|_| ()).unwrap_err();
        assert!(started.elapsed() >= limit && started.elapsed() < limit * 20);
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(error.to_string(), "tls: no handshake within 300 ms");
        // The connection is closed, or the task would go on for ever.
        dripping.await.unwrap();
    }
}

fn automatic(dir: &Path, hosts: &[&str]) -> Settings {
    let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
    Settings { auto: Some(Auto { dir: dir.to_owned(), hosts, years: 1 }), ..Settings::default() }
}

#[tokio::test]
async fn a_certificate_is_made_once_and_made_anew_when_it_is_over() {
    let certs = Certs::new();
    let dir = certs.pki().join("data/fixtures/client");
    let news = News::new();
    let auto = Settings {
        log: news.log(),
        ..automatic(&dir, &["localhost:2379", "127.0.0.1:2379", "[::1]:2379"])
    };
    let tls = opened(&auto);
    assert_eq!(news.taken().len(), 1);
    let made = Pair { cert: dir.join("cert.pem"), key: dir.join("key.pem") };
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&made.key), mode(&dir)), (0o600, 0o700));
    let mut names: Vec<_> =
        fs::read_dir(&dir).unwrap().map(|one| one.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["cert.pem", "key.pem"]);
    let first = der(&made);
    let facts = Facts::read(&first).unwrap();
    assert_eq!(facts.names, ["localhost", "127.0.0.1", "::1"]);
    assert_eq!((facts.for_servers, facts.for_clients), (true, false));
    assert_eq!(facts.not_after - facts.not_before, 365 * 24 * 60 * 60);
    let looks = looking(None);
    assert_eq!(meet(&tls, looks.clone()).await.1.unwrap().certificate, first);
    assert_eq!(meet(&opened(&auto), looks.clone()).await.1.unwrap().certificate, first);
    assert_eq!(news.taken(), []);

    let over = certs.issue("over", &Issue::server().expired());
    fs::copy(over.cert, &made.cert).unwrap();
    fs::copy(over.key, &made.key).unwrap();
    let saw = meet(&opened(&auto), looks.clone()).await.1.unwrap();
    assert!(Facts::read(&saw.certificate).unwrap().is_in_time(now()));
    assert_eq!(news.taken().len(), 2);

    fs::write(&made.cert, "mine").unwrap();
    let text = refused(&auto);
    assert!(text.ends_with("remove it, and a new pair is made"), "{text}");
    fs::remove_file(&made.cert).unwrap();
    assert_ne!(meet(&opened(&auto), looks).await.1.unwrap().certificate, first);
    let none = Settings { auto: auto.auto.clone().map(|auto| Auto { years: 0, ..auto }), ..auto };
    assert!(refused(&none).starts_with("selfSignedCertValidity is invalid"));
}

#[tokio::test]
async fn what_etcd_made_for_itself_is_served() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/etcd-auto-tls");
    let tls = opened(&automatic(&dir, &[]));
    let expected = CertificateDer::from_pem_file(dir.join("cert.pem")).unwrap();
    for versions in [&[&version::TLS12], &[&version::TLS13]] {
        let (_, saw) = meet(&tls, looking(Some(versions))).await;
        assert_eq!(saw.unwrap().certificate, expected.to_vec());
    }
    // Written as openssl does in our time.
    let key = fs::read(dir.join("key.pem")).unwrap();
    let sec1 = PrivateKeyDer::from_pem_slice(&key).unwrap();
    assert!(matches!(sec1, PrivateKeyDer::Sec1(_)));
}

#[test]
fn files_that_are_not_fit_are_refused_at_the_start() {
    let certs = Certs::new();
    let good = mutual(&certs);
    let file = |name: &str, text: &[u8]| {
        let path = certs.pki().join(name);
        fs::write(&path, text).unwrap();
        Some(path)
    };
    let other = certs.issue("other", &Issue::server());
    let over = certs.issue("over", &Issue::client("over").self_signed().expired());
    let cases = [
        (
            Settings { cert_file: Some("/nowhere".into()), ..good.clone() },
            "/nowhere: no such file or directory (--cert-file, --key-file)",
        ),
        (
            Settings { key_file: Some(other.key), ..good.clone() },
            "tls: private key does not match public key: it is not the key of",
        ),
        (
            Settings { cert_file: good.key_file.clone(), ..good.clone() },
            "it holds no certificate in PEM, but a private key (--cert-file",
        ),
        (
            Settings { client_cert_file: good.cert_file.clone(), ..good.clone() },
            "ClientKeyFile and ClientCertFile must both be present or both absent",
        ),
        (
            Settings { trusted_ca_file: file("empty", b""), ..good.clone() },
            "it holds no certificate in PEM, it is empty (--trusted-ca-file)",
        ),
        (
            Settings { trusted_ca_file: Some(certs.pki().to_owned()), ..good.clone() },
            "it is a directory, and a file is wanted",
        ),
        (
            Settings { trusted_ca_file: Some(over.cert), ..good.clone() },
            "no authority in it is valid today: CN=over is valid from 2020-01-01",
        ),
        (
            Settings { crl_file: file("junk", &[0x30; 300]), ..good.clone() },
            "it is no revocation list, or a damaged one (--client-crl-file)",
        ),
        (
            Settings { crl_file: good.trusted_ca_file.clone(), ..good.clone() },
            "it holds no revocation list in DER or PEM, but a certificate",
        ),
        (
            Settings { cipher_suites: vec!["x".to_owned()], ..good.clone() },
            "unexpected TLS cipher suite \"x\"",
        ),
        (
            Settings { auto: None, ..Settings::default() },
            "KeyFile and CertFile must both be present[key: , cert: ]",
        ),
    ];
    for (settings, expected) in cases {
        let text = refused(&settings);
        assert!(text.contains(expected), "{text}");
    }
    // Clients refuse it; it is served and told, as in etcd.
    let old = certs.issue("old", &Issue::server().expired());
    let news = News::new();
    let pair = Settings { cert_file: Some(old.cert), key_file: Some(old.key), ..good };
    opened(&Settings { log: news.log(), ..pair });
    let told = news.taken();
    assert!(
        matches!(&told[..], [(Level::Warn, text)] if text.contains("to 2021-02-03")),
        "{told:?}"
    );
}

/// A client that takes any certificate, whose signatures it checks.
fn looking(versions: Option<&[&'static SupportedProtocolVersion]>) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(signature::provider())
        .with_protocol_versions(versions.unwrap_or(BOTH))
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Looking))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

#[derive(Debug)]
struct Looking;

impl Looking {
    /// One that believes in nobody: for signatures only.
    fn signatures() -> Arc<WebPkiServerVerifier> {
        let certs =
            fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/etcd-auto-tls/cert.pem"));
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(&certs.unwrap()).unwrap()).unwrap();
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), signature::provider())
            .build()
            .unwrap()
    }
}

impl ServerCertVerifier for Looking {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::signatures().verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Self::signatures().verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        signature::provider().signature_verification_algorithms.supported_schemes()
    }
}

/// Asks for a path by HTTP/1.1, and returns the first line of the answer.
async fn asked<IO: AsyncRead + AsyncWrite + Unpin>(mut io: IO) -> io::Result<String> {
    io.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut answer = Vec::new();
    // A peer that closes without a farewell has said everything all the same.
    let _ = io.read_to_end(&mut answer).await;
    let text = String::from_utf8_lossy(&answer);
    Ok(text.lines().next().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn http_and_https_share_an_address_and_neither_is_served_unasked() {
    use crate::store::Store;
    use crate::store::serve::{Address, Listener, Options, Role, Server};
    let certs = Certs::new();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("data"), crate::store::Options::default()).unwrap();
    let secure = Some(opened(&settings(&certs)));
    let cases = [
        (vec![None, secure.clone()], [true, true]),
        (vec![secure.clone(), None], [true, true]),
        (vec![secure], [false, true]),
        (vec![None], [true, false]),
    ];
    for (tls, expected) in cases {
        let free = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
        let listener = |tls| Listener { address: Address::Tcp(free), role: Role::Client, tls };
        let listeners: Vec<_> = tls.into_iter().map(listener).collect();
        let count = listeners.len();
        let server = Server::start(store.clone(), Options::default().listeners(listeners)).unwrap();
        assert_eq!(server.addresses(), vec![Address::Tcp(free); count]);
        let plain = asked(TcpStream::connect(free).await.unwrap()).await;
        let connector = TlsConnector::from(client(&certs.ca(), None, BOTH, &[b"http/1.1"]));
        let name = ServerName::try_from("localhost").unwrap();
        let over = match connector.connect(name, TcpStream::connect(free).await.unwrap()).await {
            Ok(stream) => asked(stream).await,
            Err(error) => Err(error),
        };
        let served =
            |answer: io::Result<String>| answer.is_ok_and(|line| line == "HTTP/1.1 200 OK");
        assert_eq!([served(plain), served(over)], expected, "{count} listeners");
    }
    store.close().unwrap();
}
