//! The work: compacted by the store, packed while nobody has it, disarmed by the store.
//!
//! The store is closed before the database is packed: [`defrag`] lets the new file take the old
//! one's place only where no server waits for the old one. Between that and the opening before or
//! after it a server may come and go; what it wrote is seen, and ends the run.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::look::{self, Seen};
use super::{NOSPACE, Options, Report, open_failed, store_failed};
use crate::bolt::disk::{Disk, Ownership};
use crate::ops::cluster::attend;
use crate::ops::reclaim::line::Line;
use crate::ops::{Error, ExitCode, Progress, defrag};
use crate::store::{
    Alarm, Caller, Clock, Compaction as CompactionRequest, Error as StoreError, Identity,
    Options as StoreOptions, Quota, Retention, Store, SystemClock,
};

/// Bytes that a defragmentation must give back to be done.
const GAIN_MIN: u64 = 64 << 10;
/// Bytes in use are looked at so often while rows go ...
const LOOK: Duration = Duration::from_millis(200);
/// ... until they stay as they are for so many looks.
const STILL: u32 = 5;
/// ... or for so long.
const SETTLE_MAX: Duration = Duration::from_secs(3600);
/// etcd's number of the end of an alarm.
const DEACTIVATE: u64 = 2;

/// The machine's clock, but that time stands still, so that no lease ends.
#[derive(Debug, Default)]
struct StoppedClock(SystemClock);

impl Clock for StoppedClock {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn unix_ms(&self) -> u64 {
        self.0.unix_ms()
    }
}

/// One run.
pub(super) struct Job<'a> {
    pub(super) data_dir: &'a Path,
    pub(super) options: &'a Options,
    pub(super) report: &'a Report,
    pub(super) before: &'a Seen,
    /// Whose new files are to be.
    pub(super) owners: Owners,
    pub(super) progress: &'a dyn Progress,
}

/// Folders of a member, and whose new files in them are: the database's owner's, and the oldest
/// segment's.
#[derive(Debug)]
pub(super) struct Owners(Vec<(PathBuf, Ownership)>);

impl Owners {
    /// Looks at a directory as it is before anything is done.
    pub(super) fn of(data_dir: &Path, wal_dir: Option<&Path>) -> Self {
        let member = data_dir.join("member");
        let snap = member.join("snap");
        let wal = wal_dir.map_or_else(|| member.join("wal"), Path::to_owned);
        let names = fs::read_dir(&wal).into_iter().flatten().flatten().map(|entry| entry.path());
        let oldest = names.filter(|path| path.extension().is_some_and(|end| end == "wal")).min();
        let of = |path: &Path| fs::metadata(path).ok().map(|meta| Ownership::of(&meta));
        let database = of(&snap.join("db"));
        let oldest = oldest.as_deref().and_then(of).or(database);
        let both = [(snap, database), (wal, oldest)];
        Self(both.into_iter().filter_map(|(path, owner)| Some((path, owner?))).collect())
    }

    fn disk(&self) -> Disk {
        let give = |disk: Disk, (folder, owner): &(PathBuf, Ownership)| disk.giving(folder, *owner);
        self.0.iter().fold(Disk::default(), give)
    }

    /// Gives unfinished files that a killed run left, before they were given, to whose they are to
    /// be: its server writes over them. Only names of such, and only what is ours.
    pub(super) fn give_leftovers(&self) -> Vec<String> {
        let us = rustix::process::geteuid().as_raw();
        let mut warnings = Vec::new();
        for (folder, owner) in self.0.iter().filter(|(_, owner)| owner.uid != us) {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let name = entry.file_name();
                let name = name.to_string_lossy();
                let is_unfinished = name.ends_with(".tmp") || name.starts_with("tmp.");
                let Ok(meta) = entry.metadata() else { continue };
                if !is_unfinished || !meta.is_file() || Ownership::of(&meta).uid != us {
                    continue;
                }
                let path = entry.path();
                let given = fs::File::open(&path).and_then(|file| owner.give(&file));
                if let Err(error) = given {
                    warnings.push(format!("{}: {error}", path.display()));
                }
            }
        }
        warnings
    }
}

/// Does it; returns what is there afterwards.
pub(super) fn work(job: &Job<'_>) -> Result<Seen, Error> {
    let progress = job.progress;
    progress.note("open     the directory as its server would, with no limit");
    let size = in_store(job, |store, me| compact(job, store, me))?;
    if progress.stopped() {
        return Err(Error::interrupted());
    }
    let gain = size.db_size_bytes.saturating_sub(size.db_size_in_use_bytes);
    if gain >= GAIN_MIN {
        progress.note(&format!("defrag   {gain} bytes of {} are free", size.db_size_bytes));
        for warning in defrag::run(job.data_dir, false, progress)?.warnings {
            progress.note(&format!("warning: {warning}"));
        }
    }
    in_store(job, |store, me| {
        disarm(job, store, me)?;
        look::of(store, me, progress)
    })
}

