//! Reads bucket `key` while its pages are checked: one pass over the file is enough.
//!
//! Of each record the walk's thread takes what the index wants; another thread puts that into the
//! index meanwhile, which takes about as long as the walk. A small bucket does without it.

use std::mem;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use super::load::bad;
use crate::bolt::{At, Visit};
use crate::etcd::apply::Latest;
use crate::etcd::record::KeyValue;
use crate::etcd::revision::{Revision, RevisionKey};
use crate::etcd::schema;
use crate::store::error::Error;
use crate::store::index::Index;

/// Records and bytes of keys that are handed over at once.
const BATCH_RECORDS: usize = if cfg!(test) { 8 } else { 2048 };
const BATCH_BYTES: usize = 256 << 10;
/// Batches that wait.
const BATCHES: usize = 4;

/// Greatest sub revision: far above what a request of any size changes.
const SUB_MAX: i64 = 1 << 31;

/// What bucket `key` of a database holds, as a walk shows it.
#[derive(Debug, Default)]
pub struct Keys {
    batch: Batch,
    last: Revision,
    /// What no etcd writes; nothing after it is looked at. Told when the state is loaded.
    fault: Option<Error>,
    indexer: Option<Indexer>,
}

/// Records for the index.
#[derive(Debug, Default)]
struct Batch {
    /// Their keys, one after another.
    text: Vec<u8>,
    records: Vec<Record>,
}

#[derive(Debug)]
struct Record {
    key_bytes: usize,
    is_tombstone: bool,
    latest: Latest,
}

#[derive(Debug)]
struct Indexer {
    batches: SyncSender<Batch>,
    thread: JoinHandle<Index>,
}

impl Keys {
    fn add(&mut self, key: &[u8], value: &[u8]) {
        if let Err(what) = self.read(key, value) {
            self.fault = Some(bad(schema::KEY, key, &what));
        }
        if self.batch.records.len() >= BATCH_RECORDS || self.batch.text.len() >= BATCH_BYTES {
            self.hand_over();
        }
    }

    fn read(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let row = RevisionKey::decode(key).map_err(|error| error.to_string())?;
        let record = KeyValue::decode(value).map_err(|error| error.to_string())?;
        let revision = row.revision;
        if revision < self.last {
            // The walk finds that too; until it says so, the index is not to be confused by it.
            return Err("its revision is below that of the row before it".into());
        }
        self.last = revision;
        if revision.sub > SUB_MAX {
            return Err("a sub revision that no request has".into());
        }
        if let Some(field) = record.unknown_field {
            return Err(format!("the record has field {field}, which no known etcd writes"));
        }
        if record.key.is_empty() {
            // The mark that a restore leaves; it stands for no key.
            return Ok(());
        }
        let KeyValue { key, version, create_revision, lease, .. } = record;
        if row.is_tombstone {
            if !record.is_key_only() {
                return Err("a tombstone with more than a key".into());
            }
        } else if record.mod_revision != revision.main {
            return Err(format!("the record says that its revision is {}", record.mod_revision));
        } else if version < 1 || create_revision < 1 || create_revision > revision.main {
            return Err(format!("a record of version {version}, created at {create_revision}"));
        }
        self.batch.text.extend_from_slice(key);
        self.batch.records.push(Record {
            key_bytes: key.len(),
            is_tombstone: row.is_tombstone,
            latest: Latest { create_revision, modified: revision, version, lease },
        });
        Ok(())
    }

    fn hand_over(&mut self) {
        let batch = mem::take(&mut self.batch);
        if self.indexer.is_none() {
            match Indexer::start() {
                Ok(indexer) => self.indexer = Some(indexer),
                Err(error) => self.fault = Some(error),
            }
        }
        if let Some(indexer) = &self.indexer {
            // The thread ends early by a panic only, which whoever joins it is told.
            let _ = indexer.batches.send(batch);
        }
    }

    /// Returns the index and the last main revision, 0 for none.
    pub(super) fn finish(self) -> Result<(Index, i64), Error> {
        self.fault.map_or(Ok(()), Err)?;
        let mut index = match self.indexer {
            None => Index::default(),
            Some(Indexer { batches, thread }) => {
                drop(batches);
                thread.join().map_err(|_| Error::Storage("the index cannot be made".into()))?
            }
        };
        self.batch.put_into(&mut index);
        Ok((index, self.last.main))
    }
}

impl Visit for Keys {
    fn bucket(&mut self, _: &At<'_>, _: u64) {}

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        let is_record = matches!(at.bucket, [name] if name == schema::KEY);
        if is_record && self.fault.is_none() {
            self.add(key, value);
        }
    }
}

impl Indexer {
    fn start() -> Result<Self, Error> {
        let (batches, received): (_, Receiver<Batch>) = sync_channel(BATCHES);
        let work = move || {
            let mut index = Index::default();
            received.into_iter().for_each(|batch| batch.put_into(&mut index));
            index
        };
        let thread = thread::Builder::new().name("store-index".into()).spawn(work);
        let failed = |error| Error::Storage(format!("a thread cannot be started: {error}"));
        Ok(Self { batches, thread: thread.map_err(failed)? })
    }
}

impl Batch {
    fn put_into(&self, index: &mut Index) {
        let mut text = self.text.as_slice();
        for record in &self.records {
            let (key, rest) = text.split_at_checked(record.key_bytes).unwrap_or((text, &[]));
            text = rest;
            if record.is_tombstone {
                index.delete(key, record.latest.modified);
            } else {
                index.put(key, record.latest);
            }
        }
    }
}
