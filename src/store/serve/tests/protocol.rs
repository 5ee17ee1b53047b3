use std::sync::atomic::{AtomicBool, Ordering};

use prost::Message as _;
use prost::bytes::{Bytes, BytesMut};
use tonic::client::Grpc;
use tonic::codegen::tokio_stream;
use tonic::{Request, Streaming};
use tonic_prost::ProstCodec;

use super::*;
use crate::store::guard::Caller;
use crate::store::serve::StartError;
use crate::store::wire::etcdserverpb as pb;
use crate::store::wire::grpc_health_v1 as health;
use crate::store::wire::v3lockpb::LockRequest;

async fn ask<Q, R>(served: &Served, path: &'static str, request: Request<Q>) -> Result<R, Status>
where
    Q: prost::Message + Default + Send + Sync + 'static,
    R: prost::Message + Default + Send + Sync + 'static,
{
    let mut client = Grpc::new(served.channel().await);
    client.ready().await.unwrap();
    let codec = ProstCodec::<Q, R>::default();
    let path = tonic::codegen::http::uri::PathAndQuery::from_static(path);
    client.unary(request, path, codec).await.map(tonic::Response::into_inner)
}

fn put(bytes: usize) -> pb::PutRequest {
    let value = BytesMut::zeroed(bytes).freeze();
    pb::PutRequest { key: Bytes::from_static(b"a"), value, ..Default::default() }
}

const PUT: &str = "/etcdserverpb.KV/Put";

#[test]
fn what_there_is_not_is_refused_in_the_words_of_grpc() {
    let served = serve();
    run(async {
        let refused = async |path| {
            let answer = ask::<_, pb::PutResponse>(&served, path, Request::new(put(1)));
            told(&answer.await.unwrap_err())
        };
        let text = "unknown service grpc.reflection.v1.ServerReflection";
        let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        assert_eq!(refused(path).await, (Code::Unimplemented, text.into()));
        let text = "unknown method Foo for service etcdserverpb.KV";
        assert_eq!(refused("/etcdserverpb.KV/Foo").await, (Code::Unimplemented, text.into()));
    });
}

#[test]
fn large_requests_are_refused_in_the_words_of_grpc_and_etcd() {
    let served = serve();
    run(async {
        let refused = async |bytes| {
            let answer = ask::<_, pb::PutResponse>(&served, PUT, Request::new(put(bytes)));
            told(&answer.await.unwrap_err())
        };
        let text = "etcdserver: request is too large";
        assert_eq!(refused(1_600_000).await, (Code::InvalidArgument, text.into()));
        let text = "grpc: received message larger than max (2200008 vs. 2097152)";
        assert_eq!(refused(2_200_000).await, (Code::ResourceExhausted, text.into()));

        // The same in a stream of requests, which ends with it.
        let mut client = Grpc::new(served.channel().await);
        client.ready().await.unwrap();
        let key = BytesMut::zeroed(2_200_000).freeze();
        let create = pb::WatchCreateRequest { key, ..Default::default() };
        let request_union = Some(pb::watch_request::RequestUnion::CreateRequest(create));
        let requests = tokio_stream::iter([pb::WatchRequest { request_union }]);
        let codec = ProstCodec::<pb::WatchRequest, pb::WatchResponse>::default();
        let path = "/etcdserverpb.Watch/Watch".parse().unwrap();
        let answer = client.streaming(Request::new(requests), path, codec).await.unwrap();
        let mut answer: Streaming<pb::WatchResponse> = answer.into_inner();
        let (code, text) = told(&answer.message().await.unwrap_err());
        assert_eq!(code, Code::ResourceExhausted);
        let words = "grpc: received message larger than max (22000";
        assert!(text.starts_with(words) && text.ends_with(" vs. 2097152)"), "{text}");

        let mut client = Grpc::new(served.channel().await);
        client.ready().await.unwrap();
        let create = pb::WatchCreateRequest {
            key: BytesMut::zeroed(2_200_000).freeze(),
            ..Default::default()
        };
        let request_union = Some(pb::watch_request::RequestUnion::CreateRequest(create));
        let requests = tokio_stream::iter([pb::WatchRequest { request_union }]);
        let codec = ProstCodec::<pb::WatchRequest, pb::LeaseKeepAliveResponse>::default();
        let path = "/etcdserverpb.Lease/LeaseKeepAlive".parse().unwrap();
        let answer = client.streaming(Request::new(requests), path, codec).await.unwrap();
        let mut answer: Streaming<pb::LeaseKeepAliveResponse> = answer.into_inner();
        assert_eq!(answer.message().await.unwrap_err().code(), Code::ResourceExhausted);
    });
    // Of both streams the server tells that they broke.
    for api in ["watch", "lease-keepalive"] {
        let name = "etcd_network_server_stream_failures_total";
        let line = format!("{name}{{API=\"{api}\",Type=\"receive\"}} 1\n");
        assert!(served.server.metrics().contains(&line), "{line}");
    }
}

#[test]
fn a_call_ends_with_the_time_that_its_client_gives_it() {
    let served = serve();
    run(async {
        let mut client = served.client().await;
        client.lock("l", None).await.unwrap();
        // A client that gives up by itself would not hear the server do so: this one waits.
        let stream = tokio::net::TcpStream::connect(served.address).await.unwrap();
        let io = hyper_util::rt::TokioIo::new(stream);
        let executor = hyper_util::rt::TokioExecutor::new();
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(executor, io).await.unwrap();
        tokio::spawn(connection);
        let mut message = BytesMut::from(&[0_u8; 5][..]);
        LockRequest { name: Bytes::from_static(b"l"), lease: 0 }.encode(&mut message).unwrap();
        message[4] = u8::try_from(message.len() - 5).unwrap();
        let request =
            ::http::Request::post(format!("http://{}/v3lockpb.Lock/Lock", served.address))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .header("grpc-timeout", "200m")
                .body(http_body_util::Full::new(message.freeze()))
                .unwrap();
        let begun = Instant::now();
        let answer = sender.send_request(request).await.unwrap();
        let status = Status::from_header_map(answer.headers()).unwrap();
        let text = "context deadline exceeded";
        assert_eq!(told(&status), (Code::DeadlineExceeded, text.into()));
        assert!(begun.elapsed() >= Duration::from_millis(200));
        let options = etcd_client::GetOptions::new().with_prefix();
        until("the end of its key", async || {
            client.clone().get("l/", Some(options.clone())).await.unwrap().count() == 1
        })
        .await;
    });
}

#[test]
fn a_call_that_is_given_up_before_its_answer_ends_in_the_figures() {
    let served = serve();
    run(async {
        let mut holder = served.client().await;
        holder.lock("l", None).await.unwrap();
        let mut client = served.client().await;
        let waited = tokio::time::timeout(Duration::from_millis(200), client.lock("l", None));
        assert!(waited.await.is_err(), "two hold the lock");
        let labels = "grpc_code=\"Canceled\",grpc_method=\"Lock\",\
                      grpc_service=\"v3lockpb.Lock\",grpc_type=\"unary\"";
        let line = format!("grpc_server_handled_total{{{labels}}} 1");
        until("its end", async || served.server.metrics().lines().any(|it| it == line)).await;
    });
}

#[test]
fn the_version_of_a_client_is_text() {
    let served = serve();
    run(async {
        let with = |version: &'static [u8]| {
            let mut request = Request::new(put(1));
            let value = tonic::codegen::http::HeaderValue::from_bytes(version).unwrap();
            let mut headers = request.metadata().clone().into_headers();
            headers.insert("client-api-version", value);
            *request.metadata_mut() = tonic::metadata::MetadataMap::from_headers(headers);
            request
        };
        let refused = ask::<_, pb::PutResponse>(&served, PUT, with(b"3.\xff")).await.unwrap_err();
        let text = "etcdserver: invalid client api version";
        assert_eq!(told(&refused), (Code::InvalidArgument, text.into()));
        ask::<_, pb::PutResponse>(&served, PUT, with(b"3.7")).await.unwrap();
    });
}

