//! What stands after the last good record of the last segment.
//!
//! A server looks at the length field only. When that is wrong but a record that goes on from the
//! checksum stands right behind it, no write was cut short: a sector reaches the disk whole, so
//! the length was changed later, and a server that ends the log there loses what it acknowledged.
//!
//! Where records are whole behind a hole, their order may tell that what is in the hole was synced
//! once. etcd and this store write the entries of one request to the disk together, then, where it
//! changed, the HardState, and sync: so an entry after a HardState after an entry was written when
//! the first of the two was synced, with all before it. A HardState of etcd's that has no entries
//! with it is not synced.
//!
//! Source: etcd `server/storage/wal/wal.go`, WAL.Save, and raft `MustSync`, 3.5.35 to 3.7.3.

use std::io;

use super::segment::Reader;
use crate::bolt::Source;
use crate::format::wal::{Decoder, Entry, FrameHead, HEAD_BYTES, HardState, Stop, kind};
use crate::format::{pb, u64_at, u64_of, usize_of};

const PIECE_BYTES: usize = 1 << 20;
const SECTOR_BYTES: u64 = 512;
/// How much is looked at behind a hole: a write of the store and the next one.
const SYNC_BYTES: usize = 32 << 20;

/// Longest start of a record before its data: three tags and three varints.
const START_BYTES: usize = 33;

/// What was seen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Bytes from the end of the log to the last one that is not zero.
    pub(super) bytes: u64,
    /// Whether a length field was changed after it was written.
    pub(super) is_length_wrong: bool,
    /// Whether the frame after the unreadable one looks like a whole record.
    pub(super) has_records_after: bool,
    /// Whether the order of records behind tells that what cannot be read was synced.
    pub(super) was_synced: bool,
}

/// Looks at everything after the last good record of a segment; `stop` is why it is the last, and
/// `last` the index of the last entry, or snapshot, that is good.
pub(super) fn inspect(reader: &Reader, stop: Option<Stop>, last: u64) -> io::Result<Seen> {
    let (source, at) = (reader.source(), reader.offset());
    let bytes = last_nonzero(source, at, &|at| source.next_data(at))?.saturating_sub(at);
    if bytes == 0 {
        return Ok(Seen::default());
    }
    let head = source.read_up_to(at, usize_of(HEAD_BYTES))?;
    let field = u64_at(&head, 0).unwrap_or(0);
    let from = at.saturating_add(HEAD_BYTES);
    // Zeros where a sector ends may be the sector that did not arrive.
    let in_one_sector =
        at.checked_div(SECTOR_BYTES) == from.checked_div(SECTOR_BYTES) || field != 0;
    // Frames begin at multiples of 8: elsewhere it is the padding of the last one that is wrong.
    let is_length_wrong = !at.is_multiple_of(HEAD_BYTES)
        || (in_one_sector && find_record(source, from, reader.crc(), field)?);
    let has_records_after = match FrameHead::decode(field) {
        Some(frame) if stop.is_some() => {
            has_plausible_record(source, from.saturating_add(frame.frame_bytes()))?
        }
        _ => false,
    };
    let after = match FrameHead::decode(field) {
        Some(frame) if frame.frame_bytes() <= bytes => from.saturating_add(frame.frame_bytes()),
        _ => from,
    };
    let was_synced =
        !is_length_wrong && shows_sync(source, at, after, at.saturating_add(bytes), last)?;
    Ok(Seen { bytes, is_length_wrong, has_records_after, was_synced })
}

/// What is known of the records behind a hole.
struct Order {
    /// Index of the last entry before it.
    last: u64,
    has_entry: bool,
    has_state: bool,
    has_state_after_entry: bool,
}

