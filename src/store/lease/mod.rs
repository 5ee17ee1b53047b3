//! Leases count down: which ones ran out, by a clock that goes forward only.
//!
//! What leases there are is in the state; here is only the time. An expired lease is not gone: it
//! is reported, the engine logs its end, and the entry removes it.
//!
//! 1. No lease is reported before its time, which begins when its grant or renewal was seen here.
//! 2. After a start each begins anew: with its full time or what was recorded last, and the
//!    extension besides. How long it had lived before is not known.
//! 3. A lease that ran out cannot be renewed, although it is still there.
//!
//! Times to live are seconds, up to 9 * 10^9; what would be later than the clock can tell is never.
//!
//! Source: etcd `lease/lessor.go`, `lease_queue.go`, 3.6.16, 3.7.3.

mod spread;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::clock::Clock;
use super::figures::histogram::{Histogram, TTL};
use super::mvcc::LeaseChange;

/// Leases whose ends are logged in a second, at most: half of them in each round of half a second.
pub const REVOKES_PER_SECOND: usize = 1000;
/// How long an expired lease that was given out is not given out again.
pub const RETRY_INTERVAL: Duration = Duration::from_secs(3);

/// The countdowns.
#[derive(Debug)]
pub struct Lessor {
    clock: Arc<dyn Clock>,
    leases: HashMap<i64, Lease>,
    /// When each is to be given out: when it runs out, or when it is time to try again.
    queue: BTreeSet<(Duration, i64)>,
    /// Since when each has not been checkpointed; not those whose time is too short for it.
    unrecorded: BTreeSet<(Duration, i64)>,
    counts: Counts,
}

/// What became of leases since the start.
#[derive(Debug)]
pub struct Counts {
    pub granted: u64,
    pub revoked: u64,
    pub renewed: u64,
    /// Times to live that were granted, in seconds.
    pub ttls: Histogram,
}

#[derive(Debug)]
struct Lease {
    granted_ttl_s: i64,
    /// As the lease's row has it; 0 for none.
    recorded_ttl_s: i64,
    expiry: Duration,
    /// Its place in the queue.
    due: Duration,
    /// Its place among those that were not checkpointed.
    unrecorded_since: Option<Duration>,
}

/// A lease's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLeft {
    /// Seconds it was granted.
    pub granted_ttl_s: i64,
    /// Whole seconds that are left; not below 0.
    pub ttl_s: i64,
}

/// What a keep-alive came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// It has its full time again.
    Renewed {
        /// Seconds, as granted.
        ttl_s: i64,
        /// A remaining time stands in the lease's row, by which a restart would end it too early:
        /// a checkpoint of 0 is to be logged before the client is answered.
        is_recorded: bool,
    },
    /// There is no such lease.
    Missing,
    /// It ran out and its end is on the way: ask again when that is done.
    Ending,
}

impl Lessor {
    /// Starts the countdown of leases that a store had, as (id, granted seconds, remaining seconds
    /// or 0): each gets its full time, or what was recorded, and `extension` besides; many that
    /// would run out together are spread.
    #[must_use]
    pub fn start(clock: Arc<dyn Clock>, leases: &[(i64, i64, i64)], extension: Duration) -> Self {
        let now = clock.now();
        let mut lessor = Self {
            clock,
            leases: HashMap::new(),
            queue: BTreeSet::new(),
            unrecorded: BTreeSet::new(),
            counts: Counts { granted: 0, revoked: 0, renewed: 0, ttls: Histogram::new(&TTL) },
        };
        for &(id, granted_ttl_s, recorded_ttl_s) in leases {
            let ttl_s = if recorded_ttl_s > 0 { recorded_ttl_s } else { granted_ttl_s };
            let expiry = now.saturating_add(extension).saturating_add(seconds(ttl_s));
            lessor.insert(id, Lease::new(granted_ttl_s, recorded_ttl_s, now, expiry));
        }
        let expiries: Vec<_> = lessor.queue.iter().copied().collect();
        for (id, delay) in spread::delays(&expiries, REVOKES_PER_SECOND) {
            if let Some(lease) = lessor.leases.get(&id) {
                let expiry = lease.expiry.saturating_add(delay);
                lessor.set_expiry(id, expiry);
            }
        }
        lessor
    }

    /// Follows what was applied.
    pub fn follow(&mut self, change: LeaseChange) {
        let now = self.clock.now();
        match change {
            LeaseChange::Granted { id, ttl_s } => {
                self.remove(id);
                self.counts.granted = self.counts.granted.saturating_add(1);
                self.counts.ttls.observe(u64::try_from(ttl_s).unwrap_or(0));
                let expiry = now.saturating_add(seconds(ttl_s));
                self.insert(id, Lease::new(ttl_s, 0, now, expiry));
            }
            LeaseChange::Revoked(id) => {
                self.counts.revoked = self.counts.revoked.saturating_add(1);
                self.remove(id);
            }
            LeaseChange::Checkpointed { id, remaining_ttl_s } => {
                if let Some(lease) = self.leases.get_mut(&id) {
                    lease.recorded_ttl_s = remaining_ttl_s;
                    self.set_unrecorded(id, Some(now));
                }
            }
        }
    }

