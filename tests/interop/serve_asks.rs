//! Random calls of every method of etcd's API, also such as are refused, for `serve_same`.
//!
//! A call is made for one server: ids that the server chose are in it. Two servers that have done
//! the same are given the same calls by the same dice.

use std::collections::BTreeMap;

use bytes::Bytes;
use etcdkit::format::pb as fields;
use etcdkit::store::wire::etcdserverpb as pb;
use etcdkit::store::wire::etcdserverpb::watch_request::RequestUnion;
use etcdkit::store::wire::{authpb, grpc_health_v1 as health};
use prost::Message;

use crate::power_history::Dice;
use crate::store_requests::{Mix, random};

/// What is known of a server.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) member_id: u64,
    pub(crate) cluster_id: u64,
    pub(crate) client_url: String,
    pub(crate) peer_url: String,
    pub(crate) revision: i64,
    /// Revision of the last compaction.
    pub(crate) compacted: i64,
    /// Leases whose ids it chose.
    pub(crate) leases: Vec<i64>,
    /// The last token of each user.
    pub(crate) tokens: BTreeMap<&'static str, String>,
}

/// In whose name a call is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Who {
    #[default]
    Nobody,
    /// With the last token that the user got.
    User(&'static str),
    /// With a token that nobody got.
    Stranger,
}

/// How many messages go in and out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Unary,
    /// One in, several out.
    Parts,
    /// Several in, several out.
    Stream,
}

/// A call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) path: &'static str,
    pub(crate) form: Form,
    pub(crate) who: Who,
    pub(crate) messages: Vec<Vec<u8>>,
    /// The request, to be read.
    pub(crate) shown: String,
    /// Writes out an answer.
    pub(crate) read: fn(&[u8]) -> String,
}

/// A watch: watchers, then writes, then more requests.
#[derive(Clone, Debug)]
pub(crate) struct WatchPlan {
    pub(crate) first: Vec<pb::WatchRequest>,
    pub(crate) writes: Vec<Call>,
    pub(crate) then: Vec<pb::WatchRequest>,
}

/// What is done next.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Calls(Vec<Call>),
    Watch(WatchPlan),
}

/// Users whose passwords and roles change.
const USERS: &[&str] = &["u1", "u2", "nobody", ""];
const ROLES: &[&str] = &["r1", "r2", "none", "", "root"];
const KEYS: &[&[u8]] = &[b"", b"a", b"a/1", b"b", b"c", b"d", b"\0", b"zz"];
const ENDS: &[&[u8]] = &[b"", b"", b"\0", b"b", b"c", b"d0", b"a"];
const LEASES: &[i64] = &[0, 7, 8, 9, -3, 1 << 62, 12345];
const VERSIONS: &[&str] =
    &["", "3", "3.5", "3.6", "3.7", "3.8", "3.6.0", "v3.6", "4.0", "nonsense"];

fn text<M: Message + Default + std::fmt::Debug>(bytes: &[u8]) -> String {
    M::decode(bytes).map_or_else(|error| format!("{error}"), |message| format!("{message:?}"))
}

/// What is left of a lease depends on when one asks; etcd tells its keys in any order.
fn time_to_live(bytes: &[u8]) -> String {
    let mut answer = pb::LeaseTimeToLiveResponse::decode(bytes).expect("an answer");
    let age_s = answer.granted_ttl - answer.ttl;
    if answer.ttl >= 0 && (0..3600).contains(&age_s) {
        answer.ttl = answer.granted_ttl;
    }
    answer.keys.sort();
    format!("{answer:?}")
}

/// How alarms are told in a status has more or fewer spaces from build to build.
fn status(bytes: &[u8]) -> String {
    let mut answer = pb::StatusResponse::decode(bytes).expect("an answer");
    for error in &mut answer.errors {
        *error = error.split_whitespace().collect::<Vec<_>>().join(" ");
    }
    format!("{answer:?}")
}

