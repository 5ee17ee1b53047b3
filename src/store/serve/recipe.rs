//! What locks and elections are made of: keys under a prefix, each bound to a lease; the oldest key
//! has it, and each other waits until all that are older are gone.
//!
//! etcd does this with a client of its own, so that any error arrives as `Unknown` with its text.
//!
//! Source: etcd `client/v3/concurrency` (`key.go`, `session.go`), 3.7.3.

use std::future::poll_fn;

use bytes::Bytes;
use tonic::{Request, Status};

use super::status::{Credentials, answer, given_up, of_another_kind};
use super::{Shared, convert};
use crate::etcd::apply::Refusal;
use crate::etcd::request::{Body, Compare, DeleteRange, LeaseGrant, Op, Operand, Put, Txn};
use crate::store::engine::{Submission, Watch};
use crate::store::guard::Caller;
use crate::store::watch::{Create, Response};
use crate::store::wire::etcdserverpb as pb;
use crate::store::wire::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::store::{Answer, Error, Kv, Store, answer as answers};

/// Seconds to live of a lease that a caller who brings none is given.
const TTL_S: i64 = 60;
/// Target of a comparison: revision of creation.
const CREATED: u64 = 1;

/// Who works on such keys. Who that is, is asked for each request: waiting may take longer than the
/// rules, or a token, are what they were.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    store: Store,
    who: Credentials,
    header: pb::ResponseHeader,
}

/// Turns an error into what etcd's own client makes of it.
pub(super) fn unknown(error: impl std::fmt::Display) -> Status {
    Status::unknown(error.to_string())
}

/// Returns the prefix of all keys of a lock or an election.
pub(super) fn prefix(name: &[u8]) -> Vec<u8> {
    [name, b"/"].concat()
}

/// Returns the key of a lease, as Go prints its number.
pub(super) fn key(prefix: &[u8], lease: i64) -> Vec<u8> {
    let sign: &[u8] = if lease < 0 { b"-" } else { b"" };
    [prefix, sign, format!("{:x}", lease.unsigned_abs()).as_bytes()].concat()
}

/// Returns the end of the range of all keys with a prefix; it ends with a slash.
pub(super) fn end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return end;
        }
    }
    vec![0]
}

/// Asks for one key.
pub(super) fn one(key: &[u8]) -> pb::RangeRequest {
    pb::RangeRequest { key: Bytes::copy_from_slice(key), ..Default::default() }
}

/// Asks for the oldest key with a prefix.
pub(super) fn oldest(prefix: &[u8]) -> pb::RangeRequest {
    pb::RangeRequest {
        range_end: Bytes::from(end(prefix)),
        limit: 1,
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..one(prefix)
    }
}

/// Asks whether a key is the one that was created at a revision; 0 for none.
pub(super) fn is_of(key: &[u8], revision: i64) -> Compare<'_> {
    let operand = Some(Operand::CreateRevision(revision));
    Compare { target: CREATED, key, operand, ..Compare::default() }
}

/// Returns what an operation of a transaction read.
pub(super) fn read(txn: &answers::Txn, place: usize) -> &[Kv] {
    match txn.responses.get(place).map(|response| &response.op) {
        Some(answers::Op::Range(range)) => &range.kvs,
        _ => &[],
    }
}

impl Shared {
    pub(super) fn recipe<T>(&self, request: &Request<T>) -> Result<Recipe, Status> {
        let header = self.header_without_revision();
        let recipe = Recipe { store: self.store.clone(), who: Credentials::of(request), header };
        recipe.caller()?;
        Ok(recipe)
    }
}

impl Recipe {
    /// Finds out who calls, now.
    fn caller(&self) -> Result<Caller, Status> {
        self.who.caller(&self.store).map_err(unknown)
    }

    pub(super) fn header(&self, revision: i64) -> Option<pb::ResponseHeader> {
        let revision = if revision == 0 { self.store.revision() } else { revision };
        Some(pb::ResponseHeader { revision, ..self.header })
    }

    /// Returns a caller's lease, or a new one.
    pub(super) async fn lease(&self, id: i64) -> Result<i64, Status> {
        if id != 0 {
            return Ok(id);
        }
        match self.done(LeaseGrant { ttl_s: TTL_S, id }.into()).await?.body {
            answers::Body::LeaseGrant { id, .. } => Ok(id),
            _ => Err(of_another_kind()),
        }
    }

    async fn done(&self, request: Submission<'_>) -> Result<Answer, Status> {
        let pending = self.store.submit(&self.caller()?, request).map_err(unknown)?;
        answer(&self.store, pending).await.map_err(|status| unknown(status.message()))
    }

    pub(super) async fn txn(&self, request: Txn<'_>) -> Result<Answer<answers::Txn>, Status> {
        match self.done(request.into()).await? {
            Answer { revision, body: answers::Body::Txn(body) } => Ok(Answer { revision, body }),
            _ => Err(of_another_kind()),
        }
    }

