//! Makes the planned directories: database, WAL, `.snap`; reads them back; publishes them.
//!
//! The database is a copy of the snapshot's pages, made while they were verified, with new pages
//! behind them for the rows that change. Every member of a cluster has the same database.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::{Plan, Report, Step};
use crate::bolt::edit::{self, Appended};
use crate::bolt::{self, Bucket, File, Source};
use crate::etcd::restore_log::RestoreLog;
use crate::etcd::schema;
use crate::format::u64_of;
use crate::ops::disk::{self, OutFile};
use crate::ops::examine::{Seal, walk_rows};
use crate::ops::stage::{self, Stage, Target};
use crate::ops::{Error, ExitCode, Progress};

/// Name of the copy until it has its place; no member has one like it.
const COPY: &str = ".db";

/// Where a restore is made, until it has its name.
#[derive(Debug)]
pub(super) struct Place {
    staged: Stage,
    wal: Option<(Stage, PathBuf)>,
    /// The copy of the database, not yet under its name.
    pub(super) database: OutFile,
}

impl Place {
    /// Makes the temporary directories and the empty database file.
    pub(super) fn make(target: Target, wal_dir: Option<&Path>) -> Result<Self, Error> {
        let wal = match wal_dir {
            Some(path) => Some((Target::inspect(path, false)?.stage()?, path.to_owned())),
            None => None,
        };
        let staged = target.stage()?;
        let path = staged.path().join(COPY);
        let database = OutFile::create(&path).map_err(|error| Error::io(&error, "make", &path))?;
        Ok(Self { staged, wal, database })
    }
}

/// Builds and publishes; fills in what the report could not know before.
pub(super) fn build(
    place: Place,
    plan: &Plan,
    report: &mut Report,
    steps: &mut Vec<Step>,
    progress: &dyn Progress,
) -> Result<(), Error> {
    let Place { staged, wal, database } = place;
    let began = Instant::now();
    progress.step("build", 0);
    let copy = staged.path().join(COPY);
    let appended = edit_copy(plan, &database, &copy)?;
    report.changes = appended.changes.iter().map(super::report::Change::of).collect();
    let before = plan.rows()?.pair_count;
    report.rows_copied =
        before.saturating_add(appended.rows_added).saturating_sub(appended.rows_removed);
    progress.step("check", 0);
    report.status_hash = check(plan, &database, &copy)?;
    if plan.examined.seal != Seal::Good {
        check_all(&database, &copy, report.status_hash, progress)?;
    }
    database.sync().map_err(|error| Error::io(&error, "write", &copy))?;
    let mut folders = Vec::new();
    let locals = plan.identity.locals();
    for (number, (name, local)) in locals.iter().enumerate() {
        let home = match plan.all_members {
            true => {
                let home = staged.path().join(name);
                make_dir(&home)?;
                folders.push(home.clone());
                home
            }
            false => staged.path().to_owned(),
        };
        let (member, snap) = (home.join("member"), home.join("member").join("snap"));
        let wal_dir = match &wal {
            Some((stage, _)) => stage.path().to_owned(),
            None => member.join("wal"),
        };
        make_dir(&member)?;
        make_dir(&snap)?;
        let path = snap.join("db");
        if number + 1 == locals.len() {
            disk::rename_new(&copy, &path).map_err(|error| Error::io(&error, "write", &path))?;
        } else {
            copy_database(&database, &path, progress)?;
        }
        if wal.is_none() {
            make_dir(&wal_dir)?;
        }
        let log = RestoreLog::build(&plan.identity.members, *local, plan.identity.cluster_id)
            .map_err(|error| Error::new(ExitCode::Failed, error.to_string()))?;
        write_file(&wal_dir.join(&log.segment_name), &log.segment)?;
        write_file(&snap.join(&log.snap_name), &log.snap)?;
        folders.splice(0..0, [wal_dir, snap, member]);
    }
    steps.push(Step::since("build", began));

    let began = Instant::now();
    progress.step("sync", 0);
    own(plan, &staged, wal.as_ref().map(|(stage, _)| stage))?;
    folders.push(staged.path().to_owned());
    for folder in &folders {
        disk::sync_dir(folder).map_err(|error| Error::io(&error, "sync", folder))?;
    }
    if progress.stopped() {
        return Err(Error::interrupted());
    }
    let wal_move = wal.as_ref().map(|(stage, path)| (stage.path(), path.as_path()));
    let published = staged.publish(wal_move)?;
    steps.push(Step::since("publish", began));
    for warning in published.warnings {
        progress.note(&format!("warning: {warning}"));
        report.warnings.push(warning);
    }
    report.moved_aside = published.moved_aside.map(|path| path.display().to_string());
    Ok(())
}

