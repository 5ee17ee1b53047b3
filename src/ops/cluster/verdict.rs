//! What is wrong with a cluster, most urgent first, and the next command for each.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::quota::{self, Source};
use super::{Barrier, MemberView, SLOW_READ_MS, Serves, Trouble, View};

/// Entries that a member may be behind before it is said. A member that is more than 5000 behind
/// gets a whole snapshot from the leader (etcd server/etcdserver/server.go,
/// `DefaultSnapshotCatchUpEntries`, checked at 3.7.3).
pub const LAG_WARNING: u64 = 1000;
/// Entries that wait to be applied at which a member refuses requests (etcd
/// server/etcdserver/v3_server.go, `maxGapBetweenApplyAndCommitIndex`, checked at 3.7.3).
pub const APPLY_LAG_CRITICAL: u64 = 5000;
/// Revisions that a compaction which is advised here leaves to watchers.
const KEPT_REVISIONS: i64 = 1000;

/// A cluster in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Nothing to do.
    Ok,
    /// Something to do soon.
    Warning,
    /// Something to do now.
    Critical,
    /// Nobody answered, though somebody listens everywhere: it is we who are kept out.
    NoAccess,
    /// Nobody answered.
    Unreachable,
}

impl Verdict {
    /// Returns the word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Critical => "critical",
            Self::NoAccess => "no-access",
            Self::Unreachable => "unreachable",
        }
    }
}

/// How urgent a remark is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Urgency {
    /// Act now.
    Critical,
    /// Act soon.
    Warning,
    /// Good to know.
    Info,
}

impl Urgency {
    /// Returns the word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Critical => "critical",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// One thing that is wrong, or good to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Remark {
    /// How urgent it is.
    pub severity: Urgency,
    /// What it is, in a word that does not change.
    pub id: &'static str,
    /// What it is, as a sentence without a full stop.
    pub message: String,
    /// What to do or run next.
    pub next: Vec<String>,
}

/// Remarks in the order in which they are worked through, those of one urgency.
const ORDER: &[&str] = &[
    "no-access",
    "no-answer",
    "corrupt",
    "mixed-clusters",
    "no-leader",
    "leaders-differ",
    "no-quorum",
    "only-learners",
    "nospace",
    "quota",
    "member-down",
    "no-more-failures",
    "apply-lag",
    "raft-lag",
    "alarm",
    "not-discovered",
    "member-not-reached",
    "url-of-another",
    "url-dead",
    "reads-refused",
    "slow",
    "fragmented",
    "quotas-differ",
    "versions",
    "downgrade",
    "member-says",
    "quota-assumed",
    "quota-default",
    "quota-large",
    "quota-off",
    "learner",
    "even",
    "not-asked",
];

/// Judges a view that is complete but for the verdict.
pub(super) fn judge(view: &View) -> (Verdict, Vec<Remark>) {
    let mut remarks = Remarks::default();
    availability(view, &mut remarks);
    alarms(view, &mut remarks);
    space(view, &mut remarks);
    progress(view, &mut remarks);
    addresses(view, &mut remarks);
    versions(view, &mut remarks);
    let mut remarks = remarks.0;
    remarks.sort_by_key(|remark| {
        let place = ORDER.iter().position(|id| *id == remark.id).unwrap_or(ORDER.len());
        (remark.severity, place, remark.message.clone())
    });
    let mut asked = view.members.iter().filter(|member| member.endpoint.is_some()).peekable();
    let is_kept_out = asked.peek().is_some() && asked.all(|member| member.barrier().is_some());
    let verdict = match remarks.first().map(|remark| remark.severity) {
        _ if is_kept_out => Verdict::NoAccess,
        _ if !view.members.iter().any(MemberView::answered) => Verdict::Unreachable,
        Some(Urgency::Critical) => Verdict::Critical,
        Some(Urgency::Warning) => Verdict::Warning,
        Some(Urgency::Info) | None => Verdict::Ok,
    };
    (verdict, remarks)
}

#[derive(Default)]
struct Remarks(Vec<Remark>);

impl Remarks {
    fn add(&mut self, severity: Urgency, id: &'static str, message: String, next: Vec<String>) {
        self.0.push(Remark { severity, id, message, next });
    }
    fn critical(&mut self, id: &'static str, message: String, next: Vec<String>) {
        self.add(Urgency::Critical, id, message, next);
    }
    fn warning(&mut self, id: &'static str, message: String, next: Vec<String>) {
        self.add(Urgency::Warning, id, message, next);
    }
    fn info(&mut self, id: &'static str, message: String) {
        self.add(Urgency::Info, id, message, Vec::new());
    }
}

