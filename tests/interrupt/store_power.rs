//! Stores that lose power at any moment: each state of the disk opens, with all that was answered
//! and nothing half done.
//!
//! `ETCDKIT_STORE_STATES` asks for more states of each run.

use etcdkit::bolt::disk::Disk;
use etcdkit::store::engine::Options;

use crate::power_history::Tree;
use crate::store_driver::options;
use crate::store_plan::Plan;
use crate::store_states::{Looked, asked};

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
    survives(&Plan::random(1, 60, 300), "a store", 60);
}

#[test]
fn a_store_that_is_defragmented_and_opened_again_survives() {
    let plan = Plan { defrag_every: 20, reopen_every: 27, ..Plan::random(2, 60, 300) };
    survives(&plan, "a store that is defragmented and opened again", 60);
}

/// Raft snapshots are recorded often.
fn often(disk: Disk) -> Options {
    Options { snapshot_count: 7, ..options(disk) }
}

#[test]
fn a_store_that_records_snapshots_survives() {
    let plan = Plan { options: often, ..Plan::random(3, 60, 300) };
    survives(&plan, "a store that records snapshots", 60);
}
