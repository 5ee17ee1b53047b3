//! What takes the room among the living keys of a running cluster, read at one revision.
//!
//! A member says how much is in use, not by what. So keys are read with their values, in pages
//! that are small in keys and, as far as the pages before tell, in bytes; one that comes out larger
//! than [`ANSWER_BYTES_MAX`] is refused here before it is in memory, and asked for by halves. Of a
//! group of keys that begin alike the first `SAMPLE_KEYS` are read, and of the rest only how many
//! they are: etcd walks all keys behind a page's first one to count them, so that reading a large
//! keyspace to its end page by page would keep it busy for long.
//!
//! Everything is read without the other members, at a follower where one is there.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::etcd::schema;
use crate::live::{self, Cause, Cluster, Page, Range, Record};
use crate::ops::cluster::{View, attend};
use crate::ops::inspect::{Depth, Groups};
use crate::ops::{Error, Progress};

/// Bytes that an answer may have.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Bytes that a page is made to have, as the pages before it were.
const PAGE_BYTES: u64 = 1 << 20;
/// Keys of a page, at most.
const PAGE_KEYS_MAX: i64 = 500;
/// Keys of the first one.
const PAGE_KEYS_FIRST: i64 = 16;
/// Keys of a group that are read before the rest is only counted.
const SAMPLE_KEYS: u64 = 2000;
/// Groups that are reported.
pub const GROUPS_SHOWN: usize = 10;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Scan {
    /// Who was asked.
    pub endpoint: String,
    /// The revision at which all of it was read.
    pub revision: i64,
    /// Living keys that were counted.
    pub keys: u64,
    /// Of these, those that were read.
    pub keys_read: u64,
    /// About how many bytes their records have.
    pub live_bytes: u64,
    /// The time was over before the last key.
    pub partial: bool,
    /// Milliseconds that it took.
    pub ms: u64,
    /// What takes most, largest first.
    pub groups: Vec<Taker>,
}

/// Keys that begin alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Taker {
    /// What they begin with; empty for keys without a slash, and for the rest of many groups.
    pub prefix: String,
    /// For people: the Kubernetes resource, where there is one.
    pub name: String,
    /// How many there are.
    pub keys: u64,
    /// Bytes of their records.
    pub bytes: u64,
    /// The bytes are those of all of them, not of the first ones and the number.
    pub exact: bool,
}

/// Asks for the keys of a range; the last number is the keys of a page.
trait Ask {
    fn page(&mut self, range: Range) -> Result<Page, live::Error>;
}

/// Reads who takes the room, for so long at most; `None` where nobody lets us read, with why.
///
/// # Errors
///
/// An interruption.
pub fn scan(
    cluster: &Arc<Cluster>,
    view: &View,
    budget: Duration,
    progress: &dyn Progress,
) -> Result<Result<Scan, String>, Error> {
    let serving = view.members.iter().filter(|member| member.serves());
    // A follower, rather than a learner, rather than who has most to do.
    let chosen = serving.min_by_key(|member| {
        (member.is_leader == Some(true), member.is_learner == Some(true), member.revision_lag)
    });
    let Some(endpoint) = chosen.and_then(|member| member.endpoint.clone()) else {
        return Ok(Err("no member serves reads".to_owned()));
    };
    progress.step("read keys", 0);
    let asked = Arc::clone(cluster);
    let at = endpoint.clone();
    // One that is told to stop leaves the thread at its page, which has a limit.
    let found = attend(progress, move || {
        let mut ask = |range: Range| asked.range_limited(&at, &range, ANSWER_BYTES_MAX);
        Ok(read(&mut ask, budget))
    })?;
    Ok(found.map(|scan| Scan { endpoint, ..scan }).map_err(|error| error.to_string()))
}

impl<F: FnMut(Range) -> Result<Page, live::Error>> Ask for F {
    fn page(&mut self, range: Range) -> Result<Page, live::Error> {
        self(range)
    }
}

/// A group of which the rest was not read.
struct Counted {
    prefix: Vec<u8>,
    keys: u64,
    read: u64,
}

