//! `snapshot status|verify`, and the words of the other snapshot commands.

use std::io;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use comfy_table::Table;
use serde_json::{Value, json};

use super::output::{self, WriteOut, table};
use super::restore::{self, Restore};
use super::save::{self, Save};
use super::terminal::Terminal;
use super::{Global, Outcome, inspect, rewrite};
use super::{directory, etcdctl};
use crate::format::finding::Severity;
use crate::ops::examine::{self, Level};
use crate::ops::{Error, ExitCode, Progress, shell_word, status, verify, verify_dir};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Save a snapshot of a running member, or with --from-data-dir of a dead one
    Save(Save),
    /// Show a snapshot's figures, as etcdutl does, and what else is in it
    Status {
        /// The snapshot file
        file: PathBuf,
    },
    /// Check whether snapshots or data directories can be relied on: every page, record and entry
    Verify(Verify),
    /// Show what takes the room in a database, and what would give it back
    Inspect(inspect::Inspect),
    /// Restore a snapshot into a new data directory
    Restore(Box<Restore>),
    /// Write the snapshot that a compaction at a revision would leave
    Compact(rewrite::Compact),
    /// Check a database whole and write it as a snapshot with a fresh trailer
    Seal(rewrite::Seal),
}

#[derive(Debug, Args)]
pub(super) struct Verify {
    /// The snapshot files, or data directories of members that do not run
    #[arg(required = true, value_name = "FILE|DIR")]
    files: Vec<PathBuf>,
    /// Where the WAL of a data directory is, when it is not in it
    #[arg(long, value_name = "DIR")]
    wal_dir: Option<PathBuf>,
    /// How much to check
    #[arg(long, value_enum, default_value_t = CheckLevel::Full)]
    level: CheckLevel,
    /// Let a full check stand in for a sha256 trailer that is not there
    #[arg(long)]
    skip_hash_check: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum CheckLevel {
    /// Trailer and meta pages
    Quick,
    /// Trailer, every page and every record
    Full,
}

pub(super) fn run(global: &Global, command: Command) -> Outcome {
    match command {
        Command::Save(args) => save::run(global, args),
        Command::Status { file } => run_status(global, &file),
        Command::Verify(args) => run_verify(global, &args),
        Command::Compact(args) => rewrite::run_compact(global, args),
        Command::Seal(args) => rewrite::run_seal(global, args),
        Command::Inspect(args) => inspect::run(global, args),
        Command::Restore(args) => restore::run(global, *args),
    }
}

fn run_status(global: &Global, file: &std::path::Path) -> Outcome {
    let terminal = Terminal::new(global);
    let examined = examine::examine(file, Level::Full, &terminal)?;
    terminal.clear();
    let report = status::report(&examined)?;
    match global.write_out {
        WriteOut::Json if global.program.is_linked() => {
            let keys = ["hash", "revision", "totalKey", "totalSize", "version"];
            let figures = keys.iter().map(|key| ((*key).to_owned(), report[*key].clone()));
            output::print_json(&Value::Object(figures.collect()))?;
        }
        WriteOut::Json => output::print_json(&report)?,
        WriteOut::Fields => {
            let (etcdutls, ours) = fields(&report);
            output::print_lines(&etcdutls)?;
            if !global.program.is_linked() {
                output::print_fields(&ours)?;
            }
        }
        WriteOut::Table if global.program.is_linked() => {
            let columns = ["hash", "revision", "total keys", "total size", "version"];
            output::print_text(&etcdctl::table(&columns, &[figures(&report)]))?;
        }
        WriteOut::Simple => output::print_lines(&[figures(&report).join(", ")])?,
        WriteOut::Table => {
            let mut figures_table = table();
            let header = ["HASH", "REVISION", "TOTAL KEYS", "TOTAL SIZE", "VERSION"];
            figures_table.set_header(header);
            figures_table.add_row(figures(&report));
            output::print_lines(&output::drawn(&figures_table))?;
            output::print_lines(&output::drawn(&details(&report)))?;
        }
    }
    if global.write_out != WriteOut::Json || global.program.is_linked() {
        // What should be known but has no place in etcdutl's shapes goes beside them.
        let findings = examined.all_findings();
        for finding in findings.kept().iter().filter(|f| f.severity != Severity::Info) {
            for line in output::finding_lines(finding) {
                output::say(&line);
            }
        }
    }
    let damaged = examined.all_findings().has_errors();
    Ok(if damaged { ExitCode::Damage } else { ExitCode::Ok })
}

fn figures(report: &Value) -> Vec<String> {
    let number = |key: &str| report[key].as_u64().unwrap_or(0);
    vec![
        format!("{:x}", number("hash")),
        report["revision"].to_string(),
        number("totalKey").to_string(),
        etcdctl::size(number("totalSize")),
        report["version"].as_str().unwrap_or_default().to_owned(),
    ]
}

fn details(report: &Value) -> Table {
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Null => "none".into(),
        Value::Array(items) if items.is_empty() => "none".into(),
        other => other.to_string(),
    };
    let mut table = table();
    table.set_header(["", ""]);
    let names = |key: &str, field: &str| -> String {
        let items = report[key].as_array().into_iter().flatten();
        let names: Vec<_> = items.map(|item| text(&item[field])).collect();
        if names.is_empty() { "none".into() } else { names.join(", ") }
    };
    let rows = [
        ("sha256 trailer", text(&report["trailer"])),
        ("cluster version", text(&report["clusterVersion"])),
        ("revision a server starts at", text(&report["currentRevision"])),
        ("compacted up to", text(&report["compactRevision"])),
        ("members", names("members", "name")),
        ("alarms", names("alarms", "alarm")),
        ("leases", text(&report["leases"])),
        ("auth enabled", text(&report["auth"]["enabled"])),
        ("Kubernetes", text(&report["kubernetes"])),
        ("free pages", text(&report["freePages"])),
    ];
    for (name, value) in rows {
        table.add_row([name.to_owned(), value]);
    }
    table
}

