//! What changes the fake etcd: defragmentation, leadership, alarms, compaction, leases, keys on
//! conditions. Members of one [`super::FakeCluster`] share it, as they would their log.
//!
//! ```ignore
//! cluster.members[1].set(|m| m.defrag.takes = Duration::from_millis(300));
//! cluster.members[1].set(|m| m.defrag.end = DefragEnd::Breaks { is_done: true });
//! cluster.upkeep().done;         // names of the members that were defragmented, in order
//! cluster.upkeep().put("etcdkit/lock/maintenance", "{}", 60); // a lock of somebody else
//! ```
//!
//! A member at work answers no read and no change, as a real one; its status it answers. While
//! NOSPACE is raised every put and lease is refused, transactions with a put in either branch too.
//!
//! **Source**: etcd v3.5.35, v3.6.16, v3.7.3, `server/etcdserver/api/v3rpc/{maintenance,lease,
//! key}.go`, `server/etcdserver/apply`, `applierV3Capped`, `api/v3rpc/rpctypes/error.go`

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use etcd_client::proto::{
    PbAlarmMember, PbAlarmRequest, PbAlarmResponse, PbCompactionRequest, PbCompactionResponse,
    PbCompare, PbDefragmentRequest, PbDefragmentResponse, PbDeleteResponse, PbKeyValue,
    PbLeaseGrantRequest, PbLeaseGrantResponse, PbLeaseKeepAliveRequest, PbLeaseKeepAliveResponse,
    PbLeaseRevokeRequest, PbLeaseRevokeResponse, PbLeaseTimeToLiveRequest,
    PbLeaseTimeToLiveResponse, PbMoveLeaderRequest, PbMoveLeaderResponse, PbPutRequest,
    PbPutResponse, PbResponseOp, PbTargetUnion, PbTxnOpRequest, PbTxnOpResponse, PbTxnRequest,
    PbTxnRequestOp, PbTxnResponse, PbWatchRequest, PbWatchRequestUnion, PbWatchResponse,
};
use tokio::sync::mpsc;
use tonic::codegen::{BoxFuture, BoxStream, Service, tokio_stream::Stream};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

use super::answers::{
    Incoming, Outgoing, alarm, proposed, range, refuse, require_leader, require_root,
    require_root_for_maintenance, require_user,
};
use super::{Member, NOSPACE, Refusal, Shared, refusals};

const OUT_OF_SPACE: Refusal =
    (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded");
const NOT_LEADER: Refusal = (Code::FailedPrecondition, "etcdserver: not leader");
const BAD_TRANSFEREE: Refusal = (Code::FailedPrecondition, "etcdserver: bad leader transferee");
const NO_LEASE: Refusal = (Code::NotFound, "etcdserver: requested lease not found");

/// How a member defragments.
#[derive(Clone, Debug)]
pub(crate) struct Defrag {
    /// How long it is at work.
    pub(crate) takes: Duration,
    /// Bytes that its file has then; `None` for those in use.
    pub(crate) leaves: Option<i64>,
    /// How it ends.
    pub(crate) end: DefragEnd,
    /// It is at work until this is taken back.
    pub(crate) is_held: bool,
}

impl Default for Defrag {
    fn default() -> Self {
        Self { takes: Duration::ZERO, leaves: None, end: DefragEnd::Answers, is_held: false }
    }
}

/// How a defragmentation ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DefragEnd {
    /// It is done, and answered.
    Answers,
    /// Nothing is done, and this is answered.
    Refuses(Code, String),
    /// Every connection is dropped at its start; the work goes on, and is done or in vain.
    Breaks { is_done: bool },
}

/// A record that was put.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) value: Vec<u8>,
    pub(crate) lease: i64,
    created: i64,
    changed: i64,
    version: i64,
}

