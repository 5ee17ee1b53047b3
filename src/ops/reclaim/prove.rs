//! Whether writes are accepted, asked of every member, without a revision for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::live::{self, Cluster, is_out_of_space};
use crate::ops::cluster::{MemberView, View, attend};
use crate::ops::{Error, Progress};

/// How long members may take to hear that an alarm is disarmed, which comes through the log.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two questions.
const TICK: Duration = Duration::from_millis(100);

/// What a member says to a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proof {
    /// The member's id.
    pub id: u64,
    /// Whether it takes writes.
    pub accepted: bool,
    /// Why not.
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
    let began = Instant::now();
    let voters = view.members.iter().filter(|member| {
        member.answered() && member.is_learner != Some(true) && member.endpoint.is_some()
    });
    voters.map(|member| ask(cluster, member, began, progress)).collect()
}

fn ask(
    cluster: &Arc<Cluster>,
    member: &MemberView,
    began: Instant,
    progress: &dyn Progress,
) -> Result<Proof, Error> {
    let id = member.id.unwrap_or(0);
    let endpoint = member.endpoint.clone().unwrap_or_default();
    loop {
        let (asked, at) = (Arc::clone(cluster), endpoint.clone());
        let answer = attend(progress, move || Ok(asked.prove_writes(&at)))?;
        let Err(error) = answer else { return Ok(Proof { id, accepted: true, why: None }) };
        if !may_pass(&error) || began.elapsed() > PATIENCE {
            return Ok(Proof { id, accepted: false, why: Some(error.cause.to_string()) });
        }
        std::thread::sleep(TICK);
    }
}

/// Tells whether it may be otherwise in a moment: the alarm's end comes through the log, and a new
/// leader is elected.
fn may_pass(error: &live::Error) -> bool {
    is_out_of_space(error) || matches!(error.cause, live::Cause::Answer { code: 14, .. })
}
