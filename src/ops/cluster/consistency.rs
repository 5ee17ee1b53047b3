//! Whether the members hold the same data: their HashKV at one revision.
//!
//! What is compared is the hash together with the revision that was hashed and the compaction
//! revision that it was made with: a member that has compacted further hashes fewer records, so
//! that hashes of different compactions say nothing about each other. Sizes are never compared: the
//! same data takes more room in one file than in another.
//!
//! A member that hashes holds its read lock until it is through, and every write that it applies
//! waits for that lock (`hashByRev`). So they are asked one at a time, the leader last: while one
//! stands still, the others are a majority.
//!
//! **Source**: etcd server/storage/mvcc/hash.go and server/etcdserver/api/v3rpc/maintenance.go,
//! `HashKV`, checked at 3.7.3; `hash_revision` is 0 before 3.6.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::verdict::{Remark, Urgency};
use super::{MemberView, Trouble, View, attend, gather, open, optional_hex, wait};
use crate::live::{Answers, Cause, Cluster, HashKv, Settings};
use crate::ops::{Error, ExitCode, Progress, admin};

/// Bytes of a database that a member hashes in a second at least.
const BYTES_A_SECOND: u64 = 64 << 20;
/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// What to compare.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// At which revision; `None` for the highest that every member has.
    pub revision: Option<i64>,
    /// How long to try again while members are behind or compact.
    pub patience: Duration,
}

/// What the comparison came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// All hashes that were got are the same.
    Equal,
    /// Some differ.
    Differs,
    /// None differ, but some were made with another compaction.
    NotComparable,
    /// One member answered: there is nothing to compare it with.
    Alone,
    /// No member gave a hash.
    Unknown,
}

/// What one member answered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemberHash {
    /// Where it was asked.
    pub endpoint: Option<String>,
    /// Its id, where known.
    #[serde(serialize_with = "optional_hex")]
    pub id: Option<u64>,
    /// Its name, where known.
    pub name: Option<String>,
    /// Its newest revision.
    pub revision: Option<i64>,
    /// The hash.
    pub hash: Option<u32>,
    /// Revision that was hashed; `None` before etcd 3.6, which does not say.
    pub hash_revision: Option<i64>,
    /// Compaction revision that the hash was made with; -1 for none.
    pub compact_revision: Option<i64>,
    /// Whether most of the members that are comparable have another hash.
    pub odd: bool,
    /// Why there is no hash.
    pub error: Option<Trouble>,
}

/// A comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Version of this shape.
    pub version: u8,
    /// Id of the cluster.
    #[serde(serialize_with = "optional_hex")]
    pub cluster_id: Option<u64>,
    /// Revision at which was asked.
    pub revision: i64,
    /// What it came to.
    pub verdict: Outcome,
    /// Every member that was to be asked.
    pub members: Vec<MemberHash>,
    /// What is wrong or good to know, most urgent first.
    pub findings: Vec<Remark>,
    #[serde(skip)]
    is_corrupt: bool,
}

impl Report {
    /// Returns what the program exits with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        if self.is_corrupt || self.verdict == Outcome::Differs {
            return ExitCode::Damage;
        }
        let missing: Vec<&Trouble> = self.members.iter().filter_map(|m| m.error.as_ref()).collect();
        let is_tls = missing.iter().all(|trouble| trouble.code == ExitCode::Tls.number());
        match self.verdict {
            Outcome::Unknown if is_tls && !missing.is_empty() => ExitCode::Tls,
            Outcome::Unknown => ExitCode::Unreachable,
            Outcome::NotComparable => ExitCode::Partial,
            _ if !missing.is_empty() => ExitCode::Partial,
            _ => ExitCode::Ok,
        }
    }
}

