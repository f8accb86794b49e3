//! Holds dashboard, alerts and chart against the relay: metrics and labels that they use, runbooks, tests of rules, keys.
//!
//! `make deploy-check` has the checks that need Helm and Prometheus.

use std::collections::BTreeSet;

use deltafan::telemetry::{Metric, MetricKind, all_metrics};
use regex::Regex;
use serde_json::Value;

use crate::docs::read;

const ALERTS: &str = "deploy/prometheus/alerts.yaml";
const DASHBOARD: &str = "deploy/grafana/deltafan.json";
const RUNBOOK: &str = "docs/alerts.md";

/// Labels that come with scraping.
const SCRAPED: [&str; 4] = ["namespace", "job", "instance", "pod"];

/// Parts of each section of the runbook.
const PARTS: [&str; 4] = ["**Meaning.**", "**First look.**", "**Do.**", "**Never.**"];

fn pattern(text: &str) -> Regex {
    Regex::new(text).unwrap()
}

/// The metric that a series is of.
fn metric(series: &str) -> Option<&'static Metric> {
    let named = |name: &str| all_metrics().find(|metric| metric.name == name);
    let is_histogram = |metric: &&Metric| metric.kind == MetricKind::Histogram;
    named(series).filter(|metric| !is_histogram(metric)).or_else(|| {
        let name = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| series.strip_suffix(suffix))?;
        named(name).filter(is_histogram)
    })
}

/// Faults of an expression, and of texts beside it that name labels as `$labels.NAME` or `{{NAME}}`.
fn faults(expression: &str, texts: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let mut known: BTreeSet<&str> = SCRAPED.into();
    known.insert("le");
    let matcher = pattern(r#"([a-zA-Z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)""#);
    for series in pattern(r"deltafan_[a-z_]+").find_iter(expression) {
        let Some(metric) = metric(series.as_str()) else {
            faults.push(format!("no metric {}", series.as_str()));
            continue;
        };
        known.extend(metric.labels.iter().map(|label| label.name));
        let matchers = expression[series.end()..].strip_prefix('{').and_then(|rest| rest.split('}').next());
        for found in matcher.captures_iter(matchers.unwrap_or_default()) {
            let (label, values) = (&found[1], &found[3]);
            if SCRAPED.contains(&label) {
                continue;
            }
            let of = metric.labels.iter().find(|of| of.name == label);
            if of.is_none() && label != "le" {
                faults.push(format!("{} has no label {label}", series.as_str()));
            }
            // Without values they are words of the configuration.
            let all = of.map(|of| of.values).filter(|values| !values.is_empty());
            let plain = |value: &&str| value.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            for value in values.split('|').filter(plain) {
                if all.is_some_and(|all| !all.contains(&value)) {
                    faults.push(format!("{label} is never {value}"));
                }
            }
        }
    }
    let lists = pattern(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)");
    let grouped: Vec<String> = lists
        .captures_iter(expression)
        .flat_map(|found| found[1].split(',').map(|label| label.trim().to_owned()).collect::<Vec<_>>())
        .collect();
    let shown = pattern(r"\$labels\.(\w+)|\{\{(\w+)\}\}");
    let shown =
        shown.captures_iter(texts).map(|found| found.get(1).or_else(|| found.get(2)).unwrap().as_str());
    for label in grouped.iter().map(String::as_str).chain(shown) {
        if !known.contains(label) {
            faults.push(format!("no metric here has a label {label}"));
        }
    }
    faults
}

/// Expressions of a dashboard, each with the object that it is in.
fn add_expressions<'a>(value: &'a Value, into: &mut Vec<(&'a str, &'a Value)>) {
    if let Some(expression) = value["expr"].as_str().or_else(|| value["definition"].as_str()) {
        into.push((expression, value));
    }
    match value {
        Value::Array(values) => values.iter().for_each(|value| add_expressions(value, into)),
        Value::Object(values) => values.values().for_each(|value| add_expressions(value, into)),
        _ => (),
    }
}

/// The rules of the alerts.
fn alerts() -> Vec<Value> {
    let file: Value = serde_saphyr::from_str(&read(ALERTS)).unwrap();
    let groups = file["groups"].as_array().unwrap().iter();
    let rules: Vec<Value> = groups.flat_map(|group| group["rules"].as_array().unwrap().clone()).collect();
    assert!(rules.len() > 10);
    rules
}

#[test]
fn the_dashboard_uses_metrics_and_labels_of_the_relay() {
    let dashboard = serde_json::from_str(&read(DASHBOARD)).unwrap();
    let mut expressions = Vec::new();
    add_expressions(&dashboard, &mut expressions);
    assert!(expressions.len() > 40, "{expressions:?}");
    for (expression, object) in expressions {
        let faults = faults(expression, object["legendFormat"].as_str().unwrap_or_default());
        // Of the metrics of containers the labels are not ours.
        if !expression.contains("container_") {
            assert!(faults.is_empty(), "{DASHBOARD}: {expression}: {faults:?}");
        }
    }
}

