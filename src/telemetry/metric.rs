//! Description of a metric.

use metrics::Unit;

/// A metric that the relay serves.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// Unit of its value; `None` for a number of things.
    pub unit: Option<Unit>,
    /// Its labels.
    pub labels: &'static [Label],
    /// Meaning of its value, which is its help text too.
    pub meaning: &'static str,
    /// Further facts, for people.
    pub note: &'static str,
    /// Expression to alert on; empty for none.
    pub alert: &'static str,
    /// Further words on the alert.
    pub when: &'static str,
    /// Part of the configuration without which it is not served.
    pub needs: Needs,
    /// Whether it is served from the start, with each value of its labels.
    pub from_start: bool,
}

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A number that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// Measured values, counted in buckets.
    Histogram,
}

impl MetricKind {
    /// Its name in the text format of Prometheus.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Part of the configuration that a metric is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// None: it is always served.
    Nothing,
    /// `upstream.servers`.
    Servers,
    /// `upstream.directory`.
    Directory,
    /// `groups.rules`.
    Groups,
    /// `rollout.types`.
    Rollout,
    /// `snapshot.path`.
    Snapshot,
    /// A `tls` section.
    Tls,
    /// A collector of OpenTelemetry in the environment.
    Traces,
}

impl Needs {
    /// Key of the configuration; empty for none.
    pub const fn key(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Servers => "upstream.servers",
            Self::Directory => "upstream.directory",
            Self::Groups => "groups.rules",
            Self::Rollout => "rollout.types",
            Self::Snapshot => "snapshot.path",
            Self::Tls => "tls",
            Self::Traces => "OTEL_EXPORTER_OTLP_ENDPOINT",
        }
    }
}

/// Label of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    /// Its name.
    pub name: &'static str,
    /// Its values.
    pub values: Values,
}

/// Values of a label.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// One of these, each with its meaning; that is empty where the value says it.
    OneOf(&'static [(&'static str, &'static str)]),
    /// One of these, which a page of its own explains.
    Listed(&'static [&'static str], &'static str),
    /// A word of the configuration or of the build, never of a peer.
    Free(&'static str),
}

impl Values {
    /// All values; `None` where they are free.
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
            unit: None,
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
        Self { unit: Some(Unit::Seconds), ..Self::new(MetricKind::Histogram, name, meaning) }
    }

    pub(super) const fn by(self, labels: &'static [Label]) -> Self {
        Self { labels, ..self }
    }

    pub(super) const fn in_seconds(self) -> Self {
        Self { unit: Some(Unit::Seconds), ..self }
    }

    pub(super) const fn in_bytes(self) -> Self {
        Self { unit: Some(Unit::Bytes), ..self }
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

    /// All combinations of the values of its labels; `None` where one has free values.
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
