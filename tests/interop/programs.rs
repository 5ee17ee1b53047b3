//! The real programs: where they are, how they are run, waited for and ended.

use std::fs::{self, OpenOptions};
use std::io::Read;
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{Ran, Sandbox};

/// Longest wait for a server to start, or to refuse.
const BOOT: Duration = Duration::from_secs(30);
/// Longest run of a program that only reads or writes files, or asks a server.
const RUN: Duration = Duration::from_secs(60);
/// Longest build of all programs from nothing.
const BUILD: Duration = Duration::from_secs(1800);

static TURN: Mutex<()> = Mutex::new(());
static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();

/// The real programs, while it is this test's turn.
pub(crate) struct Real {
    bin: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

/// Waits for the turn and finds the programs; `None` where there is no Go and none is required.
pub(crate) fn real() -> Option<Real> {
    let turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    match FOUND.get_or_init(find) {
        Ok(bin) => Some(Real { bin: bin.clone(), _turn: turn }),
        Err(why) => {
            let required = std::env::var_os("REQUIRE_INTEROP").is_some_and(|value| value == "1");
            assert!(!required, "REQUIRE_INTEROP=1, but {why}");
            crate::support::skipped(&format!("SKIPPED: interop: {why}"));
            None
        }
    }
}

fn find() -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let bin = std::env::var_os("ETCDKIT_INTEROP_BIN").map(PathBuf::from);
    let bin = bin.unwrap_or_else(|| root.join("target/interop/bin"));
    // The build resolves a relative folder from where it runs, as this test does.
    let mut build = Command::new(root.join("tests/interop/build"));
    let built = bounded(build.stdin(Stdio::null()), BUILD);
    match built.code {
        0 => Ok(bin),
        3 => Err(format!("the Go programs cannot be built: {}", built.stderr.trim())),
        _ => panic!("tests/interop/build failed: {built}"),
    }
}

/// Runs a command to its end, which must come within a limit.
#[track_caller]
pub(crate) fn bounded(command: &mut Command, limit: Duration) -> Ran {
    let line = format!("{command:?}");
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().unwrap_or_else(|error| panic!("{line}: {error}"));
    let stdout = drain(child.stdout.take());
    let stderr = drain(child.stderr.take());
    let status = wait(&mut child, limit).unwrap_or_else(|| {
        end(&mut child);
        panic!("still running after {limit:?}: {line}")
    });
    let text = |drained: thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&drained.join().expect("a reader")).into_owned()
    };
    Ran { line, code: code(status), stdout: text(stdout), stderr: text(stderr) }
}

fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or(128 + status.signal().unwrap_or(0))
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let began = Instant::now();
    while began.elapsed() < limit {
        if let Some(status) = child.try_wait().expect("a child to look at") {
            return Some(status);
        }
        sleep(Duration::from_millis(3));
    }
    None
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Asks again and again until there is an answer.
#[track_caller]
pub(crate) fn until<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < limit, "not within {limit:?}: {what}");
        sleep(Duration::from_millis(50));
    }
}

/// Picks ports that nobody has right now; someone may take them before they are used.
pub(crate) fn free_ports<const N: usize>() -> [u16; N] {
    let held = [(); N].map(|()| TcpListener::bind(("127.0.0.1", 0)).expect("a free port"));
    held.map(|socket| socket.local_addr().expect("an address").port())
}

/// How a server is started.
#[derive(Clone, Debug, Default)]
pub(crate) struct Start<'a> {
    /// The data directory.
    pub(crate) data_dir: PathBuf,
    /// The member's name.
    pub(crate) name: &'a str,
    /// The peer URL, where others rely on it; else any free port.
    pub(crate) peer: Option<String>,
    /// More flags.
    pub(crate) more: &'a [&'a str],
}

/// Why a server did not start.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// It ended by itself; its log says why.
    Ended { code: i32, log: String },
    /// Somebody else had the port.
    Busy,
}

impl Real {
    /// The folder of the programs.
    pub(crate) fn bin(&self) -> &Path {
        &self.bin
    }

