//! What is to be done next, decided from one look at the cluster: order, gain, stall, gate.
//!
//! Nothing here asks or waits: the same look gives the same answer.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use super::report::Size;
use super::rule::{self, Figures, Rule};
use crate::ops::cluster::{MemberView, View, quota};

/// What a member is in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It does not vote.
    Learner,
    /// It votes.
    Follower,
    /// It leads.
    Leader,
}

impl Role {
    /// Takes what a member says of itself.
    #[must_use]
    pub fn of(member: &MemberView) -> Self {
        match (member.is_learner, member.is_leader) {
            (Some(true), _) => Self::Learner,
            (_, Some(true)) => Self::Leader,
            _ => Self::Follower,
        }
    }

    /// Returns the word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Learner => "learner",
            Self::Follower => "follower",
            Self::Leader => "leader",
        }
    }
}

/// What a member must give back to be worth its stall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinGain {
    /// [`GAIN_PERCENT_MIN`] of its file, and [`GAIN_BYTES_MIN`]. Beside a rule: whatever makes
    /// an end of what the rule names, else [`RULE_GAIN_PERCENT_MIN`].
    #[default]
    Worthwhile,
    /// So many bytes.
    Bytes(i64),
    /// So many percent of its file.
    Percent(i64),
    /// Nothing: every member is done.
    Nothing,
}

impl MinGain {
    /// Reads what a person writes: bytes, with a unit as a rule has them, or percent, as `10%`.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Some(percent) = text.strip_suffix('%') {
            let number = percent.trim().parse::<i64>().ok().filter(|p| (0..=100).contains(p));
            return number.map(Self::Percent).ok_or_else(|| format!("{text} is no percentage"));
        }
        rule::bytes(text).map(Self::Bytes)
    }
}

/// Bytes below which a gain is not worth it unless told.
pub const GAIN_BYTES_MIN: i64 = 1 << 20;
/// Percent of the file below which a gain is not worth it unless told.
pub const GAIN_PERCENT_MIN: i64 = 10;
/// Percent of the file below which a member is not done for a rule that would hold afterwards as
/// well, as `dbQuotaUsage > 0.8` of a database full of living data: each run would stall it again.
pub const RULE_GAIN_PERCENT_MIN: i64 = 1;
/// Entries that a member may be behind and still count as caught up: what is written while the
/// members are asked makes some.
pub const LAG_MAX: u64 = 1000;
/// Longest stall of a whole cluster that nobody is asked for: kubelets and leader elections of a
/// control plane wait ten seconds and more.
pub const STALL_MAX: Duration = Duration::from_secs(8);
/// Bytes in use that a member copies in a second, until one has shown. Measured were 118 MB/s and
/// more with etcd 3.5 and 3.6 on a fast disk of two busy cores; others' disks are slower.
pub const BYTES_A_SECOND: u64 = 50_000_000;
/// A member with fewer bytes in use shows nothing about the pace.
const PACE_BYTES_MIN: u64 = 8 << 20;

/// Why a member is not worth it; `None` where it is.
#[must_use]
pub fn not_worth(member: &MemberView, min_gain: MinGain, rule: Option<&Rule>) -> Option<String> {
    if let Some(rule) = rule.filter(|rule| !rule.holds(&Figures::of(member))) {
        return Some(format!("the rule does not hold: {}", rule.text()));
    }
    let size = Size::of(member);
    let (gain, percent) = (size.gain(), quota::percent(size.gain(), size.db_bytes));
    let too_little = match (min_gain, rule) {
        (MinGain::Worthwhile, None) => gain < GAIN_BYTES_MIN || percent < GAIN_PERCENT_MIN,
        (MinGain::Worthwhile, Some(rule)) => {
            if percent >= RULE_GAIN_PERCENT_MIN || !rule.holds(&Figures::of(member).packed()) {
                return None;
            }
            return Some(format!(
                "the rule would hold afterwards as well: it would give back {gain} bytes, \
                 {percent} % of its file; --force defragments it all the same"
            ));
        }
        (MinGain::Bytes(bytes), _) => gain < bytes,
        (MinGain::Percent(wanted), _) => percent < wanted,
        (MinGain::Nothing, _) => false,
    };
    too_little.then(|| format!("it would give back {gain} bytes, {percent} % of its file"))
}

/// Returns whose turn is next of those that are left: learners, followers, the leader, each in the
/// order of the view. One that is no member any more comes first.
#[must_use]
pub fn next(view: &View, left: &[u64]) -> Option<u64> {
    let rank = |id: &u64| {
        let at = view.members.iter().position(|member| member.id == Some(*id));
        let role = at.and_then(|at| view.members.get(at)).map(Role::of);
        (role, at)
    };
    left.iter().copied().min_by_key(rank)
}

