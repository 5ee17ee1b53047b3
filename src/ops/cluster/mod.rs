//! A running cluster as one picture: every member, what is wrong, and what to do next.
//!
//! [`Observer`] asks ([`gather`](Observer::look)); [`View::of`] concludes, and is pure: the same
//! answers in any order give the same view. `status`, `health` and `wait` all show it.
//!
//! - [`quota`] how full the databases are;
//! - [`verdict`] what is wrong, most urgent first;
//! - [`wait`] waiting for a condition;
//! - [`consistency`] whether the members hold the same data.

#[cfg(test)]
mod cases;
pub mod consistency;
pub mod quota;
pub mod verdict;
pub mod wait;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc;
use std::time::Duration;

use serde::{Serialize, Serializer};

use super::{Error, ExitCode, Progress, reach, shell_line};
use crate::live::{self, Cause, Cluster, Member, Read, Round, Settings, Status};
use quota::{Quota, Source};
use verdict::{Remark, Verdict};

/// A read that takes longer than this many milliseconds is slow.
pub const SLOW_READ_MS: u64 = 1000;

/// Everything that a round of questions brought, before anything is concluded.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    /// One for each endpoint.
    pub rounds: Vec<Round>,
    /// Every member that the cluster has was to be asked.
    pub whole_cluster: bool,
    /// Why the members could not be discovered, so that the given endpoints were asked.
    pub undiscovered: Option<String>,
    /// How etcdctl reaches the members.
    pub access: Access,
}

/// What an error of one member says, as errors do everywhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Trouble {
    /// Exit code of such an error.
    pub code: u8,
    /// Its name.
    pub kind: &'static str,
    /// What happened.
    pub message: String,
    /// What to do next.
    pub hint: String,
    #[serde(skip)]
    barrier: Option<Barrier>,
    /// The same for members that fail in the same way.
    #[serde(skip)]
    likeness: String,
}

/// What keeps us out where somebody listens: nothing is learned of the member then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barrier {
    /// It refuses us: TLS, certificate, user or password.
    Refused,
    /// The port is none for clients of etcd.
    WrongPort,
}

impl Trouble {
    /// Describes an error.
    #[must_use]
    pub fn of(error: &live::Error) -> Self {
        let message = error.cause.to_string();
        let likeness = match &error.cause {
            Cause::PeerPort { .. } => "a peer port".to_owned(),
            _ => message.replace(&place(&error.endpoint), ""),
        };
        let barrier = match &error.cause {
            Cause::PeerPort { .. } | Cause::NotEtcd { .. } => Some(Barrier::WrongPort),
            cause if reach::code(cause) == ExitCode::Tls => Some(Barrier::Refused),
            _ => None,
        };
        let error = Error::from(error.clone());
        let hint = error.hints.join("\n");
        let (code, kind) = (error.code.number(), error.code.name());
        Self { code, kind, message, hint, barrier, likeness }
    }
}

