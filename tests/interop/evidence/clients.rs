//! Real Envoys and gRPC clients, and how long they wait.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use serde_json::json;

use super::{Bed, LONGEST, MUX, NOWHERE, SNAPSHOT, Waits, word};
use crate::{
    fixture::{
        CallResult, Envoy, Fixture, GrpcBackends, GrpcClient, Implementation, Origin, PATIENCE, Transport,
        eventually, free_port, http, require_relay,
        resources::{CLUSTER, ENDPOINTS, api_listener, cluster, endpoints, listener, routes},
        wait_until_answers,
    },
    fleet::{local, world::World},
};

const BACKEND: &str = "backend";
const TARGET: &str = "greeter.example";

/// Those on aggregated streams that ask for routes, too, keep a cluster that is gone for 2 s on purpose (make before break). By state of the
/// world a relay that has just started does not know that they hold it.
#[test]
fn envoys_lose_a_cluster_that_was_deleted_while_the_relay_was_dead() {
    const KEPT: Duration = Duration::from_secs(2);
    let Some(()) = require_relay() else { return };
    let Some(fixture) = Fixture::start_with(MUX, Transport::ALL.len(), "") else { return };
    let mut world = World::default();
    ["a", "b"].into_iter().for_each(|name| world.set(&fixture.origin, CLUSTER, name));
    let start = |transport| (transport, fixture.start_envoy(&format!("{transport:?}"), transport));
    let envoys = Transport::ALL.map(start);
    let has = |envoy: &Envoy, names: &[&str]| {
        let found: Vec<String> = envoy.dynamic_clusters()?.active.into_keys().collect();
        if found == names { Ok(()) } else { Err(format!("{found:?}")) }
    };
    for (_, envoy) in &envoys {
        eventually(PATIENCE, "Envoy has both clusters", || has(envoy, &["a", "b"]));
    }
    fixture.kill_relay();
    world.remove(&fixture.origin, CLUSTER, "b");
    fixture.start_relay_again();
    let waits = Mutex::new(Waits::over(Duration::ZERO));
    thread::scope(|scope| {
        for (transport, envoy) in &envoys {
            let (fixture, waits) = (&fixture, &waits);
            scope.spawn(move || {
                let is_back =
                    || client(local(fixture.relay_admin_port()), &format!("type=cds&node={transport:?}"));
                let since = eventually(PATIENCE, "Envoy is connected", is_back);
                eventually(LONGEST, "Envoy has one cluster", || has(envoy, &["a"]));
                let kept = if *transport == Transport::DeltaAds { KEPT } else { Duration::ZERO };
                waits.lock().note_beside(&format!("row 3, Envoy, {transport:?}"), since.elapsed(), kept);
            });
        }
    });
    waits.into_inner().check();
}

/// This moment, if the relay with this admin address has a client that a query is for.
fn client(admin: SocketAddr, query: &str) -> Result<Instant, String> {
    let page = http::get_json(&format!("http://{admin}/clients?{query}"))?;
    if page["clients"][0].is_null() { Err(page.to_string()) } else { Ok(Instant::now()) }
}

#[test]
fn a_grpc_client_whose_routes_name_a_cluster_that_is_missing_gets_the_other() {
    let Some(()) = require_relay() else { return };
    let mut waits = Waits::over(Duration::ZERO);
    for made_by in [Implementation::Core, Implementation::Go] {
        let Some(()) = made_by.require() else { return };
        let Some(fixture) = Fixture::start_with(MUX, 0, "") else { return };
        let source = Transport::SotwAds.config_source();
        let put = |service: &str| {
            let mut a = cluster("a", &source, "1s");
            a["eds_cluster_config"]["service_name"] = service.into();
            fixture.origin.put(&endpoints(service, 1));
            fixture.origin.put(&a);
        };
        put("service-1");
        let mut both = routes("routes", "a");
        let all = both["virtual_hosts"][0]["routes"].as_array_mut().unwrap();
        all.insert(0, json!({"match": {"prefix": "/nowhere"}, "route": {"cluster": NOWHERE}}));
        fixture.origin.put(&both);
        fixture.origin.put(&api_listener(TARGET, &source, "routes"));
        let _client = fixture.start_grpc_client(made_by, "grpc", TARGET);
        for (what, service) in [("without a version", "service-1"), ("with a version", "service-2")] {
            let admin = local(fixture.relay_admin_port());
            let lists_both = || client(admin, &format!("type=cds&asks_for={NOWHERE}"));
            let since = eventually(PATIENCE, "it lists both clusters", lists_both);
            // It asks for the endpoints of the cluster that it was sent.
            let asks_on = || client(admin, &format!("type=eds&asks_for={service}")).map(drop);
            waits.measure(&format!("row 4, {made_by:?}, {what}"), since, asks_on);
            fixture.kill_relay();
            put("service-2");
            fixture.start_relay_again();
        }
    }
    waits.check();
}

