//! Permissions over the real binary: two tenants with certificates of their own, on every transport.

use deltafan::proto::ResourceLocator;
use deltafan_test_support::certificates::{Authority, Identity, connect_tls, shake_hands};
use deltafan_test_support::client::LDS;
use rustls::version::TLS13;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tonic::transport::Channel;

use crate::prelude::*;

const BODY: &str = "hunter2-is-the-body-of-a-secret";

const RULES: &str = r#"authorization:
  default: deny
  rules:
  - peers: ["spiffe://mesh/ns/prod/**"]
    node_ids: ["prod-*"]
    types: [cds, sds]
    names: ["prod/**"]
  - peers: ["spiffe://mesh/ns/dev/**"]
    names: ["dev/**"]
"#;

const CLUSTERS: &str = "resources:
- {\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: prod/a, type: STATIC}
- {\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: prod/b, type: STATIC}
- {\"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster, name: dev/a, type: STATIC}
";

pub(crate) struct Fixture {
    pub(crate) relay: Process,
    servers: Authority,
    clients: Authority,
    _home: TempDir,
}

impl Fixture {
    pub(crate) fn start(more: &str, origin: Option<String>) -> Self {
        let home = tempfile::tempdir().unwrap();
        let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
        let listener = servers.write_server(home.path(), &clients, ", client_ca_file: AT/clients.pem");
        let listeners = format!("[{listener}]");
        let relay = match origin {
            Some(origin) => Process::behind_with(&origin, &listeners, more),
            None => {
                let secret = format!("name: prod/key, generic_secret: {{secret: {{inline_string: {BODY}}}}}");
                let secrets = format!("resources:\n- {{\"@type\": {SDS}, {secret}}}\n");
                let files = [("clusters.yaml", CLUSTERS), ("secrets.yaml", &*secrets)];
                Process::listening(&listeners, &files, more)
            }
        };
        Self { relay, servers, clients, _home: home }
    }

    fn identity(&self, who: &str) -> Identity {
        self.clients.client(&format!("spiffe://mesh/ns/{who}/sa/envoy"))
    }

    pub(crate) async fn connect(&self, who: &str) -> Channel {
        let config = self.servers.trusting(Some(&self.identity(who)), &[&TLS13], &["h2"]);
        connect_tls(self.relay.listener, config).await.unwrap()
    }

    /// The status and the body of a poll.
    async fn poll(&self, who: &str, id: &str, what: &str) -> (u16, String) {
        let config = self.servers.trusting(Some(&self.identity(who)), &[&TLS13], &["http/1.1"]);
        let mut socket = shake_hands(self.relay.listener, config).await.unwrap();
        let body = format!("{{\"node\":{{\"id\":\"{id}\"}}}}");
        let request = format!(
            "POST /v3/discovery:{what} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // A connection may end without TLS's own goodbye.
        _ = socket.read_to_end(&mut answer).await;
        let text = String::from_utf8(answer).unwrap();
        (text.split(' ').nth(1).unwrap().parse().unwrap(), text)
    }

    fn denied(&self, what: &str) -> f64 {
        self.relay.metric(&format!("deltafan_denied_total{{what=\"{what}\"}}"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_tenant_sees_its_own_on_every_transport() {
    let fixture = Fixture::start(RULES, None);
    for (who, id, own) in [("prod", "prod-1", vec!["prod/a", "prod/b"]), ("dev", "any", vec!["dev/a"])] {
        let channel = fixture.connect(who).await;
        for method in [DELTA_ADS, DELTA_CLUSTERS] {
            let mut stream = Delta::open(&channel, method).await;
            stream.subscribe(id, CDS, &["*", "prod/a", "dev/a", "other"]).await;
            let (mut seen, mut gone) = (Vec::new(), Vec::new());
            // Absent names may be told beside those that are there, or behind them.
            while seen.len() < own.len() || gone.len() < 2 {
                let told = stream.response().await;
                seen.extend(names(&told));
                gone.extend(told.removed_resources.clone());
                stream.ack(&told).await;
            }
            seen.sort_unstable();
            gone.sort_unstable();
            assert_eq!(seen, own, "{who} {method}");
            let absent = if who == "prod" { ["dev/a", "other"] } else { ["other", "prod/a"] };
            assert_eq!(gone, absent, "{who} {method}");
        }
        let mut stream = Sotw::asking(&channel, id, CDS, &[]).await;
        assert_eq!(stream.response().await.resources.len(), own.len(), "{who}");
        let (status, text) = fixture.poll(who, id, "clusters").await;
        assert_eq!(status, 200, "{text}");
        for name in ["prod/a", "prod/b", "dev/a"] {
            assert_eq!(text.contains(name), own.contains(&name), "{who}: {text}");
        }
    }
    assert!(fixture.denied("name") >= 4.0 && fixture.denied("wildcard") >= 6.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_or_request_without_permission_ends_its_stream_on_every_transport() {
    let fixture = Fixture::start(RULES, None);
    for (who, id, type_url, what) in [
        ("prod", "dev-1", CDS, "node_id"),
        ("prod", "", CDS, "node_id"),
        ("prod", "prod-1", LDS, "type"),
        ("other", "prod-1", CDS, "peer"),
    ] {
        let before = fixture.denied(what);
        let channel = fixture.connect(who).await;
        let mut stream = Delta::asking(&channel, id, type_url, &["*"]).await;
        assert_eq!(stream.end().await.code(), Code::PermissionDenied, "{who} {id}");
        let mut stream = Sotw::asking(&channel, id, type_url, &[]).await;
        assert_eq!(stream.end().await.code(), Code::PermissionDenied, "{who} {id}");
        let polled = fixture.poll(who, id, if type_url == CDS { "clusters" } else { "listeners" }).await;
        assert_eq!(polled.0, 403, "{who} {id}: {}", polled.1);
        assert_eq!(fixture.denied(what) - before, 3.0, "{what}");
    }
    // The first request says which node a stream is.
    let channel = fixture.connect("prod").await;
    let mut stream = Delta::asking(&channel, "prod-1", CDS, &["prod/a"]).await;
    stream.take().await;
    stream.subscribe("dev-1", CDS, &["dev/a"]).await;
    let told = stream.response().await;
    assert_eq!((names(&told), told.removed_resources), (Vec::<String>::new(), vec!["dev/a".to_owned()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_secret_is_for_clients_with_permission_and_in_no_log_or_metric() {
    let fixture = Fixture::start(RULES, None);
    for (who, id, sees) in [("prod", "prod-1", true), ("dev", "any", false)] {
        let channel = fixture.connect(who).await;
        let mut stream = Delta::asking(&channel, id, SDS, &["prod/key"]).await;
        let told = stream.response().await;
        assert_eq!(names(&told).len(), usize::from(sees));
        assert_eq!(told.removed_resources.len(), usize::from(!sees));
        // A rejection that quotes what it rejects is the client's own word; the relay adds nothing to it.
        stream.nack(&told).await;
        let (status, text) = fixture.poll(who, id, "secrets").await;
        assert!(status == 200 || status == 304 || status == 503, "{text}");
        assert!(!text.contains(BODY) || sees);
    }
    fixture.relay.wait_for("the rejection in the log", || {
        fixture.relay.has_written(" (NACK); node and text are of the first")
    });
    assert!(!fixture.relay.has_written(BODY));
    assert!(!fixture.relay.admin_get("/metrics").1.contains(BODY));
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_that_change_end_the_connections_whose_rights_they_change_and_no_others() {
    let fixture = Fixture::start(RULES, None);
    let mut streams = Vec::new();
    for (who, id) in [("prod", "prod-1"), ("dev", "any")] {
        let channel = fixture.connect(who).await;
        let mut stream = Delta::asking(&channel, id, CDS, &["*"]).await;
        stream.take().await;
        streams.push((channel, stream));
    }
    let [(_, mut prod), (_, mut dev)] = <[_; 2]>::try_from(streams).ok().unwrap();
    fixture
        .relay
        .reconfigure(&fixture.relay.config_with(&RULES.replace("prod/**\"]\n  -", "prod/a\"]\n  -")));
    assert_eq!(prod.end().await.code(), Code::Unavailable);
    // The other tenant is told of changes as before.
    let clusters = CLUSTERS.replace("dev/a, type: STATIC", "dev/a, type: EDS");
    fixture.relay.write("clusters.yaml", &clusters);
    assert_eq!(names(&dev.response().await), ["dev/a"]);
    let channel = fixture.connect("prod").await;
    let mut stream = Delta::asking(&channel, "prod-1", CDS, &["*"]).await;
    assert_eq!(names(&stream.response().await), ["prod/a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_is_given_parameters_by_its_certificate_and_can_send_no_others() {
    const PARAMETERS: &str = r#"dynamic_parameters:
- key: ns
  from: peer.spiffe_id
  pattern: "spiffe://mesh/ns/([^/]+)/.*"
"#;
    let mut origin = Origin::start().await;
    let fixture = Fixture::start(PARAMETERS, Some(origin.uri()));
    let channel = fixture.connect("prod").await;
    let stream = Delta::open(&channel, DELTA_ADS).await;
    // Parameters that it sends itself count for nothing.
    stream.subscribe("dev", CDS, &["a"]).await;
    let mut asked = origin.accept().await;
    let request = asked.expect_request().await;
    let [locator] = &request.resource_locators_subscribe[..] else { panic!("{request:?}") };
    assert_eq!(locator.name, "a");
    assert_eq!(locator.dynamic_parameters.get("ns").map(String::as_str), Some("prod"));

    let mut spoofing = Delta::open(&channel, DELTA_ADS).await;
    let locator = ResourceLocator {
        name: "a".to_owned(),
        dynamic_parameters: [("ns".to_owned(), "dev".to_owned())].into(),
    };
    let request =
        DeltaDiscoveryRequest { resource_locators_subscribe: vec![locator], ..subscription("dev", CDS, &[]) };
    spoofing.send(request).await;
    assert_eq!(spoofing.end().await.code(), Code::PermissionDenied);
    assert_eq!(fixture.denied("parameters"), 1.0);
}
