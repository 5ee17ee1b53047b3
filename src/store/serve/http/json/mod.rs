//! Messages as JSON and back, by their shapes; what is refused is told as etcd's gateway tells it.
//!
//! ```text
//! scan    bytes as they come to whole JSON values
//! read    a JSON value to the bytes of a message
//! number  JSON's numbers as whole ones
//! write   the bytes of a message to JSON
//! ```
//!
//! Messages are never built: JSON is turned into the bytes that travel in a call, and back. So the
//! gateway needs no code of its own for a message, no descriptors at run time, and none of the
//! libraries for them, whose words differ from etcd's.
//!
//! Source: Go 1.26 `encoding/json` scanner.go and stream.go; protobuf-go v1.36.11
//! `encoding/protojson`, `internal/encoding/json`.

mod number;
mod read;
mod scan;
mod write;

pub(super) use read::read;
pub(super) use scan::Values;
pub(super) use write::{Style, text, write};

/// Quotes bytes as Go's `%q` does, for what is ASCII.
pub(super) fn quote(bytes: &[u8]) -> String {
    let mut out = String::from("\"");
    for character in String::from_utf8_lossy(bytes).chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\x07' => out.push_str("\\a"),
            '\x08' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\x0b' => out.push_str("\\v"),
            '\x0c' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            '\0'..'\x20' | '\x7f' => out.push_str(&format!("\\x{:02x}", u32::from(character))),
            _ => out.push(character),
        }
    }
    out.push('"');
    out
}
