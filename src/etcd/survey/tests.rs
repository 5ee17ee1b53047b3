//! Surveys of written rows, of hostile rows, and of databases that real etcds left.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;
use crate::bolt::File;
use crate::bolt::walk::walk;
use crate::etcd::revision::Revision;

/// Rows of one bucket after the other, without a file around them.
#[derive(Default)]
struct Rows {
    survey: Survey,
    bucket: Vec<Vec<u8>>,
}

impl Rows {
    fn bucket(mut self, path: &[&[u8]]) -> Self {
        self.bucket = path.iter().map(|name| name.to_vec()).collect();
        self.survey.bucket(&At { bucket: &self.bucket, page: 3, offset: 64 }, 0);
        self
    }

    fn row(mut self, key: &[u8], value: &[u8]) -> Self {
        self.survey.entry(&At { bucket: &self.bucket, page: 3, offset: 64 }, key, value);
        self
    }

    fn put(self, key: &[u8], create_revision: i64, mod_revision: i64, version: i64) -> Self {
        let lease = if key.starts_with(b"leased") { 7 } else { 0 };
        let value = b"v";
        let mut out = Vec::new();
        KeyValue { key, create_revision, mod_revision, version, value, lease, unknown_field: None }
            .encode(&mut out);
        self.row(&Revision::new(mod_revision, 0).encode(), &out)
    }

    fn delete(self, key: &[u8], main: i64) -> Self {
        let mut out = Vec::new();
        KeyValue::tombstone(key).encode(&mut out);
        self.row(&Revision::new(main, 0).encode_tombstone(), &out)
    }

    fn report(self) -> Report {
        self.survey.finish()
    }
}

fn codes(report: &Report) -> Vec<&'static str> {
    report
        .findings
        .kept()
        .iter()
        .filter(|finding| ![Code::BucketMissing, Code::BucketAbsent].contains(&finding.code))
        .map(|finding| finding.code.id())
        .collect()
}

fn one_row(bucket: &[u8], key: &[u8], value: &[u8]) -> Vec<&'static str> {
    codes(&Rows::default().bucket(&[bucket]).row(key, value).report())
}

#[test]
fn figures_follow_the_rows() {
    let report = Rows::default()
        .bucket(&[schema::KEY])
        .put(b"leased/a", 2, 2, 1)
        .put(b"/registry/b", 3, 3, 1)
        .put(b"leased/a", 2, 4, 2)
        .delete(b"/registry/b", 5)
        .bucket(&[schema::LEASE])
        .row(&7_i64.to_be_bytes(), &[0x08, 7, 0x10, 60])
        .bucket(&[schema::META])
        .row(schema::META_TERM, &3_u64.to_be_bytes())
        .row(schema::META_CONSISTENT_INDEX, &9_u64.to_be_bytes())
        .report();
    assert_eq!(codes(&report), [""; 0]);
    assert_eq!((report.revision, report.current_revision, report.compact_revision()), (5, 5, -1));
    assert_eq!((report.pair_count, report.record_count, report.tombstone_count), (7, 4, 1));
    assert_eq!((report.total_keys, report.live_keys), (1, 1));
    assert_eq!((report.term, report.consistent_index), (Some(3), Some(9)));
    assert_eq!((report.lease_count, report.leases[0].live_keys), (1, 1));
    assert!(report.is_kubernetes);
    assert_eq!(report.findings.kept().len(), 7, "seven buckets are missing");
}

#[test]
fn hashes_cover_names_keys_and_values() {
    let report = Rows::default()
        .bucket(&[b"alpha"])
        .row(b"k", b"v")
        .bucket(&[schema::KEY])
        .put(b"a", 2, 2, 1)
        .bucket(&[schema::META])
        .report();
    let mut record = Vec::new();
    let (key, value) = (&b"a"[..], &b"v"[..]);
    KeyValue { key, create_revision: 2, mod_revision: 2, version: 1, value, ..KeyValue::default() }
        .encode(&mut record);
    let bucket = [&b"key"[..], &Revision::new(2, 0).encode(), &record].concat();
    assert_eq!(report.key_bucket_crc, crc32c::crc32c(&bucket));
    assert_eq!(report.status_hash, crc32c::crc32c(&[&b"alphakv"[..], &bucket, b"meta"].concat()));
    assert_eq!(Rows::default().report().status_hash, 0);
}

