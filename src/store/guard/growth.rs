//! Rows that requests make longer and longer: a role's permissions, a user's roles.
//!
//! The database has a longest row, and one request is far from it; many are not. etcd has no such
//! limit, and dies when the row is written, again at each start.

use crate::etcd::apply::{State, Unreadable};
use crate::etcd::request::Body;
use crate::etcd::schema;
use crate::store::error::Error;

/// Longest row that is made longer, in bytes. What is on its way when a request is looked at may
/// come on top, and is a quarter of a page's limit at most.
const GROWING_BYTES_MAX: usize = 32 << 20;

/// Refuses a request that would make a row longer which is too long already.
///
/// # Errors
/// [`Error::TooLarge`], or the state cannot be read.
pub fn check_growth(state: &dyn State, body: &Body<'_>) -> Result<(), Error> {
    let (bucket, key) = match body {
        Body::RoleGrantPermission(grant) => (schema::AUTH_ROLES, grant.role),
        Body::UserGrantRole(grant) => (schema::AUTH_USERS, grant.user),
        _ => return Ok(()),
    };
    let row =
        state.row(bucket, key).map_err(|Unreadable(what): Unreadable| Error::Storage(what))?;
    if row.is_some_and(|row| row.len() > GROWING_BYTES_MAX) {
        return Err(Error::TooLarge);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bolt::db::{Batch, Db, Options};
    use crate::bolt::disk::Disk;
    use crate::etcd::apply::{Rules, StoredRole, StoredUser};
    use crate::etcd::request::{RoleGrantPermission, UserRole};
    use crate::etcd::rows::Permission;
    use crate::store::mvcc::Mvcc;
    use crate::store::open::Compat;

    #[test]
    fn long_rows_are_made_no_longer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        let db = Db::create(&Disk::default(), &path, &Options::default()).unwrap();
        let mut batch = Batch::default();
        schema::BUCKETS.into_iter().for_each(|bucket| batch.bucket(bucket));
        let role = |name: &[u8], bytes| {
            let held = Permission { kind: 0, key: vec![b'k'; bytes], range_end: Vec::new() };
            StoredRole { name: name.to_vec(), permissions: vec![held] }.encode()
        };
        let roles = vec![vec![b'r'; GROWING_BYTES_MAX]];
        let user = StoredUser { name: b"long".to_vec(), roles, ..StoredUser::default() };
        for (bucket, key, row) in [
            (schema::AUTH_ROLES, &b"long"[..], role(b"long", GROWING_BYTES_MAX)),
            (schema::AUTH_ROLES, b"short", role(b"short", 7)),
            (schema::AUTH_USERS, b"long", user.encode()),
        ] {
            batch.plan(bucket, key.into(), Some(row.into()));
        }
        db.commit(batch).unwrap();
        let mvcc = Mvcc::load(
            db.view(),
            crate::store::mvcc::Keys::default(),
            Rules::default(),
            Compat::V3_7,
        )
        .unwrap();
        let role = |role| Body::RoleGrantPermission(RoleGrantPermission { role, permission: None });
        let user = |user| Body::UserGrantRole(UserRole { user, role: b"short" });
        assert_eq!(check_growth(&mvcc, &role(b"short")), Ok(()));
        assert_eq!(check_growth(&mvcc, &role(b"none")), Ok(()));
        assert_eq!(check_growth(&mvcc, &role(b"long")), Err(Error::TooLarge));
        assert_eq!(check_growth(&mvcc, &user(b"long")), Err(Error::TooLarge));
    }
}
