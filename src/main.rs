//! The `etcdkit` program: reads the command line, runs it, exits with its code.

use std::panic;
use std::process::ExitCode;

fn main() -> ExitCode {
    panic::set_hook(Box::new(|info| {
        let version = env!("CARGO_PKG_VERSION");
        eprintln!("error: etcdkit {version} has a bug: {info}");
        eprintln!("hint: please report it with the command line and this message");
    }));
    let outcome = panic::catch_unwind(|| etcdkit::cli::run(std::env::args_os()));
    ExitCode::from(outcome.unwrap_or_else(|_| etcdkit::ops::ExitCode::Internal.number()))
}
