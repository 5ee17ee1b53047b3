//! Holds the house rules: layers, names, sizes, codes and their documents, what lies where.
//!
//! Each rule is a function from text to complaints, so that each can be seen to fail on a bad
//! sample (the tests named `..._can_fail`).

#![expect(clippy::expect_used, reason = "a test that cannot read the project has failed")]

#[path = "support/wire_types.rs"]
mod wire_types;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use etcdkit::format::finding::{Code, Severity};
use etcdkit::ops::ExitCode;

const LINES_MAX: usize = 900;
const COLUMNS_MAX: usize = 100;

/// What each layer may use, besides itself.
const LAYERS: &[(&str, &[&str])] = &[
    ("format", &[]),
    ("bolt", &["format"]),
    ("etcd", &["format", "bolt"]),
    ("store", &["format", "bolt", "etcd"]),
    ("kube", &["format"]),
    ("live", &["format"]),
    ("repo", &["format"]),
    ("ops", &["format", "bolt", "etcd", "store", "kube", "live", "repo"]),
    ("cli", &["format", "bolt", "etcd", "store", "kube", "live", "repo", "ops"]),
];

/// Files and folders that may lie at the top; files that begin with a dot may as well.
const TOP: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
    "benches",
    "docs",
    "fixtures",
    "packaging",
    "src",
    "target",
    "tests",
];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect(path)
}

