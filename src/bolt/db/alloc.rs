//! Which pages are free, and which will be.
//!
//! A page that transaction T frees may be seen by the views of the transactions from the one that
//! wrote it up to T - 1. It is free when none of those lives, and at T + 1 at the earliest, when
//! the meta of T is durable.
//!
//! Source: go.etcd.io/bbolt `internal/freelist/shared.go` (1.4.3). Where bbolt takes any run that
//! is long enough, this takes the shortest, and of those the first.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A run of pages: the first one's id, and how many.
pub(super) type Run = (u64, u64);

/// The pages below the high-water mark that hold nothing.
#[derive(Debug)]
pub(super) struct Alloc {
    runs: BTreeMap<u64, u64>,
    /// The same by length, and then by id.
    by_length: BTreeSet<(u64, u64)>,
    count: u64,
    mark: u64,
    pending: BTreeMap<u64, Pending>,
    /// Which transaction wrote a page; only of pages that are younger than the oldest view.
    born: HashMap<u64, u64, foldhash::fast::RandomState>,
    oldest: u64,
    running: Running,
}

/// What one transaction freed.
#[derive(Debug, Default)]
struct Pending {
    /// A view that sees all that is left here.
    blocked_by: Option<u64>,
    freed: Vec<Freed>,
}

#[derive(Debug)]
struct Freed {
    run: Run,
    born: u64,
}

/// The transaction that is being made.
#[derive(Debug, Default)]
struct Running {
    txid: u64,
    mark_before: u64,
    taken: Vec<Run>,
    freed: Vec<Run>,
}

impl Alloc {
    pub(super) fn new(free: impl IntoIterator<Item = Run>, mark: u64) -> Self {
        let mut alloc = Self {
            runs: BTreeMap::new(),
            by_length: BTreeSet::new(),
            count: 0,
            mark,
            pending: BTreeMap::new(),
            born: HashMap::default(),
            oldest: 0,
            running: Running::default(),
        };
        free.into_iter().for_each(|run| alloc.give(run));
        alloc
    }

    /// Begins a transaction; `live` are the transactions that views show, ascending.
    pub(super) fn begin(&mut self, txid: u64, live: &[u64]) {
        self.running =
            Running { txid, mark_before: self.mark, taken: Vec::new(), freed: Vec::new() };
        let mut free = Vec::new();
        for (txid, pending) in &mut self.pending {
            if pending.blocked_by.is_some_and(|view| live.binary_search(&view).is_ok()) {
                continue;
            }
            let below = live.partition_point(|view| view < txid);
            let newest = below.checked_sub(1).and_then(|index| live.get(index)).copied();
            pending.blocked_by = newest;
            pending.freed.retain(|freed| {
                let is_seen = newest.is_some_and(|view| view >= freed.born);
                if !is_seen {
                    free.push(freed.run);
                }
                is_seen
            });
        }
        self.pending.retain(|_, pending| !pending.freed.is_empty());
        free.into_iter().for_each(|run| self.give(run));
        let oldest = live.first().copied().unwrap_or(txid);
        if oldest != self.oldest {
            self.oldest = oldest;
            self.born.retain(|_, born| *born > oldest);
        }
    }

    /// Takes pages that follow each other; `None` where page ids end.
    pub(super) fn take(&mut self, span: u64) -> Option<u64> {
        let found = self.by_length.range((span, 0)..).next().copied();
        let first = match found {
            Some((length, first)) => {
                self.by_length.remove(&(length, first));
                self.runs.remove(&first);
                self.count = self.count.saturating_sub(span);
                let rest = length.saturating_sub(span);
                if rest > 0 {
                    let next = first.saturating_add(span);
                    self.runs.insert(next, rest);
                    self.by_length.insert((rest, next));
                }
                self.running.taken.push((first, span));
                first
            }
            None => {
                let first = self.mark;
                self.mark = first.checked_add(span)?;
                self.running.taken.push((first, span));
                first
            }
        };
        Some(first)
    }

    /// Frees pages by the running transaction.
    pub(super) fn free(&mut self, run: Run) {
        self.running.freed.push(run);
    }

    /// Looks for a page that was freed twice or is none: the tree was changed under us.
    pub(super) fn wrongly_freed(&mut self) -> Option<u64> {
        let Running { freed, mark_before, .. } = &mut self.running;
        freed.sort_unstable();
        let mut end = 2_u64;
        for (first, span) in freed {
            if *first < end {
                return Some(*first);
            }
            end = first.saturating_add(*span);
        }
        (end > *mark_before).then_some(end.saturating_sub(1))
    }

    /// The running transaction is durable.
    pub(super) fn commit(&mut self) {
        let Running { txid, taken, freed, .. } = std::mem::take(&mut self.running);
        let mut pending = Pending::default();
        for run in freed {
            let born = self.born.remove(&run.0).unwrap_or(0);
            pending.freed.push(Freed { run, born });
        }
        self.pending.insert(txid, pending);
        for (first, _) in taken {
            self.born.insert(first, txid);
        }
    }

    /// Nothing of the running transaction was written.
    pub(super) fn undo(&mut self) {
        let Running { mark_before, taken, .. } = std::mem::take(&mut self.running);
        self.mark = mark_before;
        for (first, span) in taken {
            if first < mark_before {
                self.give((first, span));
            }
        }
    }

    /// First page id never used.
    pub(super) fn mark(&self) -> u64 {
        self.mark
    }

    /// Number of free pages.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Number of pages that the last transaction freed and that are not free yet.
    #[cfg(test)]
    pub(super) fn pending_pages(&self) -> u64 {
        let last = self.pending.last_key_value();
        last.map_or(0, |(_, pending)| pending.freed.iter().map(|freed| freed.run.1).sum())
    }

    /// Free runs and those that will be free, in no order.
    #[cfg(test)]
    pub(super) fn all_runs(&self) -> Vec<Run> {
        let pending = self.pending.values().flat_map(|pending| &pending.freed);
        let free = self.runs.iter().map(|(first, length)| (*first, *length));
        free.chain(pending.map(|freed| freed.run)).collect()
    }

    /// Makes pages free; runs that meet become one.
    fn give(&mut self, (first, length): Run) {
        if length == 0 {
            return;
        }
        self.count = self.count.saturating_add(length);
        let (mut first, mut end) = (first, first.saturating_add(length));
        let before = self.runs.range(..first).next_back().map(|(id, length)| (*id, *length));
        if let Some((id, length)) =
            before.filter(|(id, length)| id.saturating_add(*length) == first)
        {
            self.runs.remove(&id);
            self.by_length.remove(&(length, id));
            first = id;
        }
        if let Some(length) = self.runs.remove(&end) {
            self.by_length.remove(&(length, end));
            end = end.saturating_add(length);
        }
        let length = end.saturating_sub(first);
        self.runs.insert(first, length);
        self.by_length.insert((length, first));
    }
}
