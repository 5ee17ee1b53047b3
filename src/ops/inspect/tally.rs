//! The visitor behind an inspection: counts rows, and knows which records a compaction would free.
//!
//! Records come by revision, so the record of a key that is not followed by another one, and is no
//! tombstone, is the living one; everything else is history.
//!
//! Memory: some 23 bytes a key ([`super::keys`]), [`super::groups::GROUPS_MAX`] groups, as many
//! buckets, and the top lists; names that are kept are cut at 512 bytes.

use serde::Serialize;

use super::groups::{Depth, GROUPS_MAX, Group, Groups};
use super::keys::{Keys, Row, Step};
use super::packing::Packing;
use super::top::Top;
use crate::bolt::{At, Visit};
use crate::etcd::record::KeyValue;
use crate::etcd::revision::RevisionKey;
use crate::etcd::{rows, schema};
use crate::format::finding::{Code, Finding, Findings, Place, bytes_text, short_key, short_path};
use crate::format::u64_of;

/// Sums over all rows, in bytes unless they say otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// Rows of all buckets, inline ones included.
    pub(super) rows: u64,
    /// Buckets.
    pub(super) buckets: u64,
    pub(super) bucket_name_bytes: u64,
    pub(super) live_rows: u64,
    pub(super) live_bytes: u64,
    pub(super) live_key_bytes: u64,
    pub(super) live_overhead_bytes: u64,
    pub(super) history_rows: u64,
    pub(super) history_bytes: u64,
    pub(super) other_record_bytes: u64,
    pub(super) other_bucket_bytes: u64,
}

/// A value that takes much room.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LargeValue {
    /// The key.
    pub key: String,
    /// Bytes of the value.
    pub value_bytes: u64,
    /// Revision of the record.
    pub revision: i64,
    /// The record is its key's living one.
    pub is_live: bool,
}

/// A key with many surviving records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RewrittenKey {
    /// The key.
    pub key: String,
    /// Its surviving records, the living one included.
    pub revisions: u64,
    /// Bytes of those that a compaction would free.
    pub history_bytes: u64,
}

/// A top-level bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// Its name; `null` for all that are beyond the most that are kept apart.
    pub name: Option<String>,
    /// Rows, those of buckets inside it included.
    pub rows: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
}

/// Tombstones of the newest transaction: a compaction at it keeps them.
#[derive(Clone, Copy, Debug, Default)]
struct Newest {
    main: i64,
    tombstone_rows: u64,
    tombstone_bytes: u64,
}

#[derive(Debug)]
pub(super) struct Tally {
    pub(super) sums: Sums,
    pub(super) findings: Findings,
    pub(super) is_kubernetes: bool,
    pub(super) compact_revision: Option<i64>,
    keys: Keys,
    groups: Groups,
    values: Top<LargeValue>,
    rewritten: Top<RewrittenKey>,
    buckets: Vec<Bucket>,
    other_bucket: Bucket,
    /// The open bucket is not kept apart.
    is_beyond: bool,
    /// Top-level bucket that rows are in.
    bucket: Vec<u8>,
    newest: Newest,
    packing: Packing,
}

/// What came out.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) sums: Sums,
    pub(super) findings: Findings,
    pub(super) is_kubernetes: bool,
    pub(super) revision: i64,
    pub(super) compact_revision: Option<i64>,
    pub(super) freeable_rows: u64,
    pub(super) freeable_bytes: u64,
    pub(super) groups: Vec<Group>,
    pub(super) values: Vec<LargeValue>,
    pub(super) rewritten: Vec<RewrittenKey>,
    pub(super) buckets: Vec<Bucket>,
    /// About what a file takes that holds these rows and nothing else.
    pub(super) packed_bytes: u64,
}

impl Tally {
    pub(super) fn new(depth: Depth, top: usize, page_bytes: u32) -> Self {
        Self {
            sums: Sums::default(),
            findings: Findings::default(),
            is_kubernetes: false,
            compact_revision: None,
            keys: Keys::default(),
            groups: Groups::new(depth),
            values: Top::new(top),
            rewritten: Top::new(top),
            buckets: Vec::new(),
            other_bucket: Bucket::default(),
            is_beyond: false,
            bucket: Vec::new(),
            newest: Newest::default(),
            packing: Packing::new(page_bytes),
        }
    }

    pub(super) fn finish(mut self) -> Counted {
        // A server starts at the highest of these, and can compact there.
        let revision = self.newest.main.max(self.compact_revision.unwrap_or(-1)).max(1);
        let kept = if revision == self.newest.main { self.newest } else { Newest::default() };
        self.buckets.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        if self.other_bucket.rows > 0 {
            self.buckets.push(self.other_bucket);
        }
        let mut rewritten = self.rewritten.into_sorted();
        rewritten.retain(|key| key.revisions > 1);
        Counted {
            sums: self.sums,
            findings: self.findings,
            is_kubernetes: self.is_kubernetes,
            revision,
            compact_revision: self.compact_revision,
            freeable_rows: self.sums.history_rows.saturating_sub(kept.tombstone_rows),
            freeable_bytes: self.sums.history_bytes.saturating_sub(kept.tombstone_bytes),
            groups: self.groups.into_sorted(),
            values: self.values.into_sorted(),
            rewritten,
            buckets: self.buckets,
            packed_bytes: self.packing.finish(),
        }
    }

    /// Where rows of the open bucket are counted; only damage makes a row outside of any.
    fn bucket_sums(&mut self, is_outside: bool) -> &mut Bucket {
        match self.buckets.last_mut() {
            Some(bucket) if !is_outside && !self.is_beyond => bucket,
            _ => &mut self.other_bucket,
        }
    }

