//! The run on a cluster that serves: look, and do what is left to do.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use super::line::Line;
use super::prove::{Proof, prove};
use super::report::{Compaction, MemberReport, Outcome, Report, Step, StepResult};
use super::space::{self, Scan};
use super::{Options, advice, again};
use crate::live::{AlarmKind, Cluster};
use crate::ops::cluster::quota::{self, Quota, Source};
use crate::ops::cluster::{Access, MemberView, View};
use crate::ops::compaction::Keep;
use crate::ops::lock::Lock;
use crate::ops::online::{self, Lookout, MinGain, Rule};
use crate::ops::{Error, ExitCode, Progress, admin, audit, compaction, disarm};

/// Bytes in use are looked at so often while rows go ...
const LOOK: Duration = Duration::from_millis(500);
/// ... until they stay as they are for so many looks ...
const STILL: u32 = 4;
/// ... or for so long.
const SETTLE_MAX: Duration = Duration::from_secs(900);
/// What a defragmentation must give back: a hundredth of the quota, between these.
const GAIN_MIN: i64 = 256 << 10;
const GAIN_MAX: i64 = 16 << 20;
/// Percent of a file from which on living data fills it.
const ALIVE_PERCENT: i64 = 90;

struct Run<'a> {
    options: &'a Options,
    progress: &'a dyn Progress,
    lookout: Lookout,
    cluster: Arc<Cluster>,
    access: Access,
    report: Report,
    /// Something was changed.
    changed: bool,
}

pub(super) fn run(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    let began = Instant::now();
    admin::ask(&options.settings, "compact, defragment and disarm", progress)?;
    let mut lookout = Lookout::new(options.settings.clone());
    let view = look(&mut lookout, options, progress)?;
    admit(&view, options)?;
    let settings = lookout.settings().clone();
    let cluster = Arc::new(Cluster::open(settings)?);
    let access = Access::of(&options.settings);
    let report = Report::of(&view, options.dry_run);
    let changed = false;
    let mut run = Run { options, progress, lookout, cluster, access, report, changed };
    run.measured(&view, began);
    if is_well(&view) {
        return run.well(&view);
    }
    let lock = match options.dry_run {
        true => None,
        false => {
            let settings = run.lookout.settings();
            Some(Lock::take(settings, "reclaim", &options.audit_log, progress)?)
        }
    };
    run.report.warnings.extend(lock.iter().flat_map(Lock::warnings).cloned());
    let done = run.all(&view, lock.as_ref());
    run.finish(done)
}

/// Looks, and takes for quotas that nobody tells what was given.
fn look(lookout: &mut Lookout, options: &Options, progress: &dyn Progress) -> Result<View, Error> {
    let mut view = lookout.look(progress)?;
    let Some(given) = options.quota_bytes.map(Quota::given) else { return Ok(view) };
    for member in &mut view.members {
        if member.quota_source == Some(Source::Assumed) {
            (member.quota, member.quota_source) = (given.bytes, Some(given.source));
            member.quota_used_percent = member.db_size.and_then(|size| given.used_percent(size));
        }
    }
    Ok(view)
}

/// Stops before anything at what no reclaim may touch.
fn admit(view: &View, options: &Options) -> Result<(), Error> {
    let how = Access::of(&options.settings);
    let endpoints = options.settings.endpoints.join(",");
    let kit = |words: &[&str]| how.command("etcdkit", Some(&endpoints), words);
    let corrupt = view.alarms.iter().filter(|alarm| alarm.alarm == "CORRUPT");
    let corrupt: Vec<String> = corrupt
        .map(|alarm| alarm.name.clone().unwrap_or_else(|| format!("{:x}", alarm.id)))
        .collect();
    if !corrupt.is_empty() {
        let message = format!(
            "CORRUPT is raised for {}: members hold different data, and a compaction may hide \
             where; nothing was done",
            corrupt.join(", ")
        );
        let error = Error::new(ExitCode::Damage, message);
        return Err(error.hint(kit(&["consistency"])).hint("replace the member that differs"));
    }
    if let Some(error) = view.unanswered() {
        return Err(error.hint(kit(&["health"])).hint(
            "one that does not stay up at its quota, and is the only voter: etcdkit reclaim \
             --data-dir DIR on its host, while it is stopped",
        ));
    }
    if view.cluster_id.is_none() {
        let message = "the endpoints belong to different clusters; nothing was done";
        return Err(Error::usage(message).hint("name members of one cluster"));
    }
    if view.quorum.has_quorum == Some(false) {
        let message = "no majority of the members answers, so that nothing can be changed";
        return Err(Error::new(ExitCode::Unreachable, message).hint(kit(&["health"])));
    }
    Ok(())
}

