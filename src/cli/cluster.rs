//! `status`, `health`, `wait` and `consistency`: a running cluster on one screen.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::{Value, json};

use super::output::{self, WriteOut, shown, size};
use super::terminal::Terminal;
use super::{Global, Outcome, duration};
use crate::ops::ExitCode;
use crate::ops::cluster::consistency::{self, MemberHash, Outcome as Compared, Report};
use crate::ops::cluster::quota::Source;
use crate::ops::cluster::verdict::{Remark, Urgency};
use crate::ops::cluster::wait::{self, Condition, Waited};
use crate::ops::cluster::{Barrier, MemberView, Observer, View};

/// Shortest time between two looks of `--watch` and `wait`.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Moves to the upper left and clears what is below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// What `status` and `health` take.
#[derive(Debug, clap::Args)]
pub(super) struct LookArgs {
    /// Look again and again, until interrupted
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "2s", value_parser = interval)]
    watch: Option<Duration>,
}

#[derive(Debug, clap::Args)]
pub(super) struct WaitArgs {
    /// What to wait for
    #[arg(long, value_enum)]
    until: Until,
    /// How long to wait at most
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Duration,
    /// Time between two looks
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    interval: Duration,
}

/// What can be waited for.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Until {
    /// Every member that is asked serves, and all name one leader
    Healthy,
    /// The members that answer name one leader, and a linearizable read goes through
    Leader,
    /// A member answers, and none that does tells of an alarm
    NoAlarm,
}

#[derive(Debug, clap::Args)]
pub(super) struct ConsistencyArgs {
    /// Compare at this revision [default: the highest that every member has]
    #[arg(long, value_name = "REVISION", value_parser = clap::value_parser!(i64).range(1..))]
    rev: Option<i64>,
    /// How long to try again while members are behind, or compact
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration::parse)]
    patience: Duration,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text)?;
    match interval {
        interval if interval < INTERVAL_MIN => Err("the shortest interval is 100ms".to_owned()),
        interval => Ok(interval),
    }
}

pub(super) fn run_status(global: &Global, args: &LookArgs) -> Outcome {
    look(global, args, View::status_code, status_value, status_lines)
}

pub(super) fn run_health(global: &Global, args: &LookArgs) -> Outcome {
    look(global, args, View::health_code, health_value, health_lines)
}

/// Looks once, or until interrupted.
fn look(
    global: &Global,
    args: &LookArgs,
    code: fn(&View) -> ExitCode,
    value: fn(&View) -> Value,
    lines: fn(&View, WriteOut) -> Vec<String>,
) -> Outcome {
    let terminal = Terminal::new(global);
    let settings = global.connection.settings()?;
    let mut observer = Observer::new(settings, global.connection.whole_cluster());
    let print = |view: &View| match global.write_out {
        WriteOut::Json => output::print_json(&value(view)),
        WriteOut::Fields => output::print_fields(&value(view)),
        format => output::print_lines(&lines(view, format)),
    };
    let Some(interval) = args.watch else {
        let view = observer.look(&terminal)?;
        print(&view)?;
        return Ok(code(&view));
    };
    let is_screen = global.write_out != WriteOut::Json && io::stdout().is_terminal();
    let began = Instant::now();
    let mut is_first = true;
    loop {
        let seen = observer.look(&terminal);
        if is_screen {
            write!(io::stdout(), "{CLEAR}")?;
        } else if !is_first && global.write_out != WriteOut::Json {
            writeln!(io::stdout())?;
        }
        is_first = false;
        match seen {
            Ok(view) => print(&view)?,
            // It may come back.
            Err(error) if error.code == ExitCode::Unreachable => {
                output::print_error(&error, global.write_out);
            }
            Err(error) => return Err(error.into()),
        }
        if !wait::sleep_until(wait::next_tick(began, interval), &terminal) {
            return Ok(ExitCode::Interrupted);
        }
    }
}

fn status_value(view: &View) -> Value {
    json!(view)
}

/// The part of a view that says who serves.
fn health_value(view: &View) -> Value {
    let member = |member: &MemberView| {
        json!({
            "endpoint": member.endpoint,
            "id": member.id.map(|id| format!("{id:x}")),
            "name": member.name,
            "healthy": member.healthy,
            "reason": member.reason,
            "is_learner": member.is_learner,
            "read_ms": member.read_ms,
            "alarms": member.alarms,
            "error": member.error,
        })
    };
    json!({
        "version": 1,
        "cluster_id": view.cluster_id.map(|id| format!("{id:x}")),
        "members": view.members.iter().map(member).collect::<Vec<_>>(),
        "alarms": view.alarms,
        "quorum": view.quorum,
        "verdict": view.verdict,
        "findings": view.findings,
    })
}

