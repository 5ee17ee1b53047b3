//! `reclaim --data-dir`: the directory of a stopped sole voter, for a server that does not stay up
//! at its quota.
//!
//! The store ([`crate::store`]) opens the directory as the server would, with no limit, and does
//! what the server would be asked for: a compaction through the log, and NOSPACE disarmed through
//! the log; in between it is closed, and the database is packed ([`crate::ops::defrag`]). Then a
//! server starts on it as on any directory that a store has closed: the storage version is not
//! raised, and the log is the truth at any moment, so that a run that is killed loses nothing and
//! is run again.
//!
//! 1. Nothing is changed before everything is checked: who has it, pages and records, who votes,
//!    CORRUPT, the quota at which NOSPACE was raised, room on the disks.
//! 2. Time stands still meanwhile: no lease ends. What the member says of itself stays, and so do
//!    its snapshots and the segments of its log.
//! 3. Each time that it is opened, and afterwards, the living keys are the same, at the same
//!    revisions.
//! 4. Files that are new belong to the owner of the old ones, from the moment they are made.
//! 5. A run that fails says whether it changed anything, and that nothing was lost.

mod look;
mod work;

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

use self::look::Seen;
use self::work::{Job, Owners, work};
use super::line::Line;
use super::report::Compaction;
use super::space::{GROUPS_SHOWN, Taker};
use super::{Outcome, advice, again};
use crate::etcd::data_dir::Starts;
use crate::etcd::log::Counted;
use crate::ops::cluster::quota::DEFAULT_BYTES;
use crate::ops::compaction::Keep;
use crate::ops::compaction::window::{Decision, Evidence, decide, warning};
use crate::ops::examine::Level;
use crate::ops::inspect::{self, Report as Inspected};
use crate::ops::online::Size;
use crate::ops::verify_dir::{self, Verdict, VerifiedDir};
use crate::ops::{Error, ExitCode, Progress, audit, disk, holder, shell_word, stage};
use crate::store::{Error as StoreError, OpenError};

/// Keys that are read at once, without their values.
const PAGE_KEYS: i64 = 1000;
/// Bytes on the disk of the database besides a copy of what is in use: what it grows by.
const GROWTH_BYTES: u64 = 64 << 20;
/// Bytes on the disk of the log: two segments.
const LOG_BYTES: u64 = 128 << 20;
/// etcd's numbers of alarms.
const NOSPACE: u64 = 1;
const CORRUPT: u64 = 2;
/// The result in the record of a run that begins.
const BEGUN: &str = "begun";

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
    /// Go on where a disk seems too full.
    pub accept_full_disk: bool,
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
    /// Minor versions of etcd that start on it, as it is now; none where that is not known.
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

/// Reclaims the room of a stopped sole voter.
///
/// # Errors
///
/// [`ExitCode::InUse`] while a server has it or had it meanwhile, [`ExitCode::Damage`] where it is
/// damaged or CORRUPT is raised, [`ExitCode::Refused`] where others vote too, where NOSPACE stands
/// and the quota is not told, where no server ever served it, or where a disk is too full,
/// [`ExitCode::Interrupted`], and what the disk says. Each says whether anything was changed, and
/// that nothing was lost.
pub fn reclaim(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    if matches!(options.keep, Keep::Duration(_)) {
        let error = Error::usage("a stopped member does not tell how old its revisions are");
        return Err(error.hint("--keep-revisions N, or neither"));
    }
    let data_dir = stage::absolute(&options.data_dir)?;
    let Prepared { mut report, before, status_hash } =
        prepare(&data_dir, options, progress).map_err(untouched)?;
    let owners = Owners::of(&data_dir, options.wal_dir.as_deref());
    if options.dry_run && report.outcome == Outcome::DryRun {
        report.next = vec![again::of_directory(options, &data_dir)];
    }
    if !options.dry_run {
        for warning in owners.give_leftovers() {
            progress.note(&format!("warning: {warning}"));
            report.warnings.push(warning);
        }
    }
    if options.dry_run || report.outcome == Outcome::NothingToDo {
        return Ok(report);
    }
    for command in &report.equivalent {
        progress.note(&format!("same, with a larger quota and the server running: {command}"));
    }
    record(options, &mut report, (status_hash, None), BEGUN.to_owned(), progress);
    let job =
        Job { data_dir: &data_dir, options, report: &report, before: &before, owners, progress };
    let worked = work(&job);
    let mut hash = None;
    let ended = worked.and_then(|after| {
        conclude(&mut report, &before, &after)?;
        hash = look_again(&data_dir, options, &mut report, progress)?;
        advise(&mut report, &after);
        Ok(())
    });
    let ended = ended.map_err(|error| lost_nothing(error, options, &data_dir));
    let result = match &ended {
        Ok(()) => audit::OK.to_owned(),
        Err(error) => error.message.clone(),
    };
    record(options, &mut report, (status_hash, hash), result, progress);
    ended.map(|()| report)
}

