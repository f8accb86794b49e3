//! Description of a metric.

use metrics::Unit;

#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub kind: MetricKind,
    pub labels: &'static [Label],
    /// Help text.
    pub meaning: &'static str,
    /// Further facts, for people.
    pub note: &'static str,
    /// Expression to alert on; empty for none.
    pub alert: &'static str,
    pub when: &'static str,
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
    pub values: Values,
}

#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// Values with their meanings; empty if the value says it.
    OneOf(&'static [(&'static str, &'static str)]),
    /// Values that a page of its own explains.
    Listed(&'static [&'static str], &'static str),
    /// A word of the configuration or of the build, never of a peer.
    Free(&'static str),
}

impl Values {
    /// `None` if they are free.
    pub fn all(self) -> Option<Vec<&'static str>> {
        match self {
            Self::OneOf(values) => Some(values.iter().map(|(value, _)| *value).collect()),
            Self::Listed(values, _) => Some(values.to_vec()),
            Self::Free(_) => None,
        }
    }
}

impl Metric {
    const fn new(kind: MetricKind, name: &'static str, meaning: &'static str) -> Self {
        let from_start = matches!(kind, MetricKind::Counter);
        Self {
            name,
            kind,
            labels: &[],
            meaning,
            note: "",
            alert: "",
            when: "",
            needs: Needs::Nothing,
            from_start,
        }
    }

    pub(super) const fn counter(name: &'static str, meaning: &'static str) -> Self {
        Self::new(MetricKind::Counter, name, meaning)
    }

    pub(super) const fn gauge(name: &'static str, meaning: &'static str) -> Self {
        Self::new(MetricKind::Gauge, name, meaning)
    }

    pub(super) const fn histogram(name: &'static str, meaning: &'static str) -> Self {
        Self::new(MetricKind::Histogram, name, meaning)
    }

    pub(super) const fn by(self, labels: &'static [Label]) -> Self {
        Self { labels, ..self }
    }

    pub(super) const fn noting(self, note: &'static str) -> Self {
        Self { note, ..self }
    }

    pub(super) const fn alert(self, alert: &'static str) -> Self {
        Self { alert, ..self }
    }

    pub(super) const fn when(self, when: &'static str) -> Self {
        Self { when, ..self }
    }

    pub(super) const fn with(self, needs: Needs) -> Self {
        Self { needs, ..self }
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
            let values = label.values.all()?;
            let longer = all.iter().flat_map(|before: &Vec<_>| {
                values.iter().map(|value| before.iter().copied().chain([(label.name, *value)]).collect())
            });
            all = longer.collect();
        }
        Some(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_combination_of_labels_is_there_once() {
        const ONE: Label = Label { name: "one", values: Values::OneOf(&[("a", ""), ("b", "")]) };
        const OTHER: Label = Label { name: "other", values: Values::Listed(&["c", "d"], "a page") };
        const FREE: Label = Label { name: "free", values: Values::Free("a name") };
        let all = Metric::gauge("m", "").by(&[ONE, OTHER]).combinations().unwrap();
        let both = |one, other| vec![("one", one), ("other", other)];
        assert_eq!(all, [both("a", "c"), both("a", "d"), both("b", "c"), both("b", "d")]);
        assert_eq!(Metric::gauge("m", "").combinations(), Some(vec![vec![]]));
        assert_eq!(Metric::gauge("m", "").by(&[ONE, FREE]).combinations(), None);
    }
}
