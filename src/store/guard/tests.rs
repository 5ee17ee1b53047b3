use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::etcd::apply::model::RowState;
use crate::etcd::apply::{self, Outcome, Refusal, Rules, StoredRole, StoredUser};
use crate::etcd::request::{
    Alarm, Body, Compare, DEPTH_MAX, DeleteRange, Header, LeaseGrant, LeaseRevoke, Nothing, Op,
    Put, Range, Request, RoleName, Secret, Txn, UserAdd, UserName, UserOptions,
};
use crate::etcd::rows::Permission;
use crate::etcd::schema;
use crate::format::pb;
use crate::format::wal::{Entry, entry_kind};
use crate::store::clock::FakeClock;
use crate::store::directory;
use crate::store::error::Error;

const OPS: usize = 128;

fn put(key: &str) -> Op<'_> {
    Op::Put(Put { key: key.as_bytes(), ..Put::default() })
}

fn delete<'a>(key: &'a str, range_end: &'a str) -> Op<'a> {
    let (key, range_end) = (key.as_bytes(), range_end.as_bytes());
    Op::DeleteRange(DeleteRange { key, range_end, prev_kv: false })
}

fn txn<'a>(success: Vec<Op<'a>>, failure: Vec<Op<'a>>) -> Op<'a> {
    Op::Txn(Txn { compare: Vec::new(), success, failure })
}

fn check(op: Op<'_>, max: usize) -> Result<(), Error> {
    let Op::Txn(txn) = op else { panic!("a transaction") };
    check_form(&Body::Txn(txn), max)
}

#[test]
fn forms_of_single_requests() {
    let range = |key: &'static [u8], sort_order, sort_target| {
        check_range_form(&Range { key, sort_order, sort_target, ..Range::default() })
    };
    assert_eq!(range(b"", 9, 9), Err(Error::EmptyKey));
    assert_eq!(range(b"a", 2, 4), Ok(()));
    assert_eq!(range(b"a", 3, 0), Err(Error::InvalidSort));
    assert_eq!(range(b"a", 0, 5), Err(Error::InvalidSort));
    assert_eq!(range(b"a", u64::MAX, 0), Err(Error::InvalidSort));

    let put = |put: Put<'static>| check_form(&Body::Put(put), OPS);
    let all = Put {
        key: b"",
        value: b"v",
        lease: 1,
        prev_kv: false,
        ignore_value: true,
        ignore_lease: true,
    };
    assert_eq!(put(all.clone()), Err(Error::EmptyKey));
    assert_eq!(put(Put { key: b"k", ..all.clone() }), Err(Error::ValueProvided));
    assert_eq!(put(Put { key: b"k", value: b"", ..all.clone() }), Err(Error::LeaseProvided));
    assert_eq!(put(Put { key: b"k", value: b"", lease: 0, ..all }), Ok(()));

    assert_eq!(check_form(&Body::DeleteRange(DeleteRange::default()), OPS), Err(Error::EmptyKey));
    let alarm =
        |action, alarm| check_form(&Body::Alarm(Alarm { action, member_id: 1, alarm }), OPS);
    assert_eq!((alarm(0, 0), alarm(2, 2)), (Ok(()), Ok(())));
    assert_eq!((alarm(3, 0), alarm(1, 3)), (Err(Error::InvalidAlarm), Err(Error::InvalidAlarm)));
}

#[test]
fn the_operations_of_a_transaction_are_counted_by_level() {
    let keys: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    let puts = |count: usize| keys[..count].iter().map(|key| put(key)).collect::<Vec<_>>();
    assert_eq!(check(txn(puts(128), puts(128)), OPS), Ok(()));
    assert_eq!(check(txn(puts(129), Vec::new()), OPS), Err(Error::TooManyOps));
    assert_eq!(check(txn(Vec::new(), puts(129)), OPS), Err(Error::TooManyOps));
    assert_eq!(check(txn(vec![txn(puts(127), Vec::new())], Vec::new()), OPS), Ok(()));
    assert_eq!(
        check(txn(vec![txn(puts(128), Vec::new())], Vec::new()), OPS),
        Err(Error::TooManyOps)
    );
    // The longest list of the parent counts, be it another one.
    let compare = vec![Compare { key: b"k", ..Compare::default() }; 100];
    let wide = |count| Txn {
        compare: compare.clone(),
        success: vec![txn(puts(count), Vec::new())],
        failure: Vec::new(),
    };
    assert_eq!(check_form(&Body::Txn(wide(28)), OPS), Ok(()));
    assert_eq!(check_form(&Body::Txn(wide(29)), OPS), Err(Error::TooManyOps));
    assert_eq!(check(txn(Vec::new(), Vec::new()), 0), Ok(()));
    assert_eq!(check(txn(puts(1), Vec::new()), 0), Err(Error::TooManyOps));
}

