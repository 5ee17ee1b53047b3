//! A JSON value to the bytes of a message.
//!
//! The value is known to be well formed, but for the text in its strings. It is gone through from
//! front to back, so that of several faults the first one is told, as etcd tells it.

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use prost::encoding::{WireType, encode_key, encode_varint};

use super::number::{number, quoted};
use super::quote;
use crate::store::wire::shape::{Field, Kind, Message};

/// How deep messages may be nested: as deep as they are read on the wire. etcd stops at 10000.
const DEPTH_MAX: usize = 100;

/// Makes the bytes of a message of a JSON value.
///
/// # Errors
/// The value is none of such a message; etcd's words for it.
pub(in super::super) fn read(shape: &Message, json: &[u8]) -> Result<Vec<u8>, String> {
    let mut reader = Reader { json, at: 0 };
    let mut out = Vec::new();
    match reader.message(shape, &mut out, DEPTH_MAX) {
        Ok(()) => Ok(out),
        Err(fault) => Err(reader.words(&fault)),
    }
}

/// What is wrong, and where.
struct Fault {
    at: Option<(usize, bool)>,
    what: String,
}

impl Fault {
    fn at(at: usize, what: String) -> Self {
        Self { at: Some((at, false)), what }
    }

    fn syntax(at: usize, what: String) -> Self {
        Self { at: Some((at, true)), what }
    }

    fn anywhere(what: &str) -> Self {
        Self { at: None, what: what.to_owned() }
    }
}

/// A piece of JSON.
struct Token<'a> {
    at: usize,
    raw: &'a [u8],
    kind: TokenKind<'a>,
}

enum TokenKind<'a> {
    /// One of the brackets.
    Bracket,
    Null,
    Bool(bool),
    Number,
    Text(Cow<'a, str>),
}

impl Token<'_> {
    fn raw(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.raw)
    }

    fn unexpected(&self) -> Fault {
        Fault::syntax(self.at, format!("unexpected token {}", self.raw()))
    }
}