/// What members of one cluster share.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    peers: Vec<Weak<Shared>>,
    /// Every record that was put, and is there.
    pub(crate) records: BTreeMap<Vec<u8>, Kept>,
    /// Seconds and start of each lease.
    pub(crate) leases: BTreeMap<i64, (i64, Instant)>,
    last_lease: i64,
    /// Members that were defragmented, by name, in order.
    pub(crate) done: Vec<String>,
    /// Who led while each of them was at work, by name.
    pub(crate) led: Vec<String>,
    running: usize,
    /// The most members that were at work at once.
    pub(crate) at_once: usize,
    /// Every leadership that was moved: from, to.
    pub(crate) moves: Vec<(u64, u64)>,
    /// Moving the leadership is refused with this.
    pub(crate) refuses_moves: Option<Refusal>,
    /// Once an alarm was disarmed, questions for alarms are refused with this.
    pub(crate) refuses_lists: Option<Refusal>,
    disarmed: usize,
}

impl Upkeep {
    /// Puts a record on a lease of so many seconds, by somebody else; on none for 0.
    pub(crate) fn put(&mut self, key: &str, value: &str, ttl_s: i64) -> i64 {
        let lease = if ttl_s > 0 { self.grant(ttl_s) } else { 0 };
        self.keep(key.as_bytes(), value.as_bytes(), lease, 1);
        lease
    }

    fn grant(&mut self, ttl_s: i64) -> i64 {
        self.last_lease += 1;
        let id = 0x7000_0000_0000_0000 + self.last_lease;
        self.leases.insert(id, (ttl_s, Instant::now()));
        id
    }

    fn keep(&mut self, key: &[u8], value: &[u8], lease: i64, revision: i64) {
        let kept = self.records.entry(key.to_vec()).or_insert_with(|| Kept {
            value: Vec::new(),
            lease: 0,
            created: revision,
            changed: revision,
            version: 0,
        });
        (kept.value, kept.lease) = (value.to_vec(), lease);
        (kept.changed, kept.version) = (revision, kept.version + 1);
    }

    /// Ends a lease and what hangs on it.
    pub(crate) fn end_lease(&mut self, lease: i64) -> bool {
        self.records.retain(|_, kept| kept.lease != lease);
        self.leases.remove(&lease).is_some()
    }

    fn expire(&mut self) {
        let over = |(ttl_s, began): &(i64, Instant)| {
            began.elapsed() > Duration::from_secs(u64::try_from(*ttl_s).unwrap_or(0))
        };
        let ended: Vec<i64> =
            self.leases.iter().filter(|(_, lease)| over(lease)).map(|(id, _)| *id).collect();
        for lease in ended {
            self.end_lease(lease);
        }
    }

    /// Records as a Range shows them.
    pub(super) fn shown(&mut self) -> Vec<PbKeyValue> {
        self.expire();
        let show = |(key, kept): (&Vec<u8>, &Kept)| PbKeyValue {
            key: key.clone(),
            value: kept.value.clone(),
            create_revision: kept.created,
            mod_revision: kept.changed,
            version: kept.version,
            lease: kept.lease,
        };
        self.records.iter().map(show).collect()
    }
}

/// The part that members share, by each of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedUpkeep(Arc<Mutex<Upkeep>>);

impl SharedUpkeep {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Upkeep> {
        self.0.lock().expect("what members share")
    }

    /// Adds a member.
    pub(super) fn join(&self, member: &Arc<Shared>) {
        self.lock().peers.push(Arc::downgrade(member));
    }
}

/// All members of a member's cluster.
fn peers(shared: &Arc<Shared>) -> Vec<Arc<Shared>> {
    let common = shared.member().common.clone();
    let peers: Vec<Arc<Shared>> = common.lock().peers.iter().filter_map(Weak::upgrade).collect();
    peers
}

/// Changes every member of a member's cluster.
fn everywhere(shared: &Arc<Shared>, change: impl Fn(&mut Member)) {
    for peer in peers(shared) {
        change(&mut peer.member());
    }
}

/// Takes the next revision, on every member.
fn next_revision(shared: &Arc<Shared>) -> i64 {
    everywhere(shared, |member| {
        member.revision += 1;
        member.raft_index += 1;
        member.raft_applied_index += 1;
    });
    shared.member().revision
}

