//! `defrag --data-dir`, `snapshot compact`, `snapshot seal`: their flags, and their reports for
//! people.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::output::{self, WriteOut};
use super::terminal::Terminal;
use super::{Global, Outcome};
use crate::ops::rewrite::{compact, seal};
use crate::ops::{ExitCode, defrag};

#[derive(Debug, Args)]
pub(super) struct Defrag {
    /// Data directory of the stopped member
    #[arg(long, value_name = "DIR")]
    data_dir: PathBuf,
    /// Show what would become of it and change nothing
    #[arg(long)]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(super) struct Compact {
    /// The snapshot file
    file: PathBuf,
    /// Drop what a compaction at this revision drops
    #[arg(long, value_name = "REVISION")]
    rev: i64,
    /// Write the new snapshot here; must not exist
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Accept the wrong trailer of the file with this sha256, if its pages and records are whole
    #[arg(long, value_name = "SHA256")]
    accept_damaged: Option<String>,
}

#[derive(Debug, Args)]
pub(super) struct Seal {
    /// The snapshot or db file
    file: PathBuf,
    /// Write the sealed snapshot here; must not exist
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// Accept the wrong trailer of the file with this sha256, if its pages and records are whole
    #[arg(long, value_name = "SHA256")]
    accept_damaged: Option<String>,
}

pub(super) fn run_defrag(global: &Global, args: Defrag) -> Outcome {
    let terminal = Terminal::new(global);
    let audit_log = global.audit_log.clone();
    let options = defrag::Options { data_dir: args.data_dir, dry_run: args.dry_run, audit_log };
    let report = defrag::defrag(&options, &terminal)?;
    terminal.clear();
    let verb = if report.dry_run { "would defragment" } else { "defragmented" };
    let (before, after) = (report.before, report.after);
    let mut lines = vec![
        format!("{verb} {}", report.data_dir),
        format!(
            "  size       {} -> {} ({} in use before)",
            output::size(before.file_bytes),
            output::size(after.file_bytes),
            output::size(before.in_use_bytes)
        ),
        format!("  rows       {}, all as they were; hash {:x}", report.rows, report.status_hash),
    ];
    let left = if report.dry_run { "is there" } else { "was removed" };
    let leftovers = report.leftovers.iter();
    lines.extend(leftovers.map(|path| format!("  leftover   {path} {left}: a killed defrag's")));
    show(global, &json!(report), lines, &report.equivalent, &report.warnings)
}

pub(super) fn run_compact(global: &Global, args: Compact) -> Outcome {
    let terminal = Terminal::new(global);
    let options = compact::Options {
        file: args.file,
        output: args.output,
        revision: args.rev,
        accept_damaged: args.accept_damaged,
        audit_log: global.audit_log.clone(),
    };
    let report = compact::compact(&options, &terminal)?;
    terminal.clear();
    let mut lines = vec![
        format!("compacted {} into {}", report.file, report.output),
        format!(
            "  compacted  up to revision {}, before up to {}; {} records dropped",
            report.compact_revision, report.compact_revision_before, report.records_dropped
        ),
        format!(
            "  size       {} -> {}",
            output::size(report.size_bytes_before),
            output::size(report.size_bytes)
        ),
        format!("  sealed     sha256 {}", report.sha256),
    ];
    lines.extend(report.note.iter().map(|note| format!("  note       {note}")));
    show(global, &json!(report), lines, &report.equivalent, &report.warnings)
}

pub(super) fn run_seal(global: &Global, args: Seal) -> Outcome {
    let terminal = Terminal::new(global);
    let options = seal::Options {
        file: args.file,
        output: args.output,
        accept_damaged: args.accept_damaged,
        audit_log: global.audit_log.clone(),
    };
    let report = seal::seal(&options, &terminal)?;
    terminal.clear();
    let mut lines = vec![
        format!("sealed {} as {}", report.file, report.output),
        format!("  trailer    {} before, fresh now; sha256 {}", report.trailer, report.sha256),
        format!("  revision   {}", report.revision),
    ];
    lines.extend(report.note.iter().map(|note| format!("  note       {note}")));
    show(global, &json!(report), lines, &report.equivalent, &report.warnings)
}

fn show(
    global: &Global,
    report: &Value,
    mut lines: Vec<String>,
    equivalent: &[String],
    warnings: &[String],
) -> Outcome {
    match global.write_out {
        WriteOut::Json => output::print_json(report)?,
        WriteOut::Fields => output::print_fields(report)?,
        WriteOut::Simple | WriteOut::Table => {
            lines.extend(warnings.iter().map(|warning| format!("  warning    {warning}")));
            lines.extend(equivalent.iter().map(|line| format!("  same as    {line}")));
            output::print_lines(&lines)?;
        }
    }
    Ok(ExitCode::Ok)
}
