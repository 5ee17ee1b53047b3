//! A store that is killed, again and again, while eight threads write to it: what was answered is
//! there afterwards, as a whole and at its revision, and of what was not answered all or nothing.
//!
//! The writer is this test binary, run again as a child; it tells what it began and what was
//! answered through its standard output, which outlives it. Every request of a thread writes the
//! thread's mark, so that each revision says whose it is.
//!
//! `ETCDKIT_STORE_ROUNDS` asks for more rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use etcdkit::bolt::disk::Disk;
use etcdkit::etcd::request::{Body, LeaseGrant, LeaseRevoke, Op, Put, Txn};
use etcdkit::store::engine::Store;

use crate::power_history::Dice;
use crate::store_driver::{Seen, all_events, ask, defrag, live_keys, open};
use crate::store_requests::Ask;
use crate::store_states::asked;

const THREADS: usize = 8;
const CHILD: &str = "store_kills::writes_until_it_is_killed";

/// A request of a thread: the `n`-th of all its rounds.
#[derive(Clone, Debug)]
enum Deed {
    /// One key, or several in a transaction.
    Put {
        n: usize,
        keys: Vec<String>,
        value_bytes: usize,
        lease: i64,
    },
    /// All keys below `tN/k`, in a transaction with the mark.
    Clear {
        n: usize,
    },
    /// A lease, which has no revision.
    Grant {
        id: i64,
    },
    Revoke {
        id: i64,
    },
}

impl Deed {
    /// What a thread asks for: the same for parent and child.
    fn plan(thread: usize, n: usize) -> Self {
        let mut dice = Dice((thread as u64) << 32 | n as u64);
        let id = |n: usize| i64::try_from(thread * 10_000_000 + n + 1).unwrap();
        let key = |dice: &mut Dice| format!("t{thread}/k/{}", dice.below(12));
        let lease_of = n - n % 16;
        match n % 16 {
            0 => return Self::Grant { id: id(lease_of) },
            1 | 2 => {
                let keys = vec![format!("t{thread}/l/{}/{}", id(lease_of), n % 16)];
                return Self::Put { n, keys, value_bytes: 20, lease: id(lease_of) };
            }
            9 if dice.flip() => return Self::Revoke { id: id(lease_of) },
            _ => {}
        }
        match dice.below(8) {
            0 => Self::Clear { n },
            1..=3 => {
                let keys: BTreeSet<_> = (0..4).map(|_| key(&mut dice)).collect();
                let value_bytes = dice.below(300);
                Self::Put { n, keys: keys.into_iter().collect(), value_bytes, lease: 0 }
            }
            _ => {
                let value_bytes = if dice.below(20) == 0 { 20_000 } else { dice.below(100) };
                Self::Put { n, keys: vec![key(&mut dice)], value_bytes, lease: 0 }
            }
        }
    }

    fn ask(&self, thread: usize) -> Ask {
        let mark_key = mark(thread);
        match self {
            Self::Put { n, keys, value_bytes, lease } => {
                let (tag, value) = (tag(*n, 0), tag(*n, *value_bytes));
                let mut success: Vec<_> =
                    keys.iter().map(|key| (key.as_bytes(), value.as_bytes(), *lease)).collect();
                success.push((mark_key.as_bytes(), tag.as_bytes(), 0));
                let put =
                    |(key, value, lease)| Op::Put(Put { key, value, lease, ..Put::default() });
                let success = success.into_iter().map(put).collect();
                Ask::new(Body::Txn(Txn { success, ..Txn::default() }))
            }
            Self::Clear { n } => {
                let (from, end) = (format!("t{thread}/k/"), format!("t{thread}/k0"));
                let tag = tag(*n, 0);
                let delete = etcdkit::etcd::request::DeleteRange {
                    key: from.as_bytes(),
                    range_end: end.as_bytes(),
                    prev_kv: false,
                };
                let put = Put { key: mark_key.as_bytes(), value: tag.as_bytes(), ..Put::default() };
                let success = vec![Op::DeleteRange(delete), Op::Put(put)];
                Ask::new(Body::Txn(Txn { success, ..Txn::default() }))
            }
            Self::Grant { id } => Ask::new(Body::LeaseGrant(LeaseGrant { id: *id, ttl_s: 90_000 })),
            Self::Revoke { id } => Ask::new(Body::LeaseRevoke(LeaseRevoke { id: *id })),
        }
    }
}

