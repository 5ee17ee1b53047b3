//! Changes any bytes as YAML, as an etcd manifest and as a kubeadm configuration.

#![no_main]

use etcdkit::kube::kubeadm_config;
use etcdkit::kube::manifest::edit::{self, Directories};
use etcdkit::kube::yaml::{Change, Node, Step, Value, find, parse, splice};
use libfuzzer_sys::fuzz_target;

/// Most places of a text that are tried.
const PLACES: usize = 12;

fn places<'a>(node: &'a Node, way: &mut Vec<Step<'a>>, all: &mut Vec<Vec<Step<'a>>>) {
    if all.len() >= PLACES {
        return;
    }
    all.push(way.clone());
    match &node.value {
        Value::Scalar { .. } => {}
        Value::Sequence(items) => {
            for (index, item) in items.iter().enumerate() {
                way.push(Step::Index(index));
                places(item, way, all);
                way.pop();
            }
        }
        Value::Mapping(entries) => {
            for entry in entries {
                way.push(Step::Key(&entry.key));
                places(&entry.node, way, all);
                way.pop();
            }
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let to = Directories { data: "/var/lib/etcd-new", wal: None };
    drop(edit::set_data_dir(data, &to));
    drop(edit::host_path_only(data, &to));
    drop(kubeadm_config::set_data_dir(data, &to));
    drop(kubeadm_config::set_quota(data, 5));
    let Ok(root) = parse(data) else { return };
    let mut all = Vec::new();
    places(&root, &mut Vec::new(), &mut all);
    for way in all {
        for text in ["/x/y", "it's: \n a\n"] {
            if let Ok(new) = splice(data, &way, &Change::Set(text)) {
                let node = find(&new, &way).expect("what was changed");
                assert!(matches!(&node.value, Value::Scalar { text: found, .. } if found == text));
                assert_eq!(splice(&new, &way, &Change::Set(text)).expect("the same again"), new);
            }
        }
        drop(splice(data, &way, &Change::Put("new key", "x".into())));
        drop(splice(data, &way, &Change::Push("--x=y".into())));
    }
});
