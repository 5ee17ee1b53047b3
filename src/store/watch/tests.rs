//! What a watcher is told, exactly; then chance against the guarantees.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::*;
use crate::etcd::apply::Refusal;
use crate::etcd::record::KeyValue;
use crate::etcd::revision::Revision;
use crate::store::mvcc::Portion;

mod crowd;
mod model;

const LONG: Duration = Duration::from_secs(20);
const LIMITS: Limits = Limits { response_bytes: 1 << 20, waiting_max: 1000 };

/// A store that keeps everything, and forgets it when it is told.
#[derive(Debug)]
struct Fake {
    state: Mutex<Kept>,
    reads: AtomicUsize,
    lookups: AtomicUsize,
}

#[derive(Debug)]
struct Kept {
    commits: Vec<Arc<Commit>>,
    revision: i64,
    compacted: i64,
    /// Each key's records, by revision; `None` for a deletion.
    keys: BTreeMap<Vec<u8>, BTreeMap<i64, Option<Kv>>>,
    failure: Option<Error>,
}

/// A change: the value, or `None` to delete the key.
type Change<'a> = (&'a [u8], Option<&'a [u8]>);

impl Fake {
    fn new() -> Arc<Self> {
        let (commits, keys) = (Vec::new(), BTreeMap::new());
        let kept = Kept { commits, revision: 1, compacted: -1, keys, failure: None };
        let (reads, lookups) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Self { state: Mutex::new(kept), reads, lookups })
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a revision; a deletion of what is not there is none.
    fn commit(&self, changes: &[Change<'_>]) -> Option<Arc<Commit>> {
        let mut kept = self.lock();
        let main = kept.revision + 1;
        let mut events = Vec::new();
        for (key, value) in changes {
            let before = kept.keys.get(*key).and_then(|records| records.values().last().cloned());
            let before = before.flatten();
            if value.is_none() && before.is_none() {
                continue;
            }
            let revision = Revision { main, sub: events.len() as i64 };
            let old = before.as_ref().map(Kv::record);
            let record = KeyValue {
                key,
                create_revision: match (value, old) {
                    (None, _) => 0,
                    (_, Some(old)) => old.create_revision,
                    (_, None) => main,
                },
                mod_revision: main,
                version: value.map_or(0, |_| old.map_or(1, |old| old.version + 1)),
                value: value.unwrap_or_default(),
                ..KeyValue::default()
            };
            let kv = Kv::encode(&record);
            let key = bytes::Bytes::copy_from_slice(key);
            let kept_record = value.map(|_| kv.clone());
            kept.keys.entry(key.to_vec()).or_default().insert(main, kept_record);
            events.push(Event { revision, is_delete: value.is_none(), kv, key });
        }
        if events.is_empty() {
            return None;
        }
        kept.revision = main;
        let commit = Arc::new(Commit { revision: main, events: events.into() });
        kept.commits.push(Arc::clone(&commit));
        Some(commit)
    }

    fn put(&self, key: &str, value: &str) -> Arc<Commit> {
        self.commit(&[(key.as_bytes(), Some(value.as_bytes()))]).unwrap()
    }

    fn delete(&self, key: &str) -> Arc<Commit> {
        self.commit(&[(key.as_bytes(), None)]).unwrap()
    }

    fn compact(&self, revision: i64) {
        self.lock().compacted = revision;
    }
}

impl Kept {
    fn before(&self, key: &[u8], revision: i64) -> Option<Kv> {
        self.keys.get(key)?.range(..revision).next_back()?.1.clone()
    }
}

impl History for Fake {
    fn revision(&self) -> i64 {
        self.lock().revision
    }

    fn compact_revision(&self) -> i64 {
        self.lock().compacted
    }

