//! How a store begins: the directory's state, what the log has above it, and a new term.
//!
//! As an etcd with one voter does at its start: the term goes up by one, with a vote for itself
//! and an empty entry, and what the member says of itself is published where it changed. A new
//! directory is told its cluster's version. Kinds of entries that the directory's version does not
//! know are not written: one of etcd 3.4 gets the requests that 3.4 writes.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use bytes::Bytes;

use super::backend::{Backend, storage};
use super::logging::Writer;
use super::queue::{Proposal, Reply, Work};
use super::state::Core;
use super::{Options, Shared, applying, backend, compaction, logging, timer};
use crate::bolt::db::{Batch, Db};
use crate::etcd::apply::Rules;
use crate::etcd::members::{ClusterId, Member, MemberId, put_json_text};
use crate::etcd::request::{Attributes, Body, MemberAttributes, V2, VersionName};
use crate::etcd::schema::{self, Version};
use crate::format::wal::{ConfState, HardState};
use crate::store::directory;
use crate::store::error::Error;
use crate::store::figures::live::{self, Live};
use crate::store::guard::Tokens;
use crate::store::lease::Lessor;
use crate::store::mvcc::Mvcc;
use crate::store::open::{self, Compat, Identity, OpenError, Opened};
use crate::store::threads;
use crate::store::watch::Hub;

/// How many of the threads finish what was taken, when the store ends.
pub(super) const FINISHING: usize = 2;

/// Opens a directory and starts the threads; the first [`FINISHING`] ones first.
pub(super) fn start(
    dir: &Path,
    options: Options,
) -> Result<(Arc<Shared>, Vec<JoinHandle<()>>), OpenError> {
    let mut options = options.settled();
    if options.unsafe_no_fsync {
        options.disk = options.disk.unsynced();
    }
    let opened = open::open(dir, &options.open_options())?;
    let is_by_3_4 = opened.version.is_some_and(|version| version.minor < 5);
    let rules = Rules { writes_conf_state: !is_by_3_4, ..options.rules() };
    let mut opened = opened;
    let keys = std::mem::take(&mut opened.keys);
    let mut mvcc = Mvcc::load(opened.db.view(), keys, rules, opened.compat)?;
    let saved = replay(&mut opened, &mut mvcc, options.unsaved_bytes_max)?;
    mvcc.begin_tally();
    let leases = directory::leases(&mvcc, rules.lease_ttl_min_s)?;
    let lessor = Lessor::start(Arc::clone(&options.clock), &leases, options.election);
    let Opened { db, wal, state, last_index, snapshot_index, voters, member, cluster, .. } = opened;
    let term = state.term.saturating_add(1);
    let shared = Shared::new(
        options,
        Parts {
            mvcc,
            db,
            saved,
            lessor,
            is_read_only: false,
            compat: opened.compat,
            member,
            cluster,
            term,
            voters,
            snap_dir: opened.snap_dir,
            last_index,
            snapshot_index,
            wants_snapshot: opened.wants_snapshot,
            notes: opened.notes,
            wal: wal.figures(),
        },
    );
    let mut writer = Writer { wal, term, vote: member.0, last_index };
    begin_term(&shared, &mut writer, opened.version, opened.is_new)?;
    write_storage_version(&shared)?;
    if shared.wants_snapshot.load(Ordering::Acquire) {
        // At once, whether or not there is anything to save.
        shared.backend.note_dirty();
    }
    // What was scheduled and not finished goes on.
    shared.compaction.begin(0, None);
    let threads = spawn_all(&shared, writer)?;
    Ok((shared, threads))
}

/// What a start found.
pub(super) struct Parts {
    pub(super) mvcc: Mvcc,
    pub(super) db: Db,
    /// Index and term of the last entry in the database.
    pub(super) saved: (u64, u64),
    pub(super) lessor: Lessor,
    pub(super) is_read_only: bool,
    pub(super) compat: Compat,
    pub(super) member: MemberId,
    pub(super) cluster: ClusterId,
    pub(super) term: u64,
    pub(super) voters: ConfState,
    pub(super) snap_dir: PathBuf,
    pub(super) last_index: u64,
    pub(super) snapshot_index: u64,
    pub(super) wants_snapshot: bool,
    pub(super) notes: Vec<String>,
    /// What the log counts.
    pub(super) wal: Arc<live::Wal>,
}

