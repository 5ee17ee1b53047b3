//! Reads a file once: sums it, and writes its first bytes to another file at the same time.
//!
//! What is written is what was summed, from the same memory, on a second thread: see
//! `ops::spool`.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use sha2::{Digest, Sha256};

use super::Progress;
use super::disk::OutFile;
use super::spool::{PIECE_BYTES, PIECES, write_all};
use crate::bolt::Source;
use crate::format::{u64_of, usize_of};

/// Bytes of the trailer.
pub const TRAILER_BYTES: u64 = 32;

/// The sums of a file.
#[derive(Clone, Copy, Debug)]
pub struct Digests {
    /// Of the bytes before the trailer.
    pub body: [u8; 32],
    /// Of the whole file.
    pub file: [u8; 32],
    /// The last 32 bytes, where the file has that many.
    pub tail: [u8; 32],
}

/// Where a copy goes, and how many bytes of the file it takes.
#[derive(Clone, Copy, Debug)]
pub struct CopyTo<'a> {
    /// The new file.
    pub out: &'a OutFile,
    /// Bytes to copy, from the first one on.
    pub bytes: u64,
}

/// Why a file could not be summed or copied.
#[derive(Debug)]
pub enum Error {
    /// The file cannot be read.
    Read(io::Error),
    /// The copy cannot be written.
    Write(io::Error),
    /// The operation was told to stop.
    Stopped,
}

/// Sums a file, and copies its first bytes if told to.
///
/// `show`: progress is reported from here.
///
/// # Errors
/// See [`Error`].
pub fn digest(
    source: &Source,
    copy: Option<CopyTo<'_>>,
    progress: &dyn Progress,
    show: bool,
) -> Result<Digests, Error> {
    let mut inline = Inline { copy, piece: Vec::new() };
    let Some(copy) = copy else { return sum(source, progress, show, &mut inline) };
    thread::scope(|scope| {
        let (full, to_write) = sync_channel::<(u64, Vec<u8>)>(PIECES);
        let (back, empty) = sync_channel(PIECES + 2);
        let writer = thread::Builder::new()
            .spawn_scoped(scope, move || write_all(copy.out, &to_write, &back));
        let Ok(writer) = writer else {
            // No further thread to be had: one thing after the other.
            return sum(source, progress, show, &mut inline);
        };
        let mut behind = Behind { copy, full, empty };
        let summed = sum(source, progress, show, &mut behind);
        drop(behind);
        let written = writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // A writer that gave up is why the sum did: its reason is the one to tell.
        written.map_err(Error::Write)?;
        summed
    })
}

/// Takes pieces that were summed, and gives memory for the next one.
trait Sink {
    fn memory(&mut self) -> Vec<u8>;
    fn take(&mut self, offset: u64, piece: Vec<u8>) -> Result<(), Error>;
}

struct Inline<'a> {
    copy: Option<CopyTo<'a>>,
    piece: Vec<u8>,
}

impl Sink for Inline<'_> {
    fn memory(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.piece)
    }

    fn take(&mut self, offset: u64, piece: Vec<u8>) -> Result<(), Error> {
        if let Some(copy) = self.copy {
            copy.out.write_all_at(within(&copy, offset, &piece), offset).map_err(Error::Write)?;
        }
        self.piece = piece;
        Ok(())
    }
}

struct Behind<'a> {
    copy: CopyTo<'a>,
    full: SyncSender<(u64, Vec<u8>)>,
    empty: Receiver<Vec<u8>>,
}

impl Sink for Behind<'_> {
    fn memory(&mut self) -> Vec<u8> {
        self.empty.try_recv().unwrap_or_default()
    }

    fn take(&mut self, offset: u64, mut piece: Vec<u8>) -> Result<(), Error> {
        piece.truncate(within(&self.copy, offset, &piece).len());
        if piece.is_empty() {
            return Ok(());
        }
        // The writer ended early; the caller hears from it why.
        self.full.send((offset, piece)).map_err(|_| Error::Stopped)
    }
}

/// The part of a piece that is to be copied.
fn within<'b>(copy: &CopyTo<'_>, offset: u64, piece: &'b [u8]) -> &'b [u8] {
    let wanted = usize_of(copy.bytes.saturating_sub(offset)).min(piece.len());
    &piece[..wanted]
}

fn sum(
    source: &Source,
    progress: &dyn Progress,
    show: bool,
    sink: &mut dyn Sink,
) -> Result<Digests, Error> {
    let len = source.len();
    let body_bytes = len.saturating_sub(TRAILER_BYTES);
    let mut body = None;
    let mut tail = Vec::new();
    let mut hasher = Sha256::new();
    let mut at = 0;
    while at < len {
        // A piece ends where the trailer may begin.
        let end = if at < body_bytes { body_bytes } else { len };
        let mut piece = sink.memory();
        piece.resize(PIECE_BYTES.min(usize_of(end - at)), 0);
        source.read_at(at, &mut piece).map_err(Error::Read)?;
        if at == body_bytes {
            body = Some(hasher.clone());
            tail.clone_from(&piece);
        }
        hasher.update(&piece);
        let next = at + u64_of(piece.len());
        sink.take(at, piece)?;
        at = next;
        if show {
            progress.advance(at);
        }
        if progress.stopped() {
            return Err(Error::Stopped);
        }
    }
    let file = hasher.clone().finalize().into();
    let body = body.unwrap_or(hasher).finalize().into();
    Ok(Digests { body, file, tail: tail.try_into().unwrap_or([0; 32]) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::hex;
    use crate::ops::Silent;

    #[test]
    fn sums_and_copies_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        for (number, len) in
            [0, 1, 31, 32, 33, PIECE_BYTES, 3 * PIECE_BYTES + 100].iter().enumerate()
        {
            let bytes: Vec<u8> = (0..*len).map(|at| (at % 251) as u8).collect();
            let source = Source::from_bytes(bytes.clone());
            for wanted in [0, 5, *len / 2, *len, *len + 9] {
                let path = folder.path().join(format!("{number}-{wanted}"));
                let out = OutFile::create(&path).unwrap();
                let copy = CopyTo { out: &out, bytes: wanted as u64 };
                let digests = digest(&source, Some(copy), &Silent, false).unwrap();
                assert_eq!(digests.file, <[u8; 32]>::from(Sha256::digest(&bytes)));
                let body = bytes.len().saturating_sub(32);
                assert_eq!(hex(&digests.body), hex(&Sha256::digest(&bytes[..body])));
                if *len >= 32 {
                    assert_eq!(digests.tail, bytes[body..]);
                }
                assert_eq!(std::fs::read(&path).unwrap(), bytes[..wanted.min(*len)]);
                std::fs::remove_file(&path).unwrap();
            }
        }
    }
}