/// Waits as long as the member is at work, before anything that needs its database.
pub(super) async fn idle(shared: &Shared, method: &str) {
    if ["Range", "Txn", "Put", "Compact", "HashKV", "Defragment"].contains(&method) {
        while shared.member().is_busy {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Answers a method of this file; `None` for any other.
pub(super) async fn answer(shared: &Arc<Shared>, request: Incoming) -> Result<Outgoing, Incoming> {
    let path = request.uri().path().to_owned();
    Ok(match path.as_str() {
        "/etcdserverpb.Maintenance/Defragment" => unary(shared, request, defragment).await,
        "/etcdserverpb.Maintenance/MoveLeader" => unary(shared, request, move_leader).await,
        "/etcdserverpb.Maintenance/Alarm" => unary(shared, request, any_alarm).await,
        "/etcdserverpb.KV/Compact" => unary(shared, request, compact).await,
        "/etcdserverpb.KV/Put" => unary(shared, request, put).await,
        "/etcdserverpb.KV/Txn" => unary(shared, request, txn).await,
        "/etcdserverpb.Lease/LeaseGrant" => unary(shared, request, lease_grant).await,
        "/etcdserverpb.Lease/LeaseRevoke" => unary(shared, request, lease_revoke).await,
        "/etcdserverpb.Lease/LeaseTimeToLive" => unary(shared, request, lease_ttl).await,
        "/etcdserverpb.Lease/LeaseKeepAlive" => {
            let codec = ProstCodec::<PbLeaseKeepAliveResponse, PbLeaseKeepAliveRequest>::default();
            let handler = KeepAlive(Arc::clone(shared));
            tonic::server::Grpc::new(codec).streaming(handler, request).await
        }
        "/etcdserverpb.Watch/Watch" => {
            let codec = ProstCodec::<PbWatchResponse, PbWatchRequest>::default();
            let handler = Watch(Arc::clone(shared));
            tonic::server::Grpc::new(codec).streaming(handler, request).await
        }
        _ => return Err(request),
    })
}

type Act<Q, R> = fn(Arc<Shared>, MetadataMap, Q) -> BoxFuture<R, Status>;

struct Handler<Q, R>(Arc<Shared>, Act<Q, R>);

async fn unary<Q, R>(shared: &Arc<Shared>, request: Incoming, act: Act<Q, R>) -> Outgoing
where
    Q: prost::Message + Default + 'static,
    R: prost::Message + Send + 'static,
{
    let handler = Handler(Arc::clone(shared), act);
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
        let (shared, act) = (Arc::clone(&self.0), self.1);
        Box::pin(async move {
            let (metadata, _, message) = request.into_parts();
            require_leader(&shared.member(), &metadata)?;
            Ok(tonic::Response::new(act(shared, metadata, message).await?))
        })
    }
}

fn defragment(
    shared: Arc<Shared>,
    metadata: MetadataMap,
    _: PbDefragmentRequest,
) -> BoxFuture<PbDefragmentResponse, Status> {
    Box::pin(async move {
        let (defrag, name, leader, common) = {
            let mut member = shared.member();
            if member.is_learner {
                return refuse(refusals::LEARNER);
            }
            require_root_for_maintenance(&member, &metadata)?;
            member.is_busy = true;
            let (defrag, name) = (member.defrag.clone(), member.name.clone());
            (defrag, name, member.leader, member.common.clone())
        };
        let leader =
            peers(&shared).iter().map(|peer| peer.member().clone()).find(|m| m.id == leader);
        {
            let mut upkeep = common.lock();
            upkeep.running += 1;
            upkeep.at_once = upkeep.at_once.max(upkeep.running);
        }
        let breaks = matches!(defrag.end, DefragEnd::Breaks { .. });
        let (of, by) = (defrag.clone(), Arc::clone(&shared));
        // It goes on whoever listens.
        let work = tokio::spawn(async move {
            tokio::time::sleep(of.takes).await;
            while by.member().defrag.is_held {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let mut member = by.member();
            member.is_busy = false;
            let is_done =
                matches!(of.end, DefragEnd::Answers | DefragEnd::Breaks { is_done: true });
            if is_done {
                member.db_size = of.leaves.unwrap_or(member.db_size_in_use);
            }
            let mut upkeep = member.common.lock();
            upkeep.running -= 1;
            if is_done {
                upkeep.done.push(name);
                upkeep.led.push(leader.map_or_else(String::new, |leader| leader.name));
            }
        });
        if breaks {
            shared.cut.send_modify(|number| *number += 1);
            std::future::pending::<()>().await;
        }
        work.await.expect("the work");
        match defrag.end {
            DefragEnd::Refuses(code, text) => Err(Status::new(code, text)),
            _ => Ok(PbDefragmentResponse { header: None }),
        }
    })
}

fn move_leader(
    shared: Arc<Shared>,
    metadata: MetadataMap,
    request: PbMoveLeaderRequest,
) -> BoxFuture<PbMoveLeaderResponse, Status> {
    Box::pin(async move {
        let member = shared.member().clone();
        if member.is_learner {
            return refuse(refusals::LEARNER);
        }
        require_root_for_maintenance(&member, &metadata)?;
        if member.leader != member.id {
            return refuse(NOT_LEADER);
        }
        let refused = member.common.lock().refuses_moves;
        if let Some(refused) = refused {
            return refuse(refused);
        }
        let to = request.target_id;
        let votes = peers(&shared).iter().any(|peer| {
            let peer = peer.member();
            peer.id == to && !peer.is_learner
        });
        if !votes {
            return refuse(BAD_TRANSFEREE);
        }
        everywhere(&shared, |member| {
            member.leader = to;
            member.raft_term += 1;
        });
        member.common.lock().moves.push((member.id, to));
        let header = shared.member().header(0);
        Ok(PbMoveLeaderResponse { header })
    })
}

fn any_alarm(
    shared: Arc<Shared>,
    metadata: MetadataMap,
    request: PbAlarmRequest,
) -> BoxFuture<PbAlarmResponse, Status> {
    const DEACTIVATE: i32 = 2;
    Box::pin(async move {
        if request.action != DEACTIVATE {
            let common = shared.member().common.clone();
            let refused = {
                let upkeep = common.lock();
                upkeep.refuses_lists.filter(|_| upkeep.disarmed > 0)
            };
            if let Some(refused) = refused {
                return refuse(refused);
            }
            let (answer, wait) = {
                let member = shared.member();
                (alarm(&member, &metadata, request), member.no_leader_wait)
            };
            if answer.as_ref().is_err_and(|e| e.message() == refusals::NOT_PROPOSED.1) {
                tokio::time::sleep(wait).await;
            }
            return answer;
        }
        let member = shared.member().clone();
        proposed(&member)?;
        require_root(&member, &metadata)?;
        let wanted = (request.member_id, request.alarm);
        let is_raised = member.alarms.contains(&wanted);
        everywhere(&shared, |member| member.alarms.retain(|alarm| *alarm != wanted));
        member.common.lock().disarmed += 1;
        let gone = PbAlarmMember { member_id: wanted.0, alarm: wanted.1 };
        let alarms = is_raised.then_some(gone).into_iter().collect();
        Ok(PbAlarmResponse { header: member.header(member.revision), alarms })
    })
}

fn compact(
    shared: Arc<Shared>,
    metadata: MetadataMap,
    request: PbCompactionRequest,
) -> BoxFuture<PbCompactionResponse, Status> {
    Box::pin(async move {
        let member = shared.member().clone();
        proposed(&member)?;
        require_root(&member, &metadata)?;
        if request.revision <= member.compact_revision {
            return refuse(refusals::COMPACTED);
        }
        if request.revision > member.revision {
            return refuse(refusals::FUTURE);
        }
        everywhere(&shared, |member| member.compact_revision = request.revision);
        Ok(PbCompactionResponse { header: member.header(member.revision) })
    })
}

fn is_out_of_space(member: &Member) -> bool {
    member.alarms.iter().any(|(_, kind)| *kind == NOSPACE)
}

fn put(
    shared: Arc<Shared>,
    metadata: MetadataMap,
    request: PbPutRequest,
) -> BoxFuture<PbPutResponse, Status> {
    Box::pin(async move {
        let member = shared.member().clone();
        proposed(&member)?;
        require_user(&member, &metadata)?;
        if is_out_of_space(&member) {
            return refuse(OUT_OF_SPACE);
        }
        let revision = next_revision(&shared);
        member.common.lock().keep(&request.key, &request.value, request.lease, revision);
        Ok(PbPutResponse { header: member.header(revision), prev_kv: None })
    })
}

fn holds(member: &Member, compare: &PbCompare) -> bool {
    let upkeep = member.common.lock();
    let kept = upkeep.records.get(&compare.key);
    let at = |of: fn(&Kept) -> i64| kept.map_or(0, of);
    let (is, wanted) = match &compare.target_union {
        Some(PbTargetUnion::CreateRevision(wanted)) => (at(|kept| kept.created), *wanted),
        Some(PbTargetUnion::ModRevision(wanted)) => (at(|kept| kept.changed), *wanted),
        Some(PbTargetUnion::Version(wanted)) => (at(|kept| kept.version), *wanted),
        other => panic!("the fake does not compare {other:?}"),
    };
    match compare.result {
        0 => is == wanted,
        1 => is > wanted,
        2 => is < wanted,
        _ => is != wanted,
    }
}

fn txn(
    shared: Arc<Shared>,
    metadata: MetadataMap,
    request: PbTxnRequest,
) -> BoxFuture<PbTxnResponse, Status> {
    Box::pin(async move {
        let member = shared.member().clone();
        proposed(&member)?;
        require_root(&member, &metadata)?;
        let is_put =
            |op: &PbTxnRequestOp| matches!(op.request, Some(PbTxnOpRequest::RequestPut(_)));
        if is_out_of_space(&member) && request.success.iter().chain(&request.failure).any(is_put) {
            return refuse(OUT_OF_SPACE);
        }
        let succeeded = request.compare.iter().all(|compare| holds(&member, compare));
        let ops = if succeeded { request.success } else { request.failure };
        let revision =
            if ops.iter().any(is_put) { next_revision(&shared) } else { member.revision };
        let mut responses = Vec::new();
        for op in ops {
            let response = match op.request {
                Some(PbTxnOpRequest::RequestPut(put)) => {
                    if put.lease != 0 && !member.common.lock().leases.contains_key(&put.lease) {
                        return refuse(NO_LEASE);
                    }
                    member.common.lock().keep(&put.key, &put.value, put.lease, revision);
                    PbTxnOpResponse::ResponsePut(PbPutResponse::default())
                }
                Some(PbTxnOpRequest::RequestRange(get)) => {
                    let member = shared.member().clone();
                    PbTxnOpResponse::ResponseRange(range(&member, &metadata, get)?)
                }
                Some(PbTxnOpRequest::RequestDeleteRange(delete)) => {
                    member.common.lock().records.remove(&delete.key);
                    PbTxnOpResponse::ResponseDeleteRange(PbDeleteResponse::default())
                }
                other => panic!("the fake does not {other:?}"),
            };
            responses.push(PbResponseOp { response: Some(response) });
        }
        Ok(PbTxnResponse { header: member.header(revision), succeeded, responses })
    })
}

fn lease_grant(
    shared: Arc<Shared>,
    metadata: MetadataMap,
    request: PbLeaseGrantRequest,
) -> BoxFuture<PbLeaseGrantResponse, Status> {
    Box::pin(async move {
        let member = shared.member().clone();
        proposed(&member)?;
        require_user(&member, &metadata)?;
        if is_out_of_space(&member) {
            return refuse(OUT_OF_SPACE);
        }
        let id = member.common.lock().grant(request.ttl);
        let header = member.header(member.revision);
        Ok(PbLeaseGrantResponse { header, id, ttl: request.ttl, error: String::new() })
    })
}

fn lease_revoke(
    shared: Arc<Shared>,
    metadata: MetadataMap,
    request: PbLeaseRevokeRequest,
) -> BoxFuture<PbLeaseRevokeResponse, Status> {
    Box::pin(async move {
        let member = shared.member().clone();
        proposed(&member)?;
        require_user(&member, &metadata)?;
        if !member.common.lock().end_lease(request.id) {
            return refuse(NO_LEASE);
        }
        Ok(PbLeaseRevokeResponse { header: member.header(member.revision) })
    })
}

fn lease_ttl(
    shared: Arc<Shared>,
    metadata: MetadataMap,
    request: PbLeaseTimeToLiveRequest,
) -> BoxFuture<PbLeaseTimeToLiveResponse, Status> {
    Box::pin(async move {
        let member = shared.member().clone();
        require_user(&member, &metadata)?;
        let mut upkeep = member.common.lock();
        upkeep.expire();
        let left = |(ttl_s, began): &(i64, Instant)| {
            ttl_s - i64::try_from(began.elapsed().as_secs()).unwrap_or(0)
        };
        let (ttl, granted_ttl) =
            upkeep.leases.get(&request.id).map_or((-1, 0), |lease| (left(lease), lease.0));
        Ok(PbLeaseTimeToLiveResponse {
            header: member.header(member.revision),
            id: request.id,
            ttl,
            granted_ttl,
            keys: Vec::new(),
        })
    })
}

struct KeepAlive(Arc<Shared>);

type Answers = BoxStream<PbLeaseKeepAliveResponse>;

impl Service<tonic::Request<tonic::Streaming<PbLeaseKeepAliveRequest>>> for KeepAlive {
    type Response = tonic::Response<Answers>;
    type Error = Status;
    type Future = BoxFuture<Self::Response, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(
        &mut self,
        request: tonic::Request<tonic::Streaming<PbLeaseKeepAliveRequest>>,
    ) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let mut asked = request.into_inner();
            let (answers, stream) = mpsc::channel(1);
            tokio::spawn(async move {
                while let Ok(Some(message)) = asked.message().await {
                    let answer = keep_alive(&shared, message.id);
                    if answers.send(Ok(answer)).await.is_err() {
                        break;
                    }
                }
            });
            Ok(tonic::Response::new(Box::pin(Sent(stream)) as Answers))
        })
    }
}

