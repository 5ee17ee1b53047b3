//! Changes of YAML texts, read by the YAML reader of Kubernetes and by another one: the valid texts
//! of the YAML test suite, which is published with the Go module `goccy/go-yaml`, and random ones.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use etcdkit::kube::yaml::{Change, New};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use crate::programs::{Dice, Real, bounded, real};
use crate::yaml_model::{Part, change, changes, places, read};
use crate::yaml_texts::texts;

/// Longest download of the module that the suite is in.
const FETCH: Duration = Duration::from_secs(300);

/// A change that was made.
struct Made {
    old: String,
    new: String,
    way: Vec<Part>,
    change: Change<'static>,
}

/// Makes every change at every place of a text, each held against the other reader.
fn all_changes(text: &str, made: &mut Vec<Made>, refused: &mut usize) {
    let ways = match read(text) {
        Some(documents) => places(&documents[0]),
        // The other reader refuses it: what is tried is not known to be there.
        None => vec![vec![], vec![Part::Index(0)], vec![Part::Index(1)]],
    };
    for way in ways {
        for asked in changes() {
            match change(text, &way, &asked) {
                Ok(new) => {
                    let (old, way) = (text.to_owned(), way.clone());
                    made.push(Made { old, new, way, change: asked });
                }
                Err(_) => *refused += 1,
            }
        }
    }
}

/// Holds changes against what Kubernetes reads before and after them; counts those it could read.
fn held_to_kubernetes(real: &Real, made: &[Made]) -> usize {
    let texts: Vec<&str> = made.iter().flat_map(|made| [&*made.old, &*made.new]).collect();
    let seen = real.yaml(&texts);
    let mut held = 0;
    for (made, seen) in made.iter().zip(seen.chunks(2)) {
        let [Some(before), after] = seen else { continue };
        let mut expected = before.clone();
        // Kubernetes has other names for keys such as `yes`, and reads a few texts as nobody else.
        if !same_before(made, before) || !apply(&mut expected, &made.way, &made.change) {
            continue;
        }
        let Made { old, new, way, change } = made;
        assert_eq!(after.as_ref(), Some(&expected), "{way:?} {change:?}\n{old:?}\n{new:?}");
        held += 1;
    }
    held
}

/// Tells whether Kubernetes read the old text as the other reader did, but for types of scalars.
fn same_before(made: &Made, before: &Value) -> bool {
    let other = read(&made.old).and_then(|all| serde_json::to_value(&all[0]).ok());
    other.is_none_or(|other| alike(before, &other))
}

fn alike(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::String(a), Value::String(b)) => a == b,
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| alike(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let here = |(key, a)| b.get(key).is_none_or(|b| alike(a, b));
            a.len() == b.len() && a.iter().all(here)
        }
        (Value::Array(_) | Value::Object(_), _) | (_, Value::Array(_) | Value::Object(_)) => false,
        _ => true,
    }
}

fn apply(root: &mut Value, way: &[Part], change: &Change<'_>) -> bool {
    let mut node = root;
    for part in way {
        let child = match part {
            Part::Key(key) => node.get_mut(key),
            Part::Index(index) => node.get_mut(index),
        };
        let Some(child) = child else { return false };
        node = child;
    }
    match (change, node) {
        (Change::Set(text), node) => *node = json!(text),
        (Change::Put(key, new), Value::Object(pairs)) => {
            pairs.insert((*key).to_owned(), value(new));
        }
        (Change::Push(new), Value::Array(items)) => items.push(value(new)),
        (Change::After(index, new), Value::Array(items)) => items.insert(index + 1, value(new)),
        _ => return false,
    }
    true
}

fn value(new: &New<'_>) -> Value {
    match new {
        New::Text(text) => json!(text),
        New::Map(pairs) => {
            Value::Object(pairs.iter().map(|(key, new)| ((*key).to_owned(), value(new))).collect())
        }
        New::List(items) => Value::Array(items.iter().map(value).collect()),
    }
}

