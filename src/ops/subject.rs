//! What a reading command was given: a snapshot file, or a member's data directory.
//!
//! Either way it is one database to walk. Of a data directory that is the db file with the changes
//! that its log holds beyond it, so that what is shown is what a server has after its start.

use std::fs;
use std::path::{Path, PathBuf};

use super::tail::{self, Dead};
use super::{Error, ExitCode, Progress, holder};
use crate::bolt::overlay::{Edits, Merge};
use crate::bolt::walk::{Walk, walk};
use crate::bolt::{self, At, File, Source, Visit};

/// An open database, and what is to be seen in it.
#[derive(Debug)]
pub struct Subject {
    /// The path as given.
    pub path: PathBuf,
    /// The database file.
    pub file: File,
    /// What the log adds to it.
    pub edits: Edits,
    /// It is a data directory.
    pub is_dir: bool,
}

impl Subject {
    /// Opens a snapshot file, a db file or a data directory, for reading only.
    ///
    /// Of a data directory the log is applied to the database; one without a log is refused, since
    /// what was acknowledged last may be in a log that lies elsewhere.
    ///
    /// # Errors
    /// It is not there, is no database, has no log or one that cannot be relied on, or a server has
    /// it open, which is named at once.
    pub fn open(
        path: &Path,
        wal_dir: Option<&Path>,
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        let is_dir = fs::metadata(path).is_ok_and(|meta| meta.is_dir());
        if !is_dir {
            if wal_dir.is_some() {
                return Err(Error::usage("--wal-dir goes with a data directory"));
            }
            return Self::open_file(path);
        }
        let data_dir = tail::data_dir(path)?;
        let database = data_dir.join("member").join("snap").join("db");
        let alone = |error: Error| {
            let word = super::shell_word(&database.display().to_string());
            match error.code {
                ExitCode::Damage | ExitCode::Refused | ExitCode::NotFound if database.is_file() => {
                    error.hint(format!("for the database without its log, give {word}"))
                }
                _ => error,
            }
        };
        let dead = Dead::open(&data_dir, wal_dir, progress).map_err(alone)?;
        let subject = Self::open_file(&dead.database)?;
        let tail = dead.replay(&subject.file, false, progress).map_err(alone)?;
        if let Some(torn) = dead.torn() {
            progress.note(&torn);
        }
        if tail.left_out > 0 {
            progress.note(&format!(
                "{} entries of the log are not known to be committed and do not count",
                tail.left_out
            ));
        }
        let edits = tail.replayed.edits;
        Ok(Self { path: path.to_owned(), edits, is_dir, ..subject })
    }

    /// Opens a snapshot file or a db file, for reading only.
    ///
    /// # Errors
    /// It is not there, is no database, or a server has it open, which is named at once.
    pub fn open_file(path: &Path) -> Result<Self, Error> {
        let io = |error: std::io::Error| Error::io(&error, "read", path);
        let source = Source::open(path).map_err(io)?;
        if let Some(open) = source.file() {
            holder::share(open, path)?;
        }
        let file = File::from_source(source).map_err(|error| match error {
            bolt::Error::Io(error) => io(error),
            error => {
                let word = super::shell_word(&path.display().to_string());
                Error::new(ExitCode::Damage, format!("{}: {error}", path.display()))
                    .hint(format!("etcdkit snapshot verify {word}"))
            }
        })?;
        Ok(Self { path: path.to_owned(), file, edits: Edits::default(), is_dir: false })
    }

    /// Shows every bucket and row to a visitor, with progress.
    ///
    /// # Errors
    /// The operation was told to stop. Damage is in the result.
    pub fn walk(&self, visitor: &mut dyn Visit, progress: &dyn Progress) -> Result<Walk, Error> {
        let page_bytes = u64::from(self.file.page_size());
        let mut listen = Listen { visitor, progress, page_bytes, interrupted: false };
        let walked = if self.edits.is_empty() {
            walk(&self.file, &mut listen)
        } else {
            let mut merge = Merge::new(self.edits.clone(), &mut listen);
            let walked = walk(&self.file, &mut merge);
            merge.finish();
            walked
        };
        if listen.interrupted { Err(Error::interrupted()) } else { Ok(walked) }
    }
}

/// Shows progress of a walk, and ends it when told to.
struct Listen<'a> {
    visitor: &'a mut dyn Visit,
    progress: &'a dyn Progress,
    page_bytes: u64,
    interrupted: bool,
}

impl Visit for Listen<'_> {
    fn bucket(&mut self, at: &At<'_>, sequence: u64) {
        self.visitor.bucket(at, sequence);
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.visitor.entry(at, key, value);
    }

    fn page(&mut self, entered: u64) -> bool {
        if entered.is_multiple_of(256) {
            self.progress.advance(entered.saturating_mul(self.page_bytes));
        }
        self.interrupted |= self.progress.stopped();
        !self.interrupted && self.visitor.page(entered)
    }
}
