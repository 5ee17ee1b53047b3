//! `reclaim --data-dir`: the directory of a stopped sole voter, for a server that does not stay up
//! at its quota.
//!
//! The store ([`crate::store`]) opens the directory as the server would, with no limit, and does
//! what the server would be asked for: a compaction through the log, a defragmentation, NOSPACE
//! disarmed through the log. Then it is closed, and a server starts on it as on any directory that
//! a store has closed: the storage version is not raised, and the log is the truth at any moment,
//! so that a run that is killed loses nothing and is run again.
//!
//! 1. Nothing is changed before everything is checked: who has it, pages and records, who votes,
//!    CORRUPT, room on the disk.
//! 2. Time stands still meanwhile: no lease ends.
//! 3. Afterwards it is read back: the same living keys, at the same revisions.
//! 4. Files that are new belong to the owner of the old ones.

use std::fs;
use std::os::unix::fs::{MetadataExt, lchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::line::Line;
use super::report::Compaction;
use super::space::{GROUPS_SHOWN, Taker};
use super::{Outcome, advice, again};
use crate::etcd::data_dir::Starts;
use crate::etcd::log::Counted;
use crate::ops::cluster::attend;
use crate::ops::cluster::quota::DEFAULT_BYTES;
use crate::ops::compaction::Keep;
use crate::ops::compaction::window::{
    Decision, Evidence, KUBERNETES_KEY, Kubernetes, decide, warning,
};
use crate::ops::examine::Level;
use crate::ops::inspect::{self, Report as Inspected};
use crate::ops::online::Size;
use crate::ops::verify_dir::{self, Verdict, VerifiedDir};
use crate::ops::{Error, ExitCode, Progress, audit, disk, holder, shell_word, stage};
use crate::store::{
    Alarm, Caller, Clock, Compaction as CompactionRequest, Error as StoreError, OpenError,
    Options as StoreOptions, Quota, Range, Retention, Store, SystemClock,
};

/// Keys that are read at once, without their values.
const PAGE_KEYS: i64 = 1000;
/// Bytes on the disk besides a copy of what is in use: growth of the database and two segments of
/// the log.
const ROOM_BYTES: u64 = 192 << 20;
/// Bytes that a defragmentation must give back to be done.
const GAIN_MIN: u64 = 64 << 10;
/// Bytes in use are looked at so often while rows go ...
const LOOK: Duration = Duration::from_millis(200);
/// ... until they stay as they are for so many looks.
const STILL: u32 = 5;
/// etcd's numbers of alarms, and of what is done to them.
const NOSPACE: u64 = 1;
const CORRUPT: u64 = 2;
const DEACTIVATE: u64 = 2;

/// What to do, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The data directory.
    pub data_dir: PathBuf,
    /// The WAL directory, where etcd has it elsewhere.
    pub wal_dir: Option<PathBuf>,
    /// How much history is to be left.
    pub keep: Keep,
    /// The quota that the server has; `None` for etcd's default.
    pub quota_bytes: Option<i64>,
    /// Find out and report, change nothing.
    pub dry_run: bool,
    /// Where the record goes.
    pub audit_log: PathBuf,
}

/// What was done, or would be; `docs/JSON.md` describes it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this shape.
    pub version: u8,
    /// Nothing was changed.
    pub dry_run: bool,
    /// How it ended.
    pub outcome: Outcome,
    /// Absolute path of the data directory.
    pub data_dir: String,
    /// Id of the member.
    pub member_id: String,
    /// Its name.
    pub member_name: String,
    /// Minor versions of etcd that start on it.
    pub starts_on: Vec<String>,
    /// The quota that it is held against.
    pub quota_bytes: i64,
    /// Nobody said it: it is etcd's default.
    pub quota_assumed: bool,
    /// The database before.
    pub before: Size,
    /// The database after; `None` in a dry run.
    pub after: Option<Size>,
    /// Percent of the quota that was free.
    pub free_percent_before: Option<i64>,
    /// Percent of the quota that is free; `None` in a dry run.
    pub free_percent: Option<i64>,
    /// Alarms that were raised before.
    pub alarms_before: Vec<RaisedAlarm>,
    /// Alarms that are raised now.
    pub alarms: Vec<RaisedAlarm>,
    /// The newest revision; no later one is made.
    pub revision: i64,
    /// Living keys; all are there afterwards, as they were.
    pub keys: u64,
    /// Bytes of living records.
    pub live_bytes: u64,
    /// Bytes of superseded records.
    pub history_bytes: u64,
    /// What takes the room, largest first.
    pub groups: Vec<Taker>,
    /// Where it was compacted.
    pub compaction: Compaction,
    /// What should be known.
    pub warnings: Vec<String>,
    /// Ordinary commands that do the same, once a server stays up with a larger quota.
    pub equivalent: Vec<String>,
    /// What to do next.
    pub next: Vec<String>,
}

