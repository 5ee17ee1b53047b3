//! What the tests share: a sandbox that runs the program, fixtures, databases that are edited
//! row by row, and pictures of folders that prove that nothing changed.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]
#![allow(clippy::indexing_slicing, reason = "these are tests")]

pub(crate) mod dead;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Cursor, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use etcdkit::bolt::builder::Builder;
use etcdkit::bolt::walk::walk;
use etcdkit::bolt::{At, File, Visit};
use etcdkit::etcd::members::Member;
use rustix::process::{Pid, Signal};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// After so long a program hangs: far above what any test needs.
const HANG: Duration = Duration::from_secs(180);

/// The versions of etcd that fixtures are there of.
pub(crate) const VERSIONS: [&str; 4] = ["3.4", "3.5", "3.6", "3.7"];

/// Reads a fixture as it stands in the repository.
pub(crate) fn fixture(path: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(path);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Reads and unpacks a `.gz` fixture.
pub(crate) fn unzip(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let packed = fixture(path);
    flate2::read::GzDecoder::new(packed.as_slice()).read_to_end(&mut bytes).expect(path);
    bytes
}

/// The snapshot of a version's workload, with its trailer.
pub(crate) fn snapshot(version: &str) -> Vec<u8> {
    unzip(&format!("etcd-{version}/snapshot.db.gz"))
}

/// A snapshot of a real Kubernetes, with its trailer.
pub(crate) fn kubernetes() -> Vec<u8> {
    unzip("k8s-1.34/before-incident.db.gz")
}

/// Reads a JSON fixture.
pub(crate) fn json_fixture(path: &str) -> Value {
    serde_json::from_slice(&fixture(path)).expect(path)
}

/// Takes one file out of a `.tar.gz` fixture.
pub(crate) fn from_tar(path: &str, member: &str) -> Vec<u8> {
    let packed = unzip(path);
    let mut archive = tar::Archive::new(packed.as_slice());
    for entry in archive.entries().expect(path) {
        let mut entry = entry.expect(path);
        if entry.path().expect(path) == Path::new(member) {
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect(member);
            return bytes;
        }
    }
    panic!("{path} does not hold {member}");
}

/// Unpacks a `.tar.gz` fixture into a directory.
pub(crate) fn unpack(path: &str, into: &Path) {
    let packed = unzip(path);
    tar::Archive::new(packed.as_slice()).unpack(into).expect(path);
}

/// Writes bytes as lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// SHA-256 in hex, as `sha256sum` prints it.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Appends the trailer that `snapshot save` writes.
pub(crate) fn seal(mut database: Vec<u8>) -> Vec<u8> {
    let digest = Sha256::digest(&database);
    database.extend_from_slice(&digest);
    database
}

/// Decodes base64 as etcd's JSON has it.
pub(crate) fn base64(text: &str) -> Vec<u8> {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let digit = |c: u8| DIGITS.iter().position(|d| *d == c).expect("a base64 digit") as u32;
    let mut out = Vec::new();
    for group in text.trim_end_matches('=').as_bytes().chunks(4) {
        let bits = group.iter().fold(0, |bits, c| bits << 6 | digit(*c)) << (6 * (4 - group.len()));
        out.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    out
}

/// Rows of one bucket.
pub(crate) type Bucket = BTreeMap<Vec<u8>, Vec<u8>>;

/// Rows of a database by bucket, to be changed and written again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    /// Rows by the names of their bucket from the top level down.
    pub(crate) buckets: BTreeMap<Vec<Vec<u8>>, Bucket>,
}

impl Visit for Rows {
    fn bucket(&mut self, at: &At<'_>, _: u64) {
        self.buckets.entry(at.bucket.to_vec()).or_default();
    }
    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        let bucket = self.buckets.entry(at.bucket.to_vec()).or_default();
        bucket.insert(key.to_vec(), value.to_vec());
    }
}

