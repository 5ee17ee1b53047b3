//! Random requests against a store and a model of etcd, with restarts and defragmentations in
//! between: every answer is compared, and what watchers see.
//!
//! `ETCDKIT_STORE_SEEDS` asks for more runs.

use etcdkit::bolt::disk::Disk;
use etcdkit::store::engine::Store;
use etcdkit::store::open::Compat;

use crate::power_history::Dice;
use crate::power_history::fresh;
use crate::store_driver::{ask, compare, defrag, options};
use crate::store_model::Model;
use crate::store_requests::{Mix, random};
use crate::store_states::asked;
use crate::store_watch::Watchers;

fn session(seed: u64, requests: usize) {
    println!("seed {seed}");
    let mut dice = Dice(seed);
    let (_folder, root) = fresh();
    let dir = root.join("data");
    let compat = if seed.is_multiple_of(2) { Compat::V3_6 } else { Compat::V3_7 };
    let options = || options(Disk::default()).compat(compat);
    let mut store = Store::open(&dir, options()).unwrap();
    let mut model = Model { keys_only_without_lease: compat == Compat::V3_7, ..Model::default() };
    let mut watchers = Watchers::default();
    let mut log = Vec::new();
    for number in 0..requests {
        let mix = Mix {
            revision: model.revision,
            bad_forms: 40,
            alarms: Some(store.member_id().0),
            traps: true,
            leaves_others: false,
            value_bytes: 2000,
        };
        let request = random(&mut dice, mix);
        log.push(request.clone());
        let wanted = model.ask(&request.body());
        let said = ask(&store, &request);
        let last = &log[log.len().saturating_sub(5)..];
        assert_eq!(said, wanted, "seed {seed}, request {number}: {last:#?}");
        match dice.below(60) {
            0 => {
                watchers.end(&model);
                store.close().unwrap();
                store = Store::open(&dir, options()).unwrap();
                let same = compare(&store, &model);
                assert_eq!(same, Ok(()), "seed {seed}, opened after request {number}");
            }
            1 => defrag(&store).unwrap(),
            2..=4 => watchers.begin(&store, &model, &mut dice),
            5 => watchers.end(&model),
            6..=8 => watchers.progress(),
            9 => {
                let same = compare(&store, &model);
                assert_eq!(same, Ok(()), "seed {seed}, after request {number}: {last:#?}");
            }
            _ => {}
        }
    }
    watchers.end(&model);
    assert_eq!(compare(&store, &model), Ok(()), "seed {seed}, at the end");
    store.close().unwrap();
    drop(store);
    let store = Store::open(&dir, options()).unwrap();
    assert_eq!(compare(&store, &model), Ok(()), "seed {seed}, opened again");
}

#[test]
fn a_store_does_what_the_model_does() {
    let seeds = asked("ETCDKIT_STORE_SEEDS", 4);
    for seed in 0..seeds {
        session(seed as u64, 400);
    }
    println!("{seeds} seeds");
}
