//! A store as simple as can be: every change that ever was, and each question answered by looking
//! at all of them. It shares no code with the real one but the shapes of requests and answers.
//!
//! Source: etcd `v3rpc/key.go`, `etcdserver/txn`, `storage/mvcc`, `lease`, 3.6.16 and 3.7.3.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::{BTreeMap, BTreeSet};

use etcdkit::etcd::apply::Refusal;
use etcdkit::etcd::record::KeyValue;
use etcdkit::etcd::request::{
    Body, Compare, DeleteRange, Op, Operand, Put, Range, Span, Txn, span,
};
use etcdkit::etcd::revision::Revision;
use etcdkit::store::{Error, Kv, answer};

const TTL_MIN_S: i64 = 2;
const TTL_MAX_S: i64 = 9_000_000_000;
pub(crate) const TXN_OPS_MAX: usize = 128;

/// What was put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    pub(crate) create: i64,
    pub(crate) version: i64,
    pub(crate) lease: i64,
    pub(crate) value: Vec<u8>,
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) at: Revision,
    pub(crate) key: Vec<u8>,
    /// `None` where it was deleted.
    pub(crate) put: Option<Written>,
}

impl Record {
    pub(crate) fn kv(&self) -> Kv {
        self.encode(false, false)
    }

    fn encode(&self, without_value: bool, without_lease: bool) -> Kv {
        let Some(put) = &self.put else { return Kv::encode(&KeyValue::tombstone(&self.key)) };
        Kv::encode(&KeyValue {
            key: &self.key,
            create_revision: put.create,
            mod_revision: self.at.main,
            version: put.version,
            value: if without_value { &[] } else { &put.value },
            lease: if without_lease { 0 } else { put.lease },
            unknown_field: None,
        })
    }
}

/// What a store says to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Range(answer::Range),
    Other(answer::Body),
}

/// With the revision.
pub(crate) type Said = Result<(i64, Reply), Error>;

/// The store.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) revision: i64,
    pub(crate) compacted: i64,
    pub(crate) history: Vec<Record>,
    pub(crate) leases: BTreeMap<i64, i64>,
    /// Member and kind.
    pub(crate) alarms: BTreeSet<(u64, u64)>,
    /// A read without values leaves leases out too: 3.7 and newer.
    pub(crate) keys_only_without_lease: bool,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            revision: 1,
            compacted: -1,
            history: Vec::new(),
            leases: BTreeMap::new(),
            alarms: BTreeSet::new(),
            keys_only_without_lease: true,
        }
    }
}

type Keys<'m> = BTreeMap<&'m [u8], &'m Record>;

fn refused<T>(refusal: Refusal) -> Result<T, Error> {
    Err(Error::Refused(refusal))
}

