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
pub(super) struct Save {
    /// The snapshot file to make; nothing may have that name
    ///
    /// A note FILE.json is written beside it. It says which revisions may have been served, and a
    /// restore reads it, so keep the two together.
    file: PathBuf,
    /// Save what a dead member left here, the tail of its log included
    #[arg(long, value_name = "DIR")]
    from_data_dir: Option<PathBuf>,
    /// Where the dead member's WAL is, if not in its data directory
    #[arg(long, value_name = "DIR", requires = "from_data_dir")]
    wal_dir: Option<PathBuf>,
    /// Count entries too that this member was not told to be committed: for the furthest log of a
    /// majority of dead members
    #[arg(long, requires = "from_data_dir")]
    include_uncommitted: bool,
    /// Show what would be saved and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(global: &Global, args: Save) -> Outcome {
    let Some(data_dir) = args.from_data_dir else {
        let error = Error::usage("snapshot save from a running member is not in this version")
            .hint("etcdctl snapshot save FILE, then etcdkit snapshot verify FILE")
            .hint("or --from-data-dir DIR, for a member that is not running");
        return Err(error.into());
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