    /// Deletes a key.
    pub(super) async fn delete(&self, key: &[u8]) -> Result<i64, Status> {
        let request = DeleteRange { key, ..DeleteRange::default() };
        Ok(self.done(request.into()).await?.revision)
    }

    /// Writes a key of a lease, if it is the one that was created at a revision; answers whether,
    /// and the revision.
    pub(super) async fn put_if(
        &self,
        key: &[u8],
        created: i64,
        value: &[u8],
        lease: i64,
    ) -> Result<(bool, i64), Status> {
        let put = Put { key, value, lease, ..Put::default() };
        let compare = vec![is_of(key, created)];
        let txn = Txn { compare, success: vec![Op::Put(put)], failure: Vec::new() };
        let done = self.txn(txn).await?;
        Ok((done.body.succeeded, done.revision))
    }

    /// Deletes a key, if it is the one that was created at a revision.
    pub(super) async fn delete_if(&self, key: &[u8], created: i64) -> Result<i64, Status> {
        Ok(self.txn(delete_if(key, created)).await?.revision)
    }

    /// Reads keys.
    pub(super) async fn range(
        &self,
        request: pb::RangeRequest,
    ) -> Result<Answer<answers::Range>, Status> {
        let (store, caller) = (self.store.clone(), self.caller()?);
        let read = move || store.range(&caller, &convert::range(&request));
        tokio::task::spawn_blocking(read).await.map_err(|_| given_up())?.map_err(unknown)
    }

    /// Watches a range from a revision on.
    pub(super) fn watch(
        &self,
        key: &[u8],
        range_end: &[u8],
        revision: i64,
    ) -> Result<Watcher, Status> {
        let watchers = self.store.watch(&self.caller()?);
        let create = Create::default().start_revision(revision);
        let (key, range_end) = (Bytes::copy_from_slice(key), Bytes::copy_from_slice(range_end));
        watchers.create(create.key(key).range_end(range_end));
        Ok(Watcher { watchers })
    }

    /// Waits until no key of a prefix is left that was created before a revision.
    pub(super) async fn older_gone(&self, prefix: &[u8], created: i64) -> Result<(), Status> {
        loop {
            let newest_of_them = pb::RangeRequest {
                max_create_revision: created.saturating_sub(1),
                sort_order: SortOrder::Descend.into(),
                ..oldest(prefix)
            };
            let Answer { revision, body } = self.range(newest_of_them).await?;
            let Some(older) = body.kvs.first() else { return Ok(()) };
            let watcher = self.watch(older.record().key, b"", revision)?;
            while !watcher.next().await?.events.iter().any(|(event, _)| event.is_delete) {}
        }
    }

    /// Makes sure that a key does not outlive a caller who waits no more.
    pub(super) fn guard(&self, key: Vec<u8>, created: i64) -> Guard {
        Guard { recipe: self.clone(), key, created, is_on: true }
    }
}

fn delete_if(key: &[u8], created: i64) -> Txn<'_> {
    let delete = DeleteRange { key, ..DeleteRange::default() };
    let success = vec![Op::DeleteRange(delete)];
    Txn { compare: vec![is_of(key, created)], success, failure: Vec::new() }
}

/// One watcher.
#[derive(Debug)]
pub(super) struct Watcher {
    watchers: Watch,
}

impl Watcher {
    /// Waits for the next events.
    pub(super) async fn next(&self) -> Result<Response, Status> {
        loop {
            let told = poll_fn(|context| self.watchers.poll_next(context)).await;
            let told = told.map_err(unknown)?;
            if told.compact_revision != 0 {
                return Err(unknown(Error::Refused(Refusal::Compacted)));
            }
            if told.canceled {
                let (_, text) = told.cancel_reason.rsplit_once("desc = ").unwrap_or_default();
                return Err(unknown(text));
            }
            if !told.events.is_empty() {
                return Ok(told);
            }
        }
    }
}

/// Deletes a key when it is dropped, if it is still the one that was created then.
#[derive(Debug)]
pub(super) struct Guard {
    recipe: Recipe,
    key: Vec<u8>,
    created: i64,
    is_on: bool,
}

impl Guard {
    /// Lets the key live on.
    pub(super) fn disarm(mut self) {
        self.is_on = false;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.is_on {
            let Recipe { store, who, .. } = &self.recipe;
            let body = Body::Txn(delete_if(&self.key, self.created));
            // Where it does not come to be, the key ends with its lease.
            let _ = Submission::try_from(body)
                .and_then(|request| store.submit(&who.caller(store)?, request));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_named_as_go_names_them() {
        assert_eq!(key(b"a/", 0x7b), b"a/7b");
        assert_eq!(key(b"a/", -1), b"a/-1");
        assert_eq!(end(b"a/"), b"a0");
        assert_eq!(end(b"\xff"), b"\0");
        assert_eq!(end(b"a\xff"), b"b");
    }
}
