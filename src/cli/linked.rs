//! The program under the name of etcdctl, etcdutl or etcd.
//!
//! Linked or copied under one of these names, exactly, it behaves as that program for the commands
//! that it has: words, flags, formats and exit codes. A command line of theirs is turned into one
//! of ours here, so that each command is there once, with its checks and refusals. As etcd it
//! serves, which is a verb of ours whose flags are etcd's anyway.
//!
//! **Source**: flags and commands of etcdctl/ctlv3 and etcdutl, checked at 3.7.3, with what 3.5
//! also has; exit codes of pkg/cobrautl/error.go; parsing of cobra and pflag.

mod commands;
mod words;

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;

use clap::Parser;

use super::{Cli, Failure, dispatch, output, usage};
use crate::ops::{Error, ExitCode};
use commands::{Found, find};
use words::{Fault, Line};

/// As which program this one runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// Itself.
    Etcdkit,
    /// etcdctl.
    Etcdctl,
    /// etcdutl.
    Etcdutl,
}

/// The version whose behaviour is followed.
const FOLLOWED: &str = "3.7.3";
const FOLLOWED_API: &str = "3.7";

/// Exit codes of pkg/cobrautl/error.go that differ from 1.
const BAD_CONNECTION: u8 = 2;
const BAD_FEATURE: u8 = 4;
const INTERRUPTED: u8 = 5;
const BAD_ARGS: u8 = 128;

/// Returns the words for a server, where this is to be one: linked or copied as etcd, or by the
/// verb.
#[cfg(feature = "serve")]
pub(super) fn served(words: &[OsString]) -> Option<&[OsString]> {
    let (called, rest) = words.split_first()?;
    match Path::new(called).file_name().and_then(OsStr::to_str) {
        Some("etcd") => Some(rest),
        _ if Program::of(Some(called)).is_linked() => None,
        _ => rest.split_first().filter(|(verb, _)| *verb == "serve").map(|(_, words)| words),
    }
}

impl Program {
    /// Reads the name that the program was called by.
    pub(super) fn of(called: Option<&OsString>) -> Self {
        match called.and_then(|path| Path::new(path).file_name()).and_then(OsStr::to_str) {
            Some("etcdctl") => Self::Etcdctl,
            Some("etcdutl") => Self::Etcdutl,
            _ => Self::Etcdkit,
        }
    }

    pub(super) fn is_linked(self) -> bool {
        self != Self::Etcdkit
    }

    fn name(self) -> &'static str {
        match self {
            Self::Etcdkit => "etcdkit",
            Self::Etcdctl => "etcdctl",
            Self::Etcdutl => "etcdutl",
        }
    }
}

/// Why a command line of theirs cannot be run, and what to exit with.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    message: String,
    hint: Option<String>,
    code: u8,
}

impl Refusal {
    fn new(code: u8, message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, code }
    }
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::new(ExitCode::Failed.number(), fault.to_string())
    }
}

/// What a command line of theirs asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// A text that stands as it is, and a line for standard error.
    Text(String, Option<String>),
    /// One of our command lines.
    Ours(Vec<OsString>),
}

/// Runs a command line of theirs; returns what to exit with.
pub(super) fn run(program: Program, words: &[OsString]) -> u8 {
    let asked = translate(program, words.get(1..).unwrap_or_default(), &|name| {
        std::env::var(name).ok().filter(|value| !value.is_empty())
    });
    let ours = match asked {
        Ok(Asked::Ours(ours)) => ours,
        Ok(Asked::Text(text, note)) => {
            if let Some(note) = note {
                output::say(&note);
            }
            // A reader that is gone needs no help.
            let _ = io::stdout().lock().write_all(text.as_bytes());
            return ExitCode::Ok.number();
        }
        Err(refusal) => {
            let mut error = Error::usage(refusal.message);
            error.hints.extend(refusal.hint);
            output::print_linked_error(&error);
            return refusal.code;
        }
    };
    if program == Program::Etcdctl {
        warn_of_variables();
    }
    let cli = match Cli::try_parse_from(&ours) {
        Ok(cli) => cli,
        Err(error) => {
            output::print_linked_error(&usage(&error));
            return ExitCode::Failed.number();
        }
    };
    let global = cli.flags.resolve(program);
    let saves =
        matches!(ours.get(1..3), Some([group, verb]) if group == "snapshot" && verb == "save");
    match dispatch(cli.command, &global) {
        Ok(code) => number(program, code, ""),
        Err(Failure::Pipe) => ExitCode::Ok.number(),
        Err(Failure::Output(error)) => {
            let _ = writeln!(io::stderr(), "Error: cannot write the result: {error}");
            ExitCode::Failed.number()
        }
        Err(Failure::Operation(error)) => {
            output::print_linked_error(&error);
            match number(program, error.code, &error.message) {
                // Whatever stops a save, etcdctl takes it for an interruption.
                1 if saves => INTERRUPTED,
                number => number,
            }
        }
    }
}

/// Returns their number for a way to end.
fn number(program: Program, code: ExitCode, message: &str) -> u8 {
    match code {
        ExitCode::Ok => 0,
        ExitCode::Usage if program == Program::Etcdctl => BAD_ARGS,
        // etcdctl logs in while it connects.
        ExitCode::Tls if message.contains("authentication failed") => BAD_CONNECTION,
        ExitCode::Internal | ExitCode::Interrupted => code.number(),
        _ => ExitCode::Failed.number(),
    }
}

