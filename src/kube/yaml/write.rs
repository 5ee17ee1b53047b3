//! New pairs and items, written as their neighbours are.

use super::edit::New;
use super::path::{Refusal, Trail, Why, is_json, kind, no_tab_behind};
use super::scalar::{double_quoted, fresh};
use super::tree::{Kind, Layout, Raw, ends_in_blanks, header, pair_end, stands_alone};

/// Bytes to put in at a byte of the text.
pub(super) struct Insertion {
    pub(super) at: usize,
    pub(super) bytes: String,
}

/// Writes a new pair of the mapping at a place, behind its last one.
pub(super) fn pair(
    text: &str,
    trail: &Trail<'_>,
    key: &str,
    value: &New<'_>,
) -> Result<Insertion, Refusal> {
    let node = trail.node()?;
    let Kind::Mapping { pairs, layout } = &node.kind else {
        let what = format!("{} where a mapping is expected", kind(node));
        return Err(Refusal::new(Why::Shape, node.at, what));
    };
    let style = Style::of(text, trail);
    let Some((first, _)) = pairs.first() else {
        return into_empty(node, style.flow_pair(key, value));
    };
    match layout {
        Layout::Flow => {
            let (at, empty) = match pairs.last() {
                Some((key, value)) => (pair_end(text, key, value), value.is_empty()),
                None => (node.span.end, false),
            };
            // A colon with something right behind it is part of the key for some readers.
            if empty && at > key_end(pairs) && !stands_alone(text, at) {
                return Err(unproven(node, "a colon with no blank behind it"));
            }
            let lead = if empty { " ," } else { "," };
            Ok(Insertion { at, bytes: format!("{lead} {}", style.flow_pair(key, value)) })
        }
        Layout::Bare => Err(unproven(node, "a pair without braces, which holds no second one")),
        Layout::Block => {
            let indent = indent_before(text, first.span.start)
                .ok_or_else(|| unproven(node, "a mapping that does not begin a line"))?;
            let at = line_after(text, node)?;
            let pair = style.block_pair(key, value, indent);
            Ok(Insertion { at, bytes: format!("{}{}{pair}", style.line_end, " ".repeat(indent)) })
        }
    }
}

/// Writes a new item of the sequence at a place, behind an item of it or the last one.
pub(super) fn item(
    text: &str,
    trail: &Trail<'_>,
    behind: Option<usize>,
    value: &New<'_>,
) -> Result<Insertion, Refusal> {
    let node = trail.node()?;
    let Kind::Sequence { items, layout } = &node.kind else {
        let what = format!("{} where a sequence is expected", kind(node));
        return Err(Refusal::new(Why::Shape, node.at, what));
    };
    let style = Style::of(text, trail);
    let before = match behind {
        Some(index) => items.get(index),
        None => items.last(),
    };
    let Some(before) = before else { return into_empty(node, style.flow(value)) };
    match layout {
        Layout::Flow | Layout::Bare => {
            if matches!(before.kind, Kind::Mapping { layout: Layout::Bare, .. }) {
                return Err(unproven(before, "a pair without braces before it"));
            }
            Ok(Insertion { at: before.span.end, bytes: format!(", {}", style.flow(value)) })
        }
        Layout::Block => {
            let (indent, gap) = dash(text, before)
                .ok_or_else(|| unproven(before, "an item whose dash cannot be placed"))?;
            let at = line_after(text, before)?;
            let inner = indent.saturating_add(1).saturating_add(gap);
            let lead = format!("{}{}-{}", style.line_end, " ".repeat(indent), " ".repeat(gap));
            Ok(Insertion { at, bytes: format!("{lead}{}", style.block_item(value, inner)) })
        }
    }
}

fn unproven(node: &Raw, what: &str) -> Refusal {
    Refusal::new(Why::Unproven, node.at, what)
}

/// Puts something into a collection of nothing, which has brackets.
fn into_empty(node: &Raw, bytes: String) -> Result<Insertion, Refusal> {
    Ok(Insertion { at: node.span.start.saturating_add(1), bytes })
}

fn key_end(pairs: &[(Raw, Raw)]) -> usize {
    pairs.last().map_or(0, |(key, _)| key.span.end)
}

/// Finds the end of the line that a node ends on, where nothing but a comment may follow it.
fn line_after(text: &str, node: &Raw) -> Result<usize, Refusal> {
    let end = node.span.end;
    no_tab_behind(text, end, node.at)?;
    let rest = text.get(end..).unwrap_or_default();
    let line = rest.split('\n').next().unwrap_or_default();
    let line = line.strip_suffix('\r').unwrap_or(line);
    let blanks = line.trim_start_matches(' ');
    if !(blanks.is_empty() || (blanks.starts_with('#') && blanks.len() < line.len())) {
        return Err(unproven(node, "something else on the line that it ends on"));
    }
    let at = end.saturating_add(line.len());
    if ends_in_blanks(text, at) {
        return Err(unproven(node, "blanks on the last line of the text"));
    }
    Ok(at)
}

/// Returns the column of a byte, counted from 0, when only blanks and dashes stand before it.
fn indent_before(text: &str, at: usize) -> Option<usize> {
    let before = text.get(..at)?;
    let line = before.get(before.rfind('\n').map_or(0, |at| at.saturating_add(1))..)?;
    line.bytes().all(|byte| matches!(byte, b' ' | b'-')).then_some(line.len())
}

