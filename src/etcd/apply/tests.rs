//! Tests of what entries do.

use proptest::prelude::*;

use super::model::{Naive, RowState, data, entry, plans};
use super::*;
use crate::etcd::request::{
    Alarm, Attributes, Authenticate, Compaction, Compare, DeleteRange, DowngradeInfo,
    GrantedPermission, LeaseCheckpoint, LeaseCheckpoints, LeaseGrant, LeaseRevoke,
    MemberAttributes, Nothing, Op, Operand, Put, RoleGrantPermission, RoleName,
    RoleRevokePermission, Secret, Txn, UserAdd, UserChangePassword, UserName, UserOptions,
    UserRole, V2, VersionName,
};
use crate::format::wal::{ConfChange, change_kind};

/// A state that entries are applied to, one after the other.
#[derive(Default)]
struct Store {
    rows: RowState,
    index: u64,
    rules: Rules,
}

impl Store {
    fn apply_data(&mut self, kind: u64, bytes: &[u8]) -> Effect<'static> {
        self.index += 1;
        let entry = Entry { kind, ..entry(self.index, bytes) };
        let effect = apply(&self.rows, &self.rules, &entry).unwrap();
        self.rows.take(&effect);
        let changes = effect.changes.iter().map(|change| Change {
            key: Cow::Owned(change.key.to_vec()),
            before: change.before,
            put: change
                .put
                .as_ref()
                .map(|put| Written { value: Cow::Owned(put.value.to_vec()), ..*put }),
        });
        let changes = changes.collect();
        let Effect {
            index, term, kind, outcome, revision, rows, steps, compaction, warnings, ..
        } = effect;
        Effect { index, term, kind, outcome, revision, changes, rows, steps, compaction, warnings }
    }

    fn apply(&mut self, body: Body<'_>) -> Effect<'static> {
        self.apply_data(0, &data(body))
    }

    fn as_user(&mut self, name: &str, auth_revision: u64, body: Body<'_>) -> Outcome {
        let header = Header { id: 7, username: name.as_bytes(), auth_revision };
        let request = Request { id: 0, header: Some(header), body };
        self.apply_data(0, &request.encode()).outcome
    }

    fn refusal(&mut self, body: Body<'_>) -> Refusal {
        let before = self.rows.clone();
        let effect = self.apply(body);
        assert!(effect.changes.is_empty() && effect.rows.is_empty());
        let mut after = self.rows.clone();
        assert_eq!(after.buckets.remove(schema::META).is_some(), self.index > 0);
        let mut before = before;
        before.buckets.remove(schema::META);
        assert_eq!(before, after);
        match effect.outcome {
            Outcome::Refused(refusal) => refusal,
            Outcome::Done => panic!("it was done"),
        }
    }

    fn row(&self, bucket: &[u8], key: &[u8]) -> Option<Vec<u8>> {
        self.rows.buckets.get(bucket)?.get(key).cloned()
    }

    fn change(&mut self, kind: u64, node_id: u64, context: &str) -> Effect<'static> {
        let change =
            ConfChange { id: 1, kind, node_id, context: context.as_bytes(), unknown_field: None };
        self.apply_data(1, &change.encode())
    }
}

fn put<'a>(key: &'a str, value: &'a str) -> Put<'a> {
    Put { key: key.as_bytes(), value: value.as_bytes(), ..Put::default() }
}

fn delete<'a>(key: &'a str, end: &'a str) -> DeleteRange<'a> {
    DeleteRange { key: key.as_bytes(), range_end: end.as_bytes(), prev_kv: false }
}

fn done(effect: &Effect<'_>) {
    assert_eq!(effect.outcome, Outcome::Done);
}