    /// A program with a clean environment.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.bin.join(name));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.stdin(Stdio::null());
        command
    }

    /// Runs a program to its end.
    #[track_caller]
    pub(crate) fn run(&self, name: &str, words: &[&str]) -> Ran {
        bounded(self.program(name).args(words), RUN)
    }

    /// Runs a program that must succeed.
    #[track_caller]
    pub(crate) fn ok(&self, name: &str, words: &[&str]) -> Ran {
        self.run(name, words).expect(0, &[])
    }

    /// Asks the oracle for one JSON value.
    #[track_caller]
    pub(crate) fn oracle(&self, words: &[&str]) -> Value {
        self.ok("oracle", words).json()
    }

    /// Asks the oracle for one JSON value a line.
    #[track_caller]
    pub(crate) fn oracle_lines(&self, words: &[&str]) -> Vec<Value> {
        let ran = self.ok("oracle", words);
        let lines = ran.stdout.lines();
        lines.map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// Starts an etcd that must come up.
    #[track_caller]
    pub(crate) fn etcd(&self, version: &str, start: &Start<'_>) -> Etcd<'_> {
        match self.try_etcd(version, start) {
            Ok(etcd) => etcd,
            Err(refusal) => panic!("etcd {version} does not start: {refusal:?}"),
        }
    }

    /// Starts an etcd and waits until it serves clients or has ended.
    #[track_caller]
    pub(crate) fn try_etcd(&self, version: &str, start: &Start<'_>) -> Result<Etcd<'_>, Refusal> {
        let mut tries = 0;
        loop {
            let mut etcd = self.spawn(version, start);
            match etcd.come_up() {
                Ok(()) => return Ok(etcd),
                Err(Refusal::Busy) if tries < 5 => tries += 1,
                Err(refusal) => return Err(refusal),
            }
        }
    }

    /// Starts an etcd and does not wait for it.
    pub(crate) fn spawn(&self, version: &str, start: &Start<'_>) -> Etcd<'_> {
        let [client, peer] = free_ports();
        let client = format!("http://127.0.0.1:{client}");
        let peer = start.peer.clone().unwrap_or_else(|| format!("http://127.0.0.1:{peer}"));
        let data_dir = start.data_dir.display().to_string();
        let mut command = self.program(&format!("etcd-{version}"));
        command.args(["--name", start.name, "--data-dir", &data_dir]);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        if start.peer.is_none() {
            command.args(["--initial-cluster", &format!("{}={peer}", start.name)]);
        }
        command.args(start.more);
        self.launch(command, &data_dir, client)
    }

    /// Starts an etcd with the words of a printed command, and does not wait for it.
    #[track_caller]
    pub(crate) fn spawn_printed(&self, version: &str, words: &[String]) -> Etcd<'_> {
        assert_eq!(words.first().map(String::as_str), Some("etcd"), "{words:?}");
        let value = |flag: &str| {
            let at = words.iter().position(|word| word == flag).map(|at| at + 1);
            at.and_then(|at| words.get(at)).unwrap_or_else(|| panic!("no {flag}: {words:?}"))
        };
        let mut command = self.program(&format!("etcd-{version}"));
        command.args(&words[1..]);
        self.launch(command, value("--data-dir"), value("--listen-client-urls").clone())
    }

    /// Starts an etcd whose words are there already; its log is `data_dir` with `.log` behind.
    pub(crate) fn launch(
        &self,
        mut command: Command,
        data_dir: &str,
        endpoint: String,
    ) -> Etcd<'_> {
        let log = PathBuf::from(format!("{data_dir}.log"));
        let out = OpenOptions::new().create(true).append(true).open(&log).expect("a log");
        let offset = out.metadata().expect("a log").len();
        command.env("ETCD_VERIFY", "all");
        command.stdout(out.try_clone().expect("a log")).stderr(out);
        let child = command.spawn().expect("etcd starts");
        Etcd { real: self, child, endpoint, log, offset }
    }
}

/// A running etcd; it is killed when it is dropped.
pub(crate) struct Etcd<'a> {
    real: &'a Real,
    child: Child,
    /// Its client URL.
    pub(crate) endpoint: String,
    log: PathBuf,
    /// Where this run's part of the log begins.
    offset: u64,
}

