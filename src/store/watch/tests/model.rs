//! Chance against the guarantees: filter, order, once, whole revisions, progress that is true, the
//! records before, and an end that says why.

use std::collections::{BTreeSet, VecDeque};

use super::*;
use crate::etcd::request::span;

/// Numbers that look random (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    fn between(&mut self, first: i64, last: i64) -> i64 {
        first + self.below((last - first + 1) as u64) as i64
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}

const KEYS: [&str; 7] = ["a", "b", "ba", "bb", "bc", "c", "d"];

fn change(random: &mut Random, fake: &Fake) -> Option<Arc<Commit>> {
    let count = if random.chance(70) { 1 } else { random.between(2, 6) };
    let keys: BTreeSet<&str> = (0..count).map(|_| random.pick(&KEYS)).collect();
    let value = vec![b'v'; random.below(60) as usize];
    let changes: Vec<Change<'_>> = keys
        .into_iter()
        .map(|key| (key.as_bytes(), random.chance(75).then_some(value.as_slice())))
        .collect();
    fake.commit(&changes)
}

fn wish(random: &mut Random, revision: i64) -> Create {
    let (key, end) = random.pick(&[
        ("a", ""),
        ("b", ""),
        ("b", "c"),
        ("b", "c"),
        ("ba", "bc"),
        ("b", "\0"),
        ("", "\0"),
        ("", ""),
        ("c", "b"),
    ]);
    let start_revision = match random.below(10) {
        0..4 => 0,
        4..8 => random.between(1, revision),
        8 => random.between(revision, revision + 10),
        _ => random.between(-1, revision + 2),
    };
    Create {
        watch_id: if random.chance(60) { 0 } else { random.between(-2, 9) },
        start_revision,
        prev_kv: random.chance(50),
        no_put: random.chance(15),
        no_delete: random.chance(15),
        progress_notify: random.chance(40),
        fragment: random.chance(40),
        ..on(key, end)
    }
}

/// What one watcher is to get and got.
#[derive(Debug)]
struct Seen {
    create: Create,
    next: i64,
    /// Commits that are dealt with.
    at: usize,
    last: i64,
    is_over: bool,
    /// Pieces of a response that is not complete.
    pieces: Vec<(Event, Option<Kv>)>,
}

impl Seen {
    fn wants(&self, event: &Event) -> bool {
        let key = if self.create.key.is_empty() { b"\0".as_slice() } else { &self.create.key };
        span(key, &self.create.range_end).contains(&event.key)
            && !(if event.is_delete { self.create.no_delete } else { self.create.no_put })
            && event.revision.main >= self.next
    }

    /// Takes out what it is to get up to a revision.
    fn expect(&mut self, kept: &Kept, up_to: i64) -> Vec<Event> {
        let rest = &kept.commits[self.at..];
        let count = rest.partition_point(|commit| commit.revision <= up_to);
        self.at += count;
        let events = rest[..count].iter().flat_map(|commit| commit.events.iter());
        events.filter(|event| self.wants(event)).cloned().collect()
    }
}

