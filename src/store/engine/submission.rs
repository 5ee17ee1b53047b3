//! What callers may have logged.

use crate::etcd::request::{
    Alarm, Body, Compaction, DeleteRange, LeaseGrant, LeaseRevoke, Put, Secret, Txn,
};
use crate::store::error::Error;

/// A request that [`super::Store::submit`] takes: on keys, leases and alarms, or a change of users
/// and roles without a password in the clear.
///
/// All others are the store's own, which could destroy the directory, or are not logged at all, or
/// have a password that the log would keep: these are made by the store's methods.
///
/// ```
/// use etcdkit::etcd::request::VersionName;
/// use etcdkit::store::{Body, Put, Submission};
///
/// let put = Submission::from(Put { key: b"k", value: b"v", ..Put::default() });
/// assert!(Submission::try_from(Body::ClusterVersionSet(VersionName { version: b"9" })).is_err());
/// # drop(put);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission<'a>(Body<'a>);

impl<'a> Submission<'a> {
    /// Returns the request.
    #[must_use]
    pub fn into_body(self) -> Body<'a> {
        self.0
    }
}

macro_rules! always_taken {
    ($($name:ident: $kind:ty,)*) => {
        $(impl<'a> From<$kind> for Submission<'a> {
            fn from(request: $kind) -> Self {
                Self(Body::$name(request))
            }
        })*
    };
}

always_taken! {
    Put: Put<'a>,
    DeleteRange: DeleteRange<'a>,
    Txn: Txn<'a>,
    Compaction: Compaction,
    LeaseGrant: LeaseGrant,
    LeaseRevoke: LeaseRevoke,
    Alarm: Alarm,
}

impl<'a> TryFrom<Body<'a>> for Submission<'a> {
    type Error = Error;

    /// Takes a request of any kind.
    ///
    /// # Errors
    /// [`Error::NotSubmitted`]: it is none that callers may have logged.
    fn try_from(body: Body<'a>) -> Result<Self, Error> {
        const CLEAR: &str = "its password is in the clear";
        const OWN: &str = "only the store itself makes it";
        const READ: &str = "it only reads";
        let is_clear = |password: &Secret<'_>| !password.0.is_empty();
        let why = match &body {
            Body::Put(_)
            | Body::DeleteRange(_)
            | Body::Txn(_)
            | Body::Compaction(_)
            | Body::LeaseGrant(_)
            | Body::LeaseRevoke(_)
            | Body::Alarm(_)
            | Body::AuthEnable(_)
            | Body::AuthDisable(_)
            | Body::UserDelete(_)
            | Body::UserGrantRole(_)
            | Body::UserRevokeRole(_)
            | Body::RoleAdd(_)
            | Body::RoleDelete(_)
            | Body::RoleGrantPermission(_)
            | Body::RoleRevokePermission(_) => return Ok(Self(body)),
            Body::UserAdd(user) if is_clear(&user.password) => CLEAR,
            Body::UserChangePassword(user) if is_clear(&user.password) => CLEAR,
            Body::UserAdd(_) | Body::UserChangePassword(_) => return Ok(Self(body)),
            Body::Range(_)
            | Body::AuthStatus(_)
            | Body::UserGet(_)
            | Body::UserList(_)
            | Body::RoleGet(_)
            | Body::RoleList(_) => READ,
            Body::Authenticate(_)
            | Body::LeaseCheckpoint(_)
            | Body::ClusterVersionSet(_)
            | Body::MemberAttributes(_)
            | Body::DowngradeInfo(_)
            | Body::DowngradeVersionTest(_) => OWN,
        };
        Err(Error::NotSubmitted { request: body.name(), why })
    }
}
