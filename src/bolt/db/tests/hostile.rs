//! Files with bytes that are not right, before they are opened and after; readers beside a writer.

use std::io::{Seek, SeekFrom, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;

/// A file with branches, a large page and an inline bucket.
fn sample() -> &'static [u8] {
    static SAMPLE: OnceLock<Vec<u8>> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let (folder, options) = (folder(), Options { growth_bytes: 0, ..options(1024) });
        let path = folder.path().join("db");
        let db = Db::create(&Disk::default(), &path, &options).unwrap();
        for round in 0..4_u32 {
            let mut batch = Batch::default();
            for n in 0..150_u32 {
                let key = Bytes::from(format!("k{:05}", n * 3 + round));
                batch.plan(b"key", key, Some(Bytes::from(vec![7; 20])));
            }
            let large = Some(Bytes::from(vec![1; 2500]));
            batch.plan(b"large", Bytes::from(format!("{round}")), large);
            batch.plan(b"meta", Bytes::from("k"), Some(Bytes::from(vec![8; 8])));
            db.commit(batch).unwrap();
        }
        std::fs::read(&path).unwrap()
    })
}

/// Reads everything and writes something; errors are fine, and nothing else is.
fn use_it(db: &Db) {
    let view = db.view();
    for bucket in [&b"key"[..], b"large", b"meta", b"none"] {
        let mut rows = 0;
        let mut count = |_: &[u8], _: &[u8]| {
            rows += 1;
            ControlFlow::Continue(())
        };
        let _ = view.each(bucket, b"", &mut count);
        assert!(rows < 1 << 20);
        for n in 0..450 {
            let _ = view.get(bucket, format!("k{n:05}").as_bytes());
        }
        let keys: Vec<_> = (0..450).map(|n| format!("k{n:05}")).collect();
        let mut shown = 0;
        let _ = view.get_many(bucket, &keys, &mut |_, _| shown += 1);
        assert!(shown <= keys.len());
    }
    let mut batch = Batch::default();
    (0..450).step_by(2).for_each(|n| batch.plan(b"key", format!("k{n:05}").into(), None));
    batch.plan(b"large", "1".into(), None);
    batch.plan(b"meta", "k".into(), Some(Bytes::from(vec![1; 3000])));
    let _ = db.commit(batch);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn damage_before_it_is_opened(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let folder = folder();
        let path = folder.path().join("db");
        let mut bytes = sample().to_vec();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        std::fs::write(&path, &bytes).unwrap();
        match Db::open(&Disk::default(), &path, &options(4096)) {
            Ok(db) => {
                check_pages(&db);
                use_it(&db);
            }
            Err(Error::Damaged(_)) => {}
            Err(error) => prop_assert!(false, "{error}"),
        }
    }

    #[test]
    fn damage_under_an_open_file(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..60),
    ) {
        let folder = folder();
        let path = folder.path().join("db");
        std::fs::write(&path, sample()).unwrap();
        let options = Options { cache_bytes: 0, ..options(1024) };
        let db = Db::open(&Disk::default(), &path, &options).unwrap();
        let mut file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        let len = usize_of(file.metadata().unwrap().len());
        for (at, byte) in edits {
            file.seek(SeekFrom::Start(crate::format::u64_of(at.index(len)))).unwrap();
            file.write_all(&[byte]).unwrap();
        }
        use_it(&db);
        use_it(&db);
    }
}

#[test]
fn damage_is_named_by_its_page() {
    let folder = folder();
    let path = folder.path().join("db");
    let clean = sample().to_vec();
    let root = usize_of(File::from_bytes(clean.clone()).unwrap().meta().root);
    let mut bytes = clean;
    bytes[root * 1024] ^= 0x40;
    std::fs::write(&path, &bytes).unwrap();
    let error = Db::open(&Disk::default(), &path, &options(1024)).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with(&format!("page {root}: ")), "{text}");
    for (bytes, word) in [(vec![], "empty"), (vec![0; 8192], "not a bbolt database")] {
        std::fs::write(&path, bytes).unwrap();
        let error = Db::open(&Disk::default(), &path, &options(1024)).unwrap_err();
        assert!(matches!(&error, Error::Damaged(text) if text.contains(word)), "{error}");
    }
}

#[test]
fn the_meta_that_serves_is_never_written_over() {
    // One meta is torn: the next commit goes where it was, whichever it is.
    for slot in [0, 1] {
        let folder = folder();
        let path = folder.path().join("db");
        let mut bytes = sample().to_vec();
        bytes[slot * 1024 + 70] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let db = Db::open(&Disk::default(), &path, &options(1024)).unwrap();
        let before = *db.view().file().unwrap().meta();
        db.commit(batch(b"x", &[("a", Some(b"1"))])).unwrap();
        drop(db);
        let file = File::open(&path).unwrap();
        let metas = file.metas().map(|meta| meta.unwrap().txid);
        assert_eq!(metas[1 - slot], before.txid);
        assert_eq!(metas[slot], file.meta().txid);
    }
}

#[test]
fn readers_beside_a_writer_see_one_moment() {
    let folder = folder();
    let options = Options { cache_bytes: 64 << 10, ..options(1024) };
    let db = Db::create(&Disk::default(), &folder.path().join("db"), &options).unwrap();
    let put = |n: u32| {
        let mut batch = Batch::default();
        // All rows say the same, in more pages than the cache holds.
        for row in 0..200_u32 {
            let value = vec![u8::try_from(n % 251).unwrap(); 300 + usize_of(u64::from(n % 7))];
            batch.plan(b"key", Bytes::from(format!("{row:04}")), Some(Bytes::from(value)));
        }
        batch
    };
    db.commit(put(0)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let view = db.view();
                    let first = view.get(b"key", b"0000").unwrap().unwrap();
                    for row in (0..200).step_by(3) {
                        let value = view.get(b"key", format!("{row:04}").as_bytes()).unwrap();
                        assert_eq!(value.unwrap(), first);
                    }
                    let mut rows = 0;
                    let mut same = |_: &[u8], value: &[u8]| {
                        assert_eq!(value, first);
                        rows += 1;
                        ControlFlow::Continue(())
                    };
                    view.each(b"key", b"", &mut same).unwrap();
                    assert_eq!(rows, 200);
                }
            });
        }
        (1..150).for_each(|n| assert!(db.commit(put(n)).is_ok()));
        stop.store(true, Ordering::Relaxed);
    });
    check_pages(&db);
    assert!(db.sizes().size_bytes < 2 << 20, "{:?}", db.sizes());
}
