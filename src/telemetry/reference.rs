//! The page of metrics for users, `docs/metrics.md`, which follows from the [catalog](super::catalog).

use std::fmt::Write as _;

use super::catalog::{SECTIONS, SHARED_LABELS};
use super::metric::{Label, Metric, Needs, Values};

const HEAD: &str = "\
# Metrics

`GET /metrics` at the admin address has them in the text format of Prometheus. This page follows from
`src/telemetry/catalog.rs`; tests compare it with that, and with what a relay serves.

- No label holds a string of a peer.
- Counters are there with 0 from the start, with each value of their labels, so that `increase()` sees the first event. Those with a
  label from the configuration are there for each of its values.
- Histograms with labels come with the first measurement.
- A metric of something that is not configured is not there: its meaning ends with the key that it needs.
- Alerts are PromQL. A gauge that may jump for a moment wants a `for:` of some minutes.

";

const TAIL: &str = "\
## Reading them

The fleet converges when `rate(deltafan_responses_total[1m])` follows changes; responses without encodes are shared ones.
Encodes that grow with the number of clients mean that clients differ: each has its own set of names, or they are at
different positions because they are slow.
";

/// Text of `docs/metrics.md`.
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("Labels that several metrics have:\n\n| Label | Value | Meaning |\n|---|---|---|\n");
    for label in SHARED_LABELS {
        write_values(&mut page, label, &format!("`{}` | ", label.name));
    }
    for section in &SECTIONS {
        _ = write!(page, "\n## {}\n\n", section.title);
        page.push_str("| Metric | Kind | Labels | Unit | Meaning | Alert |\n|---|---|---|---|---|---|\n");
        section.metrics.iter().for_each(|metric| write_row(&mut page, metric));
        for metric in section.metrics {
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
    let unit = metric.unit.map_or("", |unit| unit.as_str());
    let mut meaning = metric.meaning.to_owned();
    if !metric.note.is_empty() {
        _ = write!(meaning, ". {}", metric.note);
    }
    if metric.needs != Needs::Nothing {
        _ = write!(meaning, " (`{}`)", metric.needs.key());
    }
    let meaning = cell(&meaning);
    let alert = match metric.alert {
        "" => String::new(),
        alert => format!("`{}`", cell(alert)),
    };
    let alert = if metric.when.is_empty() { alert } else { format!("{alert} {}", metric.when) };
    let kind = metric.kind.label();
    _ = writeln!(page, "| `{}` | {kind} | {labels} | {unit} | {meaning} | {alert} |", metric.name);
}

/// Values of a label of one metric, below the table.
fn write_label(page: &mut String, metric: &Metric, label: &Label) {
    let (label_name, name) = (label.name, metric.name);
    match label.values {
        Values::Listed(values, explanation) => {
            _ = write!(page, "\nValues of `{label_name}` of `{name}` are {explanation}: {}.\n", code(values));
        }
        Values::OneOf(_) | Values::Free(_) => {
            _ = write!(page, "\n| `{label_name}` of `{name}` | Meaning |\n|---|---|\n");
            write_values(page, label, "");
        }
    }
}

/// A row for each value of a label, which begins with `first`.
fn write_values(page: &mut String, label: &Label, first: &str) {
    match label.values {
        Values::OneOf(values) => {
            for (value, meaning) in values {
                _ = writeln!(page, "| {first}`{value}` | {} |", cell(meaning));
            }
        }
        Values::Listed(values, meaning) => {
            _ = writeln!(page, "| {first}{} | {} |", code(values), cell(meaning));
        }
        Values::Free(meaning) => _ = writeln!(page, "| {first} | {} |", cell(meaning)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

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
}
