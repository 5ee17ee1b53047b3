//! One YAML document as a tree with positions.
//!
//! Reads the first document of a text, as the kubelet does, and stops there. JSON is YAML, so it
//! is read as well. Never resolves anything: aliases, merge keys, tags that change a type and
//! duplicate keys are refused, because each of them lets a text mean something else than it shows.
//!
//! **Limits**: [`SIZE_LIMIT`] bytes of text, [`DEPTH_LIMIT`] levels. The tree costs at most about
//! 100 bytes a node, and a node costs at least one byte of text.
//!
//! **Errors**: [`Error`] with line and column, both counted from 1, the column in characters.

use saphyr_parser::{Event, Marker, Parser, ScalarStyle};

/// Longest text that is read, in bytes.
pub const SIZE_LIMIT: usize = 1 << 20;

/// Deepest nesting of sequences and mappings.
pub const DEPTH_LIMIT: usize = 64;

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

/// A text that cannot be read as one plain YAML document.
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

/// One node of the tree.
#[derive(Clone, PartialEq, Eq)]
pub struct Node {
    /// Where the node begins.
    pub at: Position,
    /// What it holds.
    pub value: Value,
}

/// What a node holds.
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    /// A scalar.
    Scalar {
        /// The text with quotes, escapes and folding undone.
        text: String,
        /// Tells whether it stands without quotes, so that it may be a null, bool or number.
        plain: bool,
    },
    /// A sequence, in order.
    Sequence(Vec<Node>),
    /// A mapping, in order, without duplicate keys.
    Mapping(Vec<Entry>),
}

/// One pair of a mapping.
#[derive(Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key's text.
    pub key: String,
    /// Where the key begins.
    pub at: Position,
    /// The value.
    pub node: Node,
}

// The shape only: a manifest's environment may hold a password.
impl std::fmt::Debug for Node {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} at {}", self.kind(), self.at)
    }
}

impl Node {
    /// Names the node's kind for a message.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match &self.value {
            Value::Scalar { .. } if self.is_null() => "nothing",
            Value::Scalar { .. } => "a scalar",
            Value::Sequence(_) => "a sequence",
            Value::Mapping(_) => "a mapping",
        }
    }

    /// Tells whether the node is a plain `null`, `~` or empty.
    #[must_use]
    pub fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// Returns the text of a scalar that is not null.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Scalar { text, .. } if !self.is_null() => Some(text),
            _ => None,
        }
    }

    /// Returns the value of a mapping's key; `None` as well when it is null or this is no mapping.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Node> {
        match &self.value {
            Value::Mapping(entries) => {
                entries.iter().find(|entry| entry.key == key).map(|entry| &entry.node)
            }
            _ => None,
        }
        .filter(|node| !node.is_null())
    }

    /// Returns the items of a sequence; none for any other node.
    #[must_use]
    pub fn items(&self) -> &[Node] {
        match &self.value {
            Value::Sequence(items) => items,
            _ => &[],
        }
    }
}

/// A collection whose end has not been met yet.
enum Open {
    Sequence(Position, Vec<Node>),
    Mapping { at: Position, entries: Vec<Entry>, key: Option<(String, Position)> },
}

/// Reads the first document of a text.
///
/// # Errors
///
/// [`Error`] when the text is too long, not UTF-8, not YAML, too deep, has no document, or uses an
/// alias, a merge key, a type tag, a key that is no scalar or a key twice.
pub fn parse(bytes: &[u8]) -> Result<Node, Error> {
    if bytes.len() > SIZE_LIMIT {
        return Err(Error::new(Position { line: 1, column: 1 }, too_long()));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Error::new(position_of(bytes, error.valid_up_to()), "not UTF-8"))?;
    // The parser takes a mark at the start as content of the first key.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut open: Vec<Open> = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, span) =
            event.map_err(|error| Error::new(position(error.marker()), error.info()))?;
        let at = position(&span.start);
        let done = match event {
            Event::Alias(_) => return Err(Error::new(at, "an alias, which is not supported")),
            Event::Scalar(text, style, _, tag) => {
                let forced_text = match tag {
                    None => false,
                    Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => true,
                    Some(_) => return Err(Error::new(at, "a tag, which is not supported")),
                };
                let plain = style == ScalarStyle::Plain && !forced_text;
                Some(Node { at, value: Value::Scalar { text: text.into_owned(), plain } })
            }
            Event::SequenceStart(_, tag) => {
                begin(&mut open, at, tag.is_some(), Open::Sequence(at, Vec::new()))?;
                None
            }
            Event::MappingStart(_, tag) => {
                let new = Open::Mapping { at, entries: Vec::new(), key: None };
                begin(&mut open, at, tag.is_some(), new)?;
                None
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some(Open::Sequence(at, items)) => Some(Node { at, value: Value::Sequence(items) }),
                Some(Open::Mapping { at, mut entries, .. }) => {
                    refuse_duplicates(&mut entries)?;
                    Some(Node { at, value: Value::Mapping(entries) })
                }
                None => return Err(Error::new(at, "an end without a beginning")),
            },
            Event::DocumentEnd | Event::StreamEnd => {
                return Err(Error::new(at, "no document"));
            }
            Event::Nothing | Event::StreamStart | Event::DocumentStart(_) => None,
        };
        if let Some(node) = done {
            match open.last_mut() {
                None => return Ok(node),
                Some(parent) => put(parent, node)?,
            }
        }
    }
    Err(Error::new(Position { line: 1, column: 1 }, "no document"))
}