impl Shared {
    pub(super) fn new(options: Options, parts: Parts) -> Arc<Self> {
        let core = Core::new(parts.mvcc, parts.is_read_only);
        let hub = Hub::new(Arc::clone(&core.mvcc) as Arc<_>, options.watch_limits);
        let shared = Arc::new(Self {
            is_read_only: parts.is_read_only,
            compat: parts.compat,
            member: parts.member,
            cluster: parts.cluster,
            term: parts.term,
            voters: parts.voters,
            snap_dir: parts.snap_dir,
            hub,
            lessor: Mutex::new(parts.lessor),
            ends: timer::Ends::default(),
            tokens: Tokens::new(Arc::clone(&options.clock), options.auth_token_ttl),
            queue: super::queue::Queue::default(),
            applying: applying::Applying::default(),
            backend: Backend::new(parts.db, &options, parts.saved),
            compaction: compaction::Compaction::default(),
            defragmenting: Mutex::new(()),
            writers: super::pace::Writers::default(),
            health: super::health::Health::default(),
            alarm: timer::Alarm::default(),
            next_id: AtomicU64::new(first_id(parts.member.0, options.clock.unix_ms())),
            committed: AtomicU64::new(parts.last_index),
            snapshot_index: AtomicU64::new(parts.snapshot_index),
            planned_snapshot: AtomicU64::new(parts.snapshot_index),
            wants_snapshot: AtomicBool::new(parts.wants_snapshot),
            notes: parts.notes,
            figures: Arc::new(Live::new(parts.wal, options.warning_apply_duration)),
            core,
            options,
        });
        let _ = shared.core.shared.set(Arc::downgrade(&shared));
        shared
    }
}

/// Applies what the log has and the database has not; what may not wait in memory is saved on the
/// way. Returns index and term of the last entry that is.
fn replay(opened: &mut Opened, mvcc: &mut Mvcc, bytes_max: usize) -> Result<(u64, u64), OpenError> {
    let Opened { db, wal, state, last_index, replay, .. } = opened;
    let mut saved = mvcc.applied();
    replay.each(&mut |entry| {
        mvcc.apply(entry).map_err(|error| OpenError::Unfit {
            reason: error.to_string(),
            next: "an etcd does not start on it either; restore a snapshot".into(),
        })?;
        if mvcc.unsaved().1 <= bytes_max {
            return Ok(());
        }
        if state.commit < *last_index {
            // A database is never ahead of what the log says to be committed.
            *state = HardState { commit: *last_index, ..*state };
            wal.append(&[], Some(*state))?;
            wal.sync()?;
        }
        let batch = mvcc.take_batch().into_batch();
        db.commit(batch).map_err(|error| storage(&error))?;
        mvcc.saved(db.view());
        saved = mvcc.applied();
        Ok::<(), OpenError>(())
    })?;
    Ok(saved)
}

/// Logs and applies what a start is to say.
fn begin_term(
    shared: &Arc<Shared>,
    writer: &mut Writer,
    version: Option<Version>,
    is_new: bool,
) -> Result<(), Error> {
    let mut batch = vec![Proposal::normal(Vec::new(), Reply::Nobody)];
    let is_by_3_4 = version.is_some_and(|version| version.minor < 5);
    batch.extend(attributes(shared, is_by_3_4)?);
    let wanted = shared.compat.storage_version();
    let is_raised = shared.options.compat.is_some()
        && version.is_some_and(|version| version < wanted && !is_by_3_4);
    // The log may have told it since.
    let is_unknown = version.is_none() && shared.cluster_version().is_none();
    if is_new || is_unknown || is_raised {
        let text = wanted.to_string();
        let body = Body::ClusterVersionSet(VersionName { version: text.as_bytes() });
        batch.push(Proposal::normal(shared.encode_own(body), Reply::Nobody));
    }
    let first_index = writer.last_index.saturating_add(1);
    writer.save(shared, &batch)?;
    shared.queue.note_proposed(batch.len());
    applying::apply(shared, applying::Logged { first_index, term: writer.term, batch });
    shared.health.refusal().map_or(Ok(()), Err)
}

