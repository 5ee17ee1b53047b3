//! Where a running store counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::Kind;
use super::histogram::{
    APPLY, COMPACTION, Counter, DEFRAG, HASH, Histogram, INDEX_PAUSE, PAUSE, SNAPSHOT, SYNC, Shards,
};
use super::kind::ByKind;
use crate::store::mvcc::Tally;

/// What the log counts; its thread writes, anybody reads.
#[derive(Debug)]
pub struct Wal {
    pub fsync: Histogram,
    pub write: Histogram,
    pub bytes: Counter,
}

impl Default for Wal {
    fn default() -> Self {
        Self {
            fsync: Histogram::new(&SYNC),
            write: Histogram::new(&SYNC),
            bytes: Counter::default(),
        }
    }
}

/// What readers count, each thread for itself.
#[derive(Debug)]
pub struct Reads {
    /// Ranges that were done, and those that were refused.
    pub range: [Histogram; 2],
    /// The same with the time before.
    pub request: [Histogram; 2],
    /// Transactions that only read.
    pub txn: [Histogram; 2],
    /// Ranges of such, conditions among them.
    pub txn_ranges: Counter,
    /// Such that had more than one.
    pub txns: Counter,
}

impl Default for Reads {
    fn default() -> Self {
        let both = |scale| [Histogram::new(scale), Histogram::new(scale)];
        Self {
            range: both(&APPLY),
            request: both(&SYNC),
            txn: both(&SYNC),
            txn_ranges: Counter::default(),
            txns: Counter::default(),
        }
    }
}

/// Of two histograms the one of what went well, or of what did not.
pub fn by_success(both: &[Histogram; 2], success: bool) -> &Histogram {
    let [done, refused] = both;
    if success { done } else { refused }
}

/// What a store counts beside its state, watchers and leases, which count themselves.
#[derive(Debug)]
pub struct Live {
    pub wal: Arc<Wal>,
    pub reads: Shards<Reads>,
    pub apply: ByKind,
    pub request: ByKind,
    pub slow: Counter,
    /// Above this a request is slow.
    pub slow_after: Duration,
    /// Proposals that are over, and those of them that failed.
    pub ended: Counter,
    pub failed: Counter,
    pub commit: Histogram,
    pub commit_layout: Histogram,
    pub commit_write: Histogram,
    pub defrag: Histogram,
    pub is_defragmenting: AtomicBool,
    pub snapshot: Histogram,
    pub snap_save: Histogram,
    pub snap_encode: Histogram,
    pub snap_fsync: Histogram,
    pub index_pause: Histogram,
    pub compaction_pause: Histogram,
    pub compaction: Histogram,
    pub compaction_keys: Counter,
    /// Unix time in seconds.
    pub compacted_at: Counter,
    pub leases_expired: Counter,
    pub hash: Histogram,
    pub hash_kv: Histogram,
}

impl Live {
    pub fn new(wal: Arc<Wal>, slow_after: Duration) -> Self {
        Self {
            wal,
            reads: Shards::default(),
            apply: ByKind::new(&APPLY),
            request: ByKind::new(&SYNC),
            slow: Counter::default(),
            slow_after,
            ended: Counter::default(),
            failed: Counter::default(),
            commit: Histogram::new(&SYNC),
            commit_layout: Histogram::new(&SYNC),
            commit_write: Histogram::new(&SYNC),
            defrag: Histogram::new(&DEFRAG),
            is_defragmenting: AtomicBool::new(false),
            snapshot: Histogram::new(&SNAPSHOT),
            snap_save: Histogram::new(&SYNC),
            snap_encode: Histogram::new(&SYNC),
            snap_fsync: Histogram::new(&SYNC),
            index_pause: Histogram::new(&INDEX_PAUSE),
            compaction_pause: Histogram::new(&PAUSE),
            compaction: Histogram::new(&COMPACTION),
            compaction_keys: Counter::default(),
            compacted_at: Counter::default(),
            leases_expired: Counter::default(),
            hash: Histogram::new(&HASH),
            hash_kv: Histogram::new(&HASH),
        }
    }

    /// A request was applied, or refused by the state.
    pub fn note_applied(&self, kind: Kind, success: bool, took: Duration) {
        if let Some(histogram) = self.apply.of(kind, success) {
            histogram.time(took);
        }
        self.note_time(took);
    }

    /// A request is over for whoever made it: answered, or failed before it was known what came of
    /// it.
    pub fn note_request(&self, asked: Option<(Kind, Instant)>, success: bool, now: Instant) {
        if let Some((kind, began)) = asked
            && let Some(histogram) = self.request.of(kind, success)
        {
            histogram.time(now.saturating_duration_since(began));
        }
    }

    /// A range was read, or refused; `is_allowed`: it got as far as the keys.
    pub fn note_range(&self, began: Instant, success: bool, is_allowed: bool) {
        let took = began.elapsed();
        let reads = self.reads.own();
        by_success(&reads.request, success).time(took);
        if is_allowed {
            by_success(&reads.range, success).time(took);
        }
        self.note_time(took);
    }

    /// A transaction that only reads was answered or refused.
    pub fn note_read_txn(&self, began: Instant, success: bool) {
        let took = began.elapsed();
        by_success(&self.reads.own().txn, success).time(took);
        self.note_time(took);
    }

    /// Counts what such a transaction asks of the keys.
    pub fn count_read_txn(&self, tally: Tally) {
        let reads = self.reads.own();
        reads.txn_ranges.add(tally.ranges);
        reads.txns.add(tally.txns);
    }

    fn note_time(&self, took: Duration) {
        if took > self.slow_after {
            self.slow.add(1);
        }
    }

    /// Counts a defragmentation from now to the end of what is returned.
    pub fn defragmenting(&self) -> Defragmenting<'_> {
        self.is_defragmenting.store(true, Ordering::Relaxed);
        Defragmenting { live: self, began: Instant::now(), is_done: false }
    }
}

/// A defragmentation that is under way.
#[derive(Debug)]
pub struct Defragmenting<'a> {
    live: &'a Live,
    began: Instant,
    is_done: bool,
}

impl Defragmenting<'_> {
    /// It went well: one that did not has no duration.
    pub fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Defragmenting<'_> {
    fn drop(&mut self) {
        self.live.is_defragmenting.store(false, Ordering::Relaxed);
        if self.is_done {
            self.live.defrag.since(self.began);
        }
    }
}
