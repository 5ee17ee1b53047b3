//! Founds a new directory.

use std::fs;
use std::io;
use std::path::Path;

use super::{Compat, OpenError, OpenOptions, Opened, Places, existing};
use crate::bolt::db::{Batch, Db};
use crate::etcd::members::{ClusterId, Member, MemberId};
use crate::etcd::peer_urls::{InitialCluster, parse_urls};
use crate::etcd::restore_log::{self, encode_founding_change};
use crate::etcd::schema;
use crate::format::wal::{ConfState, Entry, HardState, Metadata, entry_kind};
use crate::store::log::{Wal, parent};
use crate::store::mvcc::Keys;

/// Name of the database until it is complete; servers delete such files at their start.
const DATABASE_NEW: &str = "db.tmp.new";

/// The member that founds its cluster.
#[derive(Clone, Debug)]
pub(super) struct Founder {
    pub(super) member: Member,
    pub(super) cluster: ClusterId,
    change: Vec<u8>,
}

impl Founder {
    /// Computes ids from what the options say.
    pub(super) fn of(options: &OpenOptions) -> Result<Self, OpenError> {
        let identity = &options.identity;
        let refused = |error: String| {
            OpenError::unfit(
                format!("a new member cannot have the peer URLs given: {error}"),
                "give a URL such as http://localhost:2380",
            )
        };
        let urls = parse_urls(&identity.peer_urls).map_err(|error| refused(error.to_string()))?;
        let initial = InitialCluster { members: [(identity.name.clone(), urls.clone())].into() };
        let checked = initial.check(&identity.name, &urls, &mut |host| Ok(host.to_owned()));
        checked.map_err(|error| refused(error.to_string()))?;
        let founded = initial.found(&identity.token);
        let (cluster, members) = founded.map_err(|error| refused(error.to_string()))?;
        let Some(member) = members.into_iter().next() else {
            return Err(refused("no member".into()));
        };
        let change = encode_founding_change(&member);
        Ok(Self { member, cluster, change })
    }

    pub(super) fn metadata(&self) -> Metadata {
        Metadata { node_id: self.member.id.0, cluster_id: self.cluster.0, ..Metadata::default() }
    }

    /// The entry that founds the cluster.
    pub(super) fn entry(&self) -> Entry<'_> {
        Entry {
            kind: entry_kind::CONF_CHANGE,
            term: restore_log::TERM,
            index: 1,
            data: &self.change,
            ..Entry::default()
        }
    }

    /// What is voted and committed with it, before anything is elected.
    pub(super) fn state() -> HardState {
        HardState { term: restore_log::TERM, commit: 1, ..HardState::default() }
    }
}

/// Founds a directory without a log; `None` when there is one after all.
pub(super) fn found(places: &Places, options: &OpenOptions) -> Result<Option<Opened>, OpenError> {
    let founder = Founder::of(options)?;
    let disk = &options.disk;
    make_dirs(options, &places.snap)?;
    make_dirs(options, parent(&places.wal))?;
    let mut notes = existing::remove_leftovers(places, options, false)?;
    let was_there = places.database_bytes()? > 0;
    let (db, keys) =
        if was_there { open_database(places, options)? } else { make_database(places, options)? };
    // From here on nobody else founds it; but somebody may have.
    if places.has_log()? {
        return Ok(None);
    }
    if was_there {
        refuse_used(places, &db)?;
        // A server that was killed may have made some of them.
        db.commit(first_rows()).map_err(|error| OpenError::database(&places.database, &error))?;
    }
    sync_dirs(places, options)?;
    let metadata = founder.metadata().encode();
    let state = Founder::state();
    let mut wal = Wal::create(
        disk,
        &places.wal,
        &metadata,
        &[founder.entry()],
        Some(state),
        options.segment_bytes,
    )?;
    notes.extend(wal.take_notes());
    let log = existing::read_log(&places.wal)?;
    Ok(Some(Opened {
        db,
        keys,
        replay: super::Replay::new(log, 0, 1),
        state,
        last_index: wal.last_index(),
        wal,
        snapshot_index: 0,
        voters: ConfState { voters: vec![founder.member.id.0], ..ConfState::default() },
        member: founder.member.id,
        cluster: founder.cluster,
        compat: options.compat.unwrap_or(Compat::V3_7),
        version: None,
        is_new: true,
        wants_snapshot: false,
        snap_dir: places.snap.clone(),
        notes,
    }))
}

