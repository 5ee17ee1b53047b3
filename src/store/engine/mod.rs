//! The store's threads, and the face that callers see.
//!
//! | thread | does |
//! |---|---|
//! | log | numbers requests, writes and syncs them, many at a time |
//! | apply | lets synced entries change the state, tells watchers and callers |
//! | backend | brings changes to the database file, a batch at a time; records raft snapshots |
//! | compaction | drops what a compaction made superfluous, in small steps |
//! | timer | ends leases, compacts by itself, tells quiet watchers the revision |
//!
//! 1. A caller is answered when the entry is synced and applied, never before. A read sees every
//!    write that was answered before it began, so a linearizable read waits for nothing.
//! 2. After an error of a disk, or an entry that cannot be applied, nothing is written any more;
//!    whoever waits is told that the outcome is not known, and reads go on.
//! 3. No thread waits for a caller. What waits in memory is bounded: requests in the queue, entries
//!    between log and state, changes between state and file.
//! 4. When the last [`Store`] is dropped or one is closed, everything is saved, the threads end,
//!    and the locks are given up.

mod applying;
mod aside;
mod auth;
mod backend;
mod calls;
mod cluster;
mod compaction;
mod defrag;
mod figures;
mod hashing;
mod health;
mod leases;
mod logging;
mod options;
mod pace;
mod queue;
mod reading;
mod snapshot;
mod start;
mod state;
mod submission;
mod timer;
mod watching;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, SyncSender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

pub use auth::NewUser;
pub use cluster::Status;
pub use leases::{KeepAlive, LeaseEnd, LeaseStatus};
pub use options::Options;
pub use queue::{Done, Outcome};
pub use snapshot::Snapshot;
pub use submission::Submission;
pub use watching::Watch;

use super::error::Error;
use super::figures::live::Live;
use super::guard::{self, Caller, Tokens, Wish};
use super::lease::Lessor;
use super::mvcc::Mvcc;
use super::open::{Compat, OpenError};
use super::threads;
use super::watch::Hub;
use crate::etcd::members::{ClusterId, MemberId};
use crate::etcd::request::{self, Body, Header, Request};
use crate::format::wal::ConfState;
use queue::{Proposal, Rejected, Reply, Work};

/// Entries that may be synced and not applied yet before new requests are refused.
const LAG_MAX: u64 = 5000;

/// An etcd in this process; a clone is the same one. `docs/STORE.md` tells what it promises.
///
/// ```
/// use etcdkit::store::{Caller, Options, Put, Range, Store};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let dir = tempfile::tempdir()?;
/// let store = Store::open(&dir.path().join("data"), Options::default())?;
/// let me = Caller::default();
/// let written = store.put(&me, Put { key: b"k", value: b"v", ..Put::default() })?;
/// let read = store.range(&me, &Range { key: b"k", ..Range::default() })?;
/// let kv = read.body.kvs.first().ok_or("the key is not there")?;
/// assert_eq!(kv.record().value, b"v");
/// assert_eq!(kv.record().mod_revision, written.revision);
/// store.close()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Store {
    /// Dropped with the last clone: the threads have [`Shared`] only.
    owner: Arc<Owner>,
}

/// What a store's threads and callers share.
#[derive(Debug)]
pub(super) struct Shared {
    options: Options,
    /// Nothing is written, and nobody is asked for permission.
    is_read_only: bool,
    compat: Compat,
    member: MemberId,
    cluster: ClusterId,
    term: u64,
    voters: ConfState,
    snap_dir: PathBuf,
    core: state::Core,
    hub: Hub,
    lessor: Mutex<Lessor>,
    ends: timer::Ends,
    tokens: Tokens,
    queue: queue::Queue,
    applying: applying::Applying,
    backend: backend::Backend,
    compaction: compaction::Compaction,
    defragmenting: Mutex<()>,
    writers: pace::Writers,
    health: health::Health,
    alarm: timer::Alarm,
    next_id: AtomicU64,
    /// Index of the last entry that is synced.
    committed: AtomicU64,
    /// Index of the newest raft snapshot in the log, and of the one that is on its way there.
    snapshot_index: AtomicU64,
    planned_snapshot: AtomicU64,
    /// One is wanted soon, however few entries there are since the last.
    wants_snapshot: AtomicBool,
    notes: Vec<String>,
    figures: Arc<Live>,
}

/// Ends the store when the last handle is gone.
#[derive(Debug)]
struct Owner(Arc<Life>);

/// A store from its start to its end.
#[derive(Debug)]
struct Life {
    shared: Arc<Shared>,
    end: Mutex<End>,
    ended: Condvar,
    /// To the thread that ends the store where another of its threads closes it, which cannot wait
    /// for itself. It is there from the start: at the end it might not be had.
    ender: Mutex<Option<SyncSender<Ending>>>,
}

/// A store that is to be ended: its threads, and whether everything is saved.
type Ending = (Arc<Life>, Vec<JoinHandle<()>>, bool);

