//! The server over loopback, asked by a client that knows nothing of it.

mod auth;
mod keys;
mod leases;
mod maintenance;
mod protocol;
mod recipes;
mod watches;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use etcd_client::{Client, ConnectOptions};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::{Address, Listener, Options, Role, Server};
use crate::store::{Options as StoreOptions, Store};

/// Longest wait for what must happen.
const LONG: Duration = Duration::from_secs(30);

/// A server, and the store that it serves.
struct Served {
    store: Store,
    server: Server,
    address: SocketAddr,
    _dir: tempfile::TempDir,
}

fn serve() -> Served {
    serve_with(StoreOptions::default(), Options::default())
}

fn serve_with(store: StoreOptions, options: Options) -> Served {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("data"), store.bcrypt_cost(4_u32)).unwrap();
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let listener = Listener { address: Address::Tcp(address), role: Role::Client, tls: None };
    let server = Server::start(store.clone(), options.listeners(vec![listener])).unwrap();
    let Some(Address::Tcp(address)) = server.addresses().first().cloned() else { unreachable!() };
    Served { store, server, address, _dir: dir }
}

impl Served {
    async fn client(&self) -> Client {
        Client::connect([self.address.to_string()], None).await.unwrap()
    }

    async fn client_of(&self, name: &str, password: &str) -> Result<Client, etcd_client::Error> {
        let options = ConnectOptions::new().with_user(name, password);
        Client::connect([self.address.to_string()], Some(options)).await
    }

    async fn channel(&self) -> Channel {
        Endpoint::new(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }
}

/// Runs a test's client; nothing in it may wait for ever.
fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(LONG * 2, test).await.unwrap() })
}

/// Returns what the server refused a request with.
#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, etcd_client::Error>) -> (Code, String) {
    match answer.unwrap_err() {
        etcd_client::Error::GRpcStatus(status) => told(&status),
        other => panic!("not the server's: {other}"),
    }
}

fn told(status: &Status) -> (Code, String) {
    (status.code(), status.message().to_owned())
}

async fn until<F: Future<Output = bool>>(what: &str, mut is_so: impl FnMut() -> F) {
    let end = Instant::now() + LONG;
    while !is_so().await {
        assert!(Instant::now() < end, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
