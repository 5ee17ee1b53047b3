//! Records and events as they travel: encoded once, shared by answers, watchers and the log.

use std::sync::Arc;

use bytes::Bytes;

use crate::etcd::record::KeyValue;
use crate::etcd::revision::Revision;

/// A record as etcd encodes it (`mvccpb.KeyValue`): the bytes that stand in bucket `key`, and in
/// answers on the wire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kv(pub Bytes);

impl Kv {
    /// Encodes a record.
    #[must_use]
    pub fn encode(record: &KeyValue<'_>) -> Self {
        let mut bytes = Vec::with_capacity(
            record.key.len().saturating_add(record.value.len()).saturating_add(40),
        );
        record.encode(&mut bytes);
        Self(bytes.into())
    }

    /// Reads the record. Bytes in a [`Kv`] were decoded before they were kept, so that what cannot
    /// be read is the empty record.
    #[must_use]
    pub fn record(&self) -> KeyValue<'_> {
        KeyValue::decode(&self.0).unwrap_or_else(|_| KeyValue::tombstone(&[]))
    }
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

/// All changes of one main revision, in order of their sub revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Commit {
    /// The main revision.
    pub revision: i64,
    /// At least one.
    pub events: Arc<[Event]>,
}
