//! The lock that two maintenance runs on one cluster cannot both have.
//!
//! It is the key [`KEY`] on a lease of [`TTL`], put where it is not there; a thread keeps the lease
//! alive until the lock is dropped, which ends it. A run that is killed leaves the lock for the
//! rest of its lease and no longer. Who finds it held is told by whom, and for how long, and never
//! waits.
//!
//! At the quota members grant no lease and take no put. Then a lock file of this host stands in,
//! which keeps out runs of this host alone and says so, and the lock in etcd is taken as soon as
//! writes are accepted again.
//!
//! **Shape** of the value, and of the lock file: one JSON object with `host`, `pid`, `user`,
//! `operation`, `since` (RFC 3339).

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cluster::{Access, attend};
use super::{Error, ExitCode, Progress, clock};
use crate::live::{self, Cluster, Range, Record, Settings, is_out_of_space};

/// The key that whoever maintains a cluster holds.
pub const KEY: &str = "etcdkit/lock/maintenance";
/// How long the lock outlives a run that is killed.
pub const TTL: Duration = Duration::from_secs(60);

/// Time between two signs of life for the lease.
const KEEP_ALIVE: Duration = Duration::from_secs(5);
/// Time between two attempts at the lock in etcd, while a lock file stands in.
const RETRY: Duration = Duration::from_secs(1);
/// Limit for one question of the thread that keeps it: the lease ends by itself, and nobody is to
/// wait for the thread.
const QUESTION: Duration = Duration::from_secs(3);
/// Limit for giving it back, unless calls have a shorter one: a busy member takes its time, and who
/// runs next finds the lock held for the rest of its lease.
const GIVE_BACK: Duration = Duration::from_secs(10);
/// Bytes of a value that are looked at; ours have fewer.
const VALUE_BYTES_MAX: usize = 1024;

/// The lock. Dropping it gives it back.
pub struct Lock {
    shared: Arc<Shared>,
    stop: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
    warnings: Vec<String>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
}

/// What is held now.
#[derive(Debug)]
enum State {
    /// The key in etcd, on a lease that was alive at that moment.
    Etcd { lease: i64, alive: Instant },
    /// A lock file of this host, where one could be had.
    File { _held: Option<File> },
    /// Nothing any more, and why.
    Lost(String),
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lock {
    /// Takes the lock for an operation, named by its words, such as `defrag`. Besides the endpoints
    /// that are given those that members tell are asked, so that another one keeps the lease alive
    /// while one is at work.
    ///
    /// # Errors
    ///
    /// [`ExitCode::InUse`] where another run has it: who, since when, how long its lease has left;
    /// every cause of a call; an interruption.
    pub fn take(
        settings: &Settings,
        operation: &str,
        audit_log: &Path,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        let access = Access::of(settings);
        let asked = settings.clone();
        let endpoints = settings.endpoints.join(",");
        let (cluster, cluster_id) = attend(progress, move || {
            let cluster = Cluster::open(all(asked)?)?;
            let range = Range { key: KEY.into(), ..Range::default() };
            let page = cluster.range(&range)?;
            match page.records.into_iter().next() {
                Some(record) => Err(held(&cluster, Some(&record), &access, &endpoints)),
                None => Ok((cluster, page.header.cluster_id)),
            }
        })?;
        let (state, warnings) = match grab(&cluster, operation) {
            Ok(lease) => (State::Etcd { lease, alive: Instant::now() }, Vec::new()),
            Err(Refused::OutOfSpace) => {
                let (file, mut warnings) = file_lock(audit_log, cluster_id, operation)?;
                let what = "no lock can be taken in etcd while it is at its quota; make sure that \
                            nobody maintains this cluster from another host";
                warnings.insert(0, what.to_owned());
                (State::File { _held: file }, warnings)
            }
            Err(Refused::Held(record)) => {
                let access = Access::of(settings);
                let endpoints = settings.endpoints.join(",");
                return Err(held(&cluster, record.as_ref(), &access, &endpoints));
            }
            Err(Refused::Failed(error)) => return Err(error.into()),
        };
        warnings.iter().for_each(|warning| progress.note(warning));
        let shared = Arc::new(Shared { state: Mutex::new(state) });
        let (stop, stopped) = mpsc::channel();
        let mut cluster = cluster;
        cluster.limit_questions(settings.command_timeout.min(QUESTION));
        let give_back = settings.command_timeout.min(GIVE_BACK);
        let (held, operation) = (Arc::clone(&shared), operation.into());
        let keeper = Keeper { cluster, shared: held, operation, give_back };
        let keeper = std::thread::Builder::new()
            .name("etcdkit-lock".into())
            .spawn(move || keeper.run(&stopped))
            .map_err(|error| Error::new(ExitCode::Failed, format!("no thread: {error}")))?;
        Ok(Self { shared, stop: Some(stop), keeper: Some(keeper), warnings })
    }

    /// Tells whether it is still held, or a lock file stands in for it.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.check().is_ok()
    }

