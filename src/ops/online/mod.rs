//! `defrag` of running members: one after the other, while the cluster goes on serving.
//!
//! 1. Access, the lock ([`super::lock`]), then for each member a fresh look at all of them.
//! 2. [`plan`] decides, and is pure: learners first, then followers, the leader last, after its
//!    office has gone to a member that is done; none before all others are healthy, but for
//!    NOSPACE, and have caught up; none that is not worth it.
//! 3. While a member works it answers nothing: how long is measured by reads on a connection of
//!    their own. Nothing else begins before it answers again and has applied what the leader had.
//!
//! It can be stopped between two members, and run again: those that are done are not worth it.

mod look;
pub mod plan;
pub mod report;
mod room;
pub mod rule;
mod run;
mod stall;
mod turn;

use std::path::PathBuf;
use std::time::Duration;

use super::lock::Lock;
use super::{Error, Progress};
use crate::live::Settings;
pub(in crate::ops) use look::Lookout;
pub use plan::{MinGain, Role};
pub use report::{LeaderMove, MemberReport, Outcome, Report, Size, Stopped};
pub use rule::Rule;

/// What is to be defragmented, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The members to do; all of the cluster are looked at whatever is given.
    pub settings: Settings,
    /// Every member that the cluster has is to be done.
    pub whole_cluster: bool,
    /// Members for which it does not hold are skipped.
    pub rule: Option<Rule>,
    /// Members that give back less are skipped.
    pub min_gain: MinGain,
    /// Give the leadership away before the leader's turn.
    pub move_leader: bool,
    /// Stall a leader that stays one, or a sole member, however long.
    pub accept_stall: bool,
    /// Go on although other members are down or sick; never past CORRUPT.
    pub accept_unhealthy: bool,
    /// Data directory of the member on this host, where it is to be looked for room; without it,
    /// where the process that listens there has its database.
    pub data_dir: Option<PathBuf>,
    /// Go on where the disk seems too full.
    pub accept_full_disk: bool,
    /// How long a member may take to catch up, before its turn and after.
    pub catch_up: Duration,
    /// Find out and report, change nothing.
    pub dry_run: bool,
    /// Where the record goes.
    pub audit_log: PathBuf,
}

impl Options {
    /// The defaults, for a cluster.
    #[must_use]
    pub fn new(settings: Settings, audit_log: PathBuf) -> Self {
        Self {
            settings,
            whole_cluster: false,
            rule: None,
            min_gain: MinGain::default(),
            move_leader: true,
            accept_stall: false,
            accept_unhealthy: false,
            data_dir: None,
            accept_full_disk: false,
            catch_up: CATCH_UP,
            dry_run: false,
            audit_log,
        }
    }
}

/// How long a member may take to catch up unless told.
pub const CATCH_UP: Duration = Duration::from_secs(120);

/// Defragments members under a lock of its own.
///
/// # Errors
///
/// What stops it before anything is changed. What stops it later is in the report, beside what
/// was done ([`Report::error`]).
pub fn defrag(options: &Options, progress: &dyn Progress) -> Result<Report, Error> {
    run::run(options, None, progress)
}

/// Defragments members under a lock that is held already; leaves no record, which is for who holds
/// the lock.
///
/// # Errors
///
/// As [`defrag`].
pub fn defrag_under(
    lock: &Lock,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Report, Error> {
    run::run(options, Some(lock), progress)
}
