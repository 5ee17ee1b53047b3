//! `snapshot compact`, `snapshot seal`: their flags, and their reports for people.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};

use super::output::{self, WriteOut};
use super::terminal::Terminal;
use super::{Global, Outcome};
use crate::ops::rewrite::{compact, seal};
use crate::ops::{Error, ExitCode};

#[derive(Debug, Args)]
pub(super) struct Compact {
    /// The snapshot file
    file: PathBuf,
    /// Drop what a compaction at this revision drops
    #[arg(long, value_name = "REVISION", value_parser = clap::value_parser!(i64).range(1..))]
    rev: i64,
    /// Write the new snapshot here; must not exist. Where a note FILE.json is beside the snapshot,
    /// OUT.json is written too
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Accept the wrong trailer of the file with this sha256, if its pages and records are whole
    #[arg(long, value_name = "SHA256")]
    accept_damaged: Option<String>,
    /// Let a full check stand in for a sha256 trailer that is not there
    #[arg(long)]
    skip_hash_check: bool,
    /// Of a member's db file, leave out what only the log beside it holds
    #[arg(long)]
    without_log: bool,
    /// Show what would become of it and write nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct Seal {
    /// The snapshot or db file
    file: PathBuf,
    /// Write the sealed snapshot here; must not exist. Where a note FILE.json is beside the file,
    /// OUT.json is written too
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Accept the wrong trailer of the file with this sha256, if its pages and records are whole
    #[arg(long, value_name = "SHA256")]
    accept_damaged: Option<String>,
    /// Of a member's db file, leave out what only the log beside it holds
    #[arg(long)]
    without_log: bool,
    /// Check everything, show what would be written and write nothing
    #[arg(long)]
    dry_run: bool,
}

/// Refuses standard output: what is written is read back, and appears whole or not at all.
fn check_output(output: &Path) -> Result<(), Error> {
    if output.as_os_str() != "-" {
        return Ok(());
    }
    let error = Error::usage("a snapshot goes into a file, not to -");
    Err(error.hint("give a name; it is read back there before it counts"))
}

pub(super) fn run_compact(global: &Global, args: Compact) -> Outcome {
    check_output(&args.output)?;
    let terminal = Terminal::new(global);
    let options = compact::Options {
        file: args.file,
        output: args.output,
        revision: args.rev,
        accept_damaged: args.accept_damaged,
        skip_hash_check: args.skip_hash_check,
        without_log: args.without_log,
        dry_run: args.dry_run,
        audit_log: global.audit_log.clone(),
    };
    let report = compact::compact(&options, &terminal)?;
    terminal.clear();
    let verb = if report.dry_run { "would compact" } else { "compacted" };
    let mut lines = vec![
        format!("{verb} {} into {}", report.file, report.output),
        format!(
            "  compacted  up to revision {}, before up to {}; {} records dropped",
            report.compact_revision, report.compact_revision_before, report.records_dropped
        ),
        format!(
            "  size       {} -> {}",
            output::size(report.size_bytes_before),
            output::size(report.size_bytes)
        ),
    ];
    lines.extend(report.sha256.iter().map(|sha256| format!("  sealed     sha256 {sha256}")));
    lines.extend(note_line(&report.file, report.note.as_deref(), report.dry_run));
    show(global, &json!(report), lines, &report.equivalent, &report.next)
}

pub(super) fn run_seal(global: &Global, args: Seal) -> Outcome {
    check_output(&args.output)?;
    let terminal = Terminal::new(global);
    let options = seal::Options {
        file: args.file,
        output: args.output,
        accept_damaged: args.accept_damaged,
        without_log: args.without_log,
        dry_run: args.dry_run,
        audit_log: global.audit_log.clone(),
    };
    let report = seal::seal(&options, &terminal)?;
    terminal.clear();
    let verb = if report.dry_run { "would seal" } else { "sealed" };
    let mut lines = vec![
        format!("{verb} {} as {}", report.file, report.output),
        format!("  trailer    {} before", report.trailer),
        format!("  size       {}", output::size(report.size_bytes)),
        format!("  revision   {}", report.revision),
    ];
    if let Some(sha256) = &report.sha256 {
        lines.push(format!("  sealed     fresh trailer; sha256 {sha256}"));
    }
    lines.extend(note_line(&report.file, report.note.as_deref(), report.dry_run));
    show(global, &json!(report), lines, &report.equivalent, &report.next)
}

/// Names the note that goes with a new snapshot.
fn note_line(file: &str, note: Option<&str>, is_dry: bool) -> Option<String> {
    let verb = if is_dry { "would be written" } else { "written" };
    note.map(|note| format!("  note       {note} {verb} from {file}.json"))
}

pub(super) fn show(
    global: &Global,
    report: &Value,
    mut lines: Vec<String>,
    equivalent: &[String],
    next: &[String],
) -> Outcome {
    match global.write_out {
        _ if global.program.is_linked() => output::print_aside(&lines),
        WriteOut::Json => output::print_json(report)?,
        WriteOut::Fields => output::print_fields(report)?,
        WriteOut::Simple | WriteOut::Table => {
            lines.extend(equivalent.iter().map(|line| match line.strip_prefix("# ") {
                Some(comment) => format!("  that is    {comment}"),
                None => format!("  same as    {line}"),
            }));
            lines.extend(next.iter().map(|line| format!("  next       {line}")));
            output::print_lines(&lines)?;
        }
    }
    Ok(ExitCode::Ok)
}