/// Opens the directory, makes sure that it is the one that was looked at, works, and closes it.
fn in_store<T>(
    job: &Job<'_>,
    work: impl FnOnce(&Store, &Caller) -> Result<T, Error>,
) -> Result<T, Error> {
    // What the member says of itself stays, also where it never said a word.
    let mut identity = Identity::default();
    identity.name.clone_from(&job.before.member_name);
    identity.client_urls.clone_from(&job.before.client_urls);
    let options = StoreOptions::default()
        .identity(identity)
        .quota(Quota::Off)
        .wal_dir(job.options.wal_dir.clone())
        .auto_compaction(Retention::Off)
        .hash_at_compaction(false)
        // A few entries are no reason for a snapshot, and files that are kept may be somebody's.
        .snapshot_count(u64::MAX)
        .wals_max(0_usize)
        .snaps_max(0_usize)
        .disk(job.owners.disk())
        // What the log says of leases' remaining times is taken over also where the cluster's
        // version does not ask for it: a server that does not want it reads past it. No new ones.
        .lease_checkpoints(Some(Duration::MAX))
        .clock(Arc::new(StoppedClock::default()) as Arc<dyn Clock>);
    // Killed or not, it is not left half open: this waits for the end.
    let store = Store::open(job.data_dir, options).map_err(open_failed)?;
    let me = store.caller_named("root");
    let done = look::of(&store, &me, job.progress)
        .and_then(|now| is_untouched(job, &now))
        .and_then(|()| work(&store, &me));
    let closed = store.close().map_err(|error| store_failed("close the directory", &error));
    let done = done?;
    closed.map(|()| done)
}

/// Ends a run where somebody else wrote since the directory was looked at.
fn is_untouched(job: &Job<'_>, now: &Seen) -> Result<(), Error> {
    if now.has_corrupt() {
        return Err(super::corrupt(job.data_dir));
    }
    if now.is_of_same_keys(job.before) && now.alarms == job.before.alarms {
        return Ok(());
    }
    let message = format!(
        "{} is in use: since it was looked at, a server wrote to it and stopped (revision {} then, \
         {} now)",
        job.data_dir.display(),
        job.before.revision,
        now.revision
    );
    Err(Error::new(ExitCode::InUse, message)
        .hint("stop what starts it: on a kubeadm node, move etcd.yaml out of its folder"))
}

/// Runs a request aside, so that an interruption is heard.
fn request<T: Send + 'static>(
    job: &Job<'_>,
    (store, me): (&Store, &Caller),
    doing: &'static str,
    work: impl FnOnce(&Store, &Caller) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Error> {
    let (store, me) = (store.clone(), me.clone());
    attend(job.progress, move || work(&store, &me).map_err(|error| store_failed(doing, &error)))
}

/// Lets history go; returns what is in use then.
fn compact(job: &Job<'_>, store: &Store, me: &Caller) -> Result<crate::store::Status, Error> {
    let compaction = &job.report.compaction;
    let wanted = compaction.revision.filter(|to| *to > compaction.compact_revision_before);
    match wanted {
        Some(revision) => {
            let why = &compaction.why;
            job.progress.note(&format!("compact  at revision {revision} ({why})"));
            request(job, (store, me), "compact", move |store, me| {
                store.compact(me, CompactionRequest { revision, physical: true }).map(drop)
            })?;
        }
        // What was begun before goes on by itself.
        None => settle(store, me, job.progress)?,
    }
    store.status(me).map_err(|error| store_failed("measure", &error))
}

/// Waits until the rows of a compaction that was begun before are gone.
fn settle(store: &Store, me: &Caller, progress: &dyn Progress) -> Result<(), Error> {
    let in_use = || {
        let status = store.status(me).map_err(|error| store_failed("measure", &error));
        status.map(|status| status.db_size_in_use_bytes)
    };
    let (mut before, mut still, began) = (in_use()?, 0, Instant::now());
    while still < STILL && began.elapsed() < SETTLE_MAX {
        thread::sleep(LOOK);
        if progress.stopped() {
            return Err(Error::interrupted());
        }
        let now = in_use()?;
        still = if now < before { 0 } else { still + 1 };
        before = now;
    }
    Ok(())
}

