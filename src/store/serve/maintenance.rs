//! Maintenance: Alarm, Status, Defragment, Hash, HashKV, Snapshot, MoveLeader, Downgrade.
//!
//! Source: etcd `v3rpc/maintenance.go`, 3.6.16, 3.7.3.

use std::io::Read;

use bytes::Bytes;
use tonic::{Request, Response, Status};

use super::parts::{Part, Parts, Source};
use super::status::{of_another_kind, status};
use super::{Shared, convert};
use crate::etcd::members::MemberId;
use crate::etcd::request::{Alarm, Body};
use crate::etcd::schema::Version;
use crate::format::u64_of;
use crate::store::engine::{Snapshot, Submission};
use crate::store::wire::etcdserverpb as pb;
use crate::store::wire::etcdserverpb::alarm_request::AlarmAction;
use crate::store::wire::etcdserverpb::downgrade_request::DowngradeAction;
use crate::store::wire::etcdserverpb::maintenance_server::Maintenance;
use crate::store::{Answer, answer};

/// Bytes of a snapshot in one message, as etcd's.
const BLOB_BYTES: usize = 32 << 10;
/// Bytes of a snapshot that are read at a time.
const READ_BYTES: usize = 512 << 10;

#[tonic::async_trait]
impl Maintenance for Shared {
    async fn alarm(
        &self,
        request: Request<pb::AlarmRequest>,
    ) -> Result<Response<pb::AlarmResponse>, Status> {
        let caller = self.caller(&request)?;
        let message = request.into_inner();
        let alarm = Alarm {
            action: convert::number(message.action),
            member_id: message.member_id,
            alarm: convert::number(message.alarm),
        };
        let Answer { revision, body } = if message.action == i32::from(AlarmAction::Get) {
            self.aside(move |store| store.alarm(&caller, alarm)).await?
        } else {
            let pending = Submission::try_from(Body::Alarm(alarm))
                .and_then(|submission| self.store.submit(&caller, submission))
                .map_err(|error| status(&error))?;
            let Answer { revision, body } = self.answer(pending).await?;
            let body = match body {
                answer::Body::Alarms(alarms) => alarms,
                answer::Body::Done => Vec::new(),
                _ => return Err(of_another_kind()),
            };
            Answer { revision, body }
        };
        let alarms = body.into_iter().map(|(member_id, kind)| pb::AlarmMember {
            member_id,
            alarm: i32::try_from(kind).unwrap_or(-1),
        });
        let header = self.header(revision);
        Ok(Response::new(pb::AlarmResponse { header, alarms: alarms.collect() }))
    }

    async fn status(
        &self,
        request: Request<pb::StatusRequest>,
    ) -> Result<Response<pb::StatusResponse>, Status> {
        let caller = self.caller(&request)?;
        let told = self.aside(move |store| store.status(&caller)).await?;
        let size = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
        // etcd tells the flag's value, which is below 0 where there is no limit.
        let quota = if told.db_size_quota_bytes == 0 { -1 } else { size(told.db_size_quota_bytes) };
        Ok(Response::new(pb::StatusResponse {
            header: self.header(told.revision),
            version: told.version,
            db_size: size(told.db_size_bytes),
            leader: told.leader.0,
            raft_index: told.raft_index,
            raft_term: told.raft_term,
            raft_applied_index: told.raft_applied_index,
            errors: told.errors,
            db_size_in_use: size(told.db_size_in_use_bytes),
            is_learner: told.is_learner,
            storage_version: told.storage_version,
            db_size_quota: quota,
            downgrade_info: Some(pb::DowngradeInfo {
                enabled: told.downgrade.enabled,
                target_version: told.downgrade.target_version,
            }),
        }))
    }

    async fn defragment(
        &self,
        request: Request<pb::DefragmentRequest>,
    ) -> Result<Response<pb::DefragmentResponse>, Status> {
        let caller = self.caller(&request)?;
        self.aside_in_turn(&self.reading, move |store| store.defragment(&caller)).await?;
        Ok(Response::new(pb::DefragmentResponse { header: None }))
    }

