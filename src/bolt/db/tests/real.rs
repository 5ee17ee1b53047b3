//! The real bbolt looks at what was written. Needs `ETCDKIT_INTEROP_BIN`.

use std::process::Command;

use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::*;

#[test]
#[ignore = "needs the real bbolt: set ETCDKIT_INTEROP_BIN and run ignored tests"]
fn bbolt_finds_nothing_wrong() {
    let bin = std::env::var_os("ETCDKIT_INTEROP_BIN").expect("ETCDKIT_INTEROP_BIN is not set");
    let bbolt = std::path::Path::new(&bin).join("bbolt");
    let mut runner = TestRunner::deterministic();
    for round in 0..30 {
        let page_size = if round % 3 == 0 { 1024 } else { 4096 };
        let steps = steps(2000).new_tree(&mut runner).unwrap().current();
        let (_folder, path) = follow(page_size, &steps);
        let output = Command::new(&bbolt).arg("check").arg(&path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.starts_with("OK"), "{output:?}");
    }
}
