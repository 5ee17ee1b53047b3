//! The life of every key, followed record by record: which keys live, and that none is missing.
//!
//! Records come in the order of revisions. A compaction at R keeps, of each key, the newest record
//! at or before R and all records after it. So:
//!
//! 1. Of the surviving records of a key, each put of a living key has the next version and the
//!    same create revision; a put after a tombstone has version 1 and is its own creation.
//! 2. A key whose first surviving record is neither its creation nor the whole of its life has
//!    that record at or before the compaction revision.
//!
//! A key is remembered as a 128-bit hash under secret random keys, so that nobody can make two
//! keys meet, in an entry of 32 bytes, 38 to 75 with the room that the table keeps; a lease that is
//! in use takes some 100.
//!
//! Source: etcd `mvcc.keyIndex` (`put`, `tombstone`, `compact`), 3.5.35 and 3.7.3.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher, RandomState};

use super::record::KeyValue;
use super::revision::RevisionKey;
use super::rows::Lease;

/// What is remembered of a key.
#[derive(Clone, Copy, Debug)]
struct Life {
    /// Create revision; 0 when the key is deleted.
    created: i64,
    /// Low bits of the version: enough to see whether the next one follows.
    version: u32,
    /// Place in the lease table, from 1; 0 for no lease.
    lease: u32,
}

impl Life {
    const DELETED: Self = Self { created: 0, version: 0, lease: 0 };
}

/// Takes a hash for a hash: the keys of the table are hashes already.
#[derive(Clone, Copy, Debug, Default)]
struct Taken(u64);

impl Hasher for Taken {
    fn write(&mut self, _: &[u8]) {}

    fn write_usize(&mut self, _: usize) {}

    fn write_u64(&mut self, part: u64) {
        self.0 = part;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Two independent 64-bit hashes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Seen(u64, u64);

/// A lease, and how many living keys are attached to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseUse {
    /// The lease; only its id is known when there is no row.
    pub lease: Lease,
    /// Living keys that are attached.
    pub live_keys: u64,
    /// Whether there is a row for it.
    pub is_there: bool,
}

/// What breaks the rules above, or a record's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Breach {
    /// The record does not belong under its revision.
    Revision(String),
    /// The record does not follow the one before.
    Chain(String),
}

/// Follows all keys.
#[derive(Clone, Debug)]
pub struct Chains {
    secrets: [RandomState; 2],
    lives: HashMap<Seen, Life, BuildHasherDefault<Taken>>,
    live_count: u64,
    lease_places: HashMap<i64, u32>,
    leases: Vec<LeaseUse>,
}

impl Default for Chains {
    fn default() -> Self {
        Self {
            secrets: [RandomState::new(), RandomState::new()],
            lives: HashMap::default(),
            live_count: 0,
            lease_places: HashMap::new(),
            leases: Vec::new(),
        }
    }
}

/// How a record stands to what came before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What is wrong with it, if anything.
    pub breach: Option<Breach>,
    /// Whether it is the first of its key and yet not the key's beginning.
    pub is_orphan: bool,
}

impl Chains {
    /// Takes the next record; its key must not be empty.
    pub fn follow(&mut self, at: RevisionKey, record: &KeyValue<'_>) -> Step {
        let seen = self.seen(record.key);
        let after = if at.is_tombstone {
            Life::DELETED
        } else {
            Life {
                // A living key is never told by a zero, whatever a damaged record says.
                created: if record.create_revision == 0 { -1 } else { record.create_revision },
                version: low_bits(record.version),
                lease: self.lease_place(record.lease),
            }
        };
        // One look into the table: it is far larger than any cache.
        let before = match self.lives.entry(seen) {
            Entry::Occupied(mut slot) => Some(slot.insert(after)),
            Entry::Vacant(slot) => {
                slot.insert(after);
                None
            }
        };
        self.count(before, after);
        let own = if at.is_tombstone { check_tombstone(record) } else { check_put(at, record) };
        let chain = || check_chain(before, at, record).map(Breach::Chain);
        Step {
            breach: own.or_else(chain),
            is_orphan: before.is_none() && (at.is_tombstone || record.version > 1),
        }
    }

    /// Takes a row of bucket `lease`; keys may be attached before or after.
    pub fn grant(&mut self, lease: Lease) {
        let place = self.lease_place(lease.id);
        if let Some(slot) = self.lease_at(place) {
            slot.lease = lease;
            slot.is_there = true;
        }
    }