fn bytes(count: Option<i64>) -> String {
    count.map_or_else(|| "-".into(), |count| size(u64::try_from(count).unwrap_or(0)))
}

fn number(number: Option<impl ToString>) -> String {
    number.map_or_else(|| "-".into(), |number| number.to_string())
}

fn hex(id: Option<u64>) -> String {
    id.map_or_else(|| "-".into(), |id| format!("{id:x}"))
}

fn text(text: Option<&str>) -> String {
    text.map_or_else(|| "-".into(), shown)
}

/// A member that has not started has no name yet.
fn who(member: &MemberView) -> String {
    member.name.as_deref().map_or_else(|| hex(member.id), shown)
}

fn role(member: &MemberView) -> &'static str {
    match (member.answered(), member.is_leader, member.is_learner) {
        (false, ..) if member.is_unstarted() => "NOT STARTED",
        (false, ..) if member.endpoint.is_none() => "not asked",
        (false, ..) => match member.barrier() {
            Some(Barrier::Refused) => "REFUSED",
            Some(Barrier::WrongPort) => "WRONG PORT",
            None => "DOWN",
        },
        (true, _, Some(true)) => "learner",
        (true, Some(true), _) => "leader",
        (true, ..) => "follower",
    }
}

fn quota(member: &MemberView) -> String {
    if !member.answered() {
        return "-".into();
    }
    let Some(used) = member.quota_used_percent else { return "no limit".into() };
    // A figure that nobody said is marked.
    let mark = if member.quota_source == Some(Source::Assumed) { "?" } else { "" };
    format!("{used}% of {}{mark}", bytes(member.quota))
}

fn quota_percent(member: &MemberView) -> String {
    match member.quota_used_percent {
        Some(used) if member.quota_source == Some(Source::Assumed) => format!("{used}%?"),
        Some(used) => format!("{used}%"),
        None => quota(member),
    }
}

/// Writes what share of its file a member uses, behind the bytes.
fn in_use(member: &MemberView) -> String {
    match member.in_use_percent {
        Some(percent) => format!("{} ({percent}%)", bytes(member.db_size_in_use)),
        None => "-".into(),
    }
}

fn lag(own: Option<impl ToString>, lag: Option<impl ToString>) -> String {
    match (own, lag.map(|lag| lag.to_string())) {
        (Some(own), Some(lag)) if lag != "0" => format!("{} (-{lag})", own.to_string()),
        (Some(own), _) => own.to_string(),
        (None, _) => "-".into(),
    }
}

/// A table without lines, for people and narrow screens.
pub(super) fn bare(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(header.to_vec());
    table
}

/// Takes the blanks off the ends that a table without lines has.
pub(super) fn push_table(lines: &mut Vec<String>, table: &Table) {
    lines.extend(table.to_string().lines().map(|line| {
        let line = line.strip_prefix(' ').unwrap_or(line);
        line.trim_end().to_owned()
    }));
}

fn status_lines(view: &View, format: WriteOut) -> Vec<String> {
    let mut lines = vec![head(view)];
    if format == WriteOut::Table {
        let mut table = status_table(view);
        if let Some(width) = output::width() {
            table.set_content_arrangement(ContentArrangement::Dynamic).set_width(width);
        }
        lines.extend(output::drawn(&table));
    } else {
        push_status(&mut lines, view, output::width());
    }
    conclusion(&mut lines, view.verdict.word(), &view.findings);
    lines
}

type Cell = fn(&MemberView) -> String;

/// The columns of `status`.
const COLUMNS: [(&str, Cell); 10] = [
    ("MEMBER", who),
    ("ENDPOINT", |m| text(m.endpoint.as_deref())),
    ("VERSION", |m| text(m.version.as_deref())),
    ("ROLE", |m| role(m).to_owned()),
    ("ALARMS", alarms),
    ("SIZE", |m| bytes(m.db_size)),
    ("IN USE", in_use),
    ("QUOTA USED", quota),
    ("REVISION", |m| lag(m.revision, m.revision_lag)),
    ("RAFT INDEX", |m| lag(m.raft_index, m.raft_lag)),
];

/// Names of columns that are left out, the first ones first, until a line fits.
const SPARE: [&str; 5] = ["RAFT INDEX", "IN USE", "VERSION", "SIZE", "REVISION"];

