//! `snapshot save --from-data-dir`: a snapshot of a dead member, its log's tail included.
//!
//! 1. The directory is read only. Its database is checked whole before anything is written.
//! 2. The rows are copied into a packed new file with the log's changes merged in, the file is
//!    sealed with its SHA-256 and read back whole, and only then gets its name.
//! 3. The note beside it gets its name first, the snapshot last: a snapshot that is there is done.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Step, note_path, publish};
use crate::bolt::builder::{self, Builder};
use crate::bolt::overlay::Merge;
use crate::bolt::rebuild::Rebuild;
use crate::bolt::walk::{Ignore, walk};
use crate::bolt::{At, File, Source, Visit};
use crate::etcd::apply::Warning;
use crate::etcd::hash::BackendHash;
use crate::etcd::log::Counted;
use crate::etcd::members::MemberId;
use crate::etcd::rows::AlarmKind;
use crate::etcd::survey::{Report as Rows, Survey};
use crate::format::finding::Severity;
use crate::format::sidecar::{self, Sidecar};
use crate::format::{hex, u64_of};
use crate::ops::examine::{self, Examined, Level, examine};
use crate::ops::new_file::NewFile;
use crate::ops::rewrite::{self, Both};
use crate::ops::tail::{self, Dead, Tail};
use crate::ops::{Error, ExitCode, Progress, audit, clock, shell_word, stage, status};

const PIECE_BYTES: usize = 1 << 20;
/// Pages between two words of progress.
const PROGRESS_PAGES: u64 = 256;

/// What to save, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// The snapshot file to make.
    pub output: PathBuf,
    /// The dead member's data directory.
    pub data_dir: PathBuf,
    /// Its WAL directory where that is another place.
    pub wal_dir: Option<PathBuf>,
    /// Entries count that the member was not told to be committed.
    pub include_uncommitted: bool,
    /// Change nothing.
    pub dry_run: bool,
    /// Where the record of the change goes.
    pub audit_log: PathBuf,
}

/// What was saved.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this shape.
    pub version: u32,
    /// Nothing was changed.
    pub dry_run: bool,
    /// The snapshot file.
    pub file: String,
    /// The note beside it.
    pub note: String,
    /// Bytes of the file, trailer included; `None` in a dry run.
    pub size_bytes: Option<u64>,
    /// SHA-256 of the whole file; `None` in a dry run.
    pub sha256: Option<String>,
    /// Data directory.
    pub data_dir: String,
    /// WAL directory.
    pub wal_dir: String,
    /// Database file that the log was applied to.
    pub database: String,
    /// Cluster id; empty when not known.
    pub cluster_id: String,
    /// Id of the member; empty when not known.
    pub member_id: String,
    /// Its name; empty when not known.
    pub member_name: String,
    /// Storage version; `None` before etcd 3.6.
    pub storage_version: Option<String>,
    /// Revision of the snapshot.
    pub revision: i64,
    /// Bound from above of the revisions that the member may have served: what the note says.
    pub highest_revision_seen: u64,
    /// Living keys.
    pub keys: u64,
    /// Leases; each starts again with its full TTL.
    pub leases: u64,
    /// Whether a Kubernetes API server wrote it.
    pub kubernetes: bool,
    /// What the log added.
    pub log: LogReport,
    /// How long each step took.
    pub steps: Vec<Step>,
    /// The ordinary commands that do the same.
    pub equivalent: Vec<String>,
    /// What to do next.
    pub next: Vec<String>,
    /// What should be read.
    pub warnings: Vec<String>,
}

/// What the log added.
#[derive(Clone, Debug, Serialize)]
pub struct LogReport {
    /// Raft index up to which the database had it.
    pub from_index: u64,
    /// Raft index of the last entry that is in the snapshot.
    pub index: u64,
    /// Raft index of the last entry in the log.
    pub last_index: u64,
    /// Revision of the database alone.
    pub from_revision: i64,
    /// Entries that were applied, refused ones too.
    pub entries: u64,
    /// Why the log counts so far: `sole_voter`, `committed` or `voters_unknown`.
    pub counted: &'static str,
    /// Entries that are in the log and not in the snapshot.
    pub left_out: u64,
    /// Entries in the snapshot that are not known to be committed.
    pub uncommitted: u64,
    /// Entries that were done, by kind.
    pub done: Vec<Count>,
    /// Entries that had been refused to their clients and were refused again, by reason.
    pub refused: Vec<Count>,
}

