//! `defrag`: of a stopped member in its data directory, or of running members.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::terminal::Terminal;
use super::{Global, Outcome, output, rewrite};
use crate::ops::defrag;

#[derive(Debug, Args)]
#[cfg_attr(feature = "live", command(after_help = live::HELP))]
pub(super) struct Defrag {
    /// Data directory of a stopped member, instead of running ones
    #[arg(long, value_name = "DIR")]
    #[cfg_attr(not(feature = "live"), arg(required = true))]
    data_dir: Option<PathBuf>,
    /// Show what would become of it and change nothing
    #[arg(long)]
    dry_run: bool,
    #[cfg(feature = "live")]
    #[command(flatten)]
    live: live::Flags,
}

pub(super) fn run(global: &Global, args: Defrag) -> Outcome {
    match args.data_dir {
        Some(data_dir) => offline(global, data_dir, args.dry_run),
        #[cfg(feature = "live")]
        None => live::run(global, &args.live, args.dry_run),
        #[cfg(not(feature = "live"))]
        None => Err(crate::ops::Error::usage("--data-dir is missing").into()),
    }
}

fn offline(global: &Global, data_dir: PathBuf, dry_run: bool) -> Outcome {
    let terminal = Terminal::new(global);
    let audit_log = global.audit_log.clone();
    let options = defrag::Options { data_dir, dry_run, audit_log };
    let report = defrag::defrag(&options, &terminal)?;
    terminal.clear();
    let verb = if report.dry_run { "would defragment" } else { "defragmented" };
    let (before, after) = (report.before, report.after);
    let mut lines = vec![
        format!("{verb} {}", report.data_dir),
        format!(
            "  db size    {} -> {}, as etcd counts it against its quota ({} in use before)",
            output::size(before.db_bytes),
            output::size(after.db_bytes),
            output::size(before.in_use_bytes)
        ),
        format!(
            "  file       {} -> {}",
            output::size(before.file_bytes),
            output::size(after.file_bytes)
        ),
        format!("  rows       {}, all as they were; hash {:x}", report.rows, report.status_hash),
    ];
    let left = if report.dry_run { "is there" } else { "was removed" };
    let leftovers = report.leftovers.iter();
    lines.extend(leftovers.map(|path| format!("  leftover   {path} {left}: a killed defrag's")));
    rewrite::show(global, &json!(report), lines, &report.equivalent, &[])
}

#[cfg(feature = "live")]
mod live {
    //! Of running members.

    use std::path::PathBuf;
    use std::time::Duration;

    use clap::{ArgAction, Args};
    use serde_json::json;

    use crate::cli::cluster::{bare, push_table};
    use crate::cli::output::{self, WriteOut, shown};
    use crate::cli::terminal::Terminal;
    use crate::cli::{Failure, Global, Outcome, duration, etcdctl};
    use crate::ops::ExitCode;
    use crate::ops::online::{self, MemberReport, MinGain, Options, Report, Rule, Size};

    pub(super) const HELP: &str = "\
Members are done one after the other: learners are skipped, followers come first, the leader last,
after its office has gone to another one. While one works it answers nothing.
  etcdkit defrag --cluster --dry-run
  etcdkit defrag --cluster --rule 'dbQuotaUsage > 0.8 || dbSizeFree > 200MiB'";