impl View {
    fn answering(&self) -> impl Iterator<Item = &MemberView> {
        self.members.iter().filter(|member| member.answered())
    }

    /// Writes a command of a program that takes etcdctl's connection flags.
    pub(super) fn command(&self, program: &str, endpoint: Option<&str>, words: &[&str]) -> String {
        self.access.command(program, endpoint, words)
    }

    /// The endpoint to send to what changes the cluster: the leader's where it answered.
    fn main_endpoint(&self) -> Option<&str> {
        let leader = self.answering().find(|member| member.is_leader == Some(true));
        let voter = || self.answering().find(|member| member.is_learner != Some(true));
        leader.or_else(voter).and_then(|member| member.endpoint.as_deref())
    }

    /// Every endpoint that answered, with commas between.
    fn endpoints(&self) -> String {
        let all: Vec<&str> = self.answering().filter_map(|m| m.endpoint.as_deref()).collect();
        all.join(",")
    }

    fn ctl(&self, words: &[&str]) -> String {
        self.command("etcdctl", self.main_endpoint(), words)
    }
}

fn labels<'a>(members: impl IntoIterator<Item = &'a MemberView>) -> String {
    let all: Vec<String> = members.into_iter().map(MemberView::label).collect();
    all.join(", ")
}

fn availability(view: &View, remarks: &mut Remarks) {
    if !view.members.iter().any(MemberView::answered) {
        kept_out(view, Urgency::Critical, remarks);
        for member in &view.members {
            let Some(error) = member.error.as_ref().filter(|error| error.barrier.is_none()) else {
                continue;
            };
            let at = member.endpoint.clone().unwrap_or_default();
            let mut next: Vec<String> = error.hint.lines().map(str::to_owned).collect();
            if view.whole_cluster {
                next.push(
                    "members tell clients these addresses (--advertise-client-urls): where they \
                     cannot be reached from here, leave --cluster out"
                        .to_owned(),
                );
            }
            remarks.critical("no-answer", format!("{at}: {}", error.message), next);
        }
        return;
    }
    let clusters: BTreeMap<u64, Vec<String>> =
        view.answering().fold(BTreeMap::new(), |mut all: BTreeMap<_, Vec<_>>, member| {
            all.entry(member.cluster_id.unwrap_or(0)).or_default().push(member.label());
            all
        });
    if clusters.len() > 1 {
        let each = clusters.iter().map(|(id, who)| format!("{id:x}: {}", who.join(", ")));
        let each = each.collect::<Vec<_>>().join("; ");
        let message = format!("the endpoints belong to {} clusters ({each})", clusters.len());
        let next = vec![
            "give endpoints of one cluster; members that should be one cluster and \
            are not were started with different tokens or data"
                .to_owned(),
        ];
        remarks.critical("mixed-clusters", message, next);
    }
    if let Some(why) = &view.undiscovered {
        let message = format!("the members could not be discovered: {why}");
        let next = vec!["give the endpoints of members that vote".to_owned()];
        remarks.warning("not-discovered", message, next);
    }
    leadership(view, remarks);
    kept_out(view, Urgency::Warning, remarks);
    let is_tight = view.quorum.may_fail == Some(0);
    for member in view.members.iter().filter(|member| member.barrier().is_none()) {
        let Some(error) = &member.error else { continue };
        let at = member.endpoint.as_deref().unwrap_or_default();
        let name = member.name.as_deref().map(|name| format!("{name} ")).unwrap_or_default();
        let mut next: Vec<String> = error.hint.lines().map(str::to_owned).collect();
        if next.is_empty() {
            next.push(
                "look at the member's log on its host: journalctl -u etcd, or crictl logs".into(),
            );
        }
        let severity = if is_tight { Urgency::Critical } else { Urgency::Warning };
        let told = if view.whole_cluster { ", which it tells clients" } else { "" };
        let message = format!("{name}({at}{told}) does not answer: {}", error.message);
        remarks.add(severity, "member-down", message, next);
    }
    if is_tight && view.quorum.voters.is_some_and(|voters| voters > 1) {
        let (healthy, voters) = (view.quorum.healthy, view.quorum.voters.unwrap_or(0));
        let message = format!("a read goes through {healthy} of {voters} voters: no more may fail");
        let is_even_pair = healthy == voters;
        if is_even_pair {
            remarks.info("no-more-failures", message);
        } else {
            let next = vec!["bring the others back before anything else is changed".to_owned()];
            remarks.critical("no-more-failures", message, next);
        }
    }
    refused(view, remarks);
}

