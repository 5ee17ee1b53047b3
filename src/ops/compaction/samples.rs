//! Which revision was there at which time, as runs of this program saw it: one JSON object a line,
//! in a file of mode 0600 beside the audit log, for each cluster one.
//!
//! Shape: `time_ms` (Unix time in milliseconds), `revision`, `cluster_id` (lower-case hex), `boot`
//! and `uptime_ms` (id of the machine's boot and time since then).
//!
//! Invariants:
//!
//! 1. An age is never too great: a sample's time is taken after its revision was told, and what
//!    clocks say is believed where it makes a sample younger.
//! 2. Whatever is in the file, it is read in bounded memory; a line that is no sample is left out.
//! 3. A revision that went back is another history's, by a restore, say: what was sampled before
//!    does not count.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::window::Aged;
use crate::ops::clock;

/// Samples that are kept; beyond them the file is thinned out.
const COUNT_MAX: usize = 4096;
/// Bytes of the file that are read, from its end.
const BYTES_MAX: u64 = 4 << 20;
/// Longest line; one of ours has less than 200 bytes.
const LINE_MAX: u64 = 1024;
/// A clock before this, 2020-09-13, was never set.
const SET_MS: u64 = 1_600_000_000_000;

/// One line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Sample {
    time_ms: u64,
    revision: i64,
    cluster_id: String,
    boot: String,
    uptime_ms: u64,
}

/// What clocks say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Moment {
    time_ms: u64,
    boot: String,
    uptime_ms: u64,
}

impl Moment {
    /// Asks them.
    pub(super) fn now() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let uptime = read("/proc/uptime");
        let seconds = uptime.split(' ').next().and_then(|text| text.split_once('.'));
        let uptime_ms = seconds.and_then(|(whole, part)| {
            let whole = whole.parse::<u64>().ok()?.checked_mul(1000)?;
            // Two digits, as Linux writes it.
            Some(whole.saturating_add(part.get(..2)?.parse::<u64>().ok()?.saturating_mul(10)))
        });
        let boot = read("/proc/sys/kernel/random/boot_id").trim().to_owned();
        Self { time_ms: clock::unix_ms(), boot, uptime_ms: uptime_ms.unwrap_or(0) }
    }
}

/// The samples of a cluster.
#[derive(Debug, Default)]
pub(super) struct Samples {
    path: PathBuf,
    cluster_id: String,
    samples: Vec<Sample>,
    /// The file must be written anew.
    is_stale: bool,
    /// What was left out, and why.
    pub(super) warnings: Vec<String>,
}

impl Samples {
    /// Returns the file for a cluster.
    pub(super) fn path(audit_log: &Path, cluster_id: u64) -> PathBuf {
        audit_log.with_file_name(format!("revisions-{cluster_id:x}.jsonl"))
    }

