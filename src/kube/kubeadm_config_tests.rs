//! Tests of `kubeadm_config`: what kubeadm and an API server wrote, and what people make of it.

use super::*;

const TO: &str = "/var/lib/etcd-restore-3f9c1a";

fn bytes(name: &str) -> Vec<u8> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::read(folder.join("fixtures/kubernetes").join(name)).unwrap()
}

fn fixture(name: &str) -> String {
    String::from_utf8(bytes(name)).unwrap()
}

fn to(data: &str) -> Directories<'_> {
    Directories { data, wal: None }
}

fn moved(text: &str) -> String {
    match set_data_dir(text.as_bytes(), &to(TO)) {
        Ok(bytes) => String::from_utf8(bytes).unwrap(),
        Err(error) => panic!("{text}: {error}"),
    }
}

fn with_quota(text: &str, quota: i64) -> String {
    match set_quota(text.as_bytes(), quota) {
        Ok(bytes) => String::from_utf8(bytes).unwrap(),
        Err(error) => panic!("{text}: {error}"),
    }
}

fn trouble(text: &str) -> (Trouble, String) {
    let error = set_data_dir(text.as_bytes(), &to(TO)).expect_err(text);
    (error.trouble, error.to_string())
}

/// Shapes of clusters, and where their data is.
const SHAPES: &[(&str, &str)] = &[
    ("ha-badcpe-cp1", "/var/lib/etcd"),
    ("ha-stacked-cp1", "/var/lib/etcd"),
    ("single-customdir-v1beta4", "/data/etcd"),
    ("single-v1beta3", "/var/lib/etcd"),
    ("single-v1beta4", "/var/lib/etcd"),
];

/// Puts a text behind its length, as a protobuf message holds it.
fn with_length(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let mut rest = text.len();
    while rest >= 0x80 {
        out.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
        rest >>= 7;
    }
    out.push(u8::try_from(rest).unwrap());
    out.extend_from_slice(text.as_bytes());
    out
}

