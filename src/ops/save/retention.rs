//! `{time}` in the name of a snapshot, and `--keep-last`: which older ones go.
//!
//! 1. Only names that the pattern makes, in its own folder, of regular files that were saved whole:
//!    their note says the same size and hash, or, without a note, their trailer fits. Anything else
//!    is left alone and named.
//! 2. Only snapshots of the cluster that the new one is of, where their note says so; and none
//!    whose name is of a time to come.
//! 3. The newest ones that are good are kept, the new one among them. The newest older one is read
//!    again whole, so that there are two that are surely good; of the others that stay, note, size
//!    and trailer are looked at. What goes is read again whole before, and so is what has no note.
//!    Where nothing can go, nothing is read whole.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::note_path;
use crate::bolt::Source;
use crate::format::sidecar::Sidecar;
use crate::format::{hex, u64_of, usize_of};
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
    let Some(name) = pattern.file_name() else { return Ok(pattern.to_owned()) };
    let Some(name) = name.to_str() else {
        return match name.to_string_lossy().contains(TIME) {
            true => Err(Error::usage(format!("a name with {TIME} must be text in UTF-8"))),
            false => Ok(pattern.to_owned()),
        };
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
    cluster_id: &str,
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
    let now = newest.file_name().and_then(|name| time_in(pattern, name.to_str()?)).unwrap_or("");
    let mut left = keep_last.saturating_sub(1);
    let mut is_sure = u64_of(older.len()) <= left;
    for (time, path) in older {
        let file = path.display().to_string();
        let state = match time.as_str() > now {
            true => Err("its name is of a time to come, so it does not count".into()),
            false => {
                let depth = if is_sure && left > 0 { Depth::Note } else { Depth::Whole };
                is_good(&path, cluster_id, depth, progress)
            }
        };
        if progress.stopped() {
            warnings.push("interrupted before all older snapshots were looked at".into());
            break;
        }
        match state {
            Err(why) => done.left_alone.push(LeftAlone { file, why }),
            Ok(()) if left > 0 => {
                left -= 1;
                is_sure = true;
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
fn older(pattern: &Path, newest: &Path) -> std::io::Result<Vec<(String, PathBuf)>> {
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
    Ok(found)
}

fn is_time(text: &str) -> bool {
    let fits = |(byte, shape): (u8, &u8)| match shape {
        b'0' => byte.is_ascii_digit(),
        _ => byte == *shape,
    };
    text.len() == SHAPE.len() && text.bytes().zip(SHAPE).all(fits)
}

/// How far a file is looked into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    /// Its note, its size and the last bytes; the whole of it where there is no note.
    Note,
    Whole,
}

/// Tells whether a file is a snapshot of a cluster that was saved whole and is so still; else why
/// not.
fn is_good(
    path: &Path,
    cluster_id: &str,
    depth: Depth,
    progress: &dyn Progress,
) -> Result<(), String> {
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
    let others = |note: &Sidecar| !note.cluster_id.is_empty() && note.cluster_id != cluster_id;
    if let Some(note) = note.as_ref().filter(|note| others(note)) {
        return Err(format!("it is of another cluster, {}", note.cluster_id));
    }
    if note.as_ref().is_some_and(|note| note.quorum == Some(false)) {
        return Err("it was saved without a majority, so it does not count".into());
    }
    if depth == Depth::Note && note.is_some() {
        let start = source.len().saturating_sub(TRAILER_BYTES);
        let trailer = source.read_up_to(start, usize_of(TRAILER_BYTES));
        let trailer = trailer.map_err(|error| error.to_string())?;
        let is_blank = trailer.iter().all(|byte| *byte == 0);
        return match source.len() % 512 == TRAILER_BYTES && !is_blank {
            true => Ok(()),
            false => Err("it has no sha256 trailer".into()),
        };
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
                cluster_id: "c1".into(),
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
            let (done, warnings) = keep_last(&pattern, &newest, 2, "c1", dry_run, &Silent);
            assert_eq!(names(&done.kept), ["e-20261105T000000Z.db", "e-20261103T000000Z.db"]);
            let removed = ["e-20261102T000000Z.db", "e-20261101T000000Z.db"];
            assert_eq!(names(&done.removed), removed);
            assert_eq!(done.left_alone.len(), 2, "{done:?}");
            assert!(warnings[0].contains("another sha256"), "{warnings:?}");
            let now = fs::read_dir(folder).unwrap().count();
            assert_eq!(before - now, if dry_run { 0 } else { 3 });
        }
        let (done, _) = keep_last(&pattern, &newest, 2, "c1", false, &Silent);
        assert_eq!(names(&done.removed), [""; 0]);
    }

    #[test]
    fn other_clusters_and_times_to_come_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        for day in [1, 2, 3, 4, 6] {
            snapshot(folder, &format!("e-2026110{day}T000000Z.db"), true);
        }
        let theirs = folder.join("e-20261102T000000Z.db.json");
        let note = fs::read_to_string(&theirs).unwrap().replace("\"c1\"", "\"c2\"");
        fs::write(&theirs, note).unwrap();
        let pattern = folder.join("e-{time}.db");
        let newest = snapshot(folder, "e-20261105T000000Z.db", true);
        let (done, warnings) = keep_last(&pattern, &newest, 2, "c1", false, &Silent);
        assert_eq!(names(&done.kept), ["e-20261105T000000Z.db", "e-20261104T000000Z.db"]);
        assert_eq!(names(&done.removed), ["e-20261103T000000Z.db", "e-20261101T000000Z.db"]);
        assert!(warnings[0].contains("e-20261106") && warnings[0].contains("a time to come"));
        assert!(warnings[1].contains("of another cluster, c2"), "{warnings:?}");
    }

    /// Counts the bytes of the older files that are read whole, and stops when told to.
    struct Reads(std::sync::Mutex<u64>, bool);

    impl Progress for Reads {
        fn step(&self, _: &str, total: u64) {
            *self.0.lock().unwrap() += total;
        }
        fn advance(&self, _: u64) {}
        fn note(&self, _: &str) {}
        fn stopped(&self) -> bool {
            self.1
        }
    }

    #[test]
    fn of_what_stays_the_newest_is_read_and_nothing_where_nothing_can_go() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        let all = [1, 2, 3, 4, 5]
            .map(|day| snapshot(folder, &format!("e-2026110{day}T000000Z.db"), true));
        let (pattern, newest) = (folder.join("e-{time}.db"), &all[4]);
        let len = fs::metadata(newest).unwrap().len();
        for (keep, files) in [(9, 0), (5, 0), (4, 2), (2, 4)] {
            let reads = Reads(0.into(), false);
            let (done, _) = keep_last(&pattern, newest, keep, "c1", true, &reads);
            assert_eq!(*reads.0.lock().unwrap(), files * len, "{keep}");
            assert_eq!(done.kept.len() as u64, keep.min(5));
        }
        // One that was cut since is no backup, though nobody has read it whole.
        fs::write(&all[1], &fs::read(&all[1]).unwrap()[..512]).unwrap();
        let (done, _) = keep_last(&pattern, newest, 5, "c1", true, &Silent);
        assert_eq!((done.kept.len(), done.left_alone.len()), (4, 1));
        let (done, warnings) = keep_last(&pattern, newest, 1, "c1", false, &Reads(0.into(), true));
        assert_eq!(done.removed.len(), 0);
        assert!(warnings[0].contains("interrupted"), "{warnings:?}");
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
