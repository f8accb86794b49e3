//! Listeners with TLS and on Unix sockets, over the real binary.

use std::path::Path;
use std::sync::Arc;

use deltafan_test_support::certificates::{Authority, Identity, Use, connect_tls, put, shake_hands};
use deltafan_test_support::process::run;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::version::{TLS12, TLS13};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tonic::transport::Endpoint;

use crate::prelude::*;

const H2: &[&str] = &["h2"];
const BOTH: &[&rustls::SupportedProtocolVersion] = &[&TLS13, &TLS12];

/// One cluster of this name and version of its content.
fn cluster(timeout: u32) -> String {
    format!(
        "resources:\n- \"@type\": {CDS}\n  name: web\n  type: STATIC\n  connect_timeout: {timeout}s\n  \
         load_assignment: {{cluster_name: web}}\n"
    )
}

/// A relay with TLS, its files, and who made them.
struct Fixture {
    home: TempDir,
    authority: Authority,
    clients: Authority,
    relay: Process,
}

impl Fixture {
    /// Files of a set in a folder.
    fn write(folder: &Path, servers: &Authority, clients: &Authority, revoked: &[&Identity]) {
        servers.write_server(folder, clients, "");
        put(folder, "revoked.pem", &clients.revoke(revoked));
    }

    fn start(is_mutual: bool, downstream: &str) -> Self {
        let home = tempfile::tempdir().unwrap();
        let (authority, clients) = (Authority::new("servers"), Authority::new("clients"));
        Self::write(home.path(), &authority, &clients, &[]);
        let more = if is_mutual { ", client_ca_file: AT/clients.pem, crl_file: AT/revoked.pem" } else { "" };
        let tls = format!("tls: {{cert_file: AT/cert.pem, key_file: AT/key.pem{more}}}");
        let listeners = format!("[{{address: \"127.0.0.1:0\", {tls}}}]");
        let listeners = listeners.replace("AT", &home.path().display().to_string());
        let relay = Process::listening(&listeners, &[("clusters.yaml", &cluster(1))], downstream);
        Self { home, authority, clients, relay }
    }

    fn trusting(&self, identity: Option<&Identity>) -> Arc<ClientConfig> {
        self.authority.trusting(identity, BOTH, H2)
    }

    /// Whether a client that shows this is let in.
    async fn lets_in(&self, identity: Option<&Identity>) -> bool {
        is_let_in(&self.relay, self.trusting(identity)).await
    }

    async fn wait_for(&self, what: &str, done: impl Fn() -> bool) {
        eventually(what, async || done()).await;
    }

    fn handshakes(&self, result: &str) -> f64 {
        self.relay.metric(&format!("deltafan_tls_handshakes_total{{result=\"{result}\"}}"))
    }
}

/// Whether the relay talks HTTP/2 to a client, which is refused during the handshake or, in TLS 1.3, right behind it.
async fn is_let_in(relay: &Process, config: Arc<ClientConfig>) -> bool {
    let Ok(mut socket) = shake_hands(relay.listener, config).await else { return false };
    _ = socket.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    let mut settings = [0; 9];
    let read = tokio::time::timeout(PATIENCE, socket.read_exact(&mut settings)).await;
    read.expect("an answer or an end in time").is_ok() && settings[3] == 4
}

/// A stream that has been told of the cluster.
async fn subscribed(channel: &tonic::transport::Channel) -> Delta {
    let mut stream = Delta::open(channel, DELTA_ADS).await;
    stream.subscribe("node", CDS, &["*"]).await;
    let told = stream.response().await;
    assert_eq!(names(&told), ["web"]);
    stream.ack(&told).await;
    stream
}

