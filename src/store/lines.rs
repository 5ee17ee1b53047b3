//! Lines of the program's log, as etcd writes them.
//!
//! One line an event, written at once and whole, JSON or for a console. Values, keys, tokens and
//! passwords are never in a line.
//!
//! - A line that cannot be written is lost; nothing else happens.
//! - Of one message at one level the first 100 of a second are written, then each hundredth.
//!
//! **Shape** (JSON): `level`, `ts` (UTC, microseconds), `caller` (folder/file:line), `msg`, then
//! the fields in the order given. Console: the four with tabs between, then the fields as JSON, if
//! any.
//!
//! **Source**: etcd client/pkg/logutil/zap.go, 3.7.3; zap 1.27.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write as _};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// For whoever looks for a fault.
    Debug,
    /// What happens.
    Info,
    /// What should not happen, and is survived.
    Warn,
    /// What failed.
    Error,
    /// What etcd would panic at.
    Panic,
    /// What ends the program.
    Fatal,
}

impl Level {
    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
            Self::Panic => "panic",
            Self::Fatal => "fatal",
        }
    }

    /// Reads a name, small or capital; an empty one is [`Level::Info`].
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Some(match name {
            "debug" | "DEBUG" => Self::Debug,
            "" | "info" | "INFO" => Self::Info,
            "warn" | "WARN" => Self::Warn,
            "error" | "ERROR" => Self::Error,
            "dpanic" | "DPANIC" | "panic" | "PANIC" => Self::Panic,
            "fatal" | "FATAL" => Self::Fatal,
            _ => return None,
        })
    }
}

/// How a line looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// One JSON object.
    #[default]
    Json,
    /// Words with tabs between.
    Console,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Standard error.
    Stderr,
    /// Standard output.
    Stdout,
    /// The end of a file, which is made where it is not there.
    File(PathBuf),
}

/// What can stand in a field.
pub trait Field {
    /// Returns it as JSON.
    fn to_json(&self) -> Value;
}

/// A log; clones write to the same place.
#[derive(Clone, Debug, Default)]
pub struct Log {
    inner: Option<Arc<Inner>>,
}

/// Lines that a log kept for a test.
#[derive(Clone, Debug, Default)]
pub struct Kept(Arc<Mutex<Vec<Value>>>);

#[derive(Debug)]
struct Inner {
    least: Level,
    form: Form,
    sinks: Mutex<Sinks>,
}

#[derive(Debug, Default)]
struct Sinks {
    is_stderr: bool,
    is_stdout: bool,
    files: Vec<File>,
    kept: Option<Kept>,
    seen: Seen,
    line: String,
}

impl Log {
    /// Returns a log that keeps nothing.
    #[must_use]
    pub fn silent() -> Self {
        Self::default()
    }

    /// Opens a log that writes lines of `least` and above to all outputs.
    ///
    /// # Errors
    ///
    /// The file that cannot be opened, and why.
    pub fn open(
        least: Level,
        form: Form,
        outputs: &[Output],
    ) -> Result<Self, (PathBuf, io::Error)> {
        let mut sinks = Sinks::default();
        for output in outputs {
            match output {
                Output::Stderr => sinks.is_stderr = true,
                Output::Stdout => sinks.is_stdout = true,
                Output::File(path) => {
                    let file = OpenOptions::new().append(true).create(true).open(path);
                    sinks.files.push(file.map_err(|error| (path.clone(), error))?);
                }
            }
        }
        Ok(Self::of(least, form, sinks))
    }

    /// Returns a log for tests, and the lines that it keeps.
    #[must_use]
    pub fn kept() -> (Self, Kept) {
        let kept = Kept::default();
        let sinks = Sinks { kept: Some(kept.clone()), ..Sinks::default() };
        (Self::of(Level::Debug, Form::Json, sinks), kept)
    }

    fn of(least: Level, form: Form, sinks: Sinks) -> Self {
        Self { inner: Some(Arc::new(Inner { least, form, sinks: Mutex::new(sinks) })) }
    }

    /// Tells whether lines of a level are written, for fields that cost something.
    #[must_use]
    pub fn writes(&self, level: Level) -> bool {
        self.inner.as_ref().is_some_and(|inner| level >= inner.least)
    }

    /// Writes a line of [`Level::Debug`].
    #[track_caller]
    pub fn debug(&self, message: &str, fields: &[(&str, &dyn Field)]) {
        self.line(Level::Debug, message, fields);
    }

    /// Writes a line of [`Level::Info`].
    #[track_caller]
    pub fn info(&self, message: &str, fields: &[(&str, &dyn Field)]) {
        self.line(Level::Info, message, fields);
    }

    /// Writes a line of [`Level::Warn`].
    #[track_caller]
    pub fn warn(&self, message: &str, fields: &[(&str, &dyn Field)]) {
        self.line(Level::Warn, message, fields);
    }

