//! The store as a server against a real etcd: speed, memory and processor time, with etcd's own
//! benchmark as the client.
//!
//! `cargo bench --bench serve` runs etcd 3.7 and `etcdkit serve` in turns, on the same disk, and
//! prints the medians of five pairs, the median of their ratios with the smallest and the largest,
//! and the bar where there is one. A line says `unclear` when some pairs are on one side of the bar
//! and some on the other. Nothing here fails on a number. What is timed:
//!
//! - `puts`: 64 clients that put 256 bytes each, keys at random out of a million.
//! - `ranges`: one key, 64 clients.
//! - `list`: 10,000 keys of 1 KiB at once, four clients, and the memory that the server takes.
//! - `start`: from the start of the program to its first answer, on a database of about 800 MB
//!   (300,000 keys of 1 KiB, two revisions each), and memory with it loaded.
//! - `dip`: the writes of 64 clients while that database is compacted and then rewritten, against
//!   those before, and the longest time in which no write ended.
//!
//! Words after `--` choose among these. `ETCDKIT_BENCH_PAIRS` (5), `ETCDKIT_BENCH_KEYS` (300,000),
//! `ETCDKIT_BENCH_PUTS` (50,000) and `ETCDKIT_BENCH_SECONDS` (5, of each phase of writes) change
//! the sizes. The programs are those of `tests/interop/build benchmark`, in `$ETCDKIT_INTEROP_BIN`
//! or `target/interop/bin`. Takes about four times the database below the target folder, and leaves
//! nothing behind.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on may as well stop")]
#![allow(clippy::expect_used, clippy::panic, reason = "the same")]
#![allow(clippy::indexing_slicing, reason = "the same")]

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use etcd_client::{Client, CompactionOptions, Txn, TxnOp};
use rustix::process::{Pid, Signal, kill_process};
use support::{clean_up_when_stopped, ends_with_the_bench, make_snapshot, median, number, run};

const CLIENTS: u32 = 64;
const CONNECTIONS: u32 = 8;
/// Longest wait for a server to answer, or to end.
const PATIENCE: Duration = Duration::from_secs(180);

/// Who serves.
#[derive(Clone, Copy, PartialEq)]
enum Side {
    Ours,
    Etcd,
}

const SIDES: [Side; 2] = [Side::Ours, Side::Etcd];

/// What a figure is held to: the ratio of both sides, or ours by itself.
#[derive(Clone, Copy)]
enum Bar {
    None,
    RatioAtMost(f64),
    RatioAtLeast(f64),
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    fn judge(self, pairs: &[[f64; 2]]) -> String {
        let (what, bar, is_ratio, is_most) = match self {
            Self::None => return String::new(),
            Self::RatioAtMost(bar) => ("<=", bar, true, true),
            Self::RatioAtLeast(bar) => (">=", bar, true, false),
            Self::AtMost(bar) => ("ours <=", bar, false, true),
            Self::AtLeast(bar) => ("ours >=", bar, false, false),
        };
        let value = |pair: &[f64; 2]| if is_ratio { pair[0] / pair[1] } else { pair[0] };
        let is_met = |value: f64| if is_most { value <= bar } else { value >= bar };
        let met = pairs.iter().filter(|pair| is_met(value(pair))).count();
        let word = match met {
            0 => "MISSED",
            met if met == pairs.len() => "ok",
            _ => "unclear",
        };
        format!("{what} {bar} {word}")
    }
}

/// One figure of both sides, as it was in each pair.
#[derive(Default)]
struct Figure {
    pairs: Vec<[f64; 2]>,
}

/// Figures by name, in the order in which they came up.
#[derive(Default)]
struct Table {
    rows: Vec<(String, &'static str, Figure)>,
}

impl Table {
    fn put(&mut self, name: &str, unit: &'static str, pair: [f64; 2]) {
        eprintln!("  {name}: ours {:.2}, etcd {:.2} {unit}", pair[0], pair[1]);
        if !self.rows.iter().any(|(other, ..)| other == name) {
            self.rows.push((name.to_owned(), unit, Figure::default()));
        }
        let row = self.rows.iter_mut().find(|(other, ..)| other == name).unwrap();
        row.2.pairs.push(pair);
    }

