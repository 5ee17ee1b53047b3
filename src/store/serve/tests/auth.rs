use etcd_client::{Permission, RoleRevokePermissionOptions, UserAddOptions, WatchOptions};

use super::*;

pub(super) const ROOT: (&str, &str) = ("root", "secret-of-root");

/// Adds root, and a user who may read and write what begins with `u/`; turns auth on.
pub(super) async fn set_up(client: &mut Client) {
    client.user_add(ROOT.0, ROOT.1, None).await.unwrap();
    client.role_add("root").await.unwrap();
    client.user_grant_role("root", "root").await.unwrap();
    client.role_add("u").await.unwrap();
    let permission = Permission::read_write("u/").with_prefix();
    client.role_grant_permission("u", permission).await.unwrap();
    client.user_add("u", "secret-of-u", None).await.unwrap();
    client.user_grant_role("u", "u").await.unwrap();
    client.auth_enable().await.unwrap();
}

fn denied() -> (Code, String) {
    (Code::PermissionDenied, "etcdserver: permission denied".into())
}

#[test]
fn users_and_roles_are_managed() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        let text = "etcdserver: root user does not exist";
        assert_eq!(refused(client.auth_enable().await), (Code::FailedPrecondition, text.into()));
        client.user_add("a", "p", None).await.unwrap();
        let options = UserAddOptions::new().with_no_pwd();
        client.user_add("b", "", Some(options)).await.unwrap();
        let text = "etcdserver: user name already exists";
        let again = refused(client.user_add("a", "p", None).await);
        assert_eq!(again, (Code::FailedPrecondition, text.into()));
        let empty = refused(client.user_add("", "p", None).await);
        assert_eq!(empty, (Code::InvalidArgument, "etcdserver: user name is empty".into()));
        assert_eq!(client.user_list().await.unwrap().users(), ["a", "b"]);
        client.role_add("r").await.unwrap();
        client.user_grant_role("a", "r").await.unwrap();
        assert_eq!(client.user_get("a").await.unwrap().roles(), ["r"]);
        client.role_grant_permission("r", Permission::read("k")).await.unwrap();
        let role = client.role_get("r").await.unwrap();
        assert_eq!(role.permissions(), [Permission::read("k")]);
        let text = "etcdserver: permission is not granted to the role";
        let options = RoleRevokePermissionOptions::new().with_range_end("z");
        let other = client.role_revoke_permission("r", "k", Some(options)).await;
        assert_eq!(refused(other), (Code::FailedPrecondition, text.into()));
        client.role_revoke_permission("r", "k", None).await.unwrap();
        client.user_revoke_role("a", "r").await.unwrap();
        client.role_delete("r").await.unwrap();
        assert!(client.role_list().await.unwrap().roles().is_empty());
        client.user_change_password("a", "q").await.unwrap();
        client.user_delete("a").await.unwrap();
        let text = "etcdserver: user name not found";
        assert_eq!(refused(client.user_get("a").await), (Code::FailedPrecondition, text.into()));
        let text = "etcdserver: authentication is not enabled";
        let off = served.client_of("a", "q").await;
        assert_eq!(refused(off.map(drop)), (Code::FailedPrecondition, text.into()));
    });
}

