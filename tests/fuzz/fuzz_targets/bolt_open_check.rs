//! Opens any bytes as a bbolt file and walks all of it.

#![no_main]

use etcdkit::bolt::File;
use etcdkit::bolt::walk::{Ignore, walk};
use etcdkit::format::meta::fnv1a;
use libfuzzer_sys::fuzz_target;

/// Sets the checksum of the meta page at an offset right.
///
/// Shape: page header of 16 bytes, then magic, version, page size (u32 each), ..., and at byte 72
/// the FNV-1a sum of bytes 16 to 71.
fn seal_meta(bytes: &mut [u8], offset: usize) {
    if let Some(page) = bytes.get_mut(offset..).filter(|page| page.len() >= 80) {
        let sum = fnv1a(&page[16..72]);
        page[72..80].copy_from_slice(&sum.to_le_bytes());
    }
}

fuzz_target!(|data: &[u8]| {
    let mut bytes = data.to_vec();
    let page_size = bytes.get(24..28).map_or(4096, |size| {
        u32::from_le_bytes(size.try_into().unwrap_or_default()) as usize
    });
    seal_meta(&mut bytes, 0);
    seal_meta(&mut bytes, page_size);
    if let Ok(file) = File::from_bytes(bytes) {
        drop(file.check_metas());
        drop(walk(&file, &mut Ignore));
        // What a reader does that has not checked first.
        if let Ok(Some(bucket)) = file.bucket(&[b"key"]) {
            let mut cursor = bucket.cursor();
            for _ in 0..10_000 {
                match cursor.next_row() {
                    Ok(Some(_)) => {}
                    _ => break,
                }
            }
            drop(bucket.get(b"\0\0\0\0\0\0\0\x02_\0\0\0\0\0\0\0\0"));
        }
    }
});
