//! Holds what live tests stand on to its word: the fake etcd's answers, errors, faults, counts and
//! end; certificates that are good or bad as named; the proxy's harm.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::spawn;
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions, Error, GetOptions, SnapshotResponse};
use sha2::{Digest, Sha256};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring::default_provider};

use crate::certs::{Certs, Issue, KeyForm, Pair, Purpose};
use crate::fake_etcd::{CORRUPT, FakeCluster, FakeEtcd, Fault, Member, NOSPACE, SnapshotFault};
use crate::fake_etcd::{Refusal, refusals};
use crate::proxy::{Harm, Proxy, Says};
use crate::support::snapshot;

/// Runs what a client does, within a limit.
fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limit = Duration::from_secs(60);
    runtime.block_on(async { tokio::time::timeout(limit, work).await.expect("an answer") })
}

async fn client(fake: &FakeEtcd) -> Client {
    Client::connect([fake.endpoint()], None).await.unwrap()
}

async fn client_of(fake: &FakeEtcd, user: &str, password: &str) -> Result<Client, Error> {
    let options = ConnectOptions::new().with_user(user, password);
    Client::connect([fake.endpoint()], Some(options)).await
}

#[track_caller]
fn refused<T>(answer: Result<T, Error>, (code, text): Refusal) {
    match answer.map(|_| ()) {
        Err(Error::GRpcStatus(status)) => {
            assert_eq!((status.code(), status.message()), (code, text));
        }
        other => panic!("{other:?} instead of {text}"),
    }
}

