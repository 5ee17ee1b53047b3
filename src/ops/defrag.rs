//! `defrag --data-dir`: the database of a stopped member, packed into the pages that it needs.
//!
//! 1. The db's lock is held for the whole time, exclusively, as a running etcd would; what is in
//!    use is named at once.
//! 2. Every page and row is checked while it is copied, and what was written is walked again. If
//!    anything is wrong, nothing was changed.
//! 3. The new file is `db.tmp.etcdkit-XXXXXX` beside the old one, a name that etcd up to 3.6 clears
//!    at its start if we are killed. It takes the old one's place in one step, has its owner,
//!    group and mode, and is synced before.
//! 4. A server that began to start meanwhile has the old file open and waits for its lock; its
//!    writes would be lost. So old and new change places, and if anybody has the old file open
//!    then, they change back.

use std::fs::{self, File as OsFile};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;

use super::disk::{self, OutFile};
use super::rewrite::{self, Both, Shown};
use super::spool::{Nowhere, Spool, spool};
use super::{Error, ExitCode, Progress, audit, holder, shell_word, stage};
use crate::bolt::builder::{self, Builder};
use crate::bolt::disk::Ownership;
use crate::bolt::orphan;
use crate::bolt::rebuild::Rebuild;
use crate::bolt::walk::{Walk, walk};
use crate::bolt::{self, File, Source};
use crate::etcd::hash::BackendHash;
use crate::etcd::survey::{Report as Rows, Survey};
use crate::format::finding::{Code, Finding, Severity};

/// Start of the names of unfinished copies: etcd's own, and ours.
const LEFTOVER: &str = "db.tmp";
const PREFIX: &str = "db.tmp.etcdkit-";

/// What is to be defragmented.
#[derive(Clone, Debug)]
pub struct Options {
    /// The data directory.
    pub data_dir: PathBuf,
    /// Find out and report, change nothing.
    pub dry_run: bool,
    /// Where the record goes.
    pub audit_log: PathBuf,
}

/// Figures of a database file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes that etcd calls the database's size.
    pub db_bytes: u64,
    /// Bytes of pages that hold something.
    pub in_use_bytes: u64,
}

/// What was done; `docs/JSON.md` describes it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this shape.
    pub version: u32,
    /// Nothing was changed.
    pub dry_run: bool,
    /// Absolute path of the data directory.
    pub data_dir: String,
    /// The database before.
    pub before: Size,
    /// The database after.
    pub after: Size,
    /// Rows of all buckets.
    pub rows: u64,
    /// The hash that `snapshot status` prints, before and after.
    pub status_hash: u32,
    /// What killed runs had left, removed unless this is a dry run.
    pub leftovers: Vec<String>,
    /// Ordinary commands that do the same.
    pub equivalent: Vec<String>,
    /// What should be read.
    pub warnings: Vec<String>,
}

/// Defragments the database of a stopped member.
///
/// # Errors
/// The database is in use ([`ExitCode::InUse`]) or damaged ([`ExitCode::Damage`]), there is none
/// ([`ExitCode::NotFound`]), or the disk fails or is too small ([`ExitCode::Failed`]).
pub fn defrag(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    let mut report = run(&options.data_dir, options.dry_run, progress)?;
    if options.dry_run {
        return Ok(report);
    }
    let record = audit::Record {
        operation: "defrag",
        result: audit::OK.into(),
        before: json!({ "data_dir": report.data_dir, "size": report.before,
            "status_hash": report.status_hash, "leftovers": report.leftovers }),
        after: json!({ "data_dir": report.data_dir, "size": report.after,
            "status_hash": report.status_hash }),
        equivalent: report.equivalent.clone(),
        warnings: report.warnings.clone(),
    };
    rewrite::recorded(&options.audit_log, &record, &mut report.warnings, progress);
    Ok(report)
}