/// Refuses a database that holds anything, as there is no log to it.
fn refuse_used(places: &Places, db: &Db) -> Result<(), OpenError> {
    let rows = existing::read_rows(places, db)?;
    let mut has_keys = false;
    let seen = db.view().each(schema::KEY, b"", &mut |_, _| {
        has_keys = true;
        std::ops::ControlFlow::Break(())
    });
    seen.map_err(|error| OpenError::database(&places.database, &error))?;
    let index = rows.consistent_index.unwrap_or(0);
    if index == 0 && !has_keys && rows.members.is_empty() {
        return Ok(());
    }
    Err(OpenError::unfit(
        format!(
            "{} is a database as of entry {index}, and there is no log in {}: a server would \
             found a new cluster, and what is written first would vanish",
            places.database.display(),
            places.wal.display()
        ),
        "give the directory of its log, or make a new member of it with etcdkit snapshot restore",
    ))
}

/// Makes a folder and those above it, and makes that durable.
pub(super) fn make_dirs(options: &OpenOptions, folder: &Path) -> Result<(), OpenError> {
    if folder.as_os_str().is_empty() || folder.is_dir() {
        return Ok(());
    }
    let above = parent(folder);
    make_dirs(options, above)?;
    match options.disk.make_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made.map_err(|error| OpenError::io("make", folder, &error))?,
    }
    options.disk.sync_dir(above).map_err(|error| OpenError::io("sync", above, &error))
}

/// Makes the names of a member's folders durable: a process that made them may have died before it
/// did.
pub(super) fn sync_dirs(places: &Places, options: &OpenOptions) -> Result<(), OpenError> {
    for folder in [parent(&places.dir), &places.dir, &places.member, &places.snap] {
        match options.disk.sync_dir(folder) {
            // The folder above may be somebody else's.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            synced => synced.map_err(|error| OpenError::io("sync", folder, &error))?,
        }
    }
    Ok(())
}

/// Opens the database, and takes its lock.
pub(super) fn open_database(
    places: &Places,
    options: &OpenOptions,
) -> Result<(Db, Keys), OpenError> {
    let mut keys = Keys::default();
    let db = Db::open_visiting(&options.disk, &places.database, &options.database, &mut keys);
    Ok((db.map_err(|error| OpenError::database(&places.database, &error))?, keys))
}

/// Makes a database with etcd's empty buckets: complete before it has its name.
pub(super) fn make_database(
    places: &Places,
    options: &OpenOptions,
) -> Result<(Db, Keys), OpenError> {
    let disk = &options.disk;
    let new = places.snap.join(DATABASE_NEW);
    remove_unlocked(options, &new)?;
    let failed = |error| OpenError::database(&new, &error);
    let db = Db::create(disk, &new, &options.database).map_err(failed)?;
    db.commit(first_rows()).map_err(failed)?;
    drop(db);
    let moved = disk.rename(&new, &places.database).and_then(|()| disk.sync_dir(&places.snap));
    moved.map_err(|error| OpenError::io("make", &places.database, &error))?;
    open_database(places, options)
}

/// What etcd writes into a new database before any entry is applied: its buckets, and the revision
/// at which auth begins.
fn first_rows() -> Batch {
    const AUTH_REVISION: u64 = 1;
    let mut batch = Batch::default();
    schema::BUCKETS.iter().for_each(|name| batch.bucket(name));
    let revision = AUTH_REVISION.to_be_bytes().to_vec();
    batch.plan(
        schema::AUTH,
        bytes::Bytes::from_static(schema::AUTH_REVISION),
        Some(revision.into()),
    );
    batch
}

/// Removes what a killed process left, but not what another one is making.
fn remove_unlocked(options: &OpenOptions, path: &Path) -> Result<(), OpenError> {
    let file = match fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(|error| OpenError::io("open", path, &error))?,
    };
    if matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)) {
        return Err(OpenError::InUse(path.to_owned()));
    }
    options.disk.remove(path).map_err(|error| OpenError::io("remove", path, &error))
}

/// Tells whose log was made half: nobody was elected yet, and at most the founding entry is in it.
pub(super) fn may_finish(founder: &Founder, metadata: Metadata) -> bool {
    let own = founder.metadata();
    (own.node_id, own.cluster_id) == (metadata.node_id, metadata.cluster_id)
}

/// The id that a log says, for people.
pub(super) fn id_text(metadata: Metadata) -> String {
    format!("member {} of cluster {}", MemberId(metadata.node_id), ClusterId(metadata.cluster_id))
}
