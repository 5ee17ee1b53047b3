//! `snapshot save`: its flags, and its report for people.

use std::path::PathBuf;

use clap::Args;

use super::output::{self, WriteOut};
use super::terminal::Terminal;
use super::{Global, Outcome};
use crate::ops::save::{self, Options, Report};
use crate::ops::{Error, ExitCode};

/// Flags of `snapshot save`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(super) struct Save {
    /// The snapshot file to make, or - for standard output; nothing may have that name
    ///
    /// {time} in the name becomes the time in UTC, as 20261130T124500Z. A note FILE.json is written
    /// beside it. It says which revisions may have been served, and a restore reads it, so keep the
    /// two together.
    file: PathBuf,
    /// Show what would be saved and change nothing
    #[arg(long)]
    dry_run: bool,
    #[cfg(feature = "live")]
    #[command(flatten)]
    live: live::Flags,
    /// Save what a dead member left here, the tail of its log included
    #[arg(long, value_name = "DIR", help_heading = DEAD)]
    from_data_dir: Option<PathBuf>,
    /// Where the dead member's WAL is, if not in its data directory
    #[arg(long, value_name = "DIR", requires = "from_data_dir", help_heading = DEAD)]
    wal_dir: Option<PathBuf>,
    /// Count entries too that this member was not told to be committed: for the furthest log of a
    /// majority of dead members
    #[arg(long, requires = "from_data_dir", help_heading = DEAD)]
    include_uncommitted: bool,
}

const DEAD: &str = "Of a dead member";

const HELP: &str = "\
As a cron job:
  etcdkit snapshot save '/backup/etcd-{time}.db' --keep-last 7 --metrics-file /textfile/etcd.prom";

pub(super) fn run(global: &Global, args: Save) -> Outcome {
    let Some(data_dir) = args.from_data_dir else {
        #[cfg(feature = "live")]
        return live::run(global, args.file, args.live, args.dry_run);
        #[cfg(not(feature = "live"))]
        {
            let error = Error::usage("this build cannot ask running members")
                .hint("--from-data-dir DIR, for a member that is not running");
            return Err(error.into());
        }
    };
    if args.file.as_os_str() == "-" {
        let error = Error::usage("a snapshot of a data directory goes into a file, not to -")
            .hint("give a name; it is read back there before it counts");
        return Err(error.into());
    }
    let terminal = Terminal::new(global);
    let options = Options {
        output: args.file,
        data_dir,
        wal_dir: args.wal_dir,
        include_uncommitted: args.include_uncommitted,
        dry_run: args.dry_run,
        audit_log: global.audit_log.clone(),
    };
    let report = save::save(&options, &terminal)?;
    terminal.clear();
    match global.write_out {
        WriteOut::Json => output::print_json(&report.json())?,
        WriteOut::Fields => output::print_fields(&report.json())?,
        WriteOut::Simple | WriteOut::Table => output::print_lines(&saved(&report))?,
    }
    Ok(ExitCode::Ok)
}

fn saved(report: &Report) -> Vec<String> {
    let log = &report.log;
    let mut lines = Vec::new();
    match (&report.sha256, report.size_bytes) {
        (Some(sha256), Some(size)) => {
            lines.push(format!("saved {} of {}", report.file, report.data_dir));
            lines.push(format!("  file       {size} bytes, sha256 {sha256}, read back whole"));
        }
        _ => lines.push(format!("would save {} of {}", report.file, report.data_dir)),
    }
    lines.push(format!(
        "  note       {}; a restore reads it beside the snapshot: revisions up to {} may have been \
         served",
        report.note, report.highest_revision_seen
    ));
    let name = if report.member_name.is_empty() { "-" } else { &report.member_name };
    lines.push(format!(
        "  member     {name} = {} of cluster {}",
        report.member_id, report.cluster_id
    ));
    lines.push(format!("  revision   {}; {} keys", report.revision, report.keys));
    let why = match log.counted {
        "sole_voter" => "the sole voter's, so all of it counts",
        "committed" => "one of several voters', so it counts as far as it is committed",
        _ => "of unknown voters, so it counts as far as it is committed",
    };
    lines.push(format!(
        "  database   stood at revision {}, raft index {}",
        log.from_revision, log.from_index
    ));
    lines.push(format!(
        "  log        {} entries applied, to index {} of {}; it is {why}",
        log.entries, log.index, log.last_index
    ));
    let counts = |counts: &[save::Count]| {
        let words: Vec<String> =
            counts.iter().map(|count| format!("{} {}", count.count, count.what)).collect();
        words.join(", ")
    };
    if !log.done.is_empty() {
        lines.push(format!("  done       {}", counts(&log.done)));
    }
    if !log.refused.is_empty() {
        lines.push(format!("  refused    {}, as before", counts(&log.refused)));
    }
    if report.leases > 0 {
        lines.push(format!("  leases     {}; each restarts with its full TTL", report.leases));
    }
    let steps: Vec<_> = report.steps.iter().map(|s| format!("{} {} ms", s.step, s.ms)).collect();
    lines.push(format!("  time       {}", steps.join(", ")));
    lines.extend(report.equivalent.iter().map(|line| format!("  same as    {line}")));
    lines.extend(report.next.iter().map(|line| format!("  next       {line}")));
    lines
}

