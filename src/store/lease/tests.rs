use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::store::clock::FakeClock;

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);

fn empty() -> (Arc<FakeClock>, Lessor) {
    let clock = Arc::new(FakeClock::default());
    (Arc::clone(&clock), Lessor::start(clock, &[], Duration::ZERO))
}

fn grant(lessor: &mut Lessor, id: i64, ttl_s: i64) {
    lessor.follow(LeaseChange::Granted { id, ttl_s });
}

fn renewed(ttl_s: i64) -> Renewal {
    Renewal::Renewed { ttl_s, is_recorded: false }
}

#[test]
fn a_lease_runs_out_at_its_time_and_not_before() {
    let (clock, mut lessor) = empty();
    grant(&mut lessor, 7, 5);
    assert_eq!(lessor.next_expiry(), Some(5 * SECOND));
    clock.advance(5 * SECOND - MILLI);
    assert!(lessor.take_expired(9).is_empty());
    assert_eq!(lessor.time_left(7), Some(TimeLeft { granted_ttl_s: 5, ttl_s: 0 }));
    assert_eq!(lessor.renew(7), renewed(5));
    clock.advance(5 * SECOND);
    assert_eq!(lessor.renew(7), Renewal::Ending);
    assert_eq!(lessor.take_expired(9), [7]);
    lessor.follow(LeaseChange::Revoked(7));
    assert_eq!((lessor.renew(7), lessor.time_left(7)), (Renewal::Missing, None));
    clock.advance(60 * SECOND);
    assert!(lessor.take_expired(9).is_empty());
    assert!(lessor.queue.is_empty() && lessor.unrecorded.is_empty());
}

#[test]
fn an_end_that_was_not_logged_is_asked_for_again_after_a_while() {
    let (clock, mut lessor) = empty();
    grant(&mut lessor, 1, 2);
    grant(&mut lessor, 2, 3);
    clock.advance(10 * SECOND);
    assert_eq!(lessor.take_expired(1), [1]);
    assert_eq!(lessor.take_expired(9), [2]);
    assert!(lessor.take_expired(9).is_empty());
    clock.advance(RETRY_INTERVAL - MILLI);
    assert!(lessor.take_expired(9).is_empty());
    clock.advance(MILLI);
    assert_eq!(lessor.take_expired(9), [1, 2]);
    assert_eq!(lessor.list(), [1, 2], "by when they ran out, not by when they are tried again");
}

#[test]
fn lists_are_by_expiry() {
    let (clock, mut lessor) = empty();
    for (id, ttl_s) in [(1, 30), (2, 10), (3, 20), (-4, 10)] {
        grant(&mut lessor, id, ttl_s);
    }
    assert_eq!(lessor.list(), [-4, 2, 3, 1]);
    clock.advance(5 * SECOND);
    assert_eq!(lessor.renew(2), renewed(10));
    assert_eq!(lessor.list(), [-4, 2, 3, 1]);
    clock.advance(4 * SECOND);
    assert_eq!(lessor.renew(-4), renewed(10));
    assert_eq!(lessor.list(), [2, -4, 3, 1]);
    assert_eq!(lessor.count(), 4);
}

#[test]
fn after_a_start_all_time_begins_anew() {
    let clock = Arc::new(FakeClock::default());
    clock.advance(100 * SECOND);
    let leases = [(1, 60, 0), (2, 600, 45)];
    let mut lessor = Lessor::start(Arc::clone(&clock) as Arc<dyn Clock>, &leases, SECOND);
    assert_eq!(lessor.time_left(1), Some(TimeLeft { granted_ttl_s: 60, ttl_s: 61 }));
    assert_eq!(lessor.time_left(2), Some(TimeLeft { granted_ttl_s: 600, ttl_s: 46 }));
    // What stands in the row is to be taken back, or the next start would end it too early.
    assert_eq!(lessor.renew(2), Renewal::Renewed { ttl_s: 600, is_recorded: true });
    assert_eq!(lessor.time_left(2), Some(TimeLeft { granted_ttl_s: 600, ttl_s: 600 }));
    lessor.follow(LeaseChange::Checkpointed { id: 2, remaining_ttl_s: 0 });
    assert_eq!(lessor.renew(2), renewed(600));
}

#[test]
fn extreme_times_do_not_overflow() {
    let (clock, mut lessor) = empty();
    grant(&mut lessor, 1, 9_000_000_000);
    grant(&mut lessor, 2, i64::MAX);
    grant(&mut lessor, 3, i64::MIN);
    assert_eq!(lessor.take_expired(9), [3]);
    assert_eq!(lessor.time_left(1).unwrap().ttl_s, 9_000_000_000);
    clock.advance(Duration::from_secs(8_999_999_999));
    assert_eq!(lessor.renew(1), renewed(9_000_000_000));
    clock.advance(Duration::from_secs(9_000_000_000));
    lessor.follow(LeaseChange::Revoked(3));
    assert_eq!(lessor.take_expired(9), [1]);
    let rows = [(1, i64::MAX, 0), (2, 9_000_000_000, i64::MAX), (3, -1, -1)];
    let lessor = Lessor::start(clock, &rows, Duration::MAX);
    assert_eq!(lessor.time_left(2).unwrap().granted_ttl_s, 9_000_000_000);
    assert_eq!(lessor.count(), 3);
}

