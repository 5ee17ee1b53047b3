//! A database file whose place another one took: who still has it, and how nobody begins to write
//! in it.
//!
//! bbolt opens a file and then waits for its lock. Whoever opened it before it lost its name gets
//! the lock when we let go of it, and what he then writes is lost. So the offline defragmentation
//! lets a file that others are seen to have open keep its place, and the store, which cannot, makes
//! the old one no database before its lock goes, as does who sees nobody, since not all are seen.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes of a page's head and the meta record behind it.
const META_BYTES: usize = 80;

/// Finds another process that has a file open, whatever its name is now, locked or not.
///
/// bbolt opens a file and then tries its lock again and again, so a server that waits for one is
/// found by this alone. Only processes that `/proc` shows to us are seen.
#[must_use]
pub fn with_open(file: &File) -> Option<String> {
    let meta = file.metadata().ok()?;
    let own = std::process::id().to_string();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut others = processes.filter(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_other = name.chars().all(|c| c.is_ascii_digit()) && name != own.as_str();
        is_other && !is_our_child(&entry.path(), &own)
    });
    let other = others.find(|entry| {
        let open = fs::read_dir(entry.path().join("fd")).into_iter().flatten().flatten();
        open.into_iter().any(|fd| {
            let there = fs::metadata(fd.path());
            there.is_ok_and(|there| (there.dev(), there.ino()) == (meta.dev(), meta.ino()))
        })
    })?;
    let name = fs::read_to_string(other.path().join("comm")).unwrap_or_default();
    Some(format!("process {} ({})", other.file_name().to_string_lossy(), name.trim()))
}

/// Tells whether a process is a child of this one: between its fork and its exec it has open what
/// we have open, and does nothing with it.
fn is_our_child(process: &Path, own: &str) -> bool {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.is_some_and(|parent| parent.trim() == own)
}

/// Makes what `write` writes to, at an offset in bytes, no database any more: who opens it fails,
/// and so neither takes it for one nor makes a new one of it.
///
/// # Errors
/// What cannot be written; the file may then be a database still.
pub fn invalidate(
    page_bytes: u32,
    write: &mut dyn FnMut(&[u8], u64) -> io::Result<()>,
) -> io::Result<()> {
    write(&[0; META_BYTES], 0)?;
    write(&[0; META_BYTES], u64::from(page_bytes))
}
