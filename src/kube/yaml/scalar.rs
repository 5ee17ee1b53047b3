//! Texts in the five styles of a scalar, and where each byte of a text stands.
//!
//! **Source**: YAML 1.2.2, chapters 7.3 and 8.1, for the styles; YAML 1.1's types (yaml.org/type,
//! with go-yaml v2's `resolve.go`) for what a plain text would be read as.

use std::borrow::Cow;

use saphyr_parser::ScalarStyle;

use super::tree::header;

/// Tells whether a text, written without quotes, is a string for every reader.
///
/// Says no when in doubt: the answer to that is quotes.
pub(super) fn plain_is_text(text: &str, in_flow: bool) -> bool {
    let Some(first) = text.chars().next() else { return false };
    let second = text.chars().nth(1);
    let joined = second.is_some_and(|c| !matches!(c, ' ' | ',' | '[' | ']' | '{' | '}'));
    let begins = match first {
        '-' => joined,
        '?' | ':' | ',' | '[' | ']' | '{' | '}' | '#' | '&' | '*' | '!' | '|' | '>' | '\''
        | '"' | '%' | '@' | '`' => false,
        _ => true,
    };
    let marker = text == "---" || text.starts_with("--- ") || text == "...";
    begins
        && !marker
        && !text.starts_with("... ")
        && text.chars().all(is_shown)
        && !text.starts_with(' ')
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && !text.contains(" #")
        && !(in_flow && text.contains([',', '[', ']', '{', '}', ':', '?', '#']))
        && !looks_typed(text)
}

/// Tells whether a reader of YAML 1.1 or 1.2 may take a plain text for something else than text.
fn looks_typed(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let words = ["~", "null", "true", "false", "yes", "no", "on", "off", "y", "n", "=", "<<"];
    if words.contains(&lower.as_str()) {
        return true;
    }
    let body = lower.strip_prefix(['+', '-']).unwrap_or(&lower);
    if matches!(body, ".inf" | ".nan") {
        return true;
    }
    let is = |part: &str, more: &str| {
        part.bytes().any(|b| b.is_ascii_digit())
            && part.chars().all(|c| c.is_ascii_digit() || more.contains(c))
    };
    let based = |prefix: &str| {
        body.strip_prefix(prefix)
            .is_some_and(|rest| rest.chars().all(|c| c.is_ascii_hexdigit() || c == '_'))
    };
    if based("0x") || based("0o") || based("0b") {
        return true;
    }
    // Whole numbers, in groups or with colons between (base 60), and fractions.
    if is(body, "_,:.") && (body.contains(':') || body.matches('.').count() <= 1) {
        return true;
    }
    if let Some((mantissa, exponent)) = body.split_once('e')
        && is(mantissa, "_.")
        && is(exponent.strip_prefix(['+', '-']).unwrap_or(exponent), "_")
    {
        return true;
    }
    // A date, with or without a time.
    let mut parts = body.splitn(3, '-');
    let year = parts.next().unwrap_or_default();
    year.len() == 4 && is(year, "") && parts.next().is_some_and(|part| is(part, ""))
}

/// Tells whether a character stands for itself in every style, line ends and tabs left out.
fn is_shown(c: char) -> bool {
    !c.is_control() && !matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{fffe}' | '\u{ffff}')
}

/// Writes a new scalar: plain where that stays a text, else in quotes as Go's YAML writer would.
pub(super) fn fresh(text: &str, in_flow: bool) -> String {
    if plain_is_text(text, in_flow) {
        text.to_owned()
    } else if text.is_empty() || looks_typed(text) || !text.chars().all(is_shown) {
        double_quoted(text)
    } else {
        single_quoted(text)
    }
}

pub(super) fn double_quoted(text: &str) -> String {
    format!("\"{}\"", escaped(text))
}

pub(super) fn single_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Escapes a text for double quotes, where it can be so that JSON has the same escape.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_shown(c) => out.push(c),
            c => out.push_str(&format!("\\u{:04x}", u32::from(c))),
        }
    }
    out
}

/// How the lines of a block scalar are written.
pub(super) struct Lines<'a> {
    pub(super) indent: usize,
    /// What ends a line.
    pub(super) end: &'a str,
    /// Tells whether a line ends right behind what is written.
    pub(super) ends_behind: bool,
}

