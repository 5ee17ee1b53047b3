//! `snapshot compact`: the snapshot that a cluster would give after a compaction at a revision.
//!
//! Of each key the newest record at or before the revision stays if the key lives there; so does a
//! tombstone at the very revision, and every record above it. Both compaction revisions of bucket
//! `meta` become the revision. Everything else is copied as it is, into packed pages.

use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;

use super::{Accepted, Both, Shown};
use crate::bolt::builder::{self, Builder};
use crate::bolt::overlay::{Edits, Merge};
use crate::bolt::rebuild::Rebuild;
use crate::bolt::walk::{Walk, walk};
use crate::bolt::{At, File, Source, Visit};
use crate::etcd::hash::{BackendHash, Compaction, NewestRows, Newests};
use crate::etcd::revision::{Revision, RevisionKey};
use crate::etcd::schema;
use crate::format::finding::Finding;
use crate::ops::examine::{Level, Seal, examine};
use crate::ops::new_file::NewFile;
use crate::ops::spool::{Nowhere, spool};
use crate::ops::{Error, ExitCode, Progress, audit, hashkv, shell_line, stage, status};

/// What is to be compacted.
#[derive(Clone, Debug)]
pub struct Options {
    /// The snapshot.
    pub file: PathBuf,
    /// The new snapshot.
    pub output: PathBuf,
    /// The revision.
    pub revision: i64,
    /// A wrong trailer is accepted of the file with this SHA-256.
    pub accept_damaged: Option<String>,
    /// A full check may stand in for a trailer that is not there.
    pub skip_hash_check: bool,
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
    /// The snapshot, as given.
    pub file: String,
    /// The trailer that it had: `ok`, `missing` or `broken`.
    pub trailer: &'static str,
    /// The new snapshot.
    pub output: String,
    /// Bytes of the snapshot.
    pub size_bytes_before: u64,
    /// Bytes of the new one.
    pub size_bytes: u64,
    /// Its SHA-256; `None` in a dry run.
    pub sha256: Option<String>,
    /// Revision that a server starts at, before and after.
    pub revision: i64,
    /// The compaction revision before, -1 for none.
    pub compact_revision_before: i64,
    /// The compaction revision now.
    pub compact_revision: i64,
    /// Records that were left out.
    pub records_dropped: u64,
    /// The hash that `snapshot status` prints of the new one.
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

/// Writes the compacted snapshot.
///
/// # Errors
/// A revision that is compacted or to come ([`ExitCode::Usage`]), damage ([`ExitCode::Damage`]),
/// something at the output, no trailer or a log that goes on beyond the file
/// ([`ExitCode::Refused`]), or the disk.
pub fn compact(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    if options.revision < 1 {
        let message = format!("--rev {} is no revision: the first one is 1", options.revision);
        return Err(Error::usage(message));
    }
    let target = super::check_output(&options.output, options.dry_run)?;
    let source = stage::absolute(&options.file)?;
    // Which records stay is found out while the whole file is checked.
    let (examined, newests) = std::thread::scope(|scope| {
        let finding = std::thread::Builder::new()
            .spawn_scoped(scope, || newests(&options.file, options.revision, progress));
        let examined = examine(&options.file, Level::Full, progress);
        let newests = match finding {
            // A panic in there is a bug of ours and goes on as one.
            Ok(finding) => finding.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => newests(&options.file, options.revision, progress),
        };
        (examined, newests)
    });
    let examined = examined?;
    let accepted = Accepted {
        damaged: options.accept_damaged.as_deref(),
        no_trailer: options.skip_hash_check,
        is_rebuilt: true,
    };
    let mut warnings = super::gate(&examined, accepted)?;
    let (Some(file), Some(rows)) = (&examined.file, &examined.rows) else {
        return Err(status::damaged(&examined));
    };
    let compaction = Compaction {
        finished: rows.finished_compact_revision,
        scheduled: rows.scheduled_compact_revision,
    };
    let before = compaction.revision();
    if options.revision <= before {
        return Err(hashkv::compacted(options.revision, before));
    }
    if options.revision > rows.current_revision {
        return Err(hashkv::future(options.revision, rows.current_revision));
    }
    let log = super::log_of(&examined, &target, options.without_log, &mut warnings, progress)?;
    // The check found nothing wrong, so whatever this met is something else.
    let (newests, seen) = newests.map_err(|why| Error::new(ExitCode::Failed, why))?;
    if (seen.hash(), seen.rows()) != (rows.status_hash, rows.pair_count) {
        return Err(examined.changed());
    }

    let mut new = match options.dry_run {
        true => None,
        false => Some(NewFile::create(&options.output)?),
    };
    let removed = new.iter().flat_map(NewFile::removed).map(|path| path.display().to_string());
    let removed = removed.collect();
    let write = |error: std::io::Error| Error::io(&error, "write", &options.output);
    progress.step("copy", file.meta().size_bytes());
    let copy = match &mut new {
        Some(new) => {
            let copy = spool(new.out(), |out| copy(file, options.revision, newests, out, progress));
            copy.map_err(write)?
        }
        None => copy(file, options.revision, newests, Nowhere, progress),
    };
    if copy.walked.stopped && progress.stopped() {
        return Err(Error::interrupted());
    }
    let bytes = copy.built.map_err(|error| match error {
        builder::Error::Io(error) => write(error),
        error => Error::new(ExitCode::Internal, format!("{}: {error}", options.output.display())),
    })?;
    if (copy.read.hash(), copy.read.rows()) != (rows.status_hash, rows.pair_count) {
        return Err(examined.changed());
    }
    examined.still_the_same()?;
    let mut sealed = None;
    if let Some(new) = &mut new {
        progress.step("check", bytes);
        let out = new.out();
        let sums = super::read_back_and_sum(out.file(), bytes, &copy.written, progress)?;
        out.write_all_at(&sums.trailer, bytes).map_err(write)?;
        sealed = Some(sums.sha256);
    }
    let size_bytes = bytes.saturating_add(crate::ops::digest::TRAILER_BYTES);
    let known = [examined.sha256.as_str()];
    let sha256 = sealed.as_deref().unwrap_or_default();
    let note = super::adapted_note(&options.file, &known, sha256, size_bytes, |note| {
        // They were made with another compaction revision.
        note.hashkv.clear();
    });
    let note = note.unwrap_or_else(|why| {
        warnings.push(format!("no note was written: {why}"));
        None
    });
    if let Some(new) = new {
        warnings.extend(super::publish(new, &target, note.as_ref())?);
    }
    let mut report = Report {
        version: 1,
        dry_run: options.dry_run,
        file: options.file.display().to_string(),
        trailer: status::trailer_word(&examined.seal),
        output: target.display().to_string(),
        size_bytes_before: examined.size_bytes,
        size_bytes,
        sha256: sealed,
        revision: rows.current_revision,
        compact_revision_before: before,
        compact_revision: options.revision,
        records_dropped: copy.dropped,
        status_hash: copy.written.hash(),
        log_left_out: log,
        note: note.map(|_| super::note_path(&target).display().to_string()),
        removed,
        equivalent: by_hand(options, &source, &target, examined.seal == Seal::Good),
        next: super::next(&target),
        warnings,
    };
    if options.dry_run {
        report.next.clear();
        super::tell(&report.warnings, progress);
        return Ok(report);
    }
    let record = audit::Record {
        operation: "snapshot compact",
        result: audit::OK.into(),
        before: json!({ "file": source.display().to_string(), "sha256": examined.sha256,
            "compact_revision": before, "status_hash": rows.status_hash }),
        after: json!({ "file": report.output, "sha256": report.sha256,
            "compact_revision": report.compact_revision, "status_hash": report.status_hash }),
        equivalent: report.equivalent.clone(),
        warnings: report.warnings.clone(),
    };
    super::recorded(&options.audit_log, &record, &mut report.warnings, progress);
    Ok(report)
}

/// Finds the records that stay, in a walk of its own, and the sum of the rows that it saw: it
/// counts only if that is the sum of the rows that were checked.
fn newests(
    path: &Path,
    revision: i64,
    progress: &dyn Progress,
) -> Result<(Newests, BackendHash), String> {
    let source = Source::open(path).map_err(|error| error.to_string())?;
    let file = File::from_source(source).map_err(|error| error.to_string())?;
    let visitor = Both(NewestRows::new(revision, revision), BackendHash::default());
    let mut newest = Quiet { visitor, progress };
    let walked = walk(&file, &mut newest);
    let Both(newest, seen) = newest.visitor;
    if !walked.tree_is_whole() {
        return Err("a page could not be read".into());
    }
    Ok((newest.finish().map_err(|finding: Box<Finding>| finding.detail)?, seen))
}

/// Ends a walk when told to, without showing how far it is.
struct Quiet<'a, V> {
    visitor: V,
    progress: &'a dyn Progress,
}