/// Publishes name and client URLs where they differ from what the members are told; those of
/// [`Identity::default`] only where none were published.
fn attributes(shared: &Shared, is_by_3_4: bool) -> Result<Option<Proposal>, Error> {
    let own = &shared.options.identity;
    let known = shared.members()?.into_iter().find(|member| member.id == shared.member);
    let same = |member: &Member| member.name == own.name && member.client_urls == own.client_urls;
    // Whoever opens a directory without a word of who it is does not mean to rename its member.
    let is_told = *own != Identity::default();
    let stays = |member: &Member| same(member) || (!is_told && !member.client_urls.is_empty());
    if known.as_ref().is_some_and(stays) {
        return Ok(None);
    }
    let data = if is_by_3_4 {
        let path = format!("/0/members/{}/attributes", shared.member);
        let mut value = String::from("{\"name\":");
        put_json_text(&mut value, &own.name);
        value.push_str(",\"clientURLs\":[");
        for (n, url) in own.client_urls.iter().enumerate() {
            if n > 0 {
                value.push(',');
            }
            put_json_text(&mut value, url);
        }
        value.push_str("]}");
        let id = shared.new_id();
        let (path, value) = (path.as_bytes(), value.as_bytes());
        V2 { id, method: b"PUT", path, value, ..V2::default() }.encode()
    } else {
        let client_urls = own.client_urls.iter().map(String::as_bytes).collect();
        shared.encode_own(Body::MemberAttributes(MemberAttributes {
            member_id: shared.member.0,
            attributes: Some(Attributes { name: own.name.as_bytes(), client_urls }),
        }))
    };
    Ok(Some(Proposal::normal(data, Reply::Nobody)))
}

/// Gives the database a storage version where its cluster's version has one, as etcd does some
/// time after the cluster's version is decided; it needs term and configuration for it.
fn write_storage_version(shared: &Shared) -> Result<(), Error> {
    let Some(version) = shared.cluster_version().filter(|version| version.minor >= 6) else {
        return Ok(());
    };
    let view = backend::commit(shared)?;
    let row = |key: &[u8]| view.get(schema::META, key).map_err(|error| storage(&error));
    let is_fit = row(schema::META_TERM)?.is_some() && row(schema::META_CONF_STATE)?.is_some();
    let wanted = version.to_string();
    if !is_fit || row(schema::META_STORAGE_VERSION)?.is_some_and(|row| row == wanted.as_bytes()) {
        return Ok(());
    }
    let mut batch = Batch::default();
    let key = Bytes::from_static(schema::META_STORAGE_VERSION);
    batch.plan(schema::META, key, Some(Bytes::from(wanted)));
    let db = shared.backend.db()?;
    db.commit(batch).map_err(|error| storage(&error))?;
    shared.core.write(|mvcc| mvcc.saved(db.view()))
}

/// The first id of a start: 16 bits of the member, 40 of the time in milliseconds, 8 to count in.
fn first_id(member: u64, unix_ms: u64) -> u64 {
    (member << 48) | ((unix_ms & ((1 << 40) - 1)) << 8)
}

fn spawn_all(shared: &Arc<Shared>, writer: Writer) -> Result<Vec<JoinHandle<()>>, Error> {
    let mut threads = Vec::new();
    let spawned = (|| {
        threads.push(spawn(shared, "log", move |shared| logging::run(shared, writer))?);
        threads.push(spawn(shared, "apply", applying::run)?);
        threads.push(spawn(shared, "timer", timer::run)?);
        threads.push(spawn(shared, "compaction", compaction::run)?);
        threads.push(spawn(shared, "backend", backend::run)?);
        Ok(())
    })();
    match spawned {
        Ok(()) => Ok(threads),
        Err(error) => {
            shared.fail(&error);
            threads.into_iter().for_each(|thread| drop(thread.join()));
            Err(error)
        }
    }
}

pub(super) fn spawn(
    shared: &Arc<Shared>,
    name: &str,
    work: impl FnOnce(&Arc<Shared>) + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let sentinel = Sentinel { shared: Arc::clone(shared), name: name.to_owned() };
    threads::spawn(&format!("store-{name}"), move || work(&sentinel.shared))
        .map_err(|error| Error::Storage(format!("a thread cannot be started: {error}")))
}

/// Lets everybody know when a thread panics, so that nobody waits for it.
struct Sentinel {
    shared: Arc<Shared>,
    name: String,
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let what = format!("the store's thread {} came to a sudden end", self.name);
            self.shared.fail(&Error::Storage(what));
            self.shared.abandon();
        }
    }
}

impl Work {
    /// Makes a request that nobody waits for.
    pub(super) fn unattended(data: Vec<u8>) -> Self {
        Self::Propose(Proposal::normal(data, Reply::Nobody))
    }
}