struct Reader<'a> {
    json: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn words(&self, fault: &Fault) -> String {
        let Some((at, is_syntax)) = fault.at else { return format!("proto: {}", fault.what) };
        let before = self.json.get(..at).unwrap_or_default();
        let mut lines = before.split(|byte| *byte == b'\n');
        let last = lines.next_back().unwrap_or_default();
        let line = lines.count().saturating_add(1);
        let column = String::from_utf8_lossy(last).chars().count().saturating_add(1);
        let kind = if is_syntax { "syntax error " } else { "" };
        format!("proto: {kind}(line {line}:{column}): {}", fault.what)
    }

    fn rest(&self) -> &'a [u8] {
        self.json.get(self.at..).unwrap_or_default()
    }

    /// Goes over what only divides: space, commas and colons.
    fn skip_dividers(&mut self) {
        let is_divider = |byte: &u8| b" \t\r\n,:".contains(byte);
        let count = self.rest().iter().take_while(|byte| is_divider(byte)).count();
        self.at = self.at.saturating_add(count);
    }

    /// Goes over a bracket, if it is the next thing.
    fn skip(&mut self, bracket: u8) -> bool {
        self.skip_dividers();
        let is_there = self.rest().first() == Some(&bracket);
        self.at = self.at.saturating_add(usize::from(is_there));
        is_there
    }

    fn token(&mut self) -> Result<Token<'a>, Fault> {
        self.skip_dividers();
        let (at, rest) = (self.at, self.rest());
        let (length, kind) = match rest.first() {
            None => return Err(Fault::anywhere("unexpected EOF")),
            Some(b'{' | b'}' | b'[' | b']') => (1, TokenKind::Bracket),
            Some(b'n') => (4, TokenKind::Null),
            Some(b't') => (4, TokenKind::Bool(true)),
            Some(b'f') => (5, TokenKind::Bool(false)),
            Some(b'"') => {
                let (length, text) = string(rest, at)?;
                (length, TokenKind::Text(text))
            }
            Some(_) => {
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"-+.".contains(byte);
                (rest.iter().take_while(|byte| is_part(byte)).count().max(1), TokenKind::Number)
            }
        };
        let raw = rest.get(..length).unwrap_or(rest);
        self.at = at.saturating_add(raw.len());
        Ok(Token { at, raw, kind })
    }

    /// Goes over a value.
    fn skip_value(&mut self) -> Result<(), Fault> {
        let mut open = 0_usize;
        loop {
            let token = self.token()?;
            match token.raw {
                b"{" | b"[" => open = open.saturating_add(1),
                b"}" | b"]" => open = open.saturating_sub(1),
                _ => {}
            }
            if open == 0 {
                return Ok(());
            }
        }
    }

    fn message(&mut self, shape: &Message, out: &mut Vec<u8>, depth: usize) -> Result<(), Fault> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(Fault::anywhere("exceeded max recursion depth"));
        };
        let token = self.token()?;
        if token.raw != b"{" {
            return Err(token.unexpected());
        }
        let mut seen = Vec::new();
        let mut seen_oneofs = Vec::new();
        while !self.skip(b'}') {
            let name = self.token()?;
            let TokenKind::Text(text) = &name.kind else { return Err(name.unexpected()) };
            let field = shape.fields.iter().find(|field| field.json_name == text);
            let field = field.or_else(|| shape.fields.iter().find(|field| field.name == text));
            let Some(field) = field else {
                self.skip_value()?;
                continue;
            };
            if seen.contains(&field.number) {
                return Err(Fault::at(name.at, format!("duplicate field {}", name.raw())));
            }
            seen.push(field.number);
            self.skip_dividers();
            if self.rest().first() == Some(&b'n') {
                self.token()?;
                continue;
            }
            if field.is_list {
                self.list(field, out, depth)?;
                continue;
            }
            if let Some(oneof) = field.oneof {
                if seen_oneofs.contains(&oneof) {
                    let raw = name.raw();
                    let what = format!("error parsing {raw}, oneof {oneof} is already set");
                    return Err(Fault::at(name.at, what));
                }
                seen_oneofs.push(oneof);
            }
            self.value(field, out, depth)?;
        }
        Ok(())
    }

    fn list(&mut self, field: &Field, out: &mut Vec<u8>, depth: usize) -> Result<(), Fault> {
        let token = self.token()?;
        if token.raw != b"[" {
            return Err(token.unexpected());
        }
        while !self.skip(b']') {
            self.value(field, out, depth)?;
        }
        Ok(())
    }

    fn value(&mut self, field: &Field, out: &mut Vec<u8>, depth: usize) -> Result<(), Fault> {
        if let Kind::Message(shape) = field.kind {
            let mut inner = Vec::new();
            self.message(shape, &mut inner, depth)?;
            put_bytes(out, field.number, &inner);
            return Ok(());
        }
        let token = self.token()?;
        let is_put = match (field.kind, &token.kind) {
            (Kind::Bool, TokenKind::Bool(value)) => {
                put_number(out, field.number, u64::from(*value));
                true
            }
            (Kind::Int64, _) => {
                let value = whole::<i64>(&token).map(i64::cast_unsigned);
                put_some(out, field.number, value)
            }
            (Kind::Uint64, _) => put_some(out, field.number, whole::<u64>(&token)),
            (Kind::Uint32, _) => put_some(out, field.number, whole::<u32>(&token).map(u64::from)),
            (Kind::Enum(names), TokenKind::Text(text)) => {
                // A name that is not known stands for nothing.
                let known = names.iter().find(|(_, name)| name == text);
                put_some(out, field.number, known.map(|(number, _)| wide(*number)));
                true
            }
            (Kind::Enum(_), TokenKind::Number) => {
                put_some(out, field.number, number::<i32>(token.raw).map(wide))
            }
            (Kind::String, TokenKind::Text(text)) => {
                put_bytes(out, field.number, text.as_bytes());
                true
            }
            (Kind::Bytes, TokenKind::Text(text)) => match bytes(text) {
                Some(value) => {
                    put_bytes(out, field.number, &value);
                    true
                }
                None => false,
            },
            _ => false,
        };
        if is_put {
            return Ok(());
        }
        let kind = match field.kind {
            Kind::Bool => "bool",
            Kind::Int64 => "int64",
            Kind::Uint32 => "uint32",
            Kind::Uint64 => "uint64",
            Kind::String => "string",
            Kind::Bytes => "bytes",
            Kind::Enum(_) => "enum",
            Kind::Message(_) => "message",
        };
        let what = format!("invalid value for {kind} field {}: {}", field.json_name, token.raw());
        Err(Fault::at(token.at, what))
    }
}

