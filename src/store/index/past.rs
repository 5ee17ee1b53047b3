//! Records that are not the newest of their key, in the order in which they were superseded; and
//! the tombstones.
//!
//! One queue is both: what is read at an older revision, and what a compaction drops. A compaction
//! takes from its front; what it has taken is forgotten by that. A record is found by what
//! superseded it, so that the newest record of a key need not know whether there are older ones,
//! and a key without any takes nothing here.
//!
//! Each record knows the one before it of the same key, and one further back, chosen so that any
//! earlier one is reached in a number of steps that grows with the logarithm (Myers, "An
//! applicative random-access stack", 1983): a key that is written all the time is no slower to
//! read in the past than others.

use super::Dead;
use super::queue::Queue;
use crate::etcd::revision::Revision;

/// A record and what superseded it; 36 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct Superseded {
    new_main: i64,
    new_sub: u32,
    old_main: i64,
    old_sub: u32,
    /// How many places back the record before is; 0 for none known.
    older: u32,
    /// The same of one further back, or the same one.
    jump: u32,
    /// Number of records before this one when it came, twice; and 1 for a tombstone.
    depth: u32,
}

impl Superseded {
    fn superseder(self) -> (i64, u32) {
        (self.new_main, self.new_sub)
    }

    fn superseded(self) -> Revision {
        Revision::new(self.old_main, self.old_sub.into())
    }

    fn is_tombstone(self) -> bool {
        self.depth & 1 == 1
    }
}

/// A tombstone; 16 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
struct Tombstone {
    main: i64,
    sub: u32,
    leaf: u32,
}

/// Instead of a leaf: the key was put again, in a later main revision.
const ELSEWHERE: u32 = u32::MAX;
/// Instead of a leaf: the key was put again in the same main revision, which removes the tombstone
/// as any other record.
const VOID: u32 = u32::MAX - 1;

/// The records.
#[derive(Debug, Default)]
pub(super) struct Past {
    superseded: Queue<Superseded>,
    tombstones: Queue<Tombstone>,
}

/// What a compaction takes next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    /// A superseded record.
    Row(Dead),
    /// A tombstone, and the leaf where its key is if nothing came after it.
    Tombstone(Dead, Option<u32>),
    /// Only the knowledge of a tombstone that was taken before.
    Nothing,
}

fn narrow(sub: i64) -> u32 {
    u32::try_from(sub).unwrap_or(u32::MAX)
}

impl Past {
    /// Notes that a record is not the newest any more.
    pub(super) fn supersede(&mut self, new: Revision, old: Revision, is_tombstone: bool) {
        let number = self.superseded.next_number();
        let mut links = (0, 0, 0);
        if let Some((before, node)) = self.number_of(old) {
            let back = |to: u64| u32::try_from(number - to).unwrap_or(0);
            let jump = self.jump_over(before, node).unwrap_or(before);
            links = (back(before), back(jump), (node.depth >> 1).wrapping_add(1));
        }
        let (older, jump, depth) = links;
        self.superseded.push(Superseded {
            new_main: new.main,
            new_sub: narrow(new.sub),
            old_main: old.main,
            old_sub: narrow(old.sub),
            older,
            jump,
            depth: depth << 1 | u32::from(is_tombstone),
        });
        if is_tombstone && let Some(tombstone) = self.tombstone_mut(old) {
            tombstone.leaf = if old.main == new.main { VOID } else { ELSEWHERE };
        }
    }

    /// Where the jump of a record after `before` leads, if further than to `before`.
    fn jump_over(&self, before: u64, node: Superseded) -> Option<u64> {
        let (first, first_node) = self.back(before, node.jump)?;
        let (second, second_node) = self.back(first, first_node.jump)?;
        let depth = |node: Superseded| node.depth >> 1;
        let over_one = depth(node).wrapping_sub(depth(first_node));
        let over_two = depth(first_node).wrapping_sub(depth(second_node));
        (over_one == over_two).then_some(second)
    }

    fn back(&self, from: u64, by: u32) -> Option<(u64, Superseded)> {
        if by == 0 {
            return None;
        }
        let number = from.checked_sub(by.into())?;
        Some((number, *self.superseded.get(number)?))
    }

    /// Finds the record that `new` superseded.
    fn number_of(&self, new: Revision) -> Option<(u64, Superseded)> {
        let new = (new.main, narrow(new.sub));
        if self.superseded.front()?.superseder() > new {
            return None;
        }
        let number = self.superseded.find(|node| node.superseder() < new);
        let node = *self.superseded.get(number)?;
        (node.superseder() == new).then_some((number, node))
    }

    /// Finds the newest record before `bound` of a key whose newest record is `newest` and is not
    /// before `bound`; and whether it is a tombstone.
    pub(super) fn before(&self, newest: Revision, bound: Revision) -> Option<(Revision, bool)> {
        let (mut number, mut node) = self.number_of(newest)?;
        loop {
            if node.superseded() < bound {
                return Some((node.superseded(), node.is_tombstone()));
            }
            (number, node) = match self.back(number, node.jump) {
                Some((far, jumped)) if jumped.superseded() >= bound => (far, jumped),
                _ => self.back(number, node.older)?,
            };
        }
    }

    /// Notes a tombstone that is the newest record of its key.
    pub(super) fn bury(&mut self, revision: Revision, leaf: u32) {
        let sub = narrow(revision.sub);
        self.tombstones.push(Tombstone { main: revision.main, sub, leaf });
    }

    fn tombstone_mut(&mut self, revision: Revision) -> Option<&mut Tombstone> {
        let wanted = (revision.main, narrow(revision.sub));
        let number = self.tombstones.find(|one| (one.main, one.sub) < wanted);
        self.tombstones.get_mut(number).filter(|one| (one.main, one.sub) == wanted)
    }

    /// Notes that the key of a tombstone is in another leaf now.
    pub(super) fn moved(&mut self, revision: Revision, leaf: u32) {
        if let Some(tombstone) = self.tombstone_mut(revision)
            && tombstone.leaf < VOID
        {
            tombstone.leaf = leaf;
        }
    }

    /// Takes the oldest record that a compaction at `revision` removes.
    pub(super) fn take(&mut self, revision: i64) -> Option<Next> {
        let row = self.superseded.front().copied().filter(|row| row.new_main <= revision);
        let tombstone = self.tombstones.front().copied().filter(|one| one.main < revision);
        match (row, tombstone) {
            (None, None) => None,
            (Some(row), tombstone)
                if tombstone.is_none_or(|one| row.new_main <= one.main.saturating_add(1)) =>
            {
                self.superseded.pop();
                // A tombstone goes in the revision after its own at the latest.
                if row.is_tombstone() && row.old_main < row.new_main {
                    return Some(Next::Nothing);
                }
                let dead = Dead { revision: row.superseded(), is_tombstone: row.is_tombstone() };
                Some(Next::Row(dead))
            }
            (_, None) => None,
            (_, Some(one)) => {
                self.tombstones.pop();
                let leaf = one.leaf;
                if leaf == VOID {
                    return Some(Next::Nothing);
                }
                let revision = Revision::new(one.main, one.sub.into());
                let dead = Dead { revision, is_tombstone: true };
                Some(Next::Tombstone(dead, (leaf != ELSEWHERE).then_some(leaf)))
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.superseded.memory_bytes() + self.tombstones.memory_bytes()
    }
}
