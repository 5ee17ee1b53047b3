//! Meta pages of a bbolt file.
//!
//! Shape, offsets in the page:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 16 | 4 | magic 0xED0CDAED |
//! | 20 | 4 | version 2 |
//! | 24 | 4 | page size in bytes |
//! | 28 | 4 | flags, 0 |
//! | 32 | 8 | root bucket: page id |
//! | 40 | 8 | root bucket: sequence |
//! | 48 | 8 | freelist page id, or all ones: none is stored |
//! | 56 | 8 | high-water mark: first page id never used |
//! | 64 | 8 | transaction id |
//! | 72 | 8 | FNV-1a 64 over bytes 16..72 |
//!
//! Source: go.etcd.io/bbolt `internal/common/meta.go`, `db.go` `getPageSize` (1.4.3).

use super::page::{self, Header};
use super::{array_at, u32_at, u64_at};

/// First four bytes of a meta.
pub const MAGIC: u32 = 0xED0C_DAED;
/// The only version there is.
pub const VERSION: u32 = 2;
/// Freelist page id that means: none is stored.
pub const NO_FREELIST: u64 = u64::MAX;
/// Bytes from the start of a page to the end of its meta.
pub const META_END: usize = 80;
/// Smallest page size that is read, in bytes.
pub const PAGE_SIZE_MIN: u32 = 1 << 10;
/// Largest page size that is read, in bytes.
pub const PAGE_SIZE_MAX: u32 = 1 << 24;

/// The fields of a valid meta.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// Page size in bytes.
    pub page_size: u32,
    /// Flags, 0.
    pub flags: u32,
    /// Root page id of the root bucket.
    pub root: u64,
    /// Sequence of the root bucket.
    pub sequence: u64,
    /// Page id of the freelist, or [`NO_FREELIST`].
    pub freelist: u64,
    /// First page id never used.
    pub high_water_mark: u64,
    /// Transaction id.
    pub txid: u64,
}

/// Why a meta page is not valid, in the order in which it is examined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// The page is not whole.
    #[error("cut off")]
    Short,
    /// Magic of a machine of the other byte order.
    #[error("written by a big-endian machine, which no tool on this one can read")]
    BigEndian,
    /// Wrong magic.
    #[error("no bbolt magic number")]
    Magic,
    /// Wrong version.
    #[error("unknown bbolt version")]
    Version,
    /// Wrong checksum.
    #[error("checksum does not match")]
    Checksum,
    /// A page size that is no power of two from 1 KiB to 16 MiB.
    #[error("impossible page size")]
    PageSize,
}

impl MetaError {
    /// Tells whether the page began as a meta does, so that it was one.
    #[must_use]
    pub fn has_magic(self) -> bool {
        matches!(self, Self::Version | Self::Checksum | Self::PageSize)
    }
}