/// An alarm in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RaisedAlarm {
    /// Whose it is, in hex.
    #[serde(rename = "memberID")]
    pub id: String,
    /// `NOSPACE`, `CORRUPT` or `NONE`.
    pub alarm: &'static str,
}

impl Report {
    /// Returns what to exit with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self.outcome {
            Outcome::Tight | Outcome::Full => ExitCode::Partial,
            _ => ExitCode::Ok,
        }
    }
}

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

/// What a directory holds, as a reader sees it.
#[derive(Debug)]
struct Seen {
    size: Size,
    alarms: Vec<(u64, u64)>,
    revision: i64,
    compacted: i64,
    kubernetes: Option<Kubernetes>,
    member_id: String,
    member_name: String,
    keys: u64,
    /// Over keys, revisions, versions and leases of all living keys.
    digest: [u8; 32],
}

/// Reclaims the room of a stopped sole voter.
///
/// # Errors
///
/// [`ExitCode::InUse`] while a server has it, [`ExitCode::Damage`] where it is damaged or CORRUPT
/// is raised, [`ExitCode::Refused`] where others vote too, [`ExitCode::Interrupted`], and what the
/// disk says.
pub fn reclaim(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    if matches!(options.keep, Keep::Duration(_)) {
        let error = Error::usage("a stopped member does not tell how old its revisions are");
        return Err(error.hint("--keep-revisions N, or neither"));
    }
    let data_dir = stage::absolute(&options.data_dir)?;
    let verified = check(&data_dir, options, progress)?;
    let inspected = inspect::inspect(
        &inspect::Options {
            path: data_dir.clone(),
            wal_dir: options.wal_dir.clone(),
            depth: None,
            top: 0,
        },
        progress,
    )?;
    let before = read_back(&data_dir, options, progress)?;
    let mut report = describe(&data_dir, options, &verified, &inspected, &before)?;
    // It has the database open, and the lock that goes with that.
    drop(verified);
    for warning in &report.warnings {
        progress.note(&format!("warning: {warning}"));
    }
    let line = Line::at(before.size.db_bytes, report.quota_bytes);
    let is_raised = before.alarms.iter().any(|(_, kind)| *kind == NOSPACE);
    if !is_raised && line.is_roomy() {
        report.outcome = Outcome::NothingToDo;
        report.after = Some(before.size);
        report.free_percent = line.free_percent();
        return Ok(report);
    }
    check_room(&data_dir, before.size)?;
    if options.dry_run {
        report.next = vec![again::of_directory(options, &data_dir)];
        return Ok(report);
    }
    for command in &report.equivalent {
        progress.note(&format!("same, with a larger quota and the server running: {command}"));
    }
    // Which threads write and which read is over when this is.
    let worked = work(&data_dir, options, &report, progress);
    let owners = keep_owner(&data_dir, options.wal_dir.as_deref());
    for warning in owners {
        progress.note(&format!("warning: {warning}"));
        report.warnings.push(warning);
    }
    let ended = worked.and_then(|()| {
        let after = read_back(&data_dir, options, progress)?;
        conclude(&mut report, &before, &after)?;
        check(&data_dir, options, progress).map(drop)
    });
    let result = match &ended {
        Ok(()) => audit::OK.to_owned(),
        Err(error) => error.message.clone(),
    };
    record(options, &mut report, result, progress);
    ended.map_err(|error| {
        let again = again::of_directory(options, &data_dir);
        error.hint(format!("{again}    # goes on where this one has stopped; nothing was lost"))
    })?;
    Ok(report)
}

fn word(path: &Path) -> String {
    shell_word(&path.display().to_string())
}