/// Says that a text is longer than the limit.
pub(super) fn too_long() -> String {
    format!("longer than {SIZE_LIMIT} bytes, which no manifest is")
}

fn begin(open: &mut Vec<Open>, at: Position, tagged: bool, new: Open) -> Result<(), Error> {
    if tagged {
        return Err(Error::new(at, "a tag, which is not supported"));
    }
    if open.len() >= DEPTH_LIMIT {
        return Err(Error::new(at, format!("nested deeper than {DEPTH_LIMIT} levels")));
    }
    open.push(new);
    Ok(())
}

/// Puts a finished node into the collection that it belongs to.
fn put(parent: &mut Open, node: Node) -> Result<(), Error> {
    match parent {
        Open::Sequence(_, items) => items.push(node),
        Open::Mapping { entries, key, .. } => match key.take() {
            Some((name, at)) => entries.push(Entry { key: name, at, node }),
            None => match node.value {
                Value::Scalar { text, plain } if !(plain && text == "<<") => {
                    *key = Some((text, node.at));
                }
                Value::Scalar { .. } => {
                    return Err(Error::new(node.at, "a merge key, which is not supported"));
                }
                _ => return Err(Error::new(node.at, "a key that is not a scalar")),
            },
        },
    }
    Ok(())
}

/// Refuses a mapping that has a key twice: readers differ in which one wins.
fn refuse_duplicates(entries: &mut [Entry]) -> Result<(), Error> {
    let mut order: Vec<(&str, Position)> =
        entries.iter().map(|entry| (entry.key.as_str(), entry.at)).collect();
    order.sort_unstable();
    for pair in order.windows(2) {
        if let [(first, _), (second, at)] = pair
            && first == second
        {
            return Err(Error::new(*at, "a key that stands in the mapping already"));
        }
    }
    Ok(())
}

fn position(mark: &Marker) -> Position {
    Position { line: mark.line(), column: mark.col().saturating_add(1) }
}

/// Finds line and column of a byte offset; the bytes before it are UTF-8.
fn position_of(bytes: &[u8], offset: usize) -> Position {
    let before = String::from_utf8_lossy(bytes.get(..offset).unwrap_or(bytes));
    let line = before.matches('\n').count().saturating_add(1);
    let column = before.chars().rev().take_while(|c| *c != '\n').count().saturating_add(1);
    Position { line, column }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        parse(text.as_bytes()).expect_err(text).to_string()
    }

    #[test]
    fn reads_the_first_document_only() {
        let node = parse(b"# top\n---\na: {b: ['c', \"d\\n\", 5]}\n---\n*nonsense").unwrap();
        let items = node.get("a").unwrap().get("b").unwrap().items();
        let texts: Vec<_> = items.iter().map(|item| item.text().unwrap()).collect();
        assert_eq!(texts, ["c", "d\n", "5"]);
        assert_eq!(items[0].at, Position { line: 3, column: 9 });
    }

    #[test]
    fn null_is_not_there_but_a_quoted_one_is() {
        let node = parse(b"a: null\nb: ~\nc:\nd: 'null'\ne: !!str null\n").unwrap();
        assert!(node.get("a").is_none() && node.get("b").is_none() && node.get("c").is_none());
        assert_eq!(node.get("d").unwrap().text(), Some("null"));
        assert_eq!(node.get("e").unwrap().text(), Some("null"));
    }

    #[test]
    fn what_could_mean_something_else_is_refused_with_a_place() {
        assert_eq!(
            refusal("a: &x 1\nb: *x\n"),
            "line 2, column 4: an alias, which is not supported"
        );
        assert!(refusal("a: 1\nb: {a: 1, c: 2, a: 3}\n").starts_with("line 2, column 17: a key"));
        assert!(refusal("a:\n  <<: {b: 1}\n").starts_with("line 2, column 3: a merge key"));
        assert!(refusal("a: !!binary aGk=\n").contains("a tag"));
        assert!(refusal("[a]: b\n").contains("a key that is not a scalar"));
        assert!(refusal("a: [b\nc: d\n").starts_with("line "));
        assert!(refusal("").contains("no document"));
        assert_eq!(
            parse(b"a: b\nccc: \xff\n").unwrap_err().to_string(),
            "line 2, column 6: not UTF-8"
        );
    }

    #[test]
    fn limits_hold() {
        let deep = "[".repeat(DEPTH_LIMIT + 1);
        assert!(refusal(&deep).contains("nested deeper than 64 levels"));
        // So deep that the parser itself gives up first.
        assert!(refusal(&"[".repeat(200_000)).starts_with("line 1, column "));
        let long = "a".repeat(SIZE_LIMIT + 1);
        assert!(refusal(&long).contains("longer than"));
        let fits = format!("a: {}", "b".repeat(SIZE_LIMIT - 3));
        assert!(parse(fits.as_bytes()).is_ok());
    }

    #[test]
    fn debug_shows_no_content() {
        let node = parse(b"password: hunter2").unwrap();
        assert_eq!(format!("{node:?}"), "a mapping at line 1, column 1");
    }
}
