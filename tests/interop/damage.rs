//! Damaged files: whatever bbolt's own check stumbles over, ours finds too.

use std::fs;

use etcdkit::bolt::File;
use etcdkit::bolt::walk::{Ignore, walk};
use etcdkit::format::meta::{META_END, Meta};
use serde_json::Value;

use crate::programs::{Dice, real};
use crate::support::{Sandbox, kubernetes, snapshot};

/// Variants of one file.
const VARIANTS: usize = 80;

/// Pages of a whole file that are in use, behind the metas.
fn pages_in_use(bytes: &[u8]) -> Vec<usize> {
    let count = bytes.len() / 4096;
    (2..count).filter(|page| matches!(bytes[page * 4096 + 8], 1 | 2)).collect()
}

/// Changes both metas and gives them a right checksum again.
fn reseal(bytes: &mut [u8], change: impl Fn(&mut Meta)) {
    for id in [0, 1] {
        let at = id * 4096;
        let mut meta = Meta::decode(&bytes[at..at + META_END]).expect("a meta");
        change(&mut meta);
        let encoded = meta.encode(id as u64);
        bytes[at..at + encoded.len()].copy_from_slice(&encoded);
    }
}

/// Damages a file in one of many ways; returns what was done.
fn damage(bytes: &mut Vec<u8>, kind: usize, dice: &mut Dice) -> String {
    let used = pages_in_use(bytes);
    let pick = |dice: &mut Dice| used[dice.below(used.len())] * 4096;
    let high = bytes.len() / 4096;
    match kind % 16 {
        0 => {
            let at = pick(dice) + dice.below(4096);
            bytes[at] ^= 1 << dice.below(8);
            format!("bit flipped at {at}")
        }
        1 => {
            let at = pick(dice) + dice.below(64);
            bytes[at] ^= 1 << dice.below(8);
            format!("bit flipped in a header at {at}")
        }
        2 => {
            let at = pick(dice);
            bytes[at..at + 4096].fill(0);
            format!("page at {at} zeroed")
        }
        3 => {
            let at = pick(dice) + dice.below(8) * 512;
            bytes[at..at + 512].fill(0);
            format!("sector at {at} zeroed")
        }
        4 => {
            let to = dice.below(bytes.len());
            bytes.truncate(to);
            format!("cut to {to}")
        }
        5 => {
            let (a, b) = (pick(dice), pick(dice));
            let (one, other) = (bytes[a..a + 4096].to_vec(), bytes[b..b + 4096].to_vec());
            bytes[a..a + 4096].copy_from_slice(&other);
            bytes[b..b + 4096].copy_from_slice(&one);
            format!("pages at {a} and {b} swapped")
        }
        6 => {
            let (a, b) = (pick(dice), pick(dice));
            let other = bytes[b..b + 4096].to_vec();
            bytes[a..a + 4096].copy_from_slice(&other);
            bytes[a..a + 8].copy_from_slice(&(a as u64 / 4096).to_le_bytes());
            format!("page at {a} is a copy of the one at {b} under its own id")
        }
        7 => {
            // A branch's child, or what stands there on a leaf, becomes another page.
            let at = pick(dice);
            let element = at + 16 + 16 * dice.below(usize::from(bytes[at + 10]).max(1)) + 8;
            let child = dice.below(high + 2) as u64;
            bytes[element..element + 8].copy_from_slice(&child.to_le_bytes());
            format!("bytes at {element} set to page {child}")
        }
        8 => {
            let at = pick(dice);
            let overflow = dice.below(high * 2) as u32;
            bytes[at + 12..at + 16].copy_from_slice(&overflow.to_le_bytes());
            format!("overflow of the page at {at} set to {overflow}")
        }
        9 => {
            let at = pick(dice);
            let count = dice.below(65536) as u16;
            bytes[at + 10..at + 12].copy_from_slice(&count.to_le_bytes());
            format!("count of the page at {at} set to {count}")
        }
        10 => {
            let root = dice.below(high + 4) as u64;
            reseal(bytes, |meta| meta.root = root);
            format!("both metas name root page {root}")
        }
        11 => {
            let mark = dice.below(high * 2) as u64;
            reseal(bytes, |meta| meta.high_water_mark = mark);
            format!("both metas name {mark} pages")
        }
        12 => {
            let freelist = dice.below(high + 4) as u64;
            reseal(bytes, |meta| meta.freelist = freelist);
            format!("both metas name freelist page {freelist}")
        }
        13 => {
            let at = pick(dice);
            let element = at + 16 + 16 * dice.below(usize::from(bytes[at + 10]).max(1)) + 4;
            bytes[element] = bytes[element].wrapping_add(1 + dice.below(200) as u8);
            format!("position or length at {element} changed")
        }
        14 => {
            // The freelist: an id, the count or the type; in a snapshot some page.
            let list = (2..high).find(|page| bytes[page * 4096 + 8] == 16);
            let at = list.map_or_else(|| pick(dice), |page| page * 4096) + 8 + dice.below(40);
            bytes[at] = bytes[at].wrapping_add(1 + dice.below(40) as u8);
            format!("freelist changed at {at}")
        }
        _ => {
            for page in [0, 1] {
                let at = page * 4096 + 16 + dice.below(64);
                bytes[at] ^= 0x55;
            }
            "both metas damaged".into()
        }
    }
}

