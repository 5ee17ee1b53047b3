//! Messages that are too large, cut, malformed, nested or packed to burst.

use std::io::Write;

use etcdkit::store::wire::etcdserverpb as pb;
use pb::request_op::Request;
use prost::Message;
use prost::bytes::Bytes;
use tonic::Code;

use crate::serve_child::{Served, run, say};
use crate::serve_wire::{framed, raw};

const PUT: &str = "/etcdserverpb.KV/Put";
const TXN: &str = "/etcdserverpb.KV/Txn";

fn put(bytes: usize) -> pb::PutRequest {
    let value = Bytes::from(vec![0; bytes]);
    pb::PutRequest { key: Bytes::from_static(b"a"), value, ..Default::default() }
}

fn head(flag: u8, length: u32) -> Vec<u8> {
    [&[flag][..], &length.to_be_bytes()].concat()
}

/// A transaction in a transaction, so many times.
fn nested(depth: usize) -> pb::TxnRequest {
    let mut txn = pb::TxnRequest::default();
    for _ in 0..depth {
        let request = Some(Request::RequestTxn(txn));
        let success = vec![pb::RequestOp { request }];
        txn = pb::TxnRequest { success, ..Default::default() };
    }
    txn
}

#[test]
fn malformed_messages_are_refused_and_hurt_nobody() {
    let served = Served::start(&[]);
    let address = served.address;
    let whole = framed(&put(3).encode_to_vec());
    let strings = framed(&[0x0a, 3, b'a', 0xff, 0xfe]);
    let unmarshal = "failed to decode Protobuf message";
    let cases: Vec<(&str, &str, Vec<u8>, Code, &str)> = vec![
        ("a flag that is none", PUT, [&[7], &whole[1..]].concat(), Code::Internal, "flag"),
        ("packed as nobody said", PUT, [&[1], &whole[1..]].concat(), Code::Internal, "flag"),
        ("no message", PUT, Vec::new(), Code::Internal, ""),
        ("half a head", PUT, vec![0, 0], Code::Internal, ""),
        ("more announced than comes", PUT, head(0, 100), Code::Internal, ""),
        ("a message that is cut", PUT, whole[..whole.len() - 1].to_vec(), Code::Internal, ""),
        ("a field that is cut", PUT, framed(&[0x0a, 200]), Code::Internal, unmarshal),
        ("a wire type that is none", PUT, framed(&[0x0f]), Code::Internal, unmarshal),
        ("field 0", PUT, framed(&[0x02, 0]), Code::Internal, unmarshal),
        ("an endless varint", PUT, framed(&[0xff; 30]), Code::Internal, unmarshal),
        ("text that is none", "/etcdserverpb.Auth/UserGet", strings, Code::Internal, unmarshal),
        (
            "the most that can be announced",
            PUT,
            head(0, u32::MAX),
            Code::ResourceExhausted,
            "grpc: received message larger than max (4294967295 vs. 2097152)",
        ),
        ("nested too deep", TXN, framed(&nested(60).encode_to_vec()), Code::Internal, unmarshal),
    ];
    run(async {
        for (what, path, body, code, text) in &cases {
            let (got, told, _) = raw(address, path, &[], body.clone()).await;
            assert_eq!(Code::from_i32(got), *code, "{what}: {told}");
            assert!(told.contains(text), "{what}: {told}");
        }
        // Fields that nobody knows are passed over.
        let unknown = [&[0xf8, 0x07, 1][..], &put(3).encode_to_vec()].concat();
        let (code, text, _) = raw(address, PUT, &[], framed(&unknown)).await;
        assert_eq!((code, text.as_str()), (0, ""));
        let (code, text, _) = raw(address, TXN, &[], framed(&nested(40).encode_to_vec())).await;
        assert_eq!((code, text.as_str()), (0, ""));
        // A second message where one is wanted.
        let twice = [framed(&put(1).encode_to_vec()), framed(&put(2).encode_to_vec())].concat();
        let (code, text, _) = raw(address, PUT, &[], twice).await;
        assert!([0, Code::Internal as i32].contains(&code), "{code}: {text}");
    });
    served.serves();
}

#[test]
fn large_messages_are_refused_in_exact_words() {
    let served = Served::start(&[]);
    run(async {
        // A field of a value with so many bytes has four bytes of length before it.
        let most = 2_097_152 - 3 - 4;
        let cases = [
            (1_572_864, Code::InvalidArgument, "etcdserver: request is too large".to_owned()),
            (most, Code::InvalidArgument, "etcdserver: request is too large".to_owned()),
            (
                most + 1,
                Code::ResourceExhausted,
                "grpc: received message larger than max (2097153 vs. 2097152)".to_owned(),
            ),
        ];
        for (bytes, code, text) in cases {
            let body = framed(&put(bytes).encode_to_vec());
            let (got, told, _) = raw(served.address, PUT, &[], body).await;
            assert_eq!((Code::from_i32(got), told), (code, text), "{bytes} bytes");
        }
        let (code, text, _) =
            raw(served.address, PUT, &[], framed(&put(1_572_800).encode_to_vec())).await;
        assert_eq!((code, text.as_str()), (0, ""));
    });
    served.serves();
}

