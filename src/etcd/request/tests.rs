//! Tests of reading and writing requests.

use proptest::prelude::*;

use super::*;

fn request(body: Body<'_>) -> Request<'_> {
    Request { id: 0, header: Some(Header { id: 9, ..Header::default() }), body }
}

/// Bytes that etcd 3.6 wrote: a put of `a` = `1`.
#[test]
fn a_put_has_etcds_bytes() {
    let body = Body::Put(Put { key: b"a", value: b"1", ..Put::default() });
    let bytes = request(body.clone()).encode();
    assert_eq!(bytes, b"\x22\x06\x0a\x01a\x12\x011\xa2\x06\x02\x08\x09");
    assert_eq!(Content::decode(&bytes).unwrap(), Content::Request(request(body)));
}

#[test]
fn every_kind_is_read_back() {
    let key: &[u8] = b"key";
    let range = Range { key, range_end: b"\0", limit: -1, revision: 5, ..Range::default() };
    let put = Put { key, value: b"v", lease: -7, prev_kv: true, ..Put::default() };
    let delete = DeleteRange { key, range_end: b"z", prev_kv: true };
    let compare = |operand| Compare { result: 3, target: 4, key, operand, range_end: b"\0" };
    let txn = Txn {
        compare: vec![
            compare(None),
            compare(Some(Operand::Version(0))),
            compare(Some(Operand::CreateRevision(1))),
            compare(Some(Operand::ModRevision(-1))),
            compare(Some(Operand::Value(b""))),
            compare(Some(Operand::Lease(3))),
        ],
        success: vec![
            Op::Nothing,
            Op::Range(range.clone()),
            Op::Put(put.clone()),
            Op::DeleteRange(delete.clone()),
            Op::Txn(Txn::default()),
        ],
        failure: vec![Op::Put(Put::default())],
    };
    let permission = GrantedPermission { kind: 2, key, range_end: b"z" };
    let bodies = [
        Body::Range(range),
        Body::Put(put),
        Body::DeleteRange(delete),
        Body::Txn(txn),
        Body::Compaction(Compaction { revision: 7, physical: true }),
        Body::LeaseGrant(LeaseGrant { ttl_s: 60, id: 7 }),
        Body::LeaseRevoke(LeaseRevoke { id: 7 }),
        Body::LeaseCheckpoint(LeaseCheckpoints {
            checkpoints: vec![
                LeaseCheckpoint::default(),
                LeaseCheckpoint { id: 1, remaining_ttl_s: 2 },
            ],
        }),
        Body::Alarm(Alarm { action: 1, member_id: u64::MAX, alarm: 2 }),
        Body::AuthEnable(Nothing {}),
        Body::AuthDisable(Nothing {}),
        Body::Authenticate(Authenticate {
            name: b"n",
            password: Secret(b"p"),
            simple_token: Secret(b"t"),
        }),
        Body::AuthStatus(Nothing {}),
        Body::UserAdd(UserAdd {
            name: b"n",
            password: Secret(b"p"),
            options: Some(UserOptions::default()),
            hashed_password: Secret(b"h"),
        }),
        Body::UserDelete(UserName { name: b"n" }),
        Body::UserGet(UserName { name: b"n" }),
        Body::UserChangePassword(UserChangePassword {
            name: b"n",
            password: Secret(b"p"),
            hashed_password: Secret(b"h"),
        }),
        Body::UserGrantRole(UserRole { user: b"u", role: b"r" }),
        Body::UserRevokeRole(UserRole { user: b"u", role: b"r" }),
        Body::UserList(Nothing {}),
        Body::RoleList(Nothing {}),
        Body::RoleAdd(RoleName { role: b"r" }),
        Body::RoleDelete(RoleName { role: b"r" }),
        Body::RoleGet(RoleName { role: b"r" }),
        Body::RoleGrantPermission(RoleGrantPermission { role: b"r", permission: Some(permission) }),
        Body::RoleRevokePermission(RoleRevokePermission { role: b"r", key, range_end: b"z" }),
        Body::ClusterVersionSet(VersionName { version: b"3.6.0" }),
        Body::MemberAttributes(MemberAttributes {
            member_id: 5,
            attributes: Some(Attributes { name: b"n", client_urls: vec![b"a", b""] }),
        }),
        Body::DowngradeInfo(DowngradeInfo { enabled: true, version: b"3.5.0" }),
        Body::DowngradeVersionTest(VersionName { version: b"3.6.0" }),
    ];
    let mut names: Vec<&str> = bodies.iter().map(Body::name).collect();
    for body in bodies {
        let bytes = request(body.clone()).encode();
        let name = body.name();
        assert_eq!(Content::decode(&bytes).unwrap(), Content::Request(request(body)), "{name}");
    }
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 30);
}

