//! One transaction's changes, from rows to new pages in memory.
//!
//! The tree is gone down with the rows, sorted; leaves that change are merged with them, and every
//! node from there up to the root is made anew. Then, as bbolt does:
//!
//! 1. A node that lost elements and is small joins its left neighbour, or the right one if it is
//!    the first; an empty one goes. A root branch with one child becomes that child.
//! 2. A node that is too large is split, by the fill of its bucket.
//! 3. A bucket of one small leaf stands inside its parent.
//!
//! Two things are done otherwise, so that large values are not written again with each other: nodes
//! of more than a page do not join, and one of more than [`LARGE_PAGES`] is split down to one
//! element, not to two.
//!
//! Source: go.etcd.io/bbolt `node.rebalance`, `node.splitTwo`, `node.spill`, `bucket.inlineable`
//! (1.4.3); etcd `backend/batch_tx.go` `UnsafeSeqPut` for the fill of bucket `key` (3.6.16).

use bytes::Bytes;

use super::alloc::Alloc;
use super::node::Node;
use super::view::Moment;
use super::{Batch, Error};
use crate::bolt::{DEPTH_MAX, PAGE_BYTES_MAX};
use crate::format::page::{
    BRANCH, BUCKET_BYTES, BUCKET_FLAG, BucketHeader, ELEMENT_BYTES, ELEMENTS_MAX, HEADER_BYTES,
    Header, KEY_BYTES_MAX, LEAF,
};
use crate::format::{u64_of, usize_of};

/// Pages from which on a leaf is split down to one element.
const LARGE_PAGES: usize = 16;
/// Largest key and value that fit in a page that is read back.
pub const ROW_BYTES_MAX: u64 = PAGE_BYTES_MAX - 64;

/// A row and what becomes of it.
type Row = (Bytes, Option<Bytes>);

/// An element: of a leaf with its flags, of a branch with its child's page.
#[derive(Clone, Debug)]
struct Item {
    word: u64,
    key: Bytes,
    value: Bytes,
}

impl Item {
    fn size(&self) -> usize {
        ELEMENT_BYTES.saturating_add(self.key.len()).saturating_add(self.value.len())
    }
}

/// A node that changes.
#[derive(Debug)]
struct Part {
    items: Items,
    /// It lost elements.
    lost: bool,
}

#[derive(Debug)]
enum Items {
    Leaf(Vec<Item>),
    Branch(Vec<Slot>),
}

/// A child of a branch that changes.
#[derive(Debug)]
struct Slot {
    key: Bytes,
    child: Child,
}

#[derive(Debug)]
enum Child {
    Kept(u64),
    Made(Part),
}

impl Part {
    fn leaf(items: Vec<Item>, lost: bool) -> Self {
        Self { items: Items::Leaf(items), lost }
    }

    fn len(&self) -> usize {
        match &self.items {
            Items::Leaf(items) => items.len(),
            Items::Branch(slots) => slots.len(),
        }
    }

    fn size(&self) -> usize {
        let sum = match &self.items {
            Items::Leaf(items) => items.iter().map(Item::size).fold(0, usize::saturating_add),
            Items::Branch(slots) => slots
                .iter()
                .map(|slot| ELEMENT_BYTES.saturating_add(slot.key.len()))
                .fold(0, usize::saturating_add),
        };
        sum.saturating_add(HEADER_BYTES)
    }

    fn is_leaf(&self) -> bool {
        matches!(self.items, Items::Leaf(_))
    }
}

/// How full a node is made when it is split, in tenths of a page.
#[derive(Clone, Copy, Debug)]
struct Fill(usize);

impl Fill {
    fn of_bucket(name: &[u8]) -> Self {
        // Revisions only grow, so what is left of the last page is all that is ever needed.
        if name == b"key" { Self(9) } else { Self(5) }
    }

    fn bytes(self, page_bytes: usize) -> usize {
        page_bytes.saturating_mul(self.0) / 10
    }
}

/// A transaction while it is made.
#[derive(Debug)]
pub(super) struct Edit<'a> {
    moment: &'a Moment,
    alloc: &'a mut Alloc,
    page_bytes: usize,
    /// Flags of the elements that are put.
    flags: u32,
    fill: Fill,
    pages: Vec<Node>,
}

