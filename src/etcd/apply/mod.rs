//! What one entry of the raft log does to the database: a pure function of the state before it.
//!
//! [`apply`] takes a [`State`] and an entry and returns an [`Effect`]: the rows that change, as the
//! bytes that etcd writes, the new revision, and what the client is told. It writes nothing, reads
//! no clock, and two members that apply the same log get the same rows.
//!
//! 1. An entry that etcd refuses has no effect, and the reason is etcd's own; the consistent index
//!    goes forward all the same.
//! 2. What is not understood is an [`Error`] that names it, never skipped. So is an entry on which
//!    etcd itself would stop.
//! 3. Leases never expire here: an expired one ends by the entry that its leader logged.
//!
//! Where etcd's versions differ, or a flag of the server decides, see [`Rules`]. Known differences:
//!
//! - A transaction that reads at a revision that is compacted or not there yet is refused with all
//!   its writes, as the client was told. Up to 3.6, a member that does not answer the client itself
//!   leaves the reads out and does the writes; 3.7 refuses everywhere.
//! - While an alarm stands that was raised since the member started, 3.4 and 3.5 check no
//!   permissions; they are checked here, as 3.6 does.
//! - A role of more than 12 permissions of which several have the same key: etcd's order of those
//!   depends on the version of Go that built it. Here the older one comes first.
//! - A password in the clear, which only 3.4 logs, is hashed by each member with a salt of its own.
//!   Here the salt is made from the entry, and the effect says so: [`Warning::PasswordHashed`].
//!
//! Source: etcd `etcdserver/apply`, `etcdserver/txn`, `storage/mvcc`, `lease`, `auth` and
//! `etcdserver/api/membership`; 3.5.35, 3.6.16 and 3.7.3.

mod alarm;
mod auth;
mod auth_row;
mod keys;
mod lease;
mod membership;
mod permission;
mod txn;

use std::borrow::Cow;
use std::ops::{ControlFlow, Range};

pub use auth::DEFAULT_BCRYPT_COST;
pub use auth_row::{StoredRole, StoredUser};
pub use lease::TTL_MAX_S;
pub use permission::{Access, ROOT, Rights};

use super::record::KeyValue;
use super::request::{self, Body, Content, Fault, Header, Request, Span};
use super::revision::Revision;
use super::{rows, schema};
use crate::format::wal::{Entry, entry_kind};

/// The newest record of a live key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latest {
    /// Main revision of the put that created the key.
    pub create_revision: i64,
    /// Revision of this put, under which its row stands.
    pub modified: Revision,
    /// Number of puts since the creation, from 1.
    pub version: i64,
    /// Lease that the key is attached to; 0 for none.
    pub lease: i64,
}

/// A state that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Unreadable(pub String);

/// The state before an entry.
pub trait State {
    /// Returns the current revision; 1 for a store in which nothing was ever written.
    fn current_revision(&self) -> i64;

    /// Returns the revision of the last compaction that was accepted; -1 for none.
    fn compact_revision(&self) -> i64;

    /// Finds the newest record of a key that is live.
    ///
    /// # Errors
    /// The state cannot be read.
    fn latest(&self, key: &[u8]) -> Result<Option<Latest>, Unreadable>;

    /// Shows live keys in key order until `visit` breaks off.
    ///
    /// # Errors
    /// The state cannot be read.
    fn each_live(
        &self,
        span: Span<'_>,
        visit: &mut dyn FnMut(&[u8], &Latest) -> ControlFlow<()>,
    ) -> Result<(), Unreadable>;

    /// Reads the value of the record that stands under a revision.
    ///
    /// # Errors
    /// The state cannot be read, or there is no such record.
    fn value(&self, revision: Revision) -> Result<Vec<u8>, Unreadable>;

    /// Lists the keys that are attached to a lease, in any order.
    ///
    /// # Errors
    /// The state cannot be read.
    fn lease_keys(&self, id: i64) -> Result<Vec<Vec<u8>>, Unreadable>;

    /// Finds a row of a bucket other than `key`.
    ///
    /// # Errors
    /// The state cannot be read.
    fn row(&self, bucket: &[u8], key: &[u8]) -> Result<Option<Cow<'_, [u8]>>, Unreadable>;

    /// Shows the rows of a bucket other than `key`, in key order.
    ///
    /// # Errors
    /// The state cannot be read.
    fn each_row(
        &self,
        bucket: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), Unreadable>;

