//! Random requests, of every kind that changes or reads keys and leases, and of every form: also
//! such as are refused.

#![allow(dead_code, reason = "each test binary uses its own part")]

use etcdkit::etcd::request::{
    Alarm, Body, Compaction, Compare, Content, DeleteRange, Header, LeaseGrant, LeaseRevoke, Op,
    Operand, Put, Range, Request, Txn,
};

use crate::power_history::Dice;

const KEYS: &[&str] = &["a", "a/1", "a/2", "b", "b/1", "b/22", "c", "d", "d/long/name", "e", "\0"];
const ENDS: &[&[u8]] = &[b"", b"", b"", b"\0", b"b", b"c", b"d0", b"a"];
/// Above all keys here, and below those that tests put besides.
const AFTER_ALL: &[u8] = b"f";
const LEASES: &[i64] = &[7, 8, 9, -3, 1 << 62];

/// A request that owns its bytes.
#[derive(Clone)]
pub(crate) struct Ask(Vec<u8>);

impl std::fmt::Debug for Ask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&brief(&format!("{:?}", self.body())))
    }
}

/// Writes lists of bytes as text, the first of them only.
pub(crate) fn brief(text: &str) -> String {
    let mut out = String::new();
    for (n, part) in text.split('[').enumerate() {
        let bytes = part.split_once(']').and_then(|(list, rest)| {
            let bytes = list.split(", ").map(str::parse).collect::<Result<Vec<u8>, _>>();
            bytes.ok().map(|bytes| (bytes, rest))
        });
        match bytes {
            Some((bytes, rest)) => {
                let shown = &bytes[..bytes.len().min(24)];
                let more = if bytes.len() > 24 { ".." } else { "" };
                out.push_str(&format!("'{}{more}'{rest}", shown.escape_ascii()));
            }
            None if n > 0 => out.extend(["[", part]),
            None => out.push_str(part),
        }
    }
    out
}

impl Ask {
    pub(crate) fn new(body: Body<'_>) -> Self {
        let header = Some(Header { id: 1, ..Header::default() });
        Self(Request { id: 0, header, body }.encode())
    }

    pub(crate) fn body(&self) -> Body<'_> {
        match Content::decode(&self.0) {
            Ok(Content::Request(request)) => request.body,
            other => panic!("{other:?}"),
        }
    }

    /// The request as a log has it.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub(crate) fn put(key: &str, value: &[u8]) -> Self {
        Self::new(Body::Put(Put { key: key.as_bytes(), value, ..Put::default() }))
    }

    pub(crate) fn delete(key: &str, range_end: &str) -> Self {
        let (key, range_end) = (key.as_bytes(), range_end.as_bytes());
        Self::new(Body::DeleteRange(DeleteRange { key, range_end, prev_kv: false }))
    }

    pub(crate) fn compact(revision: i64, physical: bool) -> Self {
        Self::new(Body::Compaction(Compaction { revision, physical }))
    }

    pub(crate) fn grant(id: i64, ttl_s: i64) -> Self {
        Self::new(Body::LeaseGrant(LeaseGrant { ttl_s, id }))
    }

    pub(crate) fn revoke(id: i64) -> Self {
        Self::new(Body::LeaseRevoke(LeaseRevoke { id }))
    }
}

/// What requests are made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    /// Current revision, about which reads and compactions ask.
    pub(crate) revision: i64,
    /// One in so many requests is of a form that is refused; 0 for none.
    pub(crate) bad_forms: usize,
    /// Whether alarms are raised and cleared, of this member.
    pub(crate) alarms: Option<u64>,
    /// Whether requests on which etcd stops are among them.
    pub(crate) traps: bool,
    /// Whether keys that are not of the mix are left alone.
    pub(crate) leaves_others: bool,
    /// Longest value in bytes.
    pub(crate) value_bytes: usize,
}

struct Maker<'d> {
    dice: &'d mut Dice,
    mix: Mix,
    /// What values are made of.
    bytes: Vec<u8>,
}

