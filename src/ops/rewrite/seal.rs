//! `snapshot seal`: a database that was checked whole, with a fresh trailer.
//!
//! For a db file that was copied from a data directory, a snapshot whose trailer was lost, or one
//! that a tool wrote to. What is sealed is proven to be readable, not to be what was saved.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;

use super::Accepted;
use crate::bolt::File;
use crate::etcd::hash::BackendHash;
use crate::format::finding::Code;
use crate::format::meta::Meta;
use crate::ops::disk::OutFile;
use crate::ops::examine::{Level, examine_and_copy};
use crate::ops::new_file::NewFile;
use crate::ops::{Error, Progress, audit, shell_line, stage, status};

/// What is to be sealed.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file.
    pub file: PathBuf,
    /// The new snapshot.
    pub output: PathBuf,
    /// A wrong trailer is accepted of the file with this SHA-256.
    pub accept_damaged: Option<String>,
    /// What only the log beside a member's db file holds may be left out.
    pub without_log: bool,
    /// Find out and report, write nothing.
    pub dry_run: bool,
    /// Where the record goes.
    pub audit_log: PathBuf,
}

/// What was done; `docs/JSON.md` describes it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this shape.
    pub version: u32,
    /// Nothing was written.
    pub dry_run: bool,
    /// The file, as given.
    pub file: String,
    /// The trailer that it had: `ok`, `missing` or `broken`.
    pub trailer: &'static str,
    /// The new snapshot.
    pub output: String,
    /// Bytes of it.
    pub size_bytes: u64,
    /// Its SHA-256; `None` in a dry run.
    pub sha256: Option<String>,
    /// Revision that a server starts at.
    pub revision: i64,
    /// The hash that `snapshot status` prints of it.
    pub status_hash: u32,
    /// Entries of the log beside the file that are not in it; `None` where no log was read.
    pub log_left_out: Option<u64>,
    /// Its note, where one was written.
    pub note: Option<String>,
    /// What killed runs had left and is gone now.
    pub removed: Vec<String>,
    /// Ordinary commands that do the same.
    pub equivalent: Vec<String>,
    /// What to do next; nothing in a dry run.
    pub next: Vec<String>,
    /// What should be read.
    pub warnings: Vec<String>,
}

