//! Holds `docs/JSON.md` and what the program prints together, in both directions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use etcdkit::etcd::members::Member as Listed;
use etcdkit::store;
use serde_json::Value;

use crate::fake_etcd::{CORRUPT, FakeCluster, Member, NOSPACE};
use crate::live_save_cases;
use crate::serve_child::{Served, run};
use crate::support::dead::{Dead, grant};
use crate::support::{Rows, Sandbox, fixture, kubernetes, member, sha256, snapshot, unpack};

#[derive(Clone, Debug)]
struct Key {
    /// Alternatives of the type, such as `text` and `null`.
    types: Vec<String>,
    is_optional: bool,
}

/// The tables of the document by the heading above them.
#[derive(Debug, Default)]
struct Document {
    shapes: BTreeMap<String, BTreeMap<String, Key>>,
    /// Keys that were printed, as shape and key.
    seen: BTreeSet<(String, String)>,
    complaints: BTreeSet<String>,
}

impl Document {
    fn parse(text: &str) -> Self {
        let mut document = Self::default();
        let mut heading = String::new();
        for line in text.lines() {
            if let Some(title) = line.strip_prefix("## ").or(line.strip_prefix("### ")) {
                heading = title.trim().to_owned();
            }
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let [key, kind, _] = cells.as_slice() else { continue };
            let Some(key) = key.strip_prefix('`').and_then(|key| key.strip_suffix('`')) else {
                continue;
            };
            let (kind, is_optional) = match kind.strip_suffix(", optional") {
                Some(kind) => (kind, true),
                None => (*kind, false),
            };
            let types = kind.split(" or ").map(str::to_owned).collect();
            let shape = document.shapes.entry(heading.clone()).or_default();
            let twice = shape.insert(key.to_owned(), Key { types, is_optional });
            assert!(twice.is_none(), "{heading}: {key} stands twice");
        }
        document
    }

    /// Takes a printed value in, as one of a shape.
    fn take(&mut self, shape: &str, value: &Value) {
        self.object(shape, "", value);
    }

    fn object(&mut self, shape: &str, prefix: &str, value: &Value) {
        let Some(keys) = self.shapes.get(shape).cloned() else {
            self.complaints.insert(format!("there is no shape {shape}"));
            return;
        };
        let Some(map) = value.as_object() else {
            self.complaints.insert(format!("{shape}: {prefix} is no object: {value}"));
            return;
        };
        for (name, value) in map {
            let path = format!("{prefix}{name}");
            let Some(key) = keys.get(&path) else {
                self.complaints.insert(format!("{shape}: {path} is printed and not documented"));
                continue;
            };
            self.seen.insert((shape.to_owned(), path.clone()));
            if !key.types.iter().any(|kind| self.fits(shape, &path, kind, value)) {
                let text = format!("{shape}: {path} is {value}, which is none of {:?}", key.types);
                self.complaints.insert(text);
            }
        }
        for (path, key) in &keys {
            let inner = path.strip_prefix(prefix);
            let own = inner.is_some_and(|rest| !rest.contains(['.', '[']));
            let name = inner.unwrap_or_default();
            if own && !key.is_optional && !map.contains_key(name) {
                self.complaints.insert(format!("{shape}: {path} is not optional and is missing"));
            }
        }
    }

    fn fits(&mut self, shape: &str, path: &str, kind: &str, value: &Value) -> bool {
        match kind {
            "text" => value.is_string(),
            "number" => value.is_i64() || value.is_u64(),
            "boolean" => value.is_boolean(),
            "null" => value.is_null(),
            "object" if value.is_object() => {
                self.object(shape, &format!("{path}."), value);
                true
            }
            "object" => false,
            "list of object" => {
                let items = value.as_array();
                for item in items.into_iter().flatten() {
                    self.object(shape, &format!("{path}[]."), item);
                }
                items.is_some()
            }
            _ => match (kind.strip_prefix("list of "), value.as_array()) {
                (Some(kind), Some(items)) => {
                    items.iter().all(|item| self.fits(shape, path, kind, item))
                }
                (Some(_), None) => false,
                (None, _) => {
                    self.object(kind, "", value);
                    value.is_object()
                }
            },
        }
    }