    /// Flags that are for running members only.
    #[derive(Debug, Args)]
    #[group(skip)]
    #[command(next_help_heading = "Of running members")]
    pub(super) struct Flags {
        /// Skip members for which this does not hold: dbSize, dbSizeInUse, dbSizeFree, dbQuota in
        /// bytes, dbQuotaUsage from 0 to 1; < <= > >= == != + - * / % && || ! ( ), KiB MiB GiB. One
        /// that would hold afterwards as well takes 1 % of the file to be given back
        #[arg(long, value_name = "RULE", value_parser = Rule::parse, conflicts_with = "data_dir")]
        rule: Option<Rule>,
        /// Skip members that would give back less [default: 1MiB and 10%, where no rule is given]
        #[arg(long, value_name = "BYTES|PERCENT", value_parser = MinGain::parse,
            conflicts_with_all = ["data_dir", "force"])]
        min_gain: Option<MinGain>,
        /// Skip no member for giving back little
        #[arg(long, conflicts_with = "data_dir")]
        force: bool,
        /// Give the leadership to another member before the leader's turn
        #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true,
            default_value_t = true, default_missing_value = "true", action = ArgAction::Set)]
        move_leader: bool,
        /// Let the whole cluster wait for more than 8 s where the leader stays the leader, or is
        /// the only voter
        #[arg(long, conflicts_with = "data_dir")]
        accept_stall: bool,
        /// Go on although members are down or sick, and pass those over; never where CORRUPT is
        /// raised
        #[arg(long, conflicts_with = "data_dir")]
        accept_unhealthy: bool,
        /// Go on where the disk of a member on this host seems too full
        #[arg(long, conflicts_with = "data_dir")]
        accept_full_disk: bool,
        /// Data directory of the member on this host, to look for room there [default: as found]
        #[arg(long, value_name = "DIR", conflicts_with = "data_dir")]
        local_data_dir: Option<PathBuf>,
        /// How long a member may take to catch up with the others [default: 2m]
        #[arg(long, value_name = "DURATION", value_parser = duration::parse,
            conflicts_with = "data_dir")]
        catch_up: Option<Duration>,
        /// Exit with 10 where no member was worth it
        #[arg(long, conflicts_with = "data_dir")]
        exit_on_noop: bool,
    }

    pub(super) fn run(global: &Global, flags: &Flags, dry_run: bool) -> Outcome {
        let terminal = Terminal::new(global);
        let min_gain = match (flags.min_gain, flags.force) {
            (Some(min_gain), _) => min_gain,
            (None, true) => MinGain::Nothing,
            // etcdctl asks nobody whether it is worth it.
            (None, false) if global.program.is_linked() => MinGain::Nothing,
            (None, false) => MinGain::default(),
        };
        let options = Options {
            whole_cluster: global.connection.whole_cluster(),
            rule: flags.rule.clone(),
            min_gain,
            move_leader: flags.move_leader,
            accept_stall: flags.accept_stall,
            accept_unhealthy: flags.accept_unhealthy,
            accept_full_disk: flags.accept_full_disk,
            data_dir: flags.local_data_dir.clone(),
            catch_up: flags.catch_up.unwrap_or(online::CATCH_UP),
            dry_run,
            ..Options::new(global.connection.settings()?, global.audit_log.clone())
        };
        let report = online::defrag(&options, &terminal)?;
        terminal.clear();
        match global.write_out {
            _ if global.program.is_linked() => {
                output::print_lines(&finished(&report))?;
                output::print_aside(&failed(&report));
            }
            WriteOut::Json => output::print_json(&json!(report))?,
            WriteOut::Fields => output::print_fields(&json!(report))?,
            format => output::print_lines(&lines(&report, format))?,
        }
        if let Some(error) = report.error() {
            return Err(Failure::from(error));
        }
        let is_noop = report.members.iter().all(|m| m.result == online::Outcome::Skipped);
        Ok(if is_noop && flags.exit_on_noop { ExitCode::NothingToDo } else { ExitCode::Ok })
    }

    fn took(member: &MemberReport) -> String {
        etcdctl::duration(Duration::from_millis(member.duration_ms.unwrap_or(0)))
    }

    /// What etcdctl 3.7 prints, whatever the format.
    fn finished(report: &Report) -> Vec<String> {
        let done = report.members.iter().filter(|m| m.result == online::Outcome::Done);
        done.map(|member| {
            let (endpoint, took) = (&member.endpoint, took(member));
            format!("Finished defragmenting etcd member[{endpoint}]. took {took}")
        })
        .collect()
    }

    /// The same on standard error.
    fn failed(report: &Report) -> Vec<String> {
        let failed = [online::Outcome::Failed, online::Outcome::Down];
        let members = report.members.iter().filter(|m| failed.contains(&m.result));
        members
            .map(|member| {
                let (endpoint, took) = (&member.endpoint, took(member));
                let why = shown(member.why.as_deref().unwrap_or_default());
                format!("Failed to defragment etcd member[{endpoint}]. took {took}. ({why})")
            })
            .collect()
    }

    fn size(size: Size) -> String {
        bytes(size.db_bytes)
    }

    fn bytes(count: i64) -> String {
        output::size(u64::try_from(count).unwrap_or(0))
    }

    fn ms(time: Option<u64>) -> String {
        time.map_or_else(|| "-".into(), |ms| format!("{ms} ms"))
    }

    fn lines(report: &Report, format: WriteOut) -> Vec<String> {
        let header =
            ["MEMBER", "ENDPOINT", "ROLE", "BEFORE", "AFTER", "GAINED", "TOOK", "STALL", "RESULT"];
        let is_table = format == WriteOut::Table;
        let mut table = if is_table { output::table() } else { bare(&header) };
        if is_table {
            table.set_header(header);
        }
        for member in &report.members {
            let name = member.name.clone().unwrap_or_else(|| format!("{:x}", member.id));
            let would = report.dry_run && member.result == online::Outcome::Left;
            let result = if would && report.stopped.is_none() {
                format!("would give back {}", bytes(member.predicted_gain_bytes))
            } else {
                member.result.word().to_owned()
            };
            let stall = match would {
                true => format!("{} ms?", member.predicted_stall_ms),
                false => ms(member.stall_ms),
            };
            table.add_row([
                shown(&name),
                shown(&member.endpoint),
                member.role.word().to_owned(),
                size(member.before),
                member.after.map_or_else(|| "-".into(), size),
                member.gained_bytes.map_or_else(|| "-".into(), bytes),
                ms(member.duration_ms),
                stall,
                result,
            ]);
        }
        let mut lines = Vec::new();
        match is_table {
            true => lines.extend(output::drawn(&table)),
            false => push_table(&mut lines, &table),
        }
        for member in &report.members {
            let name = member.name.clone().unwrap_or_else(|| format!("{:x}", member.id));
            let why = member.why.as_deref().filter(|why| !why.is_empty());
            lines.extend(why.map(|why| format!("{}: {}", shown(&name), shown(why))));
        }
        lines.extend(report.leader_moves.iter().map(|moved| {
            format!("leadership: {:x} -> {:x} in {} ms", moved.from, moved.to, moved.took_ms)
        }));
        lines.extend(report.warnings.iter().map(|warning| format!("warning: {}", shown(warning))));
        let (done, all) = (report.count(online::Outcome::Done), report.members.len());
        lines.push(match report.dry_run {
            true => "nothing was changed: a dry run".to_owned(),
            false => format!(
                "{done} of {all} members defragmented, {} given back",
                bytes(report.gained_bytes)
            ),
        });
        lines
    }
}
