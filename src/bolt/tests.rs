//! Builder to reader to check, and damage that must be found.

use std::io::Cursor;

use proptest::prelude::*;

use super::builder::Builder;
use super::walk::{At, Ignore, Visit, walk};
use super::*;
use crate::format::page::{Header, LEAF, Node};

type Rows = Vec<(Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>)>;

fn build(page_size: u32, buckets: &Rows) -> Vec<u8> {
    let mut builder = Builder::new(Cursor::new(Vec::new()), page_size).unwrap();
    for (name, rows) in buckets {
        builder.begin_bucket(name, 7).unwrap();
        rows.iter().for_each(|(key, value)| builder.put(key, value).unwrap());
        builder.end_bucket().unwrap();
    }
    let (built, out) = builder.finish(9).unwrap();
    let bytes = out.into_inner();
    assert_eq!(built.size_bytes, u64::try_from(bytes.len()).unwrap());
    bytes
}

#[derive(Default)]
struct Collect(Rows);

impl Visit for Collect {
    fn bucket(&mut self, at: &At<'_>, sequence: u64) {
        assert_eq!(sequence, 7);
        self.0.push((at.bucket.last().unwrap().clone(), Vec::new()));
    }
    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        let last = self.0.last_mut().unwrap();
        assert_eq!(at.bucket, std::slice::from_ref(&last.0));
        last.1.push((key.to_vec(), value.to_vec()));
    }
}

fn numbered(count: u32, value_bytes: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    (0..count)
        .map(|n| {
            (format!("key-{n:06}").into_bytes(), vec![u8::try_from(n % 251).unwrap(); value_bytes])
        })
        .collect()
}

#[test]
fn builds_what_the_walk_and_the_cursor_read() {
    for page_size in [1024, 4096, 65536, 1 << 24] {
        let rows: Rows = vec![
            (b"empty".to_vec(), vec![]),
            (b"large".to_vec(), numbered(3, 20_000)),
            (b"many".to_vec(), numbered(5000, 30)),
            (b"small".to_vec(), numbered(2, 5)),
        ];
        let file = File::from_bytes(build(page_size, &rows)).unwrap();
        let mut seen = Collect::default();
        let walked = walk(&file, &mut seen);
        assert_eq!(walked.findings.kept(), &[]);
        assert_eq!(seen.0, rows);
        assert_eq!(walked.free_pages, 0);
        for (name, rows) in &rows {
            let bucket = file.bucket(&[name]).unwrap().unwrap();
            let mut cursor = bucket.cursor();
            for (key, value) in rows {
                let row = cursor.next_row().unwrap().unwrap();
                assert_eq!((row.key, row.value), (&key[..], &value[..]));
            }
            assert!(cursor.next_row().unwrap().is_none());
            for (key, value) in rows.iter().step_by(97) {
                assert_eq!(bucket.get(key).unwrap().as_deref(), Some(&value[..]));
                let mut between = key.clone();
                between.push(0);
                assert_eq!(bucket.get(&between).unwrap(), None);
            }
        }
        assert!(file.bucket(&["nothing"]).unwrap().is_none());
    }
}

#[test]
fn long_keys_still_narrow() {
    let rows = (0_u8..200).map(|n| ([vec![n; 1], vec![b'k'; 32767]].concat(), vec![])).collect();
    let rows: Rows = vec![(b"b".to_vec(), rows)];
    let file = File::from_bytes(build(1024, &rows)).unwrap();
    let mut seen = Collect::default();
    assert_eq!(walk(&file, &mut seen).findings.kept(), &[]);
    assert_eq!(seen.0, rows);
}

#[test]
fn refuses_disorder_and_impossible_sizes() {
    let mut builder = Builder::new(Cursor::new(Vec::new()), 4096).unwrap();
    assert!(matches!(builder.put(b"a", b""), Err(builder::Error::Nesting)));
    builder.begin_bucket(b"b", 0).unwrap();
    builder.put(b"b", b"").unwrap();
    assert!(matches!(builder.put(b"b", b""), Err(builder::Error::Order)));
    assert!(matches!(builder.put(b"a", b""), Err(builder::Error::Order)));
    assert!(matches!(builder.put(b"", b""), Err(builder::Error::Size)));
    assert!(matches!(builder.put(&[b'c'; 32769], b""), Err(builder::Error::Size)));
    builder.end_bucket().unwrap();
    assert!(matches!(builder.begin_bucket(b"a", 0), Err(builder::Error::Order)));
}

fn sample() -> Vec<u8> {
    build(1024, &vec![(b"many".to_vec(), numbered(400, 30)), (b"z".to_vec(), numbered(2, 5))])
}

