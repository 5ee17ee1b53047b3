//! Serves a data directory to any etcd client: `cargo run --example serve DIR [ADDRESS]`.

#[cfg(feature = "serve")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    use std::path::PathBuf;
    use std::time::Duration;

    use etcdkit::store::serve::{Address, Listener, Options, Role, Server};
    use etcdkit::store::{self, Store};

    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or("usage: serve DIR [ADDRESS]")?);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:2379".into()).parse()?;

    let store = Store::open(&dir, store::Options::default())?;
    let listener = Listener { address: Address::Tcp(address), role: Role::Client, tls: None };
    let server = Server::start(store.clone(), Options::default().listeners(vec![listener]))?;
    for address in server.addresses() {
        println!("etcdctl --endpoints http://{address} endpoint status; Enter stops");
    }
    std::io::stdin().read_line(&mut String::new())?;
    server.stop(Duration::from_secs(5));
    store.close()?;
    Ok(())
}

#[cfg(not(feature = "serve"))]
fn main() {
    println!("this example needs feature serve");
}
