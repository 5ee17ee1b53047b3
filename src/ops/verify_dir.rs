//! `snapshot verify DIR`: may a server be started on this data directory, and which one?
//!
//! The database, the log and the snapshot files are read, each by itself, and then held against
//! each other. A directory that a server has open is refused at once. Nothing is written.

use std::path::Path;

use serde::Serialize;
use serde_json::{Value, json};

use super::examine::{self, Examined, Level};
use super::{Error, ExitCode, Progress, holder, shell_word, status, tail};
use crate::bolt::File;
use crate::etcd::apply;
use crate::etcd::data_dir::{self, DataDir, Facts, Start, Starts, starts_on};
use crate::etcd::log::{Counted, Log, ReadError, Tail};
use crate::etcd::members::{ClusterId, MemberId};
use crate::etcd::replay;
use crate::format::finding::{Code, Finding, Findings, Place};

/// What a part of the directory came out as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Looked at, nothing wrong.
    Ok,
    /// The log ends with a write that was cut short, which a server repairs.
    Torn,
    /// Not there.
    Missing,
    /// Wrong.
    Damaged,
    /// Holds what this version does not know.
    Unknown,
    /// Not looked at.
    Unchecked,
}

/// What the directory came out as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Whole, and at least one etcd serves from it.
    Good,
    /// Nothing is wrong as far as was looked, but the database's pages and rows were not.
    Unchecked,
    /// Nothing is wrong, but it holds what this version does not know.
    Unknown,
    /// Damaged, or its parts contradict each other.
    Damaged,
}

impl Verdict {
    /// Returns what the program exits with.
    #[must_use]
    pub fn exit_code(self) -> ExitCode {
        match self {
            Self::Good | Self::Unchecked => ExitCode::Ok,
            Self::Unknown => ExitCode::Refused,
            Self::Damaged => ExitCode::Damage,
        }
    }
}

/// Everything that is known about a data directory.
#[derive(Debug)]
pub struct VerifiedDir {
    /// What lies in it.
    pub dir: DataDir,
    /// The database, where there is one.
    pub database: Option<Examined>,
    /// The log, where there is one.
    pub log: Option<Log>,
    /// How the parts go together; `None` where not all of them were read.
    pub facts: Option<Facts>,
    /// Which etcd starts on it; empty where that is not known.
    pub starts: Vec<Start>,
    /// Whether the parts contradict each other.
    pub agreement: Part,
    /// All findings.
    pub findings: Findings,
    /// Over all.
    pub verdict: Verdict,
}

/// Verifies a data directory; `wal_dir` is where its log is, when not in it.
///
/// # Errors
/// [`ExitCode::InUse`] when a server has it open; a file cannot be read; the operation was told to
/// stop. Damage is no error.
pub fn verify(
    path: &Path,
    wal_dir: Option<&Path>,
    level: Level,
    progress: &dyn Progress,
) -> Result<VerifiedDir, Error> {
    if let Some(wal_dir) = wal_dir
        && !wal_dir.is_dir()
    {
        let message = format!("{} is no directory", wal_dir.display());
        return Err(Error::new(ExitCode::NotFound, message));
    }
    let failed = |error: ReadError| Error::io(&error.source, "read", &error.path);
    tail::data_dir(path)?;
    let dir = DataDir::inspect(path, wal_dir).map_err(failed)?;
    if dir.database.is_none() && !dir.has_log && dir.snaps.is_empty() {
        let message = format!("{} holds no database and no log of an etcd", path.display());
        return Err(Error::new(ExitCode::NotFound, message)
            .hint("etcdkit snapshot verify DIR, with the folder that --data-dir of etcd names")
            .hint("add --wal-dir if etcd has its log elsewhere"));
    }
    if let Some(who) = holder::of_member(&dir.member, &dir.wal_dir) {
        return Err(Error::new(ExitCode::InUse, format!("{} is in use by {who}", path.display()))
            .hint("etcdkit snapshot save FILE, which asks the running member for a snapshot")
            .hint("or stop that process first"));
    }
    let database = match &dir.database {
        Some(database) => Some(examine_database(database, level, progress)?),
        None => None,
    };
    let log = if dir.has_log { Some(read_log(&dir, progress)?) } else { None };
    let (log, trouble) = replay(&dir, database.as_ref(), log, progress)?;
    judge(dir, database, log, trouble)
}

