//! What `snapshot restore` decides: what is let in, who the member is, which revision it starts at.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use etcdkit::etcd::members::Member;
use etcdkit::etcd::record::KeyValue;
use etcdkit::etcd::revision::Revision;
use serde_json::{Value, json};

use crate::support::{
    Rows, Sandbox, fixture, kubernetes, member, picture, sha256, skipped, snapshot, unpack, unzip,
};

const RESTORE: &str = "snapshot restore s.db --data-dir out";
/// Largest revision that JSON readers hold exactly.
const LIMIT: i64 = (1 << 53) - 1;

fn plain() -> Rows {
    Rows::read(&snapshot("3.6"))
}

fn revisions(report: &Value) -> (i64, i64) {
    let number = |key: &str| report["revision"][key].as_i64().unwrap();
    (number("old"), number("new"))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// Refused with 7 and named; carried over byte for byte when that is asked for.
fn unknown(rows: Rows, code: &str, name: &str) -> Sandbox {
    let sandbox = Sandbox::with(&rows.snapshot());
    sandbox.run("snapshot verify s.db").expect(7, &["unknown", code, name]);
    sandbox.run(RESTORE).expect(7, &[code, name, "--accept-unknown"]);
    assert!(!sandbox.exists("out"), "{name}");
    sandbox.run(&format!("{RESTORE} --accept-unknown")).expect(0, &[]);
    let restored = sandbox.restored("out");
    for (bucket, all) in &rows.buckets {
        let changed = [b"members".to_vec(), b"meta".to_vec()];
        if !changed.contains(&bucket[0]) {
            assert_eq!(restored.buckets.get(bucket), Some(all), "{name}");
        }
    }
    sandbox
}

#[test]
fn the_unknown_is_named_refused_and_carried_over_on_request() {
    unknown(plain().put("zebra", b"k", b"v"), "ETCD002", "zebra");
    unknown(plain().put("aardvark", b"k", b"v"), "ETCD002", "aardvark");
    unknown(plain().put("lease/inner", b"k", b"v"), "ETCD020", "inner");
    unknown(plain().put("zebra/inner/most", b"k", b"v"), "ETCD002", "zebra");
    let sandbox = unknown(plain().put("meta", b"newThing", b"1"), "ETCD003", "newThing");
    assert_eq!(sandbox.restored("out").get("meta", b"newThing").unwrap(), b"1");
    let sandbox = unknown(plain().put("meta", b"storageVersion", b"3.9.0"), "ETCD009", "3.9.0");
    assert_eq!(sandbox.restored("out").get("meta", b"storageVersion").unwrap(), b"3.9.0");
    let key = Revision::new(92, 0).encode();
    let record = KeyValue {
        key: b"/new",
        create_revision: 92,
        mod_revision: 92,
        version: 1,
        ..KeyValue::default()
    };
    let mut value = Vec::new();
    record.encode(&mut value);
    value.extend_from_slice(&[0x38, 1]);
    unknown(plain().put("key", &key, &value), "ETCD004", "field 7");
    unknown(plain().alarm(9, 7), "ETCD022", "alarm 7");
}

#[test]
fn a_corrupt_alarm_stops_everything_but_an_explicit_yes() {
    let sandbox = Sandbox::with(&plain().alarm(9, 2).alarm(9, 1).snapshot());
    sandbox.run("snapshot verify s.db").expect(6, &["ETCD016", "records damaged"]);
    let report = sandbox.run("snapshot status s.db -w json").expect(6, &[]).json();
    assert_eq!(report["alarms"][1], json!({"memberID": "9", "alarm": "CORRUPT"}));
    sandbox.run(RESTORE).expect(6, &["CORRUPT alarm of member 9", "--accept-corrupt"]);
    assert!(!sandbox.exists("out"));
    let words = ["CORRUPT of member 9", "NOSPACE of member 9 dropped"];
    sandbox.run(&format!("{RESTORE} --accept-corrupt")).expect(0, &words);
    let restored = sandbox.restored("out");
    assert!(restored.get("alarm", &[0x08, 9, 0x10, 2]).is_some());
    assert!(restored.get("alarm", &[0x08, 9, 0x10, 1]).is_none());
}

#[test]
fn a_nospace_alarm_of_a_dead_member_is_dropped_or_kept() {
    let sandbox = Sandbox::with(&plain().alarm(9, 1).snapshot());
    sandbox.run("snapshot verify s.db").expect(0, &["ETCD015", "NOSPACE"]);
    sandbox.run(RESTORE).expect(0, &["NOSPACE of member 9 dropped", "etcdctl alarm disarm"]);
    assert!(sandbox.restored("out").buckets[&vec![b"alarm".to_vec()]].is_empty());
    let line = "snapshot restore s.db --data-dir kept --keep-alarms";
    sandbox.run(line).expect(0, &["alarms stay", "NOSPACE of member 9"]);
    assert!(sandbox.restored("kept").get("alarm", &[0x08, 9, 0x10, 1]).is_some());
}

#[test]
fn a_learner_is_left_out_and_that_is_said() {
    let learner = Member { is_learner: true, ..member(0xbeef, "lea", "http://127.0.0.3:2380") };
    let one = member(0xabcd, "m1", "http://127.0.0.1:2380");
    let sandbox = Sandbox::with(&plain().members(&[one.clone(), learner.clone()]).snapshot());
    sandbox.run("snapshot verify s.db").expect(0, &["ETCD023", "beef"]);
    let report = sandbox.run(&format!("{RESTORE} -w json")).expect(0, &[]).json();
    assert_eq!(report["members"].as_array().unwrap().len(), 1);
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("learner lea (beef) is left out"), "{warnings}");
    assert_eq!(sandbox.restored("out").buckets[&vec![b"members".to_vec()]].len(), 1);
    let two = member(0xcdef, "m2", "http://127.0.0.2:2380");
    let sandbox = Sandbox::with(&plain().members(&[one, two, learner]).snapshot());
    sandbox.run(RESTORE).expect(7, &["on the host of m1", "on the host of m2", "learner lea"]);
}

