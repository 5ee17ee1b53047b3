//! Who may do what, checked when an entry is applied: by then the rules may have changed.
//!
//! A user needs rules that are not older than the store's, and then the role root or, for each key
//! and range, permissions of the user's roles that cover it together.
//!
//! Source: etcd `auth.authStore.isOpPermitted`, `auth/range_perm_cache.go`, `apply.authApplierV3`,
//! `adt.intervalTree.Contains` and `Intersects`; 3.6.16.

use super::auth_row::{find_role, find_user, is_enabled, revision};
use super::{Context, Refusal, Stop, StoredUser};
use crate::etcd::request::{DeleteRange, Op, Put, Span, Txn, span};
use crate::etcd::rows::Permission;

/// Name of the role that may do everything.
pub(super) const ROOT: &[u8] = b"root";

/// What a permission is needed for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

impl Access {
    fn is_given_by(self, permission: &Permission) -> bool {
        const BOTH: u64 = 2;
        let own = if self == Self::Read { 0 } else { 1 };
        permission.kind == own || permission.kind == BOTH
    }
}

/// Tells whether a user has the role root.
pub(super) fn is_root(user: &StoredUser) -> bool {
    user.roles.iter().any(|role| role == ROOT)
}

/// Makes sure that the user may change auth itself.
pub(super) fn check_admin(context: &Context<'_, '_>) -> Result<(), Stop> {
    if !is_enabled(context.state)? {
        return Ok(());
    }
    let name = context.header.map(|header| header.username).unwrap_or_default();
    if name.is_empty() {
        return Err(Refusal::UserEmpty.into());
    }
    let user = find_user(context.state, name)?.ok_or(Refusal::UserNotFound)?;
    if is_root(&user) { Ok(()) } else { Err(Refusal::PermissionDenied.into()) }
}

pub(super) fn check_put(context: &Context<'_, '_>, request: &Put<'_>) -> Result<(), Stop> {
    if !is_enabled(context.state)? {
        return Ok(());
    }
    let key = Span::Key(request.key);
    check(context, key, Access::Write)?;
    // A lease with a key that the user may not write: the user could not end the lease either.
    check_lease(context, request.lease)?;
    if request.prev_kv {
        check(context, key, Access::Read)?;
    }
    Ok(())
}

pub(super) fn check_delete(
    context: &Context<'_, '_>,
    request: &DeleteRange<'_>,
) -> Result<(), Stop> {
    let keys = span(request.key, request.range_end);
    check(context, keys, Access::Write)?;
    if request.prev_kv {
        check(context, keys, Access::Read)?;
    }
    Ok(())
}

/// Makes sure that the user may write every key of a lease; one that is not there has none.
pub(super) fn check_lease(context: &Context<'_, '_>, id: i64) -> Result<(), Stop> {
    if id == 0 || !is_enabled(context.state)? {
        return Ok(());
    }
    match check_admin(context) {
        Ok(()) => return Ok(()),
        Err(Stop::Refused(_)) => {}
        Err(other) => return Err(other),
    }
    let mut keys = context.state.lease_keys(id)?;
    keys.sort_unstable();
    for key in &keys {
        check(context, Span::Key(key), Access::Write)?;
    }
    Ok(())
}

/// Makes sure that the user may do everything in a transaction, in both lists.
pub(super) fn check_txn(context: &Context<'_, '_>, request: &Txn<'_>) -> Result<(), Stop> {
    if !is_enabled(context.state)? {
        return Ok(());
    }
    for compare in &request.compare {
        check(context, span(compare.key, compare.range_end), Access::Read)?;
    }
    for op in request.success.iter().chain(&request.failure) {
        match op {
            Op::Range(range) => {
                check(context, span(range.key, range.range_end), Access::Read)?;
            }
            Op::Put(put) => check_put(context, put)?,
            Op::DeleteRange(delete) => check_delete(context, delete)?,
            Op::Txn(inner) => check_txn(context, inner)?,
            Op::Nothing => {}
        }
    }
    Ok(())
}

