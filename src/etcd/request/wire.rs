//! How messages of requests are read and written, field by field.
//!
//! A message borrows from the entry. Reading refuses a field that is not in the message's table,
//! bounds how deep messages nest ([`DEPTH_MAX`]) and how many of them one request holds
//! ([`ITEMS_MAX`]), so memory stays within a small multiple of the entry. Writing follows proto3:
//! ascending fields, zeros and empty bytes left out, an embedded message written when it is there.

use crate::format::{self, pb};

/// Deepest nesting of messages: transactions in transactions, where etcd's own limit is 128.
pub const DEPTH_MAX: u32 = 320;
/// Most repeated items in one request: compares, operations, checkpoints, URLs.
pub const ITEMS_MAX: u32 = 100_000;

/// Why a request could not be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Bytes that are no such message.
    #[error("{message} that cannot be read: {error}")]
    Malformed {
        /// The message's name in etcd.
        message: &'static str,
        /// What is wrong, and where in the message.
        error: format::Error,
    },
    /// A field that no known etcd writes.
    #[error("field {field} of {message}, which no known etcd writes")]
    UnknownField {
        /// The message's name in etcd.
        message: &'static str,
        /// The field's number.
        field: u32,
    },
    /// An embedded message that stands twice, or two requests in one.
    #[error("field {field} of {message} beside another one like it")]
    Twice {
        /// The message's name in etcd.
        message: &'static str,
        /// The second field's number.
        field: u32,
    },
    /// Messages nested deeper than [`DEPTH_MAX`].
    #[error("messages nested more than {DEPTH_MAX} deep")]
    TooDeep,
    /// More repeated items than [`ITEMS_MAX`].
    #[error("more than {ITEMS_MAX} items in one request")]
    TooMany,
    /// A request without anything to do.
    #[error("a request of no kind")]
    Empty,
    /// A request that has no id, where etcd looks for one.
    #[error("a request without an id")]
    NoId,
}

/// What one request may still use up.
#[derive(Debug)]
pub(super) struct Budget {
    depth: u32,
    items: u32,
}

impl Default for Budget {
    fn default() -> Self {
        Self { depth: DEPTH_MAX, items: ITEMS_MAX }
    }
}

impl Budget {
    fn item(&mut self) -> Result<(), Fault> {
        self.items = self.items.checked_sub(1).ok_or(Fault::TooMany)?;
        Ok(())
    }
}

/// A message of a request.
pub(super) trait Message<'a>: Default {
    /// Its name in etcd.
    const NAME: &'static str;

    /// Takes one field.
    fn take(&mut self, field: &pb::Field<'a>, budget: &mut Budget) -> Result<(), Fault>;

    /// Appends its fields.
    fn put(&self, out: &mut Vec<u8>);

    /// Reads the message.
    fn read(bytes: &'a [u8], budget: &mut Budget) -> Result<Self, Fault> {
        budget.depth = budget.depth.checked_sub(1).ok_or(Fault::TooDeep)?;
        let mut message = Self::default();
        for field in pb::fields(bytes) {
            message.take(&field.map_err(malformed::<Self>)?, budget)?;
        }
        budget.depth = budget.depth.saturating_add(1);
        Ok(message)
    }
}

/// Makes the error of bytes that are no `M`.
pub(super) fn malformed<'a, M: Message<'a>>(error: format::Error) -> Fault {
    Fault::Malformed { message: M::NAME, error }
}

/// A value that a field can have.
pub(super) trait Wire<'a>: Sized {
    /// Takes a field of message `M`.
    fn take<M: Message<'a>>(
        &mut self,
        field: &pb::Field<'a>,
        budget: &mut Budget,
    ) -> Result<(), Fault>;

    /// Appends the field.
    fn put(&self, number: u32, out: &mut Vec<u8>);
}

macro_rules! scalars {
    ($($kind:ty, $read:ident, $write:expr;)*) => {$(
        impl<'a> Wire<'a> for $kind {
            fn take<M: Message<'a>>(
                &mut self,
                field: &pb::Field<'a>,
                _: &mut Budget,
            ) -> Result<(), Fault> {
                *self = field.$read().map_err(malformed::<M>)?;
                Ok(())
            }

            fn put(&self, number: u32, out: &mut Vec<u8>) {
                let write: fn(&mut Vec<u8>, u32, $kind) = $write;
                write(out, number, *self);
            }
        }
    )*};
}

