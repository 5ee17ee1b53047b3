//! Keys: Range, RangeStream, Put, DeleteRange, Txn, Compact.

use bytes::Bytes;
use prost::Message as _;
use tonic::{Request, Response, Status};

use super::list::{List, PIECE_BYTES};
use super::parts::{Part, Parts, Source};
use super::status::{of_another_kind, status};
use super::{Shared, convert};
use crate::etcd::request::{Body, Compaction};
use crate::store::guard::{Caller, check_range_form};
use crate::store::open::Compat;
use crate::store::wire::etcdserverpb as pb;
use crate::store::wire::etcdserverpb::kv_server::Kv;
use crate::store::wire::etcdserverpb::range_request::{SortOrder, SortTarget};
use crate::store::wire::etcdserverpb::request_op::Request as RequestOp;
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
        let caller = self.caller_of(&request, |it| Body::Range(convert::range(it)))?;
        let message = request.into_inner();
        let is_small = is_small(&message);
        let read = move |store: &Store| store.range(&caller, &convert::range(&message));
        let Answer { revision, body } = if is_small {
            read(&self.store).map_err(|error| status(&error))?
        } else {
            self.aside(read).await?
        };
        let header = self.header(revision);
        if body.kvs.iter().map(|kv| kv.bytes().len()).sum::<usize>() < PIECE_BYTES {
            return Ok(Response::new(convert::range_response(header, &body)));
        }
        let mut response = Response::new(pb::RangeResponse::default());
        response.extensions_mut().insert(List::new(header, body)?);
        Ok(response)
    }

    type RangeStreamStream = Parts<Reading>;

    async fn range_stream(
        &self,
        request: Request<pb::RangeRequest>,
    ) -> Result<Response<Parts<Reading>>, Status> {
        if self.store.compat() == Compat::V3_6 {
            let text = "unknown method RangeStream for service etcdserverpb.KV";
            return Err(Status::unimplemented(text));
        }
        check_stream(request.get_ref())?;
        let caller = self.caller(&request)?;
        let reading = Reading {
            store: self.store.clone(),
            caller,
            header: self.header_without_revision(),
            part_bytes: self.options.request_bytes_max,
            limit: request.get_ref().limit.max(0),
            message: request.into_inner(),
            size: FIRST_PART,
            given: 0,
            start: None,
        };
        Ok(Response::new(Parts::of(reading, self.closed())))
    }

    async fn put(
        &self,
        request: Request<pb::PutRequest>,
    ) -> Result<Response<pb::PutResponse>, Status> {
        let caller = self.caller_of(&request, |it| Body::Put(convert::put(it)))?;
        let message = request.into_inner();
        match self.done(&caller, convert::put(&message)).await? {
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
        let caller = self.caller_of(&request, |it| Body::DeleteRange(convert::delete(it)))?;
        let message = request.into_inner();
        match self.done(&caller, convert::delete(&message)).await? {
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
        let caller = self.caller_of(&request, |it| Body::Txn(convert::txn(it)))?;
        let message = request.into_inner();
        if only_reads(&message) && !reads_little(&message) {
            let read = move |store: &Store| store.txn(&caller, convert::txn(&message));
            let Answer { revision, body } = self.aside(read).await?;
            return Ok(Response::new(convert::txn_response(self.header(revision), &body)));
        }
        match self.done(&caller, convert::txn(&message)).await? {
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
        let caller = self.caller(&request)?;
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

/// Tells whether a range is read in so little time that it is read where it stands. A limit makes
/// no range small whose records are all looked at before the first of them is known.
fn is_small(message: &pb::RangeRequest) -> bool {
    message.range_end.is_empty()
        || (is_in_key_order(message)
            && !has_filters(message)
            && (message.count_only || (1..=FEW).contains(&message.limit)))
}

/// Tells whether a transaction is answered at once, by whoever asks for it.
fn only_reads(message: &pb::TxnRequest) -> bool {
    let mut ops = message.success.iter().chain(&message.failure);
    ops.all(|op| matches!(op.request, Some(RequestOp::RequestRange(_))))
}

/// Tells whether all that a transaction may look at is small.
fn reads_little(message: &pb::TxnRequest) -> bool {
    let mut ops = message.success.iter().chain(&message.failure);
    message.compare.iter().all(|compare| compare.range_end.is_empty())
        && ops.all(|op| match &op.request {
            Some(RequestOp::RequestRange(range)) => is_small(range),
            _ => false,
        })
}

fn is_in_key_order(message: &pb::RangeRequest) -> bool {
    message.sort_order == i32::from(SortOrder::None)
        || (message.sort_order == i32::from(SortOrder::Ascend)
            && message.sort_target == i32::from(SortTarget::Key))
}

fn has_filters(message: &pb::RangeRequest) -> bool {
    let filters = [
        message.min_mod_revision,
        message.max_mod_revision,
        message.min_create_revision,
        message.max_create_revision,
    ];
    filters.into_iter().any(|filter| filter != 0)
}

/// Refuses ranges that are not read in the order of the keys.
fn check_stream(message: &pb::RangeRequest) -> Result<(), Status> {
    check_range_form(&convert::range(message)).map_err(|error| status(&error))?;
    if !is_in_key_order(message) {
        let text = "RangeStream does not support custom sort orders";
        return Err(Status::unimplemented(text));
    }
    if has_filters(message) {
        let text = "RangeStream does not support revision filters";
        return Err(Status::unimplemented(text));
    }
    Ok(())
}

/// A range that is read part by part, all at one revision.
#[derive(Debug)]
pub(super) struct Reading {
    store: Store,
    caller: Caller,
    header: pb::ResponseHeader,
    /// Bytes that a part is to have, about.
    part_bytes: usize,
    /// Records that are asked for; 0 for all.
    limit: i64,
    message: pb::RangeRequest,
    /// Records of the next part.
    size: i64,
    given: i64,
    /// Revision when the first part was read.
    start: Option<i64>,
}

impl Source for Reading {
    type Message = pb::RangeStreamResponse;

    fn read(&mut self) -> Result<Part<pb::RangeStreamResponse>, Status> {
        let left = self.limit.saturating_sub(self.given);
        self.message.limit = if self.limit == 0 { self.size } else { self.size.min(left) };
        let request = convert::range(&self.message);
        let Answer { revision, body } =
            self.store.range(&self.caller, &request).map_err(|error| status(&error))?;
        let start = *self.start.get_or_insert(revision);
        if self.message.revision <= 0 {
            self.message.revision = start;
        }
        let count = i64::try_from(body.kvs.len()).unwrap_or(i64::MAX);
        let is_last = !body.more || self.message.count_only || (self.limit > 0 && count >= left);
        let total = self.given.saturating_add(body.count);
        self.given = self.given.saturating_add(count);
        let next = body.kvs.last().map(|kv| [kv.record().key, &[0]].concat());
        let mut response = convert::range_response(None, &body);
        let bytes = response.encoded_len();
        response.count = 0;
        response.more = false;
        if is_last {
            response.header = Some(pb::ResponseHeader { revision: start, ..self.header });
            response.count = total;
            response.more = body.more;
        }
        self.message.key = next.map_or_else(Bytes::new, Bytes::from);
        self.size = match bytes {
            bytes if bytes < self.part_bytes / 2 => self.size.saturating_mul(2),
            bytes if bytes / 2 > self.part_bytes => (self.size / 2).max(1),
            _ => self.size,
        };
        let part = pb::RangeStreamResponse { range_response: Some(response) };
        Ok(Part { messages: vec![part], is_last })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(limit: i64) -> pb::RangeRequest {
        let (key, range_end) = (Bytes::from_static(b"a"), Bytes::from_static(b"b"));
        pb::RangeRequest { key, range_end, limit, ..Default::default() }
    }

    fn reading(range: pb::RangeRequest) -> pb::RequestOp {
        pb::RequestOp { request: Some(RequestOp::RequestRange(range)) }
    }

    #[test]
    fn a_range_is_small_where_its_limit_ends_it() {
        assert!(is_small(&range(1)) && is_small(&range(FEW)));
        assert!(!is_small(&range(0)) && !is_small(&range(FEW + 1)) && !is_small(&range(-1)));
        assert!(is_small(&pb::RangeRequest { count_only: true, ..range(0) }));
        assert!(is_small(&pb::RangeRequest { range_end: Bytes::new(), ..range(0) }));
        let (up, down) = (i32::from(SortOrder::Ascend), i32::from(SortOrder::Descend));
        assert!(is_small(&pb::RangeRequest { sort_order: up, ..range(1) }));
        let version = i32::from(SortTarget::Version);
        for large in [
            pb::RangeRequest { sort_order: down, ..range(1) },
            pb::RangeRequest { sort_order: up, sort_target: version, ..range(1) },
            pb::RangeRequest { sort_order: 7, ..range(1) },
            pb::RangeRequest { min_mod_revision: 1, ..range(1) },
            pb::RangeRequest { max_mod_revision: 1, ..range(1) },
            pb::RangeRequest { min_create_revision: 1, ..range(1) },
            pb::RangeRequest { max_create_revision: 1, ..range(1) },
        ] {
            assert!(!is_small(&large), "{large:?}");
        }
    }

    #[test]
    fn a_transaction_reads_little_where_all_in_it_is_small() {
        let small = pb::TxnRequest { success: vec![reading(range(1))], ..Default::default() };
        assert!(only_reads(&small) && reads_little(&small));
        let failure = vec![reading(range(0))];
        let large = pb::TxnRequest { failure, ..small.clone() };
        assert!(only_reads(&large) && !reads_little(&large));
        let compare = pb::Compare { range_end: Bytes::from_static(b"z"), ..Default::default() };
        let large = pb::TxnRequest { compare: vec![compare], ..small.clone() };
        assert!(only_reads(&large) && !reads_little(&large));
        let put = RequestOp::RequestPut(pb::PutRequest::default());
        let failure = vec![pb::RequestOp { request: Some(put) }];
        assert!(!only_reads(&pb::TxnRequest { failure, ..small }));
        assert!(!only_reads(&pb::TxnRequest {
            success: vec![pb::RequestOp { request: None }],
            ..Default::default()
        }));
    }
}
