//! Files that others write while we serve: read again when they changed, and only then.
//!
//! A change is seen by device, inode, size and times. Two writes within one tick of a file system's
//! clock may leave the same times, so what was read soon after it was written is read again and its
//! sums are compared, until it is older than [`SETTLED`].

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};

use super::settings::TlsError;
use crate::store::lines::Log;

/// Age from which a file's times tell its next change; more than any file system's tick.
const SETTLED: Duration = Duration::from_secs(3);

/// Some files that make one value.
#[derive(Debug)]
pub(super) struct Files {
    paths: Vec<PathBuf>,
    /// Longest file, in bytes.
    limit: u64,
    seen: Vec<Seen>,
    complaint: Option<String>,
}

/// One file as it was read last.
#[derive(Debug)]
struct Seen {
    stamp: Stamp,
    is_settled: bool,
    sum: [u8; 32],
}

/// Device, inode, size in bytes, and when contents and inode changed, in seconds and nanoseconds.
type Stamp = (u64, u64, u64, (i64, i64), (i64, i64));

impl Files {
    /// Reads files for the first time.
    pub(super) fn open(paths: Vec<PathBuf>, limit: u64) -> Result<(Self, Vec<Vec<u8>>), TlsError> {
        let (seen, texts) = read_all(&paths, limit)?;
        Ok((Self { paths, limit, seen, complaint: None }, texts))
    }

    pub(super) fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// Makes a new value where the files changed and are fit for one. What is wrong with them is
    /// told once.
    pub(super) fn renewed<T>(
        &mut self,
        log: &Log,
        make: impl FnOnce(&[Vec<u8>]) -> Result<T, TlsError>,
    ) -> Option<T> {
        match self.changed() {
            Ok(None) => None,
            Ok(Some(texts)) => match make(&texts) {
                Ok(value) => {
                    self.complaint = None;
                    Some(value)
                }
                Err(error) => self.complain(log, &error),
            },
            Err(error) => self.complain(log, &error),
        }
    }

    fn complain<T>(&mut self, log: &Log, error: &TlsError) -> Option<T> {
        let text = format!("{error}; what was read before stays in use");
        if self.complaint.as_ref() != Some(&text) {
            log.warn(&text, &[]);
            self.complaint = Some(text);
        }
        None
    }

    fn changed(&mut self) -> Result<Option<Vec<Vec<u8>>>, TlsError> {
        let is_same = |(path, seen): (&PathBuf, &Seen)| {
            seen.is_settled && fs::metadata(path).is_ok_and(|now| stamp(&now) == seen.stamp)
        };
        if self.paths.iter().zip(&self.seen).all(is_same) {
            return Ok(None);
        }
        let (seen, texts) = read_all(&self.paths, self.limit)?;
        let is_new = !seen.iter().map(|one| one.sum).eq(self.seen.iter().map(|one| one.sum));
        self.seen = seen;
        Ok(is_new.then_some(texts))
    }
}

fn read_all(paths: &[PathBuf], limit: u64) -> Result<(Vec<Seen>, Vec<Vec<u8>>), TlsError> {
    let (mut seen, mut texts) = (Vec::new(), Vec::new());
    for path in paths {
        let (one, text) = read(path, limit)?;
        seen.push(one);
        texts.push(text);
    }
    Ok((seen, texts))
}

fn read(path: &Path, limit: u64) -> Result<(Seen, Vec<u8>), TlsError> {
    let unread = |error: io::Error| TlsError::file(path, format!("it cannot be read: {error}"));
    let file = File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => TlsError::file(path, "no such file or directory"),
        _ => unread(error),
    })?;
    // Before the contents: what is written meanwhile is a change.
    let before = file.metadata().map_err(unread)?;
    if before.is_dir() {
        return Err(TlsError::file(path, "it is a directory, and a file is wanted"));
    }
    let now = SystemTime::now();
    let mut text = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut text).map_err(unread)?;
    if u64::try_from(text.len()).is_ok_and(|size| size > limit) {
        return Err(TlsError::file(path, format!("it is longer than {limit} bytes")));
    }
    let changed = Duration::from_secs(u64::try_from(before.ctime()).unwrap_or(0));
    let age = now.duration_since(UNIX_EPOCH).unwrap_or_default().checked_sub(changed);
    let is_settled = age.is_some_and(|age| age >= SETTLED);
    let sum = Sha256::digest(&text).into();
    Ok((Seen { stamp: stamp(&before), is_settled, sum }, text))
}

fn stamp(file: &fs::Metadata) -> Stamp {
    let changes = ((file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec()));
    (file.dev(), file.ino(), file.size(), changes.0, changes.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_seen_at_once_and_a_fault_is_told_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "one").unwrap();
        let (mut files, texts) = Files::open(vec![path.clone()], 10).unwrap();
        assert_eq!(texts, [b"one"]);
        let (log, kept) = Log::kept();
        let mut renewed = || files.renewed(&log, |texts| Ok(texts.concat()));
        assert_eq!(renewed(), None);
        // As long, and most likely within one tick of the clock.
        for text in ["two", "six", "ten"] {
            fs::write(&path, text).unwrap();
            assert_eq!(renewed(), Some(text.as_bytes().to_vec()));
            assert_eq!(renewed(), None);
        }
        fs::remove_file(&path).unwrap();
        for _ in 0..3 {
            assert_eq!(renewed(), None);
        }
        fs::write(&path, "much too long").unwrap();
        assert_eq!(renewed(), None);
        assert_eq!(renewed(), None);
        fs::write(&path, "ten").unwrap();
        assert_eq!(renewed(), None, "nothing is new in it");
        let told: Vec<_> = kept.take().into_iter().map(|line| line["msg"].clone()).collect();
        let name = path.display();
        assert_eq!(
            told,
            [
                format!("{name}: no such file or directory; what was read before stays in use"),
                format!("{name}: it is longer than 10 bytes; what was read before stays in use"),
            ]
        );
    }

    #[test]
    fn an_old_file_is_not_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "one").unwrap();
        let (mut files, _) = Files::open(vec![path.clone()], 10).unwrap();
        assert!(!files.seen.iter().all(|seen| seen.is_settled), "it is new");
        for seen in &mut files.seen {
            // As if it were old; the sum would tell if the file was read.
            (seen.is_settled, seen.sum) = (true, [0; 32]);
        }
        assert!(files.changed().unwrap().is_none());
        fs::rename(&path, dir.path().join("b")).unwrap();
        fs::write(&path, "two").unwrap();
        assert!(files.changed().unwrap().is_some());
    }
}
