//! Writing to a pipe that somebody else reads, within a limit.
//!
//! A write to a pipe waits for its reader, for ever if need be, and cannot be called off. So it is
//! done on a thread of its own, which is left behind when the limit passes: the program ends then.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::format::u64_of;
use crate::ops::{Error, Progress};

/// Bytes that go to the thread at once.
const PIECE_BYTES: usize = 64 << 10;
/// Pieces that may wait.
const PIECES: usize = 8;
/// Time between two looks at a pipe that is full.
const TICK: Duration = Duration::from_millis(2);
/// What stands for being told to stop: a write that is interrupted is tried again.
const STOPPED: io::ErrorKind = io::ErrorKind::ConnectionAborted;

/// Standard output as a place for a snapshot.
///
/// # Errors
/// It is a terminal, or nothing that keeps bytes ([`crate::ops::ExitCode::Usage`]).
pub(super) fn stdout() -> Result<File, Error> {
    let failed =
        |error: &io::Error| Error::usage(format!("standard output cannot be used: {error}"));
    let out = io::stdout().as_fd().try_clone_to_owned().map_err(|error| failed(&error))?;
    let out = File::from(out);
    let meta = out.metadata().map_err(|error| failed(&error))?;
    if io::IsTerminal::is_terminal(&out) {
        return Err(Error::usage("a snapshot is not written to a terminal")
            .hint("etcdkit snapshot save - | PROGRAM, or name a file"));
    }
    // What a program without standard output has in its place, too.
    let null = std::fs::metadata("/dev/null").map(|null| null.rdev());
    if meta.file_type().is_char_device() && null.is_ok_and(|null| null == meta.rdev()) {
        return Err(Error::usage(
            "standard output is closed or /dev/null: the snapshot would be lost",
        )
        .hint("etcdkit snapshot save - | PROGRAM, or name a file"));
    }
    Ok(out)
}

/// A pipe that is written to.
pub(super) struct Pipe<'a> {
    pieces: Option<SyncSender<Vec<u8>>>,
    piece: Vec<u8>,
    state: Arc<State>,
    failed: Receiver<io::Error>,
    idle: Duration,
    progress: &'a dyn Progress,
    /// Bytes that were handed over.
    sent: u64,
}

#[derive(Default)]
struct State {
    /// Bytes that somebody took.
    written: AtomicU64,
    is_done: AtomicBool,
}

impl<'a> Pipe<'a> {
    /// Starts the thread that writes.
    ///
    /// # Errors
    /// There is no thread to be had.
    pub(super) fn new(out: File, idle: Duration, progress: &'a dyn Progress) -> io::Result<Self> {
        let (pieces, taken) = sync_channel::<Vec<u8>>(PIECES);
        let (tell, failed) = sync_channel(1);
        let state = Arc::new(State::default());
        let told = state.clone();
        thread::Builder::new().spawn(move || {
            if let Err(error) = write_all(out, &taken, &told) {
                let _ = tell.try_send(error);
            }
            told.is_done.store(true, Ordering::Release);
        })?;
        let piece = Vec::with_capacity(PIECE_BYTES);
        Ok(Self { pieces: Some(pieces), piece, state, failed, idle, progress, sent: 0 })
    }

    /// Tells whether any byte has gone out, or may have.
    pub(super) fn has_begun(&self) -> bool {
        self.sent > 0
    }

    /// Waits until all is written.
    ///
    /// # Errors
    /// The reader is gone, takes nothing for too long, or the operation was told to stop.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.flush()?;
        self.pieces = None;
        self.wait(|pipe| pipe.state.is_done.load(Ordering::Acquire))?;
        self.failed.try_recv().map_or(Ok(()), Err)
    }

    /// Waits for something, as long as the reader takes bytes now and then.
    fn wait(&mut self, mut is_there: impl FnMut(&mut Self) -> bool) -> io::Result<()> {
        let written = |pipe: &Self| pipe.state.written.load(Ordering::Relaxed);
        let (mut before, mut since) = (written(self), Instant::now());
        while !is_there(self) {
            if self.progress.stopped() {
                return Err(STOPPED.into());
            }
            let now = written(self);
            if now != before {
                (before, since) = (now, Instant::now());
            }
            if since.elapsed() >= self.idle {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(TICK);
        }
        Ok(())
    }

    fn send(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        self.sent += u64_of(self.piece.len());
        let mut piece = Some(std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE_BYTES)));
        self.wait(|pipe| {
            let (Some(pieces), Some(full)) = (&pipe.pieces, piece.take()) else { return true };
            match pieces.try_send(full) {
                Ok(()) | Err(TrySendError::Disconnected(_)) => true,
                Err(TrySendError::Full(full)) => {
                    piece = Some(full);
                    false
                }
            }
        })?;
        self.failed.try_recv().map_or(Ok(()), Err)
    }
}

fn write_all(mut out: File, pieces: &Receiver<Vec<u8>>, state: &State) -> io::Result<()> {
    while let Ok(piece) = pieces.recv() {
        let mut left = piece.as_slice();
        while !left.is_empty() {
            match out.write(left) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => {
                    state.written.fetch_add(u64_of(count), Ordering::Relaxed);
                    left = left.get(count..).unwrap_or_default();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    match out.metadata()?.is_file() {
        true => out.sync_all(),
        false => Ok(()),
    }
}

impl Write for Pipe<'_> {
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

/// Makes the error of a pipe.
pub(super) fn failed(error: &io::Error, idle: Duration) -> Error {
    use crate::ops::ExitCode;
    match error.kind() {
        STOPPED => Error::interrupted(),
        io::ErrorKind::TimedOut => Error::new(
            ExitCode::Unreachable,
            format!("what reads the pipe took nothing for {} s", idle.as_secs()),
        )
        .hint("--idle-timeout sets the limit; what went out is not a whole snapshot"),
        io::ErrorKind::BrokenPipe => {
            Error::new(ExitCode::Failed, "what reads the pipe ended before the snapshot did")
                .hint("what went out is not a whole snapshot")
        }
        _ => Error::new(ExitCode::Failed, format!("cannot write to standard output: {error}"))
            .hint("what went out is not a whole snapshot"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::ops::Silent;

    #[test]
    fn a_reader_that_takes_nothing_or_ends_is_told() {
        let idle = Duration::from_millis(100);
        let (mut reader, writer) = io::pipe().unwrap();
        let mut pipe = Pipe::new(std::os::fd::OwnedFd::from(writer).into(), idle, &Silent).unwrap();
        let bytes: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
        let taken = thread::spawn(move || {
            let mut taken = Vec::new();
            reader.read_to_end(&mut taken).unwrap();
            taken
        });
        pipe.write_all(&bytes).unwrap();
        pipe.finish().unwrap();
        assert_eq!(taken.join().unwrap(), bytes);

        let (reader, writer) = io::pipe().unwrap();
        let mut pipe = Pipe::new(std::os::fd::OwnedFd::from(writer).into(), idle, &Silent).unwrap();
        let stalled = (0..100).find_map(|_| pipe.write_all(&bytes).err()).unwrap();
        assert_eq!(stalled.kind(), io::ErrorKind::TimedOut);
        drop(reader);

        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut pipe = Pipe::new(std::os::fd::OwnedFd::from(writer).into(), idle, &Silent).unwrap();
        let _ = pipe.write_all(b"abc");
        assert_eq!(pipe.finish().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
