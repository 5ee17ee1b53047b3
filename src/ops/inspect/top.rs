//! The N items of the highest score among any number, in the memory of N.
//!
//! An item's score may only rise. Then what is kept is exact: the last time that one of the N
//! highest rises it has its final score, and fewer than N others are above. Of equals the one that
//! came first is kept.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

/// Items by score; each has an id of its own.
#[derive(Debug)]
pub(super) struct Top<T> {
    limit: usize,
    /// Score, the later of equals first, and the item's id.
    order: BTreeSet<(u64, Reverse<u64>, u64)>,
    items: HashMap<u64, Kept<T>>,
    raised: u64,
}

#[derive(Debug)]
struct Kept<T> {
    score: u64,
    since: u64,
    item: T,
}

impl<T> Top<T> {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, order: BTreeSet::new(), items: HashMap::new(), raised: 0 }
    }

    /// Looks at an item that is kept.
    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut T> {
        self.items.get_mut(&id).map(|kept| &mut kept.item)
    }

    /// Takes an item's new score; one that is lower than before counts for nothing. `make` is
    /// asked for the item if it is to be kept.
    pub(super) fn raise(&mut self, id: u64, score: u64, make: impl FnOnce() -> T) {
        self.raised = self.raised.saturating_add(1);
        let since = self.raised;
        if let Some(kept) = self.items.get_mut(&id) {
            if score >= kept.score {
                self.order.remove(&(kept.score, Reverse(kept.since), id));
                self.order.insert((score, Reverse(since), id));
                *kept = Kept { score, since, item: make() };
            }
            return;
        }
        if self.items.len() >= self.limit {
            match self.order.first().copied() {
                Some(lowest) if lowest.0 < score => {
                    self.order.remove(&lowest);
                    self.items.remove(&lowest.2);
                }
                _ => return,
            }
        }
        self.order.insert((score, Reverse(since), id));
        self.items.insert(id, Kept { score, since, item: make() });
    }

    /// Returns what is kept, highest score first.
    pub(super) fn into_sorted(mut self) -> Vec<T> {
        let order = std::mem::take(&mut self.order);
        order.into_iter().rev().filter_map(|(.., id)| Some(self.items.remove(&id)?.item)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_highest_are_kept(raises in prop::collection::vec((0..30_u64, 0..200_u64), 0..400)) {
            let mut top = Top::new(5);
            let mut all: HashMap<u64, u64> = HashMap::new();
            for (id, score) in raises {
                top.raise(id, score, || (score, id));
                let best = all.entry(id).or_default();
                *best = score.max(*best);
            }
            let mut want: Vec<u64> = all.values().copied().collect();
            want.sort_unstable_by(|a, b| b.cmp(a));
            want.truncate(5);
            let kept = top.into_sorted();
            prop_assert_eq!(kept.iter().map(|(score, _)| *score).collect::<Vec<_>>(), want);
            prop_assert!(kept.iter().all(|(score, id)| all[id] == *score));
        }
    }
}