/// Makes sure that the directory is whole, nobody's, and a sole voter's.
fn check(
    data_dir: &Path,
    options: &Options,
    progress: &dyn Progress,
) -> Result<VerifiedDir, Error> {
    let member = data_dir.join("member");
    if let Some(who) = holder::of_member_dir(&member) {
        let message = format!("{} is in use by {who}", data_dir.display());
        return Err(Error::new(ExitCode::InUse, message)
            .hint("stop it first: on a kubeadm node, move etcd.yaml out of its folder")
            .hint("or, where it serves: etcdkit reclaim --endpoints URL"));
    }
    let verified = verify_dir::verify(data_dir, options.wal_dir.as_deref(), Level::Full, progress)?;
    let several = verified.facts.as_ref().filter(|facts| facts.voters.len() > 1);
    if let Some(facts) = several {
        let rows = verified.database.as_ref().and_then(|database| database.rows.as_ref());
        let name = |id: &u64| {
            let known = rows.and_then(|rows| rows.members.iter().find(|member| member.id.0 == *id));
            let name = known.map(|member| member.name.clone()).filter(|name| !name.is_empty());
            name.unwrap_or_else(|| format!("{id:x}"))
        };
        let mut voters: Vec<String> = facts.voters.iter().map(name).collect();
        voters.sort();
        let message = format!(
            "{} is of a cluster of {} voters ({}): what only one of them compacts or disarms is \
             lost to the others; nothing was changed",
            data_dir.display(),
            voters.len(),
            voters.join(", ")
        );
        return Err(Error::refused(message)
            .hint(
                "start a majority of them with a larger --quota-backend-bytes, then: etcdkit \
                 reclaim --endpoints URL",
            )
            .hint(format!(
                "etcdutl defrag --data-dir {}, which is safe for each",
                word(data_dir)
            )));
    }
    if verified.verdict != Verdict::Good {
        let code = match verified.verdict.exit_code() {
            ExitCode::Ok => ExitCode::Damage,
            code => code,
        };
        let message = format!("{} is not one that a server starts on", data_dir.display());
        let mut error =
            Error::new(code, message).hint(format!("etcdkit snapshot verify {}", word(data_dir)));
        error.findings = verified.findings.kept().to_vec();
        return Err(error);
    }
    let sole = verified
        .facts
        .as_ref()
        .is_some_and(|facts| facts.voters.len() == 1 && facts.counted == Some(Counted::SoleVoter));
    if !sole {
        let message = format!(
            "it is not known that the member of {} is the only one that votes; nothing was changed",
            data_dir.display()
        );
        let hint = format!("etcdkit snapshot verify {}", word(data_dir));
        return Err(Error::refused(message).hint(hint));
    }
    Ok(verified)
}

fn open_failed(error: OpenError) -> Error {
    let code = match &error {
        OpenError::InUse(_) => ExitCode::InUse,
        OpenError::Damaged { .. } => ExitCode::Damage,
        OpenError::Unfit { .. } => ExitCode::Refused,
        OpenError::Disk(_) => ExitCode::Failed,
    };
    Error::new(code, error.to_string())
}

fn failed(doing: &str, error: &StoreError) -> Error {
    Error::new(ExitCode::Failed, format!("cannot {doing}: {error}"))
}

/// Looks at what a directory holds; changes nothing.
fn read_back(data_dir: &Path, options: &Options, progress: &dyn Progress) -> Result<Seen, Error> {
    progress.step("read keys", 0);
    let (path, wal_dir) = (data_dir.to_owned(), options.wal_dir.clone());
    attend(progress, move || {
        let store = Store::open_read_only(&path, StoreOptions::default().wal_dir(wal_dir))
            .map_err(open_failed)?;
        let seen = look(&store).map_err(|error| failed("read the directory", &error));
        // It was read only.
        let _ = store.close();
        seen
    })
}

fn look(store: &Store) -> Result<Seen, StoreError> {
    let me = Caller::default();
    let status = store.status(&me)?;
    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let alarms = store.alarm(&me, Alarm { action: 0, member_id: 0, alarm: 0 })?.body;
    let key = Range { key: KUBERNETES_KEY.as_bytes(), ..Range::default() };
    let kubernetes = store.range(&me, &key)?.body.kvs.first().and_then(|kv| {
        let record = kv.record();
        Kubernetes::read(record.value, record.mod_revision)
    });
    let compacted = store.hash_kv(&me, store.revision())?.body.compact_revision.max(0);
    let own = store.members(&me)?.into_iter().find(|member| member.id == store.member_id());
    let (keys, digest) = digest(store)?;
    Ok(Seen {
        size: Size {
            db_bytes: bytes(status.db_size_bytes),
            in_use_bytes: bytes(status.db_size_in_use_bytes),
        },
        alarms,
        revision: store.revision(),
        compacted,
        kubernetes,
        member_id: store.member_id().to_string(),
        member_name: own.map(|member| member.name).unwrap_or_default(),
        keys,
        digest,
    })
}

