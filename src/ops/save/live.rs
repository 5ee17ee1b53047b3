//! `snapshot save` from a running member.
//!
//! 1. What can be refused is refused before anything is asked, what the user may not do before
//!    anything is sent. Then a member is chosen (`pick`).
//! 2. Its stream is held against its own trailer while it comes in (`receive`), then every
//!    page and record is checked, and the keys are held against what all members say they hash to
//!    (`proof`), while the disk is at work.
//! 3. Only then it gets its name. A member that fails or sends wrong bytes is left for the next
//!    one, and that is said.
//! 4. Into a pipe goes nothing that was not checked whole, unless nothing may be kept on disk: then
//!    the trailer is held back until it fits.

use std::fs::File as DiskFile;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};

use super::pick::{self, Candidate, Choice, Role, Wanted};
use super::pipe::{self, Pipe};
use super::proof::{self, Asking, Proof, Unproved};
use super::receive::{Fault, Received, receive};
use super::retention::{self, Retention};
use super::{Step, metrics, note_path, publish};
use crate::bolt::{File, Source};
use crate::etcd::rows::AlarmKind;
use crate::etcd::survey::Report as Rows;
use crate::format::finding::Severity;
use crate::format::sidecar::{self, Sidecar};
use crate::live::{Answers, Cause, Cluster, HashKv, Limits, Settings};
use crate::ops::cluster::attend;
use crate::ops::digest::TRAILER_BYTES;
use crate::ops::disk::{self, OutFile};
use crate::ops::examine::{Examined, examine_written};
use crate::ops::new_file::NewFile;
use crate::ops::spool::spool;
use crate::ops::{Error, ExitCode, Progress, audit, clock, rewrite, shell_word};

/// Default of [`Options::idle_timeout`].
pub const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Default of [`Options::timeout`].
pub const TIMEOUT: Duration = Duration::from_secs(3600);

/// Where a snapshot goes.
#[derive(Clone, Debug)]
pub enum Output {
    /// Into a new file; `{time}` in its name becomes the time in UTC.
    File(PathBuf),
    /// To standard output.
    Pipe {
        /// It is kept in a temporary file until it is checked whole.
        spool: bool,
    },
}

/// What to save, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it goes.
    pub output: Output,
    /// The members.
    pub settings: Settings,
    /// Ask every member that the cluster has.
    pub whole_cluster: bool,
    /// The revision that the snapshot must have; `None`: that of a linearizable read.
    pub min_revision: Option<i64>,
    /// No majority of the cluster has to answer.
    pub without_quorum: bool,
    /// A member with a CORRUPT alarm may be used.
    pub accept_corrupt: bool,
    /// Ask the members what the keys hash to.
    pub hashkv: bool,
    /// Longest time in which no bytes come, or none can be handed on.
    pub idle_timeout: Duration,
    /// Longest time until the snapshot is here, whatever member it comes from.
    pub timeout: Duration,
    /// Remove older snapshots of the same pattern until so many are left.
    pub keep_last: Option<u64>,
    /// Where figures for node_exporter go.
    pub metrics_file: Option<PathBuf>,
    /// Change nothing.
    pub dry_run: bool,
    /// Where the record of the change goes.
    pub audit_log: PathBuf,
}

