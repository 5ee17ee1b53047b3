//! One call from its start to its end: what goes in and out of it, and how it ends.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::{HeaderMap, Response};
use bytes::{Buf, Bytes};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep};
use tonic::body::Body;
use tonic::{Code, Status};

use super::metrics::{Method, Shape};
use super::{Options, Shared, dispatch, http};
use crate::store::lines::{Field, Level};

/// Bytes before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// A call; a clone is the same one.
#[derive(Clone, Debug)]
pub(super) struct Call {
    shared: Arc<Shared>,
    /// `None` where there is no such method; it is not counted.
    method: Option<Method>,
    began: Instant,
}

impl Call {
    pub(super) fn begin(shared: &Arc<Shared>, path: &str, headers: &HeaderMap) -> Self {
        let method = Method::of_path(path);
        if let Some(method) = method {
            let version = headers.get("client-api-version").and_then(|value| value.to_str().ok());
            shared.metrics.calls.started(method, version);
        }
        Self { shared: Arc::clone(shared), method, began: Instant::now() }
    }

    fn received(&self, messages: u64, bytes: usize) {
        if let Some(method) = self.method {
            self.shared.metrics.calls.received(method, messages, bytes);
        }
    }

    fn sent(&self, messages: u64, bytes: usize) {
        if let Some(method) = self.method {
            self.shared.metrics.calls.sent(method, messages, bytes);
        }
    }

    fn ended(&self, code: Code) {
        let Some(method) = self.method else { return };
        let took = self.began.elapsed();
        self.shared.metrics.calls.handled(method, code, took);
        let Options { log, warning_unary, .. } = &self.shared.options;
        if method.shape() == Shape::Unary && (took > *warning_unary || log.writes(Level::Debug)) {
            let level = if took > *warning_unary { Level::Warn } else { Level::Debug };
            let name = format!("/{}/{}", method.service(), method.name());
            // etcd's words, for which logs are searched; what was asked for is nobody's business.
            let fields: [(&str, &dyn Field); 3] =
                [("time spent", &took), ("method", &name), ("code", &format!("{code:?}"))];
            log.line(level, "request stats", &fields);
        }
    }

    /// Watches over the answer until it is given, and no longer than to the deadline.
    fn answer(self, response: Response<Body>, deadline: Option<Instant>) -> Response<Body> {
        let mut has_ended = false;
        if let Some(status) = Status::from_header_map(response.headers()) {
            self.ended(status.code());
            has_ended = true;
        }
        let deadline = deadline.map(|deadline| Box::pin(tokio::time::sleep_until(deadline)));
        let counter = Messages::default();
        response.map(|inner| Body::new(Sent { inner, call: self, counter, deadline, has_ended }))
    }
}

/// A call without an answer. Dropped, it ends: its client cancelled it, or is gone.
#[derive(Debug)]
pub(super) struct Unanswered(Option<Call>);

impl Unanswered {
    pub(super) fn new(call: Call) -> Self {
        Self(Some(call))
    }

    /// Watches over the answer from now on.
    pub(super) fn answer(
        mut self,
        response: Response<Body>,
        deadline: Option<Instant>,
    ) -> Response<Body> {
        match self.0.take() {
            Some(call) => call.answer(response, deadline),
            None => response,
        }
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(call) = &self.0 {
            call.ended(Code::Cancelled);
        }
    }
}

/// Counts messages in a stream of bytes that is cut anywhere.
#[derive(Debug, Default)]
struct Messages {
    prefix: [u8; PREFIX],
    /// Bytes of the prefix that are there.
    filled: usize,
    /// Bytes of the message that are still to come.
    left: usize,
}

impl Messages {
    /// Takes more bytes; returns how many messages begin in them.
    fn take(&mut self, mut bytes: &[u8]) -> u64 {
        let mut begun = 0_u64;
        while let Some((first, rest)) = bytes.split_first() {
            if self.left > 0 {
                let part = self.left.min(bytes.len());
                self.left = self.left.saturating_sub(part);
                bytes = bytes.get(part..).unwrap_or_default();
                continue;
            }
            if let Some(slot) = self.prefix.get_mut(self.filled) {
                *slot = *first;
            }
            self.filled = self.filled.saturating_add(1);
            bytes = rest;
            if self.filled == PREFIX {
                let [_, a, b, c, d] = self.prefix;
                self.left = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
                self.filled = 0;
                begun = begun.saturating_add(1);
            }
        }
        begun
    }
}

/// Where what comes in comes from.
#[derive(Debug)]
pub(super) enum Source {
    /// A client of gRPC.
    Client(Incoming),
    /// The JSON gateway.
    Gateway(http::Requests),
}

/// What comes in.
#[derive(Debug)]
pub(super) struct Received {
    inner: Source,
    call: Call,
    counter: Messages,
}

impl Received {
    pub(super) fn new(inner: Source, call: Call) -> Self {
        Self { inner, call, counter: Messages::default() }
    }
}

impl http_body::Body for Received {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = match &mut self.inner {
            Source::Client(body) => Pin::new(body).poll_frame(context),
            Source::Gateway(body) => Pin::new(body).poll_frame(context),
        };
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref()
        {
            let messages = self.counter.take(data);
            self.call.received(messages, data.len());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.inner {
            Source::Client(body) => body.is_end_stream(),
            Source::Gateway(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.inner {
            Source::Client(body) => body.size_hint(),
            Source::Gateway(body) => body.size_hint(),
        }
    }
}

/// What goes out.
#[derive(Debug)]
struct Sent {
    inner: Body,
    call: Call,
    counter: Messages,
    deadline: Option<Pin<Box<Sleep>>>,
    has_ended: bool,
}

impl Sent {
    fn end(&mut self, code: Code) {
        if !self.has_ended {
            self.has_ended = true;
            self.call.ended(code);
        }
    }
}

impl http_body::Body for Sent {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let is_over = !self.has_ended
            && self.deadline.as_mut().is_some_and(|it| it.as_mut().poll(context).is_ready());
        if is_over {
            self.end(Code::DeadlineExceeded);
            let mut trailers = HeaderMap::new();
            // The text is plain ASCII.
            let _ = dispatch::late().add_header(&mut trailers);
            self.inner = Body::empty();
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            if let Some(data) = frame.data_ref() {
                let messages = self.counter.take(data.chunk());
                self.call.sent(messages, data.len());
            } else if let Some(trailers) = frame.trailers_ref() {
                let status = Status::from_header_map(trailers);
                self.end(status.map_or(Code::Ok, |status| status.code()));
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        // Nobody takes the rest: the client cancelled it, or is gone.
        self.end(Code::Cancelled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_counted_wherever_the_bytes_are_cut() {
        let mut bytes = Vec::new();
        for length in [0_u32, 3, 300, 1] {
            bytes.push(0);
            bytes.extend(length.to_be_bytes());
            bytes.extend(std::iter::repeat_n(7, length as usize));
        }
        for size in 1..bytes.len() {
            let mut counter = Messages::default();
            let count: u64 = bytes.chunks(size).map(|part| counter.take(part)).sum();
            assert_eq!(count, 4, "in parts of {size}");
        }
    }
}