/// Does what a server's start does with the entries that the database lacks; returns what stands in
/// the way of that.
fn replay(
    dir: &DataDir,
    database: Option<&Examined>,
    log: Option<Log>,
    progress: &dyn Progress,
) -> Result<(Option<Log>, Option<replay::Error>), Error> {
    let whole = database.filter(|database| database.rows.is_some() && !database.is_damaged());
    let Some((own, file)) = whole.and_then(|whole| Some((&whole.path, whole.file.as_ref()?)))
    else {
        return Ok((log, None));
    };
    let Some(log) = log else { return Ok((None, None)) };
    if log.obstacle().is_some() {
        return Ok((Some(log), None));
    }
    // Where that of a leader is missing, the parts of the directory do not go together.
    let Ok(picked) = tail::pick_database(&dir.member.join("snap"), own, &log) else {
        return Ok((Some(log), None));
    };
    let received = if picked == *own { None } else { File::open(&picked).ok() };
    let data_dir = tail::data_dir(&dir.path)?;
    let dead = tail::Dead { data_dir, database: picked, log };
    let trouble = dead.try_replay(received.as_ref().unwrap_or(file), progress)?;
    Ok((Some(dead.log), trouble))
}

/// Turns what stands in the way of a replay into a finding, and into a fact.
fn take_trouble(trouble: &replay::Error, facts: &mut Facts, findings: &mut Findings) {
    let what = trouble.to_string();
    let index = match trouble {
        replay::Error::Apply(
            apply::Error::Request { index, .. } | apply::Error::Entry { index, .. },
        )
        | replay::Error::Passwords(index) => *index,
        replay::Error::Gap { found, .. } => *found,
        _ => facts.consistent_index.saturating_add(1),
    };
    let code = if tail::exit_code(trouble) == ExitCode::Refused {
        facts.unknown_entry = Some((index, what.clone()));
        Code::WalEntryUnknown
    } else {
        facts.broken_entry = Some((index, what.clone()));
        Code::WalEntryBroken
    };
    findings.push(Finding::new(code, Place::default(), what));
}

/// Examines the database, as which it needs neither trailer nor a last commit at its end.
fn examine_database(path: &Path, level: Level, progress: &dyn Progress) -> Result<Examined, Error> {
    let mut examined = examine::examine(path, level, progress)?;
    let mut findings = Findings::default();
    for found in examined.findings.kept() {
        if ![Code::SealMissing, Code::FileLiveCopy, Code::FileExtra].contains(&found.code) {
            findings.push(found.clone());
        }
    }
    examined.findings = findings;
    Ok(examined)
}

fn read_log(dir: &DataDir, progress: &dyn Progress) -> Result<Log, Error> {
    progress.step("read the log", 0);
    let mut done = 0_u64;
    let mut watch = |bytes: u64| {
        done = done.saturating_add(bytes);
        progress.advance(done);
        !progress.stopped()
    };
    Log::open_watched(&dir.wal_dir, &mut watch).map_err(|error| {
        if error.source.kind() == std::io::ErrorKind::Interrupted {
            return Error::interrupted();
        }
        Error::io(&error.source, "read", &error.path)
    })
}

/// Draws the conclusions from what was read.
fn judge(
    dir: DataDir,
    database: Option<Examined>,
    log: Option<Log>,
    trouble: Option<replay::Error>,
) -> Result<VerifiedDir, Error> {
    let mut findings = Findings::default();
    if let Some(examined) = &database {
        for mut found in examined.all_findings().kept().iter().cloned() {
            found.place.file = Some("member/snap/db".into());
            findings.push(found);
        }
    }
    if let Some(log) = &log {
        findings.append(log.findings.clone());
    }
    findings.append(dir.findings.clone());
    let rows = database.as_ref().and_then(|examined| examined.rows.as_ref());
    let is_whole = database.as_ref().is_none_or(|examined| !examined.is_damaged());
    let mut agreement = Part::Unchecked;
    let (mut facts, mut starts) = (None, Vec::new());
    // Rows of a damaged database may say anything.
    if (rows.is_some() && is_whole) || database.is_none() {
        let agreed = data_dir::agree(&dir, log.as_ref(), rows, is_whole);
        let (mut made, found) = agreed
            .map_err(|error| Error::new(ExitCode::Failed, format!("{}: {error}", "the log")))?;
        agreement = if found.has_errors() { Part::Damaged } else { Part::Ok };
        findings.append(found);
        if let Some(trouble) = &trouble {
            take_trouble(trouble, &mut made, &mut findings);
        }
        starts = starts_on(&made);
        facts = Some(made);
    }
    let nobody = !starts.is_empty() && starts.iter().all(|start| start.starts != Starts::Yes);
    let verdict = if findings.has_errors() || nobody {
        Verdict::Damaged
    } else if findings.has_unknown() {
        Verdict::Unknown
    } else if database.is_some() && rows.is_none() {
        Verdict::Unchecked
    } else {
        Verdict::Good
    };
    Ok(VerifiedDir { dir, database, log, facts, starts, agreement, findings, verdict })
}

