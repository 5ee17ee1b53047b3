//! Kinds of requests, by the names that etcd's figures have for them.

use super::histogram::{Histogram, Scale};
use crate::etcd::request::Body;

macro_rules! kinds {
    ($($name:ident $([$body:ident])? = $label:literal,)*) => {
        /// A kind of request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum Kind {
            $(#[doc = concat!("`", $label, "`.")] $name,)*
        }

        impl Kind {
            /// All kinds, in order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// etcd's name in labels.
            #[must_use]
            pub fn label(self) -> &'static str {
                match self {
                    $(Self::$name => $label,)*
                }
            }

            /// The kind of a request.
            #[must_use]
            pub fn of(body: &Body<'_>) -> Self {
                match body {
                    $($(Body::$body(_) => Self::$name,)?)*
                }
            }
        }
    };
}

kinds! {
    Range [Range] = "Range",
    Put [Put] = "Put",
    DeleteRange [DeleteRange] = "DeleteRange",
    Txn [Txn] = "Txn",
    ReadonlyTxn = "ReadonlyTxn",
    Compaction [Compaction] = "Compaction",
    LeaseGrant [LeaseGrant] = "LeaseGrant",
    LeaseRevoke [LeaseRevoke] = "LeaseRevoke",
    LeaseCheckpoint [LeaseCheckpoint] = "LeaseCheckpoint",
    Alarm [Alarm] = "Alarm",
    Authenticate [Authenticate] = "Authenticate",
    AuthEnable [AuthEnable] = "AuthEnable",
    AuthDisable [AuthDisable] = "AuthDisable",
    AuthStatus [AuthStatus] = "AuthStatus",
    UserAdd [UserAdd] = "AuthUserAdd",
    UserDelete [UserDelete] = "AuthUserDelete",
    UserGet [UserGet] = "AuthUserGet",
    UserChangePassword [UserChangePassword] = "AuthUserChangePassword",
    UserGrantRole [UserGrantRole] = "AuthUserGrantRole",
    UserRevokeRole [UserRevokeRole] = "AuthUserRevokeRole",
    UserList [UserList] = "AuthUserList",
    RoleList [RoleList] = "AuthRoleList",
    RoleAdd [RoleAdd] = "AuthRoleAdd",
    RoleDelete [RoleDelete] = "AuthRoleDelete",
    RoleGet [RoleGet] = "AuthRoleGet",
    RoleGrantPermission [RoleGrantPermission] = "AuthRoleGrantPermission",
    RoleRevokePermission [RoleRevokePermission] = "AuthRoleRevokePermission",
    ClusterVersionSet [ClusterVersionSet] = "ClusterVersionSet",
    ClusterMemberAttrSet [MemberAttributes] = "ClusterMemberAttrSet",
    DowngradeInfoSet [DowngradeInfo] = "DowngradeInfoSet",
    DowngradeVersionTest [DowngradeVersionTest] = "DowngradeVersionTest",
}

/// Durations by kind and success.
#[derive(Debug)]
pub struct ByKind(Vec<(Kind, bool, Histogram)>);

impl ByKind {
    pub fn new(scale: &'static Scale) -> Self {
        let both = |kind: &Kind| [(*kind, true), (*kind, false)];
        let kinds = Kind::ALL.iter().flat_map(both);
        Self(kinds.map(|(kind, success)| (kind, success, Histogram::new(scale))).collect())
    }

    pub fn of(&self, kind: Kind, success: bool) -> Option<&Histogram> {
        let index = usize::from(kind as u8) * 2 + usize::from(!success);
        self.0.get(index).map(|(.., histogram)| histogram)
    }

    /// Reads those that were ever used.
    pub fn read(&self) -> Vec<ByRequest> {
        let used = self.0.iter().filter(|(.., histogram)| histogram.count() > 0);
        used.map(|(kind, success, histogram)| ByRequest {
            kind: *kind,
            success: *success,
            durations: histogram.read(),
        })
        .collect()
    }
}

/// Durations of one kind of request.
#[derive(Clone, Debug, PartialEq)]
pub struct ByRequest {
    /// The kind.
    pub kind: Kind,
    /// Whether it went well.
    pub success: bool,
    /// Durations in seconds.
    pub durations: super::Distribution,
}

#[cfg(test)]
mod tests {
    use super::super::histogram::APPLY;
    use super::*;

    #[test]
    fn each_kind_has_its_own_place() {
        let all = ByKind::new(&APPLY);
        for (count, kind) in (1_u64..).zip(Kind::ALL) {
            (0..count).for_each(|_| all.of(*kind, true).unwrap().observe(1));
            all.of(*kind, false).unwrap().observe(1);
        }
        let read = all.read();
        assert_eq!(read.len(), Kind::ALL.len() * 2);
        for (count, kind) in (1_u64..).zip(Kind::ALL) {
            let mut of = read.iter().filter(|by| by.kind == *kind);
            assert_eq!(of.next().unwrap().durations.count(), count);
            assert_eq!(of.next().unwrap().durations.count(), 1);
        }
    }
}
