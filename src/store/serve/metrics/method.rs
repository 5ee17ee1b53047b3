//! The methods that are served, as gRPC's figures name them.

use crate::store::open::Compat;

/// Who sends how many messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store::serve) enum Shape {
    Unary,
    ServerStream,
    BidiStream,
}

impl Shape {
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::ServerStream => "server_stream",
            Self::BidiStream => "bidi_stream",
        }
    }
}

macro_rules! methods {
    ($($service:literal: { $($variant:ident = $name:literal $shape:ident,)* })*) => {
        /// A method.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub(in crate::store::serve) enum Method {
            $($($variant,)*)*
        }

        impl Method {
            /// All methods, in order.
            pub(super) const ALL: &[Self] = &[$($(Self::$variant,)*)*];

            /// Finds the method of a request's path.
            pub(in crate::store::serve) fn of_path(path: &str) -> Option<Self> {
                match path {
                    $($(concat!("/", $service, "/", $name) => Some(Self::$variant),)*)*
                    _ => None,
                }
            }

            pub(in crate::store::serve) fn service(self) -> &'static str {
                match self {
                    $($(Self::$variant)|* => $service,)*
                }
            }

            pub(in crate::store::serve) fn name(self) -> &'static str {
                match self {
                    $($(Self::$variant => $name,)*)*
                }
            }

            pub(in crate::store::serve) fn shape(self) -> Shape {
                match self {
                    $($(Self::$variant => Shape::$shape,)*)*
                }
            }
        }
    };
}

methods! {
    "etcdserverpb.KV": {
        Range = "Range" Unary,
        Txn = "Txn" Unary,
        Put = "Put" Unary,
        DeleteRange = "DeleteRange" Unary,
        Compact = "Compact" Unary,
        RangeStream = "RangeStream" ServerStream,
    }
    "etcdserverpb.Watch": {
        Watch = "Watch" BidiStream,
    }
    "etcdserverpb.Lease": {
        LeaseGrant = "LeaseGrant" Unary,
        LeaseKeepAlive = "LeaseKeepAlive" BidiStream,
        LeaseRevoke = "LeaseRevoke" Unary,
        LeaseTimeToLive = "LeaseTimeToLive" Unary,
        LeaseLeases = "LeaseLeases" Unary,
    }
    "etcdserverpb.Maintenance": {
        Status = "Status" Unary,
        Alarm = "Alarm" Unary,
        Defragment = "Defragment" Unary,
        Downgrade = "Downgrade" Unary,
        Hash = "Hash" Unary,
        HashKv = "HashKV" Unary,
        MoveLeader = "MoveLeader" Unary,
        Snapshot = "Snapshot" ServerStream,
    }
    "etcdserverpb.Cluster": {
        MemberAdd = "MemberAdd" Unary,
        MemberList = "MemberList" Unary,
        MemberPromote = "MemberPromote" Unary,
        MemberRemove = "MemberRemove" Unary,
        MemberUpdate = "MemberUpdate" Unary,
    }
    "etcdserverpb.Auth": {
        AuthDisable = "AuthDisable" Unary,
        AuthEnable = "AuthEnable" Unary,
        AuthStatus = "AuthStatus" Unary,
        Authenticate = "Authenticate" Unary,
        RoleAdd = "RoleAdd" Unary,
        RoleDelete = "RoleDelete" Unary,
        RoleGet = "RoleGet" Unary,
        RoleGrantPermission = "RoleGrantPermission" Unary,
        RoleList = "RoleList" Unary,
        RoleRevokePermission = "RoleRevokePermission" Unary,
        UserAdd = "UserAdd" Unary,
        UserChangePassword = "UserChangePassword" Unary,
        UserDelete = "UserDelete" Unary,
        UserGet = "UserGet" Unary,
        UserGrantRole = "UserGrantRole" Unary,
        UserList = "UserList" Unary,
        UserRevokeRole = "UserRevokeRole" Unary,
    }
    "grpc.health.v1.Health": {
        HealthCheck = "Check" Unary,
        HealthList = "List" Unary,
        HealthWatch = "Watch" ServerStream,
    }
    "v3lockpb.Lock": {
        Lock = "Lock" Unary,
        Unlock = "Unlock" Unary,
    }
    "v3electionpb.Election": {
        Campaign = "Campaign" Unary,
        Proclaim = "Proclaim" Unary,
        Leader = "Leader" Unary,
        Observe = "Observe" ServerStream,
        Resign = "Resign" Unary,
    }
}

impl Method {
    /// How many there are.
    pub(super) const COUNT: usize = Self::ALL.len();

    /// Tells whether it is shown before it was ever called: etcd adds locks and elections after it
    /// has prepared its figures.
    pub(super) fn is_shown_at_once(self, compat: Compat) -> bool {
        match self {
            Self::RangeStream => compat >= Compat::V3_7,
            Self::Lock | Self::Unlock => false,
            Self::Campaign | Self::Proclaim | Self::Leader | Self::Observe | Self::Resign => false,
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_methods() {
        for (place, method) in Method::ALL.iter().enumerate() {
            assert_eq!(usize::from(*method as u8), place);
            let path = format!("/{}/{}", method.service(), method.name());
            assert_eq!(Method::of_path(&path), Some(*method));
        }
        assert_eq!(Method::of_path("/grpc.health.v1.Health/Watch"), Some(Method::HealthWatch));
        for none in ["", "/", "Range", "/etcdserverpb.KV/Nothing", "/etcdserverpb.KV/Range/"] {
            assert_eq!(Method::of_path(none), None);
        }
        let shown = |compat| Method::ALL.iter().filter(|m| m.is_shown_at_once(compat)).count();
        assert_eq!((shown(Compat::V3_6), shown(Compat::V3_7)), (44, 45));
    }
}
