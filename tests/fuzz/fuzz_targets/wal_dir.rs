//! Reads any bytes as a WAL directory of up to four segments, and its entries.
//!
//! The first byte says how to cut the rest into segments, and whether their records get right
//! checksums first: without those the fuzzer does not get past the first record.

#![no_main]

use std::fs;
use std::path::PathBuf;

use etcdkit::etcd::log::{Log, Opening, Tail};
use etcdkit::format::wal::{Encoder, kind, segment_name};
use libfuzzer_sys::fuzz_target;

/// A directory of this process, in memory where there is such a file system.
fn directory() -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    let base = if shm.is_dir() { shm } else { std::env::temp_dir() };
    base.join(format!("etcdkit-fuzz-{}", std::process::id()))
}

/// Makes records of the bytes, three bytes of head each: kind and length of the data.
fn with_checksums(bytes: &[u8], crc: u32) -> (Vec<u8>, u32) {
    let mut encoder = Encoder::begin(crc);
    let mut rest = bytes;
    while let [kind, low, high, data @ ..] = rest {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(data.len());
        let (data, after) = data.split_at(length);
        let kind = u64::from(kind % 7);
        if kind != kind::CRC {
            encoder.push(kind, data);
        }
        rest = after;
    }
    let crc = encoder.crc();
    (encoder.into_bytes(), crc)
}

fuzz_target!(|data: &[u8]| {
    let Some((plan, rest)) = data.split_first() else { return };
    let dir = directory();
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("a directory");
    let count = usize::from(plan & 3) + 1;
    let mut crc = 0;
    for (sequence, piece) in rest.chunks(rest.len().div_ceil(count).max(1)).enumerate() {
        let bytes = if plan & 4 == 0 {
            piece.to_vec()
        } else {
            let (bytes, next) = with_checksums(piece, crc);
            crc = next;
            bytes
        };
        let name = segment_name(sequence as u64, sequence as u64);
        fs::write(dir.join(name), bytes).expect("a segment");
    }
    let log = Log::open(&dir).expect("a directory that can be read");
    if log.tail == Tail::Damaged || log.opening == Opening::Refused {
        assert!(!log.findings.kept().is_empty(), "refused without a word");
    }
    let after = log.first.map_or(0, |first| first.index - 1);
    let mut entries = log.entries(after).expect("entries from the first one on");
    let mut before = after;
    while let Some(entry) = entries.read_next().expect("an entry that was there a moment ago") {
        assert_eq!(entry.index, before + 1, "entries follow each other");
        before = entry.index;
    }
    assert_eq!(before, log.last.map_or(after, |last| last.index), "and end with the last one");
    let reach = log.reach(None).index;
    assert!(reach <= log.last_index());
});
