//! The `etcdkit` program: reads the command line, runs it, exits with its code.

use std::io::{self, Write};
use std::panic;
use std::process::ExitCode;

fn main() -> ExitCode {
    panic::set_hook(Box::new(|info| {
        let version = env!("CARGO_PKG_VERSION");
        // A hook that panics ends the program with a signal instead of an exit code.
        let mut err = io::stderr().lock();
        let _ = writeln!(err, "error: etcdkit {version} has a bug: {info}");
        let _ = writeln!(err, "hint: please report it with the command line and this message");
    }));
    // A file that may not grow further is then an error of the write, and is cleaned up after.
    let ignored = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, ignored);
    let outcome = panic::catch_unwind(|| etcdkit::cli::run(std::env::args_os()));
    ExitCode::from(outcome.unwrap_or_else(|_| etcdkit::ops::ExitCode::Internal.number()))
}
