//! Data directories: etcd's own WAL package on damaged logs, and servers on directories that
//! killed ones left.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use etcdkit::etcd::log::{Log, Opening, Tail};
use etcdkit::format::finding::{Code, Finding};
use etcdkit::format::wal::{Decoder, Encoder, Entry, kind, segment_name};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::boots::{ETCDS, copy_folder};
use crate::programs::{Dice, Refusal, Start, real};
use crate::support::{Sandbox, VERSIONS, hex, json_fixture};

/// Damaged variants of each log.
const VARIANTS: usize = 80;

/// Segments of a log: name and bytes.
type Segments = Vec<(String, Vec<u8>)>;

/// The log of a killed member, with a few zeros at its end.
fn killed_log(version: &str) -> Segments {
    let sandbox = Sandbox::new();
    let dir = sandbox.unpack(&format!("etcd-{version}/killed-datadir.tar.gz"), "m");
    let name = segment_name(0, 0);
    let mut bytes = fs::read(dir.join("member/wal").join(&name)).unwrap();
    let mut records = Decoder::new(&bytes, 0);
    records.by_ref().for_each(|record| assert!(record.is_ok()));
    let end = usize::try_from(records.offset()).unwrap();
    bytes.resize((end + 2048).next_multiple_of(512), 0);
    vec![(name, bytes)]
}

/// The same records in three segments, as a server cuts them.
fn in_three(log: &Segments) -> Segments {
    let records: Vec<_> = Decoder::new(&log[0].1, 0).map(Result::unwrap).collect();
    let metadata = records.iter().find(|record| record.kind == kind::METADATA).unwrap().data;
    let mut segments = Vec::new();
    let (mut encoder, mut index, mut state) = (Encoder::begin(0), 0, None);
    let mut name = segment_name(0, 0);
    for (at, record) in records.iter().enumerate().filter(|(_, record)| record.kind != kind::CRC) {
        encoder.push(record.kind, record.data);
        match record.kind {
            kind::ENTRY => index = Entry::decode(record.data).unwrap().index,
            kind::STATE => state = Some(record.data),
            _ => {}
        }
        let part = segments.len() as u64 + 1;
        if part < 3 && at as u64 > part * records.len() as u64 / 3 && record.kind == kind::STATE {
            let next = Encoder::begin(encoder.crc());
            let whole = std::mem::replace(&mut encoder, next).into_bytes();
            segments.push((std::mem::replace(&mut name, segment_name(part, index + 1)), whole));
            encoder.push(kind::METADATA, metadata);
            encoder.push(kind::STATE, state.unwrap());
        }
    }
    let mut last = encoder.into_bytes();
    last.resize((last.len() + 2048).next_multiple_of(512), 0);
    segments.push((name, last));
    assert_eq!(segments.len(), 3);
    segments
}

/// Damages a log in one of many ways; returns what was done.
fn damage(segments: &mut Segments, kind: usize, dice: &mut Dice) -> String {
    let which =
        if kind.is_multiple_of(4) { dice.below(segments.len()) } else { segments.len() - 1 };
    let (name, bytes) = &mut segments[which];
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
    let heads: Vec<_> = Decoder::new(bytes, 0)
        .map_while(|record| record.ok().map(|record| usize::try_from(record.offset).unwrap()))
        .collect();
    let head = if heads.is_empty() { 0 } else { heads[dice.below(heads.len())] };
    let done = match kind % 10 {
        0 | 1 => {
            let at = dice.below(end);
            bytes[at] ^= 1 << dice.below(8);
            format!("bit flipped at {at}")
        }
        2 => {
            let to = dice.below(end);
            bytes.truncate(to);
            format!("cut to {to}")
        }
        3 => {
            let at = head + dice.below(8);
            bytes[at] ^= 1 << dice.below(8);
            format!("bit flipped in a length at {at}")
        }
        4 => {
            let at = dice.below(end) / 512 * 512;
            let to = (at + 512).min(bytes.len());
            bytes[at..to].fill(0);
            format!("sector at {at} zeroed")
        }
        5 => {
            // A page that never arrived, at the end.
            let at = dice.below(end.min(6000)).min(end);
            let from = (end - at) / 512 * 512;
            bytes[from..].fill(0);
            format!("zeros from {from}")
        }
        6 => {
            let at = end + dice.below(600);
            let to = (at + 1 + dice.below(40)).min(bytes.len());
            bytes.get_mut(at..to).into_iter().flatten().for_each(|byte| *byte = 0xa5);
            format!("garbage at {at}")
        }
        7 => {
            bytes[head..head + 8].fill(0);
            format!("length at {head} zeroed")
        }
        8 => {
            let at = head + 8 + dice.below(8);
            bytes[at] = bytes[at].wrapping_add(1 + u8::try_from(dice.below(6)).unwrap());
            format!("start of a record changed at {at}")
        }
        _ => {
            let at = dice.below(end);
            let to = (at + 1 + dice.below(64)).min(bytes.len());
            bytes[at..to].iter_mut().for_each(|byte| *byte = byte.wrapping_mul(31));
            format!("bytes {at} to {to} changed")
        }
    };
    format!("{name}: {done}")
}

