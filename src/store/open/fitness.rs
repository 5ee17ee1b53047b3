//! Decides whether a directory with a log may be gone on with, and what is to be done to it.

use std::collections::BTreeSet;

use super::existing::{Read, notes_of};
use super::found::{Founder, id_text, may_finish};
use super::{Compat, OpenError, OpenOptions, Places, members, replay};
use crate::bolt::db::Batch;
use crate::etcd::data_dir::{SnapFile, voters_elsewhere};
use crate::etcd::log::{Configuration, Counted, Log, Opening, Tail};
use crate::etcd::members::MemberId;
use crate::etcd::request::Content;
use crate::etcd::schema::{STORAGE_VERSION_MAX, Version};
use crate::format::finding::{Code, Severity};
use crate::format::wal::{ConfChange, ConfState, Entry, Snapshot, change_kind, entry_kind};

const RESTORE: &str = "restore a snapshot into a new directory with etcdkit snapshot restore";
const VERIFY: &str = "etcdkit snapshot verify says more of the directory";

/// What is to be done to a directory that is fit.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// Index of the last entry that counts.
    pub(super) through: u64,
    pub(super) compat: Compat,
    /// Cluster version in the database, or in the snapshot file of an older server.
    pub(super) version: Option<Version>,
    pub(super) wants_snapshot: bool,
    /// The founding of the cluster is to be finished.
    pub(super) is_half_made: bool,
    /// Entries that make the member the only one, to be written after `through`.
    pub(super) forced: Option<Vec<Vec<u8>>>,
    /// Rows of members that the database lacks.
    pub(super) members: Option<Batch>,
    /// Who votes at the newest snapshot, where its record does not say.
    pub(super) fallback: Option<ConfState>,
    pub(super) notes: Vec<String>,
}

/// Judges a directory.
pub(super) fn judge(
    places: &Places,
    options: &OpenOptions,
    read: &Read,
) -> Result<Plan, OpenError> {
    log_is_whole(places, read)?;
    let fallback = fallback(read);
    if is_half_made(options, read)? {
        return Ok(Plan {
            through: 1,
            compat: options.compat.unwrap_or(Compat::V3_7),
            version: None,
            wants_snapshot: false,
            is_half_made: true,
            forced: None,
            members: None,
            fallback,
            notes: notes_of(read),
        });
    }
    let facts = &read.facts;
    if !facts.has_state {
        return Err(OpenError::damaged(
            format!("the log in {} has no HardState: no server elects itself", shown(places)),
            VERIFY,
        ));
    }
    let mut plan = Plan {
        through: facts.reach,
        compat: Compat::V3_7,
        version: None,
        wants_snapshot: false,
        is_half_made: false,
        forced: None,
        members: None,
        fallback,
        notes: notes_of(read),
    };
    parts_agree(places, read)?;
    who_votes(options, read, &mut plan)?;
    versions(options, read, &mut plan)?;
    entries(read, &plan)?;
    is_member(read, &mut plan)?;
    Ok(plan)
}

fn shown(places: &Places) -> std::path::Display<'_> {
    places.wal.display()
}

/// Refuses a log that no server reads, or of which something is not understood.
fn log_is_whole(places: &Places, read: &Read) -> Result<(), OpenError> {
    let log = &read.log;
    let forbids = |code: Code, severity| {
        // Whole records behind a torn one are what a power loss may leave of one unsynced write,
        // unless they tell that it was synced.
        (code != Code::WalTornInside || log.lacks_synced)
            && (severity == Severity::Error || code.is_unknown())
    };
    let kept = log.findings.kept();
    let found = kept.iter().find(|found| forbids(found.code, found.severity));
    let is_bad = log.tail == Tail::Damaged || log.opening == Opening::Refused;
    let is_bad = is_bad || log.lacks_synced;
    if found.is_none() && !is_bad {
        return Ok(());
    }
    let what = found.map_or("it cannot be read", |found| found.detail.as_str());
    let file = found.and_then(|found| found.place.file.as_deref()).unwrap_or("the log");
    let at = found.and_then(|found| found.place.offset);
    let at = at.map_or_else(String::new, |at| format!(", byte {at}"));
    let reason =
        format!("the log in {} is not one to go on with: {file}{at}: {what}", shown(places));
    if found.is_some_and(|found| found.code.is_unknown()) {
        return Err(OpenError::unfit(reason, "serve it with the etcd that wrote it"));
    }
    Err(OpenError::damaged(reason, format!("{VERIFY}; {RESTORE}")))
}

/// Who votes at the newest snapshot, where its record does not say.
fn fallback(read: &Read) -> Option<ConfState> {
    let snap_file = |newest: &Snapshot| {
        let same = |snap: &&SnapFile| (snap.index, snap.term) == (newest.index, newest.term);
        let (voters, _) = read.dir.snaps.iter().find(same)?.content.as_ref().ok()?;
        Some(voters.clone())
    };
    let members = read.rows.as_ref().map_or(&[][..], |rows| rows.members.as_slice());
    voters_elsewhere(&read.log, &snap_file, members)
}