/// Writes part of a text, or all of it, as it stands inside a scalar of a style.
///
/// `lines` are those of a block scalar. `None` when the style cannot hold it.
pub(super) fn inside<'a>(
    text: &'a str,
    style: ScalarStyle,
    lines: &Lines<'_>,
) -> Option<Cow<'a, str>> {
    let shown = || text.chars().all(is_shown);
    match style {
        ScalarStyle::Plain => shown().then_some(Cow::Borrowed(text)),
        ScalarStyle::SingleQuoted => shown().then(|| Cow::Owned(text.replace('\'', "''"))),
        ScalarStyle::DoubleQuoted => Some(Cow::Owned(escaped(text))),
        ScalarStyle::Folded => shown().then_some(Cow::Borrowed(text)),
        ScalarStyle::Literal => {
            if !text.chars().all(|c| is_shown(c) || matches!(c, '\n' | '\t')) {
                return None;
            }
            let mut parts = text.split('\n').peekable();
            let mut out = parts.next().unwrap_or_default().to_owned();
            while let Some(part) = parts.next() {
                out.push_str(lines.end);
                // Behind the last line end the old text goes on.
                if !part.is_empty() || (parts.peek().is_none() && !lines.ends_behind) {
                    out.push_str(&" ".repeat(lines.indent));
                }
                out.push_str(part);
            }
            Some(Cow::Owned(out))
        }
    }
}

/// Where the bytes of a scalar's text stand in what is written.
pub(super) struct Map {
    /// For each byte of the text, and for its end, the byte of the raw text that it begins at.
    starts: Vec<usize>,
    /// Indent of a block scalar's lines, else 0.
    pub(super) indent: usize,
}

impl Map {
    /// Returns the raw byte that a byte of the text, or its end, begins at.
    pub(super) fn raw(&self, at: usize) -> Option<usize> {
        self.starts.get(at).copied()
    }
}

/// Maps the text of a scalar to what is written, quotes and `|` included.
///
/// `None` when decoding it again does not give the text; then nobody may rely on a map.
pub(super) fn map(raw: &str, style: ScalarStyle, text: &str) -> Option<Map> {
    let mut out = Decoded { text: String::new(), starts: Vec::new() };
    let (indent, end) = match style {
        ScalarStyle::Plain => {
            decode_flow(raw, 0, style, &mut out)?;
            (0, raw.len())
        }
        ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => {
            let last = raw.len().checked_sub(1)?;
            decode_flow(raw.get(1..last)?, 1, style, &mut out)?;
            (0, last)
        }
        ScalarStyle::Literal | ScalarStyle::Folded => {
            let indent = decode_block(raw, style == ScalarStyle::Folded, text, &mut out)?;
            (indent, raw.len())
        }
    };
    out.starts.push(end);
    (out.text == text).then_some(Map { starts: out.starts, indent })
}

struct Decoded {
    text: String,
    starts: Vec<usize>,
}

impl Decoded {
    fn push(&mut self, c: char, at: usize) {
        self.text.push(c);
        self.starts.resize(self.text.len(), at);
    }

    /// Takes back all behind a length.
    fn cut(&mut self, len: usize) {
        self.text.truncate(len);
        self.starts.truncate(len);
    }
}

/// Decodes a plain or quoted scalar without its quotes, which stands at `base`.
fn decode_flow(raw: &str, base: usize, style: ScalarStyle, out: &mut Decoded) -> Option<()> {
    let double = style == ScalarStyle::DoubleQuoted;
    let mut chars = raw.char_indices().peekable();
    // Length without the blanks at the end, which a line end takes away.
    let mut solid = 0;
    while let Some((at, c)) = chars.next() {
        let place = base.checked_add(at)?;
        match c {
            '\n' | '\r' => {
                out.cut(solid);
                let mut breaks = vec![place];
                if c == '\r' {
                    chars.next_if(|(_, c)| *c == '\n');
                }
                while let Some((at, c)) = chars.next_if(|(_, c)| c.is_ascii_whitespace()) {
                    if c == '\n' {
                        breaks.push(base.checked_add(at)?);
                    }
                }
                match breaks.as_slice() {
                    [only] => out.push(' ', *only),
                    [_, rest @ ..] => rest.iter().for_each(|at| out.push('\n', *at)),
                    [] => {}
                }
                solid = out.text.len();
            }
            '\'' if style == ScalarStyle::SingleQuoted => {
                chars.next_if(|(_, c)| *c == '\'')?;
                out.push('\'', place);
                solid = out.text.len();
            }
            '\\' if double => {
                let (_, escape) = chars.next()?;
                if matches!(escape, '\n' | '\r') {
                    if escape == '\r' {
                        chars.next_if(|(_, c)| *c == '\n');
                    }
                    while chars.next_if(|(_, c)| matches!(c, ' ' | '\t')).is_some() {}
                } else {
                    let digits = match escape {
                        'x' => 2,
                        'u' => 4,
                        'U' => 8,
                        _ => 0,
                    };
                    let mut code: u32 = 0;
                    for _ in 0..digits {
                        let (_, digit) = chars.next()?;
                        code = code.checked_mul(16)?.checked_add(digit.to_digit(16)?)?;
                    }
                    let c = if digits > 0 { char::from_u32(code)? } else { unescaped(escape)? };
                    out.push(c, place);
                }
                solid = out.text.len();
            }
            c => {
                out.push(c, place);
                if !matches!(c, ' ' | '\t') {
                    solid = out.text.len();
                }
            }
        }
    }
    Some(())
}

