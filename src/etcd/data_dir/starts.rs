//! Which versions of etcd start on a directory: a pure function of its facts.
//!
//! | version | begins at | members from | cluster version from |
//! |---|---|---|---|
//! | 3.4, 3.5 | newest file with a record that counts | its v2 store, then the log | the same |
//! | 3.6 | the same | database | database, then the log |
//! | 3.7 | newest record that counts | database | database, then the log |
//!
//! Every rule was seen on etcd 3.5.35, 3.6.16 and 3.7.3; those of 3.4 are 3.5's where nothing else
//! is said, seen on 3.4.45.

use serde::Serialize;

use super::agree::{Facts, SnapFacts};
use crate::etcd::log::Opening;
use crate::etcd::schema::Version;

/// What a version does with the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Starts {
    /// It starts and serves.
    Yes,
    /// It starts, but elects nobody, hangs, or loses what is written.
    Badly,
    /// It does not start.
    No,
}

/// The answer for one version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Start {
    /// Minor version, such as `3.6`.
    pub etcd: &'static str,
    /// What it does.
    pub starts: Starts,
    /// Why not, or what to know.
    pub why: Vec<String>,
}

impl Start {
    fn note(&mut self, starts: Starts, why: impl Into<String>) {
        self.starts = self.starts.max(starts);
        self.why.push(why.into());
    }
}

/// Predicts what etcd 3.4 to 3.7 do with a directory.
#[must_use]
pub fn starts_on(facts: &Facts) -> Vec<Start> {
    let versions = [("3.4", 4), ("3.5", 5), ("3.6", 6), ("3.7", 7)];
    versions.map(|(etcd, minor)| start(etcd, minor, facts)).to_vec()
}

fn start(etcd: &'static str, minor: u32, facts: &Facts) -> Start {
    let mut start = Start { etcd, starts: Starts::Yes, why: Vec::new() };
    if facts.has_proxy {
        start.note(Starts::No, "folders member and proxy lie side by side");
    }
    if facts.has_database && !facts.database_is_whole {
        start.note(Starts::No, "the database is damaged");
    }
    if !facts.has_log {
        if facts.has_database {
            let why = "there is no log: it founds a new cluster on the old database, and what is \
                       written first vanishes";
            start.note(Starts::Badly, why);
        } else {
            start.note(Starts::Yes, "the directory is empty: it founds a new cluster");
        }
        return start;
    }
    let [opening, opening_before_3_7] = facts.log_opening;
    let opening = if minor >= 7 { opening } else { opening_before_3_7 };
    match (&facts.log_damage, opening) {
        (why, Opening::Refused) => {
            let why = why.as_deref().unwrap_or("it is damaged");
            start.note(Starts::No, format!("it cannot read the log: {why}"));
            return start;
        }
        (Some(why), Opening::AsIs | Opening::AfterRepair) => {
            let why = format!("it ends the log there, and what was acknowledged is lost: {why}");
            start.note(Starts::Badly, why);
        }
        (None, Opening::AfterRepair) => {
            let why = "it cuts off the write at the end of the log that is not whole";
            start.note(Starts::Yes, why);
        }
        (None, Opening::AsIs) => {}
    }
    let snap = facts.newest_snap.as_ref();
    let begin = if minor >= 7 { facts.newest_record } else { snap.map_or(0, |snap| snap.index) };
    log(&mut start, facts, begin);
    database(&mut start, facts, begin);
    members(&mut start, minor, facts, begin);
    versions(&mut start, minor, facts, begin);
    requests(&mut start, minor, facts, begin, snap);
    start
}

/// Whether the log can be read from where the version begins.
fn log(start: &mut Start, facts: &Facts, begin: u64) {
    let end = facts.last_index(begin);
    let first = facts.first_entry.filter(|_| facts.last_entry > Some(begin));
    if let Some(first) = first.filter(|first| *first > begin.saturating_add(1)) {
        let why = format!("it begins at entry {begin}, and the log begins at {first}");
        start.note(Starts::No, why);
    } else if facts.commit > end {
        let why = format!(
            "it begins at entry {begin}, finds entries up to {end}, and entry {} was committed",
            facts.commit
        );
        start.note(Starts::No, why);
    } else if begin == 0 && facts.last_entry.is_none() {
        start.note(Starts::No, "the log holds neither an entry nor a snapshot that counts");
    }
    if !facts.has_state {
        start.note(Starts::Badly, "no HardState in the log: it elects nobody");
    }
}

