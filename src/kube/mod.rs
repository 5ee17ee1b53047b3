//! Control-plane files and stored objects: what Kubernetes keeps beside and inside an etcd.
//!
//! | module | story |
//! |---|---|
//! | [`yaml`] | YAML as a tree with positions, bounded, no aliases; changed in place with proof |
//! | [`apiserver`] | the static pod that runs kube-apiserver: which etcd it uses |
//! | [`manifest`] | the static pod that runs etcd: flags, paths on the host, owner; changed |
//! | [`kubeadm_config`] | ClusterConfiguration: what it says of etcd, read and changed |
//! | `flags` | a container's command line and environment, as etcd reads them |
//! | [`object`] | who a stored object is, by the bytes of its value |
//! | [`registry`] | who a stored object is, by its key |
//!
//! Invariants:
//!
//! 1. No function panics, whatever the bytes are, and memory stays in proportion to the input.
//! 2. Values, environment values and keys are never part of an error or of a `Debug` text.
//! 3. Nothing here writes.

pub mod apiserver;
mod flags;
pub mod kubeadm_config;
pub mod manifest;
pub mod object;
pub mod registry;
pub mod yaml;
