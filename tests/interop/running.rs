//! Directories that a server holds open, and alarms that a snapshot carries.

use std::time::{Duration, Instant};

use crate::programs::{Start, real, until};
use crate::support::{Rows, Sandbox, snapshot};

#[test]
fn what_a_running_etcd_holds_is_refused_at_once() {
    let Some(real) = real() else { return };
    for version in ["3.5", "3.6", "3.7"] {
        let sandbox = Sandbox::with(&snapshot("3.6"));
        let data_dir = sandbox.path("live");
        let etcd = real.etcd(version, &Start { data_dir, name: "m1", ..Start::default() });
        etcd.ctl(&["put", "/a", "b"]).expect(0, &["OK"]);
        let db = sandbox.text("live/member/snap/db");
        let live = sandbox.text("live");
        let commands: [&[&str]; 6] = [
            &["snapshot", "status", &db],
            &["snapshot", "verify", &db],
            &["snapshot", "verify", &live],
            &["snapshot", "verify", "--level", "quick", "--skip-hash-check", &db],
            &["snapshot", "restore", &db, "--skip-hash-check", "--data-dir", "new"],
            &["snapshot", "restore", "s.db", "--force", "--data-dir", &live],
        ];
        let pid = format!("process {} (etcd-{version})", etcd.pid());
        for words in commands {
            let began = Instant::now();
            sandbox.kit(words).expect(8, &[&pid]);
            let took = began.elapsed();
            assert!(took < Duration::from_secs(5), "{words:?} waited {took:?} for the lock");
        }
        assert!(!sandbox.exists("new"));
        etcd.ctl(&["get", "/a", "--print-value-only"]).expect(0, &["b"]);
        etcd.ctl(&["put", "/a", "c"]).expect(0, &["OK"]);
        assert_eq!(sandbox.names("."), ["live", "live.log", "s.db", "tmp"]);

        // Once it has ended, all of it is free.
        etcd.stop();
        sandbox.kit(&["snapshot", "status", &db]).expect(0, &[]);
        let words = ["snapshot", "restore", "s.db", "--force", "--data-dir", &live];
        let report = sandbox.kit_json(&words);
        let aside = report["moved_aside"].as_str().expect("a folder");
        assert!(std::path::Path::new(aside).join("member/snap/db").is_file(), "{report}");
    }
}

#[test]
fn a_nospace_alarm_is_lost_on_the_way_unless_it_is_kept() {
    let Some(real) = real() else { return };
    for version in ["3.5", "3.6", "3.7"] {
        let sandbox = Sandbox::new();
        let quota = ["--quota-backend-bytes=700000"];
        let data_dir = sandbox.path("full");
        let start = Start { data_dir, name: "m1", more: &quota, ..Start::default() };
        let etcd = real.etcd(version, &start);
        let value = "v".repeat(60_000);
        until("the quota is used up", Duration::from_secs(20), || {
            let ran = etcd.ctl(&["put", "/fill", &value]);
            (ran.code != 0 && ran.stderr.contains("database space exceeded")).then_some(())
        });
        etcd.ctl(&["alarm", "list"]).expect(0, &["NOSPACE"]);
        etcd.save(&sandbox.path("s.db"));
        drop(etcd);

        for (data_dir, flags) in [("free", &[][..]), ("kept", &["--keep-alarms"][..])] {
            let words = ["snapshot", "restore", "s.db", "--data-dir", data_dir];
            let report = sandbox.kit_json(&[&words[..], flags].concat());
            let etcd = real.etcd(
                version,
                &Start { data_dir: sandbox.path(data_dir), name: "m1", ..Start::default() },
            );
            let put = etcd.ctl(&["put", "/after", "x"]);
            let list = etcd.ctl(&["alarm", "list"]).expect(0, &[]);
            if flags.is_empty() {
                assert_eq!(report["alarms_dropped"].as_array().map(Vec::len), Some(1), "{report}");
                assert_eq!(report["alarms_kept"].as_array().map(Vec::len), Some(0), "{report}");
                put.expect(0, &["OK"]);
                assert_eq!(list.stdout, "", "etcd {version}");
            } else {
                assert_eq!(report["alarms_dropped"].as_array().map(Vec::len), Some(0), "{report}");
                assert_eq!(report["alarms_kept"].as_array().map(Vec::len), Some(1), "{report}");
                assert!(list.stdout.contains("NOSPACE"), "etcd {version}: {list}");
                assert_ne!(put.code, 0, "{put}");
                assert!(put.stderr.contains("database space exceeded"), "{put}");
            }
        }
    }
}

#[test]
fn a_corrupt_alarm_travels_only_when_it_is_accepted() {
    let Some(real) = real() else { return };
    let sandbox = Sandbox::with(&Rows::read(&snapshot("3.6")).alarm(7, 2).snapshot());
    let words = ["snapshot", "restore", "s.db", "--data-dir", "ours"];
    sandbox.kit(&words).expect(6, &["CORRUPT", "--accept-corrupt"]);
    assert!(!sandbox.exists("ours"));
    sandbox.kit_json(&[&words[..], &["--accept-corrupt"]].concat());
    let data_dir = sandbox.path("ours");
    let etcd = real.etcd("3.6", &Start { data_dir, name: "m1", ..Start::default() });
    etcd.ctl(&["alarm", "list"]).expect(0, &["CORRUPT"]);
    let put = etcd.ctl(&["put", "/after", "x"]);
    assert!(put.code != 0 && put.stderr.contains("corrupt cluster"), "{put}");
}
