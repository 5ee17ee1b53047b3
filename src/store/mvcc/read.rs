//! Reads: which records, found in the index under the lock; then their values, without it.
//!
//! A read on many keys looks at the index in steps, so that a writer gets its turn in between; its
//! revision is pinned until all is planned. What can be decided by the index (filters, order,
//! limit) is decided before any value is fetched.
//!
//! Order of evaluation, as in etcd: up to one more than the limit in key order, or all where there
//! is a filter or an order other than by key; then filters, order, limit. With a target other than
//! the key and no order, the limit comes first and the order is ascending.
//!
//! Source: etcd `etcdserver/txn` `executeRange`, `mvcc/kvstore_txn.go` `rangeKeys`, 3.6.16, 3.7.3.

use std::cmp::Ordering;
use std::ops::ControlFlow;

use bytes::Bytes;

use super::Mvcc;
use super::pins::Pin;
use crate::bolt::db::View;
use crate::etcd::apply::{Latest, Refusal};
use crate::etcd::record::KeyValue;
use crate::etcd::request::{Range, Span, span};
use crate::etcd::revision::Revision;
use crate::etcd::schema;
use crate::store::answer;
use crate::store::error::Error;
use crate::store::kv::Kv;
use crate::store::open::Compat;

/// Keys that are looked at in one step.
pub(super) const STEP_KEYS: usize = if cfg!(test) { 2 } else { 2000 };

/// What to sort by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Key,
    Version,
    Create,
    Modified,
    Value,
}

/// What an answer is to look like.
#[derive(Clone, Copy, Debug)]
struct Shape {
    /// Most records of the answer.
    limit: Option<usize>,
    /// Most records that are taken in key order.
    take: usize,
    /// Least and greatest modification and creation revision; 0 for any.
    modified: (i64, i64),
    created: (i64, i64),
    /// How to sort, where key order is not it already; whether descending.
    sort: Option<(Target, bool)>,
    is_count_only: bool,
    is_keys_only: bool,
    /// Keys come from the index and have no lease: 3.7.
    is_by_index: bool,
}

impl Shape {
    fn of(request: &Range<'_>, compat: Compat) -> Self {
        const ASCENDING: u64 = 1;
        const DESCENDING: u64 = 2;
        let target = match request.sort_target {
            1 => Target::Version,
            2 => Target::Create,
            3 => Target::Modified,
            4 => Target::Value,
            _ => Target::Key,
        };
        let order = request.sort_order;
        let sort = match (target, order) {
            (Target::Key, DESCENDING) => Some((Target::Key, true)),
            (Target::Key, _) => None,
            (target, 0 | ASCENDING) => Some((target, false)),
            (target, DESCENDING) => Some((target, true)),
            (_, _) => None,
        };
        let modified = (request.min_mod_revision, request.max_mod_revision);
        let created = (request.min_create_revision, request.max_create_revision);
        let is_in_key_order = order == 0 || (target == Target::Key && order == ASCENDING);
        let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
        let take = limit.map_or(usize::MAX, |limit| limit.saturating_add(1));
        let is_cut = is_in_key_order && modified == (0, 0) && created == (0, 0);
        Self {
            limit,
            take: if is_cut { take } else { usize::MAX },
            modified,
            created,
            sort,
            is_count_only: request.count_only,
            is_keys_only: request.keys_only,
            is_by_index: request.keys_only && target != Target::Value && compat >= Compat::V3_7,
        }
    }

    fn passes_modified(&self, revision: i64) -> bool {
        is_within(self.modified, revision)
    }

    fn passes_created(&self, revision: i64) -> bool {
        is_within(self.created, revision)
    }

    /// Whether creation or version are needed to filter or to sort.
    fn needs_numbers(&self) -> bool {
        let sorts = matches!(self.sort, Some((Target::Version | Target::Create, _)));
        sorts || self.created != (0, 0)
    }
}

fn is_within((least, greatest): (i64, i64), revision: i64) -> bool {
    (least == 0 || revision >= least) && (greatest == 0 || revision <= greatest)
}