/// Sums up the living keys.
fn digest(store: &Store) -> Result<(u64, [u8; 32]), StoreError> {
    let (mut sum, mut keys, mut from) = (Sha256::new(), 0_u64, vec![0]);
    loop {
        let range = Range {
            key: &from,
            range_end: &[0],
            limit: PAGE_KEYS,
            keys_only: true,
            ..Range::default()
        };
        let page = store.range(&Caller::default(), &range)?.body;
        let mut last = None;
        for kv in &page.kvs {
            let record = kv.record();
            sum.update(u64::try_from(record.key.len()).unwrap_or(u64::MAX).to_le_bytes());
            sum.update(record.key);
            for number in
                [record.create_revision, record.mod_revision, record.version, record.lease]
            {
                sum.update(number.to_le_bytes());
            }
            keys = keys.saturating_add(1);
            last = Some(record.key.to_vec());
        }
        match last.filter(|_| page.more) {
            Some(last) => from = [last.as_slice(), &[0]].concat(),
            None => return Ok((keys, sum.finalize().into())),
        }
    }
}

fn raised(alarms: &[(u64, u64)]) -> Vec<RaisedAlarm> {
    let word = |kind: u64| match kind {
        NOSPACE => "NOSPACE",
        CORRUPT => "CORRUPT",
        _ => "NONE",
    };
    let one = |(id, kind): &(u64, u64)| RaisedAlarm { id: format!("{id:x}"), alarm: word(*kind) };
    alarms.iter().map(one).collect()
}

fn describe(
    data_dir: &Path,
    options: &Options,
    verified: &VerifiedDir,
    inspected: &Inspected,
    before: &Seen,
) -> Result<Report, Error> {
    if before.alarms.iter().any(|(_, kind)| *kind == CORRUPT) {
        let message = format!("CORRUPT is raised in {}; nothing was done", data_dir.display());
        let hint = format!("etcdkit snapshot verify {}", word(data_dir));
        return Err(Error::new(ExitCode::Damage, message).hint(hint));
    }
    let quota = match options.quota_bytes {
        None | Some(0) => DEFAULT_BYTES,
        // So etcd says that there is none.
        Some(quota) if quota < 0 => i64::MAX,
        Some(quota) => quota,
    };
    let evidence = Evidence {
        newest: before.revision,
        compacted: before.compacted,
        kubernetes: before.kubernetes,
        aged: Vec::new(),
    };
    if let Keep::From(revision) = options.keep
        && revision > before.revision
    {
        let message =
            format!("revision {revision} is still to come: the newest is {}", before.revision);
        return Err(Error::new(ExitCode::NotFound, message));
    }
    let mut warnings: Vec<String> = Vec::new();
    let (revision, why) = match decide(options.keep, &evidence) {
        Decision::At { revision, why } => {
            warnings.extend(warning(options.keep, revision, &evidence));
            (Some(revision), why)
        }
        Decision::TooYoung { .. } => (None, "nothing is known to be old enough".to_owned()),
    };
    if options.quota_bytes.is_none() {
        warnings.push(format!(
            "the quota is not told: etcd's default, {DEFAULT_BYTES} bytes, is assumed; \
             --quota-backend-bytes says another"
        ));
    }
    let starts = verified.starts.iter().filter(|start| start.starts == Starts::Yes);
    let groups = inspected.groups.iter().take(GROUPS_SHOWN).map(|group| Taker {
        prefix: group.prefix.clone().unwrap_or_default(),
        name: group.name(),
        keys: group.keys,
        bytes: group.live_bytes,
        exact: true,
    });
    let wanted = revision.filter(|revision| *revision > before.compacted);
    let ctl = |words: &str| format!("etcdctl {words}");
    let mut equivalent: Vec<String> = wanted
        .map(|revision| ctl(&format!("compaction {revision} --physical")))
        .into_iter()
        .collect();
    equivalent.extend([ctl("defrag"), ctl("alarm disarm")]);
    Ok(Report {
        version: 1,
        dry_run: options.dry_run,
        outcome: Outcome::DryRun,
        data_dir: data_dir.display().to_string(),
        member_id: before.member_id.clone(),
        member_name: before.member_name.clone(),
        starts_on: starts.map(|start| start.etcd.to_owned()).collect(),
        quota_bytes: quota,
        quota_assumed: options.quota_bytes.is_none(),
        before: before.size,
        after: None,
        free_percent_before: Line::at(before.size.db_bytes, quota).free_percent(),
        free_percent: None,
        alarms_before: raised(&before.alarms),
        alarms: raised(&before.alarms),
        revision: before.revision,
        keys: before.keys,
        live_bytes: inspected.live_bytes,
        history_bytes: inspected.history_bytes,
        groups: groups.collect(),
        compaction: Compaction {
            revision,
            why,
            newest_revision: before.revision,
            compact_revision_before: before.compacted,
        },
        warnings,
        equivalent,
        next: Vec::new(),
    })
}

