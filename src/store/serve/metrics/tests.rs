use std::time::Instant;

use tonic::Code;

use super::*;
use crate::etcd::request::{Alarm, Put};
use crate::store::engine::Options;
use crate::store::guard::Caller;

fn open(compat: Compat) -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("data"), Options::default().compat(compat)).unwrap();
    (dir, store)
}

/// The value of a series, by its line's beginning.
fn value(text: &str, series: &str) -> f64 {
    let found = text.lines().find_map(|line| line.strip_prefix(&format!("{series} ")));
    found.unwrap_or_else(|| panic!("no {series}")).parse().unwrap()
}

fn has(text: &str, family: &str) -> bool {
    text.contains(&format!("# TYPE {family} "))
}

#[test]
fn a_store_is_told_in_etcds_words() {
    let (_dir, store) = open(Compat::V3_7);
    let me = Caller::default();
    for value in [b"1", b"2"] {
        store.put(&me, Put { key: b"k", value, ..Put::default() }).unwrap();
    }
    let alarm = Alarm { action: 1, member_id: store.member_id().0, alarm: 1 };
    store.alarm(&me, alarm).unwrap();
    let text = Metrics::new(false, Vec::new()).render(&store);
    assert_eq!(value(&text, "etcd_mvcc_put_total"), 2.0);
    assert_eq!(value(&text, "etcd_debugging_mvcc_keys_total"), 1.0);
    assert_eq!(value(&text, "etcd_server_version{server_version=\"3.7.3\"}"), 1.0);
    assert_eq!(value(&text, "etcd_cluster_version{cluster_version=\"3.7\"}"), 1.0);
    assert_eq!(value(&text, "etcd_debugging_mvcc_compact_revision"), -1.0);
    let id = store.member_id();
    let alarms = |kind: &str| {
        let labels = format!("{{alarm_type=\"{kind}\",server_id=\"{id}\"}}");
        value(&text, &format!("etcd_debugging_server_alarms{labels}"))
    };
    assert_eq!((alarms("NOSPACE"), alarms("CORRUPT")), (1.0, 0.0));
    let bucket = |le: &str| {
        let labels = format!("{{op=\"Put\",success=\"true\",version=\"v3\",le=\"{le}\"}}");
        value(&text, &format!("etcd_server_apply_duration_seconds_bucket{labels}"))
    };
    assert_eq!(bucket("52.4288"), 2.0);
    assert_eq!(bucket("+Inf"), 2.0);
    assert!(bucket("0.0001") <= bucket("0.0002"));
    let commits = value(&text, "etcd_disk_backend_commit_duration_seconds_count");
    let rebalance = "etcd_debugging_disk_backend_commit_rebalance_duration_seconds";
    assert_eq!(value(&text, &format!("{rebalance}_count")), commits);
    assert_eq!(value(&text, &format!("{rebalance}_sum")), 0.0);
    assert!(!has(&text, "grpc_server_handling_seconds"));
    assert!(!has(&text, "etcd_server_client_requests_total"), "nobody called");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (series, value) = line.rsplit_once(' ').unwrap();
        assert!(value.parse::<f64>().is_ok_and(|value| value >= -1.0), "{series} is {value}");
    }
}

#[test]
fn versions_differ_as_those_of_etcd() {
    let (_dir, store) = open(Compat::V3_6);
    let text = Metrics::new(true, Vec::new()).render(&store);
    assert_eq!(value(&text, "etcd_server_version{server_version=\"3.6.16\"}"), 1.0);
    assert!(!has(&text, "etcd_server_request_duration_seconds"));
    assert!(!text.contains("RangeStream") && !text.contains("watch_send_loop"));
    assert!(has(&text, "grpc_server_handling_seconds"));
}

#[test]
fn calls_are_counted_by_method_code_and_version() {
    let (_dir, store) = open(Compat::V3_7);
    let metrics = Metrics::new(true, Vec::new());
    let calls = &metrics.calls;
    for _ in 0..3 {
        calls.started(Method::Put, Some("3.7"));
        calls.received(Method::Put, 1, 15);
        calls.sent(Method::Put, 1, 25);
        calls.handled(Method::Put, Code::Ok, Duration::from_millis(7));
    }
    calls.started(Method::Put, None);
    calls.handled(Method::Put, Code::InvalidArgument, Duration::from_secs(11));
    calls.started(Method::Watch, Some("3.7"));
    // A prefix and the rest of its message in two pieces.
    calls.received(Method::Watch, 0, 3);
    calls.received(Method::Watch, 1, 12);
    calls.started(Method::Campaign, Some(&"9".repeat(33)));
    let text = metrics.render(&store);
    let of =
        |family: &str, labels: &str| value(&text, &format!("grpc_server_{family}{{{labels}}}"));
    let put = "grpc_method=\"Put\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"";
    assert_eq!(of("started_total", put), 4.0);
    assert_eq!(of("msg_received_total", put), 3.0);
    assert_eq!(of("msg_sent_total", put), 4.0, "the refused one as well");
    let handled = |code: &str| of("handled_total", &format!("grpc_code=\"{code}\",{put}"));
    assert_eq!((handled("OK"), handled("InvalidArgument"), handled("Aborted")), (3.0, 1.0, 0.0));
    assert_eq!(of("handling_seconds_count", put), 4.0);
    assert_eq!(of("handling_seconds_bucket", &format!("{put},le=\"0.01\"")), 3.0);
    assert_eq!(of("handling_seconds_bucket", &format!("{put},le=\"10\"")), 3.0);
    assert_eq!(value(&text, "etcd_network_client_grpc_received_bytes_total"), 40.0);
    assert_eq!(value(&text, "etcd_network_client_grpc_sent_bytes_total"), 60.0);
    let by = |version: &str, kind: &str| {
        let labels = format!("{{client_api_version=\"{version}\",type=\"{kind}\"}}");
        value(&text, &format!("etcd_server_client_requests_total{labels}"))
    };
    assert_eq!((by("3.7", "unary"), by("3.7", "stream")), (3.0, 1.0));
    assert_eq!((by("unknown", "unary"), by("other", "unary")), (1.0, 1.0));
    assert!(text.contains("grpc_method=\"Campaign\"") && !text.contains("grpc_method=\"Resign\""));
    let series = text.lines().filter(|line| line.starts_with("grpc_server_handled_total{"));
    assert_eq!(series.count(), 46 * 17);
}

