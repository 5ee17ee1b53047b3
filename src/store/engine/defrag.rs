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
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::aside::aside;
use super::backend::{self, storage};
use super::pace::Pace;
use super::{Shared, Store};
use crate::bolt::builder::{self, Builder};
use crate::bolt::db::{Db, View};
use crate::bolt::disk::DiskFile;
use crate::bolt::orphan;
use crate::bolt::rebuild::Rebuild;
use crate::bolt::walk::walk;
use crate::bolt::{At, Visit};
use crate::format::u64_of;
use crate::store::error::Error;
use crate::store::guard::{Caller, Wish};

/// Bytes of the copy between two syncs.
const SLICE_BYTES: usize = 4 << 20;
/// Bytes that are cut off the file before at once.
const CUT_BYTES: usize = 4 << 20;
/// How many times as long the disk is left to others after that.
const CUT_PRICE: u32 = 2;
/// How long the disk is left to others after one, at most.
const REST_MAX: Duration = Duration::from_millis(50);
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
        shared.check_writable()?;
        shared.check(caller, Wish::Admin)?;
        let _one = shared.defragmenting.lock().unwrap_or_else(PoisonError::into_inner);
        check_room(shared)?;
        let path = shared.snap_dir.join("db");
        let copy = shared.snap_dir.join(format!("db.tmp.{:016x}", shared.new_id()));
        let copying = Copying { shared, copy };
        let figures = shared.figures.defragmenting();
        defragment(shared, &path, &copying.copy).inspect(|()| figures.done())
    }

    /// Tells whether the database is being written anew.
    #[must_use]
    pub fn is_defragmenting(&self) -> bool {
        self.shared().figures.is_defragmenting.load(Ordering::Relaxed)
    }
}

/// Makes sure that the copy leaves room on the disk for what is written meanwhile: a disk that it
/// filled would stop the store.
fn check_room(shared: &Shared) -> Result<(), Error> {
    let Ok(stat) = rustix::fs::statvfs(&shared.snap_dir) else { return Ok(()) };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let growth = shared.options.database.growth_bytes;
    let log = shared.options.wal_segment_bytes.saturating_mul(2);
    let sizes = shared.core.read(|mvcc| mvcc.view().sizes())?;
    let wanted = sizes.in_use_bytes.saturating_add(growth).saturating_add(log);
    if free >= wanted {
        return Ok(());
    }
    let what = format!(
        "{} has {free} bytes free, and a copy of the database with what is written meanwhile needs \
         {wanted}; free room there and try again",
        shared.snap_dir.display()
    );
    Err(Error::Storage(what))
}

/// Ends the recording of batches, and removes a copy that did not become the database, also when
/// the copying panics.
struct Copying<'a> {
    shared: &'a Shared,
    copy: PathBuf,
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        self.shared.backend.writing().recorded = None;
        if self.copy.exists() {
            let _ = self.shared.options.disk.remove(&self.copy);
        }
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
        shared.backend.record(&mut writing);
        view
    };
    let db = aside("copy", move || {
        let pace = Pace::new(shared);
        build(shared, &view, copy, &pace)?;
        drop(view);
        let options = &shared.options;
        let mut visitor = Paced { shared, pace: &pace };
        let db = Db::open_visiting(&options.disk, copy, &options.database, &mut visitor);
        if let Some(error) = shared.health.refusal() {
            return Err(error);
        }
        let db = db.map_err(|error| storage(&error))?;
        catch_up(shared, &db, &pace)?;
        Ok::<Db, Error>(db)
    });
    let db = db.map_err(|error| Error::Storage(format!("cannot start a thread: {error}")))??;
    let (before, swapped) = swap(shared, db, path, copy);
    if let (Some((before, last)), Ok(())) = (before, &swapped) {
        let_go(shared, before, last);
    }
    swapped
}

/// Lets go of a file that has no name any more, with no lock held. All at once that keeps the log
/// from its disk for long, so that a large one is cut bit by bit; where somebody still reads it,
/// whoever is the last to let go of it removes it.
///
/// An etcd that was started on the directory meanwhile has opened it and waits for its lock. It
/// must not run on a file without a name: it finds no meta page, and ends. Nor may the file become
/// empty, which bbolt takes for a new one. Where another process is seen with it, which may copy
/// it, it is not cut.
fn let_go(shared: &Shared, before: Db, last: View) {
    let least = before.metas_bytes();
    if before.disown().is_err() {
        return;
    }
    let Some(file) = before.into_file(last) else { return };
    if orphan::with_open(file.file()).is_some() {
        return;
    }
    let pace = Pace::new(shared);
    let mut left = file.len().unwrap_or(0);
    while left > least && shared.health.refusal().is_none() {
        left = left.saturating_sub(u64_of(CUT_BYTES)).max(least);
        let began = Instant::now();
        if file.set_len(left).is_err() {
            return;
        }
        pace.charge_disk(began.elapsed().min(REST_MAX).saturating_mul(CUT_PRICE));
    }
}

