//! A loopback TCP proxy that harms what passes through it, and a server that says one thing.
//!
//! ```ignore
//! let proxy = Proxy::to(fake.port());
//! sandbox.run(&format!("endpoint health --endpoints {}", proxy.endpoint()));
//! proxy.set(|harm| harm.delay = Duration::from_millis(300));   // each way
//! proxy.set(|harm| harm.cut_after = Some(100_000));            // bytes from the server
//! proxy.set(|harm| harm.black_hole = true);                    // accepts, and nothing passes
//! proxy.set(|harm| *harm = Harm::default());                   // all well again
//! proxy.cut();                                                 // every connection, now
//!
//! let peer = Says::to_all(b"HTTP/1.1 400 Bad Request\r\n\r\n"); // what is no etcd client port
//! ```
//!
//! Harm counts the bytes of each connection by itself, from its first byte. Changes hold for open
//! connections too. A delay holds a piece of up to 64 KiB back, so it slows a stream as well.
//! Everything ends when it is dropped, within some 20 ms.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]
#![allow(clippy::indexing_slicing, reason = "these are tests")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

/// How often everything here looks whether it should change or end.
const TICK: Duration = Duration::from_millis(5);
const PIECE: usize = 64 * 1024;

/// What happens to what passes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Harm {
    /// Each way.
    pub(crate) delay: Duration,
    /// Breaks the connection after so many bytes from the server.
    pub(crate) cut_after: Option<u64>,
    /// Tells the client after so many bytes that there are no more; the other way stays open.
    pub(crate) half_close_after: Option<u64>,
    /// Inverts the bits of this byte from the server, the first being 0.
    pub(crate) flip_at: Option<u64>,
    /// Lets so many bytes a second from the server through.
    pub(crate) bytes_per_second: Option<u64>,
    /// Takes connections and lets nothing through.
    pub(crate) black_hole: bool,
}

struct Shared {
    harm: Mutex<Harm>,
    is_over: AtomicBool,
    /// A connection ends when this is no longer what it was at its beginning.
    cuts: AtomicUsize,
    accepted: AtomicUsize,
    to_client: AtomicU64,
}

impl Shared {
    fn harm(&self) -> Harm {
        self.harm.lock().expect("the harm").clone()
    }
}

/// A running proxy; it ends when it is dropped.
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Passes on to a loopback port, from a free one. Nobody need listen there yet.
    pub(crate) fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            harm: Mutex::new(Harm::default()),
            is_over: AtomicBool::new(false),
            cuts: AtomicUsize::new(0),
            accepted: AtomicUsize::new(0),
            to_client: AtomicU64::new(0),
        });
        let all = Arc::clone(&shared);
        let thread = Some(spawn(move || accept(&listener, port, &all)));
        Self { shared, address, thread }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// `http://127.0.0.1:PORT`
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// `https://127.0.0.1:PORT`
    pub(crate) fn https_endpoint(&self) -> String {
        format!("https://{}", self.address)
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Harm)) {
        change(&mut self.shared.harm.lock().expect("the harm"));
    }

    /// Breaks every connection; new ones are taken.
    pub(crate) fn cut(&self) {
        self.shared.cuts.fetch_add(1, Ordering::SeqCst);
    }

    /// How many connections there have been.
    pub(crate) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many bytes the clients got, over all connections.
    pub(crate) fn to_client(&self) -> u64 {
        self.shared.to_client.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, port: u16, shared: &Arc<Shared>) {
    listener.set_nonblocking(true).expect("a socket");
    let mut pumps: Vec<JoinHandle<()>> = Vec::new();
    while !shared.is_over.load(Ordering::SeqCst) {
        pumps.retain(|pump| !pump.is_finished());
        match listener.accept() {
            Ok((client, _)) => {
                shared.accepted.fetch_add(1, Ordering::SeqCst);
                let shared = Arc::clone(shared);
                pumps.push(spawn(move || connection(client, port, &shared)));
            }
            Err(_) => sleep(TICK),
        }
    }
    for pump in pumps {
        let _ = pump.join();
    }
}

/// One connection: what ends it, and its two directions.
#[derive(Clone)]
struct Link {
    shared: Arc<Shared>,
    cuts: usize,
    is_broken: Arc<AtomicBool>,
}

impl Link {
    fn is_over(&self) -> bool {
        self.shared.is_over.load(Ordering::SeqCst)
            || self.is_broken.load(Ordering::SeqCst)
            || self.shared.cuts.load(Ordering::SeqCst) != self.cuts
    }

    /// Waits, unless it ends first; says whether it goes on.
    fn wait(&self, until: Instant) -> bool {
        while Instant::now() < until && !self.is_over() {
            sleep(TICK.min(until.saturating_duration_since(Instant::now())));
        }
        !self.is_over()
    }

    fn wait_out_black_hole(&self) -> bool {
        while self.shared.harm().black_hole && !self.is_over() {
            sleep(TICK);
        }
        !self.is_over()
    }
}

