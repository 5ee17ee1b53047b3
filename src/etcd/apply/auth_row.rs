//! Rows of users and roles in full, to be changed and written back as etcd does.
//!
//! Source: etcd `authpb`, `server/storage/schema/auth*.go`, 3.6.16; which empty messages are
//! written was checked against 3.4 to 3.7.

use std::fmt;

use super::{State, Stop};
use crate::etcd::rows::{self, Permission};
use crate::etcd::schema;
use crate::format::{Error, pb};

/// A user as stored.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct StoredUser {
    /// Name, the row's key too.
    pub name: Vec<u8>,
    /// bcrypt hash; empty for none.
    pub password: Vec<u8>,
    /// Names of the roles, ascending.
    pub roles: Vec<Vec<u8>>,
    /// Options {no password}: absent in rows that early versions wrote, and not the same as off.
    pub no_password: Option<bool>,
}

impl fmt::Debug for StoredUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = String::from_utf8_lossy(&self.name);
        f.debug_struct("StoredUser").field("name", &name).finish_non_exhaustive()
    }
}

impl StoredUser {
    /// Reads a row of bucket `authUsers`.
    ///
    /// # Errors
    /// No protobuf message, or a field that no known etcd writes.
    pub fn decode(value: &[u8]) -> Result<Self, Error> {
        let mut user = Self::default();
        for field in pb::fields(value) {
            let field = field?;
            match field.number {
                1 => user.name = field.bytes()?.to_vec(),
                2 => user.password = field.bytes()?.to_vec(),
                3 => user.roles.push(field.bytes()?.to_vec()),
                4 => {
                    let mut no_password = false;
                    for option in pb::fields(field.bytes()?) {
                        let option = option?;
                        match option.number {
                            1 => no_password = option.boolean()?,
                            _ => return Err(unknown(&option)),
                        }
                    }
                    user.no_password = Some(no_password);
                }
                _ => return Err(unknown(&field)),
            }
        }
        Ok(user)
    }

    /// Encodes the row.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        pb::put_bytes(&mut out, 1, &self.name);
        pb::put_bytes(&mut out, 2, &self.password);
        self.roles.iter().for_each(|role| pb::put_bytes_always(&mut out, 3, role));
        if let Some(no_password) = self.no_password {
            let mut options = Vec::new();
            pb::put_u64(&mut options, 1, u64::from(no_password));
            pb::put_bytes_always(&mut out, 4, &options);
        }
        out
    }
}

/// A role as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredRole {
    /// Name, the row's key too.
    pub name: Vec<u8>,
    /// What it allows, by ascending keys.
    pub permissions: Vec<Permission>,
}

impl StoredRole {
    /// Reads a row of bucket `authRoles`.
    ///
    /// # Errors
    /// No protobuf message, or a field that no known etcd writes.
    pub fn decode(value: &[u8]) -> Result<Self, Error> {
        let mut role = Self::default();
        for field in pb::fields(value) {
            let field = field?;
            match field.number {
                1 => role.name = field.bytes()?.to_vec(),
                2 => role.permissions.push(decode_permission(field.bytes()?)?),
                _ => return Err(unknown(&field)),
            }
        }
        Ok(role)
    }

    /// Encodes the row.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        pb::put_bytes(&mut out, 1, &self.name);
        for permission in &self.permissions {
            let mut bytes = Vec::new();
            pb::put_u64(&mut bytes, 1, permission.kind);
            pb::put_bytes(&mut bytes, 2, &permission.key);
            pb::put_bytes(&mut bytes, 3, &permission.range_end);
            pb::put_bytes_always(&mut out, 2, &bytes);
        }
        out
    }
}

fn decode_permission(bytes: &[u8]) -> Result<Permission, Error> {
    let mut permission = Permission::default();
    for field in pb::fields(bytes) {
        let field = field?;
        match field.number {
            1 => permission.kind = field.varint()?,
            2 => permission.key = field.bytes()?.to_vec(),
            3 => permission.range_end = field.bytes()?.to_vec(),
            _ => return Err(unknown(&field)),
        }
    }
    Ok(permission)
}

fn unknown(field: &pb::Field<'_>) -> Error {
    Error::new(field.offset, "a field that no known etcd writes")
}

fn broken(what: &str, name: &[u8], error: &Error) -> Stop {
    Stop::Impossible(format!("the row of {what} {}: {error}", String::from_utf8_lossy(name)))
}

pub(super) fn find_user(state: &dyn State, name: &[u8]) -> Result<Option<StoredUser>, Stop> {
    let Some(row) = state.row(schema::AUTH_USERS, name)? else { return Ok(None) };
    StoredUser::decode(&row).map(Some).map_err(|error| broken("user", name, &error))
}

pub(super) fn find_role(state: &dyn State, name: &[u8]) -> Result<Option<StoredRole>, Stop> {
    let Some(row) = state.row(schema::AUTH_ROLES, name)? else { return Ok(None) };
    StoredRole::decode(&row).map(Some).map_err(|error| broken("role", name, &error))
}

/// Returns every user, by name.
pub(super) fn users(state: &dyn State) -> Result<Vec<StoredUser>, Stop> {
    let (mut users, mut bad) = (Vec::new(), None);
    state.each_row(schema::AUTH_USERS, &mut |key, value| match StoredUser::decode(value) {
        Ok(user) => users.push(user),
        Err(error) => bad = Some(broken("user", key, &error)),
    })?;
    bad.map_or(Ok(users), Err)
}

pub(super) fn is_enabled(state: &dyn State) -> Result<bool, Stop> {
    Ok(state.is_auth_enabled()?)
}

/// Returns the revision of the auth rules; a database that has none yet is at 1.
pub(super) fn revision(state: &dyn State) -> Result<u64, Stop> {
    let Some(row) = state.row(schema::AUTH, schema::AUTH_REVISION)? else { return Ok(1) };
    let revision = rows::decode_u64(&row);
    revision.map(|n| n.max(1)).map_err(|error| Stop::Impossible(format!("auth revision: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_survive() {
        let bytes = b"\x0a\x03ann\x12\x02pw\x1a\x01r\x22\x00";
        let user = StoredUser::decode(bytes).unwrap();
        assert_eq!((user.no_password, user.encode()), (Some(false), bytes.to_vec()));
        let bytes = b"\x0a\x03ann\x22\x02\x08\x01";
        assert_eq!(StoredUser::decode(bytes).unwrap().encode(), bytes);
        let bytes = b"\x0a\x01r\x12\x08\x08\x02\x12\x01a\x1a\x01b\x12\x03\x12\x01c";
        assert_eq!(StoredRole::decode(bytes).unwrap().encode(), bytes);
        assert!(StoredUser::decode(b"\x2a\x00").is_err());
        assert!(StoredRole::decode(b"\x12\x02\x20\x01").is_err());
        assert!(!format!("{user:?}").contains("pw"));
    }
}
