//! The binary between a scripted control plane and clients, over real sockets.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use deltafan::proto::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Node, ResourceError,
    ResourceName, Status,
};
use deltafan::resource::{Envelope, Kind, TypeUrl};
use deltafan_test_support::client::{
    CDS, DELTA_ADS, Delta, EDS, MOMENT, PATIENCE, SOTW_ADS, Sotw, connect, names, node, subscription,
    versions,
};
use deltafan_test_support::origin::{Origin, resource, response, timed};
use deltafan_test_support::process::{Process, relay_and_origin};
use prost::Message as _;
use rustix::process::{Pid, Signal, kill_process};
use tonic::Code;

fn endpoints(nonce: &str, versions: &[(&str, &str)]) -> DeltaDiscoveryResponse {
    let eds: TypeUrl = Kind::Endpoint.into();
    let resources = versions.iter().map(|(name, version)| resource(&eds, name, version, b"")).collect();
    DeltaDiscoveryResponse { resources, ..response(&eds, nonce) }
}

/// State of a client, from its responses.
fn take(held: &mut BTreeMap<String, String>, told: &DeltaDiscoveryResponse) {
    held.extend(versions(told));
    told.removed_resources.iter().for_each(|name| _ = held.remove(name));
}

/// The versions that it brings are 30 MB: more than any other request may be, and of more names than it might ask for.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_of_300_000_resources_that_is_closed_for_its_age_comes_back_without_a_resource() {
    const PARTS: usize = 30;
    const RESOURCES: usize = PARTS * 10_000;
    const VERSION: &str = "00112233445566ff";
    // A busy machine takes long to write the first request, after the stream was opened.
    let patient = "  first_request_timeout: 5m\n";
    let (relay, mut origin, mut upstream) = relay_and_origin(patient).await;
    let (cds, name) = (TypeUrl::from(Kind::Cluster), |number: usize| format!("{number:0>80}"));
    let held: HashMap<_, _> = (0..RESOURCES).map(|number| (name(number), VERSION.to_owned())).collect();
    let come_back = async || {
        let request = DeltaDiscoveryRequest {
            initial_resource_versions: held.clone(),
            ..subscription("large", CDS, &["*"])
        };
        let stream = Delta::open(&connect(&relay.uri()).await, DELTA_ADS).await;
        stream.try_send(request).await;
        stream
    };
    // However long the relay takes to read it, this one is not closed.
    let first = come_back().await;
    let asked = tokio::time::timeout(10 * PATIENCE, upstream.next_request()).await;
    asked.expect("a request in time").expect("a request");
    drop(first);
    relay.reconfigure(&relay.config_with(&format!("{patient}  max_connection_age: 4s\n")));
    relay.wait_for("a reload", || relay.reloads("applied") == 1.0);
    let mut stream = come_back().await;
    let mut part = 0;
    while part < PARTS {
        let numbers = part * RESOURCES / PARTS..(part + 1) * RESOURCES / PARTS;
        let resources = numbers.map(|number| resource(&cds, &name(number), VERSION, b"")).collect();
        let told = DeltaDiscoveryResponse { resources, ..response(&cds, &part.to_string()) };
        if upstream.try_send_bytes(told.encode_to_vec().into()) {
            part += 1;
        } else {
            // On a machine that is too busy to come here soon, the relay asks anew on another stream.
            upstream = origin.accept_asked().await;
            part = 0;
        }
    }
    let (mut answers, mut age) = (0, 4);
    loop {
        // While the set is not complete it is closed without an answer. So it is on a machine that is too busy to read and
        // answer 30 MB within the age, which has to give.
        if let Ok(answer) = stream.next_message_within(10 * PATIENCE).await {
            let answer = DeltaDiscoveryResponse::decode(answer.expect("no end in order")).unwrap();
            assert_eq!((answer.resources.len(), answer.removed_resources.len()), (0, 0));
            answers += 1;
            if answers == 2 {
                break;
            }
            assert_eq!(stream.end().await.code(), Code::Unavailable);
        } else {
            age *= 2;
            relay.reconfigure(&relay.config_with(&format!("{patient}  max_connection_age: {age}s\n")));
        }
        stream = come_back().await;
    }
    let limits = ["max_request_bytes", "max_names", "max_initial_version_bytes_per_connection"];
    for reason in limits {
        assert_eq!(relay.metric(&format!("deltafan_refused_total{{reason=\"{reason}\"}}")), 0.0, "{reason}");
    }
}

