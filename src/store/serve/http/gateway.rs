//! Calls as JSON: a route names a method, and the method is called as a client of gRPC calls it.
//!
//! The call goes through the same door, [`dispatch::grpc`], so limits, tokens, deadlines and counts
//! are those of every other call. A body that holds several messages stays open for them; the end
//! of the body ends what is asked, not what is told.
//!
//! Source: etcd `api/v3/etcdserverpb/gw`; grpc-gateway v2.29.0 `runtime/{mux,handler,errors}.go`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::request::Parts;
use ::http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode, Version, header};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::task::JoinHandle;
use tonic::body::Body;
use tonic::{Code, Status};

use super::super::Shared;
use super::super::call::Source;
use super::super::dispatch;
use super::super::status::given_up;
use super::json::{Style, Values, read, text, write};
use super::set;
use crate::store::wire::shape::{Message, Method as Called};
use crate::store::wire::shapes::METHODS;

/// Routes below `/v3/`, and the method of each.
const ROUTES: &[(&str, &str)] = &[
    ("kv/range", "/etcdserverpb.KV/Range"),
    ("kv/put", "/etcdserverpb.KV/Put"),
    ("kv/deleterange", "/etcdserverpb.KV/DeleteRange"),
    ("kv/txn", "/etcdserverpb.KV/Txn"),
    ("kv/compaction", "/etcdserverpb.KV/Compact"),
    ("watch", "/etcdserverpb.Watch/Watch"),
    ("lease/grant", "/etcdserverpb.Lease/LeaseGrant"),
    ("lease/revoke", "/etcdserverpb.Lease/LeaseRevoke"),
    ("kv/lease/revoke", "/etcdserverpb.Lease/LeaseRevoke"),
    ("lease/keepalive", "/etcdserverpb.Lease/LeaseKeepAlive"),
    ("lease/timetolive", "/etcdserverpb.Lease/LeaseTimeToLive"),
    ("kv/lease/timetolive", "/etcdserverpb.Lease/LeaseTimeToLive"),
    ("lease/leases", "/etcdserverpb.Lease/LeaseLeases"),
    ("kv/lease/leases", "/etcdserverpb.Lease/LeaseLeases"),
    ("cluster/member/add", "/etcdserverpb.Cluster/MemberAdd"),
    ("cluster/member/remove", "/etcdserverpb.Cluster/MemberRemove"),
    ("cluster/member/update", "/etcdserverpb.Cluster/MemberUpdate"),
    ("cluster/member/list", "/etcdserverpb.Cluster/MemberList"),
    ("cluster/member/promote", "/etcdserverpb.Cluster/MemberPromote"),
    ("maintenance/alarm", "/etcdserverpb.Maintenance/Alarm"),
    ("maintenance/status", "/etcdserverpb.Maintenance/Status"),
    ("maintenance/defragment", "/etcdserverpb.Maintenance/Defragment"),
    ("maintenance/hash", "/etcdserverpb.Maintenance/Hash"),
    ("maintenance/hashkv", "/etcdserverpb.Maintenance/HashKV"),
    ("maintenance/snapshot", "/etcdserverpb.Maintenance/Snapshot"),
    ("maintenance/transfer-leadership", "/etcdserverpb.Maintenance/MoveLeader"),
    ("maintenance/downgrade", "/etcdserverpb.Maintenance/Downgrade"),
    ("auth/enable", "/etcdserverpb.Auth/AuthEnable"),
    ("auth/disable", "/etcdserverpb.Auth/AuthDisable"),
    ("auth/status", "/etcdserverpb.Auth/AuthStatus"),
    ("auth/authenticate", "/etcdserverpb.Auth/Authenticate"),
    ("auth/user/add", "/etcdserverpb.Auth/UserAdd"),
    ("auth/user/get", "/etcdserverpb.Auth/UserGet"),
    ("auth/user/list", "/etcdserverpb.Auth/UserList"),
    ("auth/user/delete", "/etcdserverpb.Auth/UserDelete"),
    ("auth/user/changepw", "/etcdserverpb.Auth/UserChangePassword"),
    ("auth/user/grant", "/etcdserverpb.Auth/UserGrantRole"),
    ("auth/user/revoke", "/etcdserverpb.Auth/UserRevokeRole"),
    ("auth/role/add", "/etcdserverpb.Auth/RoleAdd"),
    ("auth/role/get", "/etcdserverpb.Auth/RoleGet"),
    ("auth/role/list", "/etcdserverpb.Auth/RoleList"),
    ("auth/role/delete", "/etcdserverpb.Auth/RoleDelete"),
    ("auth/role/grant", "/etcdserverpb.Auth/RoleGrantPermission"),
    ("auth/role/revoke", "/etcdserverpb.Auth/RoleRevokePermission"),
    ("lock/lock", "/v3lockpb.Lock/Lock"),
    ("lock/unlock", "/v3lockpb.Lock/Unlock"),
    ("election/campaign", "/v3electionpb.Election/Campaign"),
    ("election/proclaim", "/v3electionpb.Election/Proclaim"),
    ("election/leader", "/v3electionpb.Election/Leader"),
    ("election/observe", "/v3electionpb.Election/Observe"),
    ("election/resign", "/v3electionpb.Election/Resign"),
];

