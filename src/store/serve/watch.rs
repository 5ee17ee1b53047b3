//! Watch: one stream of requests, one of responses.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

use super::metrics::{Metrics, Told as About};
use super::status::status;
use super::{Shared, convert};
use crate::store::Error;
use crate::store::engine::Watch as Watchers;
use crate::store::watch::{Create, Response as Told};
use crate::store::wire::etcdserverpb as pb;
use crate::store::wire::etcdserverpb::watch_create_request::FilterType;
use crate::store::wire::etcdserverpb::watch_request::RequestUnion;
use crate::store::wire::etcdserverpb::watch_server::Watch;

#[tonic::async_trait]
impl Watch for Shared {
    type WatchStream = Responses;

    async fn watch(
        &self,
        request: Request<Streaming<pb::WatchRequest>>,
    ) -> Result<Response<Responses>, Status> {
        let caller = self.caller(request.metadata())?;
        Ok(Response::new(Responses {
            requests: Some(request.into_inner()),
            watchers: self.store.watch(&caller),
            metrics: Arc::clone(&self.metrics),
            header: self.header_without_revision(),
            closed: Box::pin(self.closed()),
            is_over: false,
        }))
    }
}

/// What a client is told; its requests are taken as they come, between two responses.
pub(super) struct Responses {
    /// `None` after the client said its last: it is told on until it goes.
    requests: Option<Streaming<pb::WatchRequest>>,
    watchers: Watchers,
    metrics: Arc<Metrics>,
    header: pb::ResponseHeader,
    closed: Pin<Box<dyn Future<Output = ()> + Send>>,
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
            Some(RequestUnion::CreateRequest(request)) => self.watchers.create(create(request)),
            Some(RequestUnion::CancelRequest(request)) => self.watchers.cancel(request.watch_id),
            Some(RequestUnion::ProgressRequest(_)) => self.watchers.request_progress(),
            None => {}
        }
    }

    /// Takes all requests that are there; an error ends the stream.
    fn take_requests(&mut self, context: &mut Context<'_>) -> Result<(), Status> {
        while let Some(requests) = &mut self.requests {
            match Pin::new(requests).poll_next(context) {
                Poll::Pending => break,
                Poll::Ready(None) => self.requests = None,
                Poll::Ready(Some(Ok(request))) => self.take(request),
                Poll::Ready(Some(Err(error))) => {
                    self.requests = None;
                    self.metrics.stream_failed("watch", "receive");
                    return Err(error);
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
