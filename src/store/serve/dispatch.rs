//! From a request to the service that it is for.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderMap, Request, Response, Version};
use hyper::body::Incoming;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower_service::Service;

use super::call::{Call, Received, Source, Unanswered};
use super::list::List;
use super::tls::Peer;
use super::{Options, Role, Shared, http};
use crate::store::wire::etcdserverpb::auth_server::AuthServer;
use crate::store::wire::etcdserverpb::cluster_server::ClusterServer;
use crate::store::wire::etcdserverpb::kv_server::KvServer;
use crate::store::wire::etcdserverpb::lease_server::LeaseServer;
use crate::store::wire::etcdserverpb::maintenance_server::MaintenanceServer;
use crate::store::wire::etcdserverpb::watch_server::WatchServer;
use crate::store::wire::grpc_health_v1::health_server::HealthServer;
use crate::store::wire::v3electionpb::election_server::ElectionServer;
use crate::store::wire::v3lockpb::lock_server::LockServer;

/// What gRPC itself takes on top of the largest request.
const OVERHEAD_BYTES: usize = 512 << 10;

/// Answers a request of any kind.
pub(super) async fn dispatch(
    shared: Arc<Shared>,
    role: Role,
    peer: Arc<Peer>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let is_grpc = request.version() == Version::HTTP_2
        && request
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"));
    match (is_grpc, role) {
        (true, Role::Client | Role::Grpc) => {
            request.extensions_mut().insert(peer);
            Ok(grpc(&shared, request.map(Source::Client)).await)
        }
        _ => Ok(http::answer(&shared, role, &peer, request).await),
    }
}

/// Makes a call, within the time that its client gives it.
pub(super) async fn grpc(shared: &Arc<Shared>, request: Request<Source>) -> Response<Body> {
    let limit = request.headers().get("grpc-timeout").and_then(|value| timeout(value.as_bytes()));
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let path = request.uri().path().to_owned();
    let call = Call::begin(shared, &path, request.headers());
    let unanswered = Unanswered::new(call.clone());
    let request = request.map(|body| Received::new(body, call));
    let response = match deadline {
        None => service(shared, &path, request).await,
        // Who has no time left is not waiting for the answer any more.
        Some(deadline) if deadline <= Instant::now() => refuse(&late()),
        Some(deadline) => tokio::time::timeout_at(deadline, service(shared, &path, request))
            .await
            .unwrap_or_else(|_| refuse(&late())),
    };
    unanswered.answer(response, deadline)
}

/// Bytes of the largest message that is taken.
pub(super) fn bytes_max(options: &Options) -> usize {
    options.request_bytes_max.saturating_add(OVERHEAD_BYTES)
}

/// What a client is told whose time is over.
pub(super) fn late() -> Status {
    Status::deadline_exceeded("context deadline exceeded")
}

/// Returns an answer that is an error.
pub(super) fn refuse(status: &Status) -> Response<Body> {
    status.clone().into_http()
}

async fn service(shared: &Arc<Shared>, path: &str, request: Request<Received>) -> Response<Body> {
    let bytes_max = bytes_max(&shared.options);
    let (service, method) = path.trim_start_matches('/').rsplit_once('/').unwrap_or((path, ""));
    macro_rules! serve {
        ($($server:ty,)*) => {
            match service {
                $(<$server as NamedService>::NAME => {
                    if let Err(status) = check_version(request.headers()) {
                        return refuse(&status);
                    }
                    let server = <$server>::from_arc(Arc::clone(shared));
                    let server = server
                        .max_decoding_message_size(bytes_max)
                        .accept_compressed(CompressionEncoding::Gzip);
                    call(server, request).await
                })*
                _ => refuse(&Status::unimplemented(format!("unknown service {service}"))),
            }
        };
    }
    let mut response = serve! {
        KvServer<Shared>,
        WatchServer<Shared>,
        LeaseServer<Shared>,
        ClusterServer<Shared>,
        MaintenanceServer<Shared>,
        AuthServer<Shared>,
        HealthServer<Shared>,
        LockServer<Shared>,
        ElectionServer<Shared>,
    };
    reword(response.headers_mut(), service, method, bytes_max);
    // A method answers with this beside a message that it leaves empty.
    if let Some(list) = response.extensions_mut().remove::<List>() {
        *response.body_mut() = Body::new(list);
    }
    response
}

/// Refuses a client whose version is no text, as etcd does before each call.
fn check_version(headers: &HeaderMap) -> Result<(), Status> {
    let version = headers.get("client-api-version");
    if version.is_some_and(|version| std::str::from_utf8(version.as_bytes()).is_err()) {
        return Err(Status::invalid_argument("etcdserver: invalid client api version"));
    }
    Ok(())
}

async fn call<S>(mut server: S, request: Request<Received>) -> Response<Body>
where
    S: Service<Request<Received>, Response = Response<Body>, Error = Infallible>,
{
    match server.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Says what the library says of itself as gRPC's Go library says it: clients look at it.
fn reword(headers: &mut HeaderMap, service: &str, method: &str, bytes_max: usize) {
    let Some(status) = Status::from_header_map(headers) else { return };
    let new = match status.code() {
        Code::Unimplemented if status.message().is_empty() => {
            Status::unimplemented(format!("unknown method {method} for service {service}"))
        }
        Code::OutOfRange | Code::ResourceExhausted => reworded(status, bytes_max),
        _ => return,
    };
    // The texts are plain ASCII.
    let _ = new.add_header(headers);
}

/// The same for a message in a stream of requests.
pub(super) fn reworded(status: Status, bytes_max: usize) -> Status {
    match (status.code(), too_large(status.message())) {
        (Code::OutOfRange, Some(bytes)) => Status::resource_exhausted(format!(
            "grpc: received message larger than max ({bytes} vs. {bytes_max})"
        )),
        (Code::ResourceExhausted, _)
            if status.message().starts_with("Error decompressing: size limit") =>
        {
            Status::resource_exhausted(format!(
                "grpc: received message after decompression larger than max {bytes_max}"
            ))
        }
        _ => status,
    }
}

/// Reads how large a message was from the library's text.
fn too_large(text: &str) -> Option<usize> {
    let rest = text.split_once("decoded message length too large: found ")?.1;
    rest.split(' ').next()?.parse().ok()
}

/// Reads the time that a client gives a call: up to eight digits and a unit.
pub(super) fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 {
        return None;
    }
    let count: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(count.saturating_mul(3600)),
        b'M' => Duration::from_secs(count.saturating_mul(60)),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_time_is_read() {
        assert_eq!(timeout(b"5S"), Some(Duration::from_secs(5)));
        assert_eq!(timeout(b"99999999H"), Some(Duration::from_secs(99_999_999 * 3600)));
        assert_eq!(timeout(b"250m"), Some(Duration::from_millis(250)));
        for bad in [&b""[..], b"S", b"5", b"123456789S", b"-1S", b"5x", b"\xff5S"] {
            assert_eq!(timeout(bad), None, "{bad:?}");
        }
    }
}
