//! A bbolt file that is changed in place while others read it.
//!
//! [`Db`] has one writer at a time and any number of [`View`]s, each of which sees the file as it
//! was when the view was taken, however long it lives. A [`Batch`] of rows is one transaction: it
//! is there as a whole or not at all, also after a loss of power.
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

mod alloc;
mod cache;
mod commit;
mod many;
mod node;
mod tree;
mod view;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::FlockOperation;
pub use tree::ROW_BYTES_MAX;
pub use view::{View, VisitRow};

use self::alloc::{Alloc, Run};
use self::commit::Writer;
use self::view::{Moment, Shared};
use super::disk::{Disk, DiskFile};
use super::walk::{Bits, Ignore, Visit, Walk, walk_marking};
use super::{DEPTH_MAX, File, Source, orphan};
use crate::format::finding::Severity;
use crate::format::meta::{Meta, NO_FREELIST, PAGE_SIZE_MAX, PAGE_SIZE_MIN};
use crate::format::page::{FREELIST, Header, LEAF};
use crate::format::usize_of;

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
    #[error("the database is in use: its lock is held")]
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
    /// A row is planned where a bucket is, or the other way round.
    #[error("a row and a bucket want the same name")]
    Nesting,
}

impl Error {
    fn too_deep(page: u64) -> Self {
        Self::Damaged(format!("page {page} is deeper than {DEPTH_MAX} levels"))
    }

    fn txid(txid: u64) -> Self {
        Self::Damaged(format!("transaction {txid} is the last that there can be"))
    }