#[cfg(feature = "live")]
mod live {
    //! From a running member.

    use std::path::PathBuf;
    use std::time::Duration;

    use clap::Args;

    use crate::cli::output::{self, WriteOut};
    use crate::cli::terminal::Terminal;
    use crate::cli::{Global, Outcome, duration};
    use crate::ops::ExitCode;
    use crate::ops::save::live::{self, IDLE_TIMEOUT, Options, Output, Report, TIMEOUT};

    /// Flags that are for running members only.
    #[derive(Debug, Args)]
    #[group(skip)]
    #[command(next_help_heading = "Of a running member")]
    pub(super) struct Flags {
        /// The snapshot must have this revision, instead of what a linearizable read tells
        #[arg(long, value_name = "REV", value_parser = clap::value_parser!(i64).range(1..),
            conflicts_with = "from_data_dir")]
        min_revision: Option<i64>,
        /// Save although no majority of the cluster answers; newer writes may be missing
        #[arg(long, conflicts_with = "from_data_dir")]
        without_quorum: bool,
        /// Use a member although it has a CORRUPT alarm
        #[arg(long, conflicts_with = "from_data_dir")]
        accept_corrupt: bool,
        /// Do not ask the members what their keys hash to: one after the other, the leader last;
        /// writes wait for each while it hashes, seconds for a database of a gigabyte
        #[arg(long, conflicts_with = "from_data_dir")]
        no_hashkv: bool,
        /// To -: keep nothing on disk; the trailer is checked, pages and records are not
        #[arg(long, conflicts_with = "from_data_dir")]
        no_spool: bool,
        /// Longest time without bytes [default: 30s]
        #[arg(long, value_name = "DURATION", value_parser = duration::parse,
            conflicts_with = "from_data_dir")]
        idle_timeout: Option<Duration>,
        /// Longest time until the snapshot is here [default: 1h, or --command-timeout where given]
        #[arg(long, value_name = "DURATION", value_parser = duration::parse,
            conflicts_with = "from_data_dir")]
        timeout: Option<Duration>,
        /// Then remove older snapshots of the same name with another {time}, until N are left
        #[arg(long, value_name = "N", conflicts_with = "from_data_dir")]
        keep_last: Option<u64>,
        /// Write figures for node_exporter's textfile collector here, also after a failure
        #[arg(long, value_name = "FILE", conflicts_with = "from_data_dir")]
        metrics_file: Option<PathBuf>,
    }

    pub(super) fn run(global: &Global, file: PathBuf, flags: Flags, dry_run: bool) -> Outcome {
        let terminal = Terminal::new(global);
        let connection = &global.connection;
        let is_pipe = file.as_os_str() == "-";
        let asked = connection.settings().and_then(|settings| {
            let limit =
                flags.timeout.map_or_else(|| connection.command_limit(), |t| Ok(Some(t)))?;
            Ok((settings, limit))
        });
        let (settings, limit) = match asked {
            Ok(asked) => asked,
            Err(error) => {
                if let Some(path) = flags.metrics_file.as_deref().filter(|_| !dry_run) {
                    live::failed(path, &error, &terminal);
                }
                return Err(error.into());
            }
        };
        let given = file.to_string_lossy().into_owned();
        let options = Options {
            output: match is_pipe {
                true => Output::Pipe { spool: !flags.no_spool },
                false => Output::File(file),
            },
            settings,
            whole_cluster: connection.whole_cluster(),
            min_revision: flags.min_revision,
            without_quorum: flags.without_quorum,
            accept_corrupt: flags.accept_corrupt,
            hashkv: !flags.no_hashkv,
            idle_timeout: flags.idle_timeout.unwrap_or(IDLE_TIMEOUT),
            timeout: limit.unwrap_or(TIMEOUT),
            keep_last: flags.keep_last,
            metrics_file: flags.metrics_file,
            dry_run,
            audit_log: global.audit_log.clone(),
        };
        let report = live::save(&options, &terminal)?;
        terminal.clear();
        if is_pipe {
            output::report_aside(&report.json(), &lines(&report), global.write_out);
            return Ok(ExitCode::Ok);
        }
        match global.write_out {
            _ if global.program.is_linked() => output::print_lines(&as_etcdctl(&report, &given))?,
            WriteOut::Json => output::print_json(&report.json())?,
            WriteOut::Fields => output::print_fields(&report.json())?,
            WriteOut::Simple | WriteOut::Table => output::print_lines(&lines(&report))?,
        }
        Ok(ExitCode::Ok)
    }

    /// What etcdctl 3.7 prints, whatever the format.
    fn as_etcdctl(report: &Report, given: &str) -> Vec<String> {
        let file = if given.contains("{time}") { &report.file } else { given };
        let mut lines = vec![format!("Snapshot saved at {file}")];
        lines.extend(report.storage_version.as_ref().map(|v| format!("Server version {v}")));
        lines
    }

    fn lines(report: &Report) -> Vec<String> {
        let mut lines = Vec::new();
        let did = if report.dry_run { "would save" } else { "saved" };
        lines.push(format!("{did} {}", report.file));
        let name = if report.member_name.is_empty() { "-" } else { &report.member_name };
        lines.push(format!(
            "  from       {} {name} = {} at {}, etcd {}: {}",
            report.role, report.member_id, report.endpoint, report.etcd_version, report.why
        ));
        if let (Some(size), Some(sha256)) = (report.size_bytes, &report.sha256) {
            lines.push(format!("  file       {size} bytes, sha256 {sha256}"));
        }
        match (report.revision, report.keys) {
            (Some(revision), Some(keys)) => {
                lines.push(format!("  revision   {revision}; {keys} keys"));
            }
            _ => lines.push(format!("  revision   {} at least", report.revision_needed)),
        }
        lines.push(match report.verified {
            "full" => format!("  verified   trailer, pages, records; {}", hashkv(report)),
            "trailer" => "  verified   trailer only; pages and records were not checked".into(),
            _ => format!(
                "  room       {} bytes, {} free",
                report.db_size_bytes,
                report.free_bytes.map_or("unknown".into(), |free| free.to_string())
            ),
        });
        if let Some(note) = &report.note {
            lines.push(format!("  note       {note}; keep it with the file"));
        }
        if let Some(retention) = &report.retention {
            let removes = if report.dry_run { "would remove" } else { "removed" };
            lines.push(format!("  kept       {} of the newest", retention.kept.len()));
            lines.extend(retention.removed.iter().map(|file| format!("  {removes:<10} {file}")));
        }
        let steps: Vec<_> =
            report.steps.iter().map(|step| format!("{} {} ms", step.step, step.ms)).collect();
        lines.push(format!("  time       {}", steps.join(", ")));
        lines.extend(report.next.iter().map(|line| format!("  next       {line}")));
        lines
    }

    fn hashkv(report: &Report) -> String {
        let proof = &report.hashkv;
        match proof.verdict {
            "equal" if proof.members.len() == 1 => "keys compared with this member alone".into(),
            "equal" => format!("keys as {} members hash them", proof.members.len()),
            "not_comparable" => "members compacted meanwhile, so keys were not compared".into(),
            "no_answer" => "no member told a hash of its keys".into(),
            _ => "keys not compared with the members'".into(),
        }
    }
}
