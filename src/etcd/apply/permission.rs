//! Who may do what: checked before a request is logged, and again when its entry is applied, since
//! by then the rules may have changed. Both ask here, so they cannot differ.
//!
//! A user needs rules that are not older than the store's, and then the role root or, for each key
//! and range, permissions of the user's roles that cover it together. What only an administrator
//! may do needs the role root, and rules of any age.
//!
//! Source: etcd `auth.authStore` (`isOpPermitted`, `IsAdminPermitted`, `HasRole`),
//! `auth/range_perm_cache.go`, `apply.authApplierV3`, `adt.intervalTree.Contains` and `Intersects`;
//! 3.6.16 and 3.7.3.

use std::collections::BTreeSet;

use super::auth_row::{find_role, find_user, is_enabled, revision};
use super::{Context, Refusal, State, Stop, StoredUser};
use crate::etcd::request::{DeleteRange, Op, Put, Span, Txn, span};
use crate::etcd::rows::Permission;

/// Name of the role that may do everything, and of the user who must have it.
pub const ROOT: &[u8] = b"root";

/// What a permission is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To see keys.
    Read,
    /// To change keys.
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

/// What somebody may do, looked up once for a whole request.
#[derive(Clone, Debug)]
pub struct Rights {
    name: Vec<u8>,
    roles: Vec<Vec<u8>>,
    /// Whether it may do what only an administrator may, and why not.
    admin: Result<(), Refusal>,
    keys: Keys,
}

/// What somebody may do with keys.
#[derive(Clone, Debug)]
enum Keys {
    All,
    None(Refusal),
    Some { read: Cover, write: Cover },
}

impl Rights {
    /// Looks up what a user may do who was let in by rules of this revision; no name and revision 0
    /// are nobody. While auth is off everybody may do everything.
    ///
    /// # Errors
    /// The state cannot be read, or a row is not understood.
    pub fn of(state: &dyn State, name: &[u8], auth_revision: u64) -> Result<Self, Stop> {
        let rights = |roles, admin, keys| Self { name: name.to_vec(), roles, admin, keys };
        if !is_enabled(state)? {
            return Ok(rights(Vec::new(), Ok(()), Keys::All));
        }
        let user = find_user(state, name)?;
        let admin = match &user {
            _ if name.is_empty() => Err(Refusal::UserEmpty),
            None => Err(Refusal::UserNotFound),
            Some(user) if is_root(user) => Ok(()),
            Some(_) => Err(Refusal::PermissionDenied),
        };
        let keys = match &user {
            _ if auth_revision == 0 => Keys::None(Refusal::UserEmpty),
            _ if auth_revision < revision(state)? => Keys::None(Refusal::AuthOldRevision),
            None => Keys::None(Refusal::PermissionDenied),
            Some(user) if is_root(user) => Keys::All,
            Some(user) => Keys::given_to(user, state)?,
        };
        Ok(rights(user.map(|user| user.roles).unwrap_or_default(), admin, keys))
    }

    fn of_header(context: &Context<'_, '_>) -> Result<Self, Stop> {
        let (name, revision) =
            context.header.map_or((&[][..], 0), |header| (header.username, header.auth_revision));
        Self::of(context.state, name, revision)
    }