/// Turns a command line of theirs, without the program's name, into what it asks for.
fn translate(
    program: Program,
    words: &[OsString],
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Asked, Refusal> {
    let line = words::read(program, words)?;
    let found = find(program, &line.positional)?;
    let command = match found {
        Found::Help(text) => return Ok(Asked::Text(text, None)),
        Found::Command(command, _) if line.is_set("help") => {
            return Ok(Asked::Text(commands::help(program, command.path), None));
        }
        Found::Command(command, arguments) => (command, arguments),
    };
    let (command, arguments) = command;
    line.check_flags(command.flags)?;
    if command.path == ["version"] {
        let name = program.name();
        let version = format!("{name} version: {FOLLOWED}\nAPI version: {FOLLOWED_API}\n");
        let ours = env!("CARGO_PKG_VERSION");
        let note = format!("this is etcdkit {ours}, linked as {name}, which follows {FOLLOWED}");
        return Ok(Asked::Text(version, Some(note)));
    }
    command.check_arguments(&arguments)?;
    if command.path == ["compaction"] {
        check_number(arguments.first())?;
    }
    let has_dir = line.value("data-dir").is_some_and(|dir| !dir.is_empty());
    if command.path == ["defrag"] && !command.asks_members && !has_dir {
        let message = match program {
            Program::Etcdctl => {
                return Err(commands::elsewhere(program, "defrag of a running member"));
            }
            _ => "required flag(s) \"data-dir\" not set",
        };
        return Err(Refusal::new(ExitCode::Failed.number(), message));
    }
    let bump = line.value("bump-revision").is_some_and(|bump| !bump.is_empty() && bump != "0");
    if bump != line.is_set("mark-compacted") {
        let message = "--mark-compacted required if --revision-bump > 0";
        return Err(Refusal::new(BAD_ARGS, message));
    }
    if let Some(other) = line.value("consistency").filter(|value| value != "l" && value != "s") {
        let message = format!("unknown consistency flag {:?}", other.to_string_lossy());
        return Err(Refusal::new(BAD_FEATURE, message));
    }
    let given = line.value("discovery-srv").is_some_and(|domain| !domain.is_empty());
    if program == Program::Etcdctl && (given || variable("ETCDCTL_DISCOVERY_SRV").is_some()) {
        let message = "--discovery-srv is not known to etcdkit, which is linked as etcdctl";
        let mut refusal = Refusal::new(BAD_FEATURE, message);
        refusal.hint = Some("name the members with --endpoints".to_owned());
        return Err(refusal);
    }
    let format = format(program, &line, variable)?;
    if format == "table" && command.path.first() == Some(&"alarm") {
        return Err(Refusal::new(BAD_FEATURE, "table not supported as output format"));
    }
    Ok(Asked::Ours(ours(command, &line, &format, arguments)?))
}

/// Refuses what Go does not read as a number (strconv, `ParseInt`).
fn check_number(word: Option<&OsString>) -> Result<(), Refusal> {
    let word = word.map(|word| word.to_string_lossy()).unwrap_or_default();
    let digits = word.strip_prefix(['+', '-']).unwrap_or(&word);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let why = match word.parse::<i64>() {
        Ok(_) => return Ok(()),
        Err(_) if is_number => "value out of range",
        Err(_) => "invalid syntax",
    };
    let message = format!("strconv.ParseInt: parsing {word:?}: {why}");
    Err(Refusal::new(ExitCode::Failed.number(), message))
}

/// Decides the output format.
fn format(
    program: Program,
    line: &Line,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<String, Refusal> {
    let flag = line.value("write-out").map(|value| value.to_string_lossy().into_owned());
    let variable = || match program {
        Program::Etcdctl => variable("ETCDCTL_WRITE_OUT"),
        _ => None,
    };
    let format = flag.or_else(variable).unwrap_or_else(|| "simple".to_owned());
    match format.as_str() {
        "simple" | "table" | "json" | "fields" => Ok(format),
        "protobuf" => Err(Refusal::new(BAD_FEATURE, "protobuf not supported as output format")),
        _ => Err(Refusal::new(BAD_FEATURE, "unsupported output format")),
    }
}

/// Writes our command line.
fn ours(
    command: &commands::Command,
    line: &Line,
    format: &str,
    arguments: Vec<OsString>,
) -> Result<Vec<OsString>, Refusal> {
    let mut ours: Vec<OsString> = vec!["etcdkit".into()];
    ours.extend(command.path.iter().map(OsString::from));
    ours.push(format!("--write-out={format}").into());
    for (flag, value) in line.ours(command)? {
        let mut word = OsString::from(format!("--{flag}"));
        if let Some(value) = value {
            word.push("=");
            word.push(value);
        }
        ours.push(word);
    }
    let is_restore = command.path == ["snapshot", "restore"];
    if is_restore && line.value("data-dir").is_none_or(|d| d.is_empty()) {
        let name = line.value("name").filter(|name| !name.is_empty());
        let mut word = OsString::from("--data-dir=");
        word.push(name.unwrap_or_else(|| OsString::from("default")));
        word.push(".etcd");
        ours.push(word);
    }
    if command.takes_arguments() {
        ours.push("--".into());
        ours.extend(arguments);
    }
    Ok(ours)
}

/// Names variables that nobody reads, without their values, which may be secret.
fn warn_of_variables() {
    let is_known = |name: &str| {
        let flag = name.to_ascii_lowercase().replace('_', "-");
        name == "API" || words::is_global(&flag)
    };
    for (name, value) in std::env::vars_os() {
        let Some(name) = name.to_str().and_then(|name| name.strip_prefix("ETCDCTL_")) else {
            continue;
        };
        if !is_known(name) {
            let _ = writeln!(io::stderr(), "warning: ETCDCTL_{name} is no variable of etcdctl's");
        } else if name == "API" && value != "3" {
            let _ = writeln!(io::stderr(), "warning: ETCDCTL_API is not 3, and only 3 is there");
        }
    }
}

#[cfg(test)]
mod tests;
