//! Pages in memory, a bounded number of bytes of them.
//!
//! A page is kept by its id alone: as long as any view reaches a page, its id is not used again,
//! and a page that a commit writes replaces what was kept under its id before a view reaches it.
//!
//! Pages that were not asked for since the hand last passed them go first; branches get a few
//! rounds more.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use super::node::Node;
use crate::format::usize_of;

const SHARDS: usize = 8;
/// Rounds of the hand that a page survives.
const BRANCH_ROUNDS: u8 = 4;
const LEAF_ROUNDS: u8 = 1;

/// The pages.
#[derive(Debug)]
pub(super) struct Cache {
    shards: [Mutex<Shard>; SHARDS],
    /// Most bytes of a shard.
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Shard {
    kept: HashMap<u64, Kept, foldhash::fast::RandomState>,
    /// Ids of all kept pages; the hand stands at the front.
    ring: VecDeque<u64>,
    bytes: usize,
}

#[derive(Debug)]
struct Kept {
    node: Node,
    rounds: u8,
}

impl Cache {
    pub(super) fn new(bytes_max: usize) -> Self {
        let bytes_max = bytes_max.checked_div(SHARDS).unwrap_or(0);
        Self { shards: std::array::from_fn(|_| Mutex::default()), bytes_max }
    }

    pub(super) fn get(&self, id: u64) -> Option<Node> {
        let shard = self.shard(id)?;
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = shard.kept.get_mut(&id)?;
        kept.rounds = rounds(&kept.node);
        Some(kept.node.clone())
    }

    /// Keeps a page in place of what is kept under its id.
    pub(super) fn put(&self, node: Node) {
        let Some(shard) = self.shard(node.id()) else { return };
        let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
        shard.put(node, self.bytes_max);
    }

    fn shard(&self, id: u64) -> Option<&Mutex<Shard>> {
        let shards = self.shards.len();
        self.shards.get(usize_of(id).checked_rem(shards)?)
    }
}

impl Shard {
    fn put(&mut self, node: Node, bytes_max: usize) {
        let (id, bytes) = (node.id(), node.bytes().len());
        if bytes > bytes_max {
            // What was kept under the id is another page now.
            if let Some(old) = self.kept.remove(&id) {
                self.bytes = self.bytes.saturating_sub(old.node.bytes().len());
                self.ring.retain(|other| *other != id);
            }
            return;
        }
        // Not asked for yet: pages of one pass over everything go before pages that serve.
        let rounds = if node.is_leaf() { 0 } else { BRANCH_ROUNDS };
        match self.kept.insert(id, Kept { node, rounds }) {
            Some(old) => self.bytes = self.bytes.saturating_sub(old.node.bytes().len()),
            None => self.ring.push_back(id),
        }
        self.bytes = self.bytes.saturating_add(bytes);
        while self.bytes > bytes_max {
            let Some(id) = self.ring.pop_front() else { return };
            let Some(kept) = self.kept.get_mut(&id) else { continue };
            if let Some(left) = kept.rounds.checked_sub(1) {
                kept.rounds = left;
                self.ring.push_back(id);
                continue;
            }
            self.bytes = self.bytes.saturating_sub(kept.node.bytes().len());
            self.kept.remove(&id);
        }
    }
}

fn rounds(node: &Node) -> u8 {
    if node.is_leaf() { LEAF_ROUNDS } else { BRANCH_ROUNDS }
}
