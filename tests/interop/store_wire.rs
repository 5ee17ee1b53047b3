//! Asks a real etcd with the very bytes of a request, and reads its answer into the shape in which
//! a store and the model answer.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes};
use etcdkit::etcd::record::KeyValue;
use etcdkit::format::pb;
use etcdkit::store::{Kv, answer};
use prost::Message;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

use crate::store_model::{Reply, Said};
use crate::store_requests::Ask;

/// Longest wait for an answer.
const WAIT: Duration = Duration::from_secs(20);

/// Passes bytes through.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

#[derive(Clone, PartialEq, Message)]
struct Header {
    #[prost(int64, tag = "3")]
    revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct RangeAnswer {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    kvs: Vec<Vec<u8>>,
    #[prost(bool, tag = "3")]
    more: bool,
    #[prost(int64, tag = "4")]
    count: i64,
}

#[derive(Clone, PartialEq, Message)]
struct PutAnswer {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(bytes = "vec", optional, tag = "2")]
    prev_kv: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct DeleteAnswer {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(int64, tag = "2")]
    deleted: i64,
    #[prost(bytes = "vec", repeated, tag = "3")]
    prev_kvs: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct TxnAnswer {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(bool, tag = "2")]
    succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    responses: Vec<OpAnswer>,
}

#[derive(Clone, PartialEq, Message)]
struct OpAnswer {
    #[prost(message, optional, tag = "1")]
    range: Option<RangeAnswer>,
    #[prost(message, optional, tag = "2")]
    put: Option<PutAnswer>,
    #[prost(message, optional, tag = "3")]
    delete: Option<DeleteAnswer>,
    #[prost(message, optional, tag = "4")]
    txn: Option<TxnAnswer>,
}

/// Of a lease that was granted, and of everything that has a header only.
#[derive(Clone, PartialEq, Message)]
struct LeaseAnswer {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(int64, tag = "2")]
    id: i64,
    #[prost(int64, tag = "3")]
    ttl_s: i64,
}

#[derive(Clone, PartialEq, Message)]
struct AlarmAnswer {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    alarms: Vec<AlarmOf>,
}

#[derive(Clone, PartialEq, Message)]
struct AlarmOf {
    #[prost(uint64, tag = "1")]
    member: u64,
    #[prost(uint64, tag = "2")]
    kind: u64,
}

#[derive(Clone, PartialEq, Message)]
struct HashKvRequest {
    #[prost(int64, tag = "1")]
    revision: i64,
}

#[derive(Clone, PartialEq, Message)]
struct HashKvAnswer {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    #[prost(uint32, tag = "2")]
    hash: u32,
    #[prost(int64, tag = "3")]
    compact_revision: i64,
}

/// A connection to a real etcd.
pub(crate) struct Wire {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
}

/// An answer, or the code and the words of a refusal.
pub(crate) type Heard = Result<(i64, Reply), (i32, String)>;

/// What a store or the model says, as it would be heard.
pub(crate) fn heard(said: Said) -> Heard {
    said.map_err(|error| (error.code() as i32, error.to_string()))
}

impl Wire {
    pub(crate) fn connect(endpoint: &str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let endpoint = Endpoint::from_shared(endpoint.to_owned()).expect("an endpoint");
        let channel = runtime.block_on(endpoint.timeout(WAIT).connect()).expect("a connection");
        Self { runtime, channel }
    }

    fn call(&self, path: &'static str, message: Vec<u8>) -> Result<Bytes, Status> {
        self.runtime.block_on(async {
            let mut client = tonic::client::Grpc::new(self.channel.clone());
            client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
            client.unary(Request::new(message), path, Raw).await.map(tonic::Response::into_inner)
        })
    }

    /// HashKV and the compact revision.
    pub(crate) fn hash_kv(&self, revision: i64) -> (u32, i64) {
        let message = HashKvRequest { revision }.encode_to_vec();
        let bytes = self.call("/etcdserverpb.Maintenance/HashKV", message).expect("a hash");
        let answer = HashKvAnswer::decode(bytes).expect("a hash");
        (answer.hash, answer.compact_revision)
    }

    /// The sum of all buckets.
    pub(crate) fn hash(&self) -> u32 {
        let bytes = self.call("/etcdserverpb.Maintenance/Hash", Vec::new()).expect("a hash");
        HashKvAnswer::decode(bytes).expect("a hash").hash
    }

