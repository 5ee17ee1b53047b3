//! What the benches share: children that are timed and whose memory is watched, and a snapshot.

#![allow(dead_code, reason = "each bench uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are benches")]

use std::fs::{self, File};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use etcdkit::bolt::builder::Builder;
use etcdkit::etcd::members::{Member, MemberId};
use etcdkit::etcd::record::KeyValue;
use etcdkit::etcd::revision::Revision;
use etcdkit::etcd::schema;
use rustix::process::{Pid, Signal, kill_process};
use sha2::{Digest, Sha256};
use signal_hook::consts::{SIGINT, SIGTERM};

static SERVERS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Ends a server too when the bench is told to stop.
pub(crate) fn ends_with_the_bench(server: &Child) {
    SERVERS.lock().unwrap().push(Pid::from_child(server));
}

/// Removes everything when the bench is told to stop: it is too much to be left behind.
pub(crate) fn clean_up_when_stopped(folder: &Path) {
    let told = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&told)).unwrap();
    }
    let folder = folder.to_owned();
    thread::spawn(move || {
        while !told.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(50));
        }
        for pid in SERVERS.lock().unwrap().drain(..) {
            let _ = kill_process(pid, Signal::KILL);
        }
        // A child that still writes makes new names: more than one try.
        for _ in 0..100 {
            if fs::remove_dir_all(&folder).is_ok() {
                break;
            }
            thread::sleep(Duration::from_millis(50));
        }
        std::process::exit(130);
    });
}

pub(crate) fn number(variable: &str, default: u32) -> u32 {
    std::env::var(variable).map_or(default, |text| text.parse().expect(variable))
}

/// What a run took.
#[derive(Clone, Copy, Default)]
pub(crate) struct Measured {
    pub(crate) time: Duration,
    pub(crate) peak_bytes: u64,
}

/// The one in the middle.
pub(crate) fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// The bar, and whether the value is within it.
pub(crate) fn judged(value: f64, bar: Option<f64>, digits: usize) -> [String; 2] {
    let Some(bar) = bar else { return ["-".into(), String::new()] };
    let word = if value <= bar { "ok" } else { "OVER" };
    [format!("<= {bar:.digits$}"), word.into()]
}

/// Runs a program to its end while another thread watches its memory.
pub(crate) fn run(command: &mut Command) -> Measured {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let began = Instant::now();
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let status = PathBuf::from(format!("/proc/{}/status", child.id()));
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut peak_bytes = 0;
            while !ended.load(Ordering::Relaxed) {
                let text = fs::read_to_string(&status).unwrap_or_default();
                let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
                let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
                peak_bytes = kib.map_or(peak_bytes, |kib: u64| peak_bytes.max(kib * 1024));
                thread::sleep(Duration::from_millis(2));
            }
            peak_bytes
        });
        // Reading to the end first: a program that says much must not wait for it.
        let mut said = String::new();
        let _ = child.stderr.take().unwrap().read_to_string(&mut said);
        let status = child.wait().unwrap();
        let time = began.elapsed();
        ended.store(true, Ordering::Relaxed);
        let peak_bytes = watch.join().unwrap();
        assert!(status.success(), "{command:?}: {status}\n{said}");
        Measured { time, peak_bytes }
    })
}

/// Sums a file in this thread.
pub(crate) fn sha256_of(file: &mut File) -> [u8; 32] {
    let (mut hasher, mut piece) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        let read = file.read(&mut piece).unwrap();
        if read == 0 {
            return hasher.finalize().into();
        }
        hasher.update(&piece[..read]);
    }
}

/// Makes a snapshot of keys of 1 KiB with two revisions each.
pub(crate) fn make_snapshot(path: &str, keys: u32) {
    let keys = i64::from(keys);
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
    let mut file = File::options().read(true).write(true).open(path).unwrap();
    let trailer = sha256_of(&mut file);
    file.seek(SeekFrom::End(0)).unwrap();
    file.write_all(&trailer).unwrap();
    file.sync_all().unwrap();
}
