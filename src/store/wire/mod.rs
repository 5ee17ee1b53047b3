//! The messages and services of etcd's API, as they travel: generated from the `.proto` files
//! beside this one, with shared [`bytes::Bytes`] for every field of bytes.
//!
//! [`shapes`] says what the messages are made of, so that the JSON gateway can turn any of them into
//! JSON and back.
//!
//! A test holds the generated files to the protos; `UPDATE=1 cargo test --test tidy wire` writes
//! them anew.
//!
//! Source: etcd `api/etcdserverpb/rpc.proto`, `api/mvccpb/kv.proto`, `api/authpb/auth.proto`,
//! `v3lock.proto`, `v3election.proto`, 3.7.3; gRPC's health checking protocol.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "the files are generated, and documented by etcd"
)]

/// Permissions.
#[rustfmt::skip]
pub mod authpb;
/// Requests, answers and services.
#[rustfmt::skip]
pub mod etcdserverpb;
/// Health of services.
#[rustfmt::skip]
pub mod grpc_health_v1;
/// Keys and events.
#[rustfmt::skip]
pub mod mvccpb;
/// What messages are made of.
pub mod shape;
/// Shapes of all messages that methods take and give.
#[rustfmt::skip]
pub mod shapes;
/// Elections.
#[rustfmt::skip]
pub mod v3electionpb;
/// Locks.
#[rustfmt::skip]
pub mod v3lockpb;
