//! The words of a `reclaim` that does what this one was told to, for hints.

use std::path::Path;
use std::time::Duration;

use super::{Options, SCAN_TIME, offline};
use crate::live::Settings;
use crate::ops::compaction::Keep;
use crate::ops::shell_line;

/// Words behind `etcdkit` and the connection's flags, for a run of which so much history is kept.
pub(super) fn words(options: &Options, keep: Keep) -> Vec<String> {
    let mut words = vec!["reclaim".to_owned()];
    words.extend(limits(&options.settings));
    words.extend(kept(keep));
    words.extend(options.quota_bytes.map(|bytes| format!("--quota-backend-bytes={bytes}")));
    match options.scan {
        None => words.push("--no-scan".into()),
        Some(time) if time != SCAN_TIME => words.push(format!("--scan-time={}", text(time))),
        Some(_) => {}
    }
    let accepted = [
        ("--accept-stall", options.accept_stall),
        ("--accept-unhealthy", options.accept_unhealthy),
        ("--accept-full-disk", options.accept_full_disk),
    ];
    words.extend(accepted.iter().filter(|(_, is_given)| *is_given).map(|(flag, _)| (*flag).into()));
    words
}

/// The whole line for a directory, for a shell.
pub(super) fn of_directory(options: &offline::Options, data_dir: &Path) -> String {
    let mut line = vec!["etcdkit".to_owned(), "reclaim".into(), "--data-dir".into()];
    line.push(data_dir.display().to_string());
    line.extend(options.wal_dir.as_ref().map(|dir| format!("--wal-dir={}", dir.display())));
    line.extend(kept(options.keep));
    line.extend(options.quota_bytes.map(|bytes| format!("--quota-backend-bytes={bytes}")));
    line.extend(options.accept_full_disk.then(|| "--accept-full-disk".to_owned()));
    shell_line(&line)
}

fn kept(keep: Keep) -> Option<String> {
    match keep {
        // No flag of this verb names a revision.
        Keep::Default | Keep::From(_) => None,
        Keep::Revisions(count) => Some(format!("--keep-revisions={count}")),
        Keep::Duration(least) => Some(format!("--keep-duration={}", text(least))),
    }
}

/// The limits that were given.
fn limits(settings: &Settings) -> Vec<String> {
    let usual = Settings::default();
    let limits = [
        ("dial-timeout", settings.dial_timeout, usual.dial_timeout),
        ("command-timeout", settings.command_timeout, usual.command_timeout),
    ];
    let given = limits.into_iter().filter(|(_, limit, usual)| limit != usual);
    given.map(|(flag, limit, _)| format!("--{flag}={}", text(limit))).collect()
}

/// A time as flags take it.
fn text(time: Duration) -> String {
    match time.as_millis() {
        ms if ms % 1000 == 0 => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_that_was_given_is_there_again() {
        let settings =
            Settings { command_timeout: Duration::from_millis(1500), ..Settings::default() };
        let options = Options {
            settings,
            keep: Keep::Default,
            quota_bytes: Some(7),
            scan: None,
            accept_stall: true,
            accept_unhealthy: true,
            accept_full_disk: true,
            dry_run: false,
            audit_log: "a".into(),
        };
        let line = words(&options, Keep::Duration(Duration::from_secs(60))).join(" ");
        assert_eq!(
            line,
            "reclaim --command-timeout=1500ms --keep-duration=60s --quota-backend-bytes=7 \
             --no-scan --accept-stall --accept-unhealthy --accept-full-disk"
        );
        let scan = Some(Duration::from_secs(5));
        let plain = Options { settings: Settings::default(), quota_bytes: None, scan, ..options };
        let plain = Options { accept_stall: false, accept_unhealthy: false, ..plain };
        let line = words(&plain, Keep::Default).join(" ");
        assert_eq!(line, "reclaim --scan-time=5s --accept-full-disk");
    }

    #[test]
    fn a_directory_is_named_with_its_wal_and_its_quota() {
        let options = offline::Options {
            data_dir: "d".into(),
            wal_dir: Some("/w w".into()),
            keep: Keep::Revisions(3),
            quota_bytes: Some(9),
            accept_full_disk: true,
            dry_run: false,
            audit_log: "a".into(),
        };
        assert_eq!(
            of_directory(&options, Path::new("/d")),
            "etcdkit reclaim --data-dir /d '--wal-dir=/w w' --keep-revisions=3 \
             --quota-backend-bytes=9 --accept-full-disk"
        );
    }
}
