//! Damaged snapshots by the thousand: whatever the bytes say, an answer comes, nothing is changed,
//! and nothing damaged becomes a data directory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "these are tests")]
#![allow(clippy::indexing_slicing, reason = "these are tests")]

#[path = "support/scale_cases.rs"]
mod scale_cases;
mod support;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use etcdkit::format::finding::{Code, Findings};
use etcdkit::format::meta::{Meta, NO_FREELIST};
use etcdkit::format::page::{BRANCH, BUCKET_FLAG, BucketHeader, FREELIST, Header, LEAF, Node};
use etcdkit::ops::examine::{Examined, Level, Seal, examine};
use etcdkit::ops::restore::{Options, restore};
use etcdkit::ops::verify::{self, Verdict, judge};
use etcdkit::ops::{ExitCode, Silent, inspect, status};
use etcdkit::{bolt, format};
use support::{Rows, Sandbox, kubernetes, seal, sha256, skipped, snapshot};

/// Variants that are looked at in this process.
const VARIANTS: u64 = 1_050;
/// Every so many of them goes through the program as well.
const THROUGH_PROGRAM: u64 = 30;

/// A small generator of numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.roll() % limit.max(1) as u64) as usize
    }

    /// A number that a field may hold: small, near a border, or anything.
    fn number(&mut self) -> u64 {
        let edges = [0, 1, 2, 3, 7, 15, 16, 255, 4095, 4096, 65_534, 65_535, 1 << 31, u64::MAX];
        match self.below(4) {
            0 => self.roll() % 40,
            1 => self.roll(),
            2 => u64::from(u32::MAX) - self.roll() % 3,
            _ => edges[self.below(edges.len())],
        }
    }
}

/// A database, without trailer, and its page size.
#[derive(Clone)]
struct Database {
    bytes: Vec<u8>,
    page: usize,
}

impl Database {
    fn of(snapshot: &[u8]) -> Self {
        Self { bytes: snapshot[..snapshot.len() - 32].to_vec(), page: 4096 }
    }

