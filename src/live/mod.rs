//! Connections to running etcds.
//!
//! Invariants:
//!
//! 1. Every wait has a limit, name resolution included.
//! 2. One client an endpoint: a client with several endpoints would answer for any one of them.
//! 3. Callers are synchronous; the runtime lives and ends inside a call.
//!
//! Plain http only for now. An https endpoint is refused by name, never tried without its
//! certificates.

mod endpoint;
mod revision;

pub use endpoint::Endpoint;
pub use revision::{Answer, highest_revision};

use std::time::Duration;

/// Why an endpoint gave no answer, or why none was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There was no endpoint to ask.
    #[error("no endpoints were given")]
    NoEndpoints,
    /// The text is not an endpoint; it is not repeated, since it may hold a password.
    #[error("an endpoint is not of the form http://HOST:PORT: {what}")]
    Malformed {
        /// What is wrong, as a clause.
        what: &'static str,
    },
    /// The endpoint wants TLS.
    #[error("{endpoint} is https, and TLS flags (--cacert, --cert, --key) are not there yet")]
    Tls {
        /// The endpoint as it was given.
        endpoint: String,
    },
    /// Nothing answered in time.
    #[error("{endpoint} did not answer within {} ms", .after.as_millis())]
    Timeout {
        /// The endpoint as it was given.
        endpoint: String,
        /// The limit that passed.
        after: Duration,
    },
    /// No connection could be made, or it broke.
    #[error("{endpoint} cannot be reached: {what}")]
    Unreachable {
        /// The endpoint as it was given.
        endpoint: String,
        /// The causes, outermost first.
        what: String,
    },
    /// The member answered with an error.
    #[error("{endpoint} answered with an error: {what}")]
    Answer {
        /// The endpoint as it was given.
        endpoint: String,
        /// The member's own words.
        what: String,
    },
    /// The runtime that drives connections did not start.
    #[error("cannot start the connection runtime: {0}")]
    Runtime(#[source] std::io::Error),
}
