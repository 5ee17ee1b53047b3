use etcd_client::{EventType, WatchOptions, WatchResponse, WatchStream};

use super::*;

async fn next(stream: &mut WatchStream) -> WatchResponse {
    stream.message().await.unwrap().unwrap()
}

#[test]
fn changes_are_told() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        client.put("a", "0", None).await.unwrap();
        let options = WatchOptions::new().with_prev_key().with_prefix().with_start_revision(2);
        let mut stream = client.watch("a", Some(options)).await.unwrap();
        let created = next(&mut stream).await;
        assert!(created.created() && !created.canceled() && created.watch_id() == 0);
        assert_eq!(created.header().unwrap().member_id(), served.store.member_id().0);
        let past = next(&mut stream).await;
        assert_eq!(past.events()[0].kv().unwrap().value(), b"0");
        client.put("a", "1", None).await.unwrap();
        let put = next(&mut stream).await;
        let event = &put.events()[0];
        assert_eq!(event.event_type(), EventType::Put);
        assert_eq!(event.prev_kv().unwrap().value(), b"0");
        client.delete("a", None).await.unwrap();
        let deleted = next(&mut stream).await;
        let event = &deleted.events()[0];
        assert_eq!(event.event_type(), EventType::Delete);
        let kv = event.kv().unwrap();
        assert_eq!((kv.key(), kv.value(), kv.mod_revision()), (&b"a"[..], &b""[..], 4));

        // Two more on the same stream; one id is taken.
        let options = WatchOptions::new().with_watch_id(5);
        stream.watch("b", Some(options.clone())).await.unwrap();
        assert_eq!(next(&mut stream).await.watch_id(), 5);
        stream.watch("b", Some(options)).await.unwrap();
        let refused = next(&mut stream).await;
        assert!(refused.created() && refused.canceled() && refused.watch_id() == -1);
        let text = "mvcc: duplicate watch ID provided on the WatchStream";
        assert_eq!(refused.cancel_reason(), text);

        stream.request_progress().await.unwrap();
        let progress = next(&mut stream).await;
        assert_eq!((progress.watch_id(), progress.events().len()), (-1, 0));
        assert_eq!(progress.header().unwrap().revision(), 4);
        stream.cancel(5).await.unwrap();
        let canceled = next(&mut stream).await;
        assert!(canceled.canceled() && canceled.watch_id() == 5);
        // Of an id that there is not, nothing is told.
        stream.cancel(99).await.unwrap();
        stream.request_progress().await.unwrap();
        assert_eq!(next(&mut stream).await.watch_id(), -1);
    });
}

#[test]
fn a_watcher_of_what_is_compacted_ends() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        for i in 0..9 {
            client.put("a", i.to_string(), None).await.unwrap();
        }
        client.compact(6, None).await.unwrap();
        let options = WatchOptions::new().with_start_revision(3);
        let mut stream = client.watch("a", Some(options)).await.unwrap();
        let created = next(&mut stream).await;
        assert!(created.created() && !created.canceled());
        let ended = next(&mut stream).await;
        assert!(ended.canceled() && !ended.created());
        assert_eq!((ended.compact_revision(), ended.cancel_reason()), (6, ""));
        assert_eq!(ended.header().unwrap().revision(), 0);
    });
}

#[test]
fn a_large_response_is_cut_where_that_was_asked_for() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        let put = |i: usize| etcd_client::TxnOp::put(format!("k{i}"), vec![b'x'; 400_000], None);
        let first = etcd_client::Txn::new().and_then((0..3).map(put).collect::<Vec<_>>());
        client.txn(first).await.unwrap();
        let second = etcd_client::Txn::new().and_then((3..6).map(put).collect::<Vec<_>>());
        client.txn(second).await.unwrap();
        let options = WatchOptions::new().with_prefix().with_start_revision(2).with_fragment();
        let mut stream = client.watch("k", Some(options)).await.unwrap();
        next(&mut stream).await;
        let mut keys = Vec::new();
        let mut pieces = 0;
        while keys.len() < 6 {
            let response = next(&mut stream).await;
            pieces += 1;
            assert!(response.events().len() <= 3);
            keys.extend(response.events().iter().map(|event| event.kv().unwrap().key().to_vec()));
        }
        assert!(pieces >= 2);
        assert_eq!(keys, [b"k0", b"k1", b"k2", b"k3", b"k4", b"k5"]);
    });
}

#[test]
fn quiet_watchers_are_told_the_revision() {
    let options = StoreOptions::default().watch_progress_interval(Duration::from_millis(200));
    let served = serve_with(options, Options::default());
    run(async {
        let mut client = served.client().await;
        let options = WatchOptions::new().with_progress_notify();
        let mut stream = client.watch("a", Some(options)).await.unwrap();
        next(&mut stream).await;
        client.put("b", "1", None).await.unwrap();
        loop {
            let progress = next(&mut stream).await;
            assert_eq!((progress.watch_id(), progress.events().len()), (0, 0));
            if progress.header().unwrap().revision() == 2 {
                return;
            }
        }
    });
}

#[test]
fn a_client_that_says_no_more_is_told_on() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        let stream = client.watch("a", None).await.unwrap();
        let (requests, mut responses) = stream.split();
        assert!(responses.message().await.unwrap().unwrap().created());
        drop(requests);
        // The end of the requests arrives before this.
        client.put("a", "1", None).await.unwrap();
        let told = responses.message().await.unwrap().unwrap();
        assert_eq!(told.events().len(), 1);
    });
}

#[test]
fn many_requests_of_a_client_that_reads_nothing_yet_are_all_answered() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        let stream = client.watch("a", None).await.unwrap();
        let (mut requests, mut responses) = stream.split();
        let sender = async {
            for _ in 1..3000 {
                requests.watch("a", None).await.unwrap();
            }
        };
        let reader = async {
            for id in 0..3000 {
                let response = responses.message().await.unwrap().unwrap();
                assert!(response.created());
                assert_eq!(response.watch_id(), id);
            }
        };
        tokio::join!(sender, reader);
    });
}

#[test]
fn a_server_that_stops_ends_streams() {
    let served = serve();
    let Served { store, server, address, _dir } = served;
    run(async {
        let mut client = Client::connect([address.to_string()], None).await.unwrap();
        let mut stream = client.watch("a", None).await.unwrap();
        next(&mut stream).await;
        let lease = client.lease_grant(100, None).await.unwrap().id();
        let (_keeper, mut renewals) = client.lease_keep_alive(lease).await.unwrap();
        let stopped = tokio::task::spawn_blocking(move || server.stop(LONG));
        let text = "etcdserver: server stopped";
        let ended = refused(stream.message().await);
        assert_eq!(ended, (Code::Unavailable, text.into()));
        let ended = refused(renewals.message().await);
        assert_eq!(ended, (Code::Unavailable, text.into()));
        drop((client, stream, renewals, _keeper));
        stopped.await.unwrap();
    });
    store.close().unwrap();
}
