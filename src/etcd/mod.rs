//! What the rows of an etcd database mean, and what a member has beside its database.
//!
//! It owns names, codecs and rules of etcd's storage: revisions, records, members, leases, alarms,
//! auth, versions, a member's log, and the log that a restored member starts from. It writes
//! nothing and reads no clock; only [`log`] and [`data_dir`] read files. It never decides what to
//! do about damage, and it never prints a value of a key.
//!
//! 1. A row that cannot be read, or that no known etcd writes, is a finding and never dropped.
//! 2. What is encoded here equals what etcd encodes, byte for byte, unless a docstring says where
//!    it differs.
//! 3. Memory grows with distinct keys, not with rows or bytes, and by a bound for each.
//!
//! Source: the behaviour of etcd 3.4.45, 3.5.33, 3.6.16 and 3.7.3.

#![deny(
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]
// Tests may compute with plain operators: an overflow there fails the test.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::as_conversions))]

pub mod apply;
pub mod chain;
pub mod data_dir;
pub mod hash;
pub mod key_table;
pub mod log;
pub mod members;
pub mod peer_urls;
pub mod record;
pub mod replay;
pub mod request;
pub mod restore_log;
pub mod revision;
pub mod rows;
pub mod schema;
pub mod survey;
pub mod v2_store;
