//! The form of a request, as etcd's API checks it before anything else sees the request.
//!
//! 1. Each list of a transaction has at most so many operations; a transaction inside one may use
//!    what its parent's longest list left over.
//! 2. In one list, and in the lists of transactions inside it, no key is put twice, and no put
//!    stands in a delete. Both lists of one transaction may put the same key.
//! 3. etcd misses a delete in a transaction that follows a put in a sibling. So does this. It also
//!    takes a delete "from a key on" for one of no keys, and this does not: a put in such a range
//!    is lost when etcd compacts the history, and a server that then reads the key stops.
//! 4. A name that the database has no room for as a key is refused; etcd takes it, and dies.
//! 5. More than [`ITEMS_MAX`] items or messages deeper than [`DEPTH_MAX`], which the log could not
//!    be read back with, are too many operations.
//!
//! Names that are empty, permissions that are not there and leases that would live too long are
//! refused when the entry is applied, after the question whether the user may ask; as in etcd.
//!
//! Source: etcd `v3rpc/key.go`, 3.5.35, 3.6.16, 3.7.3; `adt.Interval.Compare`.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use crate::etcd::apply::Refusal;
use crate::etcd::request::{Alarm, Body, DEPTH_MAX, DeleteRange, ITEMS_MAX, Op, Put, Range, Txn};
use crate::format::page::KEY_BYTES_MAX;
use crate::store::error::Error;

/// Checks the form of a request.
///
/// # Errors
/// As etcd's API answers, in its order.
pub fn check_form(body: &Body<'_>, max_txn_ops: usize) -> Result<(), Error> {
    match body {
        Body::Range(range) => check_range_form(range),
        Body::Put(put) => check_put(put),
        Body::DeleteRange(delete) => check_delete(delete),
        Body::Txn(txn) => {
            Sizes { items: ITEMS_MAX }.check_txn(txn, max_txn_ops, DEPTH_MAX)?;
            Changes::of(&txn.success)?;
            Changes::of(&txn.failure)?;
            Ok(())
        }
        Body::Alarm(alarm) => check_alarm(alarm),
        Body::UserAdd(user) => check_name(user.name),
        Body::RoleAdd(role) => check_name(role.role),
        _ => Ok(()),
    }
}

/// Refuses a name that no row can have: etcd logs it, and dies of it whenever it is started.
fn check_name(name: &[u8]) -> Result<(), Error> {
    if name.len() > KEY_BYTES_MAX { Err(Error::TooLarge) } else { Ok(()) }
}

/// Checks the form of a read.
///
/// # Errors
/// As etcd's API answers.
pub fn check_range_form(range: &Range<'_>) -> Result<(), Error> {
    const ORDER_MAX: u64 = 2;
    const TARGET_MAX: u64 = 4;
    if range.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    if range.sort_order > ORDER_MAX || range.sort_target > TARGET_MAX {
        return Err(Error::InvalidSort);
    }
    Ok(())
}

fn check_put(put: &Put<'_>) -> Result<(), Error> {
    if put.key.is_empty() {
        return Err(Error::EmptyKey);
    }
    if put.ignore_value && !put.value.is_empty() {
        return Err(Error::ValueProvided);
    }
    if put.ignore_lease && put.lease != 0 {
        return Err(Error::LeaseProvided);
    }
    Ok(())
}

fn check_delete(delete: &DeleteRange<'_>) -> Result<(), Error> {
    if delete.key.is_empty() { Err(Error::EmptyKey) } else { Ok(()) }
}

/// Refuses an action or alarm that there is not, on which etcd panics.
fn check_alarm(alarm: &Alarm) -> Result<(), Error> {
    const ACTION_MAX: u64 = 2;
    const ALARM_MAX: u64 = 2;
    if alarm.action > ACTION_MAX || alarm.alarm > ALARM_MAX {
        return Err(Error::InvalidAlarm);
    }
    Ok(())
}

/// What a transaction may still use up.
struct Sizes {
    items: u32,
}

impl Sizes {
    /// Checks a transaction and what is in it. `depth` is how many messages may nest from here on,
    /// which bounds the recursion.
    fn check_txn(&mut self, txn: &Txn<'_>, ops_max: usize, depth: u32) -> Result<(), Error> {
        // The transaction, an operation in it, and what that holds.
        let inner_depth = depth.checked_sub(2).filter(|&left| left > 0).ok_or(Error::TooManyOps)?;
        let ops = txn.compare.len().max(txn.success.len()).max(txn.failure.len());
        let left = ops_max.checked_sub(ops).ok_or(Error::TooManyOps)?;
        let items = [txn.compare.len(), txn.success.len(), txn.failure.len()];
        for count in items {
            let count = u32::try_from(count).map_err(|_| Error::TooManyOps)?;
            self.items = self.items.checked_sub(count).ok_or(Error::TooManyOps)?;
        }
        if txn.compare.iter().any(|compare| compare.key.is_empty()) {
            return Err(Error::EmptyKey);
        }
        for op in txn.success.iter().chain(&txn.failure) {
            match op {
                Op::Range(range) => check_range_form(range)?,
                Op::Put(put) => check_put(put)?,
                Op::DeleteRange(delete) => check_delete(delete)?,
                Op::Txn(inner) => self.check_txn(inner, left, inner_depth)?,
                Op::Nothing => return Err(Refusal::KeyNotFound.into()),
            }
        }
        Ok(())
    }
}

