//! All documents of a text as trees, with the bytes that each node stands on.
//!
//! The parser says where a node begins, in characters. Where it ends, and where a block scalar's
//! `|` is, it does not say reliably, so that is found here in the text itself. An end that is found
//! wrong makes a change fail its proof, never a wrong change.

use std::ops::Range;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, Tag};

use super::{DEPTH_LIMIT, Error, NODE_LIMIT, Position, SIZE_LIMIT};

/// One node.
pub(super) struct Raw {
    /// Where it begins, an anchor or tag of it included.
    pub(super) at: Position,
    /// Its bytes in the text: without anchor and tag, with quotes and brackets, from the `|` of a
    /// block scalar to the end of its last line. Empty where there is nothing.
    pub(super) span: Range<usize>,
    /// Number of its anchor, or 0.
    pub(super) anchor: usize,
    pub(super) tag: Option<Box<Tag>>,
    pub(super) kind: Kind,
}

pub(super) enum Kind {
    /// Names a node by the number of its anchor.
    Alias(usize),
    Scalar {
        text: String,
        style: ScalarStyle,
    },
    Sequence {
        items: Vec<Raw>,
        layout: Layout,
    },
    Mapping {
        pairs: Vec<(Raw, Raw)>,
        layout: Layout,
    },
}

/// How a collection is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Lines and indents.
    Block,
    /// In brackets.
    Flow,
    /// One pair in a flow sequence, without brackets.
    Bare,
}

impl Raw {
    /// Tells whether it is a plain scalar of no characters.
    pub(super) fn is_empty(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, style: ScalarStyle::Plain } if text.is_empty())
    }

    /// Tells whether it is a plain `<<`.
    pub(super) fn is_merge(&self) -> bool {
        self.tag.is_none()
            && self.scalar().is_some_and(|scalar| scalar == ("<<", ScalarStyle::Plain))
    }

    pub(super) fn scalar(&self) -> Option<(&str, ScalarStyle)> {
        match &self.kind {
            Kind::Scalar { text, style } => Some((text, *style)),
            _ => None,
        }
    }

    /// Returns a sequence's item or a mapping's value.
    pub(super) fn child(&self, index: usize) -> Option<&Raw> {
        match &self.kind {
            Kind::Sequence { items, .. } => items.get(index),
            Kind::Mapping { pairs, .. } => pairs.get(index).map(|(_, value)| value),
            _ => None,
        }
    }
}

/// Takes bytes as text without the mark that may stand before it.
///
/// # Errors
///
/// [`Error`] for a text that is too long or not UTF-8, and for characters that YAML forbids or that
/// end a line for some readers only.
pub(super) fn text_of(bytes: &[u8]) -> Result<&str, Error> {
    if bytes.len() > SIZE_LIMIT {
        let what = format!("longer than {SIZE_LIMIT} bytes, which no manifest is");
        return Err(Error::new(Position { line: 1, column: 1 }, what));
    }
    let text = std::str::from_utf8(bytes)
        .map_err(|error| Error::new(position_of(bytes, error.valid_up_to()), "not UTF-8"))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (at, c) in text.char_indices() {
        let what = match c {
            '\t' | '\n' => continue,
            '\r' if text.as_bytes().get(at.saturating_add(1)) == Some(&b'\n') => continue,
            '\r' => "a carriage return that ends no line",
            '\u{85}' | '\u{2028}' | '\u{2029}' => "a line end that not all readers know",
            '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' => "a control character",
            '\u{feff}' | '\u{fffe}' | '\u{ffff}' => "a character that YAML does not allow",
            _ => continue,
        };
        return Err(Error::new(position_of(text.as_bytes(), at), what));
    }
    Ok(text)
}

