//! Data directories of members that are dead: unpacked fixtures, and logs that end as a test wants.

use std::fs;
use std::path::{Path, PathBuf};

use etcdkit::etcd::request::{Body, Header, LeaseGrant, Put, Request};
use etcdkit::format::wal::{Decoder, Encoder, Entry, HardState, kind};

use super::{Sandbox, unzip};

/// Unpacks a `.tar.gz` fixture of a data directory.
pub(crate) fn unpack(sandbox: &Sandbox, fixture: &str, name: &str) -> PathBuf {
    let dir = sandbox.mkdir(name);
    let packed = unzip(fixture);
    tar::Archive::new(packed.as_slice()).unpack(&dir).expect(fixture);
    dir
}

/// Encodes a request as the data of an entry.
pub(crate) fn data(body: Body<'_>) -> Vec<u8> {
    let header = Some(Header { id: 7, ..Header::default() });
    Request { id: 0, header, body }.encode()
}

/// Grants a lease.
pub(crate) fn grant(id: i64, ttl_s: i64) -> Vec<u8> {
    data(Body::LeaseGrant(LeaseGrant { ttl_s, id }))
}

/// Puts a key.
pub(crate) fn put(key: &str, value: &str) -> Vec<u8> {
    data(Body::Put(Put { key: key.as_bytes(), value: value.as_bytes(), ..Put::default() }))
}

/// A data directory whose log is added to.
pub(crate) struct Dead {
    /// The directory.
    pub(crate) dir: PathBuf,
    segment: PathBuf,
}

impl Dead {
    /// Restores `plain.db` into a new directory with one member.
    pub(crate) fn restored(sandbox: &Sandbox, name: &str) -> Self {
        sandbox
            .run(&format!("snapshot restore plain.db --data-dir {name} --no-bump"))
            .expect(0, &[]);
        Self::at(&sandbox.path(name))
    }

    /// Takes a directory with one segment.
    pub(crate) fn at(dir: &Path) -> Self {
        let segment = dir.join("member/wal/0000000000000000-0000000000000000.wal");
        Self { dir: dir.to_owned(), segment }
    }

    fn push(&self, records: &[(u64, Vec<u8>)]) {
        let mut bytes = fs::read(&self.segment).unwrap();
        let mut decoder = Decoder::new(&bytes, 0);
        while decoder.next().is_some_and(|record| record.is_ok()) {}
        let (at, mut encoder) = (decoder.offset(), Encoder::resume(decoder.crc()));
        records.iter().for_each(|(kind, data)| encoder.push(*kind, data));
        bytes.truncate(usize::try_from(at).unwrap());
        bytes.extend_from_slice(encoder.bytes());
        fs::write(&self.segment, bytes).unwrap();
    }

    /// Index of the last entry.
    fn last(&self) -> u64 {
        let bytes = fs::read(&self.segment).unwrap();
        let entries = Decoder::new(&bytes, 0).filter_map(Result::ok);
        let entries = entries.filter(|record| record.kind == kind::ENTRY);
        entries.map(|record| Entry::decode(record.data).unwrap().index).last().unwrap_or(0)
    }

    /// Adds normal entries of term 2.
    pub(crate) fn append(self, entries: &[Vec<u8>]) -> Self {
        self.append_after(0, entries)
    }

    /// The same, leaving out so many indexes before them.
    pub(crate) fn append_after(self, left_out: u64, entries: &[Vec<u8>]) -> Self {
        let first = self.last() + 1 + left_out;
        let records: Vec<(u64, Vec<u8>)> = (first..)
            .zip(entries)
            .map(|(index, data)| {
                let entry = Entry { kind: 0, term: 2, index, data, unknown_field: None };
                (kind::ENTRY, entry.encode())
            })
            .collect();
        self.push(&records);
        self
    }

    /// Adds a HardState of term 2 with this commit index.
    pub(crate) fn hard_state(self, commit: u64) -> Self {
        let state = HardState { term: 2, vote: 0, commit, unknown_field: None };
        self.push(&[(kind::STATE, state.encode())]);
        self
    }
}
