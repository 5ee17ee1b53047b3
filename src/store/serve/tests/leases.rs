use etcd_client::{LeaseGrantOptions, LeaseTimeToLiveOptions, PutOptions};

use super::*;

#[test]
fn leases_are_granted_kept_and_ended() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        let granted = client.lease_grant(100, None).await.unwrap();
        assert!(granted.id() > 0 && granted.ttl() == 100);
        assert_eq!(granted.header().unwrap().revision(), 1);
        let options = LeaseGrantOptions::new().with_id(7);
        assert_eq!(client.lease_grant(1, Some(options.clone())).await.unwrap().ttl(), 2);
        let text = "etcdserver: lease already exists";
        let again = refused(client.lease_grant(1, Some(options)).await);
        assert_eq!(again, (Code::FailedPrecondition, text.into()));
        let text = "etcdserver: too large lease TTL";
        let long = refused(client.lease_grant(9_000_000_001, None).await);
        assert_eq!(long, (Code::OutOfRange, text.into()));

        let options = || Some(PutOptions::new().with_lease(granted.id()));
        client.put("b", "1", options()).await.unwrap();
        client.put("a", "1", options()).await.unwrap();
        let options = LeaseTimeToLiveOptions::new().with_keys();
        let left = client.lease_time_to_live(granted.id(), Some(options)).await.unwrap();
        assert_eq!(left.granted_ttl(), 100);
        assert!((90..=100).contains(&left.ttl()));
        assert_eq!(left.keys(), [b"a", b"b"]);
        let none = client.lease_time_to_live(999, None).await.unwrap();
        assert_eq!((none.id(), none.ttl(), none.granted_ttl()), (999, -1, 0));
        let ids: Vec<_> = client
            .leases()
            .await
            .unwrap()
            .leases()
            .iter()
            .map(etcd_client::LeaseStatus::id)
            .collect();
        assert_eq!(ids, [7, granted.id()]);

        // This client takes the first answer itself.
        let (mut keeper, mut renewals) = client.lease_keep_alive(granted.id()).await.unwrap();
        keeper.keep_alive().await.unwrap();
        let renewal = renewals.message().await.unwrap().unwrap();
        assert_eq!((renewal.id(), renewal.ttl()), (granted.id(), 100));
        assert_eq!(renewal.header().unwrap().revision(), 3);

        let revoked = client.lease_revoke(granted.id()).await.unwrap();
        assert_eq!(revoked.header().unwrap().revision(), 4);
        assert_eq!(client.get("a", None).await.unwrap().count(), 0);
        let text = "etcdserver: requested lease not found";
        let again = refused(client.lease_revoke(granted.id()).await);
        assert_eq!(again, (Code::NotFound, text.into()));
        keeper.keep_alive().await.unwrap();
        let gone = renewals.message().await.unwrap().unwrap();
        assert_eq!((gone.id(), gone.ttl()), (granted.id(), 0), "and the stream goes on");
        // When the client has said its last, the stream ends well.
        drop(keeper);
        assert!(renewals.message().await.unwrap().is_none());
    });
}

#[test]
fn a_lease_that_is_not_kept_ends_with_its_keys() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        let lease = client.lease_grant(2, None).await.unwrap().id();
        client.put("a", "1", Some(PutOptions::new().with_lease(lease))).await.unwrap();
        let mut stream = client.watch("a", None).await.unwrap();
        stream.message().await.unwrap();
        let granted = Instant::now();
        let deleted = stream.message().await.unwrap().unwrap();
        assert_eq!(deleted.events()[0].event_type(), etcd_client::EventType::Delete);
        assert!(granted.elapsed() > Duration::from_millis(1500));
        assert_eq!(client.lease_time_to_live(lease, None).await.unwrap().ttl(), -1);
    });
}