/// What was saved; `docs/JSON.md` describes it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this shape.
    pub version: u32,
    /// Nothing was changed.
    pub dry_run: bool,
    /// The snapshot file, or `-`.
    pub file: String,
    /// The note beside it; `None` for a pipe.
    pub note: Option<String>,
    /// Bytes of the snapshot with its trailer; `None` in a dry run.
    pub size_bytes: Option<u64>,
    /// SHA-256 of the whole file; `None` in a dry run.
    pub sha256: Option<String>,
    /// What was checked: `full`, `trailer` (`--no-spool`), or `nothing` in a dry run.
    pub verified: &'static str,
    /// Cluster id.
    pub cluster_id: String,
    /// Id of the member that it is from.
    pub member_id: String,
    /// Its name; empty when not known.
    pub member_name: String,
    /// Its endpoint.
    pub endpoint: String,
    /// `follower`, `leader` or `learner`.
    pub role: &'static str,
    /// Why that member.
    pub why: String,
    /// Version that it runs.
    pub etcd_version: String,
    /// Storage version; `None` before etcd 3.6.
    pub storage_version: Option<String>,
    /// Revision of the snapshot, as read from it; `None` where it was not read.
    pub revision: Option<i64>,
    /// The revision that it must have.
    pub revision_needed: i64,
    /// Highest revision that any member had.
    pub highest_revision_seen: i64,
    /// Whether a majority of the cluster answered.
    pub quorum: bool,
    /// Living keys; `None` where they were not read.
    pub keys: Option<u64>,
    /// Whether a Kubernetes API server wrote it; `None` where that was not read.
    pub kubernetes: Option<bool>,
    /// What the members say that the keys hash to.
    pub hashkv: Proof,
    /// Bytes of the member's database when it was chosen.
    pub db_size_bytes: i64,
    /// Free bytes where the snapshot goes, before; `None` where not known.
    pub free_bytes: Option<u64>,
    /// Members that were tried and failed.
    pub failed: Vec<Tried>,
    /// Members that were passed over.
    pub passed_over: Vec<Tried>,
    /// What killed runs had left and is gone now.
    pub removed: Vec<String>,
    /// What became of older snapshots, with `--keep-last`.
    pub retention: Option<Retention>,
    /// How long each step took.
    pub steps: Vec<Step>,
    /// The ordinary commands that do the same.
    pub equivalent: Vec<String>,
    /// What to do next.
    pub next: Vec<String>,
    /// What should be read.
    pub warnings: Vec<String>,
}

/// A member that was not used.
#[derive(Clone, Debug, Serialize)]
pub struct Tried {
    /// Its endpoint.
    pub endpoint: String,
    /// Why.
    pub why: String,
}

impl Report {
    /// Returns the report as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json!(self)
    }
}

/// Saves a snapshot of a running member.
///
/// # Errors
/// Every refusal and failure; there is no new file then.
pub fn save(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    if let Some(path) = &options.metrics_file {
        metrics::check_place(path, options)?;
    }
    let mut run = Run { steps: Vec::new(), highest: 0, began: Instant::now() };
    let mut outcome = run.save(options, progress);
    if let Some(path) = options.metrics_file.as_deref().filter(|_| !options.dry_run) {
        let figures =
            metrics::Run { outcome: outcome.as_ref(), steps: &run.steps, highest: run.highest };
        if let Err(error) = metrics::write(path, figures) {
            let warning = format!("{} could not be written: {error}", path.display());
            progress.note(&format!("warning: {warning}"));
            if let Ok(report) = &mut outcome {
                report.warnings.push(warning);
            }
        }
    }
    outcome
}

/// Counts a save that could not even begin, in the file for node_exporter.
pub fn failed(metrics_file: &Path, error: &Error, progress: &dyn Progress) {
    let figures = metrics::Run { outcome: Err(error), steps: &[], highest: 0 };
    if let Err(error) = metrics::write(metrics_file, figures) {
        let path = metrics_file.display();
        progress.note(&format!("warning: {path} could not be written: {error}"));
    }
}

/// Where a snapshot goes, once that was looked at.
enum Place {
    File { target: PathBuf, note: PathBuf, pattern: PathBuf, removed: Vec<PathBuf> },
    Spooled { out: DiskFile, folder: PathBuf },
    Direct { out: DiskFile },
}

impl Place {
    fn check(options: &Options) -> Result<Self, Error> {
        let pattern = match &options.output {
            Output::File(pattern) => pattern,
            Output::Pipe { .. } if options.keep_last.is_some() => {
                return Err(Error::usage("--keep-last goes with a file, not with -"));
            }
            Output::Pipe { spool } => {
                let out = pipe::stdout()?;
                return Ok(match spool {
                    true => Self::Spooled { out, folder: std::env::temp_dir() },
                    false => Self::Direct { out },
                });
            }
        };
        retention::check(pattern, options.keep_last)?;
        let target = NewFile::check(&retention::expand(pattern, &clock::compact())?)?;
        let note = note_path(&target);
        let mut removed = Vec::new();
        if !options.dry_run {
            removed.extend(NewFile::clear_dead_note(&target, &note));
            removed.extend(retention::clear_dead(pattern, &target));
        }
        let note = NewFile::check(&note)?;
        Ok(Self::File { target, note, pattern: pattern.clone(), removed })
    }

