//! `{time}` in the name of a snapshot, and `--keep-last`: which older ones go.
//!
//! 1. Only names that the pattern makes, in its own folder, of regular files that were saved whole:
//!    their note says the same size and hash, or, without a note, their trailer fits. Anything else
//!    is left alone and named.
//! 2. The newest ones that are good are kept, the new one among them; each is read again whole, so
//!    that a good one never goes because a bad one took its place.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::note_path;
use crate::bolt::Source;
use crate::format::hex;
use crate::format::sidecar::Sidecar;
use crate::ops::digest::{self, TRAILER_BYTES, digest};
use crate::ops::new_file::NewFile;
use crate::ops::{Error, Progress, disk};

/// What stands for the time in a name.
pub(super) const TIME: &str = "{time}";
/// The shape of a time: `0` is a digit.
const SHAPE: &[u8] = b"00000000T000000Z";
const NOTE_BYTES_MAX: usize = 1 << 20;

/// What was done about older snapshots.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Retention {
    /// How many are to be kept, the new one included.
    pub keep_last: u64,
    /// Good ones that are kept, the new one first.
    pub kept: Vec<String>,
    /// Those that were removed, or would be in a dry run.
    pub removed: Vec<String>,
    /// Files of such a name that were left alone, and why.
    pub left_alone: Vec<LeftAlone>,
}

/// A file that was left alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftAlone {
    /// Its path.
    pub file: String,
    /// Why.
    pub why: String,
}

/// Puts a time into the name of a file, where it asks for one.
pub(super) fn expand(pattern: &Path, time: &str) -> Result<PathBuf, Error> {
    let Some(name) = pattern.file_name().and_then(|name| name.to_str()) else {
        return Ok(pattern.to_owned());
    };
    if pattern.parent().is_some_and(|folder| folder.as_os_str().to_string_lossy().contains(TIME)) {
        let message = format!("{TIME} stands in the folder of {}", pattern.display());
        return Err(Error::usage(message).hint("it goes into the name of the file"));
    }
    if name.matches(TIME).count() > 1 {
        return Err(Error::usage(format!("{TIME} stands twice in {name}")));
    }
    Ok(pattern.with_file_name(name.replace(TIME, time)))
}

/// Makes sure that older snapshots can be told by their names.
pub(super) fn check(pattern: &Path, keep_last: Option<u64>) -> Result<(), Error> {
    let name = pattern.file_name().map(|name| name.to_string_lossy().into_owned());
    match keep_last {
        Some(0) => Err(Error::usage("--keep-last 0 would remove the new snapshot too")),
        Some(_) if !name.is_some_and(|name| name.contains(TIME)) => {
            Err(Error::usage(format!("--keep-last needs {TIME} in the name of the file"))
                .hint("etcdkit snapshot save '/backup/etcd-{time}.db' --keep-last 7"))
        }
        _ => Ok(()),
    }
}

/// Finds which snapshots of a pattern go when `newest` is there, and removes them unless it is only
/// a plan.
pub(super) fn keep_last(
    pattern: &Path,
    newest: &Path,
    keep_last: u64,
    dry_run: bool,
    progress: &dyn Progress,
) -> (Retention, Vec<String>) {
    let mut done = Retention { keep_last, ..Retention::default() };
    done.kept.push(newest.display().to_string());
    let mut warnings = Vec::new();
    let older = match older(pattern, newest) {
        Ok(older) => older,
        Err(error) => {
            warnings
                .push(format!("older snapshots cannot be listed, so none was removed: {error}"));
            return (done, warnings);
        }
    };
    let mut left = keep_last.saturating_sub(1);
    for path in older {
        if progress.stopped() {
            warnings.push("interrupted before all older snapshots were looked at".into());
            break;
        }
        let file = path.display().to_string();
        match is_good(&path, progress) {
            Err(why) => done.left_alone.push(LeftAlone { file, why }),
            Ok(()) if left > 0 => {
                left -= 1;
                done.kept.push(file);
            }
            Ok(()) if dry_run => done.removed.push(file),
            Ok(()) => match remove(&path) {
                Ok(()) => done.removed.push(file),
                Err(error) => warnings.push(format!("{file} could not be removed: {error}")),
            },
        }
    }
    for LeftAlone { file, why } in &done.left_alone {
        warnings.push(format!("{file} was left alone: {why}"));
    }
    if let (false, false, Some(folder)) = (dry_run, done.removed.is_empty(), newest.parent())
        && let Err(error) = disk::sync_dir(folder)
    {
        warnings.push(format!("{} could not be synced: {error}", folder.display()));
    }
    (done, warnings)
}

/// Finds the time in a name that a pattern made.
fn time_in<'n>(pattern: &Path, name: &'n str) -> Option<&'n str> {
    let (before, after) = pattern.file_name()?.to_str()?.split_once(TIME)?;
    name.strip_prefix(before)?.strip_suffix(after).filter(|time| is_time(time))
}

/// Removes what killed runs of the same pattern left: each had another name.
pub(super) fn clear_dead(pattern: &Path, target: &Path) -> Vec<PathBuf> {
    let Some(folder) = target.parent() else { return Vec::new() };
    let is_ours =
        |name: &str| time_in(pattern, name.strip_suffix(".json").unwrap_or(name)).is_some();
    let mut removed = Vec::new();
    for (name, temporary) in NewFile::dead_of(folder, &is_ours) {
        let file = folder.join(&name);
        removed.extend(NewFile::clear_dead_note(&file, &note_path(&file)));
        if disk::remove_file(&temporary).is_ok() {
            removed.push(temporary);
        }
    }
    removed
}

