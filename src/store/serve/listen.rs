//! Sockets and connections: one task each, and as many as the options allow.
//!
//! Each connection is a file to the system, and the store needs files too: one that cannot be
//! opened at the wrong time ends its writes for good. So connections leave [`RESERVED_FILES`]
//! alone, but for the few of peers and those that ask for metrics, which are served when clients
//! take all the rest.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustix::net::RecvFlags;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener};
use tokio::sync::{Semaphore, watch as signal};

use super::dispatch;
use super::tls::{Peer, Tls};
use super::{Address, Listener, RESERVED_FILES, Role, Shared, StartError};

/// Connections that the system may hold for us.
const BACKLOG: u32 = 4096;
/// Bytes with which every client of HTTP/2 begins: its preface and the head of a frame.
const GREETING_BYTES: usize = 24 + 9;
/// Rest after the system had no room for a connection.
const NO_ROOM: Duration = Duration::from_millis(100);
/// Largest head of a request over HTTP/2.
const HEAD_BYTES: u32 = 64 << 10;
/// Connections at once for metrics and health alone, and as many for peers: of the reserved files.
const ASIDE_MAX: usize = 32;

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

/// The file of a Unix socket that is listened on; it goes when this is dropped.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and number; another file in its place stays.
    id: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), id: Self::id(path)? })
    }

    fn id(path: &Path) -> io::Result<(u64, u64)> {
        let status = std::fs::symlink_metadata(path)?;
        Ok((status.dev(), status.ino()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if Self::id(&self.path).is_ok_and(|now| now == self.id) {
            // One that stays is in nobody's way: the next start removes it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What a socket is for: all listeners of one address and role, as etcd puts them together.
#[derive(Clone)]
struct Use {
    role: Role,
    tls: Option<Tls>,
    /// Whether what is no TLS is served as well, or alone.
    is_plain: bool,
}

/// A socket that listeners share.
struct Shares {
    socket: Socket,
    /// Where it was asked for, and where it is.
    asked: Address,
    address: Address,
    what: Use,
}

impl Shares {
    fn fits(&self, listener: &Listener) -> bool {
        let is_any = matches!(&self.asked, Address::Tcp(address) if address.port() == 0);
        !is_any && self.asked == listener.address && self.what.role == listener.role
    }
}

/// Listens on every socket, and serves what comes; returns where, and the files of sockets.
pub(super) fn start(
    shared: &Arc<Shared>,
    connections: &Connections,
) -> Result<(Vec<Address>, Vec<SocketFile>), StartError> {
    let connections_max = match files_max() {
        None => shared.options.connections_max,
        Some(limit) => {
            let room = limit.checked_sub(RESERVED_FILES).filter(|room| *room > 0);
            let room = room.ok_or(StartError::Files { limit })?;
            shared.options.connections_max.min(usize::try_from(room).unwrap_or(usize::MAX))
        }
    };
    let mut sockets: Vec<Shares> = Vec::new();
    let mut files = Vec::new();
    let mut addresses = Vec::new();
    for listener in &shared.options.listeners {
        if let Some(there) = sockets.iter_mut().find(|socket| socket.fits(listener)) {
            there.what.is_plain |= listener.tls.is_none();
            there.what.tls = there.what.tls.take().or_else(|| listener.tls.clone());
            addresses.push(there.address.clone());
            continue;
        }
        let asked = listener.address.clone();
        let failed = |source| StartError::Listen { address: asked.clone(), source };
        let (socket, address) = bind(&asked, shared.options.reuse_port).map_err(failed)?;
        if let Address::Unix(path) = &asked {
            files.push(SocketFile::of(path).map_err(failed)?);
        }
        addresses.push(address.clone());
        let (role, tls) = (listener.role, listener.tls.clone());
        let what = Use { role, is_plain: tls.is_none(), tls };
        sockets.push(Shares { socket, asked, address, what });
    }
    let rooms = [connections_max, ASIDE_MAX, ASIDE_MAX];
    let rooms = rooms.map(|room| Arc::new(Semaphore::new(room.min(Semaphore::MAX_PERMITS))));
    for Shares { socket, what, .. } in sockets {
        let [of_clients, of_metrics, of_peers] = &rooms;
        let room = Arc::clone(match what.role {
            Role::Client | Role::Grpc | Role::Http => of_clients,
            Role::Metrics => of_metrics,
            Role::Peer => of_peers,
        });
        tokio::spawn(accept(Arc::clone(shared), what, socket, connections.clone(), room));
    }
    Ok((addresses, files))
}

/// Returns how many files the program may have open; `None`: as many as it likes.
fn files_max() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Nofile).current
}

/// Removes the socket of a server that was killed. What is no socket is somebody's file, and a
/// socket that somebody listens on is theirs.
fn remove_stale(path: &Path) -> io::Result<()> {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, connect, socket};
    let kind = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        status => status?.file_type(),
    };
    if !kind.is_socket() {
        let text = "there is a file that is no socket";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    let probe = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    // A listener whose queue is full would be waited for.
    rustix::io::ioctl_fionbio(&probe, true)?;
    match connect(&probe, &SocketAddrUnix::new(path)?).map_err(io::Error::from) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Err(io::ErrorKind::AddrInUse.into()),
    }
}

