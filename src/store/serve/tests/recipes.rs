use etcd_client::{LeaderKey, LockOptions, ProclaimOptions, ResignOptions};

use super::*;

#[test]
fn a_lock_is_held_by_one_and_waited_for_by_others() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        let first = client.lock("l", None).await.unwrap();
        assert!(first.key().starts_with(b"l/"));
        let lease = client.lease_grant(30, None).await.unwrap().id();
        let options = move || Some(LockOptions::new().with_lease(lease));
        let mut other = client.clone();
        let waiting = tokio::spawn(async move { other.lock("l", options()).await });
        let keys = async |client: &mut Client| {
            let options = etcd_client::GetOptions::new().with_prefix();
            client.get("l/", Some(options)).await.unwrap().count()
        };
        until("the second key", async || keys(&mut client.clone()).await == 2).await;
        assert!(!waiting.is_finished());
        client.unlock(first.key()).await.unwrap();
        let second = waiting.await.unwrap().unwrap();
        assert_eq!(second.key(), format!("l/{lease:x}").as_bytes());
        // Who has it gets it again.
        let again = client.lock("l", options()).await.unwrap();
        assert_eq!(again.key(), second.key());

        // A caller who waits no more leaves no key behind.
        let lease = client.lease_grant(30, None).await.unwrap().id();
        let options = LockOptions::new().with_lease(lease);
        let mut other = client.clone();
        let waiting = tokio::spawn(async move { other.lock("l", Some(options)).await });
        until("the third key", async || keys(&mut client.clone()).await == 2).await;
        waiting.abort();
        until("its end", async || keys(&mut client.clone()).await == 1).await;

        let options = LockOptions::new().with_lease(4711);
        let text = "etcdserver: requested lease not found";
        assert_eq!(refused(client.lock("m", Some(options)).await), (Code::Unknown, text.into()));
        let text = "etcdserver: key is not provided";
        assert_eq!(refused(client.unlock("").await), (Code::Unknown, text.into()));
    });
}

#[test]
fn a_lock_whose_lease_ends_passes_on() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        let lease = client.lease_grant(60, None).await.unwrap().id();
        let options = LockOptions::new().with_lease(lease);
        client.lock("l", Some(options)).await.unwrap();
        let mut other = client.clone();
        let waiting = tokio::spawn(async move { other.lock("l", None).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        client.lease_revoke(lease).await.unwrap();
        waiting.await.unwrap().unwrap();
    });
}

#[test]
fn an_election_has_one_leader_at_a_time() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        let text = "election: no leader";
        assert_eq!(refused(client.leader("e").await), (Code::Unknown, text.into()));
        let mut observed = client.observe("e").await.unwrap();
        let lease = client.lease_grant(60, None).await.unwrap().id();
        let first = client.campaign("e", "one", lease).await.unwrap();
        let key = first.leader().unwrap().clone();
        assert_eq!(key.key(), format!("e/{lease:x}").as_bytes());
        assert_eq!((key.rev(), key.lease()), (2, lease));
        let value = async |observed: &mut etcd_client::ObserveStream| {
            let told = observed.message().await.unwrap().unwrap();
            told.kv().unwrap().value().to_vec()
        };
        assert_eq!(value(&mut observed).await, b"one");
        let options = ProclaimOptions::new().with_leader(key.clone());
        client.proclaim("uno", Some(options)).await.unwrap();
        assert_eq!(value(&mut observed).await, b"uno");
        let leader = client.leader("e").await.unwrap();
        assert_eq!(leader.kv().unwrap().value(), b"uno");
        // A second campaign of the same lease proclaims what it brings.
        client.campaign("e", "eins", lease).await.unwrap();
        assert_eq!(value(&mut observed).await, b"eins");

        let other_lease = client.lease_grant(60, None).await.unwrap().id();
        let mut other = client.clone();
        let waiting = tokio::spawn(async move { other.campaign("e", "two", other_lease).await });
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!waiting.is_finished());
        let options = ResignOptions::new().with_leader(key.clone());
        client.resign(Some(options)).await.unwrap();
        waiting.await.unwrap().unwrap();
        assert_eq!(value(&mut observed).await, b"two");
        let options = ProclaimOptions::new().with_leader(key);
        let late = client.proclaim("late", Some(options)).await;
        assert_eq!(refused(late), (Code::Unknown, "election: not leader".into()));

        let text = "\"leader\" field must be provided";
        assert_eq!(refused(client.resign(None).await), (Code::Unknown, text.into()));
        let none = ProclaimOptions::new().with_leader(LeaderKey::new());
        assert_eq!(refused(client.proclaim("x", Some(none)).await).0, Code::Unknown);
    });
}

#[test]
fn a_lock_outlives_changes_of_the_rules_while_it_waits() {
    let served = serve();
    run(async {
        let mut nobody = served.client().await;
        auth::set_up(&mut nobody).await;
        let mut root = served.client_of(auth::ROOT.0, auth::ROOT.1).await.unwrap();
        let user = served.client_of("u", "secret-of-u").await.unwrap();
        let held = root.lock("u/l", None).await.unwrap();
        let waits = || {
            let mut user = user.clone();
            tokio::spawn(async move { user.lock("u/l", None).await })
        };
        let keys = async |client: &mut Client| {
            let options = etcd_client::GetOptions::new().with_prefix();
            client.get("u/l/", Some(options)).await.unwrap().count()
        };
        let (patient, hasty) = (waits(), waits());
        until("both keys", async || keys(&mut root.clone()).await == 3).await;
        root.role_add("another").await.unwrap();
        hasty.abort();
        until("the end of the hasty's key", async || keys(&mut root.clone()).await == 2).await;
        root.unlock(held.key()).await.unwrap();
        patient.await.unwrap().unwrap();
    });
}
