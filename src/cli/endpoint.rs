//! `endpoint status|health|hashkv`: what each member says, in etcdctl's shapes.
//!
//! Under our own name an endpoint that fails is told at the end, in one error; as etcdctl, in that
//! program's lines.

use clap::Subcommand;

use super::etcdctl::{self, Format, Printed};
use super::linked::Program;
use super::{Global, Outcome, output};
use crate::live::{self, AlarmKind, Answers, Health, Trouble};
use crate::ops::cluster::Access;
use crate::ops::{Error, ExitCode, reach};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Read through each endpoint, and look whether alarms are raised
    Health,
    /// Show what each endpoint says of itself
    Status,
    /// Show each endpoint's hash of all records up to a revision
    Hashkv {
        /// Hash records up to this revision; 0 for the newest of each member
        #[arg(long, value_name = "REVISION", default_value_t = 0)]
        #[arg(value_parser = clap::value_parser!(i64).range(0..))]
        rev: i64,
    },
}

pub(super) fn run(global: &Global, command: &Command) -> Outcome {
    let cluster = global.cluster()?;
    let format = global.format();
    match command {
        Command::Status => {
            let (answers, failures) = split(cluster.statuses());
            show(global, "status", &failures, || etcdctl::statuses(format, &answers))
        }
        Command::Hashkv { rev } => {
            let (answers, failures) = split(cluster.hash_kvs(*rev));
            show(global, "hash", &failures, || etcdctl::hash_kvs(format, &answers))
        }
        Command::Health => {
            let access = Access::of(cluster.settings());
            let endpoints = cluster.endpoints().join(",");
            let list = access.command("etcdkit", Some(&endpoints), &["alarm", "list"]);
            show_health(global, format, &cluster.healths(), &list)
        }
    }
}

fn split<T>(answers: Answers<T>) -> (Vec<(String, T)>, Failures) {
    let mut failures = Failures { all: answers.len(), failed: Vec::new() };
    let answered = answers.into_iter().filter_map(|(endpoint, answer)| match answer {
        Ok(answer) => Some((endpoint, answer)),
        Err(error) => {
            failures.failed.push(live::Error { endpoint, ..error });
            None
        }
    });
    let answered = answered.collect();
    (answered, failures)
}

/// Endpoints that gave no answer, of so many that were asked.
struct Failures {
    all: usize,
    failed: Vec<live::Error>,
}

fn show(
    global: &Global,
    what: &str,
    failures: &Failures,
    printed: impl FnOnce() -> Printed,
) -> Outcome {
    let Some(last) = failures.failed.last() else {
        output::print(&printed())?;
        return Ok(ExitCode::Ok);
    };
    let answered = failures.all - failures.failed.len();
    if global.program == Program::Etcdctl {
        let lines = failures.failed.iter().map(|error| {
            format!("Failed to get the {what} of endpoint {} ({})\n", error.endpoint, error.cause)
        });
        output::print(&Printed { stdout: String::new(), stderr: lines.collect() })?;
        output::print(&printed())?;
        return match what {
            // After these etcdctl says no more.
            "status" => Ok(ExitCode::Failed),
            _ => Err(Error::new(ExitCode::Failed, last.cause.to_string()).into()),
        };
    }
    if answered > 0 {
        output::print(&printed())?;
    }
    let failed = failures.failed.iter();
    let told = failed.map(|error| (reach::code(&error.cause), Error::from(error.clone())));
    Err(gather(failures.all, "gave no answer", told.collect()).into())
}

fn show_health(
    global: &Global,
    format: Format,
    healths: &[(String, Health)],
    list: &str,
) -> Outcome {
    output::print(&etcdctl::healths(format, healths))?;
    let troubled = healths.iter().filter_map(|(endpoint, health)| {
        let trouble = health.trouble.as_ref()?;
        Some((trouble_code(trouble), trouble_error(endpoint, trouble, list)))
    });
    let troubled: Vec<_> = troubled.collect();
    if troubled.is_empty() {
        return Ok(ExitCode::Ok);
    }
    if global.program == Program::Etcdctl {
        return Err(Error::new(ExitCode::Failed, "unhealthy cluster").into());
    }
    Err(gather(healths.len(), "unhealthy", troubled).into())
}

fn trouble_code(trouble: &Trouble) -> ExitCode {
    match trouble {
        Trouble::Read(error) | Trouble::AlarmList(error) => reach::code(&error.cause),
        Trouble::Alarms(alarms) => {
            match alarms.iter().any(|alarm| alarm.kind == AlarmKind::Corrupt) {
                true => ExitCode::Damage,
                false => ExitCode::Failed,
            }
        }
    }
}

/// Makes an error of what is wrong; `list` is the command that lists alarms.
fn trouble_error(endpoint: &str, trouble: &Trouble, list: &str) -> Error {
    match trouble {
        Trouble::Read(error) => error.clone().into(),
        Trouble::AlarmList(error) => {
            let mut made = Error::from(error.clone());
            made.message = format!("{endpoint}: cannot list the alarms: {}", error.cause);
            made
        }
        Trouble::Alarms(alarms) => {
            let mut words: Vec<&str> = alarms.iter().map(|alarm| alarm.kind.word()).collect();
            words.dedup();
            let message = format!("{endpoint}: alarms are raised: {}", words.join(", "));
            Error::new(trouble_code(trouble), message).hint(list)
        }
    }
}

/// Makes one error of those of several endpoints: partial where others were fine, else the worst.
fn gather(all: usize, what: &str, failed: Vec<(ExitCode, Error)>) -> Error {
    let has = |wanted| failed.iter().any(|(code, _)| *code == wanted);
    let code = match failed.len() {
        _ if has(ExitCode::Damage) => ExitCode::Damage,
        count if count < all => ExitCode::Partial,
        _ if has(ExitCode::Tls) => ExitCode::Tls,
        _ if has(ExitCode::Unreachable) => ExitCode::Unreachable,
        _ => failed.first().map_or(ExitCode::Failed, |(code, _)| *code),
    };
    let messages: Vec<&str> = failed.iter().map(|(_, error)| error.message.as_str()).collect();
    let message = match all {
        1 => messages.join("; "),
        _ => format!("{} of {all} endpoints {what}: {}", failed.len(), messages.join("; ")),
    };
    let mut gathered = Error::new(code, message);
    for hint in failed.iter().flat_map(|(_, error)| &error.hints) {
        if !gathered.hints.contains(hint) {
            gathered.hints.push(hint.clone());
        }
    }
    gathered
}
