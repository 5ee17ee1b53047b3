//! Flags and arguments as cobra and pflag read them.
//!
//! Flags stand before, between or after the words of the command: `--flag value`, `--flag=value`,
//! `-w json`, `-w=json`, `-wjson`; a switch takes its value only after `=`. `--` ends them. The
//! last one of a kind counts, but `--endpoints` adds up.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use super::commands::Command;
use super::{BAD_ARGS, Program, Refusal};

/// What becomes of a flag of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Ours has it, with a value.
    Value,
    /// Ours has it, as a switch that takes a value.
    Bool,
    /// Ours has it, as a switch without a value.
    Switch,
    /// With a value that means nothing here.
    IgnoredValue,
    /// A switch that means nothing here.
    IgnoredBool,
    /// A file: an empty name is refused.
    File,
}

use Kind::{Bool, File, IgnoredBool, IgnoredValue, Switch, Value};

/// Flags of every etcdctl command.
const CTL: &[(&str, Kind)] = &[
    ("endpoints", Value),
    ("debug", IgnoredBool),
    ("write-out", IgnoredValue),
    ("hex", Bool),
    ("dial-timeout", Value),
    ("command-timeout", Value),
    ("keepalive-time", Value),
    ("keepalive-timeout", Value),
    ("max-request-bytes", IgnoredValue),
    ("max-recv-bytes", IgnoredValue),
    ("insecure-transport", Bool),
    ("insecure-discovery", IgnoredBool),
    ("insecure-skip-tls-verify", Bool),
    ("cert", File),
    ("key", File),
    ("cacert", File),
    ("auth-jwt-token", Value),
    ("user", Value),
    ("password", Value),
    ("discovery-srv", IgnoredValue),
    ("discovery-srv-name", IgnoredValue),
    ("help", IgnoredBool),
];

/// Flags of every etcdutl command.
const UTL: &[(&str, Kind)] =
    &[("write-out", IgnoredValue), ("timeout", IgnoredValue), ("help", IgnoredBool)];

/// Flags of single commands.
const OWN: &[(&str, Kind)] = &[
    ("cluster", Bool),
    ("rev", Value),
    ("physical", Switch),
    ("consistency", Value),
    ("data-dir", Value),
    ("wal-dir", Value),
    ("name", Value),
    ("initial-cluster", Value),
    ("initial-cluster-token", Value),
    ("initial-advertise-peer-urls", Value),
    ("initial-memory-map-size", Value),
    ("skip-hash-check", Switch),
    ("bump-revision", Value),
    ("mark-compacted", Switch),
];

/// Tells whether every etcdctl command has a flag.
pub(super) fn is_global(name: &str) -> bool {
    CTL.iter().any(|(known, _)| *known == name)
}

fn globals(program: Program) -> &'static [(&'static str, Kind)] {
    match program {
        Program::Etcdutl => UTL,
        _ => CTL,
    }
}

fn kind(program: Program, name: &str) -> Option<(&'static str, Kind)> {
    globals(program).iter().chain(OWN).find(|(known, _)| *known == name).copied()
}

/// The flag of a letter.
fn long(program: Program, letter: char) -> Option<&'static str> {
    match (letter, program) {
        ('w', _) => Some("write-out"),
        ('h', _) => Some("help"),
        ('d', Program::Etcdctl) => Some("discovery-srv"),
        _ => None,
    }
}

/// A flag that cannot be read, in pflag's words.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Unknown(String),
    UnknownLetter(char, String),
    NoValue(String),
    NotBool(String, String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(f, "unknown flag: --{name}"),
            Self::UnknownLetter(letter, word) => {
                write!(f, "unknown shorthand flag: '{letter}' in {word}")
            }
            Self::NoValue(flag) => write!(f, "flag needs an argument: {flag}"),
            Self::NotBool(name, value) => write!(
                f,
                "invalid argument {value:?} for \"--{name}\" flag: strconv.ParseBool: parsing \
                 {value:?}: invalid syntax"
            ),
        }
    }
}

/// A command line that was read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Line {
    program: Option<&'static str>,
    flags: Vec<(&'static str, Kind, OsString)>,
    /// Words that are no flags, and whether they stand after `--`.
    pub(super) positional: Vec<(OsString, bool)>,
}