impl Real {
    /// Reads texts as Kubernetes does; `None` for one that it refuses.
    fn yaml(&self, texts: &[&str]) -> Vec<Option<Value>> {
        let mut command = self.program("yamljson");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("yamljson");
        let mut input = child.stdin.take().expect("its input");
        let lines: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
        let writer = std::thread::spawn(move || {
            for line in lines {
                writeln!(input, "{line}").expect("a line to yamljson");
            }
        });
        let output = child.wait_with_output().expect("yamljson to end");
        writer.join().expect("a writer");
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).expect("UTF-8");
        let seen: Vec<_> = text.lines().map(|line| serde_json::from_str(line).ok()).collect();
        assert_eq!(seen.len(), texts.len());
        seen
    }
}

/// Finds the folder of the suite among the test data of the module.
fn suite() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/yaml");
    let mut go = Command::new("go");
    go.current_dir(folder).args(["mod", "download", "-json", "github.com/goccy/go-yaml"]);
    let ran = bounded(&mut go, FETCH);
    assert_eq!(ran.code, 0, "{ran}");
    let module: Value = serde_json::from_str(&ran.stdout).expect("JSON of go");
    Path::new(module["Dir"].as_str().expect("a folder")).join("testdata/yaml-test-suite")
}

/// Lists the suite's texts that are valid.
fn valid(folder: &Path, all: &mut Vec<String>) {
    let mut entries: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            valid(&path, all);
        } else if path.ends_with("in.yaml") && !folder.join("error").exists() {
            all.push(fs::read_to_string(path).unwrap());
        }
    }
}

#[test]
fn texts_of_the_suite_are_changed_exactly_or_refused() {
    let Some(real) = real() else { return };
    let mut texts = Vec::new();
    valid(&suite(), &mut texts);
    assert!(texts.len() > 300, "{} texts", texts.len());
    let (mut made, mut refused) = (Vec::new(), 0);
    for text in &texts {
        all_changes(text, &mut made, &mut refused);
    }
    let held = held_to_kubernetes(&real, &made);
    println!("{} changes made, {refused} refused, {held} read by Kubernetes", made.len());
    assert!(made.len() > 3500 && held > 3000);
}

#[test]
fn random_texts_mean_the_same_to_kubernetes() {
    let Some(real) = real() else { return };
    let mut runner = TestRunner::deterministic();
    let (mut made, mut refused) = (Vec::new(), 0);
    for _ in 0..300 {
        let (text, _) = texts().new_tree(&mut runner).expect("a text").current();
        all_changes(&text, &mut made, &mut refused);
    }
    let held = held_to_kubernetes(&real, &made);
    println!("{} changes made, {refused} refused, {held} read by Kubernetes", made.len());
    assert!(held * 10 > made.len() * 9, "{held} of {}", made.len());
}

/// Bytes that mean something to YAML, and a few that do not.
const BYTES: &[u8] = b"\n\n\r\t  -:?,[]{}#&*!|>'\"%@`ab01~\\=<+.";

/// Changes a few bytes of a text.
fn damaged(text: &str, dice: &mut Dice) -> Option<String> {
    let mut bytes = text.as_bytes().to_vec();
    for _ in 0..=dice.below(4) {
        let at = dice.below(bytes.len() + 1);
        let byte = BYTES[dice.below(BYTES.len())];
        match dice.below(3) {
            0 if at < bytes.len() => drop(bytes.remove(at)),
            1 if at < bytes.len() => bytes[at] = byte,
            _ => bytes.insert(at, byte),
        }
    }
    String::from_utf8(bytes).ok()
}

#[test]
fn damaged_texts_are_changed_exactly_or_refused() {
    let Some(real) = real() else { return };
    let mut all = Vec::new();
    valid(&suite(), &mut all);
    let mut dice = Dice::new(1);
    let (mut made, mut refused) = (Vec::new(), 0);
    for _ in 0..1500 {
        let text = all[dice.below(all.len())].clone();
        if let Some(text) = damaged(&text, &mut dice) {
            all_changes(&text, &mut made, &mut refused);
        }
    }
    let held = held_to_kubernetes(&real, &made);
    println!("{} changes made, {refused} refused, {held} read by Kubernetes", made.len());
    assert!(held > 1000);
}
