//! The store's figures, gathered from where they are counted.

use std::sync::atomic::Ordering;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::{Shared, Store};
use crate::bolt::db::Sizes;
use crate::format::u64_of;
use crate::store::error::Error;
use crate::store::figures::histogram::{Counter, Distribution};
use crate::store::figures::live::{Reads, by_success};
use crate::store::figures::{ByRequest, Figures, Kind};
use crate::store::guard::Quota;

impl Store {
    /// Reads the store's figures. It takes the locks of state, queue and lessor for a moment each;
    /// of a store that is closed, what is in memory is told.
    #[must_use]
    pub fn figures(&self) -> Figures {
        let shared = self.shared();
        let mut figures = Figures {
            member_id: shared.member.0,
            server_version: shared.compat.version(),
            is_leader: !shared.health.is_ending(),
            leader_changes: 1,
            alarms: shared.alarms().unwrap_or_default(),
            auth_revision: shared.core.auth_revision(),
            quota_bytes: match shared.backend.quota() {
                Quota::Off => 0,
                Quota::Bytes(bytes) => bytes,
            },
            revision: self.revision(),
            committed: shared.committed.load(Ordering::Acquire),
            applied: shared.core.applied.load(Ordering::Acquire),
            ..Figures::default()
        };
        if let Some(version) = shared.cluster_version() {
            figures.cluster_version = format!("{}.{}", version.major, version.minor);
        }
        shared.put_file(&mut figures);
        shared.put_keys(&mut figures);
        shared.put_watches(&mut figures);
        shared.put_leases(&mut figures);
        shared.put_requests(&mut figures);
        figures
    }
}

impl Shared {
    fn put_file(&self, figures: &mut Figures) {
        let live = &self.figures;
        figures.wal_fsync = live.wal.fsync.read();
        figures.wal_write = live.wal.write.read();
        figures.wal_write_bytes = live.wal.bytes.get();
        figures.backend_commit = live.commit.read();
        figures.backend_commit_layout = live.commit_layout.read();
        figures.backend_commit_write = live.commit_write.read();
        figures.defrag = live.defrag.read();
        figures.is_defragmenting = live.is_defragmenting.load(Ordering::Relaxed);
        figures.snapshot = live.snapshot.read();
        figures.snap_save = live.snap_save.read();
        figures.snap_encode = live.snap_encode.read();
        figures.snap_fsync = live.snap_fsync.read();
        figures.hash = live.hash.read();
        figures.hash_kv = live.hash_kv.read();
        if let Ok(db) = self.backend.db() {
            let Sizes { size_bytes, in_use_bytes } = db.sizes();
            figures.db_size_bytes = size_bytes;
            figures.db_size_in_use_bytes = in_use_bytes;
            figures.open_read_transactions = u64_of(db.moment_count());
        }
    }

    fn put_keys(&self, figures: &mut Figures) {
        let live = &self.figures;
        figures.compact_revision = -1;
        let seen = self.core.read(|mvcc| {
            figures.keys = mvcc.key_count();
            figures.compact_revision = mvcc.compact_revision();
            mvcc.tally()
        });
        let tally = seen.unwrap_or_default();
        figures.puts = tally.puts;
        figures.deletes = tally.deletes;
        figures.put_bytes = tally.put_bytes;
        let ranges = live.reads.sum(|reads| {
            let own = reads.range.iter().map(|histogram| histogram.count());
            own.fold(reads.txn_ranges.get(), u64::wrapping_add)
        });
        figures.ranges = tally.ranges.wrapping_add(ranges);
        figures.txns = tally.txns.wrapping_add(live.reads.sum(|reads| reads.txns.get()));
        figures.compaction_keys = live.compaction_keys.get();
        figures.compacted_at_s = live.compacted_at.get();
        figures.index_compaction_pause_ms = live.index_pause.read();
        figures.compaction_pause_ms = live.compaction_pause.read();
        figures.compaction_ms = live.compaction.read();
    }

    fn put_watches(&self, figures: &mut Figures) {
        let counts = self.hub.counts();
        figures.watchers = u64_of(counts.watchers);
        figures.watch_streams = u64_of(counts.streams);
        figures.slow_watchers = u64_of(counts.slow_watchers);
        figures.pending_events = u64_of(counts.pending_events);
        figures.events = u64_of(counts.sent_events);
    }

    fn put_leases(&self, figures: &mut Figures) {
        figures.leases_expired = self.figures.leases_expired.get();
        let lessor = self.lessor();
        let counts = lessor.counts();
        figures.leases_granted = counts.granted;
        figures.leases_revoked = counts.revoked;
        figures.leases_renewed = counts.renewed;
        figures.lease_ttls = counts.ttls.read();
    }

    fn put_requests(&self, figures: &mut Figures) {
        let live = &self.figures;
        // Read first: it is not above what was proposed.
        let ended = live.ended.get();
        figures.proposals_pending = self.queue.proposed().saturating_sub(ended);
        figures.proposals_failed = live.failed.get();
        figures.slow_applies = live.slow.get();
        figures.applies = live.apply.read();
        figures.requests = live.request.read();
        for success in [true, false] {
            let of = |reads: fn(&Reads) -> &[_; 2]| {
                live.reads.read(move |shard| by_success(reads(shard), success))
            };
            let range: Distribution = of(|reads| &reads.range);
            match success {
                true => figures.ranges_done = range,
                false => figures.ranges_refused = range,
            }
            let others = [
                (Kind::Range, of(|reads| &reads.request)),
                (Kind::ReadonlyTxn, of(|reads| &reads.txn)),
            ];
            let used = others.into_iter().filter(|(_, durations)| durations.count() > 0);
            let used = used.map(|(kind, durations)| ByRequest { kind, success, durations });
            figures.requests.extend(used);
        }
        figures.requests.sort_by_key(|by| (by.kind, !by.success));
    }
}

/// A compaction that is worked off, for the figures.
#[derive(Debug)]
pub(super) struct Compacted<'a> {
    shared: &'a Shared,
    /// `None` where there is nothing to work off.
    began: Option<Instant>,
}

impl<'a> Compacted<'a> {
    pub(super) fn begin(shared: &'a Shared) -> Result<Self, Error> {
        let is_due = shared.core.read(|mvcc| mvcc.is_compacting())?;
        Ok(Self { shared, began: is_due.then(Instant::now) })
    }

    /// A step that kept the state since a time ends.
    pub(super) fn step(&self, dropped: usize, began: Instant) {
        if self.began.is_some() {
            self.shared.figures.compaction_pause.since(began);
            self.keys().add(u64_of(dropped));
        }
    }

    pub(super) fn end(&self) {
        let Some(began) = self.began else { return };
        self.shared.figures.compaction.since(began);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.shared.figures.compacted_at.set(now.as_secs());
    }

    fn keys(&self) -> &Counter {
        &self.shared.figures.compaction_keys
    }
}
