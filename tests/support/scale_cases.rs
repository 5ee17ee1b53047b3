//! Files of every page size, with one huge value, many small keys, a long freelist, or mostly
//! holes: they are read and restored within the memory that is promised.
//!
//! The promise: 64 MiB, 24 bytes for each distinct key, and the largest row. Anonymous memory of
//! the running program is sampled.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use etcdkit::bolt::builder::Builder;
use etcdkit::bolt::walk::walk;
use etcdkit::bolt::{self, At, Visit};
use etcdkit::etcd::record::KeyValue;
use etcdkit::etcd::revision::Revision;
use etcdkit::format::meta::{Meta, NO_FREELIST};
use etcdkit::format::page::{FREELIST, Header};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::support::{Ran, Rows, Sandbox, hex, kubernetes, seal, skipped, snapshot};

const MIB: u64 = 1 << 20;
const RESTORE: [&str; 5] = ["snapshot", "restore", "s.db", "--data-dir", "out"];

/// Runs the program; returns the most anonymous memory that was seen, in bytes.
fn watched(sandbox: &Sandbox, words: &[&str]) -> (Ran, u64) {
    let mut command = sandbox.command();
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().expect("a program that starts");
    let status = format!("/proc/{}/status", child.id());
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut peak = None;
            while !ended.load(Ordering::Relaxed) {
                let text = fs::read_to_string(&status).unwrap_or_default();
                let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
                let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
                peak = peak.max(kib.map(|kib: u64| kib * 1024));
                thread::sleep(Duration::from_millis(1));
            }
            peak
        });
        let ran = Ran::wait(&words.join(" "), child);
        ended.store(true, Ordering::Relaxed);
        (ran, watch.join().expect("a watch").unwrap_or(0))
    })
}

/// Runs the program, which must keep to the bar and to an exit code; returns its result and the
/// peak.
#[track_caller]
fn within(sandbox: &Sandbox, words: &[&str], bar: u64, code: i32) -> Value {
    let (ran, peak) = watched(sandbox, &[&["-w", "json", "-q"], words].concat());
    let ran = ran.expect(code, &[]);
    if Path::new("/proc/self/status").exists() {
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        println!("{}: {:.1} MiB of {:.1}", words.join(" "), mib(peak), mib(bar));
        assert!(peak > 0, "the memory was never seen {ran}");
        assert!(peak <= bar, "{:.1} MiB, the bar is {:.1} {ran}", mib(peak), mib(bar));
    } else {
        skipped("the memory of a large file's check: no /proc");
    }
    ran.json()
}

fn bar(keys: u64, largest_row: u64) -> u64 {
    64 * MIB + 24 * keys + largest_row
}

/// Puts a record: its revision, key and value.
type Put<'a> = dyn FnMut(i64, &[u8], &[u8]) + 'a;

/// Writes a database with the rows of a real one, and in bucket `key` those that `more` puts; then
/// the trailer. Nothing is held in memory.
fn build(path: &Path, page_size: u32, more: &mut dyn FnMut(&mut Put<'_>)) {
    let rows = Rows::read(&snapshot("3.6"));
    let out = BufWriter::with_capacity(1 << 20, File::create_new(path).expect("a file"));
    let mut builder = Builder::new(out, page_size).expect("a page size");
    for (bucket, small) in &rows.buckets {
        builder.begin_bucket(&bucket[0], 0).expect("a bucket");
        small.iter().for_each(|(key, value)| builder.put(key, value).expect("a row"));
        if bucket[0] == b"key" {
            let mut row = Vec::new();
            more(&mut |main, key, value| {
                let record = KeyValue {
                    key,
                    create_revision: main,
                    mod_revision: main,
                    version: 1,
                    value,
                    ..KeyValue::default()
                };
                row.clear();
                record.encode(&mut row);
                builder.put(&Revision::new(main, 0).encode(), &row).expect("a row");
            });
        }
        builder.end_bucket().expect("an open bucket");
    }
    builder.finish(7).expect("a database").1.into_inner().expect("a file");
    seal_file(path);
}

/// Appends the trailer to a file of any size.
fn seal_file(path: &Path) {
    let mut file = File::options().read(true).write(true).open(path).expect("a file");
    let (mut hasher, mut piece) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut piece).expect("bytes") {
            0 => break,
            read => hasher.update(&piece[..read]),
        }
    }
    file.seek(SeekFrom::End(0)).expect("the end");
    file.write_all(&hasher.finalize()).expect("a trailer");
}

