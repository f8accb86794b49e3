//! TLS from the relay, and from `deltafan get`, to a server: real sockets, certificates made on the fly.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use deltafan::tls::client::ClientFiles;
use deltafan::tls::files::Files;
use deltafan::tls::options::{CertificateFiles, TlsOptions};
use deltafan::tls::reload::Reloader;
use deltafan::upstream::{Backoff, Options, Target, Transport, dial};
use deltafan_test_support::certificates::{Authority, Identity, Use, put};
use deltafan_test_support::front::{Front, Shown};
use deltafan_test_support::process::run;
use rustls::version::{TLS12, TLS13};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use crate::prelude::*;
use crate::upstream::{Relay, options};

const CDS: Kind = Kind::Cluster;
const ISTIOD: &str = "spiffe://mesh.example/ns/istio-system/sa/istiod";
const RELAY: &str = "spiffe://mesh.example/ns/edge/sa/relay";

/// Authorities for both sides, and a folder with the files of a client.
struct Pki {
    dir: TempDir,
    servers: Authority,
    clients: Authority,
}

impl Pki {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
        put(dir.path(), "ca.pem", &servers.pem());
        Self { dir, servers, clients }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn server(&self, names: &[&str]) -> Identity {
        self.servers.certify(names, Use::Any)
    }

    /// A client that knows the authority of servers, and is nobody.
    fn nobody(&self) -> TlsOptions {
        TlsOptions { ca_file: Some(self.path("ca.pem")), ..TlsOptions::default() }
    }

    /// Files with a certificate of its own, which is put in its place.
    fn somebody(&self, leaf: &Identity) -> TlsOptions {
        let cert_file = put(self.dir.path(), "relay.pem", &leaf.cert_pem);
        let key_file = put(self.dir.path(), "relay.key", &leaf.key_pem);
        TlsOptions { own: Some(CertificateFiles { cert_file, key_file }), ..self.nobody() }
    }
}

fn named(tls: TlsOptions, name: &str) -> TlsOptions {
    TlsOptions { server_name: Some(name.parse().unwrap()), ..tls }
}

/// Why there is no connection, or that there is one.
async fn outcome(uri: &str, tls: TlsOptions) -> String {
    let transport = Transport { connect_timeout: PATIENCE, ..Transport::default() };
    let endpoint = transport.endpoint(uri).unwrap();
    let way = match ClientFiles::new(tls, endpoint.uri()).unwrap().read() {
        Ok(tls) => Target::Tls(Arc::new(tls)),
        Err(error) => return error.to_string(),
    };
    match dial(endpoint, way).await {
        Ok(_) => "connected".to_owned(),
        Err(why) => why,
    }
}

async fn expect(uri: &str, tls: TlsOptions, expected: &str) {
    let start = Instant::now();
    let outcome = outcome(uri, tls).await;
    assert!(outcome.contains(expected), "expected {expected:?}, but {outcome}");
    assert!(start.elapsed() < PATIENCE, "an answer, not the end of patience");
}

/// A control plane, and TLS in front of it.
async fn origin(shown: &Shown<'_>) -> (Origin, Front) {
    let origin = Origin::start().await;
    let front = Front::start(origin.address(), shown).await;
    (origin, front)
}

#[tokio::test]
async fn a_server_is_taken_by_name_and_by_address() {
    let pki = Pki::new();
    let leaf = pki.server(&["localhost", "cp.example", "127.0.0.1"]);
    for versions in [&[&TLS12][..], &[&TLS13]] {
        let (_origin, front) = origin(&Shown { versions, ..Shown::new(&leaf) }).await;
        expect(&front.uri("localhost"), pki.nobody(), "connected").await;
        expect(&front.uri("127.0.0.1"), pki.nobody(), "connected").await;
        expect(&front.uri("127.0.0.1"), named(pki.nobody(), "cp.example"), "connected").await;
    }
}

