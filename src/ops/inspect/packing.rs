//! How large a file would be that holds the same rows and nothing else: an estimate of what
//! `defrag` makes.
//!
//! It fills pages in order as bbolt splits them, to 90 per cent and with two rows at least, and
//! puts a small bucket into its parent's page.
//!
//! Source: etcd `backend.defragdb` (fill percent 0.9, 3.4 to 3.7); bbolt `node.splitIndex`,
//! `bucket.inlineable` (1.4.3).

use crate::format::page::{BUCKET_BYTES, ELEMENT_BYTES, HEADER_BYTES};
use crate::format::u64_of;

/// Rows of one bucket, laid out.
#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    /// Pages that are full.
    pages: u64,
    /// Bytes and rows of the page that is being filled.
    bytes: u64,
    rows: u64,
    /// Bytes of all names of first rows: what branch pages hold.
    branch_bytes: u64,
}

#[derive(Debug)]
pub(super) struct Packing {
    page: u64,
    root: Layout,
    open: Layout,
    /// Pages of the buckets that are done.
    pages: u64,
    name_bytes: u64,
}

fn plus(a: u64, b: usize) -> u64 {
    a.saturating_add(u64_of(b))
}

impl Layout {
    fn add(&mut self, page: u64, key_bytes: u64, value_bytes: u64) {
        let row = plus(key_bytes.saturating_add(value_bytes), ELEMENT_BYTES);
        let full = self.bytes.saturating_add(row) > page / 10 * 9;
        if self.rows >= 2 && full {
            self.close(page);
        }
        if self.rows == 0 {
            self.bytes = u64_of(HEADER_BYTES);
            self.branch_bytes = plus(self.branch_bytes.saturating_add(key_bytes), ELEMENT_BYTES);
        }
        self.rows = self.rows.saturating_add(1);
        self.bytes = self.bytes.saturating_add(row);
    }

    fn close(&mut self, page: u64) {
        self.pages = self.pages.saturating_add(self.bytes.div_ceil(page).max(1));
        (self.rows, self.bytes) = (0, 0);
    }

    /// Leaf pages, and the branch pages above more than one of them.
    fn total(mut self, page: u64) -> u64 {
        self.close(page);
        let branches = if self.pages > 1 { self.branch_bytes.div_ceil(page / 10 * 9) } else { 0 };
        self.pages.saturating_add(branches)
    }
}

impl Packing {
    pub(super) fn new(page_bytes: u32) -> Self {
        let (root, open) = (Layout::default(), Layout::default());
        Self { page: u64::from(page_bytes).max(16), root, open, pages: 0, name_bytes: 0 }
    }

    pub(super) fn bucket(&mut self, name: &[u8]) {
        self.end_bucket();
        self.name_bytes = u64_of(name.len());
    }

    pub(super) fn row(&mut self, bytes: u64, key_bytes: u64) {
        self.open.add(self.page, key_bytes, bytes.saturating_sub(key_bytes));
    }

    fn end_bucket(&mut self) {
        let open = std::mem::take(&mut self.open);
        if self.name_bytes == 0 {
            return;
        }
        let header = u64_of(BUCKET_BYTES);
        if open.pages == 0 && open.bytes <= self.page / 4 {
            let inline = open.bytes.max(u64_of(HEADER_BYTES));
            self.root.add(self.page, self.name_bytes, header.saturating_add(inline));
        } else {
            self.root.add(self.page, self.name_bytes, header);
            self.pages = self.pages.saturating_add(open.total(self.page));
        }
    }

    /// Returns the file's size in bytes; two metas, a freelist, and one page that the last commit
    /// left are in it.
    pub(super) fn finish(mut self) -> u64 {
        self.end_bucket();
        let pages = self.pages.saturating_add(self.root.total(self.page)).saturating_add(4);
        pages.saturating_mul(self.page)
    }
}
