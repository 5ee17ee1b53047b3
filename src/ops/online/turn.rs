//! One member's turn: it is asked, its stall is measured, and how it ended is found out even where
//! no answer came.

use std::thread;
use std::time::{Duration, Instant};

use super::report::Size;
use super::stall::{self, Probe};
use crate::live::{self, Cause, Cluster, Settings};
use crate::ops::cluster::attend;
use crate::ops::{Error, ExitCode, Progress};

/// Limit for the defragmentation of a member with nothing in it.
const LIMIT_MIN: Duration = Duration::from_secs(60);
/// So many times the predicted stall may pass.
const LIMIT_FACTOR: u32 = 10;
const LIMIT_MAX: Duration = Duration::from_secs(3600);
/// How long a member that broke the connection may take to answer again, at least.
const RETURN: Duration = Duration::from_secs(20);
/// Time between two looks at it.
const TICK: Duration = Duration::from_millis(250);

/// What came of it.
#[derive(Debug)]
pub(super) struct Turn {
    /// How long the question took.
    pub(super) took: Duration,
    /// Longest time without an answer to a read; `None` where it could not be measured.
    pub(super) stall: Option<Duration>,
    /// How it ended.
    pub(super) end: End,
}

/// How a turn ended.
#[derive(Debug)]
pub(super) enum End {
    /// It is done; what is to be known of how.
    Done(Option<String>),
    /// It is not done, as the member says itself, or as it shows.
    NotDone(Error),
    /// Nobody knows: it does not answer.
    Unknown(Error),
    /// We were told to stop; it goes on by itself.
    Interrupted,
}

/// Returns how long a defragmentation may take.
pub(super) fn limit(stall: Duration) -> Duration {
    stall.saturating_mul(LIMIT_FACTOR).clamp(LIMIT_MIN, LIMIT_MAX)
}

/// Lets a member defragment.
pub(super) fn take(
    settings: &Settings,
    endpoint: &str,
    before: Size,
    predicted: Duration,
    progress: &dyn Progress,
) -> Turn {
    let settings = Settings { endpoints: vec![endpoint.to_owned()], ..settings.clone() };
    let probe = Probe::start(&settings, endpoint);
    let (limit, began) = (limit(predicted), Instant::now());
    let (asked, to) = (settings.clone(), endpoint.to_owned());
    let answer = attend(progress, move || {
        let answer = Cluster::open(asked).and_then(|cluster| cluster.defragment(&to, limit));
        Ok((answer, Instant::now()))
    });
    let (answer, answered) = match answer {
        Ok(answer) => answer,
        // The probe's thread ends with the program.
        Err(error) if error.code == ExitCode::Interrupted => {
            return Turn { took: began.elapsed(), stall: None, end: End::Interrupted };
        }
        Err(error) => {
            return Turn { took: began.elapsed(), stall: None, end: End::Unknown(error) };
        }
    };
    let took = answered.saturating_duration_since(began);
    let end = match answer {
        Ok(_) => End::Done(None),
        Err(error) if is_final(&error.cause) => End::NotDone(error.into()),
        Err(error) => {
            progress.note(&format!("{error}; looking at what became of it"));
            let patience = limit.saturating_sub(began.elapsed()).max(RETURN);
            look(&settings, endpoint, before, &error, patience, progress)
        }
    };
    Turn { took, stall: probe.and_then(Probe::end), end }
}

/// Tells whether an answer is the member's last word; it may be at work after any other.
fn is_final(cause: &Cause) -> bool {
    match cause {
        Cause::Answer { code, .. } => ![1, 4, 14].contains(code),
        Cause::NotPermitted { .. } | Cause::NotAuthenticated { .. } => true,
        _ => false,
    }
}

/// Waits until a member whose connection broke answers reads again: none is answered while it is at
/// work. Its size then says whether it is done.
fn look(
    settings: &Settings,
    endpoint: &str,
    before: Size,
    error: &live::Error,
    patience: Duration,
    progress: &dyn Progress,
) -> End {
    let began = Instant::now();
    loop {
        if progress.stopped() {
            return End::Interrupted;
        }
        let (asked, to) = (settings.clone(), endpoint.to_owned());
        let seen = attend(progress, move || {
            // On new connections each time: the old ones may be what is broken.
            let cluster = Cluster::open(asked)?;
            Ok(if stall::answers(&cluster, &to) { cluster.status(&to).ok() } else { None })
        });
        match seen {
            Err(seen) if seen.code == ExitCode::Interrupted => return End::Interrupted,
            Ok(Some(status)) if status.db_size < before.db_bytes => {
                return End::Done(Some(format!("{error}; it is done all the same")));
            }
            Ok(Some(status)) => {
                let size = status.db_size;
                let mut failed = Error::from(error.clone());
                failed.message = format!("{error}; its database still has {size} bytes");
                return End::NotDone(failed);
            }
            _ if began.elapsed() >= patience => {
                let mut failed = Error::from(error.clone());
                failed.message = format!(
                    "{error}; it has not answered for {} s more, and may be at work still",
                    patience.as_secs()
                );
                return End::Unknown(failed);
            }
            _ => thread::sleep(TICK),
        }
    }
}
