//! A store that keeps a copy of everything for every revision.

use super::*;
use crate::etcd::revision::RevisionKey;
use crate::store::kv::Commit;

type Live = BTreeMap<Vec<u8>, Living>;

pub(super) struct Model {
    pub(super) naive: Naive,
    pub(super) states: BTreeMap<i64, Live>,
    pub(super) events: BTreeMap<i64, Commit>,
    compat: Compat,
}

/// What a request changes on its way.
struct Run<'m> {
    model: &'m Model,
    before: Naive,
    live: Live,
    events: Vec<Event>,
}

pub(super) fn kv(key: &[u8], living: &Living) -> Kv {
    Kv::encode(&KeyValue {
        key,
        create_revision: living.create,
        mod_revision: living.modified,
        version: living.version,
        value: &living.value,
        lease: living.lease,
        unknown_field: None,
    })
}

impl Model {
    pub(super) fn new(compat: Compat) -> Self {
        let states = BTreeMap::from([(1, Live::new())]);
        Self { naive: Naive::new(), states, events: BTreeMap::new(), compat }
    }

    pub(super) fn apply(&mut self, plan: &Plan) -> Result<Answer, Error> {
        let mut run = Run {
            model: self,
            before: self.naive.clone(),
            live: self.naive.live.clone(),
            events: Vec::new(),
        };
        let mut naive = self.naive.clone();
        naive.apply(plan).map_err(|refusal| Error::from(refusal.unwrap()))?;
        let body = match (plan, plan.body()) {
            (Plan::Txn { .. }, _) => answer::Body::Txn(run.txn(plan)),
            (_, Body::Put(put)) => answer::Body::Put(run.put(&put)),
            (Plan::Delete { keys, prev_kv }, _) => {
                answer::Body::DeleteRange(run.delete(keys, *prev_kv))
            }
            (_, Body::LeaseGrant(grant)) => {
                answer::Body::LeaseGrant { id: grant.id, ttl_s: grant.ttl_s.max(2) }
            }
            (Plan::Revoke(id), _) => {
                let keys = run.live.iter().filter(|(_, living)| living.lease == *id);
                for key in keys.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
                    run.delete(&(key, Vec::new()), false);
                }
                answer::Body::Done
            }
            _ => answer::Body::Done,
        };
        let Run { live, events, .. } = run;
        assert_eq!(live, naive.live);
        self.naive = naive;
        let revision = self.naive.revision;
        self.states.insert(revision, live);
        if !events.is_empty() {
            self.events.insert(revision, Commit { revision, events: events.into() });
        }
        Ok(Answer { revision, body })
    }

    /// Does what etcd does with a read, step by step.
    pub(super) fn range(&self, request: &Range<'_>, live: &Live) -> answer::Range {
        let span = crate::etcd::request::span(request.key, request.range_end);
        let mut found: Vec<(&Vec<u8>, &Living)> =
            live.iter().filter(|(key, _)| span.contains(key)).collect();
        let count = i64::try_from(found.len()).unwrap();
        if request.count_only {
            return answer::Range { count, ..answer::Range::default() };
        }
        let filters = [
            request.min_mod_revision,
            request.max_mod_revision,
            request.min_create_revision,
            request.max_create_revision,
        ];
        let cut = usize::try_from(request.limit).unwrap();
        if request.sort_order == 0 && filters == [0; 4] && cut > 0 {
            found.truncate(cut + 1);
        }
        found.retain(|(_, living)| {
            let [min_mod, max_mod, min_create, max_create] = filters;
            (min_mod == 0 || living.modified >= min_mod)
                && (max_mod == 0 || living.modified <= max_mod)
                && (min_create == 0 || living.create >= min_create)
                && (max_create == 0 || living.create <= max_create)
        });
        let number = |living: &Living| match request.sort_target {
            1 => living.version,
            2 => living.create,
            3 => living.modified,
            _ => 0,
        };
        let compare = |a: &(&Vec<u8>, &Living), b: &(&Vec<u8>, &Living)| match request.sort_target {
            0 => a.0.cmp(b.0),
            4 => a.1.value.cmp(&b.1.value),
            _ => number(a.1).cmp(&number(b.1)),
        };
        if request.sort_order == 2 {
            found.sort_by(|a, b| compare(b, a));
        } else {
            found.sort_by(compare);
        }
        let more = cut > 0 && found.len() > cut;
        if more {
            found.truncate(cut);
        }
        let newer = self.compat == Compat::V3_7;
        let kvs = found.into_iter().map(|(key, living)| {
            let mut living = living.clone();
            if request.keys_only {
                living.value = Vec::new();
                if newer && request.sort_target != 4 {
                    living.lease = 0;
                }
            }
            kv(key, &living)
        });
        answer::Range { kvs: kvs.collect(), more, count }
    }

    /// HashKV, by the rule as it is written in etcd, of what a finished compaction leaves.
    ///
    /// `None` where a transaction deleted a key and put it again, which etcd's API refuses: its
    /// compaction would lose the record.
    pub(super) fn hash(&self, at: i64) -> Option<u32> {
        let compacted = self.naive.compacted;
        let events = || self.events.values().flat_map(|commit| commit.events.iter());
        let mut keys: BTreeMap<&[u8], Vec<&Event>> = BTreeMap::new();
        for event in events() {
            keys.entry(&event.key).or_default().push(event);
        }
        let is_odd = |pair: &[&Event]| {
            pair.first().is_some_and(|first| first.is_delete)
                && pair.iter().all(|event| event.revision.main == pair[0].revision.main)
        };
        if keys.values().any(|list| list.windows(2).any(is_odd)) {
            return None;
        }
        // The generation that counts at a revision, and the newest record in it.
        let kept = |list: &[&Event], at: i64, with_tombstone: bool| -> Option<Revision> {
            let mut rest = list;
            loop {
                let end = rest.iter().position(|event| event.is_delete);
                let Some(end) = end.filter(|end| rest[*end].revision.main < at) else {
                    let end = end.map_or(rest.len(), |end| end + 1);
                    let newest =
                        rest[..end].iter().rev().find(|event| event.revision.main <= at)?;
                    let keeps = !newest.is_delete || with_tombstone;
                    return keeps.then_some(newest.revision);
                };
                rest = &rest[end + 1..];
            }
        };
        let keep: Vec<Revision> = keys.values().filter_map(|list| kept(list, at, false)).collect();
        let left: Vec<Revision> =
            keys.values().filter_map(|list| kept(list, compacted, true)).collect();
        let mut crc = crc32c::crc32c(schema::KEY);
        for event in events() {
            let main = event.revision.main;
            let is_gone = main <= compacted && !left.contains(&event.revision);
            let is_old = main <= compacted && !keep.is_empty() && !keep.contains(&event.revision);
            let is_last = main == compacted && event.is_delete;
            if main > at || is_gone || is_old || is_last {
                continue;
            }
            let (key, value) = event.row();
            assert_eq!(RevisionKey::decode(&key).unwrap().is_tombstone, event.is_delete);
            crc = crc32c::crc32c_append(crc32c::crc32c_append(crc, &key), &value);
        }
        Some(crc)
    }
}