/// etcdutl's five lines of `fields`, the version without quotes as it prints it; then what is ours,
/// named as in JSON.
fn fields(report: &Value) -> (Vec<String>, Value) {
    let mut etcdutls = Vec::new();
    let mut ours = serde_json::Map::new();
    for (key, value) in report.as_object().into_iter().flatten() {
        let name = match key.as_str() {
            "hash" => "Hash",
            "revision" => "Revision",
            "totalKey" => "Keys",
            "totalSize" => "Size",
            "version" => "Version",
            _ => {
                ours.insert(key.clone(), value.clone());
                continue;
            }
        };
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        etcdutls.push(format!("\"{name}\" : {value}"));
    }
    (etcdutls, Value::Object(ours))
}

fn run_verify(global: &Global, args: &Verify) -> Outcome {
    let terminal = Terminal::new(global);
    let level = match args.level {
        CheckLevel::Quick => Level::Quick,
        CheckLevel::Full => Level::Full,
    };
    let is_directory = |path: &&PathBuf| path.is_dir();
    if args.wal_dir.is_some() && args.files.iter().filter(is_directory).count() != 1 {
        return Err(Error::usage("--wal-dir belongs to one data directory").into());
    }
    let mut worst = ExitCode::Ok;
    let (mut files, mut directories) = (Vec::new(), Vec::new());
    for path in &args.files {
        let is_directory = path.is_dir();
        let verified = if is_directory {
            verify_directory(path, args.wal_dir.as_deref(), level, &terminal)
        } else {
            verify_file(path, level, args.skip_hash_check, &terminal)
        };
        terminal.clear();
        let reports = if is_directory { &mut directories } else { &mut files };
        match verified {
            Ok((code, report, lines)) => {
                worst = worse(worst, code);
                if global.write_out == WriteOut::Simple {
                    output::print_lines(&lines)?;
                }
                reports.push(report);
            }
            Err(error) if args.files.len() == 1 || error.code == ExitCode::Interrupted => {
                return Err(error.into());
            }
            Err(error) => {
                worst = worse(worst, error.code);
                reports.push(json!({
                    if is_directory { "directory" } else { "file" }: path.display().to_string(),
                    "verdict": "unread",
                    "error": error.message,
                }));
                if global.write_out != WriteOut::Json {
                    output::print_error(&error, global.write_out);
                }
            }
        }
    }
    print_verified(global, files, directories)?;
    Ok(worst)
}

/// What a path came out as: exit code, JSON, and lines for people.
type Verified = Result<(ExitCode, Value, Vec<String>), Error>;

fn verify_file(
    path: &std::path::Path,
    level: Level,
    without_trailer: bool,
    terminal: &Terminal,
) -> Verified {
    let examined = examine::examine(path, level, terminal)?;
    let verified = verify::judge(&examined, without_trailer);
    let report = verify::report(&examined, &verified);
    for warning in report["warnings"].as_array().into_iter().flatten() {
        terminal.note(&format!("warning: {}", warning.as_str().unwrap_or_default()));
    }
    let mut lines = vec![verdict_line(&report)];
    let findings = output::findings_lines(&examined.all_findings());
    lines.extend(findings.into_iter().map(|line| format!("  {line}")));
    lines.extend(advice(&verified, &examined).map(|line| format!("  next: {line}")));
    Ok((verified.verdict.exit_code(), report, lines))
}

