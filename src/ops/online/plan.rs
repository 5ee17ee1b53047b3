//! What is to be done next, decided from one look at the cluster: order, gain, stall, gate.

use serde::Serialize;

/// What a member is in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It does not vote.
    Learner,
    /// It votes.
    Follower,
    /// It leads.
    Leader,
}

/// What a member must give back to be worth its stall.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinGain {
    /// [`GAIN_PERCENT_MIN`] of its file, and [`GAIN_BYTES_MIN`].
    #[default]
    Worthwhile,
    /// So many bytes.
    Bytes(i64),
    /// So many percent of its file.
    Percent(i64),
    /// Nothing: every member is done.
    Nothing,
}

/// Bytes below which a gain is not worth it unless told.
pub const GAIN_BYTES_MIN: i64 = 1 << 20;
/// Percent of the file below which a gain is not worth it unless told.
pub const GAIN_PERCENT_MIN: i64 = 10;
