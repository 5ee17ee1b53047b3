//! Changes of users, roles and permissions.
//!
//! Each one that changes something raises `authRevision` by one, as turning auth off does; turning
//! it on does not. While auth is on only a user with the role root may ask for them.
//!
//! Source: etcd `auth/store.go`, 3.5.35, 3.6.16 and 3.7.3.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};

use super::auth_row::{find_role, find_user, is_enabled, revision, users};
use super::permission::{ROOT, check_admin, is_root};
use super::{Context, Effect, Refusal, Stop, StoredRole, StoredUser, Warning};
use crate::etcd::request::{
    Body, GrantedPermission, RoleGrantPermission, RoleRevokePermission, Secret, UserAdd,
    UserChangePassword, UserRole,
};
use crate::etcd::rows::Permission;
use crate::etcd::schema;

/// Cost of bcrypt that etcd uses without `--bcrypt-cost`.
pub const DEFAULT_BCRYPT_COST: u32 = 10;

pub(super) fn apply(
    context: &Context<'_, '_>,
    body: &Body<'_>,
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    if let Body::Authenticate(request) = body {
        return authenticate(context, request.name);
    }
    check_admin(context)?;
    match body {
        Body::AuthEnable(_) => enable(context, effect),
        Body::AuthDisable(_) => disable(context, effect),
        Body::UserAdd(request) => add_user(context, request, effect),
        Body::UserDelete(request) => delete_user(context, request.name, effect),
        Body::UserChangePassword(request) => change_password(context, request, effect),
        Body::UserGrantRole(request) => grant_role(context, request, effect),
        Body::UserRevokeRole(request) => revoke_role(context, request, effect),
        Body::RoleAdd(request) => add_role(context, request.role, effect),
        Body::RoleDelete(request) => delete_role(context, request.role, effect),
        Body::RoleGrantPermission(request) => grant_permission(context, request, effect),
        Body::RoleRevokePermission(request) => revoke_permission(context, request, effect),
        _ => Ok(()),
    }
}

fn authenticate(context: &Context<'_, '_>, name: &[u8]) -> Result<(), Stop> {
    if !is_enabled(context.state)? {
        return Err(Refusal::AuthNotEnabled.into());
    }
    let user = find_user(context.state, name)?.ok_or(Refusal::AuthFailed)?;
    if user.no_password == Some(true) {
        return Err(Refusal::AuthFailed.into());
    }
    Ok(())
}

fn raise_revision(context: &Context<'_, '_>, effect: &mut Effect<'_>) -> Result<(), Stop> {
    let next = revision(context.state)?.saturating_add(1);
    effect.put_row(schema::AUTH, schema::AUTH_REVISION, next.to_be_bytes().to_vec());
    Ok(())
}

fn put_user(user: &StoredUser, effect: &mut Effect<'_>) {
    effect.put_row(schema::AUTH_USERS, &user.name, user.encode());
}

fn put_role(role: &StoredRole, effect: &mut Effect<'_>) {
    effect.put_row(schema::AUTH_ROLES, &role.name, role.encode());
}

fn enable(context: &Context<'_, '_>, effect: &mut Effect<'_>) -> Result<(), Stop> {
    if is_enabled(context.state)? {
        return Ok(());
    }
    let root = find_user(context.state, ROOT)?.ok_or(Refusal::RootUserMissing)?;
    if !is_root(&root) {
        return Err(Refusal::RootRoleMissing.into());
    }
    effect.put_row(schema::AUTH, schema::AUTH_ENABLED, vec![1]);
    Ok(())
}

fn disable(context: &Context<'_, '_>, effect: &mut Effect<'_>) -> Result<(), Stop> {
    if !is_enabled(context.state)? {
        return Ok(());
    }
    effect.put_row(schema::AUTH, schema::AUTH_ENABLED, vec![0]);
    raise_revision(context, effect)
}

fn add_user(
    context: &Context<'_, '_>,
    request: &UserAdd<'_>,
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    if request.name.is_empty() {
        return Err(Refusal::UserEmpty.into());
    }
    if find_user(context.state, request.name)?.is_some() {
        return Err(Refusal::UserExists.into());
    }
    let no_password = request.options.as_ref().is_some_and(|options| options.no_password);
    let mut user = StoredUser {
        name: request.name.to_vec(),
        no_password: Some(no_password),
        ..StoredUser::default()
    };
    if !no_password {
        let (password, hashed) = (request.password, request.hashed_password);
        user.password = choose_password(context, &user.name, password, hashed, effect)?;
    }
    put_user(&user, effect);
    raise_revision(context, effect)
}

/// Returns the hash that is stored: the one in the log, or a new one of a password in the clear.
fn choose_password(
    context: &Context<'_, '_>,
    name: &[u8],
    password: Secret<'_>,
    hashed: Secret<'_>,
    effect: &mut Effect<'_>,
) -> Result<Vec<u8>, Stop> {
    if password.0.is_empty() || !hashed.0.is_empty() {
        return STANDARD.decode(hashed.0).map_err(|_| Refusal::PasswordInvalid.into());
    }
    let mut salt = Sha256::new();
    salt.update(b"bcrypt salt of one entry\0");
    salt.update(effect.index.to_be_bytes());
    salt.update(effect.term.to_be_bytes());
    salt.update(context.id.to_be_bytes());
    salt.update(name);
    let salt = salt.finalize().first_chunk::<16>().copied().unwrap_or_default();
    let hash = bcrypt::hash_with_salt(password.0, context.rules.bcrypt_cost, salt)
        .map_err(|error| Stop::Impossible(format!("a password that cannot be hashed: {error}")))?;
    effect.warnings.push(Warning::PasswordHashed);
    Ok(hash.format_for_version(bcrypt::Version::TwoA).into_bytes())
}

