//! YAML as people and kubeadm write it: read as a tree with positions, and changed in place.
//!
//! | module | story |
//! |---|---|
//! | [`node`] | [`parse`]: one document as a tree of plain values, strictly read |
//! | [`edit`] | [`splice`]: one change to one place, other bytes kept; [`find`]: what is there |
//! | [`path`] | [`Step`]: how a place is named, and what on the way to it is refused |
//! | `prove` | the text after a change, read again and held against what was asked for |
//! | `write` | new pairs and items, written as their neighbours are |
//! | `scalar` | texts in the five styles of a scalar, and where each of their bytes stands |
//! | `tree` | all documents of a text with the bytes that each node stands on |
//!
//! Invariants:
//!
//! 1. **Nothing else changes.** [`splice`] replaces one run of bytes. Comments, order, quotes,
//!    indents, ends of lines, a mark at the start, a last line without an end stay as they are.
//! 2. **Proven or refused.** The new text is read again. Unless its documents are the old ones with
//!    exactly the change that was asked for, there is no new text but a [`Refusal`].
//! 3. **Never resolved.** What lets a text mean something else than it shows is refused where it
//!    touches the way: anchors, aliases, merge keys, tags, duplicate keys, keys that are no
//!    scalars, tabs. Readers differ in these. Away from the way they stay, byte for byte.
//! 4. **A text stays a text.** What is written is a string for every reader, those of YAML 1.1 too
//!    (kubeadm and the kubelet are such): `8589934592`, `no` and `1:30` get quotes.
//!
//! **Limits**: [`SIZE_LIMIT`] bytes of text, [`DEPTH_LIMIT`] levels, [`NODE_LIMIT`] nodes, at most
//! about 250 bytes of memory for each. Time grows with the text, not with its square.
//!
//! **Errors** carry line and column, both counted from 1, the column in characters. No text of a
//! value is ever part of one.

pub mod edit;
pub mod node;
pub mod path;
mod prove;
mod scalar;
mod tree;
mod write;

pub use edit::{Change, New, find, splice};
pub use node::{Entry, Node, Value, parse};
pub use path::{Document, Refusal, Step, Why};

/// Longest text that is read, in bytes.
pub const SIZE_LIMIT: usize = 1 << 20;

/// Deepest nesting of sequences and mappings.
pub const DEPTH_LIMIT: usize = 64;

/// Most nodes of a text.
pub const NODE_LIMIT: usize = 1 << 16;

/// A place in a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, counted from 1.
    pub line: usize,
    /// Column in characters, counted from 1.
    pub column: usize,
}

impl std::fmt::Display for Position {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "line {}, column {}", self.line, self.column)
    }
}

/// A text that cannot be read as plain YAML.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct Error {
    /// Where.
    pub at: Position,
    /// What is wrong, as a clause.
    pub what: String,
}

impl Error {
    fn new(at: Position, what: impl Into<String>) -> Self {
        Self { at, what: what.into() }
    }
}