    fn pages(&self) -> usize {
        self.bytes.len() / self.page
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.bytes.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    fn u16_at(&self, at: usize) -> u16 {
        format::u16_at(&self.bytes, at).unwrap_or(0)
    }

    /// A page of the tree that has elements, so that a change in it is looked at.
    fn tree_page(&self, dice: &mut Dice) -> usize {
        let found = (0..40).map(|_| 2 + dice.below(self.pages() - 2)).find(|id| {
            let at = id * self.page;
            matches!(self.u16_at(at + 8), 1 | 2) && self.u16_at(at + 10) > 0
        });
        found.unwrap_or(2) * self.page
    }

    fn element(&self, page: usize, dice: &mut Dice) -> usize {
        page + 16 + 16 * dice.below(usize::from(self.u16_at(page + 10)))
    }

    fn edit_meta(&mut self, slot: usize, edit: impl FnOnce(&mut Meta)) {
        let at = slot * self.page;
        if let Some(Ok(mut meta)) = self.bytes.get(at..at + 80).map(Meta::decode) {
            edit(&mut meta);
            let bytes = meta.encode(slot as u64);
            self.put(at, &bytes);
        }
    }
}

/// Breaks a database in one of many ways; says how.
fn damage(db: &mut Database, dice: &mut Dice) -> String {
    let len = db.bytes.len();
    let page = db.tree_page(dice);
    let id = page / db.page;
    match dice.below(20) {
        0 => {
            let count = 1 + dice.below(3);
            for _ in 0..count {
                let at = dice.below(len);
                db.bytes[at] ^= 1 << dice.below(8);
            }
            format!("{count} bits flipped anywhere")
        }
        1 => {
            let at = page + dice.below(200);
            db.bytes[at] ^= 1 << dice.below(8);
            format!("a bit flipped at the start of page {id}")
        }
        2 => {
            let cut = dice.below(len);
            db.bytes.truncate(cut);
            format!("cut to {cut} bytes")
        }
        3 => {
            let cut = (1 + dice.below(db.pages())) * db.page;
            db.bytes.truncate(cut);
            format!("cut to {cut} bytes, whole pages")
        }
        4 => {
            let at = dice.below(len);
            let end = len.min(at + 1 + dice.below(2 * db.page));
            db.bytes[at..end].fill(0);
            format!("zeroes at {at}..{end}")
        }
        5 => {
            let other = db.tree_page(dice);
            for n in 0..db.page {
                db.bytes.swap(page + n, other + n);
            }
            format!("page {id} and page {} swapped", other / db.page)
        }
        6 => {
            let other = db.tree_page(dice);
            let copy = db.bytes[other..other + db.page].to_vec();
            db.put(page, &copy);
            db.put(page, &(id as u64).to_le_bytes());
            format!("page {id} is page {} under its own id", other / db.page)
        }
        7 => {
            let element = db.element(page, dice);
            let to = dice.below(db.pages() + 2) as u64;
            db.put(element + 8, &to.to_le_bytes());
            format!("an element of page {id} leads to page {to}")
        }
        8 => {
            // Values of the root bucket begin with a page id: a bucket in itself, or in another.
            let Some(Ok(meta)) = db.bytes.get(..80).map(Meta::decode) else { return "none".into() };
            let root = meta.root as usize * db.page;
            let element = db.element(root, dice);
            let field = |n: usize| format::u32_at(&db.bytes, element + n).unwrap_or(0) as usize;
            let value = element + field(4) + field(8);
            let to = dice.below(db.pages() + 2) as u64;
            db.put(value, &to.to_le_bytes());
            format!("a bucket has its root at page {to}")
        }
        9 => {
            let count = dice.number() as u16;
            db.put(page + 10, &count.to_le_bytes());
            format!("page {id} has {count} elements")
        }
        10 => {
            let overflow = dice.number() as u32;
            db.put(page + 12, &overflow.to_le_bytes());
            format!("page {id} overflows by {overflow}")
        }
        11 => {
            let (field, number) = (4 * dice.below(4), dice.number() as u32);
            let element = db.element(page, dice);
            db.put(element + field, &number.to_le_bytes());
            format!("field {field} of an element of page {id} is {number}")
        }
        12 => {
            let flags = dice.number() as u16;
            db.put(page + 8, &flags.to_le_bytes());
            format!("page {id} is of type {flags}")
        }
        13 => {
            let to = dice.number();
            db.put(page, &to.to_le_bytes());
            format!("page {id} calls itself {to}")
        }
        14 | 15 => {
            let (field, number) = (dice.below(6), dice.number());
            let both = dice.below(3) > 0;
            for slot in 0..=usize::from(both) {
                db.edit_meta(slot, |meta| match field {
                    0 => meta.root = number,
                    1 => meta.freelist = number,
                    2 => meta.high_water_mark = number,
                    3 => meta.txid = number,
                    4 => meta.page_size = 1 << (number % 26),
                    _ => meta.sequence = number,
                });
            }
            format!("field {field} of the metas (both: {both}) is {number}")
        }
        16 => {
            let slot = dice.below(2);
            let at = slot * db.page + 16 + dice.below(64);
            db.bytes[at] ^= 1 << dice.below(8);
            format!("a bit flipped in meta {slot}")
        }
        17 => {
            let at = dice.below(len);
            let end = len.min(at + 1 + dice.below(300));
            db.bytes[at..end].iter_mut().for_each(|byte| *byte = dice.roll() as u8);
            format!("noise at {at}..{end}")
        }
        18 => {
            let at = dice.below(len);
            if dice.below(2) == 0 {
                db.bytes.insert(at, dice.roll() as u8);
                format!("a byte more at {at}")
            } else {
                db.bytes.remove(at);
                format!("a byte less at {at}")
            }
        }
        _ => {
            let more = 1 + dice.below(3 * db.page);
            db.bytes.extend((0..more).map(|_| dice.roll() as u8));
            format!("{more} bytes of noise at the end")
        }
    }
}

/// What stands behind the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trailer {
    /// The trailer of the undamaged database.
    Old,
    /// One that fits the damaged bytes.
    Fresh,
    None,
}

struct Variant {
    number: u64,
    how: String,
    trailer: Trailer,
    bytes: Vec<u8>,
    /// The damage changed any byte.
    changed: bool,
}

