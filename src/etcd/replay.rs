//! Replays the tail of a member's log over its database: which rows a server would change at its
//! next start, without a server and without changing anything.
//!
//! A database lies behind its log by what was not committed yet. Entries above its consistent
//! index are applied in order, on top of what it holds.
//!
//! 1. Entries are read twice: first to learn which keys, ranges and leases they touch, then to
//!    apply them. Between the two, one pass over bucket `key` finds the newest records of just
//!    those, without their values; a value is read when a condition or a put needs it.
//! 2. Memory grows with the tail and with the live keys that it touches, not with the database.
//! 3. An entry that is not understood ends the replay with an error that names it; so does a gap.
//! 4. Leases end only by entries that say so. What a leader had not logged yet lives on.
//!
//! Source: etcd `EtcdServer.applyEntries` and `mvcc.store.restore`, 3.6.16 and 3.7.3.

mod touch;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, ControlFlow};

use super::apply::{self, Effect, Latest, Outcome, Refusal, Rules, State, Unreadable, Warning};
use super::record::KeyValue;
use super::request::Span;
use super::revision::{Revision, RevisionKey};
use super::rows;
use super::schema::{self, Version};
use crate::bolt::cursor::Bucket;
use crate::bolt::overlay::Edits;
use crate::bolt::{self, File};
use crate::format::wal::Entry;
use touch::Touched;

/// Buckets that are kept in memory, since they are asked for with nearly every entry.
const CACHED: [&[u8]; 5] =
    [schema::ALARM, schema::AUTH, schema::AUTH_USERS, schema::CLUSTER, schema::MEMBERS];
/// Most rows that are kept of each.
const CACHED_ROWS_MAX: usize = 100_000;
/// Most passwords in the clear that are hashed: each takes a tenth of a second.
const PASSWORDS_MAX: u64 = 1000;
/// Most warnings that are kept.
const WARNINGS_MAX: usize = 1000;
/// Rows between two looks at whether to stop.
const STOP_ROWS: u32 = 4096;

/// Why a replay ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An entry could not be applied.
    #[error(transparent)]
    Apply(#[from] apply::Error),
    /// The database or the log cannot be read.
    #[error("{0}")]
    Unreadable(#[from] Unreadable),
    /// An entry is missing, or the two passes saw different ones.
    #[error("the log goes from entry {after} to entry {found}; what is between is missing")]
    Gap {
        /// The last entry before the gap, or the database's consistent index.
        after: u64,
        /// The entry that comes next.
        found: u64,
    },
    /// More passwords in the clear than would end in time.
    #[error(
        "entry {0} of the log has yet another password in the clear; {PASSWORDS_MAX} are hashed"
    )]
    Passwords(u64),
    /// The caller stopped it.
    #[error("stopped")]
    Stopped,
}

/// Shows entries to a visitor, in order; called twice, it shows the same ones.
///
/// Entries up to the database's consistent index are passed over.
pub type Feed<'f> = dyn FnMut(&mut Visit<'_>) -> Result<(), Error> + 'f;
/// Takes one entry; its error ends the feed.
pub type Visit<'v> = dyn FnMut(&Entry<'_>) -> Result<(), Error> + 'v;

/// What a replay found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Replayed {
    /// Rows to be changed in the database.
    pub edits: Edits,
    /// Consistent index of the database as it stands; 0 for none.
    pub from_index: u64,
    /// Index of the last entry applied; `from_index` where there was none.
    pub index: u64,
    /// Term of that entry; 0 where there was none.
    pub term: u64,
    /// Current revision of the database as it stands.
    pub from_revision: i64,
    /// Current revision afterwards.
    pub revision: i64,
    /// Entries applied, refused ones too.
    pub entries: u64,
    /// Entries that were done, by kind.
    pub done: BTreeMap<&'static str, u64>,
    /// Entries that were refused, by reason.
    pub refused: BTreeMap<Refusal, u64>,
    /// The first warnings, each with the index of its entry.
    pub warnings: Vec<(u64, Warning)>,
    /// The log was written by etcd 3.4, whose databases have neither term nor configuration.
    pub by_etcd_3_4: bool,
}

/// Reads a database's consistent index: that of the last entry applied to it; 0 for none.
///
/// # Errors
/// The database cannot be read.
pub fn consistent_index(file: &File) -> Result<u64, Unreadable> {
    number(file, schema::META_CONSISTENT_INDEX).map(Option::unwrap_or_default)
}

