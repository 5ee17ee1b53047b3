//! Opens a directory that has a log.

use std::ops::ControlFlow;
use std::path::Path;

use super::fitness::{self, Plan};
use super::found::{Founder, make_database, make_dirs, open_database, sync_dirs};
use super::{OpenError, OpenOptions, Opened, Places, Replay, force, names};
use crate::bolt::db::{Db, View};
use crate::etcd::data_dir::{DataDir, Facts, agree};
use crate::etcd::log::{Log, ReadError};
use crate::etcd::members::{ClusterId, Member, MemberId};
use crate::etcd::rows;
use crate::etcd::schema::{self, Version};
use crate::etcd::survey::Report;
use crate::format::finding::{Code, Findings, Severity};
use crate::store::log::Locked;
use crate::store::mvcc::Keys;

/// What was read of a directory, under its locks.
pub(super) struct Read {
    pub(super) dir: DataDir,
    pub(super) log: Log,
    pub(super) rows: Option<Report>,
    pub(super) facts: Facts,
}

pub(super) fn open(places: &Places, options: &OpenOptions) -> Result<Opened, OpenError> {
    let locked = Locked::take(&options.disk, &places.wal)?;
    let locked = locked.with_segment_bytes(options.segment_bytes);
    let db = match places.database_bytes()? {
        0 => None,
        _ => Some(open_database(places, options)?),
    };
    let read = read(places, db.as_ref().map(|(db, _)| db))?;
    let plan = fitness::judge(places, options, &read)?;
    let mut notes = plan.notes.clone();

    // Everything is decided.
    make_dirs(options, &places.snap)?;
    notes.extend(remove_leftovers(places, options, true)?);
    notes.extend(locked.repair(&read.log)?);
    let (db, keys) = match db {
        Some(opened) => opened,
        None => make_database(places, options)?,
    };
    sync_dirs(places, options)?;
    if let Some(batch) = plan.members.clone() {
        db.commit(batch).map_err(|error| OpenError::database(&places.database, &error))?;
    }
    let Read { log, facts, .. } = read;
    finish(places, options, (db, keys), locked, log, &facts, plan, notes)
}

/// Goes on with the log, and writes what the plan says.
#[expect(clippy::too_many_arguments, reason = "everything that was read comes together here")]
fn finish(
    places: &Places,
    options: &OpenOptions,
    (db, keys): (Db, Keys),
    locked: Locked,
    mut log: Log,
    facts: &Facts,
    plan: Plan,
    mut notes: Vec<String>,
) -> Result<Opened, OpenError> {
    let mut wal = locked.append_to(&log)?;
    let mut through = plan.through;
    if plan.is_half_made {
        let founder = Founder::of(options)?;
        let missing = [founder.entry()];
        let missing = if log.last.is_none() { &missing[..] } else { &[] };
        wal.append(missing, Some(Founder::state()))?;
        through = 1;
    } else if let Some(entries) = &plan.forced {
        through = force::append(&mut wal, entries, through)?;
    }
    if plan.is_half_made || plan.forced.is_some() {
        wal.sync()?;
        log = read_log(&places.wal)?;
    }
    notes.extend(wal.take_notes());
    let metadata = log.metadata.unwrap_or_default();
    let voters = fitness::voters(&log, &plan, through);
    Ok(Opened {
        db,
        keys,
        state: wal.state(),
        last_index: through,
        snapshot_index: log.newest_snapshot().map_or(0, |snapshot| snapshot.index),
        wal,
        replay: Replay::new(log, facts.consistent_index, through),
        voters,
        member: MemberId(metadata.node_id),
        cluster: ClusterId(metadata.cluster_id),
        compat: plan.compat,
        version: plan.version,
        is_new: plan.is_half_made,
        wants_snapshot: plan.wants_snapshot,
        snap_dir: places.snap.clone(),
        notes,
    })
}

fn read(places: &Places, db: Option<&Db>) -> Result<Read, OpenError> {
    let failed = |error: ReadError| OpenError::io("read", &error.path, &error.source);
    let dir = if places.member.is_dir() {
        DataDir::inspect(&places.dir, Some(&places.wal)).map_err(failed)?
    } else {
        DataDir {
            path: places.dir.clone(),
            member: places.member.clone(),
            wal_dir: places.wal.clone(),
            database: None,
            has_log: true,
            snaps: Vec::new(),
            snap_databases: Vec::new(),
            has_proxy: false,
            findings: Findings::default(),
        }
    };
    // An empty file is as good as none.
    let dir = DataDir { database: dir.database.filter(|_| db.is_some()), ..dir };
    let log = read_log(&places.wal)?;
    let rows = db.map(|db| read_rows(places, db)).transpose()?;
    let (facts, findings) =
        agree(&dir, Some(&log), rows.as_ref(), true).map_err(super::replay::failed)?;
    let mut dir = dir;
    for found in findings.kept() {
        dir.findings.push(found.clone());
    }
    Ok(Read { dir, log, rows, facts })
}