    /// Prints a line for each, with the bars of some.
    fn print(&self, bars: &[(&str, Bar)]) {
        for (name, unit, figure) in &self.rows {
            let [ours, etcd] = [0, 1].map(|side| {
                let side = figure.pairs.iter().map(|pair| pair[side]).collect();
                digits(median(side))
            });
            let mut ratios: Vec<f64> = figure.pairs.iter().map(|pair| pair[0] / pair[1]).collect();
            ratios.sort_by(f64::total_cmp);
            let (least, most) = (ratios[0], ratios[ratios.len() - 1]);
            let bar = bars.iter().find(|(other, _)| other == name).map_or(Bar::None, |bar| bar.1);
            let verdict = bar.judge(&figure.pairs);
            let ratio = median(ratios);
            println!(
                "{name:<46} ours {ours:>9}  etcd {etcd:>9} {unit:<6} \
                 ratio {ratio:.2} ({least:.2} to {most:.2}) {verdict}"
            );
        }
    }
}

fn digits(value: f64) -> String {
    if value < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

/// A server that ends with the bench.
struct Server {
    child: Child,
    client: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Memory of a process, in MiB.
#[derive(Clone, Copy, Default)]
struct Memory {
    anon: f64,
    all: f64,
}

impl Server {
    fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.client)
    }

    fn memory(&self) -> Memory {
        let text = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let field = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
        };
        Memory { anon: field("RssAnon:"), all: field("VmRSS:") }
    }

    /// Seconds on a processor so far.
    fn cpu(&self) -> f64 {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The name of the program, which comes second, may have anything in it.
        let (_, fields) = text.rsplit_once(") ").unwrap();
        let ticks = fields.split(' ').skip(11).take(2).map(|field| field.parse::<f64>().unwrap());
        // Linux tells these in hundredths, whatever its own clock is.
        ticks.sum::<f64>() / 100.0
    }

    /// Asks it to end, and waits until it has.
    fn stop(mut self) {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        let began = Instant::now();
        while self.child.try_wait().unwrap().is_none() && began.elapsed() < PATIENCE {
            sleep(Duration::from_millis(10));
        }
    }

    /// Runs work while its memory is looked at; returns the most that it had.
    fn peak<T>(&self, work: impl FnOnce() -> T) -> (T, Memory) {
        let is_done = AtomicBool::new(false);
        scope(|scope| {
            let watch = scope.spawn(|| {
                let mut peak = Memory::default();
                while !is_done.load(Ordering::Relaxed) {
                    let now = self.memory();
                    peak.anon = peak.anon.max(now.anon);
                    peak.all = peak.all.max(now.all);
                    sleep(Duration::from_millis(2));
                }
                peak
            });
            let result = work();
            is_done.store(true, Ordering::Relaxed);
            (result, watch.join().unwrap())
        })
    }
}

type Part = fn(&Bench, &mut Table);

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with('-')).collect();
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/interop/bin");
    let built = std::env::var_os("ETCDKIT_INTEROP_BIN").map_or(built, PathBuf::from);
    if ["etcd-3.7", "benchmark"].iter().any(|name| !built.join(name).exists()) {
        println!(
            "NOT MEASURED: no etcd-3.7 and benchmark; tests/interop/build benchmark makes them"
        );
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    clean_up_when_stopped(folder.path());
    let bench = Bench {
        built,
        folder: folder.path().to_owned(),
        runtime: tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap(),
        pairs: number("ETCDKIT_BENCH_PAIRS", 5).max(1),
        keys: number("ETCDKIT_BENCH_KEYS", 300_000),
        puts: number("ETCDKIT_BENCH_PUTS", 50_000),
        phase: Duration::from_secs(number("ETCDKIT_BENCH_SECONDS", 5).into()),
    };
    type Named<'a> = (&'a str, Part, &'a [(&'a str, Bar)]);
    let parts: [Named<'_>; 5] = [
        (
            "puts",
            Bench::puts,
            &[
                ("puts: rate", Bar::RatioAtLeast(2.0)),
                ("puts: processor time of the server, each", Bar::RatioAtMost(0.4)),
            ],
        ),
        ("ranges", Bench::ranges, &[("ranges: rate", Bar::RatioAtLeast(2.0))]),
        (
            "list",
            Bench::list,
            &[
                ("list: rate", Bar::RatioAtLeast(3.0)),
                ("list: most RssAnon", Bar::RatioAtMost(0.3)),
                ("list: most VmRSS", Bar::RatioAtMost(0.3)),
            ],
        ),
        (
            "start",
            Bench::start,
            &[
                ("start: to the first answer", Bar::RatioAtMost(0.25)),
                ("start: RssAnon", Bar::RatioAtMost(0.4)),
                ("start: VmRSS", Bar::RatioAtMost(0.4)),
            ],
        ),
        (
            "dip",
            Bench::dip,
            &[
                ("dip: part left compacting", Bar::AtLeast(0.95)),
                ("dip: part left defragmenting", Bar::AtLeast(0.95)),
                ("dip: longest silence compacting", Bar::AtMost(20.0)),
                ("dip: longest silence defragmenting", Bar::AtMost(20.0)),
            ],
        ),
    ];
    for (name, part, bars) in parts {
        if words.is_empty() || words.iter().any(|word| word == name) {
            eprintln!("{name}");
            let mut table = Table::default();
            part(&bench, &mut table);
            table.print(bars);
        }
    }
}