/// One member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemberView {
    /// Where it was asked; `None` where it was not.
    pub endpoint: Option<String>,
    /// Its id, where known.
    #[serde(serialize_with = "optional_hex")]
    pub id: Option<u64>,
    /// Its name, where known.
    pub name: Option<String>,
    /// Whether it serves; `None` where it was not asked, or lets us not in.
    pub healthy: Option<bool>,
    /// Why it is not healthy.
    pub reason: Option<String>,
    /// Version of its program.
    pub version: Option<String>,
    /// Storage version, from etcd 3.6 on.
    pub storage_version: Option<String>,
    /// Bytes of its database.
    pub db_size: Option<i64>,
    /// Bytes of it that are in use.
    pub db_size_in_use: Option<i64>,
    /// Bytes that a defragmentation gives back.
    pub reclaimable: Option<i64>,
    /// What of the file is in use, in whole percent.
    pub in_use_percent: Option<i64>,
    /// Bytes that the database may have; `None` for no limit.
    pub quota: Option<i64>,
    /// Who says so.
    pub quota_source: Option<Source>,
    /// How much of that is used, in whole percent.
    pub quota_used_percent: Option<i64>,
    /// Whether it leads.
    pub is_leader: Option<bool>,
    /// Whether it is a learner.
    pub is_learner: Option<bool>,
    /// Id of the leader that it knows.
    #[serde(serialize_with = "optional_hex")]
    pub leader: Option<u64>,
    /// Raft term.
    pub raft_term: Option<u64>,
    /// Raft index that it knows to be committed.
    pub raft_index: Option<u64>,
    /// Entries that it is behind the member that is furthest.
    pub raft_lag: Option<u64>,
    /// Raft index up to which it has applied.
    pub raft_applied_index: Option<u64>,
    /// Entries that it has not applied yet.
    pub apply_lag: Option<u64>,
    /// Its revision.
    pub revision: Option<i64>,
    /// Revisions that it is behind the member that is furthest.
    pub revision_lag: Option<i64>,
    /// How long a read through it took, in milliseconds.
    pub read_ms: Option<u64>,
    /// Version that a downgrade under way leads to.
    pub downgrade: Option<String>,
    /// Its own alarms.
    pub alarms: Vec<&'static str>,
    /// Alarms and troubles in its own words.
    pub errors: Vec<String>,
    /// More endpoints at which the same member answered.
    pub also_at: Vec<String>,
    /// Endpoints of it at which nothing answered, while another one did or is shown.
    pub not_at: Vec<String>,
    /// URLs that it tells clients.
    pub client_urls: Vec<String>,
    /// Why it did not answer.
    pub error: Option<Trouble>,
    #[serde(skip)]
    pub(super) cluster_id: Option<u64>,
    #[serde(skip)]
    pub(super) serves: Serves,
}

/// What a read through a member came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Serves {
    /// It was not tried.
    #[default]
    Untried,
    /// It went through; for a voter that proves a majority.
    Yes,
    /// This user is not known, so that nothing was learned.
    Refused,
    /// It failed.
    No,
}

/// An alarm that is raised.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct AlarmView {
    /// Whose it is.
    #[serde(serialize_with = "hex")]
    pub id: u64,
    /// The member's name; `None` for a member that is not there.
    pub name: Option<String>,
    /// `NOSPACE`, `CORRUPT` or `NONE`.
    pub alarm: &'static str,
}

/// How many members vote, and how many of them may be lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Quorum {
    /// Members that vote; `None` where no member said.
    pub voters: Option<usize>,
    /// Of these, asked ones.
    pub asked: usize,
    /// Of these, ones through which a linearizable read went.
    pub healthy: usize,
    /// How many it takes; `None` where no member said.
    pub needed: Option<usize>,
    /// Whether the cluster can write; `None` where that could not be learned.
    pub has_quorum: Option<bool>,
    /// How many more voters may fail; `None` where not all were asked.
    pub may_fail: Option<usize>,
}

/// Everything that is known of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct View {
    /// Version of this shape.
    pub version: u8,
    /// Its id; `None` where nobody answered or answers differ.
    #[serde(serialize_with = "optional_hex")]
    pub cluster_id: Option<u64>,
    /// Every member that was asked or that another named, by name.
    pub members: Vec<MemberView>,
    /// Alarms of all members.
    pub alarms: Vec<AlarmView>,
    /// Whether it can write.
    pub quorum: Quorum,
    /// All of it in one word.
    pub verdict: Verdict,
    /// What is wrong or good to know, most urgent first.
    pub findings: Vec<Remark>,
    #[serde(skip)]
    whole_cluster: bool,
    #[serde(skip)]
    undiscovered: Option<String>,
    #[serde(skip)]
    access: Access,
}

fn hex<S: Serializer>(id: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{id:x}"))
}

fn optional_hex<S: Serializer>(id: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    match id {
        Some(id) => hex(id, to),
        None => to.serialize_none(),
    }
}