/// How many of something.
#[derive(Clone, Debug, Serialize)]
pub struct Count {
    /// Of what.
    pub what: String,
    /// How many.
    pub count: u64,
}

/// Saves a dead member's data.
///
/// # Errors
/// Every refusal and failure; there is no new file then.
pub fn save(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    let output = NewFile::check(&options.output)?;
    let note_path = note_path(&output);
    if !options.dry_run {
        let _ = NewFile::clear_dead_note(&output, &note_path);
    }
    let note_path = NewFile::check(&note_path)?;
    check_places(options, &output)?;
    let mut steps = Vec::new();

    let began = Instant::now();
    let dead = Dead::open(&options.data_dir, options.wal_dir.as_deref(), progress)?;
    let examined = examine(&dead.database, Level::Full, progress)?;
    let Some((file, before)) = usable(&examined)? else { return Err(status::damaged(&examined)) };
    steps.push(Step::since("verify", began));

    let began = Instant::now();
    let tail = dead.replay(file, options.include_uncommitted, progress)?;
    if examined.has_unknown() && tail.replayed.entries > 0 {
        let message = format!(
            "{} holds what this version does not know, and its log goes on for {} entries",
            dead.data_dir.display(),
            tail.replayed.entries
        );
        let mut error = Error::refused(message).hint("use a newer etcdkit");
        let all = examined.all_findings();
        error.findings = all.kept().iter().filter(|f| f.code.is_unknown()).cloned().collect();
        return Err(error);
    }
    steps.push(Step::since("replay", began));

    let began = Instant::now();
    let making = match options.dry_run {
        true => None,
        false => Some((NewFile::create(&note_path)?, NewFile::create(&output)?)),
    };
    let mut report;
    if let Some((note, mut snapshot)) = making {
        let rows = build(file, before, &tail, &mut snapshot, progress)?;
        steps.push(Step::since("build", began));
        let began = Instant::now();
        let sealed = seal_and_check(&rows, &mut snapshot, progress)?;
        steps.push(Step::since("check", began));
        report = describe(options, &dead, &tail, &rows, &output, &note_path);
        report.size_bytes = Some(sealed.size_bytes);
        report.sha256 = Some(sealed.sha256);
        examined.still_the_same()?;
        if progress.stopped() {
            return Err(Error::interrupted());
        }
        let began = Instant::now();
        let late = publish(&note_of(&report), note, snapshot)?;
        report.warnings.extend(late);
        steps.push(Step::since("publish", began));
    } else {
        let rows = survey(file, before, &tail, progress)?;
        examined.still_the_same()?;
        report = describe(options, &dead, &tail, &rows, &output, &note_path);
    }
    report.steps = steps;
    report.warnings.extend(findings_to_tell(before));
    for warning in &report.warnings {
        progress.note(&format!("warning: {warning}"));
    }
    if !options.dry_run {
        record(options, &examined, &mut report, progress);
    }
    Ok(report)
}

/// Keeps what is written out of the directory that must not change.
fn check_places(options: &Options, output: &Path) -> Result<(), Error> {
    let audit = really(&options.audit_log)?;
    let data_dir = tail::data_dir(&options.data_dir).unwrap_or_else(|_| options.data_dir.clone());
    let member = data_dir.join("member");
    let mut folders = vec![data_dir, member.join("snap"), member.join("wal"), member];
    folders.extend(options.wal_dir.clone());
    for given in folders {
        let folder = really(&given)?;
        for path in [&really(output)?, &audit] {
            if path.starts_with(&folder) {
                let message = format!("{} lies inside {}", path.display(), folder.display());
                return Err(Error::usage(message).hint("nothing is written into that directory"));
            }
        }
    }
    Ok(())
}

/// Finds where a path leads, links followed; of what is not there yet, its folder's place.
fn really(path: &Path) -> Result<PathBuf, Error> {
    if let Ok(real) = fs::canonicalize(path) {
        return Ok(real);
    }
    let full = stage::absolute(path)?;
    let folder = full.parent().and_then(|folder| fs::canonicalize(folder).ok());
    Ok(folder.zip(full.file_name()).map_or(full.clone(), |(folder, name)| folder.join(name)))
}

