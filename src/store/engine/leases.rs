//! Requests on leases and alarms.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::calls::unexpected;
use super::queue::{Proposal, Reply};
use super::{Shared, Store};
use crate::etcd::apply::{Refusal, State as _};
use crate::etcd::request::{
    Alarm, Body, LeaseCheckpoint, LeaseCheckpoints, LeaseGrant, LeaseRevoke,
};
use crate::etcd::{rows, schema};
use crate::store::answer::{self, Answer};
use crate::store::error::Error;
use crate::store::guard::{Caller, Wish};
use crate::store::lease::Renewal;
use crate::store::pending::{Pending, pending};

/// What is known of a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeaseStatus {
    /// Whole seconds that are left; -1 where there is no such lease.
    pub ttl_s: i64,
    /// Seconds it was granted; 0 where there is none.
    pub granted_ttl_s: i64,
    /// Keys that are attached, in order, where they were asked for.
    pub keys: Vec<Vec<u8>>,
}

/// What came of keeping a lease alive without waiting.
#[derive(Debug)]
pub enum KeepAlive {
    /// Its seconds to live; 0 where there is no such lease.
    Done(Answer<i64>),
    /// It ran out, and its end is on the way.
    Ending(LeaseEnd),
    /// The log has to be told: [`Store::lease_keep_alive`] does it, and waits.
    Recording,
}

/// Waits for the end of a lease, for as long as somebody polls; it answers as
/// [`Store::lease_keep_alive`] does, or that the store was closed.
#[derive(Debug)]
pub struct LeaseEnd {
    shared: Arc<Shared>,
    id: i64,
    revision: i64,
    /// `None` when it came.
    end: Option<Pending<()>>,
}

impl Future for LeaseEnd {
    type Output = Result<Answer<i64>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let revision = self.revision;
        let Some(end) = &mut self.end else { return Poll::Ready(Err(Error::Stopped)) };
        let ended = ready!(Pin::new(end).poll(context));
        self.end = None;
        Poll::Ready(ended.map(|()| Answer { revision, body: 0 }).ok_or(Error::Stopped))
    }
}

impl Drop for LeaseEnd {
    fn drop(&mut self) {
        if self.end.take().is_some() {
            self.shared.ends.prune(self.id);
        }
    }
}

