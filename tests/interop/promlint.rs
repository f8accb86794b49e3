//! Names and types of metrics under Prometheus' own linter.

use std::fs::File;
use std::process::Command;

use deltafan_test_support::process::Process;

use crate::fixture::{in_repository, require};

/// Runs the linter. Returns its exit status and what it prints.
fn lint(metrics: &str) -> Option<(Option<i32>, String)> {
    let program = in_repository("tests/interop/bin/promlint");
    require(program.exists(), "no promlint")?;
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("metrics");
    std::fs::write(&path, metrics).unwrap();
    let run = Command::new(program).stdin(File::open(&path).unwrap()).output().unwrap();
    Some((run.status.code(), String::from_utf8(run.stdout).unwrap()))
}

#[test]
fn the_metrics_are_named_as_prometheus_asks() {
    // All of them are there with these.
    let snapshot = tempfile::tempdir().unwrap();
    let sections = format!(
        "rollout: {{types: [cds]}}\nsnapshot: {{path: {}}}\ngroups: {{rules: [{{name: edge, match: {{node.id: edge}}, node: client}}]}}\n",
        snapshot.path().display()
    );
    // A control plane is not needed.
    let relay = Process::unready_with("http://127.0.0.1:1", &sections);
    let metrics = relay.admin_get("/metrics").1;
    for name in ["deltafan_rollouts_total", "deltafan_group_clients"] {
        assert!(metrics.contains(name), "{name} is not in\n{metrics}");
    }
    let Some(found) = lint(&metrics) else { return };
    assert_eq!(found, (Some(0), String::new()));
}

#[test]
fn the_linter_finds_a_badly_named_metric() {
    let metrics = "# HELP deltafan_orders orders\n# TYPE deltafan_orders counter\ndeltafan_orders 1\n";
    let Some(found) = lint(metrics) else { return };
    let expected = "deltafan_orders: counter metrics should have \"_total\" suffix\n";
    assert_eq!(found, (Some(3), expected.to_owned()));
}