fn read(ask: &mut dyn Ask, budget: Duration) -> Result<Scan, live::Error> {
    let began = Instant::now();
    let mut groups = Groups::new(Depth { kubernetes: 1, path: 2 });
    let mut scan = Scan::default();
    let mut counted: Vec<Counted> = Vec::new();
    let mut from = vec![0];
    let mut keys = PAGE_KEYS_FIRST;
    loop {
        let range = Range {
            key: from.clone(),
            end: vec![0],
            revision: scan.revision,
            limit: keys,
            serializable: true,
            ..Range::default()
        };
        let page = match ask.page(range) {
            Ok(page) => page,
            Err(error) if is_too_large(&error) && keys > 1 => {
                keys /= 2;
                continue;
            }
            // What was found so far is worth more than nothing.
            Err(_) if scan.keys_read > 0 => {
                scan.partial = true;
                break;
            }
            Err(error) => return Err(error),
        };
        scan.revision = if scan.revision == 0 { page.header.revision } else { scan.revision };
        let mut bytes = 0_u64;
        for record in &page.records {
            let size = row_bytes(record);
            let group = groups.of(&record.key);
            group.keys = group.keys.saturating_add(1);
            group.revisions = group.revisions.saturating_add(1);
            group.live_bytes = group.live_bytes.saturating_add(size);
            bytes = bytes.saturating_add(size);
            scan.keys_read = scan.keys_read.saturating_add(1);
        }
        let (Some(last), true) = (page.records.last(), page.more) else { break };
        if began.elapsed() >= budget {
            scan.partial = true;
            break;
        }
        keys = next_limit(keys, page.records.len(), bytes);
        from = [last.key.as_slice(), &[0]].concat();
        if let Some((rest, end)) = rest_of(&mut groups, &last.key) {
            let range = Range {
                key: rest.prefix.clone(),
                end: end.clone(),
                revision: scan.revision,
                count_only: true,
                serializable: true,
                ..Range::default()
            };
            let Ok(page) = ask.page(range) else {
                scan.partial = true;
                break;
            };
            let keys = u64::try_from(page.count).unwrap_or(0).max(rest.read);
            counted.push(Counted { keys, ..rest });
            if end == [0] {
                break;
            }
            from = end;
        }
    }
    conclude(&mut scan, groups, &counted);
    scan.ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(scan)
}

/// Tells whether an answer was larger than this side takes, or the member sends.
fn is_too_large(error: &live::Error) -> bool {
    // OUT_OF_RANGE and RESOURCE_EXHAUSTED, as gRPC says it.
    matches!(&error.cause, Cause::Answer { code: 8 | 11, what } if what.contains("message"))
}

/// Decides how many keys the next page is to have.
fn next_limit(keys: i64, read: usize, bytes: u64) -> i64 {
    let read = u64::try_from(read).unwrap_or(0).max(1);
    let each = (bytes / read).max(1);
    let fitting = i64::try_from(PAGE_BYTES / each).unwrap_or(PAGE_KEYS_MAX);
    // Small ones tell little of those behind them.
    fitting.min(keys.saturating_mul(2)).clamp(1, PAGE_KEYS_MAX)
}

/// Returns the group of a key, and where the next one begins, where enough of it was read and
/// everything that begins with its prefix belongs to it.
fn rest_of(groups: &mut Groups, key: &[u8]) -> Option<(Counted, Vec<u8>)> {
    let read = groups.of(key).keys;
    // What is behind the last group that is kept is one group of many prefixes.
    if !groups.has_own(key) {
        return None;
    }
    let prefix = groups.prefix_of(key).to_vec();
    if read < SAMPLE_KEYS || prefix.is_empty() {
        return None;
    }
    let whole = |rest: &[u8]| groups.prefix_of(&[&prefix, rest].concat()) == prefix;
    let is_whole = [&b"x"[..], b"x/y"].iter().all(|rest| whole(rest));
    is_whole.then(|| {
        let end = behind(&prefix);
        (Counted { prefix, keys: read, read }, end)
    })
}

/// Returns the first key that does not begin with a prefix; `[0]`, the end of all, for none.
fn behind(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if let Some(next) = last.checked_add(1) {
            end.push(next);
            return end;
        }
    }
    vec![0]
}

/// Bytes of a row with its record: what `snapshot inspect` counts.
fn row_bytes(record: &Record) -> u64 {
    const REVISION_KEY: u64 = 17;
    let varint = |number: i64| {
        let bits = u64::from(64 - u64::leading_zeros(number.cast_unsigned()));
        if number == 0 { 0 } else { 1 + bits.div_ceil(7).max(1) }
    };
    let text = |bytes: &[u8]| {
        let len = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
        varint(len).saturating_add(len.unsigned_abs())
    };
    let numbers = [record.create_revision, record.mod_revision, record.version, record.lease];
    let numbers: u64 = numbers.into_iter().map(varint).sum();
    REVISION_KEY + numbers + text(&record.key) + text(&record.value)
}

