//! Makes planned changes to a database by writing new pages behind its last one.
//!
//! For a file that nobody has open: a fresh copy of a verified one. Pages that hold changed rows,
//! and those on the way to them from the root, are written anew from the high-water mark on; every
//! other page keeps its bytes and its place. The metas come last and both name the new tree, so
//! the file is to be thrown away when this fails.
//!
//! 1. Nothing is read but pages on the way to planned rows: work grows with the plan, not with the
//!    file, but that a bucket to be cleared is read whole.
//! 2. Pages that are no longer reached stay where they are. No freelist is stored, so they are
//!    free for whoever opens the file next.
//!
//! Source: go.etcd.io/bbolt `node.spill`, `bucket.inlineable`, `tx.Commit` (1.4.3), for what a
//! reader accepts.

use std::collections::BTreeMap;
use std::io;

use super::overlay::{CHANGES_MAX, Change, ChangeKind, Edits};
use super::page::{Page, PageFault};
use super::{DEPTH_MAX, File};
use crate::format::finding::Code;
use crate::format::meta::{self, Meta};
use crate::format::page::{
    self as layout, BRANCH, BUCKET_BYTES, BUCKET_FLAG, BucketHeader, ELEMENTS_MAX, Header,
    KEY_BYTES_MAX, LEAF, Node, VALUE_BYTES_MAX,
};
use crate::format::{self, usize_of};

/// Why changes could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The disk said no.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A page on the way could not be used.
    #[error("page {}: {}", .0.page, .0.detail)]
    Page(PageFault),
    /// A row is planned where a bucket is, or the other way round.
    #[error("a row and a bucket want the same name")]
    Nesting,
    /// An empty key, or a key or value that the format does not hold.
    #[error("a key or value of a size that bbolt does not store")]
    Size,
    /// Bytes that are no page, or a page that the format does not hold.
    #[error(transparent)]
    Format(#[from] format::Error),
}

impl From<super::Error> for Error {
    fn from(error: super::Error) -> Self {
        match error {
            super::Error::Io(error) => Self::Io(error),
            super::Error::Page(fault) => Self::Page(fault),
            other => Self::Io(io::Error::other(other.to_string())),
        }
    }
}

/// What was done.
#[derive(Clone, Debug)]
pub struct Appended {
    /// The meta that serves now.
    pub meta: Meta,
    /// The first [`CHANGES_MAX`] changes, bucket by bucket, ascending.
    pub changes: Vec<Change>,
    /// Rows that were not there before.
    pub rows_added: u64,
    /// Rows that are not there any more.
    pub rows_removed: u64,
}

/// Where new bytes go: a byte offset in the file, and the bytes.
pub type WriteAt<'a> = dyn FnMut(u64, &[u8]) -> io::Result<()> + 'a;

/// Writes the pages that `edits` need behind those of `file`, and then both metas.
///
/// `write` must write into the file that `file` reads, or into a copy of it. The transaction id
/// goes up by one.
///
/// # Errors
/// See [`Error`]. The written file is to be thrown away then.
pub fn append(file: &File, edits: &Edits, write: &mut WriteAt<'_>) -> Result<Appended, Error> {
    let old = file.meta();
    let mut appender = Appender {
        file,
        page_size: old.page_size,
        next_id: old.high_water_mark,
        loaded: 0,
        write,
        buffer: Vec::new(),
        changes: Vec::new(),
        rows_added: 0,
        rows_removed: 0,
    };
    let mut buckets = Plan::new();
    for (name, _) in edits.buckets() {
        if let Some(value) = appender.bucket(name, edits)? {
            buckets.insert(name.to_vec(), Some((u64::from(BUCKET_FLAG), value)));
        }
    }
    let root = match buckets.is_empty() {
        true => old.root,
        false => appender.tree(old.root, buckets)?,
    };
    let txid = old.txid.checked_add(1).ok_or(Error::Size)?;
    let meta =
        Meta { root, freelist: meta::NO_FREELIST, high_water_mark: appender.next_id, txid, ..*old };
    let older = Meta { txid: old.txid, ..meta };
    let (first, second) = if meta.txid.is_multiple_of(2) { (meta, older) } else { (older, meta) };
    let page_bytes = u64::from(old.page_size);
    for (id, meta) in [(0_u64, first), (1, second)] {
        let mut page = meta.encode(id);
        page.resize(usize_of(page_bytes), 0);
        (appender.write)(id.saturating_mul(page_bytes), &page)?;
    }
    let Appender { changes, rows_added, rows_removed, .. } = appender;
    Ok(Appended { meta, changes, rows_added, rows_removed })
}

