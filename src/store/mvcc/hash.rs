//! HashKV and Hash of a store that runs.
//!
//! HashKV is summed over the view and the commits that the view lacks, so that nothing has to be
//! saved first; rows that a running compaction has yet to remove are left out by the same rule by
//! which etcd leaves them out. When a compaction begins and the one before it was finished, etcd
//! sums what is there, and answers with that sum from then on when it is asked for the compaction's
//! revision: [`CompactionHash`] is that work.
//!
//! Source: etcd `mvcc/hash.go`, `mvcc/kvstore.go` `hashByRev`, `compact`,
//! `mvcc/kvstore_compaction.go`, 3.6.16.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::Mvcc;
use super::compact::Compacting;
use crate::bolt::db::View;
use crate::bolt::{self, At, Visit};
use crate::etcd::apply::Refusal;
use crate::etcd::hash::{
    BackendHash, Below, Compaction, HashKv, HashKvError, HashKvSum, NewestRows, hash_kv,
    skipped_by_hash,
};
use crate::etcd::revision::{Revision, RevisionKey};
use crate::etcd::schema;
use crate::format::finding::Finding;
use crate::store::error::Error;
use crate::store::kv::Commit;

/// Sums of compactions that are kept.
const KEPT_MAX: usize = 10;

/// Sums that were made when compactions began.
#[derive(Debug, Default)]
pub(super) struct Hashes {
    /// By revision, ascending.
    kept: Vec<HashKv>,
    /// A sum that can be made as long as nothing is dropped: the compact revision before, and the
    /// revision.
    wanted: Option<(i64, i64)>,
}

impl Hashes {
    /// Takes note of a compaction; `before` is how things stood.
    pub(super) fn accept(&mut self, before: &Compacting, revision: i64) {
        // etcd keeps a sum for revision 0 too, and then answers with it for the current one.
        if before.finished == before.accepted && revision > 0 {
            self.wanted = Some((before.accepted, revision));
        }
    }

    /// Takes note that rows go.
    pub(super) fn drop_begins(&mut self) {
        self.wanted = None;
    }
}

/// A HashKV that is known, or has yet to be summed.
#[derive(Debug)]
pub struct HashPlan {
    known: Option<HashKv>,
    view: View,
    tail: Vec<Arc<Commit>>,
    compaction: Compaction,
    revision: i64,
}

/// A sum that etcd makes while it compacts.
#[derive(Debug)]
pub struct CompactionHash {
    view: View,
    previous: i64,
    revision: i64,
}

impl Mvcc {
    /// Plans HashKV at a revision; 0 is the current one.
    ///
    /// # Errors
    /// A revision that is compacted or not there yet. A negative one counts as compacted; what etcd
    /// answers there means nothing.
    pub fn plan_hash_kv(&self, revision: i64) -> Result<HashPlan, Error> {
        let accepted = self.compacting.accepted;
        let is_kept =
            |kept: &&HashKv| kept.hash_revision == revision && revision <= self.compacting.finished;
        let known = self.hashes.kept.iter().find(is_kept).copied();
        if known.is_none() && (revision < 0 || (revision > 0 && revision < accepted)) {
            return Err(Refusal::Compacted.into());
        }
        if revision > self.revision {
            return Err(Refusal::FutureRevision.into());
        }
        // A compaction at 0 has nothing to drop; one that was scheduled only would not count.
        let finished = if accepted == 0 { 0 } else { self.compacting.finished_saved };
        let some = |revision: i64| Some(revision).filter(|revision| *revision >= 0);
        Ok(HashPlan {
            known,
            view: self.view.clone(),
            tail: self.tail.since(self.view_revision().saturating_add(1)).map(Arc::clone).collect(),
            compaction: Compaction { finished: some(finished), scheduled: some(accepted) },
            revision: if revision == 0 { self.revision } else { revision },
        })
    }

    /// Takes the sum that etcd would make of the compaction that is accepted, as soon as the
    /// backend has all of its rows. Rows can be dropped while it is summed; when some were dropped
    /// before, there is none.
    pub fn take_compaction_hash(&mut self) -> Option<CompactionHash> {
        let scheduled = self.compacting.scheduled_saved;
        let (previous, revision) = self.hashes.wanted.filter(|(_, at)| *at <= scheduled)?;
        self.hashes.wanted = None;
        Some(CompactionHash { view: self.view.clone(), previous, revision })
    }

    /// Keeps a sum of a compaction; it is answered with when the compaction is finished.
    pub fn keep_hash(&mut self, hash: HashKv) {
        let kept = &mut self.hashes.kept;
        kept.push(hash);
        kept.sort_by_key(|hash| hash.hash_revision);
        let surplus = kept.len().saturating_sub(KEPT_MAX);
        kept.drain(..surplus);
    }

    /// Returns the sums that are kept, by revision.
    #[must_use]
    pub fn kept_hashes(&self) -> &[HashKv] {
        &self.hashes.kept
    }
}