#[test]
fn what_is_in_a_transaction_is_checked_in_order() {
    let empty_compare = Txn { compare: vec![Compare::default()], ..Txn::default() };
    assert_eq!(check_form(&Body::Txn(empty_compare.clone()), OPS), Err(Error::EmptyKey));
    assert_eq!(check(txn(vec![Op::Nothing], Vec::new()), OPS), Err(Refusal::KeyNotFound.into()));
    assert_eq!(
        check(txn(vec![put("a"), put("a"), put("")], Vec::new()), OPS),
        Err(Error::EmptyKey)
    );
    let sort = Op::Range(Range { key: b"k", sort_order: 7, ..Range::default() });
    let first = txn(vec![txn(vec![sort], Vec::new()), Op::Nothing], Vec::new());
    assert_eq!(check(first, OPS), Err(Error::InvalidSort));
    let inner = txn(Vec::new(), vec![Op::Txn(empty_compare)]);
    assert_eq!(check(inner, OPS), Err(Error::EmptyKey));
}

#[test]
fn no_key_is_changed_twice() {
    let twice = Err(Error::DuplicateKey);
    let then = |ops| check(txn(ops, Vec::new()), OPS);
    assert_eq!(then(vec![put("a"), put("b")]), Ok(()));
    assert_eq!(then(vec![put("a"), put("a")]), twice);
    assert_eq!(check(txn(vec![put("a")], vec![put("a")]), OPS), Ok(()), "one of the two");
    assert_eq!(check(txn(Vec::new(), vec![put("a"), put("a")]), OPS), twice);
    assert_eq!(then(vec![put("a"), delete("a", "")]), twice);
    assert_eq!(then(vec![delete("a", "c"), put("b")]), twice);
    assert_eq!(then(vec![put("c"), delete("a", "c")]), Ok(()));
    assert_eq!(then(vec![put("aa"), delete("a", "")]), Ok(()));
    assert_eq!(then(vec![delete("a", "c"), delete("b", "d")]), Ok(()));
    assert_eq!(then(vec![delete("c", "a"), put("b")]), Ok(()), "no keys");
    assert_eq!(then(vec![delete("a", "\0"), put("b")]), twice, "from a key on");
    assert_eq!(then(vec![delete("b", "\0"), put("a")]), Ok(()));
    assert_eq!(then(vec![delete("c", "\0"), delete("b", "\0"), put("b")]), twice);
    assert_eq!(then(vec![delete("b", "\0"), txn(vec![put("c")], vec![])]), twice);
    assert_eq!(then(vec![put("c"), txn(vec![], vec![delete("b", "\0")])]), twice);
    // Both lists of one inner transaction may, two inner ones may not.
    assert_eq!(then(vec![txn(vec![put("a")], vec![put("a")])]), Ok(()));
    assert_eq!(then(vec![txn(vec![put("a")], vec![]), txn(vec![], vec![put("a")])]), twice);
    assert_eq!(then(vec![put("a"), txn(vec![put("a")], vec![])]), twice);
    assert_eq!(then(vec![delete("a", ""), txn(vec![], vec![put("a")])]), twice);
    assert_eq!(then(vec![put("a"), txn(vec![delete("a", "b")], vec![])]), twice);
    assert_eq!(then(vec![txn(vec![delete("a", "")], vec![put("a")])]), Ok(()));
    // In turn: a delete after a put is missed, a put after a delete is not.
    assert_eq!(then(vec![txn(vec![put("a")], vec![]), txn(vec![delete("a", "")], vec![])]), Ok(()));
    assert_eq!(then(vec![txn(vec![delete("a", "")], vec![]), txn(vec![put("a")], vec![])]), twice);
}