impl Rows {
    /// Reads all rows of a database, which must be whole.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let file = File::from_bytes(bytes.to_vec()).expect("a database");
        let mut rows = Self::default();
        let walked = walk(&file, &mut rows);
        assert!(!walked.findings.has_errors(), "{:?}", walked.findings.kept());
        rows
    }

    /// Puts a row, and the bucket where it is missing.
    pub(crate) fn put(mut self, bucket: &str, key: &[u8], value: &[u8]) -> Self {
        let bucket: Vec<Vec<u8>> = bucket.split('/').map(|name| name.into()).collect();
        for above in 1..bucket.len() {
            self.buckets.entry(bucket[..above].to_vec()).or_default();
        }
        self.buckets.entry(bucket).or_default().insert(key.to_vec(), value.to_vec());
        self
    }

    /// Empties a bucket.
    pub(crate) fn clear(mut self, bucket: &str) -> Self {
        self.buckets.insert(vec![bucket.into()], BTreeMap::new());
        self
    }

    /// Puts members into bucket `members` instead of those that are there.
    pub(crate) fn members(self, members: &[Member]) -> Self {
        members.iter().fold(self.clear("members"), |rows, member| {
            rows.put("members", &member.row_key(), &member.encode())
        })
    }

    /// Raises an alarm: 1 is NOSPACE, 2 is CORRUPT.
    pub(crate) fn alarm(self, member: u8, kind: u8) -> Self {
        self.put("alarm", &[0x08, member, 0x10, kind], b"")
    }

    /// Looks at a row.
    pub(crate) fn get(&self, bucket: &str, key: &[u8]) -> Option<&Vec<u8>> {
        let bucket: Vec<Vec<u8>> = bucket.split('/').map(|name| name.into()).collect();
        self.buckets.get(&bucket)?.get(key)
    }

    /// Writes a database of these rows, without a trailer.
    pub(crate) fn database(&self, page_size: u32) -> Vec<u8> {
        let mut builder = Builder::new(Cursor::new(Vec::new()), page_size).expect("a page size");
        self.write(&mut builder, &[]);
        builder.finish(5).expect("a finished database").1.into_inner()
    }

    fn write(&self, builder: &mut Builder<Cursor<Vec<u8>>>, path: &[Vec<u8>]) {
        // Rows and buckets of one bucket stand in one order.
        let rows = self.buckets.get(path).into_iter().flatten();
        let mut all: BTreeMap<&[u8], Option<&[u8]>> =
            rows.map(|(key, value)| (key.as_slice(), Some(value.as_slice()))).collect();
        let inside = self.buckets.keys().filter(|bucket| bucket.len() == path.len() + 1);
        all.extend(
            inside.filter(|b| b.starts_with(path)).map(|b| (b[path.len()].as_slice(), None)),
        );
        for (name, value) in all {
            if let Some(value) = value {
                builder.put(name, value).expect("a row");
                continue;
            }
            builder.begin_bucket(name, 0).expect("a bucket");
            self.write(builder, &[path, &[name.to_vec()]].concat());
            builder.end_bucket().expect("an open bucket");
        }
    }

    /// Writes a snapshot of these rows.
    pub(crate) fn snapshot(&self) -> Vec<u8> {
        seal(self.database(4096))
    }
}

/// Makes a member whose id is the number.
pub(crate) fn member(id: u64, name: &str, url: &str) -> Member {
    Member {
        id: etcdkit::etcd::members::MemberId(id),
        name: name.into(),
        peer_urls: vec![url.into()],
        ..Member::default()
    }
}

/// A fresh folder in which the program runs, with nothing of the caller's environment.
pub(crate) struct Sandbox {
    folder: tempfile::TempDir,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("etcdkit-test-").tempdir().expect("a folder");
        fs::create_dir(folder.path().join("tmp")).expect("a folder for TMPDIR");
        Self { folder }
    }

    /// A sandbox with a snapshot `s.db` in it.
    pub(crate) fn with(snapshot: &[u8]) -> Self {
        let sandbox = Self::new();
        sandbox.write("s.db", snapshot);
        sandbox
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(&path, bytes).expect("a file");
        path
    }

    pub(crate) fn mkdir(&self, name: &str) -> PathBuf {
        fs::create_dir_all(self.path(name)).expect("a folder");
        self.path(name)
    }

    /// Unpacks a data directory of a `.tar.gz` fixture, with the modes that etcd gives; of the
    /// zeros that fill a WAL segment most are left out.
    pub(crate) fn unpack(&self, archive: &str, into: &str) -> PathBuf {
        let top = self.mkdir(into);
        let packed = fixture(archive);
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(packed.as_slice()));
        for entry in archive.entries().expect("an archive") {
            let entry = entry.expect("an entry");
            let path = top.join(entry.path().expect("a path"));
            let is_folder = entry.header().entry_type().is_dir();
            if is_folder {
                fs::create_dir_all(&path).expect("a folder");
            } else {
                let is_log = path.extension().is_some_and(|extension| extension == "wal");
                let mut bytes = Vec::new();
                let limit = if is_log { 1 << 20 } else { u64::MAX };
                entry.take(limit).read_to_end(&mut bytes).expect("a file");
                fs::write(&path, bytes).expect("a file");
            }
            let mode = if is_folder { 0o700 } else { 0o600 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
        }
        fs::set_permissions(&top, fs::Permissions::from_mode(0o700)).expect("a mode");
        top
    }

    pub(crate) fn exists(&self, name: &str) -> bool {
        fs::symlink_metadata(self.path(name)).is_ok()
    }

    /// Names in a folder of the sandbox, sorted, hidden ones too.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).expect(folder);
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect(folder).file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// The program with a clean environment, the sandbox as its folder and its audit log in it.
    pub(crate) fn command(&self) -> Command {
        let mut command = self.shell_command(env!("CARGO_BIN_EXE_etcdkit"));
        command.arg("--audit-log").arg(self.path("audit.jsonl"));
        command
    }

    fn shell_command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env_clear().current_dir(self.folder.path());
        command.env("TMPDIR", self.path("tmp")).env("HOME", self.folder.path());
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("ETCDKIT", env!("CARGO_BIN_EXE_etcdkit"));
        command
    }

    /// Runs the program with the words of a line.
    pub(crate) fn run(&self, line: &str) -> Ran {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.run_words(&words)
    }

    /// Runs the program with words that hold blanks or nothing.
    pub(crate) fn run_words(&self, words: &[&str]) -> Ran {
        Ran::of(&words.join(" "), self.command().args(words))
    }

    /// Runs a shell script; `$ETCDKIT` is the program.
    pub(crate) fn sh(&self, script: &str) -> Ran {
        Ran::of(script, self.shell_command("sh").arg("-c").arg(script))
    }

    /// A picture of everything in the sandbox but the audit log.
    pub(crate) fn picture(&self) -> Picture {
        let mut picture = picture(self.folder.path());
        picture.remove(&self.path("audit.jsonl"));
        picture.remove(self.folder.path());
        picture
    }

    /// The rows of a restored directory's database.
    pub(crate) fn restored(&self, data_dir: &str) -> Rows {
        let path = self.path(data_dir).join("member/snap/db");
        Rows::read(&fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    }
}

