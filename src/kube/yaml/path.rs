//! How a place in a text is named, and what on the way to it is refused.

use saphyr_parser::ScalarStyle;

use super::tree::{Kind, Layout, Raw};
use super::{Error, Position};

/// One step of the way to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<'a> {
    /// Into a text, which is YAML itself, to one of its documents. As the first step it is about
    /// the file, and may be left out for [`Document::First`]; further on it goes into the text of
    /// the scalar that the way has come to, as into `ClusterConfiguration` of a `ConfigMap`.
    Document(Document<'a>),
    /// To the value of a mapping's key.
    Key(&'a str),
    /// To an item of a sequence, counted from 0.
    Index(usize),
    /// To the only item of a sequence whose key has this text: `Named("name", "etcd-data")`.
    Named(&'a str, &'a str),
}

/// Which document of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Document<'a> {
    /// The first one, which is all that the kubelet reads.
    First,
    /// The only one with these texts under these keys, as `Where(&[("kind", "ConfigMap")])`.
    Where(&'a [(&'a str, &'a str)]),
}

/// Why a text is not changed, or not read at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Why {
    /// Not YAML within the limits.
    Syntax,
    /// The way ends before the place: a key, an item or a document is not there.
    Missing,
    /// Something else is there than the way, or the change, is for.
    Shape,
    /// It is there already, or more than once.
    Twice,
    /// Readers may differ in what the text means on the way: an anchor, an alias, a merge key, a
    /// tag, a key twice, a key that is no scalar, a tab.
    Unclear,
    /// It is written so that it could not be changed with proof that nothing else changes.
    Unproven,
}

/// A text that is not changed, or not read, with the place that it is about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {what}")]
pub struct Refusal {
    /// Which kind of reason.
    pub why: Why,
    /// Where; for a text within the text, where that one begins.
    pub at: Position,
    /// The reason, as a clause.
    pub what: String,
}

impl Refusal {
    pub(super) fn new(why: Why, at: Position, what: impl Into<String>) -> Self {
        Self { why, at, what: what.into() }
    }

    /// Takes a refusal of a text within the text to where that stands.
    pub(super) fn within(self, at: Position) -> Self {
        Self { at, what: format!("in the text there, {self}"), ..self }
    }
}

impl From<Error> for Refusal {
    fn from(Error { at, what }: Error) -> Self {
        Self { why: Why::Syntax, at, what }
    }
}

/// The place that a way leads to, and all nodes on it.
pub(super) struct Trail<'a> {
    /// From the root of the document to the place.
    pub(super) nodes: Vec<&'a Raw>,
    /// Number of the document, then of each item or pair.
    pub(super) indexes: Vec<usize>,
    /// Key of the last pair, where the last step was one to a mapping's value.
    pub(super) key: Option<&'a Raw>,
}

impl<'a> Trail<'a> {
    /// Returns the node at the place.
    pub(super) fn node(&self) -> Result<&'a Raw, Refusal> {
        let lost = || Refusal::new(Why::Missing, Position::default(), "no place");
        self.nodes.last().copied().ok_or_else(lost)
    }
}

/// Goes the way to a place.
///
/// # Errors
///
/// [`Refusal`] for what is not there, and for all on the way that readers may differ in.
pub(super) fn locate<'a>(
    text: &str,
    roots: &'a [Raw],
    document: Document<'_>,
    steps: &[Step<'_>],
) -> Result<Trail<'a>, Refusal> {
    let (number, root) = choose(roots, document)?;
    let mut trail = Trail { nodes: vec![root], indexes: vec![number], key: None };
    clear(root)?;
    for step in steps {
        let node = trail.node()?;
        let (index, key) = next(node, *step)?;
        let Some(child) = node.child(index) else {
            return Err(Refusal::new(Why::Missing, node.at, "not there"));
        };
        no_tabs(text, key.unwrap_or(child), child)?;
        clear(child)?;
        trail.nodes.push(child);
        trail.indexes.push(index);
        trail.key = key;
    }
    Ok(trail)
}

