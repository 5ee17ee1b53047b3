//! A snapshot of the running store, as a stream of bytes.
//!
//! **Shape**: the database as a file of its own, a multiple of its page size, and 32 bytes of
//! SHA-256 over it: what `etcdctl snapshot save` writes.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Instant;

use sha2::{Digest, Sha256};

use super::{Store, backend};
use crate::bolt::db::View;
use crate::format::{u64_of, usize_of};
use crate::store::error::Error;
use crate::store::figures::live::Live;
use crate::store::guard::{Caller, Wish};

/// Bytes of the sum at the end.
const TRAILER: u64 = 32;

/// Reads a snapshot. Writers go on meanwhile; pages that it has yet to read are not used again
/// until it is dropped.
#[derive(Debug)]
pub struct Snapshot {
    view: View,
    sum: Sha256,
    offset: u64,
    size_bytes: u64,
    trailer: Option<Vec<u8>>,
    storage_version: String,
    revision: i64,
    figures: Arc<Live>,
    began: Instant,
}

impl Store {
    /// Takes a snapshot of everything that was answered before this call.
    ///
    /// # Errors
    /// No permission, or the disk.
    pub fn snapshot(&self, caller: &Caller) -> Result<Snapshot, Error> {
        let shared = self.shared();
        shared.check(caller, Wish::Admin)?;
        let began = Instant::now();
        // Read before the commit: the view has at least this.
        let revision = self.revision();
        let view = backend::commit(shared)?;
        let size_bytes = view.sizes().size_bytes;
        Ok(Snapshot {
            view,
            sum: Sha256::new(),
            offset: 0,
            size_bytes,
            trailer: None,
            storage_version: self.shared().compat.storage_version().to_string(),
            revision,
            figures: Arc::clone(&shared.figures),
            began,
        })
    }
}

impl Snapshot {
    /// Bytes of the database, without the sum.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Bytes of the database that are left.
    #[must_use]
    pub fn remaining_bytes(&self) -> u64 {
        self.size_bytes.saturating_sub(self.offset)
    }

    /// Storage version that etcd's stream names in each message.
    #[must_use]
    pub fn storage_version(&self) -> &str {
        &self.storage_version
    }

    /// A revision that the snapshot holds, if not a later one.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.revision
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        self.figures.snapshot.since(self.began);
    }
}

impl Read for Snapshot {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.remaining_bytes();
        if left > 0 {
            let len = buffer.len().min(usize_of(left));
            let part = buffer.get_mut(..len).unwrap_or_default();
            let count = self.view.read_image(self.offset, part).map_err(io::Error::other)?;
            if count == 0 && len > 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.sum.update(part.get(..count).unwrap_or_default());
            self.offset = self.offset.saturating_add(u64_of(count));
            return Ok(count);
        }
        let sum = &mut self.sum;
        let trailer = self.trailer.get_or_insert_with(|| sum.finalize_reset().to_vec());
        let done = usize_of(self.offset.saturating_sub(self.size_bytes).min(TRAILER));
        let rest = trailer.get(done..).unwrap_or_default();
        let len = buffer.len().min(rest.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..len), rest.get(..len)) {
            to.copy_from_slice(from);
        }
        self.offset = self.offset.saturating_add(u64_of(len));
        Ok(len)
    }
}