fn check(context: &Context<'_, '_>, keys: Span<'_>, access: Access) -> Result<(), Stop> {
    if !is_enabled(context.state)? {
        return Ok(());
    }
    let header = context.header.cloned().unwrap_or_default();
    if header.auth_revision == 0 {
        return Err(Refusal::UserEmpty.into());
    }
    if header.auth_revision < revision(context.state)? {
        return Err(Refusal::AuthOldRevision.into());
    }
    let user = find_user(context.state, header.username)?.ok_or(Refusal::PermissionDenied)?;
    if is_root(&user) {
        return Ok(());
    }
    let mut given: Vec<Interval> = Vec::new();
    for name in &user.roles {
        // A role that is gone gives nothing.
        let Some(role) = find_role(context.state, name)? else { continue };
        let permissions = role.permissions.iter().filter(|p| access.is_given_by(p));
        given.extend(permissions.map(Interval::of));
    }
    if covers(given, keys) { Ok(()) } else { Err(Refusal::PermissionDenied.into()) }
}

/// Keys from `begin` up to `end`, or all from `begin` on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Interval {
    begin: Vec<u8>,
    end: Option<Vec<u8>>,
}

impl Interval {
    fn of(permission: &Permission) -> Self {
        Self::over(span(&permission.key, &permission.range_end))
    }

    fn over(keys: Span<'_>) -> Self {
        match keys {
            Span::Key(key) => {
                let mut end = key.to_vec();
                end.push(0);
                Self { begin: key.to_vec(), end: Some(end) }
            }
            Span::Range(key, end) => Self { begin: key.to_vec(), end: Some(end.to_vec()) },
            Span::From(key) => Self { begin: key.to_vec(), end: None },
        }
    }

    /// Tells whether this ends before `key`, so that a gap is left.
    fn ends_before(&self, key: &[u8]) -> bool {
        self.end.as_deref().is_some_and(|end| end < key)
    }

    fn overlaps(&self, other: &Self) -> bool {
        let before = |a: &Self, b: &Self| a.end.as_deref().is_some_and(|end| end <= &b.begin[..]);
        !before(self, other) && !before(other, self)
    }
}

/// Tells whether intervals cover all keys together; one that is not valid covers nothing.
fn covers(mut given: Vec<Interval>, keys: Span<'_>) -> bool {
    let wanted = Interval::over(keys);
    given.retain(|interval| interval.overlaps(&wanted));
    given.sort_unstable();
    let mut given = given.into_iter();
    let Some(mut reached) = given.next() else { return false };
    if reached.begin > wanted.begin {
        return false;
    }
    for next in given {
        if reached.ends_before(&next.begin) {
            return false;
        }
        let further = match (&reached.end, &next.end) {
            (None, _) => false,
            (_, None) => true,
            (Some(reached), Some(next)) => next > reached,
        };
        if further {
            reached.end = next.end;
        }
    }
    match (&reached.end, &wanted.end) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(reached), Some(wanted)) => reached >= wanted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(list: &[(&str, &str)]) -> Vec<Interval> {
        let of = |(key, end): &(&str, &str)| Interval::over(span(key.as_bytes(), end.as_bytes()));
        list.iter().map(of).collect()
    }

    fn covered(list: &[(&str, &str)], key: &str, end: &str) -> bool {
        covers(given(list), span(key.as_bytes(), end.as_bytes()))
    }

    #[test]
    fn permissions_cover_together() {
        assert!(!covered(&[], "a", ""));
        assert!(covered(&[("a", "")], "a", ""));
        assert!(!covered(&[("a", "")], "b", ""));
        assert!(!covered(&[("a", "")], "a", "b"));
        assert!(covered(&[("a", "c")], "b", ""));
        assert!(!covered(&[("a", "c")], "c", ""));
        assert!(covered(&[("a", "c"), ("c", "e")], "b", "d"));
        assert!(!covered(&[("a", "c"), ("d", "e")], "b", "e"));
        assert!(covered(&[("a", "z"), ("b", "c")], "a", "y"));
        assert!(!covered(&[("a", "z")], "a", "\0"));
        assert!(covered(&[("a", "\0")], "b", "\0"));
        assert!(covered(&[("a", "\0")], "b", "x"));
        assert!(covered(&[("\0", "\0")], "anything", ""));
        assert!(!covered(&[("b", "\0")], "a", "\0"));
    }
}