fn call<Q, A>(path: &'static str, request: Q) -> Call
where
    Q: Message + std::fmt::Debug,
    A: Message + Default + std::fmt::Debug,
{
    Call {
        path,
        form: Form::Unary,
        who: Who::Nobody,
        messages: vec![request.encode_to_vec()],
        shown: format!("{request:?}"),
        read: text::<A>,
    }
}

/// Makes random calls.
pub(crate) struct Maker<'a> {
    pub(crate) dice: Dice,
    pub(crate) known: &'a Known,
    pub(crate) is_newest: bool,
}

impl Maker<'_> {
    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.dice.below(all.len())]
    }

    fn chance(&mut self, one_in: usize) -> bool {
        self.dice.below(one_in) == 0
    }

    /// About the current revision, about the last compaction, or odd.
    fn revision(&mut self) -> i64 {
        let step = i64::try_from(self.dice.below(12)).expect("a small number");
        match self.dice.below(8) {
            0 => 0,
            1 => -step,
            2 => i64::MAX - step,
            3 | 4 => self.known.compacted + 3 - step / 2,
            _ => self.known.revision + 2 - step,
        }
    }

    fn lease(&mut self) -> i64 {
        let chosen = self.dice.below(4);
        let at = self.dice.below(self.known.leases.len());
        match self.known.leases.get(at) {
            Some(id) if chosen == 0 => *id,
            _ => self.one_of(LEASES),
        }
    }

    fn name(&mut self, all: &[&'static str]) -> String {
        self.one_of(all).to_owned()
    }

    pub(crate) fn act(&mut self) -> Act {
        match self.dice.below(400) {
            0 => Act::Calls(self.episode()),
            1..=8 => Act::Watch(self.watch()),
            9..=30 => Act::Calls(self.auth()),
            31..=100 => Act::Calls(self.other()),
            101..=200 => Act::Calls(vec![self.keys(true)]),
            _ => Act::Calls(vec![self.keys(false)]),
        }
    }

    /// Reads and changes of keys, leases and alarms. No lease runs out meanwhile.
    fn keys(&mut self, with_alarms: bool) -> Call {
        loop {
            let call = self.any_keys(with_alarms);
            let is_grant = call.path.ends_with("/LeaseGrant");
            let ttl = |message: &Vec<u8>| pb::LeaseGrantRequest::decode(&message[..]).unwrap().ttl;
            if !is_grant || ttl(&call.messages[0]) >= 3600 {
                return call;
            }
        }
    }

    fn any_keys(&mut self, with_alarms: bool) -> Call {
        let member = if self.chance(4) { 7 } else { self.known.member_id };
        let mix = Mix {
            revision: self.known.revision,
            bad_forms: 25,
            alarms: with_alarms.then_some(member),
            traps: false,
            leaves_others: false,
            value_bytes: 600,
        };
        let ask = random(&mut self.dice, mix);
        let mut parts = fields::fields(ask.bytes()).map(|field| field.expect("a field"));
        let field = parts.find(|field| field.number != 100).expect("a request");
        let (path, read): (_, fn(&[u8]) -> String) = match field.number {
            3 => ("/etcdserverpb.KV/Range", text::<pb::RangeResponse>),
            4 => ("/etcdserverpb.KV/Put", text::<pb::PutResponse>),
            5 => ("/etcdserverpb.KV/DeleteRange", text::<pb::DeleteRangeResponse>),
            6 => ("/etcdserverpb.KV/Txn", text::<pb::TxnResponse>),
            7 => ("/etcdserverpb.KV/Compact", text::<pb::CompactionResponse>),
            8 => ("/etcdserverpb.Lease/LeaseGrant", text::<pb::LeaseGrantResponse>),
            9 => ("/etcdserverpb.Lease/LeaseRevoke", text::<pb::LeaseRevokeResponse>),
            10 => ("/etcdserverpb.Maintenance/Alarm", text::<pb::AlarmResponse>),
            other => panic!("no call for field {other}"),
        };
        let messages = vec![field.bytes().expect("a message").to_vec()];
        Call {
            path,
            form: Form::Unary,
            who: Who::Nobody,
            messages,
            shown: format!("{ask:?}"),
            read,
        }
    }

    fn range(&mut self) -> pb::RangeRequest {
        pb::RangeRequest {
            key: Bytes::from_static(self.one_of(KEYS)),
            range_end: Bytes::from_static(self.one_of(ENDS)),
            limit: self.one_of(&[0, 0, 0, 1, 3, 11, -1, i64::MAX]),
            revision: if self.chance(2) { 0 } else { self.revision() },
            sort_order: self.one_of(&[0, 0, 0, 1, 2, 3, -1]),
            sort_target: self.one_of(&[0, 0, 0, 1, 4, 5, -1]),
            serializable: self.chance(2),
            keys_only: self.chance(5),
            count_only: self.chance(8),
            min_mod_revision: if self.chance(12) { 3 } else { 0 },
            max_create_revision: if self.chance(12) { -1 } else { 0 },
            ..Default::default()
        }
    }

    fn put(&mut self) -> pb::PutRequest {
        pb::PutRequest {
            key: Bytes::from_static(self.one_of(&KEYS[1..])),
            value: Bytes::from_static(self.one_of(&[b"", b"1", b"some value"])),
            // An id that the server chose would be in the sum of the history.
            lease: if self.chance(3) { self.one_of(LEASES) } else { 0 },
            prev_kv: self.chance(3),
            ..Default::default()
        }
    }

    fn other(&mut self) -> Vec<Call> {
        let one = match self.dice.below(24) {
            0..=2 => {
                let mut range = self.range();
                if !self.chance(3) {
                    // A form that streams know.
                    (range.sort_order, range.sort_target) = (self.one_of(&[0, 1]), 0);
                    (range.min_mod_revision, range.max_create_revision) = (0, 0);
                }
                let path = "/etcdserverpb.KV/RangeStream";
                let call = call::<_, pb::RangeStreamResponse>(path, range);
                Call { form: Form::Parts, ..call }
            }
            3 => {
                let range = self.range();
                call::<_, pb::RangeResponse>("/etcdserverpb.KV/Range", range)
            }
            4 => {
                let put = self.put();
                call::<_, pb::PutResponse>("/etcdserverpb.KV/Put", put)
            }
            5 => {
                let (revision, physical) = (self.revision(), self.chance(2));
                // The first one at 0 is a row of the table.
                let revision = if revision == 0 { -1 } else { revision };
                let request = pb::CompactionRequest { revision, physical };
                call::<_, pb::CompactionResponse>("/etcdserverpb.KV/Compact", request)
            }
            6 => return self.leases(),
            7 => {
                let request = pb::LeaseTimeToLiveRequest { id: self.lease(), keys: self.chance(2) };
                let path = "/etcdserverpb.Lease/LeaseTimeToLive";
                let call = call::<_, pb::LeaseTimeToLiveResponse>(path, request);
                Call { read: time_to_live, ..call }
            }
            8 => {
                let request = pb::LeaseLeasesRequest {};
                call::<_, pb::LeaseLeasesResponse>("/etcdserverpb.Lease/LeaseLeases", request)
            }
            9 => {
                let ids: Vec<i64> = (0..3).map(|_| self.lease()).collect();
                let message = |id: &i64| pb::LeaseKeepAliveRequest { id: *id }.encode_to_vec();
                let messages = ids.iter().map(message).collect();
                let path = "/etcdserverpb.Lease/LeaseKeepAlive";
                let request = pb::LeaseKeepAliveRequest { id: 0 };
                let call = call::<_, pb::LeaseKeepAliveResponse>(path, request);
                Call { form: Form::Stream, messages, shown: format!("{ids:?}"), ..call }
            }
            10 | 11 => {
                // One below 0 is a row of the table.
                let request = pb::HashKvRequest { revision: self.revision().max(0) };
                call::<_, pb::HashKvResponse>("/etcdserverpb.Maintenance/HashKV", request)
            }
            12 => {
                let path = "/etcdserverpb.Maintenance/Status";
                let call = call::<_, pb::StatusResponse>(path, pb::StatusRequest {});
                Call { read: status, ..call }
            }
            13 if self.chance(4) => {
                let request = pb::DefragmentRequest {};
                call::<_, pb::DefragmentResponse>("/etcdserverpb.Maintenance/Defragment", request)
            }
            13 => {
                let target_id = self.one_of(&[0, 7, self.known.member_id]);
                let request = pb::MoveLeaderRequest { target_id };
                call::<_, pb::MoveLeaderResponse>("/etcdserverpb.Maintenance/MoveLeader", request)
            }
            14 => self.downgrade(),
            15..=17 => self.member(),
            18 => {
                let service = self.name(&["", "etcdserverpb.KV", "nothing"]);
                let request = health::HealthCheckRequest { service };
                call::<_, health::HealthCheckResponse>("/grpc.health.v1.Health/Check", request)
            }
            19 => self.unknown(),
            20 => self.large(),
            _ => {
                // More alarms of other kinds and members than random requests of keys have.
                let request = pb::AlarmRequest {
                    action: self.one_of(&[0, 0, 2]),
                    member_id: self.one_of(&[0, 7, self.known.member_id]),
                    alarm: self.one_of(&[0, 1, 2]),
                };
                call::<_, pb::AlarmResponse>("/etcdserverpb.Maintenance/Alarm", request)
            }
        };
        vec![one]
    }

    /// Leases whose ids the server chooses, and short ones that end before they run out.
    fn leases(&mut self) -> Vec<Call> {
        let grant = |ttl, id| {
            let request = pb::LeaseGrantRequest { ttl, id };
            call::<_, pb::LeaseGrantResponse>("/etcdserverpb.Lease/LeaseGrant", request)
        };
        let revoke = |id| {
            let request = pb::LeaseRevokeRequest { id };
            call::<_, pb::LeaseRevokeResponse>("/etcdserverpb.Lease/LeaseRevoke", request)
        };
        match self.dice.below(4) {
            0 => vec![grant(self.one_of(&[-1, 0, 1]), 55), revoke(55)],
            1 => vec![revoke(self.lease())],
            _ => vec![grant(self.one_of(&[3600, 86_400, 9_000_000_001]), 0)],
        }
    }

    /// One that is under way would change the version while the test goes on.
    fn downgrade(&mut self) -> Call {
        let action = self.one_of(&[0, 0, 1, 2, 9]);
        let below = if self.is_newest { "3.6" } else { "3.5" };
        let mut version = self.one_of(VERSIONS);
        if action == 1 && version.contains(below) {
            version = "";
        }
        let request = pb::DowngradeRequest { action, version: version.to_owned() };
        call::<_, pb::DowngradeResponse>("/etcdserverpb.Maintenance/Downgrade", request)
    }

    fn member(&mut self) -> Call {
        let id = self.one_of(&[0, 7, self.known.member_id]);
        let own = self.known.peer_url.clone();
        let urls = match self.dice.below(5) {
            0 => vec![],
            1 => vec!["foo".to_owned()],
            2 => vec!["http://127.0.0.1".to_owned()],
            3 => vec!["unix://a".to_owned(), own],
            _ => vec![own],
        };
        match self.dice.below(6) {
            0 | 1 => {
                let request = pb::MemberListRequest { linearizable: self.chance(2) };
                call::<_, pb::MemberListResponse>("/etcdserverpb.Cluster/MemberList", request)
            }
            2 => {
                // One that could be added is a row of the table.
                let peer_ur_ls = if urls.is_empty() { vec!["x".to_owned()] } else { urls };
                let is_learner = self.chance(2);
                let request = pb::MemberAddRequest { peer_ur_ls, is_learner };
                call::<_, pb::MemberAddResponse>("/etcdserverpb.Cluster/MemberAdd", request)
            }
            3 => {
                let request = pb::MemberRemoveRequest { id };
                call::<_, pb::MemberRemoveResponse>("/etcdserverpb.Cluster/MemberRemove", request)
            }
            4 => {
                // Addresses that are none are a row of the table.
                let is_own = id == self.known.member_id;
                let peer_ur_ls = if is_own { vec![self.known.peer_url.clone()] } else { urls };
                let request = pb::MemberUpdateRequest { id, peer_ur_ls };
                call::<_, pb::MemberUpdateResponse>("/etcdserverpb.Cluster/MemberUpdate", request)
            }
            _ => {
                let request = pb::MemberPromoteRequest { id };
                call::<_, pb::MemberPromoteResponse>("/etcdserverpb.Cluster/MemberPromote", request)
            }
        }
    }

    fn unknown(&mut self) -> Call {
        let path = self.one_of(&[
            "/etcdserverpb.KV/Nothing",
            "/etcdserverpb.Nothing/Range",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            "/nothing",
            "/etcdserverpb.KV/Range",
        ]);
        let call = call::<_, pb::RangeResponse>(path, pb::RangeRequest::default());
        let bad = vec![0x0a, 0x05, b'x'];
        Call { messages: vec![bad], shown: "three bytes that are no message".to_owned(), ..call }
    }

    /// Too large to be logged, or to be taken at all.
    fn large(&mut self) -> Call {
        let size = self.one_of(&[1_572_864, 1_600_000, 2_097_152, 2_200_000]);
        let put = pb::PutRequest {
            key: Bytes::from_static(b"a"),
            value: Bytes::from(vec![b'v'; size]),
            ..Default::default()
        };
        let shown = format!("a put of {size} bytes");
        Call { shown, ..call::<_, pb::PutResponse>("/etcdserverpb.KV/Put", put) }
    }

    fn user_add(&mut self, name: &str) -> Call {
        let request = pb::AuthUserAddRequest {
            name: name.to_owned(),
            password: self.name(&["", "one", "two"]),
            options: self
                .chance(2)
                .then(|| authpb::UserAddOptions { no_password: self.dice.flip() }),
            hashed_password: String::new(),
        };
        call::<_, pb::AuthUserAddResponse>("/etcdserverpb.Auth/UserAdd", request)
    }

    /// Users and roles, with auth off or on.
    fn auth(&mut self) -> Vec<Call> {
        let (user, role) = (self.name(USERS), self.name(ROLES));
        let one = match self.dice.below(20) {
            0 | 1 => self.user_add(&user),
            2 => {
                let request = pb::AuthUserGetRequest { name: user };
                call::<_, pb::AuthUserGetResponse>("/etcdserverpb.Auth/UserGet", request)
            }
            3 => {
                let request = pb::AuthUserListRequest {};
                call::<_, pb::AuthUserListResponse>("/etcdserverpb.Auth/UserList", request)
            }
            4 => {
                let request = pb::AuthUserDeleteRequest { name: user };
                call::<_, pb::AuthUserDeleteResponse>("/etcdserverpb.Auth/UserDelete", request)
            }
            5 => {
                let password = self.name(&["one", "two", ""]);
                let request = pb::AuthUserChangePasswordRequest {
                    name: user,
                    password,
                    hashed_password: String::new(),
                };
                let path = "/etcdserverpb.Auth/UserChangePassword";
                call::<_, pb::AuthUserChangePasswordResponse>(path, request)
            }
            6 | 7 => {
                let request = pb::AuthUserGrantRoleRequest { user, role };
                let path = "/etcdserverpb.Auth/UserGrantRole";
                call::<_, pb::AuthUserGrantRoleResponse>(path, request)
            }
            8 => {
                let request = pb::AuthUserRevokeRoleRequest { name: user, role };
                let path = "/etcdserverpb.Auth/UserRevokeRole";
                call::<_, pb::AuthUserRevokeRoleResponse>(path, request)
            }
            9 | 10 => {
                let request = pb::AuthRoleAddRequest { name: role };
                call::<_, pb::AuthRoleAddResponse>("/etcdserverpb.Auth/RoleAdd", request)
            }
            11 => {
                let request = pb::AuthRoleGetRequest { role };
                call::<_, pb::AuthRoleGetResponse>("/etcdserverpb.Auth/RoleGet", request)
            }
            12 => {
                let request = pb::AuthRoleListRequest {};
                call::<_, pb::AuthRoleListResponse>("/etcdserverpb.Auth/RoleList", request)
            }
            13 => {
                let request = pb::AuthRoleDeleteRequest { role };
                call::<_, pb::AuthRoleDeleteResponse>("/etcdserverpb.Auth/RoleDelete", request)
            }
            14 | 15 => {
                let perm = (!self.chance(8)).then(|| authpb::Permission {
                    perm_type: self.one_of(&[0, 1, 2, 2]),
                    key: Bytes::from_static(self.one_of(KEYS)),
                    range_end: Bytes::from_static(self.one_of(ENDS)),
                });
                let request = pb::AuthRoleGrantPermissionRequest { name: role, perm };
                let path = "/etcdserverpb.Auth/RoleGrantPermission";
                call::<_, pb::AuthRoleGrantPermissionResponse>(path, request)
            }
            16 => {
                let request = pb::AuthRoleRevokePermissionRequest {
                    role,
                    key: Bytes::from_static(self.one_of(KEYS)),
                    range_end: Bytes::from_static(self.one_of(ENDS)),
                };
                let path = "/etcdserverpb.Auth/RoleRevokePermission";
                call::<_, pb::AuthRoleRevokePermissionResponse>(path, request)
            }
            17 => {
                let password = self.name(&["one", "two", ""]);
                authenticate(&user, &password)
            }
            18 => {
                let request = pb::AuthDisableRequest {};
                call::<_, pb::AuthDisableResponse>("/etcdserverpb.Auth/AuthDisable", request)
            }
            _ => {
                let request = pb::AuthStatusRequest {};
                call::<_, pb::AuthStatusResponse>("/etcdserverpb.Auth/AuthStatus", request)
            }
        };
        vec![one]
    }

    /// Auth is enabled, all kinds of callers ask for all kinds of things, and it is disabled again.
    fn episode(&mut self) -> Vec<Call> {
        let clear = |alarm| {
            let member_id = self.known.member_id;
            let request = pb::AlarmRequest { action: 2, member_id, alarm };
            call::<_, pb::AlarmResponse>("/etcdserverpb.Maintenance/Alarm", request)
        };
        let of = |user: &str, role: &str| {
            let request =
                pb::AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() };
            call::<_, pb::AuthUserGrantRoleResponse>("/etcdserverpb.Auth/UserGrantRole", request)
        };
        let add = |name: &str| {
            let (name, password) = (name.to_owned(), "one".to_owned());
            let request = pb::AuthUserAddRequest { name, password, ..Default::default() };
            call::<_, pb::AuthUserAddResponse>("/etcdserverpb.Auth/UserAdd", request)
        };
        let role = |name: &str| {
            let request = pb::AuthRoleAddRequest { name: name.to_owned() };
            call::<_, pb::AuthRoleAddResponse>("/etcdserverpb.Auth/RoleAdd", request)
        };
        let enable = || {
            let request = pb::AuthEnableRequest {};
            call::<_, pb::AuthEnableResponse>("/etcdserverpb.Auth/AuthEnable", request)
        };
        let perm = authpb::Permission {
            perm_type: 2,
            key: Bytes::from_static(b"a"),
            range_end: Bytes::from_static(b"c"),
        };
        let request =
            pb::AuthRoleGrantPermissionRequest { name: "r1".to_owned(), perm: Some(perm) };
        let path = "/etcdserverpb.Auth/RoleGrantPermission";
        let permit = call::<_, pb::AuthRoleGrantPermissionResponse>(path, request);
        let mut calls = vec![clear(1), clear(2), enable(), add("root"), enable(), role("root")];
        calls.extend([of("root", "root"), add("u1"), role("r1"), permit, of("u1", "r1")]);
        let as_root = |call| Call { who: Who::User("root"), ..call };
        calls.extend([enable(), authenticate("root", "one"), authenticate("u1", "one")]);
        for _ in 0..60 {
            let more = match self.dice.below(10) {
                0..=2 => self.auth(),
                3 | 4 => self.other(),
                _ => vec![self.keys(false)],
            };
            let who = self.one_of(&[
                Who::Nobody,
                Who::Stranger,
                Who::User("root"),
                Who::User("root"),
                Who::User("u1"),
                Who::User("u1"),
                Who::User("u2"),
            ]);
            // It is disabled in the end, and what it cannot be disabled under comes at other times.
            let is_left_out =
                |call: &Call| call.path.ends_with("AuthDisable") || call.path.ends_with("Alarm");
            let is_user = matches!(who, Who::User(name) if name != "root");
            for call in more.into_iter().filter(|call| !is_left_out(call)) {
                // Of ranges of no keys there is a row of the table.
                if !is_user || !has_empty_range(&call) {
                    calls.push(Call { who, ..call });
                }
            }
            if self.chance(6) {
                calls.push(authenticate("root", "one"));
                calls.push(authenticate("u1", "one"));
            }
        }
        let request = pb::AuthDisableRequest {};
        let path = "/etcdserverpb.Auth/AuthDisable";
        let disable = || call::<_, pb::AuthDisableResponse>(path, request);
        let bad = |who| Call { who, ..disable() };
        calls.extend([bad(Who::Nobody), bad(Who::Stranger), bad(Who::User("u1"))]);
        calls.extend([authenticate("root", "one"), as_root(disable())]);
        calls
    }

    fn watch(&mut self) -> WatchPlan {
        let ids = [0, 0, 0, 5, 6, -2, i64::MAX, i64::MIN];
        let first = (0..1 + self.dice.below(5)).map(|_| self.create(&ids)).collect();
        let count = self.dice.below(5);
        let writes = (0..count).map(|_| self.keys(false)).collect();
        let mut then: Vec<pb::WatchRequest> = Vec::new();
        for _ in 0..self.dice.below(4) {
            then.push(match self.dice.below(4) {
                0 => self.create(&ids),
                1 => pb::WatchRequest { request_union: None },
                _ => {
                    let watch_id = self.one_of(&[0, 1, 2, 5, -2, -1, 77]);
                    let cancel = pb::WatchCancelRequest { watch_id };
                    watch_request(RequestUnion::CancelRequest(cancel))
                }
            });
        }
        WatchPlan { first, writes, then }
    }

    /// A watcher with the id -1 is a row of the table.
    fn create(&mut self, ids: &[i64]) -> pb::WatchRequest {
        let start_revision = if self.chance(3) { 0 } else { self.revision() };
        let filters = match self.dice.below(6) {
            0 => vec![0],
            1 => vec![1],
            2 => vec![7, 1, 1],
            _ => vec![],
        };
        watch_request(RequestUnion::CreateRequest(pb::WatchCreateRequest {
            key: Bytes::from_static(self.one_of(KEYS)),
            range_end: Bytes::from_static(self.one_of(ENDS)),
            start_revision,
            progress_notify: self.chance(3),
            filters,
            prev_kv: self.chance(2),
            watch_id: self.one_of(ids),
            fragment: self.chance(4),
        }))
    }
}

