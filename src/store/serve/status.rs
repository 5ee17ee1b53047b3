//! The store's errors as gRPC's, who calls, and the header of every answer.

use std::fmt;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};

use super::Shared;
use super::tls::Peer;
use crate::etcd::request::Body;
use crate::store::engine::{Outcome, Submission};
use crate::store::guard::Caller;
use crate::store::pending::Pending;
use crate::store::wire::etcdserverpb::ResponseHeader;
use crate::store::{Answer, Error, Store};

/// Turns an error of the store into what a client sees.
pub(super) fn status(error: &Error) -> Status {
    Status::new(Code::from_i32(error.code() as i32), error.to_string())
}

/// Says that an answer is none to its request.
pub(super) fn of_another_kind() -> Status {
    Status::unknown("the state answered another request")
}

/// What a call says of who makes it, for calls that are asked about it more than once: a token may
/// end while a stream goes on.
#[derive(Clone, Default)]
pub(super) struct Credentials {
    token: Option<String>,
    common_name: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Credentials {
    pub(super) fn of<T>(request: &Request<T>) -> Self {
        Self {
            token: token(request.metadata()).map(str::to_owned),
            common_name: common_name(request).map(str::to_owned),
        }
    }

    /// Finds out who calls, now.
    pub(super) fn caller(&self, store: &Store) -> Result<Caller, Error> {
        find(store, self.token.as_deref(), self.common_name.as_deref())
    }
}

/// Finds the user of a token or, without one, of a certificate.
fn find(store: &Store, token: Option<&str>, common_name: Option<&str>) -> Result<Caller, Error> {
    match (token, common_name) {
        (None, Some(name)) => Ok(store.caller_named(name)),
        (token, _) => store.caller(token),
    }
}

impl Shared {
    /// Finds out who calls: the user of the token or of the certificate, while auth is on.
    pub(super) fn caller<T>(&self, request: &Request<T>) -> Result<Caller, Status> {
        find(&self.store, token(request.metadata()), common_name(request))
            .map_err(|error| status(&error))
    }

    /// Finds out who calls, for a request whose form is told of first if both are wrong.
    pub(super) fn caller_of<'a, T>(
        &self,
        request: &'a Request<T>,
        body: impl FnOnce(&'a T) -> Body<'a>,
    ) -> Result<Caller, Status> {
        self.caller(request).map_err(|refused| {
            let checked = self.store.check_form(&body(request.get_ref()));
            checked.err().map_or(refused, |error| status(&error))
        })
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

    /// Makes a request and waits for its answer.
    pub(super) async fn done<'a>(
        &self,
        caller: &Caller,
        request: impl Into<Submission<'a>>,
    ) -> Result<Answer, Status> {
        let pending = self.store.submit(caller, request).map_err(|error| status(&error))?;
        self.answer(pending).await
    }

    /// Waits for what comes of a request, as long as the store lets callers wait.
    pub(super) async fn answer(&self, pending: Pending<Outcome>) -> Result<Answer, Status> {
        answer(&self.store, pending).await
    }

    /// Does what may take long, or waits, on a thread where nobody else waits for it.
    pub(super) async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Status> {
        let store = self.store.clone();
        let done = tokio::task::spawn_blocking(move || work(&store)).await;
        done.map_err(|_| given_up())?.map_err(|error| status(&error))
    }

    /// The same for work of which only so much is done at once: the rest of it waits without a
    /// thread, so that others find one.
    pub(super) async fn aside_in_turn<T: Send + 'static>(
        &self,
        turns: &Arc<Semaphore>,
        work: impl FnOnce(&Store) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Status> {
        // The semaphore is never closed.
        let turn = Arc::clone(turns).acquire_owned().await.ok();
        // The turn is over when the work is, not when its client is gone.
        self.aside(move |store| {
            let _turn = turn;
            work(store)
        })
        .await
    }
}

/// Waits for what comes of a request, as long as the store lets callers wait.
pub(super) async fn answer(store: &Store, pending: Pending<Outcome>) -> Result<Answer, Status> {
    let outcome = tokio::time::timeout(store.request_timeout(), pending).await;
    let outcome = outcome.map_err(|_| status(&Error::Timeout))?;
    let done = store.settle(outcome).map_err(|error| status(&error))?;
    Ok(done.answer)
}

/// Says that work on another thread ended before it was done.
pub(super) fn given_up() -> Status {
    Status::internal("the request was given up")
}

/// Returns the token of a call, under either of its names. One that is no text is none that is
/// valid.
fn token(metadata: &MetadataMap) -> Option<&str> {
    let value = metadata.get("token").or_else(|| metadata.get("authorization"))?;
    let value = value.to_str().unwrap_or_default();
    Some(value.strip_prefix("Bearer ").unwrap_or(value))
}

/// Returns the name in the client's certificate, where it says who the client is. A gateway's
/// certificate says nothing of the gateway's client.
fn common_name<T>(request: &Request<T>) -> Option<&str> {
    if request.metadata().contains_key("grpcgateway-accept") {
        return None;
    }
    request.extensions().get::<Arc<Peer>>()?.common_name.as_deref()
}