fn variants() -> impl Iterator<Item = Variant> {
    let small =
        |rows: &Rows, page: u32| Database { bytes: rows.database(page), page: page as usize };
    let rows = Rows::read(&snapshot("3.6")).alarm(9, 1);
    let kube = Rows::read(&kubernetes());
    let sources = [
        Database::of(&snapshot("3.4")),
        Database::of(&snapshot("3.5")),
        Database::of(&snapshot("3.6")),
        Database::of(&snapshot("3.7")),
        Database::of(&kubernetes()),
        small(&rows, 1024),
        small(&kube, 1024),
        small(&rows.put("lease/in/deep", b"k", b"v"), 2048),
    ];
    (0..VARIANTS).map(move |number| {
        let mut dice = Dice(number);
        let source = &sources[dice.below(sources.len())];
        let mut db = source.clone();
        let mut how = damage(&mut db, &mut dice);
        if dice.below(5) == 0 && db.bytes.len() > 4 * db.page {
            how = format!("{how}; {}", damage(&mut db, &mut dice));
        }
        let trailer = [Trailer::Old, Trailer::Fresh, Trailer::Fresh, Trailer::None][dice.below(4)];
        let changed = db.bytes != source.bytes;
        let mut bytes = db.bytes;
        match trailer {
            Trailer::Old => {
                let old = seal(source.bytes.clone());
                bytes.extend_from_slice(&old[old.len() - 32..]);
            }
            Trailer::Fresh => bytes = seal(bytes),
            Trailer::None => {}
        }
        Variant { number, how, trailer, bytes, changed }
    })
}

