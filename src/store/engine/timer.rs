//! What happens by the clock: leases end, old revisions are forgotten, quiet watchers are told.
//!
//! Ends of leases, checkpoints and compactions are requests like any other, and nobody waits for
//! them here.
//!
//! Source: etcd `lease/lessor.go`, `v3compactor`, 3.6.16.

use std::collections::HashMap;
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
    let mut progress_at = clock.now().saturating_add(shared.options.watch_progress_interval);
    let is_over = || shared.health.is_ending() || shared.health.has_failed();
    while !is_over() {
        shared.alarm.sleep(LEASES.min(shared.options.watch_progress_interval), is_over);
        if is_over() {
            break;
        }
        end_leases(shared);
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

fn end_leases(shared: &Shared) {
    let mut lessor = shared.lessor();
    let ended = lessor.take_expired(ENDED_MAX);
    let checkpoints = match shared.options.lease_checkpoints {
        Some(interval) => lessor.take_checkpoints(interval, CHECKPOINTS_MAX),
        None => Vec::new(),
    };
    drop(lessor);
    for id in ended {
        let body = Body::LeaseRevoke(LeaseRevoke { id });
        let _ = shared.queue.push(Work::unattended(shared.encode_own(body)));
    }
    if !checkpoints.is_empty() {
        let checkpoints = checkpoints
            .into_iter()
            .map(|(id, remaining_ttl_s)| LeaseCheckpoint { id, remaining_ttl_s })
            .collect();
        let body = Body::LeaseCheckpoint(LeaseCheckpoints { checkpoints });
        let _ = shared.queue.push(Work::unattended(shared.encode_own(body)));
    }
}
