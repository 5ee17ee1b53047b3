//! `demo`: the whole story in a temporary directory, with nothing else installed.
//!
//! The store serves the objects of a real Kubernetes 1.34. A snapshot is saved over the network and
//! proved good; then a namespace is deleted by mistake, and a controller that writes too much fills
//! the database to its quota, where writes are refused. Compaction, defragmentation and disarming
//! get writes back; a restore into a new directory, served in turn, gets the namespace back.
//!
//! Each step is done as an operator does it: through the API, by the commands of this program, and
//! with a look at what came of it. What does not come out as told ends the demo with an error.

mod client;
mod objects;

use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::examine::{Level, examine};
use super::restore::{self, restore};
use super::save::{live, live::Output};
use super::verify::{Verdict, judge};
use super::{Error, ExitCode, Progress};
use crate::live::Settings;
use crate::store::serve::{self, Address, Listener, Role, Server};
use crate::store::{self, Store};
use client::Client;

const NAMESPACE: &str = "/registry/namespaces/shop";
/// What is written after the snapshot, and so not to be found in what is restored.
const LATER: &str = "/registry/configmaps/default/written-after-the-snapshot";
/// What the noisy controller writes over and over.
const NOISE: &str = "/registry/configmaps/default/leader-lock";
const NOISE_BYTES: usize = 64 << 10;
/// Writes of that until the demo gives up on reaching the quota.
const NOISE_MAX: usize = 1000;
const QUOTA_BYTES: i64 = 8 << 20;
/// Time in which a server of the demo has to stop.
const STOP: Duration = Duration::from_secs(5);
/// Changes reach the database within a tenth of that, on a disk that is not slow.
const SETTLED: Duration = Duration::from_millis(300);

/// What is seen of a store at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Sight {
    /// The moment.
    pub when: &'static str,
    /// UID of the namespace; `None`: it is not there.
    pub uid: Option<String>,
    /// Whether the write from after the snapshot is there.
    pub later_write: bool,
    /// Keys below `/registry/`.
    pub keys: i64,
    /// Revision.
    pub revision: i64,
    /// Bytes of the database file.
    pub db_size_bytes: i64,
    /// Bytes of it that are in use.
    pub db_size_in_use_bytes: i64,
    /// Alarms.
    pub alarms: Vec<String>,
    /// The words by which a write is refused; `None`: it is taken.
    pub refusal: Option<String>,
}

/// What the demo proved; `docs/JSON.md` describes it.
#[derive(Clone, Debug, Serialize)]
pub struct Proof {
    /// Version of this shape in JSON.
    pub version: u32,
    /// The key in question.
    pub key: &'static str,
    /// UID of the namespace before, and after all.
    pub uid: String,
    /// Quota of the database in bytes.
    pub quota_bytes: i64,
    /// Bytes of the snapshot.
    pub snapshot_bytes: u64,
    /// Revision of the snapshot.
    pub revision_snapshot: i64,
    /// Writes of 64 KiB that the quota let through.
    pub writes_until_full: usize,
    /// Objects of the namespace that were deleted.
    pub deleted: i64,
    /// What was seen, in order: before, deleted, full, reclaimed, restored.
    pub sights: Vec<Sight>,
    /// etcd versions that start on the restored data.
    pub boots_on: Vec<String>,
    /// Milliseconds of the whole.
    pub ms: u64,
}