#[test]
fn long_leases_are_recorded_every_interval() {
    const INTERVAL: Duration = Duration::from_secs(300);
    let (clock, mut lessor) = empty();
    grant(&mut lessor, 1, 3600);
    grant(&mut lessor, 2, 300);
    clock.advance(INTERVAL - MILLI);
    assert!(lessor.take_checkpoints(INTERVAL, 9).is_empty());
    assert_eq!(lessor.renew(2), renewed(300));
    clock.advance(MILLI);
    assert_eq!(lessor.take_checkpoints(INTERVAL, 9), [(1, 3300)]);
    assert!(lessor.take_checkpoints(INTERVAL, 9).is_empty());
    lessor.follow(LeaseChange::Checkpointed { id: 1, remaining_ttl_s: 3300 });
    assert_eq!(lessor.time_left(1).unwrap().ttl_s, 3300, "a record moves no expiry");
    clock.advance(INTERVAL + SECOND / 2);
    assert_eq!(lessor.take_checkpoints(INTERVAL, 9), [(1, 3000)], "rounded up");
    // Not logged: again after the interval.
    clock.advance(INTERVAL);
    assert_eq!(lessor.take_checkpoints(INTERVAL, 9), [(1, 2700)]);
    assert_eq!(lessor.renew(1), Renewal::Renewed { ttl_s: 3600, is_recorded: true });
    lessor.follow(LeaseChange::Checkpointed { id: 1, remaining_ttl_s: 0 });
    assert_eq!(lessor.renew(1), renewed(3600));
    clock.advance(INTERVAL);
    assert_eq!(lessor.take_checkpoints(INTERVAL, 9), [(1, 3300)]);
    // Too short by now to be recorded again.
    lessor.follow(LeaseChange::Checkpointed { id: 1, remaining_ttl_s: 200 });
    clock.advance(INTERVAL);
    assert!(lessor.take_checkpoints(INTERVAL, 9).is_empty());
}

#[test]
fn checkpoints_come_in_portions() {
    let (clock, mut lessor) = empty();
    (1..=5).for_each(|id| grant(&mut lessor, id, 1000));
    clock.advance(300 * SECOND);
    assert_eq!(lessor.take_checkpoints(300 * SECOND, 2), [(1, 700), (2, 700)]);
    assert_eq!(lessor.take_checkpoints(300 * SECOND, 2), [(3, 700), (4, 700)]);
    assert_eq!(lessor.take_checkpoints(300 * SECOND, 2), [(5, 700)]);
}

/// Starts as many leases at once and returns how many run out in which second.
fn ends_by_second(count: i64) -> BTreeMap<u64, usize> {
    let leases: Vec<_> = (1..=count).map(|id| (id, 10, 0)).collect();
    let lessor = Lessor::start(Arc::new(FakeClock::default()), &leases, SECOND);
    assert!(lessor.leases.values().all(|lease| lease.expiry >= 11 * SECOND), "never early");
    let mut ends = BTreeMap::new();
    for lease in lessor.leases.values() {
        *ends.entry(lease.expiry.as_secs()).or_default() += 1;
    }
    ends
}

#[test]
fn a_pile_is_spread() {
    assert_eq!(ends_by_second(999), BTreeMap::from([(11, 999)]));
    let ends = ends_by_second(5000);
    assert!(ends.values().all(|count| *count <= 1000), "{ends:?}");
    assert!(ends.len() >= 5 && ends.last_key_value().unwrap().0 < &20, "{ends:?}");
}

#[test]
fn leases_that_are_spread_already_stay() {
    let leases: Vec<_> = (0..2000).map(|id| (id, 10 + id / 500, 0)).collect();
    let lessor = Lessor::start(Arc::new(FakeClock::default()), &leases, Duration::ZERO);
    let moved = |id: &i64| lessor.leases[id].expiry != seconds(10 + id / 500);
    assert!(!(0..500).any(|id| moved(&id)));
    let mut ends: BTreeMap<u64, usize> = BTreeMap::new();
    lessor.leases.values().for_each(|lease| *ends.entry(lease.expiry.as_secs()).or_default() += 1);
    assert!(ends.values().all(|count| *count <= 1000), "{ends:?}");
}

