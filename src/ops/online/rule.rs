//! When a member is to be defragmented, as an expression over its figures.

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule;