/// Tells whether a killed process founded only half, and this one may go on with it.
fn is_half_made(options: &OpenOptions, read: &Read) -> Result<bool, OpenError> {
    let (log, facts) = (&read.log, &read.facts);
    let is_young = log.last.is_none_or(|last| last.index == 1)
        && facts.newest_record == 0
        && log.hard_state.is_none()
        && facts.consistent_index == 0;
    let Some(metadata) = log.metadata.filter(|_| is_young) else { return Ok(false) };
    let founder = Founder::of(options)?;
    let own_entry = || -> Result<bool, OpenError> {
        let mut entries = log.entries(0).map_err(replay::failed)?;
        let Some(entry) = entries.read_next().map_err(replay::failed)? else { return Ok(true) };
        let change = ConfChange::decode(entry.data).ok();
        Ok(entry.kind == entry_kind::CONF_CHANGE
            && change.is_some_and(|change| {
                change.kind == change_kind::ADD_NODE && change.node_id == metadata.node_id
            }))
    };
    if may_finish(&founder, metadata) && own_entry()? {
        return Ok(true);
    }
    Err(OpenError::unfit(
        format!(
            "the directory was founded half, for {}, and what was given makes {}",
            id_text(metadata),
            id_text(founder.metadata())
        ),
        "give the name, peer URLs and token that it was begun with, or another directory",
    ))
}

/// Refuses a database that does not go with the log.
fn parts_agree(places: &Places, read: &Read) -> Result<(), OpenError> {
    let facts = &read.facts;
    let database = places.database.display();
    let (index, record) = (facts.consistent_index, facts.newest_record);
    let end = facts.last_index(record);
    if facts.is_foreign {
        return Err(OpenError::unfit(
            format!(
                "the log in {} is that of member {:x}, which the database {database} does not know",
                shown(places),
                facts.member
            ),
            "put the database and the log of one member together",
        ));
    }
    if !facts.has_database && (record > 0 || facts.first_entry != Some(1)) {
        return Err(OpenError::unfit(
            format!(
                "there is no database {database}, and the log in {} does not go back to the first \
                 entry",
                shown(places)
            ),
            RESTORE,
        ));
    }
    if index > end {
        return Err(OpenError::unfit(
            format!(
                "the database {database} has entry {index}, but the log ends at {end}: what is \
                 written up to there would vanish"
            ),
            format!("put its own log in {}, or {RESTORE}", shown(places)),
        ));
    }
    if record > index {
        let sent = facts.snap_databases.contains(&record);
        let next = if sent {
            format!("start etcd once: it takes in {record:016x}.snap.db, which a leader sent")
        } else {
            RESTORE.to_owned()
        };
        return Err(OpenError::unfit(
            format!(
                "the newest snapshot in the log covers entry {record}, but the database \
                 {database} ends at {index}"
            ),
            next,
        ));
    }
    if let Some(first) = facts.first_entry.filter(|_| facts.reach > index)
        && first > index.saturating_add(1)
    {
        return Err(OpenError::unfit(
            format!("the database ends at entry {index}, and the log begins at {first}"),
            RESTORE,
        ));
    }
    if facts.newest_snap.as_ref().is_some_and(|snap| snap.has_v2_data) {
        return Err(OpenError::unfit(
            "there are keys or users of the v2 API, which no server from 3.6 has",
            "serve it with etcd 3.5 and take them out of there",
        ));
    }
    Ok(())
}

/// Refuses a member of several, unless it is to be the only one.
fn who_votes(options: &OpenOptions, read: &Read, plan: &mut Plan) -> Result<(), OpenError> {
    let (log, facts) = (&read.log, &read.facts);
    let member = MemberId(facts.member);
    if facts.is_removed {
        return Err(OpenError::unfit(
            format!("member {member} was removed from its cluster"),
            RESTORE,
        ));
    }
    if facts.counted == Some(Counted::SoleVoter) && facts.voters.len() == 1 {
        if options.force_new_cluster {
            plan.notes.push("the member is the only one with a vote already".into());
        }
        return Ok(());
    }
    // What was applied was committed, whatever the last HardState says.
    let commit = log.commit().max(facts.consistent_index).min(log.last_index());
    let Some(configuration) = log.configuration(commit, plan.fallback.as_ref()) else {
        return Err(OpenError::unfit("neither log nor snapshot file says who votes", RESTORE));
    };
    if configuration.learners.contains(&member.0) {
        return Err(OpenError::unfit(
            format!("member {member} is a learner: it has no vote, and cannot serve alone"),
            RESTORE,
        ));
    }
    if !options.force_new_cluster {
        let list: Vec<_> = configuration.voters.iter().map(|id| format!("{id:x}")).collect();
        return Err(OpenError::unfit(
            format!(
                "member {member} is one of {} with a vote ({}), and what others committed may not \
                 be here",
                list.len(),
                list.join(", ")
            ),
            "serve it with etcd, or give --force-new-cluster when the others are gone for good",
        ));
    }
    plan.through = commit;
    plan.forced = Some(super::force::entries(&configuration, facts.member));
    plan.notes.push(format!(
        "member {member} is made the only one, of {} with a vote; entries above {commit} are \
         dropped",
        configuration.voters.len()
    ));
    Ok(())
}

