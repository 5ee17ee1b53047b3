use std::collections::BTreeMap;
use std::ops::ControlFlow;

use proptest::prelude::*;

use super::*;

/// All records ever noted, and of each whether it was given out as dead. Everything is found by
/// looking at all of them.
#[derive(Default)]
struct Model {
    keys: BTreeMap<Vec<u8>, Vec<Noted>>,
    compacted: i64,
}

#[derive(Clone, Copy)]
struct Noted {
    modified: Revision,
    latest: Option<Latest>,
    is_given: bool,
}

impl Model {
    fn note(&mut self, key: &[u8], modified: Revision, latest: Option<Latest>) {
        let records = self.keys.entry(key.to_vec()).or_default();
        records.push(Noted { modified, latest, is_given: false });
    }

    fn latest(&self, key: &[u8]) -> Option<Latest> {
        self.keys.get(key)?.last()?.latest
    }

    fn before(&self, key: &[u8], bound: Revision) -> Option<At> {
        let records = self.keys.get(key)?;
        let (at, record) = records.iter().enumerate().rfind(|(_, r)| r.modified < bound)?;
        let latest = record.latest?;
        let is_newest = at + 1 == records.len();
        Some(At { modified: record.modified, latest: is_newest.then_some(latest) })
    }

    fn visible(&self, span: Span<'_>, bound: Revision) -> Vec<(Vec<u8>, At)> {
        let keys = self.keys.keys().filter(|key| span.contains(key));
        keys.filter_map(|key| Some((key.clone(), self.before(key, bound)?))).collect()
    }

    /// The rows that a compaction removes, by what was noted: (superseded at, row).
    fn dead(&self, revision: i64) -> Vec<(i64, Dead)> {
        let mut dead = Vec::new();
        for records in self.keys.values() {
            let reached = records.partition_point(|r| r.modified.main <= revision);
            for (at, record) in records.iter().enumerate().take(reached) {
                let is_tombstone = record.latest.is_none();
                let is_last = at + 1 == reached;
                if record.is_given || is_last && (!is_tombstone || record.modified.main == revision)
                {
                    continue;
                }
                let next = records.get(at + 1).map_or(i64::MAX, |next| next.modified.main);
                let alone = if is_tombstone { record.modified.main + 1 } else { i64::MAX };
                dead.push((next.min(alone), Dead { revision: record.modified, is_tombstone }));
            }
        }
        dead.sort();
        dead
    }

    fn give(&mut self, given: &[Dead], revision: i64) {
        self.compacted = self.compacted.max(revision);
        let given: std::collections::BTreeSet<Revision> =
            given.iter().map(|dead| dead.revision).collect();
        for record in self.keys.values_mut().flatten() {
            if given.contains(&record.modified) {
                assert!(!record.is_given, "given out twice");
                record.is_given = true;
            }
        }
    }
}

/// The index, the model, and the revision that both are at.
#[derive(Default)]
struct Both {
    index: Index,
    model: Model,
    now: Revision,
}

impl Both {
    fn next(&mut self, is_new_main: bool) -> Revision {
        self.now = if is_new_main || self.now.main == 0 {
            Revision::new(self.now.main + 1, 0)
        } else {
            Revision::new(self.now.main, self.now.sub + 1)
        };
        self.now
    }

    fn put(&mut self, key: &[u8], is_new_main: bool, lease: i64) {
        let modified = self.next(is_new_main);
        let latest = match self.model.latest(key) {
            Some(before) => Latest { modified, version: before.version + 1, lease, ..before },
            None => Latest { create_revision: modified.main, modified, version: 1, lease },
        };
        self.index.put(key, latest);
        self.model.note(key, modified, Some(latest));
    }

    fn delete(&mut self, key: &[u8], is_new_main: bool) {
        let revision = self.next(is_new_main);
        self.index.delete(key, revision);
        self.model.note(key, revision, None);
    }

    fn take_dead(&mut self, revision: i64, max: usize) -> usize {
        let expected = self.model.dead(revision);
        let taken = self.index.take_dead(revision, max);
        assert_eq!(taken.len(), expected.len().min(max), "at {revision}");
        // Rows that one revision superseded come in any order.
        let died: BTreeMap<Revision, (i64, bool)> = expected
            .iter()
            .map(|(died, dead)| (dead.revision, (*died, dead.is_tombstone)))
            .collect();
        let died: Vec<(i64, bool)> = taken.iter().map(|dead| died[&dead.revision]).collect();
        for (at, (taken, (died, is_tombstone))) in taken.iter().zip(&died).enumerate() {
            assert_eq!(taken.is_tombstone, *is_tombstone);
            assert_eq!(*died, expected[at].0, "oldest superseder first");
        }
        self.model.give(&taken, revision);
        taken.len()
    }

