//! HTTP/2 and gRPC by hand, for what no client would send.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use prost::Message;
use prost::bytes::Bytes;

use crate::serve_child::LONG;

pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

pub(crate) struct Frame {
    pub(crate) kind: u8,
    pub(crate) stream: u32,
    pub(crate) payload: Vec<u8>,
}

/// Makes a frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
    out
}

/// Writes header fields as literals that no table remembers.
pub(crate) fn fields(fields: &[(&str, &str)]) -> Vec<u8> {
    fn text(out: &mut Vec<u8>, text: &str) {
        match text.len() {
            short @ 0..127 => out.push(short as u8),
            mut long => {
                out.push(127);
                long -= 127;
                while long >= 128 {
                    out.push((long % 128) as u8 | 128);
                    long /= 128;
                }
                out.push(long as u8);
            }
        }
        out.extend(text.as_bytes());
    }
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(0);
        text(&mut out, name);
        text(&mut out, value);
    }
    out
}

/// The head of a call.
pub(crate) fn call(path: &str) -> Vec<(&str, &str)> {
    vec![
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
}

/// A message as it travels in a call.
pub(crate) fn framed(message: &[u8]) -> Vec<u8> {
    let mut out = vec![0];
    out.extend((message.len() as u32).to_be_bytes());
    out.extend(message);
    out
}

/// A connection of HTTP/2.
pub(crate) struct Wire(pub(crate) TcpStream);

impl Wire {
    /// Connects and says its preface and settings.
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream.set_write_timeout(Some(LONG)).unwrap();
        let mut wire = Self(stream);
        assert!(wire.send(PREFACE) && wire.send(&frame(SETTINGS, 0, 0, &[])));
        wire
    }

    /// Sends bytes; false where the server has hung up.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> bool {
        match self.0.write_all(bytes) {
            Ok(()) => true,
            Err(error) => {
                let is_stuck = error.kind() == std::io::ErrorKind::WouldBlock;
                assert!(!is_stuck, "nothing is read, and the connection stays");
                false
            }
        }
    }

    /// Begins a call with a message, and does not end it.
    pub(crate) fn begin(&mut self, stream: u32, path: &str, message: &impl Message) -> bool {
        let mut bytes = frame(HEADERS, END_HEADERS, stream, &fields(&call(path)));
        bytes.extend(frame(DATA, 0, stream, &framed(&message.encode_to_vec())));
        self.send(&bytes)
    }

    /// Reads a frame; `None` where the server has hung up.
    pub(crate) fn read(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).map_err(|error| self.check(&error)).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.0.read_exact(&mut payload).map_err(|error| self.check(&error)).ok()?;
        let stream = u32::from_be_bytes(head[5..9].try_into().unwrap());
        Some(Frame { kind: head[3], stream, payload })
    }

    fn check(&self, error: &std::io::Error) {
        let is_late = error.kind() == std::io::ErrorKind::WouldBlock;
        assert!(!is_late, "neither an answer nor an end within {LONG:?}");
    }

    /// Reads to the end; returns the code of the GOAWAY that was sent, if one was.
    pub(crate) fn ended(&mut self) -> Option<u32> {
        let mut code = None;
        while let Some(frame) = self.read() {
            if frame.kind == GOAWAY {
                code = Some(u32::from_be_bytes(frame.payload[4..8].try_into().unwrap()));
            }
        }
        code
    }

    /// Vanishes: the peer gets a reset.
    pub(crate) fn vanish(self) {
        vanish(self.0);
    }
}

/// Closes a socket with a reset.
pub(crate) fn vanish(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
}

/// Makes a call with any bytes as its body; returns code, text and the first message.
pub(crate) async fn raw(
    address: SocketAddr,
    path: &str,
    headers: &[(&str, &str)],
    body: Vec<u8>,
) -> (i32, String, Bytes) {
    use http_body_util::{BodyExt, Full};
    use tower_service::Service;

    let channel = tonic::transport::Endpoint::new(format!("http://{address}")).unwrap();
    let mut channel = channel.connect().await.unwrap();
    std::future::poll_fn(|context| channel.poll_ready(context)).await.unwrap();
    let mut request = http::Request::post(format!("http://{address}{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(tonic::body::Body::new(Full::new(Bytes::from(body)))).unwrap();
    let response = channel.call(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap();
    let of = |headers: &http::HeaderMap| {
        let status = tonic::Status::from_header_map(headers)?;
        Some((status.code() as i32, status.message().to_owned()))
    };
    let (code, text) =
        of(&head.headers).or_else(|| body.trailers().and_then(of)).expect("a status");
    (code, text, body.to_bytes())
}
