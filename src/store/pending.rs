//! An answer that comes later: waited for by a thread, or polled as a future.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Runs a caller's waker, which may do anything, so with no lock held; that it panics is nothing to
/// the thread that runs it.
pub(super) fn wake(waker: Waker) {
    let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
}

#[derive(Debug)]
struct Slot<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    value: Option<T>,
    is_dropped: bool,
    /// A thread sleeps on it: only then is the operating system asked to wake one.
    is_waited_for: bool,
    waker: Option<Waker>,
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn settle(&self, value: Option<T>) {
        let mut state = self.lock();
        state.is_dropped = value.is_none();
        state.value = value;
        let waker = state.waker.take();
        let is_waited_for = state.is_waited_for;
        drop(state);
        if is_waited_for {
            self.changed.notify_all();
        }
        if let Some(waker) = waker {
            wake(waker);
        }
    }
}

/// The end that waits.
#[derive(Debug)]
pub struct Pending<T>(Arc<Slot<T>>);

/// The end that answers; dropped without an answer, the other end learns that.
#[doc(hidden)]
#[derive(Debug)]
pub struct Promise<T>(Option<Arc<Slot<T>>>);

/// Makes both ends.
#[doc(hidden)]
#[must_use]
pub fn pending<T>() -> (Promise<T>, Pending<T>) {
    let state = State { value: None, is_dropped: false, is_waited_for: false, waker: None };
    let slot = Arc::new(Slot { state: Mutex::new(state), changed: Condvar::new() });
    (Promise(Some(Arc::clone(&slot))), Pending(slot))
}

impl<T> Promise<T> {
    /// Tells whether the other end is still there.
    pub(super) fn is_awaited(&self) -> bool {
        self.0.as_ref().is_some_and(|slot| Arc::strong_count(slot) > 1)
    }

    /// Answers.
    pub fn fulfil(mut self, value: T) {
        if let Some(slot) = self.0.take() {
            slot.settle(Some(value));
        }
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if let Some(slot) = self.0.take() {
            slot.settle(None);
        }
    }
}

impl<T> Pending<T> {
    /// Waits for the answer; `None` when none will come.
    pub fn wait(self) -> Option<T> {
        let mut state = self.0.lock();
        loop {
            if state.value.is_some() || state.is_dropped {
                return state.value.take();
            }
            state.is_waited_for = true;
            state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for the answer, but not longer than this; gives itself back when the time is over.
    ///
    /// # Errors
    /// The time is over.
    pub fn wait_for(self, limit: Duration) -> Result<Option<T>, Self> {
        let mut state = self.0.lock();
        state.is_waited_for = true;
        let waiting = |state: &mut State<T>| state.value.is_none() && !state.is_dropped;
        let (mut state, timeout) = self
            .0
            .changed
            .wait_timeout_while(state, limit, waiting)
            .unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() && waiting(&mut state) {
            drop(state);
            return Err(self);
        }
        Ok(state.value.take())
    }
}

impl<T> Future for Pending<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        // To clone a waker, and to drop one, is the caller's code too.
        let waker = context.waker().clone();
        let mut state = self.0.lock();
        if state.value.is_some() || state.is_dropped {
            return Poll::Ready(state.value.take());
        }
        let before = state.waker.replace(waker);
        drop(state);
        drop(before);
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_arrives_or_is_known_not_to() {
        let (promise, waiting) = pending();
        let thread = std::thread::spawn(move || waiting.wait());
        promise.fulfil(7);
        assert_eq!(thread.join().unwrap(), Some(7));

        let (promise, waiting) = pending::<u8>();
        let waiting = waiting.wait_for(Duration::from_millis(1)).unwrap_err();
        drop(promise);
        assert_eq!(waiting.wait(), None);
    }

    #[test]
    fn it_is_a_future() {
        let (promise, mut waiting) = pending();
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut waiting).poll(&mut context).is_pending());
        promise.fulfil("here");
        assert_eq!(Pin::new(&mut waiting).poll(&mut context), Poll::Ready(Some("here")));
    }
}
