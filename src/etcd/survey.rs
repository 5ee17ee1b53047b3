//! One pass over all rows of a database: figures, hashes, members, leases, alarms, findings.
//!
//! [`Survey`] takes the rows of a walk in key order and ends as a [`Report`]. It holds what
//! [`super::chain`] holds of each key, and at most [`KEPT_MAX`] items of every other kind.
//!
//! | figure | rule |
//! |---|---|
//! | `status_hash` | CRC-32C over each bucket's name, then each key and value, nothing between |
//! | `key_bucket_crc` | the same of bucket `key` alone, its name first |
//! | `revision` | main of the last key of bucket `key`, 0 for none |
//! | `current_revision` | largest of 1, `revision` and the two compaction revisions |
//! | `pair_count` | rows of all buckets: what etcd 3.4 and 3.5 print as total keys |
//! | `total_keys` | keys whose last record is no tombstone, the empty key of a bump marker too |
//! | `live_keys` | the same without the empty key |
//!
//! Source: etcd `snapshot.v3Manager.Status`, `mvcc.store.restore`; 3.4.23, 3.5.35, 3.7.3.

mod report;
mod sums;

pub use report::{Auth, Report};
pub use sums::BucketSums;

use super::chain::{Breach, Chains};
use super::members::{Member, MemberId};
use super::record::KeyValue;
use super::revision::RevisionKey;
use super::rows::{self, Alarm, AlarmKind, Downgrade, Lease, Role, User};
use super::schema::{self, Version};
use crate::bolt::{At, Visit};
use crate::format::finding::{Code, Finding, Place, bytes_text, short_key, short_path};

/// Most members, alarms, leases, users or roles that a report holds.
pub const KEPT_MAX: usize = 10_000;

/// Longest text that a report takes from a row, in bytes.
const TEXT_BYTES_MAX: usize = 64 * 1024;

/// Makes a [`Report`] from the rows of one walk.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    report: Report,
    chains: Chains,
    /// Top-level bucket that rows are in.
    bucket: Vec<u8>,
    is_known: bool,
    seen: Vec<&'static [u8]>,
    /// Hash of all top-level buckets before this one.
    hash_before: u32,
    /// Hash of this bucket alone, and how many bytes it covers.
    bucket_hash: u32,
    bucket_bytes: usize,
    is_empty_key_live: bool,
    /// Last record that has lost its key's beginning; revisions ascend, so it is the highest too.
    last_orphan: Option<Orphan>,
}

#[derive(Clone, Copy, Debug)]
struct Orphan {
    key: RevisionKey,
    page: u64,
    offset: u64,
}

impl Visit for Survey {
    fn bucket(&mut self, at: &At<'_>, _sequence: u64) {
        match at.bucket {
            [] => {}
            [name] => self.begin_bucket(at, name),
            [.., name] => {
                if let [top, _] = at.bucket
                    && *top == self.bucket
                {
                    // etcdutl hashes the bucket's name as a key without a value.
                    self.hash(name);
                    self.report.pair_count = self.report.pair_count.saturating_add(1);
                }
                let detail = format!("bucket {} is inside another", bytes_text(name));
                self.find(Code::BucketNested, at, name, detail);
            }
        }
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        match at.bucket {
            [] => self.find(Code::BucketUnknown, at, key, "a row is outside of any bucket".into()),
            [name] if *name == self.bucket => self.row(at, key, value),
            // Rows of a nested bucket: the bucket itself has been reported.
            _ => {}
        }
    }
}

impl Survey {
    /// Makes a survey that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the survey.
    #[must_use]
    pub fn finish(mut self) -> Report {
        self.end_bucket();
        let mut report = self.report;
        report.status_hash = self.hash_before;
        report.live_keys = self.chains.live_count();
        report.total_keys = report.live_keys.saturating_add(u64::from(self.is_empty_key_live));
        report.current_revision = report.revision.max(report.compact_revision()).max(1);
        for name in schema::BUCKETS.iter().filter(|name| !self.seen.contains(name)) {
            let detail = format!("there is no bucket {}", bytes_text(name));
            // Without these two a server has nothing to serve; the others it makes at start.
            let is_needed = [schema::KEY, schema::META].contains(name);
            let code = if is_needed { Code::BucketMissing } else { Code::BucketAbsent };
            report.findings.push(Finding::new(code, Place::default(), detail));
        }
        if report.scheduled_compact_revision > report.finished_compact_revision {
            let detail =
                format!("the compaction to revision {} is open", report.compact_revision());
            let place = meta_place(schema::META_SCHEDULED_COMPACT);
            report.findings.push(Finding::new(Code::CompactionPending, place, detail));
        }
        if let Some(orphan) = self.last_orphan
            && orphan.key.revision.main > report.compact_revision()
        {
            report.findings.push(orphan.finding(report.compact_revision()));
        }
        report.take_leases(self.chains);
        report
    }

