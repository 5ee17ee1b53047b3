//! Passwords: hashed before they go into the log, and checked before a log-in does.
//!
//! A hash takes tens of milliseconds on purpose, so nothing is calculated while a lock is held:
//! [`PasswordCheck::of`] reads the state, [`PasswordCheck::verify`] calculates. The rules may
//! change meanwhile; whoever logs in compares the revision afterwards and tries again.
//!
//! The clear text never goes into the log; what does is base64 of the bcrypt hash.
//!
//! Source: etcd `EtcdServer` (`Authenticate`, `UserAdd`, `UserChangePassword`),
//! `auth.authStore.CheckPassword`, `golang.org/x/crypto/bcrypt`, 3.6.16, 3.7.3.

use std::fmt;
use std::ops::RangeInclusive;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::etcd::apply::{DEFAULT_BCRYPT_COST, Refusal, State};
use crate::etcd::request::{Secret, UserOptions};
use crate::store::directory;
use crate::store::error::Error;

/// Costs that bcrypt knows; for another one etcd takes its own.
pub const BCRYPT_COSTS: RangeInclusive<u32> = 4..=31;
/// Longest password, in bytes.
const PASSWORD_MAX: usize = 72;

/// A password's hash as the log has it; empty where none is to be stored.
#[derive(Clone, PartialEq, Eq)]
pub struct PasswordHash(Vec<u8>);

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PasswordHash").field(&self.secret()).finish()
    }
}

impl PasswordHash {
    /// Hashes the password of a new user; an empty one is a password too.
    ///
    /// # Errors
    /// It is too long, or the operating system gives no salt.
    pub fn of_new_user(
        password: &[u8],
        options: Option<&UserOptions>,
        cost: u32,
    ) -> Result<Self, Error> {
        if options.is_some_and(|options| options.no_password) {
            return Ok(Self(Vec::new()));
        }
        Self::of(password, cost)
    }

    /// Hashes a user's other password; an empty one takes the password away.
    ///
    /// # Errors
    /// As [`PasswordHash::of_new_user`].
    pub fn of_change(password: &[u8], cost: u32) -> Result<Self, Error> {
        if password.is_empty() { Ok(Self(Vec::new())) } else { Self::of(password, cost) }
    }

    fn of(password: &[u8], cost: u32) -> Result<Self, Error> {
        if password.len() > PASSWORD_MAX {
            return Err(Error::PasswordTooLong);
        }
        let cost = if BCRYPT_COSTS.contains(&cost) { cost } else { DEFAULT_BCRYPT_COST };
        let hash = bcrypt::hash_with_result(password, cost)
            .map_err(|error| Error::Storage(format!("a password was not hashed: {error}")))?;
        let text = hash.format_for_version(bcrypt::Version::TwoA);
        Ok(Self(STANDARD.encode(text).into_bytes()))
    }

    /// Returns the hash for a request.
    #[must_use]
    pub fn secret(&self) -> Secret<'_> {
        Secret(&self.0)
    }
}

/// What a password is checked against.
#[derive(Clone)]
pub struct PasswordCheck {
    hash: Vec<u8>,
    auth_revision: u64,
}

impl fmt::Debug for PasswordCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let revision = &self.auth_revision;
        f.debug_struct("PasswordCheck").field("auth_revision", revision).finish_non_exhaustive()
    }
}

impl PasswordCheck {
    /// Reads what a user's password is checked against.
    ///
    /// # Errors
    /// Auth is off, there is no such user, it has no password; or the state cannot be read.
    pub fn of(state: &dyn State, name: &[u8]) -> Result<Self, Error> {
        let status = directory::auth_status(state)?;
        if !status.enabled {
            return Err(Refusal::AuthNotEnabled.into());
        }
        let user = directory::find_user(state, name)?.ok_or(Refusal::AuthFailed)?;
        if user.no_password == Some(true) {
            return Err(Error::NoPasswordUser);
        }
        Ok(Self { hash: user.password, auth_revision: status.revision })
    }

    /// Compares a password. Returns the revision of the rules that it was compared by: when that is
    /// not the current one after the log-in was applied, everything is to be done again.
    ///
    /// # Errors
    /// It is not the password.
    pub fn verify(&self, password: &[u8]) -> Result<u64, Error> {
        let hash = std::str::from_utf8(&self.hash).map_err(|_| Refusal::AuthFailed)?;
        match bcrypt::verify(password, hash) {
            Ok(true) => Ok(self.auth_revision),
            Ok(false) | Err(_) => Err(Refusal::AuthFailed.into()),
        }
    }
}
