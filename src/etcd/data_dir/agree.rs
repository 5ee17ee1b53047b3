//! Holds database, log and snapshot files against each other.

use std::collections::BTreeSet;

use super::{DataDir, Requests, SnapFile};
use crate::etcd::log::{Counted, EntriesError, Log, Opening, Tail};
use crate::etcd::members::Member;
use crate::etcd::schema::Version;
use crate::etcd::survey::Report as Rows;
use crate::format::finding::{Code, Finding, Findings, Place};
use crate::format::wal::{ConfState, Snapshot};

/// Everything that decides which etcd starts on a directory; see [`super::starts_on`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Whether there is a database.
    pub has_database: bool,
    /// Whether its pages and rows are whole.
    pub database_is_whole: bool,
    /// Whether there is a log.
    pub has_log: bool,
    /// Whether a folder `proxy` lies beside `member`.
    pub has_proxy: bool,
    /// What etcd 3.7 does with the log, and what earlier ones do.
    pub log_opening: [Opening; 2],
    /// What is wrong with the log, where it is damaged.
    pub log_damage: Option<String>,
    /// Id of the member, from the log.
    pub member: u64,
    /// Whether the log holds a HardState.
    pub has_state: bool,
    /// Commit index.
    pub commit: u64,
    /// Index of the first entry in the log.
    pub first_entry: Option<u64>,
    /// Index of the last entry in the log.
    pub last_entry: Option<u64>,
    /// How far the log counts.
    pub reach: u64,
    /// Why so far; `None` without a log.
    pub counted: Option<Counted>,
    /// Newest snapshot record that counts: where etcd 3.7 begins.
    pub newest_record: u64,
    /// Newest snapshot file with a record that counts: where etcd up to 3.6 begins.
    pub newest_snap: Option<SnapFacts>,
    /// Databases that a leader sent.
    pub snap_databases: Vec<u64>,
    /// Index of the last entry that the database has.
    pub consistent_index: u64,
    /// Voters after all entries that count; empty when it is not known.
    pub voters: BTreeSet<u64>,
    /// Members in the database.
    pub members: BTreeSet<u64>,
    /// Whether the database says that the member was removed.
    pub is_removed: bool,
    /// Whether the log is that of a member which the database does not know; see [`is_foreign`].
    pub is_foreign: bool,
    /// Index of the first entry to be replayed that no server applies, and what is wrong with it.
    pub broken_entry: Option<(u64, String)>,
    /// The same of one that this version does not understand.
    pub unknown_entry: Option<(u64, String)>,
    /// Highest index of an entry that adds the member.
    pub added_at: Option<u64>,
    /// Storage version.
    pub storage: Option<Version>,
    /// Cluster version in the database.
    pub cluster: Option<Version>,
    /// What the entries say.
    pub requests: Requests,
}

/// What matters of a snapshot file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapFacts {
    /// Index of the last entry that it covers.
    pub index: u64,
    /// Whether its v2 store can be read.
    pub is_readable: bool,
    /// Whether that names the member with its peer URLs.
    pub names_member: bool,
    /// Cluster version in it.
    pub version: Option<Version>,
    /// Whether there are keys or users of the v2 API.
    pub has_v2_data: bool,
}

/// Compares what a directory holds; `rows` where there is a database that can be read.
///
/// # Errors
///
/// The log changed or cannot be read any more.
pub fn agree(
    dir: &DataDir,
    log: Option<&Log>,
    rows: Option<&Rows>,
    rows_are_whole: bool,
) -> Result<(Facts, Findings), EntriesError> {
    let mut facts = Facts {
        has_database: dir.database.is_some(),
        database_is_whole: rows_are_whole,
        has_log: dir.has_log,
        has_proxy: dir.has_proxy,
        snap_databases: dir.snap_databases.clone(),
        ..Facts::default()
    };
    if let Some(log) = log {
        facts.take_log(dir, log, rows)?;
    }
    if let Some(rows) = rows {
        facts.consistent_index = rows.consistent_index.unwrap_or(0);
        facts.members = rows.members.iter().map(|member| member.id.0).collect();
        facts.is_removed = rows.removed_members.iter().any(|id| id.0 == facts.member);
        let owner = Owner {
            members: &rows.members,
            is_removed: facts.is_removed,
            has_term: rows.term.is_some(),
            consistent_index: facts.consistent_index,
        };
        facts.is_foreign = log.is_some_and(|log| is_foreign(log, &owner));
        (facts.storage, facts.cluster) = (rows.storage_version, rows.cluster_version);
    }
    let findings = findings(dir, &facts, rows.is_some());
    Ok((facts, findings))
}

