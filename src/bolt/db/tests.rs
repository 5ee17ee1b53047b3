//! Batches against a map, views that live long, losses of power, disks that fail, hostile bytes.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::bolt::walk::{At, Visit};

mod crash;
mod hostile;
mod real;

type Rows = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>;

#[derive(Default)]
struct Collect(Rows);

impl Visit for Collect {
    fn bucket(&mut self, at: &At<'_>, _: u64) {
        self.0.entry(at.bucket.concat()).or_default();
    }
    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        let bucket = self.0.entry(at.bucket.concat()).or_default();
        assert!(bucket.insert(key.to_vec(), value.to_vec()).is_none());
    }
}

/// A folder in memory, where that can be: files are synced often.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::Builder::new();
    folder.tempdir_in("/dev/shm").or_else(|_| folder.tempdir()).unwrap()
}

fn options(page_size: u32) -> Options {
    Options { page_size, growth_bytes: 64 << 10, cache_bytes: 256 << 10 }
}

fn batch(bucket: &[u8], rows: &[(&str, Option<&[u8]>)]) -> Batch {
    let mut batch = Batch::default();
    batch.bucket(bucket);
    for (key, value) in rows {
        let key = Bytes::copy_from_slice(key.as_bytes());
        batch.plan(bucket, key, value.map(Bytes::copy_from_slice));
    }
    batch
}

fn rows_of(file: &File) -> Rows {
    let mut rows = Collect::default();
    let walked = super::super::walk::walk(file, &mut rows);
    let findings = walked.findings.kept().iter();
    let bad: Vec<_> = findings.filter(|found| found.code.severity() == Severity::Error).collect();
    assert!(bad.is_empty(), "{bad:?}");
    rows.0
}

/// Every page below the high-water mark is in use, or free or about to be, and only one of them.
fn check_pages(db: &Db) {
    let (file, writer) = (db.view().file().unwrap(), db.handle.writer.lock().unwrap());
    let (walked, used) = walk_marking(&file, &mut Ignore);
    assert_eq!(damage(&walked), None);
    let mark = file.meta().high_water_mark;
    assert_eq!(mark, writer.alloc.mark());
    let mut seen: Vec<bool> = (0..mark).map(|id| id < 2 || used.get(id)).collect();
    for (first, span) in writer.alloc.all_runs() {
        for id in first..first + span {
            let seen = &mut seen[usize_of(id)];
            assert!(!*seen, "page {id} is free and in use");
            *seen = true;
        }
    }
    let leaked = seen.iter().position(|seen| !seen);
    assert_eq!(leaked, None, "a page is neither free nor in use");
}

fn check_view(view: &View, model: &Rows) {
    assert_eq!(rows_of(&view.file().unwrap()), *model);
    for (bucket, rows) in model {
        let mut seen = Vec::new();
        let mut collect = |key: &[u8], value: &[u8]| {
            seen.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        };
        view.each(bucket, b"", &mut collect).unwrap();
        assert!(seen.iter().map(|(k, v)| (k, v)).eq(rows), "each of {bucket:?}");
        for (key, value) in rows.iter().step_by(7) {
            assert_eq!(view.get(bucket, key).unwrap().as_deref(), Some(&value[..]));
            let mut other = key.clone();
            other.push(0);
            assert_eq!(view.get(bucket, &other).unwrap(), None);
            let mut first = None;
            let mut stop = |key: &[u8], _: &[u8]| {
                first = Some(key.to_vec());
                ControlFlow::Break(())
            };
            view.each(bucket, &other, &mut stop).unwrap();
            let next = rows.range(other..).next().map(|(key, _)| key.clone());
            assert_eq!(first, next);
        }
    }
    assert_eq!(view.get(b"no such bucket", b"k").unwrap(), None);
}

