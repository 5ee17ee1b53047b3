//! The freelist page: ids of pages that hold nothing.
//!
//! Shape: a page header with flag 0x10, then `count` page ids, u64 each. A count of 0xFFFF means
//! that the first u64 is the real count and the ids follow it.
//!
//! Source: go.etcd.io/bbolt `internal/freelist/shared.go` (1.4.3).

use super::page::{FREELIST, HEADER_BYTES, Header};
use super::{Error, u64_at, u64_of, usize_of};

/// Decodes the ids of a whole freelist page, overflow included.
///
/// # Errors
/// Not a freelist page, or fewer bytes than its count wants. Nothing is allocated before the
/// count is known to fit.
pub fn decode(page: &[u8]) -> Result<Vec<u64>, Error> {
    let header = Header::decode(page)?;
    if header.flags != FREELIST {
        return Err(Error::new(8, "not a freelist page"));
    }
    let (start, count) = if header.count == u16::MAX {
        let count = u64_at(page, HEADER_BYTES);
        (24, usize_of(count.ok_or(Error::new(HEADER_BYTES, "freelist count cut off"))?))
    } else {
        (HEADER_BYTES, usize::from(header.count))
    };
    let end = count.checked_mul(8).and_then(|bytes| bytes.checked_add(start));
    let body = end.and_then(|end| page.get(start..end));
    let body = body.ok_or(Error { offset: u64_of(start), what: "freelist runs past its page" })?;
    Ok(body.as_chunks::<8>().0.iter().map(|id| u64::from_le_bytes(*id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(count: u16, words: &[u64]) -> Vec<u8> {
        let mut page = Header { id: 2, flags: FREELIST, count, overflow: 0 }.encode().to_vec();
        words.iter().for_each(|word| page.extend_from_slice(&word.to_le_bytes()));
        page
    }

    #[test]
    fn both_forms_and_lies() {
        assert_eq!(decode(&page(2, &[5, 9, 0])).unwrap(), [5, 9]);
        assert_eq!(decode(&page(u16::MAX, &[1, 9])).unwrap(), [9]);
        assert!(decode(&page(3, &[5, 9])).is_err());
        assert!(decode(&page(u16::MAX, &[u64::MAX, 9])).is_err());
        assert!(decode(&page(u16::MAX, &[])).is_err());
        let mut leaf = page(0, &[]);
        leaf[8] = 2;
        assert!(decode(&leaf).is_err());
    }
}
