//! What the data directory of a dead member says about revisions that were served.
//!
//! Its database says which one it had reached; each entry of the log behind that may have made one
//! more. So the answer is a bound from above, which is what is wanted: every revision that the
//! member may have served is at or below it.

use std::path::{Path, PathBuf};

use super::bump::Evidence;
use crate::etcd::log::Log;
use crate::ops::examine::walk_rows;
use crate::ops::subject::Subject;
use crate::ops::tail::pick_database;
use crate::ops::{Error, ExitCode, Progress, holder};

/// Reads the directory; what cannot be read of it is said, and the rest counts all the same.
///
/// # Errors
/// A server has it open, there is nothing of etcd's in it, or it was told to stop.
pub(super) fn evidence(
    dir: &Path,
    progress: &dyn Progress,
    warnings: &mut Vec<String>,
) -> Result<Evidence, Error> {
    let member = dir.join("member");
    if let Some(who) = holder::of_member_dir(&member) {
        let message = format!("--old-data-dir {} is in use by {who}", dir.display());
        return Err(Error::new(ExitCode::InUse, message)
            .hint("a running member is asked with --endpoints")
            .hint("or stop that process first"));
    }
    let (database, wal) = (member.join("snap").join("db"), member.join("wal"));
    if !database.is_file() && !wal.is_dir() {
        let message = format!("--old-data-dir {}: no member/snap/db and no WAL", dir.display());
        return Err(Error::new(ExitCode::NotFound, message)
            .hint("give the directory that etcd's --data-dir named"));
    }
    let mut notes = Vec::new();
    let log = match Log::open_watched(&wal, &mut |_| !progress.stopped()) {
        Ok(log) => Some(log),
        Err(_) if progress.stopped() => return Err(Error::interrupted()),
        Err(error) => {
            notes.push(format!("its log was not read: {error}"));
            None
        }
    };
    let database = newest_database(&member.join("snap"), database, log.as_ref(), &mut notes);
    let (mut revision, mut applied) = (None, 0);
    match Subject::open_file(&database) {
        Ok(subject) => {
            progress.step("old data", subject.file.source().len());
            let (walk, rows) = walk_rows(&subject.file, progress);
            if walk.stopped {
                return Err(Error::interrupted());
            }
            if walk.findings.has_errors() {
                notes.push("its database is damaged, and may have held more".to_owned());
            }
            revision = Some(rows.current_revision);
            applied = rows.consistent_index.unwrap_or(0);
        }
        Err(error) => notes.push(format!("no revision from its database: {error}")),
    }
    if let Some(log) = log {
        let last = log.last_index().max(log.commit());
        if log.first.is_some_and(|first| first.index > applied.saturating_add(1)) {
            notes.push(
                "entries between its database and its log are gone; each counts as a revision"
                    .to_owned(),
            );
        }
        if let Some(obstacle) = log.obstacle() {
            notes.push(format!("its log is damaged, and may have held more: {}", obstacle.detail));
        } else if applied > last {
            notes.push(format!(
                "its log ends at entry {last}, and its database at {applied}: the log may have \
                 held more"
            ));
        }
        // Also over a gap: no entry makes more than one revision.
        let more = last.saturating_sub(applied).saturating_add(log.entries_after_max());
        let before = revision.unwrap_or(1);
        revision = Some(before.saturating_add(i64::try_from(more).unwrap_or(i64::MAX)));
        if more > 0 {
            notes.push(format!("{more} entries of the log may be beyond its database"));
        }
    }
    let source = format!("--old-data-dir {}", dir.display());
    let is_doubtful = |note: &&String| !note.contains("may be beyond");
    warnings.extend(notes.iter().filter(is_doubtful).map(|note| format!("{source}: {note}")));
    let note = (!notes.is_empty()).then(|| notes.join("; "));
    Ok(Evidence { source, revision, note })
}

/// Returns the database that goes with the log: a leader's, where one was received.
fn newest_database(
    snap: &Path,
    own: PathBuf,
    log: Option<&Log>,
    notes: &mut Vec<String>,
) -> PathBuf {
    let Some(log) = log else { return own };
    match pick_database(snap, &own, log) {
        Ok(picked) => picked,
        Err(error) => {
            notes.push(format!("its database is older than its log: {error}"));
            own
        }
    }
}