/// Does it, and leaves the record to who has more to record.
///
/// # Errors
/// Those of [`defrag`].
pub(super) fn run(
    data_dir: &Path,
    dry_run: bool,
    progress: &dyn Progress,
) -> Result<Report, Error> {
    let data_dir = stage::absolute(data_dir)?;
    let snap = data_dir.join("member").join("snap");
    let database = snap.join("db");
    let read = |error: io::Error| Error::io(&error, "read", &database);
    let there = fs::symlink_metadata(&database).map_err(read)?;
    if !there.is_file() {
        let message = format!("{} is not a regular file", database.display());
        return Err(Error::refused(message).hint("give the data directory that it belongs to"));
    }
    if let Some(who) = holder::of_member_dir(&data_dir.join("member")) {
        return Err(in_use(&data_dir, &who));
    }
    let source = Source::open(&database).map_err(read)?;
    let Some(open) = source.file() else { return Err(Error::interrupted()) };
    holder::own(open, &database)?;
    let old = open.try_clone().map_err(read)?;
    if let Some(who) = holder::with_open(&old) {
        return Err(in_use(&data_dir, &who));
    }
    let file = File::from_source(source).map_err(|error| match error {
        bolt::Error::Io(error) => read(error),
        error => damaged(&database, error.to_string(), Vec::new()),
    })?;
    let meta = old.metadata().map_err(read)?;
    let leftovers = leftovers(&snap).map_err(|error| Error::io(&error, "list", &snap))?;
    let mut report = Report {
        version: 1,
        dry_run,
        data_dir: data_dir.display().to_string(),
        before: Size {
            file_bytes: meta.len(),
            db_bytes: file.meta().size_bytes(),
            in_use_bytes: 0,
        },
        after: Size { file_bytes: 0, db_bytes: 0, in_use_bytes: 0 },
        rows: 0,
        status_hash: 0,
        leftovers: leftovers.iter().map(|path| path.display().to_string()).collect(),
        equivalent: vec![format!(
            "etcdutl defrag --data-dir {}",
            shell_word(&data_dir.display().to_string())
        )],
        warnings: Vec::new(),
    };
    if dry_run {
        progress.step("check", file.meta().size_bytes());
        let copied = copy(&file, Nowhere, progress);
        finish(&mut report, &file, &database, copied, progress)?;
        rewrite::tell(&report.warnings, progress);
        return Ok(report);
    }
    let modified = fs::metadata(&snap).and_then(|meta| meta.modified());
    let packed = pack(&mut report, &database, &old, &file, progress);
    if let (Err(_), Ok(modified)) = (&packed, modified) {
        // Nothing was done in there, so it says so.
        let _ = OsFile::open(&snap).and_then(|snap| snap.set_modified(modified));
    }
    packed?;
    for path in &leftovers {
        if let Err(error) = disk::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            report.warnings.push(format!("{} cannot be removed: {error}", path.display()));
        }
    }
    disk::sync_dir(&snap).map_err(|error| Error::io(&error, "sync", &snap))?;
    Ok(report)
}

/// Writes the new file, checks it and puts it in the old one's place.
fn pack(
    report: &mut Report,
    database: &Path,
    old: &OsFile,
    file: &File,
    progress: &dyn Progress,
) -> Result<(), Error> {
    let snap = database.parent().unwrap_or(Path::new("/"));
    let meta = old.metadata().map_err(|error| Error::io(&error, "look at", database))?;
    check_room(snap, file, report, progress)?;
    let failed = |error: io::Error| Error::io(&error, "write into", snap);
    let made = tempfile::Builder::new().prefix(PREFIX).tempfile_in(snap).map_err(failed)?;
    let (handle, temporary) = made.into_parts();
    // A server that opens it under its new name waits until all is done.
    holder::own(&handle, &temporary)?;
    let out = OutFile::of_new(handle, &temporary);
    Ownership::of(&meta).give(out.file()).map_err(|error| {
        Error::io(&error, "give the owner of the old file to", &temporary)
            .hint("run this as root, or as the owner of the database")
    })?;
    progress.step("copy", file.meta().size_bytes());
    let copied = spool(&out, |spool: Spool<'_>| copy(file, spool, progress)).map_err(failed)?;
    let written = finish(report, file, database, copied, progress)?;
    progress.step("check", report.after.db_bytes);
    let (synced, checked) = std::thread::scope(|scope| {
        let syncing = std::thread::Builder::new().spawn_scoped(scope, || out.sync());
        let checked = rewrite::read_back(out.file(), &written, progress);
        let synced = match syncing {
            // A panic in there is a bug of ours and goes on as one.
            Ok(syncing) => syncing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(_) => out.sync(),
        };
        (synced, checked)
    });
    synced.map_err(failed)?;
    checked?;
    // From here on that name may be the old file's, which is removed only where it is known.
    let aside = temporary.keep().map_err(|error| failed(error.error))?;
    if let Err(error) = publish(old, out.file(), &aside, database) {
        if is_file(&aside, out.file()) {
            let _ = disk::remove_file(&aside);
        }
        return Err(error);
    }
    disk::sync_dir(snap).map_err(|error| Error::io(&error, "sync", snap))?;
    invalidate(old, &aside, file.page_size());
    match disk::remove_file(&aside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            report.warnings.push(format!("{} cannot be removed: {error}", aside.display()));
        }
        _ => {}
    }
    Ok(())
}

fn in_use(path: &Path, who: &str) -> Error {
    Error::new(ExitCode::InUse, format!("{} is in use by {who}", path.display()))
        .hint("etcdctl defrag --endpoints URL, which asks the running member")
        .hint("or stop that process first")
}

