//! Answers that are read part by part: on other threads, and no further than the client takes them.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::task::JoinHandle;
use tonic::Status;
use tonic::codegen::tokio_stream::Stream;

use super::Closed;
use super::status::{given_up, status};
use crate::store::Error;

/// Some messages of an answer.
pub(super) struct Part<M> {
    pub(super) messages: Vec<M>,
    /// Whether no more follow.
    pub(super) is_last: bool,
}

/// Where messages are read from.
pub(super) trait Source: Send + Unpin + 'static {
    type Message: Send + Unpin + 'static;

    /// Reads the next part, on a thread that may wait for a disk.
    fn read(&mut self) -> Result<Part<Self::Message>, Status>;
}

type Read<S> = (S, Result<Part<<S as Source>::Message>, Status>);

/// The messages of a source. One part is read ahead while the one before is on its way.
pub(super) struct Parts<S: Source> {
    /// `None` when all is read.
    reading: Option<JoinHandle<Read<S>>>,
    waiting: VecDeque<S::Message>,
    closed: Closed,
    is_over: bool,
}

impl<S: Source> fmt::Debug for Parts<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("is_over", &self.is_over).finish_non_exhaustive()
    }
}

impl<S: Source> Parts<S> {
    /// Begins to read.
    pub(super) fn of(source: S, closed: Closed) -> Self {
        let reading = Some(read(source));
        Self { reading, waiting: VecDeque::new(), closed, is_over: false }
    }

    fn end(&mut self, error: Status) -> Poll<Option<Result<S::Message, Status>>> {
        self.is_over = true;
        self.reading = None;
        self.waiting.clear();
        Poll::Ready(Some(Err(error)))
    }
}

fn read<S: Source>(mut source: S) -> JoinHandle<Read<S>> {
    tokio::task::spawn_blocking(move || {
        let part = source.read();
        (source, part)
    })
}

impl<S: Source> Stream for Parts<S> {
    type Item = Result<S::Message, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if self.is_over {
                return Poll::Ready(None);
            }
            if self.closed.as_mut().poll(context).is_ready() {
                return self.end(status(&Error::Stopped));
            }
            if let Some(message) = self.waiting.pop_front() {
                return Poll::Ready(Some(Ok(message)));
            }
            let Some(reading) = &mut self.reading else {
                self.is_over = true;
                continue;
            };
            match ready!(Pin::new(reading).poll(context)) {
                Ok((source, Ok(Part { messages, is_last }))) => {
                    self.reading = (!is_last).then(|| read(source));
                    self.waiting = messages.into();
                }
                Ok((_, Err(error))) => return self.end(error),
                Err(_) => return self.end(given_up()),
            }
        }
    }
}