fn mark(thread: usize) -> String {
    format!("t{thread}/mark")
}

fn tag(n: usize, bytes: usize) -> String {
    format!("{n:<bytes$}")
}

/// The other half of the next test.
#[test]
#[ignore = "runs in a child of killed_under_load_nothing_is_lost"]
fn writes_until_it_is_killed() {
    let word = |name: &str| std::env::var(name).expect("set by the parent");
    let dir = PathBuf::from(word("STORE_DIR"));
    let firsts: Vec<usize> = word("STORE_FIRSTS").split(',').map(|n| n.parse().unwrap()).collect();
    let store = open(&dir, Disk::default()).unwrap();
    let newest = AtomicI64::new(1);
    say("open");
    std::thread::scope(|scope| {
        for (thread, first) in firsts.iter().enumerate() {
            let (store, newest) = (&store, &newest);
            scope.spawn(move || {
                for n in *first.. {
                    say(&format!("begin {thread} {n}"));
                    let deed = Deed::plan(thread, n);
                    match ask(store, &deed.ask(thread)) {
                        Ok((revision, _)) => {
                            newest.fetch_max(revision, Ordering::SeqCst);
                            say(&format!("done {thread} {n} {revision}"));
                        }
                        Err(error) => say(&format!("refused {thread} {n} {error}")),
                    }
                }
            });
        }
        let (store, newest) = (&store, &newest);
        scope.spawn(move || {
            for turn in 1_u64.. {
                std::thread::sleep(Duration::from_millis(15));
                let at = newest.load(Ordering::SeqCst) - 150;
                if at > 1 {
                    match ask(store, &Ask::compact(at, turn.is_multiple_of(4))) {
                        Ok(_) => say(&format!("compacted {at}")),
                        Err(error) => say(&format!("not compacted {error}")),
                    }
                }
                if turn.is_multiple_of(10) {
                    match defrag(store) {
                        Ok(()) => say("defragmented"),
                        Err(error) => say(&format!("refused 0 0 defrag: {error}")),
                    }
                }
            }
        });
    });
}