    fn events(&self, from: i64, to: i64, max: Portion) -> Result<(Vec<Arc<Commit>>, i64), Error> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let kept = self.lock();
        if let Some(error) = &kept.failure {
            return Err(error.clone());
        }
        if from < kept.compacted {
            return Err(Refusal::Compacted.into());
        }
        let (mut found, mut events) = (Vec::new(), 0);
        let start = kept.commits.partition_point(|commit| commit.revision < from);
        for commit in kept.commits[start..].iter().take_while(|commit| commit.revision <= to) {
            found.push(Arc::clone(commit));
            events += commit.events.len();
            if events >= max.events {
                return Ok((found, commit.revision));
            }
        }
        Ok((found, to))
    }

    fn previous(&self, key: &[u8], revision: i64) -> Result<Option<Kv>, Error> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        let kept = self.lock();
        if let Some(error) = &kept.failure {
            return Err(error.clone());
        }
        let is_there = revision > kept.compacted;
        Ok(kept.before(key, revision).filter(|_| is_there))
    }
}

fn hub(limits: Limits) -> (Arc<Fake>, Hub) {
    let fake = Fake::new();
    let hub = Hub::new(Arc::<Fake>::clone(&fake), limits);
    (fake, hub)
}

fn on(key: &str, range_end: &str) -> Create {
    let (key, range_end) = (key.as_bytes().to_vec(), range_end.as_bytes().to_vec());
    Create { key, range_end, ..Create::default() }
}

fn next(stream: &Stream) -> Response {
    stream.next(LONG).unwrap().expect("a response in time")
}

fn nothing(stream: &Stream) {
    assert_eq!(stream.next(Duration::from_millis(20)), Ok(None));
}

fn revisions(response: &Response) -> Vec<i64> {
    response.events.iter().map(|(event, _)| event.revision.main).collect()
}

/// Waits until the hub has nothing more to do by itself.
fn wait_delivered(hub: &Hub, revision: i64) {
    let start = Instant::now();
    while hub.counts().revision < revision {
        assert!(start.elapsed() < LONG, "the hub stands still: {:?}", hub.counts());
        std::thread::yield_now();
    }
}

fn refused(revision: i64, reason: &str) -> Response {
    let cancel_reason = reason.to_owned();
    let (created, canceled) = (true, true);
    Response { watch_id: -1, revision, created, canceled, cancel_reason, ..Response::default() }
}

fn created(watch_id: i64, revision: i64) -> Response {
    Response { watch_id, revision, created: true, ..Response::default() }
}

#[test]
fn ids_are_given_and_taken() {
    let (_fake, hub) = hub(LIMITS);
    let stream = hub.stream();
    let with = |watch_id| Create { watch_id, ..on("a", "") };
    for (wanted, given) in [(0, 0), (0, 1), (3, 3), (2, 2), (0, 4), (-7, -7)] {
        stream.create(with(wanted));
        assert_eq!(next(&stream), created(given, 1));
    }
    for taken in [3, -1, -7] {
        stream.create(with(taken));
        let reason = "mvcc: duplicate watch ID provided on the WatchStream";
        assert_eq!(next(&stream), refused(1, reason));
    }
    stream.cancel(99);
    stream.cancel(1);
    let canceled = Response { watch_id: 1, revision: 1, canceled: true, ..Response::default() };
    assert_eq!(next(&stream), canceled);
    stream.cancel(1);
    stream.create(with(0));
    assert_eq!(next(&stream), created(5, 1));
    stream.create(with(1));
    assert_eq!(next(&stream), created(1, 1));
    assert_eq!(hub.counts().watchers, 7);
    drop(stream);
    assert_eq!(hub.counts(), Counts { revision: 1, ..Counts::default() });
}