#[derive(Clone, Debug)]
enum Step {
    Grant(i64, i64),
    Revoke(i64),
    Renew(i64),
    Checkpoint(i64, i64),
    Wait(u64),
    Expire(usize),
    Record(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let id = 0_i64..5;
    vec(
        prop_oneof![
            (id.clone(), 0_i64..40).prop_map(|(id, ttl)| Step::Grant(id, ttl)),
            id.clone().prop_map(Step::Revoke),
            id.clone().prop_map(Step::Renew),
            (id, 0_i64..40).prop_map(|(id, left)| Step::Checkpoint(id, left)),
            (0_u64..9000).prop_map(Step::Wait),
            (0_usize..4).prop_map(Step::Expire),
            (0_usize..4).prop_map(Step::Record),
        ],
        0..60,
    )
}

/// A lease as one would write it down; times in milliseconds.
#[derive(Clone, Copy)]
struct Plain {
    ttl: u64,
    expiry: u64,
    tried: Option<u64>,
    recorded: u64,
    noted: Option<u64>,
}

proptest! {
    #[test]
    fn countdowns_are_as_written_down(steps in steps()) {
        const INTERVAL_MS: u64 = 10_000;
        let (clock, mut lessor) = empty();
        let mut now = 0_u64;
        let mut plain: BTreeMap<i64, Plain> = BTreeMap::new();
        for step in steps {
            match step {
                Step::Grant(id, ttl_s) => {
                    grant(&mut lessor, id, ttl_s);
                    let ttl = u64::try_from(ttl_s).unwrap() * 1000;
                    let expiry = now + ttl;
                    let noted = Some(now);
                    plain.insert(id, Plain { ttl, expiry, tried: None, recorded: 0, noted });
                }
                Step::Revoke(id) => {
                    lessor.follow(LeaseChange::Revoked(id));
                    plain.remove(&id);
                }
                Step::Checkpoint(id, remaining_ttl_s) => {
                    lessor.follow(LeaseChange::Checkpointed { id, remaining_ttl_s });
                    if let Some(lease) = plain.get_mut(&id) {
                        lease.recorded = u64::try_from(remaining_ttl_s).unwrap() * 1000;
                        lease.noted = Some(now);
                    }
                }
                Step::Wait(millis) => {
                    now += millis;
                    clock.advance(MILLI * u32::try_from(millis).unwrap());
                }
                Step::Renew(id) => {
                    let want = match plain.get_mut(&id) {
                        None => Renewal::Missing,
                        Some(lease) if lease.expiry <= now => Renewal::Ending,
                        Some(lease) => {
                            lease.expiry = now + lease.ttl;
                            lease.tried = None;
                            let ttl_s = i64::try_from(lease.ttl / 1000).unwrap();
                            Renewal::Renewed { ttl_s, is_recorded: lease.recorded > 0 }
                        }
                    };
                    prop_assert_eq!(lessor.renew(id), want);
                }
                Step::Expire(max) => {
                    let mut want: Vec<_> = plain
                        .iter()
                        .map(|(id, lease)| (lease.tried.map_or(lease.expiry, |at| at + 3000), *id))
                        .filter(|(due, _)| *due <= now)
                        .collect();
                    want.sort_unstable();
                    want.truncate(max);
                    let want: Vec<_> = want.into_iter().map(|(_, id)| id).collect();
                    want.iter().for_each(|id| plain.get_mut(id).unwrap().tried = Some(now));
                    prop_assert_eq!(lessor.take_expired(max), want);
                }
                Step::Record(max) => {
                    let mut order: Vec<_> =
                        plain.iter().filter_map(|(id, l)| Some((l.noted?, *id))).collect();
                    order.sort_unstable();
                    let mut want = Vec::new();
                    for (noted, id) in order {
                        if want.len() == max || noted + INTERVAL_MS > now {
                            break;
                        }
                        let lease = plain.get_mut(&id).unwrap();
                        let life = if lease.recorded > 0 { lease.recorded } else { lease.ttl };
                        let left = lease.expiry.saturating_sub(now).div_ceil(1000);
                        let is_kept = life > INTERVAL_MS && left > 0;
                        lease.noted = is_kept.then_some(now);
                        if is_kept && left * 1000 < lease.ttl {
                            want.push((id, i64::try_from(left).unwrap()));
                        }
                    }
                    let interval = Duration::from_millis(INTERVAL_MS);
                    prop_assert_eq!(lessor.take_checkpoints(interval, max), want);
                }
            }
            let mut order: Vec<_> = plain.iter().map(|(id, lease)| (lease.expiry, *id)).collect();
            order.sort_unstable();
            let order: Vec<_> = order.into_iter().map(|(_, id)| id).collect();
            prop_assert_eq!(lessor.list(), order);
            for (id, lease) in &plain {
                let left = lessor.time_left(*id).unwrap().ttl_s;
                let want = lease.expiry.saturating_sub(now) / 1000;
                prop_assert_eq!(left, i64::try_from(want).unwrap());
            }
            prop_assert_eq!(lessor.queue.len(), plain.len());
        }
    }
}