/// A record that is wanted.
#[derive(Debug)]
struct Item {
    revision: Revision,
    create_revision: i64,
    /// 0: only the record itself says version and creation.
    version: i64,
    kv: Option<Kv>,
}

/// Where to go on.
#[derive(Debug)]
struct Rest {
    key: Vec<u8>,
    end: Option<Vec<u8>>,
}

/// A read that knows its records and has yet to fetch their values.
#[derive(Debug)]
pub struct RangePlan {
    view: View,
    /// Current revision when the read began.
    revision: i64,
    /// Records before this are seen.
    bound: Revision,
    shape: Shape,
    items: Vec<Item>,
    count: u64,
    rest: Option<Rest>,
    pin: Option<Pin>,
}

impl Mvcc {
    /// Plans a read at the current or an older revision, or its first step:
    /// [`RangePlan::is_planned`] tells.
    ///
    /// # Errors
    /// A revision that is compacted or not there yet.
    pub fn plan_range(&self, request: &Range<'_>) -> Result<RangePlan, Error> {
        let at = match request.revision {
            revision if revision > self.revision => return Err(Refusal::FutureRevision.into()),
            revision if revision <= 0 => self.revision,
            revision => revision,
        };
        if at < self.compacting.accepted {
            return Err(Refusal::Compacted.into());
        }
        let bound = Revision::new(at.saturating_add(1), 0);
        let mut plan = self.plan_at(request, bound, self.revision);
        self.scan(&mut plan, STEP_KEYS);
        if plan.rest.is_some() {
            plan.pin = Some(self.pins.pin(at));
        }
        Ok(plan)
    }

    /// Plans the next step of a read.
    pub fn plan_more(&self, plan: &mut RangePlan) {
        self.scan(plan, STEP_KEYS);
        if plan.rest.is_none() {
            plan.pin = None;
        }
    }

    /// Plans a read of all records before a bound, as a whole; `revision` is the current one for
    /// it.
    pub(super) fn plan_whole(
        &self,
        request: &Range<'_>,
        bound: Revision,
        revision: i64,
    ) -> RangePlan {
        let mut plan = self.plan_at(request, bound, revision);
        self.scan(&mut plan, usize::MAX);
        plan
    }

    /// Begins to plan a read of all records before a bound, of which no step is done yet.
    pub(super) fn begin_at(
        &self,
        request: &Range<'_>,
        bound: Revision,
        revision: i64,
    ) -> RangePlan {
        let mut plan = self.plan_at(request, bound, revision);
        plan.pin = Some(self.pins.pin(bound.main.saturating_sub(1)));
        plan
    }

    /// Plans a read on by so many keys; returns how many are left.
    pub(super) fn plan_some(&self, plan: &mut RangePlan, budget: usize) -> usize {
        let left = self.scan(plan, budget);
        if plan.rest.is_none() {
            plan.pin = None;
        }
        left
    }

    /// Plans to read records by their revisions, as they are or were before a change just now.
    pub(super) fn plan_records(&self, revisions: impl Iterator<Item = Revision>) -> RangePlan {
        let none = Range { key: &[0], ..Range::default() };
        let items = revisions.map(|revision| Item {
            revision,
            create_revision: 0,
            version: 0,
            kv: self.tail.get(revision).cloned(),
        });
        RangePlan {
            view: self.view.clone(),
            revision: self.revision,
            bound: Revision::default(),
            shape: Shape::of(&none, self.compat),
            items: items.collect(),
            count: 0,
            rest: None,
            pin: None,
        }
    }