#[test]
fn a_new_file_is_what_bbolt_makes() {
    let folder = folder();
    let path = folder.path().join("db");
    let db = Db::create(&Disk::default(), &path, &Options::default()).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(bytes.len(), 4 * 4096);
    let file = File::from_bytes(bytes).unwrap();
    let walked = super::super::walk::walk(&file, &mut Ignore);
    assert_eq!(walked.findings.kept(), &[]);
    assert_eq!((file.meta().root, file.meta().freelist, file.meta().txid), (3, 2, 1));
    assert_eq!(db.sizes(), Sizes { size_bytes: 16384, in_use_bytes: 16384 });

    // What etcd's file is after its first commits: five pages, four of them in use.
    let mut all = Batch::default();
    for name in ["alarm", "auth", "authRoles", "authUsers", "cluster", "key", "lease", "meta"] {
        all.bucket(name.as_bytes());
    }
    let sizes = db.commit(all).unwrap();
    assert_eq!(sizes, Sizes { size_bytes: 20480, in_use_bytes: 20480 });
    for n in 0..20_u8 {
        let sizes = db.commit(batch(b"meta", &[("consistent_index", Some(&[n; 8]))])).unwrap();
        assert_eq!(sizes, Sizes { size_bytes: 20480, in_use_bytes: 16384 });
    }
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 6 * 4096 + (16 << 20));
}

#[test]
fn only_one_process_has_it() {
    let folder = folder();
    let path = folder.path().join("db");
    let db = Db::create(&Disk::default(), &path, &options(4096)).unwrap();
    let open = || Db::open(&Disk::default(), &path, &options(4096));
    assert!(matches!(open(), Err(Error::Locked)));
    let view = db.view();
    drop(db);
    assert!(matches!(open(), Err(Error::Locked)));
    drop(view);
    open().unwrap();
    let again = Db::create(&Disk::default(), &path, &options(4096));
    assert!(matches!(again, Err(Error::Io(_))));
}

#[test]
fn the_last_change_of_a_row_counts() {
    let folder = folder();
    let db = Db::create(&Disk::default(), &folder.path().join("db"), &options(4096)).unwrap();
    let rows = [("a", Some(&b"1"[..])), ("b", Some(b"1")), ("a", Some(b"2")), ("b", None)];
    db.commit(batch(b"x", &rows)).unwrap();
    assert_eq!(db.view().get(b"x", b"a").unwrap().unwrap(), &b"2"[..]);
    assert_eq!(db.view().get(b"x", b"b").unwrap(), None);
    // Nothing changes, nothing is written.
    let txid = db.view().moment.meta().txid;
    db.commit(batch(b"x", &[("a", Some(b"2")), ("c", None)])).unwrap();
    db.commit(Batch::default()).unwrap();
    assert_eq!(db.view().moment.meta().txid, txid);
}

#[test]
fn what_bbolt_does_not_store_is_refused() {
    let folder = folder();
    let db = Db::create(&Disk::default(), &folder.path().join("db"), &options(4096)).unwrap();
    db.commit(batch(b"x", &[("a", Some(b"1"))])).unwrap();
    let long = "k".repeat(32769);
    for (bucket, key) in [("x", ""), ("x", &long), ("", "a"), (&long, "a")] {
        let bad = batch(bucket.as_bytes(), &[(key, Some(b"v"))]);
        assert!(matches!(db.commit(bad), Err(Error::Size)), "{bucket:?}");
    }
    db.commit(batch(b"x", &[("b", Some(b"1"))])).unwrap();
    check_pages(&db);
    assert_eq!(db.poison(), None);
}

#[test]
fn appending_touches_the_right_edge_only() {
    let folder = folder();
    let db = Db::create(&Disk::default(), &folder.path().join("db"), &options(4096)).unwrap();
    for round in 0..200_u32 {
        let mut batch = Batch::default();
        for n in 0..100_u32 {
            let key = format!("{:08}", round * 100 + n);
            batch.plan(b"key", Bytes::from(key), Some(Bytes::from(vec![7; 100])));
        }
        db.commit(batch).unwrap();
        let freed = db.handle.writer.lock().unwrap().alloc.pending_pages();
        assert!(freed <= 4, "{freed} pages for 100 rows at the end");
    }
    check_pages(&db);
    // Nine tenths full: 20,000 rows of 124 bytes and their branches.
    let used = db.sizes().in_use_bytes / 4096;
    assert!((20_000 * 124 * 10 / 9 / 4096..760).contains(&used), "{used}");
}

