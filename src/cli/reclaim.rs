//! `reclaim`: its flags, and its report for people.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::{bare, push_table};
use super::output::{self, WriteOut, shown, size};
use super::terminal::Terminal;
use super::{Failure, Global, Outcome, duration};
use crate::ops::ExitCode;
use crate::ops::compaction::Keep;
use crate::ops::online::Size;
use crate::ops::reclaim::{self, MemberReport, Options, Outcome as Ended, Report, offline};

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Args {
    /// Keep the history of so many revisions below the newest [default: what Kubernetes' API
    /// servers count on, else 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
    keep_revisions: Option<i64>,
    /// Keep the history of so long, as 10m or 1h
    #[arg(long, value_name = "DURATION", value_parser = duration::parse,
        conflicts_with_all = ["keep_revisions", "data_dir"])]
    keep_duration: Option<Duration>,
    /// The quota where it is not told: of a stopped member, and of etcd 3.5 without /metrics
    /// [default: etcd's, 2147483648]
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true)]
    quota_backend_bytes: Option<i64>,
    /// Show what would be done and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Go on where the disk of a member on this host seems too full
    #[arg(long)]
    accept_full_disk: bool,
    /// Exit with 10 where there is nothing to do
    #[arg(long)]
    exit_on_noop: bool,
    #[command(flatten)]
    live: Live,
    #[command(flatten)]
    stopped: Stopped,
}

/// Flags that are for running members only.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Of a running cluster")]
struct Live {
    /// Do not read keys to see what fills the space
    #[arg(long, conflicts_with = "data_dir")]
    no_scan: bool,
    /// How long keys are read for that at most [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse,
        conflicts_with_all = ["no_scan", "data_dir"])]
    scan_time: Option<Duration>,
    /// Let the whole cluster wait for more than 8 s where the leader stays the leader, or is the
    /// only voter
    #[arg(long, conflicts_with = "data_dir")]
    accept_stall: bool,
    /// Go on although members are down or sick, and pass those over; never where CORRUPT is
    /// raised
    #[arg(long, conflicts_with = "data_dir")]
    accept_unhealthy: bool,
}

/// Flags that are for a stopped member only.
#[derive(Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Of a stopped member, the only voter")]
struct Stopped {
    /// Its data directory, where a server does not stay up at its quota
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Its WAL directory, where that is another place
    #[arg(long, value_name = "DIR", requires = "data_dir")]
    wal_dir: Option<PathBuf>,
}

const HELP: &str = "\
Measures, says what fills the space, compacts, defragments member by member, disarms NOSPACE and
proves that writes are accepted. It does what is left to do: after an interruption run it again.
Exits with 0 where writes are accepted and 20 % of every quota is free, else with 3.
  etcdkit reclaim --endpoints https://10.0.0.1:2379 --dry-run";

pub(super) fn run(global: &Global, args: Args) -> Outcome {
    let keep = match (args.keep_revisions, args.keep_duration) {
        (Some(count), _) => Keep::Revisions(count),
        (None, Some(least)) => Keep::Duration(least),
        (None, None) => Keep::Default,
    };
    let terminal = Terminal::new(global);
    if let Some(data_dir) = args.stopped.data_dir {
        let options = offline::Options {
            data_dir,
            wal_dir: args.stopped.wal_dir,
            keep,
            quota_bytes: args.quota_backend_bytes,
            accept_full_disk: args.accept_full_disk,
            dry_run: args.dry_run,
            audit_log: global.audit_log.clone(),
        };
        let report = offline::reclaim(&options, &terminal)?;
        terminal.clear();
        show(global, &json!(report), &stopped_lines(&report))?;
        return Ok(noop(report.outcome, args.exit_on_noop, report.exit_code()));
    }
    let budget = args.live.scan_time.unwrap_or(reclaim::SCAN_TIME);
    let options = Options {
        settings: global.connection.settings()?,
        keep,
        scan: (!args.live.no_scan).then_some(budget),
        quota_bytes: args.quota_backend_bytes,
        accept_stall: args.live.accept_stall,
        accept_unhealthy: args.live.accept_unhealthy,
        accept_full_disk: args.accept_full_disk,
        dry_run: args.dry_run,
        audit_log: global.audit_log.clone(),
    };
    let report = reclaim::reclaim(&options, &terminal)?;
    terminal.clear();
    show(global, &json!(report), &lines(&report, global.write_out))?;
    if let Some(stopped) = &report.stopped {
        return Err(Failure::from(stopped.error()));
    }
    Ok(noop(report.outcome, args.exit_on_noop, report.exit_code()))
}

fn noop(outcome: Ended, exit_on_noop: bool, code: ExitCode) -> ExitCode {
    if outcome == Ended::NothingToDo && exit_on_noop { ExitCode::NothingToDo } else { code }
}

fn show(global: &Global, value: &Value, lines: &[String]) -> std::io::Result<()> {
    match global.write_out {
        WriteOut::Json => output::print_json(value),
        WriteOut::Fields => output::print_fields(value),
        WriteOut::Simple | WriteOut::Table => output::print_lines(lines),
    }
}

fn bytes(bytes: i64) -> String {
    size(u64::try_from(bytes).unwrap_or(0))
}

fn percent(percent: Option<i64>) -> String {
    percent.map_or_else(|| "-".to_owned(), |percent| format!("{percent}%"))
}

