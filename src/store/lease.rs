//! Leases count down: which ones ran out, by a clock that goes forward only.
//!
//! What leases there are is in the state; here is only the time. An expired lease is not gone: it
//! is reported, the engine logs its end, and the entry removes it.
//!
//! Source: etcd `lease/lessor.go`, `lease_queue.go`, 3.6.16, 3.7.3.

use std::sync::Arc;
use std::time::Duration;

use super::clock::Clock;
use super::mvcc::LeaseChange;

/// The countdowns.
#[derive(Debug)]
pub struct Lessor {}

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
    /// It lives so many seconds again.
    Renewed(i64),
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
        let _ = (clock, leases, extension);
        todo!()
    }

    /// Follows what was applied.
    pub fn follow(&mut self, change: LeaseChange) {
        let _ = change;
        todo!()
    }

    /// Gives a lease its full time again.
    pub fn renew(&mut self, id: i64) -> Renewal {
        let _ = id;
        todo!()
    }

    /// Tells a lease's time.
    #[must_use]
    pub fn time_left(&self, id: i64) -> Option<TimeLeft> {
        let _ = id;
        todo!()
    }

    /// Lists all leases, those that run out first, first.
    #[must_use]
    pub fn list(&self) -> Vec<i64> {
        todo!()
    }

    /// Takes up to `max` leases that ran out; each is given out again only after a while, in case
    /// its end could not be logged.
    pub fn take_expired(&mut self, max: usize) -> Vec<i64> {
        let _ = max;
        todo!()
    }

    /// Lists leases whose remaining time is to be recorded now, with the seconds.
    pub fn take_checkpoints(&mut self, interval: Duration, max: usize) -> Vec<(i64, i64)> {
        let _ = (interval, max);
        todo!()
    }
}