/// Keys that a list of operations puts and deletes.
#[derive(Default)]
struct Changes<'a> {
    puts: BTreeSet<&'a [u8]>,
    deletes: Deletes<'a>,
}

impl<'a> Changes<'a> {
    /// Gathers the changes of a list whose size and depth were checked.
    fn of(ops: &[Op<'a>]) -> Result<Self, Error> {
        let mut all = Self::default();
        for op in ops {
            if let Op::DeleteRange(delete) = op {
                all.deletes.add(delete);
            }
        }
        for op in ops {
            if let Op::Txn(inner) = op {
                let one = Self::of(&inner.success)?;
                let other = Self::of(&inner.failure)?;
                // Only one of the two lists is done.
                let puts = joined(one.puts, other.puts);
                all.add_puts(puts)?;
                all.deletes.join(one.deletes);
                all.deletes.join(other.deletes);
            }
        }
        for op in ops {
            if let Op::Put(put) = op
                && (all.deletes.contains(put.key) || !all.puts.insert(put.key))
            {
                return Err(Error::DuplicateKey);
            }
        }
        Ok(all)
    }

    /// Adds the puts of a transaction inside the list.
    fn add_puts(&mut self, puts: BTreeSet<&'a [u8]>) -> Result<(), Error> {
        let (few, many) =
            if puts.len() < self.puts.len() { (&puts, &self.puts) } else { (&self.puts, &puts) };
        if few.iter().any(|key| many.contains(key)) || self.deletes.meet(&puts) {
            return Err(Error::DuplicateKey);
        }
        self.puts = joined(mem::take(&mut self.puts), puts);
        Ok(())
    }
}

/// Joins two sets: the smaller one goes into the larger one, so that a key that rises through many
/// levels is moved only a few times.
fn joined<'a>(a: BTreeSet<&'a [u8]>, b: BTreeSet<&'a [u8]>) -> BTreeSet<&'a [u8]> {
    let (small, mut large) = if a.len() < b.len() { (a, b) } else { (b, a) };
    large.extend(small);
    large
}

/// Keys that are deleted.
#[derive(Default)]
struct Deletes<'a> {
    keys: BTreeSet<&'a [u8]>,
    /// Ends of ranges by their first keys; no two overlap.
    ranges: BTreeMap<&'a [u8], &'a [u8]>,
    /// First key from which on all are deleted.
    from: Option<&'a [u8]>,
}

impl<'a> Deletes<'a> {
    fn add(&mut self, delete: &DeleteRange<'a>) {
        if delete.range_end.is_empty() {
            self.keys.insert(delete.key);
        } else if delete.range_end == b"\0" {
            self.add_from(delete.key);
        } else if delete.key < delete.range_end {
            self.add_range(delete.key, delete.range_end);
        }
    }

    fn add_from(&mut self, first: &'a [u8]) {
        self.from = Some(self.from.map_or(first, |from| from.min(first)));
    }

    /// Adds a range, joined with those that it overlaps or touches.
    fn add_range(&mut self, first: &'a [u8], end: &'a [u8]) {
        let (mut first, mut end) = (first, end);
        while let Some((&other, &other_end)) = self.ranges.range(..=end).next_back() {
            if other_end < first {
                break;
            }
            self.ranges.remove(other);
            first = first.min(other);
            end = end.max(other_end);
        }
        self.ranges.insert(first, end);
    }

    fn join(&mut self, mut other: Self) {
        if self.ranges.len() < other.ranges.len() {
            mem::swap(&mut self.ranges, &mut other.ranges);
        }
        for (first, end) in other.ranges {
            self.add_range(first, end);
        }
        self.keys = joined(mem::take(&mut self.keys), other.keys);
        if let Some(from) = other.from {
            self.add_from(from);
        }
    }

    fn contains(&self, key: &[u8]) -> bool {
        let range = self.ranges.range(..=key).next_back();
        self.keys.contains(key)
            || range.is_some_and(|(_, &end)| key < end)
            || self.from.is_some_and(|from| from <= key)
    }

    /// Tells whether one of the keys is deleted, by looking at whatever there is less of.
    fn meet(&self, keys: &BTreeSet<&[u8]>) -> bool {
        if self.from.is_some_and(|from| keys.range(from..).next().is_some()) {
            return true;
        }
        if keys.len() < self.keys.len().saturating_add(self.ranges.len()) {
            return keys.iter().any(|key| self.contains(key));
        }
        let in_range = |(&first, &end): (&&[u8], &&[u8])| {
            keys.range(first..).next().is_some_and(|key| *key < end)
        };
        self.keys.iter().any(|key| keys.contains(key)) || self.ranges.iter().any(in_range)
    }
}
