//! The four output formats, errors and findings as people and programs read them.

use std::fmt::Write as _;
#[cfg(feature = "live")]
use std::io::IsTerminal;
use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::{Table, presets::ASCII_FULL_CONDENSED};
use serde_json::{Value, json};

#[cfg(feature = "live")]
use super::etcdctl::Printed;
use crate::format::finding::{Finding, Findings, Severity, bucket_text, bytes_text};
use crate::ops::Error;

/// Output format, as `-w` of etcdctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum WriteOut {
    /// One line a row, for people and simple scripts.
    Simple,
    /// A table.
    Table,
    /// One JSON value.
    Json,
    /// One quoted name and value a line.
    Fields,
}

/// Spells what a terminal would obey, and what turns a line around: names, messages and values are
/// a server's, or anybody's. Everything that people read goes through here, a text in a table or in
/// a line before it gets there.
pub(super) fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
                push(&mut shown, c);
            }
            c if c.is_control() => push(&mut shown, c),
            c => shown.push(c),
        }
    }
    shown
}

/// Spells one character: `\x1b`, `\u202e`.
pub(super) fn push(text: &mut String, c: char) {
    let number = u32::from(c);
    // Writing into a string cannot fail.
    let _ = match number {
        0..0x80 => write!(text, "\\x{number:02x}"),
        _ => write!(text, "\\u{number:04x}"),
    };
}

/// The same of a sentence: a line break in it begins no line that could be taken for one of ours.
fn folded(text: &str) -> String {
    text.split('\n').map(|line| shown(line.trim_start())).collect::<Vec<_>>().join("\n      ")
}

/// Prints a line to stderr; nobody is left to tell when that fails.
pub(super) fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{}", shown(line));
}

/// Prints a JSON value on one line.
pub(super) fn print_json(value: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{value}")?;
    out.flush()
}

/// Prints a JSON object as etcdctl's `fields`: `"name" : value`, nested names joined by a dot.
pub(super) fn print_fields(value: &Value) -> io::Result<()> {
    let mut out = io::stdout().lock();
    fields(&mut out, "", value)?;
    out.flush()
}

/// Prints a report on stderr, where stdout holds something else; nobody is left to tell when that
/// fails.
#[cfg(feature = "live")]
pub(super) fn report_aside(value: &Value, lines: &[String], write_out: WriteOut) {
    let mut err = io::stderr().lock();
    let _ = match write_out {
        WriteOut::Json => writeln!(err, "{value}"),
        WriteOut::Fields => fields(&mut err, "", value),
        WriteOut::Simple | WriteOut::Table => {
            lines.iter().try_for_each(|line| writeln!(err, "{}", shown(line)))
        }
    };
}

fn fields(out: &mut impl Write, name: &str, value: &Value) -> io::Result<()> {
    let below = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") };
    match value {
        Value::Object(map) => {
            map.iter().try_for_each(|(key, value)| fields(out, &below(key), value))
        }
        Value::Array(items) => items
            .iter()
            .enumerate()
            .try_for_each(|(index, value)| fields(out, &below(&index.to_string()), value)),
        other => writeln!(out, "\"{name}\" : {other}"),
    }
}

/// Returns the columns that a line may have: what `COLUMNS` says, else those of the terminal;
/// `None` where the output goes elsewhere.
#[cfg(feature = "live")]
pub(super) fn width() -> Option<u16> {
    let said = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let out = io::stdout();
    let terminal = || out.is_terminal().then(|| rustix::termios::tcgetwinsize(&out).ok()).flatten();
    let width = said.or_else(|| terminal().map(|size| size.ws_col));
    width.filter(|width| *width > 0)
}

/// Returns the lines of a table, whose texts went through [`shown`].
pub(super) fn drawn(table: &Table) -> Vec<String> {
    table.to_string().lines().map(str::to_owned).collect()
}

/// Makes an empty table.
pub(super) fn table() -> Table {
    let mut table = Table::new();
    table.load_style(ASCII_FULL_CONDENSED);
    table
}

/// Prints what is meant for stdout and stderr, errors first; nobody is left to tell when those
/// cannot be written.
#[cfg(feature = "live")]
pub(super) fn print(printed: &Printed) -> io::Result<()> {
    let _ = io::stderr().lock().write_all(printed.stderr.as_bytes());
    print_text(&printed.stdout)
}

/// Prints the report of a command that says nothing on stdout where it is etcdutl's.
pub(super) fn print_aside(lines: &[String]) {
    let mut err = io::stderr().lock();
    for line in lines {
        let _ = writeln!(err, "{}", shown(line));
    }
}

/// Prints a text to stdout.
pub(super) fn print_text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints lines to stdout.
pub(super) fn print_lines(lines: &[String]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    lines.iter().try_for_each(|line| writeln!(out, "{}", shown(line)))?;
    out.flush()
}

