//! Time that goes forward only, and can be faked.

use std::fmt::Debug;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A clock.
pub trait Clock: Debug + Send + Sync {
    /// Time since an arbitrary start; never goes back, and stands still while the machine is
    /// suspended.
    fn now(&self) -> Duration;

    /// Milliseconds of wall time since 1970, for ids.
    fn unix_ms(&self) -> u64;
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn unix_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// A clock that a test sets forward.
#[cfg(test)]
#[derive(Debug, Default)]
pub(crate) struct FakeClock(std::sync::Mutex<Duration>);

#[cfg(test)]
impl FakeClock {
    pub(crate) fn advance(&self, by: Duration) {
        *self.0.lock().unwrap() += by;
    }
}

#[cfg(test)]
impl Clock for FakeClock {
    fn now(&self) -> Duration {
        *self.0.lock().unwrap()
    }

    fn unix_ms(&self) -> u64 {
        u64::try_from(self.now().as_millis()).unwrap()
    }
}