    /// The folder that must have room.
    fn folder(&self) -> Option<&Path> {
        match self {
            Self::File { target, .. } => target.parent(),
            Self::Spooled { folder, .. } => Some(folder),
            Self::Direct { .. } => None,
        }
    }

    fn free_bytes(&self) -> Option<u64> {
        self.folder().and_then(disk::free_bytes)
    }

    fn has_room(&self, needed: u64) -> bool {
        self.free_bytes().is_none_or(|free| free >= needed)
    }

    fn no_room(&self, needed: u64) -> Error {
        let folder = self.folder().unwrap_or(Path::new("/")).display();
        let free = self.free_bytes().unwrap_or_default();
        let message = format!(
            "{folder} has {free} bytes free, and the snapshot needs {needed}; nothing was \
                     saved"
        );
        let error = Error::new(ExitCode::Failed, message).because("disk_full");
        match self {
            Self::Spooled { .. } => error
                .hint("set TMPDIR to a folder with more room")
                .hint("or --no-spool: nothing is kept here, and pages and records are not checked"),
            _ => error.hint("make room, or save to another file system"),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::File { target, .. } => target.display().to_string(),
            _ => "-".into(),
        }
    }
}

/// What came of one member.
struct Saved {
    received: Received,
    /// The file in its place, checked; `None` where it went straight through.
    checked: Option<Checked>,
    proof: Proof,
}

struct Checked {
    examined: Examined,
    holder: Holder,
}

/// What holds the bytes until they are published.
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
enum Holder {
    New { snapshot: NewFile, note: NewFile },
    Spool(DiskFile),
}

/// Why a member gave no snapshot: another may, or it is no use.
enum Failed {
    Next(Error),
    Final(Error),
}

struct Run {
    steps: Vec<Step>,
    highest: i64,
    began: Instant,
}

/// What an attempt needs to know.
#[derive(Clone, Copy)]
struct Job<'a> {
    options: &'a Options,
    cluster: &'a Arc<Cluster>,
    place: &'a Place,
    /// Whether a majority answered.
    quorum: bool,
    /// Who is asked what the keys hash to: who answered, and is not known to be corrupt.
    asked: &'a [String],
    end: Instant,
    progress: &'a dyn Progress,
}

impl Run {
    fn save(&mut self, options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
        let place = Place::check(options)?;
        let end = self.began + options.timeout;
        progress.step("choose", 0);
        let wanted = Wanted {
            min_revision: options.min_revision,
            without_quorum: options.without_quorum,
            accept_corrupt: options.accept_corrupt,
        };
        let (settings, whole_cluster) = (options.settings.clone(), options.whole_cluster);
        let (cluster, mut choice) = attend(&pick::Until { end, progress }, move || {
            let mut cluster = Cluster::open(settings)?;
            if whole_cluster {
                cluster.discover()?;
            }
            let choice = pick::pick(&cluster, wanted)?;
            Ok((Arc::new(cluster), choice))
        })
        .map_err(|error| match error.code {
            ExitCode::Interrupted if !progress.stopped() => pick::late(options.timeout),
            _ => error,
        })?;
        self.highest = choice.highest;
        let db_size = choice.candidates.first().map_or(0, |first| first.status.db_size);
        // It may grow until it is sent.
        let needed = u64::try_from(db_size).unwrap_or_default();
        let needed = needed.saturating_add(needed / 50).saturating_add(TRAILER_BYTES);
        let free_bytes = place.free_bytes();
        if !place.has_room(needed) {
            return Err(place.no_room(needed));
        }
        if progress.stopped() {
            return Err(Error::interrupted());
        }
        // Writes wait for a leader that hashes more than for a follower: it comes last.
        let (leader, others): (Vec<_>, Vec<_>) =
            choice.candidates.iter().partition(|candidate| candidate.role == Role::Leader);
        let asked: Vec<String> =
            others.iter().chain(&leader).map(|candidate| candidate.endpoint.clone()).collect();
        let (quorum, asked) = (choice.quorum, asked.as_slice());
        let job = Job { options, cluster: &cluster, place: &place, quorum, asked, end, progress };
        self.steps.push(Step::since("choose", self.began));
        if options.dry_run {
            return Ok(plan(&job, &choice, free_bytes, &self.steps));
        }
        for warning in &choice.warnings {
            progress.note(&format!("warning: {warning}"));
        }
        let mut failed = Vec::new();
        let (candidate, saved) = self.first_good(&job, &mut choice, &mut failed)?;
        let mut report = describe(&job, &choice, &candidate, free_bytes);
        if let Some(warning) = choice.no_majority(&candidate) {
            progress.note(&format!("warning: {warning}"));
        }
        report.failed = failed.iter().map(|(tried, _)| tried.clone()).collect();
        for failed in &report.failed {
            report.warnings.push(format!("a member failed: {}", failed.why));
        }
        self.finish(&job, saved, &mut report)?;
        self.highest = report.highest_revision_seen;
        report.steps.clone_from(&self.steps);
        Ok(report)
    }