    /// Tells whether any alarm stands; asked for with nearly every entry.
    ///
    /// # Errors
    /// The state cannot be read.
    fn has_alarms(&self) -> Result<bool, Unreadable> {
        let mut any = false;
        self.each_row(schema::ALARM, &mut |_, _| any = true)?;
        Ok(any)
    }

    /// Tells whether auth is on; asked for with nearly every entry.
    ///
    /// # Errors
    /// The state cannot be read.
    fn is_auth_enabled(&self) -> Result<bool, Unreadable> {
        let row = self.row(schema::AUTH, schema::AUTH_ENABLED)?;
        Ok(row.is_some_and(|row| rows::decode_auth_enabled(&row) == Ok(true)))
    }
}

/// What differs with the etcd that wrote the log, or with its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Whether a change of members writes `meta/confState`: 3.5 and newer.
    pub writes_conf_state: bool,
    /// Learners that a cluster may have: `--max-learners`; 3.4 has no such flag.
    pub learners_max: usize,
    /// Shortest time to live of a lease, in seconds: shorter ones are raised to it. It is one and a
    /// half election timeouts.
    pub lease_ttl_min_s: i64,
    /// Whether checkpoints of leases are stored while the cluster's version is below 3.6.
    pub persists_checkpoints: bool,
    /// Cost of hashing a password that stands in the log in the clear.
    pub bcrypt_cost: u32,
}

impl Default for Rules {
    /// Returns what etcd does without flags.
    fn default() -> Self {
        Self {
            writes_conf_state: true,
            learners_max: 1,
            lease_ttl_min_s: 2,
            persists_checkpoints: false,
            bcrypt_cost: DEFAULT_BCRYPT_COST,
        }
    }
}

/// A change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change<'a> {
    /// The key.
    pub key: Cow<'a, [u8]>,
    /// The record that is replaced, also one of the same entry; `None` where the key was not live.
    pub before: Option<Latest>,
    /// What was put; `None` where the key was deleted.
    pub put: Option<Written<'a>>,
}

/// What a put wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written<'a> {
    /// Main revision of the put that created the key.
    pub create_revision: i64,
    /// Number of puts since the creation, from 1.
    pub version: i64,
    /// Lease that the key is attached to from now on; 0 for none.
    pub lease: i64,
    /// The value.
    pub value: Cow<'a, [u8]>,
}

/// A change of one row of a bucket other than `key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The bucket.
    pub bucket: &'static [u8],
    /// The row's key.
    pub key: Vec<u8>,
    /// The row's value; `None` where it is deleted.
    pub value: Option<Vec<u8>>,
}

/// What a request did in turn, so that its answer can be made without doing it again.
///
/// A read, or the record that a write replaced, is answered from the state before the entry with
/// the first `start` of [`Effect::changes`] on top of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A read after this many changes.
    Range(usize),
    /// A put: which change.
    Put(usize),
    /// A delete: which changes; as many as keys were deleted.
    Delete(Range<usize>),
    /// A transaction begins; its steps follow, and those of transactions inside it.
    Txn {
        /// Whether all its conditions hold.
        succeeded: bool,
        /// How many of them were looked at: the first that does not hold is the last one.
        compared: usize,
        /// How many operations its list has.
        ops: usize,
    },
    /// An operation of no kind.
    Nothing,
}

