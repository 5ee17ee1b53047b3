//! Speed and memory of `snapshot save` against etcdctl's, of the same running etcd.
//!
//! `cargo bench --bench live` starts etcd 3.7 on loopback, puts 300,000 keys of 1 KiB twice (about
//! 800 MB), and saves snapshots with both programs in turns. Ours checks trailer, pages and records
//! and compares the keys' hash; etcdctl does nothing of that. Prints medians, their ratio, the bar,
//! and the peak of the child's anonymous memory. Nothing here fails on a number.
//!
//! - `ETCDKIT_BENCH_KEYS`: another number of keys.
//! - `ETCDKIT_BENCH_PAIRS`: pairs to take the median of; 5.
//!
//! The programs are those of `tests/interop/build` (in `$ETCDKIT_INTEROP_BIN` or
//! `target/interop/bin`). Takes about four times the size below the target folder, and leaves
//! nothing behind.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on may as well stop")]
#![allow(clippy::expect_used, clippy::panic, reason = "the same")]

mod support;

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use etcd_client::{Client, Txn, TxnOp};
use support::{Measured, clean_up_when_stopped, ends_with_the_bench, judged, median, number, run};

const MIB: f64 = 1024.0 * 1024.0;
/// Keys that are put at once.
const BATCH: u32 = 100;

/// A server that ends with the bench.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    let keys = number("ETCDKIT_BENCH_KEYS", 300_000);
    let pairs = number("ETCDKIT_BENCH_PAIRS", 5).max(1);
    let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/interop/bin");
    let built = std::env::var_os("ETCDKIT_INTEROP_BIN").map_or(built, PathBuf::from);
    let (etcd, etcdctl) = (built.join("etcd-3.7"), built.join("etcdctl-3.7"));
    if !etcd.exists() || !etcdctl.exists() {
        println!("NOT MEASURED: no etcd-3.7 and etcdctl-3.7; tests/interop/build makes them");
        return;
    }
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    clean_up_when_stopped(folder.path());
    let [client, peer] = free_ports();
    let endpoint = format!("http://127.0.0.1:{client}");
    let peer = format!("http://127.0.0.1:{peer}");
    let log = File::create(folder.path().join("log")).unwrap();
    let mut command = Command::new(etcd);
    command.args(["--name", "bench", "--data-dir", "data", "--quota-backend-bytes=8589934592"]);
    command.args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint]);
    command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    command.args(["--initial-cluster", &format!("bench={peer}")]);
    command.current_dir(folder.path()).stdin(Stdio::null());
    command.stdout(log.try_clone().unwrap()).stderr(log);
    let server = Server(command.spawn().unwrap());
    ends_with_the_bench(&server.0);
    fill(&endpoint, keys);

    let ours = |file: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_etcdkit"));
        command.args(["--audit-log", "audit", "--quiet", "--endpoints", &endpoint]);
        command.args(["snapshot", "save", file]);
        command
    };
    let theirs = |file: &str| {
        let mut command = Command::new(&etcdctl);
        command.args(["--endpoints", &endpoint, "snapshot", "save", file]);
        command
    };
    let measure = |mut command: Command, file: &str| {
        let measured = run(command.current_dir(folder.path()));
        let size = fs::metadata(folder.path().join(file)).unwrap().len();
        for name in [file.to_owned(), format!("{file}.json")] {
            let _ = fs::remove_file(folder.path().join(name));
        }
        (measured, size)
    };
    let mut all = [Vec::new(), Vec::new()];
    let (mut peak_bytes, mut size) = (0, 0);
    // The first turn warms the page cache and does not count.
    for turn in 0..=pairs {
        let mut measured = [Measured::default(); 2];
        for at in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
            let command = if at == 0 { ours("s.db") } else { theirs("s.db") };
            (measured[at], size) = measure(command, "s.db");
        }
        peak_bytes = peak_bytes.max(measured[0].peak_bytes);
        let times = measured.map(|one| one.time.as_secs_f64());
        eprintln!("ours {:.3} s, etcdctl {:.3} s", times[0], times[1]);
        if turn > 0 {
            (0..2).for_each(|at| all[at].push(times[at]));
        }
    }
    drop(server);
    let [ours, theirs] = all.map(median);
    let ratio = ours / theirs;
    let [bar, verdict] = judged(ratio, Some(1.15), 2);
    println!("{keys} keys x 2 revisions, a snapshot of {size} bytes; medians of {pairs} pairs");
    println!(
        "snapshot save  ours {ours:.3} s  etcdctl {theirs:.3} s  ratio {ratio:.2} {bar} {verdict}"
    );
    let peak = f64::from(u32::try_from(peak_bytes / 1024).unwrap()) / 1024.0;
    let [bar, verdict] = judged(peak, Some(64.0 + 24.0 * f64::from(keys) / MIB), 1);
    println!("snapshot save  RssAnon {peak:.1} MiB {bar} {verdict}");
}

fn free_ports() -> [u16; 2] {
    let held = [(); 2].map(|()| TcpListener::bind(("127.0.0.1", 0)).unwrap());
    held.map(|socket| socket.local_addr().unwrap().port())
}

/// Puts every key twice.
fn fill(endpoint: &str, keys: u32) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let value: Vec<u8> = (0..1024_u32).map(|n| u8::try_from(n * 37 % 251).unwrap()).collect();
    runtime.block_on(async {
        let began = Instant::now();
        let mut client = loop {
            if let Ok(mut client) = Client::connect([endpoint], None).await
                && client.status().await.is_ok()
            {
                break client;
            }
            assert!(began.elapsed() < Duration::from_secs(30), "etcd does not start");
            sleep(Duration::from_millis(100));
        };
        for _ in 0..2 {
            for first in (0..keys).step_by(BATCH as usize) {
                let puts = (first..keys.min(first + BATCH))
                    .map(|key| TxnOp::put(format!("/bench/key-{key:09}"), value.clone(), None));
                client.txn(Txn::new().and_then(puts.collect::<Vec<_>>())).await.unwrap();
            }
        }
    });
}