#[test]
fn depth_is_bounded_by_what_the_log_can_hold() {
    let nested = |levels: u32| {
        (1..levels).fold(txn(vec![put("k")], vec![]), |inner, _| txn(vec![inner], vec![]))
    };
    let data = |levels| {
        let Op::Txn(txn) = nested(levels) else { panic!("a transaction") };
        let header = Some(Header { id: 1, ..Header::default() });
        Request { id: 0, header, body: Body::Txn(txn) }.encode()
    };
    let deepest =
        (1..DEPTH_MAX).rev().find(|levels| check(nested(*levels), 10_000).is_ok()).unwrap();
    let decode = |data: &[u8]| crate::etcd::request::Content::decode(data).map(|_| ());
    assert_eq!(decode(&data(deepest)), Ok(()));
    assert!(decode(&data(deepest + 1)).is_err());
    assert_eq!(check(nested(deepest + 1), 10_000), Err(Error::TooManyOps));
    assert_eq!(check(nested(1_000), usize::MAX), Err(Error::TooManyOps));
}

#[test]
fn large_and_deep_transactions_take_no_time() {
    let keys: Vec<String> = (0..60_000).map(|n| format!("{n:05}")).collect();
    let begin = Instant::now();
    // Puts rise through many levels, each with deletes of its own.
    let bottom = txn(keys.iter().map(|key| put(key)).collect(), Vec::new());
    let deep = (0..100).fold(bottom, |inner, _| {
        let mut ops = vec![inner];
        ops.extend(keys.iter().take(300).map(|key| delete(key, "")));
        txn(vec![txn(Vec::new(), ops)], Vec::new())
    });
    assert_eq!(check(deep, usize::MAX), Err(Error::TooManyOps), "too deep");
    let bottom = txn(keys.iter().map(|key| put(key)).collect(), Vec::new());
    let deep = (0..150).fold(bottom, |inner, _| {
        let mut ops = vec![inner];
        ops.extend((0..200).map(|_| delete("x", "y")));
        txn(ops, Vec::new())
    });
    assert_eq!(check(deep, usize::MAX), Ok(()));
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    let many = (0..100_001).map(|_| delete("x", "")).collect();
    assert_eq!(check(txn(many, Vec::new()), usize::MAX), Err(Error::TooManyOps));
}

/// The rule as one would say it: every pair is looked at.
fn naive(ops: &[Op<'_>]) -> Option<(Vec<Vec<u8>>, Vec<DeleteRange<'static>>)> {
    fn own(delete: &DeleteRange<'_>) -> DeleteRange<'static> {
        let leak = |bytes: &[u8]| &*Vec::leak(bytes.to_vec());
        DeleteRange { key: leak(delete.key), range_end: leak(delete.range_end), prev_kv: false }
    }
    let hits = |delete: &DeleteRange<'_>, key: &[u8]| match delete.range_end {
        [] => delete.key == key,
        [0] => delete.key <= key,
        end => delete.key <= key && key < end,
    };
    let (mut puts, mut deletes) = (Vec::new(), Vec::new());
    for op in ops {
        if let Op::DeleteRange(delete) = op {
            deletes.push(own(delete));
        }
    }
    for op in ops {
        let Op::Txn(inner) = op else { continue };
        let (mut new, one) = naive(&inner.success)?;
        let (other_puts, other) = naive(&inner.failure)?;
        new.extend(other_puts);
        let is_bad =
            |key: &Vec<u8>| puts.contains(key) || deletes.iter().any(|delete| hits(delete, key));
        if new.iter().any(is_bad) {
            return None;
        }
        puts.extend(new);
        deletes.extend(one);
        deletes.extend(other);
    }
    for op in ops {
        if let Op::Put(put) = op {
            let key = put.key.to_vec();
            if puts.contains(&key) || deletes.iter().any(|delete| hits(delete, &key)) {
                return None;
            }
            puts.push(key);
        }
    }
    Some((puts, deletes))
}

const TEXTS: [&str; 9] = ["\0", "a", "a\0", "aa", "ab", "b", "b\0", "ba", "c"];

fn ops() -> impl Strategy<Value = Vec<Op<'static>>> {
    let text = || proptest::sample::select(&TEXTS[..]);
    let end = || prop_oneof![2 => Just(""), 3 => text()];
    let leaf = prop_oneof![
        3 => text().prop_map(put),
        1 => (text(), end()).prop_map(|(key, end)| delete(key, end)),
        1 => text().prop_map(|key| Op::Range(Range { key: key.as_bytes(), ..Range::default() })),
    ];
    let op = leaf.prop_recursive(4, 24, 4, |inner| {
        (vec(inner.clone(), 0..3), vec(inner, 0..3)).prop_map(|(yes, no)| txn(yes, no))
    });
    vec(op, 0..5)
}

