//! Objects that a real Kubernetes 1.34 had written to a real etcd 3.6.16; they are in the program.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;

use crate::bolt::File;
use crate::etcd::record::KeyValue;
use crate::etcd::revision::RevisionKey;
use crate::etcd::schema;
use crate::kube::object;
use crate::ops::{Error, ExitCode};

const SNAPSHOT: &[u8] = include_bytes!("../../../fixtures/k8s-1.34/before-incident.db.gz");

/// A stored object.
pub(super) struct Object {
    pub(super) key: Vec<u8>,
    pub(super) value: Vec<u8>,
}

impl Object {
    /// Tells whether it is a namespace, or in it.
    pub(super) fn is_of(&self, namespace: &str) -> bool {
        let key = String::from_utf8_lossy(&self.key);
        key == format!("/registry/namespaces/{namespace}")
            || key.contains(&format!("/{namespace}/"))
    }
}

/// Returns the objects in the order of their last change.
pub(super) fn objects(folder: &Path) -> Result<Vec<Object>, Error> {
    let path = folder.join("objects.db");
    let mut bytes = Vec::new();
    let unpacked = flate2::read::GzDecoder::new(SNAPSHOT)
        .read_to_end(&mut bytes)
        .and_then(|_| fs::File::create(&path)?.write_all(&bytes));
    unpacked.map_err(|error| Error::io(&error, "write", &path))?;

    let broken = |what: String| Error::new(ExitCode::Damage, format!("{}: {what}", path.display()));
    let file = File::open(&path).map_err(|error| broken(error.to_string()))?;
    let bucket = file.bucket(&[schema::KEY]).map_err(|error| broken(error.to_string()))?;
    let mut newest = BTreeMap::new();
    let mut cursor = bucket.as_ref().map(|bucket| bucket.cursor());
    while let Some(cursor) = &mut cursor
        && let Some(row) = cursor.next_row().map_err(|error| broken(error.to_string()))?
    {
        let revision = RevisionKey::decode(row.key).map_err(|error| broken(error.to_string()))?;
        let record = KeyValue::decode(row.value).map_err(|error| broken(error.to_string()))?;
        // A lease of another cluster means nothing here, and what hangs on one would end.
        if revision.is_tombstone || record.lease != 0 {
            newest.remove(record.key);
        } else {
            newest.insert(record.key.to_owned(), (revision.revision, record.value.to_owned()));
        }
    }
    let mut objects: Vec<_> = newest.into_iter().collect();
    objects.sort_by_key(|(_, (revision, _))| *revision);
    let object = |(key, (_, value))| Object { key, value };
    Ok(objects.into_iter().map(object).collect())
}

/// Reads the UID of a stored object.
pub(super) fn uid(value: &[u8]) -> Result<String, Error> {
    let identity = object::read_identity(value)
        .map_err(|error| Error::new(ExitCode::Damage, format!("demo: {error}")))?;
    identity.uid.ok_or_else(|| Error::new(ExitCode::Damage, "demo: an object without a UID"))
}
