//! The text after a change, read again and held against what was asked for.

use saphyr_parser::ScalarStyle;

use super::edit::{Change, New};
use super::scalar::plain_is_text;
use super::tree::{self, Kind, Layout, Raw};

/// Tells whether a new text is the old documents with exactly one change at one place.
///
/// `indexes` is the place: the number of the document, then of each item or pair.
pub(super) fn proven(old: &[Raw], indexes: &[usize], change: &Change<'_>, text: &str) -> bool {
    let Ok(new) = tree::text_of(text.as_bytes()).and_then(|text| tree::documents(text, false))
    else {
        return false;
    };
    let Some((document, way)) = indexes.split_first() else { return false };
    old.len() == new.len()
        && old.iter().zip(&new).enumerate().all(|(number, (old, new))| {
            if number == *document { changed(old, new, way, change) } else { same(old, new) }
        })
}

/// Tells whether a node is the old one but for the change further down the way.
fn changed(old: &Raw, new: &Raw, way: &[usize], change: &Change<'_>) -> bool {
    let Some((index, way)) = way.split_first() else { return done(old, new, change) };
    let child = |number: usize, old: &Raw, new: &Raw| {
        if number == *index { changed(old, new, way, change) } else { same(old, new) }
    };
    if !same_marks(old, new) {
        return false;
    }
    match (&old.kind, &new.kind) {
        (Kind::Sequence { items: a, layout: la }, Kind::Sequence { items: b, layout: lb }) => {
            let mut all = a.iter().zip(b).enumerate();
            la == lb && a.len() == b.len() && all.all(|(n, (a, b))| child(n, a, b))
        }
        (Kind::Mapping { pairs: a, layout: la }, Kind::Mapping { pairs: b, layout: lb }) => {
            let mut all = a.iter().zip(b).enumerate();
            la == lb
                && a.len() == b.len()
                && all.all(|(n, ((ka, a), (kb, b)))| same(ka, kb) && child(n, a, b))
        }
        _ => false,
    }
}

/// Tells whether a node is the old one with the change made.
fn done(old: &Raw, new: &Raw, change: &Change<'_>) -> bool {
    if !same_marks(old, new) {
        return false;
    }
    match (change, &old.kind, &new.kind) {
        (Change::Set(text), Kind::Scalar { .. }, _) => is_text(new, text),
        (
            Change::Put(key, value),
            Kind::Mapping { pairs: a, layout: la },
            Kind::Mapping { pairs: b, layout: lb },
        ) => {
            let Some(((new_key, new_value), rest)) = b.split_last() else { return false };
            la == lb
                && a.len() == rest.len()
                && a.iter().zip(rest).all(|((ka, a), (kb, b))| same(ka, kb) && same(a, b))
                && is_text(new_key, key)
                && is(new_value, value)
        }
        (
            Change::Push(value) | Change::After(_, value),
            Kind::Sequence { items: a, layout: la },
            Kind::Sequence { items: b, layout: lb },
        ) => {
            let place = match change {
                Change::After(index, _) => index.saturating_add(1),
                _ => a.len(),
            };
            let (Some((a1, a2)), Some((b1, b2))) =
                (a.split_at_checked(place), b.split_at_checked(place))
            else {
                return false;
            };
            let Some((added, b2)) = b2.split_first() else { return false };
            la == lb && all_same(a1, b1) && all_same(a2, b2) && is(added, value)
        }
        _ => false,
    }
}

fn all_same(old: &[Raw], new: &[Raw]) -> bool {
    old.len() == new.len() && old.iter().zip(new).all(|(old, new)| same(old, new))
}

/// Tells whether two nodes are the same in all but their place.
fn same(old: &Raw, new: &Raw) -> bool {
    if !same_marks(old, new) {
        return false;
    }
    match (&old.kind, &new.kind) {
        (Kind::Alias(a), Kind::Alias(b)) => a == b,
        (Kind::Scalar { text: a, style: sa }, Kind::Scalar { text: b, style: sb }) => {
            a == b && sa == sb
        }
        (Kind::Sequence { items: a, layout: la }, Kind::Sequence { items: b, layout: lb }) => {
            la == lb && all_same(a, b)
        }
        (Kind::Mapping { pairs: a, layout: la }, Kind::Mapping { pairs: b, layout: lb }) => {
            la == lb
                && a.len() == b.len()
                && a.iter().zip(b).all(|((ka, a), (kb, b))| same(ka, kb) && same(a, b))
        }
        _ => false,
    }
}

fn same_marks(old: &Raw, new: &Raw) -> bool {
    old.anchor == new.anchor && old.tag == new.tag
}

/// Tells whether a node is this text for every reader.
fn is_text(node: &Raw, wanted: &str) -> bool {
    let Kind::Scalar { text, style } = &node.kind else { return false };
    let sure = *style != ScalarStyle::Plain || plain_is_text(text, false);
    node.anchor == 0 && node.tag.is_none() && text == wanted && sure
}

/// Tells whether a node is a new value.
fn is(node: &Raw, wanted: &New<'_>) -> bool {
    let marked = node.anchor != 0 || node.tag.is_some();
    match (wanted, &node.kind) {
        (New::Text(text), _) => is_text(node, text),
        (New::List(wanted), Kind::Sequence { items, layout }) => {
            !marked
                && *layout != Layout::Bare
                && wanted.len() == items.len()
                && items.iter().zip(wanted).all(|(node, wanted)| is(node, wanted))
        }
        (New::Map(wanted), Kind::Mapping { pairs, layout }) => {
            !marked
                && *layout != Layout::Bare
                && wanted.len() == pairs.len()
                && pairs
                    .iter()
                    .zip(wanted)
                    .all(|((key, value), (k, v))| is_text(key, k) && is(value, v))
        }
        _ => false,
    }
}
