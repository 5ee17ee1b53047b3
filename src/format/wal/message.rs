//! Messages inside log records and raft snapshots.
//!
//! Numbers are written always, zeros too, as etcd 3.4 to 3.6 do; 3.7 leaves out what is not set and
//! reads both. Reading takes a number that is not there for 0 and names the first unknown field.
//! Bytes must therefore never be compared between versions, only what they say.
//!
//! Source: etcd `etcdserverpb.Metadata`, `walpb.Snapshot`; raft `raftpb`, 3.6.0 and 3.7.0.

use crate::format::{Error, pb};

/// Makes a message of numbers only: `field number, field name` for each.
macro_rules! messages {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$field_doc:meta])* $number:literal $field:ident,)* }
    )*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: u64,)*
            /// The first field that no known etcd writes.
            pub unknown_field: Option<u32>,
        }

        impl $name {
            /// Encodes the message, zeros too.
            #[must_use]
            pub fn encode(&self) -> Vec<u8> {
                let mut out = Vec::new();
                $(pb::put_u64_always(&mut out, $number, self.$field);)*
                out
            }

            /// Reads the message; a field that is not there is 0.
            ///
            /// # Errors
            ///
            /// Bytes that are no protobuf message, or a field of the wrong wire type.
            pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
                let mut message = Self::default();
                for field in pb::fields(bytes) {
                    let field = field?;
                    match field.number {
                        $($number => message.$field = field.varint()?,)*
                        n => message.unknown_field = message.unknown_field.or(Some(n)),
                    }
                }
                Ok(message)
            }
        }
    )*};
}

messages! {
    /// Whose log it is; the bytes are the same in every segment of a log.
    Metadata {
        /// Member id.
        1 node_id,
        /// Cluster id.
        2 cluster_id,
    }

    /// What raft must not forget.
    HardState {
        /// Current term.
        1 term,
        /// Member that got this member's vote in the term; 0 for none.
        2 vote,
        /// Index of the last entry known to be committed.
        3 commit,
    }
}

/// Kinds of entries: what [`Entry::data`] is.
pub mod entry_kind {
    /// A request of the server, or nothing when a leader begins its term.
    pub const NORMAL: u64 = 0;
    /// [`super::ConfChange`]
    pub const CONF_CHANGE: u64 = 1;
    /// A change of several members at once; no etcd writes it.
    pub const CONF_CHANGE_V2: u64 = 2;
}

/// One entry of the raft log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry<'a> {
    /// One of [`entry_kind`].
    pub kind: u64,
    /// Term in which it was proposed.
    pub term: u64,
    /// Place in the log, from 1.
    pub index: u64,
    /// What to apply.
    pub data: &'a [u8],
    /// The first field that no known etcd writes.
    pub unknown_field: Option<u32>,
}

impl<'a> Entry<'a> {
    /// Encodes the message: numbers always, data unless it is empty.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.data.len().saturating_add(36));
        self.encode_head(&mut out);
        out.extend_from_slice(self.data);
        out
    }

    /// Appends the message up to its data, which is to follow.
    pub(super) fn encode_head(&self, out: &mut Vec<u8>) {
        pb::put_u64_always(out, 1, self.kind);
        pb::put_u64_always(out, 2, self.term);
        pb::put_u64_always(out, 3, self.index);
        if !self.data.is_empty() {
            pb::put_bytes_head(out, 4, self.data.len());
        }
    }

    /// Reads the message; a number that is not there is 0.
    ///
    /// # Errors
    ///
    /// Bytes that are no protobuf message, or a field of the wrong wire type.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Error> {
        let mut entry = Self::default();
        for field in pb::fields(bytes) {
            let field = field?;
            match field.number {
                1 => entry.kind = field.varint()?,
                2 => entry.term = field.varint()?,
                3 => entry.index = field.varint()?,
                4 => entry.data = field.bytes()?,
                n => entry.unknown_field = entry.unknown_field.or(Some(n)),
            }
        }
        Ok(entry)
    }
}

