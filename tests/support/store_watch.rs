//! Watchers of a store, and whether what they are told is what happened: every event of their keys
//! once, in order, all of a revision together, none after a progress that covers it.

use std::time::Instant;

use etcdkit::etcd::record::KeyValue;
use etcdkit::etcd::request::span;
use etcdkit::store::engine::{Store, Watch};
use etcdkit::store::watch::{Create, Response};
use etcdkit::store::{Event, Kv};

use crate::power_history::Dice;
use crate::store_driver::{SOON, nobody};
use crate::store_model::{Model, Record};

/// A watcher, and what it was told.
#[derive(Debug)]
struct Watcher {
    create: Create,
    /// Revision of the store when it was created.
    at: i64,
    /// Compact revision then.
    compacted: i64,
    id: Option<i64>,
    /// `Some` where it ended, with the revision of the compaction.
    ended: Option<i64>,
    told: Vec<(Event, Option<Kv>)>,
    /// A response of this revision was cut, and more of it must follow.
    cut: Option<i64>,
}

/// Watchers in streams that nobody reads until they end.
#[derive(Debug, Default)]
pub(crate) struct Watchers {
    streams: Vec<(Watch, Vec<Watcher>)>,
    /// Events that were compared.
    pub(crate) compared: usize,
}

const SPANS: &[(&str, &str)] = &[
    ("a", ""),
    ("a", "b"),
    ("", "\0"),
    ("b", "\0"),
    ("c", "e"),
    ("d", ""),
    ("\0", ""),
    ("e", "a"),
];

impl Watchers {
    /// Begins to watch something, on a new stream or one that is there.
    pub(crate) fn begin(&mut self, store: &Store, model: &Model, dice: &mut Dice) {
        if self.streams.is_empty() || dice.below(3) == 0 {
            self.streams.push((store.watch(&nobody()), Vec::new()));
        }
        let place = dice.below(self.streams.len());
        let (stream, watchers) = &mut self.streams[place];
        let (key, range_end) = SPANS[dice.below(SPANS.len())];
        let near = i64::try_from(dice.below(40)).unwrap();
        let start = match dice.below(4) {
            0 => 0,
            1 => model.revision + 4 - near / 4,
            _ => model.revision - near,
        };
        let create = Create::default().key(key).range_end(range_end).start_revision(start);
        let create = create.prev_kv(dice.flip()).no_put(dice.below(6) == 0);
        let create = create.no_delete(dice.below(6) == 0).fragment(dice.below(3) == 0);
        stream.create(create.clone());
        watchers.push(Watcher {
            create,
            at: model.revision,
            compacted: model.compacted,
            id: None,
            ended: None,
            told: Vec::new(),
            cut: None,
        });
    }

    /// Asks all streams how far they are.
    pub(crate) fn progress(&self) {
        for (stream, _) in &self.streams {
            stream.request_progress();
        }
    }

    /// Reads all streams to their end and compares.
    pub(crate) fn end(&mut self, model: &Model) {
        for (stream, mut watchers) in std::mem::take(&mut self.streams) {
            let began = Instant::now();
            while !watchers.iter().all(|watcher| watcher.is_complete(model)) {
                let response = stream.next(SOON).expect("a stream that is open");
                let Some(response) = response else {
                    panic!("nothing more comes: {:#?}", behind(&watchers, model));
                };
                take(&mut watchers, response, model);
                assert!(began.elapsed() < SOON, "{:#?}", behind(&watchers, model));
            }
            let live = watchers.iter().filter(|watcher| watcher.ended.is_none());
            let starts: Vec<i64> = live.map(|watcher| watcher.from()).collect();
            if !starts.is_empty() && starts.iter().all(|start| *start <= model.revision) {
                // All is told: a progress must come in the end, and say so.
                // Unless a compaction ends the last of them meanwhile.
                while watchers.iter().any(|watcher| watcher.ended.is_none()) {
                    stream.request_progress();
                    let limit = std::time::Duration::from_millis(20);
                    let response = stream.next(limit).expect("a stream that is open");
                    let is_progress = response.as_ref().is_some_and(is_progress);
                    let newest = response.as_ref().map_or(0, |response| response.revision);
                    if let Some(response) = response {
                        take(&mut watchers, response, model);
                    }
                    if is_progress && newest == model.revision {
                        break;
                    }
                    let late = began.elapsed() > SOON;
                    assert!(!late, "no progress at {}: {watchers:#?}", model.revision);
                }
            }
            // Whatever still comes must fit as well.
            while let Ok(Some(response)) = stream.next(std::time::Duration::ZERO) {
                take(&mut watchers, response, model);
            }
            for watcher in &watchers {
                watcher.check(model);
                self.compared += watcher.told.len();
            }
        }
    }
}

fn is_progress(response: &Response) -> bool {
    response.events.is_empty() && !response.created && !response.canceled
}

fn behind<'w>(watchers: &'w [Watcher], model: &Model) -> Vec<&'w Watcher> {
    watchers.iter().filter(|watcher| !watcher.is_complete(model)).collect()
}

