//! Puts, deletes and compactions, and the writer that numbers their changes.
//!
//! All changes of one entry have one main revision, the current one and one more; their subs count
//! from 0 in the order in which they are made. Later operations see earlier ones. An entry that
//! changes nothing makes no revision.
//!
//! Source: etcd `mvcc.storeTxnWrite`, `mvcc.store.Compact`, `txn.Put`, `txn.DeleteRange`, 3.6.16.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::{Change, Context, Effect, Latest, Refusal, State, Step, Stop, Written, permission};
use crate::etcd::request::{Compaction, DeleteRange, Put, Span, span};
use crate::etcd::revision::Revision;
use crate::etcd::schema;

pub(super) fn put<'a>(
    context: &Context<'_, '_>,
    request: &Put<'a>,
    effect: &mut Effect<'a>,
) -> Result<(), Stop> {
    permission::check_put(context, request)?;
    check_put(context.state, request)?;
    let mut writer = Writer::new(context.state);
    writer.put(request)?;
    writer.finish(effect);
    Ok(())
}

/// Makes sure that a put can be done: its lease exists, and what it keeps is there.
pub(super) fn check_put(state: &dyn State, request: &Put<'_>) -> Result<(), Stop> {
    // In this order: 3.6 looks for the key first in a transaction, and 3.7 nowhere.
    if request.lease != 0 && state.row(schema::LEASE, &request.lease.to_be_bytes())?.is_none() {
        return Err(Refusal::LeaseNotFound.into());
    }
    if (request.ignore_value || request.ignore_lease) && state.latest(request.key)?.is_none() {
        return Err(Refusal::KeyNotFound.into());
    }
    Ok(())
}

pub(super) fn delete<'a>(
    context: &Context<'_, '_>,
    request: &DeleteRange<'a>,
    effect: &mut Effect<'a>,
) -> Result<(), Stop> {
    permission::check_delete(context, request)?;
    let mut writer = Writer::new(context.state);
    writer.delete(request)?;
    writer.finish(effect);
    Ok(())
}

pub(super) fn compact(
    context: &Context<'_, '_>,
    request: &Compaction,
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    if request.revision <= context.state.compact_revision() {
        return Err(Refusal::Compacted.into());
    }
    if request.revision > context.state.current_revision() {
        return Err(Refusal::FutureRevision.into());
    }
    let row = Revision::new(request.revision, 0).encode().to_vec();
    effect.put_row(schema::META, schema::META_SCHEDULED_COMPACT, row);
    effect.compaction = Some(request.revision);
    Ok(())
}

/// Collects the changes of one entry on top of the state before it.
pub(super) struct Writer<'s, 'a> {
    state: &'s dyn State,
    changes: Vec<Change<'a>>,
    /// The last change of each key that has one, from [`FEW`] changes on.
    last: BTreeMap<Cow<'a, [u8]>, usize>,
    steps: Vec<Step>,
}

/// Up to so many changes are searched one by one.
const FEW: usize = 8;

impl<'s, 'a> Writer<'s, 'a> {
    pub(super) fn new(state: &'s dyn State) -> Self {
        Self { state, changes: Vec::new(), last: BTreeMap::new(), steps: Vec::new() }
    }

    /// Main revision of the changes.
    fn main(&self) -> i64 {
        self.state.current_revision().saturating_add(1)
    }

    /// Finds the last change of a key.
    fn last(&self, key: &[u8]) -> Option<usize> {
        if self.changes.len() < FEW {
            return self.changes.iter().rposition(|change| change.key == key);
        }
        self.last.get(key).copied()
    }

    fn latest(&self, key: &[u8]) -> Result<Option<Latest>, Stop> {
        let Some(index) = self.last(key) else { return Ok(self.state.latest(key)?) };
        let sub = i64::try_from(index).unwrap_or(i64::MAX);
        let put = self.changes.get(index).and_then(|change| change.put.as_ref());
        Ok(put.map(|put| put.latest(Revision::new(self.main(), sub))))
    }