fn usable(examined: &Examined) -> Result<Option<(&File, &Rows)>, Error> {
    if examined.pages_damaged() || examined.records_damaged() {
        return Err(status::damaged(examined));
    }
    Ok(examined.file.as_ref().zip(examined.rows.as_ref()))
}

/// Shows rows to a survey, and to a copy where there is one.
struct Watch<'a, C> {
    survey: Survey,
    copy: C,
    progress: &'a dyn Progress,
    page_bytes: u64,
}

impl<C: Visit> Visit for Watch<'_, C> {
    fn bucket(&mut self, at: &At<'_>, sequence: u64) {
        self.survey.bucket(at, sequence);
        self.copy.bucket(at, sequence);
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.survey.entry(at, key, value);
        self.copy.entry(at, key, value);
    }

    fn page(&mut self, entered: u64) -> bool {
        if entered.is_multiple_of(PROGRESS_PAGES) {
            self.progress.advance(entered.saturating_mul(self.page_bytes));
        }
        !self.progress.stopped() && self.copy.page(entered)
    }
}

/// Walks the rows once more, with the log's changes in their places; `before` is what the check of
/// the same rows found, and what this walk must find too.
fn merged<'p, C: Visit>(
    file: &File,
    before: &Rows,
    tail: &Tail,
    copy: C,
    progress: &'p dyn Progress,
) -> Result<Watch<'p, C>, Error> {
    let page_bytes = u64::from(file.page_size());
    progress.step("build", file.meta().size_bytes());
    let watch = Watch { survey: Survey::new(), copy, progress, page_bytes };
    let merge = Merge::new(tail.replayed.edits.clone(), watch);
    let mut both = Both(BackendHash::default(), merge);
    let walked = walk(file, &mut both);
    let Both(read, merge) = both;
    let (watch, _) = merge.finish();
    if progress.stopped() {
        return Err(Error::interrupted());
    }
    let same = read.hash() == before.status_hash && read.rows() == before.pair_count;
    if walked.stopped || walked.findings.has_errors() || !same {
        let bad = walked.findings.kept().iter().find(|f| f.severity == Severity::Error).cloned();
        let why = bad.as_ref().map_or("other rows", |bad| bad.detail.as_str());
        let message = format!("the database reads otherwise than when it was checked: {why}");
        let mut error = Error::new(ExitCode::Damage, message)
            .hint("check the disk; copy the directory to another one and save from the copy");
        error.findings.extend(bad);
        return Err(error);
    }
    Ok(watch)
}

fn survey(file: &File, before: &Rows, tail: &Tail, progress: &dyn Progress) -> Result<Rows, Error> {
    Ok(merged(file, before, tail, Ignore, progress)?.survey.finish())
}

/// Writes the database; returns what was written.
fn build(
    file: &File,
    before: &Rows,
    tail: &Tail,
    snapshot: &mut NewFile,
    progress: &dyn Progress,
) -> Result<Rows, Error> {
    let path = snapshot.target().to_owned();
    let failed = |error| match error {
        builder::Error::Io(error) => Error::io(&error, "write", &path),
        error => Error::new(ExitCode::Failed, format!("cannot write {}: {error}", path.display())),
    };
    let builder = Builder::new(snapshot.out(), file.page_size()).map_err(failed)?;
    let watch = merged(file, before, tail, Rebuild::new(builder), progress)?;
    watch.copy.finish(file.meta().txid.saturating_add(1)).map_err(failed)?;
    Ok(watch.survey.finish())
}

struct Sealed {
    size_bytes: u64,
    sha256: String,
}

