//! Sockets and connections: one task each, and as many as the options allow.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener};
use tokio::sync::{Semaphore, watch as signal};

use super::dispatch;
use super::tls::Peer;
use super::{Address, Listener, Role, Shared, StartError};

/// Connections that the system may hold for us.
const BACKLOG: u32 = 4096;
/// Time in which a new connection has to say something.
const FIRST_BYTE: Duration = Duration::from_secs(60);
/// Time in which the head of an HTTP/1 request has to come.
const HEAD: Duration = Duration::from_secs(30);
/// Rest after the system had no room for a connection.
const NO_ROOM: Duration = Duration::from_millis(100);
/// Largest head of a request over HTTP/2.
const HEAD_BYTES: u32 = 64 << 10;

/// Counts connections, so that their end can be waited for.
#[derive(Clone, Debug)]
pub(super) struct Connections(Arc<signal::Sender<usize>>);

impl Default for Connections {
    fn default() -> Self {
        Self(Arc::new(signal::channel(0).0))
    }
}

impl Connections {
    fn one_more(&self) -> OneConnection {
        self.0.send_modify(|count| *count = count.saturating_add(1));
        OneConnection(self.clone())
    }

    /// Waits until there are none, or the time is over.
    pub(super) async fn ended(&self, limit: Duration) {
        let mut counts = self.0.subscribe();
        // Whoever is left is cut off.
        let _ = tokio::time::timeout(limit, counts.wait_for(|count| *count == 0)).await;
    }
}

/// One of the connections that are counted.
struct OneConnection(Connections);

impl Drop for OneConnection {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// Listens on every socket, and serves what comes; returns where.
pub(super) fn start(
    shared: &Arc<Shared>,
    connections: &Connections,
) -> Result<Vec<Address>, StartError> {
    let mut sockets = Vec::new();
    for listener in &shared.options.listeners {
        let bound = bind(&listener.address, shared.options.reuse_port);
        sockets.push(
            bound.map_err(|source| StartError::Listen {
                address: listener.address.clone(),
                source,
            })?,
        );
    }
    let room = Arc::new(Semaphore::new(shared.options.connections_max.min(Semaphore::MAX_PERMITS)));
    let mut addresses = Vec::new();
    for (listener, (socket, address)) in shared.options.listeners.iter().zip(sockets) {
        addresses.push(address);
        let (listener, shared) = (listener.clone(), Arc::clone(shared));
        let (connections, room) = (connections.clone(), Arc::clone(&room));
        tokio::spawn(accept(shared, listener, socket, connections, room));
    }
    Ok(addresses)
}

fn bind(address: &Address, reuse_port: bool) -> io::Result<(Socket, Address)> {
    match address {
        Address::Tcp(address) => {
            let socket = match address {
                SocketAddr::V4(_) => TcpSocket::new_v4(),
                SocketAddr::V6(_) => TcpSocket::new_v6(),
            }?;
            // A port that was in use a moment ago can be had again.
            socket.set_reuseaddr(true)?;
            socket.set_reuseport(reuse_port)?;
            socket.bind(*address)?;
            let listener = socket.listen(BACKLOG)?;
            let address = listener.local_addr()?;
            Ok((Socket::Tcp(listener), Address::Tcp(address)))
        }
        Address::Unix(path) => {
            // As etcd does: what a killed server left is in the way of the next.
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            Ok((Socket::Unix(UnixListener::bind(path)?), address.clone()))
        }
    }
}

async fn accept(
    shared: Arc<Shared>,
    listener: Listener,
    socket: Socket,
    connections: Connections,
    room: Arc<Semaphore>,
) {
    let mut closed = shared.closed();
    loop {
        let accepted = async {
            // The semaphore is never closed.
            let permit = Arc::clone(&room).acquire_owned().await.ok();
            let stream = match &socket {
                Socket::Tcp(socket) => socket.accept().await.map(|(stream, _)| Stream::Tcp(stream)),
                Socket::Unix(socket) => {
                    socket.accept().await.map(|(stream, _)| Stream::Unix(stream))
                }
            };
            (permit, stream)
        };
        let (permit, stream) = tokio::select! {
            accepted = accepted => accepted,
            () = closed.as_mut() => return,
        };
        let Ok(stream) = stream else {
            tokio::time::sleep(NO_ROOM).await;
            continue;
        };
        let one = connections.one_more();
        let (shared, listener) = (Arc::clone(&shared), listener.clone());
        tokio::spawn(async move {
            let _counted = (permit, one);
            let ready = tokio::select! {
                ready = stream.ready() => ready,
                () = shared.closed() => return,
            };
            if !ready {
                return;
            }
            let remote = stream.remote();
            match stream {
                Stream::Tcp(stream) => secured(shared, listener, &remote, stream).await,
                Stream::Unix(stream) => secured(shared, listener, &remote, stream).await,
            }
        });
    }
}

enum Stream {
    Tcp(TcpStream),
    Unix(tokio::net::UnixStream),
}

impl Stream {
    /// Returns who is at the other end, for the log.
    fn remote(&self) -> String {
        match self {
            Self::Tcp(stream) => stream.peer_addr().map(|address| address.to_string()),
            Self::Unix(_) => Ok("@".to_owned()),
        }
        .unwrap_or_default()
    }

    /// Prepares a new connection, and waits until its peer says something; a peer that says nothing
    /// is not waited for for ever.
    async fn ready(&self) -> bool {
        let said = async {
            match self {
                Self::Tcp(stream) => {
                    // Options that cannot be set make a connection slower to end, not wrong.
                    let _ = stream.set_nodelay(true);
                    let _ = rustix::net::sockopt::set_socket_keepalive(stream, true);
                    let _ = rustix::net::sockopt::set_tcp_keepidle(stream, KEEPALIVE);
                    let _ = rustix::net::sockopt::set_tcp_keepintvl(stream, KEEPALIVE);
                    stream.readable().await
                }
                Self::Unix(stream) => stream.readable().await,
            }
        };
        matches!(tokio::time::timeout(FIRST_BYTE, said).await, Ok(Ok(())))
    }
}

/// Time after which the system asks whether a quiet peer is there, and asks again.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Serves a connection behind TLS, where its listener speaks that.
async fn secured<IO>(shared: Arc<Shared>, listener: Listener, remote: &str, io: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(tls) = &listener.tls else {
        return connection(shared, listener.role, Peer::default(), io).await;
    };
    let accepted = tokio::select! {
        accepted = tls.accept(io) => accepted,
        () = shared.closed() => return,
    };
    match accepted {
        Ok((io, peer)) => connection(shared, listener.role, peer, io).await,
        Err(error) => tls.rejected(remote, &error),
    }
}

async fn connection<IO>(shared: Arc<Shared>, role: Role, peer: Peer, io: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let options = &shared.options;
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // Names of headers as Go writes them: there is who compares them letter by letter.
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD).title_case_headers(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(options.streams_max)
        .max_header_list_size(HEAD_BYTES)
        .keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout);
    let peer = Arc::new(peer);
    let closed = shared.closed();
    let service = service_fn(move |request| {
        dispatch::dispatch(Arc::clone(&shared), role, Arc::clone(&peer), request)
    });
    let serving = builder.serve_connection(TokioIo::new(io), service);
    tokio::pin!(serving);
    // What goes wrong on a connection its client knows, or is not there to know.
    tokio::select! {
        _ = serving.as_mut() => {}
        () = closed => {
            serving.as_mut().graceful_shutdown();
            let _ = serving.await;
        }
    }
}