/// Says who keeps us out and why, once for all that do so in the same way.
fn kept_out(view: &View, severity: Urgency, remarks: &mut Remarks) {
    let mut alike: BTreeMap<&str, Vec<(&MemberView, &Trouble)>> = BTreeMap::new();
    for member in &view.members {
        if let Some(error) = member.error.as_ref().filter(|error| error.barrier.is_some()) {
            alike.entry(&error.likeness).or_default().push((member, error));
        }
    }
    for members in alike.values() {
        let Some((_, first)) = members.first() else { continue };
        let place = |member: &MemberView| {
            let at = member.endpoint.as_deref().unwrap_or_default();
            member.name.as_deref().map_or_else(|| at.to_owned(), |name| format!("{name} ({at})"))
        };
        let who: Vec<String> = members.iter().map(|(member, _)| place(member)).collect();
        let is_refusal = first.barrier == Some(Barrier::Refused);
        let does = match (is_refusal, members.len()) {
            (false, _) => "",
            (true, 1) => " refuses us",
            (true, _) => " refuse us",
        };
        let why: Vec<&str> = members.iter().map(|(_, error)| error.message.as_str()).collect();
        let message = match why.iter().all(|one| *one == first.message) {
            true => format!("{}{does}: {}", who.join(", "), first.message),
            false => {
                let each = who.iter().zip(why).map(|(who, why)| format!("{who}: {why}"));
                each.collect::<Vec<_>>().join("; ")
            }
        };
        let next = first.hint.lines().map(str::to_owned).collect();
        remarks.add(severity, "no-access", message, next);
    }
}

fn leadership(view: &View, remarks: &mut Remarks) {
    let leaderless: Vec<_> = view.answering().filter(|member| member.leader.is_none()).collect();
    if !leaderless.is_empty() {
        let message = format!("no leader is known to {}", labels(leaderless.iter().copied()));
        let next = vec![
            "look whether a majority of the members runs and reaches each other on their peer \
             ports"
                .to_owned(),
            view.command(
                "etcdkit",
                Some(&view.endpoints()),
                &["endpoint", "status", "-w", "table"],
            ),
        ];
        remarks.critical("no-leader", message, next);
    }
    // Leaders of one term; another term is an election that the slower ones have not seen yet.
    let mut terms: BTreeMap<(u64, u64), BTreeSet<u64>> = BTreeMap::new();
    for member in view.answering() {
        if let (Some(cluster), Some(term), Some(leader)) =
            (member.cluster_id, member.raft_term, member.leader)
        {
            terms.entry((cluster, term)).or_default().insert(leader);
        }
    }
    if let Some(leaders) = terms.values().find(|leaders| leaders.len() > 1) {
        let ids: Vec<String> = leaders.iter().map(|id| format!("{id:x}")).collect();
        let message = format!("members name different leaders of one term: {}", ids.join(", "));
        let next = vec!["run this again; if it stays, the members have different data".to_owned()];
        remarks.critical("leaders-differ", message, next);
    } else if terms.len() > 1 && view.cluster_id.is_some() {
        let message = "members are in different terms: an election is under way".to_owned();
        remarks.warning("leaders-differ", message, vec!["run this again in a few seconds".into()]);
    }
    if view.quorum.has_quorum == Some(false) {
        let quorum = &view.quorum;
        let of = quorum.voters.map(|voters| format!(" of {voters}")).unwrap_or_default();
        let message = format!(
            "there is no quorum: a linearizable read went through {}{of} voters, so that nothing \
             can be written",
            quorum.healthy
        );
        let next = vec![
            "bring members back until a majority runs; restore from a snapshot only if they are \
             lost for good: etcdkit snapshot restore --help"
                .to_owned(),
        ];
        remarks.critical("no-quorum", message, next);
    }
    if view.only_learners_answered() {
        let asked = view.members.iter().filter(|member| member.endpoint.is_some()).count();
        let did = if asked > view.answering().count() { "answered" } else { "was asked" };
        let message = format!("only a learner {did}; it cannot tell whether there is a quorum");
        let next = vec!["give the endpoints of members that vote".to_owned()];
        remarks.warning("only-learners", message, next);
    }
}

