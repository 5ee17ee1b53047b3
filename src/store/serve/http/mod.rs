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
    _shared: &Arc<Shared>,
    _role: Role,
    _request: Request<Incoming>,
) -> Response<Body> {
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