fn check_room(data_dir: &Path, size: Size) -> Result<(), Error> {
    let snap = data_dir.join("member").join("snap");
    let Some(free) = disk::free_bytes(&snap) else { return Ok(()) };
    let needed = u64::try_from(size.in_use_bytes).unwrap_or(0).saturating_add(ROOM_BYTES);
    if free >= needed {
        return Ok(());
    }
    let message = format!(
        "{} has {free} bytes free, and {needed} may be needed: a copy of what is in use, and room \
         for the log; nothing was changed",
        snap.display()
    );
    Err(Error::new(ExitCode::Failed, message).hint("make room there"))
}

/// Opens it and does the work.
fn work(
    data_dir: &Path,
    options: &Options,
    report: &Report,
    progress: &dyn Progress,
) -> Result<(), Error> {
    progress.note("open     the directory as its server would, with no limit");
    let opening = StoreOptions::default()
        .quota(Quota::Off)
        .wal_dir(options.wal_dir.clone())
        .auto_compaction(Retention::Off)
        .hash_at_compaction(false)
        .clock(Arc::new(StoppedClock::default()) as Arc<dyn Clock>);
    let path = data_dir.to_owned();
    // Killed or not, it is not left half open: this waits for the end.
    let store = Store::open(&path, opening).map_err(open_failed)?;
    let done = in_store(&store, report, progress);
    let closed = store.close().map_err(|error| failed("close the directory", &error));
    done.and(closed)
}

fn in_store(store: &Store, report: &Report, progress: &dyn Progress) -> Result<(), Error> {
    let me = store.caller_named("root");
    let run = |doing: &'static str, work: fn(&Store, &Caller, i64) -> Result<(), StoreError>, n| {
        let (store, me) = (store.clone(), me.clone());
        attend(progress, move || work(&store, &me, n).map_err(|error| failed(doing, &error)))
    };
    let wanted = report.compaction.revision;
    let wanted = wanted.filter(|to| *to > report.compaction.compact_revision_before);
    match wanted {
        Some(revision) => {
            progress.note(&format!("compact  at revision {revision} ({})", report.compaction.why));
            let work: fn(&Store, &Caller, i64) -> _ = |store, me, revision| {
                store.compact(me, CompactionRequest { revision, physical: true }).map(drop)
            };
            run("compact", work, revision)?;
        }
        // What was begun before goes on by itself.
        None => settle(store, &me, progress)?,
    }
    let size = store.status(&me).map_err(|error| failed("measure", &error))?;
    let gain = size.db_size_bytes.saturating_sub(size.db_size_in_use_bytes);
    if gain >= GAIN_MIN {
        progress.note(&format!("defrag   {gain} bytes of {} are free", size.db_size_bytes));
        run("defragment", |store, me, _| store.defragment(me), 0)?;
    }
    let size = store.status(&me).map_err(|error| failed("measure", &error))?;
    let size_bytes = i64::try_from(size.db_size_bytes).unwrap_or(i64::MAX);
    if matches!(Line::at(size_bytes, report.quota_bytes), Line::Over { .. }) {
        let quota = report.quota_bytes;
        progress.note(&format!("disarm   NOSPACE stays: {size_bytes} bytes, the quota is {quota}"));
        return Ok(());
    }
    let work: fn(&Store, &Caller, i64) -> _ = |store, me, _| {
        let alarms = store.alarm(me, Alarm { action: 0, member_id: 0, alarm: NOSPACE })?.body;
        for (member_id, alarm) in alarms {
            store.alarm(me, Alarm { action: DEACTIVATE, member_id, alarm })?;
        }
        Ok(())
    };
    progress.note("disarm   NOSPACE");
    run("disarm", work, 0)
}

