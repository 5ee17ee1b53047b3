//! Watch: one stream of requests, one of responses.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use tonic::codegen::tokio_stream::Stream;
use tonic::{Code, Request, Response, Status, Streaming};

use super::metrics::{Metrics, Told as About};
use super::status::{Credentials, status};
use super::{Closed, Shared, convert, dispatch};
use crate::store::engine::Watch as Watchers;
use crate::store::guard::Caller;
use crate::store::watch::{Create, Response as Told};
use crate::store::wire::etcdserverpb as pb;
use crate::store::wire::etcdserverpb::watch_create_request::FilterType;
use crate::store::wire::etcdserverpb::watch_request::RequestUnion;
use crate::store::wire::etcdserverpb::watch_server::Watch;
use crate::store::{Error, Store};

/// Requests that are taken between two responses.
const REQUESTS_MAX: usize = 64;
/// Waiting responses above which no more requests are taken.
const BACKLOG_MAX: usize = 1024;

#[tonic::async_trait]
impl Watch for Shared {
    type WatchStream = Responses;

    async fn watch(
        &self,
        request: Request<Streaming<pb::WatchRequest>>,
    ) -> Result<Response<Responses>, Status> {
        Ok(Response::new(Responses {
            who: Credentials::of(&request),
            requests: Some(request.into_inner()),
            store: self.store.clone(),
            watchers: self.store.watch(&Caller::default()),
            metrics: Arc::clone(&self.metrics),
            header: self.header_without_revision(),
            bytes_max: dispatch::bytes_max(&self.options),
            closed: self.closed(),
            is_over: false,
        }))
    }
}

/// What a client is told; its requests are taken as they come, between two responses.
pub(super) struct Responses {
    /// `None` after the client said its last: it is told on until it goes.
    requests: Option<Streaming<pb::WatchRequest>>,
    /// Whose watchers they are is asked for each: a token may end while the stream goes on.
    who: Credentials,
    store: Store,
    watchers: Watchers,
    metrics: Arc<Metrics>,
    header: pb::ResponseHeader,
    bytes_max: usize,
    closed: Closed,
    is_over: bool,
}

impl fmt::Debug for Responses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Responses").finish_non_exhaustive()
    }
}

impl Responses {
    fn take(&self, request: pb::WatchRequest) {
        match request.request_union {
            Some(RequestUnion::CreateRequest(request)) => {
                self.watchers.create_as(self.who.caller(&self.store), create(request));
            }
            Some(RequestUnion::CancelRequest(request)) => self.watchers.cancel(request.watch_id),
            Some(RequestUnion::ProgressRequest(_)) => self.watchers.request_progress(),
            None => {}
        }
    }

    /// Takes requests that are there, but not many whose answers the client has yet to take; an
    /// error ends the stream.
    fn take_requests(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        let mut left = REQUESTS_MAX;
        while let Some(requests) = &mut self.requests {
            if self.watchers.backlog() > BACKLOG_MAX {
                break;
            }
            let Some(fewer) = left.checked_sub(1) else {
                context.waker().wake_by_ref();
                break;
            };
            left = fewer;
            match Pin::new(requests).poll_next(context) {
                Poll::Pending => break,
                Poll::Ready(None) => self.requests = None,
                Poll::Ready(Some(Ok(request))) => self.take(request),
                Poll::Ready(Some(Err(error))) => {
                    self.requests = None;
                    self.metrics.stream_ended("watch", "receive", &error);
                    return Err(if error.code() == Code::Cancelled {
                        Status::cancelled("etcdserver: watch canceled")
                    } else {
                        dispatch::reworded(error, self.bytes_max)
                    });
                }
            }
        }
        Ok(())
    }

    fn message(&self, told: Told) -> pb::WatchResponse {
        let began = Instant::now();
        let about = match told.events.len() {
            0 if told.created || told.canceled => About::Control,
            0 => About::Progress,
            count => About::Events(count),
        };
        let response = pb::WatchResponse {
            header: Some(pb::ResponseHeader { revision: told.revision, ..self.header }),
            watch_id: told.watch_id,
            created: told.created,
            canceled: told.canceled,
            compact_revision: told.compact_revision,
            cancel_reason: told.cancel_reason,
            fragment: told.fragment,
            events: told.events.iter().map(|(e, kv)| convert::event(e, kv.as_ref())).collect(),
        };
        self.metrics.told(about, began.elapsed());
        response
    }
}

impl Stream for Responses {
    type Item = Result<pb::WatchResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if let Err(error) = self.take_requests(context) {
            self.is_over = true;
            return Poll::Ready(Some(Err(error)));
        }
        if self.closed.as_mut().poll(context).is_ready() {
            self.is_over = true;
            return Poll::Ready(Some(Err(status(&Error::Stopped))));
        }
        self.watchers.poll_next(context).map(|told| match told {
            Ok(told) => Some(Ok(self.message(told))),
            Err(error) => {
                self.is_over = true;
                Some(Err(status(&error)))
            }
        })
    }
}

fn create(request: pb::WatchCreateRequest) -> Create {
    let has = |filter: FilterType| request.filters.contains(&i32::from(filter));
    Create::default()
        .watch_id(request.watch_id)
        .start_revision(request.start_revision)
        .prev_kv(request.prev_kv)
        .no_put(has(FilterType::Noput))
        .no_delete(has(FilterType::Nodelete))
        .progress_notify(request.progress_notify)
        .fragment(request.fragment)
        .key(request.key)
        .range_end(request.range_end)
}
