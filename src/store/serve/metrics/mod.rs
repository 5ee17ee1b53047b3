//! What `/metrics` tells: etcd's families, as they stand in etcd's own answer.
//!
//! Names, kinds and labels are etcd's, so that its dashboards and alerts work; `docs/METRICS.md`
//! lists what asks for them, and what is not there. What is known of one member without peers is
//! told as etcd tells it: it leads, no read waits for a majority, nobody sends it a snapshot.
//!
//! The text is written by the crate `prometheus`, from families that are made anew each time. Its
//! registry is not used: figures are counted where things happen, without it. The other well-kept
//! crate, `prometheus-client`, writes OpenMetrics, where each counter ends in `_total`: etcd has
//! some that do not (`etcd_server_health_success`).
//!
//! Source: etcd 3.6.16, 3.7.3: `metrics.go` of its packages; `go-grpc-middleware`'s server metrics.

mod calls;
mod family;
mod method;
mod process;

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tonic::{Code, Status};

pub(super) use calls::Calls;
use family::{Families, Kind};
pub(super) use method::{Method, Shape};

use crate::etcd::members::MemberId;
use crate::store::figures::histogram::{Counter, Histogram, SNAP_DB, SYNC, to_f64};
use crate::store::open::Compat;
use crate::store::{Figures, Store};

/// The kind of the text, for HTTP.
pub(super) const CONTENT_TYPE: &str =
    "text/plain; version=0.0.4; charset=utf-8; escaping=underscores";

/// Feature gates that 3.6 does not know.
const SINCE_3_7: [&str; 2] = ["FastLeaseKeepAlive", "PriorityRequest"];

/// A feature gate, for the figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Feature {
    /// Its name.
    pub name: String,
    /// `ALPHA`, `BETA`, `GA` or `DEPRECATED`.
    pub stage: String,
    /// Whether it is on.
    pub enabled: bool,
}

/// What a response of a watch stream is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// So many events.
    Events(usize),
    /// A watcher that begins or ends.
    Control,
    /// Nothing but the revision.
    Progress,
}

/// What a server counts beside its store.
#[derive(Debug)]
pub(super) struct Metrics {
    pub(super) calls: Calls,
    is_extensive: bool,
    features: Vec<Feature>,
    health: [Counter; 2],
    checks: Mutex<BTreeMap<(&'static str, &'static str), Check>>,
    /// By API, and by whether it was in receiving or sending.
    failures: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    told: Histogram,
    told_per_event: Histogram,
    told_control: Histogram,
    told_progress: Histogram,
}

/// One check of `/livez` or `/readyz`.
#[derive(Clone, Copy, Debug, Default)]
struct Check {
    is_good: bool,
    good: u64,
    bad: u64,
}

impl Metrics {
    /// With histograms of the times of calls where it is extensive.
    pub(super) fn new(is_extensive: bool, features: Vec<Feature>) -> Self {
        Self {
            calls: Calls::default(),
            is_extensive,
            features,
            health: [Counter::default(), Counter::default()],
            checks: Mutex::default(),
            failures: Mutex::default(),
            told: Histogram::new(&SYNC),
            told_per_event: Histogram::new(&SYNC),
            told_control: Histogram::new(&SYNC),
            told_progress: Histogram::new(&SYNC),
        }
    }

    /// `/health` was asked, and said this.
    pub(super) fn health(&self, is_good: bool) {
        let [good, bad] = &self.health;
        if is_good { good.add(1) } else { bad.add(1) }
    }

    /// A check of `/livez` or `/readyz` (without the slash) was made.
    pub(super) fn check(&self, kind: &'static str, name: &'static str, is_good: bool) {
        let mut checks = lock(&self.checks);
        let check = checks.entry((kind, name)).or_default();
        check.is_good = is_good;
        let count = if is_good { &mut check.good } else { &mut check.bad };
        *count = count.saturating_add(1);
    }

    /// A stream (`watch`, `lease-keepalive`) broke in `receive` or `send`.
    ///
    /// A client that goes, or breaks off, is no failure, as in etcd (`isClientCtxErr`).
    pub(super) fn stream_ended(&self, api: &'static str, doing: &'static str, error: &Status) {
        let is_gone = [Code::Cancelled, Code::DeadlineExceeded, Code::Unavailable, Code::Unknown];
        if !is_gone.contains(&error.code()) {
            self.stream_failed(api, doing);
        }
    }

    fn stream_failed(&self, api: &'static str, doing: &'static str) {
        let mut failures = lock(&self.failures);
        let count = failures.entry((api, doing)).or_default();
        *count = count.saturating_add(1);
    }

