//! bbolt files of every shape: walked, searched and built anew, they hold what bbolt says.

use std::fs::File as Disk;
use std::io::BufWriter;
use std::time::Duration;

use etcdkit::bolt::builder::Builder;
use etcdkit::bolt::cursor::Bucket;
use etcdkit::bolt::rebuild::Rebuild;
use etcdkit::bolt::walk::walk;
use etcdkit::bolt::{At, File, Visit};
use etcdkit::format::finding::Severity;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::programs::{bounded, real};
use crate::support::{Sandbox, hex};

/// One bucket as the oracle sums it.
struct Summed {
    path: Vec<String>,
    sequence: u64,
    keys: u64,
    digest: Sha256,
}

impl Summed {
    fn new(path: &[Vec<u8>], sequence: u64) -> Self {
        let path = path.iter().map(|name| hex(name)).collect();
        Self { path, sequence, keys: 0, digest: Sha256::new() }
    }

    fn add(&mut self, key: &[u8], value: &[u8]) {
        self.keys += 1;
        for bytes in [key, value] {
            let len = u32::try_from(bytes.len()).expect("a short row");
            self.digest.update(len.to_le_bytes());
            self.digest.update(bytes);
        }
    }

    fn json(self) -> Value {
        let Self { path, sequence, keys, digest } = self;
        let sha256 = hex(&digest.finalize());
        json!({ "path": path, "sequence": sequence, "keys": keys, "sha256": sha256 })
    }
}

/// What a walk saw, bucket by bucket.
#[derive(Default)]
struct Seen {
    done: Vec<Summed>,
    /// Places in `done` of the buckets that are open.
    open: Vec<usize>,
}

impl Visit for Seen {
    fn bucket(&mut self, at: &At<'_>, sequence: u64) {
        self.open.truncate(at.bucket.len() - 1);
        self.open.push(self.done.len());
        self.done.push(Summed::new(at.bucket, sequence));
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.open.truncate(at.bucket.len());
        let at = *self.open.last().expect("a row is in a bucket");
        self.done[at].add(key, value);
    }
}

/// Goes through a bucket and those in it with cursors.
fn with_cursors(bucket: &Bucket<'_>, path: &mut Vec<Vec<u8>>, out: &mut Vec<Summed>) {
    let at = out.len();
    if !path.is_empty() {
        out.push(Summed::new(path, bucket.sequence()));
    }
    let mut cursor = bucket.cursor();
    while let Some(row) = cursor.next_row().expect("a row") {
        if row.is_bucket {
            let name = row.key.to_vec();
            let inside = bucket.bucket(&name).expect("pages").expect("the bucket is there");
            path.push(name);
            with_cursors(&inside, path, out);
            path.pop();
        } else {
            out[at].add(row.key, row.value);
        }
    }
}

fn all(summed: Vec<Summed>) -> Vec<Value> {
    summed.into_iter().map(Summed::json).collect()
}

#[test]
fn generated_files_are_read_and_built_anew() {
    let Some(real) = real() else { return };
    let sandbox = Sandbox::new();
    let folder = sandbox.text("generated");
    let mut command = real.program("oracle");
    command.args(["boltgen", &folder]);
    bounded(&mut command, Duration::from_secs(180)).expect(0, &[]);
    let index = std::fs::read(sandbox.path("generated/index.json")).expect("an index");
    let index: Value = serde_json::from_slice(&index).expect("an index");
    let files = index["files"].as_array().expect("files");
    assert!(files.len() >= 50, "{} files", files.len());

    let mut built = Vec::new();
    for entry in files {
        let name = entry["file"].as_str().expect("a name");
        let path = sandbox.path("generated").join(name);
        let file = File::open(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(file.page_size(), entry["page_size"], "{name}");
        let chosen = &entry["metas"][entry["chosen_meta"].as_u64().expect("0 or 1") as usize];
        assert_eq!(file.meta().txid, chosen["txid"], "{name}");
        assert_eq!(file.meta().root, chosen["root"], "{name}");
        assert_eq!(file.meta().high_water_mark, chosen["high_page"], "{name}");

        let want = entry["buckets"].as_array().expect("buckets");
        let mut seen = Seen::default();
        let walked = walk(&file, &mut seen);
        let kept = walked.findings.kept().iter();
        let errors: Vec<_> = kept.filter(|f| f.severity == Severity::Error).collect();
        assert_eq!(errors.is_empty(), entry["check_ok"] == true, "{name}: {errors:?}");
        assert_eq!(&all(seen.done), want, "{name}: the walk");
        let mut summed = Vec::new();
        with_cursors(&file.root(), &mut Vec::new(), &mut summed);
        assert_eq!(&all(summed), want, "{name}: the cursors");
        let shape = &entry["shape"];
        assert_eq!(walked.branch_pages, shape["branch_pages"], "{name}");
        assert_eq!(walked.leaf_pages, shape["leaf_pages"], "{name}");
        assert_eq!(walked.inline_buckets, shape["inline_buckets"], "{name}");

        let copy = sandbox.path("generated").join(format!("{name}.anew"));
        let out = BufWriter::new(Disk::create(&copy).expect("a file"));
        let builder = Builder::new(out, file.page_size()).expect("a page size");
        let mut copier = Rebuild::new(builder);
        walk(&file, &mut copier);
        let (_, out) = copier.finish(9).expect("a copy");
        out.into_inner().expect("flushed");
        let text = copy.to_str().expect("a plain path");
        assert_eq!(&real.oracle_lines(&["boltdump", text]), want, "{name} built anew");
        built.push(text.to_owned());
    }
    let words: Vec<&str> =
        ["boltcheck"].into_iter().chain(built.iter().map(String::as_str)).collect();
    let checked = real.oracle_lines(&words);
    assert_eq!(checked.len(), built.len());
    for line in checked {
        assert_eq!(line["ok"], true, "{line}");
    }
}
