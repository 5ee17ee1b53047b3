use etcd_client::{
    CompactionOptions, Compare, CompareOp, DeleteOptions, GetOptions, PutOptions, SortOrder,
    SortTarget, Txn, TxnOp, TxnOpResponse,
};
use prost::bytes::Bytes;
use tonic_prost::ProstCodec;

use super::*;
use crate::store::Compat;
use crate::store::wire::etcdserverpb as pb;

#[test]
fn keys_are_put_read_and_deleted() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        let put = client.put("a", "1", None).await.unwrap();
        let header = put.header().unwrap();
        assert_eq!(header.revision(), 2);
        assert_eq!(header.member_id(), served.store.member_id().0);
        assert_eq!(header.cluster_id(), served.store.cluster_id().0);
        assert_eq!(header.raft_term(), served.store.raft_term());
        let options = PutOptions::new().with_prev_key();
        let put = client.put("a", "2", Some(options)).await.unwrap();
        assert_eq!(put.prev_key().unwrap().value(), b"1");

        client.put("b", "3", None).await.unwrap();
        let options = GetOptions::new().with_prefix().with_limit(1);
        let read = client.get("", Some(options)).await.unwrap();
        assert_eq!((read.count(), read.more(), read.kvs().len()), (2, true, 1));
        let kv = &read.kvs()[0];
        assert_eq!((kv.key(), kv.value(), kv.version()), (&b"a"[..], &b"2"[..], 2));
        assert_eq!((kv.create_revision(), kv.mod_revision()), (2, 3));
        let options = GetOptions::new().with_prefix();
        let options = options.with_sort(SortTarget::Mod, SortOrder::Descend);
        let read = client.get("", Some(options)).await.unwrap();
        assert_eq!(read.kvs()[0].key(), b"b");
        let old = client.get("a", Some(GetOptions::new().with_revision(2))).await.unwrap();
        assert_eq!(old.kvs()[0].value(), b"1");
        assert_eq!(old.header().unwrap().revision(), 4, "the current one");

        let options = DeleteOptions::new().with_prev_key().with_prefix();
        let gone = client.delete("", Some(options)).await.unwrap();
        assert_eq!((gone.deleted(), gone.prev_kvs().len()), (2, 2));
        assert_eq!(client.get("a", None).await.unwrap().count(), 0);

        let empty = refused(client.put("", "1", None).await);
        assert_eq!(empty, (Code::InvalidArgument, "etcdserver: key is not provided".into()));
        let ahead = client.get("a", Some(GetOptions::new().with_revision(99))).await;
        let text = "etcdserver: mvcc: required revision is a future revision";
        assert_eq!(refused(ahead), (Code::OutOfRange, text.into()));
        let lease = client.put("a", "1", Some(PutOptions::new().with_lease(77))).await;
        let text = "etcdserver: requested lease not found";
        assert_eq!(refused(lease), (Code::NotFound, text.into()));
    });
}

#[test]
fn a_transaction_does_one_of_its_lists() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        client.put("a", "1", None).await.unwrap();
        let txn = || {
            Txn::new()
                .when([Compare::value("a", CompareOp::Equal, "1")])
                .and_then([TxnOp::put("a", "2", None), TxnOp::get("a", None)])
                .or_else([TxnOp::delete("a", None)])
        };
        let done = client.txn(txn()).await.unwrap();
        assert!(done.succeeded());
        let responses = done.op_responses();
        let TxnOpResponse::Get(read) = &responses[1] else { panic!("{responses:?}") };
        assert_eq!(read.kvs()[0].value(), b"2");
        let header = read.header().unwrap();
        assert_eq!((header.revision(), header.cluster_id(), header.member_id()), (3, 0, 0));
        let done = client.txn(txn()).await.unwrap();
        assert!(!done.succeeded());
        let responses = done.op_responses();
        assert!(matches!(&responses[0], TxnOpResponse::Delete(gone) if gone.deleted() == 1));

        let twice = Txn::new().and_then([TxnOp::put("a", "1", None), TxnOp::put("a", "2", None)]);
        let text = "etcdserver: duplicate key given in txn request";
        assert_eq!(refused(client.txn(twice).await), (Code::InvalidArgument, text.into()));
        let many = Txn::new().and_then(vec![TxnOp::get("a", None); 129]);
        let text = "etcdserver: too many operations in txn request";
        assert_eq!(refused(client.txn(many).await), (Code::InvalidArgument, text.into()));
    });
}

#[test]
fn history_is_compacted() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        for i in 0..10 {
            client.put("a", i.to_string(), None).await.unwrap();
        }
        let options = CompactionOptions::new().with_physical();
        let done = client.compact(8, Some(options)).await.unwrap();
        assert_eq!(done.header().unwrap().revision(), 11);
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        let old = client.get("a", Some(GetOptions::new().with_revision(7))).await;
        assert_eq!(refused(old), (Code::OutOfRange, compacted.into()));
        let at = client.get("a", Some(GetOptions::new().with_revision(8))).await.unwrap();
        assert_eq!(at.kvs()[0].value(), b"6");
        assert_eq!(refused(client.compact(8, None).await), (Code::OutOfRange, compacted.into()));
        let future = "etcdserver: mvcc: required revision is a future revision";
        assert_eq!(refused(client.compact(12, None).await), (Code::OutOfRange, future.into()));
    });
}

