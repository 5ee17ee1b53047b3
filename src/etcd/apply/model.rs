//! For tests: a state that is nothing but rows, a naive store to compare with, and random requests.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Effect, Latest, Refusal, State, Unreadable};
use crate::etcd::record::KeyValue;
use crate::etcd::request::{
    Body, Compaction, Compare, DeleteRange, Header, LeaseCheckpoint, LeaseCheckpoints, LeaseGrant,
    LeaseRevoke, Op, Operand, Put, Range, Request, Span, Txn,
};
use crate::etcd::revision::{Revision, RevisionKey};
use crate::etcd::{rows, schema};
use crate::format::wal::Entry;

/// A database as its rows, every question answered by looking at all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RowState {
    pub(crate) buckets: BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl RowState {
    pub(crate) fn put(&mut self, bucket: &[u8], key: &[u8], value: &[u8]) {
        self.buckets.entry(bucket.to_vec()).or_default().insert(key.to_vec(), value.to_vec());
    }

    pub(crate) fn take(&mut self, effect: &Effect<'_>) {
        for (key, value) in effect.key_rows() {
            self.put(schema::KEY, &key, &value);
        }
        let applied = super::applied_rows(effect.index, Some(effect.term));
        for row in effect.rows.iter().chain(&applied) {
            match &row.value {
                Some(value) => self.put(row.bucket, &row.key, value),
                None => {
                    self.buckets.entry(row.bucket.to_vec()).or_default().remove(&row.key);
                }
            }
        }
    }

    fn records(&self) -> impl Iterator<Item = (RevisionKey, KeyValue<'_>)> {
        let rows = self.buckets.get(schema::KEY).into_iter().flatten();
        rows.map(|(key, value)| {
            (RevisionKey::decode(key).unwrap(), KeyValue::decode(value).unwrap())
        })
    }

    pub(crate) fn live(&self) -> BTreeMap<Vec<u8>, (Latest, Vec<u8>)> {
        let mut live = BTreeMap::new();
        for (key, record) in self.records() {
            if key.is_tombstone {
                assert!(record.is_key_only());
                live.remove(record.key);
            } else {
                assert_eq!(record.mod_revision, key.revision.main);
                let latest = Latest {
                    create_revision: record.create_revision,
                    modified: key.revision,
                    version: record.version,
                    lease: record.lease,
                };
                live.insert(record.key.to_vec(), (latest, record.value.to_vec()));
            }
        }
        live
    }
}

impl State for RowState {
    fn current_revision(&self) -> i64 {
        let last = self.records().last().map_or(1, |(key, _)| key.revision.main);
        last.max(self.compact_revision())
    }

    fn compact_revision(&self) -> i64 {
        let row = self.row(schema::META, schema::META_SCHEDULED_COMPACT).unwrap();
        row.map_or(-1, |row| rows::decode_compact_revision(&row).unwrap())
    }

    fn latest(&self, key: &[u8]) -> Result<Option<Latest>, Unreadable> {
        Ok(self.live().get(key).map(|(latest, _)| *latest))
    }

    fn each_live(
        &self,
        span: Span<'_>,
        visit: &mut dyn FnMut(&[u8], &Latest) -> ControlFlow<()>,
    ) -> Result<(), Unreadable> {
        for (key, (latest, _)) in self.live().iter().filter(|(key, _)| span.contains(key)) {
            if visit(key, latest).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn value(&self, revision: Revision) -> Result<Vec<u8>, Unreadable> {
        let found = self.records().find(|(key, _)| key.revision == revision);
        Ok(found.unwrap().1.value.to_vec())
    }

    fn lease_keys(&self, id: i64) -> Result<Vec<Vec<u8>>, Unreadable> {
        let keys = self.live().into_iter().filter(|(_, (latest, _))| latest.lease == id);
        // The order must not matter.
        Ok(keys.map(|(key, _)| key).rev().collect())
    }

    fn row(&self, bucket: &[u8], key: &[u8]) -> Result<Option<Cow<'_, [u8]>>, Unreadable> {
        let value = self.buckets.get(bucket).and_then(|rows| rows.get(key));
        Ok(value.map(|value| Cow::Borrowed(value.as_slice())))
    }

    fn each_row(
        &self,
        bucket: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), Unreadable> {
        let rows = self.buckets.get(bucket).into_iter().flatten();
        rows.for_each(|(key, value)| visit(key, value));
        Ok(())
    }
}

/// A condition of a planned transaction.
#[derive(Clone, Debug)]
pub(crate) struct PlannedCompare {
    keys: (Vec<u8>, Vec<u8>),
    result: u64,
    target: u64,
    operand: i64,
}

/// An operation that owns its bytes.
#[derive(Clone, Debug)]
pub(crate) enum Plan {
    Put { key: Vec<u8>, value: Vec<u8>, lease: i64, ignore_value: bool, ignore_lease: bool },
    Delete { keys: (Vec<u8>, Vec<u8>), prev_kv: bool },
    Range { keys: (Vec<u8>, Vec<u8>), revision: i64, look: Look },
    Txn { compare: Vec<PlannedCompare>, success: Vec<Plan>, failure: Vec<Plan> },
    Compact(i64),
    Grant(i64, i64),
    Revoke(i64),
    Checkpoint(i64, i64),
}

/// How a read looks at what it finds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Look {
    limit: i64,
    sort_order: u64,
    sort_target: u64,
    keys_only: bool,
    count_only: bool,
    modified: (i64, i64),
    created: (i64, i64),
}

