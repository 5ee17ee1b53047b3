//! Reads the state that a backend holds: the small buckets whole, and the records in order of
//! revisions, as `keys` has read them.
//!
//! Source: etcd `mvcc.store.restore`, 3.6.16, 3.7.3.

use std::ops::ControlFlow;

use bytes::Bytes;

use super::attached::Attached;
use super::compact::Compacting;
use super::hash::Hashes;
use super::keys::Keys;
use super::pins::Pins;
use super::rows::{BUCKETS, Rows};
use super::save::Saving;
use super::tail::Tail;
use super::{Mvcc, Tally};
use crate::bolt::db::View;
use crate::etcd::apply::{Rules, StoredRole, StoredUser};
use crate::etcd::members::Member;
use crate::etcd::request::Span;
use crate::etcd::rows::{self, Alarm, Lease};
use crate::etcd::schema;
use crate::store::error::Error;
use crate::store::open::Compat;

impl Mvcc {
    /// Reads the state that a backend holds, of which bucket `key` was read already. A compaction
    /// that it had begun is there to be worked off.
    ///
    /// Rules with [`Rules::writes_conf_state`] off are those of a database of 3.4, in which the
    /// term is not written either.
    ///
    /// # Errors
    /// It cannot be read, or holds what no etcd writes.
    pub fn load(view: View, keys: Keys, rules: Rules, compat: Compat) -> Result<Self, Error> {
        let small = load_rows(&view)?;
        let number = |key: &[u8]| match small.get(schema::META, key) {
            None => Ok(0),
            Some(row) => rows::decode_u64(row).map_err(|error| bad(schema::META, key, &error)),
        };
        let applied = (number(schema::META_CONSISTENT_INDEX)?, number(schema::META_TERM)?);
        let compaction = |key: &[u8]| match small.get(schema::META, key) {
            None => Ok(-1),
            Some(row) => {
                rows::decode_compact_revision(row).map_err(|error| bad(schema::META, key, &error))
            }
        };
        let scheduled = compaction(schema::META_SCHEDULED_COMPACT)?;
        let finished = compaction(schema::META_FINISHED_COMPACT)?;
        let (index, last) = keys.finish()?;
        let revision = last.max(scheduled).max(finished).max(1);
        let accepted = scheduled.max(finished);

        let mut attached = Attached::default();
        if small.each(schema::LEASE).next().is_some() {
            index.each_latest(Span::From(&[]), &mut |key, latest| {
                let lease = latest.lease;
                if lease != 0 && small.get(schema::LEASE, &lease.to_be_bytes()).is_some() {
                    attached.attach(lease, key);
                }
                ControlFlow::Continue(())
            });
        }
        Ok(Self {
            rules,
            compat,
            index,
            tail: Tail::new(revision),
            view,
            rows: small,
            attached,
            revision,
            applied,
            compacting: Compacting {
                accepted,
                scheduled_saved: accepted,
                finished,
                finished_saved: finished,
            },
            saving: Saving::new(revision, applied.0),
            pins: Pins::default(),
            hashes: Hashes::default(),
            tally: Tally::default(),
        })
    }
}

pub(super) fn bad(bucket: &[u8], key: &[u8], error: &dyn std::fmt::Display) -> Error {
    let (bucket, key) = (bucket.escape_ascii(), key.escape_ascii());
    Error::Storage(format!("row {key} of bucket {bucket} of the database: {error}"))
}

fn load_rows(view: &View) -> Result<Rows, Error> {
    let mut small = Rows::default();
    for name in BUCKETS {
        let mut fault = None;
        let read = view.each(name, &[], &mut |key, value| match check_row(name, key, value) {
            Ok(()) => {
                let value = Bytes::copy_from_slice(value);
                small.load(name, Bytes::copy_from_slice(key), Some(value));
                ControlFlow::Continue(())
            }
            Err(error) => {
                fault = Some(error);
                ControlFlow::Break(())
            }
        });
        read.map_err(|error| Error::Storage(error.to_string()))?;
        fault.map_or(Ok(()), Err)?;
    }
    Ok(small)
}

/// Makes sure that a row is understood.
fn check_row(bucket: &[u8], key: &[u8], value: &[u8]) -> Result<(), Error> {
    let unknown = |field: Option<u32>| match field {
        None => Ok(()),
        Some(field) => Err(format!("it has field {field}, which no known etcd writes")),
    };
    let text = |error: crate::format::Error| error.to_string();
    let checked = match bucket {
        schema::ALARM => {
            Alarm::decode(key, value).map_err(text).and_then(|alarm| unknown(alarm.unknown_field))
        }
        schema::LEASE => {
            Lease::decode(key, value).map_err(text).and_then(|lease| unknown(lease.unknown_field))
        }
        schema::AUTH_USERS => StoredUser::decode(value).map(drop).map_err(text),
        schema::AUTH_ROLES => StoredRole::decode(value).map(drop).map_err(text),
        schema::MEMBERS => Member::decode(value).map(drop),
        schema::AUTH if key == schema::AUTH_ENABLED => {
            rows::decode_auth_enabled(value).map(drop).map_err(text)
        }
        schema::AUTH if key == schema::AUTH_REVISION => {
            rows::decode_u64(value).map(drop).map_err(text)
        }
        _ => Ok(()),
    };
    checked.map_err(|what| bad(bucket, key, &what))
}
