//! A restored database is a copy with new pages behind its last one: bbolt finds nothing wrong
//! with it whatever the copied file was like, its rows are those of etcdutl's restore, and etcd
//! goes on writing into it.

use std::fs;

use serde_json::Value;

use crate::boots::ETCDS;
use crate::equals::{database, same_log, same_rows};
use crate::programs::{Etcd, Real, Start, real, shell_words, with_flag};
use crate::support::{Rows, Sandbox, kubernetes, seal, snapshot};

const PAGE_SIZES: [u32; 7] = [1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];

/// How a file was written before it was saved: flags of the oracle's `boltrewrite`.
const WRITTEN: [&[&str]; 4] =
    [&[], &["--freelist"], &["--churn", "700"], &["--freelist", "--churn", "700"]];

/// What the restored files were like, so that no shape is missing unnoticed.
#[derive(Default)]
struct Shapes {
    stored_freelists: u32,
    long_freelist_pages: u32,
    free_pages: u64,
    deep: u32,
    overflow: u32,
    inline: u32,
}

impl Shapes {
    fn add(&mut self, line: &Value) {
        let shape = &line["shape"];
        let number = |name: &str| shape[name].as_u64().unwrap_or_else(|| panic!("{name}: {line}"));
        let chosen = &line["metas"][line["chosen_meta"].as_u64().expect("0 or 1") as usize];
        self.stored_freelists += u32::from(chosen["freelist"] != "none");
        self.long_freelist_pages += u32::from(number("freelist_pages") > 1);
        self.free_pages += number("unused_pages");
        self.deep += u32::from(number("bucket_depth") > 1);
        self.overflow += u32::from(number("multi_page_nodes") > 0);
        self.inline += u32::from(number("inline_buckets") > 1);
    }
}

/// Makes bbolt write the rows of `from` at a page size; returns the file as a server would send
/// it: without the room behind its last page.
fn rewritten(
    real: &Real,
    sandbox: &Sandbox,
    from: &str,
    size: u32,
    how: &[&str],
) -> (Vec<u8>, Value) {
    let path = sandbox.path("rewritten.db");
    let _ = fs::remove_file(&path);
    let (size, to) = (size.to_string(), sandbox.text("rewritten.db"));
    let words = [&["boltrewrite", "--page-size", &size], how, &[from, &to]].concat();
    let line = real.oracle(&words);
    let chosen = &line["metas"][line["chosen_meta"].as_u64().expect("0 or 1") as usize];
    assert_eq!(line["page_size"].to_string(), size, "{line}");
    let pages = chosen["high_page"].as_u64().expect("a page");
    let mut bytes = fs::read(&path).expect("a database");
    bytes.truncate(usize::try_from(pages * line["page_size"].as_u64().unwrap()).unwrap());
    (bytes, line)
}

#[track_caller]
fn check(real: &Real, sandbox: &Sandbox, data_dir: &str) {
    let path = database(&sandbox.path(data_dir));
    real.ok("bbolt", &["check", path.to_str().expect("plain")]).expect(0, &["OK"]);
}

/// Restores with the report's own equivalent, into `theirs`, and compares all rows and the log.
fn compare(real: &Real, sandbox: &Sandbox, what: &str, report: &Value) {
    let line = report["equivalent"][0].as_str().expect("a command");
    let _ = fs::remove_dir_all(sandbox.path("theirs"));
    let command = with_flag(&shell_words(line), "--data-dir", &sandbox.text("theirs"));
    let words: Vec<&str> = command[1..].iter().map(String::as_str).collect();
    real.ok("etcdutl-3.7", &words);
    let (ours, theirs) = (sandbox.path("ours"), sandbox.path("theirs"));
    same_rows(real, what, &database(&ours), &database(&theirs));
    same_log(real, what, &ours, &theirs);
}