fn codes(bytes: Vec<u8>) -> Vec<Code> {
    let file = File::from_bytes(bytes).unwrap();
    let walked = walk(&file, &mut Ignore);
    walked.findings.kept().iter().map(|finding| finding.code).collect()
}

fn reseal_metas(bytes: &mut [u8], page_size: usize, edit: impl Fn(&mut Meta)) {
    for slot in 0..2 {
        let at = slot * page_size;
        let mut meta = Meta::decode(&bytes[at..]).unwrap();
        edit(&mut meta);
        let page = meta.encode(u64::try_from(slot).unwrap());
        bytes[at..at + page.len()].copy_from_slice(&page);
    }
}

#[test]
fn a_zeroed_page_is_named_with_its_keys() {
    let mut bytes = sample();
    let page = 5;
    bytes[page * 1024..(page + 1) * 1024].fill(0);
    let file = File::from_bytes(bytes).unwrap();
    let walked = walk(&file, &mut Ignore);
    let [finding] = walked.findings.kept() else { panic!("{:?}", walked.findings) };
    assert_eq!((finding.code, finding.place.page), (Code::PageSelfId, Some(5)));
    assert_eq!(finding.place.path.last(), Some(&5));
    assert_eq!(finding.place.bucket, [b"many".to_vec()]);
    let lost = finding.lost.as_ref().unwrap();
    assert!(lost.from.as_ref().unwrap() < lost.to.as_ref().unwrap());
    // Everything else is still read.
    assert!(walked.entries > 300);
}

#[test]
fn each_defect_has_its_code() {
    let clean = sample();
    let ps = 1024;
    assert_eq!(codes(clean.clone()), []);
    let damage = |edit: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = clean.clone();
        edit(&mut bytes);
        codes(bytes)
    };
    let page_of = |bytes: &[u8], kind: u16| {
        (2..bytes.len() / ps)
            .find(|id| Header::decode(&bytes[id * ps..]).unwrap().flags == kind)
            .unwrap()
    };
    let leaf = page_of(&clean, LEAF);
    let branch = page_of(&clean, crate::format::page::BRANCH);
    assert_eq!(damage(&|b| b[0] ^= 1), [], "meta page headers are not part of the meta");
    assert_eq!(damage(&|b| b[70] ^= 1), [Code::MetaOne]);
    assert_eq!(damage(&|b| b[leaf * ps + 8] = 0x10), [Code::PageType]);
    assert_eq!(damage(&|b| b[leaf * ps + 12..][..4].fill(0xff)), [Code::PageBeyondFile]);
    assert_eq!(damage(&|b| b[leaf * ps + 20..][..4].fill(0xff))[0], Code::ElementBounds);
    assert_eq!(damage(&|b| b[leaf * ps + 28..][..4].fill(0x7f))[0], Code::ElementBounds);
    assert_eq!(damage(&|b| b[leaf * ps + 16] = 2), [Code::ElementFlags]);
    // The second child becomes the first one: a page twice.
    let twice = damage(&|b| {
        let first: [u8; 8] = b[branch * ps + 24..][..8].try_into().unwrap();
        b[branch * ps + 40..][..8].copy_from_slice(&first);
    });
    assert!(twice.contains(&Code::PageTwice), "{twice:?}");
    // A child that is the branch itself: a cycle.
    let id = u64::try_from(branch).unwrap().to_le_bytes();
    let cycle = damage(&|b| b[branch * ps + 24..][..8].copy_from_slice(&id));
    assert!(cycle.contains(&Code::PageTwice), "{cycle:?}");
    let beyond = damage(&|b| b[branch * ps + 24..][..8].fill(0x7f));
    assert!(beyond.contains(&Code::PageBeyondMark), "{beyond:?}");
    assert!(damage(&|b| b.truncate(b.len() - 3 * ps)).contains(&Code::FileTruncated));
    let freelist = damage(&|b| reseal_metas(b, ps, |meta| meta.freelist = 4));
    assert!(freelist.contains(&Code::FreelistUnreadable), "{freelist:?}");
}

#[test]
fn a_deep_chain_ends() {
    // 1,000 branch pages of one child each.
    let (ps, depth) = (1024, 1000);
    let mut bytes = build(ps, &vec![]);
    let first = bytes.len() / 1024;
    for n in 0..depth {
        let id = u64::try_from(first + n).unwrap();
        let mut node = Node::default();
        node.push(id + 1, b"k", b"");
        let mut page = Vec::new();
        node.encode(&mut page, id, crate::format::page::BRANCH, 0).unwrap();
        page.resize(1024, 0);
        bytes.extend_from_slice(&page);
    }
    let mark = u64::try_from(first + depth).unwrap();
    reseal_metas(&mut bytes, 1024, |meta| {
        meta.high_water_mark = mark;
        meta.root = u64::try_from(first).unwrap();
    });
    assert_eq!(codes(bytes), [Code::TreeDepth]);
}

