//! What a defragmentation did, member by member.

use serde::{Serialize, Serializer};

use super::plan::Role;
use crate::ops::cluster::MemberView;
use crate::ops::{Error, ExitCode};

/// What was done; `docs/JSON.md` describes it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this shape.
    pub version: u8,
    /// Nothing was changed.
    pub dry_run: bool,
    /// Id of the cluster, in hex.
    pub cluster_id: Option<String>,
    /// Every member that was to be done, in the order in which they were, or would be.
    pub members: Vec<MemberReport>,
    /// Each time that the leadership was moved.
    pub leader_moves: Vec<LeaderMove>,
    /// Bytes by which the databases shrank, all together.
    pub gained_bytes: i64,
    /// What should be known.
    pub warnings: Vec<String>,
    /// Ordinary commands that do the same: of what was done, in a dry run of what would be.
    pub equivalent: Vec<String>,
    /// Why it stopped early; `None` where it came to the end.
    pub stopped: Option<Stopped>,
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemberReport {
    /// Where it was asked.
    pub endpoint: String,
    /// Its id.
    #[serde(serialize_with = "hex")]
    pub id: u64,
    /// Its name, where it has one.
    pub name: Option<String>,
    /// What it was in its turn.
    pub role: Role,
    /// Its database before.
    pub before: Size,
    /// Its database after; `None` where it was not defragmented.
    pub after: Option<Size>,
    /// Bytes that the plan said it would give back.
    pub predicted_gain_bytes: i64,
    /// Milliseconds for which the plan said that it would not answer.
    pub predicted_stall_ms: u64,
    /// Bytes that it gave back.
    pub gained_bytes: Option<i64>,
    /// How long it took to answer, in milliseconds.
    pub duration_ms: Option<u64>,
    /// Longest time for which reads of one key through it had no answer, in milliseconds.
    pub stall_ms: Option<u64>,
    /// Bytes that are free beside its file; `None` where that was not seen.
    pub free_bytes: Option<u64>,
    /// What became of it.
    pub result: Outcome,
    /// Why it was skipped, failed, or is left.
    pub why: Option<String>,
}

impl MemberReport {
    /// Says why it came to what it did: `m1: connection refused`.
    #[must_use]
    pub fn sentence(&self) -> String {
        let name = self.name.clone().unwrap_or_else(|| format!("{:x}", self.id));
        format!("{name}: {}", self.why.as_deref().unwrap_or_default())
    }
}

/// Figures of a database file, as the member says them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Bytes that count against the quota.
    pub db_bytes: i64,
    /// Bytes of pages that hold something.
    pub in_use_bytes: i64,
}

impl Size {
    /// Takes what a member says of itself.
    #[must_use]
    pub fn of(member: &MemberView) -> Self {
        let (db_bytes, in_use_bytes) = (member.db_size, member.db_size_in_use);
        Self { db_bytes: db_bytes.unwrap_or(0), in_use_bytes: in_use_bytes.unwrap_or(0) }
    }

    /// Returns what a defragmentation gives back.
    #[must_use]
    pub fn gain(self) -> i64 {
        self.db_bytes.saturating_sub(self.in_use_bytes).max(0)
    }
}

/// What became of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was defragmented.
    Done,
    /// It was not worth it.
    Skipped,
    /// It was asked, and did not come back as it should.
    Failed,
    /// Its turn did not come; in a dry run, it would.
    Left,
    /// It was down or sick at its turn, and passed over.
    Down,
}

impl Outcome {
    /// Returns the word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
            Self::Left => "left",
            Self::Down => "down",
        }
    }
}

/// The leadership given from one member to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeaderMove {
    /// Who led.
    #[serde(serialize_with = "hex")]
    pub from: u64,
    /// Who was to lead.
    #[serde(serialize_with = "hex")]
    pub to: u64,
    /// How long it took until all members knew, in milliseconds.
    pub took_ms: u64,
}

/// Why a run ended before its end, as errors say it everywhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Stopped {
    /// What it exits with.
    #[serde(serialize_with = "number")]
    pub code: ExitCode,
    /// The name of that.
    pub kind: &'static str,
    /// What happened.
    pub message: String,
    /// What to run or do next, most useful first.
    pub hints: Vec<String>,
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        let (code, kind) = (error.code, error.code.name());
        Self { code, kind, message: error.message, hints: error.hints }
    }
}

impl Stopped {
    /// Returns it as the error that it was.
    #[must_use]
    pub fn error(&self) -> Error {
        let error = Error::new(self.code, self.message.clone());
        self.hints.iter().fold(error, |error, hint| error.hint(hint.clone()))
    }
}

impl Report {
    /// Returns why it stopped early, or which members it passed over, as an error; `None` where
    /// every member came to its end.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        if let Some(stopped) = &self.stopped {
            return Some(stopped.error());
        }
        let down = self.members.iter().filter(|member| member.result == Outcome::Down);
        let down: Vec<String> = down.map(MemberReport::sentence).collect();
        if down.is_empty() {
            return None;
        }
        let (down, all) = (down.join("; "), self.members.len());
        let message = match self.dry_run {
            true => format!("members are down and would be passed over: {down}"),
            false => format!(
                "members were down and passed over: {down}; {} of {all} members are defragmented",
                self.count(Outcome::Done)
            ),
        };
        let error = Error::new(ExitCode::Partial, message);
        Some(error.hint("run it again when they are back: members that are done are skipped"))
    }

    /// Returns what to exit with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        self.error().map_or(ExitCode::Ok, |error| error.code)
    }

    /// Returns how many members came to an end in this way.
    #[must_use]
    pub fn count(&self, result: Outcome) -> usize {
        self.members.iter().filter(|member| member.result == result).count()
    }
}

fn hex<S: Serializer>(id: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{id:x}"))
}

fn number<S: Serializer>(code: &ExitCode, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u8(code.number())
}