/// Asks a cluster again and again; connections are kept.
pub struct Observer {
    settings: Settings,
    whole_cluster: bool,
    cluster: Option<Cluster>,
}

impl Observer {
    /// Prepares to ask; `whole_cluster` asks every member that the cluster has.
    #[must_use]
    pub fn new(settings: Settings, whole_cluster: bool) -> Self {
        Self { settings, whole_cluster, cluster: None }
    }

    /// Asks once and concludes. Takes at most twice the limit for a question, one more for
    /// each endpoint that is dead while the members are discovered, and all of it twice where
    /// members have forgotten who asks.
    ///
    /// # Errors
    ///
    /// Wrong settings; and an interruption, which is not kept waiting for answers.
    pub fn look(&mut self, progress: &dyn Progress) -> Result<View, Error> {
        let (kept, settings, whole_cluster) =
            (self.cluster.take(), self.settings.clone(), self.whole_cluster);
        let (cluster, gathered) = attend(progress, move || {
            if let Some(cluster) = kept {
                let gathered = gather(&cluster, whole_cluster);
                if !gathered.rounds.iter().any(has_forgotten_us) {
                    return Ok((cluster, gathered));
                }
            }
            let mut cluster = Cluster::open(settings)?;
            let found = if whole_cluster { cluster.discover() } else { Ok(()) };
            let is_found = found.is_ok();
            let gathered = gather(&cluster, whole_cluster && is_found);
            let undiscovered = found.err().map(|error| error.to_string());
            Ok((cluster, Gathered { undiscovered, ..gathered }))
        })?;
        let view = View::of(&gathered);
        // Members come and go while a cluster is watched: what was discovered is not for ever.
        let advertised: BTreeSet<&str> = view
            .members
            .iter()
            .flat_map(|member| member.client_urls.iter().map(String::as_str))
            .collect();
        let asked: BTreeSet<&str> = cluster.endpoints().into_iter().collect();
        if !self.whole_cluster || asked == advertised {
            self.cluster = Some(cluster);
        }
        Ok(view)
    }

    /// Sets another limit for one question to one member.
    pub fn limit_questions(&mut self, limit: Duration) {
        self.settings.command_timeout = limit;
        if let Some(cluster) = &mut self.cluster {
            cluster.limit_questions(limit);
        }
    }
}

/// Does work that waits for members on another thread, and leaves it there when told to stop: it
/// has limits of its own, and nothing to clean up.
///
/// # Errors
///
/// The work's own, and an interruption.
pub(super) fn attend<T: Send + 'static>(
    progress: &dyn Progress,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let (done, waits) = mpsc::sync_channel(1);
    std::thread::spawn(move || {
        // Nobody listens any more after an interruption.
        let _ = done.send(work());
    });
    loop {
        match waits.recv_timeout(Duration::from_millis(50)) {
            Ok(result) => return result,
            Err(mpsc::RecvTimeoutError::Timeout) if progress.stopped() => {
                return Err(Error::interrupted());
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(Error::new(ExitCode::Internal, "the thread that asks has ended"));
            }
        }
    }
}

/// Prepares connections, to every member where that is wanted.
fn open(settings: &Settings, whole_cluster: bool) -> Result<Cluster, Error> {
    let mut cluster = Cluster::open(settings.clone())?;
    if whole_cluster {
        cluster.discover()?;
    }
    Ok(cluster)
}

/// Asks every endpoint.
fn gather(cluster: &Cluster, whole_cluster: bool) -> Gathered {
    let access = Access::of(cluster.settings());
    Gathered { rounds: cluster.round(), whole_cluster, undiscovered: None, access }
}

/// Tells whether a member does not know the token that it gave out: it ends with time, and with a
/// restart.
fn has_forgotten_us(round: &Round) -> bool {
    let is_unknown = |error: &live::Error| matches!(error.cause, Cause::NotAuthenticated { .. });
    round.status.as_ref().is_err_and(is_unknown)
        || round.read.as_ref().is_some_and(|read| read.as_ref().is_err_and(is_unknown))
}

