//! Tests of replays: random tails against the same entries applied one by one to plain rows.

use std::io::Cursor;

use proptest::prelude::*;

use super::*;
use crate::bolt::At;
use crate::bolt::builder::Builder;
use crate::bolt::overlay::Merge;
use crate::bolt::walk::walk;
use crate::etcd::apply::model::{RowState, data, entry, plans};
use crate::etcd::request::{Body, UserAdd, VersionName};

fn database(rows: &RowState) -> File {
    let mut builder = Builder::new(Cursor::new(Vec::new()), 4096).unwrap();
    for (bucket, rows) in &rows.buckets {
        builder.begin_bucket(bucket, 0).unwrap();
        rows.iter().for_each(|(key, value)| builder.put(key, value).unwrap());
        builder.end_bucket().unwrap();
    }
    File::from_bytes(builder.finish(4).unwrap().1.into_inner()).unwrap()
}

/// What is seen of a database with edits.
#[derive(Default)]
struct Seen(RowState);

impl bolt::Visit for Seen {
    fn bucket(&mut self, at: &At<'_>, _: u64) {
        self.0.buckets.entry(at.bucket[0].clone()).or_default();
    }
    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.0.put(&at.bucket[0], key, value);
    }
}

fn merged(file: &File, edits: Edits) -> RowState {
    let mut seen = Seen::default();
    let mut merge = Merge::new(edits, &mut seen);
    walk(file, &mut merge);
    merge.finish();
    seen.0.buckets.retain(|_, rows| !rows.is_empty());
    seen.0
}

fn run(file: &File, entries: &[Vec<u8>], first: u64) -> Result<Replayed, Error> {
    let rules = Rules { bcrypt_cost: 4, ..Rules::default() };
    let mut feed = |visit: &mut Visit<'_>| {
        for (index, data) in (first..).zip(entries) {
            visit(&entry(index, data))?;
        }
        Ok(())
    };
    replay(file, &rules, &mut feed, &|| false)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 128 } else { 1000 }))]

    #[test]
    fn a_tail_does_what_its_entries_do(plans in plans(40), cut in 0_usize..40) {
        let mut rows = RowState::default();
        let mut file = None;
        let mut entries = Vec::new();
        for plan in &plans {
            if entries.len() == cut {
                file = Some(database(&rows));
            }
            let (data, index) = (plan.data(), u64::try_from(entries.len()).unwrap() + 1);
            // What would stop etcd is in no log.
            if let Ok(effect) = apply::apply(&rows, &Rules::default(), &entry(index, &data)) {
                rows.take(&effect);
                entries.push(data);
            }
        }
        let file = file.unwrap_or_else(|| database(&rows));
        let replayed = run(&file, &entries, 1).unwrap();
        prop_assert_eq!(replayed.index, u64::try_from(entries.len()).unwrap());
        prop_assert_eq!(replayed.revision, rows.current_revision());
        rows.buckets.retain(|_, rows| !rows.is_empty());
        prop_assert_eq!(merged(&file, replayed.edits), rows);
    }
}

fn puts(count: usize) -> Vec<Vec<u8>> {
    let put = |n: usize| {
        let key = format!("k{n}");
        let put =
            crate::etcd::request::Put { key: key.as_bytes(), value: b"v", ..Default::default() };
        data(Body::Put(put))
    };
    (0..count).map(put).collect()
}

#[test]
fn gaps_are_refused() {
    let file = database(&RowState::default());
    let error = run(&file, &puts(2), 2).unwrap_err();
    assert!(error.to_string().contains("from entry 0 to entry 2"), "{error}");
    let mut entries = puts(3);
    entries[1] = vec![0x08, 1, 0x7a, 0];
    let error = run(&file, &entries, 1).unwrap_err();
    assert!(error.to_string().contains("entry 2 of the log: field 15"), "{error}");
}

#[test]
fn nothing_to_do_changes_nothing() {
    let mut rows = RowState::default();
    rows.put(schema::META, schema::META_CONSISTENT_INDEX, &7_u64.to_be_bytes());
    rows.put(schema::KEY, &Revision::new(9, 0).encode(), b"\x0a\x01a");
    let file = database(&rows);
    let replayed = run(&file, &puts(7), 1).unwrap();
    assert!(replayed.edits.is_empty());
    assert_eq!((replayed.index, replayed.entries, replayed.revision), (7, 0, 9));
    assert_eq!(run(&file, &puts(8), 1).unwrap().revision, 10);
}

#[test]
fn a_log_of_3_4_leaves_no_term() {
    let version =
        |text: &'static [u8]| data(Body::ClusterVersionSet(VersionName { version: text }));
    let term = |replayed: &Replayed| replayed.edits.get(schema::META, schema::META_TERM).is_some();
    let file = database(&RowState::default());
    let old = run(&file, &[version(b"3.4.0")], 1).unwrap();
    assert!(old.by_etcd_3_4 && !term(&old));
    let new = run(&file, &[version(b"3.5.0")], 1).unwrap();
    assert!(!new.by_etcd_3_4 && term(&new));
    let mut rows = RowState::default();
    rows.put(schema::META, schema::META_TERM, &2_u64.to_be_bytes());
    let kept = run(&database(&rows), &[version(b"3.4.0")], 1).unwrap();
    assert!(!kept.by_etcd_3_4 && term(&kept));
}

#[test]
fn passwords_in_the_clear_have_a_bound() {
    let file = database(&RowState::default());
    let add = |n: usize| {
        let name = format!("u{n}");
        let password = crate::etcd::request::Secret(b"x");
        data(Body::UserAdd(UserAdd { name: name.as_bytes(), password, ..UserAdd::default() }))
    };
    let entries: Vec<Vec<u8>> = (0..1001).map(add).collect();
    let error = run(&file, &entries, 1).unwrap_err();
    assert!(matches!(error, Error::Passwords(1001)), "{error}");
    let replayed = run(&file, &entries[..3], 1).unwrap();
    assert_eq!(replayed.warnings.len(), 3);
}

#[test]
fn a_lease_that_is_gone_holds_no_keys() {
    let mut rows = RowState::default();
    rows.put(
        schema::KEY,
        &Revision::new(2, 0).encode(),
        b"\x0a\x01a\x10\x02\x18\x02\x20\x01\x30\x05",
    );
    let file = database(&rows);
    let grant = crate::etcd::request::LeaseGrant { ttl_s: 60, id: 5 };
    let revoke = crate::etcd::request::LeaseRevoke { id: 5 };
    let entries = [data(Body::LeaseGrant(grant)), data(Body::LeaseRevoke(revoke))];
    assert_eq!(run(&file, &entries, 1).unwrap().revision, 2);
}

#[test]
fn it_stops_when_told() {
    let file = database(&RowState::default());
    let entries = puts(2);
    let mut feed = |visit: &mut Visit<'_>| {
        for (index, data) in (1..).zip(&entries) {
            visit(&entry(index, data))?;
        }
        Ok(())
    };
    let error = replay(&file, &Rules::default(), &mut feed, &|| true).unwrap_err();
    assert!(matches!(error, Error::Stopped));
}