#[test]
fn a_kubernetes_keyspace_is_bumped_above_everything() {
    let sandbox = Sandbox::with(&kubernetes());
    let ran = sandbox.run(&format!("{RESTORE} -w json")).expect(0, &[]);
    let (old, new) = revisions(&ran.json());
    assert_eq!(old, 296);
    assert!(new > 1_735_689_600_000 && new <= LIMIT, "{new}: not the clock's");
    let restored = sandbox.restored("out");
    let marker = Revision::new(new, 0).encode();
    assert_eq!(restored.get("meta", b"scheduledCompactRev").unwrap(), &marker);
    assert_eq!(restored.get("key", &marker).unwrap(), b"");
    // The same old snapshot again starts above the first time; the restored directory too.
    let again = sandbox.run("snapshot restore s.db --data-dir again -w json").expect(0, &[]).json();
    assert!(revisions(&again).1 > new);
    let line = "snapshot restore out/member/snap/db --data-dir third --skip-hash-check -w json";
    let third = sandbox.run(line).expect(0, &[]).json();
    assert_eq!(revisions(&third), (new, new + 1_000_000_000));
    // Every row of before is still there, byte for byte.
    let before = Rows::read(&kubernetes());
    for (bucket, rows) in &before.buckets {
        for (key, value) in rows {
            let name = bucket[0].as_slice();
            if name != b"members" && name != b"meta" {
                assert_eq!(restored.buckets[bucket].get(key), Some(value));
            }
        }
    }
}

#[test]
fn bumps_that_do_not_fit_are_refused_with_the_largest_that_does() {
    let sandbox = Sandbox::with(&kubernetes());
    let largest = LIMIT - 296;
    let texts = ["18446744073709551615", "9223372036854775807", "9007199254740992", "-1", "0", "x"];
    for bump in texts {
        for more in ["", "--mark-compacted"] {
            let ran = sandbox.run(&format!("{RESTORE} --bump-revision {bump} {more}"));
            let ran = ran.expect(2, &[bump]);
            assert!(bump == "0" || ran.stderr.contains(&largest.to_string()), "{ran}");
            assert!(!sandbox.exists("out"), "{bump}");
        }
    }
    let ran = sandbox.run(&format!("{RESTORE} --bump-revision {} -w json", largest + 1));
    assert!(text(&ran.expect(2, &[]).error()["message"]).contains(&largest.to_string()));
    let ran = sandbox.run(&format!("{RESTORE} --bump-revision {largest} -w json")).expect(0, &[]);
    assert_eq!(revisions(&ran.json()), (296, LIMIT));
    // One flag does both, and its partner alone computes the bump.
    let ran = sandbox.run("snapshot restore s.db --data-dir b --bump-revision 1000 -w json");
    let report = ran.expect(0, &[]).json();
    assert_eq!((revisions(&report).1, &report["revision"]["mark_compacted"]), (1296, &json!(true)));
    let sandbox = Sandbox::with(&snapshot("3.6"));
    let report = sandbox.run(&format!("{RESTORE} --mark-compacted -w json")).expect(0, &[]).json();
    assert!(revisions(&report).1 > 1_000_000_000);
    for more in ["--bump-revision 5", "--mark-compacted"] {
        let ran = sandbox.run(&format!("snapshot restore s.db --data-dir c --no-bump {more}"));
        ran.expect(2, &["contradicts"]);
    }
}