    /// Gives a lease its full time again.
    pub fn renew(&mut self, id: i64) -> Renewal {
        let now = self.clock.now();
        let Some(lease) = self.leases.get(&id) else { return Renewal::Missing };
        if lease.expiry <= now {
            return Renewal::Ending;
        }
        let (ttl_s, is_recorded) = (lease.granted_ttl_s, lease.recorded_ttl_s > 0);
        // Leases that a start spread may have more time than they were granted.
        let expiry = now.saturating_add(seconds(ttl_s));
        self.set_expiry(id, expiry);
        self.counts.renewed = self.counts.renewed.saturating_add(1);
        Renewal::Renewed { ttl_s, is_recorded }
    }

    /// Returns what became of leases.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Tells a lease's time.
    #[must_use]
    pub fn time_left(&self, id: i64) -> Option<TimeLeft> {
        let lease = self.leases.get(&id)?;
        let left = lease.expiry.saturating_sub(self.clock.now());
        let ttl_s = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
        Some(TimeLeft { granted_ttl_s: lease.granted_ttl_s, ttl_s })
    }

    /// Lists all leases, those that run out first, first.
    #[must_use]
    pub fn list(&self) -> Vec<i64> {
        let mut leases: Vec<_> =
            self.leases.iter().map(|(id, lease)| (lease.expiry, *id)).collect();
        leases.sort_unstable();
        leases.into_iter().map(|(_, id)| id).collect()
    }

    /// Tells how many leases there are.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.leases.len()
    }

    /// Tells when the next lease is to be taken, by the clock.
    #[cfg(test)]
    pub(super) fn next_expiry(&self) -> Option<Duration> {
        self.queue.first().map(|(due, _)| *due)
    }

    /// Takes up to `max` leases that ran out; each is given out again only after a while, in case
    /// its end could not be logged.
    pub fn take_expired(&mut self, max: usize) -> Vec<i64> {
        let now = self.clock.now();
        let mut taken = Vec::new();
        while taken.len() < max {
            let Some((_, id)) = self.queue.first().copied().filter(|(due, _)| *due <= now) else {
                break;
            };
            self.set_due(id, now.saturating_add(RETRY_INTERVAL));
            taken.push(id);
        }
        taken
    }

    /// Lists leases whose remaining time is to be recorded now, with the seconds: those of more
    /// than `interval` to live that were not recorded for that long.
    pub fn take_checkpoints(&mut self, interval: Duration, max: usize) -> Vec<(i64, i64)> {
        let now = self.clock.now();
        let mut taken = Vec::new();
        while taken.len() < max {
            let first = self.unrecorded.first().copied();
            let is_due = |(since, _): &(Duration, i64)| since.saturating_add(interval) <= now;
            let Some((_, id)) = first.filter(is_due) else { break };
            let Some(lease) = self.leases.get(&id) else { break };
            let is_long = seconds(lease.life_s()) > Duration::from_secs(interval.as_secs());
            let left_s = seconds_up(lease.expiry.saturating_sub(now));
            let is_worth_it = left_s > 0 && left_s < lease.granted_ttl_s;
            self.set_unrecorded(id, (is_long && left_s > 0).then_some(now));
            if is_long && is_worth_it {
                taken.push((id, left_s));
            }
        }
        taken
    }

    fn insert(&mut self, id: i64, lease: Lease) {
        self.queue.insert((lease.due, id));
        self.unrecorded.extend(lease.unrecorded_since.map(|since| (since, id)));
        self.leases.insert(id, lease);
    }

    fn remove(&mut self, id: i64) {
        if let Some(lease) = self.leases.remove(&id) {
            self.queue.remove(&(lease.due, id));
            if let Some(since) = lease.unrecorded_since {
                self.unrecorded.remove(&(since, id));
            }
        }
    }

    fn set_expiry(&mut self, id: i64, expiry: Duration) {
        if let Some(lease) = self.leases.get_mut(&id) {
            lease.expiry = expiry;
        }
        self.set_due(id, expiry);
    }

    fn set_due(&mut self, id: i64, due: Duration) {
        if let Some(lease) = self.leases.get_mut(&id) {
            self.queue.remove(&(lease.due, id));
            lease.due = due;
            self.queue.insert((due, id));
        }
    }

    fn set_unrecorded(&mut self, id: i64, since: Option<Duration>) {
        if let Some(lease) = self.leases.get_mut(&id) {
            if let Some(before) = lease.unrecorded_since {
                self.unrecorded.remove(&(before, id));
            }
            lease.unrecorded_since = since;
            self.unrecorded.extend(since.map(|since| (since, id)));
        }
    }
}

impl Lease {
    fn new(granted_ttl_s: i64, recorded_ttl_s: i64, now: Duration, expiry: Duration) -> Self {
        let unrecorded_since = Some(now);
        Self { granted_ttl_s, recorded_ttl_s, expiry, due: expiry, unrecorded_since }
    }

    /// Seconds that a restart would give it.
    fn life_s(&self) -> i64 {
        if self.recorded_ttl_s > 0 { self.recorded_ttl_s } else { self.granted_ttl_s }
    }
}

fn seconds(ttl_s: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl_s).unwrap_or(0))
}

/// Whole seconds, rounded up: what is recorded must not end a lease early.
fn seconds_up(left: Duration) -> i64 {
    let part = u64::from(left.subsec_nanos() > 0);
    i64::try_from(left.as_secs().saturating_add(part)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
