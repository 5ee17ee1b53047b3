//! Members: MemberList, MemberAdd, MemberRemove, MemberUpdate, MemberPromote. There is one.
//!
//! Source: etcd `v3rpc/member.go`, 3.6.16, 3.7.3.

use tonic::{Code, Request, Response, Status};

use super::Shared;
use crate::etcd::members::{Member, MemberId};
use crate::store::wire::etcdserverpb as pb;
use crate::store::wire::etcdserverpb::cluster_server::Cluster;

/// Why nobody joins.
const ONE_MEMBER: &str = "this store is one member: a second voter would take away its quorum; to \
                          grow, stop it, start etcd on the data directory, and add members there";

#[tonic::async_trait]
impl Cluster for Shared {
    async fn member_list(
        &self,
        request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        let caller = self.caller(&request)?;
        let members = self.aside(move |store| store.members(&caller)).await?;
        let header = Some(self.header_without_revision());
        Ok(Response::new(pb::MemberListResponse { header, members: messages(members) }))
    }

    async fn member_add(
        &self,
        request: Request<pb::MemberAddRequest>,
    ) -> Result<Response<pb::MemberAddResponse>, Status> {
        let caller = self.caller(&request)?;
        let urls = request.into_inner().peer_ur_ls;
        let added = self.aside(move |store| store.member_add(&caller, &urls)).await;
        added.inspect_err(|refusal| {
            if refusal.code() == Code::Unavailable {
                self.options.log.warn("refused to add a member", &[("reason", &ONE_MEMBER)]);
            }
        })?;
        let header = Some(self.header_without_revision());
        Ok(Response::new(pb::MemberAddResponse { header, ..Default::default() }))
    }

    async fn member_remove(
        &self,
        request: Request<pb::MemberRemoveRequest>,
    ) -> Result<Response<pb::MemberRemoveResponse>, Status> {
        let caller = self.caller(&request)?;
        let id = MemberId(request.into_inner().id);
        self.aside(move |store| store.member_remove(&caller, id)).await?;
        let header = Some(self.header_without_revision());
        Ok(Response::new(pb::MemberRemoveResponse { header, members: Vec::new() }))
    }

    async fn member_update(
        &self,
        request: Request<pb::MemberUpdateRequest>,
    ) -> Result<Response<pb::MemberUpdateResponse>, Status> {
        let caller = self.caller(&request)?;
        let pb::MemberUpdateRequest { id, peer_ur_ls: urls } = request.into_inner();
        let update = self.aside(move |store| store.member_update(&caller, MemberId(id), &urls));
        let members = update.await?;
        let header = Some(self.header_without_revision());
        Ok(Response::new(pb::MemberUpdateResponse { header, members: messages(members) }))
    }

    async fn member_promote(
        &self,
        request: Request<pb::MemberPromoteRequest>,
    ) -> Result<Response<pb::MemberPromoteResponse>, Status> {
        let caller = self.caller(&request)?;
        let id = MemberId(request.into_inner().id);
        self.aside(move |store| store.member_promote(&caller, id)).await?;
        let header = Some(self.header_without_revision());
        Ok(Response::new(pb::MemberPromoteResponse { header, members: Vec::new() }))
    }
}

fn messages(members: Vec<Member>) -> Vec<pb::Member> {
    let message = |member: Member| pb::Member {
        id: member.id.0,
        name: member.name,
        peer_ur_ls: member.peer_urls,
        client_ur_ls: member.client_urls,
        is_learner: member.is_learner,
    };
    members.into_iter().map(message).collect()
}