fn whole<N: std::str::FromStr>(token: &Token<'_>) -> Option<N> {
    match &token.kind {
        TokenKind::Number => number(token.raw),
        TokenKind::Text(text) => quoted(text),
        _ => None,
    }
}

fn wide(number: i32) -> u64 {
    i64::from(number).cast_unsigned()
}

fn put_number(out: &mut Vec<u8>, field: u32, number: u64) {
    encode_key(field, WireType::Varint, out);
    encode_varint(number, out);
}

fn put_some(out: &mut Vec<u8>, field: u32, number: Option<u64>) -> bool {
    if let Some(number) = number {
        put_number(out, field, number);
    }
    number.is_some()
}

fn put_bytes(out: &mut Vec<u8>, field: u32, bytes: &[u8]) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(u64::try_from(bytes.len()).unwrap_or(u64::MAX), out);
    out.extend_from_slice(bytes);
}

/// Reads base64 of either alphabet, with or without its end; Go reads over ends of lines.
fn bytes(text: &str) -> Option<Vec<u8>> {
    let alphabet =
        if text.contains(['-', '_']) { &alphabet::URL_SAFE } else { &alphabet::STANDARD };
    let padding = match text.len() % 4 {
        0 => DecodePaddingMode::RequireCanonical,
        _ => DecodePaddingMode::RequireNone,
    };
    let config = GeneralPurposeConfig::new()
        .with_decode_allow_trailing_bits(true)
        .with_decode_padding_mode(padding);
    let engine = GeneralPurpose::new(alphabet, config);
    if text.contains(['\r', '\n']) {
        return engine.decode(text.replace(['\r', '\n'], "")).ok();
    }
    engine.decode(text).ok()
}

/// Reads a string at the start of what is left; returns its length with quotes, and the text.
fn string(json: &[u8], at: usize) -> Result<(usize, Cow<'_, str>), Fault> {
    let eof = || Fault::anywhere("unexpected EOF");
    let inner = json.get(1..).unwrap_or_default();
    let ends = |byte: &u8| matches!(byte, b'"' | b'\\');
    let plain = inner.iter().position(ends).ok_or_else(eof)?;
    let (first, mut rest) = inner.split_at_checked(plain).ok_or_else(eof)?;
    let utf8 = |part: &'_ [u8]| match std::str::from_utf8(part) {
        Ok(_) => Ok(()),
        Err(_) => Err(Fault::syntax(at, "invalid UTF-8 in string".into())),
    };
    utf8(first)?;
    let length = |rest: &[u8]| json.len().saturating_sub(rest.len());
    if let [b'"', after @ ..] = rest {
        return Ok((length(after), String::from_utf8_lossy(first)));
    }
    let mut text = String::from_utf8_lossy(first).into_owned();
    let escape =
        |code: &[u8]| Fault::syntax(at, format!("invalid escape code {} in string", quote(code)));
    loop {
        match rest {
            [b'"', after @ ..] => return Ok((length(after), Cow::Owned(text))),
            [b'\\', b'u', ..] => {
                let (code, after) = rest.split_at_checked(6).ok_or_else(eof)?;
                rest = after;
                let high = unit(code).ok_or_else(|| escape(code))?;
                if let Some(character) = char::from_u32(u32::from(high)) {
                    text.push(character);
                    continue;
                }
                let (code, after) = rest.split_at_checked(6).ok_or_else(eof)?;
                rest = after;
                let low = unit(code).ok_or_else(|| escape(code))?;
                match char::decode_utf16([high, low]).next() {
                    Some(Ok(character)) => text.push(character),
                    _ => return Err(escape(code)),
                }
            }
            [b'\\', letter, after @ ..] => {
                text.push(match letter {
                    b'b' => '\x08',
                    b'f' => '\x0c',
                    b'n' => '\n',
                    b'r' => '\r',
                    b't' => '\t',
                    other => char::from(*other),
                });
                rest = after;
            }
            _ => {
                let plain = rest.iter().position(ends).ok_or_else(eof)?;
                let (part, after) = rest.split_at_checked(plain).ok_or_else(eof)?;
                // Nothing is plain where the rest is a backslash alone.
                if part.is_empty() {
                    return Err(eof());
                }
                utf8(part)?;
                text.push_str(&String::from_utf8_lossy(part));
                rest = after;
            }
        }
    }
}

