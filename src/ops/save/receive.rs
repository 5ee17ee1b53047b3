//! A member's stream, held against what it says of itself while it comes in.
//!
//! **Shape**: pieces of the database, each with the number of bytes that follow; then, as a piece
//! of its own with nothing to follow, the SHA-256 of all of them (etcd
//! server/etcdserver/api/v3rpc/maintenance.go, `Snapshot`, 3.5.35 to 3.7.3). So nothing remaining
//! is not the end: the stream is read until it ends.
//!
//! Never does: write a trailer that does not fit.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::format::{hex, u64_of, usize_of};
use crate::live::{self, Stream};
use crate::ops::Progress;
use crate::ops::digest::TRAILER_BYTES;

/// Time after which a stream is worth a word, and between two words.
const SLOW: Duration = Duration::from_secs(60);

/// Why a stream gave no snapshot.
#[derive(Debug)]
pub(super) enum Fault {
    /// The member failed or was too slow.
    Member(live::Error),
    /// Its bytes are wrong.
    Bytes(String),
    /// What it sent cannot be written.
    Write(io::Error),
    /// There will be no room for so many bytes.
    Room(u64),
    /// The operation was told to stop.
    Stopped,
}

/// What came in whole.
#[derive(Clone, Debug)]
pub(super) struct Received {
    /// Bytes of the database.
    pub(super) body_bytes: u64,
    /// SHA-256 of the whole file, trailer included, in hex.
    pub(super) sha256: String,
    /// Storage version as the member names it; empty before etcd 3.6.
    pub(super) storage_version: String,
}

impl Received {
    /// Returns the bytes of the file with its trailer.
    pub(super) fn size_bytes(&self) -> u64 {
        self.body_bytes.saturating_add(TRAILER_BYTES)
    }
}

/// Reads a stream to its end into `out`; the trailer is written only when it fits.
///
/// `has_room` is asked once, with the bytes of the whole file.
///
/// # Errors
/// See [`Fault`].
pub(super) fn receive(
    stream: &mut Stream<'_>,
    out: &mut dyn Write,
    has_room: &dyn Fn(u64) -> bool,
    progress: &dyn Progress,
) -> Result<Received, Fault> {
    let began = Instant::now();
    let mut told = began;
    let mut intake = Intake::default();
    let mut storage_version = String::new();
    while let Some(piece) = stream.next(&|| progress.stopped()).map_err(Fault::Member)? {
        let is_first = intake.total.is_none();
        let body = intake.take(piece.bytes(), piece.remaining()).map_err(Fault::Bytes)?;
        let total = intake.total.unwrap_or_default();
        if is_first {
            piece.version().clone_into(&mut storage_version);
            progress.step("stream", total);
            let file = total.saturating_add(TRAILER_BYTES);
            if !has_room(file) {
                return Err(Fault::Room(file));
            }
        }
        out.write_all(body).map_err(Fault::Write)?;
        progress.advance(intake.seen);
        if progress.stopped() {
            return Err(Fault::Stopped);
        }
        if told.elapsed() >= SLOW {
            told = Instant::now();
            progress.note(&slowly(intake.seen, total, began.elapsed()));
        }
    }
    if progress.stopped() {
        return Err(Fault::Stopped);
    }
    let body_bytes = intake.seen;
    let (trailer, sha256) = intake.finish().map_err(Fault::Bytes)?;
    out.write_all(&trailer).and_then(|()| out.flush()).map_err(Fault::Write)?;
    Ok(Received { body_bytes, sha256, storage_version })
}

fn slowly(seen: u64, total: u64, took: Duration) -> String {
    let rate = seen / took.as_secs().max(1) / 1024;
    let left = total.saturating_sub(seen) / (rate * 1024).max(1);
    format!(
        "the snapshot comes slowly: {seen} of {total} bytes in {} s ({rate} KiB/s, {left} s to \
         go); until it ends the member's database file can only grow",
        took.as_secs()
    )
}

/// What came so far.
#[derive(Debug, Default)]
struct Intake {
    /// Bytes of the database, once a piece has said so.
    total: Option<u64>,
    seen: u64,
    body: Sha256,
    trailer: Vec<u8>,
}