/// The published vector: the rows whose hash every etcd computes.
#[test]
fn rows_have_the_hash_that_etcd_publishes() {
    let mut store = Store::default();
    let puts = |store: &mut Store, list: &[(&str, &str)]| {
        for (key, value) in list {
            match *value {
                "-" => done(&store.apply(Body::DeleteRange(delete(key, "")))),
                value => done(&store.apply(Body::Put(put(key, value)))),
            }
        }
    };
    puts(&mut store, &[("a", "1"), ("b", "1"), ("a", "2"), ("b", "-"), ("b", "2")]);
    puts(&mut store, &[("c", "1"), ("c", "-")]);
    let ops =
        vec![Op::Put(put("x", "1")), Op::Put(put("y", "1")), Op::DeleteRange(delete("a", ""))];
    let effect = store.apply(Body::Txn(Txn { success: ops, ..Txn::default() }));
    assert_eq!((effect.revision, effect.changes.len()), (9, 3));
    let steps = [
        Step::Txn { succeeded: true, compared: 0, ops: 3 },
        Step::Put(0),
        Step::Put(1),
        Step::Delete(2..3),
    ];
    assert_eq!(effect.steps, steps);
    puts(&mut store, &[("a", "3"), ("y", "-"), ("d", "1"), ("d", "-")]);
    let mut crc = crc32c::crc32c(b"key");
    for (key, value) in &store.rows.buckets[schema::KEY] {
        crc = crc32c::crc32c_append(crc, key);
        crc = crc32c::crc32c_append(crc, value);
    }
    assert_eq!(store.rows.current_revision(), 13);
    assert_eq!(crc, 3_929_219_905);
}

#[test]
fn a_change_of_nothing_makes_no_revision() {
    let mut store = Store::default();
    assert_eq!(store.apply_data(0, b"").kind, "noop");
    let effect = store.apply(Body::DeleteRange(delete("a", "z")));
    assert_eq!((effect.revision, effect.outcome), (1, Outcome::Done));
    let effect = store.apply(Body::Txn(Txn::default()));
    assert_eq!((effect.revision, effect.steps.len()), (1, 1));
    assert_eq!(store.row(schema::META, schema::META_CONSISTENT_INDEX).unwrap()[7], 3);
    assert_eq!(store.row(schema::META, schema::META_TERM).unwrap()[7], 2);
    let effect = store.apply(Body::Put(put("a", "")));
    assert_eq!((effect.revision, effect.key_rows().count()), (2, 1));
}

#[test]
fn later_operations_see_earlier_ones() {
    let mut store = Store::default();
    done(&store.apply(Body::Put(put("a", "1"))));
    let ops = vec![
        Op::DeleteRange(delete("a", "")),
        Op::Put(put("a", "2")),
        Op::Put(put("b", "3")),
        Op::DeleteRange(delete("a", "\0")),
        Op::Put(put("b", "4")),
    ];
    let effect = store.apply(Body::Txn(Txn { success: ops, ..Txn::default() }));
    let seen: Vec<(String, Option<(i64, i64)>)> = effect
        .changes
        .iter()
        .map(|change| {
            let key = String::from_utf8(change.key.to_vec()).unwrap();
            (key, change.put.as_ref().map(|put| (put.create_revision, put.version)))
        })
        .collect();
    let want = [
        ("a", None),
        ("a", Some((3, 1))),
        ("b", Some((3, 1))),
        ("a", None),
        ("b", None),
        ("b", Some((3, 1))),
    ];
    assert_eq!(seen, want.map(|(key, put)| (key.to_string(), put)));
    assert_eq!(effect.latest(5).unwrap().modified, Revision::new(3, 5));
}

#[test]
fn leases_live_by_the_log_alone() {
    let mut store = Store::default();
    let grant = |id, ttl_s| Body::LeaseGrant(LeaseGrant { ttl_s, id });
    done(&store.apply(grant(5, 1)));
    assert_eq!(store.row(schema::LEASE, &5_i64.to_be_bytes()).unwrap(), [8, 5, 16, 2]);
    assert_eq!(store.refusal(grant(5, 60)), Refusal::LeaseExists);
    assert_eq!(store.refusal(grant(0, 60)), Refusal::LeaseNotFound);
    assert_eq!(store.refusal(grant(6, 9_000_000_001)), Refusal::LeaseTtlTooLarge);
    let with = |key, lease| Body::Put(Put { lease, ..put(key, "v") });
    assert_eq!(store.refusal(with("a", 9)), Refusal::LeaseNotFound);
    done(&store.apply(with("b", 5)));
    done(&store.apply(with("a", 5)));
    done(&store.apply(with("c", 5)));
    done(&store.apply(with("c", 0)));

    let checkpoint = || {
        let one = LeaseCheckpoint { id: 5, remaining_ttl_s: 1 };
        let none = LeaseCheckpoint { id: 77, remaining_ttl_s: 1 };
        Body::LeaseCheckpoint(LeaseCheckpoints { checkpoints: vec![none, one] })
    };
    assert!(store.apply(checkpoint()).rows.is_empty());
    done(&store.apply(Body::ClusterVersionSet(VersionName { version: b"3.6.0" })));
    assert_eq!(store.apply(checkpoint()).rows.len(), 1);
    assert_eq!(store.row(schema::LEASE, &5_i64.to_be_bytes()).unwrap(), [8, 5, 16, 2, 24, 1]);

    let effect = store.apply(Body::LeaseRevoke(LeaseRevoke { id: 5 }));
    let keys: Vec<&[u8]> = effect.changes.iter().map(|change| change.key.as_ref()).collect();
    assert_eq!((keys, effect.revision), (vec![&b"a"[..], b"b"], 6));
    assert_eq!(store.row(schema::LEASE, &5_i64.to_be_bytes()), None);
    assert_eq!(store.refusal(Body::LeaseRevoke(LeaseRevoke { id: 5 })), Refusal::LeaseNotFound);
}

