//! `/metrics` of the binary, against the catalog.

use deltafan::telemetry::{Metric, MetricKind, all_metrics};
use deltafan_test_support::certificates::Authority;

use crate::prelude::*;

/// Labels of a sample with their values.
type Labels = BTreeMap<String, String>;

/// One page of metrics.
#[derive(Debug, Default)]
struct Page {
    kinds: BTreeMap<String, String>,
    helps: BTreeMap<String, String>,
    /// Samples by the name of their metric, without the suffix of a histogram.
    samples: BTreeMap<String, Vec<(Labels, f64)>>,
}

impl Page {
    fn read(relay: &Process) -> Self {
        let (status, text) = relay.admin_get("/metrics");
        assert_eq!(status, 200, "{text}");
        let mut page = Self::default();
        for line in text.lines() {
            if let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
                page.kinds.insert(name.to_owned(), kind.to_owned());
            } else if let Some((name, help)) =
                line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '))
            {
                page.helps.insert(name.to_owned(), help.to_owned());
            } else if let Some((sample, value)) = line.rsplit_once(' ') {
                let (name, labels) = sample.split_once('{').unwrap_or((sample, "}"));
                let labels = labels.strip_suffix('}').unwrap().split("\",").filter(|pair| !pair.is_empty());
                let labels = labels
                    .map(|pair| pair.split_once("=\"").unwrap())
                    .map(|(label, value)| (label.to_owned(), value.trim_end_matches('"').to_owned()));
                let stem = ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix));
                let is_histogram =
                    |stem: &&str| page.kinds.get(*stem).is_some_and(|kind| kind == "histogram");
                let name = stem.filter(is_histogram).unwrap_or(name).to_owned();
                page.samples.entry(name).or_default().push((labels.collect(), value.parse().unwrap()));
            }
        }
        page
    }

    /// Holds every sample against the description of its metric.
    fn assert_described(&self) {
        for (name, samples) in &self.samples {
            let metric = all_metrics().find(|metric| metric.name == name);
            let metric = metric.unwrap_or_else(|| panic!("{name} is served and not described"));
            assert_eq!(self.kinds[name], metric.kind.label(), "{name}");
            assert_eq!(self.helps[name], metric.help(), "{name}");
            for (labels, _) in samples {
                let is_bucket = metric.kind == MetricKind::Histogram;
                let known: BTreeSet<&str> = metric.labels.iter().map(|label| label.name).collect();
                let has: BTreeSet<&str> = labels
                    .keys()
                    .map(String::as_str)
                    .filter(|label| !(is_bucket && *label == "le"))
                    .collect();
                assert_eq!(has, known, "{name}");
                for label in metric.labels {
                    let value = &*labels[label.name];
                    let is_known = label.values.is_empty() || label.values.contains(&value);
                    assert!(is_known, "{name} has {} `{value}`", label.name);
                }
            }
        }
    }

    /// Asserts that a metric is there with each value of its labels, if they are not free, and that it is 0 if it counts.
    fn assert_complete(&self, metric: &Metric, is_new: bool) {
        let name = metric.name;
        let samples = self.samples.get(name).unwrap_or_else(|| panic!("{name} is described and not served"));
        for combination in metric.combinations().into_iter().flatten() {
            let wanted: Labels =
                combination.into_iter().map(|(label, value)| (label.to_owned(), value.to_owned())).collect();
            assert!(samples.iter().any(|(labels, _)| *labels == wanted), "{name} lacks {wanted:?}");
        }
        if is_new && metric.kind == MetricKind::Counter {
            let counted = samples.iter().filter(|(_, value)| *value != 0.0);
            assert_eq!(counted.count(), 0, "{name}: {samples:?}");
        }
    }
}

/// Counters that count without any client: what the relay does by itself, and the process.
const BUSY: [&str; 3] =
    ["deltafan_upstream_events_total", "deltafan_snapshot_writes_total", "process_cpu_seconds_total"];

/// Reads the first page, on which everything but histograms and gauges by type has to be whole.
fn first_page(relay: &Process) -> Page {
    let page = Page::read(relay);
    page.assert_described();
    for metric in all_metrics().filter(|metric| metric.from_start) {
        if metric.combinations().is_some() {
            page.assert_complete(metric, !BUSY.contains(&metric.name));
        }
    }
    page
}

