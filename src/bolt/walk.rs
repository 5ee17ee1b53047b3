//! One pass over every page and every row: the check, with a visitor that sees the rows.
//!
//! The walk goes depth first from the root, in key order, so a visitor gets buckets and keys in
//! the order in which bbolt would iterate them. It goes on behind damage and says which keys are
//! lost there. What it finds is more than `bbolt check` does: value bounds, overflow past the end,
//! wrong self-ids and types (at which bbolt panics), inline buckets, cycles, meta pages.
//!
//! Bounds: a page is entered once (a second reference is a finding), so work is linear; two bits a
//! page; at most [`HELD_BYTES_MAX`] of pages are kept while their children are visited, the rest
//! are read again.

use std::rc::Rc;

use super::ahead::Ahead;
use super::page::{Page, PageFault, read_any};
use super::{DEPTH_MAX, File, HELD_BYTES_MAX};
use crate::format::finding::{
    Code, Finding, Findings, KeyRange, Place, bytes_text, short_key, short_path,
};
use crate::format::page::{
    BUCKET_BYTES, BUCKET_FLAG, BucketHeader, HEADER_BYTES, Header, KEY_BYTES_MAX, LEAF,
};
use crate::format::{freelist, meta, page as layout, u64_of, usize_of};

/// Where a walk is when it reports something.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// Bucket names from the top level down.
    pub bucket: &'a [Vec<u8>],
    /// Id of the page that holds the entry.
    pub page: u64,
    /// Byte offset of the entry's key in the file.
    pub offset: u64,
}

/// Receives what a walk meets, in key order.
pub trait Visit {
    /// A bucket begins; entries that follow are in it until the next bucket begins or ends.
    fn bucket(&mut self, at: &At<'_>, sequence: u64);

    /// A pair that is not a bucket.
    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]);

    /// Called after each page with the number of pages entered so far; `false` stops the walk.
    fn page(&mut self, entered: u64) -> bool {
        let _ = entered;
        true
    }
}

impl<V: Visit + ?Sized> Visit for &mut V {
    fn bucket(&mut self, at: &At<'_>, sequence: u64) {
        (**self).bucket(at, sequence);
    }
    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        (**self).entry(at, key, value);
    }
    fn page(&mut self, entered: u64) -> bool {
        (**self).page(entered)
    }
}

/// A visitor that looks at nothing: for a check of the pages alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ignore;

impl Visit for Ignore {
    fn bucket(&mut self, _: &At<'_>, _: u64) {}
    fn entry(&mut self, _: &At<'_>, _: &[u8], _: &[u8]) {}
}

/// Whole pages that hold no rows, each counted once, so that with the tree's, the freelist's and
/// the metas they are all pages below the high-water mark that the file has whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Others {
    /// Free, and not in use in spite of it.
    pub free: u64,
    /// Neither in use nor free.
    pub leaked: u64,
    /// Referenced, and no page of a tree.
    pub unusable: u64,
}

/// What a walk counted and found.
#[derive(Debug, Default)]
pub struct Walk {
    /// Findings in the order of the walk.
    pub findings: Findings,
    /// Branch pages entered.
    pub branch_pages: u64,
    /// Leaf pages entered.
    pub leaf_pages: u64,
    /// Pages that belong to a larger one before them.
    pub overflow_pages: u64,
    /// Those of them that belong to a branch.
    pub branch_overflow_pages: u64,
    /// Pages that hold nothing: from the freelist, or those that the tree does not reach.
    pub free_pages: u64,
    /// Pages of the freelist itself.
    pub freelist_pages: u64,
    /// How every other page is used.
    pub others: Others,
    /// Buckets, inline ones included.
    pub buckets: u64,
    /// Buckets stored inside their parent's page.
    pub inline_buckets: u64,
    /// Rows that are not buckets.
    pub entries: u64,
    /// Pages from the root to the deepest leaf.
    pub depth: usize,
    /// The visitor asked to stop.
    pub stopped: bool,
}

impl Walk {
    /// Tells whether every row could be read: there may be damage, but to the freelist only.
    #[must_use]
    pub fn tree_is_whole(&self) -> bool {
        !self.stopped && self.findings.errors().all(Code::is_freelist)
    }
}

/// Walks and checks a whole file.
pub fn walk(file: &File, visitor: &mut dyn Visit) -> Walk {
    walk_marking(file, visitor).0
}

/// Walks as [`walk`] does; also returns which pages are in use, those of the freelist among them.
pub(super) fn walk_marking(file: &File, visitor: &mut dyn Visit) -> (Walk, Bits) {
    let pages = usize_of(file.page_count());
    let mut walker = Walker {
        file,
        ahead: Ahead::new(&file.source),
        visitor,
        out: Walk::default(),
        reached: Bits::new(pages),
        freed: Bits::new(pages),
        frames: Vec::new(),
        bucket: Vec::new(),
        held_bytes: 0,
        read_again_bytes: 0,
        entered: 0,
    };
    for finding in file.check_metas() {
        walker.out.findings.push(finding);
    }
    walker.read_freelist();
    walker.descend(file.meta.root, None, None, false);
    walker.run();
    walker.cover();
    (walker.out, walker.reached)
}

type Bound = Option<Rc<[u8]>>;

struct Frame {
    id: u64,
    /// Given back when [`HELD_BYTES_MAX`] is used up, and read again when its turn comes.
    page: Option<Page>,
    index: u16,
    low: Bound,
    high: Bound,
    previous: Bound,
    /// Bytes of keys and values so far: they do not overlap in a sound page, so there are no more
    /// of them than the page has, and no byte is looked at twice.
    used: u64,
    /// The frame is a bucket's root: its name is dropped when it ends.
    ends_bucket: bool,
}

struct Walker<'a> {
    file: &'a File,
    ahead: Ahead<'a>,
    visitor: &'a mut dyn Visit,
    out: Walk,
    reached: Bits,
    freed: Bits,
    frames: Vec<Frame>,
    bucket: Vec<Vec<u8>>,
    held_bytes: u64,
    read_again_bytes: u64,
    entered: u64,
}

