//! Stores whose disk fails at some change: whoever asks is told why, nothing hangs, and what was
//! answered is there when the store is opened again on a disk that works.
//!
//! `ETCDKIT_STORE_FAULTS` asks for so many changes of each kind of fault; all where it is larger.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcdkit::bolt::disk::{Disk, Probe};
use etcdkit::store::engine::{Options, Store};

use crate::power_history::Dice;
use crate::power_history::fresh;
use crate::store_driver::{ask, compare, defrag, options};
use crate::store_model::{Model, Said};
use crate::store_probe::{Fault, Faulty};
use crate::store_requests::{Ask, Mix, random};
use crate::store_states::asked;

/// Longest that a run may take: far above what it needs.
const HANG: Duration = Duration::from_secs(30);

fn asks() -> Vec<Ask> {
    let (mut dice, mut model, mut asks) = (Dice(77), Model::default(), Vec::new());
    for _ in 0..40 {
        let mix = Mix {
            revision: model.revision,
            bad_forms: 0,
            alarms: None,
            traps: true,
            leaves_others: false,
            value_bytes: 9000,
        };
        let ask = random(&mut dice, mix);
        let _ = model.ask(&ask.body());
        asks.push(ask);
    }
    asks
}

/// How far a run came.
#[derive(Debug, Default)]
struct Ran {
    model: Model,
    /// The model, if the request whose outcome is not known was done.
    or: Option<Model>,
    /// What was told of the fault, and by what.
    errors: Vec<String>,
}

fn faulty_options(disk: Disk) -> Options {
    options(disk).snapshot_count(15_u64)
}

/// Works on a store until something is refused.
fn run(dir: &Path, disk: Disk, asks: &[Ask]) -> Ran {
    let mut ran = Ran::default();
    let store = match Store::open(dir, faulty_options(disk.clone())) {
        Ok(store) => store,
        Err(error) => {
            ran.errors.push(format!("open: {error}"));
            return ran;
        }
    };
    for (number, one) in asks.iter().enumerate() {
        let said: Said = ask(&store, one);
        let mut after = ran.model.clone();
        let wanted = after.ask(&one.body());
        if said == wanted {
            ran.model = after;
        } else {
            match said {
                Err(error) => ran.errors.push(format!("a request: {error}")),
                Ok(said) => panic!("{one:?}: {said:?}, not {wanted:?}"),
            }
            ran.or = Some(after);
            break;
        }
        if number == 20
            && let Err(error) = defrag(&store)
        {
            ran.errors.push(format!("defrag: {error}"));
            break;
        }
    }
    if let Some(error) = store.failure() {
        ran.errors.push(format!("failure: {error}"));
    }
    if let Err(error) = store.close() {
        ran.errors.push(format!("close: {error}"));
    }
    ran
}

fn check(at: u64, fault: Fault, stays: bool, asks: &[Ask]) -> Result<bool, String> {
    let (_folder, root) = fresh();
    let dir = root.join("data");
    let probe = Arc::new(Faulty::new(at, fault, stays));
    let began = Instant::now();
    let ran = run(&dir, Disk::with_probe(probe.clone() as Arc<dyn Probe>), asks);
    let took = began.elapsed();
    let what = format!("{fault:?} at {at} ({:?}), stays: {stays}", probe.what());
    if took > HANG {
        return Err(format!("{what}: took {took:?}"));
    }
    if !probe.has_struck() {
        return match ran.errors.is_empty() {
            true => Ok(false),
            false => Err(format!("{what}: nothing failed, and still: {:?}", ran.errors)),
        };
    }
    let cause = fault.error().to_string();
    let cause = cause.split(" (").next().unwrap();
    // A file that cannot be given room ahead of time is used as it is.
    let failed = probe.what().unwrap_or_default();
    let is_room = ["SetLen", "Zeros"].iter().any(|kind| failed.starts_with(kind));
    let is_harmless =
        (fault != Fault::Broken && is_room || probe.has_struck_nameless()) && ran.errors.is_empty();
    if !is_harmless && !ran.errors.iter().any(|error| error.contains(cause)) {
        return Err(format!("{what}: nobody is told {cause:?}: {:?}", ran.errors));
    }
    let store = Store::open(&dir, faulty_options(Disk::default()))
        .map_err(|error| format!("{what}: does not open afterwards: {error}"))?;
    let done = compare(&store, &ran.model);
    let or = ran.or.as_ref().map(|model| compare(&store, model));
    if done.is_err() && or.is_none_or(|or| or.is_err()) {
        return Err(format!("{what}: {done:?}; {:?}", ran.errors));
    }
    let _ = store.close();
    Ok(true)
}

#[test]
fn a_disk_that_fails_is_told_and_nothing_is_lost() {
    let asks = asks();
    let counter = Arc::new(Faulty::never());
    let (_folder, root) = fresh();
    let ran = run(&root.join("data"), Disk::with_probe(counter.clone()), &asks);
    assert_eq!(ran.errors, Vec::<String>::new());
    let changes = usize::try_from(counter.count()).unwrap();
    assert!(changes > 100, "{changes} changes");
    let wanted = asked("ETCDKIT_STORE_FAULTS", 24);
    let (mut struck, mut problems) = (0, Vec::new());
    for (kind, (fault, stays)) in
        [(Fault::Full, false), (Fault::Broken, false), (Fault::Short, false), (Fault::Full, true)]
            .into_iter()
            .enumerate()
    {
        let apart = changes.div_ceil(wanted).max(1);
        for at in (0..changes).skip(if apart > kind { kind } else { 0 }).step_by(apart) {
            match check(at as u64, fault, stays, &asks) {
                Ok(has_struck) => struck += usize::from(has_struck),
                Err(problem) => problems.push(problem),
            }
        }
    }
    println!("{struck} faults struck, of {changes} changes in a run");
    let first: Vec<_> = problems.iter().take(6).map(String::as_str).collect();
    assert!(first.is_empty(), "{} of {struck}\n{}", problems.len(), first.join("\n"));
    assert!(struck > wanted.min(changes), "{struck} faults struck");
}
