//! Making a connection: name, TCP, TLS, the first word of the server; and sorting why one failed.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint as Target, Uri};
use tower::service_fn;

use crate::format::certificate::shown;

use super::certificate;
use super::tls::{Material, Purpose};
use super::trace::{Ended, Greeting, Trace, Traced, ended};
use super::{Cause, Endpoint, Error, Place, Token, diagnose};

/// Shortest time between two questions for a sign of life that no etcd takes ill (grpc-go
/// internal/internal.go, `KeepaliveMinPingTime`).
const KEEPALIVE_TIME_MIN: Duration = Duration::from_secs(10);

/// Bytes of one answer that may be under way: a snapshot waits for no round trip then.
const WINDOW_BYTES: u32 = 2 << 20;

/// Bytes both ways, through TLS or not.
pub(super) trait Both: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Both for T {}

/// Makes connections.
pub(super) struct Dialer {
    pub(super) tls: Material,
    /// Endpoints without a scheme use TLS.
    pub(super) tls_wanted: bool,
    pub(super) timeout: Duration,
    pub(super) keepalive_time: Duration,
    pub(super) keepalive_timeout: Duration,
    pub(super) token: Option<Token>,
    /// Of [`super::Settings::flags`], for what is told of a failure.
    pub(super) flags: Box<[String]>,
}

/// A channel for gRPC, and the trace of the connection that it uses now.
pub(super) struct Line {
    pub(super) channel: etcd_client::Channel,
    pub(super) latest: Latest,
}

/// The trace of the newest connection of a channel.
#[derive(Clone, Default)]
pub(super) struct Latest(Arc<Mutex<Arc<Trace>>>);

impl Latest {
    fn get(&self) -> Arc<Trace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, trace: Arc<Trace>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = trace;
    }
}

/// A limit that passes.
#[derive(Clone, Copy)]
pub(super) struct Limit {
    after: Duration,
    pub(super) at: Instant,
}

impl Limit {
    pub(super) fn new(after: Duration) -> Self {
        let now = Instant::now();
        // A limit beyond what a clock can hold is as good as a year.
        let at = now.checked_add(after).unwrap_or(now + Duration::from_secs(365 * 86_400));
        Self { after, at }
    }

    async fn of<T>(&self, doing: &'static str, work: impl Future<Output = T>) -> Result<T, Cause> {
        let late = Cause::Timeout { after: self.after, doing };
        timeout_at(self.at, work).await.map_err(|_| late)
    }
}

/// A cause on its way up through the layers of a gRPC channel.
#[derive(Debug)]
struct Failed(Cause);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Failed {}

impl Dialer {
    /// Makes the error of an endpoint that was asked.
    pub(super) fn failed(&self, endpoint: &str, cause: Cause) -> Error {
        Error { flags: self.flags.clone(), ..Error::of(endpoint, cause) }
    }

    /// Tells whether connections to an endpoint use TLS.
    pub(super) fn is_secure(&self, endpoint: &Endpoint) -> bool {
        endpoint.is_secure(self.tls_wanted)
    }

    /// Opens a channel for gRPC; it connects again by itself when the connection breaks.
    ///
    /// It is open when the server has said that it speaks HTTP/2: only then has it accepted our
    /// certificate.
    pub(super) async fn channel(self: &Arc<Self>, endpoint: &Endpoint) -> Result<Line, Error> {
        self.channel_as(endpoint, self.token.as_ref()).await
    }

    /// Opens a channel whose every request carries a token.
    pub(super) async fn channel_as(
        self: &Arc<Self>,
        endpoint: &Endpoint,
        token: Option<&Token>,
    ) -> Result<Line, Error> {
        let limit = Limit::new(self.timeout);
        let latest = Latest::default();
        let connector = {
            let (dialer, to, latest) = (self.clone(), endpoint.clone(), latest.clone());
            service_fn(move |_: Uri| {
                let (dialer, to, latest) = (dialer.clone(), to.clone(), latest.clone());
                async move {
                    let trace = Arc::new(Trace::default());
                    latest.set(trace.clone());
                    let limit = Limit::new(dialer.timeout);
                    let stream = dialer.open(&to, &trace, limit).await;
                    stream.map(TokioIo::new).map_err(Failed)
                }
            })
        };
        let target = Target::from(self.origin(endpoint))
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(2 * WINDOW_BYTES)
            .http2_keep_alive_interval(self.keepalive_time.max(KEEPALIVE_TIME_MIN))
            .keep_alive_timeout(self.keepalive_timeout);
        let connected = match target.connect_with_connector(connector).await {
            Ok(channel) => self.greeted(&latest.get(), limit).await.map(|()| channel),
            Err(error) => Err(self.known_better(transport_cause(&error), &latest)),
        };
        match connected {
            Ok(channel) => Ok(Line { channel: carrying(channel, token), latest }),
            Err(cause) => {
                let cause = diagnose::refine(self, endpoint, cause).await;
                Err(self.failed(endpoint.given(), cause))
            }
        }
    }