impl Model {
    /// Live keys with their records up to a main revision.
    pub(crate) fn live_at(&self, main: i64) -> Keys<'_> {
        let mut live = Keys::new();
        for record in self.history.iter().take_while(|record| record.at.main <= main) {
            match record.put {
                Some(_) => drop(live.insert(&record.key, record)),
                None => drop(live.remove(record.key.as_slice())),
            }
        }
        live
    }

    /// Live keys with everything that happened, also in a transaction that is being done.
    pub(crate) fn live(&self) -> Keys<'_> {
        self.live_at(i64::MAX)
    }

    /// Does a request.
    pub(crate) fn ask(&mut self, body: &Body<'_>) -> Said {
        check_form(body)?;
        let before = self.history.len();
        let is_read = match body {
            Body::Range(_) => true,
            Body::Txn(txn) => txn.success.iter().chain(&txn.failure).all(is_range),
            _ => false,
        };
        if !is_read {
            self.check_alarms(body)?;
        }
        let reply = match body {
            Body::Range(range) => {
                self.check_range_revision(range.revision.max(0))?;
                Reply::Range(self.range(range))
            }
            Body::Put(put) => {
                self.check_put(put)?;
                Reply::Other(answer::Body::Put(self.put(put)))
            }
            Body::DeleteRange(delete) => {
                Reply::Other(answer::Body::DeleteRange(self.delete(delete)))
            }
            Body::Txn(txn) => {
                let mut path = Vec::new();
                self.choose(txn, &mut path);
                self.check_ops(txn, &mut path.iter())?;
                Reply::Other(answer::Body::Txn(self.txn(txn, &mut path.iter())))
            }
            Body::Compaction(compaction) => {
                if compaction.revision <= self.compacted {
                    return refused(Refusal::Compacted);
                }
                if compaction.revision > self.revision {
                    return refused(Refusal::FutureRevision);
                }
                self.compacted = compaction.revision;
                Reply::Other(answer::Body::Done)
            }
            Body::LeaseGrant(grant) => {
                if grant.ttl_s > TTL_MAX_S {
                    return refused(Refusal::LeaseTtlTooLarge);
                }
                if self.leases.contains_key(&grant.id) {
                    return refused(Refusal::LeaseExists);
                }
                let ttl_s = grant.ttl_s.max(TTL_MIN_S);
                self.leases.insert(grant.id, ttl_s);
                Reply::Other(answer::Body::LeaseGrant { id: grant.id, ttl_s })
            }
            Body::LeaseRevoke(revoke) => {
                if self.leases.remove(&revoke.id).is_none() {
                    return refused(Refusal::LeaseNotFound);
                }
                for key in self.lease_keys(revoke.id) {
                    self.push(key, None);
                }
                Reply::Other(answer::Body::Done)
            }
            Body::Alarm(alarm) => {
                let one = (alarm.member_id, alarm.alarm);
                let told: Vec<_> = match alarm.action {
                    0 => {
                        let all = self.alarms.iter();
                        all.filter(|a| alarm.alarm == 0 || a.1 == alarm.alarm).copied().collect()
                    }
                    1 if alarm.alarm == 0 => Vec::new(),
                    1 => {
                        self.alarms.insert(one);
                        vec![one]
                    }
                    _ => self.alarms.remove(&one).then_some(one).into_iter().collect(),
                };
                Reply::Other(answer::Body::Alarms(told))
            }
            other => panic!("the model does not know {other:?}"),
        };
        if self.history.len() > before {
            self.revision += 1;
        }
        Ok((self.revision, reply))
    }

    fn check_alarms(&self, body: &Body<'_>) -> Result<(), Error> {
        let stands = |kind: u64| self.alarms.iter().any(|alarm| alarm.1 == kind);
        let (puts, others) = match body {
            Body::Put(_) | Body::LeaseGrant(_) => (true, true),
            Body::Txn(txn) => (has_put(txn), true),
            Body::DeleteRange(_) | Body::Compaction(_) | Body::LeaseRevoke(_) => (false, true),
            _ => (false, false),
        };
        if others && stands(2) {
            return refused(Refusal::Corrupt);
        }
        if puts && stands(1) {
            return refused(Refusal::NoSpace);
        }
        Ok(())
    }

    pub(crate) fn lease_keys(&self, id: i64) -> Vec<Vec<u8>> {
        let live = self.live();
        let on_it = live.values().filter(|record| record.put.as_ref().unwrap().lease == id);
        on_it.map(|record| record.key.clone()).collect()
    }

    fn push(&mut self, key: Vec<u8>, put: Option<Written>) {
        let main = self.revision + 1;
        let sub = self.history.iter().filter(|record| record.at.main == main).count();
        let at = Revision::new(main, i64::try_from(sub).unwrap());
        self.history.push(Record { at, key, put });
    }

    fn check_put(&self, put: &Put<'_>) -> Result<(), Error> {
        if put.lease != 0 && !self.leases.contains_key(&put.lease) {
            return refused(Refusal::LeaseNotFound);
        }
        let keeps = put.ignore_value || put.ignore_lease;
        if keeps && !self.live().contains_key(put.key) {
            return refused(Refusal::KeyNotFound);
        }
        Ok(())
    }

    fn put(&mut self, put: &Put<'_>) -> answer::Put {
        let before = self.live().get(put.key).map(|record| (*record).clone());
        let old = before.as_ref().and_then(|record| record.put.clone());
        let written = Written {
            create: old.as_ref().map_or(self.revision + 1, |old| old.create),
            version: old.as_ref().map_or(1, |old| old.version + 1),
            lease: if put.ignore_lease { old.as_ref().unwrap().lease } else { put.lease },
            value: if put.ignore_value { old.unwrap().value } else { put.value.to_vec() },
        };
        self.push(put.key.to_vec(), Some(written));
        answer::Put { prev_kv: before.filter(|_| put.prev_kv).map(|record| record.kv()) }
    }

    fn delete(&mut self, delete: &DeleteRange<'_>) -> answer::DeleteRange {
        let span = span(delete.key, delete.range_end);
        let all = self.live();
        let gone: Vec<Record> =
            all.values().filter(|r| span.contains(&r.key)).map(|r| (*r).clone()).collect();
        for record in &gone {
            self.push(record.key.clone(), None);
        }
        let kept = if delete.prev_kv { gone.iter().map(Record::kv).collect() } else { Vec::new() };
        answer::DeleteRange { deleted: i64::try_from(gone.len()).unwrap(), prev_kvs: kept }
    }

    fn check_range_revision(&self, revision: i64) -> Result<(), Error> {
        match revision {
            0 => Ok(()),
            at if at > self.revision => refused(Refusal::FutureRevision),
            at if at < self.compacted => refused(Refusal::Compacted),
            _ => Ok(()),
        }
    }

    fn range(&self, range: &Range<'_>) -> answer::Range {
        let main = if range.revision > 0 { range.revision } else { i64::MAX };
        let span = span(range.key, range.range_end);
        let live = self.live_at(main);
        let mut found: Vec<&Record> =
            live.values().copied().filter(|record| span.contains(&record.key)).collect();
        let count = i64::try_from(found.len()).unwrap();
        if range.count_only {
            return answer::Range { kvs: Vec::new(), more: false, count };
        }
        let filters = [
            range.min_mod_revision,
            range.max_mod_revision,
            range.min_create_revision,
            range.max_create_revision,
        ];
        let limit = usize::try_from(range.limit).unwrap_or(0);
        // With an order that is only implied too few are fetched, and then sorted.
        let is_cut_first = range.sort_order == 0 && filters == [0; 4];
        if limit > 0 && is_cut_first {
            found.truncate(limit.saturating_add(1));
        }
        let put = |record: &Record| record.put.clone().unwrap();
        let [min_mod, max_mod, min_create, max_create] = filters;
        found.retain(|record| {
            (max_mod == 0 || record.at.main <= max_mod)
                && (min_mod == 0 || record.at.main >= min_mod)
                && (max_create == 0 || put(record).create <= max_create)
                && (min_create == 0 || put(record).create >= min_create)
        });
        let order = match range.sort_order {
            0 if range.sort_target != 0 => 1,
            order => order,
        };
        if order > 0 {
            found.sort_by(|a, b| {
                let (one, other) = (put(a), put(b));
                let ordering = match range.sort_target {
                    1 => one.version.cmp(&other.version),
                    2 => one.create.cmp(&other.create),
                    3 => a.at.main.cmp(&b.at.main),
                    4 => one.value.cmp(&other.value),
                    _ => a.key.cmp(&b.key),
                };
                if order == 2 { ordering.reverse() } else { ordering }
            });
        }
        let more = limit > 0 && found.len() > limit;
        if more {
            found.truncate(limit);
        }
        let without_lease =
            range.keys_only && self.keys_only_without_lease && range.sort_target != 4;
        let kvs = found.iter().map(|record| record.encode(range.keys_only, without_lease));
        answer::Range { kvs: kvs.collect(), more, count }
    }

    fn choose(&self, txn: &Txn<'_>, path: &mut Vec<bool>) {
        let succeeded = txn.compare.iter().all(|compare| self.holds(compare));
        path.push(succeeded);
        for op in if succeeded { &txn.success } else { &txn.failure } {
            if let Op::Txn(inner) = op {
                self.choose(inner, path);
            }
        }
    }

    fn holds(&self, compare: &Compare<'_>) -> bool {
        const VALUE: u64 = 3;
        let live = self.live();
        let span = span(compare.key, compare.range_end);
        let found: Vec<&Record> =
            live.values().copied().filter(|record| span.contains(&record.key)).collect();
        if found.is_empty() {
            let zeros = Written { create: 0, version: 0, lease: 0, value: Vec::new() };
            let zeros = Record { at: Revision::new(0, 0), key: Vec::new(), put: Some(zeros) };
            return compare.target != VALUE && holds_for(compare, &zeros);
        }
        found.iter().all(|record| holds_for(compare, record))
    }

    fn check_ops(&self, txn: &Txn<'_>, path: &mut std::slice::Iter<'_, bool>) -> Result<(), Error> {
        let succeeded = *path.next().unwrap();
        for op in if succeeded { &txn.success } else { &txn.failure } {
            match op {
                Op::Range(range) => self.check_range_revision(range.revision)?,
                Op::Put(put) => self.check_put(put)?,
                Op::Txn(inner) => self.check_ops(inner, path)?,
                Op::DeleteRange(_) | Op::Nothing => {}
            }
        }
        Ok(())
    }

    fn txn(&mut self, txn: &Txn<'_>, path: &mut std::slice::Iter<'_, bool>) -> answer::Txn {
        let succeeded = *path.next().unwrap();
        let mut responses = Vec::new();
        for op in if succeeded { &txn.success } else { &txn.failure } {
            let op = match op {
                Op::Nothing => answer::Op::Nothing,
                Op::Range(range) => answer::Op::Range(self.range(range)),
                Op::Put(put) => answer::Op::Put(self.put(put)),
                Op::DeleteRange(delete) => answer::Op::DeleteRange(self.delete(delete)),
                Op::Txn(inner) => answer::Op::Txn(self.txn(inner, path)),
            };
            let has_header = !matches!(op, answer::Op::Nothing | answer::Op::Txn(_));
            let newest = self.history.last().map_or(0, |record| record.at.main);
            let revision = if has_header { newest.max(self.revision) } else { 0 };
            responses.push(answer::Response { revision, op });
        }
        answer::Txn { succeeded, responses }
    }

    /// What watchers are to see, by main revision.
    pub(crate) fn events(&self, keys: Span<'_>, from: i64) -> Vec<&Record> {
        let wanted = |record: &&Record| record.at.main >= from && keys.contains(&record.key);
        self.history.iter().filter(wanted).collect()
    }

    /// The record of a key before a main revision.
    pub(crate) fn previous(&self, key: &[u8], main: i64) -> Option<&Record> {
        self.live_at(main - 1).get(key).copied()
    }

    /// etcd's HashKV at a revision. Of what is compacted it sums what a compaction at that revision
    /// would leave, unless that is nothing at all.
    pub(crate) fn hash_kv(&self, revision: i64) -> u32 {
        let newest_at = |main: i64| {
            let mut newest: BTreeMap<&[u8], &Record> = BTreeMap::new();
            for record in self.history.iter().filter(|record| record.at.main <= main) {
                newest.insert(&record.key, record);
            }
            let live = newest.into_values().filter(|record| record.put.is_some());
            live.map(|record| record.at).collect::<BTreeSet<Revision>>()
        };
        let (left, stays) = (newest_at(self.compacted), newest_at(revision));
        let mut crc = crc32c::crc32c(b"key");
        for record in self.history.iter().filter(|record| record.at.main <= revision) {
            let is_old = record.at.main <= self.compacted;
            let is_kept = stays.is_empty() || stays.contains(&record.at);
            if is_old && !(left.contains(&record.at) && is_kept) {
                continue;
            }
            crc = match record.put {
                Some(_) => crc32c::crc32c_append(crc, &record.at.encode()),
                None => crc32c::crc32c_append(crc, &record.at.encode_tombstone()),
            };
            crc = crc32c::crc32c_append(crc, record.kv().bytes());
        }
        crc
    }

    /// The rows of bucket `key` once all compactions are finished.
    pub(crate) fn key_rows(&self) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut rows = BTreeMap::new();
        for (n, record) in self.history.iter().enumerate() {
            let superseded =
                |other: &Record| other.key == record.key && other.at.main <= self.compacted;
            let is_old = record.at.main <= self.compacted;
            let is_gone = is_old
                && (self.history[n + 1..].iter().any(superseded)
                    || (record.put.is_none() && record.at.main < self.compacted));
            if !is_gone {
                let key = match record.put {
                    Some(_) => record.at.encode().to_vec(),
                    None => record.at.encode_tombstone().to_vec(),
                };
                rows.insert(key, record.kv().bytes().to_vec());
            }
        }
        rows
    }
}

