//! Envoys under traffic while a route moves from one cluster to another.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::json;

use crate::fixture::{
    ControlPlane, Envoy, Fixture, PATIENCE, Transport, eventually, http, http_backend, is_direct,
    require_relay,
    resources::{CLUSTER, ENDPOINTS, ROUTES, cluster, endpoints, listener, routes},
    skipped,
};

const INGRESS: &str = "ingress";
/// Twice the time for which the relay keeps clusters that are gone.
const REMOVALS_ARE_SENT: Duration = Duration::from_secs(4);

/// A number from the environment, for longer runs than the tests' (`make swap`).
fn number(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

/// How a change reaches the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Swap {
    /// A new cluster, its endpoints and the route to it, and the old cluster gone, without a pause.
    AtOnce,
    /// The cluster changes, and the endpoints and the route with it.
    InPlace,
    /// The cluster takes its endpoints from another service, and the old service is gone.
    Renamed,
    /// The listener names other routes, these another cluster, and that another service; all that was is gone.
    Everything,
    /// Several changes as at once, one right after the other.
    Burst,
    /// As at once, while the control plane is away.
    OverOriginRestart,
    /// As at once, while the relay is away. By state of the world an Envoy says no more than which state it accepted last: the relay
    /// has that in its snapshot, once the removals of the swap before have been sent.
    OverRelayRestart,
}

impl Swap {
    /// Whether an Envoy is told of clusters that were not there before.
    const fn has_new_clusters(self) -> bool {
        !matches!(self, Self::InPlace | Self::Renamed)
    }

    /// Generations of the control plane's configuration in a round. An odd number, so that each round ends at the other backend.
    const fn generations(self) -> usize {
        if matches!(self, Self::Burst) { 5 } else { 1 }
    }
}

/// Names in one generation of the configuration.
struct Names {
    cluster: String,
    service: String,
    routes: String,
}

impl Names {
    fn of(kind: Swap, generation: usize) -> Self {
        let other = |name: &str, changes: bool| {
            if changes { format!("{name}-{generation}") } else { name.to_owned() }
        };
        let cluster = other("backend", kind.has_new_clusters());
        let service = match kind {
            Swap::Renamed | Swap::Everything => other("service", true),
            _ => cluster.clone(),
        };
        Self { cluster, service, routes: other("ingress-routes", kind == Swap::Everything) }
    }
}

macro_rules! swaps {
    ($($name:ident: $transport:ident, $swap:ident, $rounds:literal;)*) => {
        $(#[test]
        fn $name() {
            loses_no_request(Transport::$transport, Swap::$swap, $rounds);
        })*
    };
}

swaps! {
    delta_ads_loses_no_request_at_a_swap: DeltaAds, AtOnce, 20;
    sotw_ads_loses_no_request_at_a_swap: SotwAds, AtOnce, 20;
    delta_ads_loses_no_request_at_a_change_in_place: DeltaAds, InPlace, 20;
    sotw_ads_loses_no_request_at_a_change_in_place: SotwAds, InPlace, 20;
    delta_ads_loses_no_request_when_a_service_is_renamed: DeltaAds, Renamed, 20;
    sotw_ads_loses_no_request_when_a_service_is_renamed: SotwAds, Renamed, 20;
    delta_ads_loses_no_request_when_everything_changes: DeltaAds, Everything, 20;
    sotw_ads_loses_no_request_when_everything_changes: SotwAds, Everything, 20;
    delta_ads_loses_no_request_in_a_burst: DeltaAds, Burst, 10;
    sotw_ads_loses_no_request_in_a_burst: SotwAds, Burst, 10;
    delta_ads_loses_no_request_over_a_restart_of_the_origin: DeltaAds, OverOriginRestart, 5;
    sotw_ads_loses_no_request_over_a_restart_of_the_origin: SotwAds, OverOriginRestart, 5;
    delta_ads_loses_no_request_over_a_restart_of_the_relay: DeltaAds, OverRelayRestart, 5;
    sotw_ads_loses_no_request_over_a_restart_of_the_relay: SotwAds, OverRelayRestart, 5;
}

