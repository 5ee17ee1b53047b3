//! Rows of the small buckets: leases, alarms, users, roles, versions and the storage's own state.
//!
//! Every function is total; an error says what is wrong, and where in the bytes.
//!
//! | row | fields |
//! |---|---|
//! | Lease | 1 id, 2 TTL granted in seconds, 3 TTL that remained at a checkpoint, in seconds |
//! | AlarmMember (the row's *key*) | 1 member id, 2 alarm |
//! | User | 1 name, 2 password hash, 3 role names, 4 options {1 no password} |
//! | Role | 1 name, 2 permissions {1 type, 2 key, 3 range end} |
//!
//! Source: etcd `leasepb`, `etcdserverpb.AlarmMember`, `authpb`, `storage/schema`; 3.4 to 3.7.3.

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::members::MemberId;
use super::revision::RevisionKey;
use crate::format::{Error, array_at, pb};

/// A lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// Identity, the row's key too.
    pub id: i64,
    /// Time to live that was granted, in seconds.
    pub ttl_s: i64,
    /// Time to live that remained at the last checkpoint, in seconds; 0 when there was none.
    pub remaining_ttl_s: i64,
    /// The first field that no known etcd writes.
    pub unknown_field: Option<u32>,
}

impl Lease {
    /// Reads a row of bucket `lease`.
    ///
    /// # Errors
    ///
    /// A key that is not 8 bytes, a value that is no protobuf message, or another id in it.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, Error> {
        let key_id = <[u8; 8]>::try_from(key)
            .map(i64::from_be_bytes)
            .map_err(|_| Error::new(0, "a lease key that is not 8 bytes long"))?;
        let mut lease = Self::default();
        for field in pb::fields(value) {
            let field = field?;
            match field.number {
                1 => lease.id = field.int64()?,
                2 => lease.ttl_s = field.int64()?,
                3 => lease.remaining_ttl_s = field.int64()?,
                number => lease.unknown_field = lease.unknown_field.or(Some(number)),
            }
        }
        if lease.id == key_id {
            Ok(lease)
        } else {
            Err(Error::new(0, "a lease whose id is not that of its key"))
        }
    }
}

/// What an alarm is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AlarmKind {
    /// The database reached its quota.
    NoSpace,
    /// The members were found to hold different data.
    Corrupt,
    /// Something that no known etcd raises.
    Other(u64),
}

impl AlarmKind {
    /// Returns etcd's name of the alarm; the number for an unknown one.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::NoSpace => "NOSPACE".into(),
            Self::Corrupt => "CORRUPT".into(),
            Self::Other(number) => number.to_string(),
        }
    }
}

/// Most roles of a user, or permissions of a role, that are kept; further ones are only checked.
pub const ROW_ITEMS_MAX: usize = 10_000;

/// An alarm that stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alarm {
    /// The member that raised it.
    pub member_id: MemberId,
    /// What it is about.
    pub kind: AlarmKind,
    /// The row's key as it stands there: the alarm itself, not always in canonical form.
    pub row_key: Vec<u8>,
    /// The first field that no known etcd writes.
    pub unknown_field: Option<u32>,
}

impl Alarm {
    /// Reads a row of bucket `alarm`.
    ///
    /// # Errors
    ///
    /// A key that is no protobuf message, or a value that is not empty.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, Error> {
        let (mut member, mut kind, mut unknown_field) = (0, 0, None);
        for field in pb::fields(key) {
            let field = field?;
            match field.number {
                1 => member = field.varint()?,
                2 => kind = field.varint()?,
                number => unknown_field = unknown_field.or(Some(number)),
            }
        }
        if !value.is_empty() {
            return Err(Error::new(0, "an alarm row with a value"));
        }
        let kind = match kind {
            1 => AlarmKind::NoSpace,
            2 => AlarmKind::Corrupt,
            other => AlarmKind::Other(other),
        };
        Ok(Self { member_id: MemberId(member), kind, row_key: key.to_vec(), unknown_field })
    }
}

/// A user, without the password hash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// Name, the row's key too.
    pub name: String,
    /// Names of the roles.
    pub roles: Vec<String>,
    /// Whether there is a password hash.
    pub has_password: bool,
    /// Whether the user can only log in by certificate.
    pub no_password: bool,
    /// The first field that no known etcd writes, at any level.
    pub unknown_field: Option<u32>,
}