#[test]
fn the_first_envoy_of_a_cold_relay_is_configured() {
    let Some(()) = require_relay() else { return };
    let mut waits = Waits::over(Duration::ZERO);
    for control_plane in [MUX, SNAPSHOT] {
        let Some(fixture) = Fixture::start_asking(control_plane, 2, ["auto", "1s", ""]) else {
            return;
        };
        let source = Transport::SotwAds.config_source();
        fixture.origin.put(&endpoints(BACKEND, 1));
        fixture.origin.put(&cluster(BACKEND, &source, "1s"));
        fixture.origin.put(&routes("routes", BACKEND));
        fixture.origin.put(&listener("ingress", &source, "routes"));
        let of_relay = || fixture.metric(0, "deltafan_streams{transport=\"sotw\"}") >= 1.0;
        let took = configure(&fixture, "relayed", fixture.port(0), &of_relay);
        waits.note(&format!("row 5, {}, until it listens", word(control_plane)), took);
        let open = fixture.origin.stats().open_streams;
        let of_origin = || fixture.origin.stats().open_streams > open;
        let took = configure(&fixture, "direct", fixture.origin.port(), &of_origin);
        println!("row 5, {}, without the relay: {} ms", word(control_plane), took.as_millis());
    }
    waits.check();
}

/// Starts an Envoy; returns the time from its connection until it has a cluster and listens.
fn configure(fixture: &Fixture, id: &str, server: u16, is_connected: &(dyn Fn() -> bool + Sync)) -> Duration {
    thread::scope(|scope| {
        let since = scope.spawn(|| {
            eventually(PATIENCE, "Envoy connects", || {
                if is_connected() { Ok(Instant::now()) } else { Err("not yet".to_owned()) }
            })
        });
        let envoy = fixture.start_envoy_of(id, Transport::SotwAds, server);
        eventually(LONGEST, "Envoy is configured", || {
            envoy.url("ingress")?;
            let clusters = envoy.dynamic_clusters()?.active;
            if clusters.contains_key(BACKEND) { Ok(()) } else { Err(format!("{clusters:?}")) }
        });
        let configured = Instant::now();
        configured.duration_since(since.join().unwrap())
    })
}

#[test]
fn no_call_of_grpc_core_fails_while_relays_are_killed() {
    calls_go_on(Implementation::Core);
}

#[test]
fn no_call_of_grpc_go_fails_while_relays_are_killed() {
    calls_go_on(Implementation::Go);
}

/// The relay is killed every 3 s. Each time the route leads to a new cluster when it is back, and the old one is gone. Over this link each
/// call that could fail does: they are made every 50 ms.
fn calls_go_on(made_by: Implementation) {
    const KILLS: usize = 4;
    const EVERY: Duration = Duration::from_secs(3);
    const ROUND_TRIP: Duration = Duration::from_millis(150);
    /// Back-off of a client that finds nobody twice. It grows on if a relay dies before it has answered.
    const BACK_OFF: Duration = Duration::from_millis(2_500);
    const BACKENDS: [&str; 2] = ["a", "b"];
    let (Some(()), Some(()), port) = (Implementation::Core.require(), made_by.require(), free_port()) else {
        return;
    };
    let Some(mut bed) = Bed::start_on(&local(port).to_string(), MUX, ROUND_TRIP) else { return };
    let logs = tempfile::tempdir().unwrap();
    let backends = GrpcBackends::start(logs.path(), &BACKENDS);
    let source = Transport::SotwAds.config_source();
    let name = |round: usize| format!("{BACKEND}-{round}");
    let lead_to = |origin: &Origin, round: usize| {
        origin.put(&endpoints(&name(round), backends.port(BACKENDS[round % 2])));
        origin.put(&cluster(&name(round), &source, "1s"));
        origin.put(&routes("routes", &name(round)));
    };
    lead_to(&bed.fixture.origin, 0);
    bed.fixture.origin.put(&api_listener(TARGET, &source, "routes"));
    let calls = GrpcClient::start(made_by, logs.path(), "grpc", TARGET, port);
    wait_until_answers(&calls, BACKENDS[0]);
    let before = calls.results().len();
    let mut restarted = Instant::now();
    for round in 1..=KILLS {
        thread::sleep(EVERY.saturating_sub(restarted.elapsed()));
        bed.restart_relay(|_, origin| {
            lead_to(origin, round);
            origin.delete(CLUSTER, &name(round - 1));
            origin.delete(ENDPOINTS, &name(round - 1));
        });
        restarted = Instant::now();
    }
    let is_back = || client(bed.relay().admin, "node=grpc");
    let since = eventually(PATIENCE, "the client is back", is_back);
    let mut waits = Waits::over(ROUND_TRIP);
    waits.note_beside(&format!("row 7, {made_by:?}: is back"), since.duration_since(restarted), BACK_OFF);
    let expected = CallResult::Answer { answer: BACKENDS[KILLS % 2].to_owned() };
    waits.measure(&format!("row 7, {made_by:?}: new state"), since, || match calls.results().last() {
        Some(last) if *last == expected => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let results = calls.results().split_off(before);
    // A race within grpc-go, seen without a relay, too.
    let lost = "unknown cluster selected for RPC";
    let is_failed = |result: &&CallResult| match result {
        CallResult::Answer { .. } => false,
        CallResult::Error { details, .. } => !details.as_ref().is_some_and(|text| text.contains(lost)),
    };
    let failed: Vec<_> = results.iter().filter(is_failed).collect();
    println!("row 7, {made_by:?}: {} of {} calls failed", failed.len(), results.len());
    waits.check();
    assert!(failed.is_empty(), "{} of {} calls failed: {failed:?}", failed.len(), results.len());
}