/// Ends the process when a variant takes longer than anything here may.
struct Watchdog(&'static AtomicU64);

impl Watchdog {
    fn start() -> Self {
        static SEEN: AtomicU64 = AtomicU64::new(0);
        std::thread::spawn(|| {
            let mut last = 0;
            loop {
                std::thread::sleep(Duration::from_secs(90));
                let now = SEEN.load(Ordering::Relaxed);
                if now == last {
                    eprintln!("variant {now} hangs");
                    std::process::abort();
                }
                last = now;
            }
        });
        Self(&SEEN)
    }

    fn at(&self, number: u64) {
        self.0.store(number + 1, Ordering::Relaxed);
    }
}

/// Looks at one variant in every way that the library has; says what is wrong, or the verdict and
/// whether any restore let it in.
fn look(sandbox: &Sandbox, variant: &Variant) -> Result<(Verdict, bool), String> {
    let path = sandbox.write("s.db", &variant.bytes);
    let before = sandbox.picture();
    let wrong = |what: &str| format!("variant {}, {}: {what}", variant.number, variant.how);
    let looked = catch_unwind(AssertUnwindSafe(|| {
        let _ = examine(&path, Level::Quick, &Silent).map(|quick| judge(&quick, true));
        let examined = examine(&path, Level::Full, &Silent)?;
        let (strict, lenient) = (judge(&examined, false), judge(&examined, true));
        let printed = verify::report(&examined, &strict).to_string();
        let status = status::report(&examined).map(|report| report.to_string().len());
        Ok::<_, etcdkit::ops::Error>((examined, strict.verdict, lenient.verdict, printed, status))
    }));
    let looked = match looked {
        Err(_) => return Err(wrong("panics")),
        Ok(Err(error)) => return Err(wrong(&format!("gives no report but {error}"))),
        Ok(Ok(looked)) => looked,
    };
    let (examined, strict, lenient, printed, status) = looked;
    if printed.len() > 4 << 20 {
        return Err(wrong("prints a report of many megabytes"));
    }
    if let Err(error) = status
        && error.code != ExitCode::Damage
    {
        return Err(wrong(&format!("status says {error}")));
    }
    if variant.trailer == Trailer::Old && variant.changed && matches!(examined.seal, Seal::Good) {
        return Err(wrong("has a trailer that fits by chance"));
    }
    if matches!(examined.seal, Seal::Broken { .. }) && strict.exit_code() != ExitCode::Damage {
        return Err(wrong("has a broken trailer and is not damaged"));
    }
    inspected(&path, &examined).map_err(|what| wrong(&what))?;
    let options = Options {
        snapshot: path,
        data_dir: sandbox.path("out"),
        audit_log: sandbox.path("audit.jsonl"),
        skip_hash_check: true,
        ..Options::default()
    };
    let plainly =
        attempt(sandbox, &options, lenient == Verdict::Good).map_err(|what| wrong(&what))?;
    if sandbox.picture() != before {
        return Err(wrong("is changed, or something beside it"));
    }
    // As far as any flag lets it: only a wrong trailer and unknown rows may pass.
    let forced = Options {
        accept_damaged: Some(examined.sha256.clone()),
        accept_corrupt: true,
        accept_unknown: true,
        ..options
    };
    let by_force =
        attempt(sandbox, &forced, body_is_whole(&examined)).map_err(|what| wrong(&what))?;
    if sandbox.picture() != before {
        return Err(wrong("is changed by a forced restore"));
    }
    if plainly && !by_force {
        return Err(wrong("is restored without force and not with it"));
    }
    Ok((strict, by_force))
}

/// Inspects a file: its bytes add up, and what cannot be read makes it partial.
fn inspected(path: &Path, examined: &Examined) -> Result<(), String> {
    let options = inspect::Options { path: path.to_owned(), wal_dir: None, depth: Some(2), top: 5 };
    let report = match catch_unwind(AssertUnwindSafe(|| inspect::inspect(&options, &Silent))) {
        Err(_) => return Err("panics while it is inspected".into()),
        Ok(Err(error)) if examined.file.is_none() && error.code == ExitCode::Damage => {
            return Ok(());
        }
        Ok(Err(error)) => return Err(format!("is not inspected: {error}")),
        Ok(Ok(report)) => report,
    };
    if report.space.total() != examined.size_bytes {
        return Err(format!("does not add up: {:?}", report.space));
    }
    let rows = examined.rows.as_ref().map(|rows| &rows.findings);
    let is_unread = |rows: &Findings| rows.has(Code::RecordBytes) || rows.has(Code::RevisionKey);
    let partial = !examined.tree_is_whole() || rows.is_some_and(is_unread);
    if report.partial != partial {
        return Err(format!("is partial: {}, and should be {partial}", report.partial));
    }
    let is_damage = report.exit_code() == ExitCode::Damage;
    if (partial || examined.pages_damaged()) != is_damage {
        return Err(format!("exits with {:?}", report.exit_code()));
    }
    Ok(())
}

fn body_is_whole(examined: &Examined) -> bool {
    examined.tree_is_whole() && !examined.records_damaged()
}

/// Restores, tells whether that went through, and looks at the outcome: a directory that came to
/// be is checked and removed.
fn attempt(sandbox: &Sandbox, options: &Options, is_good: bool) -> Result<bool, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| restore(options, &Silent)));
    let is_there = sandbox.exists("out");
    let restored = examine(&sandbox.path("out/member/snap/db"), Level::Full, &Silent);
    if is_there {
        fs::remove_dir_all(sandbox.path("out")).unwrap();
    }
    match outcome {
        Err(_) => Err("panics while it is restored".into()),
        Ok(Err(error)) if error.code == ExitCode::Internal => Err(format!("ends in {error}")),
        Ok(Err(_)) if is_there => Err("leaves a target behind".into()),
        Ok(Err(_)) => Ok(false),
        Ok(Ok(_)) if !is_good => Err("is not good and was restored".into()),
        Ok(Ok(_)) => match judge(&restored.map_err(|e| e.to_string())?, true).verdict {
            Verdict::Good | Verdict::Unknown => Ok(true),
            other => Err(format!("was restored to a database that is {other:?}")),
        },
    }
}

