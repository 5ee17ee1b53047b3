//! Waiting until a cluster is as it should be.

use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{MemberView, Observer, View};
use crate::ops::{Error, ExitCode, Progress};

/// Time between two questions whether to stop.
const TICK: Duration = Duration::from_millis(50);
/// What one question has at least, however little time is left.
const QUESTION_MIN: Duration = Duration::from_secs(1);

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// Every member that is asked serves, and all of them name one leader.
    Healthy,
    /// The members that answer name one leader, and a linearizable read goes through one of them.
    Leader,
    /// A member answers, and none that does tells of an alarm.
    NoAlarm,
}

impl Condition {
    /// Tells whether a view meets it; what is missing where it does not.
    ///
    /// # Errors
    ///
    /// What is missing, as a clause.
    pub fn check(self, view: &View) -> Result<(), String> {
        match self {
            Self::Healthy => healthy(view).and_then(|()| leader(view)),
            Self::Leader => leader(view),
            Self::NoAlarm => no_alarm(view),
        }
    }

    /// Returns the word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Leader => "leader",
            Self::NoAlarm => "no-alarm",
        }
    }
}

fn healthy(view: &View) -> Result<(), String> {
    if let Some(why) = view.undiscovered.as_ref().filter(|_| has_answers(view)) {
        return Err(format!("the members could not be discovered: {why}"));
    }
    let is_wanted = |m: &&MemberView| m.endpoint.is_some() || view.whole_cluster;
    let wanted: Vec<&MemberView> = view.members.iter().filter(is_wanted).collect();
    let missing: Vec<String> = wanted
        .iter()
        .filter(|member| member.healthy != Some(true))
        .map(|member| {
            let why = member.reason.clone().unwrap_or_else(|| "it was not reached".to_owned());
            format!("{}: {why}", member.label())
        })
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let healthy = wanted.len() - missing.len();
    let all = wanted.len();
    Err(format!("{healthy} of {all} members are healthy ({})", missing.join("; ")))
}

fn leader(view: &View) -> Result<(), String> {
    let answering: Vec<&MemberView> = view.members.iter().filter(|m| m.answered()).collect();
    let Some(first) = answering.first() else { return Err(nobody(view)) };
    if let Some(member) = answering.iter().find(|member| member.leader.is_none()) {
        return Err(format!("{} knows no leader", member.label()));
    }
    if answering.iter().any(|member| member.leader != first.leader) {
        return Err("members name different leaders".to_owned());
    }
    if view.quorum.has_quorum != Some(true) {
        return Err("no linearizable read goes through".to_owned());
    }
    Ok(())
}

fn no_alarm(view: &View) -> Result<(), String> {
    if !has_answers(view) {
        return Err(nobody(view));
    }
    if !view.alarms.is_empty() {
        let all: Vec<String> = view
            .alarms
            .iter()
            .map(|alarm| {
                let id = || format!("{:x}", alarm.id);
                format!("{} of {}", alarm.alarm, alarm.name.clone().unwrap_or_else(id))
            })
            .collect();
        return Err(format!("raised: {}", all.join(", ")));
    }
    Ok(())
}

fn has_answers(view: &View) -> bool {
    view.members.iter().any(MemberView::answered)
}

fn nobody(view: &View) -> String {
    view.unanswered().map(|error| error.message).unwrap_or_default()
}

/// How long, how often, for what.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What is waited for.
    pub until: Condition,
    /// How long at most.
    pub timeout: Duration,
    /// Time between the beginnings of two looks.
    pub interval: Duration,
    /// Limit for one question to one member.
    pub question: Duration,
}

/// How the waiting ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Waited {
    /// Version of this shape.
    pub version: u8,
    /// What was waited for.
    pub until: Condition,
    /// Whether it came.
    pub met: bool,
    /// How long it took, in milliseconds.
    pub waited_ms: u64,
    /// How often it was looked.
    pub looks: u64,
    /// What was still missing at the last look; `None` where nothing was.
    pub missing: Option<String>,
}

/// Looks again and again until the condition is met or the time is over. The last look is given
/// what time is left, and 1 s for each question where that is less.
///
/// # Errors
///
/// Settings that are wrong, certificates or users that nobody accepts (waiting mends neither), and
/// an interruption.
pub fn wait(
    observer: &mut Observer,
    options: &Options,
    progress: &dyn Progress,
) -> Result<Waited, Error> {
    let began = Instant::now();
    let mut looks = 0_u64;
    let mut said = String::new();
    loop {
        let left = options.timeout.saturating_sub(began.elapsed());
        observer.limit_questions(options.question.min(left).max(QUESTION_MIN));
        looks += 1;
        let missing = match observer.look(progress) {
            Ok(view) if view.health_code() == ExitCode::Tls => {
                let error = Error::new(ExitCode::Tls, nobody(&view));
                return Err(error.hint("check certificates and user with: etcdkit health"));
            }
            Ok(view) => options.until.check(&view).err(),
            Err(error) if error.code == ExitCode::Unreachable => Some(error.message),
            Err(error) => return Err(error),
        };
        let elapsed = began.elapsed();
        let ended = |missing: Option<String>| Waited {
            version: 1,
            until: options.until,
            met: missing.is_none(),
            waited_ms: u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX),
            looks,
            missing,
        };
        let Some(missing) = missing else { return Ok(ended(None)) };
        if elapsed >= options.timeout {
            return Ok(ended(Some(missing)));
        }
        if missing != said {
            progress.note(&format!("waiting: {missing}"));
            said.clone_from(&missing);
        }
        if !sleep_until(next_tick(began, options.interval).min(began + options.timeout), progress) {
            return Err(Error::interrupted());
        }
    }
}

/// Returns the next moment that is a whole number of intervals after the beginning: a look that
/// takes long skips moments and shifts none.
#[must_use]
pub fn next_tick(began: Instant, interval: Duration) -> Instant {
    let interval = interval.max(TICK);
    let passed = began.elapsed().as_nanos() / interval.as_nanos();
    let ticks = u32::try_from(passed).unwrap_or(u32::MAX - 1).saturating_add(1);
    began.checked_add(interval.saturating_mul(ticks)).unwrap_or_else(|| Instant::now() + interval)
}

/// Sleeps until a moment; false where it was told to stop meanwhile.
pub fn sleep_until(moment: Instant, progress: &dyn Progress) -> bool {
    loop {
        if progress.stopped() {
            return false;
        }
        let left = moment.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(TICK));
    }
}