#[test]
fn health_is_told_and_watched_until_the_server_stops() {
    const SERVING: i32 = 1;
    const NOT_SERVING: i32 = 2;
    const UNKNOWN: i32 = 3;
    let served = serve();
    run(async {
        let named = |service: &str| health::HealthCheckRequest { service: service.into() };
        let path = "/grpc.health.v1.Health/Check";
        let checked: health::HealthCheckResponse =
            ask(&served, path, Request::new(named(""))).await.unwrap();
        assert_eq!(checked.status, SERVING);
        let other =
            ask::<_, health::HealthCheckResponse>(&served, path, Request::new(named("x"))).await;
        assert_eq!(told(&other.unwrap_err()), (Code::NotFound, "unknown service".into()));
        let path = "/grpc.health.v1.Health/List";
        let list: health::HealthListResponse =
            ask(&served, path, Request::new(health::HealthListRequest {})).await.unwrap();
        assert_eq!(list.statuses[""].status, SERVING);

        let channel = served.channel().await;
        let watch = async |service: &str| {
            let mut client = Grpc::new(channel.clone());
            client.ready().await.unwrap();
            let codec =
                ProstCodec::<health::HealthCheckRequest, health::HealthCheckResponse>::default();
            let path = "/grpc.health.v1.Health/Watch".parse().unwrap();
            let answer = client.server_streaming(Request::new(named(service)), path, codec);
            answer.await.unwrap().into_inner()
        };
        let mut unknown = watch("x").await;
        assert_eq!(unknown.message().await.unwrap().unwrap().status, UNKNOWN);
        let mut states = watch("").await;
        assert_eq!(states.message().await.unwrap().unwrap().status, SERVING);
        let server = served.server;
        let stopped = tokio::task::spawn_blocking(move || server.stop(LONG));
        assert_eq!(states.message().await.unwrap().unwrap().status, NOT_SERVING);
        assert_eq!(states.message().await.unwrap_err().code(), Code::Unavailable);
        assert_eq!(unknown.message().await.unwrap_err().code(), Code::Unavailable);
        drop((channel, states, unknown));
        stopped.await.unwrap();
    });
}