/// Requests of a test, until it is told to stop.
#[derive(Default)]
struct Traffic {
    is_over: AtomicBool,
    sent: AtomicUsize,
    failed: Mutex<Vec<String>>,
}

impl Traffic {
    fn run(&self, url: &str) {
        while !self.is_over.load(Ordering::Relaxed) {
            self.sent.fetch_add(1, Ordering::Relaxed);
            if let Err(error) = http::get(url) {
                self.failed.lock().push(error);
            }
        }
    }
}

fn loses_no_request(transport: Transport, kind: Swap, rounds: usize) {
    let (envoys, rounds) = (number("SWAP_ENVOYS", 2), number("SWAP_ROUNDS", rounds));
    if is_direct() && kind == Swap::OverRelayRestart {
        return skipped("there is no relay");
    }
    let keys = match (transport, kind) {
        (Transport::SotwAds, Swap::OverRelayRestart) => "snapshot: {path: ./snapshot, ready: false}\n",
        _ => "",
    };
    let Some(fixture) = Fixture::start_with(ControlPlane::USUAL, envoys, keys) else { return };
    let backends = [("even", http_backend("even")), ("odd", http_backend("odd"))];
    let source = transport.config_source();
    let origin = &fixture.origin;
    let backend = |generation: usize| backends[generation % 2];
    let put_generation = |generation: usize| {
        let names = Names::of(kind, generation);
        // Another version of the cluster in each generation.
        let mut cluster = cluster(&names.cluster, &source, &format!("{}s", 1 + generation % 1000));
        if names.service != names.cluster {
            cluster["eds_cluster_config"]["service_name"] = names.service.as_str().into();
        }
        origin.put(&cluster);
        origin.put(&endpoints(&names.service, backend(generation).1));
        origin.put(&routes(&names.routes, &names.cluster));
        if generation == 0 || kind == Swap::Everything {
            origin.put(&listener(INGRESS, &source, &names.routes));
        }
        let Some(before) = generation.checked_sub(1).map(|before| Names::of(kind, before)) else { return };
        for (type_url, gone, now) in [
            (CLUSTER, &before.cluster, &names.cluster),
            (ENDPOINTS, &before.service, &names.service),
            (ROUTES, &before.routes, &names.routes),
        ] {
            if gone != now {
                origin.delete(type_url, gone);
            }
        }
    };
    // The first round is one generation.
    let put = |round: usize| match round.checked_sub(1) {
        Some(past) => (1..=kind.generations()).for_each(|at| put_generation(past * kind.generations() + at)),
        None => put_generation(0),
    };
    let swap = |round: usize| match kind {
        Swap::AtOnce | Swap::InPlace | Swap::Renamed | Swap::Everything | Swap::Burst => put(round),
        Swap::OverOriginRestart => {
            origin.kill();
            put(round);
            origin.start_again();
        }
        Swap::OverRelayRestart => {
            if transport == Transport::SotwAds {
                thread::sleep(REMOVALS_ARE_SENT);
            }
            fixture.stop_relay();
            put(round);
            fixture.start_relay_again();
        }
    };
    put(0);
    let envoys: Vec<Envoy> =
        (0..envoys).map(|number| fixture.start_envoy(&format!("envoy-{number}"), transport)).collect();
    let arrives = |round: usize| {
        for envoy in &envoys {
            envoy.wait_until_answered_by(INGRESS, backend(round).0);
        }
    };
    arrives(0);
    let traffic = Traffic::default();
    thread::scope(|scope| {
        for envoy in &envoys {
            let url = envoy.url(INGRESS).unwrap();
            let traffic = &traffic;
            scope.spawn(move || traffic.run(&url));
        }
        for round in 1..=rounds {
            swap(round);
            arrives(round);
        }
        traffic.is_over.store(true, Ordering::Relaxed);
    });
    let (sent, failed) = (traffic.sent.into_inner(), traffic.failed.into_inner());
    eprintln!("{transport:?}, {kind:?}: {} of {sent} requests failed in {rounds} swaps", failed.len());
    assert!(sent > rounds, "there was traffic");
    if !is_direct() {
        assert!(failed.is_empty(), "{failed:?}");
        // Operators are to look where requests may fail, and nowhere else. It begins anew with the relay.
        let overdue = fixture.relay_metric("deltafan_overdue_acks_total{");
        assert!(overdue < 1.0, "{overdue} responses were sent without the ACK that they depend on");
        let ahead = fixture.relay_metric("deltafan_upstream_events_total{event=\"prefetch\"");
        assert!(
            matches!(kind, Swap::OverOriginRestart | Swap::OverRelayRestart | Swap::InPlace) || ahead >= 1.0,
            "endpoints of new clusters are asked for ahead"
        );
    }
}

