//! The server against hard clients: many, slow, silent, gone, malformed and hostile ones. Others
//! are served meanwhile, memory and descriptors stay bounded, nothing acknowledged is lost, and no
//! event is lost or repeated.
//!
//! Loopback only. The tests take turns where they measure, so that each has the machine.

#![cfg(feature = "serve")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]
#![allow(clippy::indexing_slicing, reason = "these are tests")]

#[path = "support/certs.rs"]
mod certs;
#[path = "support/serve_child.rs"]
mod serve_child;
#[path = "support/serve_defrags.rs"]
mod serve_defrags;
#[path = "support/serve_ends.rs"]
mod serve_ends;
#[path = "support/serve_floods.rs"]
mod serve_floods;
#[path = "support/serve_limits.rs"]
mod serve_limits;
#[path = "support/serve_messages.rs"]
mod serve_messages;
#[path = "support/serve_peers.rs"]
mod serve_peers;
#[path = "support/serve_reading.rs"]
mod serve_reading;
#[path = "support/serve_watchers.rs"]
mod serve_watchers;
#[path = "support/serve_wire.rs"]
mod serve_wire;
