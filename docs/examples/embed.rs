//! An etcd in this process: writes, reads, watches, and leaves a directory that a real etcd opens.
//!
//! `cargo run --example embed -- DIRECTORY`

use std::path::PathBuf;
use std::time::Duration;

use etcdkit::store::{Caller, Compare, Comparison, Create, Op, Options, Put, Range, Store, Txn};

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args_os().nth(1).map_or_else(|| PathBuf::from("embed.etcd"), PathBuf::from);
    let store = Store::open(&dir, Options::default())?;
    store.notes().iter().for_each(|note| eprintln!("{note}"));
    // Nobody in particular; with auth on, `store.authenticate` and `store.caller`.
    let me = Caller::default();

    let watch = store.watch(&me);
    watch.create(Create::default().key(b"greeting/").range_end(b"greeting0"));

    let put = |key, value| Put { key, value, ..Put::default() };
    let written = store.put(&me, put(b"greeting/en", b"hello"))?;
    println!("written at revision {}", written.revision);

    // Only where nobody else was first: the key was never created.
    let if_new = Txn {
        compare: vec![Compare::create_revision(b"greeting/fr", Comparison::Equal, 0)],
        success: vec![Op::Put(put(b"greeting/fr", b"bonjour"))],
        ..Txn::default()
    };
    let outcome = store.txn(&me, if_new)?;
    println!("created: {}", outcome.body.succeeded);

    let all = Range { key: b"greeting/", range_end: b"greeting0", ..Range::default() };
    for kv in &store.range(&me, &all)?.body.kvs {
        let record = kv.record();
        let (key, value) = (record.key.escape_ascii(), record.value.escape_ascii());
        println!("{key} = {value} (revision {})", record.mod_revision);
    }
    while let Some(response) = watch.next(Duration::from_millis(200))? {
        for (event, _) in response.events {
            println!("seen: {} at {}", event.key.escape_ascii(), event.revision.main);
        }
    }
    store.close()?;
    Ok(())
}