/// What is known before anything is changed.
struct Prepared {
    report: Report,
    before: Seen,
    status_hash: Option<u32>,
}

/// Checks everything, and decides.
fn prepare(data_dir: &Path, options: &Options, progress: &dyn Progress) -> Result<Prepared, Error> {
    let verified = check(data_dir, options, progress)?;
    let inspected = inspect::inspect(
        &inspect::Options {
            path: data_dir.to_owned(),
            wal_dir: options.wal_dir.clone(),
            depth: None,
            top: 0,
        },
        progress,
    )?;
    let before = look::read(data_dir, options, progress)?;
    let mut report = describe(data_dir, options, &verified, &inspected, &before)?;
    let status_hash = status_hash(&verified);
    // It has the database open, and the lock that goes with that.
    drop(verified);
    for warning in &report.warnings {
        progress.note(&format!("warning: {warning}"));
    }
    let line = Line::at(before.size.db_bytes, report.quota_bytes);
    if !before.has_nospace() && line.is_roomy() {
        report.outcome = Outcome::NothingToDo;
        report.after = Some(before.size);
        report.free_percent = line.free_percent();
    } else {
        is_fit(data_dir, &report, &before)?;
        check_room(data_dir, options, &mut report, before.size, progress)?;
    }
    Ok(Prepared { report, before, status_hash })
}

fn status_hash(verified: &VerifiedDir) -> Option<u32> {
    let rows = verified.database.as_ref().and_then(|database| database.rows.as_ref());
    rows.map(|rows| rows.status_hash)
}

/// Says of a failure before anything was changed that nothing was.
fn untouched(mut error: Error) -> Error {
    if error.code != ExitCode::Usage && !error.message.contains("; nothing was ") {
        error.message.push_str("; nothing was changed");
    }
    error
}