/// A create, the revisions before and after it, and the id it is to get or why not.
type Asked = (Create, (i64, i64), Result<i64, &'static str>);

/// A stream and what is known of it.
struct Watched {
    stream: Stream,
    /// Answers to creates that are to come.
    answers: VecDeque<Asked>,
    cancels: VecDeque<i64>,
    taken: BTreeSet<i64>,
    next_id: i64,
    seen: BTreeMap<i64, Seen>,
    header: i64,
    in_pieces: Option<i64>,
    progress: i64,
    got: usize,
}

impl Watched {
    fn new(hub: &Hub) -> Self {
        Self {
            stream: hub.stream(),
            answers: VecDeque::new(),
            cancels: VecDeque::new(),
            taken: BTreeSet::new(),
            next_id: 0,
            seen: BTreeMap::new(),
            header: 0,
            in_pieces: None,
            progress: 0,
            got: 0,
        }
    }

    fn create(&mut self, fake: &Fake, create: Create) {
        let answer = self.answer(&create);
        let before = fake.revision();
        self.stream.create(create.clone());
        self.answers.push_back((create, (before, fake.revision()), answer));
    }

    fn answer(&mut self, create: &Create) -> Result<i64, &'static str> {
        if create.start_revision < 0 {
            return Err("etcdserver: mvcc: required revision has been compacted");
        }
        if create.key > create.range_end && create.range_end.len() == 1 && create.range_end != [0] {
            return Err("mvcc: watcher range is empty");
        }
        let mut id = create.watch_id;
        if id == -1 || id != 0 && self.taken.contains(&id) {
            return Err("mvcc: duplicate watch ID provided on the WatchStream");
        }
        if id == 0 {
            while self.taken.contains(&self.next_id) {
                self.next_id += 1;
            }
            id = self.next_id;
            self.next_id += 1;
        }
        self.taken.insert(id);
        Ok(id)
    }

    fn cancel(&mut self, watch_id: i64) {
        self.stream.cancel(watch_id);
        if self.taken.remove(&watch_id) {
            self.cancels.push_back(watch_id);
        }
    }

    /// Takes a response if there is one, and holds it against everything that is known.
    fn take(&mut self, fake: &Fake, limit: Duration) -> bool {
        let Some(response) = self.stream.next(limit).unwrap() else { return false };
        self.check(&fake.lock(), response);
        true
    }

    fn check(&mut self, kept: &Kept, response: Response) {
        assert!(response.revision <= kept.revision, "{response:?}");
        if response.compact_revision == 0 {
            assert!(self.header <= response.revision, "{} then {response:?}", self.header);
            self.header = response.revision;
        }
        if let Some(id) = self.in_pieces {
            assert_eq!((id, response.events.is_empty()), (response.watch_id, false));
        }
        if response.created {
            self.check_created(kept, response);
        } else if response.canceled {
            self.check_canceled(kept, &response);
        } else if response.events.is_empty() {
            self.check_progress(kept, &response);
        } else {
            self.check_events(kept, response);
        }
    }

    fn check_created(&mut self, kept: &Kept, response: Response) {
        let (create, (before, after), answer) = self.answers.pop_front().unwrap();
        let revision = response.revision;
        assert!((before..=after).contains(&revision), "{before} to {after}: {response:?}");
        let id = match answer {
            Ok(id) => id,
            Err(reason) => return assert_eq!(response, refused(revision, reason)),
        };
        assert_eq!(response, created(id, revision));
        let next = if create.start_revision == 0 { revision + 1 } else { create.start_revision };
        let at = kept.commits.partition_point(|commit| commit.revision < next);
        let seen = Seen { create, next, at, last: 0, is_over: false, pieces: Vec::new() };
        assert!(self.seen.insert(id, seen).is_none(), "two watchers {id}");
    }

    fn check_canceled(&mut self, kept: &Kept, response: &Response) {
        let mut wanted = Response { canceled: true, ..Response::default() };
        if response.compact_revision == 0 {
            wanted.watch_id = self.cancels.pop_front().unwrap();
            wanted.revision = response.revision;
            assert!(self.seen.remove(&wanted.watch_id).is_some(), "{response:?}");
        } else {
            let seen = self.seen.get_mut(&response.watch_id).unwrap();
            assert!(!seen.is_over, "{response:?}");
            assert!(response.compact_revision <= kept.compacted, "{response:?}");
            assert!(response.compact_revision > seen.last.max(seen.next), "{response:?} {seen:?}");
            seen.is_over = true;
            wanted.watch_id = response.watch_id;
            wanted.compact_revision = response.compact_revision;
        }
        assert_eq!(*response, wanted);
    }

    fn check_progress(&mut self, kept: &Kept, response: &Response) {
        let (watch_id, revision) = (response.watch_id, response.revision);
        assert_eq!(*response, Response { watch_id, revision, ..Response::default() });
        let mut count = 0;
        for (id, seen) in self.seen.iter_mut().filter(|(_, seen)| !seen.is_over) {
            if watch_id != -1 && watch_id != *id {
                continue;
            }
            count += 1;
            assert!(seen.create.start_revision <= revision, "{response:?} {seen:?}");
            assert_eq!(seen.expect(kept, revision), [], "overtaken by {response:?}: {seen:?}");
            assert!(watch_id == -1 || seen.create.progress_notify, "{response:?} {seen:?}");
        }
        assert!(count > 0, "{response:?}");
        if watch_id == -1 {
            self.progress = revision;
        }
    }

    fn check_events(&mut self, kept: &Kept, response: Response) {
        self.got += response.events.len();
        let seen = self.seen.get_mut(&response.watch_id).unwrap();
        assert!(!seen.is_over, "{response:?}");
        let last = response.events.last().unwrap().0.revision.main;
        assert!(last <= response.revision, "{response:?}");
        for (event, previous) in &response.events {
            let mut wanted = kept.before(&event.key, event.revision.main);
            if !seen.create.prev_kv || event.revision.main <= kept.compacted && previous.is_none() {
                wanted = None;
            }
            assert_eq!(*previous, wanted, "{event:?}");
        }
        assert!(!response.fragment || seen.create.fragment);
        self.in_pieces = response.fragment.then_some(response.watch_id);
        seen.pieces.extend(response.events);
        if !response.fragment {
            let wanted = seen.expect(kept, last);
            let got: Vec<Event> = seen.pieces.drain(..).map(|(event, _)| event).collect();
            assert_eq!(got, wanted, "{seen:?}");
            seen.last = last;
        }
    }

    /// Everything was delivered.
    fn check_complete(&mut self, kept: &Kept) {
        assert!(self.answers.is_empty() && self.cancels.is_empty() && self.in_pieces.is_none());
        for seen in self.seen.values_mut().filter(|seen| !seen.is_over) {
            assert_eq!(seen.expect(kept, i64::MAX), [], "not delivered: {seen:?}");
        }
    }

    fn has_live(&self) -> bool {
        self.seen.values().any(|seen| !seen.is_over)
    }
}