#[test]
fn deleting_gives_pages_back() {
    let folder = folder();
    let db = Db::create(&Disk::default(), &folder.path().join("db"), &options(4096)).unwrap();
    let key = |n: u32| Bytes::from(format!("{n:08}"));
    let mut put = Batch::default();
    (0..50_000).for_each(|n| put.plan(b"key", key(n), Some(Bytes::from(vec![7; 100]))));
    db.commit(put).unwrap();
    let full = db.sizes();
    // All but each 50th, a thousand at a time.
    for from in (0..50_000).step_by(1000) {
        let mut drop_rows = Batch::default();
        let numbers = (from..from + 1000).filter(|n| n % 50 != 0);
        numbers.for_each(|n| drop_rows.plan(b"key", key(n), None));
        db.commit(drop_rows).unwrap();
    }
    check_pages(&db);
    let left = db.sizes();
    assert!(left.in_use_bytes < full.in_use_bytes / 15, "{left:?} of {full:?}");
    assert!(left.size_bytes < full.size_bytes + full.size_bytes / 10, "{left:?} of {full:?}");
    // And the rest: the bucket is inline again.
    let mut drop_rows = Batch::default();
    (0..50_000).step_by(50).for_each(|n| drop_rows.plan(b"key", key(n), None));
    db.commit(drop_rows).unwrap();
    db.commit(batch(b"other", &[])).unwrap();
    check_pages(&db);
    assert_eq!(db.sizes().in_use_bytes / 4096, 4);
}

#[test]
fn a_commit_of_nothing_makes_free_what_the_last_one_freed() {
    let folder = folder();
    let path = folder.path().join("db");
    let db = Db::create(&Disk::default(), &path, &options(4096)).unwrap();
    let key = |n: u32| Bytes::from(format!("{n:08}"));
    let mut put = Batch::default();
    (0..1000).for_each(|n| put.plan(b"key", key(n), Some(Bytes::from(vec![7; 1000]))));
    db.commit(put).unwrap();
    let mut drop_rows = Batch::default();
    (0..1000).for_each(|n| drop_rows.plan(b"key", key(n), None));
    let seen = db.view();
    let full = db.commit(drop_rows).unwrap();
    let before = std::fs::read(&path).unwrap();
    // A view of what was there keeps it.
    assert_eq!(db.commit(Batch::default()).unwrap(), full);
    drop(seen);
    let left = db.commit(Batch::default()).unwrap();
    assert!(left.in_use_bytes * 20 < full.in_use_bytes, "{left:?} of {full:?}");
    assert_eq!(db.sizes(), left);
    assert!(std::fs::read(&path).unwrap() == before, "something was written");
    db.commit(batch(b"key", &[("a", Some(b"b"))])).unwrap();
    check_pages(&db);
}

#[test]
fn pages_that_no_view_sees_are_used_again_while_an_older_view_lives() {
    let folder = folder();
    let db = Db::create(&Disk::default(), &folder.path().join("db"), &options(4096)).unwrap();
    db.commit(batch(b"x", &[("a", Some(&[1; 3000]))])).unwrap();
    let old = db.view();
    for n in 0..200_u8 {
        db.commit(batch(b"x", &[("a", Some(&[n; 3000])), ("n", Some(&[n]))])).unwrap();
        check_pages(&db);
    }
    assert_eq!(old.get(b"x", b"a").unwrap().unwrap(), vec![1; 3000]);
    assert!(db.sizes().size_bytes < 20 * 4096, "{:?}", db.sizes());
}

