//! How large a member's database may become, and how much of that it has used.
//!
//! etcd counts the pages of its file that were ever used, free ones too, against the quota; at the
//! quota it raises NOSPACE and refuses puts and leases, and transactions with a put in them (etcd
//! server/storage/quota.go and server/etcdserver/apply, `applierV3Capped`, checked at 3.7.3).
//! Thresholds: 75 % is a warning, 90 % critical.

use serde::Serialize;

/// What `--quota-backend-bytes` is where it is not set (etcd server/storage/quota.go,
/// `DefaultQuotaBytes`, checked at 3.7.3).
pub const DEFAULT_BYTES: i64 = 2 << 30;
/// More than etcd advises (the same, `MaxQuotaBytes`).
pub const ADVISED_BYTES_MAX: i64 = 8 << 30;
/// Percent of the quota at which to act soon.
pub const WARNING_PERCENT: i64 = 75;
/// Percent of the quota at which to act now.
pub const CRITICAL_PERCENT: i64 = 90;
/// Percent of the file below which its use is fragmented ...
pub const IN_USE_PERCENT_MIN: i64 = 50;
/// ... where the file has more bytes than this.
pub const FRAGMENTED_BYTES_MIN: i64 = 100 << 20;

/// Who says what the quota is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// The member's status (etcd 3.6 and later).
    Status,
    /// The member's `/metrics` (etcd 3.5).
    Metrics,
    /// Whoever ran the command (`--quota-backend-bytes`).
    Given,
    /// Nobody: the default is assumed.
    Assumed,
}

/// A member's quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Bytes; `None` for no limit.
    pub bytes: Option<i64>,
    /// Who says so.
    pub source: Source,
}

impl Quota {
    /// Takes what the status says, 0 for nothing, and what `/metrics` says where it was asked.
    #[must_use]
    pub fn of(status: i64, metrics: Option<i64>) -> Self {
        let (bytes, source) = match (status, metrics) {
            (0, Some(metrics)) => (metrics, Source::Metrics),
            (0, None) => (0, Source::Assumed),
            (status, _) => (status, Source::Status),
        };
        let bytes = match bytes {
            0 => Some(DEFAULT_BYTES),
            1.. => Some(bytes),
            _ => None,
        };
        Self { bytes, source }
    }

    /// Takes what whoever ran the command says, as a server's flag: 0 for the default, below 0 for
    /// no limit.
    #[must_use]
    pub fn given(bytes: i64) -> Self {
        Self { source: Source::Given, ..Self::of(0, Some(bytes)) }
    }

    /// Returns how much of it is used, in whole percent, rounded down.
    #[must_use]
    pub fn used_percent(self, size_bytes: i64) -> Option<i64> {
        self.bytes.map(|quota| percent(size_bytes, quota))
    }
}

/// Returns a part in whole percent, rounded down; 0 of nothing.
#[must_use]
pub fn percent(part: i64, whole: i64) -> i64 {
    if whole <= 0 {
        return 0;
    }
    let percent = i128::from(part.max(0)) * 100 / i128::from(whole);
    i64::try_from(percent).unwrap_or(i64::MAX)
}

/// Tells whether so little of a file is in use that packing it pays.
#[must_use]
pub fn is_fragmented(size_bytes: i64, in_use_bytes: i64) -> bool {
    size_bytes > FRAGMENTED_BYTES_MIN && percent(in_use_bytes, size_bytes) < IN_USE_PERCENT_MIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_own_word_comes_first() {
        for (status, metrics, bytes, source) in [
            (100, None, Some(100), Source::Status),
            (100, Some(7), Some(100), Source::Status),
            (-1, None, None, Source::Status),
            (0, Some(7), Some(7), Source::Metrics),
            (0, Some(0), Some(DEFAULT_BYTES), Source::Metrics),
            (0, Some(-1), None, Source::Metrics),
            (0, None, Some(DEFAULT_BYTES), Source::Assumed),
        ] {
            assert_eq!(Quota::of(status, metrics), Quota { bytes, source }, "{status} {metrics:?}");
        }
    }

    #[test]
    fn percents_stand_any_number() {
        assert_eq!(percent(899, 1000), 89);
        assert_eq!(percent(900, 1000), 90);
        assert_eq!(percent(-5, 1000), 0);
        assert_eq!(percent(5, 0), 0);
        assert_eq!(percent(5, -1), 0);
        assert_eq!(percent(i64::MAX, 1), i64::MAX);
        assert_eq!(percent(i64::MAX, i64::MAX), 100);
    }

    #[test]
    fn small_files_are_never_fragmented() {
        assert!(!is_fragmented(FRAGMENTED_BYTES_MIN, 0));
        assert!(is_fragmented(FRAGMENTED_BYTES_MIN + 1, FRAGMENTED_BYTES_MIN / 2 - 1));
        assert!(!is_fragmented(1 << 30, 1 << 29));
        assert!(is_fragmented(1 << 30, (1 << 29) - (1 << 24)));
    }
}
