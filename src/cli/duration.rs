//! Durations as Go writes them: `5s`, `1m30s`, `500ms`, `1.5h`.

use std::time::Duration;

const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Reads a duration (Go 1.26 time, `ParseDuration`, without a sign).
///
/// # Errors
///
/// What is wrong, as a clause.
pub(super) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration such as 5s, 500ms or 1m30s");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text;
    let mut total = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, tail) = rest.split_at_checked(digits).ok_or_else(wrong)?;
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(end).ok_or_else(wrong)?;
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let (_, nanos) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        total += number * *nanos as f64;
        rest = tail;
    }
    // Go's own limit is about 292 years.
    if text.is_empty() || total > 9.2e18 {
        return Err(wrong());
    }
    Ok(Duration::from_nanos(total as u64))
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