impl Walker<'_> {
    fn run(&mut self) {
        while let Some(mut frame) = self.frames.pop() {
            let page = match frame.page.take() {
                Some(page) => {
                    self.held_bytes = self.held_bytes.saturating_sub(u64_of(page.bytes().len()));
                    page
                }
                None => match self.read_again(frame.id) {
                    Ok(page) => page,
                    Err(fault) => {
                        self.fault(fault, frame.previous.clone(), frame.high.clone());
                        self.leave(&frame);
                        continue;
                    }
                },
            };
            if page.is_leaf() {
                self.leaf(frame, page);
            } else {
                self.branch(frame, page);
            }
            if self.out.stopped {
                return;
            }
        }
    }

    /// Reads a page that was given back. Sound files need this for few pages; the sum is bounded,
    /// or a large page with many children would be read once for each of them.
    fn read_again(&mut self, id: u64) -> Result<Page, PageFault> {
        let page = Page::read(self.file, id, &mut self.ahead, &mut |_| Ok(()))?;
        let bytes = u64_of(page.bytes().len());
        self.read_again_bytes = self.read_again_bytes.saturating_add(bytes);
        if self.read_again_bytes > self.file.source.len().saturating_mul(2) {
            let detail =
                format!("page {id} is too large to be read again for each of its children");
            return Err(PageFault { code: Code::PageHuge, page: id, detail });
        }
        if !self.visitor.page(self.entered) {
            self.out.stopped = true;
        }
        Ok(page)
    }

    /// Enters a page, or says why not. `ends_bucket`: it is the root of the current bucket.
    fn descend(&mut self, id: u64, low: Bound, high: Bound, ends_bucket: bool) {
        let abandoned = |walker: &mut Self| {
            if ends_bucket {
                walker.bucket.pop();
            }
        };
        if self.reached.get(id) {
            let detail =
                format!("page {id} is referenced more than once; it is read the first time only");
            let fault = PageFault { code: Code::PageTwice, page: id, detail };
            self.fault(fault, low, high);
            return abandoned(self);
        }
        if self.frames.len() >= DEPTH_MAX {
            let detail = format!("page {id} is deeper than {DEPTH_MAX} levels");
            self.fault(PageFault { code: Code::TreeDepth, page: id, detail }, low, high);
            return abandoned(self);
        }
        let reached = &self.reached;
        let mut unshared = |span| unshared(reached, id, span);
        let page = match Page::read(self.file, id, &mut self.ahead, &mut unshared) {
            Ok(page) => page,
            Err(fault) => {
                // The page is accounted for, damaged as it is, and not read again.
                self.reached.set(id);
                self.fault(fault, low, high);
                return abandoned(self);
            }
        };
        let span = page.span();
        for part in id..id.saturating_add(span) {
            self.reached.set(part);
            if self.freed.get(part) {
                let detail = format!("page {part} is in use and in the freelist");
                self.push(PageFault { code: Code::PageFreed, page: part, detail });
            }
        }
        self.entered = self.entered.saturating_add(1);
        let overflow = span.saturating_sub(1);
        self.out.overflow_pages = self.out.overflow_pages.saturating_add(overflow);
        if !page.is_leaf() {
            let pages = &mut self.out.branch_overflow_pages;
            *pages = pages.saturating_add(overflow);
        }
        self.out.depth = self.out.depth.max(self.frames.len().saturating_add(1));
        let kind =
            if page.is_leaf() { &mut self.out.leaf_pages } else { &mut self.out.branch_pages };
        *kind = kind.saturating_add(1);
        if !self.visitor.page(self.entered) {
            self.out.stopped = true;
        }
        let frame =
            Frame { id, page: None, index: 0, low, high, previous: None, used: 0, ends_bucket };
        self.keep(frame, page);
    }

    fn keep(&mut self, mut frame: Frame, page: Page) {
        let bytes = u64_of(page.bytes().len());
        let room = HELD_BYTES_MAX.max(u64::from(self.file.meta.page_size).saturating_mul(4));
        if self.held_bytes.saturating_add(bytes) <= room || self.frames.is_empty() {
            self.held_bytes = self.held_bytes.saturating_add(bytes);
            frame.page = Some(page);
        }
        self.frames.push(frame);
    }

    fn leave(&mut self, frame: &Frame) {
        if frame.ends_bucket {
            self.bucket.pop();
        }
    }

    fn branch(&mut self, mut frame: Frame, page: Page) {
        let index = frame.index;
        if index >= page.count() {
            return self.leave(&frame);
        }
        let element = match page.branch(index) {
            Ok(element) => element,
            Err(error) => {
                let lost = (frame.previous.clone().or(frame.low.clone()), frame.high.clone());
                self.element_fault(&frame, &page, error, lost);
                // Each element stands for itself, so the ones after a bad one are still tried.
                frame.index = index.saturating_add(1);
                return self.keep(frame, page);
            }
        };
        frame.index = index.saturating_add(1);
        frame.used = frame.used.saturating_add(u64_of(element.key.len()));
        if frame.used > u64_of(page.bytes().len()) {
            return self.overlap(&frame, &page, frame.previous.clone());
        }
        let key: Rc<[u8]> = element.key.into();
        self.check_key(&frame, &page, index, (frame.previous.as_deref(), &key), page.offset());
        let next = index.checked_add(1).filter(|next| *next < page.count());
        let next = next.and_then(|next| page.branch(next).ok());
        let high = next.map(|next| next.key.into()).or_else(|| frame.high.clone());
        frame.previous = Some(key.clone());
        let child = element.child;
        self.keep(frame, page);
        self.descend(child, Some(key), high, false);
    }

    fn leaf(&mut self, mut frame: Frame, page: Page) {
        let before = frame.previous.take();
        let mut previous: Option<&[u8]> = before.as_deref();
        let mut next_good: Option<u16> = None;
        for index in frame.index..page.count() {
            let element = match page.leaf(index) {
                Ok(element) => element,
                Err(error) => {
                    // Looking for the next good key costs the rest of the page, so it is kept for
                    // the other bad elements before it: 65,535 of them must not cost their square.
                    if next_good.is_none_or(|good| good <= index) {
                        let mut rest = index.saturating_add(1)..page.count();
                        let good = rest.find(|next| page.leaf(*next).is_ok());
                        next_good = Some(good.unwrap_or(u16::MAX));
                    }
                    let to = next_good.filter(|good| *good < page.count());
                    let to = to.and_then(|good| page.leaf(good).ok());
                    let to = to.map(|good| good.key.into()).or_else(|| frame.high.clone());
                    let from = previous.map(Rc::from).or_else(|| frame.low.clone());
                    frame.index = index;
                    self.element_fault(&frame, &page, error, (from, to));
                    continue;
                }
            };
            let offset = page.offset().saturating_add(u64_of(element.key_offset));
            let bytes = element.key.len().saturating_add(element.value.len());
            frame.used = frame.used.saturating_add(u64_of(bytes));
            if frame.used > u64_of(page.bytes().len()) {
                frame.index = index;
                return self.overlap(&frame, &page, previous.map(Rc::from));
            }
            self.check_key(&frame, &page, index, (previous, element.key), offset);
            previous = Some(element.key);
            if element.flags & !BUCKET_FLAG != 0 {
                let detail = format!("element {index} has flags 0x{:x}", element.flags);
                let fault = PageFault { code: Code::ElementFlags, page: page.id(), detail };
                self.push_at(fault, offset, Some(element.key));
            }
            if element.flags & BUCKET_FLAG == 0 {
                self.out.entries = self.out.entries.saturating_add(1);
                let at = At { bucket: &self.bucket, page: page.id(), offset };
                self.visitor.entry(&at, element.key, element.value);
                continue;
            }
            let (name, value) = (element.key.to_vec(), element.value);
            let value_offset = offset.saturating_add(u64_of(name.len()));
            if let Some(root) = self.begin_bucket(&page, name, value, value_offset) {
                frame.index = index.saturating_add(1);
                frame.previous = previous.map(Rc::from);
                self.keep(frame, page);
                return self.descend(root, None, None, true);
            }
        }
        self.leave(&frame);
        self.ahead.give_back(page.into_bytes());
    }

    /// Begins a bucket; an inline one is done at once, of another the root page is returned.
    fn begin_bucket(
        &mut self,
        page: &Page,
        name: Vec<u8>,
        value: &[u8],
        offset: u64,
    ) -> Option<u64> {
        self.out.buckets = self.out.buckets.saturating_add(1);
        self.bucket.push(name);
        let header = match BucketHeader::decode(value) {
            Ok(header) => header,
            Err(error) => {
                let detail = format!("bucket value of {} bytes: {error}", value.len());
                let fault = PageFault { code: Code::BucketHeader, page: page.id(), detail };
                self.fault(fault, None, None);
                self.bucket.pop();
                return None;
            }
        };
        let at = At { bucket: &self.bucket, page: page.id(), offset };
        self.visitor.bucket(&at, header.sequence);
        if header.root != 0 {
            return Some(header.root);
        }
        self.out.inline_buckets = self.out.inline_buckets.saturating_add(1);
        let inline = value.get(BUCKET_BYTES..).unwrap_or_default();
        self.inline(page.id(), inline, offset.saturating_add(u64_of(BUCKET_BYTES)));
        self.bucket.pop();
        None
    }

    fn inline(&mut self, page: u64, bytes: &[u8], offset: u64) {
        let fault = |detail: String| PageFault { code: Code::InlineBucket, page, detail };
        let header = match Header::decode(bytes) {
            Ok(header) if header.flags == LEAF => header,
            Ok(header) => {
                let detail = format!("inline page is of type {}", header.type_name());
                return self.fault(fault(detail), None, None);
            }
            Err(error) => return self.fault(fault(error.to_string()), None, None),
        };
        let table = usize::from(header.count).saturating_mul(layout::ELEMENT_BYTES);
        if bytes.len() < HEADER_BYTES.saturating_add(table) {
            let detail = format!("{} elements do not fit in {} bytes", header.count, bytes.len());
            return self.fault(fault(detail), None, None);
        }
        if header.id != 0 || header.overflow != 0 {
            let detail =
                format!("inline page has id {} and overflow {}", header.id, header.overflow);
            self.push_at(fault(detail), offset, None);
        }
        let mut previous: Option<&[u8]> = None;
        let mut used = 0_usize;
        for index in 0..header.count {
            let element = match layout::leaf(bytes, header.count, index) {
                Ok(element) => element,
                Err(error) => {
                    let detail = format!("inline element {index}: {error}");
                    self.fault(fault(detail), previous.map(Rc::from), None);
                    continue;
                }
            };
            used = used.saturating_add(element.key.len()).saturating_add(element.value.len());
            if used > bytes.len() {
                let detail = format!("from inline element {index} on, keys and values overlap");
                return self.fault(fault(detail), previous.map(Rc::from), None);
            }
            let at_key = offset.saturating_add(u64_of(element.key_offset));
            if element.flags != 0 {
                let detail = format!("inline element {index} has flags 0x{:x}", element.flags);
                self.push_at(fault(detail), at_key, Some(element.key));
                continue;
            }
            if previous.is_some_and(|previous| previous >= element.key) {
                let detail = format!("inline element {index} does not ascend");
                let fault = PageFault { code: Code::KeyOrder, page, detail };
                self.push_at(fault, at_key, Some(element.key));
            }
            previous = Some(element.key);
            self.check_key_size(page, at_key, element.key);
            self.out.entries = self.out.entries.saturating_add(1);
            let at = At { bucket: &self.bucket, page, offset: at_key };
            self.visitor.entry(&at, element.key, element.value);
        }
    }

    fn check_key(
        &mut self,
        frame: &Frame,
        page: &Page,
        index: u16,
        (previous, key): (Option<&[u8]>, &[u8]),
        offset: u64,
    ) {
        // An empty first branch key is what a writer leaves of a stale one; in a leaf it is damage.
        if page.is_leaf() || index > 0 {
            self.check_key_size(page.id(), offset, key);
        }
        let said = |what: &str, other: &[u8]| {
            format!("element {index}, key {}, is {what} {}", bytes_text(key), bytes_text(other))
        };
        let found = if let Some(previous) = previous.filter(|previous| *previous >= key) {
            Some((Code::KeyOrder, said("not above the one before it,", previous)))
        } else if let Some(low) = frame.low.as_deref().filter(|low| index == 0 && key < *low) {
            Some((Code::KeyBelowParent, said("below the branch key that leads here,", low)))
        } else {
            let high = frame.high.as_deref().filter(|high| key >= *high);
            high.map(|high| (Code::KeyAboveNext, said("not below the next branch key,", high)))
        };
        if let Some((code, detail)) = found {
            self.push_at(PageFault { code, page: page.id(), detail }, offset, Some(key));
        }
    }

    fn check_key_size(&mut self, page: u64, offset: u64, key: &[u8]) {
        if key.is_empty() {
            let detail = format!("a key in page {page} is empty");
            self.push_at(PageFault { code: Code::KeyEmpty, page, detail }, offset, None);
        }
        if key.len() > KEY_BYTES_MAX {
            let detail = format!("a key in page {page} has {} bytes", key.len());
            self.push_at(PageFault { code: Code::KeyLong, page, detail }, offset, Some(key));
        }
    }

    fn read_freelist(&mut self) {
        let id = self.file.meta.freelist;
        if id == meta::NO_FREELIST {
            return;
        }
        let fault = |detail| PageFault { code: Code::FreelistUnreadable, page: id, detail };
        let page = match read_any(self.file, id, &mut self.ahead, &mut |_| Ok(())) {
            Ok(page) => page,
            Err(error) => return self.push(fault(error.detail)),
        };
        // A page of another kind is not claimed for the freelist: the tree may have it.
        let ids = match freelist::decode(page.bytes()) {
            Ok(ids) => ids,
            Err(error) => return self.push(fault(error.to_string())),
        };
        for part in id..id.saturating_add(page.span()) {
            self.reached.set(part);
        }
        self.out.freelist_pages = page.span();
        for free in ids {
            if free < 2 || free >= self.file.meta.high_water_mark {
                let detail = format!("the freelist names page {free}, which cannot be free");
                self.push(PageFault { code: Code::FreelistBounds, page: id, detail });
            } else if self.freed.get(free) {
                let detail = format!("page {free} is in the freelist more than once");
                self.push(PageFault { code: Code::FreelistTwice, page: free, detail });
            } else {
                self.freed.set(free);
                self.out.free_pages = self.out.free_pages.saturating_add(1);
                if self.reached.get(free) {
                    let detail = format!("page {free} holds the freelist and is in it");
                    self.push(PageFault { code: Code::PageFreed, page: free, detail });
                }
            }
        }
    }

    /// Says which pages are neither in use nor free, a run of them at a time.
    fn cover(&mut self) {
        if self.out.stopped {
            return;
        }
        let end = self.file.page_count();
        let size = u64::from(self.file.meta.page_size);
        let whole = self.file.source.len().checked_div(size).unwrap_or(0);
        let stored = self.file.meta.freelist != meta::NO_FREELIST;
        let mut run: Option<u64> = None;
        let mut reached = 0_u64;
        for id in 2..=end {
            let (is_reached, is_freed) = (self.reached.get(id), self.freed.get(id));
            let loose = id < end && !is_reached && !is_freed;
            if id < end.min(whole) {
                let others = &mut self.out.others;
                let count = match (is_reached, is_freed || !stored) {
                    (true, _) => &mut reached,
                    (false, true) => &mut others.free,
                    (false, false) => &mut others.leaked,
                };
                *count = count.saturating_add(1);
            }
            if loose && !stored {
                self.out.free_pages = self.out.free_pages.saturating_add(1);
                continue;
            }
            match (loose, run) {
                (true, None) => run = Some(id),
                (false, Some(first)) => {
                    run = None;
                    let last = id.saturating_sub(1);
                    let detail = if first == last {
                        format!("page {first} is neither in use nor in the freelist")
                    } else {
                        format!("pages {first} to {last} are neither in use nor in the freelist")
                    };
                    self.push(PageFault { code: Code::PageLeaked, page: first, detail });
                }
                _ => {}
            }
        }
        let used = [
            self.out.branch_pages,
            self.out.leaf_pages,
            self.out.overflow_pages,
            self.out.freelist_pages,
        ];
        let used = used.into_iter().fold(0, u64::saturating_add);
        self.out.others.unusable = reached.saturating_sub(used);
    }

    fn place(&self, page: u64) -> Place {
        if self.out.findings.is_full() {
            return Place::default();
        }
        let mut path: Vec<u64> = self.frames.iter().map(|frame| frame.id).collect();
        if path.last() != Some(&page) {
            path.push(page);
        }
        let size = u64::from(self.file.meta.page_size);
        Place {
            page: Some(page),
            offset: page.checked_mul(size).filter(|offset| *offset < self.file.source.len()),
            path,
            bucket: short_path(&self.bucket),
            ..Place::default()
        }
    }

    /// Reports a page that cannot be entered, and the keys that are lost with it.
    fn fault(&mut self, fault: PageFault, from: Bound, to: Bound) {
        let place = self.place(fault.page);
        let lost = KeyRange {
            bucket: short_path(&self.bucket),
            from: from.map(|key| short_key(&key)),
            to: to.map(|key| short_key(&key)),
        };
        self.out.findings.push(Finding::new(fault.code, place, fault.detail).losing(lost));
    }

    /// Ends a page whose elements share bytes.
    fn overlap(&mut self, frame: &Frame, page: &Page, previous: Bound) {
        let from = previous.or_else(|| frame.low.clone());
        let id = page.id();
        let detail =
            format!("from element {} on, keys and values overlap in page {id}", frame.index);
        let fault = PageFault { code: Code::ElementBounds, page: id, detail };
        self.fault(fault, from, frame.high.clone());
        self.leave(frame);
    }

    fn element_fault(
        &mut self,
        frame: &Frame,
        page: &Page,
        error: crate::format::Error,
        (from, to): (Bound, Bound),
    ) {
        let detail = format!("element {}: {error} of page {}", frame.index, page.id());
        self.fault(PageFault { code: Code::ElementBounds, page: page.id(), detail }, from, to);
    }

    /// Reports a defect that has no place in the tree.
    fn push(&mut self, fault: PageFault) {
        let size = u64::from(self.file.meta.page_size);
        let offset = fault.page.checked_mul(size).filter(|at| *at < self.file.source.len());
        let place = Place { page: Some(fault.page), offset, ..Place::default() };
        self.out.findings.push(Finding::new(fault.code, place, fault.detail));
    }

    fn push_at(&mut self, fault: PageFault, offset: u64, key: Option<&[u8]>) {
        let mut place = self.place(fault.page);
        place.offset = Some(offset);
        place.key = key.map(short_key);
        self.out.findings.push(Finding::new(fault.code, place, fault.detail));
    }
}

/// Refuses a page of which any part was reached before; asked before its overflow is read, so
/// that no byte is read twice on the way down.
fn unshared(reached: &Bits, id: u64, span: u64) -> Result<(), PageFault> {
    match (id..id.saturating_add(span)).find(|id| reached.get(*id)) {
        None => Ok(()),
        Some(twice) => {
            let detail = format!("page {twice}, a part of page {id}, is referenced more than once");
            Err(PageFault { code: Code::PageTwice, page: id, detail })
        }
    }
}

/// One bit a page.
pub(super) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    fn new(count: usize) -> Self {
        Self { words: vec![0; count.div_ceil(64)] }
    }

    pub(super) fn get(&self, id: u64) -> bool {
        let word = self.words.get(usize_of(id / 64));
        word.is_some_and(|word| word & mask(id) != 0)
    }

    fn set(&mut self, id: u64) {
        if let Some(word) = self.words.get_mut(usize_of(id / 64)) {
            *word |= mask(id);
        }
    }
}

fn mask(id: u64) -> u64 {
    1_u64.checked_shl(u32::try_from(id % 64).unwrap_or(0)).unwrap_or(0)
}