/// Chooses a document.
fn choose<'a>(roots: &'a [Raw], document: Document<'_>) -> Result<(usize, &'a Raw), Refusal> {
    let top = Position { line: 1, column: 1 };
    let wanted = match document {
        Document::First => {
            let first = roots.first().ok_or_else(|| Refusal::new(Why::Missing, top, "no document"));
            return first.map(|root| (0, root));
        }
        Document::Where(wanted) => wanted,
    };
    let mut found = None;
    for (number, root) in roots.iter().enumerate() {
        let mut fits = true;
        for (key, text) in wanted {
            fits = fits && has(root, key, text)?;
        }
        if fits && found.replace((number, root)).is_some() {
            let what = format!("a second document {}", named(wanted));
            return Err(Refusal::new(Why::Twice, root.at, what));
        }
    }
    found.ok_or_else(|| Refusal::new(Why::Missing, top, format!("no document {}", named(wanted))))
}

fn named(wanted: &[(&str, &str)]) -> String {
    let parts: Vec<_> = wanted.iter().map(|(key, text)| format!("{key}: {text}")).collect();
    format!("with {}", parts.join(" and "))
}

/// Tells whether a mapping has a scalar under a key; refuses one that is not clear about it.
fn has(node: &Raw, key: &str, text: &str) -> Result<bool, Refusal> {
    let Kind::Mapping { pairs, .. } = &node.kind else { return Ok(false) };
    let mut found = None;
    for (k, value) in pairs {
        if k.scalar().is_some_and(|(k, _)| k == key) && found.replace(value).is_some() {
            return Err(Refusal::new(Why::Unclear, k.at, format!("a second {key}")));
        }
    }
    let Some(value) = found else { return Ok(false) };
    if matches!(value.kind, Kind::Alias(_)) {
        return Err(Refusal::new(Why::Unclear, value.at, "an alias, which is not resolved"));
    }
    Ok(value.scalar().is_some_and(|(found, _)| found == text))
}

/// Refuses a node on the way that another place of the text, or a tag, may change the meaning of.
fn clear(node: &Raw) -> Result<(), Refusal> {
    let unclear = |at, what| Err(Refusal::new(Why::Unclear, at, what));
    if node.anchor != 0 {
        return unclear(node.at, "an anchor, so that this may stand for other places as well");
    }
    if node.tag.is_some() {
        return unclear(node.at, "a tag, which is not resolved");
    }
    let pairs = match &node.kind {
        Kind::Alias(_) => return unclear(node.at, "an alias, which is not resolved"),
        Kind::Mapping { pairs, .. } => pairs,
        _ => return Ok(()),
    };
    let mut keys = Vec::with_capacity(pairs.len());
    for (key, _) in pairs {
        if key.is_merge() {
            return unclear(key.at, "a merge key, which is not resolved");
        }
        match key.scalar() {
            Some((text, _)) if key.anchor == 0 && key.tag.is_none() => keys.push((text, key.at)),
            Some(_) => return unclear(key.at, "a key with an anchor or a tag"),
            None => return unclear(key.at, "a key that is not a scalar"),
        }
    }
    keys.sort_unstable();
    for pair in keys.windows(2) {
        if let [(first, _), (second, at)] = pair
            && first == second
        {
            return unclear(*at, "a key that stands in the mapping already");
        }
    }
    Ok(())
}

