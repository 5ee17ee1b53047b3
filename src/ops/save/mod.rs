//! `snapshot save`: from a running member ([`live`]), or of a dead one ([`dead`]).
//!
//! 1. What is saved is checked whole before it gets its name: a snapshot that is there is done.
//! 2. The note beside it gets its name first, the snapshot last. Nothing is replaced.

pub mod dead;
#[cfg(feature = "live")]
pub mod live;
#[cfg(feature = "live")]
mod metrics;
#[cfg(feature = "live")]
mod pick;
#[cfg(feature = "live")]
mod pipe;
#[cfg(feature = "live")]
mod proof;
#[cfg(feature = "live")]
mod receive;
#[cfg(feature = "live")]
mod retention;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;

pub use dead::{Count, LogReport, Options, Report, save};

use super::new_file::NewFile;
use super::{Error, ExitCode};
use crate::format::sidecar::Sidecar;

/// How long a step took.
#[derive(Clone, Debug, Serialize)]
pub struct Step {
    /// `verify`, `replay`, `build`, `check`, `publish`; of a running member `choose`, `stream`,
    /// `verify`, `hashkv`, `publish`, `retention`.
    pub step: &'static str,
    /// Milliseconds.
    pub ms: u64,
}

impl Step {
    fn since(step: &'static str, began: Instant) -> Self {
        Self { step, ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX) }
    }
}

/// Names the note beside a snapshot.
fn note_path(snapshot: &Path) -> PathBuf {
    let mut name = snapshot.as_os_str().to_owned();
    name.push(".json");
    name.into()
}

/// Writes the note, and gives both their names, the note's first; returns what failed after that.
///
/// # Errors
/// The disk, or a name was taken meanwhile; neither has its name then.
fn publish(content: &Sidecar, mut note: NewFile, snapshot: NewFile) -> Result<Vec<String>, Error> {
    let content = content.encode().map_err(|error| Error::new(ExitCode::Failed, error))?;
    let path = note.target().to_owned();
    note.out().write_all(&content).map_err(|error| Error::io(&error, "write", &path))?;
    snapshot.publish_with(Some(note))
}