/// Sums the rows of a file bucket by bucket, so that large ones can be compared.
#[derive(Default)]
struct Sums(BTreeMap<Vec<Vec<u8>>, (u64, Sha256)>);

impl Visit for Sums {
    fn bucket(&mut self, at: &At<'_>, _: u64) {
        self.0.entry(at.bucket.to_vec()).or_default();
    }
    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        let (count, digest) = self.0.entry(at.bucket.to_vec()).or_default();
        *count += 1;
        digest.update((key.len() as u64).to_le_bytes());
        digest.update(key);
        digest.update((value.len() as u64).to_le_bytes());
        digest.update(value);
    }
}

impl Sums {
    /// Sums a file that must be whole, but for the buckets that every restore changes.
    fn of(path: &Path) -> BTreeMap<String, (u64, String)> {
        let source = bolt::Source::open(path).expect("a file");
        let file = bolt::File::from_source(source).expect("a database");
        let mut sums = Self::default();
        let walked = walk(&file, &mut sums);
        assert!(!walked.findings.has_errors(), "{:?}", walked.findings.kept());
        let kept = sums.0.into_iter().filter(|(bucket, _)| {
            let name = bucket[0].as_slice();
            ![&b"members"[..], b"members_removed", b"meta"].contains(&name)
        });
        kept.map(|(bucket, (count, digest))| {
            (
                String::from_utf8_lossy(&bucket.concat()).into_owned(),
                (count, hex(&digest.finalize())),
            )
        })
        .collect()
    }
}

/// Checks, shows and restores `s.db` within the bar, and compares what came out.
#[track_caller]
fn read_and_restored(sandbox: &Sandbox, keys: u64, bar: u64) {
    let path = sandbox.path("s.db");
    let verified = within(sandbox, &["snapshot", "verify", "s.db"], bar, 0);
    assert_eq!(verified["files"][0]["verdict"], "good", "{verified}");
    let status = within(sandbox, &["snapshot", "status", "s.db"], bar, 0);
    let report = within(sandbox, &[&RESTORE[..], &["--no-bump"]].concat(), bar, 0);
    assert_eq!(report["snapshot"]["keys"], keys, "{report}");
    assert_eq!(status["totalKey"], keys, "{status}");
    assert_eq!(Sums::of(&sandbox.path("out/member/snap/db")), Sums::of(&path));
}

#[test]
fn every_page_size_is_read_and_restored() {
    for rows in [Rows::read(&snapshot("3.7")), Rows::read(&kubernetes())] {
        let mut hashes = std::collections::BTreeSet::new();
        for page_size in (10..=16).map(|bits| 1_u32 << bits) {
            let sandbox = Sandbox::with(&seal(rows.database(page_size)));
            sandbox.run("snapshot verify s.db").expect(0, &["good"]);
            let status = sandbox.run("snapshot status s.db -w json").expect(0, &[]).json();
            sandbox.run("snapshot restore s.db --data-dir out --no-bump").expect(0, &[]);
            let restored = sandbox.restored("out");
            for (bucket, all) in &rows.buckets {
                if !bucket[0].starts_with(b"me") {
                    assert_eq!(restored.buckets.get(bucket), Some(all), "pages of {page_size}");
                }
            }
            hashes.insert((status["hash"].to_string(), status["totalKey"].to_string()));
        }
        assert_eq!(hashes.len(), 1, "the same rows in pages of any size: {hashes:?}");
    }
}

