//! OpenTelemetry traces of changes, at a scripted collector.

use deltafan_test_support::certificates::{Authority, put};
use deltafan_test_support::front::{Front, Shown};
use deltafan_test_support::origin::timed;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::prelude::*;

/// Collector that hands spans to the test, each with the name of its service.
struct Collector {
    uri: String,
    spans: mpsc::UnboundedReceiver<(String, Span)>,
    /// Spans of traces that are not over, by their names.
    open: BTreeMap<Vec<u8>, BTreeMap<String, Span>>,
}

struct Receiver(mpsc::UnboundedSender<(String, Span)>);

#[tonic::async_trait]
impl TraceService for Receiver {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for of_resource in request.into_inner().resource_spans {
            let attributes = attributes(&of_resource.resource.unwrap_or_default().attributes);
            let service = attributes["service.name"].clone();
            let spans = of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            spans.for_each(|span| _ = self.0.send((service.clone(), span)));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn attributes(all: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Value| match value {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    let value = |one: &KeyValue| one.value.as_ref().and_then(|value| value.value.as_ref().map(text));
    all.iter().map(|one| (one.key.clone(), value(one).unwrap_or_default())).collect()
}

/// A trace that has arrived.
struct Trace {
    service: String,
    root: Span,
    /// By their names.
    children: BTreeMap<String, Span>,
}

impl Trace {
    fn attribute(&self, key: &str) -> String {
        attributes(&self.root.attributes).remove(key).unwrap_or_else(|| panic!("no {key}: {:?}", self.root))
    }

    /// Version of the change, and how its trace ended.
    fn end(&self) -> [String; 2] {
        ["version", "end"].map(|key| self.attribute(&format!("deltafan.{key}")))
    }

    fn numbers(&self) -> [String; 4] {
        ["", ".sent", ".accepted", ".rejected"].map(|of| self.attribute(&format!("deltafan.clients{of}")))
    }
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let uri = format!("http://{}", listener.local_addr().unwrap());
        let (sender, spans) = mpsc::unbounded_channel();
        let server =
            tonic::transport::Server::builder().add_service(TraceServiceServer::new(Receiver(sender)));
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        Self { uri, spans, open: BTreeMap::new() }
    }

    /// The next trace that is over.
    async fn trace(&mut self) -> Trace {
        loop {
            let next = tokio::time::timeout(PATIENCE, self.spans.recv()).await.expect("a span in time");
            let (service, span) = next.expect("the collector runs");
            if span.parent_span_id.is_empty() {
                // The root ends last.
                let children = self.open.remove(&span.trace_id).unwrap_or_default();
                assert!(children.values().all(|child| child.parent_span_id == span.span_id));
                return Trace { service, root: span, children };
            }
            let children = self.open.entry(span.trace_id.clone()).or_default();
            assert!(children.insert(span.name.clone(), span).is_none());
        }
    }
}

/// A relay that sends traces to this collector, with further lines of configuration and variables, and its stream to the control plane.
async fn traced(config: &str, collector: &str, further: &[(&str, &str)]) -> (Process, Origin, OriginStream) {
    let mut origin = Origin::start().await;
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", collector), ("OTEL_BSP_SCHEDULE_DELAY", "50")];
    let variables = variables.iter().chain(further);
    let variables = variables.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let relay = Process::unready_in_environment(&origin.uri(), config, variables).when_ready();
    let stream = origin.accept().await;
    (relay, origin, stream)
}

/// A client of all clusters of a relay that has asked for them.
async fn client_of(relay: &Process, upstream: &mut OriginStream) -> Delta {
    let client = relay.client("client", &["*"]).await;
    upstream.expect_request().await;
    client
}

/// Sends clusters by name and version, and removals, and waits for the ACK.
async fn send(upstream: &mut OriginStream, version: &str, clusters: &[(&str, &str)], removed: &[&str]) {
    upstream.send(&DeltaDiscoveryResponse {
        system_version_info: version.to_owned(),
        ..changes(Kind::Cluster, version, clusters, removed)
    });
    upstream.expect_ack(version).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_is_one_trace_from_its_arrival_to_the_last_ack() {
    let mut collector = Collector::start().await;
    let (relay, _origin, mut upstream) = traced("", &collector.uri, &[("OTEL_SERVICE_NAME", "edge")]).await;
    let mut clients = [relay.client("one", &["*"]).await, relay.client("other", &["*"]).await];
    upstream.expect_request().await;
    send(&mut upstream, "1", &[("a", "1"), ("c", "1")], &[]).await;
    for client in &mut clients {
        client.take().await;
    }
    assert_eq!(collector.trace().await.attribute("deltafan.end"), "complete");

    send(&mut upstream, "2", &[("a", "2"), ("b", "1")], &["c"]).await;
    for client in &mut clients {
        client.take().await;
    }
    let trace = collector.trace().await;
    assert_eq!((&*trace.service, &*trace.root.name), ("edge", "xds change"));
    let is = ["type", "version", "resources.changed", "resources.removed", "end"]
        .map(|key| trace.attribute(&format!("deltafan.{key}")));
    assert_eq!(is, ["cds", "2", "2", "1", "complete"]);
    assert_eq!(trace.numbers(), ["2", "2", "2", "0"]);
    let names: Vec<&str> = trace.children.keys().map(String::as_str).collect();
    assert_eq!(names, ["acknowledge", "send", "store"]);
    let times = |span: &Span| (span.start_time_unix_nano, span.end_time_unix_nano);
    let [store, send, acknowledge] =
        ["store", "send", "acknowledge"].map(|name| times(&trace.children[name]));
    assert_eq!(times(&trace.root), (store.0, acknowledge.1));
    assert!(store.0 <= store.1 && store.1 == send.0, "{store:?}, {send:?}");
    assert!(send.0 < send.1 && send.1 == acknowledge.0 && acknowledge.0 <= acknowledge.1);

    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(collector.spans.try_recv().is_err(), "one change, one trace");
    assert_eq!(relay.metric("deltafan_traces_total{result=\"complete\"}"), 2.0);
    assert_eq!(relay.metric("deltafan_trace_spans_total{result=\"exported\"}"), 8.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_another_one_overtakes_says_so() {
    let mut collector = Collector::start().await;
    let (relay, _origin, mut upstream) = traced("", &collector.uri, &[]).await;
    let mut client = client_of(&relay, &mut upstream).await;
    send(&mut upstream, "1", &[("a", "1")], &[]).await;
    client.take().await;
    assert_eq!(collector.trace().await.service, "deltafan");

    send(&mut upstream, "2", &[("a", "2")], &[]).await;
    let told = client.response().await;
    send(&mut upstream, "3", &[("a", "3")], &[]).await;
    let overtaken = collector.trace().await;
    assert_eq!(overtaken.end(), ["2", "overtaken"]);
    assert_eq!(overtaken.numbers(), ["1", "1", "0", "0"]);
    client.ack(&told).await;
    let told = client.response().await;
    client.nack(&told).await;
    let rejected = collector.trace().await;
    assert_eq!(rejected.end(), ["3", "complete"]);
    assert_eq!(rejected.numbers(), ["1", "1", "0", "1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_collector_that_is_away_is_told_once_and_holds_up_nothing() {
    let (relay, _origin, mut upstream) =
        traced("", "http://127.0.0.1:1", &[("OTEL_EXPORTER_OTLP_TIMEOUT", "100")]).await;
    let mut client = client_of(&relay, &mut upstream).await;
    let failed = || relay.metric("deltafan_trace_spans_total{result=\"failed\"}");
    for version in ["1", "2", "3"] {
        send(&mut upstream, version, &[("a", version)], &[]).await;
        client.take().await;
        let before = failed();
        relay.wait_for("a failed export", || failed() > before);
    }
    assert_eq!(relay.wait_for_message(LOST).len(), 1);
    assert_eq!(relay.said(LOST).len(), 0, "with a limit");
}

const LOST: &str =
    "the OpenTelemetry collector does not take traces, which are lost; clients are served as before";

/// A collector over TLS that asks for a certificate is sent traces; one that cannot be trusted is named with the remedy, also after its
/// certificates changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_collector_is_reached_over_tls() {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let home = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| put(home.path(), name, text).display().to_string();
    let own = clients.client("spiffe://mesh/relay");
    let (cert, key) = (put("own.pem", &own.cert_pem), put("own.key", &own.key_pem));
    let wrong = put("ca.pem", &clients.pem());
    let mut collector = Collector::start().await;
    let behind = collector.uri.trim_start_matches("http://").parse().unwrap();
    let leaf = servers.server();
    let shown = Shown { clients: Some(&clients), ..Shown::new(&leaf) };
    let front = Front::start(behind, &shown).await;
    let environment = [
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", &*wrong),
        ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", &cert),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", &key),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1000"),
    ];
    let (relay, _origin, mut upstream) = traced("", &front.uri("localhost"), &environment).await;
    let mut client = client_of(&relay, &mut upstream).await;
    let mut change = async |version: &str| {
        send(&mut upstream, version, &[("a", version)], &[]).await;
        client.take().await;
    };
    change("1").await;
    let why = relay.wait_for_message(LOST)[0]["error"].to_string();
    assert!(why.contains(&format!("leads to no trusted authority; trusted are those in {wrong}")), "{why}");

    put("ca.pem", &servers.pem());
    change("2").await;
    let mut trace = collector.trace().await;
    if trace.attribute("deltafan.version") == "1" {
        // Its end was exported after the file had changed.
        trace = collector.trace().await;
    }
    assert_eq!(trace.end(), ["2", "complete"]);
}

/// A stream that was opened later, one that asks for something else, and an observer are no clients of a change.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_a_change_does_not_concern_do_not_count() {
    let mut collector = Collector::start().await;
    let (relay, _origin, mut upstream) = traced("", &collector.uri, &[]).await;
    let channel = connect(&relay.uri()).await;
    let mut client = Delta::asking(&channel, "client", CDS, &["*"]).await;
    upstream.expect_request().await;
    send(&mut upstream, "1", &[("a", "1")], &[]).await;
    client.take().await;
    collector.trace().await;

    let other = Delta::open(&channel, DELTA_ADS).await;
    // The subscription to all clusters covers it upstream.
    other.subscribe("other", CDS, &["z"]).await;
    let mut observer = Delta::open(&channel, DELTA_ADS).await;
    let features = vec!["deltafan.observer".to_owned()];
    observer
        .send(DeltaDiscoveryRequest {
            node: Some(Node { client_features: features, ..node("observer") }),
            type_url: CDS.to_owned(),
            resource_names_subscribe: vec!["*".to_owned()],
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    observer.response().await;
    let version = "2".repeat(300);
    send(&mut upstream, &version, &[("a", "2")], &[]).await;
    let told = client.response().await;
    let mut late = Delta::asking(&channel, "late", CDS, &["*"]).await;
    late.response().await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    client.ack(&told).await;
    let trace = collector.trace().await;
    assert_eq!(trace.numbers(), ["1", "1", "1", "0"]);
    assert_eq!(trace.attribute("deltafan.version"), version[..100]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_is_exported_at_the_end_with_the_rule_of_its_group() {
    let mut collector = Collector::start().await;
    let keys =
        "  drain: 1s\ngroups: {rules: [{name: edge, match: {node.id: \"edge-.*\"}, node: {id: edge}}]}\n";
    let seldom = [("OTEL_BSP_SCHEDULE_DELAY", "600000")];
    let (mut relay, mut origin, _own) = traced(keys, &collector.uri, &seldom).await;
    let mut client = relay.client("edge-1", &["*"]).await;
    let mut upstream = origin.accept_asked().await;
    send(&mut upstream, "1", &[("a", "1")], &[]).await;
    client.response().await;
    relay.terminate();
    let trace = collector.trace().await;
    assert_eq!(
        (trace.end(), trace.attribute("deltafan.group").as_str()),
        (["1", "stopped"].map(str::to_owned), "edge")
    );
    assert_eq!(relay.wait().code(), Some(0));
}

/// Neither that nothing is there, nor that time was given to what is there, changes a resource.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_without_changes_is_no_trace() {
    let mut collector = Collector::start().await;
    let (relay, _origin, mut upstream) = traced("", &collector.uri, &[]).await;
    let mut client = client_of(&relay, &mut upstream).await;
    send(&mut upstream, "1", &[], &[]).await;
    client.take().await;
    let cds: TypeUrl = Kind::Cluster.into();
    for (version, body) in [("2", Some(&b""[..])), ("3", None)] {
        let resources = vec![timed(&cds, "a", "1", body, Duration::from_secs(600))];
        let system_version_info = version.to_owned();
        upstream.send(&DeltaDiscoveryResponse { resources, system_version_info, ..response(&cds, version) });
        upstream.expect_ack(version).await;
    }
    client.take().await;
    send(&mut upstream, "4", &[("b", "1")], &[]).await;
    client.take().await;
    for version in ["2", "4"] {
        assert_eq!(collector.trace().await.attribute("deltafan.version"), version);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_that_are_not_followed_are_counted() {
    let mut collector = Collector::start().await;
    let (relay, _origin, mut upstream) =
        traced("", &collector.uri, &[("OTEL_TRACES_SAMPLER", "always_off")]).await;
    send_to_one(&relay, &mut upstream, 1).await;
    let count = |relay: &Process, result: &str| {
        relay.metric(&format!("deltafan_traces_total{{result=\"{result}\"}}"))
    };
    relay.wait_for("the sampler", || count(&relay, "unsampled") == 1.0);
    assert!(collector.spans.try_recv().is_err());

    let (relay, _origin, mut upstream) = traced("", &collector.uri, &[]).await;
    let _client = send_to_one(&relay, &mut upstream, 70).await;
    relay.wait_for("more changes than are followed", || count(&relay, "dropped") == 6.0);
}

/// Sends so many changes to a client that answers none.
async fn send_to_one(relay: &Process, upstream: &mut OriginStream, changes: usize) -> Delta {
    let client = client_of(relay, upstream).await;
    for change in 0..changes {
        let name = change.to_string();
        send(upstream, &name, &[(&name, "1")], &[]).await;
    }
    client
}
