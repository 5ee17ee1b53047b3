//! Replays any bytes as entries over a small database.
//!
//! The bytes are entries one after the other: a length byte, then that many bytes of a request; a
//! length of 255 stands for the rest. The first bit of the first byte makes entries of that length
//! membership changes.

#![no_main]

use std::io::Cursor;
use std::sync::LazyLock;

use etcdkit::bolt::File;
use etcdkit::bolt::builder::Builder;
use etcdkit::etcd::apply::Rules;
use etcdkit::etcd::replay::{Visit, replay};
use etcdkit::format::wal::Entry;
use libfuzzer_sys::fuzz_target;

static DATABASE: LazyLock<File> = LazyLock::new(|| {
    let mut builder = Builder::new(Cursor::new(Vec::new()), 4096).expect("a page size");
    let rows: [(&str, &[u8], &[u8]); 5] = [
        ("authRoles", b"r", b"\x0a\x01r\x12\x06\x08\x02\x12\x01a\x1a\x01"),
        ("authUsers", b"root", b"\x0a\x04root\x1a\x04root\x22\x00"),
        (
            "key",
            b"\0\0\0\0\0\0\0\x02_\0\0\0\0\0\0\0\0",
            b"\x0a\x01a\x10\x02\x18\x02\x20\x01\x30\x05",
        ),
        ("lease", b"\0\0\0\0\0\0\0\x05", b"\x08\x05\x10\x3c"),
        ("members", b"a", b"{\"id\":10,\"peerURLs\":[\"http://a:1\"]}"),
    ];
    for (bucket, key, value) in rows {
        builder.begin_bucket(bucket.as_bytes(), 0).expect("a bucket");
        builder.put(key, value).expect("a row");
        builder.end_bucket().expect("an end");
    }
    let bytes = builder.finish(4).expect("a database").1.into_inner();
    File::from_bytes(bytes).expect("a database")
});

fuzz_target!(|data: &[u8]| {
    let rules = Rules { bcrypt_cost: 4, ..Rules::default() };
    let mut feed = |visit: &mut Visit<'_>| {
        let mut rest = data;
        for index in 1..=64 {
            let Some((&length, after)) = rest.split_first() else { break };
            let length = if length == 255 { after.len() } else { usize::from(length >> 1) };
            let (bytes, after) = after.split_at(length.min(after.len()));
            let kind = u64::from(data[0] & 1 == 1 && index == 1);
            visit(&Entry { kind, term: 1, index, data: bytes, unknown_field: None })?;
            rest = after;
        }
        Ok(())
    };
    drop(replay(&DATABASE, &rules, &mut feed, &|| false));
});
