//! Many watchers: work and memory grow with what is delivered, not with who is there.

use super::*;

fn key(number: usize) -> String {
    format!("/registry/pods/{number:05}")
}

#[test]
fn a_thousand_watchers_of_one_prefix_share_the_work() {
    let (fake, hub) = hub(LIMITS);
    let streams: Vec<Stream> = (0..1000)
        .map(|_| {
            let stream = hub.stream();
            stream.create(Create { prev_kv: true, ..on("/registry/pods/", "/registry/pods0") });
            assert!(next(&stream).created);
            stream
        })
        .collect();
    // Ten thousand others, of keys and of ranges, that nothing happens to.
    let others = hub.stream();
    for number in 0..5000 {
        others.create(on(&format!("/registry/leases/{number}"), ""));
        let first = format!("/registry/leases/{number:05}/");
        others.create(on(&first, &format!("/registry/leases/{number:05}0")));
    }
    assert_eq!(hub.counts().watchers, 11_000);
    hub.publish((0..200).map(|number| fake.put(&key(number % 100), "value")).collect());
    wait_delivered(&hub, 201);
    assert_eq!(hub.counts().pending_events, 200_000);
    // Each record before was looked up once, not a thousand times, and history was not read.
    assert_eq!(fake.lookups.load(Ordering::Relaxed), 100);
    assert_eq!(fake.reads.load(Ordering::Relaxed), 0);
    let mut shared = None;
    for stream in &streams {
        let mut events = Vec::new();
        while events.len() < 200 {
            events.extend(next(stream).events);
        }
        // The bytes are the same memory everywhere.
        let place = events[150].0.kv.0.as_ptr();
        assert_eq!(*shared.get_or_insert(place), place);
        assert!(events[150].1.is_some());
    }
    assert_eq!(hub.counts().pending_events, 0);
    assert_eq!(hub.counts().sent_events, 200_000);
    assert_eq!(others.backlog(), 10_000);
    drop((streams, others));
    assert_eq!(hub.counts(), Counts { sent_events: 200_000, revision: 201, ..Counts::default() });
}

#[test]
fn stuck_consumers_cost_no_more_than_their_share() {
    let (fake, hub) = hub(Limits { waiting_max: 10, ..LIMITS });
    let stuck: Vec<Stream> = (0..200).map(|_| hub.stream()).collect();
    stuck.iter().for_each(|stream| stream.create(on("a", "")));
    let live = hub.stream();
    live.create(on("a", ""));
    assert!(next(&live).created);
    let mut got = 0;
    for _ in 0..2000 {
        hub.publish(vec![fake.put("a", "x")]);
        while got + 5 < fake.revision() {
            let response = next(&live);
            got = response.events.last().unwrap().0.revision.main;
        }
    }
    wait_delivered(&hub, 2001);
    // Each holds its share, and the batch with which it was full.
    assert!(hub.counts().pending_events <= 201 * (10 + 10), "{:?}", hub.counts());
    for stream in stuck {
        let mut got = Vec::new();
        assert!(next(&stream).created);
        while got.len() < 2000 {
            got.extend(revisions(&next(&stream)));
        }
        assert_eq!(got, (2..=2001).collect::<Vec<_>>());
    }
    // Two hundred read the same history, and it was read for few of them.
    assert!(fake.reads.load(Ordering::Relaxed) < 200 * 2000 / 10);
}

#[test]
fn a_hub_that_is_overrun_reads_history() {
    let (fake, hub) = hub(Limits { response_bytes: 1 << 24, waiting_max: 1 << 20 });
    let stream = hub.stream();
    stream.create(on("a", ""));
    stream.create(Create { start_revision: 70_000, ..on("a", "") });
    assert!(next(&stream).created && next(&stream).created);
    // More at once than may wait for the fan-out.
    let count = fan_out::INBOX_EVENTS_MAX as i64 + 5000;
    hub.publish((0..count).map(|_| fake.put("a", "")).collect());
    let mut got: [Vec<i64>; 2] = [Vec::new(), Vec::new()];
    while got[0].len() as i64 != count || got[1].last() != Some(&(count + 1)) {
        let response = next(&stream);
        got[response.watch_id as usize].extend(revisions(&response));
    }
    assert_eq!(got[0], (2..=count + 1).collect::<Vec<_>>());
    assert_eq!(got[1], (70_000..=count + 1).collect::<Vec<_>>());
    assert!(fake.reads.load(Ordering::Relaxed) > 0);
    stream.request_progress();
    assert_eq!(next(&stream).revision, count + 1);
}
