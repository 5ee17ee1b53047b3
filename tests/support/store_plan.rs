//! What a store is asked for while its disk is recorded, and what it must hold after a loss of
//! power.

#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::Path;
use std::sync::Arc;

use etcdkit::bolt::disk::Disk;
use etcdkit::etcd::request::{Body, Txn};
use etcdkit::store::engine::{Options, Store, Submission};

use crate::power_history::{Dice, Tree};
use crate::store_driver::{compare, nobody, options};
use crate::store_model::{Model, Reply, Said};
use crate::store_probe::Recorder;
use crate::store_requests::{Ask, Mix, random};
use crate::store_states::{Run, Seen};

/// What was begun and what was answered, by number of the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    Begun(usize),
    Done(usize),
    Closed,
}

/// What a run asks for: several at a time, as callers do.
pub(crate) struct Plan {
    pub(crate) asks: Vec<Ask>,
    /// Requests that are under way at once.
    pub(crate) at_once: usize,
    /// After so many requests the database is defragmented.
    pub(crate) defrag_every: usize,
    /// After so many requests the store is closed and opened again.
    pub(crate) reopen_every: usize,
    pub(crate) options: fn(Disk) -> Options,
}

impl Plan {
    pub(crate) fn random(seed: u64, count: usize, value_bytes: usize) -> Self {
        let mut dice = Dice(seed);
        let mut model = Model::default();
        let mut asks = Vec::new();
        while asks.len() < count {
            let mix = Mix {
                revision: model.revision,
                bad_forms: 0,
                alarms: None,
                traps: true,
                leaves_others: false,
                value_bytes,
            };
            let ask = random(&mut dice, mix);
            // What only reads is answered at once, whatever is under way.
            let is_read = match ask.body() {
                Body::Range(_) => true,
                Body::Txn(txn) => is_read_only(&txn),
                _ => false,
            };
            if !is_read {
                let _ = model.ask(&ask.body());
                asks.push(ask);
            }
        }
        Self { asks, at_once: 4, defrag_every: 0, reopen_every: 0, options }
    }

    /// The model after each number of requests.
    pub(crate) fn models(&self) -> Vec<Model> {
        let mut models = vec![Model::default()];
        for ask in &self.asks {
            let mut model = models.last().unwrap().clone();
            let _ = model.ask(&ask.body());
            models.push(model);
        }
        models
    }

    fn run(&self, root: &Path, disk: Disk, recorder: &Recorder<Mark>) {
        let mut model = Model::default();
        let dir = root.join("data");
        let mut store = Store::open(&dir, (self.options)(disk.clone())).unwrap();
        let mut begun = 0;
        while begun < self.asks.len() {
            let end = (begun + self.at_once).min(self.asks.len());
            let mut waiting = Vec::new();
            for (number, ask) in self.asks.iter().enumerate().take(end).skip(begun) {
                recorder.mark(Mark::Begun(number));
                let request = Submission::try_from(ask.body());
                let pending = request.and_then(|request| store.submit(&nobody(), request));
                waiting.push((number, pending));
            }
            for (number, pending) in waiting {
                let outcome: Said = pending
                    .and_then(|pending| store.wait(pending))
                    .map(|done| (done.answer.revision, Reply::Other(done.answer.body)));
                recorder.mark(Mark::Done(number));
                let wanted = model.ask(&self.asks[number].body());
                assert_eq!(outcome, wanted, "{:?}", self.asks[number]);
            }
            let is_due = |every: usize| every > 0 && begun / every != end / every;
            if is_due(self.defrag_every) {
                store.defragment(&nobody()).unwrap();
            }
            if is_due(self.reopen_every) {
                store.close().unwrap();
                drop(store);
                store = Store::open(&dir, (self.options)(disk.clone())).unwrap();
            }
            begun = end;
        }
        store.close().unwrap();
        drop(store);
        recorder.mark(Mark::Closed);
    }

    pub(crate) fn record(&self, before: &Tree) -> Run<Mark> {
        Run::record(before, |root, disk, recorder: &Arc<Recorder<Mark>>| {
            self.run(root, disk, recorder);
        })
    }

    /// Opens what the disk holds; it must be what some number of requests makes, not fewer than
    /// were answered and not more than were begun.
    pub(crate) fn check(
        &self,
        models: &[Model],
        root: &Path,
        seen: &Seen<'_, Mark>,
    ) -> Result<(), String> {
        let (done, begun) = Self::counts(seen.marks);
        self.check_between(models, root, done, begun)
    }

    /// How many requests were answered, and how many were begun.
    pub(crate) fn counts(marks: &[Mark]) -> (usize, usize) {
        let done = marks.iter().filter(|mark| matches!(mark, Mark::Done(_))).count();
        let begun = marks.iter().filter(|mark| matches!(mark, Mark::Begun(_))).count();
        (done, begun)
    }

    pub(crate) fn check_between(
        &self,
        models: &[Model],
        root: &Path,
        done: usize,
        begun: usize,
    ) -> Result<(), String> {
        let dir = root.join("data");
        let store = Store::open(&dir, (self.options)(Disk::default()))
            .map_err(|error| format!("does not open: {error}"))?;
        let found = (done..=begun).rev().map(|n| compare(&store, &models[n]));
        let mut why = String::new();
        let mut is_found = false;
        for result in found {
            match result {
                Ok(()) => {
                    is_found = true;
                    break;
                }
                Err(what) => why = what,
            }
        }
        if !is_found {
            return Err(format!("{done} answered, {begun} begun: {why}"));
        }
        // It goes on, and what it says then is kept too.
        let put = Ask::put("after", b"power");
        let said = crate::store_driver::ask(&store, &put).map_err(|error| error.to_string())?;
        store.close().map_err(|error| error.to_string())?;
        drop(store);
        let store = Store::open(&dir, (self.options)(Disk::default()))
            .map_err(|error| format!("does not open again: {error}"))?;
        if store.revision() != said.0 {
            return Err(format!("revision {} after {}", store.revision(), said.0));
        }
        Ok(())
    }
}

fn is_read_only(txn: &Txn<'_>) -> bool {
    let is_range = |op: &_| matches!(op, etcdkit::etcd::request::Op::Range(_));
    txn.success.iter().chain(&txn.failure).all(is_range)
}