/// A client that is told of a cluster asks for its endpoints next: they are there by then.
#[tokio::test(flavor = "multi_thread")]
async fn endpoints_of_a_new_cluster_are_asked_for_before_a_client_does() {
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let clusters = |nonce: &str, name: &str| {
        const EDS_TYPE: [u8; 2] = [2 << 3, 3];
        let cds = TypeUrl::from(Kind::Cluster);
        let body = [&[1 << 3 | 2, u8::try_from(name.len()).unwrap()], name.as_bytes(), &EDS_TYPE].concat();
        DeltaDiscoveryResponse { resources: vec![resource(&cds, name, "1", &body)], ..response(&cds, nonce) }
    };
    let mut client = Delta::asking(&connect(&relay.uri()).await, "envoy", CDS, &["*"]).await;
    upstream.answer(&clusters("1", "a")).await;
    client.take().await;
    client.subscribe("envoy", EDS, &["a"]).await;
    assert_eq!(upstream.expect_request().await.resource_names_subscribe, ["a"]);
    upstream.deliver(&endpoints("2", &[("a", "1")])).await;
    client.take().await;

    upstream.send(&clusters("3", "b"));
    while upstream.expect_request().await.resource_names_subscribe != ["b"] {}
    upstream.deliver(&endpoints("4", &[("b", "1")])).await;
    let told = client.response().await;
    assert_eq!((told.type_url.as_str(), names(&told)), (CDS, vec!["b".to_owned()]));
    client.ack(&told).await;
    client.subscribe("envoy", EDS, &["b"]).await;
    assert_eq!(names(&client.response().await), ["b"]);
    assert!(upstream.is_quiet_for(MOMENT).await, "what is subscribed to is not asked for");
    assert_eq!(relay.metric("deltafan_upstream_events_total{event=\"prefetch\"}"), 1.0);
}

/// Two cohorts, joined at different times, under bursts of changes 15 ms apart: xds-relay froze for good here,
/// because it compared nonces across streams.
#[tokio::test(flavor = "multi_thread")]
async fn everyone_ends_at_the_origins_version_and_every_nonce_is_its_own_streams() {
    const BURSTS: usize = 60;
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let early = connect(&relay.uri()).await;
    let mut clients = Vec::new();
    for at in 0..20 {
        let stream = Delta::asking(&early, &format!("early-{at}"), EDS, &["a", "b"]).await;
        clients.push(stream);
    }
    let mut asked = BTreeSet::new();
    while asked.len() < 2 {
        asked.extend(upstream.expect_request().await.resource_names_subscribe);
    }
    upstream.deliver(&endpoints("first", &[("a", "0"), ("b", "0")])).await;

    let script = tokio::spawn(async move {
        for burst in 1..=BURSTS {
            tokio::time::sleep(Duration::from_millis(15)).await;
            let version = burst.to_string();
            upstream.deliver(&endpoints(&version, &[("a", &version), ("b", &version)])).await;
        }
        upstream
    });
    tokio::time::sleep(Duration::from_millis(15 * BURSTS as u64 / 2)).await;
    let late = connect(&relay.uri()).await;
    for at in 0..20 {
        let stream = Delta::asking(&late, &format!("late-{at}"), EDS, &["a", "b"]).await;
        clients.push(stream);
    }

    let last = BURSTS.to_string();
    let mut followers = Vec::new();
    for mut stream in clients {
        let last = last.clone();
        followers.push(tokio::spawn(async move {
            let (mut held, mut nonces) = (BTreeMap::new(), BTreeSet::new());
            while !(held.len() == 2 && held.values().all(|version| *version == last)) {
                let told = stream.response().await;
                assert!(nonces.insert(told.nonce.clone()), "a nonce came twice: {}", told.nonce);
                take(&mut held, &told);
                stream.ack(&told).await;
            }
            stream.silence().await;
        }));
    }
    for follower in followers {
        tokio::time::timeout(PATIENCE, follower).await.expect("everyone in time").unwrap();
    }
    script.await.unwrap();
}