    /// Writes a line of [`Level::Error`].
    #[track_caller]
    pub fn error(&self, message: &str, fields: &[(&str, &dyn Field)]) {
        self.line(Level::Error, message, fields);
    }

    /// Writes a line of [`Level::Fatal`]; to end is the caller's affair.
    #[track_caller]
    pub fn fatal(&self, message: &str, fields: &[(&str, &dyn Field)]) {
        self.line(Level::Fatal, message, fields);
    }

    /// Writes a line of any level.
    #[track_caller]
    pub fn line(&self, level: Level, message: &str, fields: &[(&str, &dyn Field)]) {
        let place = Location::caller();
        if let Some(inner) = self.inner.as_ref().filter(|inner| level >= inner.least) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            inner.write(now, level, place, message, fields);
        }
    }
}

impl Kept {
    /// Takes the lines that were written since the last time.
    #[must_use]
    pub fn take(&self) -> Vec<Value> {
        std::mem::take(&mut *locked(&self.0))
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    fn write(
        &self,
        now: Duration,
        level: Level,
        place: &Location<'_>,
        message: &str,
        fields: &[(&str, &dyn Field)],
    ) {
        let mut sinks = locked(&self.sinks);
        if let Some(kept) = &sinks.kept {
            let mut line = serde_json::Map::new();
            line.insert("level".into(), level.name().into());
            line.insert("msg".into(), message.into());
            line.extend(fields.iter().map(|(key, value)| ((*key).to_owned(), value.to_json())));
            locked(&kept.0).push(Value::Object(line));
            return;
        }
        if !sinks.seen.admits(now.as_secs(), level, message) {
            return;
        }
        let mut line = std::mem::take(&mut sinks.line);
        line.clear();
        let caller = format!("{}:{}", short(place.file()), place.line());
        match self.form {
            Form::Json => {
                let head = [
                    ("level", Value::from(level.name())),
                    ("ts", timestamp(now).into()),
                    ("caller", caller.into()),
                    ("msg", message.into()),
                ];
                let head = head.iter().map(|(key, value)| (*key, value as &dyn Field));
                push_object(&mut line, head.chain(fields.iter().copied()));
            }
            Form::Console => {
                let head = [&timestamp(now), level.name(), &caller, message];
                line.push_str(&head.join("\t").replace('\n', "\\n"));
                if !fields.is_empty() {
                    line.push('\t');
                    push_object(&mut line, fields.iter().copied());
                }
            }
        }
        line.push('\n');
        // Who cannot be told where to write cannot be told that it failed.
        if sinks.is_stderr {
            let _ = io::stderr().lock().write_all(line.as_bytes());
        }
        if sinks.is_stdout {
            let mut out = io::stdout().lock();
            let _ = out.write_all(line.as_bytes()).and_then(|()| out.flush());
        }
        for file in &mut sinks.files {
            let _ = file.write_all(line.as_bytes());
        }
        sinks.line = line;
    }
}

fn push_object<'a>(line: &mut String, fields: impl Iterator<Item = (&'a str, &'a dyn Field)>) {
    line.push('{');
    for (at, (key, value)) in fields.enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(line, "{comma}{}:{}", Value::from(key), value.to_json());
    }
    line.push('}');
}

/// Returns the last folder and the name of a file, as zap shows them.
fn short(path: &str) -> &str {
    let mut parts = path.rmatch_indices(['/', '\\']);
    parts.next();
    let cut = parts.next().map_or(0, |(at, _)| at.saturating_add(1));
    path.get(cut..).unwrap_or(path)
}

fn timestamp(now: Duration) -> String {
    let second = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let time = jiff::Timestamp::from_second(second).unwrap_or(jiff::Timestamp::MAX);
    let mut text = time.to_string();
    if text.pop() == Some('Z') {
        let _ = write!(text, ".{:06}Z", now.subsec_micros());
    }
    text
}

/// How often messages came in this second. Messages may share a count, which costs lines of a
/// storm and no memory.
#[derive(Debug)]
struct Seen {
    second: u64,
    counts: Vec<u64>,
}

const SEEN_SLOTS: u64 = 1024;
const FIRST: u64 = 100;

impl Default for Seen {
    fn default() -> Self {
        Self { second: 0, counts: vec![0; usize::try_from(SEEN_SLOTS).unwrap_or(0)] }
    }
}

impl Seen {
    fn admits(&mut self, second: u64, level: Level, message: &str) -> bool {
        if self.second != second {
            self.second = second;
            self.counts.fill(0);
        }
        let mut hasher = DefaultHasher::new();
        (level, message).hash(&mut hasher);
        let slot = usize::try_from(hasher.finish() % SEEN_SLOTS).unwrap_or(0);
        let Some(count) = self.counts.get_mut(slot) else { return true };
        *count = count.saturating_add(1);
        *count <= FIRST || count.is_multiple_of(FIRST)
    }
}

