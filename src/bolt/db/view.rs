//! The database as it was at one moment: rows by key and in order, and its bytes.
//!
//! A view holds a [`Moment`]; while one is there, no page that it reaches is used again.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use bytes::Bytes;

use super::cache::Cache;
use super::node::Node;
use super::{Error, Sizes};
use crate::bolt::disk::DiskFile;
use crate::bolt::{DEPTH_MAX, File, Source};
use crate::format::meta::{Meta, NO_FREELIST};
use crate::format::page::BUCKET_FLAG;
use crate::format::{u64_of, usize_of};

/// Is shown the key and value of a row, and says whether to go on.
pub type VisitRow<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Most buckets whose roots a moment keeps; etcd has ten.
const ROOTS_MAX: u16 = 64;

/// What all moments of a database share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) file: Arc<DiskFile>,
    pub(super) cache: Cache,
    /// Transactions whose moments are alive.
    live: Mutex<BTreeSet<u64>>,
}

impl Shared {
    pub(super) fn new(file: Arc<DiskFile>, cache_bytes: usize) -> Self {
        Self { file, cache: Cache::new(cache_bytes), live: Mutex::default() }
    }

    /// Returns the transactions whose moments are alive, ascending.
    pub(super) fn live(&self) -> Vec<u64> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }
}

/// What one transaction left; there is one of each transaction.
#[derive(Debug)]
pub(super) struct Moment {
    shared: Arc<Shared>,
    file: File,
    /// Roots of buckets by name, from the first read on; `None` where they are not to be kept.
    roots: OnceLock<Option<BTreeMap<Bytes, Node>>>,
    /// Bytes in use: fewer, once what the transaction freed is free.
    in_use_bytes: AtomicU64,
}

impl Moment {
    pub(super) fn new(shared: Arc<Shared>, meta: Meta, sizes: Sizes) -> Self {
        let mut live = shared.live.lock().unwrap_or_else(PoisonError::into_inner);
        live.insert(meta.txid);
        drop(live);
        let source = Source::shared(shared.file.clone(), meta.size_bytes(), None);
        let in_use_bytes = AtomicU64::new(sizes.in_use_bytes);
        Self { file: File::at(source, meta), roots: OnceLock::new(), shared, in_use_bytes }
    }

    pub(super) fn sizes(&self) -> Sizes {
        let in_use_bytes = self.in_use_bytes.load(Ordering::Acquire);
        Sizes { size_bytes: self.meta().size_bytes(), in_use_bytes }
    }

    /// Pages became free though no transaction followed.
    pub(super) fn note_in_use(&self, sizes: Sizes) {
        self.in_use_bytes.store(sizes.in_use_bytes, Ordering::Release);
    }

    pub(super) fn meta(&self) -> &Meta {
        self.file.meta()
    }

    /// Reads a branch or leaf.
    pub(super) fn node(&self, id: u64) -> Result<Node, Error> {
        if let Some(node) = self.shared.cache.get(id) {
            return Ok(node);
        }
        let page = self.file.page(id).map_err(crate::bolt::Error::Page)?;
        let node = Node::of_page(page);
        self.shared.cache.put(node.clone());
        Ok(node)
    }

    /// Returns a branch or leaf that is in memory.
    pub(super) fn kept(&self, id: u64) -> Option<Node> {
        self.shared.cache.get(id)
    }

    /// Reads a piece of the file; nothing where it cannot be read.
    pub(super) fn piece(&self, offset: u64, len: usize) -> Bytes {
        Bytes::from(self.file.source().read_up_to(offset, len).unwrap_or_default())
    }

    /// Returns the leaf in which a bucket is, if it is there.
    pub(super) fn top_level(&self, name: &[u8]) -> Result<Node, Error> {
        self.leaf_for(&self.node(self.meta().root)?, name)
    }

    /// Returns the leaf below a node in which a key is, if it is there.
    fn leaf_for(&self, from: &Node, key: &[u8]) -> Result<Node, Error> {
        let mut node = Cow::Borrowed(from);
        for _ in 0..DEPTH_MAX {
            if node.is_leaf() {
                return Ok(node.into_owned());
            }
            let child = node.branch(node.child_index(key)?)?.child;
            node = Cow::Owned(self.node(child)?);
        }
        Err(Error::too_deep(node.id()))
    }

    /// Returns the root of a bucket.
    pub(super) fn bucket(&self, name: &[u8]) -> Result<Option<Cow<'_, Node>>, Error> {
        if let Some(roots) = self.roots.get_or_init(|| self.roots()) {
            return Ok(roots.get(name).map(Cow::Borrowed));
        }
        let leaf = self.top_level(name)?;
        let found = leaf.find(name)?.filter(|found| found.flags & BUCKET_FLAG != 0);
        let root = found.map(|found| self.root_of(&leaf, found.value)).transpose()?;
        Ok(root.map(Cow::Owned))
    }

    /// Reads the roots of all buckets; `None` where there are many, or one cannot be read.
    fn roots(&self) -> Option<BTreeMap<Bytes, Node>> {
        let leaf = self.node(self.meta().root).ok()?;
        if !leaf.is_leaf() || leaf.count() > ROOTS_MAX {
            return None;
        }
        let mut roots = BTreeMap::new();
        for index in 0..leaf.count() {
            let element = leaf.leaf(index).ok()?;
            if element.flags & BUCKET_FLAG != 0 {
                let root = self.root_of(&leaf, element.value).ok()?;
                roots.insert(leaf.share(element.key), root);
            }
        }
        Some(roots)
    }

    /// Reads the root of a bucket by its value in a leaf.
    fn root_of(&self, leaf: &Node, value: &[u8]) -> Result<Node, Error> {
        match leaf.bucket(value)?.root {
            0 => leaf.inline(value),
            id => self.node(id),
        }
    }
}

