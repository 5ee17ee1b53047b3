//! Keys: Range, RangeStream, Put, DeleteRange, Txn, Compact.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::mpsc;
use tonic::codegen::tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::Shared;
use super::convert;
use super::status::status;
use crate::etcd::request::{Compaction, Range};
use crate::store::guard::Caller;
use crate::store::open::Compat;
use crate::store::wire::etcdserverpb as pb;
use crate::store::wire::etcdserverpb::kv_server::Kv;
use crate::store::{Answer, Store, answer};

/// Records up to which a read is done where it stands: it takes less time than to hand it on.
const FEW: i64 = 64;
/// Records of the first part of a stream.
const FIRST_PART: i64 = 10;

#[tonic::async_trait]
impl Kv for Shared {
    async fn range(
        &self,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<pb::RangeResponse>, Status> {
        let caller = self.caller(request.metadata())?;
        let message = request.into_inner();
        let is_small = message.range_end.is_empty()
            || message.count_only
            || (1..=FEW).contains(&message.limit);
        let read = move |store: &Store| store.range(&caller, &convert::range(&message));
        let Answer { revision, body } = if is_small {
            read(&self.store).map_err(|error| status(&error))?
        } else {
            self.aside(read).await?
        };
        Ok(Response::new(convert::range_response(self.header(revision), &body)))
    }

    type RangeStreamStream = Parts;

    async fn range_stream(
        &self,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<Parts>, Status> {
        if self.store.compat() == Compat::V3_6 {
            let text = "unknown method RangeStream for service etcdserverpb.KV";
            return Err(Status::unimplemented(text));
        }
        let caller = self.caller(request.metadata())?;
        let message = request.into_inner();
        let sorts = message.sort_target != 0 || message.sort_order > 1;
        if sorts {
            let text = "RangeStream does not support custom sort orders";
            return Err(Status::unimplemented(text));
        }
        let filters = [
            message.min_mod_revision,
            message.max_mod_revision,
            message.min_create_revision,
            message.max_create_revision,
        ];
        if filters.into_iter().any(|filter| filter != 0) {
            let text = "RangeStream does not support revision filters";
            return Err(Status::unimplemented(text));
        }
        // One part waits while its predecessor is on its way, no more.
        let (parts, waiting) = mpsc::channel(1);
        let header = self.header_without_revision();
        let part_bytes = self.options.request_bytes_max;
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || {
            let mut reading = Reading { store, caller, header, part_bytes, message };
            if let Err(status) = reading.give(&parts) {
                // The client may be gone.
                let _ = parts.blocking_send(Err(status));
            }
        });
        Ok(Response::new(Parts(waiting)))
    }

    async fn put(
        &self,
        request: Request<pb::PutRequest>,
    ) -> Result<Response<pb::PutResponse>, Status> {
        let caller = self.caller(request.metadata())?;
        let message = request.into_inner();
        let pending = self.store.submit(&caller, convert::put(&message));
        match self.answer(pending.map_err(|error| status(&error))?).await? {
            Answer { revision, body: answer::Body::Put(body) } => {
                Ok(Response::new(convert::put_response(self.header(revision), &body)))
            }
            _ => Err(of_another_kind()),
        }
    }

    async fn delete_range(
        &self,
        request: Request<pb::DeleteRangeRequest>,
    ) -> Result<Response<pb::DeleteRangeResponse>, Status> {
        let caller = self.caller(request.metadata())?;
        let message = request.into_inner();
        let pending = self.store.submit(&caller, convert::delete(&message));
        match self.answer(pending.map_err(|error| status(&error))?).await? {
            Answer { revision, body: answer::Body::DeleteRange(body) } => {
                Ok(Response::new(convert::delete_response(self.header(revision), &body)))
            }
            _ => Err(of_another_kind()),
        }
    }

    async fn txn(
        &self,
        request: Request<pb::TxnRequest>,
    ) -> Result<Response<pb::TxnResponse>, Status> {
        let caller = self.caller(request.metadata())?;
        let message = request.into_inner();
        let pending = self.store.submit(&caller, convert::txn(&message));
        match self.answer(pending.map_err(|error| status(&error))?).await? {
            Answer { revision, body: answer::Body::Txn(body) } => {
                Ok(Response::new(convert::txn_response(self.header(revision), &body)))
            }
            _ => Err(of_another_kind()),
        }
    }

    async fn compact(
        &self,
        request: Request<pb::CompactionRequest>,
    ) -> Result<Response<pb::CompactionResponse>, Status> {
        let caller = self.caller(request.metadata())?;
        let pb::CompactionRequest { revision, physical } = request.into_inner();
        let pending = self.store.submit(&caller, Compaction { revision, physical });
        let pending = pending.map_err(|error| status(&error))?;
        // A physical one is done when the rows are gone, however long that takes.
        let Answer { revision, .. } = if physical {
            self.store.settle(pending.await).map_err(|error| status(&error))?.answer
        } else {
            self.answer(pending).await?
        };
        Ok(Response::new(pb::CompactionResponse { header: self.header(revision) }))
    }
}

fn of_another_kind() -> Status {
    Status::unknown("the state answered another request")
}

/// The parts of a range, as they are read.
#[derive(Debug)]
pub(super) struct Parts(mpsc::Receiver<Result<pb::RangeStreamResponse, Status>>);

impl Stream for Parts {
    type Item = Result<pb::RangeStreamResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// A range that is read part by part, all at one revision.
struct Reading {
    store: Store,
    caller: Caller,
    header: pb::ResponseHeader,
    part_bytes: usize,
    message: pb::RangeRequest,
}

impl Reading {
    /// Gives parts until all is given, or nobody takes them.
    fn give(
        &mut self,
        parts: &mpsc::Sender<Result<pb::RangeStreamResponse, Status>>,
    ) -> Result<(), Status> {
        let limit = self.message.limit.max(0);
        let mut size = FIRST_PART;
        let mut given = 0_i64;
        let mut start = None;
        loop {
            let left = limit.saturating_sub(given);
            self.message.limit = if limit == 0 { size } else { size.min(left) };
            let request: Range<'_> = convert::range(&self.message);
            let read = self.store.range(&self.caller, &request).map_err(|error| status(&error))?;
            let Answer { revision, body } = read;
            let start = *start.get_or_insert(revision);
            if self.message.revision <= 0 {
                self.message.revision = revision;
            }
            let count = i64::try_from(body.kvs.len()).unwrap_or(i64::MAX);
            let is_last = !body.more || self.message.count_only || (limit > 0 && count >= left);
            let total = given.saturating_add(body.count);
            given = given.saturating_add(count);
            let bytes = body.kvs.iter().map(|kv| kv.bytes().len()).fold(0, usize::saturating_add);
            let next = body.kvs.last().map(|kv| [kv.record().key, &[0]].concat());
            let mut response = convert::range_response(None, &body);
            response.count = 0;
            response.more = false;
            if is_last {
                response.header = Some(pb::ResponseHeader { revision: start, ..self.header });
                response.count = total;
                response.more = body.more;
            }
            let part = pb::RangeStreamResponse { range_response: Some(response) };
            if parts.blocking_send(Ok(part)).is_err() || is_last {
                return Ok(());
            }
            self.message.key = next.map_or_else(Bytes::new, Bytes::from);
            size = match bytes {
                bytes if bytes < self.part_bytes / 2 => size.saturating_mul(2),
                bytes if bytes / 2 > self.part_bytes => (size / 2).max(1),
                _ => size,
            };
        }
    }
}
