//! What was asked of the keys, counted as etcd counts it.
//!
//! A range is whatever looks keys up: a read, a condition, the record that a put or delete answers
//! or builds on. A transaction counts where more than one of these, puts or deletes came together,
//! whoever asked for them; one that writes looks at its conditions first, which counts apart. A
//! delete is a request to delete, or one key of a lease that ended. The read by which etcd learns
//! the revision after a compaction is not there, and not counted.
//!
//! Source: etcd `mvcc/metrics_txn.go`, `etcdserver/txn`, 3.6.16, 3.7.3.

use crate::etcd::apply::{Effect, Outcome, Step};
use crate::etcd::request::{Body, DeleteRange, Op, Put, Txn};
use crate::format::u64_of;

/// Counts of requests on keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub ranges: u64,
    pub puts: u64,
    pub deletes: u64,
    pub txns: u64,
    /// Bytes of keys and values that were put.
    pub put_bytes: u64,
}

impl Tally {
    /// Counts what an entry did.
    pub fn of(body: Option<&Body<'_>>, effect: &Effect<'_>) -> Self {
        let mut tally = Self::default();
        if effect.outcome != Outcome::Done {
            return tally;
        }
        match body {
            Some(Body::Put(put)) => tally.put(put),
            Some(Body::DeleteRange(delete)) => tally.delete(delete),
            Some(Body::LeaseRevoke(_)) => tally.deletes = u64_of(effect.changes.len()),
            Some(Body::Txn(txn)) => {
                let mut before = Self::default();
                tally.txn(txn, &mut effect.steps.iter(), &mut before);
                before.close();
                tally.close();
                tally.add(before);
                tally.put_bytes = put_bytes(effect);
                return tally;
            }
            _ => return tally,
        }
        tally.close();
        tally.put_bytes = put_bytes(effect);
        tally
    }

    /// Counts a transaction that only reads, by its steps.
    pub fn of_reads(steps: &[Step]) -> Self {
        let mut tally = Self::default();
        for step in steps {
            match step {
                Step::Txn { compared, .. } => tally.ranges += u64_of(*compared),
                Step::Range(_) => tally.ranges += 1,
                _ => {}
            }
        }
        tally.close();
        tally
    }

    pub fn add(&mut self, other: Self) {
        self.ranges += other.ranges;
        self.puts += other.puts;
        self.deletes += other.deletes;
        self.txns += other.txns;
        self.put_bytes += other.put_bytes;
    }

    /// Ends what is done at once.
    fn close(&mut self) {
        self.txns += u64::from(self.ranges + self.puts + self.deletes > 1);
    }

    fn put(&mut self, put: &Put<'_>) {
        self.puts += 1;
        self.ranges += u64::from(looks_up(put));
    }

    fn delete(&mut self, delete: &DeleteRange<'_>) {
        self.deletes += 1;
        self.ranges += u64::from(delete.prev_kv);
    }

    /// `before`: what is looked at before the first write.
    fn txn(&mut self, txn: &Txn<'_>, steps: &mut std::slice::Iter<'_, Step>, before: &mut Self) {
        let Some(Step::Txn { succeeded, compared, .. }) = steps.next() else { return };
        before.ranges += u64_of(*compared);
        for op in if *succeeded { &txn.success } else { &txn.failure } {
            if let Op::Txn(inner) = op {
                self.txn(inner, steps, before);
                continue;
            }
            steps.next();
            match op {
                Op::Range(_) => self.ranges += 1,
                Op::Put(put) => {
                    before.ranges += u64::from(looks_up(put));
                    self.put(put);
                }
                Op::DeleteRange(delete) => self.delete(delete),
                Op::Txn(_) | Op::Nothing => {}
            }
        }
    }
}

/// Tells whether a put needs the record before it.
fn looks_up(put: &Put<'_>) -> bool {
    put.prev_kv || put.ignore_value || put.ignore_lease
}

fn put_bytes(effect: &Effect<'_>) -> u64 {
    let puts = effect.changes.iter().filter_map(|change| Some((&change.key, change.put.as_ref()?)));
    puts.map(|(key, put)| u64_of(key.len() + put.value.len())).sum()
}