fn holds_for(compare: &Compare<'_>, record: &Record) -> bool {
    let put = record.put.as_ref().unwrap();
    let number = |operand| match (compare.target, operand) {
        (0, Some(Operand::Version(n)))
        | (1, Some(Operand::CreateRevision(n)))
        | (2, Some(Operand::ModRevision(n)))
        | (4, Some(Operand::Lease(n))) => n,
        _ => 0,
    };
    let wanted = number(compare.operand);
    let order = match compare.target {
        0 => put.version.cmp(&wanted),
        1 => put.create.cmp(&wanted),
        2 => record.at.main.cmp(&wanted),
        3 => match compare.operand {
            Some(Operand::Value(value)) => put.value.as_slice().cmp(value),
            _ => put.value.as_slice().cmp(&[]),
        },
        4 => put.lease.cmp(&wanted),
        _ => std::cmp::Ordering::Equal,
    };
    match compare.result {
        0 => order.is_eq(),
        1 => order.is_gt(),
        2 => order.is_lt(),
        3 => order.is_ne(),
        _ => true,
    }
}

fn is_range(op: &Op<'_>) -> bool {
    matches!(op, Op::Range(_))
}

fn has_put(txn: &Txn<'_>) -> bool {
    txn.success.iter().chain(&txn.failure).any(|op| match op {
        Op::Put(_) => true,
        Op::Txn(inner) => has_put(inner),
        _ => false,
    })
}

