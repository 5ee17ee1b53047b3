//! Makes the planned directory: database, WAL, `.snap`; reads it back; publishes it.

use std::fs::{self, OpenOptions};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use super::rows::{Copied, Copier};
use super::{Plan, Report, Step};
use crate::bolt::File;
use crate::bolt::builder::{self, Builder};
use crate::bolt::walk::walk;
use crate::etcd::restore_log::RestoreLog;
use crate::format::finding::Code;
use crate::ops::examine::walk_rows;
use crate::ops::stage::{self, Stage, Target, sync_dir};
use crate::ops::{Error, ExitCode, Progress, status};

/// Builds and publishes; fills in what the report could not know before.
pub(super) fn build(
    plan: &Plan,
    report: &mut Report,
    steps: &mut Vec<Step>,
    progress: &dyn Progress,
) -> Result<(), Error> {
    let identity = &plan.identity;
    let log = RestoreLog::build(&identity.members, identity.member_id, identity.cluster_id)
        .map_err(|error| Error::new(ExitCode::Failed, error.to_string()))?;
    let expected = plan.target.path().to_owned();
    // The target was looked at before the snapshot was read, which may have taken a while.
    let now = Target::inspect(&expected, matches!(plan.target.found(), stage::Found::Occupied(_)))?;
    if now.found() != plan.target.found() {
        let message = format!("{} changed meanwhile; nothing was done", expected.display());
        return Err(Error::new(ExitCode::Failed, message).hint("run the same command again"));
    }

    let wal_stage = match &plan.wal_dir {
        Some(path) => Some((Target::inspect(path, false)?.stage()?, path.clone())),
        None => None,
    };
    let staged = now.stage()?;
    let member = staged.path().join("member");
    let snap = member.join("snap");
    make_dir(&member)?;
    make_dir(&snap)?;

    let began = Instant::now();
    let database = snap.join("db");
    let copied = copy(plan, &database, progress)?;
    steps.push(Step::since("copy", began));

    let wal = match &wal_stage {
        Some((stage, _)) => stage.path().to_owned(),
        None => {
            let wal = member.join("wal");
            make_dir(&wal)?;
            wal
        }
    };
    write_file(&wal.join(&log.segment_name), &log.segment)?;
    write_file(&snap.join(&log.snap_name), &log.snap)?;

    let began = Instant::now();
    check(plan, &database, &copied, progress)?;
    steps.push(Step::since("check", began));
    if progress.stopped() {
        return Err(Error::interrupted());
    }

    let began = Instant::now();
    progress.step("sync", 0);
    own(plan, &staged, wal_stage.as_ref().map(|(stage, _)| stage))?;
    let folders = [wal.as_path(), &snap, &member, staged.path()];
    for folder in folders {
        sync_dir(folder).map_err(|error| Error::io(&error, "sync", folder))?;
    }
    if progress.stopped() {
        return Err(Error::interrupted());
    }
    let wal_move = wal_stage.as_ref().map(|(stage, path)| (stage.path(), path.as_path()));
    let published = staged.publish(wal_move)?;
    steps.push(Step::since("publish", began));

    report.changes = copied.changes;
    report.rows_copied = copied.rows;
    for warning in published.warnings {
        progress.note(&format!("warning: {warning}"));
        report.warnings.push(warning);
    }
    report.moved_aside = published.moved_aside.map(|path| path.display().to_string());
    report.status_hash = Some(copied.written_sum);
    Ok(())
}

fn make_dir(path: &Path) -> Result<(), Error> {
    fs::DirBuilder::new().mode(0o700).create(path).map_err(|error| Error::io(&error, "make", path))
}

fn create(path: &Path) -> Result<fs::File, Error> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    options.open(path).map_err(|error| Error::io(&error, "make", path))
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let mut file = create(path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.map_err(|error| Error::io(&error, "write", path))
}

/// Copies all rows into a new database file and syncs it.
fn copy(plan: &Plan, path: &Path, progress: &dyn Progress) -> Result<Copied, Error> {
    let Some(source) = &plan.examined.file else { return Err(status::damaged(&plan.examined)) };
    let page_size = source.page_size();
    progress.step("copy", source.meta().size_bytes());
    let failed = |error: builder::Error| match &error {
        builder::Error::Io(error) => Error::io(error, "write", path),
        _ => Error::new(ExitCode::Failed, format!("cannot build {}: {error}", path.display())),
    };
    let out = BufWriter::with_capacity(1 << 20, create(path)?);
    let builder = Builder::new(out, page_size).map_err(failed)?;
    let mut copier = Copier::new(builder, plan.edits.clone(), page_size, progress);
    let walked = walk(source, &mut copier);
    let txid = source.meta().txid.saturating_add(1);
    let Some((copied, out)) = copier.finish(txid).map_err(failed)? else {
        return Err(Error::interrupted());
    };
    // The second reading must have seen what the first one verified.
    let same = copied.source_sum == plan.rows()?.status_hash && walked.tree_is_whole();
    if !same {
        let message = format!("{} changed while it was read", plan.examined.path.display());
        return Err(Error::new(ExitCode::Damage, message));
    }
    plan.examined.still_the_same()?;
    let file = out.into_inner().map_err(|error| Error::io(error.error(), "write", path))?;
    file.sync_all().map_err(|error| Error::io(&error, "write", path))?;
    Ok(copied)
}

/// Reads the new database back and holds it against the plan.
fn check(plan: &Plan, path: &Path, copied: &Copied, progress: &dyn Progress) -> Result<(), Error> {
    let wrong = |what: &str| {
        let message = format!("the restored database does not hold what was planned: {what}");
        Error::new(ExitCode::Internal, message).hint("nothing was changed; please report this")
    };
    let file = File::open(path).map_err(|error| wrong(&error.to_string()))?;
    progress.step("check", file.source().len());
    let (walked, rows) = walk_rows(&file, progress);
    if walked.stopped {
        return Err(Error::interrupted());
    }
    // What the snapshot itself was accepted with may stand in the copy, and nothing else.
    let accepted: Vec<Code> = plan.rows()?.findings.errors().collect();
    let new_damage = rows.findings.errors().find(|code| !accepted.contains(code));
    if let Some(code) = walked.findings.errors().next().or(new_damage) {
        return Err(wrong(code.meaning()));
    }
    let mut members = rows.members.clone();
    members.sort_by_key(|member| member.id);
    let expected_index = u64::try_from(plan.identity.members.len()).ok();
    let checks = [
        ("its rows", rows.status_hash == copied.written_sum),
        ("its members", members == plan.identity.members),
        ("its removed members", rows.removed_members.is_empty()),
        ("its revision", rows.current_revision == plan.bump.new.max(1)),
        ("its keys", rows.live_keys == plan.rows()?.live_keys),
        ("its index", rows.consistent_index == expected_index),
        ("its alarms", rows.alarms.len() == plan.alarms_kept.len()),
        ("its leases", rows.lease_count == plan.rows()?.lease_count),
    ];
    match checks.iter().find(|(_, ok)| !ok) {
        Some((what, _)) => Err(wrong(what)),
        None => Ok(()),
    }
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