    /// Reads them, and leaves out those of another history than the one whose newest revision is
    /// this.
    pub(super) fn read(audit_log: &Path, cluster_id: u64, newest: i64) -> Self {
        let path = Self::path(audit_log, cluster_id);
        let cluster_id = format!("{cluster_id:x}");
        let mut samples = Self { path, cluster_id, ..Self::default() };
        match samples.load() {
            Ok(()) => samples.check_history(newest),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let path = samples.path.display();
                samples.warnings.push(format!("cannot read the revisions seen, {path}: {error}"));
            }
        }
        samples
    }

    fn load(&mut self) -> io::Result<()> {
        let mut file = open(OpenOptions::new().read(true), &self.path)?;
        let len = file.metadata()?.len();
        let from = len.saturating_sub(BYTES_MAX);
        file.seek(SeekFrom::Start(from))?;
        let mut reader = BufReader::new(file.take(BYTES_MAX));
        let (mut line, mut odd) = (Vec::new(), 0_u64);
        // The first line of a part may be half a one.
        let mut is_half = from > 0;
        loop {
            line.clear();
            if reader.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)? == 0 {
                break;
            }
            let is_whole = line.ends_with(b"\n");
            match serde_json::from_slice::<Sample>(&line) {
                Ok(sample) if !is_half && sample.cluster_id == self.cluster_id => {
                    self.samples.push(sample);
                }
                _ if is_half && is_whole => {}
                _ => odd += 1,
            }
            is_half = !is_whole;
        }
        if odd > 0 {
            self.warnings.push(format!("{} holds what is no sample", self.path.display()));
        }
        self.is_stale = from > 0 || odd > 0 || is_half || self.samples.len() > COUNT_MAX;
        Ok(())
    }

    fn check_history(&mut self, newest: i64) {
        let revisions = self.samples.iter().map(|sample| sample.revision);
        let all: Vec<i64> = revisions.chain([newest]).collect();
        let back =
            all.windows(2).rposition(|pair| matches!(pair, [before, after] if after < before));
        if let Some(before) = back {
            self.samples.drain(..=before);
            self.is_stale = true;
            self.warnings.push(
                "the cluster's revision went back, as by a restore: what was seen before that does \
                 not count"
                    .to_owned(),
            );
        }
    }

    /// Adds what was seen now; it says why where it cannot be kept for the next run.
    pub(super) fn add(&mut self, revision: i64, now: &Moment) {
        let Moment { time_ms, boot, uptime_ms } = now.clone();
        let sample =
            Sample { time_ms, revision, cluster_id: self.cluster_id.clone(), boot, uptime_ms };
        // Of one revision the first sight says more, unless by a clock that was wrong.
        let known = self.samples.last().filter(|last| last.revision == revision);
        if known.is_some_and(|last| last.time_ms <= time_ms && last.boot == sample.boot) {
            return;
        }
        self.samples.push(sample);
        let stored = match self.is_stale {
            true => self.rewrite(),
            false => self.append(),
        };
        if let Err(error) = stored {
            let path = self.path.display();
            self.warnings.push(format!("cannot keep the revision seen in {path}: {error}"));
        }
    }

    fn append(&self) -> io::Result<()> {
        let Some(last) = self.samples.last() else { return Ok(()) };
        make_folder(&self.path)?;
        let mut options = OpenOptions::new();
        let mut file = open(options.append(true).create(true).mode(0o600), &self.path)?;
        // One write, so that two programs that append at once do not mix their lines.
        file.write_all(format!("{}\n", serde_json::to_string(last)?).as_bytes())
    }

    /// Writes all of them anew; where they are too many, every second of the older ones goes, so
    /// that the oldest stay within reach.
    fn rewrite(&mut self) -> io::Result<()> {
        make_folder(&self.path)?;
        while self.samples.len() > COUNT_MAX {
            let old = self.samples.len() / 4 * 3;
            let mut number = 0_usize;
            self.samples.retain(|_| {
                number += 1;
                number > old || number % 2 == 1
            });
        }
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let mut file = tempfile::Builder::new()
            .prefix(".revisions-")
            .tempfile_in(folder.unwrap_or(Path::new(".")))?;
        let mut text = String::new();
        for sample in &self.samples {
            text.push_str(&serde_json::to_string(sample)?);
            text.push('\n');
        }
        file.write_all(text.as_bytes())?;
        file.persist(&self.path)?;
        Ok(())
    }

    /// Returns how old what they saw is at least.
    pub(super) fn aged(&self, now: &Moment) -> Vec<Aged> {
        let mut latest = 0;
        let ages = self.samples.iter().filter_map(|sample| {
            if sample.time_ms < SET_MS || sample.time_ms > now.time_ms {
                return None;
            }
            // A clock that was set back: it was wrong before or is now, and the later time makes
            // what follows younger.
            latest = sample.time_ms.max(latest);
            let mut age_ms = now.time_ms.saturating_sub(latest);
            // A clock that was set forward since the machine started is found out.
            if sample.boot == now.boot && !now.boot.is_empty() {
                age_ms = age_ms.min(now.uptime_ms.saturating_sub(sample.uptime_ms));
            }
            Some(Aged { revision: sample.revision, age: Duration::from_millis(age_ms) })
        });
        ages.collect()
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => fs::DirBuilder::new().recursive(true).mode(0o755).create(folder),
        None => Ok(()),
    }
}