/// Who votes after all entries that count.
pub(super) fn voters(log: &Log, plan: &Plan, through: u64) -> ConfState {
    let of = |configuration: Configuration| ConfState {
        voters: configuration.voters.into_iter().collect(),
        learners: configuration.learners.into_iter().collect(),
        ..ConfState::default()
    };
    log.configuration(through, plan.fallback.as_ref()).map(of).unwrap_or_default()
}

/// Refuses what is newer than this store, or than it is to be.
fn versions(options: &OpenOptions, read: &Read, plan: &mut Plan) -> Result<(), OpenError> {
    let facts = &read.facts;
    let in_snap = facts.newest_snap.as_ref().and_then(|snap| snap.version);
    plan.version = facts.cluster.or(in_snap);
    let replayed: Vec<Version> = facts.requests.versions.iter().map(|(_, set)| *set).collect();
    let minor = |version: &Version| (version.major, version.minor);
    let all = [facts.storage, facts.cluster, in_snap].into_iter().flatten().chain(replayed);
    let newest = all.max();
    if let Some(newest) = newest.filter(|version| !version.is_known_storage()) {
        return Err(OpenError::unfit(
            format!("the directory is of version {newest}, and {STORAGE_VERSION_MAX} is known"),
            "serve it with an etcd of that version, or a newer etcdkit",
        ));
    }
    let after = facts.requests.versions.iter().rfind(|(at, _)| *at > facts.consistent_index);
    let cluster = after.map(|(_, version)| *version).or(plan.version);
    let current = facts.storage.max(cluster);
    let own = match current {
        Some(version) if minor(&version) >= (3, 7) => Compat::V3_7,
        Some(_) => Compat::V3_6,
        // Killed before it knew: 3.5's and older have no storage version, but requests of v2.
        None if facts.requests.last_v2.is_some() => Compat::V3_6,
        None => options.compat.unwrap_or(Compat::V3_7),
    };
    plan.compat = options.compat.unwrap_or(own);
    if plan.compat < own {
        let version = current.map_or_else(String::new, |version| version.to_string());
        return Err(OpenError::unfit(
            format!("the directory is of version {version}, and was to be served as 3.6"),
            "leave --compat out, or downgrade the cluster first",
        ));
    }
    if plan.compat > own && cluster.is_none_or(|version| minor(&version) < (3, 6)) {
        let version = cluster.map_or("none".into(), |version| version.to_string());
        return Err(OpenError::unfit(
            format!("the cluster's version is {version}, and goes up one minor version at a time"),
            "serve it with --compat 3.6 first",
        ));
    }
    // etcd 3.6 begins at the file of the newest record.
    let lacks_file = facts.newest_record > 0
        && facts.newest_snap.as_ref().is_none_or(|snap| snap.index != facts.newest_record);
    plan.wants_snapshot = facts.requests.last_v2 > Some(facts.newest_record)
        || (plan.compat == Compat::V3_6 && lacks_file);
    Ok(())
}

/// Refuses entries that are not understood, before anything is changed.
fn entries(read: &Read, plan: &Plan) -> Result<(), OpenError> {
    let after = read.facts.consistent_index;
    if plan.through <= after {
        return Ok(());
    }
    let mut entries = read.log.entries(after).map_err(replay::failed)?;
    while let Some(entry) = entries.read_next().map_err(replay::failed)? {
        if entry.index > plan.through {
            break;
        }
        if let Err(what) = understand(&entry) {
            return Err(OpenError::unfit(
                format!("entry {} of the log is not understood: {what}", entry.index),
                "serve it with the etcd that wrote it",
            ));
        }
    }
    Ok(())
}

fn understand(entry: &Entry<'_>) -> Result<(), String> {
    match entry.kind {
        entry_kind::NORMAL => {
            Content::decode(entry.data).map(drop).map_err(|fault| fault.to_string())
        }
        entry_kind::CONF_CHANGE => {
            let change = ConfChange::decode(entry.data).map_err(|error| error.to_string())?;
            match change.kind {
                0..=change_kind::ADD_LEARNER_NODE => Ok(()),
                kind => Err(format!("a change of members of kind {kind}")),
            }
        }
        kind => Err(format!("it is of kind {kind}")),
    }
}

/// Refuses a member that its own database does not know, but makes up for what servers up to 3.5
/// keep elsewhere.
fn is_member(read: &Read, plan: &mut Plan) -> Result<(), OpenError> {
    let facts = &read.facts;
    let known: &BTreeSet<u64> = &facts.members;
    if !facts.has_database || known.contains(&facts.member) || facts.is_added_by_replay() {
        return Ok(());
    }
    if facts.storage.is_none() {
        plan.members = members::plan(read)?;
    }
    if plan.members.is_none() {
        return Err(OpenError::unfit(
            format!("member {:x} is not among the members in its own database", facts.member),
            RESTORE,
        ));
    }
    plan.notes.push("the members are taken from where etcd up to 3.5 keeps them".into());
    Ok(())
}
