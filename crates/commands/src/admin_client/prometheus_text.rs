//! Text format of Prometheus, as far as the relay writes it.

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    name: String,
    labels: Vec<(String, String)>,
    pub(super) value: f64,
}

impl Sample {
    /// Empty if missing.
    pub(super) fn label(&self, key: &str) -> &str {
        self.labels.iter().find(|(known, _)| known == key).map_or("", |(_, value)| value)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Metrics(Vec<Sample>);

impl Metrics {
    /// Reads metrics. Skips other lines.
    pub(super) fn read(text: &str) -> Self {
        Self(text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect())
    }

    pub(super) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Sample> {
        self.0.iter().filter(move |sample| sample.name == name)
    }

    /// Sum of a metric's samples; 0 if it is missing.
    pub(super) fn sum(&self, name: &str) -> f64 {
        self.all(name).map(|sample| sample.value).sum()
    }
}

/// Reads `NAME{KEY="VALUE",…} NUMBER`. The labels of interest have no escapes.
fn sample(line: &str) -> Option<Sample> {
    let (head, value) = line.rsplit_once(' ')?;
    let (name, labels) = head.split_once('{').unwrap_or((head, "}"));
    let labels = labels.strip_suffix('}')?.split("\",").filter(|label| !label.is_empty());
    let label = |label: &str| {
        let (key, value) = label.split_once("=\"")?;
        Some((key.to_owned(), value.trim_end_matches('"').to_owned()))
    };
    let labels = labels.map(label).collect::<Option<_>>()?;
    Some(Sample { name: name.to_owned(), labels, value: value.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_read_with_their_labels() {
        let text = "# HELP a b\na 1\nb{c=\"d\",e=\"f, g=1}\"} 2.5\nb{c=\"x\"} 1\nbroken{c=\"\nb{} NaN\n";
        let metrics = Metrics::read(text);
        assert_eq!(metrics.sum("a"), 1.0);
        let labels: Vec<_> = metrics.all("b").map(|sample| (sample.label("c"), sample.label("e"))).collect();
        assert_eq!(labels, [("d", "f, g=1}"), ("x", ""), ("", "")]);
        assert_eq!(metrics.sum("missing"), 0.0);
    }
}
