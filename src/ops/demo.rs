//! `demo`: the whole story on a real incident, in a temporary directory.
//!
//! A namespace of a real Kubernetes 1.34 was deleted by mistake. The snapshot from before is
//! proved good, is shown to hold the namespace, is restored, and the restored data is proved to
//! hold it again. Both snapshots were written by a real etcd 3.6.16 under a real API server and
//! are part of the program.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;

use serde::Serialize;

use super::examine::{Level, examine};
use super::restore::{Options, restore};
use super::verify::{Verdict, judge};
use super::{Error, ExitCode, Progress};
use crate::bolt::File;
use crate::etcd::record::KeyValue;
use crate::etcd::revision::RevisionKey;
use crate::etcd::schema;
use crate::kube::object;

const BEFORE: &[u8] = include_bytes!("../../fixtures/k8s-1.34/before-incident.db.gz");
const AFTER: &[u8] = include_bytes!("../../fixtures/k8s-1.34/after-incident.db.gz");
const NAMESPACE: &str = "/registry/namespaces/shop";

/// What the demo proved.
#[derive(Clone, Debug, Serialize)]
pub struct Proof {
    /// Version of this shape in JSON.
    pub version: u32,
    /// The key in question.
    pub key: String,
    /// UID of the namespace in the snapshot from before the incident.
    pub uid: String,
    /// Living keys in the snapshot from before.
    pub keys_before: u64,
    /// Living keys in the snapshot from after.
    pub keys_after: u64,
    /// Living keys in the restored data.
    pub keys_restored: u64,
    /// UID of the namespace in the restored data.
    pub uid_restored: String,
    /// Revision of the snapshot.
    pub revision_before: i64,
    /// Revision that the restored member starts at.
    pub revision_restored: i64,
    /// etcd versions that start on the restored data.
    pub boots_on: Vec<String>,
    /// Milliseconds of the whole.
    pub ms: u64,
}

impl Proof {
    /// The proof on one screen.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        vec![
            "A namespace was deleted by mistake. Is the snapshot from before good, and does it"
                .into(),
            "bring the namespace back? (Snapshots of a real Kubernetes 1.34 on etcd 3.6.16.)"
                .into(),
            String::new(),
            format!(
                "1 verify   before-incident.db: trailer, every page, every record: good ({} keys)",
                self.keys_before
            ),
            format!("2 find     {} is in it, UID {}", self.key, self.uid),
            format!("           and is not in after-incident.db ({} keys)", self.keys_after),
            format!(
                "3 restore  into a temporary directory: revision {} -> {},",
                self.revision_before, self.revision_restored
            ),
            "           above every revision that was served, so that every watcher lists again"
                .into(),
            format!(
                "4 prove    the restored database: every page, every record: good ({} keys)",
                self.keys_restored
            ),
            format!("           {} is back, UID {}", self.key, self.uid_restored),
            format!("           etcd {} start on it", self.boots_on.join(", ")),
            String::new(),
            format!("Done in {} ms; the temporary directory is gone.", self.ms),
            "The same on your own snapshot:".into(),
            "  etcdkit snapshot verify FILE".into(),
            "  etcdkit snapshot restore FILE --data-dir DIR --dry-run".into(),
        ]
    }
}

/// Runs the demo.
///
/// # Errors
/// The temporary directory cannot be used, or a step does not prove what it should.
pub fn demo(progress: &dyn Progress) -> Result<Proof, Error> {
    let began = std::time::Instant::now();
    let folder = tempfile::Builder::new()
        .prefix("etcdkit-demo-")
        .tempdir()
        .map_err(|error| Error::io(&error, "make a folder in", &std::env::temp_dir()))?;
    let unproved = |what: String| Error::new(ExitCode::Internal, format!("demo: {what}"));
    let before = folder.path().join("before-incident.db");
    let after = folder.path().join("after-incident.db");
    unpack(BEFORE, &before)?;
    unpack(AFTER, &after)?;

    let examined = examine(&before, Level::Full, progress)?;
    if judge(&examined, false).verdict != Verdict::Good {
        return Err(unproved("the snapshot from before is not good".into()));
    }
    let later = examine(&after, Level::Full, progress)?;
    let uid = namespace_uid(&before)?
        .ok_or_else(|| unproved(format!("{NAMESPACE} is not in the snapshot from before")))?;
    if namespace_uid(&after)?.is_some() {
        return Err(unproved(format!("{NAMESPACE} is in the snapshot from after")));
    }

    let options = Options {
        snapshot: before,
        data_dir: folder.path().join("restored"),
        audit_log: folder.path().join("audit.jsonl"),
        ..Options::default()
    };
    let report = restore(&options, progress)?;
    let database = options.data_dir.join("member").join("snap").join("db");
    let restored = examine(&database, Level::Full, progress)?;
    if judge(&restored, true).verdict != Verdict::Good {
        return Err(unproved("the restored database is not good".into()));
    }
    let uid_restored = namespace_uid(&database)?
        .ok_or_else(|| unproved(format!("{NAMESPACE} is not in the restored data")))?;
    if uid_restored != uid {
        return Err(unproved(format!("UID {uid_restored} came back instead of {uid}")));
    }
    let keys = |examined: &super::examine::Examined| {
        examined.rows.as_ref().map_or(0, |rows| rows.live_keys)
    };
    let proof = Proof {
        version: 1,
        key: NAMESPACE.into(),
        uid,
        keys_before: keys(&examined),
        keys_after: keys(&later),
        keys_restored: keys(&restored),
        uid_restored,
        revision_before: report.revision.old,
        revision_restored: restored.rows.as_ref().map_or(0, |rows| rows.current_revision),
        boots_on: report.boots_on.iter().filter(|b| b.boots).map(|b| b.etcd.to_owned()).collect(),
        ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
    };
    folder.close().map_err(|error| Error::io(&error, "remove", Path::new("the demo's folder")))?;
    Ok(proof)
}

fn unpack(packed: &[u8], path: &Path) -> Result<(), Error> {
    let mut bytes = Vec::new();
    let unpacked = flate2::read::GzDecoder::new(packed)
        .read_to_end(&mut bytes)
        .and_then(|_| fs::File::create(path)?.write_all(&bytes));
    unpacked.map_err(|error| Error::io(&error, "write", path))
}

/// Finds the namespace's UID in its newest record; `None` when that is a tombstone or missing.
fn namespace_uid(path: &Path) -> Result<Option<String>, Error> {
    let broken = |what: String| Error::new(ExitCode::Damage, format!("{}: {what}", path.display()));
    let file = File::open(path).map_err(|error| broken(error.to_string()))?;
    let bucket = file.bucket(&[schema::KEY]).map_err(|error| broken(error.to_string()))?;
    let Some(bucket) = bucket else { return Ok(None) };
    let mut cursor = bucket.cursor();
    let mut found = None;
    while let Some(row) = cursor.next_row().map_err(|error| broken(error.to_string()))? {
        let key = RevisionKey::decode(row.key).map_err(|error| broken(error.to_string()))?;
        let record = KeyValue::decode(row.value).map_err(|error| broken(error.to_string()))?;
        if record.key != NAMESPACE.as_bytes() {
            continue;
        }
        found = None;
        if !key.is_tombstone {
            let identity = object::read_identity(record.value);
            found = identity.map_err(|error| broken(error.to_string()))?.uid;
        }
    }
    Ok(found)
}
