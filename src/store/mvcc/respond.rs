//! What a client is told of a request that was applied, and of a transaction that only reads.
//!
//! A read inside a transaction sees the changes before it and not those after: records before the
//! revision (main, number of changes so far).
//!
//! Source: etcd `etcdserver/txn` (`put`, `deleteRange`, `executeTxn`), `mvcc/kvstore_txn.go`,
//! `etcdserver/apply`, 3.6.16.

use super::read::{RangePlan, STEP_KEYS, record};
use super::{Applied, Mvcc, Tally};
use crate::etcd::apply::{self, Change, Effect, Latest, ReadError, Step};
use crate::etcd::request::{Body, Op, Txn};
use crate::etcd::revision::Revision;
use crate::store::answer;
use crate::store::error::Error;
use crate::store::kv::Kv;

/// A transaction that only reads, planned.
#[derive(Debug)]
pub struct TxnPlan {
    revision: i64,
    txn: answer::Txn,
    reads: Vec<RangePlan>,
    tally: Tally,
}

/// Builds the answer of a transaction; its reads, and the records that its deletes are to answer,
/// are planned and filled in at the end, in order.
struct Builder<'m, 'e> {
    state: &'m Mvcc,
    steps: std::slice::Iter<'e, Step>,
    changes: &'e [Change<'e>],
    /// Current revision before.
    begin: i64,
    reads: Vec<RangePlan>,
    /// The reads are not planned yet, but pinned.
    is_stepwise: bool,
}

impl Mvcc {
    /// Tells whether the alarm that a request is about stands before it is done.
    pub(super) fn alarm_before(&self, body: Option<&Body<'_>>) -> bool {
        let Some(Body::Alarm(request)) = body else { return false };
        let (member, kind) = (request.member_id, request.alarm);
        self.alarm_pairs().any(|alarm| alarm == (member, kind))
    }

    fn alarm_pairs(&self) -> impl Iterator<Item = (u64, u64)> {
        use crate::etcd::rows::AlarmKind;
        self.alarms().into_iter().map(|alarm| {
            let kind = match alarm.kind {
                AlarmKind::NoSpace => 1,
                AlarmKind::Corrupt => 2,
                AlarmKind::Other(kind) => kind,
            };
            (alarm.member_id.0, kind)
        })
    }

    /// Makes the answer of a request that was done and taken over; what is still to be read for it
    /// goes to `reads`.
    pub(super) fn respond(
        &self,
        body: Option<&Body<'_>>,
        effect: &Effect<'_>,
        alarm_stood: bool,
        reads: &mut Vec<RangePlan>,
    ) -> Result<answer::Answer, Error> {
        const GET: u64 = 0;
        const RAISE: u64 = 1;
        const CLEAR: u64 = 2;
        let body = match body {
            Some(Body::Put(request)) => {
                let change = effect.changes.first().filter(|_| request.prev_kv);
                answer::Body::Put(answer::Put { prev_kv: self.before(change)? })
            }
            Some(Body::DeleteRange(request)) => {
                let (deleted, records) = self.deleted(&effect.changes, request.prev_kv);
                reads.push(records);
                answer::Body::DeleteRange(deleted)
            }
            Some(Body::Txn(request)) => {
                let is_write = !effect.changes.is_empty();
                let mut builder = Builder {
                    state: self,
                    steps: effect.steps.iter(),
                    changes: &effect.changes,
                    begin: effect.revision.saturating_sub(i64::from(is_write)),
                    reads: Vec::new(),
                    is_stepwise: false,
                };
                let txn = builder.txn(request)?;
                reads.append(&mut builder.reads);
                answer::Body::Txn(txn)
            }
            Some(Body::LeaseGrant(request)) => {
                let ttl_s = request.ttl_s.max(self.rules.lease_ttl_min_s);
                answer::Body::LeaseGrant { id: request.id, ttl_s }
            }
            Some(Body::Alarm(request)) => {
                let one = (request.member_id, request.alarm);
                answer::Body::Alarms(match request.action {
                    GET => self
                        .alarm_pairs()
                        .filter(|(_, kind)| request.alarm == 0 || *kind == request.alarm)
                        .collect(),
                    RAISE if request.alarm != 0 => vec![one],
                    CLEAR if alarm_stood => vec![one],
                    _ => Vec::new(),
                })
            }
            _ => answer::Body::Done,
        };
        Ok(answer::Answer { revision: effect.revision, body })
    }

    /// Reads the record that a change replaced.
    fn before(&self, change: Option<&Change<'_>>) -> Result<Option<Kv>, Error> {
        let before: Option<Latest> = change.and_then(|change| change.before);
        before.map(|before| self.record(before.modified)).transpose()
    }

    /// Reads a record from tail or view.
    fn record(&self, revision: Revision) -> Result<Kv, Error> {
        match self.tail.get(revision) {
            Some(kv) => Ok(kv.clone()),
            None => record(&self.view, revision),
        }
    }

