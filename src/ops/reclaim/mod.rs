//! `reclaim`: a cluster at its quota takes writes again, or it is said what fills it.
//!
//! The steps, each of which looks at the cluster and does what is left to do, so that a run that
//! was killed is run again:
//!
//! 1. measure: all members, sizes, quotas, alarms ([`mod@line`] is where the line is);
//! 2. space: what fills it, living keys by what they begin with, and how much is history
//!    ([`space`]);
//! 3. compact at the revision that the window means, and wait until the rows are gone everywhere;
//! 4. defrag, one member after the other, the leader last;
//! 5. disarm NOSPACE, only where its member is under the line;
//! 6. prove that every member takes writes, without a revision for it ([`prove`]).
//!
//! CORRUPT stops it before anything. [`offline`] does the same to the directory of a sole voter
//! that does not stay up.

mod advice;
mod again;
pub mod line;
pub mod offline;
pub mod prove;
pub mod report;
mod run;
pub mod space;

use std::path::PathBuf;
use std::time::Duration;

use super::compaction::Keep;
use super::{Error, Progress};
use crate::live::Settings;
pub use report::{Compaction, MemberReport, Outcome, Report, Step, StepResult};

/// How long the keys are read to see what fills the space, unless told.
pub const SCAN_TIME: Duration = Duration::from_secs(30);

/// What to do, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// How the members are reached; all members of the cluster are done.
    pub settings: Settings,
    /// How much history is to be left.
    pub keep: Keep,
    /// How long keys may be read to see what fills the space; `None`: not at all.
    pub scan: Option<Duration>,
    /// The quota of members that do not say theirs, as a server's `--quota-backend-bytes`: 0 for
    /// etcd's default, below 0 for no limit; `None` where it is not known.
    pub quota_bytes: Option<i64>,
    /// Stall a leader that stays one, or a sole member, however long.
    pub accept_stall: bool,
    /// Go on although members are down or sick; never past CORRUPT.
    pub accept_unhealthy: bool,
    /// Defragment where the disk seems too full.
    pub accept_full_disk: bool,
    /// Find out and report, change nothing.
    pub dry_run: bool,
    /// Where the record goes.
    pub audit_log: PathBuf,
}

/// Does what is left to do.
///
/// # Errors
///
/// What stops it before anything is changed. What stops it later, or would stop a dry run, is in
/// the report, beside what was done and seen ([`Report::stopped`]).
pub fn reclaim(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    run::run(options, progress)
}