/// R-SotW-08: one copy per version, however often it is rejected, and nobody else is held up by it.
#[tokio::test(flavor = "multi_thread")]
async fn r_sotw_08_a_client_that_always_nacks_gets_one_copy_per_version() {
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let channel = connect(&relay.uri()).await;
    let mut rejecting = Delta::asking(&channel, "rejecting", EDS, &["a"]).await;
    let mut content = Sotw::asking(&channel, "content", EDS, &["a"]).await;
    upstream.expect_request().await;
    for version in ["1", "2", "3"] {
        upstream.deliver(&endpoints(version, &[("a", version)])).await;
        let told = rejecting.response().await;
        assert_eq!(names(&told), ["a"]);
        for _ in 0..50 {
            rejecting.nack(&told).await;
        }
        rejecting.silence().await;
        let told = content.response().await;
        content.ack(&told, &["a"]).await;
    }
    content.silence().await;
    assert!(upstream.is_quiet_for(MOMENT).await, "no rejection goes upstream (R-Relay-13, R-Relay-14)");
    let rejected = relay.metric("deltafan_requests_total{type=\"eds\",transport=\"delta\",result=\"nack\"}");
    assert!(rejected >= 3.0, "{rejected}");
}

/// R-Relay-06: what is known is served, nothing is removed, and waiting costs next to nothing.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_06_without_its_origin_the_relay_serves_on_and_is_quiet() {
    let (relay, origin, mut upstream) = relay_and_origin("").await;
    let channel = connect(&relay.uri()).await;
    let mut first = Delta::asking(&channel, "first", EDS, &["a"]).await;
    upstream.expect_request().await;
    upstream.send(&endpoints("1", &[("a", "1")]));
    first.take().await;

    drop((upstream, origin));
    relay.wait_for("the loss in the metrics", || relay.metric("deltafan_upstream_connected") == 0.0);
    let (cpu, lines) = (relay.cpu(), relay.log_lines());
    first.silence().await;
    let mut newcomer = Delta::asking(&channel, "newcomer", EDS, &["a"]).await;
    assert_eq!(names(&newcomer.response().await), ["a"]);
    tokio::time::sleep(Duration::from_secs(4)).await;
    let (cpu, lines) = (relay.cpu() - cpu, relay.log_lines() - lines);
    assert!(cpu < Duration::from_millis(200), "{cpu:?} of CPU in 4 s of retries every half second at most");
    assert!(lines <= 3, "{lines} lines of log");
    assert!(relay.admin_get("/ready").0 == 200, "it serves");
    assert!(relay.metric("deltafan_upstream_stale_seconds") >= 4.0);
}

/// R-Relay-07: who cannot be told anything is sent away before any response, so that it tries another server.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_07_a_cold_relay_without_an_origin_says_unavailable() {
    let origin = Origin::start().await;
    let relay = Process::started_behind(origin.uri(), "  cold_deadline: 1s\n").await;
    drop(origin);
    relay.wait_for("the loss in the metrics", || relay.metric("deltafan_upstream_connected") == 0.0);
    let channel = connect(&relay.uri()).await;
    for (what, method) in [("delta", DELTA_ADS), ("sotw", SOTW_ADS)] {
        let started = std::time::Instant::now();
        let status = if method == DELTA_ADS {
            let mut stream = Delta::open(&channel, method).await;
            stream.subscribe(what, CDS, &[]).await;
            stream.end().await
        } else {
            let mut stream = Sotw::open(&channel, method).await;
            stream.subscribe(what, CDS, &[]).await;
            stream.end().await
        };
        assert_eq!(status.code(), Code::Unavailable, "{what}: {status:?}");
        assert!(started.elapsed() >= Duration::from_millis(900), "{what}: not before the deadline");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r_relay_07_a_cold_relay_with_a_silent_origin_says_unavailable() {
    let (relay, _origin, mut upstream) = relay_and_origin("  cold_deadline: 1s\n").await;
    let channel = connect(&relay.uri()).await;
    let mut stream = Sotw::asking(&channel, "first", EDS, &["a"]).await;
    upstream.expect_request().await;
    // A response that is refused is no answer: the client would wait for it on a relay that has nothing for it.
    upstream.send(&endpoints("0", &[("a", "1"), ("a", "2")]));
    let status = stream.end().await;
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("answers nothing"), "{status:?}");
    assert!(upstream.expect_request().await.error_detail.is_some());
    // Once it has answered anything, a client that waits is not sent away.
    let mut stream = Sotw::open(&channel, SOTW_ADS).await;
    upstream.deliver(&endpoints("1", &[("b", "1")])).await;
    stream.subscribe("second", EDS, &["a"]).await;
    let closed = tokio::time::timeout(Duration::from_millis(1500), stream.next_message()).await;
    assert!(closed.is_err(), "{closed:?}");
    upstream.send(&endpoints("2", &[("a", "1")]));
    assert_eq!(stream.response().await.resources.len(), 1);
}