#[test]
fn a_cursor_in_a_web_of_shared_pages_ends() {
    // Each branch names its successor twice: 2^60 leaves for a naive walk.
    let mut bytes = build(1024, &vec![]);
    let first = bytes.len() / 1024;
    for n in 0..60 {
        let id = u64::try_from(first + n).unwrap();
        let mut node = Node::default();
        node.push(id + 1, b"a", b"");
        node.push(id + 1, b"b", b"");
        let mut page = Vec::new();
        node.encode(&mut page, id, crate::format::page::BRANCH, 0).unwrap();
        page.resize(1024, 0);
        bytes.extend_from_slice(&page);
    }
    let mut page = Vec::new();
    Node::default().encode(&mut page, u64::try_from(first + 60).unwrap(), LEAF, 0).unwrap();
    page.resize(1024, 0);
    bytes.extend_from_slice(&page);
    let mark = u64::try_from(first + 61).unwrap();
    reseal_metas(&mut bytes, 1024, |meta| {
        meta.high_water_mark = mark;
        meta.root = u64::try_from(first).unwrap();
    });
    let file = File::from_bytes(bytes).unwrap();
    let walked = walk(&file, &mut Ignore);
    assert!(walked.findings.has(Code::PageTwice));
    let mut cursor = file.root().cursor();
    let end = loop {
        match cursor.next_row() {
            Ok(Some(_)) => {}
            other => break other.map(|row| row.is_some()),
        }
    };
    assert!(matches!(end, Err(Error::Page(PageFault { code: Code::PageTwice, .. }))));
}

/// Appends pages to a sample of 1-KiB pages and makes the first of them the root.
fn with_pages(pages: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = build(1024, &vec![]);
    let root = u64::try_from(bytes.len() / 1024).unwrap();
    pages.iter().for_each(|page| bytes.extend_from_slice(page));
    let mark = u64::try_from(bytes.len() / 1024).unwrap();
    reseal_metas(&mut bytes, 1024, |meta| (meta.high_water_mark, meta.root) = (mark, root));
    bytes
}

const FIRST: u64 = 3;

fn branch_page(id: u64, children: impl IntoIterator<Item = u64>, span: u32) -> Vec<u8> {
    let mut node = Node::default();
    for (n, child) in children.into_iter().enumerate() {
        node.push(child, &u32::try_from(n).unwrap().to_be_bytes(), b"");
    }
    let mut page = Vec::new();
    node.encode(&mut page, id, crate::format::page::BRANCH, span - 1).unwrap();
    page.resize(1024 * usize::try_from(span).unwrap(), 0);
    page
}

#[derive(Default)]
struct Reads(u64);

