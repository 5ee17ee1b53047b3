//! Compaction of a running cluster: history below a revision goes, everywhere at once.
//!
//! Two steps, which others may take one by one: [`window()`] learns at which revision, and
//! [`compact`] asks for it. [`run`] is both, with the access checked before and a record after.
//!
//! Invariants:
//!
//! 1. Nothing starts for who may not, nor where it is not known that a revision is old enough.
//! 2. Compacted already, and still to come, are two things, and neither is asked of the members
//!    where it is known before.
//! 3. Who waits for the rows to go, or for time to pass, can be interrupted, and is told what goes
//!    on without him.
//!
//! **Source**: etcd server/storage/mvcc/kvstore.go, `updateCompactRev`, and
//! server/etcdserver/v3_server.go, `Compact`, checked at 3.5.35, 3.6.16 and 3.7.3.

mod samples;
pub mod window;

use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

use super::cluster::{Access, attend, wait};
use super::lock::Lock;
use super::{Error, ExitCode, Progress, admin, audit};
use crate::live::{self, Cluster, Header, Range};
use samples::{Moment, Samples};
pub use window::Keep;
use window::{Decision, Evidence, KUBERNETES_KEY, Kubernetes, words};

/// What it is called in records and locks.
const OPERATION: &str = "compaction";
/// Limit for the rows to go: days of a slow disk.
const PHYSICAL_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// Time between two looks at how much is in use meanwhile.
const LOOK: Duration = Duration::from_secs(2);
/// Time between two notes while time passes.
const NOTE_MIN: Duration = Duration::from_secs(10);

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// How much history is to be left.
    pub keep: Keep,
    /// Wait until the rows are gone at the member that is asked.
    pub physical: bool,
    /// Where nothing is known to be old enough: wait until it is.
    pub wait: bool,
    /// Change nothing.
    pub dry_run: bool,
    /// Where the record goes, and beside it what was seen at which time.
    pub audit_log: PathBuf,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was compacted.
    Compacted,
    /// It would be.
    WouldCompact,
    /// It is compacted up to that revision or a later one already.
    AlreadyCompacted,
    /// Nothing is known to be old enough.
    TooYoung,
}

/// Where to compact, and what is known there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The cluster.
    pub cluster_id: u64,
    /// Its newest revision.
    pub newest: i64,
    /// The revision up to which it is compacted; 0 for never.
    pub compacted: i64,
    /// Where to compact; `None` where nothing is known to be old enough.
    pub revision: Option<i64>,
    /// Why there.
    pub why: String,
    /// When something will be old enough, where nothing is.
    pub again_after: Option<Duration>,
    /// What Kubernetes' API servers say, where they are there.
    pub kubernetes: Option<Kubernetes>,
    /// What is to be known.
    pub warnings: Vec<String>,
}

impl Window {
    /// Returns the revision where there is something to compact.
    #[must_use]
    pub fn to_do(&self) -> Option<i64> {
        self.revision.filter(|revision| *revision > self.compacted)
    }
}

/// What was done, or would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Version of this shape.
    pub version: u8,
    /// Nothing was changed.
    pub dry_run: bool,
    /// How it ended.
    pub outcome: Outcome,
    /// The cluster's id, in hex.
    pub cluster_id: String,
    /// The revision that was to be compacted at; `None` where nothing is known to be old enough.
    pub revision: Option<i64>,
    /// Why that one.
    pub why: String,
    /// The newest revision before.
    pub newest_revision: i64,
    /// The revision up to which it was compacted before; 0 for never.
    pub compact_revision_before: i64,
    /// The revision up to which it is compacted now.
    pub compact_revision: i64,
    /// Revisions whose history went, or would go.
    pub revisions: i64,
    /// Whether the rows are gone at the member that was asked.
    pub physical: bool,
    /// Bytes in use at the fullest member, before and after; `None` where it was not waited for.
    pub in_use_bytes: Option<InUse>,
    /// Seconds after which something will be old enough; `None` where that is not what is missing.
    pub again_after_s: Option<u64>,
    /// Milliseconds that the compaction took.
    pub ms: u64,
    /// Ordinary commands that do the same.
    pub equivalent: Vec<String>,
    /// What is to be known.
    pub warnings: Vec<String>,
}

/// Bytes in use at the fullest member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct InUse {
    /// Before.
    pub before: i64,
    /// Once the rows were gone at the member that was asked.
    pub after: i64,
}

impl Report {
    /// Tells whether there was nothing to do.
    #[must_use]
    pub fn is_noop(&self) -> bool {
        matches!(self.outcome, Outcome::AlreadyCompacted | Outcome::TooYoung)
    }
}