#[test]
fn what_cannot_be_watched_is_refused() {
    let (fake, hub) = hub(LIMITS);
    fake.put("a", "1");
    let stream = hub.stream();
    for (key, end) in [("b", "a"), ("a", "a"), ("\0", "\0\0")] {
        stream.create(on(key, end));
    }
    assert_eq!(next(&stream), refused(2, "mvcc: watcher range is empty"));
    assert_eq!(next(&stream), refused(2, "mvcc: watcher range is empty"));
    assert_eq!(next(&stream), created(0, 2));
    stream.create(Create { start_revision: -1, ..on("b", "a") });
    let reason = "etcdserver: mvcc: required revision has been compacted";
    assert_eq!(next(&stream), refused(2, reason));
    stream.refuse("why not".to_owned());
    assert_eq!(next(&stream), refused(2, "why not"));
    nothing(&stream);
}

#[test]
fn keys_are_matched_as_etcd_does() {
    let (fake, hub) = hub(LIMITS);
    let cases = [
        (("", ""), ""),
        (("b", ""), "b"),
        (("b", "d"), "bc"),
        (("b", "\0"), "bcd"),
        (("", "\0"), "abcd"),
        (("", "b"), "a"),
    ];
    let streams: Vec<Stream> = cases
        .iter()
        .map(|((key, end), _)| {
            let stream = hub.stream();
            stream.create(on(key, end));
            assert!(next(&stream).created);
            stream
        })
        .collect();
    hub.publish(["a", "b", "c", "d"].map(|key| fake.put(key, "")).to_vec());
    wait_delivered(&hub, 5);
    for (stream, (span, wanted)) in streams.iter().zip(cases) {
        let mut keys = String::new();
        while let Some(response) = stream.next(Duration::ZERO).unwrap() {
            for (event, _) in &response.events {
                keys.push_str(std::str::from_utf8(&event.key).unwrap());
            }
        }
        assert_eq!(keys, wanted, "{span:?}");
    }
}

#[test]
fn a_start_in_the_past_now_or_later() {
    let (fake, hub) = hub(LIMITS);
    hub.publish((0..5).map(|_| fake.put("a", "x")).collect());
    let start = |start_revision| Create { start_revision, ..on("a", "") };
    let stream = hub.stream();
    stream.create(start(3));
    assert_eq!(next(&stream), created(0, 6));
    let replay = next(&stream);
    assert_eq!((replay.watch_id, replay.revision), (0, 6));
    assert_eq!(revisions(&replay), [3, 4, 5, 6]);

    let now = hub.stream();
    now.create(start(0));
    assert_eq!(next(&now), created(0, 6));
    let later = hub.stream();
    later.create(start(8));
    assert_eq!(next(&later), created(0, 6));
    hub.publish((0..3).map(|_| fake.put("a", "x")).collect());
    assert_eq!(revisions(&next(&now)), [7, 8, 9]);
    assert_eq!(revisions(&next(&later)), [8, 9]);
    assert_eq!(revisions(&next(&stream)), [7, 8, 9]);
}

#[test]
fn what_is_applied_and_not_yet_published_is_neither_lost_nor_repeated() {
    let (fake, hub) = hub(LIMITS);
    let mut late: Vec<_> = (0..4).map(|_| fake.put("a", "x")).collect();
    let stream = hub.stream();
    for start_revision in [0, 3, 5, 6, 7] {
        stream.create(Create { start_revision, ..on("a", "") });
    }
    for id in 0..5 {
        assert_eq!(next(&stream), created(id, 5));
    }
    late.push(fake.put("a", "x"));
    hub.publish(late);
    wait_delivered(&hub, 6);
    let mut got = BTreeMap::new();
    while let Some(response) = stream.next(Duration::from_millis(20)).unwrap() {
        got.entry(response.watch_id).or_insert_with(Vec::new).extend(revisions(&response));
    }
    assert_eq!(got[&0], [6]);
    assert_eq!(got[&1], [3, 4, 5, 6]);
    assert_eq!(got[&2], [5, 6]);
    assert_eq!(got[&3], [6]);
    assert_eq!(got.get(&4), None);
}

