//! Long work beside the store's own: with a small share of the processors, where others want them.

use std::panic::resume_unwind;
use std::thread::{Builder, scope};

/// What the work's thread is given, as the operating system counts it: about a ninth of the time
/// of a thread that serves.
const NICENESS: i32 = 10;

/// Does work on a thread of its own, which yields to those that serve, and waits for it. It must
/// hold no lock for long that they want.
pub(super) fn aside<T: Send>(name: &str, work: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    scope(|scope| {
        let builder = Builder::new().name(format!("store-{name}"));
        let thread = builder.spawn_scoped(scope, || {
            // Elsewhere it would be the whole process. Where it is not to be had, the work is done
            // all the same.
            if cfg!(target_os = "linux") {
                let _ = rustix::process::setpriority_process(None, NICENESS);
            }
            work()
        })?;
        Ok(thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}