    fn begin_bucket(&mut self, at: &At<'_>, name: &[u8]) {
        self.end_bucket();
        self.bucket = name.to_vec();
        self.hash(name);
        let known = schema::BUCKETS.iter().find(|known| **known == name);
        self.is_known = known.is_some();
        match known {
            Some(known) => self.seen.push(known),
            None => {
                let detail = format!("bucket {} is not etcd's", bytes_text(name));
                self.find(Code::BucketUnknown, at, name, detail);
            }
        }
    }

    fn end_bucket(&mut self) {
        if self.bucket == schema::KEY {
            self.report.key_bucket_crc = self.bucket_hash;
        }
        if !self.bucket.is_empty() {
            let (crc, bytes) = (self.bucket_hash, self.bucket_bytes);
            self.report.sums.push(&self.bucket, crc, bytes);
        }
        self.hash_before =
            crc32c::crc32c_combine(self.hash_before, self.bucket_hash, self.bucket_bytes);
        (self.bucket_hash, self.bucket_bytes) = (0, 0);
    }

    fn hash(&mut self, bytes: &[u8]) {
        self.bucket_hash = crc32c::crc32c_append(self.bucket_hash, bytes);
        self.bucket_bytes = self.bucket_bytes.saturating_add(bytes.len());
    }

    fn row(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.hash(key);
        self.hash(value);
        self.report.pair_count = self.report.pair_count.saturating_add(1);
        if !self.is_known {
            return;
        }
        match self.bucket.as_slice() {
            schema::KEY => self.record_row(at, key, value),
            schema::LEASE => self.lease_row(at, key, value),
            schema::ALARM => self.alarm_row(at, key, value),
            schema::MEMBERS => self.member_row(at, key, value),
            schema::MEMBERS_REMOVED => self.removed_row(at, key),
            schema::META => self.meta_row(at, key, value),
            schema::CLUSTER => self.cluster_row(at, key, value),
            schema::AUTH => self.auth_row(at, key, value),
            schema::AUTH_USERS => self.user_row(at, key, value),
            schema::AUTH_ROLES => self.role_row(at, key, value),
            _ => {}
        }
    }

    fn find(&mut self, code: Code, at: &At<'_>, key: &[u8], detail: String) {
        let place = if self.report.findings.is_full() {
            Place::default()
        } else {
            Place {
                page: Some(at.page),
                offset: Some(at.offset),
                bucket: short_path(at.bucket),
                key: Some(short_key(key)),
                ..Place::default()
            }
        };
        self.report.findings.push(Finding::new(code, place, detail));
    }

    /// Reports a failed read under a code, and hands on what was read.
    fn take<T, E: ToString>(
        &mut self,
        code: Code,
        at: &At<'_>,
        key: &[u8],
        read: Result<T, E>,
    ) -> Option<T> {
        read.map_err(|error| self.find(code, at, key, error.to_string())).ok()
    }

    fn find_unknown_field(&mut self, at: &At<'_>, key: &[u8], field: Option<impl ToString>) {
        if let Some(field) = field {
            let field = bytes_text(field.to_string().as_bytes());
            self.find(Code::FieldUnknown, at, key, format!("field {field} is not etcd's"));
        }
    }

