//! Users, roles and who may do what.
//!
//! Passwords are hashed and compared on threads beside those that serve, one a processor: a flood
//! of log-ins waits for its turn, and nobody else for it. No password is in a log or an error.
//!
//! Source: etcd `v3rpc/auth.go`, `v3_server.go`, 3.6.16, 3.7.3.

use bytes::Bytes;
use tonic::{Request, Response, Status};

use super::Shared;
use super::status::status;
use crate::etcd::request::{
    Body, GrantedPermission, Nothing, RoleGrantPermission, RoleName, RoleRevokePermission, Secret,
    UserChangePassword, UserName, UserRole,
};
use crate::etcd::rows::Permission;
use crate::store::engine::{NewUser, Submission};
use crate::store::guard::Caller;
use crate::store::wire::authpb;
use crate::store::wire::etcdserverpb as pb;
use crate::store::wire::etcdserverpb::auth_server::Auth;
use crate::store::{Answer, Error, Store};

impl Shared {
    /// Makes a change that is logged.
    async fn change<T: Sync>(
        &self,
        request: &Request<T>,
        body: Body<'_>,
    ) -> Result<Option<pb::ResponseHeader>, Status> {
        let caller = self.caller(request)?;
        let pending = Submission::try_from(body)
            .and_then(|submission| self.store.submit(&caller, submission))
            .map_err(|error| status(&error))?;
        let Answer { revision, .. } = self.answer(pending).await?;
        Ok(self.header(revision))
    }

    /// Does what a password is hashed for.
    async fn hash<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Status> {
        self.aside_in_turn(&self.hashing, work).await
    }

    /// Reads users or roles.
    async fn read<T, R: Send + 'static>(
        &self,
        request: Request<T>,
        read: impl FnOnce(&Store, &Caller, T) -> Result<R, Error> + Send + 'static,
    ) -> Result<(Option<pb::ResponseHeader>, R), Status>
    where
        T: Send + 'static,
    {
        let caller = self.caller(&request)?;
        let message = request.into_inner();
        let done = self.aside(move |store| read(store, &caller, message)).await?;
        Ok((self.header(0), done))
    }
}

#[tonic::async_trait]
impl Auth for Shared {
    async fn auth_enable(
        &self,
        request: Request<pb::AuthEnableRequest>,
    ) -> Result<Response<pb::AuthEnableResponse>, Status> {
        let header = self.change(&request, Body::AuthEnable(Nothing {})).await?;
        Ok(Response::new(pb::AuthEnableResponse { header }))
    }

    async fn auth_disable(
        &self,
        request: Request<pb::AuthDisableRequest>,
    ) -> Result<Response<pb::AuthDisableResponse>, Status> {
        let header = self.change(&request, Body::AuthDisable(Nothing {})).await?;
        Ok(Response::new(pb::AuthDisableResponse { header }))
    }

    async fn auth_status(
        &self,
        request: Request<pb::AuthStatusRequest>,
    ) -> Result<Response<pb::AuthStatusResponse>, Status> {
        let (header, told) =
            self.read(request, |store, caller, _| store.auth_status_for(caller)).await?;
        let (enabled, auth_revision) = (told.enabled, told.revision);
        Ok(Response::new(pb::AuthStatusResponse { header, enabled, auth_revision }))
    }

    async fn authenticate(
        &self,
        request: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        let pb::AuthenticateRequest { name, password } = request.into_inner();
        let answer = self.hash(move |store| store.authenticate(&name, &password)).await?;
        let header = self.header(answer.revision);
        Ok(Response::new(pb::AuthenticateResponse { header, token: answer.body }))
    }

    async fn user_add(
        &self,
        request: Request<pb::AuthUserAddRequest>,
    ) -> Result<Response<pb::AuthUserAddResponse>, Status> {
        let caller = self.caller(&request)?;
        let message = request.into_inner();
        // A hash that the client made is not used, as in etcd.
        let pb::AuthUserAddRequest { name, password, options, .. } = message;
        if options.is_some_and(|options| options.no_password) {
            let add =
                move |store: &Store| store.user_add(&caller, NewUser::without_password(&name));
            self.aside(add).await?;
        } else {
            let add = move |store: &Store| {
                store.user_add(&caller, NewUser::with_password(&name, &password))
            };
            self.hash(add).await?;
        }
        Ok(Response::new(pb::AuthUserAddResponse { header: self.header(0) }))
    }

    async fn user_get(
        &self,
        request: Request<pb::AuthUserGetRequest>,
    ) -> Result<Response<pb::AuthUserGetResponse>, Status> {
        let read =
            self.read(request, |store, caller, message| store.user_get(caller, &message.name));
        let (header, roles) = read.await?;
        Ok(Response::new(pb::AuthUserGetResponse { header, roles }))
    }

    async fn user_list(
        &self,
        request: Request<pb::AuthUserListRequest>,
    ) -> Result<Response<pb::AuthUserListResponse>, Status> {
        let (header, users) =
            self.read(request, |store, caller, _| store.user_list(caller)).await?;
        Ok(Response::new(pb::AuthUserListResponse { header, users }))
    }

