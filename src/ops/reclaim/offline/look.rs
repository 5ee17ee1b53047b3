//! What a directory holds, as a reader of it sees it.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::{CORRUPT, NOSPACE, Options, PAGE_KEYS, open_failed, store_failed};
use crate::etcd::schema::Version;
use crate::ops::cluster::attend;
use crate::ops::compaction::window::{KUBERNETES_KEY, Kubernetes};
use crate::ops::online::Size;
use crate::ops::{Error, Progress};
use crate::store::{Alarm, Caller, Error as StoreError, Options as StoreOptions, Range, Store};

/// What was seen.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) size: Size,
    /// Member and kind of each.
    pub(super) alarms: Vec<(u64, u64)>,
    pub(super) revision: i64,
    pub(super) compacted: i64,
    pub(super) kubernetes: Option<Kubernetes>,
    pub(super) member: u64,
    pub(super) member_name: String,
    pub(super) client_urls: Vec<String>,
    /// All members, by id: the voter, and learners.
    pub(super) members: Vec<(u64, String)>,
    /// The cluster's, where a server ever said it.
    pub(super) version: Option<Version>,
    pub(super) keys: u64,
    /// Over keys, revisions, versions and leases of all living keys.
    pub(super) digest: [u8; 32],
}

impl Seen {
    /// Tells whether two sights are of the same living keys, of the same member.
    pub(super) fn is_of_same_keys(&self, other: &Self) -> bool {
        (self.keys, self.digest, self.revision, self.member)
            == (other.keys, other.digest, other.revision, other.member)
    }

    pub(super) fn has_nospace(&self) -> bool {
        self.alarms.iter().any(|(_, kind)| *kind == NOSPACE)
    }

    pub(super) fn has_corrupt(&self) -> bool {
        self.alarms.iter().any(|(_, kind)| *kind == CORRUPT)
    }

    /// NOSPACE of other members that are there: their databases are none of this directory's.
    pub(super) fn nospace_of_others(&self) -> Vec<&str> {
        let others = self.members.iter().filter(|(id, _)| *id != self.member);
        let raised = others.filter(|(id, _)| self.alarms.contains(&(*id, NOSPACE)));
        raised.map(|(_, name)| name.as_str()).collect()
    }
}

/// Looks at a directory; changes nothing.
pub(super) fn read(
    data_dir: &Path,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Seen, Error> {
    progress.step("read keys", 0);
    let (path, wal_dir) = (data_dir.to_owned(), options.wal_dir.clone());
    attend(progress, move || {
        let store = Store::open_read_only(&path, StoreOptions::default().wal_dir(wal_dir))
            .map_err(open_failed)?;
        let me = Caller::default();
        let seen = look(&store, &me).map_err(|error| store_failed("read the directory", &error));
        // It was read only.
        let _ = store.close();
        seen
    })
}

/// Looks at a store that is open.
pub(super) fn of(store: &Store, me: &Caller, progress: &dyn Progress) -> Result<Seen, Error> {
    let (store, me) = (store.clone(), me.clone());
    attend(progress, move || {
        look(&store, &me).map_err(|error| store_failed("read the directory", &error))
    })
}

fn look(store: &Store, me: &Caller) -> Result<Seen, StoreError> {
    let status = store.status(me)?;
    let bytes = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    let alarms = store.alarm(me, Alarm { action: 0, member_id: 0, alarm: 0 })?.body;
    let key = Range { key: KUBERNETES_KEY.as_bytes(), ..Range::default() };
    let kubernetes = store.range(me, &key)?.body.kvs.first().and_then(|kv| {
        let record = kv.record();
        Kubernetes::read(record.value, record.mod_revision)
    });
    let compacted = store.hash_kv(me, store.revision())?.body.compact_revision.max(0);
    let members = store.members(me)?;
    let own = members.iter().find(|member| member.id == store.member_id()).cloned();
    let own = own.map(|own| (own.name, own.client_urls)).unwrap_or_default();
    let name = |name: String, id: u64| if name.is_empty() { format!("{id:x}") } else { name };
    let (keys, digest) = digest(store, me)?;
    Ok(Seen {
        size: Size {
            db_bytes: bytes(status.db_size_bytes),
            in_use_bytes: bytes(status.db_size_in_use_bytes),
        },
        alarms,
        revision: store.revision(),
        compacted,
        kubernetes,
        member: store.member_id().0,
        member_name: own.0,
        client_urls: own.1,
        members: members.into_iter().map(|one| (one.id.0, name(one.name, one.id.0))).collect(),
        version: store.cluster_version(),
        keys,
        digest,
    })
}

/// Sums up the living keys.
fn digest(store: &Store, me: &Caller) -> Result<(u64, [u8; 32]), StoreError> {
    let (mut sum, mut keys, mut from) = (Sha256::new(), 0_u64, vec![0]);
    loop {
        let range = Range {
            key: &from,
            range_end: &[0],
            limit: PAGE_KEYS,
            keys_only: true,
            ..Range::default()
        };
        let page = store.range(me, &range)?.body;
        let mut last = None;
        for kv in &page.kvs {
            let record = kv.record();
            sum.update(u64::try_from(record.key.len()).unwrap_or(u64::MAX).to_le_bytes());
            sum.update(record.key);
            for number in
                [record.create_revision, record.mod_revision, record.version, record.lease]
            {
                sum.update(number.to_le_bytes());
            }
            keys = keys.saturating_add(1);
            last = Some(record.key.to_vec());
        }
        match last.filter(|_| page.more) {
            Some(last) => from = [last.as_slice(), &[0]].concat(),
            None => return Ok((keys, sum.finalize().into())),
        }
    }
}