#[test]
fn alerts_use_metrics_and_labels_of_the_relay() {
    for alert in alerts() {
        let faults = faults(alert["expr"].as_str().unwrap(), &alert["annotations"].to_string());
        assert!(faults.is_empty(), "{ALERTS}: {}: {faults:?}", alert["alert"]);
    }
    for series in pattern(r"deltafan_[a-z_]+").find_iter(&read("deploy/prometheus/alerts_test.yaml")) {
        assert!(metric(series.as_str()).is_some(), "alerts_test.yaml: no metric {}", series.as_str());
    }
}

#[test]
fn wrong_names_in_expressions_are_found() {
    let right = r#"sum by (type, le) (rate(deltafan_propagation_seconds_bucket{type="cds", job="a"}[5m]))"#;
    assert_eq!(faults(right, "{{type}} $labels.job"), Vec::<String>::new());
    for (wrong, texts, fault) in [
        ("deltafan_client > 0", "", "no metric deltafan_client"),
        ("deltafan_propagation_seconds > 0", "", "no metric deltafan_propagation_seconds"),
        ("deltafan_connections_count > 0", "", "no metric deltafan_connections_count"),
        (r#"deltafan_clients{kind="cds"}"#, "", "deltafan_clients has no label kind"),
        (r#"deltafan_clients{state=~"synced|resynced"}"#, "", "state is never resynced"),
        ("sum by (kind) (deltafan_clients)", "", "no metric here has a label kind"),
        ("sum(deltafan_clients)", "{{reason}}", "no metric here has a label reason"),
        ("deltafan_clients > 0", "of {{ $labels.reason }}", "no metric here has a label reason"),
    ] {
        assert_eq!(faults(wrong, texts), [fault], "{wrong}");
    }
}

#[test]
fn each_alert_has_a_runbook_and_a_test() {
    let (runbook, tests) = (read(RUNBOOK), read("deploy/prometheus/alerts_test.yaml"));
    let section = |name: &str| {
        let begins = format!("\n### {name}\n");
        let rest = &runbook[runbook.find(&begins)? + begins.len()..];
        Some(rest.split("\n#").next().unwrap_or_default())
    };
    let mut names = BTreeSet::new();
    for alert in alerts() {
        let name = alert["alert"].as_str().unwrap();
        let link = format!("{RUNBOOK}#{}", name.to_lowercase());
        assert_eq!(alert["annotations"]["runbook_url"], link, "runbook_url of {name}");
        let section = section(name).unwrap_or_else(|| panic!("{RUNBOOK} has no section {name}"));
        for part in PARTS {
            assert!(section.contains(part), "{RUNBOOK}, {name}: no {part}");
        }
        let fires = format!(r#"labels: '{{alertname="{name}"}}'"#);
        assert!(tests.contains(&format!("- name: {name}\n")), "alerts_test.yaml has no test {name}");
        assert!(tests.contains(&fires), "no test in alerts_test.yaml has {name} fire");
        names.insert(name.to_owned());
    }
    let sections: BTreeSet<_> =
        runbook.lines().filter_map(|line| line.strip_prefix("### ")).map(str::to_owned).collect();
    assert_eq!(sections, names, "sections of {RUNBOOK}, and alerts");
}

#[test]
fn the_unit_stays_stopped_after_a_wrong_configuration_and_dumps_no_core() {
    let unit = read("deploy/deltafan.service");
    assert!(unit.contains("\nRestartPreventExitStatus=78\n"));
    // Of ExecStart alone: a check that fails before it has the unit start again, for ever.
    assert!(!unit.contains("\nExecStartPre="), "{unit}");
    assert!(
        unit.contains(" $DELTAFAN_OPTIONS\n") && unit.contains("\nEnvironment=DELTAFAN_OPTIONS=\n"),
        "{unit}"
    );
    // A core dump would have the keys.
    assert!(unit.contains("\nLimitCORE=0\n"));
}

#[test]
fn the_chart_knows_the_keys_of_the_relay() {
    let page = read("docs/configure.md");
    let moments = ["at once", "new connections", "new polls", "new connections; others are closed"];
    let key = pattern(r"`([a-z_.]+)`");
    let keys = |moment: &str| -> Vec<String> {
        let start = format!("- **{moment}**: ");
        let list = page.lines().find_map(|line| line.strip_prefix(&start)).unwrap();
        key.captures_iter(list).map(|found| found.extract().1).map(|[key]| key.to_owned()).collect()
    };
    let reloaded: Vec<String> = moments.into_iter().flat_map(keys).collect();
    let all: Vec<String> = reloaded.iter().cloned().chain(keys("at the next start")).collect();
    assert!(all.len() > 40, "{all:?}");

    let listed = read("deploy/helm/deltafan/files/reloaded-keys.txt");
    assert_eq!(listed.lines().count(), reloaded.len());
    assert_eq!(
        listed.lines().collect::<BTreeSet<_>>(),
        reloaded.iter().map(String::as_str).collect(),
        "reloaded-keys.txt, and the keys that take effect without a restart"
    );

    let schema: Value = serde_json::from_str(&read("deploy/helm/deltafan/values.schema.json")).unwrap();
    let known: BTreeSet<&str> = schema["properties"]["config"]["properties"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let sections = all.iter().map(|key| key.split('.').next().unwrap()).collect();
    assert_eq!(known, sections, "sections of `config` in values.schema.json, and of the relay");
}
