//! The store's errors as gRPC's, who calls, and the header of every answer.

use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::Shared;
use crate::store::engine::Outcome;
use crate::store::guard::Caller;
use crate::store::pending::Pending;
use crate::store::wire::etcdserverpb::ResponseHeader;
use crate::store::{Answer, Error};

/// Turns an error of the store into what a client sees.
pub(super) fn status(error: &Error) -> Status {
    Status::new(Code::from_i32(error.code() as i32), error.to_string())
}

impl Shared {
    /// Finds out who calls: the user of the token, if there is one and auth is on.
    pub(super) fn caller(&self, metadata: &MetadataMap) -> Result<Caller, Status> {
        check_version(metadata)?;
        self.store.caller(token(metadata)).map_err(|error| status(&error))
    }

    /// Returns the header of an answer; revision 0 stands for the current one.
    pub(super) fn header(&self, revision: i64) -> Option<ResponseHeader> {
        let revision = if revision == 0 { self.store.revision() } else { revision };
        Some(ResponseHeader { revision, ..self.header_without_revision() })
    }

    /// Returns the header that answers about the cluster have.
    pub(super) fn header_without_revision(&self) -> ResponseHeader {
        ResponseHeader {
            cluster_id: self.store.cluster_id().0,
            member_id: self.store.member_id().0,
            revision: 0,
            raft_term: self.store.raft_term(),
        }
    }

    /// Waits for what comes of a request, as long as the store lets callers wait.
    pub(super) async fn answer(&self, pending: Pending<Outcome>) -> Result<Answer, Status> {
        let limit = self.store.request_timeout();
        let outcome = tokio::time::timeout(limit, pending).await;
        let outcome = outcome.map_err(|_| status(&Error::Timeout))?;
        let done = self.store.settle(outcome).map_err(|error| status(&error))?;
        Ok(done.answer)
    }

    /// Does what may take long, or waits, on a thread where nobody else waits for it.
    pub(super) async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&crate::store::Store) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Status> {
        let store = self.store.clone();
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        let done = done.map_err(|_| Status::internal("the request was given up"))?;
        done.map_err(|error| status(&error))
    }
}

/// Returns the token of a call, under either of its names.
fn token(metadata: &MetadataMap) -> Option<&str> {
    let value = metadata.get("token").or_else(|| metadata.get("authorization"))?;
    let value = value.to_str().ok()?;
    Some(value.strip_prefix("Bearer ").unwrap_or(value))
}

fn check_version(metadata: &MetadataMap) -> Result<(), Status> {
    let version = metadata.get("client-api-version");
    if version.is_some_and(|version| std::str::from_utf8(version.as_encoded_bytes()).is_err()) {
        return Err(Status::invalid_argument("etcdserver: invalid client api version"));
    }
    Ok(())
}