/// Replays what lies above the database's consistent index.
///
/// `rules` is what the server was started with; whether it was a 3.4 is found out here. `stopped`
/// is asked now and then.
///
/// # Errors
/// See [`Error`].
pub fn replay(
    file: &File,
    rules: &Rules,
    feed: &mut Feed<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<Replayed, Error> {
    let from_index = consistent_index(file)?;
    let mut touched = Touched::default();
    let mut last = from_index;
    feed(&mut |entry| {
        if let Some(entry) = next(entry, from_index, &mut last)? {
            touched.note(entry)?;
        }
        Ok(())
    })?;
    let mut replayed = Replayed { from_index, index: from_index, ..Replayed::default() };
    if last == from_index {
        replayed.from_revision = current_revision(file)?;
        replayed.revision = replayed.from_revision;
        return Ok(replayed);
    }

    let mut store = Store::load(file, &touched, stopped)?;
    replayed.by_etcd_3_4 = store.is_by_etcd_3_4(touched.version.as_deref())?;
    replayed.from_revision = store.revision;
    let rules = Rules { writes_conf_state: !replayed.by_etcd_3_4, ..*rules };
    let end = last;
    let (mut last, mut passwords) = (from_index, 0_u64);
    feed(&mut |entry| {
        let Some(entry) = next(entry, from_index, &mut last)? else { return Ok(()) };
        if stopped() {
            return Err(Error::Stopped);
        }
        let effect = apply::apply(&store, &rules, entry)?;
        if effect.warnings.contains(&Warning::PasswordHashed) {
            passwords = passwords.saturating_add(1);
            if passwords > PASSWORDS_MAX {
                return Err(Error::Passwords(entry.index));
            }
        }
        replayed.note(&effect);
        store.take(effect);
        Ok(())
    })?;
    if last != end {
        return Err(Error::Gap { after: last, found: end });
    }
    replayed.index = last;
    replayed.revision = store.revision;
    let term = (!replayed.by_etcd_3_4).then_some(replayed.term);
    for row in apply::applied_rows(replayed.index, term) {
        store.edits.plan(row.bucket, &row.key, row.value);
    }
    replayed.edits = store.edits;
    Ok(replayed)
}

/// Returns an entry that is to be applied; `None` for one that the database has.
fn next<'e, 'd>(
    entry: &'e Entry<'d>,
    from_index: u64,
    last: &mut u64,
) -> Result<Option<&'e Entry<'d>>, Error> {
    if entry.index <= from_index {
        return Ok(None);
    }
    if Some(entry.index) != last.checked_add(1) {
        return Err(Error::Gap { after: *last, found: entry.index });
    }
    *last = entry.index;
    Ok(Some(entry))
}

impl Replayed {
    fn note(&mut self, effect: &Effect<'_>) {
        self.entries = self.entries.saturating_add(1);
        self.term = effect.term;
        let count = match effect.outcome {
            Outcome::Done => self.done.entry(effect.kind).or_default(),
            Outcome::Refused(refusal) => self.refused.entry(refusal).or_default(),
        };
        *count = count.saturating_add(1);
        let room = WARNINGS_MAX.saturating_sub(self.warnings.len());
        let warnings = effect.warnings.iter().take(room).cloned();
        self.warnings.extend(warnings.map(|warning| (effect.index, warning)));
    }
}

fn unreadable(error: &bolt::Error) -> Unreadable {
    Unreadable(format!("the database cannot be read: {error}"))
}

fn number(file: &File, key: &[u8]) -> Result<Option<u64>, Unreadable> {
    let Some(row) = get(file, schema::META, key)? else { return Ok(None) };
    let number = rows::decode_u64(&row);
    number.map(Some).map_err(|error| {
        Unreadable(format!("row {} of the database: {error}", String::from_utf8_lossy(key)))
    })
}

fn get(file: &File, bucket: &[u8], key: &[u8]) -> Result<Option<Vec<u8>>, Unreadable> {
    let bucket = file.bucket(&[bucket]).map_err(|error| unreadable(&error))?;
    bucket.map_or(Ok(None), |bucket| bucket.get(key)).map_err(|error| unreadable(&error))
}

/// Reads the revision of a compaction; -1 for none.
fn compaction(file: &File, key: &[u8]) -> Result<i64, Unreadable> {
    let Some(row) = get(file, schema::META, key)? else { return Ok(-1) };
    rows::decode_compact_revision(&row).map_err(|error| {
        Unreadable(format!("row {} of the database: {error}", String::from_utf8_lossy(key)))
    })
}

/// Finds the current revision: the last one in bucket `key`, or that of a compaction above it.
fn current_revision(file: &File) -> Result<i64, Unreadable> {
    let mut last = 1;
    each_record(file, &|| false, &mut |key, _| {
        last = last.max(key.revision.main);
        Ok(())
    })
    .map_err(|error| Unreadable(error.to_string()))?;
    Ok(last.max(compactions(file)?))
}

/// The greater of the last compaction that began and the last that ended; -1 for none.
fn compactions(file: &File) -> Result<i64, Unreadable> {
    let scheduled = compaction(file, schema::META_SCHEDULED_COMPACT)?;
    Ok(scheduled.max(compaction(file, schema::META_FINISHED_COMPACT)?))
}

/// Takes a row of bucket `key`.
type RecordVisit<'v> = dyn FnMut(RevisionKey, &[u8]) -> Result<(), Unreadable> + 'v;

/// Shows the rows of bucket `key` in order.
fn each_record(
    file: &File,
    stopped: &dyn Fn() -> bool,
    visit: &mut RecordVisit<'_>,
) -> Result<(), Error> {
    let bucket = file.bucket(&[schema::KEY]).map_err(|error| unreadable(&error))?;
    let Some(mut cursor) = bucket.as_ref().map(Bucket::cursor) else { return Ok(()) };
    let mut rows = 0_u32;
    while let Some(row) = cursor.next_row().map_err(|error| unreadable(&error))? {
        rows = rows.wrapping_add(1);
        if rows.is_multiple_of(STOP_ROWS) && stopped() {
            return Err(Error::Stopped);
        }
        let key = RevisionKey::decode(row.key)
            .map_err(|error| Unreadable(format!("bucket key of the database: {error}")))?;
        visit(key, row.value)?;
    }
    Ok(())
}

/// The database with the effects of entries on top.
struct Store<'f> {
    file: &'f File,
    edits: Edits,
    revision: i64,
    compact_revision: i64,
    /// Newest records of live keys that the tail touches.
    index: BTreeMap<Vec<u8>, Latest>,
    /// Keys of `index` by lease.
    attached: BTreeMap<i64, BTreeSet<Vec<u8>>>,
    cached: BTreeMap<&'static [u8], BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl<'f> Store<'f> {
    fn load(file: &'f File, touched: &Touched, stopped: &dyn Fn() -> bool) -> Result<Self, Error> {
        let mut store = Self {
            file,
            edits: Edits::default(),
            revision: 1,
            compact_revision: compactions(file)?,
            index: BTreeMap::new(),
            attached: BTreeMap::new(),
            cached: BTreeMap::new(),
        };
        for name in CACHED {
            store.cached.insert(name, store.rows(name)?);
        }
        let auth = store.row(schema::AUTH, schema::AUTH_ENABLED)?.is_some_and(|on| *on == [1]);
        let touched = touched.clone().finish(auth);
        let mut last = 1;
        each_record(file, stopped, &mut |key, value| {
            last = last.max(key.revision.main);
            let record = KeyValue::decode(value).map_err(|error| {
                Unreadable(format!("the record at revision {}: {error}", key.revision))
            })?;
            store.learn(&touched, key, &record);
            Ok(())
        })?;
        store.revision = last.max(store.compact_revision);
        // A lease that is not there holds no keys, whatever their records say.
        for (key, latest) in &store.index {
            if latest.lease != 0 {
                store.attached.entry(latest.lease).or_default().insert(key.clone());
            }
        }
        let leases: Vec<i64> = store.attached.keys().copied().collect();
        for id in leases {
            if store.row(schema::LEASE, &id.to_be_bytes())?.is_none() {
                store.attached.remove(&id);
            }
        }
        Ok(store)
    }

    fn learn(&mut self, touched: &touch::Set, key: RevisionKey, record: &KeyValue<'_>) {
        if key.is_tombstone {
            self.index.remove(record.key);
            return;
        }
        let latest = Latest {
            create_revision: record.create_revision,
            modified: key.revision,
            version: record.version,
            lease: record.lease,
        };
        if let Some(known) = self.index.get_mut(record.key) {
            *known = latest;
        } else if !record.key.is_empty()
            && (touched.has_lease(record.lease) || touched.has_key(record.key))
        {
            self.index.insert(record.key.to_vec(), latest);
        }
    }

    fn rows(&self, name: &[u8]) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, Unreadable> {
        let mut rows = BTreeMap::new();
        let bucket = self.file.bucket(&[name]).map_err(|error| unreadable(&error))?;
        let Some(mut cursor) = bucket.as_ref().map(Bucket::cursor) else { return Ok(rows) };
        while let Some(row) = cursor.next_row().map_err(|error| unreadable(&error))? {
            if row.is_bucket || rows.len() >= CACHED_ROWS_MAX {
                let name = String::from_utf8_lossy(name);
                let what = format!("bucket {name} has more than {CACHED_ROWS_MAX} rows");
                return Err(Unreadable(what));
            }
            rows.insert(row.key.to_vec(), row.value.to_vec());
        }
        Ok(rows)
    }

    /// Tells whether 3.4 wrote the log: it stores neither term nor configuration.
    fn is_by_etcd_3_4(&self, in_tail: Option<&[u8]>) -> Result<bool, Unreadable> {
        let has = |key| Ok::<_, Unreadable>(get(self.file, schema::META, key)?.is_some());
        if has(schema::META_TERM)? || has(schema::META_CONF_STATE)? {
            return Ok(false);
        }
        let row = self.row(schema::CLUSTER, schema::CLUSTER_VERSION)?;
        let version = row.as_deref().or(in_tail).and_then(Version::parse);
        Ok(version.is_some_and(|version| (version.major, version.minor) < (3, 5)))
    }

    fn detach(&mut self, key: &[u8], lease: i64) {
        if let Some(keys) = self.attached.get_mut(&lease) {
            keys.remove(key);
            if keys.is_empty() {
                self.attached.remove(&lease);
            }
        }
    }

    /// Takes over what an entry does.
    fn take(&mut self, effect: Effect<'_>) {
        for (key, value) in effect.key_rows() {
            self.edits.plan(schema::KEY, &key, Some(value));
        }
        for (at, change) in effect.changes.iter().enumerate() {
            if let Some(before) = self.index.remove(change.key.as_ref()) {
                self.detach(&change.key, before.lease);
            }
            if let Some(latest) = effect.latest(at) {
                if latest.lease != 0 {
                    let keys = self.attached.entry(latest.lease).or_default();
                    keys.insert(change.key.to_vec());
                }
                self.index.insert(change.key.to_vec(), latest);
            }
        }
        for row in effect.rows {
            if let Some(cached) = self.cached.get_mut(row.bucket) {
                match &row.value {
                    Some(value) => cached.insert(row.key.clone(), value.clone()),
                    None => cached.remove(&row.key),
                };
            }
            self.edits.plan(row.bucket, &row.key, row.value);
        }
        self.revision = effect.revision;
        self.compact_revision = effect.compaction.unwrap_or(self.compact_revision);
    }
}

