//! `snapshot verify DIR` in words: what a data directory came out as.

use serde_json::Value;

use super::output;
use crate::etcd::data_dir::Starts;
use crate::ops::verify_dir::VerifiedDir;

/// Writes the verdict, which etcd starts, the findings, and what to do next.
pub(super) fn lines(verified: &VerifiedDir, report: &Value) -> Vec<String> {
    let word = |key: &str| report[key].as_str().unwrap_or("-").to_owned();
    let mut line = format!(
        "{}: {} (database {}, log {}, agreement {}",
        word("directory"),
        word("verdict"),
        word("database"),
        word("log"),
        word("agreement"),
    );
    let number = |key: &str| report["wal"][key].as_u64();
    if let Some(revision) = report["revision"].as_i64() {
        line.push_str(&format!("; database at revision {revision}, {} keys", report["keys"]));
        if let Some(beyond) = number("beyond_database") {
            line.push_str(&format!(", {beyond} log entries beyond it"));
        }
    }
    if let (Some(first), Some(last)) = (number("first_entry"), number("last_entry")) {
        line.push_str(&format!("; entries {first} to {last} in the log"));
    }
    line.push(')');
    let mut lines = vec![line];
    for start in &verified.starts {
        let what = match start.starts {
            Starts::Yes => "starts",
            Starts::Badly => "starts, but does not work",
            Starts::No => "does not start",
        };
        let why = if start.why.is_empty() {
            String::new()
        } else {
            format!(": {}", start.why.join("; "))
        };
        lines.push(format!("  etcd {} {what}{why}", start.etcd));
    }
    let findings = output::findings_lines(&verified.findings);
    lines.extend(findings.into_iter().map(|line| format!("  {line}")));
    lines.extend(next_lines(report).map(|line| format!("  {line}")));
    lines
}

/// Writes what to do next with a directory.
pub(super) fn next_lines(report: &Value) -> impl Iterator<Item = String> {
    let next = report["next"].as_array().into_iter().flatten();
    next.filter_map(|line| line.as_str()).map(|line| format!("next: {line}"))
}

/// The cells of a table's row.
pub(super) fn cells(report: &Value) -> [String; 9] {
    let word = |key: &str| report[key].as_str().unwrap_or("-").to_owned();
    let starts = report["starts_on"].as_array().into_iter().flatten();
    let starts = starts.filter(|start| start["starts"] == "yes");
    let starts: Vec<_> = starts.filter_map(|start| start["etcd"].as_str()).collect();
    let number = |value: &Value| value.as_i64().map_or("-".into(), |number| number.to_string());
    [
        word("directory"),
        word("verdict"),
        word("database"),
        word("log"),
        word("agreement"),
        number(&report["revision"]),
        number(&report["wal"]["beyond_database"]),
        if starts.is_empty() { "-".into() } else { starts.join(" ") },
        report["findings"].as_array().map_or(0, Vec::len).to_string(),
    ]
}

/// The header above [`cells`].
pub(super) const HEADER: [&str; 9] = [
    "DIRECTORY",
    "VERDICT",
    "DATABASE",
    "LOG",
    "AGREEMENT",
    "DATABASE AT",
    "LOG BEYOND IT",
    "STARTS ON",
    "FINDINGS",
];