/// Elements by key: a leaf's flags and value to be put, or `None` to be dropped.
type Plan = BTreeMap<Vec<u8>, Option<(u64, Vec<u8>)>>;

/// An element of a leaf, or of a branch, whose value is empty.
struct Item {
    word: u64,
    key: Vec<u8>,
    value: Vec<u8>,
}

struct Appender<'a, 'w> {
    file: &'a File,
    page_size: u32,
    next_id: u64,
    /// Pages read so far: no more than the file has, or its pages form a cycle.
    loaded: u64,
    write: &'a mut WriteAt<'w>,
    buffer: Vec<u8>,
    changes: Vec<Change>,
    rows_added: u64,
    rows_removed: u64,
}

impl Appender<'_, '_> {
    /// Makes the changes of one bucket; returns its new value, or `None` if it stays as it is.
    fn bucket(&mut self, name: &[u8], edits: &Edits) -> Result<Option<Vec<u8>>, Error> {
        let found = self.file.root().bucket(name)?;
        let mut plan = Plan::new();
        if let Some(bucket) = found.as_ref().filter(|_| edits.clears(name)) {
            let mut cursor = bucket.cursor();
            while let Some(row) = cursor.next_row()? {
                if !row.is_bucket {
                    plan.insert(row.key.to_vec(), None);
                }
            }
        }
        let planned = edits.buckets().find(|(bucket, _)| *bucket == name).map(|(_, rows)| rows);
        for (key, value) in planned.into_iter().flatten() {
            plan.insert(key.clone(), value.clone().map(|value| (0, value)));
        }
        let mut changed = Plan::new();
        for (key, new) in plan {
            let size = new.as_ref().map_or(0, |(_, value)| value.len());
            if key.is_empty() || key.len() > KEY_BYTES_MAX || size > VALUE_BYTES_MAX {
                return Err(Error::Size);
            }
            let old = match &found {
                Some(bucket) => {
                    let mut cursor = bucket.cursor();
                    cursor.seek(&key)?;
                    let row = cursor.next_row()?.filter(|row| row.key == key);
                    if row.is_some_and(|row| row.is_bucket) {
                        return Err(Error::Nesting);
                    }
                    row.map(|row| row.value.to_vec())
                }
                None => None,
            };
            let kind = match (&old, &new) {
                (None, None) => continue,
                (Some(old), Some((_, new))) if old == new => continue,
                (None, Some(_)) => ChangeKind::Added,
                (Some(_), Some(_)) => ChangeKind::Replaced,
                (Some(_), None) => ChangeKind::Removed,
            };
            let count = match kind {
                ChangeKind::Added => Some(&mut self.rows_added),
                ChangeKind::Removed => Some(&mut self.rows_removed),
                ChangeKind::Replaced => None,
            };
            if let Some(count) = count {
                *count = count.saturating_add(1);
            }
            if self.changes.len() < CHANGES_MAX {
                self.changes.push(Change { bucket: name.to_vec(), key: key.clone(), kind });
            }
            changed.insert(key, new);
        }
        if changed.is_empty() && found.is_some() {
            return Ok(None);
        }
        self.bucket_value(name, changed).map(Some)
    }

    /// Writes what a bucket needs; returns the value of its element.
    fn bucket_value(&mut self, name: &[u8], plan: Plan) -> Result<Vec<u8>, Error> {
        let mut cursor = self.file.root().cursor();
        cursor.seek(name)?;
        let row = cursor.next_row()?.filter(|row| row.key == name);
        let old = match row {
            Some(row) if !row.is_bucket => return Err(Error::Nesting),
            Some(row) => Some(row.value.to_vec()),
            None => None,
        };
        let header = match &old {
            Some(value) => BucketHeader::decode(value)?,
            None => BucketHeader { root: 0, sequence: 0 },
        };
        let items = if header.root == 0 {
            let inline = old.as_deref().and_then(|value| value.get(BUCKET_BYTES..));
            inline.map(inline_items).transpose()?.unwrap_or_default()
        } else {
            let page = self.load(header.root)?;
            if !page.is_leaf() {
                let root = self.tree(header.root, plan)?;
                return Ok(BucketHeader { root, ..header }.encode().to_vec());
            }
            page_items(&page)?
        };
        let items = merge(items, plan);
        let has_buckets = items.iter().any(|item| item.word & u64::from(BUCKET_FLAG) != 0);
        let mut node = Node::default();
        items.iter().for_each(|item| node.push(item.word, &item.key, &item.value));
        let mut value = Vec::new();
        // As bbolt has it: a small bucket without buckets in it stands inside its parent.
        if !has_buckets && node.size() <= usize_of(u64::from(self.page_size / 4)) {
            value.extend_from_slice(&BucketHeader { root: 0, ..header }.encode());
            node.encode(&mut value, 0, LEAF, 0)?;
        } else {
            let pages = self.pack(items, LEAF)?;
            let root = self.top(pages)?;
            value.extend_from_slice(&BucketHeader { root, ..header }.encode());
        }
        Ok(value)
    }