impl Look {
    /// Makes the read.
    pub(crate) fn range<'a>(&self, keys: &'a (Vec<u8>, Vec<u8>), revision: i64) -> Range<'a> {
        Range {
            key: &keys.0,
            range_end: &keys.1,
            limit: self.limit,
            revision,
            sort_order: self.sort_order,
            sort_target: self.sort_target,
            serializable: false,
            keys_only: self.keys_only,
            count_only: self.count_only,
            min_mod_revision: self.modified.0,
            max_mod_revision: self.modified.1,
            min_create_revision: self.created.0,
            max_create_revision: self.created.1,
        }
    }
}

/// Random ways to look.
pub(crate) fn looks() -> impl Strategy<Value = Look> {
    let revision = || prop_oneof![4 => Just(0_i64), 1 => 1_i64..30];
    let order = (0_i64..5, 0_u64..3, 0_u64..5, 0_u8..8);
    (order, (revision(), revision()), (revision(), revision())).prop_map(
        |((limit, sort_order, sort_target, only), modified, created)| Look {
            limit,
            sort_order,
            sort_target,
            keys_only: only < 3,
            count_only: only == 7,
            modified,
            created,
        },
    )
}

/// Random keys and ends of ranges.
pub(crate) fn keys() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    (b'a'..b'g', prop_oneof![3 => Just(0_u8), 1 => Just(1), 3 => b'a'..b'h']).prop_map(
        |(key, end)| match end {
            0 => (vec![key], Vec::new()),
            1 => (vec![key], vec![0]),
            end => (vec![key], vec![end]),
        },
    )
}

fn put() -> impl Strategy<Value = Plan> {
    let leases = prop_oneof![3 => Just(0_i64), 2 => 1_i64..4];
    (b'a'..b'g', vec(0_u8..3, 0..3), leases, 0_u8..8).prop_map(|(key, value, lease, ignore)| {
        let (ignore_value, ignore_lease) = (ignore == 1, ignore == 2);
        let value = if ignore_value { Vec::new() } else { value };
        let lease = if ignore_lease { 0 } else { lease };
        Plan::Put { key: vec![key], value, lease, ignore_value, ignore_lease }
    })
}

fn compare() -> impl Strategy<Value = PlannedCompare> {
    (keys(), 0_u64..4, 0_u64..5, 0_i64..30).prop_map(|(keys, result, target, operand)| {
        PlannedCompare { keys, result, target, operand }
    })
}

/// Random requests, transactions in transactions too.
pub(crate) fn plans(most: usize) -> impl Strategy<Value = Vec<Plan>> {
    let op = prop_oneof![
        4 => put(),
        2 => (keys(), any::<bool>()).prop_map(|(keys, prev_kv)| Plan::Delete { keys, prev_kv }),
        1 => (keys(), prop_oneof![4 => -2_i64..1, 1 => 1_i64..40], looks())
            .prop_map(|(keys, revision, look)| Plan::Range { keys, revision, look }),
    ];
    let op =
        op.prop_recursive(3, 12, 4, |inner| {
            let list = || vec(inner.clone(), 0..4);
            (vec(compare(), 0..3), list(), list())
                .prop_map(|(compare, success, failure)| Plan::Txn { compare, success, failure })
        });
    let one = prop_oneof![
        8 => op,
        1 => (0_i64..30).prop_map(Plan::Compact),
        2 => (0_i64..4, 0_i64..20).prop_map(|(id, ttl)| Plan::Grant(id, ttl)),
        1 => (0_i64..4).prop_map(Plan::Revoke),
        1 => (0_i64..4, 1_i64..20).prop_map(|(id, ttl)| Plan::Checkpoint(id, ttl)),
    ];
    vec(one, 0..most)
}

