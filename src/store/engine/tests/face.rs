//! What a caller can ask for that must not be done, and what is read when it must not be.

use super::*;
use crate::etcd::request::{
    Authenticate, LeaseCheckpoints, MemberAttributes, Nothing, RoleName, Secret, UserAdd,
    UserChangePassword, VersionName,
};
use crate::format::page::KEY_BYTES_MAX;
use crate::store::mvcc::Portion;

#[test]
fn names_that_no_row_can_have_are_refused_and_harm_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Options { bcrypt_cost: 4, ..Options::default() });
    let longest = "n".repeat(KEY_BYTES_MAX);
    let too_long = "n".repeat(KEY_BYTES_MAX + 1);
    let user = |name| NewUser { name, password: "p", ..NewUser::default() };
    assert_eq!(store.role_add(&me(), &too_long), Err(Error::TooLarge));
    assert_eq!(store.user_add(&me(), user(&too_long)), Err(Error::TooLarge));
    store.role_add(&me(), &longest).unwrap();
    store.user_add(&me(), user(&longest)).unwrap();
    let urls = [format!("http://{}:1", "h".repeat(2 << 20))];
    assert!(store.member_update(&me(), store.member_id(), &urls).is_err());
    put(&store, b"k", b"v").unwrap();
    store.close().unwrap();
    let store = open(&dir, Options::default());
    assert_eq!(store.role_list(&me()).unwrap(), [longest.as_str()]);
    assert_eq!(records(&store).len(), 1);
}

#[test]
fn a_log_that_holds_a_name_that_no_row_can_have_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Options::default());
    put(&store, b"k", b"v").unwrap();
    // As an etcd logs it, which looks at no length.
    let role = vec![b'r'; KEY_BYTES_MAX + 1];
    let data = store.shared().encode_own(Body::RoleAdd(RoleName { role: &role }));
    let (promise, waiting) = crate::store::pending::pending();
    store.shared().propose(Proposal::normal(data, Reply::Caller(promise))).unwrap();
    assert!(store.wait(waiting).is_err());
    assert_eq!(records(&store).len(), 1);
    store.kill();
    let error = Store::open(&dir.path().join("data"), Options::default()).unwrap_err().to_string();
    assert!(error.contains("a key of 32769 bytes") && error.contains("entry "), "{error}");
}

#[test]
fn nothing_is_submitted_that_only_the_store_may_log() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir, Options::default());
    let clear = Secret(b"hunter2-secret");
    let bodies = [
        Body::Range(ALL),
        Body::LeaseCheckpoint(LeaseCheckpoints { checkpoints: Vec::new() }),
        Body::Authenticate(Authenticate { name: b"u", password: clear, simple_token: Secret(b"") }),
        Body::UserAdd(UserAdd {
            name: b"u",
            password: clear,
            options: None,
            hashed_password: Secret(b""),
        }),
        Body::UserChangePassword(UserChangePassword {
            name: b"u",
            password: clear,
            hashed_password: Secret(b""),
        }),
        Body::UserList(Nothing {}),
        Body::ClusterVersionSet(VersionName { version: b"9.9.0" }),
        Body::MemberAttributes(MemberAttributes { member_id: 7, attributes: None }),
    ];
    for body in bodies {
        let refused = Submission::try_from(body).and_then(|request| store.submit(&me(), request));
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::NotSubmitted { .. }), "{error}");
        assert!(!error.to_string().contains("hunter2"));
    }
    let add = UserAdd {
        name: b"u",
        password: Secret(b""),
        options: None,
        hashed_password: Secret(b"JDJhJDA0"),
    };
    let request = Submission::try_from(Body::UserAdd(add)).unwrap();
    store.wait(store.submit(&me(), request).unwrap()).unwrap();
    assert_eq!(store.user_list(&me()).unwrap(), ["u"]);
    // A kind of alarm that there is not, on which etcd stops.
    let alarm = Alarm { action: 1, member_id: 1, alarm: 77 };
    let request = Submission::try_from(Body::Alarm(alarm)).unwrap();
    assert_eq!(store.submit(&me(), request).err(), Some(Error::InvalidAlarm));
    store.close().unwrap();
    open(&dir, Options::default()).close().unwrap();
}

/// Writes so much that pages of what was there before are used again.
fn overwrite(store: &Store) {
    for round in 0..4_u8 {
        for key in 0..200 {
            put(store, format!("k{key:03}").as_bytes(), &[round; 1000]).unwrap();
        }
        let revision = store.revision();
        store.compact(&me(), Compaction { revision, physical: true }).unwrap();
    }
}

#[test]
fn what_is_read_after_the_end_is_an_error_or_what_it_was() {
    for is_killed in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let options = || {
            let database = crate::bolt::db::Options { cache_bytes: 1 << 14, ..Default::default() };
            Options { database, ..Options::default() }
        };
        let store = open(&dir, options());
        for key in 0..200 {
            put(&store, format!("k{key:03}").as_bytes(), &[9; 1000]).unwrap();
        }
        // Opened anew, it has everything in the file only.
        store.close().unwrap();
        let store = open(&dir, options());
        let mut snapshot = store.snapshot(&me()).unwrap();
        let mut begun = store.snapshot(&me()).unwrap();
        begun.read_exact(&mut [0; 5000]).unwrap();
        let core = &store.shared().core;
        let plans: Vec<_> = (0..200)
            .map(|key| {
                let key = format!("k{key:03}");
                let range = Range { key: key.as_bytes(), ..Range::default() };
                core.read(|mvcc| mvcc.plan_range(&range)).unwrap().unwrap()
            })
            .collect();
        let all = Portion { events: 1000, bytes: usize::MAX };
        let history = core.read(|mvcc| mvcc.plan_events(2, i64::MAX, all)).unwrap().unwrap();
        match is_killed {
            true => store.kill(),
            false => store.close().unwrap(),
        }
        let again = open(&dir, options());
        overwrite(&again);
        assert!(snapshot.read_to_end(&mut Vec::new()).is_err());
        assert!(begun.read_to_end(&mut Vec::new()).is_err());
        let mut failed = 0;
        for plan in plans {
            match plan.fetch() {
                Ok(answer) => assert_eq!(answer.body.kvs[0].record().value, [9; 1000]),
                Err(_) => failed += 1,
            }
        }
        assert!(failed > 0);
        assert!(history.fetch().is_err());
        again.close().unwrap();
    }
}

#[test]
fn a_member_is_renamed_only_where_somebody_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let who = |store: &Store| {
        let members = store.members(&me()).unwrap();
        (members[0].name.clone(), members[0].client_urls.clone())
    };
    let named = |name: &str| {
        let urls = vec![format!("http://{name}:2379")];
        let identity = crate::store::Identity::default().name(name.to_owned()).client_urls(urls);
        Options::default().identity(identity)
    };
    let said = |name: &str| (name.to_owned(), vec![format!("http://{name}:2379")]);
    for (options, now) in
        [(named("cp-1"), "cp-1"), (Options::default(), "cp-1"), (named("cp-2"), "cp-2")]
    {
        let store = open(&dir, options);
        assert_eq!(who(&store), said(now));
        store.close().unwrap();
    }
    let fresh = tempfile::tempdir().unwrap();
    assert_eq!(who(&open(&fresh, Options::default())).1, ["http://localhost:2379"]);
}