    /// Writes a tree anew where the plan changes it; returns its new root.
    fn tree(&mut self, root: u64, plan: Plan) -> Result<u64, Error> {
        let pages = self.subtree(root, plan, 0)?;
        self.top(pages)
    }

    /// Puts branches over pages until one is left.
    fn top(&mut self, mut pages: Vec<Item>) -> Result<u64, Error> {
        loop {
            match pages.as_slice() {
                [] => return self.write_node(&Node::default(), LEAF),
                [only] => return Ok(only.word),
                _ => pages = self.pack(pages, BRANCH)?,
            }
        }
    }

    /// Writes what is below a page anew; returns the pages that stand in its place.
    fn subtree(&mut self, id: u64, mut plan: Plan, depth: usize) -> Result<Vec<Item>, Error> {
        let page = self.load(id)?;
        if page.is_leaf() {
            let items = merge(page_items(&page)?, plan);
            return self.pack(items, LEAF);
        }
        if depth >= DEPTH_MAX {
            let detail = format!("page {id} is deeper than {DEPTH_MAX} levels");
            return Err(Error::Page(PageFault { code: Code::TreeDepth, page: id, detail }));
        }
        let mut children = Vec::new();
        for index in 0..page.count() {
            let element = page.branch(index)?;
            let later = match index.checked_add(1).filter(|next| *next < page.count()) {
                Some(next) => plan.split_off(page.branch(next)?.key),
                None => Plan::new(),
            };
            let here = std::mem::replace(&mut plan, later);
            if here.is_empty() {
                let key = element.key.to_vec();
                children.push(Item { word: element.child, key, value: Vec::new() });
            } else {
                children.extend(self.subtree(element.child, here, depth.saturating_add(1))?);
            }
        }
        self.pack(children, BRANCH)
    }

    /// Writes elements into as few pages as hold them.
    fn pack(&mut self, items: Vec<Item>, flags: u16) -> Result<Vec<Item>, Error> {
        let page_bytes = usize_of(u64::from(self.page_size));
        // Two children at least, or long keys would make a tree that never narrows.
        let least = if flags == BRANCH { 2 } else { 1 };
        let mut pages = Vec::new();
        let mut node = Node::default();
        for item in items {
            let is_full =
                node.size_with(&item.key, &item.value) > page_bytes || node.len() >= ELEMENTS_MAX;
            if is_full && node.len() >= least {
                pages.push(self.write_page(&node, flags)?);
                node.clear();
            }
            node.push(item.word, &item.key, &item.value);
        }
        if !node.is_empty() {
            pages.push(self.write_page(&node, flags)?);
        }
        Ok(pages)
    }

    fn write_page(&mut self, node: &Node, flags: u16) -> Result<Item, Error> {
        let word = self.write_node(node, flags)?;
        let key = node.first_key().unwrap_or_default().to_vec();
        Ok(Item { word, key, value: Vec::new() })
    }

    fn write_node(&mut self, node: &Node, flags: u16) -> Result<u64, Error> {
        let id = self.next_id;
        let overflow = node.overflow(self.page_size);
        let span = overflow.saturating_add(1);
        let overflow = u32::try_from(overflow).map_err(|_| Error::Size)?;
        let page_bytes = u64::from(self.page_size);
        self.buffer.clear();
        node.encode(&mut self.buffer, id, flags, overflow)?;
        self.buffer.resize(usize_of(span.saturating_mul(page_bytes)), 0);
        (self.write)(id.checked_mul(page_bytes).ok_or(Error::Size)?, &self.buffer)?;
        self.next_id = id.checked_add(span).ok_or(Error::Size)?;
        Ok(id)
    }