impl<'a> Edit<'a> {
    pub(super) fn new(moment: &'a Moment, alloc: &'a mut Alloc) -> Self {
        let page_bytes = usize_of(u64::from(moment.meta().page_size));
        Self { moment, alloc, page_bytes, flags: 0, fill: Fill(5), pages: Vec::new() }
    }

    /// Makes the changes; returns the new root page and all new pages; `None` if nothing changes.
    pub(super) fn run(mut self, batch: Batch) -> Result<Option<(u64, Vec<Node>)>, Error> {
        let mut values = Vec::new();
        for (name, rows) in batch.buckets {
            if name.is_empty() || name.len() > KEY_BYTES_MAX {
                return Err(Error::Size);
            }
            let mut rows = settle(rows)?;
            (self.flags, self.fill) = (0, Fill::of_bucket(&name));
            if let Some(value) = self.bucket(&name, &mut rows)? {
                values.push((Bytes::from(name), Some(Bytes::from(value))));
            }
        }
        (self.flags, self.fill) = (BUCKET_FLAG, Fill(5));
        let Some(part) = self.change(self.moment.meta().root, &mut values, 0)? else {
            return Ok(None);
        };
        let root = self.collapse(part)?;
        let root = self.write_tree(root)?;
        if let Some(page) = self.alloc.wrongly_freed() {
            let detail = format!("page {page} is in use twice: the file was changed by others");
            return Err(Error::Damaged(detail));
        }
        Ok(Some((root, self.pages)))
    }

    /// Makes the changes of a bucket; returns its new value, or `None` if it stays as it is.
    fn bucket(&mut self, name: &[u8], rows: &mut [Row]) -> Result<Option<Vec<u8>>, Error> {
        let leaf = self.moment.top_level(name)?;
        let mut header = BucketHeader { root: 0, sequence: 0 };
        let part = match leaf.find(name)? {
            None => {
                Some(merge(Vec::new(), rows, 0)?.unwrap_or_else(|| Part::leaf(Vec::new(), false)))
            }
            Some(element) if element.flags & BUCKET_FLAG == 0 => return Err(Error::Nesting),
            Some(element) => {
                header = leaf.bucket(element.value)?;
                match header.root {
                    0 => merge(items_of(&leaf.inline(element.value)?)?, rows, 0)?,
                    id => self.change(id, rows, 0)?,
                }
            }
        };
        let Some(part) = part else { return Ok(None) };
        let part = self.collapse(part)?;
        let mut value = Vec::new();
        match &part.items {
            Items::Leaf(items) if self.is_inlineable(items, part.size()) => {
                value.extend_from_slice(&BucketHeader { root: 0, ..header }.encode());
                encode(&mut value, 0, LEAF, 0, items)?;
            }
            _ => {
                let root = self.write_tree(part)?;
                value.extend_from_slice(&BucketHeader { root, ..header }.encode());
            }
        }
        debug_assert!(value.len() >= BUCKET_BYTES);
        Ok(Some(value))
    }

    fn is_inlineable(&self, items: &[Item], size: usize) -> bool {
        let is_bucket = |item: &Item| item.word & u64::from(BUCKET_FLAG) != 0;
        size <= self.page_bytes / 4 && !items.iter().any(is_bucket)
    }