fn verify_directory(
    path: &std::path::Path,
    wal_dir: Option<&std::path::Path>,
    level: Level,
    terminal: &Terminal,
) -> Verified {
    let verified = verify_dir::verify(path, wal_dir, level, terminal)?;
    let report = verified.report();
    let lines = directory::lines(&verified, &report);
    Ok((verified.verdict.exit_code(), report, lines))
}

fn print_verified(global: &Global, files: Vec<Value>, directories: Vec<Value>) -> io::Result<()> {
    match global.write_out {
        WriteOut::Simple => Ok(()),
        WriteOut::Table => {
            let mut tables = Vec::new();
            if !files.is_empty() {
                tables.push(files_table(&files).to_string());
            }
            if !directories.is_empty() {
                let mut table = table();
                table.set_header(directory::HEADER);
                directories.iter().for_each(|report| {
                    table.add_row(directory::cells(report));
                });
                tables.extend(output::drawn(&table));
                for report in &directories {
                    let name = report["directory"].as_str().unwrap_or("-");
                    let next = directory::next_lines(report);
                    tables.extend(next.map(|line| format!("{name}: {line}")));
                }
            }
            output::print_lines(&tables)
        }
        WriteOut::Json | WriteOut::Fields => {
            let mut one = files.iter().chain(&directories);
            let single = one.next().filter(|_| one.next().is_none()).cloned();
            let mut whole = json!({ "version": 1, "files": files });
            if let (false, Some(map)) = (directories.is_empty(), whole.as_object_mut()) {
                map.insert("directories".into(), json!(directories));
            }
            match global.write_out {
                WriteOut::Json => output::print_json(&whole),
                _ => output::print_fields(single.as_ref().unwrap_or(&whole)),
            }
        }
    }
}

fn files_table(files: &[Value]) -> Table {
    let mut table = table();
    let header = ["FILE", "VERDICT", "TRAILER", "PAGES", "RECORDS", "REVISION", "FINDINGS"];
    table.set_header(header);
    for file in files {
        let word = |key: &str| file[key].as_str().unwrap_or("-").to_owned();
        let revision = file["revision"].as_i64().map_or("-".into(), |r| r.to_string());
        let findings = file["findings"].as_array().map_or(0, Vec::len).to_string();
        let words = ["file", "verdict", "trailer", "pages", "records"].map(word);
        table.add_row(words.into_iter().chain([revision, findings]));
    }
    table
}

/// Damage wins over everything, then refusals, then what could not be read.
fn worse(a: ExitCode, b: ExitCode) -> ExitCode {
    let rank = |code: ExitCode| match code {
        ExitCode::Damage => 4,
        ExitCode::Refused => 3,
        ExitCode::Ok => 0,
        _ => 2,
    };
    if rank(b) > rank(a) { b } else { a }
}

fn verdict_line(report: &Value) -> String {
    let word = |key: &str| report[key].as_str().unwrap_or("-").to_owned();
    let mut line = format!(
        "{}: {} (trailer {}, pages {}, records {}; {}",
        word("file"),
        word("verdict"),
        word("trailer"),
        word("pages"),
        word("records"),
        output::size(report["size_bytes"].as_u64().unwrap_or(0)),
    );
    if let Some(revision) = report["revision"].as_i64() {
        line.push_str(&format!(", revision {revision}, {} keys", report["keys"]));
    }
    line.push(')');
    line
}

fn advice(verified: &verify::Verified, examined: &examine::Examined) -> Option<String> {
    let name = examined.path.display().to_string();
    let is_whole = [verify::Verdict::Good, verify::Verdict::Unsealed].contains(&verified.verdict);
    if let Some(data_dir) = examined.data_dir.as_ref().filter(|_| is_whole) {
        return Some(examine::save_command(data_dir));
    }
    match verified.verdict {
        verify::Verdict::Good => None,
        verify::Verdict::Unsealed => Some(format!(
            "if it was never sealed: etcdkit snapshot seal {} -o {}, which checks all of it",
            shell_word(&name),
            shell_word(&format!("{name}.sealed"))
        )),
        verify::Verdict::Unknown => Some("verify it with a newer etcdkit".into()),
        verify::Verdict::Damaged if examined.unwrap.is_some() => examined.unwrap.clone(),
        verify::Verdict::Damaged => {
            Some("use another backup; keep this one, parts of it may be readable".into())
        }
    }
}
