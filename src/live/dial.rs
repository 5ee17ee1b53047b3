//! Making a connection: name, TCP, TLS; and reading out of a failed one why it failed.

use std::fmt;
use std::io;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint as Target, Uri};
use tower::service_fn;

use super::tls::Material;
use super::{Cause, Endpoint, Error, Place, Security};

/// Idle time after which the connection is asked for a sign of life while a call is under way.
const KEEPALIVE_TIME: Duration = Duration::from_secs(10);
/// Bytes of one answer that may be under way: a snapshot waits for no round trip then.
const WINDOW_BYTES: u32 = 2 << 20;
/// Limit for that sign.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(6);

/// Bytes both ways, through TLS or not.
pub(super) trait Both: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Both for T {}

/// Makes connections.
pub(super) struct Dialer {
    pub(super) tls: Option<Material>,
    /// Endpoints without a scheme use TLS.
    pub(super) tls_wanted: bool,
    pub(super) timeout: Duration,
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
    /// Tells whether connections to an endpoint use TLS.
    pub(super) fn is_secure(&self, endpoint: &Endpoint) -> bool {
        match endpoint.security() {
            Security::Plain => false,
            Security::Tls => true,
            Security::AsFlagsSay => self.tls_wanted,
        }
    }

    /// Opens a channel for gRPC; it connects again by itself when the connection breaks.
    pub(super) async fn channel(
        self: &std::sync::Arc<Self>,
        endpoint: &Endpoint,
    ) -> Result<Channel, Error> {
        let failed = |cause| Error::of(endpoint.given(), cause);
        let scheme = if self.is_secure(endpoint) { "https" } else { "http" };
        let authority = match endpoint.place() {
            Place::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Place::Tcp { host, port } => format!("{host}:{port}"),
            Place::Unix(_) => "localhost".to_owned(),
        };
        let uri: Uri = format!("{scheme}://{authority}")
            .parse()
            .map_err(|_| failed(Cause::Malformed { what: "it is no URL".to_owned() }))?;
        let target = Target::from(uri)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(2 * WINDOW_BYTES)
            .http2_keep_alive_interval(KEEPALIVE_TIME)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT);
        let (dialer, to) = (self.clone(), endpoint.clone());
        let connector = service_fn(move |_: Uri| {
            let (dialer, to) = (dialer.clone(), to.clone());
            async move { dialer.open(&to).await.map(TokioIo::new).map_err(Failed) }
        });
        let connected = target.connect_with_connector(connector).await;
        connected.map_err(|error| failed(transport_cause(&error)))
    }

    /// Opens a connection.
    pub(super) async fn open(&self, endpoint: &Endpoint) -> Result<Box<dyn Both>, Cause> {
        let late = Cause::Timeout { after: self.timeout, doing: "connecting" };
        tokio::time::timeout(self.timeout, self.open_unbounded(endpoint)).await.unwrap_or(Err(late))
    }

    async fn open_unbounded(&self, endpoint: &Endpoint) -> Result<Box<dyn Both>, Cause> {
        match endpoint.place() {
            Place::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|error| io_cause(&error))?;
                self.secured(endpoint, "localhost", stream).await
            }
            Place::Tcp { host, port } => {
                let stream = connect(host, *port).await?;
                self.secured(endpoint, host, stream).await
            }
        }
    }

    async fn secured(
        &self,
        endpoint: &Endpoint,
        host: &str,
        stream: impl Both + 'static,
    ) -> Result<Box<dyn Both>, Cause> {
        if !self.is_secure(endpoint) {
            return Ok(Box::new(stream));
        }
        let tls = |what: String| Cause::Tls { what };
        let Some(material) = &self.tls else { return Err(tls("there is no TLS set up".into())) };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| tls(error.to_string()))?;
        let connector = TlsConnector::from(material.config.clone());
        let stream = connector.connect(name, stream).await.map_err(|error| io_cause(&error))?;
        Ok(Box::new(stream))
    }
}

/// Tries the addresses of a host one after the other.
async fn connect(host: &str, port: u16) -> Result<TcpStream, Cause> {
    let unresolved = |what: String| Cause::NameNotResolved { host: host.to_owned(), what };
    let addresses = tokio::net::lookup_host((host, port))
        .await
        .map_err(|error| unresolved(error.to_string()))?;
    let mut last = unresolved("it has no address".to_owned());
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last = io_cause(&error),
        }
    }
    Err(last)
}

fn io_cause(error: &io::Error) -> Cause {
    if let Some(tls) = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        return Cause::Tls { what: tls.to_string() };
    }
    match error.kind() {
        io::ErrorKind::ConnectionRefused => Cause::Refused,
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => Cause::Broken { what: error.to_string() },
        _ => Cause::Unreachable { what: error.to_string() },
    }
}

/// Finds the cause in what a gRPC channel made of it.
pub(super) fn transport_cause(error: &(dyn std::error::Error + 'static)) -> Cause {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(Failed(cause)) = error.downcast_ref() {
            return cause.clone();
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return io_cause(error);
        }
        next = error.source();
    }
    Cause::Broken { what: causes(error) }
}

/// Sorts a gRPC client's error; `after` is the limit that the caller had set.
pub(super) fn cause(error: &etcd_client::Error) -> Cause {
    use etcd_client::Error as Client;
    let Client::GRpcStatus(status) = error else { return Cause::Broken { what: causes(error) } };
    let what = status.message().to_owned();
    let code = i32::from(status.code());
    let source = std::error::Error::source(status);
    // Numbers of the gRPC specification.
    match (code, source) {
        // UNKNOWN and UNAVAILABLE with a cause below come from this side: nothing was answered.
        (2 | 13 | 14, Some(source)) => transport_cause(source),
        (16, _) => Cause::NotAuthenticated { what },
        (7, _) => Cause::NotPermitted { what },
        // INVALID_ARGUMENT is what etcd says to nobody and to a wrong password.
        (3, _) if what.contains("user name") || what.contains("authentication failed") => {
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
        let words = error.to_string();
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