impl<V: Visit> Visit for Quiet<'_, V> {
    fn bucket(&mut self, at: &At<'_>, sequence: u64) {
        self.visitor.bucket(at, sequence);
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.visitor.entry(at, key, value);
    }

    fn page(&mut self, entered: u64) -> bool {
        self.visitor.page(entered) && !self.progress.stopped()
    }
}

struct Copy {
    walked: Walk,
    /// Bytes of what was built.
    built: Result<u64, builder::Error>,
    read: BackendHash,
    written: BackendHash,
    dropped: u64,
}

fn copy<W: Write + Seek>(
    file: &File,
    revision: i64,
    newests: Newests,
    out: W,
    progress: &dyn Progress,
) -> Copy {
    let mut copy = Copy {
        walked: Walk::default(),
        built: Err(builder::Error::Nesting),
        read: BackendHash::default(),
        written: BackendHash::default(),
        dropped: 0,
    };
    let builder = match Builder::new(out, file.page_size()) {
        Ok(builder) => builder,
        Err(error) => {
            copy.built = Err(error);
            return copy;
        }
    };
    let mut edits = Edits::default();
    for row in [schema::META_FINISHED_COMPACT, schema::META_SCHEDULED_COMPACT] {
        edits.put(schema::META, row, &Revision::new(revision, 0).encode());
    }
    let written = Both(BackendHash::default(), Rebuild::new(builder));
    let survivors = Survivors { revision, newests, row: 0, dropped: 0, inner: written };
    let merge = Merge::new(edits, survivors);
    let page_bytes = u64::from(file.page_size());
    let visitor = Both(BackendHash::default(), merge);
    let mut shown = Shown { visitor, progress, page_bytes };
    copy.walked = walk(file, &mut shown);
    let Both(read, merge) = shown.visitor;
    let (survivors, _) = merge.finish();
    let Both(written, rebuild) = survivors.inner;
    (copy.read, copy.written, copy.dropped) = (read, written, survivors.dropped);
    copy.built =
        rebuild.finish(file.meta().txid.saturating_add(1)).map(|(built, _)| built.size_bytes);
    copy
}