/// Compacts.
///
/// # Errors
///
/// [`ExitCode::Tls`] for who is no administrator, before anything else; [`ExitCode::NotFound`] for
/// a revision that is still to come; [`ExitCode::Interrupted`]; and what members answer.
pub fn run(
    cluster: &Arc<Cluster>,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report, Error> {
    let asked = cluster.clone();
    admin::check(&attend(progress, move || Ok(asked.access()?))?, "compact")?;
    let mut window = window(cluster, options.keep, &options.audit_log, progress)?;
    if let (None, true, false, Keep::Duration(least)) =
        (window.revision, options.wait, options.dry_run, options.keep)
    {
        pass(least, window.newest, progress)?;
        let revision = window.newest;
        window = look(cluster, progress)?.0;
        window.revision = Some(revision);
        window.why = format!("it was there {} ago", words(least));
    }
    let mut report = plan(cluster, options, &window);
    for warning in &report.warnings {
        progress.note(&format!("warning: {warning}"));
    }
    if report.is_noop() || options.dry_run {
        return Ok(report);
    }
    let Some(revision) = window.to_do() else { return Ok(report) };
    // Who defragments meanwhile, or waits for the rows to go as well, would be in the way.
    let _lock = if options.physical {
        let mut settings = cluster.settings().clone();
        settings.endpoints = cluster.endpoints().into_iter().map(str::to_owned).collect();
        let lock = Lock::take(&settings, OPERATION, &options.audit_log, progress)?;
        report.warnings.extend_from_slice(lock.warnings());
        Some(lock)
    } else {
        None
    };
    for command in &report.equivalent {
        progress.note(&format!("same as    {command}"));
    }
    let began = Instant::now();
    let done = compact(cluster, revision, options.physical, progress);
    report.ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    let result = match &done {
        Ok(done) => {
            report.in_use_bytes = done.in_use;
            report.warnings.extend(done.warnings.iter().cloned());
            for warning in &done.warnings {
                progress.note(&format!("warning: {warning}"));
            }
            if done.is_already {
                report.outcome = Outcome::AlreadyCompacted;
                return Ok(report);
            }
            audit::OK.to_owned()
        }
        Err(failed) if failed.may_be_done => failed.error.message.clone(),
        Err(_) => String::new(),
    };
    if !result.is_empty() {
        record(&options.audit_log, &mut report, revision, result, progress);
    }
    match done {
        Ok(_) => Ok(report),
        Err(mut failed) => {
            if failed.error.code != ExitCode::Interrupted {
                failed.error.hints.extend(report.equivalent);
            }
            Err(failed.error)
        }
    }
}

/// Learns at which revision to compact. What is seen meanwhile is kept for later runs.
///
/// # Errors
///
/// [`ExitCode::NotFound`] for a revision that is still to come, an interruption, and what members
/// answer.
pub fn window(
    cluster: &Arc<Cluster>,
    keep: Keep,
    audit_log: &Path,
    progress: &dyn Progress,
) -> Result<Window, Error> {
    let (mut window, now) = look(cluster, progress)?;
    if let Keep::From(revision) = keep
        && revision > window.newest
    {
        return Err(to_come(revision, window.newest));
    }
    let mut samples = Samples::read(audit_log, window.cluster_id, window.newest);
    samples.add(window.newest, &now);
    let evidence = Evidence {
        newest: window.newest,
        compacted: window.compacted,
        kubernetes: window.kubernetes,
        aged: samples.aged(&now),
    };
    if matches!(keep, Keep::Duration(_)) {
        window.warnings.append(&mut samples.warnings);
    }
    match window::decide(keep, &evidence) {
        Decision::At { revision, why } => {
            window.revision = Some(revision);
            window.why = why;
            window.warnings.extend(window::warning(keep, revision, &evidence));
        }
        Decision::TooYoung { after } => {
            window.why = "of no revision it is known to be that old".to_owned();
            window.again_after = Some(after);
        }
    }
    Ok(window)
}

/// Asks the cluster for its revisions; returns the moment after which they were so.
fn look(cluster: &Arc<Cluster>, progress: &dyn Progress) -> Result<(Window, Moment), Error> {
    let asked = cluster.clone();
    attend(progress, move || {
        let key = Range { key: KUBERNETES_KEY.into(), limit: 1, ..Range::default() };
        let page = asked.range(&key)?;
        let now = Moment::now();
        let compacted = compacted(&asked)?;
        let mut warnings = Vec::new();
        let newest = page.header.revision;
        let kubernetes = page.records.first().and_then(|record| {
            let key = Kubernetes::read(&record.value, record.mod_revision);
            if key.is_none() {
                warnings.push(format!(
                    "{KUBERNETES_KEY} holds no revision that Kubernetes could have put there; it \
                     is not heeded"
                ));
            }
            key
        });
        let window = Window {
            cluster_id: page.header.cluster_id,
            newest,
            compacted,
            revision: None,
            why: String::new(),
            again_after: None,
            kubernetes,
            warnings,
        };
        Ok((window, now))
    })
}

/// Asks the first member that tells up to which revision it is compacted.
fn compacted(cluster: &Cluster) -> Result<i64, Error> {
    let mut first = None;
    for endpoint in cluster.endpoints() {
        match cluster.compact_revision(endpoint) {
            Ok(revision) => return Ok(revision),
            Err(error) => first = first.or(Some(error)),
        }
    }
    let nobody = || live::Error::of("", live::Cause::NoEndpoints);
    Err(first.unwrap_or_else(nobody).into())
}

/// A compaction that went through.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Somebody else had done it before.
    pub is_already: bool,
    /// Bytes in use, where it was waited for the rows to go.
    pub in_use: Option<InUse>,
    /// What is to be known.
    pub warnings: Vec<String>,
}

