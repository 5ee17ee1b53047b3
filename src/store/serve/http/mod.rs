//! What is asked for by plain HTTP.

use std::sync::Arc;

use ::http::{Request, Response, StatusCode, header};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use tonic::body::Body;

use super::{Role, Shared};

/// Answers a request.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    role: Role,
    request: Request<Incoming>,
) -> Response<Body> {
    let is_for_all = matches!(role, Role::Client | Role::Http | Role::Metrics);
    if request.uri().path() == "/metrics" && is_for_all {
        let mut response = text(StatusCode::OK, shared.metrics.render(&shared.store));
        let kind = header::HeaderValue::from_static(super::metrics::CONTENT_TYPE);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        return response;
    }
    text(StatusCode::NOT_FOUND, "404 page not found\n")
}

/// Returns an answer of plain text.
fn text(status: StatusCode, text: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::new(Full::new(text.into())));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
