//! Reads any bytes as a WAL segment, as a snap file, and as the data of records.

#![no_main]

use etcdkit::format::snap::Snap;
use etcdkit::format::wal::{ConfChange, ConfState, Decoder, Encoder, Entry, Snapshot};
use libfuzzer_sys::fuzz_target;

fn read_data(data: &[u8]) {
    if let Ok(entry) = Entry::decode(data) {
        drop(entry.encode());
    }
    drop(ConfChange::decode(data).map(|change| change.encode()));
    drop(ConfState::decode(data).map(|state| state.encode()));
    drop(Snapshot::decode(data).map(|snapshot| snapshot.encode()));
    drop(Snap::decode(data).map(|snap| snap.encode()));
}

fn read_segment(bytes: &[u8]) -> usize {
    let mut records = Decoder::new(bytes, 0);
    let mut count = 0;
    for record in records.by_ref().flatten() {
        read_data(record.data);
        count += 1;
    }
    assert!(records.offset() <= bytes.len() as u64);
    count
}

fuzz_target!(|data: &[u8]| {
    read_segment(data);
    read_data(data);
    // The same bytes again as the data of records whose checksums are right.
    let mut encoder = Encoder::begin(0);
    let mut pushed = 0;
    for piece in data.chunks(64) {
        let kind = u64::from(piece[0] % 8);
        // A crc record has no data: its place is at the start only.
        if kind != etcdkit::format::wal::kind::CRC {
            encoder.push(kind, &piece[1..]);
            pushed += 1;
        }
    }
    let read = read_segment(encoder.bytes());
    assert!(read >= pushed, "{read} of {pushed} records came back");
});
