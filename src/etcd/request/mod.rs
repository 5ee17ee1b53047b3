//! What a normal entry of the raft log asks for, borrowed from the entry's bytes.
//!
//! | data | is |
//! |---|---|
//! | none | the no-op of a new leader |
//! | InternalRaftRequest | 1 id, 2 v2 request, 100 header, and one field of the table below |
//! | etcdserverpb.Request | a v2 request as it is, in logs of 3.4 and 3.5 |
//!
//! A v2 request cannot be read as an InternalRaftRequest: its method would have to be a message,
//! and none of `PUT`, `POST`, `DELETE`, `QGET` and `SYNC` is one.
//!
//! Nothing is skipped: an unknown field, two requests in one, or none is a [`Fault`] that says
//! which. What is encoded here equals what etcd 3.5 to 3.7 encode.
//!
//! Source: etcd `raft_internal.proto`, 3.4.45 to 3.7.3; `EtcdServer.applyEntryNormal`, 3.6.16.

mod admin;
mod kv;
mod wire;

pub use admin::*;
pub use kv::*;
pub use wire::{DEPTH_MAX, Fault, ITEMS_MAX};

use crate::format::pb;
use wire::{Budget, Message, Wire, malformed, put_message};

const NAME: &str = "InternalRaftRequest";

/// What an entry asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// Nothing: a leader began its term.
    Nothing,
    /// A request.
    Request(Request<'a>),
    /// A v2 request.
    V2(V2<'a>),
}

/// A request and who made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// Id; 0 in practice, since the header has it.
    pub id: u64,
    /// Who made it.
    pub header: Option<Header<'a>>,
    /// What it asks for.
    pub body: Body<'a>,
}

macro_rules! bodies {
    ($($(#[$doc:meta])* $number:literal $name:ident($kind:ty) = $word:literal,)*) => {
        /// What a request asks for.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Body<'a> {
            $($(#[$doc])* $name($kind),)*
        }

        impl<'a> Body<'a> {
            /// Returns etcd's name of the request.
            #[must_use]
            pub fn name(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => $word,)*
                }
            }

            fn read(number: u32, bytes: &'a [u8], budget: &mut Budget) -> Result<Self, Fault> {
                match number {
                    $($number => <$kind>::read(bytes, budget).map(Self::$name),)*
                    field => Err(Fault::UnknownField { message: NAME, field }),
                }
            }

            /// Number of the field in which the body stands.
            fn number(&self) -> u32 {
                match self {
                    $(Self::$name(_) => $number,)*
                }
            }

            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$name(message) => put_message(message, $number, out),)*
                }
            }
        }
    };
}