#[test]
fn an_image_is_a_file_of_its_own() {
    let folder = folder();
    let db = Db::create(&Disk::default(), &folder.path().join("db"), &options(1024)).unwrap();
    for n in 0..30_u8 {
        let rows = [(&*format!("k{n}"), Some(&[n; 700][..]))];
        db.commit(batch(b"x", &rows)).unwrap();
    }
    let view = db.view();
    let model = rows_of(&view.file().unwrap());
    for piece in [1, 777, 1024, 4096, 1 << 20] {
        let (mut image, mut buffer) = (Vec::new(), vec![0; piece]);
        loop {
            let count = view.read_image(u64::try_from(image.len()).unwrap(), &mut buffer).unwrap();
            image.extend_from_slice(&buffer[..count]);
            if count < piece {
                break;
            }
            if piece > 700 {
                let rows = [("k0", Some(&[u8::try_from(image.len() % 251).unwrap(); 900][..]))];
                db.commit(batch(b"x", &rows)).unwrap();
            }
        }
        assert_eq!(u64::try_from(image.len()).unwrap(), view.sizes().size_bytes);
        for slot in [0, 1] {
            let mut one = image.clone();
            one[slot * 1024 + 70] ^= 1;
            assert_eq!(rows_of(&File::from_bytes(one).unwrap()), model);
        }
        let path = folder.path().join(format!("image{piece}"));
        std::fs::write(&path, &image).unwrap();
        let copy = Db::open(&Disk::default(), &path, &options(4096)).unwrap();
        copy.commit(batch(b"y", &[("k", Some(b"v"))])).unwrap();
        check_pages(&copy);
        assert_eq!(copy.view().get(b"x", b"k7").unwrap().unwrap(), vec![7; 700]);
    }
}

fn many(view: &View, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, Error> {
    let mut found = vec![None; keys.len()];
    view.get_many(b"key", keys, &mut |at, value| {
        assert!(found[at].replace(value.to_vec()).is_none(), "a key is found once");
    })?;
    Ok(found)
}

#[test]
fn many_rows_are_those_that_are_found_one_by_one() {
    let folder = folder();
    let path = folder.path().join("db");
    let db = Db::create(&Disk::default(), &path, &options(1024)).unwrap();
    let mut rows = Batch::default();
    for n in (0..4000_u16).filter(|n| n % 7 > 0) {
        let size = if n % 97 == 0 { 5000 } else { usize::from(n) * 37 % 400 };
        let key = Bytes::from(format!("k{n:05}"));
        rows.plan(b"key", key, Some(Bytes::from(vec![b'v'; size])));
    }
    db.commit(rows).unwrap();
    // Leaves of another order than that of their keys.
    for n in (0..4000_u16).step_by(301) {
        db.commit(batch(b"key", &[(&format!("k{n:05}"), Some(&[b'w'; 90]))])).unwrap();
    }
    drop(db);
    for cache_bytes in [0, 64 << 10, 16 << 20] {
        let options = Options { cache_bytes, ..options(1024) };
        let db = Db::open(&Disk::default(), &path, &options).unwrap();
        let view = db.view();
        for (from, stride) in [(0, 1), (0, 1), (3, 2), (1, 5), (0, 40), (77, 900), (5000, 1)] {
            let keys = (from..4100_u16).step_by(stride);
            let keys: Vec<_> = keys.map(|n| format!("k{n:05}").into_bytes()).collect();
            let one = |key: &Vec<u8>| view.get(b"key", key).unwrap().map(|value| value.to_vec());
            let found = many(&view, &keys).unwrap();
            assert_eq!(found, keys.iter().map(one).collect::<Vec<_>>());
        }
        view.get_many(b"none", &[b"k"], &mut |_, _| panic!("there is no such bucket")).unwrap();
    }

    // Each leaf in turn is damaged behind the back of an open database.
    let options = Options { cache_bytes: 0, ..options(1024) };
    let db = Db::open(&Disk::default(), &path, &options).unwrap();
    let keys: Vec<_> = (0..4000_u16).map(|n| format!("k{n:05}").into_bytes()).collect();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let (mark, mut tried) = (db.view().file().unwrap().meta().high_water_mark, 0);
    let (_, used) = walk_marking(&db.view().file().unwrap(), &mut Ignore);
    // The roots of buckets were read before, and are kept.
    let root = db.view().file().unwrap().meta().root;
    for id in (2..mark).filter(|id| used.get(*id) && *id != root).step_by(7) {
        use std::os::unix::fs::FileExt;
        let mut header = [0; 16];
        file.read_exact_at(&mut header, id * 1024).unwrap();
        let is_leaf = Header::decode(&header).is_ok_and(|page| page.id == id && page.flags == LEAF);
        if !is_leaf {
            continue;
        }
        let mut bad = header;
        bad[1] ^= 0x40;
        file.write_all_at(&bad, id * 1024).unwrap();
        let error = many(&db.view(), &keys).unwrap_err().to_string();
        assert!(error.starts_with(&format!("page {id}: ")), "{error}");
        file.write_all_at(&header, id * 1024).unwrap();
        tried += 1;
    }
    assert!(tried > 20, "{tried}");
    many(&db.view(), &keys).unwrap();
}

/// What a test does next.
#[derive(Clone, Debug)]
enum Step {
    Commit(Vec<(u8, u16, Option<u16>)>),
    DropRange(u8, u16, u16),
    View,
    DropView(prop::sample::Index),
    Reopen,
}

fn steps(rows: usize) -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![
        20 => 0..40_u16,
        6 => 0..600_u16,
        1 => 0..9000_u16,
        1 => Just(u16::MAX),
    ];
    let row = (0..3_u8, 0..800_u16, prop::option::weighted(0.75, size));
    let step = prop_oneof![
        8 => prop::collection::vec(row, 0..rows).prop_map(Step::Commit),
        3 => (0..3_u8, 0..800_u16, 1..500_u16).prop_map(|(b, from, n)| Step::DropRange(b, from, n)),
        2 => Just(Step::View),
        2 => any::<prop::sample::Index>().prop_map(Step::DropView),
        1 => Just(Step::Reopen),
    ];
    prop::collection::vec(step, 1..25)
}

