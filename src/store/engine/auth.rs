//! Users, roles and who may do what.
//!
//! Passwords are hashed before they are logged, and never logged themselves. A password is
//! compared outside of the log; should the rules have changed when the login is applied, it is
//! compared again.
//!
//! Source: etcd `v3_server.go` (`Authenticate`, `UserAdd`), `auth/store.go`, 3.6.16.

use std::hash::{BuildHasher, Hasher, RandomState};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{Shared, Store};
use crate::etcd::apply::{Refusal, State as _, StoredRole, StoredUser};
use crate::etcd::request::{
    Authenticate, Body, GrantedPermission, Nothing, RoleGrantPermission, RoleName,
    RoleRevokePermission, Secret, UserAdd, UserChangePassword, UserName, UserOptions, UserRole,
};
use crate::etcd::rows::Permission;
use crate::etcd::schema;
use crate::store::answer::Answer;
use crate::store::error::Error;
use crate::store::guard::{Caller, User, Wish};

/// Name of the user and of the role that may do everything.
const ROOT: &[u8] = b"root";
/// Letters of a token.
const LETTERS: &[u8; 52] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
/// Logins that are tried while the rules change under them.
const LOGINS_MAX: usize = 16;

/// Whether callers need permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthStatus {
    /// They do.
    pub is_enabled: bool,
    /// Revision of the rules.
    pub revision: u64,
}

/// A user to be added.
#[derive(Clone, Copy, Default)]
pub struct NewUser<'a> {
    /// Name.
    pub name: &'a str,
    /// Password; unused where there is none.
    pub password: &'a str,
    /// bcrypt hash in base64, in the password's place.
    pub hashed_password: &'a str,
    /// Whether the user can only log in by certificate.
    pub no_password: bool,
}

