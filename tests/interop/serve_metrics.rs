//! The metrics of a served store against those of etcd 3.6 and 3.7 that was asked the same.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use etcd_client::{
    Client, CompactionOptions, Compare, CompareOp, Txn, TxnOp, WatchOptions, WatchStream,
};
use etcdkit::etcd::request::Compaction;
use etcdkit::store::guard::Caller;
use etcdkit::store::open::Compat;
use etcdkit::store::serve::{Address, Listener, Options, Role, Server};
use etcdkit::store::{self, Store};

use crate::programs::{Start, real, until};
use crate::support::Sandbox;

/// Families of etcd that the store has not: `docs/METRICS.md` says why.
const ABSENT: &[&str] = &[
    "go_",
    "promhttp_",
    "etcd_grpc_proxy_",
    "etcd_server_go_version",
    "etcd_debugging_store_reads_total",
    "etcd_debugging_store_writes_total",
];
/// Families that the store has from the start, and etcd only when there is something to tell.
const EARLY: &[&str] = &["etcd_debugging_server_alarms"];

/// Series whose values what was asked determines.
const DETERMINED: &[&str] = &[
    "etcd_mvcc_put_total",
    "etcd_mvcc_delete_total",
    "etcd_mvcc_txn_total",
    "etcd_debugging_mvcc_keys_total",
    "etcd_debugging_mvcc_total_put_size_in_bytes",
    "etcd_debugging_mvcc_current_revision",
    "etcd_debugging_mvcc_compact_revision",
    "etcd_debugging_mvcc_db_compaction_keys_total",
    "etcd_debugging_mvcc_db_compaction_total_duration_milliseconds_count",
    "etcd_debugging_mvcc_index_compaction_pause_duration_milliseconds_count",
    "etcd_debugging_mvcc_watcher_total",
    "etcd_debugging_mvcc_watch_stream_total",
    "etcd_debugging_mvcc_slow_watcher_total",
    "etcd_debugging_mvcc_events_total",
    "etcd_debugging_mvcc_pending_events_total",
    "etcd_debugging_lease_granted_total",
    "etcd_debugging_lease_revoked_total",
    "etcd_debugging_lease_renewed_total",
    "etcd_debugging_lease_ttl_total_count",
    "etcd_debugging_lease_ttl_total_sum",
    "etcd_debugging_server_lease_expired_total",
    "etcd_debugging_auth_revision",
    "etcd_disk_backend_defrag_duration_seconds_count",
    "etcd_disk_backend_snapshot_duration_seconds_count",
    "etcd_disk_defrag_inflight",
    "etcd_mvcc_hash_duration_seconds_count",
    "etcd_mvcc_hash_rev_duration_seconds_count",
    "etcd_server_has_leader",
    "etcd_server_is_leader",
    "etcd_server_is_learner",
    "etcd_server_leader_changes_seen_total",
    "etcd_server_proposals_committed_total",
    "etcd_server_proposals_applied_total",
    "etcd_server_proposals_pending",
    "etcd_server_proposals_failed_total",
    "etcd_server_quota_backend_bytes",
    "etcd_server_slow_read_indexes_total",
    "etcd_server_read_indexes_failed_total",
    "etcd_server_health_success",
    "etcd_server_health_failures",
    "etcd_server_range_duration_seconds_count{success=\"false\"}",
    "etcd_server_range_duration_seconds_count{success=\"true\"}",
];

/// Kinds of requests whose counts are the same.
const SAME_OPS: &[&str] =
    &["Put", "DeleteRange", "Txn", "Compaction", "LeaseGrant", "LeaseRevoke", "Range"];

/// What `/metrics` told.
struct Told {
    kinds: BTreeMap<String, String>,
    series: BTreeMap<String, f64>,
}

impl Told {
    fn parse(text: &str) -> Self {
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let kinds = types.map(|line| line.split_once(' ').unwrap());
        let kinds = kinds.map(|(name, kind)| (name.to_owned(), kind.to_owned())).collect();
        let series = text.lines().filter(|line| !line.starts_with('#'));
        let series = series.map(|line| line.rsplit_once(' ').unwrap());
        let series = series.map(|(name, value)| (name.to_owned(), value.parse().unwrap()));
        Self { kinds, series: series.collect() }
    }

    fn ask(endpoint: &str) -> Self {
        let host = endpoint.strip_prefix("http://").unwrap();
        let mut stream = TcpStream::connect(host).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "GET /metrics HTTP/1.0\r\nHost: {host}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 "), "{head}");
        assert!(head.to_ascii_lowercase().contains("text/plain; version=0.0.4"), "{head}");
        Self::parse(body)
    }

    /// The series of a family, as name and labels.
    fn of<'a>(&'a self, family: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        let series = self.series.iter().filter(move |(name, _)| {
            let rest = name.strip_prefix(family);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
        });
        series.map(|(name, value)| (name.as_str(), *value))
    }

    /// Names of a family's labels.
    fn labels(&self, family: &str) -> BTreeSet<String> {
        let kind = self.kinds.get(family).map(String::as_str);
        let name = if kind == Some("histogram") { format!("{family}_sum") } else { family.into() };
        let first = self.of(&name).next().map(|(name, _)| name.to_owned());
        let labels = first.unwrap_or_else(|| panic!("{family} has no series"));
        let inner = labels.split_once('{').map_or("", |(_, rest)| rest.trim_end_matches('}'));
        let pairs = inner.split("\",").filter_map(|pair| pair.split_once('='));
        pairs.map(|(name, _)| name.to_owned()).collect()
    }

    fn value(&self, series: &str) -> Option<f64> {
        self.series.get(series).copied()
    }
}

