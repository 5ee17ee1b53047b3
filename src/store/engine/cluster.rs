//! What the member says of itself, and the little that one member can change about members.

use std::sync::atomic::Ordering;

use super::queue::{Proposal, Reply};
use super::{Shared, Store};
use crate::bolt::db::Sizes;
use crate::etcd::apply::{Refusal, State as _};
use crate::etcd::members::{Member, MemberId};
use crate::etcd::peer_urls;
use crate::etcd::rows::Downgrade;
use crate::etcd::schema::{self, Version};
use crate::format::wal::{ConfChange, change_kind, entry_kind};
use crate::store::error::Error;
use crate::store::guard::{Caller, Quota, Wish};
use crate::store::open::Compat;
use crate::store::pending::pending;

/// What the member says of itself; field for field etcd's StatusResponse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Version of etcd that it is.
    pub version: String,
    /// Bytes of the database up to its high-water mark.
    pub db_size_bytes: u64,
    /// The same without free pages.
    pub db_size_in_use_bytes: u64,
    /// Limit of the first; 0 for none.
    pub db_size_quota_bytes: u64,
    /// The leader: this member.
    pub leader: MemberId,
    /// Index of the last entry that is synced.
    pub raft_index: u64,
    /// Index of the last entry that is applied.
    pub raft_applied_index: u64,
    /// Term.
    pub raft_term: u64,
    /// Whether it has no vote; it has.
    pub is_learner: bool,
    /// Storage version of the database; empty where it has none.
    pub storage_version: String,
    /// State of an online downgrade.
    pub downgrade: Downgrade,
    /// Alarms that stand, as etcd prints them.
    pub errors: Vec<String>,
    /// Current revision.
    pub revision: i64,
}

impl Compat {
    /// Returns the version that a store of this kind says that it is.
    #[must_use]
    pub fn version(self) -> &'static str {
        match self {
            Self::V3_6 => "3.6.16",
            Self::V3_7 => "3.7.3",
        }
    }

    /// Returns the version of the storage and of the cluster.
    #[must_use]
    pub fn storage_version(self) -> Version {
        let minor = match self {
            Self::V3_6 => 6,
            Self::V3_7 => 7,
        };
        Version { major: 3, minor, patch: 0 }
    }
}

impl Store {
    /// What the store says that it is.
    #[must_use]
    pub fn compat(&self) -> Compat {
        self.shared().compat
    }

    /// The cluster's version, where it is decided.
    #[must_use]
    pub fn cluster_version(&self) -> Option<Version> {
        self.shared().cluster_version()
    }

    /// Tells how the member is.
    ///
    /// # Errors
    /// No user where one is needed, or the store is closed.
    pub fn status(&self, caller: &Caller) -> Result<Status, Error> {
        let shared = self.shared();
        shared.check(caller, Wish::AnyUser)?;
        let Sizes { size_bytes, in_use_bytes } = shared.backend.sizes()?;
        let quota = match shared.backend.quota() {
            Quota::Off => 0,
            Quota::Bytes(bytes) => bytes,
        };
        let alarms = shared.alarms()?.into_iter();
        let errors = alarms.map(|(member, kind)| alarm_text(shared.compat, member, kind));
        Ok(Status {
            version: shared.compat.version().into(),
            db_size_bytes: size_bytes,
            db_size_in_use_bytes: in_use_bytes,
            db_size_quota_bytes: quota,
            leader: shared.member,
            raft_index: shared.committed.load(Ordering::Acquire),
            raft_applied_index: shared.core.applied.load(Ordering::Acquire),
            raft_term: shared.term,
            is_learner: false,
            storage_version: shared.storage_version(),
            downgrade: shared.downgrade(),
            errors: errors.collect(),
            revision: self.revision(),
        })
    }

    /// Lists the members: this one.
    ///
    /// # Errors
    /// No user where one is needed, or the store is closed.
    pub fn members(&self, caller: &Caller) -> Result<Vec<Member>, Error> {
        self.shared().check(caller, Wish::AnyUser)?;
        self.shared().members()
    }

