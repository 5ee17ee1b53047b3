//! `snapshot inspect` against what a naive reading of the same file gives.

use std::collections::BTreeMap;
use std::fs;

use etcdkit::etcd::record::KeyValue;
use etcdkit::etcd::revision::{Revision, RevisionKey};
use etcdkit::format::page::{self, BRANCH, BUCKET_FLAG, BucketHeader, Header, LEAF};
use etcdkit::kube::registry::{DEFAULT_PREFIX, parse_key};
use etcdkit::ops::Silent;
use etcdkit::ops::inspect::{Options, Report, inspect};
use proptest::prelude::*;

use crate::all;
use crate::support::{
    Rows, Sandbox, VERSIONS, from_tar, kubernetes, seal, snapshot, unpack, unzip,
};

fn inspected(sandbox: &Sandbox, depth: Option<u32>, top: usize) -> Report {
    let options = Options { path: sandbox.path("s.db"), wal_dir: None, depth, top };
    let report = inspect(&options, &Silent).unwrap();
    assert!(!report.partial && !report.with_log, "{:?}", report.findings.kept());
    report
}

/// A key's surviving records, oldest first: revision, row bytes, value bytes, tombstone.
type Records = Vec<(i64, u64, u64, bool)>;
type Lives = BTreeMap<Vec<u8>, Records>;
type Figure<'a> = &'a dyn Fn(&Vec<u8>, &Records) -> u64;

fn lives(rows: &Rows) -> Lives {
    let mut lives = Lives::new();
    for (key, value) in rows.buckets.get(&vec![b"key".to_vec()]).into_iter().flatten() {
        let at = RevisionKey::decode(key).unwrap();
        let record = KeyValue::decode(value).unwrap();
        if !record.key.is_empty() {
            let bytes = (key.len() + value.len()) as u64;
            let found = (at.revision.main, bytes, record.value.len() as u64, at.is_tombstone);
            lives.entry(record.key.to_vec()).or_default().push(found);
        }
    }
    lives
}

/// Row bytes of the living record and of the others.
fn split(records: &[(i64, u64, u64, bool)]) -> (u64, u64) {
    let all: u64 = records.iter().map(|record| record.1).sum();
    let live = records.last().filter(|last| !last.3).map_or(0, |last| last.1);
    (live, all - live)
}

/// What every page of a whole file holds, by a walk of its own.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pages {
    used: u64,
    branch: u64,
    leaf: u64,
    /// Leaf bytes that no header, element, key or value covers.
    tails: u64,
}

impl Pages {
    fn enter(&mut self, bytes: &[u8], size: usize, id: u64) {
        let at = id as usize * size;
        let header = Header::decode(&bytes[at..]).unwrap();
        let span = header.overflow as usize + 1;
        let whole = &bytes[at..at + span * size];
        self.used += span as u64;
        if header.flags == BRANCH {
            self.branch += whole.len() as u64;
            for index in 0..header.count {
                self.enter(bytes, size, page::branch(whole, header.count, index).unwrap().child);
            }
            return;
        }
        assert_eq!(header.flags, LEAF);
        self.leaf += whole.len() as u64;
        let mut covered = 16;
        for index in 0..header.count {
            let element = page::leaf(whole, header.count, index).unwrap();
            covered += 16 + element.key.len() + element.value.len();
            if element.flags & BUCKET_FLAG != 0 {
                let bucket = BucketHeader::decode(element.value).unwrap();
                if bucket.root != 0 {
                    self.enter(bytes, size, bucket.root);
                }
            }
        }
        self.tails += (whole.len() - covered) as u64;
    }
}