    /// Tells whether it is held in etcd itself.
    #[must_use]
    pub fn is_in_etcd(&self) -> bool {
        matches!(*self.shared.state(), State::Etcd { .. }) && self.is_held()
    }

    /// The same as [`Lock::is_held`], with what became of it.
    ///
    /// # Errors
    ///
    /// [`ExitCode::InUse`]: it was lost, so that another run may have begun.
    pub fn check(&self) -> Result<(), Error> {
        let why = match &*self.shared.state() {
            State::Etcd { alive, .. } if alive.elapsed() < TTL => return Ok(()),
            State::File { .. } => return Ok(()),
            State::Etcd { .. } => "no member has kept its lease alive".to_owned(),
            State::Lost(why) => why.clone(),
        };
        let message = format!("the lock {KEY} was lost: {why}; another run may have begun");
        let error = Error::new(ExitCode::InUse, message).because("lock_lost");
        Err(error.hint("run it again: it goes on where this one has stopped"))
    }

    /// What the person should know of it; said once already, when it was taken.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(keeper) = self.keeper.take() {
            // One that panicked has nothing to give back; the lease ends by itself.
            let _ = keeper.join();
        }
    }
}

/// Adds the endpoints of members that were not given.
fn all(mut settings: Settings) -> Result<Settings, live::Error> {
    // Where nobody tells, what follows says why.
    let members = Cluster::open(settings.clone())?.members().unwrap_or_default().members;
    let told = members.into_iter().flat_map(|member| member.client_urls);
    for url in told {
        if !settings.endpoints.contains(&url) {
            settings.endpoints.push(url);
        }
    }
    Ok(settings)
}

/// Why the lock in etcd could not be had.
enum Refused {
    OutOfSpace,
    /// By this one; by one that is gone again for `None`.
    Held(Option<Record>),
    Failed(live::Error),
}

/// Puts the key on a new lease; returns the lease.
fn grab(cluster: &Cluster, operation: &str) -> Result<i64, Refused> {
    let refused = |error: live::Error| match is_out_of_space(&error) {
        true => Refused::OutOfSpace,
        false => Refused::Failed(error),
    };
    let lease = cluster.grant(TTL).map_err(refused)?;
    let created = cluster.create(KEY.as_bytes(), value(operation).as_bytes(), lease);
    let refused = match created {
        Ok(changed) if changed.succeeded => return Ok(lease),
        Ok(changed) => match changed.found {
            Some(record) if record.lease == lease => return Ok(lease),
            found => Refused::Held(found),
        },
        Err(error) => refused(error),
    };
    // It ends by itself where this fails.
    let _ = cluster.revoke(lease);
    Err(refused)
}

fn value(operation: &str) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let value = json!({
        "host": host.trim(),
        "pid": std::process::id(),
        "user": std::env::var("SUDO_USER").or_else(|_| std::env::var("USER")).unwrap_or_default(),
        "operation": operation,
        "since": clock::rfc3339(),
    });
    value.to_string()
}

/// Names a holder: `defrag by root on n1, process 4711, since 2026-12-01T02:00:00Z`.
fn holder(value: &[u8]) -> String {
    let value = value.get(..VALUE_BYTES_MAX).unwrap_or(value);
    let Ok(Value::Object(value)) = serde_json::from_slice(value) else {
        return "a run that does not say who it is".to_owned();
    };
    let word = |name: &str| {
        let word = match value.get(name) {
            Some(Value::String(text)) => text.clone(),
            Some(Value::Number(number)) => number.to_string(),
            _ => String::new(),
        };
        // The value is anybody's: nothing that a terminal would obey.
        let plain: String = word.chars().filter(|c| !c.is_control()).take(100).collect();
        if plain.is_empty() { "?".to_owned() } else { plain }
    };
    let [operation, user, host] = ["operation", "user", "host"].map(word);
    let [pid, since] = ["pid", "since"].map(word);
    format!("{operation} by {user} on {host}, process {pid}, since {since}")
}

