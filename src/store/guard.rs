//! What is checked before a request is logged: its form, who asks, and whether there is room.
//!
//! Source: etcd `v3rpc/key.go` (`checkTxnRequest`, `checkIntervals`), `storage/quota.go`,
//! `auth/simple_token.go`, `apply/apply_auth.go`, 3.6.16, 3.7.3.

use std::sync::Arc;
use std::time::Duration;

use super::clock::Clock;
use super::error::Error;
use crate::etcd::apply::State;
use crate::etcd::request::{Body, Range};

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Caller {
    /// The user; `None` without a token.
    pub user: Option<User>,
}

/// A user and the rules by which it was let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Revision of the rules.
    pub auth_revision: u64,
}

/// Checks the form of a request.
///
/// # Errors
/// As etcd's API answers, in its order.
pub fn check_form(body: &Body<'_>, max_txn_ops: usize) -> Result<(), Error> {
    let _ = (body, max_txn_ops);
    todo!()
}

/// Checks the form of a read.
///
/// # Errors
/// As etcd's API answers.
pub fn check_range_form(range: &Range<'_>) -> Result<(), Error> {
    let _ = range;
    todo!()
}

/// What somebody wants to do that is not logged, or not only.
#[derive(Clone, Copy, Debug)]
pub enum Wish<'a> {
    /// A request.
    Request(&'a Body<'a>),
    /// To watch keys.
    Watch(&'a [u8], &'a [u8]),
    /// To renew a lease.
    KeepAlive(i64),
    /// To see a lease's keys.
    LeaseKeys(i64),
    /// To list leases.
    Leases,
    /// Defrag, snapshot, hash, and what else only root may do.
    Admin,
    /// What any user may do who is one.
    AnyUser,
}

/// Checks that somebody may do something, while auth is on.
///
/// # Errors
/// As etcd answers.
pub fn check_access(state: &dyn State, caller: &Caller, wish: Wish<'_>) -> Result<(), Error> {
    let _ = (state, caller, wish);
    todo!()
}

/// Bytes that a request may add, as etcd estimates them.
#[must_use]
pub fn cost(body: &Body<'_>) -> u64 {
    let _ = body;
    todo!()
}

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
        let _ = bytes;
        todo!()
    }

    /// Tells whether a request of this cost fits.
    #[must_use]
    pub fn admits(self, size_bytes: u64, cost: u64) -> bool {
        let _ = (size_bytes, cost);
        todo!()
    }
}

/// Simple tokens: 16 random letters, a dot, and the index of the entry that made them.
#[derive(Debug)]
pub struct Tokens {}

impl Tokens {
    /// Makes none yet; each lives so long after its last use.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, ttl: Duration) -> Self {
        let _ = (clock, ttl);
        todo!()
    }

    /// Makes a token for a user.
    #[must_use]
    pub fn assign(&self, user: &str, index: u64) -> String {
        let _ = (user, index);
        todo!()
    }

    /// Finds whose token it is, and lets it live on.
    #[must_use]
    pub fn find(&self, token: &str) -> Option<String> {
        let _ = token;
        todo!()
    }

    /// Forgets the tokens of a user, or all.
    pub fn forget(&self, user: Option<&str>) {
        let _ = user;
        todo!()
    }
}