#[test]
fn a_bump_marker_counts_as_a_key_but_lives_nowhere() {
    let report = Rows::default()
        .bucket(&[schema::KEY])
        .put(b"a", 2, 2, 1)
        .row(&Revision::new(1_000, 0).encode(), b"")
        .bucket(&[schema::META])
        .row(schema::META_SCHEDULED_COMPACT, &Revision::new(1_000, 0).encode())
        .report();
    assert_eq!((report.total_keys, report.live_keys, report.marker_count), (2, 1, 1));
    assert_eq!((report.revision, report.compact_revision()), (1_000, 1_000));
    assert_eq!(codes(&report), ["ETCD018"]);
    let report = Rows::default()
        .bucket(&[schema::META])
        .row(schema::META_FINISHED_COMPACT, &Revision::new(8, 0).encode())
        .report();
    assert_eq!((report.revision, report.current_revision), (0, 8));
}

#[test]
fn records_without_a_beginning_need_a_compaction() {
    let rows = || {
        Rows::default()
            .bucket(&[schema::KEY])
            .put(b"a", 2, 5, 4)
            .delete(b"b", 6)
            .bucket(&[schema::META])
    };
    let compacted = |main: i64| {
        codes(&rows().row(schema::META_FINISHED_COMPACT, &Revision::new(main, 0).encode()).report())
    };
    assert_eq!(compacted(6), [""; 0]);
    assert_eq!(compacted(5), ["ETCD008"]);
    assert_eq!(codes(&rows().report()), ["ETCD008"]);
}

#[test]
fn damaged_records_are_found() {
    let record = |key: &[u8], value: &[u8]| one_row(schema::KEY, key, value);
    let at = Revision::new(2, 0);
    assert_eq!(record(b"short", b"\x0a\x01a"), ["ETCD005"]);
    assert_eq!(record(&at.encode(), b"\x0a\x05a"), ["ETCD006"]);
    assert_eq!(record(&at.encode(), b"\x10\x02"), ["ETCD006"]);
    assert_eq!(record(&at.encode_tombstone(), b""), ["ETCD006"]);
    assert_eq!(record(&at.encode(), b"\x0a\x01a\x10\x02\x18\x03\x20\x01"), ["ETCD007"]);
    assert_eq!(record(&at.encode(), b"\x0a\x01a\x10\x02\x18\x02\x20\x02"), ["ETCD008", "ETCD008"]);
    assert_eq!(record(&at.encode(), b"\x0a\x01a\x10\x02\x18\x02\x20\x01\x38\x01"), ["ETCD004"]);
    let report =
        Rows::default().bucket(&[schema::KEY]).put(b"a", 2, 2, 1).put(b"a", 2, 5, 3).report();
    assert_eq!(codes(&report), ["ETCD008"]);
    let place = &report.findings.kept()[0].place;
    assert_eq!((place.page, place.offset), (Some(3), Some(64)));
    assert_eq!(place.key.as_deref(), Some(&Revision::new(5, 0).encode()[..]));
}