fn is_absent(family: &str) -> bool {
    ABSENT.iter().any(|absent| match absent.strip_suffix('_') {
        Some(_) => family.starts_with(absent),
        None => family == *absent,
    })
}

/// What is asked over gRPC of both; the watch is given back, so that it stays.
async fn ask(client: &mut Client) -> WatchStream {
    client.put("k", "v1", None).await.unwrap();
    client.put("k", "v2", None).await.unwrap();
    let from = WatchOptions::new().with_start_revision(2);
    let mut events = client.watch("k", Some(from)).await.unwrap();
    client.get("k", None).await.unwrap();
    client.get("nothing", None).await.unwrap();
    client.delete("k", None).await.unwrap();
    let txn = Txn::new()
        .when([Compare::create_revision("a", CompareOp::Equal, 0)])
        .and_then([TxnOp::put("a", "b", None), TxnOp::get("a", None)])
        .or_else([TxnOp::get("a", None)]);
    for _ in 0..2 {
        client.txn(txn.clone()).await.unwrap();
    }
    client.put("", "no key", None).await.unwrap_err();
    let future = etcd_client::GetOptions::new().with_revision(1000);
    client.get("k", Some(future)).await.unwrap_err();
    let mut seen = 0;
    while seen < 3 {
        let told = events.message().await.unwrap().unwrap();
        seen += told.events().len();
    }
    events
}

/// What is asked of etcd beside that.
async fn ask_the_rest(client: &mut Client) {
    let lease = client.lease_grant(60, None).await.unwrap().id();
    // It asks once by itself.
    client.lease_keep_alive(lease).await.unwrap();
    client.lease_revoke(lease).await.unwrap();
    let physical = CompactionOptions::new().with_physical();
    client.compact(3, Some(physical)).await.unwrap();
    client.defragment().await.unwrap();
    client.hash_kv(0).await.unwrap();
    client.hash().await.unwrap();
    let mut snapshot = client.snapshot().await.unwrap();
    while snapshot.message().await.unwrap().is_some() {}
}

/// The same, of a store in this process.
fn ask_the_store(store: &Store) {
    let me = Caller::default();
    let (lease, _) = store.lease_grant(&me, 0, 60).unwrap().body;
    store.lease_keep_alive(&me, lease).unwrap();
    store.lease_revoke(&me, lease).unwrap();
    store.compact(&me, Compaction { revision: 3, physical: true }).unwrap();
    store.defragment(&me).unwrap();
    store.hash_kv(&me, 0).unwrap();
    store.hash(&me).unwrap();
    let mut snapshot = store.snapshot(&me).unwrap();
    std::io::copy(&mut snapshot, &mut std::io::sink()).unwrap();
}

