//! What the fake etcd answers to each method, and how its snapshots go wrong.

use std::fmt::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use etcd_client::proto::{
    PbAlarmMember, PbAlarmRequest, PbAlarmResponse, PbAuthRoleGetRequest, PbAuthRoleGetResponse,
    PbAuthUserGetRequest, PbAuthUserGetResponse, PbAuthenticateRequest, PbAuthenticateResponse,
    PbDowngradeInfo, PbHashKvRequest, PbHashKvResponse, PbMember, PbMemberListRequest,
    PbMemberListResponse, PbRangeRequest, PbRangeResponse, PbResponseHeader, PbSnapshotRequest,
    PbSnapshotResponse, PbStatusRequest, PbStatusResponse,
};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tonic::Status;
use tonic::codegen::{BoxFuture, BoxStream, Service, http, tokio_stream::Stream};
use tonic::metadata::MetadataMap;
use tonic_prost::ProstCodec;

use super::{
    Fault, Grant, Listed, Member, NOSPACE, Refusal, Shared, SnapshotFault, listed, refusals, upkeep,
};

/// What etcd sends as one piece of a snapshot, in bytes.
const PIECE: usize = 32 * 1024;
/// How long what was sent has to reach the kernel before a connection is cut.
const FLUSH: Duration = Duration::from_millis(100);

/// Counts what happens in all fakes, so that it is known what was at the same time.
static TICKS: AtomicUsize = AtomicUsize::new(0);

pub(super) type Incoming = http::Request<hyper::body::Incoming>;
pub(super) type Outgoing = http::Response<tonic::body::Body>;

pub(super) async fn answer(shared: Arc<Shared>, request: Incoming) -> Outgoing {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let tick = || TICKS.fetch_add(1, Ordering::SeqCst);
    let began = tick();
    let answer = answer_one(Arc::clone(&shared), request).await;
    shared.spans.lock().expect("the spans").push((method, began, tick()));
    answer
}

async fn answer_one(shared: Arc<Shared>, request: Incoming) -> Outgoing {
    let path = request.uri().path().to_owned();
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    shared.calls.lock().expect("the calls").push(method.to_owned());
    let fault = shared.member().faults.get(method).cloned();
    match fault {
        None => {}
        Some(Fault::Error(code, text)) => return Status::new(code, text).into_http(),
        Some(Fault::Delay(time)) => tokio::time::sleep(time).await,
        Some(Fault::Silent) => std::future::pending::<()>().await,
        Some(Fault::Drop) => {
            shared.cut.send_modify(|number| *number += 1);
            std::future::pending::<()>().await;
        }
    }
    upkeep::idle(&shared, method).await;
    let shared = &shared;
    let request = match upkeep::answer(shared, request).await {
        Ok(answer) => return answer,
        Err(request) => request,
    };
    match path.as_str() {
        "/etcdserverpb.KV/Range" => unary(shared, request, range).await,
        "/etcdserverpb.Cluster/MemberList" => unary(shared, request, member_list).await,
        "/etcdserverpb.Maintenance/Status" => unary(shared, request, status).await,
        "/etcdserverpb.Maintenance/HashKV" => unary(shared, request, hash_kv).await,
        "/etcdserverpb.Maintenance/Snapshot" => {
            let codec = ProstCodec::<PbSnapshotResponse, PbSnapshotRequest>::default();
            let handler = SnapshotHandler(Arc::clone(shared));
            tonic::server::Grpc::new(codec).server_streaming(handler, request).await
        }
        "/etcdserverpb.Auth/Authenticate" => unary(shared, request, authenticate).await,
        "/etcdserverpb.Auth/AuthStatus" => unary(shared, request, auth_status).await,
        "/etcdserverpb.Auth/UserGet" => unary(shared, request, user_get).await,
        "/etcdserverpb.Auth/RoleGet" => unary(shared, request, role_get).await,
        _ => {
            let text = format!("unknown method {method} for service {service}");
            Status::unimplemented(text).into_http()
        }
    }
}

/// Answers one request from the member as it is now.
type Unary<Q, R> = fn(&Member, &MetadataMap, Q) -> Result<R, Status>;

struct Handler<Q, R>(Arc<Shared>, Unary<Q, R>);

