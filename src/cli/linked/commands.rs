//! Their commands: those that are here, and the names of the others.

use std::ffi::OsString;

use super::{BAD_ARGS, Program, Refusal};
use crate::ops::ExitCode;

/// A command of theirs that is here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command {
    /// Its words, which are ours too.
    pub(super) path: &'static [&'static str],
    /// Flags of its own.
    pub(super) flags: &'static [&'static str],
    /// Whether it asks running members.
    pub(super) asks_members: bool,
    arguments: Arguments,
    about: &'static str,
}

#[derive(Debug, PartialEq, Eq)]
enum Arguments {
    /// They are not looked at.
    Ignored,
    /// None, else these words.
    #[cfg(feature = "live")]
    None(&'static str),
    /// One, else these words, and the exit code.
    One(&'static str, u8),
}

const RESTORE: &[&str] = &[
    "data-dir",
    "wal-dir",
    "name",
    "initial-cluster",
    "initial-cluster-token",
    "initial-advertise-peer-urls",
    "initial-memory-map-size",
    "skip-hash-check",
    "bump-revision",
    "mark-compacted",
];

const STATUS: Command = Command {
    path: &["snapshot", "status"],
    flags: &[],
    asks_members: false,
    arguments: Arguments::One("snapshot status requires exactly one argument", BAD_ARGS),
    about: "FILE: show a snapshot's figures",
};

const SNAPSHOT_RESTORE: Command = Command {
    path: &["snapshot", "restore"],
    flags: RESTORE,
    asks_members: false,
    arguments: Arguments::One("snapshot restore requires exactly one argument", BAD_ARGS),
    about: "FILE: restore a snapshot into a new data directory",
};

const DEFRAG: Command = Command {
    path: &["defrag"],
    flags: &["data-dir", "cluster"],
    asks_members: false,
    arguments: Arguments::Ignored,
    about: "--data-dir DIR: pack the database of a stopped member",
};

#[cfg(feature = "live")]
const DEFRAG_LIVE: Command = Command {
    asks_members: true,
    about: "pack the databases of running members, or of a stopped one",
    ..DEFRAG
};

const VERSION: Command = Command {
    path: &["version"],
    flags: &[],
    asks_members: false,
    arguments: Arguments::Ignored,
    about: "print the version",
};

#[cfg(feature = "live")]
const CTL: &[Command] = &[
    Command {
        path: &["alarm", "disarm"],
        flags: &[],
        asks_members: true,
        arguments: Arguments::None("alarm disarm command accepts no arguments"),
        about: "disarm the alarms, where their cause is gone",
    },
    Command {
        path: &["alarm", "list"],
        flags: &[],
        asks_members: true,
        arguments: Arguments::None("alarm list command accepts no arguments"),
        about: "list the alarms",
    },
    Command {
        path: &["compaction"],
        flags: &["physical"],
        asks_members: true,
        arguments: Arguments::One("compaction command needs 1 argument", BAD_ARGS),
        about: "REV: drop history below a revision",
    },
    DEFRAG_LIVE,
    Command {
        path: &["endpoint", "hashkv"],
        flags: &["cluster", "rev"],
        asks_members: true,
        arguments: Arguments::Ignored,
        about: "show each endpoint's hash of all records",
    },
    Command {
        path: &["endpoint", "health"],
        flags: &["cluster"],
        asks_members: true,
        arguments: Arguments::Ignored,
        about: "read through each endpoint",
    },
    Command {
        path: &["endpoint", "status"],
        flags: &["cluster"],
        asks_members: true,
        arguments: Arguments::Ignored,
        about: "show what each endpoint says of itself",
    },
    Command {
        path: &["member", "list"],
        flags: &["consistency"],
        asks_members: true,
        arguments: Arguments::Ignored,
        about: "list the members",
    },
    Command {
        path: &["snapshot", "save"],
        flags: &[],
        asks_members: true,
        arguments: Arguments::One("snapshot save expects one argument <filename>", BAD_ARGS),
        about: "FILE: save a snapshot of a running member",
    },
    SNAPSHOT_RESTORE,
    STATUS,
    VERSION,
];
#[cfg(not(feature = "live"))]
const CTL: &[Command] = &[DEFRAG, SNAPSHOT_RESTORE, STATUS, VERSION];

const UTL: &[Command] = &[
    DEFRAG,
    Command {
        path: &["hashkv"],
        flags: &["rev"],
        asks_members: false,
        arguments: Arguments::One("accepts 1 arg(s)", 1),
        about: "FILE: print the hash of all records",
    },
    SNAPSHOT_RESTORE,
    STATUS,
    VERSION,
];

/// Words of etcdctl that begin a command, those that are here included.
const CTL_NAMES: &[&str] = &[
    "alarm",
    "auth",
    "check",
    "compaction",
    "completion",
    "defrag",
    "del",
    "downgrade",
    "elect",
    "endpoint",
    "get",
    "help",
    "lease",
    "lock",
    "make-mirror",
    "member",
    "move-leader",
    "options",
    "put",
    "role",
    "snapshot",
    "txn",
    "user",
    "version",
    "watch",
];
const UTL_NAMES: &[&str] =
    &["backup", "completion", "defrag", "hashkv", "help", "migrate", "snapshot", "version"];

/// Words that may follow.
const SECOND: &[(&str, &[&str])] = &[
    ("alarm", &["disarm", "list"]),
    ("endpoint", &["hashkv", "health", "status"]),
    ("member", &["add", "list", "promote", "remove", "update"]),
    ("snapshot", &["restore", "save", "status"]),
];

/// What a command line names.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A help text.
    Help(String),
    /// A command, and its arguments.
    Command(&'static Command, Vec<OsString>),
}

/// Finds the command that words name; a beginning does where only one name has it.
pub(super) fn find(program: Program, words: &[(OsString, bool)]) -> Result<Found, Refusal> {
    let is_ctl = program == Program::Etcdctl;
    let (names, commands) = if is_ctl { (CTL_NAMES, CTL) } else { (UTL_NAMES, UTL) };
    // What stands after -- is an argument, not a command.
    let leading = words.iter().take_while(|(_, is_late)| !is_late);
    let leading: Vec<&str> = leading.map_while(|(word, _)| word.to_str()).collect();
    let (first, rest) = match leading.split_first() {
        None => return Ok(Found::Help(help(program, &[]))),
        Some((first, rest)) => (complete(names, first), rest),
    };
    let Some(first) = first else {
        let word = leading.first().copied().unwrap_or_default();
        return Err(unknown(program, "", word));
    };
    if first == "help" || (first == "options" && is_ctl) {
        let path: Vec<&str> =
            rest.first().map(|word| complete(names, word).unwrap_or(word)).into_iter().collect();
        return Ok(Found::Help(help(program, &path)));
    }
    let seconds = SECOND.iter().find(|(group, _)| *group == first).map(|(_, names)| *names);
    let (path, used) = match (seconds, rest.first()) {
        (None, _) => (vec![first], 1),
        (Some(_), None) => return Ok(Found::Help(help(program, &[first]))),
        (Some(names), Some(word)) => match complete(names, word) {
            Some(second) => (vec![first, second], 2),
            None => return Err(unknown(program, first, word)),
        },
    };
    let arguments = || words.iter().skip(used).map(|(word, _)| word.clone()).collect();
    match commands.iter().find(|command| command.path == path) {
        Some(command) => Ok(Found::Command(command, arguments())),
        None => Err(elsewhere(program, &path.join(" "))),
    }
}

fn complete<'a>(names: &[&'a str], word: &str) -> Option<&'a str> {
    if let Some(name) = names.iter().find(|name| **name == word) {
        return Some(name);
    }
    let mut matching = names.iter().filter(|name| !word.is_empty() && name.starts_with(word));
    match (matching.next(), matching.next()) {
        (Some(name), None) => Some(name),
        _ => None,
    }
}

