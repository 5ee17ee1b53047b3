//! `snapshot inspect`: what takes the room in a database, and what would give it back.
//!
//! One pass over all pages and rows, and a second one only where a log adds rows to the file: the
//! file's own bytes are split up as they are, keys are counted as a server would have them.
//! Everything that is shown is exact, but what a defragmentation frees: that is an estimate.
//!
//! Values are never part of a report, only keys and sizes.

mod groups;
mod keys;
mod packing;
mod space;
mod tally;
mod top;

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Value, json};

pub use groups::{GROUPS_MAX, Group};
pub use space::Space;
pub use tally::{Bucket, LargeValue, RewrittenKey};

pub(in crate::ops) use self::groups::Depth;
#[cfg(feature = "live")]
pub(in crate::ops) use self::groups::Groups;
use self::tally::{Counted, Tally};
use super::subject::Subject;
use super::{Error, ExitCode, Progress, shell_word};
use crate::bolt::walk::{Walk, walk};
use crate::bolt::{At, Visit};
use crate::format::finding::Findings;

/// Longest top lists that are made.
pub const TOP_MAX: usize = 1_000;

/// What to inspect, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// A snapshot, a db file, or a data directory that no server has open.
    pub path: PathBuf,
    /// The WAL directory, where etcd has it elsewhere than in the data directory.
    pub wal_dir: Option<PathBuf>,
    /// How deep keys are told apart: of Kubernetes 1 is the resource, 2 the namespace too; of
    /// others it is the number of path segments. `None`: 1 and 2.
    pub depth: Option<u32>,
    /// Length of the top lists, at most [`TOP_MAX`].
    pub top: usize,
}

/// What a compaction at the current revision would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Compaction {
    /// The current revision.
    pub revision: i64,
    /// Records that it would drop.
    pub records: u64,
    /// Bytes of them; they become free inside of the file, whose size stays.
    pub bytes: u64,
}

/// What is in a database, by size.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Of this shape.
    pub version: u32,
    /// Path as given.
    pub path: String,
    /// Some of it could not be read; what is shown is what could.
    pub partial: bool,
    /// A log was read too: keys are counted with what it adds, `space` is the file's alone.
    pub with_log: bool,
    /// Bytes of the file.
    pub size_bytes: u64,
    /// Bytes up to the last page that was ever used: what etcd calls the size of the database and
    /// counts against its quota.
    pub db_bytes: u64,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Bytes of the file by use; their sum is `size_bytes`.
    pub space: Space,
    /// Whether a Kubernetes API server wrote keys.
    pub kubernetes: bool,
    /// Living keys.
    pub keys: u64,
    /// Records of all keys, history included.
    pub revisions: u64,
    /// Bytes of living records.
    pub live_bytes: u64,
    /// Bytes of superseded records and tombstones.
    pub history_bytes: u64,
    /// Highest compaction revision in it; -1 for none.
    pub compact_revision: i64,
    /// Keys by what their names begin with, largest first.
    pub groups: Vec<Group>,
    /// Keys with the largest values.
    pub largest_values: Vec<LargeValue>,
    /// Keys with the most records.
    pub most_rewritten: Vec<RewrittenKey>,
    /// Top-level buckets, largest first.
    pub buckets: Vec<Bucket>,
    /// What a compaction at the current revision would free.
    pub compaction: Compaction,
    /// About what a defragmentation would take off `db_bytes` as they are; `None` where the tree
    /// is damaged, so that nobody knows what it holds.
    pub defrag_bytes: Option<u64>,
    /// What to run to get the room back.
    pub next: Vec<String>,
    /// What is damaged.
    #[serde(skip)]
    pub findings: Findings,
}

impl Report {
    /// Builds the JSON of a report; `docs/JSON.md` describes it.
    #[must_use]
    pub fn json(&self) -> Value {
        let mut report = json!(self);
        if let Some(map) = report.as_object_mut() {
            map.insert("findings".into(), json!(self.findings.kept()));
            map.insert("findings_left_out".into(), json!(self.findings.left_out()));
        }
        report
    }

    /// Returns what the program exits with.
    #[must_use]
    pub fn exit_code(&self) -> ExitCode {
        if self.findings.has_errors() { ExitCode::Damage } else { ExitCode::Ok }
    }
}