#[test]
fn no_bump_is_honoured_and_loud_under_kubernetes() {
    let sandbox = Sandbox::with(&kubernetes());
    let report = sandbox.run(&format!("{RESTORE} --no-bump -w json")).expect(0, &[]).json();
    assert_eq!(revisions(&report), (296, 296));
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("served again") && warnings.contains("restart"), "{warnings}");
    assert!(sandbox.restored("out").get("meta", b"scheduledCompactRev").is_none());
    // A keyspace that nobody watches is not bumped, and nothing is cried about.
    let sandbox = Sandbox::with(&snapshot("3.6"));
    for more in ["", "--no-bump"] {
        let line = format!("snapshot restore s.db --data-dir o{more} {more} -w json");
        let report = sandbox.run(&line).expect(0, &[]).json();
        assert_eq!((revisions(&report), &report["warnings"]), ((91, 91), &json!([])), "{more}");
    }
}

#[test]
fn what_is_known_of_revisions_is_a_floor() {
    let sandbox = Sandbox::with(&kubernetes());
    let known = 1_900_000_000_000_000_i64;
    let line = format!("{RESTORE} --newest-revision {known} --dry-run -w json");
    let report = sandbox.run(&line).expect(0, &[]).json();
    assert_eq!(revisions(&report).1, known + 1_000_000_000);
    assert_eq!(report["revision"]["evidence"][0]["revision"], known);
    let line = format!("{RESTORE} --newest-revision 5000 --bump-revision 100");
    sandbox.run(&line).expect(7, &["not above 5000", "--bump-revision 4705 or more"]);
    sandbox.run(&format!("{RESTORE} --newest-revision 0")).expect(2, &["1 or more"]);
    // No cluster gets there: refused, and the override that the message names does override.
    let impossible = format!("{RESTORE} --newest-revision {LIMIT}");
    sandbox.run(&impossible).expect(7, &["--no-bump"]);
    let line = format!("{impossible} --no-bump -w json");
    let report = sandbox.run(&line).expect(0, &[]).json();
    assert_eq!(revisions(&report), (296, 296));
    assert!(report["warnings"].to_string().contains("served again"));
}

#[test]
fn a_dead_members_directory_is_evidence() {
    for version in ["3.4", "3.5", "3.6", "3.7"] {
        let sandbox = Sandbox::with(&snapshot(version));
        unpack(&format!("etcd-{version}/killed-datadir.tar.gz"), &sandbox.path("dead"));
        let line = format!("{RESTORE} --old-data-dir dead --dry-run -w json");
        let before = picture(&sandbox.path("dead"));
        let report = sandbox.run(&line).expect(0, &[]).json();
        assert_eq!(picture(&sandbox.path("dead")), before, "{version}");
        let known = report["revision"]["evidence"].as_array().unwrap();
        let known = known.iter().find(|known| text(&known["source"]).contains("dead")).unwrap();
        // It acknowledged revision 120; its database stands at 91, some 30 entries before.
        let revision = known["revision"].as_i64().unwrap();
        assert!((120..=130).contains(&revision), "{version}: {revision}");
        let (old, new) = revisions(&report);
        assert!(old == 91 && new > revision + 999_999_999, "{version}: {old} {new}");
        // A sector that was lost since hides entries; they are counted for what they may have been.
        let wal = sandbox.path("dead/member/wal/0000000000000000-0000000000000000.wal");
        let whole = fs::read(&wal).unwrap();
        let end = whole.iter().rposition(|byte| *byte != 0).unwrap();
        let mut torn = whole.clone();
        torn[end / 512 * 512 - 1024..][..512].fill(0);
        fs::write(&wal, &torn).unwrap();
        let report = sandbox.run(&line).expect(0, &[]).json();
        let known = report["revision"]["evidence"].as_array().unwrap();
        let known = known.iter().find(|known| text(&known["source"]).contains("dead")).unwrap();
        assert!(known["revision"].as_i64().unwrap() >= 120, "{version}: {known}");
        // Half of it is half the evidence, and that is said.
        sandbox.sh("rm -rf dead/member/wal").expect(0, &[]);
        let report = sandbox.run(&line).expect(0, &["its log was not read"]).json();
        assert!(report["warnings"].to_string().contains("its log was not read"), "{version}");
        sandbox.sh("rm -rf dead/member").expect(0, &[]);
        sandbox.run(&line).expect(9, &["no member/snap/db and no WAL"]);
    }
}

