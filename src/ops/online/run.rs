//! The run: members one after the other, each after a fresh look at all.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::Options;
use super::look::Lookout;
use super::plan::{self, Bar, Pace, Role, STALL_MAX};
use super::report::{LeaderMove, MemberReport, Outcome, Report, Size, Stopped};
use super::room::Room;
use super::turn::{self, End};
use crate::live::{Cluster, Settings};
use crate::ops::cluster::{Access, MemberView, View, attend};
use crate::ops::lock::Lock;
use crate::ops::{Error, ExitCode, Progress, admin, audit};

/// Time between two looks at a member that is waited for.
const TICK: Duration = Duration::from_millis(200);
/// How long members may take to see a new leader: an election's time and more.
const ELECTION: Duration = Duration::from_secs(15);
/// How long members may be unhealthy before that counts.
const HICCUP: Duration = Duration::from_secs(3);
/// Leaders that are moved in one run: one that comes back again and again is wanted there.
const MOVES_MAX: usize = 3;

/// Runs it, under a lock that is held, or under one of its own.
pub(super) fn run(
    options: &Options,
    held: Option<&Lock>,
    progress: &dyn Progress,
) -> Result<Report, Error> {
    admin::ask(&options.settings, "defragment members", progress)?;
    // Before the members are looked at: one that another run has at work answers late.
    let own = match held {
        None if !options.dry_run => {
            Some(Lock::take(&options.settings, "defrag", &options.audit_log, progress)?)
        }
        _ => None,
    };
    let mut lookout = Lookout::new(options.settings.clone());
    let view = lookout.look(progress)?;
    let members = targets(options, &view)?;
    let access = Access::of(&options.settings);
    let left = members.iter().map(|member| member.id).collect();
    let cluster_id = view.cluster_id.map(|id| format!("{id:x}"));
    let report = Report {
        version: 1,
        dry_run: options.dry_run,
        cluster_id,
        members,
        leader_moves: Vec::new(),
        gained_bytes: 0,
        warnings: own.iter().flat_map(Lock::warnings).cloned().collect(),
        equivalent: Vec::new(),
        stopped: None,
    };
    let lock = held.or(own.as_ref());
    let (pace, unseen) = (Pace::default(), BTreeSet::new());
    let mut run = Run {
        options,
        progress,
        lookout,
        lock,
        access,
        report,
        left,
        pace,
        unseen,
        order: vec![],
        seen: None,
        waited_for: BTreeSet::new(),
    };
    run.announce(&view);
    let ended = run.all(view);
    run.finish(ended, held.is_none())
}

struct Run<'a> {
    options: &'a Options,
    progress: &'a dyn Progress,
    lookout: Lookout,
    lock: Option<&'a Lock>,
    access: Access,
    report: Report,
    /// Whose turn has not come.
    left: Vec<u64>,
    pace: Pace,
    /// Members whose disks were not seen.
    unseen: BTreeSet<String>,
    /// Ids in the order of their turns.
    order: Vec<u64>,
    /// What was seen before the turn that is under way.
    seen: Option<View>,
    /// Members whose turn others were waited for long enough.
    waited_for: BTreeSet<u64>,
}

/// What a member's turn came to.
enum Next {
    /// The next one may begin.
    Go,
    /// Roles have changed: all is decided anew.
    Again,
}

/// What came of waiting before a turn.
enum Gate {
    /// It may begin.
    Open,
    /// What was seen before is old: all is decided anew.
    Waited,
    /// Not this member, as it is down or sick and others are not to wait for it; why.
    PassedOver(String),
}

