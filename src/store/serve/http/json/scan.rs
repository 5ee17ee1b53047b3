//! JSON values, one after the other, out of bytes that come in parts.
//!
//! Takes and refuses exactly what Go's decoder does, with its words.

use super::quote;

/// How deep lists and objects may be nested.
const DEPTH_MAX: usize = 10_000;

/// Where the scanner is within a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Value,
    ValueOrEnd,
    Key,
    KeyOrEnd,
    AfterValue,
    Text,
    Escape,
    /// Digits of a code that are there.
    Code(u8),
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
    /// A word, and what of it is still to come.
    Word(&'static str, &'static str),
}

/// What the scanner is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum In {
    ObjectKey,
    ObjectValue,
    List,
}

/// What a byte does to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// It belongs to it.
    On,
    /// It is its last.
    Last,
    /// The value ended before it.
    Past,
}

/// Why a value is none, as a client is told.
type Words = String;

#[derive(Debug)]
struct Scanner {
    at: At,
    stack: Vec<In>,
}

impl Scanner {
    fn new() -> Self {
        Self { at: At::Value, stack: Vec::new() }
    }

    fn push(&mut self, byte: u8, to: In, at: At) -> Result<Step, Words> {
        self.stack.push(to);
        self.at = at;
        if self.stack.len() > DEPTH_MAX {
            return Err(invalid(byte, "exceeded max depth"));
        }
        Ok(Step::On)
    }

    fn pop(&mut self) -> Step {
        self.stack.pop();
        self.at = At::AfterValue;
        if self.stack.is_empty() { Step::Last } else { Step::On }
    }

    fn to(&mut self, at: At) -> Result<Step, Words> {
        self.at = at;
        Ok(Step::On)
    }

    fn step(&mut self, byte: u8) -> Result<Step, Words> {
        let is_space = matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        match self.at {
            At::Value | At::ValueOrEnd | At::Key | At::KeyOrEnd if is_space => Ok(Step::On),
            At::ValueOrEnd if byte == b']' => self.after_value(byte),
            At::Value | At::ValueOrEnd => self.value(byte),
            At::KeyOrEnd if byte == b'}' => Ok(self.pop()),
            At::Key | At::KeyOrEnd => match byte {
                b'"' => self.to(At::Text),
                _ => Err(invalid(byte, "looking for beginning of object key string")),
            },
            At::AfterValue => self.after_value(byte),
            At::Text => match byte {
                b'"' => self.to(At::AfterValue),
                b'\\' => self.to(At::Escape),
                ..0x20 => Err(invalid(byte, "in string literal")),
                _ => Ok(Step::On),
            },
            At::Escape => match byte {
                b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => self.to(At::Text),
                b'u' => self.to(At::Code(0)),
                _ => Err(invalid(byte, "in string escape code")),
            },
            At::Code(_) if !byte.is_ascii_hexdigit() => {
                Err(invalid(byte, "in \\u hexadecimal character escape"))
            }
            At::Code(3) => self.to(At::Text),
            At::Code(digits) => self.to(At::Code(digits.saturating_add(1))),
            At::Minus => match byte {
                b'0' => self.to(At::Zero),
                b'1'..=b'9' => self.to(At::Digits),
                _ => Err(invalid(byte, "in numeric literal")),
            },
            At::Digits if byte.is_ascii_digit() => Ok(Step::On),
            At::Zero | At::Digits => match byte {
                b'.' => self.to(At::Point),
                b'e' | b'E' => self.to(At::Exponent),
                _ => self.after_value(byte),
            },
            At::Point if byte.is_ascii_digit() => self.to(At::Fraction),
            At::Point => Err(invalid(byte, "after decimal point in numeric literal")),
            At::Fraction => match byte {
                b'0'..=b'9' => Ok(Step::On),
                b'e' | b'E' => self.to(At::Exponent),
                _ => self.after_value(byte),
            },
            At::Exponent if matches!(byte, b'+' | b'-') => self.to(At::ExponentSign),
            At::Exponent | At::ExponentSign => match byte {
                b'0'..=b'9' => self.to(At::ExponentDigits),
                _ => Err(invalid(byte, "in exponent of numeric literal")),
            },
            At::ExponentDigits if byte.is_ascii_digit() => Ok(Step::On),
            At::ExponentDigits => self.after_value(byte),
            At::Word(word, rest) => {
                let mut letters = rest.chars();
                match letters.next() {
                    Some(letter) if letter == char::from(byte) => match letters.as_str() {
                        "" => self.to(At::AfterValue),
                        rest => self.to(At::Word(word, rest)),
                    },
                    letter => {
                        let letter = letter.unwrap_or_default();
                        let context = format!("in literal {word} (expecting '{letter}')");
                        Err(invalid(byte, &context))
                    }
                }
            }
        }
    }