    async fn user_delete(
        &self,
        request: Request<pb::AuthUserDeleteRequest>,
    ) -> Result<Response<pb::AuthUserDeleteResponse>, Status> {
        let message = request.get_ref();
        let body = Body::UserDelete(UserName { name: message.name.as_bytes() });
        let header = self.change(&request, body).await?;
        Ok(Response::new(pb::AuthUserDeleteResponse { header }))
    }

    async fn user_change_password(
        &self,
        request: Request<pb::AuthUserChangePasswordRequest>,
    ) -> Result<Response<pb::AuthUserChangePasswordResponse>, Status> {
        // Without a password, a hash that the client made is used, as in etcd.
        if request.get_ref().password.is_empty() {
            let message = request.get_ref();
            let body = Body::UserChangePassword(UserChangePassword {
                name: message.name.as_bytes(),
                password: Secret(b""),
                hashed_password: Secret(message.hashed_password.as_bytes()),
            });
            let header = self.change(&request, body).await?;
            return Ok(Response::new(pb::AuthUserChangePasswordResponse { header }));
        }
        let caller = self.caller(&request)?;
        let pb::AuthUserChangePasswordRequest { name, password, .. } = request.into_inner();
        self.hash(move |store| store.user_change_password(&caller, &name, &password)).await?;
        Ok(Response::new(pb::AuthUserChangePasswordResponse { header: self.header(0) }))
    }

    async fn user_grant_role(
        &self,
        request: Request<pb::AuthUserGrantRoleRequest>,
    ) -> Result<Response<pb::AuthUserGrantRoleResponse>, Status> {
        let message = request.get_ref();
        let body = {
            let (user, role) = (message.user.as_bytes(), message.role.as_bytes());
            Body::UserGrantRole(UserRole { user, role })
        };
        let header = self.change(&request, body).await?;
        Ok(Response::new(pb::AuthUserGrantRoleResponse { header }))
    }

    async fn user_revoke_role(
        &self,
        request: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> Result<Response<pb::AuthUserRevokeRoleResponse>, Status> {
        let message = request.get_ref();
        let body = {
            let (user, role) = (message.name.as_bytes(), message.role.as_bytes());
            Body::UserRevokeRole(UserRole { user, role })
        };
        let header = self.change(&request, body).await?;
        Ok(Response::new(pb::AuthUserRevokeRoleResponse { header }))
    }

    async fn role_add(
        &self,
        request: Request<pb::AuthRoleAddRequest>,
    ) -> Result<Response<pb::AuthRoleAddResponse>, Status> {
        let message = request.get_ref();
        let body = Body::RoleAdd(RoleName { role: message.name.as_bytes() });
        let header = self.change(&request, body).await?;
        Ok(Response::new(pb::AuthRoleAddResponse { header }))
    }

    async fn role_get(
        &self,
        request: Request<pb::AuthRoleGetRequest>,
    ) -> Result<Response<pb::AuthRoleGetResponse>, Status> {
        let read =
            self.read(request, |store, caller, message| store.role_get(caller, &message.role));
        let (header, permissions) = read.await?;
        let message = |permission: Permission| authpb::Permission {
            perm_type: i32::try_from(permission.kind).unwrap_or(-1),
            key: Bytes::from(permission.key),
            range_end: Bytes::from(permission.range_end),
        };
        let perm = permissions.into_iter().map(message).collect();
        Ok(Response::new(pb::AuthRoleGetResponse { header, perm }))
    }

    async fn role_list(
        &self,
        request: Request<pb::AuthRoleListRequest>,
    ) -> Result<Response<pb::AuthRoleListResponse>, Status> {
        let (header, roles) =
            self.read(request, |store, caller, _| store.role_list(caller)).await?;
        Ok(Response::new(pb::AuthRoleListResponse { header, roles }))
    }

    async fn role_delete(
        &self,
        request: Request<pb::AuthRoleDeleteRequest>,
    ) -> Result<Response<pb::AuthRoleDeleteResponse>, Status> {
        let message = request.get_ref();
        let body = Body::RoleDelete(RoleName { role: message.role.as_bytes() });
        let header = self.change(&request, body).await?;
        Ok(Response::new(pb::AuthRoleDeleteResponse { header }))
    }

    async fn role_grant_permission(
        &self,
        request: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<pb::AuthRoleGrantPermissionResponse>, Status> {
        let message = request.get_ref();
        let body = {
            let permission = message.perm.as_ref().map(|permission| GrantedPermission {
                kind: i64::from(permission.perm_type).cast_unsigned(),
                key: &permission.key,
                range_end: &permission.range_end,
            });
            let role = message.name.as_bytes();
            Body::RoleGrantPermission(RoleGrantPermission { role, permission })
        };
        let header = self.change(&request, body).await?;
        Ok(Response::new(pb::AuthRoleGrantPermissionResponse { header }))
    }

    async fn role_revoke_permission(
        &self,
        request: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<pb::AuthRoleRevokePermissionResponse>, Status> {
        let message = request.get_ref();
        let body = Body::RoleRevokePermission(RoleRevokePermission {
            role: message.role.as_bytes(),
            key: &message.key,
            range_end: &message.range_end,
        });
        let header = self.change(&request, body).await?;
        Ok(Response::new(pb::AuthRoleRevokePermissionResponse { header }))
    }
}