impl Facts {
    fn take_log(
        &mut self,
        dir: &DataDir,
        log: &Log,
        rows: Option<&Rows>,
    ) -> Result<(), EntriesError> {
        self.member = log.metadata.map_or(0, |metadata| metadata.node_id);
        self.has_state = log.hard_state.is_some();
        self.commit = log.commit();
        self.first_entry = log.first.map(|first| first.index);
        self.last_entry = log.last.map(|last| last.index);
        self.newest_record = log.newest_snapshot().map_or(0, |snapshot| snapshot.index);
        self.log_opening = [log.opening, log.opening_before_3_7];
        if log.tail == Tail::Damaged || log.opening == Opening::Refused {
            let why = log.obstacle().map(|found| found.detail.clone());
            self.log_damage = Some(why.unwrap_or_else(|| "it cannot be read".into()));
        }
        let matching = dir.snaps.iter().find(|snap| {
            let is_record = |id: (u64, u64)| id == (snap.index, snap.term);
            let mut records = log.valid_snapshots();
            snap.content.is_ok() && records.any(|record| is_record((record.index, record.term)))
        });
        self.newest_snap = matching.and_then(|snap| {
            let (_, store) = snap.content.as_ref().ok()?;
            let own = |id: &str| u64::from_str_radix(id, 16) == Ok(self.member);
            let store = store.as_ref();
            Some(SnapFacts {
                index: snap.index,
                is_readable: store.is_ok(),
                names_member: store.is_ok_and(|store| {
                    let mut members = store.members.iter();
                    members.any(|member| own(&member.id) && member.raft_attributes.is_some())
                }),
                version: store
                    .ok()
                    .and_then(|store| store.version.as_ref())
                    .and_then(|text| Version::parse(text.as_bytes())),
                has_v2_data: store.is_ok_and(|store| store.has_v2_data),
            })
        });
        let snap_file = |newest: &Snapshot| {
            let same = |snap: &&SnapFile| (snap.index, snap.term) == (newest.index, newest.term);
            let (voters, _) = dir.snaps.iter().find(same)?.content.as_ref().ok()?;
            Some(voters.clone())
        };
        let members = rows.map_or(&[][..], |rows| rows.members.as_slice());
        let fallback = voters_elsewhere(log, &snap_file, members);
        let reach = log.reach(fallback.as_ref());
        (self.reach, self.counted) = (reach.index, Some(reach.counted));
        if reach.counted != Counted::VotersUnknown
            && let Some(configuration) = log.configuration(reach.index, fallback.as_ref())
        {
            self.voters = configuration.voters;
        }
        self.added_at = log.added_at(self.member);
        let from = self.newest_snap.as_ref().map_or(0, |snap| snap.index).min(self.newest_record);
        let from = self.first_entry.map_or(from, |first| from.max(first.saturating_sub(1)));
        self.requests = Requests::read(&mut log.entries(from)?, self.reach)?;
        Ok(())
    }

    /// Index of the last entry or of the snapshot that a reader begins at.
    #[must_use]
    pub fn last_index(&self, start: u64) -> u64 {
        self.last_entry.unwrap_or(0).max(start)
    }
}

/// Says who votes at the newest snapshot record where that itself does not, as those of etcd 3.4:
/// what the snapshot file of it says, else the members in the database.
#[must_use]
pub fn voters_elsewhere(
    log: &Log,
    snap_file: &dyn Fn(&Snapshot) -> Option<ConfState>,
    members: &[Member],
) -> Option<ConfState> {
    let newest = log.newest_snapshot().filter(|newest| newest.index > 0)?;
    if newest.conf_state.is_some() {
        return None;
    }
    let ids = |is_learner| {
        members.iter().filter(move |member| member.is_learner == is_learner).map(|m| m.id.0)
    };
    let of_rows = || {
        (!members.is_empty()).then(|| ConfState {
            voters: ids(false).collect(),
            learners: ids(true).collect(),
            ..ConfState::default()
        })
    };
    snap_file(newest).or_else(of_rows)
}

/// What a database says about who it belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// Its members.
    pub members: &'a [Member],
    /// Whether the member of the log stands among those that were removed.
    pub is_removed: bool,
    /// Whether it stores a term, as every etcd from 3.5 does.
    pub has_term: bool,
    /// Index of the last entry that it has.
    pub consistent_index: u64,
}

/// Tells whether a log is that of a member which the database does not know.
///
/// Not where the database names no members, nor where 3.4 wrote it, whose restore leaves the rows
/// of members that are gone; nor where the log goes on from the database's members and adds this
/// one.
#[must_use]
pub fn is_foreign(log: &Log, owner: &Owner<'_>) -> bool {
    let Some(metadata) = log.metadata else { return false };
    let (member, members) = (metadata.node_id, owner.members);
    let is_known = members.is_empty() || members.iter().any(|known| known.id.0 == member);
    if is_known || owner.is_removed || !owner.has_term {
        return false;
    }
    let is_added = log.added_at(member).is_some_and(|added| added > owner.consistent_index);
    let configuration = log.configuration(owner.consistent_index, None);
    let goes_on = configuration.is_some_and(|known| {
        members.iter().all(|m| known.voters.contains(&m.id.0) || known.learners.contains(&m.id.0))
    });
    !(is_added && goes_on)
}

