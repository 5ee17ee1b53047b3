//! What a restored member starts from beside its database: a log and a snapshot file.
//!
//! The log says that the cluster was founded by one membership change for each member, all of term
//! 1, and that everything up to the last of them is in the snapshot file and the database. The
//! caller writes the bytes below and sets `consistent_index` and `term` in the database to
//! [`RestoreLog::commit_index`] and [`RestoreLog::term`].
//!
//! 1. Records: checksum, metadata, snapshot 0, the changes ascending by id, state, snapshot n.
//! 2. The state votes for the smallest id and commits n, or the last snapshot would not count.
//! 3. The snapshot file holds the v2 store with the peer URLs of each member; etcd 3.5 reads its
//!    members from there, 3.6 reads only that it is JSON, 3.7 does not read it.
//!
//! The bytes of the log are those of etcdutl 3.5 and 3.6; 3.7 leaves zeros out and reads both. The
//! v2 store leaves out the event history and the statistics, which no server needs.
//!
//! Source: etcd `snapshot.v3Manager.saveWALAndSnap`, `wal.Create`, 3.5.35 and 3.6.16.

use super::members::{ClusterId, Member, MemberId};
use super::v2_store;
use crate::format::snap::{self, Snap};
use crate::format::u64_of;
use crate::format::wal::{
    ConfChange, ConfState, Encoder, Entry, HardState, Metadata, Snapshot, change_kind, entry_kind,
    kind, segment_name,
};

/// Term of everything in a restored log.
pub const TERM: u64 = 1;

/// Files that a restored member needs, and what the database must say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreLog {
    /// Name of the segment in `member/wal`.
    pub segment_name: String,
    /// Content of the segment; on disk zeros follow up to `format::wal::SEGMENT_BYTES`.
    pub segment: Vec<u8>,
    /// Name of the snapshot file in `member/snap`.
    pub snap_name: String,
    /// Content of the snapshot file.
    pub snap: Vec<u8>,
    /// Index of the last entry: the database's `consistent_index`.
    pub commit_index: u64,
    /// Term of that entry: the database's `term`.
    pub term: u64,
}

/// Why no log can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreLogError {
    /// The members are not in ascending order of their ids, or one stands twice.
    #[error("members are not sorted by id, each once")]
    Unsorted,
    /// The local member is not among the members.
    #[error("member {0} is not among the members of its cluster")]
    LocalMissing(MemberId),
    /// A learner, which a restored cluster cannot have.
    #[error("member {0} is a learner, and a restored cluster has voters only")]
    Learner(MemberId),
}

impl RestoreLog {
    /// Makes the log of `local` in a cluster of these members, which ascend by id.
    ///
    /// # Errors
    ///
    /// Members out of order, a learner, or a local member that is not among them.
    pub fn build(
        members: &[Member],
        local: MemberId,
        cluster: ClusterId,
    ) -> Result<Self, RestoreLogError> {
        if !members.is_sorted_by(|a, b| a.id < b.id) {
            return Err(RestoreLogError::Unsorted);
        }
        if let Some(learner) = members.iter().find(|member| member.is_learner) {
            return Err(RestoreLogError::Learner(learner.id));
        }
        if !members.iter().any(|member| member.id == local) {
            return Err(RestoreLogError::LocalMissing(local));
        }
        let voters: Vec<u64> = members.iter().map(|member| member.id.0).collect();
        let vote = voters.first().copied().unwrap_or(local.0);
        let commit = u64_of(voters.len());
        let conf_state = ConfState { voters, ..ConfState::default() };

        let mut log = Encoder::begin(0);
        let metadata = Metadata { node_id: local.0, cluster_id: cluster.0, ..Metadata::default() };
        log.push(kind::METADATA, &metadata.encode());
        log.push(kind::SNAPSHOT, &Snapshot::default().encode());
        for (index, member) in (1..).zip(members) {
            let data = encode_founding_change(member);
            let kind = entry_kind::CONF_CHANGE;
            log.push_entry(&Entry { kind, term: TERM, index, data: &data, ..Entry::default() });
        }
        let state = HardState { term: TERM, vote, commit, ..HardState::default() };
        log.push(kind::STATE, &state.encode());
        let snapshot = Snapshot {
            index: commit,
            term: TERM,
            conf_state: Some(conf_state.clone()),
            ..Snapshot::default()
        };
        log.push(kind::SNAPSHOT, &snapshot.encode());

        // A restored member has not said anything of itself yet.
        let restored: Vec<Member> = members
            .iter()
            .map(|member| Member { client_urls: Vec::new(), ..member.clone() })
            .collect();
        let store = v2_store::encode(&restored, &[], None, commit);
        let file = Snap {
            data: store.as_bytes(),
            conf_state,
            index: commit,
            term: TERM,
            ..Snap::default()
        };
        Ok(Self {
            segment_name: segment_name(0, 0),
            segment: log.into_bytes(),
            snap_name: snap::file_name(TERM, commit),
            snap: file.encode(),
            commit_index: commit,
            term: TERM,
        })
    }
}

