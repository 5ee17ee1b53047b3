//! `hashkv`: the sum over bucket `key` that a server gives after a start on this database.

use std::path::Path;

use serde::Serialize;

use super::subject::Subject;
use super::{Error, ExitCode, Progress};
use crate::bolt::{self, Visit};
use crate::etcd::hash::{self, Compaction, HashKvError};
use crate::format::finding::{Code, Finding, Severity};

/// What is printed, under etcdutl's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// CRC-32C.
    pub hash: u32,
    /// The revision up to which rows were summed.
    pub hash_revision: i64,
    /// The compaction revision, -1 for none.
    pub compact_revision: i64,
}

/// Sums a file or a data directory up to a revision, 0 for the current one.
///
/// # Errors
/// The revision is negative, compacted or to come ([`ExitCode::Usage`]), a page or row cannot be
/// read ([`ExitCode::Damage`]), or what [`Subject::open`] says.
pub fn hashkv(
    path: &Path,
    wal_dir: Option<&Path>,
    revision: i64,
    progress: &dyn Progress,
) -> Result<Report, Error> {
    let subject = Subject::open(path, wal_dir, progress)?;
    let name = path.display().to_string();
    let damaged = |findings: Vec<Finding>| damaged(&name, findings);
    let compaction = Compaction::read(&subject.file, &subject.edits).map_err(|error| {
        let place = Error::new(ExitCode::Damage, format!("{name}: {error}"));
        match error {
            bolt::Error::Io(error) => Error::io(&error, "read", path),
            _ => place.hint(verify_hint(&name)),
        }
    })?;
    progress.step("hash", subject.file.meta().size_bytes());
    let mut walk = |visitor: &mut dyn Visit| -> Result<(), Error> {
        let walked = subject.walk(visitor, progress)?;
        let is_bad =
            |finding: &&Finding| finding.severity == Severity::Error && !finding.code.is_freelist();
        let bad: Vec<_> = walked.findings.kept().iter().filter(is_bad).cloned().collect();
        if bad.is_empty() { Ok(()) } else { Err(damaged(bad)) }
    };
    let hashed = hash::hash_kv(compaction, revision, &mut walk).map_err(|error| match error {
        HashKvError::Compacted(at) => compacted(revision, at),
        HashKvError::Future(current) => future(revision, current),
        HashKvError::Row(finding) => damaged(vec![*finding]),
        HashKvError::Walk(error) => error,
    })?;
    Ok(Report {
        hash: hashed.hash,
        hash_revision: hashed.hash_revision,
        compact_revision: hashed.compact_revision,
    })
}

/// Makes the error of a revision that is compacted, in etcd's words.
pub(super) fn compacted(revision: i64, at: i64) -> Error {
    Error::usage(format!(
        "mvcc: required revision has been compacted: {revision}, and the compaction revision is \
         {at}"
    ))
}

/// Makes the error of a revision that is to come, in etcd's words.
pub(super) fn future(revision: i64, current: i64) -> Error {
    Error::usage(format!(
        "mvcc: required revision is a future revision: {revision}, and the current revision is \
         {current}"
    ))
}

fn verify_hint(name: &str) -> String {
    format!("etcdkit snapshot verify {}", super::shell_word(name))
}

fn damaged(name: &str, findings: Vec<Finding>) -> Error {
    let first = findings.first().map_or("it is damaged", |first| first.detail.as_str());
    let mut error = Error::new(ExitCode::Damage, format!("{name}: {first}"));
    let whole = findings.iter().all(|finding| finding.code != Code::FileChanged);
    error = if whole { error.hint(verify_hint(name)) } else { error };
    error.findings = findings;
    error
}