impl Drop for Etcd<'_> {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

impl Etcd<'_> {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What this run has logged.
    pub(crate) fn log(&self) -> String {
        let bytes = fs::read(&self.log).unwrap_or_default();
        let from = usize::try_from(self.offset).expect("a short log");
        String::from_utf8_lossy(bytes.get(from..).unwrap_or_default()).into_owned()
    }

    /// Waits until it serves clients.
    #[track_caller]
    pub(crate) fn come_up(&mut self) -> Result<(), Refusal> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child to look at") {
                let log = self.log();
                if log.contains("address already in use") {
                    return Err(Refusal::Busy);
                }
                return Err(Refusal::Ended { code: code(status), log });
            }
            let log = self.log();
            if log.contains("ready to serve client requests") {
                return Ok(());
            }
            assert!(began.elapsed() < BOOT, "neither started nor ended in {BOOT:?}:\n{log}");
            sleep(Duration::from_millis(20));
        }
    }

    /// Asks it to end and waits until it has.
    pub(crate) fn stop(self) {
        self.stop_with_code();
    }

    /// Asks it to end, and returns the code that it ended with, or 128 and its signal.
    pub(crate) fn stop_with_code(mut self) -> i32 {
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").arg(&pid).status();
        match wait(&mut self.child, BOOT) {
            Some(status) => code(status),
            None => panic!("does not end when it is told to:\n{}", self.log()),
        }
    }

    /// Where it logs.
    #[cfg(feature = "serve")]
    pub(crate) fn log_path(&self) -> &Path {
        &self.log
    }

    /// Everything that it holds, as the oracle sees it.
    #[track_caller]
    pub(crate) fn truth(&self) -> Value {
        self.real.oracle(&["truth", "--endpoint", &self.endpoint])
    }

    /// Runs etcdctl 3.6 against it.
    #[track_caller]
    pub(crate) fn ctl(&self, words: &[&str]) -> Ran {
        let words = [&["--endpoints", &self.endpoint, "--command-timeout=20s"], words].concat();
        self.real.run("etcdctl-3.6", &words)
    }

    /// Saves a snapshot with etcdctl 3.6.
    #[track_caller]
    pub(crate) fn save(&self, path: &Path) {
        let path = path.to_str().expect("a plain path");
        self.ctl(&["snapshot", "save", path]).expect(0, &[]);
    }
}

impl Sandbox {
    /// Runs the program with words; it must end within a limit.
    #[track_caller]
    pub(crate) fn kit(&self, words: &[&str]) -> Ran {
        bounded(self.command().args(words).stdin(Stdio::null()), RUN)
    }

    /// Runs the program with `-w json`, which must succeed.
    #[track_caller]
    pub(crate) fn kit_json(&self, words: &[&str]) -> Value {
        self.kit(&[&["-w", "json"], words].concat()).expect(0, &[]).json()
    }

    /// A path in the sandbox as text.
    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().expect("a plain path").to_owned()
    }
}

/// Words of a command line that was printed for a shell.
pub(crate) fn shell_words(line: &str) -> Vec<String> {
    let script = format!("printf '%s\\0' {line}");
    let ran = bounded(Command::new("sh").arg("-c").arg(script), RUN).expect(0, &[]);
    ran.stdout.split_terminator('\0').map(str::to_owned).collect()
}

/// Gives a command line another value for a flag that it has.
#[track_caller]
pub(crate) fn with_flag(words: &[String], flag: &str, value: &str) -> Vec<String> {
    let at = words.iter().position(|word| word == flag).unwrap_or_else(|| panic!("no {flag}"));
    let mut words = words.to_vec();
    words[at + 1] = value.to_owned();
    words
}

/// Numbers that look random and are the same in every run.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below a limit.
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).expect("a small number")
    }
}
