//! Words, tables, progress and exit codes: the only layer that prints.
//!
//! Results go to stdout; progress, notes and errors to stderr. In JSON mode stdout holds one JSON
//! value and nothing else, and every line on stderr is JSON. A reader that closes the pipe early
//! is no error.

#[cfg(feature = "live")]
mod connection;
mod directory;
#[cfg(feature = "live")]
mod duration;
mod extras;
mod hashkv;
mod inspect;
mod output;
#[cfg(feature = "live")]
mod prompt;
mod restore;
mod rewrite;
mod save;
mod snapshot;
mod terminal;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::ops::{Error, ExitCode, audit};
pub use output::WriteOut;

/// Operate etcd: prove snapshots, restore them, keep the control plane alive
#[derive(Debug, Parser)]
#[command(name = "etcdkit", version, max_term_width = 100, propagate_version = true)]
#[command(after_help = "Start with: etcdkit demo")]
struct Cli {
    #[command(flatten)]
    flags: Flags,
    #[command(subcommand)]
    command: Command,
}

/// Flags of every command.
#[derive(Clone, Debug, Args)]
struct Flags {
    /// Set the output format [default: simple] [env: ETCDCTL_WRITE_OUT]
    #[arg(short, long, global = true, value_enum)]
    write_out: Option<WriteOut>,
    /// Append the record of every change to this file [env: ETCDKIT_AUDIT_LOG]
    /// [default: /var/lib/etcdkit/audit.jsonl]
    #[arg(long, global = true, value_name = "FILE")]
    audit_log: Option<PathBuf>,
    /// Show no progress
    #[arg(short, long, global = true)]
    quiet: bool,
    #[cfg(feature = "live")]
    #[command(flatten)]
    connection: connection::Connection,
}

/// Flags of every command, with the environment and the defaults filled in.
#[derive(Clone, Debug)]
struct Global {
    write_out: WriteOut,
    audit_log: PathBuf,
    quiet: bool,
    #[cfg(feature = "live")]
    connection: connection::Connection,
}

impl Flags {
    /// A variable that is meant for another program, or empty, must not stop a command that does
    /// not need it: a format that is not known here counts as none.
    fn resolve(self) -> Global {
        let format = || WriteOut::from_str(&std::env::var("ETCDCTL_WRITE_OUT").ok()?, false).ok();
        let log = || std::env::var_os("ETCDKIT_AUDIT_LOG").filter(|log| !log.is_empty());
        let log = || log().map_or_else(|| audit::DEFAULT_PATH.into(), PathBuf::from);
        let write_out = self.write_out.or_else(format).unwrap_or(WriteOut::Simple);
        Global {
            write_out,
            audit_log: self.audit_log.unwrap_or_else(log),
            quiet: self.quiet,
            #[cfg(feature = "live")]
            connection: self.connection.noting(write_out == WriteOut::Json),
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Save, check, describe and restore snapshots
    #[command(subcommand)]
    Snapshot(snapshot::Command),
    /// Print the hash of all records that a server gives after a start, as etcdutl does
    Hashkv(hashkv::Args),
    /// Pack the database of a stopped member
    Defrag(rewrite::Defrag),
    /// Show the whole story in a temporary directory, with nothing else installed
    Demo,
    /// Print the version
    Version,
    /// Print a completion script for a shell
    Completions {
        /// The shell to complete for
        shell: clap_complete::Shell,
    },
    /// Print the manual page of a command, or write them all into a directory
    Man {
        /// Words of the command, none for etcdkit itself
        command: Vec<String>,
        /// Write every page into this directory
        #[arg(long, value_name = "DIR", conflicts_with = "command")]
        all: Option<PathBuf>,
    },
}

/// Runs a command line; returns what to exit with.
pub fn run(words: impl IntoIterator<Item = OsString>) -> u8 {
    let words: Vec<OsString> = words.into_iter().collect();
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        // Help and version are answers, not errors.
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return ExitCode::Ok.number();
        }
        Err(error) => {
            if wants_json(&words) {
                output::print_error(&usage(&error), WriteOut::Json);
            } else {
                let _ = error.print();
            }
            return ExitCode::Usage.number();
        }
    };
    let global = cli.flags.resolve();
    let write_out = global.write_out;
    let outcome = match cli.command {
        Command::Snapshot(command) => snapshot::run(&global, command),
        Command::Hashkv(args) => hashkv::run(&global, &args),
        Command::Defrag(args) => rewrite::run_defrag(&global, args),
        Command::Demo => extras::demo(&global),
        Command::Version => extras::version(&global),
        Command::Completions { shell } => extras::completions(shell, Cli::command()),
        Command::Man { command, all } => extras::man(Cli::command(), &command, all.as_deref()),
    };
    match outcome {
        Ok(code) => code.number(),
        Err(Failure::Pipe) => ExitCode::Ok.number(),
        Err(Failure::Output(error)) => {
            let _ = writeln!(io::stderr(), "error: cannot write the result: {error}");
            ExitCode::Failed.number()
        }
        Err(Failure::Operation(error)) => {
            output::print_error(&error, write_out);
            error.code.number()
        }
    }
}

/// Tells whether a command line that could not be parsed asks for JSON.
fn wants_json(words: &[OsString]) -> bool {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let joined = ["-wjson", "-w=json", "--write-out=json"];
    let apart = words.windows(2).any(|pair| matches!(pair, ["-w" | "--write-out", "json"]));
    let flag = apart || words.iter().any(|word| joined.contains(word));
    flag || std::env::var_os("ETCDCTL_WRITE_OUT").is_some_and(|format| format == "json")
}

/// What is wrong with a command line: the first paragraph is the message, the rest the hint.
fn usage(error: &clap::Error) -> Error {
    let text = error.render().to_string();
    let (message, rest) = text.split_once("\n\n").unwrap_or((text.as_str(), ""));
    let message: Vec<&str> = message.lines().map(str::trim).collect();
    let message = message.join(" ");
    let message = message.strip_prefix("error: ").unwrap_or(&message).to_owned();
    let hints = rest.lines().map(str::trim).filter(|line| !line.is_empty());
    hints.fold(Error::usage(message), Error::hint)
}

/// Why a command did not print its result.
#[derive(Debug)]
enum Failure {
    /// Nobody reads the output any more.
    Pipe,
    /// The output cannot be written.
    Output(io::Error),
    /// The operation did not finish.
    Operation(Box<Error>),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Pipe,
            _ => Self::Output(error),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Operation(Box::new(error))
    }
}

type Outcome = Result<ExitCode, Failure>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_tree_is_sound() {
        Cli::command().debug_assert();
    }
}
