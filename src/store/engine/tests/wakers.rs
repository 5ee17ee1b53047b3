//! A caller's waker may do anything, on whichever thread it runs.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc;
use std::task::{Context, Wake, Waker};

use super::*;

type Deed = Box<dyn FnOnce() + Send>;

/// Does something once.
struct Once(Mutex<Option<Deed>>);

impl Wake for Once {
    fn wake(self: Arc<Self>) {
        let deed = self.0.lock().unwrap().take();
        if let Some(deed) = deed {
            deed();
        }
    }
}

fn waker(deed: impl FnOnce() + Send + 'static) -> Waker {
    Waker::from(Arc::new(Once(Mutex::new(Some(Box::new(deed))))))
}

const LONG: Duration = Duration::from_secs(20);

/// A disk that is slow to sync, and that fails to sync the database from some time on.
#[derive(Debug, Default)]
struct Ill {
    databases: Mutex<Vec<u64>>,
    fails: AtomicU64,
}

impl Probe for Ill {
    fn before(&self, event: &Change) -> Verdict {
        match event {
            Change::Create { file, path } | Change::Open { file, path }
                if path.parent().is_some_and(|parent| parent.ends_with("snap")) =>
            {
                self.databases.lock().unwrap().push(*file);
            }
            Change::Sync { file } => {
                std::thread::sleep(Duration::from_millis(100));
                if self.fails.load(Ordering::SeqCst) > 0
                    && self.databases.lock().unwrap().contains(file)
                {
                    std::thread::sleep(Duration::from_millis(500));
                    return Verdict::Fail(std::io::Error::from_raw_os_error(5));
                }
            }
            _ => {}
        }
        Verdict::Go
    }

    fn after(&self, _: Change) {}
}

fn opens_again(dir: &tempfile::TempDir) -> Store {
    let end = Instant::now() + LONG;
    loop {
        match Store::open(&dir.path().join("data"), Options::default()) {
            Ok(store) => return store,
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

const A: Put<'static> = Put {
    key: b"a",
    value: b"1",
    lease: 0,
    prev_kv: false,
    ignore_value: false,
    ignore_lease: false,
};

#[test]
fn the_last_handle_may_go_in_a_waker() {
    for closes in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::with_probe(Arc::new(Ill::default()));
        let store = open(&dir, Options { disk, ..Options::default() });
        let mut answer = store.submit(&me(), A).unwrap();
        let (done, ended) = mpsc::channel();
        let waker = waker(move || {
            let closed = if closes { store.close() } else { Ok(()) };
            drop(store);
            done.send(closed).unwrap();
        });
        let mut context = Context::from_waker(&waker);
        assert!(Pin::new(&mut answer).poll(&mut context).is_pending());
        assert_eq!(ended.recv_timeout(LONG).unwrap(), Ok(()));
        assert!(matches!(answer.wait_for(LONG), Ok(Some(Ok(_)))));
        let store = opens_again(&dir);
        assert_eq!(records(&store).len(), 1);
    }
}

#[test]
fn a_watchers_waker_may_close_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Options::default());
    let watch = store.watch(&me());
    watch.create(Create { key: b"a".to_vec(), ..Create::default() });
    assert!(watch.next(LONG).unwrap().unwrap().created);
    let (done, ended) = mpsc::channel();
    let handle = store.clone();
    let waker = waker(move || done.send(handle.close()).unwrap());
    assert!(watch.poll_next(&mut Context::from_waker(&waker)).is_pending());
    let _ = put(&store, b"a", b"1");
    // Whoever closes meanwhile waits for the thread that the waker is on.
    store.close().unwrap();
    assert_eq!(ended.recv_timeout(LONG).unwrap(), Ok(()));
    drop((store, watch));
    assert_eq!(records(&opens_again(&dir)).len(), 1);
}

#[test]
fn wakers_run_after_a_disk_error_without_a_lock() {
    let dir = tempfile::tempdir().unwrap();
    let ill = Arc::new(Ill::default());
    let disk = Disk::with_probe(Arc::clone(&ill) as _);
    // Nothing may wait for the database, so that requests are there when it fails.
    let store = open(&dir, Options { disk, unsaved_bytes_max: 0, ..Options::default() });
    put(&store, b"a", b"0").unwrap();
    ill.fails.store(1, Ordering::SeqCst);
    let (done, ended) = mpsc::channel();
    let mut answers = Vec::new();
    for _ in 0..4 {
        let Ok(mut answer) = store.submit(&me(), A) else { break };
        let (handle, done) = (store.clone(), done.clone());
        let waker = waker(move || {
            let hashed = handle.hash(&me()).map(drop);
            let defragmented = handle.defragment(&me());
            done.send((hashed, defragmented, handle.close())).unwrap();
        });
        if Pin::new(&mut answer).poll(&mut Context::from_waker(&waker)).is_pending() {
            answers.push(answer);
        }
        std::thread::sleep(Duration::from_millis(40));
    }
    assert!(!answers.is_empty());
    for answer in answers {
        let (hashed, defragmented, _) = ended.recv_timeout(LONG).unwrap();
        assert!(hashed.is_err() && defragmented.is_err());
        answer.wait_for(LONG).unwrap();
    }
    assert!(matches!(store.failure(), Some(Error::Storage(_))));
    let _ = store.close();
}

#[test]
fn a_waker_that_panics_is_its_callers_matter() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::with_probe(Arc::new(Ill::default()));
    let store = open(&dir, Options { disk, ..Options::default() });
    let watch = store.watch(&me());
    watch.create(Create { key: b"a".to_vec(), ..Create::default() });
    assert!(watch.next(LONG).unwrap().unwrap().created);
    let panics = || waker(|| std::panic::resume_unwind(Box::new("a waker's")));
    assert!(watch.poll_next(&mut Context::from_waker(&panics())).is_pending());
    let mut answer = store.submit(&me(), A).unwrap();
    let waker = panics();
    assert!(Pin::new(&mut answer).poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(matches!(answer.wait_for(LONG), Ok(Some(Ok(_)))));
    put(&store, b"a", b"2").unwrap();
    let mut events = 0;
    while events < 2 {
        events += watch.next(LONG).unwrap().unwrap().events.len();
    }
    assert_eq!(store.failure(), None);
    store.close().unwrap();
}