/// Bytes before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// Bytes of a message, or of JSON, up to which one is made of the other where it stands.
const FEW: usize = 8 << 10;

/// What is made of so many bytes: at once, or on a thread where nobody waits for it.
#[derive(Debug)]
enum Making<T> {
    Made(Option<T>),
    Aside(JoinHandle<T>),
}

impl<T: Send + 'static> Making<T> {
    fn of(bytes: usize, make: impl FnOnce() -> T + Send + 'static) -> Self {
        if bytes <= FEW {
            Self::Made(Some(make()))
        } else {
            Self::Aside(tokio::task::spawn_blocking(make))
        }
    }
}

/// `None` where the thread gave up, or it was taken already.
impl<T: Unpin> Future for Making<T> {
    type Output = Option<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        match &mut *self {
            Self::Made(made) => Poll::Ready(made.take()),
            Self::Aside(thread) => Pin::new(thread).poll(context).map(Result::ok),
        }
    }
}

/// Answers a request below `/v3/`.
pub(super) async fn answer(shared: &Arc<Shared>, request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    match call(shared, &parts, body).await {
        Ok(response) => response,
        Err(status) => refused(&status),
    }
}

async fn call(
    shared: &Arc<Shared>,
    parts: &Parts,
    body: Incoming,
) -> Result<Response<Body>, Status> {
    let route = parts.uri.path().strip_prefix("/v3/").unwrap_or_default();
    let route = ROUTES.iter().find(|(path, _)| *path == route);
    let method = route.and_then(|(_, path)| METHODS.iter().find(|method| method.path == *path));
    let method = method.ok_or_else(|| Status::not_found("Not Found"))?;
    if parts.method != Method::POST {
        return Err(Status::unimplemented("Method Not Allowed"));
    }
    let headers = metadata(&parts.headers)?;
    let message_bytes_max = dispatch::bytes_max(&shared.options);
    let requests = if method.takes_many {
        Requests::many(method.input, body, message_bytes_max)
    } else {
        Requests::one(method.input, body, message_bytes_max).await?
    };
    let mut request = Request::new(Source::Gateway(requests));
    *request.method_mut() = Method::POST;
    *request.version_mut() = Version::HTTP_2;
    *request.uri_mut() = ::http::Uri::from_static(method.path);
    *request.headers_mut() = headers;
    // Who is at the other end has no name in the call: etcd's gateway is a client of its own.
    let response = dispatch::grpc(shared, request).await;
    if method.gives_many { many(method, response).await } else { one(method, response).await }
}

/// Makes the metadata of a call of the headers of a request.
fn metadata(headers: &HeaderMap) -> Result<HeaderMap, Status> {
    const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
    let mut metadata = HeaderMap::new();
    for (name, value) in headers {
        if *name == header::AUTHORIZATION {
            metadata.append(name, value.clone());
        } else if *name == TIMEOUT {
            if dispatch::timeout(value.as_bytes()).is_none() {
                let value = String::from_utf8_lossy(value.as_bytes());
                return Err(Status::invalid_argument(format!("invalid grpc-timeout: {value}")));
            }
            metadata.append(name, value.clone());
        } else if let Some(name) = name.as_str().strip_prefix("grpc-metadata-")
            && !name.starts_with("grpc-")
            && let Ok(name) = HeaderName::try_from(name)
            && value.to_str().is_ok()
        {
            metadata.append(name, value.clone());
        }
    }
    metadata.insert(header::CONTENT_TYPE, ::http::HeaderValue::from_static("application/grpc"));
    metadata.insert(header::TE, ::http::HeaderValue::from_static("trailers"));
    Ok(metadata)
}

/// The messages of a request, as they travel in a call.
#[derive(Debug)]
pub(in super::super) enum Requests {
    /// The only one; taken when it is on its way.
    One(Option<Bytes>),
    /// As many as come; `None` after the last one.
    Many(Option<Box<Many>>),
}

/// Messages that are still to come.
#[derive(Debug)]
pub(in super::super) struct Many {
    input: &'static Message,
    /// `None` when all is there.
    body: Option<Incoming>,
    values: Values,
    /// A message that is made of its JSON.
    making: Option<Making<Option<Vec<u8>>>>,
    json_bytes_max: usize,
}