#[test]
fn a_packed_message_is_not_unpacked_beyond_the_limit() {
    let served = Served::start(&[]);
    served.serves();
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(6));
    let zeros = vec![0; 1 << 20];
    for _ in 0..1024 {
        packer.write_all(&zeros).unwrap();
    }
    let packed = packer.finish().unwrap();
    assert!(packed.len() < 2 << 20, "{}", packed.len());
    let mut body = head(1, packed.len() as u32);
    body.extend(&packed);
    let before = served.memory();
    run(async {
        for _ in 0..4 {
            let gzip = [("grpc-encoding", "gzip")];
            let (code, text, _) = raw(served.address, PUT, &gzip, body.clone()).await;
            let told = "grpc: received message after decompression larger than max 2097152";
            assert_eq!((Code::from_i32(code), text.as_str()), (Code::ResourceExhausted, told));
            // What is announced as packed and is not.
            let mut broken = head(1, 100);
            broken.extend([0x1f; 100]);
            let (code, text, _) = raw(served.address, PUT, &gzip, broken).await;
            assert_eq!(Code::from_i32(code), Code::Internal, "{text}");
            let other = [("grpc-encoding", "snappy")];
            let (code, text, _) = raw(served.address, PUT, &other, body.clone()).await;
            assert_eq!(Code::from_i32(code), Code::Unimplemented, "{text}");
        }
    });
    let grown = served.memory().saturating_sub(before) >> 20;
    println!("a gigabyte in a megabyte: {grown} MiB");
    assert!(grown < 64, "{grown} MiB");
    served.serves();
}

/// Posts to the gateway; returns the code and the body.
fn post(served: &Served, path: &str, body: &str) -> (u16, String) {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    let answer = say(served.address, (head + body).as_bytes()).unwrap();
    let text = String::from_utf8_lossy(&answer).into_owned();
    let code = text.split(' ').nth(1).unwrap_or_else(|| panic!("{text:?}")).parse().unwrap();
    (code, text.split_once("\r\n\r\n").unwrap().1.to_owned())
}

#[test]
fn deep_and_long_json_is_refused_and_hurts_nobody() {
    let served = Served::start(&[]);
    served.serves();
    let before = served.memory();
    let deep = |opening: &str, depth: usize| opening.repeat(depth);
    let txn = |depth: usize| {
        let opening = "{\"success\":[{\"requestTxn\":";
        format!("{}{{}}{}", opening.repeat(depth), "}]}".repeat(depth))
    };
    let (code, text) = post(&served, "/v3/kv/txn", &txn(40));
    assert_eq!(code, 200, "{text}");
    let cases = [
        ("/v3/kv/txn", txn(60)),
        ("/v3/kv/txn", txn(5000)),
        ("/v3/kv/txn", deep("[", 1_000_000)),
        ("/v3/kv/txn", deep("{\"a\":", 400_000)),
        ("/v3/kv/put", format!("{{\"unknown\":{}1{}}}", deep("[", 50_000), deep("]", 50_000))),
        ("/v3/kv/put", "{\"key\":\"".to_owned()),
        ("/v3/kv/put", "\u{0}".repeat(100)),
        ("/v3/kv/range", "{\"limit\":1e999999999}".to_owned()),
        ("/v3/kv/range", format!("{{\"limit\":{}}}", "9".repeat(1_000_000))),
    ];
    for (path, body) in &cases {
        let (code, text) = post(&served, path, body);
        let shown = &body[..body.len().min(40)];
        assert_eq!(code, 400, "{shown}: {text}");
        assert!(text.len() < 2 << 20, "{shown}: {} bytes", text.len());
    }
    let long = format!("{{\"key\":\"YQ==\",\"value\":\"{}\"}}", "QUFB".repeat(3 << 20));
    let answer = std::panic::catch_unwind(|| post(&served, "/v3/kv/put", &long));
    // Whoever is refused while still sending may find the connection reset.
    if let Ok((code, text)) = answer {
        assert_eq!(code, 429, "{text}");
    }
    let grown = served.memory().saturating_sub(before) >> 20;
    println!("after deep JSON: {grown} MiB");
    assert!(grown < 100, "{grown} MiB");
    served.serves();
}