/// Kinds of membership changes.
pub mod change_kind {
    /// A voter is added, or a learner made one.
    pub const ADD_NODE: u64 = 0;
    /// A member is removed.
    pub const REMOVE_NODE: u64 = 1;
    /// A member's peer URLs change.
    pub const UPDATE_NODE: u64 = 2;
    /// A learner is added.
    pub const ADD_LEARNER_NODE: u64 = 3;
}

/// One membership change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConfChange<'a> {
    /// Id of the request; 0 in a log that bootstrap or restore wrote.
    pub id: u64,
    /// One of [`change_kind`].
    pub kind: u64,
    /// The member's id.
    pub node_id: u64,
    /// The member as JSON; empty for a removal.
    pub context: &'a [u8],
    /// The first field that no known etcd writes.
    pub unknown_field: Option<u32>,
}

impl<'a> ConfChange<'a> {
    /// Encodes the message: numbers always, context unless it is empty.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        pb::put_u64_always(&mut out, 1, self.id);
        pb::put_u64_always(&mut out, 2, self.kind);
        pb::put_u64_always(&mut out, 3, self.node_id);
        pb::put_bytes(&mut out, 4, self.context);
        out
    }

    /// Reads the message; a number that is not there is 0.
    ///
    /// # Errors
    ///
    /// Bytes that are no protobuf message, or a field of the wrong wire type.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Error> {
        let mut change = Self::default();
        for field in pb::fields(bytes) {
            let field = field?;
            match field.number {
                1 => change.id = field.varint()?,
                2 => change.kind = field.varint()?,
                3 => change.node_id = field.varint()?,
                4 => change.context = field.bytes()?,
                n => change.unknown_field = change.unknown_field.or(Some(n)),
            }
        }
        Ok(change)
    }
}

/// Who votes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfState {
    /// Voters, ascending.
    pub voters: Vec<u64>,
    /// Members without a vote.
    pub learners: Vec<u64>,
    /// Voters of the configuration that is being left; no etcd writes any.
    pub voters_outgoing: Vec<u64>,
    /// Voters that become learners when it is left; no etcd writes any.
    pub learners_next: Vec<u64>,
    /// Whether it is left by itself; no etcd sets it.
    pub auto_leave: bool,
    /// The first field that no known etcd writes.
    pub unknown_field: Option<u32>,
}

impl ConfState {
    /// Encodes the message: one field for each id, and `auto_leave` always.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let lists = [&self.voters, &self.learners, &self.voters_outgoing, &self.learners_next];
        for (number, ids) in (1_u32..).zip(lists) {
            for id in ids {
                pb::put_u64_always(&mut out, number, *id);
            }
        }
        pb::put_u64_always(&mut out, 5, u64::from(self.auto_leave));
        out
    }

    /// Reads the message; ids may stand one by one or packed.
    ///
    /// # Errors
    ///
    /// Bytes that are no protobuf message, or a field of the wrong wire type.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut state = Self::default();
        for field in pb::fields(bytes) {
            let field = field?;
            match field.number {
                1 => push_ids(&mut state.voters, &field)?,
                2 => push_ids(&mut state.learners, &field)?,
                3 => push_ids(&mut state.voters_outgoing, &field)?,
                4 => push_ids(&mut state.learners_next, &field)?,
                5 => state.auto_leave = field.boolean()?,
                n => state.unknown_field = state.unknown_field.or(Some(n)),
            }
        }
        Ok(state)
    }
}

fn push_ids(ids: &mut Vec<u64>, field: &pb::Field<'_>) -> Result<(), Error> {
    let pb::Value::Bytes(packed) = field.value else {
        ids.push(field.varint()?);
        return Ok(());
    };
    let mut at = 0_usize;
    while at < packed.len() {
        let (id, length) =
            pb::decode_varint(packed, at).map_err(|error| Error::new(field.offset, error.what))?;
        ids.push(id);
        at = at.saturating_add(length);
    }
    Ok(())
}

