//! Figures of the last save for node_exporter's textfile collector.
//!
//! Written after every run, a failed one too. What a failed run cannot know is carried over from
//! the file that is there, of which only lines of the very shape that is written are believed.
//!
//! **Source**: the Prometheus text exposition format, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::live::{Options, Output, Report};
use super::{Step, note_path, retention};
use crate::bolt::Source;
use crate::ops::{Error, ExitCode, clock, disk};

/// Longest old file that is read, in bytes.
const OLD_BYTES_MAX: usize = 64 << 10;
/// What every file of ours begins with.
const OURS: &[u8] = b"# HELP etcdkit_";
const FAILURES: &str = "etcdkit_backup_failures_total";
const DURATION: &str = "etcdkit_backup_duration_seconds";
const LAST_RUN: &str = "etcdkit_backup_last_run_timestamp_seconds";
const LAST_SUCCESS: &str = "etcdkit_backup_last_run_success";

/// Figures that outlive a run, with their meaning.
const KEPT: [(&str, &str); 4] = [
    (
        "etcdkit_backup_last_success_timestamp_seconds",
        "When the last good snapshot was saved, 0 before the first.",
    ),
    ("etcdkit_backup_last_revision", "Revision of the last good snapshot."),
    ("etcdkit_backup_last_size_bytes", "Size of the last good snapshot."),
    (
        "etcdkit_backup_cluster_max_revision_seen",
        "Highest revision that any member had told at the last run that learned one.",
    ),
];

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run<'a> {
    pub(super) outcome: Result<&'a Report, &'a Error>,
    pub(super) steps: &'a [Step],
    /// Highest revision that was seen, 0 for none.
    pub(super) highest: i64,
}

/// Says why the file must be left alone: it is something else than figures of a run before, or
/// one of the files that the run makes.
///
/// # Errors
/// What it is.
pub(super) fn check(path: &Path, made: &[&Path]) -> io::Result<()> {
    let other = |what: &str| Err(io::Error::new(io::ErrorKind::AlreadyExists, what.to_owned()));
    let place = |path: &Path| {
        let full = std::path::absolute(path).ok()?;
        let folder = fs::canonicalize(full.parent()?).ok()?;
        Some(folder.join(full.file_name()?))
    };
    if place(path).is_some_and(|here| made.iter().any(|made| place(made) == Some(here.clone()))) {
        return other("it is another file of this run");
    }
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(meta) if !meta.is_file() => other("it is no regular file, and is left alone"),
        Ok(meta) if meta.len() == 0 => Ok(()),
        Ok(_) => {
            let start = Source::open(path).and_then(|file| file.read_up_to(0, OURS.len()))?;
            match start == OURS {
                true => Ok(()),
                false => other("it holds something else, and is left alone"),
            }
        }
    }
}

/// Keeps the figures from taking the place of anything else.
pub(super) fn check_place(path: &Path, options: &Options) -> Result<(), Error> {
    let mut made = vec![options.audit_log.clone()];
    if let Output::File(pattern) = &options.output
        && let Ok(target) = retention::expand(pattern, &clock::compact())
    {
        made.extend([note_path(&target), target]);
    }
    let made: Vec<&Path> = made.iter().map(std::path::PathBuf::as_path).collect();
    match check(path, &made) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Error::usage(format!(
            "--metrics-file {}: {error}; nothing was saved",
            path.display()
        ))
        .hint("name a file of its own, whose name ends in .prom")),
        // A backup is not given up for its figures; that they cannot be written is told then.
        _ => Ok(()),
    }
}

/// Replaces the file.
///
/// # Errors
/// The disk, or a file that holds something else.
pub(super) fn write(path: &Path, run: Run<'_>) -> io::Result<()> {
    check(path, &[])?;
    let text = text(&read_old(path), run, clock::unix_ms() / 1000);
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    // The collector reads names that end in .prom, so this one is not seen until it is whole.
    let mut made = tempfile::Builder::new().prefix(".etcdkit-metrics-").tempfile_in(folder)?;
    made.write_all(text.as_bytes())?;
    made.as_file().set_permissions(Permissions::from_mode(0o644))?;
    made.as_file().sync_all()?;
    let temporary = made.into_temp_path();
    disk::rename_over(&temporary, path)?;
    let _ = temporary.keep();
    Ok(())
}

/// Figures by name and labels, as `name{reason="word"}`.
type Figures = BTreeMap<String, u64>;