    /// The address that requests name; where connections go is the connector's to know.
    fn origin(&self, endpoint: &Endpoint) -> Uri {
        let scheme = if self.is_secure(endpoint) { "https" } else { "http" };
        let authority = match endpoint.place() {
            Place::Tcp { host, port } => {
                let host = host.split('%').next().unwrap_or(host);
                match host.contains(':') {
                    true => format!("[{host}]:{port}"),
                    false => format!("{host}:{port}"),
                }
            }
            Place::Unix(_) => "localhost".to_owned(),
        };
        let uri = format!("{scheme}://{authority}").parse();
        uri.unwrap_or_else(|_| Uri::from_static("http://localhost"))
    }

    /// Waits until the server has said that it speaks HTTP/2.
    async fn greeted(&self, trace: &Trace, limit: Limit) -> Result<(), Cause> {
        match limit.of("waiting for its first word", trace.greeting()).await? {
            Greeting::Http2 => Ok(()),
            Greeting::Http1 => Err(Cause::NotEtcd { what: "it speaks HTTP/1".to_owned() }),
            Greeting::Tls => Err(Cause::WantsTls),
            Greeting::Other => Err(Cause::NotEtcd { what: "it does not speak HTTP".to_owned() }),
            Greeting::Ended(ended) => Err(self.end_cause(&ended, trace)),
        }
    }

    /// Says why a call failed, where its connection knows more than the call.
    pub(super) fn call_cause(&self, error: &etcd_client::Error, latest: &Latest) -> Cause {
        self.known_better(cause(error), latest)
    }

    fn known_better(&self, cause: Cause, latest: &Latest) -> Cause {
        let trace = latest.get();
        match (&cause, trace.ended()) {
            (Cause::Broken { .. }, Some(ended @ Ended::Tls(_))) => self.end_cause(&ended, &trace),
            _ => cause,
        }
    }

    /// Says why a connection ended.
    fn end_cause(&self, ended: &Ended, trace: &Trace) -> Cause {
        match ended {
            Ended::Closed => {
                Cause::Broken { what: "the server closed it without a word".to_owned() }
            }
            Ended::Io(kind, what) => io_cause(*kind, what, ""),
            Ended::Tls(error) => self.tls_cause(error, trace, ""),
        }
    }

    pub(super) fn tls_cause(&self, error: &rustls::Error, trace: &Trace, wanted: &str) -> Cause {
        match error {
            rustls::Error::InvalidCertificate(error) => {
                let der = trace.shown.certificate();
                certificate::theirs(error, der.as_deref(), wanted)
            }
            rustls::Error::AlertReceived(alert) => {
                let asked = trace.shown.asked();
                certificate::ours(*alert, self.tls.own.as_ref(), asked.as_deref()).unwrap_or_else(
                    || Cause::Tls {
                        what: format!("the server said: {}", certificate::words(*alert)),
                    },
                )
            }
            // What plain bytes look like to TLS.
            rustls::Error::InvalidMessage(_) => Cause::WantsPlain,
            error => Cause::Tls { what: shown(&error.to_string()) },
        }
    }

    /// Opens a connection.
    pub(super) async fn open(
        &self,
        endpoint: &Endpoint,
        trace: &Arc<Trace>,
        limit: Limit,
    ) -> Result<Box<dyn Both>, Cause> {
        let stream = self.plain(endpoint, limit).await?;
        if !self.is_secure(endpoint) {
            return Ok(Box::new(Traced { stream, trace: trace.clone() }));
        }
        let stream = self.secured(endpoint, stream, Purpose::Grpc, trace, limit).await?;
        Ok(Box::new(Traced { stream, trace: trace.clone() }))
    }

    /// Opens a connection without TLS.
    pub(super) async fn plain(
        &self,
        endpoint: &Endpoint,
        limit: Limit,
    ) -> Result<Box<dyn Both>, Cause> {
        match endpoint.place() {
            Place::Unix(path) => {
                let connected = limit.of("connecting", UnixStream::connect(path)).await?;
                let failed = |error: io::Error| io_cause(error.kind(), &error.to_string(), path);
                Ok(Box::new(connected.map_err(failed)?))
            }
            Place::Tcp { host, port } => Ok(Box::new(connect(host, *port, limit).await?)),
        }
    }

    /// Begins TLS on a connection.
    pub(super) async fn secured(
        &self,
        endpoint: &Endpoint,
        stream: Box<dyn Both>,
        purpose: Purpose,
        trace: &Trace,
        limit: Limit,
    ) -> Result<tokio_rustls::client::TlsStream<Box<dyn Both>>, Cause> {
        let wanted = endpoint.server_name();
        let name = ServerName::try_from(wanted.to_owned()).map_err(|_| Cause::Tls {
            what: format!("{} is no name that a certificate can be for", shown(wanted)),
        })?;
        let connector = TlsConnector::from(self.tls.config(purpose, &trace.shown));
        let connected = limit.of("shaking hands over TLS", connector.connect(name, stream)).await?;
        connected.map_err(|error| match ended(&error) {
            Ended::Tls(error) => self.tls_cause(&error, trace, wanted),
            Ended::Closed => Cause::Broken { what: "it was closed".to_owned() },
            Ended::Io(kind, what) => io_cause(kind, &what, ""),
        })
    }
}