    fn plan_at(&self, request: &Range<'_>, bound: Revision, revision: i64) -> RangePlan {
        let shape = Shape::of(request, self.compat);
        let view = self.view.clone();
        let mut plan = RangePlan {
            view,
            revision,
            bound,
            shape,
            items: Vec::new(),
            count: 0,
            rest: None,
            pin: None,
        };
        let keys = span(request.key, request.range_end);
        let is_now = self.is_now(bound);
        let (key, end) = match keys {
            Span::Key(key) if is_now => {
                if let Some(latest) = self.index.latest(key) {
                    plan.count = 1;
                    if !shape.is_count_only {
                        plan.items.extend(self.item(&shape, key, latest.modified, Some(&latest)));
                    }
                }
                return plan;
            }
            Span::Key(key) => {
                let mut end = key.to_vec();
                end.push(0);
                (key, Some(end))
            }
            Span::Range(key, end) => (key, Some(end.to_vec())),
            Span::From(key) => (key, None),
        };
        plan.count =
            if is_now { self.index.count(keys) } else { self.index.count_before(keys, bound) };
        plan.rest = Some(Rest { key: key.to_vec(), end });
        plan
    }

    /// Tells whether nothing changed at or after a bound.
    fn is_now(&self, bound: Revision) -> bool {
        self.tail.last() < bound
    }

    /// Returns what is left of the budget.
    fn scan(&self, plan: &mut RangePlan, budget: usize) -> usize {
        let Some(rest) = plan.rest.take() else { return budget };
        plan.view = self.view.clone();
        let shape = plan.shape;
        if shape.is_count_only || plan.count == 0 {
            return budget;
        }
        let mut next = None;
        let mut left = budget;
        let items = &mut plan.items;
        let mut take = |key: &[u8], revision: Revision, latest: Option<&Latest>| {
            if left == 0 {
                next = Some(key.to_vec());
                return ControlFlow::Break(());
            }
            left = left.saturating_sub(1);
            items.extend(self.item(&shape, key, revision, latest));
            if items.len() >= shape.take {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        };
        let keys = match &rest.end {
            Some(end) => Span::Range(&rest.key, end),
            None => Span::From(&rest.key),
        };
        if self.is_now(plan.bound) {
            self.index
                .each_latest(keys, &mut |key, latest| take(key, latest.modified, Some(latest)));
        } else {
            self.index.each_before(keys, plan.bound, &mut |key, at| {
                take(key, at.modified, at.latest.as_ref())
            });
        }
        plan.rest = next.map(|key| Rest { key, end: rest.end });
        left
    }

    /// Plans a record, unless it is known to be filtered out.
    fn item(
        &self,
        shape: &Shape,
        key: &[u8],
        revision: Revision,
        latest: Option<&Latest>,
    ) -> Option<Item> {
        let passes_created = latest.is_none_or(|l| shape.passes_created(l.create_revision));
        if !passes_created || !shape.passes_modified(revision.main) {
            return None;
        }
        let kv = match latest {
            Some(latest) if shape.is_by_index => Some(Kv::encode(&KeyValue {
                key,
                create_revision: latest.create_revision,
                mod_revision: revision.main,
                version: latest.version,
                ..KeyValue::default()
            })),
            _ => self.tail.get(revision).cloned(),
        };
        let (create_revision, version) = latest.map_or((0, 0), |l| (l.create_revision, l.version));
        Some(Item { revision, create_revision, version, kv })
    }
}

impl RangePlan {
    /// Tells whether all steps are done.
    #[must_use]
    pub fn is_planned(&self) -> bool {
        self.rest.is_none()
    }