fn damaged(database: &Path, detail: String, findings: Vec<Finding>) -> Error {
    let name = database.display().to_string();
    let message = format!("{name}: {detail}; nothing was changed");
    let mut error = Error::new(ExitCode::Damage, message)
        .hint(format!("etcdkit snapshot verify {}", shell_word(&name)));
    error.findings = findings;
    error
}

/// Lists unfinished copies; only names that etcd itself takes for such.
fn leftovers(snap: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(snap)? {
        let entry = entry?;
        let is_named = entry.file_name().to_string_lossy().starts_with(LEFTOVER);
        if is_named && entry.file_type()?.is_file() {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

struct Copied {
    walked: Walk,
    rows: Rows,
    written: BackendHash,
    built: Result<u64, builder::Error>,
}

/// Checks and copies in one walk.
fn copy<W: io::Write + io::Seek>(file: &File, out: W, progress: &dyn Progress) -> Copied {
    let page_bytes = u64::from(file.page_size());
    let builder = match Builder::new(out, file.page_size()) {
        Ok(builder) => builder,
        Err(error) => {
            return Copied {
                walked: Walk::default(),
                rows: Rows::default(),
                written: BackendHash::default(),
                built: Err(error),
            };
        }
    };
    let visitor = Both(Survey::new(), Lenient(Rebuild::new(builder)));
    let mut shown = Shown { visitor, progress, page_bytes };
    let walked = walk(file, &mut shown);
    let Both(survey, Lenient(rebuild)) = shown.visitor;
    let rows = survey.finish();
    let written = BackendHash::known(rows.status_hash, rows.pair_count);
    let txid = file.meta().txid.saturating_add(1);
    let built = rebuild.finish(txid).map(|(built, _)| built.size_bytes);
    Copied { walked, rows, written, built }
}

/// Lets the check go on when the copy cannot: what is damaged is to be told whole.
struct Lenient<V>(V);

impl<V: bolt::Visit> bolt::Visit for Lenient<V> {
    fn bucket(&mut self, at: &bolt::At<'_>, sequence: u64) {
        self.0.bucket(at, sequence);
    }

    fn entry(&mut self, at: &bolt::At<'_>, key: &[u8], value: &[u8]) {
        self.0.entry(at, key, value);
    }
}

/// Judges a copy and takes its figures into the report; returns what reading back must give.
fn finish(
    report: &mut Report,
    file: &File,
    database: &Path,
    copied: Copied,
    progress: &dyn Progress,
) -> Result<BackendHash, Error> {
    if progress.stopped() {
        return Err(Error::interrupted());
    }
    let mut all = copied.walked.findings.clone();
    all.append(copied.rows.findings.clone());
    // An alarm is no damage of the file that it stands in; what is wrong with these two hides no
    // row, and is gone in the new file.
    let is_freelist = |code| matches!(code, Code::PageLeaked | Code::FreelistUnreadable);
    let is_bad = |code: Code| {
        let is_error = code.severity() == Severity::Error;
        is_error && code != Code::AlarmCorrupt && !is_freelist(code)
    };
    let bad = all.kept().iter().filter(|finding| is_bad(finding.code));
    let bad: Vec<Finding> = bad.cloned().collect();
    if all.codes().any(is_bad) {
        let Some(first) = bad.first() else {
            return Err(damaged(database, "there is damage".into(), all.kept().to_vec()));
        };
        let more = match bad.len() {
            1 => String::new(),
            count => format!(" (and {} findings more)", count - 1),
        };
        return Err(damaged(database, format!("{}{more}", first.detail), bad));
    }
    let size = copied.built.map_err(|error| match error {
        builder::Error::Io(error) => Error::io(&error, "write beside", database),
        error => Error::new(ExitCode::Internal, format!("{}: {error}", database.display())),
    })?;
    let page_bytes = u64::from(file.page_size());
    let free = copied.walked.free_pages.saturating_mul(page_bytes);
    report.before.in_use_bytes = report.before.db_bytes.saturating_sub(free);
    report.after = Size { file_bytes: size, db_bytes: size, in_use_bytes: size };
    report.rows = copied.rows.pair_count;
    report.status_hash = copied.rows.status_hash;
    if let Some(finding) = all.kept().iter().find(|finding| is_freelist(finding.code)) {
        report.warnings.push(format!(
            "{}: {}; the new file has no freelist; find out what wrote the old one",
            finding.code.id(),
            finding.detail
        ));
    }
    if copied.rows.findings.has(Code::AlarmCorrupt) {
        report.warnings.push("a CORRUPT alarm stands in the database and was kept".into());
    }
    Ok(copied.written)
}

/// Refuses when the new file has no room. How large it will be is found out only when it matters;
/// leftovers go before that only when their room is needed.
fn check_room(
    snap: &Path,
    file: &File,
    report: &mut Report,
    progress: &dyn Progress,
) -> Result<(), Error> {
    let Some(free) = disk::free_bytes(snap) else { return Ok(()) };
    if free >= file.meta().size_bytes() {
        return Ok(());
    }
    progress.step("measure", file.meta().size_bytes());
    let copied = copy(file, Nowhere, progress);
    if progress.stopped() {
        return Err(Error::interrupted());
    }
    // Whatever else is wrong is told by the copy that follows.
    let Ok(needed) = copied.built else { return Ok(()) };
    if needed <= free {
        return Ok(());
    }
    let sound = !copied.walked.findings.has_errors();
    for path in report.leftovers.iter().filter(|_| sound) {
        let _ = disk::remove_file(Path::new(path));
    }
    let free = disk::free_bytes(snap).unwrap_or(free);
    if needed <= free {
        return Ok(());
    }
    let message = format!(
        "{} needs {needed} bytes for the new file and has {free} free; the database is as it was",
        snap.display()
    );
    let short = needed.saturating_sub(free);
    Err(Error::new(ExitCode::Failed, message)
        .hint(format!("free {short} bytes there, then run this again")))
}

/// Tells whether a name is that of an open file.
fn is_file(path: &Path, file: &OsFile) -> bool {
    let (Ok(named), Ok(open)) = (fs::symlink_metadata(path), file.metadata()) else { return false };
    (named.dev(), named.ino()) == (open.dev(), open.ino())
}

/// Puts the new file in the old one's place, unless somebody waits for the old one, or put another
/// file there meanwhile.
fn publish(old: &OsFile, new: &OsFile, path: &Path, database: &Path) -> Result<(), Error> {
    let failed = |error: io::Error| Error::io(&error, "replace", database);
    let replaced = || {
        let message =
            format!("{} was replaced meanwhile; it was left as it is", database.display());
        Error::new(ExitCode::InUse, message).hint("find out who did that, then run this again")
    };
    if let Some(who) = holder::with_open(old) {
        return Err(in_use(database, &who));
    }
    if !is_file(database, old) {
        return Err(replaced());
    }
    match disk::exchange(path, database) {
        Ok(()) => {}
        Err(error)
            if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) =>
        {
            return disk::rename_over(path, database).map_err(failed);
        }
        Err(error) => return Err(failed(error)),
    }
    // Who opens the name from now on gets the new file; who got the old one before is seen here.
    let who = holder::with_open(old);
    if who.is_none() && is_file(path, old) {
        return Ok(());
    }
    if is_file(database, new) {
        disk::exchange(path, database).map_err(failed)?;
    }
    Err(who.map_or_else(replaced, |who| in_use(database, &who)))
}

/// Makes the old file no database any more. A server that waits for its lock and cannot be seen
/// from here (in another pid namespace) would write into a file without a name, and lose that;
/// so it finds nothing to open, and starts again on the new one.
fn invalidate(old: &OsFile, aside: &Path, page_bytes: u32) {
    if !is_file(aside, old) {
        return;
    }
    let Ok(file) = fs::OpenOptions::new().write(true).open(aside) else { return };
    // What cannot be written is as it was: the server is then where it would have been.
    let mut write = |bytes: &[u8], offset: u64| file.write_all_at(bytes, offset);
    let _ = orphan::invalidate(page_bytes, &mut write);
    let _ = file.sync_data();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_that_was_replaced_meanwhile_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (database, new) = (folder.path().join("db"), folder.path().join("new"));
        let make = |path: &Path, bytes: &[u8]| {
            fs::write(path, bytes).unwrap();
            OsFile::open(path).unwrap()
        };
        let (old, built) = (make(&database, b"old"), make(&new, b"new"));
        publish(&old, &built, &new, &database).unwrap();
        assert_eq!(fs::read(&database).unwrap(), b"new");
        assert_eq!(fs::read(&new).unwrap(), b"old");

        let (old, built) = (make(&database, b"old"), make(&new, b"new"));
        fs::rename(&database, folder.path().join("mine")).unwrap();
        fs::write(&database, b"theirs").unwrap();
        let refused = publish(&old, &built, &new, &database).unwrap_err();
        assert_eq!(refused.code, ExitCode::InUse);
        assert_eq!(fs::read(&database).unwrap(), b"theirs");
        assert_eq!(fs::read(&new).unwrap(), b"new");
    }

    #[test]
    fn the_old_file_is_no_database_any_more() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        let builder = Builder::new(OsFile::create(&path).unwrap(), 1024).unwrap();
        builder.finish(4).unwrap();
        let old = OsFile::open(&path).unwrap();
        assert!(File::open(&path).is_ok());
        invalidate(&old, &folder.path().join("other"), 1024);
        assert!(File::open(&path).is_ok());
        invalidate(&old, &path, 1024);
        assert!(File::open(&path).is_err());
    }
}
