//! Holds the generated types in `src/store/wire` to the `.proto` files beside them.
//!
//! `UPDATE=1 cargo test --test tidy wire` writes them anew.

use std::fs;
use std::path::Path;

const FOLDER: &str = "src/store/wire";
const SERVICES: &[&str] = &["etcdserverpb", "grpc_health_v1", "v3electionpb", "v3lockpb"];

#[test]
fn wire_types_are_what_their_protos_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
    let protos = SERVICES.iter().map(|name| format!("{name}.proto"));
    let descriptors = protox::compile(protos, [&folder]).expect("the protos compile");
    let made = tempfile::tempdir().expect("a temporary folder");
    tonic_prost_build::configure()
        .build_client(false)
        .build_transport(false)
        .bytes(".")
        .out_dir(made.path())
        .compile_fds(descriptors)
        .expect("the types are generated");

    let mut packages = Vec::new();
    for entry in fs::read_dir(made.path()).expect("the generated files") {
        let path = entry.expect("a generated file").path();
        let package = path.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        let name = format!("{}.rs", package.replace('.', "_"));
        let is = fs::read_to_string(&path).expect("a generated file");
        let committed = folder.join(&name);
        if std::env::var_os("UPDATE").is_some() {
            fs::write(&committed, is).expect("the generated file is written");
        } else {
            let was = fs::read_to_string(&committed).unwrap_or_default();
            assert!(is == was, "{FOLDER}/{name} is not what the protos say; UPDATE=1 writes it");
        }
        packages.push(name);
    }
    packages.sort();
    let all = ["authpb.rs", "etcdserverpb.rs", "grpc_health_v1.rs", "mvccpb.rs"];
    assert_eq!(packages, [&all[..], &["v3electionpb.rs", "v3lockpb.rs"]].concat());
}