/// How far the end of a store is.
#[derive(Debug)]
struct End {
    threads: Vec<JoinHandle<()>>,
    /// Who ends it.
    by: Option<ThreadId>,
    is_over: bool,
}

impl Store {
    /// Opens a data directory of etcd 3.4 to 3.7, or founds one.
    ///
    /// # Errors
    /// It is in use, damaged, unfit (such as of several voters), or the disk fails; each says what
    /// to do.
    pub fn open(dir: &Path, options: Options) -> Result<Self, OpenError> {
        start::start(dir, options).and_then(Self::alive)
    }

    /// Opens a snapshot file, or a data directory that no server has, to be read only: nothing of
    /// it is changed. Reads, watches of what was, hashes, status and snapshots work as ever; every
    /// request that would change something is refused ([`Error::ReadOnly`]). Users and permissions
    /// are shown and not enforced: whoever can read the file can read all of it. Leases stand
    /// still.
    ///
    /// A file may have the SHA-256 of `etcdctl snapshot save` at its end. Of a directory what
    /// counts in its log is shown as well. The database's shared lock is held until the store is
    /// closed: a server that is started on it meanwhile waits for that. Of the options only those
    /// count that are about reading: `compat`, `wal_dir`, `watch_limits`,
    /// `watch_progress_interval`, `database`, `clock`.
    ///
    /// # Errors
    /// It is in use, damaged, of a version that is not known, or the disk fails.
    pub fn open_read_only(path: &Path, options: Options) -> Result<Self, OpenError> {
        reading::start(path, options).and_then(Self::alive)
    }

    fn alive((shared, threads): (Arc<Shared>, Vec<JoinHandle<()>>)) -> Result<Self, OpenError> {
        let end = Mutex::new(End { threads, by: None, is_over: false });
        let (ender, endings) = mpsc::sync_channel::<Ending>(1);
        let ender = Mutex::new(Some(ender));
        // Dropped, it ends the store.
        let owner = Owner(Arc::new(Life { shared, end, ended: Condvar::new(), ender }));
        let run = move || {
            if let Ok((life, threads, is_clean)) = endings.recv() {
                drop(life.finish(threads, is_clean));
            }
        };
        threads::spawn("store-end", run)
            .map_err(|error| OpenError::Disk(format!("a thread cannot be started: {error}")))?;
        Ok(Self { owner: Arc::new(owner) })
    }

    /// Tells whether it was opened by [`Store::open_read_only`].
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.shared().is_read_only
    }

    /// Saves everything, ends the threads and gives up the locks. Requests that were taken are
    /// done before; what is asked for from now on is refused. A second call waits for the end of
    /// the first. In a waker, which runs on a store's thread, it only begins the end, and does not
    /// wait.
    ///
    /// # Errors
    /// Not everything could be saved in the database; the log has it.
    pub fn close(&self) -> Result<(), Error> {
        self.owner.0.end(true)
    }

    /// What was repaired, removed or odd when the directory was opened.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.shared().notes
    }

    /// Tells why nothing can be written any more, or watchers get nothing; `None` while all is
    /// well.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        let shared = self.shared();
        shared.health.refusal().or_else(|| shared.hub.failure())
    }

    /// This member's id.
    #[must_use]
    pub fn member_id(&self) -> MemberId {
        self.shared().member
    }

    /// The cluster's id.
    #[must_use]
    pub fn cluster_id(&self) -> ClusterId {
        self.shared().cluster
    }

    /// The raft term; it does not change while the store is open.
    #[must_use]
    pub fn raft_term(&self) -> u64 {
        self.shared().term
    }

    /// Current revision.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.shared().core.revision.load(Ordering::Acquire)
    }

    /// Leaves the store as a killed process does: nothing more is written, the locks are given up.
    #[cfg(test)]
    fn kill(self) {
        let _ = self.owner.0.end(false);
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.owner.0.shared
    }
}

impl Life {
    fn lock_end(&self) -> MutexGuard<'_, End> {
        self.end.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(self: &Arc<Self>, is_clean: bool) -> Result<(), Error> {
        let current = thread::current().id();
        let mut end = self.lock_end();
        if let Some(by) = end.by {
            // Whoever ends it may wait for this thread, or be it.
            while !end.is_over && !threads::is_one() && by != current {
                end = self.ended.wait(end).unwrap_or_else(PoisonError::into_inner);
            }
            return Ok(());
        }
        end.by = Some(current);
        let own = std::mem::take(&mut end.threads);
        drop(end);
        let shared = &self.shared;
        shared.health.end(is_clean);
        shared.queue.close();
        shared.alarm.ring();
        shared.compaction.wake();
        shared.backend.wake_all();
        let ender = self.ender.lock().unwrap_or_else(PoisonError::into_inner).take();
        match ender.filter(|_| threads::is_one()) {
            None => self.finish(own, is_clean),
            Some(ender) => {
                // It waits for nothing else, so there is room, and it is there.
                let _ = ender.try_send((Arc::clone(self), own, is_clean));
                Ok(())
            }
        }
    }

