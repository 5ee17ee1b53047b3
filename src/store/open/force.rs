//! Makes a member of several the only one, as `--force-new-cluster` does.
//!
//! What is committed, or applied, counts; entries above are dropped, as new ones take their
//! indexes. The new ones are changes of members, of the current term, and count at once: the member
//! is added where it is not there, then every other one is removed, ascending by id.
//!
//! Source: etcd `bootstrapWALFromSnapshot`, `CreateConfigChangeEnts`, 3.5.22, 3.6.1, 3.7.3; before
//! those, only what the last HardState says is committed counts.

use std::collections::BTreeSet;

use crate::etcd::log::Configuration;
use crate::etcd::members::{Member, MemberId};
use crate::format::wal::{ConfChange, Entry, HardState, change_kind, entry_kind};
use crate::store::error::Error;
use crate::store::log::Wal;

/// Peer URL that etcd gives a member which it does not know.
const DEFAULT_PEER_URL: &str = "http://localhost:2380";

/// Makes the changes of members, encoded.
pub(super) fn entries(configuration: &Configuration, member: u64) -> Vec<Vec<u8>> {
    let both = configuration.voters.union(&configuration.learners);
    let ids: BTreeSet<u64> = both.copied().collect();
    let mut changes = Vec::new();
    if !ids.contains(&member) {
        let own = Member {
            id: MemberId(member),
            peer_urls: vec![DEFAULT_PEER_URL.into()],
            ..Member::default()
        };
        let context = own.encode();
        let kind = change_kind::ADD_NODE;
        let change = ConfChange { kind, node_id: member, context: &context, ..Default::default() };
        changes.push(change.encode());
    }
    for node_id in ids.into_iter().filter(|id| *id != member) {
        let kind = change_kind::REMOVE_NODE;
        changes.push(ConfChange { kind, node_id, ..ConfChange::default() }.encode());
    }
    changes
}

/// Writes them after an index; returns the index of the last one.
pub(super) fn append(wal: &mut Wal, changes: &[Vec<u8>], after: u64) -> Result<u64, Error> {
    let state = wal.state();
    let mut index = after;
    let mut entries = Vec::new();
    for change in changes {
        index = index.saturating_add(1);
        let kind = entry_kind::CONF_CHANGE;
        entries.push(Entry { kind, term: state.term, index, data: change, ..Entry::default() });
    }
    wal.append(&entries, Some(HardState { commit: index, ..state }))?;
    Ok(index)
}
