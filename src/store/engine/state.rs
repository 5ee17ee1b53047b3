//! The state behind its lock, as readers, watchers and the store's threads share it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

use super::Shared;
use crate::store::directory::{self, AuthStatus};
use crate::store::error::Error;
use crate::store::mvcc::Mvcc;

/// The state, until the store is closed.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) mvcc: Arc<RwLock<Mvcc>>,
    pub(super) revision: AtomicI64,
    /// Index of the last entry whose effect can be read.
    pub(super) applied: AtomicU64,
    /// Whether callers need permissions: looked at by each request, so kept beside the lock.
    is_auth_on: AtomicBool,
    auth_revision: AtomicU64,
    is_closed: AtomicBool,
    /// Told when the state is found to be changed by half.
    pub(super) shared: OnceLock<Weak<Shared>>,
}

impl Core {
    /// Takes a state; `is_open_to_all` where nobody is asked for permission, whatever it says.
    pub(super) fn new(mvcc: Mvcc, is_open_to_all: bool) -> Self {
        let core = Self {
            revision: AtomicI64::new(mvcc.revision()),
            applied: AtomicU64::new(mvcc.applied().0),
            is_auth_on: AtomicBool::new(false),
            auth_revision: AtomicU64::new(1),
            is_closed: AtomicBool::new(false),
            shared: OnceLock::new(),
            mvcc: Arc::new(RwLock::new(mvcc)),
        };
        if !is_open_to_all {
            core.note_auth(&core.mvcc.read().unwrap_or_else(PoisonError::into_inner));
        }
        core
    }

    /// Looks at the state; not at one that somebody who panicked changed by half.
    pub(super) fn read<T>(&self, look: impl FnOnce(&Mvcc) -> T) -> Result<T, Error> {
        self.check_open()?;
        Ok(look(&*self.mvcc.read().map_err(|_| halved())?))
    }

    /// Changes the state. After a panic in there, which may have left half a change, nobody may
    /// any more, and the store fails.
    pub(super) fn write<T>(&self, change: impl FnOnce(&mut Mvcc) -> T) -> Result<T, Error> {
        self.check_open()
            .and_then(|()| Ok(change(&mut *self.mvcc.write().map_err(|_| halved())?)))
            .inspect_err(|error| {
                if self.mvcc.is_poisoned()
                    && let Some(shared) = self.shared.get().and_then(Weak::upgrade)
                {
                    shared.fail(error);
                }
            })
    }

    /// Tells why the state cannot be looked at, where it cannot.
    pub(super) fn check_open(&self) -> Result<(), Error> {
        match self.is_closed.load(Ordering::Acquire) {
            true => Err(Error::Stopped),
            false if self.mvcc.is_poisoned() => Err(halved()),
            false => Ok(()),
        }
    }

    /// Lets nobody look any more.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Reads anew whether auth is on, and the revision of its rules.
    pub(super) fn note_auth(&self, mvcc: &Mvcc) {
        // What cannot be read is no reason to let anybody in.
        let status = directory::auth_status(mvcc);
        let status = status.unwrap_or(AuthStatus { enabled: true, revision: u64::MAX });
        self.auth_revision.store(status.revision, Ordering::Release);
        self.is_auth_on.store(status.enabled, Ordering::Release);
    }

    pub(super) fn is_auth_on(&self) -> bool {
        self.is_auth_on.load(Ordering::Acquire)
    }

    pub(super) fn auth_revision(&self) -> u64 {
        self.auth_revision.load(Ordering::Acquire)
    }
}

fn halved() -> Error {
    Error::Storage("a panic left a change of the state half done: open the store anew".into())
}
