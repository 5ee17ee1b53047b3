//! One YAML document as a tree with positions.
//!
//! Reads the first document of a text, as the kubelet does, and stops there. JSON is YAML, so it
//! is read as well. Never resolves anything: aliases, merge keys, tags that change a type and
//! duplicate keys are refused, because each of them lets a text mean something else than it shows.
//!
//! **Errors**: [`Error`] with line and column.

use saphyr_parser::ScalarStyle;

use super::tree::{self, Kind, Raw};
use super::{Error, Position};

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

/// Reads the first document of a text.
///
/// # Errors
///
/// [`Error`] when the text is too long, not UTF-8, not YAML, too deep, has no document, or uses an
/// alias, a merge key, a type tag, a key that is no scalar or a key twice.
pub fn parse(bytes: &[u8]) -> Result<Node, Error> {
    let mut roots = tree::documents(tree::text_of(bytes)?, true)?;
    match roots.pop() {
        Some(root) => node_of(root),
        None => Err(Error::new(Position { line: 1, column: 1 }, "no document")),
    }
}

/// Takes a tree as plain values.
pub(super) fn node_of(raw: Raw) -> Result<Node, Error> {
    let Raw { at, tag, kind, .. } = raw;
    let tagged = || Error::new(at, "a tag, which is not supported");
    let value = match kind {
        Kind::Alias(_) => return Err(Error::new(at, "an alias, which is not supported")),
        Kind::Scalar { text, style } => {
            let forced_text = match tag {
                None => false,
                Some(tag) if tag.is_yaml_core_schema() && tag.suffix == "str" => true,
                Some(_) => return Err(tagged()),
            };
            Value::Scalar { text, plain: style == ScalarStyle::Plain && !forced_text }
        }
        Kind::Sequence { .. } | Kind::Mapping { .. } if tag.is_some() => return Err(tagged()),
        Kind::Sequence { items, .. } => {
            Value::Sequence(items.into_iter().map(node_of).collect::<Result<_, _>>()?)
        }
        Kind::Mapping { pairs, .. } => {
            let entry = |(key, value)| {
                let (key, at) = key_of(key)?;
                Ok(Entry { key, at, node: node_of(value)? })
            };
            let mut entries = pairs.into_iter().map(entry).collect::<Result<Vec<_>, _>>()?;
            refuse_duplicates(&mut entries)?;
            Value::Mapping(entries)
        }
    };
    Ok(Node { at, value })
}

fn key_of(key: Raw) -> Result<(String, Position), Error> {
    let merges = key.is_merge();
    let node = node_of(key)?;
    match node.value {
        Value::Scalar { .. } if merges => {
            Err(Error::new(node.at, "a merge key, which is not supported"))
        }
        Value::Scalar { text, .. } => Ok((text, node.at)),
        _ => Err(Error::new(node.at, "a key that is not a scalar")),
    }
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

#[cfg(test)]
mod tests {
    use super::super::{DEPTH_LIMIT, NODE_LIMIT, SIZE_LIMIT};
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
        assert_eq!(refusal("a: b\0c\n"), "line 1, column 5: a control character");
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
        let many = format!("[{}]", "a,".repeat(NODE_LIMIT));
        assert!(refusal(&many).contains("more than 65536 values"));
        let fits = format!("a: {}", "b".repeat(SIZE_LIMIT - 3));
        assert!(parse(fits.as_bytes()).is_ok());
    }

    #[test]
    fn debug_shows_no_content() {
        let node = parse(b"password: hunter2").unwrap();
        assert_eq!(format!("{node:?}"), "a mapping at line 1, column 1");
    }
}
