//! The limit of the database's size, and what a request may add to it.
//!
//! Source: etcd `storage/quota.go`, 3.7.3; since 3.7.1 transactions inside transactions count.

use crate::etcd::request::{Body, DEPTH_MAX, Op, Put, Txn};

/// etcd's limit where none is set, in bytes.
const DEFAULT_BYTES: u64 = 2 * 1024 * 1024 * 1024;
/// What a lease is estimated to take, in bytes.
const LEASE_BYTES: u64 = 64;
/// What a record is estimated to take besides key and value, in bytes.
const RECORD_BYTES: u64 = 256;

/// The limit of the database's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    /// None.
    Off,
    /// So many bytes.
    Bytes(u64),
}

impl Quota {
    /// Reads etcd's flag: 0 is 2 GiB, negative is off.
    #[must_use]
    pub fn of_flag(bytes: i64) -> Self {
        match u64::try_from(bytes) {
            Err(_) => Self::Off,
            Ok(0) => Self::Bytes(DEFAULT_BYTES),
            Ok(bytes) => Self::Bytes(bytes),
        }
    }

    /// Tells whether a request of this cost fits; one that costs nothing always does.
    #[must_use]
    pub fn admits(self, size_bytes: u64, cost: u64) -> bool {
        match self {
            Self::Off => true,
            Self::Bytes(limit) => cost == 0 || size_bytes.saturating_add(cost) < limit,
        }
    }
}

/// Bytes that a request may add, as etcd estimates them: of a transaction those of the list that
/// adds more.
#[must_use]
pub fn cost(body: &Body<'_>) -> u64 {
    match body {
        Body::Put(put) => cost_of_put(put),
        Body::Txn(txn) => cost_of_txn(txn, DEPTH_MAX),
        Body::LeaseGrant(_) => LEASE_BYTES,
        _ => 0,
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

fn cost_of_put(put: &Put<'_>) -> u64 {
    RECORD_BYTES.saturating_add(length(put.key)).saturating_add(length(put.value))
}

/// Sums up a transaction; what is nested deeper than any request may be counts nothing.
fn cost_of_txn(txn: &Txn<'_>, depth: u32) -> u64 {
    let Some(depth) = depth.checked_sub(1) else { return 0 };
    let of_list = |ops: &[Op<'_>]| {
        ops.iter().fold(0_u64, |sum, op| {
            sum.saturating_add(match op {
                Op::Put(put) => cost_of_put(put),
                Op::Txn(inner) => cost_of_txn(inner, depth),
                Op::Range(_) | Op::DeleteRange(_) | Op::Nothing => 0,
            })
        })
    };
    of_list(&txn.success).max(of_list(&txn.failure))
}
