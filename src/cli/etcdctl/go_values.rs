//! Values as Go prints them: durations, quoted text, JSON.

use std::time::Duration;

use serde_json::Value;

use crate::cli::output::push;

/// Writes a duration as Go does: `6.901624ms`, `5.001527342s`, `1m30s`, `0s`
/// (time, `Duration.String`, Go 1.26).
pub(in crate::cli) fn duration(took: Duration) -> String {
    let nanos = took.as_nanos();
    let part = |unit: u128, name: &str| {
        let fraction = format!("{:0width$}", nanos % unit, width = unit.ilog10() as usize);
        match (unit, fraction.trim_end_matches('0')) {
            (1, _) | (_, "") => format!("{}{name}", nanos / unit),
            (_, fraction) => format!("{}.{fraction}{name}", nanos / unit),
        }
    };
    match nanos {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => part(1_000, "\u{b5}s"),
        1_000_000..1_000_000_000 => part(1_000_000, "ms"),
        1_000_000_000..60_000_000_000 => part(1_000_000_000, "s"),
        _ => {
            let minutes = took.as_secs() / 60;
            let rest = Duration::new(took.as_secs() % 60, took.subsec_nanos());
            let rest = match rest.as_secs() {
                0 if rest.is_zero() => "0s".to_owned(),
                0 => format!("0.{}s", format!("{:09}", rest.subsec_nanos()).trim_end_matches('0')),
                _ => duration(rest),
            };
            match minutes {
                0..60 => format!("{minutes}m{rest}"),
                _ => format!("{}h{}m{rest}", minutes / 60, minutes % 60),
            }
        }
    }
}

/// Quotes a text as Go's `%q` does.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            c if c.is_control() => push(&mut quoted, c),
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

/// Writes JSON as Go does: one line, with the characters that HTML minds spelt in texts.
pub(super) fn json(value: &Value) -> String {
    // Outside texts, JSON has none of these.
    let mut text = value.to_string();
    for c in ['<', '>', '&', '\u{2028}', '\u{2029}'] {
        if text.contains(c) {
            text = text.replace(c, &format!("\\u{:04x}", u32::from(c)));
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_gos() {
        for (nanos, text) in [
            (0, "0s"),
            (17, "17ns"),
            (1_500, "1.5\u{b5}s"),
            (999_000, "999\u{b5}s"),
            (6_901_624, "6.901624ms"),
            (5_061_280, "5.06128ms"),
            (5_001_527_342, "5.001527342s"),
            (5_000_000_000, "5s"),
            (60_000_000_000, "1m0s"),
            (90_050_000_000, "1m30.05s"),
            (60_500_000_000, "1m0.5s"),
            (3_661_000_000_000, "1h1m1s"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanos)), text);
        }
    }
}
