//! Ends under load: a stop, a kill, and a disk that takes nothing any more.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use etcd_client::{Client, Error, GetOptions, WatchOptions};
use etcdkit::bolt::disk::{Disk, Event, Probe, Verdict};
use etcdkit::store::serve::{Address, Listener, Options, Role, Server};
use etcdkit::store::{Options as StoreOptions, Store};
use rustix::io::Errno;
use tokio::task::{LocalSet, spawn_local};
use tonic::Code;

use crate::serve_child::{LONG, Served, get, run};

const WRITERS: usize = 8;

/// What a writer was told.
struct Written {
    key: String,
    /// The last value that was acknowledged, with its revision; 0 for none.
    acknowledged: (u64, i64),
    /// The next one, of which nothing is known.
    asked: u64,
    /// `None` where there is nobody any more who could answer.
    error: Option<Error>,
}

/// Time after which nobody is there who could answer: the client tries for ever.
const NOBODY: Duration = Duration::from_secs(15);

/// Puts counted values to a key until that fails.
async fn write(address: SocketAddr, key: String) -> Written {
    let mut client = Client::connect([address.to_string()], None).await.unwrap();
    let (mut acknowledged, mut asked) = ((0, 0), 0);
    loop {
        asked += 1;
        let put = client.put(key.clone(), asked.to_string(), None);
        let error = match tokio::time::timeout(NOBODY, put).await {
            Ok(Ok(answer)) => {
                acknowledged = (asked, answer.header().unwrap().revision());
                continue;
            }
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        return Written { key, acknowledged, asked, error };
    }
}

/// Reads what is there: values and revisions by key.
async fn read(client: &mut Client) -> BTreeMap<String, (u64, i64)> {
    let all = GetOptions::new().with_prefix();
    let answer = client.get("w/", Some(all)).await.unwrap();
    let pair = |kv: &etcd_client::KeyValue| {
        let value = kv.value_str().unwrap().parse().unwrap();
        (kv.key_str().unwrap().to_owned(), (value, kv.mod_revision()))
    };
    answer.kvs().iter().map(pair).collect()
}

/// All that was acknowledged is there, and nothing that was not asked for.
fn check(written: &[Written], there: &BTreeMap<String, (u64, i64)>) {
    for Written { key, acknowledged, asked, .. } in written {
        let (value, revision) = there.get(key).copied().unwrap_or_default();
        assert!(value >= acknowledged.0 && value <= *asked, "{key}: {value}, not {acknowledged:?}");
        assert!(revision >= acknowledged.1, "{key}: at {revision}, not {acknowledged:?}");
        if value == acknowledged.0 {
            assert_eq!(revision, acknowledged.1, "{key}");
        }
    }
}

/// Revisions that a watcher was told, each of one put.
async fn told(
    stream: &mut etcd_client::WatchStream,
    revisions: &mut Vec<i64>,
) -> Result<(), Error> {
    match stream.message().await? {
        None => Err(Error::WatchError("the stream ended".into())),
        Some(response) => {
            assert!(!response.canceled());
            revisions.extend(response.events().iter().map(|it| it.kv().unwrap().mod_revision()));
            Ok(())
        }
    }
}

fn code(error: &Error) -> Option<(Code, String)> {
    match error {
        Error::GRpcStatus(status) => Some((status.code(), status.message().to_owned())),
        _ => None,
    }
}

#[test]
fn what_was_acknowledged_outlives_a_kill_and_a_watcher_goes_on_without_a_gap() {
    let mut served = Served::start(&[]);
    let (mut revisions, mut all) = (Vec::new(), BTreeMap::new());
    for round in 0..3 {
        let address = served.address;
        let from = revisions.last().map_or(2, |last| last + 1);
        let done = run(LocalSet::new().run_until(async {
            let writers: Vec<_> = (0..WRITERS)
                .map(|writer| spawn_local(write(address, format!("w/{round}/{writer}"))))
                .collect();
            let mut client = served.client().await;
            let options = WatchOptions::new().with_prefix().with_start_revision(from);
            let mut stream = client.watch("w/", Some(options)).await.unwrap();
            let watcher = spawn_local(async move {
                let mut revisions = Vec::new();
                while told(&mut stream, &mut revisions).await.is_ok() {}
                revisions
            });
            tokio::time::sleep(Duration::from_millis(1500)).await;
            served.kill();
            revisions.extend(watcher.await.unwrap());
            let mut written = Vec::new();
            for writer in writers {
                written.push(writer.await.unwrap());
            }
            written
        }));
        assert!(done.iter().all(|written| written.acknowledged.0 > 0), "nothing was written");
        let last = done.iter().map(|written| written.acknowledged.1).max().unwrap();
        served.restart();
        run(async {
            let mut client = served.client().await;
            let there = read(&mut client).await;
            check(&done, &there);
            for (key, before) in &all {
                assert_eq!(there.get(key), Some(before), "{key}");
            }
            all = there;
            // Goes on where the stream was cut.
            let from = revisions.last().map_or(2, |last| last + 1);
            let newest = all.values().map(|(_, revision)| *revision).max().unwrap();
            assert!(newest >= last);
            let options = WatchOptions::new().with_prefix().with_start_revision(from);
            let mut stream = client.watch("w/", Some(options)).await.unwrap();
            while revisions.last().is_none_or(|told| *told < newest) {
                told(&mut stream, &mut revisions).await.unwrap();
            }
            assert_eq!(revisions, (2..=newest).collect::<Vec<_>>());
        });
        println!("round {round}: {} revisions", revisions.len());
    }
}

#[test]
fn a_stop_under_load_ends_streams_and_answers_what_is_under_way() {
    let mut served = Served::start(&[]);
    let address = served.address;
    let written = run(LocalSet::new().run_until(async {
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| spawn_local(write(address, format!("w/{writer}")))).collect();
        let mut client = served.client().await;
        let options = || Some(WatchOptions::new().with_prefix());
        let mut watchers = Vec::new();
        for _ in 0..20 {
            let mut stream = client.watch("w/", options()).await.unwrap();
            watchers.push(spawn_local(async move {
                let mut revisions = Vec::new();
                loop {
                    if let Err(error) = told(&mut stream, &mut revisions).await {
                        let is_whole = revisions.windows(2).all(|pair| pair[1] == pair[0] + 1);
                        assert!(is_whole, "a gap: {revisions:?}");
                        break error;
                    }
                }
            }));
        }
        let lease = client.lease_grant(60, None).await.unwrap().id();
        let (_keeper, mut renewals) = client.lease_keep_alive(lease).await.unwrap();
        // Peers that never go on do not hold the stop up for ever.
        let held: Vec<_> = [&b"GET / HTTP/1.1\r\n"[..], b"P", b""]
            .into_iter()
            .map(|words| {
                let mut stream = std::net::TcpStream::connect(address).unwrap();
                std::io::Write::write_all(&mut stream, words).unwrap();
                stream
            })
            .collect();
        tokio::time::sleep(Duration::from_millis(1000)).await;
        served.terminate();
        let stopped = Some((Code::Unavailable, "etcdserver: server stopped".to_owned()));
        for watcher in watchers {
            assert_eq!(code(&watcher.await.unwrap()), stopped);
        }
        let ended = loop {
            match renewals.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it ended as if all were well"),
                Err(error) => break code(&error),
            }
        };
        assert_eq!(ended, stopped);
        let mut written = Vec::new();
        for writer in writers {
            written.push(writer.await.unwrap());
        }
        drop(held);
        written
    }));
    for Written { key, error, .. } in &written {
        let told = error.as_ref().and_then(code);
        // Who asks when all is over finds nobody there.
        let is_clear = told.as_ref().is_none_or(|(code, _)| {
            [Code::Unavailable, Code::Unknown, Code::Cancelled].contains(code)
        });
        assert!(is_clear, "{key}: {told:?}");
        println!("{key}: {error:?}");
    }
    let status = served.ended(LONG);
    println!("ended: {status}");
    served.restart();
    run(async {
        let mut client = served.client().await;
        check(&written, &read(&mut client).await);
    });
}