impl Plan {
    fn op(&self) -> Op<'_> {
        match self.body() {
            Body::Put(put) => Op::Put(put),
            Body::DeleteRange(delete) => Op::DeleteRange(delete),
            Body::Range(range) => Op::Range(range),
            Body::Txn(txn) => Op::Txn(txn),
            _ => Op::Nothing,
        }
    }

    /// Returns the request.
    pub(crate) fn body(&self) -> Body<'_> {
        match self {
            Self::Put { key, value, lease, ignore_value, ignore_lease } => Body::Put(Put {
                key,
                value,
                lease: *lease,
                // By the value, since nothing else depends on it.
                prev_kv: value.len() != 1,
                ignore_value: *ignore_value,
                ignore_lease: *ignore_lease,
            }),
            Self::Delete { keys: (key, range_end), prev_kv } => {
                Body::DeleteRange(DeleteRange { key, range_end, prev_kv: *prev_kv })
            }
            Self::Range { keys, revision, look } => Body::Range(look.range(keys, *revision)),
            Self::Txn { compare, success, failure } => Body::Txn(Txn {
                compare: compare.iter().map(PlannedCompare::compare).collect(),
                success: success.iter().map(Self::op).collect(),
                failure: failure.iter().map(Self::op).collect(),
            }),
            Self::Compact(revision) => {
                Body::Compaction(Compaction { revision: *revision, physical: false })
            }
            Self::Grant(id, ttl_s) => Body::LeaseGrant(LeaseGrant { ttl_s: *ttl_s, id: *id }),
            Self::Revoke(id) => Body::LeaseRevoke(LeaseRevoke { id: *id }),
            Self::Checkpoint(id, remaining) => {
                let one = LeaseCheckpoint { id: *id, remaining_ttl_s: *remaining };
                Body::LeaseCheckpoint(LeaseCheckpoints { checkpoints: vec![one] })
            }
        }
    }

    /// Encodes the request as the data of an entry.
    pub(crate) fn data(&self) -> Vec<u8> {
        data(self.body())
    }
}

impl PlannedCompare {
    fn compare(&self) -> Compare<'_> {
        const VALUES: [&[u8]; 3] = [&[], &[1], &[2, 0]];
        let operand = match self.target {
            0 => Operand::Version(self.operand),
            1 => Operand::CreateRevision(self.operand),
            2 => Operand::ModRevision(self.operand),
            3 => Operand::Value(VALUES[usize::try_from(self.operand % 3).unwrap()]),
            _ => Operand::Lease(self.operand % 4),
        };
        let (key, range_end) = (&self.keys.0, &self.keys.1);
        Compare { result: self.result, target: self.target, key, operand: Some(operand), range_end }
    }
}

/// Encodes a request as the data of an entry.
pub(crate) fn data(body: Body<'_>) -> Vec<u8> {
    let header = Some(Header { id: 7, ..Header::default() });
    Request { id: 0, header, body }.encode()
}

/// Makes a normal entry.
pub(crate) fn entry(index: u64, data: &[u8]) -> Entry<'_> {
    Entry { kind: 0, term: 2, index, data, unknown_field: None }
}

/// A living key of the naive store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Living {
    pub(crate) create: i64,
    pub(crate) modified: i64,
    pub(crate) version: i64,
    pub(crate) lease: i64,
    pub(crate) value: Vec<u8>,
}

/// A store that changes a map, and starts over when a request fails.
#[derive(Clone, Debug, Default)]
pub(crate) struct Naive {
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
    pub(crate) live: BTreeMap<Vec<u8>, Living>,
    pub(crate) leases: BTreeMap<i64, i64>,
    changed: bool,
}

/// Why the naive store refuses: etcd's reason, or that etcd would stop.
pub(crate) type Refused = Option<Refusal>;

impl Naive {
    pub(crate) fn new() -> Self {
        Self { revision: 1, compacted: -1, ..Self::default() }
    }

    pub(crate) fn apply(&mut self, plan: &Plan) -> Result<(), Refused> {
        let before = self.clone();
        self.changed = false;
        let done = match plan {
            Plan::Compact(at) if *at <= self.compacted => Err(Some(Refusal::Compacted)),
            Plan::Compact(at) if *at > self.revision => Err(Some(Refusal::FutureRevision)),
            Plan::Compact(at) => {
                self.compacted = *at;
                Ok(())
            }
            Plan::Grant(0, _) => Err(Some(Refusal::LeaseNotFound)),
            Plan::Grant(id, _) if self.leases.contains_key(id) => Err(Some(Refusal::LeaseExists)),
            Plan::Grant(id, ttl) => {
                self.leases.insert(*id, (*ttl).max(2));
                Ok(())
            }
            Plan::Revoke(id) => match self.leases.remove(id) {
                None => Err(Some(Refusal::LeaseNotFound)),
                Some(_) => {
                    let all = self.live.len();
                    self.live.retain(|_, living| living.lease != *id);
                    self.changed = self.live.len() != all;
                    Ok(())
                }
            },
            Plan::Checkpoint(..) => Ok(()),
            // A read alone is never looked at.
            Plan::Range { .. } => Ok(()),
            Plan::Put { .. } | Plan::Delete { .. } | Plan::Txn { .. } => {
                self.check(plan, &before).and_then(|()| self.run(plan, &before))
            }
        };
        if done.is_err() {
            *self = before;
        } else if self.changed {
            self.revision += 1;
        }
        done
    }