/// Writes a line a member, with as many columns as fit into the width where there is one.
fn push_status(lines: &mut Vec<String>, view: &View, width: Option<u16>) {
    for spared in 0..=SPARE.len() {
        let out = SPARE.get(..spared).unwrap_or_default();
        let columns = COLUMNS.iter().filter(|(name, _)| !out.contains(name));
        // What the quota is in bytes goes along with what of it is in use.
        let columns = columns.map(|(name, cell)| match *name {
            "QUOTA USED" if out.contains(&"IN USE") => ("QUOTA", quota_percent as Cell),
            name => (name, *cell),
        });
        let columns: Vec<(&str, Cell)> = columns.collect();
        let header: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let mut table = bare(&header);
        for member in &view.members {
            table.add_row(columns.iter().map(|(_, cell)| cell(member)));
        }
        let mut rows = Vec::new();
        push_table(&mut rows, &table);
        let widest = rows.iter().map(|row| row.chars().count()).max().unwrap_or(0);
        if width.is_none_or(|width| widest <= usize::from(width)) || spared == SPARE.len() {
            lines.extend(rows);
            return;
        }
    }
}

fn alarms(member: &MemberView) -> String {
    if member.alarms.is_empty() { "-".into() } else { member.alarms.join(", ") }
}

fn head(view: &View) -> String {
    let leader = view.leader();
    let known = view.members.iter().find(|member| leader.is_some() && member.id == leader);
    let leader = known.map_or_else(|| hex(leader), |member| shown(&member.label()));
    let term = view.members.iter().filter_map(|member| member.raft_term).max();
    format!("cluster {}, leader {leader}, term {}", hex(view.cluster_id), number(term))
}

/// Everything, a column a member.
fn status_table(view: &View) -> Table {
    let rows: [(&str, Cell); 21] = [
        ("ENDPOINT", |m| text(m.endpoint.as_deref())),
        ("ID", |m| hex(m.id)),
        ("HEALTHY", |m| number(m.healthy)),
        ("VERSION", |m| text(m.version.as_deref())),
        ("STORAGE VERSION", |m| text(m.storage_version.as_deref())),
        ("ROLE", |m| role(m).to_owned()),
        ("LEADER", |m| hex(m.leader)),
        ("SIZE", |m| bytes(m.db_size)),
        ("IN USE", in_use),
        ("RECLAIMABLE", |m| bytes(m.reclaimable)),
        ("QUOTA USED", quota),
        ("QUOTA SAID BY", |m| {
            let word = m.quota_source.map(|source| match source {
                Source::Status => "status",
                Source::Metrics => "metrics",
                Source::Given => "the command line",
                Source::Assumed => "nobody, assumed",
            });
            text(word)
        }),
        ("REVISION", |m| lag(m.revision, m.revision_lag)),
        ("RAFT TERM", |m| number(m.raft_term)),
        ("RAFT INDEX", |m| lag(m.raft_index, m.raft_lag)),
        ("RAFT APPLIED INDEX", |m| lag(m.raft_applied_index, m.apply_lag)),
        ("READ MS", |m| number(m.read_ms)),
        ("DOWNGRADE", |m| text(m.downgrade.as_deref())),
        ("ALARMS", alarms),
        ("ERRORS", |m| shown(&m.other_errors().collect::<Vec<_>>().join(", "))),
        ("REASON", |m| text(m.reason.as_deref())),
    ];
    let mut table = output::table();
    let names = view.members.iter().map(who);
    table.set_header(std::iter::once("MEMBER".to_owned()).chain(names));
    let has_errors = view.members.iter().any(|member| member.other_errors().next().is_some());
    for (name, cell) in rows.into_iter().filter(|(name, _)| has_errors || *name != "ERRORS") {
        let cells = view.members.iter().map(cell);
        table.add_row(std::iter::once(name.to_owned()).chain(cells));
    }
    table
}

fn health_lines(view: &View, format: WriteOut) -> Vec<String> {
    let header = ["MEMBER", "ENDPOINT", "HEALTHY", "TOOK", "WHY NOT"];
    let mut table = if format == WriteOut::Table {
        let mut table = output::table();
        table.set_header(header);
        table
    } else {
        bare(&header)
    };
    for member in &view.members {
        let healthy = match member.healthy {
            Some(true) => "yes",
            Some(false) => "NO",
            None if member.is_unstarted() => "NOT STARTED",
            None if member.endpoint.is_none() => "not asked",
            None => "unknown",
        };
        table.add_row([
            who(member),
            text(member.endpoint.as_deref()),
            healthy.to_owned(),
            member.read_ms.map_or_else(|| "-".into(), |took| format!("{took} ms")),
            text(member.reason.as_deref()),
        ]);
    }
    let mut lines = Vec::new();
    if format == WriteOut::Table {
        lines.extend(output::drawn(&table));
    } else {
        push_table(&mut lines, &table);
    }
    let quorum = &view.quorum;
    let of = quorum.voters.map_or_else(String::new, |voters| format!(" of {voters}"));
    let mut line = match quorum.has_quorum {
        Some(true) => format!("quorum: yes; a read goes through {}{of} voters", quorum.healthy),
        Some(false) => format!("quorum: NO; a read goes through {}{of} voters", quorum.healthy),
        None => "quorum: unknown".to_owned(),
    };
    match (quorum.may_fail, quorum.voters) {
        (Some(may_fail), _) => line += &format!(", {may_fail} more may fail"),
        (None, Some(voters)) if quorum.asked < voters && quorum.has_quorum == Some(true) => {
            line += &format!(", {} were asked", quorum.asked);
        }
        _ => {}
    }
    lines.push(line);
    // Who serves is the question here; what is merely good to know stands in `status`.
    let wanted = |remark: &&Remark| remark.severity != Urgency::Info || remark.id == "not-asked";
    let findings: Vec<Remark> = view.findings.iter().filter(wanted).cloned().collect();
    conclusion(&mut lines, view.verdict.word(), &findings);
    lines
}