#[test]
fn damage_that_bbolt_stumbles_over_is_found() {
    let Some(real) = real() else { return };
    let sandbox = Sandbox::new();
    let mut dice = Dice::new(0x5eed_2024_1130_0001);
    let mut variants = Vec::new();
    // etcd stores no freelist, so one file is bbolt's own.
    let folder = sandbox.text("generated");
    real.ok("oracle", &["boltgen", "--only", "page-4096", &folder]);
    let listed = fs::read(sandbox.path("generated/page-4096.db")).expect("a generated file");
    let sources = [snapshot("3.4"), snapshot("3.6"), snapshot("3.7"), kubernetes(), listed];
    for (source, bytes) in sources.into_iter().enumerate() {
        for kind in 0..VARIANTS {
            let mut bytes = bytes.clone();
            let what = damage(&mut bytes, kind, &mut dice);
            let path = sandbox.write(&format!("damaged/{source}-{kind}.db"), &bytes);
            variants.push((path, what));
        }
    }
    let mut words = vec!["boltcheck", "--timeout=5s"];
    words.extend(variants.iter().map(|(path, _)| path.to_str().expect("a plain path")));
    let verdicts: Vec<Value> = real.oracle_lines(&words);
    assert_eq!(verdicts.len(), variants.len());

    let (mut flagged, mut stricter, mut missed) = (0, 0, Vec::new());
    for ((path, what), verdict) in variants.iter().zip(&verdicts) {
        assert_eq!(verdict["file"], path.to_str().unwrap());
        let stumbled = verdict["ok"] != true;
        let found = match File::open(path) {
            Ok(file) => walk(&file, &mut Ignore).findings.has_errors(),
            Err(_) => true,
        };
        flagged += usize::from(stumbled);
        stricter += usize::from(found && !stumbled);
        // bbolt panics in goroutines of its own: asked alone, it cannot mean another file.
        let alone = || real.oracle(&["boltcheck", path.to_str().expect("a plain path")]);
        if stumbled && !found && alone()["ok"] != true {
            let name = path.file_name().unwrap().to_string_lossy();
            missed.push(format!("{name}: {what}: {verdict}"));
        }
        fs::remove_file(path).expect("the file goes");
    }
    eprintln!("{} variants, {flagged} bbolt stumbles over, {stricter} more found", variants.len());
    assert!(missed.is_empty(), "{} of {flagged} missed:\n{}", missed.len(), missed.join("\n"));
    assert!(flagged >= 200, "only {flagged} of {} are damaged for bbolt", variants.len());
}