/// What of it all is to be read first.
fn verdict(outcome: Ended, free: Option<i64>) -> String {
    let free = free.map_or_else(String::new, |free| format!("; {free} % of the quota is free"));
    match outcome {
        Ended::Reclaimed => format!("reclaimed: writes are accepted{free}"),
        Ended::Tight => format!("writes are accepted, and soon will not be{free}, 20 % should be"),
        Ended::Full => format!("NO WRITES ARE ACCEPTED{free}"),
        Ended::Unproved => format!("it is not known whether writes are accepted{free}"),
        Ended::NothingToDo => format!("nothing to do: NOSPACE is not raised{free}"),
        Ended::DryRun => "dry run: nothing was changed".to_owned(),
        Ended::Stopped => "stopped early".to_owned(),
    }
}

fn lines(report: &Report, format: WriteOut) -> Vec<String> {
    let mut lines = vec![verdict(report.outcome, report.free_percent_min)];
    let header = [
        "MEMBER",
        "QUOTA",
        "SIZE",
        "IN USE",
        "FREE",
        "SIZE NOW",
        "IN USE NOW",
        "FREE NOW",
        "WRITES",
    ];
    let mut table = match format {
        WriteOut::Table => {
            let mut table = output::table();
            table.set_header(header);
            table
        }
        _ => bare(&header),
    };
    for member in &report.members {
        table.add_row(row(member));
    }
    match format {
        WriteOut::Table => lines.extend(output::drawn(&table)),
        _ => push_table(&mut lines, &table),
    }
    for member in &report.members {
        if let Some(why) = &member.why {
            lines.push(format!("  {}: {}", shown(&member.label()), shown(why)));
        }
    }
    for alarm in &report.alarms {
        let whose = alarm.name.clone().unwrap_or_else(|| format!("{:x}", alarm.id));
        lines.push(format!("  raised     {} of {}", alarm.alarm, shown(&whose)));
    }
    if let Some(space) = &report.space {
        let part = if space.partial { ", a part of them" } else { "" };
        lines.push(format!(
            "  space      {} keys{part}, {} at revision {}",
            space.keys,
            size(space.live_bytes),
            space.revision
        ));
        lines.extend(space.groups.iter().map(|group| {
            let about = if group.exact { "" } else { "about " };
            let (name, bytes) = (shown(&group.name), size(group.bytes));
            format!("  {:<10} {name}: {} keys, {about}{bytes}", "", group.keys)
        }));
    }
    if let Some(history) = report.history_bytes {
        lines.push(format!("  history    about {} were history, or room in pages", bytes(history)));
    }
    let steps = report.steps.iter().map(|step| format!("{} {} ms", step.step, step.ms));
    lines.push(format!("  time       {}", steps.collect::<Vec<_>>().join(", ")));
    lines.extend(report.equivalent.iter().map(|line| format!("  same as    {line}")));
    lines.extend(report.next.iter().map(|line| format!("  next       {line}")));
    lines
}

fn row(member: &MemberReport) -> Vec<String> {
    let sizes = |size: Option<Size>| match size {
        Some(size) => [bytes(size.db_bytes), bytes(size.in_use_bytes)],
        None => ["-".to_owned(), "-".to_owned()],
    };
    let writes = match member.accepts_writes {
        Some(true) => "yes",
        Some(false) => "NO",
        None if member.why.is_some() => "?",
        None => "-",
    };
    let mut row = vec![shown(&member.label()), member.quota_bytes.map_or("-".into(), bytes)];
    row.extend(sizes(member.before));
    row.push(percent(member.free_percent_before));
    row.extend(sizes(member.after));
    row.push(percent(member.free_percent));
    row.push(writes.to_owned());
    row
}

fn stopped_lines(report: &offline::Report) -> Vec<String> {
    let free = report.free_percent.or(report.free_percent_before);
    let free_text =
        free.map_or_else(String::new, |free| format!("; {free} % of the quota is free"));
    let mut lines = vec![match report.outcome {
        Ended::Reclaimed => format!("reclaimed {}{free_text}", report.data_dir),
        Ended::Full => {
            format!("{} is still at its quota: its server will take no writes", report.data_dir)
        }
        outcome => format!("{}: {}", report.data_dir, verdict(outcome, free)),
    }];
    let name = if report.member_name.is_empty() { "-" } else { report.member_name.as_str() };
    lines.push(format!("  member     {} = {}, the only voter", shown(name), report.member_id));
    let assumed = if report.quota_assumed { ", etcd's default" } else { "" };
    lines.push(format!("  quota      {}{assumed}", bytes(report.quota_bytes)));
    let after = report.after.unwrap_or(report.before);
    lines.push(format!(
        "  db size    {} -> {}; in use {} -> {}",
        bytes(report.before.db_bytes),
        bytes(after.db_bytes),
        bytes(report.before.in_use_bytes),
        bytes(after.in_use_bytes)
    ));
    lines.push(format!(
        "  keys       {}, {} bytes alive, {} bytes were history; revision {}",
        report.keys, report.live_bytes, report.history_bytes, report.revision
    ));
    let compaction = &report.compaction;
    let at = compaction.revision.map_or_else(|| "-".to_owned(), |at| at.to_string());
    lines.push(format!(
        "  compacted  at {at} ({}); before up to {}",
        compaction.why, compaction.compact_revision_before
    ));
    let alarms = |alarms: &[offline::RaisedAlarm]| match alarms {
        [] => "none".to_owned(),
        alarms => alarms.iter().map(|alarm| alarm.alarm).collect::<Vec<_>>().join(", "),
    };
    let (before, now) = (alarms(&report.alarms_before), alarms(&report.alarms));
    lines.push(format!("  alarms     {before} -> {now}"));
    let starts = match report.starts_on.as_slice() {
        [] => "not known".to_owned(),
        versions => format!("etcd {}", versions.join(", ")),
    };
    lines.push(format!("  starts     {starts}"));
    lines.extend(report.next.iter().map(|line| format!("  next       {line}")));
    lines
}
