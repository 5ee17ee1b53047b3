use etcd_client::{AlarmAction, AlarmType};
use sha2::{Digest, Sha256};

use super::*;
use crate::store::guard::Quota;

#[test]
fn the_member_tells_its_state() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        client.put("a", "1", None).await.unwrap();
        let status = client.status().await.unwrap();
        assert_eq!(status.version(), "3.7.3");
        assert_eq!(status.leader(), served.store.member_id().0);
        assert_eq!(status.header().unwrap().revision(), 2);
        assert!(status.db_size() > 0 && status.raft_used_db_size() > 0);
        assert!(status.raft_index() > 0 && status.raft_applied_index() == status.raft_index());
        assert!(status.errors().is_empty() && !status.is_learner());
        let members = client.member_list().await.unwrap();
        assert_eq!(members.header().unwrap().revision(), 0);
        let [member] = members.members() else { panic!("{members:?}") };
        assert_eq!((member.id(), member.name()), (served.store.member_id().0, "default"));

        let hash = client.hash_kv(0).await.unwrap();
        assert_eq!((hash.hash() != 0, hash.compact_version()), (true, -1));
        let text = "etcdserver: mvcc: required revision is a future revision";
        assert_eq!(refused(client.hash_kv(9).await), (Code::OutOfRange, text.into()));
        assert_ne!(client.hash().await.unwrap().hash(), 0);
        assert!(client.defragment().await.unwrap().header().is_none());
        assert_eq!(client.hash_kv(0).await.unwrap().hash(), hash.hash());

        let moved = client.move_leader(served.store.member_id().0).await.unwrap();
        assert!(moved.header().is_none());
        let text = "etcdserver: bad leader transferee";
        assert_eq!(refused(client.move_leader(9).await), (Code::FailedPrecondition, text.into()));
    });
}

#[test]
fn members_stay_one() {
    let urls = |url: &str| vec![url.to_owned()];
    let served = serve();
    let own = "http://localhost:2380";
    run(async {
        let mut client = served.client().await;
        let id = served.store.member_id().0;
        let bad = refused(client.member_add(urls("x"), None).await);
        let text = "etcdserver: given member URLs are invalid";
        assert_eq!(bad, (Code::InvalidArgument, text.into()));
        let there = refused(client.member_add(urls(own), None).await);
        let text = "etcdserver: Peer URLs already exists";
        assert_eq!(there, (Code::FailedPrecondition, text.into()));
        let new = refused(client.member_add(urls("http://127.0.0.1:9"), None).await);
        assert_eq!(new, (Code::Unavailable, "etcdserver: unhealthy cluster".into()));
        let text = "etcdserver: member not found";
        assert_eq!(refused(client.member_remove(9).await), (Code::NotFound, text.into()));
        assert_eq!(refused(client.member_promote(9).await), (Code::NotFound, text.into()));
        let update = client.member_update(9, urls("http://127.0.0.1:9")).await;
        assert_eq!(refused(update), (Code::NotFound, text.into()));
        let text = "etcdserver: re-configuration failed due to not enough started members";
        assert_eq!(refused(client.member_remove(id).await), (Code::Unknown, text.into()));
        let text = "etcdserver: can only promote a learner member";
        let promoted = refused(client.member_promote(id).await);
        assert_eq!(promoted, (Code::FailedPrecondition, text.into()));
        let updated = client.member_update(id, urls("http://127.0.0.1:9")).await.unwrap();
        assert_eq!(updated.members()[0].peer_urls(), ["http://127.0.0.1:9"]);
        let members = client.member_list().await.unwrap();
        assert_eq!(members.members()[0].peer_urls(), ["http://127.0.0.1:9"]);
    });
}

