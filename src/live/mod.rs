//! Connections to running etcds.
//!
//! Invariants:
//!
//! 1. Every wait has a limit, name resolution included.
//! 2. One connection an endpoint: a client that balances would answer for any one of them.
//! 3. Callers are synchronous; the runtime lives and ends inside a [`Cluster`].
//! 4. A failure says at which endpoint and why ([`Cause`]), told apart as far as can be known.
//! 5. A password is in no message and in no debug text.
//!
//! [`Settings`] say where and as whom, [`Cluster`] asks, [`Stream`] is a snapshot that comes in.

mod access;
mod certificate;
mod cluster;
mod diagnose;
mod dial;
mod endpoint;
mod error;
mod health;
mod http;
mod keys;
mod metrics;
mod round;
mod settings;
mod stream;
mod tls;
mod trace;
mod upkeep;

pub use access::Access;
pub use cluster::{
    Alarm, AlarmKind, Alarms, Answers, Cluster, HashKv, Header, Member, Members, Read, Status,
};
pub use endpoint::{Endpoint, Place, Security};
pub use error::{Cause, Certificate, Error, Problem, Side};
pub use health::{Health, Trouble};
pub use keys::{Changed, Page, Range, Record};
pub use round::Round;
pub use settings::{Credentials, Settings, Tls, Token};
pub use stream::{Limits, Piece, Stream};
pub use upkeep::{is_compacted, is_future, is_out_of_space, is_uncertain};
