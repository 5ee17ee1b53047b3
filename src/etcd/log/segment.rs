//! Reads one segment from the disk, record by record, holding a window of it or one long record.

use std::io;
use std::path::Path;

use crate::bolt::Source;
use crate::format::wal::{FrameHead, Frames, HEAD_BYTES, Record, Stop};
use crate::format::{u64_of, usize_of};

/// Bytes that are read at once.
const WINDOW_BYTES: u64 = 256 * 1024;

/// A segment that is being read.
#[derive(Debug)]
pub(super) struct Reader {
    source: Source,
    frames: Frames,
    window: Vec<u8>,
    window_at: u64,
    /// A frame that is longer than a window.
    long: Vec<u8>,
    /// Offset and length of the last record, and whether it is in `long`.
    record: (u64, u64),
    is_long: bool,
}

/// What came next.
#[derive(Debug)]
pub(super) enum Step<'a> {
    Record(Record<'a>),
    End,
    Stop(Stop),
}

impl Reader {
    pub(super) fn open(path: &Path, crc: u32) -> io::Result<Self> {
        let source = Source::open(path)?;
        let frames = Frames::new(source.len(), crc);
        let (window, long) = (Vec::new(), Vec::new());
        Ok(Self { source, frames, window, window_at: 0, long, record: (0, 0), is_long: false })
    }

    /// Offset after the last good record.
    pub(super) fn offset(&self) -> u64 {
        self.frames.offset()
    }

    /// Checksum up to there.
    pub(super) fn crc(&self) -> u32 {
        self.frames.crc()
    }

    pub(super) fn source(&self) -> &Source {
        &self.source
    }

    pub(super) fn step(&mut self) -> io::Result<Step<'_>> {
        let at = self.frames.offset();
        self.fill(at, HEAD_BYTES)?;
        let head = match self.frames.decode_head(window(&self.window, self.window_at, at)) {
            Ok(Some(head)) => head,
            Ok(None) => return Ok(Step::End),
            Err(stop) => return Ok(Step::Stop(stop)),
        };
        let from = at.saturating_add(HEAD_BYTES);
        self.is_long = head.frame_bytes() > WINDOW_BYTES;
        self.record = (from, head.record_bytes);
        let frame = if self.is_long {
            self.read_long(from, head)?;
            self.long.as_slice()
        } else {
            // No longer needed, and it may be large.
            self.long = Vec::new();
            self.fill(from, head.frame_bytes())?;
            let rest = window(&self.window, self.window_at, from);
            rest.get(..usize_of(head.frame_bytes())).unwrap_or_default()
        };
        Ok(match self.frames.decode_record(head, frame) {
            Ok(record) => Step::Record(record),
            Err(stop) => Step::Stop(stop),
        })
    }

    /// Returns the data of the record that was read last, once more.
    pub(super) fn data(&self) -> &[u8] {
        let (from, length) = self.record;
        let bytes = if self.is_long {
            self.long.as_slice()
        } else {
            window(&self.window, self.window_at, from)
        };
        let record = bytes.get(..usize_of(length)).map(|body| Record::decode(body, 0));
        record.and_then(Result::ok).map(|record| record.data).unwrap_or_default()
    }

    /// Makes the window hold `count` bytes at `at`, or what the file has of them.
    fn fill(&mut self, at: u64, count: u64) -> io::Result<()> {
        let end = at.saturating_add(count).min(self.source.len());
        let window_end = self.window_at.saturating_add(u64_of(self.window.len()));
        if at >= self.window_at && end <= window_end {
            return Ok(());
        }
        let length = self.source.len().saturating_sub(at).min(WINDOW_BYTES.max(count));
        self.window.resize(usize_of(length), 0);
        self.window_at = at;
        self.source.read_at(at, &mut self.window)
    }

    /// Grows with what was really read, so that a length alone takes no memory.
    fn read_long(&mut self, from: u64, head: FrameHead) -> io::Result<()> {
        self.long.clear();
        let mut left = head.frame_bytes();
        let mut at = from;
        while left > 0 {
            let piece = self.source.read_up_to(at, usize_of(left.min(WINDOW_BYTES)))?;
            if piece.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            at = at.saturating_add(u64_of(piece.len()));
            left = left.saturating_sub(u64_of(piece.len()));
            // An error where memory is short, not an abort.
            self.long.try_reserve(piece.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
            self.long.extend_from_slice(&piece);
        }
        Ok(())
    }
}

/// The bytes of a window from a file offset on.
fn window(bytes: &[u8], window_at: u64, at: u64) -> &[u8] {
    at.checked_sub(window_at).and_then(|skip| bytes.get(usize_of(skip)..)).unwrap_or_default()
}