    /// Goes from one member to the next until one gives a good snapshot.
    fn first_good(
        &mut self,
        job: &Job<'_>,
        choice: &mut Choice,
        failed: &mut Vec<(Tried, ExitCode)>,
    ) -> Result<(Candidate, Saved), Error> {
        let mut candidates = std::mem::take(&mut choice.candidates);
        let mut last = None;
        for at in 0..candidates.len() {
            let next = candidates.get(at + 1).map(|next| next.endpoint.clone());
            let Some(candidate) = candidates.get_mut(at) else { break };
            let steps = self.steps.len();
            match self.attempt(job, candidate) {
                Ok(saved) => return Ok((candidate.clone(), saved)),
                Err(Failed::Final(error)) => return Err(with_failures(error, failed)),
                Err(Failed::Next(_)) if job.progress.stopped() => {
                    return Err(Error::interrupted());
                }
                Err(Failed::Next(error)) => {
                    self.steps.truncate(steps);
                    let then = next.map(|next| format!("; {next} is tried next"));
                    let then = then.unwrap_or_default();
                    job.progress.note(&format!("warning: {}{then}", error.message));
                    let tried =
                        Tried { endpoint: candidate.endpoint.clone(), why: error.message.clone() };
                    failed.push((tried, error.code));
                    last = Some(error);
                }
            }
        }
        let nobody = || Error::new(ExitCode::Unreachable, "there is no member to save from");
        let last = last.unwrap_or_else(nobody);
        failed.pop();
        Err(with_failures(last, failed))
    }

