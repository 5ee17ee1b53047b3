//! Texts in every style of YAML, made at random.

use proptest::prelude::*;
use proptest::sample::select;

/// Makes texts of one or two documents, with marks, comments, line ends and styles of all kinds;
/// tells of each whether its last line has an end.
pub(crate) fn texts() -> impl Strategy<Value = (String, bool)> {
    (trees(), any::<(bool, bool, bool, bool)>()).prop_map(|(tree, (mark, crlf, end, more))| {
        let mut text = if more { "---".to_owned() } else { "# a comment".to_owned() };
        block(&tree, 0, true, &mut text);
        // Brackets would begin on the line of the comment.
        let text = text.strip_prefix("# a comment ").unwrap_or(&text);
        let ended = end || more;
        let mut text = format!("{text}{}", if ended { "\n" } else { "" });
        if more {
            text.push_str("---\nk0: [1, &a x, *a]\n");
        }
        if crlf {
            text = text.replace('\n', "\r\n");
        }
        if mark {
            text.insert(0, '\u{feff}');
        }
        (text, ended)
    })
}

/// A text in the making.
#[derive(Clone, Debug)]
enum Tree {
    /// A text, and which of the styles it is written in where that one can hold it.
    Scalar(String, u8),
    /// Values under the keys `k0`, `k1` and so on; in braces, or indented by a number of blanks.
    Map(Vec<Tree>, Option<usize>),
    /// Items; in brackets, or with a number of blanks behind each dash.
    List(Vec<Tree>, Option<usize>),
}

fn trees() -> impl Strategy<Value = Tree> {
    let special = [
        "",
        "yes",
        "12",
        "a: b",
        "# x",
        "it's",
        "\"q\"",
        " x ",
        "a\nb\n",
        "a\n\n  b\n\n",
        "\u{e9}\u{1f600}",
        "\u{1}",
    ];
    let text = prop_oneof![
        select(special.to_vec()).prop_map(str::to_owned),
        "[a-z/][a-z0-9/._=-]{0,9}",
        "[ -~\n]{0,14}",
    ];
    let leaf = (text, any::<u8>()).prop_map(|(text, style)| Tree::Scalar(text, style));
    leaf.prop_recursive(4, 24, 4, |inner| {
        let some = || prop::option::weighted(0.8, 1..4_usize);
        let inner = prop::collection::vec(inner, 0..4);
        prop_oneof![
            (inner.clone(), some()).prop_map(|(all, step)| Tree::Map(all, step)),
            (inner, some()).prop_map(|(all, step)| Tree::List(all, step)),
        ]
    })
    .prop_filter("a collection at the root", |tree| !matches!(tree, Tree::Scalar(..)))
}

/// Writes a tree from a line's column on, behind a key or a dash when `behind`.
fn block(tree: &Tree, column: usize, behind: bool, out: &mut String) {
    let indent = |column: usize| " ".repeat(column);
    match tree {
        Tree::Map(values, Some(step)) if !values.is_empty() => {
            // Behind a dash the first pair stands on its line; behind a key all are below it.
            for (number, value) in values.iter().enumerate() {
                if number > 0 || behind {
                    out.push_str(&format!("\n{}", indent(column)));
                }
                out.push_str(&format!("k{number}:"));
                match value {
                    Tree::List(items, Some(_)) if !items.is_empty() => {
                        block(value, column + step % 2, true, out);
                    }
                    _ => block(value, column + step, true, out),
                }
            }
        }
        Tree::List(items, Some(gap)) if !items.is_empty() => {
            for (number, item) in items.iter().enumerate() {
                if number > 0 || behind {
                    out.push_str(&format!("\n{}", indent(column)));
                }
                out.push('-');
                match item {
                    Tree::Map(all, Some(_)) | Tree::List(all, Some(_)) if !all.is_empty() => {
                        out.push_str(&indent(*gap));
                        block(item, column + 1 + gap, false, out);
                    }
                    _ => block(item, column + 1 + gap, true, out),
                }
            }
        }
        Tree::Scalar(text, style) => {
            let written = scalar(text, *style, Some(column));
            out.push_str(&format!(" {written}"));
            if style % 7 == 0 && !written.starts_with('|') {
                out.push_str("   # a comment");
            }
            if style % 11 == 0 {
                out.push_str("\n# a comment: of its own");
            }
        }
        flow => {
            out.push(' ');
            in_flow(flow, out);
        }
    }
}

fn in_flow(tree: &Tree, out: &mut String) {
    match tree {
        Tree::Scalar(text, style) => out.push_str(&scalar(text, *style, None)),
        Tree::Map(values, _) => {
            out.push('{');
            for (number, value) in values.iter().enumerate() {
                out.push_str(&format!("{}k{number}: ", if number > 0 { ", " } else { "" }));
                in_flow(value, out);
            }
            out.push('}');
        }
        Tree::List(items, _) => {
            out.push('[');
            for (number, item) in items.iter().enumerate() {
                out.push_str(if number > 0 { ", " } else { " " });
                in_flow(item, out);
            }
            out.push(']');
        }
    }
}

/// Writes a text in a style, or in double quotes where that style cannot hold it.
fn scalar(text: &str, style: u8, column: Option<usize>) -> String {
    let shown = text.chars().all(|c| !c.is_control());
    let simple = text.starts_with(|c: char| c.is_ascii_lowercase() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "/._=-".contains(c));
    let lines = text.trim_end_matches('\n');
    let in_lines = !lines.is_empty()
        && !lines.starts_with([' ', '\n'])
        && lines.chars().all(|c| !c.is_control() || c == '\n');
    match (style % 4, column) {
        (0, _) if simple => text.to_owned(),
        (1, _) if shown => format!("'{}'", text.replace('\'', "''")),
        (2, Some(column)) if in_lines => {
            let chomp = match text.len() - lines.len() {
                0 => "-",
                1 => "",
                _ => "+",
            };
            // The line end of the last line is that of what follows.
            let body = text.strip_suffix('\n').unwrap_or(text);
            let mut out = format!("|{chomp}");
            for line in body.split('\n') {
                out.push('\n');
                if !line.is_empty() {
                    out.push_str(&" ".repeat(column.max(1)));
                    out.push_str(line);
                }
            }
            out
        }
        _ => serde_json::to_string(text).unwrap(),
    }
}
