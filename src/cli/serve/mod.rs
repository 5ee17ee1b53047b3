//! The program as a server: etcd's flags in, a store on the network out.
//!
//! [`parse`] is pure: words, variables and a way to read a file in, a [`Config`] or a [`Refusal`]
//! out. What etcd refuses is refused with its words and its exit code: 2 and the usage for a flag
//! that cannot be read, else 1 and a line of the log.
//!
//! 1. Flags win over variables, and a flag with a variable that is set too is refused.
//! 2. A configuration file wins over both: they are read, and only what is etcdkit's own counts.
//! 3. Whatever is checked without the disk or the network is checked here, before either is
//!    touched.
//!
//! **Source**: etcd server/etcdmain and server/embed, 3.5.35, 3.6.16, 3.7.3.

mod args;
mod check;
mod config;
mod directory;
mod file;
mod flags;
mod gates;
mod help;
mod options;
mod run;
mod settings;
mod signals;
#[cfg(test)]
mod tests;
mod url;
mod value;

use std::ffi::OsString;

pub(super) use args::Args;
pub(crate) use config::{Config, LogSettings};
pub(super) use run::run;
use settings::{BadVariable, Settings, Stop};

use crate::store::Compat;
use crate::store::lines::{Field, Level, Log};

/// What a command line asks for.
#[derive(Debug)]
pub(crate) enum Asked {
    Serve(Box<Config>),
    Help,
    /// The version of this etcd.
    Version(Option<Compat>),
}

/// Why nothing is served.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) text: String,
    pub(crate) code: u8,
    pub(crate) told: Told,
    /// Where lines go, as far as that is known.
    pub(crate) log: LogSettings,
    /// What is to be logged before.
    pub(crate) notes: Vec<Note>,
}

/// How a refusal is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// As it stands, with the usage after it.
    Usage,
    /// As it stands.
    Plain,
    /// As the error of a line with this message.
    Line(Level, &'static str),
}

/// A line for the log, which is opened later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Note {
    pub(crate) level: Level,
    pub(crate) message: String,
    pub(crate) fields: Vec<(&'static str, String)>,
}

/// Reads a file; the error is etcd's words.
pub(crate) type ReadFile<'a> = &'a dyn Fn(&str) -> Result<Vec<u8>, String>;

const BAD_FLAGS: Told = Told::Line(Level::Warn, "failed to verify flags");
const BAD_START: Told = Told::Line(Level::Fatal, "failed to start");
const SHADOWED: Told = Told::Line(
    Level::Fatal,
    "conflicting environment variable is shadowed by corresponding command-line flag (either unset \
     environment variable or disable flag))",
);

impl Refusal {
    fn new(told: Told, code: u8, text: impl Into<String>) -> Self {
        let (log, notes) = (LogSettings::default(), Vec::new());
        Self { text: text.into(), code, told, log, notes }
    }

    fn flags(text: impl Into<String>) -> Self {
        Self::new(BAD_FLAGS, 1, text)
    }

    fn start(text: impl Into<String>) -> Self {
        Self::new(BAD_START, 1, text)
    }

    /// Writes it to the log, or says what is to be printed instead.
    pub(crate) fn tell(&self, log: &Log) -> Option<String> {
        for note in &self.notes {
            note.write(log);
        }
        match self.told {
            Told::Usage => Some(format!("{}\n{}", self.text, help::usage())),
            Told::Plain => Some(format!("{}\n", self.text)),
            Told::Line(level, message) => {
                let key = if self.told == SHADOWED { "environment-variable" } else { "error" };
                log.line(level, message, &[(key, &self.text)]);
                None
            }
        }
    }
}

impl Note {
    fn new(level: Level, message: impl Into<String>) -> Self {
        Self { level, message: message.into(), fields: Vec::new() }
    }

    fn warn(message: impl Into<String>) -> Self {
        Self::new(Level::Warn, message)
    }

    fn with(mut self, key: &'static str, value: &str) -> Self {
        self.fields.push((key, value.to_owned()));
        self
    }

    /// Writes it to the log.
    pub(crate) fn write(&self, log: &Log) {
        let fields: Vec<(&str, &dyn Field)> =
            self.fields.iter().map(|(key, value)| (*key, value as &dyn Field)).collect();
        log.line(self.level, &self.message, &fields);
    }
}

/// Reads what a server is told.
///
/// # Errors
///
/// See [`Refusal`].
pub(crate) fn parse(
    words: &[OsString],
    variables: &[(OsString, OsString)],
    read_file: ReadFile<'_>,
) -> Result<Asked, Box<Refusal>> {
    let mut settings = Settings::default();
    match settings.read_line(words) {
        Ok(()) => {}
        Err(Stop::Help) => return Ok(Asked::Help),
        Err(Stop::Usage(text)) => return Err(Refusal::new(Told::Usage, 2, text).into()),
        Err(Stop::Stray(word)) => {
            let word = value::quoted(&word);
            return Err(Refusal::flags(format!("{word} is not a valid flag")).into());
        }
    }
    if settings.is_on("version") {
        let compat = config::compat_of(&settings.text("compat"));
        return Ok(Asked::Version(compat));
    }
    let mut notes = Vec::new();
    let variable = || {
        let (_, value) = variables.iter().find(|(name, _)| name == "ETCD_CONFIG_FILE")?;
        value.to_str().filter(|path| !path.is_empty()).map(str::to_owned)
    };
    let path = settings.some_text("config-file").or_else(variable);
    let refused = |mut refusal: Box<Refusal>, mut notes: Vec<Note>| {
        notes.append(&mut refusal.notes);
        refusal.notes = notes;
        refusal
    };
    if let Some(path) = &path {
        let ours = |name: &'static str| {
            Some((name, settings.is_given(name).then(|| settings.value(name))?))
        };
        let ours: Vec<_> = ["compat", "read-only"].into_iter().filter_map(ours).collect();
        let text = read_file(path).map_err(Refusal::flags)?;
        settings =
            file::read(&text, &mut notes).map_err(|refusal| refused(refusal, notes.clone()))?;
        for (name, value) in ours {
            settings.put(name, value);
        }
        let message = "loaded server configuration, other configuration command line flags and \
                       environment variables will be ignored if provided";
        notes.push(Note::new(Level::Info, message).with("path", path));
    } else if let Err(bad) = settings.read_variables(variables, &mut notes) {
        let refusal = match bad {
            BadVariable::Value(text) => Refusal::flags(text),
            BadVariable::Shadowed(name) => Refusal::new(SHADOWED, 1, name),
        };
        return Err(refused(refusal.into(), notes));
    }
    match check::settle(settings, path.is_some(), &mut notes) {
        Ok(mut config) => {
            config.notes = notes;
            Ok(Asked::Serve(config))
        }
        Err(refusal) => Err(refused(refusal, notes)),
    }
}
