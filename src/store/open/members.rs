//! Members where etcd up to 3.5 keeps them: in the v2 store of the newest snapshot file, and in
//! the entries after it. Its database may lack them, or hold those of a cluster that is gone.
//!
//! Source: etcd `membership.RaftCluster.Recover`, 3.4.45, 3.5.35.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use bytes::Bytes;
use serde::Deserialize;

use super::existing::Read;
use super::{OpenError, replay};
use crate::bolt::db::Batch;
use crate::etcd::apply::{self, Latest, Rules, State, Unreadable};
use crate::etcd::members::{Member, MemberId};
use crate::etcd::request::{Content, Span};
use crate::etcd::revision::Revision;
use crate::etcd::schema;
use crate::format::snap::V2Store;
use crate::format::wal::{Entry, entry_kind};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The rows of members alone.
#[derive(Debug, Default)]
struct Members {
    members: Rows,
    removed: Rows,
}

/// Plans the rows of members as of the database's last entry; `None` where nothing tells them, or
/// the member of the log is not among them.
pub(super) fn plan(read: &Read) -> Result<Option<Batch>, OpenError> {
    let Some(rows) = &read.rows else { return Ok(None) };
    let Some((mut state, from)) = start(read)? else { return Ok(None) };
    let mut entries = match read.log.entries(from) {
        Err(crate::etcd::log::EntriesError::Purged { .. }) => return Ok(None),
        entries => entries.map_err(replay::failed)?,
    };
    while let Some(entry) = entries.read_next().map_err(replay::failed)? {
        if entry.index > read.facts.consistent_index {
            break;
        }
        state.apply(&entry)?;
    }
    let own = MemberId(read.facts.member);
    if !state.members.contains_key(own.to_string().as_bytes()) {
        return Ok(None);
    }
    let mut batch = Batch::default();
    for gone in &rows.members {
        if !state.members.contains_key(&gone.row_key()) {
            batch.plan(schema::MEMBERS, gone.row_key().into(), None);
        }
    }
    for (bucket, rows) in
        [(schema::MEMBERS, state.members), (schema::MEMBERS_REMOVED, state.removed)]
    {
        for (key, value) in rows {
            batch.plan(bucket, Bytes::from(key), Some(value.into()));
        }
    }
    Ok(Some(batch))
}

/// What the newest snapshot file says, and the index that it covers.
fn start(read: &Read) -> Result<Option<(Members, u64)>, OpenError> {
    let newest = read.log.newest_snapshot().filter(|newest| newest.index > 0);
    let Some(newest) = newest else { return Ok(Some((Members::default(), 0))) };
    let mut files = read.dir.snaps.iter();
    let file = files.find(|snap| (snap.index, snap.term) == (newest.index, newest.term));
    let store = file.and_then(|file| file.content.as_ref().ok()).map(|(_, store)| store);
    let Some(Ok(store)) = store else { return Ok(None) };
    Ok(Some((Members::of(store)?, newest.index)))
}

/// What raft must know of a member.
#[derive(Deserialize)]
struct RaftAttributes {
    #[serde(rename = "peerURLs", default)]
    peer_urls: Option<Vec<String>>,
    #[serde(rename = "isLearner", default)]
    is_learner: bool,
}

/// What a member says of itself.
#[derive(Default, Deserialize)]
struct Attributes {
    #[serde(default)]
    name: String,
    #[serde(rename = "clientURLs", default)]
    client_urls: Option<Vec<String>>,
}

impl Members {
    fn of(store: &V2Store) -> Result<Self, OpenError> {
        let bad = |id: &str| {
            let what = format!("member {id} in the snapshot file cannot be read");
            OpenError::damaged(what, "etcdkit snapshot verify says more of the directory")
        };
        let mut state = Self::default();
        for member in &store.members {
            let failed = || bad(&member.id);
            let id = MemberId::parse(member.id.as_bytes()).ok_or_else(failed)?;
            let raft = member.raft_attributes.as_deref().ok_or_else(failed)?;
            let raft: RaftAttributes = serde_json::from_str(raft).map_err(|_| failed())?;
            let said = match member.attributes.as_deref() {
                Some(said) => serde_json::from_str(said).map_err(|_| failed())?,
                None => Attributes::default(),
            };
            let member = Member {
                id,
                peer_urls: raft.peer_urls.unwrap_or_default(),
                is_learner: raft.is_learner,
                name: said.name,
                client_urls: said.client_urls.unwrap_or_default(),
            };
            state.members.insert(member.row_key(), member.encode());
        }
        for removed in &store.removed {
            let id = MemberId::parse(removed.as_bytes()).ok_or_else(|| bad(removed))?;
            state.removed.insert(id.to_string().into_bytes(), schema::REMOVED.to_vec());
        }
        Ok(state)
    }

    /// Applies an entry, if it is about members.
    fn apply(&mut self, entry: &Entry<'_>) -> Result<(), OpenError> {
        let is_about_members = match entry.kind {
            entry_kind::CONF_CHANGE => true,
            entry_kind::NORMAL => match Content::decode(entry.data) {
                Ok(Content::V2(_)) => true,
                Ok(Content::Request(request)) => {
                    matches!(request.body, crate::etcd::request::Body::MemberAttributes(_))
                }
                _ => false,
            },
            _ => false,
        };
        if !is_about_members {
            return Ok(());
        }
        let effect = apply::apply(self, &Rules::default(), entry).map_err(|error| {
            OpenError::unfit(error.to_string(), "serve it with the etcd that wrote it")
        })?;
        for row in effect.rows {
            let Some(rows) = self.rows(row.bucket) else { continue };
            match row.value {
                Some(value) => drop(rows.insert(row.key, value)),
                None => drop(rows.remove(&row.key)),
            }
        }
        Ok(())
    }

    fn rows(&mut self, bucket: &[u8]) -> Option<&mut Rows> {
        match bucket {
            schema::MEMBERS => Some(&mut self.members),
            schema::MEMBERS_REMOVED => Some(&mut self.removed),
            _ => None,
        }
    }

    fn seen(&self, bucket: &[u8]) -> Option<&Rows> {
        match bucket {
            schema::MEMBERS => Some(&self.members),
            schema::MEMBERS_REMOVED => Some(&self.removed),
            _ => None,
        }
    }
}

impl State for Members {
    fn current_revision(&self) -> i64 {
        1
    }

    fn compact_revision(&self) -> i64 {
        -1
    }

    fn latest(&self, _: &[u8]) -> Result<Option<Latest>, Unreadable> {
        Ok(None)
    }

    fn each_live(
        &self,
        _: Span<'_>,
        _: &mut dyn FnMut(&[u8], &Latest) -> ControlFlow<()>,
    ) -> Result<(), Unreadable> {
        Ok(())
    }

    fn value(&self, revision: Revision) -> Result<Vec<u8>, Unreadable> {
        Err(Unreadable(format!("no record stands under {revision:?}")))
    }

    fn lease_keys(&self, _: i64) -> Result<Vec<Vec<u8>>, Unreadable> {
        Ok(Vec::new())
    }

    fn row(&self, bucket: &[u8], key: &[u8]) -> Result<Option<Cow<'_, [u8]>>, Unreadable> {
        let rows = self.seen(bucket);
        Ok(rows.and_then(|rows| rows.get(key)).map(|value| Cow::Borrowed(value.as_slice())))
    }

    fn each_row(
        &self,
        bucket: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), Unreadable> {
        for (key, value) in self.seen(bucket).into_iter().flatten() {
            visit(key, value);
        }
        Ok(())
    }
}
