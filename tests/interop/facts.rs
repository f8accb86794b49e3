//! Facts about control planes (docs/origins.md) that would harm clients if the relay did not heed them: partial answers of state of the
//! world (O7), types that are not served (O8), names of several spellings (O9), lists with a name that is gone (O12).

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use deltafan::descriptors::any_to_json;
use tokio::runtime::Runtime;

use crate::fixture::resources::{
    CLUSTER, ENDPOINTS, LISTENER, SCOPED_ROUTES, api_listener, cluster, endpoints, listener, numbered, routes,
};
use crate::fixture::{
    ControlPlane, Fixture, Implementation, PATIENCE, Transport, eventually, http_backend, require_relay,
    wait_until_answers,
};
use crate::fleet::client::{Client, Held};
use crate::fleet::local;
use crate::fleet::world::{Guest, World, canonical, subscriptions};

const VERSIONS: [&str; 3] = ["v0.12.0", "v0.13.4", "v0.14.0"];
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Time in which a wrong removal would be sent.
const QUIET: Duration = Duration::from_millis(700);

/// Time in which newcomers are answered, on a busy machine too.
const ANSWERED: Duration = Duration::from_secs(5);

/// A LinearCache or MuxCache sends what changed on a stream that lives: of 0.13 and older for clusters and listeners too, of 0.14 for
/// scoped routes. Nothing that is missing from such a response is gone.
#[test]
fn o7_nothing_is_gone_that_a_response_with_the_changes_alone_lacks() {
    for version in VERSIONS {
        for cache in [&["--cache", "linear"], &["--cache", "mux"], &["--cache", "snapshot"]] {
            let control_plane = ControlPlane::Go(version, cache);
            let types = [CLUSTER, LISTENER, SCOPED_ROUTES];
            let served = if control_plane.serves_clusters_only() { &types[..1] } else { &types[..] };
            let Some(fixture) = Fixture::start_relays(control_plane, 1, "sotw", "") else { return };
            let runtime = Runtime::new().unwrap();
            let mut world = World::default();
            for type_url in served {
                NAMES[..4].iter().for_each(|name| world.set(&fixture.origin, type_url, name));
            }
            let asked: Vec<(&'static str, &[&str])> = served.iter().map(|each| (*each, &[][..])).collect();
            let guests = [Transport::DeltaAds, Transport::SotwAds].map(|transport| {
                let asked = subscriptions(&asked);
                let server = local(fixture.port(0));
                let client = Client::come_back(runtime.handle(), server, transport, &asked, Held::default());
                Guest { client, who: format!("{transport:?} behind {version} {}", cache[1]), asked }
            });
            let check = |world: &World| {
                eventually(PATIENCE, "all hold what there is", || {
                    guests.iter().try_for_each(|guest| guest.complaint(world).map_or(Ok(()), Err))
                });
                // A cluster that was removed and comes back would be a moment in which calls fail.
                let since = Instant::now();
                while since.elapsed() < QUIET {
                    for guest in &guests {
                        assert_eq!(guest.complaint(world), None);
                    }
                    thread::sleep(Duration::from_millis(5));
                }
            };
            check(&world);
            for type_url in served {
                // One changes, then one comes.
                for name in ["b", "e"] {
                    world.set(&fixture.origin, type_url, name);
                    check(&world);
                }
            }
            // One goes: the next stream tells, if the response does not.
            for type_url in served.iter().filter(|_| cache[1] == "snapshot") {
                world.remove(&fixture.origin, type_url, "c");
                check(&world);
            }
        }
    }
}

/// A client asks for listeners of a LinearCache of clusters, and stays. Directly, only its own stream ends.
#[test]
fn o8_a_client_that_asks_for_a_type_nobody_serves_locks_no_newcomer_out() {
    let Some(()) = require_relay() else { return };
    let control_plane = ControlPlane::Go("v0.14.0", &["--cache", "linear"]);
    let Some(fixture) = Fixture::start_relays(control_plane, 1, "auto", "") else { return };
    let mut world = World::default();
    world.set(&fixture.origin, CLUSTER, "a");
    let runtime = Runtime::new().unwrap();
    let server = local(fixture.port(0));
    let enter =
        |transport, asked: &[_]| Client::start(runtime.handle(), server, transport, &subscriptions(asked));
    let _asking = enter(Transport::DeltaAds, &[(LISTENER, &[])]);
    let mut guests = Vec::new();
    for name in ["b", "c", "d"] {
        for transport in [Transport::SotwAds, Transport::DeltaAds] {
            let client = enter(transport, &[(CLUSTER, &[])]);
            let who = format!("came before {name}, {transport:?}");
            guests.push(Guest { client, who, asked: subscriptions(&[(CLUSTER, &[])]) });
        }
        let complaint = |world: &World| guests.iter().find_map(|guest| guest.complaint(world));
        eventually(ANSWERED, "newcomers are answered", || complaint(&world).map_or(Ok(()), Err));
        world.set(&fixture.origin, CLUSTER, name);
        eventually(ANSWERED, "changes arrive", || complaint(&world).map_or(Ok(()), Err));
    }
}

/// A MuxCache: Envoys and gRPC start while a client asks for a type that it has no cache for, and are told of changes.
#[test]
fn o8_envoys_and_grpc_start_beside_a_client_of_a_type_nobody_serves() {
    const UNSERVED: &str = "type.googleapis.com/example.Unserved";
    let Some(()) = require_relay() else { return };
    let transports = [Transport::DeltaAds, Transport::SotwAds];
    let Some(()) = Implementation::Core.require() else { return };
    let Some(fixture) = Fixture::start(transports.len()) else { return };
    let runtime = Runtime::new().unwrap();
    let asked = subscriptions(&[(UNSERVED, &["layer"])]);
    let _asking = Client::start(runtime.handle(), local(fixture.xds_port()), Transport::DeltaAds, &asked);
    let (source, backends) = (transports[0].config_source(), fixture.start_grpc_backends(&["a", "b"]));
    let http = [http_backend("a"), http_backend("b")];
    let lead_to = |at: usize| {
        fixture.origin.put(&endpoints("http", http[at]));
        fixture.origin.put(&endpoints("grpc", backends.port(["a", "b"][at])));
    };
    for (cluster_name, routes_name) in [("http", "http-routes"), ("grpc", "grpc-routes")] {
        fixture.origin.put(&cluster(cluster_name, &source, "1s"));
        fixture.origin.put(&routes(routes_name, cluster_name));
    }
    fixture.origin.put(&listener("ingress", &source, "http-routes"));
    fixture.origin.put(&api_listener("greeter.example", &source, "grpc-routes"));
    lead_to(0);
    let envoys = transports.map(|transport| fixture.start_envoy(&format!("{transport:?}"), transport));
    let grpc = fixture.start_grpc_client(Implementation::Core, "grpc-client", "greeter.example");
    for (at, backend) in ["a", "b"].into_iter().enumerate() {
        lead_to(at);
        envoys.iter().for_each(|envoy| envoy.wait_until_answered_by("ingress", backend));
        wait_until_answers(&grpc, backend);
    }
    // A few streams end with it: then it is left out. Without that it was asked for 92 times.
    thread::sleep(ANSWERED);
    let asked = fixture.origin.stats().subscribed[UNSERVED]["layer"];
    assert!(asked <= 8, "the control plane was asked for it {asked} times");
}

/// The control plane restarts, and something else changes meanwhile. It compares names byte by byte: a version that the relay claimed under
/// another spelling would come back as a resource that is both sent and removed.
#[test]
fn o9_a_name_in_a_spelling_of_its_own_holds_up_no_change() {
    const SPELLED: &str = "xdstp://west/envoy.config.cluster.v3.Cluster/a?b=1&a=2";
    for version in VERSIONS {
        for cache in [&["--cache", "linear"], &["--cache", "mux"], &["--cache", "snapshot"]] {
            let control_plane = ControlPlane::Go(version, cache);
            let Some(fixture) = Fixture::start_relays(control_plane, 1, "auto", "") else { return };
            let runtime = Runtime::new().unwrap();
            let asked = subscriptions(&[(CLUSTER, &[])]);
            let clients = [Transport::DeltaAds, Transport::SotwAds]
                .map(|transport| Client::start(runtime.handle(), local(fixture.port(0)), transport, &asked));
            let mut bodies = BTreeMap::new();
            for (changed, number) in [SPELLED, "b", "b", SPELLED, "c"].into_iter().zip(1..) {
                fixture.origin.kill();
                let body = numbered(CLUSTER, changed, number);
                fixture.origin.put(&body);
                fixture.origin.start_again();
                bodies.insert(changed, canonical(body).to_string());
                // By delta the relay says the normal form of the name (R-XT-01), and passes on the body as it is.
                let expected: BTreeSet<_> = bodies.values().cloned().collect();
                let body = |client: &Client, name: &String| {
                    let body = client.resource(CLUSTER, name)?;
                    Some(any_to_json(&body).ok()?.to_string())
                };
                eventually(ANSWERED, "all hold what there is", || {
                    for client in &clients {
                        let held: BTreeSet<_> =
                            client.names(CLUSTER).iter().filter_map(|name| body(client, name)).collect();
                        if held != expected {
                            return Err(format!("{version} {}: {held:?}, not {expected:?}", cache[1]));
                        }
                    }
                    Ok(())
                });
            }
            assert_eq!(fixture.origin.stats().nacks(), [""; 0]);
        }
    }
}

/// java-control-plane by state of the world: a list with a name that it has removed is answered for none of its names.
#[test]
fn o12_endpoints_change_after_a_cluster_is_gone() {
    let control_plane = ControlPlane::Java("v1.0.49");
    let transports = [Transport::DeltaAds, Transport::SotwAds];
    let fixture = Fixture::start_asking(control_plane, transports.len(), ["sotw", "60s", ""]);
    let Some(fixture) = fixture else { return };
    let (source, backends) = (transports[0].config_source(), [http_backend("a"), http_backend("b")]);
    for name in ["backend", "gone"] {
        fixture.origin.put(&endpoints(name, backends[0]));
        fixture.origin.put(&cluster(name, &source, "1s"));
    }
    fixture.origin.put(&routes("routes", "backend"));
    fixture.origin.put(&listener("ingress", &source, "routes"));
    let start = |transport| fixture.start_envoy(&format!("{transport:?}"), transport);
    let envoys = transports.map(start);
    let are_answered_by = |backend: &str, bound| {
        eventually(bound, "Envoys are answered", || {
            envoys.iter().try_for_each(|envoy| envoy.is_answered_by("ingress", backend))
        });
    };
    are_answered_by("a", PATIENCE);
    fixture.origin.delete(CLUSTER, "gone");
    fixture.origin.delete(ENDPOINTS, "gone");
    eventually(PATIENCE, "Envoys have lost the cluster", || {
        envoys.iter().try_for_each(|envoy| {
            let clusters = envoy.clusters()?;
            if clusters.contains_key("gone") { Err(format!("{clusters:?}")) } else { Ok(()) }
        })
    });
    fixture.origin.put(&endpoints("backend", backends[1]));
    are_answered_by("b", ANSWERED);
}
