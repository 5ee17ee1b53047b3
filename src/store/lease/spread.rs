//! Spreads leases that would run out together after a start, so that their ends can be logged.
//!
//! Leases of one second are a window. Beyond three quarters of what can be ended in a second,
//! each further lease is put off, and the window reaches so far.
//!
//! Source: etcd `lessor.Promote`, 3.6.16 and 3.7.3.

use std::time::Duration;

const WINDOW: Duration = Duration::from_secs(1);

/// Tells by how much leases are put off, given the expiry of each in ascending order; none where
/// there are fewer than `rate`.
pub(super) fn delays(expiries: &[(Duration, i64)], rate: usize) -> Vec<(i64, Duration)> {
    let mut delays = Vec::new();
    let Some((first, _)) = expiries.first().filter(|_| expiries.len() >= rate) else {
        return delays;
    };
    let per_second = u64::try_from(rate / 4).unwrap_or(1).saturating_mul(3).max(1);
    let (mut begin, mut end) = (*first, first.saturating_add(WINDOW));
    let mut count = 0_u64;
    for &(expiry, id) in expiries {
        if expiry > end {
            begin = expiry;
            end = begin.saturating_add(WINDOW);
            count = 1;
            continue;
        }
        count = count.saturating_add(1);
        if count <= per_second {
            continue;
        }
        // The count is a time too: so many leases take so long.
        let nanos = u128::from(count).saturating_mul(WINDOW.as_nanos());
        let nanos = nanos.checked_div(u128::from(per_second)).unwrap_or_default();
        let place = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let delay = place.saturating_sub(expiry.saturating_sub(begin));
        end = begin.saturating_add(delay);
        delays.push((id, delay));
    }
    delays
}