fn compare(version: &str, theirs: &Told, ours: &Told) {
    let mut wrong = Vec::new();
    for (family, kind) in theirs.kinds.iter().filter(|(family, _)| !is_absent(family)) {
        match ours.kinds.get(family) {
            None => wrong.push(format!("{family} is missing")),
            Some(own) if own != kind => wrong.push(format!("{family} is a {own}, not a {kind}")),
            Some(_) => {
                let (own, labels) = (ours.labels(family), theirs.labels(family));
                if own != labels {
                    wrong.push(format!("{family} has labels {own:?}, not {labels:?}"));
                }
            }
        }
    }
    for family in ours.kinds.keys() {
        if !theirs.kinds.contains_key(family) && !EARLY.contains(&family.as_str()) {
            wrong.push(format!("{family} is no family of etcd {version}"));
        }
    }
    for family in ours.kinds.keys().filter(|family| is_absent(family)) {
        wrong.push(format!("{family} is said not to be there"));
    }
    let mut same = |series: &str| {
        let (own, value) = (ours.value(series), theirs.value(series));
        if own != value || own.is_none() {
            wrong.push(format!("{series} is {own:?}, not {value:?}"));
        }
    };
    DETERMINED.iter().for_each(|series| same(series));
    let grpc = theirs.series.keys().filter(|name| name.starts_with("grpc_server_handled_total{"));
    let is_of_keys = |name: &str| name.contains("etcdserverpb.KV") || name.contains("pb.Watch");
    let is_of_both = |name: &str| !name.contains("Compact") && is_of_keys(name);
    grpc.filter(|name| is_of_both(name)).for_each(|series| same(series));
    for word in ["started", "msg_received", "msg_sent"] {
        let family = format!("grpc_server_{word}_total");
        // How many responses events come in is a matter of time.
        let is_timed = |name: &str| word == "msg_sent" && name.contains("pb.Watch");
        let all = theirs.of(&family).filter(|(name, _)| is_of_both(name) && !is_timed(name));
        all.for_each(|(series, _)| same(series));
    }
    for op in SAME_OPS {
        let labels = format!("success=\"true\",type=\"{op}\"");
        let request = format!("etcd_server_request_duration_seconds_count{{{labels}}}");
        let labels = format!("op=\"{op}\",success=\"true\",version=\"v3\"");
        let apply = format!("etcd_server_apply_duration_seconds_count{{{labels}}}");
        for series in [request, apply] {
            if theirs.value(&series).is_some() {
                same(&series);
            }
        }
    }
    for family in ["etcd_server_version", "etcd_cluster_version"] {
        theirs.of(family).for_each(|(series, _)| same(series));
    }
    let names = |told: &Told, family: &str| -> Vec<String> {
        told.of(family).map(|(name, _)| name.to_owned()).collect()
    };
    for family in theirs.kinds.keys().filter(|family| family.starts_with("grpc_server_")) {
        if names(theirs, family) != names(ours, family) {
            wrong.push(format!("{family} has other series than etcd's"));
        }
    }
    for (family, _) in theirs.kinds.iter().filter(|(family, kind)| {
        *kind == "histogram" && !is_absent(family) && ours.kinds.contains_key(*family)
    }) {
        let bounds = |told: &Told| -> BTreeSet<String> {
            let name = format!("{family}_bucket");
            let series = told.of(&name).map(|(name, _)| name.to_owned());
            let bound = |name: String| {
                let le = name.rsplit_once("le=\"").unwrap().1.trim_end_matches("\"}").to_owned();
                le.parse::<f64>().unwrap().to_string()
            };
            series.map(bound).collect()
        };
        if bounds(theirs) != bounds(ours) {
            wrong.push(format!("{family} has other buckets than etcd's"));
        }
    }
    // etcd reads once more at the end of a compaction.
    let ranges = |told: &Told| told.value("etcd_mvcc_range_total");
    if ranges(ours).map(|own| own + 1.0) != ranges(theirs) {
        wrong.push(format!("{:?} ranges and one, not {:?}", ranges(ours), ranges(theirs)));
    }
    assert!(wrong.is_empty(), "against etcd {version}:\n{}", wrong.join("\n"));
}

fn check(version: &str, compat: Compat) {
    let Some(real) = real() else { return };
    let sandbox = Sandbox::new();
    let more = ["--metrics", "extensive"];
    let data_dir = sandbox.path("theirs");
    let etcd = real.etcd(version, &Start { data_dir, name: "m1", more: &more, ..Start::default() });
    let options = store::Options::default().compat(compat);
    let store = Store::open(&sandbox.path("ours"), options).unwrap();
    let address = Address::Tcp("127.0.0.1:0".parse().unwrap());
    let listeners = vec![Listener { address, role: Role::Client, tls: None }];
    let options = Options::default().listeners(listeners).extensive_metrics(true);
    let server = Server::start(store.clone(), options.features(features(&etcd.endpoint))).unwrap();
    let endpoint = format!("http://{}", server.addresses()[0]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (theirs, ours) = runtime.block_on(async {
        let mut client = Client::connect([&etcd.endpoint], None).await.unwrap();
        let _theirs = ask(&mut client).await;
        ask_the_rest(&mut client).await;
        let mut client = Client::connect([&endpoint], None).await.unwrap();
        let _ours = ask(&mut client).await;
        ask_the_store(&store);
        let settled = "etcd_debugging_mvcc_pending_events_total";
        until("nothing waits", Duration::from_secs(20), || {
            let told = Told::ask(&etcd.endpoint);
            (told.value(settled) == Some(0.0)).then_some(())
        });
        // The server has threads of its own.
        (Told::ask(&etcd.endpoint), Told::ask(&endpoint))
    });
    compare(version, &theirs, &ours);
    server.stop(Duration::from_secs(5));
    store.close().unwrap();
    etcd.stop();
}

/// The feature gates that an etcd tells.
fn features(endpoint: &str) -> Vec<store::serve::Feature> {
    let told = Told::ask(endpoint);
    let gates = told.of("etcd_server_feature_enabled").map(|(name, value)| {
        let quoted: Vec<&str> = name.split('"').collect();
        let (name, stage) = (quoted[1].to_owned(), quoted[3].to_owned());
        store::serve::Feature { name, stage, enabled: value > 0.0 }
    });
    gates.collect()
}

#[test]
fn metrics_are_those_of_etcd_3_7() {
    check("3.7", Compat::V3_7);
}

#[test]
fn metrics_are_those_of_etcd_3_6() {
    check("3.6", Compat::V3_6);
}
