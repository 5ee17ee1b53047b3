//! `snapshot status`: etcdutl's five figures, and what else should be known about a snapshot.

use serde_json::{Value, json};

use super::examine::{Examined, Seal};
use super::{Error, ExitCode};
use crate::etcd::survey::Report as Rows;
use crate::format::finding::{Finding, Severity};

/// Builds the JSON of `snapshot status`: etcdutl's keys first, then ours.
///
/// # Errors
/// [`ExitCode::Damage`] when the file is no database or some row cannot be read: figures of such
/// a file would be wrong. Damage to the freelist hides no row.
pub fn report(examined: &Examined) -> Result<Value, Error> {
    let (Some(file), Some(rows), Some(walk)) = (&examined.file, &examined.rows, &examined.walk)
    else {
        return Err(damaged(examined));
    };
    if !examined.tree_is_whole() || examined.records_damaged() {
        return Err(damaged(examined));
    }
    let mut report = etcdutl(file.meta().size_bytes(), rows);
    let ours = json!({
        "sha256": examined.sha256,
        "trailer": trailer_word(&examined.seal),
        "fileSize": examined.size_bytes,
        "pageSize": file.page_size(),
        "freePages": walk.free_pages,
        "currentRevision": rows.current_revision,
        "compactRevision": rows.compact_revision(),
        "clusterVersion": rows.cluster_version.map(|version| version.to_string()),
        "storageVersion": rows.storage_version.map(|version| version.to_string()),
        "downgrade": rows.downgrade.as_ref().filter(|d| d.enabled).map(|d| &d.target_version),
        "members": members(rows),
        "alarms": alarms(rows),
        "leases": rows.lease_count,
        "auth": {
            "enabled": rows.auth.enabled,
            "users": rows.auth.users,
            "roles": rows.auth.roles,
        },
        "kubernetes": rows.is_kubernetes,
        "findings": examined.all_findings().kept(),
    });
    if let (Some(report), Value::Object(ours)) = (report.as_object_mut(), ours) {
        report.extend(ours);
    }
    Ok(report)
}

/// The five figures that etcdutl 3.6 and 3.7 print, under their names.
#[must_use]
pub fn etcdutl(database_bytes: u64, rows: &Rows) -> Value {
    let version = rows.storage_version.map(|version| version.to_string()).unwrap_or_default();
    json!({
        "hash": rows.status_hash,
        "revision": rows.revision,
        "totalKey": rows.total_keys,
        "totalSize": database_bytes,
        "version": version,
    })
}

/// Members as they stand in a snapshot; ids in hex.
#[must_use]
pub fn members(rows: &Rows) -> Value {
    let members = rows.members.iter().map(|member| {
        json!({
            "id": member.id.to_string(),
            "name": member.name,
            "peerURLs": member.peer_urls,
            "clientURLs": member.client_urls,
            "isLearner": member.is_learner,
        })
    });
    members.collect()
}

/// Alarms as they stand in a snapshot.
#[must_use]
pub fn alarms(rows: &Rows) -> Value {
    let alarms = rows.alarms.iter().map(
        |alarm| json!({ "memberID": alarm.member_id.to_string(), "alarm": alarm.kind.name() }),
    );
    alarms.collect()
}

/// One word for the trailer, as it stands in JSON.
#[must_use]
pub fn trailer_word(seal: &Seal) -> &'static str {
    match seal {
        Seal::Good => "ok",
        Seal::Missing => "missing",
        Seal::Broken { .. } => "broken",
    }
}

/// Makes the error of a file whose damage stops an operation.
#[must_use]
pub fn damaged(examined: &Examined) -> Error {
    let all = examined.all_findings();
    let errors: Vec<Finding> =
        all.kept().iter().filter(|f| f.severity == Severity::Error).cloned().collect();
    let count = u64::try_from(errors.len()).unwrap_or(0).saturating_add(all.left_out());
    let message = match errors.as_slice() {
        [only] if all.left_out() == 0 => format!("{}: {}", examined.path.display(), only.detail),
        _ => format!(
            "{}: snapshot file integrity check failed. {count} errors found",
            examined.path.display()
        ),
    };
    let mut error = Error::new(ExitCode::Damage, message).hint(format!(
        "etcdkit snapshot verify {}",
        super::shell_word(&examined.path.display().to_string())
    ));
    error.findings = errors;
    error
}
