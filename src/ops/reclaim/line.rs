//! Where a member stands to its quota: over the line no write is taken, and above 80 percent it is
//! soon there again.

use crate::ops::cluster::MemberView;
use crate::ops::cluster::quota::{self, Source};

/// Percent of the quota that must be free for a cluster to be well again.
pub const FREE_PERCENT_MIN: i64 = 20;

/// How a database and its quota go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// There is no limit.
    NoLimit,
    /// The next write is taken.
    Under {
        /// Bytes that count against the quota.
        size: i64,
        /// The quota.
        quota: i64,
    },
    /// No write is: NOSPACE is raised, or will be by the next one.
    Over {
        /// Bytes that count against the quota.
        size: i64,
        /// The quota.
        quota: i64,
    },
    /// Its size is not known, or a quota is reached that nobody has told.
    Unknown,
}

impl Line {
    /// Takes what a member says of itself.
    #[must_use]
    pub fn of(member: &MemberView) -> Self {
        match (member.db_size, member.quota) {
            (None, _) => Self::Unknown,
            (Some(_), None) => Self::NoLimit,
            (Some(size), Some(quota)) => {
                let is_raised = member.alarms.contains(&"NOSPACE");
                let is_assumed = member.quota_source == Some(Source::Assumed);
                Self::judged(size, quota, is_assumed, is_raised)
            }
        }
    }

    /// Judges by a quota that may only be assumed. Where NOSPACE is raised, the true one was
    /// reached, and nobody knows at which size: the assumed one tells nothing then.
    #[must_use]
    pub fn judged(size: i64, quota: i64, is_assumed: bool, is_raised: bool) -> Self {
        if is_assumed && is_raised { Self::Unknown } else { Self::at(size, quota) }
    }

    /// Says of a member whose line is unknown what is not known of it, as a sentence.
    #[must_use]
    pub fn unknown_text(member: &MemberView) -> String {
        let label = member.label();
        match member.db_size {
            None => {
                let why = member.reason.as_deref().unwrap_or("it was not asked");
                format!("how large the database of {label} is was not told: {why}")
            }
            Some(size) => format!(
                "the quota of {label} was not told, and was reached, as NOSPACE is raised; its \
                 database has {size} bytes"
            ),
        }
    }

    /// Compares as etcd does, whose quota is reached when not less is left than a write takes
    /// (server/storage/quota.go, `Available`, checked at 3.7.3).
    #[must_use]
    pub fn at(size: i64, quota: i64) -> Self {
        if size >= quota { Self::Over { size, quota } } else { Self::Under { size, quota } }
    }

    /// Returns how much of the quota is free, in whole percent, rounded down; `None` where there is
    /// no limit or the size is not known.
    #[must_use]
    pub fn free_percent(self) -> Option<i64> {
        match self {
            Self::NoLimit | Self::Unknown => None,
            Self::Under { size, quota } | Self::Over { size, quota } => {
                Some(quota::percent(quota.saturating_sub(size), quota))
            }
        }
    }

    /// Tells whether enough is free.
    #[must_use]
    pub fn is_roomy(self) -> bool {
        match self {
            Self::NoLimit => true,
            Self::Unknown => false,
            _ => self.free_percent().is_some_and(|free| free >= FREE_PERCENT_MIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_the_quota_and_a_fifth_of_it_must_be_free() {
        for (size, is_over, free, is_roomy) in [
            (0, false, 100, true),
            (800, false, 20, true),
            (801, false, 19, false),
            (999, false, 0, false),
            (1000, true, 0, false),
            (5000, true, 0, false),
        ] {
            let line = Line::at(size, 1000);
            assert_eq!(matches!(line, Line::Over { .. }), is_over, "{size}");
            assert_eq!((line.free_percent(), line.is_roomy()), (Some(free), is_roomy), "{size}");
        }
        let member = |db_size, quota| {
            let mut member = MemberView::default();
            (member.db_size, member.quota) = (db_size, quota);
            member
        };
        assert_eq!(Line::of(&member(None, Some(1))), Line::Unknown);
        assert_eq!(Line::of(&member(Some(7), None)), Line::NoLimit);
        assert!(Line::NoLimit.is_roomy() && !Line::Unknown.is_roomy());
    }

    #[test]
    fn a_quota_that_is_assumed_was_not_the_one_that_was_reached() {
        assert_eq!(Line::judged(500, 1000, true, true), Line::Unknown);
        assert_eq!(Line::judged(5000, 1000, true, true), Line::Unknown);
        assert_eq!(Line::judged(500, 1000, true, false), Line::at(500, 1000));
        assert_eq!(Line::judged(500, 1000, false, true), Line::at(500, 1000));
        let mut member = MemberView { db_size: Some(500), quota: Some(1000), ..Default::default() };
        (member.quota_source, member.alarms) = (Some(Source::Assumed), vec!["NOSPACE"]);
        assert_eq!(Line::of(&member), Line::Unknown);
        assert!(Line::unknown_text(&member).contains("500 bytes"));
        member.quota_source = Some(Source::Metrics);
        assert_eq!(Line::of(&member), Line::at(500, 1000));
    }
}