fn note(snapshot: &[u8], highest: i64) -> Value {
    json!({
        "kind": "etcdkit.snapshot", "version": 1, "sha256": sha256(snapshot),
        "size_bytes": snapshot.len(), "revision": 296, "highest_revision_seen": highest,
        "saved_at": "2026-01-01T00:00:00Z",
    })
}

#[test]
fn the_note_beside_the_snapshot_is_evidence() {
    let bytes = kubernetes();
    let sandbox = Sandbox::with(&bytes);
    let restore = |more: &str| sandbox.run(&format!("{RESTORE} --dry-run -w json {more}"));
    let evidence = |report: &Value| report["revision"]["evidence"][0].clone();
    let high = 1_900_000_000_000_000_i64;

    let report = restore("").expect(0, &[]).json();
    assert_eq!(
        evidence(&report),
        json!({"source": "s.db.json", "revision": null, "note": "no such note"})
    );
    assert_eq!(report["warnings"], json!([]));

    sandbox.write("s.db.json", note(&bytes, high).to_string().as_bytes());
    let report = restore("").expect(0, &[]).json();
    assert_eq!(revisions(&report).1, high + 1_000_000_000);
    assert_eq!(evidence(&report), json!({"source": "s.db.json", "revision": high}));
    restore("--bump-revision 1000000").expect(7, &["known to have been served"]);

    // A note about another file says how far the cluster was all the same, with a warning.
    sandbox.write("s.db.json", note(b"another", high).to_string().as_bytes());
    let report = restore("").expect(0, &[]).json();
    assert_eq!(revisions(&report).1, high + 1_000_000_000);
    assert!(report["warnings"].to_string().contains("another sha256"));

    let broken: [&[u8]; 5] = [b"", b"{", b"[]", b"\0\xff", &vec![b' '; 3 << 20]];
    for bytes in broken {
        sandbox.write("s.db.json", bytes);
        let report = restore("").expect(0, &[]).json();
        assert_eq!(evidence(&report)["revision"], Value::Null);
        assert!(report["warnings"].to_string().contains("not used"), "{report}");
    }
    let mut huge = note(&bytes, high);
    huge["highest_revision_seen"] = json!(u64::MAX);
    sandbox.write("s.db.json", huge.to_string().as_bytes());
    let report = restore("").expect(0, &[]).json();
    assert_eq!(evidence(&report)["revision"], Value::Null);
    huge["highest_revision_seen"] = json!(LIMIT);
    sandbox.write("s.db.json", huge.to_string().as_bytes());
    restore("").expect(7, &["--no-bump"]);
    fs::remove_file(sandbox.path("s.db.json")).unwrap();
    for script in ["mkfifo s.db.json", "ln -s /dev/zero s.db.json", "mkdir s.db.json"] {
        sandbox.sh(script).expect(0, &[]);
        let report = restore("").expect(0, &[]).json();
        assert_eq!(evidence(&report)["revision"], Value::Null, "{script}");
        sandbox.sh("rm -r s.db.json").expect(0, &[]);
    }
}