impl Visit for Reads {
    fn bucket(&mut self, _: &At<'_>, _: u64) {}
    fn entry(&mut self, _: &At<'_>, key: &[u8], value: &[u8]) {
        self.0 += u64::try_from(key.len() + value.len()).unwrap();
    }
}

#[test]
fn a_large_branch_is_not_read_once_a_child() {
    // 34 MB of branch, more than a walk holds, with 20,000 children that are all the root.
    let span = 33 * 1024;
    let children = std::iter::repeat_n(FIRST, 20_000);
    let pages = [branch_page(FIRST, [FIRST + 1], 1), branch_page(FIRST + 1, children, span)];
    let walked = walk(&File::from_bytes(with_pages(&pages)).unwrap(), &mut Ignore);
    assert!(walked.findings.has(Code::PageHuge));
}

#[test]
fn overlapping_overflows_are_not_read_again() {
    // 4,000 pages that each claim all pages up to the end.
    let count = 4000_u64;
    let first = FIRST + 120;
    let mut pages = vec![branch_page(FIRST, first..first + count, 120)];
    for n in 0..count {
        let overflow = u32::try_from(count - n - 1).unwrap();
        let header = Header { id: first + n, flags: LEAF, count: 0, overflow };
        let mut page = header.encode().to_vec();
        page.resize(1024, 0);
        pages.push(page);
    }
    let walked = walk(&File::from_bytes(with_pages(&pages)).unwrap(), &mut Ignore);
    assert!(walked.findings.has(Code::PageTwice));
    assert_eq!(walked.leaf_pages, 1);
}

#[test]
fn values_that_overlap_are_seen_once() {
    // 1,000 elements whose values are all the same 900 KB.
    let span = 900_u32;
    let mut page =
        Header { id: FIRST, flags: LEAF, count: 1000, overflow: span - 1 }.encode().to_vec();
    let total = 1024 * span;
    for n in 0..1000_u32 {
        let pos = 16_016 - (16 + 16 * n);
        for field in [0, pos, 4, total - 16_020] {
            page.extend_from_slice(&field.to_le_bytes());
        }
    }
    page.resize(usize::try_from(total).unwrap(), 7);
    let file = File::from_bytes(with_pages(&[page])).unwrap();
    let mut reads = Reads::default();
    let walked = walk(&file, &mut reads);
    assert!(walked.findings.has(Code::ElementBounds));
    assert!(reads.0 <= u64::from(total), "{}", reads.0);
}

#[test]
fn findings_hold_no_long_names() {
    let mut value = vec![0; 16];
    let mut inline = Node::default();
    (0..500_u32).for_each(|n| inline.push(2, &n.to_be_bytes(), b""));
    inline.encode(&mut value, 0, LEAF, 0).unwrap();
    let mut node = Node::default();
    node.push(1, &vec![b'n'; 1_000_000], &value);
    let span = u32::try_from(node.overflow(1024) + 1).unwrap();
    let mut page = Vec::new();
    node.encode(&mut page, FIRST, LEAF, span - 1).unwrap();
    page.resize(1024 * usize::try_from(span).unwrap(), 0);
    let walked = walk(&File::from_bytes(with_pages(&[page])).unwrap(), &mut Ignore);
    assert!(walked.findings.kept().len() > 400);
    let names = walked.findings.kept().iter().flat_map(|finding| &finding.place.bucket);
    assert!(names.map(Vec::len).max().unwrap() <= 512);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_rows_come_back(
        page_size in prop::sample::select(vec![1024_u32, 4096]),
        buckets in prop::collection::btree_map(
            prop::collection::vec(any::<u8>(), 1..12),
            prop::collection::btree_map(
                prop::collection::vec(any::<u8>(), 1..60),
                prop::collection::vec(any::<u8>(), 0..2500),
                0..60,
            ),
            0..6,
        ),
    ) {
        let rows = buckets.into_iter().map(|(name, rows)| (name, rows.into_iter().collect()));
        let rows: Rows = rows.collect();
        let file = File::from_bytes(build(page_size, &rows)).unwrap();
        let mut seen = Collect::default();
        let walked = walk(&file, &mut seen);
        prop_assert_eq!(walked.findings.kept(), &[]);
        prop_assert_eq!(seen.0, rows);
    }

    #[test]
    fn damage_never_panics(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = sample();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        if let Ok(file) = File::from_bytes(bytes) {
            walk(&file, &mut Ignore);
            let mut cursor = file.root().cursor();
            while let Ok(Some(_)) = cursor.next_row() {}
        }
    }
}

#[test]
fn a_page_of_bad_elements_costs_no_square() {
    // 8 pages of 65,535 elements each, every one of them out of bounds.
    let mut bytes = build(1024, &vec![]);
    let (ps, span) = (1024, 1026);
    let first = bytes.len() / ps;
    let mut root = Node::default();
    for n in 0..8_u8 {
        let id = first + 1 + usize::from(n) * span;
        root.push(u64::try_from(id).unwrap(), &[n + 1], b"");
    }
    let mut page = Vec::new();
    root.encode(&mut page, u64::try_from(first).unwrap(), crate::format::page::BRANCH, 0).unwrap();
    page.resize(ps, 0);
    bytes.extend_from_slice(&page);
    for n in 0..8 {
        let id = u64::try_from(first + 1 + n * span).unwrap();
        let overflow = u32::try_from(span - 1).unwrap();
        let mut page = Header { id, flags: LEAF, count: u16::MAX, overflow }.encode().to_vec();
        page.resize(ps * span, 0xff);
        bytes.extend_from_slice(&page);
    }
    let mark = u64::try_from(first + 1 + 8 * span).unwrap();
    reseal_metas(&mut bytes, ps, |meta| {
        meta.high_water_mark = mark;
        meta.root = u64::try_from(first).unwrap();
    });
    let walked = walk(&File::from_bytes(bytes).unwrap(), &mut Ignore);
    let total = u64::try_from(walked.findings.kept().len()).unwrap() + walked.findings.left_out();
    assert!(total >= 8 * 65_535, "{total}");
}
