//! Counting from many threads: counters, histograms, and shards of them.
//!
//! All of it is relaxed atomics: a figure may lag behind another by what happens in between, and
//! nobody waits for anybody. What many threads count at once is a shard a thread, summed when it
//! is read.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Most upper bounds of one histogram.
const BOUNDS_MAX: usize = 24;
/// Shards of what is counted by many threads.
const SHARDS: usize = 8;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Replaces it: for numbers that are not counted but known.
    pub fn set(&self, to: u64) {
        self.0.store(to, Ordering::Relaxed);
    }
}

/// What a histogram counts, and where its buckets end.
#[derive(Debug)]
pub struct Scale {
    /// Upper bounds, ascending, of values as they are observed: nanoseconds, or the unit itself.
    pub bounds: &'static [u64],
    /// How many of an observed value make one of the unit that is shown.
    pub per_unit: f64,
}

const NANOS: f64 = 1e9;
const NANOS_OF_MS: f64 = 1e6;

/// Bounds that double, from the first on.
const fn doubling<const N: usize>(first: u64) -> [u64; N] {
    let mut bounds = [first; N];
    let (mut rest, mut bound) = (bounds.as_mut_slice(), first);
    while let Some((next, later)) = rest.split_first_mut() {
        *next = bound;
        bound = bound.saturating_mul(2);
        rest = later;
    }
    bounds
}

