//! The signals that stop a server, and the words to whoever started it.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};

/// Time between two looks at what may be over without a signal.
const LOOK: Duration = Duration::from_millis(200);

/// Waits for the first signal; a second one ends the program at once.
pub(super) struct Signals {
    wakes: UnixStream,
    came: [(i32, Arc<AtomicBool>); 2],
}

/// The signal that came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signal(i32);

impl Signals {
    /// Begins to look out for them.
    pub(super) fn register() -> io::Result<Self> {
        let (wakes, wake) = UnixStream::pair()?;
        let stopping = Arc::new(AtomicBool::new(false));
        let came = [SIGINT, SIGTERM].map(|signal| (signal, Arc::new(AtomicBool::new(false))));
        for (signal, flag) in &came {
            flag::register_conditional_default(*signal, Arc::clone(&stopping))?;
            flag::register(*signal, Arc::clone(flag))?;
            flag::register(*signal, Arc::clone(&stopping))?;
            low_level::pipe::register(*signal, wake.try_clone()?)?;
        }
        Ok(Self { wakes, came })
    }

    /// Tells which came, without waiting.
    pub(super) fn came(&self) -> Option<Signal> {
        let came = self.came.iter().find(|(_, flag)| flag.load(Ordering::Relaxed));
        came.map(|(signal, _)| Signal(*signal))
    }

    /// Waits for one; `None`: what is looked at meanwhile is over.
    pub(super) fn wait(&mut self, is_over: impl Fn() -> bool) -> io::Result<Option<Signal>> {
        self.wakes.set_read_timeout(Some(LOOK))?;
        loop {
            match self.wakes.read_exact(&mut [0]) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => read?,
            }
            if let Some(signal) = self.came() {
                return Ok(Some(signal));
            }
            if is_over() {
                return Ok(None);
            }
        }
    }
}

impl Signal {
    pub(super) fn name(self) -> &'static str {
        if self.0 == SIGINT { "interrupt" } else { "terminated" }
    }

    /// Ends the program as the signal would have, which whoever waits for it sees. The first
    /// process of a container cannot be ended so, and exits.
    pub(super) fn end(self) -> u8 {
        if process::id() != 1 {
            // It does not return but where the system has no such signal.
            let _ = low_level::emulate_default_handler(self.0);
        }
        0
    }
}

/// Tells systemd that the service is ready; `None` where nobody wants to know.
#[cfg(target_os = "linux")]
pub(super) fn notify_ready() -> Option<io::Result<()>> {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    let path = std::env::var_os("NOTIFY_SOCKET").filter(|path| !path.is_empty())?;
    let address = match path.as_bytes().split_first() {
        Some((b'@', name)) => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let send = |address| UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address).map(|_| ());
    Some(address.and_then(send))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn notify_ready() -> Option<io::Result<()>> {
    None
}