/// Most bytes of JSON for a message: base64 makes a third more, and names are longer than numbers.
fn json_bytes_max(message_bytes_max: usize) -> usize {
    message_bytes_max.saturating_mul(2)
}

impl Requests {
    async fn one(
        input: &'static Message,
        mut body: Incoming,
        message_bytes_max: usize,
    ) -> Result<Self, Status> {
        let mut values = Values::new();
        let mut is_all = false;
        loop {
            match values.next(is_all) {
                Err(words) => return Err(Status::invalid_argument(words)),
                Ok(Some(json)) => {
                    let made = Making::of(json.len(), move || read(input, &json)).await;
                    let message = made.ok_or_else(given_up)?.map_err(Status::invalid_argument)?;
                    return Ok(Self::One(Some(framed(&message))));
                }
                Ok(None) if is_all => return Ok(Self::One(Some(framed(&[])))),
                Ok(None) => {}
            }
            match body.frame().await {
                None => is_all = true,
                Some(Err(error)) => return Err(Status::invalid_argument(error.to_string())),
                Some(Ok(frame)) => values.push(&frame.into_data().unwrap_or_default()),
            }
            if values.waiting() > json_bytes_max(message_bytes_max) {
                let bytes = values.waiting();
                return Err(Status::resource_exhausted(format!(
                    "grpc: received message larger than max ({bytes} vs. {message_bytes_max})"
                )));
            }
        }
    }

    fn many(input: &'static Message, body: Incoming, message_bytes_max: usize) -> Self {
        let json_bytes_max = json_bytes_max(message_bytes_max);
        let values = Values::new();
        let many = Many { input, body: Some(body), values, making: None, json_bytes_max };
        Self::Many(Some(Box::new(many)))
    }
}

impl http_body::Body for Requests {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::One(message) => Poll::Ready(message.take().map(|bytes| Ok(Frame::data(bytes)))),
            Self::Many(many) => {
                let Some(inner) = many else { return Poll::Ready(None) };
                let polled = inner.poll_message(context);
                if matches!(polled, Poll::Ready(None)) {
                    *many = None;
                }
                polled.map(|message| message.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::One(None) | Self::Many(None))
    }
}

impl Many {
    /// Gives the next message; what is none ends them, as etcd's gateway hangs up then.
    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            if let Some(making) = &mut self.making {
                let message = std::task::ready!(Pin::new(making).poll(context)).flatten();
                self.making = None;
                return Poll::Ready(message.map(|message| framed(&message)));
            }
            match self.values.next(self.body.is_none()) {
                Err(_) => return Poll::Ready(None),
                Ok(Some(json)) => {
                    let input = self.input;
                    let making = Making::of(json.len(), move || read(input, &json).ok());
                    self.making = Some(making);
                    continue;
                }
                Ok(None) => {}
            }
            let Some(body) = &mut self.body else { return Poll::Ready(None) };
            match std::task::ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => self.values.push(&frame.into_data().unwrap_or_default()),
                Some(Err(_)) | None => self.body = None,
            }
            if self.values.waiting() > self.json_bytes_max {
                return Poll::Ready(None);
            }
        }
    }
}

fn framed(message: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(message.len().saturating_add(PREFIX));
    out.put_u8(0);
    // Messages are shorter than what JSON may be.
    out.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    out.put_slice(message);
    out.freeze()
}

/// Takes the first message out of what has come; `None` where it is not all there.
fn unframed(bytes: &mut BytesMut) -> Option<Bytes> {
    let length = bytes.get(1..PREFIX)?.try_into().ok().map(u32::from_be_bytes)?;
    let end = usize::try_from(length).ok()?.checked_add(PREFIX)?;
    if bytes.len() < end {
        return None;
    }
    let mut message = bytes.split_to(end);
    message.advance(PREFIX);
    Some(message.freeze())
}

/// Answers with the only message of a call.
async fn one(method: &'static Called, response: Response<Body>) -> Result<Response<Body>, Status> {
    ok(Status::from_header_map(response.headers()))?;
    let collected = response.into_body().collect().await?;
    ok(collected.trailers().and_then(Status::from_header_map))?;
    let mut bytes = BytesMut::from(collected.to_bytes());
    let message = unframed(&mut bytes).ok_or_else(|| Status::internal("no answer came"))?;
    let made = Making::of(message.len(), move || write(method.output, &message, Style::Plain));
    let json = made.await.flatten().ok_or_else(|| Status::internal("the answer is no message"))?;
    let mut response = super::json(StatusCode::OK, json);
    mark(&mut response);
    Ok(response)
}

