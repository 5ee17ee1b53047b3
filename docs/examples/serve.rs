//! Serves a data directory to any etcd client: `cargo run --example serve -- DIR [ADDRESS]`, at
//! 127.0.0.1:2379 where no address is given, until Enter; without a terminal, until it is killed.

#[cfg(feature = "serve")]
fn main() -> std::process::ExitCode {
    match serve() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

#[cfg(feature = "serve")]
fn serve() -> Result<(), Box<dyn std::error::Error>> {
    use std::path::PathBuf;
    use std::time::Duration;

    use etcdkit::store::serve::{self, Address, Listener, Options, Role, Server};
    use etcdkit::store::{self, Store};

    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().filter(|word| !word.starts_with('-'));
    let dir = PathBuf::from(dir.ok_or("usage: serve DIR [ADDRESS]")?);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:2379".into()).parse()?;
    let address = Address::Tcp(address);

    // A port that is taken leaves no directory behind.
    serve::check_free(&address, false).map_err(|error| format!("{address}: {error}"))?;
    let store = Store::open(&dir, store::Options::default())?;
    let listener = Listener { address, role: Role::Client, tls: None };
    let server = Server::start(store.clone(), Options::default().listeners(vec![listener]))?;
    for address in server.addresses() {
        println!("etcdctl --endpoints http://{address} endpoint status; Enter stops");
    }
    if std::io::stdin().read_line(&mut String::new())? == 0 {
        // Nobody is there to press it.
        loop {
            std::thread::park();
        }
    }
    server.stop(Duration::from_secs(5));
    store.close()?;
    Ok(())
}

#[cfg(not(feature = "serve"))]
fn main() {
    println!("this example needs feature serve");
}
