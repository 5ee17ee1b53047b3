//! What changes members rather than keys: compaction, defragmentation, alarms, leadership.
//!
//! etcd lets administrators alone do these where authentication is on, but for moving the
//! leadership (etcd server/etcdserver/api/v3rpc/maintenance.go, `authMaintenanceServer`, checked at
//! 3.7.3). Nothing here is tried again: who asks knows what a second time would do.

use std::time::Duration;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client, CompactionOptions, WatchOptions};

use crate::format::certificate::shown;

use super::cluster::{ANSWER, alarms, header};
use super::{Alarm, AlarmKind, Alarms, Cause, Cluster, Error, Header, Range};

/// etcd's words (api/v3rpc/rpctypes/error.go, `ErrGRPCNoSpace`, checked at 3.7.3).
const OUT_OF_SPACE: &str = "database space exceeded";
/// `ErrGRPCCompacted` and `ErrGRPCFutureRev`.
const COMPACTED: &str = "required revision has been compacted";
const FUTURE: &str = "required revision is a future revision";
/// Time between two requests for progress.
const ASK_AGAIN: Duration = Duration::from_millis(50);

impl Cluster {
    /// Drops what no read at a revision or later needs, at the first endpoint that takes it.
    /// Physical, it is answered when the rows are gone at that member, which the limit must allow
    /// for.
    ///
    /// # Errors
    ///
    /// [`Cause::Answer`] where the revision is compacted already ([`is_compacted`]) or still to
    /// come ([`is_future`]), and every cause of a call. It may have been done all the same where
    /// [`is_uncertain`] says so: an endpoint that took it and broke, and another that finds it
    /// compacted, are such a case.
    pub fn compact(&self, revision: i64, physical: bool, limit: Duration) -> Result<Header, Error> {
        let mut failures = Vec::new();
        for endpoint in self.endpoints() {
            // The long limit is for the answer alone, not for a connection or a login.
            let reached = if physical { self.status(endpoint).map(drop) } else { Ok(()) };
            let answer = reached.and_then(|()| {
                self.at(endpoint, limit, move |mut client| async move {
                    let options = CompactionOptions::new();
                    let options = if physical { options.with_physical() } else { options };
                    let answer = client.compact(revision, Some(options)).await?;
                    Ok(header(answer.header()))
                })
            });
            let error = match answer {
                Ok(header) => return Ok(header),
                Err(error) => error,
            };
            // What goes through the log is the same for all.
            let is_final = is_compacted(&error)
                || is_future(&error)
                || matches!(
                    error.cause,
                    Cause::NotPermitted { .. } | Cause::NotAuthenticated { .. }
                );
            failures.push(error);
            if is_final {
                break;
            }
        }
        Err(Error::of_all(failures))
    }

    /// Asks a member up to which revision it is compacted; 0 for never. Nothing is read for it,
    /// and no rights are needed but to read the key `health`.
    ///
    /// A read of one key at the first revision is refused where that is compacted, and then a watch
    /// from there on is cancelled with the revision. Where it is not, such a watch is never begun:
    /// the member would read its whole history for it, with its watchers locked (etcd
    /// server/storage/mvcc/watchable_store.go, `syncWatchers`, checked at 3.7.3).
    ///
    /// # Errors
    ///
    /// Every cause of a call: [`Cause::NotPermitted`] without that right, and [`Cause::Answer`] of
    /// a learner that is compacted, which lets nobody watch.
    pub fn compact_revision(&self, endpoint: &str) -> Result<i64, Error> {
        let first = Range {
            key: b"health".to_vec(),
            revision: 1,
            limit: 1,
            count_only: true,
            serializable: true,
            ..Range::default()
        };
        match self.range_at(endpoint, &first) {
            Ok(_) => return Ok(0),
            Err(error) if !is_compacted(&error) => return Err(error),
            Err(_) => {}
        }
        let limit = self.settings().command_timeout;
        let told = self.at(endpoint, limit, |mut client: Client| async move {
            let options = WatchOptions::new().with_start_revision(1);
            let mut stream = client.watch("health", Some(options)).await?;
            loop {
                // A watcher whose revision is gone is cancelled when the member gets to it, ten
                // times a second, and before that no progress is told (etcd
                // server/storage/mvcc/watchable_store.go, `syncWatchers` and `progressIfSync`,
                // checked at 3.5.35, 3.6.16 and 3.7.3); so that it is asked again and again.
                let Ok(message) = tokio::time::timeout(ASK_AGAIN, stream.message()).await else {
                    stream.request_progress().await?;
                    continue;
                };
                let Some(message) = message? else {
                    return Ok(Err("the watch ended without a word".to_owned()));
                };
                match message.compact_revision() {
                    revision if revision > 0 => return Ok(Ok(revision)),
                    _ if message.canceled() => {
                        return Ok(Err(message.cancel_reason().to_owned()));
                    }
                    // Progress, or an event: it has all revisions from the first on.
                    _ if !message.created() => return Ok(Ok(0)),
                    _ => {}
                }
            }
        })?;
        told.map_err(|why| self.dialer().failed(endpoint, refusal(&shown(&why))))
    }

