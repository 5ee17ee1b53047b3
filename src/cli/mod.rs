//! Words, tables, progress and exit codes: the only layer that prints.
//!
//! Results go to stdout; progress, notes and errors to stderr. In JSON mode stdout holds one JSON
//! value and nothing else, and every line on stderr is JSON. A reader that closes the pipe early
//! is no error.

#[cfg(feature = "live")]
mod alarm;
#[cfg(feature = "live")]
mod cluster;
#[cfg(feature = "live")]
mod compaction;
#[cfg(feature = "live")]
mod connection;
mod defrag;
mod directory;
#[cfg(feature = "live")]
mod duration;
#[cfg(feature = "live")]
mod endpoint;
mod etcdctl;
mod extras;
mod hashkv;
mod inspect;
mod linked;
#[cfg(feature = "live")]
mod member;
mod output;
#[cfg(feature = "live")]
mod prompt;
#[cfg(feature = "live")]
mod reclaim;
mod restore;
mod rewrite;
mod save;
#[cfg(feature = "serve")]
mod serve;
mod snapshot;
mod terminal;

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};

#[cfg(feature = "live")]
use crate::live::Cluster;
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
    /// Print ids in hex where etcdctl does: `member list`, and every `-w fields`
    #[cfg(feature = "live")]
    #[arg(long, global = true, value_name = "BOOL", num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    hex: Option<bool>,
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
    program: linked::Program,
    write_out: WriteOut,
    #[cfg(feature = "live")]
    is_hex: bool,
    audit_log: PathBuf,
    quiet: bool,
    #[cfg(feature = "live")]
    connection: connection::Connection,
}

impl Flags {
    /// A variable that is meant for another program, or empty, must not stop a command that does
    /// not need it: a format that is not known here counts as none.
    fn resolve(self, program: linked::Program) -> Global {
        let format = || WriteOut::from_str(&std::env::var("ETCDCTL_WRITE_OUT").ok()?, false).ok();
        let log = || std::env::var_os("ETCDKIT_AUDIT_LOG").filter(|log| !log.is_empty());
        let log = || log().map_or_else(|| audit::DEFAULT_PATH.into(), PathBuf::from);
        let write_out = self.write_out.or_else(format).unwrap_or(WriteOut::Simple);
        Global {
            program,
            #[cfg(feature = "live")]
            is_hex: self.hex.unwrap_or(false),
            write_out,
            audit_log: self.audit_log.unwrap_or_else(log),
            quiet: self.quiet,
            #[cfg(feature = "live")]
            connection: self.connection.noting(write_out == WriteOut::Json),
        }
    }
}

#[cfg(feature = "live")]
impl Global {
    fn format(&self) -> etcdctl::Format {
        etcdctl::Format { write_out: self.write_out, is_hex: self.is_hex }
    }