/// Compares the members' data.
///
/// # Errors
///
/// Wrong settings, nobody who answers, a user who may not, endpoints of several clusters, a
/// revision that no member can hash any more or yet, and an interruption.
pub fn consistency(
    settings: Settings,
    whole_cluster: bool,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report, Error> {
    let cluster = attend(progress, move || {
        let cluster = open(&settings, whole_cluster)?;
        permitted(&cluster)?;
        Ok(Arc::new(cluster))
    })?;
    let began = Instant::now();
    let mut said = String::new();
    let mut kept: Answers<HashKv> = Vec::new();
    loop {
        let asked = Arc::clone(&cluster);
        let view = attend(progress, move || Ok(View::of(&gather(&asked, whole_cluster))))?;
        let Some(common) = lowest(&view) else { return Err(unanswered(&view)) };
        if view.cluster_id.is_none() {
            let error = Error::new(ExitCode::Failed, "the endpoints belong to different clusters");
            return Err(error.hint("give endpoints of one cluster"));
        }
        let revision = options.revision.unwrap_or(common);
        let mut answers: Answers<HashKv> = Vec::new();
        for endpoint in in_order(&view) {
            let known = kept.iter().position(|(other, _)| *other == endpoint);
            if let Some(known) = known {
                answers.push(kept.swap_remove(known));
                continue;
            }
            // The limit is for one.
            let asked = Arc::clone(&cluster);
            let limit = limit(&view, cluster.settings().command_timeout);
            let ask = move || {
                let answer = asked.hash_kv(&endpoint, revision, limit);
                Ok((endpoint, answer))
            };
            answers.push(attend(progress, ask)?);
        }
        let again = again(&answers, options.revision.is_some());
        match again {
            Some(why) if began.elapsed() < options.patience => {
                if why != said {
                    progress.note(&format!("trying again: {why}"));
                    said = why;
                }
                if !wait::sleep_until(Instant::now() + PAUSE, progress) {
                    return Err(Error::interrupted());
                }
                // Only those that were behind are asked once more, if at the same revision.
                kept = answers;
                let is_behind =
                    kept.iter().any(|(_, a)| a.as_ref().is_err_and(|e| is_future(&e.cause)));
                kept.retain(|(_, a)| a.is_ok() && is_behind && options.revision.is_some());
            }
            _ => return conclude(&view, revision, &answers),
        }
    }
}

/// Returns how long a member may hash: one that is given up hashes on, and the next one would stand
/// still beside it.
fn limit(view: &View, command_timeout: Duration) -> Duration {
    let largest = view.members.iter().filter_map(|member| member.db_size).max().unwrap_or(0);
    let largest = u64::try_from(largest).unwrap_or_default();
    command_timeout.max(Duration::from_secs(10 + largest / BYTES_A_SECOND))
}

/// Where to ask the members that answer, each once: the leader last, as writes wait for it most.
fn in_order(view: &View) -> Vec<String> {
    let mut members: Vec<&MemberView> = view.members.iter().filter(|m| m.answered()).collect();
    members.sort_by_key(|member| member.is_leader == Some(true));
    members.into_iter().filter_map(|member| member.endpoint.clone()).collect()
}

/// Says beforehand that the user may not, where that can be known.
fn permitted(cluster: &Cluster) -> Result<(), Error> {
    match cluster.access() {
        Ok(access) => admin::check(&access, "ask for hashes"),
        Err(error) => {
            let error = Error::from(error);
            // A member without a leader still answers HashKV.
            if error.code == ExitCode::Tls { Err(error) } else { Ok(()) }
        }
    }
}

/// The highest revision that every member that answers with a hash has.
fn lowest(view: &View) -> Option<i64> {
    let able = |member: &&MemberView| member.answered() && member.is_learner != Some(true);
    view.members.iter().filter(able).filter_map(|member| member.revision).min()
}

fn unanswered(view: &View) -> Error {
    if view.members.iter().any(MemberView::answered) {
        let error = Error::new(ExitCode::Failed, "only learners answered, which give no hashes");
        return error.hint("give the endpoint of a member that votes, or --cluster");
    }
    let nobody = || Error::new(view.status_code(), "no member answers");
    view.unanswered().unwrap_or_else(nobody)
}

fn says(cause: &Cause, words: &str) -> bool {
    matches!(cause, Cause::Answer { what, .. } if what.contains(words))
}

fn is_compacted(cause: &Cause) -> bool {
    says(cause, "required revision has been compacted")
}

fn is_future(cause: &Cause) -> bool {
    says(cause, "required revision is a future revision")
}

/// Tells why it is worth trying again. A revision that was told stays compacted.
fn again(answers: &Answers<HashKv>, is_told: bool) -> Option<String> {
    for (endpoint, answer) in answers {
        match answer {
            Err(error) if is_compacted(&error.cause) && !is_told => {
                return Some(format!("{endpoint} has compacted meanwhile"));
            }
            Err(error) if is_future(&error.cause) => {
                return Some(format!("{endpoint} has not reached that revision yet"));
            }
            _ => {}
        }
    }
    let hashes: Vec<HashKv> =
        answers.iter().filter_map(|(_, a)| a.as_ref().ok()).copied().collect();
    let is_split = compare(&hashes).outcome == Outcome::NotComparable;
    is_split.then(|| "members have compacted at different revisions".to_owned())
}

/// Which hashes differ.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Compared {
    outcome: Outcome,
    /// Places of those that differ from most of their group.
    odd: Vec<usize>,
    /// Whether in every group that differs more than half agree.
    is_clear: bool,
}

