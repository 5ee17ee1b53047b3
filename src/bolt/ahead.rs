//! Reads pages of a file in large pieces where they follow each other.
//!
//! A packed file is a row of leaves with a branch between them now and then, so a piece is kept
//! while a page elsewhere is read. Pages that do not follow each other are read one by one: a
//! piece begins with four pages' worth at most behind two that do, and doubles while it is used up.
//! What is read in vain is therefore a small multiple of what is not.

use std::io;

use super::Source;
use crate::format::{u64_of, usize_of};

const PIECE_BYTES_MIN: u64 = 16 << 10;
const PIECE_BYTES_MAX: u64 = 64 << 10;
/// Buffers of single pages that are kept for the next ones.
const SPARE_MAX: usize = 8;
const SPARE_BYTES_MAX: usize = 64 << 10;

/// A reader with a piece of the file in memory.
#[derive(Debug)]
pub(super) struct Ahead<'a> {
    source: &'a Source,
    start: u64,
    piece: Vec<u8>,
    /// How large the next piece will be.
    next_bytes: u64,
    /// Where the last read outside of the piece ended.
    last_end: u64,
    spare: Vec<Vec<u8>>,
}

impl<'a> Ahead<'a> {
    pub(super) fn new(source: &'a Source) -> Self {
        Self {
            source,
            start: 0,
            piece: Vec::new(),
            next_bytes: PIECE_BYTES_MIN,
            last_end: u64::MAX,
            spare: Vec::new(),
        }
    }

    /// Returns an empty buffer to read a page into.
    pub(super) fn buffer(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes back a buffer that is not needed any more.
    pub(super) fn give_back(&mut self, mut buffer: Vec<u8>) {
        if self.spare.len() < SPARE_MAX && buffer.capacity() <= SPARE_BYTES_MAX {
            buffer.clear();
            self.spare.push(buffer);
        }
    }

    /// Appends `len` bytes from `offset` on to a buffer.
    ///
    /// # Errors
    /// Bytes at or past the end are asked for, or the disk fails.
    pub(super) fn read(&mut self, offset: u64, len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        if let Some(bytes) = self.held(offset, len) {
            out.extend_from_slice(bytes);
            return Ok(());
        }
        let end = self.start.saturating_add(u64_of(self.piece.len()));
        let goes_on =
            !self.piece.is_empty() && (end..end.saturating_add(1 << 16)).contains(&offset);
        if (goes_on || offset == self.last_end)
            && self.fill(offset, goes_on).is_ok()
            && let Some(bytes) = self.held(offset, len)
        {
            out.extend_from_slice(bytes);
            return Ok(());
        }
        let from = out.len();
        out.resize(from.saturating_add(len), 0);
        self.last_end = offset.saturating_add(u64_of(len));
        self.source.read_at(offset, out.get_mut(from..).unwrap_or_default())
    }

    fn held(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let from = usize_of(offset.checked_sub(self.start)?);
        self.piece.get(from..from.checked_add(len)?)
    }

    fn fill(&mut self, offset: u64, goes_on: bool) -> io::Result<()> {
        self.next_bytes = match goes_on {
            true => self.next_bytes.saturating_mul(2).min(PIECE_BYTES_MAX),
            false => PIECE_BYTES_MIN,
        };
        let bytes = self.next_bytes.min(self.source.len().saturating_sub(offset));
        self.piece.resize(usize_of(bytes), 0);
        self.start = offset;
        let read = self.source.read_at(offset, &mut self.piece);
        if read.is_err() {
            // Some of it may be readable all the same, one page at a time.
            self.piece.clear();
        }
        read
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_read_is_there(
            reads in proptest::collection::vec((0..200_u64, 1..9_usize, any::<bool>()), 1..100),
        ) {
            let bytes: Vec<u8> = (0..200 * 1024_u32).map(|n| (n / 7 % 251) as u8).collect();
            let source = Source::from_bytes(bytes.clone());
            let mut ahead = Ahead::new(&source);
            let mut at = 0;
            for (page, pages, follows) in reads {
                let from = if follows { at } else { usize_of(page) * 1024 };
                let len = pages * 1024;
                let mut out = ahead.buffer();
                let read = ahead.read(u64_of(from), len, &mut out);
                prop_assert_eq!(read.is_ok(), from + len <= bytes.len());
                if read.is_ok() {
                    prop_assert_eq!(&out[..], &bytes[from..from + len]);
                    at = from + len;
                }
                ahead.give_back(out);
            }
        }
    }
}