impl User {
    /// Reads a row of bucket `authUsers`.
    ///
    /// # Errors
    ///
    /// A value that is no protobuf message, or another name in it than the key.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, Error> {
        let mut user = Self::default();
        let mut name = &[][..];
        for field in pb::fields(value) {
            let field = field?;
            match field.number {
                1 => name = field.bytes()?,
                2 => user.has_password = !field.bytes()?.is_empty(),
                3 => {
                    let role = field.bytes()?;
                    if user.roles.len() < ROW_ITEMS_MAX {
                        user.roles.push(text(role));
                    }
                }
                4 => {
                    for option in pb::fields(field.bytes()?) {
                        let option = option?;
                        match option.number {
                            1 => user.no_password = option.boolean()?,
                            n => user.unknown_field = user.unknown_field.or(Some(n)),
                        }
                    }
                }
                n => user.unknown_field = user.unknown_field.or(Some(n)),
            }
        }
        user.name = text(name);
        if name == key { Ok(user) } else { Err(Error::new(0, "a user whose name is not the key")) }
    }
}

/// What a role may do with a range of keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Permission {
    /// 0 read, 1 write, 2 both.
    pub kind: u64,
    /// First key.
    pub key: Vec<u8>,
    /// End of the range; empty for the one key, one zero byte for all keys from it on.
    pub range_end: Vec<u8>,
}

/// A role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Role {
    /// Name, the row's key too.
    pub name: String,
    /// What it allows.
    pub permissions: Vec<Permission>,
    /// The first field that no known etcd writes, at any level.
    pub unknown_field: Option<u32>,
}

impl Role {
    /// Reads a row of bucket `authRoles`.
    ///
    /// # Errors
    ///
    /// A value that is no protobuf message, or another name in it than the key.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, Error> {
        let mut role = Self::default();
        let mut name = &[][..];
        for field in pb::fields(value) {
            let field = field?;
            match field.number {
                1 => name = field.bytes()?,
                2 => {
                    let permission = role.decode_permission(field.bytes()?)?;
                    if role.permissions.len() < ROW_ITEMS_MAX {
                        role.permissions.push(permission);
                    }
                }
                n => role.unknown_field = role.unknown_field.or(Some(n)),
            }
        }
        role.name = text(name);
        if name == key { Ok(role) } else { Err(Error::new(0, "a role whose name is not the key")) }
    }

    fn decode_permission(&mut self, bytes: &[u8]) -> Result<Permission, Error> {
        let mut permission = Permission::default();
        for field in pb::fields(bytes) {
            let field = field?;
            match field.number {
                1 => permission.kind = field.varint()?,
                2 => permission.key = field.bytes()?.to_vec(),
                3 => permission.range_end = field.bytes()?.to_vec(),
                n => self.unknown_field = self.unknown_field.or(Some(n)),
            }
        }
        Ok(permission)
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Reads a row that is one u64, big-endian: consistent index, term, auth revision.
///
/// # Errors
///
/// Another length than 8 bytes.
pub fn decode_u64(value: &[u8]) -> Result<u64, Error> {
    match array_at(value, 0) {
        Some(number) if value.len() == 8 => Ok(u64::from_be_bytes(number)),
        _ => Err(Error::new(value.len(), "a number that is not 8 bytes long, ending")),
    }
}

/// Reads a row that is a compaction's revision; its sub is read past, as etcd does.
///
/// # Errors
///
/// Bytes that are not the key of a put.
pub fn decode_compact_revision(value: &[u8]) -> Result<i64, Error> {
    let key = RevisionKey::decode(value)?;
    if key.is_tombstone {
        return Err(Error::new(17, "a compaction revision with a tombstone's mark"));
    }
    Ok(key.revision.main)
}

/// Reads the row that says whether auth is on.
///
/// # Errors
///
/// Another length than 1 byte. Any byte but 1 means off, as in etcd.
pub fn decode_auth_enabled(value: &[u8]) -> Result<bool, Error> {
    match value {
        [byte] => Ok(*byte == 1),
        _ => Err(Error::new(value.len(), "an auth switch that is not 1 byte long, ending")),
    }
}

/// State of an online downgrade.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Downgrade {
    /// Cluster version to go to; empty when none is in progress.
    pub target_version: String,
    /// Whether it is in progress.
    pub enabled: bool,
    /// The first field that no known etcd writes.
    pub unknown_field: Option<String>,
}

#[derive(Deserialize)]
struct DowngradeShape {
    #[serde(rename = "target-version", default)]
    target_version: String,
    #[serde(default)]
    enabled: bool,
    #[serde(flatten)]
    others: std::collections::BTreeMap<String, IgnoredAny>,
}

impl Downgrade {
    /// Reads the row `downgrade` of bucket `cluster`.
    ///
    /// # Errors
    ///
    /// What is wrong, as a noun phrase: no JSON object of this shape.
    pub fn decode(value: &[u8]) -> Result<Self, String> {
        let shape: DowngradeShape =
            serde_json::from_slice(value).map_err(|error| format!("a downgrade row: {error}"))?;
        Ok(Self {
            target_version: shape.target_version,
            enabled: shape.enabled,
            unknown_field: shape.others.into_keys().next(),
        })
    }
}

