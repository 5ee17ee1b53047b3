//! What etcdctl and etcdutl print, character by character.

#[cfg(feature = "live")]
mod answers;
#[cfg(feature = "live")]
mod go_values;
mod table;
mod text;

#[cfg(feature = "live")]
pub(super) use answers::{Format, Printed, alarms, disarmed, hash_kvs, healths, members, statuses};
#[cfg(feature = "live")]
pub(super) use go_values::duration;
pub(super) use table::table;
pub(super) use text::size;

#[cfg(all(test, feature = "live"))]
mod tests;
