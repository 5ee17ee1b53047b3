//! What a survey ends as: plain figures, and findings.

use super::{BucketSums, KEPT_MAX};
use crate::etcd::chain::{Chains, LeaseUse};
use crate::etcd::members::{Member, MemberId};
use crate::etcd::rows::{Alarm, Downgrade};
use crate::etcd::schema::{self, Version};
use crate::format::finding::{Code, Finding, Findings, Place};

/// What the rows say.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Hash that `etcdutl snapshot status` prints.
    pub status_hash: u32,
    /// CRC-32C of bucket `key`.
    pub key_bucket_crc: u32,
    /// The same hash bucket by bucket.
    pub sums: BucketSums,
    /// Main revision of the last record; 0 when there is none.
    pub revision: i64,
    /// Revision that a server starts at.
    pub current_revision: i64,
    /// Rows of all buckets.
    pub pair_count: u64,
    /// Total keys as etcdutl 3.6 and 3.7 count them.
    pub total_keys: u64,
    /// Living user keys.
    pub live_keys: u64,
    /// Rows of bucket `key`.
    pub record_count: u64,
    /// Tombstones among them.
    pub tombstone_count: u64,
    /// Empty records that restores with a bumped revision left.
    pub marker_count: u64,
    /// Last compaction that ended.
    pub finished_compact_revision: Option<i64>,
    /// Last compaction that began.
    pub scheduled_compact_revision: Option<i64>,
    /// Raft index of the last entry that was applied.
    pub consistent_index: Option<u64>,
    /// Raft term of that entry.
    pub term: Option<u64>,
    /// Raft configuration as the row has it, a hint that may be stale.
    pub conf_state: Option<String>,
    /// Storage version; `None` before etcd 3.6.
    pub storage_version: Option<Version>,
    /// Cluster version.
    pub cluster_version: Option<Version>,
    /// Online downgrade.
    pub downgrade: Option<Downgrade>,
    /// Members, ascending by the text of their ids.
    pub members: Vec<Member>,
    /// Ids that were removed and must not come back.
    pub removed_members: Vec<MemberId>,
    /// Alarms that stand.
    pub alarms: Vec<Alarm>,
    /// Rows of bucket `lease`.
    pub lease_count: u64,
    /// Leases, ascending by id, with the living keys attached to each; the first [`KEPT_MAX`].
    pub leases: Vec<LeaseUse>,
    /// Living keys that are attached to leases without a row.
    pub keys_on_missing_leases: u64,
    /// Auth settings.
    pub auth: Auth,
    /// Whether any record is a Kubernetes API server's.
    pub is_kubernetes: bool,
    /// What is wrong or unknown.
    pub findings: Findings,
}

/// Auth settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Auth {
    /// Whether auth is on.
    pub enabled: bool,
    /// Number of auth changes.
    pub revision: Option<u64>,
    /// Rows of bucket `authUsers`.
    pub user_count: u64,
    /// Names of users, the first [`KEPT_MAX`].
    pub users: Vec<String>,
    /// Rows of bucket `authRoles`.
    pub role_count: u64,
    /// Names of roles, the first [`KEPT_MAX`].
    pub roles: Vec<String>,
}

impl Report {
    /// Returns the revision that a server compacts to at start, -1 for none.
    #[must_use]
    pub fn compact_revision(&self) -> i64 {
        self.finished_compact_revision.max(self.scheduled_compact_revision).unwrap_or(-1)
    }

    /// Takes over the leases, and reports those that have no row.
    pub(super) fn take_leases(&mut self, chains: Chains) {
        let mut leases = chains.into_leases();
        let missing = leases.iter().filter(|lease| !lease.is_there);
        let (count, keys) = missing.clone().fold((0_u64, 0_u64), |(count, keys), lease| {
            (count.saturating_add(1), keys.saturating_add(lease.live_keys))
        });
        self.keys_on_missing_leases = keys;
        if let Some(first) = missing.map(|lease| lease.lease.id).next() {
            let detail = format!(
                "{keys} living keys are attached to {count} leases that have no row, such as \
                 lease {first:x}"
            );
            let place = Place { bucket: vec![schema::LEASE.to_vec()], ..Place::default() };
            self.findings.push(Finding::new(Code::LeaseMissing, place, detail));
        }
        leases.truncate(KEPT_MAX);
        self.leases = leases;
    }
}