fn holds(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn the_text_in_etcd_becomes_what_was_recorded() {
    for (name, data_dir) in SHAPES {
        let before = fixture(&format!("configmap/{name}.clusterconfiguration.yaml"));
        assert_eq!(parse(before.as_bytes()).unwrap().data_dir.as_deref(), Some(*data_dir));
        let after = moved(&before);
        assert_eq!(
            after,
            before.replace(&format!("dataDir: {data_dir}\n"), &format!("dataDir: {TO}\n"))
        );
        let value = bytes(&format!("configmap/{name}.etcd-value.bin"));
        assert!(holds(&value, &with_length(&before)), "{name}");
        let edited = bytes(&format!("configmap/{name}.edited.etcd-value.bin"));
        assert!(holds(&edited, &with_length(&after)), "{name}");
    }
}

#[test]
fn texts_of_other_shapes() {
    let rootless = fixture("configmap/single-rootless-v1beta4.clusterconfiguration.yaml");
    let after = rootless.replace("dataDir: /var/lib/etcd\n", &format!("dataDir: {TO}\n"));
    assert_eq!(moved(&rootless), after);
    let below = fixture("configmap/single-sub-datadir-v1beta4.clusterconfiguration.yaml");
    assert_eq!(parse(below.as_bytes()).unwrap().extra_arg("data-dir"), Some("/var/lib/etcd/data"));
    let after = below.replace("/var/lib/etcd/data\n", "/var/lib/etcd\n");
    assert_eq!(moved(&below), after.replace("/var/lib/etcd\n", &format!("{TO}\n")));
}

#[test]
fn config_maps_in_every_kind_of_scalar() {
    for (name, data_dir) in SHAPES {
        let before = fixture(&format!("configmap/{name}.configmap.yaml"));
        let after = before.replace(&format!("dataDir: {data_dir}\n"), &format!("dataDir: {TO}\n"));
        assert_ne!(before, after);
        assert_eq!(moved(&before), after, "{name}");
        let crlf = |text: &str| text.trim_end().replace('\n', "\r\n");
        assert_eq!(moved(&crlf(&before)), crlf(&after), "{name}");
        let inner = fixture(&format!("configmap/{name}.clusterconfiguration.yaml"));
        for wrap in [
            |text: &str| format!("kind: ConfigMap\ndata: {{ClusterConfiguration: {text}}}\n"),
            |text: &str| {
                format!(
                    r#"{{"kind":"ConfigMap","data":{{"x":"y","ClusterConfiguration":{text}}}}}"#
                )
            },
        ] {
            let json = |text: &str| serde_json::to_string(text).unwrap();
            assert_eq!(moved(&wrap(&json(&inner))), wrap(&json(&moved(&inner))), "{name}");
        }
    }
    let single = "kind: ConfigMap\ndata:\n  \
                  ClusterConfiguration: 'kind: ClusterConfiguration\n\n    \
                  apiVersion: kubeadm.k8s.io/v1beta3\n\n    etcd: {local: {dataDir: ''/x''}}'\n";
    assert_eq!(moved(single), single.replace("/x", TO));
}

#[test]
fn values_that_an_api_server_stored_as_yaml_and_json() {
    for name in ["storage/kubeadm-config.yaml-media.bin", "storage/kubeadm-config.json-media.bin"] {
        let before = fixture(name);
        let (line, json) = (format!("dataDir: {TO}\n"), format!("dataDir: {TO}\\n"));
        let after = before
            .replace("dataDir: /var/lib/etcd\n", &line)
            .replace("dataDir: /var/lib/etcd\\n", &json);
        assert_ne!(before, after, "{name}");
        assert_eq!(moved(&before), after, "{name}");
    }
}

#[test]
fn files_that_people_give_to_kubeadm() {
    for name in ["ha-stacked-cp1", "single-v1beta4"] {
        let before = fixture(&format!("kubeadm/{name}.yaml"));
        assert_eq!(
            moved(&before),
            format!("{before}etcd:\n  local:\n    dataDir: {TO}\n"),
            "{name}"
        );
    }
    for (name, data_dir) in
        [("single-customdir-v1beta4", "/data/etcd"), ("single-v1beta3", "/var/lib/etcd")]
    {
        let before = fixture(&format!("kubeadm/{name}.yaml"));
        assert_eq!(moved(&before), before.replace(data_dir, TO), "{name}");
    }
    let before = fixture("kubeadm/single-sub-datadir-v1beta4.yaml");
    let after = before.replace("/var/lib/etcd/data\n", &format!("{TO}\n"));
    assert_eq!(moved(&before), after.replace("/var/lib/etcd\n", &format!("{TO}\n")));
    let head = "kind: ClusterConfiguration\napiVersion: kubeadm.k8s.io/v1beta2\n";
    for (before, after) in [
        ("etcd: {}\n", "etcd: {local: {dataDir: @}}\n"),
        (
            "etcd:\n    local:\n        imageTag: x",
            "etcd:\n    local:\n        imageTag: x\n        dataDir: @",
        ),
        (
            "etcd: {local: {extraArgs: {data-dir: /a, x: y}}}\n",
            "etcd: {local: {extraArgs: {data-dir: @, x: y}, dataDir: @}}\n",
        ),
    ] {
        assert_eq!(moved(&format!("{head}{before}")), format!("{head}{}", after.replace('@', TO)));
    }
}

#[test]
fn a_log_that_is_kept_apart() {
    let before = "kind: ClusterConfiguration\napiVersion: kubeadm.k8s.io/v1beta4\n\
                  etcd:\n  local:\n    dataDir: /d\n    extraArgs:\n\
                  \x20   - name: wal-dir\n      value: /w\n\
                  \x20   - name: wal-dir\n      value: /v\n";
    assert_eq!(parse(before.as_bytes()).unwrap().extra_arg("wal-dir"), Some("/v"));
    let both = Directories { data: "/n/d", wal: Some("/n/w") };
    let new = String::from_utf8(set_data_dir(before.as_bytes(), &both).unwrap()).unwrap();
    assert_eq!(
        new,
        before.replace("/d\n", "/n/d\n").replace("/w\n", "/n/w\n").replace("/v\n", "/n/w\n")
    );
    let (kind, what) = trouble(before);
    assert!(kind == Trouble::Edit && what.contains("wal-dir"), "{what}");
    let without = before.replace("wal-dir", "name");
    assert!(set_data_dir(without.as_bytes(), &both).is_ok());
}

#[test]
fn a_quota_in_both_shapes_of_arguments() {
    let before = fixture("configmap/single-customdir-v1beta4.configmap.yaml");
    assert_eq!(with_quota(&before, 5), before.replace("8589934592", "5"));
    let before = fixture("kubeadm/single-v1beta3.yaml");
    assert_eq!(with_quota(&before, 5), before.replace("8589934592", "5"));
    let before = fixture("configmap/single-v1beta4.configmap.yaml");
    let line = "        dataDir: /var/lib/etcd\n";
    let added = "        extraArgs:\n        - name: quota-backend-bytes\n          value: \"5\"\n";
    assert_eq!(with_quota(&before, 5), before.replace(line, &format!("{line}{added}")));
    let old = before.replace("v1beta4", "v1beta3");
    let added = "        extraArgs:\n          quota-backend-bytes: \"5\"\n";
    assert_eq!(with_quota(&old, 5), old.replace(line, &format!("{line}{added}")));
    let listed = fixture("kubeadm/single-sub-datadir-v1beta4.yaml");
    let added = "    - name: quota-backend-bytes\n      value: \"5\"\n";
    assert_eq!(with_quota(&listed, 5), format!("{listed}{added}"));
    assert_eq!(set_quota(before.as_bytes(), 0).unwrap_err().trouble, Trouble::Edit);
}

#[test]
fn what_cannot_be_changed_says_why() {
    for name in ["kubeadm/ha-external-v1beta4.yaml", "configmap/ha-external-v1beta4.configmap.yaml"]
    {
        let text = fixture(name);
        assert!(parse(text.as_bytes()).unwrap().external);
        assert_eq!(trouble(&text).0, Trouble::External, "{name}");
        assert_eq!(set_quota(text.as_bytes(), 5).unwrap_err().trouble, Trouble::External);
    }
    let head = "kind: ClusterConfiguration\napiVersion: kubeadm.k8s.io/v1beta4\n";
    for (text, expected) in [
        ("a: b\n".to_owned(), Trouble::NotThere),
        ("kind: ConfigMap\ndata: {x: y}\n".to_owned(), Trouble::NotThere),
        (
            format!(
                "{head}---\nkind: ConfigMap\ndata:\n  ClusterConfiguration: |\n    {}",
                head.replace('\n', "\n    ")
            ),
            Trouble::NotThere,
        ),
        (format!("{head}---\n{head}"), Trouble::NotThere),
        (format!("&a\n{head}"), Trouble::Syntax),
        (head.replace("v1beta4", "v1beta1"), Trouble::Version),
        (head.replace("kubeadm.k8s.io/v1beta4", "v1"), Trouble::Version),
        (format!("{head}etcd: x\n"), Trouble::Shape),
        (format!("{head}etcd: {{local: {{dataDir: []}}}}\n"), Trouble::Shape),
        (format!("{head}etcd: {{local: {{}}, external: {{a: b}}}}\n"), Trouble::Shape),
        (format!("{head}etcd: {{local: {{extraArgs: [a]}}}}\n"), Trouble::Shape),
        (format!("{head}etcd:\n"), Trouble::Edit),
        (format!("{head}etcd: &a {{local: {{dataDir: /a}}}}\n"), Trouble::Edit),
        (format!("{head}etcd: [\n"), Trouble::Syntax),
        (
            "kind: ConfigMap\ndata:\n  ClusterConfiguration: |\n    kind: [\n".to_owned(),
            Trouble::Syntax,
        ),
    ] {
        let (found, what) = trouble(&text);
        assert_eq!(found, expected, "{text}: {what}");
    }
    for dir in ["x", "/", "/a/", "/a:b"] {
        assert_eq!(set_data_dir(head.as_bytes(), &to(dir)).unwrap_err().trouble, Trouble::Edit);
    }
}
