//! What a request answers; field for field what etcd's messages hold.

use super::kv::Kv;

/// The answer of a put.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Put {
    /// The record before, when it was asked for and was there.
    pub prev_kv: Option<Kv>,
}

/// The answer of a read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// Records, in the order asked for.
    pub kvs: Vec<Kv>,
    /// Whether there are more than the limit.
    pub more: bool,
    /// Number of keys in the range at that revision.
    pub count: i64,
}

/// The answer of a delete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteRange {
    /// Number of keys that were deleted.
    pub deleted: i64,
    /// The records before, in key order, when they were asked for.
    pub prev_kvs: Vec<Kv>,
}

/// The answer of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Txn {
    /// Whether all conditions held.
    pub succeeded: bool,
    /// One for each operation of the list that was chosen.
    pub responses: Vec<Response>,
}

/// The answer of one operation of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// All that its header on the wire has: the revision up to which changes were made when it was
    /// its turn. 0 where the wire shows an empty header, or none.
    pub revision: i64,
    /// The rest.
    pub op: Op,
}

/// What came of one operation of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Op {
    /// An operation of no kind.
    #[default]
    Nothing,
    /// Of a read.
    Range(Range),
    /// Of a put.
    Put(Put),
    /// Of a delete.
    DeleteRange(DeleteRange),
    /// Of a transaction in the transaction.
    Txn(Txn),
}

/// What came of a request that was logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// Nothing more to say: a compaction, a lease ended, a change of auth.
    Done,
    /// Of a put.
    Put(Put),
    /// Of a delete.
    DeleteRange(DeleteRange),
    /// Of a transaction.
    Txn(Txn),
    /// Of a granted lease: its id and time to live in seconds.
    LeaseGrant {
        /// The lease.
        id: i64,
        /// Seconds.
        ttl_s: i64,
    },
    /// Alarms: those raised, cleared or asked for, as (member, kind).
    Alarms(Vec<(u64, u64)>),
}

/// An answer with the store's revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer<T = Body> {
    /// Revision of the request's changes, else the current one.
    pub revision: i64,
    /// The rest.
    pub body: T,
}
