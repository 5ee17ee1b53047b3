//! etcd's own tests, with our program in etcd's place: each ends as `docs/SUITE.md` says.
//!
//! They are built from etcd's published module (`tests/interop/build suite`) for one member, and
//! find our program under the name `etcd` beside the real etcdctl and etcdutl. Two runs share the
//! tests and the machine. Run them with `cargo test --test interop suite -- --ignored`; with
//! `ETCDKIT_SUITE=slow` those that the document calls slow run too, and with `ETCDKIT_SUITE=etcd`
//! all run against the real etcd and are held to the column of it.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::programs::{Real, bounded, real};
use crate::support::Sandbox;

/// Longest build of the tests from nothing.
const BUILD: Duration = Duration::from_secs(900);
/// Longest run of one half of the tests.
const RUN: Duration = Duration::from_secs(1200);
/// The one test of the robustness package that needs neither three members nor a changed etcd.
const ROBUSTNESS: &str = "TestRobustnessRegression/Issue15220";
/// Where each of the two runs begins with its ports; each needs about a hundred.
const PORTS: [u16; 2] = [24_000, 25_000];

/// A line of the document's table.
struct Row {
    test: String,
    etcd: String,
    ours: String,
    seconds: f64,
    run: String,
    reason: String,
}

fn rows() -> Vec<Row> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/SUITE.md");
    let text = fs::read_to_string(path).expect("docs/SUITE.md");
    let cells = |line: &str| -> Option<Vec<String>> {
        let line = line.strip_prefix('|')?.strip_suffix('|')?;
        Some(line.split('|').map(|cell| cell.trim().to_owned()).collect())
    };
    let mut rows = Vec::new();
    for cells in text.lines().filter_map(cells).filter(|cells| cells[0].starts_with("Test")) {
        let [test, etcd, ours, seconds, run, reason] = &cells[..] else {
            panic!("docs/SUITE.md: not six columns: {cells:?}");
        };
        rows.push(Row {
            test: test.clone(),
            etcd: etcd.clone(),
            ours: ours.clone(),
            seconds: seconds.parse().unwrap_or_else(|_| panic!("docs/SUITE.md: time of {test}")),
            run: run.clone(),
            reason: reason.clone(),
        });
    }
    rows
}

/// The folder that etcd's tests were built into.
fn built(real: &Real) -> PathBuf {
    let build = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/build");
    let ran = bounded(Command::new(build).arg("suite").stdin(Stdio::null()), BUILD);
    assert_eq!(ran.code, 0, "{ran}");
    real.bin().join("suite")
}

/// What a test came to.
#[derive(Debug)]
struct Verdict {
    word: String,
    seconds: f64,
}

/// The programs that the tests start, and a place for their files.
struct Bench<'a> {
    suite: &'a Path,
    sandbox: &'a Sandbox,
}