/// What came of a run, so that a test sees that its cases were there.
#[derive(Debug, Default)]
struct Run {
    events: usize,
    slow: usize,
    overtaken: usize,
    progress: usize,
}

fn run(seed: u64, steps: usize) -> Run {
    let mut random = Random(seed);
    let limits = Limits {
        response_bytes: random.pick(&[120, 500, 1 << 20]),
        waiting_max: random.pick(&[1, 2, 5, 50, 1000]),
    };
    let (fake, hub) = hub(limits);
    (0..random.below(20)).for_each(|_| drop(change(&mut random, &fake)));
    let hub = if random.chance(50) { hub } else { Hub::new(Arc::<Fake>::clone(&fake), limits) };
    let known = hub.counts().revision;
    let mut late: VecDeque<_> =
        fake.lock().commits.iter().filter(|commit| commit.revision > known).cloned().collect();
    let mut watched: Vec<Watched> = (0..3).map(|_| Watched::new(&hub)).collect();
    let mut run = Run::default();
    for _ in 0..steps {
        let number = random.below(3) as usize;
        let one = &mut watched[number];
        let revision = fake.revision();
        match random.below(100) {
            0..30 => late.extend(change(&mut random, &fake)),
            30..50 => {
                let count = random.below(late.len() as u64 + 1) as usize;
                hub.publish(late.drain(..count).collect());
            }
            50..62 => one.create(&fake, wish(&mut random, revision)),
            62..66 => one.cancel(random.between(-2, 9)),
            66..70 => one.stream.request_progress(),
            70..72 => hub.notify_progress(),
            72..74 => {
                let first = fake.compact_revision().max(0);
                fake.compact(random.between(first, revision));
            }
            74 if random.chance(20) => *one = Watched::new(&hub),
            75..80 => std::thread::sleep(Duration::from_micros(200)),
            _ => {
                for _ in 0..random.below(8) {
                    one.take(&fake, Duration::ZERO);
                }
            }
        }
        run.slow += hub.counts().slow_watchers;
    }
    hub.publish(late.drain(..).collect());
    let start = Instant::now();
    loop {
        let counts = hub.counts();
        let is_done = counts.revision == fake.revision() && counts.slow_watchers == 0;
        let took = watched.iter_mut().filter(|one| one.stream.backlog() > 0).count();
        for one in &mut watched {
            while one.take(&fake, Duration::ZERO) {}
        }
        if is_done && took == 0 {
            break;
        }
        assert!(start.elapsed() < LONG, "not over: {counts:?}");
    }
    for one in &mut watched {
        one.check_complete(&fake.lock());
        let now = fake.revision();
        let is_later = |seen: &Seen| !seen.is_over && seen.create.start_revision > now;
        one.stream.request_progress();
        if one.has_live() && !one.seen.values().any(is_later) {
            while one.take(&fake, Duration::ZERO) {}
            assert_eq!(one.progress, now);
            run.progress += 1;
        }
        run.events += one.got;
        run.overtaken += one.seen.values().filter(|seen| seen.is_over).count();
    }
    run
}