fn hex_ids(ids: &BTreeSet<u64>) -> String {
    let ids: Vec<_> = ids.iter().map(|id| format!("{id:x}")).collect();
    if ids.is_empty() { "none".into() } else { ids.join(", ") }
}

fn findings(dir: &DataDir, facts: &Facts, has_rows: bool) -> Findings {
    let mut findings = Findings::default();
    let mut find = |code, file: Option<&str>, detail: String| {
        let place = Place { file: file.map(str::to_owned), ..Place::default() };
        findings.push(Finding::new(code, place, detail));
    };
    let database = Some("member/snap/db");
    match (facts.has_database, facts.has_log) {
        (true, false) => {
            let detail = "a server would start a new cluster on the old database, and what is \
                          written first would vanish";
            find(Code::DirLogMissing, None, detail.into());
        }
        (false, true) => {
            find(Code::DirDatabaseMissing, None, "there is no member/snap/db".into());
        }
        _ => {}
    }
    if !facts.has_log {
        return findings;
    }
    let (record, index) = (facts.newest_record, facts.consistent_index);
    let is_log_good = facts.log_damage.is_none();
    if has_rows && record > index && !facts.snap_databases.contains(&record) {
        let detail = format!(
            "the newest snapshot covers entry {record}, the database ends at {index}, and there \
             is no {record:016x}.snap.db"
        );
        find(Code::DirSnapshotAhead, database, detail);
    }
    let end = facts.last_index(record);
    if has_rows && is_log_good && index > end {
        let detail = format!(
            "the database has entry {index}, but the log ends at {end}: a server would skip what \
             is written up to there"
        );
        find(Code::DirDatabaseAhead, database, detail);
    }
    if has_rows && facts.reach > index {
        let count = facts.reach.saturating_sub(index);
        let detail = format!(
            "{count} entries, {} to {}, are not in the database yet; a server replays them",
            index.saturating_add(1),
            facts.reach
        );
        find(Code::DirReplay, None, detail);
    }
    if record > 0 && facts.newest_snap.as_ref().map(|snap| snap.index) != Some(record) {
        let detail = format!("there is no readable snapshot file of entry {record}");
        find(Code::DirSnapMissing, None, detail);
    }
    for snap in dir.snaps.iter().filter(|snap| snap.content.is_ok() && snap.index > record) {
        let detail = format!("{} is newer than the newest record, {record}", snap.name);
        find(Code::DirSnapOrphan, Some(&format!("member/snap/{}", snap.name)), detail);
    }
    if has_rows && facts.member != 0 {
        if facts.is_removed {
            let detail = format!("member {:x} stands in members_removed", facts.member);
            find(Code::DirSelfRemoved, database, detail);
        } else if !facts.members.contains(&facts.member) && !facts.is_added_by_replay() {
            let detail = format!(
                "the log is that of member {:x}, the database has {}",
                facts.member,
                hex_ids(&facts.members)
            );
            let code = if facts.is_foreign { Code::DirSelfUnknown } else { Code::DirSelfUnlisted };
            find(code, database, detail);
        } else if facts.reach <= index
            && !facts.voters.is_empty()
            && !facts.voters.is_subset(&facts.members)
        {
            let detail = format!(
                "members in the database: {}; voters by the log: {}",
                hex_ids(&facts.members),
                hex_ids(&facts.voters)
            );
            find(Code::DirMembersDiffer, database, detail);
        }
    }
    if let Some(snap) = &facts.newest_snap {
        if !snap.names_member {
            let detail = format!("the snapshot of entry {} lacks it", snap.index);
            find(Code::DirV2Members, None, detail);
        }
        if snap.has_v2_data {
            find(Code::DirV2Data, None, "folder /1 or /2 of the v2 store is not empty".into());
        }
    }
    if let Some(v2) = facts.requests.last_v2.filter(|v2| *v2 > record) {
        let detail = format!(
            "entry {v2} is a request of the v2 API, as servers up to 3.5 write them, and the \
             newest snapshot covers entry {record}: etcd 3.7 does not start on this log before a \
             server of 3.6 wrote a newer snapshot"
        );
        find(Code::DirV2Requests, None, detail);
    }
    let above = facts.requests.highest_version(record);
    if let Some(version) = above.filter(|version| Some(*version) != facts.cluster) {
        let stored = facts.cluster.map_or("none".into(), |cluster| cluster.to_string());
        let detail = format!("the log sets cluster version {version}, the database has {stored}");
        find(Code::DirVersionReplay, None, detail);
    }
    findings
}

impl Facts {
    /// Tells whether entries that are still to be replayed add the member to the database.
    #[must_use]
    pub fn is_added_by_replay(&self) -> bool {
        self.added_at.is_some_and(|added| added > self.consistent_index && added <= self.reach)
    }
}
