//! Reading frames: one implementation for bytes in memory and for files read piece by piece.
//!
//! [`Frames`] holds a place in a segment and does no I/O: the caller brings the length field, then
//! the frame that it announces. [`Decoder`] is that over a slice.
//!
//! When a frame cannot be read, etcd tells a write that was cut short from damage: the file ends
//! inside the frame, or a sector of 512 bytes (sectors of the file, cut to the frame) is all zeros.
//! Only in the last segment does it then cut the log before the frame; everything else is fatal.
//!
//! Source: etcd `wal.decoder.decodeRecord` and `isTornEntry`, 3.5.35, 3.6.16, 3.7.3.

use crc32c::crc32c_append;

use super::kind;
use crate::format::{Error, pb, u64_at, u64_of, usize_of};

/// Bytes of a length field.
pub const HEAD_BYTES: u64 = 8;

/// Longest record that is read, in bytes. etcd's own limit is what is left of the file; requests
/// are 1.5 MiB at most unless it was told otherwise.
pub const RECORD_BYTES_MAX: u64 = 1 << 30;

const LENGTH_MASK: u64 = (1 << 56) - 1;
const SECTOR_BYTES: usize = 512;

/// One record of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Offset of the frame in the segment, in bytes.
    pub offset: u64,
    /// One of [`kind`], or something unknown.
    pub kind: u64,
    /// Checksum up to and with this record.
    pub crc: u32,
    /// The message.
    pub data: &'a [u8],
    /// The first field that no known etcd writes.
    pub unknown_field: Option<u32>,
}

impl<'a> Record<'a> {
    /// Reads a record without its frame, which began at `offset`; its checksum is not looked at.
    ///
    /// # Errors
    ///
    /// Bytes that are no protobuf message, or a field of the wrong wire type.
    pub fn decode(body: &'a [u8], offset: u64) -> Result<Self, Error> {
        let mut record = Self { offset, kind: 0, crc: 0, data: &[], unknown_field: None };
        for field in pb::fields(body) {
            let field = field?;
            match field.number {
                1 => record.kind = field.varint()?,
                // Bits above the 32nd are dropped, as every protobuf library does.
                2 => record.crc = low_bits(field.varint()?),
                3 => record.data = field.bytes()?,
                number => record.unknown_field = record.unknown_field.or(Some(number)),
            }
        }
        Ok(record)
    }
}

/// What is wrong with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The file ends inside the length field.
    HeadCut,
    /// The file ends inside the frame.
    Long,
    /// The frame is longer than [`RECORD_BYTES_MAX`].
    Huge,
    /// The record is no protobuf message.
    Protobuf,
    /// The record ends inside one of its fields. etcd up to 3.6 takes that for a write that was
    /// cut short, since its decoder reports it like the end of a file; 3.7 does not.
    Short,
    /// The checksum does not match.
    Checksum,
    /// A record of kind crc does not hold the sum so far.
    Chain,
}

/// Why a segment cannot be read further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}{}", if *.is_torn { ", where a write was cut short" } else { "" })]
pub struct Stop {
    /// What is wrong, at the offset of the frame in the segment.
    pub error: Error,
    /// The same for programs.
    pub reason: Reason,
    /// Whether the bytes look like a write that did not reach the disk whole: in the last segment
    /// the log then ends before this frame; anywhere else, and otherwise, they are damaged.
    pub is_torn: bool,
}

/// What a length field announces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHead {
    /// Bytes of the record.
    pub record_bytes: u64,
    /// Bytes of padding after it, 0 to 7.
    pub padding_bytes: u64,
}

impl FrameHead {
    /// Reads a length field; `None` for the zeros that end a segment.
    #[must_use]
    pub fn decode(field: u64) -> Option<Self> {
        let padding_bytes = if field >> 63 == 1 { (field >> 56) & 7 } else { 0 };
        (field != 0).then_some(Self { record_bytes: field & LENGTH_MASK, padding_bytes })
    }

    /// Bytes that follow the length field.
    #[must_use]
    pub fn frame_bytes(self) -> u64 {
        self.record_bytes.saturating_add(self.padding_bytes)
    }
}

/// A place in a segment, and the checksum up to there.
#[derive(Clone, Copy, Debug)]
pub struct Frames {
    size_bytes: u64,
    at: u64,
    crc: u32,
}

impl Frames {
    /// Starts at the first byte of a segment of this size; `crc` is the sum of the segments
    /// before, or 0 when they are not read.
    #[must_use]
    pub fn new(size_bytes: u64, crc: u32) -> Self {
        Self { size_bytes, at: 0, crc }
    }