/// Brings what was committed meanwhile to the copy, until little is left. Nothing of that is synced
/// batch by batch, as a copy that is not whole is no loss, but often enough that no sync of the log
/// has much to wait for.
fn catch_up(shared: &Shared, db: &Db, pace: &Pace<'_>) -> Result<(), Error> {
    let mut bytes_before = usize::MAX;
    for _ in 0..ROUNDS_MAX {
        let recorded = shared.backend.take_recorded().ok_or_else(given_up)?;
        // Where this would go on without an end, writers do not go first any more.
        let is_endless = recorded.bytes > bytes_before / 2;
        bytes_before = recorded.bytes;
        let batch_bytes = bytes_before.checked_div(recorded.batches.len()).unwrap_or(0);
        let mut unsynced = 0_usize;
        for batch in recorded.batches {
            if let Some(error) = shared.health.refusal() {
                return Err(error);
            }
            pace.hurry(is_endless || shared.backend.is_copy_late(shared));
            unsynced = unsynced.saturating_add(batch_bytes);
            db.commit_unsynced(batch).map_err(|error| storage(&error))?;
            pace.yield_to_writers();
            if unsynced >= SLICE_BYTES {
                unsynced = 0;
                sync(db, pace)?;
            }
        }
        sync(db, pace)?;
        if bytes_before < REST_BYTES {
            return Ok(());
        }
    }
    Err(given_up())
}

fn sync(db: &Db, pace: &Pace<'_>) -> Result<(), Error> {
    let began = Instant::now();
    db.sync().map_err(|error| storage(&error))?;
    pace.charge_disk(began.elapsed().min(REST_MAX));
    Ok(())
}

/// Brings the rest over and lets the copy take the database's place, while nobody commits. Gives
/// back the database before, and its last view.
fn swap(
    shared: &Shared,
    db: Db,
    path: &Path,
    copy: &Path,
) -> (Option<(Db, View)>, Result<(), Error>) {
    let disk = &shared.options.disk;
    let mut writing = shared.backend.writing();
    let named = |error: io::Error| Error::Storage(format!("{}: {error}", path.display()));
    let renamed = (|| {
        // What was applied goes to the old file once more, so that it is whole should this fail.
        let last = backend::commit_locked(shared, &mut writing)?;
        let recorded = writing.recorded.take().ok_or_else(given_up)?;
        for batch in recorded.batches {
            db.commit_unsynced(batch).map_err(|error| storage(&error))?;
        }
        db.sync().map_err(|error| storage(&error))?;
        disk.rename(copy, path).map_err(named)?;
        Ok(last)
    })();
    let last = match renamed {
        Ok(last) => last,
        Err(error) => return (None, Err(error)),
    };
    // From here on the old file has no name: a store that goes on with it would lose what it
    // saves.
    let settled = disk.sync_dir(&shared.snap_dir).map_err(named);
    let view = db.view();
    let before = shared.backend.replace(&mut writing, db).map(|before| (before, last));
    let noted = backend::note_view(shared, view);
    if let Err(error) = &settled {
        // Before anybody saves anything in it.
        shared.fail(error);
    }
    drop(writing);
    (before, settled.and(noted))
}

/// Writes a packed copy of a view, synced.
fn build(shared: &Shared, view: &View, copy: &Path, pace: &Pace<'_>) -> Result<(), Error> {
    let failed = |error: io::Error| Error::Storage(format!("{}: {error}", copy.display()));
    let built = |error: builder::Error| Error::Storage(format!("{}: {error}", copy.display()));
    let file = view.file().map_err(|error| storage(&error))?;
    let file_out = shared.options.disk.create(copy).map_err(failed)?;
    let out = Output { pace, file: file_out, offset: 0, unsynced: 0 };
    let out = BufWriter::with_capacity(1 << 20, out);
    let builder = Builder::new(out, file.page_size()).map_err(built)?;
    let mut rebuild = Rebuild::new(builder);
    let mut visitor = WhileOpen { shared, pace, rebuild: &mut rebuild };
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

/// Walks at a pace for as long as the store is open.
struct Paced<'a, 'b> {
    shared: &'a Shared,
    pace: &'a Pace<'b>,
}

impl Visit for Paced<'_, '_> {
    fn bucket(&mut self, _: &At<'_>, _: u64) {}

    fn entry(&mut self, _: &At<'_>, _: &[u8], _: &[u8]) {}

    fn page(&mut self, _: u64) -> bool {
        // What was not walked would count as free; a store that ends drops the copy.
        go_on(self.shared, self.pace)
    }
}

/// Lets writers go first where there is time for that; tells whether the store is open.
fn go_on(shared: &Shared, pace: &Pace<'_>) -> bool {
    pace.hurry(shared.backend.is_copy_late(shared));
    pace.yield_to_writers();
    shared.health.refusal().is_none()
}

/// Copies for as long as the store is open.
struct WhileOpen<'a, 'b, W> {
    shared: &'a Shared,
    pace: &'a Pace<'b>,
    rebuild: &'a mut Rebuild<W>,
}

impl<W: Write + Seek> Visit for WhileOpen<'_, '_, W> {
    fn bucket(&mut self, at: &At<'_>, sequence: u64) {
        self.rebuild.bucket(at, sequence);
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.rebuild.entry(at, key, value);
    }

    fn page(&mut self, entered: u64) -> bool {
        self.rebuild.page(entered) && go_on(self.shared, self.pace)
    }
}

/// A file as a stream, which leaves the disk to the log for at least as long as it uses it: what
/// is written is synced little by little, so that no sync of the log has much to wait for.
#[derive(Debug)]
struct Output<'a, 'b> {
    pace: &'a Pace<'b>,
    file: DiskFile,
    offset: u64,
    unsynced: usize,
}

impl Write for Output<'_, '_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.file.write_all_at(buffer, self.offset)?;
        self.offset = self.offset.saturating_add(u64_of(buffer.len()));
        self.unsynced = self.unsynced.saturating_add(buffer.len());
        if self.unsynced >= SLICE_BYTES {
            self.unsynced = 0;
            let began = Instant::now();
            self.file.sync()?;
            self.pace.charge_disk(began.elapsed().min(REST_MAX));
        }
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Output<'_, '_> {
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
