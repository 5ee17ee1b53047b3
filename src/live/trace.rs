//! What came in first on a connection, and how it ended.
//!
//! The layers above a connection tell less than it knows: a server that refuses our certificate
//! says so only after the handshake, on what HTTP/2 takes for a broken connection. So each
//! connection has a trace, which outlives it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::tls::Shown;

/// Bytes that are kept.
const HEAD: usize = 64;
/// Bytes of the head of an HTTP/2 frame.
const FRAME_HEAD: usize = 9;
/// HTTP/2's SETTINGS frame, the first that each side sends (RFC 9113, 3.4 and 6.5).
const SETTINGS: u8 = 4;

/// The first bytes of one connection, and how it ended.
#[derive(Default)]
pub(super) struct Trace {
    seen: Mutex<Seen>,
    changed: Notify,
    /// What TLS learnt, where there is TLS.
    pub(super) shown: Arc<Shown>,
}

#[derive(Default)]
struct Seen {
    head: Vec<u8>,
    ended: Option<Ended>,
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Ended {
    /// The other side closed it.
    Closed,
    /// TLS ended it.
    Tls(rustls::Error),
    /// The system did.
    Io(io::ErrorKind, String),
}

/// What a server says first.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Greeting {
    /// It speaks HTTP/2.
    Http2,
    /// It speaks HTTP/1.
    Http1,
    /// It speaks TLS.
    Tls,
    /// It speaks something else.
    Other,
    /// It said nothing, or too little.
    Ended(Ended),
}

impl Trace {
    /// Waits for what the server says first.
    pub(super) async fn greeting(&self) -> Greeting {
        loop {
            if let Some(greeting) = self.seen.lock().unwrap_or_else(PoisonError::into_inner).read()
            {
                return greeting;
            }
            self.changed.notified().await;
        }
    }

    /// Returns how the connection ended, where it has.
    pub(super) fn ended(&self) -> Option<Ended> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).ended.clone()
    }

    fn note(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner));
        // One waits, and may not yet wait when this is called.
        self.changed.notify_one();
    }

    fn came_in(&self, bytes: &[u8]) {
        self.note(|seen| {
            let room = HEAD.saturating_sub(seen.head.len());
            seen.head.extend(bytes.iter().take(room));
        });
    }

    fn has_ended(&self, ended: Ended) {
        self.note(|seen| {
            seen.ended.get_or_insert(ended);
        });
    }
}

impl Seen {
    fn read(&self) -> Option<Greeting> {
        let head = &self.head;
        match (head.as_slice(), &self.ended) {
            // A record of TLS: its kind, and the version's first byte.
            ([0x14..=0x17, 3, ..], _) => Some(Greeting::Tls),
            ([b'H', b'T', b'T', b'P', b'/', ..], _) => Some(Greeting::Http1),
            ([_, _, _, SETTINGS, _, 0, 0, 0, 0, ..], _) => Some(Greeting::Http2),
            (_, None) if head.len() < FRAME_HEAD => None,
            ([], Some(ended)) => Some(Greeting::Ended(ended.clone())),
            _ => Some(Greeting::Other),
        }
    }
}

/// A connection that leaves a trace.
pub(super) struct Traced<S> {
    pub(super) stream: S,
    pub(super) trace: Arc<Trace>,
}

pub(super) fn ended(error: &io::Error) -> Ended {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(tls) => Ended::Tls(tls.clone()),
        None => Ended::Io(error.kind(), error.to_string()),
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Traced<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let room = buffer.remaining();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        match &polled {
            Poll::Ready(Ok(())) => match buffer.filled().get(before..).unwrap_or_default() {
                [] if room > 0 => self.trace.has_ended(Ended::Closed),
                bytes => self.trace.came_in(bytes),
            },
            Poll::Ready(Err(error)) => self.trace.has_ended(ended(error)),
            Poll::Pending => {}
        }
        polled
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Traced<S> {
    /// Reads what is there when writing fails: often that is the reason.
    fn write_failed(&mut self, context: &mut Context<'_>, error: &io::Error) {
        let mut bytes = [0; 512];
        for _ in 0..8 {
            let mut buffer = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *self).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                _ => break,
            }
        }
        self.trace.has_ended(ended(error));
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Traced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Err(error)) = &polled {
            self.write_failed(context, error);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        if let Poll::Ready(Err(error)) = &polled {
            self.write_failed(context, error);
        }
        polled
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_known_by_its_first_bytes() {
        let read = |head: &[u8], ended: Option<Ended>| Seen { head: head.to_vec(), ended }.read();
        let closed = || Some(Ended::Closed);
        assert_eq!(read(b"\0\0\x12\x04\0\0\0\0\0\0\x05", None), Some(Greeting::Http2));
        assert_eq!(read(b"HTTP/1.1 400", None), Some(Greeting::Http1));
        assert_eq!(read(b"\x15\x03\x01\0\x02", None), Some(Greeting::Tls));
        assert_eq!(read(b"220 mail.example", None), Some(Greeting::Other));
        assert_eq!(read(b"\0\0\x12\x07\0\0\0\0\0", None), Some(Greeting::Other));
        assert_eq!(read(b"\0\0\x12", None), None);
        assert_eq!(read(b"\0\0\x12", closed()), Some(Greeting::Other));
        assert_eq!(read(b"", closed()), Some(Greeting::Ended(Ended::Closed)));
    }
}