    fn record_row(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.report.record_count = self.report.record_count.saturating_add(1);
        let Some(revision) = self.take(Code::RevisionKey, at, key, RevisionKey::decode(key)) else {
            return;
        };
        self.report.revision = revision.revision.main;
        if revision.is_tombstone {
            self.report.tombstone_count = self.report.tombstone_count.saturating_add(1);
        }
        let Some(record) = self.take(Code::RecordBytes, at, key, KeyValue::decode(value)) else {
            return;
        };
        self.find_unknown_field(at, key, record.unknown_field);
        if record.key.is_empty() {
            // etcdutl counts the empty key like any other.
            self.is_empty_key_live = !revision.is_tombstone;
            if value.is_empty() && !revision.is_tombstone {
                self.report.marker_count = self.report.marker_count.saturating_add(1);
            } else {
                self.find(Code::RecordBytes, at, key, "a record without a key".into());
            }
            return;
        }
        self.report.is_kubernetes |= schema::is_kubernetes_key(record.key);
        let step = self.chains.follow(revision, &record);
        if step.is_orphan {
            self.last_orphan = Some(Orphan { key: revision, page: at.page, offset: at.offset });
        }
        let (code, detail) = match step.breach {
            None => return,
            Some(Breach::Revision(detail)) => (Code::RecordRevision, detail),
            Some(Breach::Chain(detail)) => (Code::RecordChain, detail),
        };
        self.find(code, at, key, format!("key {}: {detail}", bytes_text(record.key)));
    }

    fn lease_row(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.report.lease_count = self.report.lease_count.saturating_add(1);
        if let Some(lease) = self.take(Code::LeaseRow, at, key, Lease::decode(key, value)) {
            self.find_unknown_field(at, key, lease.unknown_field);
            self.chains.grant(lease);
        }
    }

    fn alarm_row(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        let Some(alarm) = self.take(Code::AlarmRow, at, key, Alarm::decode(key, value)) else {
            return;
        };
        self.find_unknown_field(at, key, alarm.unknown_field);
        let code = match alarm.kind {
            AlarmKind::NoSpace => Code::AlarmNoSpace,
            AlarmKind::Corrupt => Code::AlarmCorrupt,
            AlarmKind::Other(_) => Code::AlarmUnknown,
        };
        let detail = format!("alarm {} of member {}", alarm.kind.name(), alarm.member_id);
        self.find(code, at, key, detail);
        if self.report.alarms.len() < KEPT_MAX {
            self.report.alarms.push(alarm);
        } else {
            self.find(Code::AlarmRow, at, key, format!("there are more than {KEPT_MAX} alarms"));
        }
    }

    fn member_row(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        let Some(row) = self.take(Code::MemberRow, at, key, Member::decode(value)) else {
            return;
        };
        self.find_unknown_field(at, key, row.unknown_field);
        let member = row.member;
        if member.row_key() != key {
            let detail = format!("the row of member {} stands under another key", member.id);
            self.find(Code::MemberRow, at, key, detail);
        }
        if member.is_learner {
            self.find(Code::LearnerInside, at, key, format!("member {} is a learner", member.id));
        }
        if self.report.members.len() < KEPT_MAX {
            self.report.members.push(member);
        } else {
            self.find(Code::MemberRow, at, key, format!("there are more than {KEPT_MAX} members"));
        }
    }

    fn removed_row(&mut self, at: &At<'_>, key: &[u8]) {
        match MemberId::parse(key) {
            Some(id) if self.report.removed_members.len() < KEPT_MAX => {
                self.report.removed_members.push(id);
            }
            Some(_) => {
                let detail = format!("more than {KEPT_MAX} members were removed");
                self.find(Code::MemberRow, at, key, detail);
            }
            None => self.find(Code::MemberRow, at, key, "a member id that is not hex".into()),
        }
    }

