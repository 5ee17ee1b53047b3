//! Page headers and elements of a bbolt file: checked views and encoders.
//!
//! Shape of a page header, 16 bytes:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 8 | page id; 0 in an inline bucket |
//! | 8 | 2 | flags: 0x01 branch, 0x02 leaf, 0x04 meta, 0x10 freelist |
//! | 10 | 2 | element count |
//! | 12 | 4 | overflow: further pages that belong to this one |
//!
//! Elements follow, 16 bytes each. Leaf: flags u32 (bit 0: the value is a bucket), pos u32,
//! key size u32, value size u32. Branch: pos u32, key size u32, page id u64. `pos` counts from the
//! start of its own element.
//!
//! Source: go.etcd.io/bbolt `internal/common/page.go` (1.4.3).

use super::{Error, u16_at, u32_at, u64_at, u64_of, usize_of};

/// Bytes of a page header, and of one element.
pub const HEADER_BYTES: usize = 16;
/// Bytes of one leaf or branch element.
pub const ELEMENT_BYTES: usize = 16;
/// Bytes of a bucket header: root page id u64, sequence u64.
pub const BUCKET_BYTES: usize = 16;
/// Largest key that bbolt accepts, in bytes.
pub const KEY_BYTES_MAX: usize = 32768;
/// Largest value that bbolt accepts, in bytes.
pub const VALUE_BYTES_MAX: usize = (1 << 31) - 2;
/// Largest number of elements in a page that a writer makes.
pub const ELEMENTS_MAX: usize = 65534;
/// Leaf element flag: the value is a bucket.
pub const BUCKET_FLAG: u32 = 1;

/// Page type flag: branch.
pub const BRANCH: u16 = 0x01;
/// Page type flag: leaf.
pub const LEAF: u16 = 0x02;
/// Page type flag: meta.
pub const META: u16 = 0x04;
/// Page type flag: freelist.
pub const FREELIST: u16 = 0x10;

/// A page header as it stands in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Id that the page gives itself.
    pub id: u64,
    /// Page type flags.
    pub flags: u16,
    /// Number of elements.
    pub count: u16,
    /// Further pages that belong to this one.
    pub overflow: u32,
}

impl Header {
    /// Decodes the first 16 bytes of a page.
    ///
    /// # Errors
    /// Fewer than 16 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let header = || {
            Some(Self {
                id: u64_at(bytes, 0)?,
                flags: u16_at(bytes, 8)?,
                count: u16_at(bytes, 10)?,
                overflow: u32_at(bytes, 12)?,
            })
        };
        header().ok_or(Error::new(bytes.len(), "page header cut off"))
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let [a, b, c, d, e, f, g, h] = self.id.to_le_bytes();
        let [i, j] = self.flags.to_le_bytes();
        let [k, l] = self.count.to_le_bytes();
        let [m, n, o, p] = self.overflow.to_le_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }

    /// Names the page type for people.
    #[must_use]
    pub fn type_name(&self) -> String {
        match self.flags {
            BRANCH => "branch".into(),
            LEAF => "leaf".into(),
            META => "meta".into(),
            FREELIST => "freelist".into(),
            0 => "blank".into(),
            other => format!("unknown (flags 0x{other:02x})"),
        }
    }
}

/// One element of a leaf page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf<'a> {
    /// Element flags; see [`BUCKET_FLAG`].
    pub flags: u32,
    /// Offset of the key in the page, in bytes.
    pub key_offset: usize,
    /// The key.
    pub key: &'a [u8],
    /// The value, or a bucket header with its inline page.
    pub value: &'a [u8],
}

/// One element of a branch page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Branch<'a> {
    /// Smallest key that may be in the child.
    pub key: &'a [u8],
    /// The child's page id.
    pub child: u64,
}

