//! Hashes that real servers gave, and random histories against a model written like etcd's index.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

use proptest::prelude::*;

use super::*;
use crate::etcd::revision::Revision;

type Row = (RevisionKey, Vec<u8>);

/// Writes a history down as rows.
#[derive(Clone, Default)]
struct History {
    rows: Vec<Row>,
    /// Create revision and version of the keys that live.
    live: BTreeMap<Vec<u8>, (i64, i64)>,
}

impl History {
    fn put(&mut self, (main, sub): (i64, i64), key: &[u8], value: &[u8]) {
        let (create_revision, version) = self.live.get(key).copied().unwrap_or((main, 0));
        let version = version + 1;
        self.live.insert(key.to_vec(), (create_revision, version));
        let record = KeyValue {
            key,
            create_revision,
            mod_revision: main,
            version,
            value,
            ..KeyValue::default()
        };
        let mut out = Vec::new();
        record.encode(&mut out);
        let revision = Revision::new(main, sub);
        self.rows.push((RevisionKey { revision, is_tombstone: false }, out));
    }

    fn delete(&mut self, (main, sub): (i64, i64), key: &[u8]) {
        self.live.remove(key);
        let mut out = Vec::new();
        KeyValue::tombstone(key).encode(&mut out);
        let revision = Revision::new(main, sub);
        self.rows.push((RevisionKey { revision, is_tombstone: true }, out));
    }
}

fn row_key(key: &RevisionKey) -> Vec<u8> {
    match key.is_tombstone {
        true => key.revision.encode_tombstone().to_vec(),
        false => key.revision.encode().to_vec(),
    }
}

fn show(rows: &[Row], visitor: &mut dyn Visit) {
    let bucket = [schema::KEY.to_vec()];
    let at = At { bucket: &bucket, page: 2, offset: 0 };
    visitor.bucket(&at, 0);
    for (key, value) in rows {
        visitor.entry(&at, &row_key(key), value);
    }
}

fn hash(rows: &[Row], compaction: Compaction, revision: i64) -> Result<HashKv, String> {
    let mut walk = |visitor: &mut dyn Visit| -> Result<(), Infallible> {
        show(rows, visitor);
        Ok(())
    };
    hash_kv(compaction, revision, &mut walk).map_err(|error| format!("{error:?}"))
}

fn finished(revision: i64) -> Compaction {
    let revision = Some(revision).filter(|revision| *revision >= 0);
    Compaction { finished: revision, scheduled: revision }
}

/// Rows that etcd 3.5.16 and newer leave of a compaction.
fn compacted(rows: &[Row], revision: i64) -> Vec<Row> {
    let mut newest = NewestRows::new(revision, revision);
    show(rows, &mut newest);
    let newests = newest.finish().unwrap();
    let kept = rows.iter().zip(0_u32..).filter(|((key, _), row)| {
        let above = key.revision.main > revision;
        above || newests.rows.contains(*row) || newests.tombstones.contains(*row)
    });
    kept.map(|(row, _)| row.clone()).collect()
}

#[test]
fn a_short_history_has_the_hash_of_every_etcd() {
    let mut history = History::default();
    history.put((2, 0), b"foo", b"bar");
    history.put((3, 0), b"foo", b"bar2");
    history.put((4, 0), b"k2", b"v2");
    history.delete((5, 0), b"k2");
    let want = HashKv { hash: 736_073_141, hash_revision: 5, compact_revision: -1 };
    assert_eq!(hash(&history.rows, finished(-1), 0), Ok(want));
    let empty = HashKv { hash: 1_084_519_789, hash_revision: 1, compact_revision: -1 };
    assert_eq!(hash(&[], finished(-1), 0), Ok(empty));
}

fn long_history() -> Vec<Row> {
    let mut history = History::default();
    history.put((2, 0), b"a", b"1");
    history.put((3, 0), b"b", b"1");
    history.put((4, 0), b"a", b"2");
    history.delete((5, 0), b"b");
    history.put((6, 0), b"b", b"2");
    history.put((7, 0), b"c", b"1");
    history.delete((8, 0), b"c");
    history.put((9, 0), b"x", b"1");
    history.put((9, 1), b"y", b"1");
    history.delete((9, 2), b"a");
    history.put((10, 0), b"a", b"3");
    history.delete((11, 0), b"y");
    history.put((12, 0), b"d", b"1");
    history.delete((13, 0), b"d");
    history.rows
}

