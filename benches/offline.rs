//! Speed and memory of the offline verbs, as ratios against reference programs in the same run.
//!
//! `cargo bench --bench offline` makes a snapshot of 300,000 keys of 1 KiB with two revisions each
//! (about 800 MB; `ETCDKIT_BENCH_KEYS` for another number), then runs interleaved pairs and prints
//! the median of each and their ratio:
//!
//! - `snapshot verify` against the SHA-256 of the same file, in one thread of this process;
//! - `snapshot verify` against `etcdutl snapshot status`, where `tests/interop/build` left one;
//! - `snapshot restore` against a copy and sync of the file.
//!
//! Peak anonymous memory of the child is sampled from `/proc`. Nothing here fails on a number.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on may as well stop")]

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use etcdkit::bolt::builder::Builder;
use etcdkit::etcd::members::{Member, MemberId};
use etcdkit::etcd::record::KeyValue;
use etcdkit::etcd::revision::Revision;
use etcdkit::etcd::schema;
use sha2::{Digest, Sha256};

const PAIRS: usize = 5;

fn main() {
    let keys = std::env::var("ETCDKIT_BENCH_KEYS").ok().and_then(|n| n.parse().ok());
    let keys: i64 = keys.unwrap_or(300_000);
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let snapshot = folder.path().join("bench.db");
    make_snapshot(&snapshot, keys);
    let size = fs::metadata(&snapshot).unwrap().len();
    println!("snapshot: {keys} keys x 2 revisions, {size} bytes");

    let verify = || etcdkit(&["snapshot", "verify", &text(&snapshot)]);
    pair("verify / sha256", verify, || sha256(&snapshot));
    let etcdutl = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/interop/bin/etcdutl-3.7");
    if etcdutl.exists() {
        let status = || run(Command::new(&etcdutl).args(["snapshot", "status"]).arg(&snapshot));
        pair("verify / etcdutl 3.7 snapshot status", verify, status);
    } else {
        println!("verify / etcdutl: not measured, tests/interop/build was not run");
    }
    let target = folder.path().join("restored");
    let copy = folder.path().join("copy");
    let restore = || {
        let audit = text(&folder.path().join("audit"));
        let (from, to) = (text(&snapshot), text(&target));
        let flags = ["--data-dir", &to, "--audit-log", &audit];
        let measured = etcdkit(&[&["snapshot", "restore", &from][..], &flags[..]].concat());
        fs::remove_dir_all(&target).unwrap();
        measured
    };
    let cp = || {
        let began = Instant::now();
        fs::copy(&snapshot, &copy).unwrap();
        File::open(&copy).unwrap().sync_all().unwrap();
        let measured = Measured { time: began.elapsed(), peak_kib: 0 };
        fs::remove_file(&copy).unwrap();
        measured
    };
    pair("restore / cp + sync", restore, cp);
}

struct Measured {
    time: Duration,
    peak_kib: u64,
}

fn pair(name: &str, ours: impl Fn() -> Measured, theirs: impl Fn() -> Measured) {
    let (mut a, mut b, mut peak) = (Vec::new(), Vec::new(), 0);
    theirs();
    for _ in 0..PAIRS {
        let measured = ours();
        peak = peak.max(measured.peak_kib);
        a.push(measured.time);
        b.push(theirs().time);
    }
    a.sort();
    b.sort();
    let (a, b) = (a[PAIRS / 2].as_secs_f64(), b[PAIRS / 2].as_secs_f64());
    println!("{name}: {a:.3} s / {b:.3} s = {:.2}; peak anonymous memory {peak} KiB", a / b);
}

fn etcdkit(words: &[&str]) -> Measured {
    run(Command::new(env!("CARGO_BIN_EXE_etcdkit")).args(words))
}

fn run(command: &mut Command) -> Measured {
    let began = Instant::now();
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kib = 0;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{command:?}: {status}");
            return Measured { time: began.elapsed(), peak_kib };
        }
        let text = fs::read_to_string(&status).unwrap_or_default();
        let anonymous = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let now = anonymous.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        peak_kib = peak_kib.max(now.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn sha256(path: &Path) -> Measured {
    let began = Instant::now();
    let (mut file, mut hasher) = (File::open(path).unwrap(), Sha256::new());
    let mut piece = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut piece).unwrap();
        if read == 0 {
            break;
        }
        hasher.update(&piece[..read]);
    }
    std::hint::black_box(hasher.finalize());
    Measured { time: began.elapsed(), peak_kib: 0 }
}

fn text(path: &Path) -> String {
    PathBuf::from(path).display().to_string()
}

fn make_snapshot(path: &Path, keys: i64) {
    let out = BufWriter::with_capacity(1 << 20, File::create_new(path).unwrap());
    let mut builder = Builder::new(out, 4096).unwrap();
    let value: Vec<u8> = (0..1024_u32).map(|n| u8::try_from(n * 37 % 251).unwrap()).collect();
    for bucket in schema::BUCKETS {
        builder.begin_bucket(bucket, 0).unwrap();
        match bucket {
            schema::KEY => {
                let mut row = Vec::new();
                for change in 0..keys * 2 {
                    let (key, version) = (change % keys, change / keys + 1);
                    let user_key = format!("/bench/key-{key:09}");
                    let record = KeyValue {
                        key: user_key.as_bytes(),
                        create_revision: key + 2,
                        mod_revision: change + 2,
                        version,
                        value: &value,
                        ..KeyValue::default()
                    };
                    row.clear();
                    record.encode(&mut row);
                    builder.put(&Revision::new(change + 2, 0).encode(), &row).unwrap();
                }
            }
            schema::MEMBERS => {
                let peer_urls = vec!["http://127.0.0.1:2380".to_owned()];
                let name = "bench".to_owned();
                let member = Member { id: MemberId(7), name, peer_urls, ..Member::default() };
                builder.put(&member.row_key(), &member.encode()).unwrap();
            }
            schema::META => {
                builder.put(schema::META_CONSISTENT_INDEX, &9_u64.to_be_bytes()).unwrap();
                builder.put(schema::META_TERM, &2_u64.to_be_bytes()).unwrap();
            }
            _ => {}
        }
        builder.end_bucket().unwrap();
    }
    let (_, out) = builder.finish(9).unwrap();
    drop(out.into_inner().unwrap());
    let bytes = fs::read(path).unwrap();
    let trailer = Sha256::digest(&bytes);
    fs::OpenOptions::new().append(true).open(path).unwrap().write_all(&trailer).unwrap();
}