async fn poll(mut socket: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin) -> String {
    let body = r#"{"node":{"id":"a"}}"#;
    let request = format!(
        "POST /v3/discovery:clusters HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    _ = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("an answer in time");
    String::from_utf8(answer).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_and_polls_are_served_over_both_versions_of_tls() {
    let fixture = Fixture::start(false, "");
    for version in [&TLS12, &TLS13] {
        let h2 = fixture.authority.trusting(None, &[version], &["h2", "http/1.1"]);
        let socket = shake_hands(fixture.relay.listener, Arc::clone(&h2)).await.unwrap();
        assert_eq!(socket.get_ref().1.protocol_version(), Some(version.version));
        assert_eq!(socket.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let channel = connect_tls(fixture.relay.listener, h2).await.unwrap();
        let mut stream = subscribed(&channel).await;
        stream.half_close();

        for alpn in [&["http/1.1"][..], &[]] {
            let http1 = fixture.authority.trusting(None, &[version], alpn);
            let answer = poll(shake_hands(fixture.relay.listener, http1).await.unwrap()).await;
            assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"web\""), "{answer}");
        }
    }
    let other = fixture.authority.trusting(None, BOTH, &["spdy/3"]);
    assert!(shake_hands(fixture.relay.listener, other).await.is_err(), "nothing in common");
    fixture.wait_for("count of it", || fixture.handshakes("incompatible") == 1.0).await;
    assert_eq!(fixture.relay.metric("deltafan_tls_reload_failures_total"), 0.0);
    let expires = fixture
        .relay
        .metric("deltafan_tls_certificate_expiry_seconds{of=\"downstream.listeners[0].tls\",which=\"cert\"}");
    assert!(expires > 1e9, "{expires}");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_answers_are_complete() {
    let fixture = Fixture::start(false, "");
    let filler = "x".repeat(8_000);
    let many: String =
        (0..300).map(|at| format!("- \"@type\": {CDS}\n  name: c{at}-{filler}\n  type: STATIC\n")).collect();
    fixture.relay.write("clusters.yaml", &format!("resources:\n{many}"));
    let channel = connect_tls(fixture.relay.listener, fixture.trusting(None)).await.unwrap();
    let mut stream = Delta::asking(&channel, "node", CDS, &["*"]).await;
    let mut told = std::collections::BTreeSet::new();
    while told.iter().filter(|name: &&String| name.starts_with('c')).count() < 300 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let response = stream.response().await;
        told.extend(names(&response));
        stream.ack(&response).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_clients_with_a_valid_certificate_of_the_right_authority_are_let_in() {
    let fixture = Fixture::start(true, "");
    let [good, revoked] =
        ["good", "bad"].map(|name| fixture.clients.client(&format!("spiffe://example.org/{name}")));
    put(fixture.home.path(), "revoked.pem", &fixture.clients.revoke(&[&revoked]));
    eventually("the list", async || !fixture.lets_in(Some(&revoked)).await).await;
    let before = fixture.handshakes("revoked");
    let expired = fixture.clients.certify(&["spiffe://example.org/old"], Use::Expired);
    let stranger = Authority::new("clients").client("spiffe://example.org/good");
    for version in [&TLS12, &TLS13] {
        let lets_in = async |identity| {
            is_let_in(&fixture.relay, fixture.authority.trusting(identity, &[version], H2)).await
        };
        assert!(lets_in(Some(&good)).await);
        assert!(!lets_in(None).await, "no certificate");
        assert!(!lets_in(Some(&stranger)).await, "of another authority");
        assert!(!lets_in(Some(&expired)).await, "expired");
        assert!(!lets_in(Some(&revoked)).await, "revoked");
    }
    fixture
        .wait_for("count of refusals", || {
            let refused = ["no_certificate", "unknown_ca", "expired", "revoked"]
                .map(|result| fixture.handshakes(result));
            // A name alike with another key is known as a bad signature only.
            refused[0] == 2.0
                && refused[1] + fixture.handshakes("bad_certificate") == 2.0
                && refused[2] == 2.0
                && refused[3] >= 2.0 + before
        })
        .await;
    let channel = connect_tls(fixture.relay.listener, fixture.trusting(Some(&good))).await.unwrap();
    subscribed(&channel).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn cleartext_to_tls_is_closed_and_counted() {
    let fixture = Fixture::start(false, "");
    for start in ["GET /ready HTTP/1.1\r\nhost: a\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let mut socket = TcpStream::connect(fixture.relay.listener).await.unwrap();
        socket.write_all(start.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        _ = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut answer)).await.expect("an end in time");
        assert!(answer.is_empty() || answer[0] == 21, "an alert or nothing, not {answer:?}");
    }
    fixture.wait_for("count of cleartext", || fixture.handshakes("not_tls") == 2.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handshake_that_stalls_is_closed_in_time_and_holds_up_nobody() {
    let fixture = Fixture::start(false, "  handshake_timeout: 1s\n");
    let start = Instant::now();
    let mut stalled = Vec::new();
    for _ in 0..50 {
        let mut socket = TcpStream::connect(fixture.relay.listener).await.unwrap();
        // The start of a ClientHello.
        socket.write_all(&[22, 3, 1, 2, 0, 1, 0, 1]).await.unwrap();
        stalled.push(socket);
    }
    assert!(fixture.lets_in(None).await);
    for mut socket in stalled {
        let read = tokio::time::timeout(PATIENCE, socket.read(&mut [0; 64])).await.expect("an end in time");
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    assert!(start.elapsed() >= Duration::from_secs(1), "not before its time");
    fixture.wait_for("count of stalls", || fixture.handshakes("timeout") == 50.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_does_not_wait_for_handshakes() {
    // The moment before anybody is closed is a tenth of it; the rest would be too long.
    let mut fixture = Fixture::start(false, "  handshake_timeout: 1h\n  drain: 40s\n");
    let mut socket = TcpStream::connect(fixture.relay.listener).await.unwrap();
    socket.write_all(&[22, 3, 1, 2, 0]).await.unwrap();
    fixture.wait_for("connection", || fixture.relay.metric("deltafan_connections") == 1.0).await;
    fixture.relay.terminate();
    let status = fixture.relay.wait();
    assert!(status.success(), "{status}");
}

/// Goes on to be told of changes.
async fn is_served(fixture: &Fixture, stream: &mut Delta, version: u32) {
    fixture.relay.write("clusters.yaml", &cluster(version));
    let told = stream.response().await;
    assert_eq!(names(&told), ["web"]);
    stream.ack(&told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_of_clients_that_are_revoked_are_closed_and_no_others() {
    let fixture = Fixture::start(true, "");
    let [good, bad] =
        ["good", "bad"].map(|name| fixture.clients.client(&format!("spiffe://example.org/{name}")));
    let connect =
        async |identity| connect_tls(fixture.relay.listener, fixture.trusting(Some(identity))).await.unwrap();
    let (good_channel, bad_channel) = (connect(&good).await, connect(&bad).await);
    let (mut served, mut revoked) = (subscribed(&good_channel).await, subscribed(&bad_channel).await);
    // One that has said nothing yet.
    let mut silent = shake_hands(fixture.relay.listener, fixture.trusting(Some(&bad))).await.unwrap();

    // A certificate of the listener that is new concerns no client.
    let renewed = fixture.authority.server();
    put(fixture.home.path(), "key.pem", &renewed.key_pem);
    put(fixture.home.path(), "cert.pem", &renewed.cert_pem);
    fixture.wait_for("renewal", || fixture.relay.metric("deltafan_tls_reloads_total") >= 1.0).await;
    is_served(&fixture, &mut revoked, 2).await;
    is_served(&fixture, &mut served, 3).await;
    revoked.take().await;

    put(fixture.home.path(), "revoked.pem", &fixture.clients.revoke(&[&bad]));
    assert_eq!(revoked.end().await.code(), tonic::Code::Unavailable);
    let end = tokio::time::timeout(PATIENCE, silent.read_to_end(&mut Vec::new())).await;
    assert!(end.is_ok(), "the silent connection of the same client is closed too");
    fixture
        .wait_for("word on it in the log", || {
            fixture
                .relay
                .has_written("closing connections whose client certificates are not accepted any more")
        })
        .await;
    // The other client hears what follows, on the stream it had.
    let told = async {
        let told = served.response().await;
        names(&told)
    };
    fixture.relay.write("clusters.yaml", &cluster(4));
    assert_eq!(told.await, ["web"]);
    assert_eq!(fixture.relay.metric("deltafan_streams{transport=\"delta\"}"), 1.0);
    assert!(!fixture.lets_in(Some(&bad)).await, "and it does not come in again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_new_set_keeps_the_old_one_and_is_counted_once() {
    let fixture = Fixture::start(true, "");
    let client = fixture.clients.client("spiffe://example.org/a");
    let old = std::fs::read_to_string(fixture.home.path().join("key.pem")).unwrap();
    let failures = || fixture.relay.metric("deltafan_tls_reload_failures_total");

    // The key of another certificate.
    put(fixture.home.path(), "key.pem", &fixture.authority.server().key_pem);
    fixture.wait_for("failure", || failures() == 1.0).await;
    let is_good = || fixture.relay.metric("deltafan_tls_last_reload_successful") == 1.0;
    assert!(!is_good());
    assert!(fixture.lets_in(Some(&client)).await, "the old set is in force");
    let said = fixture
        .relay
        .wait_for_message("changed certificates cannot be used; those from before stay in force");
    assert_eq!(said.len(), 1);
    let error = said[0]["error"].as_str().unwrap();
    assert!(error.contains("key.pem: it is not the key of the first certificate"), "{error}");

    // An equal list is no news; a file that is no list is.
    put(fixture.home.path(), "revoked.pem", "nothing\n");
    fixture.wait_for("failure", || failures() == 2.0).await;
    put(fixture.home.path(), "key.pem", &old);
    put(fixture.home.path(), "revoked.pem", &fixture.clients.revoke(&[&client]));
    fixture.wait_for("success", || fixture.relay.metric("deltafan_tls_reloads_total") >= 1.0).await;
    eventually("revocation", async || !fixture.lets_in(Some(&client)).await).await;
    assert!(is_good());

    // A list of somebody else revokes nothing. It may be meant so, and is not passed over in silence.
    put(fixture.home.path(), "revoked.pem", &fixture.authority.revoke(&[]));
    eventually("the other list", async || fixture.lets_in(Some(&client)).await).await;
    fixture.wait_for("warning", || fixture.relay.has_written("nothing that these revoked counts")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_everybody_can_read_is_warned_of() {
    use std::os::unix::fs::PermissionsExt as _;
    let fixture = Fixture::start(true, "");
    let key = fixture.home.path().join("key.pem");
    let warnings = || {
        fixture.relay.said("every user of this machine can read a private key; allow its owner only (0600, in Kubernetes `defaultMode: 0400`)")
    };
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
    // The directory says so: a list that is new has the set read again.
    put(fixture.home.path(), "revoked.pem", &fixture.clients.revoke(&[]));
    fixture.wait_for("warning", || !warnings().is_empty()).await;
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let before = fixture.relay.metric("deltafan_tls_reloads_total");
    warnings();
    put(fixture.home.path(), "revoked.pem", &fixture.clients.revoke(&[]));
    fixture.wait_for("reading", || fixture.relay.metric("deltafan_tls_reloads_total") > before).await;
    assert_eq!(warnings().len(), 0);
}

/// Which files are wrong is found as for those of `upstream`.
#[test]
fn check_reads_the_files_and_names_the_one_that_is_wrong() {
    let home = tempfile::tempdir().unwrap();
    let (authority, clients) = (Authority::new("servers"), Authority::new("clients"));
    Fixture::write(home.path(), &authority, &clients, &[]);
    let tls =
        "{cert_file: cert.pem, key_file: ./key.pem, client_ca_file: clients.pem, crl_file: revoked.pem}";
    let text = format!("upstream: {{directory: .}}\ndownstream: {{listeners: [{{tls: {tls}}}]}}\n");
    let config = put(home.path(), "relay.yaml", &text);
    let path = put(home.path(), "key.pem", &authority.server().key_pem);
    let ran = run(&["check", "--config", config.to_str().unwrap()]);
    assert_eq!((ran.code, ran.stderr.lines().count()), (Some(78), 1), "{}", ran.stderr);
    let start = format!("{}: downstream.listeners[0].tls: {}", config.display(), path.display());
    ran.complains(&[&start, "it is not the key of the first certificate in"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn unix_sockets_serve_grpc_and_polls_with_and_without_tls() {
    let home = tempfile::tempdir().unwrap();
    let (authority, clients) = (Authority::new("servers"), Authority::new("clients"));
    Fixture::write(home.path(), &authority, &clients, &[]);
    let [plain, secure] = ["plain.sock", "secure.sock"].map(|name| home.path().join(name));
    // Left behind by a process that did not end well.
    drop(std::os::unix::net::UnixListener::bind(&plain).unwrap());
    let at = home.path().display();
    let listeners = format!(
        "[{{address: \"unix:{at}/plain.sock\"}}, {{address: \"unix:{at}/secure.sock\", \
         tls: {{cert_file: {at}/cert.pem, key_file: {at}/key.pem}}}}]"
    );
    let secret = "resources:\n- \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret\n  \
                  name: s\n  generic_secret: {secret: {inline_string: x}}\n";
    let mut relay =
        Process::listening(&listeners, &[("clusters.yaml", &cluster(1)), ("secrets.yaml", secret)], "");

    let path = plain.clone();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await.unwrap();
    let stream = subscribed(&channel).await;
    let mut secrets = Delta::open(&channel, DELTA_ADS).await;
    let sds = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";
    secrets.subscribe("node", sds, &["s"]).await;
    assert_eq!(names(&secrets.response().await), ["s"], "who opens the socket is served Secrets");

    let answer = poll(UnixStream::connect(&plain).await.unwrap()).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"web\""), "{answer}");

    let config = authority.trusting(None, BOTH, &["http/1.1"]);
    let socket = UnixStream::connect(&secure).await.unwrap();
    let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let socket = tokio_rustls::TlsConnector::from(config).connect(name, socket).await.unwrap();
    assert!(poll(socket).await.starts_with("HTTP/1.1 200"));

    drop((stream, secrets, channel));
    relay.terminate();
    let status = relay.wait();
    assert!(status.success());
    assert!(!plain.exists() && !secure.exists(), "the files go with the listeners");
}
