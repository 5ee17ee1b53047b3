//! What is checked before a request is logged: its form, who asks, and whether there is room.
//!
//! etcd's order: room ([`Quota`]), form (`check_form`), the token (`Tokens`), then who may what
//! (`check_access`). What depends on the state is checked again when the entry is applied, by the
//! same code, since by then it may have changed. Requests that the store makes itself (the end of
//! an expired lease, checkpoints, versions, attributes) are not asked about access.
//!
//! Source: etcd `v3rpc/key.go` (`checkTxnRequest`, `checkIntervals`), `storage/quota.go`,
//! `auth/simple_token.go`, `apply/auth.go`, 3.6.16, 3.7.3.

mod access;
mod form;
mod growth;
mod password;
mod quota;
mod tokens;

pub use access::{Caller, User};
#[doc(hidden)]
pub use access::{Wish, check_access};
#[doc(hidden)]
pub use form::{check_form, check_range_form};
#[doc(hidden)]
pub use growth::check_growth;
pub use password::BCRYPT_COSTS;
#[doc(hidden)]
pub use password::{PasswordCheck, PasswordHash};
pub use quota::Quota;
#[doc(hidden)]
pub use quota::cost;
#[doc(hidden)]
pub use tokens::Tokens;
pub use tokens::{SignedTokens, TOKENS_MAX};

#[cfg(test)]
mod tests;
