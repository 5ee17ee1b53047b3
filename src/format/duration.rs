//! Durations as Go writes them: `5s`, `1m30s`, `500ms`, `1.5h`.
//!
//! Source: Go 1.26 `time.ParseDuration`.

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

/// Go's own limit in nanoseconds, about 292 years.
const NANOS_MAX: u64 = i64::MAX.unsigned_abs();

/// Reads a duration without a sign; `None` for anything else, an empty text and a number without a
/// unit among it. What is below a nanosecond is left out.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut total = 0_u64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at_checked(digits)?;
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at_checked(end)?;
        let (_, nanos) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && part.is_empty() {
            return None;
        }
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
        let mut sum = whole.checked_mul(*nanos)?;
        let mut scale = *nanos;
        for digit in part.chars() {
            scale = scale.checked_div(10)?;
            let digit = digit.to_digit(10)?;
            sum = sum.checked_add(u64::from(digit).checked_mul(scale)?)?;
        }
        total = total.checked_add(sum).filter(|&all| all <= NANOS_MAX)?;
        rest = tail;
    }
    (!text.is_empty()).then(|| Duration::from_nanos(total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_go_reads() {
        for (text, micros) in [
            ("0s", 0),
            ("5s", 5_000_000),
            ("500ms", 500_000),
            ("1m30s", 90_000_000),
            ("1.5h", 5_400_000_000),
            ("2h45m0.5s", 9_900_500_000),
            ("2000us", 2_000),
            (".5ms", 500),
            ("1.s", 1_000_000),
        ] {
            assert_eq!(parse(text), Some(Duration::from_micros(micros)), "{text}");
        }
    }

    #[test]
    fn refuses_the_rest() {
        for text in
            ["", "0", "5", "s", "-5s", "5x", "5s5", "1e9s", ".s", "1.2.3s", "9999999999h", "5 s"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
