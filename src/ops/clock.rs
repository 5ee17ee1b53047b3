//! The one place that asks what time it is.

use std::time::{SystemTime, UNIX_EPOCH};

/// Returns the time in milliseconds since 1970-01-01T00:00:00Z; 0 for a clock before that.
#[must_use]
pub fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
}

/// Returns the time in RFC 3339, UTC, in seconds.
#[must_use]
pub fn rfc3339() -> String {
    let second = i64::try_from(unix_ms() / 1000).unwrap_or(0);
    jiff::Timestamp::from_second(second).map_or_else(|_| "unknown".into(), |time| time.to_string())
}

/// Returns the time as it stands in the names of things that were moved aside.
#[must_use]
pub fn compact() -> String {
    rfc3339().chars().filter(|c| c.is_ascii_alphanumeric()).collect()
}