/// Checks a database whole and writes it with a fresh trailer.
///
/// # Errors
/// Damage or a wrong trailer ([`super::ExitCode::Damage`]), something at the output or a log that
/// goes on beyond the file ([`super::ExitCode::Refused`]), or the disk.
pub fn seal(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    let target = super::check_output(&options.output, options.dry_run)?;
    let source = stage::absolute(&options.file)?;
    let mut new = match options.dry_run {
        true => None,
        false => Some(NewFile::create(&options.output)?),
    };
    let removed = new.iter().flat_map(NewFile::removed).map(|path| path.display().to_string());
    let removed = removed.collect();
    let copy = new.as_mut().map(|new| &*new.out());
    let examined = examine_and_copy(&options.file, Level::Full, copy, progress)?;
    let damaged = options.accept_damaged.as_deref();
    let accepted = Accepted { damaged, no_trailer: true, is_rebuilt: false };
    let mut warnings = super::gate(&examined, accepted)?;
    let (Some(file), Some(rows)) = (&examined.file, &examined.rows) else {
        return Err(status::damaged(&examined));
    };
    let log = super::log_of(&examined, &target, options.without_log, &mut warnings, progress)?;
    if log.is_none() && examined.findings.has(Code::FileLiveCopy) {
        warnings.push(
            "this is a member's db file: what its log holds beyond it is not in the snapshot"
                .into(),
        );
    }
    let bytes = file.meta().size_bytes();
    let size_bytes = bytes.saturating_add(crate::ops::digest::TRAILER_BYTES);
    let mut sealed = None;
    if let Some(new) = &mut new {
        let failed = |error| Error::io(&error, "write", &options.output);
        let out = new.out();
        if !is_one_tree(file) {
            one_tree(file, out).map_err(failed)?;
        }
        progress.step("check", bytes);
        // The copy is the file's first bytes, so its rows are those that were surveyed.
        let wanted = BackendHash::known(rows.status_hash, rows.pair_count);
        let sums = super::read_back_and_sum(out.file(), bytes, &wanted, progress)?;
        out.write_all_at(&sums.trailer, bytes).map_err(failed)?;
        sealed = Some(sums.sha256);
    }
    let known = [Some(examined.sha256.as_str()), sealed.as_deref()];
    let known: Vec<&str> = known.into_iter().flatten().collect();
    let sha256 = sealed.as_deref().unwrap_or_default();
    let note = super::adapted_note(&options.file, &known, sha256, size_bytes, |_| {});
    let note = note.unwrap_or_else(|why| {
        warnings.push(format!("no note was written: {why}"));
        None
    });
    examined.still_the_same()?;
    if let Some(new) = new {
        warnings.extend(super::publish(new, &target, note.as_ref())?);
    }
    let mut report = Report {
        version: 1,
        dry_run: options.dry_run,
        file: options.file.display().to_string(),
        trailer: status::trailer_word(&examined.seal),
        output: target.display().to_string(),
        size_bytes,
        sha256: sealed,
        revision: rows.current_revision,
        status_hash: rows.status_hash,
        log_left_out: log,
        note: note.map(|_| super::note_path(&target).display().to_string()),
        removed,
        equivalent: by_hand(&source, &target, file),
        next: super::next(&target),
        warnings,
    };
    if options.dry_run {
        report.next.clear();
        super::tell(&report.warnings, progress);
        return Ok(report);
    }
    let record = audit::Record {
        operation: "snapshot seal",
        result: audit::OK.into(),
        before: json!({ "file": source.display().to_string(), "sha256": examined.sha256,
            "trailer": report.trailer }),
        after: json!({ "file": report.output, "sha256": report.sha256,
            "status_hash": report.status_hash }),
        equivalent: report.equivalent.clone(),
        warnings: report.warnings.clone(),
    };
    super::recorded(&options.audit_log, &record, &mut report.warnings, progress);
    Ok(report)
}

/// Tells whether both metas name the same tree, as a saved snapshot's do.
fn is_one_tree(file: &File) -> bool {
    let tree = |meta: &Meta| (meta.root, meta.freelist, meta.high_water_mark);
    match file.metas() {
        [Ok(first), Ok(second)] => tree(first) == tree(second),
        _ => false,
    }
}

/// Makes both metas name the tree that was checked. Those of a live database name the trees of its
/// last two transactions.
fn one_tree(file: &File, out: &OutFile) -> io::Result<()> {
    let newer = *file.meta();
    let older = Meta { txid: newer.txid.saturating_sub(1), ..newer };
    for (id, meta) in [(0, newer), (1, older)] {
        let mut page = meta.encode(id);
        let page_bytes = u64::from(file.page_size());
        page.resize(usize::try_from(page_bytes).unwrap_or(0), 0);
        out.write_all_at(&page, id * page_bytes)?;
    }
    Ok(())
}

/// The ordinary commands: the database's own bytes, then their sum in binary.
fn by_hand(source: &Path, target: &Path, file: &File) -> Vec<String> {
    let line = |words: &[&str]| {
        shell_line(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    };
    let bytes = file.meta().size_bytes().to_string();
    let (source, target) = (source.display().to_string(), target.display().to_string());
    let head = line(&["head", "-c", &bytes, &source]);
    let to = line(&[&target]);
    let mut lines = vec![
        format!("{head} > {to}"),
        format!("{head} | sha256sum | cut -c 1-64 | xxd -r -p >> {to}"),
    ];
    if !is_one_tree(file) {
        lines.push("# the same rows; but etcdkit makes both meta pages name the last tree".into());
    }
    lines
}