    /// Returns the offset after the last good record: where the next one goes, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Returns the checksum up to there.
    #[must_use]
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// Reads the length field at [`Self::offset`]; `bytes` holds what stands there, at least
    /// [`HEAD_BYTES`] of it unless the file ends before. `None` at the end of the segment.
    ///
    /// # Errors
    ///
    /// A frame that the file cannot hold, or that is longer than [`RECORD_BYTES_MAX`].
    pub fn decode_head(&self, bytes: &[u8]) -> Result<Option<FrameHead>, Stop> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let field = u64_at(bytes, 0).ok_or(self.stop(
            Reason::HeadCut,
            true,
            "a length field that the file cuts",
        ))?;
        let Some(head) = FrameHead::decode(field) else { return Ok(None) };
        let left = self.size_bytes.saturating_sub(self.at).saturating_sub(HEAD_BYTES);
        if head.frame_bytes() > left {
            return Err(self.stop(Reason::Long, true, "a record that is longer than the file"));
        }
        if head.frame_bytes() > RECORD_BYTES_MAX {
            return Err(self.stop(Reason::Huge, false, "a record of more than 1 GiB"));
        }
        Ok(Some(head))
    }

    /// Reads the record of a frame, which is what follows the length field, and goes on to the
    /// next one.
    ///
    /// # Errors
    ///
    /// A record that is no protobuf message, or whose checksum does not match.
    pub fn decode_record<'a>(
        &mut self,
        head: FrameHead,
        frame: &'a [u8],
    ) -> Result<Record<'a>, Stop> {
        let offset = self.at;
        let body = frame.get(..usize_of(head.record_bytes)).unwrap_or_default();
        let sectors_from = offset.saturating_add(HEAD_BYTES);
        let damaged = |reason, what| self.stop(reason, has_zero_sector(frame, sectors_from), what);
        let record = Record::decode(body, offset).map_err(|_| {
            let reason = if ends_inside_field(body) { Reason::Short } else { Reason::Protobuf };
            damaged(reason, "a record that is no protobuf message")
        })?;
        if record.kind == kind::CRC {
            if self.crc != 0 && self.crc != record.crc {
                let what = "a checksum record that does not go on from the one before";
                return Err(self.stop(Reason::Chain, false, what));
            }
        } else if crc32c_append(self.crc, record.data) != record.crc {
            return Err(damaged(Reason::Checksum, "a record whose checksum does not match"));
        }
        self.crc = record.crc;
        self.at = sectors_from.saturating_add(u64_of(frame.len()));
        Ok(record)
    }

    fn stop(&self, reason: Reason, is_torn: bool, what: &'static str) -> Stop {
        Stop { error: Error { offset: self.at, what }, reason, is_torn }
    }
}

/// Walks the records of one segment; ends at the first zero length, at the end of the bytes, or
/// after the first [`Stop`].
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    frames: Frames,
    is_stopped: bool,
}

impl<'a> Decoder<'a> {
    /// Starts at the first byte of a segment; `crc` is the sum of the segments before, or 0 when
    /// they are not read.
    #[must_use]
    pub fn new(bytes: &'a [u8], crc: u32) -> Self {
        Self { bytes, frames: Frames::new(u64_of(bytes.len()), crc), is_stopped: false }
    }

    /// Returns the offset after the last good record: where the next one goes, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.frames.offset()
    }

    /// Returns the checksum up to there.
    #[must_use]
    pub fn crc(&self) -> u32 {
        self.frames.crc()
    }

    fn record(&mut self) -> Result<Option<Record<'a>>, Stop> {
        let rest = self.bytes.get(usize_of(self.frames.offset())..).unwrap_or_default();
        let Some(head) = self.frames.decode_head(rest)? else { return Ok(None) };
        let from = usize_of(HEAD_BYTES);
        let end = from.saturating_add(usize_of(head.frame_bytes()));
        let frame = rest.get(from..end).unwrap_or_default();
        self.frames.decode_record(head, frame).map(Some)
    }
}

impl<'a> Iterator for Decoder<'a> {
    type Item = Result<Record<'a>, Stop>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_stopped {
            return None;
        }
        let record = self.record().transpose();
        self.is_stopped = !matches!(record, Some(Ok(_)));
        record
    }
}

/// Tells whether the decoder of etcd up to 3.6 meets the end of a record before anything else that
/// is wrong with it: it looks at a field's wire type first, then at its value, and skips groups.
fn ends_inside_field(body: &[u8]) -> bool {
    let (mut at, mut depth) = (0_usize, 0_u32);
    while at < body.len() || depth > 0 {
        let Some((tag, length)) = varint_or_cut(body, at) else { return at_cut(body, at) };
        at = at.saturating_add(length);
        let (number, wire) = (tag >> 3, tag & 7);
        let wanted = match number {
            0 => return false,
            1 | 2 => Some(0),
            3 => Some(2),
            _ => None,
        };
        if depth == 0 && wanted.is_some_and(|wanted| wanted != wire) {
            return false;
        }
        let skip = match wire {
            0 => 0,
            1 => 8,
            2 => {
                let Some((bytes, length)) = varint_or_cut(body, at) else {
                    return at_cut(body, at);
                };
                if bytes.cast_signed() < 0 {
                    return false;
                }
                at = at.saturating_add(length);
                usize_of(bytes)
            }
            3 => {
                depth = depth.saturating_add(1);
                0
            }
            4 if depth > 0 => {
                depth = depth.saturating_sub(1);
                0
            }
            5 => 4,
            _ => return false,
        };
        if wire == 0 {
            let Some((_, length)) = varint_or_cut(body, at) else { return at_cut(body, at) };
            at = at.saturating_add(length);
        }
        at = at.saturating_add(skip);
        if at > body.len() {
            return true;
        }
    }
    false
}

fn varint_or_cut(body: &[u8], at: usize) -> Option<(u64, usize)> {
    pb::decode_varint(body, at).ok()
}

/// Tells whether a varint that cannot be read is cut, rather than too long.
fn at_cut(body: &[u8], at: usize) -> bool {
    body.get(at..).unwrap_or_default().iter().take(10).all(|byte| byte & 0x80 != 0)
        && body.len().saturating_sub(at) < 10
}

fn low_bits(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or(0)
}

/// Tells whether a disk sector's worth of a frame is all zeros; sectors are those of the file.
fn has_zero_sector(frame: &[u8], offset: u64) -> bool {
    let into = usize_of(offset).checked_rem(SECTOR_BYTES).unwrap_or(0);
    let first = SECTOR_BYTES.saturating_sub(into);
    let (head, rest) = frame.split_at_checked(first).unwrap_or((frame, &[]));
    std::iter::once(head)
        .chain(rest.chunks(SECTOR_BYTES))
        .any(|sector| !sector.is_empty() && sector.iter().all(|b| *b == 0))
}
