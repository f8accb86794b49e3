//! Several control planes (R-Up-08), over real sockets.

use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use deltafan::cache::{Membership, Protocol};
use deltafan::upstream::{Backoff, FailoverTimes, Options, Servers, Settings, Transport};
use deltafan_test_support::origin::state;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tonic::Status;

use crate::groups::BORROWED;
use crate::prelude::*;
use crate::upstream;

/// Clusters by name, with version and body.
type Content = BTreeMap<String, (String, String)>;

fn content(clusters: &[(&str, &str, &str)]) -> Content {
    let cluster = |(name, version, body): &(&str, &str, &str)| {
        ((*name).to_owned(), ((*version).to_owned(), (*body).to_owned()))
    };
    clusters.iter().map(cluster).collect()
}

/// Manner of a control plane, which may change.
#[derive(Debug, Default)]
struct Manner {
    content: Mutex<Content>,
    hangs: AtomicBool,
    refuses: AtomicBool,
    /// Ends each stream after its first response.
    ends: AtomicBool,
    streams: AtomicUsize,
    /// Nodes that have asked on streams that stand.
    nodes: Mutex<BTreeSet<String>>,
    /// Number of versions that each request claimed.
    claimed: Mutex<Vec<usize>>,
}

/// A control plane that answers by itself.
struct Plane {
    manner: Arc<Manner>,
    address: SocketAddr,
    tasks: JoinSet<()>,
}

impl Plane {
    async fn start(clusters: &[(&str, &str, &str)]) -> Self {
        Self::serve(clusters, false).await
    }

    /// A relay whose own control plane does not answer it.
    async fn cut_off_relay(clusters: &[(&str, &str, &str)]) -> Self {
        Self::serve(clusters, true).await
    }

    /// An address at which nobody listens, until [`begin`](Self::begin).
    async fn absent(clusters: &[(&str, &str, &str)]) -> Self {
        let mut plane = Self::start(clusters).await;
        plane.stop().await;
        plane
    }

    async fn serve(clusters: &[(&str, &str, &str)], is_relay: bool) -> Self {
        let manner = Arc::new(Manner { content: Mutex::new(content(clusters)), ..Manner::default() });
        let mut plane = Self { manner, address: ([127, 0, 0, 1], 0).into(), tasks: JoinSet::new() };
        plane.listen(is_relay).await;
        plane
    }

    async fn listen(&mut self, is_relay: bool) {
        let mut origin = Origin::listen_again(self.address).await;
        self.address = origin.address();
        if is_relay {
            origin.set_relay(true);
            origin.says(false).await;
        }
        let manner = Arc::clone(&self.manner);
        self.tasks.spawn(async move {
            let mut streams = JoinSet::new();
            while let Some(stream) = origin.next_stream().await {
                manner.streams.fetch_add(1, Ordering::Relaxed);
                if manner.refuses.load(Ordering::Relaxed) {
                    stream.fail(Status::unavailable("not now"));
                } else {
                    streams.spawn(answer(stream, Arc::clone(&manner)));
                }
            }
        });
    }

    /// Listens again where it did, as soon as the port is free.
    async fn begin(&mut self) {
        self.listen(false).await;
    }

    async fn stop(&mut self) {
        self.tasks.shutdown().await;
        self.manner.nodes.lock().clear();
    }

    fn uri(&self) -> String {
        format!("http://{}", self.address)
    }

    fn set(&self, clusters: &[(&str, &str, &str)]) {
        *self.manner.content.lock() = content(clusters);
    }

    /// Number of versions that its first request claimed.
    fn claimed_first(&self) -> Option<usize> {
        self.manner.claimed.lock().first().copied()
    }

    fn nodes(&self) -> Vec<String> {
        self.manner.nodes.lock().iter().cloned().collect()
    }
}

