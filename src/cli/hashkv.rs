//! `hashkv`: one line of figures, in etcdutl's shapes.

use std::path::PathBuf;

use comfy_table::{Table, presets::ASCII_FULL_CONDENSED};
use serde_json::json;

use super::etcdctl;
use super::output::{self, WriteOut};
use super::terminal::Terminal;
use super::{Global, Outcome};
use crate::ops::{ExitCode, hashkv};

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// A snapshot, a db file, or the data directory of a stopped member
    #[arg(value_name = "FILE|DIR")]
    path: PathBuf,
    /// Where a data directory's log is, if etcd has a --wal-dir
    #[arg(long, value_name = "DIR")]
    wal_dir: Option<PathBuf>,
    /// Hash records up to this revision; 0 for the current one
    #[arg(long, value_name = "REVISION", default_value_t = 0)]
    #[arg(value_parser = clap::value_parser!(i64).range(0..))]
    rev: i64,
}

pub(super) fn run(global: &Global, args: &Args) -> Outcome {
    let terminal = Terminal::new(global);
    let report = hashkv::hashkv(&args.path, args.wal_dir.as_deref(), args.rev, &terminal);
    let report = report.map_err(|mut error| {
        if error.code == ExitCode::InUse {
            error.hints = vec![
                "etcdctl endpoint hashkv, which asks the running member".into(),
                "or stop that process first".into(),
            ];
        }
        error
    })?;
    terminal.clear();
    let figures = [
        report.hash.to_string(),
        report.hash_revision.to_string(),
        report.compact_revision.to_string(),
    ];
    match global.write_out {
        WriteOut::Json => output::print_json(&json!(report))?,
        WriteOut::Simple => output::print_lines(&[figures.join(", ")])?,
        WriteOut::Fields => {
            let names = ["Hash", "Hash revision", "Compact revision"];
            let lines = names.iter().zip(&figures);
            let lines: Vec<_> =
                lines.map(|(name, figure)| format!("\"{name}\" : {figure}")).collect();
            output::print_lines(&lines)?;
        }
        WriteOut::Table if global.program.is_linked() => {
            let columns = ["hash", "hash revision", "compact revision"];
            output::print_text(&etcdctl::table(&columns, &[figures.to_vec()]))?;
        }
        WriteOut::Table => {
            let mut table = Table::new();
            table.load_style(ASCII_FULL_CONDENSED);
            table.set_header(["HASH", "HASH REVISION", "COMPACT REVISION"]);
            table.add_row(figures);
            output::print_lines(&output::drawn(&table))?;
        }
    }
    Ok(ExitCode::Ok)
}