    /// Changes what is below a page, and takes the rows; `None` if nothing changes there.
    fn change(&mut self, id: u64, rows: &mut [Row], depth: usize) -> Result<Option<Part>, Error> {
        let node = self.moment.node(id)?;
        if node.is_leaf() {
            let part = merge(items_of(&node)?, rows, self.flags)?;
            if part.is_some() {
                self.free(&node);
            }
            return Ok(part);
        }
        if depth >= DEPTH_MAX {
            return Err(Error::too_deep(id));
        }
        let mut slots = Vec::with_capacity(usize::from(node.count()).saturating_add(1));
        let (mut rest, mut changes) = (rows, false);
        for index in 0..node.count() {
            let element = node.branch(index)?;
            let next = match index.checked_add(1).filter(|next| *next < node.count()) {
                Some(next) => Some(node.branch(next)?.key),
                None => None,
            };
            let count = match (rest.first(), next) {
                (None, _) => 0,
                (Some(_), None) => rest.len(),
                (Some((first, _)), Some(next)) if first >= next => 0,
                (Some(_), Some(next)) => rest.partition_point(|(key, _)| key < next),
            };
            let (here, later) =
                std::mem::take(&mut rest).split_at_mut_checked(count).unwrap_or_default();
            rest = later;
            let made = match here {
                [] => None,
                here => self.change(element.child, here, depth.saturating_add(1))?,
            };
            changes |= made.is_some();
            let child = made.map_or(Child::Kept(element.child), Child::Made);
            slots.push(Slot { key: node.share(element.key), child });
        }
        if !changes {
            return Ok(None);
        }
        self.free(&node);
        let before = slots.len();
        let slots = self.balance(slots)?;
        let lost = slots.len() < before;
        Ok(Some(Part { items: Items::Branch(slots), lost }))
    }

    /// Joins small children with their neighbours, and drops empty ones.
    fn balance(&mut self, slots: Vec<Slot>) -> Result<Vec<Slot>, Error> {
        let mut out: Vec<Slot> = Vec::with_capacity(slots.len());
        // The first one, where it is small: it joins the one behind it.
        let mut first = None;
        for mut slot in slots {
            if matches!(&slot.child, Child::Made(part) if part.len() == 0) {
                continue;
            }
            if let Some(left) = first.take() {
                match self.join(left, slot)? {
                    (left, Some(right)) => {
                        out.push(left);
                        slot = right;
                    }
                    (joined, None) => slot = joined,
                }
            }
            if !self.is_small(&slot) {
                out.push(slot);
            } else if let Some(left) = out.pop() {
                let (left, right) = self.join(left, slot)?;
                out.push(left);
                out.extend(right);
            } else {
                first = Some(slot);
            }
        }
        out.extend(first);
        Ok(out)
    }

    fn is_small(&self, slot: &Slot) -> bool {
        let Child::Made(part) = &slot.child else { return false };
        let least = if part.is_leaf() { 1 } else { 2 };
        part.lost && (part.len() <= least || part.size() <= self.fill.bytes(self.page_bytes) / 2)
    }

    /// Makes one of two neighbours, or gives them back where they are no match.
    fn join(&mut self, left: Slot, right: Slot) -> Result<(Slot, Option<Slot>), Error> {
        if !self.is_joinable(&left.child)? || !self.is_joinable(&right.child)? {
            return Ok((left, Some(right)));
        }
        if self.is_leaf(&left.child)? != self.is_leaf(&right.child)? {
            return Ok((left, Some(right)));
        }
        let key = left.key;
        let (left, right) = (self.part(left.child)?, self.part(right.child)?);
        let items = match (left.items, right.items) {
            (Items::Leaf(mut items), Items::Leaf(more)) => {
                items.extend(more);
                Items::Leaf(items)
            }
            (Items::Branch(mut slots), Items::Branch(more)) => {
                slots.extend(more);
                Items::Branch(slots)
            }
            _ => return Err(Error::Damaged("a leaf and a branch stand side by side".into())),
        };
        Ok((Slot { key, child: Child::Made(Part { items, lost: false }) }, None))
    }

    fn is_joinable(&self, child: &Child) -> Result<bool, Error> {
        Ok(match child {
            Child::Kept(id) => self.moment.node(*id)?.bytes().len() <= self.page_bytes,
            Child::Made(part) => part.size() <= self.page_bytes,
        })
    }

    fn is_leaf(&self, child: &Child) -> Result<bool, Error> {
        Ok(match child {
            Child::Kept(id) => self.moment.node(*id)?.is_leaf(),
            Child::Made(part) => part.is_leaf(),
        })
    }

    /// Takes a child to be changed: one that was kept is freed.
    fn part(&mut self, child: Child) -> Result<Part, Error> {
        let id = match child {
            Child::Made(part) => return Ok(part),
            Child::Kept(id) => id,
        };
        let node = self.moment.node(id)?;
        self.free(&node);
        if node.is_leaf() {
            return Ok(Part::leaf(items_of(&node)?, false));
        }
        let mut slots = Vec::with_capacity(usize::from(node.count()));
        for index in 0..node.count() {
            let element = node.branch(index)?;
            slots.push(Slot { key: node.share(element.key), child: Child::Kept(element.child) });
        }
        Ok(Part { items: Items::Branch(slots), lost: false })
    }