struct Bench {
    built: PathBuf,
    folder: PathBuf,
    runtime: tokio::runtime::Runtime,
    pairs: u32,
    keys: u32,
    puts: u32,
    phase: Duration,
}

impl Bench {
    fn dir(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Both sides in turns, ours first and last by turns; what comes back is ours and etcd's.
    fn pairs<T>(&self, mut one: impl FnMut(Side) -> T) -> Vec<[T; 2]> {
        let mut pairs = Vec::new();
        for turn in 0..self.pairs {
            let first = one(SIDES[(turn % 2) as usize]);
            let second = one(SIDES[1 - (turn % 2) as usize]);
            pairs.push(if turn % 2 == 0 { [first, second] } else { [second, first] });
        }
        pairs
    }

    /// Starts a server on a directory and waits for its first answer; returns seconds, too.
    fn start_on(&self, side: Side, data_dir: &str) -> (Server, f64) {
        let held = [(); 2].map(|()| TcpListener::bind(("127.0.0.1", 0)).unwrap());
        let [client, peer] = held.map(|one| one.local_addr().unwrap().port());
        let log = File::options().create(true).append(true).open(self.dir("log")).unwrap();
        let mut command = match side {
            Side::Ours => Command::new(env!("CARGO_BIN_EXE_etcdkit")),
            Side::Etcd => Command::new(self.built.join("etcd-3.7")),
        };
        if side == Side::Ours {
            command.arg("serve");
        }
        let (client_url, peer_url) =
            (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
        command.args(["--data-dir", data_dir, "--quota-backend-bytes=8589934592"]);
        command.args(["--listen-client-urls", &client_url, "--advertise-client-urls", &client_url]);
        command.args(["--listen-peer-urls", &peer_url]);
        command.current_dir(&self.folder).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        let began = Instant::now();
        let mut server = Server { child: command.spawn().unwrap(), client };
        ends_with_the_bench(&server.child);
        while !is_healthy(client) {
            let ended = server.child.try_wait().unwrap();
            assert!(ended.is_none() && began.elapsed() < PATIENCE, "{}", self.end_of_log());
            sleep(Duration::from_millis(1));
        }
        (server, began.elapsed().as_secs_f64())
    }

    fn end_of_log(&self) -> String {
        let log = fs::read_to_string(self.dir("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    /// A server on a new directory, which is removed after the work.
    fn on_new<T>(&self, side: Side, work: impl FnOnce(&Server) -> T) -> T {
        let (server, _) = self.start_on(side, "new");
        let result = work(&server);
        drop(server);
        fs::remove_dir_all(self.dir("new")).unwrap();
        result
    }

    /// Runs etcd's benchmark; returns requests a second.
    fn benchmark(&self, server: &Server, clients: u32, words: &[&str]) -> f64 {
        let mut command = Command::new(self.built.join("benchmark"));
        let connections = clients.min(CONNECTIONS).to_string();
        command.args(["--endpoints", &server.endpoint(), "--precise"]);
        command.args(["--clients", &clients.to_string(), "--conns", &connections]).args(words);
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{words:?}: {text}\n{output:?}");
        assert!(!text.contains("Error distribution"), "{words:?}: {text}");
        let line = text.lines().find_map(|line| line.trim().strip_prefix("Requests/sec:"));
        line.unwrap_or_else(|| panic!("{text}")).trim().parse().unwrap()
    }

    /// Puts keys of 1 KiB.
    fn fill(&self, server: &Server, keys: u32) {
        self.runtime.block_on(async {
            let mut client = Client::connect([server.endpoint()], None).await.unwrap();
            for first in (0..keys).step_by(100) {
                let put = |key| TxnOp::put(format!("/bench/key-{key:09}"), vec![b'v'; 1024], None);
                let puts: Vec<_> = (first..keys.min(first + 100)).map(put).collect();
                client.txn(Txn::new().and_then(puts)).await.unwrap();
            }
        });
    }

    fn puts(&self, table: &mut Table) {
        let total = self.puts;
        let pairs = self.pairs(|side| {
            self.on_new(side, |server| {
                let count = total.to_string();
                let put = ["put", "--val-size=256", "--key-space-size=1000000"];
                self.benchmark(server, CLIENTS, &[&put[..], &["--total=2000"]].concat());
                let before = server.cpu();
                let words = [&put[..], &["--total", &count]].concat();
                let rate = self.benchmark(server, CLIENTS, &words);
                let cpu = (server.cpu() - before) * 1e6 / f64::from(total);
                let alone = self.benchmark(server, 1, &[&put[..], &["--total=1000"]].concat());
                [rate, cpu, alone]
            })
        });
        for [ours, etcd] in pairs {
            table.put("puts: rate", "/s", [ours[0], etcd[0]]);
            let name = "puts: processor time of the server, each";
            table.put(name, "us", [ours[1], etcd[1]]);
            table.put("puts: rate of one client", "/s", [ours[2], etcd[2]]);
        }
    }

    fn ranges(&self, table: &mut Table) {
        let total = self.puts * 2;
        let pairs = self.pairs(|side| {
            self.on_new(side, |server| {
                self.fill(server, 10_000);
                let before = server.cpu();
                let words = ["range", "/bench/key-000005000", "--total", &total.to_string()];
                let rate = self.benchmark(server, CLIENTS, &words);
                let cpu = (server.cpu() - before) * 1e6 / f64::from(total);
                [
                    rate,
                    cpu,
                    self.benchmark(server, CLIENTS, &[&words[..], &["--consistency=s"]].concat()),
                ]
            })
        });
        for [ours, etcd] in pairs {
            table.put("ranges: rate", "/s", [ours[0], etcd[0]]);
            let name = "ranges: processor time of the server, each";
            table.put(name, "us", [ours[1], etcd[1]]);
            table.put("ranges: rate, serializable", "/s", [ours[2], etcd[2]]);
        }
    }

    fn list(&self, table: &mut Table) {
        let pairs = self.pairs(|side| {
            self.on_new(side, |server| {
                self.fill(server, 10_000);
                let words = ["range", "/bench/", "--prefix", "--total=200"];
                let before = server.cpu();
                let (rate, peak) = server.peak(|| self.benchmark(server, 4, &words));
                let cpu = (server.cpu() - before) * 1e3 / 200.0;
                (rate, cpu, peak)
            })
        });
        for [ours, etcd] in pairs {
            table.put("list: rate", "/s", [ours.0, etcd.0]);
            table.put("list: processor time of the server, each", "ms", [ours.1, etcd.1]);
            table.put("list: most RssAnon", "MiB", [ours.2.anon, etcd.2.anon]);
            table.put("list: most VmRSS", "MiB", [ours.2.all, etcd.2.all]);
        }
    }

    /// Makes a data directory of the snapshot.
    fn restore(&self, name: &str) {
        let snapshot = self.dir("bench.db");
        if !snapshot.exists() {
            make_snapshot(snapshot.to_str().unwrap(), self.keys);
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_etcdkit"));
        command.args(["--audit-log", "audit", "--quiet", "snapshot", "restore", "bench.db"]);
        command.args(["--data-dir", name, "--no-bump"]);
        run(command.current_dir(&self.folder));
    }

    fn start(&self, table: &mut Table) {
        let name = |side| if side == Side::Ours { "ours" } else { "etcd" };
        for side in SIDES {
            self.restore(name(side));
            // Warms the page cache, and lets each have the directory in its own way.
            self.start_on(side, name(side)).0.stop();
        }
        let pairs = self.pairs(|side| {
            let (server, time) = self.start_on(side, name(side));
            sleep(Duration::from_secs(1));
            let memory = server.memory();
            server.stop();
            (time, memory)
        });
        for [ours, etcd] in pairs {
            table.put("start: to the first answer", "s", [ours.0, etcd.0]);
            table.put("start: RssAnon", "MiB", [ours.1.anon, etcd.1.anon]);
            table.put("start: VmRSS", "MiB", [ours.1.all, etcd.1.all]);
        }
        for side in SIDES {
            fs::remove_dir_all(self.dir(name(side))).unwrap();
        }
    }

    fn dip(&self, table: &mut Table) {
        let pairs = self.pairs(|side| {
            self.restore("dip");
            let (server, _) = self.start_on(side, "dip");
            let phases = self.runtime.block_on(write_through(&server.endpoint(), self));
            drop(server);
            fs::remove_dir_all(self.dir("dip")).unwrap();
            phases
        });
        for [ours, etcd] in pairs {
            for at in 0..3 {
                let name = ["before", "compacting", "defragmenting"][at];
                let both = |of: fn(&Phase) -> f64| [of(&ours[at]), of(&etcd[at])];
                table.put(&format!("dip: writes {name}"), "/s", both(|phase| phase.rate));
                if at > 0 {
                    let left = [&ours, &etcd].map(|side| side[at].rate / side[0].rate);
                    table.put(&format!("dip: part left {name}"), "", left);
                    table.put(&format!("dip: time {name}"), "s", both(|phase| phase.time));
                }
                table.put(&format!("dip: worst second {name}"), "/s", both(|phase| phase.worst));
                table.put(
                    &format!("dip: longest silence {name}"),
                    "ms",
                    both(|phase| phase.silence),
                );
                table.put(&format!("dip: longest write {name}"), "ms", both(|phase| phase.longest));
            }
        }
    }
}

/// What the writers came to in one phase.
struct Phase {
    time: f64,
    /// Writes in a second.
    rate: f64,
    /// The fewest writes in a second of it, of windows a tenth long.
    worst: f64,
    /// The longest time without the end of a write, in ms.
    silence: f64,
    /// The longest write, in ms.
    longest: f64,
}

impl Phase {
    /// Of ends of writes, with how long each took.
    fn of(ends: &[(Duration, Duration)], from: Duration, to: Duration) -> Self {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let ends: Vec<_> = ends.iter().filter(|end| end.0 >= from && end.0 < to).collect();
        let edges = [from].into_iter().chain(ends.iter().map(|end| end.0)).chain([to]);
        let edges: Vec<Duration> = edges.collect();
        let silence = edges.windows(2).map(|two| two[1] - two[0]).max().unwrap();
        let time = (to - from).as_secs_f64();
        let window = Duration::from_millis(100);
        let mut worst = f64::INFINITY;
        let mut at = from;
        while at + window <= to {
            let some = ends.iter().filter(|end| end.0 >= at && end.0 < at + window).count();
            worst = worst.min(f64::from(u32::try_from(some).unwrap()) * 10.0);
            at += window;
        }
        let rate = f64::from(u32::try_from(ends.len()).unwrap()) / time;
        Self {
            time,
            rate,
            worst: if worst.is_finite() { worst } else { rate },
            silence: ms(silence),
            longest: ms(ends.iter().map(|end| end.1).max().unwrap_or_default()),
        }
    }
}

/// Writes with many clients: for a while, through a compaction, and through a rewrite of the
/// database.
async fn write_through(endpoint: &str, bench: &Bench) -> [Phase; 3] {
    let ends = Arc::new(Mutex::new(Vec::new()));
    let is_done = Arc::new(AtomicBool::new(false));
    let clock = Instant::now();
    let mut writers = Vec::new();
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(Client::connect([endpoint], None).await.unwrap());
    }
    for writer in 0..CLIENTS {
        let mut client = clients[(writer % CONNECTIONS) as usize].clone();
        let (ends, is_done, keys) = (Arc::clone(&ends), Arc::clone(&is_done), bench.keys);
        writers.push(tokio::spawn(async move {
            let mut dice = u64::from(writer) + 1;
            while !is_done.load(Ordering::Relaxed) {
                dice ^= dice << 13;
                dice ^= dice >> 7;
                dice ^= dice << 17;
                let key = format!("/bench/key-{:09}", dice % u64::from(keys));
                let began = Instant::now();
                client.put(key, vec![b'v'; 1024], None).await.unwrap();
                ends.lock().unwrap().push((clock.elapsed(), began.elapsed()));
            }
        }));
    }
    let mut control = Client::connect([endpoint], None).await.unwrap();
    // The first writes after a start are slower.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut marks = vec![clock.elapsed()];
    tokio::time::sleep(bench.phase).await;
    marks.push(clock.elapsed());
    let revision = control.get("/bench/key-000000000", None).await.unwrap();
    let revision = revision.header().unwrap().revision();
    let physical = CompactionOptions::new().with_physical();
    control.compact(revision, Some(physical)).await.unwrap();
    marks.push(clock.elapsed());
    tokio::time::sleep(Duration::from_secs(1)).await;
    marks.push(clock.elapsed());
    control.defragment().await.unwrap();
    marks.push(clock.elapsed());
    is_done.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.await.unwrap();
    }
    let mut ends = std::mem::take(&mut *ends.lock().unwrap());
    ends.sort_unstable();
    [[0, 1], [1, 2], [3, 4]].map(|[from, to]| Phase::of(&ends, marks[from], marks[to]))
}

/// Asks a server whether it serves.
fn is_healthy(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let request = "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut answer = String::new();
    let asked = stream.write_all(request.as_bytes());
    asked.is_ok()
        && stream.read_to_string(&mut answer).is_ok()
        && answer.contains("\"health\":\"true\"")
}
