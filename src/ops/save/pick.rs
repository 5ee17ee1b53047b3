//! Which member a snapshot is taken from.
//!
//! 1. A linearizable read tells which revision a snapshot must have: every write that was
//!    acknowledged before the command began is in it.
//! 2. Followers come first, so that the leader is left in peace; then the leader; a learner only
//!    where there is nothing else. One endpoint given is the one that is used.
//! 3. A member with a CORRUPT alarm is not used, unless that is accepted.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::live::{self, Answers, Cause, Cluster, Status};
use crate::ops::cluster::attend;
use crate::ops::{Error, ExitCode, Progress, admin, reach};

/// Longest wait until a member has caught up.
const CATCH_UP: Duration = Duration::from_secs(10);
/// Time between two looks at it.
const LOOK: Duration = Duration::from_millis(200);

/// What a snapshot may be taken from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// The revision that it must have, where one is told.
    pub(super) min_revision: Option<i64>,
    /// No majority has to answer.
    pub(super) without_quorum: bool,
    /// A member with a CORRUPT alarm may be used.
    pub(super) accept_corrupt: bool,
}

/// What a member is to its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Follower,
    Leader,
    Learner,
}

impl Role {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Follower => "follower",
            Self::Leader => "leader",
            Self::Learner => "learner",
        }
    }
}

/// A member that may be used.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) endpoint: String,
    pub(super) role: Role,
    pub(super) status: Status,
    /// The revision that a snapshot of it must have: without a majority, what it has told itself.
    pub(super) needed: i64,
    /// Why it stands where it stands.
    pub(super) why: String,
}

/// The members that may be used, best first, and what is known of the cluster.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    pub(super) candidates: Vec<Candidate>,
    /// The revision that a snapshot must have.
    pub(super) needed: i64,
    /// The highest revision that any member has told.
    pub(super) highest: i64,
    /// Whether a majority answered.
    pub(super) quorum: bool,
    /// Members that gave no answer or are not used, and why.
    pub(super) passed_over: Vec<(String, String)>,
    pub(super) warnings: Vec<String>,
}

impl Choice {
    /// What must be read of a snapshot that no majority vouches for.
    pub(super) fn no_majority(&self, candidate: &Candidate) -> Option<String> {
        let told = candidate.status.header.revision;
        let of = match self.highest - told {
            ..=0 => "it is of the member that is furthest among those that answered".to_owned(),
            behind => format!(
                "it is of {}, which is {behind} revisions behind another member that answered",
                candidate.endpoint
            ),
        };
        (!self.quorum).then(|| {
            format!(
                "NO MAJORITY OF THE CLUSTER ANSWERED: writes that were acknowledged may be missing \
             from the snapshot; {of}"
            )
        })
    }
}

/// Stops at a time too, not only when told to.
pub(super) struct Until<'a> {
    pub(super) end: Instant,
    pub(super) progress: &'a dyn Progress,
}

impl Progress for Until<'_> {
    fn step(&self, name: &str, total: u64) {
        self.progress.step(name, total);
    }

    fn advance(&self, done: u64) {
        self.progress.advance(done);
    }

    fn note(&self, text: &str) {
        self.progress.note(text);
    }

    fn stopped(&self) -> bool {
        self.progress.stopped() || Instant::now() >= self.end
    }
}

/// Nobody was chosen in time.
pub(super) fn late(timeout: Duration) -> Error {
    let message = format!("no member could be chosen within {} ms", timeout.as_millis());
    Error::new(ExitCode::Unreachable, message)
        .hint("etcdkit status shows which members answer; --timeout sets the limit")
}

