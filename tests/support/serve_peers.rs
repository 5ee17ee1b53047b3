//! Peers that connect and say nothing, too little, too slowly or nonsense, and storms of them.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use etcdkit::store::serve::tls::{Settings, Tls};
use etcdkit::store::serve::{Address, Listener, Options, Role, Server};
use etcdkit::store::{Options as StoreOptions, Store};

use crate::certs::Certs;
use crate::serve_child::{LONG, Served, get, say, until};
use crate::serve_wire::{
    DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, Wire, call, fields, frame, framed,
    vanish,
};

const PATIENCE: Duration = Duration::from_millis(700);

/// A server in this process that waits for nobody for long: without TLS, and with it.
fn impatient() -> (Server, Store, [SocketAddr; 2], tempfile::TempDir, Certs) {
    let (dir, certs) = (tempfile::tempdir().unwrap(), Certs::new());
    let store = Store::open(&dir.path().join("data"), StoreOptions::default()).unwrap();
    let settings = Settings {
        cert_file: Some(certs.server().cert),
        key_file: Some(certs.server().key),
        handshake: PATIENCE,
        ..Settings::default()
    };
    let address = Address::Tcp((Ipv4Addr::LOCALHOST, 0).into());
    let tls = Some(Tls::open(&settings).unwrap());
    let listeners = vec![
        Listener { address: address.clone(), role: Role::Client, tls: None },
        Listener { address, role: Role::Client, tls },
    ];
    let options = Options::default().listeners(listeners).patience(PATIENCE);
    let server = Server::start(store.clone(), options).unwrap();
    let tcp = |address: &Address| match address {
        Address::Tcp(address) => *address,
        Address::Unix(_) => unreachable!(),
    };
    let addresses = [tcp(&server.addresses()[0]), tcp(&server.addresses()[1])];
    (server, store, addresses, dir, certs)
}

/// Reads until the server hangs up.
fn is_hung_up(mut stream: TcpStream) -> bool {
    stream.set_read_timeout(Some(LONG)).unwrap();
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => true,
        Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
    }
}

#[test]
fn nobody_is_waited_for_for_ever() {
    let (server, store, [plain, tls], _dir, _certs) = impatient();
    let begun = |address, bytes: &[u8]| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let half_frame = [PREFACE, &[0, 0, 0, 4]].concat();
    let cases: [(&str, SocketAddr, &[u8]); 10] = [
        ("silence", plain, b""),
        ("one byte of two protocols", plain, b"P"),
        ("half a preface", plain, &PREFACE[..20]),
        ("a preface", plain, PREFACE),
        ("half a frame", plain, &half_frame),
        ("half a method", plain, b"GE"),
        ("half a head", plain, b"GET /health HTTP/1.1\r\nHost: a\r\nX-A: "),
        ("silence instead of TLS", tls, b""),
        ("the first byte of TLS", tls, &[0x16]),
        ("half a hello", tls, &[0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3]),
    ];
    let streams = cases.map(|(what, address, bytes)| (what, begun(address, bytes)));
    // Who goes on slowly is not waited for either.
    let mut slow = begun(plain, b"GET /health HTTP/1.1\r\n");
    let dribbling = std::thread::spawn(move || {
        let end = std::time::Instant::now() + LONG;
        while std::time::Instant::now() < end {
            if slow.write_all(b"X-A: b\r\n").is_err() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        false
    });
    let (code, _) = get(plain, "/health").unwrap();
    assert_eq!(code, 200);
    for (what, stream) in streams {
        assert!(is_hung_up(stream), "{what}");
    }
    assert!(dribbling.join().unwrap(), "a slow head");

    // Who has said what it speaks may be quiet for as long as it likes.
    let mut quiet = Wire::connect(plain);
    std::thread::sleep(PATIENCE * 2);
    let call = fields(&call("/etcdserverpb.Maintenance/Status"));
    assert!(quiet.send(&frame(HEADERS, END_HEADERS, 1, &call)));
    assert!(quiet.send(&frame(DATA, END_STREAM, 1, &framed(&[]))));
    until("an answer", || quiet.read().is_some_and(|frame| frame.kind == HEADERS));
    server.stop(LONG);
    store.close().unwrap();
}

#[test]
fn connections_come_and_go_by_the_thousand() {
    let served = Served::start(&[]);
    served.serves();
    let before = served.descriptors();
    let settings = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let words: [&[u8]; 5] = [b"", b"P", PREFACE, &settings, b"GET /health HTTP/1.1\r\n"];
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let served = &served;
            scope.spawn(move || {
                for number in 0..2000_usize {
                    let mut stream = TcpStream::connect(served.address).unwrap();
                    stream.write_all(words[(number + thread) % words.len()]).unwrap();
                    match number % 3 {
                        0 => drop(stream),
                        _ => vanish(stream),
                    }
                }
            });
        }
    });
    served.serves();
    until("the end of all connections", || served.descriptors() <= before + 1);
    // Many at once that stay, and say little or nothing.
    let held: Vec<TcpStream> = (0..400)
        .map(|number| {
            let mut stream = TcpStream::connect(served.address).unwrap();
            stream.write_all(words[number % words.len()]).unwrap();
            stream
        })
        .collect();
    // A connection of before may have been counted that is gone by now.
    until("all of them", || served.descriptors() >= before + 395);
    served.serves();
    let memory = served.memory() >> 20;
    assert!(memory < 200, "{memory} MiB");
    drop(held);
    until("their end", || served.descriptors() <= before + 1);
}