#[test]
fn compactions_are_scheduled() {
    let mut store = Store::default();
    let compact = |revision| Body::Compaction(Compaction { revision, physical: true });
    assert_eq!(store.refusal(compact(2)), Refusal::FutureRevision);
    assert_eq!(store.apply(compact(0)).compaction, Some(0));
    done(&store.apply(Body::Put(put("a", "1"))));
    done(&store.apply(Body::Put(put("a", "2"))));
    assert_eq!(store.apply(compact(3)).compaction, Some(3));
    let row = store.row(schema::META, schema::META_SCHEDULED_COMPACT).unwrap();
    assert_eq!(row, Revision::new(3, 0).encode());
    assert_eq!(store.refusal(compact(3)), Refusal::Compacted);
    let read = |revision| {
        let range = crate::etcd::request::Range { key: b"a", revision, ..Default::default() };
        let ops = vec![Op::Put(put("a", "3")), Op::Range(range)];
        Body::Txn(Txn { success: ops, ..Txn::default() })
    };
    assert_eq!(store.refusal(read(2)), Refusal::Compacted);
    assert_eq!(store.refusal(read(4)), Refusal::FutureRevision);
    done(&store.apply(read(3)));
}

#[test]
fn alarms_forbid_what_etcd_forbids() {
    let mut store = Store::default();
    let alarm = |action, alarm| Body::Alarm(Alarm { action, member_id: 9, alarm });
    let grant = || Body::LeaseGrant(LeaseGrant { ttl_s: 60, id: 5 });
    let txn = |op| {
        let inner = Txn { failure: vec![op], ..Txn::default() };
        Body::Txn(Txn { failure: vec![Op::Txn(inner)], ..Txn::default() })
    };
    done(&store.apply(Body::Put(put("a", "1"))));
    assert!(store.apply(alarm(1, 0)).rows.is_empty());
    done(&store.apply(alarm(1, 1)));
    assert_eq!(store.row(schema::ALARM, &[8, 9, 16, 1]), Some(Vec::new()));
    assert!(store.apply(alarm(1, 1)).rows.is_empty());
    assert_eq!(store.refusal(Body::Put(put("a", "2"))), Refusal::NoSpace);
    assert_eq!(store.refusal(grant()), Refusal::NoSpace);
    assert_eq!(store.refusal(txn(Op::Put(put("a", "2")))), Refusal::NoSpace);
    done(&store.apply(txn(Op::DeleteRange(delete("b", "")))));
    done(&store.apply(Body::DeleteRange(delete("b", ""))));
    done(&store.apply(Body::Compaction(Compaction { revision: 1, physical: false })));

    done(&store.apply(alarm(1, 2)));
    for body in [
        Body::Put(put("a", "2")),
        grant(),
        txn(Op::DeleteRange(delete("b", ""))),
        Body::DeleteRange(delete("b", "")),
        Body::Compaction(Compaction { revision: 2, physical: false }),
        Body::LeaseRevoke(LeaseRevoke { id: 5 }),
    ] {
        assert_eq!(store.refusal(body), Refusal::Corrupt);
    }
    done(&store.apply(Body::RoleAdd(RoleName { role: b"r" })));
    done(&store.apply(alarm(2, 2)));
    done(&store.apply(alarm(2, 1)));
    assert!(store.apply(alarm(2, 1)).rows.is_empty());
    done(&store.apply(Body::Put(put("a", "2"))));
}

