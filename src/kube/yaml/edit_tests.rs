//! Tests of `edit`: each change byte for byte, each refusal with its place.

use super::super::parse;
use super::*;

fn key(name: &str) -> Step<'_> {
    Step::Key(name)
}

/// Makes a change that must be made.
fn spliced(text: &str, steps: &[Step<'_>], change: &Change<'_>) -> String {
    match splice(text.as_bytes(), steps, change) {
        Ok(new) => String::from_utf8(new).unwrap(),
        Err(refusal) => panic!("{text:?}: {refusal}"),
    }
}

fn refused(text: &str, steps: &[Step<'_>], change: &Change<'_>) -> (Why, String) {
    match splice(text.as_bytes(), steps, change) {
        Ok(new) => panic!("{text:?} became {:?}", String::from_utf8_lossy(&new)),
        Err(refusal) => (refusal.why, refusal.to_string()),
    }
}

/// Sets `a`, in each of these texts, to the same new text.
fn sets(new: &str, cases: &[(&str, &str)]) {
    for (before, after) in cases {
        assert_eq!(spliced(before, &[key("a")], &Change::Set(new)), *after, "{before:?}");
    }
}

#[test]
fn a_scalar_keeps_its_style() {
    sets(
        "/x/new",
        &[
            ("a: /x/old\n", "a: /x/new\n"),
            ("a:   /x/old   # why\nb: 1\n", "a:   /x/new   # why\nb: 1\n"),
            ("a: '/x/old'\n", "a: '/x/new'\n"),
            ("a: \"/x/old\"\n", "a: \"/x/new\"\n"),
            ("a: |\n  /x/old", "a: |\n  /x/new"),
            ("a: |-  # why\n    /x/old\n# end\n", "a: |-  # why\n    /x/new\n# end\n"),
            ("a: >-\n /x/old\n\nb: c\n", "a: >-\n /x/new\n\nb: c\n"),
            ("{a: /x/old, b: c}\n", "{a: /x/new, b: c}\n"),
            ("{\"a\": \"/x/old\"}", "{\"a\": \"/x/new\"}"),
            ("a:\n  /x/old\nb: c", "a:\n  /x/new\nb: c"),
            ("? a\n: /x/old\n", "? a\n: /x/new\n"),
            ("'a': /x/old", "'a': /x/new"),
        ],
    );
}

#[test]
fn only_bytes_that_differ_are_replaced() {
    sets(
        "one two \u{e9}\n THREE\n",
        &[
            (
                "a: |2\n  one two \u{e9}\n   three\nb: 1\n",
                "a: |2\n  one two \u{e9}\n   THREE\nb: 1\n",
            ),
            ("a: |\n\n  x", "a: |\n  one two \u{e9}\n   THREE\n"),
            ("a: |\n\n  x\n", "a: |\n  one two \u{e9}\n   THREE\n"),
            (
                "a: \"\\x6fne two \\u00E9\\n\\\n  \\  three\\n\"\n",
                "a: \"\\x6fne two \\u00E9\\n\\\n  \\ THREE\\n\"\n",
            ),
        ],
    );
    sets(
        "one two NEW four",
        &[
            ("a: one two\n   three\n   four\n", "a: one two\n   NEW\n   four\n"),
            ("a: 'one\n  two three four' # c\n", "a: 'one\n  two NEW four' # c\n"),
            ("a: \"one two \\\n  three four\"\n", "a: \"one two \\\n  NEW four\"\n"),
            ("a: >-\n  one two\n  three\n  four\n", "a: >-\n  one two\n  NEW\n  four\n"),
        ],
    );
}

#[test]
fn a_text_gets_quotes_where_it_would_be_something_else() {
    for typed in [
        "8589934592",
        "-1",
        "1_000",
        "0x1f",
        "0o17",
        "017",
        "0b1",
        "1e3",
        "1.5",
        ".5",
        "1:30",
        "~",
        "null",
        "True",
        "yes",
        "NO",
        "on",
        "y",
        "2026-12-01",
        "2001-12-14T21:59:43Z",
        ".inf",
        "-.INF",
        ".NaN",
        "=",
        "",
    ] {
        assert_eq!(
            spliced("a: b\n", &[key("a")], &Change::Set(typed)),
            format!("a: \"{typed}\"\n")
        );
    }
    for special in [
        "a: b", "a #b", "#a", "&a", "*a", "!a", "%a", "@a", "`a", "- a", "-", "?", ": a", "a:",
        "[a", "{a", "|", ">", "\"a", " a", "a ", "---", "<", "a\\b",
    ] {
        let new = spliced("a: b\n", &[key("a")], &Change::Set(special));
        let quoted = format!("a: '{special}'\n");
        let plain = format!("a: {special}\n");
        assert!(new == quoted || (["<", "a\\b"].contains(&special) && new == plain), "{new}");
    }
    for plain in [
        "--data-dir=/x",
        "/var/lib/etcd",
        "https://10.0.0.1:2379",
        "3.5.15-0",
        "v1.34.4",
        "5m",
        "10.0.0.1",
        "a#b",
        "a:b",
        "\u{e9}",
    ] {
        assert_eq!(spliced("a: b", &[key("a")], &Change::Set(plain)), format!("a: {plain}"));
    }
    sets("https://h:1", &[("{a: b}", "{a: 'https://h:1'}"), ("a: 'b'\n", "a: 'https://h:1'\n")]);
    sets("it's", &[("a: 'b'\n", "a: 'it''s'\n"), ("a: b\n", "a: it's\n")]);
    sets(
        "x\ny\u{1}\n",
        &[
            ("a: b\n", "a: \"x\\ny\\u0001\\n\"\n"),
            ("a: 'b'\n", "a: \"x\\ny\\u0001\\n\"\n"),
            ("a: |\n  b\nc: d\n", "a: \"x\\ny\\u0001\\n\"\nc: d\n"),
        ],
    );
}

#[test]
fn nothing_becomes_something() {
    sets(
        "x",
        &[
            ("a:\n", "a: x\n"),
            ("a:   # c\nb: 1\n", "a: x   # c\nb: 1\n"),
            ("a: ~\n", "a: x\n"),
            ("a: null # c\n", "a: x # c\n"),
            ("{a: , b: c}", "{a: x , b: c}"),
            ("a: ''\n", "a: 'x'\n"),
            ("a: 5\n", "a: x\n"),
            ("a: |\n\nb: c # d\n", "a: \"x\"\n\nb: c # d\n"),
            ("a: >-\n  # no comment\n# c\nb: d\n", "a: >-\n  x\n# c\nb: d\n"),
        ],
    );
    assert_eq!(spliced("-\n- b\n", &[Step::Index(0)], &Change::Set("x")), "- x\n- b\n");
}

#[test]
fn block_scalars_grow_and_shrink() {
    sets(
        "one\n\n  two\nthree\n",
        &[
            (
                "a: |\n    one\n    three\n\nb: c\n",
                "a: |\n    one\n\n      two\n    three\n\nb: c\n",
            ),
            (
                "a: |\r\n  one\r\n  three\r\nb: c\r\n",
                "a: |\r\n  one\r\n\r\n    two\r\n  three\r\nb: c\r\n",
            ),
            ("- a\n", "- a\n"),
        ][..2],
    );
    sets(
        "one\ntwo",
        &[
            ("a: | # c\n  one\n  two\n", "a: |- # c\n  one\n  two\n"),
            ("a: >\n   one\n   three\n# c\n", "a: |-\n   one\n   two\n# c\n"),
            ("a: |-\n  one\n  two\n  three\n", "a: |-\n  one\n  two\n"),
        ],
    );
    sets("one\n\n\n", &[("a: |+\n  one\n\nb: c\n", "a: |+\n  one\n\n\nb: c\n")]);
}

#[test]
fn marks_line_ends_and_documents_stay() {
    let text =
        "\u{feff}# top\r\n---\r\na: b # c\r\n...\r\n---\r\nkind: K\r\na:\r\n  - x\r\n  -   'y'";
    let second = Step::Document(Document::Where(&[("kind", "K")]));
    let way = [second, key("a"), Step::Index(1)];
    assert_eq!(spliced(text, &way, &Change::Set("z")), text.replace("'y'", "'z'"));
    let pushed = format!("{text}\r\n  -   --z=1");
    assert_eq!(spliced(text, &way[..2], &Change::Push("--z=1".into())), pushed);
    let put = text.replace("# c", "# c\r\nd: e");
    assert_eq!(spliced(text, &[], &Change::Put("d", "e".into())), put);
}

#[test]
fn pairs_and_items_are_written_as_their_neighbours() {
    let map = || New::Map(vec![("name", "x".into()), ("value", "1".into())]);
    let list = || New::List(vec![map(), "x".into(), New::List(vec![]), New::Map(vec![])]);
    for (before, steps, change, after) in [
        (
            "a:\n- b # c\n# d\ne: f\n",
            &[key("a")][..],
            Change::Push("x".into()),
            "a:\n- b # c\n- x\n# d\ne: f\n",
        ),
        (
            "a:\n  -   b\n  -   c\n",
            &[key("a")],
            Change::After(0, "x".into()),
            "a:\n  -   b\n  -   x\n  -   c\n",
        ),
        ("a: [b, c, ] # d\n", &[key("a")], Change::Push("1".into()), "a: [b, c, \"1\", ] # d\n"),
        ("a: []\n", &[key("a")], Change::Push(map()), "a: [{name: x, value: \"1\"}]\n"),
        ("a: { }\n", &[key("a")], Change::Put("k", "v".into()), "a: {k: v }\n"),
        (
            "{\"a\": {\"b\": 1}}",
            &[key("a")],
            Change::Put("k", list()),
            "{\"a\": {\"b\": 1, \"k\": [{\"name\": \"x\", \"value\": \"1\"}, \"x\", [], {}]}}",
        ),
        (
            "a:\n    b:\n        c: d\n",
            &[key("a")],
            Change::Put("k", map()),
            "a:\n    b:\n        c: d\n    k:\n        name: x\n        value: \"1\"\n",
        ),
        (
            "a: b\n",
            &[],
            Change::Put("k", list()),
            "a: b\nk:\n- name: x\n  value: \"1\"\n- x\n- []\n- {}\n",
        ),
        (
            "a:\n  - b\n",
            &[],
            Change::Put("k", New::List(vec!["x".into()])),
            "a:\n  - b\nk:\n  - x\n",
        ),
        (
            "- name: a\n  args:\n  - b\n- name: c",
            &[Step::Named("name", "a"), key("args")],
            Change::Push(map()),
            "- name: a\n  args:\n  - b\n  - name: x\n    value: \"1\"\n- name: c",
        ),
        ("- a: b\n", &[Step::Index(0)], Change::Put("c", "d".into()), "- a: b\n  c: d\n"),
        ("- - a\n- b\n", &[Step::Index(0)], Change::Push("c".into()), "- - a\n  - c\n- b\n"),
        ("a: |\n  b\n\nc:\n", &[], Change::Put("d", "e".into()), "a: |\n  b\n\nc:\nd: e\n"),
        ("a: |\n  b\n\n# c\n", &[], Change::Put("d", "e".into()), "a: |\n  b\nd: e\n\n# c\n"),
        ("a: |+\n  b\n\n", &[], Change::Put("d", "e".into()), "a: |+\n  b\n\nd: e\n"),
        ("a: {b: }\n", &[key("a")], Change::Put("c", "d".into()), "a: {b: , c: d }\n"),
        (
            "a:\n  b: c\n...\n",
            &[key("a")],
            Change::Put("yes", "d".into()),
            "a:\n  b: c\n  \"yes\": d\n...\n",
        ),
    ] {
        assert_eq!(spliced(before, steps, &change), after, "{before:?}");
    }
}

#[test]
fn a_text_within_a_text() {
    let way = [key("data"), key("C"), Step::Document(Document::First), key("etcd"), key("dataDir")];
    for (before, after) in [
        (
            "data:\n  C: |\n    etcd:\n      dataDir: /a # c\n  D: x\n",
            "data:\n  C: |\n    etcd:\n      dataDir: /b # c\n  D: x\n",
        ),
        (
            "data:\r\n  C: |-\r\n    etcd: {dataDir: '/a'}\r\n",
            "data:\r\n  C: |-\r\n    etcd: {dataDir: '/b'}\r\n",
        ),
        (
            "data: {C: \"etcd:\\n  dataDir: /a\\n  x: \\u0031 \\t\\n\"}\n",
            "data: {C: \"etcd:\\n  dataDir: /b\\n  x: \\u0031 \\t\\n\"}\n",
        ),
        ("data:\n  C: 'etcd: {dataDir: /a}'\n", "data:\n  C: 'etcd: {dataDir: /b}'\n"),
        (
            "data:\n  C: \"etcd:\\n\\\n    \\  dataDir: \\\"/a\\\"\\n\"\n",
            "data:\n  C: \"etcd:\\n\\\n    \\  dataDir: \\\"/b\\\"\\n\"\n",
        ),
        (
            "data:\n  C: >\n    etcd:\n      dataDir: /a\n      x: y\n\nk: v\n",
            "data:\n  C: >\n    etcd:\n      dataDir: /b\n      x: y\n\nk: v\n",
        ),
    ] {
        assert_eq!(spliced(before, &way, &Change::Set("/b")), after, "{before:?}");
        assert_eq!(find(after.as_bytes(), &way).unwrap().text(), Some("/b"));
    }
    let text = "data:\n  C: |\n    etcd:\n      dataDir: /a\n    kind: K\n  D: x\n";
    let put = spliced(
        text,
        &way[..4],
        &Change::Put("k", New::List(vec![New::Map(vec![("m", "1".into())])])),
    );
    assert_eq!(put, text.replace("    kind", "      k:\n      - m: \"1\"\n    kind"));
    let (why, what) =
        refused("data:\n  C: |\n    etcd: &a {dataDir: /a}\n", &way, &Change::Set("/b"));
    assert_eq!(why, Why::Unclear);
    assert!(
        what.starts_with("line 3, column 5: in the text there, line 1, column 7: an anchor"),
        "{what}"
    );
    assert_eq!(refused("data:\n  C: {}\n", &way, &Change::Set("/b")).0, Why::Shape);
}

#[test]
fn what_is_not_clear_is_refused_with_its_place() {
    let way = [key("a"), key("b")];
    for (text, place) in [
        ("a: &x {b: c}\nd: *x\n", "line 1, column 4: an anchor"),
        ("a: {b: &x c}\n", "line 1, column 8: an anchor"),
        ("x: &x {b: c}\na: *x\n", "line 2, column 4: an alias"),
        ("x: &x {b: c}\na:\n  <<: *x\n  b: d\n", "line 3, column 3: a merge key"),
        ("a: !!map {b: c}\n", "line 1, column 4: a tag"),
        ("a: {b: !!str c}\n", "line 1, column 8: a tag"),
        ("a: {b: c}\na: {b: d}\n", "line 2, column 1: a key that stands"),
        ("a:\n  b: c\n  'b': d\n", "line 3, column 3: a key that stands"),
        ("a:\n  b: c\n  [d]: e\n", "line 3, column 3: a key that is not"),
        ("a:\n  b: \tc\n", "line 2, column 3: a tab"),
        ("a:\n  b: c\t# d\n", "line 2, column 6: a tab behind"),
        ("a:\n  b: c\n \t\nd: e\n", "line 2, column 6: a tab behind"),
        ("a:\t\n  b: c\n", "line 1, column 1: a tab"),
        ("a: {b: c}\u{2028}\n", "line 1, column 10: a line end"),
        ("a: {b: c}\rx: y\n", "line 1, column 10: a carriage return"),
        ("a: {b: c}\0", "line 1, column 10: a control"),
        ("a: [b\n", "line "),
        ("a: {b: c}\n---\n]\n", "line 3"),
        ("a: {b: [c]}\n", "line 1, column 8: a sequence where a scalar"),
        ("a: [b]\n", "line 1, column 4: a sequence where a mapping"),
        ("a: {c: d}\n", "line 1, column 4: no key b"),
        ("a:\n", "line 1, column 2: no key b"),
        ("", "line 1, column 1: no document"),
    ] {
        let (_, what) = refused(text, &way, &Change::Set("new"));
        assert!(what.starts_with(place), "{text:?}: {what}");
    }
    // Away from the way all of this stays.
    let text = "x: &x {c: !!str d, [e]: f, <<: {}}\ny: *x\nz: {g: 1, g: 2}\na:\n  b: old\n";
    assert_eq!(spliced(text, &way, &Change::Set("new")), text.replace("old", "new"));
}

#[test]
fn ambiguous_ways_are_refused() {
    let kind = [("kind", "K")];
    let way = [Step::Document(Document::Where(&kind)), key("a")];
    let set = Change::Set("x");
    assert_eq!(refused("kind: K\na: b\n---\nkind: K\na: c\n", &way, &set).0, Why::Twice);
    assert_eq!(refused("kind: L\na: b\n", &way, &set).0, Why::Missing);
    assert_eq!(refused("kind: K\nkind: L\na: b\n", &way, &set).0, Why::Unclear);
    let named = [Step::Named("name", "n"), key("a")];
    assert_eq!(refused("- {name: n, a: b}\n- {name: n, a: c}\n", &named, &set).0, Why::Twice);
    assert_eq!(refused("- {name: m, a: b}\n", &named, &set).0, Why::Missing);
    assert_eq!(refused("- &x {name: m, a: b}\n- *x\n", &named, &set).0, Why::Unclear);
    assert_eq!(refused("a: b\n", &[], &Change::Put("a", "c".into())).0, Why::Twice);
    assert_eq!(refused("- a\n", &[], &Change::After(1, "c".into())).0, Why::Missing);
    assert_eq!(refused("a: b\n", &[], &Change::Push("c".into())).0, Why::Shape);
    assert_eq!(refused("- a\n", &[], &Change::Put("b", "c".into())).0, Why::Shape);
}

#[test]
fn what_readers_see_differently_at_the_end_is_refused() {
    assert_eq!(refused("a: |\n  b", &[], &Change::Put("c", "d".into())).0, Why::Unproven);
    assert_eq!(
        refused("[a: b]", &[Step::Index(0)], &Change::Put("c", "d".into())).0,
        Why::Unproven
    );
    for text in ["{a:}", "{a: {b:}}", "{a:, b: c}"] {
        let (why, _) = refused(text, &[key("a")], &Change::Set("x"));
        assert!(matches!(why, Why::Unproven | Why::Shape), "{text}: {why:?}");
    }
    assert_eq!(refused("{a:}", &[], &Change::Put("c", "d".into())).0, Why::Unproven);
    assert_eq!(refused("? a: b\n: c\n", &[], &Change::Put("c", "d".into())).0, Why::Unclear);
}

#[test]
fn find_reads_one_place() {
    let text = b"---\nkind: A\n---\nkind: B\nlist:\n- name: x\n  v: [1, 2]\n";
    let way = [
        Step::Document(Document::Where(&[("kind", "B")])),
        key("list"),
        Step::Named("name", "x"),
        key("v"),
    ];
    let node = find(text, &way).unwrap();
    assert_eq!(node.items().len(), 2);
    assert_eq!(node.at, super::super::Position { line: 7, column: 6 });
    let missing = find(text, &[key("list")]).unwrap_err();
    assert_eq!((missing.why, missing.at.line), (Why::Missing, 2));
    assert!(parse(text).unwrap().get("kind").is_some());
}