    /// Makes sure that it may do what only an administrator may.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check_admin(&self) -> Result<(), Refusal> {
        self.admin
    }

    /// Makes sure that it may see what a user is: an administrator, or the user itself.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check_user(&self, name: &[u8]) -> Result<(), Refusal> {
        if name == self.name { Ok(()) } else { self.admin }
    }

    /// Makes sure that it may see what a role is: an administrator, or who has the role.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check_role(&self, name: &[u8]) -> Result<(), Refusal> {
        if self.roles.iter().any(|role| role == name) { Ok(()) } else { self.admin }
    }

    /// Makes sure that it may do something with all keys of a span.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check_keys(&self, keys: Span<'_>, access: Access) -> Result<(), Refusal> {
        let cover = match &self.keys {
            Keys::All => return Ok(()),
            Keys::None(refusal) => return Err(*refusal),
            Keys::Some { read, write } => {
                if access == Access::Read {
                    read
                } else {
                    write
                }
            }
        };
        if cover.contains(keys) { Ok(()) } else { Err(Refusal::PermissionDenied) }
    }

    /// Makes sure that it may do something with every key of a lease; a lease that is not there has
    /// none.
    ///
    /// # Errors
    /// Why it may not, or the state cannot be read.
    pub fn check_lease(&self, state: &dyn State, id: i64, access: Access) -> Result<(), Stop> {
        if id == 0 || self.admin.is_ok() {
            return Ok(());
        }
        for key in state.lease_keys(id)? {
            self.check_keys(Span::Key(&key), access)?;
        }
        Ok(())
    }

    /// Makes sure that it may do a put.
    ///
    /// # Errors
    /// As [`Rights::check_lease`].
    pub fn check_put(&self, state: &dyn State, request: &Put<'_>) -> Result<(), Stop> {
        self.check_put_once(state, request, &mut BTreeSet::new())
    }

    /// Checks a put; leases that were found to be its user's are not looked through again.
    fn check_put_once(
        &self,
        state: &dyn State,
        request: &Put<'_>,
        leases: &mut BTreeSet<i64>,
    ) -> Result<(), Stop> {
        let key = Span::Key(request.key);
        self.check_keys(key, Access::Write)?;
        // A lease with a key that the user may not write: the user could not end the lease either.
        if leases.insert(request.lease) {
            self.check_lease(state, request.lease, Access::Write)?;
        }
        if request.prev_kv {
            self.check_keys(key, Access::Read)?;
        }
        Ok(())
    }

    /// Makes sure that it may do a delete.
    ///
    /// # Errors
    /// Why it may not.
    pub fn check_delete(&self, request: &DeleteRange<'_>) -> Result<(), Refusal> {
        let keys = span(request.key, request.range_end);
        self.check_keys(keys, Access::Write)?;
        if request.prev_kv {
            self.check_keys(keys, Access::Read)?;
        }
        Ok(())
    }

    /// Makes sure that it may do everything in a transaction, in both lists.
    ///
    /// # Errors
    /// As [`Rights::check_lease`].
    pub fn check_txn(&self, state: &dyn State, request: &Txn<'_>) -> Result<(), Stop> {
        self.check_txn_once(state, request, &mut BTreeSet::new())
    }

    fn check_txn_once(
        &self,
        state: &dyn State,
        request: &Txn<'_>,
        leases: &mut BTreeSet<i64>,
    ) -> Result<(), Stop> {
        for compare in &request.compare {
            self.check_keys(span(compare.key, compare.range_end), Access::Read)?;
        }
        for op in request.success.iter().chain(&request.failure) {
            match op {
                Op::Range(range) => {
                    self.check_keys(span(range.key, range.range_end), Access::Read)?;
                }
                Op::Put(put) => self.check_put_once(state, put, leases)?,
                Op::DeleteRange(delete) => self.check_delete(delete)?,
                Op::Txn(inner) => self.check_txn_once(state, inner, leases)?,
                Op::Nothing => {}
            }
        }
        Ok(())
    }
}

/// Makes sure that the user may change auth itself.
pub(super) fn check_admin(context: &Context<'_, '_>) -> Result<(), Stop> {
    Ok(Rights::of_header(context)?.check_admin()?)
}

pub(super) fn check_put(context: &Context<'_, '_>, request: &Put<'_>) -> Result<(), Stop> {
    Rights::of_header(context)?.check_put(context.state, request)
}

pub(super) fn check_delete(
    context: &Context<'_, '_>,
    request: &DeleteRange<'_>,
) -> Result<(), Stop> {
    Ok(Rights::of_header(context)?.check_delete(request)?)
}

/// Makes sure that the user may write every key of a lease.
pub(super) fn check_lease(context: &Context<'_, '_>, id: i64) -> Result<(), Stop> {
    Rights::of_header(context)?.check_lease(context.state, id, Access::Write)
}