fn refused(view: &View, remarks: &mut Remarks) {
    let refused: Vec<_> = view
        .answering()
        .filter(|member| member.serves == Serves::Refused && member.leader.is_some())
        .collect();
    if !refused.is_empty() {
        let who = labels(refused.iter().copied());
        let message = format!("health not learned, since this user is not known to {who}");
        let next = vec!["give --user NAME, with the password in ETCDCTL_PASSWORD".to_owned()];
        remarks.warning("reads-refused", message, next);
    }
    for member in view.answering() {
        let why = member.reason.as_deref().filter(|_| {
            member.healthy == Some(false)
                && member.serves == Serves::No
                && member.leader.is_some()
                && view.quorum.has_quorum != Some(false)
        });
        if let Some(why) = why {
            let message = format!("{} does not serve: {why}", member.label());
            let next = vec!["look at the member's log on its host".to_owned()];
            remarks.warning("member-down", message, next);
        }
    }
}

fn alarms(view: &View, remarks: &mut Remarks) {
    let of = |kind: &str| -> Vec<String> {
        let raised = view.alarms.iter().filter(|alarm| alarm.alarm == kind);
        let name = |alarm: &super::AlarmView| match &alarm.name {
            Some(name) => name.clone(),
            None => format!("{:x}, which is not among the members", alarm.id),
        };
        raised.map(name).collect()
    };
    let corrupt = of("CORRUPT");
    if !corrupt.is_empty() {
        let message =
            format!("CORRUPT alarm of {}: members hold different data", corrupt.join(", "));
        let endpoints = view.endpoints();
        let next = vec![
            view.command("etcdkit", Some(&endpoints), &["consistency"]),
            "replace the member whose data differs; do not disarm before".to_owned(),
        ];
        remarks.critical("corrupt", message, next);
    }
    let full = of("NOSPACE");
    if !full.is_empty() {
        let message = format!(
            "NOSPACE alarm of {}: puts and leases are refused; reads and plain deletes still go",
            full.join(", ")
        );
        remarks.critical("nospace", message, reclaim(view, corrupt.is_empty()));
    }
    let untyped = of("NONE");
    if !untyped.is_empty() {
        let message = format!("an alarm without a type is raised, of {}", untyped.join(", "));
        // etcdctl's disarm takes every alarm away, that of damaged data too.
        let next = corrupt.is_empty().then(|| view.ctl(&["alarm", "disarm"]));
        remarks.warning("alarm", message, next.into_iter().collect());
    }
}

/// The command that drops old revisions, but for the newest where there are many.
fn compaction(view: &View) -> String {
    let newest = view.answering().filter_map(|member| member.revision).max().unwrap_or(0);
    let revision = if newest > KEPT_REVISIONS { newest - KEPT_REVISIONS } else { newest };
    let line = view.ctl(&["compaction", &revision.to_string()]);
    // How far it is compacted, no member says of itself.
    let joint = if line.contains(" # ") { ";" } else { " #" };
    format!("{line}{joint} unless it is compacted there already: then the next line")
}

/// The commands that get writes back: the one that does what is left to do, and the same by hand,
/// compact, defragment one by one with the leader last, disarm.
///
/// etcdctl's disarm takes every alarm away, so it is not told to anybody whose data differs.
fn reclaim(view: &View, may_disarm: bool) -> Vec<String> {
    let mut next = Vec::new();
    if may_disarm {
        next.push(view.command("etcdkit", Some(&view.endpoints()), &["reclaim"]));
    }
    next.push(compaction(view));
    next.extend(defrags(view, |_| true));
    next.push(match may_disarm {
        true => view.ctl(&["alarm", "disarm"]),
        false => {
            "then mend the CORRUPT alarm: a disarm now would take it away with the other".into()
        }
    });
    next
}

/// One command a member, the leader last: each one stands still meanwhile.
fn defrags(view: &View, of: impl Fn(&MemberView) -> bool) -> Vec<String> {
    let mut members: Vec<_> = view.answering().filter(|member| of(member)).collect();
    members.sort_by_key(|member| member.is_leader == Some(true));
    let command = |member: &&MemberView| {
        let endpoint = member.endpoint.as_deref()?;
        Some(view.command("etcdctl", Some(endpoint), &["defrag", "--command-timeout=60s"]))
    };
    members.iter().filter_map(command).collect()
}

fn size(bytes: i64) -> String {
    humansize::format_size(u64::try_from(bytes).unwrap_or(0), humansize::BINARY)
}