impl Store {
    /// Grants a lease; 0 for an id that the store chooses. Answers its id and seconds to live.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn lease_grant(
        &self,
        caller: &Caller,
        id: i64,
        ttl_s: i64,
    ) -> Result<Answer<(i64, i64)>, Error> {
        match self.done(caller, Body::LeaseGrant(LeaseGrant { ttl_s, id }))? {
            Answer { revision, body: answer::Body::LeaseGrant { id, ttl_s } } => {
                Ok(Answer { revision, body: (id, ttl_s) })
            }
            other => Err(unexpected(&other)),
        }
    }

    /// Ends a lease and deletes its keys.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn lease_revoke(&self, caller: &Caller, id: i64) -> Result<Answer<()>, Error> {
        let answer = self.done(caller, Body::LeaseRevoke(LeaseRevoke { id }))?;
        Ok(Answer { revision: answer.revision, body: () })
    }

    /// Gives a lease its full time again; answers the seconds, 0 where there is no such lease. One
    /// that ran out and is about to be ended is waited for.
    ///
    /// # Errors
    /// No permission, or the store is closed.
    pub fn lease_keep_alive(&self, caller: &Caller, id: i64) -> Result<Answer<i64>, Error> {
        let shared = self.shared();
        shared.check_writable()?;
        shared.check(caller, Wish::KeepAlive(id))?;
        let revision = self.revision();
        let body = match shared.renew(id)? {
            Some(ttl_s) => ttl_s,
            None => {
                let end = shared.ends.of(id);
                // Its end may have come before it was waited for.
                let renewed = shared.renew(id);
                let waited = match renewed {
                    Ok(None) => end.wait_for(shared.options.request_timeout).map(|_| 0),
                    _ => {
                        drop(end);
                        Ok(0)
                    }
                };
                let is_late = waited.is_err();
                drop(waited);
                shared.ends.prune(id);
                match renewed? {
                    Some(ttl_s) => ttl_s,
                    None if is_late => return Err(Error::Timeout),
                    None => 0,
                }
            }
        };
        Ok(Answer { revision, body })
    }

    /// The same without a thread that waits: what has to be waited for is told.
    ///
    /// # Errors
    /// No permission, or the store is closed.
    pub fn lease_keep_alive_now(&self, caller: &Caller, id: i64) -> Result<KeepAlive, Error> {
        let shared = self.shared();
        shared.check_writable()?;
        shared.check(caller, Wish::KeepAlive(id))?;
        let revision = self.revision();
        let mut end = None;
        loop {
            let renewal = shared.lessor().renew(id);
            let ttl_s = match (renewal, end.take()) {
                (Renewal::Renewed { is_recorded: true, .. }, _) => return Ok(KeepAlive::Recording),
                (Renewal::Renewed { ttl_s, is_recorded: false }, _) => ttl_s,
                (Renewal::Missing, _) => 0,
                // Its end may have come before it was waited for.
                (Renewal::Ending, None) => {
                    end = Some(LeaseEnd {
                        shared: Arc::clone(shared),
                        id,
                        revision,
                        end: Some(shared.ends.of(id)),
                    });
                    continue;
                }
                (Renewal::Ending, Some(end)) => return Ok(KeepAlive::Ending(end)),
            };
            return Ok(KeepAlive::Done(Answer { revision, body: ttl_s }));
        }
    }

    /// Tells a lease's time, and its keys where they are asked for.
    ///
    /// # Errors
    /// No permission, or the store is closed.
    pub fn lease_time_to_live(
        &self,
        caller: &Caller,
        id: i64,
        keys: bool,
    ) -> Result<Answer<LeaseStatus>, Error> {
        let shared = self.shared();
        let mut held = Vec::new();
        if keys {
            held = shared
                .look(caller, Wish::LeaseKeys(id), |mvcc| mvcc.lease_keys(id))?
                .map_err(|error| Error::Storage(error.to_string()))?;
            held.sort_unstable();
        } else {
            shared.check(caller, Wish::AnyUser)?;
        }
        shared.core.check_open()?;
        let revision = self.revision();
        let Some(time) = shared.lessor().time_left(id) else {
            let body = LeaseStatus { ttl_s: -1, ..LeaseStatus::default() };
            return Ok(Answer { revision, body });
        };
        let body = LeaseStatus { ttl_s: time.ttl_s, granted_ttl_s: time.granted_ttl_s, keys: held };
        Ok(Answer { revision, body })
    }

    /// Lists all leases, those that end first, first.
    ///
    /// # Errors
    /// No permission, or the store is closed.
    pub fn leases(&self, caller: &Caller) -> Result<Answer<Vec<i64>>, Error> {
        let shared = self.shared();
        let body = shared.look(caller, Wish::Leases, |_| shared.lessor().list())?;
        Ok(Answer { revision: self.revision(), body })
    }

    /// Lists alarms as (member, kind), of one kind or, with 0, of all; raises one (action 1), or
    /// clears one (action 2).
    ///
    /// # Errors
    /// As etcd answers; an action or kind that there is not, which stops etcd, is refused.
    pub fn alarm(&self, caller: &Caller, request: Alarm) -> Result<Answer<Vec<(u64, u64)>>, Error> {
        const GET: u64 = 0;
        let shared = self.shared();
        if request.action == GET {
            shared.check(caller, Wish::AnyUser)?;
            if request.alarm > 2 {
                return Err(Error::InvalidAlarm);
            }
            let mut body = shared.alarms()?;
            body.retain(|(_, kind)| request.alarm == 0 || *kind == request.alarm);
            return Ok(Answer { revision: self.revision(), body });
        }
        match self.done(caller, Body::Alarm(request))? {
            Answer { revision, body: answer::Body::Alarms(body) } => Ok(Answer { revision, body }),
            Answer { revision, body: answer::Body::Done } => {
                Ok(Answer { revision, body: Vec::new() })
            }
            other => Err(unexpected(&other)),
        }
    }
}

impl Shared {
    /// Gives a lease its time again; `None` while its end is on the way.
    fn renew(&self, id: i64) -> Result<Option<i64>, Error> {
        let renewal = self.lessor().renew(id);
        match renewal {
            Renewal::Renewed { ttl_s, is_recorded } => {
                if is_recorded {
                    // A time that was recorded to be left is not to be gone on with.
                    let checkpoints = vec![LeaseCheckpoint { id, remaining_ttl_s: 0 }];
                    let body = Body::LeaseCheckpoint(LeaseCheckpoints { checkpoints });
                    // Rules of auth may change while it is on its way.
                    loop {
                        let (promise, logged) = pending();
                        let data = self.encode_own(body.clone());
                        self.propose(Proposal::normal(data, Reply::Caller(promise)))?;
                        let old = Error::Refused(Refusal::AuthOldRevision);
                        match logged.wait_for(self.options.request_timeout) {
                            Ok(Some(Err(error))) if error == old => {}
                            _ => break,
                        }
                    }
                }
                Ok(Some(ttl_s))
            }
            Renewal::Missing => Ok(Some(0)),
            Renewal::Ending => Ok(None),
        }
    }

    /// Lists the alarms that stand, as (member, kind).
    pub(super) fn alarms(&self) -> Result<Vec<(u64, u64)>, Error> {
        let mut alarms = Vec::new();
        self.core
            .read(|mvcc| {
                mvcc.each_row(schema::ALARM, &mut |key, value| {
                    alarms.extend(rows::Alarm::decode(key, value).ok().map(|alarm| {
                        let kind = match alarm.kind {
                            rows::AlarmKind::NoSpace => 1,
                            rows::AlarmKind::Corrupt => 2,
                            rows::AlarmKind::Other(kind) => kind,
                        };
                        (alarm.member_id.0, kind)
                    }));
                })
            })?
            .map_err(|error| Error::Storage(error.to_string()))?;
        Ok(alarms)
    }

    /// Makes an id for a lease: above 0.
    pub(super) fn new_lease_id(&self) -> i64 {
        i64::try_from(self.new_id() & (u64::MAX >> 1)).unwrap_or(i64::MAX)
    }
}
