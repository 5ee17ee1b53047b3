//! States of the disk after a loss of power, on real etcds: they start where we do, and hold the
//! same.

use etcdkit::bolt::disk::Disk;
use etcdkit::store::engine::{Options, Store};
use etcdkit::store::open::Compat;

use crate::boots::copy_folder;
use crate::equals::{accepted, database};
use crate::power_history::Tree;
use crate::programs::real;
use crate::store_plan::Plan;
use crate::store_states::asked;
use crate::store_takeover::{as_member, same, start, told, truth};
use crate::support::Sandbox;

fn recorded(disk: Disk) -> Options {
    let options = as_member(disk).compat(Compat::V3_6);
    options.snapshot_count(10_u64).wal_segment_bytes(16_u64 << 10)
}

#[test]
fn states_after_a_loss_of_power_start_on_real_etcds() {
    let states = asked("ETCDKIT_STORE_STATES", 8);
    let Some(real) = real() else { return };
    let plan = Plan { options: recorded, ..Plan::random(9, 60, 300) };
    let run = plan.record(&Tree::new());
    let mut turn = 0;
    let looked = run.look(states, |root, _, seen| {
        if seen.marks.is_empty() {
            // Nobody was told that there is a store yet.
            return Ok(());
        }
        let sandbox = Sandbox::new();
        let (theirs, ours) = (sandbox.path("d"), sandbox.path("ours"));
        copy_folder(&root.join("data"), &theirs);
        copy_folder(&root.join("data"), &ours);
        let version = ["3.6", "3.7"][turn % 2];
        turn += 1;
        let what = format!("after {} marks on etcd {version}", seen.marks.len());
        let store = Store::open(&ours, recorded(Disk::default()))
            .map_err(|error| format!("does not open: {error}"))?;
        let found = told(&store);
        store.close().map_err(|error| error.to_string())?;
        let etcd = real.etcd(version, &start(theirs.clone()));
        same(&what, &found, &truth(&etcd));
        etcd.stop();
        accepted(&real, &database(&theirs));
        accepted(&real, &database(&ours));
        Ok(())
    });
    assert_eq!(looked.problems, Vec::<String>::new());
    println!("{turn} of {} states were opened", looked.states);
    assert!(turn >= states / 2, "{turn} states were opened");
}
