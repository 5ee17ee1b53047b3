//! Who may ask for what, while auth is on. Off, everybody may ask for everything.
//!
//! | wish | who may |
//! |---|---|
//! | read, watch | who may read every key of the range |
//! | put | who may write the key and every key of the lease, and read it for the record before |
//! | delete | who may write the range, and read it for the records before |
//! | transaction | who may read every compared range and do both lists |
//! | end or renew a lease | who may write its keys |
//! | see a lease's keys, list leases | who may read their keys |
//! | grant a lease, ask for its time, for alarms or status, list members | any user |
//! | read a user, a role | the user itself, who has the role, and root |
//! | log in, ask whether auth is on | anybody |
//! | all else | the role root |
//!
//! Source: etcd `apply/auth.go`, `v3rpc/maintenance.go`, `v3rpc/auth.go` (`isPermitted`,
//! `requireAuthInfo`), `EtcdServer.checkLeaseRenew` and `checkLeaseTimeToLive`, 3.6.16, 3.7.3.

use crate::etcd::apply::{Access, Refusal, Rights, State, Stop};
use crate::etcd::request::{Body, span};
use crate::etcd::schema;
use crate::store::error::Error;

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

/// What somebody wants to do that is not logged, or not only.
#[derive(Clone, Copy, Debug)]
pub enum Wish<'a> {
    /// A request.
    Request(&'a Body<'a>),
    /// To read keys, from a key to a range end.
    Range(&'a [u8], &'a [u8]),
    /// To watch keys, from a key to a range end; no key is all keys from the first on.
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

/// Checks that somebody may do something, while auth is on. The form was checked before.
///
/// # Errors
/// As etcd answers, or the state cannot be read.
pub fn check_access(state: &dyn State, caller: &Caller, wish: Wish<'_>) -> Result<(), Error> {
    let (name, revision) = match &caller.user {
        Some(user) => (user.name.as_bytes(), user.auth_revision),
        None => (&[][..], 0),
    };
    let rights = Rights::of(state, name, revision)?;
    // A grant and the like ask only whether there is a user, not which.
    let any_user = || match (&caller.user, rights.check_admin()) {
        (Some(_), _) | (None, Ok(())) => Ok(()),
        (None, Err(_)) => Err(Refusal::UserEmpty),
    };
    match wish {
        Wish::Request(body) => check_request(state, &rights, &any_user, body)?,
        Wish::Range(key, range_end) => rights.check_keys(span(key, range_end), Access::Read)?,
        Wish::Watch(key, range_end) => {
            let key = if key.is_empty() { &[0][..] } else { key };
            rights.check_keys(span(key, range_end), Access::Read)?;
        }
        Wish::KeepAlive(id) => {
            any_user()?;
            rights.check_lease(state, id, Access::Write)?;
        }
        Wish::LeaseKeys(id) => {
            any_user()?;
            rights.check_lease(state, id, Access::Read)?;
        }
        Wish::Leases => {
            any_user()?;
            check_leases(state, &rights)?;
        }
        Wish::Admin => rights.check_admin()?,
        Wish::AnyUser => any_user()?,
    }
    Ok(())
}

fn check_request(
    state: &dyn State,
    rights: &Rights,
    any_user: &dyn Fn() -> Result<(), Refusal>,
    body: &Body<'_>,
) -> Result<(), Stop> {
    const READ_ALARMS: u64 = 0;
    match body {
        Body::Range(range) => rights.check_keys(span(range.key, range.range_end), Access::Read)?,
        Body::Put(put) => rights.check_put(state, put)?,
        Body::DeleteRange(delete) => rights.check_delete(delete)?,
        Body::Txn(txn) => rights.check_txn(state, txn)?,
        Body::LeaseGrant(_) => any_user()?,
        Body::LeaseRevoke(revoke) => {
            any_user()?;
            rights.check_lease(state, revoke.id, Access::Write)?;
        }
        Body::Alarm(alarm) if alarm.action == READ_ALARMS => any_user()?,
        Body::UserGet(user) => rights.check_user(user.name)?,
        Body::RoleGet(role) => rights.check_role(role.role)?,
        Body::Authenticate(_) | Body::AuthStatus(_) => {}
        Body::Compaction(_)
        | Body::Alarm(_)
        | Body::LeaseCheckpoint(_)
        | Body::AuthEnable(_)
        | Body::AuthDisable(_)
        | Body::UserAdd(_)
        | Body::UserDelete(_)
        | Body::UserChangePassword(_)
        | Body::UserGrantRole(_)
        | Body::UserRevokeRole(_)
        | Body::UserList(_)
        | Body::RoleList(_)
        | Body::RoleAdd(_)
        | Body::RoleDelete(_)
        | Body::RoleGrantPermission(_)
        | Body::RoleRevokePermission(_)
        | Body::ClusterVersionSet(_)
        | Body::MemberAttributes(_)
        | Body::DowngradeInfo(_)
        | Body::DowngradeVersionTest(_) => rights.check_admin()?,
    }
    Ok(())
}

/// Makes sure that every key of every lease may be read.
fn check_leases(state: &dyn State, rights: &Rights) -> Result<(), Stop> {
    if rights.check_admin().is_ok() {
        return Ok(());
    }
    let mut ids = Vec::new();
    state.each_row(schema::LEASE, &mut |key, _| {
        ids.extend(<[u8; 8]>::try_from(key).map(i64::from_be_bytes));
    })?;
    for id in ids {
        rights.check_lease(state, id, Access::Read)?;
    }
    Ok(())
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Refused(refusal) => Self::Refused(refusal),
            other => Self::Storage(other.to_string()),
        }
    }
}
