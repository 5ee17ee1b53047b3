//! When old revisions are to be forgotten without anybody asking: periodic or by their number.
//!
//! - Periodic, retention R: looks every tenth of R or of an hour, whichever is shorter. Compacts
//!   first after R, then every R or hour, to the revision that was seen one look before R ago.
//! - Revision, retention N: looks every 5 minutes. Compacts to the current revision less N.
//!
//! A compaction to the revision of the last one is left out. After one that failed, the next look
//! tries again. Revisions are recorded from the start on, so a restart begins a new first R.
//!
//! Source: etcd `v3compactor` (`Periodic.Run`, `Revision.Run`), `embed.parseCompactionRetention`,
//! 3.6.16, 3.7.3.

use std::collections::VecDeque;
use std::time::Duration;

use crate::format::duration;

/// Longest time between two periodic compactions.
const PERIOD_MAX: Duration = Duration::from_secs(3600);
/// How many looks there are in a period.
const LOOKS: u32 = 10;
/// Time between two looks by number.
const REVISION_INTERVAL: Duration = Duration::from_secs(300);

/// How much is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// Everything.
    Off,
    /// Revisions of so long.
    Period(Duration),
    /// So many revisions.
    Revisions(i64),
}

impl Retention {
    /// Reads etcd's flags: mode `periodic`, `revision` or none; retention a number - of hours, or
    /// of revisions - or a duration such as `90m`; 0 is off.
    ///
    /// # Errors
    /// What is wrong, as a clause. etcd takes a duration for a number of revisions too: its
    /// nanoseconds.
    pub fn of_flags(mode: &str, retention: &str) -> Result<Self, String> {
        let number = retention.parse::<u32>().ok();
        match mode {
            "periodic" | "" => {
                let hour = |hours: u32| Duration::from_secs(u64::from(hours).saturating_mul(3600));
                let period = number.map(hour).or_else(|| duration::parse(retention));
                let period = period.ok_or_else(|| {
                    format!("{retention:?} is no number and no duration such as 1h or 90m")
                })?;
                // A period of less could not be cut into looks.
                let is_too_short = !period.is_zero() && period < Duration::from_millis(1);
                match period {
                    _ if is_too_short => Err(format!("{retention:?} is less than a millisecond")),
                    Duration::ZERO => Ok(Self::Off),
                    period => Ok(Self::Period(period)),
                }
            }
            "revision" => match retention.parse::<i64>() {
                Ok(0) => Ok(Self::Off),
                Ok(number) if number > 0 => Ok(Self::Revisions(number)),
                _ => Err(format!("{retention:?} is no number of revisions")),
            },
            mode => Err(format!("{mode:?} is no mode of compaction: periodic or revision")),
        }
    }
}

/// Says when to compact, driven by a clock and what came of it.
#[doc(hidden)]
#[derive(Debug)]
pub struct AutoCompact {
    retention: Retention,
    /// Time between two looks.
    interval: Duration,
    /// The next look.
    next: Duration,
    /// Revision of the last compaction that was done, else 0.
    last_revision: i64,
    /// When the last compaction was done, else when this began.
    last_success: Duration,
    /// Time to the next compaction: the whole period before the first.
    wait: Duration,
    /// Revisions of the past looks, the oldest one first; one period of them.
    seen: VecDeque<i64>,
    seen_max: usize,
}

impl AutoCompact {
    /// Begins to count time, at a revision.
    #[must_use]
    pub fn start(retention: Retention, now: Duration, revision: i64) -> Self {
        let (interval, wait) = match retention {
            Retention::Period(period) => {
                (period.min(PERIOD_MAX).checked_div(LOOKS).unwrap_or(PERIOD_MAX), period)
            }
            Retention::Off | Retention::Revisions(_) => (REVISION_INTERVAL, Duration::ZERO),
        };
        let looks = wait.as_nanos().checked_div(interval.as_nanos()).unwrap_or_default();
        Self {
            retention,
            interval,
            next: now.saturating_add(interval),
            last_revision: 0,
            last_success: now,
            wait,
            seen: VecDeque::from([revision]),
            seen_max: usize::try_from(looks).unwrap_or(usize::MAX).saturating_add(1),
        }
    }

    /// Tells when to call [`AutoCompact::due`] next; never for `None`.
    #[must_use]
    pub fn next(&self) -> Option<Duration> {
        (self.retention != Retention::Off).then_some(self.next)
    }

    /// Returns the revision to compact at, when it is time; [`AutoCompact::done`] is to be called
    /// then if it was. To be called at [`AutoCompact::next`]; in between it does nothing, and one
    /// that comes late is one look.
    pub fn due(&mut self, now: Duration, revision: i64) -> Option<i64> {
        if now < self.next {
            return None;
        }
        self.next = now.saturating_add(self.interval);
        match self.retention {
            Retention::Off => None,
            Retention::Revisions(kept) => {
                let target = revision.saturating_sub(kept);
                (target > 0 && target != self.last_revision).then_some(target)
            }
            Retention::Period(period) => {
                let target = self.seen.front().copied();
                self.seen.push_back(revision);
                if self.seen.len() > self.seen_max {
                    self.seen.pop_front();
                }
                let is_time = now.saturating_sub(self.last_success) >= self.wait;
                let target = target.filter(|at| is_time && *at != self.last_revision)?;
                self.wait = period.min(PERIOD_MAX);
                Some(target)
            }
        }
    }