async fn unary<Q, R>(shared: &Arc<Shared>, request: Incoming, answer: Unary<Q, R>) -> Outgoing
where
    Q: prost::Message + Default + 'static,
    R: prost::Message + Send + 'static,
{
    let handler = Handler(Arc::clone(shared), answer);
    tonic::server::Grpc::new(ProstCodec::<R, Q>::default()).unary(handler, request).await
}

impl<Q: Send + 'static, R: Send + 'static> Service<tonic::Request<Q>> for Handler<Q, R> {
    type Response = tonic::Response<R>;
    type Error = Status;
    type Future = BoxFuture<tonic::Response<R>, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: tonic::Request<Q>) -> Self::Future {
        let (shared, answer) = (Arc::clone(&self.0), self.1);
        Box::pin(async move {
            let (metadata, _, message) = request.into_parts();
            let answered = {
                let member = shared.member();
                require_leader(&member, &metadata)
                    .and_then(|()| answer(&member, &metadata, message))
                    .map_err(|status| (status, member.no_leader_wait))
            };
            match answered {
                Ok(message) => Ok(tonic::Response::new(message)),
                Err((status, wait)) => {
                    let waited = [refusals::TIMED_OUT.1, refusals::NOT_PROPOSED.1];
                    if waited.contains(&status.message()) {
                        tokio::time::sleep(wait).await;
                    }
                    Err(status)
                }
            }
        })
    }
}

pub(super) fn refuse<T>((code, text): Refusal) -> Result<T, Status> {
    Err(Status::new(code, text))
}

pub(super) fn require_leader(member: &Member, metadata: &MetadataMap) -> Result<(), Status> {
    let asked = metadata.get("hasleader").is_some_and(|value| value == "true");
    if asked && member.leader == 0 { refuse(refusals::NO_LEADER) } else { Ok(()) }
}

/// Passes when the member can answer for the cluster: it votes and has a leader.
fn linearizable(member: &Member) -> Result<(), Status> {
    match member.leader {
        0 => refuse(refusals::TIMED_OUT),
        _ => votes(member),
    }
}

/// The same for what goes through the raft log.
pub(super) fn proposed(member: &Member) -> Result<(), Status> {
    votes(member)?;
    if member.leader == 0 { refuse(refusals::NOT_PROPOSED) } else { Ok(()) }
}

fn votes(member: &Member) -> Result<(), Status> {
    if member.is_learner { refuse(refusals::LEARNER) } else { Ok(()) }
}

/// The user that the token names; none without a token, or with auth off.
fn caller(member: &Member, metadata: &MetadataMap) -> Result<Option<String>, Status> {
    if !member.auth {
        return Ok(None);
    }
    let Some(token) = metadata.get("token").or_else(|| metadata.get("authorization")) else {
        return Ok(None);
    };
    let token = token.to_str().unwrap_or_default();
    let token = token.strip_prefix("Bearer ").unwrap_or(token);
    match token.strip_prefix("token-of-") {
        Some(name) => Ok(Some(name.to_owned())),
        None => refuse(refusals::BAD_TOKEN),
    }
}

pub(super) fn require_user(member: &Member, metadata: &MetadataMap) -> Result<(), Status> {
    match caller(member, metadata)? {
        None if member.auth => refuse(refusals::USER_EMPTY),
        _ => Ok(()),
    }
}

pub(super) fn require_root(member: &Member, metadata: &MetadataMap) -> Result<(), Status> {
    if !member.auth {
        return Ok(());
    }
    let Some(name) = caller(member, metadata)? else { return refuse(refusals::USER_EMPTY) };
    match member.users.get(&name) {
        None => refuse(refusals::USER_NOT_FOUND),
        Some(user) if user.roles.iter().any(|role| role == "root") => Ok(()),
        Some(_) => refuse(refusals::DENIED),
    }
}

/// The same for maintenance: 3.5 sends these errors raw, with its own words and no code.
pub(super) fn require_root_for_maintenance(
    member: &Member,
    metadata: &MetadataMap,
) -> Result<(), Status> {
    require_root(member, metadata).map_err(|status| {
        if member.minor() < 6 {
            Status::unknown(status.message().replace("etcdserver: ", "auth: "))
        } else {
            status
        }
    })
}