    /// Lets one member write its database anew without free pages. It answers nothing meanwhile.
    ///
    /// # Errors
    ///
    /// Every cause of a call. Where the connection broke or the time was over, it may be under way
    /// still, or done.
    pub fn defragment(&self, endpoint: &str, limit: Duration) -> Result<Header, Error> {
        self.at(endpoint, limit, |mut client: Client| async move {
            Ok(header(client.defragment().await?.header()))
        })
    }

    /// Clears one alarm, at the first endpoint that answers; returns those that were cleared.
    ///
    /// # Errors
    ///
    /// Every cause of a call.
    pub fn disarm(&self, alarm: Alarm) -> Result<Alarms, Error> {
        let kind = match alarm.kind {
            AlarmKind::None => AlarmType::None,
            AlarmKind::NoSpace => AlarmType::Nospace,
            AlarmKind::Corrupt => AlarmType::Corrupt,
        };
        let (_, cleared) = self.first(move |mut client| async move {
            let mut options = AlarmOptions::new();
            options.with_member(alarm.member_id);
            let answer = client.alarm(AlarmAction::Deactivate, kind, Some(options)).await?;
            Ok(Alarms { header: header(answer.header()), alarms: alarms(&answer) })
        })?;
        Ok(cleared)
    }

    /// Lets the leader, which must be the one that is asked, hand its office to another member.
    ///
    /// # Errors
    ///
    /// Every cause of a call: [`Cause::Answer`] where the member asked does not lead, or the other
    /// one is not there or is a learner.
    pub fn move_leader(&self, leader: &str, to: u64) -> Result<Header, Error> {
        let limit = self.settings().command_timeout;
        self.at(leader, limit, move |mut client: Client| async move {
            Ok(header(client.move_leader(to).await?.header()))
        })
    }
}

/// Tells whether a member refuses writes because its database has reached the quota.
#[must_use]
pub fn is_out_of_space(error: &Error) -> bool {
    matches!(&error.cause, Cause::Answer { code: 8, what } if what.contains(OUT_OF_SPACE))
}

/// Tells whether a revision was refused because it is compacted already.
#[must_use]
pub fn is_compacted(error: &Error) -> bool {
    matches!(&error.cause, Cause::Answer { code: 11, what } if what.contains(COMPACTED))
}

/// Tells whether a revision was refused because it is still to come.
#[must_use]
pub fn is_future(error: &Error) -> bool {
    matches!(&error.cause, Cause::Answer { code: 11, what } if what.contains(FUTURE))
}

/// Tells whether a change may have been made although it failed: where several endpoints were
/// asked, at any of them.
#[must_use]
pub fn is_uncertain(error: &Error) -> bool {
    let waited = |cause: &Cause| match cause {
        Cause::Timeout { doing, .. } => *doing == ANSWER,
        // DEADLINE_EXCEEDED and UNAVAILABLE are also a member's own words for what it gave up
        // waiting for, and for what a learner does not do.
        Cause::Answer { code: 4 | 14, what } => !what.contains("not supported for learner"),
        Cause::Broken { .. } => true,
        _ => false,
    };
    waited(&error.cause) || error.also.iter().any(is_uncertain)
}

/// Says what a watcher was cancelled for, as a call would have been refused.
fn refusal(why: &str) -> Cause {
    let what = why.to_owned();
    // Words of etcd's api/v3rpc/rpctypes/error.go, checked at 3.7.3.
    match why {
        why if why.contains("permission denied") => Cause::NotPermitted { what },
        why if ["invalid auth token", "user name is empty", "revision of auth store is old"]
            .iter()
            .any(|words| why.contains(words)) =>
        {
            Cause::NotAuthenticated { what }
        }
        _ => Cause::Answer { code: 2, what },
    }
}
