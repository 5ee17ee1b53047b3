//! One round of questions to every endpoint, from which a view of the cluster is made.
//!
//! Every endpoint is asked at once: for its status and, where that comes, for the members, for a
//! read, and for the quota where the status does not say it. No question writes anything: the one for
//! alarms would add an entry to the log, and every status says them. A round takes at most twice the
//! limit for a question.

use std::future::Future;
use std::sync::Arc;

use etcd_client::Client;

use super::cluster::{self, Target};
use super::{Cause, Cluster, Error, Members, Read, Status, metrics};

/// What one endpoint answered in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// The endpoint as it was given.
    pub endpoint: String,
    /// What the member says of itself.
    pub status: Result<Status, Error>,
    /// The members as it knows them; `None` where the status did not come, an error for learners.
    pub members: Option<Result<Members, Error>>,
    /// A read through it: linearizable, serializable of a learner, which answers no other.
    pub read: Option<Result<Read, Error>>,
    /// The quota that `/metrics` says, where the status says none.
    pub quota: Option<Result<i64, Error>>,
}

impl Cluster {
    /// Asks every endpoint a round of questions.
    #[must_use]
    pub fn round(&self) -> Vec<Round> {
        let all: Vec<_> = self.targets().iter().map(|target| self.round_of(target)).collect();
        self.block_on(async {
            let tasks: Vec<_> = all.into_iter().map(tokio::spawn).collect();
            let mut rounds = Vec::with_capacity(tasks.len());
            for (task, target) in tasks.into_iter().zip(self.targets()) {
                let endpoint = target.endpoint.given().to_owned();
                rounds.push(task.await.unwrap_or_else(|error| {
                    let cause = Cause::Runtime { what: error.to_string() };
                    let status = Err(Error::of(&endpoint, cause));
                    Round { endpoint, status, members: None, read: None, quota: None }
                }));
            }
            rounds
        })
    }

    fn round_of(&self, target: &Arc<Target>) -> impl Future<Output = Round> + Send + 'static {
        let endpoint = target.endpoint.given().to_owned();
        let status = self.ask(target, cluster::status);
        let members = self.ask(target, |mut client: Client| async move {
            Ok(cluster::members(&client.member_list().await?))
        });
        let voter = self.ask(target, |client| cluster::read(client, true));
        let learner = self.ask(target, |client| cluster::read(client, false));
        let (dialer, to) = (self.dialer().clone(), target.endpoint.clone());
        let limit = self.settings().command_timeout;
        async move {
            let status = match status.await {
                Ok(status) => status,
                Err(error) => {
                    let (members, read, quota) = (None, None, None);
                    return Round { endpoint, status: Err(error), members, read, quota };
                }
            };
            let members = tokio::spawn(members);
            let quota = (status.db_size_quota == 0).then(|| {
                tokio::spawn(async move {
                    let late = Cause::Timeout { after: limit, doing: "reading its /metrics" };
                    let asked = tokio::time::timeout(limit, metrics::quota(&dialer, &to)).await;
                    let quota = asked.unwrap_or(Err(late));
                    quota.map_err(|cause| Error::of(to.given(), cause))
                })
            });
            let read = if status.is_learner { learner.await } else { voter.await };
            Round {
                status: Ok(status),
                members: members.await.ok(),
                read: Some(read),
                quota: match quota {
                    Some(quota) => quota.await.ok(),
                    None => None,
                },
                endpoint,
            }
        }
    }
}
