//! Probes of a store's disk: one that records what is done and said, in one order, and one that
//! makes a change fail.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use etcdkit::bolt::disk::{Event, Probe, Verdict};

/// What happened: to the disk, or to somebody who waits.
#[derive(Clone, Debug)]
pub(crate) enum Step<M> {
    Disk(Event),
    Mark(M),
}

/// Records what is done to the disk, and marks between it.
#[derive(Debug)]
pub(crate) struct Recorder<M> {
    steps: Mutex<Vec<Step<M>>>,
}

impl<M> Default for Recorder<M> {
    fn default() -> Self {
        Self { steps: Mutex::new(Vec::new()) }
    }
}

impl<M> Recorder<M> {
    /// Notes that something was said.
    pub(crate) fn mark(&self, mark: M) {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).push(Step::Mark(mark));
    }

    pub(crate) fn take(&self) -> Vec<Step<M>> {
        std::mem::take(&mut *self.steps.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<M: std::fmt::Debug + Send> Probe for Recorder<M> {
    fn before(&self, _: &Event) -> Verdict {
        Verdict::Go
    }

    fn after(&self, event: Event) {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner).push(Step::Disk(event));
    }
}

/// How a change fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// There is no room.
    Full,
    /// The disk is broken.
    Broken,
    /// A write ends in the middle, since there is no room for more.
    Short,
}

/// The causes as the operating system tells them.
impl Fault {
    pub(crate) fn error(self) -> io::Error {
        let errno = match self {
            Self::Full | Self::Short => rustix::io::Errno::NOSPC,
            Self::Broken => rustix::io::Errno::IO,
        };
        errno.into()
    }
}

/// Makes the n-th change fail, or all from it on.
#[derive(Debug)]
pub(crate) struct Faulty {
    count: AtomicU64,
    at: u64,
    fault: Fault,
    /// Whether all later changes fail too.
    stays: bool,
    struck: AtomicBool,
    what: Mutex<Option<String>>,
    names: Mutex<Names>,
}

/// Which files there are by name, and which lost theirs.
#[derive(Debug, Default)]
struct Names {
    files: BTreeMap<PathBuf, Vec<u64>>,
    nameless: BTreeSet<u64>,
    /// What failed first was a change of a file without a name.
    has_struck_nameless: bool,
}

impl Names {
    fn note(&mut self, event: Event) {
        match event {
            Event::Create { file, path } | Event::Open { file, path } => {
                self.files.entry(path).or_default().push(file);
            }
            Event::Rename { from, to } => {
                let files = self.files.remove(&from).unwrap_or_default();
                self.nameless.extend(self.files.insert(to, files).unwrap_or_default());
            }
            Event::Remove(path) => {
                self.nameless.extend(self.files.remove(&path).unwrap_or_default());
            }
            _ => {}
        }
    }

    fn is_nameless(&self, event: &Event) -> bool {
        match event {
            Event::Write { file, .. } | Event::SetLen { file, .. } | Event::Sync { file } => {
                self.nameless.contains(file)
            }
            _ => false,
        }
    }
}

impl Faulty {
    pub(crate) fn new(at: u64, fault: Fault, stays: bool) -> Self {
        let (count, struck) = (AtomicU64::new(0), AtomicBool::new(false));
        let (what, names) = (Mutex::new(None), Mutex::default());
        Self { count, at, fault, stays, struck, what, names }
    }

    /// Counts only.
    pub(crate) fn never() -> Self {
        Self::new(u64::MAX, Fault::Broken, false)
    }

    /// Changes that were asked for.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    pub(crate) fn has_struck(&self) -> bool {
        self.struck.load(Ordering::SeqCst)
    }

    /// Tells whether what failed first was of no use to anybody any more: a file without a name.
    pub(crate) fn has_struck_nameless(&self) -> bool {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).has_struck_nameless
    }

    /// What failed first.
    pub(crate) fn what(&self) -> Option<String> {
        self.what.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Probe for Faulty {
    fn before(&self, event: &Event) -> Verdict {
        let number = self.count.fetch_add(1, Ordering::SeqCst);
        if number != self.at && !(self.stays && number > self.at) {
            return Verdict::Go;
        }
        if !self.struck.swap(true, Ordering::SeqCst) {
            let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
            names.has_struck_nameless = names.is_nameless(event);
            drop(names);
            *self.what.lock().unwrap_or_else(PoisonError::into_inner) = Some(describe(event));
        }
        match (self.fault, event) {
            (Fault::Short, Event::Write { bytes, .. }) => {
                Verdict::Part(bytes.len() / 2, self.fault.error())
            }
            _ => Verdict::Fail(self.fault.error()),
        }
    }

    fn after(&self, event: Event) {
        self.names.lock().unwrap_or_else(PoisonError::into_inner).note(event);
    }
}

/// A change in few words.
pub(crate) fn describe(event: &Event) -> String {
    match event {
        Event::Write { file, offset, bytes } => {
            let kind = if bytes.iter().all(|byte| *byte == 0) { "Zeros" } else { "Write" };
            format!("{kind} {file} {offset}+{}", bytes.len())
        }
        Event::MakeDir(path)
        | Event::SyncDir(path)
        | Event::Remove(path)
        | Event::RemoveDir(path) => {
            format!("{} {}", kind(event), name(path))
        }
        Event::Create { file, path } | Event::Open { file, path } => {
            format!("{} {file} {}", kind(event), name(path))
        }
        Event::Exchange(one, other) => format!("Exchange {} {}", name(one), name(other)),
        Event::Rename { from, to } => format!("Rename {} {}", name(from), name(to)),
        Event::SetLen { file, len } => format!("SetLen {file} {len}"),
        Event::Sync { file } => format!("Sync {file}"),
    }
}

fn kind(event: &Event) -> &'static str {
    match event {
        Event::MakeDir(_) => "MakeDir",
        Event::SyncDir(_) => "SyncDir",
        Event::Remove(_) => "Remove",
        Event::RemoveDir(_) => "RemoveDir",
        Event::Create { .. } => "Create",
        Event::Open { .. } => "Open",
        _ => "",
    }
}

fn name(path: &Path) -> String {
    let last: Vec<_> = path.iter().rev().take(2).collect();
    last.into_iter().rev().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/")
}