fn read_old(path: &Path) -> Figures {
    let bytes = Source::open(path).and_then(|file| file.read_up_to(0, OLD_BYTES_MAX));
    bytes.map(|bytes| parse(&String::from_utf8_lossy(&bytes))).unwrap_or_default()
}

fn parse(text: &str) -> Figures {
    let is_ours = |name: &str| {
        let reason = name.strip_prefix(FAILURES).and_then(|rest| rest.strip_prefix("{reason=\""));
        let reason = reason.and_then(|rest| rest.strip_suffix("\"}"));
        let is_word = |word: &str| {
            (1..=20).contains(&word.len())
                && word.bytes().all(|b| b.is_ascii_lowercase() || b"-_".contains(&b))
        };
        KEPT.iter().any(|(kept, _)| *kept == name) || reason.is_some_and(is_word)
    };
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    let ours = lines.filter(|(name, _)| is_ours(name));
    // What a reader of floats keeps whole.
    let numbers = ours.filter_map(|(name, number)| {
        let number = number.parse::<u64>().ok().filter(|number| *number < 1 << 53)?;
        Some((name.to_owned(), number))
    });
    numbers.take(100).collect()
}

fn text(old: &Figures, run: Run<'_>, now: u64) -> String {
    let mut kept = old.clone();
    let mut set = |name: &str, value: Option<u64>| {
        if let Some(value) = value {
            kept.insert(name.to_owned(), value);
        }
    };
    let [success, revision, size, highest] = KEPT.map(|(name, _)| name);
    // A rule about its age fires also where there was none yet.
    set(success, Some(old.get(success).copied().unwrap_or(0)));
    set(highest, u64::try_from(run.highest).ok().filter(|revision| *revision > 0));
    if let Ok(report) = run.outcome {
        set(success, Some(now));
        set(revision, report.revision.and_then(|revision| u64::try_from(revision).ok()));
        set(size, report.size_bytes);
    }
    if let Err(error) = run.outcome {
        let count = kept.entry(format!("{FAILURES}{{reason=\"{}\"}}", reason(error)));
        let count = count.or_default();
        *count = count.saturating_add(1);
    }
    let mut out = String::new();
    for (name, help) in KEPT {
        if let Some(value) = kept.get(name) {
            head(&mut out, name, help, "gauge");
            let _ = writeln!(out, "{name} {value}");
        }
    }
    let failures: Vec<_> = kept.iter().filter(|(name, _)| name.starts_with(FAILURES)).collect();
    if !failures.is_empty() {
        head(&mut out, FAILURES, "Saves that failed, by reason.", "counter");
        for (name, value) in failures {
            let _ = writeln!(out, "{name} {value}");
        }
    }
    let phase = DURATION;
    if !run.steps.is_empty() {
        head(&mut out, phase, "Duration of each phase of the last run.", "gauge");
        for step in run.steps {
            let (s, ms) = (step.ms / 1000, step.ms % 1000);
            let _ = writeln!(out, "{phase}{{phase=\"{}\"}} {s}.{ms:03}", step.step);
        }
    }
    let last = LAST_RUN;
    head(&mut out, last, "When the last run ended.", "gauge");
    let _ = writeln!(out, "{last} {now}");
    let ok = LAST_SUCCESS;
    head(&mut out, ok, "Whether the last run saved a good snapshot.", "gauge");
    let _ = writeln!(out, "{ok} {}", u8::from(run.outcome.is_ok()));
    out
}

/// Returns the word by which a failure is counted: the code's name where none is narrower.
fn reason(error: &Error) -> &'static str {
    error.reason.filter(|_| error.code != ExitCode::Damage).unwrap_or(error.code.name())
}