fn add_user<'a>(name: &'a str, hash: &'a str) -> Body<'a> {
    Body::UserAdd(UserAdd {
        name: name.as_bytes(),
        hashed_password: Secret(hash.as_bytes()),
        options: Some(UserOptions::default()),
        ..UserAdd::default()
    })
}

fn user_role<'a>(user: &'a str, role: &'a str) -> UserRole<'a> {
    UserRole { user: user.as_bytes(), role: role.as_bytes() }
}

fn grant<'a>(role: &'a str, kind: u64, key: &'a str, end: &'a str) -> Body<'a> {
    let (key, range_end) = (key.as_bytes(), end.as_bytes());
    Body::RoleGrantPermission(RoleGrantPermission {
        role: role.as_bytes(),
        permission: Some(GrantedPermission { kind, key, range_end }),
    })
}

fn auth_revision(store: &Store) -> u64 {
    let row = store.row(schema::AUTH, schema::AUTH_REVISION);
    row.map_or(0, |row| u64::from_be_bytes(row.try_into().unwrap()))
}

#[test]
fn users_and_roles_change_as_in_etcd() {
    let mut store = Store::default();
    done(&store.apply(add_user("ann", "cHc=")));
    assert_eq!(auth_revision(&store), 2);
    let row = store.row(schema::AUTH_USERS, b"ann").unwrap();
    assert_eq!(row, b"\x0a\x03ann\x12\x02pw\x22\x00");
    assert_eq!(store.refusal(add_user("ann", "cHc=")), Refusal::UserExists);
    assert_eq!(store.refusal(add_user("", "cHc=")), Refusal::UserEmpty);
    assert_eq!(store.refusal(add_user("bob", "?")), Refusal::PasswordInvalid);
    let grant_role = |user, role| Body::UserGrantRole(user_role(user, role));
    assert_eq!(store.refusal(grant_role("ann", "r")), Refusal::RoleNotFound);
    assert_eq!(store.refusal(grant_role("bob", "r")), Refusal::UserNotFound);
    done(&store.apply(Body::RoleAdd(RoleName { role: b"r" })));
    done(&store.apply(Body::RoleAdd(RoleName { role: b"q" })));
    assert_eq!(store.refusal(Body::RoleAdd(RoleName { role: b"r" })), Refusal::RoleExists);
    assert_eq!(store.refusal(Body::RoleAdd(RoleName { role: b"" })), Refusal::RoleEmpty);
    done(&store.apply(grant_role("ann", "r")));
    done(&store.apply(grant_role("ann", "q")));
    assert_eq!(auth_revision(&store), 6);
    assert!(store.apply(grant_role("ann", "q")).rows.is_empty());
    let row = store.row(schema::AUTH_USERS, b"ann").unwrap();
    assert_eq!(row, b"\x0a\x03ann\x12\x02pw\x1a\x01q\x1a\x01r\x22\x00");

    done(&store.apply(grant("r", 2, "k", "")));
    done(&store.apply(grant("r", 0, "b", "\0")));
    done(&store.apply(grant("r", 1, "k", "")));
    let row = store.row(schema::AUTH_ROLES, b"r").unwrap();
    assert_eq!(row, b"\x0a\x01r\x12\x06\x12\x01b\x1a\x01\x00\x12\x05\x08\x01\x12\x01k");
    assert_eq!(store.refusal(grant("r", 0, "k", "a")), Refusal::InvalidAuthManagement);
    assert_eq!(store.refusal(grant("none", 0, "k", "")), Refusal::RoleNotFound);
    let revoke = |key: &'static [u8]| {
        Body::RoleRevokePermission(RoleRevokePermission { role: b"r", key, range_end: b"" })
    };
    assert_eq!(store.refusal(revoke(b"b")), Refusal::PermissionNotGranted);
    done(&store.apply(revoke(b"k")));
    done(&store.apply(Body::UserRevokeRole(user_role("ann", "q"))));
    let again = Body::UserRevokeRole(user_role("ann", "q"));
    assert_eq!(store.refusal(again), Refusal::RoleNotGranted);
    let effect = store.apply(Body::RoleDelete(RoleName { role: b"r" }));
    assert_eq!(effect.rows.len(), 3);
    let row = store.row(schema::AUTH_USERS, b"ann").unwrap();
    assert_eq!(row, b"\x0a\x03ann\x12\x02pw\x22\x00");
    assert_eq!(auth_revision(&store), 12);
    done(&store.apply(Body::UserDelete(UserName { name: b"ann" })));
    let again = Body::UserDelete(UserName { name: b"ann" });
    assert_eq!(store.refusal(again), Refusal::UserNotFound);
}

