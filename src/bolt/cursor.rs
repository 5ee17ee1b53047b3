//! Goes through one bucket in key order.
//!
//! A cursor trusts nothing: a page that cannot be used ends it with an error, and a tree whose
//! pages form a cycle or are shared ends it too, since one pass may load no more pages than the
//! file has.
//!
//! Source: go.etcd.io/bbolt `cursor.go` (1.4.3), for what a search does with stale branch keys.

use super::page::{Page, PageFault};
use super::{DEPTH_MAX, Error, File};
use crate::format::finding::Code;
use crate::format::page::{self as layout, BUCKET_BYTES, BUCKET_FLAG, BucketHeader, Header, LEAF};
use crate::format::{self};

/// A bucket that was found.
#[derive(Clone, Debug)]
pub struct Bucket<'a> {
    file: &'a File,
    root: Root,
    sequence: u64,
}

#[derive(Clone, Debug)]
enum Root {
    Page(u64),
    /// The inline page's bytes.
    Inline(Vec<u8>),
}

/// One row that a cursor stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// The key, or a bucket's name.
    pub key: &'a [u8],
    /// The value; for a bucket its header and inline page.
    pub value: &'a [u8],
    /// The row is a bucket.
    pub is_bucket: bool,
}

impl File {
    /// Returns the root bucket, which holds buckets only.
    #[must_use]
    pub fn root(&self) -> Bucket<'_> {
        let meta = self.meta();
        Bucket { file: self, root: Root::Page(meta.root), sequence: meta.sequence }
    }

    /// Finds a bucket by its names from the top level down.
    ///
    /// # Errors
    /// A page on the way cannot be used.
    pub fn bucket<N: AsRef<[u8]>>(&self, path: &[N]) -> Result<Option<Bucket<'_>>, Error> {
        let mut bucket = self.root();
        for name in path {
            match bucket.bucket(name.as_ref())? {
                Some(found) => bucket = found,
                None => return Ok(None),
            }
        }
        Ok(Some(bucket))
    }
}

impl<'a> Bucket<'a> {
    /// The bucket's sequence.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Starts a cursor before the first row.
    #[must_use]
    pub fn cursor(&self) -> Cursor<'a> {
        Cursor {
            file: self.file,
            root: self.root.clone(),
            levels: Vec::new(),
            loaded: 0,
            at_end: false,
        }
    }

    /// Finds a bucket inside this one.
    ///
    /// # Errors
    /// A page on the way cannot be used, or the bucket's value is malformed.
    pub fn bucket(&self, name: &[u8]) -> Result<Option<Bucket<'a>>, Error> {
        let mut cursor = self.cursor();
        cursor.seek(name)?;
        let Some(row) = cursor.next_row()? else { return Ok(None) };
        if row.key != name || !row.is_bucket {
            return Ok(None);
        }
        let malformed = |error: format::Error| {
            Error::Page(PageFault { code: Code::BucketHeader, page: 0, detail: error.to_string() })
        };
        let header = BucketHeader::decode(row.value).map_err(malformed)?;
        let root = match header.root {
            0 => Root::Inline(row.value.get(BUCKET_BYTES..).unwrap_or_default().to_vec()),
            id => Root::Page(id),
        };
        Ok(Some(Bucket { file: self.file, root, sequence: header.sequence }))
    }

    /// Finds the value of a key.
    ///
    /// # Errors
    /// A page on the way cannot be used.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut cursor = self.cursor();
        cursor.seek(key)?;
        let row = cursor.next_row()?;
        Ok(row.filter(|row| row.key == key && !row.is_bucket).map(|row| row.value.to_vec()))
    }
}

/// A place in a bucket.
#[derive(Debug)]
pub struct Cursor<'a> {
    file: &'a File,
    root: Root,
    levels: Vec<Level>,
    loaded: u64,
    at_end: bool,
}

#[derive(Debug)]
struct Level {
    node: Loaded,
    /// Index of the next element to look at.
    next: u16,
}

#[derive(Debug)]
enum Loaded {
    Page(Page),
    Inline { bytes: Vec<u8>, count: u16 },
}

impl Loaded {
    fn count(&self) -> u16 {
        match self {
            Self::Page(page) => page.count(),
            Self::Inline { count, .. } => *count,
        }
    }

    fn is_leaf(&self) -> bool {
        match self {
            Self::Page(page) => page.is_leaf(),
            Self::Inline { .. } => true,
        }
    }

    fn id(&self) -> u64 {
        match self {
            Self::Page(page) => page.id(),
            Self::Inline { .. } => 0,
        }
    }

