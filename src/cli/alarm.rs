//! `alarm list` and `alarm disarm`: etcdctl's shapes on stdout, and for people, beside them, whose
//! each alarm is, what it means, and what to do.

use clap::Subcommand;

use super::terminal::Terminal;
use super::{Global, Outcome, WriteOut, etcdctl, output};
use crate::live::{AlarmKind, Alarms};
use crate::ops::ExitCode;
use crate::ops::disarm::{self, Named, Options, meaning, named};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List the alarms that are raised
    List,
    /// Disarm the alarms that are raised, where their cause is gone
    Disarm(Disarm),
}

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(super) struct Disarm {
    /// Disarm NOSPACE although a member is at its quota: the next write raises it again
    #[arg(long)]
    force: bool,
    /// Disarm CORRUPT: members that hold other data serve it then
    #[arg(long)]
    accept_corrupt: bool,
    /// Show what would be disarmed and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Exit with 10 where no alarm is raised
    #[arg(long)]
    exit_on_noop: bool,
}

const HELP: &str = "\
Standard output names the alarms that were disarmed, as etcdctl does; what is left stands on
standard error. For a cluster at its quota: etcdkit reclaim";

pub(super) fn run(global: &Global, command: &Command) -> Outcome {
    match command {
        Command::List => list(global),
        Command::Disarm(args) => run_disarm(global, args),
    }
}

/// Tells whether people read it: then words go to stderr.
fn is_for_people(global: &Global) -> bool {
    let format = matches!(global.write_out, WriteOut::Simple | WriteOut::Table);
    format && !global.program.is_linked() && !global.quiet
}

fn list(global: &Global) -> Outcome {
    let cluster = global.cluster()?;
    let alarms = cluster.alarms()?;
    output::print(&etcdctl::alarms(global.format(), &alarms))?;
    if is_for_people(global) {
        // Who may ask for alarms may ask for members; a name less is no failure.
        let members = cluster.members().map(|members| members.members).unwrap_or_default();
        let names: Vec<_> = members.into_iter().map(|member| (member.id, member.name)).collect();
        output::print_aside(&list_lines(&named(&alarms.alarms, &names)));
    }
    Ok(ExitCode::Ok)
}

fn list_lines(alarms: &[Named]) -> Vec<String> {
    if alarms.is_empty() {
        return vec!["no alarm is raised".to_owned()];
    }
    let line = |named: &Named| format!("{}: {}", named.text(), meaning(named.alarm.kind));
    let mut lines: Vec<String> = alarms.iter().map(line).collect();
    for (kind, next) in [
        (AlarmKind::Corrupt, "etcdkit consistency"),
        (AlarmKind::NoSpace, "etcdkit reclaim"),
        (AlarmKind::None, "etcdkit alarm disarm"),
    ] {
        if alarms.iter().any(|named| named.alarm.kind == kind) {
            lines.push(format!("next: {next}"));
        }
    }
    lines
}

fn run_disarm(global: &Global, args: &Disarm) -> Outcome {
    let terminal = Terminal::new(global);
    let options = Options {
        settings: global.cluster()?.settings().clone(),
        force: args.force,
        accept_corrupt: args.accept_corrupt,
        dry_run: args.dry_run,
        audit_log: global.audit_log.clone(),
    };
    let report = disarm::disarm(&options, &terminal)?;
    terminal.clear();
    let alarms = Alarms { alarms: report.disarmed.clone(), ..Alarms::default() };
    output::print(&etcdctl::disarmed(global.format(), &alarms))?;
    if matches!(global.write_out, WriteOut::Simple | WriteOut::Table) && !global.quiet {
        output::print_aside(&disarm_lines(&report));
    }
    match report.before.is_empty() && args.exit_on_noop {
        true => Ok(ExitCode::NothingToDo),
        false => Ok(ExitCode::Ok),
    }
}

fn disarm_lines(report: &disarm::Report) -> Vec<String> {
    if report.before.is_empty() {
        return vec!["no alarm is raised: nothing to disarm".to_owned()];
    }
    let verb = if report.dry_run { "would disarm" } else { "disarmed" };
    let mut lines: Vec<String> = report
        .before
        .iter()
        .filter(|named| report.disarmed.contains(&named.alarm))
        .map(|named| format!("{verb} {}", named.text()))
        .collect();
    if !report.dry_run {
        lines.push("no alarm is left".to_owned());
    }
    lines
}