/// Whether a range in a call ends before it begins.
fn has_empty_range(call: &Call) -> bool {
    let message = &call.messages[0][..];
    let is_empty =
        |key: &Bytes, end: &Bytes| !end.is_empty() && end.as_ref() != b"\0" && end <= key;
    match call.path {
        "/etcdserverpb.KV/Range" | "/etcdserverpb.KV/RangeStream" => {
            pb::RangeRequest::decode(message).is_ok_and(|it| is_empty(&it.key, &it.range_end))
        }
        "/etcdserverpb.KV/DeleteRange" => {
            let range = pb::DeleteRangeRequest::decode(message).expect("a request");
            is_empty(&range.key, &range.range_end)
        }
        "/etcdserverpb.KV/Txn" => {
            fn in_txn(txn: &pb::TxnRequest, is_empty: &dyn Fn(&Bytes, &Bytes) -> bool) -> bool {
                use pb::request_op::Request as R;
                let mut ops = txn.success.iter().chain(&txn.failure);
                txn.compare.iter().any(|it| is_empty(&it.key, &it.range_end))
                    || ops.any(|op| match &op.request {
                        Some(R::RequestRange(it)) => is_empty(&it.key, &it.range_end),
                        Some(R::RequestDeleteRange(it)) => is_empty(&it.key, &it.range_end),
                        Some(R::RequestTxn(txn)) => in_txn(txn, is_empty),
                        _ => false,
                    })
            }
            in_txn(&pb::TxnRequest::decode(message).expect("a request"), &is_empty)
        }
        _ => false,
    }
}