/// Two tiers: the second relay is connected and answered, and cannot know more than the first.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_07_a_relay_behind_a_relay_knows_that_the_control_plane_is_away() {
    let (first, origin, mut upstream) = relay_and_origin("").await;
    let second = Process::started_behind(first.uri(), "  cold_deadline: 1s\n").await;
    let channel = connect(&second.uri()).await;
    let mut stream = Sotw::asking(&channel, "first", EDS, &["a"]).await;
    upstream.expect_request().await;
    upstream.send(&endpoints("1", &[("a", "1")]));
    assert_eq!(stream.response().await.resources.len(), 1);
    drop((origin, upstream));
    second.wait_for("stale", || second.metric("deltafan_upstream_stale_seconds") > 0.0);
    assert_eq!(second.metric("deltafan_upstream_connected"), 1.0);
    let mut cold = Sotw::asking(&channel, "second", EDS, &["b"]).await;
    assert_eq!(cold.end().await.code(), Code::Unavailable);
    let mut warm = Sotw::asking(&channel, "third", EDS, &["a"]).await;
    assert_eq!(warm.response().await.resources.len(), 1, "what it has it serves");
}

/// R-Relay-16, R-Relay-17 and R-Up-20 as the origin sees them: each name once, none while somebody lingers.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_17_a_second_subscriber_costs_the_origin_nothing() {
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let channel = connect(&relay.uri()).await;
    let mut first = Delta::asking(&channel, "first", EDS, &["a"]).await;
    let request = upstream.expect_request().await;
    assert_eq!(request.resource_names_subscribe, ["a"]);
    assert_eq!(request.node.map(|node: Node| node.id).as_deref(), Some("test"));
    upstream.deliver(&endpoints("1", &[("a", "1")])).await;
    first.take().await;
    let again = DeltaDiscoveryRequest {
        type_url: EDS.to_owned(),
        resource_names_subscribe: vec!["a".to_owned()],
        ..DeltaDiscoveryRequest::default()
    };
    first.send(again).await;
    assert_eq!(names(&first.response().await), ["a"], "to ask again is to be answered again (R-Delta-04)");
    drop(first);
    let mut second = Sotw::asking(&channel, "second", EDS, &["a"]).await;
    assert_eq!(second.response().await.resources.len(), 1);
    assert!(upstream.is_quiet_for(MOMENT).await);
}

/// A node that understands times.
fn understanding(id: &str) -> Option<Node> {
    let features = ["xds.config.supports-resource-ttl", "xds.config.resource-in-sotw"];
    Some(Node { client_features: features.map(str::to_owned).into(), ..node(id) })
}

/// The times that a delta client is told, and whether a body comes with them, by name.
fn times(told: &DeltaDiscoveryResponse) -> BTreeMap<&str, (Option<Duration>, bool)> {
    let envelopes = told.resources.iter().map(|bytes| Envelope::parse(bytes, &CDS.into()).unwrap());
    envelopes.map(|envelope| (envelope.name, (envelope.ttl, envelope.body.is_some()))).collect()
}

