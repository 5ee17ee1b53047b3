//! A database that loses power while it is changed in place: each state of the disk holds the rows
//! of the last commit that was answered, or of one that was under way, as a whole.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::Bytes;
use etcdkit::bolt::db::{Batch, Db, Options, View};
use etcdkit::bolt::disk::Disk;

use crate::power_history::{Dice, Tree};
use crate::store_states::{Run, Seen, asked};
use crate::support::Rows;

type Model = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Mark {
    Begun(usize),
    Done(usize),
}

type Row = (&'static [u8], Vec<u8>, Option<Vec<u8>>);

/// A commit's rows: puts and drops in two buckets, small ones and some of many pages.
fn rows(number: usize) -> Vec<Row> {
    let mut dice = Dice(number as u64 + 5);
    let count = [1, 3, 10, 60][dice.below(4)];
    let row = |dice: &mut Dice| {
        let bucket: &[u8] = if dice.below(3) == 0 { b"meta" } else { b"key" };
        let key = format!("{:04}", dice.below(300)).into_bytes();
        let bytes = match dice.below(12) {
            0 => dice.below(20_000),
            _ => dice.below(120),
        };
        let value = vec![b'a' + u8::try_from(number % 26).unwrap(); bytes];
        (bucket, key, (dice.below(4) > 0).then_some(value))
    };
    (0..count).map(|_| row(&mut dice)).collect()
}

fn batch(number: usize) -> Batch {
    let mut batch = Batch::default();
    for (bucket, key, value) in rows(number) {
        batch.plan(bucket, Bytes::from(key), value.map(Bytes::from));
    }
    batch
}

/// The rows after each number of commits.
fn models(commits: usize) -> Vec<Model> {
    let mut models = vec![Model::new()];
    for number in 0..commits {
        let mut model = models.last().unwrap().clone();
        for (bucket, key, value) in rows(number) {
            let bucket = model.entry(bucket.to_vec()).or_default();
            match value {
                Some(value) => drop(bucket.insert(key, value)),
                None => drop(bucket.remove(&key)),
            }
        }
        models.push(model);
    }
    models
}

fn options() -> Options {
    Options { growth_bytes: 64 << 10, cache_bytes: 64 << 10, ..Options::default() }
}

fn content(view: &View) -> Model {
    let mut all = Model::new();
    for bucket in [&b"key"[..], b"meta"] {
        let mut rows = BTreeMap::new();
        let seen = view.each(bucket, b"", &mut |key, value| {
            rows.insert(key.to_vec(), value.to_vec());
            std::ops::ControlFlow::Continue(())
        });
        seen.unwrap();
        if !rows.is_empty() {
            all.insert(bucket.to_vec(), rows);
        }
    }
    all
}

fn without_empty(model: &Model) -> Model {
    model.iter().filter(|(_, rows)| !rows.is_empty()).map(|(b, r)| (b.clone(), r.clone())).collect()
}

fn check(models: &[Model], root: &Path, seen: &Seen<'_, Mark>) -> Result<(), String> {
    let path = root.join("db");
    let done = seen.marks.iter().filter(|mark| matches!(mark, Mark::Done(_))).count();
    let begun = seen.marks.iter().filter(|mark| matches!(mark, Mark::Begun(_))).count();
    if done == 0 && begun == 0 {
        return Ok(());
    }
    let db = Db::open(&Disk::default(), &path, &options())
        .map_err(|error| format!("does not open: {error}"))?;
    let rows = content(&db.view());
    if !(done..=begun).any(|n| without_empty(&models[n]) == rows) {
        return Err(format!("not the rows of {done} to {begun} commits"));
    }
    // It goes on, and bbolt's rules hold.
    db.commit(batch(1000)).map_err(|error| format!("no commit: {error}"))?;
    drop(db);
    Rows::read(&std::fs::read(&path).map_err(|error| error.to_string())?);
    Ok(())
}

#[test]
fn a_database_that_is_changed_in_place_survives() {
    const COMMITS: usize = 40;
    let run = Run::record(&Tree::new(), |root, disk, recorder| {
        let db = Db::create(&disk, &root.join("db"), &options()).unwrap();
        disk.sync_dir(root).unwrap();
        let mut views = Vec::new();
        for number in 0..COMMITS {
            // Some views stay, so that the pages of old states are not used again.
            match number % 8 {
                0 => views.push(db.view()),
                5 => views.clear(),
                _ => {}
            }
            recorder.mark(Mark::Begun(number));
            db.commit(batch(number)).unwrap();
            recorder.mark(Mark::Done(number));
        }
        let models = models(COMMITS);
        assert_eq!(content(&db.view()), without_empty(&models[COMMITS]));
    });
    let models = models(COMMITS);
    let states = asked("ETCDKIT_STORE_STATES", 80);
    let looked = run.look(states, |root, _, seen| check(&models, root, seen));
    looked.sound("a database");
}