    fn attempt(&mut self, job: &Job<'_>, candidate: &mut Candidate) -> Result<Saved, Failed> {
        let live = |error: crate::live::Error| {
            // What a member does not allow, the others do not either; a bad certificate is its own.
            match pick::final_word(&error) {
                Some(error) => Failed::Final(error.into()),
                None => Failed::Next(error.into()),
            }
        };
        let progress = job.progress;
        let left = |job: &Job<'_>| job.end.saturating_duration_since(Instant::now());
        pick::catch_up(job.cluster, candidate, left(job), progress).map_err(live)?;
        if progress.stopped() {
            return Err(Failed::Final(Error::interrupted()));
        }
        let began = Instant::now();
        let limits = Limits { idle: job.options.idle_timeout, total: left(job) };
        let open = || job.cluster.snapshot(&candidate.endpoint, limits).map_err(live);
        let has_room = |bytes| job.place.has_room(bytes);
        let fault = |fault, begun| job.failure(fault, &candidate.endpoint, begun);
        let (mut holder, target) = match job.place {
            Place::Direct { out } => {
                let mut stream = open()?;
                let idle = job.options.idle_timeout;
                let writer = |error| Failed::Final(pipe::failed(&error, idle));
                let out = out.try_clone().map_err(writer)?;
                let mut pipe = Pipe::new(out, idle, progress).map_err(writer)?;
                let received = receive(&mut stream, &mut pipe, &has_room, progress)
                    .map_err(|why| fault(why, pipe.has_begun()))?;
                pipe.finish().map_err(writer)?;
                self.steps.push(Step::since("stream", began));
                return Ok(Saved { received, checked: None, proof: Proof::off() });
            }
            Place::File { target, note, .. } => {
                let note = NewFile::create(note).map_err(Failed::Final)?;
                let snapshot = NewFile::create(target).map_err(Failed::Final)?;
                (Holder::New { snapshot, note }, target.clone())
            }
            Place::Spooled { folder, .. } => {
                let failed = |error| Failed::Final(Error::io(&error, "make a file in", folder));
                let file = tempfile::tempfile_in(folder).map_err(failed)?;
                (Holder::Spool(file), folder.clone())
            }
        };
        let spooled;
        let out: &OutFile = match &mut holder {
            Holder::New { snapshot, .. } => snapshot.out(),
            Holder::Spool(file) => {
                let failed = |error| Failed::Final(Error::io(&error, "write into", &target));
                spooled = OutFile::of_new(file.try_clone().map_err(failed)?, &target);
                &spooled
            }
        };
        let mut stream = open()?;
        let received =
            spool(out, |mut spool| receive(&mut stream, &mut spool, &has_room, progress))
                .unwrap_or_else(|error| Err(Fault::Write(error)))
                .map_err(|why| fault(why, false))?;
        drop(stream);
        self.steps.push(Step::since("stream", began));
        let began = Instant::now();
        let (examined, answers) = job.check(out, &received, &target).map_err(Failed::Final)?;
        self.steps.push(Step::since("verify", began));
        let began = Instant::now();
        let proof = job.judge(&examined, answers, candidate)?;
        if job.options.hashkv {
            self.steps.push(Step::since("hashkv", began));
        }
        let checked = Some(Checked { examined, holder });
        Ok(Saved { received, checked, proof })
    }

    /// Publishes what was saved, and tells what it is.
    fn finish(&mut self, job: &Job<'_>, saved: Saved, report: &mut Report) -> Result<(), Error> {
        let progress = job.progress;
        // What was said while it happened is not said again.
        let told = report.warnings.len();
        let Saved { received, checked, proof } = saved;
        report.size_bytes = Some(received.size_bytes());
        report.sha256 = Some(received.sha256.clone());
        report.storage_version =
            Some(received.storage_version.clone()).filter(|version| !version.is_empty());
        report.hashkv = proof;
        if progress.stopped() {
            return Err(Error::interrupted());
        }
        let Some(Checked { examined, holder }) = checked else {
            report.verified = "trailer";
            report.warnings.push(
                "pages and records were not checked, as nothing was kept on disk: run snapshot \
                 verify where the snapshot arrives"
                    .into(),
            );
            rewrite::tell(report.warnings.get(told..).unwrap_or_default(), progress);
            return Ok(());
        };
        report.verified = "full";
        if let Some(rows) = &examined.rows {
            describe_rows(rows, report);
        }
        if examined.has_unknown() {
            report.warnings.push(
                "the snapshot holds what this version does not know; a restore of it needs a newer \
                 one, or --accept-unknown"
                    .into(),
            );
        }
        let began = Instant::now();
        match holder {
            Holder::Spool(file) => {
                if let Place::Spooled { out, .. } = job.place {
                    let idle = job.options.idle_timeout;
                    pipe::pour(file, out, &received.sha256, idle, progress)?;
                }
            }
            Holder::New { snapshot, note } => {
                let removed = [&note, &snapshot].into_iter().flat_map(NewFile::removed);
                report.removed.extend(removed.map(|path| path.display().to_string()));
                let content = note_of(report, self.began);
                report.warnings.extend(publish(&content, note, snapshot)?);
            }
        }
        self.steps.push(Step::since("publish", began));
        if let (Some(keep), Place::File { target, pattern, .. }) =
            (job.options.keep_last, job.place)
        {
            let began = Instant::now();
            // What may lack writes, or is known to differ, takes no good snapshot's place.
            if report.quorum && !job.options.accept_corrupt {
                let (done, warnings) = retention::keep_last(
                    pattern,
                    target,
                    keep,
                    &report.cluster_id,
                    false,
                    progress,
                );
                report.retention = Some(done);
                report.warnings.extend(warnings);
            } else {
                let warning = "no older snapshot was removed: this one was saved without a \
                               majority, or from a cluster that may be corrupt";
                report.warnings.push(warning.to_owned());
            }
            self.steps.push(Step::since("retention", began));
        }
        let mut late = report.warnings.split_off(told);
        record(job.options, report, &mut late, progress);
        report.warnings.extend(late);
        Ok(())
    }
}