/// The origin keeps a cluster alive with one heartbeat, then falls silent.
#[tokio::test(flavor = "multi_thread")]
async fn r_ttl_09_times_reach_clients_that_understand_them_and_end_for_everybody() {
    const TTL: Duration = Duration::from_secs(4);
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let channel = connect(&relay.uri()).await;
    let join = async |id: &str, features: bool| {
        let stream = Delta::open(&channel, DELTA_ADS).await;
        let node = if features { understanding(id) } else { Some(node(id)) };
        let type_url = CDS.to_owned();
        stream.send(DeltaDiscoveryRequest { node, type_url, ..Default::default() }).await;
        stream
    };
    let mut told = join("told", true).await;
    let mut untold = join("untold", false).await;
    let mut sotw = Sotw::open(&channel, SOTW_ADS).await;
    let first =
        DiscoveryRequest { node: understanding("sotw"), type_url: CDS.to_owned(), ..Default::default() };
    sotw.send(first).await;

    upstream.expect_request().await;
    let cds: TypeUrl = Kind::Cluster.into();
    let both = vec![timed(&cds, "c1", "1", Some(b"\x0a\x02c1"), TTL), resource(&cds, "c2", "1", b"")];
    upstream.deliver(&DeltaDiscoveryResponse { resources: both, ..response(&cds, "both") }).await;

    // Busy machines do not make a frame within the moment in which the time is the original one.
    let about = |left: Option<Duration>, most: Duration| {
        let left = left.expect("a time");
        assert!(left <= most && left + Duration::from_secs(1) > most, "{left:?} of {most:?}");
    };
    let answer = told.response().await;
    assert_eq!(times(&answer)["c2"], (None, true));
    assert!(times(&answer)["c1"].1);
    about(times(&answer)["c1"].0, TTL);
    told.ack(&answer).await;
    let answer = untold.response().await;
    assert_eq!(times(&answer), BTreeMap::from([("c1", (None, true)), ("c2", (None, true))]));
    untold.ack(&answer).await;
    let whole = sotw.response().await;
    let wrapped = |any: &[u8]| any.windows(36).any(|part| part == b"envoy.service.discovery.v3.Resource\x12");
    assert_eq!(whole.resources.iter().map(|any| wrapped(any)).collect::<Vec<_>>(), [true, false]);
    sotw.ack(&whole, &[]).await;

    tokio::time::sleep(Duration::from_secs(1)).await;
    let beat = vec![timed(&cds, "c1", "1", None, TTL)];
    upstream.send(&DeltaDiscoveryResponse { resources: beat, ..response(&cds, "beat") });
    let began = Instant::now();
    upstream.expect_ack("beat").await;
    // The time runs from when the relay has it, which is not before it was sent and not after it was answered.
    let runs = Instant::now();
    let answer = told.response().await;
    assert_eq!(answer.resources.len(), 1);
    assert!(!times(&answer)["c1"].1, "no body");
    about(times(&answer)["c1"].0, TTL);
    told.ack(&answer).await;
    let again = sotw.response().await;
    assert_eq!((&again.version_info, again.resources.len()), (&whole.version_info, 2));
    assert_ne!(again.nonce, whole.nonce);
    sotw.ack(&again, &[]).await;
    untold.silence().await;

    tokio::time::sleep((runs + Duration::from_millis(1_500)).saturating_duration_since(Instant::now())).await;
    let mut late = join("late", true).await;
    let answer = late.response().await;
    about(times(&answer)["c1"].0, TTL - Duration::from_millis(1_500));
    late.ack(&answer).await;

    for stream in [&mut told, &mut untold, &mut late] {
        let end = stream.response().await;
        assert_eq!((end.removed_resources, end.resources.len()), (vec!["c1".to_owned()], 0));
    }
    assert!(began.elapsed() > TTL - Duration::from_millis(100), "not before its time");
    let end = sotw.response().await;
    assert_eq!(end.resources.len(), 1);
    assert!(!wrapped(&end.resources[0]) && end.version_info != whole.version_info);
}

