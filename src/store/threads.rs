//! The threads of stores. They run callers' wakers, so a caller may find itself on one, where
//! nothing may be waited for that needs the thread.

use std::cell::Cell;
use std::io;
use std::thread::{Builder, JoinHandle};

thread_local! {
    static IS_ONE: Cell<bool> = const { Cell::new(false) };
}

/// Starts a thread of a store.
pub(super) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    Builder::new().name(name.to_owned()).spawn(move || {
        IS_ONE.set(true);
        work();
    })
}

/// Tells whether this thread is one, of whichever store: two may end one another.
pub(super) fn is_one() -> bool {
    IS_ONE.try_with(Cell::get).unwrap_or(true)
}
