//! The catalog, and the page of metrics for users, `docs/metrics.md`, which follows from it.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use deltafan_core::resource::Kind;
use deltafan_core::subscription::ClientState;
use deltafan_core::upstream::Counters;

use super::MetricKind;
use super::catalog::{CLIENTS, RESPONSES, SECTIONS, SHARED_LABELS, UPSTREAM, all};
use super::metric::{Label, Metric, Needs, Values};

const HEAD: &str = "\
# Metrics

`GET /metrics` at the admin address has them in the text format of Prometheus. A test compares this page with the code, and with what a
relay serves. [alerts.md](alerts.md) has alert rules that use them.

- The end of a name is its unit.
- Counters are there with 0 from the start, with each value of their labels, so that `increase()` sees the first event. Histograms with
  labels come with the first measurement.
- A metric whose meaning ends with a key is there only with that key in the configuration.
- No label holds a string of a peer.
- Alerts are PromQL. For a gauge that may jump for a moment add a `for:` of some minutes.

";

const TAIL: &str = "\
## Reading them

The fleet converges when `rate(deltafan_responses_total[1m])` follows changes. Responses without encodes are shared ones. Encodes that grow
with the number of clients mean that clients differ: each has its own set of names, or they are slow and at different positions.
";

/// Text of `docs/metrics.md`.
fn reference() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("Labels that several metrics have:\n\n");
    SHARED_LABELS.iter().for_each(|label| write_shared(&mut page, label));
    for (title, metrics) in SECTIONS {
        _ = write!(page, "\n## {title}\n\n");
        page.push_str("| Metric | Kind | Labels | Meaning | Alert |\n|---|---|---|---|---|\n");
        metrics.iter().for_each(|metric| write_row(&mut page, metric));
        for metric in *metrics {
            for label in metric.labels.iter().filter(|label| !is_shared(label) && !is_plain(label)) {
                write_label(&mut page, metric, label);
            }
        }
    }
    page.push('\n');
    page.push_str(TAIL);
    page
}

/// Whether the head of the page explains a label.
fn is_shared(label: &Label) -> bool {
    SHARED_LABELS.iter().any(|shared| shared.name == label.name && shared.values.all() == label.values.all())
}

/// Whether the row of its metric lists the values of a label, because they explain themselves.
fn is_plain(label: &Label) -> bool {
    match label.values {
        Values::OneOf(values) => values.iter().all(|(_, meaning)| meaning.is_empty()),
        Values::Listed(..) => false,
        Values::Free(_) => true,
    }
}

fn code(values: &[&str]) -> String {
    values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ")
}

/// Text of a cell.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn write_row(page: &mut String, metric: &Metric) {
    let labels = metric.labels.iter().map(|label| match label.values.all() {
        Some(values) if is_plain(label) && !is_shared(label) => {
            format!("`{}`: {}", label.name, code(&values))
        }
        _ => format!("`{}`", label.name),
    });
    let labels = labels.collect::<Vec<_>>().join("; ");
    let mut meaning = metric.meaning.to_owned();
    if !metric.note.is_empty() {
        _ = write!(meaning, ". {}", metric.note);
    }
    if metric.needs != Needs::Nothing {
        _ = write!(meaning, " (`{}`)", metric.needs.label());
    }
    let meaning = cell(&meaning);
    let alert = match metric.alert {
        "" => String::new(),
        alert => format!("`{}`", cell(alert)),
    };
    let alert = if metric.when.is_empty() { alert } else { format!("{alert} {}", metric.when) };
    let kind = metric.kind.label();
    _ = writeln!(page, "| `{}` | {kind} | {labels} | {meaning} | {alert} |", metric.name);
}

/// Values of a label of several metrics, as an item of a list.
fn write_shared(page: &mut String, label: &Label) {
    let values = match label.values {
        Values::OneOf(values) => {
            let values = values.iter().map(|(value, meaning)| format!("`{value}` {meaning}"));
            values.collect::<Vec<_>>().join("; ")
        }
        Values::Listed(values, meaning) => format!("{meaning}: {}", code(values)),
        Values::Free(meaning) => meaning.to_owned(),
    };
    _ = writeln!(page, "- `{}`: {values}", label.name);
}

/// Values of a label of one metric, below the table.
fn write_label(page: &mut String, metric: &Metric, label: &Label) {
    let (label_name, name) = (label.name, metric.name);
    match label.values {
        Values::Listed(values, explanation) => {
            _ = write!(page, "\nValues of `{label_name}` of `{name}` are {explanation}: {}.\n", code(values));
        }
        Values::OneOf(values) => {
            _ = write!(page, "\n| `{label_name}` of `{name}` | Meaning |\n|---|---|\n");
            for (value, meaning) in values {
                _ = writeln!(page, "| `{value}` | {} |", cell(meaning));
            }
        }
        Values::Free(_) => (),
    }
}

/// Writes the page again instead of comparing it.
const UPDATE: &str = "UPDATE_DOCS";

#[test]
fn the_page_follows_from_the_catalog() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md");
    let should_be = reference();
    if std::env::var_os(UPDATE).is_some() {
        return std::fs::write(&path, should_be).unwrap();
    }
    let is = std::fs::read_to_string(&path).unwrap();
    let differs = is.lines().zip(should_be.lines()).find(|(is, should_be)| is != should_be);
    assert!(
        is == should_be,
        "docs/metrics.md differs from src/telemetry/catalog.rs; {UPDATE}=1 cargo test --lib telemetry writes it again: {differs:?}"
    );
}

fn values(metric: &str, label: &str) -> BTreeSet<&'static str> {
    let metric = all().find(|of| of.name == metric).expect(metric);
    let label = metric.labels.iter().find(|of| of.name == label).expect(label);
    label.values.all().expect(metric.name).into_iter().collect()
}

#[test]
fn labels_have_the_values_that_the_relay_counts() {
    let kinds = Kind::KNOWN.into_iter().chain([Kind::Other]);
    assert_eq!(values(RESPONSES, "type"), kinds.map(Kind::short).collect());
    let states = ClientState::ALL.map(ClientState::label);
    assert_eq!(values(CLIENTS, "state"), states.into());
    let events = Counters::default().all().map(|(event, _)| event);
    assert_eq!(values(UPSTREAM, "event"), events.into());
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