fn make_dir(path: &Path) -> Result<(), Error> {
    disk::make_dir(path, 0o700).map_err(|error| Error::io(&error, "make", path))
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    disk::write_new(path, bytes).map_err(|error| Error::io(&error, "write", path))
}

/// Opens what was written so far.
fn reopen(database: &OutFile, path: &Path) -> Result<File, Error> {
    let source = database.file().try_clone().and_then(Source::from_file);
    let source = source.map_err(|error| Error::io(&error, "read", path))?;
    File::from_source(source).map_err(|error| wrong(&error.to_string()))
}

fn wrong(what: &str) -> Error {
    let message = format!("the restored database does not hold what was planned: {what}");
    Error::new(ExitCode::Internal, message).hint("nothing was changed; please report this")
}

/// Writes the rows that change behind the copied pages.
fn edit_copy(plan: &Plan, database: &OutFile, path: &Path) -> Result<Appended, Error> {
    let file = reopen(database, path)?;
    let verified = plan.examined.file.as_ref().map(File::meta);
    if Some(file.meta()) != verified {
        return Err(wrong("its meta pages"));
    }
    let appended =
        edit::append(&file, &plan.edits, &mut |offset, bytes| database.write_all_at(bytes, offset));
    appended.map_err(|error| match error {
        edit::Error::Io(error) => Error::io(&error, "write", path),
        error => Error::new(ExitCode::Failed, format!("cannot change the copied rows: {error}")),
    })
}

/// Reads back what was changed and holds it against the plan; returns the new status hash.
///
/// The pages that did not change were written from the memory that was summed, and the trailer says
/// that these are the bytes that were saved; where none does, see [`check_all`].
fn check(plan: &Plan, database: &OutFile, path: &Path) -> Result<Option<u32>, Error> {
    let file = reopen(database, path)?;
    let unreadable = |error: bolt::Error| wrong(&error.to_string());
    let length = file.source().len();
    if length != file.meta().size_bytes() {
        return Err(wrong("its length"));
    }
    let old = plan.examined.file.as_ref().ok_or_else(|| wrong("the snapshot"))?;
    let mut sums = plan.rows()?.sums.clone();
    for (name, planned) in plan.edits.buckets() {
        let text = String::from_utf8_lossy(name);
        let bucket = file.bucket(&[name]).map_err(unreadable)?.ok_or_else(|| wrong(&text))?;
        if name == schema::KEY {
            let Some((crc, bytes)) = sums.get(name) else { return Err(wrong(&text)) };
            let (crc, bytes) = check_tail(&bucket, planned, crc, bytes)?;
            sums.set(name, crc, bytes);
            continue;
        }
        let mut want = planned.clone();
        if !plan.edits.clears(name)
            && let Some(before) = old.bucket(&[name]).map_err(unreadable)?
        {
            let mut cursor = before.cursor();
            while let Some(row) = cursor.next_row().map_err(unreadable)? {
                want.entry(row.key.to_vec()).or_insert_with(|| Some(row.value.to_vec()));
            }
        }
        let mut want = want.into_iter().filter_map(|(key, value)| Some((key, value?)));
        let (mut crc, mut bytes) = (crc32c::crc32c(name), name.len());
        let mut cursor = bucket.cursor();
        while let Some(row) = cursor.next_row().map_err(unreadable)? {
            // A bucket in there counts by its name, and was not touched.
            let value = if row.is_bucket { &[][..] } else { row.value };
            crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, row.key), value);
            bytes += row.key.len() + value.len();
            if row.is_bucket && plan.edits.clears(name) {
                continue;
            }
            if want.next().is_none_or(|(key, value)| key != row.key || value != row.value) {
                return Err(wrong(&text));
            }
        }
        if want.next().is_some() {
            return Err(wrong(&text));
        }
        sums.set(name, crc, bytes);
    }
    Ok(sums.status_hash())
}

