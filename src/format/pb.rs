//! Protobuf wire format: walk the fields of one message, and write fields.
//!
//! It owns the encoding only: what a field number means is the caller's, and so is the depth of
//! nesting, since a walk never enters a field of bytes by itself.
//!
//! | wire type | value | read as |
//! |---|---|---|
//! | 0 | varint, 1 to 10 bytes, 7 bits each, least significant first | [`Value::Varint`] |
//! | 1 | 8 bytes, little-endian | [`Value::Fixed64`] |
//! | 2 | varint length in bytes, then that many bytes | [`Value::Bytes`] |
//! | 5 | 4 bytes, little-endian | [`Value::Fixed32`] |
//!
//! Groups (3 and 4) are an error: no message of etcd, raft or Kubernetes has one.
//!
//! Source: the published protobuf encoding specification; which zeros are written was checked
//! against etcd 3.4 to 3.7.

use super::{Error, array_at, u64_of, usize_of};

/// Largest field number that a tag may carry.
const FIELD_NUMBER_MAX: u64 = (1 << 29) - 1;

/// One value as it stands on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Wire type 0.
    Varint(u64),
    /// Wire type 1.
    Fixed64(u64),
    /// Wire type 2: a string, bytes, a message or packed numbers.
    Bytes(&'a [u8]),
    /// Wire type 5.
    Fixed32(u32),
}

/// One field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Field number, 1 to 2^29 - 1.
    pub number: u32,
    /// Offset of the field's tag in the message, in bytes.
    pub offset: usize,
    /// The value, borrowed from the message.
    pub value: Value<'a>,
}

impl<'a> Field<'a> {
    /// Reads the value as an unsigned number.
    ///
    /// # Errors
    ///
    /// Another wire type than 0.
    pub fn varint(&self) -> Result<u64, Error> {
        match self.value {
            Value::Varint(v) => Ok(v),
            _ => Err(Error::new(self.offset, "a field that should be a varint")),
        }
    }

    /// Reads the value as a two's complement `int64`.
    ///
    /// # Errors
    ///
    /// Another wire type than 0.
    pub fn int64(&self) -> Result<i64, Error> {
        self.varint().map(u64::cast_signed)
    }

    /// Reads the value as a `uint32`.
    ///
    /// # Errors
    ///
    /// Another wire type than 0, or a number above 2^32 - 1.
    pub fn uint32(&self) -> Result<u32, Error> {
        u32::try_from(self.varint()?)
            .map_err(|_| Error::new(self.offset, "a number wider than 32 bits"))
    }

    /// Reads the value as a `bool`: any number but 0 is true.
    ///
    /// # Errors
    ///
    /// Another wire type than 0.
    pub fn boolean(&self) -> Result<bool, Error> {
        self.varint().map(|v| v != 0)
    }

    /// Reads the value as bytes.
    ///
    /// # Errors
    ///
    /// Another wire type than 2.
    pub fn bytes(&self) -> Result<&'a [u8], Error> {
        match self.value {
            Value::Bytes(v) => Ok(v),
            _ => Err(Error::new(self.offset, "a field that should be bytes")),
        }
    }
}

/// Walks the fields of a message in the order in which they stand; ends after the first error.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// Starts a walk over the fields of one message.
#[must_use]
pub fn fields(bytes: &[u8]) -> Fields<'_> {
    Fields { bytes, at: 0 }
}

impl<'a> Fields<'a> {
    fn field(&mut self) -> Result<Field<'a>, Error> {
        let offset = self.at;
        let tag = self.varint()?;
        let number = tag >> 3;
        if number == 0 || number > FIELD_NUMBER_MAX {
            return Err(Error::new(offset, "a tag with a field number out of range"));
        }
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = usize_of(self.varint()?);
                let end = self.at.checked_add(length);
                let bytes = end.and_then(|end| self.bytes.get(self.at..end)).ok_or_else(|| {
                    Error::new(offset, "a field that is longer than the message around it")
                })?;
                self.at = self.at.saturating_add(length);
                Value::Bytes(bytes)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.array()?)),
            _ => return Err(Error::new(offset, "a tag with an unknown wire type")),
        };
        Ok(Field { number, offset, value })
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let array = array_at(self.bytes, self.at)
            .ok_or_else(|| Error::new(self.at, "the end of the message inside a number"))?;
        self.at = self.at.saturating_add(N);
        Ok(array)
    }

    fn varint(&mut self) -> Result<u64, Error> {
        // Nearly every tag, length and version is one byte.
        if let Some(byte) = self.bytes.get(self.at).filter(|byte| **byte < 0x80) {
            self.at = self.at.saturating_add(1);
            return Ok(u64::from(*byte));
        }
        let (value, length) = decode_varint(self.bytes, self.at)?;
        self.at = self.at.saturating_add(length);
        Ok(value)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<Field<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.at = self.bytes.len();
        }
        Some(field)
    }
}

