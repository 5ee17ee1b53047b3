//! `snapshot verify DIR` in words: what a data directory came out as.

use serde_json::Value;

use super::output;
use crate::etcd::data_dir::Starts;
use crate::ops::shell_word;
use crate::ops::verify_dir::{Part, Verdict, VerifiedDir};

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
    if let Some(revision) = report["revision"].as_i64() {
        line.push_str(&format!("; revision {revision}, {} keys", report["keys"]));
    }
    let number = |key: &str| report["wal"][key].as_u64();
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
    lines.extend(advice(verified).map(|line| format!("  next: {line}")));
    lines
}

fn advice(verified: &VerifiedDir) -> Option<String> {
    let is_whole = |part| [Part::Ok, Part::Unknown].contains(&part);
    match verified.verdict {
        Verdict::Good => None,
        Verdict::Unknown => Some("verify it with a newer etcdkit".into()),
        Verdict::Damaged => {
            let database =
                verified.dir.database.as_ref().filter(|_| is_whole(verified.database_part()));
            let text = match database {
                Some(database) => format!(
                    "keep a copy of the directory; its database is whole up to what the log did \
                     not bring into it: etcdkit snapshot restore {} --skip-hash-check --data-dir \
                     NEW",
                    shell_word(&database.display().to_string())
                ),
                None => "keep a copy of the directory; restore the newest snapshot, or add the \
                         member anew to a cluster that runs"
                    .into(),
            };
            Some(text)
        }
    }
}

/// The cells of a table's row.
pub(super) fn cells(report: &Value) -> [String; 8] {
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
        if starts.is_empty() { "-".into() } else { starts.join(" ") },
        report["findings"].as_array().map_or(0, Vec::len).to_string(),
    ]
}

/// The header above [`cells`].
pub(super) const HEADER: [&str; 8] =
    ["DIRECTORY", "VERDICT", "DATABASE", "LOG", "AGREEMENT", "REVISION", "STARTS ON", "FINDINGS"];
