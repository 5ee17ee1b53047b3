//! Floods of HTTP/2 frames: each costs its connection, or next to nothing.

use std::io::Read;
use std::thread;

use crate::serve_child::{Served, run};
use crate::serve_wire::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, Wire, call, fields, frame, framed,
};

const ENHANCE_YOUR_CALM: u32 = 11;
const REFUSED_STREAM: u32 = 7;
const STATUS: &str = "/etcdserverpb.Maintenance/Status";

/// Sends a flood on some connections at once, reading nothing or everything meanwhile; returns
/// with which code each was ended, once it is, or none where the flood was endured.
fn flood(
    served: &Served,
    reads: bool,
    parts: &(dyn Fn(usize) -> Vec<u8> + Sync),
) -> Vec<Option<u32>> {
    thread::scope(|scope| {
        let floods: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut wire = Wire::connect(served.address);
                    let mut other = wire.0.try_clone().unwrap();
                    let reader = reads.then(|| {
                        thread::spawn(move || {
                            let mut bytes = Vec::new();
                            // The end of the connection ends it.
                            let _ = other.read_to_end(&mut bytes);
                            goaway(&bytes)
                        })
                    });
                    for number in 0..200 {
                        if !wire.send(&parts(number)) {
                            break;
                        }
                    }
                    // No more comes; what the server thinks of it does.
                    let _ = wire.0.shutdown(std::net::Shutdown::Write);
                    match reader {
                        Some(reader) => reader.join().unwrap(),
                        None => wire.ended(),
                    }
                })
            })
            .collect();
        served.serves();
        floods.into_iter().map(|flood| flood.join().unwrap()).collect()
    })
}

/// Finds the code of the last GOAWAY.
fn goaway(mut bytes: &[u8]) -> Option<u32> {
    let mut code = None;
    while bytes.len() >= 9 {
        let length = u32::from_be_bytes([0, bytes[0], bytes[1], bytes[2]]) as usize;
        let Some(payload) = bytes.get(9..9 + length) else { break };
        if bytes[3] == GOAWAY {
            code = Some(u32::from_be_bytes(payload[4..8].try_into().unwrap()));
        }
        bytes = &bytes[9 + length..];
    }
    code
}

/// Runs a flood and looks at what it cost.
fn endured(reads: bool, parts: &(dyn Fn(usize) -> Vec<u8> + Sync)) -> Vec<Option<u32>> {
    let served = Served::start(&[]);
    served.serves();
    let before = served.memory();
    let ends = flood(&served, reads, parts);
    served.serves();
    let grown = served.memory().saturating_sub(before) >> 20;
    println!("ended with {ends:?}, {grown} MiB");
    assert!(grown < 64, "{grown} MiB");
    ends
}

/// Calls a method, all in one.
fn whole_call(stream: u32, path: &str) -> Vec<u8> {
    let head = frame(HEADERS, END_HEADERS, stream, &fields(&call(path)));
    [head, frame(DATA, END_STREAM, stream, &framed(&[]))].concat()
}

#[test]
fn calls_that_are_reset_at_once_cost_the_connection() {
    let ends = endured(true, &|number| {
        let mut bytes = Vec::new();
        for call in 0..100_u32 {
            let stream = (number as u32 * 100 + call) * 2 + 1;
            bytes.extend(whole_call(stream, STATUS));
            bytes.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
        }
        bytes
    });
    assert_eq!(ends, [Some(ENHANCE_YOUR_CALM); 2]);
}

#[test]
fn calls_that_the_server_has_to_reset_cost_the_connection() {
    // A window that grows beyond all bounds is an error of its stream.
    let ends = endured(true, &|number| {
        let mut bytes = Vec::new();
        for call in 0..100_u32 {
            let stream = (number as u32 * 100 + call) * 2 + 1;
            let head = fields(&crate::serve_wire::call("/etcdserverpb.Watch/Watch"));
            bytes.extend(frame(HEADERS, END_HEADERS, stream, &head));
            bytes.extend(frame(WINDOW_UPDATE, 0, stream, &0x7fff_ffff_u32.to_be_bytes()));
        }
        bytes
    });
    assert_eq!(ends, [Some(ENHANCE_YOUR_CALM); 2]);
}

#[test]
fn pings_and_settings_without_end_are_answered_or_refused() {
    for reads in [true, false] {
        for (kind, payload) in [(PING, &[0_u8; 8][..]), (SETTINGS, &[])] {
            endured_or_stuck(kind, payload, reads);
        }
    }
}