/// Runs the demo.
///
/// # Errors
/// The temporary directory cannot be used, or a step does not prove what it should.
pub fn demo(progress: &dyn Progress) -> Result<Proof, Error> {
    let began = Instant::now();
    let folder = tempfile::Builder::new()
        .prefix("etcdkit-demo-")
        .tempdir()
        .map_err(|error| Error::io(&error, "make a folder in", &std::env::temp_dir()))?;
    let audit_log = folder.path().join("audit.jsonl");
    let mut sights = Vec::new();

    progress.step("serve a new data directory", 0);
    let served = Served::open(&folder.path().join("data"), None)?;
    let objects = objects::objects(folder.path())?;
    progress.step("write the objects of a Kubernetes", 0);
    for object in &objects {
        served.client.put(&object.key, &object.value)?;
    }
    served.settled()?;
    let before = served.look("before")?;
    let uid = before.uid.clone().ok_or_else(|| unproved("the namespace is not there"))?;
    sights.push(before);
    go_on(progress)?;

    progress.step("save a snapshot", 0);
    let snapshot = folder.path().join("shop.db");
    let saved = live::save(&served.saving(&snapshot, &audit_log), progress)?;
    progress.step("verify it", 0);
    let examined = examine(&snapshot, Level::Full, progress)?;
    if judge(&examined, false).verdict != Verdict::Good {
        return Err(unproved("the snapshot is not good"));
    }
    let revision_snapshot = saved.revision.ok_or_else(|| unproved("a snapshot of no revision"))?;

    progress.step("write on, and delete the namespace", 0);
    served.client.put(LATER.as_bytes(), b"{}")?;
    let mut deleted = 0_i64;
    for object in objects.iter().filter(|object| object.is_of("shop")) {
        deleted = deleted.saturating_add(served.client.delete(&object.key)?);
    }
    sights.push(served.look("deleted")?);
    go_on(progress)?;

    progress.step("fill the database to its quota", 0);
    let writes_until_full = served.fill()?;
    sights.push(served.look("full")?);
    go_on(progress)?;

    progress.step("compact, defragment, disarm", 0);
    let revision = served.client.status()?.header.revision;
    served.client.compact(revision)?;
    served.client.defragment()?;
    served.client.disarm()?;
    sights.push(served.look("reclaimed")?);
    let highest = served.client.status()?.header.revision;
    served.stop()?;
    go_on(progress)?;

    progress.step("restore the snapshot into a new directory", 0);
    let options = restore::Options {
        snapshot: snapshot.clone(),
        data_dir: folder.path().join("restored"),
        old_data_dirs: vec![folder.path().join("data")],
        audit_log,
        ..restore::Options::default()
    };
    let report = restore(&options, progress)?;
    progress.step("serve the new directory", 0);
    let restored = Served::open(&options.data_dir, Some(highest))?;
    sights.push(restored.look("restored")?);
    restored.stop()?;

    check(&sights, &uid, highest)?;
    let proof = Proof {
        version: 2,
        key: NAMESPACE,
        uid,
        quota_bytes: QUOTA_BYTES,
        snapshot_bytes: saved.size_bytes.unwrap_or(0),
        revision_snapshot,
        writes_until_full,
        deleted,
        sights,
        boots_on: report.boots_on.iter().filter(|b| b.boots).map(|b| b.etcd.to_owned()).collect(),
        ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
    };
    folder.close().map_err(|error| Error::io(&error, "remove", Path::new("the demo's folder")))?;
    Ok(proof)
}

/// Tells whether the demo came out as it is told.
fn check(sights: &[Sight], uid: &str, highest: i64) -> Result<(), Error> {
    let [before, deleted, full, reclaimed, restored] = sights else {
        return Err(unproved("a step is missing"));
    };
    let is_there = |sight: &Sight| sight.uid.as_deref() == Some(uid);
    let claims = [
        (is_there(before) && before.refusal.is_none(), "the beginning is not as it should be"),
        (deleted.uid.is_none() && deleted.later_write, "the namespace was not deleted"),
        (full.refusal.is_some() && !full.alarms.is_empty(), "the quota did not stop writes"),
        (reclaimed.refusal.is_none() && reclaimed.alarms.is_empty(), "writes did not come back"),
        (reclaimed.db_size_bytes < full.db_size_bytes, "the database did not shrink"),
        (is_there(restored), "the namespace did not come back with its UID"),
        (!restored.later_write, "a write from after the snapshot came back"),
        (restored.keys == before.keys, "not all keys came back"),
        (restored.revision > highest, "a revision will be served twice"),
        (restored.refusal.is_none(), "the restored store takes no writes"),
    ];
    let broken = claims.into_iter().find(|(holds, _)| !holds);
    broken.map_or(Ok(()), |(_, what)| Err(unproved(what)))
}