/// Lists files below a folder as paths from the root, without what building leaves behind.
fn files_below(folder: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder of the project") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let made = ["target", "corpus", "artifacts", "coverage", ".git"];
            if path.is_dir() {
                if !made.contains(&name.as_str()) {
                    folders.push(path);
                }
            } else {
                let path = path.strip_prefix(root()).expect("below the root");
                found.push(path.to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

fn extension(path: &str) -> &str {
    Path::new(path).extension().and_then(|e| e.to_str()).unwrap_or_default()
}

fn rust_files() -> Vec<String> {
    let all = ["src", "tests", "benches"].into_iter().filter(|dir| root().join(dir).is_dir());
    all.flat_map(files_below).filter(|path| extension(path) == "rs").collect()
}

fn report(complaints: &[String]) {
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

/// Takes comments and the contents of string literals out, so that only code is left.
///
/// Knows what the project's own sources use: line and block comments, plain, byte and raw strings,
/// character literals, lifetimes.
fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let mut out = String::new();
    let mut i = 0;
    while i < chars.len() {
        match at(i) {
            '/' if at(i + 1) == '/' => {
                while i < chars.len() && at(i) != '\n' {
                    i += 1;
                }
            }
            '/' if at(i + 1) == '*' => {
                i += 2;
                while i < chars.len() && !(at(i) == '*' && at(i + 1) == '/') {
                    i += 1;
                }
                i += 2;
            }
            'r' if !is_word(at(i.wrapping_sub(1)))
                || (at(i.wrapping_sub(1)) == 'b' && !is_word(at(i.wrapping_sub(2)))) =>
            {
                let hashes = (i + 1..).take_while(|&j| at(j) == '#').count();
                if at(i + 1 + hashes) == '"' {
                    i += 2 + hashes;
                    let closed = |i: usize| at(i) == '"' && (1..=hashes).all(|j| at(i + j) == '#');
                    while i < chars.len() && !closed(i) {
                        i += 1;
                    }
                    i += 1 + hashes;
                } else {
                    out.push('r');
                    i += 1;
                }
            }
            '"' => {
                i += 1;
                while i < chars.len() && at(i) != '"' {
                    i += if at(i) == '\\' { 2 } else { 1 };
                }
                i += 1;
            }
            '\'' if at(i + 1) == '\\' => {
                i += 3;
                while i < chars.len() && at(i) != '\'' {
                    i += 1;
                }
                i += 1;
            }
            '\'' if at(i + 2) == '\'' => i += 3,
            c => {
                out.push(c);
                i += 1;
            }
        }
    }
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Names the modules directly below the crate that a source uses.
fn used_layers(source: &str) -> BTreeSet<String> {
    let code: String = code_only(source).split_whitespace().collect::<Vec<_>>().join(" ");
    let code = code.replace(" ::", "::").replace(":: ", "::").replace("{ ", "{");
    let mut used = BTreeSet::new();
    for root in ["crate::", "etcdkit::"] {
        for (start, _) in code.match_indices(root) {
            if code[..start].chars().next_back().is_some_and(is_word) {
                continue;
            }
            let rest = &code[start + root.len()..];
            match rest.strip_prefix('{') {
                Some(group) => used.extend(group_heads(group)),
                None => used.extend(head(rest)),
            }
        }
    }
    used
}

fn head(path: &str) -> Option<String> {
    let word: String = path.chars().take_while(|&c| is_word(c)).collect();
    (!word.is_empty()).then_some(word)
}

/// Names the first words of the items of a `{a, b::{c, d}}` group, without those further in.
fn group_heads(group: &str) -> Vec<String> {
    let mut heads = Vec::new();
    let mut depth = 0;
    let mut item = String::new();
    for c in group.chars() {
        match c {
            '}' if depth == 0 => break,
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.extend(head(std::mem::take(&mut item).trim())),
            c if depth == 0 => item.push(c),
            _ => {}
        }
    }
    heads.extend(head(item.trim()));
    heads
}

fn check_layers(path: &str, source: &str) -> Vec<String> {
    let Some(rest) = path.strip_prefix("src/") else { return Vec::new() };
    let Some((layer, _)) = rest.split_once('/') else { return Vec::new() };
    let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == layer) else {
        return vec![format!("{path}: folder {layer} is no layer")];
    };
    let known: Vec<&str> = LAYERS.iter().map(|(name, _)| *name).collect();
    used_layers(source)
        .into_iter()
        .filter(|used| used != layer && known.contains(&used.as_str()))
        .filter(|used| !allowed.contains(&used.as_str()))
        .map(|used| format!("{path}: {layer} must not use {used}"))
        .collect()
}

/// Generated code is not held to sizes.
fn is_generated(path: &str) -> bool {
    path.starts_with("src/store/wire/")
}

fn check_shape(path: &str, source: &str) -> Vec<String> {
    let mut complaints = Vec::new();
    let lines = source.lines().count();
    if lines > LINES_MAX {
        complaints.push(format!("{path}: {lines} lines; split the story (at most {LINES_MAX})"));
    }
    // Assembled, so that this file does not hold the marks that it looks for.
    let marks = [["TO", "DO"], ["FIX", "ME"], ["XX", "X"]].map(|parts| parts.concat());
    for (number, line) in (1..).zip(source.lines()) {
        let columns = line.chars().count();
        if columns > COLUMNS_MAX {
            complaints.push(format!("{path}:{number}: {columns} columns"));
        }
        if !line.is_ascii() {
            complaints.push(format!("{path}:{number}: not ASCII"));
        }
        if let Some(mark) = marks.iter().find(|mark| has_word(line, mark)) {
            complaints.push(format!("{path}:{number}: {mark}; do it or write it down elsewhere"));
        }
    }
    complaints
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_word) && !after.is_some_and(is_word)
    })
}

fn check_names(path: &str, source: &str) -> Vec<String> {
    let refused = |word: &str| {
        let word = word.to_ascii_lowercase();
        ["util", "utils", "helper", "helpers", "common", "misc", "manager"].contains(&word.as_str())
            || word.ends_with("manager")
            || word.ends_with("helper")
            || word.ends_with("utils")
    };
    let mut complaints = Vec::new();
    let parts = path.split(['/', '.']).filter(|part| refused(part));
    complaints.extend(parts.map(|part| format!("{path}: named {part}; say what it is about")));
    let code = code_only(source);
    let words = code.split(|c| !is_word(c)).filter(|word| !word.is_empty());
    let mut last = "";
    for word in words {
        if ["mod", "struct", "enum", "trait", "type", "fn"].contains(&last) && refused(word) {
            complaints.push(format!("{path}: {last} {word}; say what it is about"));
        }
        last = word;
    }
    complaints
}