/// Reads the roots of all documents, or of the first one, after which no more is read.
///
/// # Errors
///
/// [`Error`] when the text is not YAML, has too many nodes or levels, or no document.
pub(super) fn documents(text: &str, first_only: bool) -> Result<Vec<Raw>, Error> {
    let mut reader = Reader::new(text);
    let mut done = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, span) =
            event.map_err(|error| Error::new(position(error.marker()), error.info()))?;
        if let Some(root) = reader.take(event, &span)? {
            done.push(root);
            if first_only {
                break;
            }
        }
    }
    if done.is_empty() {
        return Err(Error::new(Position { line: 1, column: 1 }, "no document"));
    }
    Ok(done)
}

/// A collection whose end has not been met yet.
struct Open {
    node: Raw,
    key: Option<Raw>,
}

struct Reader<'a> {
    text: &'a str,
    /// Byte offset of each character, where not all are of one byte.
    offsets: Option<Vec<usize>>,
    open: Vec<Open>,
    /// No node that is still to come begins before this byte.
    cursor: usize,
    nodes: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        let table = || text.char_indices().map(|(at, _)| at).collect();
        let offsets = (!text.is_ascii()).then(table);
        Self { text, offsets, open: Vec::new(), cursor: 0, nodes: 0 }
    }

    fn byte(&self, mark: &Marker) -> usize {
        let index = mark.index();
        let byte = match &self.offsets {
            Some(table) => table.get(index).copied(),
            None => Some(index),
        };
        byte.unwrap_or(self.text.len()).min(self.text.len())
    }

    /// Takes one event; returns a document's root when it is whole.
    fn take(&mut self, event: Event<'_>, span: &Span) -> Result<Option<Raw>, Error> {
        let at = position(&span.start);
        let (start, end) = (self.byte(&span.start), self.byte(&span.end));
        let done = match event {
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => return Ok(None),
            Event::Alias(id) => self.node(at, start..end.max(start), 0, None, Kind::Alias(id))?,
            Event::Scalar(text, style, anchor, tag) => {
                let marked = anchor != 0 || tag.is_some();
                let span = self.scalar_span(start, end, style, text.is_empty(), marked);
                let mut text = text.into_owned();
                let block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
                let last = self.text.rsplit('\n').next().unwrap_or_default();
                let cut = span.end == self.text.len() && !last.trim().is_empty();
                if block && cut && text.ends_with('\n') {
                    // The text ends before this line does. The parser makes up a line end; libyaml,
                    // so kubeadm and the kubelet as well, does not.
                    text.pop();
                }
                let kind = Kind::Scalar { text, style };
                let tag = tag.map(|tag| Box::new(tag.into_owned()));
                self.node(at, span, anchor, tag, kind)?
            }
            Event::SequenceStart(anchor, tag) => {
                let (start, layout) = self.layout(start..end, anchor != 0 || tag.is_some(), b'[');
                let kind = Kind::Sequence { items: Vec::new(), layout };
                let tag = tag.map(|tag| Box::new(tag.into_owned()));
                let node = self.node(at, start..start, anchor, tag, kind)?;
                return self.begin(node).map(|()| None);
            }
            Event::MappingStart(anchor, tag) => {
                let (start, layout) = self.layout(start..end, anchor != 0 || tag.is_some(), b'{');
                let kind = Kind::Mapping { pairs: Vec::new(), layout };
                let tag = tag.map(|tag| Box::new(tag.into_owned()));
                let node = self.node(at, start..start, anchor, tag, kind)?;
                return self.begin(node).map(|()| None);
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(Open { mut node, .. }) = self.open.pop() else {
                    return Err(Error::new(at, "an end without a beginning"));
                };
                node.span.end = match &node.kind {
                    Kind::Sequence { layout: Layout::Flow, .. }
                    | Kind::Mapping { layout: Layout::Flow, .. } => {
                        start.saturating_add(1).min(self.text.len())
                    }
                    Kind::Sequence { items, .. } => items.last().map_or(start, |it| it.span.end),
                    Kind::Mapping { pairs, .. } => {
                        pairs.last().map_or(start, |(key, value)| pair_end(self.text, key, value))
                    }
                    _ => start,
                };
                node
            }
        };
        self.cursor = self.cursor.max(done.span.end);
        Ok(self.put(done))
    }

    fn node(
        &mut self,
        at: Position,
        span: Range<usize>,
        anchor: usize,
        tag: Option<Box<Tag>>,
        kind: Kind,
    ) -> Result<Raw, Error> {
        self.nodes = self.nodes.saturating_add(1);
        if self.nodes > NODE_LIMIT {
            return Err(Error::new(at, format!("more than {NODE_LIMIT} values")));
        }
        Ok(Raw { at, span, anchor, tag, kind })
    }

    fn begin(&mut self, node: Raw) -> Result<(), Error> {
        if self.open.len() >= DEPTH_LIMIT {
            return Err(Error::new(node.at, format!("nested deeper than {DEPTH_LIMIT} levels")));
        }
        self.cursor = self.cursor.max(node.span.start);
        self.open.push(Open { node, key: None });
        Ok(())
    }

    /// Puts a finished node into the collection that it belongs to, or gives a root back.
    fn put(&mut self, node: Raw) -> Option<Raw> {
        let Some(parent) = self.open.last_mut() else { return Some(node) };
        match &mut parent.node.kind {
            Kind::Sequence { items, .. } => items.push(node),
            Kind::Mapping { pairs, .. } => match parent.key.take() {
                Some(key) => pairs.push((key, node)),
                None => parent.key = Some(node),
            },
            Kind::Alias(_) | Kind::Scalar { .. } => {}
        }
        None
    }

    /// Finds where a collection begins behind its anchor and tag, and how it is written.
    fn layout(&self, span: Range<usize>, marked: bool, bracket: u8) -> (usize, Layout) {
        let start = if marked { after_marks(self.text, span.start) } else { span.start };
        let in_flow = self.open.last().is_some_and(|open| {
            matches!(
                &open.node.kind,
                Kind::Sequence { layout: Layout::Flow | Layout::Bare, .. }
                    | Kind::Mapping { layout: Layout::Flow | Layout::Bare, .. }
            )
        });
        // Without brackets of its own it has no bytes here, whatever its first child begins with.
        let own = self.text.get(start..span.end).and_then(|own| own.bytes().next());
        let layout = match own {
            Some(own) if own == bracket => Layout::Flow,
            _ if in_flow => Layout::Bare,
            _ => Layout::Block,
        };
        (start, layout)
    }

    fn scalar_span(
        &mut self,
        start: usize,
        end: usize,
        style: ScalarStyle,
        empty: bool,
        marked: bool,
    ) -> Range<usize> {
        let begin = if marked { after_marks(self.text, start) } else { start };
        match style {
            ScalarStyle::Plain if empty => start..start,
            ScalarStyle::Plain => {
                let part = self.text.get(begin..end).unwrap_or_default();
                begin..begin.saturating_add(part.trim_end().len())
            }
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => {
                let length = quoted_length(self.text.get(begin..).unwrap_or_default());
                begin..begin.saturating_add(length)
            }
            ScalarStyle::Literal | ScalarStyle::Folded => {
                let from = if marked { start } else { self.cursor };
                let head = block_head(self.text, from, end.max(start));
                // The parser has read this far.
                self.cursor = self.cursor.max(end.max(start));
                match head {
                    Some(head) => head..block_end(self.text, head, end.max(start)),
                    None => start..start,
                }
            }
        }
    }
}

