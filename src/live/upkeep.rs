//! What changes members rather than keys: compaction, defragmentation, alarms, leadership.
//!
//! etcd lets administrators alone do these where authentication is on, but for moving the
//! leadership (etcd server/etcdserver/api/v3rpc/maintenance.go, `authMaintenanceServer`, checked at
//! 3.7.3). Nothing here is tried again: who asks knows what a second time would do.

use std::time::Duration;

use etcd_client::{AlarmAction, AlarmOptions, AlarmType, Client, CompactionOptions, WatchOptions};

use super::cluster::{alarms, header};
use super::{Alarm, AlarmKind, Alarms, Cause, Cluster, Error, Header};

/// etcd's words (api/v3rpc/rpctypes/error.go, `ErrGRPCNoSpace`, checked at 3.7.3).
const OUT_OF_SPACE: &str = "database space exceeded";

impl Cluster {
    /// Drops what no read at a revision or later needs, at the first endpoint that answers.
    /// Physical, it is answered when the rows are gone, which the limit must allow for.
    ///
    /// # Errors
    ///
    /// [`Cause::Answer`] with code 11 for a revision that is compacted already, or still to come,
    /// and every cause of a call. Where the connection broke or the time was over, it may have been
    /// done.
    pub fn compact(&self, revision: i64, physical: bool, limit: Duration) -> Result<Header, Error> {
        let (_, header) = self.first_within(limit, move |mut client| async move {
            let options = CompactionOptions::new();
            let options = if physical { options.with_physical() } else { options };
            let answer = client.compact(revision, Some(options)).await?;
            Ok(header(answer.header()))
        })?;
        Ok(header)
    }

    /// Asks a member up to which revision it is compacted; 0 for never. A watch from the first
    /// revision on tells, costs the member nothing and needs no rights but to read the key
    /// `health`.
    ///
    /// # Errors
    ///
    /// Every cause of a call.
    pub fn compact_revision(&self, endpoint: &str) -> Result<i64, Error> {
        let limit = self.settings().command_timeout;
        self.at(endpoint, limit, |mut client: Client| async move {
            let options = WatchOptions::new().with_start_revision(1);
            let mut stream = client.watch("health", Some(options)).await?;
            // It is created, and where that revision is gone, cancelled at once, in one message or
            // in two; nothing else comes where it is not, so that a progress report is asked for.
            stream.request_progress().await?;
            while let Some(message) = stream.message().await? {
                if message.compact_revision() > 0 {
                    return Ok(message.compact_revision());
                }
                let is_told = !message.created() || message.canceled();
                if is_told {
                    break;
                }
            }
            Ok(0)
        })
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