/// Finds hosts of package registries and paths of one machine, which no reader has.
fn check_places(path: &str, text: &str) -> Vec<String> {
    let hosts = [["crates", ".io"], ["proxy.golang", ".org"], ["sum.golang", ".org"]]
        .into_iter()
        .chain([["registry.npmjs", ".org"], ["pypi", ".org"], ["pythonhosted", ".org"]])
        .map(|parts| parts.concat());
    let paths = [["/ro", "ot/"], ["/wo", "rk/"], ["/home/", "user"]].map(|parts| parts.concat());
    let mut complaints = Vec::new();
    for host in hosts {
        if text.contains(&host) {
            complaints.push(format!("{path}: names the package registry {host}"));
        }
    }
    for place in paths {
        let at_start = |at: usize| {
            let before = text[..at].chars().next_back();
            // `x/root/y` is a relative path, and `--root/` an option.
            !before.is_some_and(|c| is_word(c) || "./-})$>*".contains(c))
        };
        if text.match_indices(&place).any(|(at, _)| at_start(at)) {
            complaints.push(format!("{path}: holds the machine path {place}"));
        }
    }
    complaints
}

fn check_findings(document: &str, codes: &[(&str, &str, &str)]) -> Vec<String> {
    let mut complaints = Vec::new();
    let rows: Vec<Vec<&str>> = table_rows(document)
        .filter(|row| row.len() == 4 && row[0].chars().any(|c| c.is_ascii_digit()))
        .collect();
    for (id, severity, meaning) in codes {
        match rows.iter().filter(|row| row[0] == *id).collect::<Vec<_>>()[..] {
            [row] if row[1] == *severity && row[2] == *meaning && !row[3].is_empty() => {}
            [_] => complaints.push(format!("{id}: severity or meaning differs from the source")),
            ref found => complaints.push(format!("{id}: {} rows instead of one", found.len())),
        }
    }
    for row in rows {
        if !codes.iter().any(|(id, ..)| *id == row[0]) {
            complaints.push(format!("{}: no such code", row[0]));
        }
    }
    complaints
}

fn check_exit_codes(document: &str, codes: &[(u8, &str, &str)]) -> Vec<String> {
    let mut complaints = Vec::new();
    let rows: Vec<Vec<&str>> =
        table_rows(document).filter(|row| row.len() == 4 && row[0].parse::<u8>().is_ok()).collect();
    for (number, name, meaning) in codes {
        let number = number.to_string();
        if !rows.iter().any(|row| row[..3] == [number.as_str(), name, meaning]) {
            complaints.push(format!("{number} {name}: no row with this name and meaning"));
        }
    }
    for row in rows {
        if !codes.iter().any(|(number, ..)| number.to_string() == row[0]) {
            complaints.push(format!("{}: no such code", row[0]));
        }
    }
    complaints
}

fn table_rows(document: &str) -> impl Iterator<Item = Vec<&str>> {
    document.lines().filter_map(|line| {
        let line = line.strip_prefix('|')?.strip_suffix('|')?;
        Some(line.split('|').map(str::trim).collect())
    })
}

fn check_recipes(readme: &str, files: &[String]) -> Vec<String> {
    let folders: BTreeSet<&str> = files
        .iter()
        .filter_map(|path| path.strip_prefix("fixtures/")?.rsplit_once('/'))
        .map(|(folder, _)| folder)
        .collect();
    folders
        .into_iter()
        .filter(|folder| {
            !table_rows(readme)
                .any(|row| row.len() == 2 && row[0] == format!("`{folder}/`") && !row[1].is_empty())
        })
        .map(|folder| format!("fixtures/README.md: no line says how `{folder}/` was made"))
        .collect()
}

fn check_top(names: &[String]) -> Vec<String> {
    let wrong = names.iter().filter(|name| !name.starts_with('.') && !TOP.contains(&name.as_str()));
    wrong.map(|name| format!("{name}: does not belong at the top")).collect()
}