    /// Changes the peer URLs of a member: this one.
    ///
    /// # Errors
    /// Another member, URLs that are none, no permission, or the disk.
    pub fn member_update(
        &self,
        caller: &Caller,
        id: MemberId,
        peer_urls: &[String],
    ) -> Result<Vec<Member>, Error> {
        let shared = self.shared();
        shared.check_writable()?;
        shared.check(caller, Wish::Admin)?;
        if !shared.members()?.iter().any(|member| member.id == id) {
            return Err(Error::Refused(Refusal::MemberNotFound));
        }
        // etcd takes addresses that are none, too.
        let peer_urls = parse_urls(peer_urls)?;
        let member = Member { id, peer_urls, ..Member::default() };
        let context = member.encode();
        let change = ConfChange {
            id: shared.new_id(),
            kind: change_kind::UPDATE_NODE,
            node_id: id.0,
            context: &context,
            unknown_field: None,
        };
        let data = change.encode();
        if data.len() > shared.options.request_bytes_max {
            return Err(Error::TooLarge);
        }
        let (promise, pending) = pending();
        shared.propose(Proposal {
            kind: entry_kind::CONF_CHANGE,
            ..Proposal::normal(data, Reply::Caller(promise))
        })?;
        self.wait(pending)?;
        shared.members()
    }

    /// Refuses a new member: this store has one, and one that waited for a second would stand
    /// still.
    ///
    /// # Errors
    /// Always.
    pub fn member_add(&self, caller: &Caller, peer_urls: &[String]) -> Result<(), Error> {
        let shared = self.shared();
        shared.check_writable()?;
        let urls = parse_urls(peer_urls)?;
        shared.check(caller, Wish::Admin)?;
        let has = |member: &Member| member.peer_urls.iter().any(|url| urls.contains(url));
        if shared.members()?.iter().any(has) {
            return Err(Error::Refused(Refusal::PeerUrlExists));
        }
        Err(Error::UnhealthyCluster)
    }

    /// Refuses to remove a member: the only one stays.
    ///
    /// # Errors
    /// Always.
    pub fn member_remove(&self, caller: &Caller, id: MemberId) -> Result<(), Error> {
        self.shared().check_writable()?;
        self.shared().check(caller, Wish::Admin)?;
        if self.shared().members()?.iter().any(|member| member.id == id) {
            return Err(Error::LastMember);
        }
        Err(Error::Refused(Refusal::MemberNotFound))
    }

    /// Refuses to promote a member: the only one votes already.
    ///
    /// # Errors
    /// Always.
    pub fn member_promote(&self, caller: &Caller, id: MemberId) -> Result<(), Error> {
        self.shared().check_writable()?;
        self.shared().check(caller, Wish::Admin)?;
        let is_known = self.shared().members()?.iter().any(|member| member.id == id);
        let refusal = if is_known { Refusal::MemberNotLearner } else { Refusal::MemberNotFound };
        Err(Error::Refused(refusal))
    }

    /// Tells whether the cluster could go down to a version; answers the version it has.
    ///
    /// # Errors
    /// No version, not the one before, a downgrade on its way, or no permission.
    pub fn downgrade_validate(&self, caller: &Caller, target: &str) -> Result<Version, Error> {
        let shared = self.shared();
        shared.check(caller, Wish::Admin)?;
        let target = Version::parse(target.as_bytes())
            .or_else(|| Version::parse(format!("{target}.0").as_bytes()))
            .ok_or(Error::DowngradeFormat)?;
        let version = shared.cluster_version().ok_or(Error::ClusterVersionUnknown)?;
        let is_one_less = target.major == version.major
            && target.minor.checked_add(1).is_some_and(|minor| minor == version.minor);
        if !is_one_less {
            return Err(Error::DowngradeTarget);
        }
        if shared.downgrade().enabled {
            return Err(Error::DowngradeInProcess);
        }
        Ok(version)
    }

