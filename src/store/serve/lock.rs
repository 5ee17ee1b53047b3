//! Locks: Lock, Unlock.
//!
//! Source: etcd `v3lock/lock.go`, `client/v3/concurrency/mutex.go`, 3.6.16, 3.7.3.

use bytes::Bytes;
use tonic::{Request, Response, Status};

use super::recipe::{self, unknown};
use super::status::status;
use super::{Shared, convert};
use crate::etcd::request::{Op, Put, Txn};
use crate::store::Error;
use crate::store::wire::v3lockpb as pb;
use crate::store::wire::v3lockpb::lock_server::Lock;

#[tonic::async_trait]
impl Lock for Shared {
    async fn lock(
        &self,
        request: Request<pb::LockRequest>,
    ) -> Result<Response<pb::LockResponse>, Status> {
        let closed = self.closed();
        tokio::select! {
            locked = self.lock_or_wait(request) => locked.map(Response::new),
            () = closed => Err(status(&Error::Stopped)),
        }
    }

    async fn unlock(
        &self,
        request: Request<pb::UnlockRequest>,
    ) -> Result<Response<pb::UnlockResponse>, Status> {
        let recipe = self.recipe(&request)?;
        let revision = recipe.delete(&request.get_ref().key).await?;
        Ok(Response::new(pb::UnlockResponse { header: recipe.header(revision) }))
    }
}

impl Shared {
    async fn lock_or_wait(
        &self,
        request: Request<pb::LockRequest>,
    ) -> Result<pb::LockResponse, Status> {
        let recipe = self.recipe(&request)?;
        let pb::LockRequest { name, lease } = request.into_inner();
        let lease = recipe.lease(lease).await?;
        let prefix = recipe::prefix(&name);
        let key = recipe::key(&prefix, lease);
        let (get, oldest) = (recipe::one(&key), recipe::oldest(&prefix));
        let oldest = Op::Range(convert::range(&oldest));
        let txn = Txn {
            compare: vec![recipe::is_of(&key, 0)],
            success: vec![Op::Put(Put { key: &key, lease, ..Put::default() }), oldest.clone()],
            failure: vec![Op::Range(convert::range(&get)), oldest],
        };
        let done = recipe.txn(txn).await?;
        let old = if done.body.succeeded { None } else { recipe::read(&done.body, 0).first() };
        let created = old.map_or(done.revision, |old| old.record().create_revision);
        let holder = recipe::read(&done.body, 1).first();
        let key = Bytes::from(key);
        if holder.is_none_or(|holder| holder.record().create_revision == created) {
            return Ok(pb::LockResponse { header: recipe.header(done.revision), key });
        }
        let guard = recipe.guard(key.to_vec(), created);
        recipe.older_gone(&prefix, created).await?;
        let mine = recipe.range(recipe::one(&key)).await?;
        guard.disarm();
        if mine.body.kvs.is_empty() {
            return Err(unknown("mutex: session is expired"));
        }
        Ok(pb::LockResponse { header: recipe.header(mine.revision), key })
    }
}