/// Compares hashes; only those that were made with one compaction and revision are comparable.
fn compare(hashes: &[HashKv]) -> Compared {
    let mut groups: BTreeMap<i64, BTreeMap<u32, Vec<usize>>> = BTreeMap::new();
    for (place, hash) in hashes.iter().enumerate() {
        let group = groups.entry(hash.compact_revision).or_default();
        group.entry(hash.hash).or_default().push(place);
    }
    let mut compared = Compared { outcome: Outcome::Equal, odd: Vec::new(), is_clear: true };
    let mut differs = false;
    for group in groups.values().filter(|group| group.len() > 1) {
        differs = true;
        let all: usize = group.values().map(Vec::len).sum();
        match group.values().find(|places| places.len() * 2 > all) {
            Some(most) => {
                let odd = group.values().filter(|places| *places != most).flatten();
                compared.odd.extend(odd);
            }
            None => compared.is_clear = false,
        }
    }
    compared.odd.sort_unstable();
    compared.outcome = match hashes.len() {
        0 => Outcome::Unknown,
        1 => Outcome::Alone,
        _ if differs => Outcome::Differs,
        _ if groups.len() > 1 => Outcome::NotComparable,
        _ => Outcome::Equal,
    };
    compared
}

fn conclude(view: &View, revision: i64, answers: &Answers<HashKv>) -> Result<Report, Error> {
    let of = |member: &MemberView| {
        let endpoint = member.endpoint.as_ref()?;
        answers.iter().find(|(at, _)| at == endpoint).map(|(_, answer)| answer)
    };
    let asked: Vec<&MemberView> = view.members.iter().filter(|m| m.endpoint.is_some()).collect();
    let found = answers.iter().any(|(_, answer)| answer.is_ok());
    let gone = answers.iter().any(|(_, answer)| matches!(answer, Err(e) if is_compacted(&e.cause)));
    let ahead = answers.iter().any(|(_, answer)| matches!(answer, Err(e) if is_future(&e.cause)));
    if !found && (gone || ahead) {
        let what = if gone {
            format!("revision {revision} has been compacted")
        } else {
            format!("no member has reached revision {revision}")
        };
        return Err(Error::new(ExitCode::NotFound, what).hint("leave --rev out"));
    }
    let (places, hashes): (Vec<usize>, Vec<HashKv>) = asked
        .iter()
        .enumerate()
        .filter_map(|(place, member)| Some((place, *of(member)?.as_ref().ok()?)))
        .unzip();
    let compared = compare(&hashes);
    let mut members: Vec<MemberHash> = asked
        .iter()
        .map(|member| {
            let mut row = MemberHash {
                endpoint: member.endpoint.clone(),
                id: member.id,
                name: member.name.clone(),
                revision: member.revision,
                ..MemberHash::default()
            };
            match of(member) {
                Some(Ok(hash)) => {
                    row.hash = Some(hash.hash);
                    row.hash_revision = (hash.hash_revision != 0).then_some(hash.hash_revision);
                    row.compact_revision = Some(hash.compact_revision);
                }
                Some(Err(error)) => row.error = Some(Trouble::of(error)),
                None => row.error.clone_from(&member.error),
            }
            row
        })
        .collect();
    for odd in &compared.odd {
        if let Some(row) = places.get(*odd).and_then(|place| members.get_mut(*place)) {
            row.odd = true;
        }
    }
    let is_corrupt = view.alarms.iter().any(|alarm| alarm.alarm == "CORRUPT");
    let findings = remarks(view, revision, &compared, &asked, &members);
    Ok(Report {
        version: 1,
        cluster_id: view.cluster_id,
        revision,
        verdict: compared.outcome,
        members,
        findings,
        is_corrupt,
    })
}