fn write(dir: &Path, segments: &Segments) {
    fs::create_dir_all(dir).unwrap();
    for (name, bytes) in segments {
        fs::write(dir.join(name), bytes).unwrap();
    }
}

/// Entries after an index: how many, the last one, and the oracle's hash over them.
fn entries(log: &Log, after: u64) -> (u64, u64, String) {
    let (mut count, mut last, mut sum) = (0, 0, Sha256::new());
    let mut entries = log.entries(after).unwrap();
    while let Some(entry) = entries.read_next().unwrap() {
        for number in [entry.index, entry.term, entry.kind, entry.data.len() as u64] {
            sum.update(number.to_le_bytes());
        }
        sum.update(entry.data);
        (count, last) = (count + 1, entry.index);
    }
    (count, last, hex(&sum.finalize()))
}

/// What etcd's package does, once the checks are counted that a server makes afterwards.
fn outcome(read: &Value) -> Opening {
    let number = |key: &str| read[key].as_u64().unwrap();
    let outside = number("commit") > number("last").max(number("start"));
    match read["outcome"].as_str().unwrap() {
        // Raft takes no member of id 0, and no commit index above the log.
        _ if read["node_id"] == "0" || outside => Opening::Refused,
        "as-is" => Opening::AsIs,
        "after-repair" => Opening::AfterRepair,
        _ => Opening::Refused,
    }
}

#[test]
fn damaged_logs_are_read_repaired_or_refused_as_etcd_does() {
    let Some(real) = real() else { return };
    let sandbox = Sandbox::new();
    let mut dice = Dice::new(0x1234_5679);
    let bases = [killed_log("3.5"), in_three(&killed_log("3.6")), killed_log("3.7")];
    let (mut cases, mut whole_entries) = (Vec::new(), Vec::new());
    for (base, log) in bases.iter().enumerate() {
        let whole = sandbox.path(&format!("whole-{base}"));
        write(&whole, log);
        let whole = Log::open(&whole).unwrap();
        assert_eq!(whole.findings.kept(), []);
        whole_entries.push(entries(&whole, 0));
        for variant in 0..VARIANTS {
            let mut segments = log.clone();
            let what = damage(&mut segments, variant, &mut dice);
            let dir = sandbox.path(&format!("{base}-{variant}"));
            write(&dir, &segments);
            cases.push((base, dir.clone(), what, Log::open(&dir).unwrap()));
        }
    }
    let ours: Vec<_> = cases
        .iter()
        .map(|(_, _, _, log)| entries(log, log.newest_snapshot().map_or(0, |snap| snap.index)))
        .collect();
    let dirs: Vec<_> = cases.iter().map(|(_, dir, ..)| dir.to_str().unwrap()).collect();
    let reads = real.oracle_lines(&[&["walread"], &dirs[..]].concat());
    let mut counts = BTreeMap::new();
    for (((base, dir, what, log), ours), read) in cases.iter().zip(ours).zip(&reads) {
        let what = format!("log {base}, {what}: {read} {:?}", log.findings.kept());
        let mut theirs = outcome(read);
        let unknown = |found: &Finding| {
            found.code == Code::WalKindUnknown && found.detail.starts_with("entry ")
        };
        if theirs == Opening::AsIs && log.findings.kept().iter().any(unknown) {
            // The package hands such entries out, and the server panics over them.
            theirs = Opening::Refused;
        }
        // The oracle is of etcd 3.6.
        assert_eq!(log.opening_before_3_7, theirs, "{what}");
        *counts.entry(theirs).or_insert(0) += 1;
        if theirs == Opening::Refused {
            assert!(log.tail == Tail::Damaged || log.obstacle().is_some(), "{what}");
            continue;
        }
        let read_entries = (
            read["entries"].as_u64().unwrap(),
            read["last"].as_u64().unwrap(),
            read["sha256"].as_str().unwrap().to_owned(),
        );
        assert_eq!(ours, read_entries, "{what}");
        assert_eq!(log.commit(), read["commit"].as_u64().unwrap(), "{what}");
        if log.findings.kept().is_empty() {
            // A cut between two records is no damage that anyone can see.
            let is_cut = what.contains("cut to") || what.contains("zeros from");
            assert!(ours == whole_entries[*base] || is_cut, "{what}: lost in silence");
        }
        // After etcd has repaired it, nothing is torn any more.
        let again = Log::open(dir).unwrap();
        assert_eq!((again.tail, again.opening), (Tail::Whole, Opening::AsIs), "{what}");
        assert_eq!(again.last, log.last, "{what}");
        if theirs == Opening::AfterRepair {
            assert!(again.findings.has(Code::WalName), "{what}: no .broken beside it");
        }
    }
    let enough = |opening, least| counts.get(&opening).is_some_and(|count| *count >= least);
    assert!(reads.len() >= 200, "{}", reads.len());
    assert!(
        enough(Opening::AsIs, 20)
            && enough(Opening::AfterRepair, 20)
            && enough(Opening::Refused, 60),
        "{counts:?}"
    );
}