/// Writes the verdict, and below it what is to be done, most urgent first.
fn conclusion(lines: &mut Vec<String>, verdict: &str, findings: &[Remark]) {
    lines.push(format!("verdict: {verdict}"));
    // What is the same for several members is to be done, and said, once.
    let mut said = BTreeSet::new();
    for remark in findings {
        lines.push(format!("{}: {}", remark.severity.word(), shown(&remark.message)));
        let next = remark.next.iter().filter(|next| said.insert((remark.id, next.as_str())));
        lines.extend(next.map(|next| format!("  next: {}", shown(next))));
    }
}

pub(super) fn run_wait(global: &Global, args: &WaitArgs) -> Outcome {
    let terminal = Terminal::new(global);
    let settings = global.connection.settings()?;
    let options = wait::Options {
        until: match args.until {
            Until::Healthy => Condition::Healthy,
            Until::Leader => Condition::Leader,
            Until::NoAlarm => Condition::NoAlarm,
        },
        timeout: args.timeout,
        interval: args.interval,
        question: settings.command_timeout,
    };
    let mut observer = Observer::new(settings, global.connection.whole_cluster());
    let waited = wait::wait(&mut observer, &options, &terminal)?;
    terminal.clear();
    print_waited(global.write_out, &waited)?;
    Ok(if waited.met { ExitCode::Ok } else { ExitCode::Unreachable })
}

fn print_waited(format: WriteOut, waited: &Waited) -> io::Result<()> {
    let until = waited.until.word();
    let seconds = Duration::from_millis(waited.waited_ms).as_secs_f64();
    match format {
        WriteOut::Json => output::print_json(&json!(waited)),
        WriteOut::Fields => output::print_fields(&json!(waited)),
        WriteOut::Simple | WriteOut::Table => {
            let line = match &waited.missing {
                None => format!("{until}: met after {seconds:.1} s"),
                Some(missing) => {
                    format!("{until}: not met within {seconds:.1} s: {}", shown(missing))
                }
            };
            output::print_lines(&[line])
        }
    }
}

pub(super) fn run_consistency(global: &Global, args: &ConsistencyArgs) -> Outcome {
    let terminal = Terminal::new(global);
    let settings = global.connection.settings()?;
    let options = consistency::Options { revision: args.rev, patience: args.patience };
    let whole_cluster = global.connection.whole_cluster();
    let report = consistency::consistency(settings, whole_cluster, &options, &terminal)?;
    terminal.clear();
    match global.write_out {
        WriteOut::Json => output::print_json(&json!(report))?,
        WriteOut::Fields => output::print_fields(&json!(report))?,
        format => output::print_lines(&consistency_lines(&report, format))?,
    }
    Ok(report.exit_code())
}

fn consistency_lines(report: &Report, format: WriteOut) -> Vec<String> {
    let header =
        ["MEMBER", "ENDPOINT", "HASH", "HASH REVISION", "COMPACT REVISION", "REVISION", "NOTE"];
    let mut table = if format == WriteOut::Table {
        let mut table = output::table();
        table.set_header(header);
        table
    } else {
        bare(&header)
    };
    let note = |member: &MemberHash| match &member.error {
        Some(error) => shown(&error.message),
        None if member.odd => "DIFFERS".into(),
        None => "-".into(),
    };
    for member in &report.members {
        table.add_row([
            text(member.name.as_deref()),
            text(member.endpoint.as_deref()),
            number(member.hash),
            number(member.hash_revision),
            number(member.compact_revision),
            number(member.revision),
            note(member),
        ]);
    }
    let mut lines = vec![format!("compared at revision {}", report.revision)];
    if format == WriteOut::Table {
        lines.extend(output::drawn(&table));
    } else {
        push_table(&mut lines, &table);
    }
    let verdict = match report.verdict {
        Compared::Equal => "equal",
        Compared::Differs => "differs",
        Compared::NotComparable => "not comparable",
        Compared::Alone => "alone",
        Compared::Unknown => "unknown",
    };
    conclusion(&mut lines, verdict, &report.findings);
    lines
}