/// Answers for clusters on a stream, and sends what changes.
async fn answer(mut stream: OriginStream, manner: Arc<Manner>) {
    let cds = TypeUrl::from(Kind::Cluster);
    let mut told: Option<Content> = None;
    let mut names = BTreeSet::new();
    let mut nonce = 0;
    loop {
        let request = tokio::time::timeout(Duration::from_millis(20), stream.next_request()).await;
        match request {
            Ok(None) => return,
            _ if manner.hangs.load(Ordering::Relaxed) => continue,
            Ok(Some(request)) if request.response_nonce.is_empty() => {
                if let Some(node) = &request.node {
                    manner.nodes.lock().insert(node.id.clone());
                }
                manner.claimed.lock().push(request.initial_resource_versions.len());
                told.get_or_insert_default();
                let asked = request.resource_names_subscribe.into_iter();
                names.extend(asked.filter(|name| name != "*"));
            }
            Ok(Some(_)) | Err(_) => {}
        }
        let Some(told) = &mut told else { continue };
        let all = manner.content.lock().clone();
        let asked = |name: &String| names.is_empty() || names.contains(name);
        let news = all.iter().filter(|(name, body)| asked(name) && told.get(*name) != Some(*body));
        let mut told_now = response(&cds, &nonce.to_string());
        let cluster = |(name, (version, body)): (&String, &(String, String))| {
            resource(&cds, name, version, body.as_bytes())
        };
        told_now.resources = news.map(cluster).collect();
        told_now.removed_resources = told.keys().filter(|name| !all.contains_key(*name)).cloned().collect();
        if nonce == 0 || !told_now.resources.is_empty() || !told_now.removed_resources.is_empty() {
            nonce += 1;
            *told = all;
            if !stream.try_send_bytes(prost::Message::encode_to_vec(&told_now).into())
                || manner.ends.load(Ordering::Relaxed)
            {
                return;
            }
        }
    }
}

const TIMES: FailoverTimes =
    FailoverTimes { after: Duration::from_millis(400), return_after: Duration::from_millis(700) };

/// The relay as a client of several control planes, with a client of its own that wants all clusters.
struct Relay {
    upstream: upstream::Relay,
    _client: Membership,
}

impl Deref for Relay {
    type Target = upstream::Relay;

    fn deref(&self) -> &upstream::Relay {
        &self.upstream
    }
}

impl Relay {
    fn at(uris: &[String]) -> Self {
        Self::timed(uris, TIMES)
    }

