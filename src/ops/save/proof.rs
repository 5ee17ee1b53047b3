//! What the cluster's members say that a snapshot's keys hash to, held against what they do.
//!
//! Answers are compared as triples: hash, revision, compaction revision. Members may compact while
//! they are asked, so an answer with another compaction revision says nothing. Best effort: a
//! member that does not answer in time is named, and nothing more.
//!
//! A member that hashes holds its read lock until it is through, and every write that it applies
//! waits for that lock (etcd server/storage/mvcc/kvstore.go, `hashByRev`, 3.5.35 to 3.7.3). So they
//! are asked one at a time: while one stands still, the others are a majority.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::bolt::overlay::Edits;
use crate::bolt::walk::walk;
use crate::bolt::{self, File, Visit};
use crate::etcd::hash::{self, Compaction, HashKvError};
use crate::etcd::revision::Revision;
use crate::etcd::schema;
use crate::etcd::survey::Report as Rows;
use crate::format::sidecar;
use crate::live::{self, Answers, Cause, Cluster, HashKv};
use crate::ops::rewrite::Shown;
use crate::ops::{Error, ExitCode, Progress};

/// Time for a member to catch up with a revision that it does not have yet.
const CATCH_UP: Duration = Duration::from_millis(500);
/// Bytes of a database that a member hashes in a second at least.
const BYTES_A_SECOND: u64 = 64 << 20;
/// Time between two looks whether to stop.
const TICK: Duration = Duration::from_millis(50);

/// What was compared, and how it came out.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Proof {
    /// `equal`: every comparable answer has the snapshot's hash; `not_comparable`: members
    /// compacted meanwhile; `no_answer`; `off`.
    pub verdict: &'static str,
    /// Of the snapshot; `None` where there was nothing to compare it with.
    pub own: Option<Own>,
    /// What members answered.
    pub members: Vec<sidecar::HashKv>,
    /// Members that gave no answer, and why.
    pub silent: Vec<Silent>,
}

/// HashKV of the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Own {
    /// The hash.
    pub hash: u32,
    /// Revision that was hashed.
    pub hash_revision: i64,
    /// Compaction revision; -1 before the first compaction.
    pub compact_revision: i64,
}

/// A member that gave no answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Silent {
    /// Its endpoint.
    pub endpoint: String,
    /// Why.
    pub why: String,
}

impl Proof {
    /// Nothing is compared.
    pub(super) fn off() -> Self {
        Self { verdict: "off", ..Self::default() }
    }
}

/// Finds the revision that a server starts at on a database, without a walk: the newest row's, or
/// that of a compaction. What it says is to be checked by the walk.
pub(super) fn revision_of(file: &File) -> Result<i64, bolt::Error> {
    let Some(bucket) = file.bucket(&[schema::KEY])? else { return Ok(1) };
    let is_there = |main: i64| -> Result<bool, bolt::Error> {
        let mut cursor = bucket.cursor();
        cursor.seek(&Revision::new(main, 0).encode())?;
        Ok(cursor.next_row()?.is_some())
    };
    // The largest revision at or above which there is a row.
    let (mut low, mut high) = (0_i64, i64::MAX);
    while low < high {
        let middle = low + (high - low) / 2 + 1;
        match is_there(middle)? {
            true => low = middle,
            false => high = middle - 1,
        }
    }
    let compaction = Compaction::read(file, &Edits::default())?;
    Ok(low.max(compaction.revision()).max(1))
}

/// Returns how long a member may take over a database of so many bytes.
pub(super) fn limit(bytes: u64, command_timeout: Duration) -> Duration {
    command_timeout.max(Duration::from_secs(10 + bytes / BYTES_A_SECOND))
}

/// Members that are being asked for their hash, on a thread that is left behind when nobody waits
/// for it any more: it asks no further member then.
pub(super) struct Asking {
    answers: Receiver<Answers<HashKv>>,
    is_over: Arc<AtomicBool>,
}