fn unproved(what: &str) -> Error {
    Error::new(ExitCode::Internal, format!("demo: {what}"))
}

fn go_on(progress: &dyn Progress) -> Result<(), Error> {
    if progress.stopped() { Err(Error::interrupted()) } else { Ok(()) }
}

/// A store that is served on this machine, and a client of it.
struct Served {
    client: Client,
    server: Server,
    store: Store,
    endpoint: String,
}

impl Served {
    fn open(dir: &Path, restored_from: Option<i64>) -> Result<Self, Error> {
        let options = store::Options::default().quota(store::guard::Quota::of_flag(QUOTA_BYTES));
        let store = Store::open(dir, options).map_err(|error| {
            let what = if restored_from.is_some() { "restored" } else { "new" };
            unproved(&format!("the {what} directory does not open: {error}"))
        })?;
        let address = Address::Tcp(([127, 0, 0, 1], 0).into());
        let listeners = vec![Listener { address, role: Role::Client, tls: None }];
        let server = Server::start(store.clone(), serve::Options::default().listeners(listeners))
            .map_err(|error| Error::new(ExitCode::Failed, format!("demo: {error}")))?;
        let address = server.addresses().first().ok_or_else(|| unproved("no address"))?;
        let endpoint = format!("http://{address}");
        Ok(Self { client: Client::connect(&endpoint)?, server, store, endpoint })
    }

    fn stop(self) -> Result<(), Error> {
        drop(self.client);
        self.server.stop(STOP);
        self.store.close().map_err(|error| unproved(&format!("the store does not close: {error}")))
    }

    /// Looks at everything that the story is about.
    fn look(&self, when: &'static str) -> Result<Sight, Error> {
        let refusal = self.client.try_put(b"/registry/health", b"{}")?.err();
        let status = self.client.status()?;
        let uid = self.client.get(NAMESPACE.as_bytes())?.map(|value| objects::uid(&value));
        Ok(Sight {
            when,
            uid: uid.transpose()?,
            later_write: self.client.get(LATER.as_bytes())?.is_some(),
            keys: self.client.count(b"/registry/")?,
            revision: status.header.revision,
            db_size_bytes: status.db_size,
            db_size_in_use_bytes: status.db_size_in_use,
            alarms: status.errors,
            refusal,
        })
    }

    /// Writes the same key until the quota stops it; returns how often that went well.
    fn fill(&self) -> Result<usize, Error> {
        let mut value = vec![0_u8; NOISE_BYTES];
        for count in 0..NOISE_MAX {
            value.fill(u8::try_from(count % 251).unwrap_or(0));
            if self.client.try_put(NOISE.as_bytes(), &value)?.is_err() {
                return self.saved().map(|()| count);
            }
        }
        Err(unproved("the quota was not reached"))
    }