const BUCKETS: [&[u8]; 3] = [b"key", b"lease", b"meta"];

/// Puts a step into a batch and a model.
fn plan(step: &Step, model: &mut Rows, seed: u8) -> Option<Batch> {
    let mut batch = Batch::default();
    match step {
        Step::Commit(rows) => {
            for (bucket, key, size) in rows {
                let name = BUCKETS[usize::from(*bucket)];
                let key = format!("k{key:05}").into_bytes();
                let value = size.map(|size| vec![seed ^ key[4] ^ key[5]; usize::from(size)]);
                let bucket = model.entry(name.to_vec()).or_default();
                match &value {
                    Some(value) => drop(bucket.insert(key.clone(), value.clone())),
                    None => drop(bucket.remove(&key)),
                }
                batch.plan(name, Bytes::from(key), value.map(Bytes::from));
            }
        }
        Step::DropRange(bucket, from, count) => {
            let name = BUCKETS[usize::from(*bucket)];
            let bucket = model.entry(name.to_vec()).or_default();
            batch.bucket(name);
            for n in *from..from + count {
                let key = format!("k{n:05}").into_bytes();
                bucket.remove(&key);
                batch.plan(name, Bytes::from(key), None);
            }
        }
        _ => return None,
    }
    Some(batch)
}

fn follow(page_size: u32, steps: &[Step]) -> (tempfile::TempDir, PathBuf) {
    let folder = folder();
    let path = folder.path().join("db");
    let options = options(page_size);
    let mut db = Db::create(&Disk::default(), &path, &options).unwrap();
    let mut model = Rows::new();
    let mut views: Vec<(View, Rows)> = Vec::new();
    for (seed, step) in (0_u8..).zip(steps) {
        match step {
            Step::View => views.push((db.view(), model.clone())),
            Step::DropView(at) if !views.is_empty() => drop(views.remove(at.index(views.len()))),
            Step::DropView(_) => {}
            Step::Reopen => {
                views.clear();
                drop(db);
                db = Db::open(&Disk::default(), &path, &options).unwrap();
            }
            step => {
                let batch = plan(step, &mut model, seed).unwrap();
                let sizes = db.commit(batch).unwrap();
                assert_eq!((sizes, sizes), (db.sizes(), db.view().sizes()));
            }
        }
        check_pages(&db);
        check_view(&db.view(), &model);
        views.iter().for_each(|(view, model)| check_view(view, model));
    }
    (folder, path)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn rows_are_what_a_map_has(
        page_size in prop::sample::select(vec![1024_u32, 4096]),
        steps in steps(200),
    ) {
        follow(page_size, &steps);
    }
}
