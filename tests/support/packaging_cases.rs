//! Holds `packaging/` together: the unit and the CronJob parse, run the same command, and are
//! closed down.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use etcdkit::kube::yaml::{self, Node};

use crate::support::{Sandbox, skipped};

const PROGRAM: &str = "/usr/local/bin/etcdkit";
const SERVICE: &str = "systemd/etcdkit-snapshot.service";
const TIMER: &str = "systemd/etcdkit-snapshot.timer";

fn packaging(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging").join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(packaging(path)).expect(path)
}

/// A unit's settings under `Section.Key`; those that stand twice are lists of systemd's.
fn unit(path: &str) -> BTreeMap<String, Vec<String>> {
    let mut settings: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut section = String::new();
    for line in read(path).lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        if let Some(name) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            name.clone_into(&mut section);
        } else {
            let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("{path}: {line}"));
            settings.entry(format!("{section}.{key}")).or_default().push(value.to_owned());
        }
    }
    settings
}

/// The words of the service's command, after the program.
fn command() -> Vec<String> {
    let unit = unit(SERVICE);
    let [line] = unit["Service.ExecStart"].as_slice() else { panic!("one command: {unit:?}") };
    assert!(!line.contains(['%', '$', '"', '\'', '\\']), "systemd would change it: {line}");
    let mut words = line.split(' ').map(str::to_owned);
    assert_eq!(words.next().as_deref(), Some(PROGRAM));
    words.collect()
}

fn value_of<'a>(words: &'a [String], flag: &str) -> &'a str {
    let at = words.iter().position(|word| word == flag).unwrap_or_else(|| panic!("no {flag}"));
    &words[at + 1]
}

#[track_caller]
fn at<'a>(node: &'a Node, path: &str) -> &'a Node {
    path.split('.')
        .fold(node, |node, key| node.get(key).unwrap_or_else(|| panic!("no {key} of {path}")))
}

#[track_caller]
fn text<'a>(node: &'a Node, path: &str) -> &'a str {
    at(node, path).text().unwrap_or_else(|| panic!("{path} is no text"))
}

#[test]
fn the_service_is_closed_down_and_may_write_where_it_must() {
    let unit = unit(SERVICE);
    let words = command();
    assert_eq!(words[..2], ["snapshot", "save"]);
    let folder = words[2].strip_suffix("/etcd-{time}.db").expect("a time in its name");
    // A folder that is missing is named by the program, which then fails.
    assert_eq!(unit["Service.ReadWritePaths"], [format!("-{folder}")]);
    assert_eq!(value_of(&words, "--audit-log").rsplit_once('/').unwrap().0, folder);
    let metrics = value_of(&words, "--metrics-file").rsplit_once('/').unwrap().0;
    assert_eq!(format!("/var/lib/{}", unit["Service.StateDirectory"][0]), metrics);
    // What they keep from running is not failed, and OnFailure= is not told of it.
    for kind in ["Unit.Condition", "Unit.Assert"] {
        assert!(!unit.keys().any(|key| key.starts_with(kind)), "{unit:?}");
    }
    for (key, value) in [
        ("Type", "oneshot"),
        ("ProtectSystem", "strict"),
        ("NoNewPrivileges", "true"),
        ("CapabilityBoundingSet", ""),
        ("IPAddressDeny", "any"),
        ("IPAddressAllow", "localhost"),
        ("UMask", "0077"),
    ] {
        assert_eq!(unit[&format!("Service.{key}")], [value], "{key}");
    }
    assert!(unit.contains_key("Service.TimeoutStartSec"), "a oneshot has no limit of its own");
    let timer = self::unit(TIMER);
    assert_eq!(timer["Timer.Persistent"], ["true"]);
    assert_eq!(timer["Install.WantedBy"], ["timers.target"]);
}

#[test]
fn systemd_understands_the_units() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let copy = |path: &str| {
        // It looks whether the program is there.
        let text = read(path).replace(PROGRAM, env!("CARGO_BIN_EXE_etcdkit"));
        let copy = dir.path().join(Path::new(path).file_name().expect("a name"));
        fs::write(&copy, text).expect("a copy");
        copy
    };
    let files = [copy(SERVICE), copy(TIMER)];
    let verify = |files: &[PathBuf]| {
        let mut command = Command::new("systemd-analyze");
        command.arg("verify").args(files).stdin(Stdio::null()).output()
    };
    let Ok(output) = verify(&files) else {
        skipped("systemd-analyze verify of packaging/systemd: there is no systemd-analyze");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    // It complains of other units on some machines; of ours it must not.
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("etcdkit-snapshot")).collect();
    assert!(output.status.success() && ours.is_empty(), "{said}");

    // It does look: a key that it does not know is named.
    let text = fs::read_to_string(&files[0]).unwrap().replace("ProtectSystem", "ProtectSystems");
    fs::write(&files[0], text).unwrap();
    let output = verify(&files[..1]).expect("it ran before");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("ProtectSystems"), "{said}");
}