/// Asks the members, and ranks those that may be used.
///
/// # Errors
/// The user may not do it ([`ExitCode::Tls`]), nobody or no majority answers
/// ([`ExitCode::Unreachable`]), only members with a CORRUPT alarm are left ([`ExitCode::Damage`]),
/// or the endpoints are of several clusters ([`ExitCode::Usage`]).
pub(super) fn pick(cluster: &Cluster, wanted: Wanted) -> Result<Choice, Error> {
    check_access(cluster)?;
    let reads = read(cluster);
    let revision = reads.iter().filter_map(|(_, read)| read.as_ref().ok()).map(revision_of).max();
    let refused = reads.iter().find_map(|(_, read)| final_word(read.as_ref().err()?));
    if let (None, Some(error)) = (revision, refused) {
        return Err(error.into());
    }
    let statuses = cluster.statuses();
    let mut choice = Choice { quorum: revision.is_some(), ..Choice::default() };
    let mut members = Vec::new();
    for ((endpoint, status), (_, read)) in statuses.into_iter().zip(&reads) {
        match status {
            Ok(status) => members.push((endpoint, status, read.is_ok())),
            Err(error) => choice.passed_over.push((endpoint, error.cause.to_string())),
        }
    }
    let first_error = reads.iter().find_map(|(_, read)| read.as_ref().err());
    if members.is_empty() {
        return Err(match first_error {
            Some(error) => nobody(error, &choice),
            None => Error::new(ExitCode::Unreachable, "no member answers"),
        });
    }
    one_cluster(&members)?;
    let members = once_each(members);
    let highest = members.iter().map(|(_, status, _)| status.header.revision).max();
    choice.highest = highest.max(revision).unwrap_or_default();
    match (revision, first_error) {
        (Some(revision), _) => choice.needed = wanted.min_revision.unwrap_or(revision),
        (None, error) if !wanted.without_quorum => return Err(no_quorum(error, &members)),
        (None, _) => choice.needed = wanted.min_revision.unwrap_or_default(),
    }
    rank(&mut choice, members, wanted.accept_corrupt)?;
    Ok(choice)
}

/// Reads through every member; again for a while where a new leader is being chosen, which is over
/// in a moment.
fn read(cluster: &Cluster) -> Answers<live::Read> {
    let began = Instant::now();
    loop {
        let reads = cluster.reads(true);
        let is_changing = reads.iter().any(|(_, read)| {
            let cause = read.as_ref().err().map(|error| &error.cause);
            matches!(cause, Some(Cause::Answer { what, .. }) if what.contains("leader changed"))
        });
        let is_over = began.elapsed() >= cluster.settings().command_timeout;
        if !is_changing || is_over || reads.iter().any(|(_, read)| read.is_ok()) {
            return reads;
        }
        std::thread::sleep(LOOK);
    }
}

fn revision_of(read: &live::Read) -> i64 {
    read.header.revision
}

/// An error that no other member can mend.
pub(super) fn final_word(error: &live::Error) -> Option<live::Error> {
    let is_final =
        matches!(error.cause, Cause::NotPermitted { .. } | Cause::NotAuthenticated { .. });
    is_final.then(|| error.clone())
}

/// Makes sure that the one who asks may save snapshots.
fn check_access(cluster: &Cluster) -> Result<(), Error> {
    let access = match cluster.access() {
        Ok(access) => access,
        Err(error) => {
            // What else is wrong is told by the questions that follow.
            return final_word(&error).map_or(Ok(()), |error| Err(error.into()));
        }
    };
    admin::check(&access, "save a snapshot")
}

/// All members failed: tells why for each.
fn nobody(first: &live::Error, choice: &Choice) -> Error {
    let mut error: Error = first.clone().into();
    if choice.passed_over.len() > 1 {
        error.message = "no member answers".into();
        for (endpoint, why) in choice.passed_over.iter().rev() {
            error.hints.insert(0, format!("{endpoint}: {why}"));
        }
    }
    error
}

fn no_quorum(error: Option<&live::Error>, members: &[(String, Status, bool)]) -> Error {
    let why = error.map(live::Error::to_string).unwrap_or_default();
    let code = error.map_or(ExitCode::Unreachable, |error| reach::code(&error.cause));
    let revision = members.iter().map(|(_, status, _)| status.header.revision).max();
    let message = format!(
        "members answer, but a linearizable read does not go through: {why}; nothing was saved"
    );
    let code = if code == ExitCode::Failed { ExitCode::Unreachable } else { code };
    let learners = members.iter().all(|(_, status, _)| status.is_learner);
    let error = Error::new(code, message);
    let error = match learners {
        true => error.hint("only learners answer: name a voting member with --endpoints"),
        false => error.hint("etcdkit status shows which members are down; start them first"),
    };
    error.hint(format!(
        "or --without-quorum: saves what the furthest member has (revision {}), though newer \
         writes may have been acknowledged",
        revision.unwrap_or_default()
    ))
}