/// How long a lock that was found is there still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// It is gone, given back or ended with its lease.
    Gone,
    /// It hangs on no lease: nothing ends it.
    ForEver,
    /// Its lease has so many seconds, unless it is kept alive.
    Seconds(i64),
    /// It hangs on a lease of which nothing was learned.
    Unknown,
}

fn held(cluster: &Cluster, record: Option<&Record>, access: &Access, endpoints: &str) -> Error {
    let left = match record {
        None => Left::Gone,
        Some(record) if record.lease == 0 => Left::ForEver,
        Some(record) => match cluster.time_to_live(record.lease) {
            Ok(left) if left < 0 => Left::Gone,
            Ok(left) => Left::Seconds(left),
            Err(_) => Left::Unknown,
        },
    };
    let command = |words: &[&str]| access.command("etcdctl", Some(endpoints), words);
    held_text(record.map(|record| holder(&record.value)), left, &command)
}

fn held_text(who: Option<String>, left: Left, ctl: &dyn Fn(&[&str]) -> String) -> Error {
    let error = |message: String| Error::new(ExitCode::InUse, message).because("locked");
    let verb = if left == Left::Gone { "has maintained" } else { "maintains" };
    let what = match who {
        Some(who) => format!("another run {verb} this cluster: {who}"),
        None => format!("another run {verb} this cluster"),
    };
    let left = match left {
        Left::Gone => {
            let error = error(format!("{what}; its lock was there a moment ago and is gone"));
            return error.hint("run it again");
        }
        Left::ForEver => {
            let error =
                error(format!("{what}; its lock hangs on no lease, so that nothing ends it"));
            let hint = "where that run is over, take its lock away";
            return error.hint(format!("{hint}: {}", ctl(&["del", KEY])));
        }
        Left::Seconds(left) => format!("its lease has {left} s left, unless it is alive"),
        Left::Unknown => {
            format!("its lease ends within {} s, unless it is alive", TTL.as_secs())
        }
    };
    error(format!("{what}; {left}"))
        .hint("wait until it is done, or, if it was killed, until its lease ends")
        .hint(ctl(&["get", KEY]))
}

/// Where the lock file of a cluster is: beside the records.
fn file_path(audit_log: &Path, cluster_id: u64) -> PathBuf {
    let folder = audit_log.parent().unwrap_or(Path::new(""));
    folder.join(format!("maintenance-{cluster_id:x}.lock"))
}

/// Takes the lock file of this host; none where it cannot be made, and a warning.
fn file_lock(
    audit_log: &Path,
    cluster_id: u64,
    operation: &str,
) -> Result<(Option<File>, Vec<String>), Error> {
    let path = file_path(audit_log, cluster_id);
    let opened = open(&path);
    let failed = |error: &io::Error| {
        let what =
            format!("cannot lock {}: {error}; runs of this host are not kept out", path.display());
        Ok((None, vec![what]))
    };
    let mut file = match opened {
        Ok(file) => file,
        Err(error) => return failed(&error),
    };
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut value = Vec::new();
            let bytes_max = u64::try_from(VALUE_BYTES_MAX).unwrap_or(0);
            // Who it is is good to know, no more.
            let _ = (&file).take(bytes_max).read_to_end(&mut value);
            let who = holder(&value);
            let message = format!("another run on this host maintains this cluster: {who}");
            let error = Error::new(ExitCode::InUse, message).because("locked");
            return Err(error.hint(format!("it holds {}, and is alive", path.display())));
        }
        Err(TryLockError::Error(error)) => return failed(&error),
    }
    let written = file.set_len(0).and_then(|()| file.write_all(value(operation).as_bytes()));
    let warnings = written.err().map(|error| format!("cannot write {}: {error}", path.display()));
    Ok((Some(file), warnings.into_iter().collect()))
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let file = options.custom_flags(i32::try_from(flags.bits()).unwrap_or(0)).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

/// Keeps what is held, and takes the lock in etcd when that is possible again.
struct Keeper {
    cluster: Cluster,
    shared: Arc<Shared>,
    operation: String,
    /// Limit for giving it back.
    give_back: Duration,
}

