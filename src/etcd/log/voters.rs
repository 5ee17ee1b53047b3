//! Who votes, and how far the log therefore counts.
//!
//! The voters are those of the newest snapshot that counts, and the membership changes after it. A
//! sole voter's log counts to its end, also beyond the commit index, which reaches the disk later
//! than the entries: after a kill, what was acknowledged is there. With several voters, an entry
//! above the commit index may be on this member only.

use std::collections::BTreeSet;

use super::Log;
use crate::format::wal::{ConfChange, ConfState, Entry, change_kind};

/// A membership change in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) index: u64,
    kind: u64,
    node_id: u64,
}

impl Change {
    pub(super) fn new(entry: &Entry<'_>, change: &ConfChange<'_>) -> Self {
        Self { index: entry.index, kind: change.kind, node_id: change.node_id }
    }
}

/// Who takes part in votes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Configuration {
    /// Ids of voters.
    pub voters: BTreeSet<u64>,
    /// Ids of members without a vote.
    pub learners: BTreeSet<u64>,
    removed: BTreeSet<u64>,
}

impl Configuration {
    fn of(state: &ConfState) -> Self {
        Self {
            voters: state.voters.iter().copied().collect(),
            learners: state.learners.iter().copied().collect(),
            removed: BTreeSet::new(),
        }
    }

    fn apply(&mut self, change: Change) {
        // A server turns what it refuses into a change of nothing: an id that was removed.
        if change.node_id == 0 || self.removed.contains(&change.node_id) {
            return;
        }
        match change.kind {
            change_kind::ADD_NODE => {
                self.learners.remove(&change.node_id);
                self.voters.insert(change.node_id);
            }
            change_kind::ADD_LEARNER_NODE if !self.voters.contains(&change.node_id) => {
                self.learners.insert(change.node_id);
            }
            change_kind::REMOVE_NODE => {
                self.voters.remove(&change.node_id);
                self.learners.remove(&change.node_id);
                self.removed.insert(change.node_id);
            }
            _ => {}
        }
    }

    /// Tells whether this member alone votes.
    #[must_use]
    pub fn is_sole_voter(&self, member: u64) -> bool {
        self.voters.len() == 1 && self.voters.contains(&member)
    }
}

/// Why the log counts as far as it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// The member is the sole voter: what is in its log is committed.
    SoleVoter,
    /// Only what is known to be committed counts: there are several voters.
    Committed,
    /// The same, since it is not known who votes.
    VotersUnknown,
}

/// How far the log counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reach {
    /// Index of the last entry that counts; no entry above it may be applied.
    pub index: u64,
    /// Why.
    pub counted: Counted,
}

impl Log {
    /// Returns who votes after the entries up to `through`.
    ///
    /// `fallback` stands in where the newest snapshot record names nobody, as those of etcd 3.4:
    /// what the snapshot file or the database says. `None` when nothing says who votes.
    #[must_use]
    pub fn configuration(
        &self,
        through: u64,
        fallback: Option<&ConfState>,
    ) -> Option<Configuration> {
        let (from, mut configuration) = match self.newest_snapshot() {
            Some(snapshot) if snapshot.index > 0 => {
                let state = snapshot.conf_state.as_ref().or(fallback)?;
                (snapshot.index, Configuration::of(state))
            }
            // The founding members are entries of the log, which must then be there from the first.
            _ if self.first.is_some_and(|first| first.index == 1) => (0, Configuration::default()),
            _ => return None,
        };
        let changes = self.changes.iter().filter(|change| change.index > from);
        for change in changes.take_while(|change| change.index <= through) {
            configuration.apply(*change);
        }
        Some(configuration)
    }

    /// Returns the index of the last entry that adds a member with a vote.
    #[must_use]
    pub fn added_at(&self, member: u64) -> Option<u64> {
        let adds =
            |change: &&Change| change.kind == change_kind::ADD_NODE && change.node_id == member;
        self.changes.iter().rfind(adds).map(|change| change.index)
    }

    /// Returns how far the log counts; `fallback` as in [`Log::configuration`].
    #[must_use]
    pub fn reach(&self, fallback: Option<&ConfState>) -> Reach {
        let commit = self.commit().min(self.last_index());
        let member = self.metadata.map_or(0, |metadata| metadata.node_id);
        let Some(mut configuration) = self.configuration(commit, fallback) else {
            return Reach { index: commit, counted: Counted::VotersUnknown };
        };
        if !configuration.is_sole_voter(member) {
            return Reach { index: commit, counted: Counted::Committed };
        }
        // A second voter has a say in everything after the entry that adds it.
        for change in self.changes.iter().filter(|change| change.index > commit) {
            configuration.apply(*change);
            if !configuration.is_sole_voter(member) {
                return Reach { index: change.index, counted: Counted::SoleVoter };
            }
        }
        Reach { index: self.last_index(), counted: Counted::SoleVoter }
    }
}