/// Finds the end of a mapping's pair, which may have a colon behind its key and nothing else.
pub(super) fn pair_end(text: &str, key: &Raw, value: &Raw) -> usize {
    if value.is_empty() {
        return colon_after(text, key).unwrap_or(key.span.end).max(value.span.end);
    }
    value.span.end
}

/// Finds the byte behind the colon that stands behind a key on its line.
pub(super) fn colon_after(text: &str, key: &Raw) -> Option<usize> {
    let rest = text.get(key.span.end..)?;
    let blanks = rest.len().saturating_sub(rest.trim_start_matches(' ').len());
    rest.get(blanks..)?.starts_with(':').then_some(())?;
    Some(key.span.end.saturating_add(blanks).saturating_add(1))
}

/// Tells whether a text ends, behind a byte, in a line of blanks without a line end: readers differ
/// in whether that is a line of a block scalar before it.
pub(super) fn ends_in_blanks(text: &str, end: usize) -> bool {
    let last = text.rsplit('\n').next().unwrap_or_default();
    let rest = text.get(end..).unwrap_or_default();
    !last.is_empty() && last.trim().is_empty() && rest.trim().is_empty()
}

/// Tells whether a colon or dash that ends at a byte has a blank or nothing behind it.
pub(super) fn stands_alone(text: &str, end: usize) -> bool {
    matches!(text.as_bytes().get(end), None | Some(b' ' | b'\r' | b'\n'))
}