#[test]
fn small_rows_are_checked() {
    /// Bucket, key, value, codes.
    type Case<'a> = (&'a [u8], &'a [u8], &'a [u8], &'a [&'a str]);
    let seven = 7_i64.to_be_bytes();
    let cases: [Case<'_>; 20] = [
        (b"strange", b"k", b"v", &["ETCD002"]),
        (schema::META, b"newer", b"", &["ETCD003"]),
        (schema::CLUSTER, b"newer", b"", &["ETCD003"]),
        (schema::AUTH, b"newer", b"", &["ETCD003"]),
        (schema::META, schema::META_TERM, b"1", &["ETCD019"]),
        (schema::META, schema::META_CONF_STATE, b"{\"joint\":1}", &["ETCD004"]),
        (schema::META, schema::META_STORAGE_VERSION, b"3.8.0", &["ETCD009"]),
        (schema::META, schema::META_STORAGE_VERSION, b"x", &["ETCD010"]),
        (schema::CLUSTER, schema::CLUSTER_VERSION, b"", &["ETCD010"]),
        (
            schema::CLUSTER,
            schema::CLUSTER_DOWNGRADE,
            br#"{"target-version":"3.5.0","enabled":true}"#,
            &["ETCD021"],
        ),
        (schema::MEMBERS, b"1", b"{}", &["ETCD011"]),
        (schema::MEMBERS, b"2", br#"{"id":1,"peerURLs":[]}"#, &["ETCD011"]),
        (schema::MEMBERS, b"1", br#"{"id":1,"peerURLs":[],"isLearner":true}"#, &["ETCD023"]),
        (schema::MEMBERS_REMOVED, b"x", b"removed", &["ETCD011"]),
        (schema::LEASE, &seven, b"\x08\x08", &["ETCD012"]),
        (schema::ALARM, b"\x08\x01\x10\x01", b"", &["ETCD015"]),
        (schema::ALARM, b"\x08\x01\x10\x02", b"", &["ETCD016"]),
        (schema::ALARM, b"\x08\x01\x10\x03", b"", &["ETCD022"]),
        (schema::ALARM, b"\x08", b"", &["ETCD013"]),
        (schema::AUTH_USERS, b"ann", b"\x0a\x03bob", &["ETCD014"]),
    ];
    for (bucket, key, value, want) in cases {
        assert_eq!(one_row(bucket, key, value), want, "{}", bytes_text(key));
    }
    let report = Rows::default().bucket(&[schema::KEY]).put(b"leased", 2, 2, 1).report();
    assert_eq!((codes(&report), report.keys_on_missing_leases), (vec!["ETCD017"], 1));
}

#[test]
fn nested_buckets_and_loose_rows_are_named() {
    let report = Rows::default()
        .bucket(&[schema::META])
        .bucket(&[schema::META, b"inner"])
        .row(b"k", b"v")
        .report();
    assert_eq!((codes(&report), report.pair_count), (vec!["ETCD020"], 1));
    assert_eq!(report.status_hash, crc32c::crc32c(b"metainner"));
    assert_eq!(codes(&Rows::default().row(b"k", b"v").report()), ["ETCD002"]);
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures")
}

fn survey_file(name: &str) -> Report {
    let packed = std::fs::read(fixtures().join(name)).unwrap();
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
    let file = File::from_bytes(bytes).unwrap();
    let mut survey = Survey::new();
    drop(walk(&file, &mut survey));
    survey.finish()
}

fn json(name: &str) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(fixtures().join(name)).unwrap()).unwrap()
}

#[test]
fn snapshots_of_every_etcd_have_the_figures_of_its_own_tools() {
    for version in ["3.4", "3.5", "3.6", "3.7"] {
        let report = survey_file(&format!("etcd-{version}/snapshot.db.gz"));
        assert_eq!(codes(&report), [""; 0], "{version}: {:?}", report.findings);
        assert!(report.findings.kept().is_empty());

        let newer = json(&format!("etcd-{version}/snapshot-status.by-3.7.json"));
        assert_eq!(newer["hash"], report.status_hash);
        assert_eq!(newer["revision"], report.revision);
        assert_eq!(newer["totalKey"], report.total_keys);
        let storage = report.storage_version.map(|v| v.to_string()).unwrap_or_default();
        assert_eq!(newer["version"], storage);
        let own = json(&format!("etcd-{version}/snapshot-status.json"));
        let total = if version < "3.6" { report.pair_count } else { report.total_keys };
        assert_eq!(own["totalKey"], total);

        let hash = json(&format!("etcd-{version}/hashkv.by-3.7.json"));
        assert_eq!(hash["compactRevision"], report.compact_revision());
        let members = &json(&format!("etcd-{version}/members.json"))["members"];
        assert_eq!(report.members.len(), 1);
        assert_eq!(members[0]["ID"], report.members[0].id.0);
        assert_eq!(members[0]["name"], report.members[0].name);
        assert_eq!(members[0]["clientURLs"][0], report.members[0].client_urls[0]);
        let leases = &json(&format!("etcd-{version}/leases.json"))["leases"];
        assert_eq!(leases[0]["id"], report.leases[0].lease.id);
        let lease = report.leases[0];
        assert_eq!((lease.lease.ttl_s, lease.live_keys), (86_400, 2));
        let users = &json(&format!("etcd-{version}/users.json"))["users"];
        assert_eq!(*users, serde_json::json!(report.auth.users));
        assert_eq!(report.auth.roles.len(), usize::try_from(report.auth.role_count).unwrap());
        assert!(!report.auth.enabled && !report.is_kubernetes);
        let keys = json(&format!("etcd-{version}/keys.json"));
        assert_eq!(
            keys["kvs"].as_array().unwrap().len(),
            usize::try_from(report.live_keys).unwrap()
        );
        assert_eq!(report.term.is_some(), version != "3.4");
        let status = &json(&format!("etcd-{version}/endpoint-status.json"))[0]["Status"];
        let index = report.consistent_index.unwrap();
        assert!(status["raftIndex"].as_u64().unwrap() >= index && index > 90);
    }
}

