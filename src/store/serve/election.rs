//! Elections: Campaign, Proclaim, Leader, Observe, Resign.
//!
//! Source: etcd `v3election/election.go`, `client/v3/concurrency/election.go`, 3.6.16, 3.7.3.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::recipe::{self, Recipe, unknown};
use super::status::status;
use super::{Closed, Shared, convert};
use crate::etcd::request::{Op, Put, Txn};
use crate::store::wire::v3electionpb as pb;
use crate::store::wire::v3electionpb::election_server::Election;
use crate::store::{Answer, Error, Kv};

const NOT_LEADER: &str = "election: not leader";

#[tonic::async_trait]
impl Election for Shared {
    async fn campaign(
        &self,
        request: Request<pb::CampaignRequest>,
    ) -> Result<Response<pb::CampaignResponse>, Status> {
        let closed = self.closed();
        tokio::select! {
            elected = self.campaign_or_wait(request) => elected.map(Response::new),
            () = closed => Err(status(&Error::Stopped)),
        }
    }

    async fn proclaim(
        &self,
        request: Request<pb::ProclaimRequest>,
    ) -> Result<Response<pb::ProclaimResponse>, Status> {
        let recipe = self.recipe(&request)?;
        let pb::ProclaimRequest { leader, value } = request.into_inner();
        let leader = leader.ok_or_else(no_leader_field)?;
        let lease = recipe.lease(leader.lease).await?;
        let (is_leader, revision) = recipe.put_if(&leader.key, leader.rev, &value, lease).await?;
        if !is_leader {
            return Err(unknown(NOT_LEADER));
        }
        Ok(Response::new(pb::ProclaimResponse { header: recipe.header(revision) }))
    }

    async fn leader(
        &self,
        request: Request<pb::LeaderRequest>,
    ) -> Result<Response<pb::LeaderResponse>, Status> {
        let recipe = self.recipe(&request)?;
        let prefix = recipe::prefix(&request.get_ref().name);
        let oldest = recipe.range(recipe::oldest(&prefix)).await?;
        let leader = oldest.body.kvs.first().ok_or_else(|| unknown("election: no leader"))?;
        Ok(Response::new(response(&recipe, oldest.revision, leader)))
    }

    type ObserveStream = Leaders;

    async fn observe(
        &self,
        request: Request<pb::LeaderRequest>,
    ) -> Result<Response<Leaders>, Status> {
        let recipe = self.recipe(&request)?;
        let prefix = recipe::prefix(&request.get_ref().name);
        let (told, leaders) = mpsc::channel(1);
        let task = tokio::spawn(async move {
            // etcd ends the stream without a word as well.
            let _ = observe(&recipe, &prefix, &told).await;
        });
        Ok(Response::new(Leaders { leaders, task, closed: self.closed(), is_over: false }))
    }

    async fn resign(
        &self,
        request: Request<pb::ResignRequest>,
    ) -> Result<Response<pb::ResignResponse>, Status> {
        let recipe = self.recipe(&request)?;
        let leader = request.into_inner().leader.ok_or_else(no_leader_field)?;
        recipe.lease(leader.lease).await?;
        let revision = recipe.delete_if(&leader.key, leader.rev).await?;
        Ok(Response::new(pb::ResignResponse { header: recipe.header(revision) }))
    }
}

fn no_leader_field() -> Status {
    unknown("\"leader\" field must be provided")
}

fn response(recipe: &Recipe, revision: i64, leader: &Kv) -> pb::LeaderResponse {
    pb::LeaderResponse { header: recipe.header(revision), kv: Some(convert::kv(leader)) }
}

impl Shared {
    async fn campaign_or_wait(
        &self,
        request: Request<pb::CampaignRequest>,
    ) -> Result<pb::CampaignResponse, Status> {
        let recipe = self.recipe(&request)?;
        let pb::CampaignRequest { name, lease, value } = request.into_inner();
        let lease = recipe.lease(lease).await?;
        let prefix = recipe::prefix(&name);
        let key = recipe::key(&prefix, lease);
        let get = recipe::one(&key);
        let put = Put { key: &key, value: &value, lease, ..Put::default() };
        let txn = Txn {
            compare: vec![recipe::is_of(&key, 0)],
            success: vec![Op::Put(put)],
            failure: vec![Op::Range(convert::range(&get))],
        };
        let Answer { revision, body } = recipe.txn(txn).await?;
        let old = if body.succeeded { None } else { recipe::read(&body, 0).first() };
        let rev = old.map_or(revision, |old| old.record().create_revision);
        // A candidate who waits no more is none.
        let guard = recipe.guard(key.clone(), rev);
        if old.is_some_and(|old| old.record().value != value) {
            let (is_candidate, _) = recipe.put_if(&key, rev, &value, lease).await?;
            if !is_candidate {
                return Err(unknown(NOT_LEADER));
            }
        }
        let waited = recipe.older_gone(&prefix, rev).await;
        // The key outlives an error, as etcd's does: it ends with its lease.
        guard.disarm();
        waited?;
        let leader = Some(pb::LeaderKey { name, key: Bytes::from(key), rev, lease });
        Ok(pb::CampaignResponse { header: recipe.header(revision), leader })
    }
}

/// Tells who leads and what is proclaimed, until nobody listens.
async fn observe(
    recipe: &Recipe,
    prefix: &[u8],
    told: &mpsc::Sender<pb::LeaderResponse>,
) -> Result<(), Status> {
    let end = recipe::end(prefix);
    loop {
        let oldest = recipe.range(recipe::oldest(prefix)).await?;
        let (revision, leader) = match oldest.body.kvs.first() {
            Some(leader) => (oldest.revision, leader.clone()),
            None => {
                let leader = first_put(recipe, prefix, &end, oldest.revision).await?;
                (leader.record().mod_revision, leader)
            }
        };
        tell(told, response(recipe, revision, &leader)).await?;
        let watcher = recipe.watch(leader.record().key, b"", revision.saturating_add(1))?;
        'leader: loop {
            let news = watcher.next().await?;
            for (event, _) in &news.events {
                if event.is_delete {
                    break 'leader;
                }
                tell(told, response(recipe, news.revision, &event.kv)).await?;
            }
        }
    }
}

/// Waits for the first candidate.
async fn first_put(
    recipe: &Recipe,
    prefix: &[u8],
    end: &[u8],
    revision: i64,
) -> Result<Kv, Status> {
    let watcher = recipe.watch(prefix, end, revision)?;
    loop {
        let news = watcher.next().await?;
        if let Some((event, _)) = news.events.into_iter().find(|(event, _)| !event.is_delete) {
            return Ok(event.kv);
        }
    }
}

async fn tell(
    told: &mpsc::Sender<pb::LeaderResponse>,
    response: pb::LeaderResponse,
) -> Result<(), Status> {
    told.send(response).await.map_err(|_| Status::cancelled("nobody listens"))
}

/// The leaders of an election, one after the other.
pub(super) struct Leaders {
    leaders: mpsc::Receiver<pb::LeaderResponse>,
    task: JoinHandle<()>,
    closed: Closed,
    is_over: bool,
}

impl fmt::Debug for Leaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaders").finish_non_exhaustive()
    }
}

impl Drop for Leaders {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Stream for Leaders {
    type Item = Result<pb::LeaderResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if self.closed.as_mut().poll(context).is_ready() {
            self.is_over = true;
            return Poll::Ready(Some(Err(status(&Error::Stopped))));
        }
        Poll::Ready(ready!(self.leaders.poll_recv(context)).map(Ok))
    }
}