/// A compaction that did not go through, as far as is known.
#[derive(Debug)]
pub struct Failed {
    /// Why.
    pub error: Error,
    /// It may have been done all the same.
    pub may_be_done: bool,
}

/// Compacts at a revision, and waits until the rows are gone where that is wanted.
///
/// # Errors
///
/// As [`run`], but for the access, which is not checked before.
pub fn compact(
    cluster: &Arc<Cluster>,
    revision: i64,
    physical: bool,
    progress: &dyn Progress,
) -> Result<Done, Failed> {
    let in_use = |progress: &dyn Progress| {
        let asked = cluster.clone();
        attend(progress, move || Ok(fullest(&asked)))
    };
    let sure = |error| Failed { error, may_be_done: false };
    let before = if physical { in_use(progress).map_err(sure)? } else { None };
    let answer = ask(cluster, revision, physical, before, progress)?;
    let mut done = Done::default();
    match answer {
        Ok(_) => {}
        // The endpoint that took it broke, and another one finds it done.
        Err(error) if live::is_compacted(&error) && live::is_uncertain(&error) => {
            if physical {
                done.warnings.push(format!(
                    "it is compacted, but the member that was asked to wait for the rows to go did \
                     not answer: {error}"
                ));
            }
        }
        Err(error) if live::is_compacted(&error) => done.is_already = true,
        Err(error) if live::is_future(&error) => {
            let error = Error::new(
                ExitCode::NotFound,
                format!("revision {revision} is still to come: {error}"),
            );
            return Err(sure(error));
        }
        Err(error) => {
            let may_be_done = live::is_uncertain(&error);
            let mut error = Error::from(error);
            if may_be_done {
                error.message += &format!("; it may be compacted at revision {revision} now");
            }
            return Err(Failed { error, may_be_done });
        }
    }
    if physical && done.warnings.is_empty() && !done.is_already {
        // What it came to is worth no failure any more.
        let after = in_use(progress).unwrap_or(None);
        done.in_use = before.zip(after).map(|(before, after)| InUse { before, after });
    }
    Ok(done)
}

