//! What every byte of a database file is used for.
//!
//! The parts are disjoint, and their sum is the file's size: whole pages go by their kind, and the
//! bytes of leaf pages by what they hold. Overflow counts with the page that it belongs to.

use serde::Serialize;

use super::tally::Sums;
use crate::bolt::File;
use crate::bolt::walk::Walk;
use crate::format::meta::{NO_FREELIST, PAGE_SIZE_MIN};
use crate::format::page::{BUCKET_BYTES, ELEMENT_BYTES, HEADER_BYTES};
use crate::format::u64_of;
use crate::ops::digest::TRAILER_BYTES;

/// Bytes by use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Space {
    /// Leaf pages: names of living keys.
    pub live_keys: u64,
    /// Leaf pages: values of living keys.
    pub live_values: u64,
    /// Leaf pages: what else stands in their records, revisions above all.
    pub live_overhead: u64,
    /// Leaf pages: superseded records and tombstones, whole.
    pub history: u64,
    /// Leaf pages: rows of bucket `key` that are no record of a key.
    pub other_records: u64,
    /// Leaf pages: rows of the other buckets, and names and headers of all buckets.
    pub other_buckets: u64,
    /// Leaf pages: page headers and elements.
    pub page_headers: u64,
    /// Leaf pages: what nothing stands in.
    pub page_tails: u64,
    /// Branch pages, whole.
    pub branch: u64,
    /// The two meta pages.
    pub meta: u64,
    /// Pages of the freelist.
    pub freelist: u64,
    /// Free pages.
    pub free: u64,
    /// Pages that are neither in use nor free.
    pub leaked: u64,
    /// Pages that are in use and cannot be: damaged, or cut off by the file's end.
    pub unusable: u64,
    /// Pages that nothing which could be read leads to, in a file of which some could not.
    pub unknown: u64,
    /// Bytes behind the last page that was ever used. A server grows its file ahead of its needs,
    /// and does it again with the next write after it was cut off.
    pub past_end: u64,
    /// The sha256 of a saved snapshot.
    pub trailer: u64,
}

impl Space {
    /// Splits a file up, from one walk over it and what was counted on the way.
    #[must_use]
    pub(super) fn of(file: &File, walk: &Walk, sums: &Sums) -> Self {
        let size = file.source().len();
        let page = u64::from(file.page_size()).max(1);
        let pages = |count: u64| count.saturating_mul(page);
        // Where the database ends by its meta, and where its last whole page does.
        let end = file.meta().size_bytes().min(size);
        let whole = pages(end / page);
        let rest = size.saturating_sub(end);
        let is_sealed = size % 512 == TRAILER_BYTES && rest >= TRAILER_BYTES;
        let trailer = if is_sealed { TRAILER_BYTES } else { 0 };
        let leaf_overflow = walk.overflow_pages.saturating_sub(walk.branch_overflow_pages);
        let leaf = pages(walk.leaf_pages.saturating_add(leaf_overflow));
        let headers = walk.leaf_pages.saturating_add(walk.inline_buckets);
        let headers = headers.saturating_mul(u64_of(HEADER_BYTES));
        let elements = sums.rows.saturating_add(sums.buckets);
        let headers = headers.saturating_add(elements.saturating_mul(u64_of(ELEMENT_BYTES)));
        let buckets = sums.bucket_name_bytes;
        let buckets = buckets.saturating_add(sums.buckets.saturating_mul(u64_of(BUCKET_BYTES)));
        let other_buckets = sums.other_bucket_bytes.saturating_add(buckets);
        let live_keys = sums.live_key_bytes;
        let live_values =
            sums.live_bytes.saturating_sub(live_keys).saturating_sub(sums.live_overhead_bytes);
        let used = [sums.live_bytes, sums.history_bytes, sums.other_record_bytes, other_buckets];
        let used = used.into_iter().fold(0, u64::saturating_add);
        // Rows of a damaged page may lie over each other and its headers; no byte counts twice.
        let page_headers = headers.min(leaf.saturating_sub(used));
        // Behind what cannot be read may stand anything. Only a freelist says what is surely free.
        let is_listed = file.meta().freelist != NO_FREELIST && walk.freelist_pages > 0;
        let others = &walk.others;
        let (free, leaked, unknown) = match (walk.tree_is_whole(), is_listed) {
            (true, _) => (others.free, others.leaked, 0),
            (false, true) => (others.free, 0, others.leaked),
            (false, false) => (0, 0, others.free.saturating_add(others.leaked)),
        };
        Self {
            live_keys,
            live_values,
            live_overhead: sums.live_overhead_bytes,
            history: sums.history_bytes,
            other_records: sums.other_record_bytes,
            other_buckets,
            page_headers,
            page_tails: leaf.saturating_sub(used).saturating_sub(page_headers),
            branch: pages(walk.branch_pages.saturating_add(walk.branch_overflow_pages)),
            meta: pages(2).min(whole),
            freelist: pages(walk.freelist_pages),
            free: pages(free),
            leaked: pages(leaked),
            unknown: pages(unknown),
            unusable: pages(others.unusable).saturating_add(end.saturating_sub(whole)),
            past_end: rest.saturating_sub(trailer),
            trailer,
        }
    }

    /// Every part: its name in JSON, what it is, and its bytes.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, &'static str, u64); 17] {
        // Whole pages are a server's doing; anything else was appended.
        let past_end =
            if self.trailer == 0 && self.past_end.is_multiple_of(u64::from(PAGE_SIZE_MIN)) {
                "preallocated, comes back with the next write"
            } else {
                "behind the last page"
            };
        [
            ("live_values", "values of living keys", self.live_values),
            ("live_keys", "names of living keys", self.live_keys),
            ("live_overhead", "revisions, versions and leases of living keys", self.live_overhead),
            ("history", "history: superseded records, tombstones", self.history),
            ("other_records", "markers and unreadable records", self.other_records),
            ("other_buckets", "other buckets: leases, members, auth, ...", self.other_buckets),
            ("page_headers", "headers of leaf pages", self.page_headers),
            ("page_tails", "unused ends of leaf pages", self.page_tails),
            ("branch", "branch pages", self.branch),
            ("meta", "meta pages", self.meta),
            ("freelist", "freelist pages", self.freelist),
            ("free", "free pages", self.free),
            ("leaked", "leaked pages", self.leaked),
            ("unknown", "not known: what leads there is damaged", self.unknown),
            ("unusable", "damaged pages", self.unusable),
            ("past_end", past_end, self.past_end),
            ("trailer", "sha256 trailer", self.trailer),
        ]
    }

    /// Sum of all parts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.parts().iter().fold(0, |sum, (.., bytes)| sum.saturating_add(*bytes))
    }
}