#[tokio::test]
async fn a_server_that_cannot_prove_its_name_is_refused_and_the_reason_is_said() {
    let pki = Pki::new();
    let stranger = Authority::new("servers");
    let good = pki.server(&["localhost"]);
    let (_origin, front) = origin(&Shown::new(&good)).await;
    expect(&front.uri("localhost"), pki.nobody(), "connected").await;
    let trusted =
        format!("leads to no trusted authority; trusted are those in {}", pki.path("ca.pem").display());
    let revoked = pki.server(&["localhost"]);
    let list = put(pki.dir.path(), "crl.pem", &pki.servers.revoke(&[&revoked]));
    let heeds = TlsOptions { crl_file: Some(list), ..pki.nobody() };
    for (leaf, host, client, expected) in [
        (&stranger.certify(&["localhost"], Use::Any), "localhost", pki.nobody(), &*trusted),
        (
            &pki.server(&["other.example"]),
            "localhost",
            pki.nobody(),
            "the server's certificate is not for localhost but for other.example",
        ),
        (
            &pki.server(&["a.example", "b.example"]),
            "127.0.0.1",
            named(pki.nobody(), "b.example"),
            "connected",
        ),
        (&pki.server(&["b.example"]), "127.0.0.1", pki.nobody(), "not for 127.0.0.1 but for "),
        (
            &pki.servers.certify(&["localhost"], Use::Expired),
            "localhost",
            pki.nobody(),
            "the server's certificate has expired",
        ),
        (
            &pki.servers.certify(&["localhost"], Use::Client),
            "localhost",
            pki.nobody(),
            "is not one for servers",
        ),
        (&revoked, "localhost", heeds.clone(), "has been revoked, as crl_file says"),
        (&good, "localhost", heeds, "connected"),
    ] {
        front.show(&Shown::new(leaf));
        expect(&front.uri(host), client, expected).await;
    }
}

#[tokio::test]
async fn a_server_is_taken_by_its_spiffe_id_and_no_other() {
    let pki = Pki::new();
    let istiod = pki.server(&[ISTIOD]);
    let (_origin, front) = origin(&Shown::new(&istiod)).await;
    let client = named(pki.nobody(), ISTIOD);
    for host in ["127.0.0.1", "localhost"] {
        expect(&front.uri(host), client.clone(), "connected").await;
    }
    let other = named(pki.nobody(), "spiffe://mesh.example/ns/istio-system/sa/istio");
    let of_another = format!("it is for {ISTIOD}, not for spiffe://mesh.example/ns/istio-system/sa/istio;");
    let of_several = format!("it is for {ISTIOD}, {RELAY}, not for");
    let list = put(pki.dir.path(), "crl.pem", &pki.servers.revoke(&[&istiod]));
    let heeds = TlsOptions { crl_file: Some(list), ..client.clone() };
    for (leaf, client, expected) in [
        (&istiod, pki.nobody(), "is not for localhost"),
        (&istiod, other, &*of_another),
        // The name of the host does not help, and nor does one ID of several.
        (&pki.server(&["localhost"]), client.clone(), "it is for nobody by such a name, not for"),
        (&pki.server(&[ISTIOD, RELAY]), client.clone(), &of_several),
        (
            &Authority::new("servers").certify(&[ISTIOD], Use::Any),
            client.clone(),
            "leads to no trusted authority",
        ),
        (&pki.servers.certify(&[ISTIOD], Use::Expired), client.clone(), "has expired"),
        (&pki.servers.certify(&[ISTIOD], Use::Client), client, "is not one for servers"),
        (&istiod, heeds, "has been revoked"),
    ] {
        front.show(&Shown::new(leaf));
        expect(&front.uri("localhost"), client, expected).await;
    }
}