    fn finish(&self, own: Vec<JoinHandle<()>>, is_clean: bool) -> Result<(), Error> {
        let _over = Over(self);
        let shared = &self.shared;
        let mut rest = own.into_iter();
        // A panic was noted by the thread itself. The first two finish what was taken, and may
        // need the others for that.
        rest.by_ref().take(start::FINISHING).for_each(|thread| drop(thread.join()));
        shared.health.note_drained();
        shared.backend.wake_all();
        rest.for_each(|thread| drop(thread.join()));
        let saved = match is_clean {
            true if shared.health.has_failed() => Err(shared.health.refusal()),
            true => backend::commit(shared).map(drop).map_err(Some),
            false => Ok(()),
        };
        shared.hub.close();
        shared.ends.abandon();
        shared.compaction.abandon(&shared.health.unknown_outcome());
        shared.backend.close();
        shared.core.close();
        saved.map_err(|error| error.unwrap_or(Error::Stopped))
    }
}

/// Lets other closers go on, whatever happens.
struct Over<'a>(&'a Life);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.lock_end().is_over = true;
        self.0.ended.notify_all();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // Whoever wants to know calls close.
        let _ = self.0.end(true);
    }
}

impl Shared {
    fn lessor(&self) -> MutexGuard<'_, Lessor> {
        self.lessor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes an error after which nothing is written, and wakes the threads: they tell whoever
    /// waits, with no lock held. To be called under any lock.
    fn fail(&self, error: &Error) {
        let text = match error {
            Error::Storage(text) => text.clone(),
            other => other.to_string(),
        };
        self.health.fail(&text);
        self.queue.close();
        self.ends.abandon();
        self.alarm.ring();
        self.compaction.wake();
        self.backend.wake_all();
    }

    /// Tells whoever waits for a thread that is no more; no lock is held.
    fn abandon(&self) {
        let mut left = Vec::new();
        for work in self.queue.abandon() {
            if let Work::Propose(proposal) = work {
                left.push(proposal);
            }
        }
        left.extend(self.applying.abandon().into_iter().flat_map(|logged| logged.batch));
        logging::refuse(self, left);
        self.compaction.abandon(&self.health.unknown_outcome());
    }

    /// Sleeps, but not longer than the store lives.
    fn rest(&self, time: Duration) {
        self.alarm.sleep(time, || self.health.is_ending() || self.health.has_failed());
    }

    /// Makes an id for a request or lease, unique across restarts: 16 bits of the member, 40 of
    /// the time, and a count.
    fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Refuses what would change something, where nothing is to be changed, or cannot.
    fn check_writable(&self) -> Result<(), Error> {
        match self.health.refusal() {
            Some(error) => Err(error),
            None if self.is_read_only => Err(Error::ReadOnly),
            None => Ok(()),
        }
    }

    /// Checks that somebody may do something.
    fn check(&self, caller: &Caller, wish: Wish<'_>) -> Result<(), Error> {
        if !self.core.is_auth_on() {
            return Ok(());
        }
        self.look(caller, wish, |_| ())
    }

    /// Looks at the state if somebody may, by the rules of that same state.
    fn look<T>(
        &self,
        caller: &Caller,
        wish: Wish<'_>,
        look: impl FnOnce(&Mvcc) -> T,
    ) -> Result<T, Error> {
        self.core.read(|mvcc| {
            if self.core.is_auth_on() {
                guard::check_access(mvcc, caller, wish)?;
            }
            Ok(look(mvcc))
        })?
    }

    /// Encodes a request of the store's own.
    fn encode_own(&self, body: Body<'_>) -> Vec<u8> {
        let mut header = Header { id: self.new_id(), username: b"", auth_revision: 0 };
        if self.core.is_auth_on() {
            header.username = b"root";
            header.auth_revision = self.core.auth_revision();
        }
        Request { id: 0, header: Some(header), body }.encode()
    }

    /// Raises the alarm NOSPACE, and lets somebody know when it is there.
    fn raise_nospace(&self, reply: Reply) {
        const RAISE: u64 = 1;
        const NOSPACE: u64 = 1;
        let alarm = request::Alarm { action: RAISE, member_id: self.member.0, alarm: NOSPACE };
        let data = self.encode_own(Body::Alarm(alarm));
        let _ = self.propose(Proposal::normal(data, reply));
    }

    /// Queues a request; whoever waits is told where it cannot be.
    fn propose(&self, proposal: Proposal) -> Result<(), Error> {
        if self.is_read_only {
            return Err(Error::ReadOnly);
        }
        let rejected = match self.queue.push(Work::Propose(proposal)) {
            Ok(()) => return Ok(()),
            Err(rejected) => rejected,
        };
        self.figures.failed.add(1);
        Err(match rejected {
            Rejected::Full => Error::TooManyRequests,
            Rejected::Closed => self.health.refusal().unwrap_or(Error::Stopped),
        })
    }
}