/// Why etcd refuses an entry, by its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A NOSPACE alarm stands.
    #[error("etcdserver: mvcc: database space exceeded")]
    NoSpace,
    /// A CORRUPT alarm stands.
    #[error("etcdserver: corrupt cluster")]
    Corrupt,
    /// A read at a revision that is compacted, or a compaction there.
    #[error("etcdserver: mvcc: required revision has been compacted")]
    Compacted,
    /// A read or a compaction at a revision that is not there yet.
    #[error("etcdserver: mvcc: required revision is a future revision")]
    FutureRevision,
    /// A put that keeps the value or lease of a key that does not exist.
    #[error("etcdserver: key not found")]
    KeyNotFound,
    /// A lease that does not exist.
    #[error("etcdserver: requested lease not found")]
    LeaseNotFound,
    /// A lease that exists already.
    #[error("etcdserver: lease already exists")]
    LeaseExists,
    /// A lease that would live too long.
    #[error("etcdserver: too large lease TTL")]
    LeaseTtlTooLarge,
    /// Auth rules that changed since the user was let in.
    #[error("etcdserver: revision of auth store is old")]
    AuthOldRevision,
    /// A user who may not do this.
    #[error("etcdserver: permission denied")]
    PermissionDenied,
    /// No user, where one is needed.
    #[error("etcdserver: user name is empty")]
    UserEmpty,
    /// A user who does not exist.
    #[error("etcdserver: user name not found")]
    UserNotFound,
    /// A user who exists already.
    #[error("etcdserver: user name already exists")]
    UserExists,
    /// A password that is no base64.
    #[error("etcdserver: invalid password hash")]
    PasswordInvalid,
    /// No name of a role.
    #[error("etcdserver: role name is empty")]
    RoleEmpty,
    /// A role that does not exist.
    #[error("etcdserver: role name not found")]
    RoleNotFound,
    /// A role that exists already.
    #[error("etcdserver: role name already exists")]
    RoleExists,
    /// A role that the user does not have.
    #[error("etcdserver: role is not granted to the user")]
    RoleNotGranted,
    /// A permission that the role does not have.
    #[error("etcdserver: permission is not granted to the role")]
    PermissionNotGranted,
    /// No permission, where one is needed.
    #[error("etcdserver: permission not given")]
    PermissionNotGiven,
    /// A change that would lock root out, or a range that is none.
    #[error("etcdserver: invalid auth management")]
    InvalidAuthManagement,
    /// Auth without a user root.
    #[error("etcdserver: root user does not exist")]
    RootUserMissing,
    /// Auth with a user root who lacks the role root.
    #[error("etcdserver: root user does not have root role")]
    RootRoleMissing,
    /// A login while auth is off.
    #[error("etcdserver: authentication is not enabled")]
    AuthNotEnabled,
    /// A login by password of a user who has none, or is none.
    #[error("etcdserver: authentication failed, invalid user ID or password")]
    AuthFailed,
    /// A member that was removed.
    #[error("membership: ID removed")]
    MemberRemoved,
    /// A member that exists already.
    #[error("membership: ID exists")]
    MemberExists,
    /// A member that does not exist.
    #[error("membership: ID not found")]
    MemberNotFound,
    /// A promotion of a member that is no learner.
    #[error("membership: can only promote a learner member")]
    MemberNotLearner,
    /// A peer URL that another member has.
    #[error("membership: peerURL exists")]
    PeerUrlExists,
    /// More learners than allowed.
    #[error("membership: too many learner members in cluster")]
    TooManyLearners,
}

/// What came of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done; a request that found nothing to do too.
    Done,
    /// It was refused and has no effect.
    Refused(Refusal),
}

/// What a person should know although the entry was done.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// A password stood in the log in the clear and was hashed with a salt made from the entry:
    /// the row differs from every member's own, the password is the same.
    PasswordHashed,
    /// A write to the v2 store, which no database holds.
    V2Store,
    /// Attributes of a member that the database does not have; 3.4 and 3.5 keep it in `.snap`.
    MemberUnknown(u64),
}

/// What an entry does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect<'a> {
    /// Index of the entry: the consistent index from now on, see [`applied_rows`].
    pub index: u64,
    /// Term of the entry.
    pub term: u64,
    /// etcd's name of what was asked; `noop` and `v2` besides those of [`Body::name`], and
    /// `conf_change`.
    pub kind: &'static str,
    /// What came of it.
    pub outcome: Outcome,
    /// Current revision afterwards.
    pub revision: i64,
    /// Changes of keys, in order: change `n` has the revision (`revision`, `n`).
    pub changes: Vec<Change<'a>>,
    /// Changes of rows of other buckets, in order.
    pub rows: Vec<Row>,
    /// What a put, delete or transaction did in turn.
    pub steps: Vec<Step>,
    /// A compaction was accepted at this revision. Its rows go later, by a job; until that is done
    /// `meta/finishedCompactRev` stays behind.
    pub compaction: Option<i64>,
    /// What a person should know.
    pub warnings: Vec<Warning>,
}

impl<'a> Effect<'a> {
    /// Returns the rows of bucket `key` that the changes make, in key order.
    pub fn key_rows(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> + '_ {
        (0_i64..).zip(&self.changes).map(|(sub, change)| {
            let revision = Revision::new(self.revision, sub);
            let mut value = Vec::new();
            match &change.put {
                Some(put) => {
                    let record = KeyValue {
                        key: &change.key,
                        create_revision: put.create_revision,
                        mod_revision: self.revision,
                        version: put.version,
                        value: &put.value,
                        lease: put.lease,
                        unknown_field: None,
                    };
                    record.encode(&mut value);
                    (revision.encode().to_vec(), value)
                }
                None => {
                    KeyValue::tombstone(&change.key).encode(&mut value);
                    (revision.encode_tombstone().to_vec(), value)
                }
            }
        })
    }