/// Reads a command line without the program's name.
pub(super) fn read(program: Program, words: &[OsString]) -> Result<Line, Fault> {
    let mut line = Line { program: Some(program.name()), ..Line::default() };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        if bytes == b"--" {
            line.positional.extend(words.map(|word| (word.clone(), true)));
            break;
        }
        if let Some(flag) = bytes.strip_prefix(b"--") {
            let (name, value) = split(flag);
            let name = String::from_utf8_lossy(name);
            let (name, kind) =
                kind(program, &name).ok_or_else(|| Fault::Unknown(name.into_owned()))?;
            line.take(name, kind, value, &mut words, || format!("--{name}"))?;
        } else if bytes.len() > 1 && bytes.starts_with(b"-") {
            let shown = word.to_string_lossy();
            let letter = shown.chars().nth(1).unwrap_or_default();
            let (name, kind) = long(program, letter)
                .and_then(|name| kind(program, name))
                .ok_or_else(|| Fault::UnknownLetter(letter, shown.clone().into_owned()))?;
            let rest = bytes.get(2..).filter(|rest| !rest.is_empty());
            let value = rest.map(|rest| OsStr::from_bytes(rest.strip_prefix(b"=").unwrap_or(rest)));
            let value = value.map(OsStr::to_os_string);
            line.take(name, kind, value, &mut words, || format!("'{letter}' in {shown}"))?;
        } else {
            line.positional.push((word.clone(), false));
        }
    }
    Ok(line)
}

fn split(flag: &[u8]) -> (&[u8], Option<OsString>) {
    let mut parts = flag.splitn(2, |byte| *byte == b'=');
    let name = parts.next().unwrap_or_default();
    (name, parts.next().map(|value| OsStr::from_bytes(value).to_os_string()))
}

impl Line {
    fn take<'a>(
        &mut self,
        name: &'static str,
        kind: Kind,
        value: Option<OsString>,
        words: &mut impl Iterator<Item = &'a OsString>,
        flag: impl Fn() -> String,
    ) -> Result<(), Fault> {
        let value = match kind {
            Bool | Switch | IgnoredBool => truth(name, value)?.to_string().into(),
            Value | IgnoredValue | File => match value.or_else(|| words.next().cloned()) {
                Some(value) => value,
                None => return Err(Fault::NoValue(flag())),
            },
        };
        let earlier = self.flags.iter_mut().find(|(known, ..)| *known == name);
        match earlier {
            Some((_, _, endpoints)) if name == "endpoints" => {
                endpoints.push(",");
                endpoints.push(value);
            }
            Some((_, _, earlier)) => *earlier = value,
            None => self.flags.push((name, kind, value)),
        }
        Ok(())
    }

    /// Returns the value of a flag that was given.
    pub(super) fn value(&self, name: &str) -> Option<OsString> {
        self.flags.iter().find(|(known, ..)| *known == name).map(|(_, _, value)| value.clone())
    }

    /// Tells whether a switch is on.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| value == "true")
    }

    /// Refuses flags of other commands.
    pub(super) fn check_flags(&self, own: &[&str]) -> Result<(), Fault> {
        let globals = if self.program == Some("etcdutl") { UTL } else { CTL };
        for (name, ..) in &self.flags {
            if !own.contains(name) && !globals.iter().any(|(known, _)| known == name) {
                return Err(Fault::Unknown((*name).to_owned()));
            }
        }
        Ok(())
    }

    /// Returns the flags that ours is given; what is empty counts as not given, as with theirs.
    pub(super) fn ours(
        &self,
        command: &Command,
    ) -> Result<Vec<(&'static str, Option<OsString>)>, Refusal> {
        let mut ours = Vec::new();
        for (name, kind, value) in &self.flags {
            match kind {
                IgnoredValue | IgnoredBool => {}
                Switch if value == "true" => ours.push((*name, None)),
                Switch => {}
                File if value.is_empty() => {
                    let message = format!("empty string is passed to --{name} option");
                    return Err(Refusal::new(BAD_ARGS, message));
                }
                Value if value.is_empty() && *name != "endpoints" => {}
                _ if *name == "rev" && value == "0" => {}
                Value | Bool | File => ours.push((*name, Some(value.clone()))),
            }
        }
        if !command.asks_members {
            // Offline commands take no heed of where members are.
            ours.retain(|(name, _)| !is_global(name));
        }
        Ok(ours)
    }
}

/// Reads a switch's value (Go strconv, `ParseBool`).
fn truth(name: &str, value: Option<OsString>) -> Result<bool, Fault> {
    let Some(value) = value else { return Ok(true) };
    match value.to_string_lossy().as_ref() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        other => Err(Fault::NotBool(name.to_owned(), other.to_owned())),
    }
}