/// Why a member's turn cannot begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bar {
    /// CORRUPT is raised.
    Corrupt(String),
    /// It is no member any more.
    Gone(String),
    /// Its own trouble.
    Own(String),
    /// Other members' troubles; whether there is no majority without those and this one.
    Other(String, bool),
    /// It is behind, which mends itself.
    OwnLag(String),
    /// Others are behind, which mends itself.
    Behind(String),
}

impl Bar {
    /// Returns what is wrong with other members; `None` where it is something else.
    #[must_use]
    pub fn of_others(&self) -> Option<&str> {
        match self {
            Self::Other(what, _) | Self::Behind(what) => Some(what),
            _ => None,
        }
    }
}

/// Decides whether a member's turn may begin: returns what stands in the way, the worst first; an
/// empty list where nothing does. NOSPACE counts for nothing: it is why this is done.
#[must_use]
pub fn gate(view: &View, id: u64) -> Vec<Bar> {
    if let Some(alarm) = view.alarms.iter().find(|alarm| alarm.alarm == "CORRUPT") {
        let who = alarm.name.clone().unwrap_or_else(|| format!("{:x}", alarm.id));
        return vec![Bar::Corrupt(format!("CORRUPT is raised for {who}"))];
    }
    let Some(own) = view.members.iter().find(|member| member.id == Some(id)) else {
        return vec![Bar::Gone(format!("{id:x} is no member any more"))];
    };
    let others = || view.members.iter().filter(|member| member.id != Some(id));
    let mut bars = Vec::new();
    if is_sick(own) {
        bars.push(Bar::Own(sickness(own)));
    }
    let sick: Vec<String> = others().filter(|member| is_sick(member)).map(sickness).collect();
    if !sick.is_empty() {
        // A learner's stall takes no vote away.
        let lost = own.is_learner != Some(true) && !can_be_spared(view, id);
        bars.push(Bar::Other(sick.join("; "), lost));
    }
    bars.extend(lag(own).map(Bar::OwnLag));
    let behind: Vec<String> = others().filter_map(lag).collect();
    if !behind.is_empty() {
        bars.push(Bar::Behind(behind.join("; ")));
    }
    bars
}

/// Tells whether a member neither serves nor is on its way to.
fn is_sick(member: &MemberView) -> bool {
    let catches_up = member.leader.is_some() && is_behind(member);
    !member.serves() && !catches_up
}

fn sickness(member: &MemberView) -> String {
    let reason = member.reason.clone().unwrap_or_else(|| match member.is_unstarted() {
        true => "it was added and has not started".to_owned(),
        false => "it was not reached".to_owned(),
    });
    format!("{}: {reason}", member.label())
}

/// Tells whether a member is behind; one that has much to apply refuses reads meanwhile.
fn is_behind(member: &MemberView) -> bool {
    member.answered() && [member.raft_lag, member.apply_lag].iter().flatten().any(|l| *l > LAG_MAX)
}

/// Says how far a member is behind; `None` where it is not, or is sick.
fn lag(member: &MemberView) -> Option<String> {
    let lag = member.raft_lag.max(member.apply_lag).filter(|_| is_behind(member))?;
    (!is_sick(member)).then(|| format!("{} is {lag} entries behind", member.label()))
}

/// Tells whether the other voters that serve and have caught up are a majority.
#[must_use]
pub fn can_be_spared(view: &View, id: u64) -> bool {
    let others = view.members.iter().filter(|member| member.id != Some(id));
    let votes = others.filter(|member| member.is_learner != Some(true));
    let able = votes.filter(|member| member.serves() && !is_behind(member)).count();
    view.quorum.needed.is_some_and(|needed| able >= needed)
}

/// Returns who is to lead instead: a voter that serves and has caught up, rather one whose turn is
/// over, and of those the one that is furthest.
#[must_use]
pub fn successor(view: &View, leader: u64, left: &[u64]) -> Option<u64> {
    let left: BTreeSet<u64> = left.iter().copied().collect();
    let may = |member: &&MemberView| {
        member.id != Some(leader)
            && member.is_learner == Some(false)
            && member.serves()
            && member.raft_lag.max(member.apply_lag).is_some_and(|lag| lag <= LAG_MAX)
    };
    let voters = view.members.iter().filter(may);
    let best = voters.min_by_key(|member| {
        let is_left = member.id.is_some_and(|id| left.contains(&id));
        (is_left, member.raft_lag.max(member.apply_lag))
    });
    best.and_then(|member| member.id)
}