/// Says of a failure after something was changed that nothing was lost, and how to go on.
fn lost_nothing(mut error: Error, options: &Options, data_dir: &Path) -> Error {
    // That the keys are others would be a loss.
    if error.code == ExitCode::Internal {
        return error;
    }
    let text = error.message.replace("; nothing was changed", "");
    error.message = format!("{text}; nothing was lost");
    let again = again::of_directory(options, data_dir);
    error.hint(format!("{again}    # goes on where this one has stopped"))
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

fn store_failed(doing: &str, error: &StoreError) -> Error {
    Error::new(ExitCode::Failed, format!("cannot {doing}: {error}"))
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

fn corrupt(data_dir: &Path) -> Error {
    let message = format!("CORRUPT is raised in {}", data_dir.display());
    let hint = format!("etcdkit snapshot verify {}", word(data_dir));
    Error::new(ExitCode::Damage, message).hint(hint)
}

/// Refuses what cannot be judged, or would be made another: an alarm at a quota that is not told,
/// and a member of which no server ever said what it is.
fn is_fit(data_dir: &Path, report: &Report, before: &Seen) -> Result<(), Error> {
    if report.quota_assumed && before.has_nospace() {
        let message = format!(
            "NOSPACE is raised in {} at {} bytes, and at which quota its server raised it is not \
             told; whether writes are accepted again cannot be",
            data_dir.display(),
            before.size.db_bytes
        );
        return Err(Error::refused(message)
            .hint("--quota-backend-bytes BYTES, as the server's command line or etcd.yaml has it")
            .hint(format!("--quota-backend-bytes {DEFAULT_BYTES}    # where they have none")));
    }
    if before.version.is_none() {
        let message = format!(
            "{} is of a member that never served: which version of etcd it is of is not known, \
             and would be decided here",
            data_dir.display()
        );
        return Err(Error::refused(message).hint(
            "start its etcd on it once, with a larger --quota-backend-bytes, then: etcdkit reclaim \
             --endpoints URL",
        ));
    }
    Ok(())
}

fn describe(
    data_dir: &Path,
    options: &Options,
    verified: &VerifiedDir,
    inspected: &Inspected,
    before: &Seen,
) -> Result<Report, Error> {
    if before.has_corrupt() {
        return Err(corrupt(data_dir));
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
        member_id: format!("{:x}", before.member),
        member_name: before.member_name.clone(),
        starts_on: starts_on(verified),
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

fn starts_on(verified: &VerifiedDir) -> Vec<String> {
    let starts = verified.starts.iter().filter(|start| start.starts == Starts::Yes);
    starts.map(|start| start.etcd.to_owned()).collect()
}

/// Refuses where a disk may be too small: that of the database, or that of the log.
fn check_room(
    data_dir: &Path,
    options: &Options,
    report: &mut Report,
    size: Size,
    progress: &dyn Progress,
) -> Result<(), Error> {
    let member = data_dir.join("member");
    let snap = member.join("snap");
    let wal = options.wal_dir.clone().unwrap_or_else(|| member.join("wal"));
    let copy = u64::try_from(size.in_use_bytes).unwrap_or(0).saturating_add(GROWTH_BYTES);
    let of_copy = "a copy of what is in use, and room for the database to grow";
    let wanted = match same_disk(&snap, &wal) {
        true => vec![(snap, copy.saturating_add(LOG_BYTES), format!("{of_copy}, and for the log"))],
        false => {
            vec![(snap, copy, of_copy.to_owned()), (wal, LOG_BYTES, "room for the log".to_owned())]
        }
    };
    for (folder, needed, what) in wanted {
        let Some(free) = disk::free_bytes(&folder).filter(|free| *free < needed) else { continue };
        let message = format!(
            "{} has {free} bytes free, and {needed} may be needed: {what}",
            folder.display()
        );
        if !options.accept_full_disk {
            return Err(Error::refused(message).hint("make room there").hint("--accept-full-disk"));
        }
        progress.note(&format!("warning: {message}"));
        report.warnings.push(message);
    }
    Ok(())
}

fn same_disk(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let of = |path: &Path| std::fs::metadata(path).ok().map(|meta| meta.dev());
    of(one) == of(other)
}

/// Holds what is there now against what was there, and judges.
fn conclude(report: &mut Report, before: &Seen, after: &Seen) -> Result<(), Error> {
    if !before.is_of_same_keys(after) {
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
    let is_full = after.has_nospace() || matches!(line, Line::Over { .. });
    report.outcome = match (is_full, line.is_roomy()) {
        (true, _) => Outcome::Full,
        (false, true) => Outcome::Reclaimed,
        (false, false) => Outcome::Tight,
    };
    Ok(())
}

/// Verifies the directory as it is now, and learns what starts on it. A server that has it by now
/// is none of what went wrong.
fn look_again(
    data_dir: &Path,
    options: &Options,
    report: &mut Report,
    progress: &dyn Progress,
) -> Result<Option<u32>, Error> {
    // What was true before may not be any more.
    report.starts_on.clear();
    match check(data_dir, options, progress) {
        Ok(verified) => {
            report.starts_on = starts_on(&verified);
            Ok(status_hash(&verified))
        }
        Err(error) if error.code == ExitCode::InUse => {
            let warning = format!("{}; so it was not verified once more", error.message);
            progress.note(&format!("warning: {warning}"));
            report.warnings.push(warning);
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Says what to do next.
fn advise(report: &mut Report, after: &Seen) {
    let start = match report.starts_on.as_slice() {
        [] => "start the etcd that it is of on it".to_owned(),
        versions => format!("start etcd on it: {}", versions.join(" or ")),
    };
    report.next.push(format!("{start}; on a kubeadm node, move etcd.yaml back"));
    let line = Line::at(after.size.db_bytes, report.quota_bytes);
    let others = after.nospace_of_others();
    if !others.is_empty() {
        let others = others.join(", ");
        report.next.push(format!(
            "NOSPACE of {others} stands, for its own database: once it runs, etcdkit reclaim \
             --endpoints URL"
        ));
    }
    if report.outcome != Outcome::Reclaimed && !line.is_roomy() {
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
}

/// Writes a record: of a run that begins, and of what became of it.
fn record(
    options: &Options,
    report: &mut Report,
    (hash_before, hash): (Option<u32>, Option<u32>),
    result: String,
    progress: &dyn Progress,
) {
    let state = |size: Option<Size>, hash: Option<u32>, alarms: &[RaisedAlarm]| -> Value {
        json!({ "data_dir": report.data_dir, "member_id": report.member_id, "size": size,
            "status_hash": hash, "alarms": alarms, "revision": report.revision,
            "keys": report.keys })
    };
    let record = audit::Record {
        operation: "reclaim",
        result,
        before: state(Some(report.before), hash_before, &report.alarms_before),
        after: state(report.after, hash, &report.alarms),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Silent;

    #[test]
    fn a_disk_that_may_be_too_small_is_refused_with_the_flag_that_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("d");
        let store = crate::store::Store::open(&dir, crate::store::Options::default()).unwrap();
        store.close().unwrap();
        let mut options = Options {
            data_dir: dir.clone(),
            wal_dir: None,
            keep: Keep::Default,
            quota_bytes: Some(1),
            accept_full_disk: false,
            dry_run: true,
            audit_log: folder.path().join("audit.jsonl"),
        };
        let Prepared { mut report, .. } = prepare(&dir, &options, &Silent).unwrap();
        let size = Size { db_bytes: i64::MAX, in_use_bytes: i64::MAX };
        let mut check = |options: &Options| {
            check_room(&dir, options, &mut report, size, &Silent)
                .map(|()| report.warnings.last().cloned())
        };
        let refused = check(&options).unwrap_err();
        assert_eq!(refused.code, ExitCode::Refused, "{refused}");
        assert!(refused.hints.iter().any(|hint| hint == "--accept-full-disk"));
        options.accept_full_disk = true;
        assert!(check(&options).unwrap().is_some_and(|warning| warning.contains("bytes free")));
    }
}
