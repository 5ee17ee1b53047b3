//! Requests on keys: put, range, delete, transaction, compaction; and how any request is logged.
//!
//! A request is looked at before it is logged (form, permission, room, size), encoded once, and
//! queued. What the caller waits for comes when the entry is synced and applied.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::queue::{Done, Outcome, Proposal, Reply};
use super::{LAG_MAX, Shared, Store, Submission};
use crate::etcd::apply::Refusal;
use crate::etcd::request::{Body, Compaction, DeleteRange, Header, Op, Put, Range, Request, Txn};
use crate::format::wal::entry_kind;
use crate::store::answer::{self, Answer};
use crate::store::error::Error;
use crate::store::figures::Kind;
use crate::store::guard::{self, Caller, Wish};
use crate::store::pending::{Pending, pending};

impl Store {
    /// Takes a request to be logged, and returns what will come of it: to be waited for by a
    /// thread, or awaited as a future. A transaction that only reads is answered at once.
    ///
    /// A waker runs on one of the store's threads, with no lock held: it must not block, as the
    /// other requests wait for it, and so not wait for an answer of the store.
    ///
    /// # Errors
    /// The request is refused before it is logged.
    pub fn submit<'a>(
        &self,
        caller: &Caller,
        request: impl Into<Submission<'a>>,
    ) -> Result<Pending<Outcome>, Error> {
        self.shared().submit(caller, request.into().into_body())
    }

    /// Writes a key.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn put(&self, caller: &Caller, request: Put<'_>) -> Result<Answer<answer::Put>, Error> {
        match self.done(caller, Body::Put(request))? {
            Answer { revision, body: answer::Body::Put(body) } => Ok(Answer { revision, body }),
            other => Err(unexpected(&other)),
        }
    }

    /// Deletes keys.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn delete_range(
        &self,
        caller: &Caller,
        request: DeleteRange<'_>,
    ) -> Result<Answer<answer::DeleteRange>, Error> {
        match self.done(caller, Body::DeleteRange(request))? {
            Answer { revision, body: answer::Body::DeleteRange(body) } => {
                Ok(Answer { revision, body })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Does one of two lists of operations, all at one revision.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn txn(&self, caller: &Caller, request: Txn<'_>) -> Result<Answer<answer::Txn>, Error> {
        match self.done(caller, Body::Txn(request))? {
            Answer { revision, body: answer::Body::Txn(body) } => Ok(Answer { revision, body }),
            other => Err(unexpected(&other)),
        }
    }

    /// Checks the form of a request: etcd tells what is wrong with it before it asks who calls.
    ///
    /// # Errors
    /// As etcd answers.
    pub fn check_form(&self, request: &Body<'_>) -> Result<(), Error> {
        guard::check_form(request, self.shared().options.txn_ops_max)
    }

    /// Reads keys. What was answered before this call is seen, serializable or not.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn range(
        &self,
        caller: &Caller,
        request: &Range<'_>,
    ) -> Result<Answer<answer::Range>, Error> {
        let shared = self.shared();
        guard::check_range_form(request)?;
        let began = Instant::now();
        let wish = Wish::Range(request.key, request.range_end);
        let looked = shared.look(caller, wish, |mvcc| mvcc.plan_range(request));
        let is_allowed = looked.is_ok();
        let read = || {
            let mut plan = looked??;
            while !plan.is_planned() {
                shared.core.read(|mvcc| mvcc.plan_more(&mut plan))?;
            }
            plan.fetch()
        };
        let answer = read();
        shared.figures.note_range(began, answer.is_ok(), is_allowed);
        answer
    }

    /// Forgets what is older than a revision; physical: waits until it is gone from the database.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn compact(&self, caller: &Caller, request: Compaction) -> Result<Answer<()>, Error> {
        let waits = request.physical;
        let pending = self.submit(caller, request)?;
        let done = match waits {
            true => self.shared().settle(pending.wait()),
            false => self.wait(pending),
        }?;
        Ok(Answer { revision: done.answer.revision, body: () })
    }

    /// Waits for what comes of a request, as long as a caller waits.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Timeout`] after [`super::Options::request_timeout`].
    pub fn wait(&self, pending: Pending<Outcome>) -> Outcome {
        match pending.wait_for(self.shared().options.request_timeout) {
            Ok(outcome) => self.shared().settle(outcome),
            Err(_) => {
                self.shared().figures.failed.add(1);
                Err(Error::Timeout)
            }
        }
    }

    /// How long a caller waits for an answer.
    #[must_use]
    pub fn request_timeout(&self) -> std::time::Duration {
        self.shared().options.request_timeout
    }

    /// Turns what an awaited [`Store::submit`] gave into the outcome: where no answer will come,
    /// the reason.
    ///
    /// # Errors
    /// As etcd answers; why no answer comes.
    pub fn settle(&self, awaited: Option<Outcome>) -> Outcome {
        self.shared().settle(awaited)
    }

    /// Makes a request and waits for its answer.
    pub(super) fn done(&self, caller: &Caller, body: Body<'_>) -> Result<Answer, Error> {
        let pending = self.shared().submit(caller, body)?;
        Ok(self.wait(pending)?.answer)
    }
}

