//! The same requests to a real etcd and to the model: the same answers; and the same log applied by
//! a real etcd and by our store: the same rows.

use std::fs;

use etcdkit::bolt::disk::Disk;
use etcdkit::etcd::request::{Alarm, Body};
use etcdkit::store::engine::Store;

use crate::boots::copy_folder;
use crate::equals::{accepted, database};
use crate::power_history::Dice;
use crate::programs::{Etcd, Real, Start, real, until};
use crate::replays::{NEVER_COMMIT, begin, fill, rows_of};
use crate::store_driver::{SOON, compare, nobody};
use crate::store_model::Model;
use crate::store_requests::{Ask, Mix, random};
use crate::store_takeover::{as_member, same_rows};
use crate::store_wire::{Wire, heard};
use crate::support::Sandbox;

/// Requests to each version.
const REQUESTS: usize = 1000;

/// What etcd does where versions differ.
fn model_of(version: &str) -> Model {
    Model { keys_only_without_lease: version == "3.7", ..Model::default() }
}

/// Sends random requests and compares all answers.
fn same_answers(etcd: &Etcd<'_>, version: &str, member: u64, seed: u64) -> (Model, Vec<Ask>) {
    let wire = Wire::connect(&etcd.endpoint);
    let (mut dice, mut model, mut asks) = (Dice(seed), model_of(version), Vec::new());
    for number in 0..REQUESTS {
        let mix = Mix {
            revision: model.revision,
            // 3.5 knows no order that is wrong.
            bad_forms: if version == "3.5" { 0 } else { 40 },
            // 3.5 forgets one alarm when another one is cleared.
            alarms: (version != "3.5").then_some(member),
            traps: false,
            leaves_others: false,
            value_bytes: 600,
        };
        let ask = random(&mut dice, mix);
        let wanted = heard(model.ask(&ask.body()));
        let found = wire.ask(&ask);
        // Of several reasons to refuse a transaction older ones tell another one first.
        let is_refused = found.is_err() && wanted.is_err();
        let is_txn = matches!(ask.body(), Body::Txn(_));
        let is_same = found == wanted || version != "3.7" && is_txn && is_refused;
        if !is_same {
            let log = etcd.log();
            let stopped = log.lines().find(|line| line.contains("\"fatal\"")).unwrap_or_default();
            println!("{}\nafter {:?}", stopped, asks.last());
            let (found, wanted) = (format!("{found:?}"), format!("{wanted:?}"));
            let brief = |text: &str| text.chars().take(1500).collect::<String>();
            let (found, wanted) = (brief(&found), brief(&wanted));
            panic!(
                "etcd {version}, seed {seed}, request {number}: {ask:?}\n{found}\nnot\n{wanted}"
            );
        }
        asks.push(ask);
        // At or below a compaction etcd tells what it summed up then, and for 0 too.
        if number % 50 == 49 && model.revision > model.compacted {
            let found = wire.hash_kv(model.revision);
            let wanted = (model.hash_kv(model.revision), model.compacted);
            assert_eq!(found, wanted, "etcd {version}, seed {seed}, HashKV after {number}");
        }
    }
    // Nothing is left to be done when it is compared: no alarm forbids it, and it is waited for.
    let clear = |kind| Ask::new(Body::Alarm(Alarm { action: 2, member_id: member, alarm: kind }));
    for ask in [clear(1), clear(2), Ask::put("last", b"one")] {
        let wanted = heard(model.ask(&ask.body()));
        assert_eq!(wire.ask(&ask), wanted, "etcd {version}: {ask:?}");
    }
    let ask = Ask::compact(model.revision, true);
    assert_eq!(wire.ask(&ask), heard(model.ask(&ask.body())), "etcd {version}: {ask:?}");
    (model, asks)
}

/// Sends random requests to a real etcd; then lets our store apply the whole of its log.
fn same_as(version: &str) {
    let Some(real) = real() else { return };
    let sandbox = Sandbox::new();
    let data_dir = sandbox.path("d");
    let start = Start { data_dir, name: "m1", more: &NEVER_COMMIT, ..Start::default() };
    let etcd = begin(&real, &sandbox, version, &start);
    let member = etcd.truth()["member_id"].as_str().expect("an id").to_owned();
    let member = u64::from_str_radix(&member, 16).expect("an id");
    let (model, _) = same_answers(&etcd, version, member, 11);
    assert!(model.revision > 100, "hardly anything was done: {}", model.revision);
    let compared = |store: &Store| assert_eq!(compare(store, &model), Ok(()), "etcd {version}");
    same_log(&real, &sandbox, version, etcd, &compared);

    // And what random keys do not reach: users, roles, large values.
    let sandbox = Sandbox::new();
    let data_dir = sandbox.path("d");
    let start = Start { data_dir, name: "m1", more: &NEVER_COMMIT, ..Start::default() };
    let etcd = begin(&real, &sandbox, version, &start);
    fill(&real, &etcd, &["--seed=61", "--keys=60", "--ops=150", "--big=1", "--auth"]);
    let wire = Wire::connect(&etcd.endpoint);
    let (revision, _) = wire.ask(&Ask::put("last", b"one")).expect("a put");
    wire.ask(&Ask::compact(revision, true)).expect("a compaction");
    same_log(&real, &sandbox, version, etcd, &|_| {});
}

/// Ends an etcd whose database was kept as it was in the beginning, and holds what it has then
/// against what our store makes of its log.
fn same_log(real: &Real, sandbox: &Sandbox, version: &str, etcd: Etcd<'_>, check: &dyn Fn(&Store)) {
    let what = format!("etcd {version}, its whole log");
    let wire = Wire::connect(&etcd.endpoint);
    let hash = wire.hash();
    etcd.stop();
    let (theirs, ours) = (sandbox.path("d"), sandbox.path("ours"));
    copy_folder(&theirs, &ours);
    fs::copy(sandbox.path("young"), database(&ours)).expect("a copy");
    let store = Store::open(&ours, as_member(Disk::default()))
        .unwrap_or_else(|error| panic!("{what}: {error}"));
    check(&store);
    // The last compaction is worked off meanwhile.
    until(&format!("{what}: the same Hash"), SOON, || {
        (store.hash(&nobody()).expect("a hash").body == hash).then_some(())
    });
    store.close().expect("a close");
    drop(store);
    let (ours, theirs) = (database(&ours), database(&theirs));
    same_rows(&what, &rows_of(&ours), &rows_of(&theirs));
    accepted(real, &ours);
}

#[test]
fn etcd_3_5_answers_as_the_model_does() {
    same_as("3.5");
}

#[test]
fn etcd_3_6_answers_as_the_model_does() {
    same_as("3.6");
}

#[test]
fn etcd_3_7_answers_as_the_model_does() {
    same_as("3.7");
}
