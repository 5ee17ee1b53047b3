//! Whether writes are accepted, asked of every member, without a revision for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::live::{self, Cause, Cluster, is_out_of_space};
use crate::ops::cluster::{MemberView, View, attend};
use crate::ops::{Error, Progress};

/// How long members may take to hear that an alarm is disarmed, which comes through the log.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two questions.
const TICK: Duration = Duration::from_millis(100);
/// How often one that gives no answer is asked ...
const TRIES: u32 = 4;
/// ... with so much time between.
const PAUSE: Duration = Duration::from_millis(500);

/// What a member says to a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The member's id.
    pub id: u64,
    /// Whether it takes writes; `None` where it could not be asked.
    pub accepted: Option<bool>,
    /// Why not, or why that is not known.
    pub why: Option<String>,
}

/// Asks every member that answers and may take writes; a learner takes none.
///
/// # Errors
///
/// An interruption.
pub fn prove(
    cluster: &Arc<Cluster>,
    view: &View,
    progress: &dyn Progress,
) -> Result<Vec<Proof>, Error> {
    let voters = view.members.iter().filter(|member| {
        member.answered() && member.is_learner != Some(true) && member.endpoint.is_some()
    });
    voters.map(|member| ask(cluster, member, progress)).collect()
}

fn ask(
    cluster: &Arc<Cluster>,
    member: &MemberView,
    progress: &dyn Progress,
) -> Result<Proof, Error> {
    let id = member.id.unwrap_or(0);
    let endpoint = member.endpoint.clone().unwrap_or_default();
    let began = Instant::now();
    let mut silent = 0;
    loop {
        let (asked, at) = (Arc::clone(cluster), endpoint.clone());
        // An answer that is none of the member's is no error of this run's.
        let answer = attend(progress, move || Ok(asked.prove_writes(&at)))?;
        let Err(error) = answer else { return Ok(Proof { id, accepted: Some(true), why: None }) };
        let accepted = refusal(&error);
        let (may_pass, wait) = match accepted {
            // The alarm's end comes through the log.
            Some(_) => (is_out_of_space(&error) && began.elapsed() <= PATIENCE, TICK),
            None => {
                silent += 1;
                (silent < TRIES && !is_ours(&error), PAUSE)
            }
        };
        if !may_pass {
            return Ok(Proof { id, accepted, why: Some(error.cause.to_string()) });
        }
        std::thread::sleep(wait);
        if progress.stopped() {
            return Err(Error::interrupted());
        }
    }
}

/// Tells whether it is us who may not ask.
fn is_ours(error: &live::Error) -> bool {
    matches!(error.cause, Cause::NotPermitted { .. } | Cause::NotAuthenticated { .. })
}

/// Tells a member's refusal from no answer to the question: `Some(false)` where it said that it
/// takes no writes.
fn refusal(error: &live::Error) -> Option<bool> {
    match &error.cause {
        // CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE: a leader is elected, or it is overloaded.
        Cause::Answer { code: 1 | 4 | 14, .. } => None,
        // RESOURCE_EXHAUSTED is also etcd's word for too many requests.
        Cause::Answer { code: 8, .. } if !is_out_of_space(error) => None,
        Cause::Answer { .. } => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_answer_is_no_refusal() {
        let of = |cause| refusal(&live::Error::of("e", cause));
        let answer = |code, what: &str| Cause::Answer { code, what: what.into() };
        assert_eq!(of(answer(8, "etcdserver: mvcc: database space exceeded")), Some(false));
        assert_eq!(of(answer(8, "etcdserver: too many requests")), None);
        assert_eq!(of(answer(14, "etcdserver: no leader")), None);
        assert_eq!(of(answer(4, "context deadline exceeded")), None);
        assert_eq!(of(Cause::Broken { what: "reset".into() }), None);
        let after = Duration::from_secs(5);
        assert_eq!(of(Cause::Timeout { after, doing: "waiting for its answer" }), None);
        assert_eq!(of(Cause::NotPermitted { what: "denied".into() }), None);
        assert_eq!(of(answer(15, "etcdserver: corrupt cluster")), Some(false));
    }
}