    pub(crate) fn matching(&self, keys: &(Vec<u8>, Vec<u8>)) -> Vec<Vec<u8>> {
        let (key, end) = keys;
        let all = self.live.keys().cloned();
        match end.as_slice() {
            [] => all.filter(|k| k == key).collect(),
            [0] => all.filter(|k| k >= key).collect(),
            _ => all.filter(|k| k >= key && k < end).collect(),
        }
    }

    /// Returns the operations that a plan chooses.
    pub(crate) fn list<'p>(plan: &'p Plan, before: &Self) -> &'p [Plan] {
        match plan {
            Plan::Txn { compare, success, failure } => {
                if before.chooses(compare) {
                    success
                } else {
                    failure
                }
            }
            other => std::slice::from_ref(other),
        }
    }

    /// Tells whether all conditions of a transaction hold.
    pub(crate) fn chooses(&self, compare: &[PlannedCompare]) -> bool {
        compare.iter().all(|compare| self.holds(compare))
    }

    fn holds(&self, planned: &PlannedCompare) -> bool {
        let none = Living { create: 0, modified: 0, version: 0, lease: 0, value: Vec::new() };
        let found = self.matching(&planned.keys);
        if found.is_empty() && planned.target == 3 {
            return false;
        }
        let mut found: Vec<&Living> = found.iter().map(|key| &self.live[key]).collect();
        if found.is_empty() {
            found.push(&none);
        }
        let compare = planned.compare();
        found.into_iter().all(|living| {
            let order = match compare.operand.unwrap() {
                Operand::Version(n) => living.version.cmp(&n),
                Operand::CreateRevision(n) => living.create.cmp(&n),
                Operand::ModRevision(n) => living.modified.cmp(&n),
                Operand::Value(value) => living.value.as_slice().cmp(value),
                Operand::Lease(n) => living.lease.cmp(&n),
            };
            match planned.result {
                0 => order.is_eq(),
                1 => order.is_gt(),
                2 => order.is_lt(),
                _ => order.is_ne(),
            }
        })
    }

    fn check(&self, plan: &Plan, before: &Self) -> Result<(), Refused> {
        for op in Self::list(plan, before) {
            match op {
                Plan::Put { key, lease, ignore_value, ignore_lease, .. } => {
                    if *lease != 0 && !before.leases.contains_key(lease) {
                        return Err(Some(Refusal::LeaseNotFound));
                    }
                    if (*ignore_value || *ignore_lease) && !before.live.contains_key(key) {
                        return Err(Some(Refusal::KeyNotFound));
                    }
                }
                Plan::Range { revision, .. } if *revision > before.revision => {
                    return Err(Some(Refusal::FutureRevision));
                }
                Plan::Range { revision, .. } if *revision != 0 && *revision < before.compacted => {
                    return Err(Some(Refusal::Compacted));
                }
                Plan::Txn { .. } => self.check(op, before)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn run(&mut self, plan: &Plan, before: &Self) -> Result<(), Refused> {
        let main = before.revision + 1;
        for op in Self::list(plan, before) {
            match op {
                Plan::Put { key, value, lease, ignore_value, ignore_lease } => {
                    let old = self.live.get(key).cloned();
                    if (*ignore_value || *ignore_lease) && old.is_none() {
                        return Err(None);
                    }
                    let mut new = Living {
                        create: main,
                        modified: main,
                        version: 1,
                        lease: *lease,
                        value: value.clone(),
                    };
                    if let Some(old) = old {
                        new.create = old.create;
                        new.version = old.version + 1;
                        new.lease = if *ignore_lease { old.lease } else { new.lease };
                        new.value = if *ignore_value { old.value } else { new.value };
                    }
                    self.live.insert(key.clone(), new);
                    self.changed = true;
                }
                Plan::Delete { keys, .. } => {
                    for key in self.matching(keys) {
                        self.live.remove(&key);
                        self.changed = true;
                    }
                }
                Plan::Txn { .. } => self.run(op, before)?,
                _ => {}
            }
        }
        Ok(())
    }
}