/// Holds a report against a naive reading of the same bytes.
fn compare(name: &str, bytes: &[u8], report: &Report) {
    let space = &report.space;
    assert_eq!(report.size_bytes, bytes.len() as u64, "{name}");
    assert_eq!(space.total(), report.size_bytes, "{name}: {space:?}");
    let json: u64 = report.json()["space"]
        .as_object()
        .unwrap()
        .values()
        .map(|bytes| bytes.as_u64().unwrap())
        .sum();
    assert_eq!(json, report.size_bytes, "{name}");

    let rows = Rows::read(bytes);
    let lives = lives(&rows);
    let sum = |of: Figure<'_>| -> u64 { lives.iter().map(|(key, records)| of(key, records)).sum() };
    let is_live = |records: &[(i64, u64, u64, bool)]| !records.last().unwrap().3;
    assert_eq!(report.keys, sum(&|_, records| u64::from(is_live(records))), "{name}");
    assert_eq!(report.revisions, sum(&|_, records| records.len() as u64), "{name}");
    assert_eq!(report.live_bytes, sum(&|_, records| split(records).0), "{name}");
    assert_eq!(report.history_bytes, sum(&|_, records| split(records).1), "{name}");
    assert_eq!(space.history, report.history_bytes, "{name}");
    let keys = sum(&|key, records| if is_live(records) { key.len() as u64 } else { 0 });
    assert_eq!(space.live_keys, keys, "{name}");
    let values = |_: &Vec<u8>, records: &Records| {
        let last = records.last().unwrap();
        if last.3 { 0 } else { last.2 }
    };
    assert_eq!(space.live_values, sum(&values), "{name}");
    let live = space.live_keys + space.live_values + space.live_overhead;
    assert_eq!(live, report.live_bytes, "{name}");

    let size = report.page_bytes as usize;
    let file = etcdkit::bolt::File::from_bytes(bytes.to_vec()).unwrap();
    let mut pages = Pages::default();
    pages.enter(bytes, size, file.meta().root);
    assert_eq!((space.branch, space.page_tails), (pages.branch, pages.tails), "{name}");
    let in_leaves = live
        + space.history
        + space.other_records
        + space.other_buckets
        + space.page_headers
        + space.page_tails;
    assert_eq!(in_leaves, pages.leaf, "{name}");
    let rest = file.meta().high_water_mark - 2 - pages.used;
    assert_eq!(space.free + space.freelist, rest * size as u64, "{name}");
    assert_eq!((space.meta, space.leaked, space.unusable), (2 * size as u64, 0, 0), "{name}");

    // Groups are a partition of the keys, and each has what its keys have.
    let total: u64 = report.groups.iter().map(|group| group.bytes()).sum();
    assert_eq!(total, report.live_bytes + report.history_bytes, "{name}");
    for group in &report.groups {
        let prefix = group.prefix.as_ref().unwrap();
        let inside = |key: &[u8]| match (&group.resource, parse_key(key, DEFAULT_PREFIX)) {
            (Some(resource), Some(stored)) => {
                let namespace = group.namespace.as_deref();
                stored.resource_name() == *resource
                    && (namespace.is_none() || stored.namespace == namespace)
            }
            (None, None) => parent(key, prefix.matches('/').count()) == prefix.as_bytes(),
            _ => false,
        };
        let own = lives.iter().filter(|(key, _)| inside(key)).map(|(_, records)| records);
        let own: Vec<_> = own.collect();
        let figures = (
            own.iter().filter(|records| is_live(records)).count() as u64,
            own.iter().map(|records| records.len() as u64).sum::<u64>(),
            own.iter().map(|records| split(records).0).sum::<u64>(),
            own.iter().map(|records| split(records).1).sum::<u64>(),
        );
        let ours = (group.keys, group.revisions, group.live_bytes, group.history_bytes);
        assert_eq!(ours, figures, "{name}: {}", group.name());
    }

    compare_top(name, &lives, report);
    let others = rows.buckets.iter().filter(|(path, _)| path.len() == 1);
    let mut buckets: Vec<u64> = others
        .map(|(_, rows)| rows.iter().map(|(k, v)| (k.len() + v.len()) as u64).sum())
        .collect();
    buckets.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(report.buckets.iter().map(|b| b.bytes).collect::<Vec<_>>(), buckets, "{name}");
}

/// A key up to its last slash, or up to so many of them where the grouping stopped there: only for
/// keys that begin with one slash and hold no two in a row.
fn parent(key: &[u8], slashes: usize) -> &[u8] {
    let mut places = key.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    let last = places.clone().next_back();
    let depth = places.clone().count();
    match slashes {
        0 => &key[..last.map_or(0, |last| last + 1)],
        // Two segments are three slashes; a shorter path is whole.
        3 => &key[..places.nth(2).map_or(0, |at| at + 1)],
        _ if depth == slashes => &key[..last.unwrap() + 1],
        _ => &[],
    }
}

