//! Revisions, and the keys of bucket `key` that hold them.
//!
//! | offset | size | type | meaning |
//! |---|---|---|---|
//! | 0 | 8 | i64 big-endian | main: the transaction |
//! | 8 | 1 | `_` | |
//! | 9 | 8 | i64 big-endian | sub: the change within it, from 0 |
//! | 17 | 1 | `t` | only in the key of a tombstone |
//!
//! Keys sort as revisions do, a tombstone right after the place of its own revision.
//!
//! Source: etcd `mvcc.RevToBytes`, `BytesToBucketKey` and `BucketKeyToBytes`, 3.6.16 and 3.7.3.

use std::fmt;

use crate::format::{Error, array_at};

/// Length of the key of a put, in bytes.
pub const PUT_KEY_BYTES: usize = 17;
/// Length of the key of a tombstone, in bytes.
pub const TOMBSTONE_KEY_BYTES: usize = 18;

const SEPARATOR: u8 = b'_';
const TOMBSTONE_MARK: u8 = b't';

/// A revision of the store: a transaction, and a change within it.
///
/// Neither number is negative in anything that etcd writes. The first change of an empty store
/// has main 2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision {
    /// Number of the transaction.
    pub main: i64,
    /// Number of the change within it, from 0.
    pub sub: i64,
}

/// What a key of bucket `key` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RevisionKey {
    /// When the change was made.
    pub revision: Revision,
    /// Whether the change deleted the user's key.
    pub is_tombstone: bool,
}

impl Revision {
    /// Makes a revision.
    #[must_use]
    pub fn new(main: i64, sub: i64) -> Self {
        Self { main, sub }
    }

    /// Encodes the key of a put; the rows of the compaction revisions have the same shape.
    #[must_use]
    pub fn encode(self) -> [u8; PUT_KEY_BYTES] {
        let mut key = [SEPARATOR; PUT_KEY_BYTES];
        if let Some(main) = key.first_chunk_mut::<8>() {
            *main = self.main.to_be_bytes();
        }
        if let Some(sub) = key.last_chunk_mut::<8>() {
            *sub = self.sub.to_be_bytes();
        }
        key
    }

    /// Encodes the key of a tombstone.
    #[must_use]
    pub fn encode_tombstone(self) -> [u8; TOMBSTONE_KEY_BYTES] {
        let mut key = [TOMBSTONE_MARK; TOMBSTONE_KEY_BYTES];
        if let Some(put) = key.first_chunk_mut::<PUT_KEY_BYTES>() {
            *put = self.encode();
        }
        key
    }
}

impl RevisionKey {
    /// Reads a key of bucket `key`.
    ///
    /// # Errors
    ///
    /// Another length than 17 or 18 bytes, a wrong separator or mark, or a negative number.
    pub fn decode(key: &[u8]) -> Result<Self, Error> {
        let is_tombstone = match key.len() {
            PUT_KEY_BYTES => false,
            TOMBSTONE_KEY_BYTES => true,
            n => {
                return Err(Error::new(
                    n,
                    "a revision key of another length than 17 or 18, ending",
                ));
            }
        };
        if key.get(8) != Some(&SEPARATOR) {
            return Err(Error::new(8, "a revision key without `_`"));
        }
        if is_tombstone && key.get(17) != Some(&TOMBSTONE_MARK) {
            return Err(Error::new(17, "a revision key with an unknown mark"));
        }
        let number = |at| {
            array_at(key, at)
                .map(i64::from_be_bytes)
                .filter(|n| *n >= 0)
                .ok_or_else(|| Error::new(at, "a negative revision"))
        };
        Ok(Self { revision: Revision { main: number(0)?, sub: number(9)? }, is_tombstone })
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.main, self.sub)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_have_etcds_bytes() {
        let key = Revision::new(0x0102, 3).encode();
        assert_eq!(key, *b"\0\0\0\0\0\0\x01\x02_\0\0\0\0\0\0\0\x03");
        let tombstone = Revision::new(0x0102, 3).encode_tombstone();
        assert_eq!(tombstone[..17], key);
        assert_eq!(tombstone[17], b't');
    }

    #[test]
    fn what_is_no_revision_is_refused() {
        let good = Revision::new(5, 0).encode_tombstone();
        assert!(RevisionKey::decode(&good).unwrap().is_tombstone);
        assert_eq!(RevisionKey::decode(b"").unwrap_err().offset, 0);
        assert!(RevisionKey::decode(&good[..16]).is_err());
        let mut bad = good;
        bad[8] = b'-';
        assert_eq!(RevisionKey::decode(&bad).unwrap_err().offset, 8);
        bad = good;
        bad[17] = b'x';
        assert_eq!(RevisionKey::decode(&bad).unwrap_err().offset, 17);
        bad = good;
        bad[9] = 0x80;
        assert_eq!(RevisionKey::decode(&bad).unwrap_err().offset, 9);
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(key in proptest::collection::vec(any::<u8>(), 0..24)) {
            if let Ok(read) = RevisionKey::decode(&key) {
                let back = if read.is_tombstone {
                    read.revision.encode_tombstone().to_vec()
                } else {
                    read.revision.encode().to_vec()
                };
                prop_assert_eq!(back, key);
            }
        }

        #[test]
        fn keys_sort_as_revisions(
            a in (0..i64::MAX, 0..i64::MAX, any::<bool>()),
            b in (0..i64::MAX, 0..i64::MAX, any::<bool>()),
        ) {
            let encode = |(main, sub, is_tombstone): (i64, i64, bool)| {
                let revision = Revision { main, sub };
                let key = RevisionKey { revision, is_tombstone };
                let bytes = if is_tombstone {
                    revision.encode_tombstone().to_vec()
                } else {
                    revision.encode().to_vec()
                };
                (key, bytes)
            };
            let ((key_a, bytes_a), (key_b, bytes_b)) = (encode(a), encode(b));
            prop_assert_eq!(RevisionKey::decode(&bytes_a).unwrap(), key_a);
            prop_assert_eq!(key_a.cmp(&key_b), bytes_a.cmp(&bytes_b));
        }
    }
}