/// Tells whether there is nothing to do: no alarm of space, and enough free everywhere.
fn is_well(view: &View) -> bool {
    let is_raised = view.alarms.iter().any(|alarm| alarm.alarm == "NOSPACE");
    !is_raised && view.members.iter().all(|member| Line::of(member).is_roomy())
}

/// Says how full a member is.
fn full_text(member: &MemberView) -> String {
    let label = member.label();
    match Line::of(member) {
        Line::Unknown => Line::unknown_text(member),
        Line::NoLimit => format!("{label} has no limit"),
        line @ (Line::Under { size, quota } | Line::Over { size, quota }) => {
            let free = line.free_percent().unwrap_or(0);
            format!("{label} has {size} bytes of {quota}, {free} % free")
        }
    }
}

impl Run<'_> {
    fn step(&mut self, step: &'static str, result: StepResult, detail: String, began: Instant) {
        let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.progress.note(&format!("{step:<8} {}: {detail}", result.word()));
        self.report.steps.push(Step { step, result, detail, ms });
    }

    fn warn(&mut self, warning: String) {
        if !self.report.warnings.contains(&warning) {
            self.progress.note(&format!("warning: {warning}"));
            self.report.warnings.push(warning);
        }
    }

    fn measured(&mut self, view: &View, began: Instant) {
        let texts: Vec<String> = view.members.iter().map(full_text).collect();
        let alarms = match view.alarms.as_slice() {
            [] => "no alarm".to_owned(),
            alarms => {
                let one = |alarm: &crate::ops::cluster::AlarmView| {
                    let whose = alarm.name.clone().unwrap_or_else(|| format!("{:x}", alarm.id));
                    format!("{} of {whose}", alarm.alarm)
                };
                alarms.iter().map(one).collect::<Vec<_>>().join(", ")
            }
        };
        let detail = format!("{}; {alarms}", texts.join("; "));
        self.step("measure", StepResult::Done, detail, began);
        let assumed = view.members.iter().filter(|m| m.quota_source == Some(Source::Assumed));
        let assumed: Vec<String> = assumed.map(MemberView::label).collect();
        if !assumed.is_empty() {
            self.warn(format!(
                "the quota of {} is not told: etcd's default, {} bytes, is assumed; \
                 --quota-backend-bytes says another",
                assumed.join(", "),
                quota::DEFAULT_BYTES
            ));
        }
    }

    /// What is well is proved to be.
    fn well(mut self, view: &View) -> Result<Report, Error> {
        self.report.outcome = Outcome::NothingToDo;
        if self.options.dry_run {
            return Ok(self.report);
        }
        let began = Instant::now();
        let proofs = prove(&self.cluster, view, self.progress)?;
        match self.take(&proofs, began) {
            Some(true) => {}
            Some(false) => self.report.outcome = Outcome::Full,
            None => self.report.outcome = Outcome::Unproved,
        }
        if self.report.outcome != Outcome::NothingToDo {
            self.report.next.push(self.kit(&["health"]));
            self.report.next.push(format!("then: {}", self.again(self.options.keep)));
        }
        Ok(self.report)
    }

    fn endpoints(&self) -> String {
        self.lookout.settings().endpoints.join(",")
    }

    fn kit(&self, words: &[&str]) -> String {
        self.access.command("etcdkit", Some(&self.endpoints()), words)
    }

    /// The command for a run like this one that keeps so much history.
    fn again(&self, keep: Keep) -> String {
        let words = again::words(self.options, keep);
        self.kit(&words.iter().map(String::as_str).collect::<Vec<_>>())
    }

    fn ctl(&self, words: &[&str]) -> String {
        self.access.command("etcdctl", Some(&self.endpoints()), words)
    }

    fn look(&mut self) -> Result<View, Error> {
        let view = look(&mut self.lookout, self.options, self.progress)?;
        if let Some(alarm) = view.alarms.iter().find(|alarm| alarm.alarm == "CORRUPT") {
            let message = format!("CORRUPT was raised meanwhile, for {:x}", alarm.id);
            return Err(Error::new(ExitCode::Damage, message).hint(self.kit(&["consistency"])));
        }
        Ok(view)
    }

    fn may_go_on(&self, lock: Option<&Lock>) -> Result<(), Error> {
        if self.progress.stopped() {
            return Err(Error::interrupted());
        }
        lock.map_or(Ok(()), Lock::check)
    }

    fn all(&mut self, view: &View, lock: Option<&Lock>) -> Result<(), Error> {
        self.scan(view)?;
        self.may_go_on(lock)?;
        let wanted = self.window()?;
        self.announce(view, wanted);
        if self.options.dry_run {
            return self.would(view, wanted);
        }
        self.compact(wanted)?;
        self.may_go_on(lock)?;
        self.defrag(lock)?;
        self.may_go_on(lock)?;
        let began = Instant::now();
        let view = self.look()?;
        self.report.measure(&view);
        self.measured(&view, began);
        self.disarm(&view)?;
        self.prove()
    }

    /// Says what fills the space.
    fn scan(&mut self, view: &View) -> Result<(), Error> {
        let began = Instant::now();
        let Some(budget) = self.options.scan else {
            self.step("space", StepResult::Skipped, "as told".to_owned(), began);
            return Ok(());
        };
        let scan = match space::scan(&self.cluster, view, budget, self.progress)? {
            Ok(scan) => scan,
            Err(why) => {
                self.step("space", StepResult::Failed, why, began);
                return Ok(());
            }
        };
        let in_use = view.members.iter().filter_map(|member| member.db_size_in_use).max();
        let live = i64::try_from(scan.live_bytes).unwrap_or(i64::MAX);
        let history = in_use.map(|in_use| in_use.saturating_sub(live).max(0));
        self.report.history_bytes = history.filter(|_| !scan.partial);
        let detail = space_text(&scan, self.report.history_bytes);
        self.report.space = Some(scan);
        self.step("space", StepResult::Done, detail, began);
        Ok(())
    }

    /// Learns where to compact.
    fn window(&mut self) -> Result<Option<i64>, Error> {
        let options = self.options;
        let window =
            compaction::window(&self.cluster, options.keep, &options.audit_log, self.progress)?;
        for warning in &window.warnings {
            self.warn(warning.clone());
        }
        let wanted = window.to_do();
        self.report.compaction = Some(Compaction {
            revision: window.revision,
            why: window.why,
            newest_revision: window.newest,
            compact_revision_before: window.compacted,
        });
        Ok(wanted)
    }

    /// Says what would be done with etcdctl.
    fn announce(&mut self, view: &View, wanted: Option<i64>) {
        self.report.equivalent = self.commands(view, wanted);
        for line in &self.report.equivalent {
            self.progress.note(&format!("same as    {line}"));
        }
    }

    /// Writes the commands for all steps.
    fn commands(&self, view: &View, wanted: Option<i64>) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(revision) = wanted {
            lines.push(self.ctl(&["compaction", &revision.to_string(), "--physical"]));
        }
        let mut members: Vec<&MemberView> =
            view.members.iter().filter(|member| member.is_learner != Some(true)).collect();
        members.sort_by_key(|member| member.is_leader == Some(true));
        let at = members.iter().filter_map(|member| member.endpoint.as_deref());
        lines.extend(at.map(|at| self.access.command("etcdctl", Some(at), &["defrag"])));
        if view.alarms.iter().any(|alarm| alarm.alarm == "NOSPACE") {
            lines.push(self.ctl(&["alarm", "disarm"]));
        }
        lines
    }

    /// Says what would be done.
    fn would(&mut self, view: &View, wanted: Option<i64>) -> Result<(), Error> {
        let now = Instant::now();
        match wanted {
            Some(revision) => {
                let detail = format!("would be at revision {revision}{}", self.why());
                self.step("compact", StepResult::Left, detail, now);
            }
            None => self.nothing_to_compact(now),
        }
        let options = self.defrag_options(view);
        let would = online::defrag(&options, self.progress)?;
        for warning in &would.warnings {
            self.warn(warning.clone());
        }
        let gain: i64 = would.members.iter().map(|member| member.predicted_gain_bytes).sum();
        let detail = format!("{gain} bytes are free inside of the files, without the compaction");
        self.step("defrag", StepResult::Left, detail, now);
        let raised = view.alarms.iter().filter(|alarm| alarm.alarm == "NOSPACE").count();
        let detail = format!("{raised} NOSPACE, where there is room then");
        self.step("disarm", StepResult::Left, detail, now);
        self.step("prove", StepResult::Left, "a write at every member".to_owned(), now);
        match would.stopped {
            // What would stand in the way is what a dry run is for.
            Some(stopped) => Err(stopped.error()),
            None => Ok(()),
        }
    }

    fn why(&self) -> String {
        let why = self.report.compaction.as_ref().map(|compaction| compaction.why.as_str());
        why.filter(|why| !why.is_empty()).map(|why| format!(" ({why})")).unwrap_or_default()
    }

    fn nothing_to_compact(&mut self, began: Instant) {
        let up_to = self.report.compaction.as_ref().map_or(0, |c| c.compact_revision_before);
        let detail = match up_to {
            0 => format!("nothing is old enough{}", self.why()),
            _ => format!("compacted up to revision {up_to} already{}", self.why()),
        };
        self.step("compact", StepResult::Skipped, detail, began);
    }

    fn compact(&mut self, wanted: Option<i64>) -> Result<(), Error> {
        let began = Instant::now();
        let Some(revision) = wanted else {
            // What a run before began may be under way still.
            let in_use = self.settle()?;
            self.nothing_to_compact(began);
            self.progress.note(&format!("         in use now: {in_use} bytes at the fullest"));
            return Ok(());
        };
        match compaction::compact(&self.cluster, revision, true, self.progress) {
            Ok(done) => {
                self.changed |= !done.is_already;
                for warning in done.warnings {
                    self.warn(warning);
                }
            }
            Err(failed) => {
                self.changed |= failed.may_be_done;
                let message = failed.error.message.clone();
                self.step("compact", StepResult::Failed, message, began);
                return Err(failed.error);
            }
        }
        let in_use = self.settle()?;
        let detail = format!(
            "at revision {revision}{}; {in_use} bytes are in use at the fullest member",
            self.why()
        );
        self.step("compact", StepResult::Done, detail, began);
        Ok(())
    }

    /// Waits until rows are gone at every member: a compaction is answered when they are at one.
    fn settle(&mut self) -> Result<i64, Error> {
        let began = Instant::now();
        let in_use = |view: &View| -> Vec<(Option<u64>, i64)> {
            let all = view.members.iter().filter(|member| member.answered());
            all.map(|member| (member.id, member.db_size_in_use.unwrap_or(0))).collect()
        };
        let mut before = in_use(&self.look()?);
        let mut still = 0;
        while still < STILL && began.elapsed() < SETTLE_MAX {
            thread::sleep(LOOK);
            if self.progress.stopped() {
                return Err(Error::interrupted());
            }
            let now = in_use(&self.look()?);
            let falls = |(id, bytes): &(Option<u64>, i64)| {
                before.iter().any(|(other, was)| other == id && bytes < was)
            };
            still = if now.iter().any(falls) { 0 } else { still + 1 };
            before = now;
        }
        Ok(before.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0))
    }

    /// Decides which members are worth it.
    ///
    /// How much is in use, a member says as it was one commit before its last one, and at the
    /// quota there may be none for long: a compaction that took one batch of rows shows only
    /// later (etcd server/storage/backend/backend.go, `begin`, checked at 3.7.3). So after a
    /// compaction, and at the quota, a member that is not roomy is done whatever it says where
    /// enough of its file is not known to be living data.
    fn defrag_options(&self, view: &View) -> online::Options {
        let quota = view.members.iter().filter_map(|member| member.quota).min();
        let gain = (quota.unwrap_or(i64::MAX) / 100).clamp(GAIN_MIN, GAIN_MAX);
        let size = view.members.iter().filter_map(|member| member.db_size).max().unwrap_or(0);
        let space = self.report.space.as_ref().filter(|space| !space.partial);
        let is_alive = space.is_some_and(|space| {
            let live = i64::try_from(space.live_bytes).unwrap_or(i64::MAX);
            quota::percent(live, size) >= ALIVE_PERCENT
        });
        let rule = format!("dbQuotaUsage > 0.8 || dbSizeFree >= {gain}");
        // Where writes go and nothing is compacted, what is in use is told as it is.
        let compacts = self.report.compaction.as_ref().is_some_and(|compaction| {
            compaction.revision.is_some_and(|at| at > compaction.compact_revision_before)
        });
        let is_raised = view.alarms.iter().any(|alarm| alarm.alarm == "NOSPACE");
        let may_be_stale = !is_alive && (compacts || is_raised);
        let rule = if may_be_stale { Rule::parse(&rule).ok() } else { None };
        let min_gain = match rule {
            Some(_) => MinGain::Nothing,
            None => MinGain::Bytes(gain),
        };
        let options = self.options;
        let settings = self.lookout.settings().clone();
        online::Options {
            whole_cluster: true,
            rule,
            min_gain,
            accept_stall: options.accept_stall,
            accept_unhealthy: options.accept_unhealthy,
            accept_full_disk: options.accept_full_disk,
            dry_run: options.dry_run,
            ..online::Options::new(settings, options.audit_log.clone())
        }
    }

    fn defrag(&mut self, lock: Option<&Lock>) -> Result<(), Error> {
        let began = Instant::now();
        let view = self.look()?;
        let options = self.defrag_options(&view);
        let done = match lock {
            Some(lock) => online::defrag_under(lock, &options, self.progress)?,
            None => online::defrag(&options, self.progress)?,
        };
        self.changed |= done.count(online::Outcome::Done) > 0 || !done.leader_moves.is_empty();
        for warning in &done.warnings {
            self.warn(warning.clone());
        }
        for member in &done.members {
            let own = self.report.members.iter_mut().find(|own| own.id == Some(member.id));
            if let Some(own) = own {
                own.defrag = Some(member.result.word());
                own.stall_ms = member.stall_ms;
                own.why = own.why.take().or_else(|| member.why.clone());
            }
        }
        let count = |result| done.count(result);
        let down = match count(online::Outcome::Down) {
            0 => String::new(),
            down => format!(", {down} down"),
        };
        let detail = format!(
            "{} of {} members, {} not worth it{down}; {} bytes given back",
            count(online::Outcome::Done),
            done.members.len(),
            count(online::Outcome::Skipped),
            done.gained_bytes
        );
        match done.stopped.map(|stopped| stopped.error()) {
            Some(error) => {
                let detail = format!("{detail}; {}", error.message);
                self.step("defrag", StepResult::Failed, detail, began);
                Err(error)
            }
            None => {
                self.step("defrag", StepResult::Done, detail, began);
                Ok(())
            }
        }
    }

    /// Disarms NOSPACE of members that are under the line.
    fn disarm(&mut self, view: &View) -> Result<(), Error> {
        let began = Instant::now();
        let (alarms, names) = disarm::list(&self.cluster, self.progress)?;
        let alarms: Vec<_> =
            alarms.into_iter().filter(|alarm| alarm.kind == AlarmKind::NoSpace).collect();
        if alarms.is_empty() {
            let detail = "NOSPACE is not raised".to_owned();
            self.step("disarm", StepResult::Skipped, detail, began);
            return Ok(());
        }
        // Whoever is over it raises it again, whosever alarm is gone.
        let over = view.members.iter().filter(|member| {
            let is_own = alarms.iter().any(|alarm| Some(alarm.member_id) == member.id);
            match Line::of(member) {
                Line::Over { .. } => true,
                Line::Unknown => is_own,
                Line::Under { .. } | Line::NoLimit => false,
            }
        });
        let over: Vec<String> = over.map(full_text).collect();
        if !over.is_empty() {
            let detail = format!("NOSPACE stays: {}", over.join("; "));
            self.step("disarm", StepResult::Skipped, detail, began);
            return Ok(());
        }
        let (gone, failed) = disarm::one_by_one(&self.cluster, &alarms, self.progress);
        self.changed |= !gone.is_empty();
        if let Some(error) = failed {
            let detail = format!("{} of {}: {}", gone.len(), alarms.len(), error.message);
            self.step("disarm", StepResult::Failed, detail, began);
            return Err(error);
        }
        let texts =
            disarm::named(&alarms, &names).iter().map(disarm::Named::text).collect::<Vec<_>>();
        self.step("disarm", StepResult::Done, texts.join(", "), began);
        Ok(())
    }

    /// Asks every member for a write, and judges.
    fn prove(&mut self) -> Result<(), Error> {
        let began = Instant::now();
        let before = self.look()?;
        let is_over = before
            .members
            .iter()
            .any(|member| matches!(Line::of(member), Line::Over { .. } | Line::Unknown));
        let is_raised = before.alarms.iter().any(|alarm| alarm.alarm == "NOSPACE");
        let proofs = match is_over && is_raised {
            // Known without asking again and again.
            true => Vec::new(),
            false => prove(&self.cluster, &before, self.progress)?,
        };
        let accepted = match is_over && is_raised {
            true => self.full(began),
            false => self.take(&proofs, began),
        };
        let view = self.look()?;
        self.report.measure(&view);
        let is_raised = view.alarms.iter().any(|alarm| alarm.alarm == "NOSPACE");
        let is_roomy = view.members.iter().all(|member| Line::of(member).is_roomy());
        let all_asked = view.members.iter().all(MemberView::answered);
        self.report.outcome = match (accepted, is_roomy && all_asked) {
            _ if is_raised => Outcome::Full,
            (Some(true), true) => Outcome::Reclaimed,
            (Some(true), false) => Outcome::Tight,
            (Some(false), _) => Outcome::Full,
            (None, _) => Outcome::Unproved,
        };
        if self.report.outcome != Outcome::Reclaimed {
            let command = advice::Commands {
                kit: &|words| self.kit(words),
                ctl: &|words| self.ctl(words),
                again: &|keep| self.again(keep.unwrap_or(self.options.keep)),
            };
            self.report.next = advice::of(&self.report, &view, &command);
        }
        Ok(())
    }

    /// Known to be refused without asking again and again.
    fn full(&mut self, began: Instant) -> Option<bool> {
        self.report.writes_accepted = Some(false);
        let detail = "no write is accepted: NOSPACE is raised".to_owned();
        self.step("prove", StepResult::Failed, detail, began);
        Some(false)
    }

    /// Takes what members say to a write; tells whether all take it, `None` where some could not be
    /// asked and none refused.
    fn take(&mut self, proofs: &[Proof], began: Instant) -> Option<bool> {
        for proof in proofs {
            let own = self.report.members.iter_mut().find(|own| own.id == Some(proof.id));
            if let Some(own) = own {
                own.accepts_writes = proof.accepted;
                own.why = proof.why.clone().or_else(|| own.why.take());
            }
        }
        let count = |answer| proofs.iter().filter(|proof| proof.accepted == answer).count();
        let (taken, refused, silent) = (count(Some(true)), count(Some(false)), count(None));
        let all = match (refused, silent) {
            (0, 0) if !proofs.is_empty() => Some(true),
            (0, _) => None,
            _ => Some(false),
        };
        self.report.writes_accepted = all;
        let why = |proof: &Proof| {
            let does = match proof.accepted {
                Some(true) => return None,
                Some(false) => "refuses",
                None => "could not be asked",
            };
            let member = self.report.members.iter().find(|own| own.id == Some(proof.id));
            let label = member.map_or_else(|| format!("{:x}", proof.id), MemberReport::label);
            Some(format!("{label} {does}: {}", proof.why.as_deref().unwrap_or_default()))
        };
        let whys: Vec<String> = proofs.iter().filter_map(why).collect();
        let detail = match all {
            Some(true) => format!("{taken} members accept writes; no revision was used"),
            _ => format!("{taken} of {} accept writes; {}", proofs.len(), whys.join("; ")),
        };
        let result = if all == Some(true) { StepResult::Done } else { StepResult::Failed };
        self.step("prove", result, detail, began);
        all
    }

    fn finish(mut self, done: Result<(), Error>) -> Result<Report, Error> {
        let Err(mut error) = done else {
            if self.changed {
                self.record(audit::OK.to_owned());
            }
            return Ok(self.report);
        };
        if self.options.dry_run {
            // What was seen is worth as much as what is in the way.
            self.report.outcome = Outcome::Stopped;
            self.report.stopped = Some(error.into());
            return Ok(self.report);
        }
        let steps = self.report.steps.iter().filter(|step| step.result == StepResult::Done);
        let steps: Vec<&str> = steps.map(|step| step.step).collect();
        if error.code == ExitCode::Interrupted {
            error.message = "interrupted".to_owned();
        }
        let done = match self.changed {
            false => "nothing was changed".to_owned(),
            true => format!("done so far: {}", steps.join(", ")),
        };
        error.message += &format!("; {done}");
        let again = self.again(self.options.keep);
        error.hints.push(format!("{again}    # goes on where this one has stopped"));
        self.report.equivalent = self.left(&steps);
        error.hints.extend(self.report.equivalent.iter().map(|line| format!("or: {line}")));
        if !self.changed {
            return Err(error);
        }
        // An interruption does not keep the last look from being taken.
        if let Ok(view) = look(&mut self.lookout, self.options, &crate::ops::Silent) {
            self.report.measure(&view);
        }
        self.record(error.message.clone());
        self.report.outcome = Outcome::Stopped;
        self.report.stopped = Some(error.into());
        Ok(self.report)
    }

    /// Commands for the steps that are left.
    fn left(&self, done: &[&str]) -> Vec<String> {
        const VERBS: [(&str, &str); 3] =
            [("compaction", "compact"), ("defrag", "defrag"), ("disarm", "disarm")];
        let is_left = |line: &&String| {
            let of = |word: &str| line.split_whitespace().any(|part| part == word);
            VERBS.iter().all(|(word, step)| !of(word) || !done.contains(step))
        };
        self.report.equivalent.iter().filter(is_left).cloned().collect()
    }

    fn record(&mut self, result: String) {
        let report = &self.report;
        let members = |after: bool| -> Vec<serde_json::Value> {
            let all = report.members.iter();
            let size =
                |member: &super::MemberReport| if after { member.after } else { member.before };
            all.map(|member| {
                json!({ "name": member.name, "quota_bytes": member.quota_bytes,
                    "size": size(member) })
            })
            .collect()
        };
        let record = audit::Record {
            operation: "reclaim",
            result,
            before: json!({ "cluster_id": report.cluster_id, "members": members(false),
                "alarms": report.alarms_before }),
            after: json!({ "cluster_id": report.cluster_id, "members": members(true),
                "alarms": report.alarms, "compaction": report.compaction,
                "writes_accepted": report.writes_accepted }),
            equivalent: report.equivalent.clone(),
            warnings: report.warnings.clone(),
        };
        if let Err(error) = audit::append(&self.options.audit_log, &record) {
            let log = self.options.audit_log.display();
            self.warn(format!("the audit record could not be written to {log}: {error}"));
        }
    }
}

fn space_text(scan: &Scan, history: Option<i64>) -> String {
    let groups = scan.groups.iter().take(3).map(|group| {
        let about = if group.exact { "" } else { "about " };
        format!("{} {about}{} bytes", group.name, group.bytes)
    });
    let groups: Vec<String> = groups.collect();
    let all = if scan.partial { "of the keys that were reached, " } else { "" };
    let history = history.map_or_else(String::new, |history| {
        format!("; about {history} bytes in use are history, or room inside of pages")
    });
    let (keys, bytes) = (scan.keys, scan.live_bytes);
    format!("{all}{keys} living keys of {bytes} bytes: {}{history}", groups.join(", "))
}