fn check_lock(lock: &str) -> Vec<String> {
    let refused = lock.lines().filter(|line| line.starts_with("name = \"aws-lc-"));
    refused.map(|line| format!("Cargo.lock: {line}; ring is the one provider here")).collect()
}

fn severity_name(severity: Severity) -> &'static str {
    match severity {
        Severity::Info => "info",
        Severity::Warning => "warning",
        Severity::Error => "error",
    }
}

#[test]
fn no_layer_uses_one_above_it() {
    let files = rust_files();
    report(&files.iter().flat_map(|path| check_layers(path, &read(path))).collect::<Vec<_>>());
}

#[test]
fn sources_are_short_narrow_and_ascii() {
    let files = rust_files().into_iter().filter(|path| !is_generated(path));
    report(&files.flat_map(|path| check_shape(&path, &read(&path))).collect::<Vec<_>>());
}

#[test]
fn names_say_what_things_are_about() {
    let files = rust_files().into_iter().filter(|path| !is_generated(path));
    report(&files.flat_map(|path| check_names(&path, &read(&path))).collect::<Vec<_>>());
}

#[test]
fn no_registry_host_and_no_machine_path() {
    let mut files: Vec<String> =
        ["src", "tests", "benches", "docs", "fixtures", "packaging", ".ci", ".cargo"]
            .into_iter()
            .filter(|dir| root().join(dir).is_dir())
            .flat_map(files_below)
            .collect();
    let top = ["README.md", "CHANGELOG.md", "Cargo.toml", ".clippy.toml", ".rustfmt.toml"];
    files.extend(top.map(str::to_owned).into_iter().filter(|path| root().join(path).is_file()));
    let mut complaints = Vec::new();
    for path in files {
        // Cargo writes lock files, hosts and all; what is not text is no text file.
        if path.ends_with("Cargo.lock") || path.ends_with("go.sum") {
            continue;
        }
        if let Ok(text) = fs::read_to_string(root().join(&path)) {
            complaints.extend(check_places(&path, &text));
        }
    }
    report(&complaints);
}

#[test]
fn every_finding_code_is_documented() {
    let codes: Vec<_> = Code::ALL
        .iter()
        .map(|code| (code.id(), severity_name(code.severity()), code.meaning()))
        .collect();
    let ids: BTreeSet<_> = codes.iter().map(|(id, ..)| id).collect();
    assert_eq!(ids.len(), codes.len(), "two codes share an id");
    report(&check_findings(&read("docs/FINDINGS.md"), &codes));
}

#[test]
fn every_exit_code_is_documented() {
    report(&check_exit_codes(&read("docs/EXIT_CODES.md"), ExitCode::ALL));
}

#[test]
fn every_fixture_has_a_recipe() {
    report(&check_recipes(&read("fixtures/README.md"), &files_below("fixtures")));
}

#[test]
fn only_known_things_lie_at_the_top() {
    let names = fs::read_dir(root()).expect("the project");
    let names: Vec<String> = names
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    report(&check_top(&names));
}

#[test]
fn one_tls_provider() {
    report(&check_lock(&read("Cargo.lock")));
}

#[test]
fn layer_rule_can_fail() {
    let bad = |path: &str, source: &str| check_layers(path, source).len();
    assert_eq!(bad("src/format/x.rs", "use crate::bolt::File;"), 1);
    assert_eq!(bad("src/etcd/x.rs", "use crate::{\n    format::{ops, pb},\n    ops,\n};"), 1);
    assert_eq!(bad("src/bolt/x.rs", "fn f() { etcdkit :: cli :: run() }"), 1);
    assert_eq!(bad("src/kube/x.rs", "let x = crate::etcd::Y; crate::live::z();"), 2);
    assert_eq!(bad("src/other/x.rs", ""), 1);
    assert_eq!(bad("src/ops/x.rs", "use crate::{bolt, etcd::Y, format};"), 0);
    assert_eq!(bad("src/bolt/x.rs", "// crate::ops\nlet x = \"crate::ops\"; /* crate::cli */"), 0);
    assert_eq!(bad("src/bolt/x.rs", "let x = r#\"a\" crate::ops\"#; let y = 'a'; crate::cli"), 1);
    assert_eq!(bad("src/bolt/x.rs", "fn f<'a>(x: &'a str) { b'\\''; crate::cli }"), 1);
}