#[test]
fn delta_ads_loses_no_request_over_a_cold_restart_beside_a_route_to_nowhere() {
    restarts_cold(Transport::DeltaAds);
}

#[test]
fn sotw_ads_loses_a_round_trip_over_a_cold_restart_beside_a_route_to_nowhere() {
    restarts_cold(Transport::SotwAds);
}

/// While a relay without a snapshot is away, a route moves to a cluster that its Envoys have, and the old cluster goes. So does one
/// that another route still names: the relay waits for that, and the Envoys must not lose the old cluster meanwhile. By state of the
/// world they lose it when they are sent the clusters, and get the route a round trip later.
fn restarts_cold(transport: Transport) {
    let (envoys, rounds) = (number("SWAP_ENVOYS", 2), number("SWAP_ROUNDS", 3));
    let Some(()) = require_relay() else { return };
    let Some(fixture) = Fixture::start(envoys) else { return };
    let (backend, source, origin) = (http_backend("backend"), transport.config_source(), &fixture.origin);
    let put_cluster = |name: &str| {
        origin.put(&endpoints(name, backend));
        origin.put(&cluster(name, &source, "1s"));
    };
    let delete_cluster = |name: &str| {
        origin.delete(CLUSTER, name);
        origin.delete(ENDPOINTS, name);
    };
    let name = |round: usize| format!("backend-{round}");
    let put_routes = |round: usize| {
        let mut both = routes("ingress-routes", &name(round));
        let all = both["virtual_hosts"][0]["routes"].as_array_mut().unwrap();
        all.insert(0, json!({"match": {"prefix": "/spare"}, "route": {"cluster": "spare"}}));
        origin.put(&both);
    };
    put_cluster(&name(0));
    put_routes(0);
    origin.put(&listener(INGRESS, &source, "ingress-routes"));
    let envoys: Vec<Envoy> =
        (0..envoys).map(|number| fixture.start_envoy(&format!("envoy-{number}"), transport)).collect();
    let traffic = Traffic::default();
    let have = |round: usize, names: &[&str]| {
        for envoy in &envoys {
            eventually(PATIENCE, "Envoy has the clusters that there are", || {
                envoy.request(INGRESS)?;
                let active: Vec<String> = envoy.dynamic_clusters()?.active.into_keys().collect();
                if active == names { Ok(()) } else { Err(format!("round {round}: {active:?}")) }
            });
        }
    };
    have(0, &[&name(0)]);
    thread::scope(|scope| {
        for envoy in &envoys {
            let url = envoy.url(INGRESS).unwrap();
            let traffic = &traffic;
            scope.spawn(move || traffic.run(&url));
        }
        for round in 1..=rounds {
            put_cluster(&name(round));
            put_cluster("spare");
            have(round, &[&name(round - 1), &name(round), "spare"]);
            fixture.stop_relay();
            put_routes(round);
            delete_cluster("spare");
            delete_cluster(&name(round - 1));
            fixture.start_relay_again();
            have(round, &[&name(round)]);
        }
        traffic.is_over.store(true, Ordering::Relaxed);
    });
    let (sent, failed) = (traffic.sent.into_inner(), traffic.failed.into_inner());
    eprintln!("{transport:?}: {} of {sent} requests failed in {rounds} restarts", failed.len());
    assert!(sent > rounds, "there was traffic");
    let round_trips = if transport == Transport::SotwAds { 10 * envoys.len() * rounds } else { 0 };
    assert!(failed.len() <= round_trips, "{failed:?}");
}