#[test]
fn the_cron_job_runs_the_same_command_closed_down() {
    let job = yaml::parse(read("kubernetes/snapshot-cronjob.yaml").as_bytes()).expect("YAML");
    assert_eq!((text(&job, "apiVersion"), text(&job, "kind")), ("batch/v1", "CronJob"));
    assert_eq!(text(&job, "spec.concurrencyPolicy"), "Forbid");
    assert_eq!(text(&job, "spec.schedule").split(' ').count(), 5);
    let run = at(&job, "spec.jobTemplate.spec");
    assert!(text(run, "activeDeadlineSeconds").parse::<u32>().is_ok());
    let pod = at(run, "template.spec");
    assert_eq!(text(pod, "hostNetwork"), "true");
    assert_eq!(text(pod, "automountServiceAccountToken"), "false");
    assert_eq!(text(pod, "restartPolicy"), "Never");
    let role = "node-role.kubernetes.io/control-plane";
    let selects = at(pod, "nodeSelector").get(role).and_then(Node::text);
    assert_eq!(selects, Some(""));
    assert!(at(pod, "tolerations").items().iter().any(|item| text(item, "key") == role));

    let [container] = at(pod, "containers").items() else { panic!("one container") };
    let words = |path: &str| -> Vec<String> {
        at(container, path).items().iter().map(|item| item.text().unwrap().to_owned()).collect()
    };
    assert_eq!(words("command"), [PROGRAM]);
    assert_eq!(words("args"), command());
    assert!(!words("args").iter().any(|word| word.contains("$(")), "Kubernetes would change it");
    assert_eq!(text(container, "securityContext.readOnlyRootFilesystem"), "true");
    assert_eq!(text(container, "securityContext.allowPrivilegeEscalation"), "false");
    let dropped = at(container, "securityContext.capabilities.drop").items();
    assert_eq!(dropped.iter().map(|item| item.text().unwrap()).collect::<Vec<_>>(), ["ALL"]);
    for path in ["resources.limits.memory", "resources.requests.cpu", "resources.requests.memory"] {
        text(container, path);
    }

    let volumes: BTreeMap<&str, &str> = at(pod, "volumes")
        .items()
        .iter()
        .map(|volume| (text(volume, "name"), text(volume, "hostPath.path")))
        .collect();
    let mounts = at(container, "volumeMounts").items();
    let mut writable = Vec::new();
    for mount in mounts {
        let path = text(mount, "mountPath");
        // The manifest names files of the node, so that each must be where it is there.
        assert_eq!(volumes[text(mount, "name")], path);
        if mount.get("readOnly").and_then(Node::text) != Some("true") {
            writable.push(path);
        }
    }
    assert_eq!(mounts.len(), volumes.len());
    let words = command();
    let metrics = value_of(&words, "--metrics-file");
    let folder = |file: &str| file.rsplit_once('/').unwrap().0.to_owned();
    assert_eq!(writable, [folder(&words[2]), folder(metrics)]);
    for path in ["/etc/kubernetes/manifests", "/etc/kubernetes/pki/etcd"] {
        assert!(volumes.values().any(|volume| *volume == path), "{path}");
    }
}

#[test]
fn the_program_knows_every_flag_of_the_command() {
    let help = Sandbox::new().run("snapshot save --help").expect(0, &[]).stdout;
    let words = command();
    let flags: Vec<&String> = words.iter().filter(|word| word.starts_with("--")).collect();
    assert!(!flags.is_empty(), "{words:?}");
    for flag in flags {
        let is_flag = |word: &str| {
            word.strip_prefix(flag.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with("[="))
        };
        let is_known = help.split_whitespace().any(is_flag);
        assert!(is_known, "snapshot save has no {flag}");
    }
    assert!(help.contains("{time}"), "the help does not say what becomes of {{time}}");
}