bodies! {
    /// Reads; a range alone is not logged by any etcd that is known, and changes nothing.
    3 Range(Range<'a>) = "range",
    /// Writes a key.
    4 Put(Put<'a>) = "put",
    /// Deletes keys.
    5 DeleteRange(DeleteRange<'a>) = "delete_range",
    /// Does one of two lists of operations.
    6 Txn(Txn<'a>) = "txn",
    /// Forgets old revisions.
    7 Compaction(Compaction) = "compaction",
    /// Grants a lease.
    8 LeaseGrant(LeaseGrant) = "lease_grant",
    /// Ends a lease.
    9 LeaseRevoke(LeaseRevoke) = "lease_revoke",
    /// Raises, clears or reads alarms.
    10 Alarm(Alarm) = "alarm",
    /// Records how long leases still live.
    11 LeaseCheckpoint(LeaseCheckpoints) = "lease_checkpoint",
    /// Turns auth on.
    1000 AuthEnable(Nothing) = "auth_enable",
    /// Turns auth off.
    1011 AuthDisable(Nothing) = "auth_disable",
    /// Logs a user in.
    1012 Authenticate(Authenticate<'a>) = "authenticate",
    /// Asks whether auth is on.
    1013 AuthStatus(Nothing) = "auth_status",
    /// Adds a user.
    1100 UserAdd(UserAdd<'a>) = "auth_user_add",
    /// Deletes a user.
    1101 UserDelete(UserName<'a>) = "auth_user_delete",
    /// Reads a user.
    1102 UserGet(UserName<'a>) = "auth_user_get",
    /// Changes a password.
    1103 UserChangePassword(UserChangePassword<'a>) = "auth_user_change_password",
    /// Gives a user a role.
    1104 UserGrantRole(UserRole<'a>) = "auth_user_grant_role",
    /// Takes a role from a user.
    1105 UserRevokeRole(UserRole<'a>) = "auth_user_revoke_role",
    /// Lists users.
    1106 UserList(Nothing) = "auth_user_list",
    /// Lists roles.
    1107 RoleList(Nothing) = "auth_role_list",
    /// Adds a role.
    1200 RoleAdd(RoleName<'a>) = "auth_role_add",
    /// Deletes a role.
    1201 RoleDelete(RoleName<'a>) = "auth_role_delete",
    /// Reads a role.
    1202 RoleGet(RoleName<'a>) = "auth_role_get",
    /// Lets a role do something.
    1203 RoleGrantPermission(RoleGrantPermission<'a>) = "auth_role_grant_permission",
    /// Takes a permission from a role.
    1204 RoleRevokePermission(RoleRevokePermission<'a>) = "auth_role_revoke_permission",
    /// Says which version all members understand.
    1300 ClusterVersionSet(VersionName<'a>) = "cluster_version_set",
    /// Publishes a member's name and client URLs.
    1301 MemberAttributes(MemberAttributes<'a>) = "cluster_member_attr_set",
    /// Begins or ends an online downgrade.
    1302 DowngradeInfo(DowngradeInfo<'a>) = "downgrade_info_set",
    /// A test of downgrades; changes nothing.
    9900 DowngradeVersionTest(VersionName<'a>) = "downgrade_version_test",
}

impl<'a> Content<'a> {
    /// Reads the data of a normal entry.
    ///
    /// # Errors
    ///
    /// See [`Fault`].
    pub fn decode(data: &'a [u8]) -> Result<Self, Fault> {
        if data.is_empty() {
            return Ok(Self::Nothing);
        }
        decode_request(data).or_else(|fault| {
            let request = V2::read(data, &mut Budget::default());
            request.ok().filter(V2::has_method).map(Self::V2).ok_or(fault)
        })
    }
}

fn decode_request(data: &[u8]) -> Result<Content<'_>, Fault> {
    #[derive(Default)]
    struct Envelope;
    impl<'a> Message<'a> for Envelope {
        const NAME: &'static str = NAME;
        fn take(&mut self, _: &pb::Field<'a>, _: &mut Budget) -> Result<(), Fault> {
            Ok(())
        }
        fn put(&self, _: &mut Vec<u8>) {}
    }

    let mut budget = Budget::default();
    let (mut id, mut v2, mut header, mut body) = (0, None, None, None::<Body<'_>>);
    for field in pb::fields(data) {
        let field = field.map_err(malformed::<Envelope>)?;
        match field.number {
            1 => Wire::take::<Envelope>(&mut id, &field, &mut budget)?,
            2 => Wire::take::<Envelope>(&mut v2, &field, &mut budget)?,
            100 => Wire::take::<Envelope>(&mut header, &field, &mut budget)?,
            number if body.is_some() => {
                return Err(Fault::Twice { message: NAME, field: number });
            }
            number => {
                let bytes = field.bytes().map_err(malformed::<Envelope>)?;
                body = Some(Body::read(number, bytes, &mut budget)?);
            }
        }
    }
    match (v2, body) {
        (Some(_), Some(body)) => Err(Fault::Twice { message: NAME, field: body.number() }),
        (Some(v2), None) => Ok(Content::V2(v2)),
        (None, None) => Err(Fault::Empty),
        (None, Some(_)) if id == 0 && header.is_none() => Err(Fault::NoId),
        (None, Some(body)) => Ok(Content::Request(Request { id, header, body })),
    }
}

impl Body<'_> {
    /// Bytes that a request takes, about: enough for a put.
    fn size_hint(&self) -> usize {
        const OTHERS: usize = 64;
        let own = match self {
            Body::Put(put) => put.key.len().saturating_add(put.value.len()),
            Body::Txn(_) => 512,
            _ => 0,
        };
        own.saturating_add(OTHERS)
    }
}

impl Request<'_> {
    /// Encodes the data of an entry as etcd does.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.body.size_hint());
        pb::put_u64(&mut out, 1, self.id);
        if self.body.number() < 100 {
            self.body.put(&mut out);
            self.header.put(100, &mut out);
        } else {
            self.header.put(100, &mut out);
            self.body.put(&mut out);
        }
        out
    }
}

impl V2<'_> {
    /// Encodes the data of an entry; zeros are left out, where etcd writes them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    fn has_method(&self) -> bool {
        matches!(self.method, b"PUT" | b"POST" | b"DELETE" | b"QGET" | b"SYNC")
    }
}

/// The keys that a request means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Span<'a> {
    /// One key.
    Key(&'a [u8]),
    /// From a key up to, not including, an end; none where the end is not above it.
    Range(&'a [u8], &'a [u8]),
    /// From a key on.
    From(&'a [u8]),
}

/// Reads a key and a range end: no end for one key, a single zero byte for all from it on.
///
/// Source: etcd `txn.mkGteRange` and `mvcc.treeIndex.Range`, 3.6.16.
#[must_use]
pub fn span<'a>(key: &'a [u8], range_end: &'a [u8]) -> Span<'a> {
    match range_end {
        [] => Span::Key(key),
        [0] => Span::From(key),
        end => Span::Range(key, end),
    }
}

impl Span<'_> {
    /// Tells whether a key is meant.
    #[must_use]
    pub fn contains(self, key: &[u8]) -> bool {
        match self {
            Self::Key(one) => key == one,
            Self::Range(first, end) => first <= key && key < end,
            Self::From(first) => first <= key,
        }
    }
}

#[cfg(test)]
mod tests;
