//! What was given: by flags, else by variables, else by a file.
//!
//! **Source**: Go 1.26 `flag.FlagSet.Parse`; etcd pkg/flags/flag.go, 3.7.3.

use std::collections::HashMap;
use std::ffi::OsString;

use super::Note;
use super::flags::{self, Flag};
use super::gates::Gates;
use super::url::Url;
use super::value::{Kind, Value, quoted};
use crate::store::lines::Level;

/// Values by flag; a flag that is not there has its default.
#[derive(Debug, Default)]
pub(super) struct Settings {
    given: HashMap<&'static str, Value>,
    /// Common names of clients, for which only the file has words.
    pub(super) client_names: Vec<String>,
}

/// Why a command line ends early.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    Help,
    /// It cannot be read; why.
    Usage(String),
    /// It has a word that is no flag.
    Stray(String),
}

/// Why variables are not taken.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BadVariable {
    /// What one holds cannot be read.
    Value(String),
    /// A flag says something else; the variable's name.
    Shadowed(String),
}

/// Variables whose content is not shown.
const SECRET: &[&str] = &["discovery-user", "discovery-password"];

impl Settings {
    /// Reads a command line, without the program's name.
    ///
    /// # Errors
    ///
    /// See [`Stop`].
    pub(super) fn read_line(&mut self, words: &[OsString]) -> Result<(), Stop> {
        let usage = |text: String| Stop::Usage(text);
        let mut words = words.iter();
        let text = |word: &OsString| {
            let lossy = || usage(format!("argument is no UTF-8: {}", word.to_string_lossy()));
            word.to_str().map(str::to_owned).ok_or_else(lossy)
        };
        while let Some(word) = words.next() {
            let word = text(word)?;
            if word == "--" {
                return match words.next() {
                    Some(stray) => Err(Stop::Stray(text(stray)?)),
                    None => Ok(()),
                };
            }
            let Some(bare) = word.strip_prefix('-').filter(|bare| !bare.is_empty()) else {
                return Err(Stop::Stray(word));
            };
            let bare = bare.strip_prefix('-').unwrap_or(bare);
            if bare.is_empty() || bare.starts_with(['-', '=']) {
                return Err(usage(format!("bad flag syntax: {word}")));
            }
            let (name, value) = bare.split_once('=').map_or((bare, None), |(n, v)| (n, Some(v)));
            let Some(flag) = flags::find(name) else {
                return Err(match name {
                    "help" | "h" => Stop::Help,
                    name => usage(format!("flag provided but not defined: -{name}")),
                });
            };
            let value = match value {
                Some(value) => value.to_owned(),
                None if flag.kind.is_bool() => "true".to_owned(),
                None => match words.next() {
                    Some(next) => text(next)?,
                    None => return Err(usage(format!("flag needs an argument: -{name}"))),
                },
            };
            self.set(flag, &value).map_err(|why| {
                let value = quoted(&value);
                usage(match flag.kind {
                    Kind::Bool => format!("invalid boolean value {value} for -{name}: {why}"),
                    _ => format!("invalid value {value} for flag -{name}: {why}"),
                })
            })?;
        }
        Ok(())
    }