/// Whether the database goes with the log.
fn database(start: &mut Start, facts: &Facts, begin: u64) {
    if facts.is_foreign {
        start.note(Starts::Badly, "the log is that of a member which the database does not know");
    }
    if let Some((index, what)) = &facts.broken_entry {
        start.note(Starts::No, format!("it stops at entry {index}: {what}"));
    }
    if let Some((index, what)) = &facts.unknown_entry {
        let why = format!("whether it applies entry {index} is not known: {what}");
        start.note(Starts::Yes, why);
    }
    let index = facts.consistent_index;
    let end = facts.last_index(begin).max(facts.newest_record);
    if begin > index && !facts.snap_databases.contains(&begin) {
        let what = if facts.has_database {
            format!("the database ends at {index}")
        } else {
            "there is no database".to_owned()
        };
        start.note(Starts::No, format!("its snapshot covers entry {begin}, but {what}"));
    } else if !facts.has_database {
        start.note(Starts::Yes, "it makes the database anew from the whole log");
    } else if index > end {
        let why = format!(
            "the database has entry {index}, the log ends at {end}: what is written before that \
             vanishes"
        );
        start.note(Starts::Badly, why);
    }
}

/// Whether the version finds itself among the members.
fn members(start: &mut Start, minor: u32, facts: &Facts, begin: u64) {
    if minor <= 5 {
        let in_snap = facts.newest_snap.as_ref().is_some_and(|snap| snap.names_member);
        let in_log = facts.added_at.is_some_and(|added| added > begin);
        if begin > 0 && !in_snap && !in_log {
            start.note(Starts::No, "the snapshot file does not name the member");
        }
        return;
    }
    let in_database = facts.members.contains(&facts.member);
    if !in_database && !facts.is_added_by_replay() {
        let why = "the member is not among the members in the database";
        start.note(if minor == 6 { Starts::No } else { Starts::Badly }, why);
    }
    if facts.is_removed {
        start.note(Starts::No, "the member was removed from its cluster");
    }
}

/// Whether the version is new enough.
fn versions(start: &mut Start, minor: u32, facts: &Facts, begin: u64) {
    let above = |version: &Version| (version.major, version.minor) > (3, minor);
    if let Some(storage) = facts.storage.filter(above) {
        if minor == 5 {
            let why = format!(
                "storage version {storage} stays in place, and the data may hold what 3.5 does \
                 not know"
            );
            start.note(Starts::Yes, why);
        } else {
            start.note(Starts::No, format!("it does not know storage version {storage}"));
        }
    }
    let stored = if minor <= 5 {
        facts.newest_snap.as_ref().and_then(|snap| snap.version)
    } else {
        facts.cluster
    };
    let replayed = facts.requests.highest_version(begin);
    if let Some(version) = stored.max(replayed).filter(above) {
        let why = format!("cluster version {version} makes it an invalid downgrade");
        start.note(Starts::No, why);
    }
}

/// Whether the version understands the entries and the snapshot file.
fn requests(start: &mut Start, minor: u32, facts: &Facts, begin: u64, snap: Option<&SnapFacts>) {
    let after = |index: Option<u64>| index.filter(|index| *index > begin);
    if minor >= 7
        && let Some(index) = after(facts.requests.last_v2)
    {
        let why = format!("entry {index} is a request of the v2 API, which it cannot read");
        start.note(Starts::No, why);
    }
    if minor == 6
        && let Some(index) = after(facts.requests.last_v2_foreign)
    {
        let why = format!("entry {index} is a request of the v2 API that it refuses");
        start.note(Starts::No, why);
    }
    let newest = facts.requests.last_since_3_5;
    if minor == 4
        && let Some(index) = newest.filter(|index| *index > facts.consistent_index)
    {
        start.note(Starts::No, format!("entry {index} is a request that came with 3.5"));
    }
    if minor <= 6 && snap.is_some_and(|snap| !snap.is_readable) {
        start.note(Starts::No, "the v2 store in the snapshot file cannot be read");
    }
    if minor == 6 && snap.is_some_and(|snap| snap.has_v2_data) {
        start.note(Starts::No, "there are keys or users of the v2 API");
    }
}