macro_rules! scales {
    ($($(#[$doc:meta])* $name:ident: $bounds:expr, $per_unit:expr;)*) => {
        $($(#[$doc])* pub static $name: Scale = Scale { bounds: $bounds, per_unit: $per_unit };)*
    };
}

scales! {
    /// Syncs, writes, commits, requests: 1 ms to 8.192 s.
    SYNC: &doubling::<14>(1_000_000), NANOS;
    /// Applying and reading: 0.1 ms to 52.4288 s.
    APPLY: &doubling::<20>(100_000), NANOS;
    /// 100 ms to 409.6 s.
    DEFRAG: &doubling::<13>(100_000_000), NANOS;
    /// 100 ms to 51.2 s.
    #[cfg(feature = "serve")]
    SNAP_DB: &doubling::<10>(100_000_000), NANOS;
    /// 10 ms to 655.36 s.
    SNAPSHOT: &doubling::<17>(10_000_000), NANOS;
    /// 10 ms to 163.84 s.
    HASH: &doubling::<15>(10_000_000), NANOS;
    /// 0.5 ms to 4.096 s, in milliseconds.
    INDEX_PAUSE: &doubling::<14>(500_000), NANOS_OF_MS;
    /// 1 ms to 4.096 s, in milliseconds.
    PAUSE: &doubling::<13>(1_000_000), NANOS_OF_MS;
    /// 100 ms to 819.2 s, in milliseconds.
    COMPACTION: &doubling::<14>(100_000_000), NANOS_OF_MS;
    /// Times to live: 1 s to three months, observed in seconds.
    TTL: &doubling::<24>(1), 1.0;
}

/// Observed values in buckets.
#[derive(Debug)]
pub struct Histogram {
    scale: &'static Scale,
    /// The last one in use is of what is above all bounds.
    buckets: [AtomicU64; BOUNDS_MAX + 1],
    sum: AtomicU64,
}

impl Histogram {
    pub const fn new(scale: &'static Scale) -> Self {
        let sum = AtomicU64::new(0);
        Self { scale, buckets: [const { AtomicU64::new(0) }; BOUNDS_MAX + 1], sum }
    }

    pub fn observe(&self, value: u64) {
        let bucket = self.scale.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.buckets.get(bucket) {
            bucket.fetch_add(1, Ordering::Relaxed);
            self.sum.fetch_add(value, Ordering::Relaxed);
        }
    }

    pub fn time(&self, took: Duration) {
        self.observe(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    pub fn since(&self, began: Instant) {
        self.time(began.elapsed());
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.wrapping_add(bucket.load(Ordering::Relaxed)))
    }

    pub fn read(&self) -> Distribution {
        let counts = self.buckets.iter().take(self.scale.bounds.len().saturating_add(1));
        let unit = self.scale.per_unit;
        Distribution {
            bounds: self.scale.bounds.iter().map(|bound| to_f64(*bound) / unit).collect(),
            counts: counts.map(|bucket| bucket.load(Ordering::Relaxed)).collect(),
            sum: to_f64(self.sum.load(Ordering::Relaxed)) / unit,
        }
    }
}

/// A histogram as it was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    /// Upper bounds of the buckets, ascending.
    pub bounds: Vec<f64>,
    /// Values in each bucket, not cumulative; one more than bounds: the last is of what is above.
    pub counts: Vec<u64>,
    /// Sum of all values.
    pub sum: f64,
}

impl Distribution {
    /// Number of values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Adds another one of the same bounds; with others, nothing.
    pub fn add(&mut self, other: &Self) {
        if self.counts.is_empty() {
            self.clone_from(other);
        } else if self.bounds == other.bounds {
            self.counts.iter_mut().zip(&other.counts).for_each(|(count, more)| *count += more);
            self.sum += other.sum;
        }
    }
}

/// The same figures once for each of some threads.
#[derive(Debug, Default)]
pub struct Shards<T>([Alone<T>; SHARDS]);

/// In a line of the processor's cache of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Alone<T>(T);

impl<T> Shards<T> {
    /// The shard of this thread.
    pub fn own(&self) -> &T {
        let [first, ..] = &self.0;
        let own = OWN.try_with(Cell::get).unwrap_or_default();
        &self.0.get(own).unwrap_or(first).0
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|shard| &shard.0)
    }

    /// Sums a number over all shards.
    pub fn sum(&self, of: impl Fn(&T) -> u64) -> u64 {
        self.iter().fold(0, |sum, shard| sum.wrapping_add(of(shard)))
    }

    /// Sums a histogram over all shards.
    pub fn read(&self, of: impl Fn(&T) -> &Histogram) -> Distribution {
        let mut all = Distribution::default();
        self.iter().for_each(|shard| all.add(&of(shard).read()));
        all
    }
}

static NEXT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Threads take shards in turn.
    static OWN: Cell<usize> =
        Cell::new(NEXT.fetch_add(1, Ordering::Relaxed).checked_rem(SHARDS).unwrap_or_default());
}

/// Loses what is beyond 53 bits, which no figure here reaches.
#[allow(clippy::cast_precision_loss, reason = "metrics are floats")]
pub fn to_f64(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_value_counts_in_the_bucket_whose_bound_it_does_not_exceed() {
        let histogram = Histogram::new(&SYNC);
        for value in [0, 1_000_000, 1_000_001, 2_000_000, 8_192_000_000, 8_192_000_001, u64::MAX] {
            histogram.observe(value);
        }
        let read = histogram.read();
        assert_eq!(read.bounds.len(), 14);
        assert_eq!((read.bounds[0], read.bounds[13]), (0.001, 8.192));
        assert_eq!(read.counts[..3], [2, 2, 0]);
        assert_eq!(read.counts[13..], [1, 2]);
        assert_eq!(read.count(), 7);
    }

    #[test]
    fn units_are_those_that_are_shown() {
        let histogram = Histogram::new(&INDEX_PAUSE);
        histogram.time(Duration::from_millis(3));
        let read = histogram.read();
        assert_eq!((read.bounds[0], read.sum), (0.5, 3.0));
        assert_eq!((TTL.bounds.len(), TTL.bounds.last()), (24, Some(&8_388_608)));
    }

    #[test]
    fn threads_count_together() {
        let shards: Arc<Shards<Counter>> = Arc::default();
        let threads: Vec<_> = (0..2 * SHARDS)
            .map(|_| {
                let shards = Arc::clone(&shards);
                std::thread::spawn(move || (0..1000).for_each(|_| shards.own().add(1)))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(shards.sum(Counter::get), 16_000);
        assert!(shards.iter().filter(|shard| shard.get() > 0).count() > 1);
    }
}