/// Appends the trailer and reads back what was written.
fn seal_and_check(
    written: &Rows,
    snapshot: &mut NewFile,
    progress: &dyn Progress,
) -> Result<Sealed, Error> {
    let path = snapshot.target().to_owned();
    let io = |error: std::io::Error| Error::io(&error, "write", &path);
    let open = |snapshot: &mut NewFile| {
        snapshot.out().file().try_clone().and_then(Source::from_file).map_err(io)
    };
    let source = open(snapshot)?;
    progress.step("check", source.len());
    let mut hasher = Sha256::new();
    let mut at = 0;
    while at < source.len() {
        let piece = source.read_up_to(at, PIECE_BYTES).map_err(io)?;
        hasher.update(&piece);
        at = at.saturating_add(u64_of(piece.len()));
        if progress.stopped() {
            return Err(Error::interrupted());
        }
    }
    let trailer: [u8; 32] = hasher.clone().finalize().into();
    hasher.update(trailer);
    let out = snapshot.out();
    out.write_all_at(&trailer, source.len()).map_err(io)?;

    let wrong = |what: &str| {
        let message = format!("{} does not hold what was to be saved: {what}", path.display());
        Error::new(ExitCode::Internal, message).hint("nothing was changed; please report this")
    };
    let source = open(snapshot)?;
    let size_bytes = source.len();
    let file = File::from_source(source).map_err(|error| wrong(&error.to_string()))?;
    let (walked, rows) = examine::walk_rows(&file, progress);
    if walked.stopped {
        return Err(Error::interrupted());
    }
    let same = rows.status_hash == written.status_hash
        && rows.pair_count == written.pair_count
        && rows.current_revision == written.current_revision;
    if !same || walked.findings.has_errors() {
        return Err(wrong("its rows, when read back"));
    }
    Ok(Sealed { size_bytes, sha256: hex(&hasher.finalize()) })
}

fn note_of(report: &Report) -> Sidecar {
    Sidecar {
        kind: sidecar::KIND.into(),
        version: sidecar::VERSION,
        sha256: report.sha256.clone().unwrap_or_default(),
        size_bytes: report.size_bytes.unwrap_or_default(),
        revision: u64::try_from(report.revision).unwrap_or_default(),
        highest_revision_seen: report.highest_revision_seen,
        cluster_id: report.cluster_id.clone(),
        member_id: report.member_id.clone(),
        member_name: report.member_name.clone(),
        storage_version: report.storage_version.clone().unwrap_or_default(),
        saved_at: clock::rfc3339(),
        ..Sidecar::default()
    }
}

/// Bounds from above what the member may have served: each entry that is left out, or stands behind
/// the last good record, may have made one revision, and may have been acknowledged.
fn highest_revision(rows: &Rows, dead: &Dead, tail: &Tail) -> u64 {
    let revision = u64::try_from(rows.current_revision).unwrap_or_default();
    let more = tail.left_out.saturating_add(dead.log.entries_after_max());
    revision.saturating_add(more).min(sidecar::NUMBER_MAX.max(revision))
}

fn describe(
    options: &Options,
    dead: &Dead,
    tail: &Tail,
    rows: &Rows,
    output: &Path,
    note: &Path,
) -> Report {
    let replayed = &tail.replayed;
    let metadata = dead.log.metadata.unwrap_or_default();
    let id = MemberId(metadata.node_id);
    let hex_id = |id: u64| if id == 0 { String::new() } else { format!("{id:x}") };
    let name = rows.members.iter().find(|member| member.id == id);
    let count = |what: String, count: &u64| Count { what, count: *count };
    let (data_dir, file) = (dead.data_dir.display().to_string(), output.display().to_string());
    let counted = match tail.reach.counted {
        Counted::SoleVoter => "sole_voter",
        Counted::Committed => "committed",
        Counted::VotersUnknown => "voters_unknown",
    };
    let log = LogReport {
        from_index: replayed.from_index,
        index: replayed.index,
        last_index: dead.log.last_index(),
        from_revision: replayed.from_revision,
        entries: replayed.entries,
        counted,
        left_out: tail.left_out,
        uncommitted: tail.uncommitted,
        done: replayed.done.iter().map(|(kind, n)| count((*kind).into(), n)).collect(),
        refused: replayed.refused.iter().map(|(why, n)| count(why.to_string(), n)).collect(),
    };
    let mut warnings = Vec::new();
    warn_of_log(dead, tail, &mut warnings);
    warn_of_entries(tail, &mut warnings);
    let copy = shell_word(&format!("{data_dir}.copy"));
    let (dir_word, file_word) = (shell_word(&data_dir), shell_word(&file));
    Report {
        version: 1,
        dry_run: options.dry_run,
        file,
        note: note.display().to_string(),
        size_bytes: None,
        sha256: None,
        wal_dir: dead.log.dir.display().to_string(),
        data_dir,
        database: dead.database.display().to_string(),
        cluster_id: hex_id(metadata.cluster_id),
        member_id: hex_id(metadata.node_id),
        member_name: name.map(|member| member.name.clone()).unwrap_or_default(),
        storage_version: rows.storage_version.map(|version| version.to_string()),
        revision: rows.current_revision,
        highest_revision_seen: highest_revision(rows, dead, tail),
        keys: rows.live_keys,
        leases: rows.lease_count,
        kubernetes: rows.is_kubernetes,
        log,
        steps: Vec::new(),
        equivalent: vec![
            format!("cp -a {dir_word} {copy}"),
            format!("etcd --data-dir {copy} --force-new-cluster"),
            format!("etcdctl snapshot save {file_word}"),
        ],
        next: vec![
            format!("etcdkit snapshot verify {file_word}"),
            match rows.members.len() {
                0 | 1 => format!("etcdkit snapshot restore {file_word} --data-dir DIR"),
                _ => format!("etcdkit snapshot restore {file_word} --all-members DIR"),
            },
        ],
        warnings,
    }
}

