//! A server in a process of its own, whose memory and descriptors can be looked at.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use etcd_client::Client;
use rustix::process::{Pid, Signal, kill_process};

/// Longest wait for what must happen.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Tests that start a process take turns: they measure its memory, and the machine is small.
static TURN: Mutex<()> = Mutex::new(());

pub(crate) struct Served {
    child: Child,
    pub(crate) address: SocketAddr,
    pub(crate) dir: PathBuf,
    flags: Vec<String>,
    /// What a shell does before it becomes the server; nothing: there is no shell.
    before: String,
    pub(crate) peer: SocketAddr,
    _folder: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// An address that nobody listens on.
pub(crate) fn free() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

/// Returns the program, run by a shell that does something before.
pub(crate) fn program(before: &str) -> Command {
    let program = env!("CARGO_BIN_EXE_etcdkit");
    if before.is_empty() {
        return Command::new(program);
    }
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{before}; exec \"$0\" \"$@\""), program]);
    shell
}

fn start(dir: &Path, [address, peer]: [SocketAddr; 2], before: &str, flags: &[String]) -> Child {
    let mut command = program(before);
    command.args(["serve", "--log-level", "error", "--data-dir"]).arg(dir);
    for (flag, address) in [
        ("--listen-client-urls", address),
        ("--advertise-client-urls", address),
        ("--listen-peer-urls", peer),
        ("--initial-advertise-peer-urls", peer),
    ] {
        command.args([flag, &format!("http://{address}")]);
    }
    command.args(["--initial-cluster", &format!("default=http://{peer}")]).args(flags);
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

impl Served {
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self::start_after("", flags)
    }

    /// Starts it by a shell that does something before, such as to set limits.
    pub(crate) fn start_after(before: &str, flags: &[&str]) -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::Builder::new();
        let folder = folder.tempdir_in("/dev/shm").or_else(|_| folder.tempdir()).unwrap();
        let (dir, address, peer) = (folder.path().join("data"), free(), free());
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let child = start(&dir, [address, peer], before, &flags);
        let before = before.to_owned();
        let served =
            Self { child, address, dir, flags, before, peer, _folder: folder, _turn: turn };
        served.is_up();
        served
    }

    fn is_up(&self) {
        until("the start", || get(self.address, "/health").is_ok_and(|(code, _)| code == 200));
    }

    pub(crate) async fn client(&self) -> Client {
        Client::connect([self.address.to_string()], None).await.unwrap()
    }

    /// Bytes of memory that belong to the process alone.
    pub(crate) fn memory(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    /// How many files and sockets are open.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    pub(crate) fn metric(&self, name: &str) -> u64 {
        let (_, text) = get(self.address, "/metrics").unwrap();
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        line.unwrap_or_else(|| panic!("no {name}")).split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// A client that nobody knows yet is served: it writes, and reads what it wrote.
    pub(crate) fn serves(&self) {
        run(async {
            let mut client = self.client().await;
            client.put("probe", "value", None).await.unwrap();
            let answer = client.get("probe", None).await.unwrap();
            assert_eq!(answer.kvs()[0].value(), b"value");
        });
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for its end.
    pub(crate) fn ended(&mut self, limit: Duration) -> ExitStatus {
        let end = Instant::now() + limit;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Starts it again, after its end.
    pub(crate) fn restart(&mut self) {
        self.child = start(&self.dir, [self.address, self.peer], &self.before, &self.flags);
        self.is_up();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Asks by HTTP/1.
pub(crate) fn get(address: SocketAddr, path: &str) -> std::io::Result<(u16, String)> {
    let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let answer = say(address, head.as_bytes())?;
    let text = String::from_utf8_lossy(&answer).into_owned();
    let code = text.split(' ').nth(1).and_then(|code| code.parse().ok());
    let code = code.ok_or_else(|| std::io::Error::other(format!("no answer: {text:?}")))?;
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    Ok((code, body.unwrap_or_default()))
}

/// Says something and returns all that comes back until the server hangs up.
pub(crate) fn say(address: SocketAddr, bytes: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LONG))?;
    // Who is refused early is not listened to.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(_) if !answer.is_empty() => {}
        read => drop(read?),
    }
    Ok(answer)
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Runs clients; nothing in them may wait for ever.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(LONG * 4, test).await.expect("it hangs") })
}