#[test]
fn passwords_in_the_clear_are_hashed() {
    let mut store =
        Store { rules: Rules { bcrypt_cost: 4, ..Rules::default() }, ..Store::default() };
    let effect = store.apply(Body::UserAdd(UserAdd {
        name: b"ann",
        password: Secret(b"open sesame"),
        ..UserAdd::default()
    }));
    assert_eq!(effect.warnings, [Warning::PasswordHashed]);
    let user = StoredUser::decode(&store.row(schema::AUTH_USERS, b"ann").unwrap()).unwrap();
    let hash = String::from_utf8(user.password.clone()).unwrap();
    assert!(hash.starts_with("$2a$04$") && hash.len() == 60);
    assert!(bcrypt::verify("open sesame", &hash).unwrap());
    assert!(!bcrypt::verify("open sesamf", &hash).unwrap());
    let effect = store.apply(Body::UserChangePassword(UserChangePassword {
        name: b"ann",
        password: Secret(b"open sesame"),
        ..UserChangePassword::default()
    }));
    assert_eq!(effect.warnings, [Warning::PasswordHashed]);
    let new = StoredUser::decode(&store.row(schema::AUTH_USERS, b"ann").unwrap()).unwrap();
    assert_ne!(new.password, user.password);
    let no_password = UserAdd {
        name: b"cert",
        password: Secret(b"x"),
        options: Some(UserOptions { no_password: true }),
        ..UserAdd::default()
    };
    assert!(store.apply(Body::UserAdd(no_password)).warnings.is_empty());
    let row = store.row(schema::AUTH_USERS, b"cert").unwrap();
    assert_eq!(row, b"\x0a\x04cert\x22\x02\x08\x01");
}