fn warn_of_log(dead: &Dead, tail: &Tail, warnings: &mut Vec<String>) {
    let replayed = &tail.replayed;
    if tail.left_out > 0 {
        warnings.push(format!(
            "{} entries after index {} are in this member's log and not known to be committed; \
             they are left out, though clients may have been told of some: if the data \
             directories of a majority of the members can still be started, start etcd on those; \
             if not, save with --include-uncommitted from the one whose log goes furthest, which \
             loses nothing that was acknowledged if it is one of a majority",
            tail.left_out, replayed.index
        ));
    } else if tail.uncommitted > 0 {
        warnings.push(format!(
            "{} entries up to index {} are included as asked, which this member was not told to be \
             committed: no other member may go on from its own log",
            tail.uncommitted, replayed.index
        ));
    } else if tail.reach.counted != Counted::SoleVoter {
        warnings.push(format!(
            "this member is not the only voter: others may hold entries after index {}",
            replayed.index
        ));
    }
    if replayed.from_index > dead.log.last_index() {
        warnings.push(format!(
            "the database stands at index {}, and its log ends at {}: it is saved as it is",
            replayed.from_index,
            dead.log.last_index()
        ));
    }
    warnings.extend(dead.torn());
}

fn warn_of_entries(tail: &Tail, warnings: &mut Vec<String>) {
    let all = &tail.replayed.warnings;
    let first = |is: fn(&Warning) -> bool| {
        let mut of = all.iter().filter(move |(_, warning)| is(warning));
        of.next().map(|(index, _)| (*index, of.count().saturating_add(1)))
    };
    if let Some((index, count)) = first(|warning| *warning == Warning::PasswordHashed) {
        warnings.push(format!(
            "{count} passwords stood in the log in the clear (entry {index} first), as etcd 3.4 \
             writes them; they were hashed anew and are the same passwords"
        ));
    }
    if let Some((index, count)) = first(|warning| *warning == Warning::V2Store) {
        warnings.push(format!(
            "{count} entries (entry {index} first) changed the v2 store, which no snapshot holds"
        ));
    }
    if let Some((index, count)) = first(|warning| matches!(warning, Warning::MemberUnknown(_))) {
        warnings.push(format!(
            "{count} entries (entry {index} first) name members that the database does not have"
        ));
    }
}

/// What is wrong with the data although it was saved whole.
fn findings_to_tell(rows: &Rows) -> Vec<String> {
    let corrupt = rows.alarms.iter().filter(|alarm| alarm.kind == AlarmKind::Corrupt);
    let tell = |alarm: &crate::etcd::rows::Alarm| {
        format!("a CORRUPT alarm of member {} stands in the data", alarm.member_id)
    };
    corrupt.map(tell).collect()
}

fn record(options: &Options, examined: &Examined, report: &mut Report, progress: &dyn Progress) {
    let record = audit::Record {
        operation: "snapshot save",
        result: audit::OK.into(),
        before: json!({
            "data_dir": report.data_dir,
            "database_sha256": examined.sha256,
            "log_index": report.log.index,
        }),
        after: json!({ "file": report.file, "sha256": report.sha256, "revision": report.revision }),
        equivalent: report.equivalent.clone(),
        warnings: report.warnings.clone(),
    };
    let mut late = Vec::new();
    rewrite::recorded(&options.audit_log, &record, &mut late, progress);
    report.warnings.extend(late);
}

impl Report {
    /// Returns the report as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        json!(self)
    }
}