/// Reads a range as a stream; returns its parts.
async fn stream(
    served: &Served,
    request: pb::RangeRequest,
) -> Result<Vec<pb::RangeResponse>, Status> {
    let mut client = tonic::client::Grpc::new(served.channel().await);
    client.ready().await.unwrap();
    let path = "/etcdserverpb.KV/RangeStream".parse().unwrap();
    let codec = ProstCodec::<pb::RangeRequest, pb::RangeStreamResponse>::default();
    let answer = client.server_streaming(tonic::Request::new(request), path, codec).await?;
    let mut answer = answer.into_inner();
    let mut parts = Vec::new();
    while let Some(part) = answer.message().await? {
        parts.push(part.range_response.unwrap());
    }
    Ok(parts)
}

fn all() -> pb::RangeRequest {
    let zero = Bytes::from_static(&[0]);
    pb::RangeRequest { key: zero.clone(), range_end: zero, ..Default::default() }
}

#[test]
fn a_long_range_is_streamed_in_parts_that_grow() {
    let options = Options::default().request_bytes_max(30_000_usize);
    let served = serve_with(StoreOptions::default(), options);
    run(async {
        let mut client = served.client().await;
        for i in 0..200 {
            client.put(format!("k{i:03}"), vec![7; 500], None).await.unwrap();
        }
        let parts = stream(&served, all()).await.unwrap();
        let sizes: Vec<_> = parts.iter().map(|part| part.kvs.len()).collect();
        // About 520 bytes each: doubled below half of 30,000 bytes.
        assert_eq!(sizes, [10, 20, 40, 40, 40, 40, 10]);
        let keys: Vec<_> = parts.iter().flat_map(|part| &part.kvs).map(|kv| &kv.key[..]).collect();
        assert!(keys.is_sorted() && keys.len() == 200);
        let (last, others) = parts.split_last().unwrap();
        assert!(others.iter().all(|part| part.header.is_none() && part.count == 0 && !part.more));
        let header = last.header.unwrap();
        assert_eq!((header.revision, last.count, last.more), (201, 200, false));
        assert_eq!(header.member_id, served.store.member_id().0);

        let parts = stream(&served, pb::RangeRequest { limit: 15, ..all() }).await.unwrap();
        let sizes: Vec<_> = parts.iter().map(|part| part.kvs.len()).collect();
        assert_eq!(sizes, [10, 5]);
        assert_eq!((parts[1].count, parts[1].more), (200, true));
        let count_only = pb::RangeRequest { count_only: true, limit: 3, ..all() };
        let parts = stream(&served, count_only).await.unwrap();
        let [part] = &parts[..] else { panic!("{parts:?}") };
        assert_eq!((part.count, part.more, part.kvs.len()), (200, false, 0));

        let old = pb::RangeRequest { revision: 3, ..all() };
        let parts = stream(&served, old.clone()).await.unwrap();
        assert_eq!((parts.len(), parts[0].header.unwrap().revision), (1, 201));
        client.compact(100, None).await.unwrap();
        let text = "etcdserver: mvcc: required revision has been compacted";
        let refused = stream(&served, old).await.unwrap_err();
        assert_eq!(told(&refused), (Code::OutOfRange, text.into()));
    });
}

#[test]
fn a_range_that_is_not_in_key_order_is_not_streamed() {
    let served = serve();
    run(async {
        let refused = async |request| told(&stream(&served, request).await.unwrap_err());
        let sort = pb::RangeRequest { sort_order: 2, ..all() };
        let text = "RangeStream does not support custom sort orders";
        assert_eq!(refused(sort).await, (Code::Unimplemented, text.into()));
        let ascending = pb::RangeRequest { sort_order: 1, sort_target: 3, ..all() };
        assert_eq!(refused(ascending).await, (Code::Unimplemented, text.into()));
        let filter = pb::RangeRequest { min_mod_revision: 1, ..all() };
        let text = "RangeStream does not support revision filters";
        assert_eq!(refused(filter).await, (Code::Unimplemented, text.into()));
        let no_key = pb::RangeRequest { sort_order: 2, ..Default::default() };
        let text = "etcdserver: key is not provided";
        assert_eq!(refused(no_key).await, (Code::InvalidArgument, text.into()));
        let no_sort = pb::RangeRequest { sort_order: 7, ..all() };
        let text = "etcdserver: invalid sort option";
        assert_eq!(refused(no_sort).await, (Code::InvalidArgument, text.into()));
        // A target without an order is none.
        stream(&served, pb::RangeRequest { sort_target: 3, ..all() }).await.unwrap();
    });
    let old = serve_with(StoreOptions::default().compat(Compat::V3_6), Options::default());
    run(async {
        let refused = stream(&old, all()).await.unwrap_err();
        let text = "unknown method RangeStream for service etcdserverpb.KV";
        assert_eq!(told(&refused), (Code::Unimplemented, text.into()));
    });
}