pub(super) fn check_txn(context: &Context<'_, '_>, request: &Txn<'_>) -> Result<(), Stop> {
    Rights::of_header(context)?.check_txn(context.state, request)
}

impl Keys {
    fn given_to(user: &StoredUser, state: &dyn State) -> Result<Self, Stop> {
        let (mut read, mut write) = (Vec::new(), Vec::new());
        for name in &user.roles {
            // A role that is gone gives nothing.
            let Some(role) = find_role(state, name)? else { continue };
            for permission in &role.permissions {
                if Access::Read.is_given_by(permission) {
                    read.push(Interval::of(permission));
                }
                if Access::Write.is_given_by(permission) {
                    write.push(Interval::of(permission));
                }
            }
        }
        Ok(Self::Some { read: Cover::of(read), write: Cover::of(write) })
    }
}

/// Keys that permissions give together.
#[derive(Clone, Debug)]
struct Cover {
    /// Each by itself.
    given: Vec<Interval>,
    /// Those that touch joined, ascending.
    joined: Vec<Interval>,
}

impl Cover {
    fn of(mut given: Vec<Interval>) -> Self {
        given.sort_unstable();
        let mut joined: Vec<Interval> = Vec::new();
        for next in given.iter().filter(|next| !next.is_empty()) {
            match joined.last_mut() {
                Some(last) if !last.ends_before(&next.begin) => last.extend_to(next),
                _ => joined.push(next.clone()),
            }
        }
        Self { given, joined }
    }

    fn contains(&self, keys: Span<'_>) -> bool {
        let first = match keys {
            // A range without keys needs what etcd's tree finds beside it.
            Span::Range(first, end) if end <= first => return covers(self.given.clone(), keys),
            Span::Key(first) | Span::Range(first, _) | Span::From(first) => first,
        };
        let after = self.joined.partition_point(|interval| interval.begin.as_slice() <= first);
        let Some(interval) = after.checked_sub(1).and_then(|at| self.joined.get(at)) else {
            return false;
        };
        match (&interval.end, keys) {
            (None, _) => true,
            (Some(_), Span::From(_)) => false,
            (Some(end), Span::Key(key)) => key < end.as_slice(),
            (Some(end), Span::Range(_, wanted)) => wanted <= end.as_slice(),
        }
    }
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

    fn is_empty(&self) -> bool {
        self.end.as_deref().is_some_and(|end| end <= self.begin.as_slice())
    }

    /// Reaches as far as another one, where that reaches farther.
    fn extend_to(&mut self, other: &Self) {
        let is_farther = match (&self.end, &other.end) {
            (None, _) => false,
            (_, None) => true,
            (Some(own), Some(other)) => other > own,
        };
        if is_farther {
            self.end.clone_from(&other.end);
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
        reached.extend_to(&next);
    }
    match (&reached.end, &wanted.end) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(reached), Some(wanted)) => reached >= wanted,
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn given(list: &[(&str, &str)]) -> Vec<Interval> {
        let of = |(key, end): &(&str, &str)| Interval::over(span(key.as_bytes(), end.as_bytes()));
        list.iter().map(of).collect()
    }

    fn covered(list: &[(&str, &str)], key: &str, end: &str) -> bool {
        let keys = span(key.as_bytes(), end.as_bytes());
        let covered = covers(given(list), keys);
        assert_eq!(Cover::of(given(list)).contains(keys), covered, "{list:?} {key} {end}");
        covered
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

    fn text() -> impl Strategy<Value = Vec<u8>> {
        vec(prop_oneof![Just(0_u8), Just(b'a'), Just(b'b')], 0..3)
    }

    proptest! {
        #[test]
        fn joined_permissions_give_what_single_ones_give_together(
            list in vec((text(), text()), 0..6),
            key in text(),
            end in text(),
        ) {
            let of = |(key, end): &(Vec<u8>, Vec<u8>)| Interval::over(span(key, end));
            let given: Vec<_> = list.iter().map(of).collect();
            let keys = span(&key, &end);
            prop_assert_eq!(Cover::of(given.clone()).contains(keys), covers(given, keys));
        }
    }
}