impl Asking {
    /// Begins to ask members for their hash at a revision, one at a time in their order; `limit` is
    /// the longest time for one, and twice as much for all. `None` where there is no thread.
    pub(super) fn begin(
        cluster: &Arc<Cluster>,
        endpoints: &[String],
        revision: i64,
        limit: Duration,
    ) -> Option<Self> {
        let (cluster, endpoints) = (Arc::clone(cluster), endpoints.to_vec());
        let (done, answers) = sync_channel(1);
        let is_over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&is_over);
        let work = move || {
            let _ = done.send(ask(&cluster, &endpoints, revision, limit, &told));
        };
        std::thread::Builder::new().spawn(work).ok()?;
        Some(Self { answers, is_over })
    }

    /// Waits for the answers.
    ///
    /// # Errors
    /// It was told to stop.
    pub(super) fn wait(self, progress: &dyn Progress) -> Result<Answers<HashKv>, Error> {
        loop {
            match self.answers.recv_timeout(TICK) {
                Ok(answers) => return Ok(answers),
                Err(_) if progress.stopped() => return Err(Error::interrupted()),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::new(ExitCode::Internal, "the thread that asks has ended"));
                }
            }
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Asks one member after the other, and those that were behind once more.
fn ask(
    cluster: &Cluster,
    endpoints: &[String],
    revision: i64,
    limit: Duration,
    is_over: &AtomicBool,
) -> Answers<HashKv> {
    let end = Instant::now() + limit.saturating_mul(2);
    let one = |endpoint: &str| -> Option<Result<HashKv, live::Error>> {
        if is_over.load(Ordering::Relaxed) {
            return None;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let doing = "waiting for the hashes of the members before it";
            let cause = Cause::Timeout { after: limit.saturating_mul(2), doing };
            return Some(Err(live::Error::of(endpoint, cause)));
        }
        Some(cluster.hash_kv(endpoint, revision, limit.min(left)))
    };
    let answered = |endpoint: &String| Some((endpoint.clone(), one(endpoint)?));
    let mut answers: Answers<HashKv> = endpoints.iter().filter_map(answered).collect();
    if answers.iter().any(|(_, answer)| is_behind(answer)) && !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(CATCH_UP);
        for (endpoint, answer) in answers.iter_mut().filter(|(_, answer)| is_behind(answer)) {
            if let Some(again) = one(endpoint) {
                *answer = again;
            }
        }
    }
    answers
}

fn is_behind(answer: &Result<HashKv, live::Error>) -> bool {
    let cause = answer.as_ref().err().map(|error| &error.cause);
    matches!(cause, Some(Cause::Answer { what, .. }) if what.contains("future revision"))
}

/// Holds the members' answers against each other and against the snapshot.
///
/// `source` is the id of the member that it is from, as in [`sidecar::HashKv::member_id`].
///
/// # Errors
/// See [`Unproved`].
pub(super) fn prove(
    file: &File,
    rows: &Rows,
    answers: Answers<HashKv>,
    source: &str,
    progress: &dyn Progress,
) -> Result<Proof, Unproved> {
    let mut proof = Proof::default();
    for (endpoint, answer) in answers {
        match answer {
            Ok(answer) => {
                let told = sidecar::HashKv {
                    endpoint,
                    member_id: format!("{:x}", answer.header.member_id),
                    hash: answer.hash,
                    // Before etcd 3.6 it does not say, and it is the one that was asked for.
                    hash_revision: match answer.hash_revision {
                        0 => rows.current_revision,
                        told => told,
                    },
                    compact_revision: answer.compact_revision,
                };
                add(&mut proof.members, told);
            }
            Err(error) => proof.silent.push(Silent { endpoint, why: error.cause.to_string() }),
        }
    }
    if let Some(odd) = odd_ones(&proof.members) {
        return Err(Unproved::Other(differ(&proof.members, &odd)));
    }
    let compact_revision = rows.compact_revision();
    let comparable = |answer: &&sidecar::HashKv| {
        answer.compact_revision == compact_revision && answer.hash_revision == rows.current_revision
    };
    proof.verdict = match (proof.members.is_empty(), proof.members.iter().find(comparable)) {
        (true, _) => "no_answer",
        (false, None) => "not_comparable",
        (false, Some(theirs)) => {
            let own = own(file, rows, progress).map_err(Unproved::Other)?;
            if own.hash != theirs.hash {
                let mut others = proof.members.iter().filter(comparable);
                let is_source = others.clone().any(|member| member.member_id == source);
                let error = not_ours(&own, theirs);
                // Against one other member it is not known which of the two is wrong.
                return Err(match is_source || others.nth(1).is_some() {
                    true => Unproved::Source(error),
                    false => Unproved::Other(error),
                });
            }
            proof.own = Some(own);
            "equal"
        }
    };
    Ok(proof)
}

/// Adds an answer, once for each member, however many addresses it has.
fn add(members: &mut Vec<sidecar::HashKv>, told: sidecar::HashKv) {
    let same = |other: &sidecar::HashKv| {
        let key = |one: &sidecar::HashKv| (one.hash, one.hash_revision, one.compact_revision);
        other.member_id == told.member_id && key(other) == key(&told)
    };
    if !members.iter().any(same) {
        members.push(told);
    }
}

/// Why a snapshot is not proved.
pub(super) enum Unproved {
    /// The member that it is from sent wrong keys, as the others agree: one of them may do.
    Source(Error),
    /// The members differ, or the snapshot cannot be read again.
    Other(Error),
}

