//! Watchers as Kubernetes' clients have them: many, from revisions that they saw last.

#![allow(dead_code, reason = "each test binary uses its own part")]

use etcd_client::{Client, WatchOptions, WatchStream};

/// Opens a watcher as a client of Kubernetes' does, from a revision on.
pub(crate) async fn watch(client: &mut Client, from: i64) -> WatchStream {
    let options =
        WatchOptions::new().with_prefix().with_start_revision(from).with_progress_notify();
    client.watch("/registry/", Some(options)).await.unwrap()
}

/// Reads a watcher until it tells of a revision; returns what it told, or at which revision it was
/// cancelled as compacted.
pub(crate) async fn told(mut stream: WatchStream, last: i64) -> Result<Vec<i64>, i64> {
    let mut revisions = Vec::new();
    while revisions.last() != Some(&last) {
        let message = stream.message().await.unwrap().expect("the stream goes on");
        if message.canceled() {
            return Err(message.compact_revision());
        }
        revisions.extend(message.events().iter().map(|event| event.kv().unwrap().mod_revision()));
    }
    Ok(revisions)
}

/// The revision up to which is compacted, as a watcher hears it.
pub(crate) async fn compacted_of(client: &mut Client) -> i64 {
    let mut stream = watch(client, 1).await;
    loop {
        let message = stream.message().await.unwrap().expect("the stream goes on");
        if message.canceled() {
            return message.compact_revision();
        }
        if !message.events().is_empty() {
            return 0;
        }
    }
}