impl State for Store<'_> {
    fn current_revision(&self) -> i64 {
        self.revision
    }

    fn compact_revision(&self) -> i64 {
        self.compact_revision
    }

    fn latest(&self, key: &[u8]) -> Result<Option<Latest>, Unreadable> {
        Ok(self.index.get(key).copied())
    }

    fn each_live(
        &self,
        span: Span<'_>,
        visit: &mut dyn FnMut(&[u8], &Latest) -> ControlFlow<()>,
    ) -> Result<(), Unreadable> {
        let first = match span {
            Span::Key(key) | Span::Range(key, _) | Span::From(key) => key,
        };
        for (key, latest) in self.index.range::<[u8], _>((Bound::Included(first), Bound::Unbounded))
        {
            if !span.contains(key) || visit(key, latest).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn value(&self, revision: Revision) -> Result<Vec<u8>, Unreadable> {
        let key = revision.encode();
        let row = match self.edits.get(schema::KEY, &key) {
            Some(planned) => planned.map(<[u8]>::to_vec),
            None => get(self.file, schema::KEY, &key)?,
        };
        let row = row.ok_or_else(|| Unreadable(format!("there is no record at {revision}")))?;
        let record = KeyValue::decode(&row)
            .map_err(|error| Unreadable(format!("the record at revision {revision}: {error}")))?;
        Ok(record.value.to_vec())
    }

    fn lease_keys(&self, id: i64) -> Result<Vec<Vec<u8>>, Unreadable> {
        Ok(self.attached.get(&id).into_iter().flatten().cloned().collect())
    }

    fn row(&self, bucket: &[u8], key: &[u8]) -> Result<Option<Cow<'_, [u8]>>, Unreadable> {
        if let Some(cached) = self.cached.get(bucket) {
            return Ok(cached.get(key).map(|value| Cow::Borrowed(value.as_slice())));
        }
        match self.edits.get(bucket, key) {
            Some(planned) => Ok(planned.map(Cow::Borrowed)),
            None => Ok(get(self.file, bucket, key)?.map(Cow::Owned)),
        }
    }

    fn each_row(
        &self,
        bucket: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), Unreadable> {
        match self.cached.get(bucket) {
            Some(cached) => cached.iter().for_each(|(key, value)| visit(key, value)),
            None => {
                let name = String::from_utf8_lossy(bucket);
                return Err(Unreadable(format!("bucket {name} is not kept in memory")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