#[test]
fn whatever_the_bytes_say_an_answer_comes_and_nothing_is_changed() {
    // Panics are caught and counted as failures of their variant.
    let watchdog = Watchdog::start();
    let share = |worker: u64| -> Vec<Result<(Verdict, bool), String>> {
        let sandbox = Sandbox::new();
        let own = variants().filter(|variant| variant.number % 2 == worker);
        let looks = own.map(|variant| {
            watchdog.at(variant.number);
            look(&sandbox, &variant)
        });
        looks.collect()
    };
    let looks = std::thread::scope(|scope| {
        let other = scope.spawn(|| share(1));
        let mut looks = share(0);
        looks.extend(other.join().unwrap());
        looks
    });
    let mut wrong = Vec::new();
    let mut verdicts = [0_u64; 4];
    let mut restored = 0;
    for look in looks {
        match look {
            Ok((verdict, let_in)) => {
                restored += u64::from(let_in);
                let all = [Verdict::Good, Verdict::Unsealed, Verdict::Unknown, Verdict::Damaged];
                verdicts[all.iter().position(|v| *v == verdict).unwrap()] += 1;
            }
            Err(what) => wrong.push(what),
        }
    }
    assert_eq!(verdicts.iter().sum::<u64>() + wrong.len() as u64, VARIANTS);
    let first: Vec<_> = wrong.iter().take(30).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} of {VARIANTS}\n{}", wrong.len(), first.join("\n"));
    // The generator reaches every verdict, or it tests less than it should.
    assert!(verdicts.iter().all(|count| *count > 0), "{verdicts:?}");
    assert!(verdicts[3] > VARIANTS / 2 && restored > VARIANTS / 20, "{verdicts:?} {restored}");
}

#[test]
fn the_program_answers_within_little_memory() {
    let sandbox = Sandbox::new();
    let limit = if sandbox.sh("ulimit -v 300000").code == 0 {
        "ulimit -v 300000;"
    } else {
        skipped("damaged snapshots with little address space: no ulimit -v");
        ""
    };
    let mut codes = std::collections::BTreeSet::new();
    let sha256_of = |path: &Path| sha256(&fs::read(path).unwrap());
    for variant in variants().filter(|variant| variant.number % THROUGH_PROGRAM == 0) {
        let path = sandbox.write("s.db", &variant.bytes);
        let before = sandbox.picture();
        let verify = sandbox.sh(&format!("{limit} exec $ETCDKIT snapshot verify s.db"));
        let line = format!(
            "snapshot restore s.db --data-dir out --dry-run --accept-damaged={}",
            sha256_of(&path)
        );
        let restore = sandbox.sh(&format!("{limit} exec $ETCDKIT {line}"));
        for ran in [verify, restore] {
            assert!(
                [0, 6, 7].contains(&ran.code),
                "variant {}, {}{ran}",
                variant.number,
                variant.how
            );
            assert!(
                !ran.stderr.contains("bug"),
                "variant {}, {}{ran}",
                variant.number,
                variant.how
            );
            codes.insert(ran.code);
        }
        assert_eq!(sandbox.picture(), before, "variant {}, {}", variant.number, variant.how);
    }
    assert_eq!(codes.into_iter().collect::<Vec<_>>(), [0, 6, 7], "the sample is too small");
}

#[test]
fn a_trailer_that_does_not_fit_is_always_6() {
    let whole = snapshot("3.7");
    let sandbox = Sandbox::new();
    let mut dice = Dice(7);
    for _ in 0..200 {
        let mut bytes = whole.clone();
        let at = dice.below(bytes.len());
        bytes[at] ^= 1 << dice.below(8);
        let path = sandbox.write("s.db", &bytes);
        for level in [Level::Quick, Level::Full] {
            let examined = examine(&path, level, &Silent).unwrap();
            let code = judge(&examined, true).verdict.exit_code();
            assert_eq!(code, ExitCode::Damage, "bit of byte {at}, {level:?}");
        }
    }
}

/// Pages that are put together by hand into a database.
struct Pages {
    bytes: Vec<u8>,
}

impl Pages {
    /// Starts with a root page 2 that holds a bucket `key` whose root is page 3.
    fn new() -> Self {
        let mut pages = Self { bytes: vec![0; 2 * 4096] };
        let header = BucketHeader { root: 3, sequence: 0 };
        let mut root = Node::default();
        root.push(u64::from(BUCKET_FLAG), b"key", &header.encode());
        pages.add(&root, LEAF, 1);
        pages
    }

    fn next(&self) -> u64 {
        (self.bytes.len() / 4096) as u64
    }

    fn add(&mut self, node: &Node, flags: u16, span: u64) {
        let mut page = Vec::new();
        node.encode(&mut page, self.next(), flags, (span - 1) as u32).unwrap();
        page.resize(4096 * span as usize, 0);
        self.bytes.extend_from_slice(&page);
    }