#[test]
fn v2_requests_are_told_apart() {
    for method in ["PUT", "POST", "DELETE", "QGET", "SYNC"] {
        let want = V2 {
            id: 300,
            method: method.as_bytes(),
            path: b"/0/version",
            value: b"3.5.0",
            time: -1,
            ..V2::default()
        };
        let bytes = want.encode();
        assert_eq!(Content::decode(&bytes).unwrap(), Content::V2(want.clone()), "{method}");
        let mut wrapped = Vec::new();
        pb::put_u64(&mut wrapped, 1, 5);
        pb::put_bytes(&mut wrapped, 2, &bytes);
        assert_eq!(Content::decode(&wrapped).unwrap(), Content::V2(want), "{method}");
    }
    assert!(Content::decode(&V2 { id: 1, path: b"/x", ..V2::default() }.encode()).is_err());
}

#[test]
fn faults_say_what_is_wrong() {
    let header: &[u8] = b"\xa2\x06\x02\x08\x09";
    let fault = |bytes: &[u8]| Content::decode(&[bytes, header].concat()).unwrap_err();
    let twice = Fault::Twice { message: NAME, field: 5 };
    assert_eq!(fault(b"\x22\x00\x2a\x00"), twice);
    assert_eq!(fault(b""), Fault::Empty);
    let unknown = Fault::UnknownField { message: "RequestOp", field: 5 };
    assert_eq!(fault(b"\x32\x04\x12\x02\x2a\x00"), unknown);
    let twice = Fault::Twice { message: "RequestOp", field: 2 };
    assert_eq!(fault(b"\x32\x06\x12\x04\x12\x00\x12\x00"), twice);
    assert_eq!(
        fault(b"\x20\x01").to_string(),
        "InternalRaftRequest that cannot be read: a field that should be bytes at byte 0"
    );
    assert_eq!(Content::decode(b"\x22\x00").unwrap_err(), Fault::NoId);
    assert_eq!(Content::decode(b"\x08\x01\x22\x00").map(|_| ()), Ok(()));
}

#[test]
fn nesting_and_items_have_bounds() {
    let nested = |depth: usize| {
        let mut txn = Txn::default();
        for _ in 0..depth {
            txn = Txn { failure: vec![Op::Txn(txn)], ..Txn::default() };
        }
        request(Body::Txn(txn)).encode()
    };
    assert!(Content::decode(&nested(129)).is_ok());
    assert_eq!(Content::decode(&nested(200)).unwrap_err(), Fault::TooDeep);
    let many = |count: usize| {
        let success = vec![Op::Nothing; count];
        request(Body::Txn(Txn { success, ..Txn::default() })).encode()
    };
    assert!(Content::decode(&many(100_000)).is_ok());
    assert_eq!(Content::decode(&many(100_001)).unwrap_err(), Fault::TooMany);
}

#[test]
fn spans_mean_what_etcd_means() {
    assert_eq!(span(b"a", b""), Span::Key(b"a"));
    assert_eq!(span(b"a", b"\0"), Span::From(b"a"));
    assert_eq!(span(b"a", b"c"), Span::Range(b"a", b"c"));
    assert!(Span::Key(b"a").contains(b"a") && !Span::Key(b"a").contains(b"b"));
    assert!(Span::Range(b"a", b"c").contains(b"b") && !Span::Range(b"a", b"c").contains(b"c"));
    assert!(Span::From(b"a").contains(b"z") && !Span::From(b"b").contains(b"a"));
    assert!(!Span::Range(b"c", b"a").contains(b"b"));
}

#[test]
fn secrets_are_not_shown() {
    let add = UserAdd { name: b"n", password: Secret(b"sesame"), ..UserAdd::default() };
    let text = format!("{add:?}");
    assert!(!text.contains("sesame") && !text.contains("115"), "{text}");
}

proptest! {
    #[test]
    fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Content::decode(&bytes).is_ok();
    }
}

#[test]
fn a_compare_that_was_made_agrees_with_itself() {
    use Comparison::{Equal, Greater, Less, NotEqual};
    let made = [
        (Compare::version(b"k", Equal, 1), 0, 0, Operand::Version(1)),
        (Compare::create_revision(b"k", Greater, 2), 1, 1, Operand::CreateRevision(2)),
        (Compare::mod_revision(b"k", Less, 3), 2, 2, Operand::ModRevision(3)),
        (Compare::value(b"k", NotEqual, b"v"), 3, 3, Operand::Value(b"v")),
        (Compare::lease(b"k", Equal, 0), 0, 4, Operand::Lease(0)),
    ];
    for (compare, result, target, operand) in made {
        assert_eq!((compare.result, compare.target), (result, target));
        assert_eq!((compare.key, compare.operand), (&b"k"[..], Some(operand)));
        assert_eq!(operand.target(), target);
        let txn = Txn { compare: vec![compare.up_to(b"l")], ..Txn::default() };
        let data = Request { id: 1, header: None, body: Body::Txn(txn.clone()) }.encode();
        let Ok(Content::Request(read)) = Content::decode(&data) else { panic!("not a request") };
        assert_eq!(read.body, Body::Txn(txn));
    }
    // On the wire the two may disagree.
    let odd = Compare { target: 3, ..Compare::version(b"k", Equal, 7) };
    let txn = Txn { compare: vec![odd], ..Txn::default() };
    let data = Request { id: 1, header: None, body: Body::Txn(txn.clone()) }.encode();
    let Ok(Content::Request(read)) = Content::decode(&data) else { panic!("not a request") };
    assert_eq!(read.body, Body::Txn(txn));
}
