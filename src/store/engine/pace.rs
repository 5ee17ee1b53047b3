//! Background work gives way to writers.
//!
//! While somebody writes, a piece of background work is given a small share of the processors: it
//! tells its [`Pace`] often how far it got, with no lock held that a writer may want, and is put to
//! sleep for many times as long as it was on a processor. While nobody writes it goes at full
//! speed, also when it was just put to sleep. What takes long all the same gets more and more, so
//! that it ends however much is written.
//!
//! What counts is the time that the work's own thread was on a processor, what others say that
//! they spent for it, and the time for which it kept the disk busy.

use std::cell::Cell;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use super::Shared;

/// Parts of the processors' time of which background work gets one.
const PARTS: u32 = 32;
/// A thread gets a fifth of a processor at most, of however many.
const PRICE_MIN: u32 = 4;
/// Doublings of the share after which the work does not give way any more: it must end, also where
/// there always are writers.
const DOUBLINGS_MAX: u64 = 5;
/// How long after a write there still is a writer.
const QUIET: Duration = Duration::from_millis(10);
/// How long background work sleeps before it looks whether there still is a writer.
const LOOK: Duration = Duration::from_millis(5);
/// Shorter sleeps are left for later.
const SHORTEST: Duration = Duration::from_millis(1);
/// Time between two looks at what was taken; also about the longest that writers wait for it.
const STRIDE: Duration = Duration::from_micros(500);
/// Time among writers after which the share is doubled, and again.
const PATIENCE: Duration = Duration::from_secs(30);

/// Tells whether somebody writes.
#[derive(Debug)]
pub(super) struct Writers {
    start: Instant,
    /// Batches on their way through log and state.
    writing: AtomicUsize,
    /// When the last one got there, in nanoseconds since the start.
    last_ns: AtomicU64,
}

/// A batch is on its way.
#[derive(Debug)]
pub(super) struct WritingGuard<'a>(&'a Writers);

impl Default for Writers {
    fn default() -> Self {
        Self { start: Instant::now(), writing: AtomicUsize::new(0), last_ns: AtomicU64::new(0) }
    }
}

impl Writers {
    /// Notes that somebody writes, until the guard is dropped and shortly after.
    pub(super) fn begin(&self) -> WritingGuard<'_> {
        self.writing.fetch_add(1, Ordering::Relaxed);
        WritingGuard(self)
    }

    fn are_there(&self) -> bool {
        let last = Duration::from_nanos(self.last_ns.load(Ordering::Relaxed));
        self.writing.load(Ordering::Relaxed) > 0
            || (!last.is_zero() && self.start.elapsed().saturating_sub(last) < QUIET)
    }
}

impl Drop for WritingGuard<'_> {
    fn drop(&mut self) {
        let now = u64::try_from(self.0.start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.0.last_ns.store(now, Ordering::Relaxed);
        self.0.writing.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Time that this thread was on a processor.
pub(super) fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    seconds.saturating_add(Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0)))
}

/// The pace of one piece of background work, on its own thread.
#[derive(Debug)]
pub(super) struct Pace<'a> {
    shared: &'a Shared,
    account: Cell<Account>,
    start: Instant,
    looked: Cell<Instant>,
}

impl<'a> Pace<'a> {
    /// Begins; to be called on the thread that does the work.
    pub(super) fn new(shared: &'a Shared) -> Self {
        let cores = available_parallelism().map_or(1, NonZero::get);
        let start = Instant::now();
        let account = Account::new(u32::try_from(cores).unwrap_or(u32::MAX), thread_time());
        Self { shared, account: Cell::new(account), start, looked: Cell::new(start) }
    }

    /// Lets writers go first. Called often, with no lock held.
    pub(super) fn yield_to_writers(&self) {
        if self.looked.get().elapsed() >= STRIDE {
            self.pay();
        }
    }

    /// The same after others spent this time for the work, on a processor.
    pub(super) fn charge(&self, spent: Duration) {
        self.update(|account| account.charge(spent));
        self.pay();
    }

    /// The same after the work kept the disk busy for this time.
    pub(super) fn charge_disk(&self, busy: Duration) {
        self.update(|account| account.charge_disk(busy));
        self.pay();
    }

    /// Whether the work cannot wait: writers go first no more, but for the disk.
    pub(super) fn hurry(&self, hurries: bool) {
        self.update(|account| account.hurries = hurries);
    }

    fn pay(&self) {
        loop {
            let are_there = self.shared.writers.are_there();
            let (now, used) = (self.start.elapsed(), thread_time());
            let rest = self.update(|account| account.settle(now, used, are_there));
            if rest < SHORTEST || self.shared.health.refusal().is_some() {
                break;
            }
            self.shared.rest(rest.min(LOOK));
        }
        self.looked.set(Instant::now());
    }

    fn update<T>(&self, change: impl FnOnce(&mut Account) -> T) -> T {
        let mut account = self.account.get();
        let done = change(&mut account);
        self.account.set(account);
        done
    }
}

/// What was taken and what is owed for it.
#[derive(Clone, Copy, Debug)]
struct Account {
    /// Time to sleep for each time on a processor.
    price: u32,
    /// Time that must pass before more is taken.
    owed: Duration,
    /// The thread's time when it was looked at last, and when that was.
    used: Duration,
    now: Duration,
    /// Time that was spent among writers.
    hindered: Duration,
    /// Time on a processor costs nothing.
    hurries: bool,
}