    fn leaf(&self, index: u16) -> Result<layout::Leaf<'_>, Error> {
        let leaf = match self {
            Self::Page(page) => page.leaf(index),
            Self::Inline { bytes, count } => layout::leaf(bytes, *count, index),
        };
        leaf.map_err(|error| self.fault(error))
    }

    fn branch(&self, index: u16) -> Result<layout::Branch<'_>, Error> {
        let branch = match self {
            Self::Page(page) => page.branch(index),
            Self::Inline { .. } => Err(format::Error::new(0, "an inline page is no branch")),
        };
        branch.map_err(|error| self.fault(error))
    }

    fn fault(&self, error: format::Error) -> Error {
        let detail = error.to_string();
        Error::Page(PageFault { code: Code::ElementBounds, page: self.id(), detail })
    }
}

impl Cursor<'_> {
    /// Moves before the first row whose key is not below `key`.
    ///
    /// # Errors
    /// A page on the way cannot be used.
    pub fn seek(&mut self, key: &[u8]) -> Result<(), Error> {
        self.levels.clear();
        self.loaded = 0;
        self.at_end = false;
        self.load_root()?;
        loop {
            let Some(level) = self.levels.last_mut() else { return Ok(()) };
            if level.node.is_leaf() {
                level.next =
                    lower_bound(level.node.count(), |index| Ok(level.node.leaf(index)?.key < key))?;
                return Ok(());
            }
            // The last element whose key is not above the target; the first where all are.
            let after =
                lower_bound(level.node.count(), |index| Ok(level.node.branch(index)?.key <= key))?;
            let index = after.saturating_sub(1);
            let child = level.node.branch(index)?.child;
            level.next = index.saturating_add(1);
            self.load(child)?;
        }
    }

    /// Returns the next row and moves behind it; `None` at the end.
    ///
    /// # Errors
    /// A page on the way cannot be used. The cursor then stays at its end.
    pub fn next_row(&mut self) -> Result<Option<Row<'_>>, Error> {
        match self.advance() {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => {
                self.levels.clear();
                self.at_end = true;
                return Err(error);
            }
        }
        let Some(level) = self.levels.last() else { return Ok(None) };
        let leaf = level.node.leaf(level.next.saturating_sub(1))?;
        let is_bucket = leaf.flags & BUCKET_FLAG != 0;
        Ok(Some(Row { key: leaf.key, value: leaf.value, is_bucket }))
    }

    /// Moves to the next leaf element; its index is one below the top level's `next`.
    fn advance(&mut self) -> Result<bool, Error> {
        if self.at_end {
            return Ok(false);
        }
        if self.levels.is_empty() {
            self.load_root()?;
        }
        while let Some(level) = self.levels.last_mut() {
            if level.next >= level.node.count() {
                self.levels.pop();
                continue;
            }
            let index = level.next;
            level.next = index.saturating_add(1);
            if level.node.is_leaf() {
                return Ok(true);
            }
            let child = level.node.branch(index)?.child;
            self.load(child)?;
        }
        self.at_end = true;
        Ok(false)
    }

    fn load_root(&mut self) -> Result<(), Error> {
        match &self.root {
            Root::Page(id) => self.load(*id),
            Root::Inline(bytes) => {
                let malformed = |detail: String| {
                    Error::Page(PageFault { code: Code::InlineBucket, page: 0, detail })
                };
                let header = Header::decode(bytes).map_err(|error| malformed(error.to_string()))?;
                if header.flags != LEAF {
                    return Err(malformed(format!("inline page of type {}", header.type_name())));
                }
                let node = Loaded::Inline { bytes: bytes.clone(), count: header.count };
                self.levels.push(Level { node, next: 0 });
                Ok(())
            }
        }
    }

    fn load(&mut self, id: u64) -> Result<(), Error> {
        let fault = |code, detail| Err(Error::Page(PageFault { code, page: id, detail }));
        if self.levels.len() >= DEPTH_MAX {
            return fault(Code::TreeDepth, format!("deeper than {DEPTH_MAX} levels"));
        }
        let page = self.file.page(id).map_err(Error::Page)?;
        self.loaded = self.loaded.saturating_add(page.span());
        if self.loaded > self.file.page_count() {
            return fault(Code::PageTwice, "pages are shared or form a cycle".into());
        }
        self.levels.push(Level { node: Loaded::Page(page), next: 0 });
        Ok(())
    }
}

/// Returns the first index for which `below` is false.
fn lower_bound(
    count: u16,
    mut below: impl FnMut(u16) -> Result<bool, Error>,
) -> Result<u16, Error> {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = u16::midpoint(low, high);
        if below(middle)? {
            low = middle.saturating_add(1);
        } else {
            high = middle;
        }
    }
    Ok(low)
}