/// Watches of nothing: they tell what was compacted, and progress when asked.
struct Watch(Arc<Shared>);

impl Service<tonic::Request<tonic::Streaming<PbWatchRequest>>> for Watch {
    type Response = tonic::Response<BoxStream<PbWatchResponse>>;
    type Error = Status;
    type Future = BoxFuture<Self::Response, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: tonic::Request<tonic::Streaming<PbWatchRequest>>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let mut asked = request.into_inner();
            let (answers, stream) = mpsc::channel(4);
            tokio::spawn(async move {
                while let Ok(Some(message)) = asked.message().await {
                    for answer in watch(&shared.member(), message.request_union) {
                        // Two at most, and the queue holds more.
                        let _ = answers.try_send(Ok(answer));
                    }
                }
            });
            Ok(tonic::Response::new(Box::pin(Sent(stream)) as BoxStream<PbWatchResponse>))
        })
    }
}

fn watch(member: &Member, request: Option<PbWatchRequestUnion>) -> Vec<PbWatchResponse> {
    let answer = PbWatchResponse { header: member.header(member.revision), ..Default::default() };
    match request {
        Some(PbWatchRequestUnion::CreateRequest(create)) => {
            let created = PbWatchResponse { created: true, ..answer.clone() };
            let (from, compact_revision) = (create.start_revision, member.compact_revision);
            let is_gone = from > 0 && from < compact_revision;
            let gone = PbWatchResponse { canceled: true, compact_revision, ..answer };
            [vec![created], if is_gone { vec![gone] } else { Vec::new() }].concat()
        }
        Some(PbWatchRequestUnion::ProgressRequest(_)) => {
            vec![PbWatchResponse { watch_id: -1, ..answer }]
        }
        _ => Vec::new(),
    }
}

fn keep_alive(shared: &Shared, id: i64) -> PbLeaseKeepAliveResponse {
    let member = shared.member().clone();
    let mut upkeep = member.common.lock();
    upkeep.expire();
    let ttl = upkeep.leases.get_mut(&id).map_or(0, |lease| {
        lease.1 = Instant::now();
        lease.0
    });
    PbLeaseKeepAliveResponse { header: member.header(member.revision), id, ttl }
}

struct Sent<T>(mpsc::Receiver<Result<T, Status>>);

impl<T> Stream for Sent<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}