impl Account {
    fn new(cores: u32, used: Duration) -> Self {
        let price = PARTS.checked_div(cores).unwrap_or(PARTS).max(PRICE_MIN);
        let (owed, now, hindered) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        Self { price, owed, used, now, hindered, hurries: false }
    }

    fn charge(&mut self, spent: Duration) {
        if self.hurries {
            return;
        }
        let doublings = self.hindered.as_secs().checked_div(PATIENCE.as_secs()).unwrap_or(0);
        if doublings >= DOUBLINGS_MAX {
            return;
        }
        let price = u32::try_from(doublings).ok().and_then(|by| self.price.checked_shr(by));
        let price = price.unwrap_or(0).max(1);
        self.owed = self.owed.saturating_add(spent.saturating_mul(price));
    }

    fn charge_disk(&mut self, busy: Duration) {
        self.owed = self.owed.saturating_add(busy);
    }

    /// Takes note of the time; returns how long to sleep. Nothing is owed where there is no writer,
    /// and time that passed unused is not kept for later.
    fn settle(&mut self, now: Duration, used: Duration, are_writers: bool) -> Duration {
        let passed = now.saturating_sub(self.now);
        let spent = used.saturating_sub(self.used);
        (self.now, self.used) = (now, used);
        if !are_writers {
            self.owed = Duration::ZERO;
            return Duration::ZERO;
        }
        self.hindered = self.hindered.saturating_add(passed);
        self.owed = self.owed.saturating_sub(passed);
        self.charge(spent);
        self.owed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread that works whenever it need not sleep; a clock of its own.
    struct Worker {
        account: Account,
        now: Duration,
        used: Duration,
    }

    impl Worker {
        fn new(cores: u32) -> Self {
            let account = Account::new(cores, Duration::ZERO);
            Self { account, now: Duration::ZERO, used: Duration::ZERO }
        }

        /// Works and sleeps for so long; returns the time worked.
        fn run(&mut self, time: Duration, are_writers: bool) -> Duration {
            let (end, before) = (self.now + time, self.used);
            while self.now < end {
                self.now += STRIDE;
                self.used += STRIDE;
                loop {
                    let rest = self.account.settle(self.now, self.used, are_writers);
                    if rest < SHORTEST {
                        break;
                    }
                    self.now += rest.min(LOOK);
                }
            }
            self.used - before
        }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn among_writers_work_takes_a_small_share_of_all_processors() {
        for (cores, of_one) in [(1, 0.031), (2, 0.062), (8, 0.25)] {
            let worked = Worker::new(cores).run(10 * SECOND, true).as_secs_f64() / 10.0;
            assert!((of_one * 0.7..of_one * 1.1).contains(&worked), "{worked} of a core");
        }
        let many = Worker::new(1000).run(10 * SECOND, true);
        assert!(many < 3 * SECOND, "a fifth of one at most: {many:?}");
    }

    #[test]
    fn without_writers_work_does_not_rest() {
        let mut worker = Worker::new(2);
        assert!(worker.run(SECOND, false) >= SECOND);
        worker.run(SECOND, true);
        assert!(worker.run(SECOND, false) >= SECOND, "nothing is owed for before");
        assert!(worker.run(SECOND, true) < SECOND / 10, "no time was saved up");
    }

    #[test]
    fn what_takes_long_gets_more() {
        let mut worker = Worker::new(2);
        let first = worker.run(PATIENCE, true);
        let second = worker.run(PATIENCE, true);
        assert!(second > first * 3 / 2, "{first:?}, then {second:?}");
        let third = worker.run(PATIENCE, true);
        assert!(second < third && third < PATIENCE / 2, "writers still go first: {third:?}");
        worker.run(PATIENCE * 3, true);
        assert!(worker.run(PATIENCE, true) >= PATIENCE, "it ends, whoever writes");
    }

    #[test]
    fn what_hurries_waits_for_the_disk_only() {
        let mut worker = Worker::new(2);
        worker.account.hurries = true;
        assert!(worker.run(SECOND, true) >= SECOND);
        worker.account.charge_disk(SECOND);
        assert!(worker.run(SECOND, true) < SECOND / 100);
    }

    #[test]
    fn what_others_spend_and_the_disk_count() {
        let mut account = Account::new(2, Duration::ZERO);
        account.charge(SECOND);
        account.charge_disk(SECOND);
        assert_eq!(account.settle(Duration::ZERO, Duration::ZERO, true), 17 * SECOND);
        assert_eq!(account.settle(5 * SECOND, Duration::ZERO, true), 12 * SECOND);
        assert_eq!(account.settle(6 * SECOND, Duration::ZERO, false), Duration::ZERO);
        assert_eq!(account.settle(7 * SECOND, Duration::ZERO, true), Duration::ZERO);
    }

    #[test]
    fn there_are_writers_while_they_write_and_shortly_after() {
        let writers = Writers::default();
        assert!(!writers.are_there());
        let (one, two) = (writers.begin(), writers.begin());
        drop(one);
        std::thread::sleep(QUIET * 2);
        assert!(writers.are_there());
        drop(two);
        assert!(writers.are_there() || writers.start.elapsed() > QUIET * 2);
        std::thread::sleep(QUIET * 2);
        assert!(!writers.are_there());
    }
}