#[test]
fn a_full_quota_is_an_alarm_until_it_is_cleared() {
    let options = StoreOptions::default().quota(Quota::Bytes(1 << 20));
    let served = serve_with(options, Options::default());
    run(async {
        let mut client = served.client().await;
        let text = "etcdserver: mvcc: database space exceeded";
        let mut last = 0;
        let full = loop {
            last += 1;
            match client.put(format!("k{last}"), vec![1; 100_000], None).await {
                Ok(_) => assert!(last < 100),
                full => break full,
            }
            tokio::time::sleep(Duration::from_millis(150)).await;
        };
        assert_eq!(refused(full), (Code::ResourceExhausted, text.into()));
        let alarms = client.alarm(AlarmAction::Get, AlarmType::None, None).await.unwrap();
        let id = served.store.member_id().0;
        let told: Vec<_> = alarms.alarms().iter().map(|a| (a.member_id(), a.alarm())).collect();
        assert_eq!(told, [(id, AlarmType::Nospace)]);
        let errors = client.status().await.unwrap().errors().to_vec();
        assert_eq!(errors, [format!("memberID:{id} alarm:NOSPACE")]);
        assert_eq!(refused(client.put("a", "1", None).await).0, Code::ResourceExhausted);
        let lease = refused(client.lease_grant(10, None).await);
        assert_eq!(lease, (Code::ResourceExhausted, text.into()));
        // Room is made: delete, compact, defragment, and clear.
        let all = etcd_client::DeleteOptions::new().with_prefix();
        let revision = client.delete("k", Some(all)).await.unwrap().header().unwrap().revision();
        let physical = etcd_client::CompactionOptions::new().with_physical();
        client.compact(revision, Some(physical)).await.unwrap();
        client.defragment().await.unwrap();
        let mut options = etcd_client::AlarmOptions::new();
        options.with_member(id);
        let cleared = client.alarm(AlarmAction::Deactivate, AlarmType::Nospace, Some(options));
        assert_eq!(cleared.await.unwrap().alarms().len(), 1);
        client.put("a", "1", None).await.unwrap();
    });
}

#[test]
fn a_snapshot_is_streamed_with_its_sum() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        for i in 0..100 {
            client.put(format!("k{i}"), vec![b'v'; 20_000], None).await.unwrap();
        }
        let mut stream = client.snapshot().await.unwrap();
        let mut bytes = Vec::new();
        let mut left = None;
        let mut sum = None;
        while let Some(message) = stream.message().await.unwrap() {
            assert!(sum.is_none(), "nothing follows the sum");
            let blob = message.blob();
            if left == Some(0) {
                sum = Some(blob.to_vec());
                continue;
            }
            assert!(blob.len() <= 32 << 10);
            bytes.extend_from_slice(blob);
            let remaining = message.remaining_bytes();
            if let Some(before) = left {
                assert_eq!(remaining + blob.len() as u64, before);
            }
            left = Some(remaining);
        }
        assert_eq!(sum.unwrap(), Sha256::digest(&bytes).to_vec());
        assert!(bytes.len() > 2_000_000 && bytes.len().is_multiple_of(4096));
        // It is a database, from its first byte on.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        std::fs::write(&path, &bytes).unwrap();
        crate::bolt::File::open(&path).unwrap();
    });
}

#[test]
fn a_snapshot_that_nobody_takes_is_read_no_further() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        for i in 0..100 {
            client.put(format!("k{i}"), vec![b'v'; 100_000], None).await.unwrap();
        }
        let mut stream = client.snapshot().await.unwrap();
        assert!(stream.message().await.unwrap().unwrap().remaining_bytes() > 5_000_000);
        // Writers and other readers go on meanwhile, and it goes on when it is taken again.
        client.put("k0", "new", None).await.unwrap();
        client.defragment().await.unwrap();
        let mut messages = 1;
        while stream.message().await.unwrap().is_some() {
            messages += 1;
        }
        assert!(messages > 10_000_000 / (32 << 10));
    });
}

#[test]
fn a_downgrade_is_validated_and_not_done() {
    use etcd_client::DowngradeOptions as Ask;
    let served = serve();
    run(async {
        let mut client = served.client().await.maintenance_client();
        until("a version", async || served.store.cluster_version().is_some()).await;
        let mut ask = async |asked: Ask| {
            client.downgrade(asked).await.map(|answer| answer.version().to_owned())
        };
        assert_eq!(ask(Ask::Validate("3.6".into())).await.unwrap(), "3.7");
        assert_eq!(ask(Ask::Validate("3.6.0".into())).await.unwrap(), "3.7");
        let text = "etcdserver: wrong downgrade target version format";
        let bad = refused(ask(Ask::Validate("".into())).await);
        assert_eq!(bad, (Code::InvalidArgument, text.into()));
        let text = "etcdserver: invalid downgrade target version";
        let far = refused(ask(Ask::Validate("3.5".into())).await);
        assert_eq!(far, (Code::InvalidArgument, text.into()));
        assert_eq!(ask(Ask::Cancel).await.unwrap(), "3.7");
        let enabled = refused(ask(Ask::Enable("3.6".into())).await);
        assert_eq!(enabled, (Code::FailedPrecondition, "etcdserver: not capable".into()));
    });
}
