//! One bbolt file: read it, check it, build a new one.
//!
//! Invariants, whatever the bytes say:
//!
//! 1. Nothing is read past the file's end, and nothing is written to an opened file but by [`db`].
//! 2. A page is at most [`PAGE_BYTES_MAX`] bytes in memory; a walk holds [`HELD_BYTES_MAX`] (four
//!    pages, where that is more), and two bits a page besides.
//! 3. A walk looks at each page once, so its work is linear in the file; trees deeper than
//!    [`DEPTH_MAX`] are not followed.
//! 4. Damage is a finding; an error means that the file could not be opened or read.
//!
//! [`File`] opens, [`walk::walk`] visits and checks everything in one pass, [`cursor::Cursor`]
//! goes through one bucket in key order, [`builder::Builder`] writes a packed new file, [`db::Db`]
//! changes a file in place while others read it, through [`disk::Disk`].
//!
//! Source: go.etcd.io/bbolt 1.3.12, 1.4.3, 1.5.0 (`db.go`, `tx_check.go`, `bucket.go`).

#![deny(
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]
// Tests may compute with plain operators: an overflow there fails the test.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::as_conversions))]

mod ahead;
pub mod builder;
pub mod cursor;
pub mod db;
pub mod disk;
pub mod edit;
pub mod orphan;
pub mod overlay;
mod page;
pub mod rebuild;
pub mod source;
pub mod walk;

use std::io;
use std::path::Path;

use ahead::Ahead;
pub use cursor::Bucket;
pub use page::{Page, PageFault};
pub use source::Source;
pub use walk::{At, Visit};

use crate::format::finding::{Code, Finding, Place};
use crate::format::meta::{self, Meta, MetaError};

/// Largest page, overflow included, that is read into memory: 1 GiB.
pub const PAGE_BYTES_MAX: u64 = 1 << 30;
/// Bytes of pages that a walk keeps while it is below them: 32 MiB.
pub const HELD_BYTES_MAX: u64 = 32 << 20;
/// Deepest tree that is followed, nested buckets counted in.
pub const DEPTH_MAX: usize = 256;

/// A file that cannot be opened or searched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system said no.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The file has no bytes.
    #[error("the file is empty")]
    Empty,
    /// Neither meta page is valid.
    #[error("not a bbolt database: meta page 0: {0}; meta page 1: {1}")]
    NoMeta(MetaError, MetaError),
    /// A page on the way could not be used.
    #[error("page {}: {}", .0.page, .0.detail)]
    Page(PageFault),
}

/// An open bbolt file.
#[derive(Debug)]
pub struct File {
    source: Source,
    meta: Meta,
    metas: [Result<Meta, MetaError>; 2],
}

impl File {
    /// Opens a file for reading only; takes no lock.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::from_source(Source::open(path)?)
    }

    /// Opens bytes in memory.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Error> {
        Self::from_source(Source::from_bytes(bytes))
    }

    /// Opens a source: finds the page size and the meta that serves.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn from_source(source: Source) -> Result<Self, Error> {
        if source.is_empty() {
            return Err(Error::Empty);
        }
        let meta_at = |offset: u64| -> Result<Result<Meta, MetaError>, Error> {
            Ok(Meta::decode(&source.read_up_to(offset, meta::META_END)?))
        };
        let meta0 = meta_at(0)?;
        let meta1 = match meta0 {
            Ok(meta) => meta_at(u64::from(meta.page_size))?,
            // Meta 1 stands one page in, and says itself how large that page is.
            Err(_) => {
                let mut found = meta_at(4096)?;
                for shift in 10..=24_u32 {
                    let size = 1_u32.checked_shl(shift).unwrap_or(u32::MAX);
                    match meta_at(u64::from(size))? {
                        Ok(meta) if meta.page_size == size => {
                            found = Ok(meta);
                            break;
                        }
                        _ => {}
                    }
                }
                found
            }
        };
        // Two valid metas of one file have one page size; else the second is not a meta of it.
        let meta1 = match (meta0, meta1) {
            (Ok(a), Ok(b)) if a.page_size != b.page_size => Err(MetaError::PageSize),
            (_, other) => other,
        };
        let meta = match meta::pick(meta0, meta1) {
            Ok(meta) => meta,
            Err(first) => {
                return Err(Error::NoMeta(first, meta1.err().unwrap_or(first)));
            }
        };
        Ok(Self { source, meta, metas: [meta0, meta1] })
    }

    /// Takes a source and the meta to read it by.
    fn at(source: Source, meta: Meta) -> Self {
        Self { source, meta, metas: [Ok(meta), Ok(meta)] }
    }

    /// Returns the meta that serves.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Returns both meta pages as they were found.
    pub fn metas(&self) -> &[Result<Meta, MetaError>; 2] {
        &self.metas
    }

    /// Returns the page size in bytes.
    #[must_use]
    pub fn page_size(&self) -> u32 {
        self.meta.page_size
    }

    /// Returns how many pages may be in use: no more than the file has room for.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        let size = u64::from(self.meta.page_size).max(1);
        self.meta.high_water_mark.min(self.source.len().div_ceil(size))
    }

    /// Returns where the bytes come from.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Reads a branch or leaf page with its overflow.
    ///
    /// # Errors
    /// Out of bounds, cut off, of another id or type, too large, or unreadable.
    pub fn page(&self, id: u64) -> Result<Page, PageFault> {
        Page::read(self, id, &mut Ahead::new(&self.source), &mut |_| Ok(()))
    }

    /// Checks the two meta pages against each other and the file's length.
    #[must_use]
    pub fn check_metas(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (id, meta) in (0_u64..).zip(&self.metas) {
            if let Err(error) = meta {
                let offset = id.saturating_mul(u64::from(self.meta.page_size));
                let place = Place { page: Some(id), offset: Some(offset), ..Place::default() };
                let detail = format!("meta page {id}: {error}; the file is read by the other one");
                findings.push(Finding::new(Code::MetaOne, place, detail));
            }
        }
        if let [Ok(a), Ok(b)] = &self.metas
            && (a.root, a.freelist, a.high_water_mark) != (b.root, b.freelist, b.high_water_mark)
        {
            let detail = format!(
                "meta 0 has transaction {} and root page {}, meta 1 transaction {} and root page \
                 {}",
                a.txid, a.root, b.txid, b.root
            );
            findings.push(Finding::new(Code::MetaDiffer, Place::default(), detail));
        }
        let (size, want) = (self.source.len(), self.meta.size_bytes());
        if size < want {
            let detail = format!(
                "the file has {size} bytes, its meta says {want} ({} pages of {}): {} bytes are \
                 missing",
                self.meta.high_water_mark,
                self.meta.page_size,
                want.saturating_sub(size)
            );
            let place = Place { offset: Some(size), ..Place::default() };
            findings.push(Finding::new(Code::FileTruncated, place, detail));
        }
        findings
    }
}

#[cfg(test)]
mod tests;
