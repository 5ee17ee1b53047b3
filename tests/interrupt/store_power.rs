//! Stores that lose power at any moment: each state of the disk opens, with all that was answered
//! and nothing half done.
//!
//! `ETCDKIT_STORE_STATES` asks for more states of each run, `ETCDKIT_STORE_REQUESTS` for longer
//! runs.

use std::path::Path;
use std::sync::Arc;

use etcdkit::bolt::disk::Disk;
use etcdkit::store::engine::{Options, Store};

use crate::power_history::Tree;
use crate::store_driver::options;
use crate::store_plan::Plan;
use crate::store_probe::Recorder;
use crate::store_states::{Looked, Run, asked};

fn requests() -> usize {
    asked("ETCDKIT_STORE_REQUESTS", 60)
}

fn survives(plan: &Plan, what: &str, states: usize) -> Looked {
    let run = plan.record(&Tree::new());
    let models = plan.models();
    let states = asked("ETCDKIT_STORE_STATES", states);
    let looked = run.look(states, |root, _, seen| plan.check(&models, root, seen));
    println!("{what}: {} changes", run.changes());
    looked.sound(what)
}

#[test]
fn a_store_survives() {
    survives(&Plan::random(1, requests(), 300), "a store", 60);
}

#[test]
fn a_store_that_is_defragmented_and_opened_again_survives() {
    let plan = Plan { defrag_every: 20, reopen_every: 27, ..Plan::random(2, requests(), 300) };
    survives(&plan, "a store that is defragmented and opened again", 60);
}

/// Raft snapshots are recorded often.
fn often(disk: Disk) -> Options {
    options(disk).snapshot_count(7_u64)
}

#[test]
fn a_store_that_records_snapshots_survives() {
    let plan = Plan { options: often, ..Plan::random(3, requests(), 300) };
    survives(&plan, "a store that records snapshots", 60);
}

#[test]
fn a_store_that_loses_power_again_while_it_opens_survives() {
    let plan = Plan { options: often, ..Plan::random(4, 50, 300) };
    let (run, models) = (plan.record(&Tree::new()), plan.models());
    let firsts = asked("ETCDKIT_STORE_STATES", 40).div_ceil(8);
    let (mut problems, mut states) = (Vec::new(), 0);
    run.look(firsts, |_, tree, seen| {
        let (done, begun) = Plan::counts(seen.marks);
        let again = Run::record(tree, |root, disk, _: &Arc<Recorder<()>>| {
            let store = Store::open(&root.join("data"), often(disk)).unwrap();
            store.close().unwrap();
        });
        let check = |root: &Path| plan.check_between(&models, root, done, begun);
        let looked = again.look(8, |root, _, _| check(root));
        states += looked.states;
        problems.extend(looked.problems);
        Ok(())
    });
    println!("{states} states after a second loss of power");
    let first: Vec<_> = problems.iter().take(3).map(String::as_str).collect();
    assert!(first.is_empty(), "{} of {states}\n{}", problems.len(), first.join("\n"));
    assert!(states > 15, "{states} states");
}

fn without_syncs(disk: Disk) -> Options {
    options(disk).unsafe_no_fsync(true)
}

#[test]
fn a_store_that_syncs_nothing_is_caught() {
    let plan = Plan { options: without_syncs, ..Plan::random(1, 40, 300) };
    let run = plan.record(&Tree::new());
    // What is opened syncs as usual.
    let plan = Plan { options, ..plan };
    let models = plan.models();
    let looked = run.look(40, |root, _, seen| plan.check(&models, root, seen));
    let lost = looked.problems.len();
    assert!(lost > 10, "{lost} of {} states lack something", looked.states);
}