#[test]
fn killed_directories_start_where_verify_says_so() {
    let Some(real) = real() else { return };
    for version in VERSIONS {
        let sandbox = Sandbox::new();
        let killed = sandbox.unpack(&format!("etcd-{version}/killed-datadir.tar.gz"), "m");
        let report = sandbox.kit_json(&["snapshot", "verify", "m"]);
        let starts = report["directories"][0]["starts_on"].as_array().expect("starts_on");
        let keys = json_fixture(&format!("etcd-{version}/keys-at-kill.json"));
        let keys = keys["kvs"].as_array().map(Vec::len);
        for etcd in ETCDS {
            let start = starts.iter().find(|start| start["etcd"] == *etcd).expect("a version");
            let what = format!("directory of etcd {version} on {etcd}: {start}");
            let data_dir = sandbox.path(&format!("on-{etcd}"));
            copy_folder(&killed, &data_dir);
            let booted = real.try_etcd(etcd, &Start { data_dir, name: "m1", ..Start::default() });
            match (booted, start["starts"].as_str()) {
                (Ok(server), Some("yes")) => {
                    let truth = server.truth();
                    assert_eq!(truth["keys"].as_array().map(Vec::len), keys, "{what}");
                    server.ctl(&["put", "/after", "x"]).expect(0, &["OK"]);
                }
                (Err(Refusal::Ended { .. }), Some("no")) => {}
                (Ok(_), _) => panic!("{what}: it starts"),
                (Err(refusal), _) => panic!("{what}: {refusal:?}"),
            }
        }
    }
}

#[test]
fn a_log_that_a_server_writes_names_it_wherever_it_is() {
    let Some(real) = real() else { return };
    for version in ETCDS {
        let sandbox = Sandbox::new();
        let data_dir = sandbox.path("m");
        let elsewhere = sandbox.text("log");
        let more = ["--wal-dir", elsewhere.as_str()];
        let start = Start { data_dir, name: "m1", more: &more, ..Start::default() };
        let etcd = real.etcd(version, &start);
        etcd.ctl(&["put", "/a", "b"]).expect(0, &["OK"]);
        let pid = format!("process {} (etcd-{version})", etcd.pid());
        let words = ["snapshot", "verify", "m", "--wal-dir", "log"];
        sandbox.kit(&words).expect(8, &[&pid]);
        // Its log alone says so too: record locks of open files, not of processes.
        fs::rename(sandbox.path("m/member/snap/db"), sandbox.path("db")).unwrap();
        sandbox.kit(&words).expect(8, &[&pid]);
        fs::rename(sandbox.path("db"), sandbox.path("m/member/snap/db")).unwrap();
        etcd.stop();
        sandbox.kit(&words).expect(0, &["m: good"]);
    }
}