/// Reads an escaped unit of UTF-16.
fn unit(code: &[u8]) -> Option<u16> {
    let digits = std::str::from_utf8(code.strip_prefix(b"\\u")?).ok()?;
    if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u16::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message as _;

    use super::super::{Style, Values, write};
    use super::*;
    use crate::store::wire::etcdserverpb as pb;
    use crate::store::wire::etcdserverpb::{compare::TargetUnion, request_op::Request};
    use crate::store::wire::shapes;

    fn put(json: &str) -> Result<pb::PutRequest, String> {
        let bytes = read(&shapes::ETCDSERVERPB_PUTREQUEST, json.as_bytes())?;
        Ok(pb::PutRequest::decode(bytes.as_slice()).expect("our own bytes"))
    }

    #[test]
    fn both_names_null_and_fields_of_others_are_taken() {
        let json = r#"{"key":"Zm9v","prevKv":true,"value":null,"lease":"12","x":{"y":[1,"}"]},
            "ignore_value":false}"#;
        let wanted =
            pb::PutRequest { key: "foo".into(), prev_kv: true, lease: 12, ..Default::default() };
        assert_eq!(put(json), Ok(wanted));
    }

    #[test]
    fn bytes_are_base64_of_either_alphabet_with_or_without_its_end() {
        for (text, wanted) in [
            ("+/8=", Some(&[0xfb, 0xff][..])),
            ("-_8=", Some(&[0xfb, 0xff])),
            ("-_8", Some(&[0xfb, 0xff])),
            ("YQ", Some(b"a")),
            ("YR==", Some(b"a")),
            ("YQ=", None),
            ("YQ==\\n", None),
            ("Y\\nQ=\\n=\\r\\n", Some(b"a")),
            ("+_8=", None),
            ("Y", None),
            ("@@", None),
            ("", Some(b"")),
        ] {
            let found = put(&format!("{{\"key\":\"{text}\"}}"));
            assert_eq!(found.ok().as_ref().map(|it| it.key.as_ref()), wanted, "{text}");
        }
    }

    #[test]
    fn what_is_refused_is_told_in_etcds_words() {
        let cases = [
            (r#"{"key":"@@"}"#, r#"(line 1:8): invalid value for bytes field key: "@@""#),
            ("{\n \"prev_kv\": 1}", "(line 2:13): invalid value for bool field prevKv: 1"),
            (r#"{"lease":1.5}"#, "(line 1:10): invalid value for int64 field lease: 1.5"),
            (r#"{"lease":{}}"#, "(line 1:10): invalid value for int64 field lease: {"),
            (r#"{"key":"","key":""}"#, r#"(line 1:11): duplicate field "key""#),
            ("[1]", "syntax error (line 1:1): unexpected token ["),
            ("null", "syntax error (line 1:1): unexpected token null"),
            (r#""x""#, r#"syntax error (line 1:1): unexpected token "x""#),
            (
                r#"{"key":"\ud800x\"}"}"#,
                r#"syntax error (line 1:8): invalid escape code "x\\\"}\"}" in string"#,
            ),
        ];
        for (json, words) in cases {
            assert_eq!(put(json), Err(format!("proto: {words}")), "{json}");
        }
        let both = br#"{"compare":[{"value":"YQ==","version":"1"}]}"#;
        let words = "proto: (line 1:29): error parsing \"version\", oneof \
                     etcdserverpb.Compare.target_union is already set";
        assert_eq!(read(&shapes::ETCDSERVERPB_TXNREQUEST, both), Err(words.into()));
        let bad = b"{\"key\":\"\xff\"}";
        let words = "proto: syntax error (line 1:8): invalid UTF-8 in string";
        assert_eq!(read(&shapes::ETCDSERVERPB_PUTREQUEST, bad), Err(words.into()));
    }

    #[test]
    fn messages_are_nested_as_deep_as_the_wire_takes_them() {
        let nested = |depth: usize| {
            let start = r#"{"success":[{"requestTxn":"#.repeat(depth);
            format!("{start}{{}}{}", "}]}".repeat(depth))
        };
        let read = |depth| read(&shapes::ETCDSERVERPB_TXNREQUEST, nested(depth).as_bytes());
        let bytes = read(45).expect("deep, but not too deep");
        pb::TxnRequest::decode(bytes.as_slice()).expect("the wire takes it");
        assert_eq!(read(2000), Err("proto: exceeded max recursion depth".into()));
    }

    fn any_bytes() -> impl Strategy<Value = bytes::Bytes> {
        prop::collection::vec(any::<u8>(), 0..20).prop_map(bytes::Bytes::from)
    }

    fn any_txn() -> impl Strategy<Value = pb::TxnRequest> {
        let target = prop_oneof![
            any::<i64>().prop_map(TargetUnion::ModRevision),
            any_bytes().prop_map(TargetUnion::Value),
        ];
        let compare = (0..6, any::<i32>(), any_bytes(), prop::option::of(target), any_bytes());
        let compare = compare.prop_map(|(result, target, key, target_union, range_end)| {
            pb::Compare { result, target, key, target_union, range_end }
        });
        let range = (any_bytes(), any::<i64>(), any::<bool>(), -2..7).prop_map(
            |(key, limit, serializable, sort_order)| {
                let request =
                    pb::RangeRequest { key, limit, serializable, sort_order, ..Default::default() };
                pb::RequestOp { request: Some(Request::RequestRange(request)) }
            },
        );
        let compares = prop::collection::vec(compare, 0..4);
        (compares, prop::collection::vec(range, 0..4)).prop_map(|(compare, success)| {
            pb::TxnRequest { compare, success, failure: vec![pb::RequestOp::default()] }
        })
    }

    const PARTS: &[&[u8]] = &[
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b"\"compare\"",
        b"\"key\"",
        b"\"\\",
        b"u00",
        b"\"success\":[{\"requestPut\":{",
        b"1e",
        b"-1.",
        b"null",
        b"\xff",
        b"\\ud800",
        b" \n",
    ];

    proptest! {
        #[test]
        fn what_is_written_is_read_back(request in any_txn()) {
            let shape = &shapes::ETCDSERVERPB_TXNREQUEST;
            let json = write(shape, &request.encode_to_vec(), Style::Plain).expect("JSON");
            let bytes = read(shape, json.as_bytes()).expect("a message");
            prop_assert_eq!(pb::TxnRequest::decode(bytes.as_slice()).expect("a message"), request);
        }

        #[test]
        fn any_bytes_are_a_message_or_refused(
            parts in prop::collection::vec(prop::sample::select(PARTS), 0..30)
        ) {
            let text = parts.concat();
            let shape = &shapes::ETCDSERVERPB_TXNREQUEST;
            let mut values = Values::new();
            values.push(&text);
            while let Ok(Some(value)) = values.next(true) {
                if let Ok(bytes) = read(shape, &value) {
                    prop_assert!(pb::TxnRequest::decode(bytes.as_slice()).is_ok());
                }
            }
        }
    }
}