impl Run<'_> {
    fn main(&self) -> i64 {
        self.before.revision + 1
    }

    fn next(&self) -> Revision {
        Revision::new(self.main(), i64::try_from(self.events.len()).unwrap())
    }

    fn revision(&self) -> i64 {
        self.before.revision + i64::from(!self.events.is_empty())
    }

    fn put(&mut self, put: &Put<'_>) -> answer::Put {
        let old = self.live.get(put.key).cloned();
        let mut new = Living {
            create: self.main(),
            modified: self.main(),
            version: 1,
            lease: put.lease,
            value: put.value.to_vec(),
        };
        if let Some(old) = &old {
            new.create = old.create;
            new.version = old.version + 1;
            new.lease = if put.ignore_lease { old.lease } else { new.lease };
            new.value = if put.ignore_value { old.value.clone() } else { new.value };
        }
        let kv_of_new = kv(put.key, &new);
        self.events.push(Event::put(self.next(), &kv_of_new.record()));
        self.live.insert(put.key.to_vec(), new);
        let prev_kv = old.filter(|_| put.prev_kv).map(|old| kv(put.key, &old));
        answer::Put { prev_kv }
    }

    fn delete(&mut self, keys: &(Vec<u8>, Vec<u8>), prev_kv: bool) -> answer::DeleteRange {
        let span = crate::etcd::request::span(&keys.0, &keys.1);
        let found: Vec<Vec<u8>> =
            self.live.keys().filter(|key| span.contains(key)).cloned().collect();
        let mut answer = answer::DeleteRange::default();
        for key in found {
            self.events.push(Event::delete(self.next(), &key));
            let old = self.live.remove(&key).unwrap();
            answer.deleted += 1;
            if prev_kv {
                answer.prev_kvs.push(kv(&key, &old));
            }
        }
        answer
    }

    fn txn(&mut self, plan: &Plan) -> answer::Txn {
        let Plan::Txn { compare, .. } = plan else { panic!("no transaction") };
        let succeeded = self.before.chooses(compare);
        let before = self.before.clone();
        let ops = Naive::list(plan, &before);
        let responses = ops.iter().map(|op| match (op, op.body()) {
            (Plan::Txn { .. }, _) => Response { revision: 0, op: answer::Op::Txn(self.txn(op)) },
            (_, Body::Put(put)) => {
                let put = self.put(&put);
                Response { revision: self.revision(), op: answer::Op::Put(put) }
            }
            (Plan::Delete { keys, prev_kv }, _) => {
                let delete = self.delete(keys, *prev_kv);
                Response { revision: self.revision(), op: answer::Op::DeleteRange(delete) }
            }
            (_, Body::Range(range)) => {
                let live = if range.revision > 0 {
                    &self.model.states[&range.revision]
                } else {
                    &self.live
                };
                let op = answer::Op::Range(self.model.range(&range, live));
                Response { revision: self.revision(), op }
            }
            _ => Response::default(),
        });
        answer::Txn { succeeded, responses: responses.collect() }
    }
}
