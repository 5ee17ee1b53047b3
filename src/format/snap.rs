//! Raft snapshot files, `*.snap`: what the log before an index left behind.
//!
//! | field | type | meaning |
//! |---|---|---|
//! | 1 | uint32 | CRC-32C of field 2 |
//! | 2 | bytes | message: 1 data bytes, 2 metadata |
//! | 2.2.1 | message | who votes |
//! | 2.2.2, 2.2.3 | uint64 | index and term of the last entry that is covered |
//!
//! The data is the v2 store as JSON ([`V2Store`]).
//!
//! Source: etcd `snap.Snapshotter.save` and `Read`, `snappb`, `raftpb.Snapshot`; 3.5.35, 3.6.16.

mod v2_store;

pub use v2_store::{V2Member, V2Store};

use super::wal::{ConfState, decode_conf_state, parse_pair_name};
use super::{Error, pb};

/// A snapshot file's content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snap<'a> {
    /// The v2 store as JSON.
    pub data: &'a [u8],
    /// Who votes.
    pub conf_state: ConfState,
    /// Index of the last entry that is covered.
    pub index: u64,
    /// Term of that entry.
    pub term: u64,
    /// The first field that no known etcd writes, at any level.
    pub unknown_field: Option<u32>,
}

impl<'a> Snap<'a> {
    /// Encodes the file, zeros too.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut metadata = Vec::new();
        pb::put_bytes_always(&mut metadata, 1, &self.conf_state.encode());
        pb::put_u64_always(&mut metadata, 2, self.index);
        pb::put_u64_always(&mut metadata, 3, self.term);
        let mut message = Vec::new();
        pb::put_bytes(&mut message, 1, self.data);
        pb::put_bytes_always(&mut message, 2, &metadata);
        let mut out = Vec::new();
        pb::put_u64_always(&mut out, 1, u64::from(crc32c::crc32c(&message)));
        pb::put_bytes_always(&mut out, 2, &message);
        out
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// An empty file, a checksum that is zero or does not match, no data, or bytes that are no
    /// protobuf message: etcd sets such a file aside as broken. Offsets are those of the field in
    /// the message that holds it.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Error> {
        let mut snap = Self::default();
        let (mut crc, mut message) = (0, &[][..]);
        for field in pb::fields(bytes) {
            let field = field?;
            match field.number {
                1 => crc = field.uint32()?,
                2 => message = field.bytes()?,
                number => snap.note_unknown(number),
            }
        }
        if message.is_empty() || crc == 0 {
            return Err(Error::new(0, "a snapshot file without data or checksum"));
        }
        if crc != crc32c::crc32c(message) {
            return Err(Error::new(0, "a snapshot file whose checksum does not match"));
        }
        for field in pb::fields(message) {
            let field = field?;
            match field.number {
                1 => snap.data = field.bytes()?,
                2 => snap.decode_metadata(field.bytes()?)?,
                number => snap.note_unknown(number),
            }
        }
        snap.unknown_field = snap.unknown_field.or(snap.conf_state.unknown_field);
        Ok(snap)
    }

    fn decode_metadata(&mut self, bytes: &[u8]) -> Result<(), Error> {
        for field in pb::fields(bytes) {
            let field = field?;
            match field.number {
                1 => self.conf_state = decode_conf_state(&field)?,
                2 => self.index = field.varint()?,
                3 => self.term = field.varint()?,
                number => self.note_unknown(number),
            }
        }
        Ok(())
    }

    fn note_unknown(&mut self, number: u32) {
        self.unknown_field = self.unknown_field.or(Some(number));
    }
}

/// Names the file: term, then index.
#[must_use]
pub fn file_name(term: u64, index: u64) -> String {
    format!("{term:016x}-{index:016x}.snap")
}

/// Reads a file's name back as term and index; `None` for any other file.
#[must_use]
pub fn parse_file_name(name: &str) -> Option<(u64, u64)> {
    parse_pair_name(name, ".snap")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Snap<'static> {
        let conf_state = ConfState { voters: vec![1, u64::MAX], ..ConfState::default() };
        Snap { data: b"{}", conf_state, index: 3, term: 1, unknown_field: None }
    }

    #[test]
    fn a_file_reads_back() {
        let bytes = sample().encode();
        assert_eq!(Snap::decode(&bytes).unwrap(), sample());
        assert!(bytes.ends_with(&[0x28, 0x00, 0x10, 3, 0x18, 1]));
    }

    #[test]
    fn broken_files_are_refused() {
        assert!(Snap::decode(b"").is_err());
        assert!(Snap::decode(&[0x08, 0x01]).is_err());
        let bytes = sample().encode();
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0x10;
            assert!(Snap::decode(&bad).is_err(), "byte {at}");
        }
    }

    #[test]
    fn names_read_back() {
        assert_eq!(file_name(1, 3), "0000000000000001-0000000000000003.snap");
        assert_eq!(parse_file_name("0000000000000001-0000000000000003.snap"), Some((1, 3)));
        assert_eq!(parse_file_name("0000000000000003.snap.db"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Snap::decode(&bytes).is_ok();
            let mut file = Vec::new();
            pb::put_u64_always(&mut file, 1, u64::from(crc32c::crc32c(&bytes)));
            pb::put_bytes_always(&mut file, 2, &bytes);
            let _ = Snap::decode(&file).is_ok();
        }
    }
}