    /// Writes the metas and the trailer.
    fn seal(mut self, freelist: u64) -> Vec<u8> {
        let (high_water_mark, root) = (self.next(), 2);
        let meta = Meta {
            page_size: 4096,
            flags: 0,
            root,
            sequence: 0,
            freelist,
            high_water_mark,
            txid: 9,
        };
        for slot in 0..2 {
            self.bytes[slot * 4096..slot * 4096 + 80].copy_from_slice(&meta.encode(slot as u64));
        }
        seal(self.bytes)
    }
}

/// Files whose work would be the square of their size if pages were read for each reference.
#[test]
fn work_stays_linear_in_the_file() {
    let sandbox = Sandbox::new();
    // A branch page too large to be kept, with 60,000 references to one page behind it.
    for span in [1, 300, 9_000] {
        let mut pages = Pages::new();
        let mut branch = Node::default();
        let count = if span == 1 { 150 } else { 60_000 };
        (0..count).for_each(|n: u32| branch.push(3 + span, &n.to_be_bytes(), b""));
        pages.add(&branch, BRANCH, span);
        let mut leaf = Node::default();
        leaf.push(0, &[0; 17], b"");
        pages.add(&leaf, LEAF, 1);
        sandbox.write("s.db", &pages.seal(NO_FREELIST));
        sandbox.run("snapshot verify s.db -q").expect(6, &["BOLT012"]);
    }
    // The same with a leaf page full of buckets, and with buckets inside each other for ever.
    let mut pages = Pages::new();
    let mut leaf = Node::default();
    let header = |root| BucketHeader { root, sequence: 0 }.encode();
    (0..60_000_u32).for_each(|n| leaf.push(1, &n.to_be_bytes(), &header(3)));
    pages.add(&leaf, LEAF, 9_000);
    sandbox.write("s.db", &pages.seal(NO_FREELIST));
    sandbox.run("snapshot verify s.db").expect(6, &["BOLT012"]);
    let mut pages = Pages::new();
    for id in 4..5_000 {
        let mut leaf = Node::default();
        leaf.push(1, b"deeper", &header(id));
        pages.add(&leaf, LEAF, 1);
    }
    sandbox.write("s.db", &pages.seal(NO_FREELIST));
    sandbox.run("snapshot verify s.db").expect(6, &["BOLT018"]);
    // Every element of a page has the whole page for its value.
    let mut pages = Pages::new();
    let mut leaf = Node::default();
    (0..60_000_u32).for_each(|n| leaf.push(0, &n.to_be_bytes(), b""));
    let at = pages.bytes.len();
    pages.add(&leaf, LEAF, 9_000);
    for n in 0..60_000 {
        let value_size = 8_000_u32 * 4096;
        let field = at + 16 + n * 16 + 12;
        pages.bytes[field..field + 4].copy_from_slice(&value_size.to_le_bytes());
    }
    sandbox.write("s.db", &pages.seal(NO_FREELIST));
    sandbox.run("snapshot verify s.db").expect(6, &[]);
}

/// The freelist of an older bbolt, in each way in which it can disagree with the tree.
#[test]
fn a_damaged_freelist_hides_no_row() {
    let rows = Rows::read(&snapshot("3.6"));
    let restore = "snapshot restore s.db --data-dir out";
    // Ids in the freelist, pages of zeroes behind it, the code that names the defect.
    let cases: [(&[u64], usize, Option<&str>); 6] = [
        (&[], 0, None),
        (&[3], 0, Some("BOLT013")),
        (&[], 2, Some("BOLT015")),
        (&[1], 0, Some("BOLT017")),
        (&[u64::MAX], 0, Some("BOLT017")),
        (&[0], 1, Some("BOLT014")),
    ];
    for (ids, blank, code) in cases {
        let mut bytes = rows.database(4096);
        let id = (bytes.len() / 4096) as u64;
        // A zero stands for the blank page, twice.
        let ids: Vec<u64> =
            ids.iter().flat_map(|n| if *n == 0 { vec![id + 1; 2] } else { vec![*n] }).collect();
        let header = Header { id, flags: FREELIST, count: ids.len() as u16, overflow: 0 };
        let mut page = header.encode().to_vec();
        ids.iter().for_each(|free| page.extend_from_slice(&free.to_le_bytes()));
        page.resize(4096 * (1 + blank), 0);
        bytes.extend_from_slice(&page);
        let mut db = Database { bytes, page: 4096 };
        let mark = db.pages() as u64;
        for slot in 0..2 {
            db.edit_meta(slot, |meta| {
                meta.freelist = id;
                meta.high_water_mark = mark;
            });
        }
        freelist_case(&seal(db.bytes), code, restore);
    }
    // A freelist id that leads to a page of another kind, or nowhere.
    for freelist in [3, 9_999] {
        let mut db = Database { bytes: rows.database(4096), page: 4096 };
        (0..2).for_each(|slot| db.edit_meta(slot, |meta| meta.freelist = freelist));
        freelist_case(&seal(db.bytes), Some("BOLT016"), restore);
    }
}