/// Inspects a database.
///
/// # Errors
/// It cannot be opened, a server has it open, or the operation was told to stop. Damage is in the
/// report.
pub fn inspect(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    if options.depth == Some(0) {
        return Err(Error::usage("--depth must be 1 or more"));
    }
    let subject = Subject::open(&options.path, options.wal_dir.as_deref(), progress)?;
    of_subject(&subject, options, progress)
}

fn of_subject(
    subject: &Subject,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report, Error> {
    let depth = match options.depth {
        None => Depth { kubernetes: 1, path: 2 },
        Some(depth) => Depth { kubernetes: depth, path: depth },
    };
    let page_bytes = subject.file.page_size();
    let tally = || Tally::new(depth, options.top.min(TOP_MAX), page_bytes);
    progress.step("inspect", subject.file.source().len());
    let mut seen = tally();
    let walked = subject.walk(&mut seen, progress)?;
    let seen = seen.finish();
    let (space, packed_bytes) = if subject.edits.is_empty() {
        (Space::of(&subject.file, &walked, &seen.sums), seen.packed_bytes)
    } else {
        let mut alone = Alone { tally: tally(), progress };
        let walked = walk(&subject.file, &mut alone);
        if walked.stopped {
            return Err(Error::interrupted());
        }
        let alone = alone.tally.finish();
        (Space::of(&subject.file, &walked, &alone.sums), alone.packed_bytes)
    };
    Ok(report(subject, options, walked, seen, space, packed_bytes))
}

/// Sees the file without what its log adds.
struct Alone<'a> {
    tally: Tally,
    progress: &'a dyn Progress,
}

impl Visit for Alone<'_> {
    fn bucket(&mut self, at: &At<'_>, sequence: u64) {
        self.tally.bucket(at, sequence);
    }

    fn entry(&mut self, at: &At<'_>, key: &[u8], value: &[u8]) {
        self.tally.entry(at, key, value);
    }

    fn page(&mut self, _: u64) -> bool {
        !self.progress.stopped()
    }
}

fn report(
    subject: &Subject,
    options: &Options,
    walked: Walk,
    seen: Counted,
    space: Space,
    packed_bytes: u64,
) -> Report {
    let is_whole = walked.tree_is_whole();
    let partial = !is_whole || seen.findings.has_errors();
    let mut findings = walked.findings;
    findings.append(seen.findings);
    let compaction = Compaction {
        revision: seen.revision,
        records: seen.freeable_rows,
        bytes: seen.freeable_bytes,
    };
    let size_bytes = subject.file.source().len();
    let db_bytes = subject.file.meta().size_bytes().min(size_bytes);
    let defrag_bytes = is_whole.then(|| db_bytes.saturating_sub(packed_bytes));
    let compact_revision = seen.compact_revision.unwrap_or(-1);
    let next = if findings.has_errors() {
        vec![format!("etcdkit snapshot verify {}", word(&subject.path))]
    } else {
        let can_compact = compaction.revision > compact_revision;
        let gain = Gain { compaction, defrag: defrag_bytes.unwrap_or_default(), can_compact };
        let data_dir = match subject.is_dir {
            true => Some(subject.path.as_path()),
            false => directory_of(&subject.path),
        };
        match data_dir {
            Some(data_dir) => of_directory(data_dir, options.wal_dir.as_deref(), gain),
            None => of_file(&subject.path, space.trailer > 0, gain),
        }
    };
    Report {
        version: 1,
        path: subject.path.display().to_string(),
        partial,
        with_log: !subject.edits.is_empty(),
        size_bytes,
        db_bytes,
        page_bytes: subject.file.page_size(),
        space,
        kubernetes: seen.is_kubernetes,
        keys: seen.sums.live_rows,
        revisions: seen.sums.live_rows.saturating_add(seen.sums.history_rows),
        live_bytes: seen.sums.live_bytes,
        history_bytes: seen.sums.history_bytes,
        compact_revision,
        groups: seen.groups,
        largest_values: seen.values,
        most_rewritten: seen.rewritten,
        buckets: seen.buckets,
        compaction,
        defrag_bytes,
        next,
        findings,
    }
}