    /// Refuses to bring the cluster down to a version: a directory is brought down offline.
    ///
    /// # Errors
    /// Always.
    pub fn downgrade_enable(&self, caller: &Caller, target: &str) -> Result<Version, Error> {
        self.downgrade_validate(caller, target)?;
        Err(Error::NoDowngrade)
    }

    /// Ends no downgrade, as none is begun here; answers the version that the cluster has, as etcd
    /// does where there is none to end.
    ///
    /// # Errors
    /// No permission, or no version.
    pub fn downgrade_cancel(&self, caller: &Caller) -> Result<Version, Error> {
        self.shared().check(caller, Wish::Admin)?;
        self.shared().cluster_version().ok_or(Error::ClusterVersionUnknown)
    }

    /// Refuses what is neither of these.
    #[cfg(feature = "serve")]
    pub(in crate::store) fn downgrade_unknown(&self, caller: &Caller) -> Result<Version, Error> {
        self.shared().check(caller, Wish::Admin)?;
        Err(Error::UnknownMethod)
    }

    /// Makes a member the leader: this one is it already.
    ///
    /// # Errors
    /// Any other member, or no permission.
    pub fn move_leader(&self, caller: &Caller, target: MemberId) -> Result<(), Error> {
        self.shared().check_writable()?;
        self.shared().check(caller, Wish::Admin)?;
        if target == self.member_id() { Ok(()) } else { Err(Error::BadTransferee) }
    }
}

fn parse_urls(urls: &[String]) -> Result<Vec<String>, Error> {
    peer_urls::parse_urls(urls).map_err(|_| Error::InvalidUrls)
}

/// Prints an alarm as etcd does: 3.6 ends each field with a space; 3.7 puts one or two spaces
/// between them, which of both depends on the build.
fn alarm_text(compat: Compat, member: u64, kind: u64) -> String {
    let kind = match kind {
        1 => "NOSPACE".to_owned(),
        2 => "CORRUPT".to_owned(),
        other => other.to_string(),
    };
    let end = if compat == Compat::V3_6 { " " } else { "" };
    match member {
        0 => format!("alarm:{kind}{end}"),
        member => format!("memberID:{member} alarm:{kind}{end}"),
    }
}

impl Shared {
    pub(super) fn members(&self) -> Result<Vec<Member>, Error> {
        let mut members = Vec::new();
        self.core
            .read(|mvcc| {
                mvcc.each_row(schema::MEMBERS, &mut |_, value| {
                    members.extend(Member::decode(value).ok().map(|row| row.member));
                })
            })?
            .map_err(|error| Error::Storage(error.to_string()))?;
        if let Some(urls) = self.options.shown_at.as_ref().filter(|_| self.is_read_only) {
            for member in &mut members {
                let is_this = member.id == self.member;
                member.client_urls = if is_this { urls.clone() } else { Vec::new() };
            }
        }
        Ok(members)
    }

    /// Reads a row that is not about keys; one that cannot be read is none.
    pub(super) fn row(&self, bucket: &[u8], key: &[u8]) -> Option<Vec<u8>> {
        let row = self
            .core
            .read(|mvcc| mvcc.row(bucket, key).ok().flatten().map(std::borrow::Cow::into_owned));
        row.ok().flatten()
    }

    pub(super) fn cluster_version(&self) -> Option<Version> {
        Version::parse(&self.row(schema::CLUSTER, schema::CLUSTER_VERSION)?)
    }

    fn downgrade(&self) -> Downgrade {
        let row = self.row(schema::CLUSTER, schema::CLUSTER_DOWNGRADE);
        row.and_then(|row| Downgrade::decode(&row).ok()).unwrap_or_default()
    }

    /// The storage version in the file; it is written by the store itself, not by an entry.
    fn storage_version(&self) -> String {
        let Ok(db) = self.backend.db() else { return String::new() };
        let row = db.view().get(schema::META, schema::META_STORAGE_VERSION);
        let row = row.ok().flatten().unwrap_or_default();
        String::from_utf8_lossy(&row).into_owned()
    }
}
