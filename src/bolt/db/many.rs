//! Many rows of a bucket at once.
//!
//! The tree is gone down once for all keys, so that a page is looked for once however many of its
//! rows are wanted. Leaves that follow each other in the file are read in one piece, and are not
//! kept: a list is no reason to forget the pages that serve. Values share the memory that was read
//! where most of it is wanted, and are copied where little is.
//!
//! Hostile trees: each level is handed keys that its parent was handed, no key twice, and there are
//! at most [`DEPTH_MAX`] levels.

use std::ops::Range;

use bytes::Bytes;

use super::Error;
use super::node::Node;
use super::view::{Moment, View};
use crate::bolt::DEPTH_MAX;
use crate::format::page::BUCKET_FLAG;
use crate::format::{u64_of, usize_of};

/// Most bytes of leaves that are read in one piece.
const PIECE_BYTES_MAX: u64 = 64 << 10;
/// Fewer leaves than this are read, and kept, one by one.
const RUN_MIN: usize = 3;
/// Pages from one leaf of a run to the next at most.
const GAP_MAX: u64 = 4;

/// A child and the keys that belong in it.
type Wanted = (u64, Range<usize>);

struct Finder<'a, K> {
    moment: &'a Moment,
    keys: &'a [K],
    /// Of pages whose memory may yet turn out to be too much to be shared.
    found: Vec<(usize, Bytes)>,
    take: &'a mut dyn FnMut(usize, Bytes),
}

impl View {
    /// Finds the values of many rows, whose keys must ascend; shows those that are there by their
    /// key's place in `keys`. Values may share memory with their neighbours, up to twice
    /// as much as they take.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        bucket: &[u8],
        keys: &[K],
        take: &mut dyn FnMut(usize, Bytes),
    ) -> Result<(), Error> {
        let Some(root) = self.moment.bucket(bucket)? else { return Ok(()) };
        let mut finder = Finder { moment: &self.moment, keys, found: Vec::new(), take };
        finder.node(&root, 0..keys.len(), 0)
    }
}

