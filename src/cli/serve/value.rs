//! Values of flags, read as Go's flag package reads them.
//!
//! **Source**: Go 1.26 `flag`, `strconv`, `time.ParseDuration`; etcd pkg/flags, 3.7.3.

use std::time::Duration;

use super::gates::Gates;
use super::url::Url;
use crate::format::duration;

/// What a flag takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Bool,
    Uint,
    Uint32,
    Int,
    Time,
    Urls,
    /// `*`, or origins.
    Origins,
    /// Words with commas, each once, sorted.
    Names,
    /// Words with commas, as they stand.
    List,
    /// One of these.
    OneOf(&'static [&'static str]),
    /// Any of these, with commas.
    AnyOf(&'static [&'static str]),
    Gates,
    /// Anything, and nothing comes of it.
    Ignored,
}

/// What a flag was given.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Text(String),
    Bool(bool),
    Uint(u64),
    Int(i64),
    /// Nanoseconds, which may be negative.
    Time(i64),
    Urls(Vec<Url>),
    Words(Vec<String>),
    Gates(Gates),
    Ignored,
}

const SYNTAX: &str = "parse error";
const RANGE: &str = "value out of range";

impl Kind {
    /// Tells whether the flag may stand without a value.
    pub(super) fn is_bool(self) -> bool {
        matches!(self, Self::Bool | Self::Ignored)
    }

    /// Reads a value over the one that was there.
    ///
    /// # Errors
    ///
    /// Go's or etcd's words for what is wrong.
    pub(super) fn read(self, before: &Value, text: &str) -> Result<Value, String> {
        let words = |text: &str| text.split(',').map(str::to_owned).collect::<Vec<_>>();
        Ok(match self {
            Self::Text => Value::Text(text.to_owned()),
            Self::Bool => Value::Bool(read_bool(text).ok_or(SYNTAX)?),
            Self::Uint => Value::Uint(read_uint(text, u64::MAX)?),
            Self::Uint32 => Value::Uint(read_uint(text, u32::MAX.into()).map_err(|why| {
                let why = if why == SYNTAX { "invalid syntax" } else { why };
                format!("strconv.ParseUint: parsing {}: {why}", quoted(text))
            })?),
            Self::Int => Value::Int(read_int(text)?),
            Self::Time => Value::Time(read_time(text).ok_or(SYNTAX)?),
            Self::Urls => match before {
                // What is in the list already, or empty, changes nothing.
                Value::Urls(urls) if text.is_empty() || urls.iter().any(|u| u.as_str() == text) => {
                    before.clone()
                }
                _ => Value::Urls(Url::parse_list(text)?),
            },
            Self::Origins if text == "*" => Value::Words(vec![text.to_owned()]),
            Self::Origins => {
                Value::Words(Url::parse_list(text)?.iter().map(Url::to_string).collect())
            }
            Self::Names => {
                let mut names = words(text);
                names.sort_unstable();
                names.dedup();
                Value::Words(names)
            }
            Self::List => Value::Words(words(text)),
            Self::OneOf(valid) if valid.contains(&text) => Value::Text(text.to_owned()),
            // A flag of ours alone, where nothing is allowed too.
            Self::OneOf(["", valid @ ..]) => {
                return Err(format!("invalid value, it is one of {}", valid.join(", ")));
            }
            Self::OneOf(_) => return Err("invalid value".into()),
            Self::AnyOf(valid) => match text.split(',').find(|word| !valid.contains(word)) {
                Some(word) => return Err(format!("invalid value {}", quoted(word))),
                None => Value::Text(text.to_owned()),
            },
            Self::Gates => {
                let mut gates = match before {
                    Value::Gates(gates) => gates.clone(),
                    _ => Gates::default(),
                };
                gates.set_text(text)?;
                Value::Gates(gates)
            }
            Self::Ignored => Value::Ignored,
        })
    }

