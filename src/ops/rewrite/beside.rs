//! The log beside a member's db file: what was acknowledged may stand in there only.
//!
//! etcd answers a write once its log has it; the db file follows up to some seconds later, and
//! says in its consistent index how far it is. A snapshot of the db file alone lacks the rest.

use std::fs;
use std::path::{Path, PathBuf};

use crate::bolt::File;
use crate::etcd::log::Log;
use crate::etcd::replay;
use crate::format::wal::entry_kind;
use crate::ops::{Error, ExitCode, Progress, shell_word};

/// Entries of a log that are not in the database beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Beyond {
    /// How many; what a leader writes when it begins does not count.
    pub(super) entries: u64,
    /// Index of the last one.
    pub(super) last: u64,
    /// Index of the last entry that the database has.
    pub(super) database: u64,
}

/// The log of a member whose db file is at the path, and the data directory they stand in.
struct Beside {
    log: PathBuf,
    data_dir: Option<PathBuf>,
}

impl Beside {
    fn of(path: &Path) -> Option<Self> {
        let path = fs::canonicalize(path).ok()?;
        let member = path.parent()?.parent()?;
        let log = member.join("wal");
        let mut names = fs::read_dir(&log).ok()?.flatten().map(|entry| entry.file_name());
        if !names.any(|name| name.as_encoded_bytes().ends_with(b".wal")) {
            return None;
        }
        let is_member = member.file_name().is_some_and(|name| name == "member");
        let data_dir = member.parent().filter(|_| is_member).map(Path::to_owned);
        Some(Self { log, data_dir })
    }

    fn hinted(&self, error: Error, output: &Path) -> Error {
        let output = shell_word(&output.display().to_string());
        let data_dir = self.data_dir.as_ref().map(|dir| shell_word(&dir.display().to_string()));
        let data_dir = data_dir.unwrap_or_else(|| "DIR".into());
        error
            .hint(format!("etcdkit snapshot save {output} --from-data-dir {data_dir}"))
            .hint("or --without-log: what only the log holds is left out")
    }
}

/// Counts what the log beside a db file holds beyond it; `None` where there is no log beside it.
///
/// Where that is anything, or cannot be told, this is refused unless `without_log`; what is to be
/// read then goes to `warnings`.
///
/// # Errors
/// There is such an entry ([`ExitCode::Refused`]), or the log is damaged ([`ExitCode::Damage`]).
pub(super) fn check_log(
    path: &Path,
    file: &File,
    output: &Path,
    without_log: bool,
    warnings: &mut Vec<String>,
    progress: &dyn Progress,
) -> Result<Option<u64>, Error> {
    let Some(beside) = Beside::of(path) else { return Ok(None) };
    let log = beside.log.display();
    let beyond = match beyond(&beside.log, file, progress) {
        Ok(beyond) => beyond,
        Err(_) if progress.stopped() => return Err(Error::interrupted()),
        Err(why) if without_log => {
            warnings.push(format!(
                "THE LOG WAS LEFT OUT: {log} cannot be read ({why}), and what only it holds is not \
                 in the snapshot"
            ));
            return Ok(None);
        }
        Err(why) => {
            let message = format!("the log in {log} cannot be relied on: {why}");
            return Err(beside.hinted(Error::new(ExitCode::Damage, message), output));
        }
    };
    let Beyond { entries, last, database } = beyond;
    if entries == 0 {
        return Ok(Some(0));
    }
    if !without_log {
        let message = format!(
            "the log in {log} goes on for {entries} entries after {}, which ends at index \
             {database}: a snapshot of it alone would lack acknowledged writes",
            path.display()
        );
        return Err(beside.hinted(Error::refused(message), output));
    }
    warnings.push(format!(
        "THE LOG WAS LEFT OUT: {entries} entries of {log}, up to index {last}, are not in the \
         snapshot, and writes in them were acknowledged"
    ));
    Ok(Some(entries))
}

fn beyond(log: &Path, file: &File, progress: &dyn Progress) -> Result<Beyond, String> {
    let database = replay::consistent_index(file).map_err(|error| error.to_string())?;
    progress.step("log", 0);
    let log = Log::open_watched(log, &mut |_| !progress.stopped());
    let log = log.map_err(|error| error.to_string())?;
    if let Some(finding) = log.obstacle() {
        return Err(finding.detail.clone());
    }
    let mut beyond = Beyond { database, last: log.last_index(), entries: 0 };
    let mut entries = log.entries(database).map_err(|error| error.to_string())?;
    while let Some(entry) = entries.read_next().map_err(|error| error.to_string())? {
        // Changes of members are of no snapshot's keys, and a restore names members anew.
        if entry.kind == entry_kind::NORMAL && !entry.data.is_empty() {
            beyond.entries += 1;
        }
        if progress.stopped() {
            return Err("interrupted".into());
        }
    }
    Ok(beyond)
}
