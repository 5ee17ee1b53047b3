//! JSON's numbers as whole ones: `1.50e2` is 150, `1.5` is none.

use std::str::FromStr;

/// Digits of the largest number.
const DIGITS_MAX: i64 = 20;

/// The parts of a number, without what has no weight.
struct Parts<'a> {
    is_negative: bool,
    whole: &'a [u8],
    fraction: &'a [u8],
    exponent: &'a [u8],
}

/// Splits the digits at the start off.
fn digits(text: &[u8]) -> (&[u8], &[u8]) {
    text.split_at(text.iter().take_while(|byte| byte.is_ascii_digit()).count())
}

/// Reads the number at the start of a text; returns it and what comes after it.
fn parts(text: &[u8]) -> Option<(Parts<'_>, &[u8])> {
    let (is_negative, mut rest) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut whole: &[u8] = &[];
    match rest.split_first()? {
        (b'0', after) => rest = after,
        (b'1'..=b'9', _) => (whole, rest) = digits(rest),
        _ => return None,
    }
    let mut fraction: &[u8] = &[];
    if let [b'.', after @ ..] = rest
        && after.first().is_some_and(u8::is_ascii_digit)
    {
        (fraction, rest) = digits(after);
    }
    let mut exponent: &[u8] = &[];
    if let [b'e' | b'E', after @ ..] = rest
        && !after.is_empty()
    {
        let signed = usize::from(matches!(after.first(), Some(b'+' | b'-')));
        let unsigned = after.get(signed..).unwrap_or_default();
        if unsigned.is_empty() {
            return None;
        }
        let end = signed.saturating_add(digits(unsigned).0.len());
        (exponent, rest) = after.split_at_checked(end)?;
    }
    let zeros = fraction.iter().rev().take_while(|byte| **byte == b'0').count();
    let fraction = fraction.get(..fraction.len().saturating_sub(zeros)).unwrap_or_default();
    Some((Parts { is_negative, whole, fraction, exponent }, rest))
}

fn normal(parts: &Parts<'_>) -> Option<String> {
    let Parts { is_negative, whole, fraction, exponent } = parts;
    if whole.is_empty() && fraction.is_empty() {
        return Some("0".into());
    }
    let exponent: i32 = match std::str::from_utf8(exponent).ok()? {
        "" => 0,
        text => text.parse().ok()?,
    };
    let mut out = String::from(if *is_negative { "-" } else { "" });
    let text = |digits: &[u8]| String::from_utf8_lossy(digits).into_owned();
    let wide = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    if exponent >= 0 {
        let zeros = i64::from(exponent).checked_sub(wide(fraction.len()))?;
        let all = wide(whole.len()).saturating_add(i64::from(exponent));
        if zeros < 0 || all > DIGITS_MAX {
            return None;
        }
        out.push_str(&text(whole));
        out.push_str(&text(fraction));
        out.extend(std::iter::repeat_n('0', usize::try_from(zeros).ok()?));
    } else {
        let kept = wide(whole.len()).checked_add(i64::from(exponent))?;
        let (kept, cut) = whole.split_at_checked(usize::try_from(kept).ok()?)?;
        if !fraction.is_empty() || cut.iter().any(|digit| *digit != b'0') {
            return None;
        }
        out.push_str(&text(kept));
    }
    Some(out)
}

/// Reads a number.
pub(super) fn number<N: FromStr>(text: &[u8]) -> Option<N> {
    let (parts, _) = parts(text)?;
    normal(&parts)?.parse().ok()
}

/// Reads the number at the start of a text in quotes.
pub(super) fn quoted<N: FromStr>(text: &str) -> Option<N> {
    if text.trim() != text {
        return None;
    }
    let (parts, rest) = parts(text.as_bytes())?;
    let is_more = |byte: u8| byte.is_ascii_alphanumeric() || b"-+._".contains(&byte);
    if rest.first().is_some_and(|byte| is_more(*byte)) {
        return None;
    }
    normal(&parts)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_are_read_however_they_are_written() {
        let cases = [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("12", Some(12)),
            ("-12", Some(-12)),
            ("1.0", Some(1)),
            ("1.50e2", Some(150)),
            ("1500e-2", Some(15)),
            ("1.5", None),
            ("15e-1", None),
            ("1e-1", None),
            ("0e-999999999", Some(0)),
            ("1e30", None),
            ("1e2000000000", None),
            ("1e99999999999", None),
            ("1e-99999999999", None),
            ("9223372036854775807", Some(i64::MAX)),
            ("9223372036854775808", None),
            ("-9223372036854775808", Some(i64::MIN)),
            ("0.1e1", Some(1)),
        ];
        for (text, wanted) in cases {
            assert_eq!(number::<i64>(text.as_bytes()), wanted, "{text}");
            assert_eq!(quoted::<i64>(text), wanted, "{text} in quotes");
        }
        assert_eq!(number::<u64>(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(number::<u64>(b"-1"), None);
        assert_eq!(number::<i32>(b"2147483648"), None);
        for bad in ["", " 1", "1 ", "x", "1x", "1.", "1e", "1e+", "--1", "01", "+1", "\"1\""] {
            assert_eq!(quoted::<i64>(bad), None, "{bad:?}");
        }
    }
}