#[tokio::test]
async fn a_server_that_does_not_want_the_client_is_quoted() {
    let pki = Pki::new();
    let leaf = pki.server(&["localhost"]);
    for versions in [&[&TLS12][..], &[&TLS13]] {
        let shown = Shown { clients: Some(&pki.clients), versions, ..Shown::new(&leaf) };
        let (_origin, front) = origin(&shown).await;
        let uri = front.uri("localhost");
        let asks =
            if versions == [&TLS12] { "cert_file" } else { "the server asks for a client certificate" };
        expect(&uri, pki.nobody(), asks).await;
        let known = pki.clients.certify(&[RELAY], Use::Client);
        expect(&uri, pki.somebody(&known), "connected").await;
        let own = pki.path("relay.pem");
        let refused = format!("the server refused the client certificate of {}: ", own.display());
        let unknown = pki.servers.certify(&[RELAY], Use::Client);
        expect(&uri, pki.somebody(&unknown), &refused).await;
        let expired = pki.clients.certify(&[RELAY], Use::Expired);
        expect(&uri, pki.somebody(&expired), &format!("{refused}it has expired")).await;
    }
}

#[tokio::test]
async fn a_server_without_http2_is_told_from_one_without_tls() {
    let pki = Pki::new();
    let leaf = pki.server(&["localhost"]);
    for alpn in [&["http/1.1"][..], &[]] {
        let (_origin, front) = origin(&Shown { alpn, ..Shown::new(&leaf) }).await;
        expect(&front.uri("localhost"), pki.nobody(), "expected `h2` by ALPN").await;
    }
    let (origin, front) = origin(&Shown::new(&leaf)).await;
    let secure = origin.uri().replace("http://", "https://");
    expect(
        &secure,
        named(pki.nobody(), "localhost"),
        "not answer in TLS; if it speaks cleartext, write http://",
    )
    .await;

    // An alert is shorter than the head of a frame, and nothing comes after it.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let alerts = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        socket.write_all(&[0x15, 3, 1, 0, 2, 2, 0x46]).await.unwrap();
    });
    for (port, expected) in [
        (alerts, "the server answers in TLS; write https://"),
        (front.port(), "the server answers in TLS; write https://"),
    ] {
        let transport = Transport { connect_timeout: PATIENCE, ..Transport::default() };
        let plain = transport.endpoint(&format!("http://127.0.0.1:{port}")).unwrap();
        let why = dial(plain, Target::Cleartext).await.unwrap_err();
        assert!(why.contains(expected), "{why}");
    }
}

#[tokio::test]
async fn r_relay_07_a_server_that_goes_silent_is_given_up_and_it_is_said_where() {
    let pki = Pki::new();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let holding = tokio::spawn(async move {
        let mut held = Vec::new();
        loop {
            held.push(silent.accept().await.unwrap());
        }
    });
    let leaf = pki.server(&["localhost"]);
    let front = Front::start(address, &Shown::new(&leaf)).await;
    for (uri, where_) in [
        (format!("https://localhost:{}", address.port()), "the TLS handshake is not done"),
        (front.uri("localhost"), "no HTTP/2 SETTINGS have come"),
    ] {
        let limit = Duration::from_millis(300);
        let transport = Transport { connect_timeout: limit, ..Transport::default() };
        let endpoint = transport.endpoint(&uri).unwrap();
        let tls = ClientFiles::new(pki.nobody(), endpoint.uri()).unwrap().read().unwrap();
        let start = Instant::now();
        let why = dial(endpoint, Target::Tls(Arc::new(tls))).await.unwrap_err();
        assert_eq!(why, format!("the server has not answered within 300ms: {where_}"));
        assert!((limit..PATIENCE).contains(&start.elapsed()), "{:?}", start.elapsed());
    }
    holding.abort();
}

