//! Databases written anew: what compacting and sealing a snapshot and an offline defrag share.
//!
//! The source is checked whole, page by page and row by row, before or while it is copied, and
//! nothing gets a name unless it was whole. What was written is walked again and must hold the
//! rows that were written.

mod beside;
pub mod compact;
pub mod seal;

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::examine::{Examined, Seal};
use super::new_file::NewFile;
use super::{Error, ExitCode, Progress, audit, shell_word, stage, status};
use crate::bolt::walk::walk;
use crate::bolt::{At, File, Source, Visit};
use crate::etcd::hash::BackendHash;
use crate::format::finding::Code;
use crate::format::sidecar::Sidecar;
use crate::format::{hex, u64_of};

/// Shows everything to two visitors.
#[derive(Debug)]
pub(super) struct Both<A, B>(pub(super) A, pub(super) B);

impl<A: Visit, B: Visit> Visit for Both<A, B> {
    fn bucket(&mut self, at: &At<'_>, sequence: u64) {
        self.0.bucket(at, sequence);
        self.1.bucket(at, sequence);
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.0.entry(at, key, value);
        self.1.entry(at, key, value);
    }

    fn page(&mut self, entered: u64) -> bool {
        // Both hear of it, also when one has had enough.
        let goes_on = self.0.page(entered);
        self.1.page(entered) && goes_on
    }
}

/// Shows progress of a walk, and ends it when told to.
pub(super) struct Shown<'a, V> {
    pub(super) visitor: V,
    pub(super) progress: &'a dyn Progress,
    pub(super) page_bytes: u64,
}

impl<V: Visit> Visit for Shown<'_, V> {
    fn bucket(&mut self, at: &At<'_>, sequence: u64) {
        self.visitor.bucket(at, sequence);
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.visitor.entry(at, key, value);
    }

    fn page(&mut self, entered: u64) -> bool {
        if entered.is_multiple_of(256) {
            self.progress.advance(entered.saturating_mul(self.page_bytes));
        }
        let goes_on = self.visitor.page(entered);
        goes_on && !self.progress.stopped()
    }
}

/// Walks what was written and holds it against what was to be written.
///
/// # Errors
/// It differs, which is a bug of ours or of the machine ([`ExitCode::Internal`]).
pub(super) fn read_back(
    out: &fs::File,
    wanted: &BackendHash,
    progress: &dyn Progress,
) -> Result<(), Error> {
    let wrong = |what: String| {
        let message = format!("what was written reads back wrong: {what}; nothing was changed");
        Error::new(ExitCode::Internal, message)
    };
    let source = out.try_clone().and_then(Source::from_file);
    let source = source.map_err(|error| wrong(error.to_string()))?;
    let file = File::from_source(source).map_err(|error| wrong(error.to_string()))?;
    let mut shown = Shown {
        visitor: BackendHash::default(),
        progress,
        page_bytes: u64::from(file.page_size()),
    };
    let walked = walk(&file, &mut shown);
    if walked.stopped {
        return Err(Error::interrupted());
    }
    if let Some(first) = walked.findings.kept().first() {
        return Err(wrong(first.detail.clone()));
    }
    let read = shown.visitor;
    if (read.hash(), read.rows()) != (wanted.hash(), wanted.rows()) {
        return Err(wrong(format!("{} rows, of {}", read.rows(), wanted.rows())));
    }
    Ok(())
}

/// What of a file is accepted although it is not as it was saved.
#[derive(Clone, Copy, Debug)]
struct Accepted<'a> {
    /// SHA-256 of a file whose trailer, or freelist, may be wrong.
    damaged: Option<&'a str>,
    /// There may be no trailer.
    no_trailer: bool,
    /// The new file is built from the rows, so that a wrong freelist does not go into it.
    is_rebuilt: bool,
}