    fn find(&mut self, code: Code, at: &At<'_>, key: &[u8], detail: String) {
        let place = Place {
            page: Some(at.page),
            offset: Some(at.offset),
            bucket: short_path(at.bucket),
            key: Some(short_key(key)),
            ..Place::default()
        };
        self.findings.push(Finding::new(code, place, detail));
    }

    /// Takes a row of bucket `key`; `false` where it is no record of a key.
    fn record(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) -> bool {
        let revision = match RevisionKey::decode(key) {
            Ok(revision) => revision,
            Err(error) => {
                self.find(Code::RevisionKey, at, key, error.to_string());
                return false;
            }
        };
        let main = revision.revision.main;
        if main > self.newest.main {
            self.newest = Newest { main, ..Newest::default() };
        }
        let record = match KeyValue::decode(value) {
            Ok(record) => record,
            Err(error) => {
                self.find(Code::RecordBytes, at, key, error.to_string());
                return false;
            }
        };
        if record.key.is_empty() {
            return false;
        }
        let bytes = u64_of(key.len()).saturating_add(u64_of(value.len()));
        let key_bytes = u64_of(record.key.len());
        let value_bytes = u64_of(record.value.len());
        let rest = bytes.saturating_sub(key_bytes).saturating_sub(value_bytes);
        // More is only what no etcd writes, fields that are not known; it counts as value.
        let overhead = u8::try_from(rest).unwrap_or(u8::MAX);
        let row = Row { bytes, overhead, is_tombstone: revision.is_tombstone };
        let step = self.keys.follow(record.key, row);
        self.is_kubernetes |= schema::is_kubernetes_key(record.key);
        self.count(record.key, row, step);
        self.rank(revision, &record, step);
        if revision.is_tombstone && main == self.newest.main {
            self.newest.tombstone_rows = self.newest.tombstone_rows.saturating_add(1);
            self.newest.tombstone_bytes = self.newest.tombstone_bytes.saturating_add(bytes);
        }
        true
    }

    /// Moves what the record replaces from the living to history, and counts the record.
    fn count(&mut self, key: &[u8], row: Row, step: Step) {
        let key_bytes = u64_of(key.len());
        let sums = &mut self.sums;
        let group = self.groups.of(key);
        group.revisions = group.revisions.saturating_add(1);
        let mut to_history = |bytes: u64| {
            add(&mut sums.history_rows, 1);
            add(&mut sums.history_bytes, bytes);
            add(&mut group.history_bytes, bytes);
        };
        if let Some(old) = step.replaced {
            to_history(old.bytes);
        }
        if row.is_tombstone {
            to_history(row.bytes);
        }
        if let Some(old) = step.replaced {
            take(&mut sums.live_rows, 1);
            take(&mut sums.live_bytes, old.bytes);
            take(&mut sums.live_key_bytes, key_bytes);
            take(&mut sums.live_overhead_bytes, u64::from(old.overhead));
            take(&mut group.keys, 1);
            take(&mut group.live_bytes, old.bytes);
        }
        if !row.is_tombstone {
            add(&mut sums.live_rows, 1);
            add(&mut sums.live_bytes, row.bytes);
            add(&mut sums.live_key_bytes, key_bytes);
            add(&mut sums.live_overhead_bytes, u64::from(row.overhead));
            add(&mut group.keys, 1);
            add(&mut group.live_bytes, row.bytes);
        }
    }

    fn rank(&mut self, at: RevisionKey, record: &KeyValue<'_>, step: Step) {
        let key = || bytes_text(record.key);
        if let Some(large) = self.values.get_mut(step.id) {
            large.is_live = false;
        }
        if !at.is_tombstone {
            let value_bytes = u64_of(record.value.len());
            let revision = at.revision.main;
            self.values.raise(step.id, value_bytes, || LargeValue {
                key: key(),
                value_bytes,
                revision,
                is_live: true,
            });
        }
        let Step { revisions, history_bytes, .. } = step;
        self.rewritten.raise(step.id, revisions, || RewrittenKey {
            key: key(),
            revisions,
            history_bytes,
        });
    }
}

fn add(sum: &mut u64, bytes: u64) {
    *sum = sum.saturating_add(bytes);
}

fn take(sum: &mut u64, bytes: u64) {
    *sum = sum.saturating_sub(bytes);
}

impl Visit for Tally {
    fn bucket(&mut self, at: &At<'_>, _: u64) {
        let Some(name) = at.bucket.last() else { return };
        add(&mut self.sums.buckets, 1);
        add(&mut self.sums.bucket_name_bytes, u64_of(name.len()));
        if at.bucket.len() > 1 {
            return;
        }
        self.bucket.clone_from(name);
        self.packing.bucket(name);
        self.is_beyond = self.buckets.len() >= GROUPS_MAX;
        if !self.is_beyond {
            self.buckets.push(Bucket { name: Some(bytes_text(name)), ..Bucket::default() });
        }
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        let bytes = u64_of(key.len()).saturating_add(u64_of(value.len()));
        add(&mut self.sums.rows, 1);
        self.packing.row(bytes, u64_of(key.len()));
        let sums = self.bucket_sums(at.bucket.is_empty());
        add(&mut sums.rows, 1);
        add(&mut sums.bytes, bytes);
        if self.bucket == schema::KEY && at.bucket.len() == 1 {
            if !self.record(at, key, value) {
                add(&mut self.sums.other_record_bytes, bytes);
            }
            return;
        }
        add(&mut self.sums.other_bucket_bytes, bytes);
        let compaction = [schema::META_FINISHED_COMPACT, schema::META_SCHEDULED_COMPACT];
        if self.bucket == schema::META && compaction.contains(&key) {
            let revision = rows::decode_compact_revision(value).ok();
            self.compact_revision = self.compact_revision.max(revision);
        }
    }
}
