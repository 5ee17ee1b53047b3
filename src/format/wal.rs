//! Write-ahead log segments: frames, the rolling checksum, and the records inside.
//!
//! Frame, at an offset that is a multiple of 8:
//!
//! | offset | size | type | meaning |
//! |---|---|---|---|
//! | 0 | 8 | u64 | low 56 bits: record length n in bytes; top byte: 0x80 + p, or 0 when p is 0 |
//! | 8 | n | protobuf | 1 kind, 2 crc (u32), 3 data |
//! | 8 + n | p | zeros | padding to a multiple of 8 |
//!
//! A length of 0, or the end of the file, ends a segment. The checksum is CRC-32C over the data of
//! every record but those of kind crc, one after the other; it runs on from segment to segment,
//! and each segment begins with a record of kind crc that holds the sum so far.
//!
//! Source: etcd `wal.encoder`, `wal.decoder` and `walpb.Record`; 3.5.35, 3.6.16, 3.7.3.

mod frames;
mod message;

use crc32c::crc32c_append;

use super::{pb, u64_of};
pub use frames::{Decoder, FrameHead, Frames, HEAD_BYTES, RECORD_BYTES_MAX, Reason, Record, Stop};
pub(super) use message::decode_conf_state;
pub use message::{
    ConfChange, ConfState, Entry, HardState, Metadata, Snapshot, change_kind, entry_kind,
};

/// Size that a segment is given on disk, in bytes; the part without records is zeros.
pub const SEGMENT_BYTES: u64 = 64_000_000;

/// Kinds of records.
pub mod kind {
    /// [`super::Metadata`]
    pub const METADATA: u64 = 1;
    /// [`super::Entry`]
    pub const ENTRY: u64 = 2;
    /// [`super::HardState`]
    pub const STATE: u64 = 3;
    /// The checksum so far; no data.
    pub const CRC: u64 = 4;
    /// [`super::Snapshot`]
    pub const SNAPSHOT: u64 = 5;
}

/// Names a segment: its sequence number, and the index of the first entry that it may hold.
#[must_use]
pub fn segment_name(sequence: u64, index: u64) -> String {
    format!("{sequence:016x}-{index:016x}.wal")
}

/// Reads a segment's name back; `None` for any other file.
#[must_use]
pub fn parse_segment_name(name: &str) -> Option<(u64, u64)> {
    parse_pair_name(name, ".wal")
}

/// Reads `<16 hex>-<16 hex><suffix>`.
pub(super) fn parse_pair_name(name: &str, suffix: &str) -> Option<(u64, u64)> {
    let (first, second) = name.strip_suffix(suffix)?.split_once('-')?;
    let number = |text: &str| {
        let plain = text.len() == 16 && text.bytes().all(|b| b.is_ascii_hexdigit());
        plain.then(|| u64::from_str_radix(text, 16).ok()).flatten()
    };
    Some((number(first)?, number(second)?))
}

/// Writes records into a buffer, which can be used again.
#[derive(Clone, Debug)]
pub struct Encoder {
    bytes: Vec<u8>,
    crc: u32,
    /// What stands before the data of an entry.
    head: Vec<u8>,
}

impl Encoder {
    /// Begins a segment: writes the checksum of all segments before, 0 for the first one.
    #[must_use]
    pub fn begin(crc: u32) -> Self {
        let mut encoder = Self::resume(crc);
        encoder.push_crc();
        encoder
    }

    /// Goes on at the end of a segment whose checksum so far is `crc`; writes nothing yet.
    #[must_use]
    pub fn resume(crc: u32) -> Self {
        Self { bytes: Vec::new(), crc, head: Vec::new() }
    }

    /// Adds a record of any kind but crc.
    pub fn push(&mut self, kind: u64, data: &[u8]) {
        self.push_parts(kind, data, &[]);
    }

    /// Adds an entry; the bytes of [`Entry::encode`] are made in place.
    pub fn push_entry(&mut self, entry: &Entry<'_>) {
        let mut head = std::mem::take(&mut self.head);
        head.clear();
        entry.encode_head(&mut head);
        self.push_parts(kind::ENTRY, &head, entry.data);
        self.head = head;
    }

    /// Adds the record that begins a segment: the checksum so far.
    pub fn push_crc(&mut self) {
        self.put_frame(kind::CRC, &[], &[]);
    }