fn check_form(body: &Body<'_>) -> Result<(), Error> {
    match body {
        Body::Range(range) => check_op(&Op::Range(range.clone()), 0),
        Body::Put(put) => check_op(&Op::Put(put.clone()), 0),
        Body::DeleteRange(delete) => check_op(&Op::DeleteRange(delete.clone()), 0),
        Body::Txn(txn) => {
            check_txn(txn, TXN_OPS_MAX)?;
            check_overlap(&txn.success)?;
            check_overlap(&txn.failure)?;
            Ok(())
        }
        _ => Ok(()),
    }
}

fn check_txn(txn: &Txn<'_>, ops_max: usize) -> Result<(), Error> {
    let most = txn.compare.len().max(txn.success.len()).max(txn.failure.len());
    let Some(left) = ops_max.checked_sub(most) else { return Err(Error::TooManyOps) };
    if txn.compare.iter().any(|compare| compare.key.is_empty()) {
        return Err(Error::EmptyKey);
    }
    txn.success.iter().chain(&txn.failure).try_for_each(|op| check_op(op, left))
}

fn check_op(op: &Op<'_>, ops_max: usize) -> Result<(), Error> {
    let has_key = |key: &[u8]| if key.is_empty() { Err(Error::EmptyKey) } else { Ok(()) };
    match op {
        Op::Nothing => refused(Refusal::KeyNotFound),
        Op::Range(range) => {
            has_key(range.key)?;
            let is_known = range.sort_order <= 2 && range.sort_target <= 4;
            if is_known { Ok(()) } else { Err(Error::InvalidSort) }
        }
        Op::Put(put) => {
            has_key(put.key)?;
            if put.ignore_value && !put.value.is_empty() {
                return Err(Error::ValueProvided);
            }
            if put.ignore_lease && put.lease != 0 {
                return Err(Error::LeaseProvided);
            }
            Ok(())
        }
        Op::DeleteRange(delete) => has_key(delete.key),
        Op::Txn(txn) => check_txn(txn, ops_max),
    }
}