    fn shared(page: u64) -> Self {
        Self::Damaged(format!("page {page}: pages are shared or form a cycle"))
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

impl From<super::Error> for Error {
    fn from(error: super::Error) -> Self {
        match error {
            super::Error::Io(error) => error.into(),
            other => Self::Damaged(other.to_string()),
        }
    }
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

    /// Plans many rows of a bucket, as [`Batch::plan`] does one after the other.
    pub fn plan_all(
        &mut self,
        bucket: &[u8],
        rows: impl IntoIterator<Item = (Bytes, Option<Bytes>)>,
    ) {
        self.bucket(bucket);
        if let Some(planned) = self.buckets.get_mut(bucket) {
            planned.extend(rows);
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

/// Where the time of a commit went.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// Laying out pages.
    pub layout: Duration,
    /// Writing and syncing them, and the meta.
    pub write: Duration,
}

/// An open database; a clone is the same one.
///
/// The lock is held until the last clone and the last view are dropped, or [`Db::close`].
#[derive(Clone, Debug)]
pub struct Db {
    handle: Arc<Handle>,
}

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    current: RwLock<Arc<Moment>>,
    writer: Mutex<Writer>,
    poison: OnceLock<String>,
}

impl Db {
    /// Makes a new empty file as bbolt does, synced, its directory not; takes the lock.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn create(disk: &Disk, path: &Path, options: &Options) -> Result<Self, Error> {
        let page_size = options.page_size;
        if !page_size.is_power_of_two() || !(PAGE_SIZE_MIN..=PAGE_SIZE_MAX).contains(&page_size) {
            let what = format!("a page size of {page_size} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what).into());
        }
        let file = disk.create(path)?;
        lock(&file)?;
        let page_bytes = usize_of(u64::from(page_size));
        let meta = Meta {
            page_size,
            flags: 0,
            root: 3,
            sequence: 0,
            freelist: 2,
            high_water_mark: 4,
            txid: 1,
        };
        let header = |id, flags| Header { id, flags, count: 0, overflow: 0 }.encode().to_vec();
        let pages = [
            Meta { txid: 0, ..meta }.encode(0),
            meta.encode(1),
            header(2, FREELIST),
            header(3, LEAF),
        ];
        let mut bytes = Vec::with_capacity(page_bytes.saturating_mul(pages.len()));
        for mut page in pages {
            page.resize(page_bytes, 0);
            bytes.append(&mut page);
        }
        file.write_all_at(&bytes, 0)?;
        file.sync()?;
        let alloc = Alloc::new([], meta.high_water_mark);
        Ok(Self::new(Arc::new(file), options, meta, 1, Some((2, 1)), alloc))
    }

    /// Opens a file and takes bbolt's lock (flock), without waiting: the exclusive one, or the
    /// shared one where the disk is only read.
    ///
    /// The whole tree is walked and checked; a stored freelist is not used.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn open(disk: &Disk, path: &Path, options: &Options) -> Result<Self, Error> {
        Self::open_visiting(disk, path, options, &mut Ignore)
    }

    /// Opens a file as [`Db::open`] does, and shows all buckets and rows while it is walked: what
    /// a visitor is shown of a damaged file is not to be used.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn open_visiting(
        disk: &Disk,
        path: &Path,
        options: &Options,
        visitor: &mut dyn Visit,
    ) -> Result<Self, Error> {
        let file = disk.open(path)?;
        lock(&file)?;
        let file = Arc::new(file);
        let opened = File::from_source(Source::shared(file.clone(), file.len()?, None))?;
        // What is read may be in memory only, left by a process that died before it synced; were
        // its meta lost after pages that it frees were used again, the older one would name them.
        file.sync()?;
        let (walked, used) = walk_marking(&opened, visitor);
        if let Some(damage) = damage(&walked) {
            return Err(Error::Damaged(damage));
        }
        let meta = *opened.meta();
        // The meta may still have to serve, so its freelist stays until it is replaced.
        let freelist = Some(meta.freelist).filter(|id| *id != NO_FREELIST);
        let freelist =
            freelist.filter(|_| walked.freelist_pages > 0).map(|id| (id, walked.freelist_pages));
        let alloc = Alloc::new(free_runs(&used, meta.high_water_mark), meta.high_water_mark);
        let [first, second] = opened.metas();
        let slot = match (first, second) {
            (Ok(first), _) if *first == meta => 0,
            (_, Ok(_)) => 1,
            _ => 0,
        };
        Ok(Self::new(file, options, meta, slot, freelist, alloc))
    }

    fn new(
        file: Arc<DiskFile>,
        options: &Options,
        meta: Meta,
        slot: u64,
        freelist: Option<Run>,
        alloc: Alloc,
    ) -> Self {
        let shared = Arc::new(Shared::new(file, options.cache_bytes));
        let sizes = Sizes::new(&meta, &alloc);
        let moment = Arc::new(Moment::new(shared.clone(), meta, sizes));
        let growth_bytes = options.growth_bytes;
        let writer = Mutex::new(Writer { alloc, slot, freelist, growth_bytes });
        let (current, poison) = (RwLock::new(moment), OnceLock::new());
        Self { handle: Arc::new(Handle { shared, current, writer, poison }) }
    }

    /// Takes a view.
    #[must_use]
    pub fn view(&self) -> View {
        let current = self.handle.current.read().unwrap_or_else(PoisonError::into_inner);
        View { moment: current.clone() }
    }

    /// Makes the changes of a batch durable; waits for another commit to end. Where nothing
    /// changes, nothing is written, but that what the commit before freed counts as free.
    ///
    /// # Errors
    /// See [`Error`]. Nothing is changed then, but that after a failed write or sync the file holds
    /// either state when it is opened again. A disk that is full before anything is written is no
    /// such failure.
    pub fn commit(&self, batch: Batch) -> Result<Sizes, Error> {
        self.commit_timed(batch).map(|(sizes, _)| sizes)
    }

    /// The same, and tells what took how long.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn commit_timed(&self, batch: Batch) -> Result<(Sizes, Spent), Error> {
        self.handle.commit(batch, true)
    }

    /// Makes the changes of a batch, of which nothing is durable before [`Db::sync`]: until then a
    /// loss of power may leave the file damaged. For a file that has not got its name yet.
    ///
    /// # Errors
    /// See [`Db::commit`].
    pub fn commit_unsynced(&self, batch: Batch) -> Result<Sizes, Error> {
        self.handle.commit(batch, false).map(|(sizes, _)| sizes)
    }

