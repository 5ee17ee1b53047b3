//! Users, roles and leases as the API shows them, read from the state's rows.
//!
//! Source: etcd `auth.authStore` (`UserGet`, `UserList`, `RoleGet`, `RoleList`), `lease.lessor`
//! (`initAndRecover`), 3.6.16, 3.7.3.

use crate::etcd::apply::{ROOT, Refusal, State, StoredRole, StoredUser, Unreadable};
use crate::etcd::rows::{self, Lease, Permission};
use crate::etcd::schema;
use crate::store::error::Error;

/// What the API tells of auth as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthStatus {
    /// Whether it is on.
    pub enabled: bool,
    /// Revision of the rules; 1 before the first one.
    pub revision: u64,
}

/// Tells whether auth is on.
///
/// # Errors
/// The state cannot be read.
pub fn auth_status(state: &dyn State) -> Result<AuthStatus, Error> {
    let row = |key| state.row(schema::AUTH, key).map_err(unreadable);
    let enabled = row(schema::AUTH_ENABLED)?
        .is_some_and(|value| rows::decode_auth_enabled(&value) == Ok(true));
    let revision = match row(schema::AUTH_REVISION)? {
        Some(value) => rows::decode_u64(&value).map_err(|error| broken("auth revision", &error))?,
        None => 0,
    };
    Ok(AuthStatus { enabled, revision: revision.max(1) })
}

/// Lists the names of users, ascending.
///
/// # Errors
/// The state cannot be read.
pub fn users(state: &dyn State) -> Result<Vec<String>, Error> {
    names(state, schema::AUTH_USERS)
}

/// Lists the names of roles, ascending.
///
/// # Errors
/// The state cannot be read.
pub fn roles(state: &dyn State) -> Result<Vec<String>, Error> {
    names(state, schema::AUTH_ROLES)
}

fn names(state: &dyn State, bucket: &[u8]) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    state.each_row(bucket, &mut |key, _| names.push(text(key))).map_err(unreadable)?;
    Ok(names)
}

/// Lists the roles of a user, ascending.
///
/// # Errors
/// There is no such user, or the state cannot be read.
pub fn user_roles(state: &dyn State, name: &[u8]) -> Result<Vec<String>, Error> {
    let user = find_user(state, name)?.ok_or(Refusal::UserNotFound)?;
    Ok(user.roles.iter().map(|role| text(role)).collect())
}

/// Lists what a role allows, by ascending keys; root everything.
///
/// # Errors
/// There is no such role, root too where it was not added; or the state cannot be read.
pub fn role_permissions(state: &dyn State, name: &[u8]) -> Result<Vec<Permission>, Error> {
    const BOTH: u64 = 2;
    let row = state.row(schema::AUTH_ROLES, name).map_err(unreadable)?;
    let row = row.ok_or(Refusal::RoleNotFound)?;
    if name == ROOT {
        return Ok(vec![Permission { kind: BOTH, key: Vec::new(), range_end: vec![0] }]);
    }
    let role = StoredRole::decode(&row)
        .map_err(|error| broken(&format!("the row of role {}", text(name)), &error))?;
    Ok(role.permissions)
}

/// Finds a user.
///
/// # Errors
/// The state cannot be read.
pub fn find_user(state: &dyn State, name: &[u8]) -> Result<Option<StoredUser>, Error> {
    let Some(row) = state.row(schema::AUTH_USERS, name).map_err(unreadable)? else {
        return Ok(None);
    };
    let user = StoredUser::decode(&row);
    user.map(Some).map_err(|error| broken(&format!("the row of user {}", text(name)), &error))
}

/// Lists all leases by ascending ids, times below the shortest one raised to it, for
/// [`crate::store::lease::Lessor::start`]: (id, granted seconds, recorded seconds or 0).
///
/// # Errors
/// The state cannot be read.
pub fn leases(state: &dyn State, ttl_min_s: i64) -> Result<Vec<(i64, i64, i64)>, Error> {
    let (mut leases, mut bad) = (Vec::new(), None);
    let mut take = |key: &[u8], value: &[u8]| match Lease::decode(key, value) {
        Ok(lease) => leases.push((lease.id, lease.ttl_s.max(ttl_min_s), lease.remaining_ttl_s)),
        Err(error) => bad = Some(broken("the row of a lease", &error)),
    };
    state.each_row(schema::LEASE, &mut take).map_err(unreadable)?;
    leases.sort_unstable();
    bad.map_or(Ok(leases), Err)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn broken(what: &str, error: &crate::format::Error) -> Error {
    Error::Storage(format!("{what}: {error}"))
}

fn unreadable(error: Unreadable) -> Error {
    Error::Storage(error.to_string())
}