fn space(view: &View, remarks: &mut Remarks) {
    for member in view.answering() {
        let (Some(used), Some(quota)) = (member.quota_used_percent, member.quota) else { continue };
        let severity = match used {
            quota::CRITICAL_PERCENT.. => Urgency::Critical,
            quota::WARNING_PERCENT.. => Urgency::Warning,
            _ => continue,
        };
        let label = member.label();
        let free = member.reclaimable.unwrap_or(0);
        let message = format!(
            "{label} uses {used} % of its quota of {}; at 100 % puts are refused, and {} of \
             the file are free to give back",
            size(quota),
            size(free)
        );
        let mut next = defrags(view, |other| other.id == member.id);
        if quota::percent(free, quota) < 10 {
            next.insert(0, compaction(view));
            next.push("find what grows: etcdkit snapshot inspect".to_owned());
        }
        remarks.add(severity, "quota", message, next);
    }
    for member in view.answering() {
        let (size_bytes, in_use) =
            (member.db_size.unwrap_or(0), member.db_size_in_use.unwrap_or(0));
        if quota::is_fragmented(size_bytes, in_use) {
            let message = format!(
                "{} uses {} % of its {}: a defragmentation gives {} back",
                member.label(),
                member.in_use_percent.unwrap_or(0),
                size(size_bytes),
                size(member.reclaimable.unwrap_or(0))
            );
            let next = defrags(view, |other| other.id == member.id);
            remarks.warning("fragmented", message, next);
        }
    }
    let quotas: BTreeSet<Option<i64>> = view
        .answering()
        .filter(|member| member.quota_source != Some(Source::Assumed))
        .map(|member| member.quota)
        .collect();
    if quotas.len() > 1 {
        let each: Vec<String> =
            quotas.iter().map(|quota| quota.map_or_else(|| "no limit".to_owned(), size)).collect();
        let message = format!("members have different quotas: {}", each.join(", "));
        let next = vec!["give every member the same --quota-backend-bytes".to_owned()];
        remarks.warning("quotas-differ", message, next);
    }
    let with = |of: &dyn Fn(&MemberView) -> bool| -> Option<String> {
        let members: Vec<_> = view.answering().filter(|member| of(member)).collect();
        (!members.is_empty()).then(|| labels(members))
    };
    let is_assumed = |member: &MemberView| member.quota_source == Some(Source::Assumed);
    if let Some(who) = with(&is_assumed) {
        let message = format!("quota not told, the default of 2 GiB assumed: {who}");
        remarks.info("quota-assumed", message);
    }
    let is_default =
        |member: &MemberView| member.quota == Some(quota::DEFAULT_BYTES) && !is_assumed(member);
    if let Some(who) = with(&is_default) {
        remarks.info("quota-default", format!("the default quota of 2 GiB is used by: {who}"));
    }
    let is_large =
        |member: &MemberView| member.quota.is_some_and(|quota| quota > quota::ADVISED_BYTES_MAX);
    if let Some(who) = with(&is_large) {
        let message = format!("quota above the 8 GiB that etcd advises: {who}");
        remarks.info("quota-large", message);
    }
    if let Some(who) = with(&|member| member.quota.is_none()) {
        let message = format!("no quota, so that it grows until the disk is full: {who}");
        remarks.info("quota-off", message);
    }
}

fn progress(view: &View, remarks: &mut Remarks) {
    for member in view.answering() {
        let label = member.label();
        match member.apply_lag.unwrap_or(0) {
            lag if lag > APPLY_LAG_CRITICAL => {
                let message = format!(
                    "{label} has {lag} entries to apply and refuses requests until it has caught up"
                );
                let next = vec!["look at the load and the disk of its host".to_owned()];
                remarks.critical("apply-lag", message, next);
            }
            lag if lag >= LAG_WARNING => {
                let message = format!("{label} has {lag} entries to apply");
                let next = vec!["look at the load and the disk of its host".to_owned()];
                remarks.warning("apply-lag", message, next);
            }
            _ => {}
        }
        let lag = member.raft_lag.unwrap_or(0);
        if lag >= LAG_WARNING {
            let message = format!("{label} is {lag} entries behind the others");
            let next = vec![
                "look at its disk and its connection to the leader; change nothing on it while it \
                 catches up"
                    .to_owned(),
            ];
            remarks.warning("raft-lag", message, next);
        }
        if let Some(took) = member.read_ms.filter(|took| *took > SLOW_READ_MS) {
            let message = format!("a read through {label} took {took} ms");
            let next = vec!["look at the load and the disk of its host".to_owned()];
            remarks.warning("slow", message, next);
        }
        for text in &member.errors {
            let is_known = super::alarm_of(text).is_some() || text.contains("no leader");
            if !is_known {
                remarks.warning("member-says", format!("{label} says: {text}"), Vec::new());
            }
        }
    }
}

