//! What happens by the clock: leases end, old revisions are forgotten, quiet watchers are told.
//!
//! Ends of leases, checkpoints and compactions are requests like any other, and nobody waits for
//! them here.
//!
//! Source: etcd `lease/lessor.go`, `v3compactor/periodic.go`, `v3compactor/revision.go`, 3.6.16.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::Shared;
use super::options::AutoCompaction;
use super::queue::Work;
use crate::etcd::request::{Body, Compaction, LeaseCheckpoint, LeaseCheckpoints, LeaseRevoke};
use crate::store::pending::{Pending, Promise, pending};

/// How often leases are looked at.
const LEASES: Duration = Duration::from_millis(500);
/// Leases that are ended in one look.
const ENDED_MAX: usize = 500;
/// Leases in one checkpoint.
const CHECKPOINTS_MAX: usize = 1000;
/// Longest time between two looks at the revision, by time.
const PERIOD_MAX: Duration = Duration::from_secs(3600);
/// Time between two compactions, by number of revisions.
const REVISION_PERIOD: Duration = Duration::from_secs(300);

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
    let mut auto = AutoCompactor::new(shared.options.auto_compaction, clock.now());
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
        if let Some(revision) = auto.due(now, shared.core.revision.load(Ordering::Acquire)) {
            let body = Body::Compaction(Compaction { revision, physical: false });
            let _ = shared.queue.push(Work::unattended(shared.encode_own(body)));
        }
    }
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

/// Decides when to compact at which revision.
#[derive(Debug)]
struct AutoCompactor {
    mode: AutoCompaction,
    next: Duration,
    /// Revisions as they were, oldest first.
    seen: VecDeque<i64>,
    last: i64,
}

impl AutoCompactor {
    fn new(mode: AutoCompaction, now: Duration) -> Self {
        let mut auto = Self { mode, next: now, seen: VecDeque::new(), last: 0 };
        auto.next = now.saturating_add(match mode {
            AutoCompaction::Revision(_) => REVISION_PERIOD,
            _ => Duration::ZERO,
        });
        auto
    }

    /// Returns the revision to compact at now, if any.
    fn due(&mut self, now: Duration, revision: i64) -> Option<i64> {
        if now < self.next {
            return None;
        }
        let at = match self.mode {
            AutoCompaction::Off => return None,
            AutoCompaction::Revision(keep) => {
                self.next = now.saturating_add(REVISION_PERIOD);
                revision.saturating_sub(keep)
            }
            AutoCompaction::Periodic(retention) => {
                // The revision is noted ten times a window; the one of a whole retention ago is
                // compacted, once a window.
                let window = retention.min(PERIOD_MAX);
                let step = (window / 10).max(Duration::from_millis(1));
                self.next = now.saturating_add(step);
                let kept = retention.as_nanos().div_ceil(step.as_nanos().max(1));
                self.seen.push_back(revision);
                if u128::try_from(self.seen.len()).unwrap_or(u128::MAX) <= kept {
                    return None;
                }
                let at = self.seen.front().copied().unwrap_or(0);
                let per_window = usize::try_from(window.as_nanos() / step.as_nanos().max(1));
                let drop = per_window.unwrap_or(usize::MAX).max(1).min(self.seen.len());
                self.seen.drain(..drop);
                at
            }
        };
        if at <= self.last.max(0) {
            return None;
        }
        self.last = at;
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_compact_what_is_a_retention_old() {
        let retention = Duration::from_secs(36_000);
        let mut auto = AutoCompactor::new(AutoCompaction::Periodic(retention), Duration::ZERO);
        let mut compacted = Vec::new();
        // One revision a second, looked at once a minute for 14 hours.
        for minute in 0..14 * 60 {
            let now = Duration::from_secs(minute * 60);
            let revision = i64::try_from(now.as_secs()).unwrap();
            compacted.extend(auto.due(now, revision).map(|at| (minute, at)));
        }
        assert_eq!(compacted, [(600, 0), (660, 3600), (720, 7200), (780, 10_800)][1..]);
    }

    #[test]
    fn revisions_keep_the_newest() {
        let mut auto = AutoCompactor::new(AutoCompaction::Revision(100), Duration::ZERO);
        let at = |auto: &mut AutoCompactor, s, revision| auto.due(Duration::from_secs(s), revision);
        assert_eq!(at(&mut auto, 299, 1000), None);
        assert_eq!(at(&mut auto, 300, 1000), Some(900));
        assert_eq!(at(&mut auto, 599, 2000), None);
        assert_eq!(at(&mut auto, 600, 1000), None);
        assert_eq!(at(&mut auto, 900, 1001), Some(901));
    }
}
