//! gRPC's own health service: the whole server, which serves until it stops or cannot write any
//! more; with the gate for it, not while the database is defragmented either.
//!
//! Source: gRPC's health checking protocol; grpc-go `health/server.go`, 1.82; etcd
//! `v3rpc/health.go`, 3.6.16, 3.7.3.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::watch as signal;
use tokio::time::{Interval, MissedTickBehavior};
use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::status::status;
use super::{Closed, Shared};
use crate::store::wire::grpc_health_v1 as pb;
use crate::store::wire::grpc_health_v1::health_check_response::ServingStatus;
use crate::store::wire::grpc_health_v1::health_server::Health;
use crate::store::{Error, Store};

/// The name that stands for all services; no other has a state of its own.
const ALL: &str = "";
/// Time between two looks at the store for those who watch its health.
const LOOK: Duration = Duration::from_secs(1);

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
        let serving = (request.into_inner().service == ALL).then(|| self.of_server());
        let first = serving.as_ref().map_or(ServingStatus::ServiceUnknown, OfServer::state);
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (next, closed) = (Next::State(first), self.closed());
        Ok(Response::new(States { next, told: first, serving, looks, closed, is_over: false }))
    }
}

impl Shared {
    fn of_server(&self) -> OfServer {
        OfServer {
            store: self.store.clone(),
            closing: self.closing.clone(),
            stops_on_defrag: self.options.stops_on_defrag,
        }
    }

    fn serving(&self) -> ServingStatus {
        self.of_server().state()
    }
}

/// What the state of the whole server follows from.
struct OfServer {
    store: Store,
    closing: signal::Receiver<bool>,
    stops_on_defrag: bool,
}

impl OfServer {
    fn state(&self) -> ServingStatus {
        let serves = !*self.closing.borrow()
            && self.store.failure().is_none()
            && !(self.stops_on_defrag && self.store.is_defragmenting());
        if serves { ServingStatus::Serving } else { ServingStatus::NotServing }
    }
}

fn message(state: ServingStatus) -> pb::HealthCheckResponse {
    pb::HealthCheckResponse { status: state.into() }
}

/// What a client is told next.
enum Next {
    State(ServingStatus),
    /// Another state, when there is one.
    Change,
    Error,
    Nothing,
}

/// The state now, and when it changes.
pub(super) struct States {
    next: Next,
    /// What the client was told last.
    told: ServingStatus,
    /// `None` for a service that there is not.
    serving: Option<OfServer>,
    looks: Interval,
    closed: Closed,
    /// The server stops.
    is_over: bool,
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
                    self.told = state;
                    self.next = Next::Change;
                    return Poll::Ready(Some(Ok(message(state))));
                }
                Next::Change => {
                    // It is not asked again once it is ready.
                    self.is_over = self.is_over || self.closed.as_mut().poll(context).is_ready();
                    if !self.is_over {
                        ready!(self.looks.poll_tick(context));
                    }
                    let now = self.serving.as_ref().map(OfServer::state);
                    match now.filter(|now| *now != self.told) {
                        Some(now) => self.next = Next::State(now),
                        None if self.is_over => self.next = Next::Error,
                        None => {}
                    }
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