impl Job<'_> {
    /// Says what a fault of the stream is to the one who ran the command.
    fn failure(&self, fault: Fault, endpoint: &str, begun: bool) -> Failed {
        let error = match fault {
            Fault::Member(error) => {
                let is_late = matches!(error.cause, Cause::Timeout { .. });
                let error = Error::from(error);
                match is_late {
                    true => error.hint("--idle-timeout and --timeout set the limits"),
                    false => error,
                }
            }
            Fault::Bytes(what) => wrong_bytes(endpoint, &what),
            Fault::Stopped => return Failed::Final(Error::interrupted()),
            Fault::Room(needed) => return Failed::Final(self.place.no_room(needed)),
            Fault::Write(error) => return Failed::Final(self.unwritten(&error)),
        };
        match begun {
            false => Failed::Next(error),
            true => Failed::Final(error.hint("what went out is not a whole snapshot")),
        }
    }

    fn unwritten(&self, error: &io::Error) -> Error {
        let place = match self.place {
            Place::Direct { .. } => return pipe::failed(error, self.options.idle_timeout),
            Place::Spooled { folder, .. } => folder,
            Place::File { target, .. } => target,
        };
        let mut failed = Error::io(error, "write", place);
        if let (io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded, Some(free)) =
            (error.kind(), self.place.free_bytes())
        {
            failed.message = format!("{} ({free} bytes are free)", failed.message);
        }
        failed
    }

    /// Checks every page and record, while the disk finishes and the members hash their keys.
    fn check(
        &self,
        out: &OutFile,
        received: &Received,
        target: &Path,
    ) -> Result<(Examined, Answers<HashKv>), Error> {
        let limit = proof::limit(received.body_bytes, self.cluster.settings().command_timeout);
        let ask = || -> Option<(i64, Asking)> {
            let source = out.file().try_clone().and_then(Source::from_file).ok()?;
            let revision = proof::revision_of(&File::from_source(source).ok()?).ok()?;
            Some((revision, Asking::begin(self.cluster, self.asked, revision, limit)?))
        };
        let is_kept = matches!(self.place, Place::File { .. });
        std::thread::scope(|scope| {
            let spawn = || std::thread::Builder::new();
            // The file remembers what fails here, and its last sync tells.
            let _ = is_kept.then(|| spawn().spawn_scoped(scope, || out.sync()));
            let asking = self.options.hashkv.then(ask).flatten();
            let examined = examine_written(target, out.file(), &received.sha256, self.progress)?;
            let revision = examined.rows.as_ref().map(|rows| rows.current_revision);
            let answers = match asking {
                Some((asked, asking)) if revision == Some(asked) && !examined.is_damaged() => {
                    asking.wait(self.progress)?
                }
                // The file is not what it looked like: it is judged before any answer is.
                _ => Vec::new(),
            };
            Ok((examined, answers))
        })
    }

    /// Holds what was saved against what it must be.
    fn judge(
        &self,
        examined: &Examined,
        answers: Answers<HashKv>,
        candidate: &Candidate,
    ) -> Result<Proof, Failed> {
        let endpoint = candidate.endpoint.as_str();
        let (Some(file), Some(rows), false) =
            (&examined.file, &examined.rows, examined.is_damaged())
        else {
            let all = examined.all_findings();
            let errors = all.kept().iter().filter(|finding| finding.severity == Severity::Error);
            let first = errors.clone().next().map_or("it is no database", |bad| &bad.detail);
            let mut error = wrong_bytes(endpoint, first);
            error.findings = errors.cloned().collect();
            return Err(Failed::Next(error));
        };
        let needed = candidate.needed;
        if rows.current_revision < needed {
            let why = match (self.options.min_revision, self.quorum) {
                (Some(asked), _) if asked == needed => "you asked for at least",
                (_, true) => "the cluster has acknowledged",
                (_, false) => "that member has told",
            };
            let what = format!("it is of revision {}, and {why} {needed}", rows.current_revision);
            return Err(Failed::Next(wrong_bytes(endpoint, &what)));
        }
        if !self.options.hashkv {
            return Ok(Proof::off());
        }
        let source = format!("{:x}", candidate.status.header.member_id);
        proof::prove(file, rows, answers, &source, self.progress).map_err(|unproved| match unproved
        {
            Unproved::Source(error) => Failed::Next(error),
            Unproved::Other(error) => Failed::Final(error),
        })
    }
}