/// Tells whether a refused read went through all the same: a user without the right to read the
/// key is told so only after the member has asked the others.
fn is_allowed(cause: &Cause) -> bool {
    matches!(cause, Cause::NotPermitted { .. })
}

/// How etcdctl reaches the same members: flags, endpoints left out, and what is in no flag.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    flags: Vec<String>,
    secret: Option<&'static str>,
}

impl Access {
    /// Takes what the settings say but secrets.
    #[must_use]
    pub fn of(settings: &Settings) -> Self {
        let secret = match (&settings.user, &settings.token) {
            (Some(_), _) => Some("with the password in ETCDCTL_PASSWORD"),
            (None, Some(_)) => Some("with the token in ETCDCTL_AUTH_JWT_TOKEN"),
            (None, None) => None,
        };
        Self { flags: settings.flags(), secret }
    }

    /// Writes a command of a program that takes etcdctl's connection flags, for a shell.
    #[must_use]
    pub fn command(&self, program: &str, endpoints: Option<&str>, words: &[&str]) -> String {
        let mut line = vec![program.to_owned()];
        line.extend(endpoints.map(|endpoints| format!("--endpoints={endpoints}")));
        line.extend(self.flags.iter().cloned());
        line.extend(words.iter().map(|word| (*word).to_owned()));
        let line = shell_line(&line);
        match self.secret {
            Some(secret) => format!("{line} # {secret}"),
            None => line,
        }
    }
}

impl View {
    /// Concludes.
    #[must_use]
    pub fn of(gathered: &Gathered) -> Self {
        let listed = listed(&gathered.rounds);
        let mut members = fold(gathered.rounds.iter().map(row).collect());
        for member in &mut members {
            name(member, listed.as_deref());
        }
        let mut members = fold_dead(members);
        for member in listed.iter().flatten() {
            let is_there = members.iter().any(|view| view.id == Some(member.id));
            if !is_there {
                members.push(unasked(member));
            }
        }
        let alarms = alarms(&members);
        measure(&mut members, &alarms);
        // Names are not unique; members that share one stand in the order of their ids.
        members.sort_by(|a, b| key(a).cmp(&key(b)));
        let clusters: BTreeSet<u64> = members.iter().filter_map(|view| view.cluster_id).collect();
        let cluster_id = clusters.first().copied().filter(|_| clusters.len() == 1);
        let quorum = quorum(&members, listed.as_deref(), gathered.whole_cluster);
        let mut view = Self {
            version: 1,
            cluster_id,
            members,
            alarms,
            quorum,
            verdict: Verdict::Ok,
            findings: Vec::new(),
            whole_cluster: gathered.whole_cluster,
            undiscovered: gathered.undiscovered.clone(),
            access: gathered.access.clone(),
        };
        (view.verdict, view.findings) = verdict::judge(&view);
        view
    }

    /// Returns what `status` exits with: whether the members answered.
    #[must_use]
    pub fn status_code(&self) -> ExitCode {
        if self.alarms.iter().any(|alarm| alarm.alarm == "CORRUPT") {
            return ExitCode::Damage;
        }
        if !self.members.iter().any(MemberView::answered) {
            let codes: Vec<u8> =
                self.members.iter().filter_map(|view| Some(view.error.as_ref()?.code)).collect();
            let all_refused =
                !codes.is_empty() && codes.iter().all(|code| *code == ExitCode::Tls.number());
            return if all_refused { ExitCode::Tls } else { ExitCode::Unreachable };
        }
        let is_missing =
            |view: &MemberView| view.error.is_some() || (self.whole_cluster && !view.answered());
        let is_mixed = self.cluster_id.is_none();
        if is_mixed || self.undiscovered.is_some() || self.members.iter().any(is_missing) {
            return ExitCode::Partial;
        }
        ExitCode::Ok
    }

