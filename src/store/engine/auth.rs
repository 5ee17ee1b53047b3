//! Users, roles and who may do what.
//!
//! Passwords are hashed before they are logged, and never logged themselves. A password is
//! compared outside of the log; should the rules have changed when the login is applied, it is
//! compared again.
//!
//! Source: etcd `v3_server.go` (`Authenticate`, `UserAdd`), `auth/store.go`, 3.6.16.

use super::Store;
use crate::etcd::apply::Refusal;
use crate::etcd::request::{
    Authenticate, Body, GrantedPermission, Nothing, RoleGrantPermission, RoleName,
    RoleRevokePermission, Secret, UserAdd, UserChangePassword, UserName, UserOptions, UserRole,
};
use crate::etcd::rows::Permission;
use crate::store::answer::Answer;
use crate::store::directory::{self, AuthStatus};
use crate::store::error::Error;
use crate::store::guard::{Caller, PasswordCheck, PasswordHash, Tokens, User, Wish};
use crate::store::mvcc::Mvcc;
use crate::store::open::Compat;

/// Logins that are tried while the rules change under them.
const LOGINS_MAX: usize = 16;

/// A user to be added.
#[derive(Clone, Copy, Default)]
#[non_exhaustive]
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

impl<'a> NewUser<'a> {
    /// A user who logs in with a password.
    #[must_use]
    pub fn with_password(name: &'a str, password: &'a str) -> Self {
        Self { name, password, ..Self::default() }
    }

    /// The same, by the bcrypt hash of the password in base64.
    #[must_use]
    pub fn with_hash(name: &'a str, hashed_password: &'a str) -> Self {
        Self { name, hashed_password, ..Self::default() }
    }

    /// A user who can only log in by certificate.
    #[must_use]
    pub fn without_password(name: &'a str) -> Self {
        Self { name, no_password: true, ..Self::default() }
    }
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
        let Some(signed) = &shared.options.signed_tokens else {
            let name = shared.tokens.find(token).ok_or(Error::InvalidToken)?;
            return Ok(self.caller_named(&name));
        };
        // The rules may be newer than the token; then whoever asks has to log in again.
        let user = signed.verify(token, shared.options.clock.unix_ms());
        Ok(Caller { user: Some(user.ok_or(Error::InvalidToken)?) })
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
    /// Auth is off, as it always is where the store is only read; a wrong name or password; or the
    /// disk.
    pub fn authenticate(&self, name: &str, password: &str) -> Result<Answer<String>, Error> {
        let shared = self.shared();
        if shared.is_read_only {
            // Clients that were given a user go on without a token then.
            return Err(Error::Refused(Refusal::AuthNotEnabled));
        }
        for _ in 0..LOGINS_MAX {
            let check = shared.core.read(|mvcc| PasswordCheck::of(mvcc, name.as_bytes()))??;
            let checked = check.verify(password.as_bytes())?;
            let signed = shared.options.signed_tokens.as_ref();
            let prefix = match signed {
                Some(_) => String::new(),
                None => Tokens::new_prefix()?,
            };
            let body = Body::Authenticate(Authenticate {
                name: name.as_bytes(),
                password: Secret(b""),
                simple_token: Secret(prefix.as_bytes()),
            });
            let done = self.wait(shared.submit(&Caller::default(), body)?)?;
            if shared.core.auth_revision() == checked {
                let user = || User { name: name.to_owned(), auth_revision: checked };
                let body = match signed {
                    Some(signed) => signed.sign(&user(), shared.options.clock.unix_ms())?,
                    None => shared.tokens.assign(name, &prefix, done.index),
                };
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
        self.shared().core.read(|mvcc| directory::auth_status(mvcc))?
    }

    /// Tells a caller whether auth is on; etcd 3.6 tells root alone, once it is.
    ///
    /// # Errors
    /// No permission, or the store is closed.
    pub fn auth_status_for(&self, caller: &Caller) -> Result<AuthStatus, Error> {
        if self.shared().compat == Compat::V3_6 {
            self.shared().check(caller, Wish::Admin)?;
        }
        self.auth_status()
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
        self.shared().check_writable()?;
        self.shared().check(caller, Wish::Admin)?;
        if user.name.is_empty() {
            return Err(Error::Refused(Refusal::UserEmpty));
        }
        let options = UserOptions { no_password: user.no_password };
        let cost = self.shared().options.bcrypt_cost;
        let own = match user.hashed_password {
            "" => Some(PasswordHash::of_new_user(user.password.as_bytes(), Some(&options), cost)?),
            _ => None,
        };
        let given = Secret(user.hashed_password.as_bytes());
        let hashed_password = own.as_ref().map_or(given, PasswordHash::secret);
        let body = Body::UserAdd(UserAdd {
            name: user.name.as_bytes(),
            password: Secret(b""),
            options: Some(options),
            hashed_password,
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
        self.shared().check_writable()?;
        self.shared().check(caller, Wish::Admin)?;
        let cost = self.shared().options.bcrypt_cost;
        let hashed = PasswordHash::of_change(password.as_bytes(), cost)?;
        let body = Body::UserChangePassword(UserChangePassword {
            name: name.as_bytes(),
            password: Secret(b""),
            hashed_password: hashed.secret(),
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
        let wish = Body::UserGet(request);
        let look = |mvcc: &Mvcc| directory::user_roles(mvcc, name.as_bytes());
        shared.look(caller, Wish::Request(&wish), look)?
    }

    /// Lists users.
    ///
    /// # Errors
    /// As etcd answers.
    pub fn user_list(&self, caller: &Caller) -> Result<Vec<String>, Error> {
        let wish = Body::UserList(Nothing {});
        self.shared().look(caller, Wish::Request(&wish), |mvcc| directory::users(mvcc))?
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
        let shared = self.shared();
        let request = RoleName { role: name.as_bytes() };
        let wish = Body::RoleGet(request);
        let look = |mvcc: &Mvcc| directory::role_permissions(mvcc, name.as_bytes());
        shared.look(caller, Wish::Request(&wish), look)?
    }

    /// Lists roles.
    ///
    /// # Errors
    /// As etcd answers.
    pub fn role_list(&self, caller: &Caller) -> Result<Vec<String>, Error> {
        let wish = Body::RoleList(Nothing {});
        self.shared().look(caller, Wish::Request(&wish), |mvcc| directory::roles(mvcc))?
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
}