#[test]
fn several_members_get_one_command_a_host_and_the_commands_agree() {
    let members = [
        member(1, "m1", "http://127.0.0.1:2380"),
        member(2, "m2", "http://127.0.0.2:2380"),
        member(3, "m3", "http://127.0.0.3:2380"),
    ];
    for (rows, is_bumped) in [(plain(), false), (Rows::read(&kubernetes()), true)] {
        let sandbox = Sandbox::with(&rows.members(&members).snapshot());
        let ran = sandbox.run(&format!("{RESTORE} -w json")).expect(7, &[]);
        let hints = text(&ran.error()["hint"]).to_owned();
        assert!(!sandbox.exists("out"));
        let mut seen = Vec::new();
        for name in ["m1", "m2", "m3"] {
            let start = format!("on the host of {name}: etcdkit ");
            let command = hints.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
            let command = command.replace("--data-dir out", &format!("--data-dir {name}"));
            let report = sandbox.run(&format!("{command} -w json")).expect(0, &[]).json();
            assert_eq!(report["name"], name);
            let same = ["cluster_id", "token", "members", "revision"].map(|k| report[k].clone());
            seen.push((same, sandbox.restored(name)));
        }
        // One cluster: the same ids and the same rows, to the byte, on every host.
        assert!(seen.windows(2).all(|pair| pair[0] == pair[1]), "{seen:?}");
        let (old, new) = revisions(&json!({ "revision": seen[0].0[3] }));
        assert_eq!(new > 1_000_000_000, is_bumped);
        assert!(is_bumped || new == old);
        // All of them at once decide the same.
        let start = "all of them at once, here: etcdkit ";
        let command = hints.lines().find_map(|line| line.strip_prefix(start)).unwrap();
        let command = command.replace("DIR", "all");
        let report = sandbox.run(&format!("{command} -w json")).expect(0, &[]).json();
        assert_eq!(revisions(&report), (old, new));
        let again = sandbox.run("snapshot restore s.db --all-members all");
        let again = again.expect(7, &["choose a --all-members that does not exist yet"]);
        assert!(!again.stderr.contains("data-dir"), "{again}");
    }
}

#[test]
fn all_members_are_made_at_once_and_equal_those_made_one_by_one() {
    let members = [
        member(1, "m1", "http://127.0.0.1:2380"),
        member(2, "m2", "http://127.0.0.2:2380"),
        Member { is_learner: true, ..member(3, "m3", "http://127.0.0.3:2380") },
    ];
    let sandbox = Sandbox::with(&Rows::read(&kubernetes()).members(&members).snapshot());
    let dry = "snapshot restore s.db --all-members out -w json --dry-run";
    let dry = sandbox.run(dry).expect(0, &[]).json();
    assert!(!sandbox.exists("out"));
    let all = "snapshot restore s.db --all-members out -w json";
    let report = sandbox.run(all).expect(0, &["learner m3"]).json();
    assert_eq!(sandbox.names("out"), ["m1", "m2"]);
    assert_eq!((&report["name"], &report["token_is_fresh"]), (&Value::Null, &json!(true)));
    assert_eq!(dry["members"].as_array().unwrap().len(), 2);
    let db = |name: &str| fs::read(sandbox.path(name).join("member/snap/db")).unwrap();
    assert_eq!(db("out/m1"), db("out/m2"));
    let (old, new) = revisions(&report);
    for member in report["members"].as_array().unwrap() {
        let name = text(&member["name"]);
        let cluster = "m1=http://127.0.0.1:2380,m2=http://127.0.0.2:2380";
        let bump = report["revision"]["bump"].as_i64().unwrap();
        let one = format!(
            "snapshot restore s.db --data-dir one-{name} --name {name} --initial-cluster {cluster} \
             --initial-cluster-token {} --bump-revision {bump} --mark-compacted -w json",
            text(&report["token"])
        );
        let one = sandbox.run(&one).expect(0, &[]).json();
        assert_eq!(one["cluster_id"], report["cluster_id"]);
        assert_eq!(one["member_id"], member["id"]);
        assert_eq!(revisions(&one), (old, new));
        assert_eq!(db(&format!("one-{name}")), db(&format!("out/{name}")));
        let logs = |dir: &str| {
            let wal = sandbox.path(dir).join("member/wal/0000000000000000-0000000000000000.wal");
            fs::read(wal).unwrap()
        };
        assert_eq!(logs(&format!("one-{name}")), logs(&format!("out/{name}")));
        let start = text(&member["start"]);
        assert!(start.contains("--initial-cluster-state existing"), "{start}");
        assert!(start.contains(text(&report["token"])), "{start}");
    }
    let again = sandbox.run("snapshot restore s.db --all-members out");
    again.expect(7, &["not empty", "m1, m2"]);
    for flags in ["--data-dir x", "--name m1", "--wal-dir x"] {
        sandbox.run(&format!("snapshot restore s.db --all-members out2 {flags}")).expect(2, &[]);
    }
    sandbox.run("snapshot restore s.db").expect(2, &["--data-dir"]);
}