/// How fast members have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    bytes_a_second: u64,
    is_measured: bool,
}

impl Default for Pace {
    fn default() -> Self {
        Self { bytes_a_second: BYTES_A_SECOND, is_measured: false }
    }
}

impl Pace {
    /// Predicts for how long a member answers nothing.
    #[must_use]
    pub fn stall(&self, size: Size) -> Duration {
        let bytes = u64::try_from(size.in_use_bytes).unwrap_or(0);
        let ms = bytes.saturating_mul(1000) / self.bytes_a_second.max(1);
        Duration::from_millis(ms)
    }

    /// Learns from a member that is done; the slowest one counts.
    pub fn learn(&mut self, size: Size, took: Duration) {
        let bytes = u64::try_from(size.in_use_bytes).unwrap_or(0);
        if bytes < PACE_BYTES_MIN {
            return;
        }
        let ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX).max(1);
        let seen = (bytes.saturating_mul(1000) / ms).max(1);
        let slowest = if self.is_measured { self.bytes_a_second.min(seen) } else { seen };
        (self.bytes_a_second, self.is_measured) = (slowest, true);
    }
}

/// What is known of defragmentation in a version of etcd that was mended later.
#[must_use]
pub fn known_faults(version: &str) -> Vec<String> {
    let mut numbers = version.split(['.', '-', '+']).map(|part| part.parse::<u32>().ok());
    let (Some(Some(major)), Some(Some(minor)), Some(Some(patch))) =
        (numbers.next(), numbers.next(), numbers.next())
    else {
        return Vec::new();
    };
    FAULTS
        .iter()
        .filter(|(fixed, _)| {
            fixed.iter().any(|(of, patch_of)| (major, minor) == (3, *of) && patch < *patch_of)
        })
        .map(|(fixed, what)| {
            let mended = fixed.iter().find(|(of, _)| *of == minor).map_or(0, |(_, patch)| *patch);
            format!("etcd {version} {what} (mended in 3.{minor}.{mended}); update it first")
        })
        .collect()
}

