//! `snapshot seal`: a database that was checked whole, with a fresh trailer.
//!
//! For a db file that was copied from a data directory, a snapshot whose trailer was lost, or one
//! that a tool wrote to. What is sealed is proven to be readable, not to be what was saved.

use std::io;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;

use crate::bolt::File;
use crate::etcd::hash::BackendHash;
use crate::format::meta::Meta;
use crate::ops::disk::OutFile;
use crate::ops::examine::{Level, examine_and_copy};
use crate::ops::new_file::NewFile;
use crate::ops::{Error, Progress, audit, shell_line, status};

/// What is to be sealed.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file.
    pub file: PathBuf,
    /// The new snapshot.
    pub output: PathBuf,
    /// A wrong trailer is accepted of the file with this SHA-256.
    pub accept_damaged: Option<String>,
    /// Where the record goes.
    pub audit_log: PathBuf,
}

/// What was done; `docs/JSON.md` describes it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this shape.
    pub version: u32,
    /// The file, as given.
    pub file: String,
    /// The trailer that it had: `ok`, `missing` or `broken`.
    pub trailer: &'static str,
    /// The new snapshot.
    pub output: String,
    /// Bytes of it.
    pub size_bytes: u64,
    /// Its SHA-256.
    pub sha256: String,
    /// Revision that a server starts at.
    pub revision: i64,
    /// The hash that `snapshot status` prints of it.
    pub status_hash: u32,
    /// Its note, where one was written.
    pub note: Option<String>,
    /// What killed runs had left and is gone now.
    pub removed: Vec<String>,
    /// Ordinary commands that do the same.
    pub equivalent: Vec<String>,
    /// What should be read.
    pub warnings: Vec<String>,
}

/// Checks a database whole and writes it with a fresh trailer.
///
/// # Errors
/// Damage or a wrong trailer ([`super::ExitCode::Damage`]), something at the output
/// ([`super::ExitCode::Refused`]), or the disk.
pub fn seal(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    super::check_output(&options.output)?;
    let mut new = NewFile::create(&options.output)?;
    let removed = new.removed().iter().map(|path| path.display().to_string()).collect();
    let examined = examine_and_copy(&options.file, Level::Full, Some(new.out()), progress)?;
    let mut warnings = super::gate(&examined, options.accept_damaged.as_deref())?;
    let (Some(file), Some(rows)) = (&examined.file, &examined.rows) else {
        return Err(status::damaged(&examined));
    };
    let bytes = file.meta().size_bytes();
    let out = new.out();
    one_tree(file, out).map_err(|error| Error::io(&error, "write", &options.output))?;
    progress.step("check", bytes);
    // The copy is the file's first bytes, so its rows are those that were surveyed.
    let wanted = BackendHash::known(rows.status_hash, rows.pair_count);
    let sealed = super::read_back_and_sum(out.file(), bytes, &wanted, progress)?;
    out.write_all_at(&sealed.trailer, bytes)
        .map_err(|error| Error::io(&error, "write", &options.output))?;
    let known = [examined.sha256.as_str(), sealed.sha256.as_str()];
    let size_bytes = bytes.saturating_add(crate::ops::digest::TRAILER_BYTES);
    let note = super::adapted_note(&options.file, &known, &sealed.sha256, size_bytes, |_| {});
    let note = note.unwrap_or_else(|why| {
        warnings.push(format!("no note was written: {why}"));
        None
    });
    if examined.findings.has(crate::format::finding::Code::FileLiveCopy) {
        warnings.push(
            "this is a member's db file: what its log holds beyond it is not in the snapshot"
                .into(),
        );
    }
    examined.still_the_same()?;
    let target = new.target().to_owned();
    warnings.extend(super::publish(new, &target, note.as_ref())?);
    let mut report = Report {
        version: 1,
        file: options.file.display().to_string(),
        trailer: status::trailer_word(&examined.seal),
        output: target.display().to_string(),
        size_bytes,
        sha256: sealed.sha256,
        revision: rows.current_revision,
        status_hash: rows.status_hash,
        note: note.map(|_| super::note_path(&target).display().to_string()),
        removed,
        equivalent: by_hand(&options.file, &target, bytes),
        warnings,
    };
    let record = audit::Record {
        operation: "snapshot seal",
        before: json!({ "file": report.file, "sha256": examined.sha256,
            "trailer": report.trailer }),
        after: json!({ "file": report.output, "sha256": report.sha256,
            "status_hash": report.status_hash }),
        equivalent: report.equivalent.clone(),
        warnings: report.warnings.clone(),
    };
    super::recorded(&options.audit_log, &record, &mut report.warnings);
    Ok(report)
}

/// Makes both metas name the tree that was checked, as a saved snapshot's do. Those of a live
/// database name the trees of its last two transactions.
fn one_tree(file: &File, out: &OutFile) -> io::Result<()> {
    let tree = |meta: &Meta| (meta.root, meta.freelist, meta.high_water_mark);
    if let [Ok(first), Ok(second)] = file.metas()
        && tree(first) == tree(second)
    {
        return Ok(());
    }
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
fn by_hand(file: &Path, target: &Path, bytes: u64) -> Vec<String> {
    let line = |words: &[&str]| {
        shell_line(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    };
    let (file, target) = (file.display().to_string(), target.display().to_string());
    let head = line(&["head", "-c", &bytes.to_string(), &file]);
    let to = line(&[&target]);
    vec![format!("{head} > {to}"), format!("{head} | sha256sum | cut -c 1-64 | xxd -r -p >> {to}")]
}