#[test]
fn all_members_with_a_manifest_never_point_etcd_at_the_folder_of_them_all() {
    let members = [
        member(1, "cp-1", "https://10.0.0.11:2380"),
        member(2, "cp-2", "https://10.0.0.12:2380"),
        member(3, "cp-3", "https://10.0.0.13:2380"),
    ];
    let sandbox = Sandbox::with(&Rows::read(&kubernetes()).members(&members).snapshot());
    sandbox.write("etcd.yaml", &fixture("kubernetes/manifests/ha-stacked-cp3.yaml"));
    let line = "snapshot restore s.db --all-members out -w json";
    let report = sandbox.run(&format!("{line} --manifest etcd.yaml")).expect(0, &[]).json();
    let next: Vec<&str> = report["next"].as_array().unwrap().iter().map(text).collect();
    for name in ["cp-1", "cp-2", "cp-3"] {
        let its = |line: &&&str| line.contains(&format!("on the host of {name}:"));
        let line = next.iter().find(its).unwrap();
        assert!(line.contains("hostPath") && line.contains(&format!("out/{name}")), "{line}");
    }
    assert!(!next.iter().any(|line| line.ends_with("/out")), "{next:?}");
    // Without one, what starts them says what it leaves out.
    let report = sandbox.run(&line.replace("out", "bare")).expect(0, &[]).json();
    assert!(report["next"].to_string().contains("--peer-"), "{}", report["next"]);

    let strangers = [member(1, "m1", "http://10.0.0.1:2380")];
    let sandbox = Sandbox::with(&Rows::read(&kubernetes()).members(&strangers).snapshot());
    sandbox.write("etcd.yaml", &fixture("kubernetes/manifests/ha-stacked-cp1.yaml"));
    let line = format!("{line} --initial-cluster m1=http://10.0.0.1:2380 --manifest etcd.yaml");
    sandbox.run(&line).expect(7, &["cp-1", "none of the members"]);
    assert!(!sandbox.exists("out"));
}

#[test]
fn all_members_go_whole_into_what_is_there() {
    let cluster = "--initial-cluster member=http://127.0.0.1:2380,b=http://127.0.0.2:2380";
    let sandbox = Sandbox::with(&snapshot("3.6"));
    sandbox.mkdir("out");
    let line = format!("snapshot restore s.db --all-members out {cluster}");
    sandbox.run(&line).expect(0, &[]);
    assert_eq!(sandbox.names("out"), ["b", "member"]);
    assert!(sandbox.exists("out/member/member/snap/db") && sandbox.exists("out/b/member/snap/db"));
    // A server on one of them stands in the way of moving them all, and of moving a part of one.
    let held = fs::File::open(sandbox.path("out/b/member/snap/db")).unwrap();
    held.lock().unwrap();
    let before = sandbox.picture();
    sandbox.run(&format!("{line} --force")).expect(8, &["in use by"]);
    let inner = "snapshot restore s.db --force --data-dir";
    for place in ["out", "out/b", "out/b/member", "out/b/member/snap"] {
        sandbox.run(&format!("{inner} {place}")).expect(8, &["in use by"]);
    }
    assert_eq!(sandbox.picture(), before);
    drop(held);
    sandbox.run(&format!("{line} --force")).expect(0, &[]);
    assert_eq!(sandbox.names("out"), ["b", "member"]);
}

#[test]
fn the_audit_record_is_not_appended_to_data() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    sandbox.write("precious.db", &snapshot("3.5"));
    sandbox.write("note.json", b"{\n  \"kind\": \"etcdkit.snapshot\"\n}\n");
    for log in ["precious.db", "note.json"] {
        let before = fs::read(sandbox.path(log)).unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_etcdkit"));
        command.current_dir(sandbox.path(".")).args(["snapshot", "restore", "s.db"]);
        let ran = command.args(["--data-dir", &format!("for-{log}"), "--audit-log", log]);
        let ran = ran.output().unwrap();
        assert!(ran.status.success());
        let said = String::from_utf8(ran.stderr).unwrap();
        assert!(said.contains("audit record could not be written"), "{said}");
        assert_eq!(fs::read(sandbox.path(log)).unwrap(), before, "{log}");
    }
}