fn compare_top(name: &str, lives: &Lives, report: &Report) {
    let largest =
        |records: &Records| records.iter().filter(|record| !record.3).map(|record| record.2).max();
    let mut values: Vec<u64> = lives.values().filter_map(largest).collect();
    values.sort_unstable_by(|a, b| b.cmp(a));
    values.truncate(10);
    let ours: Vec<u64> = report.largest_values.iter().map(|value| value.value_bytes).collect();
    assert_eq!(ours, values, "{name}");
    for value in &report.largest_values {
        let records = &lives[value.key.as_bytes()];
        let of_it = records.iter().rfind(|record| record.0 == value.revision && !record.3);
        assert_eq!(of_it.unwrap().2, value.value_bytes, "{name}: {value:?}");
        let last = records.last().unwrap();
        let is_live = !last.3 && last.0 == value.revision;
        assert_eq!(value.is_live, is_live, "{name}: {value:?}");
    }
    let mut counts: Vec<u64> = lives.values().map(|records| records.len() as u64).collect();
    counts.retain(|count| *count > 1);
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts.truncate(10);
    let ours: Vec<u64> = report.most_rewritten.iter().map(|key| key.revisions).collect();
    assert_eq!(ours, counts, "{name}");
    for key in &report.most_rewritten {
        let records = &lives[key.key.as_bytes()];
        let figures = (records.len() as u64, split(records).1);
        assert_eq!((key.revisions, key.history_bytes), figures, "{name}: {key:?}");
    }
}

#[test]
fn every_fixture_adds_up_and_equals_a_naive_reading() {
    let mut files: Vec<(String, Vec<u8>)> =
        all().into_iter().map(|(name, bytes, _)| (name, bytes)).collect();
    for version in VERSIONS {
        for archive in ["killed-datadir", "restored-m1-of-3"] {
            let path = format!("etcd-{version}/{archive}.tar.gz");
            files.push((path.clone(), from_tar(&path, "member/snap/db")));
        }
    }
    for (name, bytes) in files {
        let sandbox = Sandbox::with(&bytes);
        for depth in [None, Some(2)] {
            let report = inspected(&sandbox, depth, 10);
            compare(&name, &bytes, &report);
        }
        // A second reading shows the same, in the same order.
        assert_eq!(
            inspected(&sandbox, None, 10).json(),
            inspected(&sandbox, None, 10).json(),
            "{name}"
        );
    }
}

#[test]
fn files_of_every_page_size_add_up() {
    let sources = [
        Rows::read(&snapshot("3.6")).put("lease/in/deep", b"k", &[7; 5000]),
        Rows::read(&kubernetes()).put("other", &[b'k'; 300], b"v"),
    ];
    for (index, rows) in sources.iter().enumerate() {
        // Two members of one cluster may have files of different sizes: what is in them is equal.
        let mut contents = std::collections::BTreeSet::new();
        for shift in 10..=16 {
            for more in [0, 32, 77, 1 << 16] {
                let mut bytes = rows.database(1 << shift);
                if more == 32 {
                    bytes = seal(bytes);
                } else {
                    bytes.resize(bytes.len() + more, 0);
                }
                let sandbox = Sandbox::with(&bytes);
                let report = inspected(&sandbox, None, 10);
                assert_eq!(report.page_bytes, 1 << shift);
                let behind = (report.space.trailer, report.space.past_end);
                let want = if more == 32 { (32, 0) } else { (0, more as u64) };
                assert_eq!(behind, want, "{index} {shift}");
                assert_eq!(report.space.total(), bytes.len() as u64, "{index} {shift} {more}");
                let mut content = report.json();
                let sizes =
                    ["path", "size_bytes", "db_bytes", "page_bytes", "space", "defrag_bytes"];
                for size in sizes.into_iter().chain(["next"]) {
                    content.as_object_mut().unwrap().remove(size);
                }
                contents.insert(content.to_string());
            }
        }
        assert_eq!(contents.len(), 1, "{index}");
    }
}

/// One change of a random history: a key's number, and a value of so many bytes, or its end.
type Change = (u8, Option<u16>);

