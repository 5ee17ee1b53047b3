//! Writes a packed bbolt file from rows in key order, in one pass.
//!
//! Invariants:
//!
//! 1. Pages are written in ascending id order from page 2 on; the metas come last, so that a file
//!    cut off at any moment has no valid meta.
//! 2. Memory is one page a tree level, plus one row.
//! 3. Every page id below the high-water mark is in use: no freelist is stored or needed.
//! 4. Both metas name the same tree, so either of them alone is a valid database.
//!
//! A bucket of at most a quarter page without buckets in it is stored inline, as bbolt does.
//!
//! Source: go.etcd.io/bbolt `node.go`, `bucket.go` `inlineable` (1.4.3).

use std::io::{self, Seek, SeekFrom, Write};

use crate::format::meta::{self, Meta};
use crate::format::page::{
    BRANCH, BUCKET_BYTES, BUCKET_FLAG, BucketHeader, ELEMENTS_MAX, KEY_BYTES_MAX, LEAF, Node,
    VALUE_BYTES_MAX,
};
use crate::format::{self, u64_of, usize_of};

/// Why a file could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The disk said no.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Rows came out of order, or twice.
    #[error("a key does not ascend within its bucket")]
    Order,
    /// An empty key, or a key or value that the format does not hold.
    #[error("a key or value of a size that bbolt does not store")]
    Size,
    /// A row outside a bucket, or an end without a beginning.
    #[error("a row or an end stands outside a bucket")]
    Nesting,
    /// A page that the format does not hold.
    #[error(transparent)]
    Format(#[from] format::Error),
}

/// What was built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Built {
    /// Bytes of the file.
    pub size_bytes: u64,
    /// Pages, the two metas included.
    pub pages: u64,
}

/// Builds one file. Call [`Builder::begin_bucket`], [`Builder::put`] and [`Builder::end_bucket`]
/// with names and keys ascending, then [`Builder::finish`].
#[derive(Debug)]
pub struct Builder<W> {
    out: W,
    page_size: u32,
    next_id: u64,
    /// The root bucket first, then the bucket that is open, then those inside it.
    open: Vec<Tree>,
    buffer: Vec<u8>,
}

#[derive(Debug, Default)]
struct Tree {
    name: Vec<u8>,
    sequence: u64,
    last_key: Option<Vec<u8>>,
    has_buckets: bool,
    leaf: Node,
    /// Branch levels, the one above the leaves first.
    branches: Vec<Node>,
}

impl<W: Write + Seek> Builder<W> {
    /// Starts a file. `out` is written from its beginning on, in order but for the metas.
    ///
    /// # Errors
    /// A page size that is no power of two from 1 KiB to 16 MiB, or the disk.
    pub fn new(mut out: W, page_size: u32) -> Result<Self, Error> {
        let sizes = meta::PAGE_SIZE_MIN..=meta::PAGE_SIZE_MAX;
        if !page_size.is_power_of_two() || !sizes.contains(&page_size) {
            return Err(Error::Size);
        }
        out.seek(SeekFrom::Start(u64::from(page_size).saturating_mul(2)))?;
        let open = vec![Tree::default()];
        Ok(Self { out, page_size, next_id: 2, open, buffer: Vec::new() })
    }

    /// Begins a bucket inside the one that is open, or at the top.
    ///
    /// # Errors
    /// The name does not ascend or has an impossible size.
    pub fn begin_bucket(&mut self, name: &[u8], sequence: u64) -> Result<(), Error> {
        let parent = self.open.last_mut().ok_or(Error::Nesting)?;
        parent.accept(name)?;
        parent.has_buckets = true;
        self.open.push(Tree { name: name.to_vec(), sequence, ..Tree::default() });
        Ok(())
    }

