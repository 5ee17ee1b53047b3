//! `compaction`: its flags, and its report for people.

use std::sync::Arc;
use std::time::Duration;

use clap::ArgGroup;
use serde_json::json;

use super::output::{self, WriteOut, size};
use super::terminal::Terminal;
use super::{Global, Outcome, duration};
use crate::ops::compaction::window::words;
use crate::ops::compaction::{self, Keep, Options, Report};
use crate::ops::{Error, ExitCode};

#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("window").required(true).multiple(false))]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Drop what no read at this revision or later needs
    #[arg(value_name = "REV", group = "window", value_parser = clap::value_parser!(i64).range(0..))]
    rev: Option<i64>,
    /// Keep the history of so many revisions below the newest
    #[arg(long, value_name = "N", group = "window",
        value_parser = clap::value_parser!(i64).range(0..))]
    keep_revisions: Option<i64>,
    /// Keep the history of so long, as 10m or 1h
    #[arg(long, value_name = "DURATION", group = "window", value_parser = duration::parse)]
    keep_duration: Option<Duration>,
    /// Where no revision is known to be that old: wait until the newest is
    #[arg(long)]
    wait: bool,
    /// Wait until the rows are gone at the member that is asked, however long
    #[arg(long)]
    physical: bool,
    /// Show what would be compacted and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Exit with 10 where there is nothing to do
    #[arg(long)]
    exit_on_noop: bool,
}

const HELP: &str = "\
etcd keeps no times: every run notes beside the audit log which revision it saw when, and
--keep-duration goes by these notes. As a cron job, every ten minutes:
  etcdkit compaction --keep-duration 1h";

pub(super) fn run(global: &Global, args: &Args) -> Outcome {
    let keep = match (args.rev, args.keep_revisions, args.keep_duration) {
        (Some(revision), ..) => Keep::From(revision),
        (None, Some(count), _) => Keep::Revisions(count),
        (None, None, Some(least)) => Keep::Duration(least),
        (None, None, None) => {
            return Err(Error::usage("a revision, or how much to keep, must be given").into());
        }
    };
    if args.wait && args.keep_duration.is_none() {
        let error = Error::usage("--wait is for --keep-duration: nothing else comes with time");
        return Err(error.into());
    }
    let terminal = Terminal::new(global);
    let cluster = Arc::new(global.cluster()?);
    let options = Options {
        keep,
        physical: args.physical,
        wait: args.wait,
        dry_run: args.dry_run,
        audit_log: global.audit_log.clone(),
    };
    let done = compaction::run(&cluster, &options, &terminal);
    terminal.clear();
    if global.program.is_linked() {
        return as_etcdctl(done, &options);
    }
    let report = done?;
    match global.write_out {
        WriteOut::Json => output::print_json(&json!(report))?,
        WriteOut::Fields => output::print_fields(&json!(report))?,
        WriteOut::Simple | WriteOut::Table => output::print_lines(&lines(&report, &options))?,
    }
    match report.is_noop() && args.exit_on_noop {
        true => Ok(ExitCode::NothingToDo),
        false => Ok(ExitCode::Ok),
    }
}

/// Says it in etcdctl's words, whatever the format; the rest goes to standard error.
fn as_etcdctl(done: Result<Report, Error>, options: &Options) -> Outcome {
    let refused = |words: &str| Error::new(ExitCode::Failed, format!("etcdserver: mvcc: {words}"));
    match done {
        Ok(report) if report.is_noop() => {
            let refused = refused("required revision has been compacted");
            Err(refused.hint(lines(&report, options).join("\n      ")).into())
        }
        Ok(report) => {
            output::print_aside(&lines(&report, options));
            let revision = report.revision.unwrap_or(report.compact_revision);
            output::print_lines(&[format!("compacted revision {revision}")])?;
            Ok(ExitCode::Ok)
        }
        Err(error) if error.code == ExitCode::NotFound => {
            let refused = refused("required revision is a future revision");
            Err(refused.hint(error.message).into())
        }
        Err(error) => Err(error.into()),
    }
}

fn lines(report: &Report, options: &Options) -> Vec<String> {
    let revision = report.revision.unwrap_or_default();
    let (before, newest) = (report.compact_revision_before, report.newest_revision);
    let mut lines = Vec::new();
    let verb = match report.outcome {
        compaction::Outcome::Compacted => "compacted",
        compaction::Outcome::WouldCompact => "would compact",
        compaction::Outcome::AlreadyCompacted => {
            lines.push(format!("nothing to do at revision {revision} ({})", report.why));
            let up_to = before.max(report.compact_revision);
            lines.push(match up_to {
                0 => format!("  history    is there from the first revision on, to {newest}"),
                _ => format!("  compacted  up to revision {up_to} already; the newest is {newest}"),
            });
            return lines;
        }
        compaction::Outcome::TooYoung => {
            lines.push(format!("nothing to do: {}", report.why));
            lines.push(format!("  seen       revision {newest}, the newest, was noted"));
            let again = Duration::from_secs(report.again_after_s.unwrap_or_default());
            let next = "run it again in";
            lines.push(format!("  next       {next} {}, or give --wait", words(again)));
            return lines;
        }
    };
    lines.push(format!("{verb} at revision {revision} ({})", report.why));
    lines.push(match before {
        0 => format!("  before     never compacted; the newest was {newest}"),
        _ => format!("  before     up to revision {before}; the newest was {newest}"),
    });
    let goes = if report.dry_run { "would go" } else { "went" };
    lines.push(format!("  history    of {} revisions {goes}", report.revisions));
    if let Some(in_use) = report.in_use_bytes {
        let size = |bytes: i64| size(u64::try_from(bytes).unwrap_or(0));
        lines.push(format!("  in use     {} -> {}", size(in_use.before), size(in_use.after)));
    }
    if !report.dry_run {
        lines.push(format!("  time       {} ms", report.ms));
    }
    lines.extend(report.equivalent.iter().map(|line| format!("  same as    {line}")));
    if !report.dry_run && !options.physical {
        lines.push("  next       the rows go in the background; --physical waits for that".into());
    }
    lines
}
