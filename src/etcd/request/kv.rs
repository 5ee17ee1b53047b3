//! Requests on keys: put, range, delete, transaction, compaction.
//!
//! Source: etcd `etcdserverpb` (`rpc.proto`), 3.4.45 to 3.7.3.

use super::wire::{Budget, Fault, Message, Wire, malformed, messages, put_message};
use crate::format::pb;

messages! {
    /// Reads keys; in a log only inside transactions.
    Range<'a> = "RangeRequest" {
        /// First key.
        1 key: &'a [u8],
        /// End of the range; see [`super::span`].
        2 range_end: &'a [u8],
        /// Most keys to return; 0 for all.
        3 limit: i64,
        /// Revision to read at; 0 for the current one.
        4 revision: i64,
        /// Order of the keys: 0 as they come, 1 ascending, 2 descending.
        5 sort_order: u64,
        /// What to sort by: 0 key, 1 version, 2 creation, 3 modification, 4 value.
        6 sort_target: u64,
        /// Whether any member may answer from what it has.
        7 serializable: bool,
        /// Whether values are left out of the answer.
        8 keys_only: bool,
        /// Whether only the number of keys is wanted.
        9 count_only: bool,
        /// Least revision of the last change; 0 for any.
        10 min_mod_revision: i64,
        /// Greatest revision of the last change; 0 for any.
        11 max_mod_revision: i64,
        /// Least revision of the creation; 0 for any.
        12 min_create_revision: i64,
        /// Greatest revision of the creation; 0 for any.
        13 max_create_revision: i64,
    }

    /// Writes a key.
    Put<'a> = "PutRequest" {
        /// The key.
        1 key: &'a [u8],
        /// Its value.
        2 value: &'a [u8],
        /// Lease to attach it to; 0 for none.
        3 lease: i64,
        /// Whether the answer has the record that is replaced.
        4 prev_kv: bool,
        /// Whether the key keeps its value.
        5 ignore_value: bool,
        /// Whether the key keeps its lease.
        6 ignore_lease: bool,
    }

    /// Deletes keys.
    DeleteRange<'a> = "DeleteRangeRequest" {
        /// First key.
        1 key: &'a [u8],
        /// End of the range; see [`super::span`].
        2 range_end: &'a [u8],
        /// Whether the answer has the records that are deleted.
        3 prev_kv: bool,
    }

    /// Does one of two lists of operations, all at one revision.
    Txn<'a> = "TxnRequest" {
        /// Conditions, all of which choose [`Txn::success`].
        1 compare: Vec<Compare<'a>>,
        /// Operations when they all hold.
        2 success: Vec<Op<'a>>,
        /// Operations when one does not.
        3 failure: Vec<Op<'a>>,
    }

    /// Forgets what is older than a revision.
    Compaction = "CompactionRequest" {
        /// First revision at which reads stay possible.
        1 revision: i64,
        /// Whether the answer waits until the rows are gone.
        2 physical: bool,
    }
}

/// An operation of a transaction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Op<'a> {
    /// None, which does nothing.
    #[default]
    Nothing,
    /// Reads.
    Range(Range<'a>),
    /// Writes.
    Put(Put<'a>),
    /// Deletes.
    DeleteRange(DeleteRange<'a>),
    /// A transaction inside the transaction.
    Txn(Txn<'a>),
}

impl<'a> Message<'a> for Op<'a> {
    const NAME: &'static str = "RequestOp";

    fn take(&mut self, field: &pb::Field<'a>, budget: &mut Budget) -> Result<(), Fault> {
        if *self != Self::Nothing {
            return Err(Fault::Twice { message: Self::NAME, field: field.number });
        }
        let bytes = field.bytes().map_err(malformed::<Self>)?;
        *self = match field.number {
            1 => Self::Range(Range::read(bytes, budget)?),
            2 => Self::Put(Put::read(bytes, budget)?),
            3 => Self::DeleteRange(DeleteRange::read(bytes, budget)?),
            4 => Self::Txn(Txn::read(bytes, budget)?),
            field => return Err(Fault::UnknownField { message: Self::NAME, field }),
        };
        Ok(())
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nothing => {}
            Self::Range(range) => put_message(range, 1, out),
            Self::Put(put) => put_message(put, 2, out),
            Self::DeleteRange(delete) => put_message(delete, 3, out),
            Self::Txn(txn) => put_message(txn, 4, out),
        }
    }
}

/// What a compare compares with, and thereby what of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand<'a> {
    /// Number of puts since the creation.
    Version(i64),
    /// Revision of the creation.
    CreateRevision(i64),
    /// Revision of the last change.
    ModRevision(i64),
    /// The value.
    Value(&'a [u8]),
    /// The lease.
    Lease(i64),
}

impl Operand<'_> {
    /// Returns the target that it is compared with, as [`Compare::target`] has it.
    #[must_use]
    pub fn target(&self) -> u64 {
        match self {
            Self::Version(_) => 0,
            Self::CreateRevision(_) => 1,
            Self::ModRevision(_) => 2,
            Self::Value(_) => 3,
            Self::Lease(_) => 4,
        }
    }
}