    /// Returns how many keys live.
    #[must_use]
    pub fn live_count(&self) -> u64 {
        self.live_count
    }

    /// Returns every lease that has a row or a living key, ascending by id.
    #[must_use]
    pub fn into_leases(self) -> Vec<LeaseUse> {
        let mut leases = self.leases;
        leases.retain(|lease| lease.is_there || lease.live_keys > 0);
        leases.sort_unstable_by_key(|lease| lease.lease.id);
        leases
    }

    fn seen(&self, key: &[u8]) -> Seen {
        let [first, second] = self.secrets.each_ref().map(|secret| {
            let mut hasher = secret.build_hasher();
            hasher.write(key);
            hasher.finish()
        });
        Seen(first, second)
    }

    fn count(&mut self, before: Option<Life>, after: Life) {
        if let Some(before) = before.filter(|life| life.created != 0) {
            self.live_count = self.live_count.saturating_sub(1);
            if let Some(lease) = self.lease_at(before.lease) {
                lease.live_keys = lease.live_keys.saturating_sub(1);
            }
        }
        if after.created != 0 {
            self.live_count = self.live_count.saturating_add(1);
            if let Some(lease) = self.lease_at(after.lease) {
                lease.live_keys = lease.live_keys.saturating_add(1);
            }
        }
    }

    fn lease_at(&mut self, place: u32) -> Option<&mut LeaseUse> {
        let index = usize::try_from(place.checked_sub(1)?).ok()?;
        self.leases.get_mut(index)
    }

    fn lease_place(&mut self, id: i64) -> u32 {
        if id == 0 {
            return 0;
        }
        let leases = &mut self.leases;
        *self.lease_places.entry(id).or_insert_with(|| {
            let lease = Lease { id, ..Lease::default() };
            leases.push(LeaseUse { lease, live_keys: 0, is_there: false });
            u32::try_from(leases.len()).unwrap_or(0)
        })
    }
}

fn low_bits(version: i64) -> u32 {
    u32::try_from(version & i64::from(u32::MAX)).unwrap_or(0)
}

fn check_tombstone(record: &KeyValue<'_>) -> Option<Breach> {
    let tombstone =
        KeyValue { unknown_field: record.unknown_field, ..KeyValue::tombstone(record.key) };
    (*record != tombstone)
        .then(|| Breach::Revision("a tombstone that holds more than its key".into()))
}

fn check_put(at: RevisionKey, record: &KeyValue<'_>) -> Option<Breach> {
    let KeyValue { create_revision, mod_revision, version, .. } = *record;
    if mod_revision != at.revision.main {
        return Some(Breach::Revision(format!(
            "the record says mod_revision {mod_revision} and stands at {}",
            at.revision
        )));
    }
    if create_revision > mod_revision || create_revision < 1 {
        return Some(Breach::Revision(format!(
            "the record says create_revision {create_revision} and mod_revision {mod_revision}"
        )));
    }
    // Version 1 of a key created before: what `etcdctl migrate` made of keys of the v2 store.
    if version < 1 || (version > 1 && create_revision == mod_revision) {
        return Some(Breach::Chain(format!(
            "the record says version {version}, create_revision {create_revision} and \
             mod_revision {mod_revision}"
        )));
    }
    None
}