/// Encodes the membership change by which a cluster is founded with a member.
#[must_use]
pub fn encode_founding_change(member: &Member) -> Vec<u8> {
    // Client URLs become known when the member starts and says them itself.
    let context = Member { client_urls: Vec::new(), ..member.clone() }.encode();
    let change = ConfChange {
        kind: change_kind::ADD_NODE,
        node_id: member.id.0,
        context: &context,
        ..ConfChange::default()
    };
    change.encode()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::path::Path;

    use super::*;
    use crate::etcd::peer_urls::InitialCluster;
    use crate::format::wal::Decoder;

    fn build(cluster: &str, token: &str, name: &str) -> RestoreLog {
        let (cluster_id, members) = InitialCluster::parse(cluster).unwrap().found(token).unwrap();
        let local = members.iter().find(|member| member.name == name).unwrap().id;
        RestoreLog::build(&members, local, cluster_id).unwrap()
    }

    #[test]
    fn a_single_members_log_has_etcdutls_checksums() {
        let log = build("default=http://localhost:2380", "etcd-cluster", "default");
        assert_eq!(log.segment.len(), 288);
        let sums: Vec<u32> =
            Decoder::new(&log.segment, 0).map(|record| record.unwrap().crc).collect();
        assert_eq!(sums, [0, 0x5f91_c0bb, 0xedb1_dd94, 0xb2a4_b742, 0x8875_8c1b, 0xddeb_8f0d]);
        assert_eq!(log.segment_name, "0000000000000000-0000000000000000.wal");
        assert_eq!(log.snap_name, "0000000000000001-0000000000000001.snap");
        assert_eq!((log.commit_index, log.term), (1, 1));
    }

    /// Files of a directory that an etcd's own tool restored, by their paths in it.
    fn restored(version: &str) -> Vec<(String, Vec<u8>)> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join(format!("fixtures/etcd-{version}/restored-m1-of-3.tar.gz"));
        let packed = flate2::read::GzDecoder::new(std::fs::File::open(path).unwrap());
        let mut archive = tar::Archive::new(packed);
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            let mut bytes = Vec::new();
            // What is tested stands at the head; the segments are sparse to 64 MB.
            entry.take(1 << 16).read_to_end(&mut bytes).unwrap();
            (path, bytes)
        });
        entries.collect()
    }

    fn file<'a>(files: &'a [(String, Vec<u8>)], suffix: &str) -> (&'a str, &'a [u8]) {
        let (path, bytes) = files.iter().find(|(path, _)| path.ends_with(suffix)).unwrap();
        (path.rsplit('/').next().unwrap(), bytes)
    }

    /// The v2 store's paths and values, without the numbers that depend on Go's map order.
    fn nodes(node: &serde_json::Value, out: &mut Vec<(String, String)>) {
        let text = |name: &str| node[name].as_str().unwrap().to_owned();
        out.push((text("Path"), text("Value")));
        for child in node["Children"].as_object().into_iter().flat_map(|map| map.values()) {
            nodes(child, out);
        }
    }

    #[test]
    fn three_members_logs_equal_those_of_real_restores() {
        for (version, ports) in [("3.5", [51, 53, 55]), ("3.6", [61, 63, 65])] {
            let [m1, m2, m3] = ports.map(|port| format!("http://127.0.0.1:273{port}"));
            let log = build(&format!("m1={m1},m2={m2},m3={m3}"), "restored", "m1");
            let files = restored(version);

            let (name, segment) = file(&files, ".wal");
            assert_eq!(name, log.segment_name);
            let (head, tail) = segment.split_at(log.segment.len());
            assert!(head == log.segment, "{version}: the log's bytes");
            assert!(tail.iter().all(|b| *b == 0));

            let (name, theirs) = file(&files, ".snap");
            assert_eq!(name, log.snap_name);
            let (theirs, ours) = (Snap::decode(theirs).unwrap(), Snap::decode(&log.snap).unwrap());
            assert_eq!((&theirs.conf_state, theirs.index), (&ours.conf_state, ours.index));
            assert_eq!(theirs.term, ours.term);
            let trees = [theirs, ours].map(|snap| {
                let store: serde_json::Value = serde_json::from_slice(snap.data).unwrap();
                let mut out = Vec::new();
                nodes(&store["Root"], &mut out);
                out.sort();
                (out, store["CurrentIndex"].clone(), store["CurrentVersion"].clone())
            });
            assert_eq!(trees[0], trees[1]);
            assert_eq!(trees[0].0.len(), 10);
        }
    }

    /// Every record of 3.4's and 3.7's logs means the same, though their zeros differ.
    #[test]
    fn other_versions_logs_mean_the_same() {
        for (version, ports) in [("3.4", [41, 43, 45]), ("3.7", [71, 73, 75])] {
            let [m1, m2, m3] = ports.map(|port| format!("http://127.0.0.1:273{port}"));
            let log = build(&format!("m1={m1},m2={m2},m3={m3}"), "restored", "m1");
            let files = restored(version);
            let (_, segment) = file(&files, ".wal");
            let ours: Vec<_> = Decoder::new(&log.segment, 0).map(Result::unwrap).collect();
            let theirs: Vec<_> = Decoder::new(segment, 0).map(Result::unwrap).collect();
            assert_eq!(ours.len(), theirs.len());
            for (ours, theirs) in ours.iter().zip(&theirs) {
                assert_eq!(ours.kind, theirs.kind);
                let decode = |data| {
                    let mut snapshot = Snapshot::decode(data).unwrap();
                    snapshot.conf_state = None;
                    snapshot
                };
                match ours.kind {
                    kind::METADATA => {
                        assert_eq!(Metadata::decode(ours.data), Metadata::decode(theirs.data));
                    }
                    kind::STATE => {
                        assert_eq!(HardState::decode(ours.data), HardState::decode(theirs.data));
                    }
                    kind::SNAPSHOT => assert_eq!(decode(ours.data), decode(theirs.data)),
                    kind::ENTRY => {
                        let entries = [ours.data, theirs.data].map(|d| Entry::decode(d).unwrap());
                        assert_eq!(entries[0].index, entries[1].index);
                        assert_eq!(
                            ConfChange::decode(entries[0].data),
                            ConfChange::decode(entries[1].data)
                        );
                    }
                    _ => assert_eq!(ours.kind, kind::CRC),
                }
            }
        }
    }

    #[test]
    fn impossible_clusters_are_refused() {
        let member = |id| Member { id: MemberId(id), ..Member::default() };
        let build = |members: &[Member], local| {
            RestoreLog::build(members, MemberId(local), ClusterId(9)).map(|_| ())
        };
        assert_eq!(build(&[member(1), member(2)], 2), Ok(()));
        assert_eq!(build(&[member(2), member(1)], 2), Err(RestoreLogError::Unsorted));
        assert_eq!(build(&[member(1), member(1)], 1), Err(RestoreLogError::Unsorted));
        assert_eq!(build(&[], 3), Err(RestoreLogError::LocalMissing(MemberId(3))));
        let learner = Member { is_learner: true, ..member(1) };
        assert_eq!(build(&[learner], 1), Err(RestoreLogError::Learner(MemberId(1))));
    }
}
