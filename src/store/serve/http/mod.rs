//! What is asked for by plain HTTP.
//!
//! ```text
//! access     which hosts and origins may ask
//! endpoints  /version, /metrics, /debug/vars, /members
//! health     /health, /livez, /readyz
//! gateway    /v3/...: calls as JSON
//! json       messages as JSON, and back
//! ```
//!
//! Codes, headers and bodies are etcd's. Probes never wait for the disk, a compaction or a
//! defragmentation, nor for a thread on which somebody else does.
//!
//! Source: etcd `embed/{etcd,serve}.go`, `etcdserver/api/etcdhttp`, 3.6.16 and 3.7.3; Go 1.26
//! `net/http` for redirects and errors.

mod access;
mod endpoints;
mod gateway;
mod health;
mod json;

use std::sync::Arc;

use ::http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use tonic::body::Body;

use super::tls::Peer;
use super::{Role, Shared};

pub(super) use gateway::Requests;

/// Answers a request.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    role: Role,
    peer: &Peer,
    mut request: Request<Incoming>,
) -> Response<Body> {
    match role {
        Role::Client | Role::Http => {
            let allowed = match access::check(shared, peer, &mut request) {
                Ok(allowed) => allowed,
                Err(refusal) => return *refusal,
            };
            let mut response = match *request.method() {
                Method::OPTIONS => empty(),
                _ => client(shared, request).await,
            };
            allowed.mark(&mut response);
            response
        }
        Role::Metrics => match probes(shared, &request).await {
            Some(response) => response,
            None => elsewhere(&request, &[]),
        },
        Role::Peer => endpoints::peer(shared, &request).await,
        Role::Grpc => {
            error(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid gRPC request content-type")
        }
    }
}

async fn client(shared: &Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path();
    match path {
        "/version" => endpoints::version(shared, request.method()).await,
        "/debug/vars" => endpoints::vars(shared, request.method()).await,
        _ => match probes(shared, &request).await {
            Some(response) => response,
            None if !shared.options.gateway => elsewhere(&request, &[]),
            None if path.starts_with("/v3/") && path == clean(path) => {
                gateway::answer(shared, request).await
            }
            None => elsewhere(&request, &["/v3"]),
        },
    }
}

/// What monitoring asks for.
async fn probes(shared: &Shared, request: &Request<Incoming>) -> Option<Response<Body>> {
    if request.uri().path() == "/metrics" {
        return Some(endpoints::metrics(shared).await);
    }
    health::answer(shared, request.method(), request.uri())
}

/// Answers where there is nothing, or something under another form of the path.
fn elsewhere(request: &Request<Incoming>, folders: &[&str]) -> Response<Body> {
    let path = request.uri().path();
    let mut place = clean(path);
    if folders.contains(&place.as_str()) {
        place.push('/');
    }
    if place == path || !path.starts_with('/') {
        return error(StatusCode::NOT_FOUND, "404 page not found");
    }
    if let Some(query) = request.uri().query() {
        place.push('?');
        place.push_str(query);
    }
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    let body = match is_read {
        // What is in a path of a request has no meaning in HTML, but for this one.
        true => {
            format!("<a href=\"{}\">Temporary Redirect</a>.\n\n", place.replace('&', "&amp;"))
        }
        false => String::new(),
    };
    let mut response = Response::new(Body::new(Full::new(body.into())));
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    if is_read {
        set(&mut response, header::CONTENT_TYPE, "text/html; charset=utf-8");
    }
    set(&mut response, header::LOCATION, &place);
    response
}

/// Resolves `.` and `..` in a path, and takes empty parts out, but for the last one.
fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let end = if path.ends_with('/') && !parts.is_empty() { "/" } else { "" };
    format!("/{}{end}", parts.join("/"))
}

/// Refuses any other method.
fn only(method: &Method, wanted: &Method) -> Option<Response<Body>> {
    if method == wanted {
        return None;
    }
    let mut response = error(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed");
    set(&mut response, header::ALLOW, wanted.as_str());
    Some(response)
}

/// Answers with a line of text that says what is wrong.
fn error(status: StatusCode, line: &str) -> Response<Body> {
    let mut response = text(status, format!("{line}\n"));
    set(&mut response, header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    response
}

/// Answers with plain text.
fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    of_kind(status, "text/plain; charset=utf-8", text)
}

/// Answers with JSON.
fn json(status: StatusCode, json: impl Into<Bytes>) -> Response<Body> {
    of_kind(status, "application/json", json)
}

fn of_kind(status: StatusCode, kind: &str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(body.into())));
    *response.status_mut() = status;
    set(&mut response, header::CONTENT_TYPE, kind);
    response
}

fn empty() -> Response<Body> {
    Response::new(Body::new(Full::new(Bytes::new())))
}

/// Sets a header; what cannot be in one is left out.
fn set(response: &mut Response<Body>, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}

#[cfg(test)]
mod tests;
