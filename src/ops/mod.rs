//! One verb a file: options in, a report out.
//!
//! Contract of the layer: an operation prints nothing and reads no flags; it reports progress
//! through [`Progress`], stops when that says so, and returns a report or an [`Error`] that knows
//! its exit code and the next command. Inputs are opened read-only. What it makes appears whole
//! or not at all ([`stage`]).

#[cfg(feature = "live")]
mod admin;
pub mod audit;
pub mod clock;
#[cfg(feature = "live")]
pub mod cluster;
#[cfg(feature = "live")]
pub mod compaction;
pub mod defrag;
#[cfg(all(feature = "live", feature = "serve"))]
pub mod demo;
pub mod digest;
#[cfg(feature = "live")]
pub mod disarm;
pub mod disk;
pub mod examine;
pub mod exit;
pub mod hashkv;
pub mod holder;
pub mod inspect;
#[cfg(feature = "live")]
pub mod kubeadm;
#[cfg(feature = "live")]
pub mod lock;
pub mod new_file;
#[cfg(feature = "live")]
pub mod online;
pub mod progress;
#[cfg(feature = "live")]
pub mod reach;
#[cfg(feature = "live")]
pub mod reclaim;
pub mod restore;
pub mod rewrite;
pub mod save;
pub mod spool;
pub mod stage;
pub mod status;
pub mod subject;
pub mod tail;
pub mod verify;
pub mod verify_dir;

use std::fmt;
use std::path::Path;

pub use exit::ExitCode;
pub use progress::{Progress, Silent};

use crate::format::finding::Finding;

/// Why an operation did not finish.
#[derive(Debug)]
pub struct Error {
    /// What the program exits with; also the kind of the error.
    pub code: ExitCode,
    /// A narrower word for it than the code's name, for whoever counts failures by reason.
    pub reason: Option<&'static str>,
    /// What happened, as a sentence without a full stop.
    pub message: String,
    /// What to run or do next, most useful first.
    pub hints: Vec<String>,
    /// The damage that stopped it, where damage did.
    pub findings: Vec<Finding>,
}

impl Error {
    /// Makes an error without hints.
    #[must_use]
    pub fn new(code: ExitCode, message: impl Into<String>) -> Self {
        let (hints, findings) = (Vec::new(), Vec::new());
        Self { code, reason: None, message: message.into(), hints, findings }
    }

    /// Makes an error of kind [`ExitCode::Refused`].
    #[must_use]
    pub fn refused(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Refused, message)
    }

    /// Makes an error of kind [`ExitCode::Usage`].
    #[must_use]
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(ExitCode::Usage, message)
    }

    /// Makes the error of an operation that was told to stop.
    #[must_use]
    pub fn interrupted() -> Self {
        Self::new(ExitCode::Interrupted, "interrupted; nothing was changed")
    }

    /// Makes an error out of what the operating system said about a path.
    #[must_use]
    pub fn io(error: &std::io::Error, doing: &str, path: &Path) -> Self {
        let code = match error.kind() {
            std::io::ErrorKind::NotFound => ExitCode::NotFound,
            _ => ExitCode::Failed,
        };
        let failed = Self::new(code, format!("cannot {doing} {}: {error}", path.display()));
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                failed.because("disk_full").hint("the disk is full; the target is as it was")
            }
            std::io::ErrorKind::PermissionDenied => {
                failed.hint("run this as root, or as the owner of the directory")
            }
            _ => failed,
        }
    }

    /// Sets [`Error::reason`].
    #[must_use]
    pub fn because(mut self, reason: &'static str) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Adds what to run or do next.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

/// Quotes a word for a POSIX shell, where it needs that.
#[must_use]
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Joins words into a command line that a POSIX shell reads back the same.
#[must_use]
pub fn shell_line(words: &[String]) -> String {
    words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_when_needed() {
        let words = ["a=http://h:1,b".into(), "it's".into(), String::new(), "a b".into()];
        assert_eq!(shell_line(&words), r"a=http://h:1,b 'it'\''s' '' 'a b'");
    }
}
