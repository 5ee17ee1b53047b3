//! What entries of a log say that decides which etcd can read it.

use crate::etcd::log::{Entries, EntriesError};
use crate::etcd::schema::Version;
use crate::format::pb;
use crate::format::wal::{Entry, entry_kind};

/// Most cluster versions that are kept; a cluster sets one at each upgrade.
const VERSIONS_MAX: usize = 1000;

/// Field of `InternalRaftRequest` that sets the cluster version; those from here on came with 3.5.
const CLUSTER_VERSION_SET: u32 = 1300;

/// Paths of the v2 API that members themselves write to.
const OWN_PATHS: [&[u8]; 2] = [b"/0/members/", b"/0/version"];

/// What was met, with the highest index of each kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Last request of the v2 API.
    pub last_v2: Option<u64>,
    /// Last request of the v2 API to a path that members do not write to themselves.
    pub last_v2_foreign: Option<u64>,
    /// Last request that etcd 3.4 does not know.
    pub last_since_3_5: Option<u64>,
    /// Cluster versions that are set, with their indexes, ascending.
    pub versions: Vec<(u64, Version)>,
}

impl Requests {
    /// Reads entries up to an index.
    ///
    /// # Errors
    ///
    /// As those of [`Entries::read_next`].
    pub fn read(entries: &mut Entries<'_>, through: u64) -> Result<Self, EntriesError> {
        let mut requests = Self::default();
        while let Some(entry) = entries.read_next()? {
            if entry.index > through {
                break;
            }
            requests.note(&entry);
        }
        Ok(requests)
    }

    fn note(&mut self, entry: &Entry<'_>) {
        if entry.kind != entry_kind::NORMAL {
            return;
        }
        // A v2 request has method and path where a v3 request has messages.
        let (mut method, mut path, mut value) = (None, None, None);
        for field in pb::fields(entry.data).map_while(Result::ok) {
            let bytes = field.bytes().ok();
            match field.number {
                2 => method = bytes,
                3 => path = bytes.filter(|path| path.starts_with(b"/")),
                4 => value = bytes,
                CLUSTER_VERSION_SET => self.set_version(entry.index, bytes.and_then(message_text)),
                _ => {}
            }
            if (CLUSTER_VERSION_SET..CLUSTER_VERSION_SET.saturating_add(100))
                .contains(&field.number)
            {
                self.last_since_3_5 = Some(entry.index);
            }
        }
        if let (Some(method), Some(path)) = (method, path) {
            self.last_v2 = Some(entry.index);
            let is_own = OWN_PATHS.iter().any(|own| path.starts_with(own));
            if method != b"PUT" || !is_own {
                self.last_v2_foreign = Some(entry.index);
            } else if path == b"/0/version" {
                self.set_version(entry.index, value);
            }
        }
    }

    fn set_version(&mut self, index: u64, text: Option<&[u8]>) {
        if let Some(version) = text.and_then(Version::parse)
            && self.versions.len() < VERSIONS_MAX
        {
            self.versions.push((index, version));
        }
    }

    /// Returns the highest cluster version that is set above an index.
    #[must_use]
    pub fn highest_version(&self, after: u64) -> Option<Version> {
        self.versions.iter().filter(|(index, _)| *index > after).map(|(_, version)| *version).max()
    }
}

/// Reads field 1 of a message as bytes.
fn message_text(message: &[u8]) -> Option<&[u8]> {
    let mut fields = pb::fields(message).map_while(Result::ok);
    fields.find(|field| field.number == 1).and_then(|field| field.bytes().ok())
}
