//! One branch or leaf page in memory, read with its bounds checked.

use super::ahead::Ahead;
use super::{File, PAGE_BYTES_MAX};
use crate::format::finding::Code;
use crate::format::page::{self, Branch, HEADER_BYTES, Header, Leaf};
use crate::format::{Error, u64_of, usize_of};

/// Why a page cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageFault {
    /// The kind of finding that this is.
    pub code: Code,
    /// The page id by which it was reached.
    pub page: u64,
    /// What was seen.
    pub detail: String,
}

/// A branch or leaf page, overflow included.
#[derive(Debug)]
pub struct Page {
    id: u64,
    offset: u64,
    header: Header,
    bytes: Vec<u8>,
}

impl Page {
    /// Reads a branch or leaf. `admit` hears how many pages a page with overflow takes, when
    /// only the first one is read.
    pub(super) fn read(
        file: &File,
        id: u64,
        ahead: &mut Ahead<'_>,
        admit: &mut dyn FnMut(u64) -> Result<(), PageFault>,
    ) -> Result<Self, PageFault> {
        let page = read_any(file, id, ahead, admit)?;
        let header = page.header;
        let fault = |code, detail| Err(PageFault { code, page: id, detail });
        if header.flags != page::BRANCH && header.flags != page::LEAF {
            let detail =
                format!("a {} page stands where a branch or leaf is wanted", header.type_name());
            return fault(Code::PageType, detail);
        }
        if header.flags == page::BRANCH && header.count == 0 {
            return fault(Code::BranchEmpty, "branch page without elements".into());
        }
        Ok(page)
    }

    /// The page's id.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Byte offset of the page in the file.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes in memory, overflow included.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Gives up the page for its memory.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Number of elements.
    #[must_use]
    pub fn count(&self) -> u16 {
        self.header.count
    }

    /// Number of pages that it takes.
    #[must_use]
    pub fn span(&self) -> u64 {
        u64::from(self.header.overflow).saturating_add(1)
    }

    /// Tells a leaf from a branch.
    #[must_use]
    pub fn is_leaf(&self) -> bool {
        self.header.flags == page::LEAF
    }

    /// Decodes element `index` of a leaf.
    ///
    /// # Errors
    /// It lies outside the page.
    pub fn leaf(&self, index: u16) -> Result<Leaf<'_>, Error> {
        page::leaf(&self.bytes, self.header.count, index)
    }

    /// Decodes element `index` of a branch.
    ///
    /// # Errors
    /// It lies outside the page.
    pub fn branch(&self, index: u16) -> Result<Branch<'_>, Error> {
        page::branch(&self.bytes, self.header.count, index)
    }
}

/// Reads a page of any type, its self-id and extent checked.
pub(super) fn read_any(
    file: &File,
    id: u64,
    ahead: &mut Ahead<'_>,
    admit: &mut dyn FnMut(u64) -> Result<(), PageFault>,
) -> Result<Page, PageFault> {
    let fault = |code, detail| PageFault { code, page: id, detail };
    let (mark, size) = (file.meta.high_water_mark, u64::from(file.meta.page_size));
    if id < 2 {
        let detail = format!("page {id} is a meta page and cannot be part of a tree");
        return Err(fault(Code::PageType, detail));
    }
    if id >= mark {
        let detail = format!("page {id} is not below the high-water mark {mark}");
        return Err(fault(Code::PageBeyondMark, detail));
    }
    let offset = id.saturating_mul(size);
    let cut = |need: u64| {
        let detail = format!(
            "page {id} needs bytes {offset}..{} but the file ends at {}",
            offset.saturating_add(need),
            file.source.len()
        );
        fault(Code::PageBeyondFile, detail)
    };
    if offset.saturating_add(size) > file.source.len() {
        return Err(cut(size));
    }
    let unreadable = |error: std::io::Error| fault(Code::PageRead, format!("page {id}: {error}"));
    let mut bytes = ahead.buffer();
    ahead.read(offset, usize_of(size), &mut bytes).map_err(unreadable)?;
    let header =
        Header::decode(&bytes).map_err(|error| fault(Code::PageRead, error.to_string()))?;
    if header.id != id {
        let blank = bytes.iter().all(|byte| *byte == 0);
        let detail = if blank {
            format!("page {id} is all zeroes")
        } else {
            format!("page {id} says that it is page {}", header.id)
        };
        return Err(fault(Code::PageSelfId, detail));
    }
    if header.overflow > 0 {
        let span = u64::from(header.overflow).saturating_add(1);
        let total = span.saturating_mul(size);
        if id.saturating_add(span) > mark {
            let detail = format!("page {id} takes {span} pages, past the high-water mark {mark}");
            return Err(fault(Code::PageBeyondFile, detail));
        }
        if offset.saturating_add(total) > file.source.len() {
            return Err(cut(total));
        }
        if total > PAGE_BYTES_MAX {
            let detail = format!("page {id} takes {total} bytes, more than {PAGE_BYTES_MAX}");
            return Err(fault(Code::PageHuge, detail));
        }
        admit(span)?;
        let rest = usize_of(total.saturating_sub(size));
        bytes.reserve_exact(rest);
        ahead.read(offset.saturating_add(size), rest, &mut bytes).map_err(unreadable)?;
    }
    debug_assert!(u64_of(bytes.len()) >= u64_of(HEADER_BYTES));
    Ok(Page { id, offset, header, bytes })
}
