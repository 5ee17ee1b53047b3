//! Writing to a pipe that somebody else reads, within a limit.
//!
//! A write to a pipe waits for its reader, for ever if need be, and cannot be called off. So it is
//! done on a thread of its own, which is left behind when the limit passes: the program ends then.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::format::{hex, u64_of, usize_of};
use crate::ops::digest::TRAILER_BYTES;
use crate::ops::{Error, ExitCode, Progress};

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
    /// All is written, and a disk makes it durable: nobody's idleness.
    is_syncing: AtomicBool,
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
            if now != before || self.state.is_syncing.load(Ordering::Relaxed) {
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
        true => {
            state.is_syncing.store(true, Ordering::Relaxed);
            out.sync_all()
        }
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

/// Copies a checked file into the pipe; the trailer only when what was read is still what was
/// checked.
pub(super) fn pour(
    mut file: File,
    out: &File,
    sha256: &str,
    idle: Duration,
    progress: &dyn Progress,
) -> Result<(), Error> {
    let stuck = |error: io::Error| failed(&error, idle);
    let unread = |error: io::Error| {
        let error = format!("the temporary file cannot be read again: {error}");
        Error::new(ExitCode::Failed, error).hint("what went out is not a whole snapshot")
    };
    let len = file.seek(SeekFrom::End(0)).map_err(unread)?;
    file.seek(SeekFrom::Start(0)).map_err(unread)?;
    progress.step("write", len);
    let mut pipe = out.try_clone().and_then(|out| Pipe::new(out, idle, progress)).map_err(stuck)?;
    let mut copy = |bytes: u64, pipe: Option<&mut Pipe<'_>>, sum: &mut Sha256| {
        let mut held = Vec::new();
        let mut piece = vec![0; 64 << 10];
        let mut done = 0;
        let mut pipe = pipe;
        while done < bytes {
            let room = usize_of((bytes - done).min(u64_of(piece.len())));
            let count = file.read(&mut piece[..room]).map_err(unread)?;
            if count == 0 {
                return Err(unread(io::ErrorKind::UnexpectedEof.into()));
            }
            sum.update(&piece[..count]);
            match &mut pipe {
                Some(pipe) => pipe.write_all(&piece[..count]).map_err(stuck)?,
                None => held.extend_from_slice(&piece[..count]),
            }
            done += u64_of(count);
            progress.advance(done);
        }
        Ok(held)
    };
    let mut sum = Sha256::new();
    copy(len.saturating_sub(TRAILER_BYTES), Some(&mut pipe), &mut sum)?;
    let held = copy(len.min(TRAILER_BYTES), None, &mut sum)?;
    if hex(&sum.finalize()) != sha256 {
        let message = "the temporary file is not what was checked any more";
        return Err(Error::new(ExitCode::Damage, message)
            .hint("what went out is not a whole snapshot; check the disk of TMPDIR"));
    }
    pipe.write_all(&held).map_err(stuck)?;
    pipe.finish().map_err(stuck)
}

/// Makes the error of a pipe.
pub(super) fn failed(error: &io::Error, idle: Duration) -> Error {
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
    use super::*;
    use crate::ops::Silent;

    #[test]
    fn a_reader_that_takes_nothing_or_ends_is_told() {
        let (idle, long) = (Duration::from_millis(100), Duration::from_secs(60));
        let (mut reader, writer) = io::pipe().unwrap();
        let mut pipe = Pipe::new(std::os::fd::OwnedFd::from(writer).into(), long, &Silent).unwrap();
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
        let mut pipe = Pipe::new(std::os::fd::OwnedFd::from(writer).into(), long, &Silent).unwrap();
        let _ = pipe.write_all(b"abc");
        assert_eq!(pipe.finish().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn the_trailer_is_held_back_from_what_was_changed_since() {
        let long = Duration::from_secs(60);
        let bytes: Vec<u8> = (0..100_032_u32).map(|n| (n % 251) as u8).collect();
        let sum = hex(&Sha256::digest(&bytes));
        for (changed, gone) in [(None, 0), (Some(7), 32), (Some(100_031), 32)] {
            let mut file = tempfile::tempfile().unwrap();
            let mut now = bytes.clone();
            if let Some(at) = changed {
                now[at] ^= 1;
            }
            file.write_all(&now).unwrap();
            let out = tempfile::NamedTempFile::new().unwrap();
            let poured = pour(file, out.as_file(), &sum, long, &Silent);
            assert_eq!(poured.err().map(|error| error.code), changed.map(|_| ExitCode::Damage));
            // The thread that writes may still be at it.
            thread::sleep(if changed.is_some() { 10 * TICK } else { Duration::ZERO });
            let len = usize_of(out.as_file().metadata().unwrap().len());
            assert!(len <= bytes.len() - gone, "{changed:?}");
            assert!(changed.is_some() || len == bytes.len());
        }
    }
}