/// Room that is to be had.
#[derive(Clone, Copy)]
struct Gain {
    compaction: Compaction,
    /// About how many bytes packing takes off.
    defrag: u64,
    /// No compaction at that revision was scheduled before.
    can_compact: bool,
}

fn word(path: &Path) -> String {
    shell_word(&path.display().to_string())
}

/// Finds the data directory of a path to the db file in it.
fn directory_of(path: &Path) -> Option<&Path> {
    let is_db = path.ends_with("member/snap/db");
    let data_dir = path.ancestors().nth(3).filter(|_| is_db)?;
    Some(if data_dir.as_os_str().is_empty() { Path::new(".") } else { data_dir })
}

/// Commands that give room back in a directory that no server has open.
fn of_directory(data_dir: &Path, wal_dir: Option<&Path>, gain: Gain) -> Vec<String> {
    let data_dir = word(data_dir);
    let mut next = Vec::new();
    if gain.defrag > 0 {
        next.push(format!("etcdkit defrag --data-dir {data_dir}"));
    }
    let revision = gain.compaction.revision;
    if gain.compaction.bytes > 0 && gain.can_compact {
        let wal_dir = wal_dir.map(|dir| format!(" --wal-dir {}", word(dir))).unwrap_or_default();
        next.push(format!(
            "for the history, start the member, then: etcdctl compaction {revision} && etcdctl \
             defrag"
        ));
        next.push(format!(
            "or make a small snapshot: etcdkit snapshot save OUT --from-data-dir \
             {data_dir}{wal_dir} && etcdkit snapshot compact OUT --rev {revision} -o SMALL"
        ));
    }
    next
}

/// Commands that give room back in a file: the one that compacts it also packs it.
fn of_file(path: &Path, is_sealed: bool, gain: Gain) -> Vec<String> {
    if !gain.can_compact || (gain.compaction.bytes == 0 && gain.defrag == 0) {
        return Vec::new();
    }
    let trailer = if is_sealed { "" } else { " --skip-hash-check" };
    let revision = gain.compaction.revision;
    let path = word(path);
    vec![format!("etcdkit snapshot compact {path} --rev {revision} -o OUT{trailer}")]
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::bolt::File;
    use crate::bolt::builder::Builder;
    use crate::bolt::overlay::Edits;
    use crate::etcd::record::KeyValue;
    use crate::etcd::revision::Revision;
    use crate::ops::Silent;

    fn record(main: i64, version: i64) -> Vec<u8> {
        let mut row = Vec::new();
        let record = KeyValue {
            key: b"/a/b",
            value: &[7; 100],
            create_revision: 2,
            mod_revision: main,
            version,
            ..KeyValue::default()
        };
        record.encode(&mut row);
        row
    }

    #[test]
    fn keys_are_counted_with_the_log_and_bytes_without() {
        let mut builder = Builder::new(Cursor::new(Vec::new()), 4096).unwrap();
        builder.begin_bucket(b"key", 0).unwrap();
        builder.put(&Revision::new(2, 0).encode(), &record(2, 1)).unwrap();
        builder.end_bucket().unwrap();
        let bytes = builder.finish(4).unwrap().1.into_inner();
        let size = u64::try_from(bytes.len()).unwrap();
        let file = File::from_bytes(bytes).unwrap();
        let (path, edits) = (PathBuf::from("d"), Edits::default());
        let mut subject = Subject { path, file, edits, is_dir: true };
        let options = Options { path: "d".into(), wal_dir: None, depth: None, top: 3 };
        let before = of_subject(&subject, &options, &Silent).unwrap();
        assert_eq!((before.keys, before.revisions, before.history_bytes), (1, 1, 0));
        assert!(!before.with_log);

        subject.edits.put(b"key", &Revision::new(3, 0).encode(), &record(3, 2));
        let after = of_subject(&subject, &options, &Silent).unwrap();
        assert!(after.with_log);
        assert_eq!((after.keys, after.revisions), (1, 2));
        assert_eq!(after.history_bytes, before.live_bytes);
        assert_eq!(after.compaction.revision, 3);
        assert_eq!((after.space.total(), after.defrag_bytes), (size, before.defrag_bytes));
        assert_eq!(after.space, before.space);
    }
}