/// Reads a varint at `at`; returns the number and how many bytes it takes.
///
/// Padding with empty groups is accepted up to ten bytes, as Go's decoders do.
///
/// # Errors
///
/// The end of the bytes before the last group, or more than 64 bits.
pub fn decode_varint(bytes: &[u8], at: usize) -> Result<(u64, usize), Error> {
    let rest = bytes.get(at..).unwrap_or_default();
    let mut value = 0_u64;
    for (shift, (length, byte)) in (0_u32..).step_by(7).zip((1..=10).zip(rest)) {
        let group = u64::from(byte & 0x7f);
        if shift == 63 && *byte > 1 {
            break;
        }
        value |= group.wrapping_shl(shift);
        if byte & 0x80 == 0 {
            return Ok((value, length));
        }
    }
    let what = if rest.len() < 10 {
        "the end of the message inside a varint"
    } else {
        "a varint of more than 64 bits"
    };
    Err(Error::new(at, what))
}

/// Writes a varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// Writes a number field, unless it is zero: the shape of proto3.
pub fn put_u64(out: &mut Vec<u8>, field: u32, value: u64) {
    if value != 0 {
        put_u64_always(out, field, value);
    }
}

/// Writes a number field, zero too: the shape of proto2 fields that have a presence.
pub fn put_u64_always(out: &mut Vec<u8>, field: u32, value: u64) {
    put_varint(out, u64::from(field) << 3);
    put_varint(out, value);
}

/// Writes an `int64` field, unless it is zero.
pub fn put_i64(out: &mut Vec<u8>, field: u32, value: i64) {
    put_u64(out, field, value.cast_unsigned());
}

/// Writes a field of bytes, unless it is empty: the shape of proto3.
pub fn put_bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    if !value.is_empty() {
        put_bytes_always(out, field, value);
    }
}

/// Writes a field of bytes, empty too: for messages, whose presence counts.
pub fn put_bytes_always(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    put_bytes_head(out, field, value.len());
    out.extend_from_slice(value);
}

/// Writes what stands before so many bytes of a field: the caller writes the bytes.
pub fn put_bytes_head(out: &mut Vec<u8>, field: u32, len: usize) {
    put_varint(out, (u64::from(field) << 3) | 2);
    put_varint(out, u64_of(len));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn walk(bytes: &[u8]) -> Result<Vec<Field<'_>>, Error> {
        fields(bytes).collect()
    }

    #[test]
    fn reads_every_wire_type() {
        let bytes =
            [0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 1, 0, 0, 0, 0x21, 2, 0, 0, 0, 0, 0, 0, 0];
        let read = walk(&bytes).unwrap();
        assert_eq!(read[0], Field { number: 1, offset: 0, value: Value::Varint(150) });
        assert_eq!(read[1], Field { number: 2, offset: 3, value: Value::Bytes(b"hi") });
        assert_eq!(read[2], Field { number: 3, offset: 7, value: Value::Fixed32(1) });
        assert_eq!(read[3], Field { number: 4, offset: 12, value: Value::Fixed64(2) });
    }

    #[test]
    fn refuses_what_is_no_message() {
        let bad: [&[u8]; 9] = [
            &[0x00, 0x01],
            &[0x07],
            &[0x0b],
            &[0x08],
            &[0x08, 0x80],
            &[0x0a, 0x02, 0x00],
            &[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            &[0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02],
            &[0x0d, 1, 2, 3],
        ];
        for bytes in bad {
            assert!(walk(bytes).is_err(), "{bytes:02x?}");
        }
        assert_eq!(walk(&[0x08, 0x80]).unwrap_err().offset, 1);
    }

    #[test]
    fn numbers_survive() {
        for value in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX >> 1, u64::MAX] {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            assert_eq!(decode_varint(&out, 0).unwrap(), (value, out.len()));
        }
        assert_eq!(decode_varint(&[0x80, 0x00], 0).unwrap(), (0, 2));
    }

    #[test]
    fn zeros_are_written_only_on_demand() {
        let mut out = Vec::new();
        put_u64(&mut out, 1, 0);
        put_i64(&mut out, 1, 0);
        put_bytes(&mut out, 1, b"");
        assert!(out.is_empty());
        put_u64_always(&mut out, 5, 0);
        put_bytes_always(&mut out, 4, b"");
        assert_eq!(out, [0x28, 0x00, 0x22, 0x00]);
        out.clear();
        put_i64(&mut out, 3, -1);
        assert_eq!(walk(&out).unwrap()[0].int64().unwrap(), -1);
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let fields: Vec<_> = fields(&bytes).collect();
            prop_assert!(fields.len() <= bytes.len());
        }

        #[test]
        fn what_is_written_is_read(
            number in 1_u32..(1 << 29),
            value in any::<u64>(),
            bytes in proptest::collection::vec(any::<u8>(), 0..50),
        ) {
            let mut out = Vec::new();
            put_u64_always(&mut out, number, value);
            put_bytes_always(&mut out, number, &bytes);
            let read = walk(&out).unwrap();
            prop_assert_eq!(read[0].varint().unwrap(), value);
            prop_assert_eq!(read[1].bytes().unwrap(), &bytes[..]);
        }
    }
}