    fn value(&mut self, byte: u8) -> Result<Step, Words> {
        match byte {
            b'{' => self.push(byte, In::ObjectKey, At::KeyOrEnd),
            b'[' => self.push(byte, In::List, At::ValueOrEnd),
            b'"' => self.to(At::Text),
            b'-' => self.to(At::Minus),
            b'0' => self.to(At::Zero),
            b'1'..=b'9' => self.to(At::Digits),
            b't' => self.to(At::Word("true", "rue")),
            b'f' => self.to(At::Word("false", "alse")),
            b'n' => self.to(At::Word("null", "ull")),
            _ => Err(invalid(byte, "looking for beginning of value")),
        }
    }

    fn after_value(&mut self, byte: u8) -> Result<Step, Words> {
        let Some(within) = self.stack.last_mut() else { return Ok(Step::Past) };
        if matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
            return self.to(At::AfterValue);
        }
        match (*within, byte) {
            (In::ObjectKey, b':') => {
                *within = In::ObjectValue;
                self.to(At::Value)
            }
            (In::ObjectKey, _) => Err(invalid(byte, "after object key")),
            (In::ObjectValue, b',') => {
                *within = In::ObjectKey;
                self.to(At::Key)
            }
            (In::List, b',') => self.to(At::Value),
            (In::ObjectValue, b'}') | (In::List, b']') => Ok(self.pop()),
            (In::ObjectValue, _) => Err(invalid(byte, "after object key:value pair")),
            (In::List, _) => Err(invalid(byte, "after array element")),
        }
    }
}

fn invalid(byte: u8, context: &str) -> Words {
    let quoted = match byte {
        b'\'' => "\\'".to_owned(),
        b'"' => "\"".to_owned(),
        0x80..=0x9f => format!("\\u{byte:04x}"),
        // A byte stands for the character with its number.
        0xa0 | 0xad => format!("\\u{byte:04x}"),
        _ => {
            let quoted = quote(char::from(byte).to_string().as_bytes());
            quoted.trim_start_matches('"').strip_suffix('"').unwrap_or_default().to_owned()
        }
    };
    format!("invalid character '{quoted}' {context}")
}

/// Values that come one after the other.
#[derive(Debug)]
pub(in super::super) struct Values {
    scanner: Scanner,
    /// What has come of the next value.
    bytes: Vec<u8>,
    /// Bytes of it that are looked at.
    seen: usize,
}

impl Values {
    pub(in super::super) fn new() -> Self {
        Self { scanner: Scanner::new(), bytes: Vec::new(), seen: 0 }
    }