/// What a run of the program left.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) line: String,
    /// The exit code; 128 and the signal's number where a signal ended it.
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Runs a command to its end; one that hangs is killed and fails the test.
    pub(crate) fn of(line: &str, command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self::wait(line, command.spawn().expect("a program that starts"))
    }

    /// Waits for a running program.
    pub(crate) fn wait(line: &str, child: Child) -> Self {
        let pid = Pid::from_child(&child);
        let (done, waits) = mpsc::channel::<()>();
        let watchdog = std::thread::spawn(move || {
            let hangs = waits.recv_timeout(HANG) == Err(mpsc::RecvTimeoutError::Timeout);
            if hangs {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
            hangs
        });
        let output = child.wait_with_output().expect("the program's output");
        drop(done);
        assert!(!watchdog.join().expect("the watchdog"), "hangs: {line}");
        let signal = output.status.signal().unwrap_or(0);
        Self {
            line: line.to_owned(),
            code: output.status.code().unwrap_or(128 + signal),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Insists on an exit code, and on words in what was printed.
    #[track_caller]
    pub(crate) fn expect(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{self}");
        for word in words {
            assert!(self.stdout.contains(word) || self.stderr.contains(word), "no {word:?} {self}");
        }
        self
    }

    /// Reads stdout as one JSON value.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error} {self}"))
    }

    /// Reads the error object of JSON mode: the last line of stderr; stdout must be empty.
    #[track_caller]
    pub(crate) fn error(&self) -> Value {
        assert_eq!(self.stdout, "", "{self}");
        let last = self.stderr.lines().last().unwrap_or_default();
        let value: Value = serde_json::from_str(last).unwrap_or_else(|e| panic!("{e} {self}"));
        value["error"].clone()
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { line, code, stdout, stderr } = self;
        write!(f, "\n$ {line}\nexit {code}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}

/// What is in a folder: path to kind, mode, size, hash and time of change.
pub(crate) type Picture = BTreeMap<PathBuf, String>;

/// Takes a picture of a file or folder and everything below it; links are not followed.
pub(crate) fn picture(path: &Path) -> Picture {
    let mut all = Picture::new();
    let mut left = vec![path.to_owned()];
    while let Some(path) = left.pop() {
        let meta = fs::symlink_metadata(&path).expect("something to look at");
        let mode = meta.permissions().mode();
        let content = if meta.is_dir() {
            left.extend(
                fs::read_dir(&path).expect("a folder").map(|e| e.expect("an entry").path()),
            );
            "folder".into()
        } else if meta.is_file() {
            format!("{} bytes {}", meta.len(), sha256(&fs::read(&path).expect("a file")))
        } else {
            format!("{:?}", fs::read_link(&path).ok())
        };
        let time = format!("{}.{}", meta.mtime(), meta.mtime_nsec());
        all.insert(path, format!("{mode:o} {}:{} {content} {time}", meta.uid(), meta.gid()));
    }
    all
}

/// Says aloud that a test did not run; libtest shows stderr of passed tests only with a flag, so
/// the line goes straight to the process's stderr.
pub(crate) fn skipped(what: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr().lock(), "\nNOT RUN HERE: {what}\n");
}