fn history(changes: &[Change]) -> Rows {
    let mut rows = Rows::default();
    for bucket in ["key", "meta", "zoo"] {
        rows = rows.put(bucket, b"drop", b"").clear(bucket);
    }
    let mut living: BTreeMap<u8, (i64, i64)> = BTreeMap::new();
    for (main, (number, value)) in (2..).zip(changes) {
        let key = match number % 5 {
            0 => format!("/registry/secrets/ns{}/s{number}", number % 3),
            1 => format!("/registry/events/ns{}/e{number}", number % 2),
            2 => format!("/a/b{}/c/d{number}", number % 4),
            3 => format!("/a/k{number}"),
            _ => format!("flat{number}"),
        };
        let revision = Revision::new(main, 0);
        let mut row = Vec::new();
        let Some(bytes) = value else {
            if living.remove(number).is_some() {
                KeyValue::tombstone(key.as_bytes()).encode(&mut row);
                rows = rows.put("key", &revision.encode_tombstone(), &row);
            }
            continue;
        };
        let (create_revision, version) = living.get(number).copied().unwrap_or((main, 0));
        living.insert(*number, (create_revision, version + 1));
        let value = vec![b'v'; usize::from(*bytes)];
        let record = KeyValue {
            key: key.as_bytes(),
            value: &value,
            create_revision,
            mod_revision: main,
            version: version + 1,
            ..KeyValue::default()
        };
        record.encode(&mut row);
        rows = rows.put("key", &revision.encode(), &row);
    }
    rows
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn any_history_equals_a_naive_reading(
        changes in prop::collection::vec(
            (0..40_u8, prop::option::weighted(0.8, 0..6000_u16)),
            0..300,
        ),
        shift in 10..=16_u32,
    ) {
        let bytes = history(&changes).database(1 << shift);
        let sandbox = Sandbox::with(&bytes);
        compare("generated", &bytes, &inspected(&sandbox, None, 10));
    }
}

#[test]
fn a_compaction_frees_what_is_said() {
    let put = |main, version, key: &[u8]| {
        let mut row = Vec::new();
        let record = KeyValue {
            key,
            value: &[b'v'; 100],
            create_revision: main - version + 1,
            mod_revision: main,
            version,
            ..KeyValue::default()
        };
        record.encode(&mut row);
        (Revision::new(main, 0).encode().to_vec(), row)
    };
    let mut rows = Rows::default();
    for (key, row) in [put(2, 1, b"a"), put(3, 2, b"a"), put(4, 1, b"b")] {
        rows = rows.put("key", &key, &row);
    }
    let first = put(2, 1, b"a");
    let freed = |rows: &Rows| {
        let sandbox = Sandbox::with(&rows.snapshot());
        let compaction = inspected(&sandbox, None, 10).compaction;
        (compaction.revision, compaction.records, compaction.bytes)
    };
    let superseded = (first.0.len() + first.1.len()) as u64;
    assert_eq!(freed(&rows), (4, 1, superseded));
    // A tombstone at the compaction revision itself is kept, as the record before it is not.
    let deleted = put(4, 1, b"b");
    let deleted = (deleted.0.len() + deleted.1.len()) as u64;
    let mut tombstone = Vec::new();
    KeyValue::tombstone(b"b").encode(&mut tombstone);
    let key = Revision::new(5, 0).encode_tombstone();
    let rows = rows.put("key", &key, &tombstone);
    assert_eq!(freed(&rows), (5, 2, superseded + deleted));
    let (key_6, row_6) = put(6, 1, b"c");
    let rows = rows.put("key", &key_6, &row_6);
    let tombstone = (key.len() + tombstone.len()) as u64;
    assert_eq!(freed(&rows), (6, 3, superseded + deleted + tombstone));
    // A server starts at the compaction revision where that is higher.
    let rows = rows.put("meta", b"finishedCompactRev", &Revision::new(900, 0).encode());
    assert_eq!(freed(&rows), (900, 3, superseded + deleted + tombstone));
}

/// What etcdutl 3.6's own defrag makes of these files, in bytes up to the high-water mark.
#[test]
fn a_defragmented_file_is_about_as_small_as_said() {
    let files = VERSIONS.map(|version| (snapshot(version), 57_344));
    let files = files.into_iter().chain([(kubernetes(), 323_584)]);
    for (bytes, theirs) in files {
        let sandbox = Sandbox::with(&bytes);
        let report = inspected(&sandbox, None, 10);
        let ours = report.db_bytes - report.defrag_bytes.unwrap();
        assert!(ours.abs_diff(theirs) <= 4096 * 2, "{ours} {theirs}");
    }
}