/// Skips anchors, tags, blanks, line ends and comments.
fn after_marks(text: &str, from: usize) -> usize {
    let mut at = from;
    while let Some(rest) = text.get(at..) {
        let skip = match rest.bytes().next() {
            Some(b'&' | b'!') => rest.find([' ', '\t', '\r', '\n']).unwrap_or(rest.len()),
            Some(b' ' | b'\t' | b'\r' | b'\n') => 1,
            Some(b'#') => rest.find('\n').unwrap_or(rest.len()),
            _ => break,
        };
        at = at.saturating_add(skip);
    }
    at
}

/// Finds the `|` or `>` of a block scalar: the first one behind what may stand before it.
fn block_head(text: &str, from: usize, to: usize) -> Option<usize> {
    let mut at = from;
    while at < to {
        let rest = text.get(at..)?;
        let skip = match rest.bytes().next()? {
            b'|' | b'>' => return Some(at),
            b'&' | b'!' => rest.find([' ', '\t', '\r', '\n'])?,
            b'#' | b'%' => rest.find('\n')?,
            b' ' | b'\t' | b'\r' | b'\n' | b'-' | b'?' | b':' | b'.' => 1,
            _ => return None,
        };
        at = at.saturating_add(skip);
    }
    None
}

/// Finds the end of a block scalar's last line that counts, without its line end, between its head
/// and where the parser went on: the last line of all where line ends are kept, else the last one
/// that is not blank.
fn block_end(text: &str, head: usize, limit: usize) -> usize {
    let all = text.get(head..limit).unwrap_or_default();
    let keeps = header(all).contains('+');
    let (last, rest) = match all.rfind('\n') {
        Some(last) if keeps && last.saturating_add(1) < all.len() && limit == text.len() => {
            (all.len(), "")
        }
        Some(last) if keeps => (last, ""),
        _ => {
            let last = all.trim_end_matches([' ', '\t', '\r', '\n']).len();
            let rest = text.get(head.saturating_add(last)..).unwrap_or_default();
            (last, rest.split('\n').next().unwrap_or_default().trim_end_matches('\r'))
        }
    };
    let before = all.get(..last).unwrap_or(all).trim_end_matches('\r');
    head.saturating_add(before.len()).saturating_add(rest.len())
}

/// Returns the indicators of a block scalar that begins with its `|` or `>`.
pub(super) fn header(block: &str) -> &str {
    block.split([' ', '\t', '\r', '\n']).next().unwrap_or_default()
}

/// Measures a quoted scalar that begins with its quote, both quotes included.
fn quoted_length(text: &str) -> usize {
    let mut bytes = text.bytes().enumerate();
    let Some((_, quote)) = bytes.next().filter(|(_, b)| matches!(b, b'"' | b'\'')) else {
        return 0;
    };
    while let Some((at, byte)) = bytes.next() {
        if byte == b'\\' && quote == b'"' {
            bytes.next();
        } else if byte == quote {
            let next = text.as_bytes().get(at.saturating_add(1));
            if quote == b'\'' && next == Some(&b'\'') {
                bytes.next();
            } else {
                return at.saturating_add(1);
            }
        }
    }
    text.len()
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
