//! Alarms: raised, cleared, and what they forbid.
//!
//! | alarm | refuses |
//! |---|---|
//! | CORRUPT | range, put, delete, transaction, compaction, lease grant and revoke |
//! | NOSPACE | put, lease grant, transaction with a put in any list at any depth |
//!
//! A put that is larger than what is left of the quota is stored all the same: the client is told
//! otherwise, and the alarm is an entry of its own.
//!
//! Source: etcd `v3alarm.AlarmStore`, `apply.applierV3Corrupt`, `applierV3Capped`, 3.6.16.

use super::{Effect, Refusal, State, Stop};
use crate::etcd::request::{self, Body, Op, Txn};
use crate::etcd::rows::{Alarm, AlarmKind};
use crate::etcd::schema;
use crate::format::pb;

const NOSPACE: AlarmKind = AlarmKind::NoSpace;
const CORRUPT: AlarmKind = AlarmKind::Corrupt;

/// Makes sure that no alarm forbids a request.
pub(super) fn check(state: &dyn State, body: &Body<'_>) -> Result<(), Stop> {
    let writes = matches!(body, Body::Put(_) | Body::LeaseGrant(_));
    let is_txn = matches!(body, Body::Txn(_));
    let others = matches!(
        body,
        Body::Range(_) | Body::DeleteRange(_) | Body::Compaction(_) | Body::LeaseRevoke(_)
    );
    if !writes && !is_txn && !others {
        return Ok(());
    }
    if !state.has_alarms()? {
        return Ok(());
    }
    let standing = standing(state)?;
    let stands = |kind| standing.iter().any(|alarm| alarm.kind == kind);
    if stands(CORRUPT) {
        return Err(Refusal::Corrupt.into());
    }
    let puts = writes || matches!(body, Body::Txn(txn) if has_put(txn));
    if puts && stands(NOSPACE) {
        return Err(Refusal::NoSpace.into());
    }
    Ok(())
}

fn has_put(txn: &Txn<'_>) -> bool {
    txn.success.iter().chain(&txn.failure).any(|op| match op {
        Op::Put(_) => true,
        Op::Txn(inner) => has_put(inner),
        Op::Range(_) | Op::DeleteRange(_) | Op::Nothing => false,
    })
}

pub(super) fn apply(
    state: &dyn State,
    request: &request::Alarm,
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    const RAISE: u64 = 1;
    const CLEAR: u64 = 2;
    let kind = match request.alarm {
        1 => AlarmKind::NoSpace,
        2 => AlarmKind::Corrupt,
        other => AlarmKind::Other(other),
    };
    let standing = standing(state)?;
    let same =
        standing.iter().find(|alarm| alarm.member_id.0 == request.member_id && alarm.kind == kind);
    match (request.action, same) {
        (RAISE, None) if request.alarm != 0 => {
            let mut key = Vec::new();
            pb::put_u64(&mut key, 1, request.member_id);
            pb::put_u64(&mut key, 2, request.alarm);
            effect.put_row(schema::ALARM, &key, Vec::new());
        }
        (CLEAR, Some(alarm)) => effect.drop_row(schema::ALARM, &alarm.row_key),
        _ => {}
    }
    Ok(())
}

fn standing(state: &dyn State) -> Result<Vec<Alarm>, Stop> {
    let mut alarms = Vec::new();
    let mut bad = None;
    state.each_row(schema::ALARM, &mut |key, value| match Alarm::decode(key, value) {
        Ok(alarm) => alarms.push(alarm),
        Err(error) => bad = Some(error),
    })?;
    match bad {
        None => Ok(alarms),
        Some(error) => Err(Stop::Impossible(format!("an alarm that stands: {error}"))),
    }
}