    /// Takes a root's only child in its place.
    fn collapse(&mut self, mut part: Part) -> Result<Part, Error> {
        for _ in 0..DEPTH_MAX {
            match &mut part.items {
                Items::Branch(slots) if slots.len() <= 1 => match slots.pop() {
                    Some(only) => part = self.part(only.child)?,
                    None => part = Part::leaf(Vec::new(), true),
                },
                _ => return Ok(part),
            }
        }
        Err(Error::Damaged(format!("branches of one child, more than {DEPTH_MAX}")))
    }

    fn free(&mut self, node: &Node) {
        self.alloc.free((node.id(), node.span(self.moment.meta().page_size)));
    }

    /// Writes a tree; returns its root.
    fn write_tree(&mut self, root: Part) -> Result<u64, Error> {
        let mut pages = self.write_part(root)?;
        loop {
            match pages.as_slice() {
                [] => return self.write_node(LEAF, &[]),
                [only] => return Ok(only.word),
                _ => pages = self.write_items(BRANCH, &pages)?,
            }
        }
    }

    /// Writes what is below a node and then the node; returns elements for its parent.
    fn write_part(&mut self, part: Part) -> Result<Vec<Item>, Error> {
        match part.items {
            Items::Leaf(items) => self.write_items(LEAF, &items),
            Items::Branch(slots) => {
                let mut items = Vec::with_capacity(slots.len());
                for slot in slots {
                    match slot.child {
                        Child::Kept(word) => {
                            items.push(Item { word, key: slot.key, value: Bytes::new() });
                        }
                        Child::Made(part) => items.extend(self.write_part(part)?),
                    }
                }
                self.write_items(BRANCH, &items)
            }
        }
    }

    /// Writes elements into as many pages as they need.
    fn write_items(&mut self, flags: u16, items: &[Item]) -> Result<Vec<Item>, Error> {
        let mut pages = Vec::new();
        let mut rest = items;
        let mut size = rest.iter().map(Item::size).fold(HEADER_BYTES, usize::saturating_add);
        while let Some(first) = rest.first() {
            let count = self.split(flags, rest, size);
            let (here, later) = rest.split_at_checked(count).unwrap_or((rest, &[]));
            let word = self.write_node(flags, here)?;
            pages.push(Item { word, key: first.key.clone(), value: Bytes::new() });
            size = here.iter().map(Item::size).fold(size, usize::saturating_sub);
            rest = later;
        }
        Ok(pages)
    }

    /// Returns how many of the elements, which take `size` bytes, the next page gets.
    fn split(&self, flags: u16, items: &[Item], size: usize) -> usize {
        let is_large = flags == LEAF && size > self.page_bytes.saturating_mul(LARGE_PAGES);
        let least = if is_large { 1 } else { 2 };
        let is_one = items.len() <= if is_large { 1 } else { 4 } || size < self.page_bytes;
        if is_one && items.len() <= ELEMENTS_MAX {
            return items.len();
        }
        let threshold = self.fill.bytes(self.page_bytes);
        let (mut count, mut sum) = (0_usize, HEADER_BYTES);
        for (index, item) in items.iter().take(items.len().saturating_sub(least)).enumerate() {
            count = index;
            sum = sum.saturating_add(item.size());
            if index >= least && (sum > threshold || index >= ELEMENTS_MAX) {
                break;
            }
        }
        count.max(least)
    }

    fn write_node(&mut self, flags: u16, items: &[Item]) -> Result<u64, Error> {
        let size = items.iter().map(Item::size).fold(HEADER_BYTES, usize::saturating_add);
        let span = size.div_ceil(self.page_bytes.max(1)).max(1);
        let id = self.alloc.take(u64_of(span)).ok_or(Error::Size)?;
        let overflow = u32::try_from(span.saturating_sub(1)).map_err(|_| Error::Size)?;
        let whole = span.saturating_mul(self.page_bytes);
        let mut bytes = Vec::with_capacity(whole);
        encode(&mut bytes, id, flags, overflow, items)?;
        bytes.resize(whole, 0);
        let count = u16::try_from(items.len()).map_err(|_| Error::Size)?;
        self.pages.push(Node::new(id, count, flags == LEAF, Bytes::from(bytes)));
        Ok(id)
    }
}

