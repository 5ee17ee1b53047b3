//! What a reclaim did, step by step and member by member; `docs/JSON.md` describes it.

use serde::{Serialize, Serializer};

use super::line::Line;
use super::space::Scan;
use crate::ops::ExitCode;
use crate::ops::cluster::quota::Source;
use crate::ops::cluster::{AlarmView, MemberView, View};
use crate::ops::online::{Role, Size, Stopped};

/// What was done, or would be.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this shape.
    pub version: u8,
    /// Nothing was changed.
    pub dry_run: bool,
    /// How it ended.
    pub outcome: Outcome,
    /// Id of the cluster, in hex.
    pub cluster_id: Option<String>,
    /// Every member that the cluster has.
    pub members: Vec<MemberReport>,
    /// Alarms that were raised before.
    pub alarms_before: Vec<AlarmView>,
    /// Alarms that are raised now.
    pub alarms: Vec<AlarmView>,
    /// Whether every member that may takes writes; `None` where that was not asked, or where some
    /// could not be asked and none refused.
    pub writes_accepted: Option<bool>,
    /// Least percent of a quota that is free, of the members that have one.
    pub free_percent_min: Option<i64>,
    /// About how many bytes in use at the fullest member were history before; `None` where the
    /// keys were not all seen.
    pub history_bytes: Option<i64>,
    /// What takes the room among living keys; `None` where it was not looked for.
    pub space: Option<Scan>,
    /// Where it was compacted.
    pub compaction: Option<Compaction>,
    /// The steps, in their order.
    pub steps: Vec<Step>,
    /// What should be known.
    pub warnings: Vec<String>,
    /// Ordinary commands that do the same; where it stopped early, those that are left.
    pub equivalent: Vec<String>,
    /// What to do next.
    pub next: Vec<String>,
    /// Why it stopped early; `None` where it came to the end.
    pub stopped: Option<Stopped>,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Writes are accepted, and enough is free.
    Reclaimed,
    /// Writes are accepted, and not enough is free.
    Tight,
    /// Writes are not accepted.
    Full,
    /// A member could not be asked for a write, and none has refused.
    Unproved,
    /// It was well before.
    NothingToDo,
    /// It was not done.
    DryRun,
    /// It stopped early.
    Stopped,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemberReport {
    /// Its id, where known.
    #[serde(serialize_with = "optional_hex")]
    pub id: Option<u64>,
    /// Its name, where it has one.
    pub name: Option<String>,
    /// Where it was asked.
    pub endpoint: Option<String>,
    /// What it was before.
    pub role: Role,
    /// Bytes that its database may have; `None` for no limit, or where it is not known.
    pub quota_bytes: Option<i64>,
    /// Who says so; `None` where it did not answer.
    pub quota_source: Option<Source>,
    /// Its database before; `None` where it did not answer.
    pub before: Option<Size>,
    /// Its database after; `None` in a dry run, and where it did not answer.
    pub after: Option<Size>,
    /// Percent of its quota that was free.
    pub free_percent_before: Option<i64>,
    /// Percent of its quota that is free.
    pub free_percent: Option<i64>,
    /// What became of its defragmentation, as `defrag` says it; `None` where that was not tried.
    pub defrag: Option<&'static str>,
    /// Longest time for which it did not answer, in milliseconds.
    pub stall_ms: Option<u64>,
    /// Whether it takes writes; `None` where it was not, or could not be, asked.
    pub accepts_writes: Option<bool>,
    /// Why it was not defragmented, takes no writes, or could not be asked.
    pub why: Option<String>,
}

impl MemberReport {
    /// Begins one.
    #[must_use]
    pub fn of(member: &MemberView) -> Self {
        Self {
            id: member.id,
            name: member.name.clone(),
            endpoint: member.endpoint.clone(),
            role: Role::of(member),
            quota_bytes: member.quota,
            quota_source: member.quota_source,
            before: member.answered().then(|| Size::of(member)),
            after: None,
            free_percent_before: Line::of(member).free_percent(),
            free_percent: None,
            defrag: None,
            stall_ms: None,
            accepts_writes: None,
            why: (!member.answered()).then(|| member.reason.clone()).flatten(),
        }
    }

    /// Names it for a sentence.
    #[must_use]
    pub fn label(&self) -> String {
        match (&self.name, &self.endpoint, self.id) {
            (Some(name), ..) if !name.is_empty() => name.clone(),
            (_, Some(endpoint), _) => endpoint.clone(),
            (_, None, id) => id.map_or_else(|| "a member".to_owned(), |id| format!("{id:x}")),
        }
    }
}

/// Where it was compacted, or would be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Compaction {
    /// The revision; `None` where nothing is known to be old enough.
    pub revision: Option<i64>,
    /// Why that one.
    pub why: String,
    /// The newest revision before.
    pub newest_revision: i64,
    /// The revision up to which it was compacted before; 0 for never.
    pub compact_revision_before: i64,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Its word: `measure`, `space`, `compact`, `defrag`, `disarm`, `prove`.
    pub step: &'static str,
    /// What became of it.
    pub result: StepResult,
    /// More of that, as a sentence without a full stop.
    pub detail: String,
    /// Milliseconds that it took.
    pub ms: u64,
}

/// What became of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StepResult {
    /// It was done.
    Done,
    /// There was nothing to do in it.
    Skipped,
    /// It failed.
    Failed,
    /// It did not begin; in a dry run, it would.
    Left,
}

impl StepResult {
    /// Returns the word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
            Self::Left => "left",
        }
    }
}

impl Report {
    /// Begins one from a look at the cluster.
    #[must_use]
    pub fn of(view: &View, dry_run: bool) -> Self {
        let lines = view.members.iter().map(Line::of);
        Self {
            version: 1,
            dry_run,
            outcome: if dry_run { Outcome::DryRun } else { Outcome::Stopped },
            cluster_id: view.cluster_id.map(|id| format!("{id:x}")),
            members: view.members.iter().map(MemberReport::of).collect(),
            alarms_before: view.alarms.clone(),
            alarms: view.alarms.clone(),
            writes_accepted: None,
            free_percent_min: lines.filter_map(Line::free_percent).min(),
            history_bytes: None,
            space: None,
            compaction: None,
            steps: Vec::new(),
            warnings: Vec::new(),
            equivalent: Vec::new(),
            next: Vec::new(),
            stopped: None,
        }
    }

    /// Takes over what another look found.
    pub fn measure(&mut self, view: &View) {
        for member in &mut self.members {
            let now = view.members.iter().find(|now| now.id.is_some() && now.id == member.id);
            let Some(now) = now.filter(|now| now.answered()) else { continue };
            member.after = Some(Size::of(now));
            (member.quota_bytes, member.quota_source) = (now.quota, now.quota_source);
            member.free_percent = Line::of(now).free_percent();
        }
        self.alarms.clone_from(&view.alarms);
        self.free_percent_min =
            view.members.iter().map(Line::of).filter_map(Line::free_percent).min();
    }

    /// Returns what to exit with; a run that stopped early says it in its error.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        match self.outcome {
            Outcome::Reclaimed | Outcome::NothingToDo | Outcome::DryRun => ExitCode::Ok,
            Outcome::Tight | Outcome::Full | Outcome::Unproved => ExitCode::Partial,
            Outcome::Stopped => self.stopped.as_ref().map_or(ExitCode::Failed, |why| why.code),
        }
    }
}

fn optional_hex<S: Serializer>(id: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    match id {
        Some(id) => to.collect_str(&format_args!("{id:x}")),
        None => to.serialize_none(),
    }
}
