//! Walks any bytes as a protobuf message, three levels deep, and reads a stored object's identity.

#![no_main]

use etcdkit::format::pb::{Value, fields};
use etcdkit::kube::object::read_identity;
use libfuzzer_sys::fuzz_target;

fn descend(bytes: &[u8], levels: u8) {
    for field in fields(bytes).flatten() {
        let _ = (field.varint(), field.int64(), field.uint32(), field.boolean());
        if let (Value::Bytes(inner), 1..) = (field.value, levels) {
            descend(inner, levels - 1);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    descend(data, 3);
    drop(read_identity(data));
    if !data.starts_with(b"k8s\0") {
        drop(read_identity(&[b"k8s\0".as_slice(), data].concat()));
    }
});