/// Asks on a thread of its own, and says meanwhile how much is in use.
fn ask(
    cluster: &Arc<Cluster>,
    revision: i64,
    physical: bool,
    before: Option<i64>,
    progress: &dyn Progress,
) -> Result<Result<Header, live::Error>, Failed> {
    let (done, waits) = mpsc::sync_channel(1);
    let asked = cluster.clone();
    let limit = if physical { PHYSICAL_MAX } else { cluster.settings().command_timeout };
    std::thread::spawn(move || {
        // Nobody listens any more after an interruption.
        let _ = done.send(asked.compact(revision, physical, limit));
    });
    let (began, mut looked) = (Instant::now(), Instant::now());
    let stopped = || {
        let error = Error::new(
            ExitCode::Interrupted,
            format!(
                "interrupted; the members go on: they may be compacted at revision {revision}, and \
                 rows may go still"
            ),
        );
        Failed { error: error.hint("etcdkit status"), may_be_done: true }
    };
    loop {
        match waits.recv_timeout(Duration::from_millis(50)) {
            Ok(answer) => return Ok(answer),
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let error = Error::new(ExitCode::Internal, "the thread that asks has ended");
                return Err(Failed { error, may_be_done: true });
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
        if progress.stopped() {
            return Err(stopped());
        }
        if physical && looked.elapsed() >= LOOK {
            let asked = cluster.clone();
            let now = attend(progress, move || Ok(fullest(&asked))).map_err(|_| stopped())?;
            if let (Some(before), Some(now)) = (before, now) {
                let size = |bytes: i64| {
                    let bytes = u64::try_from(bytes).unwrap_or(0);
                    humansize::format_size(bytes, humansize::BINARY)
                };
                progress.note(&format!(
                    "compacting: {} in use, {} before; {} so far",
                    size(now),
                    size(before),
                    words(began.elapsed())
                ));
            }
            looked = Instant::now();
        }
    }
}

/// Returns the bytes in use at the fullest member that answers.
fn fullest(cluster: &Cluster) -> Option<i64> {
    let answers = cluster.statuses().into_iter();
    answers.filter_map(|(_, answer)| answer.ok()).map(|status| status.db_size_in_use).max()
}

/// Lets time pass.
fn pass(least: Duration, newest: i64, progress: &dyn Progress) -> Result<(), Error> {
    let began = Instant::now();
    let Some(end) = began.checked_add(least) else {
        return Err(Error::usage("that is too long to be waited for"));
    };
    progress.note(&format!(
        "of no revision it is known to be {} old: waits that long, then compacts at revision \
         {newest}, which is the newest now",
        words(least)
    ));
    let every = (least / 10).max(NOTE_MIN);
    loop {
        let next = Instant::now().checked_add(every).map_or(end, |next| next.min(end));
        if !wait::sleep_until(next, progress) {
            let left = words(end.saturating_duration_since(Instant::now()));
            return Err(Error::interrupted().hint(format!(
                "run it again in {left}: revision {newest} was seen, and will be old enough then"
            )));
        }
        if next >= end {
            return Ok(());
        }
        progress.note(&format!("waiting: {} of {}", words(began.elapsed()), words(least)));
    }
}

/// Describes what would be done.
fn plan(cluster: &Cluster, options: &Options, window: &Window) -> Report {
    let to_do = window.to_do();
    let outcome = match (window.revision, to_do) {
        (None, _) => Outcome::TooYoung,
        (_, None) => Outcome::AlreadyCompacted,
        _ if options.dry_run => Outcome::WouldCompact,
        _ => Outcome::Compacted,
    };
    let compact_revision = to_do.filter(|_| !options.dry_run).unwrap_or(window.compacted);
    let command = to_do.map(|revision| {
        let number = revision.to_string();
        let mut line = vec!["compaction", &number];
        if options.physical {
            line.push("--physical");
        }
        let endpoints = cluster.endpoints().join(",");
        Access::of(cluster.settings()).command("etcdctl", Some(&endpoints), &line)
    });
    Report {
        version: 1,
        dry_run: options.dry_run,
        outcome,
        cluster_id: format!("{:x}", window.cluster_id),
        revision: window.revision,
        why: window.why.clone(),
        newest_revision: window.newest,
        compact_revision_before: window.compacted,
        compact_revision,
        revisions: to_do.map_or(0, |revision| revision.saturating_sub(window.compacted)),
        physical: options.physical,
        in_use_bytes: None,
        again_after_s: window.again_after.map(|after| after.as_secs().saturating_add(1)),
        ms: 0,
        equivalent: command.into_iter().collect(),
        warnings: window.warnings.clone(),
    }
}

fn record(
    audit_log: &Path,
    report: &mut Report,
    revision: i64,
    result: String,
    progress: &dyn Progress,
) {
    let record = audit::Record {
        operation: OPERATION,
        result,
        before: json!({
            "cluster_id": report.cluster_id,
            "newest_revision": report.newest_revision,
            "compact_revision": report.compact_revision_before,
        }),
        after: json!({
            "compact_revision": revision,
            "physical": report.physical,
            "in_use_bytes": report.in_use_bytes,
        }),
        equivalent: report.equivalent.clone(),
        warnings: report.warnings.clone(),
    };
    if let Err(error) = audit::append(audit_log, &record) {
        let path = audit_log.display();
        let warning = format!("the audit record could not be written to {path}: {error}");
        progress.note(&format!("warning: {warning}"));
        report.warnings.push(warning);
    }
}

fn to_come(revision: i64, newest: i64) -> Error {
    let message = format!("revision {revision} is still to come: the newest is {newest}");
    Error::new(ExitCode::NotFound, message)
        .hint("--keep-revisions N compacts at N revisions below the newest")
}