proptest! {
    #[test]
    fn duplicates_are_found_as_by_looking_at_every_pair(success in ops(), failure in ops()) {
        let is_good = naive(&success).is_some() && naive(&failure).is_some();
        let want = if is_good { Ok(()) } else { Err(Error::DuplicateKey) };
        prop_assert_eq!(check(txn(success, failure), OPS), want);
    }
}

#[test]
fn costs_are_etcds() {
    let put_of = |key: &'static [u8], value: &'static [u8]| Put { key, value, ..Put::default() };
    assert_eq!(cost(&Body::Put(put_of(b"key", b"value"))), 264);
    assert_eq!(cost(&Body::LeaseGrant(LeaseGrant::default())), 64);
    assert_eq!(cost(&Body::DeleteRange(DeleteRange::default())), 0);
    let inner = txn(vec![put("bb"), put("c")], vec![]);
    let both = Txn {
        compare: Vec::new(),
        success: vec![put("a"), inner],
        failure: vec![put("d"), delete("e", "")],
    };
    assert_eq!(cost(&Body::Txn(both)), 257 + 258 + 257);
    let deep =
        (0..1_000).fold(txn(vec![put("k")], vec![]), |inner, _| self::txn(vec![inner], vec![]));
    let Op::Txn(deep) = deep else { panic!("a transaction") };
    assert_eq!(cost(&Body::Txn(deep)), 0, "deeper than any request");
}

#[test]
fn quotas_admit_less_than_the_limit() {
    assert_eq!(Quota::of_flag(0), Quota::Bytes(2_147_483_648));
    assert_eq!(Quota::of_flag(-1), Quota::Off);
    assert_eq!(Quota::of_flag(5), Quota::Bytes(5));
    let quota = Quota::Bytes(1000);
    assert!(quota.admits(700, 299) && !quota.admits(700, 300));
    assert!(quota.admits(5000, 0), "deletes always");
    assert!(!quota.admits(u64::MAX, 1));
    assert!(Quota::Off.admits(u64::MAX, u64::MAX));
}

#[test]
fn tokens_live_while_they_are_used() {
    let clock = Arc::new(FakeClock::default());
    let second = Duration::from_secs(1);
    let tokens =
        Tokens::new(Arc::clone(&clock) as Arc<dyn crate::store::clock::Clock>, 10 * second);
    let ann = tokens.assign("ann", "abc", 7);
    assert_eq!(ann, "abc.7");
    clock.advance(9 * second);
    assert_eq!(tokens.find(&ann).as_deref(), Some("ann"));
    clock.advance(10 * second);
    assert_eq!(tokens.find(&ann).as_deref(), Some("ann"));
    clock.advance(11 * second);
    assert_eq!(tokens.find(&ann), None);
    assert_eq!(tokens.find(""), None);

    let (ann, bob) = (tokens.assign("ann", "x", 1), tokens.assign("bob", "y", 2));
    let again = tokens.assign("ann", "z", 3);
    tokens.follow(&Body::UserDelete(UserName { name: b"ann" }));
    assert_eq!((tokens.find(&ann), tokens.find(&again)), (None, None));
    tokens.follow(&Body::UserAdd(UserAdd { name: b"bob", ..UserAdd::default() }));
    assert_eq!(tokens.find(&bob).as_deref(), Some("bob"));
    assert!(!format!("{tokens:?}").contains("y.2"));
    tokens.follow(&Body::AuthDisable(Nothing {}));
    assert_eq!(tokens.find(&bob), None);
}

#[test]
fn tokens_are_bounded() {
    let clock = Arc::new(FakeClock::default());
    let tokens = Tokens::bounded(
        Arc::clone(&clock) as Arc<dyn crate::store::clock::Clock>,
        Duration::ZERO,
        2,
    );
    let names = ["a", "b", "c"];
    let all = names.map(|name| {
        clock.advance(Duration::from_secs(1));
        tokens.assign(name, name, 1)
    });
    assert_eq!(all.each_ref().map(|token| tokens.find(token).is_some()), [false, true, true]);
    clock.advance(Duration::from_secs(300));
    assert!(tokens.find("b.1").is_some(), "five minutes by default");
    assert_eq!(tokens.assign("b", "b", 1), tokens.assign("b", "b", 1));
}

#[test]
fn letters_are_random() {
    let all: BTreeSet<String> = (0..50).map(|_| Tokens::new_prefix().unwrap()).collect();
    assert_eq!(all.len(), 50);
    assert!(all.iter().all(|p| p.len() == 16 && p.bytes().all(|b| b.is_ascii_alphabetic())));
    let letters: BTreeSet<char> = all.iter().flat_map(|prefix| prefix.chars()).collect();
    assert!(letters.len() > 40, "{letters:?}");
}