/// Writes some hundred times into a restored directory and looks at the file after each stop.
fn write_into(real: &Real, sandbox: &Sandbox, version: &str, report: &Value) {
    let name = report["name"].as_str().expect("a name");
    let data_dir = sandbox.path("ours");
    let start = Start { data_dir, name, ..Start::default() };
    let fill = |etcd: &Etcd<'_>, seed: &str| {
        let words = ["fill", "--endpoint", &etcd.endpoint, "--seed", seed, "--keys", "200"];
        real.oracle(&[&words[..], &["--ops", "200", "--big", "2"]].concat());
    };
    let etcd = real.etcd(version, &start);
    let before = etcd.truth();
    assert_eq!(before["revision"], report["revision"]["new"], "{report}");
    fill(&etcd, "1");
    let after = etcd.truth();
    assert!(after["revision"].as_i64() >= before["revision"].as_i64().map(|r| r + 200), "{after}");
    etcd.stop();
    check(real, sandbox, "ours");

    // A second run starts on what the first wrote, and moves all of it.
    let etcd = real.etcd(version, &start);
    let again = etcd.truth();
    assert_eq!(again["keys"], after["keys"], "{version}");
    fill(&etcd, "2");
    etcd.ctl(&["defrag"]).expect(0, &[]);
    etcd.stop();
    check(real, sandbox, "ours");
}

#[test]
fn whatever_the_copied_file_was_like_the_edited_one_is_whole() {
    let Some(real) = real() else { return };
    let nested = (0..400).fold(Rows::read(&snapshot("3.6")), |rows, n| {
        rows.put("zebra/inner/most", format!("key-{n:04}").as_bytes(), &[b'z'; 90]).put(
            "aardvark/in",
            format!("key-{n:04}").as_bytes(),
            b"",
        )
    });
    let sources: [(&str, Vec<u8>, &[&str]); 3] = [
        ("etcd 3.6", snapshot("3.6"), &["--mark-compacted"]),
        ("Kubernetes", kubernetes(), &[]),
        ("buckets in buckets", nested.snapshot(), &["--accept-unknown"]),
    ];
    let mut shapes = Shapes::default();
    let mut booted = 0;
    for (number, size) in PAGE_SIZES.into_iter().enumerate() {
        for (at, how) in WRITTEN.into_iter().enumerate() {
            let (source, bytes, flags) = &sources[(number + at) % sources.len()];
            let what = format!("{source} in pages of {size}, {how:?}");
            let sandbox = Sandbox::new();
            sandbox.write("from.db", &bytes[..bytes.len() - 32]);
            let (bytes, line) = rewritten(&real, &sandbox, &sandbox.text("from.db"), size, how);
            shapes.add(&line);
            sandbox.write("s.db", &seal(bytes));
            let saved = sandbox.text("s.db");
            let words = ["snapshot", "restore", &saved, "--data-dir", "ours"];
            let report = sandbox.kit_json(&[&words[..], flags].concat());
            check(&real, &sandbox, "ours");
            compare(&real, &sandbox, &what, &report);
            let restored = database(&sandbox.path("ours"));
            let shape = &real.oracle_lines(&["boltshape", restored.to_str().expect("plain")])[0];
            assert_eq!(shape["page_size"], size, "{what}: {shape}");
            assert!(shape["error"].is_null(), "{what}: {shape}");

            // The file of a data directory has room behind its last page, and no trailer.
            let words = ["snapshot", "restore", "rewritten.db", "--data-dir", "from-dir"];
            let more = [&["--skip-hash-check"][..], flags].concat();
            sandbox.kit_json(&[&words[..], &more].concat());
            check(&real, &sandbox, "from-dir");
            if how.len() == 3 {
                write_into(&real, &sandbox, ETCDS[number % ETCDS.len()], &report);
                booted += 1;
            }
        }
    }
    assert_eq!(booted, PAGE_SIZES.len());
    assert_eq!(shapes.stored_freelists, 14, "half of the files store a freelist");
    let Shapes { long_freelist_pages, free_pages, deep, overflow, inline, .. } = shapes;
    assert!(
        long_freelist_pages > 0 && free_pages > 1000 && deep > 3,
        "{long_freelist_pages} {deep}"
    );
    assert!(overflow > 3 && inline > 10, "{overflow} {inline}");
}