/// Scheme and authority of a request: a server behind TLS may insist on them.
#[tokio::test]
async fn requests_say_that_they_came_over_https() {
    let pki = Pki::new();
    let leaf = pki.server(&["localhost"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let front = Front::start(listener.local_addr().unwrap(), &Shown::new(&leaf)).await;
    let relay = relay(&front.uri("localhost"), pki.nobody(), &Reloader::default());
    let _client = relay.client(CDS, true, &[]);
    let (socket, _) = listener.accept().await.unwrap();
    let mut connection = h2::server::handshake(socket).await.unwrap();
    let (request, _) = tokio::time::timeout(PATIENCE, connection.accept()).await.unwrap().unwrap().unwrap();
    assert_eq!(request.uri().scheme_str(), Some("https"));
    assert_eq!(request.uri().authority().unwrap().as_str(), format!("localhost:{}", front.port()));
}

/// The way upstream of a relay over TLS.
fn relay(uri: &str, tls: TlsOptions, reloader: &Reloader) -> Relay {
    let endpoint = Transport::default().endpoint(uri).unwrap();
    let files = ClientFiles::new(tls, endpoint.uri()).unwrap();
    let paths = files.paths();
    let load = move |read: &Files| files.load(read);
    Relay::at(Options {
        tls: Some(reloader.add("upstream.servers[].tls", paths, load).unwrap()),
        backoff: Backoff::new(Duration::from_millis(20), Duration::from_millis(100)),
        ..options(endpoint)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_rotation_the_relay_comes_back_with_the_new_certificates() {
    let pki = Pki::new();
    let (servers, clients) = (Authority::new("new servers"), Authority::new("new clients"));
    let (old, new) = (pki.server(&["localhost"]), servers.certify(&["localhost"], Use::Any));
    let mine = pki.somebody(&pki.clients.certify(&[RELAY], Use::Client));
    let (mut origin, front) = origin(&Shown { clients: Some(&pki.clients), ..Shown::new(&old) }).await;
    let reloader = Reloader::default();
    let relay = relay(&front.uri("localhost"), mine, &reloader);
    let _client = relay.client(CDS, true, &[]);
    let mut stream = origin.accept_asked().await;
    stream.deliver(&clusters_at("1", &["before"])).await;

    let of = relay.cache.of(&CDS.into()).unwrap();
    eventually("complete set", async || of.snapshot().wildcard_known()).await;

    // The stream that is open does not notice.
    front.show(&Shown { clients: Some(&clients), ..Shown::new(&new) });
    pki.somebody(&clients.certify(&[RELAY], Use::Client));
    put(pki.dir.path(), "ca.pem", &servers.pem());
    reloader.reload_now();
    stream.deliver(&clusters_at("2", &["meanwhile"])).await;

    front.cut();
    let mut stream = origin.accept().await;
    let request = stream.expect_request().await;
    assert_eq!(request.initial_resource_versions.len(), 2, "{request:?}");
    stream.deliver(&clusters_at("3", &["after"])).await;
    assert!(["before", "meanwhile", "after"].iter().all(|name| relay.version(CDS, name).is_some()));

    // A set that cannot be used changes nothing.
    put(pki.dir.path(), "relay.key", &clients.certify(&[RELAY], Use::Client).key_pem);
    reloader.reload_now();
    front.cut();
    let _stream = origin.accept_asked().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_is_refused_tries_on_and_gets_in_when_its_files_are_right() {
    let pki = Pki::new();
    let leaf = pki.server(&["localhost"]);
    let (mut origin, front) = origin(&Shown { clients: Some(&pki.clients), ..Shown::new(&leaf) }).await;
    let wrong = pki.somebody(&pki.servers.certify(&[RELAY], Use::Client));
    // Nobody tells it to look.
    let reloader = Reloader::default();
    let relay = relay(&front.uri("localhost"), wrong, &reloader);
    let _client = relay.client(CDS, true, &[]);
    eventually("refusal", async || {
        relay
            .state
            .borrow()
            .last_error
            .as_deref()
            .is_some_and(|error| error.contains("the server refused the client certificate of"))
    })
    .await;
    assert_eq!(relay.counters.connects.get(), 0, "a handshake is no connection");
    pki.somebody(&pki.clients.certify(&[RELAY], Use::Client));
    let _stream = origin.accept_asked().await;
    assert!(relay.state.borrow().connected);
}

/// Judgement on a configuration, by `check` and by `serve`.
fn judged(dir: &Path, tls: &str) -> String {
    let config = put(
        dir,
        "deltafan.yaml",
        &format!("upstream:\n  servers:\n  - uri: https://localhost:1\n    tls: {{{tls}}}\n"),
    );
    let [checked, served] = ["check", "serve"].map(|command| {
        let ran = run(&[command, "--config", config.to_str().unwrap()]);
        assert_eq!(ran.code, Some(78), "{ran:?}");
        ran.stderr
    });
    assert_eq!(checked, served);
    let start = format!("{}: upstream.servers[].tls: ", config.display());
    checked.trim_end().strip_prefix(&start).unwrap_or_else(|| panic!("{checked}")).to_owned()
}

#[test]
fn a_bad_set_of_files_is_named_before_anything_runs() {
    let pki = Pki::new();
    let dir = pki.dir.path();
    let (one, other) =
        (pki.clients.certify(&[RELAY], Use::Client), pki.clients.certify(&[RELAY], Use::Client));
    pki.somebody(&one);
    put(dir, "other.key", &other.key_pem);
    put(dir, "empty.pem", "");
    put(dir, "broken.pem", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n");
    for (tls, told) in [
        ("ca_file: none.pem", "cannot read DIR/none.pem: No such file or directory (os error 2)"),
        ("ca_file: empty.pem", "DIR/empty.pem holds no certificate (PEM)"),
        ("ca_file: relay.key", "DIR/relay.key holds no certificate (PEM)"),
        ("ca_file: broken.pem", "DIR/broken.pem is no PEM file: "),
        ("cert_file: relay.pem, key_file: ca.pem", "DIR/ca.pem holds no private key (PEM)"),
        (
            "cert_file: relay.pem, key_file: other.key",
            "DIR/other.key: is not the key of the first certificate in DIR/relay.pem",
        ),
        ("ca_file: ca.pem, crl_file: ca.pem", "DIR/ca.pem holds no certificate revocation list (PEM)"),
    ] {
        let message = judged(dir, tls);
        assert!(message.starts_with(&told.replace("DIR", dir.to_str().unwrap())), "{tls}: {message}");
        assert!(!message.contains("PRIVATE KEY"), "{message}");
    }
    let config = put(
        dir,
        "good.yaml",
        "upstream: {servers: [{uri: \"https://localhost:1\", \
         tls: {ca_file: ca.pem, cert_file: relay.pem, key_file: relay.key}}]}\n",
    );
    let ran = run(&["check", "--config", config.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let servers = "upstream: {servers: [{uri: http://localhost:1}, {uri: https://localhost:2, tls: {ca_file: none.pem}}]}\n";
    let config = put(dir, "second.yaml", servers);
    let ran = run(&["check", "--config", config.to_str().unwrap()]);
    ran.complains(&[": upstream.servers[1].tls: cannot read "]);
}

const CLUSTERS: &str = r#"
version_info: "1"
resources:
- "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
  name: web
"#;

/// Asks a server for its clusters with these options.
fn get(server: &str, options: &[&str]) -> (bool, String) {
    let ran = run(&[&["get", "cds", "--server", server], options].concat());
    (ran.code == Some(0), ran.stdout + &ran.stderr)
}

#[test]
fn people_ask_over_tls_too() {
    let pki = Pki::new();
    let relay = Process::start(&[("clusters.yaml", CLUSTERS)], "");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let leaf = pki.server(&["localhost", "cp.example"]);
    pki.somebody(&pki.clients.certify(&[RELAY], Use::Client));
    let file = |name: &str| pki.path(name).to_str().unwrap().to_owned();
    let (ca, cert, key) = (file("ca.pem"), file("relay.pem"), file("relay.key"));
    let trust = ["--ca-file", &ca];
    let own = ["--cert-file", &cert, "--key-file", &key];

    let plain = runtime.block_on(Front::start(relay.listener, &Shown::new(&leaf)));
    let (found, told) = get(&plain.uri("localhost"), &trust);
    assert!(found && told.contains("web"), "{told}");
    let of_http1 = Shown { alpn: &["http/1.1"], ..Shown::new(&leaf) };
    let of_http1 = runtime.block_on(Front::start(relay.listener, &of_http1));
    let polling = [&trust[..], &["--transport", "rest"]].concat();
    let (found, told) = get(&of_http1.uri("localhost"), &polling);
    assert!(found && told.contains("web"), "{told}");
    let by_name = [&trust[..], &["--server-name", "cp.example"]].concat();
    let (found, told) = get(&plain.uri("127.0.0.1"), &by_name);
    assert!(found && told.contains("web"), "{told}");

    let mutual = Shown { clients: Some(&pki.clients), ..Shown::new(&leaf) };
    let mutual = runtime.block_on(Front::start(relay.listener, &mutual));
    let (found, told) = get(&mutual.uri("localhost"), &[trust, ["--server-name", "localhost"]].concat());
    let mutual_http1 = Shown { clients: Some(&pki.clients), alpn: &["http/1.1"], ..Shown::new(&leaf) };
    let mutual_http1 = runtime.block_on(Front::start(relay.listener, &mutual_http1));
    let asked = "the server asks for a client certificate; set --cert-file and --key-file";
    let wanted = format!("deltafan: could not connect to {}: {asked}\n", mutual.uri("localhost"));
    assert_eq!((found, told), (false, wanted));
    let (found, told) = get(&mutual.uri("localhost"), &[&trust[..], &own].concat());
    assert!(found && told.contains("web"), "{told}");

    for (server, options, why) in [
        (relay.uri(), &trust[..], "need TLS"),
        (plain.uri("localhost"), &["--ca-file", "/none/ca.pem"], "cannot read /none/ca.pem"),
        (plain.uri("localhost"), &["--cert-file", &cert], "--key-file"),
        (plain.uri("localhost"), &["--server-name", "a b"], "names no server"),
        (plain.uri("127.0.0.1"), &trust, "is not for 127.0.0.1 but for"),
        (plain.uri("localhost").replace("https:", "http:"), &[], "answers in TLS; write https://"),
        (relay.uri().replace("http:", "https:"), &trust, "or not speak TLS"),
    ] {
        let (found, told) = get(&server, options);
        assert!(!found && told.contains(why), "{server} {options:?}: {told}");
    }

    // Polls go over HTTP/1.1.
    for (server, options, why) in [
        (of_http1.uri("localhost").replace("https:", "http:"), &[][..], "answers in TLS; write https://"),
        (plain.uri("localhost"), &trust, "the server does not offer HTTP/1.1"),
        (relay.uri().replace("http:", "https:"), &trust, "or not speak TLS"),
        (mutual_http1.uri("localhost"), &trust, asked),
    ] {
        let (found, told) = get(&server, &[options, &["--transport", "rest"]].concat());
        assert!(!found && told.contains(why), "{server} {options:?}: {told}");
        assert!(told.lines().count() == 1 && !told.contains("--transport"), "one remedy: {told}");
    }
}

#[test]
fn people_ask_over_a_unix_socket_too() {
    let dir = tempfile::tempdir().unwrap();
    let server = format!("unix:{}", dir.path().join("xds.sock").display());
    let listeners = format!("[{{address: \"{server}\"}}]");
    let _relay = Process::listening(&listeners, &[("clusters.yaml", CLUSTERS)], "");
    let (found, told) = get(&server, &[]);
    assert!(found && told.contains("web"), "{told}");
    let (found, told) = get(&server, &["--server-name", "a"]);
    assert!(!found && told.contains("need TLS"), "{told}");
    let (found, told) = get(&format!("{server}.none"), &[]);
    assert!(!found && told.contains("No such file"), "{told}");
}
