//! Requests that are not about keys: leases, alarms, auth, members and versions.
//!
//! Passwords and hashes are bytes in these messages and are never shown.
//!
//! Source: etcd `rpc.proto`, `raft_internal.proto`, `auth.proto`, `membership.proto` and 3.5's
//! `etcdserver.proto`, 3.4.45 to 3.7.3.

use std::fmt;

use super::wire::messages;

/// Bytes that must not be shown: a password or its hash.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Secret<'a>(pub &'a [u8]);

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "hidden" })
    }
}

impl<'a> super::wire::Wire<'a> for Secret<'a> {
    fn take<M: super::wire::Message<'a>>(
        &mut self,
        field: &crate::format::pb::Field<'a>,
        budget: &mut super::wire::Budget,
    ) -> Result<(), super::wire::Fault> {
        self.0.take::<M>(field, budget)
    }

    fn put(&self, number: u32, out: &mut Vec<u8>) {
        self.0.put(number, out);
    }
}

messages! {
    /// Who asked, and what for.
    Header<'a> = "RequestHeader" {
        /// Id of the request.
        1 id: u64,
        /// Name of the user; empty while auth is off.
        2 username: &'a [u8],
        /// Revision of the auth rules when the user was let in; 0 while auth is off.
        3 auth_revision: u64,
    }

    /// Grants a lease.
    LeaseGrant = "LeaseGrantRequest" {
        /// Time to live, in seconds.
        1 ttl_s: i64,
        /// Identity, which the server has chosen if the client did not.
        2 id: i64,
    }

    /// Ends a lease and deletes its keys.
    LeaseRevoke = "LeaseRevokeRequest" {
        /// Identity.
        1 id: i64,
    }

    /// Records how long leases still live.
    LeaseCheckpoints = "LeaseCheckpointRequest" {
        /// One for each lease.
        1 checkpoints: Vec<LeaseCheckpoint>,
    }

    /// How long one lease still lives.
    LeaseCheckpoint = "LeaseCheckpoint" {
        /// Identity.
        1 id: i64,
        /// Time to live that is left, in seconds.
        2 remaining_ttl_s: i64,
    }

    /// Raises or clears an alarm.
    Alarm = "AlarmRequest" {
        /// 0 reads, 1 raises, 2 clears.
        1 action: u64,
        /// The member that it is about.
        2 member_id: u64,
        /// 0 none, 1 NOSPACE, 2 CORRUPT.
        3 alarm: u64,
    }

    /// A request without any content.
    Nothing = "an empty request" {}

    /// Logs a user in, which changes nothing that is stored.
    Authenticate<'a> = "InternalAuthenticateRequest" {
        /// Name.
        1 name: &'a [u8],
        /// Password.
        2 password: Secret<'a>,
        /// Prefix of the token.
        3 simple_token: Secret<'a>,
    }

    /// Options of a new user; stored with it, even when all are off.
    UserOptions = "UserAddOptions" {
        /// Whether the user can only log in by certificate.
        1 no_password: bool,
    }

    /// Adds a user.
    UserAdd<'a> = "AuthUserAddRequest" {
        /// Name.
        1 name: &'a [u8],
        /// Password in the clear, which only 3.4 logs.
        2 password: Secret<'a>,
        /// Options.
        3 options: Option<UserOptions>,
        /// base64 of the bcrypt hash, which is ASCII itself; since 3.5.
        4 hashed_password: Secret<'a>,
    }

    /// Names a user: to be deleted, or to be read.
    UserName<'a> = "a request that names a user" {
        /// Name.
        1 name: &'a [u8],
    }

    /// Changes a user's password.
    UserChangePassword<'a> = "AuthUserChangePasswordRequest" {
        /// Name.
        1 name: &'a [u8],
        /// Password in the clear, which only 3.4 logs.
        2 password: Secret<'a>,
        /// base64 of the bcrypt hash; since 3.5.
        3 hashed_password: Secret<'a>,
    }

    /// Gives a user a role, or takes it.
    UserRole<'a> = "a request that names a user and a role" {
        /// Name of the user.
        1 user: &'a [u8],
        /// Name of the role.
        2 role: &'a [u8],
    }

    /// Names a role: to be added, deleted or read.
    RoleName<'a> = "a request that names a role" {
        /// Name.
        1 role: &'a [u8],
    }

    /// Lets a role do something with a range of keys.
    RoleGrantPermission<'a> = "AuthRoleGrantPermissionRequest" {
        /// Name of the role.
        1 role: &'a [u8],
        /// What it may do.
        2 permission: Option<GrantedPermission<'a>>,
    }

    /// What a role may do with a range of keys.
    GrantedPermission<'a> = "Permission" {
        /// 0 read, 1 write, 2 both.
        1 kind: u64,
        /// First key.
        2 key: &'a [u8],
        /// End of the range; see [`super::span`].
        3 range_end: &'a [u8],
    }

    /// Takes a permission from a role.
    RoleRevokePermission<'a> = "AuthRoleRevokePermissionRequest" {
        /// Name of the role.
        1 role: &'a [u8],
        /// First key.
        2 key: &'a [u8],
        /// End of the range, as it was granted.
        3 range_end: &'a [u8],
    }

    /// Names a version: of the cluster, or in a test of downgrades.
    VersionName<'a> = "a request that names a version" {
        /// Such as `3.6.0`.
        1 version: &'a [u8],
    }

    /// Publishes what a member calls itself and where clients reach it.
    MemberAttributes<'a> = "ClusterMemberAttrSetRequest" {
        /// Member id.
        1 member_id: u64,
        /// Name and URLs.
        2 attributes: Option<Attributes<'a>>,
    }

    /// What a member says about itself.
    Attributes<'a> = "Attributes" {
        /// Name.
        1 name: &'a [u8],
        /// Where clients reach it.
        2 client_urls: Vec<&'a [u8]>,
    }

    /// Begins or ends an online downgrade.
    DowngradeInfo<'a> = "DowngradeInfoSetRequest" {
        /// Whether one is in progress.
        1 enabled: bool,
        /// Version to go to.
        2 version: &'a [u8],
    }

    /// A request of the v2 API, which 3.4 and 3.5 write into the log as it is.
    ///
    /// They do so for a member's attributes and for the cluster's version.
    V2<'a> = "Request" {
        /// Id of the request.
        1 id: u64,
        /// `PUT`, `POST`, `DELETE`, `QGET` or `SYNC`.
        2 method: &'a [u8],
        /// Path in the v2 store.
        3 path: &'a [u8],
        /// Value.
        4 value: &'a [u8],
        /// Whether a directory is meant.
        5 is_directory: bool,
        /// Value that must be there.
        6 previous_value: &'a [u8],
        /// Index that must be there.
        7 previous_index: u64,
        /// Whether the node must be there; absent and false are one here.
        8 previous_exists: bool,
        /// When it expires, in nanoseconds since 1970.
        9 expiration: i64,
        /// Unused in a log.
        10 wait: bool,
        /// Unused in a log.
        11 since: u64,
        /// Whether what is below is meant too.
        12 recursive: bool,
        /// Unused in a log.
        13 sorted: bool,
        /// Unused in a log.
        14 quorum: bool,
        /// Time of a `SYNC`, in nanoseconds since 1970.
        15 time: i64,
        /// Unused in a log.
        16 stream: bool,
        /// Whether only the expiry changes.
        17 refresh: bool,
    }
}