    fn check_span(&self, span: Span<'_>) {
        let end = Revision::new(i64::MAX, 0);
        let live: Vec<(Vec<u8>, Latest)> = self
            .model
            .visible(span, end)
            .into_iter()
            .map(|(key, at)| (key, at.latest.unwrap()))
            .collect();
        let mut seen = Vec::new();
        self.index.each_latest(span, &mut |key, latest| {
            seen.push((key.to_vec(), *latest));
            ControlFlow::Continue(())
        });
        assert_eq!(seen, live, "{span:?}");
        assert_eq!(self.index.count(span), u64::try_from(live.len()).unwrap(), "{span:?}");
        if let Some(((key, latest), others)) = live.split_first() {
            let mut seen = Vec::new();
            self.index.each_latest(span, &mut |key, latest| {
                seen.push((key.to_vec(), *latest));
                if seen.len() > others.len() / 2 {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            });
            assert_eq!(seen.first(), Some(&(key.clone(), *latest)));
            assert_eq!(seen.len(), others.len() / 2 + 1);
        }
    }

    fn check_span_before(&self, span: Span<'_>, bound: Revision) {
        let mut seen = Vec::new();
        self.index.each_before(span, bound, &mut |key, at| {
            seen.push((key.to_vec(), *at));
            ControlFlow::Continue(())
        });
        let count = self.index.count_before(span, bound);
        assert_eq!(count, u64::try_from(seen.len()).unwrap(), "{span:?} {bound}");
        if bound.main > self.model.compacted {
            assert_eq!(seen, self.model.visible(span, bound), "{span:?} {bound}");
        }
        for (key, at) in seen {
            let row = self.model.keys[&key].iter().find(|r| r.modified == at.modified).unwrap();
            assert!(!row.is_given && row.latest.is_some(), "readable, but given out");
        }
    }

    fn check_key(&self, key: &[u8]) {
        assert_eq!(self.index.latest(key), self.model.latest(key), "{key:?}");
        for main in self.model.compacted..=self.now.main + 1 {
            for sub in [0, 1, i64::MAX] {
                let bound = Revision::new(main + 1, sub);
                assert_eq!(self.index.before(key, bound), self.model.before(key, bound));
            }
        }
    }

    /// What will be removed at any revision that can still be compacted.
    fn check_dead(&self) {
        for revision in self.model.compacted..=self.now.main + 2 {
            let dead = self.model.dead(revision);
            for (key, records) in &self.model.keys {
                for record in records {
                    if record.is_given || record.modified.main > revision {
                        continue;
                    }
                    assert_eq!(
                        self.index.is_dead(key, record.modified, revision),
                        dead.iter().any(|(_, dead)| dead.revision == record.modified),
                        "{key:?} {} at {revision}",
                        record.modified
                    );
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Put { key: u8, is_new_main: bool, lease: i64 },
    Delete { key: u8, is_new_main: bool },
    Compact { back: i64, max: usize },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let is_new_main = || prop::bool::weighted(0.6);
    let op = prop_oneof![
        5 => (0..KEYS_FEW, is_new_main(), prop_oneof![Just(0), any::<i64>()])
            .prop_map(|(key, is_new_main, lease)| Op::Put { key, is_new_main, lease }),
        3 => (0..KEYS_FEW, is_new_main())
            .prop_map(|(key, is_new_main)| Op::Delete { key, is_new_main }),
        2 => (0_i64..6, 0_usize..6).prop_map(|(back, max)| Op::Compact { back, max }),
    ];
    prop::collection::vec(op, 0..80)
}

const KEYS_FEW: u8 = 7;

fn few(key: u8) -> &'static [u8] {
    [&b""[..], b"\0", b"a", b"a\0", b"aa", b"b", b"\xff\xff"][usize::from(key)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_history_reads_as_it_was(ops in ops()) {
        let mut both = Both::default();
        for op in ops {
            match op {
                Op::Put { key, is_new_main, lease } => both.put(few(key), is_new_main, lease),
                Op::Delete { key, is_new_main } => both.delete(few(key), is_new_main),
                Op::Compact { back, max } => {
                    let revision = (both.now.main - back).max(both.model.compacted);
                    // A compaction is worked off before the next one begins.
                    if revision > both.model.compacted {
                        let before = both.model.compacted;
                        while both.take_dead(before, 3) == 3 {}
                    }
                    both.take_dead(revision, max);
                }
            }
            both.check_dead();
        }
        for key in 0..KEYS_FEW {
            both.check_key(few(key));
            for span in [
                Span::Key(few(key)),
                Span::From(few(key)),
                Span::Range(few(key), b"aa"),
                Span::Range(b"a", few(key)),
            ] {
                both.check_span(span);
                for main in 0..=both.now.main + 1 {
                    both.check_span_before(span, Revision::new(main, 0));
                    both.check_span_before(span, Revision::new(main, 1));
                }
            }
        }
        while both.take_dead(both.now.main, 4) == 4 {}
        both.check_dead();
    }
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

    fn bytes(&mut self, len: u64, letters: u64) -> Vec<u8> {
        (0..len).map(|_| u8::try_from(self.throw(letters)).unwrap()).collect()
    }

    /// Keys of all kinds: like those of Kubernetes, binary, nested in one another, and long.
    fn key(&mut self) -> Vec<u8> {
        let number = self.throw(300);
        match self.throw(10) {
            0..4 => {
                let name = self.throw(40);
                format!("/registry/pods/team-{}/app-7d9c8b-{name:03}", number % 7).into_bytes()
            }
            4 => {
                let len = self.throw(12);
                self.bytes(len, 3)
            }
            5 => {
                let len = self.throw(10);
                self.bytes(len, 256)
            }
            6 => vec![0; usize::try_from(number).unwrap()],
            7 => [&b"/registry/pods/"[..], &vec![b'x'; usize::try_from(number).unwrap()]].concat(),
            8 => {
                let len = self.throw(5_001);
                let mut key = vec![b'l'; usize::try_from(len).unwrap()];
                key.extend(number.to_be_bytes());
                key.truncate(5_000);
                key
            }
            _ => number.to_be_bytes().to_vec(),
        }
    }
}

/// Grows and shrinks, compacts in small steps while it does, and holds every reading against the
/// model. The tree gets three levels.
#[test]
fn leaves_split_and_merge() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut both = Both::default();
    for phase in 0..4_u64 {
        for turn in 0..3_000 {
            let is_new_main = dice.throw(3) > 0;
            if phase % 2 == 0 {
                let key = dice.key();
                both.put(&key, is_new_main, 0);
            } else {
                let some = dice.key();
                let near =
                    both.model.keys.range(some..).find(|(_, r)| r.last().unwrap().latest.is_some());
                if let Some((key, _)) = near {
                    let key = key.clone();
                    both.delete(&key, is_new_main);
                }
            }
            if turn % 1_000 == 999 {
                both.take_dead(both.now.main - 50, 700);
                both.index.tree.check();
            }
        }
        while both.take_dead(both.now.main - 20, 1_500) == 1_500 {}
        both.index.tree.check();
        // What was given out and is no key's newest record may be forgotten here as well.
        for records in both.model.keys.values_mut() {
            let last = records.len() - 1;
            let mut at = 0;
            records.retain(|record| {
                at += 1;
                !record.is_given || at - 1 == last && record.latest.is_some()
            });
        }
        both.model.keys.retain(|_, records| !records.is_empty());
        let live = both.index.count(Span::From(b""));
        assert_eq!(live > 1_000, phase % 2 == 0, "{live} keys");
        both.check_span(Span::From(b""));
        both.check_span_before(Span::From(b""), Revision::new(both.now.main - 10, 0));
        for _ in 0..40 {
            let [a, b] = [dice.key(), dice.key()];
            both.check_span(Span::Range(&a, &b));
            both.check_span(Span::From(&a));
            let back = i64::try_from(dice.throw(20)).unwrap();
            let bound = Revision::new(both.now.main - back, 0);
            both.check_span_before(Span::Range(&a, &b), bound);
            both.check_span_before(Span::Key(&a), bound);
            assert_eq!(both.index.latest(&a), both.model.latest(&a));
            assert_eq!(both.index.before(&a, bound), both.model.before(&a, bound));
        }
    }
    // Nothing is left when all is deleted.
    let keys: Vec<Vec<u8>> = both.model.keys.keys().cloned().collect();
    for key in keys {
        both.delete(&key, true);
    }
    while both.index.take_dead(both.now.main + 1, 100).len() == 100 {}
    both.index.tree.check();
    assert_eq!(both.index.count(Span::From(b"")), 0);
    let left = both.index.memory_bytes();
    assert!(left < 2 << 20, "{left} bytes for no key");
}

/// Keys come in order, all or some of them, again and again, with compactions and other keys in
/// between.
#[test]
fn keys_in_order_go_where_the_others_are() {
    let mut dice = Dice(0x2545_f491_4f6c_dd1d);
    let mut both = Both::default();
    let mut keys: Vec<Vec<u8>> = (0..4_000).map(|_| dice.key()).collect();
    keys.sort();
    keys.dedup();
    for pass in 0..12_u64 {
        let start = usize::try_from(dice.throw(1_000)).unwrap() * usize::from(pass > 0);
        let some = keys.iter().skip(start).step_by(1 + usize::try_from(pass % 3).unwrap());
        for key in some {
            match dice.throw(40) {
                0 => {
                    let other = dice.key();
                    both.put(&other, true, 0);
                }
                1 => drop(both.take_dead(both.now.main - 30, 20)),
                2..8 if both.index.latest(key).is_some() => both.delete(key, true),
                _ => both.put(key, true, 0),
            }
        }
        both.index.tree.check();
        both.check_span(Span::From(b""));
        both.check_span_before(Span::From(b""), Revision::new(both.now.main - 25, 0));
    }
}

#[test]
fn many_keys_are_small_and_found() {
    let mut dice = Dice(88_172_645_463_325_252);
    let mut index = Index::default();
    let mut expected = BTreeMap::new();
    for main in 2..200_002 {
        let key = dice.bytes(16, 256);
        let modified = Revision::new(main, 0);
        let latest = Latest { create_revision: main, modified, version: 1, lease: main % 3 };
        index.put(&key, latest);
        expected.insert(key, latest);
    }
    index.tree.check();
    assert_eq!(index.count(Span::From(b"")), 200_000);
    let mut seen = expected.iter();
    index.each_latest(Span::From(b""), &mut |key, latest| {
        assert_eq!(seen.next().map(|(key, latest)| (key.as_slice(), latest)), Some((key, latest)));
        ControlFlow::Continue(())
    });
    assert_eq!(seen.next(), None);
    for (place, key) in (0_u64..).zip(expected.keys()) {
        if place % 7 > 0 {
            continue;
        }
        assert_eq!(index.latest(key).as_ref(), expected.get(key));
        assert_eq!(index.count(Span::Range(b"", key)), place);
    }
    let each = index.memory_bytes() / 200_000;
    assert!(each < 16 + 40, "{each} bytes a key of 16");
}

/// A key that is written all the time is read in the past without walking over all its records.
#[test]
fn a_hot_key_is_read_in_the_past() {
    let mut index = Index::default();
    for main in 2..100_002 {
        let modified = Revision::new(main, 0);
        index.put(b"hot", Latest { create_revision: 2, modified, version: main - 1, lease: 0 });
    }
    let read = |index: &Index, main| index.before(b"hot", Revision::new(main, 0));
    for main in 3..100_002 {
        let at = read(&index, main).unwrap();
        assert_eq!((at.modified.main, at.latest), (main - 1, None));
    }
    assert_eq!(index.take_dead(50_000, 1 << 20).len(), 49_998);
    assert_eq!(read(&index, 50_000), None);
    for main in 50_001..100_002 {
        assert_eq!(read(&index, main).unwrap().modified.main, main - 1);
    }
    assert_eq!(read(&index, 100_002).unwrap().latest.unwrap().version, 100_000);
}

/// What etcd's restore with a higher revision leaves behind: a record without anything, whose key
/// reads as the empty one.
#[test]
fn a_record_of_nothing_is_kept_as_it_is() {
    let mut index = Index::default();
    let modified = Revision::new(1_000_000_000, 0);
    index.put(b"", Latest { modified, ..Latest::default() });
    assert_eq!(index.latest(b"").unwrap().modified, modified);
    assert_eq!(index.count(Span::From(b"")), 1);
    assert!(index.take_dead(i64::MAX, 9).is_empty());
    // Numbers that no etcd writes.
    let odd = Latest { create_revision: -1, modified, version: i64::MIN, lease: -7 };
    index.put(b"odd", odd);
    assert_eq!(index.latest(b"odd"), Some(odd));
}