fn wrong_bytes(endpoint: &str, what: &str) -> Error {
    Error::new(ExitCode::Damage, format!("{endpoint} sent a wrong snapshot: {what}"))
        .hint("nothing was saved of it; check that member's disk and memory, and the network")
}

/// Adds what became of the members that were tried before; wrong bytes among them win.
fn with_failures(mut error: Error, failed: &[(Tried, ExitCode)]) -> Error {
    for (tried, code) in failed {
        if *code == ExitCode::Damage && error.code != ExitCode::Interrupted {
            error.code = ExitCode::Damage;
        }
        error.hints.push(format!("tried before: {}", tried.why));
    }
    error
}

fn plan(job: &Job<'_>, choice: &Choice, free_bytes: Option<u64>, steps: &[Step]) -> Report {
    let mut report = match choice.candidates.first() {
        Some(candidate) => describe(job, choice, candidate, free_bytes),
        None => describe(job, choice, &nobody(), free_bytes),
    };
    if let (Some(keep), Place::File { target, pattern, .. }) = (job.options.keep_last, job.place) {
        let (done, warnings) =
            retention::keep_last(pattern, target, keep, &report.cluster_id, true, job.progress);
        report.retention = Some(done);
        report.warnings.extend(warnings);
    }
    report.steps = steps.to_vec();
    rewrite::tell(&report.warnings, job.progress);
    report
}

fn nobody() -> Candidate {
    Candidate {
        endpoint: String::new(),
        role: Role::Follower,
        status: crate::live::Status::default(),
        needed: 0,
        why: String::new(),
    }
}

fn describe(
    job: &Job<'_>,
    choice: &Choice,
    candidate: &Candidate,
    free_bytes: Option<u64>,
) -> Report {
    let status = &candidate.status;
    let id = status.header.member_id;
    // Without a majority only those who answered are asked: a name is worth no wait.
    let members = match choice.quorum {
        true => job.cluster.members(),
        false => {
            let endpoints = vec![candidate.endpoint.clone()];
            Cluster::open(Settings { endpoints, ..job.options.settings.clone() })
                .and_then(|own| own.members())
        }
    };
    let members = members.ok();
    let name = members.and_then(|members| {
        members.members.into_iter().find(|member| member.id == id).map(|member| member.name)
    });
    let file = job.place.name();
    let (note, removed) = match job.place {
        Place::File { note, removed, .. } => {
            let removed = removed.iter().map(|path| path.display().to_string());
            (Some(note.display().to_string()), removed.collect())
        }
        _ => (None, Vec::new()),
    };
    let word = shell_word(&file);
    let next = match job.place {
        Place::File { .. } => vec![
            format!("copy {word} and its note to another machine"),
            format!("etcdkit snapshot restore {word} --data-dir DIR --dry-run"),
        ],
        _ => vec!["etcdkit snapshot verify FILE, where it arrives".into()],
    };
    let tried =
        |(endpoint, why): &(String, String)| Tried { endpoint: endpoint.clone(), why: why.clone() };
    Report {
        version: 1,
        dry_run: job.options.dry_run,
        file,
        note,
        size_bytes: None,
        sha256: None,
        verified: "nothing",
        cluster_id: format!("{:x}", status.header.cluster_id),
        member_id: format!("{id:x}"),
        member_name: name.unwrap_or_default(),
        endpoint: candidate.endpoint.clone(),
        role: candidate.role.word(),
        why: candidate.why.clone(),
        etcd_version: status.version.clone(),
        storage_version: Some(status.storage_version.clone()).filter(|v| !v.is_empty()),
        revision: None,
        revision_needed: candidate.needed,
        highest_revision_seen: choice.highest,
        quorum: choice.quorum,
        keys: None,
        kubernetes: None,
        hashkv: Proof::off(),
        db_size_bytes: status.db_size,
        free_bytes,
        failed: Vec::new(),
        passed_over: choice.passed_over.iter().map(tried).collect(),
        removed,
        retention: None,
        steps: Vec::new(),
        equivalent: equivalent(job, &candidate.endpoint, &word),
        next: if job.options.dry_run { Vec::new() } else { next },
        warnings: choice.warnings.iter().cloned().chain(choice.no_majority(candidate)).collect(),
    }
}