#[test]
fn the_program_shows_it_in_every_format() {
    let sandbox = Sandbox::with(&kubernetes());
    let inspect = "snapshot inspect s.db";
    let words = ["249 keys", "configmaps", "clusterroles.rbac", "31", "compaction at revision 296"];
    let ran = sandbox.run(inspect).expect(0, &words);
    assert!(!ran.stdout.contains("\n  authUsers"), "an empty bucket is listed: {ran}");
    assert!(!ran.stdout.contains("their revisions"), "{ran}");
    sandbox.run(&format!("{inspect} -w table")).expect(0, &words);
    sandbox.run(&format!("{inspect} -w fields")).expect(0, &["\"keys\" : 249"]);
    let deep = sandbox.run(&format!("{inspect} -w json --depth 2 --top 3")).expect(0, &[]).json();
    assert_eq!(deep["largest_values"].as_array().unwrap().len(), 3);
    let groups = deep["groups"].as_array().unwrap();
    let shop = groups.iter().find(|group| group["prefix"] == "/registry/configmaps/shop/");
    assert_eq!(shop.unwrap()["namespace"], "shop");
    for wrong in ["--depth 0", "--top 0", "--top 1001", "--depth x"] {
        sandbox.run(&format!("{inspect} {wrong}")).expect(2, &[]);
    }
    sandbox.run("snapshot inspect gone.db").expect(9, &["gone.db"]);
}

#[test]
fn a_data_directory_is_read_and_one_in_use_is_named() {
    let sandbox = Sandbox::new();
    sandbox.unpack("etcd-3.6/restored-m1-of-3.tar.gz", "d");
    let before = sandbox.picture();
    sandbox.run("snapshot inspect d").expect(0, &["/a/key-001"]);
    assert_eq!(sandbox.picture(), before);
    let file = fs::File::open(sandbox.path("d/member/snap/db")).unwrap();
    file.lock().unwrap();
    sandbox.run("snapshot inspect d").expect(8, &["in use by"]);
    sandbox.run("snapshot inspect d/member/snap/db").expect(8, &["in use by"]);
    drop(file);
    sandbox.run("snapshot inspect d").expect(0, &[]);
}

#[test]
fn values_are_never_shown() {
    let rows = history(&[(0, Some(3)), (0, Some(900)), (0, Some(30)), (5, Some(10)), (5, None)]);
    let sandbox = Sandbox::with(&rows.snapshot());
    for format in ["simple", "table", "json", "fields"] {
        let ran = sandbox.run(&format!("snapshot inspect s.db -w {format}")).expect(0, &[]);
        assert!(ran.stdout.contains("/registry/secrets/ns0/s0"), "{ran}");
        assert!(!ran.stdout.contains("vvv") && !ran.stderr.contains("vvv"), "{ran}");
    }
}

#[test]
fn of_a_damaged_file_it_shows_what_it_can() {
    let mut torn = kubernetes();
    torn[4096 * 30..4096 * 40].fill(0);
    let sandbox = Sandbox::with(&torn);
    let ran = sandbox.run("snapshot inspect s.db").expect(6, &["PARTIAL", "snapshot verify s.db"]);
    assert!(ran.stdout.contains("damaged pages"), "{ran}");
    let report = sandbox.run("snapshot inspect s.db -w json").expect(6, &[]).json();
    assert_eq!(report["partial"], true);
    assert!(report["keys"].as_u64().unwrap() > 10, "{report}");
    let space = report["space"].as_object().unwrap();
    let sum: u64 = space.values().filter_map(|b| b.as_u64()).sum();
    assert_eq!(sum, torn.len() as u64);
    // What cannot be reached may hold anything, so nothing of it is free or can be given back.
    assert!(report["defrag_bytes"].is_null(), "{report}");
    assert!(space["unknown"].as_u64().unwrap() > 0, "{report}");
    assert_eq!((&space["free"], &space["leaked"]), (&0.into(), &0.into()), "{report}");
    assert!(ran.stdout.contains("not known") && !ran.stdout.contains("would take"), "{ran}");
    // Cut in the middle of a page.
    let cut = &kubernetes()[..4096 * 50 + 77];
    sandbox.write("s.db", cut);
    let report = sandbox.run("snapshot inspect s.db -w json").expect(6, &[]).json();
    let sum: u64 = report["space"].as_object().unwrap().values().filter_map(|b| b.as_u64()).sum();
    assert_eq!((sum, &report["partial"]), (cut.len() as u64, &true.into()));
    sandbox.write("s.db", b"this is no database at all");
    sandbox.run("snapshot inspect s.db").expect(6, &["not a bbolt database"]);
}

