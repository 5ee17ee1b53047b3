//! Speed and memory of the offline verbs, as ratios against reference programs in the same run.
//!
//! `cargo bench --bench offline` makes a snapshot of 300,000 keys of 1 KiB with two revisions each
//! (about 800 MB), runs each verb and its reference in turns with the page cache warm, and prints
//! one table: medians, their ratio, the bar it is held to, and the peak of the child's anonymous
//! memory as `/proc` samples it. Nothing here fails on a number.
//!
//! - `ETCDKIT_BENCH_KEYS`: another number of keys; 1,150,000 make 3 GB, and memory stays the same
//!   but for what a key may take.
//! - `ETCDKIT_BENCH_PAIRS`: pairs to take the median of; 5.
//! - Words after `--` choose the rows whose first column has one of them.
//!
//! References are `etcdutl` 3.7 and `bbolt` as `tests/interop/build` left them (in
//! `$ETCDKIT_INTEROP_BIN` or `target/interop/bin`), `cp` and `sync`, and SHA-256 in one thread.
//! What is not there, of ours or of theirs, has a row that says so. Takes about six times the size
//! of the snapshot below the target folder, and leaves nothing behind.

#![allow(clippy::unwrap_used, reason = "a benchmark that cannot go on may as well stop")]
#![allow(clippy::expect_used, clippy::panic, reason = "the same")]

mod support;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use support::{Measured, clean_up_when_stopped, judged, median, number, run};
use support::{make_snapshot, sha256_of};

const MIB: f64 = 1024.0 * 1024.0;

fn main() {
    let keys = number("ETCDKIT_BENCH_KEYS", 300_000);
    let pairs = number("ETCDKIT_BENCH_PAIRS", 5).max(1);
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with('-')).collect();
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    clean_up_when_stopped(folder.path());
    let place = Place { folder: folder.path().to_owned() };
    make_snapshot(&place.snapshot(), keys);
    let size = fs::metadata(place.snapshot()).unwrap().len();
    println!("{keys} keys x 2 revisions, a snapshot of {size} bytes; medians of {pairs} pairs");
    let mut table = Table::new(&[
        "work",
        "against",
        "ours s",
        "theirs s",
        "ratio",
        "bar",
        "",
        "ours MiB",
        "bar",
        "",
        "theirs MiB",
    ]);
    for contest in place.contests(keys) {
        if words.is_empty() || words.iter().any(|word| contest.work.contains(word)) {
            let row = contest.row(pairs);
            // One line at once, so that a run that is stopped has not been for nothing.
            eprintln!("{}", row.join("  "));
            table.add(&row);
        }
    }
    print!("{}", table.text());
}

/// A piece of work, ours or theirs.
struct Side<'a> {
    /// Why it cannot be run here.
    missing: Option<String>,
    /// Comes before each run, and its time does not count.
    prepare: Box<dyn Fn() + 'a>,
    run: Box<dyn Fn() -> Measured + 'a>,
}

/// Ours against a reference.
struct Contest<'a> {
    work: &'static str,
    against: &'static str,
    /// The most that ours may take of their time.
    bar: Option<f64>,
    /// The most anonymous memory that ours may take, in MiB.
    memory_bar: Option<f64>,
    ours: Side<'a>,
    theirs: Side<'a>,
}

impl Contest<'_> {
    /// Measures in turns; the first turn, which warms the page cache, does not count.
    fn row(&self, pairs: u32) -> Vec<String> {
        let mut row = vec![self.work.to_owned(), self.against.to_owned()];
        let missing = [&self.ours, &self.theirs].into_iter().find_map(|side| side.missing.clone());
        if let Some(why) = missing {
            row.push(format!("NOT MEASURED: {why}"));
            return row;
        }
        let [mut ours, mut theirs] = [Vec::new(), Vec::new()];
        let [mut our_peak, mut their_peak] = [0, 0];
        for turn in 0..=pairs {
            // Who comes first changes, so that neither always follows the other's writes.
            let sides = [&self.ours, &self.theirs];
            let mut measured = [Measured::default(); 2];
            let order = if turn % 2 == 0 { [0, 1] } else { [1, 0] };
            for at in order {
                (sides[at].prepare)();
                measured[at] = (sides[at].run)();
            }
            our_peak = our_peak.max(measured[0].peak_bytes);
            their_peak = their_peak.max(measured[1].peak_bytes);
            if turn > 0 {
                ours.push(measured[0].time.as_secs_f64());
                theirs.push(measured[1].time.as_secs_f64());
            }
        }
        let (ours, theirs) = (median(ours), median(theirs));
        let ratio = ours / theirs;
        row.extend([format!("{ours:.3}"), format!("{theirs:.3}"), format!("{ratio:.2}")]);
        row.extend(judged(ratio, self.bar, 2));
        let mib = |bytes: u64| f64::from(u32::try_from(bytes / 1024).unwrap()) / 1024.0;
        row.push(format!("{:.1}", mib(our_peak)));
        row.extend(judged(mib(our_peak), self.memory_bar, 1));
        row.push(if their_peak > 0 { format!("{:.1}", mib(their_peak)) } else { "-".into() });
        row
    }
}

