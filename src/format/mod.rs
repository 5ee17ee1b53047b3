//! Bytes to values and back: bbolt pages, protobuf, WAL frames, snapshot trailers.
//!
//! Nothing here does I/O or reads a clock, and no function panics whatever the bytes are.
//! Integers on disk are little-endian unless a docstring says otherwise.

#![deny(
    clippy::indexing_slicing,
    clippy::string_slice,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]
// Tests may compute with plain operators: an overflow there fails the test.
#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::as_conversions))]

#[cfg(any(feature = "live", feature = "serve"))]
pub(crate) mod certificate;
pub mod diff;
pub mod duration;
pub mod finding;
pub mod freelist;
pub mod kind;
pub mod meta;
pub mod page;
pub mod pb;
#[cfg(any(feature = "live", feature = "serve"))]
pub(crate) mod pem;
pub mod sidecar;
#[cfg(any(feature = "live", feature = "serve"))]
pub(crate) mod signature;
pub mod snap;
pub mod wal;

/// Bytes that do not hold what they should, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} at byte {offset}")]
pub struct Error {
    /// Offset in bytes from the start of the buffer that was decoded.
    pub offset: u64,
    /// What is wrong, as a noun phrase.
    pub what: &'static str,
}

impl Error {
    /// Says what is wrong at a byte offset.
    #[must_use]
    pub fn new(offset: usize, what: &'static str) -> Self {
        Self { offset: u64_of(offset), what }
    }
}

/// Widens a length or offset; a `usize` is never wider than 64 bits on a supported target.
#[must_use]
pub fn u64_of(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

/// Narrows a length or offset, saturating, so that an impossible one fails its bounds check.
#[must_use]
pub fn usize_of(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Reads `N` bytes at `at`.
#[must_use]
pub fn array_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Reads a little-endian u16 at `at`.
#[must_use]
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array_at(bytes, at).map(u16::from_le_bytes)
}

/// Reads a little-endian u32 at `at`.
#[must_use]
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array_at(bytes, at).map(u32::from_le_bytes)
}

/// Reads a little-endian u64 at `at`.
#[must_use]
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array_at(bytes, at).map(u64::from_le_bytes)
}

/// Writes bytes as lower-case hex.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |n: u8| char::from(DIGITS.get(usize::from(n)).copied().unwrap_or(b'?'));
    bytes.iter().flat_map(|b| [digit(b >> 4), digit(b & 15)]).collect()
}