/// Tells the parent a line, at once.
fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("store: {line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// What one thread did, as the parent knows it.
#[derive(Clone, Debug, Default)]
struct Known {
    next: usize,
    /// Live keys with their values, of what is known to be done.
    keys: BTreeMap<String, (Vec<u8>, i64)>,
    leases: BTreeSet<i64>,
}

impl Known {
    /// Follows a request that was done; returns the keys that change, and whether to something.
    fn follow(&mut self, thread: usize, deed: &Deed) -> BTreeMap<String, bool> {
        let mut changed = BTreeMap::new();
        match deed {
            Deed::Put { n, keys, value_bytes, lease } => {
                for key in keys {
                    let value = (tag(*n, *value_bytes).into_bytes(), *lease);
                    self.keys.insert(key.clone(), value);
                    changed.insert(key.clone(), true);
                }
                self.keys.insert(mark(thread), (tag(*n, 0).into_bytes(), 0));
                changed.insert(mark(thread), true);
            }
            Deed::Clear { n } => {
                let below = format!("t{thread}/k/");
                let gone: Vec<_> =
                    self.keys.keys().filter(|key| key.starts_with(&below)).cloned().collect();
                for key in gone {
                    self.keys.remove(&key);
                    changed.insert(key, false);
                }
                self.keys.insert(mark(thread), (tag(*n, 0).into_bytes(), 0));
                changed.insert(mark(thread), true);
            }
            Deed::Grant { id } => drop(self.leases.insert(*id)),
            Deed::Revoke { id } => {
                self.leases.remove(id);
                let on_it = self.keys.iter().filter(|(_, (_, lease))| lease == id);
                let gone: Vec<_> = on_it.map(|(key, _)| key.clone()).collect();
                for key in gone {
                    self.keys.remove(&key);
                    changed.insert(key, false);
                }
            }
        }
        changed
    }
}

/// What a child said until it was killed.
#[derive(Debug, Default)]
struct Told {
    opened: bool,
    /// By thread: what was begun, and the revision where it was answered.
    deeds: Vec<Vec<(usize, Option<i64>)>>,
    compactions: usize,
    defrags: usize,
    odd: Vec<String>,
}

/// Runs a child and kills it after a while: of its life, or of its work once it is open.
fn round(dir: &Path, known: &[Known], life: Duration, is_early: bool) -> Told {
    let firsts: Vec<String> = known.iter().map(|one| one.next.to_string()).collect();
    let mut child: Child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", CHILD, "--ignored", "--nocapture", "--test-threads=1"])
        .env("STORE_DIR", dir)
        .env("STORE_FIRSTS", firsts.join(","))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (sender, lines) = mpsc::channel();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::spawn(move || {
        let mut line = Vec::new();
        // The last line may be cut: then it was not said.
        while out.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            if line.last() == Some(&b'\n') {
                let _ = sender.send(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            line.clear();
        }
    });
    let mut first = Vec::new();
    while !is_early && !first.iter().any(|line: &String| line.ends_with("store: open")) {
        match lines.recv_timeout(Duration::from_secs(60)) {
            Ok(line) => first.push(line),
            Err(error) => panic!("the child does not open: {error}: {first:?}"),
        }
    }
    std::thread::sleep(life);
    let ended = child.try_wait().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
    let mut told = Told { deeds: vec![Vec::new(); known.len()], ..Told::default() };
    if let Some(status) = ended {
        told.odd.push(format!("the child ended by itself: {status}"));
    }
    for line in first.into_iter().chain(lines) {
        let Some((_, said)) = line.split_once("store: ") else { continue };
        let words: Vec<&str> = said.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().unwrap();
        match words[0] {
            "open" => told.opened = true,
            "begin" => told.deeds[number(1)].push((number(2), None)),
            "done" => {
                let last = told.deeds[number(1)].last_mut().unwrap();
                assert_eq!(last.0, number(2));
                last.1 = Some(words[3].parse().unwrap());
            }
            "compacted" => told.compactions += 1,
            "defragmented" => told.defrags += 1,
            "not" if said.contains("has been compacted") => {}
            _ => told.odd.push(said.to_owned()),
        }
    }
    told
}

/// Opens what a killed child left and holds it against what the child said.
fn look(dir: &Path, known: &mut [Known], told: &Told, since: i64) -> i64 {
    let store = open(dir, Disk::default()).unwrap_or_else(|error| panic!("does not open: {error}"));
    let revision = store.revision();
    let (compacted, events) = all_events(&store);
    let mut by_revision: BTreeMap<i64, Vec<&Seen>> = BTreeMap::new();
    for event in &events {
        by_revision.entry(event.revision).or_default().push(event);
    }
    let first = (compacted + 1).max(2);
    let gaps: Vec<_> = (first..=revision).filter(|at| !by_revision.contains_key(at)).collect();
    assert_eq!(gaps, Vec::<i64>::new(), "revisions without an event");
    let leases: BTreeSet<i64> = store_leases(&store);
    let mut accounted = BTreeSet::new();
    let mut check = |at: i64, changed: BTreeMap<String, bool>, deed: &Deed| {
        if changed.is_empty() || at <= compacted {
            return;
        }
        let seen: BTreeMap<String, bool> = by_revision
            .get(&at)
            .unwrap_or_else(|| panic!("revision {at} is lost: {deed:?}"))
            .iter()
            .map(|event| (event.key.clone(), event.value.is_some()))
            .collect();
        assert_eq!(seen, changed, "revision {at} is not what {deed:?} did");
        assert!(accounted.insert(at), "revision {at} was told twice: {deed:?}");
    };
    for (thread, (known, deeds)) in known.iter_mut().zip(&told.deeds).enumerate() {
        for (n, done) in deeds {
            let deed = Deed::plan(thread, *n);
            if let Some(at) = done {
                let changed = known.follow(thread, &deed);
                check(*at, changed, &deed);
                known.next = n + 1;
                continue;
            }
            // It may be there or not.
            let before = known.clone();
            let changed = known.follow(thread, &deed);
            let mut of_it = events.iter().filter(|event| {
                let is_new = event.revision > since;
                is_new && event.key == mark(thread) && event.value == Some(tag(*n, 0).into_bytes())
            });
            let at = match &deed {
                Deed::Put { .. } | Deed::Clear { .. } => of_it.next().map(|event| event.revision),
                Deed::Grant { id } => leases.contains(id).then_some(0),
                Deed::Revoke { id } => (!leases.contains(id)).then(|| {
                    let gone = |event: &&Seen| {
                        event.revision > since
                            && event.value.is_none()
                            && changed.contains_key(&event.key)
                    };
                    events.iter().find(gone).map_or(0, |event| event.revision)
                }),
            };
            // Compacted away already: the marks tell.
            let at = at.or_else(|| {
                let live = live_keys(&store);
                let is_last = live.get(&mark(thread)).map(|(value, _)| value.clone())
                    == Some(tag(*n, 0).into_bytes());
                let has_mark = matches!(deed, Deed::Put { .. } | Deed::Clear { .. });
                (has_mark && is_last).then_some(0)
            });
            match at {
                Some(at) => {
                    if at > 0 {
                        check(at, changed, &deed);
                    }
                    known.next = n + 1;
                }
                None => {
                    *known = before;
                    known.next = *n;
                }
            }
        }
    }
    let new = (first.max(since + 1)..=revision).filter(|at| !accounted.contains(at));
    assert_eq!(new.collect::<Vec<_>>(), Vec::<i64>::new(), "revisions that nobody asked for");
    let keys: BTreeMap<String, (Vec<u8>, i64)> =
        known.iter().flat_map(|one| one.keys.clone()).collect();
    assert_eq!(live_keys(&store), keys, "keys");
    let wanted: BTreeSet<i64> = known.iter().flat_map(|one| one.leases.clone()).collect();
    assert_eq!(leases, wanted, "leases");
    store.close().unwrap();
    revision
}

fn store_leases(store: &Store) -> BTreeSet<i64> {
    crate::store_driver::leases(store).into_iter().collect()
}

#[test]
fn killed_under_load_nothing_is_lost() {
    let rounds = asked("ETCDKIT_STORE_ROUNDS", 6);
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let mut known = vec![Known::default(); THREADS];
    let mut dice = Dice(u64::from(std::process::id()));
    let (mut since, mut answered, mut compactions, mut defrags, mut early) = (1, 0, 0, 0, 0);
    for number in 0..rounds {
        // Some die while they open, some in full work.
        let is_early = number % 5 == 4;
        let life = if is_early { dice.below(150) } else { 20 + dice.below(400) };
        let life = Duration::from_millis(life as u64);
        let told = round(&dir, &known, life, is_early);
        assert_eq!(told.odd, Vec::<String>::new(), "round {number}");
        early += usize::from(!told.opened);
        compactions += told.compactions;
        defrags += told.defrags;
        answered += told.deeds.iter().flatten().filter(|deed| deed.1.is_some()).count();
        since = look(&dir, &mut known, &told, since);
    }
    println!(
        "{rounds} rounds, {answered} answers, {compactions} compactions, {defrags} defrags, \
         {early} killed while opening; revision {since}"
    );
    assert!(answered > rounds * 10, "hardly anything was answered: {answered}");
}