/// Finds out whether an address can be listened on, and lets go of it again.
///
/// # Errors
/// It cannot, or others listen there. A Unix socket is not looked at.
pub fn check_free(address: &Address, reuse_port: bool) -> io::Result<()> {
    match address {
        Address::Tcp(address) => bound(*address, reuse_port).map(drop),
        Address::Unix(_) => Ok(()),
    }
}

fn bound(address: SocketAddr, reuse_port: bool) -> io::Result<TcpSocket> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    // A port that was in use a moment ago can be had again.
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(reuse_port)?;
    socket.bind(address)?;
    Ok(socket)
}

fn bind(address: &Address, reuse_port: bool) -> io::Result<(Socket, Address)> {
    match address {
        Address::Tcp(address) => {
            let listener = bound(*address, reuse_port)?.listen(BACKLOG)?;
            let address = listener.local_addr()?;
            Ok((Socket::Tcp(listener), Address::Tcp(address)))
        }
        Address::Unix(path) => {
            remove_stale(path)?;
            Ok((Socket::Unix(UnixListener::bind(path)?), address.clone()))
        }
    }
}

async fn accept(
    shared: Arc<Shared>,
    what: Use,
    socket: Socket,
    connections: Connections,
    room: Arc<Semaphore>,
) {
    let mut closed = shared.closed();
    loop {
        let accepted = async {
            let stream = match &socket {
                Socket::Tcp(socket) => socket.accept().await.map(|(stream, _)| Stream::Tcp(stream)),
                Socket::Unix(socket) => {
                    socket.accept().await.map(|(stream, _)| Stream::Unix(stream))
                }
            };
            // Who waits for room is one a socket, so that no socket keeps room for nobody. The
            // semaphore is never closed.
            let permit = Arc::clone(&room).acquire_owned().await.ok();
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
        let (shared, mut what) = (Arc::clone(&shared), what.clone());
        tokio::spawn(async move {
            let _counted = (permit, one);
            let ready = tokio::select! {
                ready = stream.ready(shared.options.patience, &mut what) => ready,
                () = shared.closed() => return,
            };
            if !ready {
                return;
            }
            let remote = stream.remote();
            match stream {
                Stream::Tcp(stream) => secured(shared, what, &remote, stream).await,
                Stream::Unix(stream) => secured(shared, what, &remote, stream).await,
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

    /// Prepares a new connection, and waits until its peer says something, which tells whether it
    /// is TLS where that may be; a peer that says nothing is not waited for for ever.
    async fn ready(&self, limit: Duration, what: &mut Use) -> bool {
        let said = async {
            match self {
                Self::Tcp(stream) => {
                    // Options that cannot be set make a connection slower to end, not wrong.
                    let _ = stream.set_nodelay(true);
                    let _ = rustix::net::sockopt::set_socket_keepalive(stream, true);
                    let _ = rustix::net::sockopt::set_tcp_keepidle(stream, KEEPALIVE);
                    let _ = rustix::net::sockopt::set_tcp_keepintvl(stream, KEEPALIVE);
                    stream.readable().await?;
                }
                Self::Unix(stream) => stream.readable().await?,
            }
            if what.is_plain && what.tls.is_some() && !self.begins_tls().await? {
                what.tls = None;
            }
            Ok::<(), io::Error>(())
        };
        matches!(tokio::time::timeout(limit, said).await, Ok(Ok(())))
    }

    /// Looks at the first byte, and leaves it where it is.
    async fn begins_tls(&self) -> io::Result<bool> {
        let mut first = [0];
        loop {
            let looked = match self {
                Self::Tcp(stream) => {
                    stream.readable().await?;
                    stream.try_io(Interest::READABLE, || peek(stream, &mut first))
                }
                Self::Unix(stream) => {
                    stream.readable().await?;
                    stream.try_io(Interest::READABLE, || peek(stream, &mut first))
                }
            };
            match looked {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                looked => return looked.map(|()| first == [TLS_HANDSHAKE]),
            }
        }
    }
}

fn peek(socket: impl AsFd, first: &mut [u8; 1]) -> io::Result<()> {
    rustix::net::recv(socket, first, RecvFlags::PEEK)?;
    Ok(())
}

/// First byte of a connection over TLS; HTTP begins with a letter.
const TLS_HANDSHAKE: u8 = 0x16;

/// Time after which the system asks whether a quiet peer is there, and asks again.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Serves a connection, behind TLS where that is spoken.
async fn secured<IO>(shared: Arc<Shared>, what: Use, remote: &str, io: IO)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(tls) = &what.tls else {
        return connection(shared, what.role, Peer::default(), io).await;
    };
    let accepted = tokio::select! {
        accepted = tls.accept(io) => accepted,
        () = shared.closed() => return,
    };
    match accepted {
        Ok((io, peer)) => connection(shared, what.role, peer, io).await,
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
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(options.patience)
        .title_case_headers(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(options.streams_max)
        .max_header_list_size(HEAD_BYTES)
        .keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout);
    let peer = Arc::new(peer);
    let closed = shared.closed();
    let greeting = Arc::new(Greeting::default());
    let greeted = Greeted { io, greeting: Arc::clone(&greeting) };
    let patience = tokio::time::sleep(options.patience);
    let asked = Arc::clone(&greeting);
    let service = service_fn(move |request| {
        asked.has_asked.store(true, Ordering::Relaxed);
        dispatch::dispatch(Arc::clone(&shared), role, Arc::clone(&peer), request)
    });
    let serving = builder.serve_connection(TokioIo::new(greeted), service);
    tokio::pin!(serving);
    // Until a client has said what it speaks nothing else looks at the time.
    let given_up = async move {
        patience.await;
        if greeting.is_complete() {
            std::future::pending::<()>().await;
        }
    };
    // What goes wrong on a connection its client knows, or is not there to know.
    tokio::select! {
        _ = serving.as_mut() => {}
        () = given_up => {}
        () = closed => {
            serving.as_mut().graceful_shutdown();
            let _ = serving.await;
        }
    }
}

/// How far a client has come with its first words.
#[derive(Debug, Default)]
struct Greeting {
    bytes: AtomicUsize,
    has_asked: AtomicBool,
}

impl Greeting {
    fn is_complete(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
            || self.bytes.load(Ordering::Relaxed) >= GREETING_BYTES
    }
}

/// Counts what comes first.
struct Greeted<IO> {
    io: IO,
    greeting: Arc<Greeting>,
}

impl<IO: AsyncRead + Unpin> AsyncRead for Greeted<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(context, buffer);
        let bytes = &self.greeting.bytes;
        let seen = bytes.load(Ordering::Relaxed);
        if seen < GREETING_BYTES {
            let more = buffer.filled().len().saturating_sub(before);
            bytes.store(seen.saturating_add(more), Ordering::Relaxed);
        }
        polled
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Greeted<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