/// Waits until the rows of a compaction that was begun before are gone.
fn settle(store: &Store, me: &Caller, progress: &dyn Progress) -> Result<(), Error> {
    let in_use = || {
        let status = store.status(me).map_err(|error| failed("measure", &error));
        status.map(|status| status.db_size_in_use_bytes)
    };
    let (mut before, mut still, began) = (in_use()?, 0, Instant::now());
    while still < STILL {
        thread::sleep(LOOK);
        if progress.stopped() {
            return Err(Error::interrupted());
        }
        let now = in_use()?;
        still = if now < before { 0 } else { still + 1 };
        before = now;
        if began.elapsed() > Duration::from_secs(3600) {
            break;
        }
    }
    Ok(())
}

/// Gives what is new in the directory to the owner of its database; returns what could not be.
fn keep_owner(data_dir: &Path, wal_dir: Option<&Path>) -> Vec<String> {
    let member = data_dir.join("member");
    let Ok(owner) = fs::metadata(&member) else { return Vec::new() };
    let wal = wal_dir.map_or_else(|| member.join("wal"), Path::to_owned);
    let mut warnings = Vec::new();
    for folder in [member.join("snap"), wal] {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            if (meta.uid(), meta.gid()) == (owner.uid(), owner.gid()) {
                continue;
            }
            if let Err(error) = lchown(&path, Some(owner.uid()), Some(owner.gid())) {
                let path = path.display();
                warnings
                    .push(format!("{path} does not belong to the owner of the others: {error}"));
            }
        }
    }
    warnings
}

/// Holds what is there now against what was there, and judges.
fn conclude(report: &mut Report, before: &Seen, after: &Seen) -> Result<(), Error> {
    let same = (before.keys, before.digest, before.revision, &before.member_id);
    if same != (after.keys, after.digest, after.revision, &after.member_id) {
        let message = format!(
            "{} keys at revision {} are there now, and {} at {} were before",
            after.keys, after.revision, before.keys, before.revision
        );
        return Err(Error::new(ExitCode::Internal, message).hint("please report this"));
    }
    let line = Line::at(after.size.db_bytes, report.quota_bytes);
    report.after = Some(after.size);
    report.free_percent = line.free_percent();
    report.alarms = raised(&after.alarms);
    let is_raised = after.alarms.iter().any(|(_, kind)| *kind == NOSPACE);
    report.outcome = match (is_raised || matches!(line, Line::Over { .. }), line.is_roomy()) {
        (true, _) => Outcome::Full,
        (false, true) => Outcome::Reclaimed,
        (false, false) => Outcome::Tight,
    };
    let start = match report.starts_on.as_slice() {
        [] => "start the etcd that it is of on it".to_owned(),
        versions => format!("start etcd on it: {}", versions.join(" or ")),
    };
    report.next.push(format!("{start}; on a kubeadm node, move etcd.yaml back"));
    if report.outcome != Outcome::Reclaimed {
        report.next.extend(advice::look_at(&report.groups));
        let is_full = report.outcome == Outcome::Full;
        report.next.extend(advice::raise(report.quota_bytes, after.size.db_bytes, is_full));
        let quota = report.quota_bytes;
        report.next.push(format!(
            "then delete what is not needed, run etcdkit reclaim --endpoints URL \
             --keep-revisions 0, and set --quota-backend-bytes={quota} again"
        ));
    }
    report.next.push("then: etcdkit status --endpoints URL".to_owned());
    Ok(())
}

fn record(options: &Options, report: &mut Report, result: String, progress: &dyn Progress) {
    let state = |size: Option<Size>, alarms: &[RaisedAlarm]| -> Value {
        json!({ "data_dir": report.data_dir, "member_id": report.member_id, "size": size,
            "alarms": alarms, "revision": report.revision, "keys": report.keys })
    };
    let record = audit::Record {
        operation: "reclaim",
        result,
        before: state(Some(report.before), &report.alarms_before),
        after: state(report.after, &report.alarms),
        equivalent: report.equivalent.clone(),
        warnings: report.warnings.clone(),
    };
    if let Err(error) = audit::append(&options.audit_log, &record) {
        let log = options.audit_log.display();
        let warning = format!("the audit record could not be written to {log}: {error}");
        progress.note(&format!("warning: {warning}"));
        report.warnings.push(warning);
    }
}