/// A client that reads no answers is not read from either, so that it is stuck: its system's
/// buffers are all that fills.
fn endured_or_stuck(kind: u8, payload: &[u8], reads: bool) {
    let served = Served::start(&[]);
    served.serves();
    let before = served.memory();
    let bytes = frame(kind, 0, 0, payload).repeat(2000);
    let mut wire = Wire::connect(served.address);
    wire.0.set_write_timeout(Some(std::time::Duration::from_secs(2))).unwrap();
    let mut other = wire.0.try_clone().unwrap();
    let reader = reads.then(|| {
        thread::spawn(move || {
            let mut bytes = Vec::new();
            // The end of the connection ends it.
            let _ = other.read_to_end(&mut bytes);
            bytes.len()
        })
    });
    for _ in 0..300 {
        use std::io::Write as _;
        if wire.0.write_all(&bytes).is_err() {
            break;
        }
    }
    served.serves();
    let grown = served.memory().saturating_sub(before) >> 20;
    assert!(grown < 32, "kind {kind}, reads: {reads}: {grown} MiB");
    let _ = wire.0.shutdown(std::net::Shutdown::Both);
    if let Some(reader) = reader {
        assert!(reader.join().unwrap() > 0, "nothing was answered");
    }
    served.serves();
}

#[test]
fn a_head_without_end_costs_the_connection() {
    let filler = fields(&[("x", &"y".repeat(16_000))]);
    let ends = endured(true, &|number| match number {
        0 => frame(HEADERS, 0, 1, &fields(&call(STATUS))),
        _ => frame(CONTINUATION, 0, 1, &filler).repeat(10),
    });
    assert!(ends.iter().all(Option::is_some), "{ends:?}");
    // The same with parts that hold nothing.
    let ends = endured(true, &|number| match number {
        0 => frame(HEADERS, 0, 1, &fields(&call(STATUS))),
        _ => frame(CONTINUATION, 0, 1, &[]).repeat(1000),
    });
    assert!(ends.iter().all(Option::is_some), "{ends:?}");
}

#[test]
fn empty_data_without_end_is_bounded() {
    endured(true, &|number| match number {
        0 => frame(HEADERS, END_HEADERS, 1, &fields(&call("/etcdserverpb.Watch/Watch"))),
        _ => frame(DATA, 0, 1, &[]).repeat(2000),
    });
}

#[test]
fn a_large_head_is_refused_and_a_usual_one_is_taken() {
    let served = Served::start(&[]);
    run(async {
        let value = "v".repeat(100 << 10);
        let mut wire = Wire::connect(served.address);
        let mut list = call(STATUS);
        list.push(("x-large", &value));
        let head = fields(&list);
        let parts: Vec<&[u8]> = head.chunks(16_000).collect();
        let mut bytes = frame(HEADERS, 0, 1, parts[0]);
        for part in &parts[1..parts.len() - 1] {
            bytes.extend(frame(CONTINUATION, 0, 1, part));
        }
        bytes.extend(frame(CONTINUATION, END_HEADERS, 1, parts[parts.len() - 1]));
        wire.send(&bytes);
        let answer = loop {
            match wire.read() {
                Some(frame) if [HEADERS, RST_STREAM, GOAWAY].contains(&frame.kind) => break frame,
                Some(_) => {}
                None => panic!("no answer"),
            }
        };
        // 431, or the end of the stream or of the connection: but no call.
        let is_call = answer.kind == HEADERS && answer.payload.first() == Some(&0x88);
        assert!(!is_call, "it was taken");
        let usual = "v".repeat(8 << 10);
        let headers = [("authorization", usual.as_str())];
        let body = framed(&[]);
        let (code, _, _) = crate::serve_wire::raw(served.address, STATUS, &headers, body).await;
        assert_eq!(code, 0);
    });
    served.serves();
}

#[test]
fn more_streams_than_allowed_are_refused_and_those_that_are_there_go_on() {
    let served = Served::start(&["--max-concurrent-streams", "10"]);
    let mut wire = Wire::connect(served.address);
    let watch = fields(&call("/etcdserverpb.Watch/Watch"));
    for number in 0..30 {
        assert!(wire.send(&frame(HEADERS, END_HEADERS, number * 2 + 1, &watch)));
    }
    let mut refused = Vec::new();
    while refused.len() < 20 {
        let frame = wire.read().expect("the connection stays");
        assert_ne!(frame.kind, GOAWAY);
        if frame.kind == RST_STREAM {
            assert_eq!(frame.payload, REFUSED_STREAM.to_be_bytes());
            refused.push(frame.stream);
        }
    }
    refused.sort_unstable();
    assert_eq!(refused, (10..30).map(|number| number * 2 + 1).collect::<Vec<_>>());
    served.serves();
    // One that ends makes room for another.
    assert!(wire.send(&frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes())));
    assert!(wire.send(&whole_call(101, STATUS)));
    loop {
        let frame = wire.read().expect("an answer");
        if frame.stream == 101 {
            assert_eq!(frame.kind, HEADERS);
            break;
        }
    }
}
