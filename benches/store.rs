//! Speed and memory of the store, where the network has no part in it.
//!
//! `cargo bench --bench store` prints one line a figure, with the bar that it is held to where
//! there is one. Nothing here fails on a number. What is timed:
//!
//! - `index`: the index by itself, with keys like those of Kubernetes.
//! - `puts`: 64 threads that write 256 bytes each, on the disk below the target folder; against
//!   `fdatasync` in turns with writes of one page, by one thread.
//! - `ranges`: one key at a time, by one thread and by one a core.
//! - `list`: 10,000 keys of 1 KiB at once.
//! - `watch`: 1,000 watchers of one prefix, from the call of a put to the arrival of its event.
//! - `start`: opening the snapshot of `benches/offline.rs` (300,000 keys of 1 KiB, two revisions
//!   each), and memory with it loaded; against a real etcd on the same files.
//! - `dip`: writes while a compaction is worked off and while the database is rewritten, against
//!   those before and after, in `ETCDKIT_BENCH_TURNS` (2) turns.
//!
//! Words after `--` choose among these. `ETCDKIT_BENCH_INDEX_KEYS` (1,000,000),
//! `ETCDKIT_BENCH_KEYS` (300,000) and `ETCDKIT_BENCH_SECONDS` (5, of each phase) change the sizes.
//! The real etcd is the one of `tests/interop/build`, in `$ETCDKIT_INTEROP_BIN` or
//! `target/interop/bin`.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on may as well stop")]
#![allow(clippy::expect_used, clippy::panic, reason = "the same")]

mod support;

use std::fs::{self, File};
use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use etcdkit::etcd::apply::Latest;
use etcdkit::etcd::request::{Compaction, Put, Range, Span};
use etcdkit::etcd::revision::Revision;
use etcdkit::store::engine::{Options, Store};
use etcdkit::store::guard::{Caller, Quota};
use etcdkit::store::index::Index;
use etcdkit::store::watch::Create;
use support::{clean_up_when_stopped, ends_with_the_bench, make_snapshot, number, run};

const MIB: f64 = 1024.0 * 1024.0;
/// Names a directory that the bench, started by itself, opens and tells about.
const OPEN: &str = "ETCDKIT_BENCH_OPEN";
const WRITERS: u64 = 64;

type Part = fn(&Bench);

fn main() {
    if let Some(dir) = std::env::var_os(OPEN) {
        open_and_tell(Path::new(&dir));
        return;
    }
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with('-')).collect();
    let is_wanted = |name: &str| words.is_empty() || words.iter().any(|word| word == name);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    clean_up_when_stopped(folder.path());
    let bench = Bench {
        folder: folder.path().to_owned(),
        phase: Duration::from_secs(number("ETCDKIT_BENCH_SECONDS", 5).into()),
    };
    let parts: [(&str, Part); 7] = [
        ("index", |_| index()),
        ("puts", Bench::puts),
        ("ranges", Bench::ranges),
        ("list", Bench::list),
        ("watch", Bench::watch),
        ("start", Bench::start),
        ("dip", Bench::dip),
    ];
    for (name, part) in parts {
        if is_wanted(name) {
            part(&bench);
        }
    }
}

/// Prints a figure, and whether it is on the right side of its bar.
fn say(what: &str, value: f64, unit: &str, bar: Bar) {
    let verdict = match bar {
        Bar::None => String::new(),
        Bar::AtMost(bar) => format!("<= {bar} {}", if value <= bar { "ok" } else { "OVER" }),
        Bar::AtLeast(bar) => format!(">= {bar} {}", if value >= bar { "ok" } else { "UNDER" }),
    };
    let digits = if value < 100.0 { 2 } else { 0 };
    println!("{what:<52} {value:>12.digits$} {unit:<12} {verdict}");
}

enum Bar {
    None,
    AtMost(f64),
    AtLeast(f64),
}

fn per(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e9 / f64::from(u32::try_from(count).unwrap())
}

/// Numbers that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn throw(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn word(&mut self, len: usize) -> String {
        // The letters of generated names in Kubernetes.
        let letters: Vec<char> = "bcdfghjklmnpqrstvwxz2456789".chars().collect();
        (0..len).map(|_| letters[usize::try_from(self.throw(27)).unwrap()]).collect()
    }

    fn shuffle<T>(&mut self, things: &mut [T]) {
        for at in (1..things.len()).rev() {
            let other = self.throw(u64::try_from(at).unwrap() + 1);
            things.swap(at, usize::try_from(other).unwrap());
        }
    }
}