#[test]
fn a_row_that_is_no_record_is_said_and_counted_apart() {
    let rows = Rows::read(&snapshot("3.6")).put("key", b"odd", b"row");
    let sandbox = Sandbox::with(&rows.snapshot());
    let report = sandbox.run("snapshot inspect s.db -w json").expect(6, &[]).json();
    assert_eq!(report["space"]["other_records"], 6);
    assert_eq!((&report["partial"], &report["keys"]), (&true.into(), &60.into()));
    let marked = unzip("kubernetes/snapshots/fx-before.restored-bumped-not-started.db.gz");
    sandbox.write("s.db", &marked);
    let report = sandbox.run("snapshot inspect s.db -w json").expect(0, &[]).json();
    assert_eq!(report["space"]["other_records"], 17);
}

fn next(sandbox: &Sandbox, subject: &str) -> Vec<String> {
    let line = format!("snapshot inspect {subject} -w json");
    let report = sandbox.run(&line).expect(0, &[]).json();
    report["next"].as_array().unwrap().iter().map(|line| line.as_str().unwrap().into()).collect()
}

/// What is proposed can be run on what was given, and does what was said.
#[test]
fn next_commands_are_for_what_was_given() {
    let bytes = snapshot("3.6");
    let sandbox = Sandbox::with(&bytes);
    let compact = "snapshot compact s.db --rev 91 -o OUT";
    assert_eq!(next(&sandbox, "s.db"), [format!("etcdkit {compact}")]);
    sandbox.run(compact).expect(0, &[]);
    assert_eq!(next(&sandbox, "OUT"), [""; 0]);
    sandbox.write("bare", &bytes[..bytes.len() - 32]);
    let compact = "snapshot compact bare --rev 91 -o BARE --skip-hash-check";
    assert_eq!(next(&sandbox, "bare"), [format!("etcdkit {}", compact.replace("BARE", "OUT"))]);
    sandbox.run(compact).expect(0, &[]);

    unpack("etcd-3.6/killed-datadir.tar.gz", &sandbox.path("d"));
    let lines = next(&sandbox, "d");
    assert_eq!(lines[0], "etcdkit defrag --data-dir d");
    assert!(lines[1].ends_with("etcdctl compaction 120 && etcdctl defrag"), "{lines:?}");
    let save = "snapshot save OUT --from-data-dir d";
    let compact = "snapshot compact OUT --rev 120 -o SMALL";
    assert!(lines[2].ends_with(&format!("etcdkit {save} && etcdkit {compact}")), "{lines:?}");
    fs::remove_file(sandbox.path("OUT")).unwrap();
    sandbox.run(save).expect(0, &[]);
    sandbox.run(compact).expect(0, &[]);
    assert_eq!(next(&sandbox, "d/member/snap/db")[0], "etcdkit defrag --data-dir d");
    for line in &lines {
        assert!(!line.contains("--cluster") && !line.contains("etcdutl"), "{lines:?}");
    }
}

/// A server's file is longer than its database, and is again after the next write.
#[test]
fn what_is_preallocated_is_no_gain() {
    let bytes = snapshot("3.6");
    let mut grown = bytes[..bytes.len() - 32].to_vec();
    let database = grown.len();
    grown.resize(16 << 20, 0);
    let sandbox = Sandbox::with(&grown);
    let report = inspected(&sandbox, None, 10);
    assert_eq!(report.db_bytes, database as u64);
    assert_eq!(report.space.past_end, (grown.len() - database) as u64);
    sandbox.write("t/s.db", &bytes);
    let exact = sandbox.run("snapshot inspect t/s.db -w json").expect(0, &[]).json();
    assert_eq!(report.defrag_bytes, exact["defrag_bytes"].as_u64());
    assert!(report.defrag_bytes.unwrap() < database as u64);
    let words = ["preallocated, comes back with the next write", "against its quota"];
    sandbox.run("snapshot inspect s.db").expect(0, &words);
    // And so says defrag.
    unpack("etcd-3.6/killed-datadir.tar.gz", &sandbox.path("d"));
    let ran = sandbox.run("defrag --data-dir d --dry-run").expect(0, &["against its quota"]);
    assert!(ran.stdout.contains("  db size ") && ran.stdout.contains("  file "), "{ran}");
}
