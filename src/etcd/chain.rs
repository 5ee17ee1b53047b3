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
//! Of a key, 10 bytes are remembered in a [`KeyTable`]; a lease that is in use takes some 100. Of
//! the create revision the low 32 bits are compared and of the version the low 16. So a record
//! that should follow another and differs from it by exactly a multiple of 2^32 creations or 2^16
//! versions passes for a sound one.
//!
//! Source: etcd `mvcc.keyIndex` (`put`, `tombstone`, `compact`), 3.5.35 and 3.7.3.

use std::collections::HashMap;

use super::key_table::KeyTable;
use super::record::KeyValue;
use super::revision::RevisionKey;
use super::rows::Lease;

/// What is remembered of a key. Halves of words, so that it has no gaps in a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Life {
    /// Low 32 bits of the create revision, the lower half first.
    created: [u16; 2],
    /// Low 16 bits of the version: enough to see whether the next one follows.
    version: u16,
    /// Place in the lease table, from 1; 0 for no lease, all ones for a deleted key.
    lease: [u16; 2],
}

impl Life {
    const DELETED: Self = Self { created: [0; 2], version: 0, lease: [u16::MAX; 2] };

    fn new(record: &KeyValue<'_>, lease: u32) -> Self {
        let created = low_half(record.create_revision);
        let version = low_quarter(record.version);
        Self { created: halves(created), version, lease: halves(lease) }
    }

    fn is_live(&self) -> bool {
        *self != Self::DELETED
    }

    fn created(&self) -> u32 {
        whole(self.created)
    }

    fn lease(&self) -> u32 {
        whole(self.lease)
    }

    /// The version that it was, if that is the nearest one below another, or else above.
    fn version_near(&self, other: i64) -> i64 {
        let below = i64::from(low_quarter(other).wrapping_sub(self.version));
        let near = other.saturating_sub(below);
        if near > 0 { near } else { near.saturating_add(1 << 16) }
    }
}

fn halves(word: u32) -> [u16; 2] {
    let [a, b, c, d] = word.to_le_bytes();
    [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])]
}

fn whole([low, high]: [u16; 2]) -> u32 {
    let ([a, b], [c, d]) = (low.to_le_bytes(), high.to_le_bytes());
    u32::from_le_bytes([a, b, c, d])
}

fn low_half(number: i64) -> u32 {
    let [a, b, c, d, ..] = number.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

fn low_quarter(number: i64) -> u16 {
    let [a, b, ..] = number.to_le_bytes();
    u16::from_le_bytes([a, b])
}

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
#[derive(Clone, Debug, Default)]
pub struct Chains {
    lives: KeyTable<Life>,
    live_count: u64,
    lease_places: HashMap<i64, u32>,
    leases: Vec<LeaseUse>,
    /// The lease of the record before, and its place: records that share one come together.
    last_lease: (i64, u32),
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
        let after = if at.is_tombstone {
            Life::DELETED
        } else {
            Life::new(record, self.lease_place(record.lease))
        };
        // One look into the table: it is far larger than any cache.
        let before = self.lives.insert(record.key, after);
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

    fn count(&mut self, before: Option<Life>, after: Life) {
        if let Some(before) = before.filter(Life::is_live) {
            self.live_count = self.live_count.saturating_sub(1);
            if let Some(lease) = self.lease_at(before.lease()) {
                lease.live_keys = lease.live_keys.saturating_sub(1);
            }
        }
        if after.is_live() {
            self.live_count = self.live_count.saturating_add(1);
            if let Some(lease) = self.lease_at(after.lease()) {
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
        if self.last_lease.0 == id {
            return self.last_lease.1;
        }
        let leases = &mut self.leases;
        let place = *self.lease_places.entry(id).or_insert_with(|| {
            let lease = Lease { id, ..Lease::default() };
            leases.push(LeaseUse { lease, live_keys: 0, is_there: false });
            // All ones mean something else.
            u32::try_from(leases.len()).ok().filter(|place| *place != u32::MAX).unwrap_or(0)
        });
        self.last_lease = (id, place);
        place
    }
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
    match (before.is_live(), at.is_tombstone) {
        (true, true) => None,
        (false, true) => Some("the key is deleted and was deleted before".into()),
        (false, false) if record.version == 1 => None,
        (false, false) => {
            Some(format!("the key was deleted and goes on with version {}", record.version))
        }
        (true, false) if low_half(record.create_revision) != before.created() => Some(format!(
            "the key was created at {} and goes on as created at {} without being deleted",
            said(before.created(), at.revision.main),
            record.create_revision
        )),
        (true, false) if low_quarter(record.version) != before.version.wrapping_add(1) => {
            let version = record.version;
            Some(format!(
                "version {version} does not follow version {}",
                before.version_near(version)
            ))
        }
        (true, false) => None,
    }
}

/// Says a create revision of which only the low half is known, where that is all of it.
fn said(created: u32, now: i64) -> String {
    if u32::try_from(now).is_ok() { created.to_string() } else { "another revision".into() }
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
    fn a_life_is_10_bytes() {
        assert_eq!(std::mem::size_of::<Life>(), 10);
    }

    #[test]
    fn large_numbers_are_followed() {
        let mut chains = Chains::default();
        let big = 1 << 32;
        for version in 1..70_000 {
            let record = put(b"a", big, big + version - 1, version);
            assert_eq!(follow(&mut chains, &record).breach, None, "version {version}");
        }
        assert_eq!(chains.live_count(), 1);
        let mut said = |record| match follow(&mut chains, &record).breach {
            Some(Breach::Chain(said)) => said,
            other => panic!("{other:?}"),
        };
        let text = said(put(b"a", big, big + 80_000, 70_002));
        assert_eq!(text, "version 70002 does not follow version 69999");
        let text = said(put(b"a", big, big + 80_001, 3));
        assert_eq!(text, "version 3 does not follow version 4466");
        let text = said(put(b"a", big + 7, big + 80_002, 4));
        assert!(text.starts_with("the key was created at another revision and goes on"), "{text}");
    }
}