/// Opens a plain file, and nothing that must be waited for.
fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
    let file = options.custom_flags(i32::try_from(flags.bits()).unwrap_or(0)).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const CLUSTER: u64 = 0xabc;
    const START: u64 = 1_800_000_000_000;

    fn moment(seconds: u64, boot: &str) -> Moment {
        Moment { time_ms: START + seconds * 1000, boot: boot.into(), uptime_ms: seconds * 1000 }
    }

    fn log(folder: &tempfile::TempDir) -> PathBuf {
        folder.path().join("etcdkit/audit.jsonl")
    }

    fn ages(samples: &Samples, now: &Moment) -> Vec<(i64, u64)> {
        samples.aged(now).iter().map(|aged| (aged.revision, aged.age.as_secs())).collect()
    }

    /// Writes lines as they are, and reads them.
    fn read(lines: &str, newest: i64) -> Samples {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("audit.jsonl");
        fs::write(Samples::path(&log, CLUSTER), lines).unwrap();
        Samples::read(&log, CLUSTER, newest)
    }

    fn line(seconds: u64, revision: i64, boot: &str, uptime: u64) -> String {
        let sample = Sample {
            time_ms: START + seconds * 1000,
            revision,
            cluster_id: "abc".into(),
            boot: boot.into(),
            uptime_ms: uptime * 1000,
        };
        serde_json::to_string(&sample).unwrap() + "\n"
    }

    #[test]
    fn what_a_run_saw_the_next_one_knows() {
        let folder = tempfile::tempdir().unwrap();
        let log = log(&folder);
        for (seconds, revision) in [(0, 10), (60, 20), (90, 20), (120, 30)] {
            let mut samples = Samples::read(&log, CLUSTER, revision);
            samples.add(revision, &moment(seconds, "b"));
            assert_eq!(samples.warnings, [""; 0]);
        }
        let samples = Samples::read(&log, CLUSTER, 30);
        // Of 20 the first sight counts.
        assert_eq!(ages(&samples, &moment(180, "b")), [(10, 180), (20, 120), (30, 60)]);
        assert!(ages(&Samples::read(&log, CLUSTER + 1, 30), &moment(180, "b")).is_empty());
        let file = Samples::path(&log, CLUSTER);
        assert!(file.ends_with("etcdkit/revisions-abc.jsonl"), "{}", file.display());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Moment::now().time_ms > SET_MS && Moment::now().uptime_ms > 0);
        assert_eq!(Moment::now().boot.len(), 36);
    }

    #[test]
    fn no_clock_makes_a_sample_older_than_it_is() {
        // The clock was an hour fast at the second, and was set right.
        let lines = line(0, 10, "a", 0) + &line(3660, 20, "a", 60) + &line(120, 30, "a", 120);
        let samples = read(&lines, 40);
        assert_eq!(ages(&samples, &moment(180, "a")), [(10, 180), (30, 60)]);
        // The same before it was set right.
        let fast = Moment { time_ms: START + 3_720_000, ..moment(120, "a") };
        assert_eq!(ages(&samples, &fast), [(10, 120), (20, 60), (30, 0)]);
        // After a start of the machine, there is only the clock: what was seen once it was set back
        // is as young as what was seen before.
        let samples = read(&(line(3660, 20, "b", 60) + &line(120, 30, "b", 120)), 40);
        let later = Moment { time_ms: START + 7_200_000, ..moment(10, "c") };
        assert_eq!(ages(&samples, &later), [(20, 3540), (30, 3540)]);
        // A clock that was never set tells nothing.
        let unset = line(0, 5, "b", 0).replace(&START.to_string(), "12345");
        assert!(ages(&read(&unset, 40), &later).is_empty());
        // An uptime that goes back, as in a container.
        let samples = read(&line(0, 20, "b", 500), 40);
        assert_eq!(ages(&samples, &moment(60, "b")), [(20, 0)]);
    }

    #[test]
    fn what_was_seen_before_a_restore_does_not_count() {
        let lines = line(0, 100, "a", 0) + &line(60, 900, "a", 60);
        let mut samples = read(&(lines.clone() + &line(120, 50, "a", 120)), 60);
        assert_eq!(ages(&samples, &moment(180, "a")), [(50, 60)]);
        assert!(samples.warnings[0].contains("went back"), "{:?}", samples.warnings);
        samples = read(&lines, 60);
        assert!(ages(&samples, &moment(180, "a")).is_empty());
        assert!(samples.warnings[0].contains("went back"), "{:?}", samples.warnings);
        // It is forgotten, and told once.
        let folder = tempfile::tempdir().unwrap();
        let log = log(&folder);
        for revision in [100, 60, 70] {
            let mut samples = Samples::read(&log, CLUSTER, revision);
            samples.add(revision, &moment(revision.unsigned_abs(), "a"));
            assert_eq!(samples.warnings.len(), usize::from(revision == 60));
        }
        let samples = Samples::read(&log, CLUSTER, 70);
        assert_eq!(samples.samples.iter().map(|s| s.revision).collect::<Vec<_>>(), [60, 70]);
    }

    #[test]
    fn whatever_is_in_the_file_is_read_in_bounds() {
        let good = line(0, 10, "a", 0);
        let long = "x".repeat(5 << 20);
        for (lines, expected) in [
            (String::new(), 0),
            ("\n\n".to_owned(), 0),
            ("null\n[]\n{}\n".to_owned(), 0),
            (good.trim_end().to_owned(), 1),
            (format!("{good}{}", &good[..30]), 1),
            (format!("{long}\n{good}"), 1),
            (format!("{good}{long}\n{good}"), 1),
            (format!("{good}{}\n{good}", &long[..5000]), 2),
            (good.replace("abc", "abd"), 0),
            (good.replace("10,", "-10,"), 1),
            (good.replace("10,", "99999999999999999999,"), 0),
            (good.replace("10,", "1e3,"), 0),
            ("[".repeat(100_000), 0),
            ("\u{0}".repeat(100_000), 0),
        ] {
            let samples = read(&lines, 40);
            let shown: String = lines.chars().take(60).collect();
            assert_eq!(samples.samples.len(), expected, "{shown}");
        }
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("audit.jsonl");
        fs::create_dir(Samples::path(&log, CLUSTER)).unwrap();
        let mut samples = Samples::read(&log, CLUSTER, 40);
        samples.add(40, &moment(0, "a"));
        assert_eq!(samples.warnings.len(), 2, "{:?}", samples.warnings);
        // Though it cannot be kept, it counts in this run.
        assert_eq!(ages(&samples, &moment(60, "a")), [(40, 60)]);
    }

    #[test]
    fn the_file_does_not_grow_for_ever_and_the_oldest_stay() {
        let all = 3 * COUNT_MAX as u64;
        let lines: String = (0..all).map(|n| line(n, n as i64, "a", n)).collect();
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("audit.jsonl");
        let path = Samples::path(&log, CLUSTER);
        fs::write(&path, lines).unwrap();
        let mut samples = Samples::read(&log, CLUSTER, all as i64);
        samples.add(all as i64, &moment(all, "a"));
        let kept = Samples::read(&log, CLUSTER, all as i64).samples;
        assert!(kept.len() <= COUNT_MAX && kept.len() > COUNT_MAX / 2, "{}", kept.len());
        assert_eq!((kept[0].revision, kept[kept.len() - 1].revision), (0, all as i64));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
