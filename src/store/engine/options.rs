//! What a store is told when it is opened.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::bolt::disk::Disk;
use crate::etcd::apply::{Rules, TTL_MAX_S};
use crate::store::auto_compact::Retention;
use crate::store::clock::{Clock, SystemClock};
use crate::store::guard::{Quota, SignedTokens};
use crate::store::open::{Compat, Identity, OpenOptions};
use crate::store::setters::setters;
use crate::store::watch::Limits;

/// etcd's shortest interval of progress.
const PROGRESS_MIN: Duration = Duration::from_millis(100);
/// etcd's interval of checkpoints.
const CHECKPOINTS: Duration = Duration::from_secs(300);

/// How to open a store; the defaults are etcd's.
///
/// ```
/// let options = etcdkit::store::Options::default().snapshot_count(1000_u64).snaps_max(3_usize);
/// assert_eq!(options.snapshot_count, 1000);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Who the member is. Of a directory that is there only name and client URLs count.
    pub identity: Identity,
    /// Version to be; `None`: a new directory is 3.7's, an existing one keeps its own.
    pub compat: Option<Compat>,
    /// Limit of the database's size.
    pub quota: Quota,
    /// Applied entries after which a raft snapshot is recorded; 0 means the default.
    pub snapshot_count: u64,
    /// Time after which changes go to the backend; up to ten times that where the disk is slow.
    pub batch_interval: Duration,
    /// Row changes after which they go there at once.
    pub batch_limit: usize,
    /// Bytes of row changes that may wait for the backend; above it new requests wait.
    pub unsaved_bytes_max: usize,
    /// Largest request, encoded, in bytes.
    pub request_bytes_max: usize,
    /// Most operations in one list of a transaction.
    pub txn_ops_max: usize,
    /// How long a caller waits for an answer.
    pub request_timeout: Duration,
    /// etcd's heartbeat; with the election timeout it decides the shortest lease.
    pub heartbeat: Duration,
    /// etcd's election timeout: what leases are given besides their time at a start.
    pub election: Duration,
    /// How old revisions are forgotten.
    pub auto_compaction: Retention,
    /// Rows that a compaction drops before it rests; 0 means the default.
    pub compaction_batch_limit: usize,
    /// How long it rests.
    pub compaction_sleep: Duration,
    /// Whether the hash of what a compaction is about to drop is kept, as etcd keeps it for
    /// HashKV at the revision of the compaction; it costs passes over all rows, and is left out
    /// where more than 1 GiB is in use: HashKV at that revision is then summed when asked for.
    pub hash_at_compaction: bool,
    /// A request is slow that takes longer to be applied, or read.
    pub warning_apply_duration: Duration,
    /// How long a token lives after its last use.
    pub auth_token_ttl: Duration,
    /// How tokens are signed; `None`: they are simple ones.
    pub signed_tokens: Option<Arc<dyn SignedTokens>>,
    /// Cost of hashing a new password.
    pub bcrypt_cost: u32,
    /// Interval at which quiet watchers that asked for it are told the revision; 0 means the
    /// default, and the shortest is 100 ms.
    pub watch_progress_interval: Duration,
    /// How watchers are served.
    pub watch_limits: Limits,
    /// Interval at which remaining times of long leases are logged, of 0: 5 minutes; `None`: they
    /// are not.
    pub lease_checkpoints: Option<Duration>,
    /// Client URLs that the member list of a store that is only read shows, so that who asks it for
    /// members stays with it: of this member these, of others none. `None`: those that are written.
    pub shown_at: Option<Vec<String>>,
    /// WAL directory, where it is not `member/wal`.
    pub wal_dir: Option<PathBuf>,
    /// Bytes at which a log segment is cut.
    pub wal_segment_bytes: u64,
    /// Log segments that are kept although nothing needs them; 0: all.
    pub wals_max: usize,
    /// `.snap` files that are kept; 0: all.
    pub snaps_max: usize,
    /// Makes a member of several the only one, as etcd's flag does.
    pub force_new_cluster: bool,
    /// Syncs nothing: a loss of power may lose or damage everything.
    pub unsafe_no_fsync: bool,
    /// Where changes go.
    pub disk: Disk,
    /// How the database file is opened.
    pub database: crate::bolt::db::Options,
    /// The time by which leases end and tokens die.
    pub clock: Arc<dyn Clock>,
}

