//! Leases: LeaseGrant, LeaseRevoke, LeaseKeepAlive, LeaseTimeToLive, LeaseLeases.
//!
//! Source: etcd `v3rpc/lease.go`, `v3_server.go` (`LeaseRenew`), 3.6.16, 3.7.3.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::metrics::Metrics;
use super::status::{Credentials, of_another_kind, status};
use super::{Closed, Shared, dispatch};
use crate::etcd::request::{LeaseGrant, LeaseRevoke};
use crate::store::engine::KeepAlive;
use crate::store::wire::etcdserverpb as pb;
use crate::store::wire::etcdserverpb::lease_server::Lease;
use crate::store::{Answer, Error, Store, answer};

#[tonic::async_trait]
impl Lease for Shared {
    async fn lease_grant(
        &self,
        request: Request<pb::LeaseGrantRequest>,
    ) -> Result<Response<pb::LeaseGrantResponse>, Status> {
        let caller = self.caller(&request)?;
        let pb::LeaseGrantRequest { ttl, id } = request.into_inner();
        match self.done(&caller, LeaseGrant { ttl_s: ttl, id }).await? {
            Answer { revision, body: answer::Body::LeaseGrant { id, ttl_s } } => {
                let header = self.header(revision);
                let error = String::new();
                Ok(Response::new(pb::LeaseGrantResponse { header, id, ttl: ttl_s, error }))
            }
            _ => Err(of_another_kind()),
        }
    }

    async fn lease_revoke(
        &self,
        request: Request<pb::LeaseRevokeRequest>,
    ) -> Result<Response<pb::LeaseRevokeResponse>, Status> {
        let caller = self.caller(&request)?;
        let pb::LeaseRevokeRequest { id } = request.into_inner();
        let Answer { revision, .. } = self.done(&caller, LeaseRevoke { id }).await?;
        Ok(Response::new(pb::LeaseRevokeResponse { header: self.header(revision) }))
    }

    type LeaseKeepAliveStream = Renewals;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<pb::LeaseKeepAliveRequest>>,
    ) -> Result<Response<Renewals>, Status> {
        Ok(Response::new(Renewals {
            who: Credentials::of(&request),
            requests: request.into_inner(),
            store: self.store.clone(),
            metrics: Arc::clone(&self.metrics),
            header: self.header_without_revision(),
            bytes_max: dispatch::bytes_max(&self.options),
            late: None,
            closed: self.closed(),
            is_over: false,
        }))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<pb::LeaseTimeToLiveRequest>,
    ) -> Result<Response<pb::LeaseTimeToLiveResponse>, Status> {
        let caller = self.caller(&request)?;
        let pb::LeaseTimeToLiveRequest { id, keys } = request.into_inner();
        let answer = self.aside(move |store| store.lease_time_to_live(&caller, id, keys)).await?;
        let Answer { revision, body } = answer;
        Ok(Response::new(pb::LeaseTimeToLiveResponse {
            header: self.header(revision),
            id,
            ttl: body.ttl_s,
            granted_ttl: body.granted_ttl_s,
            keys: body.keys.into_iter().map(Bytes::from).collect(),
        }))
    }

    async fn lease_leases(
        &self,
        request: Request<pb::LeaseLeasesRequest>,
    ) -> Result<Response<pb::LeaseLeasesResponse>, Status> {
        let caller = self.caller(&request)?;
        let answer = self.aside(move |store| store.leases(&caller)).await?;
        let leases = answer.body.into_iter().map(|id| pb::LeaseStatus { id }).collect();
        Ok(Response::new(pb::LeaseLeasesResponse { header: self.header(answer.revision), leases }))
    }
}

/// A renewal that is waited for.
struct Late {
    id: i64,
    outcome: Pin<Box<dyn Future<Output = Result<Answer<i64>, Error>> + Send>>,
}

/// Answers of a stream that keeps leases alive: one for each request, in their order.
pub(super) struct Renewals {
    requests: Streaming<pb::LeaseKeepAliveRequest>,
    who: Credentials,
    store: Store,
    metrics: Arc<Metrics>,
    header: pb::ResponseHeader,
    bytes_max: usize,
    late: Option<Late>,
    closed: Closed,
    is_over: bool,
}

impl fmt::Debug for Renewals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Renewals").finish_non_exhaustive()
    }
}

impl Renewals {
    /// Renews a lease; `None` where that has to be waited for.
    fn renew(&mut self, id: i64) -> Result<Option<pb::LeaseKeepAliveResponse>, Error> {
        let caller = self.who.caller(&self.store)?;
        let store = self.store.clone();
        let outcome: Pin<Box<dyn Future<Output = _> + Send>> =
            match store.lease_keep_alive_now(&caller, id)? {
                KeepAlive::Done(answer) => return Ok(Some(self.response(id, &answer))),
                KeepAlive::Ending(end) => Box::pin(async move {
                    let ended = tokio::time::timeout(store.request_timeout(), end).await;
                    ended.unwrap_or(Err(Error::Timeout))
                }),
                KeepAlive::Recording => Box::pin(async move {
                    let record = move || store.lease_keep_alive(&caller, id);
                    tokio::task::spawn_blocking(record).await.unwrap_or(Err(Error::Stopped))
                }),
            };
        self.late = Some(Late { id, outcome });
        Ok(None)
    }

    /// The revision is from before the renewal: a lease that ends later has ended after it.
    fn response(&self, id: i64, answer: &Answer<i64>) -> pb::LeaseKeepAliveResponse {
        let header = Some(pb::ResponseHeader { revision: answer.revision, ..self.header });
        pb::LeaseKeepAliveResponse { header, id, ttl: answer.body }
    }

    fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<pb::LeaseKeepAliveResponse, Status>>> {
        loop {
            if self.closed.as_mut().poll(context).is_ready() {
                return Poll::Ready(Some(Err(status(&Error::Stopped))));
            }
            if let Some(Late { id, outcome }) = &mut self.late {
                let (id, outcome) = (*id, ready!(outcome.as_mut().poll(context)));
                self.late = None;
                return Poll::Ready(Some(match outcome {
                    Ok(answer) => Ok(self.response(id, &answer)),
                    Err(error) => Err(status(&error)),
                }));
            }
            let request = match ready!(Pin::new(&mut self.requests).poll_next(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => {
                    self.metrics.stream_ended("lease-keepalive", "receive", &error);
                    return Poll::Ready(Some(Err(dispatch::reworded(error, self.bytes_max))));
                }
                Some(Ok(request)) => request,
            };
            match self.renew(request.id) {
                Ok(None) => {}
                Ok(Some(response)) => return Poll::Ready(Some(Ok(response))),
                Err(error) => return Poll::Ready(Some(Err(status(&error)))),
            }
        }
    }
}

impl Stream for Renewals {
    type Item = Result<pb::LeaseKeepAliveResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let polled = self.poll(context);
        self.is_over = matches!(polled, Poll::Ready(None | Some(Err(_))));
        polled
    }
}