impl Bench<'_> {
    fn command(&self, package: &str, port: u16) -> Command {
        let mut command = Command::new(self.suite.join(format!("{package}.test")));
        command.current_dir(self.suite.join("tests").join(package));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.env("E2E_TEST_MINIMAL", "true").env("E2E_BASE_PORT", port.to_string());
        command.env("TMPDIR", self.sandbox.mkdir("tmp"));
        command.env("RESULTS_DIR", self.sandbox.mkdir("results"));
        let path = |flag: &str, path: PathBuf| format!("{flag}={}", path.display());
        command.arg(path("-bin-dir", self.sandbox.path("bin")));
        command.arg(path("-cert-dir", self.suite.join("tests/fixtures")));
        command.stdin(Stdio::null());
        command
    }

    /// The names of a package's tests.
    fn names(&self, package: &str) -> Vec<String> {
        let ran = bounded(self.command(package, PORTS[0]).args(["-test.list", "."]), RUN);
        let names = ran.expect(0, &[]).stdout;
        names.lines().filter(|line| line.starts_with("Test")).map(str::to_owned).collect()
    }

    /// Runs tests of a package; what they say goes to a log that is kept.
    fn run(&self, package: &str, port: u16, pattern: &str, log: &Path) {
        let out = File::create(log).expect("a log");
        let mut command = self.command(package, port);
        command.args(["-test.v", "-test.timeout", "30m", "-test.run", pattern]);
        command.stdout(out.try_clone().expect("a log")).stderr(out);
        let mut child = Running(command.spawn().expect("etcd's tests start"));
        let began = Instant::now();
        while child.0.try_wait().expect("a child to look at").is_none() {
            // Its tests that did not come to an end are missed below.
            if began.elapsed() > RUN {
                break;
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// Ends what the tests have left running: servers whose words name the sandbox.
    fn sweep(&self) -> Vec<String> {
        let sandbox = self.sandbox.path("").display().to_string();
        let mut left = Vec::new();
        for entry in fs::read_dir("/proc").expect("/proc").flatten() {
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(pid) = pid.and_then(Pid::from_raw) else { continue };
            let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).replace('\0', " ");
            if words.contains(&sandbox) {
                let _ = kill_process(pid, Signal::KILL);
                left.push(words);
            }
        }
        left
    }
}

/// A test program; it is killed when it is dropped, and the servers with it: they hang on terminals
/// that it holds.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Reads how each test and each part of one ended. A test whose parts were all skipped was skipped,
/// although Go says that it passed.
fn verdicts(log: &str) -> BTreeMap<String, Verdict> {
    let mut verdicts = BTreeMap::new();
    for line in log.lines() {
        let Some((word, rest)) =
            line.trim_start().strip_prefix("--- ").and_then(|line| line.split_once(": "))
        else {
            continue;
        };
        let Some((test, time)) = rest.split_once(" (") else { continue };
        let seconds = time.trim_end_matches("s)").parse().unwrap_or(0.0);
        verdicts.insert(test.to_owned(), Verdict { word: word.to_lowercase(), seconds });
    }
    let parts_of = |test: &str| {
        let head = format!("{test}/");
        let from =
            verdicts.range(head.clone()..).take_while(move |(part, _)| part.starts_with(&head));
        from.map(|(part, verdict)| (part.as_str(), verdict.word.as_str())).collect::<Vec<_>>()
    };
    let is_skipped = |test: &&String| {
        let parts = parts_of(test);
        let mut last = parts.iter().filter(|(part, _)| parts_of(part).is_empty());
        !parts.is_empty() && last.all(|(_, word)| *word == "skip")
    };
    let skipped: Vec<String> = verdicts.keys().filter(is_skipped).cloned().collect();
    for test in skipped {
        if let Some(verdict) = verdicts.get_mut(&test) {
            verdict.word = "skip".to_owned();
        }
    }
    verdicts
}

/// Shares tests between two runs so that both take as long.
fn halves(mut rows: Vec<&Row>) -> [Vec<&str>; 2] {
    rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    let mut halves = [Vec::new(), Vec::new()];
    let mut seconds = [0.0; 2];
    for row in rows {
        let at = usize::from(seconds[1] < seconds[0]);
        seconds[at] += row.seconds;
        halves[at].push(row.test.as_str());
    }
    halves
}

/// What a test said, and what it was told by the programs that it started, without the log lines.
fn said<'a>(log: &'a str, test: &str) -> Vec<&'a str> {
    let is_of = |line: &str, mark: &str| {
        let rest = line.strip_prefix(mark).map(str::trim_start);
        rest.is_some_and(|name| name == test || name.starts_with(&format!("{test}/")))
    };
    let mut wanted = false;
    let mut lines = Vec::new();
    for line in log.lines() {
        if line.starts_with("=== ") {
            wanted = ["=== RUN", "=== NAME", "=== CONT"].iter().any(|mark| is_of(line, mark));
        } else if wanted && !line.trim().is_empty() {
            lines.push(line);
        }
    }
    lines
}

/// The end of what a test said, as a reader wants to see it first.
fn complaints(log: &str, test: &str) -> String {
    let is_ours = |line: &&str| !line.contains("logger.go:") && !line.contains("{\"level\":");
    let lines = said(log, test).into_iter().filter(is_ours);
    let mut lines: Vec<String> = lines.map(|line| line.chars().take(300).collect()).collect();
    let skipped = lines.len().saturating_sub(30);
    lines.split_off(skipped).join("\n")
}

/// What stands between backticks in a reason: a test that fails for that reason says it.
fn words(reason: &str) -> Option<&str> {
    Some(reason.split_once('`')?.1.split_once('`')?.0)
}