impl Run<'_> {
    /// Says what would be done with etcdctl.
    fn announce(&self, view: &View) {
        for line in self.commands(view) {
            self.progress.note(&format!("same as: {line}"));
        }
    }

    /// Writes the commands for those that are left and worth it, in order.
    fn commands(&self, view: &View) -> Vec<String> {
        let mut left = self.left.clone();
        let mut lines = Vec::new();
        while let Some(id) = plan::next(view, &left) {
            let before = left.clone();
            left.retain(|other| *other != id);
            let member = view.members.iter().find(|member| member.id == Some(id));
            let Some(member) = member.filter(|member| self.skip(member).is_none()) else {
                continue;
            };
            if Role::of(member) == Role::Leader
                && self.options.move_leader
                && let Some(to) = plan::successor(view, id, &before)
            {
                lines.push(self.move_command(member, to));
            }
            lines.push(self.defrag_command(&self.endpoint(member)));
        }
        lines
    }

    fn defrag_command(&self, endpoint: &str) -> String {
        let member = self.report.members.iter().find(|member| member.endpoint == endpoint);
        let stall = member.map_or(Duration::ZERO, |member| self.pace.stall(member.before));
        let limit = format!("--command-timeout={}s", turn::limit(stall).as_secs());
        self.access.command("etcdctl", Some(endpoint), &[&limit, "defrag"])
    }

    fn move_command(&self, leader: &MemberView, to: u64) -> String {
        let to = format!("{to:x}");
        self.access.command("etcdctl", Some(&self.endpoint(leader)), &["move-leader", &to])
    }

    /// Where a member is asked: where it was given, else where it answered.
    fn endpoint(&self, member: &MemberView) -> String {
        let given = self.report.members.iter().find(|report| member.id == Some(report.id));
        let answered = given.map(|report| report.endpoint.clone()).or(member.endpoint.clone());
        answered.unwrap_or_default()
    }

    fn settings(&self) -> &Settings {
        self.lookout.settings()
    }

    fn report_of(&mut self, id: u64) -> Option<&mut MemberReport> {
        self.report.members.iter_mut().find(|member| member.id == id)
    }

    fn done(&self) -> usize {
        self.report.count(Outcome::Done)
    }

    fn over(&mut self, id: u64) {
        self.left.retain(|other| *other != id);
        if !self.order.contains(&id) {
            self.order.push(id);
        }
    }

    fn warn(&mut self, warning: String) {
        if !self.report.warnings.contains(&warning) {
            self.progress.note(&format!("warning: {warning}"));
            self.report.warnings.push(warning);
        }
    }

    /// Why a member's turn is over before it begins.
    fn skip(&self, member: &MemberView) -> Option<String> {
        if Role::of(member) == Role::Learner {
            return Some("etcd defragments no learner while it runs; promoted, it does".into());
        }
        if !member.answered() {
            return None;
        }
        plan::not_worth(member, self.options.min_gain, self.options.rule.as_ref())
    }

    /// An error of a run that has done this or that: some members are done, or none.
    fn partial(&self, none: ExitCode, message: &str) -> Error {
        let all = self.report.members.len();
        let (code, so_far) = match self.done() {
            0 => (none, "no member was defragmented".to_owned()),
            done => (ExitCode::Partial, format!("{done} of {all} members are defragmented")),
        };
        Error::new(code, format!("{message}; {so_far}"))
    }

    fn all(&mut self, first: View) -> Result<(), Error> {
        let mut kept = Some(first);
        while !self.left.is_empty() {
            self.may_go_on()?;
            let view = match kept.take() {
                Some(view) => view,
                None => self.lookout.look(self.progress).map_err(|error| self.told(error))?,
            };
            let Some(id) = plan::next(&view, &self.left) else { break };
            self.seen = Some(view.clone());
            if let Next::Again = self.turn(&view, id)? {
                continue;
            }
            self.over(id);
            if self.options.dry_run {
                kept = Some(view);
            }
        }
        Ok(())
    }

    fn may_go_on(&self) -> Result<(), Error> {
        if self.progress.stopped() {
            return Err(self.told(Error::interrupted()));
        }
        self.lock.map_or(Ok(()), Lock::check)
    }

    /// Says how far it has come where it was interrupted.
    fn told(&self, error: Error) -> Error {
        let has_changed = self.done() > 0 || !self.report.leader_moves.is_empty();
        if error.code != ExitCode::Interrupted || !has_changed {
            return error;
        }
        let message = format!(
            "interrupted between two members; {} of {} are defragmented",
            self.done(),
            self.report.members.len()
        );
        Error::new(ExitCode::Interrupted, message)
    }

    fn turn(&mut self, view: &View, id: u64) -> Result<Next, Error> {
        let member = view.members.iter().find(|member| member.id == Some(id));
        if let Some(bar @ Bar::Corrupt(_)) = plan::gate(view, id).first() {
            return Err(self.barred(bar, id));
        }
        let Some(member) = member else {
            self.set(id, Outcome::Skipped, "it is no member any more");
            return Ok(Next::Go);
        };
        let (role, size) = (Role::of(member), Size::of(member));
        let stall = self.pace.stall(size);
        if member.answered()
            && let Some(report) = self.report_of(id)
        {
            (report.role, report.before) = (role, size);
            report.predicted_gain_bytes = size.gain();
            report.predicted_stall_ms = ms(stall);
        }
        if let Some(why) = self.skip(member) {
            self.set(id, Outcome::Skipped, &why);
            self.progress.note(&format!("{} is skipped: {why}", member.label()));
            return Ok(Next::Go);
        }
        match self.wait_at_gate(view, id)? {
            Gate::Open => {}
            Gate::Waited => return Ok(Next::Again),
            Gate::PassedOver(why) => {
                self.warn(format!("passed over: {why}"));
                let label = member.label();
                let rest = why.strip_prefix(&label).unwrap_or(&why);
                let why = match rest.strip_prefix(": ") {
                    Some(rest) => rest.to_owned(),
                    None => format!("it{rest}"),
                };
                self.set(id, Outcome::Down, &why);
                return Ok(Next::Go);
            }
        }
        for fault in plan::known_faults(member.version.as_deref().unwrap_or_default()) {
            self.warn(fault);
        }
        self.check_room(id, member)?;
        if role == Role::Leader && self.lead_on(view, member, stall)? {
            return Ok(Next::Again);
        }
        if role == Role::Follower && !plan::can_be_spared(view, id) {
            self.bear(member, stall, "is one without which there is no majority")?;
        }
        let endpoint = self.endpoint(member);
        self.report.equivalent.push(self.defrag_command(&endpoint));
        if self.options.dry_run {
            return Ok(Next::Go);
        }
        self.defragment(id, member, &endpoint, size, stall)
    }

    fn set(&mut self, id: u64, result: Outcome, why: &str) {
        if let Some(report) = self.report_of(id) {
            report.result = result;
            report.why = Some(why.to_owned());
        }
    }

    /// Waits at the gate as long as what bars it may mend itself: who is behind for as long as
    /// told, who is sick for a moment, since an election or a slow disk may be all.
    fn wait_at_gate(&mut self, view: &View, id: u64) -> Result<Gate, Error> {
        let began = Instant::now();
        let (is_dry, accepted) = (self.options.dry_run, self.options.accept_unhealthy);
        let mut bars = plan::gate(view, id);
        let mut has_waited = false;
        loop {
            let (mut pending, mut told) = (None, Vec::new());
            for bar in bars {
                let (patience, passes) = match &bar {
                    Bar::Gone(_) => return Ok(Gate::Waited),
                    Bar::Corrupt(_) => (Duration::ZERO, false),
                    Bar::Own(_) => (HICCUP, accepted),
                    Bar::Other(..) if accepted => (Duration::ZERO, true),
                    Bar::Other(..) => (HICCUP, false),
                    Bar::OwnLag(what) | Bar::Behind(what) if is_dry => {
                        self.warn(format!("{what}: it would be waited for"));
                        continue;
                    }
                    Bar::Behind(_) if self.waited_for.contains(&id) => (Duration::ZERO, true),
                    Bar::OwnLag(_) | Bar::Behind(_) => (self.options.catch_up, accepted),
                };
                match bar {
                    bar if began.elapsed() < patience && !is_dry => pending = Some(bar),
                    bar if !passes => return Err(self.barred(&bar, id)),
                    Bar::Own(what) | Bar::OwnLag(what) => return Ok(Gate::PassedOver(what)),
                    bar => told.push(bar),
                }
            }
            let Some(pending) = pending else {
                for what in told.iter().filter_map(Bar::of_others) {
                    self.warn(format!("went on although members are unhealthy: {what}"));
                }
                if has_waited && !told.is_empty() {
                    self.waited_for.insert(id);
                }
                return Ok(if has_waited { Gate::Waited } else { Gate::Open });
            };
            if let (false, Bar::OwnLag(what) | Bar::Behind(what)) = (has_waited, &pending) {
                self.progress.note(&format!("waiting: {what}"));
            }
            has_waited = true;
            thread::sleep(TICK);
            self.may_go_on()?;
            let view = self.lookout.look(self.progress).map_err(|error| self.told(error))?;
            bars = plan::gate(&view, id);
        }
    }

    fn barred(&self, bar: &Bar, id: u64) -> Error {
        let again = "run it again then: members that are done are skipped";
        let status =
            self.access.command("etcdkit", Some(&self.settings().endpoints.join(",")), &["status"]);
        let who = self.report.members.iter().find(|member| member.id == id);
        let who = who.map_or_else(String::new, |member| member.endpoint.clone());
        match bar {
            Bar::Corrupt(what) => {
                let message = format!("{what}: a defragmentation mends nothing and may hide it");
                let error = Error::new(ExitCode::Damage, message);
                error.hint(self.access.command(
                    "etcdkit",
                    Some(&self.settings().endpoints.join(",")),
                    &["consistency"],
                ))
            }
            Bar::OwnLag(what) | Bar::Behind(what) => {
                let s = self.options.catch_up.as_secs();
                let what = format!("{what}, after {s} s still; {who} was not begun");
                let error = self.partial(ExitCode::Unreachable, &what);
                error.hint("--catch-up 10m waits longer").hint(again)
            }
            Bar::Own(what) | Bar::Gone(what) => {
                let what = format!("a member is unhealthy, so that {who} was not begun: {what}");
                let error = self.partial(ExitCode::Unreachable, &what).hint(status).hint(again);
                error.hint("--accept-unhealthy passes it over")
            }
            Bar::Other(what, lost) => {
                let code = if *lost { ExitCode::Refused } else { ExitCode::Unreachable };
                let why = if *lost { ", and no majority would answer without it" } else { "" };
                let what = format!(
                    "other members are unhealthy, so that {who} was not begun{why}: {what}"
                );
                let error = self.partial(code, &what);
                error.hint(status).hint(again).hint("--accept-unhealthy goes on all the same")
            }
        }
    }

    /// Looks for room on the disk of a member that is here.
    fn check_room(&mut self, id: u64, member: &MemberView) -> Result<(), Error> {
        let endpoint = self.endpoint(member);
        let Some(room) = Room::of(&endpoint, self.options.data_dir.as_deref()) else {
            self.unseen.insert(member.label());
            return Ok(());
        };
        if let Some(report) = self.report_of(id) {
            report.free_bytes = Some(room.free_bytes);
        }
        if !room.leftovers.is_empty() {
            let (folder, names) = (room.folder.display(), room.leftovers.join(", "));
            self.warn(format!(
                "{folder} holds {names}: what a killed defragmentation left, or one that runs"
            ));
        }
        let needed = Room::needed(member.db_size_in_use.unwrap_or(0));
        if room.free_bytes >= needed || self.options.accept_full_disk {
            return Ok(());
        }
        let (free, folder) = (room.free_bytes, room.folder.display());
        let what = format!(
            "{folder} has {free} bytes free, and a defragmentation of {} may need {needed}",
            member.label()
        );
        let error = self.partial(ExitCode::Refused, &what);
        Err(error.hint("make room there").hint("--accept-full-disk goes on all the same"))
    }

    /// Gives the leadership away before the leader's turn; true where it is given. Where it cannot
    /// be, the whole cluster waits: as long as is allowed.
    fn lead_on(
        &mut self,
        view: &View,
        leader: &MemberView,
        stall: Duration,
    ) -> Result<bool, Error> {
        let mut why = "it was told to stay the leader".to_owned();
        if self.options.move_leader {
            let id = leader.id.unwrap_or(0);
            match plan::successor(view, id, &self.left) {
                None => why = "no other voter can lead".to_owned(),
                Some(_) if self.report.leader_moves.len() >= MOVES_MAX => {
                    why = "the leadership has come back to it again and again".to_owned();
                }
                Some(to) => {
                    self.report.equivalent.push(self.move_command(leader, to));
                    if self.options.dry_run {
                        return Ok(false);
                    }
                    match self.move_leader(leader, id, to)? {
                        None => return Ok(true),
                        Some(what) => {
                            self.report.equivalent.pop();
                            why = what;
                        }
                    }
                }
            }
        }
        self.bear(leader, stall, &format!("leads and stays the leader ({why})"))?;
        Ok(false)
    }

    /// Lets the whole cluster wait for one member: as long as is allowed.
    fn bear(&mut self, member: &MemberView, stall: Duration, why: &str) -> Result<(), Error> {
        let label = member.label();
        let seconds = stall.as_secs_f64();
        if stall > STALL_MAX && !self.options.accept_stall {
            let what = format!(
                "{label} {why}: while it defragments the whole cluster may wait, {seconds:.1} s by \
                 its {} bytes in use",
                member.db_size_in_use.unwrap_or(0)
            );
            let error = self.partial(ExitCode::Refused, &what);
            return Err(error.hint("--accept-stall goes on all the same, best in a quiet hour"));
        }
        self.warn(format!("{label} {why}: the cluster may wait {seconds:.1} s"));
        Ok(())
    }

    /// Moves the leadership and waits until all members know; says why where it fails.
    fn move_leader(
        &mut self,
        leader: &MemberView,
        id: u64,
        to: u64,
    ) -> Result<Option<String>, Error> {
        let endpoint = self.endpoint(leader);
        self.progress.note(&format!("moving the leadership from {} to {to:x}", leader.label()));
        let began = Instant::now();
        let (settings, at) = (self.settings().clone(), endpoint);
        let settings = Settings { endpoints: vec![at.clone()], ..settings };
        let moved =
            attend(self.progress, move || Ok(Cluster::open(settings)?.move_leader(&at, to)?));
        if let Err(error) = moved {
            if error.code == ExitCode::Interrupted {
                return Err(self.told(error));
            }
            return Ok(Some(format!("it could not be moved: {}", error.message)));
        }
        while began.elapsed() < ELECTION {
            self.may_go_on()?;
            let view = self.lookout.look(self.progress).map_err(|error| self.told(error))?;
            let voters = || view.members.iter().filter(|member| member.answered());
            let known: BTreeSet<Option<u64>> = voters().map(|member| member.leader).collect();
            if known.len() == 1 && known.first().is_some_and(|l| l.is_some_and(|l| l != id)) {
                let took_ms = ms(began.elapsed());
                self.report.leader_moves.push(LeaderMove { from: id, to, took_ms });
                return Ok(None);
            }
            thread::sleep(TICK);
        }
        Ok(Some(format!("members do not agree on another leader after {} s", ELECTION.as_secs())))
    }

    fn defragment(
        &mut self,
        id: u64,
        member: &MemberView,
        endpoint: &str,
        before: Size,
        stall: Duration,
    ) -> Result<Next, Error> {
        let label = member.label();
        let (gain, seconds) = (before.gain(), stall.as_secs_f64());
        self.progress.note(&format!(
            "defragmenting {} {label} at {endpoint}: {} bytes, {gain} to be given back; it may not \
             answer for {seconds:.1} s",
            Role::of(member).word(),
            before.db_bytes
        ));
        let turn = turn::take(self.settings(), endpoint, before, stall, self.progress);
        if let Some(report) = self.report_of(id) {
            report.duration_ms = Some(ms(turn.took));
            report.stall_ms = turn.stall.map(ms);
        }
        match turn.end {
            End::Done(note) => {
                self.set(id, Outcome::Done, "");
                if let Some(report) = self.report_of(id) {
                    report.why = note.clone();
                }
                if let Some(note) = note {
                    self.warn(note);
                } else {
                    self.pace.learn(before, turn.took);
                }
            }
            End::NotDone(error) => {
                self.set(id, Outcome::Failed, &error.message);
                let what = format!("{label} was not defragmented: {}", error.message);
                return Err(self.after(error, &what));
            }
            End::Unknown(error) => {
                self.set(id, Outcome::Failed, &error.message);
                let what = format!("what became of {label} is not known: {}", error.message);
                return Err(self.after(error, &what));
            }
            End::Interrupted => {
                let what = "interrupted meanwhile; it goes on by itself";
                self.set(id, Outcome::Failed, what);
                let (done, all) = (self.done(), self.report.members.len());
                let message = format!(
                    "interrupted while {label} defragments, which goes on by itself; {done} of \
                     {all} members are defragmented"
                );
                return Err(Error::new(ExitCode::Interrupted, message));
            }
        }
        // Its sizes are known now, whatever comes of the wait.
        self.over(id);
        self.catch_up(id, &label)?;
        Ok(Next::Go)
    }

    fn after(&self, error: Error, what: &str) -> Error {
        let mut made = self.partial(error.code, what);
        made.reason = error.reason;
        made.hints = error.hints;
        let endpoints = self.settings().endpoints.join(",");
        made.hint(self.access.command("etcdkit", Some(&endpoints), &["status"]))
    }

    /// Waits until a member that is done answers again and has applied what was committed when it
    /// was done.
    fn catch_up(&mut self, id: u64, label: &str) -> Result<(), Error> {
        let began = Instant::now();
        let mut goal: Option<u64> = None;
        loop {
            let looked = self.lookout.look(self.progress);
            let view = looked.map_err(|error| self.told(error))?;
            let member = view.members.iter().find(|member| member.id == Some(id));
            let furthest = view.members.iter().filter_map(|member| member.raft_index).max();
            let goal = *goal.get_or_insert(furthest.unwrap_or(0));
            if let Some(member) = member.filter(|member| member.answered()) {
                self.measure(id, member);
                if member.serves() && member.raft_applied_index >= Some(goal) {
                    return Ok(());
                }
            }
            if began.elapsed() >= self.options.catch_up {
                let s = self.options.catch_up.as_secs();
                let why = member.and_then(|member| member.reason.clone());
                let why = why.unwrap_or_else(|| "it has not applied what the others have".into());
                let what = format!("{label} was defragmented and is not back after {s} s: {why}");
                return Err(self.partial(ExitCode::Unreachable, &what));
            }
            if self.progress.stopped() {
                return Err(self.told(Error::interrupted()));
            }
            thread::sleep(TICK);
        }
    }

    fn measure(&mut self, id: u64, member: &MemberView) {
        let after = Size::of(member);
        let Some(report) = self.report_of(id) else { return };
        report.after = Some(after);
        report.gained_bytes = Some(report.before.db_bytes.saturating_sub(after.db_bytes));
    }

    /// Puts the report together, and leaves the record.
    fn finish(mut self, ended: Result<(), Error>, leaves_record: bool) -> Result<Report, Error> {
        if !self.unseen.is_empty() {
            let who: Vec<String> = std::mem::take(&mut self.unseen).into_iter().collect();
            let who = who.join(", ");
            self.warn(format!("the room on the disk was not seen of: {who}"));
        }
        if let Err(mut error) = ended {
            if !self.options.dry_run && !self.left.is_empty() {
                // Who interrupts does not wait for another look.
                let view = match error.code {
                    ExitCode::Interrupted => self.seen.take(),
                    _ => self.lookout.look(self.progress).ok(),
                };
                let left = view.map(|view| self.commands(&view)).unwrap_or_default();
                error.hints.extend(left.into_iter().map(|line| format!("left: {line}")));
            }
            self.report.stopped = Some(Stopped::from(error));
        }
        let turns: BTreeMap<u64, usize> = self.order.iter().copied().zip(0..).collect();
        self.report
            .members
            .sort_by_key(|member| turns.get(&member.id).copied().unwrap_or(usize::MAX));
        self.report.gained_bytes =
            self.report.members.iter().filter_map(|member| member.gained_bytes).sum();
        let touched =
            |member: &MemberReport| matches!(member.result, Outcome::Done | Outcome::Failed);
        let has_changed =
            self.report.members.iter().any(touched) || !self.report.leader_moves.is_empty();
        if leaves_record && has_changed {
            self.record();
        }
        Ok(self.report)
    }

    fn record(&mut self) {
        let report = &self.report;
        let sizes = |size: &dyn Fn(&MemberReport) -> Option<Size>| {
            let of = |member: &MemberReport| {
                json!({
                    "endpoint": member.endpoint,
                    "id": format!("{:x}", member.id),
                    "name": member.name,
                    "result": member.result,
                    "size": size(member),
                })
            };
            report.members.iter().map(of).collect::<Vec<_>>()
        };
        let record = audit::Record {
            operation: "defrag",
            result: report.error().map_or_else(|| audit::OK.to_owned(), |error| error.message),
            before: json!({
                "cluster_id": report.cluster_id,
                "members": sizes(&|member| Some(member.before)),
            }),
            after: json!({
                "cluster_id": report.cluster_id,
                "members": sizes(&|member| member.after),
                "leader_moves": report.leader_moves,
                "gained_bytes": report.gained_bytes,
            }),
            equivalent: report.equivalent.clone(),
            warnings: report.warnings.clone(),
        };
        if let Err(error) = audit::append(&self.options.audit_log, &record) {
            let path = self.options.audit_log.display();
            self.warn(format!("cannot append the record to {path}: {error}"));
        }
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Finds the members that are to be done.
fn targets(options: &Options, view: &View) -> Result<Vec<MemberReport>, Error> {
    if let Some(error) = view.unanswered() {
        return Err(error.hint("etcdkit health shows what is wrong with each"));
    }
    if view.cluster_id.is_none() {
        let message = "the endpoints belong to different clusters; nothing was done";
        return Err(Error::usage(message).hint("name members of one cluster"));
    }
    let report = |member: &MemberView, endpoint: &str, id: u64| {
        let before = Size::of(member);
        MemberReport {
            endpoint: endpoint.to_owned(),
            id,
            name: member.name.clone(),
            role: Role::of(member),
            before,
            after: None,
            predicted_gain_bytes: before.gain(),
            predicted_stall_ms: ms(Pace::default().stall(before)),
            gained_bytes: None,
            duration_ms: None,
            stall_ms: None,
            free_bytes: None,
            result: Outcome::Left,
            why: None,
        }
    };
    if options.whole_cluster {
        let all = view.members.iter().filter_map(|member| {
            let endpoint = member.endpoint.as_deref().unwrap_or_default();
            Some(report(member, endpoint, member.id?))
        });
        return Ok(all.collect());
    }
    let mut targets: Vec<MemberReport> = Vec::new();
    for endpoint in &options.settings.endpoints {
        let is_at = |member: &&MemberView| {
            member.endpoint.as_ref() == Some(endpoint)
                || member.also_at.contains(endpoint)
                || member.not_at.contains(endpoint)
        };
        let found = view.members.iter().find(is_at);
        let Some((member, id)) = found.and_then(|member| Some((member, member.id?))) else {
            let why = found.and_then(|member| member.reason.clone()).unwrap_or_default();
            let what = format!("{endpoint}: {why}; nothing was done");
            let code = found.and_then(|member| member.error.as_ref()).map(|error| error.code);
            let is_tls = code == Some(ExitCode::Tls.number());
            let code = if is_tls { ExitCode::Tls } else { ExitCode::Unreachable };
            return Err(Error::new(code, what).hint("etcdkit health shows what is wrong with each"));
        };
        // Where nothing answers at that one, another of its endpoints does.
        let is_dead = member.not_at.contains(endpoint);
        let endpoint = member.endpoint.as_ref().filter(|_| is_dead).unwrap_or(endpoint);
        if !targets.iter().any(|target| target.id == id) {
            targets.push(report(member, endpoint, id));
        }
    }
    Ok(targets)
}
