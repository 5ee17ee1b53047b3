//! What messages and methods are made of, for who has to handle them without knowing them.

use std::fmt;

/// A kind of message.
pub struct Message {
    /// Full name.
    pub name: &'static str,
    /// Fields, in the order in which they are declared.
    pub fields: &'static [Field],
}

impl fmt::Debug for Message {
    /// Prints the name alone: messages hold one another.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A field of a message.
#[derive(Debug)]
pub struct Field {
    /// Number on the wire.
    pub number: u32,
    /// Name in the proto.
    pub name: &'static str,
    /// The same in JSON's fashion.
    pub json_name: &'static str,
    /// What it holds.
    pub kind: Kind,
    /// Whether there may be several values.
    pub is_list: bool,
    /// Full name of the group of which only one field is set.
    pub oneof: Option<&'static str>,
}

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A truth value.
    Bool,
    /// A number of 64 bits with a sign.
    Int64,
    /// A number of 32 bits.
    Uint32,
    /// A number of 64 bits.
    Uint64,
    /// Text.
    String,
    /// Bytes.
    Bytes,
    /// A number of 32 bits with a sign; some have names.
    Enum(&'static [(i32, &'static str)]),
    /// A message.
    Message(&'static Message),
}

/// A method of a service.
#[derive(Debug)]
pub struct Method {
    /// Path of its calls.
    pub path: &'static str,
    /// What it takes.
    pub input: &'static Message,
    /// What it gives.
    pub output: &'static Message,
    /// Whether it takes several.
    pub takes_many: bool,
    /// Whether it gives several.
    pub gives_many: bool,
}

pub(super) const fn one(
    number: u32,
    name: &'static str,
    json_name: &'static str,
    kind: Kind,
) -> Field {
    Field { number, name, json_name, kind, is_list: false, oneof: None }
}

pub(super) const fn list(
    number: u32,
    name: &'static str,
    json_name: &'static str,
    kind: Kind,
) -> Field {
    Field { is_list: true, ..one(number, name, json_name, kind) }
}

pub(super) const fn choice(
    oneof: &'static str,
    number: u32,
    name: &'static str,
    json_name: &'static str,
    kind: Kind,
) -> Field {
    Field { oneof: Some(oneof), ..one(number, name, json_name, kind) }
}