fn require_read(member: &Member, metadata: &MetadataMap, q: &PbRangeRequest) -> Result<(), Status> {
    if !member.auth || require_root(member, metadata).is_ok() {
        return Ok(());
    }
    let Some(name) = caller(member, metadata)? else { return refuse(refusals::USER_EMPTY) };
    let Some(user) = member.users.get(&name) else { return refuse(refusals::DENIED) };
    let mut grants = user.roles.iter().filter_map(|role| member.roles.get(role)).flatten();
    let covered = |grant: &Grant| {
        grant.kind != 1
            && if grant.range_end.is_empty() {
                q.key == grant.key && q.range_end.is_empty()
            } else {
                let end = if q.range_end.is_empty() { &q.key } else { &q.range_end };
                let inside = q.range_end.as_slice() != [0]
                    && (*end < grant.range_end || *end == grant.range_end && end != &q.key);
                q.key >= grant.key && (grant.range_end == [0] || inside)
            }
    };
    if grants.any(covered) { Ok(()) } else { refuse(refusals::DENIED) }
}

pub(super) fn range(
    member: &Member,
    metadata: &MetadataMap,
    request: PbRangeRequest,
) -> Result<PbRangeResponse, Status> {
    if !request.serializable {
        votes(member)?;
    }
    if request.key.is_empty() {
        return Err(Status::invalid_argument("etcdserver: key is not provided"));
    }
    require_read(member, metadata, &request)?;
    if !request.serializable {
        linearizable(member)?;
    }
    if request.revision > member.revision {
        return refuse(refusals::FUTURE);
    }
    if request.revision > 0 && request.revision < member.compact_revision {
        return refuse(refusals::COMPACTED);
    }
    let (from, end) = (&request.key, &request.range_end);
    let inside = |key: &Vec<u8>| match end.as_slice() {
        [] => key == from,
        [0] => key >= from,
        end => key >= from && key.as_slice() < end,
    };
    let set = member.keys.iter().map(|(key, value)| etcd_client::proto::PbKeyValue {
        key: key.clone(),
        value: value.clone(),
        create_revision: member.revision,
        mod_revision: member.revision,
        version: 1,
        lease: 0,
    });
    let mut found: Vec<_> = set.chain(member.common.lock().shown()).collect();
    found.retain(|kv| inside(&kv.key));
    found.sort_by(|a, b| a.key.cmp(&b.key));
    let count = i64::try_from(found.len()).expect("a small number");
    let limit = usize::try_from(request.limit).ok().filter(|limit| *limit > 0);
    let shown = if request.count_only { 0 } else { limit.unwrap_or(found.len()) };
    let more = !request.count_only && found.len() > shown;
    found.truncate(shown);
    if request.keys_only {
        found.iter_mut().for_each(|kv| kv.value.clear());
    }
    let kvs = found;
    Ok(PbRangeResponse { header: member.header(member.revision), kvs, more, count })
}

fn member_list(
    member: &Member,
    metadata: &MetadataMap,
    request: PbMemberListRequest,
) -> Result<PbMemberListResponse, Status> {
    votes(member)?;
    require_user(member, metadata)?;
    if request.linearizable {
        linearizable(member)?;
    }
    let alone = [listed(member, true)];
    let all = if member.members.is_empty() { &alone[..] } else { &member.members };
    let show = |listed: &Listed| PbMember {
        id: listed.id,
        name: listed.name.clone(),
        peer_ur_ls: listed.peer_urls.clone(),
        client_ur_ls: listed.client_urls.clone(),
        is_learner: listed.is_learner,
    };
    let members = all.iter().map(show).collect();
    Ok(PbMemberListResponse { header: member.header(0), members })
}

fn status(
    member: &Member,
    metadata: &MetadataMap,
    _: PbStatusRequest,
) -> Result<PbStatusResponse, Status> {
    require_user(member, metadata)?;
    let is_new = member.minor() >= 6;
    let mut errors = member.errors.clone();
    if member.leader == 0 {
        errors.push(refusals::NO_LEADER.1.to_owned());
    }
    // The text form of a protobuf message, which is not stable between versions.
    let (between, after) = if member.minor() >= 7 { ("  ", "") } else { (" ", " ") };
    errors.extend(member.alarms.iter().map(|(id, kind)| {
        let kind = if *kind == NOSPACE { "NOSPACE" } else { "CORRUPT" };
        let mut text = String::new();
        write!(text, "memberID:{id}{between}alarm:{kind}{after}").expect("a string");
        text
    }));
    let downgrade = PbDowngradeInfo {
        enabled: member.downgrade.is_some(),
        target_version: member.downgrade.clone().unwrap_or_default(),
    };
    Ok(PbStatusResponse {
        header: member.header(member.revision),
        version: member.version.clone(),
        db_size: member.db_size,
        leader: member.leader,
        raft_index: member.raft_index,
        raft_term: member.raft_term,
        raft_applied_index: member.raft_applied_index,
        errors,
        db_size_in_use: member.db_size_in_use,
        is_learner: member.is_learner,
        storage_version: member.storage_version(),
        db_size_quota: if is_new { member.quota } else { 0 },
        downgrade_info: is_new.then_some(downgrade),
    })
}