#[test]
fn hashes_around_compactions_are_those_of_real_servers() {
    let rows = long_history();
    let want: &[(i64, &[(i64, u32)])] = &[
        (
            -1,
            &[
                (5, 1_416_966_122),
                (6, 1_868_614_408),
                (8, 2_696_949_146),
                (9, 1_322_208_242),
                (12, 592_643_988),
                (13, 3_929_219_905),
            ],
        ),
        (
            5,
            &[
                (5, 1_336_054_247),
                (6, 4_064_611_539),
                (8, 485_684_332),
                (9, 2_253_312_590),
                (10, 3_004_578_802),
                (13, 2_687_870_440),
            ],
        ),
        (8, &[(9, 2_711_705_950), (10, 2_391_797_053), (13, 2_319_709_893)]),
        (9, &[(10, 2_869_253_588), (13, 4_202_633_070)]),
        (13, &[(13, 226_243_433)]),
    ];
    for (compact_revision, hashes) in want {
        let compact_revision = *compact_revision;
        let left = compacted(&rows, compact_revision);
        for (hash_revision, want) in *hashes {
            let want = HashKv { hash: *want, hash_revision: *hash_revision, compact_revision };
            let done = finished(compact_revision);
            assert_eq!(hash(&left, done, *hash_revision), Ok(want), "{compact_revision}");
            // Begun, and nothing deleted yet: what is left after a restart is the same.
            let begun = Compaction { finished: None, scheduled: done.scheduled };
            assert_eq!(hash(&rows, begun, *hash_revision), Ok(want), "{compact_revision}");
        }
    }
    let left: Vec<_> = compacted(&rows, 13).iter().map(|row| row.0.revision).collect();
    let want = [(6, 0), (9, 0), (10, 0), (13, 0)].map(|(main, sub)| Revision::new(main, sub));
    assert_eq!(left, want);
}

#[test]
fn revisions_that_are_gone_or_to_come_are_refused() {
    let rows = compacted(&long_history(), 9);
    assert_eq!(hash(&rows, finished(9), 8).unwrap_err(), "Compacted(9)");
    assert_eq!(hash(&rows, finished(9), 14).unwrap_err(), "Future(13)");
    assert!(hash(&rows, finished(9), 9).is_ok());
    assert_eq!(hash(&[], finished(-1), 2).unwrap_err(), "Future(1)");
    let bad = [(RevisionKey { revision: Revision::new(2, 0), is_tombstone: false }, vec![8, 1])];
    assert!(hash(&bad, finished(1), 0).unwrap_err().contains("RecordBytes"));
}

#[test]
fn hash_leaves_out_what_its_version_leaves_out() {
    let bucket = [schema::META.to_vec()];
    let at = At { bucket: &bucket, page: 2, offset: 0 };
    let keys = ["confState", "consistent_index", "storageVersion", "term"];
    let hashed = |minor| {
        let mut hash = BackendHash::new(skipped_by_hash(minor));
        hash.bucket(&at, 0);
        keys.iter().for_each(|key| hash.entry(&at, key.as_bytes(), b"1"));
        hash.hash()
    };
    assert_eq!(hashed(4), crc32c::crc32c(b"metaconfState1storageVersion1term1"));
    assert_eq!(hashed(5), crc32c::crc32c(b"metaconfState1storageVersion1"));
    assert_eq!(hashed(6), crc32c::crc32c(b"metaconfState1"));
    assert_eq!(hashed(7), hashed(6));
}

/// etcd's index, as simple as it can be: of each key, its generations.
#[derive(Default)]
struct Index(BTreeMap<Vec<u8>, Vec<Vec<Revision>>>);

impl Index {
    fn of(rows: &[Row]) -> Self {
        let mut index = Self::default();
        for (key, value) in rows {
            let user_key = KeyValue::decode(value).unwrap().key.to_vec();
            let is_new = !index.0.contains_key(&user_key);
            let generations = index.0.entry(user_key).or_insert_with(|| vec![Vec::new()]);
            let last = generations.last_mut().unwrap();
            match key.is_tombstone {
                false => last.push(key.revision),
                true if last.is_empty() && !is_new => {}
                true => {
                    last.push(key.revision);
                    generations.push(Vec::new());
                }
            }
        }
        index
    }

