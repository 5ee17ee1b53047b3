//! Writes the v2 store of a raft snapshot: who the members are, as etcd up to 3.6 keeps it.
//!
//! | path | value |
//! |---|---|
//! | `/0/members/<id>/attributes` | what the member says of itself, once it has client URLs |
//! | `/0/members/<id>/raftAttributes` | its peer URLs |
//! | `/0/removed_members/<id>` | nothing |
//! | `/0/version` | cluster version |
//! | `/1` | an empty folder, for keys of the v2 API |
//!
//! The event history and the statistics are left out, which no server needs. Names stand in byte
//! order, as Go writes them. [`crate::format::snap::V2Store`] reads it.
//!
//! Source: etcd `membership.RaftCluster.Store` and `v2store.store.SaveNoCopy`, 3.5.35, 3.6.16.

use std::fmt::Write as _;

use super::members::{Member, MemberId, put_json_text};
use super::schema::Version;

/// Encodes the store; `index` is that of the last change, and of every member where there are as
/// many as that.
#[must_use]
pub fn encode(
    members: &[Member],
    removed: &[MemberId],
    version: Option<Version>,
    index: u64,
) -> String {
    let nodes = (1..).zip(members).map(|(at, member)| {
        let (at, path) = (index.min(at), format!("/0/members/{}", member.id));
        let raft = member.encode_raft_attributes();
        let raft = node(&format!("{path}/raftAttributes"), at, &raft, None);
        let mut children = String::new();
        if !member.client_urls.is_empty() {
            let said = node(&format!("{path}/attributes"), at, &member.encode_attributes(), None);
            let _ = write!(children, "\"attributes\":{said},");
        }
        let _ = write!(children, "\"raftAttributes\":{raft}");
        format!("\"{}\":{}", member.id, node(&path, at, "", Some(&children)))
    });
    let nodes = nodes.collect::<Vec<_>>().join(",");
    let mut inside = format!("\"members\":{}", node("/0/members", 1, "", Some(&nodes)));
    if !removed.is_empty() {
        let mut texts: Vec<String> = removed.iter().map(ToString::to_string).collect();
        texts.sort_unstable();
        let nodes = texts.iter().map(|id| {
            format!("\"{id}\":{}", node(&format!("/0/removed_members/{id}"), index, "", None))
        });
        let nodes = nodes.collect::<Vec<_>>().join(",");
        let folder = node("/0/removed_members", index, "", Some(&nodes));
        let _ = write!(inside, ",\"removed_members\":{folder}");
    }
    if let Some(version) = version {
        let file = node("/0/version", index, &version.to_string(), None);
        let _ = write!(inside, ",\"version\":{file}");
    }
    let top = format!(
        "\"0\":{},\"1\":{}",
        node("/0", 0, "", Some(&inside)),
        node("/1", 0, "", Some("")),
    );
    let root = node("/", 0, "", Some(&top));
    format!("{{\"Root\":{root},\"CurrentIndex\":{index},\"CurrentVersion\":2}}")
}

/// Writes one node: a directory when it has children, be they none, else a file.
fn node(path: &str, index: u64, value: &str, children: Option<&str>) -> String {
    let mut node = format!(
        "{{\"Path\":\"{path}\",\"CreatedIndex\":{index},\"ModifiedIndex\":{index},\
         \"ExpireTime\":\"0001-01-01T00:00:00Z\",\"Value\":"
    );
    put_json_text(&mut node, value);
    match children {
        Some(children) => {
            let _ = write!(node, ",\"Children\":{{{children}}}}}");
        }
        None => node.push_str(",\"Children\":null}"),
    }
    node
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::snap::V2Store;

    #[test]
    fn what_is_written_is_read() {
        let one = Member {
            id: MemberId(0xa1),
            peer_urls: vec!["http://a:1".into()],
            name: "m\"1".into(),
            client_urls: vec!["http://a:2".into()],
            ..Member::default()
        };
        let two = Member { id: MemberId(0xb2), is_learner: true, ..Member::default() };
        let removed = [MemberId(0xd), MemberId(0xc)];
        let version = Version { major: 3, minor: 6, patch: 0 };
        let text = encode(&[one, two], &removed, Some(version), 70);
        let store = V2Store::decode(text.as_bytes()).unwrap();
        assert_eq!(store.version.as_deref(), Some("3.6.0"));
        assert_eq!(store.removed, ["c", "d"]);
        let raft = |at: usize| store.members[at].raft_attributes.clone().unwrap();
        assert_eq!(raft(0), r#"{"peerURLs":["http://a:1"]}"#);
        assert_eq!(raft(1), r#"{"peerURLs":[],"isLearner":true}"#);
        let said = store.members[0].attributes.clone().unwrap();
        assert_eq!(said, r#"{"name":"m\"1","clientURLs":["http://a:2"]}"#);
        assert_eq!(store.members[1].attributes, None);
        assert!(!store.has_v2_data);
    }
}