pub(super) fn alarm(
    member: &Member,
    metadata: &MetadataMap,
    request: PbAlarmRequest,
) -> Result<PbAlarmResponse, Status> {
    votes(member)?;
    if request.action != 0 {
        require_root(member, metadata)?;
        return Err(Status::unimplemented("the fake raises no alarms"));
    }
    require_user(member, metadata)?;
    proposed(member)?;
    let asked = |(_, kind): &&(u64, i32)| request.alarm == 0 || *kind == request.alarm;
    let show = |(id, kind): &(u64, i32)| PbAlarmMember { member_id: *id, alarm: *kind };
    let alarms = member.alarms.iter().filter(asked).map(show).collect();
    Ok(PbAlarmResponse { header: member.header(member.revision), alarms })
}

fn hash_kv(
    member: &Member,
    metadata: &MetadataMap,
    request: PbHashKvRequest,
) -> Result<PbHashKvResponse, Status> {
    votes(member)?;
    require_root_for_maintenance(member, metadata)?;
    if request.revision > 0 && request.revision < member.compact_revision {
        return refuse(refusals::COMPACTED);
    }
    if request.revision > member.revision {
        return refuse(refusals::FUTURE);
    }
    let revision = if request.revision > 0 { request.revision } else { member.revision };
    Ok(PbHashKvResponse {
        header: member.header(member.revision),
        hash: member.hash(revision),
        compact_revision: member.compact_revision,
        hash_revision: if member.minor() >= 6 { revision } else { 0 },
    })
}

fn authenticate(
    member: &Member,
    _: &MetadataMap,
    request: PbAuthenticateRequest,
) -> Result<PbAuthenticateResponse, Status> {
    linearizable(member)?;
    if !member.auth {
        return refuse(refusals::AUTH_OFF);
    }
    let known = member.users.get(&request.name);
    if known.is_none_or(|user| user.password != request.password) {
        return refuse(refusals::AUTH_FAILED);
    }
    let token = format!("token-of-{}", request.name);
    Ok(PbAuthenticateResponse { header: member.header(member.revision), token })
}

/// etcd-client has no `AuthStatus`.
#[derive(Clone, PartialEq, prost::Message)]
struct AuthStatusRequest {}

#[derive(Clone, PartialEq, prost::Message)]
struct AuthStatusResponse {
    #[prost(message, optional, tag = "1")]
    header: Option<PbResponseHeader>,
    #[prost(bool, tag = "2")]
    enabled: bool,
    #[prost(uint64, tag = "3")]
    auth_revision: u64,
}

fn auth_status(
    member: &Member,
    metadata: &MetadataMap,
    _: AuthStatusRequest,
) -> Result<AuthStatusResponse, Status> {
    proposed(member)?;
    if member.minor() < 7 {
        require_root(member, metadata)?;
    }
    let header = member.header(member.revision);
    Ok(AuthStatusResponse { header, enabled: member.auth, auth_revision: 1 })
}

fn user_get(
    member: &Member,
    metadata: &MetadataMap,
    request: PbAuthUserGetRequest,
) -> Result<PbAuthUserGetResponse, Status> {
    proposed(member)?;
    let own = caller(member, metadata)?.is_some_and(|name| name == request.name);
    if !own {
        require_root(member, metadata)?;
    }
    let Some(user) = member.users.get(&request.name) else {
        return refuse(refusals::USER_NOT_FOUND);
    };
    let header = member.header(member.revision);
    Ok(PbAuthUserGetResponse { header, roles: user.roles.clone() })
}