type Overlap = (BTreeSet<Vec<u8>>, Vec<(Vec<u8>, Vec<u8>)>);

/// Keys that a list puts and ranges that it deletes, unless a key is changed twice.
fn check_overlap(ops: &[Op<'_>]) -> Result<Overlap, Error> {
    let (mut puts, mut deletes) = (BTreeSet::new(), Vec::new());
    for op in ops {
        if let Op::DeleteRange(delete) = op {
            deletes.push((delete.key.to_vec(), delete.range_end.to_vec()));
        }
    }
    let deleted = |deletes: &[(Vec<u8>, Vec<u8>)], key: &[u8]| {
        deletes.iter().any(|(from, end)| span(from, end).contains(key))
    };
    for op in ops {
        let Op::Txn(txn) = op else { continue };
        let (then_puts, then_deletes) = check_overlap(&txn.success)?;
        let (else_puts, else_deletes) = check_overlap(&txn.failure)?;
        let both = then_puts.iter().chain(&else_puts);
        for key in both {
            if puts.contains(key) || deleted(&deletes, key) {
                return Err(Error::DuplicateKey);
            }
        }
        puts.extend(then_puts);
        puts.extend(else_puts);
        deletes.extend(then_deletes);
        deletes.extend(else_deletes);
    }
    for op in ops {
        let Op::Put(put) = op else { continue };
        if deleted(&deletes, put.key) || !puts.insert(put.key.to_vec()) {
            return Err(Error::DuplicateKey);
        }
    }
    Ok((puts, deletes))
}