/// Reads the whole database back: without a trailer, nothing else ties the bytes that were copied
/// to those whose pages and rows were checked.
fn check_all(
    database: &OutFile,
    path: &Path,
    status_hash: Option<u32>,
    progress: &dyn Progress,
) -> Result<(), Error> {
    let file = reopen(database, path)?;
    progress.step("check all", file.source().len());
    let (walked, rows) = walk_rows(&file, progress);
    if walked.stopped {
        return Err(Error::interrupted());
    }
    if !walked.tree_is_whole() || status_hash.is_some_and(|hash| hash != rows.status_hash) {
        let message = "the copy does not hold what was checked: a read gave other bytes";
        return Err(Error::new(ExitCode::Damage, message)
            .hint("nothing was changed; look at the disk and the memory of this machine"));
    }
    Ok(())
}

/// Checks that planned rows stand behind all others of a bucket; carries its sum on.
fn check_tail(
    bucket: &Bucket<'_>,
    planned: &crate::bolt::overlay::Planned,
    mut crc: u32,
    mut bytes: usize,
) -> Result<(u32, usize), Error> {
    let mut planned = planned.iter().filter_map(|(key, value)| Some((key, value.as_ref()?)));
    let Some((first, _)) = planned.clone().next() else { return Ok((crc, bytes)) };
    let mut cursor = bucket.cursor();
    cursor.seek(first).map_err(|error| wrong(&error.to_string()))?;
    while let Some(row) = cursor.next_row().map_err(|error| wrong(&error.to_string()))? {
        if planned.next() != Some((&row.key.to_vec(), &row.value.to_vec())) {
            return Err(wrong("its last records"));
        }
        crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, row.key), row.value);
        bytes += row.key.len() + row.value.len();
    }
    match planned.next() {
        None => Ok((crc, bytes)),
        Some(_) => Err(wrong("its last records")),
    }
}

/// Makes another member's copy of the database that is done.
fn copy_database(from: &OutFile, path: &Path, progress: &dyn Progress) -> Result<(), Error> {
    let failed = |error: std::io::Error| Error::io(&error, "write", path);
    let source = from.file().try_clone().and_then(Source::from_file).map_err(failed)?;
    let mut out = OutFile::create(path).map_err(failed)?;
    if !out.share_blocks(from.file()).map_err(failed)? {
        progress.step("copy", source.len());
        let mut at = 0;
        while at < source.len() {
            let piece = source.read_up_to(at, 1 << 20).map_err(failed)?;
            out.write_all(&piece).map_err(failed)?;
            at += u64_of(piece.len());
            progress.advance(at);
            if progress.stopped() {
                return Err(Error::interrupted());
            }
        }
    }
    out.sync().map_err(failed)
}

fn own(plan: &Plan, staged: &Stage, wal: Option<&Stage>) -> Result<(), Error> {
    let Some((uid, gid)) = plan.owner else { return Ok(()) };
    for folder in [Some(staged.path()), wal.map(Stage::path)].into_iter().flatten() {
        stage::give_to(folder, uid, gid).map_err(|error| {
            let message =
                format!("cannot give {} to user {uid}, group {gid}: {error}", folder.display());
            Error::new(ExitCode::Failed, message).hint("run it as root; nothing was changed")
        })?;
    }
    Ok(())
}