    fn meta_row(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        let code = Code::MetaRow;
        match key {
            schema::META_CONSISTENT_INDEX => {
                self.report.consistent_index = self.take(code, at, key, rows::decode_u64(value));
            }
            schema::META_TERM => {
                self.report.term = self.take(code, at, key, rows::decode_u64(value));
            }
            schema::META_FINISHED_COMPACT => {
                let revision = rows::decode_compact_revision(value);
                self.report.finished_compact_revision = self.take(code, at, key, revision);
            }
            schema::META_SCHEDULED_COMPACT => {
                let revision = rows::decode_compact_revision(value);
                self.report.scheduled_compact_revision = self.take(code, at, key, revision);
            }
            schema::META_CONF_STATE => {
                let unknown = self.take(code, at, key, rows::decode_conf_state(value));
                self.find_unknown_field(at, key, unknown.unwrap_or_default().into_iter().next());
                let text = value.get(..TEXT_BYTES_MAX).unwrap_or(value);
                self.report.conf_state = Some(String::from_utf8_lossy(text).into_owned());
            }
            schema::META_STORAGE_VERSION => {
                self.report.storage_version = self.version(at, key, value);
                if let Some(version) = self.report.storage_version
                    && !version.is_known_storage()
                {
                    let detail = format!("the storage version is {version}");
                    self.find(Code::StorageNewer, at, key, detail);
                }
            }
            _ => self.find_unknown_row(at, key),
        }
    }

    fn cluster_row(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        match key {
            schema::CLUSTER_VERSION => {
                self.report.cluster_version = self.version(at, key, value);
            }
            schema::CLUSTER_DOWNGRADE => {
                let read = self.take(Code::MetaRow, at, key, Downgrade::decode(value));
                let Some(downgrade) = read else { return };
                self.find_unknown_field(at, key, downgrade.unknown_field.as_ref());
                if downgrade.enabled {
                    let target = bytes_text(downgrade.target_version.as_bytes());
                    let detail = format!("the cluster is on its way to {target}");
                    self.find(Code::DowngradePending, at, key, detail);
                }
                self.report.downgrade = Some(downgrade);
            }
            _ => self.find_unknown_row(at, key),
        }
    }

    fn version(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) -> Option<Version> {
        let version = Version::parse(value);
        if version.is_none() {
            let detail = format!("the version is {}", bytes_text(value));
            self.find(Code::VersionBytes, at, key, detail);
        }
        version
    }

    fn find_unknown_row(&mut self, at: &At<'_>, key: &[u8]) {
        self.find(Code::MetaKeyUnknown, at, key, format!("row {} is not etcd's", bytes_text(key)));
    }

    fn auth_row(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        let code = Code::AuthRow;
        match key {
            schema::AUTH_ENABLED => {
                let enabled = self.take(code, at, key, rows::decode_auth_enabled(value));
                self.report.auth.enabled = enabled.unwrap_or(false);
            }
            schema::AUTH_REVISION => {
                self.report.auth.revision = self.take(code, at, key, rows::decode_u64(value));
            }
            _ => self.find_unknown_row(at, key),
        }
    }

    fn user_row(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.report.auth.user_count = self.report.auth.user_count.saturating_add(1);
        if let Some(user) = self.take(Code::AuthRow, at, key, User::decode(key, value)) {
            self.find_unknown_field(at, key, user.unknown_field);
            push_kept(&mut self.report.auth.users, user.name);
        }
    }

    fn role_row(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.report.auth.role_count = self.report.auth.role_count.saturating_add(1);
        if let Some(role) = self.take(Code::AuthRow, at, key, Role::decode(key, value)) {
            self.find_unknown_field(at, key, role.unknown_field);
            push_kept(&mut self.report.auth.roles, role.name);
        }
    }
}

impl Orphan {
    fn finding(self, compact_revision: i64) -> Finding {
        let revision = self.key.revision;
        let key = if self.key.is_tombstone {
            revision.encode_tombstone().to_vec()
        } else {
            revision.encode().to_vec()
        };
        let place = Place {
            page: Some(self.page),
            offset: Some(self.offset),
            bucket: vec![schema::KEY.to_vec()],
            key: Some(key),
            ..Place::default()
        };
        let detail = format!(
            "the record at {revision} goes on with a key whose earlier records are not there, \
             though the compaction revision is {compact_revision}"
        );
        Finding::new(Code::RecordChain, place, detail)
    }
}

fn meta_place(key: &[u8]) -> Place {
    Place { bucket: vec![schema::META.to_vec()], key: Some(key.to_vec()), ..Place::default() }
}

fn push_kept(names: &mut Vec<String>, mut name: String) {
    if names.len() < KEPT_MAX {
        name.truncate(name.floor_char_boundary(TEXT_BYTES_MAX));
        names.push(name);
    }
}

#[cfg(test)]
mod tests;
