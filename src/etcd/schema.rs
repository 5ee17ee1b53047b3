//! Names of etcd's buckets and rows, and which storage versions are known.
//!
//! What is not named here is unknown: the survey reports it and a restore refuses it.
//!
//! | bucket | keys | value |
//! |---|---|---|
//! | `alarm` | protobuf AlarmMember | empty |
//! | `auth` | `authEnabled`, `authRevision` | one byte; u64 big-endian |
//! | `authRoles`, `authUsers` | name | protobuf Role, User |
//! | `cluster` | `clusterVersion`, `downgrade` | `3.6.0`; JSON |
//! | `key` | revision, 17 or 18 bytes | protobuf KeyValue |
//! | `lease` | i64 big-endian | protobuf Lease |
//! | `members`, `members_removed` | id in hex | JSON; `removed` |
//! | `meta` | the `META_*` names below | see [`super::rows`] |
//!
//! Source: etcd `server/storage/schema/bucket.go`, 3.5.35, 3.6.16 and 3.7.3; 3.4.45's `mvcc`.

use std::fmt;

/// Bucket of active alarms.
pub const ALARM: &[u8] = b"alarm";
/// Bucket of auth settings.
pub const AUTH: &[u8] = b"auth";
/// Bucket of roles.
pub const AUTH_ROLES: &[u8] = b"authRoles";
/// Bucket of users.
pub const AUTH_USERS: &[u8] = b"authUsers";
/// Bucket of cluster-wide versions.
pub const CLUSTER: &[u8] = b"cluster";
/// Bucket of all records of all keys, by revision.
pub const KEY: &[u8] = b"key";
/// Bucket of leases.
pub const LEASE: &[u8] = b"lease";
/// Bucket of members.
pub const MEMBERS: &[u8] = b"members";
/// Bucket of the ids of members that were removed.
pub const MEMBERS_REMOVED: &[u8] = b"members_removed";
/// Bucket of the storage's own state.
pub const META: &[u8] = b"meta";

/// Raft index of the last entry that was applied, u64 big-endian.
pub const META_CONSISTENT_INDEX: &[u8] = b"consistent_index";
/// Raft term of that entry, u64 big-endian; since 3.5.
pub const META_TERM: &[u8] = b"term";
/// Raft configuration as JSON, a hint that restore leaves stale; since 3.5.
pub const META_CONF_STATE: &[u8] = b"confState";
/// Storage version, such as `3.6.0`; since 3.6.
pub const META_STORAGE_VERSION: &[u8] = b"storageVersion";
/// Revision of the last compaction that began, 17 bytes.
pub const META_SCHEDULED_COMPACT: &[u8] = b"scheduledCompactRev";
/// Revision of the last compaction that ended, 17 bytes.
pub const META_FINISHED_COMPACT: &[u8] = b"finishedCompactRev";
/// Version that all members of the cluster understand, such as `3.6.0`.
pub const CLUSTER_VERSION: &[u8] = b"clusterVersion";
/// State of an online downgrade, JSON; since 3.5.
pub const CLUSTER_DOWNGRADE: &[u8] = b"downgrade";
/// Whether auth is on: one byte, 0 or 1.
pub const AUTH_ENABLED: &[u8] = b"authEnabled";
/// Number of auth changes, u64 big-endian.
pub const AUTH_REVISION: &[u8] = b"authRevision";
/// Value of every row of [`MEMBERS_REMOVED`].
pub const REMOVED: &[u8] = b"removed";

/// Every bucket that etcd 3.4 to 3.7 creates at its first start, in byte order.
pub const BUCKETS: [&[u8]; 10] =
    [ALARM, AUTH, AUTH_ROLES, AUTH_USERS, CLUSTER, KEY, LEASE, MEMBERS, MEMBERS_REMOVED, META];

/// Newest storage version whose rows are all known here.
pub const STORAGE_VERSION_MAX: Version = Version { major: 3, minor: 7, patch: 0 };

/// Prefix of every key of a Kubernetes API server with its default `--etcd-prefix`.
pub const KUBERNETES_PREFIX: &[u8] = b"/registry/";

/// Tells whether a bucket of this name is etcd's.
#[must_use]
pub fn is_known_bucket(name: &[u8]) -> bool {
    BUCKETS.contains(&name)
}

/// Tells whether a user key belongs to a Kubernetes API server.
///
/// One such key makes the whole store Kubernetes': a store that is shared needs the care too.
#[must_use]
pub fn is_kubernetes_key(key: &[u8]) -> bool {
    key.starts_with(KUBERNETES_PREFIX)
}

/// A version of etcd's storage or cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 3, so far.
    pub major: u32,
    /// What storage and protocol changes go by.
    pub minor: u32,
    /// Zero in every version that etcd stores.
    pub patch: u32,
}

impl Version {
    /// Reads `major.minor.patch`; a pre-release or build suffix is read past.
    ///
    /// `None` for anything else, also for a number with a sign, a leading zero or above 2^32 - 1.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let core = text.split(['-', '+']).next()?;
        let mut parts = core.split('.');
        let mut part = || {
            let part = parts.next()?;
            let plain = part.bytes().all(|b| b.is_ascii_digit());
            let canonical = part == "0" || !part.starts_with('0');
            if plain && canonical { part.parse::<u32>().ok() } else { None }
        };
        let version = Self { major: part()?, minor: part()?, patch: part()? };
        parts.next().is_none().then_some(version)
    }

    /// Tells whether rows of this storage version are all known here.
    #[must_use]
    pub fn is_known_storage(self) -> bool {
        (self.major, self.minor) <= (STORAGE_VERSION_MAX.major, STORAGE_VERSION_MAX.minor)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_byte_order() {
        assert!(BUCKETS.is_sorted());
        assert!(is_known_bucket(b"members_removed"));
        assert!(!is_known_bucket(b"member"));
    }

    #[test]
    fn versions_parse_as_etcd_writes_them() {
        let version = Version::parse(b"3.6.0").unwrap();
        assert_eq!(version, Version { major: 3, minor: 6, patch: 0 });
        assert_eq!(version.to_string(), "3.6.0");
        assert_eq!(Version::parse(b"3.7.0-alpha.1").unwrap().minor, 7);
        for bad in ["", "3.6", "3.6.0.1", "3..0", "+3.6.0", "3.06.0", "v3.6.0", "3.6.99999999999"] {
            assert_eq!(Version::parse(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(Version::parse(b"\xff.1.1"), None);
    }

    #[test]
    fn storage_is_known_up_to_3_7() {
        assert!(Version::parse(b"3.7.0").unwrap().is_known_storage());
        assert!(!Version::parse(b"3.8.0").unwrap().is_known_storage());
        assert!(!Version::parse(b"4.0.0").unwrap().is_known_storage());
    }

    #[test]
    fn kubernetes_is_below_registry() {
        assert!(is_kubernetes_key(b"/registry/pods/default/web"));
        assert!(!is_kubernetes_key(b"/registry"));
        assert!(!is_kubernetes_key(b"a/registry/"));
    }
}