impl HashPlan {
    /// Sums; no lock is needed.
    ///
    /// # Errors
    /// The backend cannot be read.
    pub fn fetch(self) -> Result<HashKv, Error> {
        if let Some(known) = self.known {
            return Ok(known);
        }
        let mut walk = |visitor: &mut dyn Visit| walk(&self.view, &self.tail, visitor);
        hash_kv(self.compaction, self.revision, &mut walk).map_err(|error| match error {
            HashKvError::Compacted(_) => Refusal::Compacted.into(),
            HashKvError::Future(_) => Refusal::FutureRevision.into(),
            HashKvError::Row(finding) => damaged(&finding),
            HashKvError::Walk(error) => error,
        })
    }
}

impl CompactionHash {
    /// Sums; no lock is needed. Calls `pause` after each row, so that whoever sums can rest; ends
    /// without a sum when that tells to stop.
    ///
    /// # Errors
    /// The backend cannot be read; [`Error::Stopped`].
    pub fn fetch(self, pause: &mut dyn FnMut() -> bool) -> Result<HashKv, Error> {
        let Self { view, previous, revision } = self;
        let below = if previous < 0 {
            Below::All
        } else {
            let newest = NewestRows::new(revision, previous);
            let mut kept = KeptRows { newest, revision, has_tombstone: false };
            walk(&view, &[], &mut Pausing { visitor: &mut kept, pause })?;
            if !pause() {
                return Err(Error::Stopped);
            }
            let newests = kept.newest.finish().map_err(|finding| damaged(&finding))?;
            // What a compaction keeps is not empty either when it is a tombstone only.
            if newests.any_live || kept.has_tombstone {
                Below::Only(newests.rows)
            } else {
                Below::All
            }
        };
        let mut sum = HashKvSum::new(revision, previous, below);
        walk(&view, &[], &mut Pausing { visitor: &mut sum, pause })?;
        if !pause() {
            return Err(Error::Stopped);
        }
        let (hash, _) = sum.finish().map_err(|finding| damaged(&finding))?;
        Ok(HashKv { hash, hash_revision: revision, compact_revision: previous })
    }
}

/// Finds the newest rows, and whether there is a tombstone at the revision itself.
struct KeptRows {
    newest: NewestRows,
    revision: i64,
    has_tombstone: bool,
}

impl Visit for KeptRows {
    fn bucket(&mut self, _: &At<'_>, _: u64) {}

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.newest.entry(at, key, value);
        self.has_tombstone |= RevisionKey::decode(key)
            .is_ok_and(|row| row.is_tombstone && row.revision.main == self.revision);
    }

    fn page(&mut self, entered: u64) -> bool {
        self.newest.page(entered)
    }
}

/// Shows rows to a visitor, with a pause after each.
struct Pausing<'a, V> {
    visitor: &'a mut V,
    pause: &'a mut dyn FnMut() -> bool,
}

impl<V: Visit> Visit for Pausing<'_, V> {
    fn bucket(&mut self, at: &At<'_>, sequence: u64) {
        self.visitor.bucket(at, sequence);
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.visitor.entry(at, key, value);
    }

    fn page(&mut self, entered: u64) -> bool {
        (self.pause)() && self.visitor.page(entered)
    }
}

/// Sums all buckets of a view as etcd of this minor version does; what is not saved is not in it.
///
/// # Errors
/// The backend cannot be read.
pub fn hash_all(view: &View, minor: u32) -> Result<u32, Error> {
    let file = view.file().map_err(|error| Error::Storage(error.to_string()))?;
    let mut sum = BackendHash::new(skipped_by_hash(minor));
    let walk = bolt::walk::walk(&file, &mut sum);
    if walk.tree_is_whole() {
        return Ok(sum.hash());
    }
    Err(Error::Storage("the database is damaged".into()))
}

fn damaged(finding: &Finding) -> Error {
    Error::Storage(format!("the database is damaged: {}", finding.detail))
}

/// Shows the rows of bucket `key`, those of the tail after those of the view.
fn walk(view: &View, tail: &[Arc<Commit>], visitor: &mut dyn Visit) -> Result<(), Error> {
    let bucket = [schema::KEY.to_vec()];
    let at = At { bucket: &bucket, page: 0, offset: 0 };
    let first = tail.first().map(|commit| Revision::new(commit.revision, 0).encode());
    let read = view.each(schema::KEY, &[], &mut |key, value| {
        if first.is_some_and(|first| key >= &first[..]) {
            return ControlFlow::Break(());
        }
        visitor.entry(&at, key, value);
        if visitor.page(0) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    read.map_err(|error| Error::Storage(error.to_string()))?;
    for event in tail.iter().flat_map(|commit| commit.events.iter()) {
        let (key, value) = event.row();
        visitor.entry(&at, &key, &value);
    }
    Ok(())
}
