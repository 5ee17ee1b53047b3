//! Tests of `edit`: what kubeadm wrote, moved, and what does not fit.

use super::*;

const TO: &str = "/var/lib/etcd-restore-3f9c1a";

fn fixture(name: &str) -> String {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = folder.join("fixtures/kubernetes/manifests").join(name);
    std::fs::read_to_string(path).unwrap()
}

fn to(data: &str) -> Directories<'_> {
    Directories { data, wal: None }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// Makes a Pod of a container's lines and volumes.
fn pod(container: &str, volumes: &str) -> String {
    format!("apiVersion: v1\nkind: Pod\nspec:\n  containers:\n{container}  volumes:\n{volumes}")
}

fn refusal(result: Result<Vec<u8>, Error>) -> String {
    match result {
        Err(Error::At { trouble: Trouble::Edit, what, .. }) => what,
        Ok(bytes) => panic!("changed: {}", String::from_utf8_lossy(&bytes)),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn three_places_are_what_kubeadm_writes_for_that_directory() {
    let old = fixture("single-v1beta4.yaml");
    let new = text(set_data_dir(old.as_bytes(), &to(TO)).unwrap());
    assert_eq!(new, fixture("regenerated-with-new-datadir.yaml"));
    let back = set_data_dir(new.as_bytes(), &to("/var/lib/etcd")).unwrap();
    assert_eq!(text(back), old);
}

#[test]
fn every_manifest_of_the_fixtures_moves_and_nothing_else_in_it() {
    for (name, old) in [
        ("etcd-1.28.yaml", "/var/lib/etcd"),
        ("etcd-1.31.yaml", "/var/lib/etcd"),
        ("ha-badcpe-cp1.yaml", "/var/lib/etcd"),
        ("ha-stacked-cp1.yaml", "/var/lib/etcd"),
        ("ha-stacked-cp2.yaml", "/var/lib/etcd"),
        ("ha-stacked-cp3.yaml", "/var/lib/etcd"),
        ("reformatted.yaml", "/var/lib/etcd"),
        ("single-customdir-v1beta4.yaml", "/data/etcd"),
        ("single-expired-v1beta4.yaml", "/var/lib/etcd"),
        ("single-rootless-v1beta4.yaml", "/var/lib/etcd"),
        ("single-v1beta3.yaml", "/var/lib/etcd"),
    ] {
        let before = fixture(name);
        let expected = before
            .replace(&format!("--data-dir={old}\n"), &format!("--data-dir={TO}\n"))
            .replace(&format!("mountPath: {old}\n"), &format!("mountPath: {TO}\n"))
            .replace(&format!(" path: {old}\n"), &format!(" path: {TO}\n"));
        let crlf = |text: &str| format!("\u{feff}{}", text.trim_end().replace('\n', "\r\n"));
        let new = set_data_dir(before.as_bytes(), &to(TO)).unwrap();
        assert_eq!(text(new), expected, "{name}");
        let new = set_data_dir(crlf(&before).as_bytes(), &to(TO)).unwrap();
        assert_eq!(text(new), crlf(&expected), "{name}");
        let least = before.replace(&format!(" path: {old}\n"), &format!(" path: {TO}\n"));
        assert_eq!(text(host_path_only(before.as_bytes(), &to(TO)).unwrap()), least, "{name}");
    }
}

#[test]
fn a_directory_below_its_mount() {
    let before = fixture("single-sub-datadir-v1beta4.yaml");
    let new = text(set_data_dir(before.as_bytes(), &to(TO)).unwrap());
    let whole =
        before.replace("/var/lib/etcd/data", TO).replace("/var/lib/etcd\n", &format!("{TO}\n"));
    assert_eq!(new, whole);
    let below = format!("{TO}/data");
    let new = text(host_path_only(before.as_bytes(), &to(&below)).unwrap());
    assert_eq!(new, before.replace(" path: /var/lib/etcd\n", &format!(" path: {TO}\n")));
    let what = refusal(host_path_only(before.as_bytes(), &to(TO)));
    assert!(what.ends_with("end with /data"), "{what}");
}

const APART: &str = "\
    \x20 - command: [etcd, --data-dir, /d, '--wal-dir=/w/wal']\n\
    \x20   args: [-data-dir=/d]\n\
    \x20   volumeMounts: [{name: d, mountPath: /d}, {name: w, mountPath: /w}]\n";
const VOLUMES: &str =
    "  - {name: d, hostPath: {path: /srv/d}}\n  - {name: w, hostPath: {path: /srv/w}}\n";

#[test]
fn the_log_moves_along_where_it_is_apart() {
    let before = pod(APART, VOLUMES);
    let both = Directories { data: "/n/d", wal: Some("/n/w/wal") };
    let new = text(set_data_dir(before.as_bytes(), &both).unwrap());
    let expected = before
        .replace("--data-dir, /d", "--data-dir, /n/d")
        .replace("-data-dir=/d", "-data-dir=/n/d")
        .replace("--wal-dir=/w/wal", "--wal-dir=/n/w/wal")
        .replace("mountPath: /d", "mountPath: /n/d")
        .replace("mountPath: /w", "mountPath: /n/w/wal")
        .replace("/srv/d", "/n/d")
        .replace("/srv/w", "/n/w/wal");
    assert_eq!(new, expected);
    let new = text(host_path_only(before.as_bytes(), &both).unwrap());
    assert_eq!(new, before.replace("/srv/d", "/n/d").replace("/srv/w", "/n/w"));
    let what = refusal(set_data_dir(before.as_bytes(), &to("/n")));
    assert!(what.contains("--wal-dir"), "{what}");

    // In the volume of the data.
    let one = pod(&APART.replace("/w/wal", "/d/wal"), VOLUMES);
    let below = Directories { data: "/n", wal: Some("/n/log") };
    let new = text(set_data_dir(one.as_bytes(), &below).unwrap());
    assert!(new.contains("--wal-dir=/n/log") && new.contains("path: /srv/w"), "{new}");
    let apart = Directories { data: "/n", wal: Some("/m") };
    assert!(refusal(set_data_dir(one.as_bytes(), &apart)).contains("below the data directory"));
    assert!(refusal(host_path_only(one.as_bytes(), &apart)).contains("not have the effect"));
}

#[test]
fn what_does_not_fit_is_refused() {
    let plain =
        "  - command: [etcd, --data-dir=/d]\n    volumeMounts: [{name: d, mountPath: /d}]\n";
    let volume = "  - {name: d, hostPath: {path: /srv/d}}\n";
    let told = |container: &str, volumes: &str| {
        refusal(set_data_dir(pod(container, volumes).as_bytes(), &to("/n")))
    };
    assert!(set_data_dir(pod(plain, volume).as_bytes(), &to("/n")).is_ok());
    for (change, with, expected) in [
        ("mountPath: /d", "mountPath: /e", "in no volume"),
        ("--data-dir=/d", "--name=x", "--data-dir is not given"),
        ("mountPath: /d}", "mountPath: /d, subPath: s}", "subPath"),
        ("mountPath: /d}", "mountPath: /d}, {name: d, mountPath: /e}", "more than once"),
        ("--data-dir=/d", "--data-dir=/d, --cert-file=/d/x", "another flag"),
        (
            "--data-dir=/d]",
            "--name=x]\n    env: [{name: ETCD_DATA_DIR, value: /d}]",
            "by a variable",
        ),
    ] {
        let what = told(&plain.replace(change, with), volume);
        assert!(what.contains(expected), "{with}: {what}");
    }
    let what = told(plain, "  - {name: d, emptyDir: {}}\n");
    assert!(what.contains("no path of the host"), "{what}");
    let second = format!("{plain}  - {{name: x, volumeMounts: [{{name: d, mountPath: /x}}]}}\n");
    assert!(told(&second, volume).contains("more than once"));
    let taken = plain.replace("[{name: d", "[{name: e, mountPath: /n/e}, {name: d");
    let volumes = format!("{volume}  - {{name: e, hostPath: {{path: /e}}}}\n");
    assert!(told(&taken, &volumes).contains("mounted there already"));
    let anchor = pod(plain, "  - {name: d, hostPath: &a {path: /srv/d}}\n");
    assert!(refusal(set_data_dir(anchor.as_bytes(), &to("/n"))).contains("an anchor"));
    let pod_of = |container: &str| pod(container, volume);
    for dir in ["/srv/d/n", "/srv/d/member"] {
        let text = pod_of(plain);
        assert!(refusal(set_data_dir(text.as_bytes(), &to(dir))).contains("inside of the old"));
        assert!(refusal(host_path_only(text.as_bytes(), &to(dir))).contains("inside of the old"));
    }
    let shared = pod_of(&plain.replace("--data-dir=/d", "--data-dir=/d, --key-file=/d/x"));
    assert!(refusal(host_path_only(shared.as_bytes(), &to("/n"))).contains("another flag"));
    assert_eq!(text(set_data_dir(pod_of(plain).as_bytes(), &to("/d")).unwrap()), {
        pod_of(plain).replace("/srv/d", "/d")
    });
    for dir in ["", "/", "n", "/n/", "/n/../m", "/n//m", "/a:b", "/$(X)", "/a\nb", "/a,b"] {
        let what = refusal(set_data_dir(pod(plain, volume).as_bytes(), &to(dir)));
        assert!(what.contains("not an absolute path"), "{dir}: {what}");
    }
}

#[test]
fn a_quota_is_set_or_put_behind_the_other_flags() {
    let before = fixture("single-customdir-v1beta4.yaml");
    let new = text(set_quota(before.as_bytes(), 4_294_967_296).unwrap());
    assert_eq!(new, before.replace("8589934592", "4294967296"));
    let before = fixture("single-v1beta4.yaml");
    let new = text(set_quota(before.as_bytes(), 8_589_934_592).unwrap());
    let last = "    - --watch-progress-notify-interval=5s\n";
    let expected = before.replace(last, &format!("{last}    - --quota-backend-bytes=8589934592\n"));
    assert_eq!(new, expected);
    let args = pod("  - command: [etcd]\n    args: [--name=x]\n", "    []\n");
    let new = text(set_quota(args.as_bytes(), 5).unwrap());
    assert_eq!(new, args.replace("--name=x", "--name=x, --quota-backend-bytes=5"));
    let own_word = pod("  - command: [etcd, --quota-backend-bytes, '7']\n", "    []\n");
    assert_eq!(text(set_quota(own_word.as_bytes(), 5).unwrap()), own_word.replace('7', "5"));
    assert!(refusal(set_quota(args.as_bytes(), 0)).contains("above 0"));
}