fn one_cluster(members: &[(String, Status, bool)]) -> Result<(), Error> {
    let id = |status: &Status| status.header.cluster_id;
    let Some((first, status, _)) = members.first() else { return Ok(()) };
    let Some((other, their, _)) = members.iter().find(|(_, other, _)| id(other) != id(status))
    else {
        return Ok(());
    };
    Err(Error::usage(format!(
        "the endpoints are not of one cluster: {first} is of {:x}, {other} of {:x}",
        id(status),
        id(their)
    ))
    .hint("name the endpoints of one cluster"))
}

/// Keeps one endpoint of each member, one that reads go through where there is one.
fn once_each(members: Vec<(String, Status, bool)>) -> Vec<(String, Status, bool)> {
    let mut kept: Vec<(String, Status, bool)> = Vec::new();
    for member in members {
        let id = member.1.header.member_id;
        match kept.iter_mut().find(|(_, status, _)| status.header.member_id == id) {
            Some(other) if member.2 && !other.2 => *other = member,
            Some(_) => {}
            None => kept.push(member),
        }
    }
    kept
}

/// Tells whether a member says that an alarm of this kind is raised for `member`, or for nobody in
/// particular. Members list the alarms among their errors: `memberID:1 alarm:CORRUPT`.
fn is_corrupt(statuses: &[&Status], member: u64) -> bool {
    let texts = statuses.iter().flat_map(|status| &status.errors);
    texts.into_iter().any(|text| {
        let mut words = text.split_whitespace();
        let has = |wanted: &str| text.split_whitespace().any(|word| word == wanted);
        let whose = words.find_map(|word| word.strip_prefix("memberID:")?.parse::<u64>().ok());
        has("alarm:CORRUPT") && whose.is_none_or(|id| id == member || id == 0)
    })
}

fn rank(
    choice: &mut Choice,
    members: Vec<(String, Status, bool)>,
    accept_corrupt: bool,
) -> Result<(), Error> {
    let statuses: Vec<Status> = members.iter().map(|(_, status, _)| status.clone()).collect();
    let statuses: Vec<&Status> = statuses.iter().collect();
    let is_only = members.len() == 1 && choice.passed_over.is_empty();
    let mut corrupt = Vec::new();
    let mut ranked = Vec::new();
    for (endpoint, status, reads) in members {
        let id = status.header.member_id;
        if is_corrupt(&statuses, id) {
            if !accept_corrupt {
                corrupt.push(endpoint.clone());
                choice.passed_over.push((endpoint, "it has a CORRUPT alarm".into()));
                continue;
            }
            choice.warnings.push(format!(
                "A CORRUPT ALARM OF {endpoint} WAS ACCEPTED: its data may differ from the other \
                 members'"
            ));
        }
        let role = match status.leader {
            _ if status.is_learner => Role::Learner,
            leader if leader == id => Role::Leader,
            _ => Role::Follower,
        };
        let told = if choice.quorum { choice.needed } else { status.header.revision };
        let needed = choice.needed.max(told);
        // Without a majority it is the furthest that counts.
        let behind = if choice.quorum { 0 } else { choice.highest - status.header.revision };
        ranked.push((
            (behind, role, !reads),
            Candidate { endpoint, role, needed, status, why: String::new() },
        ));
    }
    ranked.sort_by_key(|(rank, candidate)| (*rank, Reverse(candidate.status.header.revision)));
    let followers = ranked.iter().any(|(_, candidate)| candidate.role == Role::Follower);
    choice.candidates = ranked.into_iter().map(|(_, candidate)| candidate).collect();
    for candidate in &mut choice.candidates {
        candidate.why = match candidate.role {
            _ if is_only => "the only member at the endpoints given".into(),
            _ if !choice.quorum && candidate.status.header.revision < choice.highest => {
                format!(
                    "at revision {}, which is not the furthest",
                    candidate.status.header.revision
                )
            }
            _ if !choice.quorum => format!(
                "the furthest that answers, at revision {}",
                candidate.status.header.revision
            ),
            Role::Follower => "a follower, so that the leader is left in peace".into(),
            Role::Leader if followers => "the leader, as no follower could be used".into(),
            Role::Leader => "the leader, as no follower answers".into(),
            Role::Learner => "a learner, as no voting member could be used".into(),
        };
    }
    if choice.candidates.is_empty() {
        let message = format!("a CORRUPT alarm stands: {}", corrupt.join(", "));
        return Err(Error::new(ExitCode::Damage, message)
            .hint("etcdctl alarm list; etcdctl endpoint hashkv --cluster shows which one differs")
            .hint("or --accept-corrupt, to save what that member has"));
    }
    Ok(())
}