async fn health(served: &Served) -> i32 {
    let request = health::HealthCheckRequest { service: String::new() };
    let path = "/grpc.health.v1.Health/Check";
    let checked: health::HealthCheckResponse =
        ask(served, path, Request::new(request)).await.unwrap();
    checked.status
}

#[test]
fn nothing_is_said_to_be_served_while_the_database_is_defragmented_where_that_was_asked_for() {
    for stops in [true, false] {
        let served = serve_with(StoreOptions::default(), Options::default().stops_on_defrag(stops));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let end = Instant::now() + LONG * 2;
                while !is_over.load(Ordering::Relaxed) && Instant::now() < end {
                    served.store.defragment(&Caller::default()).unwrap();
                }
            });
            run(async {
                if stops {
                    until("a defragmentation", async || health(&served).await == 2).await;
                } else {
                    for _ in 0..20 {
                        assert_eq!(health(&served).await, 1);
                    }
                }
                is_over.store(true, Ordering::Relaxed);
            });
        });
        assert_eq!(run(health(&served)), 1);
    }
}

#[test]
fn who_watches_health_is_told_that_the_store_failed() {
    let served = serve();
    run(async {
        let mut client = Grpc::new(served.channel().await);
        client.ready().await.unwrap();
        let codec =
            ProstCodec::<health::HealthCheckRequest, health::HealthCheckResponse>::default();
        let path = "/grpc.health.v1.Health/Watch".parse().unwrap();
        let request = Request::new(health::HealthCheckRequest { service: String::new() });
        let answer = client.server_streaming(request, path, codec).await.unwrap();
        let mut states: Streaming<health::HealthCheckResponse> = answer.into_inner();
        assert_eq!(states.message().await.unwrap().unwrap().status, 1);
        // One that is closed takes no more writes either.
        served.store.close().unwrap();
        assert_eq!(states.message().await.unwrap().unwrap().status, 2);
    });
}

#[test]
fn only_a_socket_that_nobody_listens_on_is_replaced_and_it_goes_at_the_stop() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("data"), StoreOptions::default()).unwrap();
    let path = dir.path().join("socket");
    let start = || {
        let address = Address::Unix(path.clone());
        let listener = Listener { address, role: Role::Client, tls: None };
        Server::start(store.clone(), Options::default().listeners(vec![listener]))
    };
    std::fs::write(&path, "somebody's").unwrap();
    let refused = start().unwrap_err().to_string();
    let words = format!("listen on {}: there is a file that is no socket", path.display());
    assert_eq!(refused, words);
    assert_eq!(std::fs::read(&path).unwrap(), b"somebody's");
    std::fs::remove_file(&path).unwrap();

    // What is left of a server that was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = start().unwrap();
    let refused = start().unwrap_err();
    assert!(matches!(refused, StartError::Listen { source, .. }
        if source.kind() == std::io::ErrorKind::AddrInUse));
    std::os::unix::net::UnixStream::connect(&path).unwrap();
    server.stop(LONG);
    assert!(!path.exists());
    let server = start().unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "somebody's").unwrap();
    server.stop(LONG);
    assert_eq!(std::fs::read(&path).unwrap(), b"somebody's");
}

#[test]
fn compressed_requests_are_taken() {
    let served = serve();
    run(async {
        let mut client = Grpc::new(served.channel().await)
            .send_compressed(tonic::codec::CompressionEncoding::Gzip);
        client.ready().await.unwrap();
        let codec = ProstCodec::<pb::PutRequest, pb::PutResponse>::default();
        let path = PUT.parse().unwrap();
        client.unary(Request::new(put(10_000)), path, codec).await.unwrap();
        let size = served.client().await.get("a", None).await.unwrap().kvs()[0].value().len();
        assert_eq!(size, 10_000);
    });
}
