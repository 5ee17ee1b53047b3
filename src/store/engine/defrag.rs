//! Defragmentation while the store serves: a packed copy takes the database's place.
//!
//! The copy is made from a view; what is committed meanwhile is recorded and goes to the copy
//! afterwards, over and over until little is left, and given up where writers are faster; then,
//! while nobody commits, the rest, a last batch of what was applied, and the new name. The copy has
//! its own lock from the moment it is opened, so that no other program gets in between. A store
//! that is killed before the new name leaves a `db.tmp.*`, which goes when the directory is opened
//! next; one that is killed after it has a database that holds at least what the old one held.
//!
//! Source: etcd `backend.defrag`, 3.6.16, for the name and what must be the same afterwards.

use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::PoisonError;

use super::backend::{self, Recorded, storage};
use super::{Shared, Store};
use crate::bolt::builder::{self, Builder};
use crate::bolt::db::{Db, View};
use crate::bolt::disk::DiskFile;
use crate::bolt::rebuild::Rebuild;
use crate::bolt::walk::walk;
use crate::bolt::{At, Visit};
use crate::format::u64_of;
use crate::store::error::Error;
use crate::store::guard::{Caller, Wish};

/// Rounds of catching up before the last one.
const ROUNDS_MAX: usize = 20;
/// Bytes of recorded changes below which the last round begins.
const REST_BYTES: usize = 256 << 10;

impl Store {
    /// Writes the database anew without its free pages; requests are answered meanwhile.
    ///
    /// # Errors
    /// No permission, the disk, the store is closed, or more is written than the copy can follow.
    /// The database is then as it was.
    pub fn defragment(&self, caller: &Caller) -> Result<(), Error> {
        let shared = self.shared();
        shared.check(caller, Wish::Admin)?;
        let _one = shared.defragmenting.lock().unwrap_or_else(PoisonError::into_inner);
        let path = shared.snap_dir.join("db");
        let copy = shared.snap_dir.join(format!("db.tmp.{:016x}", shared.new_id()));
        let recording = Recording(shared);
        let done = defragment(shared, &path, &copy);
        drop(recording);
        if done.is_err() && copy.exists() {
            let _ = shared.options.disk.remove(&copy);
        }
        done
    }
}

/// Ends the recording of batches, also when the copy panics.
struct Recording<'a>(&'a Shared);

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.0.backend.writing().recorded = None;
    }
}

/// Gives a copy up that cannot follow: writers do not wait for it.
fn given_up() -> Error {
    let what = "requests write faster than the database is copied: it stays as it is, try again";
    Error::Storage(what.into())
}

fn defragment(shared: &Shared, path: &Path, copy: &Path) -> Result<(), Error> {
    let view = {
        let mut writing = shared.backend.writing();
        let view = backend::commit_locked(shared, &mut writing)?;
        writing.recorded = Some(Recorded::default());
        view
    };
    build(shared, &view, copy)?;
    drop(view);
    let disk = &shared.options.disk;
    let db = Db::open(disk, copy, &shared.options.database).map_err(|error| storage(&error))?;
    let ends = || match shared.health.refusal() {
        Some(error) => Err(error),
        None => Ok(()),
    };
    for _ in 0..ROUNDS_MAX {
        ends()?;
        let recorded = match &mut shared.backend.writing().recorded {
            Some(recorded) => std::mem::take(recorded),
            None => return Err(given_up()),
        };
        let is_little = recorded.bytes < REST_BYTES;
        for batch in recorded.batches {
            db.commit(batch).map_err(|error| storage(&error))?;
        }
        if is_little {
            break;
        }
    }
    swap(shared, db, path, copy)
}

/// Brings the rest over and lets the copy take the database's place, while nobody commits.
fn swap(shared: &Shared, db: Db, path: &Path, copy: &Path) -> Result<(), Error> {
    let disk = &shared.options.disk;
    let mut writing = shared.backend.writing();
    // What was applied goes to the old file once more, so that it is whole should this fail.
    backend::commit_locked(shared, &mut writing)?;
    let recorded = writing.recorded.take().ok_or_else(given_up)?;
    for batch in recorded.batches {
        db.commit(batch).map_err(|error| storage(&error))?;
    }
    let named = |error: io::Error| Error::Storage(format!("{}: {error}", path.display()));
    disk.rename(copy, path).map_err(named)?;
    // From here on the old file has no name: a store that goes on with it would lose what it
    // saves.
    let settled = disk.sync_dir(&shared.snap_dir).map_err(named);
    let view = db.view();
    shared.core.write(|mvcc| mvcc.saved(view))?;
    shared.backend.replace(&mut writing, db);
    if let Err(error) = settled {
        drop(writing);
        shared.fail(&error);
        return Err(error);
    }
    Ok(())
}

/// Writes a packed copy of a view, synced.
fn build(shared: &Shared, view: &View, copy: &Path) -> Result<(), Error> {
    let failed = |error: io::Error| Error::Storage(format!("{}: {error}", copy.display()));
    let built = |error: builder::Error| Error::Storage(format!("{}: {error}", copy.display()));
    let file = view.file().map_err(|error| storage(&error))?;
    let out = Output { file: shared.options.disk.create(copy).map_err(failed)?, offset: 0 };
    let out = BufWriter::with_capacity(1 << 20, out);
    let builder = Builder::new(out, file.page_size()).map_err(built)?;
    let mut rebuild = Rebuild::new(builder);
    let mut visitor = WhileOpen { shared, rebuild: &mut rebuild };
    let walked = walk(&file, &mut visitor);
    if let Some(error) = shared.health.refusal() {
        return Err(error);
    }
    let (_, out) = rebuild.finish(file.meta().txid).map_err(built)?;
    if !walked.tree_is_whole() {
        return Err(Error::Storage("the tree of the database is damaged".into()));
    }
    let out = out.into_inner().map_err(|error| failed(error.into_error()))?;
    out.file.sync().map_err(failed)
}

/// Copies for as long as the store is open.
struct WhileOpen<'a, W> {
    shared: &'a Shared,
    rebuild: &'a mut Rebuild<W>,
}

impl<W: Write + Seek> Visit for WhileOpen<'_, W> {
    fn bucket(&mut self, at: &At<'_>, sequence: u64) {
        self.rebuild.bucket(at, sequence);
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.rebuild.entry(at, key, value);
    }

    fn page(&mut self, entered: u64) -> bool {
        self.rebuild.page(entered) && self.shared.health.refusal().is_none()
    }
}

/// A file as a stream.
#[derive(Debug)]
struct Output {
    file: DiskFile,
    offset: u64,
}

impl Write for Output {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.file.write_all_at(buffer, self.offset)?;
        self.offset = self.offset.saturating_add(u64_of(buffer.len()));
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Output {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match to {
            SeekFrom::Start(offset) => self.offset = offset,
            SeekFrom::Current(by) => {
                self.offset =
                    self.offset.checked_add_signed(by).ok_or(io::ErrorKind::InvalidInput)?;
            }
            SeekFrom::End(_) => return Err(io::ErrorKind::Unsupported.into()),
        }
        Ok(self.offset)
    }
}