    async fn hash(
        &self,
        request: Request<pb::HashRequest>,
    ) -> Result<Response<pb::HashResponse>, Status> {
        let caller = self.caller(&request)?;
        let Answer { revision, body } =
            self.aside_in_turn(&self.reading, move |store| store.hash(&caller)).await?;
        Ok(Response::new(pb::HashResponse { header: self.header(revision), hash: body }))
    }

    async fn hash_kv(
        &self,
        request: Request<pb::HashKvRequest>,
    ) -> Result<Response<pb::HashKvResponse>, Status> {
        let caller = self.caller(&request)?;
        let revision = request.into_inner().revision;
        let answer = self
            .aside_in_turn(&self.reading, move |store| store.hash_kv(&caller, revision))
            .await?;
        Ok(Response::new(pb::HashKvResponse {
            header: self.header(answer.revision),
            hash: answer.body.hash,
            compact_revision: answer.body.compact_revision,
            hash_revision: answer.body.hash_revision,
        }))
    }

    type SnapshotStream = Parts<Blobs>;

    async fn snapshot(
        &self,
        request: Request<pb::SnapshotRequest>,
    ) -> Result<Response<Parts<Blobs>>, Status> {
        let caller = self.caller(&request)?;
        let snapshot = self.aside(move |store| store.snapshot(&caller)).await?;
        Ok(Response::new(Parts::of(Blobs { snapshot }, self.closed())))
    }

    async fn move_leader(
        &self,
        request: Request<pb::MoveLeaderRequest>,
    ) -> Result<Response<pb::MoveLeaderResponse>, Status> {
        let caller = self.caller(&request)?;
        let target = MemberId(request.into_inner().target_id);
        self.store.move_leader(&caller, target).map_err(|error| status(&error))?;
        Ok(Response::new(pb::MoveLeaderResponse { header: None }))
    }

    async fn downgrade(
        &self,
        request: Request<pb::DowngradeRequest>,
    ) -> Result<Response<pb::DowngradeResponse>, Status> {
        let caller = self.caller(&request)?;
        let pb::DowngradeRequest { action, version } = request.into_inner();
        let action = DowngradeAction::try_from(action);
        let version = self
            .aside(move |store| match action {
                Ok(DowngradeAction::Validate) => store.downgrade_validate(&caller, &version),
                Ok(DowngradeAction::Enable) => store.downgrade_enable(&caller, &version),
                Ok(DowngradeAction::Cancel) => store.downgrade_cancel(&caller),
                Err(_) => store.downgrade_unknown(&caller),
            })
            .await?;
        let Version { major, minor, .. } = version;
        let header = self.header(0);
        Ok(Response::new(pb::DowngradeResponse { header, version: format!("{major}.{minor}") }))
    }
}

/// A snapshot in messages: the database in blobs, then its sum.
#[derive(Debug)]
pub(super) struct Blobs {
    snapshot: Snapshot,
}

impl Source for Blobs {
    type Message = pb::SnapshotResponse;

    fn read(&mut self) -> Result<Part<pb::SnapshotResponse>, Status> {
        let left = self.snapshot.remaining_bytes();
        let is_last = left == 0;
        // The sum comes after the last byte of the database, in a read of its own.
        let limit = if is_last { u64_of(BLOB_BYTES) } else { left.min(u64_of(READ_BYTES)) };
        let mut bytes = Vec::new();
        let failed = |error: std::io::Error| Status::unknown(error.to_string());
        self.snapshot.by_ref().take(limit).read_to_end(&mut bytes).map_err(failed)?;
        let mut bytes = Bytes::from(bytes);
        let mut remaining_bytes = left;
        let mut messages = Vec::new();
        while !bytes.is_empty() {
            let blob = bytes.split_to(bytes.len().min(BLOB_BYTES));
            remaining_bytes = remaining_bytes.saturating_sub(u64_of(blob.len()));
            let version = self.snapshot.storage_version().to_owned();
            messages.push(pb::SnapshotResponse { header: None, remaining_bytes, blob, version });
        }
        Ok(Part { messages, is_last })
    }
}