    /// Returns the newest record that a change left, had it been the last one.
    #[must_use]
    pub fn latest(&self, change: usize) -> Option<Latest> {
        let put = self.changes.get(change)?.put.as_ref()?;
        Some(put.latest(Revision::new(self.revision, i64::try_from(change).unwrap_or(i64::MAX))))
    }

    fn nothing(entry: &Entry<'a>, state: &dyn State) -> Self {
        Self {
            index: entry.index,
            term: entry.term,
            kind: "noop",
            outcome: Outcome::Done,
            revision: state.current_revision(),
            changes: Vec::new(),
            rows: Vec::new(),
            steps: Vec::new(),
            compaction: None,
            warnings: Vec::new(),
        }
    }

    fn put_row(&mut self, bucket: &'static [u8], key: &[u8], value: Vec<u8>) {
        self.rows.push(Row { bucket, key: key.to_vec(), value: Some(value) });
    }

    fn drop_row(&mut self, bucket: &'static [u8], key: &[u8]) {
        self.rows.push(Row { bucket, key: key.to_vec(), value: None });
    }
}

impl Written<'_> {
    /// Returns the record as it is found from now on.
    #[must_use]
    pub fn latest(&self, modified: Revision) -> Latest {
        Latest {
            create_revision: self.create_revision,
            modified,
            version: self.version,
            lease: self.lease,
        }
    }
}

/// Why an entry could not be applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A request that is not understood.
    #[error("entry {index} of the log: {fault}")]
    Request {
        /// The entry's index.
        index: u64,
        /// What is wrong with it.
        fault: Fault,
    },
    /// An entry, or a row that it needs, that is not understood or that would stop etcd.
    #[error("entry {index} of the log: {what}")]
    Entry {
        /// The entry's index.
        index: u64,
        /// What is wrong with it.
        what: String,
    },
    /// The state could not be read.
    #[error("{0}")]
    State(#[from] Unreadable),
}

/// What stops a request half way, before any effect.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// It is refused.
    #[error(transparent)]
    Refused(Refusal),
    /// A row is not understood, or etcd would stop here.
    #[error("{0}")]
    Impossible(String),
    /// The state could not be read.
    #[error(transparent)]
    State(Unreadable),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<Unreadable> for Stop {
    fn from(unreadable: Unreadable) -> Self {
        Self::State(unreadable)
    }
}

/// Says what an entry does.
///
/// # Errors
/// See [`Error`].
pub fn apply<'a>(state: &dyn State, rules: &Rules, entry: &Entry<'a>) -> Result<Effect<'a>, Error> {
    apply_content(state, rules, entry, content(entry)?.as_ref())
}

/// Reads what an entry asks for; `None` for a change of members.
///
/// # Errors
/// It is not understood.
pub fn content<'a>(entry: &Entry<'a>) -> Result<Option<Content<'a>>, Error> {
    let impossible = |what| Error::Entry { index: entry.index, what };
    if let Some(field) = entry.unknown_field {
        return Err(impossible(format!("field {field}, which no known etcd writes")));
    }
    match entry.kind {
        entry_kind::NORMAL => Content::decode(entry.data)
            .map(Some)
            .map_err(|fault| Error::Request { index: entry.index, fault }),
        entry_kind::CONF_CHANGE => Ok(None),
        kind => Err(impossible(format!("its kind is {kind}, which no etcd writes"))),
    }
}

/// Says what an entry does whose [`content`] was read.
///
/// # Errors
/// See [`Error`].
pub fn apply_content<'a>(
    state: &dyn State,
    rules: &Rules,
    entry: &Entry<'a>,
    content: Option<&Content<'a>>,
) -> Result<Effect<'a>, Error> {
    let mut effect = Effect::nothing(entry, state);
    let done = match content {
        Some(Content::Nothing) => Ok(()),
        Some(Content::V2(request)) => {
            effect.kind = "v2";
            membership::apply_v2(state, request, &mut effect)
        }
        Some(Content::Request(request)) => {
            effect.kind = request.body.name();
            apply_request(state, rules, request, &mut effect)
        }
        None => {
            effect.kind = "conf_change";
            membership::apply_change(state, rules, entry.data, &mut effect)
        }
    };
    match done {
        Ok(()) => Ok(effect),
        Err(Stop::Refused(refusal)) => Ok(Effect {
            kind: effect.kind,
            outcome: Outcome::Refused(refusal),
            ..Effect::nothing(entry, state)
        }),
        Err(Stop::Impossible(what)) => Err(Error::Entry { index: entry.index, what }),
        Err(Stop::State(unreadable)) => Err(Error::State(unreadable)),
    }
}