/// Refuses a file that is damaged; of one with a wrong trailer or freelist, its hash must be
/// accepted by name. Returns what should be read aloud.
///
/// # Errors
/// Damage ([`ExitCode::Damage`]), or what was accepted is not the file's state
/// ([`ExitCode::Refused`]).
fn gate(examined: &Examined, accepted: Accepted<'_>) -> Result<Vec<String>, Error> {
    if let Some(accepted) = accepted.damaged
        && !accepted.eq_ignore_ascii_case(&examined.sha256)
    {
        let message = format!("--accept-damaged is not the sha256 of {}", examined.path.display());
        return Err(Error::refused(message).hint(format!(
            "that is {}: accept it only after reading the findings",
            examined.sha256
        )));
    }
    let other_damage = examined.findings.errors().any(|code| code != Code::SealBroken);
    let pages_damaged =
        examined.pages_damaged() && !(accepted.is_rebuilt && examined.tree_is_whole());
    if other_damage || pages_damaged || examined.records_damaged() {
        return Err(status::damaged(examined));
    }
    let mut warnings = Vec::new();
    if examined.pages_damaged() {
        if accepted.damaged.is_none() {
            return Err(status::damaged(examined).hint(format!(
                "every row can be read, and the new file needs no freelist: --accept-damaged={}",
                examined.sha256
            )));
        }
        warnings.push(format!(
            "THE FREELIST IS WRONG AND WAS ACCEPTED: every row of {} can be read, and the new file \
             has no freelist; find out what wrote it",
            examined.path.display()
        ));
    }
    match &examined.seal {
        Seal::Good => {}
        Seal::Missing if accepted.no_trailer => {
            warnings
                .push("no sha256 trailer: a full check of pages and rows stood in for it".into());
        }
        Seal::Missing => {
            let message = format!("{} has no sha256 trailer", examined.path.display());
            return Err(Error::refused(message)
                .hint("use the file that snapshot save wrote, unchanged")
                .hint("or --skip-hash-check: all pages and rows were read and are whole"));
        }
        Seal::Broken { .. } if accepted.damaged.is_some() => warnings.push(format!(
            "THE TRAILER IS WRONG AND WAS ACCEPTED: the bytes of {} are not the saved ones, though \
             every page and row can be read",
            examined.path.display()
        )),
        Seal::Broken { .. } => {
            return Err(status::damaged(examined)
                .hint("use another backup if there is one: some byte in this one is wrong"));
        }
    }
    Ok(warnings)
}

/// Counts what the log beside a file holds beyond it, unless the file is a saved snapshot, which
/// has no log; `None` where none was read.
///
/// # Errors
/// See [`beside::check_log`].
fn log_of(
    examined: &Examined,
    output: &Path,
    without_log: bool,
    warnings: &mut Vec<String>,
    progress: &dyn Progress,
) -> Result<Option<u64>, Error> {
    match &examined.file {
        Some(file) if examined.seal != Seal::Good => {
            let path = &examined.path;
            beside::check_log(path, file, output, without_log, warnings, progress)
        }
        _ => Ok(None),
    }
}

/// The note beside a snapshot, if it is of this snapshot; else why not.
fn note_of(snapshot: &Path, sha256: &[&str]) -> Result<Option<Sidecar>, String> {
    const NOTE_BYTES_MAX: usize = 1 << 20;
    let path = note_path(snapshot);
    // Not of a pipe, which may never end, nor of a device, which never does.
    let bytes = match Source::open(&path).and_then(|note| note.read_up_to(0, NOTE_BYTES_MAX)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("{} cannot be read: {error}", path.display())),
    };
    let note = Sidecar::decode(&bytes).map_err(|why| format!("{}: {why}", path.display()))?;
    if !sha256.iter().any(|sha256| note.sha256.eq_ignore_ascii_case(sha256)) {
        return Err(format!("{} is the note of another file", path.display()));
    }
    Ok(Some(note))
}

/// The note for a snapshot that was made out of another, from the other's note.
fn adapted_note(
    snapshot: &Path,
    known: &[&str],
    sha256: &str,
    size_bytes: u64,
    adapt: impl FnOnce(&mut Sidecar),
) -> Result<Option<Sidecar>, String> {
    let Some(mut note) = note_of(snapshot, known)? else { return Ok(None) };
    sha256.clone_into(&mut note.sha256);
    note.size_bytes = size_bytes;
    adapt(&mut note);
    Ok(Some(note))
}