impl Meta {
    /// Decodes a page that begins at `bytes[0]`; only its first 80 bytes are looked at.
    ///
    /// # Errors
    /// See [`MetaError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, MetaError> {
        let magic = u32_at(bytes, 16).ok_or(MetaError::Short)?;
        if magic == MAGIC.swap_bytes() {
            return Err(MetaError::BigEndian);
        }
        if magic != MAGIC {
            return Err(MetaError::Magic);
        }
        let fields = || {
            let meta = Self {
                page_size: u32_at(bytes, 24)?,
                flags: u32_at(bytes, 28)?,
                root: u64_at(bytes, 32)?,
                sequence: u64_at(bytes, 40)?,
                freelist: u64_at(bytes, 48)?,
                high_water_mark: u64_at(bytes, 56)?,
                txid: u64_at(bytes, 64)?,
            };
            Some((u32_at(bytes, 20)?, meta, u64_at(bytes, 72)?, array_at::<56>(bytes, 16)?))
        };
        let (version, meta, checksum, summed) = fields().ok_or(MetaError::Short)?;
        if version != VERSION {
            return Err(MetaError::Version);
        }
        if checksum != fnv1a(&summed) {
            return Err(MetaError::Checksum);
        }
        let size = meta.page_size;
        if !size.is_power_of_two() || !(PAGE_SIZE_MIN..=PAGE_SIZE_MAX).contains(&size) {
            return Err(MetaError::PageSize);
        }
        Ok(meta)
    }

    /// Encodes the first 80 bytes of meta page `id`.
    #[must_use]
    pub fn encode(&self, id: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(META_END);
        let header = Header { id, flags: page::META, count: 0, overflow: 0 };
        out.extend_from_slice(&header.encode());
        let mut body = Vec::with_capacity(56);
        for field in [MAGIC, VERSION, self.page_size, self.flags] {
            body.extend_from_slice(&field.to_le_bytes());
        }
        let high = self.high_water_mark;
        for field in [self.root, self.sequence, self.freelist, high, self.txid] {
            body.extend_from_slice(&field.to_le_bytes());
        }
        out.extend_from_slice(&body);
        out.extend_from_slice(&fnv1a(&body).to_le_bytes());
        out
    }

    /// Bytes from the file's start to the end of the last page ever used: the database's size.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.high_water_mark.saturating_mul(u64::from(self.page_size))
    }
}

/// Picks the meta that a reader must use: the larger transaction id; meta 0 on a tie.
///
/// # Errors
/// Neither is valid; the error is meta 0's.
pub fn pick(
    meta0: Result<Meta, MetaError>,
    meta1: Result<Meta, MetaError>,
) -> Result<Meta, MetaError> {
    match (meta0, meta1) {
        (Ok(a), Ok(b)) => Ok(if b.txid > a.txid { b } else { a }),
        (Ok(a), Err(_)) => Ok(a),
        (Err(_), Ok(b)) => Ok(b),
        (Err(a), Err(_)) => Err(a),
    }
}

/// Computes FNV-1a, 64 bits.
#[must_use]
pub fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta() -> Meta {
        Meta {
            page_size: 4096,
            flags: 0,
            root: 2,
            sequence: 0,
            freelist: NO_FREELIST,
            high_water_mark: 7,
            txid: 61,
        }
    }

    #[test]
    fn checksum_vector_of_a_real_file() {
        let page = meta().encode(1);
        let body = &page[16..72];
        assert_eq!(
            super::super::hex(body),
            "edda0ced020000000010000000000000\
             02000000000000000000000000000000ffffffffffffffff07000000000000003d00000000000000"
        );
        assert_eq!(Meta::decode(&page), Ok(meta()));
    }

    #[test]
    fn each_defect_is_told_apart() {
        let good = meta().encode(0);
        let with = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            Meta::decode(&bytes)
        };
        assert_eq!(with(16, 0), Err(MetaError::Magic));
        assert_eq!(with(20, 3), Err(MetaError::Version));
        assert_eq!(with(64, 0), Err(MetaError::Checksum));
        assert_eq!(Meta::decode(&good[..79]), Err(MetaError::Short));
        let odd = Meta { page_size: 5000, ..meta() }.encode(0);
        assert_eq!(Meta::decode(&odd), Err(MetaError::PageSize));
        let mut swapped = good.clone();
        swapped[16..20].reverse();
        assert_eq!(Meta::decode(&swapped), Err(MetaError::BigEndian));
    }

    #[test]
    fn the_newer_meta_serves() {
        let (old, new) = (meta(), Meta { txid: 62, ..meta() });
        assert_eq!(pick(Ok(old), Ok(new)).unwrap().txid, 62);
        assert_eq!(pick(Ok(new), Ok(old)).unwrap().txid, 62);
        assert_eq!(pick(Err(MetaError::Magic), Ok(old)).unwrap().txid, 61);
        let both = pick(Err(MetaError::Magic), Err(MetaError::Checksum));
        assert_eq!(both, Err(MetaError::Magic));
    }
}