    /// Notes that the compaction was done, or that somebody else had done it.
    pub fn done(&mut self, now: Duration, revision: i64) {
        self.last_revision = revision;
        self.last_success = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn minutes(count: u32) -> Duration {
        MINUTE * count
    }

    #[test]
    fn flags_are_read_as_etcd_reads_them() {
        let of = Retention::of_flags;
        assert_eq!(of("periodic", "1"), Ok(Retention::Period(minutes(60))));
        assert_eq!(of("periodic", "1h"), Ok(Retention::Period(minutes(60))));
        assert_eq!(of("", "1h30m"), Ok(Retention::Period(minutes(90))));
        assert_eq!(of("periodic", "0.5h"), Ok(Retention::Period(minutes(30))));
        assert_eq!(
            of("periodic", ".5m1.25s"),
            Ok(Retention::Period(Duration::from_millis(31_250)))
        );
        assert_eq!(of("revision", "1000"), Ok(Retention::Revisions(1000)));
        for (mode, retention) in [("periodic", "0"), ("revision", "0"), ("", "0"), ("", "0s")] {
            assert_eq!(of(mode, retention), Ok(Retention::Off), "{mode} {retention}");
        }
        let bad = ["", "-1", "x", "1x", "h", ".h", "1.1.1s", "1h5", "5ns", "99999999999999h"];
        for retention in bad {
            assert!(of("periodic", retention).is_err(), "{retention}");
        }
        assert!(of("revision", "1h").is_err() && of("revision", "-5").is_err());
        assert!(of("hourly", "1").is_err());
    }

    /// Runs looks minute by minute, the revision rising by one each; returns what was compacted
    /// when, every compaction done.
    fn compactions(retention: Retention, until: u32) -> Vec<(u32, i64)> {
        let mut auto = AutoCompact::start(retention, Duration::ZERO, 1);
        let mut seen = Vec::new();
        for minute in 1..=until {
            let now = minutes(minute);
            if let Some(revision) = auto.due(now, i64::from(minute) + 1) {
                seen.push((minute, revision));
                auto.done(now, revision);
            }
        }
        seen
    }

    #[test]
    fn an_hour_is_kept_for_an_hour() {
        let seen = compactions(Retention::Period(minutes(60)), 240);
        // The revision of an hour and a look ago; at the first time there is no older one.
        assert_eq!(seen, [(60, 1), (120, 55), (180, 115), (240, 175)]);
    }

    #[test]
    fn a_day_is_kept_for_a_day_and_cut_each_hour() {
        let seen = compactions(Retention::Period(minutes(24 * 60)), 26 * 60);
        assert_eq!(seen, [(24 * 60, 1), (25 * 60, 55), (26 * 60, 115)]);
    }

    #[test]
    fn ten_minutes_are_cut_each_ten_minutes() {
        let seen = compactions(Retention::Period(minutes(10)), 30);
        assert_eq!(seen, [(10, 1), (20, 10), (30, 20)]);
    }

    #[test]
    fn a_store_that_stands_still_is_compacted_once() {
        let mut auto = AutoCompact::start(Retention::Period(minutes(10)), Duration::ZERO, 7);
        let due: Vec<_> = (1..60)
            .filter_map(|minute| {
                let revision = auto.due(minutes(minute), 7)?;
                auto.done(minutes(minute), revision);
                Some((minute, revision))
            })
            .collect();
        assert_eq!(due, [(10, 7)]);
    }

    #[test]
    fn a_failure_is_tried_again_after_a_tenth() {
        let mut auto = AutoCompact::start(Retention::Period(minutes(60)), Duration::ZERO, 1);
        let mut asked = Vec::new();
        for minute in 1..=140_u32 {
            if let Some(revision) = auto.due(minutes(minute), i64::from(minute) + 1) {
                asked.push((minute, revision));
                if minute == 72 {
                    auto.done(minutes(minute), revision);
                }
            }
        }
        assert_eq!(asked, [(60, 1), (66, 1), (72, 7), (132, 67), (138, 73)]);
    }

    #[test]
    fn by_number_so_many_are_kept() {
        let seen = compactions(Retention::Revisions(10), 20);
        assert_eq!(seen, [(10, 1), (15, 6), (20, 11)]);
        let mut auto = AutoCompact::start(Retention::Revisions(10), Duration::ZERO, 100);
        assert_eq!(auto.due(minutes(5), 100), Some(90));
        assert_eq!(auto.due(minutes(10), 100), Some(90), "it was not done");
        auto.done(minutes(10), 90);
        assert_eq!(auto.due(minutes(15), 100), None);
        assert_eq!(auto.due(minutes(19), 200), None, "too early");
        assert_eq!(auto.due(minutes(20), 200), Some(190));
    }

    #[test]
    fn off_is_off() {
        let mut auto = AutoCompact::start(Retention::Off, Duration::ZERO, 1);
        assert_eq!(auto.next(), None);
        assert_eq!(auto.due(minutes(6000), 1_000_000), None);
    }
}