/// Stops the process of the relay for so long: its sockets fill meanwhile, and its clock goes on.
async fn pause(relay: &Process, time: Duration) {
    let pid = Pid::from_raw(i32::try_from(relay.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    tokio::time::sleep(time).await;
    kill_process(pid, Signal::CONT).unwrap();
}

/// Heartbeats that arrive in time are in time, also where the relay reads them late.
#[tokio::test(flavor = "multi_thread")]
async fn r_ttl_09_a_pause_of_the_relay_ends_nothing_that_its_origin_kept_alive() {
    const TTL: Duration = Duration::from_secs(2);
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let channel = connect(&relay.uri()).await;
    let mut client = Delta::asking(&channel, "client", CDS, &["*"]).await;
    upstream.expect_request().await;
    let cds: TypeUrl = Kind::Cluster.into();
    let first = vec![timed(&cds, "c1", "1", Some(b""), TTL)];
    upstream.deliver(&DeltaDiscoveryResponse { resources: first, ..response(&cds, "first") }).await;
    let answer = client.response().await;
    assert_eq!(names(&answer), ["c1"]);
    client.ack(&answer).await;

    let beats = tokio::spawn(async move {
        for beat in 0..30 {
            tokio::time::sleep(Duration::from_millis(300)).await;
            let beat = response(&Kind::Cluster.into(), &format!("beat {beat}"));
            let resources = vec![timed(&Kind::Cluster.into(), "c1", "1", None, TTL)];
            upstream.send(&DeltaDiscoveryResponse { resources, ..beat });
        }
        upstream
    });
    pause(&relay, Duration::from_secs(5)).await;
    client.silence().await;
    let mut late = Delta::asking(&channel, "late", CDS, &["*"]).await;
    assert_eq!(names(&late.response().await), ["c1"]);
    let _upstream = beats.await.unwrap();
    client.silence().await;
}

fn error(name: &str, code: Code, message: &str) -> ResourceError {
    ResourceError {
        resource_name: Some(ResourceName { name: name.to_owned(), ..ResourceName::default() }),
        error_detail: Some(Status { code: code as i32, message: message.to_owned() }),
    }
}

/// The names and codes of errors.
fn codes(errors: &[ResourceError]) -> BTreeSet<(&str, i32)> {
    let code = |error: &ResourceError| error.error_detail.as_ref().unwrap().code;
    errors.iter().map(|error| (error.resource_name.as_ref().unwrap().name.as_str(), code(error))).collect()
}

/// Responses to a delta client until all of these errors have come: names that were sent, names that were removed.
async fn delta_until(stream: &mut Delta, errors: &[(&str, i32)]) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut sent, mut removed, mut seen) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    while seen.len() < errors.len() {
        let told = stream.take().await;
        for (name, code) in codes(&told.resource_errors) {
            assert!(errors.contains(&(name, code)) && seen.insert(name.to_owned()), "{name} {code}");
            assert!(!names(&told).iter().any(|sent| sent == name), "both sent and in error");
            let is_removed = told.removed_resources.iter().any(|removed| removed == name);
            assert_eq!(is_removed, code == Code::NotFound as i32, "R-Err-07");
        }
        sent.extend(names(&told));
        removed.extend(told.removed_resources);
    }
    stream.silence().await;
    (sent, removed)
}

/// Responses over state of the world until all of these errors have come.
async fn sotw_until(stream: &mut Sotw, listed: &[&str], errors: &[(&str, i32)]) -> Vec<DiscoveryResponse> {
    let (mut all, mut seen) = (Vec::new(), BTreeSet::new());
    while seen.len() < errors.len() {
        let told = stream.response().await;
        stream.ack(&told, listed).await;
        for (name, code) in codes(&told.resource_errors) {
            assert!(errors.contains(&(name, code)) && seen.insert(name.to_owned()), "{name} {code}");
        }
        all.push(told);
    }
    stream.silence().await;
    all
}