    /// Says that no member answers, and why for each; `None` where one does.
    #[must_use]
    pub(in crate::ops) fn unanswered(&self) -> Option<Error> {
        if self.members.iter().any(MemberView::answered) {
            return None;
        }
        let why = |member: &MemberView| {
            Some(format!("{}: {}", member.endpoint.as_deref()?, member.reason.as_deref()?))
        };
        let why: Vec<String> = self.members.iter().filter_map(why).collect();
        let message = match why.is_empty() {
            true => "no member answers".to_owned(),
            false => format!("no member answers: {}", why.join("; ")),
        };
        Some(Error::new(self.status_code(), message))
    }

    /// Returns what `health` exits with: whether the members serve.
    #[must_use]
    pub fn health_code(&self) -> ExitCode {
        let code = self.status_code();
        if !matches!(code, ExitCode::Ok | ExitCode::Partial) {
            return code;
        }
        let is_voter = |view: &&MemberView| view.answered() && view.is_learner == Some(false);
        let mut voters = self.members.iter().filter(is_voter);
        if self.quorum.healthy == 0 && voters.any(|view| view.serves == Serves::No) {
            return ExitCode::Unreachable;
        }
        let mut tried = self.members.iter().filter(|view| view.answered()).peekable();
        if tried.peek().is_some() && tried.all(|view| view.serves == Serves::Refused) {
            return ExitCode::Tls;
        }
        let is_sick = |view: &MemberView| view.healthy == Some(false);
        if self.only_learners_answered() || self.members.iter().any(is_sick) {
            return ExitCode::Partial;
        }
        code
    }
}

impl View {
    /// Returns the leader's id: of a member that answers and says that it leads, or one that was
    /// not asked and a voter names.
    #[must_use]
    pub fn leader(&self) -> Option<u64> {
        let newest = |of: &dyn Fn(&MemberView) -> bool| {
            let members = self.members.iter().filter(|member| member.answered() && of(member));
            members.max_by_key(|member| member.raft_term).and_then(|member| member.leader)
        };
        self.cluster_id?;
        // One that gave no answer may be it as long as nobody says which member it is.
        let was_asked = |id: u64| {
            let asked = self.members.iter().filter(|member| member.endpoint.is_some());
            asked.map(|member| member.id).any(|asked| asked.is_none() || asked == Some(id))
        };
        newest(&|member| member.is_leader == Some(true)).or_else(|| {
            let named = newest(&|m| m.is_learner == Some(false) && m.leader.is_some());
            named.filter(|id| !was_asked(*id))
        })
    }

    /// Tells whether members answered and none of them votes: what such a one reads and whom it
    /// takes for the leader may be of a time when there still was a quorum.
    fn only_learners_answered(&self) -> bool {
        let mut answering = self.members.iter().filter(|view| view.answered()).peekable();
        answering.peek().is_some() && answering.all(|view| view.is_learner == Some(true))
    }
}

impl MemberView {
    /// Tells whether it answered.
    #[must_use]
    pub fn answered(&self) -> bool {
        self.version.is_some()
    }

    /// Tells whether a read went through it and it knows a leader, whatever alarms are raised.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.serves == Serves::Yes && self.leader.is_some()
    }

    /// Makes a view of one that does, or does not.
    #[cfg(test)]
    pub(super) fn serving(self, serves: bool) -> Self {
        let serves = if serves { Serves::Yes } else { Serves::No };
        Self { serves, leader: self.leader.or(Some(1)), ..self }
    }

    /// Tells whether it was added and has not started: it then has neither name nor client URL.
    #[must_use]
    pub fn is_unstarted(&self) -> bool {
        self.endpoint.is_none() && self.name.is_none() && self.client_urls.is_empty()
    }

    /// Returns what keeps us out, where somebody listens.
    #[must_use]
    pub fn barrier(&self) -> Option<Barrier> {
        self.error.as_ref()?.barrier
    }

    /// Returns what it says besides alarms.
    pub fn other_errors(&self) -> impl Iterator<Item = &str> {
        self.errors.iter().map(String::as_str).filter(|text| alarm_of(text).is_none())
    }

    /// Names it for a sentence: by name, else by endpoint or id.
    #[must_use]
    pub fn label(&self) -> String {
        match (&self.name, &self.endpoint, self.id) {
            (Some(name), ..) if !name.is_empty() => name.clone(),
            (_, Some(endpoint), _) => endpoint.clone(),
            (_, None, Some(id)) => format!("{id:x}"),
            (_, None, None) => "a member".to_owned(),
        }
    }
}

