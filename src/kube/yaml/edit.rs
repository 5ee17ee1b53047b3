//! One change to one place of a text, every other byte kept.

use std::borrow::Cow;
use std::ops::Range;

use saphyr_parser::ScalarStyle;

use super::node::{Node, node_of};
use super::path::{Document, Refusal, Step, Trail, Why, kind, locate, no_tab_behind};
use super::prove::proven;
use super::scalar::{
    Lines, double_quoted, fresh, inside, literal, map, plain_is_text, single_quoted,
};
use super::tree::{self, Kind, Raw};
use super::write::{Insertion, has_comment, item, line_end, pair};

/// A change to the place that a way leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Replaces the text of a scalar; its style stays where the new text can be written in it.
    Set(&'a str),
    /// Puts a new pair behind the others of a mapping, which has no such key.
    Put(&'a str, New<'a>),
    /// Puts a new item behind the others of a sequence.
    Push(New<'a>),
    /// Puts a new item behind the item of a sequence with this number.
    After(usize, New<'a>),
}

/// A value that is new in a text. Texts are texts for every reader, whatever they look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum New<'a> {
    /// A scalar.
    Text(Cow<'a, str>),
    /// A mapping, in this order.
    Map(Vec<(&'a str, New<'a>)>),
    /// A sequence.
    List(Vec<New<'a>>),
}

impl<'a> From<&'a str> for New<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

/// Changes one place of a text, and proves that nothing else changed.
///
/// Returns the whole new text. Where the place has the text already, that is the old one. Goes the
/// way as [`find`] does.
///
/// # Errors
///
/// [`Refusal`], with the place that it is about, when the way does not lead to what the change is
/// for, when something on the way is not clear, or when no way of writing the change was proven.
pub fn splice(bytes: &[u8], steps: &[Step<'_>], change: &Change<'_>) -> Result<Vec<u8>, Refusal> {
    let text = tree::text_of(bytes)?;
    let mark = bytes.get(..bytes.len().saturating_sub(text.len())).unwrap_or_default();
    let new = splice_text(text, steps, change)?;
    Ok([mark, new.as_bytes()].concat())
}

/// Reads what stands at a place.
///
/// Positions in the node are those of the innermost text on the way.
///
/// # Errors
///
/// [`Refusal`], with [`Why::Missing`] when it is not there.
pub fn find(bytes: &[u8], steps: &[Step<'_>]) -> Result<Node, Refusal> {
    find_text(tree::text_of(bytes)?, steps)
}

fn find_text(text: &str, steps: &[Step<'_>]) -> Result<Node, Refusal> {
    let way = Way::of(steps);
    let roots = tree::documents(text, false)?;
    let trail = locate(text, &roots, way.document, way.here)?;
    if way.further.is_empty() {
        let indexes = trail.indexes;
        return Ok(node_of(take(roots, &indexes)?)?);
    }
    let (inner, at) = text_within(&trail)?;
    find_text(inner, way.further).map_err(|refusal| refusal.within(at))
}

/// Takes the node at a place out of its tree.
fn take(mut roots: Vec<Raw>, indexes: &[usize]) -> Result<Raw, Refusal> {
    let lost = || Refusal::new(Why::Missing, super::Position::default(), "no place");
    let (number, way) = indexes.split_first().ok_or_else(lost)?;
    let mut node = (*number < roots.len()).then(|| roots.swap_remove(*number)).ok_or_else(lost)?;
    for index in way {
        node = match node.kind {
            Kind::Sequence { items, .. } => items.into_iter().nth(*index),
            Kind::Mapping { pairs, .. } => pairs.into_iter().nth(*index).map(|(_, value)| value),
            _ => None,
        }
        .ok_or_else(lost)?;
    }
    Ok(node)
}

/// A way, cut where it goes into a text within the text.
struct Way<'a> {
    document: Document<'a>,
    here: &'a [Step<'a>],
    /// Begins with [`Step::Document`], or is empty.
    further: &'a [Step<'a>],
}

impl<'a> Way<'a> {
    fn of(steps: &'a [Step<'a>]) -> Self {
        let (document, steps) = match steps.split_first() {
            Some((Step::Document(document), rest)) => (*document, rest),
            _ => (Document::First, steps),
        };
        let end = steps.iter().position(|step| matches!(step, Step::Document(_)));
        let (here, further) = steps.split_at(end.unwrap_or(steps.len()));
        Self { document, here, further }
    }
}

/// Returns the text that the way goes into.
fn text_within<'a>(trail: &Trail<'a>) -> Result<(&'a str, super::Position), Refusal> {
    let node = trail.node()?;
    match node.scalar() {
        Some((text, _)) if !text.is_empty() => {
            // What an escape makes of it has to be a text as well.
            tree::text_of(text.as_bytes())
                .map(|inner| (inner, node.at))
                .map_err(|error| Refusal::from(error).within(node.at))
        }
        _ => {
            let what = format!("{} where a text that is YAML itself is expected", kind(node));
            Err(Refusal::new(Why::Shape, node.at, what))
        }
    }
}

fn splice_text(text: &str, steps: &[Step<'_>], change: &Change<'_>) -> Result<String, Refusal> {
    let way = Way::of(steps);
    let roots = tree::documents(text, false)?;
    let trail = locate(text, &roots, way.document, way.here)?;
    if !way.further.is_empty() {
        let (inner, at) = text_within(&trail)?;
        let new = splice_text(inner, way.further, change).map_err(|refusal| refusal.within(at))?;
        return set(text, &roots, &trail, &new);
    }
    let insertion = match change {
        Change::Set(new) => return set(text, &roots, &trail, new),
        Change::Put(key, value) => {
            no_such_key(&trail, key)?;
            pair(text, &trail, key, value)?
        }
        Change::Push(value) => item(text, &trail, None, value)?,
        Change::After(index, value) => {
            let node = trail.node()?;
            if node.child(*index).is_none() {
                return Err(Refusal::new(Why::Missing, node.at, format!("no item {index}")));
            }
            item(text, &trail, Some(*index), value)?
        }
    };
    let Insertion { at, bytes } = insertion;
    replaced(text, at..at, &bytes)
        .filter(|new| proven(&roots, &trail.indexes, change, new))
        .ok_or_else(|| unproven(&trail))
}

fn no_such_key(trail: &Trail<'_>, key: &str) -> Result<(), Refusal> {
    let node = trail.node()?;
    let Kind::Mapping { pairs, .. } = &node.kind else { return Ok(()) };
    let mut keys = pairs.iter().map(|(key, _)| key);
    match keys.find(|old| old.scalar().is_some_and(|(old, _)| old == key)) {
        Some(old) => Err(Refusal::new(Why::Twice, old.at, format!("the key {key} already"))),
        None => Ok(()),
    }
}

fn unproven(trail: &Trail<'_>) -> Refusal {
    let at = trail.node().map(|node| node.at).unwrap_or_default();
    let what = "written so that a change could not be proven to change nothing else";
    Refusal::new(Why::Unproven, at, what)
}

fn replaced(text: &str, range: Range<usize>, bytes: &str) -> Option<String> {
    Some([text.get(..range.start)?, bytes, text.get(range.end..)?].concat())
}

/// Sets the text of the scalar at a place: the first way of writing it that is proven.
fn set(text: &str, roots: &[Raw], trail: &Trail<'_>, new: &str) -> Result<String, Refusal> {
    let node = trail.node()?;
    let Some((old, style)) = node.scalar() else {
        let what = format!("{} where a scalar is expected", kind(node));
        return Err(Refusal::new(Why::Shape, node.at, what));
    };
    let change = Change::Set(new);
    if old == new && proven(roots, &trail.indexes, &change, text) {
        return Ok(text.to_owned());
    }
    let block = matches!(style, ScalarStyle::Literal | ScalarStyle::Folded);
    if block && tree::ends_in_blanks(text, node.span.end) {
        return Err(Refusal::new(Why::Unproven, node.at, "blanks on the last line of the text"));
    }
    let place = Scalar { text, node, old, style, in_flow: in_flow(trail), key: trail.key };
    for write in [Scalar::smallest, Scalar::same_style, Scalar::single, Scalar::double] {
        if let Some((range, bytes)) = write(&place, new) {
            no_tab_behind(text, range.end.max(node.span.end), node.at)?;
            let new = replaced(text, range, &bytes);
            if let Some(new) = new.filter(|new| proven(roots, &trail.indexes, &change, new)) {
                return Ok(new);
            }
        }
    }
    Err(unproven(trail))
}

fn in_flow(trail: &Trail<'_>) -> bool {
    use super::tree::Layout;
    trail.nodes.iter().any(|node| match &node.kind {
        Kind::Sequence { layout, .. } | Kind::Mapping { layout, .. } => *layout != Layout::Block,
        _ => false,
    })
}

/// A scalar that is to be set, and the ways of writing it: each gives bytes and what they replace.
struct Scalar<'a> {
    text: &'a str,
    node: &'a Raw,
    old: &'a str,
    style: ScalarStyle,
    in_flow: bool,
    key: Option<&'a Raw>,
}

type Write = Option<(Range<usize>, String)>;

impl Scalar<'_> {
    fn raw(&self) -> &str {
        self.text.get(self.node.span.clone()).unwrap_or_default()
    }

    fn is_block(&self) -> bool {
        matches!(self.style, ScalarStyle::Literal | ScalarStyle::Folded)
    }

    fn line_end(&self) -> &'static str {
        line_end(self.text, self.node.span.start)
    }

    /// Replaces only the bytes of the text that differ, within the scalar as it is written.
    fn smallest(&self, new: &str) -> Write {
        if self.style == ScalarStyle::Plain && !plain_is_text(new, self.in_flow) {
            return None;
        }
        let raw = self.raw();
        let map = map(raw, self.style, self.old)?;
        let (prefix, suffix) = shared_ends(self.old, new);
        let end = self.old.len().checked_sub(suffix)?;
        let part = new.get(prefix..new.len().checked_sub(suffix)?)?;
        let ends_behind =
            self.old.get(end..).is_none_or(|rest| rest.is_empty() || rest.starts_with('\n'));
        let lines = Lines { indent: map.indent, end: self.line_end(), ends_behind };
        let bytes = inside(part, self.style, &lines)?;
        let (from, to) = (map.raw(prefix)?, map.raw(end)?);
        // An empty line of a block scalar has no indent, which what comes to it needs.
        if self.is_block() && raw.get(..from)?.ends_with('\n') && !bytes.is_empty() {
            return None;
        }
        let base = self.node.span.start;
        let range = base.checked_add(from)?..base.checked_add(to)?;
        Some((range, bytes.into_owned()))
    }

    /// Writes the whole scalar anew in its style; a folded one as a literal.
    fn same_style(&self, new: &str) -> Write {
        let bytes = match self.style {
            ScalarStyle::Plain => fresh(new, self.in_flow),
            ScalarStyle::SingleQuoted => single_quoted(new),
            ScalarStyle::DoubleQuoted => double_quoted(new),
            ScalarStyle::Literal | ScalarStyle::Folded => {
                let indent = map(self.raw(), self.style, self.old)?.indent;
                let mut bytes = literal(self.raw(), new, indent, self.line_end())?;
                if self.node.span.end == self.text.len() && new.ends_with('\n') {
                    bytes.push_str(self.line_end());
                }
                bytes
            }
        };
        self.whole(bytes)
    }

    fn single(&self, new: &str) -> Write {
        if self.is_block() { None } else { self.whole(single_quoted(new)) }
    }

    fn double(&self, new: &str) -> Write {
        if self.is_block() && has_comment(self.raw()) {
            return None;
        }
        self.whole(double_quoted(new))
    }

    /// Replaces all of the scalar, or puts it behind the colon or dash where nothing is yet.
    fn whole(&self, bytes: String) -> Write {
        if !self.node.is_empty() {
            // The bytes have to be the scalar's own: what else they held would be lost unseen.
            let own = map(self.raw(), self.style, self.old).is_some()
                || (self.is_block() && self.raw().trim() == tree::header(self.raw()));
            own.then_some(())?;
            return Some((self.node.span.clone(), bytes));
        }
        let at = match self.key {
            Some(key) => tree::colon_after(self.text, key)?,
            None => self.node.span.end,
        };
        // Else the colon is part of the key for some readers.
        tree::stands_alone(self.text, at).then(|| (at..at, format!(" {bytes}")))
    }
}

/// Measures what two texts have in common, at the end first, in whole characters.
fn shared_ends(old: &str, new: &str) -> (usize, usize) {
    let count = |pairs: &mut dyn Iterator<Item = (char, char)>| {
        pairs.take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum::<usize>()
    };
    let suffix = count(&mut old.chars().rev().zip(new.chars().rev()));
    let old = old.get(..old.len().saturating_sub(suffix)).unwrap_or_default();
    let new = new.get(..new.len().saturating_sub(suffix)).unwrap_or_default();
    (count(&mut old.chars().zip(new.chars())), suffix)
}

#[cfg(test)]
#[path = "edit_tests.rs"]
mod tests;