    /// A response of a watch stream was made, in so much time.
    pub(super) fn told(&self, told: Told, took: Duration) {
        match told {
            Told::Events(count) => {
                self.told.time(took);
                let count = u32::try_from(count.max(1)).unwrap_or(u32::MAX);
                self.told_per_event.time(took.checked_div(count).unwrap_or_default());
            }
            Told::Control => self.told_control.time(took),
            Told::Progress => self.told_progress.time(took),
        }
    }

    /// Writes all figures of the server and its store.
    pub(super) fn render(&self, store: &Store) -> String {
        let mut out = Families::default();
        let (figures, compat) = (store.figures(), store.compat());
        put_member(&mut out, &figures);
        put_requests(&mut out, &figures, compat);
        put_keys(&mut out, &figures);
        put_disk(&mut out, &figures);
        put_watches_and_leases(&mut out, &figures);
        put_absent(&mut out);
        self.put_health(&mut out, compat);
        if compat >= Compat::V3_7 {
            self.put_told(&mut out);
        }
        self.calls.put(&mut out, compat, self.is_extensive);
        process::put(&mut out);
        out.encode()
    }

    fn put_health(&self, out: &mut Families, compat: Compat) {
        let [good, bad] = &self.health;
        out.counter("etcd_server_health_success", "Answers of /health: healthy.", good.get());
        out.counter("etcd_server_health_failures", "Answers of /health: not healthy.", bad.get());
        for ((kind, name), check) in lock(&self.checks).iter() {
            let help = "What a check said last: 1 for good.";
            let labels = [("name", *name), ("type", *kind)];
            let value = to_f64(u64::from(check.is_good));
            out.one("etcd_server_healthcheck", help, Kind::Gauge, &labels, value);
            for (status, count) in [("error", check.bad), ("success", check.good)] {
                if count > 0 {
                    let labels = [("name", *name), ("status", status), ("type", *kind)];
                    let help = "Checks by what they said.";
                    let family = "etcd_server_healthchecks_total";
                    out.one(family, help, Kind::Counter, &labels, to_f64(count));
                }
            }
        }
        for ((api, doing), count) in lock(&self.failures).iter() {
            let (help, labels) = ("Streams that broke.", [("API", *api), ("Type", *doing)]);
            let family = "etcd_network_server_stream_failures_total";
            out.one(family, help, Kind::Counter, &labels, to_f64(*count));
        }
        let is_known =
            |gate: &&Feature| compat >= Compat::V3_7 || !SINCE_3_7.contains(&gate.name.as_str());
        for Feature { name, stage, enabled } in self.features.iter().filter(is_known) {
            let labels = [("name", name.as_str()), ("stage", stage.as_str())];
            let (help, value) = ("Feature gates: 1 for on.", to_f64(u64::from(*enabled)));
            out.one("etcd_server_feature_enabled", help, Kind::Gauge, &labels, value);
        }
    }

