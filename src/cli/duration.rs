//! Durations on the command line: as Go writes them, or 0.

use std::time::Duration;

use crate::format::duration;

/// Reads a duration.
///
/// # Errors
///
/// What is wrong, as a clause.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let wrong = || format!("{text:?} is no duration such as 5s, 500ms or 1m30s");
    duration::parse(text).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_go_reads() {
        for (text, millis) in [
            ("0", 0),
            ("5s", 5_000),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("1.5h", 5_400_000),
            ("2h45m0.5s", 9_900_500),
            ("2000us", 2),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest() {
        for text in ["", "5", "s", "-5s", "5x", "5s5", "1e9s", ".s", "9999999999h", "5 s"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