    /// The generation that is looked at, the place in it that is kept, and if it is the last one.
    fn newest(generations: &[Vec<Revision>], at: i64) -> (&[Revision], Option<usize>, bool) {
        let last = generations.len() - 1;
        let chosen = generations[..last].iter().position(|g| g.last().unwrap().main >= at);
        let chosen = chosen.unwrap_or(last);
        let found = generations[chosen].iter().rposition(|revision| revision.main <= at);
        (&generations[chosen], found, chosen == last)
    }

    fn available(&self, at: i64) -> BTreeSet<Revision> {
        let newest = self.0.values().filter_map(|generations| {
            let (generation, found, _) = Self::newest(generations, at);
            Some(generation[found?])
        });
        newest.collect()
    }

    fn keep(&self, at: i64) -> BTreeSet<Revision> {
        let newest = self.0.values().filter_map(|generations| {
            let (generation, found, is_last) = Self::newest(generations, at);
            let found = found?;
            (is_last || found + 1 < generation.len()).then(|| generation[found])
        });
        newest.collect()
    }
}

fn model_compacted(rows: &[Row], at: i64) -> Vec<Row> {
    let available = Index::of(rows).available(at);
    let kept = |row: &&Row| row.0.revision.main > at || available.contains(&row.0.revision);
    rows.iter().filter(kept).cloned().collect()
}

fn model_hash(rows: &[Row], compact_revision: i64, revision: i64) -> u32 {
    let keep = Index::of(rows).keep(revision);
    let mut crc = crc32c::crc32c(b"key");
    for (key, value) in rows {
        let main = key.revision.main;
        let dropped = main <= compact_revision && !keep.is_empty() && !keep.contains(&key.revision);
        let at_compaction = main == compact_revision && key.is_tombstone;
        if main <= revision && !dropped && !at_compaction {
            crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, &row_key(key)), value);
        }
    }
    crc
}

/// Transactions of puts and deletes of few keys; a delete of what is not there writes nothing.
fn histories() -> impl Strategy<Value = Vec<Row>> {
    let change = (0..5_u8, 0..10_u8);
    let transaction = proptest::collection::vec(change, 1..4);
    proptest::collection::vec(transaction, 0..25).prop_map(|transactions| {
        let mut history = History::default();
        let mut main = 1;
        for changes in transactions {
            let (mut sub, mut touched) = (0, BTreeSet::new());
            for (key, what) in changes {
                if !touched.insert(key) {
                    continue;
                }
                // Key 0 is the mark of a bumped restore: no bytes at all.
                if key == 0 && what > 3 {
                    let revision = Revision::new(main + 1, sub);
                    let mark = RevisionKey { revision, is_tombstone: false };
                    history.rows.push((mark, Vec::new()));
                    sub += 1;
                } else if key > 0 && what > 3 {
                    history.put((main + 1, sub), &[key], &[what]);
                    sub += 1;
                } else if history.live.contains_key(&[key][..]) {
                    history.delete((main + 1, sub), &[key]);
                    sub += 1;
                }
            }
            main += i64::from(sub > 0);
        }
        history.rows
    })
}

proptest! {
    #[test]
    fn any_history_hashes_and_compacts_as_in_etcd(
        rows in histories(),
        first in 0..30_i64,
        second in 0..30_i64,
    ) {
        let current = rows.last().map_or(1, |row| row.0.revision.main);
        let mut left = rows;
        let mut before = -1;
        for at in [first.min(second), first.max(second)] {
            if at <= before || at > current {
                continue;
            }
            let want = model_compacted(&left, at);
            let begun = Some(before).filter(|revision| *revision >= 0);
            for revision in at..=current {
                let reach = if revision == 0 { current } else { revision };
                let hashed = (model_hash(&want, at, reach), reach, at);
                for (rows, finished) in [(&want, Some(at)), (&left, begun)] {
                    if at == 0 && finished != Some(0) {
                        // A compaction to revision 0 is not taken up again.
                        continue;
                    }
                    let compaction = Compaction { finished, scheduled: Some(at) };
                    let got = hash(rows, compaction, revision).unwrap();
                    let got = (got.hash, got.hash_revision, got.compact_revision);
                    prop_assert_eq!(got, hashed);
                }
            }
            let got = compacted(&left, at);
            prop_assert_eq!(&got, &want);
            (left, before) = (got, at);
        }
    }
}