    fn put_told(&self, out: &mut Families) {
        let help = "How long making a response of a watch stream took, in seconds.";
        for (what, histogram) in [
            ("watch_stream_duration", &self.told),
            ("watch_stream_duration_per_event", &self.told_per_event),
            ("control_stream_duration", &self.told_control),
            ("progress_duration", &self.told_progress),
        ] {
            let name = format!("etcd_debugging_server_watch_send_loop_{what}_seconds");
            out.distribution(&name, help, &[], &histogram.read());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn put_member(out: &mut Families, figures: &Figures) {
    let id = MemberId(figures.member_id).to_string();
    let is_leader = u64::from(figures.is_leader);
    out.gauge("etcd_server_has_leader", "Whether there is a leader.", is_leader);
    out.gauge("etcd_server_is_leader", "Whether this member leads.", is_leader);
    out.gauge("etcd_server_is_learner", "Whether this member has no vote.", 0);
    let help = "Leaders that were seen.";
    out.counter("etcd_server_leader_changes_seen_total", help, figures.leader_changes);
    out.info("etcd_server_id", "The member's id.", "server_id", &id);
    let help = "Version of etcd that the server is.";
    out.info("etcd_server_version", help, "server_version", figures.server_version);
    if !figures.cluster_version.is_empty() {
        let help = "The cluster's version.";
        out.info("etcd_cluster_version", help, "cluster_version", &figures.cluster_version);
    }
    let help = "Members that are known, this one among them.";
    let peers = [("Local", id.as_str()), ("Remote", id.as_str())];
    out.one("etcd_network_known_peers", help, Kind::Gauge, &peers, 1.0);
    for (kind, name) in [(1, "NOSPACE"), (2, "CORRUPT")] {
        let own = (figures.member_id, kind);
        let others = figures.alarms.iter().filter(|alarm| alarm.1 == kind && **alarm != own);
        let stands = figures.alarms.contains(&own);
        for (member, value) in others.map(|alarm| (alarm.0, 1)).chain([(own.0, u64::from(stands))])
        {
            let member = MemberId(member).to_string();
            let labels = [("alarm_type", name), ("server_id", member.as_str())];
            let help = "Alarms: 1 while one stands.";
            let family = "etcd_debugging_server_alarms";
            out.one(family, help, Kind::Gauge, &labels, to_f64(value));
        }
    }
    let help = "Revision of users and roles.";
    out.gauge("etcd_debugging_auth_revision", help, figures.auth_revision);
    let help = "Limit of the database's size, in bytes.";
    out.gauge("etcd_server_quota_backend_bytes", help, figures.quota_bytes);
}

fn put_requests(out: &mut Families, figures: &Figures, compat: Compat) {
    let gauges = [
        ("committed_total", "Entries of the log that are synced.", figures.committed),
        ("applied_total", "Entries of the log that are applied.", figures.applied),
        ("pending", "Requests that wait to be applied.", figures.proposals_pending),
    ];
    for (word, help, value) in gauges {
        out.gauge(&format!("etcd_server_proposals_{word}"), help, value);
    }
    let help = "Requests whose outcome is not known, or that found no room.";
    out.counter("etcd_server_proposals_failed_total", help, figures.proposals_failed);
    let help = "Requests that took longer than the limit.";
    out.counter("etcd_server_slow_apply_total", help, figures.slow_applies);
    let word = |success: bool| if success { "true" } else { "false" };
    for by in &figures.applies {
        let labels = [("op", by.kind.label()), ("success", word(by.success)), ("version", "v3")];
        let help = "How long applying took, in seconds.";
        out.distribution("etcd_server_apply_duration_seconds", help, &labels, &by.durations);
    }
    for (success, of) in [(false, &figures.ranges_refused), (true, &figures.ranges_done)] {
        if of.count() > 0 {
            let help = "How long ranges took, in seconds.";
            let labels = [("success", word(success))];
            out.distribution("etcd_server_range_duration_seconds", help, &labels, of);
        }
    }
    for by in figures.requests.iter().filter(|_| compat >= Compat::V3_7) {
        let labels = [("success", word(by.success)), ("type", by.kind.label())];
        let help = "How long requests took for those who made them, in seconds.";
        out.distribution("etcd_server_request_duration_seconds", help, &labels, &by.durations);
    }
}

fn put_keys(out: &mut Families, figures: &Figures) {
    for (word, help, value) in [
        ("put", "Puts.", figures.puts),
        ("delete", "Deletes.", figures.deletes),
        ("range", "Ranges.", figures.ranges),
        ("txn", "Requests of more than one of them.", figures.txns),
    ] {
        out.counter(&format!("etcd_mvcc_{word}_total"), help, value);
    }
    let debugging = |word: &str| format!("etcd_debugging_mvcc_{word}");
    let help = "Bytes of keys and values that were put.";
    out.gauge(&debugging("total_put_size_in_bytes"), help, figures.put_bytes);
    out.gauge(&debugging("keys_total"), "Keys.", figures.keys);
    for (word, help, value) in [
        ("current_revision", "The revision.", figures.revision),
        (
            "compact_revision",
            "Revision of the last compaction; -1 for none.",
            figures.compact_revision,
        ),
    ] {
        let magnitude = to_f64(value.unsigned_abs());
        let value = if value < 0 { -magnitude } else { magnitude };
        out.one(&debugging(word), help, Kind::Gauge, &[], value);
    }
    let help = "Rows that compactions dropped.";
    out.counter(&debugging("db_compaction_keys_total"), help, figures.compaction_keys);
    let help = "Unix time of the end of the last compaction, in seconds; 0 for none.";
    out.gauge(&debugging("db_compaction_last"), help, figures.compacted_at_s);
    for (word, help, of) in [
        (
            "index_compaction_pause",
            "How long the index was kept for a compaction, in milliseconds.",
            &figures.index_compaction_pause_ms,
        ),
        (
            "db_compaction_pause",
            "How long the state was kept for a step of a compaction, in milliseconds.",
            &figures.compaction_pause_ms,
        ),
        (
            "db_compaction_total",
            "How long compactions took, in milliseconds.",
            &figures.compaction_ms,
        ),
    ] {
        out.distribution(&debugging(&format!("{word}_duration_milliseconds")), help, &[], of);
    }
    let help = "How long hashes of the keys took, in seconds.";
    out.distribution("etcd_mvcc_hash_rev_duration_seconds", help, &[], &figures.hash_kv);
    let help = "How long hashes of the database took, in seconds.";
    out.distribution("etcd_mvcc_hash_duration_seconds", help, &[], &figures.hash);
}

fn put_disk(out: &mut Families, figures: &Figures) {
    let help = "Bytes that were written to the log.";
    out.gauge("etcd_disk_wal_write_bytes_total", help, figures.wal_write_bytes);
    let help = "Whether the database is being defragmented.";
    out.gauge("etcd_disk_defrag_inflight", help, u64::from(figures.is_defragmenting));
    // Pages are merged while they are laid out: there is no such step, and it takes no time.
    let mut rebalance = figures.backend_commit_layout.clone();
    let commits = rebalance.count();
    rebalance.counts.iter_mut().for_each(|count| *count = 0);
    rebalance.counts.iter_mut().take(1).for_each(|count| *count = commits);
    rebalance.sum = 0.0;
    for (name, help, of) in [
        ("disk_wal_fsync", "How long syncs of the log took, in seconds.", &figures.wal_fsync),
        ("disk_wal_write", "How long writes to the log took, in seconds.", &figures.wal_write),
        (
            "disk_backend_commit",
            "How long commits to the database took, in seconds.",
            &figures.backend_commit,
        ),
        (
            "debugging_disk_backend_commit_spill",
            "How long laying out the pages of a commit took, in seconds.",
            &figures.backend_commit_layout,
        ),
        (
            "debugging_disk_backend_commit_rebalance",
            "Always 0: pages are merged while they are laid out.",
            &rebalance,
        ),
        (
            "debugging_disk_backend_commit_write",
            "How long writing the pages of a commit took, in seconds.",
            &figures.backend_commit_write,
        ),
        ("disk_backend_defrag", "How long defragmenting took, in seconds.", &figures.defrag),
        ("disk_backend_snapshot", "How long snapshots were read, in seconds.", &figures.snapshot),
        (
            "debugging_snap_save_total",
            "How long recording a raft snapshot took, in seconds.",
            &figures.snap_save,
        ),
        (
            "debugging_snap_save_marshalling",
            "The part of it before the disk, in seconds.",
            &figures.snap_encode,
        ),
        ("snap_fsync", "The part of it for a sync, in seconds.", &figures.snap_fsync),
    ] {
        out.distribution(&format!("etcd_{name}_duration_seconds"), help, &[], of);
    }
    for (word, help, value) in [
        ("db_total_size_in_bytes", "Bytes of the database.", figures.db_size_bytes),
        (
            "db_total_size_in_use_in_bytes",
            "Bytes of the database without free pages.",
            figures.db_size_in_use_bytes,
        ),
        (
            "db_open_read_transactions",
            "Moments of the database that may be read.",
            figures.open_read_transactions,
        ),
    ] {
        out.gauge(&format!("etcd_mvcc_{word}"), help, value);
    }
}

fn put_watches_and_leases(out: &mut Families, figures: &Figures) {
    for (word, help, value) in [
        ("watcher", "Watchers.", figures.watchers),
        ("watch_stream", "Streams of watchers.", figures.watch_streams),
        ("slow_watcher", "Watchers that read history.", figures.slow_watchers),
        ("pending_events", "Events that wait for clients.", figures.pending_events),
    ] {
        out.gauge(&format!("etcd_debugging_mvcc_{word}_total"), help, value);
    }
    out.counter("etcd_debugging_mvcc_events_total", "Events that were sent.", figures.events);
    for (word, help, value) in [
        ("lease_granted", "Leases that were granted.", figures.leases_granted),
        ("lease_revoked", "Leases that ended.", figures.leases_revoked),
        ("lease_renewed", "Times that a lease was given its time again.", figures.leases_renewed),
        ("server_lease_expired", "Leases that ran out.", figures.leases_expired),
    ] {
        out.counter(&format!("etcd_debugging_{word}_total"), help, value);
    }
    let help = "Times to live of leases, in seconds.";
    out.distribution("etcd_debugging_lease_ttl_total", help, &[], &figures.lease_ttls);
}

/// What one member has none of, and etcd tells as 0 all the same.
fn put_absent(out: &mut Families) {
    for (name, help) in [
        ("etcd_server_heartbeat_send_failures_total", "There is nobody to send them to."),
        ("etcd_server_learner_promote_successes", "There are no learners."),
        ("etcd_server_read_indexes_failed_total", "Reads wait for nobody."),
        ("etcd_server_slow_read_indexes_total", "Reads wait for nobody."),
        ("etcd_debugging_store_expires_total", "There is no v2 store."),
        ("etcd_debugging_store_watch_requests_total", "There is no v2 store."),
    ] {
        out.counter(name, help, 0);
    }
    for (name, help) in [
        ("etcd_server_snapshot_apply_in_progress_total", "Nobody sends snapshots."),
        ("etcd_debugging_store_watchers", "There is no v2 store."),
    ] {
        out.gauge(name, help, 0);
    }
    let help = "Nobody sends snapshots.";
    let none = Histogram::new(&SYNC).read();
    out.distribution("etcd_snap_db_fsync_duration_seconds", help, &[], &none);
    let none = Histogram::new(&SNAP_DB).read();
    out.distribution("etcd_snap_db_save_total_duration_seconds", help, &[], &none);
}

#[cfg(test)]
mod tests;