    /// Current revision when the read began.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Fetches the values; no lock is needed.
    ///
    /// # Errors
    /// The backend cannot be read, or steps are left to plan.
    pub fn fetch(mut self) -> Result<answer::Answer<answer::Range>, Error> {
        if !self.is_planned() {
            return Err(Error::Storage("a read was fetched before it was planned".into()));
        }
        let shape = self.shape;
        let unknown = self.items.iter().any(|item| item.version == 0);
        if unknown && shape.needs_numbers() {
            fetch(&self.view, &mut self.items)?;
            for item in &mut self.items {
                let record = item.kv.as_ref().map(Kv::record).unwrap_or_default();
                (item.create_revision, item.version) = (record.create_revision, record.version);
            }
            self.items.retain(|item| shape.passes_created(item.create_revision));
        }
        if let Some((target, is_descending)) = shape.sort {
            if target == Target::Value {
                fetch(&self.view, &mut self.items)?;
            }
            sort(&mut self.items, target, is_descending);
        }
        let more = shape.limit.is_some_and(|limit| self.items.len() > limit);
        self.items.truncate(shape.limit.unwrap_or(usize::MAX));
        fetch(&self.view, &mut self.items)?;
        let kvs = self.items.into_iter().filter_map(|item| {
            let kv = item.kv?;
            Some(if shape.is_keys_only { without_value(&kv, &shape) } else { kv })
        });
        let body = answer::Range {
            kvs: kvs.collect(),
            more,
            count: i64::try_from(self.count).unwrap_or(i64::MAX),
        };
        Ok(answer::Answer { revision: self.revision, body })
    }
}

fn without_value(kv: &Kv, shape: &Shape) -> Kv {
    let record = kv.record();
    if record.value.is_empty() && (record.lease == 0 || !shape.is_by_index) {
        return kv.clone();
    }
    let lease = if shape.is_by_index { 0 } else { record.lease };
    Kv::encode(&KeyValue { value: &[], lease, ..record })
}

/// Sorts items that are in key order; equal ones stay in it.
fn sort(items: &mut Vec<Item>, target: Target, is_descending: bool) {
    let number = |item: &Item| match target {
        Target::Version => item.version,
        Target::Create => item.create_revision,
        Target::Key | Target::Modified | Target::Value => item.revision.main,
    };
    let turn = |order: Ordering| if is_descending { order.reverse() } else { order };
    match target {
        Target::Key => items.reverse(),
        Target::Value => {
            let mut valued: Vec<(Kv, Item)> = std::mem::take(items)
                .into_iter()
                .map(|item| (item.kv.clone().unwrap_or_default(), item))
                .collect();
            valued.sort_by(|(a, _), (b, _)| turn(a.record().value.cmp(b.record().value)));
            items.extend(valued.into_iter().map(|(_, item)| item));
        }
        _ => items.sort_by(|a, b| turn(number(a).cmp(&number(b)))),
    }
}

/// Reads the records that are not there yet, in order of revisions, so that a page of the backend
/// that holds several is read once.
fn fetch(view: &View, items: &mut [Item]) -> Result<(), Error> {
    let mut wanted: Vec<(Revision, &mut Option<Kv>)> = items
        .iter_mut()
        .filter(|item| item.kv.is_none())
        .map(|item| (item.revision, &mut item.kv))
        .collect();
    if wanted.len() > 1 {
        wanted.sort_unstable_by_key(|(revision, _)| *revision);
        let rows: Vec<_> = wanted.iter().map(|(revision, _)| revision.encode()).collect();
        let mut fault = None;
        let read = view.get_many(schema::KEY, &rows, &mut |at, row| {
            if let Some((revision, slot)) = wanted.get_mut(at) {
                match checked(*revision, row) {
                    Ok(kv) => **slot = Some(kv),
                    Err(error) => fault = Some(error),
                }
            }
        });
        read.map_err(|error| Error::Storage(error.to_string()))?;
        fault.map_or(Ok(()), Err)?;
    }
    for (revision, slot) in wanted {
        if slot.is_none() {
            *slot = Some(record(view, revision)?);
        }
    }
    Ok(())
}

/// Reads one record.
pub(super) fn record(view: &View, revision: Revision) -> Result<Kv, Error> {
    let row = view.get(schema::KEY, &revision.encode());
    let row = row.map_err(|error| Error::Storage(error.to_string()))?;
    let row = row.ok_or_else(|| {
        Error::Storage(format!("the database has no record at revision {revision}"))
    })?;
    checked(revision, row)
}

/// Makes sure that a row is a record.
fn checked(revision: Revision, row: Bytes) -> Result<Kv, Error> {
    KeyValue::decode(&row).map_err(|error| {
        Error::Storage(format!("the database's record at revision {revision}: {error}"))
    })?;
    Ok(Kv(row))
}
