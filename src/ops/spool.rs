//! Writes a large new file while other work goes on.
//!
//! Pieces are written by a second thread; a third one tells the disk to begin every
//! 32 MiB, so that little is left to wait for at the end.

use std::io::{self, Seek, SeekFrom, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use crate::format::u64_of;
use crate::ops::disk::OutFile;

/// All pieces together fit a core's cache: reading into memory that is not in it costs five times
/// as much, and is most of the work then.
pub(super) const PIECE_BYTES: usize = 64 << 10;
/// Pieces that may wait to be written.
pub(super) const PIECES: usize = 4;
const FLUSH_BYTES: u64 = 32 << 20;

/// Where a builder writes to.
#[derive(Debug)]
pub struct Spool<'a> {
    sink: Sink<'a>,
    piece: Vec<u8>,
    /// Where the piece begins in the file.
    at: u64,
}

#[derive(Debug)]
enum Sink<'a> {
    Thread { full: SyncSender<(u64, Vec<u8>)>, empty: Receiver<Vec<u8>> },
    Here(&'a OutFile),
}

/// Runs `work` with a spool into a file; all is written when this returns.
///
/// # Errors
/// What the disk said. What `work` returned is worth nothing then.
pub fn spool<T>(out: &OutFile, work: impl FnOnce(Spool<'_>) -> T) -> io::Result<T> {
    thread::scope(|scope| {
        let (full, to_write) = sync_channel::<(u64, Vec<u8>)>(PIECES);
        let (back, empty) = sync_channel(PIECES + 2);
        let writer =
            thread::Builder::new().spawn_scoped(scope, move || write_all(out, &to_write, &back));
        let Ok(writer) = writer else {
            // No second thread to be had: one thing after the other.
            return Ok(work(Spool { sink: Sink::Here(out), piece: Vec::new(), at: 0 }));
        };
        let sink = Sink::Thread { full, empty };
        let done = work(Spool { sink, piece: Vec::new(), at: 0 });
        writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(done)
    })
}

/// Writes pieces that come with their places, and gives their memory back, until there are no more.
pub(super) fn write_all(
    out: &OutFile,
    pieces: &Receiver<(u64, Vec<u8>)>,
    back: &SyncSender<Vec<u8>>,
) -> io::Result<()> {
    thread::scope(|scope| {
        let (tell, flush) = sync_channel::<()>(1);
        // Without this thread the disk begins later; the last sync tells what fails here.
        let flusher = thread::Builder::new().spawn_scoped(scope, move || {
            while flush.recv().is_ok() {
                out.begin();
            }
        });
        drop(flusher);
        let mut unflushed = 0;
        while let Ok((offset, mut piece)) = pieces.recv() {
            out.write_all_at(&piece, offset)?;
            unflushed += u64_of(piece.len());
            if unflushed >= FLUSH_BYTES && tell.try_send(()).is_ok() {
                unflushed = 0;
            }
            piece.clear();
            let _ = back.try_send(piece);
        }
        Ok(())
    })
}

impl Spool<'_> {
    fn send(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let at = self.at;
        self.at += u64_of(self.piece.len());
        match &self.sink {
            Sink::Thread { full, empty } => {
                let next = empty.try_recv().unwrap_or_else(|_| Vec::with_capacity(PIECE_BYTES));
                let piece = std::mem::replace(&mut self.piece, next);
                // The writer ended early, and says itself why.
                full.send((at, piece)).map_err(|_| io::Error::other("the writer ended"))
            }
            Sink::Here(out) => {
                out.write_all_at(&self.piece, at)?;
                self.piece.clear();
                Ok(())
            }
        }
    }
}

impl Write for Spool<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.piece.len() + bytes.len() > PIECE_BYTES {
            self.send()?;
        }
        self.piece.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

impl Seek for Spool<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.send()?;
        let SeekFrom::Start(at) = to else { return Err(io::ErrorKind::Unsupported.into()) };
        self.at = at;
        Ok(at)
    }
}

/// Counts what would be written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Nowhere;

impl Write for Nowhere {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Nowhere {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match to {
            SeekFrom::Start(at) => Ok(at),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_and_a_seek_land_where_they_should() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let out = OutFile::create(&path).unwrap();
        let page = vec![7; 70_000];
        let done = spool(&out, |mut spool| -> io::Result<()> {
            spool.seek(SeekFrom::Start(100))?;
            for _ in 0..60 {
                spool.write_all(&page)?;
            }
            spool.seek(SeekFrom::Start(0))?;
            spool.write_all(&[1; 100])?;
            spool.flush()
        });
        done.unwrap().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 100 + 60 * 70_000);
        assert!(bytes[..100].iter().all(|b| *b == 1) && bytes[100..].iter().all(|b| *b == 7));
    }

    #[test]
    fn a_full_disk_is_told() {
        let Ok(full) = std::fs::OpenOptions::new().write(true).open("/dev/full") else {
            panic!("there is no /dev/full to write to");
        };
        let out = OutFile::of_new(full, std::path::Path::new("/dev/full"));
        let done = spool(&out, |mut spool| (0..20).all(|_| spool.write_all(&[0; 1 << 20]).is_ok()));
        assert_eq!(done.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
