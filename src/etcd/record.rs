//! Records: the values of bucket `key`.
//!
//! | field | type | meaning |
//! |---|---|---|
//! | 1 | bytes | the user's key |
//! | 2 | int64 | main revision of the put that created the key |
//! | 3 | int64 | main revision of this put |
//! | 4 | int64 | number of puts since the creation, from 1 |
//! | 5 | bytes | the value |
//! | 6 | int64 | lease id, 0 for none |
//!
//! A tombstone's record has field 1 only. A record of no bytes at all is the mark that a restore
//! with a bumped revision leaves: its key reads as empty, which no user's key can be.
//!
//! Source: etcd `mvccpb.KeyValue` and `mvcc`'s `put` and `delete`, 3.4.45 to 3.7.3.

use crate::format::{Error, pb};

/// A record, borrowed from the row that holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyValue<'a> {
    /// The user's key.
    pub key: &'a [u8],
    /// Main revision of the put that created the key; 0 in a tombstone.
    pub create_revision: i64,
    /// Main revision of this put; 0 in a tombstone.
    pub mod_revision: i64,
    /// Number of puts since the creation; 0 in a tombstone.
    pub version: i64,
    /// The user's value.
    pub value: &'a [u8],
    /// Lease that the key is attached to; 0 for none.
    pub lease: i64,
    /// The first field that no known etcd writes; what it holds is not kept here.
    pub unknown_field: Option<u32>,
}

impl<'a> KeyValue<'a> {
    /// Reads a record; of a field that stands twice the last one counts, as in etcd.
    ///
    /// # Errors
    ///
    /// Bytes that are no protobuf message, or a field of the wrong wire type.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Error> {
        let mut record = Self::default();
        for field in pb::fields(bytes) {
            let field = field?;
            match field.number {
                1 => record.key = field.bytes()?,
                2 => record.create_revision = field.int64()?,
                3 => record.mod_revision = field.int64()?,
                4 => record.version = field.int64()?,
                5 => record.value = field.bytes()?,
                6 => record.lease = field.int64()?,
                number => record.unknown_field = record.unknown_field.or(Some(number)),
            }
        }
        Ok(record)
    }

    /// Appends the record as etcd writes it: ascending fields, zeros left out.
    pub fn encode(&self, out: &mut Vec<u8>) {
        pb::put_bytes(out, 1, self.key);
        pb::put_i64(out, 2, self.create_revision);
        pb::put_i64(out, 3, self.mod_revision);
        pb::put_i64(out, 4, self.version);
        pb::put_bytes(out, 5, self.value);
        pb::put_i64(out, 6, self.lease);
    }

    /// Makes the record of a tombstone.
    #[must_use]
    pub fn tombstone(key: &'a [u8]) -> Self {
        Self { key, ..Self::default() }
    }

    /// Tells whether the record has a key and nothing else, as a tombstone's must.
    #[must_use]
    pub fn is_key_only(&self) -> bool {
        *self == Self::tombstone(self.key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encode(record: &KeyValue<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        record.encode(&mut out);
        out
    }

    /// The four rows of a published hash: foo=bar, foo=bar2, k2=v1, delete k2.
    #[test]
    fn records_have_the_bytes_that_etcd_hashes() {
        use crate::etcd::revision::Revision;
        let put = |key, create_revision, mod_revision, version, value| KeyValue {
            key,
            create_revision,
            mod_revision,
            version,
            value,
            ..KeyValue::default()
        };
        let rows: [(Vec<u8>, KeyValue<'_>); 4] = [
            (Revision::new(2, 0).encode().to_vec(), put(b"foo", 2, 2, 1, b"bar")),
            (Revision::new(3, 0).encode().to_vec(), put(b"foo", 2, 3, 2, b"bar2")),
            (Revision::new(4, 0).encode().to_vec(), put(b"k2", 4, 4, 1, b"v2")),
            (Revision::new(5, 0).encode_tombstone().to_vec(), KeyValue::tombstone(b"k2")),
        ];
        let mut crc = crc32c::crc32c(b"key");
        for (key, record) in &rows {
            crc = crc32c::crc32c_append(crc, key);
            crc = crc32c::crc32c_append(crc, &encode(record));
        }
        assert_eq!(crc, 736_073_141);
    }

    #[test]
    fn a_marker_and_a_tombstone_read() {
        let marker = KeyValue::decode(b"").unwrap();
        assert_eq!(marker, KeyValue::default());
        let tombstone = KeyValue::decode(b"\x0a\x02k2").unwrap();
        assert!(tombstone.is_key_only());
        assert!(!KeyValue { lease: 1, ..tombstone }.is_key_only());
    }

    #[test]
    fn unknown_fields_are_named() {
        let record = KeyValue::decode(b"\x0a\x01k\x38\x01\x40\x01").unwrap();
        assert_eq!(record.unknown_field, Some(7));
        assert!(!record.is_key_only());
    }

    #[test]
    fn a_wrong_type_is_refused() {
        assert!(KeyValue::decode(b"\x08\x01").is_err());
        assert!(KeyValue::decode(b"\x12\x01a").is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = KeyValue::decode(&bytes).is_ok();
        }

        #[test]
        fn what_is_written_is_read(
            key in proptest::collection::vec(any::<u8>(), 0..20),
            value in proptest::collection::vec(any::<u8>(), 0..20),
            numbers in any::<[i64; 4]>(),
        ) {
            let [create_revision, mod_revision, version, lease] = numbers;
            let record = KeyValue {
                key: &key,
                create_revision,
                mod_revision,
                version,
                value: &value,
                lease,
                unknown_field: None,
            };
            let bytes = encode(&record);
            prop_assert_eq!(KeyValue::decode(&bytes).unwrap(), record);
        }
    }
}