    /// Reads the default of a flag, where an empty text stands for nothing.
    pub(super) fn default(self, text: &str) -> Value {
        let nothing = match self {
            Self::Text | Self::OneOf(_) | Self::AnyOf(_) => Value::Text(String::new()),
            Self::Bool => Value::Bool(false),
            Self::Uint | Self::Uint32 => Value::Uint(0),
            Self::Int => Value::Int(0),
            Self::Time => Value::Time(0),
            Self::Urls => Value::Urls(Vec::new()),
            Self::Origins | Self::Names | Self::List => Value::Words(Vec::new()),
            Self::Gates => Value::Gates(Gates::default()),
            Self::Ignored => Value::Ignored,
        };
        match text {
            "" => nothing,
            text => self.read(&nothing, text).unwrap_or(nothing),
        }
    }
}

/// Returns nanoseconds as a duration; a negative one counts as none.
pub(super) fn duration_of(nanos: i64) -> Duration {
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

pub(super) fn read_bool(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// Reads a number as Go writes them: with a prefix, and `_` where digits may be parted.
fn read_uint(text: &str, max: u64) -> Result<u64, &'static str> {
    let lower = text.to_ascii_lowercase();
    let (radix, digits, is_prefixed) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, lower.get(2..), true),
        [b'0', b'b', ..] => (2, lower.get(2..), true),
        [b'0', b'o', ..] => (8, lower.get(2..), true),
        [b'0', _, ..] => (8, lower.get(1..), true),
        _ => (10, Some(lower.as_str()), false),
    };
    let digits = digits.unwrap_or_default();
    let bare: String = digits.chars().filter(|c| *c != '_').collect();
    let parted = digits.contains("__") || digits.ends_with('_');
    let begins = digits.starts_with('_') && !is_prefixed;
    if bare.is_empty() || parted || begins || !bare.chars().all(|c| c.is_digit(radix)) {
        return Err(SYNTAX);
    }
    u64::from_str_radix(&bare, radix).ok().filter(|number| *number <= max).ok_or(RANGE)
}

fn read_int(text: &str) -> Result<i64, &'static str> {
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let number = i128::from(read_uint(digits, u64::MAX)?);
    i64::try_from(if is_negative { -number } else { number }).map_err(|_| RANGE)
}

/// Reads a duration, with a sign or without, in nanoseconds.
pub(super) fn read_time(text: &str) -> Option<i64> {
    let (is_negative, rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let nanos = i64::try_from(duration::parse(rest)?.as_nanos()).ok()?;
    Some(if is_negative { -nanos } else { nanos })
}

/// Writes a text as Go's `%q` does.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            '\n' => out.push_str("\\n"),
            '\t' => out.push_str("\\t"),
            '\r' => out.push_str("\\r"),
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_gos() {
        for (text, number) in [
            ("0", Ok(0)),
            ("0x10", Ok(16)),
            ("0b11", Ok(3)),
            ("0o17", Ok(15)),
            ("017", Ok(15)),
            ("1_000", Ok(1000)),
            ("-1", Err(SYNTAX)),
            ("", Err(SYNTAX)),
            ("0x", Err(SYNTAX)),
            ("1__0", Err(SYNTAX)),
            ("_1", Err(SYNTAX)),
            ("99999999999999999999999", Err(RANGE)),
        ] {
            assert_eq!(read_uint(text, u64::MAX), number, "{text}");
        }
        assert_eq!((read_int("-5"), read_int("+0x10")), (Ok(-5), Ok(16)));
        assert_eq!(read_int("9223372036854775808"), Err(RANGE));
        assert_eq!(read_time("-5s"), Some(-5_000_000_000));
        assert_eq!((read_time("0"), read_time("5"), read_time("")), (Some(0), None, None));
    }

    #[test]
    fn a_list_of_urls_is_replaced_and_what_is_in_it_changes_nothing() {
        let before = Kind::Urls.default("http://a:1,http://b:1");
        for same in ["", "http://a:1"] {
            assert_eq!(Kind::Urls.read(&before, same).unwrap(), before);
        }
        let after = Kind::Urls.read(&before, "http://c:1").unwrap();
        assert_eq!(after, Value::Urls(vec![Url::parse("http://c:1").unwrap()]));
    }
}
