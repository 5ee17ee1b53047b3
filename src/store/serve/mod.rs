//! The store as a server.
pub mod tls;