    fn load(&mut self, id: u64) -> Result<Page, Error> {
        self.loaded = self.loaded.saturating_add(1);
        // Each bucket's root is read once more, to see what it is.
        if self.loaded > self.file.page_count().saturating_mul(2) {
            let detail = "pages form a cycle".into();
            return Err(Error::Page(PageFault { code: Code::PageTwice, page: id, detail }));
        }
        self.file.page(id).map_err(Error::Page)
    }
}

fn page_items(page: &Page) -> Result<Vec<Item>, Error> {
    let item = |index| {
        let leaf = page.leaf(index)?;
        let word = u64::from(leaf.flags);
        Ok(Item { word, key: leaf.key.to_vec(), value: leaf.value.to_vec() })
    };
    (0..page.count()).map(item).collect()
}

fn inline_items(bytes: &[u8]) -> Result<Vec<Item>, Error> {
    let count = Header::decode(bytes)?.count;
    let item = |index| {
        let leaf = layout::leaf(bytes, count, index)?;
        let word = u64::from(leaf.flags);
        Ok(Item { word, key: leaf.key.to_vec(), value: leaf.value.to_vec() })
    };
    (0..count).map(item).collect()
}

/// Merges ascending elements with a plan for them.
fn merge(items: Vec<Item>, plan: Plan) -> Vec<Item> {
    let mut out = Vec::with_capacity(items.len().saturating_add(plan.len()));
    let mut plan = plan.into_iter().peekable();
    let put = |out: &mut Vec<Item>, key, new: Option<(u64, Vec<u8>)>| {
        out.extend(new.map(|(word, value)| Item { word, key, value }));
    };
    for item in items {
        while let Some((key, new)) = plan.next_if(|(key, _)| *key < item.key) {
            put(&mut out, key, new);
        }
        match plan.next_if(|(key, _)| *key == item.key) {
            Some((key, new)) => put(&mut out, key, new),
            None => out.push(item),
        }
    }
    plan.for_each(|(key, new)| put(&mut out, key, new));
    out
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;
    use crate::bolt::builder::Builder;
    use crate::bolt::overlay::Merge;
    use crate::bolt::rebuild::Rebuild;
    use crate::bolt::walk::walk;
    use crate::bolt::{At, Visit};

    type Rows = BTreeMap<Vec<u8>, BTreeMap<Vec<u8>, Vec<u8>>>;

    #[derive(Default)]
    struct Collect(Rows);

    impl Visit for Collect {
        fn bucket(&mut self, at: &At<'_>, _: u64) {
            self.0.entry(at.bucket.concat()).or_default();
        }
        fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
            let bucket = self.0.entry(at.bucket.concat()).or_default();
            assert!(bucket.insert(key.to_vec(), value.to_vec()).is_none());
        }
    }

    fn build(rows: &Rows, page_size: u32) -> Vec<u8> {
        let mut builder = Builder::new(Cursor::new(Vec::new()), page_size).unwrap();
        for (bucket, rows) in rows {
            builder.begin_bucket(bucket, 7).unwrap();
            for (key, value) in rows {
                builder.put(key, value).unwrap();
            }
            builder.end_bucket().unwrap();
        }
        builder.finish(4).unwrap().1.into_inner()
    }

    fn edit(bytes: Vec<u8>, edits: &Edits) -> (Vec<u8>, Appended) {
        let file = File::from_bytes(bytes.clone()).unwrap();
        let mut bytes = bytes;
        let appended = append(&file, edits, &mut |offset, new| {
            let end = usize::try_from(offset).unwrap() + new.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[end - new.len()..end].copy_from_slice(new);
            Ok(())
        });
        (bytes, appended.unwrap())
    }

    /// Edits in place and by rebuilding, and compares the two and the changes.
    fn check(rows: &Rows, edits: &Edits, page_size: u32) {
        let bytes = build(rows, page_size);
        let (edited, appended) = edit(bytes.clone(), edits);
        let old_pages = bytes.len();
        assert_eq!(&edited[2 * page_size as usize..old_pages], &bytes[2 * page_size as usize..]);
        let file = File::from_bytes(edited).unwrap();
        assert_eq!(file.meta().txid, 5);
        assert_eq!(*file.meta(), appended.meta);
        assert_eq!(file.source().len(), appended.meta.size_bytes());
        let mut got = Collect::default();
        let walked = walk(&file, &mut got);
        assert_eq!(walked.findings.kept(), &[]);

        let builder = Builder::new(Cursor::new(Vec::new()), page_size).unwrap();
        let mut merge = Merge::new(edits.clone(), Rebuild::new(builder));
        walk(&File::from_bytes(bytes).unwrap(), &mut merge);
        let (rebuilt, changes) = merge.finish();
        let (_, out) = rebuilt.finish(9).unwrap();
        let mut want = Collect::default();
        walk(&File::from_bytes(out.into_inner()).unwrap(), &mut want);
        assert_eq!(got.0, want.0);
        assert_eq!(appended.changes, changes);
    }

    fn key(number: u16) -> Vec<u8> {
        let [a, b] = number.to_be_bytes();
        vec![b'k', a, b]
    }

    #[test]
    fn a_large_tree_changes_on_the_way_to_the_row_only() {
        let rows = (0..5000).map(|n| (key(n), vec![7; 100])).collect();
        let rows = Rows::from([(b"key".to_vec(), rows), (b"meta".to_vec(), BTreeMap::new())]);
        let mut edits = Edits::default();
        edits.put(b"key", b"z", b"last");
        edits.put(b"meta", b"a", b"b");
        let bytes = build(&rows, 4096);
        let (_, appended) = edit(bytes.clone(), &edits);
        let new = appended.meta.high_water_mark - (bytes.len() as u64 / 4096);
        assert!(new <= 4, "leaf, branch, root leaf: {new} pages");
        check(&rows, &edits, 4096);
    }

    #[test]
    fn buckets_grow_shrink_and_appear() {
        let many: BTreeMap<_, _> = (0..300).map(|n| (key(n), vec![1; 40])).collect();
        let few: BTreeMap<_, _> = (0..3).map(|n| (key(n), vec![2; 4])).collect();
        let rows = Rows::from([
            (b"few".to_vec(), few.clone()),
            (b"gone".to_vec(), many.clone()),
            (b"many".to_vec(), many),
        ]);
        let mut edits = Edits::default();
        for n in 0..300 {
            edits.put(b"few", &key(n), &[3; 30]);
            edits.drop_row(b"many", &key(n));
        }
        edits.clear(b"gone");
        edits.put(b"gone", b"x", b"y");
        edits.clear(b"made");
        edits.put(b"also made", b"big", &[9; 20_000]);
        edits.put(b"many", &key(9), b"kept");
        check(&rows, &edits, 1024);
        check(&rows, &Edits::default(), 4096);
    }

    #[test]
    fn impossible_rows_and_names_are_refused() {
        let rows = Rows::from([(b"a".to_vec(), BTreeMap::new())]);
        let file = File::from_bytes(build(&rows, 1024)).unwrap();
        let mut edits = Edits::default();
        edits.put(b"a", b"", b"x");
        let refused = append(&file, &edits, &mut |_, _| Ok(()));
        assert!(matches!(refused, Err(Error::Size)));
        let mut edits = Edits::default();
        edits.put(b"a", b"b", b"x");
        let failed = append(&file, &edits, &mut |_, _| Err(io::ErrorKind::StorageFull.into()));
        assert!(matches!(failed, Err(Error::Io(_))));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        #[test]
        fn any_plan_comes_out_as_a_rebuild_does(
            old in proptest::collection::vec((0..3_u8, 0..600_u16, 0..300_usize), 0..700),
            new in proptest::collection::vec(
                (0..4_u8, 0..700_u16, 0..400_usize, any::<bool>()),
                0..60,
            ),
            clear in proptest::option::of(0..4_u8),
        ) {
            let mut rows = Rows::new();
            for (bucket, number, size) in old {
                let row = (key(number), vec![1; size]);
                rows.entry(vec![b'a' + bucket]).or_default().extend([row]);
            }
            let mut edits = Edits::default();
            for (bucket, number, size, put) in new {
                let value = put.then(|| vec![2; size]);
                edits.plan(&[b'a' + bucket], &key(number), value);
            }
            if let Some(bucket) = clear {
                edits.clear(&[b'a' + bucket]);
            }
            check(&rows, &edits, 1024);
        }

        #[test]
        fn damage_never_panics(
            at in any::<prop::sample::Index>(),
            byte in any::<u8>(),
        ) {
            let many: BTreeMap<_, _> = (0..300).map(|n| (key(n), vec![1; 40])).collect();
            let mut bytes = build(&Rows::from([(b"many".to_vec(), many)]), 1024);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            let mut edits = Edits::default();
            edits.clear(b"many");
            edits.put(b"many", b"x", b"y");
            if let Ok(file) = File::from_bytes(bytes) {
                let _ = append(&file, &edits, &mut |_, _| Ok(())).is_ok();
            }
        }
    }
}