/// A database with pages of 1 KiB whose stored freelist names `ids` of the `blank` pages behind it.
fn with_freelist(path: &Path, blank: u64, ids: impl Fn(u64) -> Vec<u64>) {
    let mut bytes = Rows::read(&snapshot("3.6")).database(1024);
    let id = (bytes.len() / 1024) as u64;
    // The first id of the long form is their count.
    let span = (16 + 8 + 8 * blank).div_ceil(1024);
    let ids = ids(id + span);
    let header = Header { id, flags: FREELIST, count: 0xffff, overflow: span as u32 - 1 };
    let mut list = header.encode().to_vec();
    list.extend_from_slice(&(ids.len() as u64).to_le_bytes());
    ids.iter().for_each(|free| list.extend_from_slice(&free.to_le_bytes()));
    list.resize(span as usize * 1024, 0);
    bytes.extend_from_slice(&list);
    let old = Meta::decode(&bytes).expect("a meta");
    let meta = Meta { freelist: id, high_water_mark: id + span + blank, ..old };
    for slot in 0..2_u64 {
        let at = slot as usize * 1024;
        bytes[at..at + 80].copy_from_slice(&meta.encode(slot));
    }
    fs::write(path, bytes).expect("a file");
    // The blank pages are a hole.
    let file = File::options().write(true).open(path).expect("a file");
    file.set_len(meta.high_water_mark * 1024).expect("a hole");
    seal_file(path);
}

#[test]
fn a_freelist_in_its_long_form_is_read() {
    const BLANK: u64 = 70_000;
    let sandbox = Sandbox::new();
    with_freelist(&sandbox.path("s.db"), BLANK, |first| (first..first + BLANK).collect());
    read_and_restored(&sandbox, 60, bar(60, 0));
    // One that is in use stands where one that is free should, and another one stands twice.
    let sandbox = Sandbox::new();
    with_freelist(&sandbox.path("s.db"), BLANK, |first| {
        let mut ids: Vec<u64> = (first..first + BLANK).collect();
        ids[0] = 3;
        ids[69_000] = ids[68_999];
        ids
    });
    let codes = ["BOLT013", "BOLT014", "BOLT015", "pages damaged, records ok"];
    sandbox.run("snapshot verify s.db").expect(6, &codes);
}

#[test]
#[ignore = "large: .ci/run runs it in release mode"]
fn a_value_of_104_mb_is_read_and_restored() {
    const BYTES: u64 = 26 * 4_000_000;
    let sandbox = Sandbox::new();
    build(&sandbox.path("s.db"), 4096, &mut |put| {
        let value = (b'a'..=b'z').collect::<Vec<u8>>().repeat(BYTES as usize / 26);
        put(92, b"/huge", &value);
        put(93, b"/behind", b"small");
    });
    read_and_restored(&sandbox, 62, bar(62, BYTES));
}

fn many(sandbox: &Sandbox, keys: i64) {
    build(&sandbox.path("s.db"), 4096, &mut |put| {
        for n in 0..keys {
            put(92 + n, format!("/many/{n:012}").as_bytes(), b"v");
        }
    });
    let keys = u64::try_from(keys).expect("a count") + 60;
    read_and_restored(sandbox, keys, bar(keys, 0));
}

#[test]
fn memory_for_a_hundred_thousand_keys_is_bounded() {
    many(&Sandbox::new(), 100_000);
}

#[test]
#[ignore = "large: .ci/run runs it in release mode"]
fn memory_for_a_million_keys_is_bounded() {
    many(&Sandbox::new(), 1_000_000);
}

#[test]
#[ignore = "large: .ci/run runs it in release mode"]
fn eight_gib_of_holes_are_checked() {
    const PAGES: u64 = (8 << 30) / 4096;
    let sandbox = Sandbox::new();
    let mut bytes = Rows::read(&snapshot("3.6")).database(4096);
    let old = Meta::decode(&bytes).expect("a meta");
    let meta = Meta { freelist: NO_FREELIST, high_water_mark: PAGES, ..old };
    for slot in 0..2_u64 {
        let at = slot as usize * 4096;
        bytes[at..at + 80].copy_from_slice(&meta.encode(slot));
    }
    let path = sandbox.write("s.db", &bytes);
    let file = File::options().write(true).open(&path).expect("a file");
    if file.set_len(PAGES * 4096).is_err() {
        return skipped("8 GiB of holes: this file system has no room for the name of them");
    }
    let bar = bar(60, 0);
    let words = ["snapshot", "verify", "--skip-hash-check", "s.db"];
    let verified = within(&sandbox, &words, bar, 0);
    assert_eq!(verified["files"][0]["pages"], "ok", "{verified}");
    let status = within(&sandbox, &["snapshot", "status", "s.db"], bar, 0);
    assert_eq!(status["totalSize"], PAGES * 4096, "{status}");
}