#[test]
fn compaction_ends_watchers_that_it_overtakes() {
    let (fake, hub) = hub(LIMITS);
    hub.publish((0..5).map(|_| fake.put("a", "x")).collect());
    fake.compact(4);
    let stream = hub.stream();
    stream.create(Create { start_revision: 3, ..on("a", "") });
    assert_eq!(next(&stream), created(0, 6));
    let over = Response { watch_id: 0, canceled: true, compact_revision: 4, ..Response::default() };
    assert_eq!(next(&stream), over);
    stream.create(Create { watch_id: 9, start_revision: 4, prev_kv: true, ..on("a", "") });
    assert_eq!(next(&stream), created(9, 6));
    let response = next(&stream);
    assert_eq!(revisions(&response), [4, 5, 6]);
    let has_previous: Vec<_> = response.events.iter().map(|(_, kv)| kv.is_some()).collect();
    assert_eq!(has_previous, [false, true, true]);
    // The client cancels what is over: it is told once more, and the id is free.
    stream.cancel(0);
    let canceled = Response { watch_id: 0, revision: 6, canceled: true, ..Response::default() };
    assert_eq!(next(&stream), canceled);
    stream.cancel(0);
    nothing(&stream);
}

#[test]
fn a_slow_consumer_falls_behind_and_loses_nothing() {
    let (fake, hub) = hub(Limits { waiting_max: 3, ..LIMITS });
    let (slow, stuck) = (hub.stream(), hub.stream());
    for stream in [&slow, &stuck] {
        stream.create(on("a", ""));
        assert!(next(stream).created);
    }
    for _ in 0..100 {
        hub.publish(vec![fake.put("a", "x")]);
        wait_delivered(&hub, fake.revision());
    }
    assert_eq!(hub.counts().slow_watchers, 2);
    assert_eq!(hub.counts().pending_events, 6);
    slow.request_progress();
    let mut got = Vec::new();
    while got.len() < 100 {
        got.extend(revisions(&next(&slow)));
    }
    assert_eq!(got, (2..=101).collect::<Vec<_>>());
    nothing(&slow);
    assert_eq!(hub.counts().slow_watchers, 1);

    // The other one is overtaken: it gets what waits, and then the end.
    fake.compact(50);
    assert_eq!(revisions(&next(&stuck)), [2, 3, 4]);
    let over =
        Response { watch_id: 0, canceled: true, compact_revision: 50, ..Response::default() };
    assert_eq!(next(&stuck), over);
    assert_eq!(hub.counts().slow_watchers, 0);
}

#[test]
fn filters_and_records_before() {
    let (fake, hub) = hub(LIMITS);
    let stream = hub.stream();
    stream.create(Create { prev_kv: true, ..on("a", "b") });
    stream.create(Create { no_put: true, prev_kv: true, ..on("a", "b") });
    stream.create(Create { no_delete: true, ..on("a", "b") });
    stream.create(Create { no_put: true, no_delete: true, ..on("a", "b") });
    (0..4).for_each(|_| assert!(next(&stream).created));
    let first = fake.put("a", "1");
    let second = fake.put("a", "2");
    hub.publish(vec![first.clone(), second.clone(), fake.delete("a"), fake.put("a", "3")]);
    let mut got = BTreeMap::new();
    wait_delivered(&hub, 5);
    while let Some(response) = stream.next(Duration::ZERO).unwrap() {
        got.entry(response.watch_id).or_insert_with(Vec::new).extend(response.events);
    }
    let kv = |commit: &Commit| Some(commit.events[0].kv.clone());
    let previous: Vec<_> = got[&0].iter().map(|(_, before)| before.clone()).collect();
    assert_eq!(previous, [None, kv(&first), kv(&second), None]);
    assert_eq!(got[&1].len(), 1);
    assert_eq!(got[&1][0].1, kv(&second));
    assert!(got[&1][0].0.is_delete);
    assert_eq!(got[&2].iter().map(|(event, _)| event.revision.main).collect::<Vec<_>>(), [2, 3, 5]);
    assert!(got[&2].iter().all(|(_, before)| before.is_none()));
    assert_eq!(got.get(&3), None);
    // Two looked for it, and it was looked up once for each change that can have one.
    assert_eq!(fake.lookups.load(Ordering::Relaxed), 2);
}