impl std::fmt::Debug for NewUser<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewUser").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Store {
    /// Finds who a token belongs to; nobody while auth is off.
    ///
    /// # Errors
    /// The token is not valid.
    pub fn caller(&self, token: Option<&str>) -> Result<Caller, Error> {
        let shared = self.shared();
        let (true, Some(token)) = (shared.core.is_auth_on(), token) else {
            return Ok(Caller::default());
        };
        let name = shared.tokens.find(token).ok_or(Error::InvalidToken)?;
        Ok(self.caller_named(&name))
    }

    /// Makes a caller of a user whom somebody else let in, such as by a certificate.
    #[must_use]
    pub fn caller_named(&self, name: &str) -> Caller {
        let auth_revision = self.shared().core.auth_revision();
        Caller { user: Some(User { name: name.to_owned(), auth_revision }) }
    }

    /// Logs a user in; answers the token.
    ///
    /// # Errors
    /// Auth is off, a wrong name or password, or the disk.
    pub fn authenticate(&self, name: &str, password: &str) -> Result<Answer<String>, Error> {
        let shared = self.shared();
        for _ in 0..LOGINS_MAX {
            if !shared.core.is_auth_on() {
                return Err(Error::Refused(Refusal::AuthNotEnabled));
            }
            if name.is_empty() {
                return Err(Error::Refused(Refusal::UserEmpty));
            }
            let checked = shared.core.auth_revision();
            let user = shared.stored_user(name.as_bytes())?;
            let failed = Error::Refused(Refusal::AuthFailed);
            let user = user.filter(|user| user.no_password != Some(true)).ok_or(failed.clone())?;
            let hash = std::str::from_utf8(&user.password).map_err(|_| failed.clone())?;
            if !bcrypt::verify(password, hash).unwrap_or(false) {
                return Err(failed);
            }
            let prefix = random_letters();
            let body = Body::Authenticate(Authenticate {
                name: name.as_bytes(),
                password: Secret(b""),
                simple_token: Secret(prefix.as_bytes()),
            });
            let pending = self.submit(&Caller::default(), body)?;
            let done = self.wait(pending)?;
            if shared.core.auth_revision() == checked {
                let body = shared.tokens.assign(name, done.index);
                return Ok(Answer { revision: done.answer.revision, body });
            }
        }
        Err(Error::Refused(Refusal::AuthOldRevision))
    }

    /// Tells whether auth is on.
    ///
    /// # Errors
    /// The store is closed.
    pub fn auth_status(&self) -> Result<AuthStatus, Error> {
        let core = &self.shared().core;
        core.read(|_| ())?;
        Ok(AuthStatus { is_enabled: core.is_auth_on(), revision: core.auth_revision() })
    }

    /// Turns auth on: user root with role root must be there.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn auth_enable(&self, caller: &Caller) -> Result<(), Error> {
        self.done(caller, Body::AuthEnable(Nothing {})).map(drop)
    }

    /// Turns auth off.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn auth_disable(&self, caller: &Caller) -> Result<(), Error> {
        self.done(caller, Body::AuthDisable(Nothing {})).map(drop)
    }

    /// Adds a user.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn user_add(&self, caller: &Caller, user: NewUser<'_>) -> Result<(), Error> {
        // Whoever may not is told before a password is hashed, which takes long.
        self.shared().check(caller, Wish::Admin)?;
        if user.name.is_empty() {
            return Err(Error::Refused(Refusal::UserEmpty));
        }
        let hashed = if user.no_password || !user.hashed_password.is_empty() {
            user.hashed_password.to_owned()
        } else {
            self.hash_password(user.password)?
        };
        let body = Body::UserAdd(UserAdd {
            name: user.name.as_bytes(),
            password: Secret(b""),
            options: Some(UserOptions { no_password: user.no_password }),
            hashed_password: Secret(hashed.as_bytes()),
        });
        self.done(caller, body).map(drop)
    }

    /// Deletes a user.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn user_delete(&self, caller: &Caller, name: &str) -> Result<(), Error> {
        self.done(caller, Body::UserDelete(UserName { name: name.as_bytes() })).map(drop)
    }

    /// Changes a password.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn user_change_password(
        &self,
        caller: &Caller,
        name: &str,
        password: &str,
    ) -> Result<(), Error> {
        self.shared().check(caller, Wish::Admin)?;
        let hashed = self.hash_password(password)?;
        let body = Body::UserChangePassword(UserChangePassword {
            name: name.as_bytes(),
            password: Secret(b""),
            hashed_password: Secret(hashed.as_bytes()),
        });
        self.done(caller, body).map(drop)
    }

    /// Gives a user a role.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn user_grant_role(&self, caller: &Caller, user: &str, role: &str) -> Result<(), Error> {
        let request = UserRole { user: user.as_bytes(), role: role.as_bytes() };
        self.done(caller, Body::UserGrantRole(request)).map(drop)
    }

    /// Takes a role from a user.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn user_revoke_role(&self, caller: &Caller, user: &str, role: &str) -> Result<(), Error> {
        let request = UserRole { user: user.as_bytes(), role: role.as_bytes() };
        self.done(caller, Body::UserRevokeRole(request)).map(drop)
    }

    /// Lists the roles of a user.
    ///
    /// # Errors
    /// As etcd answers.
    pub fn user_get(&self, caller: &Caller, name: &str) -> Result<Vec<String>, Error> {
        let shared = self.shared();
        let request = UserName { name: name.as_bytes() };
        shared.check(caller, Wish::Request(&Body::UserGet(request)))?;
        let user = shared.stored_user(name.as_bytes())?;
        let user = user.ok_or(Error::Refused(Refusal::UserNotFound))?;
        Ok(user.roles.iter().map(|role| text(role)).collect())
    }

    /// Lists users.
    ///
    /// # Errors
    /// As etcd answers.
    pub fn user_list(&self, caller: &Caller) -> Result<Vec<String>, Error> {
        self.shared().check(caller, Wish::Request(&Body::UserList(Nothing {})))?;
        self.names(schema::AUTH_USERS)
    }

    /// Adds a role.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn role_add(&self, caller: &Caller, name: &str) -> Result<(), Error> {
        self.done(caller, Body::RoleAdd(RoleName { role: name.as_bytes() })).map(drop)
    }

    /// Deletes a role.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn role_delete(&self, caller: &Caller, name: &str) -> Result<(), Error> {
        self.done(caller, Body::RoleDelete(RoleName { role: name.as_bytes() })).map(drop)
    }

    /// Lists what a role may do.
    ///
    /// # Errors
    /// As etcd answers.
    pub fn role_get(&self, caller: &Caller, name: &str) -> Result<Vec<Permission>, Error> {
        const BOTH: u64 = 2;
        let shared = self.shared();
        let request = RoleName { role: name.as_bytes() };
        shared.check(caller, Wish::Request(&Body::RoleGet(request)))?;
        if name.as_bytes() == ROOT {
            let everything = Permission { kind: BOTH, key: Vec::new(), range_end: vec![0] };
            return Ok(vec![everything]);
        }
        let row = shared.row(schema::AUTH_ROLES, name.as_bytes());
        let row = row.ok_or(Error::Refused(Refusal::RoleNotFound))?;
        let role = StoredRole::decode(&row).map_err(|error| broken(name, &error))?;
        Ok(role.permissions)
    }

    /// Lists roles.
    ///
    /// # Errors
    /// As etcd answers.
    pub fn role_list(&self, caller: &Caller) -> Result<Vec<String>, Error> {
        self.shared().check(caller, Wish::Request(&Body::RoleList(Nothing {})))?;
        self.names(schema::AUTH_ROLES)
    }

    /// Lets a role do something.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn role_grant_permission(
        &self,
        caller: &Caller,
        role: &str,
        permission: &Permission,
    ) -> Result<(), Error> {
        let granted = GrantedPermission {
            kind: permission.kind,
            key: &permission.key,
            range_end: &permission.range_end,
        };
        let request = RoleGrantPermission { role: role.as_bytes(), permission: Some(granted) };
        self.done(caller, Body::RoleGrantPermission(request)).map(drop)
    }

    /// Takes a permission from a role.
    ///
    /// # Errors
    /// As etcd answers; [`Error::Storage`] where the disk failed.
    pub fn role_revoke_permission(
        &self,
        caller: &Caller,
        role: &str,
        key: &[u8],
        range_end: &[u8],
    ) -> Result<(), Error> {
        let request = RoleRevokePermission { role: role.as_bytes(), key, range_end };
        self.done(caller, Body::RoleRevokePermission(request)).map(drop)
    }

    fn names(&self, bucket: &[u8]) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        self.shared()
            .core
            .read(|mvcc| mvcc.each_row(bucket, &mut |key, _| names.push(text(key))))?
            .map_err(|error| Error::Storage(error.to_string()))?;
        Ok(names)
    }

    fn hash_password(&self, password: &str) -> Result<String, Error> {
        let hash = bcrypt::hash_with_result(password, self.shared().options.bcrypt_cost)
            .map_err(|error| Error::Storage(format!("a password cannot be hashed: {error}")))?;
        Ok(STANDARD.encode(hash.format_for_version(bcrypt::Version::TwoA)))
    }
}

impl Shared {
    fn stored_user(&self, name: &[u8]) -> Result<Option<StoredUser>, Error> {
        let Some(row) = self.row(schema::AUTH_USERS, name) else { return Ok(None) };
        StoredUser::decode(&row).map(Some).map_err(|error| broken(&text(name), &error))
    }
}

fn broken(name: &str, error: &crate::format::Error) -> Error {
    Error::Storage(format!("the row of {name}: {error}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a login is logged with: a token in an etcd that replays it, so not to be guessed.
fn random_letters() -> String {
    // Each RandomState is keyed by the operating system's randomness.
    let letter = |n: u64| {
        let index = usize::try_from(n % 52).unwrap_or(0);
        char::from(LETTERS.get(index).copied().unwrap_or(b'a'))
    };
    (0..16).map(|_| letter(RandomState::new().build_hasher().finish())).collect()
}