/// Lists what the pattern names, newest first, without the new one.
fn older(pattern: &Path, newest: &Path) -> std::io::Result<Vec<PathBuf>> {
    let folder = newest.parent().unwrap_or(Path::new("/"));
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(time) = name.to_str().and_then(|name| time_in(pattern, name)) else { continue };
        if entry.path() != newest {
            found.push((time.to_owned(), entry.path()));
        }
    }
    found.sort_by(|a, b| b.cmp(a));
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

fn is_time(text: &str) -> bool {
    let fits = |(byte, shape): (u8, &u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        _ => byte == *shape,
    };
    text.len() == SHAPE.len() && text.bytes().zip(SHAPE).all(fits)
}

/// Tells whether a file is a snapshot that was saved whole and is so still; else why not.
fn is_good(path: &Path, progress: &dyn Progress) -> Result<(), String> {
    let is_file = fs::symlink_metadata(path).map(|meta| meta.is_file());
    if !is_file.map_err(|error| error.to_string())? {
        return Err("it is no regular file".into());
    }
    let source = Source::open(path).map_err(|error| error.to_string())?;
    let note = match Source::open(&note_path(path)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        note => Some(
            note.and_then(|note| note.read_up_to(0, NOTE_BYTES_MAX))
                .map_err(|error| format!("its note cannot be read: {error}"))?,
        ),
    };
    let note = note.map(|bytes| Sidecar::decode(&bytes)).transpose()?;
    if note.as_ref().is_some_and(|note| note.size_bytes != source.len()) {
        return Err("it has another size than its note says".into());
    }
    progress.step("older", source.len());
    let sums = digest(&source, None, progress, true).map_err(|error| match error {
        digest::Error::Read(error) | digest::Error::Write(error) => error.to_string(),
        digest::Error::Stopped => "interrupted".to_owned(),
    })?;
    if note.is_some_and(|note| note.sha256 != hex(&sums.file)) {
        return Err("it has another sha256 than its note says".into());
    }
    if source.len() % 512 != TRAILER_BYTES || sums.body != sums.tail {
        return Err("it has no sha256 trailer that fits".into());
    }
    Ok(())
}

/// Removes a snapshot, its note first: a snapshot without a note is still known by its trailer.
fn remove(path: &Path) -> std::io::Result<()> {
    match disk::remove_file(&note_path(path)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    disk::remove_file(path)
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::format::sidecar;
    use crate::ops::Silent;

    fn snapshot(folder: &Path, name: &str, note: bool) -> PathBuf {
        let path = folder.join(name);
        let mut bytes = name.as_bytes().repeat(512);
        bytes.truncate(512);
        let sum = Sha256::digest(&bytes);
        bytes.extend_from_slice(&sum);
        fs::write(&path, &bytes).unwrap();
        if note {
            let note = Sidecar {
                kind: sidecar::KIND.into(),
                version: sidecar::VERSION,
                sha256: hex(&Sha256::digest(&bytes)),
                size_bytes: bytes.len() as u64,
                ..Sidecar::default()
            };
            fs::write(note_path(&path), note.encode().unwrap()).unwrap();
        }
        path
    }

    fn names(all: &[String]) -> Vec<&str> {
        all.iter().map(|path| path.rsplit('/').next().unwrap()).collect()
    }

    #[test]
    fn a_good_one_never_goes_for_a_bad_one() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for day in 1..=5 {
            snapshot(folder, &format!("e-2026110{day}T000000Z.db"), day != 2);
        }
        let bad = folder.join("e-20261104T000000Z.db");
        let mut bytes = fs::read(&bad).unwrap();
        bytes[7] ^= 1;
        fs::write(&bad, bytes).unwrap();
        for other in
            ["e-20261104T000000Z.db.json.bak", "e-2026110xT000000Z.db", "f-20261103T000000Z.db"]
        {
            fs::write(folder.join(other), b"theirs").unwrap();
        }
        fs::create_dir(folder.join("e-20261001T000000Z.db")).unwrap();
        let newest = folder.join("e-20261105T000000Z.db");
        let pattern = folder.join("e-{time}.db");
        let before = fs::read_dir(folder).unwrap().count();
        for dry_run in [true, false] {
            let (done, warnings) = keep_last(&pattern, &newest, 2, dry_run, &Silent);
            assert_eq!(names(&done.kept), ["e-20261105T000000Z.db", "e-20261103T000000Z.db"]);
            let removed = ["e-20261102T000000Z.db", "e-20261101T000000Z.db"];
            assert_eq!(names(&done.removed), removed);
            assert_eq!(done.left_alone.len(), 2, "{done:?}");
            assert!(warnings[0].contains("another sha256"), "{warnings:?}");
            let now = fs::read_dir(folder).unwrap().count();
            assert_eq!(before - now, if dry_run { 0 } else { 3 });
        }
        let (done, _) = keep_last(&pattern, &newest, 2, false, &Silent);
        assert_eq!(names(&done.removed), [""; 0]);
    }

    #[test]
    fn a_time_goes_into_the_name_only() {
        let time = "20261130T124500Z";
        assert!(is_time(time) && !is_time("20261130T124500") && !is_time("20261130 124500Z"));
        let made = |pattern: &str| expand(Path::new(pattern), time);
        assert_eq!(made("/b/e-{time}.db").unwrap(), Path::new("/b/e-20261130T124500Z.db"));
        assert_eq!(made("plain.db").unwrap(), Path::new("plain.db"));
        assert!(made("/b/{time}/e.db").is_err() && made("/b/{time}{time}").is_err());
        assert!(check(Path::new("e-{time}"), Some(0)).is_err());
        assert!(check(Path::new("e"), Some(3)).is_err());
        assert!(
            check(Path::new("e-{time}"), Some(1)).is_ok() && check(Path::new("e"), None).is_ok()
        );
    }
}