/// Key that a metric needs, by its row in docs/metrics.md.
fn needs(metric: &Metric) -> &'static str {
    let page = include_str!("../../docs/metrics.md");
    let row = page.lines().find(|line| line.starts_with(&format!("| `{}` |", metric.name)));
    let meaning = row.and_then(|row| row.split(" | ").nth(3)).unwrap();
    let key = meaning.rsplit_once("(`").and_then(|(_, key)| key.strip_suffix("`)"));
    key.filter(|key| KEYS.contains(key)).unwrap_or_default()
}

const KEYS: [&str; 6] =
    ["upstream.servers", "upstream.directory", "groups.rules", "rollout.types", "snapshot.path", "tls"];

/// Reads the page after a change has reached a client. Everything that is configured is there; nothing else counts.
fn last_page(relay: &Process, configured: &[&str]) {
    let page = Page::read(relay);
    page.assert_described();
    for metric in all_metrics() {
        let is_configured = needs(metric).is_empty() || configured.contains(&needs(metric));
        let samples = page.samples.get(metric.name);
        if is_configured {
            assert!(samples.is_some(), "{} is not there", metric.name);
        } else if metric.kind == MetricKind::Counter {
            assert!(samples.into_iter().flatten().all(|(_, value)| *value == 0.0), "{}", metric.name);
        } else {
            assert!(samples.is_none(), "{} is there", metric.name);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_and_tls_have_their_metrics_and_no_others() {
    let files = tempfile::tempdir().unwrap();
    let tls = Authority::new("servers").write_server(files.path(), &Authority::new("clients"), "");
    let listeners = format!("[{{address: \"OWN:0\"}}, {tls}]");
    let relay = Process::listening(&listeners, &[("clusters.yaml", &clusters(["a"]))], "");
    first_page(&relay);

    let mut client = relay.client("client", &["*"]).await;
    client.take().await;
    // The ACK is read before the change comes.
    relay.wait_for("the ACK", || {
        relay.metric("deltafan_requests_total{type=\"cds\",transport=\"delta\",result=\"ack\"}") == 1.0
    });
    relay.write("clusters.yaml", &clusters(["a", "b"]));
    client.response().await;
    relay.wait_for("the change", || relay.metric("deltafan_propagation_seconds_count") == 1.0);
    last_page(&relay, &["upstream.directory", "tls"]);
}

const EVERYTHING: &str = "snapshot: {path: ./snapshot}
rollout: {types: [rds]}
groups:
  rules:
    - {name: fleet, match: {node.id: \"fleet-.*\"}, node: {id: fleet}}
";

#[tokio::test(flavor = "multi_thread")]
async fn a_control_plane_and_all_that_is_off_by_default_have_their_metrics() {
    let mut origin = Origin::start().await;
    let uri = origin.uri();
    // Its files of TLS are those of the system: no certificate has an expiry that could be reported.
    let second = "}, {uri: \"https://127.0.0.1:1\"";
    let relay = Process::behind_keys(&uri, second, "", EVERYTHING);
    let mut upstream = origin.accept().await;
    let page = first_page(&relay);
    for metric in
        all_metrics().filter(|metric| KEYS[..5].contains(&needs(metric)) && needs(metric) != KEYS[1])
    {
        page.assert_complete(metric, !BUSY.contains(&metric.name));
    }
    let of = "upstream.servers[1].tls";
    for reloads in ["deltafan_tls_reloads_total", "deltafan_tls_reload_failures_total"] {
        let is_one = |(labels, value): &(Labels, f64)| labels["of"] == of && *value == 0.0;
        assert!(page.samples[reloads].iter().any(is_one), "{reloads}: {:?}", page.samples[reloads]);
    }

    let _client = relay.client("client", &["*"]).await;
    send_cluster(&mut upstream).await;
    relay.wait_for("the cluster", || relay.metric("deltafan_resources{type=\"cds\"}") == 1.0);
    Page::read(&relay).assert_described();
}

/// Answers the first request with a cluster, which the relay accepts.
async fn send_cluster(upstream: &mut OriginStream) {
    upstream.expect_request().await;
    upstream.deliver(&clusters_at("1", &["a"])).await;
}

fn value(relay: &Process, sample: &str) -> f64 {
    relay.metric(&format!("deltafan_{sample}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_are_late_show_in_gauges() {
    let relay = Process::start(&[("clusters.yaml", &clusters(["a"]))], "  ack_timeout: 10m\n");
    let mut client = relay.client("client", &["*"]).await;
    let told = client.response().await;
    relay.wait_for("a response without an ACK", || {
        value(&relay, "client_max_unanswered_seconds{type=\"cds\"}") > 0.1
    });
    assert_eq!(value(&relay, "client_max_lag_generations{type=\"cds\"}"), 0.0);
    for (names, lag) in [(&["a", "b"][..], 1.0), (&["a", "b", "c"], 2.0)] {
        relay.write("clusters.yaml", &clusters(names));
        relay.wait_for("a client that is behind", || {
            value(&relay, "client_max_lag_generations{type=\"cds\"}") == lag
        });
    }
    assert_eq!(value(&relay, "ack_seconds_count"), 0.0);
    client.ack(&told).await;
    client.take().await;
    relay.wait_for("both ACKs", || {
        value(&relay, "ack_seconds_count{type=\"cds\",transport=\"delta\"}") == 2.0
    });
    assert_eq!(value(&relay, "coalesced_changes_total"), 1.0, "two changes in one response");
    assert_eq!(value(&relay, "coalesced_changes_total{type=\"cds\"}"), 1.0);
    assert!(value(&relay, "ack_seconds_sum{type=\"cds\",transport=\"delta\"}") > 0.1);
    for gauge in ["client_max_unanswered_seconds", "client_max_lag_generations"] {
        assert_eq!(value(&relay, &format!("{gauge}{{type=\"cds\"}}")), 0.0, "{gauge}");
    }
}

#[test]
fn two_relays_with_equal_resources_have_equal_fingerprints() {
    let start = |names: &[&str]| Process::start(&[("clusters.yaml", &clusters(names))], "");
    let (one, other) = (start(&["a", "b"]), start(&["b", "a"]));
    let fingerprint = |relay: &Process| value(relay, "state_fingerprint{type=\"cds\"}");
    let is = fingerprint(&one);
    assert!(is > 0.0 && is.fract() == 0.0 && is < 2f64.powi(48), "{is}");
    assert_eq!(is, fingerprint(&other));
    assert_eq!(value(&one, "cached_resources{type=\"cds\"}"), 2.0);
    assert!(value(&one, "cached_bytes{type=\"cds\"}") > 100.0);
    other.write("clusters.yaml", &clusters(["a", "c"]));
    other.wait_for("another state", || fingerprint(&other) != is);
    other.write("clusters.yaml", &clusters(["a"]));
    other.wait_for("a removal", || value(&other, "cached_resources{type=\"cds\"}") == 1.0);
    one.write("clusters.yaml", &clusters(["a"]));
    one.wait_for("the same state", || fingerprint(&one) == fingerprint(&other));
}

/// A hash that anybody may read must not tell whether a guess at a key or a password is right.
#[tokio::test(flavor = "multi_thread")]
async fn the_fingerprint_of_secrets_does_not_depend_on_their_bodies() {
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let mut client = Delta::asking(&connect(&relay.uri()).await, "client", SDS, &["key"]).await;
    upstream.expect_request().await;
    let sds: TypeUrl = Kind::Secret.into();
    let mut fingerprints = Vec::new();
    for (nonce, version, body) in
        [("1", "v1", b"one"), ("2", "v1", b"two"), ("3", "v2", b"two"), ("4", "", b"one"), ("5", "", b"two")]
    {
        let resources = vec![resource(&sds, "key", version, body)];
        upstream.deliver(&DeltaDiscoveryResponse { resources, ..response(&sds, nonce) }).await;
        client.take().await;
        fingerprints.push(value(&relay, "state_fingerprint{type=\"sds\"}"));
    }
    // Nor on their versions: those of a state of the world are hashes of the bodies.
    assert!(
        fingerprints[0] > 0.0 && fingerprints.iter().all(|one| *one == fingerprints[0]),
        "{fingerprints:?}"
    );
}