    fn value(&self, key: &[u8], latest: &Latest) -> Result<Cow<'a, [u8]>, Stop> {
        let change = self.last(key).and_then(|index| self.changes.get(index));
        match change.and_then(|change| change.put.as_ref()) {
            Some(put) => Ok(put.value.clone()),
            None => Ok(Cow::Owned(self.state.value(latest.modified)?)),
        }
    }

    fn push(&mut self, change: Change<'a>) {
        self.changes.push(change);
        let count = self.changes.len();
        let known = if count > FEW { count.saturating_sub(1) } else { 0 };
        if count >= FEW {
            for (index, change) in self.changes.iter().enumerate().skip(known) {
                self.last.insert(change.key.clone(), index);
            }
        }
    }

    fn push_delete(&mut self, key: Cow<'a, [u8]>, before: Latest) {
        self.push(Change { key, before: Some(before), put: None });
    }

    pub(super) fn put(&mut self, request: &Put<'a>) -> Result<(), Stop> {
        let before = self.latest(request.key)?;
        let kept = || {
            // Checked before the first write; etcd's API lets no transaction delete it meanwhile.
            before.ok_or_else(|| Stop::Impossible("a put that keeps what it just deleted".into()))
        };
        let value = if request.ignore_value {
            self.value(request.key, &kept()?)?
        } else {
            Cow::Borrowed(request.value)
        };
        let lease = if request.ignore_lease { kept()?.lease } else { request.lease };
        let (create_revision, version) = match before {
            Some(before) => (before.create_revision, before.version.saturating_add(1)),
            None => (self.main(), 1),
        };
        self.steps.push(Step::Put(self.changes.len()));
        let put = Some(Written { create_revision, version, lease, value });
        self.push(Change { key: Cow::Borrowed(request.key), before, put });
        Ok(())
    }

    pub(super) fn delete(&mut self, request: &DeleteRange<'a>) -> Result<(), Stop> {
        let start = self.changes.len();
        match span(request.key, request.range_end) {
            Span::Key(key) => {
                if let Some(before) = self.latest(key)? {
                    self.push_delete(Cow::Borrowed(key), before);
                }
            }
            many => {
                for (key, before) in self.live_keys(many)? {
                    self.push_delete(Cow::Owned(key), before);
                }
            }
        }
        self.steps.push(Step::Delete(start..self.changes.len()));
        Ok(())
    }

    /// Deletes keys one by one, in the order given.
    pub(super) fn delete_keys(&mut self, keys: Vec<Vec<u8>>) -> Result<(), Stop> {
        for key in keys {
            if let Some(before) = self.latest(&key)? {
                self.push_delete(Cow::Owned(key), before);
            }
        }
        Ok(())
    }

    fn live_keys(&self, span: Span<'_>) -> Result<BTreeMap<Vec<u8>, Latest>, Stop> {
        let mut keys = BTreeMap::new();
        self.state.each_live(span, &mut |key, latest| {
            keys.insert(key.to_vec(), *latest);
            ControlFlow::Continue(())
        })?;
        for (sub, change) in (0_i64..).zip(&self.changes) {
            if span.contains(&change.key) {
                match &change.put {
                    Some(put) => {
                        let latest = put.latest(Revision::new(self.main(), sub));
                        keys.insert(change.key.to_vec(), latest);
                    }
                    None => drop(keys.remove(change.key.as_ref())),
                }
            }
        }
        Ok(keys)
    }

    pub(super) fn step(&mut self, step: Step) {
        self.steps.push(step);
    }

    pub(super) fn into_steps(self) -> Vec<Step> {
        self.steps
    }

    pub(super) fn change_count(&self) -> usize {
        self.changes.len()
    }

    pub(super) fn finish(self, effect: &mut Effect<'a>) {
        if !self.changes.is_empty() {
            effect.revision = self.main();
        }
        effect.changes = self.changes;
        effect.steps = self.steps;
    }
}