/// Sorts rows; of those with one key, the last stays.
fn settle(mut rows: Vec<Row>) -> Result<Vec<Row>, Error> {
    rows.sort_by(|a, b| a.0.cmp(&b.0));
    rows.dedup_by(|later, kept| {
        let is_same = later.0 == kept.0;
        if is_same {
            std::mem::swap(later, kept);
        }
        is_same
    });
    for (key, value) in &rows {
        let bytes = key.len().saturating_add(value.as_ref().map_or(0, Bytes::len));
        if key.is_empty() || key.len() > KEY_BYTES_MAX || u64_of(bytes) > ROW_BYTES_MAX {
            return Err(Error::Size);
        }
    }
    Ok(rows)
}

fn items_of(leaf: &Node) -> Result<Vec<Item>, Error> {
    let mut items = Vec::with_capacity(usize::from(leaf.count()));
    for index in 0..leaf.count() {
        let element = leaf.leaf(index)?;
        let (key, value) = (leaf.share(element.key), leaf.share(element.value));
        items.push(Item { word: u64::from(element.flags), key, value });
    }
    Ok(items)
}

/// Merges a leaf's elements with rows, which it takes; `None` if they stay as they are.
fn merge(items: Vec<Item>, rows: &mut [Row], flags: u32) -> Result<Option<Part>, Error> {
    let mut out = Vec::with_capacity(items.len().saturating_add(rows.len()));
    let mut rest = items.into_iter();
    let (mut changes, mut lost) = (false, false);
    for (key, value) in rows {
        let (key, value) = (std::mem::take(key), value.take());
        let below = rest.as_slice().partition_point(|item| item.key < key);
        out.extend(rest.by_ref().take(below));
        let is_there = rest.as_slice().first().is_some_and(|item| item.key == key);
        let old = if is_there { rest.next() } else { None };
        if let Some(old) = &old {
            let is_bucket = |word: u64| word & u64::from(BUCKET_FLAG) != 0;
            if is_bucket(old.word) != is_bucket(u64::from(flags)) {
                return Err(Error::Nesting);
            }
        }
        match value {
            Some(value) => {
                changes |= old.is_none_or(|old| old.value != value);
                out.push(Item { word: u64::from(flags), key, value });
            }
            None => lost |= old.is_some(),
        }
    }
    out.extend(rest);
    Ok((changes || lost).then(|| Part::leaf(out, lost)))
}

/// Appends a page to `out`: header, elements, keys and values; no padding.
fn encode(
    out: &mut Vec<u8>,
    id: u64,
    flags: u16,
    overflow: u32,
    items: &[Item],
) -> Result<(), Error> {
    let field = |n: usize| u32::try_from(n).map_err(|_| Error::Size);
    let count = u16::try_from(items.len()).map_err(|_| Error::Size)?;
    out.extend_from_slice(&Header { id, flags, count, overflow }.encode());
    // Offsets count from their own element.
    let mut position = items.len().saturating_mul(ELEMENT_BYTES);
    for item in items {
        let (pos, key) = (field(position)?, field(item.key.len())?);
        if flags == LEAF {
            let word = u32::try_from(item.word).map_err(|_| Error::Size)?;
            for part in [word, pos, key, field(item.value.len())?] {
                out.extend_from_slice(&part.to_le_bytes());
            }
        } else {
            out.extend_from_slice(&pos.to_le_bytes());
            out.extend_from_slice(&key.to_le_bytes());
            out.extend_from_slice(&item.word.to_le_bytes());
        }
        let data = item.key.len().saturating_add(item.value.len());
        position = position.saturating_sub(ELEMENT_BYTES).saturating_add(data);
    }
    for item in items {
        out.extend_from_slice(&item.key);
        out.extend_from_slice(&item.value);
    }
    Ok(())
}