#[test]
fn large_responses_are_cut_where_the_client_can_join_them() {
    let (fake, hub) = hub(Limits { response_bytes: 1000, ..LIMITS });
    let (cut, whole) = (hub.stream(), hub.stream());
    cut.create(Create { fragment: true, ..on("a", "b") });
    whole.create(on("a", "b"));
    assert!(next(&cut).created && next(&whole).created);
    let value = [b'x'; 400];
    let changes: Vec<Change<'_>> =
        [b"a1", b"a2", b"a3", b"a4", b"a5"].map(|key| (&key[..], Some(&value[..]))).to_vec();
    hub.publish(vec![fake.commit(&changes).unwrap(), fake.put("a", "")]);
    let response = next(&whole);
    assert_eq!((revisions(&response), response.fragment), (vec![2; 5], false));
    assert_eq!(revisions(&next(&whole)), [3]);
    let pieces = [next(&cut), next(&cut), next(&cut)];
    assert_eq!(pieces.each_ref().map(|piece| piece.fragment), [true, true, false]);
    assert_eq!(pieces.each_ref().map(revisions), [vec![2; 2], vec![2; 2], vec![2, 3]]);
    assert!(pieces.iter().all(|piece| piece.revision == 3));
}

#[test]
fn progress_comes_after_what_it_covers() {
    let (fake, hub) = hub(LIMITS);
    let stream = hub.stream();
    let progress = |revision| Response { watch_id: -1, revision, ..Response::default() };
    stream.request_progress();
    nothing(&stream);
    stream.create(on("a", ""));
    assert_eq!(next(&stream), created(0, 1));
    stream.request_progress();
    assert_eq!(next(&stream), progress(1));

    // Asked for before the hub knows of revision 2: answered when it has given that out.
    let late = fake.put("a", "1");
    stream.request_progress();
    nothing(&stream);
    hub.publish(vec![late]);
    assert_eq!(revisions(&next(&stream)), [2]);
    assert_eq!(next(&stream), progress(2));

    // Requests whose answers wait together are answered once.
    (0..5).for_each(|_| stream.request_progress());
    assert_eq!(next(&stream), progress(2));
    nothing(&stream);

    // A watcher of the future holds it back, and one that is over does not.
    stream.create(Create { start_revision: 4, ..on("b", "") });
    assert_eq!(next(&stream), created(1, 2));
    stream.request_progress();
    nothing(&stream);
    hub.publish(vec![fake.put("c", "1"), fake.put("c", "2")]);
    stream.request_progress();
    assert_eq!(next(&stream), progress(4));
    fake.compact(3);
    stream.create(Create { start_revision: 2, ..on("b", "") });
    assert_eq!(next(&stream), created(2, 4));
    assert_eq!(next(&stream).compact_revision, 3);
    stream.request_progress();
    assert_eq!(next(&stream), progress(4));
}

#[test]
fn quiet_watchers_are_told_that_nothing_happened() {
    let (fake, hub) = hub(LIMITS);
    let stream = hub.stream();
    stream.create(Create { progress_notify: true, ..on("a", "") });
    stream.create(Create { progress_notify: true, ..on("b", "") });
    stream.create(on("c", ""));
    (0..3).for_each(|_| assert!(next(&stream).created));
    hub.publish(vec![fake.put("a", "1")]);
    assert_eq!(revisions(&next(&stream)), [2]);
    hub.notify_progress();
    let progress = |watch_id| Response { watch_id, revision: 2, ..Response::default() };
    assert_eq!(next(&stream), progress(1));
    nothing(&stream);
    hub.notify_progress();
    assert_eq!([next(&stream), next(&stream)], [progress(0), progress(1)]);
    // One that waits is enough.
    (0..5).for_each(|_| hub.notify_progress());
    for revision in [3, 4] {
        hub.publish(vec![fake.put("z", "1")]);
        wait_delivered(&hub, revision);
    }
    assert_eq!(stream.backlog(), 2);
    assert_eq!([next(&stream).watch_id, next(&stream).watch_id], [0, 1]);
    stream.request_progress();
    let all = Response { watch_id: -1, revision: 4, ..Response::default() };
    assert_eq!(next(&stream), all);
    nothing(&stream);
}

