//! Holds the generated types in `src/store/wire` to the `.proto` files beside them.
//!
//! `UPDATE=1 cargo test --test tidy wire` writes them anew.

#![expect(clippy::panic, reason = "a proto that is not known here has failed the test")]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use protox::prost_reflect::prost_types::{DescriptorProto, EnumDescriptorProto};

const FOLDER: &str = "src/store/wire";
const SERVICES: &[&str] = &["etcdserverpb", "grpc_health_v1", "v3electionpb", "v3lockpb"];

#[test]
fn wire_types_are_what_their_protos_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(FOLDER);
    let protos = SERVICES.iter().map(|name| format!("{name}.proto"));
    let descriptors = protox::compile(protos, [&folder]).expect("the protos compile");
    let made = tempfile::tempdir().expect("a temporary folder");
    let mut shapes = String::from(HEAD);
    for file in &descriptors.file {
        let package = file.package();
        for message in &file.message_type {
            message_shape(&mut shapes, package, message);
        }
        for kind in &file.enum_type {
            enum_shape(&mut shapes, package, kind);
        }
    }
    shapes.push_str("\npub static METHODS: &[Method] = &[\n");
    for file in &descriptors.file {
        for service in &file.service {
            for method in &service.method {
                let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                let (input, output) = (of(method.input_type()), of(method.output_type()));
                let (takes, gives) = (method.client_streaming(), method.server_streaming());
                writeln!(
                    shapes,
                    "    Method {{ path: {path:?}, input: &{input}, output: &{output}, \
                     takes_many: {takes}, gives_many: {gives} }},"
                )
                .expect("text");
            }
        }
    }
    shapes.push_str("];\n");
    fs::write(made.path().join("shapes.rs"), shapes).expect("the shapes");
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
    let all = ["authpb.rs", "etcdserverpb.rs", "grpc_health_v1.rs", "mvccpb.rs", "shapes.rs"];
    assert_eq!(packages, [&all[..], &["v3electionpb.rs", "v3lockpb.rs"]].concat());
}

const HEAD: &str = "// This file is @generated from the protos.
use super::shape::{Kind, Message, Method, choice, list, one};
";

/// Makes the name of a constant from the full name of a type.
fn of(full_name: &str) -> String {
    let name = full_name.trim_start_matches('.').replace('.', "_");
    name.to_uppercase()
}

fn message_shape(out: &mut String, scope: &str, message: &DescriptorProto) {
    let name = format!("{scope}.{}", message.name());
    let (constant, text) = (of(&name), format!("{name:?}"));
    writeln!(out, "\npub static {constant}: Message = Message {{ name: {text}, fields: &[")
        .expect("text");
    for field in &message.field {
        let kind = match field.r#type().as_str_name() {
            "TYPE_BOOL" => "Bool".to_owned(),
            "TYPE_INT64" => "Int64".to_owned(),
            "TYPE_UINT32" => "Uint32".to_owned(),
            "TYPE_UINT64" => "Uint64".to_owned(),
            "TYPE_STRING" => "String".to_owned(),
            "TYPE_BYTES" => "Bytes".to_owned(),
            "TYPE_ENUM" => format!("Enum({})", of(field.type_name())),
            "TYPE_MESSAGE" => format!("Message(&{})", of(field.type_name())),
            other => panic!("{name}: {other} is not known to the JSON gateway"),
        };
        let is_list = field.label().as_str_name() == "LABEL_REPEATED";
        let choice = field.oneof_index.map(|index| {
            let index = usize::try_from(index).expect("an index");
            format!("{name}.{}", message.oneof_decl[index].name())
        });
        let start = match &choice {
            Some(oneof) => format!("choice({oneof:?}, "),
            None if is_list => "list(".to_owned(),
            None => "one(".to_owned(),
        };
        let (number, name, json) = (field.number(), field.name(), field.json_name());
        assert!(!json.is_empty(), "{name} has no name in JSON");
        writeln!(out, "    {start}{number}, {name:?}, {json:?}, Kind::{kind}),").expect("text");
    }
    out.push_str("] };\n");
    for nested in &message.nested_type {
        message_shape(out, &name, nested);
    }
    for nested in &message.enum_type {
        enum_shape(out, &name, nested);
    }
}

fn enum_shape(out: &mut String, scope: &str, kind: &EnumDescriptorProto) {
    let constant = of(&format!("{scope}.{}", kind.name()));
    let values = kind.value.iter().map(|value| format!("({}, {:?})", value.number(), value.name()));
    let values = values.collect::<Vec<_>>().join(", ");
    writeln!(out, "\npub static {constant}: &[(i32, &str)] = &[{values}];").expect("text");
}