/// Disarms NOSPACE where the database is under the line: that of this member, and of members that
/// are gone; a learner's stands for its own database.
fn disarm(job: &Job<'_>, store: &Store, me: &Caller) -> Result<(), Error> {
    if !job.before.has_nospace() {
        return Ok(());
    }
    let size = store.status(me).map_err(|error| store_failed("measure", &error))?;
    let size_bytes = i64::try_from(size.db_size_bytes).unwrap_or(i64::MAX);
    if matches!(Line::at(size_bytes, job.report.quota_bytes), Line::Over { .. }) {
        let quota = job.report.quota_bytes;
        let note = format!("disarm   NOSPACE stays: {size_bytes} bytes, the quota is {quota}");
        job.progress.note(&note);
        return Ok(());
    }
    let others = job.before.nospace_of_others();
    if !others.is_empty() {
        job.progress.note(&format!("disarm   NOSPACE of {} stays", others.join(", ")));
    }
    let (own, members) = (job.before.member, job.before.members.clone());
    let stays = move |id: u64| id != own && members.iter().any(|(member, _)| *member == id);
    job.progress.note("disarm   NOSPACE");
    request(job, (store, me), "disarm", move |store, me| {
        let alarms = store.alarm(me, Alarm { action: 0, member_id: 0, alarm: NOSPACE })?.body;
        for (member_id, alarm) in alarms.into_iter().filter(|(id, _)| !stays(*id)) {
            store.alarm(me, Alarm { action: DEACTIVATE, member_id, alarm })?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Silent;
    use crate::ops::compaction::Keep;
    use crate::ops::reclaim::offline::{Prepared, look_again, prepare};
    use crate::store::Put;

    const RAISE: u64 = 1;

    fn put(store: &Store, key: &[u8]) {
        store.put(&Caller::default(), Put { key, value: b"v", ..Put::default() }).unwrap();
    }

    fn open(dir: &Path) -> Store {
        Store::open(dir, StoreOptions::default()).unwrap()
    }

    fn raise(store: &Store, member_id: u64) {
        let alarm = Alarm { action: RAISE, member_id, alarm: NOSPACE };
        store.alarm(&Caller::default(), alarm).unwrap();
    }

    fn options(dir: &Path) -> Options {
        Options {
            data_dir: dir.to_owned(),
            wal_dir: None,
            keep: Keep::Revisions(0),
            quota_bytes: Some(1 << 30),
            accept_full_disk: true,
            dry_run: false,
            audit_log: dir.join("audit.jsonl"),
        }
    }

    /// Looks at a directory, lets something happen, and does the work.
    fn run(dir: &Path, between: impl FnOnce(&mut Seen)) -> Result<(Seen, Seen), Error> {
        let options = options(dir);
        let Prepared { report, mut before, .. } = prepare(dir, &options, &Silent)?;
        between(&mut before);
        let owners = Owners::of(dir, None);
        let (report, progress) = (&report, &Silent);
        let after = work(&Job {
            data_dir: dir,
            options: &options,
            report,
            before: &before,
            owners,
            progress,
        })?;
        Ok((before, after))
    }

    #[test]
    fn what_a_server_wrote_since_the_look_ends_the_run() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("d");
        let store = open(&dir);
        put(&store, b"a");
        raise(&store, store.member_id().0);
        store.close().unwrap();
        let between = |_: &mut Seen| {
            let store = open(&dir);
            let key = b"a".as_slice();
            let range = crate::store::DeleteRange { key, ..crate::store::DeleteRange::default() };
            store.delete_range(&Caller::default(), range).unwrap();
            store.close().unwrap();
        };
        let refused = run(&dir, between).unwrap_err();
        assert_eq!(refused.code, ExitCode::InUse, "{refused}");
        let store = open(&dir);
        let me = Caller::default();
        let alarms = store.alarm(&me, Alarm { action: 0, member_id: 0, alarm: 0 }).unwrap().body;
        assert_eq!((alarms.len(), store.revision()), (1, 3));
        assert!(store.hash_kv(&me, 3).unwrap().body.compact_revision < 1);
    }

    #[test]
    fn a_learners_alarm_stands_for_its_own_database() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("d");
        let store = open(&dir);
        let own = store.member_id().0;
        for id in [own, 0xdead, 0x1ea4] {
            raise(&store, id);
        }
        store.close().unwrap();
        let learner = |before: &mut Seen| before.members.push((0x1ea4, "learner".to_owned()));
        let (before, after) = run(&dir, learner).unwrap();
        assert_eq!(before.alarms.len(), 3);
        assert_eq!(before.nospace_of_others(), ["learner"]);
        assert_eq!(after.alarms, [(0x1ea4, NOSPACE)]);
    }

    #[test]
    fn a_server_that_has_it_by_then_is_no_failure_and_nothing_old_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("d");
        let store = open(&dir);
        raise(&store, store.member_id().0);
        store.close().unwrap();
        let options = options(&dir);
        let Prepared { mut report, .. } = prepare(&dir, &options, &Silent).unwrap();
        assert!(!report.starts_on.is_empty());
        let store = open(&dir);
        let hash = look_again(&dir, &options, &mut report, &Silent).unwrap();
        assert_eq!((hash, report.starts_on.as_slice()), (None, &[][..]));
        assert!(report.warnings.iter().any(|warning| warning.contains("in use")));
        store.close().unwrap();
        assert!(look_again(&dir, &options, &mut report, &Silent).unwrap().is_some());
        assert!(!report.starts_on.is_empty());
    }

    #[test]
    fn a_member_says_of_itself_what_it_said() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("d");
        let identity =
            Identity { name: "m7".to_owned(), client_urls: Vec::new(), ..Identity::default() };
        let store = Store::open(&dir, StoreOptions::default().identity(identity)).unwrap();
        raise(&store, store.member_id().0);
        store.close().unwrap();
        let (_, after) = run(&dir, |_| {}).unwrap();
        assert_eq!((after.member_name.as_str(), after.client_urls.len()), ("m7", 0));
    }
}