/// R-Err: one cluster that cannot be had now, one that does not exist any more, one that is denied; clients that were
/// there before, and after.
#[tokio::test(flavor = "multi_thread")]
async fn r_err_06_early_and_late_clients_learn_the_errors_of_the_origin() {
    const LISTED: [&str; 4] = ["a", "b", "c", "d"];
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let channel = connect(&relay.uri()).await;
    let mut delta = Delta::asking(&channel, "early", CDS, &LISTED).await;
    let mut sotw = Sotw::asking(&channel, "early", CDS, &LISTED).await;
    upstream.expect_request().await;
    let cds: TypeUrl = Kind::Cluster.into();
    let resources = LISTED.iter().map(|name| resource(&cds, name, "1", b"")).collect();
    upstream.deliver(&DeltaDiscoveryResponse { resources, ..response(&cds, "1") }).await;
    let told = delta.take().await;
    assert_eq!(names(&told), LISTED);
    let first = sotw.response().await;
    sotw.ack(&first, &LISTED).await;
    assert_eq!(first.resources.len(), 4);

    let long = "why ".repeat(1 << 10);
    let resource_errors = vec![
        error("a", Code::Unavailable, &long),
        error("b", Code::NotFound, "gone"),
        error("c", Code::PermissionDenied, "no"),
        error("nobody", Code::Unavailable, "asked"),
    ];
    let errors = [("a", 14), ("b", 5), ("c", 7)];
    let removed_resources = vec!["b".to_owned()];
    upstream.send(&DeltaDiscoveryResponse { resource_errors, removed_resources, ..response(&cds, "2") });
    upstream.expect_ack("2").await;

    let (sent, removed) = delta_until(&mut delta, &errors).await;
    assert_eq!((sent, removed), (BTreeSet::new(), BTreeSet::from(["b".to_owned()])));
    let told = sotw_until(&mut sotw, &LISTED, &errors).await;
    assert!(told.iter().rev().skip(1).all(|told| told.resources.len() == 4), "old and new first (R-ADS-03)");
    assert_eq!(
        told.last().unwrap().resources.len(),
        3,
        "who holds what is denied keeps it, and only `b` is gone"
    );

    let mut late = Delta::asking(&channel, "late", CDS, &LISTED).await;
    let (sent, removed) = delta_until(&mut late, &errors).await;
    assert_eq!(sent, ["a", "d"].map(str::to_owned).into(), "`c` is denied");
    assert_eq!(removed, ["b".to_owned()].into());
    let mut late = Sotw::asking(&channel, "late", CDS, &LISTED).await;
    let told = sotw_until(&mut late, &LISTED, &errors).await;
    assert_eq!(told.iter().map(|told| told.resources.len()).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(codes(&told[1].resource_errors), [("a", 14)].into(), "after the body");
    let message = &told[1].resource_errors[0].error_detail.as_ref().unwrap().message;
    assert_eq!(message.len(), 1 << 10, "bounded");
    assert_eq!(told[0].version_info, told[1].version_info);

    let resources = vec![resource(&cds, "a", "1", b""), resource(&cds, "c", "1", b"")];
    upstream.send(&DeltaDiscoveryResponse { resources, ..response(&cds, "3") });
    let told = late.response().await;
    assert_eq!((told.resources.len(), told.resource_errors.len()), (3, 0), "all is well again");
    assert!(relay.metric("deltafan_upstream_events_total{event=\"resource_error\"}") >= 4.0);
    assert!(relay.admin_get("/ready").0 == 200);
}

/// R-Err-07: the off-switch.
#[tokio::test(flavor = "multi_thread")]
async fn r_err_07_switched_off_a_client_is_told_no_errors() {
    let (relay, _origin, mut upstream) = relay_and_origin("  resource_errors: false\n").await;
    let mut delta = Delta::asking(&connect(&relay.uri()).await, "delta", CDS, &["a", "b"]).await;
    upstream.expect_request().await;
    let cds: TypeUrl = Kind::Cluster.into();
    let resource_errors = vec![error("a", Code::Unavailable, ""), error("b", Code::NotFound, "")];
    upstream.send(&DeltaDiscoveryResponse { resource_errors, ..response(&cds, "1") });
    let told = delta.response().await;
    assert_eq!((told.removed_resources, told.resource_errors), (vec!["b".to_owned()], Vec::new()));
}

/// R-Relay-20 over sockets: one asks by an alias, one by the own name, and each gets and loses the same resource.
#[tokio::test(flavor = "multi_thread")]
async fn r_relay_20_a_client_gets_the_resource_of_an_alias() {
    let vhds: TypeUrl = Kind::VirtualHost.into();
    let (relay, _origin, mut upstream) = relay_and_origin("").await;
    let channel = connect(&relay.uri()).await;
    let mut by_alias = Delta::asking(&channel, "by-alias", vhds.as_str(), &["routes/host"]).await;
    assert_eq!(upstream.expect_request().await.resource_names_subscribe, ["routes/host"]);
    let aliased = |version: &str| {
        let plain = resource(&vhds, "routes/virtual", version, b"");
        [&plain[..], b"\x22\x0broutes/host"].concat().into()
    };
    let say =
        |nonce: &str| DeltaDiscoveryResponse { resources: vec![aliased(nonce)], ..response(&vhds, nonce) };
    upstream.deliver(&say("1")).await;
    let told = by_alias.response().await;
    let mut held = BTreeMap::new();
    take(&mut held, &told);
    assert_eq!(held, BTreeMap::from([("routes/virtual".to_owned(), "1".to_owned())]));
    by_alias.ack(&told).await;

    let mut late = Delta::asking(&channel, "late", vhds.as_str(), &["routes/host"]).await;
    let told = late.response().await;
    assert_eq!(told.resources.len(), 1);
    late.ack(&told).await;
    assert!(upstream.is_quiet_for(MOMENT).await, "it was answered from the cache");

    let gone = DeltaDiscoveryResponse {
        removed_resources: vec!["routes/virtual".to_owned()],
        ..response(&vhds, "2")
    };
    upstream.send(&gone);
    for client in [&mut by_alias, &mut late] {
        assert_eq!(client.response().await.removed_resources, ["routes/virtual"]);
    }
}