/// Computes the snapshot's own hash; free where there was no compaction, as the walk has it.
fn own(file: &File, rows: &Rows, progress: &dyn Progress) -> Result<Own, Error> {
    let (hash_revision, compact_revision) = (rows.current_revision, rows.compact_revision());
    if compact_revision < 0 {
        return Ok(Own { hash: rows.key_bucket_crc, hash_revision, compact_revision });
    }
    progress.step("hash", file.meta().size_bytes());
    let unreadable = |what: String| {
        Error::new(ExitCode::Damage, format!("the snapshot cannot be read again: {what}"))
    };
    let compaction = Compaction::read(file, &Edits::default());
    let compaction = compaction.map_err(|error| unreadable(error.to_string()))?;
    let page_bytes = u64::from(file.page_size());
    let mut show = |visitor: &mut dyn Visit| -> Result<(), Error> {
        let walked = walk(file, &mut Shown { visitor, progress, page_bytes });
        if progress.stopped() {
            return Err(Error::interrupted());
        }
        match walked.tree_is_whole() {
            true => Ok(()),
            false => Err(unreadable("its pages are not whole".into())),
        }
    };
    let hashed = hash::hash_kv(compaction, hash_revision, &mut show);
    let hashed = hashed.map_err(|error| match error {
        HashKvError::Walk(error) => error,
        HashKvError::Row(finding) => unreadable(finding.detail.clone()),
        HashKvError::Compacted(at) | HashKvError::Future(at) => {
            unreadable(format!("its revision is {hash_revision}, and {at} stands in it"))
        }
    })?;
    Ok(Own { hash: hashed.hash, hash_revision, compact_revision })
}

/// Finds answers about the same rows that differ, and of those the fewest: all, where no hash is
/// that of most.
fn odd_ones(members: &[sidecar::HashKv]) -> Option<Vec<usize>> {
    let same_rows = |a: &sidecar::HashKv, b: &sidecar::HashKv| {
        (a.hash_revision, a.compact_revision) == (b.hash_revision, b.compact_revision)
    };
    for first in members {
        let group: Vec<usize> =
            (0..members.len()).filter(|at| same_rows(first, &members[*at])).collect();
        let count = |hash: u32| group.iter().filter(|at| members[**at].hash == hash).count();
        let most = group.iter().map(|at| count(members[*at].hash)).max().unwrap_or(0);
        if most == group.len() {
            continue;
        }
        let has_majority = most * 2 > group.len();
        let is_odd = |at: &&usize| !has_majority || count(members[**at].hash) < most;
        return Some(group.iter().filter(is_odd).copied().collect());
    }
    None
}

fn differ(members: &[sidecar::HashKv], odd: &[usize]) -> Error {
    let names: Vec<String> = odd
        .iter()
        .filter_map(|at| members.get(*at))
        .map(|member| format!("{} (member {})", member.endpoint, member.member_id))
        .collect();
    let message = format!(
        "the members hold different keys at the same revision: {} differ from the others; nothing \
         was saved",
        names.join(", ")
    );
    let mut error = Error::new(ExitCode::Damage, message);
    for member in members {
        error.hints.push(format!(
            "{}: hash {} at revision {}, compacted at {}",
            member.endpoint, member.hash, member.hash_revision, member.compact_revision
        ));
    }
    error
        .hint("save from the members that agree (--endpoints), then replace the one that differs")
        .hint("or --no-hashkv, to save without comparing")
}

fn not_ours(own: &Own, theirs: &sidecar::HashKv) -> Error {
    let message = format!(
        "the snapshot does not hold the cluster's keys: its HashKV at revision {} is {}, and {} \
         (member {}) says {}; nothing was saved",
        own.hash_revision, own.hash, theirs.endpoint, theirs.member_id, theirs.hash
    );
    Error::new(ExitCode::Damage, message)
        .hint("save from another member (--endpoints); the one that was used may be damaged")
        .hint("or --no-hashkv, to save without comparing")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(all: &[(u32, i64)]) -> Vec<sidecar::HashKv> {
        let answer = |(hash, compact_revision): &(u32, i64)| sidecar::HashKv {
            hash: *hash,
            hash_revision: 9,
            compact_revision: *compact_revision,
            ..sidecar::HashKv::default()
        };
        all.iter().map(answer).collect()
    }

    #[test]
    fn a_member_votes_once() {
        let mut members = Vec::new();
        for (id, hash) in [("a", 1), ("a", 1), ("b", 2), ("a", 1), ("c", 2)] {
            let told =
                sidecar::HashKv { member_id: id.into(), hash, ..answers(&[(0, 5)])[0].clone() };
            add(&mut members, told);
        }
        assert_eq!(members.len(), 3);
        assert_eq!(odd_ones(&members), Some(vec![0]));
    }

    #[test]
    fn the_odd_one_is_named() {
        assert_eq!(odd_ones(&answers(&[])), None);
        assert_eq!(odd_ones(&answers(&[(1, 5), (1, 5), (2, 6)])), None);
        assert_eq!(odd_ones(&answers(&[(1, 5), (2, 5), (1, 5)])), Some(vec![1]));
        assert_eq!(odd_ones(&answers(&[(1, 5), (2, 5)])), Some(vec![0, 1]));
        assert_eq!(odd_ones(&answers(&[(7, 4), (1, 5), (2, 5), (1, 5)])), Some(vec![2]));
    }
}