/// Keys of deployments, their pods and their events, as they come.
fn cluster_keys(count: usize) -> Vec<Vec<u8>> {
    let mut dice = Dice(88_172_645_463_325_252);
    let mut spaces = Vec::new();
    for number in 0..500 {
        spaces.push(format!("team-{}-{}", dice.word(5), number % 10));
    }
    let mut keys = Vec::new();
    while keys.len() < count {
        let space = &spaces[usize::try_from(dice.throw(500)).unwrap()];
        let app = format!("app-{}", dice.word(4));
        let set = dice.word(9);
        keys.push(format!("/registry/deployments/{space}/{app}"));
        keys.push(format!("/registry/replicasets/{space}/{app}-{set}"));
        keys.push(format!("/registry/configmaps/{space}/{app}-config"));
        for _ in 0..3 {
            let pod = format!("{app}-{set}-{}", dice.word(5));
            keys.push(format!("/registry/pods/{space}/{pod}"));
            for _ in 0..3 {
                let time = 0x17a0_0000_0000_0000 + dice.throw(1 << 48);
                keys.push(format!("/registry/events/{space}/{pod}.{time:016x}"));
            }
        }
    }
    keys.truncate(count);
    keys.into_iter().map(String::into_bytes).collect()
}

fn index() {
    let count = usize::try_from(number("ETCDKIT_BENCH_INDEX_KEYS", 1_000_000)).unwrap();
    let keys = cluster_keys(count);
    let key_bytes: usize = keys.iter().map(Vec::len).sum();
    let mut dice = Dice(1_234_567);
    let mut index = Index::default();
    let mut main = 1;
    let anon_before = memory(std::process::id()).anon;
    let began = Instant::now();
    for key in &keys {
        main += 1;
        let lease =
            if key.starts_with(b"/registry/events") { 0x694d_8a5f + main % 5000 } else { 0 };
        let modified = Revision::new(main, 0);
        index.put(key, Latest { create_revision: main, modified, version: 1, lease });
    }
    let inserting = per(began.elapsed(), count);
    let grown = memory(std::process::id()).anon - anon_before;
    say("index: length of a key", per_key(key_bytes, count), "bytes", Bar::None);
    say("index: memory a key, itself included", per_key(grown, count), "bytes", Bar::AtMost(100.0));
    say("index: insert", inserting, "ns", Bar::AtMost(700.0));

    let mut order: Vec<usize> = (0..count).collect();
    dice.shuffle(&mut order);
    // One after another, as a request brings its key along.
    let mut text = Vec::new();
    let mut ends = Vec::new();
    for at in &order {
        text.extend_from_slice(&keys[*at]);
        ends.push(text.len());
    }
    let mut start = 0;
    let began = Instant::now();
    for end in &ends {
        black_box(index.latest(&text[start..*end]).unwrap());
        start = *end;
    }
    say("index: newest record of a key", per(began.elapsed(), count), "ns", Bar::AtMost(300.0));

    let mut shown = 0;
    let began = Instant::now();
    index.each_latest(Span::From(b""), &mut |key, latest| {
        shown += usize::from(!black_box(key).is_empty() && black_box(latest).version > 0);
        ControlFlow::Continue(())
    });
    say("index: scan, a key", per(began.elapsed(), shown), "ns", Bar::None);

    let some = 100_000.min(count);
    let began = Instant::now();
    for at in &order[..some] {
        black_box(index.count(Span::Range(b"/registry/", &keys[*at])));
    }
    say("index: count of a range", per(began.elapsed(), some), "ns", Bar::AtMost(50_000.0));

    let began = Instant::now();
    for at in &order {
        main += 1;
        let modified = Revision::new(main, 0);
        index.put(&keys[*at], Latest { create_revision: 5, modified, version: 2, lease: 0 });
    }
    say("index: update", per(began.elapsed(), count), "ns", Bar::AtMost(700.0));
    let back = Revision::new(main - 1_000, 0);
    let began = Instant::now();
    black_box(index.count_before(Span::From(b""), back));
    say("index: count of all 1,000 revisions ago", per(began.elapsed(), 1), "ns", Bar::None);
    let began = Instant::now();
    let mut taken = 0;
    let mut longest = Duration::ZERO;
    loop {
        let step = Instant::now();
        let some = index.take_dead(main, 1_000).len();
        longest = longest.max(step.elapsed());
        taken += some;
        if some < 1_000 {
            break;
        }
    }
    say("index: row taken by a compaction", per(began.elapsed(), taken), "ns", Bar::None);
    say("index: longest step of 1,000 of these", longest.as_secs_f64() * 1e3, "ms", Bar::None);
    drop(index);

    // As the start reads a database: all keys, and all of them again.
    let mut rows: Vec<Vec<u8>> =
        (0..300_000).map(|key| format!("/bench/key-{key:09}").into_bytes()).collect();
    for name in ["in order", "shuffled"] {
        let mut index = Index::default();
        let mut main = 1;
        let began = Instant::now();
        for version in 1..=2 {
            for key in &rows {
                main += 1;
                let modified = Revision::new(main, 0);
                index.put(key, Latest { create_revision: 2, modified, version, lease: 0 });
            }
        }
        let what = format!("index: load of 300,000 keys twice, {name}");
        say(&what, began.elapsed().as_secs_f64(), "s", Bar::AtMost(0.3));
        dice.shuffle(&mut rows);
    }
}

