//! A branch or leaf in memory, also one that stands inside its parent.

use bytes::Bytes;

use super::Error;
use crate::bolt::page::Page;
use crate::format::page::{self as layout, BUCKET_BYTES, Branch, BucketHeader, Header, LEAF, Leaf};
use crate::format::{self, u64_of, usize_of};

/// A node; a clone shares its bytes.
#[derive(Clone, Debug)]
pub(super) struct Node {
    /// The page that it is, or is in.
    id: u64,
    count: u16,
    is_leaf: bool,
    bytes: Bytes,
}

impl Node {
    /// Takes a page that was just made.
    pub(super) fn new(id: u64, count: u16, is_leaf: bool, bytes: Bytes) -> Self {
        Self { id, count, is_leaf, bytes }
    }

    /// Takes a page that was read.
    pub(super) fn of_page(page: Page) -> Self {
        let (id, count, is_leaf) = (page.id(), page.count(), page.is_leaf());
        Self { id, count, is_leaf, bytes: Bytes::from(page.into_bytes()) }
    }

    /// Takes a leaf out of a piece of the file, of which it shares the memory; `None` if it is not
    /// there as a whole, or is not what it should be.
    pub(super) fn leaf_in_piece(
        piece: &Bytes,
        start: usize,
        id: u64,
        page_bytes: usize,
    ) -> Option<Self> {
        let header = Header::decode(piece.get(start..)?).ok()?;
        let span = usize_of(u64::from(header.overflow)).checked_add(1)?;
        let end = start.checked_add(span.checked_mul(page_bytes)?)?;
        if header.id != id || header.flags != LEAF || end > piece.len() {
            return None;
        }
        Some(Self { id, count: header.count, is_leaf: true, bytes: piece.slice(start..end) })
    }

    /// Takes the leaf that follows a bucket's header in its value, an element of this leaf.
    pub(super) fn inline(&self, value: &[u8]) -> Result<Self, Error> {
        let bytes = self.bytes.slice_ref(value.get(BUCKET_BYTES..).unwrap_or_default());
        let header = Header::decode(&bytes).map_err(|error| self.fault(error))?;
        if header.flags != LEAF {
            let what = header.type_name();
            return Err(Error::Damaged(format!("page {}: inline page of type {what}", self.id)));
        }
        Ok(Self { id: self.id, count: header.count, is_leaf: true, bytes })
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn count(&self) -> u16 {
        self.count
    }

    pub(super) fn is_leaf(&self) -> bool {
        self.is_leaf
    }

    pub(super) fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Number of pages that it takes; it is not inline.
    pub(super) fn span(&self, page_size: u32) -> u64 {
        u64_of(self.bytes.len()).div_ceil(u64::from(page_size).max(1))
    }

    pub(super) fn leaf(&self, index: u16) -> Result<Leaf<'_>, Error> {
        layout::leaf(&self.bytes, self.count, index).map_err(|error| self.fault(error))
    }

    pub(super) fn branch(&self, index: u16) -> Result<Branch<'_>, Error> {
        layout::branch(&self.bytes, self.count, index).map_err(|error| self.fault(error))
    }

    /// Returns a part of the node's bytes as memory that is shared with it.
    pub(super) fn share(&self, part: &[u8]) -> Bytes {
        self.bytes.slice_ref(part)
    }

    /// Returns the index of the first element of a leaf that is not below a key.
    pub(super) fn lower_bound(&self, key: &[u8]) -> Result<u16, Error> {
        self.first_not(|index| Ok(self.leaf(index)?.key < key))
    }

    /// Returns the index of the child of a branch that a key belongs in: the last whose key is not
    /// above it, or the first.
    pub(super) fn child_index(&self, key: &[u8]) -> Result<u16, Error> {
        let after = self.first_not(|index| Ok(self.branch(index)?.key <= key))?;
        Ok(after.saturating_sub(1))
    }

    /// Returns what [`Node::lower_bound`] does, where that is not before an index, and near.
    pub(super) fn lower_bound_from(&self, from: u16, key: &[u8]) -> Result<u16, Error> {
        self.first_not_from(from, |index| Ok(self.leaf(index)?.key < key))
    }

    /// Returns what [`Node::child_index`] does, where that is not before an index, and near.
    pub(super) fn child_index_from(&self, from: u16, key: &[u8]) -> Result<u16, Error> {
        let after = self.first_not_from(from, |index| Ok(self.branch(index)?.key <= key))?;
        Ok(after.saturating_sub(1).max(from))
    }

    /// Finds an element of a leaf.
    pub(super) fn find(&self, key: &[u8]) -> Result<Option<Leaf<'_>>, Error> {
        let index = self.lower_bound(key)?;
        if index >= self.count {
            return Ok(None);
        }
        Ok(Some(self.leaf(index)?).filter(|leaf| leaf.key == key))
    }

    /// Decodes the header of a bucket in this leaf.
    pub(super) fn bucket(&self, value: &[u8]) -> Result<BucketHeader, Error> {
        BucketHeader::decode(value).map_err(|error| self.fault(error))
    }

    /// Searches with steps that double, from an index on.
    fn first_not_from(
        &self,
        from: u16,
        is_below: impl Fn(u16) -> Result<bool, Error>,
    ) -> Result<u16, Error> {
        let (mut low, mut step) = (from, 1_u16);
        loop {
            let probe = low.saturating_add(step).saturating_sub(1);
            if probe >= self.count {
                return Self::first_not_in(low, self.count.max(low), is_below);
            }
            if !is_below(probe)? {
                return Self::first_not_in(low, probe, is_below);
            }
            low = probe.saturating_add(1);
            step = step.saturating_mul(2);
        }
    }

    fn first_not(&self, is_below: impl Fn(u16) -> Result<bool, Error>) -> Result<u16, Error> {
        Self::first_not_in(0, self.count, is_below)
    }

    fn first_not_in(
        mut low: u16,
        mut high: u16,
        is_below: impl Fn(u16) -> Result<bool, Error>,
    ) -> Result<u16, Error> {
        while low < high {
            let middle = u16::midpoint(low, high);
            if is_below(middle)? {
                low = middle.saturating_add(1);
            } else {
                high = middle;
            }
        }
        Ok(low)
    }

    fn fault(&self, error: format::Error) -> Error {
        Error::Damaged(format!("page {}: {error}", self.id))
    }
}