#[test]
fn shape_rule_can_fail() {
    let bad = |source: &str| check_shape("src/x.rs", source).len();
    assert_eq!(bad(&"x\n".repeat(LINES_MAX + 1)), 1);
    assert_eq!(bad(&"x".repeat(COLUMNS_MAX + 1)), 1);
    assert_eq!(bad("// caf\u{e9}"), 1);
    assert_eq!(bad(&format!("// {}: later", ["TO", "DO"].concat())), 1);
    assert_eq!(bad(&format!("// {}", ["FIX", "ME"].concat())), 1);
    assert_eq!(bad("fn fine() {}\n"), 0);
}

#[test]
fn name_rule_can_fail() {
    assert_eq!(check_names("src/ops/utils.rs", "").len(), 1);
    assert_eq!(check_names("tests/common/mod.rs", "").len(), 1);
    assert_eq!(check_names("src/x.rs", "mod helper; struct FileManager;").len(), 2);
    assert_eq!(check_names("src/x.rs", "/// A helper.\nfn utilisation(common: u8) {}").len(), 0);
}

#[test]
fn place_rule_can_fail() {
    let host = ["https://crates", ".io/crates/x"].concat();
    assert_eq!(check_places("README.md", &host).len(), 1);
    let path = ["see /wo", "rk/main"].concat();
    assert_eq!(check_places("README.md", &path).len(), 1);
    let path = ["\"/ro", "ot/.cargo\""].concat();
    assert_eq!(check_places("README.md", &path).len(), 1);
    assert_eq!(check_places("README.md", "artwork/x a/root/b $x/work/y registry.k8s.io").len(), 0);
}

#[test]
fn finding_rule_can_fail() {
    let codes = [("X001", "error", "bad")];
    let good = "| X001 | error | bad | run |\n";
    assert_eq!(check_findings(good, &codes).len(), 0);
    assert_eq!(check_findings("", &codes).len(), 1);
    assert_eq!(check_findings("| X001 | info | bad | run |", &codes).len(), 1);
    assert_eq!(check_findings("| X001 | error | worse | run |", &codes).len(), 1);
    assert_eq!(check_findings("| X001 | error | bad | |", &codes).len(), 1);
    assert_eq!(check_findings(&good.repeat(2), &codes).len(), 1);
    assert_eq!(check_findings(&format!("{good}| X002 | error | a | b |"), &codes).len(), 1);
}

#[test]
fn exit_code_rule_can_fail() {
    let codes = [(0, "ok", "done")];
    assert_eq!(check_exit_codes("| 0 | ok | done | x |", &codes).len(), 0);
    assert_eq!(check_exit_codes("| 0 | ok | well | x |", &codes).len(), 1);
    assert_eq!(check_exit_codes("| 0 | ok | done | x |\n| 9 | a | b | c |", &codes).len(), 1);
    assert_eq!(check_exit_codes("", &codes).len(), 1);
}

#[test]
fn recipe_rule_can_fail() {
    let files = ["fixtures/README.md".to_owned(), "fixtures/a/b/c.gz".to_owned()];
    assert_eq!(check_recipes("| `a/b/` | made so |", &files).len(), 0);
    assert_eq!(check_recipes("| `a/` | made so |", &files).len(), 1);
    assert_eq!(check_recipes("| `a/b/` | |", &files).len(), 1);
}

#[test]
fn top_rule_can_fail() {
    let names = ["src", ".ci", "README.md", "notes.txt"].map(str::to_owned);
    assert_eq!(check_top(&names).len(), 1);
}

#[test]
fn lock_rule_can_fail() {
    assert_eq!(check_lock("name = \"aws-lc-rs\"\nname = \"aws-lc-sys\"\n").len(), 2);
    assert_eq!(check_lock("name = \"ring\"\n").len(), 0);
}