fn delete_user(
    context: &Context<'_, '_>,
    name: &[u8],
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    if is_enabled(context.state)? && name == ROOT {
        return Err(Refusal::InvalidAuthManagement.into());
    }
    if find_user(context.state, name)?.is_none() {
        return Err(Refusal::UserNotFound.into());
    }
    effect.drop_row(schema::AUTH_USERS, name);
    raise_revision(context, effect)
}

fn change_password(
    context: &Context<'_, '_>,
    request: &UserChangePassword<'_>,
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    let mut user = find_user(context.state, request.name)?.ok_or(Refusal::UserNotFound)?;
    user.password = if user.no_password == Some(true) {
        Vec::new()
    } else {
        choose_password(context, request.name, request.password, request.hashed_password, effect)?
    };
    put_user(&user, effect);
    raise_revision(context, effect)
}

fn grant_role(
    context: &Context<'_, '_>,
    request: &UserRole<'_>,
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    let mut user = find_user(context.state, request.user)?.ok_or(Refusal::UserNotFound)?;
    // The role root needs no row.
    if request.role != ROOT && find_role(context.state, request.role)?.is_none() {
        return Err(Refusal::RoleNotFound.into());
    }
    if user.roles.iter().any(|role| role == request.role) {
        return Ok(());
    }
    user.roles.push(request.role.to_vec());
    user.roles.sort_unstable();
    put_user(&user, effect);
    raise_revision(context, effect)
}

fn revoke_role(
    context: &Context<'_, '_>,
    request: &UserRole<'_>,
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    if is_enabled(context.state)? && request.user == ROOT && request.role == ROOT {
        return Err(Refusal::InvalidAuthManagement.into());
    }
    let mut user = find_user(context.state, request.user)?.ok_or(Refusal::UserNotFound)?;
    if !take_role(&mut user, request.role) {
        return Err(Refusal::RoleNotGranted.into());
    }
    put_user(&user, effect);
    raise_revision(context, effect)
}

fn take_role(user: &mut StoredUser, role: &[u8]) -> bool {
    let before = user.roles.len();
    user.roles.retain(|other| other != role);
    user.roles.len() != before
}

fn add_role(context: &Context<'_, '_>, name: &[u8], effect: &mut Effect<'_>) -> Result<(), Stop> {
    if name.is_empty() {
        return Err(Refusal::RoleEmpty.into());
    }
    if find_role(context.state, name)?.is_some() {
        return Err(Refusal::RoleExists.into());
    }
    put_role(&StoredRole { name: name.to_vec(), permissions: Vec::new() }, effect);
    raise_revision(context, effect)
}

fn delete_role(
    context: &Context<'_, '_>,
    name: &[u8],
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    if is_enabled(context.state)? && name == ROOT {
        return Err(Refusal::InvalidAuthManagement.into());
    }
    if find_role(context.state, name)?.is_none() {
        return Err(Refusal::RoleNotFound.into());
    }
    effect.drop_row(schema::AUTH_ROLES, name);
    for mut user in users(context.state)? {
        if take_role(&mut user, name) {
            put_user(&user, effect);
        }
    }
    raise_revision(context, effect)
}

fn grant_permission(
    context: &Context<'_, '_>,
    request: &RoleGrantPermission<'_>,
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    let granted = request.permission.as_ref().ok_or(Refusal::PermissionNotGiven)?;
    if !is_valid(granted) {
        return Err(Refusal::InvalidAuthManagement.into());
    }
    let mut role = find_role(context.state, request.role)?.ok_or(Refusal::RoleNotFound)?;
    let first = role.permissions.iter_mut().find(|held| held.key.as_slice() >= granted.key);
    match first {
        Some(held) if held.key == granted.key && held.range_end == granted.range_end => {
            held.kind = granted.kind;
        }
        _ => {
            role.permissions.push(Permission {
                kind: granted.kind,
                key: granted.key.to_vec(),
                range_end: granted.range_end.to_vec(),
            });
            role.permissions.sort_by(|a, b| a.key.cmp(&b.key));
        }
    }
    put_role(&role, effect);
    raise_revision(context, effect)
}

/// Tells whether the range has keys; "from key on" is one zero byte.
fn is_valid(granted: &GrantedPermission<'_>) -> bool {
    let end = granted.range_end;
    !granted.key.is_empty() && (end.is_empty() || granted.key < end || end == [0])
}

fn revoke_permission(
    context: &Context<'_, '_>,
    request: &RoleRevokePermission<'_>,
    effect: &mut Effect<'_>,
) -> Result<(), Stop> {
    let mut role = find_role(context.state, request.role)?.ok_or(Refusal::RoleNotFound)?;
    let before = role.permissions.len();
    role.permissions.retain(|held| held.key != request.key || held.range_end != request.range_end);
    if role.permissions.len() == before {
        return Err(Refusal::PermissionNotGranted.into());
    }
    put_role(&role, effect);
    raise_revision(context, effect)
}
