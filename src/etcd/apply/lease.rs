//! Leases: granted, ended, and how long they still live.
//!
//! Source: etcd `lease.lessor` (`Grant`, `Revoke`, `Checkpoint`), 3.6.16.

use super::keys::Writer;
use super::{Context, Effect, Refusal, State, Stop, permission};
use crate::etcd::request::{LeaseCheckpoints, LeaseGrant};
use crate::etcd::rows::Lease;
use crate::etcd::schema::{self, Version};
use crate::format::pb;

/// Longest time to live, in seconds.
pub const TTL_MAX_S: i64 = 9_000_000_000;
/// First cluster version whose members all store checkpoints.
const CHECKPOINTS_SINCE: (u32, u32) = (3, 6);

pub(super) fn grant(
    context: &Context<'_, '_>,
    request: &LeaseGrant,
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    if request.id == 0 {
        return Err(Refusal::LeaseNotFound.into());
    }
    if request.ttl_s > TTL_MAX_S {
        return Err(Refusal::LeaseTtlTooLarge.into());
    }
    if find(context.state, request.id)?.is_some() {
        return Err(Refusal::LeaseExists.into());
    }
    let ttl_s = request.ttl_s.max(context.rules.lease_ttl_min_s);
    put(&Lease { id: request.id, ttl_s, ..Lease::default() }, effect);
    Ok(())
}

/// Ends a lease: its keys go in key order at one revision, and its row with them.
pub(super) fn revoke(
    context: &Context<'_, '_>,
    id: i64,
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    permission::check_lease(context, id)?;
    if find(context.state, id)?.is_none() {
        return Err(Refusal::LeaseNotFound.into());
    }
    let mut keys = context.state.lease_keys(id)?;
    keys.sort_unstable();
    let mut writer = Writer::new(context.state);
    writer.delete_keys(keys)?;
    writer.finish(effect);
    effect.drop_row(schema::LEASE, &id.to_be_bytes());
    Ok(())
}

pub(super) fn checkpoint(
    context: &Context<'_, '_>,
    request: &LeaseCheckpoints,
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    let version = context.state.row(schema::CLUSTER, schema::CLUSTER_VERSION)?;
    let version = version.and_then(|text| Version::parse(&text));
    let since = |version: Version| (version.major, version.minor) >= CHECKPOINTS_SINCE;
    if !context.rules.persists_checkpoints && !version.is_some_and(since) {
        return Ok(());
    }
    for checkpoint in &request.checkpoints {
        if let Some(lease) = find(context.state, checkpoint.id)? {
            put(&Lease { remaining_ttl_s: checkpoint.remaining_ttl_s, ..lease }, effect);
        }
    }
    Ok(())
}

fn find(state: &dyn State, id: i64) -> Result<Option<Lease>, Stop> {
    let key = id.to_be_bytes();
    let Some(row) = state.row(schema::LEASE, &key)? else { return Ok(None) };
    let lease = Lease::decode(&key, &row)
        .map_err(|error| Stop::Impossible(format!("lease {id:x}: {error}")))?;
    if let Some(field) = lease.unknown_field {
        let what = format!("lease {id:x} has field {field}, which no known etcd writes");
        return Err(Stop::Impossible(what));
    }
    Ok(Some(lease))
}

fn put(lease: &Lease, effect: &mut Effect<'_>) {
    let mut value = Vec::new();
    pb::put_i64(&mut value, 1, lease.id);
    pb::put_i64(&mut value, 2, lease.ttl_s);
    pb::put_i64(&mut value, 3, lease.remaining_ttl_s);
    effect.put_row(schema::LEASE, &lease.id.to_be_bytes(), value);
}
