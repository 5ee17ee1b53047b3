//! What happens by the clock: leases end, old revisions are forgotten, quiet watchers are told.
//!
//! Ends of leases, checkpoints and compactions are requests like any other, and nobody waits for
//! them here.
//!
//! Source: etcd `lease/lessor.go`, `v3compactor`, 3.6.16.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::Shared;
use super::queue::{Outcome, Proposal, Reply, Work};
use crate::etcd::apply::Refusal;
use crate::etcd::request::{Body, Compaction, LeaseCheckpoint, LeaseCheckpoints, LeaseRevoke};
use crate::store::auto_compact::AutoCompact;
use crate::store::error::Error;
use crate::store::pending::{Pending, Promise, pending};

/// How often leases are looked at.
const LEASES: Duration = Duration::from_millis(500);
/// Leases that are ended in one look.
const ENDED_MAX: usize = 500;
/// Leases in one checkpoint.
const CHECKPOINTS_MAX: usize = 1000;
/// Leases whose ends are on their way, with what will come of them: no lease is ended again before,
/// lest one that is granted anew in between goes.
pub(super) type Ending = HashMap<i64, Pending<Outcome>>;

/// Who waits for a lease to be ended.
#[derive(Debug, Default)]
pub(super) struct Ends(Mutex<HashMap<i64, Vec<Promise<()>>>>);

impl Ends {
    /// Waits for the end of a lease.
    pub(super) fn of(&self, id: i64) -> Pending<()> {
        let (promise, waiting) = pending();
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        ends.entry(id).or_default().push(promise);
        waiting
    }

    /// Forgets those who wait no more.
    pub(super) fn prune(&self, id: i64) {
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = ends.get_mut(&id) {
            waiting.retain(Promise::is_awaited);
            if waiting.is_empty() {
                ends.remove(&id);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    pub(super) fn note(&self, ended: impl Iterator<Item = i64>) {
        let mut told = Vec::new();
        let mut ends = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !ends.is_empty() {
            ended.for_each(|id| told.extend(ends.remove(&id).unwrap_or_default()));
        }
        drop(ends);
        told.into_iter().for_each(|promise| promise.fulfil(()));
    }

    pub(super) fn abandon(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// A sleep that ends when the store does.
#[derive(Debug, Default)]
pub(super) struct Alarm {
    lock: Mutex<()>,
    rung: Condvar,
}

impl Alarm {
    pub(super) fn ring(&self) {
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        self.rung.notify_all();
    }

    pub(super) fn sleep(&self, time: Duration, is_over: impl Fn() -> bool) {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.rung.wait_timeout_while(guard, time, |()| !is_over());
    }
}

/// The timer thread.
pub(super) fn run(shared: &Arc<Shared>) {
    let clock = &shared.options.clock;
    let revision = || shared.core.revision.load(Ordering::Acquire);
    let mut auto = AutoCompact::start(shared.options.auto_compaction, clock.now(), revision());
    let mut compacting: Option<(i64, Pending<Outcome>)> = None;
    let mut ending = Ending::new();
    let mut progress_at = clock.now().saturating_add(shared.options.watch_progress_interval);
    let is_over = || shared.health.is_ending() || shared.health.has_failed();
    while !is_over() {
        shared.alarm.sleep(LEASES.min(shared.options.watch_progress_interval), is_over);
        if is_over() {
            break;
        }
        end_leases(shared, &mut ending);
        let now = clock.now();
        if now >= progress_at {
            shared.hub.notify_progress();
            progress_at = now.saturating_add(shared.options.watch_progress_interval);
        }
        match compacting.take() {
            Some((at, pending)) => match pending.wait_for(Duration::ZERO) {
                Ok(Some(Ok(_) | Err(Error::Refused(Refusal::Compacted)))) => auto.done(now, at),
                Ok(_) => {}
                Err(pending) => compacting = Some((at, pending)),
            },
            None => {
                if let Some(at) = auto.due(now, revision()) {
                    compacting = compact(shared, at).map(|pending| (at, pending));
                }
            }
        }
    }
}

fn compact(shared: &Shared, revision: i64) -> Option<Pending<Outcome>> {
    let (promise, waiting) = pending();
    let body = Body::Compaction(Compaction { revision, physical: false });
    let data = shared.encode_own(body);
    shared.propose(Proposal::normal(data, Reply::Caller(promise))).ok().map(|()| waiting)
}

fn end_leases(shared: &Shared, ending: &mut Ending) {
    let mut lessor = shared.lessor();
    let ended = lessor.take_expired(ENDED_MAX);
    let checkpoints = match shared.options.lease_checkpoints {
        Some(interval) => lessor.take_checkpoints(interval, CHECKPOINTS_MAX),
        None => Vec::new(),
    };
    drop(lessor);
    revoke(shared, ending, ended);
    if !checkpoints.is_empty() {
        let checkpoints = checkpoints
            .into_iter()
            .map(|(id, remaining_ttl_s)| LeaseCheckpoint { id, remaining_ttl_s })
            .collect();
        let body = Body::LeaseCheckpoint(LeaseCheckpoints { checkpoints });
        let _ = shared.queue.push(Work::unattended(shared.encode_own(body)));
    }
}

/// Logs the ends of leases, but of those that are on their way.
pub(super) fn revoke(shared: &Shared, ending: &mut Ending, ended: Vec<i64>) {
    for id in settle(shared, ending).into_iter().chain(ended) {
        if let Entry::Vacant(entry) = ending.entry(id) {
            let (promise, waiting) = pending();
            let data = shared.encode_own(Body::LeaseRevoke(LeaseRevoke { id }));
            if shared.propose(Proposal::normal(data, Reply::Caller(promise))).is_ok() {
                entry.insert(waiting);
            }
        }
    }
}

/// Forgets what came; returns leases that are there still, because rules of auth were changed while
/// their ends were on their way.
fn settle(shared: &Shared, ending: &mut Ending) -> Vec<i64> {
    let mut again = Vec::new();
    for (id, waiting) in std::mem::take(ending) {
        match waiting.wait_for(Duration::ZERO) {
            Err(waiting) => drop(ending.insert(id, waiting)),
            Ok(Some(Err(Error::Refused(Refusal::AuthOldRevision)))) => again.push(id),
            Ok(Some(Ok(_))) => shared.figures.leases_expired.add(1),
            Ok(_) => {}
        }
    }
    again
}