pub(crate) fn watch_request(union: RequestUnion) -> pb::WatchRequest {
    pb::WatchRequest { request_union: Some(union) }
}

pub(crate) fn authenticate(name: &str, password: &str) -> Call {
    let (name, password) = (name.to_owned(), password.to_owned());
    let request = pb::AuthenticateRequest { name, password };
    call::<_, pb::AuthenticateResponse>("/etcdserverpb.Auth/Authenticate", request)
}

/// What is asked in the end: nothing may stand in the way of what is compared then.
pub(crate) fn last(known: &Known) -> Vec<Call> {
    let clear = |alarm| {
        let request = pb::AlarmRequest { action: 2, member_id: known.member_id, alarm };
        call::<_, pb::AlarmResponse>("/etcdserverpb.Maintenance/Alarm", request)
    };
    let put = pb::PutRequest {
        key: Bytes::from_static(b"last"),
        value: Bytes::from_static(b"one"),
        ..Default::default()
    };
    vec![clear(1), clear(2), call::<_, pb::PutResponse>("/etcdserverpb.KV/Put", put)]
}

pub(crate) fn everything(serializable: bool) -> Call {
    let all = Bytes::from_static(b"\0");
    let request =
        pb::RangeRequest { key: all.clone(), range_end: all, serializable, ..Default::default() };
    call::<_, pb::RangeResponse>("/etcdserverpb.KV/Range", request)
}

pub(crate) fn hash_kv(revision: i64) -> Call {
    let request = pb::HashKvRequest { revision };
    call::<_, pb::HashKvResponse>("/etcdserverpb.Maintenance/HashKV", request)
}

pub(crate) fn compact(revision: i64) -> Call {
    let request = pb::CompactionRequest { revision, physical: true };
    call::<_, pb::CompactionResponse>("/etcdserverpb.KV/Compact", request)
}

pub(crate) fn members() -> Call {
    let request = pb::MemberListRequest { linearizable: true };
    call::<_, pb::MemberListResponse>("/etcdserverpb.Cluster/MemberList", request)
}

pub(crate) fn status_call() -> Call {
    let path = "/etcdserverpb.Maintenance/Status";
    Call { read: status, ..call::<_, pb::StatusResponse>(path, pb::StatusRequest {}) }
}
