//! Takes over what an entry does: index, tail, rows, leases, and what everybody is told of it.

use std::sync::Arc;

use super::Mvcc;
use super::read::RangePlan;
use super::{Tally, tail};
use crate::bolt::db::ROW_BYTES_MAX;
use crate::etcd::apply::{self, Effect, Latest, Outcome, Row, Rules, Warning};
use crate::etcd::record::KeyValue;
use crate::etcd::request::Content;
use crate::etcd::revision::Revision;
use crate::etcd::rows::Lease;
use crate::etcd::schema;
use crate::format::page::KEY_BYTES_MAX;
use crate::format::u64_of;
use crate::format::wal::{ConfChange, Entry};
use crate::store::answer;
use crate::store::error::Error;
use crate::store::figures::Kind;
use crate::store::kv::{Commit, Event};

/// What applying an entry came to, beside the change of the state.
#[derive(Debug)]
pub struct Applied {
    /// Index of the entry.
    pub index: u64,
    /// Term of the entry.
    pub term: u64,
    /// Id of the request, 0 for none: whoever waits for it is told the answer.
    pub request_id: u64,
    /// etcd's name of what was asked.
    pub kind: &'static str,
    /// The same, where it was a request.
    pub counted_as: Option<Kind>,
    /// Whether it was done.
    pub outcome: Outcome,
    /// What the client is told, when [`Applied::fetch`] was called.
    pub answer: Result<answer::Answer, Error>,
    pub(super) reads: Vec<RangePlan>,
    /// What watchers see.
    pub commit: Option<Arc<Commit>>,
    /// What leases are to count down.
    pub leases: Vec<LeaseChange>,
    /// A compaction to be worked off, and whether the client waits until it is.
    pub compaction: Option<(i64, bool)>,
    /// Whether rules of auth changed: tokens are looked at again.
    pub auth_changed: bool,
    /// Whether members changed, so that the log's ConfState did.
    pub members_changed: bool,
    /// What a person should know.
    pub warnings: Vec<Warning>,
}

/// What became of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseChange {
    /// It was granted, with seconds to live.
    Granted {
        /// The lease.
        id: i64,
        /// Seconds.
        ttl_s: i64,
    },
    /// It ended.
    Revoked(i64),
    /// Its remaining time was recorded, in seconds.
    Checkpointed {
        /// The lease.
        id: i64,
        /// Seconds.
        remaining_ttl_s: i64,
    },
}

impl Mvcc {
    /// Applies an entry. One at or below the applied index is passed over: `None`.
    ///
    /// # Errors
    /// As [`apply::apply`], and an entry that does not follow the last one; the state is
    /// unchanged.
    pub fn apply(&mut self, entry: &Entry<'_>) -> Result<Option<Applied>, apply::Error> {
        let (applied, _) = self.applied;
        if entry.index <= applied {
            return Ok(None);
        }
        if entry.index != applied.saturating_add(1) {
            let what = format!("it does not follow entry {applied}");
            return Err(apply::Error::Entry { index: entry.index, what });
        }
        let rules: Rules = self.rules;
        let content = apply::content(entry)?;
        let mut effect = apply::apply_content(self, &rules, entry, content.as_ref())?;
        check_rows(entry.index, &effect.rows)?;
        let request = match &content {
            Some(Content::Request(request)) => Some(request),
            _ => None,
        };
        let header = request.and_then(|request| request.header.as_ref());
        let request_id = match request {
            Some(request) if request.id != 0 => request.id,
            Some(_) => header.map_or(0, |header| header.id),
            None if content.is_none() => ConfChange::decode(entry.data).map_or(0, |c| c.id),
            None => 0,
        };
        let body = request.map(|request| &request.body);
        let standing = self.alarm_before(body);
        let commit = self.take_changes(&effect);
        let rows = std::mem::take(&mut effect.rows);
        let changes = |bucket: &[u8]| rows.iter().any(|row| row.bucket == bucket);
        let members = [schema::MEMBERS, schema::MEMBERS_REMOVED];
        let auth = [schema::AUTH, schema::AUTH_USERS, schema::AUTH_ROLES];
        let auth_changed = auth.into_iter().any(changes);
        let members_changed = content.is_none() && members.into_iter().any(changes);
        let leases = lease_changes(effect.kind, &rows);
        for row in rows {
            self.rows.change(row);
        }
        if let Some(revision) = effect.compaction {
            self.accept_compaction(revision);
        }
        let mut reads = Vec::new();
        let answer = match effect.outcome {
            Outcome::Refused(refusal) => Err(refusal.into()),
            Outcome::Done => self.respond(body, &effect, standing, &mut reads),
        };
        self.tally.add(Tally::of(body, &effect));
        // Last: an entry that was taken over by half, before a panic, is not to be saved.
        self.applied = (entry.index, entry.term);
        Ok(Some(Applied {
            index: effect.index,
            term: effect.term,
            request_id,
            kind: effect.kind,
            counted_as: body.map(Kind::of),
            outcome: effect.outcome,
            answer,
            reads,
            commit,
            leases,
            compaction: effect.compaction.map(|revision| {
                let is_physical = matches!(
                    body,
                    Some(crate::etcd::request::Body::Compaction(request)) if request.physical
                );
                (revision, is_physical)
            }),
            auth_changed,
            members_changed,
            warnings: effect.warnings,
        }))
    }