/// Minor versions with the first patch that is mended, and what was wrong. From etcd's CHANGELOG:
/// pull requests 14733, 20650 (20653, 20659) and 18842 (18843), read in November 2026.
const FAULTS: [(&[(u32, u32)], &str); 3] = [
    (&[(5, 6)], "may come to another revision than its peers if it dies while it defragments"),
    (
        &[(4, 38), (5, 23), (6, 5)],
        "may damage its data if a snapshot from the leader comes while it defragments",
    ),
    (&[(4, 35), (5, 17)], "ends in a panic if the disk is full while it defragments"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::cluster::{AlarmView, Gathered};

    fn member(name: &str, id: u64) -> MemberView {
        let mut member = MemberView::default().serving(true);
        member.version = Some("3.6.16".into());
        (member.id, member.name) = (Some(id), Some(name.into()));
        member.endpoint = Some(format!("http://{name}:2379"));
        (member.is_leader, member.is_learner) = (Some(false), Some(false));
        (member.db_size, member.db_size_in_use) = (Some(100 << 20), Some(50 << 20));
        (member.raft_lag, member.apply_lag) = (Some(0), Some(0));
        member
    }

    /// Three voters of which `m1` leads, and a learner.
    fn view() -> View {
        let mut view = View::of(&Gathered::default());
        view.members = ["m1", "m2", "m3", "m4"]
            .into_iter()
            .zip(1..)
            .map(|(name, id)| member(name, id))
            .collect();
        view.members[0].is_leader = Some(true);
        view.members[3].is_learner = Some(true);
        view.quorum.needed = Some(2);
        view
    }

    #[test]
    fn learners_come_first_and_the_leader_last() {
        let mut view = view();
        let mut left = vec![1, 2, 3, 4];
        let mut order = Vec::new();
        while let Some(id) = next(&view, &left) {
            left.retain(|other| *other != id);
            order.push(id);
        }
        assert_eq!(order, [4, 2, 3, 1]);
        // Whoever leads now is last, and one that has left is first.
        view.members[0].is_leader = Some(false);
        view.members[1].is_leader = Some(true);
        assert_eq!(next(&view, &[1, 2]), Some(1));
        assert_eq!(next(&view, &[2, 9]), Some(9));
        assert_eq!(next(&view, &[]), None);
    }

    #[test]
    fn a_gain_must_be_worth_it() {
        let sized = |size: i64, in_use: i64| {
            let mut member = member("m", 1);
            (member.db_size, member.db_size_in_use) = (Some(size), Some(in_use));
            member
        };
        let worth = |size, in_use, min_gain| not_worth(&sized(size, in_use), min_gain, None);
        assert_eq!(worth(100 << 20, 50 << 20, MinGain::Worthwhile), None);
        assert!(worth(100 << 20, 91 << 20, MinGain::Worthwhile).is_some(), "9 %");
        assert!(worth(1 << 20, 4096, MinGain::Worthwhile).is_some(), "less than 1 MiB");
        let why = worth(1 << 20, 1 << 19, MinGain::Bytes(600_000)).unwrap();
        assert_eq!(why, "it would give back 524288 bytes, 50 % of its file");
        assert_eq!(worth(1 << 20, 1 << 19, MinGain::Bytes(500_000)), None);
        assert_eq!(worth(1 << 20, 1 << 19, MinGain::Percent(50)), None);
        assert!(worth(1 << 20, 1 << 19, MinGain::Percent(51)).is_some());
        assert_eq!(worth(0, 0, MinGain::Nothing), None);
        let rule = Rule::parse("dbSizeFree > 10KiB").unwrap();
        let ask = |min| not_worth(&sized(1 << 20, 1 << 19), min, Some(&rule));
        assert_eq!(ask(MinGain::Worthwhile), None, "a rule stands instead of the default");
        assert!(ask(MinGain::Percent(51)).is_some(), "and beside what is given");
        assert!(not_worth(&sized(5, 5), MinGain::Nothing, Some(&rule)).is_some());
    }

    #[test]
    fn a_rule_that_nothing_makes_an_end_of_stalls_nobody_again_and_again() {
        let sized = |in_use: i64| {
            let mut member = member("m", 1);
            member.quota = Some(100 << 20);
            (member.db_size, member.db_size_in_use) = (Some(90 << 20), Some(in_use));
            member
        };
        let ask = |in_use, rule, min_gain| {
            not_worth(&sized(in_use), min_gain, Some(&Rule::parse(rule).unwrap()))
        };
        let usage = "dbQuotaUsage > 0.8 || dbSizeFree > 200MiB";
        let full = (90 << 20) - 100_000;
        let why = ask(full, usage, MinGain::Worthwhile).expect("it is pointless");
        assert!(why.contains("hold afterwards as well") && why.contains("100000 bytes"), "{why}");
        assert!(why.contains("--force"), "{why}");
        // One percent is something, and what makes an end of it is done for less.
        assert_eq!(ask(89 << 20, usage, MinGain::Worthwhile), None);
        assert_eq!(ask(full, "dbSizeFree > 90000", MinGain::Worthwhile), None);
        for told in [MinGain::Nothing, MinGain::Bytes(0), MinGain::Percent(0)] {
            assert_eq!(ask(full, usage, told), None, "{told:?}");
        }
    }

    #[test]
    fn gains_are_written_as_bytes_or_percent() {
        for (text, expected) in [
            ("10%", Some(MinGain::Percent(10))),
            (" 0 %", Some(MinGain::Percent(0))),
            ("101%", None),
            ("-1%", None),
            ("5", Some(MinGain::Bytes(5))),
            ("1.5MiB", Some(MinGain::Bytes(3 << 19))),
            ("2 GB", Some(MinGain::Bytes(2_000_000_000))),
            ("-5", None),
            ("MiB", None),
            ("5XB", None),
            ("", None),
            ("1e400", None),
            ("99999999999999999999", None),
        ] {
            assert_eq!(MinGain::parse(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn only_nospace_is_passed_over() {
        let mut view = view();
        let raise = |alarm| vec![AlarmView { id: 2, name: Some("m2".into()), alarm }];
        view.alarms = raise("NOSPACE");
        assert_eq!(gate(&view, 2), []);
        view.alarms = raise("CORRUPT");
        let corrupt = || [Bar::Corrupt("CORRUPT is raised for m2".into())];
        assert_eq!(gate(&view, 3), corrupt());
        view.members[2] = member("m3", 3).serving(false);
        assert_eq!(gate(&view, 3), corrupt(), "before all else");
    }

    #[test]
    fn a_sick_member_bars_the_others() {
        let mut view = view();
        view.members[2] = member("m3", 3).serving(false);
        view.members[2].reason = Some("connection refused".into());
        let why = || "m3: connection refused".to_owned();
        assert_eq!(gate(&view, 2), [Bar::Other(why(), true)], "m1 alone is no majority");
        assert_eq!(gate(&view, 3), [Bar::Own(why())]);
        assert_eq!(gate(&view, 4), [Bar::Other(why(), false)], "a learner takes no vote");
        view.members.push(member("m5", 5));
        assert_eq!(gate(&view, 2), [Bar::Other(why(), false)]);
        assert_eq!(gate(&view, 9), [Bar::Gone("9 is no member any more".into())]);
    }

    #[test]
    fn who_is_behind_is_waited_for() {
        let mut view = view();
        view.members[3].apply_lag = Some(LAG_MAX + 1);
        let why = || "m4 is 1001 entries behind".to_owned();
        assert_eq!(gate(&view, 2), [Bar::Behind(why())]);
        assert_eq!(gate(&view, 4), [Bar::OwnLag(why())]);
        // With much to apply it refuses reads, and says why: it is behind and not sick.
        let mut lagging = member("m4", 4).serving(false);
        lagging.apply_lag = Some(LAG_MAX + 1);
        view.members[3] = lagging;
        assert_eq!(gate(&view, 2), [Bar::Behind(why())]);
        view.members[3].leader = None;
        assert!(matches!(gate(&view, 2).as_slice(), [Bar::Other(..)]), "cut off, it does not mend");
        view.members[3] = member("m4", 4);
        view.members[3].apply_lag = Some(LAG_MAX);
        assert_eq!(gate(&view, 2), []);
    }

    #[test]
    fn who_is_behind_is_told_beside_who_is_sick_and_counts_for_no_majority() {
        let mut view = view();
        view.members.push(member("m5", 5));
        view.members.push(member("m6", 6));
        view.quorum.needed = Some(3);
        assert!(can_be_spared(&view, 2));
        view.members[2] = member("m3", 3).serving(false);
        view.members[4].raft_lag = Some(LAG_MAX + 1);
        let sick = Bar::Other("m3: it was not reached".into(), true);
        let behind = Bar::Behind("m5 is 1001 entries behind".into());
        assert_eq!(gate(&view, 2), [sick, behind], "m1 and m6 are no majority");
        assert!(!can_be_spared(&view, 2));
        view.members[4].raft_lag = Some(LAG_MAX);
        assert!(can_be_spared(&view, 2));
    }

    #[test]
    fn the_leadership_goes_to_who_is_done() {
        let mut view = view();
        assert_eq!(successor(&view, 1, &[1, 2]), Some(3));
        assert_eq!(successor(&view, 1, &[1]), Some(2), "the first of equals");
        view.members[1].raft_lag = Some(5);
        assert_eq!(successor(&view, 1, &[1]), Some(3));
        view.members[2] = member("m3", 3).serving(false);
        assert_eq!(successor(&view, 1, &[1]), Some(2));
        view.members[1].raft_lag = Some(LAG_MAX + 1);
        assert_eq!(successor(&view, 1, &[1]), None, "a learner never leads");
    }

    #[test]
    fn the_slowest_member_counts() {
        let size = Size { db_bytes: 2_000_000_000, in_use_bytes: 1_000_000_000 };
        let mut pace = Pace::default();
        assert_eq!(pace.stall(size), Duration::from_secs(20));
        pace.learn(size, Duration::from_secs(5));
        assert_eq!(pace.stall(size), Duration::from_secs(5));
        pace.learn(size, Duration::from_secs(10));
        pace.learn(size, Duration::from_secs(1));
        assert_eq!(pace.stall(size), Duration::from_secs(10));
        pace.learn(Size { db_bytes: 0, in_use_bytes: 100 }, Duration::from_secs(9));
        pace.learn(Size { db_bytes: 0, in_use_bytes: -1 }, Duration::ZERO);
        assert_eq!(pace.stall(size), Duration::from_secs(10));
        pace.learn(Size { db_bytes: 0, in_use_bytes: i64::MAX }, Duration::ZERO);
        assert!(pace.stall(Size { db_bytes: 0, in_use_bytes: i64::MAX }) > Duration::ZERO);
    }

    #[test]
    fn faults_are_known_by_version() {
        for (version, count) in [
            ("3.5.5", 3),
            ("3.5.6", 2),
            ("3.5.17", 1),
            ("3.5.23", 0),
            ("3.6.4", 1),
            ("3.6.4-rc.0", 1),
            ("3.6.5", 0),
            ("3.7.0", 0),
            ("3.4.34", 2),
            ("4.5.1", 0),
            ("", 0),
            ("3.5", 0),
            ("x.y.z", 0),
        ] {
            assert_eq!(known_faults(version).len(), count, "{version}");
        }
        assert!(known_faults("3.6.4")[0].ends_with("(mended in 3.6.5); update it first"));
    }
}