fn check_chain(before: Option<Life>, at: RevisionKey, record: &KeyValue<'_>) -> Option<String> {
    let before = before?;
    let is_live = before.created != 0;
    match (is_live, at.is_tombstone) {
        (true, true) => None,
        (false, true) => Some("the key is deleted and was deleted before".into()),
        (false, false) if record.version == 1 => None,
        (false, false) => {
            Some(format!("the key was deleted and goes on with version {}", record.version))
        }
        (true, false) if record.create_revision != before.created => Some(format!(
            "the key was created at {} and goes on as created at {} without being deleted",
            before.created, record.create_revision
        )),
        (true, false) if low_bits(record.version) != before.version.wrapping_add(1) => {
            Some(format!("version {} does not follow version {}", record.version, before.version))
        }
        (true, false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::revision::Revision;

    fn put(key: &[u8], create_revision: i64, mod_revision: i64, version: i64) -> KeyValue<'_> {
        KeyValue { key, create_revision, mod_revision, version, ..KeyValue::default() }
    }

    fn follow(chains: &mut Chains, record: &KeyValue<'_>) -> Step {
        let revision = Revision::new(record.mod_revision, 0);
        chains.follow(RevisionKey { revision, is_tombstone: false }, record)
    }

    fn delete(chains: &mut Chains, key: &[u8], main: i64) -> Step {
        let at = RevisionKey { revision: Revision::new(main, 0), is_tombstone: true };
        chains.follow(at, &KeyValue::tombstone(key))
    }

    fn chain_breach(step: &Step) -> bool {
        matches!(step.breach, Some(Breach::Chain(_)))
    }

    #[test]
    fn a_whole_life_is_sound() {
        let mut chains = Chains::default();
        for record in [put(b"a", 2, 2, 1), put(b"a", 2, 5, 2), put(b"b", 6, 6, 1)] {
            assert_eq!(follow(&mut chains, &record), Step { breach: None, is_orphan: false });
        }
        assert_eq!(chains.live_count(), 2);
        assert_eq!(delete(&mut chains, b"a", 7).breach, None);
        assert_eq!(chains.live_count(), 1);
        assert_eq!(follow(&mut chains, &put(b"a", 8, 8, 1)).breach, None);
        assert_eq!(chains.live_count(), 2);
    }

    #[test]
    fn survivors_of_a_compaction_are_orphans() {
        let mut chains = Chains::default();
        let step = follow(&mut chains, &put(b"a", 2, 9, 4));
        assert_eq!(step, Step { breach: None, is_orphan: true });
        let step = delete(&mut chains, b"b", 9);
        assert_eq!(step, Step { breach: None, is_orphan: true });
        assert_eq!(follow(&mut chains, &put(b"a", 2, 10, 5)).breach, None);
    }

    #[test]
    fn gaps_are_found() {
        let mut chains = Chains::default();
        follow(&mut chains, &put(b"a", 2, 2, 1));
        assert!(chain_breach(&follow(&mut chains, &put(b"a", 2, 5, 3))));
        assert_eq!(follow(&mut chains, &put(b"a", 2, 6, 4)).breach, None);
        assert!(chain_breach(&follow(&mut chains, &put(b"a", 7, 7, 1))));
        delete(&mut chains, b"a", 8);
        assert!(chain_breach(&delete(&mut chains, b"a", 9)));
        assert!(chain_breach(&follow(&mut chains, &put(b"a", 7, 10, 2))));
    }

    #[test]
    fn records_must_agree_with_themselves() {
        let mut chains = Chains::default();
        let at = RevisionKey { revision: Revision::new(5, 0), is_tombstone: false };
        let mut breach = |record| chains.follow(at, &record).breach;
        assert!(matches!(breach(put(b"a", 2, 4, 2)), Some(Breach::Revision(_))));
        assert!(matches!(breach(put(b"b", 6, 5, 2)), Some(Breach::Revision(_))));
        assert!(matches!(breach(put(b"c", 0, 5, 2)), Some(Breach::Revision(_))));
        assert!(matches!(breach(put(b"d", 5, 5, 2)), Some(Breach::Chain(_))));
        assert_eq!(breach(put(b"e", 4, 5, 1)), None, "a key that was migrated from the v2 store");
        assert!(matches!(breach(put(b"f", 4, 5, 0)), Some(Breach::Chain(_))));
        let at = RevisionKey { is_tombstone: true, ..at };
        let breach = chains.follow(at, &put(b"g", 5, 5, 1)).breach;
        assert!(matches!(breach, Some(Breach::Revision(_))));
    }

    #[test]
    fn leases_count_their_living_keys() {
        let mut chains = Chains::default();
        let leased = |lease, record| KeyValue { lease, ..record };
        follow(&mut chains, &leased(7, put(b"a", 2, 2, 1)));
        follow(&mut chains, &leased(7, put(b"b", 3, 3, 1)));
        follow(&mut chains, &leased(8, put(b"c", 4, 4, 1)));
        follow(&mut chains, &leased(9, put(b"a", 2, 5, 2)));
        delete(&mut chains, b"c", 6);
        chains.grant(Lease { id: 7, ttl_s: 60, ..Lease::default() });
        chains.grant(Lease { id: 5, ttl_s: 5, ..Lease::default() });
        let leases: Vec<_> = chains
            .into_leases()
            .into_iter()
            .map(|lease| (lease.lease.id, lease.live_keys, lease.is_there))
            .collect();
        assert_eq!(leases, [(5, 0, true), (7, 1, true), (9, 1, false)]);
    }

    #[test]
    fn an_entry_is_32_bytes() {
        assert_eq!(std::mem::size_of::<(Seen, Life)>(), 32);
    }
}