/// Where everything lies.
struct Place {
    folder: PathBuf,
}

impl Place {
    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    fn snapshot(&self) -> String {
        self.path("bench.db")
    }

    /// The table of work, references and bars.
    fn contests(&self, keys: u32) -> Vec<Contest<'_>> {
        // A restore keeps to 64 MiB, whatever there is of keys.
        let small = Some(64.0);
        let by_key = Some(64.0 + 24.0 * f64::from(keys) / MIB);
        let contest = |work, against, bar, memory_bar, ours, theirs| Contest {
            work,
            against,
            bar,
            memory_bar,
            ours,
            theirs,
        };
        let status = &["snapshot", "status", "bench.db"];
        let check = &["check", "bench.db"];
        let sum = &["hashkv", "bench.db"];
        vec![
            contest("verify", "sha256", Some(1.15), by_key, self.verify(), self.sha256()),
            contest(
                "verify",
                "etcdutl status",
                Some(0.75),
                by_key,
                self.verify(),
                self.program("etcdutl-3.7", status),
            ),
            contest(
                "verify",
                "bbolt check",
                None,
                by_key,
                self.verify(),
                self.program("bbolt", check),
            ),
            contest(
                "restore",
                "cp + sync",
                Some(1.25),
                small,
                self.restore(),
                self.copy("bench.db"),
            ),
            contest(
                "restore",
                "etcdutl restore",
                None,
                small,
                self.restore(),
                self.etcdutl_restore(),
            ),
            contest(
                "defrag",
                "etcdutl defrag",
                Some(0.25),
                by_key,
                self.defrag(),
                self.etcdutl_defrag(),
            ),
            contest(
                "defrag",
                "cp + sync of output",
                Some(1.3),
                by_key,
                self.defrag(),
                self.copy("restored/member/snap/db"),
            ),
            contest(
                "compact",
                "etcdutl defrag",
                Some(0.25),
                by_key,
                self.compact(keys),
                self.etcdutl_defrag(),
            ),
            contest(
                "compact",
                "bbolt compact",
                None,
                by_key,
                self.compact(keys),
                self.bbolt_compact(),
            ),
            contest(
                "compact",
                "cp + sync of output",
                Some(1.3),
                by_key,
                self.compact(keys),
                self.copy("compacted.db"),
            ),
            contest(
                "hashkv",
                "etcdutl hashkv",
                Some(0.2),
                by_key,
                self.kit(&["hashkv"], sum),
                self.program("etcdutl-3.7", sum),
            ),
        ]
    }

    /// Ours: a command of etcdkit, with names of files below the folder.
    fn kit(&self, command: &[&str], words: &[&str]) -> Side<'_> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        // The program itself says whether it has the command.
        let asked = Command::new(env!("CARGO_BIN_EXE_etcdkit"))
            .args(command)
            .arg("--help")
            .output()
            .unwrap();
        let missing = (!asked.status.success())
            .then(|| format!("this etcdkit has no `{}`", command.join(" ")));
        let run = Box::new(move || {
            let mut command = Command::new(env!("CARGO_BIN_EXE_etcdkit"));
            command.args(["--audit-log", "audit", "--quiet"]).args(&words);
            run(command.current_dir(&self.folder))
        });
        Side { missing, prepare: Box::new(|| {}), run }
    }

    /// Theirs: a program that was built for comparison.
    fn program(&self, name: &'static str, words: &'static [&str]) -> Side<'_> {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/interop/bin");
        let built = std::env::var_os("ETCDKIT_INTEROP_BIN").map_or(built, PathBuf::from);
        let program = built.join(name);
        let missing =
            (!program.exists()).then(|| format!("no {name}; tests/interop/build makes it"));
        let run =
            Box::new(move || run(Command::new(&program).args(words).current_dir(&self.folder)));
        Side { missing, prepare: Box::new(|| {}), run }
    }

    fn verify(&self) -> Side<'_> {
        self.kit(&["snapshot", "verify"], &["snapshot", "verify", "bench.db"])
    }

    fn restore(&self) -> Side<'_> {
        let words = &["snapshot", "restore", "bench.db", "--data-dir", "new"];
        let prepare = Box::new(|| self.remove("new"));
        Side { prepare, ..self.kit(&["snapshot", "restore"], words) }
    }

    fn etcdutl_restore(&self) -> Side<'_> {
        let words = &["snapshot", "restore", "bench.db", "--data-dir", "theirs"];
        let prepare = Box::new(|| self.remove("theirs"));
        Side { prepare, ..self.program("etcdutl-3.7", words) }
    }

    fn defrag(&self) -> Side<'_> {
        let words = &["defrag", "--data-dir", "restored"];
        let prepare = Box::new(|| self.restored());
        Side { prepare, ..self.kit(&["defrag"], words) }
    }

    fn etcdutl_defrag(&self) -> Side<'_> {
        let words = &["defrag", "--data-dir", "restored"];
        let prepare = Box::new(|| self.restored());
        Side { prepare, ..self.program("etcdutl-3.7", words) }
    }

    fn compact(&self, keys: u32) -> Side<'_> {
        // At the last revision that drops no record: as much is written as is read.
        let revision = (keys + 1).to_string();
        let words = ["snapshot", "compact", "bench.db", "--rev", &revision, "-o", "compacted.db"];
        let prepare = Box::new(|| self.remove("compacted.db"));
        Side { prepare, ..self.kit(&["snapshot", "compact"], &words) }
    }

    fn bbolt_compact(&self) -> Side<'_> {
        let words = &["compact", "-o", "packed.db", "bench.db"];
        let prepare = Box::new(|| self.remove("packed.db"));
        Side { prepare, ..self.program("bbolt", words) }
    }

    /// Copies a file and brings it to the disk.
    fn copy(&self, name: &'static str) -> Side<'_> {
        let script = "cp -- \"$1\" copy && sync -- copy";
        let run = Box::new(move || {
            let mut command = Command::new("sh");
            command.args(["-c", script, "sh", name]);
            run(command.current_dir(&self.folder))
        });
        Side { missing: None, prepare: Box::new(|| self.remove("copy")), run }
    }

    /// Sums the file in one thread of this process.
    fn sha256(&self) -> Side<'_> {
        let run = Box::new(|| {
            let began = Instant::now();
            let mut file = File::open(self.snapshot()).unwrap();
            std::hint::black_box(sha256_of(&mut file));
            Measured { time: began.elapsed(), peak_bytes: 0 }
        });
        Side { missing: None, prepare: Box::new(|| {}), run }
    }

    fn remove(&self, name: &str) {
        let path = self.folder.join(name);
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => panic!("{name}: {error}"),
            _ => {}
        }
    }

    /// Makes a data directory whose database is the snapshot as it is, on the disk already.
    fn restored(&self) {
        if !self.folder.join("restored").exists() {
            let mut command = Command::new(env!("CARGO_BIN_EXE_etcdkit"));
            command.args(["--audit-log", "audit", "--quiet", "snapshot", "restore", "bench.db"]);
            command.args(["--data-dir", "restored", "--no-bump"]);
            run(command.current_dir(&self.folder));
        }
        let path = self.folder.join("restored/member/snap/db");
        fs::copy(self.snapshot(), &path).unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(file.metadata().unwrap().len() - 32).unwrap();
        file.sync_all().unwrap();
    }
}

/// Columns that line up.
struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|&word| word.to_owned()).collect()] }
    }

    fn add(&mut self, row: &[String]) {
        self.rows.push(row.to_vec());
    }

    fn text(&self) -> String {
        // A row that only says why it is empty does not widen its column.
        let full = self.rows.iter().filter(|row| row.len() == self.rows[0].len());
        let full: Vec<_> = full.collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (at, cell) in row.iter().enumerate() {
                let width = if at < 2 { &self.rows.iter().collect() } else { &full };
                let width = width.iter().map(|row| row[at].len()).max().unwrap_or(0);
                let _ = match at {
                    0 | 1 => write!(line, "{cell:width$}  "),
                    _ => write!(line, "{cell:>width$}  "),
                };
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}