#[test]
fn permissions_are_checked_again_when_applied() {
    let mut store = Store::default();
    let enable = || Body::AuthEnable(Nothing {});
    assert_eq!(store.refusal(enable()), Refusal::RootUserMissing);
    done(&store.apply(add_user("root", "cHc=")));
    assert_eq!(store.refusal(enable()), Refusal::RootRoleMissing);
    let login = |name| Body::Authenticate(Authenticate { name, ..Authenticate::default() });
    assert_eq!(store.refusal(login(b"root")), Refusal::AuthNotEnabled);
    done(&store.apply(Body::UserGrantRole(user_role("root", "root"))));
    done(&store.apply(add_user("ann", "cHc=")));
    done(&store.apply(Body::RoleAdd(RoleName { role: b"r" })));
    done(&store.apply(Body::UserGrantRole(user_role("ann", "r"))));
    done(&store.apply(grant("r", 1, "k", "n")));
    done(&store.apply(grant("r", 0, "k", "")));
    done(&store.apply(Body::LeaseGrant(LeaseGrant { ttl_s: 60, id: 5 })));
    let now = auth_revision(&store);
    done(&store.apply(enable()));
    assert_eq!(auth_revision(&store), now);
    assert!(store.apply(Body::AuthEnable(Nothing {})).rows.is_empty() || now == 0);

    let refused = Outcome::Refused;
    let key = |key| Body::Put(put(key, "1"));
    assert_eq!(store.as_user("ann", now, key("k")), Outcome::Done);
    assert_eq!(store.as_user("ann", now, key("n")), refused(Refusal::PermissionDenied));
    assert_eq!(store.as_user("ann", now - 1, key("k")), refused(Refusal::AuthOldRevision));
    assert_eq!(store.as_user("", 0, key("k")), refused(Refusal::UserEmpty));
    assert_eq!(store.as_user("gone", now, key("k")), refused(Refusal::PermissionDenied));
    assert_eq!(store.as_user("root", now, key("n")), Outcome::Done);
    let prev = |key| Body::Put(Put { prev_kv: true, ..put(key, "1") });
    assert_eq!(store.as_user("ann", now, prev("k")), Outcome::Done);
    assert_eq!(store.as_user("ann", now, prev("l")), refused(Refusal::PermissionDenied));
    let range = Body::DeleteRange(delete("k", "n"));
    assert_eq!(store.as_user("ann", now, range), Outcome::Done);
    let range = Body::DeleteRange(delete("k", "o"));
    assert_eq!(store.as_user("ann", now, range), refused(Refusal::PermissionDenied));
    let compare = |key: &'static [u8]| {
        let compare = Compare { key, operand: Some(Operand::Version(0)), ..Compare::default() };
        let failure = vec![Op::Put(put("k", "2"))];
        Body::Txn(Txn { compare: vec![compare], failure, ..Txn::default() })
    };
    assert_eq!(store.as_user("ann", now, compare(b"k")), Outcome::Done);
    assert_eq!(store.as_user("ann", now, compare(b"l")), refused(Refusal::PermissionDenied));

    // A lease that holds somebody else's key.
    let with = |key, lease| Body::Put(Put { lease, ..put(key, "1") });
    assert_eq!(store.as_user("ann", now, with("k", 5)), Outcome::Done);
    assert_eq!(store.as_user("root", now, with("x", 5)), Outcome::Done);
    assert_eq!(store.as_user("ann", now, with("l", 5)), refused(Refusal::PermissionDenied));
    let revoke = || Body::LeaseRevoke(LeaseRevoke { id: 5 });
    assert_eq!(store.as_user("ann", now, revoke()), refused(Refusal::PermissionDenied));
    assert_eq!(store.as_user("root", now, revoke()), Outcome::Done);

    let add = || Body::RoleAdd(RoleName { role: b"s" });
    assert_eq!(store.as_user("ann", now, add()), refused(Refusal::PermissionDenied));
    assert_eq!(store.as_user("", 0, add()), refused(Refusal::UserEmpty));
    assert_eq!(store.as_user("gone", now, add()), refused(Refusal::UserNotFound));
    // Changes of auth need no fresh revision.
    assert_eq!(store.as_user("root", 1, add()), Outcome::Done);
    let invalid = refused(Refusal::InvalidAuthManagement);
    let body = Body::UserDelete(UserName { name: b"root" });
    assert_eq!(store.as_user("root", now, body), invalid);
    let body = Body::RoleDelete(RoleName { role: b"root" });
    assert_eq!(store.as_user("root", now, body), invalid);
    let body = Body::UserRevokeRole(user_role("root", "root"));
    assert_eq!(store.as_user("root", now, body), invalid);
    assert_eq!(store.as_user("", 0, login(b"ann")), Outcome::Done);
    assert_eq!(store.as_user("", 0, login(b"gone")), refused(Refusal::AuthFailed));

    let before = auth_revision(&store);
    assert_eq!(store.as_user("root", now, Body::AuthDisable(Nothing {})), Outcome::Done);
    assert_eq!(auth_revision(&store), before + 1);
    assert_eq!(store.row(schema::AUTH, schema::AUTH_ENABLED), Some(vec![0]));
    assert!(store.apply(Body::AuthDisable(Nothing {})).rows.is_empty());
    assert_eq!(store.as_user("", 0, key("n")), Outcome::Done);
}

fn member(id: u64, url: &str, extra: &str) -> String {
    format!("{{\"id\":{id},\"peerURLs\":[\"{url}\"]{extra}}}")
}