struct Store(RowState);

impl Store {
    /// Makes a store with auth on, at revision 5, with user root.
    fn new() -> Self {
        let mut store = Self(RowState::default());
        store.0.put(schema::AUTH, schema::AUTH_ENABLED, &[1]);
        store.0.put(schema::AUTH, schema::AUTH_REVISION, &5_u64.to_be_bytes());
        store.user("root", &["root"]);
        store
    }

    fn user(&mut self, name: &str, roles: &[&str]) {
        let roles = roles.iter().map(|role| role.as_bytes().to_vec()).collect();
        let user = StoredUser {
            name: name.into(),
            roles,
            no_password: Some(false),
            ..StoredUser::default()
        };
        self.0.put(schema::AUTH_USERS, name.as_bytes(), &user.encode());
    }

    fn role(&mut self, name: &str, permissions: &[(u64, &[u8], &[u8])]) {
        let permissions = permissions
            .iter()
            .map(|(kind, key, end)| Permission {
                kind: *kind,
                key: key.to_vec(),
                range_end: end.to_vec(),
            })
            .collect();
        let role = StoredRole { name: name.into(), permissions };
        self.0.put(schema::AUTH_ROLES, name.as_bytes(), &role.encode());
    }

    /// Applies a request as root, with the effect that it has.
    fn apply(&mut self, body: Body<'_>) {
        let (outcome, effect) = applied(&self.0, "root", 5, body);
        assert_eq!(outcome, Outcome::Done);
        self.0 = effect;
    }

    fn ask(&self, name: &str, body: &Body<'_>) -> Result<(), Error> {
        check_access(&self.0, &caller(name, 5), Wish::Request(body))
    }
}

fn caller(name: &str, auth_revision: u64) -> Caller {
    Caller { user: Some(User { name: name.into(), auth_revision }) }
}

fn applied(
    state: &RowState,
    name: &str,
    auth_revision: u64,
    body: Body<'_>,
) -> (Outcome, RowState) {
    let header = Header { id: 9, username: name.as_bytes(), auth_revision };
    let data = Request { id: 0, header: Some(header), body }.encode();
    let entry =
        Entry { kind: entry_kind::NORMAL, term: 2, index: 9, data: &data, unknown_field: None };
    let effect = apply::apply(state, &Rules::default(), &entry).unwrap();
    let outcome = effect.outcome;
    let mut after = state.clone();
    after.take(&effect);
    (outcome, after)
}

fn body_put(key: &[u8], lease: i64, prev_kv: bool) -> Body<'_> {
    Body::Put(Put { key, lease, prev_kv, ..Put::default() })
}

fn body_range<'a>(key: &'a [u8], range_end: &'a [u8]) -> Body<'a> {
    Body::Range(Range { key, range_end, ..Range::default() })
}

const DENIED: Result<(), Error> = Err(Error::Refused(Refusal::PermissionDenied));
const NOBODY: Result<(), Error> = Err(Error::Refused(Refusal::UserEmpty));