impl Intake {
    /// Takes a piece; returns the part of it that is the database's.
    fn take<'b>(&mut self, bytes: &'b [u8], remaining: u64) -> Result<&'b [u8], String> {
        let len = u64_of(bytes.len());
        let total = match self.total {
            Some(total) => total,
            None => len.checked_add(remaining).filter(|total| *total > 0).ok_or_else(|| {
                format!("the first piece has {len} bytes and announces {remaining} more")
            })?,
        };
        self.total = Some(total);
        if self.seen < total {
            let seen = self.seen.saturating_add(len);
            if seen.checked_add(remaining) != Some(total) {
                return Err(format!(
                    "{remaining} bytes are said to remain after {seen} of {total} bytes"
                ));
            }
            self.seen = seen;
            self.body.update(bytes);
            return Ok(bytes);
        }
        self.trailer.extend_from_slice(bytes);
        if remaining > 0 || self.trailer.len() > usize_of(TRAILER_BYTES) {
            return Err(format!("more comes after the database's {total} bytes and the trailer"));
        }
        Ok(&[])
    }

    /// Returns the trailer, and the SHA-256 of everything in hex.
    fn finish(self) -> Result<(Vec<u8>, String), String> {
        let total = self.total.unwrap_or_default();
        if self.seen < total || total == 0 {
            return Err(format!("the stream ended after {} of {total} bytes", self.seen));
        }
        let mut file = self.body.clone();
        let computed = self.body.finalize();
        match self.trailer.len() {
            0 => return Err("the stream ended without its sha256 trailer".into()),
            32 if self.trailer[..] == computed[..] => {}
            32 => {
                return Err(format!(
                    "the trailer says sha256 {}, the bytes give {}",
                    hex(&self.trailer),
                    hex(&computed)
                ));
            }
            len => return Err(format!("the stream ended after {len} of the trailer's 32 bytes")),
        }
        file.update(&self.trailer);
        Ok((self.trailer, hex(&file.finalize())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds pieces of a database with their remaining bytes, then the trailer.
    fn fed(pieces: &[(&[u8], u64)]) -> Result<(Vec<u8>, String), String> {
        let mut intake = Intake::default();
        for (bytes, remaining) in pieces {
            intake.take(bytes, *remaining)?;
        }
        intake.finish()
    }

    #[test]
    fn a_stream_that_fits_is_taken() {
        let sum = Sha256::digest(b"abcdef");
        let whole = Sha256::digest([b"abcdef".as_slice(), &sum].concat());
        for pieces in [
            &[(b"abcd".as_slice(), 2), (b"ef", 0), (&sum[..], 0)][..],
            &[(b"abcd", 2), (b"", 2), (b"ef", 0), (b"", 0), (&sum[..20], 0), (&sum[20..], 0)],
            &[(b"", 6), (b"abcdef", 0), (&sum[..], 0), (b"", 0)],
        ] {
            let (trailer, sha256) = fed(pieces).unwrap();
            assert_eq!((&trailer[..], sha256), (&sum[..], hex(&whole)));
        }
    }

    #[test]
    fn one_that_does_not_is_refused() {
        let sum = Sha256::digest(b"abcdef");
        let other = Sha256::digest(b"abcdeg");
        type Pieces<'a> = &'a [(&'a [u8], u64)];
        let cases: [(Pieces<'_>, &str); 10] = [
            (&[], "after 0 of 0"),
            (&[(b"", 0), (&sum[..], 0)], "the first piece"),
            (&[(b"a", u64::MAX)], "the first piece"),
            (&[(b"abcd", 2)], "after 4 of 6"),
            (&[(b"abcd", 2), (b"e", 2)], "said to remain"),
            (&[(b"abcd", 2), (b"efg", 0)], "said to remain"),
            (&[(b"abcdef", 0)], "without its sha256"),
            (&[(b"abcdef", 0), (&sum[..31], 0)], "31 of the trailer's"),
            (&[(b"abcdef", 0), (&sum[..], 0), (b"x", 0)], "more comes after"),
            (&[(b"abcdef", 0), (&other[..], 0)], "the trailer says"),
        ];
        for (pieces, want) in cases {
            let error = fed(pieces).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
    }
}