impl Drop for Moment {
    fn drop(&mut self) {
        let txid = self.meta().txid;
        self.shared.live.lock().unwrap_or_else(PoisonError::into_inner).remove(&txid);
    }
}

/// The database as it was at one moment; a clone is the same one.
///
/// The lock on the file is held as long as a view lives, but for [`super::Db::close`]: then what is
/// read from the file fails.
#[derive(Clone, Debug)]
pub struct View {
    pub(super) moment: Arc<Moment>,
}

impl View {
    /// Finds a row's value. The value shares memory with the whole page.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn get(&self, bucket: &[u8], key: &[u8]) -> Result<Option<Bytes>, Error> {
        let Some(root) = self.moment.bucket(bucket)? else { return Ok(None) };
        let leaf = self.moment.leaf_for(&root, key)?;
        let row = leaf.find(key)?.filter(|row| row.flags & BUCKET_FLAG == 0);
        Ok(row.map(|row| leaf.share(row.value)))
    }

    /// Shows rows of a bucket in key order, from the first one that is not below `from`, until
    /// `visit` breaks off; nested buckets are passed over.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn each(&self, bucket: &[u8], from: &[u8], visit: &mut VisitRow<'_>) -> Result<(), Error> {
        let moment = &self.moment;
        let Some(root) = moment.bucket(bucket)? else { return Ok(()) };
        // Nodes on the way, each with the index of its next element.
        let mut way: Vec<(Node, u16)> = Vec::new();
        let mut below = Some(root.into_owned());
        let mut is_first = true;
        // A sound tree has no more nodes than the file has pages.
        let mut left = moment.file.page_count().saturating_add(1);
        loop {
            if let Some(node) = below.take() {
                left = left.checked_sub(1).ok_or_else(|| Error::shared(node.id()))?;
                if way.len() >= DEPTH_MAX {
                    return Err(Error::too_deep(node.id()));
                }
                let index = match (is_first, node.is_leaf()) {
                    (false, _) => 0,
                    (true, true) => node.lower_bound(from)?,
                    (true, false) => node.child_index(from)?,
                };
                is_first &= !node.is_leaf();
                way.push((node, index));
            }
            let Some((node, next)) = way.last_mut() else { return Ok(()) };
            if *next >= node.count() {
                way.pop();
                continue;
            }
            let index = *next;
            if node.is_leaf() {
                for index in index..node.count() {
                    let row = node.leaf(index)?;
                    if row.flags & BUCKET_FLAG == 0 && visit(row.key, row.value).is_break() {
                        return Ok(());
                    }
                }
                way.pop();
            } else {
                *next = index.saturating_add(1);
                below = Some(moment.node(node.branch(index)?.child)?);
            }
        }
    }

    /// Returns how large the database was.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        self.moment.sizes()
    }

    /// Returns the view as a file for the walkers and builders of this layer: it reads the same
    /// bytes by the view's meta, and keeps the view alive.
    ///
    /// # Errors
    /// None at present.
    pub fn file(&self) -> Result<File, Error> {
        let meta = *self.moment.meta();
        let file = self.moment.shared.file.clone();
        let source = Source::shared(file, meta.size_bytes(), Some(self.clone()));
        Ok(File::at(source, meta))
    }

    /// Returns the bytes of the database as a file of its own would have them, from `offset` on:
    /// both metas name this view's tree, and it ends at the high-water mark. Returns how many bytes
    /// of `buffer` were filled; fewer than it has only at the end.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn read_image(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        let meta = self.moment.meta();
        let left = meta.size_bytes().saturating_sub(offset);
        let count = buffer.len().min(usize_of(left));
        let buffer = buffer.get_mut(..count).unwrap_or_default();
        self.moment.shared.file.read_exact_at(buffer, offset)?;
        // As bbolt copies a file: the moment's transaction in slot 0, the one before in slot 1.
        let page_bytes = u64::from(meta.page_size);
        for (id, txid) in [(0_u64, meta.txid), (1, meta.txid.saturating_sub(1))] {
            let mut page = Meta { txid, freelist: NO_FREELIST, ..*meta }.encode(id);
            let start = id.saturating_mul(page_bytes);
            if offset < start.saturating_add(page_bytes) {
                page.resize(usize_of(page_bytes), 0);
                overlay(buffer, offset, &page, start);
            }
        }
        Ok(count)
    }
}

/// Puts those of `bytes`, which begin at `start`, that lie in `buffer`, which begins at `offset`.
fn overlay(buffer: &mut [u8], offset: u64, bytes: &[u8], start: u64) {
    let from = offset.max(start);
    let end =
        offset.saturating_add(u64_of(buffer.len())).min(start.saturating_add(u64_of(bytes.len())));
    let count = usize_of(end.saturating_sub(from));
    let (to, source) =
        (usize_of(from.saturating_sub(offset)), usize_of(from.saturating_sub(start)));
    let to = buffer.get_mut(to..to.saturating_add(count));
    let source = bytes.get(source..source.saturating_add(count));
    if let (Some(to), Some(source)) = (to, source) {
        to.copy_from_slice(source);
    }
}