#[test]
#[ignore = "takes minutes; the step `suite` of .ci/run"]
fn etcds_own_tests_end_as_the_document_says() {
    let Some(real) = real() else { return };
    let suite = built(&real);
    let choice = std::env::var("ETCDKIT_SUITE").unwrap_or_default();
    assert!(["", "slow", "etcd"].contains(&choice.as_str()), "ETCDKIT_SUITE={choice}");
    let sandbox = Sandbox::new();
    let bin = sandbox.mkdir("bin");
    let etcd = real.bin().join("etcd-3.7");
    let ours = Path::new(env!("CARGO_BIN_EXE_etcdkit"));
    symlink(if choice == "etcd" { &etcd } else { ours }, bin.join("etcd")).expect("a link");
    for program in ["etcdctl", "etcdutl"] {
        let path = real.bin().join(format!("{program}-3.7"));
        symlink(path, bin.join(program)).expect("a link");
    }
    let bench = Bench { suite: &suite, sandbox: &sandbox };

    let rows = rows();
    let documented: Vec<&str> = rows.iter().map(|row| row.test.as_str()).collect();
    let mut there = bench.names("common");
    there.push(ROBUSTNESS.to_owned());
    assert_eq!(documented, there, "docs/SUITE.md has a line for each test, in their order");
    for row in &rows {
        let has_reason = match row.ours.as_str() {
            "pass" => true,
            "fail" if row.run != "never" => words(&row.reason).is_some(),
            _ => !row.reason.is_empty(),
        };
        assert!(has_reason, "docs/SUITE.md: no reason, or not its words, at {}", row.test);
    }
    let is_wanted = |row: &&Row| match row.run.as_str() {
        "always" => true,
        "slow" => !choice.is_empty(),
        "never" => false,
        other => panic!("docs/SUITE.md: {}: run is {other}", row.test),
    };
    let wanted: Vec<&Row> = rows.iter().filter(is_wanted).collect();

    let logs = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let logs = ["1", "2", "robustness"].map(|name| logs.join(format!("suite-{name}.log")));
    let common = wanted.iter().copied().filter(|row| row.test != ROBUSTNESS).collect();
    let began = Instant::now();
    scope(|scope| {
        for ((half, port), log) in halves(common).into_iter().zip(PORTS).zip(&logs) {
            let bench = &bench;
            let pattern = format!("^({})$", half.join("|"));
            scope.spawn(move || bench.run("common", port, &pattern, log));
        }
    });
    let pattern = format!("^{}$", ROBUSTNESS.replace('/', "$/^"));
    bench.run("robustness", PORTS[0], &pattern, &logs[2]);
    let left = bench.sweep();
    println!("etcd's tests took {:.0} s", began.elapsed().as_secs_f64());

    let logs = logs.map(|path| read(&path));
    let found: Vec<_> = logs.iter().map(|log| verdicts(log)).collect();
    let mut wrong = Vec::new();
    for row in wanted {
        let expected = if choice == "etcd" { &row.etcd } else { &row.ours };
        let (verdict, log) = found
            .iter()
            .zip(&logs)
            .find_map(|(found, log)| Some((found.get(&row.test)?, log)))
            .map_or((None, ""), |(verdict, log)| (Some(verdict), log.as_str()));
        let word = verdict.map_or("no end", |verdict| verdict.word.as_str());
        let seconds = verdict.map_or(0.0, |verdict| verdict.seconds);
        println!("{word:<6} {seconds:>6.1} s  {}", row.test);
        let complaints = || complaints(log, &row.test);
        if word != expected {
            wrong.push(format!("{}: {word} instead of {expected}\n{}", row.test, complaints()));
        } else if word == "fail" {
            let reason = words(&row.reason).unwrap_or_default();
            if !said(log, &row.test).iter().any(|line| line.contains(reason)) {
                wrong.push(format!("{}: not for {reason:?}\n{}", row.test, complaints()));
            }
        }
    }
    assert!(wrong.is_empty(), "logs: {}\n{}", env!("CARGO_TARGET_TMPDIR"), wrong.join("\n\n"));
    assert!(left.is_empty(), "left running: {left:?}");
}

/// Reads a log of any bytes; of a very long one the end is enough.
fn read(path: &Path) -> String {
    let mut file = File::open(path).expect("a log");
    let length = file.metadata().expect("a log").len();
    file.seek(SeekFrom::Start(length.saturating_sub(1 << 28))).expect("a log");
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).expect("a log");
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn ends_of_tests_are_read_and_shared() {
    let log = "=== RUN   TestA\n    logger.go:1: x\n    a_test.go:5: Error: bad\n=== RUN   TestB\n\
               --- FAIL: TestA (1.50s)\n    --- PASS: TestA/x (0.10s)\n--- SKIP: TestB (0.00s)\n\
               --- PASS: TestD (0.00s)\n    --- PASS: TestD/x (0.00s)\n        \
               --- SKIP: TestD/x/y (0.00s)\n    --- SKIP: TestD/z (0.00s)\n\
               --- PASS: TestE (0.00s)\n    --- PASS: TestE/x (0.00s)\n    \
               --- SKIP: TestE/y (0.00s)\n";
    let found = verdicts(log);
    let word = |test: &str| found.get(test).map(|verdict| verdict.word.as_str());
    assert_eq!(word("TestA"), Some("fail"));
    assert_eq!(word("TestA/x"), Some("pass"));
    assert_eq!(word("TestB"), Some("skip"));
    assert_eq!(word("TestC"), None);
    assert_eq!((word("TestD"), word("TestE")), (Some("skip"), Some("pass")));
    assert_eq!(complaints(log, "TestA"), "    a_test.go:5: Error: bad");
    assert_eq!(said(log, "TestA").len(), 2);
    assert_eq!(words("not so: `a b`, and `c`"), Some("a b"));
    assert_eq!((words("not so"), words("not `so")), (None, None));
    let row = |test: &str, seconds: f64| Row {
        test: test.into(),
        etcd: String::new(),
        ours: String::new(),
        seconds,
        run: String::new(),
        reason: String::new(),
    };
    let rows = [row("TestA", 1.0), row("TestB", 5.0), row("TestC", 3.0)];
    assert_eq!(halves(rows.iter().collect()), [vec!["TestB"], vec!["TestC", "TestA"]]);
}