/// Decodes leaf element `index` of a page with `count` elements.
///
/// # Errors
/// The element, its key or its value lies outside `page`, or over the element table.
pub fn leaf(page: &[u8], count: u16, index: u16) -> Result<Leaf<'_>, Error> {
    let at = element_offset(index);
    let fields = || {
        Some((
            u32_at(page, at)?,
            u32_at(page, at.checked_add(4)?)?,
            u32_at(page, at.checked_add(8)?)?,
            u32_at(page, at.checked_add(12)?)?,
        ))
    };
    let (flags, pos, key_size, value_size) =
        fields().ok_or(Error::new(at, "element table runs past the page"))?;
    let (key_offset, key) = blob(page, count, at, pos, key_size)?;
    let value_start = key_offset.saturating_add(key.len());
    let value = page
        .get(value_start..value_start.saturating_add(usize_of(u64::from(value_size))))
        .ok_or(Error::new(at, "value runs past the page"))?;
    Ok(Leaf { flags, key_offset, key, value })
}

/// Decodes branch element `index` of a page with `count` elements.
///
/// # Errors
/// The element or its key lies outside `page`, or over the element table.
pub fn branch(page: &[u8], count: u16, index: u16) -> Result<Branch<'_>, Error> {
    let at = element_offset(index);
    let fields = || {
        Some((
            u32_at(page, at)?,
            u32_at(page, at.checked_add(4)?)?,
            u64_at(page, at.checked_add(8)?)?,
        ))
    };
    let (pos, key_size, child) =
        fields().ok_or(Error::new(at, "element table runs past the page"))?;
    let (_, key) = blob(page, count, at, pos, key_size)?;
    Ok(Branch { key, child })
}

fn element_offset(index: u16) -> usize {
    HEADER_BYTES.saturating_add(ELEMENT_BYTES.saturating_mul(usize::from(index)))
}

fn blob(page: &[u8], count: u16, at: usize, pos: u32, size: u32) -> Result<(usize, &[u8]), Error> {
    let start = at.saturating_add(usize_of(u64::from(pos)));
    if start < element_offset(count) {
        return Err(Error::new(at, "key lies over the element table"));
    }
    let end = start.saturating_add(usize_of(u64::from(size)));
    let key = page.get(start..end).ok_or(Error::new(at, "key runs past the page"))?;
    Ok((start, key))
}

/// A bucket's header, from the value of a leaf element with [`BUCKET_FLAG`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketHeader {
    /// Root page id; 0 when the bucket is inline.
    pub root: u64,
    /// The bucket's sequence.
    pub sequence: u64,
}

impl BucketHeader {
    /// Decodes the first 16 bytes of a bucket value.
    ///
    /// # Errors
    /// Fewer than 16 bytes.
    pub fn decode(value: &[u8]) -> Result<Self, Error> {
        match (u64_at(value, 0), u64_at(value, 8)) {
            (Some(root), Some(sequence)) => Ok(Self { root, sequence }),
            _ => Err(Error::new(value.len(), "bucket header cut off")),
        }
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; BUCKET_BYTES] {
        let [a, b, c, d, e, f, g, h] = self.root.to_le_bytes();
        let [i, j, k, l, m, n, o, p] = self.sequence.to_le_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    }
}

/// Elements of one page while it is put together.
///
/// Holds the page's bytes but for the header; memory is what the page will take.
#[derive(Clone, Debug, Default)]
pub struct Node {
    elements: Vec<Element>,
    data: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct Element {
    /// Leaf: element flags. Branch: child page id.
    word: u64,
    data_offset: usize,
    key_size: usize,
    value_size: usize,
}

impl Node {
    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Tells whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// Bytes that the page takes, header included.
    #[must_use]
    pub fn size(&self) -> usize {
        self.data
            .len()
            .saturating_add(HEADER_BYTES)
            .saturating_add(self.elements.len().saturating_mul(ELEMENT_BYTES))
    }