fn per_key(bytes: usize, count: usize) -> f64 {
    f64::from(u32::try_from(bytes).unwrap()) / f64::from(u32::try_from(count).unwrap())
}

/// Memory of a process, in bytes.
struct Memory {
    anon: usize,
    all: usize,
}

fn memory(pid: u32) -> Memory {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let field = |name: &str| -> usize {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    };
    Memory { anon: field("RssAnon:"), all: field("VmRSS:") }
}

fn options() -> Options {
    Options::default().quota(Quota::Bytes(64 << 30))
}

fn put(store: &Store, key: &[u8], value: &[u8]) {
    let request = Put { key, value, ..Put::default() };
    store.put(&Caller::default(), request).unwrap();
}

/// A store with keys of 1 KiB.
fn filled(dir: &Path, count: u64) -> Store {
    let store = Store::open(dir, options()).unwrap();
    let value = vec![b'v'; 1024];
    scope(|scope| {
        for writer in 0..WRITERS {
            let (store, value) = (&store, &value);
            scope.spawn(move || {
                for key in (0..count).filter(|key| key % WRITERS == writer) {
                    put(store, format!("/bench/key-{key:09}").as_bytes(), value);
                }
            });
        }
    });
    store
}

/// What writers came to.
struct Written {
    /// Puts in a second.
    rate: f64,
    longest: Duration,
}

