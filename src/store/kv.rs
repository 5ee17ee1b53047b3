//! Records and events as they travel: encoded once, shared by answers, watchers and the log.

use std::sync::Arc;

use bytes::Bytes;

use crate::etcd::record::KeyValue;
use crate::etcd::revision::{Revision, RevisionKey};
use crate::format;

/// A record as etcd encodes it (`mvccpb.KeyValue`): the bytes that stand in bucket `key`, and in
/// answers on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kv(pub(crate) Bytes);

impl Kv {
    /// Encodes a record.
    #[must_use]
    pub fn encode(record: &KeyValue<'_>) -> Self {
        // Room for exactly these bytes: bytes that fill their vector are shared without a copy.
        let numbers = [record.create_revision, record.mod_revision, record.version, record.lease];
        let size = bytes_size(record.key).saturating_add(bytes_size(record.value));
        let size = numbers.into_iter().map(number_size).fold(size, usize::saturating_add);
        let mut bytes = Vec::with_capacity(size);
        record.encode(&mut bytes);
        Self(bytes.into())
    }

    /// Returns the encoded record.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Reads the record. Bytes in a [`Kv`] were decoded before they were kept, so that what cannot
    /// be read is the empty record.
    #[must_use]
    pub fn record(&self) -> KeyValue<'_> {
        KeyValue::decode(&self.0).unwrap_or_else(|_| KeyValue::tombstone(&[]))
    }

    /// Returns the key, sharing the record's bytes.
    fn key(&self) -> Bytes {
        self.0.slice_ref(self.record().key)
    }
}

/// Bytes of a field of bytes; its number is below 16.
fn bytes_size(bytes: &[u8]) -> usize {
    if bytes.is_empty() {
        return 0;
    }
    let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    bytes.len().saturating_add(varint_size(length)).saturating_add(1)
}

/// Bytes of a field with a number; its own number is below 16.
fn number_size(number: i64) -> usize {
    if number == 0 { 0 } else { varint_size(number.cast_unsigned()).saturating_add(1) }
}

fn varint_size(number: u64) -> usize {
    let bits = 64_u32.saturating_sub((number | 1).leading_zeros());
    usize::try_from(bits.div_ceil(7)).unwrap_or(10)
}

/// One change of one key, as watchers see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Revision of the change.
    pub revision: Revision,
    /// Whether the key was deleted.
    pub is_delete: bool,
    /// The new record; of a delete only key and modification revision.
    pub kv: Kv,
    /// The key, a part of `kv`.
    pub key: Bytes,
}

impl Event {
    /// Makes the event of a put.
    #[must_use]
    pub fn put(revision: Revision, record: &KeyValue<'_>) -> Self {
        let kv = Kv::encode(record);
        // The key is field 1, and so at the beginning.
        let end = bytes_size(record.key);
        let key = kv.0.slice(end.saturating_sub(record.key.len())..end);
        Self { revision, is_delete: false, kv, key }
    }

    /// Makes the event of a delete.
    #[must_use]
    pub fn delete(revision: Revision, key: &[u8]) -> Self {
        let record = KeyValue { key, mod_revision: revision.main, ..KeyValue::default() };
        Self { is_delete: true, ..Self::put(revision, &record) }
    }

    /// Makes the event that a row of bucket `key` tells of.
    ///
    /// # Errors
    /// The value is no record.
    pub fn decode(row: RevisionKey, value: &[u8]) -> Result<Self, format::Error> {
        let record = KeyValue::decode(value)?;
        if row.is_tombstone {
            return Ok(Self::delete(row.revision, record.key));
        }
        let kv = Kv(Bytes::copy_from_slice(value));
        let key = kv.key();
        Ok(Self { revision: row.revision, is_delete: false, kv, key })
    }

    /// Returns key and value of the row of bucket `key` that tells of it.
    #[must_use]
    pub fn row(&self) -> (Bytes, Bytes) {
        if self.is_delete {
            let row = self.kv.0.slice(..bytes_size(&self.key).min(self.kv.0.len()));
            return (Bytes::copy_from_slice(&self.revision.encode_tombstone()), row);
        }
        (Bytes::copy_from_slice(&self.revision.encode()), self.kv.0.clone())
    }
}

/// All changes of one main revision, in order of their sub revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The main revision.
    pub revision: i64,
    /// At least one.
    pub events: Arc<[Event]>,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_event_tells_of_its_row(
            key in proptest::collection::vec(any::<u8>(), 1..200),
            value in proptest::collection::vec(any::<u8>(), 0..200),
            lease in any::<i64>(),
            (main, version) in (2..i64::MAX, 1..i64::MAX),
        ) {
            let revision = Revision::new(main, 3);
            let record = KeyValue {
                key: &key,
                create_revision: 2,
                mod_revision: main,
                version,
                value: &value,
                lease,
                unknown_field: None,
            };
            let put = Event::put(revision, &record);
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            prop_assert_eq!(&put.kv.0[..], &bytes[..]);
            prop_assert_eq!(&put.key[..], &key[..]);
            let (row, value) = put.row();
            let row = RevisionKey::decode(&row).unwrap();
            prop_assert_eq!(Event::decode(row, &value).unwrap(), put);

            let delete = Event::delete(revision, &key);
            let record = delete.kv.record();
            prop_assert_eq!((record.key, record.mod_revision, record.version), (&key[..], main, 0));
            let (row, value) = delete.row();
            prop_assert_eq!(KeyValue::decode(&value).unwrap(), KeyValue::tombstone(&key));
            let row = RevisionKey::decode(&row).unwrap();
            prop_assert!(row.is_tombstone);
            prop_assert_eq!(Event::decode(row, &value).unwrap(), delete);
        }
    }
}