    /// What is wrong, once everything was printed.
    fn finish(mut self) -> Vec<String> {
        for (shape, keys) in &self.shapes {
            for key in keys.keys() {
                if !self.seen.contains(&(shape.clone(), key.clone())) {
                    self.complaints
                        .insert(format!("{shape}: {key} is documented and never printed"));
                }
            }
        }
        self.complaints.into_iter().collect()
    }
}

/// A directory with an alarm, whose quota is a small one.
fn filled_dir(sandbox: &Sandbox) {
    let quota = store::Quota::Bytes(100_000);
    let dir = sandbox.path("full-dir");
    let opened = store::Store::open(&dir, store::Options::default().quota(quota)).unwrap();
    let me = store::Caller::default();
    let put = || store::Put { key: b"/a/b/c", value: &[7; 30_000], ..store::Put::default() };
    while opened.put(&me, put()).is_ok() {}
    opened.close().unwrap();
}

#[test]
fn every_key_is_documented_and_every_documented_key_is_printed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/JSON.md");
    let mut document = Document::parse(&fs::read_to_string(path).unwrap());
    let sandbox = Sandbox::new();
    let plain = Rows::read(&snapshot("3.6"));
    sandbox.write("plain.db", &snapshot("3.6"));
    sandbox.write("old.db", &snapshot("3.4"));
    sandbox.write("kube.db", &kubernetes());
    let mut torn = kubernetes();
    torn[4096 * 30..4096 * 40].fill(0);
    sandbox.write("torn.db", &torn);
    sandbox.write("empty.db", b"");
    let mut wrong = snapshot("3.6");
    *wrong.last_mut().unwrap() ^= 1;
    sandbox.write("wrong.db", &wrong);
    let learner = Listed { is_learner: true, ..member(0xbeef, "l", "http://127.0.0.3:2380") };
    let one = member(0xabcd, "m1", "http://127.0.0.1:2380");
    let downgrade = br#"{"target-version":"3.5.0","enabled":true}"#;
    let rich = plain.members(&[one, learner]).alarm(9, 1).put("cluster", b"downgrade", downgrade);
    sandbox.write("rich.db", &rich.snapshot());
    unpack("etcd-3.6/killed-datadir.tar.gz", &sandbox.path("killed"));
    sandbox.write("killed/member/snap/db.tmp.1", b"");
    sandbox.write("full/of/things", b"");
    sandbox.unpack("etcd-3.6/killed-datadir.tar.gz", "killed");
    sandbox.mkdir(".note.etcdkit-AbCdEf");
    let rootless = fixture("kubernetes/manifests/single-rootless-v1beta4.yaml");
    sandbox.write("etcd.yaml", &rootless);
    let accept = format!("--accept-damaged={}", sha256(&wrong));

    let twice = [grant(5, 60), grant(5, 60)];
    Dead::restored(&sandbox, "dead").append(&twice).hard_state(2);
    let cut = Dead::restored(&sandbox, "cut");
    let segment = cut.dir.join("member/wal/0000000000000000-0000000000000000.wal");
    let mut bytes = fs::read(&segment).unwrap();
    bytes[100] ^= 1;
    fs::write(&segment, bytes).unwrap();

    let members = ["m1", "m2", "m3"].map(|name| Member::new(name).revision(9).auth("r"));
    let mut cluster = FakeCluster::start(members);
    let id = cluster.members[0].member().id;
    cluster.members[1].set(|m| m.downgrade = Some("3.5.0".to_owned()));
    cluster.members[1].set(|m| m.alarms = vec![(id, NOSPACE)]);
    cluster.members[0].set(|m| m.alarms = vec![(id, NOSPACE), (5, NOSPACE)]);
    cluster.members[2].stop();
    let endpoints = cluster.endpoints();
    let live = |line: &str| format!("{line} --endpoints {endpoints} --user root --password r");
    let packed = ["m1", "m2", "m3"].map(|name| Member::new(name).sizes(1 << 26, 1 << 20, 0));
    let packed = FakeCluster::start(packed);
    let corrupt = FakeCluster::start([Member::new("m1")]);
    corrupt.set(|m| m.alarms = vec![(m.id, CORRUPT)]);
    let mut partly = FakeCluster::start(["m1", "m2", "m3"].map(Member::new));
    partly.set(|m| m.alarms = vec![(m.id, NOSPACE)]);
    partly.members[2].stop();
    let defrag = |of: &FakeCluster, flags: &str| {
        format!("defrag --endpoints {} --command-timeout 60s {flags}", of.endpoints())
    };
    let live_defrag = "defrag of running members";
    let saved_from = live_save_cases::one_of_each();
    let live_save = "snapshot save of a running member";
    let save = format!("snapshot save --endpoints {}", saved_from.endpoints());
    fs::create_dir(sandbox.path("e-20260101T000000Z.db")).unwrap();
    fs::write(sandbox.path("e-20260102T000000Z.db"), snapshot("3.6")).unwrap();

    let served = Served::start(&["--quota-backend-bytes=4194304"]);
    let compaction = |line: &str| format!("compaction {line} --endpoints {}", served.address);
    run(async {
        let mut client = served.client().await;
        let mut n = 0;
        while client.put(format!("/a/b/{}", n % 9), vec![7; 8192], None).await.is_ok() {
            n += 1;
        }
    });

    let reclaim = |flags: &str| format!("reclaim {flags} --endpoints {}", served.address);
    let directory = "reclaim --data-dir full-dir";
    filled_dir(&sandbox);
    let alarmed = FakeCluster::start([Member::new("m1")]);
    alarmed.set(|m| m.alarms = vec![(7, NOSPACE)]);
    let disarm = format!("alarm disarm --endpoints {}", alarmed.endpoints());
    sandbox.run(&disarm).expect(0, &[]);

    // Shape of what is printed to stdout, exit code, command line.
    let restore = "snapshot restore";
    let lines = [
        ("snapshot status", 0, "snapshot status plain.db".to_owned()),
        ("snapshot status", 0, "snapshot status old.db".into()),
        ("snapshot status", 0, "snapshot status kube.db".into()),
        ("snapshot status", 0, "snapshot status rich.db".into()),
        ("snapshot status", 6, "snapshot status wrong.db".into()),
        ("snapshot verify", 6, "snapshot verify plain.db torn.db empty.db rich.db gone.db".into()),
        ("snapshot verify", 0, "snapshot verify --level quick plain.db".into()),
        ("snapshot verify", 0, "snapshot verify killed".into()),
        ("snapshot verify", 9, "snapshot verify killed full".into()),
        ("snapshot inspect", 0, "snapshot inspect plain.db".into()),
        ("snapshot inspect", 0, "snapshot inspect kube.db --depth 2".into()),
        ("snapshot inspect", 6, "snapshot inspect torn.db".into()),
        (restore, 0, format!("{restore} plain.db --data-dir note --wal-dir wal")),
        (restore, 0, format!("{restore} rich.db --data-dir rich --newest-revision 5000")),
        (restore, 0, format!("{restore} rich.db --data-dir kept --keep-alarms")),
        (restore, 0, format!("{restore} kube.db --data-dir full --force")),
        (restore, 0, format!("{restore} kube.db --data-dir dry --dry-run --manifest etcd.yaml")),
        (restore, 0, format!("{restore} wrong.db --data-dir wrong {accept}")),
        (restore, 0, format!("{restore} plain.db --all-members all")),
        ("hashkv", 0, "hashkv plain.db".into()),
        ("defrag", 0, "defrag --data-dir killed".into()),
        ("snapshot compact", 0, "snapshot compact plain.db --rev 70 -o dry.db --dry-run".into()),
        ("snapshot compact", 0, "snapshot compact plain.db --rev 70 -o small.db".into()),
        ("snapshot seal", 0, "snapshot seal plain.db -o dry.db --dry-run".into()),
        ("snapshot seal", 0, "snapshot seal plain.db -o sealed.db".into()),
        ("snapshot save", 0, "snapshot save saved.db --from-data-dir dead".into()),
        ("snapshot save", 0, "snapshot save dry.db --from-data-dir dead --dry-run".into()),
        ("status", 3, live("status")),
        ("health", 3, live("health")),
        ("wait", 0, live("wait --until leader --timeout 5s")),
        ("wait", 4, live("wait --until no-alarm --timeout 100ms")),
        ("consistency", 3, live("consistency")),
        ("compaction", 0, compaction("5 --dry-run")),
        ("compaction", 0, compaction("5")),
        ("compaction", 0, compaction("--keep-revisions 2 --physical")),
        ("compaction", 0, compaction("--keep-duration 1h")),
        ("reclaim", 0, reclaim("--dry-run")),
        ("reclaim", 4, format!("reclaim --dry-run --endpoints {}", partly.endpoints())),
        ("reclaim", 0, reclaim("--keep-revisions 0")),
        ("reclaim", 0, reclaim("")),
        ("reclaim of a data directory", 3, format!("{directory} --quota-backend-bytes 20000")),
        (
            "reclaim of a data directory",
            0,
            format!("{directory} --quota-backend-bytes 20000 --dry-run"),
        ),
        (live_save, 0, format!("{save} e.db --dry-run")),
        (live_save, 0, format!("{save} e-{{time}}.db --keep-last 1")),
        (live_defrag, 0, defrag(&packed, "--dry-run")),
        (live_defrag, 0, defrag(&packed, "")),
        (live_defrag, 6, defrag(&corrupt, "")),
        ("demo", 0, "demo".into()),
        ("version", 0, "version".into()),
        ("error", 6, "snapshot status torn.db".into()),
        ("error", 7, format!("{restore} plain.db --data-dir full")),
        ("error", 6, format!("{restore} wrong.db --data-dir x")),
        ("error", 6, "snapshot save cut.db --from-data-dir cut".into()),
        ("error", 2, "snapshot nonsense".into()),
        ("error", 9, "snapshot status gone.db".into()),
    ];
    for (shape, code, line) in &lines {
        let ran = sandbox.run(&format!("{line} -w json")).expect(*code, &[]);
        let mut notes: Vec<&str> = ran.stderr.lines().collect();
        if *shape == "error" {
            assert_eq!(ran.stdout, "", "{ran}");
            let error = notes.pop().unwrap_or_default();
            document.take("error", &serde_json::from_str(error).unwrap_or_default());
        } else {
            document.take(shape, &ran.json());
        }
        for note in notes {
            // Where it stopped early, the report has an error beside it.
            let note: Value = serde_json::from_str(note).unwrap_or_default();
            let is_error = *code != 0 && note.get("error").is_some();
            document.take(if is_error { "error" } else { "note" }, &note);
        }
    }
    for line in fs::read_to_string(sandbox.path("audit.jsonl")).unwrap().lines() {
        let record: Value = serde_json::from_str(line).unwrap();
        let shape = match record["operation"].as_str() {
            Some("snapshot restore") => "audit record",
            Some("snapshot save") if record["before"].get("endpoint").is_some() => {
                "audit record of a live save"
            }
            Some("snapshot save") => "audit record of a save",
            Some("defrag") if record["before"].get("cluster_id").is_some() => {
                "audit record of a defrag of running members"
            }
            Some("compaction") => "audit record of a compaction",
            Some("reclaim") if record["before"].get("data_dir").is_some() => {
                "audit record of a reclaim of a data directory"
            }
            Some("reclaim") => "audit record of a reclaim",
            Some("alarm disarm") => "audit record of an alarm disarm",
            _ => "audit record of a rewrite",
        };
        document.take(shape, &record);
    }
    let complaints = document.finish();
    assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
}