#[test]
fn calls_that_never_go_on_hold_little() {
    let served = Served::start(&[]);
    served.serves();
    let (before, descriptors) = (served.memory(), served.descriptors());
    let mut wires = Vec::new();
    for _ in 0..10 {
        let mut wire = Wire::connect(served.address);
        for number in 0..100 {
            let path = ["/etcdserverpb.KV/Put", "/etcdserverpb.Watch/Watch"][number % 2];
            let stream = number as u32 * 2 + 1;
            assert!(wire.send(&frame(HEADERS, END_HEADERS, stream, &fields(&call(path)))));
            // A message is announced, as large as may be, and does not come.
            let announced = [&[0_u8][..], &2_000_000_u32.to_be_bytes()].concat();
            assert!(wire.send(&frame(DATA, 0, stream, &announced)));
        }
        wires.push(wire);
    }
    let name = "grpc_server_started_total{grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",\
                grpc_type=\"unary\"}";
    until("all calls", || served.metric(name) >= 500);
    served.serves();
    let grown = served.memory().saturating_sub(before) >> 20;
    println!("a thousand calls without a body hold {grown} MiB");
    assert!(grown < 100, "{grown} MiB");
    drop(wires);
    until("the end of the connections", || served.descriptors() <= descriptors + 1);
}

#[test]
fn nonsense_in_http_1_is_refused_and_hurts_nobody() {
    let served = Served::start(&[]);
    served.serves();
    let before = served.memory();
    let long = "x".repeat(1 << 20);
    let cases = [
        "\r\n\r\n\r\n".to_owned() + &"\0".repeat(1000),
        "GET\r\n\r\n".to_owned(),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}\u{fc}".to_owned(),
        format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"),
        format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"),
        format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(5000)),
        "POST /v3/kv/put HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n{}".to_owned(),
        "POST /v3/kv/put HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}"
            .to_owned(),
        "POST /v3/kv/put HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}"
            .to_owned(),
        "POST /v3/kv/put HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n\
         ffffffffffffffffff\r\n{}"
            .to_owned(),
    ];
    for case in &cases {
        for _ in 0..20 {
            let answer = say(served.address, case.as_bytes()).unwrap_or_default();
            let text = String::from_utf8_lossy(&answer);
            let shown = &case[..case.len().min(60)];
            let is_refusal = ["HTTP/1.1 4", "HTTP/1.0 4"].iter().any(|it| text.starts_with(it));
            assert!(answer.is_empty() || is_refusal, "{shown:?}: {text:?}");
        }
    }
    served.serves();
    let grown = served.memory().saturating_sub(before) >> 20;
    assert!(grown < 64, "{grown} MiB");
}