#[track_caller]
fn freelist_case(bytes: &[u8], code: Option<&str>, restore: &str) {
    let sandbox = Sandbox::with(bytes);
    let Some(code) = code else {
        sandbox.run("snapshot verify s.db").expect(0, &["good"]);
        return;
    };
    sandbox.run("snapshot verify s.db").expect(6, &[code, "pages damaged, records ok"]);
    sandbox.run("snapshot status s.db").expect(6, &[", 91, 60, ", code]);
    sandbox.run(restore).expect(6, &[code, "--accept-damaged="]);
    assert!(!sandbox.exists("out"));
    let line = format!("{restore} --accept-damaged={}", sha256(bytes));
    sandbox.run(&line).expect(0, &["FREELIST IS DAMAGED"]);
    let (before, after) = (Rows::read(&snapshot("3.6")), sandbox.restored("out"));
    let key = vec![b"key".to_vec()];
    assert_eq!(after.buckets[&key], before.buckets[&key]);
    // What FINDINGS.md says: a rebuilt file is without it.
    let compact = "snapshot compact s.db --rev 91 -o c.db";
    sandbox.run(compact).expect(6, &[code, "--accept-damaged="]);
    let line = format!("{compact} --accept-damaged={}", sha256(bytes));
    sandbox.run(&line).expect(0, &["THE FREELIST IS WRONG"]);
    sandbox.run("snapshot verify c.db").expect(0, &["good"]);
    let line = format!("snapshot seal s.db -o t.db --accept-damaged={}", sha256(bytes));
    sandbox.run(&line).expect(6, &[code]);
    sandbox.write("d/member/snap/db", &bytes[..bytes.len() - 32]);
    if ["BOLT015", "BOLT016"].contains(&code) {
        sandbox.run("defrag --data-dir d").expect(0, &["warning", code]);
        sandbox.run("snapshot verify --skip-hash-check d/member/snap/db").expect(0, &["good"]);
        let packed = std::fs::read(sandbox.path("d/member/snap/db")).unwrap();
        assert_eq!(Rows::read(&packed).buckets, before.buckets);
    } else {
        sandbox.run("defrag --data-dir d").expect(6, &[code, "nothing was changed"]);
    }
}

/// Every single byte of the parts that hold the structure, flipped and re-sealed.
#[test]
fn every_byte_of_the_structure_is_minded() {
    let db = Database::of(&snapshot("3.6"));
    let watchdog = Watchdog::start();
    let tree = (2..db.pages())
        .map(|id| id * db.page)
        .filter(|at| matches!(db.u16_at(at + 8), 1 | 2) && db.u16_at(at + 10) > 0);
    let places: Vec<usize> = [0, db.page]
        .into_iter()
        .flat_map(|at| at..at + 80)
        .chain(tree.flat_map(|at| at..at + 64))
        .collect();
    assert!(places.len() > 400, "{}", places.len());
    for (number, at) in (0..).zip(places) {
        watchdog.at(number);
        let mut bytes = db.bytes.clone();
        bytes[at] ^= 0xff;
        let file = bolt::File::from_bytes(bytes.clone());
        // In a meta the other one serves; in a page the flip is damage, or hits a page of the past.
        if at < 2 * db.page {
            assert!(file.is_ok(), "byte {at} of the metas");
        }
        let sandbox = Sandbox::with(&seal(bytes));
        let variant = Variant {
            number,
            how: format!("byte {at} flipped"),
            trailer: Trailer::Fresh,
            bytes: fs::read(sandbox.path("s.db")).unwrap(),
            changed: true,
        };
        look(&sandbox, &variant).unwrap_or_else(|what| panic!("{what}"));
    }
}
