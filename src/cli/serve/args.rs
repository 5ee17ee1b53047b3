//! The flags as clap knows them: for completions, manual pages, and a command line that begins
//! with flags of every command.

use std::ffi::OsString;

use clap::builder::OsStringValueParser;
use clap::{Arg, ArgMatches, Command, FromArgMatches};

use super::flags::{Effect, Flag, GROUPS};
use super::value::Kind;
use crate::ops::ExitCode;

/// The command line of a server, as clap read it.
#[derive(Debug)]
pub(in crate::cli) struct Args(Vec<OsString>);

impl Args {
    /// Serves.
    pub(in crate::cli) fn run(&self) -> ExitCode {
        match super::run(&self.0) {
            0 => ExitCode::Ok,
            2 => ExitCode::Usage,
            _ => ExitCode::Failed,
        }
    }
}

impl clap::Args for Args {
    fn augment_args(command: Command) -> Command {
        let mut command = command;
        for group in GROUPS {
            for flag in group.flags {
                let mut arg = Arg::new(flag.name)
                    .long(flag.name)
                    .value_name(value_name(flag.kind))
                    .value_parser(OsStringValueParser::new())
                    .help(help(flag))
                    .help_heading(group.heading)
                    .hide(flag.effect != Effect::Acts)
                    .overrides_with(flag.name);
                if flag.kind == Kind::Bool {
                    arg = arg.num_args(0..=1).require_equals(true).default_missing_value("true");
                }
                command = command.arg(arg);
            }
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Args {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut words = Vec::new();
        for flag in GROUPS.iter().flat_map(|group| group.flags) {
            if let Some(value) = matches.get_one::<OsString>(flag.name) {
                let mut word = OsString::from(format!("--{}=", flag.name));
                word.push(value);
                words.push(word);
            }
        }
        Ok(Self(words))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn value_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "BOOL",
        Kind::Uint | Kind::Uint32 | Kind::Int => "N",
        Kind::Time => "DURATION",
        Kind::Urls => "URLS",
        Kind::Names | Kind::List | Kind::Origins => "NAMES",
        Kind::Gates => "GATES",
        Kind::Text | Kind::OneOf(_) | Kind::AnyOf(_) | Kind::Ignored => "VALUE",
    }
}

fn help(flag: &Flag) -> String {
    let about = if flag.about.is_empty() { "of older etcds" } else { flag.about };
    let about = about.trim_end_matches('.');
    match flag.default {
        "" => about.to_owned(),
        default => format!("{about} [default: {default}]"),
    }
}