    fn timed(uris: &[String], times: FailoverTimes) -> Self {
        let options = |uri: &String| {
            let transport = Transport { connect_timeout: Duration::from_millis(300), ..Transport::default() };
            let backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(30));
            Options { backoff, ..upstream::options(transport.endpoint(uri).unwrap()) }
        };
        let servers = Servers::new(options(&uris[0]), uris[1..].iter().map(options), times);
        let settings = Settings {
            node: Node { id: "relay".to_owned(), ..Node::default() },
            first_server: servers.first(),
            ..Settings::default()
        };
        let upstream = upstream::Relay::on(servers, settings);
        let client = upstream.client(Kind::Cluster, true, &[]);
        Self { upstream, _client: client }
    }

    fn version(&self, name: &str) -> Option<String> {
        self.upstream.version(Kind::Cluster, name)
    }

    fn server(&self) -> usize {
        self.state.borrow().server
    }

    /// Waits until a server is in use and has answered.
    async fn uses(&self, server: usize) {
        eventually("server in use", async || {
            let state = self.state.borrow();
            state.server == server && state.answered
        })
        .await;
    }

    async fn holds(&self, name: &str, version: &str) {
        let holds = async || self.version(name).is_some_and(|held| held.split('~').next() == Some(version));
        eventually("version in the cache", holds).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r_up_08_a_server_that_is_down_at_the_start_is_passed_over_until_it_answers() {
    let mut first = Plane::absent(&[("x", "first", "")]).await;
    let second = Plane::start(&[("x", "second", "")]).await;
    let relay = Relay::at(&[first.uri(), second.uri()]);
    relay.holds("x", "second").await;
    assert_eq!(relay.server(), 1);
    assert!(relay.version("x").is_some_and(|version| version.starts_with("second~")), "it is marked");
    first.begin().await;
    relay.holds("x", "first").await;
    relay.uses(0).await;
    assert_eq!(relay.version("x").as_deref(), Some("first"));
    let counts = [&relay.counters.failovers, &relay.counters.failbacks, &relay.counters.probes];
    assert!(counts.iter().all(|count| count.get() > 0), "{counts:?}");
    assert_eq!((first.claimed_first(), second.claimed_first()), (Some(0), Some(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn r_up_08_servers_that_die_hang_or_refuse_are_left_and_nothing_is_removed() {
    for fault in ["dies", "hangs", "refuses"] {
        let mut first = Plane::start(&[("x", "1", ""), ("y", "1", "")]).await;
        let second = Plane::start(&[("x", "2", ""), ("y", "1", "")]).await;
        let relay = Relay::at(&[first.uri(), second.uri()]);
        relay.holds("y", "1").await;
        first.manner.hangs.store(fault == "hangs", Ordering::Relaxed);
        first.manner.refuses.store(fault == "refuses", Ordering::Relaxed);
        first.stop().await;
        if fault != "dies" {
            first.begin().await;
        }
        relay.holds("x", "2").await;
        relay.uses(1).await;
        assert_eq!(relay.version("y").as_deref(), Some("1"), "{fault}");
        first.manner.hangs.store(false, Ordering::Relaxed);
        first.manner.refuses.store(false, Ordering::Relaxed);
        if fault == "dies" {
            first.begin().await;
        }
        relay.uses(0).await;
        relay.holds("x", "1").await;
        assert_eq!(relay.version("y").as_deref(), Some("1"), "{fault}");
    }
}

/// They may be older than those of the control plane.
#[tokio::test(flavor = "multi_thread")]
async fn resources_of_a_sibling_that_is_cut_off_replace_none_of_a_control_plane() {
    let mut first = Plane::start(&[("x", "2", "new")]).await;
    let sibling = Plane::cut_off_relay(&[("x", "1", "old")]).await;
    let relay = Relay::at(&[first.uri(), sibling.uri()]);
    relay.holds("x", "2").await;
    first.stop().await;
    eventually("the end of the second round", async || {
        assert_eq!(relay.version("x").as_deref(), Some("2"), "nothing older is told, and nothing removed");
        relay.counters.failovers.get() >= 4
    })
    .await;
    assert!(sibling.manner.streams.load(Ordering::Relaxed) > 0, "it was asked");
}

/// Its responses before that were passed over, so everything is asked for anew on the same connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_is_answered_again_is_asked_for_everything_anew() {
    let mut origin = Origin::start().await;
    origin.set_relay(true);
    origin.says(false).await;
    let absent = Plane::absent(&[]).await;
    // Another server is not used in this test.
    let times = FailoverTimes { after: Duration::from_secs(300), ..TIMES };
    let relay = Relay::timed(&[origin.uri(), absent.uri()], times);
    let stream = origin.accept_asked().await;
    stream.send(&one("2", "1"));
    relay.holds("x", "2").await;
    let is_cut_off = || relay.state.borrow().origin_is_cut_off;
    eventually("the word on the outage", async || is_cut_off()).await;
    origin.says(true).await;
    eventually("the word on its end", async || !is_cut_off()).await;

    let address = origin.address();
    drop((origin, stream));
    let mut origin = Origin::listen_again(address).await;
    origin.set_relay(true);
    origin.says(false).await;
    let stream = origin.accept_asked().await;
    stream.send(&one("1", "2"));
    eventually("the word on the next outage", async || is_cut_off()).await;
    origin.says(true).await;
    eventually("the word on the end of that", async || !is_cut_off()).await;
    // News of something else: nothing on this stream would bring x again.
    let news = changes(Kind::Cluster, "y", &[("y", "3")], &[]);
    stream.try_send_bytes(prost::Message::encode_to_vec(&news).into());
    let stream = origin.accept_asked().await;
    assert_eq!((relay.version("x").as_deref(), relay.version("y")), (Some("2"), None));
    stream.send(&one("3", "3"));
    relay.holds("x", "3").await;
    assert_eq!(relay.counters.failovers.get(), 0);
}

/// A relay of another make.
#[tokio::test(flavor = "multi_thread")]
async fn a_sibling_that_does_not_say_how_it_stands_is_used() {
    let mut first = Plane::start(&[("x", "2", "new")]).await;
    let mut origin = Origin::start().await;
    origin.set_relay(true);
    let relay = Relay::at(&[first.uri(), origin.uri()]);
    relay.holds("x", "2").await;
    first.stop().await;
    let stream = origin.accept_asked().await;
    stream.send(&one("3", "1"));
    relay.holds("x", "3").await;
}

/// Response with one cluster.
fn one(version: &str, nonce: &str) -> DeltaDiscoveryResponse {
    changes(Kind::Cluster, nonce, &[("x", version)], &[])
}

/// A relay, its binary, in front of two control planes.
fn binary(first: &Plane, second: &Plane, further: &str) -> Process {
    let keys = "failover: {after: 1s, return_after: 2s}, backoff: {initial: 50ms, max: 1s}";
    Process::behind_several(&[first.uri(), second.uri()], keys, further)
}

#[tokio::test(flavor = "multi_thread")]
async fn r_up_08_clients_notice_nothing_where_contents_and_versions_are_equal() {
    let clusters = [("x", "7", "same"), ("y", "7", "same")];
    let (mut first, second) = (Plane::start(&clusters).await, Plane::start(&clusters).await);
    let relay = binary(&first, &second, "");
    let mut client = relay.client("envoy", &["*"]).await;
    let told = client.response().await;
    assert_eq!(versions(&told).len(), 2);
    client.ack(&told).await;
    let server = |number: f64| relay.metric("deltafan_upstream_active_server") == number;
    assert!(server(0.0));
    let event = |event: &str| relay.metric(&format!("deltafan_upstream_events_total{{event=\"{event}\"}}"));
    assert_eq!([event("failover"), event("failback"), event("probe")], [0.0; 3]);

    first.stop().await;
    relay.wait_for("the second control plane", || server(1.0));
    eventually("its answer", async || !second.nodes().is_empty()).await;
    client.silence().await;
    let page: serde_json::Value = serde_json::from_str(&relay.admin_get("/upstreams").1).unwrap();
    let errors = [0, 1].map(|server| &page["servers"][server]["last_error"]);
    assert!(errors[0].is_string() && errors[1].is_null(), "each has its own: {page}");
    // A change of one, which the other has as well, under a version of its own.
    second.set(&[("x", "8", "of the second"), ("y", "7", "same")]);
    let told = client.response().await;
    let changed = versions(&told);
    assert!(changed.len() == 1 && changed["x"].starts_with("8~"), "{changed:?}");
    client.ack(&told).await;

    first.set(&[("x", "8", "of the second"), ("y", "7", "same")]);
    first.begin().await;
    relay.wait_for("the first control plane", || server(0.0) && event("failback") >= 1.0);
    client.silence().await;
    // An equal version, and another content: a client that comes back with it is sent that.
    first.set(&[("x", "8", "of the second"), ("y", "7", "other")]);
    let told = client.response().await;
    assert_eq!(versions(&told).into_keys().collect::<Vec<_>>(), ["y"]);
    let events = relay.events();
    let lines: Vec<&str> = events.iter().filter_map(|event| event["message"].as_str()).collect();
    let said = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    let told = [said("; using http://"), said("answers again; returning")];
    assert!(told.iter().all(|lines| (1..3).contains(lines)), "{events:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn r_up_08_each_node_group_moves_and_returns_with_its_node() {
    let clusters = [("x", "1", "")];
    let (mut first, second) = (Plane::start(&clusters).await, Plane::start(&[("x", "2", "")]).await);
    let relay = binary(&first, &second, BORROWED);
    let mut clients = Vec::new();
    for id in ["red-1", "odd-1"] {
        let mut client = relay.client(id, &["*"]).await;
        client.take().await;
        clients.push(client);
    }
    first.stop().await;
    for client in &mut clients {
        let told = client.response().await;
        assert!(versions(&told)["x"].starts_with("2~"), "{told:?}");
        client.ack(&told).await;
    }
    eventually("both groups", async || second.nodes() == ["fleet-red", "odd-1"]).await;
    first.begin().await;
    for client in &mut clients {
        let told = client.response().await;
        assert_eq!((&*versions(&told)["x"], told.removed_resources.len()), ("1", 0));
    }
}

/// The first one speaks state of the world only: the probe finds that out, and so does the connection after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_preferred_server_without_delta_is_probed_and_used_by_state_of_the_world() {
    let absent = Plane::absent(&[]).await;
    let second = Plane::start(&[("x", "2", "")]).await;
    let relay = Relay::at(&[absent.uri(), second.uri()]);
    relay.holds("x", "2").await;
    let mut first = Origin::listen(absent.address).await;
    first.implement(false, true);
    let cds = TypeUrl::from(Kind::Cluster);
    let answered = tokio::spawn(async move {
        let mut streams = JoinSet::new();
        loop {
            let mut stream = first.accept_sotw().await;
            stream.answer(&state(&cds, "1", &[("x", "of the first")])).await;
            streams.spawn(async move { while stream.next_request().await.is_some() {} });
        }
    });
    relay.uses(0).await;
    eventually("content of the first", async || {
        relay.version("x").is_some_and(|held| !held.starts_with('2'))
    })
    .await;
    assert_eq!(relay.state.borrow().protocol, Some(Protocol::Sotw));
    answered.abort();
}

/// A connection and a stream that stand are no answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_preferred_server_that_hangs_is_not_returned_to() {
    let mut first = Plane::start(&[("x", "1", "")]).await;
    let second = Plane::start(&[("x", "2", "")]).await;
    let relay = Relay::at(&[first.uri(), second.uri()]);
    relay.holds("x", "1").await;
    first.stop().await;
    first.manner.hangs.store(true, Ordering::Relaxed);
    first.begin().await;
    relay.uses(1).await;
    tokio::time::sleep(3 * TIMES.return_after).await;
    assert_eq!((relay.server(), relay.counters.failbacks.get()), (1, 0));
    first.manner.hangs.store(false, Ordering::Relaxed);
    relay.uses(0).await;
}

/// It answers, with nothing: a restart before its resources are there.
#[tokio::test(flavor = "multi_thread")]
async fn a_preferred_server_that_has_lost_its_resources_is_not_returned_to() {
    let mut first = Plane::start(&[("x", "1", "")]).await;
    let second = Plane::start(&[("x", "2", "")]).await;
    let relay = Relay::at(&[first.uri(), second.uri()]);
    relay.holds("x", "1").await;
    first.stop().await;
    relay.holds("x", "2").await;
    first.set(&[]);
    first.begin().await;
    let probes = relay.counters.probes.get();
    eventually("more probes", async || relay.counters.probes.get() >= probes + 3).await;
    assert_eq!((relay.server(), relay.counters.failbacks.get()), (1, 0));
    first.set(&[("x", "3", "")]);
    relay.holds("x", "3").await;
    assert_eq!(relay.server(), 0);
}

/// As servers do that bound the age of a stream (gRFC A57): each stream is answered, so the server answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_preferred_server_that_ends_each_stream_after_an_answer_is_returned_to() {
    let mut first = Plane::start(&[("x", "1", "")]).await;
    let second = Plane::start(&[("x", "2", "")]).await;
    let relay = Relay::at(&[first.uri(), second.uri()]);
    relay.holds("x", "1").await;
    first.stop().await;
    relay.holds("x", "2").await;
    first.manner.ends.store(true, Ordering::Relaxed);
    first.begin().await;
    relay.uses(0).await;
    relay.holds("x", "1").await;
}