impl VerifiedDir {
    /// Returns what the database came out as.
    #[must_use]
    pub fn database_part(&self) -> Part {
        let Some(examined) = &self.database else { return Part::Missing };
        let corrupt = |rows: &crate::etcd::survey::Report| rows.findings.has(Code::AlarmCorrupt);
        if examined.is_damaged() || examined.rows.as_ref().is_some_and(corrupt) {
            Part::Damaged
        } else if examined.rows.is_none() {
            Part::Unchecked
        } else if examined.has_unknown() {
            Part::Unknown
        } else {
            Part::Ok
        }
    }

    /// Returns what the log came out as.
    #[must_use]
    pub fn log_part(&self) -> Part {
        let Some(log) = &self.log else { return Part::Missing };
        let has = |code| self.findings.has(code);
        if log.findings.has_errors() || has(Code::WalEntryBroken) {
            Part::Damaged
        } else if log.findings.has_unknown() || has(Code::WalEntryUnknown) {
            Part::Unknown
        } else if let Tail::Torn { .. } = log.tail {
            Part::Torn
        } else {
            Part::Ok
        }
    }

    /// Counts the entries that count and are not in the database.
    #[must_use]
    pub fn beyond_database(&self) -> Option<u64> {
        let facts = self.facts.as_ref().filter(|facts| facts.has_log)?;
        Some(facts.reach.saturating_sub(facts.consistent_index))
    }

    /// Returns what to do next, as commands and the sentences that belong to them.
    #[must_use]
    pub fn next(&self) -> Vec<String> {
        let data_dir = tail::data_dir(&self.dir.path).unwrap_or_else(|_| self.dir.path.clone());
        let word = shell_word(&data_dir.display().to_string());
        let wal = (self.dir.wal_dir != self.dir.member.join("wal")).then_some(&self.dir.wal_dir);
        let wal = wal.map(|wal| shell_word(&wal.display().to_string()));
        let wal_flag = wal.as_ref().map(|wal| format!(" --wal-dir {wal}")).unwrap_or_default();
        let save = format!("etcdkit snapshot save FILE --from-data-dir {word}{wal_flag}");
        let log_is_usable = [Part::Ok, Part::Torn].contains(&self.log_part());
        match self.verdict {
            Verdict::Good => {
                let mut next = vec![save];
                next.extend(self.before_3_7());
                next
            }
            Verdict::Unchecked => vec![format!("etcdkit snapshot verify {word}{wal_flag}")],
            Verdict::Unknown => vec!["verify it with a newer etcdkit".into()],
            Verdict::Damaged => match &self.dir.database {
                None if self.rebuilt_by().is_some() => self.rebuild(&data_dir, wal.as_deref()),
                Some(_)
                    if [Part::Ok, Part::Unchecked].contains(&self.database_part())
                        && log_is_usable
                        && self.agreement != Part::Damaged =>
                {
                    vec![save]
                }
                Some(database) if self.database_part() != Part::Damaged => {
                    tail::without_log(&data_dir, database).to_vec()
                }
                _ => vec![
                    "keep a copy of the directory; restore the newest snapshot, or add the member \
                     anew to a cluster that runs"
                        .into(),
                ],
            },
        }
    }