    /// Asks for what a store would be asked for.
    pub(crate) fn ask(&self, ask: &Ask) -> Heard {
        let mut fields = pb::fields(ask.bytes()).map(|field| field.expect("a field"));
        let field = fields.find(|field| field.number != 100).expect("a request");
        let message = field.bytes().expect("a message").to_vec();
        let call = |path| self.call(path, message.clone());
        let said = match field.number {
            3 => call("/etcdserverpb.KV/Range").map(|bytes| {
                let answer: RangeAnswer = read(bytes);
                (revision(&answer.header), Reply::Range(range(answer)))
            }),
            4 => call("/etcdserverpb.KV/Put").map(|bytes| {
                let answer: PutAnswer = read(bytes);
                (revision(&answer.header), Reply::Other(answer::Body::Put(put(answer))))
            }),
            5 => call("/etcdserverpb.KV/DeleteRange").map(|bytes| {
                let answer: DeleteAnswer = read(bytes);
                (revision(&answer.header), Reply::Other(answer::Body::DeleteRange(delete(answer))))
            }),
            6 => call("/etcdserverpb.KV/Txn").map(|bytes| {
                let answer: TxnAnswer = read(bytes);
                (revision(&answer.header), Reply::Other(answer::Body::Txn(txn(answer))))
            }),
            8 => call("/etcdserverpb.Lease/LeaseGrant").map(|bytes| {
                let answer: LeaseAnswer = read(bytes);
                let (id, ttl_s) = (answer.id, answer.ttl_s);
                let body = answer::Body::LeaseGrant { id, ttl_s };
                (revision(&answer.header), Reply::Other(body))
            }),
            10 => call("/etcdserverpb.Maintenance/Alarm").map(|bytes| {
                let answer: AlarmAnswer = read(bytes);
                let alarms = answer.alarms.iter().map(|alarm| (alarm.member, alarm.kind));
                let mut alarms: Vec<_> = alarms.collect();
                alarms.sort_unstable();
                (revision(&answer.header), Reply::Other(answer::Body::Alarms(alarms)))
            }),
            7 | 9 => {
                let compacts = field.number == 7;
                let path = if compacts {
                    "/etcdserverpb.KV/Compact"
                } else {
                    "/etcdserverpb.Lease/LeaseRevoke"
                };
                call(path).map(|bytes| {
                    let answer: LeaseAnswer = read(bytes);
                    (revision(&answer.header), Reply::Other(answer::Body::Done))
                })
            }
            other => panic!("no call for field {other}"),
        };
        said.map_err(|status| (i32::from(status.code()), status.message().to_owned()))
    }
}

fn read<M: Message + Default>(bytes: Bytes) -> M {
    M::decode(bytes).expect("an answer")
}

fn revision(header: &Option<Header>) -> i64 {
    header.as_ref().map_or(0, |header| header.revision)
}

/// A record in the one form in which we compare it.
fn kv(bytes: &[u8]) -> Kv {
    Kv::encode(&KeyValue::decode(bytes).expect("a record"))
}

fn range(answer: RangeAnswer) -> answer::Range {
    let kvs = answer.kvs.iter().map(|bytes| kv(bytes)).collect();
    answer::Range { kvs, more: answer.more, count: answer.count }
}

fn put(answer: PutAnswer) -> answer::Put {
    answer::Put { prev_kv: answer.prev_kv.as_deref().map(kv) }
}

fn delete(answer: DeleteAnswer) -> answer::DeleteRange {
    let prev_kvs = answer.prev_kvs.iter().map(|bytes| kv(bytes)).collect();
    answer::DeleteRange { deleted: answer.deleted, prev_kvs }
}

fn txn(answer: TxnAnswer) -> answer::Txn {
    let op = |op: OpAnswer| match op {
        OpAnswer { range: Some(answer), .. } => answer::Response {
            revision: revision(&answer.header),
            op: answer::Op::Range(range(answer)),
        },
        OpAnswer { put: Some(answer), .. } => answer::Response {
            revision: revision(&answer.header),
            op: answer::Op::Put(put(answer)),
        },
        OpAnswer { delete: Some(answer), .. } => answer::Response {
            revision: revision(&answer.header),
            op: answer::Op::DeleteRange(delete(answer)),
        },
        OpAnswer { txn: Some(answer), .. } => answer::Response {
            revision: revision(&answer.header),
            op: answer::Op::Txn(txn(answer)),
        },
        _ => answer::Response::default(),
    };
    answer::Txn {
        succeeded: answer.succeeded,
        responses: answer.responses.into_iter().map(op).collect(),
    }
}