/// Hands on what a compaction leaves.
struct Survivors<V> {
    revision: i64,
    newests: Newests,
    row: u32,
    dropped: u64,
    inner: V,
}

impl<V: Visit> Visit for Survivors<V> {
    fn bucket(&mut self, at: &At<'_>, sequence: u64) {
        self.inner.bucket(at, sequence);
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        let is_record = matches!(at.bucket, [name] if name == schema::KEY);
        let main = if is_record {
            RevisionKey::decode(key).map(|key| key.revision.main)
        } else {
            Ok(i64::MAX)
        };
        if main.is_ok_and(|main| main <= self.revision) {
            let row = self.row;
            self.row += 1;
            if !self.newests.rows.contains(row) && !self.newests.tombstones.contains(row) {
                self.dropped += 1;
                return;
            }
        }
        self.inner.entry(at, key, value);
    }

    fn page(&mut self, entered: u64) -> bool {
        self.inner.page(entered)
    }
}

/// Ordinary commands that leave the same keys and history, and a comment on what they change.
fn by_hand(options: &Options, source: &Path, target: &Path, is_sealed: bool) -> Vec<String> {
    let (source, target) = (source.display().to_string(), target.display().to_string());
    let line = |words: &[&str]| {
        shell_line(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    };
    let mut restore = line(&["etcdutl", "snapshot", "restore", &source]);
    if !is_sealed {
        restore.push_str(" --skip-hash-check");
    }
    restore.push_str(" --data-dir compact.etcd");
    vec![
        restore,
        "etcd --data-dir compact.etcd  # and in another terminal:".into(),
        format!("etcdctl compaction {} --physical", options.revision),
        "etcdctl defrag".into(),
        line(&["etcdctl", "snapshot", "save", &target]),
        "# the same keys and revisions; but with that server's members, cluster id, raft index and \
         cluster version, where etcdkit keeps the snapshot's"
            .into(),
    ]
}