/// Fails every change, once it is told to.
#[derive(Debug, Default)]
struct Breaking {
    is_broken: AtomicBool,
}

impl Breaking {
    fn set(&self, is_broken: bool) {
        self.is_broken.store(is_broken, Ordering::SeqCst);
    }
}

/// What the disk says.
#[derive(Debug)]
struct Saying(Arc<Breaking>, Errno);

impl Probe for Saying {
    fn before(&self, _: &Event) -> Verdict {
        match self.0.is_broken.load(Ordering::SeqCst) {
            true => Verdict::Fail(self.1.into()),
            false => Verdict::Go,
        }
    }

    fn after(&self, _: Event) {}
}

fn serve(dir: &Path, disk: Disk) -> (Server, Store, SocketAddr) {
    let store = Store::open(dir, StoreOptions::default().disk(disk)).unwrap();
    let address = Address::Tcp((Ipv4Addr::LOCALHOST, 0).into());
    let listener = Listener { address, role: Role::Client, tls: None };
    let options = Options::default().listeners(vec![listener]);
    let server = Server::start(store.clone(), options).unwrap();
    let Address::Tcp(address) = server.addresses()[0].clone() else { unreachable!() };
    (server, store, address)
}

fn fails_under_writes(errno: Errno) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let breaking = Arc::new(Breaking::default());
    let disk = Disk::with_probe(Arc::new(Saying(Arc::clone(&breaking), errno)));
    let (server, store, address) = serve(&dir, disk);
    let cause = std::io::Error::from(errno).to_string();
    let cause = cause.split(" (").next().unwrap();
    let (code_before, _) = get(address, "/health").unwrap();
    assert_eq!(code_before, 200);
    let written = run(LocalSet::new().run_until(async {
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| spawn_local(write(address, format!("w/{writer}")))).collect();
        let mut client = Client::connect([address.to_string()], None).await.unwrap();
        let options = WatchOptions::new().with_prefix().with_start_revision(1);
        let mut stream = client.watch("w/", Some(options)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        breaking.set(true);
        let mut written = Vec::new();
        for writer in writers {
            written.push(writer.await.unwrap());
        }
        for Written { key, error, acknowledged, .. } in &written {
            let error = error.as_ref().expect("an answer");
            let (code, text) = code(error).expect("the server's answer");
            assert!(text.contains(cause), "{key}: {code:?} {text}");
            assert_ne!(code, Code::Ok);
            assert!(acknowledged.0 > 0, "nothing was written");
        }
        println!("{cause}: {:?}", written[0].error);
        // Reads and watchers go on, with what was acknowledged.
        check(&written, &read(&mut client).await);
        let newest = written.iter().map(|written| written.acknowledged.1).max().unwrap();
        let mut revisions = Vec::new();
        while revisions.last().is_none_or(|told| *told < newest) {
            told(&mut stream, &mut revisions).await.unwrap();
        }
        let wanted: Vec<i64> = (2..=*revisions.last().unwrap()).collect();
        assert_eq!(revisions, wanted);
        // The disk works again; what it lacks it lacks, and nothing more is taken.
        breaking.set(false);
        let refused = client.put("w/0", "0", None).await.unwrap_err();
        let (_, text) = code(&refused).expect("the server's answer");
        assert!(text.contains(cause), "{text}");
        written
    }));
    for path in ["/health", "/readyz", "/livez"] {
        let (code, text) = get(address, path).unwrap();
        assert_eq!(code, 503, "{path}: {text}");
        assert!(text.contains(cause), "{path}: {text}");
    }
    server.stop(LONG);
    // It may say that the database lacks what the log has.
    let _ = store.close();
    drop(store);
    let (server, store, address) = serve(&dir, Disk::default());
    run(async {
        let mut client = Client::connect([address.to_string()], None).await.unwrap();
        check(&written, &read(&mut client).await);
        client.put("w/0", "1", None).await.unwrap();
    });
    server.stop(LONG);
    store.close().unwrap();
}

#[test]
fn a_full_disk_is_told_and_reads_go_on() {
    fails_under_writes(Errno::NOSPC);
}

#[test]
fn a_broken_disk_is_told_and_reads_go_on() {
    fails_under_writes(Errno::IO);
}
