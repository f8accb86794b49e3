//! The catalog, and the page of metrics for users, `docs/metrics.md`.

use std::collections::BTreeSet;
use std::path::Path;

use deltafan_core::resource::Kind;

use super::MetricKind;
use super::catalog::{Label, Metric, RESPONSES, all};

/// Values that the page lists for a label of a metric: in its row, or in a table, line or list of their own.
fn explained(page: &str, row: &str, metric: &Metric, label: &Label) -> BTreeSet<String> {
    let (name, of) = (label.name, metric.name);
    let beside = row.split_once(&format!("`{name}`: ")).map(|(_, rest)| rest);
    let beside = beside.and_then(|rest| rest.split([';', '|']).next());
    let line = |begins: String| page.lines().find_map(|line| line.strip_prefix(begins.as_str()));
    let words = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    if let Some(values) = beside.or_else(|| line(format!("Values of `{name}` of `{of}` are "))) {
        return words(values);
    }
    if let Some((_, table)) = page.split_once(&format!("\n| `{name}` of `{of}` | Meaning |\n|---|---|\n")) {
        let rows = table.lines().take_while(|line| !line.is_empty());
        return rows.filter_map(|row| row.split('`').nth(1).map(str::to_owned)).collect();
    }
    // A value is the first word of its part.
    let shared = line(format!("- `{name}`: `")).unwrap_or_default();
    shared.split("; `").map(|part| part.split('`').next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_page_explains_each_metric_and_each_value_of_its_labels() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let page = std::fs::read_to_string(&path).unwrap();
    for metric in all() {
        let begins = format!("| `{}` | {} | ", metric.name, metric.kind.label());
        let row = page.lines().find(|line| line.starts_with(&begins));
        let row = row.unwrap_or_else(|| panic!("docs/metrics.md has no row {begins}"));
        assert!(row.contains(&format!(" | {}", metric.help())) && metric.help().len() > 5, "{row}");
        for label in metric.labels {
            assert!(row.contains(&format!("`{}`", label.name)), "{row} lacks {}", label.name);
            if !label.values.is_empty() {
                let values = label.values.iter().map(|value| (*value).to_owned()).collect();
                assert_eq!(explained(&page, row, metric, label), values, "{} of {}", label.name, metric.name);
            }
        }
    }
}

#[test]
fn types_are_those_of_the_core() {
    let responses = all().find(|of| of.name == RESPONSES).unwrap();
    assert_eq!(responses.labels[0].values, Kind::ALL.map(Kind::short));
}

#[test]
fn names_are_as_prometheus_has_them() {
    let mut names = BTreeSet::new();
    for metric in all() {
        let name = metric.name;
        assert!(names.insert(name), "{name} is there twice");
        assert_eq!(name.ends_with("_total"), metric.kind == MetricKind::Counter, "{name}");
    }
}
