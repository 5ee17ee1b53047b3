//! Whether the store works, why it does not, and how its threads learn that they are to end.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::store::error::Error;

const RUNNING: u8 = 0;
const CLOSING: u8 = 1;
const DRAINED: u8 = 2;
const ABANDONED: u8 = 3;

/// The state of a store's life.
#[derive(Debug, Default)]
pub(super) struct Health {
    failure: OnceLock<String>,
    phase: AtomicU8,
}

impl Health {
    /// Notes why nothing can be written any more; only the first reason is kept.
    pub(super) fn fail(&self, why: &str) {
        let _ = self.failure.set(why.to_owned());
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.get().is_some()
    }

    /// Says why new requests are refused; `None` while they are not.
    pub(super) fn refusal(&self) -> Option<Error> {
        match self.failure.get() {
            Some(why) => Some(Error::Storage(format!("the store takes no more writes: {why}"))),
            None if self.is_ending() => Some(Error::Stopped),
            None => None,
        }
    }

    /// Says what callers are told whose request was taken and not answered.
    pub(super) fn unknown_outcome(&self) -> Error {
        match self.failure.get() {
            Some(why) => {
                Error::Storage(format!("whether the request was done is not known: {why}"))
            }
            None => Error::Stopped,
        }
    }

    /// Begins the end; whatever is dirty is saved only in a clean one.
    pub(super) fn end(&self, is_clean: bool) {
        let phase = if is_clean { CLOSING } else { ABANDONED };
        let _ = self.phase.compare_exchange(RUNNING, phase, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Nothing more will be logged or applied.
    pub(super) fn note_drained(&self) {
        let _ = self.phase.compare_exchange(CLOSING, DRAINED, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Tells whether the backend thread is needed no more.
    pub(super) fn is_drained(&self) -> bool {
        self.phase.load(Ordering::Acquire) >= DRAINED
    }

    pub(super) fn is_ending(&self) -> bool {
        self.phase.load(Ordering::Acquire) != RUNNING
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.phase.load(Ordering::Acquire) == ABANDONED
    }
}