    /// Takes more bytes.
    pub(in super::super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// How many bytes wait for the rest of their value.
    pub(in super::super) fn waiting(&self) -> usize {
        self.bytes.len()
    }

    /// Gives the next value without space before it; `None` where more has to come first, or where
    /// nothing more comes.
    ///
    /// # Errors
    /// What is there is no value; nothing else can be read.
    pub(in super::super) fn next(&mut self, is_all: bool) -> Result<Option<Vec<u8>>, Words> {
        while let Some(byte) = self.bytes.get(self.seen) {
            let end = match self.scanner.step(*byte)? {
                Step::On => None,
                Step::Last => Some(self.seen.saturating_add(1)),
                Step::Past => Some(self.seen),
            };
            match end {
                None => self.seen = self.seen.saturating_add(1),
                Some(end) => return Ok(Some(self.cut(end))),
            }
        }
        if !is_all {
            return Ok(None);
        }
        // A number ends where everything ends.
        if matches!(self.scanner.step(b' '), Ok(Step::Past)) {
            return Ok(Some(self.cut(self.seen)));
        }
        match self.bytes.iter().all(u8::is_ascii_whitespace) {
            true => Ok(None),
            false => Err("unexpected EOF".into()),
        }
    }

    fn cut(&mut self, end: usize) -> Vec<u8> {
        let rest = self.bytes.split_off(end.min(self.bytes.len()));
        let value = std::mem::replace(&mut self.bytes, rest);
        self.scanner = Scanner::new();
        self.seen = 0;
        let is_space = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
        let start = value.iter().take_while(|byte| is_space(byte)).count();
        value.get(start..).unwrap_or_default().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &[u8], part: usize) -> (Vec<String>, Option<String>) {
        let (mut values, mut found) = (Values::new(), Vec::new());
        let mut parts = text.chunks(part.max(1));
        let mut is_all = false;
        loop {
            match values.next(is_all) {
                Ok(Some(value)) => found.push(String::from_utf8_lossy(&value).into_owned()),
                Ok(None) if is_all => return (found, None),
                Ok(None) => match parts.next() {
                    Some(bytes) => values.push(bytes),
                    None => is_all = true,
                },
                Err(words) => return (found, Some(words)),
            }
        }
    }

    #[test]
    fn values_are_cut_wherever_their_bytes_are() {
        let text = br#" {"a":[1,{"b":"}\"\u00e4"}],"c":-1.5e+3} 12 [] "x"{}true null 0"#;
        let values =
            [r#"{"a":[1,{"b":"}\"\u00e4"}],"c":-1.5e+3}"#, "12", "[]", "\"x\"", "{}", "true"];
        let values = [&values[..], &["null", "0"]].concat();
        for part in 1..text.len() {
            let (found, words) = all(text, part);
            assert_eq!((found, words), (values.iter().map(|v| (*v).to_owned()).collect(), None));
        }
    }

    #[test]
    fn what_is_no_value_is_told_in_gos_words() {
        let cases: &[(&[u8], &str)] = &[
            (b"x", "invalid character 'x' looking for beginning of value"),
            (b"{x", "invalid character 'x' looking for beginning of object key string"),
            (b"{\"a\"x", "invalid character 'x' after object key"),
            (b"{\"a\":1x", "invalid character 'x' after object key:value pair"),
            (b"{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            (b"[1 2]", "invalid character '2' after array element"),
            (b"[1,]", "invalid character ']' looking for beginning of value"),
            (b"tru3", "invalid character '3' in literal true (expecting 'e')"),
            (b"\"\n", "invalid character '\\n' in string literal"),
            (b"\"\\q", "invalid character 'q' in string escape code"),
            (b"\"\\u12g", "invalid character 'g' in \\u hexadecimal character escape"),
            (b"-a", "invalid character 'a' in numeric literal"),
            (b"[1.]", "invalid character ']' after decimal point in numeric literal"),
            (b"[1e]", "invalid character ']' in exponent of numeric literal"),
            (b"'", "invalid character '\\'' looking for beginning of value"),
            (b"\xe4", "invalid character '\u{e4}' looking for beginning of value"),
            (b"{\"a\":", "unexpected EOF"),
            (b"\"abc", "unexpected EOF"),
            (b"nul", "unexpected EOF"),
        ];
        for (text, words) in cases {
            assert_eq!(all(text, 1).1.as_deref(), Some(*words), "{}", text.escape_ascii());
        }
        let deep = [b'['; DEPTH_MAX + 1];
        let words = "invalid character '[' exceeded max depth";
        assert_eq!(all(&deep, 100).1.as_deref(), Some(words));
    }
}