    /// Opens the connections, with `--cluster` to every member that the cluster has.
    fn cluster(&self) -> Result<Cluster, Error> {
        let is_linked = self.program.is_linked();
        let opened = self.connection.settings().and_then(|settings| Ok(Cluster::open(settings)?));
        let mut cluster = opened.map_err(|mut error| {
            if is_linked {
                // etcdctl takes whatever stops it before it connects for bad arguments.
                error.code = ExitCode::Usage;
            }
            error
        })?;
        if self.connection.whole_cluster() {
            cluster.discover().map_err(|error| {
                let mut error = Error::from(error);
                let what = "failed to fetch endpoints from etcd cluster member list";
                error.message = format!("{what}: {}", error.message);
                error
            })?;
        }
        Ok(cluster)
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Save, check, describe and restore snapshots
    #[command(subcommand)]
    Snapshot(snapshot::Command),
    /// Print the hash of all records that a server gives after a start, as etcdutl does
    Hashkv(hashkv::Args),
    /// Give back the free pages of running members' databases, one member after the other, or of a
    /// stopped one's
    Defrag(defrag::Defrag),
    /// Ask members how they are, as etcdctl does
    #[cfg(feature = "live")]
    #[command(subcommand)]
    Endpoint(endpoint::Command),
    /// List the members of the cluster, as etcdctl does
    #[cfg(feature = "live")]
    #[command(subcommand)]
    Member(member::Command),
    /// List and disarm the alarms of the cluster, as etcdctl does
    #[cfg(feature = "live")]
    #[command(subcommand)]
    Alarm(alarm::Command),
    /// Drop history of a running cluster: below a revision, or all but a window
    #[cfg(feature = "live")]
    #[command(visible_alias = "compact")]
    Compaction(compaction::Args),
    /// Bring a cluster at its quota back: compact, defragment, disarm, prove that writes go
    #[cfg(feature = "live")]
    Reclaim(reclaim::Args),
    /// Show every member of a running cluster, what is wrong, and what to do next
    #[cfg(feature = "live")]
    Status(cluster::LookArgs),
    /// Show which members of a running cluster serve, and how many more may fail
    #[cfg(feature = "live")]
    Health(cluster::LookArgs),
    /// Wait until a running cluster is as it should be
    #[cfg(feature = "live")]
    Wait(cluster::WaitArgs),
    /// Compare the members' data at one revision: each hashes its keys in turn, the leader last,
    /// and writes wait for it meanwhile, seconds for a gigabyte
    #[cfg(feature = "live")]
    Consistency(cluster::ConsistencyArgs),
    /// Serve etcd's API over a data directory, with etcd's own flags: it is an etcd of one member
    #[cfg(feature = "serve")]
    #[command(disable_version_flag = true)]
    Serve(serve::Args),
    /// Show the whole story in a temporary directory, with nothing else installed
    #[cfg(all(feature = "live", feature = "serve"))]
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
    #[cfg(feature = "serve")]
    if let Some(words) = linked::served(&words) {
        return serve::run(words);
    }
    let program = linked::Program::of(words.first());
    if program.is_linked() {
        return linked::run(program, &words);
    }
    let parsed = command().try_get_matches_from(&words);
    let parsed = parsed.and_then(|mut matches| {
        Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command()))
    });
    let cli = match parsed {
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
    let global = cli.flags.resolve(program);
    let write_out = global.write_out;
    match dispatch(cli.command, &global) {
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

/// Returns the command line as clap knows it.
fn command() -> clap::Command {
    let command = Cli::command();
    #[cfg(feature = "serve")]
    let command = {
        let mut command = command;
        // Flags of every command are none of a server, which refuses them.
        command.build();
        command.mut_subcommand("serve", |serve| {
            serve.mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg })
        })
    };
    command
}

fn dispatch(command: Command, global: &Global) -> Outcome {
    match command {
        Command::Snapshot(command) => snapshot::run(global, command),
        Command::Hashkv(args) => hashkv::run(global, &args),
        Command::Defrag(args) => defrag::run(global, args),
        #[cfg(feature = "live")]
        Command::Endpoint(command) => endpoint::run(global, &command),
        #[cfg(feature = "live")]
        Command::Member(command) => member::run(global, &command),
        #[cfg(feature = "live")]
        Command::Alarm(command) => alarm::run(global, &command),
        #[cfg(feature = "live")]
        Command::Compaction(args) => compaction::run(global, &args),
        #[cfg(feature = "live")]
        Command::Reclaim(args) => reclaim::run(global, args),
        #[cfg(feature = "live")]
        Command::Status(args) => cluster::run_status(global, &args),
        #[cfg(feature = "live")]
        Command::Health(args) => cluster::run_health(global, &args),
        #[cfg(feature = "live")]
        Command::Wait(args) => cluster::run_wait(global, &args),
        #[cfg(feature = "live")]
        Command::Consistency(args) => cluster::run_consistency(global, &args),
        #[cfg(feature = "serve")]
        Command::Serve(args) => Ok(args.run()),
        #[cfg(all(feature = "live", feature = "serve"))]
        Command::Demo => extras::demo(global),
        Command::Version => extras::version(global),
        Command::Completions { shell } => extras::completions(shell, self::command()),
        Command::Man { command, all } => extras::man(self::command(), &command, all.as_deref()),
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

#[cfg(feature = "live")]
impl From<crate::live::Error> for Failure {
    fn from(error: crate::live::Error) -> Self {
        Error::from(error).into()
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