scalars! {
    u64, varint, pb::put_u64;
    i64, int64, pb::put_i64;
    bool, boolean, |out, number, value| pb::put_u64(out, number, u64::from(value));
}

impl<'a> Wire<'a> for &'a [u8] {
    fn take<M: Message<'a>>(&mut self, field: &pb::Field<'a>, _: &mut Budget) -> Result<(), Fault> {
        *self = field.bytes().map_err(malformed::<M>)?;
        Ok(())
    }

    fn put(&self, number: u32, out: &mut Vec<u8>) {
        pb::put_bytes(out, number, self);
    }
}

impl<'a> Wire<'a> for Vec<&'a [u8]> {
    fn take<M: Message<'a>>(
        &mut self,
        field: &pb::Field<'a>,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        budget.item()?;
        self.push(field.bytes().map_err(malformed::<M>)?);
        Ok(())
    }

    fn put(&self, number: u32, out: &mut Vec<u8>) {
        self.iter().for_each(|item| pb::put_bytes_always(out, number, item));
    }
}

impl<'a, T: Message<'a>> Wire<'a> for Option<T> {
    fn take<M: Message<'a>>(
        &mut self,
        field: &pb::Field<'a>,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        if self.is_some() {
            return Err(Fault::Twice { message: M::NAME, field: field.number });
        }
        *self = Some(T::read(field.bytes().map_err(malformed::<M>)?, budget)?);
        Ok(())
    }

    fn put(&self, number: u32, out: &mut Vec<u8>) {
        if let Some(message) = self {
            put_message(message, number, out);
        }
    }
}

impl<'a, T: Message<'a>> Wire<'a> for Vec<T> {
    fn take<M: Message<'a>>(
        &mut self,
        field: &pb::Field<'a>,
        budget: &mut Budget,
    ) -> Result<(), Fault> {
        budget.item()?;
        self.push(T::read(field.bytes().map_err(malformed::<M>)?, budget)?);
        Ok(())
    }

    fn put(&self, number: u32, out: &mut Vec<u8>) {
        self.iter().for_each(|message| put_message(message, number, out));
    }
}

/// Appends an embedded message, empty too. It is written where it is to stand, and its length then
/// brought before it.
pub(super) fn put_message<'a, T: Message<'a>>(message: &T, number: u32, out: &mut Vec<u8>) {
    pb::put_varint(out, (u64::from(number) << 3) | 2);
    let start = out.len();
    message.put(out);
    let end = out.len();
    pb::put_varint(out, format::u64_of(end.saturating_sub(start)));
    let length_bytes = out.len().saturating_sub(end);
    if let Some(written) = out.get_mut(start..) {
        written.rotate_right(length_bytes);
    }
}

/// Makes messages: `number field: type` for each field; a lifetime where they borrow.
macro_rules! messages {
    ($(
        $(#[$doc:meta])*
        $name:ident $(<$life:lifetime>)? = $etcd:literal {
            $($(#[$field_doc:meta])* $number:literal $field:ident: $kind:ty,)*
        }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name $(<$life>)? {
            $($(#[$field_doc])* pub $field: $kind,)*
        }

        impl<'a> $crate::etcd::request::wire::Message<'a> for $name $(<$life>)? {
            const NAME: &'static str = $etcd;

            #[allow(unused_variables, reason = "a message without fields uses none")]
            fn take(
                &mut self,
                field: &$crate::format::pb::Field<'a>,
                budget: &mut $crate::etcd::request::wire::Budget,
            ) -> Result<(), $crate::etcd::request::wire::Fault> {
                match field.number {
                    $($number => $crate::etcd::request::wire::Wire::take::<Self>(
                        &mut self.$field, field, budget,
                    ),)*
                    field => Err($crate::etcd::request::wire::Fault::UnknownField {
                        message: $etcd,
                        field,
                    }),
                }
            }

            #[allow(unused_variables, reason = "a message without fields uses none")]
            fn put(&self, out: &mut Vec<u8>) {
                $($crate::etcd::request::wire::Wire::put(&self.$field, $number, out);)*
            }
        }
    )*};
}

pub(super) use messages;
