//! Streams of watchers, with what their owner may see.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::{Shared, Store};
use crate::store::error::Error;
use crate::store::guard::{Caller, Wish};
use crate::store::watch::{Create, Response, Stream};

/// A stream of watchers; dropped, its watchers end.
#[derive(Debug)]
pub struct Watch {
    stream: Stream,
    shared: Arc<Shared>,
    caller: Caller,
}

impl Store {
    /// Opens a stream of watchers for somebody.
    #[must_use]
    pub fn watch(&self, caller: &Caller) -> Watch {
        let shared = Arc::clone(self.shared());
        Watch { stream: shared.hub.stream(), shared, caller: caller.clone() }
    }
}

impl Watch {
    /// Adds a watcher; what comes of it is told by [`Watch::next`], also that it is refused.
    pub fn create(&self, create: Create) {
        self.create_as(Ok(self.caller.clone()), create);
    }

    /// The same for somebody else, or for nobody, with the reason: who a token belongs to may
    /// change while a stream goes on.
    pub fn create_as(&self, caller: Result<Caller, Error>, create: Create) {
        let wish = Wish::Watch(&create.key, &create.range_end);
        // Where it begins is looked at first.
        let checked = if create.start_revision < 0 {
            Ok(())
        } else {
            caller.and_then(|caller| self.shared.check(&caller, wish))
        };
        match checked {
            Ok(()) => self.stream.create(create),
            // As Go prints an error of gRPC.
            Err(error) => {
                let code = error.code();
                self.stream.refuse(format!("rpc error: code = {code:?} desc = {error}"));
            }
        }
    }

    /// Ends a watcher.
    pub fn cancel(&self, watch_id: i64) {
        self.stream.cancel(watch_id);
    }

    /// Asks for one response with the revision up to which everything was delivered; none comes
    /// while a watcher is behind or there is none.
    pub fn request_progress(&self) {
        self.stream.request_progress();
    }

    /// Returns the number of answers and pieces of events that wait; of answers there may be any
    /// number.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.stream.backlog()
    }

    /// Waits for the next response, but not longer than `limit`; `None` when the time is over.
    ///
    /// # Errors
    /// The store is closed.
    pub fn next(&self, limit: Duration) -> Result<Option<Response>, Error> {
        self.stream.next(limit)
    }

    /// Polls for the next response.
    ///
    /// # Errors
    /// The store is closed.
    pub fn poll_next(&self, context: &mut Context<'_>) -> Poll<Result<Response, Error>> {
        self.stream.poll_next(context)
    }
}
