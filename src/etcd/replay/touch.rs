//! What the entries of a tail touch: keys, ranges of keys, leases whose keys are needed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::Error;
use crate::etcd::apply;
use crate::etcd::request::{Body, Content, Op, Put, Span, Txn, span};
use crate::format::wal::{Entry, entry_kind};

/// Notes of one pass over the entries.
#[derive(Clone, Debug, Default)]
pub(super) struct Touched {
    keys: BTreeSet<Vec<u8>>,
    /// End of the range that begins at a key; `None` for all keys from it on.
    ranges: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    /// Leases that end: their keys go.
    ended: BTreeSet<i64>,
    /// Leases that keys are put to: their keys are needed where permissions are checked.
    put: BTreeSet<i64>,
    turns_auth_on: bool,
    /// The last cluster version that is set.
    pub(super) version: Option<Vec<u8>>,
}

/// What was noted, to be looked up.
pub(super) struct Set {
    keys: BTreeSet<Vec<u8>>,
    /// Disjoint ranges.
    ranges: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    leases: BTreeSet<i64>,
}

impl Touched {
    /// Notes what an entry touches.
    ///
    /// # Errors
    /// The entry is not understood.
    pub(super) fn note(&mut self, entry: &Entry<'_>) -> Result<(), Error> {
        if entry.kind != entry_kind::NORMAL {
            return Ok(());
        }
        let content = Content::decode(entry.data)
            .map_err(|fault| apply::Error::Request { index: entry.index, fault })?;
        match content {
            Content::Nothing => {}
            Content::V2(request) => {
                if request.path == b"/0/version" {
                    self.version = Some(request.value.to_vec());
                }
            }
            Content::Request(request) => match &request.body {
                Body::Put(put) => self.note_put(put),
                Body::DeleteRange(delete) => self.note_span(span(delete.key, delete.range_end)),
                Body::Txn(txn) => self.note_txn(txn),
                Body::LeaseRevoke(revoke) => {
                    self.ended.insert(revoke.id);
                }
                Body::AuthEnable(_) => self.turns_auth_on = true,
                Body::ClusterVersionSet(set) => self.version = Some(set.version.to_vec()),
                _ => {}
            },
        }
        Ok(())
    }

    fn note_put(&mut self, put: &Put<'_>) {
        self.note_span(Span::Key(put.key));
        if put.lease != 0 {
            self.put.insert(put.lease);
        }
    }

    fn note_txn(&mut self, txn: &Txn<'_>) {
        for compare in &txn.compare {
            self.note_span(span(compare.key, compare.range_end));
        }
        for op in txn.success.iter().chain(&txn.failure) {
            match op {
                Op::Put(put) => self.note_put(put),
                Op::DeleteRange(delete) => self.note_span(span(delete.key, delete.range_end)),
                Op::Txn(inner) => self.note_txn(inner),
                Op::Range(_) | Op::Nothing => {}
            }
        }
    }

    fn note_span(&mut self, span: Span<'_>) {
        match span {
            Span::Key(key) => {
                if !self.keys.contains(key) {
                    self.keys.insert(key.to_vec());
                }
            }
            Span::Range(key, end) => {
                if key < end {
                    self.note_range(key, Some(end));
                }
            }
            Span::From(key) => self.note_range(key, None),
        }
    }

    /// Keeps the furthest end of each beginning.
    fn note_range(&mut self, key: &[u8], end: Option<&[u8]>) {
        match self.ranges.get_mut(key) {
            None => {
                self.ranges.insert(key.to_vec(), end.map(<[u8]>::to_vec));
            }
            Some(known) => {
                if known.as_deref().is_some_and(|known| end.is_none_or(|end| end > known)) {
                    *known = end.map(<[u8]>::to_vec);
                }
            }
        }
    }

    /// Makes the notes ready to be looked up; `auth` is whether auth is on before them.
    pub(super) fn finish(self, auth: bool) -> Set {
        let mut leases = self.ended;
        if auth || self.turns_auth_on {
            leases.extend(self.put);
        }
        let mut ranges: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
        for (begin, end) in self.ranges {
            match ranges.last_entry() {
                Some(mut last) if last.get().as_ref().is_none_or(|reached| *reached >= begin) => {
                    let further = match (last.get(), &end) {
                        (None, _) => false,
                        (_, None) => true,
                        (Some(reached), Some(end)) => end > reached,
                    };
                    if further {
                        *last.get_mut() = end;
                    }
                }
                _ => {
                    ranges.insert(begin, end);
                }
            }
        }
        Set { keys: self.keys, ranges, leases }
    }
}

impl Set {
    /// Tells whether a key is touched.
    pub(super) fn has_key(&self, key: &[u8]) -> bool {
        let up_to = (Bound::Unbounded, Bound::Included(key));
        let before = self.ranges.range::<[u8], _>(up_to).next_back();
        self.keys.contains(key)
            || before.is_some_and(|(_, end)| end.as_deref().is_none_or(|end| key < end))
    }

    /// Tells whether the keys of a lease are needed.
    pub(super) fn has_lease(&self, lease: i64) -> bool {
        lease != 0 && self.leases.contains(&lease)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join() {
        let mut touched = Touched::default();
        for (key, end) in [("b", "d"), ("c", "f"), ("f", "g"), ("x", "y"), ("x", "xa")] {
            touched.note_span(span(key.as_bytes(), end.as_bytes()));
        }
        touched.note_span(span(b"a", b""));
        touched.note_span(span(b"z", b"\0"));
        touched.note_span(span(b"q", b"p"));
        let set = touched.finish(false);
        assert_eq!(set.ranges.len(), 3);
        for (key, want) in [
            ("a", true),
            ("aa", false),
            ("b", true),
            ("e", true),
            ("fz", true),
            ("g", false),
            ("q", false),
            ("xz", true),
            ("y", false),
            ("zzz", true),
        ] {
            assert_eq!(set.has_key(key.as_bytes()), want, "{key}");
        }
    }

    #[test]
    fn leases_of_puts_count_only_with_auth() {
        let mut touched = Touched::default();
        touched.note_put(&Put { key: b"a", lease: 7, ..Put::default() });
        touched.ended.insert(8);
        let set = touched.clone().finish(false);
        assert!(!set.has_lease(7) && set.has_lease(8) && !set.has_lease(0));
        assert!(touched.finish(true).has_lease(7));
    }
}