/// Finds the child that a step leads to, and its key.
fn next<'a>(node: &'a Raw, step: Step<'_>) -> Result<(usize, Option<&'a Raw>), Refusal> {
    let missing = |what| Refusal::new(Why::Missing, node.at, what);
    let shape = |wanted: &str| {
        let what = format!("{} where {wanted} is expected", kind(node));
        Refusal::new(Why::Shape, node.at, what)
    };
    match (step, &node.kind) {
        (Step::Key(wanted), Kind::Mapping { pairs, .. }) => {
            let mut all = pairs.iter().enumerate();
            all.find(|(_, (key, _))| key.scalar().is_some_and(|(key, _)| key == wanted))
                .map(|(index, (key, _))| (index, Some(key)))
                .ok_or_else(|| missing(format!("no key {wanted}")))
        }
        (Step::Key(wanted), _) if node.is_empty() => Err(missing(format!("no key {wanted}"))),
        (Step::Key(_), _) => Err(shape("a mapping")),
        (Step::Index(index), Kind::Sequence { items, .. }) => items
            .get(index)
            .map(|_| (index, None))
            .ok_or_else(|| missing(format!("no item {index}"))),
        (Step::Named(key, text), Kind::Sequence { items, .. }) => {
            let mut found = None;
            for (index, item) in items.iter().enumerate() {
                if matches!(item.kind, Kind::Alias(_)) {
                    let what = "an alias, which is not resolved";
                    return Err(Refusal::new(Why::Unclear, item.at, what));
                }
                if has(item, key, text)? && found.replace((index, None)).is_some() {
                    let what = format!("a second item with {key}: {text}");
                    return Err(Refusal::new(Why::Twice, item.at, what));
                }
            }
            found.ok_or_else(|| missing(format!("no item with {key}: {text}")))
        }
        (Step::Index(_) | Step::Named(..), _) => Err(shape("a sequence")),
        (Step::Document(_), _) => Err(shape("a text that is YAML itself")),
    }
}

/// Names a node's kind for a message.
pub(super) fn kind(node: &Raw) -> &'static str {
    match &node.kind {
        Kind::Alias(_) => "an alias",
        Kind::Scalar { .. } if node.is_empty() => "nothing",
        Kind::Scalar { .. } => "a scalar",
        Kind::Sequence { .. } => "a sequence",
        Kind::Mapping { .. } => "a mapping",
    }
}

/// Refuses tabs before a child on its line, and between its key and itself.
fn no_tabs(text: &str, first: &Raw, child: &Raw) -> Result<(), Refusal> {
    let begin = first.span.start;
    let line = text
        .get(..begin)
        .map_or(begin, |before| before.rfind('\n').map_or(0, |at| at.saturating_add(1)));
    let lead = text.get(line..begin).unwrap_or_default();
    let lead = lead.split(|c| !matches!(c, ' ' | '\t' | '-' | '?')).next().unwrap_or_default();
    let gap = text.get(first.span.end..child.span.start).unwrap_or_default();
    let comment = gap.find('#').unwrap_or(gap.len());
    if lead.contains('\t') || gap.get(..comment).unwrap_or_default().contains('\t') {
        return Err(Refusal::new(Why::Unclear, first.at, "a tab, which readers take differently"));
    }
    Ok(())
}

/// Refuses a tab among the blanks and blank lines behind a byte: with another kind of scalar before
/// them, some readers take them differently.
pub(super) fn no_tab_behind(text: &str, end: usize, at: Position) -> Result<(), Refusal> {
    let mut blanks = text.get(end..).unwrap_or_default().bytes();
    if blanks.find(|byte| !matches!(byte, b' ' | b'\r' | b'\n')) == Some(b'\t') {
        let what = "a tab behind it, which readers take differently";
        return Err(Refusal::new(Why::Unclear, at, what));
    }
    Ok(())
}

/// Tells whether a text is JSON by its look: a root in braces whose first key has double quotes.
pub(super) fn is_json(root: &Raw) -> bool {
    let Kind::Mapping { pairs, layout: Layout::Flow } = &root.kind else { return false };
    pairs.first().is_some_and(|(key, _)| {
        matches!(key.kind, Kind::Scalar { style: ScalarStyle::DoubleQuoted, .. })
    })
}