fn take(watchers: &mut [Watcher], response: Response, model: &Model) {
    if response.created {
        // Watchers are created in the order in which they were asked for.
        let next = watchers.iter_mut().find(|w| w.id.is_none() && w.ended.is_none());
        let watcher = next.expect("a watcher that was asked for");
        if response.canceled {
            assert_eq!(response.watch_id, -1, "{response:?}");
            let is_told = watcher.is_empty() && response.cancel_reason.contains("range is empty")
                || watcher.create.start_revision < 0
                    && response.cancel_reason.contains("has been compacted");
            assert!(is_told, "{response:?}: {watcher:?}");
            watcher.ended = Some(0);
            return;
        }
        assert!(!watcher.is_empty() && watcher.create.start_revision >= 0, "{watcher:?}");
        assert_eq!(response.revision, watcher.at, "{watcher:?}");
        assert!(response.events.is_empty(), "{response:?}");
        watcher.id = Some(response.watch_id);
        return;
    }
    if is_progress(&response) {
        assert_eq!(response.watch_id, -1, "{response:?}");
        let live = watchers.iter().filter(|w| w.id.is_some() && w.ended.is_none());
        for watcher in live {
            let due = watcher.wanted(model);
            let due = due.iter().filter(|record| record.at.main <= response.revision).count();
            assert!(watcher.told.len() >= due, "{response:?} before its events: {watcher:?}");
        }
        return;
    }
    let mut live = watchers.iter_mut().filter(|w| w.ended.is_none());
    let watcher = live.find(|w| w.id == Some(response.watch_id)).expect("a live watcher");
    if response.canceled {
        assert!(response.compact_revision > 0, "{response:?}");
        assert_eq!((response.revision, response.cancel_reason.as_str()), (0, ""));
        watcher.ended = Some(response.compact_revision);
        return;
    }
    assert!(!response.events.is_empty(), "{response:?}");
    let first = response.events[0].0.revision.main;
    if let Some(cut) = watcher.cut {
        assert_eq!(cut, first, "the rest of a revision must come next");
    } else if let Some((last, _)) = watcher.told.last() {
        assert!(last.revision.main < first, "a revision in two responses, or again: {first}");
    }
    let last = response.events.last().unwrap().0.revision.main;
    assert!(response.revision >= last, "{response:?}");
    assert!(!response.fragment || watcher.create.fragment, "{response:?}");
    watcher.cut = response.fragment.then_some(last);
    watcher.told.extend(response.events);
}

impl Watcher {
    fn from(&self) -> i64 {
        match self.create.start_revision {
            0 => self.at + 1,
            start => start,
        }
    }

    fn is_empty(&self) -> bool {
        let end = &self.create.range_end;
        let key = if self.create.key.is_empty() { &b"\0"[..] } else { &self.create.key };
        !end.is_empty() && end != b"\0" && key >= end.as_slice()
    }

    /// What it is to be told.
    fn wanted<'m>(&self, model: &'m Model) -> Vec<&'m Record> {
        let key = if self.create.key.is_empty() { &b"\0"[..] } else { &self.create.key };
        let all = model.events(span(key, &self.create.range_end), self.from());
        let wanted = |record: &&Record| match record.put {
            Some(_) => !self.create.no_put,
            None => !self.create.no_delete,
        };
        all.into_iter().filter(wanted).collect()
    }

    fn is_complete(&self, model: &Model) -> bool {
        if self.ended.is_some() {
            return true;
        }
        let is_late = self.from() < self.compacted;
        self.id.is_some() && !is_late && self.told.len() >= self.wanted(model).len()
    }

    fn check(&self, model: &Model) {
        if self.is_empty() || self.create.start_revision < 0 {
            assert_eq!(self.ended, Some(0), "{self:?}");
            return;
        }
        let wanted = self.wanted(model);
        assert_eq!(self.cut, None, "{self:?}");
        match self.ended {
            None => assert_eq!(self.told.len(), wanted.len(), "{self:?}"),
            // A compaction overtook it: what it was not told is below.
            Some(compacted) => {
                assert!(compacted <= model.compacted, "{self:?}");
                let next = match self.told.last() {
                    Some((event, _)) => event.revision.main + 1,
                    None => self.from(),
                };
                assert!(next < compacted, "cancelled without need: {self:?}");
            }
        }
        for ((event, previous), record) in self.told.iter().zip(&wanted) {
            assert_eq!(event.revision, record.at, "{self:?}");
            assert_eq!(event.key.as_ref(), record.key.as_slice());
            assert_eq!(event.is_delete, record.put.is_none(), "{event:?}");
            let kv = match record.put {
                Some(_) => record.kv(),
                None => Kv::encode(&KeyValue {
                    key: &record.key,
                    mod_revision: record.at.main,
                    ..KeyValue::default()
                }),
            };
            assert_eq!(event.kv, kv, "{event:?}");
            let before = model.previous(&record.key, record.at.main).map(Record::kv);
            match previous {
                Some(_) => {
                    assert!(self.create.prev_kv, "{event:?}");
                    assert_eq!(*previous, before, "{event:?}");
                }
                None if self.create.prev_kv && before.is_some() => {
                    assert!(record.at.main - 1 < model.compacted, "no previous: {event:?}");
                }
                None => {}
            }
        }
    }
}
