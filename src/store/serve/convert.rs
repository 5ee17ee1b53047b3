//! The store's requests from messages, and messages from its answers.

use bytes::Bytes;

use crate::etcd::request::{Compare, DeleteRange, Op, Operand, Put, Range, Txn};
use crate::store::answer;
use crate::store::kv::{Event, Kv};
use crate::store::wire::etcdserverpb as pb;
use crate::store::wire::mvccpb;

/// etcd's enums may hold any number on the wire.
pub(super) fn number(value: i32) -> u64 {
    i64::from(value).cast_unsigned()
}

pub(super) fn range(message: &pb::RangeRequest) -> Range<'_> {
    Range {
        key: &message.key,
        range_end: &message.range_end,
        limit: message.limit,
        revision: message.revision,
        sort_order: number(message.sort_order),
        sort_target: number(message.sort_target),
        serializable: message.serializable,
        keys_only: message.keys_only,
        count_only: message.count_only,
        min_mod_revision: message.min_mod_revision,
        max_mod_revision: message.max_mod_revision,
        min_create_revision: message.min_create_revision,
        max_create_revision: message.max_create_revision,
    }
}

pub(super) fn put(message: &pb::PutRequest) -> Put<'_> {
    Put {
        key: &message.key,
        value: &message.value,
        lease: message.lease,
        prev_kv: message.prev_kv,
        ignore_value: message.ignore_value,
        ignore_lease: message.ignore_lease,
    }
}

pub(super) fn delete(message: &pb::DeleteRangeRequest) -> DeleteRange<'_> {
    DeleteRange { key: &message.key, range_end: &message.range_end, prev_kv: message.prev_kv }
}

/// prost reads no message that is nested deeper than a hundred times, which bounds this.
pub(super) fn txn(message: &pb::TxnRequest) -> Txn<'_> {
    Txn {
        compare: message.compare.iter().map(compare).collect(),
        success: message.success.iter().map(op).collect(),
        failure: message.failure.iter().map(op).collect(),
    }
}

fn compare(message: &pb::Compare) -> Compare<'_> {
    use pb::compare::TargetUnion as U;
    Compare {
        result: number(message.result),
        target: number(message.target),
        key: &message.key,
        operand: message.target_union.as_ref().map(|operand| match operand {
            U::Version(n) => Operand::Version(*n),
            U::CreateRevision(n) => Operand::CreateRevision(*n),
            U::ModRevision(n) => Operand::ModRevision(*n),
            U::Value(bytes) => Operand::Value(bytes),
            U::Lease(n) => Operand::Lease(*n),
        }),
        range_end: &message.range_end,
    }
}

fn op(message: &pb::RequestOp) -> Op<'_> {
    use pb::request_op::Request as R;
    match &message.request {
        None => Op::Nothing,
        Some(R::RequestRange(message)) => Op::Range(range(message)),
        Some(R::RequestPut(message)) => Op::Put(put(message)),
        Some(R::RequestDeleteRange(message)) => Op::DeleteRange(delete(message)),
        Some(R::RequestTxn(message)) => Op::Txn(txn(message)),
    }
}

/// Shares the record's bytes.
pub(super) fn kv(kv: &Kv) -> mvccpb::KeyValue {
    let record = kv.record();
    let share =
        |part: &[u8]| if part.is_empty() { Bytes::new() } else { kv.bytes().slice_ref(part) };
    mvccpb::KeyValue {
        key: share(record.key),
        create_revision: record.create_revision,
        mod_revision: record.mod_revision,
        version: record.version,
        value: share(record.value),
        lease: record.lease,
    }
}

pub(super) fn event(event: &Event, prev_kv: Option<&Kv>) -> mvccpb::Event {
    mvccpb::Event {
        r#type: i32::from(event.is_delete),
        kv: Some(kv(&event.kv)),
        prev_kv: prev_kv.map(kv),
    }
}

pub(super) fn range_response(
    header: Option<pb::ResponseHeader>,
    answer: &answer::Range,
) -> pb::RangeResponse {
    pb::RangeResponse {
        header,
        kvs: answer.kvs.iter().map(kv).collect(),
        more: answer.more,
        count: answer.count,
    }
}

pub(super) fn put_response(
    header: Option<pb::ResponseHeader>,
    answer: &answer::Put,
) -> pb::PutResponse {
    pb::PutResponse { header, prev_kv: answer.prev_kv.as_ref().map(kv) }
}

pub(super) fn delete_response(
    header: Option<pb::ResponseHeader>,
    answer: &answer::DeleteRange,
) -> pb::DeleteRangeResponse {
    pb::DeleteRangeResponse {
        header,
        deleted: answer.deleted,
        prev_kvs: answer.prev_kvs.iter().map(kv).collect(),
    }
}

pub(super) fn txn_response(
    header: Option<pb::ResponseHeader>,
    answer: &answer::Txn,
) -> pb::TxnResponse {
    pb::TxnResponse {
        header,
        succeeded: answer.succeeded,
        responses: answer.responses.iter().map(response_op).collect(),
    }
}

/// The header of an operation has a revision and nothing else; that of a transaction inside one is
/// empty.
fn response_op(response: &answer::Response) -> pb::ResponseOp {
    use pb::response_op::Response as R;
    let header = Some(pb::ResponseHeader { revision: response.revision, ..Default::default() });
    let response = match &response.op {
        answer::Op::Nothing => None,
        answer::Op::Range(range) => Some(R::ResponseRange(range_response(header, range))),
        answer::Op::Put(put) => Some(R::ResponsePut(put_response(header, put))),
        answer::Op::DeleteRange(delete) => {
            Some(R::ResponseDeleteRange(delete_response(header, delete)))
        }
        answer::Op::Txn(txn) => Some(R::ResponseTxn(txn_response(header, txn))),
    };
    pb::ResponseOp { response }
}
