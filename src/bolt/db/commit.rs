//! How a transaction gets to the disk.
//!
//! Grow and sync; pages, ascending, and sync; the meta, and sync. Until the meta is written the
//! file holds the state before, since no page that its meta reaches is written to.
//!
//! Source: go.etcd.io/bbolt `tx.Commit`, `db.grow` (1.4.3).

use std::io;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use super::alloc::{Alloc, Run};
use super::node::Node;
use super::tree::Edit;
use super::view::Moment;
use super::{Batch, Error, Handle, Sizes, Spent};
use crate::format::meta::{Meta, NO_FREELIST};
use crate::format::usize_of;

/// Most bytes of pages that are put together for one write.
const WRITE_BYTES_MAX: usize = 4 << 20;

/// What only a commit touches.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) alloc: Alloc,
    /// The meta page that serves, 0 or 1.
    pub(super) slot: u64,
    /// Pages of the freelist that the meta names.
    pub(super) freelist: Option<Run>,
    pub(super) growth_bytes: u64,
}

impl Handle {
    /// See [`super::Db::commit_timed`] and [`super::Db::commit_unsynced`].
    pub(super) fn commit(&self, batch: Batch, is_synced: bool) -> Result<(Sizes, Spent), Error> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = self.poison.get() {
            return Err(Error::Poisoned(why.clone()));
        }
        let moment = self.current.read().unwrap_or_else(PoisonError::into_inner).clone();
        let old = *moment.meta();
        let next = |txid: u64| txid.checked_add(1).ok_or_else(|| Error::txid(txid));
        let mut txid = next(old.txid)?;
        // The meta that serves is where the next one belongs, as in a copy that bbolt made.
        if txid % 2 == writer.slot {
            txid = next(txid)?;
        }
        writer.alloc.begin(txid, &self.shared.live());
        if let Some(freelist) = writer.freelist {
            writer.alloc.free(freelist);
        }
        let began = Instant::now();
        let made = match Edit::new(&moment, &mut writer.alloc).run(batch) {
            Ok(Some(made)) => made,
            Ok(None) => {
                writer.alloc.undo();
                // What the transaction before it freed is free now, as after any other.
                let sizes = Sizes::new(&old, &writer.alloc);
                moment.note_in_use(sizes);
                return Ok((sizes, Spent::default()));
            }
            Err(error) => {
                writer.alloc.undo();
                return Err(error);
            }
        };
        let (root, mut pages) = made;
        let laid_out = Instant::now();
        let high_water_mark = writer.alloc.mark();
        let meta = Meta { root, freelist: NO_FREELIST, high_water_mark, txid, ..old };
        let has_grown = match self.grow(&meta, writer.growth_bytes) {
            Ok(has_grown) => has_grown,
            Err(error) => {
                writer.alloc.undo();
                // Nothing was written, and what the file was is still all there.
                if !is_full(&error) {
                    self.poison_by(&error);
                }
                return Err(error.into());
            }
        };
        pages.sort_unstable_by_key(Node::id);
        if let Err(error) = self.write(&meta, &pages, has_grown, is_synced) {
            self.poison_by(&error);
            return Err(error.into());
        }
        let spent =
            Spent { layout: laid_out.saturating_duration_since(began), write: laid_out.elapsed() };
        writer.alloc.commit();
        writer.freelist = None;
        writer.slot = txid % 2;
        let sizes = Sizes::new(&meta, &writer.alloc);
        // Before a view reaches them; what was under their ids, no view does.
        pages.into_iter().for_each(|page| self.shared.cache.put(page));
        let moment = Arc::new(Moment::new(self.shared.clone(), meta, sizes));
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = moment;
        Ok((sizes, spent))
    }

    /// Makes the file long enough for a page behind the last one; tells whether it was not.
    fn grow(&self, meta: &Meta, growth_bytes: u64) -> io::Result<bool> {
        let file = &self.shared.file;
        let need = meta.size_bytes().saturating_add(u64::from(meta.page_size));
        if need <= file.len()? {
            return Ok(false);
        }
        match file.allocate(need.saturating_add(growth_bytes)) {
            // The last bytes of a disk are good for a small step.
            Err(error) if is_full(&error) => file.allocate(need)?,
            done => done?,
        }
        Ok(true)
    }

    /// Writes pages, ascending, and then the meta. A file that has grown is synced first: its new
    /// length is there before anything is in it.
    fn write(
        &self,
        meta: &Meta,
        pages: &[Node],
        has_grown: bool,
        is_synced: bool,
    ) -> io::Result<()> {
        let file = &self.shared.file;
        let sync = || if is_synced { file.sync() } else { Ok(()) };
        if has_grown {
            sync()?;
        }
        let page_bytes = u64::from(meta.page_size);
        let mut rest = pages;
        let mut buffer = Vec::new();
        while let Some(first) = rest.first() {
            let start = first.id();
            let (mut end, mut bytes) = (start, 0_usize);
            let follows = |page: &&Node| {
                let fits =
                    bytes == 0 || bytes.saturating_add(page.bytes().len()) <= WRITE_BYTES_MAX;
                let follows = page.id() == end && fits;
                end = end.saturating_add(page.span(meta.page_size));
                bytes = bytes.saturating_add(page.bytes().len());
                follows
            };
            let count = rest.iter().take_while(follows).count();
            let (here, later) = rest.split_at_checked(count).unwrap_or((rest, &[]));
            rest = later;
            let offset = start.saturating_mul(page_bytes);
            if let [only] = here {
                file.write_all_at(only.bytes(), offset)?;
                continue;
            }
            buffer.clear();
            here.iter().for_each(|page| buffer.extend_from_slice(page.bytes()));
            file.write_all_at(&buffer, offset)?;
        }
        sync()?;
        let slot = meta.txid % 2;
        let mut page = meta.encode(slot);
        page.resize(usize_of(page_bytes), 0);
        file.write_all_at(&page, slot.saturating_mul(page_bytes))?;
        sync()
    }

    /// See [`super::Db::sync`].
    pub(super) fn sync(&self) -> Result<(), Error> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = self.poison.get() {
            return Err(Error::Poisoned(why.clone()));
        }
        let synced = self.shared.file.sync();
        drop(writer);
        synced.map_err(|error| {
            self.poison_by(&error);
            error.into()
        })
    }

    fn poison_by(&self, error: &io::Error) {
        let _ = self.poison.set(error.to_string());
    }
}

/// Tells a disk, or a share of it, that has no room.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
