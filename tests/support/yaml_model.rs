//! A second reader's view of YAML texts, to hold changes against: libyaml's rules, by another
//! parser than the one that the changes are proven with.

use etcdkit::kube::yaml::{Change, New, Refusal, Step, splice};
use serde::Deserialize;
use yaml_serde::Value;

/// A place in the first document of a text.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    Key(String),
    Index(usize),
}

/// Reads all documents of a text; `None` where this reader refuses it.
pub(crate) fn read(text: &str) -> Option<Vec<Value>> {
    // Its mark is told by its place; this reader takes it as a character where it is given a text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let documents = yaml_serde::Deserializer::from_str(text).map(Value::deserialize);
    documents.collect::<Result<Vec<_>, _>>().ok().filter(|all| !all.is_empty())
}

/// Lists all places below a value that keys of texts and numbers of items lead to.
pub(crate) fn places(value: &Value) -> Vec<Vec<Part>> {
    fn below(value: &Value, way: &mut Vec<Part>, all: &mut Vec<Vec<Part>>) {
        all.push(way.clone());
        let mut into = |part, value: &Value| {
            way.push(part);
            below(value, way, all);
            way.pop();
        };
        match value {
            Value::Mapping(pairs) => {
                for (key, value) in pairs {
                    if let Value::String(key) = key {
                        into(Part::Key(key.clone()), value);
                    }
                }
            }
            Value::Sequence(items) => {
                for (index, value) in items.iter().enumerate() {
                    into(Part::Index(index), value);
                }
            }
            _ => {}
        }
    }
    let mut all = Vec::new();
    below(value, &mut Vec::new(), &mut all);
    all
}

/// Makes the change, and holds the new text against what this reader sees in both.
///
/// Panics when something else changed than was asked for. `Ok` is the new text.
pub(crate) fn change(text: &str, way: &[Part], change: &Change<'_>) -> Result<String, Refusal> {
    let steps: Vec<Step<'_>> = way
        .iter()
        .map(|part| match part {
            Part::Key(key) => Step::Key(key),
            Part::Index(index) => Step::Index(*index),
        })
        .collect();
    let new = String::from_utf8(splice(text.as_bytes(), &steps, change)?).expect("UTF-8");
    // What is new was put into one place, or stands for one run of bytes.
    let (kept, old_len) = (shared_ends(text, &new), text.len());
    if !matches!(change, Change::Set(_)) {
        assert_eq!(kept, old_len, "{change:?} took something away from {text:?}: {new:?}");
    }
    if let Some(mut expected) = read(text) {
        let seen = read(&new);
        apply(&mut expected[0], way, change);
        assert_eq!(seen.as_ref(), Some(&expected), "{way:?} {change:?}\n{text:?}\n{new:?}");
    }
    Ok(new)
}

/// Counts the bytes that two texts have in common at their ends.
fn shared_ends(old: &str, new: &str) -> usize {
    let (old, new) = (old.as_bytes(), new.as_bytes());
    let same = |(a, b): &(&u8, &u8)| a == b;
    let prefix = old.iter().zip(new).take_while(same).count();
    let rest = old[prefix..].iter().rev().zip(new[prefix..].iter().rev());
    prefix + rest.take_while(same).count()
}

fn apply(root: &mut Value, way: &[Part], change: &Change<'_>) {
    let mut node = root;
    for part in way {
        node = match (part, node) {
            (Part::Key(key), Value::Mapping(pairs)) => pairs.get_mut(key.as_str()).expect("key"),
            (Part::Index(index), Value::Sequence(items)) => &mut items[*index],
            _ => panic!("no such place"),
        };
    }
    match (change, node) {
        (Change::Set(text), node) => *node = Value::String((*text).to_owned()),
        (Change::Put(key, new), Value::Mapping(pairs)) => {
            pairs.insert((*key).into(), value(new));
        }
        (Change::Push(new), Value::Sequence(items)) => items.push(value(new)),
        (Change::After(index, new), Value::Sequence(items)) => items.insert(index + 1, value(new)),
        (change, node) => panic!("{change:?} was made to {node:?}"),
    }
}

fn value(new: &New<'_>) -> Value {
    match new {
        New::Text(text) => Value::String(text.to_string()),
        New::Map(pairs) => {
            Value::Mapping(pairs.iter().map(|(key, new)| ((*key).into(), value(new))).collect())
        }
        New::List(items) => Value::Sequence(items.iter().map(value).collect()),
    }
}

/// Changes of every kind, to texts that are easy and hard to write.
pub(crate) fn changes() -> Vec<Change<'static>> {
    let texts =
        ["/x/y", "", "yes", "8589934592", "a: b # c", " it's\n\n  \u{e9}\n", "x\n", "--a=b:c"];
    let map = || New::Map(vec![("name", "x".into()), ("no", "1".into())]);
    let list = || New::List(vec![map(), "x: y".into(), New::List(vec![])]);
    let mut all: Vec<_> = texts.into_iter().map(Change::Set).collect();
    for new in ["--k=v".into(), map(), list()] {
        all.push(Change::Put("new key", new.clone()));
        all.push(Change::Push(new.clone()));
        all.push(Change::After(0, new));
    }
    all
}