    /// Takes over changes of keys.
    fn take_changes(&mut self, effect: &Effect<'_>) -> Option<Arc<Commit>> {
        self.revision = effect.revision;
        if effect.changes.is_empty() {
            return None;
        }
        let main = effect.revision;
        let events = (0_i64..).zip(&effect.changes).map(|(sub, change)| {
            let revision = Revision::new(main, sub);
            match &change.put {
                None => Event::delete(revision, &change.key),
                Some(put) => {
                    let record = KeyValue {
                        key: &change.key,
                        create_revision: put.create_revision,
                        mod_revision: main,
                        version: put.version,
                        value: &put.value,
                        lease: put.lease,
                        unknown_field: None,
                    };
                    Event::put(revision, &record)
                }
            }
        });
        let commit = Arc::new(Commit { revision: main, events: events.collect() });
        for (event, change) in commit.events.iter().zip(&effect.changes) {
            let old = change.before.map_or(0, |before| before.lease);
            let new = change.put.as_ref().map_or(0, |put| put.lease);
            if old != new && old != 0 {
                self.attached.detach(old, &change.key);
            }
            match &change.put {
                None => self.index.delete(&change.key, event.revision),
                Some(put) => {
                    let latest: Latest = put.latest(event.revision);
                    self.index.put(&change.key, latest);
                    // A lease that is kept may be gone: then it holds nothing.
                    let is_held = old != new && new != 0;
                    if is_held && self.rows.get(schema::LEASE, &new.to_be_bytes()).is_some() {
                        self.attached.attach(new, &change.key);
                    }
                }
            }
        }
        self.saving.note(commit.events.len(), tail::bytes_of(&commit));
        self.tail.push(Arc::clone(&commit));
        Some(commit)
    }
}

/// Refuses rows that the database cannot hold, so that nothing is told of what cannot be saved.
fn check_rows(index: u64, rows: &[Row]) -> Result<(), apply::Error> {
    let bytes_of = |row: &Row| row.key.len().saturating_add(row.value.as_ref().map_or(0, Vec::len));
    let fits =
        |row: &&Row| row.key.len() <= KEY_BYTES_MAX && u64_of(bytes_of(row)) <= ROW_BYTES_MAX;
    let Some(row) = rows.iter().find(|row| !fits(row)) else { return Ok(()) };
    let bucket = row.bucket.escape_ascii();
    let (key, all) = (row.key.len(), bytes_of(row));
    let what = format!(
        "its row of bucket {bucket} has a key of {key} bytes and {all} in all, which no database \
         of etcd holds"
    );
    Err(apply::Error::Entry { index, what })
}

/// Tells what rows of leases say to those who count down.
fn lease_changes(kind: &'static str, rows: &[Row]) -> Vec<LeaseChange> {
    let leases = rows.iter().filter(|row| row.bucket == schema::LEASE);
    let changes = leases.filter_map(|row| {
        let Some(value) = &row.value else {
            let id = <[u8; 8]>::try_from(row.key.as_slice()).ok()?;
            return Some(LeaseChange::Revoked(i64::from_be_bytes(id)));
        };
        let Lease { id, ttl_s, remaining_ttl_s, .. } = Lease::decode(&row.key, value).ok()?;
        Some(if kind == "lease_checkpoint" {
            LeaseChange::Checkpointed { id, remaining_ttl_s }
        } else {
            LeaseChange::Granted { id, ttl_s }
        })
    });
    changes.collect()
}
