//! `snapshot verify`: may this file be relied on? One verdict a layer, and one over all.

use serde::Serialize;
use serde_json::{Value, json};

use super::ExitCode;
use super::examine::{Examined, Level, Seal};
use super::restore::evidence;
use super::status;
use crate::format::finding::Code;

/// What a layer of the file came out as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Looked at, nothing wrong.
    Ok,
    /// Not there (the trailer).
    Missing,
    /// Wrong.
    Damaged,
    /// Holds what this version does not know, so it cannot vouch for it.
    Unknown,
    /// Not looked at.
    Unchecked,
}

/// What the file as a whole came out as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// A backup to rely on, as far as was looked.
    Good,
    /// Whole as far as can be seen, but without a trailer to prove it.
    Unsealed,
    /// Nothing is wrong, but it holds what this version does not know.
    Unknown,
    /// Not a usable snapshot.
    Damaged,
}

/// The verdicts on one file.
#[derive(Clone, Debug)]
pub struct Verified {
    /// The trailer.
    pub trailer: Layer,
    /// The page tree.
    pub pages: Layer,
    /// The rows.
    pub records: Layer,
    /// Over all.
    pub verdict: Verdict,
}

/// Judges a file. `without_trailer`: a full check stands in for a trailer that is not there.
#[must_use]
pub fn judge(examined: &Examined, without_trailer: bool) -> Verified {
    let full = examined.level == Level::Full && examined.file.is_some();
    let trailer = match (&examined.seal, &examined.file) {
        (_, None) => Layer::Unchecked,
        (Seal::Good, _) => Layer::Ok,
        (Seal::Missing, _) => Layer::Missing,
        (Seal::Broken { .. }, _) => Layer::Damaged,
    };
    let pages = match full {
        false => Layer::Unchecked,
        true if examined.pages_damaged() => Layer::Damaged,
        true => Layer::Ok,
    };
    let corrupt = examined.rows.as_ref().is_some_and(|rows| rows.findings.has(Code::AlarmCorrupt));
    let records = match full {
        false => Layer::Unchecked,
        true if examined.records_damaged() || corrupt => Layer::Damaged,
        true if examined.has_unknown() => Layer::Unknown,
        true => Layer::Ok,
    };
    let verdict = if examined.is_damaged() || corrupt {
        Verdict::Damaged
    } else if examined.has_unknown() {
        Verdict::Unknown
    } else if trailer == Layer::Missing && !(without_trailer && full) {
        Verdict::Unsealed
    } else {
        Verdict::Good
    };
    Verified { trailer, pages, records, verdict }
}

impl Verdict {
    /// Returns what the program exits with.
    #[must_use]
    pub fn exit_code(self) -> ExitCode {
        match self {
            Self::Good => ExitCode::Ok,
            Self::Unsealed | Self::Unknown => ExitCode::Refused,
            Self::Damaged => ExitCode::Damage,
        }
    }
}

/// Builds the JSON object of one verified file; `docs/JSON.md` describes it.
#[must_use]
pub fn report(examined: &Examined, verified: &Verified) -> Value {
    let mut report = json!({
        "file": examined.path.display().to_string(),
        "verdict": verified.verdict,
        "trailer": verified.trailer,
        "pages": verified.pages,
        "records": verified.records,
        "level": match examined.level { Level::Quick => "quick", Level::Full => "full" },
        "size_bytes": examined.size_bytes,
        "sha256": examined.sha256,
    });
    let Some(map) = report.as_object_mut() else { return report };
    if let Some(rows) = &examined.rows {
        map.insert("revision".into(), json!(rows.current_revision));
        map.insert("keys".into(), json!(rows.live_keys));
        map.insert("members".into(), status::members(rows));
        map.insert("alarms".into(), status::alarms(rows));
        map.insert("kubernetes".into(), json!(rows.is_kubernetes));
    }
    if let Some(walk) = &examined.walk {
        let pages = json!({
            "branch": walk.branch_pages,
            "leaf": walk.leaf_pages,
            "overflow": walk.overflow_pages,
            "free": walk.free_pages,
            "depth": walk.depth,
        });
        map.insert("page_counts".into(), pages);
    }
    let warning = evidence::warning_of_note(&examined.path, &examined.sha256);
    map.insert("warnings".into(), json!(Vec::from_iter(warning)));
    let findings = examined.all_findings();
    map.insert("findings".into(), json!(findings.kept()));
    map.insert("findings_left_out".into(), json!(findings.left_out()));
    report
}