/// Puts the token on every request, where one was given.
fn carrying(channel: Channel, token: Option<&Token>) -> etcd_client::Channel {
    let Some(Token(token)) = token.cloned() else {
        return etcd_client::Channel::Tonic(channel);
    };
    let marked = tower::ServiceExt::map_request(
        channel,
        move |mut request: tonic::codegen::http::Request<tonic::body::Body>| {
            if let Ok(token) = token.parse() {
                request.headers_mut().insert("token", token);
            }
            request
        },
    );
    let boxed = tower::ServiceExt::map_err(marked, Into::into);
    etcd_client::Channel::Custom(tower::util::BoxCloneSyncService::new(boxed))
}

/// Tries the addresses of a host one after the other; none may use up the time of the rest.
async fn connect(host: &str, port: u16, limit: Limit) -> Result<TcpStream, Cause> {
    let unresolved = |what: String| Cause::NameNotResolved { host: host.to_owned(), what };
    let found = limit.of("resolving its name", tokio::net::lookup_host((host, port))).await?;
    let mut addresses: Vec<SocketAddr> =
        found.map_err(|error| unresolved(shown(&error.to_string())))?.collect();
    // A resolver may name one twice.
    let mut seen = Vec::new();
    addresses.retain(|address| {
        let is_new = !seen.contains(address);
        seen.push(*address);
        is_new
    });
    let mut refused: Vec<String> = Vec::new();
    let mut last = None;
    let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
    for address in addresses {
        let share = limit.at.saturating_duration_since(Instant::now()) / left.max(1);
        left = left.saturating_sub(1);
        let share = Limit { after: limit.after, at: Instant::now() + share };
        match share.of("connecting", TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                refused.push(address.to_string());
            }
            Ok(Err(error)) => last = Some(io_cause(error.kind(), &error.to_string(), "")),
            Err(late) => last = Some(late),
        }
    }
    match last {
        Some(cause) => Err(cause),
        None if refused.is_empty() => Err(unresolved("it has no address".to_owned())),
        None => Err(Cause::Refused { address: refused.join(" and ") }),
    }
}

fn io_cause(kind: io::ErrorKind, what: &str, address: &str) -> Cause {
    let what = shown(what);
    match kind {
        io::ErrorKind::ConnectionRefused => Cause::Refused { address: address.to_owned() },
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::NotConnected
        | io::ErrorKind::UnexpectedEof => Cause::Broken { what },
        _ => Cause::Unreachable { what },
    }
}

/// Finds the cause in what a gRPC channel made of it.
fn transport_cause(error: &(dyn std::error::Error + 'static)) -> Cause {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(Failed(cause)) = error.downcast_ref() {
            return cause.clone();
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return io_cause(error.kind(), &error.to_string(), "");
        }
        next = error.source();
    }
    let what = causes(error);
    if what.contains("keep-alive timed out") {
        return Cause::Broken { what: "it gave no sign of life for too long".to_owned() };
    }
    Cause::Broken { what }
}

/// Sorts a gRPC client's error.
pub(super) fn cause(error: &etcd_client::Error) -> Cause {
    use etcd_client::Error as Client;
    let Client::GRpcStatus(status) = error else { return Cause::Broken { what: causes(error) } };
    let what = shown(status.message());
    let code = i32::from(status.code());
    let source = std::error::Error::source(status);
    // Numbers of the gRPC specification.
    match (code, source) {
        // UNKNOWN and UNAVAILABLE with a cause below come from this side: nothing was answered.
        (2 | 13 | 14, Some(source)) => transport_cause(source),
        // The client's words for an answer in HTTP that is none in gRPC.
        _ if what.contains("grpc-status header missing")
            || what.contains("invalid content-type")
            // The first byte of a page, taken for the head of a message.
            || what.contains("received message with invalid compression flag") =>
        {
            Cause::NotEtcd { what: "it speaks HTTP/2 without gRPC".to_owned() }
        }
        (16, _) => Cause::NotAuthenticated { what },
        (7, _) => Cause::NotPermitted { what },
        // etcd 3.5 passes some refusals on as they are, under UNKNOWN.
        (2, _) if what.starts_with("auth: ") && what.contains("permission denied") => {
            Cause::NotPermitted { what }
        }
        (2, _) if what.contains("invalid auth token") => Cause::NotAuthenticated { what },
        // INVALID_ARGUMENT is what etcd says to nobody, to a wrong password, and to a login from
        // before users or roles were changed (etcd api/v3rpc/rpctypes, checked at 3.7.3).
        (2 | 3, _)
            if ["user name is empty", "authentication failed", "revision of auth store is old"]
                .iter()
                .any(|words| what.contains(words)) =>
        {
            Cause::NotAuthenticated { what }
        }
        _ => Cause::Answer { code, what },
    }
}

/// Joins an error and its causes, leaving out what a cause above has said.
fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let words = shown(&error.to_string());
        // tonic's outermost words, which say nothing.
        if !text.contains(&words) && words != "transport error" {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&words);
        }
        next = error.source();
    }
    text
}
