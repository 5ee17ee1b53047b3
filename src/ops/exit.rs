//! What the program exits with. `docs/EXIT_CODES.md` lists the same; `tests/tidy.rs` holds them
//! together.

/// An exit code, which is also the kind of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExitCode {
    /// Done.
    Ok,
    /// Failed for a reason that has no code of its own.
    Failed,
    /// The command line is wrong.
    Usage,
    /// Some members or items failed, others did not.
    Partial,
    /// Unreachable or timed out.
    Unreachable,
    /// TLS or authentication.
    Tls,
    /// Wrong or unreadable bytes, a hash that differs, a CORRUPT alarm.
    Damage,
    /// Refused for safety; the message says which flag overrides.
    Refused,
    /// In use or locked.
    InUse,
    /// Not found.
    NotFound,
    /// Nothing to do, where that was asked for.
    NothingToDo,
    /// Doctor found errors.
    Unhealthy,
    /// A bug of this program.
    Internal,
    /// Interrupted by a signal.
    Interrupted,
}

impl ExitCode {
    /// Every code with its number, its name in JSON and its meaning.
    pub const ALL: &[(u8, &'static str, &'static str)] = &[
        (0, "ok", "done"),
        (1, "failed", "failed"),
        (2, "usage", "the command line is wrong"),
        (3, "partial", "some members or items failed"),
        (4, "unreachable", "unreachable or timed out"),
        (5, "tls", "TLS or authentication"),
        (6, "damage", "wrong or unreadable bytes, a hash mismatch, a CORRUPT alarm"),
        (7, "refused", "refused for safety; the message says which flag overrides"),
        (8, "in-use", "in use or locked"),
        (9, "not-found", "not found"),
        (10, "nothing-to-do", "nothing to do (only with --exit-on-noop)"),
        (11, "unhealthy", "reserved: errors or critical findings of a diagnosis"),
        (70, "internal", "a bug of this program"),
        (130, "interrupted", "interrupted by a signal"),
    ];

    /// Returns the number.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Partial => 3,
            Self::Unreachable => 4,
            Self::Tls => 5,
            Self::Damage => 6,
            Self::Refused => 7,
            Self::InUse => 8,
            Self::NotFound => 9,
            Self::NothingToDo => 10,
            Self::Unhealthy => 11,
            Self::Internal => 70,
            Self::Interrupted => 130,
        }
    }

    /// Returns the name that stands in JSON errors.
    #[must_use]
    pub fn name(self) -> &'static str {
        let row = Self::ALL.iter().find(|(number, ..)| *number == self.number());
        row.map_or("failed", |(_, name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_its_own_name() {
        assert_eq!(ExitCode::Damage.name(), "damage");
        assert_eq!(ExitCode::Interrupted.name(), "interrupted");
        let mut names: Vec<_> = ExitCode::ALL.iter().map(|(_, name, _)| name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), ExitCode::ALL.len());
    }
}