/// What a key must be, compared with an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// As much.
    Equal,
    /// More.
    Greater,
    /// Less.
    Less,
    /// Anything else.
    NotEqual,
}

impl Comparison {
    /// Returns the number that [`Compare::result`] has.
    #[must_use]
    pub fn result(self) -> u64 {
        match self {
            Self::Equal => 0,
            Self::Greater => 1,
            Self::Less => 2,
            Self::NotEqual => 3,
        }
    }
}

/// A condition of a transaction. Its makers give it the target of its operand; on the wire the two
/// may disagree, or the operand may be left out: etcd takes it for 0, or for no bytes, then.
///
/// ```
/// use etcdkit::etcd::request::{Compare, Comparison};
///
/// let is_new = Compare::version(b"key", Comparison::Equal, 0);
/// let all_old = Compare::mod_revision(b"a", Comparison::Less, 7).up_to(b"c");
/// assert_eq!((is_new.target, all_old.target, all_old.range_end), (0, 2, &b"c"[..]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Compare<'a> {
    /// 0 equal, 1 greater, 2 less, 3 not equal.
    pub result: u64,
    /// 0 version, 1 creation, 2 modification, 3 value, 4 lease.
    pub target: u64,
    /// First key.
    pub key: &'a [u8],
    /// What to compare with.
    pub operand: Option<Operand<'a>>,
    /// End of the range, every key of which must satisfy; see [`super::span`].
    pub range_end: &'a [u8],
}

impl<'a> Compare<'a> {
    /// Compares whatever the operand is of.
    #[must_use]
    pub fn of(key: &'a [u8], comparison: Comparison, operand: Operand<'a>) -> Self {
        let (result, target) = (comparison.result(), operand.target());
        Self { result, target, key, operand: Some(operand), range_end: &[] }
    }

    /// Compares the number of puts since the key's creation: 0 where there is no key.
    #[must_use]
    pub fn version(key: &'a [u8], comparison: Comparison, version: i64) -> Self {
        Self::of(key, comparison, Operand::Version(version))
    }

    /// Compares the revision of the key's creation: 0 where there is no key.
    #[must_use]
    pub fn create_revision(key: &'a [u8], comparison: Comparison, revision: i64) -> Self {
        Self::of(key, comparison, Operand::CreateRevision(revision))
    }

    /// Compares the revision of the key's last change: 0 where there is no key.
    #[must_use]
    pub fn mod_revision(key: &'a [u8], comparison: Comparison, revision: i64) -> Self {
        Self::of(key, comparison, Operand::ModRevision(revision))
    }

    /// Compares the value; never holds where there is no key.
    #[must_use]
    pub fn value(key: &'a [u8], comparison: Comparison, value: &'a [u8]) -> Self {
        Self::of(key, comparison, Operand::Value(value))
    }

    /// Compares the lease: 0 where there is none, or no key.
    #[must_use]
    pub fn lease(key: &'a [u8], comparison: Comparison, lease: i64) -> Self {
        Self::of(key, comparison, Operand::Lease(lease))
    }

    /// Makes it a condition of every key from this one up to, not including, an end; see
    /// [`super::span`].
    #[must_use]
    pub fn up_to(self, range_end: &'a [u8]) -> Self {
        Self { range_end, ..self }
    }
}

impl<'a> Message<'a> for Compare<'a> {
    const NAME: &'static str = "Compare";

    fn take(&mut self, field: &pb::Field<'a>, budget: &mut Budget) -> Result<(), Fault> {
        let int64 = || field.int64().map_err(malformed::<Self>);
        match field.number {
            1 => Wire::take::<Self>(&mut self.result, field, budget)?,
            2 => Wire::take::<Self>(&mut self.target, field, budget)?,
            3 => Wire::take::<Self>(&mut self.key, field, budget)?,
            4 => self.operand = Some(Operand::Version(int64()?)),
            5 => self.operand = Some(Operand::CreateRevision(int64()?)),
            6 => self.operand = Some(Operand::ModRevision(int64()?)),
            7 => self.operand = Some(Operand::Value(field.bytes().map_err(malformed::<Self>)?)),
            8 => self.operand = Some(Operand::Lease(int64()?)),
            64 => Wire::take::<Self>(&mut self.range_end, field, budget)?,
            field => return Err(Fault::UnknownField { message: Self::NAME, field }),
        }
        Ok(())
    }

    fn put(&self, out: &mut Vec<u8>) {
        pb::put_u64(out, 1, self.result);
        pb::put_u64(out, 2, self.target);
        pb::put_bytes(out, 3, self.key);
        // A member of a oneof is written even when it is zero: its presence counts.
        let number = |out: &mut Vec<u8>, field, number: i64| {
            pb::put_u64_always(out, field, number.cast_unsigned());
        };
        match self.operand {
            None => {}
            Some(Operand::Version(n)) => number(out, 4, n),
            Some(Operand::CreateRevision(n)) => number(out, 5, n),
            Some(Operand::ModRevision(n)) => number(out, 6, n),
            Some(Operand::Value(bytes)) => pb::put_bytes_always(out, 7, bytes),
            Some(Operand::Lease(n)) => number(out, 8, n),
        }
        pb::put_bytes(out, 64, self.range_end);
    }
}