    fn deleted(
        &self,
        changes: &[Change<'_>],
        with_records: bool,
    ) -> (answer::DeleteRange, RangePlan) {
        let deleted = i64::try_from(changes.len()).unwrap_or(i64::MAX);
        let wanted = changes.iter().filter(|_| with_records);
        let records = wanted.filter_map(|change| Some(change.before?.modified));
        (answer::DeleteRange { deleted, prev_kvs: Vec::new() }, self.plan_records(records))
    }

    /// Plans a transaction that only reads, or its first step: [`TxnPlan::is_planned`] tells. All
    /// of it is at the current revision.
    ///
    /// # Errors
    /// A read at a revision that is compacted or not there yet; a transaction that writes; the
    /// backend cannot be read.
    pub fn plan_txn(&self, request: &Txn<'_>) -> Result<TxnPlan, Error> {
        let mut plan = self.begin_txn(request)?;
        self.plan_more_txn(&mut plan);
        Ok(plan)
    }

    /// Plans the next step of a transaction that only reads.
    pub fn plan_more_txn(&self, plan: &mut TxnPlan) {
        let mut budget = STEP_KEYS;
        for read in plan.reads.iter_mut().filter(|read| !read.is_planned()) {
            budget = self.plan_some(read, budget);
            if budget == 0 {
                return;
            }
        }
    }

    fn begin_txn(&self, request: &Txn<'_>) -> Result<TxnPlan, Error> {
        let steps = apply::read_txn(self, request).map_err(|error| match error {
            ReadError::Refused(refusal) => Error::Refused(refusal),
            other => Error::Storage(other.to_string()),
        })?;
        let mut builder = Builder {
            state: self,
            steps: steps.iter(),
            changes: &[],
            begin: self.revision,
            reads: Vec::new(),
            is_stepwise: true,
        };
        let txn = builder.txn(request)?;
        let tally = Tally::of_reads(&steps);
        Ok(TxnPlan { revision: self.revision, txn, reads: builder.reads, tally })
    }
}

impl Builder<'_, '_> {
    fn txn(&mut self, request: &Txn<'_>) -> Result<answer::Txn, Error> {
        let Some(Step::Txn { succeeded, .. }) = self.steps.next() else { return Err(lost()) };
        let succeeded = *succeeded;
        let ops = if succeeded { &request.success } else { &request.failure };
        let mut responses = Vec::with_capacity(ops.len());
        for op in ops {
            responses.push(self.op(op)?);
        }
        Ok(answer::Txn { succeeded, responses })
    }

    fn op(&mut self, op: &Op<'_>) -> Result<answer::Response, Error> {
        let after = self.begin.saturating_add(1);
        let revision_of = |changes: usize| if changes == 0 { self.begin } else { after };
        if let Op::Txn(inner) = op {
            return Ok(answer::Response { revision: 0, op: answer::Op::Txn(self.txn(inner)?) });
        }
        let Some(step) = self.steps.next() else { return Err(lost()) };
        Ok(match (op, step) {
            (Op::Range(request), Step::Range(changes)) => {
                let sub = i64::try_from(*changes).unwrap_or(i64::MAX);
                let bound = match request.revision {
                    at if at > 0 => Revision::new(at.saturating_add(1), 0),
                    _ => Revision::new(after, sub),
                };
                let revision = revision_of(*changes);
                self.reads.push(match self.is_stepwise {
                    true => self.state.begin_at(request, bound, revision),
                    false => self.state.plan_whole(request, bound, revision),
                });
                let op = answer::Op::Range(answer::Range::default());
                answer::Response { revision, op }
            }
            (Op::Put(request), Step::Put(change)) => {
                let change = self.changes.get(*change).filter(|_| request.prev_kv);
                let prev_kv = self.state.before(change)?;
                answer::Response { revision: after, op: answer::Op::Put(answer::Put { prev_kv }) }
            }
            (Op::DeleteRange(request), Step::Delete(changes)) => {
                let deleted = self.changes.get(changes.clone()).unwrap_or_default();
                let (deleted, records) = self.state.deleted(deleted, request.prev_kv);
                self.reads.push(records);
                let revision = revision_of(changes.end);
                answer::Response { revision, op: answer::Op::DeleteRange(deleted) }
            }
            (Op::Nothing, Step::Nothing) => answer::Response::default(),
            _ => return Err(lost()),
        })
    }
}

fn lost() -> Error {
    Error::Storage("a transaction and its steps do not belong together".into())
}

/// Fills in the reads of a transaction, in order.
fn fill(txn: &mut answer::Txn, reads: &mut std::vec::IntoIter<RangePlan>) -> Result<(), Error> {
    for response in &mut txn.responses {
        match &mut response.op {
            answer::Op::Range(range) => {
                *range = reads.next().ok_or_else(lost)?.fetch()?.body;
            }
            answer::Op::DeleteRange(delete) => fill_deleted(delete, reads)?,
            answer::Op::Txn(inner) => fill(inner, reads)?,
            _ => {}
        }
    }
    Ok(())
}

fn fill_deleted(
    delete: &mut answer::DeleteRange,
    reads: &mut std::vec::IntoIter<RangePlan>,
) -> Result<(), Error> {
    delete.prev_kvs = reads.next().ok_or_else(lost)?.fetch()?.body.kvs;
    Ok(())
}

impl Applied {
    /// Reads what the answer still lacks; no lock is needed.
    pub fn fetch(&mut self) {
        let mut reads = std::mem::take(&mut self.reads).into_iter();
        if reads.len() == 0 {
            return;
        }
        let filled = match self.answer.as_mut().map(|answer| &mut answer.body) {
            Ok(answer::Body::DeleteRange(delete)) => fill_deleted(delete, &mut reads),
            Ok(answer::Body::Txn(txn)) => fill(txn, &mut reads),
            _ => Ok(()),
        };
        if let Err(error) = filled {
            self.answer = Err(error);
        }
    }
}

impl TxnPlan {
    /// What it asks of the keys.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Tells whether all steps are done.
    #[must_use]
    pub fn is_planned(&self) -> bool {
        self.reads.iter().all(RangePlan::is_planned)
    }

    /// Fetches the values; no lock is needed.
    ///
    /// # Errors
    /// The backend cannot be read.
    pub fn fetch(mut self) -> Result<answer::Answer<answer::Txn>, Error> {
        fill(&mut self.txn, &mut self.reads.into_iter())?;
        Ok(answer::Answer { revision: self.revision, body: self.txn })
    }
}