#[test]
fn a_variable_does_not_contradict_a_flag() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    let run = |words: &[&str]| {
        let mut command = sandbox.command();
        command.env("ETCDKIT_DATA_DIR", "elsewhere").args(["snapshot", "restore", "s.db"]);
        assert!(command.args(words).output().unwrap().status.success(), "{words:?}");
    };
    run(&["--all-members", "out"]);
    assert!(sandbox.exists("out/m1/member") && !sandbox.exists("elsewhere"));
    run(&[]);
    assert!(sandbox.exists("elsewhere/member"));
}

#[test]
fn tokens_and_names_follow_the_rules() {
    let sandbox = Sandbox::with(&snapshot("3.6"));
    let dry = |more: &str| sandbox.run(&format!("{RESTORE} --dry-run -w json {more}"));
    let one = dry("").expect(0, &[]).json();
    let two = dry("").expect(0, &[]).json();
    assert_eq!((text(&one["name"]), &one["token_is_fresh"]), ("m1", &json!(true)));
    assert!(text(&one["identity_source"]).contains("snapshot's own member"));
    assert_ne!(one["token"], two["token"]);
    assert_ne!(one["cluster_id"], two["cluster_id"]);
    assert_eq!(one["members"][0]["peerURLs"], json!(["http://127.0.0.1:27361"]));

    // With explicit flags the ids are etcdutl's.
    let flags = "--name default --initial-cluster default=http://localhost:2380 \
                 --initial-cluster-token etcd-cluster \
                 --initial-advertise-peer-urls http://localhost:2380";
    let report = dry(flags).expect(0, &[]).json();
    assert_eq!(report["member_id"], "8e9e05c52164694d");
    assert_eq!(report["cluster_id"], "cdf818194e3a8c32");
    assert_eq!(report["token_is_fresh"], false);

    let three = "--initial-cluster a=http://h:1,b=http://h:3,c=http://h:5 --name a";
    dry(three).expect(7, &["on the host of a", "on the host of b", "on the host of c"]);
    dry(&format!("{three} --initial-cluster-token t")).expect(7, &["no revision is given"]);
    let full =
        format!("{three} --initial-cluster-token t --bump-revision 1000000 --mark-compacted");
    dry(&full).expect(0, &[]);
    dry(&format!("{three} --initial-cluster-token t --no-bump")).expect(0, &[]);
    for (flags, word) in [
        ("--initial-cluster a=http://h:1,b=http://h:3", "--name"),
        ("--initial-cluster a=http://h:1 --name z", "couldn't find local name"),
        ("--initial-cluster a=ftp://h:1", "scheme"),
        ("--initial-cluster a=http://h", "host:port"),
        ("--initial-cluster a=http://h:1/x", "path"),
        ("--initial-advertise-peer-urls http://h", "host:port"),
        ("--initial-cluster a=http://h:1,b=http://h:1 --name a", "duplicate"),
    ] {
        dry(flags).expect(2, &[word]);
    }
    if cfg!(not(feature = "live")) {
        dry("--endpoints http://127.0.0.1:2379").expect(2, &["unexpected argument '--endpoints'"]);
    }
    let nobody = Sandbox::with(&plain().clear("members").snapshot());
    let ran = nobody.run(RESTORE).expect(7, &["names no member", "--initial-advertise-peer-urls"]);
    assert!(!ran.stderr.contains("localhost"), "{ran}");
    nobody
        .run(&format!("{RESTORE} --name n --initial-advertise-peer-urls http://h:1"))
        .expect(0, &[]);
    assert_eq!(sandbox.names("."), ["s.db", "tmp"]);
}