/// Says that a snapshot file covers the log up to an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Index of the last entry that it covers; 0 at the head of a new log.
    pub index: u64,
    /// Term of that entry.
    pub term: u64,
    /// Who voted then; etcd 3.4 writes none, and nothing is written at the head of a new log.
    pub conf_state: Option<ConfState>,
    /// The first field that no known etcd writes.
    pub unknown_field: Option<u32>,
}

impl Snapshot {
    /// Encodes the message, zeros too.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        pb::put_u64_always(&mut out, 1, self.index);
        pb::put_u64_always(&mut out, 2, self.term);
        if let Some(conf_state) = &self.conf_state {
            pb::put_bytes_always(&mut out, 3, &conf_state.encode());
        }
        out
    }

    /// Reads the message; a number that is not there is 0.
    ///
    /// # Errors
    ///
    /// Bytes that are no protobuf message, or a field of the wrong wire type.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut snapshot = Self::default();
        for field in pb::fields(bytes) {
            let field = field?;
            match field.number {
                1 => snapshot.index = field.varint()?,
                2 => snapshot.term = field.varint()?,
                3 => snapshot.conf_state = Some(decode_conf_state(&field)?),
                n => snapshot.unknown_field = snapshot.unknown_field.or(Some(n)),
            }
        }
        Ok(snapshot)
    }
}

/// Reads a ConfState inside another message; offsets are those of the outer one.
pub(in crate::format) fn decode_conf_state(field: &pb::Field<'_>) -> Result<ConfState, Error> {
    ConfState::decode(field.bytes()?).map_err(|error| Error::new(field.offset, error.what))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ids_may_be_packed_and_unknown_fields_are_named() {
        let state = ConfState::decode(&[0x0a, 2, 1, 2, 0x08, 3, 0x10, 9, 0x30, 1]).unwrap();
        assert_eq!((state.voters, state.learners), (vec![1, 2, 3], vec![9]));
        assert_eq!(state.unknown_field, Some(6));
        assert!(ConfState::decode(&[0x0a, 1, 0x80]).is_err());
        assert_eq!(HardState::decode(b"").unwrap(), HardState::default());
        assert_eq!(Metadata::decode(&[0x18, 1]).unwrap().unknown_field, Some(3));
    }

    #[test]
    fn zeros_are_written() {
        assert_eq!(Snapshot::default().encode(), [0x08, 0, 0x10, 0]);
        assert_eq!(ConfState::default().encode(), [0x28, 0]);
        assert_eq!(Entry::default().encode(), [0x08, 0, 0x10, 0, 0x18, 0]);
        assert_eq!(HardState::default().encode(), [0x08, 0, 0x10, 0, 0x18, 0]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Entry::decode(&bytes).is_ok(), ConfChange::decode(&bytes).is_ok());
            let _ = (Snapshot::decode(&bytes).is_ok(), Metadata::decode(&bytes).is_ok());
        }

        #[test]
        fn what_is_written_is_read(
            numbers in any::<[u64; 3]>(),
            lists in any::<[Vec<u64>; 4]>(),
            auto_leave in any::<bool>(),
            data in any::<Vec<u8>>(),
        ) {
            let [kind, term, index] = numbers;
            let entry = Entry { kind, term, index, data: &data, unknown_field: None };
            let bytes = entry.encode();
            prop_assert_eq!(Entry::decode(&bytes).unwrap(), entry);
            let [voters, learners, voters_outgoing, learners_next] = lists;
            let conf_state = Some(ConfState {
                voters, learners, voters_outgoing, learners_next, auto_leave, unknown_field: None,
            });
            let snapshot = Snapshot { index, term, conf_state, unknown_field: None };
            prop_assert_eq!(Snapshot::decode(&snapshot.encode()).unwrap(), snapshot);
        }
    }
}