/// Answers with the messages of a call as they come.
async fn many(method: &'static Called, response: Response<Body>) -> Result<Response<Body>, Status> {
    let first = Status::from_header_map(response.headers());
    let mut told = Told {
        body: response.into_body(),
        bytes: BytesMut::new(),
        output: method.output,
        making: None,
        ready: None,
        is_over: false,
    };
    let first = match ok(first) {
        Err(status) => Some(Err(status)),
        Ok(()) => std::future::poll_fn(|context| told.poll_next(context)).await,
    };
    Ok(match first {
        None => super::empty(),
        Some(Err(status)) => super::json(http_status(status.code()), told_error(&status)),
        Some(Ok(line)) => {
            told.ready = Some(line);
            let mut response = Response::new(Body::new(told));
            set(&mut response, header::CONTENT_TYPE, "application/json");
            mark(&mut response);
            response
        }
    })
}

/// Shows that the answer came from a call.
fn mark(response: &mut Response<Body>) {
    let name = HeaderName::from_static("grpc-metadata-content-type");
    set(response, name, "application/grpc");
}

fn ok(status: Option<Status>) -> Result<(), Status> {
    match status {
        Some(status) if status.code() != Code::Ok => Err(status),
        _ => Ok(()),
    }
}

/// What a call tells, a line of JSON each.
struct Told {
    body: Body,
    bytes: BytesMut,
    output: &'static Message,
    /// JSON that is made of a message.
    making: Option<Making<Option<String>>>,
    /// A line that waits to be sent.
    ready: Option<Bytes>,
    is_over: bool,
}

impl Told {
    /// Gives the next line.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        loop {
            if let Some(making) = &mut self.making {
                let json = std::task::ready!(Pin::new(making).poll(context)).flatten();
                self.making = None;
                let json = json.ok_or_else(|| Status::internal("the answer is no message"));
                let line = json.map(|json| Bytes::from(format!("{{\"result\":{json}}}\n")));
                return Poll::Ready(Some(line));
            }
            if let Some(message) = unframed(&mut self.bytes) {
                let (output, length) = (self.output, message.len());
                let write = move || write(output, &message, Style::Html);
                self.making = Some(Making::of(length, write));
                continue;
            }
            let frame = match std::task::ready!(Pin::new(&mut self.body).poll_frame(context)) {
                None => return Poll::Ready(None),
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(data) => self.bytes.extend_from_slice(&data),
                Err(frame) => {
                    let trailers = frame.trailers_ref();
                    if let Err(status) = ok(trailers.and_then(Status::from_header_map)) {
                        return Poll::Ready(Some(Err(status)));
                    }
                }
            }
        }
    }
}

impl http_body::Body for Told {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(line) = self.ready.take() {
            return Poll::Ready(Some(Ok(Frame::data(line))));
        }
        if self.is_over {
            return Poll::Ready(None);
        }
        let line = match std::task::ready!(self.poll_next(context)) {
            Some(Ok(line)) => line,
            Some(Err(status)) => {
                self.is_over = true;
                told_error(&status).into()
            }
            None => return Poll::Ready(None),
        };
        Poll::Ready(Some(Ok(Frame::data(line))))
    }
}

/// Answers with an error.
fn refused(status: &Status) -> Response<Body> {
    let mut response = super::json(http_status(status.code()), error_object(status, Style::Plain));
    if status.code() == Code::Unauthenticated {
        set(&mut response, header::WWW_AUTHENTICATE, status.message());
    }
    response
}

/// Makes the line that tells an error within a stream.
fn told_error(status: &Status) -> String {
    format!("{{\"error\":{}}}\n", error_object(status, Style::Html))
}

fn error_object(status: &Status, style: Style) -> String {
    let mut out = format!("{{\"code\":{}", i32::from(status.code()));
    if !status.message().is_empty() {
        out.push_str(",\"message\":");
        text(&mut out, status.message(), style);
    }
    out.push('}');
    out
}

fn http_status(code: Code) -> StatusCode {
    let number = match code {
        Code::Ok => 200,
        Code::Cancelled => 499,
        Code::InvalidArgument | Code::FailedPrecondition | Code::OutOfRange => 400,
        Code::DeadlineExceeded => 504,
        Code::NotFound => 404,
        Code::AlreadyExists | Code::Aborted => 409,
        Code::PermissionDenied => 403,
        Code::Unauthenticated => 401,
        Code::ResourceExhausted => 429,
        Code::Unimplemented => 501,
        Code::Unavailable => 503,
        Code::Unknown | Code::Internal | Code::DataLoss => 500,
    };
    StatusCode::from_u16(number).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}