/// Returns what an escape of one character stands for.
fn unescaped(escape: char) -> Option<char> {
    Some(match escape {
        '0' => '\0',
        'a' => '\u{7}',
        'b' => '\u{8}',
        't' | '\t' => '\t',
        'n' => '\n',
        'v' => '\u{b}',
        'f' => '\u{c}',
        'r' => '\r',
        'e' => '\u{1b}',
        ' ' | '"' | '/' | '\\' => escape,
        'N' => '\u{85}',
        '_' => '\u{a0}',
        'L' => '\u{2028}',
        'P' => '\u{2029}',
        _ => return None,
    })
}

/// Decodes a block scalar; `text`, which is to come out, tells its indent and the line ends behind
/// it. Returns the indent.
fn decode_block(raw: &str, folded: bool, text: &str, out: &mut Decoded) -> Option<usize> {
    let leading = |line: &str| line.len().saturating_sub(line.trim_start_matches(' ').len());
    let head = raw.find('\n')?;
    let body = raw.get(head.checked_add(1)?..)?;
    let first = body.split('\n').find(|line| !line.trim_matches([' ', '\r']).is_empty())?;
    let own = leading(text.trim_start_matches('\n'));
    // Lines without an indent, which a root may have, are not part of it for every reader.
    let indent = leading(first).checked_sub(own).filter(|indent| *indent > 0)?;
    let mut at = head.checked_add(1)?;
    // Line ends since the last line with something on it.
    let mut breaks: Vec<usize> = Vec::new();
    // Tells of that line whether it is indented further; `None` before the first one.
    let mut further = None;
    for line in body.split('\n') {
        let ended = line.strip_suffix('\r').unwrap_or(line);
        let own = match ended.get(indent..) {
            Some(own) if leading(ended) >= indent => own,
            _ if leading(ended) == ended.len() => "",
            _ => return None,
        };
        if !own.is_empty() {
            let more = own.starts_with([' ', '\t']);
            match (breaks.as_slice(), further) {
                ([only], Some(false)) if folded && !more => out.push(' ', *only),
                ([_, rest @ ..], Some(false)) if folded && !more => {
                    rest.iter().for_each(|at| out.push('\n', *at));
                }
                (all, _) => all.iter().for_each(|at| out.push('\n', *at)),
            }
            breaks.clear();
            let begin = at.checked_add(indent)?;
            for (offset, c) in own.char_indices() {
                out.push(c, begin.checked_add(offset)?);
            }
            further = Some(more);
        }
        breaks.push(at.checked_add(ended.len())?);
        at = at.checked_add(line.len())?.checked_add(1)?;
    }
    let missing = text.len().checked_sub(out.text.len())?;
    breaks.get(..missing)?.iter().for_each(|at| out.push('\n', *at));
    Some(indent)
}

/// Writes a whole literal scalar with the head of the old block scalar, whose comment it keeps.
///
/// `None` when a literal cannot hold the text, or not with this indent.
pub(super) fn literal(old: &str, text: &str, indent: usize, line_end: &str) -> Option<String> {
    let lines = text.trim_end_matches('\n');
    // What begins with a blank or an empty line would need an indicator of its indent.
    if lines.is_empty() || lines.starts_with([' ', '\n', '\t']) {
        return None;
    }
    let chomp = match text.len().checked_sub(lines.len())? {
        0 => "-",
        1 => "",
        _ => "+",
    };
    let first_line = old.lines().next()?;
    let rest = first_line.strip_prefix(header(old))?;
    let ends = line_end.repeat(text.len().checked_sub(lines.len())?.saturating_sub(1));
    let how = Lines { indent, end: line_end, ends_behind: true };
    let body = inside(lines, ScalarStyle::Literal, &how)?;
    Some(format!("|{chomp}{rest}{line_end}{}{body}{ends}", " ".repeat(indent)))
}