/// Why a read cannot be answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// etcd refuses it.
    #[error(transparent)]
    Refused(Refusal),
    /// It writes, or the state is not understood.
    #[error("{0}")]
    Impossible(String),
    /// The state could not be read.
    #[error(transparent)]
    State(#[from] Unreadable),
}

/// Says what a transaction that only reads does in turn; rules of auth and alarms are not asked.
///
/// # Errors
/// See [`ReadError`].
pub fn read_txn(state: &dyn State, request: &request::Txn<'_>) -> Result<Vec<Step>, ReadError> {
    txn::read(state, request).map_err(|stop| match stop {
        Stop::Refused(refusal) => ReadError::Refused(refusal),
        Stop::Impossible(what) => ReadError::Impossible(what),
        Stop::State(unreadable) => ReadError::State(unreadable),
    })
}

/// A request on its way: what it may see, and what comes of it.
struct Context<'s, 'r> {
    state: &'s dyn State,
    rules: &'r Rules,
    header: Option<&'r Header<'r>>,
    /// Id of the request.
    id: u64,
}

fn apply_request<'a>(
    state: &dyn State,
    rules: &Rules,
    request: &Request<'a>,
    effect: &mut Effect<'a>,
) -> Result<(), Stop> {
    let header = request.header.as_ref();
    let id = if request.id == 0 { header.map_or(0, |header| header.id) } else { request.id };
    let context = Context { state, rules, header, id };
    alarm::check(state, &request.body)?;
    match &request.body {
        Body::Range(_)
        | Body::AuthStatus(_)
        | Body::UserGet(_)
        | Body::UserList(_)
        | Body::RoleGet(_)
        | Body::RoleList(_)
        | Body::DowngradeVersionTest(_) => Ok(()),
        Body::Put(request) => keys::put(&context, request, effect),
        Body::DeleteRange(request) => keys::delete(&context, request, effect),
        Body::Txn(request) => txn::apply(&context, request, effect),
        Body::Compaction(request) => keys::compact(&context, request, effect),
        Body::LeaseGrant(request) => lease::grant(&context, request, effect),
        Body::LeaseRevoke(request) => lease::revoke(&context, request.id, effect),
        Body::LeaseCheckpoint(request) => lease::checkpoint(&context, request, effect),
        Body::Alarm(request) => alarm::apply(state, request, effect),
        Body::ClusterVersionSet(request) => membership::set_version(request.version, effect),
        Body::MemberAttributes(request) => {
            let attributes = request.attributes.clone().unwrap_or_default();
            let urls = attributes.client_urls.iter().map(|url| membership::text(url)).collect();
            let name = membership::text(attributes.name);
            membership::set_attributes(state, request.member_id, name, urls, effect)
        }
        Body::DowngradeInfo(request) => membership::set_downgrade(request, effect),
        Body::Authenticate(_)
        | Body::AuthEnable(_)
        | Body::AuthDisable(_)
        | Body::UserAdd(_)
        | Body::UserDelete(_)
        | Body::UserChangePassword(_)
        | Body::UserGrantRole(_)
        | Body::UserRevokeRole(_)
        | Body::RoleAdd(_)
        | Body::RoleDelete(_)
        | Body::RoleGrantPermission(_)
        | Body::RoleRevokePermission(_) => auth::apply(&context, &request.body, effect),
    }
}

/// Returns the rows that say how far a database has applied the log; both change with every entry.
///
/// 3.4 has no row `term`, and it sets the index only with entries that change keys; every entry
/// may set it there too, since nothing is done twice then.
#[must_use]
pub fn applied_rows(index: u64, term: Option<u64>) -> Vec<Row> {
    let row = |key: &[u8], number: u64| Row {
        bucket: schema::META,
        key: key.to_vec(),
        value: Some(number.to_be_bytes().to_vec()),
    };
    let mut rows = vec![row(schema::META_CONSISTENT_INDEX, index)];
    rows.extend(term.map(|term| row(schema::META_TERM, term)));
    rows
}

#[cfg(test)]
pub(crate) mod model;
#[cfg(test)]
mod tests;