    /// Says how etcd 3.7 gets to start, where only requests of the v2 API stand in its way.
    fn before_3_7(&self) -> Option<String> {
        let facts = self.facts.as_ref()?;
        let starts = |etcd: &str| {
            let start = self.starts.iter().find(|start| start.etcd == etcd);
            start.is_some_and(|start| start.starts == Starts::Yes)
        };
        if starts("3.7") || facts.requests.last_v2 <= Some(facts.newest_record) {
            return None;
        }
        Some(if starts("3.6") {
            "for etcd 3.7: start etcd 3.6 once with --snapshot-count 1 and write once, or save \
             and restore"
                .into()
        } else {
            "for etcd 3.7: save and restore".into()
        })
    }

    /// Names the etcd that makes a database that is missing anew from the log: the oldest one,
    /// since a newer one may leave data that the log's own version does not take back.
    fn rebuilt_by(&self) -> Option<&'static str> {
        let able = self.starts.iter().find(|start| start.starts == Starts::Yes);
        able.map(|start| start.etcd).filter(|_| self.database.is_none())
    }

    fn rebuild(&self, data_dir: &Path, wal: Option<&str>) -> Vec<String> {
        let etcd = self.rebuilt_by().unwrap_or_default();
        let copy = |path: &str| shell_word(&format!("{path}.copy"));
        let (from, to) = (data_dir.display().to_string(), copy(&data_dir.display().to_string()));
        let mut next = vec![
            format!(
                "the log is whole from its first entry, and etcd {etcd} makes the database anew \
                 from it: copy the directory and start that on the copy"
            ),
            format!("cp -a {} {to}", shell_word(&from)),
        ];
        let mut start = format!("etcd --data-dir {to}");
        if let Some(wal) = wal {
            let to = copy(&self.dir.wal_dir.display().to_string());
            next.push(format!("cp -a {wal} {to}"));
            start.push_str(&format!(" --wal-dir {to}"));
        }
        let counted = self.facts.as_ref().and_then(|facts| facts.counted);
        if counted != Some(Counted::SoleVoter) {
            start.push_str(" --force-new-cluster");
        }
        next.push(start);
        next.push("etcdkit snapshot save FILE".into());
        next
    }

    /// Builds the JSON object; `docs/JSON.md` describes it.
    #[must_use]
    pub fn report(&self) -> Value {
        let mut report = json!({
            "directory": self.dir.path.display().to_string(),
            "verdict": self.verdict,
            "database": self.database_part(),
            "log": self.log_part(),
            "agreement": self.agreement,
            "starts_on": self.starts,
        });
        let Some(map) = report.as_object_mut() else { return report };
        if let Some(rows) = self.database.as_ref().and_then(|examined| examined.rows.as_ref()) {
            map.insert("revision".into(), json!(rows.current_revision));
            map.insert("keys".into(), json!(rows.live_keys));
            map.insert("consistent_index".into(), json!(rows.consistent_index));
            map.insert("members".into(), status::members(rows));
        }
        if let Some(log) = &self.log {
            map.insert("wal".into(), self.wal_report(log));
        }
        map.insert("findings".into(), json!(self.findings.kept()));
        map.insert("findings_left_out".into(), json!(self.findings.left_out()));
        map.insert("next".into(), json!(self.next()));
        report
    }

    fn wal_report(&self, log: &Log) -> Value {
        let metadata = log.metadata.unwrap_or_default();
        let facts = self.facts.as_ref();
        let dropped = match log.tail {
            Tail::Torn { dropped_bytes } => dropped_bytes,
            Tail::Whole | Tail::Damaged => 0,
        };
        let reach = facts.map(|facts| facts.reach);
        let counted = facts.map(|facts| match facts.counted {
            Some(Counted::SoleVoter) => "sole-voter",
            Some(Counted::Committed) => "committed",
            Some(Counted::VotersUnknown) | None => "voters-unknown",
        });
        let voters = facts.map(|facts| facts.voters.iter().map(|id| MemberId(*id)));
        json!({
            "member": MemberId(metadata.node_id),
            "cluster": ClusterId(metadata.cluster_id),
            "segments": log.segments.len(),
            "first_entry": log.first.map(|first| first.index),
            "last_entry": log.last.map(|last| last.index),
            "commit": log.hard_state.map(|state| state.commit),
            "snapshot": log.newest_snapshot().map(|snapshot| snapshot.index),
            "counts_up_to": reach,
            "counts_by": counted,
            "beyond_database": self.beyond_database(),
            "voters": voters.map(|voters| voters.collect::<Vec<_>>()),
            "dropped_bytes": dropped,
        })
    }
}