#[test]
fn chance_finds_no_gap_no_repeat_and_no_untrue_progress() {
    let mut all = Run::default();
    for seed in 0..150 {
        let run = std::panic::catch_unwind(|| run(seed, 300));
        let run = run.unwrap_or_else(|_| panic!("seed {seed}"));
        all.events += run.events;
        all.slow += run.slow;
        all.overtaken += run.overtaken;
        all.progress += run.progress;
    }
    // The cases are there that this is about.
    assert!(all.events > 10_000 && all.slow > 1000, "{all:?}");
    assert!(all.overtaken > 20 && all.progress > 100, "{all:?}");
}

/// Writes, compacts and asks for progress until it has written so much.
fn write(fake: &Fake, hub: &Hub, revisions: i64, mut random: Random) {
    let mut late = Vec::new();
    while fake.revision() < revisions {
        late.extend(change(&mut random, fake));
        if random.chance(60) {
            hub.publish(std::mem::take(&mut late));
        }
        match random.below(200) {
            0 => {
                let last = fake.revision();
                let first = fake.compact_revision().max(last - 300).max(0);
                fake.compact(random.between(first, last.max(first)));
            }
            1 => hub.notify_progress(),
            2..4 => std::thread::sleep(Duration::from_micros(300)),
            _ => {}
        }
    }
    hub.publish(late);
}

/// Reads, sometimes slowly, creates and cancels; then everything up to the last revision.
fn read(fake: &Fake, hub: &Hub, revisions: i64, mut random: Random) -> usize {
    let mut one = Watched::new(hub);
    while fake.revision() < revisions {
        match random.below(100) {
            0..3 => {
                let create = wish(&mut random, fake.revision());
                one.create(fake, Create { start_revision: create.start_revision.max(0), ..create });
            }
            3 => one.cancel(random.between(-2, 9)),
            4..8 => one.stream.request_progress(),
            8 => std::thread::sleep(Duration::from_micros(random.below(3000))),
            _ => drop(one.take(fake, Duration::from_micros(100))),
        }
    }
    one.create(fake, on("", "\0"));
    let start = Instant::now();
    let last = loop {
        let last = fake.revision();
        if one.progress == last && one.answers.is_empty() {
            break last;
        }
        one.stream.request_progress();
        while one.take(fake, Duration::from_millis(1)) {}
        let later = one.seen.iter().filter(|(_, seen)| seen.create.start_revision > last);
        let later: Vec<i64> = later.map(|(id, _)| *id).collect();
        later.into_iter().for_each(|id| one.cancel(id));
        if !one.has_live() {
            one.create(fake, Create { start_revision: last, ..on("", "\0") });
        }
        assert!(start.elapsed() < LONG, "{} of {last}: {:?}", one.progress, hub.counts());
    };
    while one.take(fake, Duration::ZERO) {}
    assert_eq!(last, fake.revision());
    one.check_complete(&fake.lock());
    one.got
}

#[test]
fn threads_that_write_read_and_compact_at_once() {
    for seed in 0..6 {
        let limits = Limits { response_bytes: 600, waiting_max: [1, 4, 200][seed as usize % 3] };
        let (fake, hub) = hub(limits);
        let revisions = 2000;
        std::thread::scope(|scope| {
            let (fake, hub) = (&fake, &hub);
            let readers: Vec<_> = (0..4)
                .map(|number| {
                    let random = Random(seed * 100 + number);
                    scope.spawn(move || read(fake, hub, revisions, random))
                })
                .collect();
            write(fake, hub, revisions, Random(seed * 100 + 99));
            let got: usize = readers.into_iter().map(|reader| reader.join().unwrap()).sum();
            assert!(got > 1000, "{got}");
        });
    }
}