fn equivalent(job: &Job<'_>, endpoint: &str, file: &str) -> Vec<String> {
    let mut line = format!("etcdctl --endpoints {}", shell_word(endpoint));
    for flag in job.cluster.settings().flags() {
        line.push_str(&format!(" {}", shell_word(&flag)));
    }
    let file = if file == "-" { "FILE" } else { file };
    vec![
        format!("{line} snapshot save {file}"),
        format!("etcdutl snapshot status {file}"),
        format!("{line} endpoint hashkv --cluster"),
    ]
}

fn describe_rows(rows: &Rows, report: &mut Report) {
    report.revision = Some(rows.current_revision);
    report.keys = Some(rows.live_keys);
    report.kubernetes = Some(rows.is_kubernetes);
    report.storage_version = rows.storage_version.map(|version| version.to_string());
    report.highest_revision_seen = report.highest_revision_seen.max(rows.current_revision);
    if rows.members.len() > 1
        && let Some(restore) = report.next.last_mut()
    {
        *restore = restore.replace("--data-dir DIR", "--all-members DIR");
    }
    for alarm in rows.alarms.iter().filter(|alarm| alarm.kind == AlarmKind::Corrupt) {
        report.warnings.push(format!(
            "a CORRUPT alarm of member {} stands in the snapshot; a restore of it wants \
             --accept-corrupt",
            alarm.member_id
        ));
    }
    if report.hashkv.verdict == "no_answer" {
        report
            .warnings
            .push("no member told what its keys hash to, so they were not compared".into());
    }
}

fn note_of(report: &Report, began: Instant) -> Sidecar {
    let revision = |revision: i64| u64::try_from(revision).unwrap_or_default();
    Sidecar {
        kind: sidecar::KIND.into(),
        version: sidecar::VERSION,
        sha256: report.sha256.clone().unwrap_or_default(),
        size_bytes: report.size_bytes.unwrap_or_default(),
        revision: revision(report.revision.unwrap_or_default()),
        highest_revision_seen: revision(report.highest_revision_seen),
        cluster_id: report.cluster_id.clone(),
        member_id: report.member_id.clone(),
        member_name: report.member_name.clone(),
        etcd_version: report.etcd_version.clone(),
        storage_version: report.storage_version.clone().unwrap_or_default(),
        saved_at: clock::rfc3339(),
        endpoint: report.endpoint.clone(),
        duration_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or_default(),
        quorum: (!report.quorum).then_some(false),
        hashkv: report.hashkv.members.clone(),
    }
}

fn record(options: &Options, report: &Report, warnings: &mut Vec<String>, progress: &dyn Progress) {
    if report.note.is_none() {
        // Nothing here was changed.
        rewrite::tell(warnings, progress);
        return;
    }
    let removed = report.retention.as_ref().map_or(&[][..], |retention| &retention.removed);
    let record = audit::Record {
        operation: "snapshot save",
        result: audit::OK.into(),
        before: json!({
            "endpoint": report.endpoint,
            "cluster_id": report.cluster_id,
            "member_id": report.member_id,
        }),
        after: json!({
            "file": report.file,
            "sha256": report.sha256,
            "revision": report.revision,
            "removed": removed,
        }),
        equivalent: report.equivalent.clone(),
        warnings: report.warnings.iter().chain(&*warnings).cloned().collect(),
    };
    rewrite::recorded(&options.audit_log, &record, warnings, progress);
}