impl<K: AsRef<[u8]>> Finder<'_, K> {
    fn key(&self, at: usize) -> &[u8] {
        self.keys.get(at).map(K::as_ref).unwrap_or_default()
    }

    /// Finds keys below a node that is memory of its own.
    fn node(&mut self, node: &Node, keys: Range<usize>, depth: usize) -> Result<(), Error> {
        if depth >= DEPTH_MAX {
            return Err(Error::too_deep(node.id()));
        }
        if node.is_leaf() {
            let mark = self.found.len();
            self.leaf(node, keys)?;
            self.flush(mark, node.bytes().len());
            return Ok(());
        }
        let children = self.children(node, keys)?;
        let mut rest = children.as_slice();
        while let Some(((id, keys), later)) = rest.split_first() {
            if let Some(child) = self.moment.kept(*id) {
                self.node(&child, keys.clone(), depth.saturating_add(1))?;
                rest = later;
                continue;
            }
            let count = self.run(rest);
            let (run, later) = rest.split_at_checked(count).unwrap_or((rest, &[]));
            rest = later;
            if count >= RUN_MIN {
                self.read_run(run, later.first().map(|(id, _)| *id), depth)?;
                continue;
            }
            for (id, keys) in run {
                self.node(&self.moment.node(*id)?, keys.clone(), depth.saturating_add(1))?;
            }
        }
        Ok(())
    }

    /// Lists the children of a branch in which keys belong.
    fn children(&self, node: &Node, keys: Range<usize>) -> Result<Vec<Wanted>, Error> {
        let mut children = Vec::new();
        let (mut at, mut index) = (keys.start, 0);
        while at < keys.end {
            index = node.child_index_from(index, self.key(at))?;
            let next = index.saturating_add(1);
            let end = if next < node.count() {
                let high = node.branch(next)?.key;
                // One at least, or keys that do not ascend would be no way forward.
                let from = at.saturating_add(1);
                self.first_not_below(high, from..keys.end)
            } else {
                keys.end
            };
            children.push((node.branch(index)?.child, at..end));
            at = end;
        }
        Ok(children)
    }

    /// Returns the first place whose key is not below another; it is expected to be near.
    fn first_not_below(&self, high: &[u8], places: Range<usize>) -> usize {
        let (mut low, mut step) = (places.start, 1_usize);
        let mut end = places.end;
        while low < end {
            let probe = low.saturating_add(step).saturating_sub(1);
            if probe >= end {
                break;
            }
            if self.key(probe) >= high {
                end = probe;
                break;
            }
            low = probe.saturating_add(1);
            step = step.saturating_mul(2);
        }
        let between = self.keys.get(low..end).unwrap_or_default();
        low.saturating_add(between.partition_point(|key| key.as_ref() < high))
    }

    fn leaf(&mut self, leaf: &Node, keys: Range<usize>) -> Result<(), Error> {
        let mut index = 0;
        for at in keys {
            let key = self.key(at);
            index = leaf.lower_bound_from(index, key)?;
            if index >= leaf.count() {
                break;
            }
            let row = leaf.leaf(index)?;
            if row.key == key && row.flags & BUCKET_FLAG == 0 {
                let value = leaf.share(row.value);
                self.found.push((at, value));
            }
        }
        Ok(())
    }

    /// Hands out what was found since `mark` in memory of so many bytes.
    fn flush(&mut self, mark: usize, bytes: usize) {
        let found = self.found.get(mark..).unwrap_or_default();
        let used = found.iter().map(|(_, value)| value.len()).fold(0, usize::saturating_add);
        let is_shared = used >= bytes / 2;
        for (at, value) in self.found.drain(mark..) {
            let value = if is_shared { value } else { Bytes::copy_from_slice(&value) };
            (self.take)(at, value);
        }
    }

    /// Counts the children, from the first one on, that follow each other in the file.
    fn run(&self, children: &[Wanted]) -> usize {
        let Some((first, _)) = children.first() else { return 0 };
        let page_bytes = u64::from(self.moment.meta().page_size).max(1);
        let pages_max = PIECE_BYTES_MAX.checked_div(page_bytes).unwrap_or(0);
        let mut last = *first;
        let follows = |(id, _): &&Wanted| {
            let is_near = (last..=last.saturating_add(GAP_MAX)).contains(id);
            last = *id;
            is_near && id.saturating_sub(*first) < pages_max
        };
        children.iter().take_while(follows).count()
    }

    /// Reads leaves in one piece. What is not a whole leaf in it, and a piece that cannot be read,
    /// is read page by page, which tells what is wrong with it.
    fn read_run(&mut self, run: &[Wanted], next: Option<u64>, depth: usize) -> Result<(), Error> {
        let (Some((first, _)), Some((last, _))) = (run.first(), run.last()) else { return Ok(()) };
        let page_bytes = usize_of(u64::from(self.moment.meta().page_size));
        // The last one ends where the next begins, if that is near.
        let end = next.filter(|next| next.checked_sub(*last).is_some_and(|gap| gap <= GAP_MAX));
        let end = end.unwrap_or(last.saturating_add(1)).max(last.saturating_add(1));
        let pages = usize_of(end.saturating_sub(*first));
        let offset = first.saturating_mul(u64_of(page_bytes));
        let piece = self.moment.piece(offset, pages.saturating_mul(page_bytes));
        let mark = self.found.len();
        let mut alone = Vec::new();
        for (id, keys) in run {
            let start = usize_of(id.saturating_sub(*first)).saturating_mul(page_bytes);
            match Node::leaf_in_piece(&piece, start, *id, page_bytes) {
                Some(leaf) => self.leaf(&leaf, keys.clone())?,
                None => alone.push((*id, keys.clone())),
            }
        }
        self.flush(mark, piece.len());
        for (id, keys) in alone {
            self.node(&self.moment.node(id)?, keys, depth.saturating_add(1))?;
        }
        Ok(())
    }
}