pub(super) fn read_log(dir: &Path) -> Result<Log, OpenError> {
    Log::open(dir).map_err(|error| OpenError::io("read", &error.path, &error.source))
}

/// Reads what decides whose database it is, and how far it goes.
pub(super) fn read_rows(places: &Places, db: &Db) -> Result<Report, OpenError> {
    let view = db.view();
    let damaged = |what: &str| {
        OpenError::damaged(
            format!("the database {} is damaged: {what}", places.database.display()),
            "look at it with etcdkit snapshot verify, and restore a snapshot",
        )
    };
    let row = |bucket: &[u8], key: &[u8]| {
        view.get(bucket, key).map_err(|error| OpenError::database(&places.database, &error))
    };
    let number = |key: &[u8]| -> Result<Option<u64>, OpenError> {
        let Some(value) = row(schema::META, key)? else { return Ok(None) };
        let number = rows::decode_u64(&value);
        number.map(Some).map_err(|error| damaged(&format!("{}: {error}", key.escape_ascii())))
    };
    let version = |bucket: &[u8], key: &[u8]| -> Result<Option<Version>, OpenError> {
        let Some(value) = row(bucket, key)? else { return Ok(None) };
        let what = || format!("{} is no version", key.escape_ascii());
        Version::parse(&value).map(Some).ok_or_else(|| damaged(&what()))
    };
    let mut report = Report {
        consistent_index: number(schema::META_CONSISTENT_INDEX)?,
        term: number(schema::META_TERM)?,
        storage_version: version(schema::META, schema::META_STORAGE_VERSION)?,
        cluster_version: version(schema::CLUSTER, schema::CLUSTER_VERSION)?,
        ..Report::default()
    };
    let mut bad = None;
    each(places, &view, schema::MEMBERS, &mut |key, value| match Member::decode(value) {
        Ok(row) if row.member.row_key() == key => report.members.push(row.member),
        Ok(_) => bad = Some(format!("member {} stands under another id", key.escape_ascii())),
        Err(error) => bad = Some(error),
    })?;
    each(places, &view, schema::MEMBERS_REMOVED, &mut |key, _| match MemberId::parse(key) {
        Some(id) => report.removed_members.push(id),
        None => bad = Some(format!("{} is no member id", key.escape_ascii())),
    })?;
    match bad {
        Some(what) => Err(damaged(&what)),
        None => Ok(report),
    }
}

fn each(
    places: &Places,
    view: &View,
    bucket: &[u8],
    visit: &mut dyn FnMut(&[u8], &[u8]),
) -> Result<(), OpenError> {
    let seen = view.each(bucket, b"", &mut |key, value| {
        visit(key, value);
        ControlFlow::Continue(())
    });
    seen.map_err(|error| OpenError::database(&places.database, &error))
}

/// Removes unfinished files that servers remove at their start, and sets broken snapshot files
/// aside as they do.
pub(super) fn remove_leftovers(
    places: &Places,
    options: &OpenOptions,
    is_ours: bool,
) -> Result<Vec<String>, OpenError> {
    let mut notes = Vec::new();
    let mut remove = |folder: &Path, name: &str| -> Result<(), OpenError> {
        let path = folder.join(name);
        options.disk.remove(&path).map_err(|error| OpenError::io("remove", &path, &error))?;
        notes.push(format!("removed {}, which a process left unfinished", path.display()));
        Ok(())
    };
    for name in names(&places.snap)? {
        // Without the lock of a database, a copy of it may be another process' work.
        if name.starts_with("tmp") || (is_ours && name.starts_with("db.tmp")) {
            remove(&places.snap, &name)?;
        }
    }
    for name in names(&places.wal)? {
        let number = name.strip_suffix(".tmp").unwrap_or_default();
        if !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()) {
            remove(&places.wal, &name)?;
        }
    }
    Ok(notes)
}

/// Sums up findings that a person should know of, though they are no obstacle.
pub(super) fn notes_of(read: &Read) -> Vec<String> {
    let all = read.dir.findings.kept().iter().chain(read.log.findings.kept());
    // Requests of the v2 API behind the newest snapshot need nobody's hand: one is taken at once.
    let told =
        all.filter(|found| found.severity != Severity::Info && found.code != Code::DirV2Requests);
    told.map(|found| format!("{}: {}", found.code.id(), found.detail)).collect()
}
