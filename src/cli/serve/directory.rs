//! What is said of the place that is served: who has it open, why it cannot be, and who may look.

use std::fs::{File, Metadata};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::value::quoted;
use crate::ops::holder;
use crate::store::OpenError;
use crate::store::lines::Log;

/// Says why a place cannot be opened, and what to do.
pub(super) fn cannot_open(error: &OpenError, path: &Path) -> String {
    let text = match error {
        // The holder is named where the system tells.
        OpenError::InUse(held) => match File::open(held) {
            Ok(file) => holder::in_use(&file, held).message,
            Err(_) => error.to_string(),
        },
        error => error.to_string(),
    };
    match error {
        OpenError::InUse(_) => {
            format!("{text}; stop that process, or serve a snapshot of it with --read-only FILE")
        }
        OpenError::Disk(_) if text.contains("Permission denied") => {
            let path = path.display();
            format!("{text}; run it as the user whose files they are (ls -ld {path})")
        }
        _ => text,
    }
}

/// Refuses a file where a directory is wanted: a snapshot, as a rule.
pub(super) fn check_no_file(dir: &Path) -> Result<(), String> {
    if !dir.is_file() {
        return Ok(());
    }
    let dir = dir.display();
    Err(format!(
        "--data-dir {dir} is a file: look into a snapshot with etcdkit serve --read-only {dir}, or \
         make a directory of it with etcdkit snapshot restore {dir} --data-dir DIR"
    ))
}

/// Warns of a directory that others may look into, as etcd does (client/pkg/fileutil,
/// `CheckDirPermission`, 3.7.1).
pub(super) fn warn_of_mode(dir: &Path, log: &Log) {
    let Ok(found) = dir.metadata() else { return };
    if found.permissions().mode() & 0o777 == 0o700 {
        return;
    }
    let error = format!(
        "directory {} exist, but the permission is {}. The recommended permission is \
         \"-rwx------\" to prevent possible unprivileged access to the data",
        quoted(&dir.to_string_lossy()),
        quoted(&go_mode(&found))
    );
    log.warn("check file permission", &[("error", &error)]);
}

/// Writes a directory's mode as Go does.
fn go_mode(found: &Metadata) -> String {
    let mode = found.mode();
    let mut text = String::from("d");
    for (bit, letter) in [(0o4000, 'u'), (0o2000, 'g'), (0o1000, 't')] {
        if mode & bit != 0 {
            text.push(letter);
        }
    }
    for (n, letter) in "rwxrwxrwx".chars().enumerate() {
        text.push(if mode & (0o400 >> n) != 0 { letter } else { '-' });
    }
    text
}
