//! The record that every change leaves: one JSON object a line, appended to a file of mode 0600.
//!
//! Shape: `time` (RFC 3339), `version`, `uid`, `user`, `pid`, `host`, `operation`, `result`,
//! `before`, `after` (objects with hashes), `equivalent` (command lines), `warnings`.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::clock;

/// Where the records go when no flag says otherwise.
pub const DEFAULT_PATH: &str = "/var/lib/etcdkit/audit.jsonl";

/// The result of what went as it should.
pub const OK: &str = "ok";

/// One change, as it is recorded.
#[derive(Clone, Debug)]
pub struct Record {
    /// The command's words, such as `snapshot restore`.
    pub operation: &'static str,
    /// `ok`, or what went wrong after something was changed.
    pub result: String,
    /// What was there: paths and hashes.
    pub before: Value,
    /// What is there now.
    pub after: Value,
    /// The ordinary commands that do the same.
    pub equivalent: Vec<String>,
    /// What was overridden or is to be known.
    pub warnings: Vec<String>,
}

/// Tells whether a file is empty or begins as a record does, be it a cut one.
fn is_record(file: &fs::File, len: u64) -> io::Result<bool> {
    const START: &[u8] = b"{\"time\":";
    let mut head = vec![0; START.len().min(usize::try_from(len).unwrap_or(START.len()))];
    file.read_exact_at(&mut head, 0)?;
    Ok(START.starts_with(&head))
}

/// Appends a record.
///
/// # Errors
/// The file or its folder cannot be made or written, or holds something else. Callers warn and go
/// on.
pub fn append(path: &Path, record: &Record) -> io::Result<PathBuf> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        // Others may look for metrics beside the record; the record itself is its owner's alone.
        fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
    }
    let mut options = OpenOptions::new();
    options.read(true).append(true).create(true).mode(0o600);
    // A pipe must not be waited for; what is no plain file holds no record.
    let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    let mut file = options.custom_flags(nonblock).open(path)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    if !is_record(&file, meta.len())? {
        // Somebody's data: a snapshot, a database, a note.
        let message = "it holds something else than audit records, and was left alone";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let mut last = [b'\n'];
    if let Some(at) = meta.len().checked_sub(1) {
        file.read_exact_at(&mut last, at)?;
    }
    let lead = if last == [b'\n'] { "" } else { "\n" };
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let line = json!({
        "time": clock::rfc3339(),
        "version": env!("CARGO_PKG_VERSION"),
        "uid": rustix::process::getuid().as_raw(),
        "user": std::env::var("SUDO_USER").or_else(|_| std::env::var("USER")).unwrap_or_default(),
        "pid": std::process::id(),
        "host": host.trim(),
        "operation": record.operation,
        "result": record.result,
        "before": record.before,
        "after": record.after,
        "equivalent": record.equivalent,
        "warnings": record.warnings,
    });
    // One write, so that two programs that append at once do not mix their lines.
    file.write_all(format!("{lead}{line}\n").as_bytes())?;
    file.sync_all()?;
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn others_may_pass_its_folder_and_not_read_it() {
        let top = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let plain = top.path().join("plain");
        fs::create_dir(&plain).unwrap();
        let folder = top.path().join("etcdkit");
        let record = Record {
            operation: "snapshot save",
            result: OK.into(),
            before: Value::Null,
            after: Value::Null,
            equivalent: Vec::new(),
            warnings: Vec::new(),
        };
        let file = append(&folder.join("audit.jsonl"), &record).unwrap();
        // As open as the umask lets it be, but for writing.
        assert_eq!(mode(&folder), mode(&plain) & 0o755);
        assert_eq!(mode(&file), 0o600);
    }
}