fn connection(client: TcpStream, port: u16, shared: &Arc<Shared>) {
    let cuts = shared.cuts.load(Ordering::SeqCst);
    let is_broken = Arc::new(AtomicBool::new(false));
    let link = Link { shared: Arc::clone(shared), cuts, is_broken };
    if !link.wait_out_black_hole() {
        return;
    }
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { return };
    for socket in [&client, &server] {
        socket.set_nonblocking(false).expect("a socket");
        socket.set_nodelay(true).expect("a socket");
        socket.set_read_timeout(Some(TICK)).expect("a socket");
        socket.set_write_timeout(Some(TICK)).expect("a socket");
    }
    let copies = (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
    let up = link.clone();
    let up = spawn(move || pump(&up, copies.0, copies.1, false));
    pump(&link, server, client, true);
    let _ = up.join();
}

/// Passes bytes on until they end or the link does.
fn pump(link: &Link, mut from: TcpStream, mut to: TcpStream, to_client: bool) {
    let mut piece = vec![0; PIECE];
    let mut passed: u64 = 0;
    let began = Instant::now();
    loop {
        if link.is_over() {
            break;
        }
        let read = match from.read(&mut piece) {
            // The other direction may go on.
            Ok(0) => {
                let _ = to.shutdown(Shutdown::Write);
                return;
            }
            Ok(read) => read,
            Err(error) if is_tick(error.kind()) => continue,
            Err(_) => break,
        };
        if !link.wait_out_black_hole() {
            break;
        }
        let harm = link.shared.harm();
        if !harm.delay.is_zero() && !link.wait(Instant::now() + harm.delay) {
            break;
        }
        let mut bytes = &mut piece[..read];
        let (mut breaks, mut half_closes) = (false, false);
        if to_client {
            let left = |limit: Option<u64>| {
                limit.map(|limit| usize::try_from(limit.saturating_sub(passed)).unwrap_or(read))
            };
            if let Some(left) = left(harm.cut_after).filter(|left| *left <= read) {
                (breaks, bytes) = (true, &mut bytes[..left]);
            }
            if let Some(left) = left(harm.half_close_after).filter(|left| *left <= bytes.len()) {
                (half_closes, bytes) = (true, &mut bytes[..left]);
            }
            if let Some(at) = harm.flip_at.and_then(|at| at.checked_sub(passed))
                && let Some(byte) = bytes.get_mut(usize::try_from(at).unwrap_or(usize::MAX))
            {
                *byte = !*byte;
            }
        }
        // In small steps, so that a slow stream drips instead of stuttering.
        let rate = harm.bytes_per_second.filter(|_| to_client);
        let step = rate.map_or(PIECE, |rate| usize::try_from(rate / 50).unwrap_or(PIECE).max(1));
        for part in bytes.chunks(step.min(PIECE)) {
            if !write(link, &mut to, part) {
                break;
            }
            passed += part.len() as u64;
            if to_client {
                link.shared.to_client.fetch_add(part.len() as u64, Ordering::SeqCst);
            }
            if let Some(rate) = rate {
                let due = Duration::from_secs_f64(passed as f64 / rate as f64);
                link.wait(began + due);
            }
        }
        if breaks {
            break;
        }
        if half_closes {
            let _ = to.shutdown(Shutdown::Write);
            return;
        }
    }
    link.is_broken.store(true, Ordering::SeqCst);
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

fn is_tick(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn write(link: &Link, to: &mut TcpStream, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        if link.is_over() {
            return false;
        }
        match to.write(bytes) {
            Ok(0) => return false,
            Ok(written) => bytes = &bytes[written..],
            Err(error) if is_tick(error.kind()) => {}
            Err(_) => return false,
        }
    }
    true
}

/// A server that hears something, says its one thing and closes.
pub(crate) struct Says {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Says {
    pub(crate) fn to_all(words: &[u8]) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        listener.set_nonblocking(true).expect("a socket");
        let is_over = Arc::new(AtomicBool::new(false));
        let (words, over) = (words.to_vec(), Arc::clone(&is_over));
        let thread = spawn(move || {
            while !over.load(Ordering::SeqCst) {
                let Ok((mut client, _)) = listener.accept() else {
                    sleep(TICK);
                    continue;
                };
                let limit = Some(Duration::from_millis(500));
                let ready = client.set_nonblocking(false).and_then(|()| {
                    client.set_read_timeout(limit)?;
                    client.set_write_timeout(limit)
                });
                ready.expect("a socket");
                let mut heard = [0; 1024];
                let _ = client.read(&mut heard);
                let _ = client.write_all(&words);
                let _ = client.shutdown(Shutdown::Write);
                // Reads on, so that no reset overtakes the words.
                while client.read(&mut heard).is_ok_and(|read| read > 0) {}
            }
        });
        Self { address, is_over, thread: Some(thread) }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// `http://127.0.0.1:PORT`
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }
}

impl Drop for Says {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