    /// Reads variables: `ETCD_` and the flag's name, for flags that are not given.
    ///
    /// # Errors
    ///
    /// See [`BadVariable`].
    pub(super) fn read_variables(
        &mut self,
        variables: &[(OsString, OsString)],
        notes: &mut Vec<Note>,
    ) -> Result<(), BadVariable> {
        let mut bad = None;
        let mut shadowed = None;
        let mut unknown = Vec::new();
        let mut used: Vec<(&Flag, &str)> = Vec::new();
        for (name, value) in variables {
            let (Some(name), Some(value)) = (name.to_str(), value.to_str()) else { continue };
            if !name.starts_with("ETCD_") || name == "ETCD_UNSUPPORTED_ARCH" {
                continue;
            }
            if name == "ETCD_VERSION" {
                let note = Note::warn("cannot set special environment variable");
                notes.push(note.with("key", name).with("value", value));
                continue;
            }
            match flags::all().find(|flag| variable_of(flag.name) == name) {
                Some(flag) if self.is_given(flag.name) => shadowed = Some(name.to_owned()),
                Some(flag) if !value.is_empty() => used.push((flag, value)),
                // What other programs of etcd read is nobody's mistake.
                _ if name == "ETCD_VERIFY" => {}
                _ => unknown.push(name.to_owned()),
            }
        }
        used.sort_by_key(|(flag, _)| flag.name);
        for (flag, value) in used {
            let name = variable_of(flag.name);
            if let Err(why) = self.set(flag, value) {
                bad = Some(format!("invalid value {} for {name}: {why}", quoted(value)));
                continue;
            }
            let note = Note::new(Level::Info, "recognized and used environment variable");
            let shown = if SECRET.contains(&flag.name) { "(not shown)" } else { value };
            notes.push(note.with("variable-name", &name).with("variable-value", shown));
        }
        for name in unknown {
            // The value may be meant for somebody else.
            let note = Note::warn("unrecognized environment variable");
            notes.push(note.with("environment-variable", &name));
        }
        match (shadowed, bad) {
            (Some(name), _) => Err(BadVariable::Shadowed(name)),
            (None, Some(why)) => Err(BadVariable::Value(why)),
            (None, None) => Ok(()),
        }
    }

    /// Gives a flag a value from a text.
    ///
    /// # Errors
    ///
    /// What is wrong with the value.
    pub(super) fn set(&mut self, flag: &'static Flag, text: &str) -> Result<(), String> {
        let value = flag.kind.read(&self.value(flag.name), text)?;
        self.put(flag.name, value);
        Ok(())
    }

    pub(super) fn put(&mut self, name: &'static str, value: Value) {
        self.given.insert(name, value);
    }

    pub(super) fn is_given(&self, name: &str) -> bool {
        self.given.contains_key(name)
    }

    pub(super) fn value(&self, name: &str) -> Value {
        let default = || flags::find(name).map(|flag| flag.kind.default(flag.default));
        self.given.get(name).cloned().or_else(default).unwrap_or(Value::Ignored)
    }

    pub(super) fn text(&self, name: &str) -> String {
        match self.value(name) {
            Value::Text(text) => text,
            _ => String::new(),
        }
    }

    /// Returns a text, where there is one.
    pub(super) fn some_text(&self, name: &str) -> Option<String> {
        Some(self.text(name)).filter(|text| !text.is_empty())
    }

    pub(super) fn is_on(&self, name: &str) -> bool {
        self.value(name) == Value::Bool(true)
    }

    pub(super) fn uint(&self, name: &str) -> u64 {
        match self.value(name) {
            Value::Uint(number) => number,
            _ => 0,
        }
    }

    /// Returns an integer, or the nanoseconds of a time.
    pub(super) fn int(&self, name: &str) -> i64 {
        match self.value(name) {
            Value::Int(number) | Value::Time(number) => number,
            _ => 0,
        }
    }

    pub(super) fn urls(&self, name: &str) -> Vec<Url> {
        match self.value(name) {
            Value::Urls(urls) => urls,
            _ => Vec::new(),
        }
    }

    /// Returns words without the empty ones.
    pub(super) fn words(&self, name: &str) -> Vec<String> {
        match self.value(name) {
            Value::Words(words) => words.into_iter().filter(|word| !word.is_empty()).collect(),
            _ => Vec::new(),
        }
    }

    pub(super) fn gates(&self) -> Gates {
        match self.value("feature-gates") {
            Value::Gates(gates) => gates,
            _ => Gates::default(),
        }
    }
}

fn variable_of(flag: &str) -> String {
    format!("ETCD_{}", flag.to_ascii_uppercase().replace('-', "_"))
}