fn role_get(
    member: &Member,
    metadata: &MetadataMap,
    request: PbAuthRoleGetRequest,
) -> Result<PbAuthRoleGetResponse, Status> {
    proposed(member)?;
    let name = caller(member, metadata)?.unwrap_or_default();
    let user = member.users.get(&name);
    if !user.is_some_and(|user| user.roles.contains(&request.role)) {
        require_root(member, metadata)?;
    }
    let Some(grants) = member.roles.get(&request.role) else {
        return refuse(refusals::ROLE_NOT_FOUND);
    };
    let everything = [Grant { key: Vec::new(), range_end: vec![0], kind: 2 }];
    let grants = if request.role == "root" { &everything[..] } else { grants };
    let mut response =
        PbAuthRoleGetResponse { header: member.header(member.revision), perm: Vec::new() };
    for grant in grants {
        response.perm.push(Default::default());
        let perm = response.perm.last_mut().expect("one was pushed");
        perm.perm_type = grant.kind;
        perm.key.clone_from(&grant.key);
        perm.range_end.clone_from(&grant.range_end);
    }
    Ok(response)
}

struct SnapshotHandler(Arc<Shared>);

impl Service<tonic::Request<PbSnapshotRequest>> for SnapshotHandler {
    type Response = tonic::Response<BoxStream<PbSnapshotResponse>>;
    type Error = Status;
    type Future = BoxFuture<Self::Response, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: tonic::Request<PbSnapshotRequest>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let member = shared.member().clone();
            require_leader(&member, request.metadata())?;
            require_root_for_maintenance(&member, request.metadata())?;
            let (pieces, stream) = mpsc::channel(1);
            shared.snapshots.fetch_add(1, Ordering::SeqCst);
            let open = OpenSnapshot(shared);
            tokio::spawn(async move {
                tokio::select! {
                    _ = send_snapshot(&member, &open.0, &pieces) => {}
                    () = pieces.closed() => {}
                }
                drop(open);
            });
            Ok(tonic::Response::new(Box::pin(Pieces(stream)) as BoxStream<PbSnapshotResponse>))
        })
    }
}

/// Counts one snapshot as being sent until it is dropped.
struct OpenSnapshot(Arc<Shared>);

impl Drop for OpenSnapshot {
    fn drop(&mut self) {
        self.0.snapshots.fetch_sub(1, Ordering::SeqCst);
    }
}

type Piece = Result<PbSnapshotResponse, Status>;

struct Pieces(mpsc::Receiver<Piece>);

impl Stream for Pieces {
    type Item = Piece;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Piece>> {
        self.0.poll_recv(context)
    }
}

/// Sends the file, its trailer and what goes wrong; `None` when nobody listens any more.
async fn send_snapshot(
    member: &Member,
    shared: &Shared,
    pieces: &mpsc::Sender<Piece>,
) -> Option<()> {
    use SnapshotFault as F;
    let file = member.file.as_slice();
    let fault = member.snapshot_fault.as_ref();
    let stop_at = match fault {
        Some(F::Stall(at) | F::Error(at, ..) | F::Drop(at) | F::End(at)) => Some(*at),
        _ => None,
    };
    let end = stop_at.unwrap_or(file.len()).min(file.len());
    let piece = |remaining: usize, blob: Vec<u8>| PbSnapshotResponse {
        header: None,
        remaining_bytes: remaining as u64,
        blob,
        version: member.storage_version(),
    };
    let began = Instant::now();
    let mut sent = 0;
    while sent < end {
        let next = end.min(sent + PIECE);
        let mut blob = file[sent..next].to_vec();
        if let Some(F::Flip(at)) = fault
            && (sent..next).contains(at)
        {
            blob[at - sent] ^= 0xff;
        }
        sent = next;
        pieces.send(Ok(piece(file.len() - sent, blob))).await.ok()?;
        if let Some(rate) = member.snapshot_rate {
            let due = Duration::from_secs_f64(sent as f64 / rate as f64);
            tokio::time::sleep(due.saturating_sub(began.elapsed())).await;
        }
    }
    match fault {
        Some(F::Stall(_)) => std::future::pending().await,
        Some(F::Error(_, code, text)) => {
            return pieces.send(Err(Status::new(*code, text))).await.ok();
        }
        Some(F::Drop(_)) => {
            tokio::time::sleep(FLUSH).await;
            shared.cut.send_modify(|number| *number += 1);
            std::future::pending::<()>().await;
        }
        Some(F::End(_) | F::NoTrailer) => return Some(()),
        _ => {}
    }
    let mut sum = Sha256::digest(file).to_vec();
    if fault == Some(&F::WrongTrailer) {
        sum[0] ^= 0xff;
    }
    pieces.send(Ok(piece(0, sum))).await.ok()
}
