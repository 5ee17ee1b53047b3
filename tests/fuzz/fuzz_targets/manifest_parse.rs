//! Reads any bytes as an etcd manifest.

#![no_main]

use etcdkit::kube::manifest::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(manifest) = parse(data) {
        drop(manifest.home_of("/var/lib/etcd/member/../x"));
    }
});