    /// Waits until the size that is told is that of most of what was written: the file follows the
    /// log within a second or so.
    fn saved(&self) -> Result<(), Error> {
        let began = Instant::now();
        while self.client.status()?.db_size < QUOTA_BYTES / 4 * 3 {
            if began.elapsed() > STOP {
                return Err(unproved("the database does not grow"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Waits until the database has what was written: until its sizes stand still for longer than
    /// changes are kept back.
    fn settled(&self) -> Result<(), Error> {
        let began = Instant::now();
        let sizes = || self.client.status().map(|told| (told.db_size, told.db_size_in_use));
        let (mut last, mut since) = (sizes()?, Instant::now());
        while since.elapsed() < SETTLED && began.elapsed() < STOP {
            std::thread::sleep(Duration::from_millis(20));
            let now = sizes()?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(())
    }

    fn saving(&self, snapshot: &Path, audit_log: &Path) -> live::Options {
        live::Options {
            output: Output::File(snapshot.to_owned()),
            settings: Settings { endpoints: vec![self.endpoint.clone()], ..Settings::default() },
            whole_cluster: false,
            min_revision: None,
            without_quorum: false,
            accept_corrupt: false,
            hashkv: true,
            idle_timeout: live::IDLE_TIMEOUT,
            timeout: live::TIMEOUT,
            keep_last: None,
            metrics_file: None,
            dry_run: false,
            audit_log: audit_log.to_owned(),
        }
    }
}

impl Proof {
    /// The proof on one screen.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![
            "A namespace is deleted by mistake, then the database is full. On the built-in store,"
                .into(),
            "with the objects of a real Kubernetes 1.34, over the network as with any etcd:".into(),
            String::new(),
            format!("1 serve    a new data directory, quota {} MiB", self.quota_bytes >> 20),
            format!("2 save     a snapshot at revision {}", self.revision_snapshot),
            "3 verify   trailer, every page, every record: good".into(),
            format!("4 delete   {}, {} objects; one write after it", self.key, self.deleted),
            format!("5 full     after {} writes of 64 KiB:", self.writes_until_full),
            format!("           {}", self.refusal()),
            "6 reclaim  compaction, defrag, alarm disarm, as etcdkit reclaim does: writes go again"
                .into(),
            "7 restore  the snapshot into a new directory, above every revision that was served"
                .into(),
            format!("8 serve    it; {} would start on it too", self.newest_etcd()),
            String::new(),
        ];
        lines.extend(self.table());
        lines.extend([
            String::new(),
            format!("{} is back, UID {}.", self.key, self.uid),
            format!("Done in {} ms; the temporary directory is gone.", self.ms),
            "The same on your own cluster:".into(),
            "  etcdkit snapshot save FILE --endpoints E".into(),
            "  etcdkit snapshot verify FILE".into(),
            "  etcdkit reclaim --endpoints E --dry-run".into(),
            "  etcdkit snapshot restore FILE --data-dir DIR --dry-run".into(),
            "  etcdkit serve --data-dir DIR".into(),
        ]);
        lines
    }

    fn newest_etcd(&self) -> String {
        self.boots_on.last().map_or("no etcd".into(), |version| format!("a real etcd {version}"))
    }

    fn refusal(&self) -> &str {
        self.sights.iter().find_map(|sight| sight.refusal.as_deref()).unwrap_or_default()
    }

    /// One column a moment.
    fn table(&self) -> Vec<String> {
        let row = |name: &str, cell: &dyn Fn(&Sight) -> String| {
            let cells: String =
                self.sights.iter().map(|sight| format!(" {:>13}", cell(sight))).collect();
            format!("{name:<14}{cells}")
        };
        let kib = |bytes: i64| format!("{} KiB", bytes >> 10);
        vec![
            row("", &|sight| sight.when.into()),
            row("namespace UID", &|sight| match &sight.uid {
                Some(uid) => uid.split('-').next().unwrap_or(uid).to_owned() + "...",
                None => "gone".into(),
            }),
            row("later write", &|sight| if sight.later_write { "there" } else { "-" }.into()),
            row("keys", &|sight| sight.keys.to_string()),
            row("revision", &|sight| sight.revision.to_string()),
            row("DB SIZE", &|sight| kib(sight.db_size_bytes)),
            row("in use", &|sight| kib(sight.db_size_in_use_bytes)),
            row("alarm", &|sight| if sight.alarms.is_empty() { "-" } else { "NOSPACE" }.into()),
            row("writes", &|sight| {
                if sight.refusal.is_none() { "taken" } else { "refused" }.into()
            }),
        ]
    }
}
