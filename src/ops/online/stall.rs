//! For how long a member answers nothing, seen by a client: reads of one key, one after the other,
//! on a connection of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::live::{Cause, Cluster, Range, Settings};

/// Limit for one read; one that is late is asked anew, and the wait counted from the first.
const READ: Duration = Duration::from_secs(2);
/// Time between an answer and the next read.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a member may keep silent at the end before that is the result.
const GRACE: Duration = Duration::from_secs(4);

/// Reads that go on until they are told to end.
pub(super) struct Probe {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Probe {
    /// Connects, and begins to read; `None` where the member could not be read from the start.
    pub(super) fn start(settings: &Settings, endpoint: &str) -> Option<Self> {
        let settings = Settings {
            endpoints: vec![endpoint.to_owned()],
            command_timeout: READ,
            dial_timeout: settings.dial_timeout.min(READ),
            ..settings.clone()
        };
        let (stop, (ready, is_ready)) = (Arc::new(AtomicBool::new(false)), mpsc::channel());
        let (stopped, endpoint) = (Arc::clone(&stop), endpoint.to_owned());
        let named = std::thread::Builder::new().name("etcdkit-probe".into());
        let thread = named.spawn(move || {
            let Ok(cluster) = Cluster::open(settings) else { return Duration::ZERO };
            if !answers(&cluster, &endpoint) || ready.send(()).is_err() {
                return Duration::ZERO;
            }
            read(&cluster, &endpoint, &stopped)
        });
        let thread = thread.ok()?;
        is_ready.recv_timeout(READ + READ).ok()?;
        Some(Self { stop, thread })
    }

    /// Ends with the next answer; returns the longest time without one.
    pub(super) fn end(self) -> Option<Duration> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok()
    }
}

fn read(cluster: &Cluster, endpoint: &str, stop: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    let mut silent_since: Option<Instant> = None;
    let mut told: Option<Instant> = None;
    loop {
        let asked = Instant::now();
        let since = *silent_since.get_or_insert(asked);
        let is_told = stop.load(Ordering::Relaxed);
        let is_answered = answers(cluster, endpoint);
        if is_answered || told.is_some_and(|told| told.elapsed() > GRACE) {
            longest = longest.max(since.elapsed());
            silent_since = None;
            if is_told {
                return longest;
            }
        }
        if is_told {
            told.get_or_insert(asked);
        }
        // A member that refuses is asked no more often than one that answers.
        if is_answered || asked.elapsed() < PAUSE {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Tells whether a member answers from its own database; a refusal to let this user read is one.
pub(super) fn answers(cluster: &Cluster, endpoint: &str) -> bool {
    let range = Range { key: b"health".to_vec(), limit: 1, serializable: true, ..Range::default() };
    match cluster.range_at(endpoint, &range) {
        Ok(_) => true,
        Err(error) => matches!(error.cause, Cause::NotPermitted { .. }),
    }
}