#[test]
fn access_is_as_in_the_table() {
    let mut store = Store::new();
    store.role("reader", &[(0, b"a", b"c"), (0, b"x", b"")]);
    store.role("writer", &[(1, b"c", b"e"), (2, b"m", b"\0")]);
    store.user("ann", &["reader", "writer", "gone"]);
    store.apply(Body::LeaseGrant(LeaseGrant { ttl_s: 60, id: 1 }));
    store.apply(Body::LeaseGrant(LeaseGrant { ttl_s: 60, id: 2 }));
    store.apply(body_put(b"d", 1, false));
    store.apply(body_put(b"a", 2, false));

    let ann = |body: Body<'_>| store.ask("ann", &body);
    assert_eq!((ann(body_range(b"a", b"")), ann(body_range(b"a", b"c"))), (Ok(()), Ok(())));
    assert_eq!((ann(body_range(b"a", b"d")), ann(body_range(b"c", b""))), (DENIED, DENIED));
    // One key is not all keys from it on.
    assert_eq!((ann(body_range(b"x", b"")), ann(body_range(b"m", b"\0"))), (Ok(()), Ok(())));
    assert_eq!((ann(body_range(b"a", b"\0")), ann(body_range(b"\0", b"\0"))), (DENIED, DENIED));
    assert_eq!((ann(body_put(b"c", 0, false)), ann(body_put(b"c", 0, true))), (Ok(()), DENIED));
    assert_eq!((ann(body_put(b"n", 0, true)), ann(body_put(b"a", 0, false))), (Ok(()), DENIED));
    assert_eq!((ann(body_put(b"c", 1, false)), ann(body_put(b"c", 2, false))), (Ok(()), DENIED));
    assert_eq!(ann(body_put(b"c", 77, false)), Ok(()), "no such lease, which others say");
    let revoke = |id| ann(Body::LeaseRevoke(LeaseRevoke { id }));
    assert_eq!((revoke(1), revoke(2), revoke(3)), (Ok(()), DENIED, Ok(())));

    let wish = |name: &str, wish| check_access(&store.0, &caller(name, 5), wish);
    assert_eq!(
        (wish("ann", Wish::KeepAlive(1)), wish("ann", Wish::KeepAlive(2))),
        (Ok(()), DENIED)
    );
    assert_eq!(
        (wish("ann", Wish::LeaseKeys(1)), wish("ann", Wish::LeaseKeys(2))),
        (DENIED, Ok(()))
    );
    assert_eq!((wish("ann", Wish::Leases), wish("root", Wish::Leases)), (DENIED, Ok(())));
    assert_eq!((wish("ann", Wish::Admin), wish("root", Wish::Admin)), (DENIED, Ok(())));
    assert_eq!(wish("ann", Wish::AnyUser), Ok(()));
    assert_eq!(wish("ann", Wish::Watch(b"a", b"b")), Ok(()));
    assert_eq!(wish("ann", Wish::Watch(b"x", b"\0")), Ok(()), "m and what follows");
    assert_eq!(wish("ann", Wish::Watch(b"a", b"\0")), DENIED);
    assert_eq!(wish("ann", Wish::Watch(b"", b"\0")), DENIED);
    assert_eq!(wish("root", Wish::Watch(b"", b"\0")), Ok(()));

    let user = |name: &'static [u8]| Body::UserGet(UserName { name });
    let role = |role: &'static [u8]| Body::RoleGet(RoleName { role });
    assert_eq!((ann(user(b"ann")), ann(user(b"root"))), (Ok(()), DENIED));
    assert_eq!(
        (ann(role(b"reader")), ann(role(b"gone")), ann(role(b"root"))),
        (Ok(()), Ok(()), DENIED)
    );
    let alarm = |action| Body::Alarm(Alarm { action, member_id: 1, alarm: 1 });
    assert_eq!((ann(alarm(0)), ann(alarm(1)), ann(alarm(2))), (Ok(()), DENIED, DENIED));
    for body in
        [Body::UserList(Nothing {}), Body::RoleList(Nothing {}), Body::AuthDisable(Nothing {})]
    {
        assert_eq!((ann(body.clone()), store.ask("root", &body)), (DENIED, Ok(())), "{body:?}");
    }
    let compaction = Body::Compaction(Default::default());
    assert_eq!((ann(compaction.clone()), store.ask("root", &compaction)), (DENIED, Ok(())));
    assert_eq!(ann(Body::LeaseGrant(LeaseGrant::default())), Ok(()));
    assert_eq!(ann(Body::AuthStatus(Nothing {})), Ok(()));

    let Op::Txn(mut good) = txn(vec![put("c")], vec![delete("d", ""), txn(vec![put("n")], vec![])])
    else {
        panic!("a transaction")
    };
    good.compare = vec![Compare { key: b"a", range_end: b"c", ..Compare::default() }];
    assert_eq!(ann(Body::Txn(good.clone())), Ok(()));
    let mut bad = good.clone();
    bad.compare[0].range_end = b"\0";
    assert_eq!(ann(Body::Txn(bad)), DENIED);
    good.failure[1] = txn(vec![], vec![txn(vec![put("a")], vec![])]);
    assert_eq!(ann(Body::Txn(good)), DENIED);
}

