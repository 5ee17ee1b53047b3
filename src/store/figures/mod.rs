//! Figures of a running store: what it did since it was opened, and how it is.
//!
//! Counting costs no lock: the state, the hub of the watchers and the lessor count in what they
//! hold anyway, all else in relaxed atomics, and readers in one shard a thread. So figures that
//! are read together may be of slightly different moments.
//!
//! Names and meanings are those of etcd's metrics, of one member: it leads from its start on.
//! What a start replays from the log was counted before it ended, and is not counted again.
//!
//! Source: etcd 3.6.16, 3.7.3: `metrics.go` of its packages.

#[allow(unreachable_pub, reason = "its face is for the store, not for its users")]
pub(in crate::store) mod histogram;
#[allow(unreachable_pub, reason = "its face is for the store, not for its users")]
mod kind;
#[allow(unreachable_pub, reason = "its face is for the store, not for its users")]
pub(in crate::store) mod live;

pub use histogram::Distribution;
pub use kind::{ByRequest, Kind};

/// All figures of a store as they are at one time. Durations are in seconds where nothing else is
/// said.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Figures {
    /// This member's id.
    pub member_id: u64,
    /// Version of etcd that the store is.
    pub server_version: &'static str,
    /// Major and minor number of the cluster's version; empty until it is decided.
    pub cluster_version: String,
    /// Whether it leads, and so has a leader: until it is closed.
    pub is_leader: bool,
    /// Times that a leader was seen: 1, this member.
    pub leader_changes: u64,
    /// Alarms that stand, as (member, kind).
    pub alarms: Vec<(u64, u64)>,
    /// Revision of the rules of users and roles.
    pub auth_revision: u64,
    /// Limit of the database's size in bytes; 0 for none.
    pub quota_bytes: u64,

    /// Durations of syncs of the log.
    pub wal_fsync: Distribution,
    /// Durations of writes to the log, each of a batch of records.
    pub wal_write: Distribution,
    /// Bytes that were written to the log.
    pub wal_write_bytes: u64,
    /// Durations of commits to the database file.
    pub backend_commit: Distribution,
    /// The part of them in which pages were laid out.
    pub backend_commit_layout: Distribution,
    /// The part of them in which pages were written and synced.
    pub backend_commit_write: Distribution,
    /// Durations of defragmentations that went well.
    pub defrag: Distribution,
    /// Whether one is under way.
    pub is_defragmenting: bool,
    /// How long snapshots were read by whoever asked for them.
    pub snapshot: Distribution,
    /// Durations of recording a raft snapshot: its `.snap` file, where the version has one.
    pub snap_save: Distribution,
    /// The part of them in which the file's content was made.
    pub snap_encode: Distribution,
    /// The part of them in which it was synced.
    pub snap_fsync: Distribution,
    /// Bytes of the database up to its high-water mark.
    pub db_size_bytes: u64,
    /// The same without free pages.
    pub db_size_in_use_bytes: u64,
    /// Moments of the database that somebody reads or may read; the newest is one.
    pub open_read_transactions: u64,

    /// Puts, those of transactions among them.
    pub puts: u64,
    /// Deletes, those of transactions and of the keys of ended leases among them.
    pub deletes: u64,
    /// Ranges; conditions, and reads for a put or delete, are some.
    pub ranges: u64,
    /// Times that more than one of them came together.
    pub txns: u64,
    /// Bytes of keys and values that were put.
    pub put_bytes: u64,
    /// Keys that are live.
    pub keys: u64,
    /// Current revision.
    pub revision: i64,
    /// Revision of the last compaction; -1 for none.
    pub compact_revision: i64,
    /// Rows that compactions dropped.
    pub compaction_keys: u64,
    /// Unix time at which the last one ended, in seconds; 0 for none since the start.
    pub compacted_at_s: u64,
    /// How long compactions kept the index from others when they were accepted, in milliseconds.
    pub index_compaction_pause_ms: Distribution,
    /// How long steps of compactions kept the state from others, in milliseconds.
    pub compaction_pause_ms: Distribution,
    /// How long whole compactions took, in milliseconds.
    pub compaction_ms: Distribution,
    /// Durations of hashes of all buckets.
    pub hash: Distribution,
    /// Durations of hashes of the keys.
    pub hash_kv: Distribution,

    /// Watchers.
    pub watchers: u64,
    /// Streams of watchers.
    pub watch_streams: u64,
    /// Watchers that read history.
    pub slow_watchers: u64,
    /// Events that wait for consumers.
    pub pending_events: u64,
    /// Events that consumers took.
    pub events: u64,

    /// Leases that were granted.
    pub leases_granted: u64,
    /// Leases that ended, those that ran out among them.
    pub leases_revoked: u64,
    /// Times that a lease was given its time again.
    pub leases_renewed: u64,
    /// Leases that ended because they ran out.
    pub leases_expired: u64,
    /// Times to live of the leases that were granted, in seconds.
    pub lease_ttls: Distribution,

    /// Index of the last entry of the log that is synced.
    pub committed: u64,
    /// Index of the last one that is applied.
    pub applied: u64,
    /// Requests that wait to be applied.
    pub proposals_pending: u64,
    /// Requests whose outcome is not known, or that found no room in the queue.
    pub proposals_failed: u64,
    /// Requests that took longer than the limit, to be applied or read.
    pub slow_applies: u64,
    /// Durations of applying, by kind of request.
    pub applies: Vec<ByRequest>,
    /// Durations of ranges, of those that were done and those that were refused.
    pub ranges_done: Distribution,
    /// See there.
    pub ranges_refused: Distribution,
    /// How long requests took for whoever made them, by kind; failed are those whose outcome was
    /// not known, not those that were refused.
    pub requests: Vec<ByRequest>,
}