impl Keeper {
    fn run(mut self, stop: &Receiver<()>) {
        loop {
            let is_file = matches!(*self.shared.state(), State::File { .. });
            let pause = if is_file { RETRY } else { KEEP_ALIVE };
            match stop.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => self.step(),
                Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if let State::Etcd { lease, .. } = *self.shared.state() {
            self.cluster.limit_questions(self.give_back);
            // It ends by itself where no member answers.
            let _ = self.cluster.revoke(lease);
        }
    }

    fn step(&mut self) {
        // Not held while members are asked: others want to know meanwhile.
        let lease = match &*self.shared.state() {
            State::Etcd { lease, .. } => Some(*lease),
            State::File { .. } => None,
            State::Lost(_) => return,
        };
        let asked = Instant::now();
        let next = match lease {
            Some(lease) => match self.cluster.keep_alive(lease) {
                Ok(left) if left > 0 => Some(State::Etcd { lease, alive: asked }),
                Ok(_) => Some(State::Lost("its lease has ended".into())),
                Err(_) => {
                    // A token may have ended, a connection hang: once more on new ones, next time.
                    if let Ok(cluster) = Cluster::open(self.cluster.settings().clone()) {
                        self.cluster = cluster;
                    }
                    None
                }
            },
            None => match grab(&self.cluster, &self.operation) {
                Ok(lease) => Some(State::Etcd { lease, alive: asked }),
                Err(Refused::Held(Some(record))) => Some(State::Lost(format!(
                    "as soon as etcd took writes it was another's: {}",
                    holder(&record.value)
                ))),
                // Another one had it, and may have changed this or that.
                Err(Refused::Held(None)) => {
                    let why = "as soon as etcd took writes it was another's, which has ended";
                    Some(State::Lost(why.into()))
                }
                Err(Refused::OutOfSpace | Refused::Failed(_)) => None,
            },
        };
        if let Some(next) = next {
            *self.shared.state() = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_named_whatever_the_value_is() {
        let own = holder(value("defrag").as_bytes());
        assert!(own.starts_with("defrag by "), "{own}");
        assert!(own.contains(&format!("process {}", std::process::id())), "{own}");
        for odd in [&b""[..], b"[]", b"{", b"\xff\xfe", &[b'['; 5000]] {
            assert_eq!(holder(odd), "a run that does not say who it is");
        }
        let odd = br#"{"host":"a\u001b[2Jb","pid":-1,"user":[],"operation":null}"#;
        assert_eq!(holder(odd), "? by ? on a[2Jb, process -1, since ?");
        let long = format!(r#"{{"host":"{}"}}"#, "x".repeat(900));
        assert!(holder(long.as_bytes()).len() < 200);
    }

    #[test]
    fn a_lock_that_is_gone_is_not_to_be_deleted() {
        let ctl = |words: &[&str]| format!("etcdctl {}", words.join(" "));
        let say = |who: Option<&str>, left| held_text(who.map(str::to_owned), left, &ctl);
        for who in [None, Some("defrag by root")] {
            let gone = say(who, Left::Gone);
            assert!(gone.message.contains("a moment ago and is gone"), "{}", gone.message);
            assert!(!gone.message.contains("no lease"), "{}", gone.message);
            assert_eq!(gone.hints, ["run it again"]);
        }
        let kept = say(Some("defrag by root"), Left::ForEver);
        assert!(kept.message.contains("defrag by root; its lock hangs on no lease"));
        assert!(kept.hints[0].ends_with(&format!("etcdctl del {KEY}")), "{:?}", kept.hints);
        for left in [Left::Seconds(0), Left::Seconds(7), Left::Unknown] {
            let held = say(Some("defrag by root"), left);
            assert!(held.message.contains("unless it is alive"), "{}", held.message);
            assert!(held.hints[1].ends_with(&format!("etcdctl get {KEY}")), "{:?}", held.hints);
        }
    }

    #[test]
    fn one_run_of_this_host_has_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("etcdkit/audit.jsonl");
        let (first, warnings) = file_lock(&log, 0xab, "reclaim").unwrap();
        assert!(first.is_some() && warnings.is_empty(), "{warnings:?}");
        let error = file_lock(&log, 0xab, "defrag").unwrap_err();
        assert_eq!(error.code, ExitCode::InUse);
        assert!(error.message.contains("reclaim by "), "{}", error.message);
        assert!(file_lock(&log, 0xac, "defrag").unwrap().0.is_some(), "another cluster");
        drop(first);
        assert!(file_lock(&log, 0xab, "defrag").unwrap().0.is_some());
    }

    #[test]
    fn a_file_that_cannot_be_made_is_said() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        let (file, warnings) = file_lock(&dir.path().join("file/audit.jsonl"), 1, "x").unwrap();
        assert!(file.is_none());
        assert!(warnings[0].contains("are not kept out"), "{warnings:?}");
    }
}