#[test]
fn errors_say_what_is_missing() {
    let mut store = Store::new();
    store.user("ann", &[]);
    let all = |caller: &Caller| {
        [
            check_access(&store.0, caller, Wish::Request(&body_range(b"a", b""))),
            check_access(&store.0, caller, Wish::Admin),
            check_access(&store.0, caller, Wish::AnyUser),
            check_access(&store.0, caller, Wish::KeepAlive(1)),
        ]
    };
    let old: Result<(), Error> = Err(Refusal::AuthOldRevision.into());
    let unknown: Result<(), Error> = Err(Refusal::UserNotFound.into());
    assert_eq!(all(&Caller::default()), [NOBODY, NOBODY, NOBODY, NOBODY]);
    assert_eq!(all(&caller("root", 4)), [old.clone(), Ok(()), Ok(()), Ok(())]);
    assert_eq!(all(&caller("ann", 4)), [old, DENIED, Ok(()), Ok(())]);
    assert_eq!(all(&caller("bob", 5)), [DENIED, unknown, Ok(()), Ok(())]);
    assert_eq!(all(&caller("root", 6)), [Ok(()), Ok(()), Ok(()), Ok(())]);
    let get = |name: &'static [u8]| Body::UserGet(UserName { name });
    assert_eq!(check_access(&store.0, &Caller::default(), Wish::Request(&get(b"ann"))), NOBODY);

    store.0.put(schema::AUTH, schema::AUTH_ENABLED, &[0]);
    let off = [Wish::Admin, Wish::AnyUser, Wish::Leases, Wish::Watch(b"", b"\0")];
    assert!(off.iter().all(|wish| check_access(&store.0, &Caller::default(), *wish).is_ok()));
    store.0.put(schema::AUTH, schema::AUTH_ENABLED, &[1]);
    store.0.put(schema::AUTH_USERS, b"ann", b"\xff");
    let broken = check_access(&store.0, &caller("ann", 5), Wish::AnyUser);
    assert!(matches!(broken, Err(Error::Storage(_))), "{broken:?}");
}

fn text(max: usize) -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![Just(0_u8), Just(b'a'), Just(b'b')], 1..=max)
}

fn range_end() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![2 => Just(Vec::new()), 1 => Just(vec![0]), 3 => text(2)]
}

fn holds(key: &[u8], range_end: &[u8], one: &[u8]) -> bool {
    crate::etcd::request::span(key, range_end).contains(one)
}

/// Every key of up to three letters: whatever gap permissions leave begins with one of them.
fn universe() -> Vec<Vec<u8>> {
    let mut all = vec![Vec::new()];
    let mut from = 0;
    for _ in 0..3 {
        let upto = all.len();
        for at in from..upto {
            for letter in [0, b'a', b'b'] {
                all.push([&all[at][..], &[letter]].concat());
            }
        }
        from = upto;
    }
    all.remove(0);
    all
}

proptest! {
    #[test]
    fn permissions_are_those_of_each_key(
        one in vec((0_u64..3, text(2), range_end()), 0..4),
        other in vec((0_u64..3, text(2), range_end()), 0..4),
        key in text(2),
        end in range_end(),
    ) {
        let mut store = Store::new();
        for (name, list) in [("one", &one), ("other", &other)] {
            let list: Vec<_> = list.iter().map(|(kind, k, e)| (*kind, &k[..], &e[..])).collect();
            store.role(name, &list);
        }
        store.user("ann", &["one", "other"]);
        let gives = |kind: u64, key: &[u8]| {
            let mut all = one.iter().chain(&other);
            all.any(|(own, k, e)| (*own == 2 || *own == kind) && holds(k, e, key))
        };
        let wanted: Vec<_> = universe().into_iter().filter(|one| holds(&key, &end, one)).collect();
        let may = |kind| wanted.iter().all(|key| gives(kind, key));
        let want = |is_given| if is_given { Ok(()) } else { DENIED };
        let read = body_range(&key, &end);
        let change = Body::DeleteRange(DeleteRange { key: &key, range_end: &end, prev_kv: false });
        if !wanted.is_empty() {
            prop_assert_eq!(store.ask("ann", &read), want(may(0)));
            prop_assert_eq!(store.ask("ann", &change), want(may(1)));
            prop_assert_eq!(
                check_access(&store.0, &caller("ann", 5), Wish::Watch(&key, &end)),
                want(may(0))
            );
        }
        // What is logged all the same is refused alike.
        let (outcome, _) = applied(&store.0, "ann", 5, change.clone());
        let is_denied = outcome == Outcome::Refused(Refusal::PermissionDenied);
        prop_assert_eq!(is_denied, store.ask("ann", &change) == DENIED);
    }
}

