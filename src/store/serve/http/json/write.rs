//! JSON from the bytes of messages.

use std::fmt::{Display, Write as _};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use crate::store::wire::shape::{Field, Kind, Message};

/// How deep messages may be nested; none of ours is deeper than what prost reads.
const DEPTH_MAX: usize = 200;

/// How text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Style {
    /// As protobuf's own library does.
    Plain,
    /// As Go's does, which escapes what has a meaning in HTML; parts of a stream go through it.
    Html,
}

/// A value on the wire.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Writes a message whose bytes are ours; `None` where they are not of its shape.
pub(in super::super) fn write(shape: &Message, bytes: &[u8], style: Style) -> Option<String> {
    let mut out = String::with_capacity(bytes.len().saturating_mul(2));
    message(&mut out, shape, bytes, style, DEPTH_MAX)?;
    Some(out)
}

fn message(
    out: &mut String,
    shape: &Message,
    mut bytes: &[u8],
    style: Style,
    depth: usize,
) -> Option<()> {
    let depth = depth.checked_sub(1)?;
    let mut values = Vec::new();
    while bytes.has_remaining() {
        let (number, wire_type) = decode_key(&mut bytes).ok()?;
        let value = match wire_type {
            WireType::Varint => Value::Number(decode_varint(&mut bytes).ok()?),
            WireType::LengthDelimited => {
                let length = usize::try_from(decode_varint(&mut bytes).ok()?).ok()?;
                let (value, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                Value::Bytes(value)
            }
            other => {
                skip_field(other, number, &mut bytes, DecodeContext::default()).ok()?;
                continue;
            }
        };
        values.push((number, value));
    }
    out.push('{');
    let mut is_first = true;
    for field in shape.fields {
        let mut own = values.iter().filter(|(number, _)| *number == field.number).peekable();
        if own.peek().is_none() {
            continue;
        }
        if !std::mem::take(&mut is_first) {
            out.push(',');
        }
        // Names are letters.
        let _ = write!(out, "\"{}\":", field.name);
        if field.is_list {
            out.push('[');
            let mut is_first = true;
            for (_, value) in own {
                elements(out, field, value, style, depth, &mut is_first)?;
            }
            out.push(']');
        } else {
            let (_, value) = own.last()?;
            one(out, field.kind, value, style, depth)?;
        }
    }
    out.push('}');
    Some(())
}

/// Writes what one value of a list holds: numbers may come packed.
fn elements(
    out: &mut String,
    field: &Field,
    value: &Value<'_>,
    style: Style,
    depth: usize,
    is_first: &mut bool,
) -> Option<()> {
    let is_number = !matches!(field.kind, Kind::String | Kind::Bytes | Kind::Message(_));
    let mut element = |value: &Value<'_>| {
        if !std::mem::take(is_first) {
            out.push(',');
        }
        one(out, field.kind, value, style, depth)
    };
    match value {
        Value::Bytes(packed) if is_number => {
            let mut packed = *packed;
            while packed.has_remaining() {
                element(&Value::Number(decode_varint(&mut packed).ok()?))?;
            }
            Some(())
        }
        other => element(other),
    }
}

fn one(out: &mut String, kind: Kind, value: &Value<'_>, style: Style, depth: usize) -> Option<()> {
    match (kind, value) {
        (Kind::Bool, Value::Number(number)) => put(out, *number != 0),
        (Kind::Int64, Value::Number(number)) => in_quotes(out, number.cast_signed()),
        (Kind::Uint64, Value::Number(number)) => in_quotes(out, number),
        (Kind::Uint32, Value::Number(number)) => put(out, number & u64::from(u32::MAX)),
        (Kind::Enum(names), Value::Number(number)) => {
            // The low half is the number; the rest repeats its sign.
            let low = u32::try_from(number & u64::from(u32::MAX)).ok()?.cast_signed();
            match names.iter().find(|(known, _)| *known == low) {
                Some((_, name)) => in_quotes(out, name),
                None => put(out, low),
            }
        }
        (Kind::String, Value::Bytes(bytes)) => text(out, std::str::from_utf8(bytes).ok()?, style),
        (Kind::Bytes, Value::Bytes(bytes)) => {
            out.push('"');
            STANDARD.encode_string(bytes, out);
            out.push('"');
        }
        (Kind::Message(shape), Value::Bytes(bytes)) => message(out, shape, bytes, style, depth)?,
        _ => return None,
    }
    Some(())
}

// Writing to a string does not fail.

fn put(out: &mut String, value: impl Display) {
    let _ = write!(out, "{value}");
}

fn in_quotes(out: &mut String, value: impl Display) {
    let _ = write!(out, "\"{value}\"");
}

/// Writes text.
pub(in super::super) fn text(out: &mut String, text: &str, style: Style) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' if style == Style::Html => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            '\0'..' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ => out.push(character),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::store::wire::etcdserverpb as pb;
    use crate::store::wire::shapes;

    #[test]
    fn defaults_are_left_out_and_what_was_chosen_is_not() {
        let compare = pb::Compare {
            result: 3,
            target: 9,
            key: "a".into(),
            target_union: Some(pb::compare::TargetUnion::Version(0)),
            range_end: vec![0, 255].into(),
        };
        let request = pb::TxnRequest { compare: vec![compare], ..pb::TxnRequest::default() };
        let json = r#"{"compare":[{"result":"NOT_EQUAL","target":9,"key":"YQ==","version":"0","#;
        let json = json.to_owned() + r#""range_end":"AP8="}]}"#;
        let bytes = request.encode_to_vec();
        let written = write(&shapes::ETCDSERVERPB_TXNREQUEST, &bytes, Style::Plain);
        assert_eq!(written, Some(json));
    }

    #[test]
    fn text_is_escaped_as_where_it_goes_wants() {
        let all = "\"\\\u{8}\u{c}\n\r\t\u{1}<&>\u{2028}\u{e4}";
        let written = |style| {
            let mut out = String::new();
            text(&mut out, all, style);
            out
        };
        let start = "\"\\\"\\\\\\b\\f\\n\\r\\t\\u0001";
        assert_eq!(written(Style::Plain), format!("{start}<&>\u{2028}\u{e4}\""));
        assert_eq!(written(Style::Html), format!("{start}\\u003c\\u0026\\u003e\\u2028\u{e4}\""));
    }

    #[test]
    fn packed_lists_and_negative_enums_are_read() {
        let create = pb::WatchCreateRequest { filters: vec![1, 0, -7], ..Default::default() };
        let bytes = create.encode_to_vec();
        let written = write(&shapes::ETCDSERVERPB_WATCHCREATEREQUEST, &bytes, Style::Plain);
        assert_eq!(written.as_deref(), Some(r#"{"filters":["NODELETE","NOPUT",-7]}"#));
    }

    #[test]
    fn bytes_of_another_shape_are_none() {
        for bytes in [&[0x08, 0x80][..], &[0x0a, 5, 1], &[0x0a], &[0x08, 1], &[0xff; 12]] {
            let written = write(&shapes::MVCCPB_KEYVALUE, bytes, Style::Plain);
            assert_eq!(written, None, "{bytes:?}");
        }
    }
}