#[test]
fn who_may_what_is_asked_once_auth_is_on() {
    let served = serve();
    run(async {
        let mut nobody = served.client().await;
        set_up(&mut nobody).await;
        let text = "etcdserver: user name is empty";
        let nameless = (Code::InvalidArgument, text.to_owned());
        assert_eq!(refused(nobody.get("u/1", None).await), nameless);
        assert_eq!(refused(nobody.status().await), nameless);
        assert_eq!(refused(nobody.leases().await), nameless);
        assert_eq!(refused(nobody.member_list().await), nameless);

        let text = "etcdserver: authentication failed, invalid user ID or password";
        let wrong = refused(served.client_of("u", "wrong").await.map(drop));
        assert_eq!(wrong, (Code::InvalidArgument, text.into()));
        let mut user = served.client_of("u", "secret-of-u").await.unwrap();
        user.put("u/1", "1", None).await.unwrap();
        assert_eq!(user.get("u/1", None).await.unwrap().count(), 1);
        assert_eq!(refused(user.put("v", "1", None).await), denied());
        assert_eq!(refused(user.compact(1, None).await), denied());
        assert_eq!(refused(user.defragment().await), denied());
        assert_eq!(refused(user.hash_kv(0).await), denied());
        assert_eq!(refused(user.snapshot().await.map(drop)), denied());
        assert_eq!(refused(user.user_list().await), denied());
        assert_eq!(
            refused(user.member_add(vec!["http://127.0.0.1:9".to_owned()], None).await),
            denied()
        );
        user.status().await.unwrap();
        assert_eq!(user.user_get("u").await.unwrap().roles(), ["u"]);
        assert_eq!(refused(user.user_get("root").await), denied());
        let lease = user.lease_grant(60, None).await.unwrap().id();
        let (mut keeper, mut renewals) = user.lease_keep_alive(lease).await.unwrap();
        keeper.keep_alive().await.unwrap();
        assert_eq!(renewals.message().await.unwrap().unwrap().ttl(), 60);

        let mut root = served.client_of(ROOT.0, ROOT.1).await.unwrap();
        root.put("v", "1", None).await.unwrap();
        let text = "etcdserver: invalid auth management";
        let managed = refused(root.user_delete("root").await);
        assert_eq!(managed, (Code::InvalidArgument, text.into()));
        root.auth_disable().await.unwrap();
        nobody.get("v", None).await.unwrap();
    });
}

#[test]
fn each_watcher_is_asked_about_not_the_stream() {
    let served = serve();
    run(async {
        let mut nobody = served.client().await;
        set_up(&mut nobody).await;
        let mut user = served.client_of("u", "secret-of-u").await.unwrap();
        let mut stream = user.watch("u/1", None).await.unwrap();
        assert!(!stream.message().await.unwrap().unwrap().canceled());
        let refusal = async |stream: &mut etcd_client::WatchStream| {
            let told = stream.message().await.unwrap().unwrap();
            assert!(told.created() && told.canceled() && told.watch_id() == -1);
            told.cancel_reason().to_owned()
        };
        stream.watch("v", None).await.unwrap();
        let denied = "rpc error: code = PermissionDenied desc = etcdserver: permission denied";
        assert_eq!(refusal(&mut stream).await, denied);
        // Leave for a prefix is none for all that follows.
        let from = WatchOptions::new().with_from_key();
        stream.watch("u/", Some(from)).await.unwrap();
        assert_eq!(refusal(&mut stream).await, denied);
        let negative = WatchOptions::new().with_start_revision(-1);
        stream.watch("v", Some(negative)).await.unwrap();
        let text = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(refusal(&mut stream).await, text);

        let mut stream = nobody.watch("u/1", None).await.unwrap();
        let empty = "rpc error: code = InvalidArgument desc = etcdserver: user name is empty";
        assert_eq!(refusal(&mut stream).await, empty);

        // What a user may is looked up for each watcher; a token that ended is none.
        let mut stream = user.watch("u/1", None).await.unwrap();
        stream.message().await.unwrap();
        let mut root = served.client_of(ROOT.0, ROOT.1).await.unwrap();
        root.role_grant_permission("u", Permission::read("w")).await.unwrap();
        stream.watch("w", None).await.unwrap();
        assert!(!stream.message().await.unwrap().unwrap().canceled());
        root.user_change_password("u", "another").await.unwrap();
        stream.watch("w", None).await.unwrap();
        let invalid = "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token";
        assert_eq!(refusal(&mut stream).await, invalid);
    });
}

#[test]
fn passwords_are_in_no_error() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        let long = "secret".repeat(20);
        let (_, text) = refused(client.user_add("a", long.as_str(), None).await);
        assert_eq!(text, "bcrypt: password length exceeds 72 bytes");
        set_up(&mut client).await;
        let (_, text) = refused(served.client_of("u", "secret-of-me").await.map(drop));
        assert!(!text.contains("secret"), "{text}");
    });
    assert!(!format!("{:?}", served.server).contains("secret"));
}