impl Order {
    /// Takes the next record; tells whether it could only be written when the hole was synced.
    /// `room` is the number of entries that can stand between the hole's begin and here.
    fn take(&mut self, kind: u64, data: &[u8], room: u64) -> bool {
        match kind {
            kind::ENTRY => {
                let Ok(entry) = Entry::decode(data) else { return false };
                let Some(ahead) = entry.index.checked_sub(self.last) else { return false };
                if ahead == 0 || ahead > room {
                    return false;
                }
                // Entries that are left out are in the hole.
                let is_later = self.has_state && !self.has_entry && ahead > 1;
                self.has_entry = true;
                is_later || self.has_state_after_entry
            }
            kind::STATE => {
                // One that commits nothing new has no entries in the hole.
                let commit = HardState::decode(data).map_or(0, |state| state.commit);
                self.has_state |= commit > self.last;
                self.has_state_after_entry |= self.has_entry;
                false
            }
            _ => false,
        }
    }
}

/// Tells whether records between `from` and `end` show that what cannot be read from `hole` on was
/// synced. A record counts when its checksum goes on from the one before, or the next one's from
/// its own.
fn shows_sync(source: &Source, hole: u64, from: u64, end: u64, last: u64) -> io::Result<bool> {
    let from = from.next_multiple_of(HEAD_BYTES);
    // The last record may end with zeros.
    let bytes = source.read_up_to(from, SYNC_BYTES)?;
    let dirty = end.saturating_sub(from).min(u64_of(bytes.len()));
    let rest = |at: u64| bytes.get(usize_of(at)..).unwrap_or_default();
    let mut order =
        Order { last, has_entry: false, has_state: false, has_state_after_entry: false };
    let mut at = 0_u64;
    while at < dirty {
        let next = at.saturating_add(HEAD_BYTES);
        let Some((frame, start)) = plausible(rest(at)) else {
            at = next;
            continue;
        };
        let Ok(crc) = u32::try_from(start.crc) else {
            at = next;
            continue;
        };
        let data_from = next.saturating_add(start.data_from);
        let data = rest(data_from).get(..usize_of(start.data_bytes)).unwrap_or_default();
        let behind = next.saturating_add(frame.frame_bytes());
        let mut records = Decoder::new(rest(behind), crc);
        let mut first = Some((start.kind, data));
        while let Some(Ok(record)) = records.next() {
            let passed = from.saturating_sub(hole).saturating_add(behind);
            let room = passed.saturating_add(records.offset()) / HEAD_BYTES;
            if first.take().is_some_and(|(kind, data)| order.take(kind, data, room))
                || order.take(record.kind, record.data, room)
            {
                return Ok(true);
            }
        }
        at = if first.is_some() { next } else { behind.saturating_add(records.offset()) };
    }
    Ok(false)
}

/// Finds the end of the last byte that is not zero, or `from` when all are.
///
/// `next_data` tells where such may come next. The first piece is read all the same: a file system
/// that takes for a hole what it has yet to write must not hide what a writer that goes on from
/// here would write in between of. Behind that a writer of ours writes zeros before it gets there.
fn last_nonzero(source: &Source, from: u64, next_data: &dyn Fn(u64) -> u64) -> io::Result<u64> {
    const BLOCK: [u8; 4096] = [0; 4096];
    let (mut at, mut end) = (from, from);
    loop {
        if at > from {
            at = next_data(at);
        }
        let piece = source.read_up_to(at, PIECE_BYTES)?;
        if piece.is_empty() {
            return Ok(end);
        }
        // By blocks: nearly all of a segment is zeros.
        let is_dirty = |block: &[u8]| BLOCK.get(..block.len()) != Some(block);
        if let Some(last) = piece.chunks(BLOCK.len()).rposition(is_dirty) {
            let from = last.saturating_mul(BLOCK.len());
            let block = piece.get(from..).unwrap_or_default();
            let block = block.get(..BLOCK.len()).unwrap_or(block);
            let last = block.iter().rposition(|byte| *byte != 0).unwrap_or(0);
            end = at.saturating_add(u64_of(from)).saturating_add(u64_of(last)).saturating_add(1);
        }
        at = at.saturating_add(u64_of(piece.len()));
    }
}