#[test]
fn a_closed_hub_delivers_what_it_has() {
    let (fake, hub) = hub(LIMITS);
    let stream = hub.stream();
    stream.create(on("a", ""));
    hub.publish((0..300).map(|_| fake.put("a", "x")).collect());
    hub.close();
    assert!(next(&stream).created);
    let mut got = Vec::new();
    while got.len() < 300 {
        got.extend(revisions(&next(&stream)));
    }
    assert_eq!(stream.next(LONG), Err(Error::Stopped));
    assert_eq!(stream.next(LONG), Err(Error::Stopped));
    stream.create(on("a", ""));
    hub.publish(vec![fake.put("a", "x")]);
    assert_eq!(stream.next(LONG), Err(Error::Stopped));
    assert_eq!(hub.stream().next(LONG), Err(Error::Stopped));
}

#[test]
fn a_consumer_that_waits_learns_of_the_end() {
    let (_fake, hub) = hub(LIMITS);
    let stream = hub.stream();
    let waiting = std::thread::spawn(move || stream.next(Duration::MAX));
    std::thread::sleep(Duration::from_millis(10));
    drop(hub);
    assert_eq!(waiting.join().unwrap(), Err(Error::Stopped));
}

#[test]
fn a_store_that_cannot_be_read_ends_the_stream() {
    let (fake, hub) = hub(LIMITS);
    hub.publish(vec![fake.put("a", "1")]);
    let error = Error::Storage("a page is damaged".to_owned());
    let (past, now, plain) = (hub.stream(), hub.stream(), hub.stream());
    now.create(Create { prev_kv: true, ..on("a", "") });
    plain.create(on("a", ""));
    assert!(next(&now).created && next(&plain).created);
    fake.lock().failure = Some(error.clone());
    past.create(Create { start_revision: 1, ..on("a", "") });
    assert!(next(&past).created);
    assert_eq!(past.next(LONG), Err(error.clone()));
    hub.publish(vec![fake.put("a", "2")]);
    assert_eq!(now.next(LONG), Err(error));
    assert_eq!(revisions(&next(&plain)), [3]);
}

struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn it_can_be_polled() {
    let (fake, hub) = hub(LIMITS);
    let stream = hub.stream();
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&count));
    let mut context = Context::from_waker(&waker);
    assert!(stream.poll_next(&mut context).is_pending());
    stream.create(on("a", ""));
    assert_eq!(count.0.load(Ordering::SeqCst), 1);
    assert_eq!(stream.poll_next(&mut context), Poll::Ready(Ok(created(0, 1))));
    assert!(stream.poll_next(&mut context).is_pending());
    hub.publish(vec![fake.put("b", "1"), fake.put("a", "1")]);
    let start = Instant::now();
    while count.0.load(Ordering::SeqCst) < 2 {
        assert!(start.elapsed() < LONG, "nobody woke the consumer");
    }
    let Poll::Ready(Ok(response)) = stream.poll_next(&mut context) else { panic!("nothing") };
    assert_eq!(revisions(&response), [3]);
    assert!(stream.poll_next(&mut context).is_pending());
    hub.close();
    assert_eq!(count.0.load(Ordering::SeqCst), 3);
    assert_eq!(stream.poll_next(&mut context), Poll::Ready(Err(Error::Stopped)));
}
