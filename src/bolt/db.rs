//! A bbolt file that is changed in place while others read it.
//!
//! [`Db`] has one writer at a time and any number of [`View`]s, each of which sees the file as it
//! was when the view was taken, however long it lives. A [`Batch`] of rows is one transaction: it is
//! there as a whole or not at all, also after a loss of power.
//!
//! 1. A commit writes changed pages where no valid meta and no view reaches, grows the file first
//!    where it must, syncs, writes the one meta that does not serve, and syncs again.
//! 2. Pages that transaction T frees are used again by T+1 at the earliest, and not before every
//!    view older than T is gone.
//! 3. Free pages are found by walking the tree when the file is opened; no freelist is stored.
//! 4. After a failed write or sync the handle is poisoned: it reads on and never writes again.
//! 5. Bytes that are hostile give an error that names the page, never a panic or a loop.
//!
//! Source: go.etcd.io/bbolt `db.go`, `tx.go`, `node.go`, `freelist` (1.4.3).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use bytes::Bytes;

use super::disk::Disk;
use super::{File, disk};

/// How a file is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Page size of a new file, in bytes.
    pub page_size: u32,
    /// Bytes that the file grows by at least; etcd's is 16 MiB.
    pub growth_bytes: u64,
    /// Bytes of pages kept in memory.
    pub cache_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { page_size: 4096, growth_bytes: 16 << 20, cache_bytes: 16 << 20 }
    }
}

/// Why a file cannot be opened, read or changed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another process has the file; the lock is not waited for.
    #[error("the database is locked by another process")]
    Locked,
    /// The disk said no.
    #[error("{0}")]
    Io(std::sync::Arc<std::io::Error>),
    /// The file is damaged or no bbolt file.
    #[error("{0}")]
    Damaged(String),
    /// An earlier write or sync failed.
    #[error("the database was closed for writing after an error: {0}")]
    Poisoned(String),
    /// A key or value that bbolt does not store.
    #[error("a key or value of a size that bbolt does not store")]
    Size,
}

/// Rows to be changed in one transaction; the last change of a row counts.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// By bucket: rows in the order in which they were planned. A bucket that is not there is made,
    /// also one without rows.
    pub(super) buckets: BTreeMap<Vec<u8>, Vec<(Bytes, Option<Bytes>)>>,
}

impl Batch {
    /// Plans a bucket to be there.
    pub fn bucket(&mut self, name: &[u8]) {
        if !self.buckets.contains_key(name) {
            self.buckets.insert(name.to_vec(), Vec::new());
        }
    }

    /// Plans a row to be put, or to be dropped where there is no value.
    pub fn plan(&mut self, bucket: &[u8], key: Bytes, value: Option<Bytes>) {
        match self.buckets.get_mut(bucket) {
            Some(rows) => rows.push((key, value)),
            None => drop(self.buckets.insert(bucket.to_vec(), vec![(key, value)])),
        }
    }

    /// Tells whether nothing is planned.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }
}

/// What a transaction left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Bytes up to the high-water mark: what etcd calls the database's size.
    pub size_bytes: u64,
    /// The same without free pages; pages that a view holds are not free.
    pub in_use_bytes: u64,
}

/// An open database; a clone is the same one.
#[derive(Clone, Debug)]
pub struct Db {}

/// The database as it was at one moment.
#[derive(Clone, Debug)]
pub struct View {}

impl Db {
    /// Makes a new empty file as bbolt does, synced, its directory not; takes the lock.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn create(disk: &Disk, path: &Path, options: &Options) -> Result<Self, Error> {
        let _ = (disk, path, options);
        todo!()
    }

    /// Opens a file and takes bbolt's exclusive lock (flock), without waiting.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn open(disk: &Disk, path: &Path, options: &Options) -> Result<Self, Error> {
        let _ = (disk, path, options);
        todo!()
    }

    /// Takes a view.
    #[must_use]
    pub fn view(&self) -> View {
        todo!()
    }

    /// Makes the changes of a batch durable; waits for another commit to end.
    ///
    /// # Errors
    /// See [`Error`]. Nothing is changed then.
    pub fn commit(&self, batch: Batch) -> Result<Sizes, Error> {
        let _ = batch;
        todo!()
    }

    /// Returns how large the database is now.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        todo!()
    }

    /// Why nothing can be written any more.
    #[must_use]
    pub fn poison(&self) -> Option<String> {
        todo!()
    }
}

impl View {
    /// Finds a row's value.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn get(&self, bucket: &[u8], key: &[u8]) -> Result<Option<Bytes>, Error> {
        let _ = (bucket, key);
        todo!()
    }

    /// Shows rows of a bucket in key order, from the first one that is not below `from`, until
    /// `visit` breaks off; nested buckets are passed over.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn each(
        &self,
        bucket: &[u8],
        from: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let _ = (bucket, from, visit);
        todo!()
    }

    /// Returns how large the database was.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        todo!()
    }

    /// Returns the view as a file for the walkers and builders of this layer: it reads the same
    /// bytes by the view's meta. The view must outlive it.
    ///
    /// # Errors
    /// The handle cannot be copied.
    pub fn file(&self) -> Result<File, Error> {
        todo!()
    }

    /// Returns the bytes of the database as a file of its own would have them, from `offset` on:
    /// both metas name this view's tree, and it ends at the high-water mark.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn read_image(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        let _ = (offset, buffer);
        todo!()
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Io(std::sync::Arc::new(error))
    }
}

#[allow(dead_code, reason = "skeleton")]
type Handle = disk::DiskFile;