/// Writes with many threads until `work`, which goes on at the same time, is done.
fn write_during(store: &Store, value_bytes: usize, keys: u64, work: impl FnOnce()) -> Written {
    let value = vec![b'v'; value_bytes];
    let is_done = AtomicBool::new(false);
    let [puts, longest_us] = [AtomicU64::new(0), AtomicU64::new(0)];
    let mut time = Duration::ZERO;
    scope(|scope| {
        for writer in 0..WRITERS {
            let (value, is_done) = (&value, &is_done);
            let (puts, longest_us) = (&puts, &longest_us);
            scope.spawn(move || {
                let mut dice = Dice(writer + 1);
                while !is_done.load(Ordering::Relaxed) {
                    let key = format!("/bench/key-{:09}", dice.throw(keys));
                    let began = Instant::now();
                    put(store, key.as_bytes(), value);
                    let took = u64::try_from(began.elapsed().as_micros()).unwrap();
                    longest_us.fetch_max(took, Ordering::Relaxed);
                    puts.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let began = Instant::now();
        work();
        is_done.store(true, Ordering::Relaxed);
        time = began.elapsed();
    });
    let puts = f64::from(u32::try_from(puts.into_inner()).unwrap());
    let longest = Duration::from_micros(longest_us.into_inner());
    Written { rate: puts / time.as_secs_f64(), longest }
}

/// A server that ends with the bench.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Bench {
    folder: PathBuf,
    /// How long what has no end of its own is measured.
    phase: Duration,
}

impl Bench {
    fn dir(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Removes a directory that a part is done with.
    fn remove(&self, name: &str) {
        fs::remove_dir_all(self.dir(name)).unwrap();
    }

    fn puts(&self) {
        let file = File::create(self.dir("synced")).unwrap();
        let began = Instant::now();
        let mut syncs = 0_u32;
        while began.elapsed() < self.phase {
            file.write_all_at(&[7; 4096], u64::from(syncs) * 4096).unwrap();
            file.sync_data().unwrap();
            syncs += 1;
        }
        let syncs = f64::from(syncs) / began.elapsed().as_secs_f64();
        say("puts: writes of a page with fdatasync", syncs, "/s", Bar::None);
        let store = Store::open(&self.dir("puts"), options()).unwrap();
        let written = write_during(&store, 256, 1_000_000, || sleep(self.phase));
        say("puts: 64 threads, 256 bytes", written.rate, "/s", Bar::None);
        say("puts: longest", written.longest.as_secs_f64() * 1e3, "ms", Bar::None);
        store.close().unwrap();
        drop(store);
        self.remove("puts");
    }

    fn ranges(&self) {
        let store = filled(&self.dir("ranges"), 10_000);
        let cores = std::thread::available_parallelism().map_or(2, usize::from);
        for threads in [1, cores] {
            let reads = AtomicU64::new(0);
            let began = Instant::now();
            scope(|scope| {
                for thread in 0..threads {
                    let (store, reads) = (&store, &reads);
                    scope.spawn(move || {
                        let mut dice = Dice(u64::try_from(thread).unwrap() + 1);
                        while began.elapsed() < self.phase {
                            let key = format!("/bench/key-{:09}", dice.throw(10_000));
                            let request = Range { key: key.as_bytes(), ..Range::default() };
                            let answer = store.range(&Caller::default(), &request).unwrap();
                            assert_eq!(answer.body.kvs.len(), 1);
                            reads.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
            });
            let reads = f64::from(u32::try_from(reads.into_inner()).unwrap());
            let rate = reads / began.elapsed().as_secs_f64();
            say(&format!("ranges: one key, {threads} threads"), rate, "/s", Bar::None);
        }
        store.close().unwrap();
        drop(store);
        self.remove("ranges");
    }

    fn list(&self) {
        let store = filled(&self.dir("list"), 10_000);
        let request = Range { key: b"/bench/", range_end: b"/bench0", ..Range::default() };
        let mut times = Vec::new();
        let began = Instant::now();
        while began.elapsed() < self.phase {
            let one = Instant::now();
            let answer = store.range(&Caller::default(), &request).unwrap();
            assert_eq!(answer.body.kvs.len(), 10_000);
            times.push(one.elapsed().as_secs_f64() * 1e3);
        }
        say("list: 10,000 keys of 1 KiB", support::median(times), "ms", Bar::None);
        store.close().unwrap();
        drop(store);
        self.remove("list");
    }

    fn watch(&self) {
        let store = Store::open(&self.dir("watch"), options()).unwrap();
        let (streams, each) = (10, 100);
        let is_done = AtomicBool::new(false);
        let clock = Instant::now();
        let mut puts = 0;
        let mut late: Vec<f64> = Vec::new();
        scope(|scope| {
            let mut readers = Vec::new();
            for _ in 0..streams {
                let watch = store.watch(&Caller::default());
                for _ in 0..each {
                    watch.create(Create::default().key(b"/bench/").range_end(b"/bench0"));
                }
                let is_done = &is_done;
                readers.push(scope.spawn(move || {
                    let mut late = Vec::new();
                    while !is_done.load(Ordering::Relaxed) {
                        let next = watch.next(Duration::from_millis(100)).unwrap();
                        for (event, _) in next.into_iter().flat_map(|response| response.events) {
                            let record = event.kv.record();
                            let sent = u64::from_le_bytes(record.value[..8].try_into().unwrap());
                            let now = u64::try_from(clock.elapsed().as_micros()).unwrap();
                            late.push(f64::from(u32::try_from(now - sent).unwrap()) / 1e3);
                        }
                    }
                    late
                }));
            }
            sleep(Duration::from_millis(500));
            let began = Instant::now();
            // A put each millisecond.
            while began.elapsed() < self.phase {
                let mut value = vec![b'v'; 256];
                let now = u64::try_from(clock.elapsed().as_micros()).unwrap();
                value[..8].copy_from_slice(&now.to_le_bytes());
                put(&store, b"/bench/key", &value);
                puts += 1;
                sleep(Duration::from_millis(puts).saturating_sub(began.elapsed()));
            }
            sleep(Duration::from_secs(1));
            is_done.store(true, Ordering::Relaxed);
            late = readers.into_iter().flat_map(|reader| reader.join().unwrap()).collect();
        });
        late.sort_by(f64::total_cmp);
        let expected = usize::try_from(puts).unwrap() * streams * each;
        assert_eq!(late.len(), expected, "each watcher sees each put once");
        let rate = f64::from(u32::try_from(puts).unwrap()) / self.phase.as_secs_f64();
        say("watch: puts seen by 1,000 watchers", rate, "/s", Bar::None);
        say("watch: from put to event, median", late[late.len() / 2], "ms", Bar::None);
        let slow = late[late.len() - 1 - late.len() / 100];
        say("watch: from put to event, p99", slow, "ms", Bar::AtMost(10.0));
        store.close().unwrap();
        drop(store);
        self.remove("watch");
    }

    /// Makes data directories of the snapshot.
    fn restore(&self, names: &[&str]) {
        let snapshot = self.dir("bench.db");
        if !snapshot.exists() {
            make_snapshot(snapshot.to_str().unwrap(), number("ETCDKIT_BENCH_KEYS", 300_000));
        }
        for name in names {
            let mut command = Command::new(env!("CARGO_BIN_EXE_etcdkit"));
            command.args(["--audit-log", "audit", "--quiet", "snapshot", "restore", "bench.db"]);
            command.args(["--data-dir", name, "--no-bump"]);
            run(command.current_dir(&self.folder));
        }
    }

    fn start(&self) {
        self.restore(&["ours", "theirs"]);
        let [mut ours, mut theirs] = [Vec::new(), Vec::new()];
        let [mut our_memory, mut their_memory] = [[0.0; 2]; 2];
        let Some(etcd) = built("etcd-3.7") else {
            println!("start: NOT MEASURED: no etcd-3.7; tests/interop/build makes it");
            return;
        };
        // The first turn warms the page cache and does not count.
        for turn in 0..4 {
            let mut command = Command::new(std::env::current_exe().unwrap());
            let output = command.env(OPEN, self.dir("ours")).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            let told = String::from_utf8(output.stdout).unwrap();
            let told: Vec<f64> = told.split_whitespace().map(|n| n.parse().unwrap()).collect();
            our_memory = [told[1], told[2]];
            let (time, memory) = self.start_etcd(&etcd);
            their_memory = memory;
            eprintln!("ours {:.3} s, etcd {time:.3} s", told[0]);
            if turn > 0 {
                ours.push(told[0]);
                theirs.push(time);
            }
        }
        let [ours, theirs] = [ours, theirs].map(support::median);
        say("start: ours", ours, "s", Bar::None);
        say("start: etcd 3.7", theirs, "s", Bar::None);
        say("start: ratio", ours / theirs, "", Bar::AtMost(0.25));
        for (at, name) in ["RssAnon", "VmRSS"].into_iter().enumerate() {
            say(&format!("start: {name}, ours"), our_memory[at] / MIB, "MiB", Bar::None);
            say(&format!("start: {name}, etcd 3.7"), their_memory[at] / MIB, "MiB", Bar::None);
            let ratio = our_memory[at] / their_memory[at];
            say(&format!("start: {name}, ratio"), ratio, "", Bar::AtMost(0.4));
        }
        for name in ["ours", "theirs"] {
            self.remove(name);
        }
    }

    /// Starts a real etcd and waits until it serves; returns seconds, and bytes of memory.
    fn start_etcd(&self, etcd: &Path) -> (f64, [f64; 2]) {
        let held = [(); 2].map(|()| TcpListener::bind(("127.0.0.1", 0)).unwrap());
        let [client, peer] = held.map(|one| one.local_addr().unwrap().port());
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        let log = File::create(self.dir("log")).unwrap();
        let mut command = Command::new(etcd);
        command.args(["--data-dir", "theirs", "--quota-backend-bytes=8589934592"]);
        let (client_url, peer_url) = (url(client), url(peer));
        command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
        command.args(["--listen-peer-urls", &peer_url]);
        command.current_dir(&self.folder).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let began = Instant::now();
        let server = Server(command.spawn().unwrap());
        ends_with_the_bench(&server.0);
        while !is_healthy(client) {
            assert!(began.elapsed() < Duration::from_secs(120), "see {:?}", self.dir("log"));
            sleep(Duration::from_millis(5));
        }
        let time = began.elapsed().as_secs_f64();
        sleep(Duration::from_secs(1));
        let memory = memory(server.0.id());
        (time, [memory.anon, memory.all].map(|bytes| per_key(bytes, 1)))
    }

    fn dip(&self) {
        let keys = u64::from(number("ETCDKIT_BENCH_KEYS", 300_000)).min(100_000);
        let store = filled(&self.dir("dip"), keys);
        let caller = Caller::default();
        let compact = |revision| {
            store.compact(&caller, Compaction { revision, physical: true }).unwrap();
        };
        // What others do on the machine changes: each is held against what was before and after.
        for turn in 0..number("ETCDKIT_BENCH_TURNS", 2) {
            let alone = || write_during(&store, 1024, keys, || sleep(self.phase));
            let before = alone();
            let revision = store.revision();
            let compacting = timed(&store, keys, || compact(revision));
            let between = alone();
            // The copy is of what a compaction left; nobody writes meanwhile.
            let began = Instant::now();
            compact(store.revision());
            say("dip: compaction without writers", began.elapsed().as_secs_f64(), "s", Bar::None);
            let defragmenting = timed(&store, keys, || store.defragment(&caller).unwrap());
            let after = alone();
            let began = Instant::now();
            store.defragment(&caller).unwrap();
            say("dip: defrag without writers", began.elapsed().as_secs_f64(), "s", Bar::None);
            say("dip: puts, 64 threads, 1 KiB", between.rate, "/s", Bar::None);
            say("dip: longest put", between.longest.as_secs_f64() * 1e3, "ms", Bar::None);
            for (name, (during, time), around) in [
                ("compacting", compacting, [&before, &between]),
                ("defragmenting", defragmenting, [&between, &after]),
            ] {
                say(&format!("dip: {name} takes"), time.as_secs_f64(), "s", Bar::None);
                let left = during.rate * 2.0 / (around[0].rate + around[1].rate);
                say(&format!("dip: puts left while {name}"), left, "", Bar::AtLeast(0.95));
                let longest = during.longest.as_secs_f64() * 1e3;
                say(&format!("dip: longest put while {name}"), longest, "ms", Bar::None);
            }
            eprintln!("turn {turn} is over");
        }
        store.close().unwrap();
        drop(store);
        self.remove("dip");
    }
}

/// Writes during work, which is timed.
fn timed(store: &Store, keys: u64, work: impl FnOnce()) -> (Written, Duration) {
    let mut time = Duration::ZERO;
    let written = write_during(store, 1024, keys, || {
        let began = Instant::now();
        work();
        time = began.elapsed();
    });
    (written, time)
}

fn built(name: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/interop/bin");
    let folder = std::env::var_os("ETCDKIT_INTEROP_BIN").map_or(folder, PathBuf::from);
    Some(folder.join(name)).filter(|path| path.exists())
}

/// Asks a real etcd whether it serves.
fn is_healthy(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let request = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut answer = String::new();
    let asked = stream.write_all(request.as_bytes());
    asked.is_ok()
        && stream.read_to_string(&mut answer).is_ok()
        && answer.contains("\"health\":\"true\"")
}

/// Opens a store in a process of its own, and prints seconds and bytes of memory.
fn open_and_tell(dir: &Path) {
    let began = Instant::now();
    let store = Store::open(dir, options()).unwrap();
    let request = Range { key: b"/bench/key-000000000", ..Range::default() };
    let answer = store.range(&Caller::default(), &request).unwrap();
    assert_eq!(answer.body.kvs.len(), 1);
    let time = began.elapsed().as_secs_f64();
    sleep(Duration::from_secs(1));
    let memory = memory(std::process::id());
    println!("{time} {} {}", memory.anon, memory.all);
    store.close().unwrap();
}
