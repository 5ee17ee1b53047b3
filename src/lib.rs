//! etcd operations toolkit: the library behind the `etcdkit` program.
//!
//! Layers, lowest first; an arrow upwards is a defect and `tests/tidy.rs` fails on one:
//!
//! | layer | story |
//! |---|---|
//! | [`format`](mod@format) | bytes to values and back; no I/O, no clock |
//! | [`bolt`] | one bbolt file: read, check, build |
//! | [`etcd`] | what the rows mean: revisions, members, leases, WAL |
//! | [`store`] | an etcd in your process, on its own files |
//! | [`kube`] | control-plane files and stored objects |
//! | [`live`] | connections to running etcds |
//! | [`ops`] | one verb a file: options in, report out |
//! | [`cli`] | words, tables, progress, exit codes |
//!
//! Every parser here meets hostile bytes: it answers with an error or a finding that says where,
//! never with a panic, a hang or memory that grows beyond the file.

pub mod bolt;
pub mod cli;
pub mod etcd;
pub mod format;
pub mod kube;
#[cfg(feature = "live")]
pub mod live;
pub mod ops;
pub mod store;