/// Prints an error to stderr; nobody is left to tell when that fails.
pub(super) fn print_error(error: &Error, write_out: WriteOut) {
    let mut err = io::stderr().lock();
    if write_out == WriteOut::Json {
        let _ = writeln!(err, "{}", error_json(error));
        return;
    }
    let _ = writeln!(err, "error: {}", folded(&error.message));
    print_below(&mut err, error);
}

/// Prints what stands below an error's message.
fn print_below(err: &mut impl Write, error: &Error) {
    for line in error.findings.iter().take(20).flat_map(finding_lines) {
        let _ = writeln!(err, "  {}", shown(&line));
    }
    if error.findings.len() > 20 {
        let _ = writeln!(err, "  ... and {} findings more", error.findings.len() - 20);
    }
    for hint in &error.hints {
        let _ = writeln!(err, "hint: {}", folded(hint));
    }
}

/// Prints an error as etcdctl and etcdutl do, whatever the format.
pub(super) fn print_linked_error(error: &Error) {
    let mut err = io::stderr().lock();
    let _ = writeln!(err, "Error: {}", folded(&error.message));
    print_below(&mut err, error);
}

fn error_json(error: &Error) -> Value {
    let mut body = json!({
        "code": error.code.number(),
        "kind": error.code.name(),
        "message": error.message,
        "hint": error.hints.join("\n"),
    });
    if !error.findings.is_empty()
        && let Some(map) = body.as_object_mut()
    {
        map.insert("findings".into(), json!(error.findings));
    }
    json!({ "error": body })
}

/// Writes a finding: what, then where, then what is lost.
pub(super) fn finding_lines(finding: &Finding) -> Vec<String> {
    let severity = match finding.severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Error => "error",
    };
    let mut lines = vec![format!("{} {severity}: {}", finding.code.id(), finding.detail)];
    let place = &finding.place;
    let mut at = Vec::new();
    if let Some(file) = &place.file {
        // A name may hold anything.
        at.push(bytes_text(file.as_bytes()));
    }
    if let Some(page) = place.page {
        at.push(format!("page {page}"));
    }
    if let Some(offset) = place.offset {
        at.push(format!("offset 0x{offset:x}"));
    }
    if place.path.len() > 1 {
        let path: Vec<_> = place.path.iter().map(u64::to_string).collect();
        at.push(format!("reached by pages {}", path.join(" > ")));
    }
    if !place.bucket.is_empty() {
        at.push(format!("bucket {}", bucket_text(&place.bucket)));
    }
    if let Some(key) = &place.key {
        at.push(format!("key {}", bytes_text(key)));
    }
    if !at.is_empty() {
        lines.push(format!("    at {}", at.join(", ")));
    }
    if let Some(lost) = &finding.lost {
        let from = lost.from.as_deref().map_or("the first".into(), bytes_text);
        let to = lost.to.as_deref().map_or("the end".into(), bytes_text);
        let bucket = if lost.bucket.is_empty() {
            "the root bucket".into()
        } else {
            format!("bucket {}", bucket_text(&lost.bucket))
        };
        lines.push(format!("    lost: keys of {bucket} from {from} up to {to}"));
    }
    lines
}

/// Writes all findings of a report, worst first where there are many.
pub(super) fn findings_lines(findings: &Findings) -> Vec<String> {
    let mut lines: Vec<_> = findings.kept().iter().flat_map(finding_lines).collect();
    if findings.left_out() > 0 {
        lines.push(format!("... and {} findings more", findings.left_out()));
    }
    lines
}

/// Writes a byte count for people, in binary units.
pub(super) fn size(bytes: u64) -> String {
    humansize::format_size(bytes, humansize::BINARY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_flatten() {
        let mut out = Vec::new();
        fields(&mut out, "", &json!({"a": 1, "b": {"c": ["x", null]}})).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "\"a\" : 1\n\"b.c.0\" : \"x\"\n\"b.c.1\" : null\n");
    }

    #[test]
    fn nothing_that_a_terminal_obeys_is_left() {
        let odd = "m\x1b[2J\r\u{7f}\u{9b}1m\u{202e}x\u{2069}\u{2028}\ty";
        let plain = "m\\x1b[2J\\x0d\\x7f\\u009b1m\\u202ex\\u2069\\u2028\\x09y";
        assert_eq!(shown(odd), plain);
        assert_eq!(shown(plain), plain, "once is as good as twice");
        assert_eq!(shown("a\nb"), "a\\x0ab");
        assert_eq!(
            folded("m1\nerror: \x1b\n    all is well"),
            "m1\n      error: \\x1b\n      all is well"
        );
    }

    #[test]
    fn an_error_is_one_object() {
        let error = Error::refused("no").hint("do this").hint("or that");
        assert_eq!(
            error_json(&error),
            json!({"error": {"code": 7, "kind": "refused", "message": "no", "hint": "do this\nor \
                that"}})
        );
    }
}