    /// Bytes that the page would take with one more element.
    #[must_use]
    pub fn size_with(&self, key: &[u8], value: &[u8]) -> usize {
        self.size()
            .saturating_add(ELEMENT_BYTES)
            .saturating_add(key.len())
            .saturating_add(value.len())
    }

    /// Adds an element; `word` is a leaf's flags or a branch's child page id.
    pub fn push(&mut self, word: u64, key: &[u8], value: &[u8]) {
        self.elements.push(Element {
            word,
            data_offset: self.data.len(),
            key_size: key.len(),
            value_size: value.len(),
        });
        self.data.extend_from_slice(key);
        self.data.extend_from_slice(value);
    }

    /// Returns the first key.
    #[must_use]
    pub fn first_key(&self) -> Option<&[u8]> {
        let first = self.elements.first()?;
        self.data.get(..first.key_size)
    }

    /// Empties the node, keeping its memory.
    pub fn clear(&mut self) {
        self.elements.clear();
        self.data.clear();
    }

    /// Appends the whole page to `out`: header, elements, data; no padding.
    ///
    /// # Errors
    /// A size or count that the format's fields cannot hold.
    pub fn encode(
        &self,
        out: &mut Vec<u8>,
        id: u64,
        flags: u16,
        overflow: u32,
    ) -> Result<(), Error> {
        let too_big = Error::new(self.size(), "page too large for its fields");
        let count = u16::try_from(self.elements.len()).map_err(|_| too_big)?;
        out.extend_from_slice(&Header { id, flags, count, overflow }.encode());
        let table = self.elements.len().saturating_mul(ELEMENT_BYTES);
        for (index, element) in self.elements.iter().enumerate() {
            let pos = table
                .saturating_sub(index.saturating_mul(ELEMENT_BYTES))
                .saturating_add(element.data_offset);
            let pos = u32::try_from(pos).map_err(|_| too_big)?;
            let key_size = u32::try_from(element.key_size).map_err(|_| too_big)?;
            if flags == LEAF {
                let word = u32::try_from(element.word).map_err(|_| too_big)?;
                let value_size = u32::try_from(element.value_size).map_err(|_| too_big)?;
                for field in [word, pos, key_size, value_size] {
                    out.extend_from_slice(&field.to_le_bytes());
                }
            } else {
                out.extend_from_slice(&pos.to_le_bytes());
                out.extend_from_slice(&key_size.to_le_bytes());
                out.extend_from_slice(&element.word.to_le_bytes());
            }
        }
        out.extend_from_slice(&self.data);
        Ok(())
    }

    /// Returns the number of overflow pages that the node needs at a page size.
    #[must_use]
    pub fn overflow(&self, page_size: u32) -> u64 {
        u64_of(self.size()).div_ceil(u64::from(page_size).max(1)).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_reads_back() {
        let mut node = Node::default();
        node.push(0, b"a", b"one");
        node.push(u64::from(BUCKET_FLAG), b"bc", b"");
        let mut page = Vec::new();
        node.encode(&mut page, 7, LEAF, 0).unwrap();
        assert_eq!(page.len(), node.size());
        let header = Header::decode(&page).unwrap();
        assert_eq!(header, Header { id: 7, flags: LEAF, count: 2, overflow: 0 });
        let first = leaf(&page, 2, 0).unwrap();
        assert_eq!((first.key, first.value, first.key_offset), (&b"a"[..], &b"one"[..], 48));
        let second = leaf(&page, 2, 1).unwrap();
        assert_eq!((second.flags, second.key, second.value), (1, &b"bc"[..], &b""[..]));
    }

    #[test]
    fn elements_out_of_bounds_are_errors() {
        let mut page = vec![0u8; 64];
        page[16 + 4..16 + 8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(leaf(&page, 1, 0).is_err());
        page[16 + 4..16 + 8].copy_from_slice(&4u32.to_le_bytes());
        assert_eq!(leaf(&page, 1, 0).unwrap_err().what, "key lies over the element table");
        assert!(branch(&page, 9, 8).is_err());
    }
}