    /// Returns the checksum so far.
    #[must_use]
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// Returns what was written.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns what was written, for good.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Forgets what was written, but not the checksum; keeps at most so many bytes of memory.
    pub fn clear(&mut self, kept_bytes: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(kept_bytes);
    }

    fn push_parts(&mut self, kind: u64, first: &[u8], second: &[u8]) {
        self.crc = crc32c_append(crc32c_append(self.crc, first), second);
        self.put_frame(kind, first, second);
    }

    fn put_frame(&mut self, kind: u64, first: &[u8], second: &[u8]) {
        let out = &mut self.bytes;
        let at = out.len();
        out.extend_from_slice(&[0; 8]);
        pb::put_u64_always(out, 1, kind);
        pb::put_u64_always(out, 2, u64::from(self.crc));
        // A crc record has no data field at all; a message of no bytes has an empty one.
        if kind != kind::CRC {
            pb::put_bytes_head(out, 3, first.len().saturating_add(second.len()));
            out.extend_from_slice(first);
            out.extend_from_slice(second);
        }
        let body = out.len().saturating_sub(at).saturating_sub(8);
        let whole = body.next_multiple_of(8);
        let padding = u64_of(whole.saturating_sub(body));
        let mark = if padding == 0 { 0 } else { (0x80 | padding) << 56 };
        let from = at.saturating_add(8);
        out.resize(from.saturating_add(whole), 0);
        if let Some(head) = out.get_mut(at..from) {
            head.copy_from_slice(&(u64_of(body) | mark).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The start of the log that etcdutl 3.6 restores a member named `default` with.
    fn default_restore() -> Vec<u8> {
        let id = 0x8e9e_05c5_2164_694d;
        let member: &[u8] =
            br#"{"id":10276657743932975437,"peerURLs":["http://localhost:2380"],"name":"default"}"#;
        let change = ConfChange { node_id: id, context: member, ..ConfChange::default() }.encode();
        let entry = Entry {
            kind: entry_kind::CONF_CHANGE,
            term: 1,
            index: 1,
            data: &change,
            ..Entry::default()
        };
        let conf_state = ConfState { voters: vec![id], ..ConfState::default() };
        let mut encoder = Encoder::begin(0);
        let metadata =
            Metadata { node_id: id, cluster_id: 0xcdf8_1819_4e3a_8c32, unknown_field: None };
        encoder.push(kind::METADATA, &metadata.encode());
        encoder.push(kind::SNAPSHOT, &Snapshot::default().encode());
        encoder.push(kind::ENTRY, &entry.encode());
        let state = HardState { term: 1, vote: id, commit: 1, unknown_field: None };
        encoder.push(kind::STATE, &state.encode());
        let snapshot =
            Snapshot { index: 1, term: 1, conf_state: Some(conf_state), unknown_field: None };
        encoder.push(kind::SNAPSHOT, &snapshot.encode());
        encoder.into_bytes()
    }

    fn unhex(text: &str) -> Vec<u8> {
        let digits: String = text.split_whitespace().collect();
        let pairs =
            (0..digits.len()).step_by(2).map(|at| digits.get(at..at.saturating_add(2)).unwrap());
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    #[test]
    fn a_restored_log_has_etcds_bytes() {
        let mut want = unhex(
            "0400000000000084 08041000 00000000
             2000000000000000 080110bb81c7fc05 1a16 08cdd2918bd2b881cf8e0110b298eaf1948386fccd01
             0e00000000000082 08051094bbc7ed0e 1a04 08001000 0000
             7400000000000084 080210c2ee92950b 1a6a 080110011801
             2262 08001000 18cdd2918bd2b881cf8e01 2251",
        );
        want.extend_from_slice(
            br#"{"id":10276657743932975437,"peerURLs":["http://localhost:2380"],"name":"default"}"#,
        );
        want.extend(unhex(
            "00000000
             1900000000000087 0803109b98d6c308 1a0f 080110cdd2918bd2b881cf8e011801 00000000000000
             1d00000000000083 0805108d9eaeef0d 1a13 080110011a0d08cdd2918bd2b881cf8e012800 000000",
        ));
        assert_eq!(want.len(), 288);
        assert_eq!(default_restore(), want);
    }

    #[test]
    fn checksums_chain_and_stop_at_zeros() {
        let mut bytes = default_restore();
        bytes.resize(1024, 0);
        let mut decoder = Decoder::new(&bytes, 0);
        let records: Vec<_> = decoder.by_ref().map(Result::unwrap).collect();
        let sums: Vec<u32> = records.iter().map(|record| record.crc).collect();
        assert_eq!(sums, [0, 0x5f91_c0bb, 0xedb1_dd94, 0xb2a4_b742, 0x8875_8c1b, 0xddeb_8f0d]);
        assert_eq!((decoder.offset(), decoder.crc()), (288, 0xddeb_8f0d));
        assert_eq!(records[5].kind, kind::SNAPSHOT);
        let snapshot = Snapshot::decode(records[5].data).unwrap();
        assert_eq!((snapshot.index, snapshot.term), (1, 1));
        assert_eq!(snapshot.conf_state.unwrap().voters, [0x8e9e_05c5_2164_694d]);
        let entry = Entry::decode(records[3].data).unwrap();
        assert_eq!(ConfChange::decode(entry.data).unwrap().node_id, 0x8e9e_05c5_2164_694d);
        assert_eq!(HardState::decode(records[4].data).unwrap().commit, 1);

        let next = Encoder::begin(decoder.crc()).into_bytes();
        assert!(Decoder::new(&next, decoder.crc()).next().unwrap().is_ok());
        assert!(Decoder::new(&next, 0).next().unwrap().is_ok());
        assert!(!Decoder::new(&next, 7).next().unwrap().unwrap_err().is_torn);
    }

    #[test]
    fn an_appended_record_goes_on() {
        let mut bytes = default_restore();
        let crc = 0xddeb_8f0d;
        let mut encoder = Encoder::resume(crc);
        encoder.push(kind::ENTRY, &Entry { term: 2, index: 2, ..Entry::default() }.encode());
        bytes.extend_from_slice(encoder.bytes());
        let last = Decoder::new(&bytes, 0).last().unwrap().unwrap();
        assert_eq!((last.offset, last.crc), (288, encoder.crc()));
    }

    #[test]
    fn entries_in_place_have_the_same_bytes() {
        let mut whole = Encoder::begin(5);
        let mut in_place = Encoder::begin(5);
        for data in [&b""[..], b"a", &[9; 300], &[7; 200_000]] {
            let entry = Entry { kind: 1, term: 300, index: u64::MAX, data, ..Entry::default() };
            whole.push(kind::ENTRY, &entry.encode());
            in_place.push_entry(&entry);
        }
        assert!(whole.bytes() == in_place.bytes());
        in_place.clear(1024);
        assert_eq!((in_place.bytes().len(), in_place.crc()), (0, whole.crc()));
    }

    #[test]
    fn torn_writes_are_told_from_damage() {
        let whole = default_restore();
        let stop = |bytes: &[u8]| Decoder::new(bytes, 0).find_map(Result::err);
        assert_eq!(stop(&whole), None);
        assert!(stop(&whole[..284]).unwrap().is_torn);
        assert!(stop(&whole[..243]).unwrap().is_torn);
        let mut flipped = whole.clone();
        flipped[130] ^= 1;
        let found = stop(&flipped).unwrap();
        assert_eq!((found.error.offset, found.is_torn), (80, false));

        let mut encoder = Encoder::resume(0);
        encoder.push(kind::ENTRY, &[7; 2000]);
        let mut torn = encoder.into_bytes();
        torn[512..1024].fill(0);
        assert!(stop(&torn).unwrap().is_torn);
        torn[700] = 1;
        assert!(!stop(&torn).unwrap().is_torn);
    }

    #[test]
    fn names_read_back() {
        assert_eq!(segment_name(1, 0x1_86a1), "0000000000000001-00000000000186a1.wal");
        assert_eq!(parse_segment_name("0000000000000001-00000000000186a1.wal"), Some((1, 100_001)));
        for bad in ["0.tmp", "1-2.wal", "0000000000000001-00000000000186a1.wal.broken", ""] {
            assert_eq!(parse_segment_name(bad), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let read = Decoder::new(&bytes, 0).count();
            prop_assert!(read <= bytes.len());
        }

        #[test]
        fn any_flip_is_noticed_or_ends_the_log(at in 16_usize..288, bit in 0_u8..8) {
            let whole = default_restore();
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            let good: Vec<_> = Decoder::new(&whole, 0).map(Result::unwrap).collect();
            let read: Vec<_> = Decoder::new(&bytes, 0).map_while(Result::ok).collect();
            for (record, want) in read.iter().zip(&good) {
                // The kind of a record is not under the checksum; its data is.
                prop_assert_eq!(record.data, want.data);
            }
        }
    }
}
