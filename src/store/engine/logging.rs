//! The log thread: numbers requests, writes them, syncs, and hands them on to be applied.
//!
//! 1. All that waits becomes one write and one sync, the HardState that covers it in the same
//!    write: a commit index in the log is never behind what is applied.
//! 2. Nothing is delayed to make batches larger. Where the sync gathered fewer requests than it
//!    made durable, they are applied right here: whoever waits for them is answered a thread
//!    earlier, and their next requests come together. Else the apply thread takes them, and the
//!    next write begins.
//! 3. After an error nothing is written any more, and whoever waits is told that the outcome is
//!    not known.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Shared;
use super::applying::Logged;
use super::queue::{Proposal, Reply, Work};
use crate::format::u64_of;
use crate::format::wal::{Entry, HardState, Snapshot};
use crate::store::error::Error;
use crate::store::log::Wal;

/// Bytes of entries that are written at once; one entry may be larger.
const BATCH_BYTES: usize = 8 << 20;

/// What the log thread owns.
#[derive(Debug)]
pub(super) struct Writer {
    pub(super) wal: Wal,
    pub(super) term: u64,
    pub(super) vote: u64,
    pub(super) last_index: u64,
}

impl Writer {
    /// Writes entries behind the last one, and makes them durable.
    pub(super) fn save(&mut self, shared: &Shared, batch: &[Proposal]) -> Result<(), Error> {
        let mut index = self.last_index;
        let entries: Vec<Entry<'_>> = batch
            .iter()
            .map(|proposal| {
                index = index.saturating_add(1);
                Entry {
                    kind: proposal.kind,
                    term: self.term,
                    index,
                    data: &proposal.data,
                    unknown_field: None,
                }
            })
            .collect();
        let state =
            HardState { term: self.term, vote: self.vote, commit: index, unknown_field: None };
        self.wal.append(&entries, Some(state))?;
        self.wal.sync()?;
        self.last_index = index;
        shared.committed.store(index, Ordering::Release);
        Ok(())
    }

    fn save_snapshot(&mut self, shared: &Shared, snapshot: &Snapshot) -> Result<(), Error> {
        self.wal.save_snapshot(snapshot)?;
        shared.backend.note_surplus(self.wal.release(snapshot.index, shared.options.wals_max));
        shared.snapshot_index.store(snapshot.index, Ordering::Release);
        // The next one may be due by now, and old segments of the log are to go.
        shared.backend.wake_all();
        Ok(())
    }
}

/// Runs until the queue is closed and empty, or the disk fails.
pub(super) fn run(shared: &Arc<Shared>, mut writer: Writer) {
    let mut works = Vec::new();
    while shared.queue.take(&mut works) {
        let mut batch = Vec::with_capacity(works.len());
        let mut bytes = 0_usize;
        for work in works.drain(..) {
            match work {
                Work::Propose(proposal) => {
                    bytes = bytes.saturating_add(proposal.data.len());
                    batch.push(proposal);
                    if bytes > BATCH_BYTES {
                        save(shared, &mut writer, std::mem::take(&mut batch));
                        bytes = 0;
                    }
                }
                Work::Snapshot(snapshot) => {
                    save(shared, &mut writer, std::mem::take(&mut batch));
                    bytes = 0;
                    if !shared.health.has_failed()
                        && !shared.health.is_abandoned()
                        && let Err(error) = writer.save_snapshot(shared, &snapshot)
                    {
                        shared.fail(&error);
                    }
                }
            }
        }
        save(shared, &mut writer, batch);
    }
    shared.applying.close();
}

fn save(shared: &Arc<Shared>, writer: &mut Writer, batch: Vec<Proposal>) {
    if batch.is_empty() {
        return;
    }
    let _writing = shared.writers.begin();
    shared.backend.wait_for_room(shared);
    let bytes = batch.iter().map(|proposal| proposal.data.len()).sum();
    shared.queue.note_written(bytes);
    if shared.health.has_failed() || shared.health.is_abandoned() {
        return refuse(shared, batch);
    }
    let first_index = writer.last_index.saturating_add(1);
    if let Err(error) = writer.save(shared, &batch) {
        shared.fail(&error);
        return refuse(shared, batch);
    }
    let logged = Logged { first_index, term: writer.term, batch };
    let applies_here = shared.queue.len() < logged.batch.len();
    let taken = match applies_here {
        true => shared.applying.begin_here(logged),
        false => shared.applying.push(logged).map(|()| None),
    };
    match taken {
        Ok(Some(logged)) => {
            super::applying::apply(shared, logged);
            shared.applying.end_here();
        }
        Ok(None) => {}
        Err(logged) => refuse(shared, logged.batch),
    }
}

/// Tells whoever waits that the outcome is not known.
pub(super) fn refuse(shared: &Shared, batch: Vec<Proposal>) {
    if batch.is_empty() {
        return;
    }
    let count = u64_of(batch.len());
    shared.figures.ended.add(count);
    shared.figures.failed.add(count);
    let now = Instant::now();
    for proposal in batch {
        shared.figures.note_request(proposal.asked, false, now);
        match proposal.reply {
            Reply::Nobody => {}
            Reply::Caller(promise) => promise.fulfil(Err(shared.health.unknown_outcome())),
            Reply::Refused(promise, error) => promise.fulfil(Err(error)),
        }
    }
}