#[test]
fn members_change_as_in_etcd() {
    const ADD: u64 = change_kind::ADD_NODE;
    const LEARN: u64 = change_kind::ADD_LEARNER_NODE;
    let mut store = Store::default();
    let named = member(10, "http://a:1", ",\"name\":\"m1\"");
    done(&store.change(ADD, 10, &named));
    assert_eq!(store.row(schema::MEMBERS, b"a").unwrap(), named.as_bytes());
    let conf = store.row(schema::META, schema::META_CONF_STATE).unwrap();
    assert_eq!(conf, br#"{"voters":[10],"auto_leave":false}"#);
    let refused = |effect: Effect<'_>| match effect.outcome {
        Outcome::Refused(refusal) => refusal,
        Outcome::Done => panic!("it was done"),
    };
    assert_eq!(refused(store.change(ADD, 10, &named)), Refusal::MemberExists);
    let taken = member(11, "http://a:1", "");
    assert_eq!(refused(store.change(ADD, 11, &taken)), Refusal::PeerUrlExists);
    let learner = member(11, "http://b:1", ",\"isLearner\":true");
    done(&store.change(LEARN, 11, &learner));
    let conf = store.row(schema::META, schema::META_CONF_STATE).unwrap();
    assert_eq!(conf, br#"{"voters":[10],"learners":[11],"auto_leave":false}"#);
    let second = member(12, "http://c:1", ",\"isLearner\":true");
    assert_eq!(refused(store.change(LEARN, 12, &second)), Refusal::TooManyLearners);
    let promote = |id| format!("{{\"id\":{id},\"peerURLs\":null,\"isPromote\":true}}");
    assert_eq!(refused(store.change(ADD, 10, &promote(10))), Refusal::MemberNotLearner);
    assert_eq!(refused(store.change(ADD, 13, &promote(13))), Refusal::MemberNotFound);
    done(&store.change(ADD, 11, &promote(11)));
    let row = store.row(schema::MEMBERS, b"b").unwrap();
    assert_eq!(row, member(11, "http://b:1", "").as_bytes());

    let attributes = |id| {
        let attributes = Attributes { name: b"m2", client_urls: vec![b"http://b:2"] };
        Body::MemberAttributes(MemberAttributes { member_id: id, attributes: Some(attributes) })
    };
    done(&store.apply(attributes(11)));
    let update = change_kind::UPDATE_NODE;
    done(&store.change(update, 11, &member(11, "http://bb:1", "")));
    let row = String::from_utf8(store.row(schema::MEMBERS, b"b").unwrap()).unwrap();
    let full = ",\"name\":\"m2\",\"clientURLs\":[\"http://b:2\"]";
    assert_eq!(row, member(11, "http://bb:1", full));
    let taken = member(11, "http://a:1", "");
    assert_eq!(refused(store.change(update, 11, &taken)), Refusal::PeerUrlExists);
    let unknown = member(14, "http://z:1", "");
    assert_eq!(refused(store.change(update, 14, &unknown)), Refusal::MemberNotFound);

    let remove = change_kind::REMOVE_NODE;
    done(&store.change(remove, 11, ""));
    assert_eq!(store.row(schema::MEMBERS, b"b"), None);
    assert_eq!(store.row(schema::MEMBERS_REMOVED, b"b"), Some(b"removed".to_vec()));
    assert_eq!(refused(store.change(remove, 11, "")), Refusal::MemberRemoved);
    assert_eq!(refused(store.change(ADD, 11, &learner)), Refusal::MemberRemoved);
    assert_eq!(refused(store.change(remove, 15, "")), Refusal::MemberNotFound);
    let effect = store.apply(attributes(11));
    assert!(effect.rows.is_empty() && effect.warnings.is_empty());
    assert_eq!(store.apply(attributes(99)).warnings, [Warning::MemberUnknown(99)]);
}

#[test]
fn versions_and_v2_requests_reach_the_database() {
    let mut store = Store::default();
    done(&store.change(change_kind::ADD_NODE, 10, &member(10, "http://a:1", "")));
    let v2 = |method: &'static str, path: &'static str, value: &'static str| {
        let (method, path, value) = (method.as_bytes(), path.as_bytes(), value.as_bytes());
        V2 { id: 3, method, path, value, ..V2::default() }.encode()
    };
    let attributes = r#"{"name":"m1","clientURLs":["http://a:2"]}"#;
    let effect = store.apply_data(0, &v2("PUT", "/0/members/a/attributes", attributes));
    assert_eq!(effect.kind, "v2");
    let row = String::from_utf8(store.row(schema::MEMBERS, b"a").unwrap()).unwrap();
    let full = ",\"name\":\"m1\",\"clientURLs\":[\"http://a:2\"]";
    assert_eq!(row, member(10, "http://a:1", full));
    done(&store.apply_data(0, &v2("PUT", "/0/version", "3.5.0")));
    assert_eq!(store.row(schema::CLUSTER, schema::CLUSTER_VERSION), Some(b"3.5.0".to_vec()));
    let effect = store.apply_data(0, &v2("PUT", "/1/mine", "x"));
    assert_eq!((effect.warnings.len(), effect.rows.len()), (1, 0));
    assert!(store.apply_data(0, &v2("SYNC", "", "")).warnings.is_empty());

    let down = DowngradeInfo { enabled: true, version: b"3.5.0" };
    done(&store.apply(Body::DowngradeInfo(down)));
    let row = store.row(schema::CLUSTER, schema::CLUSTER_DOWNGRADE).unwrap();
    assert_eq!(row, br#"{"target-version":"3.5.0","enabled":true}"#);
    let down = DowngradeInfo { enabled: false, version: b"3.5.0" };
    done(&store.apply(Body::DowngradeInfo(down)));
    let row = store.row(schema::CLUSTER, schema::CLUSTER_DOWNGRADE).unwrap();
    assert_eq!(row, br#"{"target-version":"","enabled":false}"#);
}

#[test]
fn what_is_not_understood_is_named() {
    let store = RowState::default();
    let error = |kind, bytes: &[u8]| {
        let entry = Entry { kind, ..entry(5, bytes) };
        apply(&store, &Rules::default(), &entry).unwrap_err().to_string()
    };
    assert!(error(2, b"").contains("entry 5 of the log: its kind is 2"));
    assert!(error(0, &[0x08, 1, 0x7a, 0]).contains("field 15 of InternalRaftRequest"));
    let header = [0xa2, 6, 2, 8, 7];
    assert!(error(0, &[&header[..], &[0x22, 2, 0x40, 1]].concat()).contains("8 of PutRequest"));
    assert!(error(0, &header).contains("a request of no kind"));
    assert!(error(0, &[0x22, 0]).contains("without an id"));
    assert!(error(1, &[0x10, 9]).contains("kind 9"));
    let version = data(Body::ClusterVersionSet(VersionName { version: b"three" }));
    assert!(error(0, &version).contains("a cluster version that is none: three"));
    let mut entry = entry(6, b"");
    entry.unknown_field = Some(9);
    let error = apply(&store, &Rules::default(), &entry).unwrap_err();
    assert!(error.to_string().contains("field 9"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 192 } else { 2000 }))]

    #[test]
    fn any_requests_do_what_a_naive_store_does(plans in plans(30)) {
        let (mut rows, mut naive) = (RowState::default(), Naive::new());
        for (index, plan) in (1..).zip(&plans) {
            let bytes = plan.data();
            let want = naive.apply(plan);
            let effect = match (apply(&rows, &Rules::default(), &entry(index, &bytes)), want) {
                (Ok(effect), want) => {
                    let want = want.map_or_else(
                        |refusal| Outcome::Refused(refusal.expect("etcd would stop")),
                        |()| Outcome::Done,
                    );
                    prop_assert_eq!(effect.outcome, want, "{:?}", plan);
                    effect
                }
                (Err(Error::Entry { .. }), Err(None)) => continue,
                (Err(error), _) => panic!("{error} on {plan:?}"),
            };
            prop_assert_eq!(effect.revision, naive.revision);
            rows.take(&effect);
            prop_assert_eq!(rows.current_revision(), naive.revision);
            prop_assert_eq!(rows.compact_revision(), naive.compacted);
            let live = rows.live();
            prop_assert_eq!(live.len(), naive.live.len());
            for (key, (latest, value)) in &live {
                let want = &naive.live[key];
                prop_assert_eq!(latest.create_revision, want.create);
                prop_assert_eq!(latest.modified.main, want.modified);
                prop_assert_eq!((latest.version, latest.lease), (want.version, want.lease));
                prop_assert_eq!(value, &want.value);
            }
            let leases = rows.buckets.get(schema::LEASE).map_or(0, |leases| leases.len());
            prop_assert_eq!(leases, naive.leases.len());
        }
    }

    #[test]
    fn any_entry_is_answered(
        kind in 0_u64..3,
        bytes in proptest::collection::vec(any::<u8>(), 0..60),
    ) {
        let entry = Entry { kind, ..entry(1, &bytes) };
        let _ = apply(&RowState::default(), &Rules::default(), &entry).is_ok();
    }
}
