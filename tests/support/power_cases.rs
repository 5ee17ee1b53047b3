//! Operations that must survive a loss of power at any moment, and broken ones that must be
//! caught.

use std::fs;
use std::io::Write;
use std::path::Path;

use etcdkit::bolt;
use etcdkit::bolt::walk::walk;
use etcdkit::ops::disk::{self, OutFile};
use etcdkit::ops::new_file::NewFile;
use etcdkit::ops::restore::{Options, restore};
use etcdkit::ops::rewrite::{compact, seal};
use etcdkit::ops::stage::Target;
use etcdkit::ops::{Error, ExitCode, Silent, defrag, save};

use crate::power_loss::{Case, Outcome};
use crate::support::{Rows, sha256, snapshot, unzip};

/// Some sectors that are all different.
fn bytes() -> Vec<u8> {
    (0..5_000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect()
}

fn io(error: std::io::Error) -> Error {
    Error::new(ExitCode::Failed, error.to_string())
}

/// An operation of plain changes to the disk; a second run takes away what the first one left.
fn plain(name: &str, work: impl Fn(&Path) -> std::io::Result<()> + 'static) -> Case {
    Case::new(name, move |root| {
        for left in [".out.etcdkit-AAAAAA", ".old.etcdkit-AAAAAA"] {
            let left = root.join(left);
            if left.is_dir() {
                fs::remove_dir_all(&left).map_err(io)?;
            } else if left.exists() {
                fs::remove_file(&left).map_err(io)?;
            }
        }
        work(root).map_err(io)
    })
    .target("out")
}

/// The steps of a file that is replaced, each of which can be left out.
#[derive(Clone, Copy)]
struct Steps {
    sync_file: bool,
    sync_folder: bool,
    remove_first: bool,
    write_late: bool,
}

const SOUND: Steps =
    Steps { sync_file: true, sync_folder: true, remove_first: false, write_late: false };

fn replace_file(name: &str, steps: Steps) -> Case {
    let before = |root: &Path| fs::write(root.join("out"), b"old").unwrap();
    plain(name, move |root| {
        let (temporary, target) = (root.join(".out.etcdkit-AAAAAA"), root.join("out"));
        let mut file = OutFile::create(&temporary)?;
        file.write_all(&bytes())?;
        if steps.sync_file {
            file.sync()?;
        }
        if steps.write_late {
            file.write_all_at(b"late", 0)?;
        }
        if steps.remove_first {
            disk::remove_file(&target)?;
        }
        disk::rename_over(&temporary, &target)?;
        if steps.sync_folder {
            disk::sync_dir(root)?;
        }
        Ok(())
    })
    .before(before)
}

/// The steps of a directory that takes another one's place, each of which can be left out.
#[derive(Clone, Copy)]
struct DirSteps {
    sync_inside: bool,
    sync_deep: bool,
    sync_between: bool,
    removes_old: bool,
}

const SOUND_DIR: DirSteps =
    DirSteps { sync_inside: true, sync_deep: true, sync_between: true, removes_old: true };

fn replace_dir(name: &str, steps: DirSteps) -> Case {
    let before = |root: &Path| {
        fs::create_dir_all(root.join("out/member/snap")).unwrap();
        fs::write(root.join("out/member/snap/db"), b"old").unwrap();
    };
    plain(name, move |root| {
        let (temporary, target) = (root.join(".out.etcdkit-AAAAAA"), root.join("out"));
        disk::make_dir(&temporary, 0o700)?;
        disk::make_dir(&temporary.join("member"), 0o700)?;
        disk::write_new(&temporary.join("member/db"), &bytes())?;
        if steps.sync_deep {
            disk::sync_dir(&temporary.join("member"))?;
        }
        if steps.sync_inside {
            disk::sync_dir(&temporary)?;
        }
        disk::exchange(&temporary, &target)?;
        if steps.sync_between {
            disk::sync_dir(root)?;
        }
        if steps.removes_old {
            disk::remove_dir_all(&temporary)?;
        }
        disk::sync_dir(root)
    })
    .before(before)
}

fn caught(case: &Case, words: &str) {
    let outcome = case.outcome();
    let found = outcome.problems.iter().any(|problem| problem.starts_with(words));
    let first: Vec<_> = outcome.problems.iter().take(3).collect();
    assert!(found, "no problem {words:?} in {} states: {first:#?}", outcome.states);
}

#[test]
fn sound_ways_to_replace_something_pass() {
    let Outcome { states, with_temporaries, .. } = replace_file("a file", SOUND).survives();
    assert!(states > 10 && with_temporaries > 5, "{states} {with_temporaries}");
    replace_dir("a directory", SOUND_DIR).survives();
}

#[test]
fn a_missing_sync_is_caught() {
    let neither = "out is neither old nor new";
    let lost = "the operation said that it is done, and it may be lost";
    caught(&replace_file("unsynced", Steps { sync_file: false, ..SOUND }), neither);
    caught(&replace_file("written late", Steps { write_late: true, ..SOUND }), neither);
    caught(&replace_file("folder unsynced", Steps { sync_folder: false, ..SOUND }), lost);
    caught(&replace_file("removed first", Steps { remove_first: true, ..SOUND }), neither);
    let unsynced = DirSteps { sync_inside: false, ..SOUND_DIR };
    caught(&replace_dir("a folder in it unsynced", unsynced), neither);
    let unsynced = DirSteps { sync_deep: false, ..SOUND_DIR };
    caught(&replace_dir("the deepest folder unsynced", unsynced), neither);
    let unsynced = DirSteps { sync_between: false, ..SOUND_DIR };
    caught(&replace_dir("old data removed before it is replaced for good", unsynced), neither);
}

#[test]
fn a_length_that_is_not_certain_is_caught() {
    let cut = |synced: bool| {
        plain("cut", move |root| {
            let temporary = root.join(".out.etcdkit-AAAAAA");
            let mut file = OutFile::create(&temporary)?;
            file.write_all(&bytes())?;
            file.sync()?;
            file.set_len(700)?;
            if synced {
                file.sync()?;
            }
            disk::rename_new(&temporary, &root.join("out"))?;
            disk::sync_dir(root)
        })
        .whole(|path| fs::metadata(path).is_ok_and(|meta| meta.len() == 700))
    };
    caught(&cut(false), "out is neither old nor new");
    // A second run is refused by the rename where the first one went through; that is no loss.
    let outcome = cut(true).outcome();
    let other = outcome.problems.iter().find(|problem| !problem.starts_with("the second run says"));
    assert!(other.is_none() && outcome.new > 0, "{other:?}");
}

#[test]
fn what_has_no_temporarys_name_is_caught() {
    let case = plain("visible", |root| {
        let temporary = root.join("out.tmp");
        let _ = fs::remove_file(&temporary);
        disk::write_new(&temporary, &bytes())?;
        disk::rename_over(&temporary, &root.join("out"))?;
        disk::sync_dir(root)
    });
    caught(&case, "out.tmp is left behind");
    let case = plain("touched", |root| {
        let _ = fs::remove_file(root.join(".out.etcdkit-AAAAAA"));
        disk::write_new(&root.join(".out.etcdkit-AAAAAA"), &bytes())?;
        disk::rename_over(&root.join(".out.etcdkit-AAAAAA"), &root.join("out"))?;
        if root.join("other").exists() {
            disk::remove_file(&root.join("other"))?;
        }
        disk::sync_dir(root)
    });
    caught(&case.before(|root| fs::write(root.join("other"), b"x").unwrap()), "other was not");
}

#[test]
fn old_data_that_is_not_kept_is_caught() {
    let case = replace_dir("not kept", SOUND_DIR).keeps_old();
    caught(&case, "what was at out is nowhere");
}

#[test]
fn a_change_that_goes_past_the_record_is_caught() {
    let case = plain("past the record", |root| fs::write(root.join("out"), b"new"));
    caught(&case, "not all was done through ops::disk");
}

#[test]
fn a_second_run_that_fails_is_caught() {
    let case = Case::new("once", |root| {
        let temporary = root.join(".out.etcdkit-AAAAAA");
        disk::write_new(&temporary, &bytes()).map_err(io)?;
        disk::rename_over(&temporary, &root.join("out")).map_err(io)?;
        disk::sync_dir(root).map_err(io)
    });
    caught(&case.target("out"), "the second run says");
}

/// Two files, of which the second stands on the first.
fn pair(sync_between: bool) -> Case {
    Case::new("a pair", move |root| {
        for name in ["first", "second"] {
            let temporary = root.join(format!(".{name}.etcdkit-AAAAAA"));
            let _ = fs::remove_file(&temporary);
            disk::write_new(&temporary, &bytes()).map_err(io)?;
            disk::rename_over(&temporary, &root.join(name)).map_err(io)?;
            if sync_between || name == "second" {
                disk::sync_dir(root).map_err(io)?;
            }
        }
        Ok(())
    })
    .target("first")
    .target("second")
}

#[test]
fn what_stands_on_something_that_is_not_there_is_caught() {
    caught(&pair(false), "second is there, and what it stands on is not");
    pair(true).survives();
}

#[test]
fn a_new_file_survives() {
    let case = Case::new("a new file", |root| {
        let mut file = NewFile::create(&root.join("out"))?;
        for piece in bytes().chunks(3_000) {
            file.out().write_all(piece).map_err(io)?;
        }
        file.out().write_all_at(b"a head that is written last", 0).map_err(io)?;
        file.publish().map(drop)
    });
    let outcome = case.target("out").survives();
    assert!(outcome.states > 50 && outcome.with_temporaries > 30, "{outcome:?}");
    assert_eq!(outcome.left_by_second_run, 0);
}

/// What stands at a data directory's place before.
fn prepare(root: &Path, target: &str) {
    match target {
        "empty" => fs::create_dir(root.join("out")).unwrap(),
        "occupied" => {
            fs::create_dir_all(root.join("out/member/snap")).unwrap();
            fs::write(root.join("out/member/snap/db"), b"precious").unwrap();
            fs::write(root.join("out/stray"), b"too").unwrap();
        }
        _ => {}
    }
}

/// Builds a small directory in a stage and publishes it.
fn staged(target: &Path, force: bool) -> Result<(), Error> {
    let stage = Target::inspect(target, force)?.stage()?;
    let member = stage.path().join("member");
    disk::make_dir(&member, 0o700).map_err(io)?;
    disk::write_new(&member.join("db"), &bytes()).map_err(io)?;
    disk::sync_dir(&member).map_err(io)?;
    disk::sync_dir(stage.path()).map_err(io)?;
    let published = stage.publish(None)?;
    match published.warnings.first() {
        Some(warning) => Err(Error::new(ExitCode::Failed, warning)),
        None => Ok(()),
    }
}

/// A small directory that is staged and published.
fn stages(target: &'static str, place: &'static str) -> Case {
    let force = target == "occupied";
    let name = format!("a stage, {target}, at {place}");
    let case = Case::new(&name, move |root| staged(&root.join(place), force))
        .before(move |root| prepare(root, target))
        .target(place);
    if force { case.keeps_old() } else { case }
}

#[test]
fn a_staged_directory_survives() {
    for place in ["out", "deep/er/out"] {
        let outcome = stages("absent", place).survives();
        assert!(outcome.states > 10, "{outcome:?}");
    }
}

#[test]
fn a_directory_staged_in_the_place_of_another_survives() {
    stages("occupied", "out").survives();
}

/// A restore with everything given, so that two runs make the same bytes.
fn restores(target: &'static str, wal: bool, all_members: bool) -> Case {
    let audit = tempfile::tempdir().unwrap();
    let force = target == "occupied";
    let name = format!("restore, {target}, WAL elsewhere {wal}, all members {all_members}");
    let one = |number: u8| format!("m{number}=http://127.0.0.1:238{number}");
    let mut case = Case::new(&name, move |root| {
        let cluster = if all_members { [1, 2, 3].map(one).join(",") } else { one(1) };
        let mut options = Options {
            snapshot: root.join("s.db"),
            data_dir: root.join("out"),
            wal_dir: wal.then(|| root.join("wal")),
            audit_log: audit.path().join("audit.jsonl"),
            force,
            ..Options::default()
        };
        options.identity.initial_cluster = Some(cluster);
        options.identity.token = Some("t".into());
        options.revision.bump = Some("1000".into());
        options.revision.mark_compacted = true;
        options.identity.all = all_members;
        options.identity.name = (!all_members).then(|| "m1".into());
        let report = restore(&options, &Silent)?;
        match report.warnings.iter().find(|warning| warning.contains("could not be synced")) {
            Some(warning) => Err(Error::new(ExitCode::Failed, warning)),
            None => Ok(()),
        }
    })
    .before(move |root| {
        fs::write(root.join("s.db"), snapshot("3.6")).unwrap();
        prepare(root, target);
    });
    if wal {
        // A WAL that is there is never removed, whoever made it.
        case = case.target("wal").half_refused("wal-dir");
    }
    case = case.target("out");
    if force {
        case = case.keeps_old();
    }
    case
}

#[test]
fn a_restore_survives() {
    let outcome = restores("absent", false, false).survives();
    assert!(outcome.states > 60, "{outcome:?}");
}

#[test]
fn a_restore_of_all_members_survives() {
    restores("absent", false, true).survives();
}

#[test]
fn a_restore_in_the_place_of_old_data_survives() {
    restores("occupied", false, false).survives();
}

#[test]
fn a_directory_staged_inside_an_empty_one_survives() {
    stages("empty", "out").survives();
}

#[test]
fn a_restore_into_an_empty_directory_survives() {
    restores("empty", false, false).survives();
}

#[test]
fn a_restore_with_its_wal_elsewhere_survives() {
    restores("absent", true, false).survives();
}

/// The rows of a database file, where it is whole.
fn rows(path: &Path) -> Option<Rows> {
    let bytes = fs::read(path).ok()?;
    let file = bolt::File::from_bytes(bytes).ok()?;
    let mut rows = Rows::default();
    let walked = walk(&file, &mut rows);
    (!walked.findings.has_errors()).then_some(rows)
}

#[test]
fn a_defragmentation_survives() {
    let bytes = snapshot("3.6");
    let database = bytes[..bytes.len() - 32].to_vec();
    let want = Rows::read(&database);
    let audit = tempfile::tempdir().unwrap();
    let case = Case::new("defrag", move |root| {
        let options = defrag::Options {
            data_dir: root.join("d"),
            dry_run: false,
            audit_log: audit.path().join("audit.jsonl"),
        };
        defrag::defrag(&options, &Silent).map(drop)
    })
    .before(move |root| {
        fs::create_dir_all(root.join("d/member/snap")).unwrap();
        fs::write(root.join("d/member/snap/db"), &database).unwrap();
        // What a killed run left.
        fs::write(root.join("d/member/snap/db.tmp.etcdkit-dead"), b"half").unwrap();
    })
    .target("d/member/snap/db")
    .whole(move |path| rows(path).as_ref() == Some(&want));
    let outcome = case.survives();
    assert!(outcome.states > 20, "{outcome:?}");
}

/// A note is whole when it is of the snapshot beside it; it holds the time, so no two are equal.
fn is_note(path: &Path) -> bool {
    let Ok(note) = fs::read(path) else { return false };
    let Ok(note) = serde_json::from_slice::<serde_json::Value>(&note) else { return false };
    let snapshot = fs::read(path.with_extension(""));
    snapshot.is_ok_and(|snapshot| note["sha256"] == sha256(&snapshot))
}

#[test]
fn a_compacted_and_a_sealed_snapshot_survive() {
    let audit = tempfile::tempdir().unwrap();
    let log = audit.path().join("audit.jsonl");
    let before = |root: &Path| fs::write(root.join("s.db"), snapshot("3.6")).unwrap();
    let audit_log = log.clone();
    Case::new("snapshot compact", move |root| {
        let options = compact::Options {
            file: root.join("s.db"),
            output: root.join("out"),
            revision: 80,
            accept_damaged: None,
            skip_hash_check: false,
            without_log: false,
            dry_run: false,
            audit_log: audit_log.clone(),
        };
        compact::compact(&options, &Silent).map(drop)
    })
    .before(before)
    .target("out")
    .survives();
    let before = |root: &Path| {
        let bytes = snapshot("3.6");
        fs::write(root.join("s.db"), &bytes[..bytes.len() - 32]).unwrap();
    };
    Case::new("snapshot seal", move |root| {
        let options = seal::Options {
            file: root.join("s.db"),
            output: root.join("out"),
            accept_damaged: None,
            without_log: false,
            dry_run: false,
            audit_log: log.clone(),
        };
        seal::seal(&options, &Silent).map(drop)
    })
    .before(before)
    .target("out")
    .survives();
}

#[test]
fn a_snapshot_of_a_dead_member_survives() {
    // What is only read lies elsewhere: a log of 64 MB is too much for each of many states.
    let elsewhere = tempfile::tempdir().unwrap();
    let archive = unzip("etcd-3.6/killed-datadir.tar.gz");
    tar::Archive::new(archive.as_slice()).unpack(elsewhere.path().join("d")).unwrap();
    let case = Case::new("snapshot save --from-data-dir", move |root| {
        let options = save::Options {
            output: root.join("out.db"),
            data_dir: elsewhere.path().join("d"),
            wal_dir: None,
            include_uncommitted: false,
            dry_run: false,
            audit_log: elsewhere.path().join("audit.jsonl"),
        };
        save::save(&options, &Silent).map(drop)
    })
    .target("out.db.json")
    .target("out.db")
    .half_refused("exists")
    .whole(is_note)
    .at_most(60);
    let outcome = case.survives();
    assert_eq!(outcome.left_by_second_run, 0);
}