/// Makes the error of an answer of another kind than the request's.
pub(super) fn unexpected(answer: &Answer) -> Error {
    let what = match answer.body {
        answer::Body::Done => "nothing",
        answer::Body::Put(_) => "a put",
        answer::Body::DeleteRange(_) => "a delete",
        answer::Body::Txn(_) => "a transaction",
        answer::Body::LeaseGrant { .. } => "a lease",
        answer::Body::Alarms(_) => "alarms",
    };
    Error::Storage(format!("the state answered {what} to another request"))
}

impl Shared {
    /// Turns an answer that will not come into the reason.
    pub(super) fn settle(&self, outcome: Option<Outcome>) -> Outcome {
        outcome.unwrap_or_else(|| Err(self.health.unknown_outcome()))
    }

    pub(super) fn submit(
        &self,
        caller: &Caller,
        mut body: Body<'_>,
    ) -> Result<Pending<Outcome>, Error> {
        if let Some(error) = self.health.refusal() {
            return Err(error);
        }
        guard::check_form(&body, self.options.txn_ops_max)?;
        if let Body::Txn(txn) = &body
            && is_read_only(txn)
        {
            let began = Instant::now();
            let done = self.read_txn(caller, &body, txn);
            self.figures.note_read_txn(began, done.is_ok());
            let done = done?;
            let (promise, pending) = pending();
            promise.fulfil(Ok(done));
            return Ok(pending);
        }
        self.check_writable()?;
        self.check(caller, Wish::Request(&body))?;
        let makes_rows_longer = makes_rows_longer(&body);
        if makes_rows_longer {
            self.core.read(|mvcc| guard::check_growth(mvcc, &body))??;
        }
        let (promise, pending) = pending();
        let cost = guard::cost(&body);
        if cost > 0 && !self.backend.admits(cost) {
            let refusal = Error::Refused(Refusal::NoSpace);
            if self.alarms()?.contains(&(self.member.0, NOSPACE)) {
                return Err(refusal);
            }
            self.raise_nospace(Reply::Refused(promise, refusal));
            return Ok(pending);
        }
        let asked = (Kind::of(&body), Instant::now());
        let failed = |error| {
            self.figures.note_request(Some(asked), false, Instant::now());
            error
        };
        self.check_lag(LAG_MAX).map_err(failed)?;
        if let Body::LeaseGrant(grant) = &mut body
            && grant.id == 0
        {
            grant.id = self.new_lease_id();
        }
        let touches_auth = touches_auth(&body);
        let data = self.encode(caller, body);
        if data.len() > self.options.request_bytes_max {
            return Err(failed(Error::TooLarge));
        }
        if makes_rows_longer && data.len() > LONG_BYTES {
            self.check_lag(LAG_MAX_LONG).map_err(failed)?;
        }
        let reply = Reply::Caller(promise);
        let kind = entry_kind::NORMAL;
        let asked = Some(asked);
        self.propose(Proposal { kind, data, cost, touches_auth, asked, reply }).map_err(failed)?;
        Ok(pending)
    }

    /// Refuses requests while more entries than this wait to be applied.
    fn check_lag(&self, max: u64) -> Result<(), Error> {
        let applied = self.core.applied.load(Ordering::Acquire);
        let lag = self.committed.load(Ordering::Acquire).saturating_sub(applied);
        if lag > max { Err(Error::TooManyRequests) } else { Ok(()) }
    }

    /// Encodes a request with who makes it.
    fn encode(&self, caller: &Caller, body: Body<'_>) -> Vec<u8> {
        let mut header = Header { id: self.new_id(), username: b"", auth_revision: 0 };
        if self.core.is_auth_on()
            && let Some(user) = &caller.user
        {
            header.username = user.name.as_bytes();
            header.auth_revision = user.auth_revision;
        }
        Request { id: 0, header: Some(header), body }.encode()
    }

    /// Answers a transaction that only reads, from one state.
    fn read_txn(&self, caller: &Caller, body: &Body<'_>, txn: &Txn<'_>) -> Result<Done, Error> {
        let wish = Wish::Request(body);
        let mut plan = self.look(caller, wish, |mvcc| mvcc.plan_txn(txn))??;
        self.figures.count_read_txn(plan.tally());
        while !plan.is_planned() {
            self.core.read(|mvcc| mvcc.plan_more_txn(&mut plan))?;
        }
        let Answer { revision, body } = plan.fetch()?;
        let index = self.core.applied.load(Ordering::Acquire);
        Ok(Done { index, answer: Answer { revision, body: answer::Body::Txn(body) } })
    }
}

/// Kind of the alarm NOSPACE.
const NOSPACE: u64 = 1;

/// Entries that may be synced and not applied yet before a request is taken that makes a row
/// longer by more than [`LONG_BYTES`]: its length is looked at now, and must still be about that
/// when the request is applied.
const LAG_MAX_LONG: u64 = 64;
const LONG_BYTES: usize = 64 << 10;

fn makes_rows_longer(body: &Body<'_>) -> bool {
    matches!(body, Body::RoleGrantPermission(_) | Body::UserGrantRole(_))
}

fn touches_auth(body: &Body<'_>) -> bool {
    matches!(
        body,
        Body::AuthEnable(_)
            | Body::AuthDisable(_)
            | Body::UserDelete(_)
            | Body::UserChangePassword(_)
            | Body::RoleDelete(_)
    )
}

/// Tells whether a transaction has reads only, and none inside it: such a one is not logged.
fn is_read_only(txn: &Txn<'_>) -> bool {
    txn.success.iter().chain(&txn.failure).all(|op| matches!(op, Op::Range(_)))
}