/// Refuses an output of which the file or the note is there already, or no folder; returns its
/// absolute path.
fn check_output(output: &Path, dry_run: bool) -> Result<PathBuf, Error> {
    let target = stage::absolute(output)?;
    if let Some(folder) = target.parent()
        && !folder.exists()
    {
        let folder = folder.display().to_string();
        let message = format!("there is no folder {folder} to write into; nothing was changed");
        return Err(Error::new(ExitCode::NotFound, message)
            .hint(format!("mkdir -p {}", shell_word(&folder))));
    }
    if !dry_run {
        let _ = NewFile::clear_dead_note(output, &note_path(output));
    }
    NewFile::check(&note_path(output))?;
    NewFile::check(output)
}

/// What to do with a new snapshot.
fn next(output: &Path) -> Vec<String> {
    let output = shell_word(&output.display().to_string());
    vec![
        format!("etcdkit snapshot verify {output}"),
        format!("etcdkit snapshot restore {output} --data-dir DIR"),
    ]
}

/// Says aloud what should be read.
pub(super) fn tell(warnings: &[String], progress: &dyn Progress) {
    for warning in warnings {
        progress.note(&format!("warning: {warning}"));
    }
}

fn note_path(snapshot: &Path) -> PathBuf {
    let mut name = snapshot.as_os_str().to_owned();
    name.push(".json");
    name.into()
}

/// Writes the note, and gives both their names; returns what failed after that.
fn publish(file: NewFile, target: &Path, note: Option<&Sidecar>) -> Result<Vec<String>, Error> {
    use std::io::Write;
    let Some(note) = note else { return file.publish() };
    let path = note_path(target);
    let bytes = note.encode().map_err(|why| Error::new(ExitCode::Failed, why))?;
    let mut beside = NewFile::create(&path)?;
    beside.out().write_all(&bytes).map_err(|error| Error::io(&error, "write", &path))?;
    file.publish_with(Some(beside))
}

/// The trailer of a written database, and the hash of the file with it.
#[derive(Clone, Debug)]
struct Sealed {
    trailer: [u8; 32],
    sha256: String,
}

/// Sums the first bytes of a file.
fn sum(file: &fs::File, bytes: u64, progress: &dyn Progress) -> Result<Sealed, Error> {
    let failed = |error| Error::new(ExitCode::Failed, format!("cannot read back: {error}"));
    let source = file.try_clone().and_then(Source::from_file).map_err(failed)?;
    let (mut hasher, mut at) = (Sha256::new(), 0);
    let mut piece = vec![0; 256 << 10];
    while at < bytes {
        let len = usize::try_from(bytes - at).unwrap_or(piece.len()).min(piece.len());
        let piece = &mut piece[..len];
        source.read_at(at, piece).map_err(failed)?;
        hasher.update(&*piece);
        at += u64_of(len);
        if progress.stopped() {
            return Err(Error::interrupted());
        }
    }
    let trailer: [u8; 32] = hasher.clone().finalize().into();
    hasher.update(trailer);
    Ok(Sealed { trailer, sha256: hex(&hasher.finalize()) })
}

/// Walks a written database and sums it, both at the same time.
fn read_back_and_sum(
    out: &fs::File,
    bytes: u64,
    wanted: &BackendHash,
    progress: &dyn Progress,
) -> Result<Sealed, Error> {
    let (sealed, read) = std::thread::scope(|scope| {
        let summing = std::thread::Builder::new().spawn_scoped(scope, || sum(out, bytes, progress));
        let read = read_back(out, wanted, progress);
        let sealed = match summing {
            // A panic in there is a bug of ours and goes on as one.
            Ok(summing) => summing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => sum(out, bytes, progress),
        };
        (sealed, read)
    });
    read?;
    sealed
}

/// Records a change; a record that cannot be written is a warning. Says all warnings aloud.
pub(super) fn recorded(
    log: &Path,
    record: &audit::Record,
    warnings: &mut Vec<String>,
    progress: &dyn Progress,
) {
    if let Err(error) = audit::append(log, record) {
        warnings
            .push(format!("the audit record could not be written to {}: {error}", log.display()));
    }
    tell(warnings, progress);
}
