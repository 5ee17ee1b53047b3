//! A snapshot that a member sends.
//!
//! The member holds a read transaction for as long as the stream is open, so whoever reads one has
//! a limit for the whole, besides the one for each piece. Pieces come in on the runtime's thread,
//! and at most [`AHEAD`] of them wait for the reader.

use std::time::{Duration, Instant};

use etcd_client::SnapshotResponse;
use tokio::sync::mpsc;

use super::{Cause, Cluster, Error, dial};

/// Pieces that may wait; etcd sends pieces of 32 KiB.
const AHEAD: usize = 64;
/// Time between two questions whether to stop.
const TICK: Duration = Duration::from_millis(100);

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
    pieces: mpsc::Receiver<Result<Piece, Cause>>,
}

impl Cluster {
    /// Asks one endpoint for a snapshot.
    ///
    /// # Errors
    ///
    /// Every cause of a call.
    pub fn snapshot(&self, endpoint: &str) -> Result<Stream<'_>, Error> {
        let failed = |cause| Error::of(endpoint, cause);
        let target = self.target(endpoint).ok_or_else(|| failed(Cause::NoEndpoints))?;
        let mut client = self.client(target)?;
        let limit = self.settings().command_timeout;
        let late = Cause::Timeout { after: limit, doing: "asking for a snapshot" };
        let opened = self.block_on(async { tokio::time::timeout(limit, client.snapshot()).await });
        let mut stream =
            opened.map_err(|_| failed(late))?.map_err(|error| failed(dial::cause(&error)))?;
        let (sender, pieces) = mpsc::channel(AHEAD);
        self.spawn(async move {
            loop {
                let piece = match stream.message().await {
                    Ok(Some(piece)) => Ok(Piece(piece)),
                    // A receiver that sees the channel end knows that the stream ended.
                    Ok(None) => return,
                    Err(error) => Err(dial::cause(&error)),
                };
                let is_last = piece.is_err();
                if sender.send(piece).await.is_err() || is_last {
                    return;
                }
            }
        });
        Ok(Stream { cluster: self, endpoint: endpoint.to_owned(), pieces })
    }
}

impl Stream<'_> {
    /// Waits for the next piece; `None` after the last one, or when `stop` says so.
    ///
    /// # Errors
    ///
    /// [`Cause::Timeout`] when no piece comes within `idle`, and every cause of a connection that
    /// breaks.
    pub fn next(
        &mut self,
        idle: Duration,
        stop: &dyn Fn() -> bool,
    ) -> Result<Option<Piece>, Error> {
        let failed = |cause| Error::of(&self.endpoint, cause);
        if let Ok(piece) = self.pieces.try_recv() {
            return piece.map(Some).map_err(failed);
        }
        let began = Instant::now();
        loop {
            let pieces = &mut self.pieces;
            let next =
                self.cluster.block_on(async { tokio::time::timeout(TICK, pieces.recv()).await });
            match next {
                Ok(piece) => return piece.transpose().map_err(failed),
                Err(_) if stop() => return Ok(None),
                Err(_) if began.elapsed() >= idle => {
                    let doing = "waiting for the next piece of the snapshot";
                    return Err(failed(Cause::Timeout { after: idle, doing }));
                }
                Err(_) => {}
            }
        }
    }
}