/// Makes a request.
pub(crate) fn random(dice: &mut Dice, mix: Mix) -> Ask {
    let bytes = (0..mix.value_bytes).map(|n| b'!' + u8::try_from(n % 90).unwrap()).collect();
    let mut maker = Maker { dice, mix, bytes };
    let bytes = std::mem::take(&mut maker.bytes);
    let body = maker.body(&bytes);
    Ask::new(body)
}

impl Maker<'_> {
    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.dice.below(all.len())]
    }

    fn chance(&mut self, one_in: usize) -> bool {
        one_in > 0 && self.dice.below(one_in) == 0
    }

    fn is_bad(&mut self) -> bool {
        self.chance(self.mix.bad_forms)
    }

    fn key(&mut self) -> &'static [u8] {
        if self.is_bad() {
            return b"";
        }
        self.one_of(KEYS).as_bytes()
    }

    fn revision(&mut self) -> i64 {
        if !self.chance(3) {
            return 0;
        }
        let back = i64::try_from(self.dice.below(12)).unwrap();
        self.mix.revision + 2 - back
    }

    fn value<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let len = match self.dice.below(8) {
            0 => 0,
            1 => self.dice.below(bytes.len() + 1),
            _ => self.dice.below(40.min(bytes.len())),
        };
        let from = self.dice.below(bytes.len() - len + 1);
        &bytes[from..from + len]
    }

    fn lease(&mut self) -> i64 {
        if self.chance(3) { self.one_of(LEASES) } else { 0 }
    }

    fn put<'b>(&mut self, bytes: &'b [u8]) -> Put<'b> {
        let ignore_value = self.chance(8);
        let ignore_lease = self.chance(8);
        Put {
            key: self.key(),
            value: if ignore_value && !self.is_bad() { b"" } else { self.value(bytes) },
            lease: if ignore_lease && !self.is_bad() { 0 } else { self.lease() },
            prev_kv: self.chance(2),
            ignore_value,
            ignore_lease,
        }
    }

    fn range(&mut self) -> Range<'static> {
        let near = |maker: &mut Self| {
            if maker.chance(6) {
                maker.mix.revision - i64::try_from(maker.dice.below(10)).unwrap()
            } else {
                0
            }
        };
        Range {
            key: self.key(),
            range_end: self.one_of(ENDS),
            limit: if self.chance(3) { self.one_of(&[1, 2, 3, 5, -1, i64::MAX]) } else { 0 },
            revision: if self.chance(20) { -2 } else { self.revision() },
            sort_order: if self.is_bad() { 3 } else { self.dice.below(3) as u64 },
            sort_target: if self.is_bad() { 5 } else { self.dice.below(5) as u64 },
            serializable: self.chance(2),
            keys_only: self.chance(5),
            count_only: self.chance(8),
            min_mod_revision: near(self),
            max_mod_revision: near(self),
            min_create_revision: near(self),
            max_create_revision: near(self),
        }
    }

    fn delete(&mut self) -> DeleteRange<'static> {
        let mut range_end = if self.chance(2) { b"" } else { self.one_of(ENDS) };
        if range_end == b"\0" && self.mix.leaves_others {
            range_end = AFTER_ALL;
        }
        DeleteRange { key: self.key(), range_end, prev_kv: self.chance(2) }
    }

    fn compare<'b>(&mut self, bytes: &'b [u8]) -> Compare<'b> {
        let number = match self.dice.below(4) {
            0 => 0,
            1 => self.mix.revision - i64::try_from(self.dice.below(8)).unwrap(),
            2 => self.one_of(LEASES),
            _ => i64::try_from(self.dice.below(4)).unwrap(),
        };
        let target = self.dice.below(5) as u64;
        let operand = if self.chance(12) { self.dice.below(6) as u64 } else { target };
        Compare {
            result: if self.chance(30) { 9 } else { self.dice.below(4) as u64 },
            target: if self.chance(40) { 9 } else { target },
            key: self.key(),
            operand: match operand {
                0 => Some(Operand::Version(number)),
                1 => Some(Operand::CreateRevision(number)),
                2 => Some(Operand::ModRevision(number)),
                3 => Some(Operand::Value(self.value(bytes))),
                4 => Some(Operand::Lease(number)),
                _ => None,
            },
            range_end: self.one_of(ENDS),
        }
    }

    fn txn<'b>(&mut self, bytes: &'b [u8], depth: usize) -> Txn<'b> {
        if self.is_bad() {
            let many = vec![Op::Range(self.range()); 129];
            return Txn { success: many, ..Txn::default() };
        }
        let compares = self.one_of(&[0, 1, 1, 2]);
        let compare = (0..compares).map(|_| self.compare(bytes)).collect();
        let reads_only = self.chance(5);
        let ops = |maker: &mut Self| {
            let count = maker.one_of(&[0, 1, 1, 2, 3, 4]);
            (0..count).map(|_| maker.op(bytes, depth, reads_only)).collect()
        };
        let success = ops(self);
        let mut txn = Txn { compare, success, failure: ops(self) };
        if depth == 0 && !self.mix.traps {
            end_deletes(&mut txn);
        }
        txn
    }

    fn op<'b>(&mut self, bytes: &'b [u8], depth: usize, reads_only: bool) -> Op<'b> {
        if reads_only {
            return Op::Range(self.range());
        }
        match self.dice.below(10) {
            0 if depth < 3 => Op::Txn(self.txn(bytes, depth + 1)),
            1 if self.is_bad() => Op::Nothing,
            0..=2 => Op::DeleteRange(self.delete()),
            3..=5 => Op::Range(self.range()),
            _ => Op::Put(self.put(bytes)),
        }
    }

    fn body<'b>(&mut self, bytes: &'b [u8]) -> Body<'b> {
        match self.dice.below(20) {
            0..=5 => Body::Put(self.put(bytes)),
            6..=7 => Body::DeleteRange(self.delete()),
            8..=11 => Body::Range(self.range()),
            12..=15 => Body::Txn(self.txn(bytes, 0)),
            16 => {
                let back = i64::try_from(self.dice.below(20)).unwrap();
                // A first one at 0 is accepted, and spoils what HashKV says from then on.
                let revision = match self.mix.revision + 2 - back {
                    0 => 1,
                    revision => revision,
                };
                Body::Compaction(Compaction { revision, physical: self.chance(2) })
            }
            17 => Body::LeaseRevoke(LeaseRevoke { id: self.one_of(LEASES) }),
            18 if self.mix.alarms.is_some() && self.chance(3) => Body::Alarm(Alarm {
                // Cleared more often than raised.
                action: self.one_of(&[0, 1, 2, 2, 2, 2]),
                member_id: self.mix.alarms.unwrap(),
                alarm: self.dice.below(3) as u64,
            }),
            _ => {
                let ttl_s = self.one_of(&[-1, 0, 1, 3600, 86_400, 9_000_000_000, 9_000_000_001]);
                // Short ones would run out while the test goes on.
                let ttl_s = if ttl_s < 3600 && !self.is_bad() { 3600 } else { ttl_s };
                Body::LeaseGrant(LeaseGrant { ttl_s, id: self.one_of(LEASES) })
            }
        }
    }
}

/// Gives an end to what a transaction deletes from a key on. etcd does not see that such a range
/// holds a key that the transaction puts as well; what was put is then gone after a compaction, and
/// a server that reads it stops, as one does where the put keeps a value that was just deleted.
fn end_deletes(txn: &mut Txn<'_>) {
    for op in txn.success.iter_mut().chain(&mut txn.failure) {
        match op {
            Op::DeleteRange(delete) if delete.range_end == b"\0" => delete.range_end = AFTER_ALL,
            Op::Txn(inner) => end_deletes(inner),
            _ => {}
        }
    }
}