#[test]
fn passwords_are_hashed_and_found_again() {
    let cost = *BCRYPT_COSTS.start();
    let hash = PasswordHash::of_new_user(b"secret", None, cost).unwrap();
    assert_ne!(hash, PasswordHash::of_new_user(b"secret", None, cost).unwrap(), "salted");
    assert!(!format!("{hash:?}").contains("JDJh"));
    assert!(hash.secret().0.starts_with(b"JDJhJDA0J"), "base64 of $2a$04$");
    let mut store = Store::new();
    store.apply(Body::UserAdd(UserAdd {
        name: b"ann",
        hashed_password: hash.secret(),
        options: Some(UserOptions::default()),
        ..UserAdd::default()
    }));
    let check = PasswordCheck::of(&store.0, b"ann").unwrap();
    assert_eq!(check.verify(b"secret"), Ok(6));
    let failed: Result<u64, Error> = Err(Refusal::AuthFailed.into());
    assert_eq!((check.verify(b"Secret"), check.verify(b"")), (failed.clone(), failed.clone()));
    assert!(!format!("{check:?}").contains("2a"));
    assert_eq!(PasswordCheck::of(&store.0, b"bob").unwrap_err(), Refusal::AuthFailed.into());
    assert_eq!(PasswordCheck::of(&store.0, b"").unwrap_err(), Refusal::AuthFailed.into());

    // A hash that Go made, of `allmine`.
    let mut user = Vec::new();
    pb::put_bytes(&mut user, 1, b"old");
    pb::put_bytes(&mut user, 2, b"$2a$10$XajjQvNhvvRt5GSeFk1xFeyqRrsxkhBkUiQeg0dt.wU1qD4aFDcga");
    store.0.put(schema::AUTH_USERS, b"old", &user);
    assert_eq!(PasswordCheck::of(&store.0, b"old").unwrap().verify(b"allmine"), Ok(6));

    let no_password = UserOptions { no_password: true };
    let none = PasswordHash::of_new_user(b"x", Some(&no_password), cost).unwrap();
    assert_eq!(none.secret(), Secret(b""));
    store.apply(Body::UserAdd(UserAdd {
        name: b"cert",
        options: Some(no_password),
        ..UserAdd::default()
    }));
    assert_eq!(PasswordCheck::of(&store.0, b"cert").unwrap_err(), Error::NoPasswordUser);
    assert_eq!(PasswordHash::of_change(b"", cost).unwrap().secret(), Secret(b""));
    // A user without a hash cannot log in, not with an empty password either.
    assert_eq!(PasswordCheck::of(&store.0, b"root").unwrap().verify(b""), failed);

    assert!(PasswordHash::of_change(&[b'x'; 72], cost).is_ok());
    assert_eq!(PasswordHash::of_change(&[b'x'; 73], cost), Err(Error::PasswordTooLong));
    store.0.put(schema::AUTH, schema::AUTH_ENABLED, &[0]);
    assert_eq!(PasswordCheck::of(&store.0, b"ann").unwrap_err(), Refusal::AuthNotEnabled.into());
}

#[test]
fn the_directory_shows_rows() {
    let mut store = Store::new();
    store.user("ann", &["r", "root"]);
    store.role("r", &[(0, b"a", b"b")]);
    store.role("root", &[]);
    let state = &store.0;
    assert_eq!(directory::users(state).unwrap(), ["ann", "root"]);
    assert_eq!(directory::roles(state).unwrap(), ["r", "root"]);
    assert_eq!(directory::user_roles(state, b"ann").unwrap(), ["r", "root"]);
    assert_eq!(directory::user_roles(state, b"bob"), Err(Refusal::UserNotFound.into()));
    let permission = |kind, key: &[u8], end: &[u8]| Permission {
        kind,
        key: key.to_vec(),
        range_end: end.to_vec(),
    };
    assert_eq!(directory::role_permissions(state, b"r").unwrap(), [permission(0, b"a", b"b")]);
    assert_eq!(directory::role_permissions(state, b"root").unwrap(), [permission(2, b"", b"\0")]);
    assert_eq!(directory::role_permissions(state, b"s"), Err(Refusal::RoleNotFound.into()));
    let status = directory::auth_status(state).unwrap();
    assert_eq!((status.enabled, status.revision), (true, 5));
    let status = directory::auth_status(&RowState::default()).unwrap();
    assert_eq!((status.enabled, status.revision), (false, 1));

    store.apply(Body::LeaseGrant(LeaseGrant { ttl_s: 60, id: 8 }));
    store.apply(Body::LeaseGrant(LeaseGrant { ttl_s: 0, id: -3 }));
    assert_eq!(directory::leases(&store.0, 5).unwrap(), [(-3, 5, 0), (8, 60, 0)]);
    store.0.put(schema::LEASE, b"short", b"");
    assert!(directory::leases(&store.0, 5).is_err());
}
