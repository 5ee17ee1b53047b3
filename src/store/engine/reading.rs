//! A store that is only read: no log, no thread but the timer, which tells quiet watchers the
//! revision.
//!
//! What the log has above the database is applied in memory, and committed to a database whose
//! changes stay in memory too: reads, hashes and snapshots see one and the same state.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::backend::storage;
use super::start::{Parts, spawn};
use super::{Options, Shared, timer};
use crate::bolt::db::Db;
use crate::bolt::disk::Disk;
use crate::etcd::apply::Rules;
use crate::format::wal::ConfState;
use crate::store::auto_compact::Retention;
use crate::store::clock::Clock;
use crate::store::directory;
use crate::store::lease::Lessor;
use crate::store::mvcc::Mvcc;
use crate::store::open::{self, OpenError, OpenedToRead, Replay};

/// A clock for leases that do not end.
#[derive(Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn unix_ms(&self) -> u64 {
        0
    }
}

pub(super) fn start(
    path: &Path,
    options: Options,
) -> Result<(Arc<Shared>, Vec<JoinHandle<()>>), OpenError> {
    let mut options = options.settled();
    options.disk = Disk::kept_in_memory();
    options.auto_compaction = Retention::Off;
    options.lease_checkpoints = None;
    let opened = open::open_to_read(path, &options.open_options())?;
    let OpenedToRead { db, keys, replay, term, member, cluster, compat, version, mut notes } =
        opened;
    let is_by_3_4 = version.is_some_and(|version| version.minor < 5);
    let rules = Rules { writes_conf_state: !is_by_3_4, ..options.rules() };
    let mut mvcc = Mvcc::load(db.view(), keys, rules, compat)?;
    if let Some(replay) = replay {
        apply(&db, &mut mvcc, &replay, options.unsaved_bytes_max, &mut notes)?;
    }
    let leases = directory::leases(&mvcc, rules.lease_ttl_min_s)?;
    let lessor = Lessor::start(Arc::new(Still), &leases, Duration::ZERO);
    let saved = mvcc.applied();
    let shared = Shared::new(
        options,
        Parts {
            mvcc,
            db,
            saved,
            lessor,
            is_read_only: true,
            compat,
            member,
            cluster,
            term: term.max(saved.1),
            voters: ConfState::default(),
            snap_dir: PathBuf::new(),
            last_index: saved.0,
            snapshot_index: saved.0,
            wants_snapshot: false,
            notes,
            wal: Arc::default(),
        },
    );
    let timer = spawn(&shared, "timer", timer::run)?;
    Ok((shared, vec![timer]))
}

/// Applies what the log has above the database. What cannot be applied is noted, and nothing after
/// it is shown.
fn apply(
    db: &Db,
    mvcc: &mut Mvcc,
    replay: &Replay,
    bytes_max: usize,
    notes: &mut Vec<String>,
) -> Result<(), OpenError> {
    let commit = |mvcc: &mut Mvcc| {
        let batch = mvcc.take_batch().into_batch();
        db.commit(batch).map_err(|error| storage(&error))?;
        mvcc.saved(db.view());
        Ok::<(), OpenError>(())
    };
    let mut failed = None;
    let shown = replay.each(&mut |entry| {
        let applied = mvcc.apply(entry);
        applied.map_err(|error| OpenError::Disk(error.to_string()))?;
        if mvcc.unsaved().1 <= bytes_max {
            return Ok(());
        }
        commit(mvcc).inspect_err(|error| failed = Some(error.clone()))
    });
    if let Some(error) = failed {
        return Err(error);
    }
    if let Err(error) = shown {
        let index = mvcc.applied().0;
        notes.push(format!("what the log has after entry {index} is not shown: {error}"));
    }
    commit(mvcc)
}