#[test]
fn kubernetes_snapshots_have_etcdutls_figures() {
    for name in ["before-incident", "after-incident"] {
        let report = survey_file(&format!("k8s-1.34/{name}.db.gz"));
        assert!(report.findings.kept().is_empty(), "{:?}", report.findings);
        let status = json(&format!("k8s-1.34/{name}.status.json"));
        assert_eq!(status["hash"], report.status_hash);
        assert_eq!(status["revision"], report.revision);
        assert_eq!(status["totalKey"], report.total_keys);
        assert!(report.is_kubernetes);
        assert_eq!(report.keys_on_missing_leases, 0);
    }
    for name in ["fx-before", "fx-after"] {
        let report = survey_file(&format!("kubernetes/snapshots/{name}.db.gz"));
        assert!(report.findings.kept().is_empty(), "{:?}", report.findings);
        let expected = json(&format!("kubernetes/snapshots/{name}.expected.json"));
        assert_eq!(expected["revision"], report.revision);
        assert_eq!(expected["live_keys"], report.live_keys);
    }
}

#[test]
fn a_bumped_database_says_that_its_compaction_is_open() {
    let report = survey_file("kubernetes/snapshots/fx-before.restored-bumped-not-started.db.gz");
    assert_eq!(codes(&report), ["ETCD018"]);
    assert_eq!(report.findings.kept().len(), 1);
    assert_eq!(report.revision, 1_000_000_289);
    assert_eq!((report.live_keys, report.total_keys, report.marker_count), (225, 226, 1));
    assert_eq!(report.compact_revision(), 1_000_000_289);
}

proptest! {
    #[test]
    fn any_rows_are_answered(
        rows in proptest::collection::vec(
            (0_usize..12, proptest::collection::vec(any::<u8>(), 0..20),
             proptest::collection::vec(any::<u8>(), 0..40)),
            0..40,
        )
    ) {
        let mut survey = Rows::default();
        for (bucket, key, value) in &rows {
            let name = schema::BUCKETS.get(*bucket).copied().unwrap_or(b"other");
            survey = survey.bucket(&[name]).row(key, value);
        }
        prop_assert_eq!(survey.report().pair_count, u64::try_from(rows.len()).unwrap());
    }

    #[test]
    fn any_record_under_any_revision_is_answered(
        records in proptest::collection::vec(
            (0_i64..50, any::<bool>(), 0_i64..5, 0_i64..5, 0_i64..5, 0_i64..4, "[ab]?"), 0..40,
        )
    ) {
        let mut rows = Rows::default().bucket(&[schema::KEY]);
        for (main, is_tombstone, create_revision, mod_revision, version, lease, key) in records {
            let key = key.as_bytes();
            let record = KeyValue {
                key, create_revision, mod_revision, version, lease, value: b"", unknown_field: None,
            };
            let mut out = Vec::new();
            record.encode(&mut out);
            let at = Revision::new(main, 0);
            rows = if is_tombstone {
                rows.row(&at.encode_tombstone(), &out)
            } else {
                rows.row(&at.encode(), &out)
            };
        }
        let report = rows.report();
        prop_assert!(report.live_keys <= report.total_keys);
        let attached: u64 = report.leases.iter().map(|lease| lease.live_keys).sum();
        prop_assert!(attached <= report.live_keys);
    }
}
