//! gRPC's own health service: the whole server, which serves until it stops.
//!
//! Source: gRPC's health checking protocol; grpc-go `health/server.go`, 1.82; etcd
//! `v3rpc/health.go`, 3.6.16, 3.7.3.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::status::status;
use super::{Closed, Shared};
use crate::store::Error;
use crate::store::wire::grpc_health_v1 as pb;
use crate::store::wire::grpc_health_v1::health_check_response::ServingStatus;
use crate::store::wire::grpc_health_v1::health_server::Health;

/// The name that stands for all services; no other has a state of its own.
const ALL: &str = "";

#[tonic::async_trait]
impl Health for Shared {
    async fn check(
        &self,
        request: Request<pb::HealthCheckRequest>,
    ) -> Result<Response<pb::HealthCheckResponse>, Status> {
        if request.into_inner().service != ALL {
            return Err(Status::not_found("unknown service"));
        }
        Ok(Response::new(message(self.serving())))
    }

    async fn list(
        &self,
        _request: Request<pb::HealthListRequest>,
    ) -> Result<Response<pb::HealthListResponse>, Status> {
        let statuses = [(ALL.to_owned(), message(self.serving()))].into();
        Ok(Response::new(pb::HealthListResponse { statuses }))
    }

    type WatchStream = States;

    async fn watch(
        &self,
        request: Request<pb::HealthCheckRequest>,
    ) -> Result<Response<States>, Status> {
        let is_known = request.into_inner().service == ALL;
        let first = if is_known { self.serving() } else { ServingStatus::ServiceUnknown };
        Ok(Response::new(States { next: Next::State(first), is_known, closed: self.closed() }))
    }
}

impl Shared {
    fn serving(&self) -> ServingStatus {
        if *self.closing.borrow() || self.store.failure().is_some() {
            ServingStatus::NotServing
        } else {
            ServingStatus::Serving
        }
    }
}

fn message(state: ServingStatus) -> pb::HealthCheckResponse {
    pb::HealthCheckResponse { status: state.into() }
}

/// What a client is told next.
enum Next {
    State(ServingStatus),
    /// That the server stops, when it does.
    Change,
    Error,
    Nothing,
}

/// The state now, and when it changes.
pub(super) struct States {
    next: Next,
    is_known: bool,
    closed: Closed,
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("States").finish_non_exhaustive()
    }
}

impl Stream for States {
    type Item = Result<pb::HealthCheckResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match self.next {
                Next::State(state) => {
                    let is_end = self.is_known && state == ServingStatus::NotServing;
                    self.next = if is_end { Next::Error } else { Next::Change };
                    return Poll::Ready(Some(Ok(message(state))));
                }
                Next::Change => {
                    ready!(self.closed.as_mut().poll(context));
                    let told = Next::State(ServingStatus::NotServing);
                    self.next = if self.is_known { told } else { Next::Error };
                }
                Next::Error => {
                    self.next = Next::Nothing;
                    return Poll::Ready(Some(Err(status(&Error::Stopped))));
                }
                Next::Nothing => return Poll::Ready(None),
            }
        }
    }
}
