//! Envoys under traffic while a route moves from one cluster to another.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use parking_lot::Mutex;

use crate::fixture::{
    ControlPlane, Envoy, Fixture, PATIENCE, Transport, eventually, http, http_backend, is_direct,
    resources::{CLUSTER, ENDPOINTS, cluster, endpoints, listener, routes},
    skipped,
};

const INGRESS: &str = "ingress";
const ROUTES: &str = "ingress-routes";
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
    /// As at once, while the control plane is away.
    OverOriginRestart,
    /// As at once, while the relay is away. By state of the world an Envoy says no more than which state it accepted last: the relay
    /// has that in its snapshot, once the removals of the swap before have been sent.
    OverRelayRestart,
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
    let name = |round: usize| match kind {
        Swap::InPlace => "backend".to_owned(),
        Swap::AtOnce | Swap::OverOriginRestart | Swap::OverRelayRestart => format!("backend-{round}"),
    };
    let origin = &fixture.origin;
    let put = |round: usize| {
        // Another version of the cluster in each round.
        origin.put(&cluster(&name(round), &source, &format!("{}s", 1 + round)));
        origin.put(&endpoints(&name(round), backends[round % 2].1));
        origin.put(&routes(ROUTES, &name(round)));
        if round > 0 && kind != Swap::InPlace {
            origin.delete(CLUSTER, &name(round - 1));
            origin.delete(ENDPOINTS, &name(round - 1));
        }
    };
    let swap = |round: usize| match kind {
        Swap::AtOnce | Swap::InPlace => put(round),
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
    origin.put(&listener(INGRESS, &source, ROUTES));
    let envoys: Vec<Envoy> =
        (0..envoys).map(|number| fixture.start_envoy(&format!("envoy-{number}"), transport)).collect();
    let arrives = |round: usize| {
        for envoy in &envoys {
            eventually(PATIENCE, "the route leads to the new cluster", || {
                let answer = envoy.request(INGRESS)?;
                if answer == backends[round % 2].0 { Ok(()) } else { Err(answer) }
            });
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
        assert!(kind != Swap::AtOnce || ahead >= 1.0, "endpoints of new clusters are asked for ahead");
    }
}
