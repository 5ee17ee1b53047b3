//! Holds etcdkit against real programs: etcd 3.5, 3.6 and 3.7, etcdctl, etcdutl and bbolt, which
//! `tests/interop/build` builds from their published sources.
//!
//! Needs Go. Without it the tests pass and say aloud that they were skipped, unless
//! `REQUIRE_INTEROP=1`. `ETCDKIT_INTEROP_BIN` names another folder for the programs. The tests take
//! turns, so that a machine with two cores has one of them to work on at a time.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]
#![allow(clippy::indexing_slicing, reason = "these are tests")]

#[cfg(feature = "live")]
#[path = "support/certs.rs"]
mod certs;
#[cfg(feature = "live")]
#[path = "support/fake_etcd.rs"]
mod fake_etcd;
#[cfg(feature = "live")]
#[path = "support/kube_watchers.rs"]
mod kube_watchers;
#[path = "support/power_history.rs"]
mod power_history;
#[cfg(feature = "live")]
#[path = "support/proxy.rs"]
mod proxy;
#[path = "support/store_driver.rs"]
mod store_driver;
#[path = "support/store_model.rs"]
mod store_model;
#[path = "support/store_plan.rs"]
mod store_plan;
#[path = "support/store_probe.rs"]
mod store_probe;
#[path = "support/store_requests.rs"]
mod store_requests;
#[path = "support/store_states.rs"]
mod store_states;
mod support;
#[path = "support/yaml_model.rs"]
mod yaml_model;
#[path = "support/yaml_texts.rs"]
mod yaml_texts;

#[cfg(feature = "live")]
#[path = "interop/cluster_harness.rs"]
mod cluster_harness;
#[path = "interop/programs.rs"]
mod programs;

#[path = "interop/apiserver.rs"]
mod apiserver;
#[path = "interop/boots.rs"]
mod boots;
#[path = "interop/clusters.rs"]
mod clusters;
#[cfg(feature = "live")]
#[path = "interop/compactions.rs"]
mod compactions;
#[cfg(feature = "live")]
#[path = "interop/connections.rs"]
mod connections;
#[cfg(feature = "live")]
#[path = "interop/ctl.rs"]
mod ctl;
#[path = "interop/damage.rs"]
mod damage;
#[cfg(feature = "live")]
#[path = "interop/defrags.rs"]
mod defrags;
#[path = "interop/directories.rs"]
mod directories;
#[path = "interop/edited.rs"]
mod edited;
#[path = "interop/equals.rs"]
mod equals;
#[cfg(feature = "live")]
#[path = "interop/fakes.rs"]
mod fakes;
#[path = "interop/files.rs"]
mod files;
#[path = "interop/hashes.rs"]
mod hashes;
#[path = "interop/random.rs"]
mod random;
#[cfg(feature = "live")]
#[path = "interop/reclaims.rs"]
mod reclaims;
#[path = "interop/replays.rs"]
mod replays;
#[path = "interop/running.rs"]
mod running;
#[cfg(feature = "live")]
#[path = "interop/saves.rs"]
mod saves;
#[cfg(all(feature = "live", feature = "serve"))]
#[path = "interop/serve_asks.rs"]
mod serve_asks;
#[path = "interop/serve_clients.rs"]
mod serve_clients;
#[cfg(feature = "serve")]
#[path = "interop/serve_flags.rs"]
mod serve_flags;
#[cfg(feature = "serve")]
#[path = "interop/serve_http.rs"]
mod serve_http;
#[cfg(all(feature = "live", feature = "serve"))]
#[path = "interop/serve_metrics.rs"]
mod serve_metrics;
#[cfg(all(feature = "live", feature = "serve"))]
#[path = "interop/serve_same.rs"]
mod serve_same;
#[cfg(all(feature = "live", feature = "serve"))]
#[path = "interop/serve_tls.rs"]
mod serve_tls;
#[cfg(feature = "live")]
#[path = "interop/store_same.rs"]
mod store_same;
#[cfg(feature = "live")]
#[path = "interop/store_states.rs"]
mod store_states_on_real;
#[cfg(feature = "live")]
#[path = "interop/store_takeover.rs"]
mod store_takeover;
#[cfg(feature = "live")]
#[path = "interop/store_wire.rs"]
mod store_wire;
#[path = "interop/stores.rs"]
mod stores;
#[path = "interop/suite.rs"]
mod suite;
#[path = "interop/together.rs"]
mod together;
#[cfg(feature = "live")]
#[path = "interop/views.rs"]
mod views;
#[path = "interop/yaml_suite.rs"]
mod yaml_suite;
