//! Tests of `manifest`, on what kubeadm wrote and on what people make of it.

use super::*;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/kubernetes/manifests").join(name)
}

fn host(manifest: &EtcdManifest) -> &HostPath {
    match &manifest.data_dir_home {
        Home::Host(host) => host,
        other => panic!("{other:?}"),
    }
}

/// Makes a Pod out of a container's lines, which are indented as under `- `.
fn pod(container: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nspec:\n  containers:\n{container}")
}

fn refusal(text: &str) -> (Trouble, String) {
    match parse(text.as_bytes()) {
        Err(error @ Error::At { trouble, .. }) => (trouble, error.to_string()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_kubeadm_writes_by_default() {
    let manifest = read(&fixture("single-v1beta4.yaml")).unwrap();
    assert_eq!(manifest.name.as_deref(), Some("cp-1"));
    assert_eq!(manifest.initial_advertise_peer_urls, ["https://10.0.0.111:2380"]);
    let member = ("cp-1".to_owned(), "https://10.0.0.111:2380".to_owned());
    assert_eq!(manifest.initial_cluster, [member]);
    assert_eq!(manifest.initial_cluster_state, None);
    assert_eq!(manifest.initial_cluster_token, None);
    assert_eq!(manifest.data_dir.as_deref(), Some("/var/lib/etcd"));
    let expected = HostPath {
        path: "/var/lib/etcd".to_owned(),
        volume: "etcd-data".to_owned(),
        volume_path: "/var/lib/etcd".to_owned(),
        mount_path: "/var/lib/etcd".to_owned(),
    };
    assert_eq!(host(&manifest), &expected);
    assert_eq!(manifest.listen_client_urls, ["https://127.0.0.1:2379", "https://10.0.0.111:2379"]);
    assert_eq!(manifest.advertise_client_urls, ["https://10.0.0.111:2379"]);
    assert_eq!(manifest.cert_file.as_deref(), Some("/etc/kubernetes/pki/etcd/server.crt"));
    assert_eq!(manifest.key_file.as_deref(), Some("/etc/kubernetes/pki/etcd/server.key"));
    assert_eq!(manifest.trusted_ca_file.as_deref(), Some("/etc/kubernetes/pki/etcd/ca.crt"));
    assert_eq!(manifest.peer_cert_file.as_deref(), Some("/etc/kubernetes/pki/etcd/peer.crt"));
    assert_eq!(manifest.image.as_deref(), Some("registry.k8s.io/etcd:3.6.5-0"));
    assert_eq!((manifest.run_as_user, manifest.run_as_group), (None, None));
    assert_eq!(manifest.quota_backend_bytes, None);
    match manifest.home_of("/etc/kubernetes/pki/etcd/ca.crt") {
        Home::Host(host) => assert_eq!(host.path, "/etc/kubernetes/pki/etcd/ca.crt"),
        other => panic!("{other:?}"),
    }
    assert_eq!(manifest.home_of("/var/lib/etcd-other"), Home::Container);
}

#[test]
fn every_real_manifest_names_its_data_on_the_host() {
    for (file, name, data_dir) in [
        ("etcd-1.28.yaml", "cp-1", "/var/lib/etcd"),
        ("etcd-1.31.yaml", "cp-1", "/var/lib/etcd"),
        ("ha-badcpe-cp1.yaml", "cp-1", "/var/lib/etcd"),
        ("ha-stacked-cp1.yaml", "cp-1", "/var/lib/etcd"),
        ("ha-stacked-cp2.yaml", "cp-2", "/var/lib/etcd"),
        ("ha-stacked-cp3.yaml", "cp-3", "/var/lib/etcd"),
        ("reformatted.yaml", "cp-1", "/var/lib/etcd"),
        ("single-customdir-v1beta4.yaml", "cp-1", "/data/etcd"),
        ("single-expired-v1beta4.yaml", "cp-1", "/var/lib/etcd"),
        ("single-rootless-v1beta4.yaml", "cp-1", "/var/lib/etcd"),
        ("single-sub-datadir-v1beta4.yaml", "cp-1", "/var/lib/etcd/data"),
        ("single-v1beta3.yaml", "cp-1", "/var/lib/etcd"),
        ("single-v1beta4.yaml", "cp-1", "/var/lib/etcd"),
    ] {
        let manifest = read(&fixture(file)).expect(file);
        assert_eq!(manifest.name.as_deref(), Some(name), "{file}");
        assert_eq!(manifest.data_dir.as_deref(), Some(data_dir), "{file}");
        assert_eq!(host(&manifest).path, data_dir, "{file}");
        assert_eq!(host(&manifest).volume, "etcd-data", "{file}");
    }
}

#[test]
fn a_data_dir_below_its_mount() {
    let manifest = read(&fixture("single-sub-datadir-v1beta4.yaml")).unwrap();
    assert_eq!(host(&manifest).volume_path, "/var/lib/etcd");
    assert_eq!(host(&manifest).path, "/var/lib/etcd/data");
}

#[test]
fn joined_members_owner_and_quota() {
    let third = read(&fixture("ha-stacked-cp3.yaml")).unwrap();
    let names: Vec<_> = third.initial_cluster.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["cp-1", "cp-2", "cp-3"]);
    assert_eq!(third.initial_cluster_state.as_deref(), Some("existing"));
    let rootless = read(&fixture("single-rootless-v1beta4.yaml")).unwrap();
    assert_eq!((rootless.run_as_user, rootless.run_as_group), (Some(100), Some(100)));
    let custom = read(&fixture("single-customdir-v1beta4.yaml")).unwrap();
    assert_eq!(custom.quota_backend_bytes, Some(8_589_934_592));
}

#[test]
fn another_pod_is_refused() {
    let path = fixture("kube-apiserver.yaml");
    match read(&path) {
        Err(Error::At { trouble: Trouble::NoEtcd, at, .. }) => assert!(at.line > 1),
        other => panic!("{other:?}"),
    }
    assert!(matches!(read(Path::new("/nonexistent/etcd.yaml")), Err(Error::Read { .. })));
    assert!(matches!(read(Path::new("/dev/null")), Err(Error::Read { .. })));
}

#[test]
fn both_spellings_of_a_flag_in_command_and_args() {
    let text = pod("  - command: [/usr/local/bin/etcd, --name, cp-1, -data-dir=/a]\n\
         \x20   args:\n\
         \x20   - --data-dir\n\
         \x20   - /b/c\n\
         \x20   - --debug\n\
         \x20   - --snapshot-count\n\
         \x20   - '10'\n\
         \x20   - --initial-cluster=a=http://h:1,a=http://h:2\n\
         \x20   securityContext: {runAsUser: 7}\n\
         \x20   volumeMounts: [{name: v, mountPath: /b/, subPath: s}]\n\
         \x20 securityContext: {runAsUser: 1, runAsGroup: 2}\n\
         \x20 volumes: [{name: v, hostPath: {path: /srv//x/}}]\n");
    let manifest = parse(text.as_bytes()).unwrap();
    assert_eq!(manifest.name.as_deref(), Some("cp-1"));
    assert_eq!(manifest.data_dir.as_deref(), Some("/b/c"), "the last one wins");
    assert_eq!(host(&manifest).path, "/srv/x/s/c");
    assert_eq!((manifest.run_as_user, manifest.run_as_group), (Some(7), Some(2)));
    assert_eq!(manifest.initial_cluster.len(), 2);
}

#[test]
fn environment_stands_in_for_flags_and_is_expanded() {
    let text = pod("  - command: [etcd, '--name=$(NODE)', '--cert-file=/$$(X)/$(Y)']\n\
         \x20   env:\n\
         \x20   - {name: NODE, value: cp-9}\n\
         \x20   - {name: ETCD_NAME, value: no}\n\
         \x20   - {name: ETCD_DATA_DIR, value: '/d/$(NODE)'}\n\
         \x20   - {name: SECRET, valueFrom: {secretKeyRef: {name: a, key: b}}}\n");
    let manifest = parse(text.as_bytes()).unwrap();
    assert_eq!(manifest.name.as_deref(), Some("cp-9"));
    assert_eq!(manifest.data_dir.as_deref(), Some("/d/cp-9"));
    assert_eq!(manifest.cert_file.as_deref(), Some("/$(X)/$(Y)"));
    assert_eq!(manifest.data_dir_home, Home::Container);
}

#[test]
fn data_in_another_volume() {
    let text = pod("  - command: [etcd, --data-dir=/d]\n\
         \x20   volumeMounts: [{name: v, mountPath: /d}]\n\
         \x20 volumes: [{name: v, emptyDir: {}}]\n");
    let manifest = parse(text.as_bytes()).unwrap();
    assert_eq!(manifest.data_dir_home, Home::Volume { volume: "v".to_owned() });
}

#[test]
fn what_cannot_be_read_is_refused_with_its_place() {
    for (container, trouble, place) in [
        ("  - command: [sh, -c, exec etcd --name=a]\n", Trouble::Command, "line 5, column 15"),
        (
            "  - {name: etcd, command: [/bin/bash, -c, run]}\n",
            Trouble::Command,
            "line 5, column 28",
        ),
        ("  - {name: etcd, command: [tini, etcd]}\n", Trouble::Command, "line 5, column 28"),
        ("  - {image: 'r.example/etcd:3.6', args: [--name=a]}\n", Trouble::Command, "line 5"),
        ("  - {name: x, command: [sh, -c, sleep]}\n", Trouble::NoEtcd, "line 4, column 3"),
        ("  - command: [etcd, --config-file=/c]\n", Trouble::ConfigFile, "line 5, column 21"),
        ("  - command: [etcd, --name]\n", Trouble::Flag, "line 5, column 21"),
        ("  - command: [etcd, gateway]\n", Trouble::Flag, "line 5, column 21"),
        ("  - command: [etcd, --initial-cluster=a]\n", Trouble::Flag, "line 5, column 21"),
        ("  - command: [etcd, --quota-backend-bytes=8G]\n", Trouble::Flag, "line 5"),
        ("  - command: etcd --name=a\n", Trouble::Shape, "line 5, column 14"),
        ("  - command: [etcd, [a]]\n", Trouble::Shape, "line 5, column 21"),
        ("  - command: [etcd]\n  - command: [etcd]\n", Trouble::Shape, "line 6, column 5"),
        (
            "  - {command: [etcd, '--name=$(N)'], env: [{name: N, valueFrom: {}}]}\n",
            Trouble::Variable,
            "line 5, column 22",
        ),
        (
            "  - {command: [etcd], env: [{name: ETCD_NAME, valueFrom: {}}]}\n",
            Trouble::Variable,
            "line 5, column 29",
        ),
        (
            "  - {command: [etcd, '--name=$(N)'], envFrom: [{configMapRef: {name: c}}]}\n",
            Trouble::Variable,
            "line 5",
        ),
        (
            "  - {command: [etcd], securityContext: {runAsUser: -1}}\n",
            Trouble::Shape,
            "line 5, column 52",
        ),
        (
            "  - {command: [etcd], volumeMounts: [{name: v, mountPath: /d}]}\n",
            Trouble::Shape,
            "line 5",
        ),
        ("  - command: &c [etcd]\n    args: *c\n", Trouble::Syntax, "line 6, column 11"),
    ] {
        let (got, words) = refusal(&pod(container));
        assert_eq!(got, trouble, "{container}: {words}");
        assert!(words.starts_with(place), "{container}: {words}");
    }
    assert_eq!(refusal("apiVersion: v1\nkind: ConfigMap\n").0, Trouble::Shape);
    assert_eq!(refusal("apiVersion: v1\nkind: Pod\n").0, Trouble::Shape);
    let climbing = pod("  - command: [etcd]\n  volumes: [{name: v, hostPath: {path: /a/../b}}]\n");
    assert_eq!(refusal(&climbing).0, Trouble::Shape);
}

#[test]
fn variables_cannot_grow_without_limit() {
    let mut text = pod("  - command: [etcd]\n    env:\n    - {name: V0, value: aaaaaaaa}\n");
    for n in 0..40 {
        text += &format!("    - {{name: V{}, value: '$(V{n})$(V{n})'}}\n", n + 1);
    }
    let (trouble, words) = refusal(&text);
    assert_eq!(trouble, Trouble::Variable);
    assert!(words.contains("too long"), "{words}");
}

#[test]
fn any_cut_and_any_byte_is_answered() {
    let bytes = std::fs::read(fixture("single-sub-datadir-v1beta4.yaml")).unwrap();
    // A prime step, so that every kind of place is met without trying all of them.
    for at in (0..bytes.len()).step_by(11) {
        drop(parse(&bytes[..at]));
        let mut changed = bytes.clone();
        for byte in *b"\0\xff:-{[\"'&*!|>%@#\n\t " {
            changed[at] = byte;
            drop(parse(&changed));
        }
    }
}