fn remarks(
    view: &View,
    revision: i64,
    compared: &Compared,
    asked: &[&MemberView],
    members: &[MemberHash],
) -> Vec<Remark> {
    let mut remarks: Vec<Remark> = Vec::new();
    let mut add = |severity, id, message: String, next: Vec<String>| {
        remarks.push(Remark { severity, id, message, next });
    };
    let names = |of: &dyn Fn(&MemberHash) -> bool| -> String {
        let rows = asked.iter().zip(members).filter(|(_, row)| of(row));
        rows.map(|(member, _)| member.label()).collect::<Vec<_>>().join(", ")
    };
    match compared.outcome {
        Outcome::Differs if compared.is_clear => {
            let message = format!(
                "{} holds other data at revision {revision} than most members",
                names(&|row| row.odd)
            );
            let next = vec![
                "save a snapshot from a member that agrees with the others: etcdkit snapshot save"
                    .to_owned(),
                "then replace the odd one: etcdctl member remove, an empty data directory, etcdctl \
                 member add"
                    .to_owned(),
            ];
            add(Urgency::Critical, "odd", message, next);
        }
        Outcome::Differs => {
            let message = format!(
                "{} hold different data at revision {revision}, and it cannot be told which is \
                 right: no hash is that of more than half of them",
                names(&|row| row.hash.is_some())
            );
            let next = vec![
                "save a snapshot of each before anything is changed".to_owned(),
                "compare what they hold: etcdkit snapshot inspect".to_owned(),
            ];
            add(Urgency::Critical, "differs", message, next);
        }
        Outcome::NotComparable => {
            let message = "members have compacted at different revisions: hashes made with \
                different compactions cannot be compared"
                .to_owned();
            let next = vec!["run this again when no compaction is under way".to_owned()];
            add(Urgency::Warning, "not-comparable", message, next);
        }
        Outcome::Alone => {
            let voters = view.quorum.voters.unwrap_or(1);
            let endpoints: Vec<&str> =
                asked.iter().filter_map(|member| member.endpoint.as_deref()).collect();
            let status = || view.command("etcdkit", Some(&endpoints.join(",")), &["status"]);
            let next = match asked.len() {
                asked if asked < voters => vec!["add --cluster".to_owned()],
                1 => Vec::new(),
                _ => vec![status()],
            };
            let message = "one member answered: there is nothing to compare it with".to_owned();
            add(Urgency::Info, "alone", message, next);
        }
        Outcome::Equal | Outcome::Unknown => {}
    }
    for (member, row) in asked.iter().zip(members) {
        let Some(error) = &row.error else { continue };
        let label = member.label();
        let message = if member.is_learner == Some(true) && member.answered() {
            format!("{label} is a learner, which gives no hashes")
        } else {
            format!("{label} gave no hash: {}", error.message)
        };
        let next = error.hint.lines().map(str::to_owned).collect();
        add(Urgency::Warning, "not-compared", message, next);
    }
    let unasked: Vec<String> =
        view.members.iter().filter(|m| m.endpoint.is_none()).map(MemberView::label).collect();
    if !unasked.is_empty() {
        let message = format!("not asked: {}; --cluster asks every member", unasked.join(", "));
        add(Urgency::Info, "not-asked", message, Vec::new());
    }
    remarks.extend(view.findings.iter().filter(|remark| remark.id == "corrupt").cloned());
    remarks.sort_by(|a, b| (a.severity, a.id, &a.message).cmp(&(b.severity, b.id, &b.message)));
    remarks
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live;

    fn hash(hash: u32, compact_revision: i64) -> HashKv {
        HashKv { hash, compact_revision, ..HashKv::default() }
    }

    #[test]
    fn hashes_are_compared_within_one_compaction() {
        for (hashes, outcome, odd, is_clear) in [
            (&[][..], Outcome::Unknown, &[][..], true),
            (&[(1, 5)], Outcome::Alone, &[], true),
            (&[(1, 5), (1, 5)], Outcome::Equal, &[], true),
            (&[(1, 5), (2, 5)], Outcome::Differs, &[], false),
            (&[(1, 5), (2, 5), (1, 5)], Outcome::Differs, &[1], true),
            (&[(1, 5), (2, 5), (3, 5)], Outcome::Differs, &[], false),
            (&[(1, 5), (2, 5), (3, 5), (1, 5), (1, 5)], Outcome::Differs, &[1, 2], true),
            (&[(1, 5), (2, 6)], Outcome::NotComparable, &[], true),
            (&[(1, 5), (2, 6), (2, 6)], Outcome::NotComparable, &[], true),
            // Those of one compaction are compared all the same.
            (&[(1, 5), (2, 6), (3, 6)], Outcome::Differs, &[], false),
            (&[(1, 5), (2, 6), (3, 6), (2, 6)], Outcome::Differs, &[2], true),
        ] {
            let all: Vec<HashKv> = hashes.iter().map(|(h, c)| hash(*h, *c)).collect();
            let wanted = Compared { outcome, odd: odd.to_vec(), is_clear };
            assert_eq!(compare(&all), wanted, "{hashes:?}");
        }
    }

    #[test]
    fn the_order_of_members_does_not_matter() {
        let all = [hash(1, 5), hash(2, 5), hash(1, 5), hash(7, 6)];
        let first = compare(&all);
        for turn in 0..all.len() {
            let mut turned = all;
            turned.rotate_left(turn);
            let compared = compare(&turned);
            assert_eq!((compared.outcome, compared.is_clear), (first.outcome, first.is_clear));
            let odd: Vec<u32> = compared.odd.iter().map(|place| turned[*place].hash).collect();
            assert_eq!(odd, [2]);
        }
    }

    #[test]
    fn only_what_passes_is_tried_again() {
        let refused = |what: &str| {
            let cause = Cause::Answer { code: 11, what: what.to_owned() };
            vec![("e".to_owned(), Err(live::Error::of("e", cause)))]
        };
        let compacted = refused("etcdserver: mvcc: required revision has been compacted");
        assert!(again(&compacted, false).is_some());
        assert!(again(&compacted, true).is_none());
        let future = refused("etcdserver: mvcc: required revision is a future revision");
        assert!(again(&future, false).is_some() && again(&future, true).is_some());
        assert!(again(&refused("etcdserver: corrupt cluster"), false).is_none());
        let split = vec![("a".into(), Ok(hash(1, 5))), ("b".into(), Ok(hash(2, 6)))];
        assert!(again(&split, true).is_some());
        let wrong = vec![("a".into(), Ok(hash(1, 5))), ("b".into(), Ok(hash(2, 5)))];
        assert!(again(&wrong, false).is_none());
    }
}