fn head(out: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_keeps_what_was_and_counts() {
        let old = "# HELP x y\netcdkit_backup_last_success_timestamp_seconds 1700000000\n\
                   etcdkit_backup_last_revision 12\n\
                   etcdkit_backup_failures_total{reason=\"unreachable\"} 4\n\
                   etcdkit_backup_failures_total{reason=\"x\\\"} 1\n\
                   etcdkit_backup_failures_total{reason=\"in-use\"} many\n\
                   etcdkit_backup_last_size_bytes 18446744073709551615\n\
                   node_load1 5\n\u{0}\n";
        let error = Error::new(ExitCode::Unreachable, "x");
        let steps = [Step { step: "choose", ms: 5_012 }];
        let run = Run { outcome: Err(&error), steps: &steps, highest: 99 };
        let first = text(&parse(old), run, 1_800_000_000);
        for line in [
            "# TYPE etcdkit_backup_failures_total counter",
            "etcdkit_backup_last_success_timestamp_seconds 1700000000",
            "etcdkit_backup_last_revision 12",
            "etcdkit_backup_failures_total{reason=\"unreachable\"} 5",
            "etcdkit_backup_cluster_max_revision_seen 99",
            "etcdkit_backup_duration_seconds{phase=\"choose\"} 5.012",
            "etcdkit_backup_last_run_timestamp_seconds 1800000000",
            "etcdkit_backup_last_run_success 0",
        ] {
            assert!(first.lines().any(|have| have == line), "{line}\n{first}");
        }
        for word in ["node_load1", "size_bytes", "in-use", "reason=\"x"] {
            assert!(!first.contains(word), "{word}\n{first}");
        }
        let again = text(&parse(&first), run, 1_800_000_001);
        assert!(again.contains("failures_total{reason=\"unreachable\"} 6\n"), "{again}");
    }

    #[test]
    fn before_the_first_success_there_is_an_age_to_alert_on() {
        let full = Error::new(ExitCode::Failed, "x").because("disk_full");
        let run = Run { outcome: Err(&full), steps: &[], highest: 0 };
        let mut have = String::new();
        for count in 1..3 {
            have = text(&parse(&have), run, 1_800_000_000);
            let lines = [
                "etcdkit_backup_last_success_timestamp_seconds 0".to_owned(),
                format!("etcdkit_backup_failures_total{{reason=\"disk_full\"}} {count}"),
            ];
            for line in lines {
                assert!(have.lines().any(|have| have == line), "{line}\n{have}");
            }
        }
    }

    #[test]
    fn the_document_names_every_figure_and_reason_and_no_other() {
        let document = include_str!("../../../docs/METRICS.md");
        let rows = |heading: &str| -> Vec<[String; 3]> {
            let section = document.split("\n## ").find(|section| section.starts_with(heading));
            let rows = section.unwrap().lines().filter(|line| line.starts_with("| `"));
            let cell = |row: &str, at| row.split(" | ").nth(at).unwrap_or_default().to_owned();
            let word = |row: &str, at| cell(row, at).trim_matches(['|', ' ', '`']).to_owned();
            rows.map(|row| [0, 1, 2].map(|at| word(row, at))).collect()
        };
        let mut told: Vec<(String, String)> =
            rows("Figures").into_iter().map(|[name, kind, _]| (name, kind)).collect();
        told.sort();
        let error = Error::new(ExitCode::Unreachable, "x");
        let steps = [Step { step: "choose", ms: 1 }];
        let run = Run { outcome: Err(&error), steps: &steps, highest: 9 };
        let kept: Figures = KEPT.iter().map(|(name, _)| ((*name).to_owned(), 1)).collect();
        let written = text(&kept, run, 1);
        let types = written.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let mut all: Vec<(String, String)> = types
            .filter_map(|line| line.split_once(' '))
            .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
            .collect();
        all.sort();
        assert_eq!(told, all);

        let mut told: Vec<String> =
            rows("Reasons").into_iter().map(|[reason, ..]| reason).collect();
        told.sort();
        let is_ours = |(number, ..): &&(u8, &str, &str)| ![0, 3, 10, 11].contains(number);
        let codes = ExitCode::ALL.iter().filter(is_ours).map(|(_, name, _)| *name);
        let mut all: Vec<&str> = codes.chain(["auth", "disk_full"]).collect();
        all.sort_unstable();
        assert_eq!(told, all);
    }

    #[test]
    fn only_a_file_of_ours_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let path = at("backup.prom");
        let error = Error::new(ExitCode::Refused, "x");
        let run = Run { outcome: Err(&error), steps: &[], highest: 0 };
        fs::write(&path, b"").unwrap();
        write(&path, run).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
        write(&path, run).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("reason=\"refused\"} 2\n"), "{text}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);

        fs::write(at("good.db"), b"a backup").unwrap();
        std::os::unix::fs::symlink("backup.prom", at("link")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        for name in ["good.db", "link", "folder"] {
            assert!(check(&at(name), &[]).is_err() && write(&at(name), run).is_err(), "{name}");
        }
        assert!(write(Path::new("/dev/null"), run).is_err());
        assert_eq!(fs::read(at("good.db")).unwrap(), b"a backup");
        assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
        let (dotted, other) = (at("folder/../backup.prom"), at("other.prom"));
        assert!(check(&path, &[&dotted]).is_err());
        check(&path, &[&other]).unwrap();
    }
}