/// Reads a snapshot to its end: the bytes of the file, the trailer, and how it ended.
async fn read(client: &mut Client) -> (Vec<u8>, Vec<u8>, Result<(), Error>) {
    let mut blobs: Vec<SnapshotResponse> = Vec::new();
    let mut stream = client.snapshot().await.unwrap();
    let ended = loop {
        match stream.message().await {
            Ok(Some(message)) => blobs.push(message),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    let trailer = blobs.pop_if(|last| last.blob().len() == 32).map(|last| last.blob().to_vec());
    for (index, piece) in blobs.iter().enumerate() {
        assert!(piece.blob().len() <= 32 * 1024, "piece {index}");
    }
    let file = blobs.iter().flat_map(|piece| piece.blob().to_vec()).collect();
    (file, trailer.unwrap_or_default(), ended)
}

#[test]
fn the_fake_cluster_answers_as_it_was_told() {
    let members = ["m1", "m2", "m3"].map(|name| Member::new(name).revision(100));
    let mut three = FakeCluster::start(members);
    three.members[2].set(|member| *member = member.clone().version("3.5.35").learner());
    run(async {
        let mut first = client(&three.members[0]).await;
        let list = first.member_list().await.unwrap();
        let names: Vec<&str> = list.members().iter().map(|member| member.name()).collect();
        assert_eq!(names, ["m1", "m2", "m3"]);
        assert_eq!(list.members()[1].client_urls(), [three.members[1].url()]);

        let status = first.status().await.unwrap();
        let member = three.members[0].member();
        assert_eq!((status.version(), status.leader()), ("3.6.16", member.id));
        assert_eq!(status.raft_used_db_size(), member.db_size_in_use);
        let range = first.get("health", None).await.unwrap();
        assert_eq!(range.header().unwrap().revision(), 100);
        let hash = first.hash_kv(100).await.unwrap();
        let same = client(&three.members[1]).await.hash_kv(100).await.unwrap();
        assert_eq!(hash.hash(), same.hash());
        refused(first.hash_kv(101).await, refusals::FUTURE);
        three.members[0].set(|member| {
            member.compact_revision = 50;
            member.hashes.insert(60, 7);
            member.alarms = vec![(member.id, NOSPACE), (1, CORRUPT)];
        });
        refused(first.hash_kv(49).await, refusals::COMPACTED);
        assert_eq!(first.hash_kv(60).await.unwrap().hash(), 7);
        let alarms = first.alarm(etcd_client::AlarmAction::Get, etcd_client::AlarmType::None, None);
        assert_eq!(alarms.await.unwrap().alarms().len(), 2);
        first.get("health", None).await.expect("a read, whatever alarm there is");

        let mut learner = client(&three.members[2]).await;
        assert!(learner.status().await.unwrap().is_learner());
        refused(learner.get("health", None).await, refusals::LEARNER);
        let local = Some(GetOptions::new().with_serializable());
        learner.get("health", local).await.unwrap();

        three.members[1].set(|member| member.leader = 0);
        let mut second = client(&three.members[1]).await;
        refused(second.get("health", None).await, refusals::TIMED_OUT);
        three.members[1].set(|member| {
            member.faults.insert("Range".to_owned(), refusals::STOPPED.into());
        });
        refused(second.get("health", None).await, refusals::STOPPED);
    });
    assert_eq!(three.members[1].calls("Range"), 2);
    assert_eq!(three.members[1].log(), ["HashKV", "Range", "Range"]);

    let port = three.members[1].port();
    three.members[1].stop();
    TcpStream::connect(("127.0.0.1", port)).expect_err("its port is free");
    three.members[1].restart();
    run(async { client(&three.members[1]).await.status().await.unwrap() });
}

#[test]
fn the_fake_snapshot_goes_wrong_as_it_was_told() {
    let bytes = snapshot("3.6");
    let (file, sum) = bytes.split_at(bytes.len() - 32);
    let fake = FakeEtcd::start(Member::new("m1").file(&bytes));
    let read = || {
        run(async {
            let mut client = client(&fake).await;
            read(&mut client).await
        })
    };
    let (got, trailer, ended) = read();
    assert!(got == file && trailer == sum, "{} bytes, {trailer:?}", got.len());
    ended.unwrap();

    // In the middle of a piece.
    let at = 40_000;
    let go_wrong = |fault: SnapshotFault| {
        fake.set(|member| member.snapshot_fault = Some(fault));
        read()
    };
    let (got, trailer, ended) = go_wrong(SnapshotFault::Flip(at));
    assert_eq!((got.len(), got[at]), (file.len(), !file[at]));
    assert_eq!(trailer, sum);
    ended.unwrap();
    let (got, trailer, ended) = go_wrong(SnapshotFault::WrongTrailer);
    assert!(got == file && trailer.len() == 32 && trailer != sum);
    ended.unwrap();
    let (got, trailer, ended) = go_wrong(SnapshotFault::NoTrailer);
    assert!(got == file && trailer.is_empty());
    ended.unwrap();
    let (got, trailer, ended) = go_wrong(SnapshotFault::End(at));
    assert!(got == file[..at] && trailer.is_empty());
    ended.unwrap();
    let (code, text) = refusals::STOPPED;
    let (got, _, ended) = go_wrong(SnapshotFault::Error(at, code, text.to_owned()));
    assert!(got == file[..at]);
    refused(ended, refusals::STOPPED);
    let (got, _, ended) = go_wrong(SnapshotFault::Drop(at));
    assert!(got == file[..at], "{}", got.len());
    ended.expect_err("the connection was cut");

    fake.set(|member| member.snapshot_fault = Some(SnapshotFault::Stall(at)));
    run(async {
        let mut client = client(&fake).await;
        let mut stream = client.snapshot().await.unwrap();
        let mut sum = Sha256::new();
        while let Ok(message) =
            tokio::time::timeout(Duration::from_millis(500), stream.message()).await
        {
            sum.update(message.unwrap().expect("no end").blob());
        }
        assert_eq!(sum.finalize(), Sha256::digest(&file[..at]));
        assert_eq!(fake.open_snapshots(), 1);
        drop(stream);
        while fake.open_snapshots() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    assert_eq!(fake.calls("Snapshot"), 8);
}

#[test]
fn the_fake_asks_for_users_as_etcd_does() {
    let fake = FakeEtcd::start(Member::new("m1").auth("secret").file(&[0; 1024]));
    let snapshot = async |client: &mut Client| client.snapshot().await?.message().await;
    run(async {
        let mut nobody = client(&fake).await;
        refused(nobody.status().await, refusals::USER_EMPTY);
        refused(snapshot(&mut nobody).await, refusals::USER_EMPTY);
        refused(client_of(&fake, "root", "wrong").await, refusals::AUTH_FAILED);

        let mut app = client_of(&fake, "app", "app").await.unwrap();
        app.status().await.unwrap();
        app.member_list().await.unwrap();
        app.get("/app/x", None).await.unwrap();
        app.get("/app/", Some(GetOptions::new().with_prefix())).await.unwrap();
        refused(app.get("/app", Some(GetOptions::new().with_prefix())).await, refusals::DENIED);
        refused(app.get("health", None).await, refusals::DENIED);
        refused(snapshot(&mut app).await, refusals::DENIED);
        refused(app.hash_kv(0).await, refusals::DENIED);
        assert_eq!(app.user_get("app").await.unwrap().roles(), ["app"]);
        refused(app.user_get("root").await, refusals::DENIED);
        assert_eq!(app.role_get("app").await.unwrap().permissions().len(), 1);

        let mut root = client_of(&fake, "root", "secret").await.unwrap();
        snapshot(&mut root).await.unwrap().expect("a piece");
        refused(root.user_get("ghost").await, refusals::USER_NOT_FOUND);

        fake.set(|member| "3.5.35".clone_into(&mut member.version));
        let raw = (tonic::Code::Unknown, "auth: permission denied");
        refused(snapshot(&mut app).await, raw);
        refused(nobody.member_list().await, refusals::USER_EMPTY);

        fake.set(|member| {
            member.auth = false;
            member.faults.insert("Status".to_owned(), Fault::Drop);
        });
        refused(client_of(&fake, "root", "secret").await, refusals::AUTH_OFF);
        assert!(nobody.status().await.is_err());
    });
}

/// Shakes hands with a fake over TLS and waits for its first bytes.
fn handshake(
    certs: &Certs,
    client: Option<&Pair>,
    fake: &FakeEtcd,
    name: &str,
) -> Result<(), String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certs.ca()).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let mut config = match client {
        None => config.with_no_client_auth(),
        Some(pair) => {
            let chain = vec![CertificateDer::from_pem_file(&pair.cert).unwrap()];
            let key = PrivateKeyDer::from_pem_file(&pair.key).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from(name.to_owned()).unwrap();
    run(async {
        use tokio::io::AsyncReadExt;
        let socket = tokio::net::TcpStream::connect(("127.0.0.1", fake.port())).await.unwrap();
        let connector = TlsConnector::from(Arc::new(config));
        let mut socket = connector.connect(name, socket).await.map_err(|e| e.to_string())?;
        // A client's certificate is refused after the client's part of the handshake.
        let mut settings = [0; 9];
        socket.read_exact(&mut settings).await.map(|_| ()).map_err(|error| error.to_string())
    })
}

#[test]
fn certificates_are_good_or_bad_as_named() {
    let certs = Certs::new();
    let good = certs.client();
    let of = |stem: &str, issue: Issue| certs.issue(stem, &issue);
    let fake = |pair: &Pair, wants_client: bool| {
        FakeEtcd::start_tls(Member::new("m1"), certs.server_config(pair, wants_client))
    };
    let with = |pair: &Pair| {
        let fake = fake(&certs.server(), true);
        handshake(&certs, Some(pair), &fake, "127.0.0.1")
    };
    with(&good).unwrap();
    let rsa = of("rsa", Issue::client("root").rsa());
    let pkcs1 = rsa.key_as(KeyForm::Pkcs1);
    let sec1 = good.key_as(KeyForm::Sec1);
    for (pair, label) in
        [(&rsa, "PRIVATE"), (&pkcs1, "RSA PRIVATE"), (&sec1, "EC PRIVATE"), (&good, "PRIVATE")]
    {
        let text = std::fs::read_to_string(&pair.key).unwrap();
        assert!(text.starts_with(&format!("-----BEGIN {label} KEY-----")), "{text}");
        with(pair).unwrap();
    }
    let client = || Issue::client("root");
    with(&of("ends", client().ends_in(Duration::from_secs(3600)))).unwrap();
    for (issue, words) in [
        (client().expired(), "Expired"),
        (client().not_yet(), ""),
        (client().purpose(Purpose::Server), ""),
        (client().stranger(), "UnknownCA"),
        (client().self_signed(), "UnknownCA"),
    ] {
        let error = with(&of("bad", issue.clone())).unwrap_err();
        assert!(error.contains(words), "{error}: {issue:?}");
    }
    let error = handshake(&certs, None, &fake(&certs.server(), true), "127.0.0.1").unwrap_err();
    assert!(error.contains("CertificateRequired"), "{error}");

    let serving = |issue: Issue, name: &str| {
        let fake = fake(&of("serving", issue), false);
        handshake(&certs, None, &fake, name)
    };
    for name in ["localhost", "127.0.0.1", "::1"] {
        serving(Issue::server(), name).unwrap();
    }
    serving(Issue::server().names(&["etcd.example"]), "etcd.example").unwrap();
    for (issue, words) in [
        (Issue::server().names(&["etcd.example"]), "not valid for name"),
        (Issue::server().expired(), "expired"),
        (Issue::server().not_yet(), "not valid yet"),
        (Issue::server().purpose(Purpose::Client), "usage"),
        (Issue::server().stranger(), "UnknownIssuer"),
        (Issue::server().self_signed(), "UnknownIssuer"),
    ] {
        let error = serving(issue.clone(), "127.0.0.1").unwrap_err();
        assert!(error.contains(words), "{error}: {issue:?}");
    }
}

/// A server that sends the same bytes to everybody, and then waits for the client's end.
fn sender(bytes: &[u8]) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let bytes = bytes.to_vec();
    // Ends with the process.
    spawn(move || {
        for client in listener.incoming() {
            let (mut client, bytes) = (client.unwrap(), bytes.clone());
            spawn(move || {
                use std::io::Write;
                let _ = client.write_all(&bytes);
                let _ = client.shutdown(std::net::Shutdown::Write);
                let _ = client.read(&mut [0]);
            });
        }
    });
    port
}

/// Reads to the end, or until nothing has come for so long; says which.
fn receive(port: u16, patience: Duration) -> (Vec<u8>, bool) {
    let mut server = TcpStream::connect(("127.0.0.1", port)).unwrap();
    server.set_read_timeout(Some(patience)).unwrap();
    let mut got = Vec::new();
    let ended = server.read_to_end(&mut got);
    (got, ended.is_ok())
}

#[test]
fn the_proxy_harms_as_it_was_told() {
    let bytes: Vec<u8> = (0..300_000_u32).map(|i| u8::try_from(i % 251).unwrap()).collect();
    let proxy = Proxy::to(sender(&bytes));
    let patience = Duration::from_millis(400);
    let harmed = |harm: Harm| {
        proxy.set(|old| *old = harm);
        let began = Instant::now();
        let (got, ended) = receive(proxy.port(), patience);
        (got, ended, began.elapsed())
    };
    let whole = harmed(Harm::default());
    assert!(whole.0 == bytes && whole.1);
    let (got, ..) = harmed(Harm { cut_after: Some(100_001), ..Harm::default() });
    assert!(got == bytes[..100_001], "{}", got.len());
    let (got, ended, _) = harmed(Harm { half_close_after: Some(7), ..Harm::default() });
    assert!(got == bytes[..7] && ended);
    let (got, ended, _) = harmed(Harm { flip_at: Some(70_000), ..Harm::default() });
    let differ: Vec<usize> = (0..bytes.len()).filter(|&i| got[i] != bytes[i]).collect();
    assert!(differ == [70_000] && ended, "{differ:?}");
    let (got, ended, _) = harmed(Harm { black_hole: true, ..Harm::default() });
    assert!(got.is_empty() && !ended);
    let delay = Duration::from_millis(100);
    let (got, _, took) = harmed(Harm { delay, ..Harm::default() });
    assert!(got == bytes && took >= delay, "{took:?}");
    let (got, _, took) = harmed(Harm { bytes_per_second: Some(600_000), ..Harm::default() });
    assert!(got == bytes && took >= Duration::from_millis(450), "{took:?}");
    assert_eq!(proxy.accepted(), 7);
    let port = proxy.port();
    drop(proxy);
    TcpStream::connect(("127.0.0.1", port)).expect_err("its port is free");

    let says = Says::to_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let (got, ended) = receive(says.port(), Duration::from_secs(5));
    assert!(ended && got.starts_with(b"HTTP/1.1 400"));
}
