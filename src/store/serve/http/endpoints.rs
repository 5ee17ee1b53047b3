//! What the member says of itself.

use std::sync::Arc;

use ::http::{HeaderName, Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tonic::body::Body;

use super::super::Shared;
use super::super::metrics::CONTENT_TYPE;
use super::{elsewhere, error, of_kind, only, set};
use crate::etcd::members::Member;

/// Tells the versions of server, cluster and storage.
pub(super) async fn version(shared: &Shared, method: &Method) -> Response<Body> {
    if let Some(refusal) = only(method, &Method::GET) {
        return refusal;
    }
    let cluster = shared.store.cluster_version();
    let cluster = cluster.map_or("not_decided".into(), |version| version.to_string());
    let caller = shared.store.caller_named("root");
    let storage = match shared.aside(move |store| store.status(&caller)).await {
        Ok(status) if !status.storage_version.is_empty() => status.storage_version,
        _ => "unknown".into(),
    };
    let server = shared.store.compat().version();
    let versions = json!({ "etcdserver": server, "etcdcluster": cluster, "storage": storage });
    super::json(StatusCode::OK, versions.to_string())
}

/// Tells all figures.
pub(super) async fn metrics(shared: &Shared) -> Response<Body> {
    let metrics = Arc::clone(&shared.metrics);
    match shared.aside(move |store| Ok(metrics.render(store))).await {
        Ok(text) => of_kind(StatusCode::OK, CONTENT_TYPE, text),
        Err(status) => error(StatusCode::INTERNAL_SERVER_ERROR, status.message()),
    }
}

/// Tells what etcd publishes for debugging, as far as it is there.
pub(super) async fn vars(shared: &Shared, method: &Method) -> Response<Body> {
    if let Some(refusal) = only(method, &Method::GET) {
        return refusal;
    }
    let words = &shared.options.command_line;
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let id = shared.store.member_id().to_string();
    let caller = shared.store.caller_named("root");
    let status = shared.aside(move |store| store.status(&caller)).await.unwrap_or_default();
    let raft = json!({
        "id": id,
        "term": shared.store.raft_term(),
        "vote": id,
        "commit": status.raft_index,
        "lead": id,
        "raftState": "StateLeader",
        "applied": status.raft_applied_index,
        "progress": { &id: {
            "match": status.raft_index,
            "next": status.raft_index.saturating_add(1),
            "state": "StateReplicate",
        }},
        "leadtransferee": "0",
    });
    let vars =
        [("cmdline", json!(words)), ("file_descriptor_limit", json!(limit)), ("raft.status", raft)];
    let lines: Vec<String> =
        vars.iter().map(|(name, value)| format!("\"{name}\": {value}")).collect();
    let body = format!("{{\n{}\n}}\n", lines.join(",\n"));
    of_kind(StatusCode::OK, "application/json; charset=utf-8", body)
}

/// Answers what peers ask for.
pub(super) async fn peer(shared: &Shared, request: &Request<Incoming>) -> Response<Body> {
    match request.uri().path() {
        "/version" => version(shared, request.method()).await,
        "/members" => members(shared, request.method()),
        _ => elsewhere(request, &[]),
    }
}

fn members(shared: &Shared, method: &Method) -> Response<Body> {
    if let Some(refusal) = only(method, &Method::GET) {
        return refusal;
    }
    let caller = shared.store.caller_named("root");
    let members = match shared.store.members(&caller) {
        Ok(members) => members,
        Err(why) => return error(StatusCode::INTERNAL_SERVER_ERROR, &why.to_string()),
    };
    let members: Vec<Value> = members.iter().map(member).collect();
    let body = format!("{}\n", Value::from(members));
    let mut response = super::json(StatusCode::OK, body);
    let cluster = shared.store.cluster_id().to_string();
    set(&mut response, HeaderName::from_static("x-etcd-cluster-id"), &cluster);
    response
}

fn member(member: &Member) -> Value {
    let mut value = json!({ "id": member.id.0, "peerURLs": member.peer_urls });
    if let Value::Object(fields) = &mut value {
        if member.is_learner {
            fields.insert("isLearner".into(), true.into());
        }
        if !member.name.is_empty() {
            fields.insert("name".into(), member.name.clone().into());
        }
        if !member.client_urls.is_empty() {
            fields.insert("clientURLs".into(), json!(member.client_urls));
        }
    }
    value
}