/// The start of a record, as every etcd writes it: kind, crc, data, in this order.
struct Start {
    kind: u64,
    crc: u64,
    data_from: u64,
    data_bytes: u64,
    /// Bytes of the record.
    length: u64,
}

fn read_start(bytes: &[u8]) -> Option<Start> {
    let mut at = 0_usize;
    let mut number = |tag: u8| -> Option<u64> {
        if bytes.get(at) != Some(&tag) {
            return None;
        }
        let (value, length) = pb::decode_varint(bytes, at.checked_add(1)?).ok()?;
        at = at.checked_add(1)?.checked_add(length)?;
        Some(value)
    };
    let kind = number(0x08).filter(|kind| (kind::METADATA..=kind::SNAPSHOT).contains(kind))?;
    let crc = number(0x10)?;
    let data_bytes = if kind == kind::CRC { 0 } else { number(0x1a)? };
    let data_from = u64_of(at);
    Some(Start { kind, crc, data_from, data_bytes, length: data_from.checked_add(data_bytes)? })
}

/// Tells whether a record at `from`, read by its own content, goes on from the checksum and has
/// another length than the field before it says.
fn find_record(source: &Source, from: u64, crc: u32, field: u64) -> io::Result<bool> {
    let start = read_start(&source.read_up_to(from, START_BYTES)?);
    let Some(start) = start else { return Ok(false) };
    if FrameHead::decode(field).is_some_and(|head| head.record_bytes == start.length) {
        return Ok(false);
    }
    if start.kind == kind::CRC {
        return Ok(crc == 0 || start.crc == u64::from(crc));
    }
    let mut at = from.saturating_add(start.data_from);
    let mut left = start.data_bytes;
    if left > source.len().saturating_sub(at) {
        return Ok(false);
    }
    let mut sum = crc;
    while left > 0 {
        let piece = source.read_up_to(at, usize_of(left).min(PIECE_BYTES))?;
        if piece.is_empty() {
            return Ok(false);
        }
        sum = crc32c::crc32c_append(sum, &piece);
        at = at.saturating_add(u64_of(piece.len()));
        left = left.saturating_sub(u64_of(piece.len()));
    }
    Ok(u64::from(sum) == start.crc)
}

/// Tells whether a frame at `at` announces a record of the length that the record itself has.
fn has_plausible_record(source: &Source, at: u64) -> io::Result<bool> {
    let bytes = source.read_up_to(at, usize_of(HEAD_BYTES).saturating_add(START_BYTES))?;
    let fits = |(head, _): (FrameHead, Start)| {
        head.frame_bytes() <= source.len().saturating_sub(at).saturating_sub(HEAD_BYTES)
    };
    Ok(plausible(&bytes).is_some_and(fits))
}

/// Reads the start of a frame that announces a record of the length that the record itself has.
fn plausible(bytes: &[u8]) -> Option<(FrameHead, Start)> {
    let head = FrameHead::decode(u64_at(bytes, 0)?)?;
    let start = read_start(bytes.get(usize_of(HEAD_BYTES)..)?)?;
    (start.length == head.record_bytes).then_some((head, start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_that_are_none_hide_nothing_near_the_end() {
        let mut bytes = vec![0; 3 << 20];
        bytes[100] = 1;
        bytes[700_000] = 7;
        let len = u64_of(bytes.len());
        let source = Source::from_bytes(bytes);
        let end = |next: &dyn Fn(u64) -> u64| last_nonzero(&source, 104, next).unwrap();
        // A file system that knows of no holes, one that knows of all, and one that is wrong.
        assert_eq!(end(&|at| at), 700_001);
        assert_eq!(end(&|at| if at <= 700_000 { 700_000 } else { len }), 700_001);
        assert_eq!(end(&|_| len), 700_001);
        assert_eq!(last_nonzero(&source, 700_001, &|at| at).unwrap(), 700_001);
    }
}