fn unknown(program: Program, group: &str, word: &str) -> Refusal {
    let name = program.name();
    let under = if group.is_empty() { name.to_owned() } else { format!("{name} {group}") };
    let code = ExitCode::Failed.number();
    let mut refusal = Refusal::new(code, format!("unknown command {word:?} for {under:?}"));
    refusal.hint = Some(format!("{name} --help"));
    refusal
}

pub(super) fn elsewhere(program: Program, command: &str) -> Refusal {
    let name = program.name();
    let message = format!(
        "etcdkit, which is linked as {name} here, has no {command}: run the real {name} for it"
    );
    Refusal::new(ExitCode::Failed.number(), message)
}

/// Writes the help of a program, or of what is below a group of its commands.
pub(super) fn help(program: Program, path: &[&str]) -> String {
    let name = program.name();
    let commands = if program == Program::Etcdctl { CTL } else { UTL };
    let mut text = format!(
        "etcdkit {}, linked as {name}: the commands of {name} that it has\n\nUsage:\n  {name} \
         [command] [flags]\n\nAvailable Commands:\n",
        env!("CARGO_PKG_VERSION")
    );
    let below = commands.iter().filter(|command| command.path.starts_with(path));
    let mut flags: Vec<&str> = Vec::new();
    for command in below {
        text += &format!("  {:<17} {}\n", command.path.join(" "), command.about);
        flags.extend(command.flags.iter().filter(|flag| !flags.contains(flag)).collect::<Vec<_>>());
    }
    if !path.is_empty() && !flags.is_empty() {
        text += &format!("\nFlags: --{}\n", flags.join(" --"));
    }
    let globals = match program {
        Program::Etcdctl => {
            "--endpoints --cacert --cert --key --user --password --dial-timeout --command-timeout \
             --insecure-transport --insecure-skip-tls-verify --hex -w simple|table|json|fields"
        }
        _ => "-w simple|table|json|fields",
    };
    text + &format!("\nGlobal Flags: {globals}\n\netcdkit --help shows what else it does\n")
}

impl Command {
    /// Checks how many arguments there are.
    pub(super) fn check_arguments(&self, arguments: &[OsString]) -> Result<(), Refusal> {
        match self.arguments {
            #[cfg(feature = "live")]
            Arguments::None(words) if !arguments.is_empty() => Err(Refusal::new(BAD_ARGS, words)),
            Arguments::One(words, code) if arguments.len() != 1 => {
                let count = format!("{words}, received {}", arguments.len());
                Err(Refusal::new(code, if code == BAD_ARGS { words.to_owned() } else { count }))
            }
            _ => Ok(()),
        }
    }

    /// Tells whether arguments mean something to it.
    pub(super) fn takes_arguments(&self) -> bool {
        matches!(self.arguments, Arguments::One(..))
    }
}