#[test]
fn the_manifest_gives_identity_and_owner() {
    let sandbox = Sandbox::with(&kubernetes());
    let manifest = |name: &str| {
        let bytes = fixture(&format!("kubernetes/manifests/{name}.yaml"));
        sandbox.write("etcd.yaml", &bytes);
        String::from_utf8(bytes).unwrap()
    };
    let value = |yaml: &str, flag: &str| -> String {
        let start = format!("- --{flag}=");
        yaml.lines().find_map(|line| line.trim().strip_prefix(&start)).expect(flag).to_owned()
    };
    let dry = format!("{RESTORE} --manifest etcd.yaml --dry-run -w json");
    for name in ["single-v1beta3", "single-v1beta4", "etcd-1.28", "etcd-1.31", "reformatted"] {
        let yaml = manifest(name);
        let report = sandbox.run(&dry).expect(0, &[]).json();
        let urls = report["members"][0]["peerURLs"].clone();
        assert_eq!(text(&report["identity_source"]), "the manifest", "{name}");
        if name != "reformatted" {
            assert_eq!(report["name"], value(&yaml, "name"), "{name}");
            assert_eq!(urls, json!([value(&yaml, "initial-advertise-peer-urls")]), "{name}");
        }
        assert!(report["next"].to_string().contains("kube-apiserver"), "{name}");
    }
    manifest("ha-stacked-cp3");
    sandbox.run(&dry).expect(7, &["--initial-cluster-token", "on the host of"]);
    sandbox.write("etcd.yaml", b"kind: Pod\nmetadata: [");
    sandbox.run(&dry).expect(1, &["etcd.yaml", "leave --manifest out"]);
    sandbox.write("etcd.yaml", &fixture("kubernetes/manifests/kube-apiserver.yaml"));
    assert_ne!(sandbox.run(&dry).code, 0);
    sandbox.run(&dry.replace("etcd.yaml", "none.yaml")).expect(9, &["none.yaml"]);

    let yaml = manifest("single-rootless-v1beta4");
    let number = |key: &str| -> u32 {
        let line = yaml.lines().find_map(|line| line.trim().strip_prefix(key)).expect(key);
        line.trim().parse().expect(key)
    };
    let (uid, gid) = (number("runAsUser:"), number("runAsGroup:"));
    let report = sandbox.run(&dry).expect(0, &[]).json();
    assert_eq!(report["owner"], format!("{uid}:{gid}"));
    let restore = format!("{RESTORE} --manifest etcd.yaml");
    if !rustix::process::geteuid().is_root() {
        sandbox.run(&restore).expect(1, &["run it as root"]);
        assert!(!sandbox.exists("out"));
        return skipped("files given to the user of a rootless etcd: this needs root");
    }
    sandbox.run(&restore).expect(0, &[]);
    for (path, _) in picture(&sandbox.path("out")) {
        let meta = fs::symlink_metadata(&path).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (uid, gid), "{}", path.display());
        let mode = if meta.is_dir() { 0o700 } else { 0o600 };
        assert_eq!(meta.permissions().mode() & 0o777, mode, "{}", path.display());
    }
}

#[test]
fn leases_and_auth_are_carried_over_and_said() {
    let bytes = unzip("kubernetes/snapshots/fx-before.db.gz");
    let sandbox = Sandbox::with(&bytes);
    let ran = sandbox.run(RESTORE).expect(0, &["restarts with its full TTL"]);
    let leases = |rows: &Rows| rows.buckets[&vec![b"lease".to_vec()]].clone();
    assert_eq!(leases(&sandbox.restored("out")), leases(&Rows::read(&bytes)), "{ran}");
    let rows = plain().put("auth", b"authEnabled", &[1]);
    let sandbox = Sandbox::with(&rows.snapshot());
    let report = sandbox.run(&format!("{RESTORE} -w json")).expect(0, &[]).json();
    assert_eq!((&report["auth_enabled"], &report["leases"]), (&json!(true), &json!(1)));
    assert_eq!(sandbox.restored("out").get("auth", b"authEnabled").unwrap(), &[1]);
}

#[test]
fn which_etcd_starts_on_it_is_predicted() {
    for (version, want) in
        [("3.4", "3.5 3.6 3.7"), ("3.5", "3.5 3.6 3.7"), ("3.6", "3.5 3.6 3.7"), ("3.7", "3.5 3.7")]
    {
        let sandbox = Sandbox::with(&snapshot(version));
        let report = sandbox.run(&format!("{RESTORE} --dry-run -w json")).expect(0, &[]).json();
        let boots = report["boots_on"].as_array().unwrap().iter().filter(|b| b["boots"] == true);
        let boots: Vec<&str> = boots.map(|boot| text(&boot["etcd"])).collect();
        assert_eq!(boots.join(" "), want, "{version}");
    }
}