fn addresses(view: &View, remarks: &mut Remarks) {
    if !view.members.iter().any(MemberView::answered) {
        return;
    }
    let host = |url: &str| {
        let place = super::place(url);
        let host = place.rsplit_once(':').map_or(place.as_str(), |(host, _)| host).to_owned();
        host.starts_with("127.") || host == "localhost" || host == "[::1]" || host == "0.0.0.0"
    };
    let local = |url: &str| {
        if host(url) {
            "; that address leads every machine to itself: set --advertise-client-urls"
        } else {
            ""
        }
    };
    for member in &view.members {
        let label = member.label();
        for url in &member.not_at {
            let message = format!("nothing answers at {url}, which is {label}'s too{}", local(url));
            remarks.warning("url-dead", message, Vec::new());
        }
        // Another member answers where this one is said to be.
        for other in view.answering().filter(|other| other.id != member.id) {
            let stands_at = other.endpoint.iter().chain(&other.also_at);
            for at in stands_at {
                let place = super::place(at);
                let is_own = other.client_urls.iter().any(|url| super::place(url) == place);
                let is_claimed = member.client_urls.iter().any(|url| super::place(url) == place);
                if is_claimed && !is_own {
                    let message = format!(
                        "{label} tells clients {at}, where {} answers{}",
                        other.label(),
                        local(at)
                    );
                    remarks.warning("url-of-another", message, Vec::new());
                }
            }
        }
        if let (true, Some(at), Some(_)) = (view.whole_cluster, &member.endpoint, &member.error)
            && host(at)
        {
            let message = format!("{label} tells clients {at}{}", local(at));
            remarks.warning("url-dead", message, Vec::new());
        }
    }
    let unasked: Vec<_> = view.members.iter().filter(|member| member.endpoint.is_none()).collect();
    if unasked.is_empty() {
        return;
    }
    if view.whole_cluster {
        for member in unasked {
            let message = if member.client_urls.is_empty() {
                format!("{} has not started yet: it tells no client URL", member.label())
            } else {
                format!("{} was not reached at {}", member.label(), member.client_urls.join(", "))
            };
            let list = ["member", "list", "-w", "table"];
            let next = vec![view.command("etcdkit", view.main_endpoint(), &list)];
            remarks.warning("member-not-reached", message, next);
        }
        return;
    }
    let message = format!("not asked: {}; --cluster asks every member", labels(unasked));
    remarks.info("not-asked", message);
}

/// Splits a version into what counts for skew.
fn minor(version: &str) -> &str {
    version
        .match_indices('.')
        .nth(1)
        .map_or(version, |(at, _)| version.get(..at).unwrap_or(version))
}

fn versions(view: &View, remarks: &mut Remarks) {
    let mut versions: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for member in view.answering() {
        let version = member.version.as_deref().unwrap_or_default();
        versions.entry(version).or_default().push(member.label());
    }
    if versions.len() > 1 {
        let each: Vec<String> = versions
            .iter()
            .map(|(version, who)| format!("{version}: {}", who.join(", ")))
            .collect();
        let minors: BTreeSet<&str> = versions.keys().map(|version| minor(version)).collect();
        let message = format!("members run different versions ({})", each.join("; "));
        if minors.len() > 1 {
            let next = vec!["finish the upgrade: one member after the other".to_owned()];
            remarks.warning("versions", message, next);
        } else {
            remarks.info("versions", message);
        }
    }
    let targets: BTreeSet<&str> =
        view.answering().filter_map(|member| member.downgrade.as_deref()).collect();
    if !targets.is_empty() {
        let targets: Vec<&str> = targets.into_iter().collect();
        let message = format!("a downgrade to {} is under way", targets.join(", "));
        let next = vec![view.ctl(&["downgrade", "cancel"]) + " # to stay"];
        remarks.warning("downgrade", message, next);
    }
    let learners: Vec<_> =
        view.members.iter().filter(|member| member.is_learner == Some(true)).collect();
    if !learners.is_empty() {
        remarks.info("learner", format!("learner, which does not vote: {}", labels(learners)));
    }
    if let Some(voters) = view.quorum.voters.filter(|voters| *voters > 0 && voters % 2 == 0) {
        let message =
            format!("{voters} members vote: no more of them may fail than of {}", voters - 1);
        remarks.info("even", message);
    }
}