setters! { Options:
    identity: Identity,
    compat: Option<Compat>,
    quota: Quota,
    snapshot_count: u64,
    batch_interval: Duration,
    batch_limit: usize,
    unsaved_bytes_max: usize,
    request_bytes_max: usize,
    txn_ops_max: usize,
    request_timeout: Duration,
    heartbeat: Duration,
    election: Duration,
    auto_compaction: Retention,
    compaction_batch_limit: usize,
    compaction_sleep: Duration,
    hash_at_compaction: bool,
    warning_apply_duration: Duration,
    auth_token_ttl: Duration,
    signed_tokens: Option<Arc<dyn SignedTokens>>,
    bcrypt_cost: u32,
    watch_progress_interval: Duration,
    watch_limits: Limits,
    lease_checkpoints: Option<Duration>,
    shown_at: Option<Vec<String>>,
    wal_dir: Option<PathBuf>,
    wal_segment_bytes: u64,
    wals_max: usize,
    snaps_max: usize,
    force_new_cluster: bool,
    unsafe_no_fsync: bool,
    disk: Disk,
    database: crate::bolt::db::Options,
    clock: Arc<dyn Clock>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            identity: Identity::default(),
            compat: None,
            quota: Quota::of_flag(0),
            snapshot_count: 10_000,
            batch_interval: Duration::from_millis(100),
            batch_limit: 10_000,
            unsaved_bytes_max: 64 << 20,
            request_bytes_max: 3 << 19,
            txn_ops_max: 128,
            request_timeout: Duration::from_secs(7),
            heartbeat: Duration::from_millis(100),
            election: Duration::from_secs(1),
            auto_compaction: Retention::Off,
            compaction_batch_limit: 1000,
            compaction_sleep: Duration::from_millis(10),
            hash_at_compaction: true,
            warning_apply_duration: Duration::from_millis(100),
            auth_token_ttl: Duration::from_secs(300),
            signed_tokens: None,
            bcrypt_cost: crate::etcd::apply::DEFAULT_BCRYPT_COST,
            watch_progress_interval: Duration::from_secs(600),
            watch_limits: Limits { response_bytes: 3 << 19, waiting_max: 16_384 },
            lease_checkpoints: None,
            shown_at: None,
            wal_dir: None,
            wal_segment_bytes: crate::store::log::segment_bytes(),
            wals_max: 5,
            snaps_max: 5,
            force_new_cluster: false,
            unsafe_no_fsync: false,
            disk: Disk::default(),
            database: crate::bolt::db::Options::default(),
            clock: Arc::new(SystemClock::default()),
        }
    }
}

impl Options {
    /// Gives numbers the meaning that they have to etcd, where a 0 is no number.
    pub(super) fn settled(mut self) -> Self {
        let default = Self::default();
        let no_limit = |limit: usize| if limit == 0 { usize::MAX } else { limit };
        if self.snapshot_count == 0 {
            self.snapshot_count = default.snapshot_count;
        }
        if self.compaction_batch_limit == 0 {
            self.compaction_batch_limit = default.compaction_batch_limit;
        }
        self.watch_progress_interval = match self.watch_progress_interval {
            Duration::ZERO => default.watch_progress_interval,
            interval => interval.max(PROGRESS_MIN),
        };
        if self.lease_checkpoints == Some(Duration::ZERO) {
            self.lease_checkpoints = Some(CHECKPOINTS);
        }
        self.wals_max = no_limit(self.wals_max);
        self.snaps_max = no_limit(self.snaps_max);
        self
    }

    pub(super) fn open_options(&self) -> OpenOptions {
        OpenOptions {
            identity: self.identity.clone(),
            compat: self.compat,
            wal_dir: self.wal_dir.clone(),
            segment_bytes: self.wal_segment_bytes,
            force_new_cluster: self.force_new_cluster,
            disk: self.disk.clone(),
            database: self.database.clone(),
        }
    }

    pub(super) fn rules(&self) -> Rules {
        Rules {
            lease_ttl_min_s: self.lease_ttl_min_s(),
            persists_checkpoints: self.lease_checkpoints.is_some(),
            bcrypt_cost: self.bcrypt_cost,
            ..Rules::default()
        }
    }

    /// Shortest lease, in seconds: one and a half elections, in whole heartbeats, rounded up.
    fn lease_ttl_min_s(&self) -> i64 {
        let heartbeat_ms = self.heartbeat.as_millis().max(1);
        let ticks = self.election.as_millis() / heartbeat_ms;
        let min_ms = ticks.saturating_mul(3).div_ceil(2).saturating_mul(heartbeat_ms);
        // No lease may live longer.
        i64::try_from(min_ms.div_ceil(1000)).unwrap_or(i64::MAX).min(TTL_MAX_S)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_lease_is_etcds() {
        let ttl = |heartbeat, election| {
            let options = Options {
                heartbeat: Duration::from_millis(heartbeat),
                election: Duration::from_millis(election),
                ..Options::default()
            };
            options.lease_ttl_min_s()
        };
        assert_eq!((ttl(100, 1000), ttl(100, 5000), ttl(10, 100)), (2, 8, 1));
        assert_eq!(ttl(0, u64::MAX), 9_000_000_000);
    }
}