    /// Adds a row to the bucket that is open.
    ///
    /// # Errors
    /// No bucket is open, the key does not ascend, an impossible size, or the disk.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        if self.open.len() < 2 {
            return Err(Error::Nesting);
        }
        if value.len() > VALUE_BYTES_MAX {
            return Err(Error::Size);
        }
        self.open.last_mut().ok_or(Error::Nesting)?.accept(key)?;
        self.add(0, key, value)
    }

    /// Ends the bucket that is open.
    ///
    /// # Errors
    /// None is open, or the disk.
    pub fn end_bucket(&mut self) -> Result<(), Error> {
        if self.open.len() < 2 {
            return Err(Error::Nesting);
        }
        let mut tree = self.open.pop().ok_or(Error::Nesting)?;
        let small = tree.leaf.size() <= usize_of(u64::from(self.page_size / 4));
        let inline = tree.branches.is_empty() && !tree.has_buckets && small;
        let mut value = Vec::with_capacity(BUCKET_BYTES);
        if inline {
            value.extend_from_slice(&BucketHeader { root: 0, sequence: tree.sequence }.encode());
            tree.leaf.encode(&mut value, 0, LEAF, 0)?;
        } else {
            let root = self.close(&mut tree)?;
            value.extend_from_slice(&BucketHeader { root, sequence: tree.sequence }.encode());
        }
        self.add(u64::from(BUCKET_FLAG), &tree.name, &value)
    }

    /// Writes the root bucket and the metas; the caller syncs.
    ///
    /// `txid` becomes the file's transaction id; 1 or more.
    ///
    /// # Errors
    /// A bucket is still open, or the disk.
    pub fn finish(mut self, txid: u64) -> Result<(Built, W), Error> {
        let mut root = self.open.pop().ok_or(Error::Nesting)?;
        if !self.open.is_empty() {
            return Err(Error::Nesting);
        }
        let root = self.close(&mut root)?;
        let meta = Meta {
            page_size: self.page_size,
            flags: 0,
            root,
            sequence: 0,
            freelist: meta::NO_FREELIST,
            high_water_mark: self.next_id,
            txid: txid.max(1),
        };
        // Transaction T stands in slot T mod 2.
        let older = Meta { txid: meta.txid.saturating_sub(1), ..meta };
        let (first, second) =
            if meta.txid.is_multiple_of(2) { (meta, older) } else { (older, meta) };
        self.out.flush()?;
        self.out.seek(SeekFrom::Start(0))?;
        for (id, meta) in [(0, first), (1, second)] {
            let mut page = meta.encode(id);
            page.resize(usize_of(u64::from(self.page_size)), 0);
            self.out.write_all(&page)?;
        }
        self.out.flush()?;
        let built = Built { size_bytes: meta.size_bytes(), pages: self.next_id };
        Ok((built, self.out))
    }

    fn add(&mut self, word: u64, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let page_size = usize_of(u64::from(self.page_size));
        let tree = self.open.last_mut().ok_or(Error::Nesting)?;
        let full = tree.leaf.size_with(key, value) > page_size || tree.leaf.len() >= ELEMENTS_MAX;
        if full && !tree.leaf.is_empty() {
            let mut tree = self.open.pop().ok_or(Error::Nesting)?;
            self.flush_leaf(&mut tree)?;
            self.open.push(tree);
        }
        let tree = self.open.last_mut().ok_or(Error::Nesting)?;
        tree.leaf.push(word, key, value);
        Ok(())
    }

    fn flush_leaf(&mut self, tree: &mut Tree) -> Result<(), Error> {
        let id = self.write(&tree.leaf, LEAF)?;
        let first = tree.leaf.first_key().unwrap_or_default().to_vec();
        tree.leaf.clear();
        self.link(tree, 0, first, id)
    }

    /// Adds a child to a branch level, writing what is full upwards.
    fn link(
        &mut self,
        tree: &mut Tree,
        level: usize,
        mut first: Vec<u8>,
        mut id: u64,
    ) -> Result<(), Error> {
        let page_size = usize_of(u64::from(self.page_size));
        let mut level = level;
        loop {
            if tree.branches.len() <= level {
                tree.branches.push(Node::default());
            }
            let Some(node) = tree.branches.get_mut(level) else { return Err(Error::Nesting) };
            let full = node.size_with(&first, &[]) > page_size || node.len() >= ELEMENTS_MAX;
            // Two children at least, or long keys would make a tree that never narrows.
            if !full || node.len() < 2 {
                node.push(id, &first, &[]);
                return Ok(());
            }
            let done = std::mem::take(node);
            node.push(id, &first, &[]);
            first = done.first_key().unwrap_or_default().to_vec();
            id = self.write(&done, BRANCH)?;
            level = level.saturating_add(1);
        }
    }

    /// Writes what a tree still holds; returns its root page id.
    fn close(&mut self, tree: &mut Tree) -> Result<u64, Error> {
        if tree.branches.is_empty() {
            return self.write(&tree.leaf, LEAF);
        }
        if !tree.leaf.is_empty() {
            self.flush_leaf(tree)?;
        }
        let mut level = 0_usize;
        loop {
            let top = level.saturating_add(1) >= tree.branches.len();
            let Some(node) = tree.branches.get_mut(level) else { return Err(Error::Nesting) };
            let node = std::mem::take(node);
            let first = node.first_key().unwrap_or_default().to_vec();
            let id = self.write(&node, BRANCH)?;
            if top {
                return Ok(id);
            }
            level = level.saturating_add(1);
            self.link(tree, level, first, id)?;
        }
    }

    fn write(&mut self, node: &Node, flags: u16) -> Result<u64, Error> {
        let id = self.next_id;
        let overflow = node.overflow(self.page_size);
        let span = overflow.saturating_add(1);
        let overflow = u32::try_from(overflow).map_err(|_| Error::Size)?;
        self.buffer.clear();
        node.encode(&mut self.buffer, id, flags, overflow)?;
        let bytes = span.saturating_mul(u64::from(self.page_size));
        self.buffer.resize(usize_of(bytes), 0);
        self.out.write_all(&self.buffer)?;
        if u64_of(self.buffer.capacity()) > 1 << 24 {
            self.buffer = Vec::new();
        }
        self.next_id = id.checked_add(span).ok_or(Error::Size)?;
        Ok(id)
    }
}

impl Tree {
    fn accept(&mut self, key: &[u8]) -> Result<(), Error> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(Error::Size);
        }
        match &mut self.last_key {
            Some(last) if last.as_slice() >= key => return Err(Error::Order),
            Some(last) => {
                last.clear();
                last.extend_from_slice(key);
            }
            None => self.last_key = Some(key.to_vec()),
        }
        Ok(())
    }
}