/// Finds an item's dash: the column of it, counted from 0, and how many blanks stand behind it.
fn dash(text: &str, item: &Raw) -> Option<(usize, usize)> {
    let before = text.get(..item.span.start)?;
    // The node of nothing begins right behind its dash.
    let gap = before.trim_end_matches([' ', '\r', '\n']);
    let blanks = before.get(gap.len()..)?;
    let at = gap.strip_suffix('-')?.len();
    let gap = if blanks.contains('\n') || blanks.is_empty() { 1 } else { blanks.len() };
    Some((indent_before(text, at)?, gap))
}

/// What new text is to look like.
struct Style<'a> {
    line_end: &'a str,
    /// How much further a mapping in a mapping is indented.
    step: usize,
    /// How much further a sequence in a mapping is indented.
    dash: usize,
    json: bool,
}

impl Style<'_> {
    fn of(text: &str, trail: &Trail<'_>) -> Self {
        let columns: Vec<usize> = trail
            .nodes
            .iter()
            .filter(|node| matches!(node.kind, Kind::Mapping { layout: Layout::Block, .. }))
            .filter_map(|node| match &node.kind {
                Kind::Mapping { pairs, .. } => pairs.first().map(|(key, _)| key.at.column),
                _ => None,
            })
            .collect();
        let mut steps = columns.windows(2).filter_map(|pair| match pair {
            [outer, inner] => inner.checked_sub(*outer).filter(|step| *step > 0),
            _ => None,
        });
        let root = trail.nodes.first();
        Self {
            line_end: line_end(text, trail.node().map_or(0, |node| node.span.end)),
            step: steps.next_back().unwrap_or(2),
            dash: root.and_then(|root| dash_step(text, root)).unwrap_or(0),
            json: root.is_some_and(|root| is_json(root)),
        }
    }

    fn flow(&self, value: &New<'_>) -> String {
        match value {
            New::Text(text) if self.json => double_quoted(text),
            New::Text(text) => fresh(text, true),
            New::Map(pairs) => {
                let pairs: Vec<_> =
                    pairs.iter().map(|(key, value)| self.flow_pair(key, value)).collect();
                format!("{{{}}}", pairs.join(", "))
            }
            New::List(items) => {
                let items: Vec<_> = items.iter().map(|item| self.flow(item)).collect();
                format!("[{}]", items.join(", "))
            }
        }
    }

    fn flow_pair(&self, key: &str, value: &New<'_>) -> String {
        let key = if self.json { double_quoted(key) } else { fresh(key, true) };
        format!("{key}: {}", self.flow(value))
    }

    /// Writes a pair whose key stands at a column already.
    fn block_pair(&self, key: &str, value: &New<'_>, indent: usize) -> String {
        let key = fresh(key, false);
        match value {
            New::Map(pairs) if !pairs.is_empty() => {
                let inner = indent.saturating_add(self.step);
                let lead = format!("{}{}", self.line_end, " ".repeat(inner));
                format!("{key}:{lead}{}", self.block_item(value, inner))
            }
            New::List(items) if !items.is_empty() => {
                let indent = indent.saturating_add(self.dash);
                let lead = format!("{}{}- ", self.line_end, " ".repeat(indent));
                let inner = indent.saturating_add(2);
                let items: Vec<_> =
                    items.iter().map(|item| lead.clone() + &self.block_item(item, inner)).collect();
                format!("{key}:{}", items.concat())
            }
            New::Text(text) => format!("{key}: {}", fresh(text, false)),
            New::Map(_) | New::List(_) => format!("{key}: {}", self.flow(value)),
        }
    }

    /// Writes a value that begins at a column already.
    fn block_item(&self, value: &New<'_>, indent: usize) -> String {
        match value {
            New::Text(text) => fresh(text, false),
            New::Map(pairs) if !pairs.is_empty() => {
                let lead = format!("{}{}", self.line_end, " ".repeat(indent));
                let pairs: Vec<_> =
                    pairs.iter().map(|(key, value)| self.block_pair(key, value, indent)).collect();
                pairs.join(&lead)
            }
            New::Map(_) | New::List(_) => self.flow(value),
        }
    }
}

/// Finds how much further the first sequence in a mapping is indented than its key.
fn dash_step(text: &str, node: &Raw) -> Option<usize> {
    match &node.kind {
        Kind::Mapping { pairs, layout: Layout::Block } => pairs.iter().find_map(|(key, value)| {
            if let Kind::Sequence { items, layout: Layout::Block } = &value.kind
                && let Some((column, _)) = items.first().and_then(|item| dash(text, item))
            {
                return column.checked_sub(key.at.column.saturating_sub(1));
            }
            dash_step(text, value)
        }),
        Kind::Sequence { items, layout: Layout::Block } => {
            items.iter().find_map(|item| dash_step(text, item))
        }
        _ => None,
    }
}

/// Returns what ends the line of a byte, or the line before it where that is the last one.
pub(super) fn line_end(text: &str, at: usize) -> &'static str {
    let after =
        text.get(at..).and_then(|rest| rest.find('\n')).map(|found| at.saturating_add(found));
    let end = after.or_else(|| text.get(..at).and_then(|before| before.rfind('\n')));
    let before = end.and_then(|end| end.checked_sub(1)).and_then(|at| text.as_bytes().get(at));
    if before == Some(&b'\r') { "\r\n" } else { "\n" }
}

/// Tells whether a block scalar has a comment behind its indicators.
pub(super) fn has_comment(block: &str) -> bool {
    let line = block.lines().next().unwrap_or_default();
    !line.strip_prefix(header(block)).unwrap_or(line).trim().is_empty()
}