    /// Makes everything that was committed durable.
    ///
    /// # Errors
    /// The disk fails, or failed before; nothing can be written any more.
    pub fn sync(&self) -> Result<(), Error> {
        self.handle.sync()
    }

    /// Returns how large the database is now.
    #[must_use]
    pub fn sizes(&self) -> Sizes {
        self.view().sizes()
    }

    /// Number of transactions that a view holds, or that views get.
    #[must_use]
    pub fn moment_count(&self) -> usize {
        self.handle.shared.live().len()
    }

    /// Ends all writing and reading, and gives up the lock although clones and views may still be
    /// there: what they read from the file from now on fails, since the next one who opens it uses
    /// their pages again.
    pub fn close(&self) {
        let writer = self.handle.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.handle.poison.set("it was closed".into());
        self.handle.shared.file.give_up();
        // The lock goes with the last handle in any case.
        let _ = rustix::fs::flock(self.handle.shared.file.file(), FlockOperation::Unlock);
        drop(writer);
    }

    /// Ends all writing to a file that has no name any more, and takes its metas away: a program
    /// that had opened it by its name, and gets its lock now, must not go on with it. Views read
    /// on.
    ///
    /// # Errors
    /// The disk fails.
    pub fn disown(&self) -> Result<(), Error> {
        let writer = self.handle.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.handle.poison.set("it has no name any more".into());
        let page_bytes = self.view().moment.meta().page_size;
        let file = &self.handle.shared.file;
        orphan::invalidate(page_bytes, &mut |bytes, offset| file.write_all_at(bytes, offset))?;
        drop(writer);
        Ok(())
    }

    /// Returns the length of both metas' pages, in bytes.
    #[must_use]
    pub fn metas_bytes(&self) -> u64 {
        u64::from(self.view().moment.meta().page_size).saturating_mul(2)
    }

    /// Takes the file out of a database that nobody else holds, with a view of it: no clone, no
    /// other view. The lock is held as long as the file is open.
    #[must_use]
    pub fn into_file(self, view: View) -> Option<DiskFile> {
        drop(view);
        let Handle { shared, current, .. } = Arc::into_inner(self.handle)?;
        drop(current);
        Arc::into_inner(Arc::into_inner(shared)?.file)
    }

    /// Why nothing can be written any more.
    #[must_use]
    pub fn poison(&self) -> Option<String> {
        self.handle.poison.get().cloned()
    }
}

impl Sizes {
    fn new(meta: &Meta, alloc: &Alloc) -> Self {
        let free_bytes = alloc.count().saturating_mul(u64::from(meta.page_size));
        let size_bytes = meta.size_bytes();
        Self { size_bytes, in_use_bytes: size_bytes.saturating_sub(free_bytes) }
    }
}

/// Locks a file, for others who only read as well where it is only read.
fn lock(file: &DiskFile) -> Result<(), Error> {
    let is_read_only = file.is_read_only();
    let kind = match is_read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    match rustix::fs::flock(file.file(), kind) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Locked),
        // A file system without locks: a copy can be read from there.
        Err(_) if is_read_only => Ok(()),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// Says what keeps a file from being changed; a freelist is not needed.
fn damage(walked: &Walk) -> Option<String> {
    let code = walked.findings.errors().find(|code| !code.is_freelist())?;
    let is_damage = |code: crate::format::finding::Code| {
        code.severity() == Severity::Error && !code.is_freelist()
    };
    let finding = walked.findings.kept().iter().find(|finding| is_damage(finding.code));
    Some(match finding {
        Some(finding) => match finding.place.page {
            Some(page) => format!("page {page}: {}", finding.detail),
            None => finding.detail.clone(),
        },
        None => code.meaning().to_owned(),
    })
}

/// Lists the runs of pages that are not in use.
fn free_runs(used: &Bits, mark: u64) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for id in (2..mark).filter(|id| !used.get(*id)) {
        match runs.last_mut().filter(|(first, span)| first.saturating_add(*span) == id) {
            Some((_, span)) => *span = span.saturating_add(1),
            None => runs.push((id, 1)),
        }
    }
    runs
}

#[cfg(test)]
mod tests;