/// Waits until a member has the revision that is needed, or the operation is told to stop.
///
/// # Errors
/// It fails, or has not got there in time ([`Cause::Timeout`]).
pub(super) fn catch_up(
    cluster: &Arc<Cluster>,
    candidate: &mut Candidate,
    limit: Duration,
    progress: &dyn Progress,
) -> Result<(), live::Error> {
    let (began, limit) = (Instant::now(), limit.min(CATCH_UP));
    while candidate.status.header.revision < candidate.needed && !progress.stopped() {
        if began.elapsed() >= limit {
            let doing = "waiting until it has the revision that is needed";
            return Err(live::Error::of(
                &candidate.endpoint,
                Cause::Timeout { after: limit, doing },
            ));
        }
        std::thread::sleep(LOOK);
        let (asked, endpoint) = (Arc::clone(cluster), candidate.endpoint.clone());
        match attend(progress, move || Ok(asked.status(&endpoint))) {
            Ok(status) => candidate.status = status?,
            // It was told to stop, as whoever called finds.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Header;

    const LEADER: u64 = 2;

    fn member(id: u64, revision: i64) -> (String, Status, bool) {
        let header = Header { member_id: id, revision, ..Header::default() };
        (format!("m{id}"), Status { header, leader: LEADER, ..Status::default() }, true)
    }

    fn ranked(
        members: Vec<(String, Status, bool)>,
        quorum: bool,
        accept: bool,
    ) -> Result<Vec<String>, Error> {
        let highest = members.iter().map(|(_, status, _)| status.header.revision).max().unwrap();
        let mut choice = Choice { quorum, highest, ..Choice::default() };
        rank(&mut choice, members, accept)?;
        Ok(choice.candidates.into_iter().map(|candidate| candidate.endpoint).collect())
    }

    #[test]
    fn followers_come_first_and_learners_last() {
        let mut learner = member(1, 9);
        learner.1.is_learner = true;
        let mut ill = member(3, 9);
        ill.2 = false;
        let all = vec![learner, member(2, 9), ill, member(4, 8), member(5, 9)];
        assert_eq!(ranked(all.clone(), true, false).unwrap(), ["m5", "m4", "m3", "m2", "m1"]);
        // Without a majority it is the revision that counts.
        assert_eq!(ranked(all, false, false).unwrap(), ["m5", "m3", "m2", "m1", "m4"]);
    }

    #[test]
    fn a_member_stands_once_however_often_it_was_named() {
        let mut ill = member(1, 9);
        ill.2 = false;
        let mut good = member(1, 9);
        good.0 = "again".into();
        let all = once_each(vec![ill, member(3, 9), good, member(3, 9), member(1, 9)]);
        let names: Vec<&str> = all.iter().map(|(endpoint, ..)| endpoint.as_str()).collect();
        assert_eq!(names, ["again", "m3"]);
    }

    #[test]
    fn without_a_majority_each_member_needs_what_it_told() {
        for (quorum, wanted, want) in [(false, 0, [9, 7]), (false, 8, [9, 8]), (true, 5, [5, 5])] {
            let mut choice = Choice { quorum, highest: 9, needed: wanted, ..Choice::default() };
            rank(&mut choice, vec![member(4, 9), member(5, 7)], false).unwrap();
            let needed: Vec<i64> = choice.candidates.iter().map(|one| one.needed).collect();
            assert_eq!(needed, want);
        }
    }

    #[test]
    fn a_corrupt_member_is_used_only_when_that_is_accepted() {
        let told = |text: &str| {
            let mut all = vec![member(1, 9), member(2, 9), member(3, 9)];
            all[1].1.errors = vec!["memberID:3 alarm:NOSPACE ".into(), text.into()];
            all
        };
        let names = |text| ranked(told(text), true, false);
        assert_eq!(names("memberID:3  alarm:CORRUPT").unwrap(), ["m1", "m2"]);
        assert_eq!(names("etcdserver: no leader").unwrap(), ["m1", "m3", "m2"]);
        assert_eq!(names("memberID:0 alarm:CORRUPT ").unwrap_err().code, ExitCode::Damage);
        assert_eq!(names("alarm:CORRUPT ").unwrap_err().code, ExitCode::Damage);
        assert_eq!(ranked(told("memberID:3 alarm:CORRUPT"), true, true).unwrap().len(), 3);
    }
}