macro_rules! fields {
    ($($kind:ty),*) => {
        $(impl Field for $kind {
            fn to_json(&self) -> Value {
                Value::from(self.clone())
            }
        })*
    };
}

fields!(bool, i32, u32, i64, u64, usize, f64, String, &str, Value, Vec<String>, &[String]);

impl Field for Path {
    fn to_json(&self) -> Value {
        self.to_string_lossy().into()
    }
}

impl Field for PathBuf {
    fn to_json(&self) -> Value {
        self.as_path().to_json()
    }
}

impl Field for &Path {
    fn to_json(&self) -> Value {
        (*self).to_json()
    }
}

/// As Go writes it: `1.5s`, `300ms`.
impl Field for Duration {
    fn to_json(&self) -> Value {
        go_duration(*self).into()
    }
}

impl<T: Field> Field for Option<T> {
    fn to_json(&self) -> Value {
        self.as_ref().map_or(Value::Null, Field::to_json)
    }
}

/// Writes a duration as Go does: `0s`, `300ms`, `1m0s`, `2h0m0s`, `1.5s`.
#[must_use]
pub fn go_duration(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    if nanos == 0 {
        return "0s".into();
    }
    if nanos < 1_000_000_000 {
        let (unit, name) = match nanos {
            0..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "\u{b5}s"),
            _ => (1_000_000, "ms"),
        };
        return format!("{}{name}", decimal(nanos, unit));
    }
    let second = 1_000_000_000;
    let (minutes, rest) = (nanos / (60 * second), nanos % (60 * second));
    let (hours, minutes) = (minutes / 60, minutes % 60);
    let seconds = decimal(rest, second);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, _) => format!("{minutes}m{seconds}s"),
        _ => format!("{hours}h{minutes}m{seconds}s"),
    }
}

/// Writes `count / unit`, `unit` a power of ten, without zeros at the end.
fn decimal(count: u128, unit: u128) -> String {
    let (whole, part) = (count / unit, count % unit);
    if part == 0 {
        return whole.to_string();
    }
    let width = unit.checked_ilog10().and_then(|digits| usize::try_from(digits).ok()).unwrap_or(0);
    let part = format!("{part:0width$}");
    format!("{whole}.{}", part.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_what_zap_writes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        for form in [Form::Json, Form::Console] {
            let outputs = [Output::File(path.clone())];
            let log = Log::open(Level::Info, form, &outputs).unwrap();
            log.debug("not there", &[]);
            let urls = vec!["http://a:1".to_owned()];
            log.warn("a \"b\"\n", &[("urls", &urls), ("took", &Duration::from_millis(1500))]);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let [json, console] = text.lines().collect::<Vec<_>>().try_into().unwrap();
        let line: Value = serde_json::from_str(json).unwrap();
        let keys: Vec<&String> = line.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["level", "ts", "caller", "msg", "urls", "took"]);
        assert_eq!((&line["level"], &line["msg"]), (&"warn".into(), &"a \"b\"\n".into()));
        assert_eq!((&line["urls"][0], &line["took"]), (&"http://a:1".into(), &"1.5s".into()));
        assert!(line["caller"].as_str().unwrap().starts_with("store/lines.rs:"), "{line}");
        let time = line["ts"].as_str().unwrap();
        assert!(time.parse::<jiff::Timestamp>().is_ok() && time.len() == 27, "{time}");
        let parts: Vec<&str> = console.split('\t').collect();
        assert_eq!(parts.get(1), Some(&"warn"));
        assert_eq!(parts.last(), Some(&"{\"urls\":[\"http://a:1\"],\"took\":\"1.5s\"}"));
    }

    #[test]
    fn a_storm_is_thinned() {
        let mut seen = Seen::default();
        let written = (0..1000).filter(|_| seen.admits(1, Level::Info, "storm")).count();
        assert_eq!(written, 109);
        assert!(seen.admits(1, Level::Warn, "storm") && seen.admits(2, Level::Info, "storm"));
    }

    #[test]
    fn what_a_test_keeps_has_no_times() {
        let (log, kept) = Log::kept();
        log.clone().info("started", &[("count", &3_u64)]);
        let line = serde_json::json!({"level": "info", "msg": "started", "count": 3});
        assert_eq!((kept.take(), kept.take()), (vec![line], vec![]));
        assert!(!Log::silent().writes(Level::Fatal) && log.writes(Level::Debug));
    }

    #[test]
    fn durations_are_gos() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_500, "1.5\u{b5}s"),
            (300_000_000, "300ms"),
            (1_010_000_000, "1.01s"),
            (60_000_000_000, "1m0s"),
            (7_200_000_000_000, "2h0m0s"),
            (5_400_500_000_000, "1h30m0.5s"),
        ] {
            assert_eq!(go_duration(Duration::from_nanos(nanos)), text);
        }
    }
}