/// Reads the row `confState` of bucket `meta`: names of its JSON fields that no known etcd writes.
///
/// The row is a hint that a restore leaves stale, so its content is not used anywhere.
///
/// # Errors
///
/// What is wrong, as a noun phrase: no JSON object.
pub fn decode_conf_state(value: &[u8]) -> Result<Vec<String>, String> {
    const KNOWN: [&str; 5] =
        ["voters", "learners", "voters_outgoing", "learners_next", "auto_leave"];
    let shape: std::collections::BTreeMap<String, IgnoredAny> =
        serde_json::from_slice(value).map_err(|error| format!("a confState row: {error}"))?;
    Ok(shape.into_keys().filter(|name| !KNOWN.contains(&name.as_str())).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn leases_read() {
        let key = 300_i64.to_be_bytes();
        let lease = Lease::decode(&key, &[0x08, 0xac, 0x02, 0x10, 0x3c]).unwrap();
        assert_eq!((lease.id, lease.ttl_s, lease.remaining_ttl_s), (300, 60, 0));
        assert!(Lease::decode(&key, &[0x08, 1]).is_err());
        assert!(Lease::decode(&key[1..], &[0x08, 0xac, 0x02]).is_err());
        assert_eq!(Lease::decode(&[0; 8], &[0x20, 1]).unwrap().unknown_field, Some(4));
    }

    #[test]
    fn alarms_read() {
        let alarm = Alarm::decode(&[0x08, 7, 0x10, 1], b"").unwrap();
        assert_eq!((alarm.member_id, alarm.kind), (MemberId(7), AlarmKind::NoSpace));
        assert_eq!(Alarm::decode(&[0x10, 2], b"").unwrap().kind.name(), "CORRUPT");
        assert_eq!(Alarm::decode(&[0x10, 3], b"").unwrap().kind, AlarmKind::Other(3));
        assert!(Alarm::decode(&[0x10, 2], b"x").is_err());
    }

    #[test]
    fn users_and_roles_read() {
        let user = User::decode(b"ann", b"\x0a\x03ann\x12\x02pw\x1a\x01r\x22\x02\x08\x01").unwrap();
        assert_eq!((user.name.as_str(), user.roles), ("ann", vec!["r".to_string()]));
        assert!(user.has_password && user.no_password);
        assert!(User::decode(b"bob", b"\x0a\x03ann\x22\x00").is_err());
        let role = Role::decode(b"r", b"\x0a\x01r\x12\x08\x08\x02\x12\x01a\x1a\x01b").unwrap();
        let want = Permission { kind: 2, key: b"a".to_vec(), range_end: b"b".to_vec() };
        assert_eq!(role.permissions, [want]);
        assert_eq!(
            Role::decode(b"r", b"\x0a\x01r\x12\x02\x20\x01").unwrap().unknown_field,
            Some(4)
        );
    }

    #[test]
    fn meta_rows_read() {
        assert_eq!(decode_u64(&[0, 0, 0, 0, 0, 0, 1, 0]).unwrap(), 256);
        assert!(decode_u64(&[0; 7]).is_err() && decode_u64(&[0; 9]).is_err());
        let row = crate::etcd::revision::Revision::new(59, 0);
        assert_eq!(decode_compact_revision(&row.encode()).unwrap(), 59);
        assert!(decode_compact_revision(&row.encode_tombstone()).is_err());
        assert!(decode_auth_enabled(&[1]).unwrap());
        assert!(!decode_auth_enabled(&[0]).unwrap());
        assert!(decode_auth_enabled(&[]).is_err());
        let down = Downgrade::decode(br#"{"target-version":"3.5.0","enabled":true}"#).unwrap();
        assert_eq!((down.target_version.as_str(), down.enabled), ("3.5.0", true));
        assert!(Downgrade::decode(b"[]").is_err());
        assert!(decode_conf_state(br#"{"voters":[1],"auto_leave":false}"#).unwrap().is_empty());
        assert_eq!(decode_conf_state(br#"{"x":1}"#).unwrap(), ["x"]);
    }

    proptest! {
        #[test]
        fn any_row_is_answered(
            key in proptest::collection::vec(any::<u8>(), 0..20),
            value in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let _ = (Lease::decode(&key, &value).is_ok(), Alarm::decode(&value, b"").is_ok());
            let _ = (User::decode(&key, &value).is_ok(), Role::decode(&key, &value).is_ok());
            let _ = (Downgrade::decode(&value).is_ok(), decode_conf_state(&value).is_ok());
            let _ = (decode_u64(&key).is_ok(), decode_compact_revision(&key).is_ok());
        }
    }
}
