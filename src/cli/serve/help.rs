//! What the server says of itself.

use std::fmt::Write as _;
use std::path::Path;

use super::flags::{Effect, Flag, GROUPS};
use super::value::Kind;

/// Returns what follows a flag that cannot be read, with the name that this was called by.
pub(super) fn usage() -> String {
    let called = std::env::args_os().next();
    let is_etcd = called.is_some_and(|path| Path::new(&path).file_name() == Some("etcd".as_ref()));
    if is_etcd { USAGE.to_owned() } else { USAGE.replace("  etcd ", "  etcdkit serve ") }
}

const USAGE: &str = "\
Usage:

  etcd [flags]
    Serve etcd's API, as one member.

  etcd --version
    Print the version of etcd that is followed.

  etcd -h | --help
    Print all flags.

  etcd --config-file FILE
    Take all settings from a YAML file. Times in it are whole nanoseconds.

";

/// Returns the help: every flag, with what it is where nobody gives it.
pub(super) fn text() -> String {
    let mut text = String::new();
    for group in GROUPS {
        let _ = writeln!(text, "\n{}:", group.heading);
        for flag in group.flags {
            let _ =
                writeln!(text, "  --{} '{}'\n    {}", flag.name, shown_default(flag), about(flag));
        }
    }
    text
}

fn shown_default(flag: &Flag) -> &'static str {
    match (flag.kind, flag.default, flag.name) {
        (_, "", "data-dir") => "${name}.etcd",
        (Kind::Time, "", _) => "0s",
        (_, default, _) => default,
    }
}

fn about(flag: &Flag) -> String {
    match flag.effect {
        Effect::Acts => flag.about.to_owned(),
        Effect::None => format!("No effect. {}", flag.about),
        Effect::Warns(why) => format!("No effect: {why}. {}", flag.about),
        Effect::Refused(why) => format!("Refused: {why}. {}", flag.about),
        Effect::Was(now) => format!("As --{now}."),
        Effect::WasGate(gate) => format!("As --feature-gates={gate}."),
    }
}
