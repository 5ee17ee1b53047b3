//! An etcd in your process, on etcd's own files.
//!
//! One member: what it writes, a real etcd opens, at any time, also after `kill -9`. No network is
//! in here, no raft protocol, and no async runtime; answers are waited for or polled.
//!
//! How a write goes:
//!
//! ```text
//! caller -> check -> queue -> log thread: number, encode, write, fdatasync
//!                             apply thread: etcd::apply -> mvcc (memory), answers, watchers
//!                             backend thread: rows since the last commit -> bolt::db, one batch
//! ```
//!
//! 1. The log is the truth. Nothing is seen - answer, read or watch event - before the entry that
//!    makes it is synced.
//! 2. The backend lags, and never runs ahead of the synced log: before each of its commits the log
//!    holds a synced HardState whose commit index is not below the backend's consistent index.
//!    Data and the index that covers it are in one batch.
//! 3. Entries are applied by [`crate::etcd::apply`], as the offline tools do; same log, same rows.
//! 4. Reads never wait for writers' disks, and no reader, compaction, defrag or snapshot stalls a
//!    writer: what takes long works on a view, in small steps.
//! 5. After a disk error the store writes no more and says so; it reads on.
//!
//! Files: `log` writes the WAL, `open` makes a directory fit to go on, `index` knows where each
//! key's records are, `mvcc` is the state, `engine` the threads, `watch` the fan-out, `lease` the
//! countdown, `guard` what is checked before a request is logged, `directory` the users, roles and
//! leases as the API shows them, `auto_compact` when old revisions are to be forgotten.
//!
//! For users: what is named here, in [`crate::store`] itself: [`Store`], what it is told
//! ([`Options`]), what it takes ([`Put`], [`Range`], [`Txn`], [`Create`], ...) and what it answers
//! ([`Answer`] of [`answer`], [`Response`], [`Error`]). The rest may change at any time.
//!
//! Source: the behaviour of etcd 3.5.35, 3.6.16 and 3.7.3.

#![deny(
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

pub mod answer;
pub mod auto_compact;
pub mod clock;
#[cfg(test)]
pub(crate) mod crash;
#[allow(unreachable_pub, reason = "its face is for the store, not for its users")]
pub(crate) mod directory;
pub mod engine;
pub mod error;
pub mod figures;
pub mod guard;
#[doc(hidden)]
pub mod index;
pub mod kv;
#[allow(unreachable_pub, reason = "its face is for the store, not for its users")]
pub(crate) mod lease;
pub mod lines;
#[allow(unreachable_pub, reason = "its face is for the store, not for its users")]
pub(crate) mod log;
#[allow(unreachable_pub, reason = "its face is for the store, not for its users")]
pub(crate) mod mvcc;
#[doc(hidden)]
pub mod open;
pub mod pending;
#[cfg(feature = "serve")]
pub mod serve;
mod setters;
mod threads;
pub mod watch;
#[cfg(feature = "serve")]
pub mod wire;

pub use answer::Answer;
pub use auto_compact::Retention;
pub use clock::{Clock, SystemClock};
pub use directory::AuthStatus;
pub use engine::{
    Done, LeaseStatus, NewUser, Options, Outcome, Snapshot, Status, Store, Submission, Watch,
};
pub use error::{Code, Error};
pub use figures::Figures;
pub use guard::{Caller, Quota, User};
pub use kv::{Commit, Event, Kv};
pub use open::{Compat, Identity, OpenError};
pub use pending::Pending;
pub use watch::{Create, Limits, NO_WATCHER, Response};

// What requests and answers are made of, so that nobody has to look for it in other layers.
pub use crate::bolt::db::Options as DatabaseOptions;
pub use crate::bolt::disk::Disk;
pub use crate::etcd::apply::Refusal;
pub use crate::etcd::hash::HashKv;
pub use crate::etcd::members::{ClusterId, Member, MemberId};
pub use crate::etcd::record::KeyValue;
pub use crate::etcd::request::{
    Alarm, Body, Compaction, Compare, Comparison, DeleteRange, LeaseGrant, LeaseRevoke, Op,
    Operand, Put, Range, Txn,
};
pub use crate::etcd::revision::Revision;
pub use crate::etcd::rows::{Downgrade, Permission};
pub use crate::etcd::schema::Version;