type Key<'a> = (bool, Option<&'a str>, Option<u64>, Option<&'a str>);

fn key(view: &MemberView) -> Key<'_> {
    (view.name.is_none(), view.name.as_deref(), view.id, view.endpoint.as_deref())
}

/// Takes the members from whoever has applied most.
fn listed(rounds: &[Round]) -> Option<Vec<Member>> {
    let known = rounds.iter().filter_map(|round| {
        let status = round.status.as_ref().ok()?;
        let members = &round.members.as_ref()?.as_ref().ok()?.members;
        let newest = (status.raft_applied_index, std::cmp::Reverse(status.header.member_id));
        (!members.is_empty()).then_some((newest, members))
    });
    known.max_by_key(|(newest, _)| *newest).map(|(_, members)| members.clone())
}

fn row(round: &Round) -> MemberView {
    let endpoint = Some(round.endpoint.clone());
    match &round.status {
        Ok(status) => {
            let metrics = round.quota.as_ref().and_then(|quota| quota.as_ref().ok()).copied();
            MemberView { endpoint, ..answered(status, metrics, round.read.as_ref()) }
        }
        Err(error) => {
            let trouble = Trouble::of(error);
            MemberView {
                endpoint,
                healthy: trouble.barrier.is_none().then_some(false),
                reason: Some(error.cause.to_string()),
                error: Some(trouble),
                ..MemberView::default()
            }
        }
    }
}

fn answered(
    status: &Status,
    metrics: Option<i64>,
    read: Option<&Result<Read, live::Error>>,
) -> MemberView {
    let quota = Quota::of(status.db_size_quota, metrics);
    let (size, in_use) = (status.db_size, status.db_size_in_use);
    let serves = match read {
        None => Serves::Untried,
        Some(Ok(_)) => Serves::Yes,
        Some(Err(error)) if is_allowed(&error.cause) => Serves::Yes,
        Some(Err(error)) if reach::code(&error.cause) == ExitCode::Tls => Serves::Refused,
        Some(Err(_)) => Serves::No,
    };
    let read_ms = match read {
        Some(Ok(read)) => u64::try_from(read.took.as_millis()).ok(),
        _ => None,
    };
    let reason = match (serves, read) {
        (Serves::No | Serves::Refused, _) if status.leader == 0 => {
            Some("it knows no leader".to_owned())
        }
        (Serves::No | Serves::Refused, Some(Err(error))) => {
            Some(format!("a read through it fails: {}", error.cause))
        }
        _ if status.leader == 0 => Some("it knows no leader".to_owned()),
        _ => None,
    };
    let healthy = match serves {
        Serves::Yes => Some(reason.is_none()),
        Serves::No => Some(false),
        Serves::Refused | Serves::Untried => (status.leader == 0).then_some(false),
    };
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let downgrade = status.downgrade.as_ref().filter(|(enabled, _)| *enabled);
    MemberView {
        id: Some(status.header.member_id),
        healthy,
        reason,
        version: Some(status.version.clone()),
        storage_version: text(&status.storage_version),
        db_size: Some(size),
        db_size_in_use: Some(in_use),
        reclaimable: Some(size.saturating_sub(in_use).max(0)),
        in_use_percent: Some(quota::percent(in_use, size)),
        quota: quota.bytes,
        quota_source: Some(quota.source),
        quota_used_percent: quota.used_percent(size),
        is_leader: Some(status.leader == status.header.member_id),
        is_learner: Some(status.is_learner),
        leader: (status.leader != 0).then_some(status.leader),
        raft_term: Some(status.raft_term),
        raft_index: Some(status.raft_index),
        raft_applied_index: Some(status.raft_applied_index),
        apply_lag: Some(status.raft_index.saturating_sub(status.raft_applied_index)),
        revision: Some(status.header.revision),
        read_ms,
        downgrade: downgrade.map(|(_, target)| target.clone()),
        errors: status.errors.clone(),
        cluster_id: Some(status.header.cluster_id),
        serves,
        ..MemberView::default()
    }
}

