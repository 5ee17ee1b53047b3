//! A snapshot that a member sends.
//!
//! The member holds a read transaction for as long as the stream is open, so a stream ends by
//! itself: after a limit for the whole, when no bytes come for a while, and when whoever reads it
//! does not take what came, be that the disk's fault. Pieces come in on the runtime's thread, and
//! at most [`AHEAD`] of them wait for the reader.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use etcd_client::{SnapshotResponse, SnapshotStreaming};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::cluster::Kept;
use super::dial::{Dialer, Latest};
use super::{Cause, Cluster, Error};

/// Pieces that may wait. etcd sends 32 KiB each; none above 4 MiB is taken (tonic 0.14), so that a
/// hostile server gets less than 64 MiB.
const AHEAD: usize = 12;
/// Time between two questions whether to stop.
const TICK: Duration = Duration::from_millis(100);

/// How long a stream may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest time without bytes.
    pub idle: Duration,
    /// Longest time for all of it.
    pub total: Duration,
}

/// A piece of a snapshot.
pub struct Piece(SnapshotResponse);

impl Piece {
    /// Returns the bytes that come next.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.0.blob()
    }

    /// Returns how many bytes of the database come after this piece, the trailer not counted.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.0.remaining_bytes()
    }

    /// Returns the storage version that the member names; empty before etcd 3.6.
    #[must_use]
    pub fn version(&self) -> &str {
        self.0.version()
    }
}

/// A snapshot as it comes in; dropping it ends it.
pub struct Stream<'a> {
    cluster: &'a Cluster,
    endpoint: String,
    pieces: mpsc::Receiver<Piece>,
    /// How it ended, once the pieces end.
    end: Arc<OnceLock<Result<(), Cause>>>,
    task: Option<AbortHandle>,
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        // It may wait for a piece, and the member for us.
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

impl Cluster {
    /// Asks one endpoint for a snapshot.
    ///
    /// # Errors
    ///
    /// Every cause of a call.
    pub fn snapshot(&self, endpoint: &str, limits: Limits) -> Result<Stream<'_>, Error> {
        let dialer = self.dialer().clone();
        let failed = |cause| dialer.failed(endpoint, cause);
        let target = self.target(endpoint).ok_or_else(|| failed(Cause::NoEndpoints))?;
        let Kept { mut client, latest, .. } = self.client(target)?;
        let limit = self.settings().command_timeout.min(limits.total);
        let late = Cause::Timeout { after: limit, doing: "asking for a snapshot" };
        let opened = self.block_on(async { timeout(limit, client.snapshot()).await });
        let stream = opened
            .map_err(|_| failed(late))?
            .map_err(|error| failed(dialer.call_cause(&error, &latest)))?;
        let (sender, pieces) = mpsc::channel(AHEAD);
        let end = Arc::new(OnceLock::new());
        let told = end.clone();
        let task = self.spawn(async move {
            let _ = told.set(forward(stream, &sender, limits, (&dialer, &latest)).await);
        });
        Ok(Stream { cluster: self, endpoint: endpoint.to_owned(), pieces, end, task })
    }
}

/// Hands on what comes, within the limits.
async fn forward(
    mut stream: SnapshotStreaming,
    sender: &mpsc::Sender<Piece>,
    limits: Limits,
    (dialer, latest): (&Dialer, &Latest),
) -> Result<(), Cause> {
    let end = Instant::now() + limits.total;
    // An hour-long stream that dies in its last seconds: say which limit it was.
    let late = |doing| match Instant::now() >= end {
        true => Cause::Timeout { after: limits.total, doing: "sending the whole snapshot" },
        false => Cause::Timeout { after: limits.idle, doing },
    };
    let mut last_bytes = Instant::now();
    loop {
        let until = end.min(last_bytes + limits.idle);
        let piece = match timeout_at(until, stream.message()).await {
            Err(_) => return Err(late("waiting for the next piece of the snapshot")),
            Ok(Ok(Some(piece))) => Piece(piece),
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) => return Err(dialer.call_cause(&error, latest)),
        };
        // A piece without bytes is no sign of life: one after the other could come for ever.
        let has_bytes = !piece.bytes().is_empty();
        match timeout_at(end.min(Instant::now() + limits.idle), sender.send(piece)).await {
            Err(_) => return Err(late("waiting until what came before was written here")),
            // Nobody wants more.
            Ok(Err(_)) => return Ok(()),
            Ok(Ok(())) if has_bytes => last_bytes = Instant::now(),
            Ok(Ok(())) => {}
        }
    }
}

impl Stream<'_> {
    /// Waits for the next piece; `None` after the last one, or when `stop` says so.
    ///
    /// # Errors
    ///
    /// [`Cause::Timeout`] when a limit passes, and every cause of a connection that breaks.
    pub fn next(&mut self, stop: &dyn Fn() -> bool) -> Result<Option<Piece>, Error> {
        if let Ok(piece) = self.pieces.try_recv() {
            return Ok(Some(piece));
        }
        loop {
            let pieces = &mut self.pieces;
            let next = self.cluster.block_on(async { timeout(TICK, pieces.recv()).await });
            match next {
                Ok(Some(piece)) => return Ok(Some(piece)),
                Ok(None) => break,
                Err(_) if stop() => return Ok(None),
                Err(_) => {}
            }
        }
        let ended = self.end.get().cloned().unwrap_or_else(|| {
            Err(Cause::Broken { what: "the stream ended without saying why".to_owned() })
        });
        ended.map(|()| None).map_err(|cause| self.cluster.dialer().failed(&self.endpoint, cause))
    }
}
