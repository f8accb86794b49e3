//! Description of a metric.

use metrics::Unit;

#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: MetricKind,
    pub labels: &'static [Label],
    /// Help text.
    pub meaning: &'static str,
    /// Configuration without which it is not served.
    pub needs: Needs,
    /// Whether it is served from the start, with all label values.
    pub from_start: bool,
}

deltafan_core::labelled! {
    /// Labels are the names in the text format of Prometheus.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum MetricKind {
        Counter = "counter",
        Gauge = "gauge",
        Histogram = "histogram",
    }
}

deltafan_core::labelled! {
    /// Labels are keys of the configuration, or a variable of the environment.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Needs {
        Nothing = "",
        Servers = "upstream.servers",
        Directory = "upstream.directory",
        Groups = "groups.rules",
        Rollout = "rollout.types",
        Snapshot = "snapshot.path",
        Tls = "tls",
        Traces = "OTEL_EXPORTER_OTLP_ENDPOINT",
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Label {
    pub name: &'static str,
    /// Empty if they are words of the configuration or of the build, never of a peer.
    pub values: &'static [&'static str],
}

impl Metric {
    pub(super) const fn new(
        kind: MetricKind,
        name: &'static str,
        labels: &'static [Label],
        meaning: &'static str,
        needs: Needs,
    ) -> Self {
        Self { name, kind, labels, meaning, needs, from_start: matches!(kind, MetricKind::Counter) }
    }

    pub(super) const fn at_zero(self) -> Self {
        Self { from_start: true, ..self }
    }

    /// Unit that the name ends with.
    pub(super) fn unit(&self) -> Unit {
        match self.name.trim_end_matches("_total").rsplit('_').next() {
            Some("seconds") => Unit::Seconds,
            Some("bytes") => Unit::Bytes,
            _ => Unit::Count,
        }
    }

    /// All combinations of label values; `None` if one label is free.
    pub fn combinations(&self) -> Option<Vec<Vec<(&'static str, &'static str)>>> {
        let mut all = vec![Vec::new()];
        for label in self.labels {
            let with = |before: &Vec<_>, value| before.iter().copied().chain([(label.name, value)]).collect();
            all = all
                .iter()
                .flat_map(|before| label.values.iter().map(move |value| with(before, *value)))
                .collect();
        }
        (!all.is_empty()).then_some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_combination_of_labels_is_there_once() {
        const ONE: Label = Label { name: "one", values: &["a", "b"] };
        const OTHER: Label = Label { name: "other", values: &["c", "d"] };
        const FREE: Label = Label { name: "free", values: &[] };
        let of = |labels| Metric::new(MetricKind::Gauge, "m", labels, "", Needs::Nothing).combinations();
        let both = |one, other| vec![("one", one), ("other", other)];
        let all = vec![both("a", "c"), both("a", "d"), both("b", "c"), both("b", "d")];
        assert_eq!(of(&[ONE, OTHER]), Some(all));
        assert_eq!(of(&[]), Some(vec![vec![]]));
        assert_eq!(of(&[ONE, FREE]), None);
    }
}