fn conclude(scan: &mut Scan, mut groups: Groups, counted: &[Counted]) {
    for counted in counted {
        let group = groups.of(&counted.prefix);
        let bytes = u128::from(group.live_bytes) * u128::from(counted.keys);
        let bytes = bytes / u128::from(counted.read.max(1));
        group.live_bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        group.keys = counted.keys;
    }
    let is_kubernetes = |prefix: &str| schema::is_kubernetes_key(prefix.as_bytes());
    let mut all = groups.into_sorted();
    // That of all other keys too, wherever it stands by its size.
    all.sort_by_key(|group| std::cmp::Reverse(group.live_bytes));
    scan.keys = all.iter().map(|group| group.keys).sum();
    scan.live_bytes = all.iter().map(|group| group.live_bytes).sum();
    scan.groups = all
        .into_iter()
        .take(GROUPS_SHOWN)
        .map(|group| {
            let prefix = group.prefix.clone().unwrap_or_default();
            let name = match &group.resource {
                Some(resource) if is_kubernetes(&prefix) => resource.clone(),
                _ => group.name(),
            };
            Taker {
                name,
                keys: group.keys,
                bytes: group.live_bytes,
                exact: group.keys == group.revisions && !scan.partial,
                prefix,
            }
        })
        .collect();
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::live::Header;
    use crate::ops::inspect::GROUPS_MAX;

    /// A keyspace, and how often it was asked for how much.
    struct Keys {
        keys: BTreeMap<Vec<u8>, Vec<u8>>,
        answer_bytes_max: usize,
        pages: usize,
        read: usize,
        slow: Duration,
    }

    impl Keys {
        fn new(keys: impl IntoIterator<Item = (String, usize)>) -> Self {
            let keys = keys.into_iter().map(|(key, size)| (key.into_bytes(), vec![7; size]));
            Self {
                keys: keys.collect(),
                answer_bytes_max: usize::MAX,
                pages: 0,
                read: 0,
                slow: Duration::ZERO,
            }
        }
    }

    impl Ask for Keys {
        fn page(&mut self, range: Range) -> Result<Page, live::Error> {
            std::thread::sleep(self.slow);
            self.pages += 1;
            assert!(range.serializable && range.limit <= PAGE_KEYS_MAX);
            assert!(range.revision == 0 || range.revision == 42);
            let is_in = |key: &Vec<u8>| range.end == [0] || *key < range.end;
            let all = self.keys.range(range.key.clone()..).filter(|(key, _)| is_in(key));
            let count = all.clone().count();
            let header = Header { revision: 42, ..Header::default() };
            let count_i64 = i64::try_from(count).unwrap();
            if range.count_only {
                return Ok(Page { header, count: count_i64, ..Page::default() });
            }
            let limit = usize::try_from(range.limit).unwrap();
            let records: Vec<Record> = all
                .take(limit)
                .map(|(key, value)| Record {
                    key: key.clone(),
                    value: value.clone(),
                    create_revision: 3,
                    mod_revision: 3,
                    version: 1,
                    lease: 0,
                })
                .collect();
            let bytes: usize = records.iter().map(|record| record.value.len()).sum();
            if bytes > self.answer_bytes_max {
                let what = "decoded message length too large".to_owned();
                return Err(live::Error::of("e", Cause::Answer { code: 11, what }));
            }
            self.read += records.len();
            Ok(Page { header, more: count > limit, records, count: count_i64 })
        }
    }

    fn pods(count: usize, size: usize) -> impl Iterator<Item = (String, usize)> {
        (0..count).map(move |n| (format!("/registry/pods/default/p{n:06}"), size))
    }

    #[test]
    fn small_keyspaces_are_read_whole() {
        let others = [("/registry/secrets/kube-system/x", 9000), ("/app/a/1", 10), ("plain", 5)];
        let others = others.map(|(key, size)| (key.to_owned(), size));
        let mut keys = Keys::new(pods(100, 1000).chain(others));
        let scan = read(&mut keys, Duration::from_secs(60)).unwrap();
        assert_eq!((scan.keys, scan.keys_read, scan.partial, scan.revision), (103, 103, false, 42));
        let names: Vec<_> =
            scan.groups.iter().map(|g| (g.name.as_str(), g.keys, g.exact)).collect();
        assert_eq!(
            names,
            [
                ("pods", 100, true),
                ("secrets", 1, true),
                ("/app/a/", 1, true),
                ("(no / in the key)", 1, true)
            ]
        );
        assert!(scan.groups[0].bytes > 100_000 && scan.groups[0].bytes < 110_000);
    }

    #[test]
    fn of_large_groups_the_rest_is_counted() {
        let many = (0..9000).map(|n| (format!("/registry/events/n/e{n:06}"), 100));
        let mut keys = Keys::new(many.chain(pods(7000, 50)).chain([("zz".to_owned(), 3)]));
        let scan = read(&mut keys, Duration::from_secs(60)).unwrap();
        assert_eq!((scan.keys, scan.partial), (16_001, false));
        assert!(keys.read < 6000, "{}", keys.read);
        let [events, pods, plain] = scan.groups.as_slice() else { panic!("{scan:?}") };
        assert_eq!((events.name.as_str(), events.keys, events.exact), ("events", 9000, false));
        assert_eq!((pods.keys, plain.keys, plain.exact), (7000, 1, true));
        let each = events.bytes / events.keys;
        assert!((100..200).contains(&each), "{each}");
    }

    #[test]
    fn keys_without_a_group_of_their_own_are_all_read() {
        let flat = (0..5000).map(|n| (format!("k{n:06}"), 10));
        let mut keys = Keys::new(flat);
        let scan = read(&mut keys, Duration::from_secs(60)).unwrap();
        assert_eq!((scan.keys, scan.keys_read), (5000, 5000));
        assert_eq!(scan.groups[0].name, "(no / in the key)");
    }

    #[test]
    fn pages_shrink_where_values_are_large() {
        let mut keys = Keys::new(pods(300, 10).chain((0..40).map(|n| (format!("z/{n}"), 1 << 20))));
        keys.answer_bytes_max = 8 << 20;
        let scan = read(&mut keys, Duration::from_secs(60)).unwrap();
        assert_eq!((scan.keys, scan.partial), (340, false));
        assert_eq!(scan.groups[0].prefix, "z/");
        // One that is too large alone ends it, and says so.
        keys.answer_bytes_max = 1 << 19;
        let scan = read(&mut keys, Duration::from_secs(60)).unwrap();
        assert_eq!((scan.keys, scan.partial), (300, true));
    }

    #[test]
    fn keys_behind_the_last_group_that_is_kept_are_counted_as_they_are() {
        let small = (0..GROUPS_MAX).map(|n| (format!("a/{n:06}/k"), 1));
        let large = (0..2100).map(|n| (format!("b/{}/{n:06}", n % 3), 1000));
        let mut keys = Keys::new(small.chain(large));
        let scan = read(&mut keys, Duration::from_secs(600)).unwrap();
        let all = u64::try_from(GROUPS_MAX + 2100).unwrap();
        assert_eq!((scan.keys, scan.keys_read, scan.partial), (all, all, false));
        let rest = &scan.groups[0];
        assert_eq!((rest.prefix.as_str(), rest.keys, rest.exact), ("", 2100, true));
        assert!((2_100_000..2_300_000).contains(&rest.bytes), "{rest:?}");
        assert_eq!(rest.name, "(other)");
    }

    #[test]
    fn the_time_is_kept_and_a_part_is_said_to_be_one() {
        let mut keys = Keys::new(pods(1500, 10));
        keys.slow = Duration::from_millis(5);
        let scan = read(&mut keys, Duration::ZERO).unwrap();
        assert_eq!((scan.keys, scan.partial, keys.pages), (16, true, 1));
        assert!(!scan.groups[0].exact);
        let mut none = Keys::new([]);
        let scan = read(&mut none, Duration::ZERO).unwrap();
        assert_eq!((scan.keys, scan.partial, scan.groups.len()), (0, false, 0));
    }

    #[test]
    fn the_end_of_a_prefix_is_behind_all_its_keys() {
        assert_eq!(behind(b"/a/"), b"/a0");
        assert_eq!(behind(&[7, 255, 255]), [8]);
        assert_eq!(behind(&[255, 255]), [0]);
    }
}