#[test]
fn the_rule_can_fail() {
    let text = "## x\n| `a` | number | b |\n| `o` | object, optional | b |\n\
                | `o.p` | text or null | b |\n\
                | `l` | list of y, optional | b |\n### y\n| `z` | boolean | b |\n";
    let wrong = |printed: &str| {
        let mut document = Document::parse(text);
        document
            .take("x", &serde_json::from_str(r#"{"a":1,"o":{"p":""},"l":[{"z":true}]}"#).unwrap());
        document.take("x", &serde_json::from_str(printed).unwrap());
        document.finish().len()
    };
    assert_eq!(wrong(r#"{"a":1,"o":{"p":null}}"#), 0);
    assert_eq!(wrong(r#"{"a":"1"}"#), 1);
    assert_eq!(wrong(r#"{}"#), 1);
    assert_eq!(wrong(r#"{"a":1,"b":2}"#), 1);
    assert_eq!(wrong(r#"{"a":1,"o":{}}"#), 1);
    assert_eq!(wrong(r#"{"a":1,"o":{"p":1}}"#), 1);
    assert_eq!(wrong(r#"{"a":1,"l":[{"z":1}]}"#), 1);
    assert_eq!(wrong(r#"{"a":1.5}"#), 1);
    assert_eq!(Document::parse(text).finish().len(), 5);
}