/// Makes one of the rows of a member that answered at several endpoints.
fn fold(mut rows: Vec<MemberView>) -> Vec<MemberView> {
    // Whoever reads through comes first, so that the answer does not hang on the order given.
    rows.sort_by(|a, b| {
        let rank = |row: &MemberView| (row.healthy != Some(true), row.endpoint.clone());
        rank(a).cmp(&rank(b))
    });
    let mut kept: Vec<MemberView> = Vec::new();
    for row in rows {
        let same = |other: &&mut MemberView| {
            (row.id.is_some() && other.id == row.id && other.cluster_id == row.cluster_id)
                || other.endpoint == row.endpoint
        };
        match kept.iter_mut().find(same) {
            Some(first) if first.endpoint == row.endpoint => {}
            Some(first) => first.also_at.extend(row.endpoint),
            None => kept.push(row),
        }
    }
    kept
}

/// Takes out rows of endpoints that are dead where the same member has another row.
fn fold_dead(rows: Vec<MemberView>) -> Vec<MemberView> {
    let (mut kept, mut dead): (Vec<_>, Vec<_>) =
        rows.into_iter().partition(|row| row.answered() || row.id.is_none());
    dead.sort_by(|a, b| a.endpoint.cmp(&b.endpoint));
    for row in dead {
        match kept.iter_mut().find(|other| other.id == row.id) {
            Some(other) => other.not_at.extend(row.endpoint),
            None => kept.push(row),
        }
    }
    kept
}

/// Fills in what the other members know of one.
fn name(view: &mut MemberView, listed: Option<&[Member]>) {
    let listed = listed.unwrap_or_default();
    let member = match view.id {
        Some(id) => listed.iter().find(|member| member.id == id),
        None => {
            let given = view.endpoint.as_deref().map(place);
            listed
                .iter()
                .find(|member| member.client_urls.iter().any(|url| Some(place(url)) == given))
        }
    };
    let Some(member) = member else { return };
    view.id = Some(member.id);
    view.name = Some(member.name.clone()).filter(|name| !name.is_empty());
    view.client_urls.clone_from(&member.client_urls);
    view.is_learner = view.is_learner.or(Some(member.is_learner));
}

/// Returns what of an endpoint or URL says where it is.
fn place(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.trim_end_matches('/').to_ascii_lowercase()
}

fn unasked(member: &Member) -> MemberView {
    MemberView {
        id: Some(member.id),
        name: Some(member.name.clone()).filter(|name| !name.is_empty()),
        is_learner: Some(member.is_learner),
        client_urls: member.client_urls.clone(),
        ..MemberView::default()
    }
}