#[test]
fn clients_cannot_make_more_versions_than_there_is_room_for() {
    let (_dir, store) = open(Compat::V3_7);
    let metrics = Metrics::new(false, Vec::new());
    for number in 0..1000 {
        metrics.calls.started(Method::Range, Some(&format!("4.{number}")));
    }
    let text = metrics.render(&store);
    let series = text.lines().filter(|line| line.starts_with("etcd_server_client_requests_total{"));
    let counts: Vec<f64> =
        series.map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap()).collect();
    assert_eq!((counts.len(), counts.iter().sum::<f64>()), (32, 1000.0));
    let other = "etcd_server_client_requests_total{client_api_version=\"other\",type=\"unary\"}";
    assert_eq!(value(&text, other), 969.0);
    for name in ["", "3", "3.", ".7", "3.x", "3.7.1.2", "v3.7", "3.7 ", "etcd"] {
        metrics.calls.started(Method::Range, Some(name));
    }
    let text = metrics.render(&store);
    assert_eq!(value(&text, other), 978.0, "what is no version has no series of its own");
}

#[test]
fn health_and_streams_are_told() {
    let (_dir, store) = open(Compat::V3_7);
    let feature = Feature { name: "AllAlpha".into(), stage: "ALPHA".into(), enabled: true };
    let metrics = Metrics::new(false, vec![feature]);
    metrics.health(true);
    metrics.health(true);
    metrics.health(false);
    metrics.check("readyz", "linearizable_read", true);
    metrics.check("readyz", "linearizable_read", false);
    metrics.stream_ended("watch", "receive", &Status::internal("no message"));
    metrics.stream_ended("watch", "receive", &Status::cancelled("the client is gone"));
    metrics.told(Told::Events(4), Duration::from_millis(8));
    metrics.told(Told::Control, Duration::from_millis(8));
    let began = Instant::now();
    let text = metrics.render(&store);
    assert!(began.elapsed() < Duration::from_secs(5), "a scrape does not wait");
    assert_eq!(value(&text, "etcd_server_health_success"), 2.0);
    assert_eq!(value(&text, "etcd_server_health_failures"), 1.0);
    let name = "name=\"linearizable_read\"";
    assert_eq!(value(&text, &format!("etcd_server_healthcheck{{{name},type=\"readyz\"}}")), 0.0);
    let labels = format!("{{{name},status=\"success\",type=\"readyz\"}}");
    assert_eq!(value(&text, &format!("etcd_server_healthchecks_total{labels}")), 1.0);
    let failures = "etcd_network_server_stream_failures_total{API=\"watch\",Type=\"receive\"}";
    assert_eq!(value(&text, failures), 1.0);
    let gate = "etcd_server_feature_enabled{name=\"AllAlpha\",stage=\"ALPHA\"}";
    assert_eq!(value(&text, gate), 1.0);
    let told = "etcd_debugging_server_watch_send_loop_watch_stream_duration";
    assert_eq!(value(&text, &format!("{told}_seconds_sum")), 0.008);
    assert_eq!(value(&text, &format!("{told}_per_event_seconds_sum")), 0.002);
}

#[test]
fn what_the_mixin_asks_for_is_told_and_documented() {
    let document = include_str!("../../../../docs/METRICS.md");
    let section = |heading: &str| -> Vec<&str> {
        let found = document.split("\n## ").find(|section| section.starts_with(heading)).unwrap();
        let rows = found.lines().filter(|line| line.starts_with("| `"));
        rows.map(|row| row.split(" | ").next().unwrap()).collect()
    };
    let (_dir, store) = open(Compat::V3_7);
    let text = Metrics::new(true, Vec::new()).render(&store);
    let asked = section("What asks for it");
    assert_eq!(asked.len(), 17);
    for row in asked {
        let family = row.trim_matches(['|', ' ', '`']);
        assert!(has(&text, family), "{family}");
    }
    let absent = section("What is not there");
    let names = absent.iter().flat_map(|row| row.split('`')).filter(|name| name.contains('_'));
    let names: Vec<&str> = names.map(|name| name.trim_end_matches('*')).collect();
    assert_eq!(names.len(), 6);
    for name in names {
        assert!(!text.contains(&format!("# TYPE {name}")), "{name} is there");
    }
}