/// Takes the alarms of the cluster from what each member says of them.
fn alarms(members: &[MemberView]) -> Vec<AlarmView> {
    let told = members.iter().flat_map(|member| &member.errors);
    let raised: BTreeSet<(u64, &'static str)> = told.filter_map(|text| alarm_of(text)).collect();
    let names: BTreeMap<u64, &str> =
        members.iter().filter_map(|m| Some((m.id?, m.name.as_deref()?))).collect();
    let view = |(id, alarm)| AlarmView { id, name: names.get(&id).map(|n| (*n).into()), alarm };
    raised.into_iter().map(view).collect()
}

/// Reads an alarm out of a status: `memberID:10276657743932975437 alarm:NOSPACE`, with one blank
/// or two between and perhaps one behind. A member 0 and an alarm without a type are left out, as
/// protobuf's text form does (etcd server/etcdserver/api/v3rpc/maintenance.go, `Status`, checked at
/// 3.5.35 and 3.7.3).
fn alarm_of(text: &str) -> Option<(u64, &'static str)> {
    let (mut id, mut alarm) = (None, None);
    for word in text.split_whitespace() {
        if let Some(number) = word.strip_prefix("memberID:") {
            id = Some(number.parse().ok()?);
        } else {
            let word = word.strip_prefix("alarm:")?;
            alarm = Some(["NOSPACE", "CORRUPT"].into_iter().find(|known| *known == word)?);
        }
    }
    let is_one = id.is_some() || alarm.is_some();
    is_one.then_some((id.unwrap_or(0), alarm.unwrap_or("NONE")))
}

/// Fills in what hangs on the other members: lags and alarms.
fn measure(members: &mut [MemberView], alarms: &[AlarmView]) {
    // Only within a cluster can one member be behind another.
    let mut furthest: BTreeMap<u64, (u64, i64)> = BTreeMap::new();
    for view in members.iter() {
        if let (Some(cluster), Some(index), Some(revision)) =
            (view.cluster_id, view.raft_index, view.revision)
        {
            let most = furthest.entry(cluster).or_default();
            *most = (most.0.max(index), most.1.max(revision));
        }
    }
    for view in members {
        if let Some((index, revision)) = view.cluster_id.and_then(|id| furthest.get(&id)) {
            view.raft_lag = view.raft_index.map(|own| index.saturating_sub(own));
            view.revision_lag = view.revision.map(|own| revision.saturating_sub(own));
        }
        let own = alarms.iter().filter(|alarm| Some(alarm.id) == view.id);
        view.alarms = own.map(|alarm| alarm.alarm).collect();
        if view.answered() && !view.alarms.is_empty() {
            view.healthy = Some(false);
            let alarm = format!("it has raised {}", view.alarms.join(" and "));
            view.reason = Some(match view.reason.take() {
                Some(reason) => format!("{alarm}; {reason}"),
                None => alarm,
            });
        }
    }
}

fn quorum(members: &[MemberView], listed: Option<&[Member]>, whole_cluster: bool) -> Quorum {
    let votes = |view: &&MemberView| view.is_learner != Some(true);
    let asked: Vec<&MemberView> =
        members.iter().filter(votes).filter(|view| view.endpoint.is_some()).collect();
    let healthy = asked.iter().filter(|view| view.serves == Serves::Yes).count();
    let voters = listed.map(|all| all.iter().filter(|member| !member.is_learner).count());
    let needed = voters.map(|voters| voters / 2 + 1);
    let fails = asked.iter().any(|view| view.serves == Serves::No);
    // Voters that were not asked may be a majority that this one is cut off from.
    let possible = voters.map(|voters| voters.saturating_sub(asked.len() - healthy));
    let has_quorum = match (possible, needed) {
        _ if healthy > 0 => Some(true),
        (Some(possible), Some(needed)) if fails && possible >= needed => None,
        _ if fails => Some(false),
        _ => None,
    };
    let known = asked.iter().filter(|view| view.id.is_some()).count();
    let is_kept_out = asked.iter().any(|view| view.barrier().is_some());
    let all_asked = whole_cluster || voters.is_some_and(|voters| known >= voters);
    let may_fail = needed
        .filter(|_| all_asked && !is_kept_out && has_quorum == Some(true))
        .map(|needed| healthy.saturating_sub(needed));
    Quorum { voters, asked: asked.len(), healthy, needed, has_quorum, may_fail }
}
